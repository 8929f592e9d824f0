/* What joins NICs of one process without sockets: bursts in order, each in one piece, in the memory of the wire that leads
 * to their receiver, or, where they are long, in sheets that their sender has made them in and trades for empty ones. Any
 * number of threads may put, and one at a time takes. It is the queue of link/loopback.py. */
#ifndef RNIC_ENGINE_LOOPBACK_H
#define RNIC_ENGINE_LOOPBACK_H

#include "io/udp.h"

#define LOOPBACK_BURSTS 4096u /* bursts that may wait; more are lost, as where bytes are too many */
#define LOOPBACK_BUFFERS 64u /* that one wire may have, beside its room */
#define LOOPBACK_BUFFER_MIN_ROOM (1u << 20) /* a wire of less has none */

struct loopback;

/* A wire whose bursts lie in `room` bytes from `bytes` on, which outlive it; NULL without memory. */
struct loopback *loopback_make(uint8_t *bytes, uint64_t room);
void loopback_free(struct loopback *wire);

/* Nothing arrives any more, and nothing waits. */
void loopback_close(struct loopback *wire);

/* Put what rx_buffer says of a burst, and its bytes behind what waits: 0, or EHOSTUNREACH where the wire is closed. Where
 * there is no room its packets are lost, and the sender does not know. */
int loopback_put(struct loopback *wire, const struct rx_buffer *what);

/* The same for `count` bursts, one behind the other in a sheet, from malloc and of `size` bytes, without a copy: the wire has
 * it from now on, and the answer is the caller's instead. NULL: nothing was put, since no sheet is left or the wire closed. */
uint8_t *loopback_trade(struct loopback *wire, const struct rx_buffer *bursts, unsigned count, uint8_t *sheet, size_t size);

/* Take up to `count` bursts: their number. What the slots lead to stays as it is until the next call. */
unsigned loopback_take(struct loopback *wire, struct rx_buffer *slots, unsigned count);

/* Who takes, and sleeps until something waits. */
struct loopback_sleeper {
	int bell; /* an eventfd that wakes it */
	/* Or NULL: does its work in its place, on the thread that has put something; whether that was possible. */
	int (*run_inline)(void *self);
	void *self;
};

/* Whether nothing waits: the sleeper is then called at the next burst, once. */
int loopback_listen(struct loopback *wire, const struct loopback_sleeper *sleeper);
/* Nobody sleeps any longer, nor is anybody about to call who did. */
void loopback_unlisten(struct loopback *wire);
/* Behind what was put: call the sleeper, if there is one. The caller holds no lock that its stand-in waits for. */
void loopback_notify(struct loopback *wire);

/* Packets that were lost for want of room since the last such question. */
uint64_t loopback_lost(struct loopback *wire);

#endif
