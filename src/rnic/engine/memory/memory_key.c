/* The memory table (004 7.3, "MR Table"): the check that guards every access, and the access. */
#include "memory/memory_key.h"

#include <string.h>

/* Index of a key into the table (design.md, "R_Key"). */
static uint64_t key_index(uint32_t key)
{
	return key >> 16 | (uint64_t)(key >> 8 & 0xFF) << 16;
}

const struct memory_key *engine_key_check(const struct engine_shared *shared, uint32_t key, uint64_t pd, uint64_t va,
					  uint64_t length, uint64_t rights, uint64_t qpn, int local)
{
	uint64_t index = key_index(key);
	if (index >= shared->key_count)
		return NULL;
	const struct memory_key *record = &shared->keys[index];
	if (!record->valid || record->key != key || (local && record->window))
		return NULL;
	if (record->pd != pd || (record->qpn && record->qpn != qpn))
		return NULL;
	if ((record->access & rights) != rights)
		return NULL;
	if (va < record->start || va > record->end || length > record->end - va)
		return NULL;
	return record;
}

struct origin engine_origin(const struct engine_shared *shared, const struct memory_key *key, uint64_t va)
{
	const struct engine_mapping *reach = &shared->reach[key - shared->keys];
	uint64_t at = va - key->start;

	if (reach->bytes)
		return (struct origin){ .bytes = reach->bytes + at };
	if (reach->segment && reach->segment->memory->within)
		return (struct origin){ .segment = reach->segment, .va = key->base + at };
	return (struct origin){ 0 };
}

int engine_origin_within(const struct origin *origin, uint64_t length, engine_visitor work, void *with)
{
	if (origin->bytes) {
		work(with, (uint8_t *)(uintptr_t)origin->bytes);
		return 0;
	}
	if (!origin->segment)
		return -1;
	return origin->segment->memory->within(origin->segment->self, origin->va, length, work, with);
}

const struct engine_segment *engine_key_segment(const struct engine_shared *shared, const struct memory_key *key,
						uint64_t *va)
{
	const struct engine_mapping *reach = &shared->reach[key - shared->keys];
	const struct engine_segment *segment = reach->bytes ? NULL : reach->segment;

	*va = *va - key->start + key->base;
	return segment && segment->memory->read_all && segment->memory->write_all ? segment : NULL;
}

void engine_key_read_ahead(const struct engine_shared *shared, const struct memory_key *key, uint64_t va, uint8_t *to,
			   uint64_t size, uint64_t stride, uint64_t count)
{
	struct engine_prefetch *prefetch = shared->prefetch;
	uint64_t theirs = va;

	prefetch->filled_count = 0;
	count = count < ENGINE_PREFETCH ? count : ENGINE_PREFETCH;
	const struct engine_segment *from = engine_key_segment(shared, key, &theirs);
	if (shared->bare || count < 2 || !from)
		return;
	for (uint64_t i = 0; i < count; i++)
		prefetch->pieces[i] = (struct engine_piece){ theirs + i * size, to + i * stride, size };
	if (from->memory->read_all(from->self, prefetch->pieces, count))
		return;
	prefetch->filled = to;
	prefetch->filled_va = va;
	prefetch->filled_bytes = size;
	prefetch->filled_stride = stride;
	prefetch->filled_count = count;
}

/* Return whether a payload was read ahead, and mark it as used. Any other read ends the run. */
static int was_read_ahead(struct engine_prefetch *prefetch, const uint8_t *to, uint64_t va, uint64_t size)
{
	if (!prefetch->filled_count)
		return 0;
	if (to != prefetch->filled || va != prefetch->filled_va || size != prefetch->filled_bytes) {
		prefetch->filled_count = 0;
		return 0;
	}
	prefetch->filled += prefetch->filled_stride;
	prefetch->filled_va += size;
	prefetch->filled_count--;
	return 1;
}

int engine_key_read(const struct engine_shared *shared, const struct memory_key *key, uint64_t va, uint8_t *to,
		    uint64_t length)
{
	const struct engine_mapping *reach = &shared->reach[key - shared->keys];
	uint64_t at = va - key->start;
	if (shared->bare || (shared->prefetch && was_read_ahead(shared->prefetch, to, va, length)))
		return 0;
	if (reach->bytes) {
		memcpy(to, reach->bytes + at, length);
		return 0;
	}
	const struct engine_segment *segment = reach->segment;
	return segment ? segment->memory->read(segment->self, at + key->base, to, length) : -1;
}

int engine_key_write(const struct engine_shared *shared, const struct memory_key *key, uint64_t va, const uint8_t *from,
		     uint64_t length)
{
	const struct engine_mapping *reach = &shared->reach[key - shared->keys];
	uint64_t at = va - key->start;
	if (shared->bare || engine_prefetch_stored(shared, from))
		return 0;
	if (reach->bytes) {
		memcpy(reach->bytes + at, from, length);
		return 0;
	}
	const struct engine_segment *segment = reach->segment;
	return segment ? segment->memory->write(segment->self, at + key->base, from, length) : -1;
}
