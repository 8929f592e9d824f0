/* The send scheduler: deficit round robin by bytes, among programs and among the queue pairs of each
 * (device/scheduler.py). */
#ifndef RNIC_ENGINE_SCHEDULER_H
#define RNIC_ENGINE_SCHEDULER_H

#include "device/records.h"

/* Request a turn for a queue pair that has something to send, unless it waits for one already or is held. */
void engine_schedule(const struct engine_sched *sched, uint64_t qp);
void engine_scheduler_add(const struct engine_sched *sched, uint64_t qp);
void engine_scheduler_remove(const struct engine_sched *sched, uint64_t qp);
/* Return the queue pair whose turn it is; at least one must wait. engine_scheduler_spend ends the turn. */
uint64_t engine_scheduler_take(const struct engine_sched *sched);
/* Return whether others wait; if so, `*bytes` is the number of bytes that the last taken queue pair may send now. */
int engine_scheduler_allowance(const struct engine_sched *sched, uint64_t qp, int64_t *bytes);
/* End the turn of a queue pair that no longer exists. */
void engine_scheduler_end(const struct engine_sched *sched);
/* End the turn after `size` bytes. `again`: the queue pair has more to send. */
void engine_scheduler_spend(const struct engine_sched *sched, uint64_t qp, uint64_t size, int again);

#endif
