/* Memory keys: the check that guards every access, and the access (004 7.3, "MR Table"). */
#ifndef RNIC_ENGINE_MEMORY_KEY_H
#define RNIC_ENGINE_MEMORY_KEY_H

#include "engine.h"

/* Return the record of a key if it permits a queue pair of `pd` to access `length` bytes, at least 1, at `va`; else
 * NULL. `local`: it is an L_Key, which cannot be a window's. */
const struct memory_key *engine_key_check(const struct engine_shared *shared, uint32_t key, uint64_t pd, uint64_t va,
					  uint64_t length, uint64_t rights, uint64_t qpn, int local);
/* Move bytes after engine_key_check; 0, or -1 if they are not accessible. */
int engine_key_read(const struct engine_shared *shared, const struct memory_key *key, uint64_t va, uint8_t *to,
		    uint64_t length);
int engine_key_write(const struct engine_shared *shared, const struct memory_key *key, uint64_t va, const uint8_t *from,
		     uint64_t length);

/* Source of a payload for copying and ICRC in one pass: bytes of this process, a segment, or neither. */
struct origin {
	const uint8_t *bytes;
	const struct engine_segment *segment;
	uint64_t va;
};
/* Return the source of a key's bytes, if one pass may read them there. */
struct origin engine_origin(const struct engine_shared *shared, const struct memory_key *key, uint64_t va);
/* Run `work` on bytes of a source; 0, or -1 if that is not possible. */
int engine_origin_within(const struct origin *origin, uint64_t length, engine_visitor work, void *with);
static inline int engine_origin_known(const struct origin *origin)
{
	return origin->bytes || origin->segment;
}

/* Return the segment of a key's memory if its backend moves several pieces in one call, else NULL; `*va` becomes the
 * address in the owner's process. */
const struct engine_segment *engine_key_segment(const struct engine_shared *shared, const struct memory_key *key,
						uint64_t *va);
/* Read `count` payloads of `size` bytes from `va` on in one call; the first goes to `to`, and each next one `stride`
 * bytes further. Later calls of engine_key_read find them there. */
void engine_key_read_ahead(const struct engine_shared *shared, const struct memory_key *key, uint64_t va, uint8_t *to,
			   uint64_t size, uint64_t stride, uint64_t count);

/* Return whether the payload at `at`, of a packet in a receive buffer, was stored ahead (queue_pair/prefetch.h). */
static inline int engine_prefetch_stored(const struct engine_shared *shared, const uint8_t *at)
{
	return shared->prefetch && at >= shared->prefetch->taken && at < shared->prefetch->taken_end;
}

/* Forget payloads moved ahead, since buffers are reused. */
static inline void engine_prefetch_forget(const struct engine_shared *shared)
{
	if (shared->prefetch) {
		shared->prefetch->taken = shared->prefetch->taken_end = NULL;
		shared->prefetch->filled_count = shared->prefetch->fetched_count = 0;
	}
}

#endif
