/* Rounds on an engine of stubs. First a packet lies behind a gap, so that a NAK leaves at once, and the first turn that is
 * given for it is of a queue pair that is to be found anew: prints what of the turn is open when the round is over. Then
 * packets come from elsewhere, and none by the socket: prints the rounds between one look at it and the next, and again
 * behind one that found something, and where a round takes 20 us. */
#define _GNU_SOURCE
#include "io/poll.h"
#include "io/loopback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QP = 4096, PROGRAM = 320 };

static int finds = 1;
static unsigned looks;

int pump_receive(int fd, struct pump_inbox *inbox, struct pump_slot *slots, unsigned count)
{
	(void)fd, (void)inbox;
	looks++;
	if (!finds || !count)
		return 0;
	finds = 0;
	slots[0].size = slots[0].segment = 64;
	slots[0].name_bytes = 4;
	memcpy(slots[0].name, "abcd", 4);
	slots[0].tclass = 0;
	return 1;
}

unsigned pump_wire_take(struct pump_wire *wire, struct pump_slot *slots, unsigned count)
{
	(void)wire, (void)slots, (void)count;
	return 0;
}

struct pump_slot pump_parcel(const struct pump_path *path, const uint8_t *bytes, size_t length, uint32_t segment)
{
	(void)path, (void)bytes, (void)length, (void)segment;
	return (struct pump_slot){ 0 };
}

uint8_t *pump_wire_trade(struct pump_wire *wire, const struct pump_slot *bursts, unsigned count, uint8_t *sheet, size_t size)
{
	(void)wire, (void)bursts, (void)count, (void)sheet, (void)size;
	return NULL;
}

void pump_wire_call(struct pump_wire *wire)
{
	(void)wire;
}

void pump_transmit(struct pump_path *path, const uint8_t *bytes, size_t length, uint32_t segment, struct pump_counts *counts)
{
	(void)path, (void)bytes, (void)length, (void)segment, (void)counts;
}

void pump_sheets_begin(struct pump_round *round)
{
	(void)round;
}

int pump_sheets_carry(struct pump_round *round)
{
	(void)round;
	return 0;
}

void pump_sheets_saw(struct pump_round *round, const struct engine_burst *burst)
{
	(void)round, (void)burst;
}

void pump_sheets_turn(struct pump_round *round, const struct queue_pair *record, const struct pump_path *path)
{
	(void)round, (void)record, (void)path;
}

void pump_sheets_end(struct pump_round *round)
{
	(void)round;
}

void pump_sheets_drop(struct pump_round *round, uint64_t record)
{
	(void)round, (void)record;
}

void pump_sheets_close(struct pump_sheets *sheets)
{
	(void)sheets;
}

int pump_loses(struct pump_loss *loss)
{
	(void)loss;
	return 0;
}

void pump_keep(struct pump_kept **kept, const struct engine_device *device, const uint8_t *buffer, size_t length,
	       size_t segment, size_t start, const struct engine_meta *meta, uint64_t now)
{
	(void)kept, (void)device, (void)buffer, (void)length, (void)segment, (void)start, (void)meta, (void)now;
}

int pump_keeps(struct pump_kept *kept, uint64_t now)
{
	(void)kept, (void)now;
	return 0;
}

int pump_feed(struct pump_kept *kept, struct engine_device *device, uint64_t number, uint64_t now, struct engine_told *told)
{
	(void)kept, (void)device, (void)number, (void)now, (void)told;
	return 1;
}

int engine_port_ring(struct engine_device *device, struct engine_qp *qp)
{
	(void)device, (void)qp;
	return 0;
}

void engine_turns_end(const struct engine_sched *sched)
{
	sched->turns->turn = 0;
}

size_t engine_port_receive(struct engine_device *device, const uint8_t *buffer, size_t length, size_t segment, size_t start,
			   const struct engine_meta *meta, uint64_t now, struct engine_told *told)
{
	(void)buffer, (void)segment, (void)meta, (void)now;
	*told = (struct engine_told){ .stop = STOP_DONE };
	if (start < length) {
		device->counts.events[COUNT_SEQUENCE_NAKS_SENT]++;
		device->sched.turns->count = 2;
	}
	return length - start;
}

/* The turn begins, then what lies where is asked for; called again it goes on, and ends. */
void engine_port_send(struct engine_device *device, uint64_t now, uint64_t budget, struct engine_out *out,
		      struct engine_sending *sending, struct engine_told *told)
{
	struct turns *turns = device->sched.turns;

	(void)now, (void)budget, (void)out;
	*told = (struct engine_told){ .stop = sending->qp ? STOP_DONE : STOP_FIND, .qp = QP };
	turns->count = sending->qp ? 0 : turns->count;
	turns->turn = sending->qp ? 0 : PROGRAM;
	sending->qp = sending->qp ? 0 : QP;
}

void engine_port_sent(struct engine_device *device, struct engine_sending *sending)
{
	(void)device, (void)sending;
}

static unsigned nothing(void *hairpin, struct pump_slot *slots, unsigned count)
{
	(void)hairpin, (void)slots, (void)count;
	return 0;
}

/* Rounds from one look at the socket to the next, each so many ns long. */
static unsigned between(struct pump_round *round, uint64_t *now, uint64_t ns)
{
	unsigned rounds = 0;
	struct engine_told told;

	for (looks = 0; !looks; rounds++) {
		round->eager = 1;
		do
			pump_round(round, *now, ROUND_BUDGET, &told);
		while (told.stop != STOP_DONE);
		*now += ns;
	}
	return rounds;
}

int main(void)
{
	static struct pump_round round;
	static struct engine_device device;
	static struct turns turns;
	static uint8_t arena[1 << 16];
	uint8_t *buffers = malloc((size_t)ROUND_RECEIVE_LIMIT * ROUND_BUFFER_BYTES), *out = malloc(ROUND_OUT_BYTES);
	struct engine_flow flow = { 0 };
	struct engine_told told;
	unsigned stops = 0;
	uint64_t now = 0;

	if (!buffers || !out)
		return 1;
	device.sched.turns = &turns;
	device.sched.arena = arena;
	pump_round_init(&round, &device, -1, buffers, out);
	pump_round_know(&round, (const uint8_t *)"abcd", 4, &flow);
	for (pump_round(&round, 0, ROUND_BUDGET, &told); told.stop != STOP_DONE; pump_round(&round, 0, ROUND_BUDGET, &told))
		stops++;
	printf("stops %u, turn of %lu, program %lu\n", stops, (unsigned long)round.sending.qp, (unsigned long)turns.turn);
	round.draw = nothing;
	for (unsigned i = 0; i < 16; i++) {
		finds = i == 6;
		printf("%u ", between(&round, &now, i < 12 ? 100 : 20000));
	}
	puts("");
	free(buffers);
	free(out);
	return 0;
}
