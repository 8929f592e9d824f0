/* The progress thread of a device: it receives, acknowledges and retransmits while the program sleeps or computes,
 * without the interpreter (runtime/loop.py, "the threads"). It wakes Python for cases that C does not handle. */
#ifndef RNIC_ENGINE_PROGRESS_THREAD_H
#define RNIC_ENGINE_PROGRESS_THREAD_H

#include "io/clock.h"
#include "io/own_fd.h"
#include "io/poll.h"

#include <pthread.h>
#include <stdatomic.h>

#define PROGRESS_THREAD_SOCKETS 8u

/* The lock around every use of a device, for C and Python alike. Its holder may take it again. */
struct device_lock {
	pthread_mutex_t mutex;
	_Atomic uintptr_t owner; /* thread that holds the lock, 0 for none */
	uint32_t depth; /* recursion depth of the owner */
	uint32_t visits; /* number of these taken by Python */
};

/* Initialize a lock: 0, or the error number. */
int device_lock_init(struct device_lock *lock);
void device_lock_destroy(struct device_lock *lock);
/* Try to take the lock; returns whether it was taken. */
int device_lock_try(struct device_lock *lock);
void device_lock_take(struct device_lock *lock);
/* Return whether the caller holds it. */
int device_lock_is_held(struct device_lock *lock);
/* Release it; the caller holds it. */
void device_lock_release(struct device_lock *lock);

struct progress_thread {
	struct io_poll *round;
	struct device_lock *lock;
	uint8_t *out; /* output buffer, POLL_OUT_BYTES */
	pthread_t handle;
	int running;
	struct own_fds *own; /* the descriptors that rounds use */
	struct own_fd wake_fd, woken_fd; /* a pipe that wakes the thread */
	int python_fd; /* a pipe that wakes the Python thread, the caller's */
	struct own_fd python_own; /* the same, to detect another file with this number */
	int sockets[PROGRESS_THREAD_SOCKETS]; /* sockets of received packets */
	uint32_t socket_count; /* with neither sockets nor a loopback, the thread polls every millisecond */
	uint64_t report_within; /* ns after packets moved within which Python is told */
	/* Under the lock. */
	uint32_t lost; /* the program has closed descriptors of the device; report to Python */
	uint32_t leased; /* C may poll: Python allowed it when it released the lock */
	uint32_t pending; /* a round has stopped at `pending_stop`; nothing else may begin before that is handled */
	struct engine_stop_info pending_stop;
	/* Without the lock. */
	_Atomic uint32_t stop;
	_Atomic uint32_t others_sent; /* another thread has sent or received packets, to be reported to Python */
	_Atomic uint64_t polled; /* time of the program's last poll; 0 if it does not poll */
	_Atomic uint64_t sleeps_until; /* 0 while the thread is awake or about to check for polls */
};

/* Return whether rounds may use their descriptors: none was closed by the program. */
int io_fds_valid(struct own_fds *own, struct io_poll *round, uint64_t now);

/* Start the thread, which blocks all signals: 0, or the error number. The caller has set the fields up to
 * `report_within`, but none that is an `own_fd`, and not `out`. */
int progress_thread_start(struct progress_thread *thread);
/* Stop and join it; the caller does not hold the lock. */
void progress_thread_stop(struct progress_thread *thread);
/* Return whether the thread sleeps too long after another thread has sent or received packets; the lock is held. */
int progress_thread_oversleeps(const struct progress_thread *thread, uint64_t now);
void progress_thread_wake(struct progress_thread *thread);
#endif
