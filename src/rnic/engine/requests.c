/* The responder: RC_CHK in the standard's order for what is in order and allowed, then the effect (IBA 9.7; 004 7.3).
 *
 * transport/responder.py has the same steps and does what each asks for where it fails; here failing is a punt, so
 * nothing is stored before the last check has passed. */
#include "parts.h"

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
	if (packet->size > mtu || (!(flags & ROW_END) && packet->size != mtu))
		return 0;
	return !(flags & ROW_END) || (flags & ROW_START) || packet->size;
}

static enum engine_end check_write(const struct engine_port *port, const struct engine_qp *qp,
				   const struct packet *packet, struct effect *effect)
{
	const struct queue_pair *record = qp->record;
	uint16_t flags = packet->row->flags;
	if (!(be_get(qp->qpc, QPC_ACCESS_FLAGS) & ACCESS_REMOTE_WRITE))
		return PUNT_KEY;
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
	if (effect->length > context_longest(qp->qpc) || effect->offset > effect->length)
		return PUNT_LENGTH;
	uint64_t left = effect->length - effect->offset;
	if (flags & ROW_END ? packet->size != left : packet->size >= left)
		return PUNT_LENGTH;
	if (!effect->length)
		return ENGINE_DONE;
	effect->key = key_check(port, effect->rkey, be_get(qp->qpc, QPC_PD), effect->va, effect->length,
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

enum engine_end request_receive(const struct engine_port *port, struct engine_qp *qp, const struct packet *packet,
				struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint16_t flags = packet->row->flags;
	struct effect effect = { 0 };

	if (!record->established)
		return PUNT_STATE; /* the first one raises an event */
	if (packet->psn != be_get(qp->qpc, QPC_EXPECTED_PSN))
		return PUNT_PSN;
	if (!(flags & ROW_WRITE) || flags & ROW_TAKES_RECEIVE)
		return PUNT_HEADER;
	effect.kind = OPEN_WRITE;
	if (record->open != (flags & ROW_START ? OPEN_NOTHING : effect.kind))
		return PUNT_SEQUENCE;
	if (be_get(qp->qpc, QPC_OPTIONS) & OPT_CREDITS)
		return PUNT_REPLY;
	if (!length_fits(packet, context_mtu(qp->qpc)))
		return PUNT_LENGTH;
	enum engine_end end = check_write(port, qp, packet, &effect);
	if (end != ENGINE_DONE)
		return end;
	if (!packet_right(port, packet))
		return PUNT_ICRC;
	if (packet->size &&
	    key_write(port, effect.key, effect.va + effect.offset, packet->payload, packet->size))
		return PUNT_MEMORY;

	record->silent = 0;
	if (flags & ROW_START) {
		record->open = effect.kind;
		record->write_length = effect.length;
		record->write_va = effect.va;
		record->write_rkey = effect.rkey;
		record->write_binding = effect.key ? effect.key->binding : ANY_BINDING;
	}
	record->offset = effect.offset + packet->size;
	be_put(qp->qpc, QPC_EXPECTED_PSN, (packet->psn + 1) & PSN_MASK);
	if (flags & ROW_END)
		message_done(qp);
	if (packet->ask)
		reply_acknowledge(qp, packet->psn, CREDITS_INVALID, effects);
	return ENGINE_DONE;
}
