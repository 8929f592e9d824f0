#include "io/reorder.h"

#include "queue_pair/arithmetic.h"
#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/psn.h"

#include <stdlib.h>
#include <string.h>

static struct reorder_packet *packet_at(struct reorder_buffer *reorder, uint64_t psn)
{
	return &reorder->packets[psn & (REORDER_PACKETS - 1)];
}

static int is_packet(const struct reorder_packet *packet, const struct engine_expects *expects, uint64_t psn)
{
	return packet->qp == expects->qp && packet->generation == expects->generation && packet->psn == psn;
}

static struct reorder_buffer *new_buffer(void)
{
	struct reorder_buffer *reorder = calloc(1, sizeof(*reorder));
	for (unsigned i = 0; reorder && i < REORDER_BUFFERS; i++)
		reorder->free_indices[i] = (uint16_t)i;
	return reorder;
}

/* Drop a packet. Its buffer is used next, since it is hot in the cache. */
static void drop_packet(struct reorder_buffer *reorder, struct reorder_packet *packet)
{
	packet->qp = 0;
	reorder->free_indices[--reorder->count] = (uint16_t)packet->index;
}

int reorder_has_packets(struct reorder_buffer *reorder, uint64_t now)
{
	if (!reorder || !reorder->count)
		return 0;
	for (unsigned i = 0; now - reorder->latest_ns >= REORDER_NS && i < REORDER_PACKETS; i++)
		if (reorder->packets[i].qp)
			drop_packet(reorder, &reorder->packets[i]);
	return reorder->count != 0;
}

/* Find the packet that a queue pair expects or, with `far`, the first one held from there on; NULL for none. */
static struct reorder_packet *find_next(struct reorder_buffer *reorder, const struct engine_expects *expects, int far,
					uint64_t now)
{
	for (uint64_t i = 0; i < (far ? REORDER_PACKETS : 1); i++) {
		uint64_t psn = (expects->psn + i) & PSN_MASK;
		struct reorder_packet *packet = packet_at(reorder, psn);
		if (is_packet(packet, expects, psn) && now - packet->received_ns < REORDER_NS)
			return packet;
	}
	return NULL;
}

void reorder_hold(struct reorder_buffer **reorder, const struct engine_device *device, const uint8_t *buffer,
		  size_t length, size_t segment, size_t start, const struct engine_meta *meta, uint64_t now)
{
	struct engine_expects expects;

	if (!*reorder && !(*reorder = new_buffer()))
		return;
	for (size_t at = start; at < length; at += segment) {
		const uint8_t *bytes = buffer + at;
		size_t size = lesser(length - at, segment);
		if (size < BTH_BYTES + ICRC_BYTES || size > REORDER_PACKET_BYTES ||
		    opcode_rows[bytes[0]].flags & ROW_RESPONSE ||
		    engine_device_expects(device, be_load(bytes + DQPN_AT, 3), &expects))
			continue;
		uint64_t psn = be_load(bytes + PSN_AT, 3);
		int64_t distance = psn_diff(psn, expects.psn);
		struct reorder_packet *packet = packet_at(*reorder, psn);
		if (distance <= 0 || distance >= (int64_t)REORDER_PACKETS ||
		    (is_packet(packet, &expects, psn) && now - packet->received_ns < REORDER_NS))
			continue;
		if (packet->qp)
			drop_packet(*reorder, packet);
		if ((*reorder)->count == REORDER_BUFFERS)
			return;
		*packet = (struct reorder_packet){ .qp = expects.qp,
						   .generation = expects.generation,
						   .received_ns = now,
						   .psn = (uint32_t)psn,
						   .length = (uint32_t)size,
						   .index = (*reorder)->free_indices[(*reorder)->count++],
						   .meta = *meta };
		(*reorder)->latest_ns = now;
		packet->meta.ident = IDENT_CHECKED;
		memcpy((*reorder)->bytes[packet->index], bytes, size);
	}
}

int reorder_release(struct reorder_buffer *reorder, struct engine_device *device, uint64_t number, uint64_t now,
		    struct engine_stop_info *info)
{
	struct engine_expects expects;
	int released = 0;

	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	while (reorder->count && !engine_device_expects(device, number, &expects)) {
		struct reorder_packet *packet = find_next(reorder, &expects, released && !expects.nak_sent, now);
		int beyond_gap = packet && packet->psn != expects.psn;
		if (!packet)
			break;
		size_t taken = engine_device_receive(device, reorder->bytes[packet->index], packet->length,
						     packet->length, 0, &packet->meta, now, info);
		if (info->stop == STOP_MAP_QP)
			return 0;
		device->counts.rx_packets -= taken != 0; /* it was counted when it was received */
		if (beyond_gap && taken) {
			device->counts.events[COUNT_DROP_PSN_GAP]--;
			break;
		}
		drop_packet(reorder, packet);
		released = 1;
		if (!taken)
			break;
		if (info->stop != STOP_DONE)
			return 0;
	}
	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	return 1;
}

/* Return the number of packets received beyond a gap so far. */
static uint64_t count_early(const struct engine_device *device)
{
	return device->counts.events[COUNT_DROP_PSN_GAP] + device->counts.events[COUNT_DROP_NAKED];
}

size_t reorder_receive(struct reorder_buffer **reorder, uint64_t *releasing_qp, struct engine_device *device,
		       const uint8_t *buffer, size_t length, size_t segment, size_t start,
		       const struct engine_meta *meta, uint64_t now, struct engine_stop_info *info)
{
	uint64_t before = count_early(device);
	/* held packets precede the packets after the one that they wait for */
	if (length > start && reorder_has_packets(*reorder, now) && length - start > segment)
		length = start + segment;
	size_t taken = engine_device_receive(device, buffer, length, segment, start, meta, now, info);
	if (count_early(device) != before)
		reorder_hold(reorder, device, buffer, start + taken, segment, start, meta, now);
	if (*reorder && (*reorder)->count)
		*releasing_qp = info->qp;
	return taken;
}

int reorder_resume(struct reorder_buffer *reorder, uint64_t *releasing_qp, struct engine_device *device, uint64_t now,
		   struct engine_stop_info *info)
{
	const struct queue_pair *record =
		(const struct queue_pair *)(const void *)(device->sched.arena + *releasing_qp);
	if (*releasing_qp && !reorder_release(reorder, device, record->number, now, info))
		return 0;
	*releasing_qp = 0;
	return 1;
}
