#define _GNU_SOURCE
#include "io/loopback.h"

#include "queue_pair/arithmetic.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct trade_buffer {
	uint8_t *bytes; /* NULL: not allocated */
	uint32_t bursts; /* bursts in use; 0: it may be traded */
};

struct burst {
	struct rx_buffer rx;
	/* the buffer with its bytes; NULL: they are in the loopback's own memory */
	struct trade_buffer *trade_buffer;
};

/* A ring of bursts: `taken` ones that the receiver may still read, then `waiting` ones, from `first` on. The bytes of
 * copied bursts are in the same order in a byte ring, from the oldest one's to `end`, which may have wrapped. An empty
 * ring restarts at the beginning, so as long as the receiver keeps up, the same hot bytes are reused. */
struct loopback {
	pthread_mutex_t lock;
	uint8_t *bytes;
	uint64_t room, end, lost;
	uint32_t first, taken, waiting;
	uint32_t last_freed; /* index of the trade buffer that was freed last */
	int closed;
	uint32_t notifiers; /* threads that are calling a sleeper */
	struct loopback_sleeper sleeper;
	_Atomic int is_sleeping; /* a receiver sleeps, and no thread calls it yet */
	struct trade_buffer trade_buffers[LOOPBACK_BUFFERS];
	struct burst bursts[LOOPBACK_BURSTS];
};

struct loopback *loopback_make(uint8_t *bytes, uint64_t room)
{
	struct loopback *loopback = calloc(1, sizeof(*loopback));
	if (loopback) {
		pthread_mutex_init(&loopback->lock, NULL);
		loopback->bytes = bytes;
		loopback->room = room;
	}
	return loopback;
}

void loopback_free(struct loopback *loopback)
{
	if (!loopback)
		return;
	for (unsigned i = 0; i < LOOPBACK_BUFFERS; i++)
		free(loopback->trade_buffers[i].bytes);
	pthread_mutex_destroy(&loopback->lock);
	free(loopback);
}

void loopback_close(struct loopback *loopback)
{
	pthread_mutex_lock(&loopback->lock);
	loopback->closed = 1;
	loopback->waiting = 0;
	pthread_mutex_unlock(&loopback->lock);
}

static struct burst *burst_at(struct loopback *loopback, uint32_t number)
{
	return &loopback->bursts[number % LOOPBACK_BURSTS];
}

/* Return the oldest burst in the loopback's own memory, NULL for none. */
static const struct burst *oldest_copied(struct loopback *loopback)
{
	for (uint32_t i = 0; i < loopback->taken + loopback->waiting; i++) {
		const struct burst *burst = burst_at(loopback, loopback->first - loopback->taken + i);
		if (!burst->trade_buffer)
			return burst;
	}
	return NULL;
}

/* Return where `size` bytes may be copied to, NULL for nowhere. The end never reaches the oldest byte: the ring would
 * look empty. */
static uint8_t *find_room(struct loopback *loopback, uint64_t size)
{
	if (loopback->taken + loopback->waiting == LOOPBACK_BURSTS)
		return NULL;
	const struct burst *copied = oldest_copied(loopback);
	if (!copied) {
		loopback->end = 0;
		return size <= loopback->room ? loopback->bytes : NULL;
	}
	uint64_t oldest = (uint64_t)(copied->rx.buffer - loopback->bytes);
	if (loopback->end > oldest) {
		if (loopback->room - loopback->end >= size)
			return loopback->bytes + loopback->end;
		return size < oldest ? loopback->bytes : NULL;
	}
	return oldest - loopback->end > size ? loopback->bytes + loopback->end : NULL;
}

/* Append a burst to the waiting ones. */
static void enqueue_burst(struct loopback *loopback, const struct rx_buffer *rx, uint8_t *bytes,
			  struct trade_buffer *buffer)
{
	struct burst *burst = burst_at(loopback, loopback->first + loopback->waiting++);
	burst->rx = *rx;
	burst->rx.buffer = bytes;
	burst->trade_buffer = buffer;
}

int loopback_put(struct loopback *loopback, const struct rx_buffer *rx)
{
	int error = 0;
	if (!rx->size || !rx->segment)
		return 0;
	pthread_mutex_lock(&loopback->lock);
	uint8_t *to = loopback->closed ? NULL : find_room(loopback, rx->size);
	if (to) {
		memcpy(to, rx->buffer, rx->size);
		enqueue_burst(loopback, rx, to, NULL);
		loopback->end = (uint64_t)(to - loopback->bytes) + rx->size;
	} else if (loopback->closed) {
		error = EHOSTUNREACH;
	} else {
		loopback->lost += ceil_div(rx->size, rx->segment);
	}
	pthread_mutex_unlock(&loopback->lock);
	return error;
}

/* Find a buffer that is not in use, the one freed last if possible, or allocate one; NULL for none. */
static struct trade_buffer *find_empty_buffer(struct loopback *loopback, size_t size)
{
	struct trade_buffer *found = NULL;
	if (loopback->room < LOOPBACK_BUFFER_MIN_ROOM)
		return NULL;
	for (unsigned i = 0; i < LOOPBACK_BUFFERS; i++) {
		struct trade_buffer *buffer = &loopback->trade_buffers[(loopback->last_freed + i) % LOOPBACK_BUFFERS];
		if (buffer->bursts)
			continue;
		if (buffer->bytes)
			return buffer;
		found = found ? found : buffer;
	}
	if (found)
		found->bytes = malloc(size);
	return found && found->bytes ? found : NULL;
}

uint8_t *loopback_trade(struct loopback *loopback, const struct rx_buffer *bursts, unsigned count, uint8_t *buffer,
			size_t size)
{
	uint8_t *other = NULL;
	pthread_mutex_lock(&loopback->lock);
	struct trade_buffer *found = NULL;
	if (!loopback->closed && loopback->taken + loopback->waiting + count <= LOOPBACK_BURSTS)
		found = find_empty_buffer(loopback, size);
	if (found) {
		other = found->bytes;
		found->bytes = buffer;
		found->bursts = count;
		for (unsigned i = 0; i < count; i++)
			enqueue_burst(loopback, &bursts[i], bursts[i].buffer, found);
	}
	pthread_mutex_unlock(&loopback->lock);
	return other;
}

/* Release the bursts that the receiver took last, which it has read by now. */
static void release_taken(struct loopback *loopback)
{
	for (; loopback->taken; loopback->taken--) {
		struct trade_buffer *buffer = burst_at(loopback, loopback->first - loopback->taken)->trade_buffer;
		if (buffer && !--buffer->bursts)
			loopback->last_freed = (uint32_t)(buffer - loopback->trade_buffers);
	}
}

unsigned loopback_take(struct loopback *loopback, struct rx_buffer *buffers, unsigned count)
{
	pthread_mutex_lock(&loopback->lock);
	release_taken(loopback);
	if (count > loopback->waiting)
		count = loopback->waiting;
	for (uint32_t i = 0; i < count; i++)
		buffers[i] = burst_at(loopback, loopback->first + i)->rx;
	loopback->first += count;
	loopback->waiting -= count;
	loopback->taken = count;
	pthread_mutex_unlock(&loopback->lock);
	return count;
}

int loopback_listen(struct loopback *loopback, const struct loopback_sleeper *sleeper)
{
	pthread_mutex_lock(&loopback->lock);
	int quiet = !loopback->waiting;
	loopback->sleeper = *sleeper;
	atomic_store_explicit(&loopback->is_sleeping, quiet, memory_order_relaxed);
	pthread_mutex_unlock(&loopback->lock);
	return quiet;
}

void loopback_unlisten(struct loopback *loopback)
{
	pthread_mutex_lock(&loopback->lock);
	while (loopback->notifiers) {
		pthread_mutex_unlock(&loopback->lock);
		sched_yield();
		pthread_mutex_lock(&loopback->lock);
	}
	atomic_store_explicit(&loopback->is_sleeping, 0, memory_order_relaxed);
	pthread_mutex_unlock(&loopback->lock);
}

void loopback_notify(struct loopback *loopback)
{
	/* a receiver that fell asleep after the put has found the burst, under the lock, and does not sleep */
	if (!atomic_load_explicit(&loopback->is_sleeping, memory_order_relaxed))
		return;
	pthread_mutex_lock(&loopback->lock);
	struct loopback_sleeper sleeper = loopback->sleeper;
	int was_sleeping = atomic_exchange_explicit(&loopback->is_sleeping, 0, memory_order_relaxed);
	loopback->notifiers += (uint32_t)was_sleeping;
	pthread_mutex_unlock(&loopback->lock);
	if (!was_sleeping)
		return;
	if (!sleeper.run_inline || !sleeper.run_inline(sleeper.self))
		sleeper.wake(sleeper.self);
	pthread_mutex_lock(&loopback->lock);
	loopback->notifiers--;
	pthread_mutex_unlock(&loopback->lock);
}

uint64_t loopback_lost(struct loopback *loopback)
{
	pthread_mutex_lock(&loopback->lock);
	uint64_t lost = loopback->lost;
	loopback->lost = 0;
	pthread_mutex_unlock(&loopback->lock);
	return lost;
}
