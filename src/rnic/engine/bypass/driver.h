/* A slot of a device in this process (bypass/bypass.h): who runs the engine when, the thread that does while nobody else does, and
 * the connection to the NIC process, which takes what the engine leaves. Linux alone. */
#ifndef RNIC_ENGINE_SLOT_H
#define RNIC_ENGINE_SLOT_H

#include "bypass/rpc.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { SLOT_FDS = 4 }; /* socket, arena, shared record, the page of the device's budget */

/* An event queue of the program's, whose descriptor the engine fires. */
struct slot_events {
	uint32_t vector;
	int fd; /* readable while entries wait */
	int (*waits)(struct slot_events *events); /* whether it has an entry */
	struct slot_events *next;
};

struct slot_setup {
	int socket; /* to the NIC process, the caller's: from now on slot_ask alone asks by it */
	uint8_t *blocks; /* the window's queue blocks */
	const uint8_t *answer; /* what OPEN says of the slot, and the SLOT_FDS descriptors that came along, closed in any case */
	const int *fds;
	int (*is_gone)(void *self); /* whether the NIC process has gone */
	void *self;
};

struct slot_driver;

/* 0 or the error number: EPROTO where the NIC process lays its state out by other tables. */
int slot_open(const struct slot_setup *setup, struct slot_driver **made);
/* End its thread; others may go on. */
void slot_stop(struct slot_driver *slot);
/* Let go of it, when nobody uses it any more; in a child process, of what a child has of it. */
void slot_close(struct slot_driver *slot);

/* A message by which the NIC process may work on the arena, and its answer (bypass/rpc.h). */
int slot_ask(struct slot_driver *slot, uint32_t kind, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct answer *answer);

/* Loopback inside the NIC (bypass/shm_loopback.h): from now on, 0 or the error number; and for a queue pair that is connected. */
int slot_take_part(struct slot_driver *slot);
void slot_join(struct slot_driver *slot, uint32_t number);

/* A doorbell of a queue pair's block, or with `number` 0 of another's; 0 where it is the NIC process's to be told. */
int slot_ring(struct slot_driver *slot, uint32_t number, uint32_t block);
/* Tell it by the window: the block's byte among those rung, and the eventfd where it says that it sleeps. */
void slot_knock(volatile _Atomic uint8_t *rung, _Atomic uint32_t *asleep, int wake_fd, uint32_t block);
/* A queue was found empty: whether anything has happened now. */
int slot_poll(struct slot_driver *slot);
/* The program means to sleep until an event comes. */
void slot_rest(struct slot_driver *slot);
/* Event queues, from now on, and until they are forgotten. */
void slot_serve(struct slot_driver *slot, struct slot_events *events);
void slot_forget(struct slot_driver *slot, struct slot_events *events);
/* Wait until an event queue may have an entry, or another descriptor (-1 for none) can be read, and run the engine meanwhile:
 * 0 or the error number, EIO where the NIC process has gone. */
int slot_await(struct slot_driver *slot, struct slot_events *events, int other);
/* For how long, at most, it looks on before it sleeps, where the waits before were no longer; 0 for never. */
void slot_look_on(struct slot_driver *slot, uint64_t ns);

#endif
