/* What tests/unit/engine/test_capture.py calls: a program's end of the recorder's ring. */
#define _GNU_SOURCE
#include "io/capture.h"

#include <stdlib.h>
#include <string.h>

struct capture *capture_new(uint8_t *memory, const uint8_t *address, uint16_t port)
{
	struct capture *capture = calloc(1, sizeof *capture);
	uint16_t *ports = calloc(1, sizeof *ports);

	*ports = port;
	capture_init(capture, memory, address, 4, ports, 1);
	return capture;
}

void record_sent(struct capture *capture, const uint8_t *name, uint32_t name_bytes, const uint8_t *bytes,
		 uint64_t length, uint32_t segment, int32_t tclass)
{
	struct tx_path path = {
		.name_bytes = name_bytes, .tclass = tclass, .hop_limit = 64, .source_port = capture->source_ports[0]
	};

	memcpy(path.name, name, name_bytes);
	capture_sent(capture, &path, bytes, length, segment);
}

void record_received(struct capture *capture, const uint8_t *name, uint32_t name_bytes, uint8_t *bytes, uint64_t length,
		     uint32_t segment, uint32_t tclass)
{
	struct rx_buffer rx = { .buffer = bytes,
				.size = length,
				.segment = segment,
				.name_bytes = name_bytes,
				.tclass = (uint8_t)tclass,
				.hop_limit = 64 };

	memcpy(rx.name, name, name_bytes);
	capture_received(capture, &rx);
}
