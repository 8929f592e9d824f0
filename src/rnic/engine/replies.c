/* What a responder owes its peer: ACKs and NAKs, in PSN order. READ responses are the reference's. */
#include "parts.h"

#define ACK_HEADER (BTH_BYTES + 4u)

static struct reply *reply_at(const struct engine_qp *qp, uint64_t place)
{
	return &qp->replies[(qp->record->reply_first + place) % QP_REPLIES];
}

void engine_reply_acknowledge(struct engine_qp *qp, uint64_t psn, uint64_t syndrome, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	struct reply *reply;

	if (record->reply_count >= QP_REPLIES)
		return;
	effects->effects |= EFFECT_SCHEDULE;
	if (record->reply_count) {
		reply = reply_at(qp, record->reply_count - 1);
		if (reply->kind == REPLY_ACK && !(reply->syndrome & AETH_TYPE_MASK)) {
			/* the later ACK covers the earlier one (IBA 9.7.5.1.2) */
			reply->psn = psn;
			reply->syndrome = syndrome;
			reply->msn = record->msn;
			effects->counts[COUNT_ACKS_COALESCED]++;
			return;
		}
	}
	reply = reply_at(qp, record->reply_count++);
	reply->kind = REPLY_ACK;
	reply->psn = psn;
	reply->packets = 1;
	reply->sent = 0;
	reply->syndrome = syndrome;
	reply->msn = record->msn;
	reply->again = 0;
}

uint64_t engine_reply(const struct engine_port *port, struct engine_qp *qp, uint64_t budget, struct engine_out *out,
		      struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t count = record->reply_count;

	effects->end = ENGINE_DONE;
	if (count > QP_REPLIES || count > budget) {
		effects->end = PUNT_REPLY;
		return 0;
	}
	/* READ responses behind them may join their burst, so then all is left to the reference */
	for (uint64_t i = 0; i < count; i++)
		if (reply_at(qp, i)->kind != REPLY_ACK) {
			effects->end = PUNT_REPLY;
			return 0;
		}
	uint64_t made = 0;
	while (made < count) {
		const struct reply *reply = reply_at(qp, 0);
		uint8_t *frame = engine_frame_begin(out, ACK_HEADER, 0, 0);
		if (!frame)
			break;
		be_store(frame, 8, record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | (uint64_t)BTH_ACKNOWLEDGE << 56);
		be_store(frame + 8, 4, reply->psn);
		be_store(frame + BTH_BYTES, 4, reply->syndrome << 24 | reply->msn);
		engine_frame_end(out, port, &qp->flow, frame, ACK_HEADER, 0);
		record->reply_first = (record->reply_first + 1) % QP_REPLIES;
		record->reply_count--;
		made++;
	}
	engine_frames_flush(out);
	effects->packets += made;
	return made;
}
