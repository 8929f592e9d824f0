/* The token bucket of a rate (cc/pacing.py). */
#include "queue_pair/rate_limit.h"

#include "queue_pair/arithmetic.h"

/* Convert bytes to credit. */
static int64_t credit_of(uint64_t bytes)
{
	return (int64_t)(bytes << PACE_RATE_TIME_BITS);
}

uint64_t engine_rate_limit_allowance(struct queue_pair *record, uint64_t now, uint64_t packet)
{
	int64_t one = credit_of(packet), most = (int64_t)record->pace_most, credit = (int64_t)record->pace_credit;
	uint64_t rate = greater(1, record->pace_rate);
	uint64_t since = now > record->pace_since_ns ? now - record->pace_since_ns : 0;

	if (most < one)
		most = one;
	/* a sum that overflows exceeds the bucket */
	if (credit >= most || since > ((uint64_t)most - (uint64_t)credit) / rate)
		credit = most;
	else
		credit = (int64_t)((uint64_t)credit + since * rate);
	record->pace_credit = (uint64_t)credit;
	record->pace_since_ns = now;
	return credit > 0 ? (uint64_t)(credit / one) : 0;
}

void engine_rate_limit_spend(struct queue_pair *record, uint64_t bytes)
{
	record->pace_credit -= bytes << PACE_RATE_TIME_BITS;
}

uint64_t engine_rate_limit_ready(const struct queue_pair *record, uint64_t packet)
{
	int64_t one = credit_of(packet), credit = (int64_t)record->pace_credit;
	uint64_t rate = greater(1, record->pace_rate);
	if (credit >= one)
		return record->pace_since_ns;
	return record->pace_since_ns + ((uint64_t)one - (uint64_t)credit + rate - 1) / rate;
}
