/* Packets without their bytes: a run of packets of one message, or of the responses to one READ, between two programs of a
 * machine, of which only where the sender has the bytes is told. Who takes it reads them there, straight to where they
 * belong (bypass/shm_loopback.h): nobody stores to the memory of another. It takes the PSNs of the packets that it stands for, so
 * that everything else, losses among it, is as with those. */
#ifndef RNIC_ENGINE_BULK_H
#define RNIC_ENGINE_BULK_H

#include "engine.h"

#define BY_REFERENCE_RANGES 16u
#define BY_REFERENCE_ACK_REQ 1u
#define BY_REFERENCE_SOLICITED 2u

struct engine_range {
	uint64_t va; /* of the process that it is said of */
	uint64_t length;
};

struct engine_by_reference {
	uint32_t destination, source; /* queue pairs */
	uint32_t psn, packets; /* of the first, and how many they are */
	uint32_t operation; /* of one packet that would be all of them */
	uint32_t flags; /* BULK_* */
	uint64_t va, bytes; /* where the message goes, and bytes of these packets */
	uint32_t rkey, length, imm; /* of the message */
	uint32_t count; /* pieces */
	uint64_t epoch; /* of the source, when it was made */
	struct engine_range pieces[BY_REFERENCE_RANGES]; /* in the sender's memory */
};

/* Which way the packets of one queue pair take that has such a peer. */
struct engine_peer_path {
	/* Whether such packets of an operation may leave from this PSN on; then `*epoch` is the queue pair's. */
	int (*opens)(struct engine_peer_path *lane, const struct engine_qp *qp, uint32_t operation, uint64_t psn, uint64_t *epoch);
	int asks_again; /* responses before the next PSN have been asked for with their bytes, and have no other way */
	uint64_t again;
};

/* Read the bytes to `count` places, in `bulk->bytes` all in all; 0, or -1 where that is not possible. */
struct engine_pull {
	int (*pull)(struct engine_pull *self, const struct engine_by_reference *bulk, const struct engine_range *places, unsigned count);
};

#endif
