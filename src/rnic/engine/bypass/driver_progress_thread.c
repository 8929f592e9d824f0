/* The progress thread of a driver, which runs the engine while no other thread does (bypass/driver.h). */
#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/driver_progress_thread.h"

#include "io/lookout.h"
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
	return is_polled(driver, now) || atomic_load_explicit(bypass_taken(driver->bypass), memory_order_relaxed);
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

/* Take what a sleep found: wake-ups of other threads, of the NIC process, and of other programs. */
static void after_sleep(struct bypass_driver *driver, short woken, short nic, short shm)
{
	own_fds_recheck(&driver->own);
	if (nic)
		driver_nic_is_gone(driver); /* data would still flow, but the device is dead without the NIC process */
	if (shm)
		driver_drain_wake_fd(driver, driver->shm_wake_fd);
	if (woken)
		driver_drain_wake_fd(driver, driver->woken_fd);
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
	after_sleep(driver, poller[0].revents, poller[1].revents, poller[3].revents);
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

/* Back off while the program polls (io/lookout.h). */
static enum look_end look_while_polled(struct bypass_driver *driver, struct lookout *lookout)
{
	struct pollfd poller[3] = { { .fd = driver->woken_fd, .events = POLLIN },
				    { .fd = driver->setup.socket.fd },
				    { .fd = driver->shm_wake_fd, .events = POLLIN } };

	atomic_store(&driver->wakes_ns, 0); /* the program's polls handle deadlines */
	atomic_store(&driver->sleep_state, SLEEP_BACKOFF);
	enum look_end end = lookout_watch(lookout, poller, 3);
	atomic_store(&driver->sleep_state, SLEEP_NONE);
	if (end == LOOK_WOKEN)
		after_sleep(driver, poller[0].revents, poller[1].revents, poller[2].revents);
	return end;
}

/* Sleep while other threads wait for events, which run the engine meanwhile. Return whether this one is to run it: a
 * waiting thread sleeps by the deadlines it knew, and this thread handles those that others' posts set. It does not
 * spin on that while another thread is in the engine, which may just have set one. */
static bool sleep_beside_waiters(struct bypass_driver *driver, struct lookout *lookout, uint64_t now, bool refused)
{
	uint64_t soon = refused ? now + driver->slow * BACKOFF_MIN_NS : now;
	bool called = sleep_until(driver, now + lookout->sleep_ns, SLEEP_BACKOFF, soon);

	now = clock_now();
	lookout->sleep_ns = lookout->sleep_ns * 2 < BACKOFF_MAX_WAITED_NS ? lookout->sleep_ns * 2 :
									    BACKOFF_MAX_WAITED_NS;
	return called || (now >= soon && atomic_load(&driver->engine_due_ns) <= now);
}

static void *thread_main(void *self)
{
	struct bypass_driver *driver = self;
	struct lookout lookout = { .polled = &driver->polled_ns,
				   .busy = bypass_taken(driver->bypass),
				   .recheck_ns = driver->slow * RECHECK_NS,
				   .longest_ns = driver->slow * BACKOFF_MAX_NS,
				   .sleep_ns = driver->slow * BACKOFF_MIN_NS };
	uint64_t did_ns = 0, guard_checked_ns = 0;
	bool called = true, refused = false;

	prctl(PR_SET_TIMERSLACK, 1); /* in ns */
	while (!atomic_load(&driver->stop)) {
		uint64_t now = clock_now(), deadline;
		enum look_end end = LOOK_WOKEN;
		bool did;

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
		if (!called && atomic_load(&driver->waiters)) {
			called = sleep_beside_waiters(driver, &lookout, now, refused);
			refused = false;
			if (!called)
				continue;
		} else if (!called && (refused || is_served(driver, now))) {
			end = look_while_polled(driver, &lookout);
			refused = false;
			called = end == LOOK_WOKEN;
			if (end == LOOK_POLLED)
				continue;
			now = clock_now();
		}
		refused = !run_rounds(driver, &did, &deadline);
		called = false;
		if (refused)
			continue;
		lookout.sleep_ns = driver->slow * BACKOFF_MIN_NS;
		if (did && end == LOOK_QUIET) {
			atomic_store(&driver->sleeps_for_events, false);
			lookout_alert(&lookout);
		}
		if (did)
			did_ns = now;
		if (!(now < did_ns + driver->slow * LINGER_NS && deadline > now && is_alone(driver, now)))
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
