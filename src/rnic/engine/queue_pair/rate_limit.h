/* Congestion control of one queue pair: the bucket that keeps it to a rate, and the rate that DCQCN's reaction point finds.
 * cc/pacing.py and cc/dcqcn.py are the truth; who calls asks for `dcqcn` only where the settings say so. */
#ifndef RNIC_ENGINE_PACE_H
#define RNIC_ENGINE_PACE_H

#include "engine.h"

/* A queue pair's first notification: a full bucket at line rate. `packet` is its largest packet in bytes. */
void engine_rate_limit_begin(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now, uint64_t packet);
/* A notification came. */
void engine_rate_limit_notified(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now);
/* How many packets of so many bytes may leave now. */
uint64_t engine_rate_limit_allowance(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now,
			       uint64_t packet);
/* So many bytes have left. */
void engine_rate_limit_spend(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t bytes);
/* When the next packet of so many bytes may leave. */
uint64_t engine_rate_limit_ready(const struct engine_rate_limit *pace, uint64_t packet);

#endif
