/* ACKs, NAKs, READ responses and atomic results that wait to be sent, in PSN order. */
#include "queue_pair/response_queue.h"

#include "queue_pair/bth.h"
#include "queue_pair/by_reference.h"
#include "queue_pair/context.h"
#include "queue_pair/encap.h"
#include "queue_pair/psn.h"
#include "queue_pair/receive_queue.h"
#include "queue_pair/translation.h"

#define ACK_HEADER (BTH_BYTES + 4u)

int engine_response_queue_valid(const struct engine_qp *qp)
{
	return qp->record->reply_count <= QP_REPLIES && qp->record->reply_first < QP_REPLIES;
}

int engine_credits_known(const struct engine_qp *qp)
{
	return !(be_get(qp->qpc, QPC_OPTIONS) & OPT_CREDITS) || qp->record->uses_srq || qp->block;
}

uint64_t engine_ack_syndrome(const struct engine_shared *shared, const struct engine_qp *qp)
{
	uint64_t code = 0, left;
	if (!(be_get(qp->qpc, QPC_OPTIONS) & OPT_CREDITS) || qp->record->uses_srq)
		return CREDITS_INVALID;
	left = engine_receives_left(qp);
	left -= lesser(left, engine_kept_back(shared, qp->record->rq_entries));
	/* include the entry of the open message, which is not in the MSN yet */
	left += qp->record->receive_index != NONE;
	while (code + 1 < CREDITS_INVALID && credit_counts[code + 1] <= left)
		code++;
	return code;
}

struct reply *engine_response_new(struct engine_qp *qp, uint64_t kind, uint64_t psn, uint64_t packets,
				  uint64_t syndrome, int again)
{
	struct queue_pair *record = qp->record;
	if (!again)
		record->owed_ns = NEVER; /* every response acknowledges earlier requests */
	if (record->reply_count >= QP_REPLIES)
		return NULL;
	struct reply *response = engine_response_at(qp, record->reply_count++);
	response->kind = kind;
	response->psn = psn;
	response->packets = packets;
	response->sent = 0;
	response->syndrome = syndrome;
	response->msn = record->msn;
	response->again = (uint64_t)again;
	record->pending_reads += kind != REPLY_ACK && !again;
	return response;
}

void engine_response_ack(struct engine_qp *qp, uint64_t psn, uint64_t syndrome, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	struct reply *response;

	if (record->reply_count >= QP_REPLIES)
		return;
	effects->effects |= EFFECT_SCHEDULE;
	record->owed_ns = NEVER;
	if (record->reply_count) {
		response = engine_response_at(qp, record->reply_count - 1);
		if (response->kind == REPLY_ACK && !(response->syndrome & AETH_TYPE_MASK)) {
			/* the later ACK covers the earlier one (IBA 9.7.5.1.2) */
			response->psn = psn;
			response->syndrome = syndrome;
			response->msn = record->msn;
			engine_count(effects, COUNT_ACKS_COALESCED, 1);
			return;
		}
	}
	engine_response_new(qp, REPLY_ACK, psn, 1, syndrome, 0);
}

void engine_response_queue_ack(const struct engine_shared *shared, struct engine_qp *qp, struct engine_effects *effects)
{
	uint64_t expected = be_get(qp->qpc, QPC_EXPECTED_PSN);
	qp->record->owed_ns = NEVER;
	engine_response_ack(qp, (expected - 1) & PSN_MASK, engine_ack_syndrome(shared, qp), effects);
}

/* ------------------------------------------------------------------ sending */

/* Return the key for a READ's response data, or NULL. */
static const struct memory_key *response_key(const struct engine_shared *shared, const struct engine_qp *qp,
					     const struct reply *response)
{
	uint32_t rkey = (uint32_t)response->rkey;
	const struct memory_key *key =
		engine_remote_key(shared, qp, rkey, response->va, response->total, ACCESS_REMOTE_READ);
	if (!key || (response->binding != NONE && engine_remote_binding(rkey, key) != response->binding))
		return NULL;
	const struct engine_mapping *reach = &shared->reach[key - shared->keys];
	return reach->bytes || reach->segment ? key : NULL;
}

/* Return whether the engine can send the waiting responses, up to `budget` packets. A READ whose memory is gone fails
 * the queue pair after earlier responses are sent. */
static int can_send(const struct engine_shared *shared, const struct engine_qp *qp, uint64_t mtu, uint64_t budget)
{
	for (uint64_t i = 0; budget && i < qp->record->reply_count; i++) {
		const struct reply *response = engine_response_at(qp, i);
		uint64_t packets = 1;
		if (response->kind == REPLY_READ) {
			if (!mtu || response->packets != psn_count(response->total, mtu) ||
			    response->sent >= response->packets)
				return 0;
			if (response->total && !response_key(shared, qp, response))
				return 0;
			packets = response->packets - response->sent;
		} else if (response->kind != REPLY_ACK && response->kind != REPLY_ATOMIC) {
			return 0;
		}
		budget -= lesser(budget, packets);
	}
	return 1;
}

static void pop_response(struct queue_pair *record, const struct reply *response)
{
	record->pending_reads -= response->kind != REPLY_ACK && !response->again;
	record->reply_first = (record->reply_first + 1) % QP_REPLIES;
	record->reply_count--;
}

/* Start the frame of a response with its BTH, and its AETH if it has one. */
static uint8_t *begin_response(const struct engine_qp *qp, struct engine_out *out, const struct reply *response,
			       uint64_t operation, uint64_t header, uint64_t size, int run)
{
	uint8_t *frame = engine_packet_begin(out, header, size, run);
	if (!frame)
		return NULL;
	be_store(frame, 8,
		 qp->record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | (-size & 3) << BTH_PAD_SHIFT | operation << 56);
	be_store(frame + 8, 4, (response->psn + response->sent) & PSN_MASK);
	if (header > BTH_BYTES)
		be_store(frame + BTH_BYTES, 4, response->syndrome << 24 | response->msn);
	return frame;
}

/* Build the next `run` responses of a READ, all MIDDLEs; returns their number, 0 if they must be built one by one. */
static uint64_t send_run(const struct engine_shared *shared, const struct engine_qp *qp, const struct reply *response,
			 const struct memory_key *key, uint64_t mtu, uint64_t run, struct engine_out *out)
{
	const struct origin from = engine_origin(shared, key, response->va + response->sent * mtu);
	uint64_t head = qp->record->head | be_get(qp->qpc, QPC_REMOTE_QPN) |
			(uint64_t)engine_response_opcode(0, 0) << 56;

	return engine_packets_run(out, shared, &qp->flow, head, (response->psn + response->sent) & PSN_MASK, 0, &from,
				  mtu, run);
}

/* Send up to `budget` responses of a READ; returns their number. If its memory disappears, the rest is punted. */
static uint64_t send_read(const struct engine_shared *shared, struct engine_qp *qp, struct reply *response,
			  uint64_t mtu, uint64_t budget, struct engine_out *out, struct engine_effects *effects)
{
	const struct memory_key *key = response->total ? response_key(shared, qp, response) : NULL;
	uint64_t first = response->sent, end = lesser(response->packets, first + budget), run = 0, made;

	if (key && qp->peer_path &&
	    (made = by_reference_respond(shared, qp, response, key, mtu, end - first, out)) != 0)
		return made;
	while (response->sent < end) {
		uint64_t offset = response->sent * mtu, size = lesser(mtu, response->total - offset);
		int last = response->sent + 1 == response->packets, middle = response->sent && !last;
		uint64_t header = middle ? BTH_BYTES : ACK_HEADER;
		if (!run && middle) {
			/* MIDDLEs form a run */
			uint64_t middles = lesser(end, response->packets - 1) - response->sent;
			run = middles > 1 ? middles : 0;
		}
		if (run > 1 && (made = send_run(shared, qp, response, key, mtu, run, out)) != 0) {
			response->sent += made;
			run -= made;
			continue;
		}
		uint8_t *frame = begin_response(qp, out, response, engine_response_opcode(!response->sent, last),
						header, size, run != 0);
		if (!frame)
			break;
		if (run > 1 && shared->prefetch && !shared->prefetch->filled_count)
			engine_packets_read_ahead(shared, out, frame, header, key, response->va + offset, mtu, run);
		struct origin from = { 0 };
		if (size)
			from = engine_origin(shared, key, response->va + offset);
		if ((size && !engine_origin_known(&from) &&
		     engine_key_read(shared, key, response->va + offset, frame + header, size)) ||
		    engine_packet_fill(out, shared, &qp->flow, frame, header, &from, size)) {
			effects->end = PUNT_MEMORY;
			break;
		}
		response->sent++;
		run -= run != 0;
	}
	return response->sent - first;
}

uint64_t engine_reply(const struct engine_shared *shared, struct engine_qp *qp, uint64_t budget, struct engine_out *out,
		      struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t mtu = context_mtu(qp->qpc), made = 0;

	effects->end = PUNT_REPLY;
	if (!engine_response_queue_valid(qp) || !can_send(shared, qp, mtu, budget))
		return 0;
	effects->end = ENGINE_DONE;
	engine_prefetch_forget(shared);
	while (record->reply_count && made < budget) {
		struct reply *response = engine_response_at(qp, 0);
		if (response->kind == REPLY_READ) {
			uint64_t count = send_read(shared, qp, response, mtu, budget - made, out, effects);
			made += count;
			if (response->sent == response->packets) {
				if (response->total)
					engine_count_answered(qp, (uint32_t)response->rkey);
				pop_response(record, response);
			} else if (!count) {
				break;
			}
			continue;
		}
		int atomic = response->kind == REPLY_ATOMIC;
		uint64_t header = atomic ? ACK_HEADER + 8 : ACK_HEADER;
		uint8_t *frame = begin_response(qp, out, response, atomic ? BTH_ATOMIC_ACKNOWLEDGE : BTH_ACKNOWLEDGE,
						header, 0, 0);
		if (!frame)
			break;
		if (atomic)
			be_store(frame + ACK_HEADER, 8, response->orig);
		engine_packet_seal(out, shared, &qp->flow, frame, header, 0);
		pop_response(record, response);
		made++;
	}
	engine_packets_flush(out);
	effects->packets += made;
	return made;
}
