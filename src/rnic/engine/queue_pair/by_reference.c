/* Packets by reference: build and process them. */
#include "queue_pair/by_reference.h"

#include "queue_pair/byteorder.h"
#include "queue_pair/encap.h"
#include "queue_pair/message.h"
#include "queue_pair/packet.h"
#include "queue_pair/receive_queue.h"
#include "queue_pair/sge.h"

#define MIN_BYTES 2048u /* shorter messages are cheaper as packets */
#define CHUNKS_PER_WINDOW 4u /* so that further chunks are in flight while one is read */

/* Return the address, in the owner's process, of bytes that a key covers. */
static uint64_t owner_va(const struct memory_key *key, uint64_t va)
{
	return key->base + (va - key->start);
}

/* Find the location of `size` bytes of a message from `offset` on; the number of ranges, or 0 if they are not plain
 * memory of one process in at most `most` ranges. */
static unsigned find_places(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset,
			    uint64_t size, struct engine_range *places, unsigned most)
{
	unsigned count = 0;

	for (unsigned i = 0; size && i < sges->count; i++) {
		const struct sge *span = &sges->entries[i];
		if (offset >= span->length) {
			offset -= span->length;
			continue;
		}
		if (count == most || !shared->reach[span->key - shared->keys].segment)
			return 0;
		uint64_t part = lesser(size, span->length - offset);
		places[count++] = (struct engine_range){ owner_va(span->key, span->va + offset), part };
		size -= part;
		offset = 0;
	}
	return size ? 0 : count;
}

/* ------------------------------------------------------------------ sending */

uint64_t by_reference_chunk(const struct engine_qp *qp, const struct send_wqe *wqe, const struct sge_list *sges)
{
	const struct queue_pair *record = qp->record;
	uint64_t left = wqe->packets - wqe->sent, most = greater(1, record->window / CHUNKS_PER_WINDOW), epoch;
	uint64_t parts = greater(1, left / most), psn = (wqe->first_psn + wqe->sent) & PSN_MASK;
	uint32_t operation = engine_request_opcode(entry_get(wqe, SQE_OPCODE), !wqe->sent, parts == 1);

	if (sges->bytes || sges->length - wqe->sent * record->mtu < MIN_BYTES ||
	    !qp->peer_path->opens(qp->peer_path, qp, operation, psn, &epoch))
		return 0;
	return (left + parts - 1) / parts;
}

/* Return whether another burst fits: fault rules must only count bursts that will be sent. */
static int has_room(struct engine_out *out)
{
	out->open = 0;
	return engine_packet_begin(out, sizeof(struct engine_by_reference), 0, 0) != NULL;
}

/* Put a record into its own burst; 0, or -1 if there is no room. */
static int put_burst(struct engine_out *out, const struct engine_by_reference *by_reference)
{
	out->open = 0;
	uint8_t *frame = engine_packet_begin(out, sizeof *by_reference, 0, 0);
	if (!frame)
		return -1;
	memcpy(frame, by_reference, sizeof *by_reference);
	out->bursts[out->count++] = (struct engine_burst){
		.offset = out->used,
		.length = sizeof *by_reference,
		.segment = 0,
		.count = by_reference->packets,
		.route = out->route,
	};
	out->used += sizeof *by_reference;
	out->carried += by_reference->bytes; /* the scheduler charges a turn for the moved bytes */
	return 0;
}

uint64_t by_reference_make(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
			   const struct sge_list *sges, uint64_t count, int ask, struct engine_out *out)
{
	struct queue_pair *record = qp->record;
	uint64_t index = wqe->sent, offset = index * record->mtu, opcode = entry_get(wqe, SQE_OPCODE);
	uint64_t psn = (wqe->first_psn + index) & PSN_MASK;
	int last = index + count == wqe->packets;
	struct engine_by_reference by_reference = {
		.destination = (uint32_t)be_get(qp->qpc, QPC_REMOTE_QPN),
		.source = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN),
		.psn = (uint32_t)psn,
		.packets = (uint32_t)count,
		.operation = engine_request_opcode(opcode, !index, last),
		.bytes = lesser(count * record->mtu, sges->length - offset),
		.va = entry_get(wqe, SQE_REMOTE_ADDR),
		.rkey = (uint32_t)entry_get(wqe, SQE_RKEY),
		.length = (uint32_t)sges->length,
		.imm = (uint32_t)entry_get(wqe, SQE_IMM),
	};

	by_reference.count =
		find_places(shared, sges, offset, by_reference.bytes, by_reference.pieces, BY_REFERENCE_RANGES);
	if (!by_reference.count ||
	    !qp->peer_path->opens(qp->peer_path, qp, by_reference.operation, psn, &by_reference.epoch))
		return 0;
	if (last || ask || (psn + count - 1) / record->ack_every != (psn - 1) / record->ack_every)
		by_reference.flags = BY_REFERENCE_ACK_REQ;
	if (last && entry_get(wqe, SQE_SOLICITED) && opcode != WR_WRITE)
		by_reference.flags |= BY_REFERENCE_SOLICITED;
	if (!has_room(out) || !qp->peer_path->passes(qp->peer_path, &by_reference, record->mtu) ||
	    put_burst(out, &by_reference))
		return 0;
	wqe->sent += count;
	record->sent_psn = (psn + count) & PSN_MASK;
	return count;
}

uint64_t by_reference_respond(const struct engine_shared *shared, struct engine_qp *qp, struct reply *response,
			      const struct memory_key *key, uint64_t mtu, uint64_t count, struct engine_out *out)
{
	uint64_t offset = response->sent * mtu, psn = (response->psn + response->sent) & PSN_MASK;
	int last = response->sent + count == response->packets;
	struct engine_by_reference by_reference = {
		.destination = (uint32_t)be_get(qp->qpc, QPC_REMOTE_QPN),
		.source = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN),
		.psn = (uint32_t)psn,
		.packets = (uint32_t)count,
		.operation = engine_response_opcode(!response->sent, last),
		.bytes = lesser(count * mtu, response->total - offset),
		.count = 1,
	};

	/* a repeated response includes its payload; a peer that reads directly does not notice the end of a window */
	if (response->again || key->window || !shared->reach[key - shared->keys].segment ||
	    by_reference.bytes < MIN_BYTES ||
	    !qp->peer_path->opens(qp->peer_path, qp, by_reference.operation, psn, &by_reference.epoch))
		return 0;
	by_reference.pieces[0] = (struct engine_range){ owner_va(key, response->va + offset), by_reference.bytes };
	if (!has_room(out) || !qp->peer_path->passes(qp->peer_path, &by_reference, mtu) ||
	    put_burst(out, &by_reference))
		return 0;
	response->sent += count;
	return count;
}

/* ------------------------------------------------------------------ receiving */

int by_reference_parse(const struct engine_by_reference *by_reference, uint8_t *bytes, struct packet *packet)
{
	const struct opcode_row *row = &opcode_rows[by_reference->operation & 0xFF];
	uint64_t total = 0, at = BTH_BYTES;

	if (by_reference->operation > 0xFF || !(row->flags & (ROW_SEND | ROW_WRITE | ROW_READ_RESPONSE)) ||
	    row->flags & ROW_IETH || (by_reference->operation & BTH_SERVICE_MASK) != SERVICE_RC)
		return -1;
	if (!by_reference->packets || by_reference->packets > PSN_WINDOW || by_reference->psn > PSN_MASK ||
	    !by_reference->count || by_reference->count > BY_REFERENCE_RANGES)
		return -1;
	for (uint32_t i = 0; i < by_reference->count; i++) {
		if (by_reference->pieces[i].length > by_reference->bytes)
			return -1;
		total += by_reference->pieces[i].length;
	}
	if (total != by_reference->bytes || !total)
		return -1;
	memset(bytes, 0, BY_REFERENCE_HEADER);
	if (row->flags & ROW_RETH) {
		be_store(bytes + at, 8, by_reference->va);
		be_store(bytes + at + 8, 4, by_reference->rkey);
		be_store(bytes + at + 12, 4, by_reference->length);
		at += 16;
	}
	if (row->flags & ROW_IMMDT)
		be_store(bytes + at, 4, by_reference->imm);
	*packet = (struct packet){
		.bytes = bytes,
		.row = row,
		.opcode = (uint8_t)by_reference->operation,
		.psn = by_reference->psn,
		.ask = (by_reference->flags & BY_REFERENCE_ACK_REQ) != 0,
		.solicited = (by_reference->flags & BY_REFERENCE_SOLICITED) != 0,
		.payload = bytes + row->header_bytes,
		.size = by_reference->bytes,
		.more = by_reference->packets - 1,
		.by_reference = by_reference,
	};
	return 0;
}

int by_reference_execute(const struct engine_shared *shared, const struct engine_qp *qp, const struct packet *packet,
			 const struct receive *receive, const struct memory_key *key, uint64_t at)
{
	struct engine_range places[QP_SCATTERS];
	uint64_t left = packet->size;
	unsigned count = 0;

	if (!receive) {
		if (!key || !shared->reach[key - shared->keys].segment)
			return -1;
		places[count++] = (struct engine_range){ owner_va(key, at), left };
		left = 0;
	}
	for (uint64_t i = 0; left && i < receive->sges; i++) {
		uint64_t length = (uint32_t)receive->scatters[i].size_key, va;
		if (at >= length) {
			at -= length;
			continue;
		}
		struct receive one = { .sges = 1, .scatters = { receive->scatters[i] } };
		uint64_t part = lesser(left, length - at);
		key = engine_scatter_key(shared, qp, &one, at, part, &va);
		if (!key || !shared->reach[key - shared->keys].segment)
			return -1;
		places[count++] = (struct engine_range){ owner_va(key, va), part };
		left -= part;
		at = 0;
	}
	return left ? -1 : packet->pull->pull(packet->pull, packet->by_reference, places, count);
}

int by_reference_read_response(const struct engine_shared *shared, const struct packet *packet,
			       const struct sge_list *sges, uint64_t offset)
{
	struct engine_range places[QP_SCATTERS];
	unsigned count = find_places(shared, sges, offset, packet->size, places, QP_SCATTERS);

	return count ? packet->pull->pull(packet->pull, packet->by_reference, places, count) : -1;
}
