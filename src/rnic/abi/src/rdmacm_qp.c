/* Queue pairs of IDs: making them, and bringing them to where their connection is. */
#include "rdmacm.h"

enum { USUAL_INLINE = 64 };
enum { REMOTE_RIGHTS = 2 | 4 | 8 }; /* IBV_ACCESS_REMOTE_WRITE, _READ, _ATOMIC */

enum {
	QP_STATE = 1 << 0, ACCESS_FLAGS = 1 << 3, PKEY_INDEX = 1 << 4, PORT = 1 << 5, QKEY = 1 << 6, AV = 1 << 7,
	PATH_MTU = 1 << 8, TIMEOUT = 1 << 9, RETRY_CNT = 1 << 10, RNR_RETRY = 1 << 11, RQ_PSN = 1 << 12,
	MAX_QP_RD_ATOMIC = 1 << 13, MIN_RNR_TIMER = 1 << 15, SQ_PSN = 1 << 16, MAX_DEST_RD_ATOMIC = 1 << 17,
	DEST_QPN = 1 << 20,
};

static uint32_t word_at(const uint8_t *record, unsigned at)
{
	uint32_t value;

	memcpy(&value, record + at, 4);
	return value;
}

/* Attributes for the state that attr->qp_state names, as a record of the connection says. */
static int attr_of(const struct cm_id *id, const uint8_t *record, struct ibv_qp_attr *attr, int *mask)
{
	bool reliable = id->public.qp_type == IBV_QPT_RC;
	int state = attr->qp_state;

	memset(attr, 0, sizeof *attr);
	attr->qp_state = state;
	*mask = QP_STATE;
	switch (state) {
	case IBV_QPS_INIT:
		attr->port_num = 1;
		*mask |= PKEY_INDEX | PORT;
		if (id->public.qp_type == IBV_QPT_UD) {
			attr->qkey = RDMA_UDP_QKEY;
			*mask |= QKEY;
		} else {
			attr->qp_access_flags = REMOTE_RIGHTS;
			*mask |= ACCESS_FLAGS;
		}
		return 0;
	case IBV_QPS_RTR:
		if (id->public.qp_type == IBV_QPT_UD)
			return 0;
		attr->path_mtu = record[RNIC_CM_RECORD_PATH_MTU_AT];
		attr->dest_qp_num = word_at(record, RNIC_CM_RECORD_QPN_AT);
		attr->rq_psn = word_at(record, RNIC_CM_RECORD_RQ_PSN_AT);
		attr->ah_attr.is_global = 1;
		attr->ah_attr.port_num = 1;
		memcpy(attr->ah_attr.grh.dgid.raw, record + RNIC_CM_RECORD_DST_AT, 16);
		attr->ah_attr.grh.hop_limit = 64;
		attr->ah_attr.grh.traffic_class = record[RNIC_CM_RECORD_TOS_AT];
		*mask |= AV | PATH_MTU | DEST_QPN | RQ_PSN;
		if (reliable) {
			attr->max_dest_rd_atomic = record[RNIC_CM_RECORD_RESPONDER_RESOURCES_AT];
			attr->min_rnr_timer = record[RNIC_CM_RECORD_MIN_RNR_TIMER_AT];
			*mask |= MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
		}
		return 0;
	case IBV_QPS_RTS:
		attr->sq_psn = word_at(record, RNIC_CM_RECORD_SQ_PSN_AT);
		*mask |= SQ_PSN;
		if (reliable) {
			attr->max_rd_atomic = record[RNIC_CM_RECORD_INITIATOR_DEPTH_AT];
			attr->timeout = record[RNIC_CM_RECORD_ACK_TIMEOUT_AT];
			attr->retry_cnt = record[RNIC_CM_RECORD_RETRY_COUNT_AT];
			attr->rnr_retry = record[RNIC_CM_RECORD_RNR_RETRY_COUNT_AT];
			*mask |= MAX_QP_RD_ATOMIC | TIMEOUT | RETRY_CNT | RNR_RETRY;
		}
		return 0;
	default:
		return EINVAL;
	}
}

EXPORT int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	struct cm_said said;
	int error = cm_request(cm_of(id), RNIC_CM_QUERY, &said);

	return minus(error ? error : attr_of(cm_of(id), said.record, attr, mask));
}

/* Ready to receive and send, in one message, as the peer's REQ or REP says; of resources the caller knows what both have. */
int cm_make_ready(struct cm_id *id, uint8_t responder_resources, uint8_t initiator_depth)
{
	struct ibv_qp_attr receive = { .qp_state = IBV_QPS_RTR }, send = { .qp_state = IBV_QPS_RTS };
	const struct ibv_qp_attr *const both[] = { &receive, &send };
	int masks[2], error = attr_of(id, id->peer, &receive, &masks[0]);

	if (!error)
		error = attr_of(id, id->peer, &send, &masks[1]);
	if (error)
		return error;
	receive.max_dest_rd_atomic = responder_resources;
	send.max_rd_atomic = initiator_depth;
	return rnic_modify_qp_twice(id->public.qp, both, masks);
}

void cm_fail_qp(struct cm_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (id->public.qp)
		ibv_modify_qp(id->public.qp, &attr, QP_STATE);
}

/* ---- making */

static int make_cq(struct rdma_cm_id *id, uint32_t entries, struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return errno;
	*cq = ibv_create_cq(id->verbs, entries ? (int)entries : 1, id, *channel, 0);
	return *cq ? 0 : errno;
}

static void drop_cqs(struct rdma_cm_id *id)
{
	if (id->recv_cq)
		ibv_destroy_cq(id->recv_cq);
	if (id->recv_cq_channel)
		ibv_destroy_comp_channel(id->recv_cq_channel);
	if (id->send_cq)
		ibv_destroy_cq(id->send_cq);
	if (id->send_cq_channel)
		ibv_destroy_comp_channel(id->send_cq_channel);
	id->recv_cq = id->send_cq = NULL;
	id->recv_cq_channel = id->send_cq_channel = NULL;
}

/* To the state in which receives may be posted; datagrams may go from there, too. */
static int bring_up(struct cm_id *id)
{
	static const uint8_t nobody[RNIC_CM_RECORD_SIZE];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask, error = attr_of(id, nobody, &attr, &mask);

	if (!error)
		error = ibv_modify_qp(id->public.qp, &attr, mask);
	return error || id->public.qp_type != IBV_QPT_UD ? error : cm_make_ready(id, 0, 0);
}

EXPORT int rdma_create_qp_ex(struct rdma_cm_id *public, struct ibv_qp_init_attr_ex *attr)
{
	struct cm_id *id = cm_of(public);
	struct ibv_pd *pd = attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL;
	int error = 0;

	if (public->qp || !id->device)
		return minus(EINVAL);
	if (!pd)
		pd = public->pd;
	else if (pd->context != public->verbs)
		return minus(EINVAL);
	attr->pd = pd;
	attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
	if (!attr->srq && public->srq)
		attr->srq = public->srq;
	/* Adapters have this much room in any descriptor, and programs send inline without asking for it. */
	if (attr->cap.max_inline_data < USUAL_INLINE)
		attr->cap.max_inline_data = USUAL_INLINE;
	if (!attr->recv_cq) {
		error = make_cq(public, attr->cap.max_recv_wr, &public->recv_cq_channel, &public->recv_cq);
		attr->recv_cq = public->recv_cq;
	}
	if (!error && !attr->send_cq) {
		error = make_cq(public, attr->cap.max_send_wr, &public->send_cq_channel, &public->send_cq);
		attr->send_cq = public->send_cq;
	}
	if (!error) {
		struct verbs_context *context =
			(struct verbs_context *)(void *)((char *)public->verbs - offsetof(struct verbs_context, context));

		public->qp = context->create_qp_ex(public->verbs, attr);
		error = public->qp ? 0 : errno;
	}
	if (!error) {
		public->qp_type = attr->qp_type;
		public->pd = pd;
		error = bring_up(id);
		if (error) {
			ibv_destroy_qp(public->qp);
			public->qp = NULL;
		}
	}
	if (error)
		drop_cqs(public);
	return minus(error);
}

EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex extended = { 0 };
	int result;

	memcpy(&extended, attr, sizeof *attr);
	extended.comp_mask = IBV_QP_INIT_ATTR_PD;
	extended.pd = pd ? pd : id->pd;
	result = rdma_create_qp_ex(id, &extended);
	if (!result)
		memcpy(attr, &extended, sizeof *attr); /* its limits, as they became */
	return result;
}

EXPORT void rdma_destroy_qp(struct rdma_cm_id *id)
{
	ibv_destroy_qp(id->qp);
	id->qp = NULL;
	drop_cqs(id);
}

EXPORT int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	struct verbs_context *context;

	if (!id->verbs || id->srq)
		return minus(EINVAL);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->pd = id->pd;
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	}
	context = (struct verbs_context *)(void *)((char *)id->verbs - offsetof(struct verbs_context, context));
	id->srq = context->create_srq_ex(id->verbs, attr);
	if (!id->srq)
		return -1;
	id->pd = attr->pd;
	return 0;
}

EXPORT int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	if (!id->verbs || id->srq)
		return minus(EINVAL);
	id->srq = ibv_create_srq(pd ? pd : id->pd, attr);
	if (!id->srq)
		return -1;
	if (pd)
		id->pd = pd;
	return 0;
}

EXPORT void rdma_destroy_srq(struct rdma_cm_id *id)
{
	ibv_destroy_srq(id->srq);
	id->srq = NULL;
}
