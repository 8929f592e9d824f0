/* One of two programs that share rings (bypass/shm_loopback.h) against nonsense that the other writes there, to be run
 * under sanitizers: records, positions, notes with wild addresses, and words that a thread changes between check and
 * use. Arguments: seed, rounds. Prints records written, notes taken, notes sent back, notes of the victim's that took
 * the ring, and connections that ended with impossible numbers. A counter that says more than was moved ends it. */
#define _GNU_SOURCE
#define HOSTILE_DEVICE
#pragma GCC diagnostic ignored "-Wunused-function" /* of what is included */
#include "hostile_device.c"

#include "bypass/shm_loopback.h"

#include <pthread.h>
#include <sys/mman.h>

#define THEIR_BYTES 65536u
#define EACH 40u /* rounds of one connection */
#define HEADER 16u /* of a record */

enum { PACKETS, BY_REFERENCE, REFUSED, NOTHING };

static struct io_poll *poll_round;
static struct shm_loopback *shm;
static struct shm_loopback_path paths[QPS];
static struct tx_path ways[QPS];
static struct slot counted;
static union {
	uint8_t bytes[SHM_COOKIE_BYTES];
	uint64_t number;
} cookie;
static uint8_t *theirs, *rings; /* memory of the other program, and the file */
static uint64_t at; /* the other's position in its ring */
static int outlet[2], file;
static uint64_t put, ended, moved_packets, moved_bytes;
static _Atomic int flips, over;

static void *ring_word(unsigned ring, size_t offset)
{
	return rings + (size_t)ring * SHM_RING_ALL + offset;
}

static uint64_t *their_tail(void)
{
	return ring_word(1, 0);
}

/* Change words as the other program may, all the time. */
static void *flip(void *none)
{
	uint64_t mixed = 88172645463325252u;

	(void)none;
	while (!atomic_load(&over)) {
		int now = atomic_load(&flips);
		mixed ^= mixed << 13;
		mixed ^= mixed >> 7;
		mixed ^= mixed << 17;
		if (!now) {
			usleep(100);
			continue;
		}
		/* the last records, or the words of both rings' heads */
		size_t offset = mixed % 4 ? SHM_BYTES_AT + mixed / 4 % 4096 * 8 : mixed / 4 % 90 * 8;
		if (offset < SHM_BYTES_AT && now == 1)
			continue;
		_Atomic uint64_t *word = ring_word(mixed >> 40 & 1, offset);
		uint64_t bits = mixed >> 41 & 1 ? 1ull << (mixed >> 50 & 63) : mixed << 7;
		atomic_store_explicit(word, atomic_load(word) ^ bits, memory_order_relaxed);
	}
	return NULL;
}

static int read_here(void *self, uint64_t va, void *to, size_t length)
{
	(void)self;
	memcpy(to, (const void *)(uintptr_t)va, length);
	return 0;
}

static int write_here(void *self, uint64_t va, const void *from, size_t length)
{
	(void)self;
	memcpy((void *)(uintptr_t)va, from, length);
	return 0;
}

static const struct engine_memory here = { .read = read_here, .write = write_here };
static const struct engine_segment segment = { .memory = &here };

/* Map the file once more: each end has its own mapping, and the engine's ends with the connection. */
static uint8_t *map_rings(void)
{
	uint8_t *base = mmap(NULL, 2 * (size_t)SHM_RING_ALL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (base == MAP_FAILED)
		abort();
	return base;
}

/* Connect to the next program that has these numbers, with rings of zeros. Nothing there says that the last has ended.
 */
static void connect_rings(void)
{
	static const uint8_t name[UDP_NAME_BYTES] = { 2 }, no_rules[FAULT_TABLE_BYTES];
	static struct faults faults; /* without rules */
	size_t bytes = 2 * (size_t)SHM_RING_ALL;
	int ends[2];

	faults_init(&faults, no_rules, NULL);
	if (!shm)
		shm = shm_loopback_new(&device, &counted, &faults, NULL, name, 16);
	cookie.number++;
	memset(rings, 0, bytes);
	struct bypass_peer setup = {
		.first_number = 16, .numbers = 8, .pid = getpid(), .cookie_va = (uintptr_t)&cookie
	};
	setup.base = map_rings();
	setup.bytes = bytes;
	memcpy(setup.cookie, cookie.bytes, sizeof cookie);
	if (!shm || socketpair(AF_UNIX, SOCK_DGRAM, 0, ends))
		abort();
	close(ends[0]);
	setup.wake_fd = ends[1];
	if (shm_loopback_join(shm, &setup) || !shm_loopback_join(shm, &setup))
		abort(); /* the second time it is there already */
	struct ring_consumer *taker = ring_word(0, SHM_CONSUMER_AT);
	taker->attached = taker->pulls = 1;
	at = 0;
	poll_round->shm = shm;
	device.changes++;
}

/* The path of a queue pair to its peer, once its place is known anew. */
static void map(const struct engine_stop_info *told)
{
	if (told->stop != STOP_MAP_QP)
		return;
	struct engine_qp *found = whose(told->qp);
	size_t index = (size_t)(found - qps);

	serve(told);
	found->peer_path = NULL;
	ways[index] = (struct tx_path){ .socket = way.socket, .name_bytes = way.name_bytes, .max_segments = 8 };
	memcpy(ways[index].name, way.name, way.name_bytes);
	found->route = &ways[index];
	if (be_get(found->qpc, QPC_SERVTYPE) != ST_RC)
		return;
	found->peer_path = shm_loopback_path_of(shm, found, &paths[index]);
	ways[index].divert = found->peer_path ? shm_loopback_divert : NULL;
	ways[index].divert_arg = &paths[index];
}

/* ------------------------------------------------------------------ what the other one writes */

static void store(const void *bytes, size_t length, uint32_t kind, uint32_t cut)
{
	uint64_t size = (HEADER + length + SHM_RECORD_BYTES - 1) & ~(uint64_t)(SHM_RECORD_BYTES - 1),
		 offset = at & (SHM_RING_BYTES - 1);
	uint32_t header[4] = { (uint32_t)length, kind, cut, 0 };

	if (SHM_RING_BYTES - offset < size) {
		uint32_t rest[4] = { (uint32_t)(SHM_RING_BYTES - offset - HEADER), NOTHING, 0, 0 };
		memcpy(ring_word(1, SHM_BYTES_AT + offset), rest, sizeof rest);
		at += SHM_RING_BYTES - offset;
		offset = 0;
	}
	if (draw() % 256 == 0)
		header[draw() % 3] = (uint32_t)odd_number();
	memcpy(ring_word(1, SHM_BYTES_AT + offset), header, sizeof header);
	memcpy(ring_word(1, SHM_BYTES_AT + offset + HEADER), bytes, length);
	at += size;
	put++;
	atomic_store((_Atomic uint64_t *)their_tail(), draw() % 512 ? at : at + odd_number());
}

/* Bytes of the other's memory, in some pieces; mostly as many as said. */
static void pieces(struct engine_by_reference *note)
{
	uint64_t left = note->bytes;

	note->count = (uint32_t)(1 + draw() % (draw() % 4 ? 2 : BY_REFERENCE_RANGES));
	for (uint32_t i = 0; i < note->count; i++) {
		uint64_t part = i + 1 == note->count ? left : lesser(left, draw() % 600);
		note->pieces[i].va = (uintptr_t)theirs + draw() % THEIR_BYTES / 2;
		note->pieces[i].length = part;
		left -= part;
	}
	if (draw() % 16 == 0)
		note->pieces[draw() % BY_REFERENCE_RANGES].va = draw() % 2 ? odd_number() : (uintptr_t)rings;
	if (draw() % 32 == 0)
		note->pieces[draw() % BY_REFERENCE_RANGES].length = odd_number();
	if (draw() % 64 == 0)
		note->count = (uint32_t)odd_number();
}

/* A note that mostly fits what the queue pair waits for. */
static void write_note(void)
{
	static const uint8_t known[] = { BTH_SEND_FIRST,    BTH_SEND_MIDDLE,   BTH_SEND_LAST,	 BTH_SEND_ONLY,
					 BTH_SEND_ONLY_IMM, BTH_WRITE_FIRST,   BTH_WRITE_MIDDLE, BTH_WRITE_LAST,
					 BTH_WRITE_ONLY,    BTH_WRITE_ONLY_IMM };
	look_at((unsigned)(draw() % QPS));
	const struct queue_pair *record = qp.record;
	const struct read_piece *piece = engine_piece(&qp, 0);
	int waits = record->piece_count && piece->index < ENTRIES && draw() % 4;
	uint8_t opcode = draw() % 32 ? known[draw() % sizeof known] : (uint8_t)draw();
	if (record->open == OPEN_SEND && draw() % 8)
		opcode = BTH_SEND_MIDDLE + draw() % 2;
	if (record->open == OPEN_WRITE && draw() % 8)
		opcode = BTH_WRITE_MIDDLE + draw() % 2;
	struct engine_by_reference note = {
		.destination = number,
		.source = number + 1,
		.psn = (uint32_t)(be_get(qp.qpc, QPC_EXPECTED_PSN) & PSN_MASK),
		.packets = (uint32_t)(1 + draw() % 4),
		.flags = (uint32_t)(draw() % 4),
		.va = address(),
		.rkey = key(),
		.epoch = ((uint64_t *)ring_word(1, SHM_EPOCHS_AT))[(number + 1) % SHM_EPOCHS],
	};
	if (waits) {
		uint64_t length = entry_get(&qp.sends[piece->index], SQE_LENGTH),
			 offset = piece->offset + piece->got * record->mtu;
		note.packets = (uint32_t)(1 + draw() % (piece->packets - piece->got + 1));
		note.psn = (uint32_t)(piece_due(piece) & PSN_MASK);
		note.bytes = lesser(note.packets * record->mtu, length - offset);
		opcode = BTH_READ_RESPONSE_FIRST + (uint8_t)(piece->got ? 1 : 0);
		if (piece->got + note.packets == piece->packets)
			opcode += piece->got ? 1 : 3;
		struct ring_control *control = ring_word(1, SHM_CONTROL_AT);
		note.epoch += control->keys;
	} else if (opcode_rows[opcode].flags & ROW_END) {
		note.bytes = (note.packets - 1) * 256 + 1 + draw() % 256;
		if (record->open == OPEN_WRITE)
			note.bytes = record->write_length - record->offset;
		if (record->open == OPEN_WRITE)
			note.packets = (uint32_t)((note.bytes + 255) / 256);
	} else {
		note.bytes = (uint64_t)note.packets * 256;
	}
	note.length = (uint32_t)(opcode_rows[opcode].flags & ROW_END ? note.bytes : note.bytes + 1 + draw() % 600);
	note.operation = opcode;
	pieces(&note);
	if (draw() % 8 == 0)
		note.psn = (uint32_t)(draw() % 2 ? note.psn + draw() % 8 - 4 : odd_number());
	if (draw() % 16 == 0)
		note.packets = (uint32_t)odd_number();
	if (draw() % 32 == 0)
		((uint32_t *)&note)[draw() % (sizeof note / 4)] = (uint32_t)odd_number();
	int refused = draw() % 8 == 0;
	if (refused) {
		note.source = number;
		note.destination = number + 1;
		note.psn = (uint32_t)((record->una + draw() % 8) & PSN_MASK);
	}
	store(&note, draw() % 128 ? sizeof note : draw() % sizeof note, refused ? REFUSED : BY_REFERENCE, 0);
}

static void write_records(void)
{
	for (uint64_t more = draw() % 6; more; more--) {
		uint8_t bytes[2048];
		uint64_t cut;
		if (draw() % 2) {
			write_note();
			continue;
		}
		uint64_t length = burst(bytes, &cut);
		store(bytes, length, PACKETS, (uint32_t)(draw() % 64 ? cut : odd_number()));
	}
	if (draw() % 16 == 0)
		*(uint64_t *)ring_word(draw() % 2, SHM_CONTROL_AT + draw() % 4 * 8) = draw() % 2;
	if (draw() % 32 == 0)
		*(uint64_t *)ring_word(draw() % 2, SHM_EPOCHS_AT + draw() % SHM_EPOCHS * 8) = odd_number();
	struct ring_consumer *taker = ring_word(0, SHM_CONSUMER_AT);
	struct ring_producer *victim = ring_word(0, 0);
	taker->head = draw() % 256 ? victim->tail : odd_number();
	taker->asleep = draw() % 2;
	if (draw() % 32 == 0)
		taker->attached ^= 1;
}

/* ------------------------------------------------------------------ the victim */

/* No counter says more than was moved, whatever the notes say. */
static void check_counters(uint64_t rounds)
{
	uint64_t most = 8192 * (rounds + 1);

	for (unsigned i = 0; i < QPS; i++)
		moved_bytes = greater(moved_bytes, qps[i].record->came_bytes);
	moved_packets = device.counts.rx_packets;
	if (moved_packets > most || moved_bytes > most * 256 || counted.shm_refused > most) {
		fprintf(stderr, "%llu packets, %llu bytes, %llu refused after %llu rounds\n",
			(unsigned long long)moved_packets, (unsigned long long)moved_bytes,
			(unsigned long long)counted.shm_refused, (unsigned long long)rounds);
		abort();
	}
}

static void run_round(uint64_t now)
{
	struct engine_stop_info told;
	unsigned stops = 0;

	do {
		io_poll(poll_round, now, draw() % 300, &told);
		map(&told);
		if (told.stop == STOP_PUNT_PACKET) {
			uint64_t from, to;
			const struct rx_buffer *punted = io_poll_punt(poll_round, &from, &to);
			io_poll_add_sender(poll_round, punted->name, 16, &meta.flow);
			left++;
		} else if (told.stop == STOP_PUNT_TURN) {
			take_over(&poll_round->sending);
		}
		if (++stops > 100000)
			abort(); /* a round that does not end */
	} while (told.stop != STOP_DONE || poll_round->phase != POLL_IDLE);
	shm_loopback_pending(shm, (int)(draw() % 2));
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
	struct tx_socket socket_of = { .ipv4 = 1, .tclass = -1, .hop_limit = -1 };
	struct sockaddr_in there;
	pthread_t flipper;

	state = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 2654435761u + 1;
	lay_out();
	for (unsigned i = 0; i < 4; i++) {
		keys[i].base = (uintptr_t)reach[i].bytes;
		reach[i] = (struct engine_mapping){ .segment = keys[i].base ? &segment : NULL };
	}
	theirs = buffer_of(THEIR_BYTES);
	file = memfd_create("rings", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, 2 * (off_t)SHM_RING_ALL))
		abort();
	rings = map_rings();
	meta.frag = DONT_FRAGMENT;
	outlet[0] = open_socket(&there);
	outlet[1] = open_socket(&there);
	socket_of.fd = outlet[0];
	way = (struct tx_path){ .socket = &socket_of, .name_bytes = sizeof there, .max_segments = 8 };
	memcpy(way.name, &there, sizeof there);
	poll_round = buffer_of(sizeof *poll_round);
	uint8_t *buffers = buffer_of((size_t)POLL_RECEIVE_LIMIT * POLL_BUFFER_BYTES), *out = buffer_of(POLL_OUT_BYTES);
	io_poll_init(poll_round, &device, outlet[0], buffers, out);
	poll_round->ring_receive = shm_loopback_receive;
	poll_round->ring_take = shm_loopback_take;
	if (pthread_create(&flipper, NULL, flip, NULL))
		abort();
	for (uint64_t i = 0; i < rounds; i++) {
		if (i % EACH == 0) {
			atomic_store(&flips, 0);
			usleep(10);
			begin_all();
			memset(&poll_round->sending, 0, sizeof poll_round->sending);
			connect_rings();
			atomic_store(&flips, (int)(i / EACH % 4) - 1 > 0 ? (int)(i / EACH % 4) - 1 : 0);
		}
		post_and_ring();
		write_records();
		run_round(1000 * i);
		deadlines(draw() % 8 ? 1000 * i : odd_number());
		check_counters(i);
		ended += i % EACH == EACH - 1 && !((struct ring_consumer *)ring_word(1, SHM_CONSUMER_AT))->attached;
		uint8_t bytes[2048];
		while (recv(outlet[1], bytes, sizeof bytes, 0) >= 0)
			;
	}
	atomic_store(&over, 1);
	pthread_join(flipper, NULL);
	shm_loopback_free(shm);
	io_poll_end(poll_round);
	printf("%llu %llu %llu %llu %llu\n", (unsigned long long)put, (unsigned long long)moved_packets,
	       (unsigned long long)counted.shm_refused, (unsigned long long)counted.shm_packets,
	       (unsigned long long)ended);
	free(poll_round);
	free(buffers);
	free(out);
	free(theirs);
	return 0;
}
