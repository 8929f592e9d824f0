/* Packets into bursts of equal segments, sealed: transport's FrameBatch. A shorter packet may close a burst, since
 * UDP_SEGMENT lets the last segment be short. The ICRC of a packet depends on its place in the burst, which is its IPv4
 * ident once something segments it. */
#include "parts.h"

#define MAX_BURST_BYTES 65000u

static uint64_t padded(uint64_t size)
{
	return (size + 3) & ~(uint64_t)3;
}

void engine_frames_flush(struct engine_out *out)
{
	out->open = 0;
}

uint8_t *engine_frame_begin(struct engine_out *out, uint64_t header, uint64_t payload, int run)
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

uint64_t engine_frame_bytes(uint64_t header, uint64_t payload)
{
	return header + padded(payload) + ICRC_BYTES;
}

uint64_t engine_frames_ahead(const struct engine_out *out, uint64_t length)
{
	const struct engine_burst *burst = &out->bursts[out->count - (out->open != 0)];
	uint64_t packets = out->open ? burst->count : 0, bytes = out->open ? burst->length : 0;
	return lesser(lesser(out->max_segments - lesser(packets, out->max_segments),
			     (MAX_BURST_BYTES - lesser(bytes, MAX_BURST_BYTES)) / length),
		      (out->room - out->used) / length);
}

void engine_frame_end(struct engine_out *out, const struct engine_port *port, const struct engine_flow *flow, uint8_t *frame,
	       uint64_t header, uint64_t payload)
{
	engine_frame_fill(out, port, flow, frame, header, NULL, payload);
}

/* Bring the payload, pad it, and put the ICRC behind, all in one pass. */
static void seal(const struct engine_port *port, const struct engine_flow *flow, uint8_t *frame, uint64_t header,
		 const uint8_t *from, uint64_t payload, uint32_t ident)
{
	uint64_t covered = header + padded(payload);
	uint64_t length = covered + ICRC_BYTES;
	uint32_t crc;
	memset(frame + header + payload, 0, covered - header - payload);
	if (from && port->crc_copy) {
		crc = engine_icrc(port, flow, frame, length, ident, DONT_FRAGMENT, header);
		crc = port->crc_copy(crc, frame + header, from, payload);
		crc = port->crc(crc, frame + header + payload, covered - header - payload);
	} else {
		if (from)
			memcpy(frame + header, from, payload);
		crc = engine_icrc(port, flow, frame, length, ident, DONT_FRAGMENT, covered);
	}
	for (unsigned i = 0; i < ICRC_BYTES; i++)
		frame[covered + i] = (uint8_t)(crc >> 8 * i);
}

void engine_frame_fill(struct engine_out *out, const struct engine_port *port, const struct engine_flow *flow, uint8_t *frame,
	       uint64_t header, const uint8_t *from, uint64_t payload)
{
	uint64_t covered = header + padded(payload), length = covered + ICRC_BYTES;
	struct engine_burst *burst;
	if (out->open) {
		burst = &out->bursts[out->count - 1];
	} else {
		burst = &out->bursts[out->count++];
		burst->offset = out->used;
		burst->length = 0;
		burst->segment = (uint32_t)length;
		burst->count = 0;
		burst->route = out->route;
		out->open = 1;
	}
	if (!port->bare)
		seal(port, flow, frame, header, from, payload, burst->count);
	burst->count++;
	burst->length += length;
	out->used += length;
	if (length < burst->segment)
		out->open = 0;
}
