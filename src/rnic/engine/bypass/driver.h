/* The driver of a bypass slot of a device in this process (bypass/bypass.h): which thread runs the engine when, the
 * progress thread, and the connection to the NIC process, which takes what the engine punts. Linux only. */
#ifndef RNIC_ENGINE_DRIVER_H
#define RNIC_ENGINE_DRIVER_H

#include "bypass/rpc.h"
#include "io/own_fd.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* socket, arena, shared record, budget page, fault rules, and recorder ring */
enum { DRIVER_FDS = 6 };

/* An event queue of the program, whose descriptor the engine fires. */
struct driver_event_queue {
	uint32_t vector;
	struct own_fd fd; /* readable while entries wait */
	int (*waits)(struct driver_event_queue *events); /* whether an entry waits */
	struct driver_event_queue *next;
};

struct driver_setup {
	struct own_fd socket; /* to the NIC process, the caller's: from now on driver_request alone uses it */
	uint8_t *blocks; /* the window's queue blocks */
	const uint8_t *answer; /* the answer to OPEN about the slot */
	const int *fds; /* the DRIVER_FDS descriptors passed with it; closed in any case */
	int (*is_gone)(void *self); /* whether the NIC process has gone */
	void (*lost)(void *self); /* the program has closed descriptors that the driver needs: the device is dead */
	void *self;
};

struct bypass_driver;

/* Open a driver: 0 or the error number, EPROTO if the NIC process uses other layout tables. */
int driver_open(const struct driver_setup *setup, struct bypass_driver **made);
/* Stop its thread; threads of the program may continue. */
void driver_stop(struct bypass_driver *driver);
/* Free it once no thread uses it; in a forked child, free the parts that a child has. */
void driver_close(struct bypass_driver *driver);

/* Send a message for which the NIC process may work on the arena, and receive its reply (bypass/rpc.h). */
int driver_request(struct bypass_driver *driver, uint32_t kind, const void *body, size_t bytes, const int *fds,
		   int fd_count, struct rpc_reply *reply);

/* Enable shared-memory loopback (bypass/shm_loopback.h): 0 or the error number. */
int driver_enable_shm_loopback(struct bypass_driver *driver);
/* Join the program of a connected queue pair's peer, if it uses this device. */
void driver_join(struct bypass_driver *driver, uint32_t number);

/* Ring the doorbell of a queue pair's block, or with `number` 0 of another's; 0 if the NIC process must be told. */
int driver_ring(struct bypass_driver *driver, uint32_t number, uint32_t block);
/* Tell the NIC process: set the block's byte among those rung, and wake it if it says that it sleeps. 0, or
 * -1 if the program has closed its descriptor. */
int driver_ring_doorbell(volatile _Atomic uint8_t *rung, _Atomic uint32_t *asleep, const struct own_fd *wake_fd,
			 uint32_t block);
/* Poll after a queue was found empty; returns whether anything happened. */
int driver_poll(struct bypass_driver *driver);
/* Note that the program is about to sleep until an event arrives. */
void driver_prepare_to_sleep(struct bypass_driver *driver);
/* Fire an event queue's descriptor from now on, until it is removed. */
void driver_add_events(struct bypass_driver *driver, struct driver_event_queue *events);
void driver_remove_events(struct bypass_driver *driver, struct driver_event_queue *events);
/* Run the engine until an event queue may have an entry, or another descriptor (-1 for none) is readable: 0 or the
 * error number, EIO if the NIC process has gone. */
int driver_await(struct bypass_driver *driver, struct driver_event_queue *events, int other);
/* Set the longest time for which driver_await spins before it sleeps, after waits that were no longer; 0 for never. */
void driver_set_spin(struct bypass_driver *driver, uint64_t ns);

#endif
