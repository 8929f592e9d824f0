/* Receive rings: those of queue pairs, and shared ones. */
#include <endian.h>

#include "rnic.h"

static uint32_t power_of_two_above(uint32_t value)
{
	uint32_t power = 2;

	while (power <= value)
		power <<= 1;
	return power;
}

static uint32_t dev_lim(const struct rnic_context *context, unsigned at, unsigned unit, unsigned lsb, unsigned width)
{
	return (uint32_t)rnic_get_be(context->limits, at, unit, lsb, width);
}

static void forget_slots(struct receive_ring *rq)
{
	free(rq->ids);
	free(rq->taken);
	free(rq->free_slots);
	rq->ids = NULL;
	rq->taken = NULL;
	rq->free_slots = rq->order = NULL;
}

int receive_ring_map(struct rnic_context *context, struct receive_ring *rq, uint32_t max_wr, uint32_t max_sge,
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
		rq->free_slots = calloc(rq->entries, sizeof *rq->free_slots);
	}
	rq->ids = calloc(rq->entries, sizeof *rq->ids);
	rq->taken = calloc(rq->entries, sizeof *rq->taken);
	error = rq->ids && rq->taken && (rq->free_slots || !shared) ? ring_map(context, &rq->memory, bytes + order_bytes) :
								      ENOMEM;
	if (error) {
		forget_slots(rq);
		return error;
	}
	if (shared) {
		rq->order = (uint32_t *)(void *)((uint8_t *)rq->memory.base + bytes);
		for (uint32_t slot = 0; slot < rq->entries; slot++)
			rq->free_slots[slot] = rq->entries - 1 - slot;
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

void receive_ring_unmap(struct rnic_context *context, struct receive_ring *rq)
{
	if (!rq->memory.base)
		return;
	ring_unmap(context, &rq->memory);
	forget_slots(rq);
	pthread_mutex_destroy(&rq->lock);
}

uint64_t receive_ring_take(struct receive_ring *rq, uint32_t index)
{
	uint64_t id = 0;

	if (index >= rq->entries)
		return 0;
	pthread_mutex_lock(&rq->lock);
	if (rq->taken[index]) {
		rq->taken[index] = false;
		rq->posted--;
		if (rq->order)
			rq->free_slots[rq->entries - rq->posted - 1] = index;
		id = rq->ids[index];
	}
	pthread_mutex_unlock(&rq->lock);
	return id;
}

static int put(struct receive_ring *rq, const struct ibv_recv_wr *wr)
{
	uint32_t count = 0, slot = rq->tail;
	struct sge *sge;

	if (rq->posted >= rq->limit)
		return ENOMEM;
	if (rq->order) /* queue pairs complete out of turn: one that stalls keeps its slot, and no other */
		slot = rq->free_slots[rq->entries - rq->posted - 1];
	if (rq->taken[slot])
		return ENOMEM;
	sge = (struct sge *)(void *)((uint8_t *)rq->memory.base + (size_t)slot * rq->stride);
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return EINVAL;
	for (int i = 0; i < wr->num_sge; i++) {
		if (!wr->sg_list[i].length)
			continue; /* the layout has no entries of no bytes: they would end the list */
		sge[count].addr = wr->sg_list[i].addr;
		sge[count].length = wr->sg_list[i].length;
		sge[count++].lkey = wr->sg_list[i].lkey;
	}
	if (count * RNIC_SGE_BYTES < rq->stride)
		memset(&sge[count], 0, sizeof *sge);
	if (rq->order)
		rq->order[rq->tail] = htole32(slot);
	rq->ids[slot] = wr->wr_id;
	rq->taken[slot] = true;
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
		error = put(rq, wr);
		if (error) {
			*bad = wr;
			break;
		}
	}
	reg_store(context, rq->block, RNIC_REG_RQ_TAIL, rq->tail);
	pthread_mutex_unlock(&rq->lock);
	return error;
}

/* ---- shared receive queues */

static struct ibv_srq *create(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *attr)
{
	struct rnic_context *context = context_of(pd->context);
	uint8_t srqc[RNIC_SRQC_SIZE] = { 0 };
	struct rnic_srq *srq;
	int error;

	if (!attr->max_wr || attr->max_wr >> dev_lim(context, RNIC_DEV_LIM_LOG_MAX_SRQ_SZ) ||
	    attr->max_sge > dev_lim(context, RNIC_DEV_LIM_MAX_SGE) || attr->srq_limit > attr->max_wr)
		return fail_null(EINVAL);
	srq = calloc(1, sizeof *srq);
	if (!srq)
		return NULL;
	error = receive_ring_map(context, &srq->rq, attr->max_wr, attr->max_sge ? attr->max_sge : 1, true);
	if (error)
		goto free_srq;
	error = nic_allocate(context, RNIC_CMD_RES_SRQ, &srq->number);
	if (error)
		goto unmap;
	error = nic_allocate(context, RNIC_CMD_RES_UAR_BLOCK, &srq->rq.block);
	if (error)
		goto free_number;
	rnic_put_be(srqc, RNIC_SRQC_STATE, 1);
	rnic_put_be(srqc, RNIC_SRQC_LOGSIZE, (uint32_t)__builtin_ctz(srq->rq.entries));
	rnic_put_be(srqc, RNIC_SRQC_SRQN, srq->number);
	rnic_put_be(srqc, RNIC_SRQC_START, (uintptr_t)srq->rq.memory.base);
	rnic_put_be(srqc, RNIC_SRQC_LOGSTRIDE, (uint32_t)__builtin_ctz(srq->rq.stride));
	rnic_put_be(srqc, RNIC_SRQC_USRPAGE, srq->rq.block);
	rnic_put_be(srqc, RNIC_SRQC_PD, pd->handle);
	rnic_put_be(srqc, RNIC_SRQC_LIMIT, attr->srq_limit);
	error = nic_command(context, RNIC_CMD_SW2HW_SRQ, 0, srq->number, srqc, sizeof srqc, NULL, 0, NULL);
	if (error)
		goto free_block;
	srq->verbs.context = pd->context;
	srq->verbs.srq_context = srq_context;
	srq->verbs.pd = pd;
	srq->verbs.handle = srq->number;
	attr->max_sge = srq->rq.max_sge;
	pthread_mutex_init(&srq->verbs.mutex, NULL);
	pthread_cond_init(&srq->verbs.cond, NULL);
	pthread_mutex_lock(&context->lock);
	context->srqs[srq->number & context->srq_mask] = srq;
	pthread_mutex_unlock(&context->lock);
	((struct rnic_pd *)pd)->users++;
	return &srq->verbs;

free_block:
	nic_free(context, RNIC_CMD_RES_UAR_BLOCK, srq->rq.block);
free_number:
	nic_free(context, RNIC_CMD_RES_SRQ, srq->number);
unmap:
	receive_ring_unmap(context, &srq->rq);
free_srq:
	free(srq);
	return fail_null(error);
}

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	return create(pd, init->srq_context, &init->attr);
}

struct ibv_srq *rnic_create_srq_ex(struct ibv_context *verbs, struct ibv_srq_init_attr_ex *init)
{
	if (init->comp_mask & ~(uint32_t)(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) ||
	    (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && init->srq_type != IBV_SRQT_BASIC))
		return fail_null(EOPNOTSUPP); /* XRC and tag matching */
	if (!(init->comp_mask & IBV_SRQ_INIT_ATTR_PD) || init->pd->context != verbs)
		return fail_null(EINVAL);
	return create(init->pd, init->srq_context, &init->attr);
}

int rnic_get_srq_num(struct ibv_srq *verbs, uint32_t *number)
{
	*number = ((struct rnic_srq *)verbs)->number;
	return 0;
}

EXPORT int ibv_query_srq(struct ibv_srq *verbs, struct ibv_srq_attr *attr)
{
	struct rnic_srq *srq = (struct rnic_srq *)verbs;
	uint8_t srqc[RNIC_SRQC_SIZE];
	int error = nic_command(context_of(verbs->context), RNIC_CMD_QUERY_SRQ, 0, srq->number, NULL, 0, srqc, sizeof srqc,
				NULL);

	if (error)
		return fail(error);
	attr->max_wr = srq->rq.limit;
	attr->max_sge = srq->rq.max_sge;
	attr->srq_limit = (uint32_t)rnic_get_be(srqc, RNIC_SRQC_LIMIT);
	return 0;
}

EXPORT int ibv_modify_srq(struct ibv_srq *verbs, struct ibv_srq_attr *attr, int mask)
{
	struct rnic_srq *srq = (struct rnic_srq *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	uint32_t limit = htobe32(attr->srq_limit);
	int error;

	if (mask & ~IBV_SRQ_LIMIT)
		return fail(mask & IBV_SRQ_MAX_WR ? EOPNOTSUPP : EINVAL); /* resizing is no capability of the device */
	if (!mask)
		return 0;
	if (attr->srq_limit > srq->rq.limit)
		return fail(EINVAL);
	error = nic_command(context, RNIC_CMD_ARM_SRQ, 0, srq->number, &limit, sizeof(limit), NULL, 0, NULL);
	return error ? fail(error) : 0;
}

int rnic_post_srq_recv(struct ibv_srq *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct rnic_context *context = context_of(verbs->context);

	if (context->dead) {
		*bad = wr;
		return EIO;
	}
	return receive_ring_post(context, &((struct rnic_srq *)verbs)->rq, wr, bad);
}

EXPORT int ibv_destroy_srq(struct ibv_srq *verbs)
{
	static const uint32_t types[] = { RNIC_EVENT_SRQ_LIMIT, RNIC_EVENT_SRQ_CATAS_ERROR };
	struct rnic_srq *srq = (struct rnic_srq *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	int error;

	if (srq->users)
		return fail(EBUSY);
	error = nic_command(context, RNIC_CMD_HW2SW_SRQ, 0, srq->number, NULL, 0, NULL, 0, NULL);
	if (error && !context->dead)
		return fail(error);
	pthread_mutex_lock(&context->lock);
	context->srqs[srq->number & context->srq_mask] = NULL;
	pthread_mutex_unlock(&context->lock);
	if (!context->dead) {
		event_queue_purge(context, &context->async, srq->number, types, COUNT(types));
		nic_free(context, RNIC_CMD_RES_UAR_BLOCK, srq->rq.block);
		nic_free(context, RNIC_CMD_RES_SRQ, srq->number);
		pthread_mutex_lock(&verbs->mutex);
		while (verbs->events_completed != srq->async_reported)
			pthread_cond_wait(&verbs->cond, &verbs->mutex);
		pthread_mutex_unlock(&verbs->mutex);
	}
	((struct rnic_pd *)verbs->pd)->users--;
	receive_ring_unmap(context, &srq->rq);
	free(srq);
	return 0;
}
