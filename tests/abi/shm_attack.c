/*
 * One program, the victim, with two peers on its device: an honest one, and attackers, one after the other, that write
 * nonsense into the rings that they share with it while both are connected. Exits with 0 if the honest one's messages
 * all were right, and no byte was stored but where an attacker may write.
 *
 *     shm_attack ATTACKERS MILLISECONDS SEED
 *
 * Prints the messages of the honest one, and the records and the changed words of the attackers.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "direct.h"
/* the library has a structure of that name, too */
#define event_queue engine_event_queue
#include "queue_pair/bth.h"
#include "queue_pair/by_reference.h"
#undef event_queue

enum { PART = 1 << 18, PARTS = 4, OPEN_PART = 0, HONEST_PART = 1, ANSWER_PART = 2, SECRET_PART = 3 };
enum { PACKETS, BY_REFERENCE, REFUSED, NOTHING, HEADER = 16, FIRST_PSNS = 64 };

struct end {
	uint32_t number, rkey;
	uint64_t va;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq, *their_cq;
static uint8_t *memory; /* PARTS parts, each registered alone, with bytes between them that no key opens */
static struct ibv_mr *mrs[PARTS];
static struct way way = { .timeout = 12, .retries = 7, .reads = 4 };
static uint64_t state = 1;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static uint8_t *part(int index)
{
	return memory + (size_t)index * 2 * PART;
}

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context && !ibv_query_gid(context, 1, 0, &way.gid));
	memory = mmap(NULL, PARTS * 2 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (pd = ibv_alloc_pd(context)));
	memset(memory, 0x11, PARTS * 2 * PART);
	for (int i = 0; i < PARTS; i++)
		CHECK((mrs[i] = ibv_reg_mr(pd, part(i), PART, i == SECRET_PART ? 0 : 15)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) &&
	      (their_cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
}

static struct ibv_qp *connect_by(int other, struct ibv_cq *which, int index, struct end *there)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
	struct ibv_qp *qp;
	char ready;

	init.send_cq = init.recv_cq = which;
	CHECK((qp = ibv_create_qp(pd, &init)));
	struct end here = { qp->qp_num, mrs[index]->rkey, (uintptr_t)part(index) };
	CHECK(send(other, &here, sizeof here, MSG_NOSIGNAL) == sizeof here &&
	      recv(other, there, sizeof *there, MSG_WAITALL) == sizeof *there);
	to_rts(qp, there->number, &way);
	/* else the first requests may come before RTS */
	CHECK(send(other, "", 1, MSG_NOSIGNAL) == 1 && recv(other, &ready, 1, MSG_WAITALL) == 1);
	return qp;
}

static void post_receive(struct ibv_qp *qp, int index)
{
	struct ibv_sge sge = { (uintptr_t)part(index), PART, mrs[index]->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!context->ops.post_recv(qp, &wr, &bad));
}

static void post_send(struct ibv_qp *qp, int opcode, const uint8_t *from, uint32_t lkey, uint32_t bytes,
		      const struct end *there)
{
	struct ibv_sge sge = { (uintptr_t)from, bytes, lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	wr.wr.rdma.remote_addr = there->va;
	wr.wr.rdma.rkey = there->rkey;
	CHECK(!context->ops.post_send(qp, &wr, &bad));
}

static void complete(int count)
{
	struct ibv_wc wc;

	while (count) {
		int found = context->ops.poll_cq(cq, 1, &wc);
		CHECK(found >= 0 && (!found || !wc.status));
		count -= found;
	}
}

static int is_filled(const uint8_t *at, uint8_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (at[i] != value)
			return 0;
	return 1;
}

/* ------------------------------------------------------------------ the honest one */

/* A WRITE there, of a byte that both know, and a SEND back, of another. */
static void exchange(struct ibv_qp *qp, const struct end *there, int asks, uint64_t round)
{
	uint32_t bytes = (uint32_t[]){ 8, 1500, 4096, 70000, PART }[round % 5];

	memset(part(SECRET_PART), (int)(round * 2 + (uint64_t)!asks), bytes);
	if (!asks) {
		complete(1);
		CHECK(is_filled(part(HONEST_PART), (uint8_t)(round * 2), bytes));
		post_receive(qp, ANSWER_PART);
	}
	post_send(qp, asks ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, part(SECRET_PART), mrs[SECRET_PART]->lkey, bytes,
		  there);
	complete(asks ? 2 : 1);
	if (asks) {
		CHECK(is_filled(part(ANSWER_PART), (uint8_t)(round * 2 + 1), bytes));
		post_receive(qp, ANSWER_PART);
	}
}

static void be_honest(int other)
{
	struct end there;
	struct ibv_qp *qp;
	uint8_t byte;

	me = "honest";
	open_all();
	qp = connect_by(other, cq, HONEST_PART, &there);
	post_receive(qp, ANSWER_PART);
	CHECK(send(other, "", 1, MSG_NOSIGNAL) == 1);
	for (uint64_t round = 0; recv(other, &byte, 1, MSG_WAITALL) == 1; round++)
		exchange(qp, &there, 1, round);
}

/* ------------------------------------------------------------------ attackers */

static uint8_t *rings;
static size_t ring_bytes;
static _Atomic int over;
static _Atomic uint64_t flipped;

/* Find the rings that this program shares with the victim. */
static void find_rings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned long first, last;

	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "memfd:rnic shm") && sscanf(line, "%lx-%lx", &first, &last) == 2) {
			rings = (uint8_t *)first;
			ring_bytes = last - first;
		}
	fclose(maps);
	CHECK(ring_bytes == 2 * (size_t)SHM_RING_ALL);
}

static _Atomic uint64_t *word(unsigned ring, size_t offset)
{
	return (_Atomic uint64_t *)(void *)(rings + ring * (size_t)SHM_RING_ALL + offset);
}

static void *flip(void *none)
{
	uint64_t mixed = draw() | 1;

	while (!atomic_load(&over)) {
		mixed ^= mixed << 13;
		mixed ^= mixed >> 7;
		mixed ^= mixed << 17;
		unsigned ring = (unsigned)(mixed >> 40 & 1);
		size_t tail = atomic_load(word(ring, 0)) & (SHM_RING_BYTES - 1);
		/* the newest records, which the victim may be reading; seldom the words in front of them */
		size_t offset = SHM_BYTES_AT + ((tail - mixed / 4 % 512 * 8) & (SHM_RING_BYTES - 8));
		if (mixed % 65536 == 0)
			offset = mixed / 65536 % 32 * 8;
		atomic_fetch_xor(word(ring, offset), 1ull << (mixed >> 50 & 63));
		atomic_fetch_add(&flipped, 1);
		if (mixed % 64 == 0)
			usleep(20);
	}
	return none;
}

static void put_record(unsigned ring, const void *bytes, uint32_t length, uint32_t kind, uint32_t segment)
{
	uint64_t at = atomic_load(word(ring, 0)) & ~(uint64_t)(SHM_RECORD_BYTES - 1),
		 size = (HEADER + length + SHM_RECORD_BYTES - 1) & ~(uint64_t)(SHM_RECORD_BYTES - 1);
	size_t offset = at & (SHM_RING_BYTES - 1);
	uint32_t header[4] = { length, kind, segment, 0 };

	if (SHM_RING_BYTES - offset < size) {
		header[0] = (uint32_t)(SHM_RING_BYTES - offset) - HEADER;
		header[1] = NOTHING;
		size = SHM_RING_BYTES - offset;
		length = 0;
	}
	if (draw() % 2000 == 0)
		header[draw() % 2] = (uint32_t)draw();
	memcpy(rings + ring * (size_t)SHM_RING_ALL + SHM_BYTES_AT + offset, header, sizeof header);
	memcpy(rings + ring * (size_t)SHM_RING_ALL + SHM_BYTES_AT + offset + HEADER, bytes, length);
	atomic_store(word(ring, 0), at + size);
}

/* A note that might be of our connection, or of the honest one's. */
static void put_note(const struct ibv_qp *qp, const struct end *there)
{
	static const uint8_t known[] = { BTH_SEND_ONLY,	 BTH_WRITE_FIRST, BTH_WRITE_MIDDLE,
					 BTH_WRITE_LAST, BTH_WRITE_ONLY,  BTH_READ_RESPONSE_ONLY };
	uint32_t packets = 1 + (uint32_t)draw() % 8;
	struct engine_by_reference note = {
		.destination = there->number + (draw() % 4 ? 0 : (uint32_t)(draw() % 5) - 2),
		.source = qp->qp_num + (draw() % 4 ? 0 : (uint32_t)draw() % 65536),
		.psn = (uint32_t)(draw() % FIRST_PSNS),
		.packets = draw() % 8 ? packets : (uint32_t)draw(),
		.operation = known[draw() % sizeof known],
		.flags = (uint32_t)draw() % 4,
		.va = there->va + (draw() % 4 ? draw() % PART : draw() % (8 * PART) - 4 * PART),
		.rkey = draw() % 4 ? there->rkey : (uint32_t)draw(),
		.bytes = draw() % 8 ? packets * 1024ull : draw() % (2 * PART),
		.count = draw() % 16 ? 1 : (uint32_t)draw() % 32,
		.epoch = atomic_load(word((unsigned)(draw() % 2), SHM_EPOCHS_AT + qp->qp_num % SHM_EPOCHS * 8)),
	};
	int refused = draw() % 4 == 0;

	note.length = (uint32_t)(draw() % 2 ? note.bytes : draw() % PART);
	for (unsigned i = 0; i < BY_REFERENCE_RANGES; i++) {
		note.pieces[i].va = draw() % 4 ? (uintptr_t)memory + draw() % PART : draw() << 12;
		note.pieces[i].length = i ? draw() % 1024 : note.bytes;
	}
	if (refused) {
		uint32_t swap = note.source;
		note.source = note.destination;
		note.destination = swap;
	}
	put_record((unsigned)(draw() % 2), &note, sizeof note, refused ? REFUSED : BY_REFERENCE, 0);
}

/* Packets for queue pairs of anybody, without their ICRC. */
static void put_packets(const struct end *there)
{
	uint8_t bytes[3 * 512];
	uint32_t segment = 32 + (uint32_t)draw() % 480;

	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)draw();
	for (size_t at = 0; at + 12 < sizeof bytes; at += segment) {
		uint32_t number = there->number + (uint32_t)(draw() % 5) - 2;
		bytes[at] = (uint8_t)(draw() % 24);
		bytes[at + 5] = (uint8_t)(number >> 16);
		bytes[at + 6] = (uint8_t)(number >> 8);
		bytes[at + 7] = (uint8_t)number;
		bytes[at + 9] = bytes[at + 10] = 0;
		bytes[at + 11] = (uint8_t)(draw() % FIRST_PSNS);
	}
	put_record((unsigned)(draw() % 2), bytes, (uint32_t)draw() % sizeof bytes, PACKETS,
		   draw() % 8 ? segment : (uint32_t)draw());
}

static void attack(int other, uint64_t ms, uint64_t *records)
{
	struct end there;
	pthread_t flipper;

	me = "attacker";
	open_all();
	struct ibv_qp *qp = connect_by(other, cq, OPEN_PART, &there);
	post_send(qp, IBV_WR_RDMA_WRITE, part(OPEN_PART), mrs[OPEN_PART]->lkey, 70000, &there);
	complete(1);
	find_rings();
	CHECK(!pthread_create(&flipper, NULL, flip, NULL));
	for (uint64_t end = now_ms() + ms; now_ms() < end; usleep(200))
		for (int i = 0; i < 50; i++, ++*records) {
			if (draw() % 2)
				put_note(qp, &there);
			else
				put_packets(&there);
		}
	atomic_store(&over, 1);
	CHECK(!pthread_join(flipper, NULL));
	records[1] += atomic_load(&flipped);
	CHECK(send(other, "", 1, MSG_NOSIGNAL) == 1);
}

int main(int argc, char **argv)
{
	uint64_t attackers = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, round = 0;
	uint64_t ms = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
	uint64_t *records = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int by_honest[2], by_attackers[2], status;
	struct end honest, attacker;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	uint8_t byte;

	state = (argc > 3 ? strtoull(argv[3], NULL, 10) : 1) * 2654435761u + 1;
	CHECK(records != MAP_FAILED && !socketpair(AF_UNIX, SOCK_STREAM, 0, by_honest) &&
	      !socketpair(AF_UNIX, SOCK_STREAM, 0, by_attackers));
	/* all before anything is opened here */
	pid_t honest_pid = fork();
	if (!honest_pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(by_honest[0]);
		be_honest(by_honest[1]);
		return 0;
	}
	pid_t attackers_pid = fork();
	if (!attackers_pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint64_t i = 0; i < attackers; i++) {
			pid_t each = fork();
			if (!each) {
				state += i * 7919;
				attack(by_attackers[1], ms, records);
				_exit(0); /* as it may: it closes nothing */
			}
			CHECK(waitpid(each, &status, 0) == each && !status);
		}
		return 0;
	}
	me = "victim";
	close(by_honest[1]);
	open_all();
	qp = connect_by(by_honest[0], cq, HONEST_PART, &honest);
	CHECK(recv(by_honest[0], &byte, 1, MSG_WAITALL) == 1);
	post_receive(qp, ANSWER_PART);
	for (uint64_t i = 0; i < attackers; i++) {
		struct ibv_qp *theirs = connect_by(by_attackers[0], their_cq, OPEN_PART, &attacker);
		while (recv(by_attackers[0], &byte, 1, MSG_DONTWAIT) != 1) {
			CHECK(send(by_honest[0], "", 1, MSG_NOSIGNAL) == 1);
			exchange(qp, &honest, 0, round++);
			/* a READ from a peer that it cannot trust ends in an error at most */
			post_send(theirs, IBV_WR_RDMA_READ, part(OPEN_PART), mrs[OPEN_PART]->lkey, 8192, &attacker);
			while (context->ops.poll_cq(their_cq, 1, &wc) > 0)
				;
		}
		CHECK(!ibv_destroy_qp(theirs));
		while (context->ops.poll_cq(their_cq, 1, &wc) > 0)
			;
	}
	for (int i = 0; i < PARTS; i++)
		CHECK(is_filled(part(i) + PART, 0x11, PART));
	close(by_honest[0]);
	CHECK(waitpid(honest_pid, &status, 0) == honest_pid && !status);
	CHECK(waitpid(attackers_pid, &status, 0) == attackers_pid && !status);
	printf("%llu %llu %llu\n", (unsigned long long)round, (unsigned long long)records[0],
	       (unsigned long long)records[1]);
	return 0;
}
