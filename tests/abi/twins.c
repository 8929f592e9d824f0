/*
 * A program that writes to a peer on its own device, and then to one on another device whose queue pair has the same
 * number as the first one's. Exits with 0 if each got its own.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "direct.h"

enum { BYTES = 8192, PEERS = 2 };

struct end {
	uint32_t number, rkey;
	uint64_t va;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct end here;
static uint8_t *memory;

static void open_device(int which)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(list && count > which && (context = ibv_open_device(list[which])));
	CHECK(!ibv_query_gid(context, 1, 0, &here.gid));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, BYTES, 15)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	here.rkey = mr->rkey;
	here.va = (uintptr_t)memory;
}

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 }
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

/* Connect a queue pair with the other side's. */
static void join(struct ibv_qp *qp, int other, struct end *there)
{
	struct way way = { .timeout = 12, .retries = 7, .reads = 4 };
	char ready;

	here.number = qp->qp_num;
	CHECK(write(other, &here, sizeof here) == sizeof here && read(other, there, sizeof *there) == sizeof *there);
	way.gid = there->gid;
	to_rts(qp, there->number, &way);
	CHECK(write(other, "", 1) == 1 && read(other, &ready, 1) == 1);
}

/* Who is written to; the number of its queue pair is in its slot's range, as that of each first one is. */
static void serve(int which, int other)
{
	struct end there;
	char end;

	me = which ? "on the other device" : "on the same device";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_device(which);
	join(make_qp(), other, &there);
	CHECK(read(other, &end, 1) == 1);
	for (int i = 0; i < BYTES; i++)
		CHECK(memory[i] == 1 + which);
	CHECK(write(other, "", 1) == 1);
	_exit(0);
}

int main(void)
{
	int ways[PEERS][2], spare[2];
	struct ibv_qp *qps[PEERS];
	char done;

	for (int i = 0; i < PEERS; i++)
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ways[i]));
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, spare));
	/* all before anything is opened; each has its slot when it is told to begin, and so the slots are known */
	for (int i = 0; i < PEERS; i++)
		if (!fork()) {
			CHECK(read(ways[i][0], &done, 1) == 1);
			serve(i, ways[i][0]);
		}
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(read(spare[0], &done, 1) == 1);
		open_device(1); /* the first slot of the other device, as this program has that of its own */
		CHECK(write(spare[0], "", 1) == 1);
		pause();
	}
	open_device(0);
	for (int i = 0; i < PEERS; i++)
		qps[i] = make_qp();
	CHECK(write(spare[1], "", 1) == 1 && read(spare[1], &done, 1) == 1);
	struct end theres[PEERS];
	for (int i = 0; i < PEERS; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED },
				   *bad;
		struct ibv_wc wc;
		int found;

		CHECK(write(ways[i][1], "", 1) == 1);
		join(qps[i], ways[i][1], &theres[i]);
		memset(memory, 1 + i, BYTES);
		wr.wr.rdma.remote_addr = theres[i].va;
		wr.wr.rdma.rkey = theres[i].rkey;
		CHECK(!context->ops.post_send(qps[i], &wr, &bad));
		while ((found = context->ops.poll_cq(cq, 1, &wc)) == 0)
			;
		CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(write(ways[i][1], "", 1) == 1 && read(ways[i][1], &done, 1) == 1);
	}
	CHECK(theres[0].number == theres[1].number);
	return 0;
}
