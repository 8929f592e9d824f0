/* Responses that a responder owes its peer (transport/response_queue.py). */
#ifndef RNIC_ENGINE_RESPONSE_QUEUE_H
#define RNIC_ENGINE_RESPONSE_QUEUE_H

#include "engine.h"

/* Return whether the indices of the response ring are valid. */
int engine_response_queue_valid(const struct engine_qp *qp);
/* Return whether the credits for an ACK are known, if they are needed. */
int engine_credits_known(const struct engine_qp *qp);
/* Return the syndrome of an ACK: end-to-end credits if they are on, else the invalid code. */
uint64_t engine_ack_syndrome(const struct engine_shared *shared, const struct engine_qp *qp);
/* Queue an ACK or NAK. */
void engine_response_ack(struct engine_qp *qp, uint64_t psn, uint64_t syndrome, struct engine_effects *effects);
/* Send the delayed ACK. */
void engine_response_queue_ack(const struct engine_shared *shared, struct engine_qp *qp,
			       struct engine_effects *effects);
/* Queue the response to a READ or atomic; `again` if that is a duplicate. Returns its slot, or NULL if there is no
 * room; then no response is sent. */
struct reply *engine_response_new(struct engine_qp *qp, uint64_t kind, uint64_t psn, uint64_t packets,
				  uint64_t syndrome, int again);
/* Return the response at a position in the ring, oldest first. */
static inline struct reply *engine_response_at(const struct engine_qp *qp, uint64_t place)
{
	return &qp->replies[(qp->record->reply_first + place) % QP_REPLIES];
}

#endif
