/* Places of the records of one device that decide what is sent when: those of the scheduler, the in-flight budget and
 * the timers. Queue pairs, programs, peers and lines are named by the offsets of their records; 0 stands for none. */
#ifndef RNIC_ENGINE_RECORDS_H
#define RNIC_ENGINE_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#include "state.h"

struct engine_sched {
	uint8_t *arena;
	struct inflight *inflight;
	struct scheduler *scheduler;
	struct timers *timers;
	uint8_t *budget; /* the page of what the whole device has in flight; NULL if no other program uses the device */
	uint64_t slot; /* of that page: whose shares these are */
};

/* Return the record at an offset of the arena. */
static inline void *engine_record(const struct engine_sched *sched, uint64_t offset)
{
	return sched->arena + offset;
}

#endif
