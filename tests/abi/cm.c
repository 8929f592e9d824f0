/*
 * The connection manager from the point of view of a C program that handles no events, and of one that does: both ends in
 * one process, on two devices. Says "all as it should be" at the end.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static const char *server_address, *client_address, *port = "7471";
static char message[64], answer[64];

static struct ibv_qp_init_attr queue_pair(void)
{
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 16 }, .sq_sig_all = 1 };

	return attr;
}

static struct rdma_addrinfo *addresses(const char *node, int flags)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = flags }, *info = NULL;

	CHECK(rdma_getaddrinfo(node, port, &hints, &info) == 0);
	CHECK(info->ai_qp_type == IBV_QPT_RC);
	CHECK(flags & RAI_PASSIVE ? info->ai_src_addr != NULL : info->ai_dst_addr != NULL);
	return info;
}

/* ---- calls that wait */

static void *serve(void *listening)
{
	struct rdma_conn_param param = {
		.responder_resources = 2, .initiator_depth = 2, .private_data = "welcome", .private_data_len = 7
	};
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	struct ibv_mr *mr;

	CHECK(rdma_get_request(listening, &id) == 0);
	CHECK(id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(memcmp(id->event->param.conn.private_data, "hello", 5) == 0);
	CHECK(id->qp && id->verbs && id->pd);
	mr = rdma_reg_msgs(id, answer, sizeof answer);
	CHECK(mr && rdma_post_recv(id, NULL, answer, sizeof answer, mr) == 0);
	CHECK(rdma_accept(id, &param) == 0);
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(answer, "over the connection", 19) == 0);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void waiting_calls(void)
{
	struct rdma_addrinfo *here = addresses(server_address, RAI_PASSIVE), *there = addresses(server_address, 0);
	struct ibv_qp_init_attr attr = queue_pair();
	struct rdma_conn_param param = { .private_data = "hello",
					 .private_data_len = 5,
					 .responder_resources = 1,
					 .initiator_depth = 1,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct sockaddr_in own = { .sin_family = AF_INET };
	struct rdma_cm_id *listening, *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pthread_t thread;

	CHECK(rdma_create_ep(&listening, here, NULL, &attr) == 0);
	CHECK(rdma_listen(listening, 0) == 0);
	CHECK(ntohs(rdma_get_src_port(listening)) == atoi(port));
	pthread_create(&thread, NULL, serve, listening);
	inet_pton(AF_INET, client_address, &own.sin_addr);
	free(there->ai_src_addr);
	there->ai_src_addr = malloc(sizeof own);
	memcpy(there->ai_src_addr, &own, sizeof own);
	there->ai_src_len = sizeof own;
	attr = queue_pair();
	CHECK(rdma_create_ep(&id, there, NULL, &attr) == 0);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr == own.sin_addr.s_addr);
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu >= IBV_MTU_256);
	strcpy(message, "over the connection");
	mr = rdma_reg_msgs(id, message, sizeof message);
	CHECK(mr && rdma_connect(id, &param) == 0);
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(id->event->param.conn.private_data_len == 196);
	CHECK(memcmp(id->event->param.conn.private_data, "welcome", 7) == 0);
	CHECK(rdma_post_send(id, NULL, message, sizeof message, mr, 0) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_disconnect(id) == 0);
	pthread_join(thread, NULL);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listening);
	rdma_freeaddrinfo(here);
	rdma_freeaddrinfo(there);
}

/* ---- events */

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	CHECK(poll(&ready, 1, 10000) == 1);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type)
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(type));
	CHECK(event->event == type);
	return event;
}

/* Whether a channel says that an event waits. */
static int says_within(const struct rdma_event_channel *channel, int milliseconds)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };

	return poll(&ready, 1, milliseconds) == 1;
}

static int says(const struct rdma_event_channel *channel)
{
	return says_within(channel, 0);
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, int space, struct sockaddr_in *own,
				   struct sockaddr_in *peer)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, (void *)0x77, space) == 0);
	CHECK(rdma_resolve_addr(id, (struct sockaddr *)own, (struct sockaddr *)peer, 1000) == 0);
	CHECK(rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
	CHECK(id->verbs && id->port_num == 1 && id->context == (void *)0x77);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	CHECK(rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
	return id;
}

static void events(void)
{
	struct rdma_event_channel *active = rdma_create_event_channel(), *passive = rdma_create_event_channel();
	struct rdma_conn_param nothing = { .qp_num = 0x4711 };
	struct sockaddr_in own = { .sin_family = AF_INET }, peer = { .sin_family = AF_INET, .sin_port = htons(7472) };
	struct rdma_cm_id *listening, *id, *again;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;
	uint8_t tos = 0x28;
	int mask, flags;

	CHECK(active && passive && active->fd >= 0);
	flags = fcntl(active->fd, F_GETFL);
	CHECK(fcntl(active->fd, F_SETFL, flags | O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(active, &event) == -1 && errno == EAGAIN);
	inet_pton(AF_INET, client_address, &own.sin_addr);
	inet_pton(AF_INET, server_address, &peer.sin_addr);
	CHECK(rdma_create_id(passive, &listening, (void *)0x55, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listening, (struct sockaddr *)&peer) == 0);
	CHECK(listening->verbs != NULL);
	CHECK(rdma_listen(listening, 4) == 0);
	CHECK(rdma_create_id(passive, &again, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(again, (struct sockaddr *)&peer) == -1 && errno == EADDRINUSE);
	CHECK(rdma_destroy_id(again) == 0);

	/* rejected, with the listener's words */
	id = resolved(active, RDMA_PS_TCP, &own, &peer);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0);
	CHECK(rdma_connect(id, &nothing) == 0);
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listening && event->id->context == (void *)0x55);
	CHECK(event->param.conn.qp_num == 0x4711 && event->param.conn.private_data_len == 56);
	again = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_reject(again, "no", 2) == 0);
	CHECK(rdma_destroy_id(again) == 0);
	event = next(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && memcmp(event->param.conn.private_data, "no", 2) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(id) == 0);

	/* queue pairs of the programs' own: the response is theirs to answer */
	id = resolved(active, RDMA_PS_TCP, &own, &peer);
	CHECK(rdma_connect(id, &nothing) == 0);
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	again = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_migrate_id(again, active) == 0);
	nothing.qp_num = 0x4712;
	CHECK(rdma_accept(again, &nothing) == 0);
	event = next(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->id == id && event->param.conn.qp_num == 0x4712);
	CHECK(rdma_ack_cm_event(event) == 0);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
	CHECK(attr.dest_qp_num == 0x4712 && mask & IBV_QP_AV && attr.ah_attr.is_global);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && mask & IBV_QP_SQ_PSN);
	CHECK(rdma_establish(id) == 0);
	CHECK(rdma_ack_cm_event(next(active, RDMA_CM_EVENT_ESTABLISHED)) == 0);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_ack_cm_event(next(active, RDMA_CM_EVENT_DISCONNECTED)) == 0);
	CHECK(rdma_ack_cm_event(next(active, RDMA_CM_EVENT_DISCONNECTED)) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_destroy_id(again) == 0);
	CHECK(rdma_destroy_id(listening) == 0);

	/* nobody listens any more */
	id = resolved(active, RDMA_PS_TCP, &own, &peer);
	CHECK(rdma_connect(id, NULL) == 0);
	event = next(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* What holds of an ID and its events after a rejection: the event is the program's until it acknowledges it, and
 * destroying the ID waits for that; the ID goes on to exist until then; neither end hears of the other again. */

static _Atomic int destroyed;

static void *destroy(void *id)
{
	CHECK(rdma_destroy_id(id) == 0);
	destroyed = 1;
	return NULL;
}

static void rejections(void)
{
	static const char *const words[] = { "not now", "", NULL };
	struct rdma_event_channel *active = rdma_create_event_channel(), *passive = rdma_create_event_channel();
	struct rdma_conn_param nothing = { .qp_num = 0x4711 };
	struct sockaddr_in own = { .sin_family = AF_INET }, peer = { .sin_family = AF_INET, .sin_port = htons(7474) };
	struct rdma_cm_id *listening, *id, *child;
	struct rdma_cm_event *event;
	pthread_t destroying;

	CHECK(active && passive);
	inet_pton(AF_INET, client_address, &own.sin_addr);
	inet_pton(AF_INET, server_address, &peer.sin_addr);
	CHECK(rdma_create_id(passive, &listening, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listening, (struct sockaddr *)&peer) == 0);
	CHECK(rdma_listen(listening, 4) == 0);
	for (int round = 0; round < 9; round++) {
		const char *said = words[round % 3];

		id = resolved(active, RDMA_PS_TCP, &own, &peer);
		CHECK(rdma_connect(id, &nothing) == 0);
		event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
		child = event->id;
		CHECK(rdma_ack_cm_event(event) == 0);
		if (said) /* else destroying the ID rejects */
			CHECK(rdma_reject(child, said, (uint8_t)strlen(said)) == 0);
		CHECK(rdma_destroy_id(child) == 0);
		event = next(active, RDMA_CM_EVENT_REJECTED);
		CHECK(event->id == id && event->listen_id == NULL && event->status == 28);
		destroyed = 0;
		CHECK(pthread_create(&destroying, NULL, destroy, id) == 0);
		usleep(20000);
		CHECK(!destroyed && id->context == (void *)0x77 && id->channel == active);
		CHECK(!said || !memcmp(event->param.conn.private_data, said, strlen(said)));
		CHECK(rdma_ack_cm_event(event) == 0);
		CHECK(pthread_join(destroying, NULL) == 0 && destroyed);
		CHECK(!says_within(active, 5) && !says(passive));
	}

	/* an ID that was rejected stays one until it is destroyed, and says so of what it cannot do */
	id = resolved(active, RDMA_PS_TCP, &own, &peer);
	CHECK(rdma_connect(id, &nothing) == 0);
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_reject(child, NULL, 0) == 0);
	CHECK(rdma_reject(child, NULL, 0) == -1 && rdma_accept(child, &nothing) == -1);
	CHECK(rdma_ack_cm_event(next(active, RDMA_CM_EVENT_REJECTED)) == 0);
	CHECK(rdma_establish(id) == -1);
	rdma_disconnect(id);
	CHECK(id->verbs && id->context == (void *)0x77);
	CHECK(!says_within(active, 20) && !says(passive));
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(child) == 0);
	CHECK(rdma_destroy_id(listening) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* Events that came together: those that nobody asked for yet go with their ID, to another channel or for good. */
static void together(void)
{
	struct rdma_event_channel *active = rdma_create_event_channel(), *passive = rdma_create_event_channel();
	struct rdma_conn_param nothing = { .qp_num = 0x4713 };
	struct sockaddr_in own = { .sin_family = AF_INET }, peer = { .sin_family = AF_INET, .sin_port = htons(7473) };
	struct rdma_cm_id *listening, *heard, *ids[3];
	struct rdma_cm_event *event;

	inet_pton(AF_INET, client_address, &own.sin_addr);
	inet_pton(AF_INET, server_address, &peer.sin_addr);
	CHECK(fcntl(active->fd, F_SETFL, fcntl(active->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(rdma_create_id(passive, &listening, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listening, (struct sockaddr *)&peer) == 0 && rdma_listen(listening, 0) == 0);
	for (int i = 0; i < 3; i++)
		ids[i] = resolved(active, RDMA_PS_TCP, &own, &peer);
	for (int i = 0; i < 3; i++)
		CHECK(rdma_connect(ids[i], &nothing) == 0);
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	heard = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	/* those that the program has not heard of go with the listener, as those that come behind it: their peers are told */
	CHECK(says_within(passive, 10000));
	CHECK(rdma_destroy_id(listening) == 0);
	CHECK(!says(passive));
	for (int i = 0; i < 2; i++)
		CHECK(rdma_ack_cm_event(next(active, RDMA_CM_EVENT_REJECTED)) == 0);
	CHECK(rdma_accept(heard, &nothing) == 0);
	CHECK(rdma_ack_cm_event(next(active, RDMA_CM_EVENT_CONNECT_RESPONSE)) == 0);
	CHECK(rdma_destroy_id(heard) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(rdma_destroy_id(ids[i]) == 0);

	CHECK(rdma_create_id(active, &ids[0], NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_create_id(active, &ids[1], NULL, RDMA_PS_TCP) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(rdma_resolve_addr(ids[i], (struct sockaddr *)&own, (struct sockaddr *)&peer, 1000) == 0);
	CHECK(rdma_migrate_id(ids[0], passive) == 0);
	CHECK(rdma_destroy_id(ids[1]) == 0);
	event = next(passive, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(event->id == ids[0]);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(!says(active) && !says(passive));
	CHECK(rdma_get_cm_event(active, &event) == -1 && errno == EAGAIN);
	CHECK(rdma_destroy_id(ids[0]) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* A queue pair that failed while nobody looked goes from where it is. */
static void failed_unseen(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11 };
	union ibv_gid gid;
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1 };
	struct ibv_sge sge = { .addr = (uintptr_t)message, .length = 8, .lkey = 0x7FFFFF00 };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_wc wc;
	int rounds = 0;

	CHECK(pd && cq && qp && !ibv_query_gid(context, 1, 0, &gid));
	path.grh.dgid = gid;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	wr.wr.ud.ah = ibv_create_ah(pd, &path);
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 0x11;
	CHECK(wr.wr.ud.ah && !ibv_post_send(qp, &wr, &bad));
	while (!ibv_poll_cq(cq, 1, &wc))
		CHECK(rounds++ < 50000000);
	CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
	/* in the error state of its send queue, which only this change leaves */
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_SQE;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_ah(wr.wr.ud.ah) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

/* A child of a program that uses the connection manager begins anew. */
static void forked(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	int status = 0;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		struct rdma_event_channel *own = rdma_create_event_channel();
		struct rdma_cm_id *id;

		CHECK(own && rdma_create_id(own, &id, NULL, RDMA_PS_UDP) == 0 && id->qp_type == IBV_QPT_UD);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	rdma_destroy_event_channel(channel);
}

/* The device's clock counts nanoseconds, and goes on. */
static void device_clock(struct ibv_context *context)
{
	struct ibv_values_ex before = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, after = before,
			     unknown = { .comp_mask = 2 };

	CHECK(!ibv_query_rt_values_ex(context, &before) && !ibv_query_rt_values_ex(context, &after));
	CHECK(before.raw_clock.tv_nsec > 0 && after.raw_clock.tv_nsec >= before.raw_clock.tv_nsec);
	CHECK(ibv_query_rt_values_ex(context, &unknown) == EOPNOTSUPP);
}

int main(int count, char **arguments)
{
	int devices = 0;
	struct ibv_context **list = rdma_get_devices(&devices);

	CHECK(count == 3 && list && devices == 2);
	device_clock(list[0]);
	failed_unseen(list[0]);
	rdma_free_devices(list);
	server_address = arguments[1];
	client_address = arguments[2];
	waiting_calls();
	events();
	rejections();
	together();
	forked();
	puts("all as it should be");
	return 0;
}
