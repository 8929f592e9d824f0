/* What the kernel's objects promise to programs, a row of docs/kernel.md each: kernel ADDRESS NAME... */
#define _GNU_SOURCE
#include "itself.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static char memory[128];
static struct sockaddr_in own = { .sin_family = AF_INET };

static int ready(int fd, int ms)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLPRI };

	CHECK(poll(&poller, 1, ms) >= 0);
	return poller.revents;
}

static void open_channel(void)
{
	CHECK((context = open_first()) && (pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, ALL)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	qp = make_qp(pd, cq);
	connect_to_itself(qp);
}

/* Arm, and have something complete. */
static void complete(void)
{
	struct ibv_wc wc;

	CHECK(!ibv_req_notify_cq(cq, 0));
	write_to_itself(qp, mr);
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
}

static void take(void)
{
	struct ibv_cq *of;
	void *with;

	CHECK(!ibv_get_cq_event(channel, &of, &with) && of == cq);
	ibv_ack_cq_events(of, 1);
}

/* An asynchronous event: of a request beyond its region. */
static void raise_async(void)
{
	struct ibv_qp *victim = make_qp(pd, cq);
	struct ibv_wc wc;
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	connect_to_itself(victim);
	wr.wr.rdma.remote_addr = 1;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(victim, &wr, &bad));
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.status != IBV_WC_SUCCESS);
}

static void event_files_report_pollin_alone(void)
{
	struct rdma_event_channel *cm = rdma_create_event_channel();
	struct ibv_async_event event;
	struct rdma_cm_event *told;
	struct rdma_cm_id *id;

	CHECK(cm && !ready(channel->fd, 0) && !ready(context->async_fd, 0) && !ready(cm->fd, 0));
	complete();
	CHECK(ready(channel->fd, 10000) == (POLLIN | POLLRDNORM));
	take();
	CHECK(!ready(channel->fd, 0));
	raise_async();
	CHECK(ready(context->async_fd, 10000) == (POLLIN | POLLRDNORM));
	CHECK(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_QP_ACCESS_ERR);
	ibv_ack_async_event(&event);
	CHECK(!ready(context->async_fd, 0));
	CHECK(!rdma_create_id(cm, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)&own, 1000));
	CHECK(ready(cm->fd, 10000) == (POLLIN | POLLRDNORM));
	CHECK(!rdma_get_cm_event(cm, &told) && !rdma_ack_cm_event(told) && !ready(cm->fd, 0));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(cm);
}

static void event_files_that_do_not_wait(void)
{
	struct rdma_event_channel *cm = rdma_create_event_channel();
	struct ibv_async_event event;
	struct rdma_cm_event *told;
	struct ibv_cq *of;
	void *with;
	int fds[] = { channel->fd, context->async_fd, cm->fd };

	for (int i = 0; i < 3; i++) {
		CHECK(!(fcntl(fds[i], F_GETFL) & O_NONBLOCK) && fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
		CHECK(!fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK));
	}
	CHECK(ibv_get_cq_event(channel, &of, &with) == -1 && errno == EAGAIN);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	CHECK(rdma_get_cm_event(cm, &told) == -1 && errno == EAGAIN);
	complete();
	CHECK(ready(channel->fd, 10000));
	take();
	for (int i = 0; i < 3; i++)
		CHECK(!fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) & ~O_NONBLOCK));
	rdma_destroy_event_channel(cm);
}

/* The second event is an edge, though nobody has taken the first. */
static void an_edge_for_each_event(void)
{
	struct epoll_event how = { .events = EPOLLIN | EPOLLET }, found;
	int watching = epoll_create1(EPOLL_CLOEXEC);

	CHECK(watching >= 0 && !epoll_ctl(watching, EPOLL_CTL_ADD, channel->fd, &how));
	CHECK(!epoll_wait(watching, &found, 1, 0));
	for (int i = 0; i < 3; i++) {
		complete();
		CHECK(epoll_wait(watching, &found, 1, 10000) == 1 && found.events == EPOLLIN);
		CHECK(!epoll_wait(watching, &found, 1, 50));
	}
	for (int i = 0; i < 3; i++)
		take();
	CHECK(!ready(channel->fd, 0) && !epoll_wait(watching, &found, 1, 0));
	complete(); /* and after the queue was empty */
	CHECK(epoll_wait(watching, &found, 1, 10000) == 1);
	take();
	close(watching);
}

/* A program that arms and then leaves completions in the queue is told of none of them: fio's handler of errors. */
static void arming_tells_of_later_completions_alone(void)
{
	struct ibv_wc wc[3];
	int found = 0;

	for (int i = 0; i < 3; i++)
		write_to_itself(qp, mr);
	while (!ibv_poll_cq(cq, 1, wc))
		;
	usleep(200000); /* the other two are there by now */
	CHECK(!ibv_req_notify_cq(cq, 0) && !ready(channel->fd, 100));
	while (found < 2)
		found += ibv_poll_cq(cq, 2 - found, wc);
	CHECK(!ready(channel->fd, 0));
	write_to_itself(qp, mr);
	CHECK(ready(channel->fd, 10000));
	take();
	while (!ibv_poll_cq(cq, 1, wc))
		;
}

static void a_duplicate_and_a_child(void)
{
	int copy = dup(channel->fd), status;
	pid_t child;

	complete();
	CHECK(ready(copy, 10000) == (POLLIN | POLLRDNORM));
	child = fork();
	CHECK(child >= 0);
	if (!child)
		_exit(ready(channel->fd, 0) == (POLLIN | POLLRDNORM) && ready(copy, 0) ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	take();
	CHECK(!ready(copy, 0));
	close(copy);
	complete();
	CHECK(ready(channel->fd, 10000));
	take();
}

static void on_alarm(int number)
{
	(void)number;
}

static void a_signal_ends_a_wait(void)
{
	struct sigaction act = { .sa_handler = on_alarm }, before;
	struct rdma_event_channel *cm = rdma_create_event_channel();
	struct rdma_cm_event *told;
	struct ibv_cq *of;
	void *with;

	CHECK(!sigaction(SIGALRM, &act, &before));
	alarm(1);
	CHECK(ibv_get_cq_event(channel, &of, &with) == -1 && errno == EINTR);
	alarm(1);
	CHECK(rdma_get_cm_event(cm, &told) == -1 && errno == EINTR);
	CHECK(!sigaction(SIGALRM, &before, NULL));
	alarm(45);
	rdma_destroy_event_channel(cm);
}

/* ---- rdma_cm */

static struct rdma_event_channel *cm;

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	if (!cm)
		CHECK((cm = rdma_create_event_channel()));
	CHECK(!rdma_create_id(cm, &id, NULL, RDMA_PS_TCP));
	return id;
}

static struct rdma_cm_event *next(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	CHECK(ready(cm->fd, 10000) && !rdma_get_cm_event(cm, &event));
	if (event->event != wanted)
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(wanted));
	CHECK(event->event == wanted);
	return event;
}

static void wildcards_of_both_families(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(7480) };
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(7480) };
	struct rdma_cm_id *first = new_id(), *second = new_id(), *third = new_id();
	int yes = 1;

	CHECK(!rdma_bind_addr(first, (struct sockaddr *)&any));
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&any6) == -1 && errno == EADDRNOTAVAIL);
	CHECK(!rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes));
	CHECK(!rdma_bind_addr(second, (struct sockaddr *)&any6));
	CHECK(!rdma_listen(first, 1) && !rdma_listen(second, 1));
	own.sin_port = htons(7480);
	CHECK(rdma_bind_addr(third, (struct sockaddr *)&own) == -1 && errno == EADDRNOTAVAIL);
	own.sin_port = 0;
	CHECK(!rdma_bind_addr(third, (struct sockaddr *)&own) && rdma_get_src_port(third));
	CHECK(!rdma_destroy_id(first) && !rdma_destroy_id(second) && !rdma_destroy_id(third));
}

static struct rdma_cm_id *listen_on(int port)
{
	struct sockaddr_in at = own;
	struct rdma_cm_id *id = new_id();

	at.sin_port = htons((uint16_t)port);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&at) && !rdma_listen(id, 4));
	return id;
}

static struct rdma_cm_id *resolve(int port)
{
	struct sockaddr_in peer = own;
	struct rdma_cm_id *id = new_id();

	peer.sin_port = htons((uint16_t)port);
	CHECK(!rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)&peer, 1000));
	CHECK(!rdma_ack_cm_event(next(RDMA_CM_EVENT_ADDR_RESOLVED)));
	CHECK(!rdma_resolve_route(id, 1000));
	CHECK(!rdma_ack_cm_event(next(RDMA_CM_EVENT_ROUTE_RESOLVED)));
	return id;
}

static void give_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .cap = { 5, 5, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr found;
	struct ibv_qp_attr attr;

	CHECK(!rdma_create_qp(id, NULL, &init) && init.cap.max_send_wr >= 5 && init.cap.max_recv_wr >= 5);
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_CAP, &found));
	CHECK(!memcmp(&found.cap, &init.cap, sizeof init.cap)); /* what the device gives comes back */
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A request brings the client's retry counts and depths, seen from this side; then both are established, the client
 * first. The time from its RTU to the server's event is told on stderr, for the page. */
static void a_request_brings_the_peers_numbers(void)
{
	struct rdma_conn_param param = { .private_data = "words",
					 .private_data_len = 5,
					 .responder_resources = 3,
					 .initiator_depth = 2,
					 .retry_count = 4,
					 .rnr_retry_count = 5 };
	struct rdma_cm_id *listening = listen_on(7481), *id = resolve(7481), *child;
	struct rdma_cm_event *event;
	uint64_t began;

	give_qp(id);
	CHECK(!rdma_connect(id, &param));
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listening && event->param.conn.retry_count == 4);
	CHECK(event->param.conn.rnr_retry_count == 5 && event->param.conn.responder_resources == 2);
	CHECK(event->param.conn.initiator_depth == 3 && event->param.conn.private_data_len == 56);
	CHECK(!memcmp(event->param.conn.private_data, "words", 5) && event->param.conn.qp_num == id->qp->qp_num);
	child = event->id;
	CHECK(!rdma_ack_cm_event(event));
	give_qp(child);
	CHECK(!rdma_accept(child, &param));
	event = next(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == id && !rdma_ack_cm_event(event));
	began = now_ns();
	event = next(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == child && !rdma_ack_cm_event(event));
	if (getenv("KERNEL_TIMES"))
		fprintf(stderr, "RTU to ESTABLISHED: %llu us\n", (unsigned long long)(now_ns() - began) / 1000);
	CHECK(!rdma_disconnect(id));
	rdma_destroy_qp(id);
	rdma_destroy_qp(child);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(child) && !rdma_destroy_id(listening));
}

static void ids_are_destroyed_in_every_state(void)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

	for (int state = 0; state < 6; state++) {
		struct rdma_cm_id *listening = listen_on(7490 + state), *id, *child = NULL;
		struct rdma_cm_event *event;

		if (state == 0) { /* idle */
			id = new_id();
		} else if (state == 1) { /* bound, after the listener */
			id = new_id();
			CHECK(!rdma_bind_addr(id, (struct sockaddr *)&own));
		} else {
			id = resolve(7490 + state);
			if (state > 2) { /* connecting */
				give_qp(id);
				CHECK(!rdma_connect(id, &param));
			}
			if (state > 3) { /* a request that the program has */
				event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
				child = event->id;
				CHECK(!rdma_ack_cm_event(event));
			}
			if (state > 4) { /* accepted */
				give_qp(child);
				CHECK(!rdma_accept(child, &param));
			}
		}
		if (id->qp)
			rdma_destroy_qp(id);
		CHECK(!rdma_destroy_id(id));
		CHECK(!rdma_destroy_id(listening));
		if (child) {
			if (child->qp)
				rdma_destroy_qp(child);
			CHECK(!rdma_destroy_id(child));
		}
		CHECK(!ready(cm->fd, 0)); /* and their events with them */
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} rows[] = {
	{ "event_files_report_pollin_alone", event_files_report_pollin_alone },
	{ "event_files_that_do_not_wait", event_files_that_do_not_wait },
	{ "an_edge_for_each_event", an_edge_for_each_event },
	{ "arming_tells_of_later_completions_alone", arming_tells_of_later_completions_alone },
	{ "a_duplicate_and_a_child", a_duplicate_and_a_child },
	{ "a_signal_ends_a_wait", a_signal_ends_a_wait },
	{ "wildcards_of_both_families", wildcards_of_both_families },
	{ "a_request_brings_the_peers_numbers", a_request_brings_the_peers_numbers },
	{ "ids_are_destroyed_in_every_state", ids_are_destroyed_in_every_state },
};

int main(int argc, char **argv)
{
	alarm(45); /* a wait that nobody ends */
	CHECK(argc > 1 && inet_pton(AF_INET, argv[1], &own.sin_addr) == 1);
	open_channel();
	for (int at = 2; at < argc; at++) {
		for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
			if (strcmp(argv[at], rows[i].name))
				continue;
			where = rows[i].name;
			rows[i].run();
			puts(where);
		}
	}
	return 0;
}
