/* Responses that a responder owes its peer (transport/response_queue.py). */
#ifndef RNIC_ENGINE_RESPONSE_QUEUE_H
#define RNIC_ENGINE_RESPONSE_QUEUE_H

#include "engine.h"

/* Return whether the ring of responses is in its slots. */
int engine_response_queue_valid(const struct engine_qp *qp);
/* Return whether an ACK can tell how many receive entries are left, if it has to. */
int engine_credits_known(const struct engine_qp *qp);
/* Return the syndrome of an ACK: end-to-end credits if they are on, else the invalid code. */
uint64_t engine_ack_syndrome(const struct engine_shared *shared, const struct engine_qp *qp);
/* Queue an ACK or NAK. */
void engine_response_ack(struct engine_qp *qp, uint64_t psn, uint64_t syndrome, struct engine_effects *effects);
/* Acknowledge what came and did not ask for it. */
void engine_response_queue_ack(const struct engine_shared *shared, struct engine_qp *qp,
			       struct engine_effects *effects);
/* Queue the responses to a READ, or an atomic's; `again` if it was a duplicate. Its slot, or NULL if there is no
 * room: then nothing is said. */
struct reply *engine_response_new(struct engine_qp *qp, uint64_t kind, uint64_t psn, uint64_t packets,
				  uint64_t syndrome, int again);
/* Return the response at a place of the ring, oldest first. */
static inline struct reply *engine_response_at(const struct engine_qp *qp, uint64_t place)
{
	return &qp->replies[(qp->record->reply_first + place) % QP_REPLIES];
}

#endif
