/* Receive entries: the next of a queue pair's own ring or of a shared one, and the memory that it scatters to
 * (transport/wqe.py, device/srq.py). */
#include "queue_pair/receive_queue.h"

#include "memory/memory_key.h"
#include "queue_pair/arithmetic.h"
#include "queue_pair/byteorder.h"

#include <stdatomic.h>

/* Return the number of entries available to a consumer at `head`, given the producer's `tail`. */
static uint64_t waiting_entries(uint64_t head, uint64_t tail, uint64_t entries)
{
	if (tail >= entries || head >= entries)
		return 0;
	return tail < head ? tail + entries - head : tail - head;
}

uint64_t engine_receives_left(const struct engine_qp *qp)
{
	if (!qp->block)
		return 0;
	uint64_t tail = atomic_load_explicit(&qp->block[REG_RQ_TAIL / 4], memory_order_acquire);
	return waiting_entries(qp->record->rq_head, tail, qp->record->rq_entries);
}

/* Read a receive entry; ENGINE_DONE, or a punt. */
static enum engine_end read_entry(const uint8_t *entry, uint64_t stride, struct receive *receive)
{
	for (uint64_t at = 0; at + SGE_BYTES <= stride; at += SGE_BYTES) {
		struct scatter sge = { le_load(entry + at, 8), le_load(entry + at + 8, 8) };
		if (!sge.size_key)
			break;
		if (receive->sges == QP_SCATTERS)
			return PUNT_REQUEST;
		receive->scatters[receive->sges++] = sge;
		receive->bytes += (uint32_t)sge.size_key;
	}
	return ENGINE_DONE;
}

/* Read the next entry of a shared receive queue (transport/wqe.py, SharedReceiveRing.take; device/srq.py). The
 * reference handles returned entries and the limit event. */
static enum engine_end next_shared_entry(const struct engine_shared *shared, const struct engine_qp *qp,
					 struct receive *receive)
{
	const struct shared_receive_queue *srq = qp->srq;
	uint64_t entries = srq->entries, stride = srq->stride;
	if (!qp->rq || !qp->srq_block || srq->head >= entries || !stride || stride > qp->rq_bytes ||
	    entries > div64(qp->rq_bytes, stride + SRQ_ORDER_BYTES) || srq->returned)
		return PUNT_REQUEST;
	uint32_t tail = atomic_load_explicit(&qp->srq_block[REG_RQ_TAIL / 4], memory_order_acquire);
	uint64_t left = waiting_entries(srq->head, tail, entries);
	if (srq->limit && left <= srq->limit)
		return PUNT_REQUEST;
	if (!left || left <= engine_kept_back(shared, entries))
		return ENGINE_ATTENTION;
	receive->fresh = 1;
	receive->place = srq->head;
	receive->index = le_load(qp->rq + entries * stride + srq->head * SRQ_ORDER_BYTES, SRQ_ORDER_BYTES);
	if (receive->index >= entries)
		return PUNT_REQUEST;
	return read_entry(qp->rq + receive->index * stride, stride, receive);
}

/* Read the next entry of the receive ring (transport/wqe.py, ReceiveRing.take); ENGINE_DONE, ENGINE_ATTENTION if none
 * is posted, or a punt. */
static enum engine_end next_own_entry(const struct engine_shared *shared, const struct engine_qp *qp,
				      struct receive *receive)
{
	const struct queue_pair *record = qp->record;
	uint64_t head = record->rq_head, entries = record->rq_entries, stride = record->rq_stride;
	if (!qp->rq || !qp->block || head >= entries || !stride || entries > div64(qp->rq_bytes, stride))
		return PUNT_REQUEST;
	uint64_t left = engine_receives_left(qp);
	if (!left || left <= engine_kept_back(shared, entries))
		return ENGINE_ATTENTION;
	receive->fresh = 1;
	receive->place = receive->index = head;
	return read_entry(qp->rq + head * stride, stride, receive);
}

enum engine_end engine_receive_next(const struct engine_shared *shared, const struct engine_qp *qp,
				    struct receive *receive)
{
	if (be_get(qp->qpc, QPC_SRQN) & SRQ_VALID ? !qp->srq : qp->srq != NULL)
		return PUNT_REQUEST;
	receive->sges = receive->bytes = 0;
	return qp->srq ? next_shared_entry(shared, qp, receive) : next_own_entry(shared, qp, receive);
}

enum engine_end engine_receive_find(const struct engine_shared *shared, const struct engine_qp *qp,
				    struct receive *receive)
{
	const struct queue_pair *record = qp->record;
	if (record->receive_index == NONE)
		return engine_receive_next(shared, qp, receive);
	receive->fresh = 0;
	if (record->receive_sges > QP_SCATTERS)
		return PUNT_REQUEST;
	receive->index = record->receive_index;
	receive->sges = record->receive_sges;
	receive->bytes = record->receive_bytes;
	memcpy(receive->scatters, qp->scatters, receive->sges * sizeof *receive->scatters);
	return ENGINE_DONE;
}

void engine_receive_consume(struct engine_qp *qp, const struct receive *receive)
{
	struct queue_pair *record = qp->record;
	uint64_t entries = qp->srq ? qp->srq->entries : record->rq_entries, after = receive->place + 1;
	after = after == entries ? 0 : after;
	if (qp->srq) {
		qp->srq->head = after;
		qp->srq->taken++;
	} else {
		record->rq_head = after;
	}
	atomic_store_explicit(&(qp->srq ? qp->srq_block : qp->block)[REG_RQ_HEAD / 4], (uint32_t)after,
			      memory_order_release);
	be_put(qp->qpc, QPC_RQ_WQE_COUNTER, be_get(qp->qpc, QPC_RQ_WQE_COUNTER) + 1);
}

void engine_receive_open(struct engine_qp *qp, const struct receive *receive)
{
	struct queue_pair *record = qp->record;
	if (!receive->fresh)
		return;
	memcpy(qp->scatters, receive->scatters, receive->sges * sizeof *receive->scatters);
	record->receive_index = receive->index;
	record->receive_sges = receive->sges;
	record->receive_bytes = receive->bytes;
	engine_receive_consume(qp, receive);
}

/* Return the key of a scatter entry if it covers the entry and its bytes are accessible, else NULL. */
static const struct memory_key *scatter_key(const struct engine_shared *shared, const struct engine_qp *qp,
					    const struct scatter *sge)
{
	/* entries of a shared queue are in its protection domain */
	uint64_t pd = qp->srq ? qp->srq->pd : be_get(qp->qpc, QPC_PD);
	const struct memory_key *key = engine_key_check(shared, (uint32_t)(sge->size_key >> 32), pd, sge->va,
							(uint32_t)sge->size_key, ACCESS_LOCAL_WRITE, 0, 1);
	if (!key)
		return NULL;
	const struct engine_mapping *reach = &shared->reach[key - shared->keys];
	return reach->bytes || reach->segment ? key : NULL;
}

int engine_scatter_check(const struct engine_shared *shared, const struct engine_qp *qp, const struct receive *receive)
{
	for (uint64_t i = 0; i < receive->sges; i++)
		if ((uint32_t)receive->scatters[i].size_key && !scatter_key(shared, qp, &receive->scatters[i]))
			return 0;
	return 1;
}

const struct memory_key *engine_scatter_key(const struct engine_shared *shared, const struct engine_qp *qp,
					    const struct receive *receive, uint64_t offset, uint64_t size, uint64_t *va)
{
	for (uint64_t i = 0; i < receive->sges; i++) {
		const struct scatter *sge = &receive->scatters[i];
		uint64_t length = (uint32_t)sge->size_key;
		if (offset < length) {
			*va = sge->va + offset;
			return size <= length - offset ? scatter_key(shared, qp, sge) : NULL;
		}
		offset -= length;
	}
	return NULL;
}

int engine_scatter(const struct engine_shared *shared, const struct engine_qp *qp, const struct receive *receive,
		   uint64_t offset, const uint8_t *from, uint64_t size)
{
	for (uint64_t i = 0; size && i < receive->sges; i++) {
		const struct scatter *sge = &receive->scatters[i];
		uint64_t length = (uint32_t)sge->size_key;
		if (offset >= length) {
			offset -= length;
			continue;
		}
		uint64_t part = lesser(size, length - offset);
		const struct memory_key *key = scatter_key(shared, qp, sge);
		if (!key || engine_key_write(shared, key, sge->va + offset, from, part))
			return -1;
		from += part;
		size -= part;
		offset = 0;
	}
	return 0;
}
