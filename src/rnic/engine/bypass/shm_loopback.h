/* Loopback inside the NIC: rings in shared memory between programs of one device (state/shm_loopback.py), which carry
 * packets in place of the network. Each record and each of a ring's numbers is copied before it is checked: the other
 * end may write anything there. Long messages leave their bytes where they are (queue_pair/by_reference.h): the
 * receiver has the kernel copy them from the sender's memory (process_vm_readv) to their destination. Linux only. */
#ifndef RNIC_ENGINE_SHM_LOOPBACK_H
#define RNIC_ENGINE_SHM_LOOPBACK_H

#include "queue_pair/by_reference.h"
#include "bypass/bypass.h"
#include "device/device.h"
#include "io/capture.h"
#include "io/faults.h"
#include "io/udp.h"

#define SHM_PEERS 128u

struct shm_loopback;
struct shm_peer;

/* Path of a queue pair to its peer; initialize with zeros. */
struct shm_loopback_path {
	struct engine_peer_path peer_path;
	struct shm_loopback *shm;
	struct shm_peer *peer;
	const struct queue_pair *record;
	int uses_ring; /* packets use the ring now: earlier ones are acknowledged or used it, too */
};

/* Make one; NULL without memory. `faults` are the device's, which judge what goes by
 * reference: nothing does while `capture` (or NULL) records; `name` is the device's own socket address, which the packets of its programs come
 * from. */
struct shm_loopback *shm_loopback_new(struct engine_device *device, struct slot *slot, struct faults *faults,
				      const struct capture *capture, const uint8_t *name, uint32_t name_bytes);
void shm_loopback_free(struct shm_loopback *shm);

/* Join a program of the device; -1 if that is not possible or was done. Called with the engine's lock, like the next.
 * */
int shm_loopback_join(struct shm_loopback *shm, const struct bypass_peer *setup);
/* Return the path of a queue pair, or NULL if none leads to its peer. */
struct engine_peer_path *shm_loopback_path_of(struct shm_loopback *shm, const struct engine_qp *qp,
					      struct shm_loopback_path *path);
/* Implement the `divert` of a tx_path, whose `divert_arg` is the queue pair's path. */
int shm_loopback_divert(void *self, const struct tx_path *by, const uint8_t *bytes, size_t length, uint32_t segment,
			uint32_t count);
/* Implement the `ring_receive` and `ring_take` of an io_poll. */
unsigned shm_loopback_receive(void *self, struct rx_buffer *buffers, unsigned count, uint64_t now);
int shm_loopback_take(void *self, const struct rx_buffer *rx, uint64_t now, struct engine_stop_info *info);

/* Return whether records wait; called without the lock. `sleeps`: if none do, the next one's sender wakes this
 * program. */
int shm_loopback_pending(struct shm_loopback *shm, int sleeps);

#endif
