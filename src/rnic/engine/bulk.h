/* Packets without their bytes: a run of packets of one message between two programs of a machine, of which only where the
 * sender has the bytes is told. Who takes it reads them there, straight to where they belong (hairpin.h). It takes the
 * PSNs of the packets that it stands for, so that everything else, losses among it, is as with those. */
#ifndef RNIC_ENGINE_BULK_H
#define RNIC_ENGINE_BULK_H

#include "engine.h"

#define BULK_PIECES 16u
#define BULK_ASKS 1u
#define BULK_SOLICITED 2u

struct engine_bulk {
	uint32_t destination, source; /* queue pairs */
	uint32_t psn, packets; /* of the first, and how many they are */
	uint32_t operation; /* of one packet that would be all of them */
	uint32_t flags; /* BULK_* */
	uint64_t va, bytes; /* where the message goes, and bytes of these packets */
	uint32_t rkey, length, imm; /* of the message */
	uint32_t count; /* pieces */
	uint64_t epoch; /* of the source, when it was made */
	struct {
		uint64_t va, length;
	} pieces[BULK_PIECES]; /* in the sender's memory */
};

/* Which way the packets of one queue pair take that has such a peer. */
struct engine_lane {
	/* Whether such packets may leave from this PSN on; then `*epoch` is the queue pair's. */
	int (*opens)(struct engine_lane *lane, const struct engine_qp *qp, uint64_t psn, uint64_t *epoch);
};

/* Read the bytes to `count` places, in `bulk->bytes` all in all; 0, or -1 where that is not possible. */
struct engine_place {
	uint64_t va; /* of this process */
	uint64_t length;
};
struct engine_pull {
	int (*pull)(struct engine_pull *self, const struct engine_bulk *bulk, const struct engine_place *places, unsigned count);
};

#endif
