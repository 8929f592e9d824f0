/* The thread of a slot, which runs the engine while nobody else does (bypass/driver.h). */
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

#define UNHEEDED UINT64_MAX /* no deadline counts */

enum {
	/* Times `slow` (io/calibrate.h): */
	RECENT_NS = 40000, /* so long after its last poll a program still counts as polling */
	PARK_LEAST_NS = 40000, /* for so long the thread keeps off, twice as long each time, */
	DOUBT_NS = 100000, /* until the second look at whether nobody polls any more */
	LINGER_NS = 50000, /* who is alone looks on for so long before he sleeps, since waking costs both ends */

	MOST_RINGS = 64, /* of its bell that are heard at once */
	PARK_WAITED_NS = 100000000, /* up to so long while somebody waits for an event, who works meanwhile */
	ALONE_NS = 1000000, /* a program that has not posted or polled for so long only takes what others send */
	BLOCK_LOOK_NS = 100000000, /* while the NIC process serves the slot itself */
	GUARD_LOOK_NS = 50000000, /* so often, while it is awake, it sees whether the program has other handlers for faults */
};

void driver_thread_wake(struct bypass_driver *slot)
{
	uint64_t one = 1;

	while (nocancel_write(slot->wake, &one, sizeof one) < 0 && errno == EINTR)
		;
}

/* The thread wakes in time for what is due at a time, unless it wakes soon enough by itself. */
void driver_thread_wake_for(struct bypass_driver *slot, uint64_t deadline)
{
	uint32_t how = atomic_load(&slot->how);
	uint64_t until = atomic_load(&slot->until_ns);

	if (how != AWAKE && deadline < until &&
	    (how == WATCHING || until > clock_now() + slot->slow * PARK_MOST_NS || atomic_load(&slot->waiters)))
		driver_thread_wake(slot);
}

/* Whether others run the engine, so that the thread need not. */
static bool is_polled(const struct bypass_driver *slot, uint64_t now)
{
	return now < atomic_load_explicit(&slot->polled_ns, memory_order_relaxed) + slot->slow * RECENT_NS ||
	       atomic_load_explicit(&slot->waiters, memory_order_relaxed);
}

/* The same where the thread itself does not: a round of long messages takes longer than a poll counts. */
static bool is_served(const struct bypass_driver *slot, uint64_t now)
{
	return is_polled(slot, now) || bypass_is_taken(slot->bypass);
}

/* Whether others ran the engine for most of the time since `then`, when polls had covered so much, or do so now. */
static bool is_attended(const struct bypass_driver *slot, uint64_t covered, uint64_t then, uint64_t now)
{
	return 2 * (atomic_load_explicit(&slot->covered_ns, memory_order_relaxed) - covered) >= now - then ||
	       atomic_load_explicit(&slot->waiters, memory_order_relaxed) || bypass_is_taken(slot->bypass);
}

/* Somebody polled from a time to another. */
void driver_note_polled(struct bypass_driver *slot, uint64_t since, uint64_t until)
{
	uint64_t last = atomic_load_explicit(&slot->polled_ns, memory_order_relaxed);
	uint64_t covered = atomic_load_explicit(&slot->covered_ns, memory_order_relaxed);

	if (last < since && since < last + slot->slow * GAP_NS)
		since = last;
	atomic_store_explicit(&slot->covered_ns, covered + (until - since), memory_order_relaxed);
	atomic_store_explicit(&slot->polled_ns, until, memory_order_relaxed);
}

/* Whether the program leaves everything to the thread: no core that the thread keeps is one that it waits for. */
static bool is_alone(const struct bypass_driver *slot, uint64_t now)
{
	return now > atomic_load_explicit(&slot->used_ns, memory_order_relaxed) + ALONE_NS &&
	       !atomic_load_explicit(&slot->stop, memory_order_relaxed);
}

/* The bell has rung, for all who slept. Whoever rings on and on keeps nobody here. */
void driver_drain_wake_fd(const struct bypass_driver *slot)
{
	char drained;

	for (int i = 0; i < MOST_RINGS && (recv(slot->bell, &drained, 1, MSG_DONTWAIT) >= 0 || errno == EINTR); i++)
		;
}

/* Sleep, no longer than until a deadline that somebody may have set just now, which counts from `heeds` on; whether somebody
 * called. */
static bool rest(struct bypass_driver *slot, uint64_t until, enum how how, uint64_t heeds)
{
	struct pollfd poller[4] = { { .fd = slot->wake, .events = POLLIN },
				    { .fd = atomic_load(&slot->gone) ? -1 : slot->setup.socket },
				    { .fd = slot->fd, .events = POLLIN },
				    { .fd = slot->bell, .events = POLLIN } };
	uint64_t now = clock_now(), due, left, drained;
	struct timespec timeout;

	atomic_store(&slot->until_ns, until);
	atomic_store(&slot->how, how);
	due = atomic_load(&slot->due_ns); /* who set it before he could see how this thread sleeps does not wake it */
	due = due < heeds ? heeds : due;
	if (due < until)
		until = due;
	left = until > now ? until - now : 0;
	timeout = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
	if (atomic_load(&slot->stop))
		return true; /* the call for it may have been heard as one for the sleep before */
	if (how == WATCHING && bypass_has_pending(slot->bypass))
		timeout = (struct timespec){ 0, 0 }, until = 0;
	ppoll(poller, how == WATCHING ? 4 : 2, until == UINT64_MAX || left >> 60 ? NULL : &timeout, NULL);
	atomic_store(&slot->how, AWAKE);
	if (poller[1].revents)
		driver_nic_is_gone(slot); /* data would go on without it: the device is dead all the same */
	if (poller[3].revents)
		driver_drain_wake_fd(slot);
	return poller[0].revents && read(slot->wake, &drained, sizeof drained) > 0;
}

/* Work until there is no more, or until somebody else does, and say when the next is due. False where somebody else is
 * at work: that may be who had the core before, so that looking on and on would keep him from it. */
static bool work(struct bypass_driver *slot, bool *did, uint64_t *deadline)
{
	*did = false;
	if (bypass_try(slot->bypass))
		return false;
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t now = clock_now();

		if (bypass_idle(slot->bypass) || (i && is_polled(slot, now)) || !bypass_round(slot->bypass, now, 0))
			break;
		*did = true;
	}
	*deadline = bypass_deadline(slot->bypass);
	atomic_store(&slot->due_ns, *deadline);
	bypass_unlock(slot->bypass);
	return true;
}

/* It keeps off while others poll, and looks again and again whether they still do: packets that nobody polls for lie
 * until then. Each look takes a core from somebody who polls, so they become rare while polls follow each other; that one
 * who did so is not there just now is looked at twice, since the other thread may have been given the core. */
static void *run(void *self)
{
	struct bypass_driver *slot = self;
	uint64_t park = slot->slow * PARK_LEAST_NS, did_ns = 0, looked_ns = 0;
	bool called = true, attended = false, refused = false;

	prctl(PR_SET_TIMERSLACK, 1); /* nanosecond */
	while (!atomic_load(&slot->stop)) {
		uint64_t now = clock_now(), deadline;
		bool parked = false, did, polled;

		if (now - looked_ns > GUARD_LOOK_NS) {
			fault_guard_refresh();
			looked_ns = now;
		}
		if (bypass_idle(slot->bypass) || atomic_load(&slot->gone)) {
			rest(slot, now + BLOCK_LOOK_NS, PARKED, UNHEEDED);
			continue;
		}
		polled = is_served(slot, now);
		if ((polled || attended) && !called) {
			uint64_t covered = atomic_load_explicit(&slot->covered_ns, memory_order_relaxed), then = now;
			uint32_t waiters = atomic_load(&slot->waiters);
			uint64_t most = waiters ? PARK_WAITED_NS : slot->slow * PARK_MOST_NS;
			/* who waits sleeps by the deadlines that there were: those of others' posts are seen to here, but not
			 * by looking on and on while somebody is at work, who may just have set one */
			uint64_t soon = refused ? now + slot->slow * PARK_LEAST_NS : now, heeds = waiters ? soon : UNHEEDED;

			called = rest(slot, then + (polled ? park : slot->slow * DOUBT_NS), PARKED, heeds);
			refused = false;
			now = clock_now();
			called |= waiters && now >= soon && atomic_load(&slot->due_ns) <= now;
			attended = is_attended(slot, covered, then, now) && !called;
			if (attended && polled)
				park = park * 2 < most ? park * 2 : most;
			else if (!attended)
				park = slot->slow * PARK_LEAST_NS;
			if (attended || (is_served(slot, now) && !called))
				continue;
			parked = !called;
		}
		refused = !work(slot, &did, &deadline);
		if (refused) {
			attended = true;
			called = false;
			continue;
		}
		park = slot->slow * PARK_LEAST_NS;
		if (parked && did)
			atomic_store(&slot->waits, false);
		if (did)
			did_ns = now;
		if (now < did_ns + slot->slow * LINGER_NS && deadline > now && is_alone(slot, now))
			called = false;
		else
			called = rest(slot, deadline, WATCHING, 0) ||
				 (deadline > now && atomic_load(&slot->due_ns) <= clock_now());
	}
	return NULL;
}

/* All signals but those of its own faults are the program's own threads'. */
int driver_thread_start(struct bypass_driver *slot)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	int error;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV); /* its own, which memory/fault_guard.h answers */
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	error = pthread_create(&slot->thread, &attributes, run, slot);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}
#endif
