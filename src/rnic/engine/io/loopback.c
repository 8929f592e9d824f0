#define _GNU_SOURCE
#include "io/loopback.h"

#include "queue_pair/arithmetic.h"

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
	struct rx_buffer slot;
	struct sheet *sheet; /* where its bytes are, else NULL */
};

/* Parcels go round: `taken` of them, that their receiver may still look at, and then `waiting`, from `first` on. The bytes
 * of those without a sheet lie in the same order from the oldest's to `end`, which may be in front of it. With nothing left
 * all begins anew: as long as the receiver keeps up, the same bytes are used again while they are in the near cache. */
struct loopback {
	pthread_mutex_t lock;
	uint8_t *bytes;
	uint64_t room, end, lost;
	uint32_t first, taken, waiting;
	uint32_t latest; /* the sheet that came free last, if none has been used since */
	int closed;
	uint32_t callers; /* who have been told of a sleeper, and are not done with it */
	struct loopback_sleeper sleeper;
	_Atomic int sleeps; /* somebody does, whom nobody has been told of */
	struct sheet sheets[LOOPBACK_BUFFERS];
	struct parcel parcels[LOOPBACK_BURSTS];
};

struct loopback *loopback_make(uint8_t *bytes, uint64_t room)
{
	struct loopback *wire = calloc(1, sizeof(*wire));
	if (wire) {
		pthread_mutex_init(&wire->lock, NULL);
		wire->bytes = bytes;
		wire->room = room;
	}
	return wire;
}

void loopback_free(struct loopback *wire)
{
	if (!wire)
		return;
	for (unsigned i = 0; i < LOOPBACK_BUFFERS; i++)
		free(wire->sheets[i].bytes);
	pthread_mutex_destroy(&wire->lock);
	free(wire);
}

void loopback_close(struct loopback *wire)
{
	pthread_mutex_lock(&wire->lock);
	wire->closed = 1;
	wire->waiting = 0;
	pthread_mutex_unlock(&wire->lock);
}

static struct parcel *parcel(struct loopback *wire, uint32_t number)
{
	return &wire->parcels[number % LOOPBACK_BURSTS];
}

/* The oldest parcel in the wire's own memory, NULL for none. */
static const struct parcel *oldest_laid(struct loopback *wire)
{
	for (uint32_t i = 0; i < wire->taken + wire->waiting; i++) {
		const struct parcel *seen = parcel(wire, wire->first - wire->taken + i);
		if (!seen->sheet)
			return seen;
	}
	return NULL;
}

/* Where `size` bytes may lie, NULL for nowhere. The end never meets the oldest from behind: that would look like nothing. */
static uint8_t *place(struct loopback *wire, uint64_t size)
{
	if (wire->taken + wire->waiting == LOOPBACK_BURSTS)
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
static void queue(struct loopback *wire, const struct rx_buffer *what, uint8_t *bytes, struct sheet *sheet)
{
	struct parcel *made = parcel(wire, wire->first + wire->waiting++);
	made->slot = *what;
	made->slot.buffer = bytes;
	made->sheet = sheet;
}

int loopback_put(struct loopback *wire, const struct rx_buffer *what)
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
		wire->lost += ceil_div(what->size, what->segment);
	}
	pthread_mutex_unlock(&wire->lock);
	return error;
}

/* A sheet that nobody looks at, the one used last if it may be, else one more; NULL for none. */
static struct sheet *empty(struct loopback *wire, size_t size)
{
	struct sheet *found = NULL;
	if (wire->room < LOOPBACK_BUFFER_MIN_ROOM)
		return NULL;
	for (unsigned i = 0; i < LOOPBACK_BUFFERS; i++) {
		struct sheet *sheet = &wire->sheets[(wire->latest + i) % LOOPBACK_BUFFERS];
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

uint8_t *loopback_trade(struct loopback *wire, const struct rx_buffer *bursts, unsigned count, uint8_t *sheet, size_t size)
{
	uint8_t *other = NULL;
	pthread_mutex_lock(&wire->lock);
	struct sheet *found = NULL;
	if (!wire->closed && wire->taken + wire->waiting + count <= LOOPBACK_BURSTS)
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
static void let_go(struct loopback *wire)
{
	for (; wire->taken; wire->taken--) {
		struct sheet *sheet = parcel(wire, wire->first - wire->taken)->sheet;
		if (sheet && !--sheet->parcels)
			wire->latest = (uint32_t)(sheet - wire->sheets);
	}
}

unsigned loopback_take(struct loopback *wire, struct rx_buffer *slots, unsigned count)
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

int loopback_listen(struct loopback *wire, const struct loopback_sleeper *sleeper)
{
	pthread_mutex_lock(&wire->lock);
	int quiet = !wire->waiting;
	wire->sleeper = *sleeper;
	atomic_store_explicit(&wire->sleeps, quiet, memory_order_relaxed);
	pthread_mutex_unlock(&wire->lock);
	return quiet;
}

void loopback_unlisten(struct loopback *wire)
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

void loopback_notify(struct loopback *wire)
{
	const uint64_t once = 1;
	/* who fell asleep behind what was put found it there, under the lock, and did not sleep */
	if (!atomic_load_explicit(&wire->sleeps, memory_order_relaxed))
		return;
	pthread_mutex_lock(&wire->lock);
	struct loopback_sleeper sleeper = wire->sleeper;
	int sleeps = atomic_exchange_explicit(&wire->sleeps, 0, memory_order_relaxed);
	wire->callers += (uint32_t)sleeps;
	pthread_mutex_unlock(&wire->lock);
	if (!sleeps)
		return;
	if (sleeper.run_inline && sleeper.run_inline(sleeper.self))
		sleeper.bell = -1;
	if (sleeper.bell >= 0 && write(sleeper.bell, &once, sizeof(once)) < 0)
		sleeper.bell = -1; /* it rings already */
	pthread_mutex_lock(&wire->lock);
	wire->callers--;
	pthread_mutex_unlock(&wire->lock);
}

uint64_t loopback_lost(struct loopback *wire)
{
	pthread_mutex_lock(&wire->lock);
	uint64_t lost = wire->lost;
	wire->lost = 0;
	pthread_mutex_unlock(&wire->lock);
	return lost;
}
