#if defined(__linux__)
#define _GNU_SOURCE
#include "io/lookout.h"

#include <time.h>

#define LOOKS 32u /* in a row, before the thread does what is due every now and then */
#define ALERT_LOOKS 32u
#define LOADS 32u /* in a look after a long sleep: some microseconds, in which a program that polls does so again */

enum look_end lookout_watch(struct lookout *lookout, struct pollfd *pollers, unsigned count)
{
	uint64_t seen = atomic_load_explicit(lookout->polled, memory_order_relaxed);
	int quiet = 0;

	for (unsigned looks = 0; looks < LOOKS; looks++) {
		uint64_t sleep_ns = quiet ? lookout->recheck_ns : lookout->sleep_ns;
		struct timespec timeout = { (time_t)(sleep_ns / 1000000000u), (long)(sleep_ns % 1000000000u) };

		if (ppoll(pollers, count, &timeout, NULL))
			return LOOK_WOKEN;
		int is_busy = lookout->busy && atomic_load_explicit(lookout->busy, memory_order_relaxed);
		uint64_t polled = atomic_load_explicit(lookout->polled, memory_order_relaxed);
		int polls = is_busy || (polled && polled != seen);
		seen = polled;
		if (polls && !is_busy && !quiet && lookout->recheck_ns && sleep_ns > lookout->recheck_ns) {
			/* it may have stopped long ago */
			polls = 0;
			for (unsigned loads = 0; loads < LOADS && !polls; loads++) {
#if defined(__x86_64__)
				__builtin_ia32_pause();
#elif defined(__aarch64__)
				__asm__ volatile("yield");
#endif
				polls = atomic_load_explicit(lookout->polled, memory_order_relaxed) != seen;
			}
		}
		if (!polls) {
			if (quiet || lookout->alert || !lookout->recheck_ns)
				return LOOK_QUIET;
			quiet = 1;
			continue;
		}
		quiet = 0;
		if (lookout->alert)
			lookout->alert--;
		else if (lookout->sleep_ns < lookout->longest_ns)
			lookout->sleep_ns = 2 * lookout->sleep_ns < lookout->longest_ns ? 2 * lookout->sleep_ns :
											  lookout->longest_ns;
	}
	return LOOK_POLLED;
}

void lookout_alert(struct lookout *lookout)
{
	lookout->alert = ALERT_LOOKS;
}
#endif
