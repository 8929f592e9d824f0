/* Threads that put and trade, one that takes, sleeps by the loopback's wake-up descriptor, and checks all bytes: each burst
 * is as its sender made it, none twice and none out of its sender's order. A thread that finds the receiver asleep runs its
 * work inline, every other time and if no other does. Prints how many came; none is lost, since there is room for all. */
#define _GNU_SOURCE
#include "io/loopback.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SENDERS = 3, BURSTS = 1200, BUFFER = 4096, ROOM = 16 << 20 };

static struct loopback *loopback;
static struct loopback_sleeper sleeper;
static struct pollfd wake = { .events = POLLIN };
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
static uint64_t received, asked; /* by the receiving thread */
static int64_t last[SENDERS];

/* A number and its sender, as often as it fits. */
static struct rx_buffer make(uint8_t *at, uint32_t sender, uint32_t number, size_t size)
{
	for (size_t i = 0; i < size; i += 8) {
		memcpy(at + i, &number, 4);
		memcpy(at + i + 4, &sender, 4);
	}
	return (struct rx_buffer){ .buffer = at, .size = size, .segment = 8 };
}

static void *make_all(void *self)
{
	uint32_t sender = (uint32_t)(uintptr_t)self;
	uint8_t *buffer = malloc(BUFFER);

	for (uint32_t number = 0; buffer && number < BURSTS; number += 2) {
		struct rx_buffer both[2] = { make(buffer, sender, number, 8 * (1 + number % 200)),
					     make(buffer + BUFFER / 2, sender, number + 1, 16) };
		uint8_t *other = number % 3 ? loopback_trade(loopback, both, 2, buffer, BUFFER) : NULL;
		if (other) {
			buffer = other;
		} else {
			loopback_put(loopback, &both[0]);
			loopback_put(loopback, &both[1]);
		}
		loopback_notify(loopback);
	}
	free(buffer);
	return NULL;
}

/* Take some and look at them: their number. The lock is held. */
static unsigned take_bursts(void)
{
	struct rx_buffer buffers[4];
	unsigned count = loopback_take(loopback, buffers, 4);
	for (unsigned i = 0; i < count; i++) {
		uint32_t number, sender;
		memcpy(&number, buffers[i].buffer, 4);
		memcpy(&sender, buffers[i].buffer + 4, 4);
		for (size_t at = 8; at < buffers[i].size; at += 8)
			if (memcmp(buffers[i].buffer + at, buffers[i].buffer, 8))
				exit(3);
		if (sender >= SENDERS || (int64_t)number <= last[sender])
			exit(4);
		last[sender] = number;
	}
	received += count;
	return count;
}

/* Take what there is; whether there is no more, and more to come. */
static int run_inline(void *self)
{
	int done = 0;
	if (self != last)
		exit(7);
	if (pthread_mutex_trylock(&taking))
		return 0;
	if (asked++ % 2) {
		while (take_bursts())
			;
		done = received < SENDERS * BURSTS && loopback_listen(loopback, &sleeper);
	}
	pthread_mutex_unlock(&taking);
	return done;
}

static void ring(void *self)
{
	const uint64_t once = 1;
	if (self != last || write(wake.fd, &once, sizeof once) < 0)
		exit(8);
}

int main(void)
{
	static uint8_t room[ROOM];
	pthread_t threads[SENDERS];

	loopback = loopback_make(room, sizeof room);
	wake.fd = eventfd(0, EFD_NONBLOCK);
	sleeper = (struct loopback_sleeper){ .wake = ring, .run_inline = run_inline, .self = last };
	for (uintptr_t i = 0; i < SENDERS; i++) {
		last[i] = -1;
		if (pthread_create(&threads[i], NULL, make_all, (void *)i))
			return 2;
	}
	for (int all = 0; !all;) {
		uint64_t rung;
		pthread_mutex_lock(&taking);
		unsigned count = take_bursts();
		all = received == SENDERS * BURSTS;
		int sleeps = !all && !count && loopback_listen(loopback, &sleeper);
		pthread_mutex_unlock(&taking);
		if (sleeps && poll(&wake, 1, 60000) == 0)
			return 6;
		if (sleeps && read(wake.fd, &rung, sizeof rung) < 0)
			return 5;
	}
	loopback_unlisten(loopback);
	for (unsigned i = 0; i < SENDERS; i++)
		pthread_join(threads[i], NULL);
	loopback_free(loopback);
	printf("%llu\n", (unsigned long long)received);
	return 0;
}
