/* All queue pairs of a device: dispatch of packets, turns, deadlines. */
#include "device/device.h"
#include "device/inflight.h"
#include "device/scheduler.h"
#include "device/timers.h"
#include "queue_pair/bth.h"
#include "queue_pair/by_reference.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/completer.h"
#include "queue_pair/congestion.h"
#include "queue_pair/context.h"
#include "queue_pair/dispatch.h"
#include "queue_pair/encap.h"
#include "queue_pair/packet.h"
#include "queue_pair/psn.h"
#include "queue_pair/rate_limit.h"
#include "queue_pair/requester.h"
#include "queue_pair/responder.h"
#include "queue_pair/response_queue.h"
#include "queue_pair/send_queue.h"

#include <stdatomic.h>

#define BECN ((uint64_t)1 << 30) /* in the first eight bytes of a BTH */
#define CNP_BYTES 16u
#define MAX_PACKET_BYTES (MAX_TRANSPORT_HEADERS + BTH_BYTES + MAX_PATH_MTU + ICRC_BYTES)

void engine_device_find(struct engine_device *device, uint8_t *arena)
{
	const struct device *root = (const struct device *)(void *)arena;
	device->sched.arena = arena;
	device->sched.inflight = (struct inflight *)(void *)(arena + root->inflight);
	device->sched.scheduler = (struct scheduler *)(void *)(arena + root->scheduler);
	device->sched.timers = (struct timers *)(void *)(arena + root->timers);
	device->directory = (uint64_t *)(void *)(arena + root->directory);
	device->log_qps = root->log_qps;
}

static uint64_t qp_index(const struct engine_device *device, uint64_t number)
{
	return number & (((uint64_t)1 << device->log_qps) - 1);
}

static struct queue_pair *record_at(const struct engine_device *device, uint64_t at)
{
	return engine_record(&device->sched, at);
}

/* Return the queue pair of a record if the engine knows it, or NULL. */
static struct engine_qp *find_qp(const struct engine_device *device, const struct queue_pair *record)
{
	struct engine_qp *qp = device->qps[qp_index(device, record->number)];
	return qp && qp->record == record ? qp : NULL;
}

/* Return whether its peer's account is known, if it needs one. */
static int has_account(const struct engine_qp *qp)
{
	return qp->record->peer_record || be_get(qp->qpc, QPC_SERVTYPE) != ST_RC;
}

static struct peer *peer_of(const struct engine_device *device, const struct queue_pair *record)
{
	return engine_record(&device->sched, record->peer_record);
}

/* Return the fields of a peer's account that receiving needs. */
static struct engine_inflight round_trips(const struct peer *peer)
{
	return (struct engine_inflight){ .srtt = peer->srtt, .rttvar = peer->rttvar, .alone = peer->users == 1 };
}

/* Return whether one ACK for several packets has the same effect on the in-flight accounts as one for each: the peer's
 * limit does not grow any more, and no other queue pair waits. */
static int can_coalesce(const struct engine_device *device, const struct queue_pair *record, const struct peer *peer)
{
	uint64_t waited_for = device->sched.inflight->waited_for;
	int grown = !peer->limit_16 || peer->limit_16 >= peer->most << INFLIGHT_FRACTION_BITS;
	return grown && (!waited_for || (waited_for == 1 && peer->waiting == 1 && record->parked));
}

/* Read the current accounts. */
static void read_inflight(const struct engine_device *device, const struct peer *peer, struct engine_inflight *accounts)
{
	const struct inflight *inflight = device->sched.inflight;
	struct engine_limits limits;
	engine_inflight_limits(&device->sched, peer, &limits);
	*accounts = (struct engine_inflight){
		.peer_limit = limits.peer,
		.peer_inflight = peer->inflight,
		.peer_promised = peer->promised,
		.peer_waiting = peer->waiting,
		.nic_limit = limits.nic,
		.nic_inflight = inflight->packets,
		.nic_promised = inflight->promised,
		.nic_queued = inflight->waited_for,
		.nic_overtaken = inflight->overtaken,
		.others = limits.others,
		.srtt = peer->srtt,
		.rttvar = peer->rttvar,
		.alone = peer->users == 1,
	};
}

/* Publish SQ_HEAD and QUEUE_STATE in the queue block. */
static void publish_state(const struct engine_qp *qp)
{
	struct queue_pair *record = qp->record;
	uint64_t state = be_get(qp->qpc, QPC_STATE);
	if (record->sq_head != record->shown_head) {
		record->shown_head = record->sq_head;
		atomic_store_explicit(&qp->block[REG_SQ_HEAD / 4], (uint32_t)record->sq_head, memory_order_release);
	}
	if (state != record->shown_state) {
		record->shown_state = state;
		atomic_store_explicit(&qp->block[REG_QUEUE_STATE / 4], (uint32_t)state, memory_order_release);
	}
}

static void count_event(struct engine_device *device, enum engine_count which, uint64_t amount)
{
	device->counts.events[which] += amount;
	device->counts.changed |= (uint64_t)1 << which;
}

static void count_events(struct engine_device *device, const struct engine_effects *effects)
{
	for (uint32_t left = effects->counted; left; left &= left - 1) {
		enum engine_count which = (enum engine_count)__builtin_ctz(left);
		count_event(device, which, effects->counts[which]);
	}
}

/* ------------------------------------------------------------------ receiving */

/* Return whether packets come from the address of a queue pair's peer to its own, or it has no peer. */
static int from_peer(const struct engine_device *device, const struct queue_pair *record,
		     const struct engine_flow *flow)
{
	if (!record->path || record->opcodes == SERVICE_UD)
		return record->path != 0;
	const struct flow *path = engine_record(&device->sched, record->path);
	uint64_t bytes = path->family == 4 ? 4 : 16;
	return flow->address_bytes == bytes && !memcmp(&path->dst_0, flow->source, bytes) &&
	       !memcmp(&path->src_0, flow->destination, bytes);
}

/* Apply the effects of a packet or timer beyond the queue pair, except completion events. */
static void apply_effects(struct engine_device *device, uint64_t at, const struct engine_effects *effects, uint64_t now)
{
	const struct engine_sched *sched = &device->sched;
	const struct queue_pair *record = record_at(device, at);
	struct peer *peer = peer_of(device, record);
	uint32_t flags = effects->effects;

	count_events(device, effects);
	if (flags & EFFECT_FIRST)
		engine_schedule(sched, at);
	if (flags & EFFECT_ACKNOWLEDGED) {
		if (effects->sample != NONE)
			engine_peer_measured(peer, effects->sample, now);
		engine_peer_acknowledged(peer, effects->acknowledged);
		if (effects->inflight_acked)
			engine_inflight_release(sched, peer, effects->inflight_acked);
	}
	if (flags & EFFECT_GO_ON) {
		int waits = record->send_index != record->fetch_index || record->fetch_index != record->tail;
		if (record->probe_due || (waits && !record->parked))
			engine_schedule(sched, at);
	}
	if (flags & EFFECT_BEGUN)
		engine_schedule(sched, at);
	if (flags & EFFECT_SILENT)
		engine_peer_silent(peer, now);
	if (flags & EFFECT_LOST)
		engine_peer_lost(peer, now);
	if (effects->inflight_resend)
		engine_inflight_release(sched, peer, effects->inflight_resend);
	if (flags & EFFECT_SCHEDULE)
		engine_schedule(sched, at);
	if (flags & EFFECT_ARM)
		engine_rearm(sched, at);
}

size_t engine_device_receive(struct engine_device *device, const uint8_t *buffer, size_t length, size_t segment,
			     size_t start, const struct engine_meta *meta, uint64_t now, struct engine_stop_info *info)
{
	size_t at = start;

	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	engine_prefetch_forget(device->shared);
	while (at < length) {
		size_t size = lesser(length - at, segment);
		info->stop = STOP_PUNT_PACKET;
		info->end = PUNT_SHORT;
		if (size < BTH_BYTES + ICRC_BYTES)
			break;
		uint64_t number = be_load(buffer + at + DQPN_AT, 3),
			 found = device->directory[qp_index(device, number)];
		info->end = PUNT_HEADER;
		if (!found)
			break;
		struct queue_pair *record = record_at(device, found);
		struct engine_qp *qp = find_qp(device, record);
		info->qp = found;
		if (!qp || record->number != number || !from_peer(device, record, &meta->flow))
			break;
		info->end = PUNT_STATE;
		if (record->held || !qp->block || !has_account(qp) || !engine_congestion_known(device->shared, record))
			break;
		if (qp->found != device->changes) {
			info->stop = STOP_MAP_QP;
			break;
		}
		struct engine_effects effects = { .sample = NONE };
		const struct peer *peer = peer_of(device, record);
		struct engine_inflight accounts = round_trips(peer);
		size_t taken = engine_receive_on(device->shared, qp, buffer, length, segment, at, meta, &accounts,
						 can_coalesce(device, record, peer), now, &effects);
		device->counts.rx_packets += effects.packets;
		apply_effects(device, found, &effects, now);
		info->end = effects.end;
		if (!taken && effects.end != ENGINE_AGAIN)
			break;
		at += taken;
		record->came_bytes += taken;
		publish_state(qp);
		info->effects = effects.effects & (EFFECT_NOTIFY_SEND | EFFECT_NOTIFY_RECV);
		info->stop = STOP_DONE;
		if (info->effects) {
			info->stop = STOP_NOTIFY;
			break;
		}
	}
	return at - start;
}

int engine_device_expects(const struct engine_device *device, uint64_t number, struct engine_expects *expects)
{
	uint64_t found = device->directory[qp_index(device, number)];
	if (!found)
		return -1;
	const struct queue_pair *record = record_at(device, found);
	const struct engine_qp *qp = find_qp(device, record);
	if (!qp || record->number != number || be_get(qp->qpc, QPC_SERVTYPE) != ST_RC ||
	    !(be_get(qp->qpc, QPC_OPTIONS) & OPT_SELECTIVE_REPEAT))
		return -1;
	*expects = (struct engine_expects){ found, record->generation, be_get(qp->qpc, QPC_EXPECTED_PSN) & PSN_MASK,
					    record->nak_sent };
	return 0;
}

/* ------------------------------------------------------------------ packets by reference */

/* Return the queue pair that is connected to another one, or NULL. */
static struct engine_qp *find_connected(const struct engine_device *device, uint64_t number, uint64_t other)
{
	uint64_t found = device->directory[qp_index(device, number)];
	if (!found)
		return NULL;
	struct queue_pair *record = record_at(device, found);
	struct engine_qp *qp = find_qp(device, record);
	if (!qp || record->number != number || record->held || !qp->block || !has_account(qp) ||
	    be_get(qp->qpc, QPC_SERVTYPE) != ST_RC || be_get(qp->qpc, QPC_REMOTE_QPN) != other)
		return NULL;
	return qp;
}

/* Return the number of unacknowledged packets that a peer's refusal names, 0 for none. */
static uint64_t packets_in_flight(const struct queue_pair *record, const struct engine_by_reference *by_ref)
{
	int64_t left = psn_diff(record->sent_psn, by_ref->psn);
	if (psn_diff(by_ref->psn, record->una) < 0 || left <= 0)
		return 0;
	return lesser(by_ref->packets, (uint64_t)left);
}

/* Request responses again that cannot be pulled, this time with their payload. A peer that keeps sending by reference
 * gets no answer, and the responses are lost; timers bound this. */
static enum engine_taken request_again(struct engine_device *device, struct engine_qp *qp,
				       const struct engine_by_reference *by_ref, uint64_t now,
				       struct engine_stop_info *info)
{
	struct engine_effects effects = { .sample = NONE };
	struct queue_pair *record = qp->record;

	info->refused = engine_sq_valid(qp) ? packets_in_flight(record, by_ref) : 0;
	if (!info->refused)
		return TAKEN_NOTHING;
	qp->peer_path->asks_again = 1;
	qp->peer_path->again = record->sent_psn;
	engine_sq_rewind_for_free(qp, by_ref->psn, &effects);
	apply_effects(device, (uint64_t)((uint8_t *)record - device->sched.arena), &effects, now);
	return TAKEN_REFUSED;
}

/* Process by-reference responses to a READ. */
static enum engine_taken take_responses(struct engine_device *device, struct engine_qp *qp, const struct packet *packet,
					uint64_t now, struct engine_stop_info *info)
{
	struct queue_pair *record = qp->record;
	struct engine_effects effects = { .sample = NONE };
	struct engine_inflight accounts = round_trips(peer_of(device, record));

	qp->peer_path->asks_again &= psn_diff(record->una, qp->peer_path->again) < 0;
	if (qp->peer_path->asks_again && psn_diff(packet->psn, qp->peer_path->again) < 0)
		return TAKEN_NOTHING;
	enum engine_end end = engine_response_receive(device->shared, qp, packet, &accounts, now, &effects);
	apply_effects(device, info->qp, &effects, now);
	info->effects = effects.effects & EFFECT_NOTIFY_SEND;
	info->stop = info->effects ? STOP_NOTIFY : STOP_DONE;
	if (end == ENGINE_AGAIN)
		return TAKEN_PARTIAL;
	if (end != ENGINE_DONE && end != ENGINE_ATTENTION)
		return request_again(device, qp, packet->by_reference, now, info);
	return TAKEN_ALL;
}

/* Return the PSN of the next packet expected from the peer. */
static uint64_t due_psn(const struct engine_qp *qp, int response)
{
	return response ? qp->record->una : be_get(qp->qpc, QPC_EXPECTED_PSN) & PSN_MASK;
}

enum engine_taken engine_device_by_reference(struct engine_device *device, const struct engine_by_reference *by_ref,
					     struct engine_pull *pull, uint64_t now, struct engine_stop_info *info)
{
	uint8_t bytes[BY_REFERENCE_HEADER];
	struct packet packet;
	struct engine_effects effects = { .sample = NONE };
	struct engine_qp *qp = find_connected(device, by_ref->destination, by_ref->source);
	enum engine_taken taken = TAKEN_ALL;

	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	if (!qp || by_reference_parse(by_ref, bytes, &packet))
		return TAKEN_NOTHING;
	struct queue_pair *record = qp->record;
	uint64_t at = (uint64_t)((uint8_t *)record - device->sched.arena), state = be_get(qp->qpc, QPC_STATE);
	int response = packet.row->flags & ROW_RESPONSE;
	uint64_t before = due_psn(qp, response);
	if (state != QP_STATE_RTR && state != QP_STATE_RTS)
		return TAKEN_NOTHING;
	info->qp = at;
	if (qp->found != device->changes) {
		info->stop = STOP_MAP_QP;
		return TAKEN_NOTHING;
	}
	if (!qp->peer_path)
		/* its peer belongs to another device, which may use the same queue pair numbers */
		return TAKEN_NOTHING;
	packet.pull = pull;
	if (response) {
		taken = state == QP_STATE_RTS ? take_responses(device, qp, &packet, now, info) : TAKEN_NOTHING;
	} else {
		enum engine_end end = engine_request_receive(device->shared, qp, &packet, peer_of(device, record)->srtt,
							     now, &effects);
		if (end != ENGINE_DONE && end != ENGINE_ATTENTION) {
			record->nak_sent = 1; /* later packets are beyond a gap */
			return TAKEN_REFUSED;
		}
		apply_effects(device, at, &effects, now);
		info->effects = effects.effects & EFFECT_NOTIFY_RECV;
		info->stop = info->effects ? STOP_NOTIFY : STOP_DONE;
	}
	if (taken == TAKEN_ALL) {
		/* the peer may claim any PSNs for packets that are dropped */
		uint64_t moved = (due_psn(qp, response) - before) & PSN_MASK;
		device->counts.rx_packets += greater(1, moved);
		record->came_bytes += lesser(by_ref->bytes, moved * context_mtu(qp->qpc));
	}
	publish_state(qp);
	return taken;
}

uint64_t engine_device_on_refusal(struct engine_device *device, const struct engine_by_reference *by_ref, uint64_t now)
{
	struct engine_effects effects = { .sample = NONE };
	struct engine_qp *qp = find_connected(device, by_ref->source, by_ref->destination);

	if (!qp || qp->found != device->changes || !qp->peer_path || be_get(qp->qpc, QPC_STATE) != QP_STATE_RTS ||
	    !engine_sq_valid(qp) || by_ref->psn > PSN_MASK)
		return 0;
	struct queue_pair *record = qp->record;
	uint64_t refused = packets_in_flight(record, by_ref);
	if (!refused)
		return 0;
	engine_sq_rewind_for_free(qp, by_ref->psn, &effects);
	apply_effects(device, (uint64_t)((uint8_t *)record - device->sched.arena), &effects, now);
	return refused;
}

/* ------------------------------------------------------------------ sending */

int engine_device_ring(struct engine_device *device, struct engine_qp *qp)
{
	struct queue_pair *record = qp->record;
	if (!qp->block)
		return -1;
	if (record->held)
		return 0; /* the doorbell is rung again when the queue pair is cached */
	uint64_t tail = atomic_load_explicit(&qp->block[REG_SQ_TAIL / 4], memory_order_acquire);
	if (be_get(qp->qpc, QPC_STATE) != QP_STATE_RTS || tail >= record->sq_entries)
		return -1;
	if (tail != record->tail) {
		record->tail = tail;
		engine_schedule(&device->sched, (uint64_t)((uint8_t *)record - device->sched.arena));
	}
	return 0;
}

/* Return whether the engine can run a turn. */
static int can_run_turn(const struct engine_device *device, const struct engine_qp *qp)
{
	const struct queue_pair *record = qp->record;
	if (!engine_congestion_may_send(device->shared, record))
		return 0;
	if (record->masked || !qp->route || !qp->block || !has_account(qp) || !record->path)
		return 0;
	/* the CQ determines whether replies go first; a queue pair that must wait for room needs a line */
	return qp->recv_cq && qp->recv_cqn == be_get(qp->qpc, QPC_CQN_RCV) && device->sched.inflight->spare_line;
}

/* Send requests; 0, or -1 if the reference must continue. */
static int send_requests(struct engine_device *device, struct engine_qp *qp, uint64_t now, struct engine_out *out,
			 struct engine_sending *sending, struct engine_stop_info *info)
{
	const struct engine_sched *sched = &device->sched;
	struct peer *peer = peer_of(device, qp->record);
	struct engine_effects effects = { .sample = NONE };
	struct engine_inflight accounts;

	read_inflight(device, peer, &accounts);
	uint64_t made = engine_send(device->shared, qp, now, sending->room, &accounts, out, &effects);
	sending->count += made;
	sending->room -= made;
	if (effects.inflight_sent)
		engine_inflight_take(sched, peer, effects.inflight_sent, effects.admitted);
	if (made)
		count_events(device, &effects);
	info->effects |= effects.effects & EFFECT_NOTIFY_SEND;
	if (effects.effects & EFFECT_NO_ROOM)
		engine_inflight_wait(sched, sending->qp); /* a line is spare, or there was no turn */
	if (effects.effects & EFFECT_ARM)
		engine_rearm(sched, sending->qp);
	if (effects.end == ENGINE_DONE) {
		engine_inflight_turn_over(sched, sending->qp);
		return 0;
	}
	info->end = effects.end;
	return sending->room ? -1 : 0;
}

/* Send up to `budget` replies; 0, or -1 if the reference must. */
static int send_replies(struct engine_device *device, struct engine_qp *qp, uint64_t budget, struct engine_out *out,
			struct engine_sending *sending, struct engine_stop_info *info)
{
	struct engine_effects effects = { .sample = NONE };
	uint64_t made = engine_reply(device->shared, qp, budget, out, &effects);
	sending->count += made;
	info->end = effects.end;
	return made ? 0 : -1;
}

/* ------------------------------------------------------------------ congestion */

void engine_device_on_mark(struct engine_device *device, uint64_t at, uint64_t now)
{
	struct queue_pair *record = record_at(device, at);
	count_event(device, COUNT_ECN_MARKED_PACKETS, 1);
	if (now < record->cnp_merge_ns) {
		count_event(device, COUNT_CNPS_MERGED, 1);
		return;
	}
	record->cnp_merge_ns = now + device->shared->congestion.merge_ns;
	record->cnp_tag = 1;
	engine_schedule(&device->sched, at);
}

/* Return the size of the largest packet on a queue pair's path. */
static uint64_t max_packet_bytes(const struct engine_qp *qp)
{
	return MAX_TRANSPORT_HEADERS + context_mtu(qp->qpc) + ICRC_BYTES;
}

void engine_device_on_cnp(struct engine_device *device, uint64_t at, uint64_t now)
{
	struct queue_pair *record = record_at(device, at);
	const struct engine_qp *qp = find_qp(device, record);
	count_event(device, COUNT_CNPS_RECEIVED, 1);
	if (!qp || be_get(qp->qpc, QPC_STATE) != QP_STATE_RTS)
		return;
	int told = engine_congestion_notified(device->shared, record, max_packet_bytes(qp), now);
	if (told & CNP_PACED)
		count_event(device, COUNT_CNP_RATE_CUTS, 1);
	if (told & CNP_LOWERED)
		count_event(device, COUNT_CNP_LIMITS, 1);
	if (told & CNP_LOWERED || (told & CNP_PACED && told & CNP_BEGAN))
		count_event(device, COUNT_EVENT_CONGESTION, 1);
	engine_rearm(&device->sched, at);
}

/* Send the CNP requested by cnp_tag; 1, or 0 if there is no room. */
static uint64_t send_cnp(struct engine_device *device, struct engine_qp *qp, struct engine_out *out)
{
	struct queue_pair *record = qp->record;
	uint8_t *frame = engine_packet_begin(out, BTH_BYTES, CNP_BYTES, 0);
	if (!frame)
		return 0;
	record->cnp_tag = 0;
	be_store(frame, 8, record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | BECN | (uint64_t)BTH_CNP << 56);
	memset(frame + 8, 0, BTH_BYTES - 8 + CNP_BYTES);
	engine_packet_seal(out, device->shared, &qp->flow, frame, BTH_BYTES, CNP_BYTES);
	engine_packets_flush(out);
	count_event(device, COUNT_CNPS_SENT, 1);
	return 1;
}

/* Send requests if there are any: a queue pair that only receives needs no accessible ring. */
static int send_some(struct engine_device *device, struct engine_qp *qp, uint64_t now, struct engine_out *out,
		     struct engine_sending *sending, struct engine_stop_info *info)
{
	if (engine_unsent(qp->record))
		return send_requests(device, qp, now, out, sending, info);
	qp->record->more = 0;
	return 0;
}

/* Send requests as the rate allows, and arm the timer for the others. 0, or -1 if the reference must continue. */
static int send_paced(struct engine_device *device, struct engine_qp *qp, uint64_t now, struct engine_out *out,
		      struct engine_sending *sending, struct engine_stop_info *info)
{
	struct queue_pair *record = qp->record;
	uint64_t packet = max_packet_bytes(qp), used = out->carried + out->used;
	if (!record->paced || !record->control)
		return send_some(device, qp, now, out, sending, info);
	engine_congestion_catch_up(device->shared, record, now);
	if (record->paced)
		sending->room = lesser(sending->room, engine_rate_limit_allowance(record, now, packet));
	if (!sending->room) {
		record->more = 0;
		record->pace_ns = engine_rate_limit_ready(record, packet);
		engine_rearm(&device->sched, sending->qp);
		engine_inflight_turn_over(&device->sched, sending->qp);
		return 0;
	}
	int result = send_some(device, qp, now, out, sending, info);
	engine_congestion_sent(device->shared, record, out->carried + out->used - used);
	return result;
}

static int owes_single_ack(const struct engine_qp *qp)
{
	return qp->record->reply_count == 1 && engine_response_at(qp, 0)->kind == REPLY_ACK;
}

static uint64_t budget_left(const struct engine_sending *sending)
{
	return sending->limit > sending->count ? sending->limit - sending->count : 0;
}

/* Run the turn of a queue pair that owes a CNP or is rate-limited (device/sending.py take_turn, transport/qp.py
 * produce). */
static int congested_turn(struct engine_device *device, struct engine_qp *qp, uint64_t now, struct engine_out *out,
			  struct engine_sending *sending, struct engine_stop_info *info)
{
	struct queue_pair *record = qp->record;
	int first = record->reply_count && qp->recv_cq->record->notified;

	record->replies_deferred = 0;
	if (!record->cnp_tag && owes_single_ack(qp) && (first || (sending->limit && !engine_unsent(record))) &&
	    send_replies(device, qp, 1, out, sending, info))
		return -1;
	if (!budget_left(sending) || !(engine_unsent(record) || record->reply_count || record->cnp_tag))
		return 0;
	uint64_t budget = budget_left(sending), before = sending->count;
	first = record->reply_count && qp->recv_cq->record->notified;
	if (record->cnp_tag)
		sending->count += send_cnp(device, qp, out);
	if (first && sending->count - before < budget &&
	    send_replies(device, qp, budget - (sending->count - before), out, sending, info))
		return -1;
	sending->room = lesser(budget, greater(budget_left(sending), ENGINE_MIN_REPLIES));
	sending->step = STEP_REQUESTS;
	if (send_paced(device, qp, now, out, sending, info))
		return -1;
	sending->step = STEP_REST;
	if (record->reply_count && !first)
		return send_replies(device, qp, greater(budget_left(sending), ENGINE_MIN_REPLIES), out, sending, info);
	return 0;
}

/* Return whether a queue pair owes a single ACK only, which can join the burst of its requests. */
static int can_piggyback_ack(const struct engine_device *device, const struct engine_qp *qp, struct engine_out *out)
{
	const struct engine_burst *last = &out->bursts[out->count - (out->count != 0)];

	if (!device->piggyback_acks || !out->count || !engine_response_queue_valid(qp) || !owes_single_ack(qp) ||
	    last->route != qp->route || last->length != (uint64_t)last->segment * last->count)
		return 0;
	out->open = 1; /* append a packet that fits after the last segment; otherwise start a burst */
	return 1;
}

/* Build the turn's packets. Returns 1 if its replies are deferred behind new messages, -1 if the reference must
 * continue from `step`, else 0. */
static int run_turn(struct engine_device *device, struct engine_qp *qp, uint64_t now, struct engine_out *out,
		    struct engine_sending *sending, struct engine_stop_info *info)
{
	struct queue_pair *record = qp->record;

	sending->step = STEP_FIRST;
	out->max_segments = record->batch_limit;
	out->route = qp->route;
	if (out->turned)
		out->turned(out, qp);
	if (record->cnp_tag || record->paced)
		return congested_turn(device, qp, now, out, sending, info);
	if (record->reply_count && qp->recv_cq->record->notified &&
	    send_replies(device, qp, sending->limit, out, sending, info))
		return -1;
	if (engine_unsent(record)) {
		sending->room = lesser(sending->limit, greater(budget_left(sending), ENGINE_MIN_REPLIES));
		sending->step = STEP_REQUESTS;
		if (send_requests(device, qp, now, out, sending, info))
			return -1;
	}
	if (sending->count && record->reply_count && !record->replies_deferred && !can_piggyback_ack(device, qp, out)) {
		record->replies_deferred = 1;
		return 1;
	}
	record->replies_deferred = 0;
	sending->step = STEP_REST;
	if (record->reply_count &&
	    send_replies(device, qp, greater(budget_left(sending), ENGINE_MIN_REPLIES), out, sending, info))
		return -1;
	return 0;
}

/* End the turn. */
static void finish_turn(struct engine_device *device, struct engine_qp *qp, struct engine_sending *sending, int defer)
{
	const struct engine_sched *sched = &device->sched;
	struct queue_pair *record = qp->record;
	uint64_t bytes = sched->scheduler->count ? sending->bytes : 0;
	int again = 0;

	publish_state(qp);
	sending->sent += sending->count ? sending->count : 1; /* a turn without a packet counts, too */
	device->counts.tx_packets += sending->count;
	if (defer) {
		sending->deferred[sending->deferred_count++] = sending->qp;
	} else if (sending->count) {
		int cut = sending->count >= sending->limit && engine_unsent(record);
		if (!record->scheduled && (cut || record->more || record->reply_count)) {
			record->scheduled = 1;
			again = 1;
		}
	}
	record->sent_bytes += sending->bytes;
	engine_scheduler_spend(sched, sending->qp, bytes, again);
	sending->qp = 0;
}

/* Start the turn of the next queue pair. */
static void begin_turn(const struct engine_device *device, uint64_t budget, struct engine_sending *sending)
{
	const struct engine_sched *sched = &device->sched;
	uint64_t at = engine_scheduler_take(sched), limit = budget - sending->sent;
	struct queue_pair *record = record_at(device, at);
	int64_t allowance;

	record->scheduled = 0;
	if (engine_scheduler_allowance(sched, at, &allowance)) {
		uint64_t mtu = context_mtu(sched->arena + record->context);
		if (mtu && allowance < (int64_t)(limit * mtu))
			limit = allowance > 0 ? ((uint64_t)allowance + mtu - 1) / mtu : 0;
	}
	sending->qp = at;
	sending->limit = limit;
	sending->count = sending->bytes = sending->room = 0;
	sending->step = STEP_FIRST;
}

void engine_device_send(struct engine_device *device, uint64_t now, uint64_t budget, struct engine_out *out,
			struct engine_sending *sending, struct engine_stop_info *info)
{
	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	const struct scheduler *scheduler = device->sched.scheduler;
	while (sending->qp || (scheduler->count && !scheduler->over && sending->sent < budget &&
			       sending->deferred_count < ENGINE_BURSTS)) {
		uint64_t most = budget - lesser(budget, sending->sent) + 2 * ENGINE_MIN_REPLIES;
		info->stop = STOP_OUT_FULL;
		if (out->count + most > ENGINE_BURSTS ||
		    (!out->carry && out->used + most * MAX_PACKET_BYTES > out->room))
			return;
		if (!sending->qp)
			begin_turn(device, budget, sending);
		struct engine_qp *qp = find_qp(device, record_at(device, sending->qp));
		uint64_t used = out->carried + out->used;
		*info = (struct engine_stop_info){ .stop = STOP_PUNT_TURN, .end = PUNT_STATE, .qp = sending->qp };
		if (qp && qp->found != device->changes) {
			info->stop = STOP_MAP_QP;
			return;
		}
		if (!qp || !can_run_turn(device, qp))
			return;
		int outcome = run_turn(device, qp, now, out, sending, info);
		sending->bytes = out->carried + out->used - used;
		if (outcome < 0)
			return;
		finish_turn(device, qp, sending, outcome);
		info->stop = info->effects ? STOP_NOTIFY : STOP_DONE;
		if (info->effects)
			return;
	}
}

void engine_device_sent(struct engine_device *device, struct engine_sending *sending)
{
	for (uint32_t i = 0; i < sending->deferred_count; i++)
		engine_schedule(&device->sched, sending->deferred[i]);
	sending->deferred_count = 0;
	sending->sent = 0;
	device->sched.scheduler->over = 0;
}

/* ------------------------------------------------------------------ deadlines */

/* Handle an expired timer of a queue pair; returns whether the engine could. */
static int handle_timeout(struct engine_device *device, uint64_t at, uint64_t now)
{
	struct queue_pair *record = record_at(device, at);
	struct engine_qp *qp = find_qp(device, record);
	struct engine_effects effects = { .sample = NONE };
	struct engine_inflight accounts;

	if (!qp || !record->peer_record)
		return 0;
	if (!engine_congestion_known(device->shared, record))
		return 0;
	if (record->pace_ns <= now) {
		record->pace_ns = NEVER;
		engine_schedule(&device->sched, at);
	}
	if (record->control_ns <= now && engine_congestion_timer(device->shared, record, now))
		engine_schedule(&device->sched, at);
	accounts = round_trips(peer_of(device, record));
	engine_timeout(device->shared, qp, &accounts, now, &effects);
	if (effects.end != ENGINE_DONE)
		return 0;
	apply_effects(device, at, &effects, now);
	return 1;
}

uint64_t engine_device_due(struct engine_device *device, uint64_t now, uint64_t *most)
{
	while (*most) {
		uint64_t at = engine_timers_due(&device->sched, now);
		--*most;
		if (!at || (engine_deadline_of(record_at(device, at)) <= now && !handle_timeout(device, at, now)))
			return at;
		engine_rearm(&device->sched, at);
	}
	return 0;
}

uint64_t engine_device_deadline(const struct engine_device *device)
{
	return engine_timers_next(&device->sched);
}
