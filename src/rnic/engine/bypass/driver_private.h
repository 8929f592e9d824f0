/* The state of a driver, which it shares with its progress thread, and time limits of both (bypass/driver.h). */
#ifndef RNIC_ENGINE_DRIVER_PRIVATE_H
#define RNIC_ENGINE_DRIVER_PRIVATE_H

#include "bypass/driver.h"

#include "bypass/bypass.h"
#include "io/progress_thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum {
	/* Times `slow` (io/calibrate.h): */
	POLL_GAP_NS = 30000, /* polls no farther apart count as continuous; less than the thread backs off */
	BACKOFF_MAX_NS = 2000000, /* how long the thread backs off at most while no thread waits for an event */

	MAX_ROUNDS = 256, /* in a row */
};

/* States of the progress thread's sleep. */
enum sleep_state {
	SLEEP_NONE, /* it is awake */
	SLEEP_BACKOFF, /* it backs off, since others run the engine: packets do not wake it */
	SLEEP_ON_PACKETS, /* packets wake it */
};

struct bypass_driver {
	struct driver_setup setup; /* `answer` and `fds` are not valid any more */
	struct bypass *bypass;
	struct rpc_reply *answer; /* to punts; for the lock's holder */
	uint32_t token; /* of messages; for the lock's holder */
	uint8_t *arena, *shared, *budget, *faults, *capture;
	size_t arena_bytes, shared_bytes, budget_bytes;
	struct own_fds own; /* all of these descriptors but the peers', and the connection's */
	int fd, shared_fd;
	struct own_fd wake_fd; /* wakes the thread, which sleeps on the next */
	int woken_fd;
	_Atomic int shm_wake_fd; /* programs of the same device make it readable; -1 without them */
	uint8_t cookie[BYPASS_COOKIE_BYTES]; /* by which they recognize this program */
	pid_t pid;
	uint64_t slow; /* io/calibrate.h */
	pthread_t thread;
	_Atomic uint64_t polled_ns; /* when the program polled last */
	_Atomic uint64_t polling_ns; /* for how long, in all, the program polled continuously */
	_Atomic uint64_t used_ns; /* when the program posted or polled last */
	_Atomic uint64_t wakes_ns; /* when the thread wakes */
	_Atomic uint64_t engine_due_ns; /* when the engine wants a round, as its last user but a poll saw it */
	_Atomic uint32_t sleep_state; /* enum sleep_state, of the thread */
	/* polls that the program may make after it asked for an event before it counts as polling */
	_Atomic uint32_t armed_polls;
	_Atomic uint32_t waiters; /* threads that wait for events and run the engine */
	_Atomic uint32_t short_waits; /* waits for events in a row that ended within `spin_ns` */
	_Atomic uint64_t spin_ns; /* SPIN_NS of this machine, or what driver_set_spin said */
	_Atomic bool sleeps_for_events; /* the program waits for events after it has asked for them */
	_Atomic bool stop, gone; /* `gone`: the NIC process has gone */
	struct driver_event_queue *events; /* those that the engine fires; under the engine's lock */
	/* its next event is for the thread that runs the engine: do not fire; likewise */
	struct driver_event_queue *awaited;
};

/* Note that the program has taken descriptors of this driver away: the device is lost. */
static inline void driver_lost_fds(struct bypass_driver *driver)
{
	atomic_store(&driver->gone, true);
	driver->setup.lost(driver->setup.self);
}

/* Return whether the NIC process has gone. */
static inline bool driver_nic_is_gone(struct bypass_driver *driver)
{
	if (!atomic_load(&driver->gone) && driver->setup.is_gone(driver->setup.self))
		atomic_store(&driver->gone, true);
	return atomic_load(&driver->gone);
}

#endif
