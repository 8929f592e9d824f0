/* The progress thread of a driver, which runs the engine while no other thread does (bypass/driver.h). */
#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/driver_progress_thread.h"

#include "io/nocancel.h"
#include "memory/fault_guard.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define IGNORE_DEADLINES UINT64_MAX /* do not wake for the engine's deadlines */

enum {
	/* Times `slow` (io/calibrate.h): */
	POLL_RECENT_NS = 40000, /* time after its last poll for which a program still counts as polling */
	BACKOFF_MIN_NS = 40000, /* first back-off, doubled each time */
	RECHECK_NS = 100000, /* delay of the second check that no thread polls any more */
	/* spin time before sleeping if the program leaves all work to the thread: waking costs both ends */
	LINGER_NS = 50000,

	MAX_WAKEUPS = 64, /* drained at once */
	/* limit of the back-off while a thread waits for an event: that thread runs the engine meanwhile */
	BACKOFF_MAX_WAITED_NS = 100000000,
	ALONE_NS = 1000000, /* a program that has not posted or polled for this time only receives */
	/* A thread that sleeps on descriptors that the program has closed and reused is not woken by them. */
	LONGEST_SLEEP_NS = 500000000,
	STOPPED_CHECK_NS = 100000000, /* interval of checks while the NIC process serves the slot itself */
	/* interval of checks, while awake, for other fault handlers installed by the program */
	FAULT_GUARD_CHECK_NS = 50000000,
};

void driver_thread_wake(struct bypass_driver *driver)
{
	if (own_fd_valid(&driver->wake_fd))
		while (nocancel_send(driver->wake_fd.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
			;
}

void driver_thread_wake_for(struct bypass_driver *driver, uint64_t deadline)
{
	uint32_t state = atomic_load(&driver->sleep_state);
	uint64_t until = atomic_load(&driver->wakes_ns);

	if (state != SLEEP_NONE && deadline < until &&
	    (state == SLEEP_ON_PACKETS || until > clock_now() + driver->slow * BACKOFF_MAX_NS ||
	     atomic_load(&driver->waiters)))
		driver_thread_wake(driver);
}

/* Return whether other threads run the engine, so that this one need not. */
static bool is_polled(const struct bypass_driver *driver, uint64_t now)
{
	return now < atomic_load_explicit(&driver->polled_ns, memory_order_relaxed) + driver->slow * POLL_RECENT_NS ||
	       atomic_load_explicit(&driver->waiters, memory_order_relaxed);
}

/* Return whether other threads run the engine, or one is in it now: a round of long messages takes longer than a poll
 * counts. Called while this thread is not in the engine. */
static bool is_served(const struct bypass_driver *driver, uint64_t now)
{
	return is_polled(driver, now) || bypass_is_taken(driver->bypass);
}

/* Return whether others ran the engine for most of the time since `then`, when `polling_ns` was `polling`, or do so
 * now. */
static bool is_attended(const struct bypass_driver *driver, uint64_t polling, uint64_t then, uint64_t now)
{
	return 2 * (atomic_load_explicit(&driver->polling_ns, memory_order_relaxed) - polling) >= now - then ||
	       atomic_load_explicit(&driver->waiters, memory_order_relaxed) || bypass_is_taken(driver->bypass);
}

void driver_note_polled(struct bypass_driver *driver, uint64_t since, uint64_t until)
{
	uint64_t last = atomic_load_explicit(&driver->polled_ns, memory_order_relaxed);
	uint64_t polling = atomic_load_explicit(&driver->polling_ns, memory_order_relaxed);

	if (last < since && since < last + driver->slow * POLL_GAP_NS)
		since = last;
	atomic_store_explicit(&driver->polling_ns, polling + (until - since), memory_order_relaxed);
	atomic_store_explicit(&driver->polled_ns, until, memory_order_relaxed);
}

/* Return whether the program leaves all work to this thread, and so does not wait for the core that it uses. */
static bool is_alone(const struct bypass_driver *driver, uint64_t now)
{
	return now > atomic_load_explicit(&driver->used_ns, memory_order_relaxed) + ALONE_NS &&
	       !atomic_load_explicit(&driver->stop, memory_order_relaxed);
}

void driver_drain_wake_fd(struct bypass_driver *driver, int fd)
{
	char drained;

	if (own_fds_valid(&driver->own, clock_now()))
		for (int i = 0; i < MAX_WAKEUPS && (recv(fd, &drained, 1, MSG_DONTWAIT) >= 0 || errno == EINTR); i++)
			;
}

/* Sleep until `until`, or a deadline that another thread may have set just now and that counts from `heed_from` on.
 * Returns whether the thread was woken by another one. */
static bool sleep_until(struct bypass_driver *driver, uint64_t until, enum sleep_state state, uint64_t heed_from)
{
	uint64_t now = clock_now(), due, left;
	bool gone = atomic_load(&driver->gone), lost = !own_fds_valid(&driver->own, now);
	struct pollfd poller[4] = { { .fd = lost ? -1 : driver->woken_fd, .events = POLLIN },
				    { .fd = gone ? -1 : driver->setup.socket.fd },
				    { .fd = driver->fd, .events = POLLIN },
				    { .fd = driver->shm_wake_fd, .events = POLLIN } };
	struct timespec timeout;

	atomic_store(&driver->wakes_ns, until);
	atomic_store(&driver->sleep_state, state);
	/* a thread that set it before it saw `sleep_state` does not wake this one */
	due = atomic_load(&driver->engine_due_ns);
	due = due < heed_from ? heed_from : due;
	if (due < until)
		until = due;
	if (until > now + LONGEST_SLEEP_NS)
		until = now + LONGEST_SLEEP_NS;
	left = until > now ? until - now : 0;
	timeout = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
	if (lost && !gone)
		return true; /* the next round reports it */
	if (atomic_load(&driver->stop))
		return true; /* the wake-up to stop may have been drained together with an earlier one */
	if (state == SLEEP_ON_PACKETS && bypass_has_pending(driver->bypass))
		timeout = (struct timespec){ 0, 0 };
	ppoll(poller, state == SLEEP_ON_PACKETS ? 4 : 2, &timeout, NULL);
	atomic_store(&driver->sleep_state, SLEEP_NONE);
	own_fds_recheck(&driver->own);
	if (poller[1].revents)
		driver_nic_is_gone(driver); /* data would still flow, but the device is dead without the NIC process */
	if (poller[3].revents)
		driver_drain_wake_fd(driver, driver->shm_wake_fd);
	if (poller[0].revents)
		driver_drain_wake_fd(driver, driver->woken_fd);
	return poller[0].revents != 0;
}

/* Run the engine until there is no more to do, or another thread polls; `*deadline` is when the next round is due.
 * Returns false if another thread holds the lock. Back off then: it may be waiting for this core. */
static bool run_rounds(struct bypass_driver *driver, bool *did, uint64_t *deadline)
{
	*did = false;
	if (bypass_try(driver->bypass))
		return false;
	for (int i = 0; i < MAX_ROUNDS; i++) {
		uint64_t now = clock_now();

		if (bypass_is_served_elsewhere(driver->bypass) || (i && is_polled(driver, now)) ||
		    !bypass_round(driver->bypass, now, 0))
			break;
		*did = true;
	}
	*deadline = bypass_deadline(driver->bypass);
	atomic_store(&driver->engine_due_ns, *deadline);
	bypass_unlock(driver->bypass);
	return true;
}

/* Back off while others poll, and check again and again whether they still do: packets that no thread polls for wait
 * until then. Each check takes a core from a polling thread, so checks become rare while polls continue. A thread that
 * polled and is absent is checked for twice: this thread may have been given its core. */
static void *thread_main(void *self)
{
	struct bypass_driver *driver = self;
	uint64_t backoff = driver->slow * BACKOFF_MIN_NS, did_ns = 0, guard_checked_ns = 0;
	bool called = true, attended = false, refused = false;

	prctl(PR_SET_TIMERSLACK, 1); /* in ns */
	while (!atomic_load(&driver->stop)) {
		uint64_t now = clock_now(), deadline;
		bool backed_off = false, did, polled;

		if (now - guard_checked_ns > FAULT_GUARD_CHECK_NS) {
			fault_guard_refresh();
			guard_checked_ns = now;
		}
		if (bypass_is_served_elsewhere(driver->bypass) || atomic_load(&driver->gone)) {
			if (!atomic_load(&driver->gone) && !own_fds_valid(&driver->own, now))
				driver_lost_fds(driver);
			sleep_until(driver, now + STOPPED_CHECK_NS, SLEEP_BACKOFF, IGNORE_DEADLINES);
			continue;
		}
		polled = is_served(driver, now);
		if ((polled || attended) && !called) {
			uint64_t polling = atomic_load_explicit(&driver->polling_ns, memory_order_relaxed), then = now;
			uint32_t waiters = atomic_load(&driver->waiters);
			uint64_t most = waiters ? BACKOFF_MAX_WAITED_NS : driver->slow * BACKOFF_MAX_NS;
			/* A waiting thread sleeps by the deadlines it knew: this thread handles those that others'
			 * posts set. It does not spin on that while another thread is in the engine, which may just
			 * have set one. */
			uint64_t soon = refused ? now + driver->slow * BACKOFF_MIN_NS : now,
				 heed_from = waiters ? soon : IGNORE_DEADLINES;

			called = sleep_until(driver, then + (polled ? backoff : driver->slow * RECHECK_NS),
					     SLEEP_BACKOFF, heed_from);
			refused = false;
			now = clock_now();
			called |= waiters && now >= soon && atomic_load(&driver->engine_due_ns) <= now;
			attended = is_attended(driver, polling, then, now) && !called;
			if (attended && polled)
				backoff = backoff * 2 < most ? backoff * 2 : most;
			else if (!attended)
				backoff = driver->slow * BACKOFF_MIN_NS;
			if (attended || (is_served(driver, now) && !called))
				continue;
			backed_off = !called;
		}
		refused = !run_rounds(driver, &did, &deadline);
		if (refused) {
			attended = true;
			called = false;
			continue;
		}
		backoff = driver->slow * BACKOFF_MIN_NS;
		if (backed_off && did)
			atomic_store(&driver->sleeps_for_events, false);
		if (did)
			did_ns = now;
		if (now < did_ns + driver->slow * LINGER_NS && deadline > now && is_alone(driver, now))
			called = false;
		else
			called = sleep_until(driver, deadline, SLEEP_ON_PACKETS, 0) ||
				 (deadline > now && atomic_load(&driver->engine_due_ns) <= clock_now());
	}
	return NULL;
}

/* Block all signals, which are for the program's own threads, except those of this thread's own faults. */
int driver_thread_start(struct bypass_driver *driver)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	int error;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV); /* handled by memory/fault_guard.h */
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	error = pthread_create(&driver->thread, &attributes, thread_main, driver);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}
#endif
