/* Tx pages that are sent without a copy, on a pipe and sockets of stubs: no byte of them may change before its packets have
 * arrived, nor ever for what goes to another address. */
#define _GNU_SOURCE
#include "io/tx_zerocopy.h"
#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "io/poll.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) ((condition) ? (void)0 : (printf("line %d: %s\n", __LINE__, #condition), exit(1)))

enum { ONE = 4096, OTHER = 8192, CONTEXT = 16384, PACKET = 4112, PACKETS = 15, LONG = PACKET * PACKETS };

static struct io_poll round;
static struct engine_device device;
static uint8_t arena[1 << 16] __attribute__((aligned(64)));
static uint8_t own[POLL_OUT_BYTES];
static struct tx_path here = { .name = "here", .name_bytes = 4, .max_segments = 64 };
static struct tx_path there = { .name = "there", .name_bytes = 5, .max_segments = 64 };
static unsigned lent, copied;
static int refuses;
static const uint8_t *last;

void tx_splice_open(struct tx_splice *splice)
{
	splice->broken = 0;
}

void tx_splice_close(struct tx_splice *splice)
{
	(void)splice;
}

void tx_splice_check(struct tx_splice *splice)
{
	(void)splice;
}

int tx_splice_send(struct tx_splice *splice, struct tx_path *path, const uint8_t *bytes, size_t length,
		   uint32_t segment, struct tx_counts *counts)
{
	(void)splice, (void)path, (void)length, (void)segment, (void)counts;
	if (refuses)
		return EAGAIN;
	last = bytes;
	lent++;
	return 0;
}

void udp_transmit(struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment, struct tx_counts *counts)
{
	(void)path, (void)bytes, (void)length, (void)segment, (void)counts;
	copied++;
}

static struct queue_pair *record(uint64_t at)
{
	return (struct queue_pair *)(void *)(arena + at);
}

static void carry(struct engine_out *out)
{
	if (!tx_pages_transmit(&round))
		for (uint32_t i = 0; i < out->count; i++) {
			copied++;
			tx_pages_note_copy(&round, &out->bursts[i]);
		}
	out->used = out->count = out->open = 0;
}

/* Lay a burst out behind what is there: packets with this opcode from `psn` on, filled with `fill`. */
static void make_burst(const struct tx_path *path, uint8_t opcode, uint64_t psn, uint32_t packets, int fill)
{
	struct engine_out *out = &round.out;
	uint8_t *bytes = out->bytes + out->used;
	memset(bytes, fill, (size_t)packets * PACKET);
	for (uint32_t i = 0; i < packets; i++) {
		bytes[i * PACKET] = opcode;
		be_store(bytes + i * PACKET + PSN_AT, 3, psn + i);
	}
	out->bursts[out->count++] = (struct engine_burst){
		.offset = out->used,
		.length = (uint64_t)packets * PACKET,
		.segment = PACKET,
		.count = packets,
		.route = path,
	};
	out->used += (uint64_t)packets * PACKET;
}

/* One turn of one queue pair, which sends one burst. */
static void run_turn(uint64_t at, const struct tx_path *path, uint8_t opcode, uint64_t psn, int fill)
{
	tx_pages_begin(&round);
	tx_pages_select(&round, record(at), path);
	record(at)->sent_psn = psn & PSN_MASK; /* it says so only once all of a turn are made */
	make_burst(path, opcode, psn, PACKETS, fill);
	carry(&round.out);
	record(at)->sent_psn = (psn + PACKETS) & PSN_MASK;
	tx_pages_end(&round);
	CHECK(round.out.bytes == own && round.out.room == POLL_OUT_BYTES);
}

static uint8_t *seen[4 * TX_PAGES];

/* Bursts until one is copied for want of a tx page; how many were lent. */
static unsigned fill_all(uint64_t at, const struct tx_path *path, uint64_t psn)
{
	unsigned before = lent;
	for (unsigned i = 0; i < 2 * TX_PAGES; i++) {
		unsigned was = lent;
		run_turn(at, path, BTH_WRITE_MIDDLE, psn + i * PACKETS, (int)(0x40 + i));
		if (lent == was)
			break;
		seen[i] = (uint8_t *)(uintptr_t)last;
		for (unsigned j = 0; j < i; j++)
			CHECK(seen[j] != last && seen[j][100] == 0x40 + j);
	}
	return lent - before;
}

int main(void)
{
	device.sched.arena = arena;
	round.device = &device;
	round.out.bytes = own;
	round.out.room = POLL_OUT_BYTES;
	round.out.carry = carry;
	record(ONE)->context = record(OTHER)->context = CONTEXT;

	/* who may not lend copies, and so does who has seen no long burst */
	run_turn(ONE, &here, BTH_WRITE_MIDDLE, 0, 1);
	CHECK(!round.tx_pages && copied == 1);
	round.may_splice = 1;
	run_turn(ONE, &here, BTH_READ_RESPONSE_MIDDLE, 0, 1); /* nobody acknowledges these */
	run_turn(ONE, &here, SERVICE_UC | BTH_WRITE_MIDDLE, 0, 1);
	CHECK(!round.tx_pages && copied == 3);
	run_turn(ONE, &here, BTH_WRITE_MIDDLE, 0, 1);
	CHECK(round.tx_pages && !lent && copied == 4);

	/* each tx page once, across the end of the PSNs, until one is acknowledged as a whole */
	uint64_t psn = 0x1000000 - 100;
	record(ONE)->una = psn;
	CHECK(fill_all(ONE, &here, psn) == TX_PAGES && copied == 5);
	record(ONE)->una = (psn + PACKETS - 1) & PSN_MASK;
	run_turn(ONE, &here, BTH_WRITE_MIDDLE, psn + 500, 2);
	CHECK(lent == TX_PAGES && copied == 6);
	record(ONE)->una = (psn + PACKETS) & PSN_MASK;
	run_turn(ONE, &here, BTH_WRITE_MIDDLE, psn + 515, 2);
	CHECK(lent == TX_PAGES + 1 && last == seen[0]);

	/* responses among requests, and what is short, leave copied; the tx page is as good as before */
	record(ONE)->una = record(ONE)->sent_psn;
	lent = copied = 0;
	run_turn(ONE, &here, BTH_READ_RESPONSE_MIDDLE, 7, 3);
	tx_pages_begin(&round);
	tx_pages_select(&round, record(ONE), &here);
	make_burst(&here, BTH_WRITE_MIDDLE, 7, 3, 4);
	carry(&round.out);
	tx_pages_end(&round);
	CHECK(!lent && copied == 2);

	/* a long burst is of who has the turn: short ones of another may lie before it, which are copied, long ones leave first */
	tx_pages_begin(&round);
	tx_pages_select(&round, record(ONE), &here);
	make_burst(&here, BTH_WRITE_MIDDLE, 7, 3, 4);
	tx_pages_select(&round, record(OTHER), &here);
	make_burst(&here, BTH_WRITE_MIDDLE, 2000, PACKETS, 4);
	record(OTHER)->una = 2000;
	record(OTHER)->sent_psn = 2000 + PACKETS;
	carry(&round.out);
	CHECK(lent == 1 && copied == 3);
	const uint8_t *others = last;
	tx_pages_select(&round, record(ONE), &here);
	make_burst(&here, BTH_WRITE_MIDDLE, 1000, PACKETS, 4);
	tx_pages_select(&round, record(OTHER), &here);
	CHECK(lent == 2 && !round.out.used);
	tx_pages_end(&round);
	lent = 0;
	record(ONE)->una = record(ONE)->sent_psn = 1000 + PACKETS;
	CHECK(fill_all(ONE, &here, 1000 + PACKETS) == TX_PAGES - 1); /* the other's is as busy as before */
	for (unsigned i = 0; i < TX_PAGES - 1; i++)
		CHECK(seen[i] != others - (uint64_t)3 * PACKET);

	/* an ACK behind a long burst leaves with it, and does not count */
	record(ONE)->una = record(ONE)->sent_psn;
	lent = copied = 0;
	tx_pages_begin(&round);
	tx_pages_select(&round, record(ONE), &here);
	make_burst(&here, BTH_WRITE_MIDDLE, 40000, PACKETS, 4);
	round.out.bytes[(PACKETS - 1) * PACKET] = BTH_ACKNOWLEDGE;
	be_store(round.out.bytes + (PACKETS - 1) * PACKET + PSN_AT, 3, 7);
	record(ONE)->una = 40000;
	record(ONE)->sent_psn = 40000 + PACKETS - 1;
	carry(&round.out);
	tx_pages_end(&round);
	CHECK(lent == 1 && !copied);
	const uint8_t *with_ack = last;
	record(ONE)->una = 40000 + PACKETS - 2;
	fill_all(ONE, &here, 41000);
	for (unsigned i = 0; i < lent - 1; i++)
		CHECK(seen[i] != with_ack);

	/* a silent owner loses its tx page and keeps the memory: some of them, not all at once */
	lent = copied = 0;
	for (int i = 0; i < 8000 && !lent; i++)
		run_turn(ONE, &here, BTH_WRITE_MIDDLE, 50000, 6);
	CHECK(lent == 1 && copied > 1000);
	record(ONE)->una = record(ONE)->sent_psn;
	record(OTHER)->una = record(OTHER)->sent_psn;

	/* READ responses are lent to a peer that has agreed, until it asks for what lies a window beyond them */
	record(ONE)->most = 100;
	be_put(arena + CONTEXT, QPC_OPTIONS, OPT_SELECTIVE_REPEAT);
	be_put(arena + CONTEXT, QPC_EXPECTED_PSN, 10);
	lent = copied = 0;
	run_turn(ONE, &here, BTH_READ_RESPONSE_MIDDLE, 0x1000000 - 10, 7);
	CHECK(lent == 1 && !copied);
	const uint8_t *response = last;
	be_put(arena + CONTEXT, QPC_EXPECTED_PSN, 104);
	CHECK(fill_all(ONE, &here, 60000) == TX_PAGES - 1);
	for (unsigned i = 0; i < TX_PAGES - 1; i++)
		CHECK(seen[i] != response);
	be_put(arena + CONTEXT, QPC_EXPECTED_PSN, 105);
	run_turn(ONE, &here, BTH_WRITE_MIDDLE, 61000, 7);
	CHECK(last == response);
	record(ONE)->most = 0; /* not ready to send: it has no window to go by */
	record(ONE)->una = record(ONE)->sent_psn;
	lent = copied = 0;
	run_turn(ONE, &here, BTH_READ_RESPONSE_MIDDLE, 0, 7);
	CHECK(!lent && copied == 1);

	/* another address has other pages, all of them zeros at first, though nobody acknowledged a thing meanwhile */
	record(OTHER)->una = record(OTHER)->sent_psn = 2000 + PACKETS;
	record(ONE)->una = record(ONE)->sent_psn = 1000 + PACKETS;
	tx_pages_begin(&round);
	tx_pages_select(&round, record(OTHER), &there);
	CHECK(round.out.bytes != own);
	for (size_t i = 0; i < TX_PAGE_BYTES; i++)
		CHECK(!round.out.bytes[i]);
	/* and a turn for the first one does not go on behind what is laid out for that */
	const uint8_t *before = round.out.bytes;
	make_burst(&there, BTH_WRITE_MIDDLE, 3000, 2, 5);
	tx_pages_select(&round, record(ONE), &here);
	CHECK(!round.out.used && round.out.bytes != before);
	/* nor does one that is not to be acknowledged */
	record(ONE)->service = SERVICE_UC;
	tx_pages_select(&round, record(ONE), &here);
	CHECK(round.out.bytes == own);
	record(ONE)->service = 0;
	tx_pages_end(&round);

	/* a queue pair that begins anew strands no tx pages, and one that is no more gives them back with other pages */
	record(ONE)->una = 5000;
	fill_all(ONE, &here, 5000);
	record(ONE)->una = record(ONE)->sent_psn = 100;
	lent = 0;
	CHECK(fill_all(ONE, &here, 100) == TX_PAGES);
	tx_pages_forget_qp(&round, OTHER);
	CHECK(seen[0][100] == 0x40);
	tx_pages_forget_qp(&round, ONE);
	CHECK(!seen[0][100] && !seen[TX_PAGES - 1][100]);

	/* what the pipe does not take is copied */
	refuses = 1;
	lent = copied = 0;
	run_turn(ONE, &here, BTH_WRITE_MIDDLE, 9000, 6);
	CHECK(!lent && copied == 1);

	/* long bursts stop: after a while none is expected */
	refuses = 0;
	for (int i = 0; i < 100; i++) {
		tx_pages_begin(&round);
		tx_pages_select(&round, record(ONE), &here);
		make_burst(&here, BTH_WRITE_MIDDLE, 7, 2, 4);
		carry(&round.out);
		if (i == 99)
			CHECK(round.out.bytes == own);
		tx_pages_end(&round);
	}
	tx_pages_close(round.tx_pages);
	puts("held");
	return 0;
}
