/* What came beyond a gap, kept until the gap is filled, and then given to the engine as if it came just now, of queue pairs
 * whose ends agreed on that.
 *
 * The queue pair itself knows nothing of it: it has passed over such a packet and has said so (IBA 9.7.5.2), and takes it in
 * its turn as from a network that reorders. Its peer sends the missing packet alone (transport/send_queue.py mend). What is
 * kept may be forgotten at any time: it is then asked for again. */
#ifndef RNIC_ENGINE_REORDER_H
#define RNIC_ENGINE_REORDER_H

#include "device/device.h"

#define REORDER_LOG_PACKETS 9u /* of one device, each at the place that its PSN says */
#define REORDER_PACKETS (1u << REORDER_LOG_PACKETS)
#define REORDER_SLOTS 256u /* what there is room for */
#define REORDER_PACKET_BYTES 4160u /* the longest packet */
#define REORDER_NS 100000000u /* for so long: what is older may be of another connection */

struct reorder_packet {
	uint64_t qp, generation; /* whose it is, 0 for nobody */
	uint64_t since; /* when it came */
	uint32_t psn, length, room; /* where its bytes are */
	struct engine_meta meta;
};

struct reorder_buffer {
	uint32_t count; /* packets, in the first rooms of `rooms`; the others are free */
	uint64_t latest; /* when the last of them came */
	uint16_t rooms[REORDER_SLOTS];
	struct reorder_packet packets[REORDER_PACKETS];
	uint8_t bytes[REORDER_SLOTS][REORDER_PACKET_BYTES];
};

/* Whether anything is kept; once nothing has come for as long as it may be, all is forgotten. */
int reorder_has_packets(struct reorder_buffer *kept, uint64_t now);

/* Keep those of the packets in a buffer that are beyond the gap of a queue pair; the engine has found them right. Makes
 * `*kept` where it is NULL and there is memory for it. */
void reorder_hold(struct reorder_buffer **kept, const struct engine_device *device, const uint8_t *buffer, size_t length,
	       size_t segment, size_t start, const struct engine_meta *meta, uint64_t now);

/* Give a queue pair what was kept for it, as far as it goes on with what it expects, and where that ends before the next gap
 * have it name that; whether that was all. It stops as engine_stop_info says, and is called again; what the engine does not know
 * is forgotten, so that it comes again. */
int reorder_release(struct reorder_buffer *kept, struct engine_device *device, uint64_t number, uint64_t now, struct engine_stop_info *told);

#endif
