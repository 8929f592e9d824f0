/* Loopback inside the NIC: rings in shared memory between programs of one device (state/hairpin.py), which take packets
 * the place of the wire. What a ring brings is copied before it is looked at, as is each of its numbers: who is at the
 * other end may write anything there. Long messages leave their bytes where they are (queue_pair/by_reference.h), and the taker has the
 * kernel copy them from the sender's memory (process_vm_readv) to where they belong. Linux alone. */
#ifndef RNIC_ENGINE_HAIRPIN_H
#define RNIC_ENGINE_HAIRPIN_H

#include "queue_pair/by_reference.h"
#include "bypass/bypass.h"
#include "device/device.h"
#include "io/udp.h"

#define HAIRPIN_PEERS 128u

struct hairpin;
struct hairpin_peer;

/* The lane of a queue pair: it begins with all zeros. */
struct hairpin_lane {
	struct engine_lane lane;
	struct hairpin *hairpin;
	struct hairpin_peer *peer;
	const struct queue_pair *record;
	int on; /* its packets go by the ring now: those before them have been acknowledged, or went there too */
};

/* NULL without memory. `name` is the device's own socket address, where the packets of its programs come from. */
struct hairpin *hairpin_new(struct engine_device *device, struct slot *slot, const uint8_t *name, uint32_t name_bytes);
void hairpin_free(struct hairpin *hairpin);

/* Both with the engine's lock held. Joining again with whom one has joined changes nothing. 0 or -1. */
int hairpin_join(struct hairpin *hairpin, const struct bypass_peer *setup);
/* The lane of a queue pair, or NULL where none leads to the one that it is connected to. */
struct engine_lane *hairpin_lead(struct hairpin *hairpin, const struct engine_qp *qp, struct hairpin_lane *lane);
/* pump_path's divert, with such a lane. */
int hairpin_divert(void *lane, const uint8_t *bytes, size_t length, uint32_t segment, uint32_t count);
/* pump_round's draw and take. */
unsigned hairpin_draw(void *hairpin, struct pump_slot *slots, unsigned count);
int hairpin_take(void *hairpin, const struct pump_slot *slot, uint64_t now, struct engine_told *told);

/* Whether records wait; `sleeps`: if none do, whoever brings one rings the bell. Without the lock. */
int hairpin_waits(struct hairpin *hairpin, int sleeps);

#endif
