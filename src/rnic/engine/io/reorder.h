/* The reorder buffer of selective repeat: it holds packets beyond a gap until the gap is filled, and then passes them
 * to the engine as if just received. It serves queue pairs whose two ends have agreed on this.
 *
 * The queue pair is unaware of it: it drops such a packet, sends a NAK (IBA 9.7.5.2), and accepts the packet later as
 * if the network had reordered it. Its peer retransmits only the missing packet (transport/send_queue.py, resend_one).
 * Packets may be dropped from the buffer at any time, since the queue pair requests them again. */
#ifndef RNIC_ENGINE_REORDER_H
#define RNIC_ENGINE_REORDER_H

#include "device/device.h"

#define REORDER_LOG_PACKETS 9u /* entries of a device, indexed by PSN */
#define REORDER_PACKETS (1u << REORDER_LOG_PACKETS)
#define REORDER_BUFFERS 256u /* packets that fit in memory */
#define REORDER_PACKET_BYTES 4160u /* the longest packet */
#define REORDER_NS 100000000u /* longest time to hold a packet: an older one may belong to another connection */

struct reorder_packet {
	uint64_t qp, generation; /* owner of the packet; 0 if the entry is free */
	uint64_t received_ns;
	uint32_t psn, length, index; /* `index` of `bytes` */
	struct engine_meta meta;
};

struct reorder_buffer {
	uint32_t count; /* packets held: they use the first entries of `free_indices`, and the others are free */
	uint64_t latest_ns; /* time at which the last packet was added */
	uint16_t free_indices[REORDER_BUFFERS];
	struct reorder_packet packets[REORDER_PACKETS];
	uint8_t bytes[REORDER_BUFFERS][REORDER_PACKET_BYTES];
};

/* Return whether packets are held. If none was added for REORDER_NS, drop all. */
int reorder_has_packets(struct reorder_buffer *reorder, uint64_t now);

/* Hold the packets of a buffer that are beyond a queue pair's gap; the engine has checked them. Allocates `*reorder` if
 * it is NULL. */
void reorder_hold(struct reorder_buffer **reorder, const struct engine_device *device, const uint8_t *buffer,
		  size_t length, size_t segment, size_t start, const struct engine_meta *meta, uint64_t now);

/* Take packets as engine_device_receive does; hold those beyond a gap, and set `*releasing_qp` to the record of the
 * queue pair, for which reorder_resume is to be called next. Returns the bytes taken. */
size_t reorder_receive(struct reorder_buffer **reorder, uint64_t *releasing_qp, struct engine_device *device,
		       const uint8_t *buffer, size_t length, size_t segment, size_t start,
		       const struct engine_meta *meta, uint64_t now, struct engine_stop_info *info);

/* Call reorder_release for the queue pair with this record, and set it to 0 once that was all; nothing to do for 0.
 * Returns whether that was all. */
int reorder_resume(struct reorder_buffer *reorder, uint64_t *releasing_qp, struct engine_device *device, uint64_t now,
		   struct engine_stop_info *info);

/* Pass a queue pair the held packets that it expects next. At another gap, make it send a NAK. Returns whether that was
 * all; otherwise handle the stop in engine_stop_info and call it again. A packet that the engine punts is dropped, to
 * be retransmitted. */
int reorder_release(struct reorder_buffer *reorder, struct engine_device *device, uint64_t number, uint64_t now,
		    struct engine_stop_info *info);

#endif
