#define _GNU_SOURCE
#include "queue_pair/division.h"
#include "io/loopback.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sheet {
	uint8_t *bytes; /* NULL for none */
	uint32_t parcels; /* in it, that are not done with; 0: it may be traded away */
};

struct parcel {
	struct pump_slot slot;
	struct sheet *sheet; /* where its bytes are, else NULL */
};

/* Parcels go round: `taken` of them, that their receiver may still look at, and then `waiting`, from `first` on. The bytes
 * of those without a sheet lie in the same order from the oldest's to `end`, which may be in front of it. With nothing left
 * all begins anew: as long as the receiver keeps up, the same bytes are used again while they are in the near cache. */
struct pump_wire {
	pthread_mutex_t lock;
	uint8_t *bytes;
	uint64_t room, end, lost;
	uint32_t first, taken, waiting;
	uint32_t latest; /* the sheet that came free last, if none has been used since */
	int closed;
	uint32_t callers; /* who have been told of a sleeper, and are not done with it */
	struct wire_sleeper sleeper;
	_Atomic int sleeps; /* somebody does, whom nobody has been told of */
	struct sheet sheets[WIRE_SHEETS];
	struct parcel parcels[WIRE_PARCELS];
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
	if (!wire)
		return;
	for (unsigned i = 0; i < WIRE_SHEETS; i++)
		free(wire->sheets[i].bytes);
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

static struct parcel *parcel(struct pump_wire *wire, uint32_t number)
{
	return &wire->parcels[number % WIRE_PARCELS];
}

/* The oldest parcel in the wire's own memory, NULL for none. */
static const struct parcel *oldest_laid(struct pump_wire *wire)
{
	for (uint32_t i = 0; i < wire->taken + wire->waiting; i++) {
		const struct parcel *seen = parcel(wire, wire->first - wire->taken + i);
		if (!seen->sheet)
			return seen;
	}
	return NULL;
}

/* Where `size` bytes may lie, NULL for nowhere. The end never meets the oldest from behind: that would look like nothing. */
static uint8_t *place(struct pump_wire *wire, uint64_t size)
{
	if (wire->taken + wire->waiting == WIRE_PARCELS)
		return NULL;
	const struct parcel *laid = oldest_laid(wire);
	if (!laid) {
		wire->end = 0;
		return size <= wire->room ? wire->bytes : NULL;
	}
	uint64_t oldest = (uint64_t)(laid->slot.buffer - wire->bytes);
	if (wire->end > oldest) {
		if (wire->room - wire->end >= size)
			return wire->bytes + wire->end;
		return size < oldest ? wire->bytes : NULL;
	}
	return oldest - wire->end > size ? wire->bytes + wire->end : NULL;
}

/* One more waits. */
static void queue(struct pump_wire *wire, const struct pump_slot *what, uint8_t *bytes, struct sheet *sheet)
{
	struct parcel *made = parcel(wire, wire->first + wire->waiting++);
	made->slot = *what;
	made->slot.buffer = bytes;
	made->sheet = sheet;
}

int pump_wire_put(struct pump_wire *wire, const struct pump_slot *what)
{
	int error = 0;
	if (!what->size || !what->segment)
		return 0;
	pthread_mutex_lock(&wire->lock);
	uint8_t *to = wire->closed ? NULL : place(wire, what->size);
	if (to) {
		memcpy(to, what->buffer, what->size);
		queue(wire, what, to, NULL);
		wire->end = (uint64_t)(to - wire->bytes) + what->size;
	} else if (wire->closed) {
		error = EHOSTUNREACH;
	} else {
		wire->lost += parts_of(what->size, what->segment);
	}
	pthread_mutex_unlock(&wire->lock);
	return error;
}

/* A sheet that nobody looks at, the one used last if it may be, else one more; NULL for none. */
static struct sheet *empty(struct pump_wire *wire, size_t size)
{
	struct sheet *found = NULL;
	if (wire->room < WIRE_SHEET_ROOM)
		return NULL;
	for (unsigned i = 0; i < WIRE_SHEETS; i++) {
		struct sheet *sheet = &wire->sheets[(wire->latest + i) % WIRE_SHEETS];
		if (sheet->parcels)
			continue;
		if (sheet->bytes)
			return sheet;
		found = found ? found : sheet;
	}
	if (found)
		found->bytes = malloc(size);
	return found && found->bytes ? found : NULL;
}

uint8_t *pump_wire_trade(struct pump_wire *wire, const struct pump_slot *bursts, unsigned count, uint8_t *sheet, size_t size)
{
	uint8_t *other = NULL;
	pthread_mutex_lock(&wire->lock);
	struct sheet *found = NULL;
	if (!wire->closed && wire->taken + wire->waiting + count <= WIRE_PARCELS)
		found = empty(wire, size);
	if (found) {
		other = found->bytes;
		found->bytes = sheet;
		found->parcels = count;
		for (unsigned i = 0; i < count; i++)
			queue(wire, &bursts[i], bursts[i].buffer, found);
	}
	pthread_mutex_unlock(&wire->lock);
	return other;
}

/* What the receiver took last it has looked at by now. */
static void let_go(struct pump_wire *wire)
{
	for (; wire->taken; wire->taken--) {
		struct sheet *sheet = parcel(wire, wire->first - wire->taken)->sheet;
		if (sheet && !--sheet->parcels)
			wire->latest = (uint32_t)(sheet - wire->sheets);
	}
}

unsigned pump_wire_take(struct pump_wire *wire, struct pump_slot *slots, unsigned count)
{
	pthread_mutex_lock(&wire->lock);
	let_go(wire);
	if (count > wire->waiting)
		count = wire->waiting;
	for (uint32_t i = 0; i < count; i++)
		slots[i] = parcel(wire, wire->first + i)->slot;
	wire->first += count;
	wire->waiting -= count;
	wire->taken = count;
	pthread_mutex_unlock(&wire->lock);
	return count;
}

int pump_wire_listen(struct pump_wire *wire, const struct wire_sleeper *sleeper)
{
	pthread_mutex_lock(&wire->lock);
	int quiet = !wire->waiting;
	wire->sleeper = *sleeper;
	atomic_store_explicit(&wire->sleeps, quiet, memory_order_relaxed);
	pthread_mutex_unlock(&wire->lock);
	return quiet;
}

void pump_wire_leave(struct pump_wire *wire)
{
	pthread_mutex_lock(&wire->lock);
	while (wire->callers) {
		pthread_mutex_unlock(&wire->lock);
		sched_yield();
		pthread_mutex_lock(&wire->lock);
	}
	atomic_store_explicit(&wire->sleeps, 0, memory_order_relaxed);
	pthread_mutex_unlock(&wire->lock);
}

void pump_wire_call(struct pump_wire *wire)
{
	const uint64_t once = 1;
	/* who fell asleep behind what was put found it there, under the lock, and did not sleep */
	if (!atomic_load_explicit(&wire->sleeps, memory_order_relaxed))
		return;
	pthread_mutex_lock(&wire->lock);
	struct wire_sleeper sleeper = wire->sleeper;
	int sleeps = atomic_exchange_explicit(&wire->sleeps, 0, memory_order_relaxed);
	wire->callers += (uint32_t)sleeps;
	pthread_mutex_unlock(&wire->lock);
	if (!sleeps)
		return;
	if (sleeper.stand_in && sleeper.stand_in(sleeper.self))
		sleeper.bell = -1;
	if (sleeper.bell >= 0 && write(sleeper.bell, &once, sizeof(once)) < 0)
		sleeper.bell = -1; /* it rings already */
	pthread_mutex_lock(&wire->lock);
	wire->callers--;
	pthread_mutex_unlock(&wire->lock);
}

uint64_t pump_wire_lost(struct pump_wire *wire)
{
	pthread_mutex_lock(&wire->lock);
	uint64_t lost = wire->lost;
	wire->lost = 0;
	pthread_mutex_unlock(&wire->lock);
	return lost;
}
