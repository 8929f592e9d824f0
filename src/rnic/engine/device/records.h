/* Where the records of one device lie that say who sends what when: the scheduler's, the in-flight budget's, the timers'.
 * Queue pairs, programs, peers and lines are named by the offsets of their records; 0 stands for none. */
#ifndef RNIC_ENGINE_RECORDS_H
#define RNIC_ENGINE_RECORDS_H

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

#endif
