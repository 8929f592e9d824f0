/* Punts of a program's engine to the NIC process, and the completion events that the engine raises itself
 * (bypass/punt.h). */
#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/punt.h"

#include "bypass/arena_map.h"
#include "queue_pair/arithmetic.h"

#include <string.h>

#define PHASE_WORD 3u /* word of an EQ entry with the phase bit */

_Static_assert((int)BYPASS_NOTIFY_SEND == (int)EFFECT_NOTIFY_SEND && (int)BYPASS_NOTIFY_RECV == (int)EFFECT_NOTIFY_RECV,
	       "effects");
_Static_assert(offsetof(struct slot, punt_unknown) - offsetof(struct slot, punt_short) ==
		       (PUNT_WAIT - PUNT_SHORT + 1) * sizeof(uint64_t),
	       "a count for each reason");

void bypass_punt_to_nic(struct bypass *bypass, const struct bypass_punt *punt, struct bypass_answer *answer,
			uint64_t *reason)
{
	*answer = (struct bypass_answer){ 0 };
	++*reason;
	if (bypass->gone)
		return;
	bypass->took_time = 1;
	if (bypass->setup.punt(bypass->setup.self, punt, answer))
		bypass->gone = 1;
	else
		bypass_arena_changed(bypass);
}

static uint64_t *punt_counter(struct bypass *bypass, uint32_t end)
{
	struct slot *slot = bypass->slot;
	return end >= PUNT_SHORT && end <= PUNT_WAIT ? &slot->punt_short + (end - PUNT_SHORT) : &slot->punt_unknown;
}

/* Disarm a CQ and raise its completion event (device/cq.py, notify): 0, or -1 if its EQ needs the reference. Disarm
 * first: a program that has seen the event may arm again at once. */
static int raise_event(struct bypass *bypass, struct completion_queue *cq, uint32_t number)
{
	const struct device *root = bypass_root(bypass);
	uint64_t index = cq->comp_eqn & (((uint64_t)1 << root->log_eqs) - 1);
	struct event_queue *eq = (struct event_queue *)(void *)(bypass->setup.arena + root->eqs) + index;

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
	_Atomic uint32_t *words =
		(_Atomic uint32_t *)(void *)((uint8_t *)(uintptr_t)eq->start + ((size_t)tail << CQE_SHIFT));
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

/* Raise the completion events of a queue pair's CQs, and leave those that cannot be raised here to the NIC process. */
static void raise_events(struct bypass *bypass, const struct engine_stop_info *info)
{
	const struct queue_pair *record = engine_record(&bypass->device.sched, info->qp);
	const struct engine_qp *qp = bypass->device.qps[record->number & (((uint64_t)1 << bypass->device.log_qps) - 1)];
	uint32_t left = info->effects & (EFFECT_NOTIFY_SEND | EFFECT_NOTIFY_RECV);

	if (qp && qp->record == record) {
		if (left & EFFECT_NOTIFY_SEND && qp->send_cq && !raise_event(bypass, qp->send_cq->record, qp->send_cqn))
			left &= ~(uint32_t)EFFECT_NOTIFY_SEND;
		if (left & EFFECT_NOTIFY_RECV && qp->recv_cq && !raise_event(bypass, qp->recv_cq->record, qp->recv_cqn))
			left &= ~(uint32_t)EFFECT_NOTIFY_RECV;
	}
	if (!left)
		return;
	struct bypass_answer answer;
	struct bypass_punt punt = { .kind = BYPASS_NOTIFY, .qp = info->qp, .effects = left };
	bypass_punt_to_nic(bypass, &punt, &answer, &bypass->slot->punt_notify);
}

/* Punt the rest of a receive buffer; this may validate its sender. */
static void punt_packets(struct bypass *bypass, const struct engine_stop_info *info)
{
	struct io_poll *round = bypass->round;
	uint64_t from, to;
	const struct rx_buffer *rx = io_poll_punt(round, &from, &to);
	struct engine_flow flow;
	struct bypass_answer answer;
	struct bypass_punt punt = {
		.kind = BYPASS_PACKET,
		.buffer = (uint32_t)(rx - round->rx_buffers),
		.size = (uint32_t)to,
		.at = (uint32_t)from,
		.segment = (uint32_t)lesser(rx->segment, to), /* a packet may have been cut short */
		.name_bytes = rx->name_bytes,
		.tclass = round->rx_run.tclass,
		.hop_limit = rx->hop_limit,
		.flow_label = rx->flow_label,
	};
	memcpy(punt.name, rx->name, sizeof punt.name);
	punt.count = io_poll_good_packets(round, rx->name, rx->name_bytes);
	bypass_punt_to_nic(bypass, &punt, &answer, punt_counter(bypass, info->end));
	if (!answer.settled || bypass_flow_of(bypass, rx->name, rx->name_bytes, &flow))
		io_poll_forget_sender(round, rx->name, rx->name_bytes);
	else
		io_poll_add_sender(round, rx->name, rx->name_bytes, &flow);
}

static void punt_turn(struct bypass *bypass, const struct engine_stop_info *info)
{
	struct engine_sending *sending = &bypass->round->sending;
	struct bypass_answer answer;
	struct bypass_punt punt = {
		.kind = BYPASS_TURN,
		.qp = sending->qp,
		.limit = sending->limit,
		.count = sending->count,
		.bytes = sending->bytes,
		.room = sending->room,
		.step = sending->step,
	};
	if (info->effects)
		raise_events(bypass, info);
	if (info->end == PUNT_PATH) {
		const struct queue_pair *record = engine_record(&bypass->device.sched, sending->qp);
		struct mapped_qp *mapped =
			bypass->mapped_qps[record->number & (((uint64_t)1 << bypass->device.log_qps) - 1)];
		int found = mapped && mapped->qp.record == record && !bypass_map_destination(bypass, mapped);
		bypass_arena_changed(bypass); /* a message may have requested a socket */
		if (found)
			return; /* the turn continues */
	}
	bypass_punt_to_nic(bypass, &punt, &answer, punt_counter(bypass, info->end));
	if (answer.reschedule)
		sending->deferred[sending->deferred_count++] = sending->qp;
	sending->sent += answer.count ? answer.count : 1;
	bypass->device.counts.tx_packets += answer.count;
	sending->qp = 0;
}

int bypass_handle_stop(struct bypass *bypass, const struct engine_stop_info *info)
{
	switch (info->stop) {
	case STOP_PUNT_PACKET:
		punt_packets(bypass, info);
		break;
	case STOP_PUNT_TURN:
		punt_turn(bypass, info);
		break;
	case STOP_MAP_QP:
		bypass_map_qp(bypass, info->qp);
		bypass_arena_changed(bypass); /* a message may have requested a socket */
		break;
	default:
		raise_events(bypass, info);
	}
	return bypass->gone ? -1 : 0;
}
#endif
