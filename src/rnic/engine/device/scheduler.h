/* Who is served when, on the records of `state`: inflight, turns and timers. They are the port's; the files of one queue
 * pair do not call them. Queue pairs, programs, peers and lines are named by the offsets of their records; 0 is nobody. */
#ifndef RNIC_ENGINE_SCHEDULE_H
#define RNIC_ENGINE_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "state.h"

/* The records of one device. */
struct engine_sched {
	uint8_t *arena;
	struct inflight *inflight;
	struct scheduler *scheduler;
	struct timers *timers;
	uint8_t *budget; /* the page of what the whole device has in flight; NULL for who is alone */
	uint64_t slot; /* whose shares of it are these */
};

/* The record at an offset of the arena. */
static inline void *engine_record(const struct engine_sched *sched, uint64_t offset)
{
	return sched->arena + offset;
}

/* ------------------------------------------------------------------ lists (state/lists.py) */

/* Two words of an owner's record, first and last; a member's next and previous lie `link` bytes into its own. */
void engine_list_append(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item);
void engine_list_insert(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item, uint64_t before);
void engine_list_unlink(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item);

/* ------------------------------------------------------------------ turns (device/scheduler.py) */

/* A queue pair has something to send: a turn, unless it waits for one already or is held. */
void engine_schedule(const struct engine_sched *sched, uint64_t qp);
void engine_scheduler_add(const struct engine_sched *sched, uint64_t qp);
void engine_scheduler_remove(const struct engine_sched *sched, uint64_t qp);
/* The queue pair whose turn it is; one must wait. engine_scheduler_spend ends the turn. */
uint64_t engine_scheduler_take(const struct engine_sched *sched);
/* Whether others wait; then `*bytes` is what the queue pair taken last may send now. */
int engine_scheduler_allowance(const struct engine_sched *sched, uint64_t qp, int64_t *bytes);
/* The turn ends, as that of a queue pair which is not there any more. */
void engine_scheduler_end(const struct engine_sched *sched);
/* The turn ends after `size` bytes; `again`: there is more to send. */
void engine_scheduler_spend(const struct engine_sched *sched, uint64_t qp, uint64_t size, int again);

/* ------------------------------------------------------------------ timers (device/timers.py) */

/* Wake a queue pair at `deadline`, which lies before its armed_ns. */
void engine_timers_arm(const struct engine_sched *sched, uint64_t qp, uint64_t deadline);
void engine_timers_forget(const struct engine_sched *sched, uint64_t qp);
/* When somebody is to be woken next, or NEVER. */
uint64_t engine_timers_next(const struct engine_sched *sched);
/* A queue pair whose time has come, which is armed no more; 0 where there is none. */
uint64_t engine_timers_due(const struct engine_sched *sched, uint64_t now);
/* When a queue pair wants to be called, or NEVER. */
uint64_t engine_deadline_of(const struct queue_pair *record);
/* Arm a queue pair whose deadline moved forward. */
void engine_rearm(const struct engine_sched *sched, uint64_t qp);

/* ------------------------------------------------------------------ inflight (transport/inflight.py) */

/* Packets that may be in flight to a peer and in all, as what others of the device have there leaves room. */
struct engine_limits {
	uint64_t peer, nic;
	uint64_t others; /* slots that have packets in flight as well, or wait for room */
};
void engine_inflight_limits(const struct engine_sched *sched, const struct peer *peer, struct engine_limits *limits);
/* `packets` more are in flight to a peer, of which `own` had been promised. */
void engine_inflight_take(const struct engine_sched *sched, struct peer *peer, uint64_t packets, uint64_t own);
/* `packets` fewer are; who waits is given turns. */
void engine_inflight_release(const struct engine_sched *sched, struct peer *peer, uint64_t packets);
/* No room: a queue pair waits in line. 0, or -1 where it would need a line and none is spare: nothing has changed. */
int engine_inflight_wait(const struct engine_sched *sched, uint64_t qp);
/* A queue pair waits no more, and was promised nothing. */
void engine_inflight_leave(const struct engine_sched *sched, uint64_t qp);
/* A queue pair has had a turn: what it was promised and did not take is for others. */
void engine_inflight_turn_over(const struct engine_sched *sched, uint64_t qp);
/* A round trip was measured. */
void engine_peer_measured(struct peer *peer, uint64_t sample, uint64_t now);
/* Packets arrived: more may be in flight. */
void engine_peer_acknowledged(struct peer *peer, uint64_t packets);
/* A packet was lost. */
void engine_peer_lost(struct peer *peer, uint64_t now);
/* Nothing came for an ACK timeout. */
void engine_peer_silent(struct peer *peer, uint64_t now);

#endif
