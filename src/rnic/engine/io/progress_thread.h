/* A device's thread: it takes packets, acknowledges and sends again while the program sleeps or computes, and needs no
 * interpreter for that (runtime/loop.py, "the threads"). What wants Python it leaves lying, and says so. */
#ifndef RNIC_ENGINE_PROGRESS_THREAD_H
#define RNIC_ENGINE_PROGRESS_THREAD_H

#include "io/clock.h"
#include "io/poll.h"

#include <pthread.h>
#include <stdatomic.h>

#define PROGRESS_THREAD_SOCKETS 8u

/* The lock around every use of a device, for C and Python alike; its holder may take it again. */
struct device_lock {
	pthread_mutex_t mutex;
	_Atomic uintptr_t owner; /* the thread that holds it, 0 for none */
	uint32_t depth; /* how often it does */
	uint32_t visits; /* Python holds it: of those, how often */
};

/* 0, or the error number. */
int device_lock_init(struct device_lock *lock);
void device_lock_destroy(struct device_lock *lock);
/* Take it: whether that was possible without waiting. */
int device_lock_try(struct device_lock *lock);
void device_lock_take(struct device_lock *lock);
/* Whether the caller holds it. */
int device_lock_is_held(struct device_lock *lock);
/* Let go; the caller holds it. */
void device_lock_release(struct device_lock *lock);

struct progress_thread {
	struct io_poll *round;
	struct device_lock *lock;
	uint8_t *out; /* POLL_OUT_BYTES to lay out in what leaves */
	pthread_t thread;
	int runs; /* there is a thread */
	int bell; /* an eventfd: wakes the thread */
	int python; /* a pipe: wakes who does what C does not know */
	int sockets[PROGRESS_THREAD_SOCKETS]; /* what brings packets */
	uint32_t socket_count; /* none, nor a wire: it looks every millisecond */
	uint64_t tell_within; /* ns after which Python is told of packets that moved */
	/* Under the lock. */
	uint32_t leased; /* C may do rounds: Python saw so when it left last */
	uint32_t pending; /* a round has stopped as `told` says: nobody begins anything else before that is done */
	struct engine_stop_info told;
	/* At any time. */
	_Atomic uint32_t stop;
	_Atomic uint32_t stirred; /* somebody else than the thread has sent: what moved is to be told */
	_Atomic uint64_t polled; /* when the program drove the device last, 0 for a program that does not */
	_Atomic uint64_t sleeps_until; /* 0 while the thread is awake, or looks soon whether the program still polls */
};

/* Start the thread, which blocks all signals: 0, or the error number. Everything but `out` and `bell` is there. */
int progress_thread_start(struct progress_thread *watch);
/* End it; the caller does not hold the lock. */
void progress_thread_stop(struct progress_thread *watch);
/* Whether it sleeps for too long, now that somebody else has sent or taken something in its place; the lock is held. */
int progress_thread_oversleeps(const struct progress_thread *watch, uint64_t now);
/* Wake it. */
void progress_thread_wake(struct progress_thread *watch);
#endif
