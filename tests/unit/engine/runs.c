/* Middles that are made in one go against the same made one by one: every byte, burst by burst, with what has to make a burst end
 * between them. Prints how many packets were made in one go of all, and what is different. */
#include "parts.h"

#include "crc32.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROOM = 1 << 20, MESSAGE = 400000 };

static uint8_t message[MESSAGE], bytes[2][ROOM];
static struct engine_out outs[2];
static struct engine_heads heads[ENGINE_HEADS];

static const struct engine_flow flow = { { 10, 0, 0, 1 }, { 10, 0, 0, 2 }, 49152, 4791, 4 };
static const struct engine_flow flow6 = { { 0xFD, [15] = 1 }, { 0xFD, [15] = 2 }, 50000, 4791, 16 };

int engine_ahead_filled(struct engine_ahead *ahead, const uint8_t *to, uint64_t va, uint64_t size)
{
	(void)ahead, (void)to, (void)va, (void)size;
	return 0;
}

static int no_memory(void *self, uint64_t va, size_t length, engine_work work, void *with)
{
	(void)self, (void)va, (void)length, (void)work, (void)with;
	return -1;
}

static void one_by_one(const struct engine_port *port, const struct engine_flow *way, uint64_t psn, uint64_t ack_every,
		       const struct origin *from, uint64_t mtu, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++, psn = (psn + 1) & PSN_MASK) {
		uint8_t *frame = engine_frame_begin(&outs[0], BTH_BYTES, mtu, 1);
		struct origin origin = { .bytes = from->bytes + i * mtu };
		be_store(frame, 8, 0x0740FFFF00000012u);
		be_store(frame + 8, 4, psn | (ack_every && psn % ack_every == 0 ? ACK_REQ : 0));
		engine_frame_fill(&outs[0], port, way, frame, BTH_BYTES, &origin, mtu);
	}
}

static uint64_t in_one_go(const struct engine_port *port, const struct engine_flow *way, uint64_t psn, uint64_t ack_every,
			  const struct origin *from, uint64_t mtu, uint64_t count)
{
	uint64_t done = 0, together = 0;

	while (done < count) {
		struct origin origin = { .bytes = from->bytes + done * mtu };
		uint64_t made = engine_frames_run(&outs[1], port, way, 0x0740FFFF00000012u, (psn + done) & PSN_MASK, ack_every,
						  &origin, mtu, count - done);
		together += made;
		if (!made) { /* the last of a run, or of a burst */
			uint8_t *frame = engine_frame_begin(&outs[1], BTH_BYTES, mtu, 1);
			uint64_t here = (psn + done) & PSN_MASK;
			be_store(frame, 8, 0x0740FFFF00000012u);
			be_store(frame + 8, 4, here | (ack_every && here % ack_every == 0 ? ACK_REQ : 0));
			engine_frame_fill(&outs[1], port, way, frame, BTH_BYTES, &origin, mtu);
			made = 1;
		}
		done += made;
	}
	return together;
}

int main(void)
{
	static const uint64_t mtus[] = { 256, 1024, 4096 }, segments[] = { 1, 2, 15, 64 };
	struct engine_port port = { .crc = engine_crc32, .crc_copy = engine_crc32_copy };
	uint64_t together = 0, all = 0;

	for (size_t i = 0; i < sizeof message; i++)
		message[i] = (uint8_t)(i * 193 >> 3);
	for (unsigned kept = 0; kept < 2; kept++) {
		port.heads = kept ? heads : NULL;
		for (unsigned i = 0; i < 3 * 4 * 8; i++) {
			const struct engine_flow *way = i & 1 ? &flow6 : &flow;
			uint64_t mtu = mtus[i % 3], first = i % 5, count = 1 + i * 7 % 80, psn = PSN_MASK - i % 50;
			const struct origin from = { .bytes = message };
			for (unsigned k = 0; k < 2; k++) {
				outs[k] = (struct engine_out){ .bytes = bytes[k], .room = ROOM, .max_segments = segments[i / 3 % 4] };
				memset(bytes[k], 0, ROOM);
			}
			/* some of a burst that is open already, then the rest, of another message */
			one_by_one(&port, way, psn, 16, &from, mtu, first);
			in_one_go(&port, way, psn, 16, &from, mtu, first);
			one_by_one(&port, way, psn + first, i % 2 ? 16 : 0, &from, mtu, count);
			together += in_one_go(&port, way, (psn + first) & PSN_MASK, i % 2 ? 16 : 0, &from, mtu, count);
			all += count;
			if (memcmp(bytes[0], bytes[1], ROOM) || outs[0].count != outs[1].count || outs[0].used != outs[1].used ||
			    memcmp(outs[0].bursts, outs[1].bursts, outs[0].count * sizeof *outs[0].bursts))
				printf("different: %u\n", i);
		}
	}
	/* memory that is not in reach, or not there any more, leaves nothing behind */
	static const struct engine_memory gone = { .within = no_memory };
	static const struct engine_segment segment = { &gone, NULL };
	const struct origin nowhere = { .segment = &segment }, unknown = { 0 };
	outs[1] = (struct engine_out){ .bytes = bytes[1], .room = ROOM, .max_segments = 15 };
	uint64_t made = engine_frames_run(&outs[1], &port, &flow, 0, 0, 0, &nowhere, 1024, 9);
	made += engine_frames_run(&outs[1], &port, &flow, 0, 0, 0, &unknown, 1024, 9);
	printf("%u of %u, %u %u %u\n", (unsigned)together, (unsigned)all, (unsigned)made, outs[1].count, (unsigned)outs[1].used);
	return 0;
}
