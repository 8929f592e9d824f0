#if defined(__linux__)
#define _GNU_SOURCE
#include "queue_pair/division.h"
#include "io/poll.h"
#include "device/scheduler.h"
#include "io/loopback.h"

#include <stdlib.h>
#include <string.h>

#define ECN_MASK 3u
#define ECN_CE 3u
#define EAGER_ROUNDS 64u /* behind one in which packets came from elsewhere */
/* Rounds that may leave the socket out before it is looked at: the fewest, and, as long as nothing is found there, twice as
 * many each time. A look is a system call, and takes longer than all the others. */
#define SOCKET_AT_LEAST_EVERY 8u
#define SOCKET_EVERY_MOST 64u
#define SOCKET_EVERY_NS 100000u /* where rounds take long, the fewest do, once so much time has passed */
#define TRADE_LEAST 16384u /* bytes: fewer are copied sooner than a sheet changes hands, and do not fill one */
#define TRADE_BURSTS 8u /* of one sheet */

/* ------------------------------------------------------------------ senders */

/* Where a sender is kept, if it is: another with the same place drives it out. */
static struct round_sender *place_of(struct io_poll *round, const uint8_t *name, uint32_t name_bytes)
{
	uint32_t mixed = 2166136261u;
	for (uint32_t i = 0; i < name_bytes; i++)
		mixed = (mixed ^ name[i]) * 16777619u;
	return &round->senders[(mixed * 2654435769u) >> (32 - POLL_LOG_SENDERS)];
}

static int is(const struct round_sender *sender, const uint8_t *name, uint32_t name_bytes)
{
	return name_bytes && sender->name_bytes == name_bytes && !memcmp(sender->name, name, name_bytes);
}

void io_poll_add_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes, const struct engine_flow *flow)
{
	if (!name_bytes || name_bytes > UDP_NAME_BYTES)
		return;
	struct round_sender *sender = place_of(round, name, name_bytes);
	if (!is(sender, name, name_bytes))
		sender->right = 0;
	sender->name_bytes = name_bytes;
	memcpy(sender->name, name, name_bytes);
	sender->flow = *flow;
}

void io_poll_forget_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes)
{
	struct round_sender *sender = place_of(round, name, name_bytes);
	if (is(sender, name, name_bytes))
		sender->name_bytes = 0;
}

uint64_t io_poll_good_packets(struct io_poll *round, const uint8_t *name, uint32_t name_bytes)
{
	struct round_sender *sender = place_of(round, name, name_bytes);
	if (!is(sender, name, name_bytes))
		return 0;
	uint64_t right = sender->right;
	sender->right = 0;
	return right;
}

/* ------------------------------------------------------------------ what arrives */

/* Whether the socket is left out of this round, since packets come from elsewhere now, or came lately. */
static int drawn(struct io_poll *round, uint64_t now)
{
	round->drawn = 0;
	if (++round->passed >= round->patience ||
	    (round->passed >= SOCKET_AT_LEAST_EVERY && now - round->looked >= SOCKET_EVERY_NS)) {
		round->passed = 0;
		round->looked = now;
		return 0;
	}
	round->slot = 0;
	round->at = 0;
	round->came = round->draw(round->hairpin, round->slots, POLL_RECEIVE_LIMIT);
	if (round->came) {
		round->drawn = 1;
		round->eager = EAGER_ROUNDS;
		for (unsigned i = 0; i < round->came; i++)
			round->rx_bytes += round->slots[i].size;
		return 1;
	}
	if (!round->eager)
		return 0;
	round->eager--;
	return 1;
}

static void receive(struct io_poll *round, uint64_t now)
{
	if (round->draw && drawn(round, now))
		return;
	unsigned count = round->greed < POLL_RECEIVE_LIMIT ? round->greed : POLL_RECEIVE_LIMIT;
	int came = round->wire ? (int)loopback_take(round->wire, round->slots, count) :
				 udp_receive(round->fd, &round->inbox, round->slots, count);
	round->slot = 0;
	round->at = 0;
	round->came = came > 0 ? (uint32_t)came : 0;
	if (round->came || round->patience < SOCKET_AT_LEAST_EVERY)
		round->patience = SOCKET_AT_LEAST_EVERY;
	else if (round->patience < SOCKET_EVERY_MOST)
		round->patience *= 2;
	if (came < 0)
		round->socket_errors++;
	/* one by itself is asked for in a shorter way, and says nothing of more behind it */
	int again = round->came == count && (count > 1 || round->lone);
	round->lone = round->came == 1 && count == 1;
	round->greed = again ? 2 * count : round->came ? round->came : 1;
	if (round->greed > POLL_RECEIVE_LIMIT)
		round->greed = POLL_RECEIVE_LIMIT;
	for (unsigned i = 0; i < round->came; i++)
		round->rx_bytes += round->slots[i].size;
}

/* Pass over packets that are lost; where the next one of them begins, or the slot ends. */
static uint64_t clear_until(struct io_poll *round, const struct rx_buffer *slot)
{
	if (!round->at)
		round->clear = round->spoiled = 0;
	while (round->at >= round->clear && round->clear < slot->size) {
		if (round->spoiled) {
			round->lost++;
			round->at = round->clear += slot->segment;
		}
		while (round->clear < slot->size && !(round->spoiled = (uint32_t)tx_loss_drops(&round->loss)))
			round->clear += slot->segment;
	}
	return round->clear < slot->size ? round->clear : slot->size;
}

/* NAKs of missing packets so far: until its peer has such a one it sends in vain, so that no NAK waits for other packets. */
static uint64_t naks(const struct io_poll *round)
{
	return round->device->counts.events[COUNT_SEQUENCE_NAKS_SENT];
}

/* Packets beyond a gap so far. */
static uint64_t early(const struct io_poll *round)
{
	return round->device->counts.events[COUNT_PSN_GAP] + round->device->counts.events[COUNT_NAKED];
}

/* Go on with what was kept for who took packets last; whether nothing else is to be done first. */
static int feed(struct io_poll *round, uint64_t now, struct engine_stop_info *told)
{
	const struct queue_pair *record = (const struct queue_pair *)(const void *)(round->device->sched.arena + round->feeding);
	if (round->feeding && !reorder_release(round->kept, round->device, record->number, now, told))
		return 0;
	round->feeding = 0;
	return 1;
}

/* Take packets of a slot, with those that were kept and follow them; whether nothing else is to be done first. */
static int take_some(struct io_poll *round, const struct rx_buffer *slot, uint64_t end, const struct engine_meta *meta,
		     uint64_t now, struct engine_stop_info *told, size_t *taken)
{
	uint64_t before = early(round);
	/* what was kept comes before what lies behind the packet that it waits for */
	if (end > round->at && reorder_has_packets(round->kept, now) && end - round->at > slot->segment)
		end = round->at + slot->segment;
	*taken = engine_device_receive(round->device, slot->buffer, end, slot->segment, round->at, meta, now, told);
	if (early(round) != before && !round->wire)
		reorder_hold(&round->kept, round->device, slot->buffer, round->at + *taken, slot->segment, round->at, meta, now);
	round->at += *taken;
	if (round->kept && round->kept->count)
		round->feeding = told->qp;
	return told->stop == STOP_DONE && feed(round, now, told);
}

/* Take what is left of the slots; whether all of it was. */
static int take(struct io_poll *round, uint64_t now, struct engine_stop_info *told)
{
	if (!feed(round, now, told))
		return 0;
	for (; round->slot < round->came; round->slot++, round->at = 0) {
		const struct rx_buffer *slot = &round->slots[round->slot];
		uint64_t end = slot->size, before = naks(round);
		if (!slot->size) {
			round->too_short++;
			continue;
		}
		if (round->drawn && slot->kind) {
			if (!round->at) {
				if (round->take(round->hairpin, slot, now, told))
					round->at = slot->size;
				if (told->stop != STOP_DONE)
					return 0;
			}
			if (!round->hold)
				io_poll_send(round, now, POLL_BUDGET, told);
			if (told->stop != STOP_DONE)
				return 0;
			continue;
		}
		struct round_sender *sender = place_of(round, slot->name, slot->name_bytes);
		*told = (struct engine_stop_info){ .stop = STOP_PACKET };
		if ((slot->tclass & ECN_MASK) == ECN_CE || !is(sender, slot->name, slot->name_bytes))
			return 0;
		struct engine_meta meta = {
			.flow = sender->flow, .ident = IDENT_UNSEEN, .flow_label = slot->flow_label,
			.tclass = slot->tclass, .hop_limit = slot->hop_limit,
		};
		do {
			if (round->loss.one_in)
				end = clear_until(round, slot);
			size_t taken;
			int on = take_some(round, slot, end, &meta, now, told, &taken);
			sender->right += taken ? ceil_div(taken, slot->segment) : 0;
			if (!on)
				return 0;
		} while (round->at < slot->size);
		/* where that stopped in the midst of a turn it goes on: no turn is open when the round is over */
		if ((naks(round) != before || round->sending.qp) && !round->hold) {
			io_poll_send(round, now, POLL_BUDGET, told);
			if (told->stop != STOP_DONE)
				return 0;
		}
	}
	return 1;
}

/* ------------------------------------------------------------------ what leaves */

/* Whether all that is laid out takes one wire, which has the sheet now and gave another for it. */
static int traded(struct io_poll *round)
{
	struct engine_out *out = &round->out;
	struct rx_buffer parcels[TRADE_BURSTS];
	uint64_t packets = 0;
	if (out->used < TRADE_LEAST || !out->count || out->count > TRADE_BURSTS)
		return 0;
	struct loopback *wire = ((const struct tx_path *)out->bursts[0].route)->wire;
	for (uint32_t i = 0; wire && i < out->count; i++) {
		const struct engine_burst *burst = &out->bursts[i];
		const struct tx_path *path = burst->route;
		if (path->wire != wire || path->divert)
			return 0;
		parcels[i] = tx_path_describe(path, out->bytes + burst->offset, burst->length, burst->segment);
		packets += burst->count;
	}
	uint8_t *other = wire ? loopback_trade(wire, parcels, out->count, out->bytes, POLL_OUT_BYTES) : NULL;
	if (!other)
		return 0;
	out->bytes = other;
	loopback_notify(wire);
	round->counts.sent += packets;
	round->tx_bytes += out->used;
	round->sent += packets;
	return 1;
}

static void carry_each(struct io_poll *round)
{
	struct engine_out *out = &round->out;
	for (uint32_t i = 0; i < out->count; i++) {
		const struct engine_burst *burst = &out->bursts[i];
		struct tx_path *path = (struct tx_path *)(uintptr_t)burst->route;
		const uint8_t *bytes = out->bytes + burst->offset;
		if (!path->divert || !path->divert(path->lane, bytes, burst->length, burst->segment, burst->count)) {
			udp_transmit(path, bytes, burst->length, burst->segment, &round->counts);
			tx_pages_note_copy(round, burst);
		}
		round->tx_bytes += burst->length;
		round->sent += burst->count;
	}
}

static void carry(struct io_poll *round)
{
	struct engine_out *out = &round->out;
	if (!tx_pages_transmit(round) && !traded(round))
		carry_each(round);
	out->carried += out->used;
	out->used = out->count = out->open = 0;
}

static void carry_out(struct engine_out *out)
{
	carry((struct io_poll *)(void *)((char *)out - offsetof(struct io_poll, out)));
}

static void turned(struct engine_out *out, const struct engine_qp *qp)
{
	tx_pages_select((struct io_poll *)(void *)((char *)out - offsetof(struct io_poll, out)), qp->record, qp->route);
}

void io_poll_init(struct io_poll *round, struct engine_device *device, int fd, uint8_t *buffers, uint8_t *out)
{
	round->device = device;
	round->fd = fd;
	round->greed = 1;
	round->out.bytes = out;
	round->out.room = POLL_OUT_BYTES;
	round->out.carry = carry_out;
	round->out.turned = turned;
	for (unsigned i = 0; i < POLL_RECEIVE_LIMIT; i++) {
		round->slots[i].buffer = buffers + (size_t)i * POLL_BUFFER_BYTES;
		round->slots[i].room = POLL_BUFFER_BYTES;
	}
}

/* Whether all that is to be sent is messages that wait for others. */
static int gathering(const struct io_poll *round, uint64_t one_in)
{
	const struct engine_sched *sched = &round->device->sched;
	const struct queue_pair *record = (const struct queue_pair *)(const void *)(sched->arena + round->waiting);
	uint64_t flying = record->inflight > round->afloat ? record->inflight : round->afloat;
	return round->waits && round->gathers && sched->scheduler->count == 1 && record->scheduled && !round->sending.qp &&
	       !record->reply_count && !record->probe_due && record->send_index == record->fetch_index &&
	       round->waits <= POLL_GATHER_MAX && flying >= POLL_GATHER_MIN && round->waits * one_in <= flying;
}

int io_poll_ring(struct io_poll *round, struct engine_qp *qp, uint64_t length)
{
	struct engine_sched *sched = &round->device->sched;
	uint64_t at = (uint64_t)((uint8_t *)qp->record - sched->arena);
	int more = round->waits && round->waiting == at;
	int alone = !sched->scheduler->count || (more && sched->scheduler->count == 1);
	if (engine_device_ring(round->device, qp))
		return -1;
	if (!round->gathers || !alone || length > POLL_GATHER_BYTES)
		return 0;
	round->waits = more ? round->waits + 1 : 1;
	round->waiting = at;
	return gathering(round, 1) ? GATHERED : 0;
}

void io_poll_send(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *told)
{
	round->waits = 0;
	if (budget > POLL_BUDGET)
		budget = POLL_BUDGET;
	tx_pages_begin(round);
	do {
		engine_device_send(round->device, now, budget, &round->out, &round->sending, told);
		carry(round);
	} while (told->stop == STOP_FULL);
	tx_pages_end(round);
	if (told->stop == STOP_DONE) {
		engine_device_sent(round->device, &round->sending);
		round->silent = 0;
	}
}

void io_poll_end(struct io_poll *round)
{
	if (!round)
		return;
	free(round->kept);
	tx_pages_close(round->sheets);
}

void io_poll_drop(struct io_poll *round, uint64_t at)
{
	struct engine_sending *sending = &round->sending;
	uint32_t kept = 0;
	tx_pages_forget_qp(round, at);
	if (round->feeding == at)
		round->feeding = 0;
	if (sending->qp == at) {
		sending->qp = 0;
		engine_scheduler_end(&round->device->sched);
	}
	for (uint32_t i = 0; i < sending->later; i++)
		if (sending->polite[i] != at)
			sending->polite[kept++] = sending->polite[i];
	sending->later = kept;
}

/* ------------------------------------------------------------------ both */

void io_poll(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *told)
{
	*told = (struct engine_stop_info){ .stop = STOP_DONE };
	if (round->phase == POLL_IDLE) {
		round->sent = 0;
		round->came = round->slot = 0;
		round->phase = !round->hold && round->silent >= POLL_REPLIES_AT_LEAST_EVERY && !gathering(round, POLL_GATHER_ONE_IN) ?
				       POLL_BEFORE : POLL_TAKING;
		if (round->phase == POLL_TAKING) {
			receive(round, now);
			while (!round->came && round->looks && !round->device->sched.scheduler->count && !round->sending.qp) {
				round->looks--;
				receive(round, now);
			}
		}
		round->looks = 0;
	}
	if (round->phase == POLL_BEFORE) {
		io_poll_send(round, now, budget, told);
		if (told->stop != STOP_DONE)
			return;
		round->phase = POLL_TAKING;
		receive(round, now);
	}
	if (round->phase == POLL_TAKING) {
		if (!take(round, now, told))
			return;
		round->silent += round->came != 0;
		round->phase = round->came ? POLL_IDLE : POLL_AFTER;
	}
	if (round->phase == POLL_AFTER) {
		if (!round->hold && (round->device->sched.scheduler->count || round->sending.qp) &&
		    !gathering(round, POLL_GATHER_ONE_IN)) {
			io_poll_send(round, now, budget, told);
			if (told->stop != STOP_DONE)
				return;
		}
		round->phase = POLL_IDLE;
	}
	*told = (struct engine_stop_info){ .stop = STOP_DONE };
}
#endif
