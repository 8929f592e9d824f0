/* The state of a driver, which it shares with its thread, and how long both wait for what (bypass/driver.h). */
#ifndef RNIC_ENGINE_DRIVER_PRIVATE_H
#define RNIC_ENGINE_DRIVER_PRIVATE_H

#include "bypass/driver.h"

#include "bypass/bypass.h"
#include "io/progress_thread.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

enum {
	/* Times `slow` (io/calibrate.h): */
	GAP_NS = 30000, /* between polls that count as one after the other: less than the thread keeps off */
	PARK_MOST_NS = 2000000, /* the thread keeps off for so long at most, while nobody waits for an event */

	ROUNDS = 256, /* in a row */
};

/* What the thread does until it wakes. */
enum how { AWAKE, PARKED, WATCHING };

struct bypass_driver {
	struct driver_setup setup; /* `answer` and `fds` are gone */
	struct bypass *bypass;
	struct rpc_reply *answer; /* of punts; the lock's holder uses it, */
	uint32_t token; /* and this */
	uint8_t *arena, *shared, *budget;
	size_t arena_bytes, shared_bytes, budget_bytes;
	int fd, shared_fd, wake;
	_Atomic int bell; /* rung by programs of the same device; -1 */
	uint8_t cookie[BYPASS_COOKIE_BYTES]; /* by which they know this one */
	pid_t pid;
	uint64_t slow; /* io/calibrate.h */
	pthread_t thread;
	_Atomic uint64_t polled_ns; /* when somebody polled last */
	_Atomic uint64_t covered_ns; /* for how long polls followed each other */
	_Atomic uint64_t used_ns; /* when somebody posted or polled last */
	_Atomic uint64_t until_ns; /* when the thread wakes */
	_Atomic uint64_t due_ns; /* when the engine wants a round, as who let go of it last saw it, unless he polls */
	_Atomic uint32_t how; /* enum how: what it does until then */
	_Atomic uint32_t armed; /* polls that the program may make before it counts as polling, having asked for an event */
	_Atomic uint32_t waiters; /* threads that wait for events and run the engine */
	_Atomic uint32_t soon; /* waits for events in a row that ended within `look_ns` */
	_Atomic uint64_t look_ns; /* LOOK_NS of this machine, or what driver_set_spin said */
	_Atomic bool waits; /* that is what the program does after it asked for an event */
	_Atomic bool stop, gone; /* the NIC process has gone */
	struct driver_event_queue *events; /* those that the engine fires: under the engine's lock, as the one below */
	struct driver_event_queue *quiet; /* its next event is for who works now, and needs no descriptor */
};

/* Whether the NIC process has gone. */
bool driver_nic_is_gone(struct bypass_driver *slot);

#endif
