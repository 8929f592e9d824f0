/* Receive entries: of a queue pair's own ring, or of a shared one (transport/wqe.py, device/srq.py). */
#ifndef RNIC_ENGINE_RECEIVE_QUEUE_H
#define RNIC_ENGINE_RECEIVE_QUEUE_H

#include "engine.h"

/* A receive entry: the one in use, or the next of the ring. */
struct receive {
	int fresh; /* it is to be taken from the ring */
	uint64_t place; /* where in the ring it is; of a shared one, whose order lies behind its slots, not its index */
	uint64_t index, sges, bytes;
	struct scatter scatters[QP_SCATTERS];
};

/* Return how many receive entries of a ring of `entries` are kept back: none if it holds no more. */
static inline uint64_t engine_kept_back(const struct engine_shared *shared, uint64_t entries)
{
	return entries > shared->rq_almost_full + 1 ? shared->rq_almost_full : 0;
}

/* Return how many entries of the queue pair's own ring are posted and not taken; 0 also if it is out of reach. */
uint64_t engine_receives_left(const struct engine_qp *qp);
/* Read the next entry of the receive queue; ENGINE_DONE, ENGINE_ATTENTION if none is posted, or a punt. */
enum engine_end engine_receive_next(const struct engine_shared *shared, const struct engine_qp *qp,
				    struct receive *receive);
/* Find the entry in use, or else read the next. */
enum engine_end engine_receive_find(const struct engine_shared *shared, const struct engine_qp *qp,
				    struct receive *receive);
/* Take the entry that was read: the ring's slot is software's again. */
void engine_receive_consume(struct engine_qp *qp, const struct receive *receive);
/* Take it for the message that is open, which goes on in it. */
void engine_receive_open(struct engine_qp *qp, const struct receive *receive);
/* Return whether its keys open all of it, and there is a way to its bytes. */
int engine_scatter_check(const struct engine_shared *shared, const struct engine_qp *qp, const struct receive *receive);
/* Store bytes from `offset` of an entry on that was checked; 0, or -1 if any byte is out of reach. */
int engine_scatter(const struct engine_shared *shared, const struct engine_qp *qp, const struct receive *receive,
		   uint64_t offset, const uint8_t *from, uint64_t size);
/* Return the key of the entry's one part that takes `size` bytes from `offset` on, which go to `*va`; NULL if none
 * does. */
const struct memory_key *engine_scatter_key(const struct engine_shared *shared, const struct engine_qp *qp,
					    const struct receive *receive, uint64_t offset, uint64_t size,
					    uint64_t *va);

#endif
