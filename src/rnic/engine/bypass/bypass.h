/* The engine inside a program, on the program's own part of a device (design.md, "One state, two executors"): rounds on
 * its socket and its arena, under a lock that it shares with the NIC process. What the engine does not know goes to the
 * NIC process, packet by packet, which works on the same bytes. Linux only. */
#ifndef RNIC_ENGINE_BYPASS_H
#define RNIC_ENGINE_BYPASS_H

#include "io/own_fd.h"
#include "state.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define BYPASS_NAME_BYTES 28u
#define BYPASS_COOKIE_BYTES 16u

/* Kinds of punts to the NIC process. */
enum bypass_kind {
	BYPASS_PACKET = 1, /* packets of a receive buffer */
	BYPASS_TURN, /* the rest of a queue pair's turn */
	BYPASS_NOTIFY, /* a queue pair completed to armed CQs */
	BYPASS_DOORBELL, /* a block's doorbell was rung */
	BYPASS_TIMER, /* a queue pair's timer has expired */
};
enum { BYPASS_NOTIFY_SEND = 4, BYPASS_NOTIFY_RECV = 8 }; /* effects of BYPASS_NOTIFY: the CQ concerned */

struct bypass_punt {
	uint32_t kind, effects;
	uint64_t qp; /* offset of its record; of a doorbell the block */
	/* Of a turn: as in engine_sending (device/device.h). Of packets, `count`: packets of their sender that came
	 * before and had the expected idents, since the last punt. */
	uint64_t limit, count, bytes, room;
	uint32_t step;
	/* of packets: buffer index, bytes in it, bytes taken, bytes of each packet */
	uint32_t buffer, size, at, segment;
	uint32_t name_bytes, tclass, hop_limit, flow_label;
	uint8_t name[BYPASS_NAME_BYTES];
};

struct bypass_answer {
	uint64_t count; /* packets sent in a turn */
	uint32_t reschedule; /* schedule the queue pair once more at the end */
	uint32_t settled; /* the packets' sender is validated */
};

/* Addresses and descriptors for the engine, and callbacks to its owner. */
struct bypass_setup {
	uint8_t *arena;
	uint8_t *shared; /* a struct slot, at SLOT_BUFFERS_AT the buffers, and behind them what fault rules count */
	int shared_fd; /* the file that `shared` maps; the caller's */
	uint8_t *blocks; /* the window's queue blocks */
	uint8_t *capture; /* CAPTURE_ALL bytes for packets while they are recorded */
	const uint8_t *faults; /* the device's fault rules, FAULT_TABLE_BYTES that only the NIC process writes */
	uint8_t *budget; /* the device's budget page, BUDGET_BYTES */
	uint32_t slot; /* this program's slot in the budget page */
	int fd; /* the socket */
	struct own_fds *own; /* the caller's, with all descriptors that the engine uses; the engine adds its own */
	uint8_t address[16]; /* the device's */
	uint32_t address_bytes;
	uint32_t port;
	uint16_t source_ports[ATTACH_MAX_SOURCE_PORTS]; /* source ports of packets: `port`, or some others */
	uint32_t source_port_count;
	uint64_t slow; /* io/calibrate.h */
	/* Send a punt: 0, or -1 without an answer. */
	int (*punt)(void *self, const struct bypass_punt *punt, struct bypass_answer *answer);
	/* Return a socket of a source port other than `port`, or -1. */
	int (*open_source)(void *self, uint32_t port);
	int (*is_gone)(void *self); /* whether the NIC process has gone */
	void (*lost)(void *self); /* the program has closed some descriptors, so the engine has stopped */
	void (*fire)(void *self, uint32_t vector); /* an event queue has one more entry */
	void *self;
};

/* One program's end of the rings that it shares with another program of the device, or with itself. */
struct bypass_peer {
	uint32_t first_number, numbers; /* of the other's queue pairs */
	int pid; /* its process, as the NIC process knows it; verified by the cookie at each copy */
	uint64_t cookie_va; /* address of the cookie in that process */
	uint8_t cookie[BYPASS_COOKIE_BYTES];
	/* the ring that this side sends on; it takes from the other one, or, if there is one alone, from that */
	uint32_t ring;
	uint8_t *base; /* the file, mapped; owned by the engine once bypass_join has returned 0 */
	uint64_t bytes;
	int wake_fd; /* a socket that wakes the other program; owned likewise */
};

struct bypass;

/* Return the size of the shared record and its buffers. */
size_t bypass_shared_bytes(void);
/* Return the size of the device's budget page. */
size_t bypass_budget_bytes(void);
/* Create an engine; NULL without memory, if the arena has another layout, or if there is no such slot. */
struct bypass *bypass_new(const struct bypass_setup *setup);
void bypass_free(struct bypass *bypass);

/* Return the word that is not 0 while a thread of the program has the lock; called without it. */
const _Atomic uint64_t *bypass_taken(const struct bypass *bypass);

/* Everything below is called with the lock held. bypass_try returns 0, or -1 if another thread or the NIC process holds
 * it. */
void bypass_lock(struct bypass *bypass);
int bypass_try(struct bypass *bypass);
void bypass_unlock(struct bypass *bypass);

/* Return whether the NIC process takes packets and doorbells itself, or has gone: then there is nothing to do here. */
int bypass_is_served_elsewhere(const struct bypass *bypass);
/* Ring the doorbell of a queue pair's block; `number` is 0 for other blocks. */
void bypass_ring(struct bypass *bypass, uint32_t number, uint32_t block, uint64_t now);
/* Enable shared-memory loopback (bypass/shm_loopback.h), before anything else: 0, or -1 without memory. */
int bypass_shm_loopback(struct bypass *bypass);
/* Join another program of the device: 0, or -1 if that is not possible or was done before. */
int bypass_join(struct bypass *bypass, const struct bypass_peer *setup);
/* Return whether records wait in the rings, before a thread sleeps until the socket or the wake-up descriptor is
 * readable; called without the lock. */
int bypass_has_pending(struct bypass *bypass);
/* Run one round; returns whether anything happened. `polls`: a waiting thread of the program calls, not the progress
 * thread. */
int bypass_round(struct bypass *bypass, uint64_t now, int polls);
/* Return whether the work since the last call took longer than a message. */
int bypass_took_time(struct bypass *bypass);
/* Return whether an answer to the program's last message is expected soon, since earlier ones were answered, and has
 * not arrived. */
int bypass_expects_reply(const struct bypass *bypass);
/* Note that the answer was late: expect none until further ones arrive. */
void bypass_reply_is_late(struct bypass *bypass);
/* Return the time of the next round without input: 0 for at once, UINT64_MAX for never. */
uint64_t bypass_deadline(const struct bypass *bypass);

#endif
