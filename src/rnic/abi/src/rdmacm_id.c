/* librdmacm: event channels, IDs and their events. */
#define _GNU_SOURCE
#include "io/eventfd.h"
#include "rdmacm.h"

#include <fcntl.h>
#include <unistd.h>

enum { TABLE_SLOTS = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the table of IDs, their events */
static pthread_cond_t acknowledgement = PTHREAD_COND_INITIALIZER;
static struct cm_id *table[TABLE_SLOTS];

/* ---- fork: nothing of the parent's works in the child, which begins anew */

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

/* What the connection manager says of an ID: addresses, and the device that they lead to. */
void cm_adopt(struct cm_id *id, const struct cm_said *said)
{
	struct rdma_addr *address = &id->public.route.addr;
	int family = address->src_addr.sa_family;
	union ibv_gid src, dst;
	struct cm_device *device;

	memcpy(src.raw, said->record + RNIC_CM_RECORD_SRC_AT, 16);
	memcpy(dst.raw, said->record + RNIC_CM_RECORD_DST_AT, 16);
	cm_address_of(&src, get16(said, RNIC_CM_RECORD_SRC_PORT_AT), family, &address->src_storage);
	if (!cm_nowhere(&dst))
		cm_address_of(&dst, get16(said, RNIC_CM_RECORD_DST_PORT_AT), family, &address->dst_storage);
	address->addr.ibaddr.sgid = src;
	address->addr.ibaddr.dgid = dst;
	address->addr.ibaddr.pkey = 0xFFFF;
	if (id->device || !said->record[RNIC_CM_RECORD_DEVICE_AT])
		return;
	device = cm_device_at(&src, true);
	if (!device)
		return;
	id->device = device;
	id->public.verbs = device->verbs;
	id->public.pd = cm_device_pd(device);
	id->public.port_num = 1;
}

/* ---- event channels: what the NIC process told waits there or, where it told more than was asked for, here */

static struct cm_channel *channel_of(struct rdma_event_channel *public)
{
	return (struct cm_channel *)(void *)public;
}

static struct cm_waiting *take_waiting(struct cm_channel *channel)
{
	struct cm_waiting *waiting = channel->first;

	if (waiting) {
		channel->first = waiting->next;
		if (!channel->first)
			channel->last = &channel->first;
	}
	return waiting;
}

static int wait_there(struct cm_channel *channel, const uint8_t *record)
{
	struct cm_waiting *waiting = malloc(sizeof *waiting);

	if (!waiting)
		return ENOMEM;
	waiting->next = NULL;
	memcpy(waiting->record, record, sizeof waiting->record);
	*channel->last = waiting;
	channel->last = &waiting->next;
	return 0;
}

/* One more event for whoever reads, or polls for, the channel's descriptor. */
static void ring(struct cm_channel *channel)
{
	uint64_t one = 1;

	while (write(channel->public.fd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

/* An answer that is an event of its ID: it waits on the ID's channel, as if the NIC process had told it there. */
int cm_keep_event(struct cm_id *id, struct cm_said *said)
{
	struct cm_channel *channel = channel_of(id->public.channel);
	int error;

	pthread_mutex_lock(&channel->lock);
	error = wait_there(channel, said->record);
	pthread_mutex_unlock(&channel->lock);
	if (!error)
		ring(channel);
	return error;
}

/* The next event of a channel, which its descriptor has told; RNIC_CM_NO_EVENT where it is gone by now. */
static int next_record(struct cm_channel *channel, struct cm_said *said)
{
	struct cm_waiting *waiting;
	int error = 0;

	pthread_mutex_lock(&channel->lock);
	waiting = take_waiting(channel);
	if (waiting) {
		memcpy(said->record, waiting->record, sizeof said->record);
		free(waiting);
	} else {
		cm_begin(said, RNIC_CM_GET_EVENT, NULL);
		put32(said, RNIC_CM_REQUEST_CHANNEL_AT, channel->number);
		put32(said, RNIC_CM_REQUEST_VALUE_AT, RNIC_CM_MOST_EVENTS);
		error = cm_ask(said);
		for (size_t i = 0; i < said->more_count && !error; i++)
			error = wait_there(channel, said->more + i * sizeof said->record);
		free(said->more);
	}
	pthread_mutex_unlock(&channel->lock);
	return error;
}

/* Has what waits be looked at by `leave`: true, and it is taken away, with what the descriptor says of it: who polls that
 * would wait in vain for an event. */
static void sift(struct cm_channel *channel, bool (*leaves)(const uint8_t *record, void *with), void *with)
{
	struct cm_waiting **at = &channel->first;

	while (*at) {
		struct cm_waiting *waiting = *at;

		if (leaves(waiting->record, with)) {
			*at = waiting->next;
			free(waiting);
			eventfd_drain(channel->public.fd);
		} else {
			at = &waiting->next;
		}
	}
	channel->last = at;
}

EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *channel = calloc(1, sizeof *channel);
	struct cm_said said;
	int error;

	if (!channel)
		return fail_null(ENOMEM);
	error = cm_request(NULL, RNIC_CM_CHANNEL, &said);
	if (!error && said.fd < 0)
		error = EMFILE;
	if (error) {
		free(channel);
		return fail_null(error);
	}
	channel->number = get32(&said, RNIC_CM_RECORD_ID_AT);
	channel->public.fd = said.fd;
	channel->last = &channel->first;
	pthread_mutex_init(&channel->lock, NULL);
	/* The NIC process does not wait when it writes; a program that waits for events has them come. */
	fcntl(said.fd, F_SETFL, fcntl(said.fd, F_GETFL) & ~O_NONBLOCK);
	return &channel->public;
}

EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *public)
{
	struct cm_channel *channel = (struct cm_channel *)(void *)public;
	struct cm_said said;

	cm_begin(&said, RNIC_CM_CLOSE_CHANNEL, NULL);
	put32(&said, RNIC_CM_REQUEST_CHANNEL_AT, channel->number);
	cm_ask(&said);
	close(channel->public.fd);
	while (channel->first)
		free(take_waiting(channel));
	pthread_mutex_destroy(&channel->lock);
	free(channel);
}

/* ---- IDs */

static void insert(struct cm_id *id)
{
	pthread_mutex_lock(&lock);
	id->next = table[id->number % TABLE_SLOTS];
	table[id->number % TABLE_SLOTS] = id;
	pthread_mutex_unlock(&lock);
}

static void take_out(struct cm_id *id)
{
	for (struct cm_id **at = &table[id->number % TABLE_SLOTS]; *at; at = &(*at)->next) {
		if (*at == id) {
			*at = id->next;
			return;
		}
	}
}

static struct cm_id *find(uint32_t number)
{
	struct cm_id *id = table[number % TABLE_SLOTS];

	while (id && id->number != number)
		id = id->next;
	return id;
}

static struct cm_id *new_id(struct rdma_event_channel *channel, void *context, int space, int qp_type)
{
	struct cm_id *id = calloc(1, sizeof *id);

	if (!id)
		return NULL;
	id->public.channel = channel;
	id->public.context = context;
	id->public.ps = space;
	id->public.qp_type = qp_type;
	return id;
}

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **result, void *context, int space,
		     int qp_type)
{
	struct cm_channel *own = NULL;
	struct cm_said said;
	struct cm_id *id;
	int error;

	if (!channel) {
		channel = rdma_create_event_channel();
		if (!channel)
			return -1;
		own = (struct cm_channel *)(void *)channel;
	}
	id = new_id(channel, context, space, qp_type);
	error = id ? 0 : ENOMEM;
	if (id) {
		id->own = own;
		cm_begin(&said, RNIC_CM_CREATE, NULL);
		put32(&said, RNIC_CM_REQUEST_CHANNEL_AT, ((struct cm_channel *)(void *)channel)->number);
		put32(&said, RNIC_CM_REQUEST_PORT_SPACE_AT, (uint32_t)space);
		said.request[RNIC_CM_REQUEST_QP_TYPE_AT] = (uint8_t)qp_type;
		error = cm_ask(&said);
	}
	if (error) {
		free(id);
		if (own)
			rdma_destroy_event_channel(channel);
		return minus(error);
	}
	id->number = get32(&said, RNIC_CM_RECORD_ID_AT);
	insert(id);
	*result = &id->public;
	return 0;
}

EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, int space)
{
	int type = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;

	return create_id(channel, id, context, space, type);
}

/* An event that a call of its own waited for and kept. */
void cm_drop_event(struct cm_id *id)
{
	struct rdma_cm_event *event = id->public.event;

	id->public.event = NULL;
	if (event)
		rdma_ack_cm_event(event);
}

struct of_id {
	uint32_t number;
	struct cm_channel *to; /* where its events go, or NULL */
	uint32_t moved;
};

static uint32_t word_of(const uint8_t *record, unsigned at)
{
	uint32_t value;

	memcpy(&value, record + at, 4);
	return value;
}

/* A connection that nobody will hear of, since who listened for it is gone. */
static void leave_unseen(uint32_t number)
{
	struct cm_said said;

	cm_begin(&said, RNIC_CM_DESTROY, NULL);
	put32(&said, RNIC_CM_REQUEST_ID_AT, number);
	cm_ask(&said);
}

static bool goes_with(const uint8_t *record, void *with)
{
	const struct of_id *of = with;
	uint32_t number = word_of(record, RNIC_CM_RECORD_ID_AT);

	if (word_of(record, RNIC_CM_RECORD_EVENT_AT) == RDMA_CM_EVENT_CONNECT_REQUEST &&
	    word_of(record, RNIC_CM_RECORD_LISTEN_ID_AT) == of->number) {
		leave_unseen(number);
		return true;
	}
	return number == of->number;
}

static bool moves(const uint8_t *record, void *with)
{
	struct of_id *of = with;

	if (word_of(record, RNIC_CM_RECORD_ID_AT) != of->number || wait_there(of->to, record))
		return false;
	of->moved++;
	return true;
}

/* Until the program has acknowledged what it was told: an event points to its ID. */
static void wait_acknowledged(struct cm_id *id)
{
	pthread_mutex_lock(&lock);
	while (id->acknowledged < id->told)
		pthread_cond_wait(&acknowledgement, &lock);
	pthread_mutex_unlock(&lock);
}

EXPORT int rdma_destroy_id(struct rdma_cm_id *public)
{
	struct cm_id *id = cm_of(public);
	struct cm_channel *channel = channel_of(public->channel);
	struct of_id of = { .number = id->number };

	cm_drop_event(id);
	cm_simple(id, RNIC_CM_DESTROY);
	pthread_mutex_lock(&channel->lock);
	sift(channel, goes_with, &of);
	pthread_mutex_unlock(&channel->lock);
	pthread_mutex_lock(&lock);
	take_out(id);
	pthread_mutex_unlock(&lock);
	wait_acknowledged(id);
	while (id->groups) {
		struct group *group = id->groups;

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
	struct cm_id *id = cm_of(public);
	struct cm_channel *own = NULL, *before = id->own, *from = channel_of(public->channel);
	struct of_id of = { .number = id->number };
	struct cm_said said;
	int error;

	if (!channel) {
		channel = rdma_create_event_channel();
		if (!channel)
			return -1;
		own = (struct cm_channel *)(void *)channel;
	}
	if (before)
		cm_drop_event(id);
	cm_begin(&said, RNIC_CM_MIGRATE, id);
	put32(&said, RNIC_CM_REQUEST_CHANNEL_AT, ((struct cm_channel *)(void *)channel)->number);
	error = cm_ask(&said);
	if (error) {
		if (own)
			rdma_destroy_event_channel(channel);
		return minus(error);
	}
	of.to = channel_of(channel);
	if (of.to != from) {
		/* Of two that swap their IDs neither waits for ever for the other's channel. */
		struct cm_channel *low = of.to < from ? of.to : from, *high = of.to < from ? from : of.to;

		pthread_mutex_lock(&low->lock);
		pthread_mutex_lock(&high->lock);
		sift(from, moves, &of);
		pthread_mutex_unlock(&high->lock);
		pthread_mutex_unlock(&low->lock);
		while (of.moved--)
			ring(of.to);
	}
	wait_acknowledged(id);
	public->channel = channel;
	id->own = own;
	if (before)
		rdma_destroy_event_channel(&before->public);
	return 0;
}

/* ---- events */

/* A connection's request made an ID: the program's own from the moment that it hears of it. */
static int meet(struct cm_event *event, struct cm_id *listening, const struct cm_said *said)
{
	struct cm_id *id = new_id(listening->public.channel, listening->public.context, listening->public.ps,
				  said->record[RNIC_CM_RECORD_QP_TYPE_AT]);

	if (!id)
		return ENOMEM;
	id->number = get32(said, RNIC_CM_RECORD_ID_AT);
	id->passive = true;
	id->tos = said->record[RNIC_CM_RECORD_TOS_AT];
	id->responder_resources = said->record[RNIC_CM_RECORD_RESPONDER_RESOURCES_AT];
	id->initiator_depth = said->record[RNIC_CM_RECORD_INITIATOR_DEPTH_AT];
	memcpy(id->peer, said->record, sizeof id->peer);
	insert(id);
	cm_adopt(id, said);
	event->public.listen_id = &listening->public;
	event->public.id = &id->public;
	return 0;
}

static void fill_path(struct cm_id *id, const struct cm_said *said)
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
	path->mtu = said->record[RNIC_CM_RECORD_PATH_MTU_AT];
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
}

static void join_done(struct cm_event *event, struct cm_id *id, const struct cm_said *said)
{
	struct group *group = id->groups;
	uint64_t context;

	memcpy(&context, said->record + RNIC_CM_RECORD_CONTEXT_AT, 8);
	while (group && (uint64_t)(uintptr_t)group != context)
		group = group->next;
	event->group = group;
	if (!group) {
		event->public.event = RDMA_CM_EVENT_MULTICAST_ERROR;
		event->public.status = -EINVAL;
		return;
	}
	fill_ud(event, &group->gid, get32(said, RNIC_CM_RECORD_QPN_AT), get32(said, RNIC_CM_RECORD_QKEY_AT), id->tos);
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

static uint8_t fewer(uint8_t one, uint8_t other)
{
	return one < other ? one : other;
}

/* The peer accepted: its queue pair is ready, and so has this one to be before the peer hears so. */
static void respond(struct cm_event *event, struct cm_id *id)
{
	int error;

	if (!id->public.qp)
		return;
	/* As many READs and atomics at a time as both sides said. */
	error = cm_make_ready(id, fewer(id->responder_resources, event->public.param.conn.responder_resources),
			      fewer(id->initiator_depth, event->public.param.conn.initiator_depth));
	if (!error)
		error = cm_simple(id, RNIC_CM_ESTABLISH);
	if (error) {
		cm_fail_qp(id);
		cm_simple(id, RNIC_CM_REJECT);
		event->public.event = RDMA_CM_EVENT_CONNECT_ERROR;
		event->public.status = -error;
	} else {
		event->public.event = RDMA_CM_EVENT_ESTABLISHED;
	}
}

/* Makes an event of what the connection manager says. EAGAIN: it is about nothing that is there any more. */
static int understand(struct cm_event *event, const struct cm_said *said)
{
	uint32_t number = get32(said, RNIC_CM_RECORD_ID_AT), bytes = get32(said, RNIC_CM_RECORD_PRIVATE_BYTES_AT);
	struct rdma_conn_param *conn = &event->public.param.conn;
	struct cm_id *id;

	event->public.event = (int)get32(said, RNIC_CM_RECORD_EVENT_AT);
	event->public.status = (int)get32(said, RNIC_CM_RECORD_STATUS_AT);
	if (event->public.event == RDMA_CM_EVENT_CONNECT_REQUEST)
		number = get32(said, RNIC_CM_RECORD_LISTEN_ID_AT);
	pthread_mutex_lock(&lock);
	id = find(number);
	if (id)
		id->told++;
	pthread_mutex_unlock(&lock);
	if (!id) {
		if (event->public.event == RDMA_CM_EVENT_CONNECT_REQUEST)
			leave_unseen(get32(said, RNIC_CM_RECORD_ID_AT));
		return EAGAIN;
	}
	event->counted = id;
	event->public.id = &id->public;
	if (bytes > sizeof event->private_data)
		bytes = sizeof event->private_data;
	memcpy(event->private_data, said->record + RNIC_CM_RECORD_PRIVATE_AT, bytes);
	switch (event->public.event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		if (meet(event, id, said))
			return ENOMEM;
		id = cm_of(event->public.id);
		if (id->public.qp_type == IBV_QPT_UD)
			break;
		/* fall through */
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		conn->responder_resources = said->record[RNIC_CM_RECORD_RESPONDER_RESOURCES_AT];
		conn->initiator_depth = said->record[RNIC_CM_RECORD_INITIATOR_DEPTH_AT];
		conn->flow_control = said->record[RNIC_CM_RECORD_FLOW_CONTROL_AT];
		conn->retry_count = said->record[RNIC_CM_RECORD_RETRY_COUNT_AT];
		conn->rnr_retry_count = said->record[RNIC_CM_RECORD_RNR_RETRY_COUNT_AT];
		conn->srq = said->record[RNIC_CM_RECORD_SRQ_AT];
		conn->qp_num = get32(said, RNIC_CM_RECORD_QPN_AT);
		break;
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		cm_adopt(id, said);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		fill_path(id, said);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (id->public.qp_type == IBV_QPT_UD) {
			id->remote_qpn = get32(said, RNIC_CM_RECORD_QPN_AT);
			id->remote_qkey = get32(said, RNIC_CM_RECORD_QKEY_AT);
			fill_ud(event, &id->public.route.addr.addr.ibaddr.dgid, id->remote_qpn, id->remote_qkey, id->tos);
		}
		break;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		join_done(event, id, said);
		return 0;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		cm_fail_qp(id);
		break;
	default:
		break;
	}
	conn->private_data = bytes ? event->private_data : NULL; /* and so of ud: both begin with it */
	conn->private_data_len = (uint8_t)bytes;
	if (event->public.event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
		memcpy(id->peer, said->record, sizeof id->peer);
		respond(event, id);
	}
	return 0;
}

static void forget_event(struct cm_event *event)
{
	if (event->counted) {
		pthread_mutex_lock(&lock);
		event->counted->acknowledged++;
		pthread_cond_broadcast(&acknowledgement);
		pthread_mutex_unlock(&lock);
	}
	free(event);
}

EXPORT int rdma_get_cm_event(struct rdma_event_channel *public, struct rdma_cm_event **result)
{
	struct cm_channel *channel = (struct cm_channel *)(void *)public;

	for (;;) {
		struct cm_event *event;
		struct cm_said said;
		uint64_t count;
		int error;

		if (read(channel->public.fd, &count, sizeof count) != sizeof count)
			return -1;
		error = next_record(channel, &said);
		if (error)
			return minus(error);
		if (get32(&said, RNIC_CM_RECORD_EVENT_AT) == RNIC_CM_NO_EVENT)
			continue; /* it moved to another channel, or its ID is gone */
		event = calloc(1, sizeof *event);
		if (!event)
			return minus(ENOMEM);
		error = understand(event, &said);
		if (!error) {
			*result = &event->public;
			return 0;
		}
		forget_event(event);
		if (error != EAGAIN)
			return minus(error);
	}
}

EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	if (!event)
		return minus(EINVAL);
	forget_event((struct cm_event *)(void *)event);
	return 0;
}

/* Where nobody handles events: wait for the one that a call began, and keep it. */
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
			return minus(ECONNREFUSED);
		return minus(event->status < 0 ? -event->status : EIO);
	}
	return 0;
}

EXPORT const char *rdma_event_str(int event)
{
	static const char *const names[] = {
		"RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED",
		"RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
		"RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_REJECTED",
		"RDMA_CM_EVENT_ESTABLISHED", "RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
		"RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};

	return event >= 0 && (size_t)event < sizeof names / sizeof names[0] ? names[event] : "UNKNOWN EVENT";
}

/* ---- endpoints: an ID, its addresses and its queue pair in one call */

EXPORT void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

EXPORT int rdma_create_ep(struct rdma_cm_id **result, struct rdma_addrinfo *info, struct ibv_pd *pd,
			  struct ibv_qp_init_attr *attr)
{
	struct rdma_cm_id *id;
	struct cm_id *private;
	int error;

	if (create_id(NULL, &id, NULL, info->ai_port_space, info->ai_qp_type))
		return -1;
	private = cm_of(id);
	if (info->ai_flags & RAI_PASSIVE) {
		error = rdma_bind_addr(id, info->ai_src_addr);
		if (!error && attr) {
			private->qp_attr = malloc(sizeof *attr);
			if (private->qp_attr) {
				*private->qp_attr = *attr;
				private->qp_attr->qp_type = info->ai_qp_type;
			} else {
				error = minus(ENOMEM);
			}
		}
		if (!error && pd)
			id->pd = pd;
	} else {
		error = rdma_resolve_addr(id, info->ai_src_addr, info->ai_dst_addr, 2000);
		if (!error)
			error = rdma_resolve_route(id, 2000);
		if (!error && attr) {
			attr->qp_type = info->ai_qp_type;
			error = rdma_create_qp(id, pd, attr);
		}
	}
	if (error) {
		int why = errno;

		rdma_destroy_ep(id);
		return minus(why);
	}
	cm_drop_event(private);
	*result = id;
	return 0;
}

EXPORT int rdma_get_request(struct rdma_cm_id *listening, struct rdma_cm_id **result)
{
	struct cm_id *listener = cm_of(listening);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int error;

	if (!listener->own)
		return minus(EINVAL);
	cm_drop_event(listener);
	if (rdma_get_cm_event(listening->channel, &event))
		return -1;
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		error = event->status < 0 ? -event->status : EINVAL;
		rdma_ack_cm_event(event);
		return minus(error);
	}
	id = event->id;
	error = rdma_migrate_id(id, NULL);
	if (!error && listener->qp_attr) {
		struct ibv_qp_init_attr attr = *listener->qp_attr;

		attr.qp_type = id->qp_type;
		error = rdma_create_qp(id, listening->pd, &attr);
	}
	if (error) {
		error = errno;
		rdma_ack_cm_event(event);
		rdma_destroy_ep(id);
		return minus(error);
	}
	id->event = event;
	*result = id;
	return 0;
}
