/* Places of the bytes of a send work request (transport/sge.py). */
#ifndef RNIC_ENGINE_SGE_H
#define RNIC_ENGINE_SGE_H

#include "memory/memory_key.h"

/* Bytes of a message that one L_Key opens. */
struct sge {
	const struct memory_key *key;
	uint64_t va, length;
};

/* A send work request's bytes, or the places for what its responses bring. */
struct sge_list {
	const uint8_t *bytes; /* they are inline, else NULL */
	uint64_t length;
	unsigned count;
	struct sge entries[QP_SCATTERS];
};

/* Return whether the send ring and its slab are in reach as far as its record says they go. */
int engine_ring_reachable(const struct engine_qp *qp);
/* Find the bytes of the message of SQ entry `index`, with `rights` to them; ENGINE_DONE, or why the reference must
 * look. */
enum engine_end engine_sge_resolve(const struct engine_shared *shared, const struct engine_qp *qp,
				   const struct send_wqe *wqe, uint64_t index, uint64_t rights, struct sge_list *sges);
/* Return whether there is a way to all of them: this process's own memory, or another's by its segment. */
int engine_sge_reachable(const struct engine_shared *shared, const struct sge_list *sges);
/* Move `size` bytes from `offset` on, in range by contract; 0, or -1 if they are out of reach. */
int engine_sge_read(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset, uint8_t *to,
		    uint64_t size);
int engine_sge_write(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset,
		     const uint8_t *from, uint64_t size);
/* Return where one pass may take `size` bytes from `offset` on from, or nowhere. */
struct origin engine_sge_origin(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset,
				uint64_t size);
/* Return the key and the place of bytes if one part of the list has them all, or NULL. */
const struct memory_key *engine_sge_key(const struct sge_list *sges, uint64_t offset, uint64_t size, uint64_t *va);

#endif
