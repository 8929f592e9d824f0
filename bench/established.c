/*
 * The time at which a server's program has ESTABLISHED: `established server ADDRESS PORT N` prints CLOCK_REALTIME in ns
 * for each of N connections; `established client ADDRESS PORT N` makes them, one after another.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WAIT_MS = 2000 };

static struct rdma_event_channel *channel;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static struct rdma_cm_id *next(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event");
	if (event->event != wanted) {
		fprintf(stderr, "%s, status %d, came for %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(wanted));
		exit(1);
	}
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static void give_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };

	if (rdma_create_qp(id, NULL, &attr))
		fail("rdma_create_qp");
}

static void drop(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
}

static void serve(struct sockaddr_in *address, int count)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	struct rdma_cm_id *listening;

	if (rdma_create_id(channel, &listening, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listening, (struct sockaddr *)address) || rdma_listen(listening, 8))
		fail("rdma_listen");
	puts("listening");
	fflush(stdout);
	while (count--) {
		struct rdma_cm_id *id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
		struct timespec now;

		give_qp(id);
		if (rdma_accept(id, &param))
			fail("rdma_accept");
		next(RDMA_CM_EVENT_ESTABLISHED);
		clock_gettime(CLOCK_REALTIME, &now);
		printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
		fflush(stdout);
		next(RDMA_CM_EVENT_DISCONNECTED);
		drop(id);
	}
}

static void ask(struct sockaddr_in *address, int count)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

	while (count--) {
		struct timespec pause = { .tv_nsec = 20000000 };
		struct rdma_cm_id *id;

		if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
		    rdma_resolve_addr(id, NULL, (struct sockaddr *)address, WAIT_MS))
			fail("rdma_resolve_addr");
		next(RDMA_CM_EVENT_ADDR_RESOLVED);
		if (rdma_resolve_route(id, WAIT_MS))
			fail("rdma_resolve_route");
		next(RDMA_CM_EVENT_ROUTE_RESOLVED);
		give_qp(id);
		if (rdma_connect(id, &param))
			fail("rdma_connect");
		next(RDMA_CM_EVENT_ESTABLISHED);
		nanosleep(&pause, NULL);
		rdma_disconnect(id);
		next(RDMA_CM_EVENT_DISCONNECTED);
		drop(id);
		nanosleep(&pause, NULL); /* all programs sleep before the next */
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };

	if (argc != 5 || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) {
		fprintf(stderr, "usage: %s server|client ADDRESS PORT COUNT\n", argv[0]);
		return 2;
	}
	address.sin_port = htons((uint16_t)atoi(argv[3]));
	channel = rdma_create_event_channel();
	if (!channel)
		fail("rdma_create_event_channel");
	if (!strcmp(argv[1], "server"))
		serve(&address, atoi(argv[4]));
	else
		ask(&address, atoi(argv[4]));
	return 0;
}
