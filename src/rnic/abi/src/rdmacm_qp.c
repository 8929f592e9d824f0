/* Queue pairs of IDs: creating them, and modifying them as connections progress. */
#include "rdmacm_qp.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_abi.h"
#include "rdmacm_id.h"
#include "rdmacm_rpc.h"
#include "rnic_reasons.h"

enum { USUAL_INLINE = 64 };

/* Fill in the attributes for the state that attr->qp_state names, from a record of the connection. */
static int init_qp_attr(const struct cm_id *id, const uint8_t *record, struct ibv_qp_attr *attr, int *mask)
{
	bool reliable = id->public.qp_type == IBV_QPT_RC;
	int state = attr->qp_state;

	memset(attr, 0, sizeof *attr);
	attr->qp_state = state;
	*mask = IBV_QP_STATE;
	switch (state) {
	case IBV_QPS_INIT:
		attr->port_num = 1;
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
		if (id->public.qp_type == IBV_QPT_UD) {
			attr->qkey = RDMA_UDP_QKEY;
			*mask |= IBV_QP_QKEY;
		} else {
			attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						IBV_ACCESS_REMOTE_ATOMIC;
			*mask |= IBV_QP_ACCESS_FLAGS;
		}
		return 0;
	case IBV_QPS_RTR:
		if (id->public.qp_type == IBV_QPT_UD)
			return 0;
		attr->path_mtu = record[RNIC_CM_RECORD_PATH_MTU_AT];
		attr->dest_qp_num = record_get32(record, RNIC_CM_RECORD_QPN_AT);
		attr->rq_psn = record_get32(record, RNIC_CM_RECORD_RQ_PSN_AT);
		attr->ah_attr.is_global = 1;
		attr->ah_attr.port_num = 1;
		memcpy(attr->ah_attr.grh.dgid.raw, record + RNIC_CM_RECORD_DST_AT, 16);
		attr->ah_attr.grh.hop_limit = 64;
		attr->ah_attr.grh.sgid_index = rnic_own_gid_index(id->public.verbs);
		attr->ah_attr.grh.traffic_class = record[RNIC_CM_RECORD_TOS_AT];
		*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		if (reliable) {
			attr->max_dest_rd_atomic = record[RNIC_CM_RECORD_RESPONDER_RESOURCES_AT];
			attr->min_rnr_timer = record[RNIC_CM_RECORD_MIN_RNR_TIMER_AT];
			*mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		}
		return 0;
	case IBV_QPS_RTS:
		attr->sq_psn = record_get32(record, RNIC_CM_RECORD_SQ_PSN_AT);
		*mask |= IBV_QP_SQ_PSN;
		if (reliable) {
			attr->max_rd_atomic = record[RNIC_CM_RECORD_INITIATOR_DEPTH_AT];
			attr->timeout = record[RNIC_CM_RECORD_ACK_TIMEOUT_AT];
			attr->retry_cnt = record[RNIC_CM_RECORD_RETRY_COUNT_AT];
			attr->rnr_retry = record[RNIC_CM_RECORD_RNR_RETRY_COUNT_AT];
			*mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
		}
		return 0;
	default:
		return EINVAL;
	}
}

EXPORT int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	struct cm_rpc rpc;
	int error = cm_request(to_id(id), RNIC_CM_QUERY, &rpc);

	return rdma_seterrno(error ? error : init_qp_attr(to_id(id), rpc.record, attr, mask));
}

int cm_modify_qp_rts(struct cm_id *id, uint8_t responder_resources, uint8_t initiator_depth)
{
	struct ibv_qp_attr receive = { .qp_state = IBV_QPS_RTR }, send = { .qp_state = IBV_QPS_RTS };
	const struct ibv_qp_attr *const both[] = { &receive, &send };
	int masks[2], error = init_qp_attr(id, id->peer, &receive, &masks[0]);

	if (!error)
		error = init_qp_attr(id, id->peer, &send, &masks[1]);
	if (error)
		return error;
	receive.max_dest_rd_atomic = responder_resources;
	send.max_rd_atomic = initiator_depth;
	return rnic_modify_qp_twice(id->public.qp, both, masks);
}

void cm_modify_qp_err(struct cm_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (id->public.qp)
		ibv_modify_qp(id->public.qp, &attr, IBV_QP_STATE);
}

/* ---- creating */

static int create_cq(struct rdma_cm_id *id, uint32_t entries, struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return errno;
	*cq = ibv_create_cq(id->verbs, entries ? (int)entries : 1, id, *channel, 0);
	return *cq ? 0 : errno;
}

static void destroy_cqs(struct rdma_cm_id *id)
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

/* Modify to INIT, in which receives may be posted; a datagram queue pair goes on to RTS. */
static int init_qp(struct cm_id *id)
{
	static const uint8_t no_peer[RNIC_CM_RECORD_SIZE];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask, error = init_qp_attr(id, no_peer, &attr, &mask);

	if (!error)
		error = ibv_modify_qp(id->public.qp, &attr, mask);
	return error || id->public.qp_type != IBV_QPT_UD ? error : cm_modify_qp_rts(id, 0, 0);
}

EXPORT int rdma_create_qp_ex(struct rdma_cm_id *public, struct ibv_qp_init_attr_ex *attr)
{
	struct cm_id *id = to_id(public);
	struct ibv_pd *pd = attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL;
	int error = 0;

	if (public->qp || !id->device)
		return rdma_seterrno(why_bad_value(EINVAL, "rdma_create_qp",
						   public->qp ? "an ID that has a queue pair already" :
								"an ID without a device (resolve an address first)"));
	if (!pd)
		pd = public->pd;
	else if (pd->context != public->verbs)
		return rdma_seterrno(
			why_bad_value(EINVAL, "rdma_create_qp", "a protection domain of another device than the ID's"));
	attr->pd = pd;
	attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
	if (!attr->srq && public->srq)
		attr->srq = public->srq;
	/* Hardware NICs have this much room in any descriptor, and programs send inline without a query. */
	if (attr->cap.max_inline_data < USUAL_INLINE)
		attr->cap.max_inline_data = USUAL_INLINE;
	if (!attr->recv_cq) {
		error = create_cq(public, attr->cap.max_recv_wr, &public->recv_cq_channel, &public->recv_cq);
		attr->recv_cq = public->recv_cq;
	}
	if (!error && !attr->send_cq) {
		error = create_cq(public, attr->cap.max_send_wr, &public->send_cq_channel, &public->send_cq);
		attr->send_cq = public->send_cq;
	}
	if (!error) {
		public->qp = verbs_get_ctx(public->verbs)->create_qp_ex(public->verbs, attr);
		error = public->qp ? 0 : errno;
	}
	if (!error) {
		public->qp_type = attr->qp_type;
		public->pd = pd;
		error = init_qp(id);
		if (error) {
			ibv_destroy_qp(public->qp);
			public->qp = NULL;
		}
	}
	if (error)
		destroy_cqs(public);
	return rdma_seterrno(error);
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
		memcpy(attr, &extended, sizeof *attr); /* the limits that it got */
	return result;
}

EXPORT void rdma_destroy_qp(struct rdma_cm_id *id)
{
	ibv_destroy_qp(id->qp);
	id->qp = NULL;
	destroy_cqs(id);
}

EXPORT int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	if (!id->verbs || id->srq)
		return rdma_seterrno(EINVAL);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->pd = id->pd;
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	}
	id->srq = verbs_get_ctx(id->verbs)->create_srq_ex(id->verbs, attr);
	if (!id->srq)
		return -1;
	id->pd = attr->pd;
	return 0;
}

EXPORT int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	if (!id->verbs || id->srq)
		return rdma_seterrno(EINVAL);
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
