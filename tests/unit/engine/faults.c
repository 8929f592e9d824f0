/* What tests/unit/engine/test_faults.py calls: lanes of their own, and what passes them as a list of parts. */
#define _GNU_SOURCE
#include "io/faults.h"
#include "queue_pair/crc32.h"

#include <stdlib.h>
#include <string.h>

struct lanes {
	struct faults faults;
	struct engine_shared shared;
	uint8_t *out;
};

struct part {
	uint32_t length, segment, first, tclass; /* `first`: the place of its first packet */
};

static void put(struct lanes *lanes, struct part part, const uint8_t *bytes)
{
	memcpy(lanes->out, &part, sizeof part);
	memcpy(lanes->out + sizeof part, bytes, part.length);
	lanes->out += sizeof part + part.length;
}

static void on_send(void *self, struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
		    uint32_t count)
{
	(void)count;
	put(self, (struct part){ (uint32_t)length, segment, 0, (uint32_t)path->tclass }, bytes);
}

struct lanes *lanes_new(const uint8_t *table, uint8_t *counts, const uint8_t *address, uint32_t bytes, uint16_t port)
{
	struct lanes *lanes = calloc(1, sizeof *lanes);
	lanes->shared.crc = engine_crc32;
	faults_init(&lanes->faults, table, counts);
	memcpy(lanes->faults.address, address, bytes);
	lanes->faults.address_bytes = bytes;
	lanes->faults.port = port;
	lanes->faults.shared = &lanes->shared;
	lanes->faults.send = on_send;
	lanes->faults.self = lanes;
	return lanes;
}

void lanes_free(struct lanes *lanes)
{
	faults_free(&lanes->faults);
	free(lanes);
}

uint64_t lanes_transmit(struct lanes *lanes, const uint8_t *name, uint32_t name_bytes, uint8_t *bytes, uint64_t length,
			uint32_t segment, int32_t tclass, uint64_t now, uint8_t *out)
{
	struct tx_path path = { .name_bytes = name_bytes, .tclass = tclass, .source_port = lanes->faults.port };
	memcpy(path.name, name, name_bytes);
	lanes->out = out;
	faults_release(&lanes->faults, now);
	faults_transmit(&lanes->faults, &path, bytes, length, segment, now);
	return (uint64_t)(lanes->out - out);
}

static void take_runs(struct lanes *lanes, const struct rx_buffer *rx)
{
	static uint8_t memory[1 << 17];
	struct rx_buffer spare = { .buffer = memory, .room = sizeof memory };
	struct fault_run run;

	while (faults_next_run(&lanes->faults, &spare, &run)) {
		const struct rx_buffer *from = run.packet ? &spare : rx;
		put(lanes, (struct part){ run.end - run.at, from->segment, run.at / from->segment, run.tclass },
		    from->buffer + run.at);
	}
}

uint64_t lanes_receive(struct lanes *lanes, const uint8_t *name, uint32_t name_bytes, uint8_t *bytes, uint64_t length,
		       uint32_t segment, uint32_t tclass, uint64_t now, uint8_t *out)
{
	struct rx_buffer rx = { .buffer = bytes,
				.room = length,
				.size = length,
				.segment = segment,
				.tclass = (uint8_t)tclass,
				.name_bytes = name_bytes };
	memcpy(rx.name, name, name_bytes);
	lanes->out = out;
	if (faults_release(&lanes->faults, now))
		take_runs(lanes, NULL);
	if (length) {
		faults_receive(&lanes->faults, &rx, now);
		take_runs(lanes, &rx);
	}
	return (uint64_t)(lanes->out - out);
}

uint64_t lanes_deadline(const struct lanes *lanes)
{
	return faults_deadline(&lanes->faults);
}
