/* Shared receive queues. */
#include "srq.h"

#include <endian.h>
#include <stdlib.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "cq.h"
#include "errors.h"
#include "pd.h"
#include "rnic_reasons.h"
#include "xrc.h"

static struct ibv_srq *create_srq(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *attr,
				  struct rnic_xrcd *xrcd, struct rnic_cq *cq)
{
	struct rnic_context *context = context_of(pd->context);
	uint8_t srqc[RNIC_SRQC_SIZE] = { 0 };
	struct rnic_srq *srq;
	int error;

	uint32_t max_wr = (1u << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_SRQ_SZ)) - 1;
	uint32_t max_sge = dev_lim(context, RNIC_DEV_LIM_MAX_SGE);

	if (!attr->max_wr || attr->max_wr > max_wr)
		return fail_null(why_attribute_range(EINVAL, "ibv_create_srq", "max_wr", attr->max_wr, 1, max_wr));
	if (attr->max_sge > max_sge)
		return fail_null(why_attribute_range(EINVAL, "ibv_create_srq", "max_sge", attr->max_sge, 0, max_sge));
	if (attr->srq_limit > attr->max_wr)
		return fail_null(
			why_attribute_range(EINVAL, "ibv_create_srq", "srq_limit", attr->srq_limit, 0, attr->max_wr));
	srq = calloc(1, sizeof *srq);
	if (!srq)
		return NULL;
	error = receive_ring_alloc(context, &srq->rq, attr->max_wr, attr->max_sge ? attr->max_sge : 1, true);
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
	rnic_put_be(srqc, RNIC_SRQC_XRCD, xrcd ? xrcd->number : 0);
	rnic_put_be(srqc, RNIC_SRQC_CQN, cq ? cq->number : 0);
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
	srq->xrcd = xrcd;
	srq->cq = cq;
	if (xrcd)
		xrcd->users++;
	if (cq)
		cq->users++;
	return &srq->verbs;

free_block:
	nic_free(context, RNIC_CMD_RES_UAR_BLOCK, srq->rq.block);
free_number:
	nic_free(context, RNIC_CMD_RES_SRQ, srq->number);
unmap:
	receive_ring_free(context, &srq->rq);
free_srq:
	free(srq);
	return fail_null(error);
}

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	return create_srq(pd, init->srq_context, &init->attr, NULL, NULL);
}

struct ibv_srq *rnic_create_srq_ex(struct ibv_context *verbs, struct ibv_srq_init_attr_ex *init)
{
	uint32_t of_xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	int type = init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE ? init->srq_type : IBV_SRQT_BASIC;

	if (init->comp_mask & ~(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | of_xrc) ||
	    (type != IBV_SRQT_BASIC && type != IBV_SRQT_XRC))
		return fail_null(why_not_supported(EOPNOTSUPP, "ibv_create_srq_ex", "tag matching",
						   "use IBV_SRQT_BASIC or IBV_SRQT_XRC"));
	if (type == IBV_SRQT_XRC && ((init->comp_mask & of_xrc) != of_xrc || !init->xrcd || !init->cq ||
				     init->xrcd->context != verbs || init->cq->context != verbs))
		return fail_null(why_bad_value(EINVAL, "ibv_create_srq_ex",
					       "an XRC SRQ without a domain and a CQ, or of another device's,"));
	if (!(init->comp_mask & IBV_SRQ_INIT_ATTR_PD) || init->pd->context != verbs)
		return fail_null(why_bad_value(EINVAL, "ibv_create_srq_ex",
					       "a missing protection domain, or another device's,"));
	return type == IBV_SRQT_BASIC ? create_srq(init->pd, init->srq_context, &init->attr, NULL, NULL) :
					create_srq(init->pd, init->srq_context, &init->attr,
						   (struct rnic_xrcd *)init->xrcd, (struct rnic_cq *)init->cq);
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
	int error = nic_command(context_of(verbs->context), RNIC_CMD_QUERY_SRQ, 0, srq->number, NULL, 0, srqc,
				sizeof srqc, NULL);

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

	if (mask & ~IBV_SRQ_LIMIT) /* the device does not resize SRQs */
		return fail(why_not_supported(mask & IBV_SRQ_MAX_WR ? EOPNOTSUPP : EINVAL, "ibv_modify_srq",
					      "a mask beyond IBV_SRQ_LIMIT", "create another SRQ"));
	if (!mask)
		return 0;
	if (attr->srq_limit > srq->rq.limit)
		return fail(
			why_attribute_range(EINVAL, "ibv_modify_srq", "srq_limit", attr->srq_limit, 0, srq->rq.limit));
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
		return fail(why_in_use(EBUSY, "ibv_destroy_srq", "SRQ", srq->number, "queue pairs"));
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
		await_acknowledged(&verbs->mutex, &verbs->cond, &verbs->events_completed, srq->async_reported);
	}
	((struct rnic_pd *)verbs->pd)->users--;
	if (srq->xrcd)
		srq->xrcd->users--;
	if (srq->cq)
		srq->cq->users--;
	receive_ring_free(context, &srq->rq);
	free(srq);
	return 0;
}
