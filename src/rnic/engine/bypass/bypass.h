/* A program's own part of a device, run by the program (design.md, "One state, two executors"): rounds on its socket and
 * its arena, under a lock that it shares with the NIC process. What the engine does not know goes to whoever made it,
 * packet by packet, and comes back on the same bytes. Linux alone. */
#ifndef RNIC_ENGINE_BYPASS_H
#define RNIC_ENGINE_BYPASS_H

#include <stddef.h>
#include <stdint.h>

#define BYPASS_NAME_BYTES 28u
#define BYPASS_COOKIE_BYTES 16u

/* What is left to the NIC process. */
enum bypass_kind {
	BYPASS_PACKET = 1, /* packets of a receive buffer */
	BYPASS_TURN, /* the rest of a queue pair's turn */
	BYPASS_NOTIFY, /* a queue pair completed to armed CQs */
	BYPASS_DOORBELL, /* a block's doorbell was rung */
	BYPASS_TIMER, /* a queue pair's deadline has come */
};
enum { BYPASS_NOTIFY_SEND = 4, BYPASS_NOTIFY_RECV = 8 }; /* effects of BYPASS_NOTIFY: which CQ */

struct bypass_punt {
	uint32_t kind, effects;
	uint64_t qp; /* offset of its record; of a doorbell the block */
	uint64_t limit, count, bytes, room; /* of a turn (device/device.h, engine_sending) */
	/* of packets, `count`: those of their sender that came before and had the idents expected, since the last punt */
	uint32_t step;
	uint32_t buffer, size, at, segment; /* of packets: which buffer, bytes in it, those taken, bytes of each */
	uint32_t name_bytes, tclass, hop_limit, flow_label;
	uint8_t name[BYPASS_NAME_BYTES];
};

struct bypass_answer {
	uint64_t count; /* packets of a turn */
	uint32_t polite; /* it is to be scheduled once more in the end */
	uint32_t settled; /* the packets' sender is known from now on */
};

/* Where everything lies, and who is asked. */
struct bypass_setup {
	uint8_t *arena;
	uint8_t *shared; /* a struct slot, and at SLOT_BUFFERS_AT the buffers */
	int shared_fd; /* the file that it maps; the caller's */
	uint8_t *blocks; /* the window's queue blocks */
	uint8_t *budget; /* the page of what the whole device has in flight, BUDGET_BYTES, */
	uint32_t slot; /* and whose shares of it are this program's */
	int fd; /* the socket */
	uint8_t address[16]; /* the device's */
	uint32_t address_bytes;
	uint32_t port;
	uint64_t slow; /* io/calibrate.h */
	int (*punt)(void *self, const struct bypass_punt *punt, struct bypass_answer *answer); /* 0, or -1 where nobody answers */
	int (*is_gone)(void *self); /* whether there is nobody who could answer */
	void (*fire)(void *self, uint32_t vector); /* an event queue has an entry more */
	void *self;
};

/* One program's end of what it shares with another of the device, or with itself. */
struct bypass_peer {
	uint32_t first_number, numbers; /* of the other's queue pairs */
	int pid; /* its process, as the NIC process knows it; checked by its cookie at each copy */
	uint64_t cookie_at; /* where that lies in it */
	uint8_t cookie[BYPASS_COOKIE_BYTES];
	uint32_t ring; /* the ring that this side sends on; it takes from the other, or, where there is one alone, from it */
	uint8_t *base; /* the file, mapped; not ours after bypass_join has returned 0 */
	uint64_t bytes;
	int bell; /* wakes the other; ours as well */
};

struct bypass;

/* Bytes of the shared record and its buffers. */
size_t bypass_shared_bytes(void);
/* Bytes of the page of the device's budget. */
size_t bypass_budget_bytes(void);
/* NULL without memory, where the arena is laid out by other tables, or where there is no such slot. */
struct bypass *bypass_new(const struct bypass_setup *setup);
void bypass_free(struct bypass *bypass);

/* Whether some thread of the program has the lock, asked without it. */
int bypass_is_taken(const struct bypass *bypass);

/* Everything below is called with the lock held. bypass_try returns 0, or -1 where another has it. */
void bypass_lock(struct bypass *bypass);
int bypass_try(struct bypass *bypass);
void bypass_unlock(struct bypass *bypass);

/* Whether the NIC process takes packets and doorbells itself, or has gone: then there is nothing to do here. */
int bypass_idle(const struct bypass *bypass);
/* The doorbell of a queue pair's block was rung; `number` is 0 for other blocks. */
void bypass_ring(struct bypass *bypass, uint32_t number, uint32_t block, uint64_t now);
/* Loopback inside the NIC (bypass/shm_loopback.h), which is asked for before anything else: 0, or -1 without memory. Then programs of
 * the device may be joined: 0, or -1 where that is not possible, or was done. Both with the lock held. */
int bypass_shm_loopback(struct bypass *bypass);
int bypass_join(struct bypass *bypass, const struct bypass_peer *setup);
/* Before one sleeps until the socket or the bell has something, without the lock: whether there is something already. */
int bypass_has_pending(struct bypass *bypass);
/* One round: whether anything happened. `polls`: for the program's thread that waits, not in its place. */
int bypass_round(struct bypass *bypass, uint64_t now, int polls);
/* Whether what was done since it was asked last has taken more time than a message does. */
int bypass_took_time(struct bypass *bypass);
/* Whether the program's last message will be answered soon, as those before it were, and is not yet. */
int bypass_expects(const struct bypass *bypass);
/* It was not in time: no answer is expected until more have come. */
void bypass_unexpected(struct bypass *bypass);
/* When a round is due though nothing comes: 0 for at once, UINT64_MAX for never. */
uint64_t bypass_deadline(const struct bypass *bypass);

#endif
