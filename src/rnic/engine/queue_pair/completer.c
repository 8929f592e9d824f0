/* The completer: ACKs, NAKs that request retransmission, credits, READ and atomic responses (IBA 9.7.6, 9.7.7). Packets
 * that fail the queue pair are punted. */
#include "queue_pair/completer.h"

#include "queue_pair/by_reference.h"
#include "queue_pair/psn.h"
#include "queue_pair/send_queue.h"
#include "queue_pair/sge.h"
#include "queue_pair/step.h"

/* Return whether the response `psn` was requested again with its payload: then its absence is not a loss. */
static int is_asked_again(const struct engine_qp *qp, uint64_t psn)
{
	return qp->peer_path && qp->peer_path->asks_again && psn_diff(psn, qp->peer_path->again) < 0;
}

/* Return whether a retry is left after everything before `psn` is acknowledged, which restores the count. */
static int may_retry(const struct engine_qp *qp, uint64_t psn)
{
	return (psn == qp->record->una ? qp->record->retry_left : be_get(qp->qpc, QPC_RETRY_CNT)) != 0;
}

/* Return whether losses are only detected by the peer's packets. */
static int is_untimed(const struct engine_shared *shared, const struct engine_qp *qp)
{
	return !qp->record->ack_timeout && !engine_probe_enabled(shared, qp);
}

/* Retry from the oldest missing response, which was lost, since later ones have arrived (IBA 9.7.6). `effects` has the
 * effects of earlier ones. */
static void implied_nak(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
			const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t srtt = flight->srtt, rttvar = flight->rttvar;
	int again = is_asked_again(qp, psn);

	TRACE_STEP(implied_nak);
	if (effects->effects & EFFECT_ACKNOWLEDGED && effects->sample != NONE)
		engine_rtt_update(&srtt, &rttvar, effects->sample);
	/* Responses sent before the rewind may still arrive, which is not a new loss. If the response was lost again, a
	 * probe or the ACK timeout, if on, requests it. */
	if (psn == record->implied_psn &&
	    (!(again || is_untimed(shared, qp)) ||
	     now - record->implied_at < engine_repeat_interval(record, flight->alone, srtt, rttvar)))
		return;
	record->implied_psn = psn;
	record->implied_at = now;
	engine_count(effects, COUNT_IMPLIED_NAKS, 1);
	if (again)
		engine_sq_rewind_for_free(qp, psn, effects);
	else
		engine_sq_retry(shared, qp, psn, now, effects);
}

/* Acknowledge everything before `psn` and retry from there; ENGINE_ATTENTION, or a punt with nothing changed. */
static enum engine_end advance_to_lost(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
				       const struct engine_inflight *flight, uint64_t now,
				       struct engine_effects *effects)
{
	if ((psn != qp->record->implied_psn || is_untimed(shared, qp)) && !is_asked_again(qp, psn) &&
	    !may_retry(qp, psn))
		return PUNT_ACK;
	enum engine_end end = engine_sq_advance(shared, qp, psn, flight, now, effects);
	if (end == ENGINE_ATTENTION)
		implied_nak(shared, qp, psn, flight, now, effects);
	return end;
}

/* ------------------------------------------------------------------ ACK and NAK */

/* Acknowledge everything before `psn`. If a READ or atomic response is missing before it, set `*missing` and retry from
 * that one instead. ENGINE_ATTENTION, or a punt with nothing changed. */
static enum engine_end cover(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
			     const struct engine_inflight *flight, uint64_t now, int *missing,
			     struct engine_effects *effects)
{
	const struct queue_pair *record = qp->record;

	TRACE_STEP(cover);
	*missing = 0;
	if (record->read_index != NONE) {
		uint64_t due = message_due(&qp->sends[record->read_index]);
		*missing = psn_diff(psn, due) > 0;
		if (*missing && record->piece_count)
			return advance_to_lost(shared, qp, due, flight, now, effects);
		/* rewound already: requests after the READ are retransmitted with it, although they were acknowledged
		 * */
		psn = *missing ? due : psn;
	}
	enum engine_end end = engine_sq_advance(shared, qp, psn, flight, now, effects);
	if (end == ENGINE_ATTENTION && *missing)
		engine_count(effects, COUNT_DROP_STALE_RESPONSE, 1);
	return end;
}

/* Return the SSN of the last request that ends before `psn`. */
static uint64_t ssn_before(const struct engine_qp *qp, uint64_t psn)
{
	const struct queue_pair *record = qp->record;
	for (uint64_t index = record->sq_head; index != record->fetch_index; index = sq_after(qp, index)) {
		const struct send_wqe *wqe = &qp->sends[index];
		int64_t behind = psn_diff(psn, wqe->first_psn);
		if (!wqe->packets || psn_diff(wqe->first_psn + wqe->packets, psn) <= 0)
			continue;
		uint64_t taken =
			entry_get(wqe, SQE_OPCODE) == WR_READ && behind > 0 ? (uint64_t)behind / record->read_chunk : 0;
		return (wqe->ssn - engine_requests_of(record, wqe) + taken) & PSN_MASK;
	}
	return record->ssn;
}

/* Return the last SSN for which the peer has a receive entry (9.7.7.2), from the state before this ACK. The MSN is
 * derived from the PSN: the peer may have counted a request twice. */
static uint64_t credit_limit(const struct engine_qp *qp, const struct packet *packet, struct engine_effects *effects)
{
	uint64_t code = packet->bytes[BTH_BYTES] & AETH_VALUE_MASK;
	if (code == CREDITS_INVALID)
		return NONE;
	if (qp->record->send_index != qp->record->fetch_index)
		effects->effects |= EFFECT_FIRST;
	return (ssn_before(qp, packet->psn + 1) + credit_counts[code]) & PSN_MASK;
}

/* Retransmit only the packet that a NAK names, if the peer keeps out-of-order packets; else return false. */
static int resends_one(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
		       struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;

	if (!(be_get(qp->qpc, QPC_OPTIONS) & OPT_SELECTIVE_REPEAT) || record->piece_count)
		return 0;
	if (record->single_resend_psn != NONE && ((psn - record->single_resend_psn) & PSN_MASK) <= 1)
		record->go_back_left = record->go_back_penalty =
			lesser(record->go_back_penalty ? 2 * record->go_back_penalty : 1, GO_BACK_PENALTY_MAX);
	if (record->go_back_left) {
		record->go_back_left--;
		record->single_resend_psn = NONE;
		return 0;
	}
	record->single_resend_psn = psn;
	engine_sq_reduce_window(shared, record, INFLIGHT_MENDED_PART);
	record->rtt_psn = NONE;
	record->probe_due = PROBE_MENDS;
	effects->effects |= EFFECT_SCHEDULE;
	return 1;
}

/* Acknowledge packets before a NAK's PSN, and go back to it or retransmit only that packet. */
static enum engine_end nak(const struct engine_shared *shared, struct engine_qp *qp, const struct packet *packet,
			   const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects)
{
	/* the NAK names the next packet to retransmit: it is redundant and costs no retry */
	int known = qp->record->inflight <= (uint64_t)psn_diff(packet->psn, qp->record->una), missing;

	TRACE_STEP(nak);
	if (!known && !may_retry(qp, packet->psn))
		return PUNT_ACK;
	enum engine_end end = cover(shared, qp, packet->psn, flight, now, &missing, effects);
	if (end > ENGINE_ATTENTION || missing)
		return end;
	engine_count(effects, COUNT_SEQUENCE_NAKS_RECEIVED, 1);
	if (!known && !resends_one(shared, qp, packet->psn, effects))
		engine_sq_retry(shared, qp, packet->psn, now, effects);
	return end;
}

/* Acknowledge packets before an RNR NAK's PSN, and go back to it after the RNR wait. */
static enum engine_end rnr(const struct engine_shared *shared, struct engine_qp *qp, const struct packet *packet,
			   const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t most = be_get(qp->qpc, QPC_RNR_RETRY);
	int missing;

	TRACE_STEP(rnr);
	/* progress restores the count */
	if (most != RNR_RETRY_FOREVER && !(packet->psn == record->una ? record->rnr_left : most))
		return PUNT_ACK;
	enum engine_end end = cover(shared, qp, packet->psn, flight, now, &missing, effects);
	if (end > ENGINE_ATTENTION || missing)
		return end;
	engine_count(effects, COUNT_RNR_NAKS_RECEIVED, 1);
	if (most != RNR_RETRY_FOREVER)
		record->rnr_left--;
	/* an RNR NAK shows that the request has arrived: reset the retry count */
	record->retry_left = be_get(qp->qpc, QPC_RETRY_CNT);
	engine_sq_rewind(qp, packet->psn, effects);
	record->rnr_until = now + 1000 * (uint64_t)rnr_timer_us[packet->bytes[BTH_BYTES] & AETH_VALUE_MASK];
	record->ack_deadline = record->probe_deadline = NEVER;
	effects->effects |= EFFECT_ARM;
	return end;
}

/* Process an ACK or NAK; ENGINE_ATTENTION, or a punt with nothing changed. */
static enum engine_end acknowledge(const struct engine_shared *shared, struct engine_qp *qp,
				   const struct packet *packet, const struct engine_inflight *flight, uint64_t now,
				   struct engine_effects *effects)
{
	uint64_t kind = packet->bytes[BTH_BYTES] & AETH_TYPE_MASK;

	TRACE_STEP(acknowledge);
	if (kind == AETH_RNR_NAK)
		return rnr(shared, qp, packet, flight, now, effects);
	if (kind != AETH_ACK)
		return nak(shared, qp, packet, flight, now, effects);
	uint32_t before = effects->effects;
	uint64_t lsn = credit_limit(qp, packet, effects);
	int missing;
	enum engine_end end = cover(shared, qp, (packet->psn + 1) & PSN_MASK, flight, now, &missing, effects);
	if (end != ENGINE_ATTENTION) {
		effects->effects = before;
		return end;
	}
	engine_count(effects, COUNT_ACKS_RECEIVED, 1);
	qp->record->lsn = lsn;
	return end;
}

/* ------------------------------------------------------------------ responses */

/* Move read_index to the next started READ or atomic. */
static void next_read(const struct engine_qp *qp)
{
	struct queue_pair *record = qp->record;
	uint64_t index = sq_after(qp, record->read_index);
	record->read_index = NONE;
	for (; index != record->fetch_index; index = sq_after(qp, index))
		if (is_answered(&qp->sends[index]) && qp->sends[index].begun) {
			record->read_index = index;
			return;
		}
}

/* Return whether a response matches the request. */
static int response_fits(const struct queue_pair *record, const struct packet *packet, const struct read_piece *piece,
			 const struct send_wqe *wqe)
{
	uint16_t flags = packet->row->flags;
	uint64_t offset = piece->offset + piece->got * record->mtu, length = entry_get(wqe, SQE_LENGTH);
	uint64_t got = piece->got + packet->more + 1;
	if (!(flags & ROW_READ_RESPONSE))
		return is_atomic(entry_get(wqe, SQE_OPCODE)) && length == 8;
	int last = got == piece->packets, ends = (flags & ROW_END) != 0;
	if (is_atomic(entry_get(wqe, SQE_OPCODE)) || offset > length || got > piece->packets ||
	    packet->size != lesser((packet->more + 1) * record->mtu, length - offset))
		return 0;
	if (ends != last && !piece->asked)
		return 0;
	return !(flags & ROW_START ? piece->got : !wqe->received);
}

/* Rejoin the response that a probe split off, which was not lost, with the rest of its request. */
static struct read_piece *rejoin_pieces(struct engine_qp *qp, struct read_piece *piece, uint64_t count)
{
	struct queue_pair *record = qp->record;
	struct read_piece *rest = engine_piece(qp, 1);

	if (!piece->asked || piece->packets != 1 || piece->got || count == 1 || record->piece_count < 2 || rest->got ||
	    rest->index != piece->index || rest->first_psn != ((piece->first_psn + 1) & PSN_MASK))
		return piece;
	rest->first_psn = piece->first_psn;
	rest->offset = piece->offset;
	rest->packets++;
	record->piece_first = (record->piece_first + 1) % QP_PIECES;
	record->piece_count--;
	return rest;
}

/* Account for `count` response packets of the oldest request, placed in order. */
static void took(const struct engine_shared *shared, struct engine_qp *qp, struct read_piece *piece, uint64_t count,
		 struct cq_room *room, const struct engine_inflight *flight, uint64_t now,
		 struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	struct send_wqe *wqe = &qp->sends[piece->index];

	TRACE_STEP(took);
	piece->got += count;
	uint64_t psn = piece_due(piece);
	wqe->received += count;
	if (piece->got == piece->packets) {
		record->piece_first = (record->piece_first + 1) % QP_PIECES;
		record->piece_count--;
	}
	if (wqe->received == wqe->packets)
		next_read(qp);
	engine_sq_advance_into(shared, qp, psn, room, flight, now, effects);
	if (record->sq_head != record->fetch_index)
		effects->effects |= EFFECT_BEGUN;
}

/* Store the next expected response of the oldest request; ENGINE_ATTENTION, ENGINE_AGAIN if it first acknowledges
 * earlier requests, or a punt with nothing changed. */
static enum engine_end place_response(const struct engine_shared *shared, struct engine_qp *qp,
				      const struct packet *packet, struct read_piece *piece,
				      const struct engine_inflight *flight, uint64_t now,
				      struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t count = packet->more + 1, behind = (packet->psn + count) & PSN_MASK, offset = 0, size = 8, orig;
	const uint8_t *data = packet->payload;
	struct sge_list sges;
	struct cq_room room;

	if (piece->index >= record->sq_entries || record->read_index == NONE || piece->got >= piece->packets ||
	    !record->mtu)
		return PUNT_STATE;
	if (packet->by_reference)
		piece = rejoin_pieces(qp, piece, count);
	struct send_wqe *wqe = &qp->sends[piece->index];
	if (!response_fits(record, packet, piece, wqe))
		return PUNT_SEQUENCE;
	/* the response to a probe shows that the next response was lost: it would have arrived first */
	int alone = piece->asked && (packet->row->flags & ROW_START) && (packet->row->flags & ROW_END) &&
		    record->piece_count > 1 && piece_due(engine_piece(qp, 1)) == behind;
	if (alone && (piece->packets != 1 || !be_get(qp->qpc, QPC_RETRY_CNT)))
		return PUNT_ACK;
	enum engine_end end = engine_sge_resolve(shared, qp, wqe, piece->index, ACCESS_LOCAL_WRITE, &sges);
	if (end != ENGINE_DONE)
		return end;
	if (!engine_sge_reachable(shared, &sges))
		return PUNT_MEMORY;
	end = engine_sq_advance_check(qp, behind, &room);
	if (end != ENGINE_DONE)
		return end;
	if (packet->psn != record->una) {
		end = engine_sq_advance(shared, qp, packet->psn, flight, now, effects);
		return end == ENGINE_ATTENTION ? ENGINE_AGAIN : end;
	}
	if (packet->row->flags & ROW_READ_RESPONSE) {
		offset = piece->offset + piece->got * record->mtu;
		size = packet->size;
	} else {
		orig = be_load(packet->bytes + BTH_BYTES + 4, 8);
		data = (const uint8_t *)&orig;
	}
	if (packet->by_reference ? by_reference_read_response(shared, packet, &sges, offset) :
				   size && engine_sge_write(shared, &sges, offset, data, size))
		return PUNT_MEMORY;
	took(shared, qp, piece, count, &room, flight, now, effects);
	if (alone)
		implied_nak(shared, qp, behind, flight, now, effects);
	return ENGINE_ATTENTION;
}

static enum engine_end response(const struct engine_shared *shared, struct engine_qp *qp, const struct packet *packet,
				const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects)
{
	struct read_piece *piece = engine_piece(qp, 0);
	int64_t distance = qp->record->piece_count ? psn_diff(packet->psn, piece_due(piece)) : -1;

	TRACE_STEP(response);
	if (distance > 0)
		return advance_to_lost(shared, qp, piece_due(piece), flight, now, effects);
	if (!distance)
		return place_response(shared, qp, packet, piece, flight, now, effects);
	/* it has arrived already, or its request will be retransmitted */
	engine_count(effects, COUNT_DROP_STALE_RESPONSE, 1);
	return ENGINE_DONE;
}

/* Responses processed at one time share a deadline while packets stay in flight. The response to a probe and a
 * round-trip sample change what happens next. */
int engine_response_goes_on(const struct engine_qp *qp, const struct engine_effects *effects, const uint8_t *next,
			    size_t size)
{
	const uint32_t adding = EFFECT_ACKNOWLEDGED | EFFECT_GO_ON | EFFECT_BEGUN | EFFECT_ARM;
	const struct queue_pair *record = qp->record;
	const struct read_piece *piece = engine_piece(qp, 0);

	if (effects->effects & ~adding || effects->sample != NONE || record->probe_due || record->inflight < 2 ||
	    size < BTH_BYTES + ICRC_BYTES)
		return 0;
	uint64_t psn = be_load(next + PSN_AT, 3);
	if ((opcode_rows[next[0]].flags & (ROW_READ_RESPONSE | ROW_START | ROW_END)) != ROW_READ_RESPONSE ||
	    psn != record->una || psn_diff(psn, record->sent_psn) >= 0)
		return 0;
	if (!record->piece_count || piece_due(piece) != psn)
		return 0;
	return record->rtt_psn == NONE || psn_diff(psn, record->rtt_psn) < 0;
}

/* ------------------------------------------------------------------ one packet */

/* Return whether the PSN belongs to an unacknowledged packet. */
static int check_psn(struct engine_qp *qp, const struct packet *packet, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;

	TRACE_STEP(check_psn);
	if (psn_diff(packet->psn, record->sent_psn) >= 0) {
		engine_count(effects, COUNT_DROP_GHOST_RESPONSE, 1);
		return 0;
	}
	int64_t behind = psn_diff(packet->psn, record->una);
	if (behind < 0) {
		/* an unsolicited ACK may repeat the last PSN to grant credits */
		if (behind == -1 && packet->opcode == BTH_ACKNOWLEDGE &&
		    (packet->bytes[BTH_BYTES] & AETH_TYPE_MASK) == AETH_ACK)
			record->lsn = credit_limit(qp, packet, effects);
		engine_count(effects, COUNT_DROP_STALE_RESPONSE, 1);
	}
	return behind >= 0;
}

enum engine_end engine_response_receive(const struct engine_shared *shared, struct engine_qp *qp,
					const struct packet *packet, const struct engine_inflight *flight, uint64_t now,
					struct engine_effects *effects)
{
	int is_ack = packet->opcode == BTH_ACKNOWLEDGE;
	uint64_t syndrome = packet->bytes[BTH_BYTES], kind = syndrome & AETH_TYPE_MASK;
	enum engine_end end = ENGINE_DONE;

	if (!engine_sq_valid(qp) || !qp->record->read_chunk)
		return PUNT_STATE;
	if (qp->peer_path && psn_diff(qp->record->una, qp->peer_path->again) >= 0)
		qp->peer_path->asks_again = 0; /* PSNs wrap around */
	/* only NAKs that request retransmission are handled here */
	if (is_ack && kind != AETH_ACK && kind != AETH_RNR_NAK && syndrome != NAK_PSN_SEQUENCE)
		return PUNT_ACK;
	if (!engine_packet_check_icrc(shared, packet))
		return PUNT_ICRC;
	if (check_psn(qp, packet, effects))
		end = is_ack ? acknowledge(shared, qp, packet, flight, now, effects) :
			       response(shared, qp, packet, flight, now, effects);
	return end;
}
