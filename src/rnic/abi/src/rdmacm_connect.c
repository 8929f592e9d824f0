/* What programs ask of IDs: addresses, listening, connections, groups, options. */
#include "rdmacm.h"

static int put_address(struct cm_said *said, const struct sockaddr *address, unsigned gid_at, unsigned port_at)
{
	union ibv_gid gid;
	uint16_t port;
	int error = cm_gid_of(address, &gid, &port);

	if (error)
		return error;
	memcpy(said->request + gid_at, gid.raw, 16);
	put16(said, port_at, port);
	return 0;
}

EXPORT int rdma_bind_addr(struct rdma_cm_id *public, struct sockaddr *address)
{
	struct cm_id *id = cm_of(public);
	struct cm_said said;
	int error;

	if (!address || !cm_address_bytes(address))
		return minus(EINVAL);
	cm_begin(&said, RNIC_CM_BIND, id);
	error = put_address(&said, address, RNIC_CM_REQUEST_SRC_AT, RNIC_CM_REQUEST_SRC_PORT_AT);
	put32(&said, RNIC_CM_REQUEST_FLAGS_AT, id->reuse ? RNIC_CM_REUSEADDR : 0);
	if (!error)
		error = cm_ask(&said);
	if (error)
		return minus(error);
	memcpy(&public->route.addr.src_storage, address, cm_address_bytes(address));
	cm_adopt(id, &said);
	return 0;
}

EXPORT int rdma_resolve_addr(struct rdma_cm_id *public, struct sockaddr *src, struct sockaddr *dst, int timeout_ms UNUSED)
{
	struct cm_id *id = cm_of(public);
	struct cm_said said;
	union ibv_gid own;
	uint16_t port;
	int error;

	if (!dst || !cm_address_bytes(dst))
		return minus(EINVAL);
	cm_begin(&said, RNIC_CM_RESOLVE_ADDR, id);
	error = put_address(&said, dst, RNIC_CM_REQUEST_DST_AT, RNIC_CM_REQUEST_DST_PORT_AT);
	if (!error)
		error = cm_gid_of(src, &own, &port);
	if (error)
		return minus(error);
	if (!id->device && cm_nowhere(&own)) {
		struct cm_device *device = cm_device_towards(dst);

		if (device)
			own = device->gid;
	}
	memcpy(said.request + RNIC_CM_REQUEST_SRC_AT, own.raw, 16);
	put16(&said, RNIC_CM_REQUEST_SRC_PORT_AT, port);
	put32(&said, RNIC_CM_REQUEST_FLAGS_AT, RNIC_CM_TELL);
	memcpy(&public->route.addr.dst_storage, dst, cm_address_bytes(dst));
	error = cm_ask(&said);
	if (!error)
		error = cm_keep_event(id, &said);
	return error ? minus(error) : cm_complete(id);
}

EXPORT int rdma_resolve_route(struct rdma_cm_id *public, int timeout_ms UNUSED)
{
	struct cm_id *id = cm_of(public);
	struct cm_said said;
	int error;

	cm_begin(&said, RNIC_CM_RESOLVE_ROUTE, id);
	put32(&said, RNIC_CM_REQUEST_FLAGS_AT, RNIC_CM_TELL);
	error = cm_ask(&said);
	if (!error)
		error = cm_keep_event(id, &said);
	return error ? minus(error) : cm_complete(id);
}

EXPORT int rdma_listen(struct rdma_cm_id *public, int backlog)
{
	struct cm_id *id = cm_of(public);
	struct cm_said said;
	int error;

	cm_begin(&said, RNIC_CM_LISTEN, id);
	put32(&said, RNIC_CM_REQUEST_VALUE_AT, backlog > 0 ? (uint32_t)backlog : 0);
	error = cm_ask(&said);
	if (error)
		return minus(error);
	cm_adopt(id, &said);
	return 0;
}

/* What this side offers, in a request: its queue pair goes before what the program says of one. */
static int offer(struct cm_id *id, struct cm_said *said, const struct rdma_conn_param *param)
{
	static const struct rdma_conn_param usual = { .responder_resources = RDMA_MAX_RESP_RES,
						      .initiator_depth = RDMA_MAX_INIT_DEPTH,
						      .retry_count = 7, .rnr_retry_count = 7 };
	uint8_t most = id->device ? id->device->most_resources : 0;
	struct ibv_qp *qp = id->public.qp;

	if (!param)
		param = &usual;
	id->responder_resources = param->responder_resources < most ? param->responder_resources : most;
	id->initiator_depth = param->initiator_depth < most ? param->initiator_depth : most;
	put32(said, RNIC_CM_REQUEST_QPN_AT, qp ? qp->qp_num : param->qp_num);
	put32(said, RNIC_CM_REQUEST_QKEY_AT, id->public.qp_type == IBV_QPT_UD ? RDMA_UDP_QKEY : 0);
	said->request[RNIC_CM_REQUEST_RESPONDER_RESOURCES_AT] = id->responder_resources;
	said->request[RNIC_CM_REQUEST_INITIATOR_DEPTH_AT] = id->initiator_depth;
	said->request[RNIC_CM_REQUEST_FLOW_CONTROL_AT] = param->flow_control;
	said->request[RNIC_CM_REQUEST_RETRY_COUNT_AT] = param->retry_count;
	said->request[RNIC_CM_REQUEST_RNR_RETRY_COUNT_AT] = param->rnr_retry_count;
	said->request[RNIC_CM_REQUEST_SRQ_AT] = qp ? qp->srq != NULL : param->srq;
	said->request[RNIC_CM_REQUEST_TOS_AT] = id->tos;
	said->request[RNIC_CM_REQUEST_ACK_TIMEOUT_AT] = id->ack_timeout;
	cm_private(said, param->private_data, param->private_data_len);
	return 0;
}

EXPORT int rdma_connect(struct rdma_cm_id *public, struct rdma_conn_param *param)
{
	struct cm_id *id = cm_of(public);
	struct cm_said said;
	int error;

	cm_begin(&said, RNIC_CM_CONNECT, id);
	offer(id, &said, param);
	error = cm_ask(&said);
	return error ? minus(error) : cm_complete(id);
}

EXPORT int rdma_establish(struct rdma_cm_id *public)
{
	if (public->qp)
		return minus(EINVAL);
	return minus(cm_simple(cm_of(public), RNIC_CM_ESTABLISH));
}

EXPORT int rdma_accept(struct rdma_cm_id *public, struct rdma_conn_param *param)
{
	struct cm_id *id = cm_of(public);
	uint8_t asked_resources = id->responder_resources, asked_depth = id->initiator_depth;
	struct cm_said said;
	int error = 0;

	if (!id->passive)
		return minus(EINVAL);
	cm_begin(&said, RNIC_CM_ACCEPT, id);
	offer(id, &said, param);
	if (!param) { /* as the peer asked for */
		if (asked_resources < id->responder_resources)
			id->responder_resources = asked_resources;
		if (asked_depth < id->initiator_depth)
			id->initiator_depth = asked_depth;
		said.request[RNIC_CM_REQUEST_RESPONDER_RESOURCES_AT] = id->responder_resources;
		said.request[RNIC_CM_REQUEST_INITIATOR_DEPTH_AT] = id->initiator_depth;
	}
	if (public->qp && public->qp_type != IBV_QPT_UD)
		error = cm_make_ready(id, id->responder_resources, id->initiator_depth);
	if (!error)
		error = cm_ask(&said);
	if (error) {
		cm_fail_qp(id);
		return minus(error);
	}
	if (public->qp_type == IBV_QPT_UD) {
		if (id->own)
			cm_drop_event(id);
		return 0;
	}
	return cm_complete(id);
}

EXPORT int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t bytes)
{
	struct cm_said said;

	cm_begin(&said, RNIC_CM_REJECT, cm_of(id));
	cm_private(&said, data, bytes);
	return minus(cm_ask(&said));
}

/* ---- enhanced connection establishment: nothing is offered, and so nothing agreed upon */

EXPORT int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	return minus(id->qp || !ece ? EINVAL : 0);
}

EXPORT int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (id->qp || !ece)
		return minus(EINVAL);
	memset(ece, 0, sizeof *ece);
	return 0;
}

EXPORT int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t bytes)
{
	enum { VENDOR_OPTION_NOT_SUPPORTED = 35 };
	struct cm_said said;

	cm_begin(&said, RNIC_CM_REJECT, cm_of(id));
	put32(&said, RNIC_CM_REQUEST_STATUS_AT, VENDOR_OPTION_NOT_SUPPORTED);
	cm_private(&said, data, bytes);
	return minus(cm_ask(&said));
}

/* ---- the end */

EXPORT int rdma_disconnect(struct rdma_cm_id *public)
{
	struct cm_id *id = cm_of(public);
	int error;

	cm_fail_qp(id);
	error = cm_simple(id, RNIC_CM_DISCONNECT);
	if (error)
		return minus(error);
	return cm_complete(id);
}

EXPORT int rdma_notify(struct rdma_cm_id *id, int event)
{
	enum { COMM_EST = 4 };

	if (event != COMM_EST)
		return minus(EINVAL);
	return minus(cm_simple(cm_of(id), RNIC_CM_NOTIFY));
}

/* ---- groups */

static int join(struct rdma_cm_id *public, const struct sockaddr *address, void *context)
{
	struct cm_id *id = cm_of(public);
	struct group *group;
	struct cm_said said;
	uint64_t cookie;
	uint16_t port;
	int error;

	if (!address || !cm_address_bytes(address))
		return minus(EINVAL);
	group = calloc(1, sizeof *group);
	if (!group)
		return minus(ENOMEM);
	error = cm_gid_of(address, &group->gid, &port);
	memcpy(&group->address, address, cm_address_bytes(address));
	group->context = context;
	group->next = id->groups;
	id->groups = group;
	cm_begin(&said, RNIC_CM_JOIN, id);
	cookie = (uintptr_t)group;
	memcpy(said.request + RNIC_CM_REQUEST_CONTEXT_AT, &cookie, sizeof cookie);
	if (!error)
		error = put_address(&said, address, RNIC_CM_REQUEST_DST_AT, RNIC_CM_REQUEST_DST_PORT_AT);
	if (!error)
		error = cm_ask(&said);
	if (error) {
		id->groups = group->next;
		free(group);
		return minus(error);
	}
	return cm_complete(id);
}

EXPORT int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *address, void *context)
{
	return join(id, address, context);
}

EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	if (!(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS))
		return minus(EINVAL);
	/* A member that only sends may be attached all the same: it just receives nothing that it did not post for. */
	return join(id, attr->addr, context);
}

EXPORT int rdma_leave_multicast(struct rdma_cm_id *public, struct sockaddr *address)
{
	struct cm_id *id = cm_of(public);
	socklen_t bytes = address ? cm_address_bytes(address) : 0;

	for (struct group **at = &id->groups; *at; at = &(*at)->next) {
		struct group *group = *at;

		if (!bytes || memcmp(&group->address, address, bytes) != 0)
			continue;
		*at = group->next;
		if (group->attached && public->qp)
			ibv_detach_mcast(public->qp, &group->gid, 0);
		cm_simple(id, RNIC_CM_LEAVE);
		free(group);
		return 0;
	}
	return minus(EADDRNOTAVAIL);
}

/* ---- options */

EXPORT int rdma_set_option(struct rdma_cm_id *public, int level, int name, void *value, size_t bytes)
{
	struct cm_id *id = cm_of(public);

	if (level == RDMA_OPTION_IB && name == RDMA_OPTION_IB_PATH)
		return 0; /* there is one path, by its addresses */
	if (level != RDMA_OPTION_ID)
		return minus(ENOSYS);
	switch (name) {
	case RDMA_OPTION_ID_TOS:
		if (bytes != 1)
			return minus(EINVAL);
		id->tos = *(uint8_t *)value;
		return 0;
	case RDMA_OPTION_ID_REUSEADDR:
		if (bytes != sizeof(int))
			return minus(EINVAL);
		id->reuse = *(int *)value != 0;
		return 0;
	case RDMA_OPTION_ID_AFONLY:
		return bytes == sizeof(int) ? 0 : minus(EINVAL); /* a device has one family's address */
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (bytes != 1 || *(uint8_t *)value > 31)
			return minus(EINVAL);
		id->ack_timeout = *(uint8_t *)value;
		return 0;
	default:
		return minus(ENOSYS);
	}
}
