/* The deadlines of queue pairs (device/timers.py). */
#ifndef RNIC_ENGINE_TIMERS_H
#define RNIC_ENGINE_TIMERS_H

#include "device/records.h"

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

#endif
