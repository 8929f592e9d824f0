/* The requester: fetch work requests, check them, number packets, send within the window (IBA 9.7;
 * transport/requester.py). */
#include "queue_pair/requester.h"

#include "queue_pair/bth.h"
#include "queue_pair/by_reference.h"
#include "queue_pair/congestion.h"
#include "queue_pair/context.h"
#include "queue_pair/datagram.h"
#include "queue_pair/encap.h"
#include "queue_pair/prefetch.h"
#include "queue_pair/psn.h"
#include "queue_pair/send_queue.h"
#include "queue_pair/sge.h"
#include "queue_pair/step.h"

#define HEADERS (BTH_BYTES + 16u) /* BTH and RETH; an immediate word may follow */
#define ATOMIC_HEADERS (BTH_BYTES + 28u)
#define FLUSH_HEADERS (BTH_BYTES + 20u) /* BTH, FETH, RETH */
#define ATOMIC_WRITE_BYTES 8u
#define FETH_BITS 0x3Fu

static int is_known(uint64_t opcode)
{
	return is_write(opcode) || opcode == WR_SEND || opcode == WR_SEND_IMM;
}

/* Find a message's payload, or the destination of its responses; ENGINE_DONE, or a punt. */
static enum engine_end find_payload(const struct engine_shared *shared, const struct engine_qp *qp,
				    const struct send_wqe *wqe, uint64_t index, struct sge_list *sges)
{
	uint64_t opcode = entry_get(wqe, SQE_OPCODE);
	int reads = is_answered(wqe);
	if (!reads && (!is_known(opcode) || (is_write(opcode) && qp->record->service == SERVICE_UD)))
		return PUNT_REQUEST;
	if (reads && (!be_get(qp->qpc, QPC_MAX_RD_ATOMIC) || qp->record->service))
		return PUNT_REQUEST;
	if (is_atomic(opcode) && entry_get(wqe, SQE_LENGTH) != 8)
		return PUNT_REQUEST;
	if (has_operand(opcode) && (entry_get(wqe, SQE_LENGTH) || entry_get(wqe, SQE_INLINE)))
		return PUNT_REQUEST;
	return engine_sge_resolve(shared, qp, wqe, index, reads ? ACCESS_LOCAL_WRITE : 0, sges);
}

static uint64_t message_packets(const struct send_wqe *wqe, uint64_t length, uint64_t mtu)
{
	return is_atomic(entry_get(wqe, SQE_OPCODE)) ? 1 : psn_count(length, mtu);
}

/* Check a descriptor and assign its PSNs; ENGINE_DONE, or a punt with nothing changed. */
static enum engine_end check(struct engine_qp *qp, struct send_wqe *wqe, uint64_t length)
{
	const struct queue_pair *record = qp->record;
	uint64_t most = record->mtu * (record->service == SERVICE_UD ? 1 : PSN_WINDOW);

	TRACE_STEP(check);
	if (length > context_max_message(qp->qpc) || length > most)
		return PUNT_LENGTH;
	if (record->service == SERVICE_UD && !engine_destination_of(qp, wqe))
		return PUNT_PATH;
	wqe->first_psn = be_get(qp->qpc, QPC_NEXT_SEND_PSN) & PSN_MASK;
	wqe->packets = message_packets(wqe, length, record->mtu);
	be_put(qp->qpc, QPC_NEXT_SEND_PSN, (wqe->first_psn + wqe->packets) & PSN_MASK);
	return ENGINE_DONE;
}

/* Fetch the next descriptor from the ring and find its payload; ENGINE_DONE, ENGINE_ATTENTION if there is none, or a
 * punt. */
static enum engine_end fetch(const struct engine_shared *shared, struct engine_qp *qp, struct sge_list *sges)
{
	struct queue_pair *record = qp->record;
	uint64_t index = record->fetch_index, after = sq_after(qp, index);
	struct send_wqe read = { 0 };

	TRACE_STEP(fetch);
	if (after == record->sq_head)
		return ENGINE_ATTENTION;
	const struct send_wqe *last = engine_sq_last(qp);
	if (last && last->status)
		return ENGINE_ATTENTION; /* requests after one that failed here are flushed, not sent */
	entry_fetch(&read, qp->sq + (index << record->sq_shift));
	enum engine_end end = find_payload(shared, qp, &read, index, sges);
	if (end == ENGINE_DONE)
		end = check(qp, &read, sges->length);
	if (end != ENGINE_DONE)
		return end;
	if (!record->service)
		record->ssn = read.ssn = (record->ssn + engine_requests_of(record, &read)) & PSN_MASK;
	record->fetch_index = after;
	qp->sends[index] = read;
	return ENGINE_DONE;
}

/* Return whether a new message may start: its PSN is the next one, or nothing is outstanding. */
static int start_message(struct engine_qp *qp, const struct send_wqe *wqe)
{
	struct queue_pair *record = qp->record;
	const struct send_wqe *before = engine_sq_last(qp);

	TRACE_STEP(follows);
	if (before)
		return wqe->first_psn == ((before->first_psn + before->packets) & PSN_MASK);
	if (record->una == record->sent_psn) {
		record->una = record->sent_psn = wqe->first_psn;
		be_put(qp->qpc, QPC_LAST_ACKED_PSN, wqe->first_psn);
		return 1;
	}
	return psn_diff(wqe->first_psn, record->una) <= 0;
}

/* ------------------------------------------------------------------ room in flight (transport/inflight.py) */

static int is_contended(const struct queue_pair *record, const struct engine_inflight *flight)
{
	return flight->nic_inflight > record->inflight || flight->nic_queued || flight->others;
}

/* Return `want` if it is small enough to overtake waiting queue pairs, else 0. */
static int64_t slip_room(const struct queue_pair *record, const struct engine_inflight *flight, int64_t want)
{
	if (record->admitted || (int64_t)record->inflight + want > (int64_t)INFLIGHT_LEAST)
		return 0;
	if (flight->peer_waiting && (int64_t)flight->nic_overtaken + want > (int64_t)INFLIGHT_OVERTAKE)
		return 0;
	int64_t peer = (int64_t)(flight->peer_limit + lesser(INFLIGHT_OVERTAKE, flight->peer_limit));
	int64_t nic = (int64_t)(flight->nic_limit + lesser(INFLIGHT_OVERTAKE, flight->nic_limit));
	peer -= (int64_t)(flight->peer_inflight + flight->peer_promised);
	nic -= (int64_t)(flight->nic_inflight + flight->nic_promised);
	return (peer < nic ? peer : nic) >= want ? want : 0;
}

static int64_t grant_room(const struct queue_pair *record, const struct engine_inflight *flight, int64_t want)
{
	int64_t limit = (int64_t)flight->peer_limit, own = (int64_t)record->admitted;
	int64_t peer = limit - (int64_t)flight->peer_inflight - (int64_t)flight->peer_promised;
	int64_t nic = (int64_t)flight->nic_limit - (int64_t)flight->nic_inflight - (int64_t)flight->nic_promised;
	int64_t room = (peer < nic ? peer : nic) + own;
	if (flight->peer_waiting) {
		if (!own)
			return slip_room(record, flight, want);
		room = room < own ? room : own;
		want = want < own ? want : own;
	}
	int64_t least =
		(int64_t)lesser(inflight_quantum(flight->peer_limit, is_contended(record, flight)), flight->nic_limit);
	if (room >= (want < least ? want : least))
		return room;
	if (flight->peer_inflight)
		return slip_room(record, flight, want);
	return (int64_t)lesser(lesser((uint64_t)want, INFLIGHT_LEAST), flight->peer_limit);
}

/* Return whether, after sending `packets` now, there will be room for more of `want` before an ACK. */
static int leaves_room(const struct queue_pair *record, const struct engine_inflight *flight, uint64_t packets,
		       uint64_t want)
{
	int64_t peer = (int64_t)flight->peer_limit - (int64_t)flight->peer_inflight - (int64_t)flight->peer_promised;
	int64_t nic = (int64_t)flight->nic_limit - (int64_t)flight->nic_inflight - (int64_t)flight->nic_promised;
	int64_t room = (peer < nic ? peer : nic) + (int64_t)record->admitted - (int64_t)packets;
	return room >= (int64_t)lesser(lesser(want, inflight_quantum(flight->peer_limit, 1)), flight->nic_limit);
}

/* Return how many of `want` packets may be sent; 0 if it must wait. */
static uint64_t allowance(struct engine_qp *qp, const struct engine_inflight *flight, uint64_t want,
			  struct engine_effects *effects)
{
	const struct queue_pair *record = qp->record;
	int64_t room = (int64_t)record->window - (int64_t)record->inflight;

	TRACE_STEP(allowance);
	if (room <= 0)
		return 0;
	int64_t more = grant_room(record, flight, room < (int64_t)want ? room : (int64_t)want);
	if (more <= 0) {
		effects->effects |= EFFECT_NO_ROOM;
		return 0;
	}
	return (uint64_t)(room < more ? room : more);
}

static void count_inflight(struct queue_pair *record, struct engine_inflight *flight, uint64_t packets,
			   struct engine_effects *effects)
{
	uint64_t own = lesser(record->admitted, packets);
	record->inflight += packets;
	flight->peer_inflight += packets;
	flight->nic_inflight += packets;
	record->admitted -= own;
	flight->peer_promised -= own;
	flight->nic_promised -= own;
	flight->nic_overtaken += own || !flight->peer_waiting ? 0 : packets;
	effects->inflight_sent += packets;
	effects->admitted += own;
}

/* ------------------------------------------------------------------ packets */

/* Result of building a packet. */
enum made { MADE, NO_ROOM, UNREAD };

/* Build packet `index` of a message; `run` is 0, or the length of the run of equal packets that it starts. */
static enum made send_packet(const struct engine_shared *shared, struct engine_qp *qp, const struct send_wqe *wqe,
			     const struct sge_list *sges, uint64_t index, int ask, uint64_t run, struct engine_out *out)
{
	const struct queue_pair *record = qp->record;
	uint64_t opcode = entry_get(wqe, SQE_OPCODE), mtu = record->mtu, offset = index * mtu;
	uint64_t size = lesser(mtu, sges->length - offset);
	int last = index + 1 == wqe->packets;
	uint64_t psn = (wqe->first_psn + index) & PSN_MASK;
	uint64_t header = BTH_BYTES;
	if (is_write(opcode) && !index)
		header = HEADERS;
	uint64_t word_at = header;
	if (last && has_immediate(opcode))
		header += 4;
	uint8_t *frame = engine_packet_begin(out, header, size, run != 0);
	if (!frame)
		return NO_ROOM;
	if (run > 1 && shared->prefetch && !shared->prefetch->filled_count) {
		uint64_t va, most = lesser(run * mtu, sges->length - offset);
		const struct memory_key *key = engine_sge_key(sges, offset, most, &va);
		if (key)
			engine_packets_read_ahead(shared, out, frame, header, key, va, mtu, run);
	}
	const struct origin from = engine_sge_origin(shared, sges, offset, size);
	if (!engine_origin_known(&from) && engine_sge_read(shared, sges, offset, frame + header, size))
		return UNREAD;
	uint64_t head = record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | (-size & 3) << BTH_PAD_SHIFT;
	if (last && entry_get(wqe, SQE_SOLICITED) && opcode != WR_WRITE)
		head |= BTH_SOLICITED;
	be_store(frame, 8, head | (record->service | engine_request_opcode(opcode, !index, last)) << 56);
	int asks = !record->service && (ask || mod64(psn, record->ack_every) == 0);
	be_store(frame + 8, 4, psn | (asks ? BTH_ACK_REQ : 0));
	if (word_at == HEADERS) {
		be_store(frame + 12, 8, entry_get(wqe, SQE_REMOTE_ADDR));
		be_store(frame + 20, 4, entry_get(wqe, SQE_RKEY));
		be_store(frame + 24, 4, sges->length);
	}
	if (header > word_at)
		be_store(frame + word_at, 4, entry_get(wqe, SQE_IMM));
	return engine_packet_fill(out, shared, &qp->flow, frame, header, &from, size) ? UNREAD : MADE;
}

/* Build the next `run` packets of a message, all MIDDLEs; returns their number, 0 if they must be built one by one. */
static uint64_t send_run(const struct engine_shared *shared, const struct engine_qp *qp, const struct send_wqe *wqe,
			 const struct sge_list *sges, uint64_t run, struct engine_out *out)
{
	const struct queue_pair *record = qp->record;
	uint64_t operation = engine_request_opcode(entry_get(wqe, SQE_OPCODE), 0, 0), mtu = record->mtu;
	const struct origin from = engine_sge_origin(shared, sges, wqe->sent * mtu, run * mtu);

	return engine_packets_run(out, shared, &qp->flow,
				  record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | (record->service | operation) << 56,
				  (wqe->first_psn + wqe->sent) & PSN_MASK, record->service ? 0 : record->ack_every,
				  &from, mtu, run);
}

/* Send the next `count` packets of a message; `ask` sets AckReq on the last. Returns their number; `how` is the reason
 * if that is not all. */
static uint64_t send_data(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
			  const struct sge_list *sges, uint64_t count, int ask, struct engine_out *out, enum made *how)
{
	uint64_t done = 0, run = 0;

	TRACE_STEP(send_data);
	*how = MADE;
	while (done < count) {
		uint64_t index = wqe->sent;
		if (!run && index) {
			/* MIDDLEs form a run, except one with AckReq */
			uint64_t middles = lesser(count - done - (uint64_t)ask, wqe->packets - 1 - index);
			run = middles > 1 ? middles : 0;
		}
		uint64_t made = run > 1 ? send_run(shared, qp, wqe, sges, run, out) : 0;
		if (made) {
			wqe->sent += made;
			done += made;
			run -= made;
			continue;
		}
		int asks = ask && !run && done + 1 == count;
		*how = send_packet(shared, qp, wqe, sges, index, asks, run, out);
		if (*how != MADE)
			break;
		wqe->sent++;
		done++;
		if (run)
			run--;
	}
	uint64_t psn = (wqe->first_psn + wqe->sent) & PSN_MASK;
	if (psn_diff(psn, qp->record->sent_psn) > 0)
		qp->record->sent_psn = psn;
	return done;
}

static void put_bth(const struct engine_qp *qp, uint8_t *frame, uint64_t operation, uint64_t psn)
{
	be_store(frame, 8, qp->record->head | be_get(qp->qpc, QPC_REMOTE_QPN) | operation << 56);
	be_store(frame + 8, 4, (psn & PSN_MASK) | BTH_ACK_REQ);
}

static void put_reth(uint8_t *reth, const struct send_wqe *wqe, uint64_t offset, uint64_t length)
{
	be_store(reth, 8, entry_get(wqe, SQE_REMOTE_ADDR) + offset);
	be_store(reth + 8, 4, entry_get(wqe, SQE_RKEY));
	be_store(reth + 12, 4, length);
}

/* Build the request of a FLUSH or an ATOMIC WRITE; 0, or -1 if there is no room. */
static int make_operand_request(const struct engine_shared *shared, struct engine_qp *qp, const struct send_wqe *wqe,
				struct engine_out *out)
{
	int flush = entry_get(wqe, SQE_OPCODE) == WR_FLUSH;
	uint64_t header = flush ? FLUSH_HEADERS : HEADERS, size = flush ? 0 : ATOMIC_WRITE_BYTES;
	uint8_t *frame = engine_packet_begin(out, header, size, 0);

	if (!frame)
		return -1;
	put_bth(qp, frame, flush ? BTH_FLUSH : BTH_ATOMIC_WRITE, wqe->first_psn);
	put_reth(frame + header - 16, wqe, 0, flush ? wqe->entry_5 & 0xFFFFFFFF : ATOMIC_WRITE_BYTES);
	if (flush)
		be_store(frame + BTH_BYTES, 4, entry_get(wqe, SQE_IMM) & FETH_BITS);
	else
		memcpy(frame + header, &wqe->entry_5, ATOMIC_WRITE_BYTES);
	engine_packet_seal(out, shared, &qp->flow, frame, header, size);
	return 0;
}

/* Build a READ request for `packets` responses from `index` on, or another request; 0, or -1 if there is no room. */
static int make_request(const struct engine_shared *shared, struct engine_qp *qp, const struct send_wqe *wqe,
			uint64_t index, uint64_t packets, struct engine_out *out)
{
	const struct queue_pair *record = qp->record;
	uint64_t opcode = entry_get(wqe, SQE_OPCODE), header = opcode == WR_READ ? HEADERS : ATOMIC_HEADERS;
	uint64_t operation = BTH_READ_REQUEST, offset = index * record->mtu;
	if (has_operand(opcode))
		return make_operand_request(shared, qp, wqe, out);
	uint8_t *frame = engine_packet_begin(out, header, 0, 0);
	if (!frame)
		return -1;
	if (opcode != WR_READ)
		operation = opcode == WR_CMP_SWAP ? BTH_COMPARE_SWAP : BTH_FETCH_ADD;
	put_bth(qp, frame, operation, wqe->first_psn + index);
	if (opcode == WR_READ) {
		put_reth(frame + BTH_BYTES, wqe, offset,
			 lesser(packets * record->mtu, entry_get(wqe, SQE_LENGTH) - offset));
	} else {
		put_reth(frame + BTH_BYTES, wqe, 0, 0); /* the operands follow its key */
		be_store(frame + 24, 8, wqe->entry_5);
		be_store(frame + 32, 8, opcode == WR_CMP_SWAP ? wqe->entry_6 : 0);
	}
	engine_packet_seal(out, shared, &qp->flow, frame, header, 0);
	return 0;
}

/* Send READ requests or an atomic request, within the limit of outstanding ones; returns their number. */
static uint64_t send_request(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
			     uint64_t slot_index, uint64_t now, uint64_t budget, uint64_t room,
			     struct engine_inflight *flight, struct engine_out *out, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t most = lesser(be_get(qp->qpc, QPC_MAX_RD_ATOMIC), MAX_RD_ATOMIC), requests = 0;

	TRACE_STEP(send_request);
	while (wqe->sent < wqe->packets && requests < budget && room) {
		uint64_t psn = (wqe->first_psn + wqe->sent) & PSN_MASK;
		uint64_t packets =
			lesser(record->read_chunk - mod64(wqe->sent, record->read_chunk), wqe->packets - wqe->sent);
		if (psn == record->asked_psn)
			packets = 1; /* requested alone by a probe: a peer that answered repeats only that */
		if (record->piece_count >= most ||
		    (record->inflight && packets > record->window - lesser(record->inflight, record->window)))
			break;
		if (make_request(shared, qp, wqe, wqe->sent, packets, out))
			break;
		struct read_piece *piece = &qp->pieces[(record->piece_first + record->piece_count++) % QP_PIECES];
		*piece = (struct read_piece){
			.index = slot_index, .first_psn = psn, .offset = wqe->sent * record->mtu, .packets = packets
		};
		if (psn_diff(psn, record->sent_psn) < 0) {
			engine_count(effects, COUNT_RETRANSMITTED_REQUESTS, 1);
		} else if (record->rtt_psn == NONE) {
			record->rtt_psn = psn;
			record->rtt_at = now;
		}
		wqe->sent += packets;
		count_inflight(record, flight, packets, effects);
		room -= lesser(packets, room);
		requests++;
		uint64_t end = (psn + packets) & PSN_MASK;
		if (psn_diff(end, record->sent_psn) > 0)
			record->sent_psn = end;
	}
	return requests;
}

/* Return whether a message needs a receive entry for which the peer has granted no credit. */
static int lacks_credit(const struct queue_pair *record, const struct send_wqe *wqe)
{
	return takes_receive(entry_get(wqe, SQE_OPCODE)) && record->lsn != NONE &&
	       psn_diff(wqe->ssn, record->lsn) > 0 && psn_diff(record->una, wqe->first_psn) <= 0;
}

/* Return whether an earlier message was sent without credit, and its single packet is not acknowledged yet. */
static int asks_for_credit(const struct engine_qp *qp, uint64_t before)
{
	for (uint64_t index = qp->record->sq_head; index != before; index = sq_after(qp, index))
		if (qp->sends[index].packets && lacks_credit(qp->record, &qp->sends[index]))
			return 1;
	return 0;
}

/* Return whether a message may omit AckReq (IBA 9.7.5.1): it is unsignaled and the last in the queue, no resource runs
 * short, and no recent probe was needed. `ahead` is 0 if it is sent for the first time. */
static int may_omit_ack_req(const struct engine_shared *shared, const struct engine_qp *qp, const struct send_wqe *wqe,
			    uint64_t index, const struct engine_inflight *flight, int64_t ahead)
{
	const struct queue_pair *record = qp->record;
	uint64_t entries = record->sq_entries,
		 behind = index + (index < record->sq_head ? entries : 0) - record->sq_head;

	return entry_get(wqe, SQE_OPCODE) == WR_WRITE && wqe->packets == 1 && !engine_signaled(qp, wqe) && !ahead &&
	       !record->ack_each && sq_after(qp, index) == record->tail &&
	       (int64_t)(record->window - record->inflight) > 1 && 2 * behind < entries &&
	       engine_probe_enabled(shared, qp) && !is_contended(record, flight) && leaves_room(record, flight, 1, 1);
}

/* Send packets of one message with payload `sges`; ENGINE_DONE or a punt, with the number of packets sent before, 0 if
 * it must wait. */
static enum engine_end send_message(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
				    uint64_t slot_index, struct sge_list *sges, uint64_t now, uint64_t budget,
				    struct engine_inflight *flight, struct engine_out *out, uint64_t *sent,
				    struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	enum made how;
	enum engine_end end;
	int reads = is_answered(wqe);

	TRACE_STEP(send_message);
	*sent = 0;
	if (shared->prefetch && !sges->bytes)
		sges->bytes = engine_prefetch_fetched(shared->prefetch, wqe, slot_index);
	if (!wqe->packets || wqe->status || wqe->sent >= wqe->packets ||
	    wqe->packets != message_packets(wqe, sges->length, record->mtu))
		return PUNT_REQUEST;
	if (entry_get(wqe, SQE_FENCE) && !wqe->sent && record->piece_count)
		return ENGINE_DONE;
	if (!engine_sge_reachable(shared, sges))
		return PUNT_MEMORY;
	if (record->service && (end = engine_sq_complete_check(qp, wqe)) != ENGINE_DONE)
		return end;
	if (record->service == SERVICE_UD)
		return engine_datagram_send(shared, qp, wqe, sges, out, sent);
	if (!wqe->sent && !start_message(qp, wqe))
		return ENGINE_DONE;
	wqe->begun = 1;
	if (record->service) {
		*sent = send_data(shared, qp, wqe, sges, lesser(budget, wqe->packets - wqe->sent), 0, out, &how);
		record->una = record->sent_psn;
		return how == UNREAD ? PUNT_MEMORY : ENGINE_DONE;
	}
	if (reads && record->read_index == NONE)
		record->read_index = slot_index;
	uint64_t left = wqe->packets - wqe->sent, room = allowance(qp, flight, left, effects);
	if (!room)
		return ENGINE_DONE;
	if (reads) {
		*sent = send_request(shared, qp, wqe, slot_index, now, budget, room, flight, out, effects);
		return ENGINE_DONE;
	}
	uint64_t psn = (wqe->first_psn + wqe->sent) & PSN_MASK;
	uint64_t count = lesser(lesser(budget, left), room);
	/* Set AckReq on the last packet that the window allows; otherwise transmission stalls. */
	uint64_t more = lesser(left, record->window - record->inflight) - count;
	int64_t ahead = psn_diff(psn, record->sent_psn);
	int ask = count < left ?
			  count == room || is_contended(record, flight) || !leaves_room(record, flight, count, more) :
			  !may_omit_ack_req(shared, qp, wqe, slot_index, flight, ahead);
	/* a retransmitted message includes its payload */
	uint64_t part = qp->peer_path && !ahead ? by_reference_chunk(qp, wqe, sges) : 0;
	if (part) {
		if (record->inflight && part > record->window - record->inflight)
			return ENGINE_DONE; /* send the chunk once the window has room for all of it */
		ask |= part < count;
		count = lesser(count, part);
	}
	if (lacks_credit(record, wqe)) {
		/* only one packet may probe for credit; its ACK shows that there is a receive entry (IBA 9.7.7.2) */
		if (wqe->sent || asks_for_credit(qp, slot_index))
			return ENGINE_DONE;
		count = 1;
		ask = 1;
	}
	how = MADE;
	if (part)
		*sent = by_reference_make(shared, qp, wqe, sges, count, ask, out);
	if (!*sent)
		*sent = send_data(shared, qp, wqe, sges, count, ask, out, &how);
	if (how == UNREAD)
		count = *sent; /* the reference fails the message */
	if (ahead < 0) {
		engine_count(effects, COUNT_RETRANSMITTED_PACKETS, (uint32_t)lesser(count, (uint64_t)-ahead));
	} else if (how != UNREAD && record->rtt_psn == NONE && ask) {
		record->rtt_psn = (psn + count - 1) & PSN_MASK;
		record->rtt_at = now;
	}
	record->ack_each -= record->ack_each && *sent == left;
	count_inflight(record, flight, *sent, effects);
	return how == UNREAD ? PUNT_MEMORY : ENGINE_DONE;
}

/* Request the next expected response of the oldest request again, split off as a separate request before the rest; 1,
 * or 0 if there is no room. */
static uint64_t probe_response(const struct engine_shared *shared, struct engine_qp *qp, struct engine_out *out)
{
	struct queue_pair *record = qp->record;
	struct read_piece *piece = engine_piece(qp, 0);
	struct read_piece rest = *piece;
	uint64_t got = piece->got, mtu = record->mtu, left = piece->packets - got - 1;
	int was_long = piece->packets > 1 || piece->asked;

	if (left) {
		*piece = (struct read_piece){ .index = rest.index,
					      .first_psn = (rest.first_psn + got + 1) & PSN_MASK,
					      .offset = rest.offset + (got + 1) * mtu,
					      .packets = left };
		record->piece_first = (record->piece_first ? record->piece_first : QP_PIECES) - 1;
		record->piece_count++;
		piece = engine_piece(qp, 0);
	}
	*piece = (struct read_piece){ .index = rest.index,
				      .first_psn = (rest.first_psn + got) & PSN_MASK,
				      .offset = rest.offset + got * mtu,
				      .packets = 1,
				      .asked = (uint64_t)was_long };
	if (was_long)
		record->asked_psn = piece->first_psn;
	return !make_request(shared, qp, &qp->sends[piece->index], piece->offset / mtu, 1, out);
}

/* Retransmit the oldest and the last unacknowledged packet with AckReq or, if the oldest waits for a response, request
 * that again; ENGINE_DONE with the number of packets, or a punt with nothing changed. */
static enum engine_end probe(const struct engine_shared *shared, struct engine_qp *qp, struct engine_out *out,
			     uint64_t *sent, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	struct sge_list sges;
	uint64_t ends[2], at[2], pending = 0;
	unsigned count = 0;
	int mends = record->probe_due == PROBE_MENDS; /* retransmit only the oldest, which a NAK named */

	TRACE_STEP(probe);
	*sent = 0;
	const struct read_piece *piece = engine_piece(qp, 0);
	if (record->inflight && record->piece_count && piece_due(piece) == record->una) {
		if (piece->index >= record->sq_entries || piece->got >= piece->packets ||
		    !is_answered(&qp->sends[piece->index]) ||
		    piece->offset / record->mtu + piece->packets > qp->sends[piece->index].packets)
			return PUNT_REQUEST;
		record->probe_due = 0;
		*sent = probe_response(shared, qp, out);
		engine_count(effects, mends ? COUNT_RETRANSMITTED_PACKETS : COUNT_PROBES, *sent != 0);
		return ENGINE_DONE;
	}
	for (uint64_t index = record->sq_head; record->inflight && index != record->fetch_index;
	     index = sq_after(qp, index)) {
		const struct send_wqe *wqe = &qp->sends[index];
		if (wqe->sent && wqe->packets)
			ends[pending++ ? 1 : 0] = index;
	}
	if (record->inflight && !pending)
		return PUNT_REQUEST;
	if (record->inflight) {
		const struct send_wqe *oldest = &qp->sends[ends[0]], *last = &qp->sends[ends[pending > 1 ? 1 : 0]];
		int64_t first = psn_diff(record->una, oldest->first_psn);
		uint64_t other = ends[pending > 1 ? 1 : 0];
		if (first < 0 || (uint64_t)first >= oldest->sent)
			return PUNT_REQUEST;
		if (mends || oldest != last || (uint64_t)first != last->sent - 1) {
			at[count] = (uint64_t)first;
			count += !is_answered(oldest);
		}
		if (!mends) {
			ends[count] = other;
			at[count] = last->sent - 1;
			count += !is_answered(last);
		}
	}
	for (unsigned i = 0; i < count; i++) {
		const struct send_wqe *wqe = &qp->sends[ends[i]];
		enum engine_end end = find_payload(shared, qp, wqe, ends[i], &sges);
		if (end != ENGINE_DONE)
			return end;
		if (at[i] >= wqe->packets || wqe->packets != psn_count(sges.length, record->mtu))
			return PUNT_REQUEST;
		if (!engine_sge_reachable(shared, &sges))
			return PUNT_MEMORY;
	}
	record->probe_due = 0;
	for (unsigned i = 0; i < count; i++) {
		struct send_wqe *wqe = &qp->sends[ends[i]];
		/* software may have changed its scatter list */
		if (find_payload(shared, qp, wqe, ends[i], &sges) == ENGINE_DONE &&
		    engine_sge_reachable(shared, &sges) &&
		    send_packet(shared, qp, wqe, &sges, at[i], 1, 0, out) == MADE)
			++*sent;
	}
	engine_count(effects, mends ? COUNT_RETRANSMITTED_PACKETS : COUNT_PROBES, *sent != 0);
	return ENGINE_DONE;
}

static enum engine_end check_state(const struct engine_qp *qp)
{
	const struct queue_pair *record = qp->record;
	uint64_t service = be_get(qp->qpc, QPC_SERVTYPE), bits = 0;
	if (service == ST_UC || service == ST_UD)
		bits = service == ST_UC ? SERVICE_UC : SERVICE_UD;
	if ((service != ST_RC && !bits) || be_get(qp->qpc, QPC_STATE) != QP_STATE_RTS || record->service != bits ||
	    !engine_sq_valid(qp))
		return PUNT_STATE;
	if (!record->mtu || record->mtu > MAX_PATH_MTU || !record->ack_every || record->window > PSN_WINDOW ||
	    record->inflight > PSN_WINDOW || record->admitted > PSN_WINDOW)
		return PUNT_STATE;
	if (!engine_ring_reachable(qp))
		return PUNT_MEMORY;
	if (record->piece_count > QP_PIECES - 2 || !record->read_chunk || record->read_chunk > PSN_WINDOW)
		return PUNT_STATE;
	return ENGINE_DONE;
}

uint64_t engine_send(const struct engine_shared *shared, struct engine_qp *qp, uint64_t now, uint64_t budget,
		     struct engine_inflight *flight, struct engine_out *out, struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	struct sge_list sges;
	uint64_t made = 0;
	enum engine_end end = engine_congestion_known(shared, record) ? check_state(qp) : PUNT_STATE;

	effects->end = end;
	if (end != ENGINE_DONE)
		return 0;
	engine_prefetch_forget(shared);
	if (record->probe_due && record->rnr_until == NEVER) {
		end = probe(shared, qp, out, &made, effects);
		if (end != ENGINE_DONE) {
			effects->end = end;
			return 0;
		}
	}
	record->more = 0;
	while (made < budget && record->rnr_until == NEVER) {
		uint64_t index = record->send_index, sent;
		struct send_wqe *wqe = &qp->sends[index];
		if (index == record->fetch_index) {
			if (index == record->tail)
				break;
			if (shared->prefetch && shared->prefetch->fetched >= shared->prefetch->fetched_count)
				engine_prefetch_fetch(shared, qp, budget - made);
			end = fetch(shared, qp, &sges);
		} else {
			end = find_payload(shared, qp, wqe, index, &sges);
		}
		if (end != ENGINE_DONE)
			break;
		end = send_message(shared, qp, wqe, index, &sges, now, budget - made, flight, out, &sent, effects);
		made += sent;
		if (end != ENGINE_DONE)
			break;
		if (wqe->sent >= wqe->packets)
			record->send_index = sq_after(qp, index);
		else if (!sent)
			break;
		if (record->service && (end = engine_sq_complete_sent(qp, effects)) != ENGINE_DONE)
			break;
	}
	if (end == ENGINE_DONE && made >= budget)
		record->more = 1;
	engine_packets_flush(out);
	if (made)
		engine_sq_arm_timers(shared, qp, flight, now, effects);
	effects->end = end == ENGINE_ATTENTION ? ENGINE_DONE : end;
	effects->packets += made;
	return made;
}
