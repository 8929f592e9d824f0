/* Clocks. */
#ifndef RNIC_ENGINE_CLOCK_H
#define RNIC_ENGINE_CLOCK_H

#include <stdint.h>

/* Return the system's time in ns: CLOCK_MONOTONIC. */
uint64_t clock_now(void);

/* Return the same time at less cost, for callers that ask at each poll; it is never ahead of clock_now. Machines that
 * do not trust their processors' counters read a device for the time, which takes as long as a message. There this adds
 * the counter's ticks to the last time read, for CLOCK_EXTRAPOLATE_MAX_NS at most and until the coarse clock ticks. In
 * each thread the time never goes back. */
uint64_t clock_approximate_now(void);
#define CLOCK_EXTRAPOLATE_MAX_NS 200000u

/* Measure the cost of the system clock. Call it at least once before clock_approximate_now. */
void clock_calibrate(void);

#endif
