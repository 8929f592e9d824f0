/* Parse a packet, and check its queue pair and ICRC (004 7.3, RX packet process). */
#include "queue_pair/packet.h"

#include "memory/memory_key.h"
#include "queue_pair/arithmetic.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/icrc.h"

#define TVER_BITS 0x0Fu
#define PAD_COUNT_SHIFT 4
#define SOLICITED_BIT 0x80u
#define ACK_REQ_BIT 0x80u

/* Parse a packet from its own bytes only; ENGINE_DONE, or a punt. */
static enum engine_end parse_headers(struct packet *packet, const uint8_t *bytes, uint64_t length)
{
	if (length < BTH_BYTES + ICRC_BYTES || length > MAX_UDP_PAYLOAD || length & 3)
		return PUNT_SHORT;
	const struct opcode_row *row = &opcode_rows[bytes[0]];
	uint64_t pad = bytes[1] >> PAD_COUNT_SHIFT & 3;
	if (!row->header_bytes || bytes[1] & TVER_BITS)
		return PUNT_HEADER;
	if (length < row->header_bytes + ICRC_BYTES + pad)
		return PUNT_HEADER;
	packet->bytes = bytes;
	packet->length = length;
	packet->more = 0;
	packet->by_reference = NULL;
	packet->row = row;
	packet->opcode = bytes[0];
	packet->psn = be_load(bytes + PSN_AT, 3);
	packet->ask = (bytes[ACK_REQ_AT] & ACK_REQ_BIT) != 0;
	packet->solicited = (bytes[1] & SOLICITED_BIT) != 0;
	packet->payload = bytes + row->header_bytes;
	packet->size = length - row->header_bytes - ICRC_BYTES - pad;
	if (!(row->flags & ROW_PAYLOAD) && (packet->size || pad))
		return PUNT_HEADER;
	return ENGINE_DONE;
}

uint64_t engine_service_bits(const struct engine_qp *qp)
{
	switch (be_get(qp->qpc, QPC_SERVTYPE)) {
	case ST_RC:
		return SERVICE_RC;
	case ST_UC:
		return SERVICE_UC;
	case ST_UD:
		return SERVICE_UD;
	default:
		return NONE;
	}
}

enum engine_end engine_packet_parse(const struct engine_qp *qp, const struct engine_meta *meta, const uint8_t *buffer,
				    size_t length, size_t segment, size_t at, struct packet *packet)
{
	uint64_t place = at ? div64(at, segment) : 0;
	enum engine_end end = parse_headers(packet, buffer + at, lesser(length - at, segment));

	if (end != ENGINE_DONE)
		return end;
	if (be_load(buffer + at + DQPN_AT, 3) != be_get(qp->qpc, QPC_LOCAL_QPN) ||
	    be_load(buffer + at + PKEY_AT, 2) != (qp->record->head >> 32 & 0xFFFF) ||
	    (packet->opcode & BTH_SERVICE_MASK) != engine_service_bits(qp))
		return PUNT_HEADER;
	packet->meta = meta;
	if (meta->ident != IDENT_UNSEEN) {
		packet->ident = (uint32_t)(meta->ident + place) & 0xFFFF;
		return ENGINE_DONE;
	}
	packet->ident = place < MAX_IDENTS ? (uint32_t)place : 0;
	return (packet->ident ^ meta->known_bits) & meta->known_mask ? PUNT_ICRC : ENGINE_DONE;
}

int engine_packet_check_icrc(const struct engine_shared *shared, const struct packet *packet)
{
	const struct engine_meta *meta = packet->meta;
	if (shared->bare || packet->by_reference || meta->ident == IDENT_CHECKED ||
	    engine_prefetch_stored(shared, packet->bytes))
		return 1;
	uint32_t frag = meta->ident == IDENT_UNSEEN ? DONT_FRAGMENT : meta->frag;
	return engine_icrc_check(shared, &meta->flow, packet->bytes, packet->length, packet->ident, frag);
}
