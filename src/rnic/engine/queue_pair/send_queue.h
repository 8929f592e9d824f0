/* Outstanding requests (transport/send_queue.py). */
#ifndef RNIC_ENGINE_SEND_QUEUE_H
#define RNIC_ENGINE_SEND_QUEUE_H

#include "queue_pair/completion.h"
#include "queue_pair/message.h"

/* Return the READ or atomic request at position `place` of those that wait for responses, oldest first. */
static inline struct read_piece *engine_piece(const struct engine_qp *qp, uint64_t place)
{
	return &qp->pieces[(qp->record->piece_first + place) % QP_PIECES];
}

/* Return the SQ index after `index`. */
static inline uint64_t sq_after(const struct engine_qp *qp, uint64_t index)
{
	return index + 1 == qp->record->sq_entries ? 0 : index + 1;
}

/* Return whether the indices of the send ring and of the READ pieces are valid, and each entry has a WQE. */
int engine_sq_valid(const struct engine_qp *qp);
/* Return the newest completely sent message, if it has not completed, or NULL. */
struct send_wqe *engine_sq_last(const struct engine_qp *qp);
/* Acknowledge everything before `psn`; ENGINE_ATTENTION, or a punt with nothing changed. */
enum engine_end engine_sq_advance(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
				  const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects);
/* Check whether engine_sq_advance can succeed; ENGINE_DONE with room for the completions, or the punt. */
enum engine_end engine_sq_advance_check(struct engine_qp *qp, uint64_t psn, struct cq_room *room);
/* Advance after that check, regardless of changes to the CQ since; `psn` is after the acknowledged ones. */
void engine_sq_advance_into(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn,
			    struct cq_room *room, const struct engine_inflight *flight, uint64_t now,
			    struct engine_effects *effects);
/* Check whether there is room for a message's completion by engine_sq_complete_sent; ENGINE_DONE, or a punt. */
enum engine_end engine_sq_complete_check(struct engine_qp *qp, const struct send_wqe *wqe);
/* Complete messages sent unreliably; ENGINE_DONE, or a punt with nothing changed. */
enum engine_end engine_sq_complete_sent(struct engine_qp *qp, struct engine_effects *effects);
/* Return whether the tail-loss probe is on. */
int engine_probe_enabled(const struct engine_shared *shared, const struct engine_qp *qp);
/* Return whether a message is signaled. */
int engine_signaled(const struct engine_qp *qp, const struct send_wqe *wqe);
/* Return the time in nanoseconds within which a retransmission should be acknowledged. */
uint64_t engine_repeat_interval(const struct queue_pair *record, uint64_t alone, uint64_t srtt, uint64_t rttvar);
/* Update the mean round trip and its deviation by one sample (RFC 6298). */
void engine_rtt_update(uint64_t *srtt, uint64_t *rttvar, uint64_t sample);
/* Shrink the window by one in `part` after a loss. */
void engine_sq_reduce_window(const struct engine_shared *shared, struct queue_pair *record, uint64_t part);
/* Go back to `psn`, which was lost. The caller has checked that a retry is left. */
void engine_sq_retry(const struct engine_shared *shared, struct engine_qp *qp, uint64_t psn, uint64_t now,
		     struct engine_effects *effects);
/* Go back to `psn`, which was refused, not lost: this costs no retry and does not change deadlines. */
void engine_sq_rewind_for_free(struct engine_qp *qp, uint64_t psn, struct engine_effects *effects);
/* Rewind to `psn`, the next packet to send (Go-Back-N). */
void engine_sq_rewind(struct engine_qp *qp, uint64_t psn, struct engine_effects *effects);
/* Start the timers that are not running. */
void engine_sq_arm_timers(const struct engine_shared *shared, struct engine_qp *qp,
			  const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects);

#endif
