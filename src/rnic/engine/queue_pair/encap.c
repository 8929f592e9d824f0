/* Packets into bursts of equal segments, sealed: transport's FrameBatch. A shorter packet may close a burst, since
 * UDP_SEGMENT lets the last segment be short. The ICRC of a packet depends on its place in the burst, which is its IPv4
 * ident once something segments it. */
#include "queue_pair/encap.h"

#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/icrc.h"
#include "queue_pair/message.h"

#define MAX_BURST_BYTES 65000u
#define ONE_PASS_LEAST 256u /* of fewer bytes header and payload are covered in one go, once they are there */

static uint64_t padded(uint64_t size)
{
	return (size + 3) & ~(uint64_t)3;
}

uint8_t engine_request_opcode(uint64_t opcode, int first, int last)
{
	int imm = last && has_immediate(opcode);
	if (is_write(opcode)) {
		if (first)
			return last ? (imm ? BTH_WRITE_ONLY_IMM : BTH_WRITE_ONLY) : BTH_WRITE_FIRST;
		return last ? (imm ? BTH_WRITE_LAST_IMM : BTH_WRITE_LAST) : BTH_WRITE_MIDDLE;
	}
	if (first)
		return last ? (imm ? BTH_SEND_ONLY_IMM : BTH_SEND_ONLY) : BTH_SEND_FIRST;
	return last ? (imm ? BTH_SEND_LAST_IMM : BTH_SEND_LAST) : BTH_SEND_MIDDLE;
}

uint8_t engine_response_opcode(int first, int last)
{
	if (first)
		return last ? BTH_READ_RESPONSE_ONLY : BTH_READ_RESPONSE_FIRST;
	return last ? BTH_READ_RESPONSE_LAST : BTH_READ_RESPONSE_MIDDLE;
}

void engine_packets_flush(struct engine_out *out)
{
	out->open = 0;
}

uint8_t *engine_packet_begin(struct engine_out *out, uint64_t header, uint64_t payload, int run)
{
	uint64_t length = header + padded(payload) + ICRC_BYTES;
	if (out->open) {
		const struct engine_burst *burst = &out->bursts[out->count - 1];
		int fits = run ? length == burst->segment : length <= burst->segment;
		if (!fits || burst->count >= out->max_segments || burst->length + length > MAX_BURST_BYTES)
			out->open = 0;
	}
	if (!out->open && out->carry && out->used >= ENGINE_CARRY)
		out->carry(out);
	if ((!out->open && out->count == ENGINE_BURSTS) || length > out->room - out->used)
		return NULL;
	return out->bytes + out->used;
}

uint64_t engine_packet_bytes(uint64_t header, uint64_t payload)
{
	return header + padded(payload) + ICRC_BYTES;
}

uint64_t engine_packets_contiguous(const struct engine_out *out, uint64_t length)
{
	const struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];
	uint64_t packets = out->open ? burst->count : 0, bytes = out->open ? burst->length : 0;
	return lesser(lesser(out->max_segments - lesser(packets, out->max_segments),
			     div64(MAX_BURST_BYTES - lesser(bytes, MAX_BURST_BYTES), length)),
		      div64(out->room - out->used, length));
}

void engine_packets_read_ahead(const struct engine_shared *port, const struct engine_out *out, uint8_t *frame,
			       uint64_t header, const struct memory_key *key, uint64_t va, uint64_t size,
			       uint64_t count)
{
	uint64_t length = engine_packet_bytes(header, size);
	engine_key_read_ahead(port, key, va, frame + header, size, length,
			      lesser(count, engine_packets_contiguous(out, length)));
}

void engine_packet_seal(struct engine_out *out, const struct engine_shared *port, const struct engine_flow *flow, uint8_t *frame,
	       uint64_t header, uint64_t payload)
{
	const struct origin there = { 0 };
	engine_packet_fill(out, port, flow, frame, header, &there, payload);
}

/* 0, or -1 where it cannot be read. */
static int bring(const struct origin *from, uint8_t *to, uint64_t size)
{
	if (from->segment)
		return from->segment->memory->read(from->segment->self, from->va, to, size);
	if (from->bytes)
		memcpy(to, from->bytes, size);
	return 0;
}

/* A payload on its way into its packet, and the ICRC so far. */
struct copying {
	const struct engine_shared *port;
	uint8_t *to;
	uint64_t size;
	uint32_t crc;
};

static void copy(void *with, uint8_t *bytes)
{
	struct copying *copying = with;
	copying->crc = copying->port->crc_copy(copying->crc, copying->to, bytes, copying->size);
}

/* Bring the payload, pad it, and put the ICRC behind, in one pass where that saves one; 0, or -1 where it cannot be read. */
static int seal(const struct engine_shared *port, const struct engine_flow *flow, uint8_t *frame, uint64_t header,
		const struct origin *from, uint64_t payload, uint32_t ident)
{
	uint64_t covered = header + padded(payload);
	uint64_t length = covered + ICRC_BYTES;
	struct copying copying = { port, frame + header, payload, 0 };
	uint32_t crc;

	memset(frame + header + payload, 0, covered - header - payload);
	int once = payload >= ONE_PASS_LEAST && port->crc_copy && engine_origin_known(from);
	if (once) {
		copying.crc = engine_icrc(port, flow, frame, length, ident, DONT_FRAGMENT, header);
		once = !engine_origin_within(from, payload, copy, &copying);
	}
	if (once) {
		crc = port->crc(copying.crc, frame + header + payload, covered - header - payload);
	} else {
		if (bring(from, frame + header, payload))
			return -1;
		crc = engine_icrc(port, flow, frame, length, ident, DONT_FRAGMENT, covered);
	}
	le_store(frame + covered, ICRC_BYTES, crc);
	return 0;
}

/* Packets of `length` bytes that are made join the burst, or begin one. */
static void join(struct engine_out *out, uint64_t length, uint64_t count)
{
	struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];

	if (!out->open) {
		out->count++;
		*burst = (struct engine_burst){ .offset = out->used, .segment = (uint32_t)length, .route = out->route };
		out->open = 1;
	}
	burst->count += (uint32_t)count;
	burst->length += count * length;
	out->used += count * length;
	if (length < burst->segment)
		out->open = 0;
}

int engine_packet_fill(struct engine_out *out, const struct engine_shared *port, const struct engine_flow *flow, uint8_t *frame,
	      uint64_t header, const struct origin *from, uint64_t payload)
{
	uint64_t covered = header + padded(payload), length = covered + ICRC_BYTES;
	const struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];
	if (!port->bare && seal(port, flow, frame, header, from, payload, out->open ? burst->count : 0))
		return -1;
	join(out, length, 1);
	return 0;
}

/* Packets of a run: where the first goes, and what each has. */
struct making {
	const struct engine_shared *port;
	const struct engine_flow *flow;
	uint8_t *frame;
	uint64_t length, mtu, count, head, psn, ack_every;
	uint32_t ident;
};

static void make(void *with, uint8_t *bytes)
{
	const struct making *making = with;
	uint64_t psn = making->psn;
	uint8_t *frame = making->frame;

	be_store(frame, 8, making->head); /* what they have in common */
	const struct engine_alike icrc = engine_icrc_alike(making->port, making->flow, frame, making->length, DONT_FRAGMENT);
	for (uint64_t i = 0; i < making->count; i++) {
		int asks = making->ack_every && mod64(psn, making->ack_every) == 0;
		be_store(frame, 8, making->head);
		be_store(frame + 8, 4, psn | (asks ? BTH_ACK_REQ : 0));
		uint32_t crc = engine_icrc_of_alike(&icrc, frame, making->ident + (uint32_t)i);
		crc = making->port->crc_copy(crc, frame + BTH_BYTES, bytes, making->mtu);
		le_store(frame + BTH_BYTES + making->mtu, ICRC_BYTES, crc);
		psn = (psn + 1) & PSN_MASK;
		bytes += making->mtu;
		frame += making->length;
	}
}

uint64_t engine_packets_run(struct engine_out *out, const struct engine_shared *port, const struct engine_flow *flow, uint64_t head,
			   uint64_t psn, uint64_t ack_every, const struct origin *from, uint64_t mtu, uint64_t count)
{
	struct making making = { port, flow, NULL, engine_packet_bytes(BTH_BYTES, mtu), mtu, 0, head, psn, ack_every, 0 };

	if (port->bare || !port->crc_copy || !engine_origin_known(from) || mtu < ONE_PASS_LEAST || mtu & 3)
		return 0;
	making.frame = engine_packet_begin(out, BTH_BYTES, mtu, 1);
	if (!making.frame)
		return 0;
	making.count = lesser(count, engine_packets_contiguous(out, making.length));
	const struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];
	making.ident = out->open ? burst->count : 0;
	if (making.count < 2 || engine_origin_within(from, making.count * mtu, make, &making))
		return 0;
	join(out, making.length, making.count);
	return making.count;
}
