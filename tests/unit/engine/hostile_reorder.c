/* The reorder buffer of selective repeat (io/reorder.h) before a hostile peer, to be run under sanitizers: packets far
 * beyond the gap and long ago, the same PSN with other bytes and opcodes, more than there is room for, keys that end and
 * queue pairs that are connected anew meanwhile. Arguments: seed, packets. Prints packets sent, executed, and executed
 * from the buffer. A byte that no packet of its place had, in the right order, ends it. */
#define _GNU_SOURCE
#define HOSTILE_DEVICE
#pragma GCC diagnostic ignored "-Wunused-function" /* of what is included */
#include "hostile_device.c"

#include "queue_pair/crc32.h"
#include "queue_pair/psn.h"

#define MTU 256u
#define PLACES 8u /* messages in memory at once, each up to MOST packets */
#define MOST 4u
#define MESSAGE (MOST * MTU)
#define AHEAD 1024u /* PSNs that are known beyond the next one */

/* What was sent as a PSN's packet, rightly sealed: which bytes its payload was filled with. */
struct sent {
	uint64_t psn;
	uint8_t opcode, place, index, packets;
	uint8_t fills[32]; /* a bit for each */
};

struct world {
	struct sent sent[AHEAD];
	uint64_t next, known; /* the PSN that is executed next, and the one whose packet is not decided on yet */
	int single; /* each message is one packet, so that bursts may be long */
	uint8_t shadow[PLACES * MESSAGE];
	uint8_t *memory;
};

static struct world worlds[QPS];
static struct io_poll *poll_round;
static uint8_t *arriving;
static size_t arriving_bytes, arriving_cut;
static uint64_t sent_packets, executed, released, now;

static struct sent *sent_at(struct world *world, uint64_t psn)
{
	return &world->sent[psn % AHEAD];
}

/* Decide on the messages of the PSNs before `end`. */
static void decide(struct world *world, uint64_t end)
{
	while (world->known < end) {
		uint8_t packets = (uint8_t)(world->single ? 1 : 1 + draw() % MOST), place = (uint8_t)(draw() % PLACES);
		for (uint8_t i = 0; i < packets; i++) {
			uint8_t opcode = packets == 1	  ? BTH_WRITE_ONLY :
					 !i		  ? BTH_WRITE_FIRST :
					 i + 1 == packets ? BTH_WRITE_LAST :
							    BTH_WRITE_MIDDLE;
			*sent_at(world, world->known) = (struct sent){ world->known, opcode, place, i, packets, { 0 } };
			world->known++;
		}
	}
}

/* A packet of a PSN, right but for its fill, or wrong in one thing. */
static void send_packet(unsigned index, uint64_t psn)
{
	struct world *world = &worlds[index];

	psn = world->next + (uint64_t)psn_diff(psn & PSN_MASK, world->next & PSN_MASK);
	struct sent *known = psn >= world->next && psn < world->known ? sent_at(world, psn) : NULL;
	uint8_t fill = (uint8_t)draw(), opcode = known ? known->opcode : BTH_WRITE_ONLY;
	uint64_t place = known ? known->place : draw() % PLACES, packets = known ? known->packets : 1;
	uint64_t wrong = draw() % 8 ? 0 : 1 + draw() % 6;
	uint8_t *to = arriving + arriving_bytes;
	uint32_t rkey = index << 16 | 0x55;

	if (wrong == 1)
		opcode = BTH_SEND_FIRST + (uint8_t)(draw() % 12);
	if (wrong == 2)
		rkey ^= 1u << draw() % 32;
	uint64_t header = opcode_rows[opcode].header_bytes, covered = header + MTU;
	memset(to, 0, covered + 4);
	memset(to + header, fill, MTU);
	be_store(to, 8, (uint64_t)opcode << 56 | (uint64_t)0xFFFF << 32 | (16 + index));
	be_store(to + 8, 4, (psn & PSN_MASK) | (draw() & 1) << 31);
	if (opcode_rows[opcode].flags & ROW_RETH) {
		be_store(to + 12, 8, 0x10000 * (index + 1) + place * MESSAGE + (wrong == 3 ? PLACES * MESSAGE : 0));
		be_store(to + 20, 4, rkey);
		be_store(to + 24, 4, packets * MTU + (wrong == 4));
	}
	uint32_t ident = arriving_cut ? (uint32_t)(arriving_bytes / arriving_cut) : 0;
	uint32_t crc = engine_icrc_begin(engine_crc32, &meta.flow, covered + 4, ident, DONT_FRAGMENT, to, 8);
	crc = engine_crc32(crc, to + 8, covered - 8) ^ (wrong == 5 ? 1u << draw() % 32 : 0);
	for (unsigned i = 0; i < 4; i++)
		to[covered + i] = (uint8_t)(crc >> 8 * i);
	/* A key, address or length is that of the message, and only its first packet says it. Whether the length is right
	 * shows at the last, before which a longer message goes on. */
	int starts = opcode_rows[opcode].flags & ROW_RETH, longer = wrong == 4 && opcode == BTH_WRITE_FIRST;
	int same = known &&
		   (opcode == known->opcode || (opcode == BTH_WRITE_MIDDLE && known->opcode == BTH_WRITE_LAST));
	if (same && (wrong < 2 || wrong == 6 || (wrong < 5 && !starts) || longer))
		known->fills[fill / 8] |= (uint8_t)(1 << fill % 8);
	if (!arriving_cut)
		arriving_cut = covered + 4;
	arriving_bytes += covered + 4;
	sent_packets++;
}

/* A burst for one queue pair: in order, in another order, the same again, or far away. */
static void send_burst(void)
{
	unsigned index = (unsigned)(draw() % QPS), count = (unsigned)(1 + draw() % 12);
	struct world *world = &worlds[index];
	uint64_t psn = world->next + (draw() % 4 ? draw() % 3 : draw() % 600);

	decide(world, world->next + 700);
	arriving_bytes = arriving_cut = 0;
	if (draw() % 32 == 0) /* there is no room for all of two such bursts */
		count = 200;
	for (unsigned i = 0; i < count; i++) {
		/* all packets of a burst have one size, but for the last */
		int jumps = draw() % (count == 200 ? 256 : 16) == 0;
		const struct sent *known = psn < world->known ? sent_at(world, psn) : NULL;
		size_t size = (known && opcode_rows[known->opcode].flags & ROW_RETH ? 28u : 12u) + MTU + 4;
		if (arriving_cut && size != arriving_cut)
			break;
		send_packet(index, psn);
		if (arriving_bytes % arriving_cut)
			break; /* another opcode had another size */
		psn = jumps	       ? world->next + draw() % 700 - 3 :
		      draw() % 8       ? psn + 1 :
		      draw() % 8 == 0  ? world->next - draw() % 5 :
		      draw() % 16 == 0 ? draw() :
					 psn;
	}
}

static unsigned receive(void *self, struct rx_buffer *buffers, unsigned count, uint64_t at_ns)
{
	(void)self;
	(void)at_ns;
	(void)count;
	if (!arriving_bytes)
		return 0;
	memcpy(buffers[0].buffer, arriving, arriving_bytes);
	buffers[0].size = arriving_bytes;
	buffers[0].segment = (uint32_t)arriving_cut;
	buffers[0].kind = 0;
	buffers[0].tclass = 0;
	buffers[0].name_bytes = 16;
	memset(buffers[0].name, 7, 16);
	arriving_bytes = 0;
	return 1;
}

static int swallow(void *self, const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
		   uint32_t count)
{
	(void)path;
	(void)self, (void)bytes, (void)length, (void)segment, (void)count;
	return 1;
}

/* A new connection: packets kept of the last one are nothing to it. */
static void connect_again(unsigned index)
{
	struct world *world = &worlds[index];
	uint64_t edge = draw() % 4 ? draw() & PSN_MASK : PSN_MASK - draw() % 300;
	/* half of the time the PSNs are those of before, where packets may still be kept */
	uint64_t psn = draw() % 2 && world->next ? world->next + draw() % 20 : edge + (1u << 26);
	struct queue_pair *record = qps[index].record;

	be_put(qps[index].qpc, QPC_EXPECTED_PSN, psn & PSN_MASK);
	record->generation++;
	record->open = OPEN_NOTHING;
	record->offset = record->nak_sent = record->reply_count = 0;
	/* a PSN's number here goes on, so that those of before are not known */
	memset(world->sent, 0, sizeof world->sent);
	world->single = (int)(draw() % 2);
	world->next = world->known = psn;
}

static void find(unsigned index, uint64_t psn, const char *what)
{
	fprintf(stderr, "QP %u, PSN %llu: %s after %llu packets\n", 16 + index, (unsigned long long)(psn & PSN_MASK),
		what, (unsigned long long)sent_packets);
	abort();
}

/* Hold a queue pair to what was sent: all that was executed, in order, and nothing else. */
static void check(unsigned index)
{
	struct world *world = &worlds[index];
	uint64_t expected = be_get(qps[index].qpc, QPC_EXPECTED_PSN);
	uint64_t count = (expected - world->next) & PSN_MASK;
	uint8_t touched[PLACES][MOST] = { { 0 } };

	if (count > world->known - world->next)
		find(index, expected, "what was never sent was executed");
	if (count > 1)
		released += count - 1;
	executed += count;
	for (uint64_t psn = world->next; psn < world->next + count; psn++) {
		const struct sent *known = sent_at(world, psn);
		static const uint8_t none[32];
		if (known->psn != psn || !memcmp(known->fills, none, sizeof none))
			find(index, psn, "executed, and no right packet of it was sent");
		touched[known->place][known->index] = 1;
	}
	for (uint64_t at = 0; at < PLACES * MOST; at++) {
		uint8_t *now_there = world->memory + at * MTU, *before = world->shadow + at * MTU;
		if (!touched[at / MOST][at % MOST]) {
			if (memcmp(now_there, before, MTU))
				find(index, world->next, "memory changed that nothing was written to");
			continue;
		}
		int right = 0;
		for (uint64_t psn = world->next; psn < world->next + count; psn++) {
			const struct sent *known = sent_at(world, psn);
			right |= known->place == at / MOST && known->index == at % MOST &&
				 known->fills[now_there[0] / 8] >> now_there[0] % 8 & 1;
		}
		for (unsigned i = 1; i < MTU; i++)
			right &= now_there[i] == now_there[0];
		if (!right)
			find(index, world->next, "bytes that no right packet had");
		memcpy(before, now_there, MTU);
	}
	world->next += count;
}

static void run_round(void)
{
	struct engine_stop_info told;
	unsigned stops = 0;

	do {
		io_poll(poll_round, now, 300, &told);
		serve(&told);
		if (told.stop == STOP_PUNT_PACKET) {
			/* the reference refuses it; nothing behind it is taken */
			uint64_t from, to;
			io_poll_punt(poll_round, &from, &to);
			left++;
		} else if (told.stop == STOP_PUNT_TURN) {
			take_over(&poll_round->sending);
		}
		if (++stops > 10000)
			abort(); /* a round that does not end */
	} while (told.stop != STOP_DONE || poll_round->phase != POLL_IDLE);
}

int main(int argc, char **argv)
{
	static const uint8_t name[16] = { 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7 };
	uint64_t most = argc > 2 ? strtoull(argv[2], NULL, 10) : 10000;
	struct tx_socket socket_of = { .fd = -1, .ipv4 = 1 };

	state = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 2654435761u + 1;
	lay_out();
	begin_all();
	keys = buffer_of(QPS * sizeof *keys);
	struct engine_mapping *mappings = buffer_of(QPS * sizeof *mappings);
	for (unsigned i = 0; i < QPS; i++) {
		keys[i] = (struct memory_key){ .key = i << 16 | 0x55, .valid = 1, .pd = 1, .access = 0xF };
		keys[i].start = keys[i].base = 0x10000 * (i + 1);
		keys[i].end = keys[i].start + PLACES * MESSAGE;
		worlds[i].memory = buffer_of(PLACES * MESSAGE);
		mappings[i].bytes = worlds[i].memory;
		be_put(qps[i].qpc, QPC_SERVTYPE, ST_RC);
		be_put(qps[i].qpc, QPC_OPTIONS, OPT_SELECTIVE_REPEAT);
		be_put(qps[i].qpc, QPC_SRQN, 0);
		qps[i].srq = NULL;
		qps[i].record->service = qps[i].record->opcodes = 0;
		qps[i].record->peer_record = place_of(peer);
		connect_again(i);
	}
	port.keys = keys;
	port.reach = mappings;
	port.key_count = QPS;
	port.crc = engine_crc32;
	meta.frag = DONT_FRAGMENT;
	way = (struct tx_path){ .socket = &socket_of, .max_segments = 8, .divert = swallow };
	arriving = buffer_of(POLL_BUFFER_BYTES);
	poll_round = buffer_of(sizeof *poll_round);
	uint8_t *buffers = buffer_of((size_t)POLL_RECEIVE_LIMIT * POLL_BUFFER_BYTES), *out = buffer_of(POLL_OUT_BYTES);
	io_poll_init(poll_round, &device, -1, buffers, out);
	io_poll_add_sender(poll_round, name, sizeof name, &meta.flow);
	poll_round->ring_receive = receive;
	while (sent_packets < most) {
		unsigned index = (unsigned)(draw() % QPS);
		now += draw() % 4096 ? 1000 : 200000000;
		poll_round->rounds_since_socket = 0; /* there is none */
		poll_round->ring_only_rounds = 2;
		if (draw() % 512 == 0)
			connect_again(index);
		if (draw() % 64 == 0)
			keys[index].valid ^= 1;
		if (draw() % 16 == 0)
			keys[index].valid = 1;
		send_burst();
		run_round();
		for (unsigned i = 0; i < QPS; i++)
			check(i);
		deadlines(now);
	}
	printf("%llu %llu %llu\n", (unsigned long long)sent_packets, (unsigned long long)executed,
	       (unsigned long long)released);
	io_poll_end(poll_round);
	free(poll_round);
	free(buffers);
	free(out);
	free(arriving);
	for (unsigned i = 0; i < QPS; i++)
		free(worlds[i].memory);
	free(keys);
	free(mappings);
	return 0;
}
