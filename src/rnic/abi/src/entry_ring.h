/* Rings of a completion or event queue's entries, on the consumer's side. */
#ifndef RNIC_ENTRY_RING_H
#define RNIC_ENTRY_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ring_memory.h"
#include "rnic_hw.h"

struct entry { /* of a completion or event queue */
	uint32_t word[8];
};
_Static_assert(sizeof(struct entry) == RNIC_CQE_SIZE && sizeof(struct entry) == RNIC_EQE_SIZE, "entry sizes");
#define CQE_WORD(field) (RNIC_CQE_##field##_AT / 4)
#define EQE_WORD(field) (RNIC_EQE_##field##_AT / 4)

struct entry_ring {
	struct ring_memory memory;
	struct entry *entries;
	uint32_t mask, head, phase;
};

int entry_ring_alloc(struct rnic_context *context, struct entry_ring *ring, uint32_t log_entries);
bool entry_ring_pop(struct entry_ring *ring, struct entry *entry);

/* Return whether the entry at an index is valid: its phase bit is that of this round. */
static inline bool entry_is_valid(const struct entry_ring *ring, uint32_t index, uint32_t phase)
{
	const _Atomic uint32_t *word =
		(const _Atomic uint32_t *)(const void *)&ring->entries[index].word[CQE_WORD(PHASE)];

	return (atomic_load_explicit(word, memory_order_acquire) & RNIC_BIT_CQE_PHASE) == phase;
}

#endif
