/* The back-off of a progress thread while its program polls: it sleeps, and looks by a timer alone whether the program
 * has polled meanwhile. */
#ifndef RNIC_ENGINE_LOOKOUT_H
#define RNIC_ENGINE_LOOKOUT_H

#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>

/* The end of looks. */
enum look_end {
	LOOK_POLLED, /* the program still polls */
	LOOK_QUIET, /* it does not: packets that come wait for the thread */
	LOOK_WOKEN, /* a descriptor is readable: another thread or program wants this one */
};

struct lookout {
	const _Atomic uint64_t *polled; /* a word that each poll changes; 0: the program has stopped polling */
	const _Atomic uint64_t *busy; /* not 0 while a thread of the program is in a round; or NULL */
	/* after which a program that does not poll when it is looked at is looked at again; 0: one that has not polled
	 * for a whole sleep is believed at once */
	uint64_t recheck_ns;
	uint64_t longest_ns; /* the longest sleep before a look */
	uint64_t sleep_ns; /* the next one */
	uint32_t alert; /* looks for which it stays as it is */
};

/* Sleep, look, and sleep for twice as long if the program polls, without clock, lock or socket: each look takes a core
 * from a polling thread. A program that polled and does not is looked at twice, since this thread may have been
 * given its core, but only once while the lookout is alert. */
enum look_end lookout_watch(struct lookout *lookout, struct pollfd *pollers, unsigned count);
/* Note that packets had waited for a program that no longer polled, as it spins on its memory or computes. */
void lookout_alert(struct lookout *lookout);

#endif
