/* The token bucket that keeps a queue pair to a rate, in its record (cc/pacing.py). */
#ifndef RNIC_ENGINE_RATE_LIMIT_H
#define RNIC_ENGINE_RATE_LIMIT_H

#include "engine.h"

/* Return how many packets of `packet` bytes may leave now. */
uint64_t engine_rate_limit_allowance(struct queue_pair *record, uint64_t now, uint64_t packet);
/* Take `bytes`, which have left, from the bucket. */
void engine_rate_limit_spend(struct queue_pair *record, uint64_t bytes);
/* Return when the next packet of `packet` bytes may leave. */
uint64_t engine_rate_limit_ready(const struct queue_pair *record, uint64_t packet);

#endif
