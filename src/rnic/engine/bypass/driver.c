/* The engine in this process: a slot of the device, with a socket and an arena of its own (docs/programs.md).
 *
 * Whoever posts or polls runs it. While nobody polls, one thread sleeps until packets come or a deadline passes, and
 * runs it then. What the engine leaves to the reference goes to the NIC process in a message, and with it the arena. */
#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/driver_progress_thread.h"

#include "io/calibrate.h"
#include "io/eventfd.h"
#include "io/nocancel.h"
#include "memory/fault_guard.h"
#include "state.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	/* Times `slow` (io/calibrate.h): */
	LOOK_NS = 50000, /* so long who waits for events looks on before he sleeps, if SOON_LEAST waits were no longer */
	ANSWER_NS = 50000, /* for so long a poll that found the completion alone waits for the answer */

	SOON_LEAST = 8,
	POLLS_WHILE_ARMED = 64, /* who goes on polling after it asked for an event does not sleep */
};

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

bool driver_nic_is_gone(struct bypass_driver *slot)
{
	if (!atomic_load(&slot->gone) && slot->setup.is_gone(slot->setup.self))
		atomic_store(&slot->gone, true);
	return atomic_load(&slot->gone);
}

static int leave(void *self, const struct bypass_punt *punt, struct bypass_answer *said)
{
	struct bypass_driver *slot = self;
	struct rpc_reply *answer = slot->answer;
	int error = rpc_call(slot->setup.socket, ATTACH_MSG_PUNT, ++slot->token, punt, sizeof *punt, NULL, 0, answer);

	if (error || answer->bytes < ATTACH_PUNT_REPLY_SIZE) {
		driver_nic_is_gone(slot);
		return -1;
	}
	memcpy(&said->count, answer->body + ATTACH_PUNT_REPLY_COUNT_AT, 8);
	memcpy(&said->polite, answer->body + ATTACH_PUNT_REPLY_POLITE_AT, 4);
	memcpy(&said->settled, answer->body + ATTACH_PUNT_REPLY_SETTLED_AT, 4);
	return 0;
}

static int is_gone(void *self)
{
	return driver_nic_is_gone(self);
}

/* An event queue has an entry more: whoever waits for its descriptor wakes. */
static void fire(void *self, uint32_t vector)
{
	struct bypass_driver *slot = self;
	uint64_t one = 1;

	for (struct driver_event_queue *each = slot->events; each; each = each->next) {
		if (each->vector != vector)
			continue;
		if (each == slot->quiet)
			slot->quiet = NULL;
		else
			while (nocancel_write(each->fd, &one, sizeof one) < 0 && errno == EINTR)
				;
		return;
	}
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

static void drop(struct bypass_driver *slot)
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

int driver_open(const struct driver_setup *given, struct bypass_driver **made)
{
	struct bypass_driver *slot = calloc(1, sizeof *slot);
	const uint8_t *said = given->answer;
	struct bypass_setup setup = { .fd = given->fds[0], .blocks = given->blocks, .punt = leave,
				      .is_gone = is_gone, .fire = fire, .self = slot };
	uint64_t arena, shared, budget;
	int error = ENOMEM;

	if (!slot) {
		for (int i = 0; i < DRIVER_FDS; i++)
			close(given->fds[i]);
		return error;
	}
	slot->setup = *given;
	slot->fd = given->fds[0];
	slot->pid = getpid();
	slot->bell = -1;
	slot->slow = calibrate_slowdown(slot->fd);
	clock_calibrate();
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
			error = driver_thread_start(slot);
	}
	if (error)
		drop(slot);
	else
		*made = slot;
	return error;
}

void driver_stop(struct bypass_driver *slot)
{
	if (slot->pid != getpid() || atomic_exchange(&slot->stop, true))
		return;
	driver_thread_wake(slot);
	pthread_join(slot->thread, NULL);
}

void driver_close(struct bypass_driver *slot)
{
	if (slot->pid != getpid()) {
		close(slot->fd); /* the arena is not mapped here, and whoever held the lock is not there */
		close(slot->shared_fd);
		close(slot->wake);
		if (slot->bell >= 0)
			close(slot->bell);
		return;
	}
	driver_stop(slot);
	drop(slot);
}

/* ---- messages */

/* Around a message that the NIC process works on the arena for. */
static void lend(struct bypass_driver *slot)
{
	fault_guard_refresh(); /* programs install handlers while they set up, as they make what is lent here */
	bypass_lock(slot->bypass);
}

static void back(struct bypass_driver *slot)
{
	uint64_t deadline = bypass_deadline(slot->bypass); /* a command may have made work */

	atomic_store(&slot->due_ns, deadline);
	bypass_unlock(slot->bypass);
	driver_thread_wake_for(slot, deadline);
}

int driver_request(struct bypass_driver *slot, uint32_t kind, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct rpc_reply *answer)
{
	int error;

	lend(slot);
	error = rpc_call(slot->setup.socket, kind, ++slot->token, body, bytes, fds, fd_count, answer);
	back(slot);
	return error;
}

/* ---- programs of the same device */

/* To take part, with `cookie_at`, or whom a queue pair leads to. 0 or the error number; then the answer's descriptors are the
 * caller's. */
static int ask_hairpin(struct bypass_driver *slot, uint32_t number, uint64_t cookie_at, struct rpc_reply *answer)
{
	uint8_t message[ATTACH_SHM_RING_SIZE] = { 0 };
	int error;

	memcpy(message + ATTACH_SHM_RING_QPN_AT, &number, 4);
	memcpy(message + ATTACH_SHM_RING_COOKIE_VA_AT, &cookie_at, 8);
	error = driver_request(slot, ATTACH_MSG_SHM_RING, message, sizeof message, NULL, 0, answer);
	if (!error && answer->bytes < ATTACH_SHM_RING_REPLY_SIZE) {
		close_fds(answer);
		error = EPROTO;
	}
	return error;
}

int driver_enable_shm_loopback(struct bypass_driver *slot)
{
	struct rpc_reply *answer = malloc(sizeof *answer);
	int error;

	if (!answer)
		return ENOMEM;
	lend(slot);
	error = bypass_shm_loopback(slot->bypass) ? ENOMEM : 0;
	back(slot);
	if (!error)
		error = ask_hairpin(slot, 0, (uintptr_t)slot->cookie, answer);
	if (!error && answer->fd_count == 1) {
		memcpy(slot->cookie, answer->body + ATTACH_SHM_RING_REPLY_COOKIE_AT, sizeof slot->cookie);
		slot->bell = answer->fds[0];
		driver_thread_wake(slot); /* it may sleep without */
	} else if (!error) {
		close_fds(answer);
	}
	free(answer);
	return error;
}

void driver_join(struct bypass_driver *slot, uint32_t number)
{
	struct rpc_reply *answer = slot->bell >= 0 ? malloc(sizeof *answer) : NULL;
	struct bypass_peer setup = { 0 };
	const uint8_t *said;
	int error;

	if (!answer)
		return;
	error = ask_hairpin(slot, number, 0, answer);
	if (!error && answer->fd_count == 2) {
		said = answer->body;
		memcpy(&setup.numbers, said + ATTACH_SHM_RING_REPLY_NUMBERS_AT, 4);
		memcpy(&setup.first_number, said + ATTACH_SHM_RING_REPLY_FIRST_QPN_AT, 4);
		memcpy(&setup.pid, said + ATTACH_SHM_RING_REPLY_PID_AT, 4);
		memcpy(&setup.ring, said + ATTACH_SHM_RING_REPLY_RING_AT, 4);
		memcpy(&setup.bytes, said + ATTACH_SHM_RING_REPLY_BYTES_AT, 8);
		memcpy(&setup.cookie_at, said + ATTACH_SHM_RING_REPLY_COOKIE_VA_AT, 8);
		memcpy(setup.cookie, said + ATTACH_SHM_RING_REPLY_COOKIE_AT, sizeof setup.cookie);
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
		driver_thread_wake(slot); /* it may sleep, and those who fill the new ring know nothing of that */
	} else if (!error) {
		close_fds(answer);
	}
	free(answer);
}

/* ---- what posts and polls */

int driver_ring(struct bypass_driver *slot, uint32_t number, uint32_t block)
{
	uint64_t now = clock_approximate_now();
	int here, took_time;

	atomic_store_explicit(&slot->used_ns, now, memory_order_relaxed);
	bypass_lock(slot->bypass);
	here = !bypass_idle(slot->bypass);
	if (here)
		bypass_ring(slot->bypass, number, block, now);
	took_time = bypass_took_time(slot->bypass);
	back(slot);
	if (now < atomic_load_explicit(&slot->polled_ns, memory_order_relaxed) + slot->slow * GAP_NS)
		driver_note_polled(slot, now, took_time ? clock_approximate_now() : now); /* who posts between polls has not stopped polling */
	return here;
}

/* The fence stands between the store and the look at `asleep`: the NIC process sets that, fences, and looks for stores once
 * more before it sleeps. */
void driver_ring_doorbell(volatile _Atomic uint8_t *rung, _Atomic uint32_t *asleep, int wake_fd, uint32_t block)
{
	uint64_t one = 1;

	atomic_store_explicit(&rung[block], 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(asleep, memory_order_relaxed))
		return;
	while (nocancel_write(wake_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

/* Who polls for its completion and then watches its memory leaves the answer to the thread, which sleeps: so where one is
 * expected the poll ends with it. */
int driver_poll(struct bypass_driver *slot)
{
	uint32_t armed = atomic_load_explicit(&slot->armed, memory_order_relaxed);
	uint64_t now = clock_approximate_now(), end = now + slot->slow * ANSWER_NS;
	int did = 0;
	bool expects;

	atomic_store_explicit(&slot->used_ns, now, memory_order_relaxed);
	if (armed)
		atomic_store_explicit(&slot->armed, armed - 1, memory_order_relaxed);
	else
		driver_note_polled(slot, now, now);
	do {
		uint64_t began = now;

		/* one that the NIC process serves is not taken, either: that would have to wait for it */
		if (bypass_idle(slot->bypass) || bypass_try(slot->bypass))
			return did;
		if (!bypass_idle(slot->bypass))
			did |= bypass_round(slot->bypass, began, 1);
		expects = did && !armed && bypass_expects(slot->bypass);
		if (bypass_took_time(slot->bypass) || expects)
			now = clock_approximate_now();
		if (did && !armed) /* a round of long messages takes longer than a program needs to come back */
			driver_note_polled(slot, began, now);
		if (expects && now >= end) {
			bypass_unexpected(slot->bypass);
			expects = false;
		}
		bypass_unlock(slot->bypass);
	} while (expects);
	return did;
}

void driver_prepare_to_sleep(struct bypass_driver *slot)
{
	atomic_store(&slot->armed, POLLS_WHILE_ARMED);
	atomic_store(&slot->polled_ns, 0);
	if (!atomic_load(&slot->waits) && atomic_load(&slot->how) == PARKED)
		driver_thread_wake(slot);
}

/* ---- events */

void driver_add_events(struct bypass_driver *slot, struct driver_event_queue *events)
{
	lend(slot);
	events->next = slot->events;
	slot->events = events;
	back(slot);
}

void driver_remove_events(struct bypass_driver *slot, struct driver_event_queue *events)
{
	if (slot->pid != getpid())
		return;
	lend(slot);
	for (struct driver_event_queue **at = &slot->events; *at; at = &(*at)->next) {
		if (*at == events) {
			*at = events->next;
			break;
		}
	}
	back(slot);
}

/* Run the engine until an entry comes or there is nothing to do. Returns when there is. */
static uint64_t work_for(struct bypass_driver *slot, struct driver_event_queue *events)
{
	uint64_t deadline = UINT64_MAX;

	bypass_lock(slot->bypass);
	slot->quiet = events;
	for (int i = 0; i < ROUNDS; i++)
		if (bypass_idle(slot->bypass) || !bypass_round(slot->bypass, clock_now(), 1) || events->waits(events))
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
	struct bypass_driver *slot = self;

	atomic_store(&slot->polled_ns, clock_now());
	atomic_fetch_sub(&slot->waiters, 1);
	if (atomic_load(&slot->how) == PARKED && atomic_load(&slot->until_ns) > clock_now() + slot->slow * PARK_MOST_NS)
		driver_thread_wake(slot); /* it sleeps for long while somebody waits here */
}

/* Run the engine and, from `until` on, sleep in turn until an event may have come: 0 or the error number. */
static int wait_for(struct bypass_driver *slot, struct driver_event_queue *events, int other, uint64_t until)
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
		now = clock_now();
		if (now < until && !bypass_idle(slot->bypass))
			continue;
		left = deadline > now ? deadline - now : 0;
		timeout = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
		pollers[PACKETS].events = pollers[BELL].events = bypass_idle(slot->bypass) ? 0 : POLLIN;
		if (!bypass_idle(slot->bypass) && bypass_has_pending(slot->bypass))
			continue;
		if (ppoll(pollers, ALL, left >> 60 ? NULL : &timeout, NULL) < 0)
			return errno;
		if (pollers[BELL].revents)
			driver_drain_wake_fd(slot);
		if (pollers[EVENTS].revents) {
			eventfd_drain(events->fd);
			return 0;
		}
		if (pollers[NIC].revents)
			return driver_nic_is_gone(slot) ? EIO : 0;
		if (pollers[OTHER].revents)
			return 0;
	}
}

void driver_set_spin(struct bypass_driver *slot, uint64_t ns)
{
	atomic_store(&slot->look_ns, ns);
}

/* Sleeping costs one wake-up: whoever waits for events takes the packets too. Two that answer each other would spend most of
 * their time on falling asleep and waking: who has not had to wait for longer lately looks on. */
int driver_await(struct bypass_driver *slot, struct driver_event_queue *events, int other)
{
	uint64_t look_ns = atomic_load_explicit(&slot->look_ns, memory_order_relaxed), began = clock_now();
	uint32_t soon = atomic_load_explicit(&slot->soon, memory_order_relaxed);
	int error;

	atomic_fetch_add(&slot->waiters, 1);
	atomic_store(&slot->waits, true);
	pthread_cleanup_push(gone_on, slot);
	error = wait_for(slot, events, other, soon >= SOON_LEAST ? began + look_ns : began);
	pthread_cleanup_pop(1);
	soon = clock_now() - began < look_ns ? soon + (soon < SOON_LEAST) : 0;
	atomic_store_explicit(&slot->soon, soon, memory_order_relaxed);
	return error;
}
#endif
