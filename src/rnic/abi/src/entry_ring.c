/* Rings of a completion or event queue's entries. */
#include "entry_ring.h"

#include "context.h"

int entry_ring_alloc(struct rnic_context *context, struct entry_ring *ring, uint32_t log_entries)
{
	int error = ring_alloc(context, &ring->memory, (size_t)sizeof(struct entry) << log_entries);

	if (error)
		return error;
	ring->entries = ring->memory.base;
	ring->mask = (1u << log_entries) - 1;
	ring->head = 0;
	ring->phase = RNIC_BIT_CQE_PHASE;
	return 0;
}

bool entry_ring_pop(struct entry_ring *ring, struct entry *entry)
{
	if (!entry_is_valid(ring, ring->head, ring->phase))
		return false;
	*entry = ring->entries[ring->head];
	ring->head = (ring->head + 1) & ring->mask;
	if (!ring->head)
		ring->phase ^= RNIC_BIT_CQE_PHASE;
	return true;
}
