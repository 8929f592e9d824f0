/*
 * A program and its peer, and how often threads of the first give their cores up. Exits with 0 if all bytes arrived.
 *
 *     steps events N   both sleep until the other's message has come, N times: how often the first gave its core up
 *     steps bulk N     N messages of 1 MiB, polled for without a break: how often a second the library's thread woke
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "direct.h"

enum { LONG = 1 << 20 };

struct end {
	uint32_t number, rkey;
	uint64_t va;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static struct end here, there;
static uint8_t *memory; /* the peer writes to its first half, messages lie in the other */

static double now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* How often threads gave their cores up. */
static long slept(int whose)
{
	struct rusage used;

	CHECK(!getrusage(whose, &used));
	return used.ru_nvcsw;
}

/* The two have a core each from the beginning: until the scheduler finds out, each would wait for the other's slice. */
static void take_core(int first)
{
	cpu_set_t cores, own;
	int seen = 0;

	CPU_ZERO(&own);
	CHECK(!sched_getaffinity(0, sizeof cores, &cores));
	for (int core = 0; core < CPU_SETSIZE && seen <= first; core++)
		if (CPU_ISSET(core, &cores) && seen++ == first)
			CPU_SET(core, &own);
	CHECK(!sched_setaffinity(0, sizeof own, &own));
}

static void join(int other)
{
	struct way way = { .timeout = 14, .retries = 7, .reads = 1 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
	struct ibv_device **list;
	int count;
	char ready;

	list = ibv_get_device_list(&count);
	CHECK(list && count && (context = ibv_open_device(list[0])) && (channel = ibv_create_comp_channel(context)));
	CHECK(!ibv_query_gid(context, 1, 0, &here.gid));
	memory = mmap(NULL, 2 * LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, 2 * LONG, 15)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, channel, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)));
	here.number = qp->qp_num;
	here.rkey = mr->rkey;
	here.va = (uintptr_t)memory;
	CHECK(write(other, &here, sizeof here) == sizeof here && read(other, &there, sizeof there) == sizeof there);
	way.gid = there.gid;
	to_rts(qp, there.number, &way);
	CHECK(write(other, "", 1) == 1 && read(other, &ready, 1) == 1);
}

static void post(int opcode, uint32_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)memory + LONG, bytes, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	wr.wr.rdma.remote_addr = there.va;
	wr.wr.rdma.rkey = there.rkey;
	CHECK(!context->ops.post_send(qp, &wr, &bad));
}

static void receive(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!context->ops.post_recv(qp, &wr, &bad));
}

static void poll(void)
{
	struct ibv_wc wc;
	int found;

	while ((found = context->ops.poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
}

/* ---- events */

static int sends, receives; /* that are over */

static void sleep_until(int all_sends, int all_receives)
{
	struct ibv_cq *of;
	struct ibv_wc wc;
	void *user;

	for (;;) {
		CHECK(!context->ops.req_notify_cq(cq, 0));
		for (int found; (found = context->ops.poll_cq(cq, 1, &wc)) != 0;) {
			CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
			++*(wc.opcode == IBV_WC_RECV ? &receives : &sends);
		}
		if (sends >= all_sends && receives >= all_receives)
			return;
		CHECK(!ibv_get_cq_event(channel, &of, &user));
		ibv_ack_cq_events(of, 1);
	}
}

static void events(int turns, int first)
{
	long before = slept(RUSAGE_THREAD);

	receive();
	for (int turn = 1; turn <= turns; turn++) {
		if (!first)
			sleep_until(0, turn);
		receive();
		post(IBV_WR_SEND, 8);
		sleep_until(turn, first ? turn : 0);
	}
	if (first)
		printf("gave its core up %ld times\n", slept(RUSAGE_THREAD) - before);
}

/* ---- bulk */

static void bulk(int count, int first)
{
	long before = slept(RUSAGE_SELF) - slept(RUSAGE_THREAD);
	double began = now_us();

	memset(memory + LONG, first, LONG);
	for (int done = 0, posted = 0; first && done < count; done++) {
		for (; posted < count && posted < done + 8; posted++)
			post(IBV_WR_RDMA_WRITE, LONG);
		poll();
	}
	if (first)
		printf("woke %.0f times a second\n",
		       (double)(slept(RUSAGE_SELF) - slept(RUSAGE_THREAD) - before) * 1e6 / (now_us() - began));
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";
	void (*work)(int, int) = strcmp(mode, "events") == 0 ? events : bulk;
	int ways[2], first;
	char done;

	CHECK(argc > 2 && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ways));
	first = fork() != 0;
	me = first ? "the first" : "the second";
	if (!first)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (work == events)
		take_core(first);
	join(ways[first]);
	work(atoi(argv[2]), first);
	CHECK(write(ways[first], "", 1) == 1 && read(ways[first], &done, 1) == 1);
	for (int i = 0; work == bulk && !first && i < LONG; i++)
		CHECK(memory[i] == 1);
	return 0;
}
