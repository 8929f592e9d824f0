/* The responder: receive checks as named steps in the standard's order, then execution (IBA 9.7; 004 7.3, RC_CHK).
 *
 * transport/responder.py has the same steps, and does what the standard requires if one fails. Here most failures are
 * punts, so nothing is stored before the last check has passed. */
#include "queue_pair/responder.h"

#include "memory/memory_key.h"
#include "queue_pair/by_reference.h"
#include "queue_pair/completion.h"
#include "queue_pair/context.h"
#include "queue_pair/psn.h"
#include "queue_pair/receive_queue.h"
#include "queue_pair/responder_reads.h"
#include "queue_pair/response_queue.h"
#include "queue_pair/step.h"
#include "queue_pair/translation.h"

#define ANY_BINDING NONE

/* A SEND or WRITE packet during the steps, and its effects once all checks have passed. */
struct request {
	const struct engine_shared *shared;
	struct engine_qp *qp;
	const struct packet *packet;
	struct engine_effects *effects;
	uint64_t srtt, now;
	uint16_t flags; /* of its opcode */
	int reliable; /* connection */
	int64_t distance; /* of its PSN from the expected one */
	int breaks; /* it aborts the open message */
	int notify; /* the receive CQ was armed for it */
	enum engine_end end; /* result of the steps */
	uint64_t offset; /* offset of its payload in the message */
	uint64_t va, length; /* of a WRITE: the whole message */
	uint32_t rkey;
	const struct memory_key *key; /* of a WRITE with bytes */
	struct receive *receive; /* the receive entry that it uses, if any */
	struct cq_room *room; /* for its completion, if any */
};

/* End the steps. */
static int end_steps(struct request *request, enum engine_end end)
{
	request->end = end;
	return 0;
}

/* Return whether a packet uses a receive entry, and whether it completes one. */
static int uses_receive(const struct request *request)
{
	return (request->flags & (ROW_SEND | ROW_TAKES_RECEIVE)) != 0;
}

static int completes_receive(const struct request *request)
{
	return (request->flags & ROW_TAKES_RECEIVE) != 0;
}

static int check_icrc(struct request *request)
{
	return engine_packet_check_icrc(request->shared, request->packet) || end_steps(request, PUNT_ICRC);
}

/* ------------------------------------------------------------------ requests answered without execution */

/* Return whether the reference must explain the failure: the program wants reasons and has not reached their limit. */
static int wants_reason(const struct request *request)
{
	return request->qp->record->explains != 0;
}

/* Return whether the starting PSNs of the two ends differ (transport/responder.py, check_psn). */
static int began_elsewhere(const struct request *request)
{
	const struct queue_pair *record = request->qp->record;
	int far = request->distance < 0 || request->distance >= (int64_t)PSN_FAR;

	return far && !record->msn && record->open == OPEN_NOTHING && wants_reason(request);
}

/* Answer a duplicate SEND or WRITE with an ACK of everything received (IBA C9-105). */
static int answer_duplicate(struct request *request)
{
	struct engine_qp *qp = request->qp;

	if (began_elsewhere(request))
		return end_steps(request, PUNT_PSN);
	if (!(request->flags & (ROW_SEND | ROW_WRITE)))
		return end_steps(request,
				 engine_read_duplicate(request->shared, qp, request->packet, request->effects));
	if (!STEP(check_icrc, request))
		return 0;
	qp->record->established = 1;
	engine_count(request->effects, COUNT_DROP_DUPLICATE, 1);
	engine_response_ack(qp, (be_get(qp->qpc, QPC_EXPECTED_PSN) - 1) & PSN_MASK,
			    engine_ack_syndrome(request->shared, qp), request->effects);
	return end_steps(request, ENGINE_DONE);
}

/* Send a NAK, which makes the peer retransmit from `psn` on. Packets beyond it cause no further NAK. */
static int send_nak(struct request *request, uint64_t psn, uint64_t syndrome)
{
	request->qp->record->nak_sent = 1;
	engine_count(request->effects, naks_sent[syndrome >> 5], 1);
	engine_response_ack(request->qp, psn, syndrome, request->effects);
	return end_steps(request, ENGINE_DONE);
}

/* Send one NAK for a gap: packets beyond it are dropped until the expected one arrives. */
static int nak_gap(struct request *request)
{
	struct queue_pair *record = request->qp->record;

	if (began_elsewhere(request))
		return end_steps(request, PUNT_PSN);
	if (!STEP(check_icrc, request))
		return 0;
	record->established = 1;
	engine_count(request->effects, record->nak_sent ? COUNT_DROP_NAKED : COUNT_DROP_PSN_GAP, 1);
	if (record->nak_sent)
		return end_steps(request, ENGINE_DONE);
	return send_nak(request, be_get(request->qp->qpc, QPC_EXPECTED_PSN) & PSN_MASK, NAK_PSN_SEQUENCE);
}

/* Send an RNR NAK because there is no receive entry (IBA 9.7.5.2.8). */
static int nak_not_ready(struct request *request)
{
	const struct engine_qp *qp = request->qp;

	if (wants_reason(request))
		return end_steps(request, PUNT_REQUEST);
	if (!STEP(check_icrc, request))
		return 0;
	qp->record->established = 1;
	return send_nak(request, request->packet->psn, AETH_RNR_NAK | (be_get(qp->qpc, QPC_RNR_NAK_TIMER) & 0x1F));
}

/* Drop a packet of a lost message on an unreliable connection (IBA 9.8). The next packet that starts a message is
 * accepted, and reuses the receive entry of the open message. */
static int drop_message(struct request *request, enum engine_count reason)
{
	struct queue_pair *record = request->qp->record;

	if (!STEP(check_icrc, request))
		return 0;
	record->established = 1;
	engine_count(request->effects, reason, 1);
	record->open = OPEN_NOTHING;
	record->offset = 0;
	if (reason == COUNT_DROP_BAD_SEQUENCE) { /* its PSN was the expected one */
		record->nak_sent = 0;
		be_put(request->qp->qpc, QPC_EXPECTED_PSN, (request->packet->psn + 1) & PSN_MASK);
	}
	return end_steps(request, ENGINE_DONE);
}

/* ------------------------------------------------------------------ the named steps */

/* PSN verification (IBA 9.7, for UC 9.8): expected, duplicate or beyond a gap. */
static int check_psn(struct request *request)
{
	if (!request->distance)
		return 1;
	if (request->reliable)
		return request->distance < 0 ? answer_duplicate(request) : nak_gap(request);
	/* the open message is lost; a message that starts here is accepted */
	return request->flags & ROW_START || drop_message(request, COUNT_DROP_PSN_GAP);
}

/* Opcode sequence check (IBA 9.7): FIRST, MIDDLE, LAST and ONLY in a legal order. */
static int check_op_seq(struct request *request)
{
	const struct queue_pair *record = request->qp->record;
	uint64_t kind = request->flags & ROW_SEND ? OPEN_SEND : OPEN_WRITE;
	int starts = request->flags & ROW_START;

	request->breaks = !request->distance && record->open != (starts ? OPEN_NOTHING : kind);
	if (request->breaks && request->reliable)
		return end_steps(request, PUNT_SEQUENCE);
	if (request->breaks && !starts)
		return drop_message(request, COUNT_DROP_BAD_SEQUENCE);
	if (request->flags & ROW_SEND && !starts && record->receive_index == NONE)
		return end_steps(request, PUNT_SEQUENCE);
	return 1;
}

/* Opcode validation (IBA 9.7): the engine supports it, and the access flags allow it. */
static int check_op_valid(struct request *request)
{
	if (request->flags & ROW_IETH)
		return end_steps(request, PUNT_HEADER);
	if (request->flags & ROW_WRITE && !(be_get(request->qp->qpc, QPC_ACCESS_FLAGS) & ACCESS_REMOTE_WRITE))
		return end_steps(request, PUNT_KEY);
	return 1;
}

/* Resource check (IBA 9.7): a receive entry if one is used, else RNR; room for its completion. */
static int check_resources(struct request *request)
{
	const struct engine_qp *qp = request->qp;
	enum engine_end end;

	if (!uses_receive(request))
		return 1;
	if (be_get(qp->qpc, QPC_SRQN) & SRQ_VALID ? !qp->srq : qp->srq != NULL)
		return end_steps(request, PUNT_REQUEST);
	end = engine_receive_find(request->shared, qp, request->receive);
	if (end == ENGINE_ATTENTION)
		return request->reliable ? nak_not_ready(request) : end_steps(request, PUNT_REQUEST);
	if (end != ENGINE_DONE)
		return end_steps(request, end);
	int known = qp->recv_cq && qp->recv_cqn == be_get(qp->qpc, QPC_CQN_RCV);
	if (completes_receive(request) && engine_cq_reserve(known ? qp->recv_cq : NULL, 1, request->room))
		return end_steps(request, PUNT_CQ);
	return 1;
}

/* Return whether the payload length is right for the packet's position in a message (IBA C9-92, C9-94). */
static int length_fits(const struct packet *packet, uint64_t mtu)
{
	uint16_t flags = packet->row->flags;
	uint64_t before = packet->more * mtu;
	if (packet->size < before || packet->size - before > mtu ||
	    (!(flags & ROW_END) && packet->size - before != mtu))
		return 0;
	if (packet->more && packet->size == before)
		return 0;
	return !(flags & ROW_END) || (flags & ROW_START) || packet->size;
}

/* Length validation: only the last packet may be short, and the message fits. */
static int check_length(struct request *request)
{
	const struct queue_pair *record = request->qp->record;
	const struct packet *packet = request->packet;
	int starts = request->flags & ROW_START;

	if (!length_fits(packet, context_mtu(request->qp->qpc)))
		return end_steps(request, PUNT_LENGTH);
	request->offset = starts ? 0 : record->offset;
	if (request->flags & ROW_SEND) {
		uint64_t bytes = request->receive->bytes;
		int fits = request->offset <= bytes && packet->size <= bytes - request->offset;
		return fits || end_steps(request, PUNT_LENGTH);
	}
	const uint8_t *reth = packet->bytes + BTH_BYTES;
	request->va = starts ? be_load(reth, 8) : record->write_va;
	request->rkey = starts ? (uint32_t)be_load(reth + 8, 4) : (uint32_t)record->write_rkey;
	request->length = starts ? be_load(reth + 12, 4) : record->write_length;
	if (request->length > context_max_message(request->qp->qpc) || request->offset > request->length)
		return end_steps(request, PUNT_LENGTH);
	uint64_t left = request->length - request->offset;
	int fits = request->flags & ROW_END ? packet->size == left : packet->size < left;
	return fits || end_steps(request, PUNT_LENGTH);
}

/* R_Key validation (IBA C9-88): key, PD, rights and range, for a SEND those of its receive entry. Zero length needs no
 * key. */
static int check_rkey(struct request *request)
{
	const struct engine_qp *qp = request->qp;

	if (request->flags & ROW_SEND)
		return engine_scatter_check(request->shared, qp, request->receive) || end_steps(request, PUNT_KEY);
	request->key = NULL;
	if (!request->length)
		return 1;
	uint64_t binding = request->flags & ROW_START ? ANY_BINDING : qp->record->write_binding;
	request->key = engine_remote_key(request->shared, qp, request->rkey, request->va, request->length,
					 ACCESS_REMOTE_WRITE);
	if (!request->key || (binding != ANY_BINDING && engine_remote_binding(request->rkey, request->key) != binding))
		return end_steps(request, PUNT_KEY);
	if (request->flags & ROW_START &&
	    !engine_pages_ready(qp, request->key, request->rkey, request->va, request->length, ACCESS_REMOTE_WRITE))
		return end_steps(request, PUNT_KEY);
	return 1;
}

/* Store the payload at its destination; 0, or -1 if any byte is not accessible. */
static int store_payload(const struct request *request)
{
	const struct packet *packet = request->packet;
	int send = (request->flags & ROW_SEND) != 0;
	uint64_t at = send ? request->offset : request->va + request->offset;

	if (packet->by_reference)
		return by_reference_execute(request->shared, request->qp, packet, send ? request->receive : NULL,
					    request->key, at);
	if (send)
		return engine_scatter(request->shared, request->qp, request->receive, at, packet->payload,
				      packet->size);
	return packet->size && engine_key_write(request->shared, request->key, at, packet->payload, packet->size);
}

/* Store the data. */
static int execute(struct request *request)
{
	struct queue_pair *record = request->qp->record;

	if (store_payload(request))
		return end_steps(request, PUNT_MEMORY);
	record->established = 1;
	record->nak_sent = 0;
	engine_count(request->effects, COUNT_DROP_PSN_GAP, request->distance != 0);
	engine_count(request->effects, COUNT_DROP_BAD_SEQUENCE, (uint32_t)request->breaks);
	if (uses_receive(request))
		engine_receive_open(request->qp, request->receive);
	if (request->flags & ROW_START) {
		record->open = request->flags & ROW_SEND ? OPEN_SEND : OPEN_WRITE;
		if (request->flags & ROW_WRITE) {
			if (request->key)
				engine_pages_use(request->qp, request->rkey, request->va, request->length);
			record->write_length = request->length;
			record->write_va = request->va;
			record->write_rkey = request->rkey;
			record->write_binding = request->key ? engine_remote_binding(request->rkey, request->key) :
							       ANY_BINDING;
		}
	}
	record->offset = request->offset + request->packet->size;
	return 1;
}

/* Push the completion of a message that consumed a receive entry. */
static int push_completion(const struct request *request, uint64_t length)
{
	struct queue_pair *record = request->qp->record;
	const struct packet *packet = request->packet;
	int imm = (request->flags & ROW_IMMDT) != 0;
	struct completion entry = {
		.index = (uint32_t)record->receive_index,
		.status = SYN_SUCCESS,
		.length = (uint32_t)length,
		.word3 = CQE_RECEIVE | (request->flags & ROW_SEND ? (imm ? WR_SEND_IMM : WR_SEND) : WR_WRITE_IMM),
		.qpn = (uint32_t)be_get(request->qp->qpc, QPC_LOCAL_QPN),
	};
	if (imm) {
		entry.word3 |= CQE_IMM;
		entry.imm = (uint32_t)be_load(packet->payload - 4, 4);
	}
	if (packet->solicited)
		entry.word3 |= CQE_SOLICITED;
	record->receive_index = NONE;
	return engine_cq_push(request->room, &entry);
}

/* Return the PSN of the last packet that a request represents. */
static uint64_t last_psn(const struct request *request)
{
	return (request->packet->psn + request->packet->more) & PSN_MASK;
}

/* Advance the PSN; at the end of a message, complete its receive entry and increment the MSN. */
static int complete(struct request *request)
{
	struct queue_pair *record = request->qp->record;

	request->notify = 0;
	if (completes_receive(request))
		request->notify =
			push_completion(request, request->flags & ROW_SEND ? record->offset : record->write_length);
	be_put(request->qp->qpc, QPC_EXPECTED_PSN, (last_psn(request) + 1) & PSN_MASK);
	if (request->flags & ROW_END) {
		record->msn = (record->msn + 1) & PSN_MASK;
		be_put(request->qp->qpc, QPC_RMSN, record->msn);
		if (request->flags & ROW_WRITE && record->write_length)
			engine_count_written(request->qp, (uint32_t)record->write_rkey);
		record->open = OPEN_NOTHING;
		record->offset = 0;
	}
	return 1;
}

/* Acknowledge the packet if it has AckReq (IBA 9.7.5.1.2). A complete message without AckReq is acknowledged together
 * with the next one that has it, or after a delay. */
static void acknowledge(struct request *request)
{
	struct queue_pair *record = request->qp->record;

	request->end = ENGINE_DONE;
	if (request->packet->ask && request->reliable) {
		engine_response_ack(request->qp, last_psn(request), engine_ack_syndrome(request->shared, request->qp),
				    request->effects);
	} else if (request->flags & ROW_END && request->reliable && record->owed_ns == NEVER) {
		record->owed_ns = request->now + greater(REPLY_OWED_NS, request->srtt + (request->srtt >> 2));
		request->effects->effects |= EFFECT_ARM;
	}
	if (request->notify) {
		request->effects->effects |= EFFECT_NOTIFY_RECV;
		request->end = ENGINE_ATTENTION;
	}
}

enum engine_end engine_request_receive(const struct engine_shared *shared, struct engine_qp *qp,
				       const struct packet *packet, uint64_t srtt, uint64_t now,
				       struct engine_effects *effects)
{
	struct receive receive;
	struct cq_room room;

	if (!qp->record->established && be_get(qp->qpc, QPC_STATE) == QP_STATE_RTR)
		return PUNT_STATE; /* the first one raises an event */
	if (!engine_response_queue_valid(qp) || !engine_credits_known(qp))
		return PUNT_REPLY;
	struct request request = {
		.shared = shared,
		.qp = qp,
		.packet = packet,
		.effects = effects,
		.srtt = srtt,
		.now = now,
		.flags = packet->row->flags,
		.reliable = be_get(qp->qpc, QPC_SERVTYPE) == ST_RC,
		.distance = psn_diff(packet->psn, be_get(qp->qpc, QPC_EXPECTED_PSN)),
		.receive = &receive,
		.room = &room,
	};
	if (!STEP(check_psn, &request))
		return request.end;
	if (!(request.flags & (ROW_SEND | ROW_WRITE)))
		return engine_read_receive(shared, qp, packet, effects);
	if (STEP(check_op_seq, &request) && STEP(check_op_valid, &request) && STEP(check_resources, &request) &&
	    STEP(check_length, &request) && STEP(check_rkey, &request) && STEP(check_icrc, &request) &&
	    STEP(execute, &request) && STEP(complete, &request))
		STEP(acknowledge, &request);
	return request.end;
}
