/* What joins NICs of one process without sockets: bursts in order, each in one piece, in the memory of the wire that leads
 * to their receiver, or, where they are long, in sheets that their sender has made them in and trades for empty ones. Any
 * number of threads may put, and one at a time takes. It is the queue of link/loopback.py. */
#ifndef RNIC_ENGINE_WIRE_H
#define RNIC_ENGINE_WIRE_H

#include "io/udp.h"

#define WIRE_PARCELS 4096u /* bursts that may wait; more are lost, as where bytes are too many */
#define WIRE_SHEETS 64u /* that one wire may have, beside its room */
#define WIRE_SHEET_ROOM (1u << 20) /* a wire of less has none */

struct pump_wire;

/* A wire whose bursts lie in `room` bytes from `bytes` on, which outlive it; NULL without memory. */
struct pump_wire *pump_wire_make(uint8_t *bytes, uint64_t room);
void pump_wire_free(struct pump_wire *wire);

/* Nothing arrives any more, and nothing waits. */
void pump_wire_close(struct pump_wire *wire);

/* Put what pump_slot says of a burst, and its bytes behind what waits: 0, or EHOSTUNREACH where the wire is closed. Where
 * there is no room its packets are lost, and the sender does not know. */
int pump_wire_put(struct pump_wire *wire, const struct pump_slot *what);

/* The same for `count` bursts, one behind the other in a sheet, from malloc and of `size` bytes, without a copy: the wire has
 * it from now on, and the answer is the caller's instead. NULL: nothing was put, since no sheet is left or the wire closed. */
uint8_t *pump_wire_trade(struct pump_wire *wire, const struct pump_slot *bursts, unsigned count, uint8_t *sheet, size_t size);

/* Take up to `count` bursts: their number. What the slots lead to stays as it is until the next call. */
unsigned pump_wire_take(struct pump_wire *wire, struct pump_slot *slots, unsigned count);

/* Who takes, and sleeps until something waits. */
struct wire_sleeper {
	int bell; /* an eventfd that wakes it */
	/* Or NULL: does its work in its place, on the thread that has put something; whether that was possible. */
	int (*stand_in)(void *self);
	void *self;
};

/* Whether nothing waits: the sleeper is then called at the next burst, once. */
int pump_wire_listen(struct pump_wire *wire, const struct wire_sleeper *sleeper);
/* Nobody sleeps any longer, nor is anybody about to call who did. */
void pump_wire_leave(struct pump_wire *wire);
/* Behind what was put: call the sleeper, if there is one. The caller holds no lock that its stand-in waits for. */
void pump_wire_call(struct pump_wire *wire);

/* Packets that were lost for want of room since the last such question. */
uint64_t pump_wire_lost(struct pump_wire *wire);

#endif
