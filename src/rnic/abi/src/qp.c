/* Queue pairs: creation and states. */
#include "qp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "cq.h"
#include "errors.h"
#include "mcast.h"
#include "on_command.h"
#include "pd.h"
#include "post.h"
#include "rnic_reasons.h"
#include "srq.h"
#include "wqe.h"
#include "xrc.h"

enum {
	MIN_SEND_ENTRIES = 16,
	RNR_TIMER_MASK = 0x1F, /* like Soft-RoCE, use the bits that an RNR NAK carries, without a check */
};

enum {
	QP_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT,
	/* ibv_wr_* that exist: all up to BIND_MW, FLUSH and ATOMIC WRITE */
	SEND_OPS = 2 * IBV_QP_EX_WITH_BIND_MW - 1 + IBV_QP_EX_WITH_FLUSH + IBV_QP_EX_WITH_ATOMIC_WRITE,
};

static const char create_verb[] = "ibv_create_qp", modify_verb[] = "ibv_modify_qp", open_verb[] = "ibv_open_qp";

static const uint8_t device_state[] = {
	[IBV_QPS_RESET] = RNIC_QP_RESET, [IBV_QPS_INIT] = RNIC_QP_INIT, [IBV_QPS_RTR] = RNIC_QP_RTR,
	[IBV_QPS_RTS] = RNIC_QP_RTS,	 [IBV_QPS_SQD] = RNIC_QP_SQD,	[IBV_QPS_SQE] = RNIC_QP_SQE,
	[IBV_QPS_ERR] = RNIC_QP_ERR,
};

static const char *const state_names[] = { [RNIC_QP_RESET] = "RESET", [RNIC_QP_INIT] = "INIT", [RNIC_QP_RTR] = "RTR",
					   [RNIC_QP_RTS] = "RTS",     [RNIC_QP_SQD] = "SQD",   [RNIC_QP_SQE] = "SQE",
					   [RNIC_QP_ERR] = "ERR" };

static int verbs_state(uint32_t state)
{
	for (size_t i = 0; i < COUNT(device_state); i++)
		if (device_state[i] == state)
			return (int)i;
	return IBV_QPS_UNKNOWN;
}

/* Service type of each queue pair type, plus one. */
static const uint8_t services[] = {
	[IBV_QPT_RC] = RNIC_QP_ST_RC + 1,
	[IBV_QPT_UC] = RNIC_QP_ST_UC + 1,
	[IBV_QPT_UD] = RNIC_QP_ST_UD + 1,
	[IBV_QPT_XRC_SEND] = RNIC_QP_ST_XRC_INI + 1,
	[IBV_QPT_XRC_RECV] = RNIC_QP_ST_XRC_TGT + 1,
};

static bool is_known_type(int type)
{
	return type >= 0 && (size_t)type < COUNT(services) && services[type];
}

static int unsupported_type_error(int type)
{
	char what[32];

	snprintf(what, sizeof what, "qp_type=%d", type);
	switch (type) {
	case IBV_QPT_RAW_PACKET:
	case IBV_QPT_DRIVER:
		return why_not_supported(EOPNOTSUPP, create_verb, what, "use RC, UC or UD");
	default:
		return why_not_supported(EINVAL, create_verb, what, "use RC, UC or UD");
	}
}

static int check_cap(const struct rnic_context *context, const struct ibv_qp_cap *cap)
{
	uint32_t max_wr = (1u << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_QP_SZ)) - 1;
	uint32_t sges = dev_lim(context, RNIC_DEV_LIM_MAX_SGE);
	const struct {
		const char *name;
		uint32_t value, most;
	} checks[] = {
		{ "max_send_wr", cap->max_send_wr, max_wr },
		{ "max_recv_wr", cap->max_recv_wr, max_wr },
		{ "max_send_sge", cap->max_send_sge, sges },
		{ "max_recv_sge", cap->max_recv_sge, sges },
		{ "max_inline_data", cap->max_inline_data, dev_lim(context, RNIC_DEV_LIM_MAX_INLINE) },
	};

	for (size_t i = 0; i < COUNT(checks); i++)
		if (checks[i].value > checks[i].most)
			return why_attribute_range(EINVAL, create_verb, checks[i].name, checks[i].value, 0,
						   checks[i].most);
	return 0;
}

static int alloc_send_queue(struct rnic_context *context, struct rnic_qp *qp)
{
	uint32_t slab = qp->cap.max_send_sge > 1 ? RNIC_SGE_BYTES * qp->cap.max_send_sge : 0;
	int error;

	if (slab < qp->cap.max_inline_data)
		slab = qp->cap.max_inline_data;
	qp->slab_bytes = (slab + RNIC_SGE_BYTES - 1) / RNIC_SGE_BYTES * RNIC_SGE_BYTES;
	/* Leave spare room: programs post the reply to a message whose ACK is still in flight. */
	for (qp->entries = MIN_SEND_ENTRIES; qp->entries <= qp->cap.max_send_wr;)
		qp->entries <<= 1;
	qp->cap.max_send_wr = qp->entries - 1;
	qp->ids = calloc(qp->entries, sizeof *qp->ids);
	error = qp->ids ?
			ring_alloc(context, &qp->memory, (size_t)qp->entries * (sizeof(struct sqe) + qp->slab_bytes)) :
			ENOMEM;
	qp->sq = qp->memory.base;
	qp->slab = (uint8_t *)qp->memory.base + (size_t)qp->entries * sizeof(struct sqe);
	return error;
}

/* Add or remove a queue pair as a user of the objects it was created with. */
static void count_users(struct rnic_qp *qp, int change)
{
	if (qp->xrcd) {
		qp->xrcd->users += (uint32_t)change;
		return;
	}
	((struct rnic_pd *)qp->verbs.qp_base.pd)->users += change;
	qp->send_cq->users += (uint32_t)change;
	qp->recv_cq->users += (uint32_t)change;
	if (qp->srq)
		qp->srq->users += (uint32_t)change;
}

/* Make a queue pair in a protection domain, or XRC_RECV in an XRC domain. */
static struct rnic_qp *create_qp(struct ibv_context *verbs, struct ibv_pd *pd, struct rnic_xrcd *xrcd,
				 struct ibv_qp_init_attr *init)
{
	bool target = init->qp_type == IBV_QPT_XRC_RECV, sends = init->qp_type == IBV_QPT_XRC_SEND;
	struct rnic_context *context = context_of(verbs);
	struct rnic_qp *qp;
	int error;

	if (!is_known_type(init->qp_type))
		return fail_null(unsupported_type_error(init->qp_type));
	if (target)
		init->cap = (struct ibv_qp_cap){ 0 };
	else if (!init->send_cq || (!init->recv_cq && !sends))
		return fail_null(why_no_cq(EINVAL, create_verb, init->send_cq ? "recv_cq" : "send_cq"));
	if (check_cap(context, &init->cap))
		return fail_null(EINVAL);
	qp = calloc(1, sizeof *qp);
	if (!qp)
		return NULL;
	qp->cap = init->cap;
	qp->service = services[init->qp_type] - 1u;
	if (!target) {
		qp->send_cq = (struct rnic_cq *)init->send_cq;
		qp->recv_cq = (struct rnic_cq *)(sends ? init->send_cq : init->recv_cq);
	}
	qp->srq = is_xrc(qp) ? NULL : (struct rnic_srq *)init->srq;
	qp->xrcd = xrcd;
	qp->sq_sig_all = init->sq_sig_all;
	error = alloc_send_queue(context, qp);
	if (!error && !qp->srq && !is_xrc(qp))
		error = receive_ring_alloc(context, &qp->rq, init->cap.max_recv_wr,
					   init->cap.max_recv_sge ? init->cap.max_recv_sge : 1, false);
	if (error)
		goto unmap;
	error = nic_allocate_queue(context, RNIC_CMD_RES_QP, &qp->number, &qp->block);
	if (error)
		goto unmap;
	qp->rq.block = qp->block;
	if (qp->srq || is_xrc(qp)) {
		qp->cap.max_recv_wr = 0;
		qp->cap.max_recv_sge = 0;
	}
	if (target)
		qp->cap.max_send_wr = 0;
	init->cap = qp->cap;
	pthread_mutex_init(&qp->lock, NULL);
	qp->verbs.qp_base = (struct ibv_qp){
		.context = verbs,
		.qp_context = init->qp_context,
		.pd = pd,
		.send_cq = target ? NULL : init->send_cq,
		.recv_cq = is_xrc(qp) ? NULL : init->recv_cq,
		.srq = qp->srq ? init->srq : NULL,
		.handle = qp->number,
		.qp_num = qp->number,
		.state = IBV_QPS_RESET,
		.qp_type = init->qp_type,
	};
	pthread_mutex_init(&qp->verbs.qp_base.mutex, NULL);
	pthread_cond_init(&qp->verbs.qp_base.cond, NULL);
	pthread_mutex_lock(&context->lock);
	context->qps[qp->number & context->qp_mask] = qp;
	pthread_mutex_unlock(&context->lock);
	on_command_new_qp(context, qp->number);
	count_users(qp, 1);
	return qp;

unmap:
	receive_ring_free(context, &qp->rq);
	ring_free(context, &qp->memory);
	free(qp->ids);
	free(qp);
	return fail_null(error);
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct rnic_qp *qp;

	if (init->qp_type == IBV_QPT_XRC_RECV)
		return fail_null(why_bad_value(EINVAL, create_verb, "XRC_RECV, which ibv_create_qp_ex makes,"));
	qp = create_qp(pd->context, pd, NULL, init);
	return qp ? &qp->verbs.qp_base : NULL;
}

struct ibv_qp *rnic_create_qp_ex(struct ibv_context *verbs, struct ibv_qp_init_attr_ex *init)
{
	uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
			 IBV_QP_INIT_ATTR_CREATE_FLAGS;
	bool target = init->qp_type == IBV_QPT_XRC_RECV;
	struct rnic_qp *qp;

	if (!is_known_type(init->qp_type))
		return fail_null(unsupported_type_error(init->qp_type));
	if (init->comp_mask & ~known || (init->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && init->create_flags) ||
	    (init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS && init->send_ops_flags & ~(uint64_t)SEND_OPS))
		return fail_null(why_not_supported(EOPNOTSUPP, "ibv_create_qp_ex", "what comp_mask asks for",
						   "PD and SEND_OPS_FLAGS are supported"));
	if (target && (!(init->comp_mask & IBV_QP_INIT_ATTR_XRCD) || init->xrcd->context != verbs))
		return fail_null(
			why_bad_value(EINVAL, "ibv_create_qp_ex", "a missing XRC domain, or another device's,"));
	if (!target && (!(init->comp_mask & IBV_QP_INIT_ATTR_PD) || init->pd->context != verbs))
		return fail_null(
			why_bad_value(EINVAL, "ibv_create_qp_ex", "a missing protection domain, or another device's,"));
	/* The extended attributes begin as the plain ones do. */
	qp = create_qp(verbs, target ? NULL : init->pd, target ? (struct rnic_xrcd *)init->xrcd : NULL,
		       (struct ibv_qp_init_attr *)(void *)init);
	if (qp && init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		qp_fill_wr_ops(qp);
		on_command_fill_qp(context_of(verbs), qp);
	}
	return qp ? &qp->verbs.qp_base : NULL;
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *verbs)
{
	struct rnic_qp *qp = (struct rnic_qp *)verbs;

	return qp->extended ? &qp->verbs : NULL;
}

/* ---- states */

static int query_qp(struct rnic_qp *qp, uint8_t *qpc)
{
	struct rnic_context *context = context_of(qp->verbs.qp_base.context);

	memset(qpc, 0, RNIC_QPC_SIZE);
	return nic_command(context, RNIC_CMD_QUERY_QP, 0, qp->number, NULL, 0, qpc, RNIC_QPC_SIZE, NULL);
}

static int put_ah_attr(const struct rnic_context *context, uint8_t *qpc, const struct ibv_ah_attr *path)
{
	uint32_t gids = dev_lim(context, RNIC_DEV_LIM_GID_COUNT);

	/* RoCE addresses peers only by GID (Annex A17, 17.4.4). */
	if (!path->is_global)
		return why_no_grh(EINVAL, modify_verb);
	if (path->grh.sgid_index >= gids)
		return why_gid_index(EINVAL, modify_verb, path->grh.sgid_index, gids - 1);
	memcpy(qpc + RNIC_QPC_RGID_AT, path->grh.dgid.raw, 16);
	rnic_put_be(qpc, RNIC_QPC_MGID_INDEX, path->grh.sgid_index);
	rnic_put_be(qpc, RNIC_QPC_HOP_LIMIT, path->grh.hop_limit);
	rnic_put_be(qpc, RNIC_QPC_TCLASS, path->grh.traffic_class);
	rnic_put_be(qpc, RNIC_QPC_FLOW_LABEL, path->grh.flow_label);
	rnic_put_be(qpc, RNIC_QPC_SL, path->sl);
	rnic_put_be(qpc, RNIC_QPC_STATIC_RATE, path->static_rate);
	rnic_put_be(qpc, RNIC_QPC_HAS_GRH, 1);
	return 0;
}

static int put_qp_attr(const struct rnic_context *context, uint8_t *qpc, const struct ibv_qp_attr *attr, int mask)
{
	if (attr->qp_access_flags > 0xFFFF && mask & IBV_QP_ACCESS_FLAGS)
		return why_access_flags(EINVAL, modify_verb, "qp_access_flags", attr->qp_access_flags,
					attr->qp_access_flags & ~(unsigned)QP_ACCESS);
	if (mask & IBV_QP_PKEY_INDEX && attr->pkey_index > 127)
		return why_pkey_index(EINVAL, modify_verb, attr->pkey_index,
				      dev_lim(context, RNIC_DEV_LIM_PKEY_COUNT) - 1);
	if (mask & IBV_QP_PORT && attr->port_num > 7)
		return why_port_number(EINVAL, modify_verb, attr->port_num);
	if (mask & IBV_QP_PATH_MTU && (attr->path_mtu < 1 || attr->path_mtu > 5))
		return why_attribute_range(EINVAL, modify_verb, "path_mtu", attr->path_mtu, 1, 5);
	if (mask & (IBV_QP_ALT_PATH | IBV_QP_CAP | IBV_QP_RATE_LIMIT))
		return why_not_supported(EOPNOTSUPP, modify_verb,
					 mask & IBV_QP_CAP	? "IBV_QP_CAP" :
					 mask & IBV_QP_ALT_PATH ? "IBV_QP_ALT_PATH" :
								  "IBV_QP_RATE_LIMIT",
					 "leave it out");
#define PUT(member, field) rnic_put_be(qpc, RNIC_QPC_##field, (uint64_t)attr->member);
	RNIC_QP_ATTRIBUTES(PUT)
	rnic_put_be(qpc, RNIC_QPC_ACCESS_FLAGS, attr->qp_access_flags & QP_ACCESS);
	rnic_put_be(qpc, RNIC_QPC_NEXT_SEND_PSN, attr->sq_psn & 0xFFFFFF);
	return mask & IBV_QP_AV ? put_ah_attr(context, qpc, &attr->ah_attr) : 0;
}

static void put_init_attr(const struct rnic_qp *qp, uint8_t *qpc)
{
	rnic_put_be(qpc, RNIC_QPC_MIG_STATE, 3);
	rnic_put_be(qpc, RNIC_QPC_MSGMAX, 31);
	rnic_put_be(qpc, RNIC_QPC_SQ_ENTRY_SZ_LOG, 6);
	rnic_put_be(qpc, RNIC_QPC_USR_PAGE, qp->block);
	if (qp->xrcd) {
		rnic_put_be(qpc, RNIC_QPC_XRCD, qp->xrcd->number);
	} else {
		rnic_put_be(qpc, RNIC_QPC_PD, qp->verbs.qp_base.pd->handle);
		rnic_put_be(qpc, RNIC_QPC_CQN_SND, qp->send_cq->number);
		rnic_put_be(qpc, RNIC_QPC_CQN_RCV, qp->recv_cq->number);
	}
	rnic_put_be(qpc, RNIC_QPC_SND_WQE_LENGTH, qp->entries * (uint32_t)sizeof(struct sqe));
	rnic_put_be(qpc, RNIC_QPC_SQ_BASE, (uintptr_t)qp->memory.base);
	rnic_put_be(qpc, RNIC_QPC_SQ_MAX_SGE, qp->cap.max_send_sge);
	rnic_put_be(qpc, RNIC_QPC_SQ_SLAB_BYTES, qp->slab_bytes);
	if (qp->srq) {
		rnic_put_be(qpc, RNIC_QPC_SRQN, RNIC_SRQ_VALID | qp->srq->number);
		return;
	}
	if (is_xrc(qp))
		return;
	rnic_put_be(qpc, RNIC_QPC_RCV_WQE_LENGTH, qp->rq.entries * qp->rq.stride);
	rnic_put_be(qpc, RNIC_QPC_RQ_BASE, (uintptr_t)qp->rq.memory.base);
	rnic_put_be(qpc, RNIC_QPC_RQ_ENTRY_SZ_LOG, (uint32_t)__builtin_ctz(qp->rq.stride));
	rnic_put_be(qpc, RNIC_QPC_RQ_MAX_SGE, qp->rq.max_sge);
}

static int reset_qp(struct rnic_context *context, struct rnic_qp *qp)
{
	int error = qp->created ? nic_command(context, RNIC_CMD_ERR2RST, 0, qp->number, NULL, 0, NULL, 0, NULL) : 0;

	if (error)
		return error;
	qp->created = false;
	if (!qp->xrcd)
		cq_clean(qp->send_cq, qp);
	if (qp->recv_cq != qp->send_cq)
		cq_clean(qp->recv_cq, qp);
	pthread_mutex_lock(&qp->lock);
	qp->tail = 0;
	qp->head = 0;
	pthread_mutex_unlock(&qp->lock);
	if (!qp->srq && !is_xrc(qp))
		receive_ring_reset(&qp->rq);
	qp->verbs.qp_base.state = IBV_QPS_RESET;
	return 0;
}

/* Build the command that modifies a queue pair in state `current` as the attributes say. Returns EINVAL if there is
 * none. */
static int plan_transition(const struct rnic_qp *qp, const struct ibv_qp_attr *attr, int mask, uint32_t current,
			   struct command *command, uint8_t *qpc, uint32_t *target)
{
	struct ibv_qp_attr taken;
	int error;

	*target = current;
	if (mask & IBV_QP_STATE) {
		if ((unsigned)attr->qp_state >= COUNT(device_state))
			return why_attribute_range(EINVAL, modify_verb, "qp_state", attr->qp_state, 0,
						   COUNT(device_state) - 1);
		*target = device_state[attr->qp_state];
	}
	*command = (struct command){ .op = rnic_qp_command[current][*target],
				     .in_modifier = qp->number,
				     .inbox = qpc,
				     .inbox_bytes = RNIC_QPC_SIZE };
	if (!command->op || *target == RNIC_QP_RESET)
		return why_no_transition(EINVAL, modify_verb, qp->number, state_names[current], state_names[*target]);
	memset(qpc, 0, RNIC_QPC_SIZE);
	memcpy(&taken, attr, offsetof(struct ibv_qp_attr, rate_limit)); /* older programs' structures end there */
	taken.min_rnr_timer &= RNR_TIMER_MASK;
	if (mask & IBV_QP_MIN_RNR_TIMER && taken.min_rnr_timer != attr->min_rnr_timer)
		why_rnr_timer_bits(0, modify_verb, attr->min_rnr_timer, taken.min_rnr_timer);
	error = put_qp_attr(context_of(qp->verbs.qp_base.context), qpc, &taken, mask);
	if (error)
		return error;
	rnic_put_be(qpc, RNIC_QPC_SERVTYPE, qp->service);
	rnic_put_be(qpc, RNIC_QPC_LOCAL_QPN, qp->number);
	if (!attr->en_sqd_async_notify)
		mask &= ~IBV_QP_EN_SQD_ASYNC_NOTIFY; /* to the device, the bit alone means true */
	rnic_put_be(qpc, RNIC_QPC_OPT_PARAM_MASK, (uint32_t)mask);
	rnic_put_be(qpc, RNIC_QPC_OPTIONS, qp->sq_sig_all ? RNIC_OPT_SQ_SIG_ALL : 0);
	if (current == RNIC_QP_RESET)
		put_init_attr(qp, qpc);
	return 0;
}

enum { MAX_TRANSITIONS = 2 };

/* Run state changes in one message, from state `current`, which the device checks. */
static int change_state(struct rnic_qp *qp, const struct ibv_qp_attr *const *attrs, const int *masks, size_t count,
			uint32_t current)
{
	struct command commands[MAX_TRANSITIONS];
	uint8_t qpcs[MAX_TRANSITIONS][RNIC_QPC_SIZE];
	uint32_t targets[MAX_TRANSITIONS];
	size_t done = 0;
	int error = 0;

	for (size_t i = 0; i < count && !error; i++)
		error = plan_transition(qp, attrs[i], masks[i], i ? targets[i - 1] : current, &commands[i], qpcs[i],
					&targets[i]);
	if (!error)
		error = nic_commands(context_of(qp->verbs.qp_base.context), commands, count, &done);
	if (done) {
		qp->created = true;
		qp->state = targets[done - 1];
		qp->verbs.qp_base.state = verbs_state(targets[done - 1]);
	}
	return error;
}

static int refresh_state(struct rnic_qp *qp)
{
	uint8_t qpc[RNIC_QPC_SIZE];
	int error = query_qp(qp, qpc);

	if (!error)
		qp->state = (uint32_t)rnic_get_be(qpc, RNIC_QPC_STATE);
	return error;
}

static int modify_qp(struct rnic_qp *qp, const struct ibv_qp_attr *const *attrs, const int *masks, size_t count)
{
	uint32_t current = qp->created ? qp->state : RNIC_QP_RESET;
	bool named = masks[0] & IBV_QP_CUR_STATE;
	int error;

	if ((named || explaining) && qp->created) { /* otherwise a retried attempt might print a reason */
		error = refresh_state(qp);
		if (error)
			return error;
		current = qp->state;
	}
	if (named && ((unsigned)attrs[0]->cur_qp_state >= COUNT(device_state) ||
		      device_state[attrs[0]->cur_qp_state] != current)) {
		unsigned state = (unsigned)attrs[0]->cur_qp_state;

		return why_current_state(EINVAL, modify_verb,
					 state < COUNT(device_state) ? state_names[device_state[state]] : "unknown",
					 state_names[current]);
	}
	if (masks[0] & IBV_QP_STATE && attrs[0]->qp_state == IBV_QPS_RESET)
		return masks[0] & ~(IBV_QP_STATE | IBV_QP_CUR_STATE) ?
			       why_reset_alone(EINVAL, modify_verb, masks[0]) :
			       reset_qp(context_of(qp->verbs.qp_base.context), qp);
	error = change_state(qp, attrs, masks, count, current);
	if (!error && context_of(qp->verbs.qp_base.context)->slot && qp->service == RNIC_QP_ST_RC &&
	    current == RNIC_QP_INIT)
		driver_join(context_of(qp->verbs.qp_base.context)->slot, qp->number);
	if (error != EINVAL || named || !qp->created || qp->state != current || refresh_state(qp) ||
	    qp->state == current)
		return error;
	return change_state(qp, attrs, masks, count, qp->state); /* it had gone to ERR or SQE meanwhile */
}

EXPORT int ibv_modify_qp(struct ibv_qp *verbs, struct ibv_qp_attr *attr, int mask)
{
	const struct ibv_qp_attr *attrs[] = { attr };
	int error = modify_qp((struct rnic_qp *)verbs, attrs, &mask, 1);

	return error ? fail(error) : 0;
}

/* Run two state changes in one message, for librdmacm. */
EXPORT int rnic_modify_qp_twice(struct ibv_qp *verbs, const struct ibv_qp_attr *const *attrs, const int *masks)
{
	int error = modify_qp((struct rnic_qp *)verbs, attrs, masks, MAX_TRANSITIONS);

	return error ? fail(error) : 0;
}

static void get_ah_attr(const uint8_t *qpc, struct ibv_ah_attr *path)
{
	memcpy(path->grh.dgid.raw, qpc + RNIC_QPC_RGID_AT, 16);
	path->grh.sgid_index = (uint8_t)rnic_get_be(qpc, RNIC_QPC_MGID_INDEX);
	path->grh.hop_limit = (uint8_t)rnic_get_be(qpc, RNIC_QPC_HOP_LIMIT);
	path->grh.traffic_class = (uint8_t)rnic_get_be(qpc, RNIC_QPC_TCLASS);
	path->grh.flow_label = (uint32_t)rnic_get_be(qpc, RNIC_QPC_FLOW_LABEL);
	path->sl = (uint8_t)rnic_get_be(qpc, RNIC_QPC_SL);
	path->static_rate = (uint8_t)rnic_get_be(qpc, RNIC_QPC_STATIC_RATE);
	path->is_global = (uint8_t)rnic_get_be(qpc, RNIC_QPC_HAS_GRH);
	path->port_num = 1;
}

EXPORT int ibv_query_qp(struct ibv_qp *verbs, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct rnic_qp *qp = (struct rnic_qp *)verbs;
	uint8_t qpc[RNIC_QPC_SIZE];
	int error = query_qp(qp, qpc);

	if (error)
		return fail(error);
	memset(attr, 0, offsetof(struct ibv_qp_attr, rate_limit)); /* older programs' structures end there */
	qp->state = (uint32_t)rnic_get_be(qpc, RNIC_QPC_STATE);
	attr->qp_state = attr->cur_qp_state = verbs_state(qp->state);
	attr->path_mig_state = 0; /* IBV_MIG_MIGRATED */
	attr->cap = qp->cap;
	attr->sq_draining = (uint8_t)rnic_get_be(qpc, RNIC_QPC_SQ_DRAINING);
	get_ah_attr(qpc, &attr->ah_attr);
#define GET(member, field) attr->member = (__typeof__(attr->member))rnic_get_be(qpc, RNIC_QPC_##field);
	RNIC_QP_ATTRIBUTES(GET)
	attr->sq_psn &= 0xFFFFFF;
	if (mask & IBV_QP_STATE) /* otherwise the program relies on the state it set last */
		verbs->state = attr->qp_state;
	*init = (struct ibv_qp_init_attr){ .qp_context = verbs->qp_context,
					   .send_cq = verbs->send_cq,
					   .recv_cq = verbs->recv_cq,
					   .srq = verbs->srq,
					   .cap = qp->cap,
					   .qp_type = verbs->qp_type,
					   .sq_sig_all = qp->sq_sig_all };
	return 0;
}

/* ---- queue pairs that another handle made */

struct ibv_qp *rnic_open_qp(struct ibv_context *verbs, struct ibv_qp_open_attr *attr)
{
	uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	uint8_t qpc[RNIC_QPC_SIZE];
	struct rnic_qp *qp;
	int error;

	if ((attr->comp_mask & needed) != needed || attr->comp_mask & ~(needed | IBV_QP_OPEN_ATTR_CONTEXT) ||
	    attr->qp_type != IBV_QPT_XRC_RECV || attr->xrcd->context != verbs)
		return fail_null(
			why_bad_value(EINVAL, open_verb, "anything but an XRC_RECV queue pair of the device,"));
	qp = calloc(1, sizeof *qp);
	if (!qp)
		return NULL;
	qp->service = RNIC_QP_ST_XRC_TGT;
	qp->xrcd = (struct rnic_xrcd *)attr->xrcd;
	qp->number = attr->qp_num;
	qp->opened = true;
	qp->created = true;
	qp->verbs.qp_base = (struct ibv_qp){
		.context = verbs,
		.qp_context = attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? attr->qp_context : NULL,
		.handle = attr->qp_num,
		.qp_num = attr->qp_num,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	error = query_qp(qp, qpc);
	if (!error && (rnic_get_be(qpc, RNIC_QPC_SERVTYPE) != RNIC_QP_ST_XRC_TGT ||
		       rnic_get_be(qpc, RNIC_QPC_XRCD) != qp->xrcd->number))
		error = why_bad_value(EINVAL, open_verb, "a queue pair that is not in this XRC domain,");
	if (error) {
		free(qp);
		return fail_null(error);
	}
	qp->state = (uint32_t)rnic_get_be(qpc, RNIC_QPC_STATE);
	qp->verbs.qp_base.state = verbs_state(qp->state);
	pthread_mutex_init(&qp->lock, NULL);
	pthread_mutex_init(&qp->verbs.qp_base.mutex, NULL);
	pthread_cond_init(&qp->verbs.qp_base.cond, NULL);
	count_users(qp, 1);
	return &qp->verbs.qp_base;
}

static void close_opened(struct rnic_qp *qp)
{
	count_users(qp, -1);
	free(qp);
}

EXPORT int ibv_destroy_qp(struct ibv_qp *verbs)
{
	static const uint32_t types[] = { RNIC_EVENT_COMM_EST,	      RNIC_EVENT_SQ_DRAINED,
					  RNIC_EVENT_WQ_CATAS_ERROR,  RNIC_EVENT_WQ_INVAL_REQ_ERROR,
					  RNIC_EVENT_WQ_ACCESS_ERROR, RNIC_EVENT_SRQ_LAST_WQE };
	struct rnic_qp *qp = (struct rnic_qp *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	int error = 0;

	if (qp->opened) {
		close_opened(qp);
		return 0;
	}
	if (qp->groups && !context->dead)
		return fail(why_in_use(EBUSY, "ibv_destroy_qp", "queue pair", qp->number, "multicast groups"));
	if (!context->dead)
		error = reset_qp(context, qp);
	if (error && !context->dead)
		return fail(error);
	pthread_mutex_lock(&context->lock);
	context->qps[qp->number & context->qp_mask] = NULL;
	pthread_mutex_unlock(&context->lock);
	if (!context->dead) {
		event_queue_purge(context, &context->async, qp->number, types, COUNT(types));
		nic_free_queue(context, RNIC_CMD_RES_QP, qp->number, qp->block);
		await_acknowledged(&verbs->mutex, &verbs->cond, &verbs->events_completed, qp->async_reported);
	}
	mcast_free(qp);
	count_users(qp, -1);
	receive_ring_free(context, &qp->rq);
	ring_free(context, &qp->memory);
	free(qp->ids);
	free(qp);
	return 0;
}

/* ---- ECE, data order: no options */

EXPORT int ibv_query_ece(struct ibv_qp *qp UNUSED, struct ibv_ece *ece)
{
	memset(ece, 0, sizeof *ece);
	return EOPNOTSUPP;
}

EXPORT int ibv_set_ece(struct ibv_qp *qp UNUSED, struct ibv_ece *ece UNUSED)
{
	return EOPNOTSUPP;
}

/* Data may arrive in any order before its completion. */
EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp UNUSED, int opcode UNUSED, uint32_t flags UNUSED)
{
	return 0;
}
