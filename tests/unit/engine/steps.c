/* The engine built with -DENGINE_TRACE_STEPS, for test_steps.py: one queue pair, on the bytes of a script. A call returns the
 * names of the steps that it took, and a "!" if it left the packet to the reference. */
#include "engine.h"
#include "queue_pair/crc32.h"
#include "queue_pair/step.h"

#include <stdlib.h>
#include <string.h>

/* Addresses and numbers, as test_steps.py lists them. */
struct place {
	uint64_t arena, qpc, record, sends, pieces, replies, resources, scatters, entries;
	uint64_t keys, key_count, key_index, data, sq, sq_bytes, rq, rq_bytes, block;
	uint64_t cq_record, cq_ring, cq_entries, cq_block;
};

static char steps[4096];
static uint8_t sent[1 << 20];

void engine_trace_step(const char *name)
{
	strcat(steps, name);
	strcat(steps, " ");
}

static uint8_t *at(const struct place *place, uint64_t offset)
{
	return (uint8_t *)(uintptr_t)place->arena + offset;
}

static const char *run(const struct place *place, const uint8_t *packet, size_t length, uint64_t now)
{
	struct engine_mapping *reach = calloc(place->key_count, sizeof *reach);
	struct engine_shared shared = {
		.keys = (const void *)at(place, place->keys),
		.reach = reach,
		.key_count = place->key_count,
		.crc = engine_crc32,
		.crc_copy = engine_crc32_copy,
		.ack_every = 64,
		.probe = 1,
	};
	struct engine_cq cq = {
		.record = (void *)(uintptr_t)place->cq_record,
		.ring = (void *)(uintptr_t)place->cq_ring,
		.entries = place->cq_entries,
		.block = (void *)(uintptr_t)place->cq_block,
	};
	struct engine_qp qp = {
		.qpc = (void *)(uintptr_t)place->qpc,
		.record = (void *)at(place, place->record),
		.sends = (void *)at(place, place->sends),
		.pieces = (void *)at(place, place->pieces),
		.replies = (void *)at(place, place->replies),
		.resources = (void *)at(place, place->resources),
		.scatters = (void *)at(place, place->scatters),
		.send_wqes = place->entries,
		.sq = (void *)(uintptr_t)place->sq,
		.sq_bytes = place->sq_bytes,
		.rq = (void *)(uintptr_t)place->rq,
		.rq_bytes = place->rq_bytes,
		.block = (void *)(uintptr_t)place->block,
		.send_cq = &cq,
		.recv_cq = &cq,
		.flow.address_bytes = 4,
	};
	struct engine_inflight flight = { .peer_limit = 1 << 16, .nic_limit = 1 << 16 };
	struct engine_meta meta = { .flow.address_bytes = 4, .ident = IDENT_CHECKED };
	struct engine_effects effects = { 0 };
	struct engine_out *out = calloc(1, sizeof *out);

	*out = (struct engine_out){ .bytes = sent, .room = sizeof sent, .max_segments = 1 };
	reach[place->key_index].bytes = (void *)(uintptr_t)place->data;
	*steps = 0;
	if (packet)
		engine_receive(&shared, &qp, packet, length, length, 0, &meta, &flight, now, &effects);
	else
		engine_send(&shared, &qp, now, 256, &flight, out, &effects);
	if (effects.end > ENGINE_ATTENTION)
		strcat(steps, "!");
	free(out);
	free(reach);
	return steps;
}

const char *steps_receive(const struct place *place, const uint8_t *packet, size_t length, uint64_t now)
{
	return run(place, packet, length, now);
}

const char *steps_send(const struct place *place, uint64_t now)
{
	return run(place, NULL, 0, now);
}
