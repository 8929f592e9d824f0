/* Rounds on an engine of stubs. First a packet lies behind a gap, so that a NAK leaves at once, and the first turn that is
 * given for it is of a queue pair that is to be found anew: prints what of the turn is open when the round is over. Then
 * packets come from a ring, and none by the socket: prints the rounds between one check of the socket and the next, and again
 * after one that found something, and with rounds of 20 us. */
#define _GNU_SOURCE
#include "io/poll.h"
#include "io/loopback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QP = 4096, PROGRAM = 320 };

static int finds = 1;
static unsigned socket_checks;

int udp_receive(int fd, struct udp_rx_scratch *scratch, struct rx_buffer *buffers, unsigned count)
{
	(void)fd, (void)scratch;
	socket_checks++;
	if (!finds || !count)
		return 0;
	finds = 0;
	buffers[0].size = buffers[0].segment = 64;
	buffers[0].name_bytes = 4;
	memcpy(buffers[0].name, "abcd", 4);
	buffers[0].tclass = 0;
	return 1;
}

unsigned loopback_take(struct loopback *loopback, struct rx_buffer *buffers, unsigned count)
{
	(void)loopback, (void)buffers, (void)count;
	return 0;
}

struct rx_buffer tx_path_describe(const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment)
{
	(void)path, (void)bytes, (void)length, (void)segment;
	return (struct rx_buffer){ 0 };
}

uint8_t *loopback_trade(struct loopback *loopback, const struct rx_buffer *bursts, unsigned count, uint8_t *buffer,
			size_t size)
{
	(void)loopback, (void)bursts, (void)count, (void)buffer, (void)size;
	return NULL;
}

void loopback_notify(struct loopback *loopback)
{
	(void)loopback;
}

void udp_transmit(struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment, struct tx_counts *counts)
{
	(void)path, (void)bytes, (void)length, (void)segment, (void)counts;
}

void tx_pages_begin(struct io_poll *round)
{
	(void)round;
}

int tx_pages_transmit(struct io_poll *round)
{
	(void)round;
	return 0;
}

void tx_pages_note_copy(struct io_poll *round, const struct engine_burst *burst)
{
	(void)round, (void)burst;
}

void tx_pages_select(struct io_poll *round, const struct queue_pair *record, const struct tx_path *path)
{
	(void)round, (void)record, (void)path;
}

void tx_pages_end(struct io_poll *round)
{
	(void)round;
}

void tx_pages_forget_qp(struct io_poll *round, uint64_t record)
{
	(void)round, (void)record;
}

void tx_pages_close(struct tx_pages *pages)
{
	(void)pages;
}

int faults_judge(const struct faults *faults, uint32_t direction)
{
	(void)faults, (void)direction;
	return 0;
}

uint64_t faults_deadline(const struct faults *faults)
{
	(void)faults;
	return UINT64_MAX;
}

void faults_transmit(struct faults *faults, struct tx_path *path, uint8_t *bytes, size_t length, uint32_t segment,
		     uint64_t now)
{
	(void)faults, (void)path, (void)bytes, (void)length, (void)segment, (void)now;
}

void faults_receive(struct faults *faults, const struct rx_buffer *rx, uint64_t now)
{
	(void)faults, (void)rx, (void)now;
}

int faults_release(struct faults *faults, uint64_t now)
{
	(void)faults, (void)now;
	return 0;
}

int faults_next_run(struct faults *faults, struct rx_buffer *spare, struct fault_run *run)
{
	(void)faults, (void)spare, (void)run;
	return 0;
}

void capture_sent(struct capture *capture, const struct tx_path *path, const uint8_t *bytes, size_t length,
		  uint32_t segment)
{
	(void)capture, (void)path, (void)bytes, (void)length, (void)segment;
}

void capture_received(struct capture *capture, const struct rx_buffer *rx)
{
	(void)capture, (void)rx;
}

uint64_t engine_device_deadline(const struct engine_device *device)
{
	(void)device;
	return UINT64_MAX;
}

size_t reorder_receive(struct reorder_buffer **reorder, uint64_t *releasing_qp, struct engine_device *device,
		       const uint8_t *buffer, size_t length, size_t segment, size_t start,
		       const struct engine_meta *meta, uint64_t now, struct engine_stop_info *info)
{
	(void)reorder, (void)releasing_qp;
	return engine_device_receive(device, buffer, length, segment, start, meta, now, info);
}

int reorder_resume(struct reorder_buffer *reorder, uint64_t *releasing_qp, struct engine_device *device, uint64_t now,
		   struct engine_stop_info *info)
{
	(void)reorder, (void)releasing_qp, (void)device, (void)now, (void)info;
	return 1;
}

int engine_device_ring(struct engine_device *device, struct engine_qp *qp)
{
	(void)device, (void)qp;
	return 0;
}

void engine_scheduler_end(const struct engine_sched *sched)
{
	sched->scheduler->turn = 0;
}

size_t engine_device_receive(struct engine_device *device, const uint8_t *buffer, size_t length, size_t segment,
			     size_t start, const struct engine_meta *meta, uint64_t now, struct engine_stop_info *info)
{
	(void)buffer, (void)segment, (void)meta, (void)now;
	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	if (start < length) {
		device->counts.events[COUNT_SEQUENCE_NAKS_SENT]++;
		device->sched.scheduler->count = 2;
	}
	return length - start;
}

/* The turn begins, then what lies where is asked for; called again it goes on, and ends. */
void engine_device_send(struct engine_device *device, uint64_t now, uint64_t budget, struct engine_out *out,
			struct engine_sending *sending, struct engine_stop_info *info)
{
	struct scheduler *turns = device->sched.scheduler;

	(void)now, (void)budget, (void)out;
	*info = (struct engine_stop_info){ .stop = sending->qp ? STOP_DONE : STOP_MAP_QP, .qp = QP };
	turns->count = sending->qp ? 0 : turns->count;
	turns->turn = sending->qp ? 0 : PROGRAM;
	sending->qp = sending->qp ? 0 : QP;
}

void engine_device_sent(struct engine_device *device, struct engine_sending *sending)
{
	(void)device, (void)sending;
}

static unsigned receive_nothing(void *shm, struct rx_buffer *buffers, unsigned count, uint64_t now)
{
	(void)shm, (void)buffers, (void)count, (void)now;
	return 0;
}

/* Return the rounds from one check of the socket to the next, each so many ns long. */
static unsigned rounds_between(struct io_poll *round, uint64_t *now, uint64_t ns)
{
	unsigned rounds = 0;
	struct engine_stop_info info;

	for (socket_checks = 0; !socket_checks; rounds++) {
		round->ring_only_rounds = 1;
		do
			io_poll(round, *now, POLL_BUDGET, &info);
		while (info.stop != STOP_DONE);
		*now += ns;
	}
	return rounds;
}

int main(void)
{
	static struct io_poll round;
	static struct engine_device device;
	static struct scheduler turns;
	static uint8_t arena[1 << 16];
	uint8_t *buffers = malloc((size_t)POLL_RECEIVE_LIMIT * POLL_BUFFER_BYTES), *out = malloc(POLL_OUT_BYTES);
	struct engine_flow flow = { 0 };
	struct engine_stop_info info;
	unsigned stops = 0;
	uint64_t now = 0;

	if (!buffers || !out)
		return 1;
	device.sched.scheduler = &turns;
	device.sched.arena = arena;
	io_poll_init(&round, &device, -1, buffers, out);
	io_poll_add_sender(&round, (const uint8_t *)"abcd", 4, &flow);
	for (io_poll(&round, 0, POLL_BUDGET, &info); info.stop != STOP_DONE; io_poll(&round, 0, POLL_BUDGET, &info))
		stops++;
	printf("stops %u, turn of %lu, program %lu\n", stops, (unsigned long)round.sending.qp,
	       (unsigned long)turns.turn);
	round.ring_receive = receive_nothing;
	for (unsigned i = 0; i < 16; i++) {
		finds = i == 6;
		printf("%u ", rounds_between(&round, &now, i < 12 ? 100 : 20000));
	}
	puts("");
	free(buffers);
	free(out);
	return 0;
}
