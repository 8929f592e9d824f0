/* IDs and their events. */
#include "rdmacm_id.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_address.h"
#include "rdmacm_devices.h"
#include "rdmacm_qp.h"
#include "rdmacm_rpc.h"

enum { BUCKETS = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the table of IDs, their events */
static pthread_cond_t acknowledgement = PTHREAD_COND_INITIALIZER;
static struct cm_id *table[BUCKETS];

struct cm_event {
	struct rdma_cm_event public;
	struct cm_id *owner; /* its ID, or the listening one, until the event is acknowledged */
	uint8_t private_data[256];
};

/* ---- fork: the child starts over */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void parent_after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void child_after_fork(void)
{
	memset(table, 0, sizeof table);
	pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, parent_after_fork, child_after_fork);
}

void cm_save_route(struct cm_id *id, const struct cm_rpc *rpc)
{
	struct rdma_addr *address = &id->public.route.addr;
	int family = address->src_addr.sa_family;
	union ibv_gid src, dst;
	struct cm_device *device;

	memcpy(src.raw, rpc->record + RNIC_CM_RECORD_SRC_AT, 16);
	memcpy(dst.raw, rpc->record + RNIC_CM_RECORD_DST_AT, 16);
	cm_address_of(&src, cm_get16(rpc, RNIC_CM_RECORD_SRC_PORT_AT), family, &address->src_storage);
	if (!cm_gid_is_any(&dst))
		cm_address_of(&dst, cm_get16(rpc, RNIC_CM_RECORD_DST_PORT_AT), family, &address->dst_storage);
	address->addr.ibaddr.sgid = src;
	address->addr.ibaddr.dgid = dst;
	address->addr.ibaddr.pkey = 0xFFFF;
	if (id->device || !rpc->record[RNIC_CM_RECORD_DEVICE_AT])
		return;
	device = cm_device_by_gid(&src, true);
	if (!device)
		return;
	id->device = device;
	id->public.verbs = device->verbs;
	id->public.pd = cm_device_pd(device);
	id->public.port_num = 1;
}

/* ---- IDs */

static void insert_id(struct cm_id *id)
{
	pthread_mutex_lock(&lock);
	id->next = table[id->number % BUCKETS];
	table[id->number % BUCKETS] = id;
	pthread_mutex_unlock(&lock);
}

static void remove_id(struct cm_id *id)
{
	for (struct cm_id **at = &table[id->number % BUCKETS]; *at; at = &(*at)->next) {
		if (*at == id) {
			*at = id->next;
			return;
		}
	}
}

static struct cm_id *lookup_id(uint32_t number)
{
	struct cm_id *id = table[number % BUCKETS];

	while (id && id->number != number)
		id = id->next;
	return id;
}

static struct cm_id *new_id(struct rdma_event_channel *channel, void *context, int port_space, int qp_type)
{
	struct cm_id *id = calloc(1, sizeof *id);

	if (!id)
		return NULL;
	id->public.channel = channel;
	id->public.context = context;
	id->public.ps = port_space;
	id->public.qp_type = qp_type;
	return id;
}

static struct rdma_event_channel *create_own_channel(struct cm_channel **own)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	*own = channel ? to_channel(channel) : NULL;
	return channel;
}

int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **result, void *context, int port_space,
		 int qp_type)
{
	struct cm_channel *own = NULL;
	struct cm_rpc rpc;
	struct cm_id *id;
	int error;

	if (!channel)
		channel = create_own_channel(&own);
	if (!channel)
		return -1;
	id = new_id(channel, context, port_space, qp_type);
	error = id ? 0 : ENOMEM;
	if (id) {
		id->own = own;
		cm_rpc_init(&rpc, RNIC_CM_CREATE, NULL);
		cm_put32(&rpc, RNIC_CM_REQUEST_CHANNEL_AT, to_channel(channel)->number);
		cm_put32(&rpc, RNIC_CM_REQUEST_PORT_SPACE_AT, (uint32_t)port_space);
		rpc.request[RNIC_CM_REQUEST_QP_TYPE_AT] = (uint8_t)qp_type;
		error = cm_rpc_call(&rpc);
	}
	if (error) {
		free(id);
		if (own)
			rdma_destroy_event_channel(channel);
		return rdma_seterrno(error);
	}
	id->number = cm_get32(&rpc, RNIC_CM_RECORD_ID_AT);
	insert_id(id);
	*result = &id->public;
	return 0;
}

EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, int space)
{
	int type = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;

	return cm_create_id(channel, id, context, space, type);
}

void cm_drop_event(struct cm_id *id)
{
	struct rdma_cm_event *event = id->public.event;

	id->public.event = NULL;
	if (event)
		rdma_ack_cm_event(event);
}

struct id_match { /* selects the queued events of an ID */
	uint32_t number;
	struct cm_channel *to; /* where its events go, or NULL */
	uint32_t moved;
};

/* Destroy the ID of a connection that is never reported: its listener is gone. */
static void destroy_unseen(uint32_t number)
{
	struct cm_rpc rpc;

	cm_rpc_init(&rpc, RNIC_CM_DESTROY, NULL);
	cm_put32(&rpc, RNIC_CM_REQUEST_ID_AT, number);
	cm_rpc_call(&rpc);
}

static bool belongs_to_id(const uint8_t *record, void *with)
{
	const struct id_match *match = with;
	uint32_t number = record_get32(record, RNIC_CM_RECORD_ID_AT);

	if (record_get32(record, RNIC_CM_RECORD_EVENT_AT) == RDMA_CM_EVENT_CONNECT_REQUEST &&
	    record_get32(record, RNIC_CM_RECORD_LISTEN_ID_AT) == match->number) {
		destroy_unseen(number);
		return true;
	}
	return number == match->number;
}

static bool move_to_channel(const uint8_t *record, void *with)
{
	struct id_match *match = with;

	if (record_get32(record, RNIC_CM_RECORD_ID_AT) != match->number || channel_queue(match->to, record))
		return false;
	match->moved++;
	return true;
}

/* Wait until the program has acknowledged all events of an ID: each points to it. */
static void await_events_completed(struct cm_id *id)
{
	pthread_mutex_lock(&lock);
	while (id->events_completed < id->events_reported)
		pthread_cond_wait(&acknowledgement, &lock);
	pthread_mutex_unlock(&lock);
}

EXPORT int rdma_destroy_id(struct rdma_cm_id *public)
{
	struct cm_id *id = to_id(public);
	struct cm_channel *channel = to_channel(public->channel);
	struct id_match match = { .number = id->number };

	cm_drop_event(id);
	cm_simple_request(id, RNIC_CM_DESTROY);
	pthread_mutex_lock(&channel->lock);
	channel_filter(channel, belongs_to_id, &match);
	pthread_mutex_unlock(&channel->lock);
	pthread_mutex_lock(&lock);
	remove_id(id);
	pthread_mutex_unlock(&lock);
	await_events_completed(id);
	while (id->groups) {
		struct cm_multicast *group = id->groups;

		id->groups = group->next;
		if (group->attached && public->qp)
			ibv_detach_mcast(public->qp, &group->gid, 0);
		free(group);
	}
	if (id->own)
		rdma_destroy_event_channel(&id->own->public);
	free(id->qp_attr);
	free(id);
	return 0;
}

EXPORT int rdma_migrate_id(struct rdma_cm_id *public, struct rdma_event_channel *channel)
{
	struct cm_id *id = to_id(public);
	struct cm_channel *own = NULL, *before = id->own, *from = to_channel(public->channel);
	struct id_match match = { .number = id->number };
	struct cm_rpc rpc;
	int error;

	if (!channel)
		channel = create_own_channel(&own);
	if (!channel)
		return -1;
	if (before)
		cm_drop_event(id);
	cm_rpc_init(&rpc, RNIC_CM_MIGRATE, id);
	cm_put32(&rpc, RNIC_CM_REQUEST_CHANNEL_AT, to_channel(channel)->number);
	error = cm_rpc_call(&rpc);
	if (error) {
		if (own)
			rdma_destroy_event_channel(channel);
		return rdma_seterrno(error);
	}
	match.to = to_channel(channel);
	if (match.to != from) {
		/* Lock in the order of addresses, so that two threads that swap IDs do not deadlock. */
		struct cm_channel *low = match.to < from ? match.to : from, *high = match.to < from ? from : match.to;

		pthread_mutex_lock(&low->lock);
		pthread_mutex_lock(&high->lock);
		channel_filter(from, move_to_channel, &match);
		pthread_mutex_unlock(&high->lock);
		pthread_mutex_unlock(&low->lock);
		while (match.moved--)
			channel_signal(match.to);
	}
	await_events_completed(id);
	public->channel = channel;
	id->own = own;
	if (before)
		rdma_destroy_event_channel(&before->public);
	return 0;
}

/* ---- events */

/* Make the ID of a connection request: from this event on it belongs to the program. */
static int process_conn_req(struct cm_event *event, struct cm_id *listening, const struct cm_rpc *rpc)
{
	struct cm_id *id = new_id(listening->public.channel, listening->public.context, listening->public.ps,
				  rpc->record[RNIC_CM_RECORD_QP_TYPE_AT]);

	if (!id)
		return ENOMEM;
	id->number = cm_get32(rpc, RNIC_CM_RECORD_ID_AT);
	id->passive = true;
	id->tos = rpc->record[RNIC_CM_RECORD_TOS_AT];
	id->responder_resources = rpc->record[RNIC_CM_RECORD_RESPONDER_RESOURCES_AT];
	id->initiator_depth = rpc->record[RNIC_CM_RECORD_INITIATOR_DEPTH_AT];
	memcpy(id->peer, rpc->record, sizeof id->peer);
	insert_id(id);
	cm_save_route(id, rpc);
	event->public.listen_id = &listening->public;
	event->public.id = &id->public;
	return 0;
}

static void fill_path(struct cm_id *id, const struct cm_rpc *rpc)
{
	struct ibv_sa_path_rec *path = &id->path;

	memset(path, 0, sizeof *path);
	path->dgid = id->public.route.addr.addr.ibaddr.dgid;
	path->sgid = id->public.route.addr.addr.ibaddr.sgid;
	path->hop_limit = 64;
	path->traffic_class = id->tos;
	path->reversible = 1;
	path->numb_path = 1;
	path->pkey = 0xFFFF;
	path->mtu_selector = path->rate_selector = path->packet_life_time_selector = 2; /* exactly */
	path->mtu = rpc->record[RNIC_CM_RECORD_PATH_MTU_AT];
	path->rate = 3; /* 10 Gb/s */
	path->packet_life_time = RNIC_CM_PACKET_LIFETIME;
	id->public.route.path_rec = path;
	id->public.route.num_paths = 1;
}

static void fill_ud(struct cm_event *event, const union ibv_gid *gid, uint32_t qpn, uint32_t qkey, uint8_t tos)
{
	struct rdma_ud_param *ud = &event->public.param.ud;

	ud->qp_num = qpn;
	ud->qkey = qkey;
	ud->ah_attr.is_global = 1;
	ud->ah_attr.port_num = 1;
	ud->ah_attr.grh.dgid = *gid;
	ud->ah_attr.grh.hop_limit = 64;
	ud->ah_attr.grh.traffic_class = tos;
	if (event->public.id && event->public.id->verbs)
		ud->ah_attr.grh.sgid_index = rnic_own_gid_index(event->public.id->verbs);
}

static void process_join(struct cm_event *event, struct cm_id *id, const struct cm_rpc *rpc)
{
	struct cm_multicast *group = id->groups;
	uint64_t context;

	memcpy(&context, rpc->record + RNIC_CM_RECORD_CONTEXT_AT, 8);
	while (group && (uint64_t)(uintptr_t)group != context)
		group = group->next;
	if (!group) {
		event->public.event = RDMA_CM_EVENT_MULTICAST_ERROR;
		event->public.status = -EINVAL;
		return;
	}
	fill_ud(event, &group->gid, cm_get32(rpc, RNIC_CM_RECORD_QPN_AT), cm_get32(rpc, RNIC_CM_RECORD_QKEY_AT),
		id->tos);
	event->public.param.ud.private_data = group->context;
	if (id->public.qp) {
		int error = ibv_attach_mcast(id->public.qp, &group->gid, 0);

		group->attached = !error;
		if (error) {
			event->public.event = RDMA_CM_EVENT_MULTICAST_ERROR;
			event->public.status = -error;
		}
	}
}

/* Make the queue pair ready before the peer is told: the peer accepted, and its own queue pair is ready. */
static void process_conn_resp(struct cm_event *event, struct cm_id *id)
{
	int error;

	if (!id->public.qp)
		return;
	/* Allow as many concurrent READs and atomics as both sides do. */
	error = cm_modify_qp_rts(id, min_u8(id->responder_resources, event->public.param.conn.responder_resources),
				 min_u8(id->initiator_depth, event->public.param.conn.initiator_depth));
	if (!error)
		error = cm_simple_request(id, RNIC_CM_ESTABLISH);
	if (error) {
		cm_modify_qp_err(id);
		cm_simple_request(id, RNIC_CM_REJECT);
		event->public.event = RDMA_CM_EVENT_CONNECT_ERROR;
		event->public.status = -error;
	} else {
		event->public.event = RDMA_CM_EVENT_ESTABLISHED;
	}
}

/* Make an event of a record of the connection manager. Returns EAGAIN if its ID is gone. */
static int process_event(struct cm_event *event, const struct cm_rpc *rpc)
{
	uint32_t number = cm_get32(rpc, RNIC_CM_RECORD_ID_AT), bytes = cm_get32(rpc, RNIC_CM_RECORD_PRIVATE_BYTES_AT);
	struct rdma_conn_param *conn = &event->public.param.conn;
	struct cm_id *id;

	event->public.event = (int)cm_get32(rpc, RNIC_CM_RECORD_EVENT_AT);
	event->public.status = (int)cm_get32(rpc, RNIC_CM_RECORD_STATUS_AT);
	if (event->public.event == RDMA_CM_EVENT_CONNECT_REQUEST)
		number = cm_get32(rpc, RNIC_CM_RECORD_LISTEN_ID_AT);
	pthread_mutex_lock(&lock);
	id = lookup_id(number);
	if (id)
		id->events_reported++;
	pthread_mutex_unlock(&lock);
	if (!id) {
		if (event->public.event == RDMA_CM_EVENT_CONNECT_REQUEST)
			destroy_unseen(cm_get32(rpc, RNIC_CM_RECORD_ID_AT));
		return EAGAIN;
	}
	event->owner = id;
	event->public.id = &id->public;
	if (bytes > sizeof event->private_data)
		bytes = sizeof event->private_data;
	memcpy(event->private_data, rpc->record + RNIC_CM_RECORD_PRIVATE_AT, bytes);
	switch (event->public.event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		if (process_conn_req(event, id, rpc))
			return ENOMEM;
		id = to_id(event->public.id);
		if (id->public.qp_type == IBV_QPT_UD)
			break;
		/* fall through */
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		conn->responder_resources = rpc->record[RNIC_CM_RECORD_RESPONDER_RESOURCES_AT];
		conn->initiator_depth = rpc->record[RNIC_CM_RECORD_INITIATOR_DEPTH_AT];
		conn->flow_control = rpc->record[RNIC_CM_RECORD_FLOW_CONTROL_AT];
		conn->retry_count = rpc->record[RNIC_CM_RECORD_RETRY_COUNT_AT];
		conn->rnr_retry_count = rpc->record[RNIC_CM_RECORD_RNR_RETRY_COUNT_AT];
		conn->srq = rpc->record[RNIC_CM_RECORD_SRQ_AT];
		conn->qp_num = cm_get32(rpc, RNIC_CM_RECORD_QPN_AT);
		break;
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		cm_save_route(id, rpc);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		fill_path(id, rpc);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (id->public.qp_type == IBV_QPT_UD) {
			id->remote_qpn = cm_get32(rpc, RNIC_CM_RECORD_QPN_AT);
			id->remote_qkey = cm_get32(rpc, RNIC_CM_RECORD_QKEY_AT);
			fill_ud(event, &id->public.route.addr.addr.ibaddr.dgid, id->remote_qpn, id->remote_qkey,
				id->tos);
		}
		break;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		process_join(event, id, rpc);
		return 0;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		cm_modify_qp_err(id);
		break;
	default:
		break;
	}
	conn->private_data = bytes ? event->private_data : NULL; /* and so of ud: both begin with it */
	conn->private_data_len = (uint8_t)bytes;
	if (event->public.event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
		memcpy(id->peer, rpc->record, sizeof id->peer);
		process_conn_resp(event, id);
	}
	return 0;
}

static void free_event(struct cm_event *event)
{
	if (event->owner) {
		pthread_mutex_lock(&lock);
		event->owner->events_completed++;
		pthread_cond_broadcast(&acknowledgement);
		pthread_mutex_unlock(&lock);
	}
	free(event);
}

EXPORT int rdma_get_cm_event(struct rdma_event_channel *public, struct rdma_cm_event **result)
{
	struct cm_channel *channel = to_channel(public);

	for (;;) {
		struct cm_event *event;
		struct cm_rpc rpc;
		int error = channel_await(channel);

		if (!error)
			error = channel_next(channel, &rpc);
		if (error)
			return rdma_seterrno(error);
		if (cm_get32(&rpc, RNIC_CM_RECORD_EVENT_AT) == RNIC_CM_NO_EVENT)
			continue; /* the event moved to another channel, or its ID is gone */
		event = calloc(1, sizeof *event);
		if (!event)
			return rdma_seterrno(ENOMEM);
		error = process_event(event, &rpc);
		if (!error) {
			*result = &event->public;
			return 0;
		}
		free_event(event);
		if (error != EAGAIN)
			return rdma_seterrno(error);
	}
}

EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	if (!event)
		return rdma_seterrno(EINVAL);
	free_event((struct cm_event *)(void *)event);
	return 0;
}

int cm_complete(struct cm_id *id)
{
	struct rdma_cm_event *event;

	if (!id->own)
		return 0;
	cm_drop_event(id);
	if (rdma_get_cm_event(id->public.channel, &event))
		return -1;
	id->public.event = event;
	if (event->status) {
		if (event->event == RDMA_CM_EVENT_REJECTED)
			return rdma_seterrno(ECONNREFUSED);
		return rdma_seterrno(event->status < 0 ? -event->status : EIO);
	}
	return 0;
}

EXPORT const char *rdma_event_str(int event)
{
	static const char *const names[] = {
		"RDMA_CM_EVENT_ADDR_RESOLVED",	"RDMA_CM_EVENT_ADDR_ERROR",	 "RDMA_CM_EVENT_ROUTE_RESOLVED",
		"RDMA_CM_EVENT_ROUTE_ERROR",	"RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
		"RDMA_CM_EVENT_CONNECT_ERROR",	"RDMA_CM_EVENT_UNREACHABLE",	 "RDMA_CM_EVENT_REJECTED",
		"RDMA_CM_EVENT_ESTABLISHED",	"RDMA_CM_EVENT_DISCONNECTED",	 "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
		"RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};

	return event >= 0 && (size_t)event < COUNT(names) ? names[event] : "UNKNOWN EVENT";
}
