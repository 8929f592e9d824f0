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

#define SAMPLES 8 /* the fastest sample is used */
/* times the fastest sample: something else ran in between. Less is within LAG_PART of CALIBRATION_NS */
#define INTERRUPTED_FACTOR 4u
#define FAST_CLOCK_FACTOR 16u /* times the cost of the counter: a faster system clock reads no device */
#define VALID_FACTOR 32u /* times the cost of the system clock: time for which its value may be extrapolated */
#define CALIBRATION_NS 1000000u /* time in which the counter's rate is measured */
#define SHIFT 32
#define LAG_PART 64u /* subtract one part in LAG_PART, so that the counter does not run ahead of the system's time */

static _Atomic uint64_t valid_counts; /* counts for which a value may be extrapolated; 0: the system clock is fast */
static _Atomic uint64_t ns_per_count; /* ns per count, << SHIFT */

static _Thread_local struct {
	uint64_t now, count, ticked; /* last system time, and the counter and coarse clock at that time */
	uint64_t returned;
} last __attribute__((tls_model("initial-exec"))); /* access needs no call */

static uint64_t measure_cycles(uint64_t (*ask)(void))
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < SAMPLES; i++) {
		uint64_t began = __rdtsc();
		ask();
		uint64_t took = __rdtsc() - began;
		least = took < least ? took : least;
	}
	return least;
}

static uint64_t read_counter(void)
{
	return __rdtsc();
}

void clock_calibrate(void)
{
	uint64_t quick = measure_cycles(read_counter), system = measure_cycles(clock_now), before, began, count, now,
		 counts;
	int tried = 0;

	atomic_store(&valid_counts, 0);
	if (system <= FAST_CLOCK_FACTOR * quick)
		return;
	do { /* a pause between the two would make the time run ahead; one at the end makes it lag */
		before = __rdtsc();
		began = clock_now();
		count = __rdtsc();
	} while (count - before > INTERRUPTED_FACTOR * system && ++tried < SAMPLES);
	if (tried == SAMPLES)
		return;
	do
		now = clock_now();
	while (now - began < CALIBRATION_NS);
	counts = __rdtsc() - count;
	if (!counts || counts >> SHIFT)
		return; /* no counter, or it was set in the meantime */
	atomic_store(&ns_per_count, ((now - began) << SHIFT) / counts);
	counts = counts * CLOCK_EXTRAPOLATE_MAX_NS / (now - began);
	atomic_store(&valid_counts, VALID_FACTOR * system < counts ? VALID_FACTOR * system : counts);
}

uint64_t clock_approximate_now(void)
{
	uint64_t most = atomic_load_explicit(&valid_counts, memory_order_relaxed), count, passed, ticked, now;

	if (!most)
		return clock_now();
	count = __rdtsc();
	passed = count - last.count;
	ticked = read_clock(CLOCK_MONOTONIC_COARSE); /* needs no device */
	if (passed >= most || ticked != last.ticked) {
		last.now = clock_now();
		last.count = __rdtsc(); /* read after the system's clock, so that the time never runs ahead */
		last.ticked = ticked;
		passed = 0;
	}
	now = last.now +
	      ((passed - passed / LAG_PART) * atomic_load_explicit(&ns_per_count, memory_order_relaxed) >> SHIFT);
	last.returned = now > last.returned ? now : last.returned;
	return last.returned;
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
