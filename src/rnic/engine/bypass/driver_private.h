/* State of a driver, shared with its progress thread, and time limits of both (bypass/driver.h). */
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
	POLL_GAP_NS = 30000, /* a post so long after a poll counts as one; less than the thread backs off */
	BACKOFF_MAX_NS =
		1900000, /* how long the thread backs off at most while the program polls; with a second look 2 ms */

	MAX_ROUNDS = 256, /* consecutive rounds */
};

/* States of the progress thread's sleep. */
enum sleep_state {
	SLEEP_NONE, /* it is awake */
	SLEEP_BACKOFF, /* it backs off because others run the engine; packets do not wake it */
	SLEEP_ON_PACKETS, /* packets wake it */
};

struct bypass_driver {
	struct driver_setup setup; /* `answer` and `fds` are no longer valid */
	struct bypass *bypass;
	struct rpc_reply *answer; /* to punts; for the lock's holder */
	uint32_t token; /* of messages; for the lock's holder */
	uint8_t *arena, *shared, *budget, *faults, *capture;
	size_t arena_bytes, shared_bytes, budget_bytes;
	struct own_fds own; /* all of these descriptors except the peers', and the connection */
	int fd, shared_fd;
	struct own_fd wake_fd; /* wakes the thread, which sleeps on the next one */
	int woken_fd;
	_Atomic int shm_wake_fd; /* programs of the same device make it readable; -1 without them */
	uint8_t cookie[BYPASS_COOKIE_BYTES]; /* identifies this program to them */
	pid_t pid;
	uint64_t slow; /* io/calibrate.h */
	pthread_t thread;
	_Atomic uint64_t polled_ns; /* time of the program's last poll; 0: it has stopped */
	_Atomic uint64_t used_ns; /* time of the program's last post or poll */
	_Atomic uint64_t wakes_ns; /* time at which the thread wakes */
	_Atomic uint64_t engine_due_ns; /* the engine's next round, as seen by its last user other than a poll */
	_Atomic uint32_t sleep_state; /* enum sleep_state, of the thread */
	/* polls that the program may make after arming before it counts as polling */
	_Atomic uint32_t armed_polls;
	_Atomic uint32_t waiters; /* threads that wait for events and run the engine */
	_Atomic uint32_t short_waits; /* consecutive waits for events that ended within `spin_ns` */
	_Atomic uint64_t spin_ns; /* SPIN_NS for this machine, or the value of driver_set_spin */
	_Atomic bool sleeps_for_events; /* the program waits for events after arming */
	_Atomic bool stop, gone; /* `gone`: the NIC process has gone */
	struct driver_event_queue *events; /* those that the engine fires; under the engine's lock */
	/* its next event is for the thread that runs the engine, so do not fire; likewise */
	struct driver_event_queue *awaited;
};

/* Note that the program has closed descriptors of this driver, so the device is lost. */
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
