/* Scatter list of a send work request (transport/sge.py). */
#ifndef RNIC_ENGINE_SGE_H
#define RNIC_ENGINE_SGE_H

#include "memory/memory_key.h"

/* Part of a message under one L_Key. */
struct sge {
	const struct memory_key *key;
	uint64_t va, length;
};

/* Payload of a send work request, or destination of its responses. */
struct sge_list {
	const uint8_t *bytes; /* inline data, else NULL */
	uint64_t length;
	unsigned count;
	struct sge entries[QP_SCATTERS];
};

/* Return whether the send ring and its slab are accessible for the sizes in its record. */
int engine_ring_reachable(const struct engine_qp *qp);
/* Find the payload of the message of SQ entry `index`, and check `rights`; ENGINE_DONE, or a punt. */
enum engine_end engine_sge_resolve(const struct engine_shared *shared, const struct engine_qp *qp,
				   const struct send_wqe *wqe, uint64_t index, uint64_t rights, struct sge_list *sges);
/* Return whether all of it is accessible: memory of this process, or of another by its segment. */
int engine_sge_reachable(const struct engine_shared *shared, const struct sge_list *sges);
/* Move `size` bytes from `offset` on, which must be in range; 0, or -1 if they are not accessible. */
int engine_sge_read(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset, uint8_t *to,
		    uint64_t size);
int engine_sge_write(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset,
		     const uint8_t *from, uint64_t size);
/* Return the source from which one pass may read `size` bytes from `offset` on; empty if there is none. */
struct origin engine_sge_origin(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset,
				uint64_t size);
/* Return key and address of bytes if a single entry of the list contains them all, or NULL. */
const struct memory_key *engine_sge_key(const struct sge_list *sges, uint64_t offset, uint64_t size, uint64_t *va);

#endif
