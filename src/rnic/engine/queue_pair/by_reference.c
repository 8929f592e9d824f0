/* Packets without their bytes (queue_pair/by_reference.h): made of a message that is long enough, and what they are to who takes them. */
#include "queue_pair/by_reference.h"

#include "queue_pair/byteorder.h"
#include "queue_pair/encap.h"
#include "queue_pair/message.h"
#include "queue_pair/packet.h"
#include "queue_pair/receive_queue.h"
#include "queue_pair/sge.h"

#define LEAST 2048u /* bytes, for which it pays */
#define PARTS_A_WINDOW 4u /* so that the next is on its way while one is read */

/* Where bytes that a key opens lie in this process. */
static uint64_t place_of(const struct memory_key *key, uint64_t va)
{
	return key->base + (va - key->start);
}

/* Where `size` bytes of a message from `offset` on lie, in `most` places at most; how many, or 0 where that is not plain
 * memory of this process in so few. */
static unsigned find_places(const struct engine_shared *port, const struct source *source, uint64_t offset, uint64_t size,
			    struct engine_range *places, unsigned most)
{
	unsigned count = 0;

	for (unsigned i = 0; size && i < source->count; i++) {
		const struct span *span = &source->spans[i];
		if (offset >= span->length) {
			offset -= span->length;
			continue;
		}
		if (count == most || !port->reach[span->key - port->keys].segment)
			return 0;
		uint64_t part = lesser(size, span->length - offset);
		places[count++] = (struct engine_range){ place_of(span->key, span->va + offset), part };
		size -= part;
		offset = 0;
	}
	return size ? 0 : count;
}

/* ------------------------------------------------------------------ who sends them */

uint64_t by_reference_chunk(const struct engine_qp *qp, const struct send_slot *slot, const struct source *source)
{
	const struct queue_pair *record = qp->record;
	uint64_t left = slot->packets - slot->sent, most = greater(1, record->window / PARTS_A_WINDOW), epoch;
	uint64_t parts = greater(1, left / most), psn = (slot->first_psn + slot->sent) & PSN_MASK;
	uint32_t operation = engine_request_opcode(entry_get(slot, SQE_OPCODE), !slot->sent, parts == 1);

	if (source->bytes || source->length - slot->sent * record->mtu < LEAST ||
	    !qp->lane->opens(qp->lane, qp, operation, psn, &epoch))
		return 0;
	return (left + parts - 1) / parts;
}

/* Put it into a burst of its own, as `count` packets; 0, or -1 where there is no room. */
static int put(struct engine_out *out, const struct engine_by_reference *bulk)
{
	out->open = 0;
	uint8_t *frame = engine_packet_begin(out, sizeof *bulk, 0, 0);
	if (!frame)
		return -1;
	memcpy(frame, bulk, sizeof *bulk);
	out->bursts[out->count++] = (struct engine_burst){
		.offset = out->used, .length = sizeof *bulk, .segment = 0, .count = bulk->packets, .route = out->route,
	};
	out->used += sizeof *bulk;
	out->carried += bulk->bytes; /* a turn costs what it moves */
	return 0;
}

uint64_t by_reference_make(const struct engine_shared *port, struct engine_qp *qp, struct send_slot *slot,
			  const struct source *source, uint64_t count, int ask, struct engine_out *out)
{
	struct queue_pair *record = qp->record;
	uint64_t index = slot->sent, offset = index * record->mtu, opcode = entry_get(slot, SQE_OPCODE);
	uint64_t psn = (slot->first_psn + index) & PSN_MASK;
	int last = index + count == slot->packets;
	struct engine_by_reference bulk = {
		.destination = (uint32_t)be_get(qp->qpc, QPC_REMOTE_QPN),
		.source = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN),
		.psn = (uint32_t)psn,
		.packets = (uint32_t)count,
		.operation = engine_request_opcode(opcode, !index, last),
		.bytes = lesser(count * record->mtu, source->length - offset),
		.va = entry_get(slot, SQE_REMOTE_ADDR),
		.rkey = (uint32_t)entry_get(slot, SQE_RKEY),
		.length = (uint32_t)source->length,
		.imm = (uint32_t)entry_get(slot, SQE_IMM),
	};

	bulk.count = find_places(port, source, offset, bulk.bytes, bulk.pieces, BY_REFERENCE_RANGES);
	if (!bulk.count || !qp->lane->opens(qp->lane, qp, bulk.operation, psn, &bulk.epoch))
		return 0;
	if (last || ask || (psn + count - 1) / record->ack_every != (psn - 1) / record->ack_every)
		bulk.flags = BY_REFERENCE_ACK_REQ;
	if (last && entry_get(slot, SQE_SOLICITED) && opcode != WR_WRITE)
		bulk.flags |= BY_REFERENCE_SOLICITED;
	if (put(out, &bulk))
		return 0;
	slot->sent += count;
	record->sent_psn = (psn + count) & PSN_MASK;
	return count;
}

uint64_t by_reference_respond(const struct engine_shared *port, struct engine_qp *qp, struct reply *reply,
			    const struct memory_key *key, uint64_t mtu, uint64_t count, struct engine_out *out)
{
	uint64_t offset = reply->sent * mtu, psn = (reply->psn + reply->sent) & PSN_MASK;
	int last = reply->sent + count == reply->packets;
	struct engine_by_reference bulk = {
		.destination = (uint32_t)be_get(qp->qpc, QPC_REMOTE_QPN),
		.source = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN),
		.psn = (uint32_t)psn,
		.packets = (uint32_t)count,
		.operation = engine_response_opcode(!reply->sent, last),
		.bytes = lesser(count * mtu, reply->total - offset),
		.count = 1,
	};

	/* what was asked for again has its bytes with it; the end of a window is told to nobody who reads by it */
	if (reply->again || key->window || !port->reach[key - port->keys].segment || bulk.bytes < LEAST ||
	    !qp->lane->opens(qp->lane, qp, bulk.operation, psn, &bulk.epoch))
		return 0;
	bulk.pieces[0] = (struct engine_range){ place_of(key, reply->va + offset), bulk.bytes };
	if (put(out, &bulk))
		return 0;
	reply->sent += count;
	return count;
}

/* ------------------------------------------------------------------ who takes them */

int by_reference_parse(const struct engine_by_reference *bulk, uint8_t *bytes, struct packet *packet)
{
	const struct opcode_row *row = &opcode_rows[bulk->operation & 0xFF];
	uint64_t total = 0, at = BTH_BYTES;

	if (bulk->operation > 0xFF || !(row->flags & (ROW_SEND | ROW_WRITE | ROW_READ_RESPONSE)) || row->flags & ROW_IETH ||
	    (bulk->operation & BTH_SERVICE_MASK) != SERVICE_RC)
		return -1;
	if (!bulk->packets || bulk->packets > PSN_WINDOW || bulk->psn > PSN_MASK || !bulk->count || bulk->count > BY_REFERENCE_RANGES)
		return -1;
	for (uint32_t i = 0; i < bulk->count; i++) {
		if (bulk->pieces[i].length > bulk->bytes)
			return -1;
		total += bulk->pieces[i].length;
	}
	if (total != bulk->bytes || !total)
		return -1;
	memset(bytes, 0, BY_REFERENCE_HEADER);
	if (row->flags & ROW_RETH) {
		be_store(bytes + at, 8, bulk->va);
		be_store(bytes + at + 8, 4, bulk->rkey);
		be_store(bytes + at + 12, 4, bulk->length);
		at += 16;
	}
	if (row->flags & ROW_IMMDT)
		be_store(bytes + at, 4, bulk->imm);
	*packet = (struct packet){
		.bytes = bytes,
		.row = row,
		.opcode = (uint8_t)bulk->operation,
		.psn = bulk->psn,
		.ask = (bulk->flags & BY_REFERENCE_ACK_REQ) != 0,
		.solicited = (bulk->flags & BY_REFERENCE_SOLICITED) != 0,
		.payload = bytes + row->header_bytes,
		.size = bulk->bytes,
		.more = bulk->packets - 1,
		.bulk = bulk,
	};
	return 0;
}

int by_reference_execute(const struct engine_shared *port, const struct engine_qp *qp, const struct packet *packet,
		      const struct receive *receive, const struct memory_key *key, uint64_t at)
{
	struct engine_range places[QP_SCATTERS];
	uint64_t left = packet->size;
	unsigned count = 0;

	if (!receive) {
		if (!key || !port->reach[key - port->keys].segment)
			return -1;
		places[count++] = (struct engine_range){ place_of(key, at), left };
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
		key = engine_scatter_key(port, qp, &one, at, part, &va);
		if (!key || !port->reach[key - port->keys].segment)
			return -1;
		places[count++] = (struct engine_range){ place_of(key, va), part };
		left -= part;
		at = 0;
	}
	return left ? -1 : packet->pull->pull(packet->pull, packet->bulk, places, count);
}

int by_reference_read_response(const struct engine_shared *port, const struct packet *packet, const struct source *source,
		      uint64_t offset)
{
	struct engine_range places[QP_SCATTERS];
	unsigned count = find_places(port, source, offset, packet->size, places, QP_SCATTERS);

	return count ? packet->pull->pull(packet->pull, packet->bulk, places, count) : -1;
}
