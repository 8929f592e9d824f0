/* The engine in this process: a bypass slot of the device, with a socket and an arena of its own (docs/programs.md).
 *
 * A program's thread that posts or polls runs it. While none polls, the progress thread sleeps until packets come or a
 * deadline passes, and runs it then. What the engine punts goes to the NIC process in a message, and with it the
 * arena. */
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
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	/* Times `slow` (io/calibrate.h): */
	/* how long driver_await spins before it sleeps, after SPIN_AFTER_SHORT_WAITS waits that were no longer */
	SPIN_NS = 50000,
	ANSWER_WAIT_NS = 50000, /* time for which a poll that found only the completion waits for the answer */

	SPIN_AFTER_SHORT_WAITS = 8,
	SERVED_CHECK_NS = 100000000, /* between two checks of a waiting thread whether to serve its slot */
	POLLS_WHILE_ARMED = 64, /* a program that continues to poll after arming does not sleep */
};

#define SAME(field, name) _Static_assert(offsetof(struct bypass_punt, field) == ATTACH_PUNT_##name##_AT, #field)
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

_Static_assert(ATTACH_OPEN_SLOT_SIZE - ATTACH_OPEN_SLOT_SOURCE_PORT_LIST_AT ==
		       ATTACH_MAX_SOURCE_PORTS * sizeof(uint16_t),
	       "source ports");

static int send_punt(void *self, const struct bypass_punt *punt, struct bypass_answer *answer)
{
	struct bypass_driver *driver = self;
	struct rpc_reply *reply = driver->answer;
	int error =
		rpc_call(driver->setup.socket.fd, ATTACH_MSG_PUNT, ++driver->token, punt, sizeof *punt, NULL, 0, reply);

	if (error || reply->bytes < ATTACH_PUNT_REPLY_SIZE) {
		driver_nic_is_gone(driver);
		return -1;
	}
	memcpy(&answer->count, reply->body + ATTACH_PUNT_REPLY_COUNT_AT, 8);
	memcpy(&answer->reschedule, reply->body + ATTACH_PUNT_REPLY_RESCHEDULE_AT, 4);
	memcpy(&answer->settled, reply->body + ATTACH_PUNT_REPLY_SETTLED_AT, 4);
	return 0;
}

static int open_source(void *self, uint32_t port)
{
	struct bypass_driver *driver = self;
	struct rpc_reply *reply = driver->answer;
	uint8_t message[ATTACH_SOURCE_PORT_SIZE];
	int error;

	memcpy(message + ATTACH_SOURCE_PORT_PORT_AT, &port, 4);
	error = rpc_call(driver->setup.socket.fd, ATTACH_MSG_SOURCE_PORT, ++driver->token, message, sizeof message,
			 NULL, 0, reply);
	if (!error && reply->fd_count == 1)
		return own_fds_add(&driver->own, reply->fds[0]);
	if (!error)
		close_fds(reply);
	return -1;
}

static int is_gone(void *self)
{
	return driver_nic_is_gone(self);
}

static void lost_fds(void *self)
{
	driver_lost_fds(self);
}

/* Fire the descriptor of an event queue that has one more entry. */
static void fire_event_queue(void *self, uint32_t vector)
{
	struct bypass_driver *driver = self;
	uint64_t one = 1;

	for (struct driver_event_queue *each = driver->events; each; each = each->next) {
		if (each->vector != vector)
			continue;
		if (each == driver->awaited)
			driver->awaited = NULL;
		else if (own_fd_valid(&each->fd))
			while (nocancel_write(each->fd.fd, &one, sizeof one) < 0 && errno == EINTR)
				;
		return;
	}
}

/* ---- opening and closing */

static uint8_t *map_shared(int fd, size_t bytes, int access)
{
	uint8_t *base = mmap(NULL, bytes, access, MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return NULL;
	madvise(base, bytes, MADV_DONTFORK); /* a forked child must not use it */
	madvise(base, bytes, MADV_DONTDUMP); /* it is large and sparse: a core dump would allocate its pages */
	return base;
}

static void free_driver(struct bypass_driver *driver)
{
	if (driver->bypass)
		bypass_free(driver->bypass);
	if (driver->arena)
		munmap(driver->arena, driver->arena_bytes);
	if (driver->shared)
		munmap(driver->shared, driver->shared_bytes);
	if (driver->budget)
		munmap(driver->budget, driver->budget_bytes);
	if (driver->faults)
		munmap(driver->faults, FAULT_TABLE_BYTES);
	if (driver->capture)
		munmap(driver->capture, CAPTURE_ALL);
	own_fd_close(&driver->wake_fd);
	own_fds_close(&driver->own);
	free(driver->answer);
	free(driver);
}

int driver_open(const struct driver_setup *given, struct bypass_driver **made)
{
	struct bypass_driver *driver = calloc(1, sizeof *driver);
	const uint8_t *answer = given->answer;
	struct bypass_setup setup = { .blocks = given->blocks,
				      .punt = send_punt,
				      .open_source = open_source,
				      .is_gone = is_gone,
				      .lost = lost_fds,
				      .fire = fire_event_queue,
				      .self = driver };
	uint64_t arena, shared, budget;
	int error = ENOMEM, ends[2] = { -1, -1 };

	if (!driver) {
		for (int i = 0; i < DRIVER_FDS; i++)
			close(given->fds[i]);
		return error;
	}
	driver->setup = *given;
	driver->own.borrowed = given->socket;
	driver->fd = own_fds_add(&driver->own, given->fds[0]);
	driver->pid = getpid();
	driver->shm_wake_fd = -1;
	driver->slow = calibrate_slowdown(driver->fd);
	clock_calibrate();
	driver->spin_ns = driver->slow * SPIN_NS;
	driver->engine_due_ns = UINT64_MAX;
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends))
		ends[0] = ends[1] = -1;
	own_fd_take(&driver->wake_fd, ends[0], OWN_FD_PRIVATE);
	driver->woken_fd = own_fds_add(&driver->own, ends[1]);
	driver->answer = malloc(sizeof *driver->answer);
	memcpy(&arena, answer + ATTACH_OPEN_SLOT_ARENA_BYTES_AT, 8);
	memcpy(&shared, answer + ATTACH_OPEN_SLOT_SHARED_BYTES_AT, 8);
	memcpy(&budget, answer + ATTACH_OPEN_SLOT_BUDGET_BYTES_AT, 8);
	driver->arena_bytes = arena;
	driver->shared_bytes = shared;
	driver->budget_bytes = budget;
	driver->arena = map_shared(given->fds[1], arena, PROT_READ | PROT_WRITE);
	driver->shared = map_shared(given->fds[2], shared, PROT_READ | PROT_WRITE);
	driver->budget = map_shared(given->fds[3], budget, PROT_READ | PROT_WRITE);
	driver->faults = map_shared(given->fds[4], FAULT_TABLE_BYTES, PROT_READ);
	driver->capture = map_shared(given->fds[5], CAPTURE_ALL, PROT_READ | PROT_WRITE);
	driver->shared_fd = own_fds_add(&driver->own, given->fds[2]);
	close(given->fds[1]);
	close(given->fds[3]);
	close(given->fds[4]);
	close(given->fds[5]);
	memcpy(&setup.slot, answer + ATTACH_OPEN_SLOT_SLOT_AT, 4);
	memcpy(&setup.port, answer + ATTACH_OPEN_SLOT_UDP_PORT_AT, 4);
	memcpy(&setup.address_bytes, answer + ATTACH_OPEN_SLOT_ADDRESS_BYTES_AT, 4);
	memcpy(&setup.source_port_count, answer + ATTACH_OPEN_SLOT_SOURCE_PORTS_AT, 4);
	memcpy(setup.source_ports, answer + ATTACH_OPEN_SLOT_SOURCE_PORT_LIST_AT, sizeof setup.source_ports);
	memcpy(setup.address, answer + ATTACH_OPEN_SLOT_ADDRESS_AT, 16);
	setup.slow = driver->slow;
	if (driver->arena && driver->shared && driver->budget && driver->faults && driver->capture &&
	    driver->woken_fd >= 0 && driver->answer) {
		setup.fd = driver->fd;
		setup.own = &driver->own;
		setup.arena = driver->arena;
		setup.shared = driver->shared;
		setup.shared_fd = driver->shared_fd;
		setup.budget = driver->budget;
		setup.faults = driver->faults;
		setup.capture = driver->capture;
		error = EPROTO;
		if (shared >= bypass_shared_bytes() && budget >= bypass_budget_bytes())
			driver->bypass = bypass_new(&setup);
		if (driver->bypass)
			error = driver_thread_start(driver);
	}
	if (error)
		free_driver(driver);
	else
		*made = driver;
	return error;
}

void driver_stop(struct bypass_driver *driver)
{
	if (driver->pid != getpid() || atomic_exchange(&driver->stop, true))
		return;
	driver_thread_wake(driver);
	pthread_join(driver->thread, NULL);
}

void driver_close(struct bypass_driver *driver)
{
	if (driver->pid != getpid()) {
		/* the arena is not mapped here, and the lock's holder does not exist here */
		own_fd_close_inherited(&driver->wake_fd);
		own_fds_close_inherited(&driver->own);
		return;
	}
	driver_stop(driver);
	free_driver(driver);
}

/* ---- messages */

/* Take the lock for a message during which the NIC process works on the arena. */
static void lend_arena(struct bypass_driver *driver)
{
	fault_guard_refresh(); /* programs install handlers during setup, which is also when they send such messages */
	bypass_lock(driver->bypass);
}

static void take_arena_back(struct bypass_driver *driver)
{
	uint64_t deadline = bypass_deadline(driver->bypass); /* the message may have created work */

	atomic_store(&driver->engine_due_ns, deadline);
	bypass_unlock(driver->bypass);
	driver_thread_wake_for(driver, deadline);
}

int driver_request(struct bypass_driver *driver, uint32_t kind, const void *body, size_t bytes, const int *fds,
		   int fd_count, struct rpc_reply *reply)
{
	int error = EIO;

	lend_arena(driver);
	own_fds_recheck(&driver->own);
	if (own_fds_valid(&driver->own, 0))
		error = rpc_call(driver->setup.socket.fd, kind, ++driver->token, body, bytes, fds, fd_count, reply);
	else
		driver_lost_fds(driver);
	take_arena_back(driver);
	return error;
}

/* ---- programs of the same device */

/* Ask to take part, with the address of our cookie, or for the peer of a queue pair. 0 or the error number; the reply's
 * descriptors are the caller's if it is 0. */
static int request_shm_loopback(struct bypass_driver *driver, uint32_t number, uint64_t cookie_va,
				struct rpc_reply *reply)
{
	uint8_t message[ATTACH_SHM_RING_SIZE] = { 0 };
	int error;

	memcpy(message + ATTACH_SHM_RING_QPN_AT, &number, 4);
	memcpy(message + ATTACH_SHM_RING_COOKIE_VA_AT, &cookie_va, 8);
	error = driver_request(driver, ATTACH_MSG_SHM_RING, message, sizeof message, NULL, 0, reply);
	if (!error && reply->bytes < ATTACH_SHM_RING_REPLY_SIZE) {
		close_fds(reply);
		error = EPROTO;
	}
	return error;
}

int driver_enable_shm_loopback(struct bypass_driver *driver)
{
	struct rpc_reply *reply = malloc(sizeof *reply);
	int error;

	if (!reply)
		return ENOMEM;
	lend_arena(driver);
	error = bypass_shm_loopback(driver->bypass) ? ENOMEM : 0;
	take_arena_back(driver);
	if (!error)
		error = request_shm_loopback(driver, 0, (uintptr_t)driver->cookie, reply);
	if (!error && reply->fd_count == 1) {
		memcpy(driver->cookie, reply->body + ATTACH_SHM_RING_REPLY_COOKIE_AT, sizeof driver->cookie);
		driver->shm_wake_fd = own_fds_add(&driver->own, reply->fds[0]);
		driver_thread_wake(driver); /* it may sleep without the new descriptor */
	} else if (!error) {
		close_fds(reply);
	}
	free(reply);
	return error;
}

void driver_join(struct bypass_driver *driver, uint32_t number)
{
	struct rpc_reply *reply = driver->shm_wake_fd >= 0 ? malloc(sizeof *reply) : NULL;
	struct bypass_peer setup = { 0 };
	const uint8_t *answer;
	int error;

	if (!reply)
		return;
	error = request_shm_loopback(driver, number, 0, reply);
	if (!error && reply->fd_count == 2) {
		answer = reply->body;
		memcpy(&setup.numbers, answer + ATTACH_SHM_RING_REPLY_NUMBERS_AT, 4);
		memcpy(&setup.first_number, answer + ATTACH_SHM_RING_REPLY_FIRST_QPN_AT, 4);
		memcpy(&setup.pid, answer + ATTACH_SHM_RING_REPLY_PID_AT, 4);
		memcpy(&setup.ring, answer + ATTACH_SHM_RING_REPLY_RING_AT, 4);
		memcpy(&setup.bytes, answer + ATTACH_SHM_RING_REPLY_BYTES_AT, 8);
		memcpy(&setup.cookie_va, answer + ATTACH_SHM_RING_REPLY_COOKIE_VA_AT, 8);
		memcpy(setup.cookie, answer + ATTACH_SHM_RING_REPLY_COOKIE_AT, sizeof setup.cookie);
		setup.wake_fd = reply->fds[1];
		setup.base = map_shared(reply->fds[0], setup.bytes, PROT_READ | PROT_WRITE);
		close(reply->fds[0]);
		lend_arena(driver);
		error = !setup.base || bypass_join(driver->bypass, &setup);
		take_arena_back(driver);
		if (error && setup.base)
			munmap(setup.base, setup.bytes);
		if (error)
			close(setup.wake_fd);
		driver_thread_wake(driver); /* it may sleep, and the senders on the new ring do not know it */
	} else if (!error) {
		close_fds(reply);
	}
	free(reply);
}

/* ---- posting and polling */

/* Note that the program polls: the thread looks whether this word has changed. */
static void note_polled(struct bypass_driver *driver, uint64_t now)
{
	atomic_store_explicit(&driver->polled_ns, now, memory_order_relaxed);
}

int driver_ring(struct bypass_driver *driver, uint32_t number, uint32_t block)
{
	uint64_t now = clock_approximate_now();
	int here, took_time;

	atomic_store_explicit(&driver->used_ns, now, memory_order_relaxed);
	bypass_lock(driver->bypass);
	here = !bypass_is_served_elsewhere(driver->bypass);
	if (here)
		bypass_ring(driver->bypass, number, block, now);
	took_time = bypass_took_time(driver->bypass);
	take_arena_back(driver);
	if (now < atomic_load_explicit(&driver->polled_ns, memory_order_relaxed) + driver->slow * POLL_GAP_NS)
		/* a program that posts between polls has not stopped polling */
		note_polled(driver, took_time ? clock_approximate_now() : now);
	return here;
}

/* The fence separates the store from the load of `asleep`: the NIC process sets that, fences, and checks for stores
 * once more before it sleeps. */
int driver_ring_doorbell(volatile _Atomic uint8_t *rung, _Atomic uint32_t *asleep, const struct own_fd *wake_fd,
			 uint32_t block)
{
	atomic_store_explicit(&rung[block], 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(asleep, memory_order_relaxed))
		return 0;
	if (!own_fd_valid(wake_fd))
		return -1;
	while (nocancel_send(wake_fd->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
		;
	return 0;
}

/* A program that polls its CQ and then spins on memory never polls for the reply. If a reply is expected, keep polling
 * until it arrives. */
int driver_poll(struct bypass_driver *driver)
{
	uint32_t armed = atomic_load_explicit(&driver->armed_polls, memory_order_relaxed);
	uint64_t now = clock_approximate_now(), end = now + driver->slow * ANSWER_WAIT_NS;
	int did = 0;
	bool expects;

	atomic_store_explicit(&driver->used_ns, now, memory_order_relaxed);
	if (armed)
		atomic_store_explicit(&driver->armed_polls, armed - 1, memory_order_relaxed);
	else
		note_polled(driver, now);
	do {
		/* do not wait for the lock while the NIC process serves the slot */
		if (bypass_is_served_elsewhere(driver->bypass) || bypass_try(driver->bypass))
			return did;
		if (!bypass_is_served_elsewhere(driver->bypass))
			did |= bypass_round(driver->bypass, now, 1);
		expects = did && !armed && bypass_expects_reply(driver->bypass);
		if (bypass_took_time(driver->bypass) || expects)
			now = clock_approximate_now();
		if (did && !armed) /* a round of long messages takes longer than a program needs to poll again */
			note_polled(driver, now);
		if (expects && now >= end) {
			bypass_reply_is_late(driver->bypass);
			expects = false;
		}
		bypass_unlock(driver->bypass);
	} while (expects);
	return did;
}

void driver_prepare_to_sleep(struct bypass_driver *driver)
{
	atomic_store(&driver->armed_polls, POLLS_WHILE_ARMED);
	atomic_store(&driver->polled_ns, 0);
	if (!atomic_load(&driver->sleeps_for_events) && atomic_load(&driver->sleep_state) == SLEEP_BACKOFF)
		driver_thread_wake(driver);
}

/* ---- events */

void driver_add_events(struct bypass_driver *driver, struct driver_event_queue *events)
{
	lend_arena(driver);
	events->next = driver->events;
	driver->events = events;
	take_arena_back(driver);
}

void driver_remove_events(struct bypass_driver *driver, struct driver_event_queue *events)
{
	if (driver->pid != getpid())
		return;
	lend_arena(driver);
	for (struct driver_event_queue **at = &driver->events; *at; at = &(*at)->next) {
		if (*at == events) {
			*at = events->next;
			break;
		}
	}
	take_arena_back(driver);
}

/* Run the engine until an entry arrives or there is nothing to do. Returns the time of the next work. */
static uint64_t run_engine_for(struct bypass_driver *driver, struct driver_event_queue *events)
{
	uint64_t deadline = UINT64_MAX;

	bypass_lock(driver->bypass);
	driver->awaited = events;
	for (int i = 0; i < MAX_ROUNDS; i++)
		if (bypass_is_served_elsewhere(driver->bypass) || !bypass_round(driver->bypass, clock_now(), 1) ||
		    events->waits(events))
			break;
	if (!bypass_is_served_elsewhere(driver->bypass))
		deadline = bypass_deadline(driver->bypass);
	atomic_store(&driver->engine_due_ns, deadline);
	driver->awaited = NULL;
	bypass_unlock(driver->bypass);
	return deadline;
}

static void end_wait(void *self)
{
	struct bypass_driver *driver = self;

	atomic_store(&driver->polled_ns, clock_now());
	atomic_fetch_sub(&driver->waiters, 1);
	if (atomic_load(&driver->sleep_state) == SLEEP_BACKOFF &&
	    atomic_load(&driver->wakes_ns) > clock_now() + driver->slow * BACKOFF_MAX_NS)
		driver_thread_wake(driver); /* it sleeps longer while a thread waits here */
}

/* Run the engine and, from `until` on, also sleep, until there may be an event: 0 or the error number. */
static int wait_for_event(struct bypass_driver *driver, struct driver_event_queue *events, int other, uint64_t until)
{
	enum { EVENTS, NIC, PACKETS, SHM_WAKE, OTHER, ALL };
	struct pollfd pollers[ALL] = { [EVENTS] = { .fd = events->fd.fd, .events = POLLIN },
				       [NIC] = { .fd = driver->setup.socket.fd },
				       [PACKETS] = { .fd = driver->fd },
				       [SHM_WAKE] = { .fd = driver->shm_wake_fd },
				       [OTHER] = { .fd = other, .events = POLLIN } };

	for (;;) {
		uint64_t deadline = run_engine_for(driver, events), now, left;
		struct timespec timeout;

		if (events->waits(events))
			return 0;
		if (atomic_load(&driver->gone))
			return EIO;
		now = clock_now();
		if (now < until && !bypass_is_served_elsewhere(driver->bypass))
			continue;
		left = deadline > now ? deadline - now : 0;
		if (bypass_is_served_elsewhere(driver->bypass) && left > SERVED_CHECK_NS)
			left = SERVED_CHECK_NS;
		timeout = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
		pollers[PACKETS].events = pollers[SHM_WAKE].events =
			bypass_is_served_elsewhere(driver->bypass) ? 0 : POLLIN;
		if (!bypass_is_served_elsewhere(driver->bypass) && bypass_has_pending(driver->bypass))
			continue;
		if (ppoll(pollers, ALL, left >> 60 ? NULL : &timeout, NULL) < 0)
			return errno;
		own_fds_recheck(&driver->own);
		if (pollers[SHM_WAKE].revents)
			driver_drain_wake_fd(driver, driver->shm_wake_fd);
		if (pollers[EVENTS].revents) {
			if (!own_fd_valid(&events->fd))
				return EBADF;
			eventfd_drain(events->fd.fd);
			return 0;
		}
		if (pollers[NIC].revents)
			return driver_nic_is_gone(driver) ? EIO : 0;
		if (pollers[OTHER].revents)
			return 0;
	}
}

void driver_set_spin(struct bypass_driver *driver, uint64_t ns)
{
	atomic_store(&driver->spin_ns, ns);
}

/* Sleeping costs one wake-up, so a thread that waits for events takes the packets, too. Two programs that answer each
 * other would spend most of their time falling asleep and waking: a thread whose last waits were short spins first. */
int driver_await(struct bypass_driver *driver, struct driver_event_queue *events, int other)
{
	uint64_t spin_ns = atomic_load_explicit(&driver->spin_ns, memory_order_relaxed), began = clock_now();
	uint32_t short_waits = atomic_load_explicit(&driver->short_waits, memory_order_relaxed);
	int error;

	atomic_fetch_add(&driver->waiters, 1);
	atomic_store(&driver->sleeps_for_events, true);
	pthread_cleanup_push(end_wait, driver);
	error = wait_for_event(driver, events, other, short_waits >= SPIN_AFTER_SHORT_WAITS ? began + spin_ns : began);
	pthread_cleanup_pop(1);
	short_waits = clock_now() - began < spin_ns ? short_waits + (short_waits < SPIN_AFTER_SHORT_WAITS) : 0;
	atomic_store_explicit(&driver->short_waits, short_waits, memory_order_relaxed);
	return error;
}
#endif
