/* Remote keys, R_Key 0 among them where a shell translates addresses (003, "Shared Virtual Memory"; mem/translation.py,
 * mem/tlb.py). */
#ifndef RNIC_ENGINE_TRANSLATION_H
#define RNIC_ENGINE_TRANSLATION_H

#include "engine.h"

/* Return the record of the key by which the peer of `qp` may access `length` bytes, at least 1, at `va`; NULL if there
 * is none, or if only Python knows. */
const struct memory_key *engine_remote_key(const struct engine_shared *shared, const struct engine_qp *qp,
					   uint32_t rkey, uint64_t va, uint64_t length, uint64_t rights);

/* Return what `key` is bound to, where a peer names it by `rkey`: its binding, and under R_Key 0 which key it is. */
uint64_t engine_remote_binding(uint32_t rkey, const struct memory_key *key);

/* Return whether a message in the region of `key` may begin: a TLB, if there is one before it, has all pages with the
 * right, or has them now. */
int engine_pages_ready(const struct engine_qp *qp, const struct memory_key *key, uint32_t rkey, uint64_t va,
		       uint64_t length, uint64_t rights);
/* Count these pages as hits, used last. */
void engine_pages_use(const struct engine_qp *qp, uint32_t rkey, uint64_t va, uint64_t length);

/* Count a message with bytes that the peer has written or read. */
void engine_count_written(const struct engine_qp *qp, uint32_t rkey);
void engine_count_answered(const struct engine_qp *qp, uint32_t rkey);

/* Return whether the TLB has all pages of a range in the region of `key` with the rights `need`, or has them now. */
int engine_tlb_ready(const struct engine_translation *by, const struct memory_key *key, uint64_t va, uint64_t length,
		     uint64_t need);

/* Use the pages of a range up to the first that the TLB lacks with the rights `need`; return how many there are. */
uint64_t engine_tlb_use_first(const struct engine_translation *by, uint64_t va, uint64_t length, uint64_t need);

/* Enter pages that follow one another, the last one first; return how many others had to go. */
uint64_t engine_tlb_insert(const struct engine_translation *by, uint64_t first, uint64_t pages, uint64_t rights);

#endif
