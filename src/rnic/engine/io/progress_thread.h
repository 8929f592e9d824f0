/* The progress thread of a device: it takes packets, acknowledges and sends again while the program sleeps or computes,
 * and needs no interpreter for that (runtime/loop.py, "the threads"). It leaves to Python what C does not know, and
 * wakes it. */
#ifndef RNIC_ENGINE_PROGRESS_THREAD_H
#define RNIC_ENGINE_PROGRESS_THREAD_H

#include "io/clock.h"
#include "io/poll.h"

#include <pthread.h>
#include <stdatomic.h>

#define PROGRESS_THREAD_SOCKETS 8u

/* The lock around every use of a device, for C and Python alike. Its holder may take it again. */
struct device_lock {
	pthread_mutex_t mutex;
	_Atomic uintptr_t owner; /* the thread that holds it, 0 for none */
	uint32_t depth; /* how often the owner has taken it */
	uint32_t visits; /* how many of these were Python's */
};

/* 0, or the error number. */
int device_lock_init(struct device_lock *lock);
void device_lock_destroy(struct device_lock *lock);
/* Take it without waiting; returns whether that was possible. */
int device_lock_try(struct device_lock *lock);
void device_lock_take(struct device_lock *lock);
/* Return whether the caller holds it. */
int device_lock_is_held(struct device_lock *lock);
/* Release it; the caller holds it. */
void device_lock_release(struct device_lock *lock);

struct progress_thread {
	struct io_poll *round;
	struct device_lock *lock;
	uint8_t *out; /* POLL_OUT_BYTES to lay out packets in */
	pthread_t handle;
	int running;
	int wake_fd; /* an eventfd that wakes the thread */
	int python_fd; /* a pipe that wakes the Python thread */
	int sockets[PROGRESS_THREAD_SOCKETS]; /* what brings packets */
	uint32_t socket_count; /* with neither sockets nor a loopback, the thread polls every millisecond */
	uint64_t report_within; /* ns after which Python is told that packets moved */
	/* Under the lock. */
	uint32_t leased; /* C may do rounds: Python found so when it released the lock */
	uint32_t pending; /* a round has stopped at `pending_stop`; nothing else may begin before that is handled */
	struct engine_stop_info pending_stop;
	/* Without the lock. */
	_Atomic uint32_t stop;
	_Atomic uint32_t others_sent; /* another thread has sent or taken packets: Python is to be told */
	_Atomic uint64_t polled; /* when the program drove the device last; 0 if it does not */
	_Atomic uint64_t sleeps_until; /* 0 while the thread is awake, or soon checks whether the program still polls */
};

/* Start the thread, which blocks all signals: 0, or the error number. The caller has set all fields but `out` and
 * `wake_fd`. */
int progress_thread_start(struct progress_thread *thread);
/* Stop and join it; the caller does not hold the lock. */
void progress_thread_stop(struct progress_thread *thread);
/* Return whether the thread sleeps for too long, after another thread has sent or taken packets; the lock is held. */
int progress_thread_oversleeps(const struct progress_thread *thread, uint64_t now);
void progress_thread_wake(struct progress_thread *thread);
#endif
