/* Completion queues: word 3, which has the phase bit, is stored last (design.md, "CQ entry"). */
#include "queue_pair/completion.h"

#include <stdatomic.h>

#define CQE_WORDS 8u
#define PHASE_WORD 3u

static uint32_t block_load(const struct engine_cq *cq, unsigned reg)
{
	return atomic_load_explicit(&cq->block[reg / 4], memory_order_acquire);
}

int engine_cq_reserve(struct engine_cq *cq, uint64_t count, struct cq_room *room)
{
	room->cq = cq;
	room->left = 0;
	if (!count)
		return 0;
	if (!cq)
		return -1;
	const struct completion_queue *record = cq->record;
	uint64_t entries = cq->entries;
	/* the reference handles CQs with timestamps: there is no clock here */
	if (record->flags & CQ_STAMPED || record->failed || record->logsize > 31 ||
	    entries != (uint64_t)1 << record->logsize || record->tail >= entries)
		return -1;
	uint32_t head = block_load(cq, REG_CQ_HEAD);
	if (head >= entries)
		return -1;
	room->left = (head - record->tail - 1) & (entries - 1);
	if (room->left < count || (count > 1 && block_load(cq, REG_CQ_DOORBELL)))
		return -1;
	return 0;
}

int engine_cq_push(struct cq_room *room, const struct completion *entry)
{
	struct engine_cq *cq = room->cq;
	struct completion_queue *record = cq->record;
	uint64_t tail = record->tail;
	_Atomic uint32_t *words = (_Atomic uint32_t *)(void *)(cq->ring + (tail << CQE_SHIFT));
	uint32_t values[CQE_WORDS] = {
		entry->index,  entry->status,
		entry->length, (entry->word3 & (CQE_PHASE - 1)) | (uint32_t)record->phase,
		entry->wqe_id, entry->requested,
		entry->qpn,    entry->imm,
	};
	for (unsigned i = 0; i < CQE_WORDS; i++)
		if (i != PHASE_WORD)
			atomic_store_explicit(&words[i], values[i], memory_order_relaxed);
	atomic_store_explicit(&words[PHASE_WORD], values[PHASE_WORD], memory_order_release);
	/* CQ_HEAD was read at the reservation: use its room once the previously known room is used up */
	record->room = (record->room ? record->room : room->left) - 1;
	room->left--;
	if (++tail == cq->entries) {
		tail = 0;
		record->phase ^= CQE_PHASE;
	}
	record->tail = tail;
	atomic_store_explicit(&cq->block[REG_CQ_TAIL / 4], (uint32_t)tail, memory_order_release);
	if (entry->word3 & CQE_SOLICITED)
		record->solicited_index = tail;
	/* software arms, then polls: at least one side sees the other's store */
	atomic_thread_fence(memory_order_seq_cst);
	uint32_t arm = block_load(cq, REG_CQ_DOORBELL);
	int armed = (arm & ARM_NEXT) || ((arm & ARM_SOLICITED) && ((entry->word3 & CQE_SOLICITED) || entry->status));
	if (armed)
		record->notified = 1;
	return armed;
}
