/*
 * Two programs on one device against each other: the requester and the responder. Exits with 0 if all is as it should be.
 *
 *     shm data       messages of all kinds and lengths, checked; a receive that comes late
 *     shm reads      READs of all lengths, some at a time, into several pieces of memory, checked
 *     shm long reads N   eight READs of 4 MiB at a time, with a retry_cnt of N
 *     shm key        a WRITE with a wrong key, a READ with one
 *     shm unmapped   a WRITE from memory that has been unmapped; "shm unmapped there" one to such memory
 *     shm read here  a READ into memory that has been unmapped; "shm read there" one of such memory
 *     shm ended      READs by keys that end while the requester is stopped: what is stored there then is not theirs
 *     shm forever    data, until the other one has gone: the requester then prints how its request ended, and exits with 3
 *
 * The first line says the process numbers of both, the requester's first.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "direct.h"

enum { MOST = 1 << 20, SLOTS = 16, BYTES = SLOTS * MOST, ROUNDS = 120, GONE = 3, PIECES = 3 };

struct end {
	uint32_t number, rkey;
	uint64_t va;
};

static uint8_t retries = 7, read_depth = 4, timeout = 12; /* 12: with 7 retries some of 0.4 s */
static int asks, other; /* which of the two this is, and the way to the other */
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct end there;

static void sleep_ms(long ms)
{
	struct timespec time = { 0, ms * 1000000 };

	nanosleep(&time, NULL);
}

/* Tell the other a number and hear one of it; whether there is somebody. */
static int meet(uint64_t said, uint64_t *heard)
{
	return send(other, &said, sizeof said, MSG_NOSIGNAL) == sizeof said &&
	       recv(other, heard, sizeof *heard, MSG_WAITALL) == sizeof *heard;
}

static uint8_t pattern(uint64_t seed, uint64_t at)
{
	uint64_t mixed = (seed * 0x9e3779b97f4a7c15u) ^ (at >> 3) * 0xbf58476d1ce4e5b9u;

	return (uint8_t)(mixed >> 56 ^ mixed >> (at & 7));
}

static void fill(uint8_t *to, uint64_t seed, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = pattern(seed, i);
}

static int is_filled(const uint8_t *from, uint64_t seed, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		if (from[i] != pattern(seed, i))
			return 0;
	return 1;
}

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 64, 64, PIECES, PIECES, 64 } };
	struct way way = { .timeout = timeout, .retries = retries, .reads = read_depth };
	uint64_t heard;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context && !ibv_query_gid(context, 1, 0, &way.gid));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	pd = ibv_alloc_pd(context);
	CHECK(pd && (mr = ibv_reg_mr(pd, memory, BYTES, 15)) && (cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)));
	struct end here = { qp->qp_num, mr->rkey, (uintptr_t)memory };
	CHECK(send(other, &here, sizeof here, MSG_NOSIGNAL) == sizeof here &&
	      recv(other, &there, sizeof there, MSG_WAITALL) == sizeof there);
	to_rts(qp, there.number, &way);
	CHECK(meet(0, &heard)); /* else the first requests may come before RTS */
}

static void close_all(void)
{
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) &&
	      !ibv_close_device(context));
}

static void post_receive(uint64_t id, uint8_t *at, uint32_t bytes)
{
	struct ibv_sge sges[PIECES];
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sges, .num_sge = PIECES }, *bad;

	/* pieces of odd lengths */
	sges[0] = (struct ibv_sge){ (uintptr_t)at, bytes / 3, mr->lkey };
	sges[1] = (struct ibv_sge){ (uintptr_t)at + bytes / 3, bytes / 5, mr->lkey };
	sges[2] = (struct ibv_sge){ (uintptr_t)at + bytes / 3 + bytes / 5, bytes - bytes / 3 - bytes / 5, mr->lkey };
	CHECK(!context->ops.post_recv(qp, &wr, &bad));
}

static struct ibv_send_wr request(struct ibv_sge *sge, int opcode, uint64_t id, uint64_t va)
{
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED
	};

	wr.wr.rdma.remote_addr = va;
	wr.wr.rdma.rkey = there.rkey;
	return wr;
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	CHECK(!context->ops.post_send(qp, wr, &bad));
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int found;

	while (!(found = context->ops.poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1);
	return wc;
}

static void succeed(uint64_t id)
{
	struct ibv_wc wc = completion();

	if (wc.status)
		fprintf(stderr, "status %d instead of request %llu\n", wc.status, (unsigned long long)id);
	CHECK(!wc.status && wc.wr_id == id);
}

static uint32_t length_of(uint64_t round)
{
	static const uint32_t some[] = { 8, 100, 1024, 2047, 2048, 2049, 4097, 65536, 300001, MOST };

	return some[round % COUNT(some)];
}

/* A WRITE with immediate data there, and a SEND of other data back. */
static void round_trips(uint64_t rounds, uint64_t first)
{
	for (uint64_t round = first; round < first + rounds; round++) {
		uint32_t bytes = length_of(round);
		struct ibv_sge sge = { (uintptr_t)memory + 3 * MOST, bytes, mr->lkey };
		struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_WRITE_WITH_IMM, 7, there.va + MOST + 3);
		struct ibv_wc wc;
		uint64_t heard;

		post_receive(6, memory, MOST);
		CHECK(meet(round, &heard) && heard == round);
		fill(memory + 3 * MOST, round * 2 + (uint64_t)!asks, bytes);
		if (asks) {
			wr.imm_data = htobe32((uint32_t)round);
			post(&wr);
			for (int i = 0; i < 2; i++) { /* the answer may be there before the acknowledgement */
				wc = completion();
				CHECK(!wc.status && (wc.wr_id == 7 || (wc.wr_id == 6 && wc.byte_len == bytes)));
			}
			CHECK(is_filled(memory, round * 2 + 1, bytes));
			continue;
		}
		wc = completion();
		CHECK(!wc.status && wc.wr_id == 6 && wc.wc_flags & IBV_WC_WITH_IMM &&
		      be32toh(wc.imm_data) == (uint32_t)round);
		CHECK(is_filled(memory + MOST + 3, round * 2, bytes));
		wr.opcode = IBV_WR_SEND;
		post(&wr);
		succeed(7);
	}
}

/* Many at once, of which the last tells the other that all have come. */
static void stream(void)
{
	uint64_t heard;

	for (uint64_t at = 0; asks && at < SLOTS; at++)
		fill(memory + at * MOST, 1000 + at, MOST);
	if (!asks)
		post_receive(5, memory, 0);
	CHECK(meet(1, &heard));
	for (uint64_t at = 0; asks && at < SLOTS; at++) {
		struct ibv_sge sge = { (uintptr_t)memory + at * MOST, MOST - (uint32_t)at, mr->lkey };
		struct ibv_send_wr wr = request(&sge, at + 1 < SLOTS ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
						at, there.va + at * MOST);
		post(&wr);
	}
	for (uint64_t at = 0; asks && at < SLOTS; at++)
		succeed(at);
	if (!asks) {
		succeed(5);
		for (uint64_t at = 0; at < SLOTS; at++)
			CHECK(is_filled(memory + at * MOST, 1000 + at, MOST - at));
	}
	CHECK(meet(2, &heard));
}

/* READs and atomics, in one queue with WRITEs. */
static void answers(void)
{
	uint64_t heard, seen = 0;

	fill(memory, 77, MOST);
	memset(memory + 3 * MOST, 0, 8);
	CHECK(meet(3, &heard));
	for (uint64_t turn = 0; asks && turn < 20; turn++) {
		struct ibv_sge sges[3] = { { (uintptr_t)memory + MOST, MOST - (uint32_t)turn, mr->lkey },
					   { (uintptr_t)memory + 4 * MOST, 8, mr->lkey },
					   { (uintptr_t)memory, 30000, mr->lkey } };
		struct ibv_send_wr read = request(&sges[0], IBV_WR_RDMA_READ, 1, there.va),
				   add = request(&sges[1], IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0),
				   write = request(&sges[2], IBV_WR_RDMA_WRITE, 3, there.va + 5 * MOST);

		add.wr.atomic.remote_addr = there.va + 3 * MOST;
		add.wr.atomic.compare_add = 3;
		add.wr.atomic.rkey = there.rkey;
		memset(memory + MOST, 0, MOST);
		post(&read);
		post(&add);
		post(&write);
		for (uint64_t id = 1; id <= 3; id++)
			succeed(id);
		CHECK(is_filled(memory + MOST, 77, MOST - turn));
		memcpy(&seen, memory + 4 * MOST, 8);
		CHECK(seen == turn * 3);
	}
	CHECK(meet(4, &heard));
	memcpy(&seen, memory + 3 * MOST, 8);
	CHECK(asks || (seen == 60 && is_filled(memory + 5 * MOST, 77, 30000)));
}

/* A SEND before there is a receive for it. */
static void too_early(void)
{
	struct ibv_sge sge = { (uintptr_t)memory + MOST, MOST, mr->lkey };
	struct ibv_send_wr wr = request(&sge, IBV_WR_SEND, 9, 0);
	uint64_t heard;

	fill(memory + MOST, 55, MOST);
	memset(memory, 0, MOST);
	CHECK(meet(5, &heard));
	if (asks) {
		post(&wr);
		succeed(9);
	} else {
		sleep_ms(20);
		post_receive(8, memory, MOST);
		succeed(8);
		CHECK(is_filled(memory, 55, MOST));
	}
	CHECK(meet(6, &heard));
}

/* The lengths of READs that go out together, all from different places there to different ones here. */
static void reads(void)
{
	enum { EACH = SLOTS / 4 };
	uint64_t heard;

	for (uint64_t turn = 0; turn < 40; turn++) {
		if (!asks)
			for (uint64_t at = 0; at < EACH; at++)
				fill(memory + at * MOST + turn, turn * EACH + at, length_of(turn + at));
		CHECK(meet(turn, &heard) && heard == turn);
		for (uint64_t at = 0; asks && at < EACH; at++) {
			uint32_t bytes = length_of(turn + at), first = bytes / 7 + 1;
			uintptr_t to = (uintptr_t)memory + (EACH + at) * MOST;
			struct ibv_sge sges[2] = { { to, first, mr->lkey }, { to + first, bytes - first, mr->lkey } };
			struct ibv_send_wr wr = request(sges, IBV_WR_RDMA_READ, at, there.va + at * MOST + turn);

			wr.num_sge = 2;
			memset((void *)to, 0, bytes);
			post(&wr);
		}
		for (uint64_t at = 0; asks && at < EACH; at++) {
			succeed(at);
			CHECK(is_filled(memory + (EACH + at) * MOST, turn * EACH + at, length_of(turn + at)));
		}
		CHECK(meet(turn, &heard));
	}
}

/* Long READs, so many outstanding that their responses fill the ring again and again. */
static void long_reads(void)
{
	enum { TOGETHER = 8, EACH = 4 << 20, TURNS = 6 };
	uint64_t heard;

	fill(memory, 4711, EACH);
	CHECK(meet(14, &heard));
	for (uint64_t at = 0; asks && at < TOGETHER * TURNS; at++) {
		struct ibv_sge sge = { (uintptr_t)memory + EACH, EACH, mr->lkey };
		struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_READ, at, there.va);

		if (at >= TOGETHER)
			succeed(at - TOGETHER);
		post(&wr);
	}
	for (uint64_t at = 0; asks && at < TOGETHER; at++)
		succeed(TOGETHER * (TURNS - 1) + at);
	CHECK(!asks || is_filled(memory + EACH, 4711, EACH));
	CHECK(meet(15, &heard));
}

static int is_stopped(pid_t pid)
{
	char path[64], state = 0;
	FILE *said;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	CHECK((said = fopen(path, "r")) && fscanf(said, "%*d (%*[^)]) %c", &state) == 1 && !fclose(said));
	return state == 'T';
}

/* One READ of memory whose key ends there, and which is stored to anew, while this side is stopped. */
static void ended(void)
{
	enum { BYTES_READ = 1 << 15 };
	struct ibv_sge sge = { (uintptr_t)memory + MOST, BYTES_READ, mr->lkey };
	struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_READ, 1, there.va);
	struct ibv_wc wc;
	uint64_t heard;

	if (!asks)
		fill(memory, 33, BYTES_READ);
	CHECK(meet(12, &heard));
	if (asks) {
		post(&wr);
		raise(SIGSTOP);
		wc = completion();
		/* a READ that is repeated once its key has ended gets no answer, which fails nobody there */
		if (wc.status)
			CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_REM_ACCESS_ERR ||
			      wc.status == IBV_WC_REM_OP_ERR);
		else
			CHECK(is_filled(memory + MOST, 33, BYTES_READ));
	} else {
		while (!is_stopped(getppid()))
			;
		sleep_ms(5); /* so that the answer has left */
		CHECK(!ibv_dereg_mr(mr));
		memset(memory, 0x5A, BYTES_READ);
		CHECK(!kill(getppid(), SIGCONT) && (mr = ibv_reg_mr(pd, memory, BYTES, 15)));
	}
	CHECK(meet(13, &heard));
}

static void wrong_key(int opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, 1 << 16, mr->lkey };
	struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_WRITE, 1, there.va);
	struct ibv_wc wc;
	uint64_t heard;

	if (asks) {
		post(&wr);
		succeed(1);
		wr.opcode = opcode;
		post(&wr);
		succeed(1);
		wr.wr.rdma.rkey ^= 1;
		post(&wr);
		wc = completion();
		CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
	}
	CHECK(meet(7, &heard));
}

static void unmapped(int opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, 1 << 16, mr->lkey };
	struct ibv_send_wr wr = request(&sge, opcode, 1, there.va);
	struct ibv_wc wc;
	uint64_t heard;

	memset(memory, 1, 1 << 16);
	CHECK(meet(8, &heard));
	if (asks) {
		post(&wr);
		succeed(1);
		CHECK(!munmap(memory + 4 * MOST, MOST));
		sge.addr = (uintptr_t)memory + 4 * MOST - 4096;
		post(&wr);
		wc = completion();
		CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
	}
	CHECK(meet(9, &heard));
}

static void unmapped_there(int opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, 1 << 16, mr->lkey };
	struct ibv_send_wr wr = request(&sge, opcode, 1, there.va + 4 * MOST - 4096);
	struct ibv_wc wc;
	uint64_t heard;

	memset(memory, 1, 1 << 16);
	if (!asks)
		CHECK(!munmap(memory + 4 * MOST, MOST));
	CHECK(meet(10, &heard));
	if (asks) {
		post(&wr);
		wc = completion();
		CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_OP_ERR);
	}
	CHECK(meet(11, &heard));
}

/* Streams of WRITEs, whose rounds the other checks; until it has gone. */
static void forever(void)
{
	for (uint64_t round = 1;; round++) {
		uint32_t bytes = length_of(round);
		struct ibv_sge sge = { (uintptr_t)memory + 2 * MOST, bytes, mr->lkey };
		struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_WRITE_WITH_IMM, round, there.va + MOST);
		struct ibv_wc wc;
		uint64_t heard;

		if (!asks) {
			post_receive(round, memory, 0);
			if (!meet(round, &heard))
				exit(GONE);
			do {
				char byte;
				if (recv(other, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
					exit(GONE); /* nobody is there to write */
			} while (!context->ops.poll_cq(cq, 1, &wc));
			CHECK(!wc.status && wc.wr_id == round && is_filled(memory + MOST, round, bytes));
			continue;
		}
		fill(memory + 2 * MOST, round, bytes);
		meet(round, &heard);
		post(&wr);
		wc = completion();
		if (wc.status) {
			printf(wc.status == IBV_WC_RETRY_EXC_ERR ? "retries exceeded\n" : "status %d\n",
			       (int)wc.status);
			exit(GONE);
		}
		CHECK(wc.wr_id == round);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int both[2], status = 0;
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both));
	child = fork(); /* before anything is opened */
	CHECK(child >= 0);
	asks = child != 0;
	me = asks ? "asks" : "serves";
	other = both[asks];
	close(both[!asks]);
	if (!asks)
		prctl(PR_SET_PDEATHSIG, strcmp(mode, "forever") ? SIGKILL : 0);
	if (strncmp(mode, "long reads ", 11) == 0) {
		retries = (uint8_t)atoi(mode + 11);
		read_depth = 8;
		timeout = 14;
	}
	open_all();
	if (asks) {
		printf("%d %d\n", (int)getpid(), (int)child);
		fflush(stdout);
	}
	if (strcmp(mode, "forever") == 0)
		forever();
	if (strcmp(mode, "data") == 0) {
		round_trips(ROUNDS, 1);
		stream();
		answers();
		too_early();
		round_trips(ROUNDS / 4, 5000);
	} else if (strcmp(mode, "reads") == 0) {
		reads();
	} else if (strncmp(mode, "long reads ", 11) == 0) {
		long_reads();
	} else if (strcmp(mode, "key") == 0) {
		wrong_key(IBV_WR_RDMA_WRITE);
		close_all();
		open_all();
		wrong_key(IBV_WR_RDMA_READ);
	} else if (strcmp(mode, "unmapped") == 0) {
		unmapped(IBV_WR_RDMA_WRITE);
	} else if (strcmp(mode, "unmapped there") == 0) {
		unmapped_there(IBV_WR_RDMA_WRITE);
	} else if (strcmp(mode, "read here") == 0) {
		unmapped(IBV_WR_RDMA_READ);
	} else if (strcmp(mode, "read there") == 0) {
		unmapped_there(IBV_WR_RDMA_READ);
	} else if (strcmp(mode, "ended") == 0) {
		for (int turn = 1; turn < 20; turn++) {
			ended();
			close_all();
			open_all();
		}
		ended();
	}
	close_all();
	if (!asks)
		return 0;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	printf("all as it should be\n");
	return 0;
}
