/* Congestion controls: the outstanding limit, DCQCN's reaction point (cc/limit.py, cc/dcqcn.py), and those in Python,
 * which the owner of the device calls. */
#include "queue_pair/congestion.h"

#include "queue_pair/arithmetic.h"
#include "queue_pair/rate_limit.h"

/* ------------------------------------------------------------------ the outstanding limit */

/* Set the outstanding limit. A window below it after losses still grows with acknowledgements. */
static void limit_window(const struct engine_shared *shared, struct queue_pair *record, uint64_t packets)
{
	if (record->window >= lesser(record->widest, packets))
		engine_window_resize(shared, record, packets);
	record->widest = packets;
}

static void limit_on_cnp(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	record->control_ns = now + shared->congestion.hold_ns;
	limit_window(shared, record, greater(1, record->most / 2));
}

static void limit_on_timer(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	(void)now;
	record->control_ns = NEVER;
	limit_window(shared, record, record->most);
}

/* ------------------------------------------------------------------ DCQCN */

static uint64_t line_rate(const struct engine_congestion *settings)
{
	return settings->line_rate << DCQCN_RATE_BITS;
}

static int has_recovered(const struct engine_congestion *settings, const struct queue_pair *record)
{
	return (record->dcqcn_rate >> DCQCN_RATE_BITS) + 1 >= settings->line_rate;
}

/* Apply the rate to the token bucket. */
static void dcqcn_apply(const struct engine_congestion *settings, struct queue_pair *record)
{
	uint64_t bytes = greater(1, record->dcqcn_rate >> DCQCN_RATE_BITS);
	record->pace_rate = has_recovered(settings, record) ? 0 : bytes << (PACE_RATE_TIME_BITS - 10);
	record->paced = record->pace_rate != 0;
}

static void start_rounds(const struct engine_congestion *settings, struct queue_pair *record, uint64_t now)
{
	record->dcqcn_counted = record->dcqcn_counter_rounds = record->dcqcn_timer_rounds = 0;
	record->dcqcn_alpha_at = now + settings->alpha_ns;
	record->dcqcn_timer_at = now + settings->timer_ns;
}

static void dcqcn_begin(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	record->dcqcn_rate = record->dcqcn_target = line_rate(&shared->congestion);
	record->dcqcn_alpha = DCQCN_ALPHA_ONE;
	start_rounds(&shared->congestion, record, now);
	dcqcn_apply(&shared->congestion, record);
}

/* Raise the rate at the end of a period (equations 3 and 4, and hyper increase). */
static void increase_rate(const struct engine_congestion *settings, struct queue_pair *record)
{
	uint64_t timer = record->dcqcn_timer_rounds, counter = record->dcqcn_counter_rounds;
	uint64_t target = lesser(record->dcqcn_target, line_rate(settings));
	if (lesser(timer, counter) > settings->recovery_rounds)
		target += settings->hyper_rate << DCQCN_RATE_BITS;
	else if (greater(timer, counter) >= settings->recovery_rounds)
		target += settings->additive_rate << DCQCN_RATE_BITS;
	record->dcqcn_target = lesser(target, line_rate(settings));
	record->dcqcn_rate = (lesser(record->dcqcn_rate, line_rate(settings)) + record->dcqcn_target) >> 1;
}

/* Apply the timers up to now: decrease alpha (equation 2), and raise the rate once per period. */
static void advance_timers(const struct engine_congestion *settings, struct queue_pair *record, uint64_t now)
{
	if (record->dcqcn_alpha_at <= now) {
		uint64_t rounds = (now - record->dcqcn_alpha_at) / settings->alpha_ns + 1, fallen;
		uint64_t alpha = lesser(record->dcqcn_alpha, DCQCN_ALPHA_ONE);
		record->dcqcn_alpha_at += rounds * settings->alpha_ns;
		rounds = lesser(rounds, DCQCN_MOST_ROUNDS);
		while (rounds-- && (fallen = alpha >> settings->g_shift))
			alpha -= fallen;
		record->dcqcn_alpha = alpha;
	}
	if (record->dcqcn_timer_at <= now) {
		uint64_t rounds = (now - record->dcqcn_timer_at) / settings->timer_ns + 1;
		record->dcqcn_timer_at += rounds * settings->timer_ns;
		rounds = lesser(rounds, DCQCN_MOST_ROUNDS);
		while (rounds-- && !has_recovered(settings, record)) {
			record->dcqcn_timer_rounds++;
			increase_rate(settings, record);
		}
	}
}

static void dcqcn_on_timer(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	advance_timers(&shared->congestion, record, now);
	dcqcn_apply(&shared->congestion, record);
}

static void dcqcn_on_cnp(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	const struct engine_congestion *settings = &shared->congestion;
	advance_timers(settings, record, now);
	uint64_t rate = lesser(record->dcqcn_rate, line_rate(settings));
	uint64_t alpha = lesser(record->dcqcn_alpha, DCQCN_ALPHA_ONE);
	record->dcqcn_target = rate;
	record->dcqcn_rate =
		greater(settings->least_rate << DCQCN_RATE_BITS, rate - (rate * alpha >> (DCQCN_ALPHA_BITS + 1)));
	record->dcqcn_alpha = alpha + ((DCQCN_ALPHA_ONE - alpha) >> settings->g_shift);
	start_rounds(settings, record, now);
	dcqcn_apply(settings, record);
}

static void dcqcn_on_sent(const struct engine_shared *shared, struct queue_pair *record, uint64_t bytes)
{
	const struct engine_congestion *settings = &shared->congestion;
	uint64_t counted = record->dcqcn_counted + bytes;
	uint64_t rounds = lesser(counted / settings->counter_bytes, DCQCN_MOST_ROUNDS);
	record->dcqcn_counted = counted % settings->counter_bytes;
	while (rounds--) {
		record->dcqcn_counter_rounds++;
		increase_rate(settings, record);
	}
	dcqcn_apply(settings, record);
}

/* ------------------------------------------------------------------ events */

static const struct engine_control controls[] = {
	[CONTROL_LIMIT] = { .on_cnp = limit_on_cnp, .on_timer = limit_on_timer },
	[CONTROL_DCQCN] = { .begin = dcqcn_begin,
			    .on_cnp = dcqcn_on_cnp,
			    .on_timer = dcqcn_on_timer,
			    .on_sent = dcqcn_on_sent,
			    .lazy = 1 },
	[CONTROL_FIXED] = { .lazy = 1 },
};

/* Return the control of a queue pair if it is one of the engine's, or NULL. */
static const struct engine_control *own_control(const struct queue_pair *record)
{
	return record->control && record->control < sizeof(controls) / sizeof(controls[0]) ?
		       &controls[record->control] :
		       NULL;
}

int engine_congestion_known(const struct engine_shared *shared, const struct queue_pair *record)
{
	return record->control != CONTROL_OTHER || shared->control_calls;
}

int engine_congestion_may_send(const struct engine_shared *shared, const struct queue_pair *record)
{
	return engine_congestion_known(shared, record) &&
	       (!record->paced || record->control != CONTROL_DCQCN || shared->congestion.line_rate);
}

void engine_congestion_acked(const struct engine_shared *shared, struct queue_pair *record, uint64_t packets,
			     uint64_t rtt_ns, uint64_t now)
{
	const struct engine_control *own = own_control(record);
	const struct engine_control_calls *calls = shared->control_calls;
	if (!record->control)
		return;
	struct engine_ack ack = { now, record->una, record->sent_psn, packets, rtt_ns };
	if (own && own->on_ack)
		own->on_ack(shared, record, &ack);
	else if (!own && calls && calls->on_ack)
		calls->on_ack(calls->self, record, &ack);
}

void engine_congestion_lost(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	const struct engine_control *own = own_control(record);
	const struct engine_control_calls *calls = shared->control_calls;
	if (own && own->on_loss)
		own->on_loss(shared, record, now);
	else if (record->control == CONTROL_OTHER && calls && calls->on_loss)
		calls->on_loss(calls->self, record, now);
}

int engine_congestion_notified(const struct engine_shared *shared, struct queue_pair *record, uint64_t packet,
			       uint64_t now)
{
	const struct engine_control_calls *calls = shared->control_calls;
	uint64_t before = record->widest;
	int told = 0;

	if (!record->control && shared->congestion.control) {
		record->control = shared->congestion.control;
		const struct engine_control *made = own_control(record);
		if (made && made->begin)
			made->begin(shared, record, now);
		record->pace_most = (PACE_BURST_PACKETS * packet) << PACE_RATE_TIME_BITS;
		record->pace_credit = record->pace_most;
		record->pace_since_ns = now;
		told |= CNP_BEGAN;
	}
	const struct engine_control *own = own_control(record);
	if (own ? !own->on_cnp : record->control != CONTROL_OTHER || !calls)
		return 0;
	if (own)
		own->on_cnp(shared, record, now);
	else
		calls->on_cnp(calls->self, record, now);
	return told | (record->paced ? CNP_PACED : 0) | (record->widest < before ? CNP_LOWERED : 0);
}

int engine_congestion_timer(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	const struct engine_control *own = own_control(record);
	const struct engine_control_calls *calls = shared->control_calls;
	uint64_t before = record->widest;

	if (own && own->on_timer && !own->lazy)
		own->on_timer(shared, record, now);
	else if (record->control == CONTROL_OTHER && calls)
		calls->on_timer(calls->self, record, now);
	else
		record->control_ns = NEVER;
	return record->widest > before;
}

void engine_congestion_catch_up(const struct engine_shared *shared, struct queue_pair *record, uint64_t now)
{
	const struct engine_control *own = own_control(record);
	if (own && own->lazy && own->on_timer)
		own->on_timer(shared, record, now);
}

void engine_congestion_sent(const struct engine_shared *shared, struct queue_pair *record, uint64_t bytes)
{
	const struct engine_control *own = own_control(record);
	const struct engine_control_calls *calls = shared->control_calls;
	if (record->paced)
		engine_rate_limit_spend(record, bytes);
	if (own && own->on_sent)
		own->on_sent(shared, record, bytes);
	else if (record->control == CONTROL_OTHER && calls && calls->on_sent)
		calls->on_sent(calls->self, record, bytes);
}
