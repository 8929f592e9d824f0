/* Build packets in bursts of equal segments and seal them, like the transport's FrameBatch. A shorter packet may close
 * a burst, since UDP_SEGMENT allows a short last segment. The ICRC of a packet depends on its index in the burst, which
 * is its IPv4 ident after segmentation. */
#include "queue_pair/encap.h"

#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/icrc.h"
#include "queue_pair/message.h"

#define MAX_BURST_BYTES 65000u
#define ONE_PASS_LEAST 256u /* shorter payloads are copied first, then included in one CRC with their header */

static uint64_t padded_size(uint64_t size)
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
	uint64_t length = header + padded_size(payload) + ICRC_BYTES;
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
	return header + padded_size(payload) + ICRC_BYTES;
}

uint64_t engine_packets_contiguous(const struct engine_out *out, uint64_t length)
{
	const struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];
	uint64_t packets = out->open ? burst->count : 0, bytes = out->open ? burst->length : 0;
	return lesser(lesser(out->max_segments - lesser(packets, out->max_segments),
			     div64(MAX_BURST_BYTES - lesser(bytes, MAX_BURST_BYTES), length)),
		      div64(out->room - out->used, length));
}

void engine_packets_read_ahead(const struct engine_shared *shared, const struct engine_out *out, uint8_t *frame,
			       uint64_t header, const struct memory_key *key, uint64_t va, uint64_t size,
			       uint64_t count)
{
	uint64_t length = engine_packet_bytes(header, size);
	engine_key_read_ahead(shared, key, va, frame + header, size, length,
			      lesser(count, engine_packets_contiguous(out, length)));
}

void engine_packet_seal(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
			uint8_t *frame, uint64_t header, uint64_t payload)
{
	const struct origin there = { 0 };
	engine_packet_fill(out, shared, flow, frame, header, &there, payload);
}

/* Copy a payload to its packet; 0, or -1 if it cannot be read. */
static int read_payload(const struct origin *from, uint8_t *to, uint64_t size)
{
	if (from->segment)
		return from->segment->memory->read(from->segment->self, from->va, to, size);
	if (from->bytes)
		memcpy(to, from->bytes, size);
	return 0;
}

/* State of copying a payload into its packet: the ICRC so far. */
struct copying {
	const struct engine_shared *shared;
	uint8_t *to;
	uint64_t size;
	uint32_t crc;
};

static void copy_payload(void *with, uint8_t *bytes)
{
	struct copying *copying = with;
	copying->crc = copying->shared->crc_copy(copying->crc, copying->to, bytes, copying->size);
}

/* Copy the payload, pad it and append the ICRC, in one pass if possible; 0, or -1 if it cannot be read. */
static int seal_packet(const struct engine_shared *shared, const struct engine_flow *flow, uint8_t *frame,
		       uint64_t header, const struct origin *from, uint64_t payload, uint32_t ident)
{
	uint64_t covered = header + padded_size(payload);
	uint64_t length = covered + ICRC_BYTES;
	struct copying copying = { shared, frame + header, payload, 0 };
	uint32_t crc;

	memset(frame + header + payload, 0, covered - header - payload);
	int once = payload >= ONE_PASS_LEAST && shared->crc_copy && engine_origin_known(from);
	if (once) {
		copying.crc = engine_icrc(shared, flow, frame, length, ident, DONT_FRAGMENT, header);
		once = !engine_origin_within(from, payload, copy_payload, &copying);
	}
	if (once) {
		crc = shared->crc(copying.crc, frame + header + payload, covered - header - payload);
	} else {
		if (read_payload(from, frame + header, payload))
			return -1;
		crc = engine_icrc(shared, flow, frame, length, ident, DONT_FRAGMENT, covered);
	}
	le_store(frame + covered, ICRC_BYTES, crc);
	return 0;
}

/* Add `count` packets of `length` bytes to the open burst, or start one. */
static void join_burst(struct engine_out *out, uint64_t length, uint64_t count)
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

int engine_packet_fill(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
		       uint8_t *frame, uint64_t header, const struct origin *from, uint64_t payload)
{
	uint64_t covered = header + padded_size(payload), length = covered + ICRC_BYTES;
	const struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];
	if (!shared->bare && seal_packet(shared, flow, frame, header, from, payload, out->open ? burst->count : 0))
		return -1;
	join_burst(out, length, 1);
	return 0;
}

/* MIDDLE packets of a message, which differ only in their PSN: location of the first, and common fields. */
struct middles {
	const struct engine_shared *shared;
	const struct engine_flow *flow;
	uint8_t *frame;
	uint64_t length, mtu, count, head, psn, ack_every;
	uint32_t ident;
};

static void make_middles(void *with, uint8_t *bytes)
{
	const struct middles *middles = with;
	uint64_t psn = middles->psn;
	uint8_t *frame = middles->frame;

	be_store(frame, 8, middles->head); /* common part, for the ICRC */
	const struct engine_alike icrc =
		engine_icrc_alike(middles->shared, middles->flow, frame, middles->length, DONT_FRAGMENT);
	for (uint64_t i = 0; i < middles->count; i++) {
		int asks = middles->ack_every && mod64(psn, middles->ack_every) == 0;
		be_store(frame, 8, middles->head);
		be_store(frame + 8, 4, psn | (asks ? BTH_ACK_REQ : 0));
		uint32_t crc = engine_icrc_of_alike(&icrc, frame, middles->ident + (uint32_t)i);
		crc = middles->shared->crc_copy(crc, frame + BTH_BYTES, bytes, middles->mtu);
		le_store(frame + BTH_BYTES + middles->mtu, ICRC_BYTES, crc);
		psn = (psn + 1) & PSN_MASK;
		bytes += middles->mtu;
		frame += middles->length;
	}
}

uint64_t engine_packets_run(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
			    uint64_t head, uint64_t psn, uint64_t ack_every, const struct origin *from, uint64_t mtu,
			    uint64_t count)
{
	struct middles middles = { shared, flow,      NULL, engine_packet_bytes(BTH_BYTES, mtu), mtu, 0, head,
				   psn,	   ack_every, 0 };

	if (shared->bare || !shared->crc_copy || !engine_origin_known(from) || mtu < ONE_PASS_LEAST || mtu & 3)
		return 0;
	middles.frame = engine_packet_begin(out, BTH_BYTES, mtu, 1);
	if (!middles.frame)
		return 0;
	middles.count = lesser(count, engine_packets_contiguous(out, middles.length));
	const struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];
	middles.ident = out->open ? burst->count : 0;
	if (middles.count < 2 || engine_origin_within(from, middles.count * mtu, make_middles, &middles))
		return 0;
	join_burst(out, middles.length, middles.count);
	return middles.count;
}
