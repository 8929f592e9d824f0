#if defined(__linux__)
#define _GNU_SOURCE
#include "io/clock.h"

#include <stdatomic.h>
#include <time.h>

static uint64_t read_clock(clockid_t which)
{
	struct timespec now;

	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

#if defined(__x86_64__)
#include <x86intrin.h>

#define TRIES 8 /* of which the quickest tells */
#define PAUSED 4u /* times the quickest: in between something else ran. Less is within BEHIND of MEASURED_NS */
#define QUICK 16u /* times what the counter takes: no system reads a device in that */
#define OFTEN 32u /* times what the system takes is how long its answer lasts */
#define MEASURED_NS 1000000u /* in which the counter's rate is seen */
#define SHIFT 32
#define BEHIND 64u /* one part of so many, lest the counter run ahead of the system's time */

static _Atomic uint64_t lasts; /* counts for which an answer does; 0: the system is quick */
static _Atomic uint64_t rate; /* ns of a count, << SHIFT */

static _Thread_local struct {
	uint64_t now, count, ticked; /* what the system said, when, and its own clock then */
	uint64_t said;
} last __attribute__((tls_model("initial-exec"))); /* by no call */

static uint64_t takes(uint64_t (*ask)(void))
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < TRIES; i++) {
		uint64_t began = __rdtsc();
		ask();
		uint64_t took = __rdtsc() - began;
		least = took < least ? took : least;
	}
	return least;
}

static uint64_t counter(void)
{
	return __rdtsc();
}

void clock_calibrate(void)
{
	uint64_t quick = takes(counter), system = takes(clock_now), before, began, count, now, counts;
	int tried = 0;

	atomic_store(&lasts, 0);
	if (system <= QUICK * quick)
		return;
	do { /* a pause between the two would have the time run ahead; one at the end has it lag */
		before = __rdtsc();
		began = clock_now();
		count = __rdtsc();
	} while (count - before > PAUSED * system && ++tried < TRIES);
	if (tried == TRIES)
		return;
	do
		now = clock_now();
	while (now - began < MEASURED_NS);
	counts = __rdtsc() - count;
	if (!counts || counts >> SHIFT)
		return; /* no counter, or one that was set meanwhile */
	atomic_store(&rate, ((now - began) << SHIFT) / counts);
	counts = counts * CLOCK_EXTRAPOLATE_MAX_NS / (now - began);
	atomic_store(&lasts, OFTEN * system < counts ? OFTEN * system : counts);
}

uint64_t clock_approximate_now(void)
{
	uint64_t most = atomic_load_explicit(&lasts, memory_order_relaxed), count, passed, ticked, now;

	if (!most)
		return clock_now();
	count = __rdtsc();
	passed = count - last.count;
	ticked = read_clock(CLOCK_MONOTONIC_COARSE); /* that needs no device */
	if (passed >= most || ticked != last.ticked) {
		last.now = clock_now();
		last.count = __rdtsc(); /* no sooner than the system looked */
		last.ticked = ticked;
		passed = 0;
	}
	now = last.now + ((passed - passed / BEHIND) * atomic_load_explicit(&rate, memory_order_relaxed) >> SHIFT);
	last.said = now > last.said ? now : last.said;
	return last.said;
}
#else

void clock_calibrate(void)
{
}

uint64_t clock_approximate_now(void)
{
	return clock_now();
}
#endif
#endif
