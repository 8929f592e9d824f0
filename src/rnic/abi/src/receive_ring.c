/* Receive rings: those of queue pairs, and shared ones. */
#include "receive_ring.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "context.h"
#include "doorbell.h"
#include "rnic_reasons.h"
#include "wqe.h"

static uint32_t power_of_two_above(uint32_t value)
{
	uint32_t power = 2;

	while (power <= value)
		power <<= 1;
	return power;
}

static void free_arrays(struct receive_ring *rq)
{
	free(rq->ids);
	free(rq->taken);
	free(rq->free_wqes);
	rq->ids = NULL;
	rq->taken = NULL;
	rq->free_wqes = rq->order = NULL;
}

int receive_ring_alloc(struct rnic_context *context, struct receive_ring *rq, uint32_t max_wr, uint32_t max_sge,
		       bool shared)
{
	size_t bytes, order_bytes = 0;
	int error;

	rq->max_sge = max_sge;
	rq->limit = max_wr;
	rq->stride = RNIC_SGE_BYTES;
	while (rq->stride < RNIC_SGE_BYTES * max_sge)
		rq->stride <<= 1;
	rq->entries = max_wr < 1 ? 2 : max_wr + 1;
	bytes = (size_t)rq->entries * rq->stride;
	if (shared) {
		rq->entries = power_of_two_above(max_wr);
		bytes = (size_t)rq->entries * rq->stride;
		order_bytes = (size_t)rq->entries * RNIC_SRQ_ORDER_BYTES;
		rq->free_wqes = calloc(rq->entries, sizeof *rq->free_wqes);
	}
	rq->ids = calloc(rq->entries, sizeof *rq->ids);
	rq->taken = calloc(rq->entries, sizeof *rq->taken);
	error = rq->ids && rq->taken && (rq->free_wqes || !shared) ?
			ring_alloc(context, &rq->memory, bytes + order_bytes) :
			ENOMEM;
	if (error) {
		free_arrays(rq);
		return error;
	}
	if (shared) {
		rq->order = (uint32_t *)(void *)((uint8_t *)rq->memory.base + bytes);
		for (uint32_t index = 0; index < rq->entries; index++)
			rq->free_wqes[index] = rq->entries - 1 - index;
	}
	pthread_mutex_init(&rq->lock, NULL);
	return 0;
}

void receive_ring_reset(struct receive_ring *rq)
{
	pthread_mutex_lock(&rq->lock);
	rq->tail = 0;
	rq->posted = 0;
	memset(rq->taken, 0, rq->entries * sizeof *rq->taken);
	pthread_mutex_unlock(&rq->lock);
}

void receive_ring_free(struct rnic_context *context, struct receive_ring *rq)
{
	if (!rq->memory.base)
		return;
	ring_free(context, &rq->memory);
	free_arrays(rq);
	pthread_mutex_destroy(&rq->lock);
}

uint64_t receive_ring_complete(struct receive_ring *rq, uint32_t index)
{
	uint64_t id = 0;

	if (index >= rq->entries)
		return 0;
	pthread_mutex_lock(&rq->lock);
	if (rq->taken[index]) {
		rq->taken[index] = false;
		rq->posted--;
		if (rq->order)
			rq->free_wqes[rq->entries - rq->posted - 1] = index;
		id = rq->ids[index];
	}
	pthread_mutex_unlock(&rq->lock);
	return id;
}

static const char *receive_verb(const struct receive_ring *rq)
{
	return rq->order ? "ibv_post_srq_recv" : "ibv_post_recv";
}

static int put_recv_wr(struct receive_ring *rq, const struct ibv_recv_wr *wr)
{
	uint32_t count = 0, index = rq->tail;
	struct sge *sge;

	if (rq->posted >= rq->limit)
		return why_receive_queue_full(ENOMEM, receive_verb(rq), rq->limit);
	if (rq->order) /* queue pairs complete out of order: one that stalls keeps only its own WQE */
		index = rq->free_wqes[rq->entries - rq->posted - 1];
	if (rq->taken[index])
		return why_receive_queue_full(ENOMEM, receive_verb(rq), rq->limit);
	sge = (struct sge *)(void *)((uint8_t *)rq->memory.base + (size_t)index * rq->stride);
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return why_num_sge(EINVAL, receive_verb(rq), wr->num_sge, rq->order ? "max_sge" : "max_recv_sge",
				   rq->max_sge);
	for (int i = 0; i < wr->num_sge; i++) {
		if (!wr->sg_list[i].length)
			continue; /* an entry of length 0 would end the list */
		sge[count].addr = wr->sg_list[i].addr;
		sge[count].length = wr->sg_list[i].length;
		sge[count++].lkey = wr->sg_list[i].lkey;
	}
	if (count * RNIC_SGE_BYTES < rq->stride)
		memset(&sge[count], 0, sizeof *sge);
	if (rq->order)
		rq->order[rq->tail] = htole32(index);
	rq->ids[index] = wr->wr_id;
	rq->taken[index] = true;
	rq->posted++;
	rq->tail = rq->tail + 1 == rq->entries ? 0 : rq->tail + 1;
	return 0;
}

int receive_ring_post(struct rnic_context *context, struct receive_ring *rq, struct ibv_recv_wr *wr,
		      struct ibv_recv_wr **bad)
{
	int error = 0;

	pthread_mutex_lock(&rq->lock);
	for (; wr; wr = wr->next) {
		error = put_recv_wr(rq, wr);
		if (error) {
			*bad = wr;
			break;
		}
	}
	queue_reg_store(context, rq->block, RNIC_REG_RQ_TAIL, rq->tail);
	pthread_mutex_unlock(&rq->lock);
	return error;
}
