/* Remote keys, including R_Key 0 if a shell translates addresses (003, "Shared Virtual Memory"; mem/translation.py,
 * mem/tlb.py). */
#ifndef RNIC_ENGINE_TRANSLATION_H
#define RNIC_ENGINE_TRANSLATION_H

#include "engine.h"

/* Return the record of the key by which the peer of `qp` may access `length` bytes, at least 1, at `va`; NULL if there
 * is none or only Python can decide. */
const struct memory_key *engine_remote_key(const struct engine_shared *shared, const struct engine_qp *qp,
					   uint32_t rkey, uint64_t va, uint64_t length, uint64_t rights);

/* Return the binding of `key` for an access by `rkey`; for R_Key 0, it also contains the key. */
uint64_t engine_remote_binding(uint32_t rkey, const struct memory_key *key);

/* Return whether a message in the region of `key` may start: the TLB, if any, has all pages with the rights, or they
 * can be inserted. */
int engine_pages_ready(const struct engine_qp *qp, const struct memory_key *key, uint32_t rkey, uint64_t va,
		       uint64_t length, uint64_t rights);
/* Count these pages as hits and mark them most recently used. */
void engine_pages_use(const struct engine_qp *qp, uint32_t rkey, uint64_t va, uint64_t length);

/* Count a nonempty message written or read by the peer. */
void engine_count_written(const struct engine_qp *qp, uint32_t rkey);
void engine_count_answered(const struct engine_qp *qp, uint32_t rkey);

/* Return whether the TLB has all pages of a range in the region of `key` with the rights `need`, inserting missing ones
 * if possible. */
int engine_tlb_ready(const struct engine_translation *by, const struct memory_key *key, uint64_t va, uint64_t length,
		     uint64_t need);

/* Use the pages of a range up to the first one missing in the TLB with the rights `need`; return their number. */
uint64_t engine_tlb_use_first(const struct engine_translation *by, uint64_t va, uint64_t length, uint64_t need);

/* Insert consecutive pages, last one first; return the number of evictions. */
uint64_t engine_tlb_insert(const struct engine_translation *by, uint64_t first, uint64_t pages, uint64_t rights);

#endif
