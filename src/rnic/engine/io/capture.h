/* Capture of the packets on a program's socket and rings, for the NIC process (state/capture_ring.py). */
#ifndef RNIC_ENGINE_CAPTURE_H
#define RNIC_ENGINE_CAPTURE_H

#include "io/udp.h"
#include "state.h"

#include <stdatomic.h>

struct capture {
	struct capture_ring *ring;
	uint8_t *records;
	uint64_t head; /* this end's position, never read back */
	uint64_t gave_up_at; /* tail of the ring when a wait ended without room, plus one; 0 for never */
	const uint8_t *address; /* the device's */
	uint32_t address_bytes;
	const uint16_t *source_ports; /* source ports of the device */
	uint32_t source_port_count;
};

/* Initialize with memory of CAPTURE_ALL bytes. */
void capture_init(struct capture *capture, uint8_t *memory, const uint8_t *address, uint32_t address_bytes,
		  const uint16_t *source_ports, uint32_t source_port_count);
/* Return whether capture is on. */
static inline int capture_records(const struct capture *capture)
{
	return capture && atomic_load_explicit((const _Atomic uint64_t *)(const void *)&capture->ring->records,
					       memory_order_relaxed);
}
/* Record a burst sent on a path. */
void capture_sent(struct capture *capture, const struct tx_path *path, const uint8_t *bytes, size_t length,
		  uint32_t segment);
/* Record a received burst, unless this device sent it and it is recorded already. */
void capture_received(struct capture *capture, const struct rx_buffer *rx);

#endif
