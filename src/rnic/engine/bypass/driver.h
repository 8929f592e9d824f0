/* A slot of a device in this process (bypass/bypass.h): who runs the engine when, the thread that does while nobody else does, and
 * the connection to the NIC process, which takes what the engine leaves. Linux alone. */
#ifndef RNIC_ENGINE_DRIVER_H
#define RNIC_ENGINE_DRIVER_H

#include "bypass/rpc.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { DRIVER_FDS = 4 }; /* socket, arena, shared record, the page of the device's budget */

/* An event queue of the program's, whose descriptor the engine fires. */
struct driver_event_queue {
	uint32_t vector;
	int fd; /* readable while entries wait */
	int (*waits)(struct driver_event_queue *events); /* whether it has an entry */
	struct driver_event_queue *next;
};

struct driver_setup {
	int socket; /* to the NIC process, the caller's: from now on driver_request alone asks by it */
	uint8_t *blocks; /* the window's queue blocks */
	const uint8_t *answer; /* what OPEN says of the slot, and the DRIVER_FDS descriptors that came along, closed in any case */
	const int *fds;
	int (*is_gone)(void *self); /* whether the NIC process has gone */
	void *self;
};

struct bypass_driver;

/* 0 or the error number: EPROTO where the NIC process lays its state out by other tables. */
int driver_open(const struct driver_setup *setup, struct bypass_driver **made);
/* End its thread; others may go on. */
void driver_stop(struct bypass_driver *slot);
/* Let go of it, when nobody uses it any more; in a child process, of what a child has of it. */
void driver_close(struct bypass_driver *slot);

/* A message by which the NIC process may work on the arena, and its answer (bypass/rpc.h). */
int driver_request(struct bypass_driver *slot, uint32_t kind, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct rpc_reply *answer);

/* Loopback inside the NIC (bypass/shm_loopback.h): from now on, 0 or the error number; and for a queue pair that is connected. */
int driver_enable_shm_loopback(struct bypass_driver *slot);
void driver_join(struct bypass_driver *slot, uint32_t number);

/* A doorbell of a queue pair's block, or with `number` 0 of another's; 0 where it is the NIC process's to be told. */
int driver_ring(struct bypass_driver *slot, uint32_t number, uint32_t block);
/* Tell it by the window: the block's byte among those rung, and the eventfd where it says that it sleeps. */
void driver_ring_doorbell(volatile _Atomic uint8_t *rung, _Atomic uint32_t *asleep, int wake_fd, uint32_t block);
/* A queue was found empty: whether anything has happened now. */
int driver_poll(struct bypass_driver *slot);
/* The program means to sleep until an event comes. */
void driver_prepare_to_sleep(struct bypass_driver *slot);
/* Event queues, from now on, and until they are forgotten. */
void driver_add_events(struct bypass_driver *slot, struct driver_event_queue *events);
void driver_remove_events(struct bypass_driver *slot, struct driver_event_queue *events);
/* Wait until an event queue may have an entry, or another descriptor (-1 for none) can be read, and run the engine meanwhile:
 * 0 or the error number, EIO where the NIC process has gone. */
int driver_await(struct bypass_driver *slot, struct driver_event_queue *events, int other);
/* For how long, at most, it looks on before it sleeps, where the waits before were no longer; 0 for never. */
void driver_set_spin(struct bypass_driver *slot, uint64_t ns);

#endif
