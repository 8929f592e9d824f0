/* The deadlines of queue pairs (device/timers.py). */
#ifndef RNIC_ENGINE_TIMERS_H
#define RNIC_ENGINE_TIMERS_H

#include "device/records.h"

/* Wake a queue pair at `deadline`, which is earlier than its armed_ns. */
void engine_timers_arm(const struct engine_sched *sched, uint64_t qp, uint64_t deadline);
void engine_timers_forget(const struct engine_sched *sched, uint64_t qp);
/* Return when the next queue pair is to be woken, or NEVER. */
uint64_t engine_timers_next(const struct engine_sched *sched);
/* Take a queue pair whose time has come, and disarm it; 0 if there is none. */
uint64_t engine_timers_due(const struct engine_sched *sched, uint64_t now);
/* Return the earliest deadline of a queue pair, or NEVER. */
uint64_t engine_deadline_of(const struct queue_pair *record);
/* Arm a queue pair whose deadline became earlier. */
void engine_rearm(const struct engine_sched *sched, uint64_t qp);

#endif
