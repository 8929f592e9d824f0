/* The engine against memory and packets of somebody who means ill, to be run under sanitizers: between any two pieces of
 * memory there are bytes that nobody may touch, so that a byte beside one is seen. Arguments: seed, rounds. Prints what
 * was taken and made. hostile_port.c takes all but `main` for a whole device. */
#include "queue_pair/arithmetic.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/datagram.h"
#include "queue_pair/icrc.h"
#include "queue_pair/send_queue.h"

#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>

#define ENTRIES 8u
#define SLAB 64u
#define STRIDE 64u
#define CQ_ENTRIES 16u
#define REGION 8192u
#define KEY 0x00010055u

static uint64_t state;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t odd_number(void)
{
	static const uint64_t odd[] = { 0,    1,    2,	      7,	  8,	      9,     255,
					4096, 4097, 0xFFFFFF, 1ull << 31, 1ull << 63, ~0ull, ~0ull - 7 };
	return draw() & 1 ? odd[draw() % (sizeof odd / sizeof *odd)] : draw() >> draw() % 64;
}

static uint32_t crc32(uint32_t crc, const uint8_t *data, uint64_t length)
{
	crc = ~crc;
	while (length--) {
		crc ^= *data++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
	}
	return ~crc;
}

#define BLOCK (1u << 20)
#define GAP 64u
static uint8_t *block;
static size_t used;

/* A piece of one block, so that places in it are offsets; what lies between two pieces must not be touched. */
static void *piece(size_t size)
{
	if (!block) {
		block = calloc(1, BLOCK);
		if (!block)
			abort();
		__asan_poison_memory_region(block, BLOCK);
	}
	size_t at = used;
	used += (size + 7) / 8 * 8 + GAP;
	if (used > BLOCK)
		abort();
	__asan_unpoison_memory_region(block + at, size);
	return block + at;
}

static void *buffer_of(size_t size)
{
	void *made = calloc(1, size);
	if (!made)
		abort();
	return made;
}

static struct memory_key *keys;
static struct engine_mapping reach[4];
static struct engine_shared port;
static struct engine_qp qp;
static struct engine_cq cq;
static struct engine_meta meta;
static uint8_t *sq, *rq, *shared;
static struct shared_receive_queue *srq;
static _Atomic uint32_t *srq_block;
static uint32_t number = 16; /* of the queue pair */
#define QKEY 0x1111u

static void begin(void)
{
	uint8_t *qpc = qp.qpc;
	memset(qpc, 0, QPC_SIZE);
	be_put(qpc, QPC_STATE, QP_STATE_RTS);
	be_put(qpc, QPC_MTU, 1);
	be_put(qpc, QPC_LOCAL_QPN, number);
	be_put(qpc, QPC_REMOTE_QPN, number + 1);
	be_put(qpc, QPC_QKEY, QKEY);
	be_put(qpc, QPC_PD, 1);
	be_put(qpc, QPC_ACCESS_FLAGS, 0xF);
	be_put(qpc, QPC_MAX_RD_ATOMIC, 2);
	be_put(qpc, QPC_MAX_DEST_RD_ATOMIC, 4);
	be_put(qpc, QPC_EXPECTED_PSN, 100);
	be_put(qpc, QPC_NEXT_SEND_PSN, 100);
	struct queue_pair *record = qp.record;
	memset(record, 0, sizeof *record);
	memset(qp.sends, 0, ENTRIES * sizeof *qp.sends);
	record->una = record->sent_psn = 100;
	record->read_index = record->lsn = record->rtt_psn = record->receive_index = NONE;
	record->ack_deadline = record->probe_deadline = record->rnr_until = record->control_ns = record->pace_ns =
		NEVER;
	record->retry_left = record->rnr_left = 3;
	record->ack_timeout = 4096;
	record->window = record->widest = 64;
	record->ack_every = 16;
	record->read_chunk = 4;
	record->mtu = 256;
	record->head = (uint64_t)0x4000FFFF << 32;
	record->established = 1;
	record->batch_limit = 15;
	record->sq_entries = record->rq_entries = ENTRIES;
	record->sq_shift = 6;
	record->sq_slab_bytes = SLAB;
	record->rq_stride = STRIDE;
	if (draw() % 4 == 0) {
		be_put(qpc, QPC_SERVTYPE, ST_UC);
		record->service = SERVICE_UC;
	} else if (draw() % 4 == 0) {
		be_put(qpc, QPC_SERVTYPE, ST_UD);
		record->service = SERVICE_UD;
	}
	be_put(qpc, QPC_OPTIONS, (draw() % 4 ? 0 : OPT_CREDITS) | (draw() & 1 ? OPT_SELECTIVE_REPEAT : 0));
	/* now its own receive ring, now a shared one */
	int shares = draw() & 1;
	be_put(qpc, QPC_SRQN, shares ? SRQ_VALID | 3 : 0);
	qp.srq = shares ? srq : NULL;
	qp.srq_block = shares ? srq_block : NULL;
	qp.rq = shares ? shared : rq;
	qp.rq_bytes = ENTRIES * (STRIDE + (shares ? SRQ_ORDER_BYTES : 0));
	record->uses_srq = (uint64_t)shares;
	*srq = (struct shared_receive_queue){ .entries = ENTRIES, .stride = STRIDE, .pd = 1, .limit = draw() % 4 };
	memset(cq.record, 0, sizeof *cq.record);
	cq.record->logsize = 4;
	cq.record->phase = CQE_PHASE;
	for (unsigned i = 0; i < 32; i++)
		qp.block[i] = cq.block[i] = 0;
}

static void make_shared(void)
{
	keys = piece(4 * sizeof *keys);
	for (unsigned i = 0; i < 4; i++) {
		uint32_t length = i == 3 ? 1 : REGION >> i;
		keys[i] = (struct memory_key){ .key = i << 16 | 0x55, .valid = i != 2, .pd = 1, .access = 0xF };
		keys[i].start = 0x1000 * (i + 1);
		keys[i].end = keys[i].start + length;
		keys[i].base = keys[i].start;
		reach[i].bytes = i == 2 ? NULL : piece(length);
	}
	port = (struct engine_shared){
		.keys = keys, .reach = reach, .key_count = 4, .crc = crc32, .ack_every = 64, .probe = 1
	};
	cq.record = piece(sizeof *cq.record);
	cq.ring = piece(CQ_ENTRIES << CQE_SHIFT);
	cq.entries = CQ_ENTRIES;
	cq.block = piece(128);
	shared = piece(ENTRIES * (STRIDE + SRQ_ORDER_BYTES));
	srq = piece(sizeof *srq);
	srq_block = piece(128);
	meta.flow.address_bytes = 4;
}

static void make(void)
{
	qp.qpc = piece(QPC_SIZE);
	qp.record = piece(sizeof *qp.record);
	qp.sends = piece(ENTRIES * sizeof *qp.sends);
	qp.pieces = piece(QP_PIECES * sizeof *qp.pieces);
	qp.replies = piece(QP_REPLIES * sizeof *qp.replies);
	qp.resources = piece(QP_RESOURCES * sizeof *qp.resources);
	qp.scatters = piece(QP_SCATTERS * sizeof *qp.scatters);
	qp.send_wqes = ENTRIES;
	qp.sq_bytes = ENTRIES * (64 + SLAB);
	qp.sq = sq = piece(qp.sq_bytes);
	qp.rq_bytes = ENTRIES * STRIDE;
	qp.rq = rq = piece(qp.rq_bytes);
	qp.destinations = piece(ENGINE_DESTINATIONS * sizeof *qp.destinations);
	qp.block = piece(128);
	qp.send_cq = qp.recv_cq = &cq;
	qp.flow.address_bytes = 4;
	for (unsigned i = 0; i < ENGINE_DESTINATIONS; i++)
		qp.destinations[i] = (struct engine_destination){ .max_segments = 0 };
	for (uint64_t i = 0; i < 4; i++) {
		const uint64_t gid[2] = { i, 7 };
		qp.destinations[engine_destination_place(0, gid)] = (struct engine_destination){
			.gid = { i, 7 },
			.hop_limit = 64,
			.flow = { .address_bytes = i & 1 ? 16 : 4 },
			.max_segments = 1 + 8 * i,
		};
	}
}

/* Mostly of one region, which address() chooses and key() opens. */
static uint64_t region;

static uint64_t address(void)
{
	region = draw() % 8 ? draw() % 2 : 2 + draw() % 2;
	return 0x1000 * (1 + region) + (draw() % 8 ? draw() % 64 : odd_number());
}

static uint32_t key(void)
{
	return draw() % 16 ? (uint32_t)region << 16 | 0x55 : (uint32_t)odd_number();
}

static void post(void)
{
	static const uint8_t known[] = { WR_SEND, WR_SEND_IMM, WR_WRITE, WR_WRITE_IMM, WR_READ, WR_CMP_SWAP, WR_NOP };
	uint8_t *entry = sq + draw() % ENTRIES * 64;
	uint64_t words[8] = { 0 };
	uint64_t length = draw() % 8 ? draw() % 1000 : (uint32_t)odd_number();
	uint64_t opcode = known[draw() % 2 ? draw() % 4 : draw() % sizeof known];
	words[0] = opcode << 32 | draw() % (draw() % 4 ? 8 : 32) << 48;
	words[1] = address();
	if (opcode == WR_CMP_SWAP && draw() % 4)
		length = 8;
	words[2] = address();
	words[3] = (uint32_t)length | (uint64_t)key() << 32;
	words[4] = draw();
	if (qp.record->service == SERVICE_UD) {
		words[2] = draw() % 8 ? 0 : odd_number();
		words[5] = draw() % 5;
		words[6] = 7;
		words[7] = draw() << 32 | (uint64_t)64 << 24 | (draw() & 0xFFFFFF);
		if (draw() % 8)
			words[3] = draw() % 257 | (uint64_t)key() << 32;
	}
	memcpy(entry, words, sizeof words);
	qp.record->tail = draw() % ENTRIES;
	/* a scatter list behind it, mostly of its length */
	uint64_t count = draw() % 4, left = length;
	for (uint64_t i = 0; words[0] >> 52 & 1 && i < count; i++) {
		uint64_t part = i + 1 == count ? left : left / 2;
		uint64_t span[2] = { address(), (uint64_t)key() << 32 | (uint32_t)(draw() % 16 ? part : odd_number()) };
		memcpy(sq + ENTRIES * 64 + (uint64_t)(entry - sq) / 64 * SLAB + i * 16, span, sizeof span);
		left -= part;
		words[3] = (uint32_t)length | (draw() % 16 ? count : odd_number()) << 32;
		memcpy(entry + 24, &words[3], 8);
	}
	uint64_t sge[2] = { address(), (uint64_t)key() << 32 | (draw() % 4 ? draw() % 500 : (uint32_t)odd_number()) };
	memcpy(rq + draw() % ENTRIES * STRIDE + draw() % 4 * 16, sge, sizeof sge);
	memcpy(shared + draw() % ENTRIES * STRIDE + draw() % 4 * 16, sge, sizeof sge);
	uint32_t slot = (uint32_t)(draw() % 16 ? draw() % ENTRIES : odd_number());
	memcpy(shared + ENTRIES * STRIDE + draw() % ENTRIES * SRQ_ORDER_BYTES, &slot, sizeof slot);
	srq_block[REG_RQ_TAIL / 4] = (uint32_t)(draw() % (ENTRIES + 1));
	if (draw() % 64 == 0)
		((uint64_t *)srq)[draw() % (sizeof *srq / 8)] = odd_number();
	qp.block[REG_RQ_TAIL / 4] = (uint32_t)(draw() % (ENTRIES + 1));
	cq.block[REG_CQ_HEAD / 4] = (uint32_t)(draw() % 8 ? cq.record->tail : odd_number());
	cq.block[REG_CQ_DOORBELL / 4] = (uint32_t)(draw() % 3);
}

/* One packet that is mostly in order, sealed after its bytes were spoilt here and there. */
static uint64_t packet(uint8_t *to)
{
	static const uint8_t known[] = { BTH_SEND_FIRST,    BTH_SEND_MIDDLE,	BTH_SEND_LAST,	    BTH_SEND_ONLY,
					 BTH_SEND_ONLY_IMM, BTH_WRITE_FIRST,	BTH_WRITE_MIDDLE,   BTH_WRITE_LAST,
					 BTH_WRITE_ONLY,    BTH_WRITE_ONLY_IMM, BTH_WRITE_LAST_IMM, BTH_ACKNOWLEDGE,
					 BTH_READ_REQUEST,  BTH_COMPARE_SWAP,	BTH_FETCH_ADD };
	uint8_t opcode = draw() % 16 ? known[draw() % sizeof known] : (uint8_t)draw();
	if (qp.record->open == OPEN_SEND && draw() % 4)
		opcode = BTH_SEND_MIDDLE + draw() % 2;
	if (qp.record->open == OPEN_WRITE && draw() % 4)
		opcode = BTH_WRITE_MIDDLE + draw() % 2;
	const struct read_piece *piece = engine_piece(&qp, 0);
	int waits = qp.record->piece_count && piece->index < ENTRIES && draw() % 2;
	if (waits)
		opcode = is_atomic(entry_get(&qp.sends[piece->index], SQE_OPCODE)) ? BTH_ATOMIC_ACKNOWLEDGE :
			 draw() % 8 ? (piece->got ? BTH_READ_RESPONSE_MIDDLE : BTH_READ_RESPONSE_FIRST) +
					      (piece->got + 1 == piece->packets ? piece->got ? 1 : 3 : 0) :
				      BTH_READ_RESPONSE_FIRST + draw() % 4;
	if (qp.record->service == SERVICE_UC && opcode <= BTH_WRITE_ONLY_IMM)
		opcode |= SERVICE_UC;
	if (qp.record->service == SERVICE_UD && draw() % 8)
		opcode = SERVICE_UD | (BTH_SEND_ONLY + (uint8_t)(draw() & 1));
	const struct opcode_row *row = &opcode_rows[opcode];
	int answer = (row->flags & ROW_RESPONSE) != 0;
	uint64_t size = row->flags & ROW_PAYLOAD ? (row->flags & ROW_END ? draw() % 257 : 256) : 0;
	if ((opcode & BTH_OPERATION_MASK) == BTH_WRITE_LAST && draw() % 4)
		size = (qp.record->write_length - qp.record->offset) % 257;
	if (waits && opcode != BTH_ATOMIC_ACKNOWLEDGE && draw() % 8)
		size = lesser(256, entry_get(&qp.sends[piece->index], SQE_LENGTH) - piece->offset - piece->got * 256);
	uint64_t pad = -size & 3;
	uint64_t header = row->header_bytes ? row->header_bytes : BTH_BYTES, covered = header + size + pad;
	for (uint64_t i = 0; i < covered; i++)
		to[i] = (uint8_t)draw();
	uint64_t psn = answer ? qp.record->una + draw() % 8 :
				be_get(qp.qpc, QPC_EXPECTED_PSN) + (draw() % 8 ? 0 : draw() % 4 - 2);
	if (waits)
		psn = piece_due(piece) + (draw() % 8 ? 0 : draw() % 4 - 2);
	be_store(to, 8, (uint64_t)opcode << 56 | pad << 52 | (uint64_t)0xFFFF << 32 | number);
	be_store(to + 8, 4, (psn & PSN_MASK) | (draw() & 1) << 31);
	if (row->flags & ROW_RETH) {
		be_store(to + 12, 8, address());
		be_store(to + 20, 4, key());
		be_store(to + 24, 4,
			 row->flags & ROW_END && row->flags & ROW_PAYLOAD ? size :
			 draw() % 4					  ? 257 + draw() % 600 :
									    odd_number());
	}
	if (qp.record->service == SERVICE_UD && covered >= BTH_BYTES + 8 && draw() % 8)
		be_store(to + 12, 4, QKEY);
	if (row->flags & ROW_ATOMIC) {
		be_store(to + 12, 8, address() & ~(uint64_t)7);
		be_store(to + 20, 4, key());
	}
	if (answer)
		to[12] = draw() % 4 ? (draw() % 4 ? CREDITS_INVALID : draw() % 32) :
			 draw() % 4 ? NAK_PSN_SEQUENCE - draw() % 2 * 32 :
				      (uint8_t)draw();
	while (draw() % 12 == 0)
		to[draw() % covered] ^= (uint8_t)(1 << draw() % 8);
	uint32_t crc = engine_icrc_begin(crc32, &meta.flow, covered + 4, meta.ident, DONT_FRAGMENT, to, 8);
	crc = crc32(crc, to + 8, covered - 8);
	for (unsigned i = 0; i < 4; i++)
		to[covered + i] = (uint8_t)(crc >> 8 * i);
	return covered + 4;
}

#ifndef HOSTILE_PORT
/* READs and atomics by what became of them: requests taken, responses placed; and datagrams, taken or sent. */
static uint64_t asked, placed, datagrams;

static uint64_t received(void)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < ENTRIES; i++)
		sum += qp.sends[i].received;
	return sum;
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000, taken = 0, made = 0, answered = 0, late = 0;
	state = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 2654435761u + 1;
	make_shared();
	make();
	for (uint64_t i = 0; i < rounds; i++) {
		struct engine_effects effects = { 0 };
		struct engine_inflight flight = { .peer_limit = 64, .nic_limit = 64, .srtt = draw() % 1000000 };
		if (i % 24 == 0)
			begin();
		post();
		if (draw() % 24 == 0)
			((uint64_t *)qp.record)[draw() % (sizeof *qp.record / 8)] = odd_number();
		if (draw() % 32 == 0)
			((uint64_t *)qp.sends)[draw() % (ENTRIES * sizeof *qp.sends / 8)] = odd_number();
		if (draw() % 64 == 0)
			((uint64_t *)cq.record)[draw() % (sizeof *cq.record / 8)] = odd_number();
		if (draw() % 64 == 0)
			qp.qpc[draw() % QPC_SIZE] = (uint8_t)draw();
		struct engine_out out = { .max_segments = qp.record->batch_limit };
		out.room = draw() % 4 ? 4000 : draw() % 400;
		out.bytes = buffer_of(out.room);
		if (draw() % 4 == 0) {
			uint64_t when = draw() % 8 ? engine_deadline(&qp) : odd_number();
			effects.end = PUNT_WAIT;
			if (when != NEVER)
				engine_timeout(&port, &qp, &flight, when, &effects);
			late += effects.end == ENGINE_DONE;
			memset(&effects, 0, sizeof effects);
		}
		if (draw() & 1) {
			uint64_t sent = engine_send(&port, &qp, i * 1000, draw() % 20, &flight, &out, &effects);
			made += sent;
			datagrams += qp.record->service == SERVICE_UD && sent;
		} else {
			answered += engine_reply(&port, &qp, draw() % 20, &out, &effects);
		}
		free(out.bytes);
		uint8_t bytes[512];
		if (draw() % 32 == 0)
			((uint64_t *)qp.pieces)[draw() % (QP_PIECES * sizeof *qp.pieces / 8)] = odd_number();
		if (draw() % 32 == 0)
			((uint64_t *)qp.replies)[draw() % (8 * sizeof *qp.replies / 8)] = odd_number();
		if (draw() % 64 == 0)
			((uint64_t *)qp.resources)[draw() % (4 * sizeof *qp.resources / 8)] = odd_number();
		meta.ident = draw() % 4 ? 0 : (uint32_t)(draw() & 0xFFFF);
		meta.frag = DONT_FRAGMENT;
		uint64_t length = packet(bytes);
		uint64_t pending = qp.record->pending_reads, before = received();
		uint64_t cut = draw() % 16 ? length : draw() % length;
		uint8_t *buffer = buffer_of(cut ? cut : 1);
		memcpy(buffer, bytes, cut);
		memset(&effects, 0, sizeof effects);
		uint64_t segment = draw() % 16 ? length : draw() % 600;
		size_t got =
			engine_receive(&port, &qp, buffer, cut, segment, 0, &meta, &flight, i * 1000 + 1, &effects);
		if (effects.end == ENGINE_AGAIN && !got) {
			memset(&effects, 0, sizeof effects);
			got = engine_receive(&port, &qp, buffer, cut, segment, 0, &meta, &flight, i * 1000 + 1,
					     &effects);
		}
		taken += got != 0;
		datagrams += got && bytes[0] >> 5 == SERVICE_UD >> 5;
		asked += qp.record->pending_reads == pending + 1;
		placed += received() == before + 1;
		free(buffer);
	}
	printf("%llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)taken, (unsigned long long)made,
	       (unsigned long long)answered, (unsigned long long)late, (unsigned long long)asked,
	       (unsigned long long)placed, (unsigned long long)datagrams);
	return 0;
}
#endif
