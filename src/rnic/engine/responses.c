/* The completer: ACKs, and NAKs that ask for packets again, where no READ waits and no credits are counted (IBA 9.7.6;
 * transport/completer.py). */
#include "parts.h"

/* Acknowledge what lies before a NAK, then go back to it; ENGINE_TOLD, or a punt with nothing changed. */
static enum engine_end refused(const struct engine_port *port, struct engine_qp *qp, const struct packet *packet,
			       uint64_t syndrome, const struct engine_flight *flight, uint64_t now,
			       struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t covered = (uint64_t)psn_diff(packet->psn, record->una);
	int not_ready = (syndrome & AETH_TYPE_MASK) == AETH_RNR_NAK;
	/* what is asked for is what is sent next, again: it tells nothing new and costs no retry */
	int known = record->flying <= covered;

	if (not_ready) {
		/* progress restores both counts */
		uint64_t most = be_get(qp->qpc, QPC_RNR_RETRY);
		if (most != RNR_RETRY_FOREVER && !(covered ? most : record->rnr_left))
			return PUNT_ACK;
	} else if (!known && !(covered ? be_get(qp->qpc, QPC_RETRY_CNT) : record->retry_left)) {
		return PUNT_ACK;
	}
	enum engine_end end = engine_advance(port, qp, packet->psn, flight, now, effects);
	if (end > ENGINE_TOLD)
		return end;
	if (!not_ready) {
		effects->counts[COUNT_SEQUENCE_NAKS_RECEIVED]++;
		if (!known)
			engine_retry(port, qp, packet->psn, effects);
		return end;
	}
	effects->counts[COUNT_RNR_NAKS_RECEIVED]++;
	if (be_get(qp->qpc, QPC_RNR_RETRY) != RNR_RETRY_FOREVER)
		record->rnr_left--;
	engine_rewind(qp, packet->psn, effects);
	record->rnr_until = now + 1000 * (uint64_t)rnr_timer_us[syndrome & AETH_VALUE_MASK];
	record->ack_deadline = record->probe_deadline = NEVER;
	return end;
}

enum engine_end engine_response_receive(const struct engine_port *port, struct engine_qp *qp, const struct packet *packet,
				 const struct engine_flight *flight, uint64_t now, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t syndrome = packet->bytes[BTH_BYTES], kind = syndrome & AETH_TYPE_MASK;

	if (packet->opcode != BTH_ACKNOWLEDGE || record->read_index != NONE || record->piece_count || record->lsn != NONE)
		return PUNT_ACK;
	/* an ACK grants no credits, and a NAK says nothing worse than that packets are to be sent again */
	if (syndrome != CREDITS_INVALID && syndrome != NAK_PSN_SEQUENCE && kind != AETH_RNR_NAK)
		return PUNT_ACK;
	if (!engine_packet_right(port, packet))
		return PUNT_ICRC;
	effects->effects |= EFFECT_ARM;
	if (psn_diff(packet->psn, record->sent_psn) >= 0) {
		effects->counts[COUNT_GHOST_RESPONSE]++;
		return ENGINE_DONE;
	}
	if (psn_diff(packet->psn, record->una) < 0) {
		effects->counts[COUNT_STALE_RESPONSE]++;
		return ENGINE_DONE;
	}
	if (kind != AETH_ACK)
		return refused(port, qp, packet, syndrome, flight, now, effects);
	enum engine_end end = engine_advance(port, qp, (packet->psn + 1) & PSN_MASK, flight, now, effects);
	if (end > ENGINE_TOLD)
		return end;
	effects->counts[COUNT_ACKS_RECEIVED]++;
	return ENGINE_TOLD;
}
