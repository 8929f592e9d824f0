/* The completer: plain ACKs of what is outstanding, where no READ waits and no credits are counted (IBA 9.7.6). */
#include "parts.h"

enum engine_end engine_response_receive(const struct engine_port *port, struct engine_qp *qp, const struct packet *packet,
				 const struct engine_flight *flight, uint64_t now, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;

	if (packet->opcode != BTH_ACKNOWLEDGE || record->read_index != NONE || record->piece_count || record->lsn != NONE)
		return PUNT_ACK;
	/* an ACK that grants no credits */
	if (packet->bytes[BTH_BYTES] != CREDITS_INVALID)
		return PUNT_ACK;
	if (psn_diff(packet->psn, record->una) < 0 || psn_diff(packet->psn, record->sent_psn) >= 0)
		return PUNT_PSN;
	if (!engine_packet_right(port, packet))
		return PUNT_ICRC;
	enum engine_end end = engine_advance(port, qp, (packet->psn + 1) & PSN_MASK, flight, now, effects);
	if (end > ENGINE_TOLD)
		return end;
	effects->acks_received++;
	return ENGINE_TOLD;
}
