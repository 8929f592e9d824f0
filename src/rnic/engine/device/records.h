/* Pointers to a device's records of scheduler, in-flight budget and timers. Queue pairs, programs, peers and lines are
 * referred to by the offsets of their records; 0 is none. */
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
	uint8_t *budget; /* the device's budget page; NULL if no other program uses the device */
	uint64_t slot; /* slot of this program in that page */
};

/* Return the record at an offset of the arena. */
static inline void *engine_record(const struct engine_sched *sched, uint64_t offset)
{
	return sched->arena + offset;
}

#endif
