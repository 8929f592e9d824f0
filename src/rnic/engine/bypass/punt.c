/* What a slot's engine leaves to the NIC process, and the completion events that it raises itself (bypass/bypass.h). */
#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/punt.h"

#include "bypass/arena_map.h"

#include <string.h>

#define PHASE_WORD 3u /* of an entry */

_Static_assert((int)BYPASS_NOTIFY_SEND == (int)EFFECT_NOTIFY_SEND && (int)BYPASS_NOTIFY_RECV == (int)EFFECT_NOTIFY_RECV,
	       "effects");
_Static_assert(offsetof(struct slot, punt_unknown) - offsetof(struct slot, punt_short) ==
		       (PUNT_WAIT - PUNT_SHORT + 1) * sizeof(uint64_t),
	       "a count for each reason");

/* Ask for it, counted by `reason`. */
void bypass_punt_to_nic(struct bypass *bypass, const struct bypass_punt *punted, struct bypass_answer *answer, uint64_t *reason)
{
	*answer = (struct bypass_answer){ 0 };
	++*reason;
	if (bypass->gone)
		return;
	bypass->took_time = 1;
	if (bypass->setup.punt(bypass->setup.self, punted, answer))
		bypass->gone = 1;
	else
		bypass_arena_changed(bypass);
}

static uint64_t *reason_of(struct bypass *bypass, uint32_t end)
{
	struct slot *slot = bypass->slot;
	return end >= PUNT_SHORT && end <= PUNT_WAIT ? &slot->punt_short + (end - PUNT_SHORT) : &slot->punt_unknown;
}

/* Disarm a CQ and raise its completion event (device/cq.py, notify): 0, or -1 where its EQ is the reference's to look at.
 * Disarming comes first: who has seen the event may arm again at once. */
static int raise_event(struct bypass *bypass, struct completion_queue *cq, uint32_t number)
{
	const struct device *root = bypass_root(bypass);
	uint64_t place = cq->comp_eqn & (((uint64_t)1 << root->log_eqs) - 1);
	struct event_queue *eq = (struct event_queue *)(void *)(bypass->setup.arena + root->eqs) + place;

	if (!eq->enabled || eq->failed || eq->lkey || !eq->start || eq->logsize > 31 || !cq->usrpage)
		return -1;
	uint32_t entries = (uint32_t)1 << eq->logsize, tail = (uint32_t)eq->tail;
	_Atomic uint32_t *block = bypass_block(bypass, eq->usrpage);
	if (tail >= entries)
		return -1;
	if (!eq->room) {
		uint32_t head = atomic_load_explicit(&block[REG_CQ_HEAD / 4], memory_order_acquire);
		eq->room = head < entries ? (head - tail - 1) & (entries - 1) : 0;
	}
	if (!eq->room)
		return -1;
	atomic_store(&bypass_block(bypass, cq->usrpage)[REG_CQ_DOORBELL / 4], 0);
	_Atomic uint32_t *words = (_Atomic uint32_t *)(void *)((uint8_t *)(uintptr_t)eq->start + ((size_t)tail << CQE_SHIFT));
	const uint32_t values[] = { EVENT_COMP, number, 0, (uint32_t)eq->phase, 0, 0, 0, 0 };
	for (unsigned i = 0; i < sizeof values / sizeof *values; i++)
		if (i != PHASE_WORD)
			atomic_store_explicit(&words[i], values[i], memory_order_relaxed);
	atomic_store_explicit(&words[PHASE_WORD], values[PHASE_WORD], memory_order_release);
	eq->room--;
	if (++tail == entries) {
		tail = 0;
		eq->phase ^= CQE_PHASE;
	}
	eq->tail = tail;
	atomic_store_explicit(&block[REG_CQ_TAIL / 4], tail, memory_order_release);
	cq->last_notified = cq->tail;
	cq->due = 0;
	bypass->setup.fire(bypass->setup.self, (uint32_t)eq->msix_vector);
	return 0;
}

/* Completion events of a queue pair's CQs. Those that cannot be raised here are left to the NIC process. */
static void notify(struct bypass *bypass, const struct engine_stop_info *told)
{
	const struct queue_pair *record = engine_record(&bypass->device.sched, told->qp);
	const struct engine_qp *qp = bypass->device.qps[record->number & (((uint64_t)1 << bypass->device.log_qps) - 1)];
	uint32_t left = told->effects & (EFFECT_NOTIFY_SEND | EFFECT_NOTIFY_RECV);

	if (qp && qp->record == record) {
		if (left & EFFECT_NOTIFY_SEND && qp->send_cq && !raise_event(bypass, qp->send_cq->record, qp->send_cqn))
			left &= ~(uint32_t)EFFECT_NOTIFY_SEND;
		if (left & EFFECT_NOTIFY_RECV && qp->recv_cq && !raise_event(bypass, qp->recv_cq->record, qp->recv_cqn))
			left &= ~(uint32_t)EFFECT_NOTIFY_RECV;
	}
	if (!left)
		return;
	struct bypass_answer answer;
	struct bypass_punt about = { .kind = BYPASS_NOTIFY, .qp = told->qp, .effects = left };
	bypass_punt_to_nic(bypass, &about, &answer, &bypass->slot->punt_notify);
}

/* The rest of a receive buffer; who sent it may be known from then on. */
static void leave_packets(struct bypass *bypass, const struct engine_stop_info *told)
{
	struct io_poll *round = bypass->round;
	const struct rx_buffer *slot = &round->slots[round->slot];
	struct engine_flow flow;
	struct bypass_answer answer;
	struct bypass_punt about = {
		.kind = BYPASS_PACKET,
		.buffer = round->slot,
		.size = (uint32_t)slot->size,
		.at = (uint32_t)round->at,
		.segment = slot->segment,
		.name_bytes = slot->name_bytes,
		.tclass = slot->tclass,
		.hop_limit = slot->hop_limit,
		.flow_label = slot->flow_label,
	};
	memcpy(about.name, slot->name, sizeof about.name);
	about.count = io_poll_good_packets(round, slot->name, slot->name_bytes);
	round->slot++;
	round->at = 0;
	bypass_punt_to_nic(bypass, &about, &answer, reason_of(bypass, told->end));
	if (!answer.settled || bypass_flow_of(bypass, slot->name, slot->name_bytes, &flow))
		io_poll_forget_sender(round, slot->name, slot->name_bytes);
	else
		io_poll_add_sender(round, slot->name, slot->name_bytes, &flow);
}

static void leave_turn(struct bypass *bypass, const struct engine_stop_info *told)
{
	struct engine_sending *sending = &bypass->round->sending;
	struct bypass_answer answer;
	struct bypass_punt about = {
		.kind = BYPASS_TURN,
		.qp = sending->qp,
		.limit = sending->limit,
		.count = sending->count,
		.bytes = sending->bytes,
		.room = sending->room,
		.step = sending->step,
	};
	if (told->effects)
		notify(bypass, told);
	if (told->end == PUNT_PATH) {
		const struct queue_pair *record = engine_record(&bypass->device.sched, sending->qp);
		struct place *place = bypass->places[record->number & (((uint64_t)1 << bypass->device.log_qps) - 1)];
		if (place && place->qp.record == record && !bypass_map_destination(bypass, place))
			return; /* the turn goes on */
	}
	bypass_punt_to_nic(bypass, &about, &answer, reason_of(bypass, told->end));
	if (answer.polite)
		sending->polite[sending->later++] = sending->qp;
	sending->sent += answer.count ? answer.count : 1;
	bypass->device.counts.tx_packets += answer.count;
	sending->qp = 0;
}

/* Do what a round stopped for; 0, or -1 where nobody answers. */
int bypass_handle_stop(struct bypass *bypass, const struct engine_stop_info *told)
{
	switch (told->stop) {
	case STOP_PACKET:
		leave_packets(bypass, told);
		break;
	case STOP_TURN:
		leave_turn(bypass, told);
		break;
	case STOP_FIND:
		bypass_map_qp(bypass, told->qp);
		break;
	default:
		notify(bypass, told);
	}
	return bypass->gone ? -1 : 0;
}
#endif
