/* The requester (transport/requester.py); engine.h has engine_send. */
#ifndef RNIC_ENGINE_REQUESTER_H
#define RNIC_ENGINE_REQUESTER_H

#include "queue_pair/arithmetic.h"
#include "state.h"

/* Return whether a queue pair has requests that a turn may send. */
static inline int engine_unsent(const struct queue_pair *record)
{
	return record->send_index != record->fetch_index || record->probe_due || record->fetch_index != record->tail ||
	       record->admitted;
}

/* Packets that one turn may want at a peer's limit (transport/inflight.py). */
static inline uint64_t inflight_quantum(uint64_t limit, int is_shared)
{
	uint64_t small = lesser(INFLIGHT_SMALL_QUANTUM, limit);
	return is_shared ? greater(small, lesser(INFLIGHT_QUANTUM, limit >> 1)) : small;
}

#endif
