#define _GNU_SOURCE
#include "division.h"
#include "wire.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Parcels go round: `taken` of them, that their receiver may still look at, and then `waiting`, from `first` on. Their bytes
 * lie in the same order from `at` of the oldest to `end`, which may be in front of it. With nothing left all begins anew:
 * as long as the receiver keeps up, the same bytes are used again while they are in the near cache. */
struct pump_wire {
	pthread_mutex_t lock;
	uint8_t *bytes;
	uint64_t room, end, lost;
	uint32_t first, taken, waiting;
	int closed;
	struct pump_slot parcels[WIRE_PARCELS];
};

struct pump_wire *pump_wire_make(uint8_t *bytes, uint64_t room)
{
	struct pump_wire *wire = calloc(1, sizeof(*wire));
	if (wire) {
		pthread_mutex_init(&wire->lock, NULL);
		wire->bytes = bytes;
		wire->room = room;
	}
	return wire;
}

void pump_wire_free(struct pump_wire *wire)
{
	if (wire)
		pthread_mutex_destroy(&wire->lock);
	free(wire);
}

void pump_wire_close(struct pump_wire *wire)
{
	pthread_mutex_lock(&wire->lock);
	wire->closed = 1;
	wire->waiting = 0;
	pthread_mutex_unlock(&wire->lock);
}

static struct pump_slot *parcel(struct pump_wire *wire, uint32_t number)
{
	return &wire->parcels[number % WIRE_PARCELS];
}

/* Where `size` bytes may lie, NULL for nowhere. The end never meets the oldest from behind: that would look like nothing. */
static uint8_t *place(struct pump_wire *wire, uint64_t size)
{
	if (!wire->taken && !wire->waiting) {
		wire->first = 0;
		wire->end = 0;
		return size <= wire->room ? wire->bytes : NULL;
	}
	if (wire->taken + wire->waiting == WIRE_PARCELS)
		return NULL;
	uint64_t oldest = (uint64_t)(parcel(wire, wire->first - wire->taken)->buffer - wire->bytes);
	if (wire->end > oldest) {
		if (wire->room - wire->end >= size)
			return wire->bytes + wire->end;
		return size < oldest ? wire->bytes : NULL;
	}
	return oldest - wire->end > size ? wire->bytes + wire->end : NULL;
}

int pump_wire_put(struct pump_wire *wire, const struct pump_slot *what)
{
	int error = 0;
	if (!what->size || !what->segment)
		return 0;
	pthread_mutex_lock(&wire->lock);
	uint8_t *to = wire->closed ? NULL : place(wire, what->size);
	if (to) {
		struct pump_slot *made = parcel(wire, wire->first + wire->waiting++);
		*made = *what;
		made->buffer = to;
		memcpy(to, what->buffer, what->size);
		wire->end = (uint64_t)(to - wire->bytes) + what->size;
	} else if (wire->closed) {
		error = EHOSTUNREACH;
	} else {
		wire->lost += parts_of(what->size, what->segment);
	}
	pthread_mutex_unlock(&wire->lock);
	return error;
}

unsigned pump_wire_take(struct pump_wire *wire, struct pump_slot *slots, unsigned count)
{
	pthread_mutex_lock(&wire->lock);
	if (count > wire->waiting)
		count = wire->waiting;
	for (uint32_t i = 0; i < count; i++)
		slots[i] = *parcel(wire, wire->first + i);
	wire->first += count;
	wire->waiting -= count;
	wire->taken = count;
	pthread_mutex_unlock(&wire->lock);
	return count;
}

uint64_t pump_wire_lost(struct pump_wire *wire)
{
	pthread_mutex_lock(&wire->lock);
	uint64_t lost = wire->lost;
	wire->lost = 0;
	pthread_mutex_unlock(&wire->lock);
	return lost;
}
