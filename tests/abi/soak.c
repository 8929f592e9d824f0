/*
 * Two programs on one device that exchange checked messages both ways until SIGTERM to the first: tests/abi/soak.py.
 * Every byte of each message is checked, each arrives once and in order, and the counts of both agree at the end.
 *
 * Arguments: how a program waits ("polls", "events" in ibv_get_cq_event, "poll" on the channel's descriptor), the code
 * of the local ACK timeout, retry_cnt. The first line has the process numbers of both; the last one the messages and
 * bytes that were checked, or "failed" and why. A program that failed then waits to be killed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "direct.h"

enum { MOST = 1 << 16, DEEP = 8, RECEIVES = 4 * DEEP, QUEUED = 4 * DEEP, AREAS = 3 };
/* Areas, in units of MOST: DEEP each, then the receives. */
enum { TARGET = 0, SOURCE = DEEP, READABLE = 2 * DEEP, RECEIVED = AREAS * DEEP, SLOTS = RECEIVED + RECEIVES };
enum { NOTE_MS = 10, LATE_MS = 1500 };
enum { CREDIT = 1u << 31, BYE = 1u << 30, NUMBERS = BYE - 1 };
#define BYTES ((size_t)SLOTS * MOST)
#define NO_MESSAGE UINT64_MAX

struct end {
	uint32_t number, rkey;
	uint64_t va;
};

static int first, other, by_events; /* which of the two this is; the way to the other */
static volatile sig_atomic_t ending;
static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct end there;
static uint64_t posted, completed, credited, expected, atomics, checked, messages, last_ms, longest_ms, queued,
	received;
static uint64_t noted_ms, noted_wait_ms;
static int owes_credit, said_bye, bye_left, heard_bye;

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Return how long the threads of this program have waited for a core, all together. */
static uint64_t waited_ms(void)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned long long waited, total = 0;
	char path[300];

	for (struct dirent *task; tasks && (task = readdir(tasks));) {
		snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
		FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (file && fscanf(file, "%*u %llu", &waited) == 1)
			total += waited;
		if (file)
			fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return total / 1000000;
}

/* Note a completion, and say so if it came late: a program without a core is no peer that does not answer. */
static void note_completion(void)
{
	uint64_t now = now_ms(), gap = now - last_ms, waited;

	if (gap > longest_ms)
		longest_ms = gap;
	last_ms = now;
	if (now < noted_ms + NOTE_MS)
		return;
	noted_ms = now;
	waited = waited_ms();
	if (gap > LATE_MS) {
		printf("late: %s %d, %llu ms without a completion, %llu ms of them without a core\n", me, (int)getpid(),
		       (unsigned long long)gap, (unsigned long long)(waited - noted_wait_ms));
		fflush(stdout);
	}
	noted_wait_ms = waited;
}

static _Noreturn void fail(const char *why, uint64_t number, uint64_t value)
{
	printf("failed: %s %d, QP %#x to %#x: %s %llu (number %llu); posted %llu, completed %llu, credited %llu, expected "
	       "%llu; %llu ms since the last completion, the longest %llu, %llu without a core\n",
	       first ? "first" : "second", (int)getpid(), qp ? qp->qp_num : 0, there.number, why,
	       (unsigned long long)value, (unsigned long long)number, (unsigned long long)posted,
	       (unsigned long long)completed, (unsigned long long)credited, (unsigned long long)expected,
	       (unsigned long long)(now_ms() - last_ms), (unsigned long long)longest_ms,
	       (unsigned long long)(waited_ms() - noted_wait_ms));
	fflush(stdout);
	for (;;)
		pause();
}

static void end(int number)
{
	(void)number;
	ending = 1;
}

static void tell(const void *said, size_t bytes, void *heard)
{
	CHECK(send(other, said, bytes, MSG_NOSIGNAL) == (ssize_t)bytes &&
	      recv(other, heard, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static uint8_t *at(uint64_t area, uint64_t number)
{
	return memory + (area + number % DEEP) * MOST;
}

static uint32_t length_of(uint64_t number)
{
	static const uint32_t some[] = { 8, 16, 300, 1024, 2047, 2048, 5000, 20000, 65533, MOST, 1 };

	return some[number % COUNT(some)];
}

enum kind { WRITE, SEND, READ, LONG_WRITE, ATOMIC, KINDS };

static int is_passive(uint64_t number) /* shows nothing at the other end */
{
	return number % KINDS == READ || number % KINDS == ATOMIC;
}

static uint8_t byte_of(uint64_t seed, uint64_t index)
{
	uint64_t hash = (seed + (index >> 3) + 1) * 0x9e3779b97f4a7c15u;

	return (uint8_t)((hash ^ hash >> 29) >> 8 * (index & 7));
}

static void fill(uint8_t *bytes, uint64_t seed, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		bytes[i] = byte_of(seed, i);
}

static void check(const uint8_t *bytes, uint64_t seed, uint32_t length, uint64_t number)
{
	for (uint32_t i = 0; i < length; i++)
		if (bytes[i] != byte_of(seed, i))
			fail("wrong byte at", number, i);
	checked += length;
}

static uint64_t seed_of(int from_first, uint64_t number)
{
	return (number << 20) + (uint64_t)(from_first != 0) * 77;
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	wr->wr.rdma.rkey = wr->wr.rdma.rkey ? wr->wr.rdma.rkey : there.rkey;
	CHECK(!context->ops.post_send(qp, wr, &bad));
	queued++;
}

static void post_receive(uint64_t id)
{
	uint64_t slot = RECEIVED + id % RECEIVES;
	struct ibv_sge sge = { (uintptr_t)(memory + slot * MOST), MOST, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!context->ops.post_recv(qp, &wr, &bad));
}

static void post_word(uint32_t word)
{
	struct ibv_send_wr wr = { .wr_id = NO_MESSAGE,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .imm_data = htobe32(word) };

	wr.wr.rdma.remote_addr = there.va;
	post(&wr);
}

static void post_message(uint64_t number)
{
	uint32_t length = number % KINDS == LONG_WRITE ? MOST : length_of(number);
	struct ibv_sge sge = { (uintptr_t)at(SOURCE, number), length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = number,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .imm_data = htobe32((uint32_t)(number & NUMBERS)) };

	wr.wr.rdma.remote_addr = there.va + (TARGET + number % DEEP) * MOST;
	if (!is_passive(number))
		fill(at(SOURCE, number), seed_of(first, number), length);
	if (number % KINDS == SEND)
		wr.opcode = IBV_WR_SEND_WITH_IMM;
	if (number % KINDS == READ) {
		wr.opcode = IBV_WR_RDMA_READ;
		sge.length = MOST;
		memset(at(SOURCE, number), 0, MOST);
		wr.wr.rdma.remote_addr = there.va + (READABLE + number % DEEP) * MOST;
	}
	if (number % KINDS == ATOMIC) {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		sge.length = 8;
		wr.wr.atomic.remote_addr = there.va + (RECEIVED - 1) * (uint64_t)MOST + MOST / 2;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.rkey = there.rkey;
	}
	post(&wr);
}

static void open_all(const char *waits, uint8_t timeout, uint8_t retries)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { QUEUED + 1, RECEIVES + 1, 1, 1, 64 } };
	struct way way = { .timeout = timeout, .retries = retries, .reads = 4 };
	struct ibv_pd *pd;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context && !ibv_query_gid(context, 1, 0, &way.gid));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	for (uint64_t i = 0; i + 1 < DEEP; i++)
		fill(at(READABLE, i), seed_of(2, i), MOST);
	fill(at(READABLE, DEEP - 1), seed_of(2, DEEP - 1), MOST / 2); /* the atomics' word follows */
	by_events = strcmp(waits, "polls");
	channel = by_events ? ibv_create_comp_channel(context) : NULL;
	CHECK(channel || !by_events);
	CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, BYTES, 15)));
	CHECK((cq = ibv_create_cq(context, 256, NULL, channel, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)));
	struct end here = { qp->qp_num, mr->rkey, (uintptr_t)memory };
	tell(&here, sizeof here, &there);
	to_rts(qp, there.number, &way);
}

static void take_sent(const struct ibv_wc *wc)
{
	uint64_t number = wc->wr_id, before;

	queued--;
	if (number == NO_MESSAGE) {
		bye_left |= said_bye && !queued;
		return;
	}
	if (number != completed)
		fail("completed instead", completed, number);
	if (number % KINDS == READ)
		check(at(SOURCE, number), seed_of(2, number % DEEP), number % DEEP == DEEP - 1 ? MOST / 2 : MOST,
		      number);
	if (number % KINDS == ATOMIC) {
		memcpy(&before, at(SOURCE, number), 8);
		if (before != atomics)
			fail("atomics counted", atomics, before);
		atomics++;
	}
	messages += (uint64_t)is_passive(number);
	completed++;
}

static void take_received(const struct ibv_wc *wc)
{
	uint32_t word = be32toh(wc->imm_data);
	uint64_t id = wc->wr_id, slot = RECEIVED + id % RECEIVES;

	if (id != received++)
		fail("receive completed instead", received - 1, id);
	if (word & CREDIT) {
		uint64_t more = (word - credited) & NUMBERS;

		if (more > DEEP + 2)
			fail("credit", credited, word);
		credited += more;
	} else if (word == BYE) {
		heard_bye = ending = 1;
	} else {
		while (is_passive(expected))
			expected++;
		uint32_t length = expected % KINDS == LONG_WRITE ? MOST : length_of(expected);

		if (word != (expected & NUMBERS))
			fail("received instead", expected, word);
		if (expected % KINDS == SEND && wc->byte_len != length)
			fail("length", expected, wc->byte_len);
		check(expected % KINDS == SEND ? memory + slot * MOST : at(TARGET, expected), seed_of(!first, expected),
		      length, expected);
		expected++;
		messages++;
		while (is_passive(expected))
			expected++;
		owes_credit = 1;
	}
	post_receive(id + RECEIVES);
}

/* Take all completions; returns whether there were any. */
static int take_all(void)
{
	struct ibv_wc wc;
	int found, any = 0;

	while ((found = context->ops.poll_cq(cq, 1, &wc)) > 0) {
		if (wc.status)
			fail(wc.opcode & IBV_WC_RECV ? "receive status" : "send status", wc.wr_id, wc.status);
		note_completion();
		any = 1;
		if (wc.opcode & IBV_WC_RECV)
			take_received(&wc);
		else
			take_sent(&wc);
	}
	CHECK(!found);
	return any;
}

static void wait_for_events(const char *waits)
{
	struct pollfd readable = { .events = POLLIN };
	struct ibv_cq *which;
	void *own;

	CHECK(!context->ops.req_notify_cq(cq, 0));
	if (take_all())
		return;
	if (*waits == 'p') {
		readable.fd = channel->fd;
		while (poll(&readable, 1, -1) < 0)
			CHECK(errno == EINTR);
	}
	while (ibv_get_cq_event(channel, &which, &own))
		CHECK(errno == EINTR); /* the signal to end */
	CHECK(which == cq);
	ibv_ack_cq_events(cq, 1);
	take_all();
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

int main(int count, char **words)
{
	const char *waits = count > 1 ? words[1] : "events";
	int both[2], status = 0;
	uint64_t said[3], heard[3];
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both));
	child = fork(); /* before anything is opened */
	CHECK(child >= 0);
	first = child != 0;
	me = first ? "first" : "second";
	other = both[first];
	close(both[!first]);
	signal(SIGTERM, first ? end : SIG_IGN);
	if (!first)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_all(waits, (uint8_t)(count > 2 ? atoi(words[2]) : 16), (uint8_t)(count > 3 ? atoi(words[3]) : 7));
	for (uint64_t id = 0; id < RECEIVES; id++)
		post_receive(id);
	tell(said, sizeof said, heard);
	if (first)
		printf("%d %d\n", (int)getpid(), (int)child);
	fflush(stdout);
	for (last_ms = now_ms(); !(heard_bye && bye_left);) {
		while (!ending && queued < QUEUED && posted < lesser(completed, credited) + DEEP)
			post_message(posted++);
		if (owes_credit && queued < QUEUED) {
			post_word(CREDIT | (uint32_t)(expected & NUMBERS));
			owes_credit = 0;
		}
		if (ending && !said_bye && completed == posted && queued < QUEUED && !owes_credit) {
			uint64_t shown = posted;

			while (shown && is_passive(shown - 1))
				shown--;
			if (credited >= shown) {
				post_word(BYE);
				said_bye = 1;
			}
		}
		if (!take_all() && by_events)
			wait_for_events(waits);
	}
	said[0] = messages, said[1] = checked, said[2] = longest_ms;
	tell(said, sizeof said, heard);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	if (!first)
		return 0;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	printf("messages %llu bytes %llu longest %llu ms\n", (unsigned long long)(said[0] + heard[0]),
	       (unsigned long long)(said[1] + heard[1]), (unsigned long long)(said[2] > heard[2] ? said[2] : heard[2]));
	return 0;
}
