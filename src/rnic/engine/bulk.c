/* Packets without their bytes (bulk.h): made of a message that is long enough, and what they are to who takes them. */
#include "parts.h"

#define LEAST 2048u /* bytes, for which it pays */

/* Where bytes that a key opens lie in this process. */
static uint64_t place_of(const struct memory_key *key, uint64_t va)
{
	return key->base + (va - key->start);
}

/* ------------------------------------------------------------------ who sends them */

/* Where a part of a message lies; 0, or -1 where that is not plain memory of this process in few enough pieces. */
static int find_pieces(const struct engine_port *port, const struct source *source, uint64_t offset, struct engine_bulk *bulk)
{
	uint64_t left = bulk->bytes;

	for (unsigned i = 0; left && i < source->count; i++) {
		const struct span *span = &source->spans[i];
		if (offset >= span->length) {
			offset -= span->length;
			continue;
		}
		if (bulk->count == BULK_PIECES || !port->reach[span->key - port->keys].segment)
			return -1;
		uint64_t part = lesser(left, span->length - offset);
		bulk->pieces[bulk->count].va = place_of(span->key, span->va + offset);
		bulk->pieces[bulk->count++].length = part;
		left -= part;
		offset = 0;
	}
	return left ? -1 : 0;
}

uint64_t engine_bulk_make(const struct engine_port *port, struct engine_qp *qp, struct send_slot *slot,
			  const struct source *source, uint64_t count, int ask, struct engine_out *out)
{
	struct queue_pair *record = qp->record;
	uint64_t index = slot->sent, offset = index * record->mtu, opcode = entry_get(slot, SQE_OPCODE);
	uint64_t psn = (slot->first_psn + index) & PSN_MASK;
	int last = index + count == slot->packets;
	struct engine_bulk bulk = { .bytes = lesser(count * record->mtu, source->length - offset) };

	if (source->bytes || bulk.bytes < LEAST || find_pieces(port, source, offset, &bulk) ||
	    !qp->lane->opens(qp->lane, qp, psn, &bulk.epoch))
		return 0;
	out->open = 0; /* it is a burst of its own */
	uint8_t *frame = engine_frame_begin(out, sizeof bulk, 0, 0);
	if (!frame)
		return 0;
	bulk.destination = (uint32_t)be_get(qp->qpc, QPC_REMOTE_QPN);
	bulk.source = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN);
	bulk.psn = (uint32_t)psn;
	bulk.packets = (uint32_t)count;
	bulk.operation = engine_operation(opcode, !index, last);
	bulk.flags = last || ask || (psn + count - 1) / record->ack_every != (psn - 1) / record->ack_every ? BULK_ASKS : 0;
	if (last && entry_get(slot, SQE_SOLICITED) && opcode != WR_WRITE)
		bulk.flags |= BULK_SOLICITED;
	bulk.va = entry_get(slot, SQE_REMOTE_ADDR);
	bulk.rkey = (uint32_t)entry_get(slot, SQE_RKEY);
	bulk.length = (uint32_t)source->length;
	bulk.imm = (uint32_t)entry_get(slot, SQE_IMM);
	memcpy(frame, &bulk, sizeof bulk);
	out->bursts[out->count++] = (struct engine_burst){
		.offset = out->used, .length = sizeof bulk, .segment = 0, .count = (uint32_t)count, .route = out->route,
	};
	out->used += sizeof bulk;
	out->carried += bulk.bytes; /* a turn costs what it moves */
	slot->sent += count;
	record->sent_psn = (psn + count) & PSN_MASK;
	return count;
}

/* ------------------------------------------------------------------ who takes them */

int engine_bulk_read(const struct engine_bulk *bulk, uint8_t *bytes, struct packet *packet)
{
	const struct opcode_row *row = &opcode_rows[bulk->operation & 0xFF];
	uint64_t total = 0, at = BTH_BYTES;

	if (bulk->operation > 0xFF || !(row->flags & (ROW_SEND | ROW_WRITE)) || row->flags & ROW_IETH ||
	    (bulk->operation & BTH_SERVICE_MASK) != SERVICE_RC)
		return -1;
	if (!bulk->packets || bulk->packets > PSN_WINDOW || bulk->psn > PSN_MASK || !bulk->count || bulk->count > BULK_PIECES)
		return -1;
	for (uint32_t i = 0; i < bulk->count; i++) {
		if (bulk->pieces[i].length > bulk->bytes)
			return -1;
		total += bulk->pieces[i].length;
	}
	if (total != bulk->bytes || !total)
		return -1;
	memset(bytes, 0, BULK_HEADER);
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
		.ask = (bulk->flags & BULK_ASKS) != 0,
		.solicited = (bulk->flags & BULK_SOLICITED) != 0,
		.payload = bytes + row->header_bytes,
		.size = bulk->bytes,
		.more = bulk->packets - 1,
		.bulk = bulk,
	};
	return 0;
}

int engine_bulk_store(const struct engine_port *port, const struct engine_qp *qp, const struct packet *packet,
		      const struct receive *receive, const struct memory_key *key, uint64_t at)
{
	struct engine_place places[QP_SCATTERS];
	uint64_t left = packet->size;
	unsigned count = 0;

	if (!receive) {
		if (!key || !port->reach[key - port->keys].segment)
			return -1;
		places[count++] = (struct engine_place){ place_of(key, at), left };
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
		places[count++] = (struct engine_place){ place_of(key, va), part };
		left -= part;
		at = 0;
	}
	return left ? -1 : packet->pull->pull(packet->pull, packet->bulk, places, count);
}
