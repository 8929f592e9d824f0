/* Loopback inside the NIC: rings in shared memory between programs of one device (state/shm_loopback.py), which take packets
 * the place of the wire. What a ring brings is copied before it is looked at, as is each of its numbers: who is at the
 * other end may write anything there. Long messages leave their bytes where they are (queue_pair/by_reference.h), and the taker has the
 * kernel copy them from the sender's memory (process_vm_readv) to where they belong. Linux alone. */
#ifndef RNIC_ENGINE_SHM_LOOPBACK_H
#define RNIC_ENGINE_SHM_LOOPBACK_H

#include "queue_pair/by_reference.h"
#include "bypass/bypass.h"
#include "device/device.h"
#include "io/udp.h"

#define SHM_PEERS 128u

struct shm_loopback;
struct shm_peer;

/* The lane of a queue pair: it begins with all zeros. */
struct shm_loopback_path {
	struct engine_peer_path lane;
	struct shm_loopback *hairpin;
	struct shm_peer *peer;
	const struct queue_pair *record;
	int on; /* its packets go by the ring now: those before them have been acknowledged, or went there too */
};

/* NULL without memory. `name` is the device's own socket address, where the packets of its programs come from. */
struct shm_loopback *shm_loopback_new(struct engine_device *device, struct slot *slot, const uint8_t *name, uint32_t name_bytes);
void shm_loopback_free(struct shm_loopback *hairpin);

/* Both with the engine's lock held. Joining again with whom one has joined changes nothing. 0 or -1. */
int shm_loopback_join(struct shm_loopback *hairpin, const struct bypass_peer *setup);
/* The lane of a queue pair, or NULL where none leads to the one that it is connected to. */
struct engine_peer_path *shm_loopback_path_of(struct shm_loopback *hairpin, const struct engine_qp *qp, struct shm_loopback_path *lane);
/* tx_path's divert, with such a lane. */
int shm_loopback_divert(void *lane, const uint8_t *bytes, size_t length, uint32_t segment, uint32_t count);
/* io_poll's draw and take. */
unsigned shm_loopback_receive(void *hairpin, struct rx_buffer *slots, unsigned count);
int shm_loopback_take(void *hairpin, const struct rx_buffer *slot, uint64_t now, struct engine_stop_info *told);

/* Whether records wait; `sleeps`: if none do, whoever brings one rings the bell. Without the lock. */
int shm_loopback_pending(struct shm_loopback *hairpin, int sleeps);

#endif
