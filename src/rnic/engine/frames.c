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
	if (length > out->room - out->used)
		return NULL;
	if (out->open) {
		const struct engine_burst *burst = &out->bursts[out->count - 1];
		int fits = run ? length == burst->segment : length <= burst->segment;
		if (!fits || burst->count >= out->max_segments || burst->length + length > MAX_BURST_BYTES)
			out->open = 0;
	}
	if (!out->open && out->count == ENGINE_BURSTS)
		return NULL;
	return out->bytes + out->used;
}

void engine_frame_end(struct engine_out *out, const struct engine_port *port, const struct engine_flow *flow, uint8_t *frame,
	       uint64_t header, uint64_t payload)
{
	uint64_t covered = header + padded(payload), length = covered + ICRC_BYTES;
	struct engine_burst *burst;
	if (out->open) {
		burst = &out->bursts[out->count - 1];
	} else {
		burst = &out->bursts[out->count++];
		burst->offset = out->used;
		burst->route = out->route;
		burst->length = 0;
		burst->segment = (uint32_t)length;
		burst->count = 0;
		out->open = 1;
	}
	if (!port->bare) {
		memset(frame + header + payload, 0, covered - header - payload);
		uint32_t crc = engine_icrc_begin(port->crc, flow, length, burst->count, DONT_FRAGMENT, frame);
		crc = port->crc(crc, frame + 8, covered - 8);
		for (unsigned i = 0; i < ICRC_BYTES; i++)
			frame[covered + i] = (uint8_t)(crc >> 8 * i);
	}
	burst->count++;
	burst->length += length;
	out->used += length;
	if (length < burst->segment)
		out->open = 0;
}
