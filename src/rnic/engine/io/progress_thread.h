/* A device's thread: it takes packets, acknowledges and sends again while the program sleeps or computes, and needs no
 * interpreter for that (runtime/loop.py, "the threads"). What wants Python it leaves lying, and says so. */
#ifndef RNIC_ENGINE_WATCH_H
#define RNIC_ENGINE_WATCH_H

#include "io/clock.h"
#include "io/poll.h"

#include <pthread.h>
#include <stdatomic.h>

#define WATCH_DESCRIPTORS 8u

/* The lock around every use of a device, for C and Python alike; its holder may take it again. */
struct pump_lock {
	pthread_mutex_t mutex;
	_Atomic uintptr_t owner; /* the thread that holds it, 0 for none */
	uint32_t depth; /* how often it does */
	uint32_t visits; /* Python holds it: of those, how often */
};

/* 0, or the error number. */
int pump_lock_init(struct pump_lock *lock);
void pump_lock_destroy(struct pump_lock *lock);
/* Take it: whether that was possible without waiting. */
int pump_lock_try(struct pump_lock *lock);
void pump_lock_take(struct pump_lock *lock);
/* Whether the caller holds it. */
int pump_lock_own(struct pump_lock *lock);
/* Let go; the caller holds it. */
void pump_lock_free(struct pump_lock *lock);

struct pump_watch {
	struct pump_round *round;
	struct pump_lock *lock;
	uint8_t *out; /* ROUND_OUT_BYTES to lay out in what leaves */
	pthread_t thread;
	int runs; /* there is a thread */
	int bell; /* an eventfd: wakes the thread */
	int python; /* a pipe: wakes who does what C does not know */
	int sockets[WATCH_DESCRIPTORS]; /* what brings packets */
	uint32_t socket_count; /* none, nor a wire: it looks every millisecond */
	uint64_t tell_within; /* ns after which Python is told of packets that moved */
	/* Under the lock. */
	uint32_t leased; /* C may do rounds: Python saw so when it left last */
	uint32_t pending; /* a round has stopped as `told` says: nobody begins anything else before that is done */
	struct engine_told told;
	/* At any time. */
	_Atomic uint32_t stop;
	_Atomic uint32_t stirred; /* somebody else than the thread has sent: what moved is to be told */
	_Atomic uint64_t polled; /* when the program drove the device last, 0 for a program that does not */
	_Atomic uint64_t sleeps_until; /* 0 while the thread is awake, or looks soon whether the program still polls */
};

/* Start the thread, which blocks all signals: 0, or the error number. Everything but `out` and `bell` is there. */
int pump_watch_start(struct pump_watch *watch);
/* End it; the caller does not hold the lock. */
void pump_watch_stop(struct pump_watch *watch);
/* Whether it sleeps for too long, now that somebody else has sent or taken something in its place; the lock is held. */
int pump_watch_oversleeps(const struct pump_watch *watch, uint64_t now);
/* Wake it. */
void pump_watch_ring(struct pump_watch *watch);
#endif
