/* The time. */
#ifndef RNIC_ENGINE_CLOCK_H
#define RNIC_ENGINE_CLOCK_H

#include <stdint.h>

/* The system's, in ns: CLOCK_MONOTONIC. */
uint64_t clock_now(void);

/* The same for who asks at each poll, never ahead of it. Where the system reads a device for the time, as it does in
 * machines whose processors' counters it does not trust, that takes as long as a message: there the counter is asked how
 * long ago it was told the time, for CLOCK_EXTRAPOLATE_MAX_NS at most and while its own clock has not ticked. For each thread the
 * time only ever goes on. */
uint64_t clock_approximate_now(void);
#define CLOCK_EXTRAPOLATE_MAX_NS 200000u

/* See how long the system takes to tell the time; before the other is asked, once or oftener. */
void clock_calibrate(void);

#endif
