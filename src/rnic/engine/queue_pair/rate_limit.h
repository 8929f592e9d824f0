/* Token bucket that limits a queue pair's rate, in its record (cc/pacing.py). */
#ifndef RNIC_ENGINE_RATE_LIMIT_H
#define RNIC_ENGINE_RATE_LIMIT_H

#include "engine.h"

/* Return the number of packets of `packet` bytes that may be sent now. */
uint64_t engine_rate_limit_allowance(struct queue_pair *record, uint64_t now, uint64_t packet);
/* Take sent `bytes` from the bucket. */
void engine_rate_limit_spend(struct queue_pair *record, uint64_t bytes);
/* Return the time at which the next packet of `packet` bytes may be sent. */
uint64_t engine_rate_limit_ready(const struct queue_pair *record, uint64_t packet);

#endif
