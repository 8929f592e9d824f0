/*
 * Two programs on one device with messages under way all the time, each of which has to be completed once, in order, at
 * both ends; until SIGTERM to who asks. Then all that was sent completes, the two compare what they counted, and who asks
 * prints how many that were. Exits with 0 if all is as it should be, with 3 where the NIC process has gone.
 *
 * The first line says the process numbers of both, who asks first.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "direct.h"

enum { MOST = 1 << 18, DEEP = 8, RECEIVES = 4 * DEEP, BYTES = 3 * DEEP * MOST, GONE = 3 };
enum { WHERE_IT_GOES = 0, WHERE_IT_COMES_FROM = DEEP, WHAT_IS_READ = 2 * DEEP }; /* in units of MOST */

struct end {
	uint32_t number, rkey;
	uint64_t va;
};

static int asks, other; /* which of the two this is, and the way to the other */
static volatile sig_atomic_t ending;
static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct end there;

static void end(int number)
{
	(void)number;
	ending = 1;
}

/* What fails because there is no NIC process any more is as it should be. */
static void gone(void)
{
	if (context && nic_gone(context_of(context)))
		_exit(GONE);
}

static void tell(const void *said, size_t bytes, void *heard)
{
	CHECK(send(other, said, bytes, MSG_NOSIGNAL) == (ssize_t)bytes &&
	      recv(other, heard, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static uint8_t *at(uint64_t where, uint64_t number)
{
	return memory + (where + number % DEEP) * MOST;
}

static uint32_t length_of(uint64_t number)
{
	static const uint32_t some[] = { 16, 300, 2047, 2048, 5000, 70000, MOST };

	return some[number % COUNT(some)];
}

static int is_read(uint64_t number)
{
	return number % 4 == 2;
}

static int is_send(uint64_t number)
{
	return number % 4 == 1;
}

/* A message has its number at both ends of it. */
static void stamp(uint8_t *message, uint64_t number)
{
	memcpy(message, &number, 8);
	memcpy(message + length_of(number) - 8, &number, 8);
}

/* Whether it is this message, or one that took its place meanwhile: maybe while its ends were looked at. */
static int is_stamped(const uint8_t *message, uint64_t number)
{
	uint64_t first, last, again;

	memcpy(&first, message, 8);
	atomic_thread_fence(memory_order_acquire);
	memcpy(&last, message + length_of(number) - 8, 8);
	atomic_thread_fence(memory_order_acquire);
	memcpy(&again, message, 8);
	return first >= number && again >= first && (first - number) % DEEP == 0 && (again - number) % DEEP == 0 &&
	       (again != number || last == number);
}

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 2 * DEEP, 2 * RECEIVES, 1, 1, 64 } };
	struct way way = { .timeout = 15, .retries = 7, .reads = 4 };
	struct ibv_pd *pd;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context && !ibv_query_gid(context, 1, 0, &way.gid));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	memset(memory + WHAT_IS_READ * MOST, 0x5A, DEEP * MOST);
	CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, BYTES, 15)));
	CHECK((cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)));
	struct end here = { qp->qp_num, mr->rkey, (uintptr_t)memory };
	tell(&here, sizeof here, &there);
	to_rts(qp, there.number, &way);
}

static void post(uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)at(WHERE_IT_COMES_FROM, number), length_of(number), mr->lkey };
	struct ibv_send_wr wr = { .wr_id = number,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .imm_data = htobe32((uint32_t)number),
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	wr.wr.rdma.rkey = there.rkey;
	wr.wr.rdma.remote_addr = there.va + (WHERE_IT_GOES + number % DEEP) * MOST;
	if (is_read(number)) {
		wr.opcode = IBV_WR_RDMA_READ;
		wr.wr.rdma.remote_addr = there.va + (WHAT_IS_READ + number % DEEP) * MOST;
		memset((void *)(uintptr_t)sge.addr, 0, sge.length);
	} else {
		wr.opcode = is_send(number) ? IBV_WR_SEND_WITH_IMM : wr.opcode;
		stamp(at(WHERE_IT_COMES_FROM, number), number);
	}
	CHECK(!context->ops.post_send(qp, &wr, &bad));
}

static int completed(struct ibv_wc *wc)
{
	int found = context->ops.poll_cq(cq, 1, wc);

	CHECK(found >= 0);
	return found;
}

/* Who sends: the number of the first message that was not. */
static uint64_t ask(void)
{
	uint64_t posted = 0, done = 0;

	while (!ending || done != posted) {
		struct ibv_wc wc;

		while (!ending && posted < done + DEEP)
			post(posted++);
		if (!completed(&wc))
			continue;
		CHECK(!wc.status);
		CHECK(wc.wr_id == done && done < posted);
		if (is_read(done)) {
			const uint8_t *got = at(WHERE_IT_COMES_FROM, done);

			CHECK(got[0] == 0x5A && got[length_of(done) / 2] == 0x5A && got[length_of(done) - 1] == 0x5A);
		}
		done++;
	}
	return posted;
}

static void post_receive(uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)at(WHERE_IT_COMES_FROM, id), MOST, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!context->ops.post_recv(qp, &wr, &bad));
}

/* Hear how many messages there were, where the other has said so. */
static void hear(uint64_t *total)
{
	ssize_t got = recv(other, total, sizeof *total, MSG_DONTWAIT);

	CHECK(got == (ssize_t)sizeof *total || (got < 0 && errno == EAGAIN));
}

static void serve(void)
{
	uint64_t next = 0, taken = 0, total = UINT64_MAX;

	while (next < total) {
		struct ibv_wc wc;

		if (is_read(next)) {
			next++; /* which shows nothing here */
			continue;
		}
		if (!completed(&wc)) {
			if (total == UINT64_MAX)
				hear(&total);
			continue;
		}
		CHECK(!wc.status);
		CHECK(wc.wr_id == taken && wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == (uint32_t)next);
		CHECK(is_send(next) || is_stamped(at(WHERE_IT_GOES, next), next));
		post_receive(taken + RECEIVES);
		taken++;
		next++;
	}
}

int main(void)
{
	int both[2], status = 0;
	uint64_t total, heard;
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both));
	child = fork(); /* before anything is opened */
	CHECK(child >= 0);
	asks = child != 0;
	me = asks ? "asks" : "serves";
	on_failure = gone;
	other = both[asks];
	close(both[!asks]);
	signal(SIGTERM, asks ? end : SIG_IGN);
	if (!asks)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_all();
	for (uint64_t id = 0; !asks && id < RECEIVES; id++)
		post_receive(id);
	tell(&(uint64_t){ 0 }, sizeof total, &heard);
	if (!asks) {
		serve();
		CHECK(send(other, &heard, sizeof heard, MSG_NOSIGNAL) == sizeof heard);
		return 0;
	}
	printf("%d %d\n", (int)getpid(), (int)child);
	fflush(stdout);
	total = ask();
	tell(&total, sizeof total, &heard);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	printf("%llu messages\n", (unsigned long long)total);
	return 0;
}
