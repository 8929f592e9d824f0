/* Outstanding requests: progress, window, timers, completions (IBA 9.7.6). */
#include "queue_pair/send_queue.h"

#include "queue_pair/by_reference.h"
#include "queue_pair/congestion.h"
#include "queue_pair/psn.h"
#include "queue_pair/response_queue.h"

int engine_sq_valid(const struct engine_qp *qp)
{
	const struct queue_pair *record = qp->record;
	uint64_t entries = record->sq_entries;
	return entries <= qp->send_wqes && record->sq_head < entries && record->send_index < entries &&
	       record->fetch_index < entries && record->tail < entries &&
	       (record->read_index == NONE || record->read_index < entries) && record->piece_first < QP_PIECES &&
	       record->piece_count <= QP_PIECES;
}

struct send_wqe *engine_sq_last(const struct engine_qp *qp)
{
	const struct queue_pair *record = qp->record;
	if (record->sq_head == record->send_index)
		return NULL;
	return &qp->sends[(record->send_index ? record->send_index : qp->record->sq_entries) - 1];
}

/* ------------------------------------------------------------------ timers */

/* Return the time at which packets sent now count as lost: the local ACK timeout, doubled after each expiry, at least
 * four round trips, at most four times the timeout (IBA 9.7.6.1.3). */
static uint64_t ack_deadline(const struct queue_pair *record, uint64_t srtt, uint64_t now)
{
	uint64_t timeout = record->ack_timeout;
	if (!timeout)
		return NEVER;
	return now + lesser(greater(timeout << (record->backoff & 63), 4 * srtt), 4 * timeout);
}

int engine_probe_enabled(const struct engine_shared *shared, const struct engine_qp *qp)
{
	return shared->probe && !(be_get(qp->qpc, QPC_OPTIONS) & OPT_NO_PROBE);
}

uint64_t engine_repeat_interval(const struct queue_pair *record, uint64_t alone, uint64_t srtt, uint64_t rttvar)
{
	return greater(srtt && alone && !record->piece_count ? TIMER_REPEAT_ALONE_NS : TIMER_REPEAT_MIN_NS,
		       2 * srtt + 4 * rttvar);
}

static uint64_t probe_deadline(const struct queue_pair *record, uint64_t alone, uint64_t srtt, uint64_t rttvar,
			       uint64_t now)
{
	return now + (engine_repeat_interval(record, alone, srtt, rttvar) << (record->probe_shift & 63));
}

/* Have the timers wake the queue pair for these two, unless they do so sooner: they look again when they fire. */
static void arm(const struct queue_pair *record, struct engine_effects *effects)
{
	if (record->ack_deadline < record->armed_ns || record->probe_deadline < record->armed_ns)
		effects->effects |= EFFECT_ARM;
}

void engine_sq_arm_timers(const struct engine_shared *shared, struct engine_qp *qp,
			  const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	if (!record->inflight)
		return;
	if (record->ack_deadline == NEVER)
		record->ack_deadline = ack_deadline(record, flight->srtt, now);
	record->probe_deadline = engine_probe_enabled(shared, qp) ?
					 probe_deadline(record, flight->alone, flight->srtt, flight->rttvar, now) :
					 NEVER;
	arm(record, effects);
}

/* ------------------------------------------------------------------ completions */

/* Return whether a message was partly sent, or executed. */
static int has_begun(const struct send_wqe *wqe)
{
	return wqe->packets ? wqe->begun != 0 : wqe->executed != 0;
}

static uint64_t end_psn(const struct send_wqe *wqe)
{
	return (wqe->first_psn + wqe->packets) & PSN_MASK;
}

int engine_signaled(const struct engine_qp *qp, const struct send_wqe *wqe)
{
	return qp->signal_all || entry_get(wqe, SQE_SIGNALED);
}

/* Reserve CQ entries for messages that acknowledging everything before `psn` completes; ENGINE_DONE, or a punt. */
static enum engine_end reserve_completions(struct engine_qp *qp, uint64_t psn, struct cq_room *room)
{
	const struct queue_pair *record = qp->record;
	uint64_t index = record->sq_head, entries = 0;
	while (index != record->fetch_index) {
		const struct send_wqe *wqe = &qp->sends[index];
		if (!has_begun(wqe) || psn_diff(end_psn(wqe), psn) > 0)
			break;
		if (wqe->status)
			return PUNT_REQUEST; /* it completes in error */
		entries += (uint64_t)(engine_signaled(qp, wqe) != 0);
		index = sq_after(qp, index);
	}
	int known = qp->send_cq && qp->send_cqn == be_get(qp->qpc, QPC_CQN_SND);
	return engine_cq_reserve(known ? qp->send_cq : NULL, entries, room) ? PUNT_CQ : ENGINE_DONE;
}

enum engine_end engine_sq_complete_check(struct engine_qp *qp, const struct send_wqe *wqe)
{
	struct cq_room room;
	int known = qp->send_cq && qp->send_cqn == be_get(qp->qpc, QPC_CQN_SND);
	return engine_cq_reserve(known ? qp->send_cq : NULL, (uint64_t)(engine_signaled(qp, wqe) != 0), &room) ?
		       PUNT_CQ :
		       ENGINE_DONE;
}

/* Complete, in order, every fully acknowledged message. */
static void complete_acked(struct engine_qp *qp, struct cq_room *room, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t index = record->sq_head, una = record->una;
	while (index != record->fetch_index) {
		struct send_wqe *wqe = &qp->sends[index];
		if (!has_begun(wqe))
			break;
		if (psn_diff(end_psn(wqe), una) > 0) {
			/* acknowledged after a rewind: do not retransmit packets that arrived */
			if (index == record->send_index) {
				int64_t arrived = psn_diff(una, wqe->first_psn);
				if (arrived > 0)
					wqe->sent = greater(wqe->sent, (uint64_t)arrived);
			}
			break;
		}
		uint64_t after = sq_after(qp, index);
		if (index == record->send_index)
			record->send_index = after;
		record->sq_head = after;
		be_put(qp->qpc, QPC_SQ_WQE_COUNTER, be_get(qp->qpc, QPC_SQ_WQE_COUNTER) + 1);
		if (engine_signaled(qp, wqe)) {
			uint32_t length = (uint32_t)entry_get(wqe, SQE_LENGTH);
			struct completion entry = {
				.index = (uint32_t)index,
				.status = SYN_SUCCESS,
				.length = length,
				.word3 = (uint32_t)entry_get(wqe, SQE_OPCODE),
				.wqe_id = (uint32_t)entry_get(wqe, SQE_WQE_ID),
				.requested = length,
				.qpn = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN),
			};
			if (engine_cq_push(room, &entry))
				effects->effects |= EFFECT_NOTIFY_SEND;
		}
		index = after;
	}
}

enum engine_end engine_sq_complete_sent(struct engine_qp *qp, struct engine_effects *effects)
{
	struct cq_room room;
	enum engine_end end = reserve_completions(qp, qp->record->una, &room);
	if (end == ENGINE_DONE)
		complete_acked(qp, &room, effects);
	return end;
}

/* ------------------------------------------------------------------ progress */

void engine_sq_reduce_window(const struct engine_shared *shared, struct queue_pair *record, uint64_t part)
{
	engine_window_resize(shared, record,
			     greater(lesser(INFLIGHT_NARROWEST, record->widest), record->window * (part - 1) / part));
}

static void widen_window(const struct engine_shared *shared, struct queue_pair *record, uint64_t acknowledged)
{
	uint64_t counted = record->uncounted + acknowledged, more = counted / INFLIGHT_WIDEN_AFTER;
	record->uncounted = counted % INFLIGHT_WIDEN_AFTER;
	if (more)
		engine_window_resize(shared, record, lesser(record->widest, record->window + more));
}

void engine_rtt_update(uint64_t *srtt, uint64_t *rttvar, uint64_t sample)
{
	if (!*srtt) {
		*srtt = sample;
		*rttvar = sample >> 1;
		return;
	}
	int64_t off = (int64_t)(sample - *srtt), apart = off < 0 ? -off : off;
	*rttvar += (uint64_t)((apart - (int64_t)*rttvar) >> 2);
	*srtt += (uint64_t)(off >> 3);
}

enum engine_end engine_sq_advance_check(struct engine_qp *qp, uint64_t psn, struct cq_room *room)
{
	return engine_sq_valid(qp) ? reserve_completions(qp, psn, room) : PUNT_STATE;
}

enum engine_end engine_sq_advance(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
				  const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects)
{
	struct cq_room room;

	if (!engine_sq_valid(qp) || psn_diff(psn, qp->record->una) < 0)
		return PUNT_STATE;
	if (psn == qp->record->una) {
		effects->effects |= EFFECT_GO_ON;
		return ENGINE_ATTENTION;
	}
	enum engine_end end = reserve_completions(qp, psn, &room);
	if (end != ENGINE_DONE)
		return end;
	engine_sq_advance_into(shared, qp, psn, &room, flight, now, effects);
	return ENGINE_ATTENTION;
}

void engine_sq_advance_into(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
			    struct cq_room *room, const struct engine_inflight *flight, uint64_t now,
			    struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t srtt = flight->srtt, rttvar = flight->rttvar;

	effects->effects |= EFFECT_ACKNOWLEDGED | EFFECT_GO_ON;
	effects->sample = NONE;
	if (record->rtt_psn != NONE && psn_diff(psn, record->rtt_psn) > 0) {
		/* clock reads of two threads may be out of order */
		effects->sample = now > record->rtt_at ? now - record->rtt_at : 0;
		engine_rtt_update(&srtt, &rttvar, effects->sample);
		record->rtt_psn = NONE;
	}
	uint64_t count = (uint64_t)psn_diff(psn, record->una);
	if (record->single_resend_psn != NONE && count > 1) {
		if (record->una == record->single_resend_psn)
			record->go_back_penalty = 0; /* the peer kept later packets */
		record->single_resend_psn = NONE;
	}
	if (record->window < record->widest)
		widen_window(shared, record, count);
	record->una = psn;
	uint64_t acked = lesser(count, record->inflight);
	effects->acknowledged += count;
	effects->inflight_acked += acked;
	record->inflight -= acked;
	be_put(qp->qpc, QPC_LAST_ACKED_PSN, psn);
	record->retry_left = be_get(qp->qpc, QPC_RETRY_CNT);
	record->rnr_left = be_get(qp->qpc, QPC_RNR_RETRY);
	int probed = record->probe_shift != 0;
	record->probe_shift = record->backoff = 0;
	if (!record->inflight) {
		record->ack_deadline = record->probe_deadline = NEVER;
	} else {
		record->ack_deadline = ack_deadline(record, srtt, now);
		record->probe_deadline = engine_probe_enabled(shared, qp) ?
						 probe_deadline(record, flight->alone, srtt, rttvar, now) :
						 NEVER;
		/* a probe may have revealed only one of several losses */
		record->probe_due = probed && engine_probe_enabled(shared, qp) && !record->piece_count;
		arm(record, effects);
	}
	complete_acked(qp, room, effects);
	engine_congestion_acked(shared, record, count, effects->sample == NONE ? 0 : effects->sample, now);
}

/* ------------------------------------------------------------------ going back */

static void mark_unsent(struct send_wqe *wqe, uint64_t psn)
{
	int64_t kept = psn_diff(psn, wqe->first_psn);
	wqe->sent = lesser(wqe->sent, kept < 0 ? 0 : (uint64_t)kept);
}

void engine_sq_rewind(struct engine_qp *qp, uint64_t psn, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t index = record->send_index;

	if (effects->effects & EFFECT_GO_ON) { /* retransmitted requests did not wait */
		if (record->probe_due)
			effects->effects |= EFFECT_BEGUN;
		else if (index == record->fetch_index && index == record->tail)
			effects->effects &= ~(uint32_t)EFFECT_GO_ON;
	}
	record->rtt_psn = NONE;
	record->probe_due = 0;
	while (record->piece_count && psn_diff(piece_due(engine_piece(qp, record->piece_count - 1)), psn) >= 0)
		record->piece_count--;
	if (index != record->fetch_index)
		mark_unsent(&qp->sends[index], psn);
	while (index != record->sq_head) {
		index = (index ? index : record->sq_entries) - 1;
		struct send_wqe *wqe = &qp->sends[index];
		if (psn_diff(end_psn(wqe), psn) <= 0)
			break;
		mark_unsent(wqe, psn);
		record->send_index = index;
	}
	int64_t ahead = psn_diff(psn, record->una);
	uint64_t kept = ahead < 0 ? 0 : (uint64_t)ahead;
	if (record->inflight > kept) {
		effects->inflight_resend += record->inflight - kept;
		record->inflight = kept;
	}
	if (!record->inflight) /* no packet in flight can be late */
		record->ack_deadline = record->probe_deadline = NEVER;
	effects->effects |= EFFECT_SCHEDULE;
}

void engine_sq_rewind_for_free(struct engine_qp *qp, uint64_t psn, struct engine_effects *effects)
{
	uint64_t deadline = qp->record->ack_deadline;

	engine_sq_rewind(qp, psn, effects);
	qp->record->ack_deadline = deadline;
	effects->effects |= EFFECT_ARM;
}

void engine_sq_retry(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn, uint64_t now,
		     struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	record->retry_left--;
	engine_count(effects, COUNT_REWINDS, 1);
	engine_sq_reduce_window(shared, record, 2);
	effects->effects |= EFFECT_LOST;
	engine_sq_rewind(qp, psn, effects);
	engine_congestion_lost(shared, record, now);
}

/* ------------------------------------------------------------------ expired timers */

uint64_t engine_deadline(const struct engine_qp *qp)
{
	const struct queue_pair *record = qp->record;
	uint64_t own = lesser(lesser(record->ack_deadline, record->probe_deadline), record->rnr_until);
	return lesser(lesser(own, record->owed_ns), lesser(record->control_ns, record->pace_ns));
}

void engine_timeout(const struct engine_shared *shared, struct engine_qp *qp, const struct engine_inflight *flight,
		    uint64_t now, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	int late = record->ack_deadline <= now;

	effects->end = PUNT_STATE;
	if (be_get(qp->qpc, QPC_SERVTYPE) != ST_RC || be_get(qp->qpc, QPC_STATE) != QP_STATE_RTS ||
	    !engine_sq_valid(qp))
		return;
	effects->end = PUNT_WAIT;
	if (record->pace_ns <= now || record->control_ns <= now || !engine_congestion_known(shared, record))
		return;
	effects->end = PUNT_ACK;
	if (late && !record->retry_left)
		return;
	effects->end = PUNT_REPLY;
	if (record->owed_ns <= now && (!engine_response_queue_valid(qp) || !engine_credits_known(qp)))
		return;
	effects->end = ENGINE_DONE;
	if (record->owed_ns <= now)
		engine_response_queue_ack(shared, qp, effects);
	if (record->rnr_until <= now) {
		record->rnr_until = NEVER;
		effects->effects |= EFFECT_SCHEDULE;
	}
	if (late) {
		engine_count(effects, COUNT_ACK_TIMEOUTS, 1);
		record->ack_deadline = NEVER;
		record->backoff = lesser(record->backoff + 1, TIMER_BACKOFF_MOST);
		effects->effects |= EFFECT_SILENT;
		engine_sq_retry(shared, qp, record->una, now, effects);
	} else if (record->probe_deadline <= now) {
		int waits = qp->peer_path && qp->peer_path->pending(qp->peer_path);
		/* as many probes without progress as there are retries; without an ACK timeout, forever */
		if (!waits && (record->probe_shift <= be_get(qp->qpc, QPC_RETRY_CNT) || !record->ack_timeout)) {
			record->probe_due = 1;
			record->ack_each = TIMER_ACK_EACH_AFTER_PROBE;
			effects->effects |= EFFECT_SCHEDULE;
		}
		if (record->probe_shift >= TIMER_SILENT_PROBES)
			effects->effects |= EFFECT_SILENT;
		record->probe_shift = lesser(record->probe_shift + !waits, TIMER_PROBE_MAX_SHIFT);
		record->probe_deadline = probe_deadline(record, flight->alone, flight->srtt, flight->rttvar, now);
	}
}
