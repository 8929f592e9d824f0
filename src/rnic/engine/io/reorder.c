#include "io/reorder.h"

#include "queue_pair/arithmetic.h"
#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/psn.h"

#include <stdlib.h>
#include <string.h>

static struct reorder_packet *place_of(struct reorder_buffer *kept, uint64_t psn)
{
	return &kept->packets[psn & (REORDER_PACKETS - 1)];
}

static int is(const struct reorder_packet *packet, const struct engine_expects *expects, uint64_t psn)
{
	return packet->qp == expects->qp && packet->generation == expects->generation && packet->psn == psn;
}

static struct reorder_buffer *make(void)
{
	struct reorder_buffer *kept = calloc(1, sizeof(*kept));
	for (unsigned i = 0; kept && i < REORDER_SLOTS; i++)
		kept->rooms[i] = (uint16_t)i;
	return kept;
}

/* Who was there last goes first: its room is near. */
static void forget(struct reorder_buffer *kept, struct reorder_packet *packet)
{
	packet->qp = 0;
	kept->rooms[--kept->count] = (uint16_t)packet->room;
}

int reorder_has_packets(struct reorder_buffer *kept, uint64_t now)
{
	if (!kept || !kept->count)
		return 0;
	for (unsigned i = 0; now - kept->latest >= REORDER_NS && i < REORDER_PACKETS; i++)
		if (kept->packets[i].qp)
			forget(kept, &kept->packets[i]);
	return kept->count != 0;
}

/* What is kept of the PSN that a queue pair expects or, with `far`, of one behind it, the first; NULL for nothing. */
static struct reorder_packet *next_of(struct reorder_buffer *kept, const struct engine_expects *expects, int far, uint64_t now)
{
	for (uint64_t i = 0; i < (far ? REORDER_PACKETS : 1); i++) {
		uint64_t psn = (expects->psn + i) & PSN_MASK;
		struct reorder_packet *packet = place_of(kept, psn);
		if (is(packet, expects, psn) && now - packet->since < REORDER_NS)
			return packet;
	}
	return NULL;
}

void reorder_hold(struct reorder_buffer **kept, const struct engine_device *device, const uint8_t *buffer, size_t length,
	       size_t segment, size_t start, const struct engine_meta *meta, uint64_t now)
{
	struct engine_expects expects;

	if (!*kept && !(*kept = make()))
		return;
	for (size_t at = start; at < length; at += segment) {
		const uint8_t *bytes = buffer + at;
		size_t size = lesser(length - at, segment);
		if (size < BTH_BYTES + ICRC_BYTES || size > REORDER_PACKET_BYTES || opcode_rows[bytes[0]].flags & ROW_RESPONSE ||
		    engine_device_expects(device, be_load(bytes + DQPN_AT, 3), &expects))
			continue;
		uint64_t psn = be_load(bytes + PSN_AT, 3);
		int64_t ahead = psn_diff(psn, expects.psn);
		struct reorder_packet *packet = place_of(*kept, psn);
		if (ahead <= 0 || ahead >= (int64_t)REORDER_PACKETS ||
		    (is(packet, &expects, psn) && now - packet->since < REORDER_NS))
			continue;
		if (packet->qp)
			forget(*kept, packet);
		if ((*kept)->count == REORDER_SLOTS)
			return;
		*packet = (struct reorder_packet){ .qp = expects.qp, .generation = expects.generation, .since = now, .psn = (uint32_t)psn,
						.length = (uint32_t)size, .room = (*kept)->rooms[(*kept)->count++],
						.meta = *meta };
		(*kept)->latest = now;
		packet->meta.ident = IDENT_CHECKED;
		memcpy((*kept)->bytes[packet->room], bytes, size);
	}
}

int reorder_release(struct reorder_buffer *kept, struct engine_device *device, uint64_t number, uint64_t now, struct engine_stop_info *told)
{
	struct engine_expects expects;
	int fed = 0;

	*told = (struct engine_stop_info){ .stop = STOP_DONE };
	while (kept->count && !engine_device_expects(device, number, &expects)) {
		struct reorder_packet *packet = next_of(kept, &expects, fed && !expects.nak_sent, now);
		int early = packet && packet->psn != expects.psn;
		if (!packet)
			break;
		size_t taken = engine_device_receive(device, kept->bytes[packet->room], packet->length, packet->length, 0,
						   &packet->meta, now, told);
		if (told->stop == STOP_FIND)
			return 0;
		device->counts.rx_packets -= taken != 0; /* it was counted when it came */
		if (early && taken) {
			device->counts.events[COUNT_PSN_GAP]--;
			break;
		}
		forget(kept, packet);
		fed = 1;
		if (!taken)
			break;
		if (told->stop != STOP_DONE)
			return 0;
	}
	*told = (struct engine_stop_info){ .stop = STOP_DONE };
	return 1;
}
