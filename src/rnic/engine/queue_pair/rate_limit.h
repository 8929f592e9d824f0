/* Congestion control of one queue pair: the bucket that keeps it to a rate, and the rate that DCQCN's reaction point
 * finds. As cc/pacing.py and cc/dcqcn.py do; the caller asks for `dcqcn` only if the settings say so. */
#ifndef RNIC_ENGINE_RATE_LIMIT_H
#define RNIC_ENGINE_RATE_LIMIT_H

#include "engine.h"

/* Begin with a full bucket at line rate, at the first notification. `packet` is the largest packet in bytes. */
void engine_rate_limit_begin(struct engine_rate_limit *limit, const struct engine_congestion *settings, uint64_t now,
			     uint64_t packet);
/* React to a notification. */
void engine_rate_limit_notified(struct engine_rate_limit *limit, const struct engine_congestion *settings,
				uint64_t now);
/* Return how many packets of so many bytes may leave now. */
uint64_t engine_rate_limit_allowance(struct engine_rate_limit *limit, const struct engine_congestion *settings,
				     uint64_t now, uint64_t packet);
/* Take so many bytes, which have left, from the bucket. */
void engine_rate_limit_spend(struct engine_rate_limit *limit, const struct engine_congestion *settings, uint64_t bytes);
/* Return when the next packet of so many bytes may leave. */
uint64_t engine_rate_limit_ready(const struct engine_rate_limit *limit, uint64_t packet);

#endif
