/* What a responder owes its peer: ACKs, NAKs, READ responses and atomic results, in PSN order (transport/response_queue.py). */
#include "queue_pair/response_queue.h"

#include "queue_pair/bth.h"
#include "queue_pair/by_reference.h"
#include "queue_pair/context.h"
#include "queue_pair/encap.h"
#include "queue_pair/psn.h"
#include "queue_pair/receive_queue.h"

#define ACK_HEADER (BTH_BYTES + 4u)

int engine_response_queue_valid(const struct engine_qp *qp)
{
	return qp->record->reply_count <= QP_REPLIES && qp->record->reply_first < QP_REPLIES;
}

int engine_credits_known(const struct engine_qp *qp)
{
	return !(be_get(qp->qpc, QPC_OPTIONS) & OPT_CREDITS) || qp->record->uses_srq || qp->block;
}

uint64_t engine_ack_syndrome(const struct engine_shared *port, const struct engine_qp *qp)
{
	uint64_t code = 0, left;
	if (!(be_get(qp->qpc, QPC_OPTIONS) & OPT_CREDITS) || qp->record->uses_srq)
		return CREDITS_INVALID;
	left = engine_receives_left(qp);
	left -= lesser(left, port->rq_almost_full);
	/* the entry of an open message counts, since its message is not in the MSN yet */
	left += qp->record->receive_index != NONE;
	while (code + 1 < CREDITS_INVALID && credit_counts[code + 1] <= left)
		code++;
	return code;
}

struct reply *engine_response_new(struct engine_qp *qp, uint64_t kind, uint64_t psn, uint64_t packets, uint64_t syndrome,
			       int again)
{
	struct queue_pair *record = qp->record;
	if (record->reply_count >= QP_REPLIES)
		return NULL;
	struct reply *reply = engine_response_at(qp, record->reply_count++);
	reply->kind = kind;
	reply->psn = psn;
	reply->packets = packets;
	reply->sent = 0;
	reply->syndrome = syndrome;
	reply->msn = record->msn;
	reply->again = (uint64_t)again;
	record->pending_reads += kind != REPLY_ACK && !again;
	return reply;
}

void engine_response_ack(struct engine_qp *qp, uint64_t psn, uint64_t syndrome, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	struct reply *reply;

	if (record->reply_count >= QP_REPLIES)
		return;
	effects->effects |= EFFECT_SCHEDULE;
	record->owed_ns = NEVER; /* every answer says of what came before it that it did */
	if (record->reply_count) {
		reply = engine_response_at(qp, record->reply_count - 1);
		if (reply->kind == REPLY_ACK && !(reply->syndrome & AETH_TYPE_MASK)) {
			/* the later ACK covers the earlier one (IBA 9.7.5.1.2) */
			reply->psn = psn;
			reply->syndrome = syndrome;
			reply->msn = record->msn;
			engine_count(effects, COUNT_ACKS_COALESCED, 1);
			return;
		}
	}
	engine_response_new(qp, REPLY_ACK, psn, 1, syndrome, 0);
}

void engine_response_settle(const struct engine_shared *port, struct engine_qp *qp, struct engine_effects *effects)
{
	uint64_t expected = be_get(qp->qpc, QPC_EXPECTED_PSN);
	qp->record->owed_ns = NEVER;
	engine_response_ack(qp, (expected - 1) & PSN_MASK, engine_ack_syndrome(port, qp), effects);
}

/* ------------------------------------------------------------------ sending */

/* The key of the bytes that a READ's responses bring, or NULL. */
static const struct memory_key *bytes_of(const struct engine_shared *port, const struct engine_qp *qp,
					 const struct reply *reply)
{
	const struct memory_key *key = engine_key_check(port, (uint32_t)reply->rkey, be_get(qp->qpc, QPC_PD), reply->va,
							reply->total, ACCESS_REMOTE_READ, be_get(qp->qpc, QPC_LOCAL_QPN), 0);
	if (!key || (reply->binding != NONE && key->binding != reply->binding))
		return NULL;
	const struct engine_mapping *reach = &port->reach[key - port->keys];
	return reach->bytes || reach->segment ? key : NULL;
}

/* Whether the engine can send what is due, up to `budget` packets: a READ whose memory has gone fails the queue pair, but
 * after all before it has been sent. */
static int sendable(const struct engine_shared *port, const struct engine_qp *qp, uint64_t mtu, uint64_t budget)
{
	for (uint64_t i = 0; budget && i < qp->record->reply_count; i++) {
		const struct reply *reply = engine_response_at(qp, i);
		uint64_t packets = 1;
		if (reply->kind == REPLY_READ) {
			if (!mtu || reply->packets != psn_count(reply->total, mtu) || reply->sent >= reply->packets)
				return 0;
			if (reply->total && !bytes_of(port, qp, reply))
				return 0;
			packets = reply->packets - reply->sent;
		} else if (reply->kind != REPLY_ACK && reply->kind != REPLY_ATOMIC) {
			return 0;
		}
		budget -= lesser(budget, packets);
	}
	return 1;
}

static void pop(struct queue_pair *record, const struct reply *reply)
{
	record->pending_reads -= reply->kind != REPLY_ACK && !reply->again;
	record->reply_first = (record->reply_first + 1) % QP_REPLIES;
	record->reply_count--;
}

/* Begin the frame of a reply: its BTH, and the AETH where it has one. */
static uint8_t *begin(const struct engine_qp *qp, struct engine_out *out, const struct reply *reply, uint64_t operation,
		      uint64_t header, uint64_t size, int run)
{
	uint8_t *frame = engine_packet_begin(out, header, size, run);
	if (!frame)
		return NULL;
	be_store(frame, 8, qp->record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | (-size & 3) << BTH_PAD_SHIFT | operation << 56);
	be_store(frame + 8, 4, (reply->psn + reply->sent) & PSN_MASK);
	if (header > BTH_BYTES)
		be_store(frame + BTH_BYTES, 4, reply->syndrome << 24 | reply->msn);
	return frame;
}

/* Make the next `run` responses of a READ, middles that are all alike; how many, 0 where each goes by itself. */
static uint64_t make_run(const struct engine_shared *port, const struct engine_qp *qp, const struct reply *reply,
			 const struct memory_key *key, uint64_t mtu, uint64_t run, struct engine_out *out)
{
	const struct origin from = engine_origin(port, key, reply->va + reply->sent * mtu);
	uint64_t head = qp->record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | (uint64_t)engine_response_opcode(0, 0) << 56;

	return engine_packets_run(out, port, &qp->flow, head, (reply->psn + reply->sent) & PSN_MASK, 0, &from, mtu, run);
}

/* Send up to `budget` responses of a READ; how many. Where its memory goes meanwhile, the reference is next. */
static uint64_t send_read(const struct engine_shared *port, struct engine_qp *qp, struct reply *reply, uint64_t mtu,
			  uint64_t budget, struct engine_out *out, struct engine_effects *effects)
{
	const struct memory_key *key = reply->total ? bytes_of(port, qp, reply) : NULL;
	uint64_t first = reply->sent, end = lesser(reply->packets, first + budget), run = 0, made;

	if (key && qp->lane && (made = by_reference_respond(port, qp, reply, key, mtu, end - first, out)) != 0)
		return made;
	while (reply->sent < end) {
		uint64_t offset = reply->sent * mtu, size = lesser(mtu, reply->total - offset);
		int last = reply->sent + 1 == reply->packets, middle = reply->sent && !last;
		uint64_t header = middle ? BTH_BYTES : ACK_HEADER;
		if (!run && middle) {
			/* middles that are all alike form a run */
			uint64_t middles = lesser(end, reply->packets - 1) - reply->sent;
			run = middles > 1 ? middles : 0;
		}
		if (run > 1 && (made = make_run(port, qp, reply, key, mtu, run, out)) != 0) {
			reply->sent += made;
			run -= made;
			continue;
		}
		uint8_t *frame = begin(qp, out, reply, engine_response_opcode(!reply->sent, last), header, size, run != 0);
		if (!frame)
			break;
		if (run > 1 && port->ahead && !port->ahead->filled_count)
			engine_packets_read_ahead(port, out, frame, header, key, reply->va + offset, mtu, run);
		struct origin from = { 0 };
		if (size)
			from = engine_origin(port, key, reply->va + offset);
		if ((size && !engine_origin_known(&from) &&
		     engine_key_read(port, key, reply->va + offset, frame + header, size)) ||
		    engine_packet_fill(out, port, &qp->flow, frame, header, &from, size)) {
			effects->end = PUNT_MEMORY;
			break;
		}
		reply->sent++;
		run -= run != 0;
	}
	return reply->sent - first;
}

uint64_t engine_reply(const struct engine_shared *port, struct engine_qp *qp, uint64_t budget, struct engine_out *out,
		      struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t mtu = context_mtu(qp->qpc), made = 0;

	effects->end = PUNT_REPLY;
	if (!engine_response_queue_valid(qp) || !sendable(port, qp, mtu, budget))
		return 0;
	effects->end = ENGINE_DONE;
	engine_prefetch_forget(port);
	while (record->reply_count && made < budget) {
		struct reply *reply = engine_response_at(qp, 0);
		if (reply->kind == REPLY_READ) {
			uint64_t count = send_read(port, qp, reply, mtu, budget - made, out, effects);
			made += count;
			if (reply->sent == reply->packets)
				pop(record, reply);
			else if (!count)
				break;
			continue;
		}
		int atomic = reply->kind == REPLY_ATOMIC;
		uint64_t header = atomic ? ACK_HEADER + 8 : ACK_HEADER;
		uint8_t *frame = begin(qp, out, reply, atomic ? BTH_ATOMIC_ACKNOWLEDGE : BTH_ACKNOWLEDGE, header, 0, 0);
		if (!frame)
			break;
		if (atomic)
			be_store(frame + ACK_HEADER, 8, reply->orig);
		engine_packet_seal(out, port, &qp->flow, frame, header, 0);
		pop(record, reply);
		made++;
	}
	engine_packets_flush(out);
	effects->packets += made;
	return made;
}
