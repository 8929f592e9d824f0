/* The engine's clock on a machine of the test's own, where the system takes 40 ns or 5 us to tell the time and the processor
 * counts 2.5 times in a ns. Prints what went wrong, else, for each of the two, how often the system was asked in 1 ms of
 * polls. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define JIFFY 4000000u

static uint64_t time_ns = 123456789, cost, asked, count, pauses_at;

/* Time goes on, and the counter with it, `speed` times as fast in all as it should. */
static void pass(uint64_t ns, uint64_t speed)
{
	time_ns += ns;
	count += ns * 5 / 2 * speed;
}

/* Each look at one of the two clocks may be where this program is kept from going on, for 10 ms. */
static void looked(void)
{
	if (pauses_at && !--pauses_at)
		pass(10000000, 1);
}

static uint64_t told(void)
{
	looked();
	pass(8, 1);
	return count;
}

static int system_time(clockid_t which, struct timespec *now)
{
	uint64_t at;

	if (which == CLOCK_MONOTONIC) {
		pass(cost, 1);
		asked++;
		at = time_ns;
		looked();
	} else {
		at = time_ns / JIFFY * JIFFY;
	}
	*now = (struct timespec){ (time_t)(at / 1000000000u), (long)(at % 1000000000u) };
	return 0;
}

#define __rdtsc told
#define clock_gettime system_time
#undef _GNU_SOURCE /* it defines it itself */
#include "io/clock.c"

static uint64_t said;

/* One look, `behind` ns late at most. */
static void look(const char *what, uint64_t behind)
{
	uint64_t before = said;

	said = clock_approximate_now();
	if (said < before || said > time_ns || time_ns - said > behind) {
		printf("%s: %lld ns ahead, %lld ns on\n", what, (long long)(said - time_ns),
		       (long long)(said - before));
		exit(1);
	}
}

int main(void)
{
	static const uint64_t costs[] = { 40, 5000 };

	for (unsigned i = 0; i < 2; i++) {
		/* as far as the counter lags in CLOCK_EXTRAPOLATE_MAX_NS */
		const uint64_t behind = CLOCK_EXTRAPOLATE_MAX_NS / 64 + 100;
		uint64_t until;

		cost = costs[i];
		clock_calibrate();
		look("at first", behind);
		asked = 0;
		for (until = time_ns + 1000000; time_ns < until; pass(500, 1))
			look("polls", behind);
		printf("%llu ", (unsigned long long)asked);
		pass(700000000, 1);
		look("behind a pause", behind);
		pass(100000000, 0);
		look("behind a pause in which the counter stood", behind);
		count -= 1000000;
		look("on a processor whose counter is behind", behind);
		pass(30000, 0);
		look("with a counter that has stood for a moment", behind + 30000);
	}
	for (uint64_t pause = 1; pause < 400; pause++) {
		pauses_at = pause;
		clock_calibrate();
		pauses_at = 0;
		pass(700000000, 1);
		for (uint64_t until = time_ns + 50000; time_ns < until; pass(50, 1))
			look("told anew, with a pause", 500000);
	}
	clock_calibrate();
	pass(700000000, 1);
	look("anew", 4000);
	for (uint64_t until = time_ns + 1000000; time_ns < until;) {
		uint64_t before = said;

		pass(500, 3);
		said = clock_approximate_now();
		if (said < before) {
			puts("a counter that is too quick has the time go back");
			return 1;
		}
	}
	return 0;
}
