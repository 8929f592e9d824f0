/* Receive entries: of a queue pair's own ring, or of a shared one (transport/wqe.py, device/srq.py). */
#ifndef RNIC_ENGINE_RECEIVE_QUEUE_H
#define RNIC_ENGINE_RECEIVE_QUEUE_H

#include "engine.h"

/* A receive entry: the one in use, or the next of the ring. */
struct receive {
	int fresh; /* it must still be taken from the ring */
	uint64_t place; /* its position in the ring (of a shared one: in the order ring), not its index */
	uint64_t index, sges, bytes;
	struct scatter scatters[QP_SCATTERS];
};

/* Return how many receive entries of a ring of `entries` to keep back: 0 if the ring is too short. */
static inline uint64_t engine_kept_back(const struct engine_shared *shared, uint64_t entries)
{
	return entries > shared->rq_almost_full + 1 ? shared->rq_almost_full : 0;
}

/* Return the number of posted entries in the queue pair's own ring that are not taken; also 0 if it is not accessible.
 * */
uint64_t engine_receives_left(const struct engine_qp *qp);
/* Read the next entry of the receive queue; ENGINE_DONE, ENGINE_ATTENTION if none is posted, or a punt. */
enum engine_end engine_receive_next(const struct engine_shared *shared, const struct engine_qp *qp,
				    struct receive *receive);
/* Find the entry in use, or read the next one. */
enum engine_end engine_receive_find(const struct engine_shared *shared, const struct engine_qp *qp,
				    struct receive *receive);
/* Take the entry that was read; software may reuse its slot. */
void engine_receive_consume(struct engine_qp *qp, const struct receive *receive);
/* Take it for the open message, which continues in it. */
void engine_receive_open(struct engine_qp *qp, const struct receive *receive);
/* Return whether its keys cover all of it and its bytes are accessible. */
int engine_scatter_check(const struct engine_shared *shared, const struct engine_qp *qp, const struct receive *receive);
/* Store bytes from `offset` on of a checked entry; 0, or -1 if any byte is not accessible. */
int engine_scatter(const struct engine_shared *shared, const struct engine_qp *qp, const struct receive *receive,
		   uint64_t offset, const uint8_t *from, uint64_t size);
/* Return the key of the single scatter entry that contains `size` bytes from `offset` on, and their address in `*va`;
 * NULL if there is none. */
const struct memory_key *engine_scatter_key(const struct engine_shared *shared, const struct engine_qp *qp,
					    const struct receive *receive, uint64_t offset, uint64_t size,
					    uint64_t *va);

#endif
