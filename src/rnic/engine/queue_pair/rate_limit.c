/* Rates: the bucket, and DCQCN's reaction point (cc/pacing.py, cc/dcqcn.py). */
#include "queue_pair/rate_limit.h"

#include "queue_pair/arithmetic.h"

static uint64_t line_of(const struct engine_congestion *settings)
{
	return settings->line_rate << PACE_RATE_BITS;
}

static int recovered(const struct engine_rate_limit *pace, const struct engine_congestion *settings)
{
	return (pace->point_rate >> PACE_RATE_BITS) + 1 >= settings->line_rate;
}

/* ------------------------------------------------------------------ the reaction point */

static void start(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now)
{
	pace->counted = pace->counter_rounds = pace->timer_rounds = 0;
	pace->alpha_at = now + settings->alpha_ns;
	pace->timer_at = now + settings->timer_ns;
}

/* A round is over (equations 3 and 4, and hyper increase). */
static void increase(struct engine_rate_limit *pace, const struct engine_congestion *settings)
{
	uint64_t fewer = lesser(pace->timer_rounds, pace->counter_rounds);
	if (fewer > settings->recovery_rounds)
		pace->target += settings->hyper_rate << PACE_RATE_BITS;
	else if (greater(pace->timer_rounds, pace->counter_rounds) >= settings->recovery_rounds)
		pace->target += settings->additive_rate << PACE_RATE_BITS;
	pace->target = lesser(pace->target, line_of(settings));
	pace->point_rate = (pace->point_rate + pace->target) >> 1;
}

/* What the timers have done until now: alpha falls (equation 2), rounds raise the rate. */
static void advance(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now)
{
	if (pace->alpha_at <= now) {
		uint64_t rounds = (now - pace->alpha_at) / settings->alpha_ns + 1, fallen;
		pace->alpha_at += rounds * settings->alpha_ns;
		while (rounds-- && (fallen = pace->alpha >> settings->g_shift))
			pace->alpha -= fallen;
	}
	if (pace->timer_at <= now) {
		uint64_t rounds = (now - pace->timer_at) / settings->timer_ns + 1;
		pace->timer_at += rounds * settings->timer_ns;
		while (rounds-- && !recovered(pace, settings)) {
			pace->timer_rounds++;
			increase(pace, settings);
		}
	}
}

static uint64_t window_bytes(const struct engine_rate_limit *pace)
{
	return greater(1, pace->point_rate >> PACE_RATE_BITS);
}

void engine_rate_limit_notified(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now)
{
	advance(pace, settings, now);
	pace->target = pace->point_rate;
	uint64_t cut = pace->point_rate - (pace->point_rate * pace->alpha >> (PACE_ALPHA_BITS + 1));
	pace->point_rate = greater(settings->least_rate << PACE_RATE_BITS, cut);
	pace->alpha += (PACE_ALPHA_ONE - pace->alpha) >> settings->g_shift;
	start(pace, settings, now);
	pace->rate = window_bytes(pace);
}

/* ------------------------------------------------------------------ the bucket */

void engine_rate_limit_begin(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now, uint64_t packet)
{
	*pace = (struct engine_rate_limit){
		.rate = settings->line_rate,
		.since_ns = now,
		.most = greater(packet, settings->line_rate * PACE_BURST_WINDOWS) * PACE_WINDOW_NS,
		.point_rate = line_of(settings),
		.target = line_of(settings),
		.alpha = PACE_ALPHA_ONE,
	};
	pace->credit = (int64_t)pace->most;
	start(pace, settings, now);
}

uint64_t engine_rate_limit_allowance(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t now,
			       uint64_t packet)
{
	advance(pace, settings, now);
	pace->rate = window_bytes(pace);
	pace->most = PACE_BURST_PACKETS * packet * PACE_WINDOW_NS;
	int64_t filled = pace->credit + (int64_t)((now - pace->since_ns) * pace->rate);
	pace->credit = filled < (int64_t)pace->most ? filled : (int64_t)pace->most;
	pace->since_ns = now;
	if (recovered(pace, settings))
		return PACE_UNBOUND;
	return pace->credit > 0 ? (uint64_t)pace->credit / (packet * PACE_WINDOW_NS) : 0;
}

void engine_rate_limit_spend(struct engine_rate_limit *pace, const struct engine_congestion *settings, uint64_t bytes)
{
	if (!recovered(pace, settings))
		pace->credit -= (int64_t)(bytes * PACE_WINDOW_NS);
	pace->counted += bytes;
	while (pace->counted >= settings->counter_bytes) {
		pace->counted -= settings->counter_bytes;
		pace->counter_rounds++;
		increase(pace, settings);
	}
}

uint64_t engine_rate_limit_ready(const struct engine_rate_limit *pace, uint64_t packet)
{
	int64_t missing = (int64_t)(packet * PACE_WINDOW_NS) - pace->credit;
	return missing > 0 ? pace->since_ns + ((uint64_t)missing + pace->rate - 1) / pace->rate : pace->since_ns;
}
