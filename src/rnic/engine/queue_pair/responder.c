/* The responder: RC_CHK in the standard's order for what is in order and allowed, then the effect (IBA 9.7; 004 7.3).
 *
 * transport/responder.py has the same steps and does what each asks for where it fails; here failing is a punt, so
 * nothing is stored before the last check has passed. */
#include "queue_pair/responder.h"

#include "memory/memory_key.h"
#include "queue_pair/by_reference.h"
#include "queue_pair/completion.h"
#include "queue_pair/context.h"
#include "queue_pair/psn.h"
#include "queue_pair/receive_queue.h"
#include "queue_pair/responder_reads.h"
#include "queue_pair/response_queue.h"

#define ANY_BINDING NONE

/* What a request will do, once all checks have passed. */
struct effect {
	uint64_t kind; /* OPEN_SEND or OPEN_WRITE */
	uint64_t offset; /* where in the message its payload goes */
	uint64_t va, length; /* of a WRITE: of the whole message */
	uint32_t rkey;
	const struct memory_key *key; /* of a WRITE with bytes */
};

static const uint8_t *behind_bth(const struct packet *packet)
{
	return packet->bytes + BTH_BYTES;
}

/* Length validation for one packet of a message (IBA C9-92, C9-94). */
static int length_fits(const struct packet *packet, uint64_t mtu)
{
	uint16_t flags = packet->row->flags;
	uint64_t before = packet->more * mtu;
	if (packet->size < before || packet->size - before > mtu || (!(flags & ROW_END) && packet->size - before != mtu))
		return 0;
	if (packet->more && packet->size == before)
		return 0;
	return !(flags & ROW_END) || (flags & ROW_START) || packet->size;
}

static enum engine_end check_write(const struct engine_shared *port, const struct engine_qp *qp,
				   const struct packet *packet, struct effect *effect)
{
	const struct queue_pair *record = qp->record;
	uint16_t flags = packet->row->flags;
	uint64_t binding = ANY_BINDING;
	if (flags & ROW_START) {
		const uint8_t *reth = behind_bth(packet);
		effect->va = be_load(reth, 8);
		effect->rkey = (uint32_t)be_load(reth + 8, 4);
		effect->length = be_load(reth + 12, 4);
		effect->offset = 0;
	} else {
		effect->va = record->write_va;
		effect->rkey = (uint32_t)record->write_rkey;
		effect->length = record->write_length;
		effect->offset = record->offset;
		binding = record->write_binding;
	}
	if (effect->length > context_max_message(qp->qpc) || effect->offset > effect->length)
		return PUNT_LENGTH;
	uint64_t left = effect->length - effect->offset;
	if (flags & ROW_END ? packet->size != left : packet->size >= left)
		return PUNT_LENGTH;
	if (!effect->length)
		return ENGINE_DONE;
	effect->key = engine_key_check(port, effect->rkey, be_get(qp->qpc, QPC_PD), effect->va, effect->length,
				ACCESS_REMOTE_WRITE, be_get(qp->qpc, QPC_LOCAL_QPN), 0);
	if (!effect->key || (binding != ANY_BINDING && effect->key->binding != binding))
		return PUNT_KEY;
	return ENGINE_DONE;
}

static void message_done(struct engine_qp *qp)
{
	struct queue_pair *record = qp->record;
	record->msn = (record->msn + 1) & PSN_MASK;
	be_put(qp->qpc, QPC_RMSN, record->msn);
	record->open = OPEN_NOTHING;
	record->offset = 0;
}

/* ------------------------------------------------------------------ what takes a receive entry */

static enum engine_end check_send(const struct engine_shared *port, const struct engine_qp *qp,
				  const struct packet *packet, const struct receive *receive, struct effect *effect)
{
	effect->offset = packet->row->flags & ROW_START ? 0 : qp->record->offset;
	if (effect->offset > receive->bytes || packet->size > receive->bytes - effect->offset)
		return PUNT_LENGTH;
	return engine_scatter_check(port, qp, receive) ? ENGINE_DONE : PUNT_KEY;
}

/* The completion of a message that used up a receive entry. */
static int complete(struct engine_qp *qp, const struct packet *packet, struct cq_room *room, uint64_t length)
{
	uint16_t flags = packet->row->flags;
	int imm = (flags & ROW_IMMDT) != 0;
	struct completion entry = {
		.index = (uint32_t)qp->record->receive_index,
		.status = SYN_SUCCESS,
		.length = (uint32_t)length,
		.word3 = CQE_RECEIVE | (flags & ROW_SEND ? (imm ? WR_SEND_IMM : WR_SEND) : WR_WRITE_IMM),
		.qpn = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN),
	};
	if (imm) {
		entry.word3 |= CQE_IMM;
		entry.imm = (uint32_t)be_load(packet->payload - 4, 4);
	}
	if (packet->solicited)
		entry.word3 |= CQE_SOLICITED;
	qp->record->receive_index = NONE;
	return engine_cq_push(room, &entry);
}

/* ------------------------------------------------------------------ requests that are answered and not carried out */

/* A request that is not the expected one: beyond a gap, or a duplicate (IBA C9-105). */
static enum engine_end out_of_order(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				    int64_t distance, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t expected = be_get(qp->qpc, QPC_EXPECTED_PSN) & PSN_MASK;

	if (distance < 0 && !(packet->row->flags & (ROW_SEND | ROW_WRITE)))
		return engine_read_again(port, qp, packet, effects);
	if (!engine_packet_check_icrc(port, packet))
		return PUNT_ICRC;
	record->established = 1;
	if (distance < 0) {
		engine_count(effects, COUNT_DUPLICATE, 1);
		engine_response_ack(qp, (expected - 1) & PSN_MASK, engine_ack_syndrome(port, qp), effects);
	} else if (record->nak_sent) {
		engine_count(effects, COUNT_NAKED, 1);
	} else {
		record->nak_sent = 1;
		engine_count(effects, COUNT_PSN_GAP, 1);
		engine_count(effects, COUNT_SEQUENCE_NAKS_SENT, 1);
		engine_response_ack(qp, expected, NAK_PSN_SEQUENCE, effects);
	}
	return ENGINE_DONE;
}

/* There is no receive entry for it: RNR NAK (IBA 9.7.5.2.8). */
static enum engine_end not_ready(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				 struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	if (!engine_packet_check_icrc(port, packet))
		return PUNT_ICRC;
	record->established = 1;
	record->nak_sent = 1;
	engine_count(effects, COUNT_RNR_NAKS_SENT, 1);
	engine_response_ack(qp, packet->psn, AETH_RNR_NAK | (be_get(qp->qpc, QPC_RNR_NAK_TIMER) & 0x1F), effects);
	return ENGINE_DONE;
}

/* ------------------------------------------------------------------ unreliable connections (IBA 9.8) */

/* What was open is lost. Its receive entry stays for the next message. */
static void abandon(struct queue_pair *record)
{
	record->open = OPEN_NOTHING;
	record->offset = 0;
}

/* A packet of a message that is lost: the next that starts one is taken. */
static enum engine_end pass_over(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				 enum engine_count reason, struct engine_effects *effects)
{
	if (!engine_packet_check_icrc(port, packet))
		return PUNT_ICRC;
	qp->record->established = 1;
	engine_count(effects, reason, 1);
	abandon(qp->record);
	if (reason == COUNT_BAD_SEQUENCE) { /* its PSN was the expected one */
		qp->record->nak_sent = 0;
		be_put(qp->qpc, QPC_EXPECTED_PSN, (packet->psn + 1) & PSN_MASK);
	}
	return ENGINE_DONE;
}

/* ------------------------------------------------------------------ one request */

/* Move the payload to where it belongs; 0, or -1 where any byte is out of reach. */
static int store(const struct engine_shared *port, const struct engine_qp *qp, const struct packet *packet,
		 const struct receive *receive, const struct effect *effect)
{
	int send = (packet->row->flags & ROW_SEND) != 0;
	uint64_t at = send ? effect->offset : effect->va + effect->offset;
	if (packet->bulk)
		return by_reference_execute(port, qp, packet, send ? receive : NULL, effect->key, at);
	if (send)
		return engine_scatter(port, qp, receive, at, packet->payload, packet->size);
	return packet->size && engine_key_write(port, effect->key, at, packet->payload, packet->size);
}

enum engine_end engine_request_receive(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				uint64_t srtt, uint64_t now, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint16_t flags = packet->row->flags;
	int takes = (flags & ROW_TAKES_RECEIVE) != 0, notify = 0;
	struct effect effect = { .kind = flags & ROW_SEND ? OPEN_SEND : OPEN_WRITE };
	struct receive receive;
	struct cq_room room;
	enum engine_end end;

	if (!record->established && be_get(qp->qpc, QPC_STATE) == QP_STATE_RTR)
		return PUNT_STATE; /* the first one raises an event */
	if (!engine_response_queue_valid(qp) || !engine_credits_known(qp))
		return PUNT_REPLY;
	int reliable = be_get(qp->qpc, QPC_SERVTYPE) == ST_RC;
	int64_t distance = psn_diff(packet->psn, be_get(qp->qpc, QPC_EXPECTED_PSN));
	if (distance && reliable)
		return out_of_order(port, qp, packet, distance, effects);
	if (distance && !(flags & ROW_START))
		return pass_over(port, qp, packet, COUNT_PSN_GAP, effects);
	if (!(flags & (ROW_WRITE | ROW_SEND)))
		return engine_read_receive(port, qp, packet, effects);
	if (flags & ROW_IETH)
		return PUNT_HEADER;
	int breaks = !distance && record->open != (flags & ROW_START ? OPEN_NOTHING : effect.kind);
	if (breaks && reliable)
		return PUNT_SEQUENCE;
	if (breaks && !(flags & ROW_START))
		return pass_over(port, qp, packet, COUNT_BAD_SEQUENCE, effects);
	if (flags & ROW_SEND && !(flags & ROW_START) && record->receive_index == NONE)
		return PUNT_SEQUENCE;
	if ((takes || flags & ROW_SEND) && (be_get(qp->qpc, QPC_SRQN) & SRQ_VALID ? !qp->srq : qp->srq != NULL))
		return PUNT_REQUEST;
	if (flags & ROW_WRITE && !(be_get(qp->qpc, QPC_ACCESS_FLAGS) & ACCESS_REMOTE_WRITE))
		return PUNT_KEY;
	if (takes || flags & ROW_SEND) {
		end = engine_receive_find(port, qp, &receive);
		if (end == ENGINE_ATTENTION)
			return reliable ? not_ready(port, qp, packet, effects) : PUNT_REQUEST;
		if (end != ENGINE_DONE)
			return end;
	}
	if (!length_fits(packet, context_mtu(qp->qpc)))
		return PUNT_LENGTH;
	end = flags & ROW_SEND ? check_send(port, qp, packet, &receive, &effect) : check_write(port, qp, packet, &effect);
	if (end != ENGINE_DONE)
		return end;
	int known = qp->recv_cq && qp->recv_cqn == be_get(qp->qpc, QPC_CQN_RCV);
	if (takes && engine_cq_reserve(known ? qp->recv_cq : NULL, 1, &room))
		return PUNT_CQ;
	if (!engine_packet_check_icrc(port, packet))
		return PUNT_ICRC;
	if (store(port, qp, packet, &receive, &effect))
		return PUNT_MEMORY;

	record->established = 1;
	record->nak_sent = 0;
	engine_count(effects, COUNT_PSN_GAP, distance != 0);
	engine_count(effects, COUNT_BAD_SEQUENCE, (uint32_t)breaks);
	if (takes || flags & ROW_SEND)
		engine_receive_use(qp, &receive);
	if (flags & ROW_START) {
		record->open = effect.kind;
		if (flags & ROW_WRITE) {
			record->write_length = effect.length;
			record->write_va = effect.va;
			record->write_rkey = effect.rkey;
			record->write_binding = effect.key ? effect.key->binding : ANY_BINDING;
		}
	}
	record->offset = effect.offset + packet->size;
	if (takes)
		notify = complete(qp, packet, &room, flags & ROW_SEND ? record->offset : record->write_length);
	uint64_t last = (packet->psn + packet->more) & PSN_MASK;
	be_put(qp->qpc, QPC_EXPECTED_PSN, (last + 1) & PSN_MASK);
	if (flags & ROW_END)
		message_done(qp);
	if (packet->ask && reliable) {
		engine_response_ack(qp, last, engine_ack_syndrome(port, qp), effects);
	} else if (flags & ROW_END && reliable && record->owed_ns == NEVER) {
		record->owed_ns = now + greater(REPLY_OWED_NS, srtt + (srtt >> 2));
		effects->effects |= EFFECT_ARM;
	}
	if (!notify)
		return ENGINE_DONE;
	effects->effects |= EFFECT_NOTIFY_RECV;
	return ENGINE_ATTENTION;
}
