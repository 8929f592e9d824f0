#if defined(__linux__)
#define _GNU_SOURCE
#include "io/poll.h"
#include "device/scheduler.h"
#include "io/loopback.h"
#include "queue_pair/arithmetic.h"

#include <stdlib.h>
#include <string.h>

#define ECN_MASK 3u
#define ECN_CE 3u
#define SPARE_BUFFER (POLL_RECEIVE_LIMIT - 1u)
#define RING_ONLY_ROUNDS 64u /* after a round that received packets from a ring */
/* Rounds that may skip the socket: at first the fewest, then twice as many each time, as long as nothing is found
 * there. Receiving from the socket is a system call, and takes longer than everything else in a round. */
#define SOCKET_INTERVAL_MIN 8u
#define SOCKET_INTERVAL_MAX 64u
#define SOCKET_INTERVAL_NS 100000u /* after this time, long rounds skip no more than SOCKET_INTERVAL_MIN */
/* a shorter output is copied faster than traded, and does not fill a buffer */
#define TRADE_MIN_BYTES 16384u
#define TRADE_MAX_BURSTS 8u /* in one buffer */

/* ------------------------------------------------------------------ senders */

/* Direct-mapped sender cache; a colliding sender evicts the entry. */
static struct known_sender *sender_bucket(struct io_poll *round, const uint8_t *name, uint32_t name_bytes)
{
	uint32_t hash = 2166136261u;
	for (uint32_t i = 0; i < name_bytes; i++)
		hash = (hash ^ name[i]) * 16777619u;
	return &round->senders[(hash * 2654435769u) >> (32 - POLL_LOG_SENDERS)];
}

static int is_sender(const struct known_sender *sender, const uint8_t *name, uint32_t name_bytes)
{
	return name_bytes && sender->name_bytes == name_bytes && !memcmp(sender->name, name, name_bytes);
}

void io_poll_add_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes, const struct engine_flow *flow)
{
	if (!name_bytes || name_bytes > UDP_NAME_BYTES)
		return;
	struct known_sender *sender = sender_bucket(round, name, name_bytes);
	if (!is_sender(sender, name, name_bytes))
		sender->good_packets = 0;
	sender->name_bytes = name_bytes;
	memcpy(sender->name, name, name_bytes);
	sender->flow = *flow;
}

void io_poll_forget_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes)
{
	struct known_sender *sender = sender_bucket(round, name, name_bytes);
	if (is_sender(sender, name, name_bytes))
		sender->name_bytes = 0;
}

uint64_t io_poll_good_packets(struct io_poll *round, const uint8_t *name, uint32_t name_bytes)
{
	struct known_sender *sender = sender_bucket(round, name, name_bytes);
	if (!is_sender(sender, name, name_bytes))
		return 0;
	uint64_t good_packets = sender->good_packets;
	sender->good_packets = 0;
	return good_packets;
}

/* ------------------------------------------------------------------ receiving */

/* Return the most buffers that a round receives: one is reserved for held packets. */
static unsigned receive_limit(const struct io_poll *round)
{
	return round->faults && round->faults->rules.directions >> FAULT_RX & 1 ? SPARE_BUFFER : POLL_RECEIVE_LIMIT;
}

/* Return whether this round skips the socket because rings have packets, or had some recently. */
static int receive_from_ring(struct io_poll *round, uint64_t now)
{
	round->ring_had_input = 0;
	if (++round->rounds_since_socket >= round->socket_interval ||
	    (round->rounds_since_socket >= SOCKET_INTERVAL_MIN &&
	     now - round->socket_checked_ns >= SOCKET_INTERVAL_NS)) {
		round->rounds_since_socket = 0;
		round->socket_checked_ns = now;
		return 0;
	}
	round->received = round->ring_receive(round->shm, round->rx_buffers, receive_limit(round), now);
	if (round->received) {
		round->ring_had_input = 1;
		round->ring_only_rounds = RING_ONLY_ROUNDS;
		for (unsigned i = 0; i < round->received; i++)
			round->rx_bytes += round->rx_buffers[i].size;
		return 1;
	}
	if (!round->ring_only_rounds)
		return 0;
	round->ring_only_rounds--;
	return 1;
}

static void receive_packets(struct io_poll *round, uint64_t now)
{
	round->rx_index = round->rx_begun = round->rx_open = 0;
	round->released = round->faults && faults_release(round->faults, now);
	round->socket_skipped = round->ring_receive && receive_from_ring(round, now);
	if (round->socket_skipped)
		return; /* their sender uses the same device and records them */
	unsigned most = receive_limit(round), count = round->batch_limit < most ? round->batch_limit : most;
	int received = round->loopback ? (int)loopback_take(round->loopback, round->rx_buffers, count) :
					 udp_receive(round->fd, &round->rx_scratch, round->rx_buffers, count);
	round->received = received > 0 ? (uint32_t)received : 0;
	if (round->received || round->socket_interval < SOCKET_INTERVAL_MIN)
		round->socket_interval = SOCKET_INTERVAL_MIN;
	else if (round->socket_interval < SOCKET_INTERVAL_MAX)
		round->socket_interval *= 2;
	if (received < 0)
		round->socket_errors++;
	/* a single datagram is received by a cheaper call, which does not show whether more wait */
	int again = round->received == count && (count > 1 || round->single);
	round->single = round->received == 1 && count == 1;
	round->batch_limit = again ? 2 * count : round->received ? round->received : 1;
	if (round->batch_limit > POLL_RECEIVE_LIMIT)
		round->batch_limit = POLL_RECEIVE_LIMIT;
	for (unsigned i = 0; i < round->received; i++) {
		round->rx_bytes += round->rx_buffers[i].size;
		if (capture_records(round->capture))
			capture_received(round->capture, &round->rx_buffers[i]);
	}
}

/* Return the sequence NAKs sent so far. Send NAKs at once: until one arrives, everything the peer sends is dropped. */
static uint64_t count_naks_sent(const struct io_poll *round)
{
	return round->device->counts.events[COUNT_SEQUENCE_NAKS_SENT];
}

/* Release reordered packets of the queue pair that received last; returns whether the round may continue. */
static int release_reordered(struct io_poll *round, uint64_t now, struct engine_stop_info *info)
{
	return reorder_resume(round->reorder, &round->releasing_qp, round->device, now, info);
}

/* Process packets of a buffer, and held ones that follow them; returns whether the round may continue. */
static int take_packets(struct io_poll *round, const struct rx_buffer *rx, uint64_t end, const struct engine_meta *meta,
			uint64_t now, struct engine_stop_info *info, size_t *taken)
{
	if (round->loopback)
		*taken = engine_device_receive(round->device, rx->buffer, end, rx->segment, round->rx_offset, meta, now,
					       info);
	else
		*taken = reorder_receive(&round->reorder, &round->releasing_qp, round->device, rx->buffer, end,
					 rx->segment, round->rx_offset, meta, now, info);
	round->rx_offset += *taken;
	return info->stop == STOP_DONE && release_reordered(round, now, info);
}

/* Open the next run of packets: of the current buffer, or of delayed ones. Returns whether there is one. */
static int open_run(struct io_poll *round, uint64_t now)
{
	struct faults *faults = round->faults;

	for (; !round->rx_open; round->rx_begun = 1) {
		if (faults && faults_next_run(faults, &round->rx_buffers[SPARE_BUFFER], &round->rx_run)) {
			round->rx_at = round->rx_run.packet ? SPARE_BUFFER : round->rx_index;
			round->rx_offset = round->rx_run.at;
			round->rx_open = 1;
			break;
		}
		round->rx_index += round->rx_begun;
		round->rx_begun = 0;
		if (round->rx_index >= round->received)
			return 0;
		const struct rx_buffer *rx = &round->rx_buffers[round->rx_index];
		if (!rx->size) {
			round->too_short++;
		} else if (faults && faults_judge(faults, FAULT_RX) && !(round->ring_had_input && rx->kind)) {
			faults_receive(faults, rx, now);
		} else {
			round->rx_run = (struct fault_run){ .end = (uint32_t)rx->size, .tclass = rx->tclass };
			round->rx_at = round->rx_index;
			round->rx_offset = 0;
			round->rx_open = 1;
		}
	}
	return 1;
}

const struct rx_buffer *io_poll_punt(struct io_poll *round, uint64_t *from, uint64_t *to)
{
	*from = round->rx_offset;
	*to = round->rx_run.end;
	round->rx_open = 0;
	return &round->rx_buffers[round->rx_at];
}

/* Process a by-reference record of a ring; returns whether the round may continue. */
static int take_record(struct io_poll *round, const struct rx_buffer *rx, uint64_t now, struct engine_stop_info *info)
{
	if (round->rx_offset < rx->size) {
		if (round->ring_take(round->shm, rx, now, info))
			round->rx_offset = rx->size;
		if (info->stop != STOP_DONE)
			return 0;
	}
	if (!round->hold_replies)
		io_poll_send(round, now, POLL_BUDGET, info);
	return info->stop == STOP_DONE;
}

/* Process the rest of the current run; returns whether the round may continue. */
static int take_run(struct io_poll *round, const struct rx_buffer *rx, uint64_t now, struct engine_stop_info *info)
{
	uint64_t before = count_naks_sent(round);
	struct known_sender *sender = sender_bucket(round, rx->name, rx->name_bytes);

	*info = (struct engine_stop_info){ .stop = STOP_PUNT_PACKET };
	if (round->rx_offset < round->rx_run.end &&
	    ((round->rx_run.tclass & ECN_MASK) == ECN_CE || !is_sender(sender, rx->name, rx->name_bytes)))
		return 0;
	struct engine_meta meta = {
		.flow = sender->flow,
		.ident = IDENT_UNSEEN,
		.flow_label = rx->flow_label,
		.tclass = round->rx_run.tclass,
		.hop_limit = rx->hop_limit,
	};
	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	while (round->rx_offset < round->rx_run.end) {
		size_t taken;
		int go_on = take_packets(round, rx, round->rx_run.end, &meta, now, info, &taken);
		sender->good_packets += taken ? ceil_div(taken, rx->segment) : 0;
		if (!go_on)
			return 0;
	}
	/* if this stops within a turn, the next call resumes it: no turn is open at the end of a round */
	if ((count_naks_sent(round) != before || round->sending.qp) && !round->hold_replies)
		io_poll_send(round, now, POLL_BUDGET, info);
	return info->stop == STOP_DONE;
}

/* Process the rest of the received buffers; returns whether all of it was processed. */
static int take_received(struct io_poll *round, uint64_t now, struct engine_stop_info *info)
{
	if (!release_reordered(round, now, info))
		return 0;
	while (open_run(round, now)) {
		const struct rx_buffer *rx = &round->rx_buffers[round->rx_at];
		if (!(round->ring_had_input && rx->kind ? take_record : take_run)(round, rx, now, info))
			return 0;
		round->rx_open = 0;
	}
	return 1;
}

/* ------------------------------------------------------------------ sending */

/* Return whether fault rules judge sent packets. */
static int judges_sent(const struct io_poll *round)
{
	return round->faults && faults_judge(round->faults, FAULT_TX);
}

/* Trade the whole output for an empty buffer if all of it is for one loopback; returns whether it did. */
static int trade_loopback_buffer(struct io_poll *round)
{
	struct engine_out *out = &round->out;
	struct rx_buffer bursts[TRADE_MAX_BURSTS];
	uint64_t packets = 0;
	if (out->used < TRADE_MIN_BYTES || !out->count || out->count > TRADE_MAX_BURSTS)
		return 0;
	struct loopback *loopback = ((const struct tx_path *)out->bursts[0].route)->loopback;
	for (uint32_t i = 0; loopback && i < out->count; i++) {
		const struct engine_burst *burst = &out->bursts[i];
		const struct tx_path *path = burst->route;
		if (path->loopback != loopback || path->divert)
			return 0;
		bursts[i] = tx_path_describe(path, out->bytes + burst->offset, burst->length, burst->segment);
		packets += burst->count;
	}
	uint8_t *other = loopback ? loopback_trade(loopback, bursts, out->count, out->bytes, POLL_OUT_BYTES) : NULL;
	if (!other)
		return 0;
	out->bytes = other;
	loopback_notify(loopback);
	round->counts.sent += packets;
	round->tx_bytes += out->used;
	round->sent += packets;
	return 1;
}

/* Send packets by the path's `divert`, if it accepts them, else by its socket. */
static void transmit_burst(void *self, struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
			   uint32_t count)
{
	struct io_poll *round = self;

	if (segment && capture_records(round->capture))
		capture_sent(round->capture, path, bytes, length, segment);
	if (!path->divert || !path->divert(path->divert_arg, path, bytes, length, segment, count))
		udp_transmit(path, bytes, length, segment, &round->counts);
}

static void transmit_each(struct io_poll *round)
{
	struct engine_out *out = &round->out;
	int judge = judges_sent(round);

	for (uint32_t i = 0; i < out->count; i++) {
		const struct engine_burst *burst = &out->bursts[i];
		struct tx_path *path = (struct tx_path *)(uintptr_t)burst->route;
		uint8_t *bytes = out->bytes + burst->offset;
		/* without a segment size, it is a record whose packets are judged already */
		if (judge && burst->segment)
			faults_transmit(round->faults, path, bytes, burst->length, burst->segment, round->now);
		else
			transmit_burst(round, path, bytes, burst->length, burst->segment, burst->count);
		tx_pages_note_copy(round, burst);
		round->tx_bytes += burst->length;
		round->sent += burst->count;
	}
}

static void transmit_all(struct io_poll *round)
{
	struct engine_out *out = &round->out;
	if (judges_sent(round) || (!tx_pages_transmit(round) && !trade_loopback_buffer(round)))
		transmit_each(round);
	out->carried += out->used;
	out->used = out->count = out->open = 0;
}

static void on_carry(struct engine_out *out)
{
	transmit_all((struct io_poll *)(void *)((char *)out - offsetof(struct io_poll, out)));
}

static void on_turn(struct engine_out *out, const struct engine_qp *qp)
{
	tx_pages_select((struct io_poll *)(void *)((char *)out - offsetof(struct io_poll, out)), qp->record, qp->route);
}

void io_poll_init(struct io_poll *round, struct engine_device *device, int fd, uint8_t *buffers, uint8_t *out)
{
	round->device = device;
	round->fd = fd;
	round->batch_limit = 1;
	round->out.bytes = out;
	round->out.room = POLL_OUT_BYTES;
	round->out.carry = on_carry;
	round->out.turned = on_turn;
	for (unsigned i = 0; i < POLL_RECEIVE_LIMIT; i++) {
		round->rx_buffers[i].buffer = buffers + (size_t)i * POLL_BUFFER_BYTES;
		round->rx_buffers[i].room = POLL_BUFFER_BYTES;
	}
}

/* Return whether everything to send is gathered messages. */
static int is_gathering(const struct io_poll *round, uint64_t one_in)
{
	const struct engine_sched *sched = &round->device->sched;
	const struct queue_pair *record = (const struct queue_pair *)(const void *)(sched->arena + round->gathering_qp);
	uint64_t inflight = record->inflight > round->inflight_floor ? record->inflight : round->inflight_floor;
	return round->gathered && round->gathers && sched->scheduler->count == 1 && record->scheduled &&
	       !round->sending.qp && !record->reply_count && !record->probe_due &&
	       record->send_index == record->fetch_index && round->gathered <= POLL_GATHER_MAX &&
	       inflight >= POLL_GATHER_MIN && round->gathered * one_in <= inflight;
}

int io_poll_ring(struct io_poll *round, struct engine_qp *qp, uint64_t length)
{
	struct engine_sched *sched = &round->device->sched;
	uint64_t at = (uint64_t)((uint8_t *)qp->record - sched->arena);
	int more = round->gathered && round->gathering_qp == at;
	int alone = !sched->scheduler->count || (more && sched->scheduler->count == 1);
	if (engine_device_ring(round->device, qp))
		return -1;
	if (!round->gathers || !alone || length > POLL_GATHER_BYTES)
		return 0;
	round->gathered = more ? round->gathered + 1 : 1;
	round->gathering_qp = at;
	return is_gathering(round, 1) ? GATHERED : 0;
}

void io_poll_send(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *info)
{
	round->gathered = 0;
	round->now = now;
	if (budget > POLL_BUDGET)
		budget = POLL_BUDGET;
	tx_pages_begin(round);
	do {
		engine_device_send(round->device, now, budget, &round->out, &round->sending, info);
		transmit_all(round);
	} while (info->stop == STOP_OUT_FULL);
	tx_pages_end(round);
	if (info->stop == STOP_DONE) {
		engine_device_sent(round->device, &round->sending);
		round->rounds_without_send = 0;
	}
}

void io_poll_set_faults(struct io_poll *round, struct faults *faults)
{
	round->faults = faults;
	faults->shared = round->device->shared;
	faults->send = transmit_burst;
	faults->self = round;
}

uint64_t io_poll_deadline(const struct io_poll *round)
{
	uint64_t deadline = engine_device_deadline(round->device);

	return round->faults ? lesser(deadline, faults_deadline(round->faults)) : deadline;
}

void io_poll_end(struct io_poll *round)
{
	if (!round)
		return;
	free(round->reorder);
	tx_pages_close(round->tx_pages);
}

void io_poll_drop(struct io_poll *round, uint64_t at)
{
	struct engine_sending *sending = &round->sending;
	uint32_t count = 0;
	tx_pages_forget_qp(round, at);
	if (round->releasing_qp == at)
		round->releasing_qp = 0;
	if (sending->qp == at) {
		sending->qp = 0;
		engine_scheduler_end(&round->device->sched);
	}
	for (uint32_t i = 0; i < sending->deferred_count; i++)
		if (sending->deferred[i] != at)
			sending->deferred[count++] = sending->deferred[i];
	sending->deferred_count = count;
}

/* ------------------------------------------------------------------ one round */

void io_poll(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *info)
{
	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	if (round->phase == POLL_IDLE) {
		round->sent = 0;
		round->received = round->released = 0;
		round->now = now;
		round->phase = !round->hold_replies && round->rounds_without_send >= POLL_REPLIES_AT_LEAST_EVERY &&
					       !is_gathering(round, POLL_GATHER_ONE_IN) ?
				       POLL_SEND_FIRST :
				       POLL_RECEIVE;
		if (round->phase == POLL_RECEIVE) {
			receive_packets(round, now);
			while (!round->received && !round->released && round->socket_checks &&
			       !round->device->sched.scheduler->count && !round->sending.qp) {
				round->socket_checks--;
				receive_packets(round, now);
			}
		}
		round->socket_checks = 0;
	}
	if (round->phase == POLL_SEND_FIRST) {
		io_poll_send(round, now, budget, info);
		if (info->stop != STOP_DONE)
			return;
		round->phase = POLL_RECEIVE;
		receive_packets(round, now);
	}
	if (round->phase == POLL_RECEIVE) {
		if (!take_received(round, now, info))
			return;
		int took = round->received || round->released;
		round->rounds_without_send += took;
		round->phase = took ? POLL_IDLE : POLL_SEND;
	}
	if (round->phase == POLL_SEND) {
		if (!round->hold_replies && (round->device->sched.scheduler->count || round->sending.qp) &&
		    !is_gathering(round, POLL_GATHER_ONE_IN)) {
			io_poll_send(round, now, budget, info);
			if (info->stop != STOP_DONE)
				return;
		}
		round->phase = POLL_IDLE;
	}
	*info = (struct engine_stop_info){ .stop = STOP_DONE };
}
#endif
