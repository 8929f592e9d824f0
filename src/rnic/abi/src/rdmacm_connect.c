/* Operations on IDs: addresses, listening, connections, multicast, options. */
#include "rdmacm_id.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_address.h"
#include "rdmacm_devices.h"
#include "rdmacm_qp.h"
#include "rdmacm_rpc.h"
#include "rnic_reasons.h"

static int put_address(struct cm_rpc *rpc, const struct sockaddr *address, unsigned gid_at, unsigned port_at)
{
	union ibv_gid gid;
	uint16_t port;
	int error = cm_gid_of(address, &gid, &port);

	if (error)
		return error;
	memcpy(rpc->request + gid_at, gid.raw, 16);
	cm_put16(rpc, port_at, port);
	return 0;
}

/* Return whether an ID bound to `::` accepts only IPv6: by its option, or by default as the kernel's sockets do. */
static bool takes_one_family(const struct cm_id *id, const struct sockaddr *address)
{
	char value = '0';
	int file;

	if (address->sa_family != AF_INET6 || id->afonly_set)
		return id->afonly;
	file = open("/proc/sys/net/ipv6/bindv6only", O_RDONLY | O_CLOEXEC);
	if (file >= 0) {
		if (read(file, &value, 1) != 1)
			value = '0';
		close(file);
	}
	return value == '1';
}

static const char family_problem[] = "an address that is neither IPv4 nor IPv6";

EXPORT int rdma_bind_addr(struct rdma_cm_id *public, struct sockaddr *address)
{
	struct cm_id *id = to_id(public);
	struct cm_rpc rpc;
	int error;

	if (!address || !cm_addrlen(address))
		return rdma_seterrno(why_bad_value(EINVAL, "rdma_bind_addr", family_problem));
	cm_rpc_init(&rpc, RNIC_CM_BIND, id);
	error = put_address(&rpc, address, RNIC_CM_REQUEST_SRC_AT, RNIC_CM_REQUEST_SRC_PORT_AT);
	cm_put32(&rpc, RNIC_CM_REQUEST_FLAGS_AT,
		 (id->reuse ? RNIC_CM_REUSEADDR : 0) | (takes_one_family(id, address) ? RNIC_CM_AFONLY : 0));
	if (!error)
		error = cm_rpc_call(&rpc);
	if (error)
		return rdma_seterrno(error);
	memcpy(&public->route.addr.src_storage, address, cm_addrlen(address));
	cm_save_route(id, &rpc);
	return 0;
}

EXPORT int rdma_resolve_addr(struct rdma_cm_id *public, struct sockaddr *src, struct sockaddr *dst,
			     int timeout_ms UNUSED)
{
	struct cm_id *id = to_id(public);
	struct cm_rpc rpc;
	union ibv_gid own;
	uint16_t port;
	int error;

	if (!dst || !cm_addrlen(dst))
		return rdma_seterrno(why_bad_value(EINVAL, "rdma_resolve_addr", family_problem));
	cm_rpc_init(&rpc, RNIC_CM_RESOLVE_ADDR, id);
	error = put_address(&rpc, dst, RNIC_CM_REQUEST_DST_AT, RNIC_CM_REQUEST_DST_PORT_AT);
	if (!error)
		error = cm_gid_of(src, &own, &port);
	if (error)
		return rdma_seterrno(error);
	if (!id->device && cm_gid_is_any(&own)) {
		struct cm_device *device = cm_device_for(dst);

		if (device)
			own = device->gid;
	}
	memcpy(rpc.request + RNIC_CM_REQUEST_SRC_AT, own.raw, 16);
	cm_put16(&rpc, RNIC_CM_REQUEST_SRC_PORT_AT, port);
	cm_put32(&rpc, RNIC_CM_REQUEST_FLAGS_AT, RNIC_CM_TELL);
	memcpy(&public->route.addr.dst_storage, dst, cm_addrlen(dst));
	error = cm_rpc_call(&rpc);
	if (!error)
		error = channel_queue_answer(to_channel(public->channel), &rpc);
	return error ? rdma_seterrno(error) : cm_complete(id);
}

EXPORT int rdma_resolve_route(struct rdma_cm_id *public, int timeout_ms UNUSED)
{
	struct cm_id *id = to_id(public);
	struct cm_rpc rpc;
	int error;

	cm_rpc_init(&rpc, RNIC_CM_RESOLVE_ROUTE, id);
	cm_put32(&rpc, RNIC_CM_REQUEST_FLAGS_AT, RNIC_CM_TELL);
	error = cm_rpc_call(&rpc);
	if (!error)
		error = channel_queue_answer(to_channel(public->channel), &rpc);
	return error ? rdma_seterrno(error) : cm_complete(id);
}

EXPORT int rdma_listen(struct rdma_cm_id *public, int backlog)
{
	struct cm_id *id = to_id(public);
	struct cm_rpc rpc;
	int error;

	cm_rpc_init(&rpc, RNIC_CM_LISTEN, id);
	cm_put32(&rpc, RNIC_CM_REQUEST_VALUE_AT, backlog > 0 ? (uint32_t)backlog : 0);
	error = cm_rpc_call(&rpc);
	if (error)
		return rdma_seterrno(error);
	cm_save_route(id, &rpc);
	return 0;
}

/* Put this side's parameters into a request. The ID's queue pair takes precedence over the program's numbers. */
static void put_conn_param(struct cm_id *id, struct cm_rpc *rpc, const struct rdma_conn_param *param)
{
	static const struct rdma_conn_param usual = { .responder_resources = RDMA_MAX_RESP_RES,
						      .initiator_depth = RDMA_MAX_INIT_DEPTH,
						      .retry_count = 7,
						      .rnr_retry_count = 7 };
	uint8_t max = id->device ? id->device->max_rd_atomic : 0;
	struct ibv_qp *qp = id->public.qp;

	if (!param)
		param = &usual;
	id->responder_resources = min_u8(param->responder_resources, max);
	id->initiator_depth = min_u8(param->initiator_depth, max);
	cm_put32(rpc, RNIC_CM_REQUEST_QPN_AT, qp ? qp->qp_num : param->qp_num);
	cm_put32(rpc, RNIC_CM_REQUEST_QKEY_AT, id->public.qp_type == IBV_QPT_UD ? RDMA_UDP_QKEY : 0);
	rpc->request[RNIC_CM_REQUEST_RESPONDER_RESOURCES_AT] = id->responder_resources;
	rpc->request[RNIC_CM_REQUEST_INITIATOR_DEPTH_AT] = id->initiator_depth;
	rpc->request[RNIC_CM_REQUEST_FLOW_CONTROL_AT] = param->flow_control;
	rpc->request[RNIC_CM_REQUEST_RETRY_COUNT_AT] = param->retry_count;
	rpc->request[RNIC_CM_REQUEST_RNR_RETRY_COUNT_AT] = param->rnr_retry_count;
	rpc->request[RNIC_CM_REQUEST_SRQ_AT] = qp ? qp->srq != NULL : param->srq;
	rpc->request[RNIC_CM_REQUEST_TOS_AT] = id->tos;
	rpc->request[RNIC_CM_REQUEST_ACK_TIMEOUT_AT] = id->ack_timeout;
	cm_rpc_private_data(rpc, param->private_data, param->private_data_len);
}

EXPORT int rdma_connect(struct rdma_cm_id *public, struct rdma_conn_param *param)
{
	struct cm_id *id = to_id(public);
	struct cm_rpc rpc;
	int error;

	cm_rpc_init(&rpc, RNIC_CM_CONNECT, id);
	put_conn_param(id, &rpc, param);
	error = cm_rpc_call(&rpc);
	return error ? rdma_seterrno(error) : cm_complete(id);
}

EXPORT int rdma_establish(struct rdma_cm_id *public)
{
	if (public->qp)
		return rdma_seterrno(EINVAL);
	return rdma_seterrno(cm_simple_request(to_id(public), RNIC_CM_ESTABLISH));
}

EXPORT int rdma_accept(struct rdma_cm_id *public, struct rdma_conn_param *param)
{
	struct cm_id *id = to_id(public);
	uint8_t asked_resources = id->responder_resources, asked_depth = id->initiator_depth;
	struct cm_rpc rpc;
	int error = 0;

	if (!id->passive)
		return rdma_seterrno(why_bad_value(EINVAL, "rdma_accept", "an ID that no connection request brought"));
	cm_rpc_init(&rpc, RNIC_CM_ACCEPT, id);
	put_conn_param(id, &rpc, param);
	if (!param) { /* as the peer requested */
		id->responder_resources = min_u8(id->responder_resources, asked_resources);
		id->initiator_depth = min_u8(id->initiator_depth, asked_depth);
		rpc.request[RNIC_CM_REQUEST_RESPONDER_RESOURCES_AT] = id->responder_resources;
		rpc.request[RNIC_CM_REQUEST_INITIATOR_DEPTH_AT] = id->initiator_depth;
	}
	if (public->qp && public->qp_type != IBV_QPT_UD)
		error = cm_modify_qp_rts(id, id->responder_resources, id->initiator_depth);
	if (!error)
		error = cm_rpc_call(&rpc);
	if (error) {
		cm_modify_qp_err(id);
		return rdma_seterrno(error);
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
	struct cm_rpc rpc;

	cm_rpc_init(&rpc, RNIC_CM_REJECT, to_id(id));
	cm_rpc_private_data(&rpc, data, bytes);
	return rdma_seterrno(cm_rpc_call(&rpc));
}

/* ---- enhanced connection establishment (ECE): no options */

EXPORT int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	return rdma_seterrno(id->qp || !ece ? EINVAL : 0);
}

EXPORT int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (id->qp || !ece)
		return rdma_seterrno(EINVAL);
	memset(ece, 0, sizeof *ece);
	return 0;
}

EXPORT int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t bytes)
{
	enum { VENDOR_OPTION_NOT_SUPPORTED = 35 };
	struct cm_rpc rpc;

	cm_rpc_init(&rpc, RNIC_CM_REJECT, to_id(id));
	cm_put32(&rpc, RNIC_CM_REQUEST_STATUS_AT, VENDOR_OPTION_NOT_SUPPORTED);
	cm_rpc_private_data(&rpc, data, bytes);
	return rdma_seterrno(cm_rpc_call(&rpc));
}

/* ---- ending */

EXPORT int rdma_disconnect(struct rdma_cm_id *public)
{
	struct cm_id *id = to_id(public);
	int error;

	cm_modify_qp_err(id);
	error = cm_simple_request(id, RNIC_CM_DISCONNECT);
	if (error)
		return rdma_seterrno(error);
	return cm_complete(id);
}

EXPORT int rdma_notify(struct rdma_cm_id *id, int event)
{
	enum { COMM_EST = 4 };

	if (event != COMM_EST)
		return rdma_seterrno(EINVAL);
	return rdma_seterrno(cm_simple_request(to_id(id), RNIC_CM_NOTIFY));
}

/* ---- multicast */

static int join_multicast(struct rdma_cm_id *public, const struct sockaddr *address, void *context)
{
	struct cm_id *id = to_id(public);
	struct cm_multicast *group;
	struct cm_rpc rpc;
	uint64_t cookie;
	uint16_t port;
	int error;

	if (!address || !cm_addrlen(address))
		return rdma_seterrno(why_bad_value(EINVAL, "rdma_join_multicast", family_problem));
	group = calloc(1, sizeof *group);
	if (!group)
		return rdma_seterrno(ENOMEM);
	error = cm_gid_of(address, &group->gid, &port);
	memcpy(&group->address, address, cm_addrlen(address));
	group->context = context;
	group->next = id->groups;
	id->groups = group;
	cm_rpc_init(&rpc, RNIC_CM_JOIN, id);
	cookie = (uintptr_t)group;
	memcpy(rpc.request + RNIC_CM_REQUEST_CONTEXT_AT, &cookie, sizeof cookie);
	if (!error)
		error = put_address(&rpc, address, RNIC_CM_REQUEST_DST_AT, RNIC_CM_REQUEST_DST_PORT_AT);
	if (!error)
		error = cm_rpc_call(&rpc);
	if (error) {
		id->groups = group->next;
		free(group);
		return rdma_seterrno(error);
	}
	return cm_complete(id);
}

EXPORT int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *address, void *context)
{
	return join_multicast(id, address, context);
}

EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	if (!(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS))
		return rdma_seterrno(EINVAL);
	/* A send-only member may be attached as well: it receives nothing without posted receives. */
	return join_multicast(id, attr->addr, context);
}

EXPORT int rdma_leave_multicast(struct rdma_cm_id *public, struct sockaddr *address)
{
	struct cm_id *id = to_id(public);
	socklen_t bytes = address ? cm_addrlen(address) : 0;

	for (struct cm_multicast **at = &id->groups; *at; at = &(*at)->next) {
		struct cm_multicast *group = *at;

		if (!bytes || memcmp(&group->address, address, bytes) != 0)
			continue;
		*at = group->next;
		if (group->attached && public->qp)
			ibv_detach_mcast(public->qp, &group->gid, 0);
		cm_simple_request(id, RNIC_CM_LEAVE);
		free(group);
		return 0;
	}
	return rdma_seterrno(EADDRNOTAVAIL);
}

/* ---- options */

EXPORT int rdma_set_option(struct rdma_cm_id *public, int level, int name, void *value, size_t bytes)
{
	struct cm_id *id = to_id(public);

	if (level == RDMA_OPTION_IB && name == RDMA_OPTION_IB_PATH)
		return 0; /* there is one path, by its addresses */
	if (level != RDMA_OPTION_ID)
		return rdma_seterrno(ENOSYS);
	switch (name) {
	case RDMA_OPTION_ID_TOS:
		if (bytes != 1)
			return rdma_seterrno(EINVAL);
		id->tos = *(uint8_t *)value;
		return 0;
	case RDMA_OPTION_ID_REUSEADDR:
		if (bytes != sizeof(int))
			return rdma_seterrno(EINVAL);
		id->reuse = *(int *)value != 0;
		return 0;
	case RDMA_OPTION_ID_AFONLY:
		if (bytes != sizeof(int))
			return rdma_seterrno(EINVAL);
		id->afonly = *(int *)value != 0;
		id->afonly_set = true;
		return 0;
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (bytes != 1 || *(uint8_t *)value > 31)
			return rdma_seterrno(EINVAL);
		id->ack_timeout = *(uint8_t *)value;
		return 0;
	default:
		return rdma_seterrno(ENOSYS);
	}
}
