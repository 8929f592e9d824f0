/* Rates: the bucket, and DCQCN's reaction point (cc/pacing.py, cc/dcqcn.py). */
#include "queue_pair/rate_limit.h"

#include "queue_pair/arithmetic.h"

static uint64_t line_rate(const struct engine_congestion *settings)
{
	return settings->line_rate << PACE_RATE_BITS;
}

static int is_recovered(const struct engine_rate_limit *limit, const struct engine_congestion *settings)
{
	return (limit->point_rate >> PACE_RATE_BITS) + 1 >= settings->line_rate;
}

/* ------------------------------------------------------------------ the reaction point */

static void start_rounds(struct engine_rate_limit *limit, const struct engine_congestion *settings, uint64_t now)
{
	limit->counted = limit->counter_rounds = limit->timer_rounds = 0;
	limit->alpha_at = now + settings->alpha_ns;
	limit->timer_at = now + settings->timer_ns;
}

/* Raise the rate at the end of a round (equations 3 and 4, and hyper increase). */
static void increase_rate(struct engine_rate_limit *limit, const struct engine_congestion *settings)
{
	uint64_t fewer = lesser(limit->timer_rounds, limit->counter_rounds);
	if (fewer > settings->recovery_rounds)
		limit->target += settings->hyper_rate << PACE_RATE_BITS;
	else if (greater(limit->timer_rounds, limit->counter_rounds) >= settings->recovery_rounds)
		limit->target += settings->additive_rate << PACE_RATE_BITS;
	limit->target = lesser(limit->target, line_rate(settings));
	limit->point_rate = (limit->point_rate + limit->target) >> 1;
}

/* Catch up with the timers: alpha falls (equation 2), rounds raise the rate. */
static void advance_timers(struct engine_rate_limit *limit, const struct engine_congestion *settings, uint64_t now)
{
	if (limit->alpha_at <= now) {
		uint64_t rounds = (now - limit->alpha_at) / settings->alpha_ns + 1, fallen;
		limit->alpha_at += rounds * settings->alpha_ns;
		while (rounds-- && (fallen = limit->alpha >> settings->g_shift))
			limit->alpha -= fallen;
	}
	if (limit->timer_at <= now) {
		uint64_t rounds = (now - limit->timer_at) / settings->timer_ns + 1;
		limit->timer_at += rounds * settings->timer_ns;
		while (rounds-- && !is_recovered(limit, settings)) {
			limit->timer_rounds++;
			increase_rate(limit, settings);
		}
	}
}

static uint64_t window_bytes(const struct engine_rate_limit *limit)
{
	return greater(1, limit->point_rate >> PACE_RATE_BITS);
}

void engine_rate_limit_notified(struct engine_rate_limit *limit, const struct engine_congestion *settings, uint64_t now)
{
	advance_timers(limit, settings, now);
	limit->target = limit->point_rate;
	uint64_t cut = limit->point_rate - (limit->point_rate * limit->alpha >> (PACE_ALPHA_BITS + 1));
	limit->point_rate = greater(settings->least_rate << PACE_RATE_BITS, cut);
	limit->alpha += (PACE_ALPHA_ONE - limit->alpha) >> settings->g_shift;
	start_rounds(limit, settings, now);
	limit->rate = window_bytes(limit);
}

/* ------------------------------------------------------------------ the bucket */

void engine_rate_limit_begin(struct engine_rate_limit *limit, const struct engine_congestion *settings, uint64_t now,
			     uint64_t packet)
{
	*limit = (struct engine_rate_limit){
		.rate = settings->line_rate,
		.since_ns = now,
		.most = greater(packet, settings->line_rate * PACE_BURST_WINDOWS) * PACE_WINDOW_NS,
		.point_rate = line_rate(settings),
		.target = line_rate(settings),
		.alpha = PACE_ALPHA_ONE,
	};
	limit->credit = (int64_t)limit->most;
	start_rounds(limit, settings, now);
}

uint64_t engine_rate_limit_allowance(struct engine_rate_limit *limit, const struct engine_congestion *settings,
				     uint64_t now, uint64_t packet)
{
	advance_timers(limit, settings, now);
	limit->rate = window_bytes(limit);
	limit->most = PACE_BURST_PACKETS * packet * PACE_WINDOW_NS;
	int64_t filled = limit->credit + (int64_t)((now - limit->since_ns) * limit->rate);
	limit->credit = filled < (int64_t)limit->most ? filled : (int64_t)limit->most;
	limit->since_ns = now;
	if (is_recovered(limit, settings))
		return PACE_UNBOUND;
	return limit->credit > 0 ? (uint64_t)limit->credit / (packet * PACE_WINDOW_NS) : 0;
}

void engine_rate_limit_spend(struct engine_rate_limit *limit, const struct engine_congestion *settings, uint64_t bytes)
{
	if (!is_recovered(limit, settings))
		limit->credit -= (int64_t)(bytes * PACE_WINDOW_NS);
	limit->counted += bytes;
	while (limit->counted >= settings->counter_bytes) {
		limit->counted -= settings->counter_bytes;
		limit->counter_rounds++;
		increase_rate(limit, settings);
	}
}

uint64_t engine_rate_limit_ready(const struct engine_rate_limit *limit, uint64_t packet)
{
	int64_t missing = (int64_t)(packet * PACE_WINDOW_NS) - limit->credit;
	return missing > 0 ? limit->since_ns + ((uint64_t)missing + limit->rate - 1) / limit->rate : limit->since_ns;
}
