/* The engine in this process: a slot of the device, with a socket and an arena of its own (docs/programs.md).
 *
 * Whoever posts or polls runs it. While nobody polls, one thread sleeps until packets come or a deadline passes, and
 * runs it then. What the engine leaves to the reference goes to the NIC process in a message, and with it the arena. */
#if defined(__linux__)
#define _GNU_SOURCE
#include "slot.h"

#include "bypass.h"
#include "fires.h"
#include "guard.h"
#include "speed.h"
#include "state.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST_RINGS = 64, /* of its bell that are heard at once */
	/* Times `slow` (speed.h): */
	RECENT_NS = 40000, /* so long after its last poll a program still counts as polling */
	PARK_LEAST_NS = 40000, /* for so long the thread keeps off, twice as long each time, */
	DOUBT_NS = 100000, /* until the second look at whether nobody polls any more */
	GAP_NS = 30000, /* between polls that count as one after the other: less than the thread keeps off */
	LOOK_NS = 50000, /* who waits for events looks on for so long before he sleeps, */
	ANSWER_NS = 50000, /* for so long a poll that found the completion alone waits for the answer */
	LINGER_NS = 50000, /* who is alone looks on for so long before he sleeps, since waking costs both ends */

	PARK_MOST_NS = 2000000,
	PARK_WAITED_NS = 100000000, /* up to so long while somebody waits for an event, who works meanwhile */
	SOON_LEAST = 8, /* after so many waits in a row that were no longer than LOOK_NS */
	ROUNDS = 256,
	POLLS_WHILE_ARMED = 64, /* who goes on polling after it asked for an event does not sleep */
	ALONE_NS = 1000000, /* a program that has not posted or polled for so long only takes what others send */
	BLOCK_LOOK_NS = 100000000, /* while the NIC process serves the slot itself */
	GUARD_LOOK_NS = 50000000, /* so often, while it is awake, the thread sees whether the program has other handlers for faults */
};

enum how { AWAKE, PARKED, WATCHING };

#define SAME(field, name)                                                                                            \
	_Static_assert(offsetof(struct bypass_punt, field) == ATTACH_PUNT_##name##_AT, #field)
SAME(kind, KIND);
SAME(effects, EFFECTS);
SAME(qp, QP);
SAME(limit, LIMIT);
SAME(count, COUNT);
SAME(bytes, BYTES);
SAME(room, ROOM);
SAME(step, STEP);
SAME(buffer, BUFFER);
SAME(size, LENGTH);
SAME(at, AT);
SAME(segment, SEGMENT);
SAME(name_bytes, SENDER_BYTES);
SAME(tclass, TCLASS);
SAME(hop_limit, HOP_LIMIT);
SAME(flow_label, FLOW_LABEL);
_Static_assert(offsetof(struct bypass_punt, name) == ATTACH_PUNT_SENDER_AT, "name");
_Static_assert(sizeof(struct bypass_punt) == ATTACH_PUNT_SIZE, "punt");
_Static_assert(BYPASS_PACKET == ATTACH_PUNT_PACKET && BYPASS_TURN == ATTACH_PUNT_TURN &&
		       BYPASS_NOTIFY == ATTACH_PUNT_NOTIFY && BYPASS_DOORBELL == ATTACH_PUNT_DOORBELL &&
		       BYPASS_TIMER == ATTACH_PUNT_TIMER && BYPASS_NOTIFY_SEND == ATTACH_PUNT_NOTIFY_SEND &&
		       BYPASS_NOTIFY_RECV == ATTACH_PUNT_NOTIFY_RECV,
	       "kinds of punts");

struct slot_driver {
	struct slot_setup setup; /* `answer` and `fds` are gone */
	struct bypass *bypass;
	struct answer *answer; /* of punts; the lock's holder uses it, */
	uint32_t token; /* and this */
	uint8_t *arena, *shared, *budget;
	size_t arena_bytes, shared_bytes, budget_bytes;
	int fd, shared_fd, wake;
	_Atomic int bell; /* rung by programs of the same device; -1 */
	uint8_t cookie[BYPASS_COOKIE_BYTES]; /* by which they know this one */
	pid_t pid;
	uint64_t slow; /* speed.h */
	pthread_t thread;
	_Atomic uint64_t polled_ns; /* when somebody polled last */
	_Atomic uint64_t covered_ns; /* for how long polls followed each other */
	_Atomic uint64_t used_ns; /* when somebody posted or polled last */
	_Atomic uint64_t until_ns; /* when the thread wakes */
	_Atomic uint64_t due_ns; /* when the engine wants a round, as who let go of it last saw it, unless he polls */
	_Atomic uint32_t how; /* enum how: what it does until then */
	_Atomic uint32_t armed; /* polls that the program may make before it counts as polling, having asked for an event */
	_Atomic uint32_t waiters; /* threads that wait for events and run the engine */
	_Atomic uint32_t soon; /* waits for events in a row that ended within `look_ns` */
	_Atomic uint64_t look_ns; /* LOOK_NS of this machine, or what slot_look_on said */
	_Atomic bool waits; /* that is what the program does after it asked for an event */
	_Atomic bool stop, gone; /* the NIC process has gone */
	struct slot_events *events; /* those that the engine fires: under the engine's lock, as the one below */
	struct slot_events *quiet; /* its next event is for who works now, and needs no descriptor */
};

static bool look(struct slot_driver *slot)
{
	if (!atomic_load(&slot->gone) && slot->setup.is_gone(slot->setup.self))
		atomic_store(&slot->gone, true);
	return atomic_load(&slot->gone);
}

static int leave(void *self, const struct bypass_punt *punt, struct bypass_answer *said)
{
	struct slot_driver *slot = self;
	struct answer *answer = slot->answer;
	int error = exchange(slot->setup.socket, ATTACH_MSG_PUNT, ++slot->token, punt, sizeof *punt, NULL, 0, answer);

	if (error || answer->bytes < ATTACH_PUNT_REPLY_SIZE) {
		look(slot);
		return -1;
	}
	memcpy(&said->count, answer->body + ATTACH_PUNT_REPLY_COUNT_AT, 8);
	memcpy(&said->polite, answer->body + ATTACH_PUNT_REPLY_POLITE_AT, 4);
	memcpy(&said->settled, answer->body + ATTACH_PUNT_REPLY_SETTLED_AT, 4);
	return 0;
}

static int is_gone(void *self)
{
	return look(self);
}

/* An event queue has an entry more: whoever waits for its descriptor wakes. */
static void fire(void *self, uint32_t vector)
{
	struct slot_driver *slot = self;
	uint64_t one = 1;

	for (struct slot_events *each = slot->events; each; each = each->next) {
		if (each->vector != vector)
			continue;
		if (each == slot->quiet)
			slot->quiet = NULL;
		else
			while (write(each->fd, &one, sizeof one) < 0 && errno == EINTR)
				;
		return;
	}
}

/* ---- the thread */

static void wake(struct slot_driver *slot)
{
	uint64_t one = 1;

	while (write(slot->wake, &one, sizeof one) < 0 && errno == EINTR)
		;
}

/* The thread wakes in time for what is due at a time, unless it wakes soon enough by itself. */
static void wake_for(struct slot_driver *slot, uint64_t deadline)
{
	uint32_t how = atomic_load(&slot->how);
	uint64_t until = atomic_load(&slot->until_ns);

	if (how != AWAKE && deadline < until &&
	    (how == WATCHING || until > bypass_now() + PARK_MOST_NS || atomic_load(&slot->waiters)))
		wake(slot);
}

/* Whether others run the engine, so that the thread need not. */
static bool is_polled(const struct slot_driver *slot, uint64_t now)
{
	return now < atomic_load_explicit(&slot->polled_ns, memory_order_relaxed) + slot->slow * RECENT_NS ||
	       atomic_load_explicit(&slot->waiters, memory_order_relaxed);
}

/* The same where the thread itself does not: a round of long messages takes longer than a poll counts. */
static bool is_served(const struct slot_driver *slot, uint64_t now)
{
	return is_polled(slot, now) || bypass_is_taken(slot->bypass);
}

/* Whether others ran the engine for most of the time since `then`, when polls had covered so much, or do so now. */
static bool is_attended(const struct slot_driver *slot, uint64_t covered, uint64_t then, uint64_t now)
{
	return 2 * (atomic_load_explicit(&slot->covered_ns, memory_order_relaxed) - covered) >= now - then ||
	       atomic_load_explicit(&slot->waiters, memory_order_relaxed) || bypass_is_taken(slot->bypass);
}

/* Somebody polled from a time to another. */
static void cover(struct slot_driver *slot, uint64_t since, uint64_t until)
{
	uint64_t last = atomic_load_explicit(&slot->polled_ns, memory_order_relaxed);
	uint64_t covered = atomic_load_explicit(&slot->covered_ns, memory_order_relaxed);

	if (last < since && since < last + slot->slow * GAP_NS)
		since = last;
	atomic_store_explicit(&slot->covered_ns, covered + (until - since), memory_order_relaxed);
	atomic_store_explicit(&slot->polled_ns, until, memory_order_relaxed);
}

/* Whether the program leaves everything to the thread: no core that the thread keeps is one that it waits for. */
static bool is_alone(const struct slot_driver *slot, uint64_t now)
{
	return now > atomic_load_explicit(&slot->used_ns, memory_order_relaxed) + ALONE_NS &&
	       !atomic_load_explicit(&slot->stop, memory_order_relaxed);
}

/* The bell has rung, for all who slept. Whoever rings on and on keeps nobody here. */
static void silence(const struct slot_driver *slot)
{
	char drained;

	for (int i = 0; i < MOST_RINGS && (recv(slot->bell, &drained, 1, MSG_DONTWAIT) >= 0 || errno == EINTR); i++)
		;
}

/* Sleep, no longer than until a deadline that somebody may have set just now, where those are heeded; whether somebody
 * called. */
static bool rest(struct slot_driver *slot, uint64_t until, enum how how, bool heeds)
{
	struct pollfd poller[4] = { { .fd = slot->wake, .events = POLLIN },
				    { .fd = atomic_load(&slot->gone) ? -1 : slot->setup.socket },
				    { .fd = slot->fd, .events = POLLIN },
				    { .fd = slot->bell, .events = POLLIN } };
	uint64_t now = bypass_now(), due, left, drained;
	struct timespec timeout;

	atomic_store(&slot->until_ns, until);
	atomic_store(&slot->how, how);
	due = atomic_load(&slot->due_ns); /* who set it before he could see how this thread sleeps does not wake it */
	if (heeds && due < until)
		until = due;
	left = until > now ? until - now : 0;
	timeout = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
	if (atomic_load(&slot->stop))
		return true; /* the call for it may have been heard as one for the sleep before */
	if (how == WATCHING && bypass_dozes(slot->bypass))
		timeout = (struct timespec){ 0, 0 }, until = 0;
	ppoll(poller, how == WATCHING ? 4 : 2, until == UINT64_MAX || left >> 60 ? NULL : &timeout, NULL);
	atomic_store(&slot->how, AWAKE);
	if (poller[1].revents)
		look(slot); /* data would go on without it: the device is dead all the same */
	if (poller[3].revents)
		silence(slot);
	return poller[0].revents && read(slot->wake, &drained, sizeof drained) > 0;
}

/* Work until there is no more, or until somebody else does, and say when the next is due. False where somebody else is
 * at work: that may be who had the core before, so that looking on and on would keep him from it. */
static bool work(struct slot_driver *slot, bool *did, uint64_t *deadline)
{
	*did = false;
	if (bypass_try(slot->bypass))
		return false;
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t now = bypass_now();

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
	struct slot_driver *slot = self;
	uint64_t park = slot->slow * PARK_LEAST_NS, did_ns = 0, looked_ns = 0;
	bool called = true, attended = false, refused = false;

	prctl(PR_SET_TIMERSLACK, 1); /* nanosecond */
	while (!atomic_load(&slot->stop)) {
		uint64_t now = bypass_now(), deadline;
		bool parked = false, did, polled;

		if (now - looked_ns > GUARD_LOOK_NS) {
			guard_look();
			looked_ns = now;
		}
		if (bypass_idle(slot->bypass) || atomic_load(&slot->gone)) {
			rest(slot, now + BLOCK_LOOK_NS, PARKED, false);
			continue;
		}
		polled = is_served(slot, now);
		if ((polled || attended) && !called) {
			uint64_t covered = atomic_load_explicit(&slot->covered_ns, memory_order_relaxed), then = now;
			uint32_t waiters = atomic_load(&slot->waiters);
			uint64_t most = waiters ? PARK_WAITED_NS : PARK_MOST_NS;
			/* who waits sleeps by the deadlines that there were: those of others' posts are seen to here, but not
			 * by looking on and on while somebody is at work */
			bool heeds = waiters && !refused;

			called = rest(slot, then + (polled ? park : slot->slow * DOUBT_NS), PARKED, heeds);
			refused = false;
			now = bypass_now();
			called |= heeds && atomic_load(&slot->due_ns) <= now;
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
			called = rest(slot, deadline, WATCHING, true) ||
				 (deadline > now && atomic_load(&slot->due_ns) <= bypass_now());
	}
	return NULL;
}

/* All signals but those of its own faults are the program's own threads'. */
static int start(struct slot_driver *slot)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	int error;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV); /* its own, which guard.h answers */
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	error = pthread_create(&slot->thread, &attributes, run, slot);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

/* ---- opening and closing */

static uint8_t *map(int fd, size_t bytes)
{
	uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return NULL;
	madvise(base, bytes, MADV_DONTFORK); /* a child has no business in it */
	return base;
}

static void drop(struct slot_driver *slot)
{
	if (slot->bypass)
		bypass_free(slot->bypass);
	if (slot->arena)
		munmap(slot->arena, slot->arena_bytes);
	if (slot->shared)
		munmap(slot->shared, slot->shared_bytes);
	if (slot->budget)
		munmap(slot->budget, slot->budget_bytes);
	if (slot->wake >= 0)
		close(slot->wake);
	if (slot->bell >= 0)
		close(slot->bell);
	if (slot->shared_fd >= 0)
		close(slot->shared_fd);
	close(slot->fd);
	free(slot->answer);
	free(slot);
}

int slot_open(const struct slot_setup *given, struct slot_driver **made)
{
	struct slot_driver *slot = calloc(1, sizeof *slot);
	const uint8_t *said = given->answer;
	struct bypass_setup setup = { .fd = given->fds[0], .blocks = given->blocks, .punt = leave,
				      .is_gone = is_gone, .fire = fire, .self = slot };
	uint64_t arena, shared, budget;
	int error = ENOMEM;

	if (!slot) {
		for (int i = 0; i < SLOT_FDS; i++)
			close(given->fds[i]);
		return error;
	}
	slot->setup = *given;
	slot->fd = given->fds[0];
	slot->pid = getpid();
	slot->bell = -1;
	slot->slow = speed_slow(slot->fd);
	slot->look_ns = slot->slow * LOOK_NS;
	slot->due_ns = UINT64_MAX;
	slot->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	slot->answer = malloc(sizeof *slot->answer);
	memcpy(&arena, said + ATTACH_OPEN_SLOT_ARENA_BYTES_AT, 8);
	memcpy(&shared, said + ATTACH_OPEN_SLOT_SHARED_BYTES_AT, 8);
	memcpy(&budget, said + ATTACH_OPEN_SLOT_BUDGET_BYTES_AT, 8);
	slot->arena_bytes = arena;
	slot->shared_bytes = shared;
	slot->budget_bytes = budget;
	slot->arena = map(given->fds[1], arena);
	slot->shared = map(given->fds[2], shared);
	slot->budget = map(given->fds[3], budget);
	slot->shared_fd = given->fds[2];
	close(given->fds[1]);
	close(given->fds[3]);
	memcpy(&setup.slot, said + ATTACH_OPEN_SLOT_SLOT_AT, 4);
	memcpy(&setup.port, said + ATTACH_OPEN_SLOT_UDP_PORT_AT, 4);
	memcpy(&setup.address_bytes, said + ATTACH_OPEN_SLOT_ADDRESS_BYTES_AT, 4);
	memcpy(setup.address, said + ATTACH_OPEN_SLOT_ADDRESS_AT, 16);
	setup.slow = slot->slow;
	if (slot->arena && slot->shared && slot->budget && slot->wake >= 0 && slot->answer) {
		setup.arena = slot->arena;
		setup.shared = slot->shared;
		setup.shared_fd = slot->shared_fd;
		setup.budget = slot->budget;
		error = EPROTO;
		if (shared >= bypass_shared_bytes() && budget >= bypass_budget_bytes())
			slot->bypass = bypass_new(&setup);
		if (slot->bypass)
			error = start(slot);
	}
	if (error)
		drop(slot);
	else
		*made = slot;
	return error;
}

void slot_stop(struct slot_driver *slot)
{
	if (slot->pid != getpid() || atomic_exchange(&slot->stop, true))
		return;
	wake(slot);
	pthread_join(slot->thread, NULL);
}

void slot_close(struct slot_driver *slot)
{
	if (slot->pid != getpid()) {
		close(slot->fd); /* the arena is not mapped here, and whoever held the lock is not there */
		close(slot->shared_fd);
		close(slot->wake);
		if (slot->bell >= 0)
			close(slot->bell);
		return;
	}
	slot_stop(slot);
	drop(slot);
}

/* ---- messages */

/* Around a message that the NIC process works on the arena for. */
static void lend(struct slot_driver *slot)
{
	guard_look(); /* programs install handlers while they set up, as they make what is lent here */
	bypass_lock(slot->bypass);
}

static void back(struct slot_driver *slot)
{
	uint64_t deadline = bypass_deadline(slot->bypass); /* a command may have made work */

	atomic_store(&slot->due_ns, deadline);
	bypass_unlock(slot->bypass);
	wake_for(slot, deadline);
}

int slot_ask(struct slot_driver *slot, uint32_t kind, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct answer *answer)
{
	int error;

	lend(slot);
	error = exchange(slot->setup.socket, kind, ++slot->token, body, bytes, fds, fd_count, answer);
	back(slot);
	return error;
}

/* ---- programs of the same device */

/* To take part, with `cookie_at`, or whom a queue pair leads to. 0 or the error number; then the answer's descriptors are the
 * caller's. */
static int ask_hairpin(struct slot_driver *slot, uint32_t number, uint64_t cookie_at, struct answer *answer)
{
	uint8_t message[ATTACH_HAIRPIN_SIZE] = { 0 };
	int error;

	memcpy(message + ATTACH_HAIRPIN_QPN_AT, &number, 4);
	memcpy(message + ATTACH_HAIRPIN_COOKIE_VA_AT, &cookie_at, 8);
	error = slot_ask(slot, ATTACH_MSG_HAIRPIN, message, sizeof message, NULL, 0, answer);
	if (!error && answer->bytes < ATTACH_HAIRPIN_REPLY_SIZE) {
		close_fds(answer);
		error = EPROTO;
	}
	return error;
}

int slot_take_part(struct slot_driver *slot)
{
	struct answer *answer = malloc(sizeof *answer);
	int error;

	if (!answer)
		return ENOMEM;
	lend(slot);
	error = bypass_hairpin(slot->bypass) ? ENOMEM : 0;
	back(slot);
	if (!error)
		error = ask_hairpin(slot, 0, (uintptr_t)slot->cookie, answer);
	if (!error && answer->fd_count == 1) {
		memcpy(slot->cookie, answer->body + ATTACH_HAIRPIN_REPLY_COOKIE_AT, sizeof slot->cookie);
		slot->bell = answer->fds[0];
		wake(slot); /* it may sleep without */
	} else if (!error) {
		close_fds(answer);
	}
	free(answer);
	return error;
}

void slot_join(struct slot_driver *slot, uint32_t number)
{
	struct answer *answer = slot->bell >= 0 ? malloc(sizeof *answer) : NULL;
	struct bypass_peer setup = { 0 };
	const uint8_t *said;
	int error;

	if (!answer)
		return;
	error = ask_hairpin(slot, number, 0, answer);
	if (!error && answer->fd_count == 2) {
		said = answer->body;
		memcpy(&setup.numbers, said + ATTACH_HAIRPIN_REPLY_NUMBERS_AT, 4);
		memcpy(&setup.first_number, said + ATTACH_HAIRPIN_REPLY_FIRST_QPN_AT, 4);
		memcpy(&setup.pid, said + ATTACH_HAIRPIN_REPLY_PID_AT, 4);
		memcpy(&setup.ring, said + ATTACH_HAIRPIN_REPLY_RING_AT, 4);
		memcpy(&setup.bytes, said + ATTACH_HAIRPIN_REPLY_BYTES_AT, 8);
		memcpy(&setup.cookie_at, said + ATTACH_HAIRPIN_REPLY_COOKIE_VA_AT, 8);
		memcpy(setup.cookie, said + ATTACH_HAIRPIN_REPLY_COOKIE_AT, sizeof setup.cookie);
		setup.bell = answer->fds[1];
		setup.base = map(answer->fds[0], setup.bytes);
		close(answer->fds[0]);
		lend(slot);
		error = !setup.base || bypass_join(slot->bypass, &setup);
		back(slot);
		if (error && setup.base)
			munmap(setup.base, setup.bytes);
		if (error)
			close(setup.bell);
		wake(slot); /* it may sleep, and those who fill the new ring know nothing of that */
	} else if (!error) {
		close_fds(answer);
	}
	free(answer);
}

/* ---- what posts and polls */

int slot_ring(struct slot_driver *slot, uint32_t number, uint32_t block)
{
	uint64_t now = bypass_now();
	int here;

	atomic_store_explicit(&slot->used_ns, now, memory_order_relaxed);
	bypass_lock(slot->bypass);
	here = !bypass_idle(slot->bypass);
	if (here)
		bypass_ring(slot->bypass, number, block);
	back(slot);
	if (now < atomic_load_explicit(&slot->polled_ns, memory_order_relaxed) + slot->slow * GAP_NS)
		cover(slot, now, bypass_now()); /* who posts between polls has not stopped polling */
	return here;
}

/* The fence stands between the store and the look at `asleep`: the NIC process sets that, fences, and looks for stores once
 * more before it sleeps. */
void slot_knock(volatile _Atomic uint8_t *rung, _Atomic uint32_t *asleep, int wake_fd, uint32_t block)
{
	uint64_t one = 1;

	atomic_store_explicit(&rung[block], 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(asleep, memory_order_relaxed))
		return;
	while (write(wake_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

/* Who polls for its completion and then watches its memory leaves the answer to the thread, which sleeps: so where one is
 * expected the poll ends with it. */
int slot_poll(struct slot_driver *slot)
{
	uint32_t armed = atomic_load_explicit(&slot->armed, memory_order_relaxed);
	uint64_t now = bypass_now(), end = now + slot->slow * ANSWER_NS;
	int did = 0;
	bool expects;

	atomic_store_explicit(&slot->used_ns, now, memory_order_relaxed);
	if (armed)
		atomic_store_explicit(&slot->armed, armed - 1, memory_order_relaxed);
	else
		cover(slot, now, now);
	do {
		uint64_t began = now;

		/* one that the NIC process serves is not taken, either: that would have to wait for it */
		if (bypass_idle(slot->bypass) || bypass_try(slot->bypass))
			return did;
		if (!bypass_idle(slot->bypass))
			did |= bypass_round(slot->bypass, began, 1);
		if (did)
			now = bypass_now();
		if (did && !armed) /* a round of long messages takes longer than a program needs to come back */
			cover(slot, began, now);
		expects = did && !armed && bypass_expects(slot->bypass);
		if (expects && now >= end) {
			bypass_missed(slot->bypass);
			expects = false;
		}
		bypass_unlock(slot->bypass);
	} while (expects);
	return did;
}

void slot_rest(struct slot_driver *slot)
{
	atomic_store(&slot->armed, POLLS_WHILE_ARMED);
	atomic_store(&slot->polled_ns, 0);
	if (!atomic_load(&slot->waits) && atomic_load(&slot->how) == PARKED)
		wake(slot);
}

/* ---- events */

void slot_serve(struct slot_driver *slot, struct slot_events *events)
{
	lend(slot);
	events->next = slot->events;
	slot->events = events;
	back(slot);
}

void slot_forget(struct slot_driver *slot, struct slot_events *events)
{
	if (slot->pid != getpid())
		return;
	lend(slot);
	for (struct slot_events **at = &slot->events; *at; at = &(*at)->next) {
		if (*at == events) {
			*at = events->next;
			break;
		}
	}
	back(slot);
}

/* Run the engine until an entry comes or there is nothing to do. Returns when there is. */
static uint64_t work_for(struct slot_driver *slot, struct slot_events *events)
{
	uint64_t deadline = UINT64_MAX;

	bypass_lock(slot->bypass);
	slot->quiet = events;
	for (int i = 0; i < ROUNDS; i++)
		if (bypass_idle(slot->bypass) || !bypass_round(slot->bypass, bypass_now(), 1) || events->waits(events))
			break;
	if (!bypass_idle(slot->bypass))
		deadline = bypass_deadline(slot->bypass);
	atomic_store(&slot->due_ns, deadline);
	slot->quiet = NULL;
	bypass_unlock(slot->bypass);
	return deadline;
}

static void gone_on(void *self)
{
	struct slot_driver *slot = self;

	atomic_store(&slot->polled_ns, bypass_now());
	atomic_fetch_sub(&slot->waiters, 1);
	if (atomic_load(&slot->how) == PARKED && atomic_load(&slot->until_ns) > bypass_now() + PARK_MOST_NS)
		wake(slot); /* it sleeps for long while somebody waits here */
}

/* Run the engine and, from `until` on, sleep in turn until an event may have come: 0 or the error number. */
static int wait_for(struct slot_driver *slot, struct slot_events *events, int other, uint64_t until)
{
	enum { EVENTS, NIC, PACKETS, BELL, OTHER, ALL };
	struct pollfd pollers[ALL] = { [EVENTS] = { .fd = events->fd, .events = POLLIN },
				       [NIC] = { .fd = slot->setup.socket },
				       [PACKETS] = { .fd = slot->fd },
				       [BELL] = { .fd = slot->bell },
				       [OTHER] = { .fd = other, .events = POLLIN } };

	for (;;) {
		uint64_t deadline = work_for(slot, events), now, left;
		struct timespec timeout;

		if (events->waits(events))
			return 0;
		now = bypass_now();
		if (now < until && !bypass_idle(slot->bypass))
			continue;
		left = deadline > now ? deadline - now : 0;
		timeout = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
		pollers[PACKETS].events = pollers[BELL].events = bypass_idle(slot->bypass) ? 0 : POLLIN;
		if (!bypass_idle(slot->bypass) && bypass_dozes(slot->bypass))
			continue;
		if (ppoll(pollers, ALL, left >> 60 ? NULL : &timeout, NULL) < 0)
			return errno;
		if (pollers[BELL].revents)
			silence(slot);
		if (pollers[EVENTS].revents) {
			fires_take(events->fd);
			return 0;
		}
		if (pollers[NIC].revents)
			return look(slot) ? EIO : 0;
		if (pollers[OTHER].revents)
			return 0;
	}
}

void slot_look_on(struct slot_driver *slot, uint64_t ns)
{
	atomic_store(&slot->look_ns, ns);
}

/* Sleeping costs one wake-up: whoever waits for events takes the packets too. Two that answer each other would spend most of
 * their time on falling asleep and waking: who has not had to wait for longer lately looks on. */
int slot_await(struct slot_driver *slot, struct slot_events *events, int other)
{
	uint64_t look_ns = atomic_load_explicit(&slot->look_ns, memory_order_relaxed), began = bypass_now();
	uint32_t soon = atomic_load_explicit(&slot->soon, memory_order_relaxed);
	int error;

	atomic_fetch_add(&slot->waiters, 1);
	atomic_store(&slot->waits, true);
	pthread_cleanup_push(gone_on, slot);
	error = wait_for(slot, events, other, soon >= SOON_LEAST ? began + look_ns : began);
	pthread_cleanup_pop(1);
	soon = bypass_now() - began < look_ns ? soon + (soon < SOON_LEAST) : 0;
	atomic_store_explicit(&slot->soon, soon, memory_order_relaxed);
	return error;
}
#endif
