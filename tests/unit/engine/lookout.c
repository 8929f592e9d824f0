/* Looks of a progress thread at programs that poll, on a clock of our own: each line is a program, its sleeps in us, and
 * how the looks end. */
#define _GNU_SOURCE
#include "io/lookout.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

#define NEVER UINT64_MAX

static _Atomic uint64_t polled = 1;
static uint64_t now_ns, poll_every_ns, polls_until_ns, wakes_at_ns;
static struct lookout lookout = { .polled = &polled, .recheck_ns = 100000, .longest_ns = 1900000 };

/* In place of the system's. */
int ppoll(struct pollfd *pollers, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	uint64_t slept = (uint64_t)timeout->tv_nsec, until = now_ns + slept;

	(void)pollers, (void)count, (void)mask;
	printf(" %lu", (unsigned long)(slept / 1000));
	if (until > wakes_at_ns) {
		now_ns = wakes_at_ns;
		return 1;
	}
	uint64_t last = until < polls_until_ns ? until : polls_until_ns;
	if (last > now_ns && last / poll_every_ns != now_ns / poll_every_ns)
		polled = last;
	now_ns = until;
	return 0;
}

static void run(const char *what, uint64_t every_ns, uint64_t polls_ns, uint64_t wakes_ns)
{
	static const char *const ends[] = { "polled", "quiet", "woken" };

	now_ns += 1000000000u - now_ns % 1000000000u;
	poll_every_ns = every_ns;
	polls_until_ns = now_ns + polls_ns;
	wakes_at_ns = wakes_ns == NEVER ? NEVER : now_ns + wakes_ns;
	lookout.sleep_ns = 40000;
	printf("%s:", what);
	printf(" %s\n", ends[lookout_watch(&lookout, NULL, 0)]);
}

int main(void)
{
	run("polls", 1000, NEVER - 2000000000000u, NEVER);
	run("stops", 1000, 300000, NEVER);
	run("polls seldom", 1000000, NEVER - 2000000000000u, NEVER);
	run("is woken", 1000, NEVER - 2000000000000u, 500000);
	lookout_alert(&lookout);
	run("left packets, and polls", 1000, NEVER - 2000000000000u, NEVER);
	lookout_alert(&lookout);
	run("left packets, and stops", 1000, 60000, NEVER);
	lookout.alert = 0;
	polled = 0;
	run("said that it stops", 1000, 0, NEVER);
	return 0;
}
