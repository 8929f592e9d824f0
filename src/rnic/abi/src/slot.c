/*
 * The engine in this process: a slot of the device, with a socket and an arena of its own (docs/programs.md).
 *
 * Whoever posts or polls runs it. While nobody polls, one thread sleeps until packets come or a deadline passes, and
 * runs it then. What the engine leaves to the reference goes to the NIC process in a message, and with it the arena.
 */
#define _GNU_SOURCE
#include "attach.h"
#include "bypass.h"
#include "guard.h"
#include "rnic.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST_RINGS = 64, /* of its bell that are heard at once */
	RECENT_NS = 20000, /* so long after its last poll a program still counts as polling */
	PARK_LEAST_NS = 20000, /* for so long the thread keeps off, twice as long each time, */
	PARK_MOST_NS = 500000,
	PARK_WAITED_NS = 100000000, /* and up to so long while somebody waits for an event, who works meanwhile */
	WARY = 64, /* short parks after packets were found that lay there since nobody polled */
	ROUNDS = 256,
	POLLS_WHILE_ARMED = 64, /* who goes on polling after it asked for an event does not sleep */
	ALONE_NS = 1000000, /* a program that has not posted or polled for so long only takes what others send: */
	LINGER_NS = 50000, /* then the thread looks on for so long before it sleeps, since waking costs both ends */
	BLOCK_LOOK_NS = 100000000, /* while the NIC process serves the slot itself */
	GUARD_LOOK_NS = 50000000, /* so often, while it is awake, the thread sees whether the program has other handlers for faults */
};

enum how { AWAKE, PARKED, WATCHING };

#define SAME(field, name)                                                                                            \
	_Static_assert(offsetof(struct bypass_punt, field) == RNIC_PUNT_##name##_AT, #field)
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
_Static_assert(offsetof(struct bypass_punt, name) == RNIC_PUNT_SENDER_AT, "name");
_Static_assert(sizeof(struct bypass_punt) == RNIC_PUNT_SIZE, "punt");
_Static_assert(BYPASS_PACKET == RNIC_PUNT_PACKET && BYPASS_TURN == RNIC_PUNT_TURN &&
		       BYPASS_NOTIFY == RNIC_PUNT_NOTIFY && BYPASS_DOORBELL == RNIC_PUNT_DOORBELL &&
		       BYPASS_TIMER == RNIC_PUNT_TIMER && BYPASS_NOTIFY_SEND == RNIC_PUNT_NOTIFY_SEND &&
		       BYPASS_NOTIFY_RECV == RNIC_PUNT_NOTIFY_RECV,
	       "kinds of punts");

struct slot_driver {
	struct rnic_context *context;
	struct bypass *bypass;
	struct reply *reply; /* of punts; the lock's holder uses it */
	uint8_t *arena, *shared, *budget;
	size_t arena_bytes, shared_bytes, budget_bytes;
	int fd, shared_fd, wake;
	_Atomic int bell; /* rung by programs of the same device; -1 */
	uint8_t cookie[RNIC_COOKIE_BYTES]; /* by which they know this one */
	pid_t pid;
	pthread_t thread;
	_Atomic uint64_t polled_ns; /* when somebody polled last */
	_Atomic uint64_t used_ns; /* when somebody posted or polled last */
	_Atomic uint64_t until_ns; /* when the thread wakes */
	_Atomic uint32_t how; /* enum how: what it does until then */
	_Atomic uint32_t armed; /* polls that the program may make before it counts as polling, having asked for an event */
	_Atomic uint32_t waiters; /* threads that wait for events and run the engine */
	_Atomic bool waits; /* that is what the program does after it asked for an event */
	_Atomic bool stop;
	struct event_queue *events; /* those that the engine fires: under the engine's lock, as the two below */
	struct event_queue *quiet; /* its next event is for who works now, and needs no descriptor */
};

static bool wanted(const char *name)
{
	const char *said = getenv(name);

	return said && *said && strcmp(said, "0") != 0;
}

/* RNIC_BYPASS=1, which `rnic exec --bypass` sets. */
bool slot_wanted(void)
{
	return wanted("RNIC_BYPASS");
}

static int leave(void *self, const struct bypass_punt *punt, struct bypass_answer *answer)
{
	struct slot_driver *slot = self;
	struct rnic_context *context = slot->context;
	struct reply *reply = slot->reply;
	int error = EIO;

	if (!context->dead) {
		pthread_mutex_lock(&context->command_lock);
		error = exchange(context->socket, RNIC_MSG_PUNT, ++context->token, punt, sizeof *punt, NULL, 0, reply);
		pthread_mutex_unlock(&context->command_lock);
	}
	if (error || reply->bytes < RNIC_PUNT_REPLY_SIZE) {
		nic_gone(context);
		return -1;
	}
	memcpy(&answer->count, reply->body + RNIC_PUNT_REPLY_COUNT_AT, 8);
	memcpy(&answer->polite, reply->body + RNIC_PUNT_REPLY_POLITE_AT, 4);
	memcpy(&answer->settled, reply->body + RNIC_PUNT_REPLY_SETTLED_AT, 4);
	return 0;
}

static int is_gone(void *self)
{
	const struct slot_driver *slot = self;

	return nic_gone(slot->context);
}

/* An event queue has an entry more: whoever waits for its descriptor wakes. */
static void fire(void *self, uint32_t vector)
{
	struct slot_driver *slot = self;
	uint64_t one = 1;

	for (struct event_queue *each = slot->events; each; each = each->next) {
		if (each->number != vector)
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

	if (how != AWAKE && deadline < until && (how == WATCHING || until > bypass_now() + PARK_MOST_NS))
		wake(slot);
}

/* Whether others run the engine, so that the thread need not. */
static bool is_polled(const struct slot_driver *slot, uint64_t now)
{
	return now < atomic_load_explicit(&slot->polled_ns, memory_order_relaxed) + RECENT_NS ||
	       atomic_load_explicit(&slot->waiters, memory_order_relaxed);
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

/* Sleep; whether somebody called. */
static bool rest(struct slot_driver *slot, uint64_t until, enum how how)
{
	struct rnic_context *context = slot->context;
	struct pollfd poller[4] = { { .fd = slot->wake, .events = POLLIN },
				    { .fd = context->dead ? -1 : context->socket },
				    { .fd = slot->fd, .events = POLLIN },
				    { .fd = slot->bell, .events = POLLIN } };
	uint64_t now = bypass_now(), left = until > now ? until - now : 0, drained;
	struct timespec timeout = { (time_t)(left / 1000000000u), (long)(left % 1000000000u) };

	atomic_store(&slot->until_ns, until);
	atomic_store(&slot->how, how);
	if (how == WATCHING && bypass_dozes(slot->bypass))
		timeout = (struct timespec){ 0, 0 }, until = 0;
	ppoll(poller, how == WATCHING ? 4 : 2, until == UINT64_MAX || left >> 60 ? NULL : &timeout, NULL);
	atomic_store(&slot->how, AWAKE);
	if (poller[1].revents)
		nic_gone(context); /* data would go on without it: the device is dead all the same */
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
	bypass_unlock(slot->bypass);
	return true;
}

/* It keeps off while others poll, and looks again and again whether they still do: packets that nobody polls for lie
 * until then. */
static void *run(void *self)
{
	struct slot_driver *slot = self;
	uint64_t park = PARK_LEAST_NS, did_ns = 0, looked_ns = 0;
	unsigned wary = 0;
	bool called = true;

	prctl(PR_SET_TIMERSLACK, 1); /* nanosecond */
	while (!atomic_load(&slot->stop)) {
		uint64_t now = bypass_now(), deadline;
		bool parked = false, did;

		if (now - looked_ns > GUARD_LOOK_NS) {
			guard_look();
			looked_ns = now;
		}
		if (bypass_idle(slot->bypass) || slot->context->dead) {
			rest(slot, now + BLOCK_LOOK_NS, PARKED);
			continue;
		}
		if (is_polled(slot, now) && !called) {
			called = rest(slot, now + park, PARKED);
			if (is_polled(slot, bypass_now()) && !called) {
				uint64_t most = atomic_load(&slot->waiters) ? PARK_WAITED_NS : PARK_MOST_NS;

				wary -= wary != 0;
				park = wary ? PARK_LEAST_NS : park * 2 < most ? park * 2 : most;
				continue;
			}
			park = PARK_LEAST_NS;
			parked = !called;
		}
		if (!work(slot, &did, &deadline)) {
			rest(slot, now + park, PARKED);
			park = park * 2 < PARK_MOST_NS ? park * 2 : PARK_MOST_NS;
			called = true;
			continue;
		}
		park = PARK_LEAST_NS;
		if (parked && did) {
			wary = WARY;
			atomic_store(&slot->waits, false);
		}
		if (did)
			did_ns = now;
		if (now < did_ns + LINGER_NS && deadline > now && is_alone(slot, now))
			called = false;
		else
			called = rest(slot, deadline, WATCHING);
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
	free(slot->reply);
	free(slot);
}

int slot_open(struct rnic_context *context, const uint8_t *answer, const int *fds)
{
	struct slot_driver *slot = calloc(1, sizeof *slot);
	struct bypass_setup setup = { .fd = fds[0], .blocks = context->blocks, .punt = leave,
				      .is_gone = is_gone, .fire = fire, .self = slot };
	uint64_t arena, shared, budget;
	int error = ENOMEM;

	if (!slot) {
		for (int i = 0; i < SLOT_FDS; i++)
			close(fds[i]);
		return error;
	}
	slot->context = context;
	slot->fd = fds[0];
	slot->pid = getpid();
	slot->bell = -1;
	slot->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	slot->reply = malloc(sizeof *slot->reply);
	memcpy(&arena, answer + RNIC_OPEN_SLOT_ARENA_BYTES_AT, 8);
	memcpy(&shared, answer + RNIC_OPEN_SLOT_SHARED_BYTES_AT, 8);
	memcpy(&budget, answer + RNIC_OPEN_SLOT_BUDGET_BYTES_AT, 8);
	slot->arena_bytes = arena;
	slot->shared_bytes = shared;
	slot->budget_bytes = budget;
	slot->arena = map(fds[1], arena);
	slot->shared = map(fds[2], shared);
	slot->budget = map(fds[3], budget);
	slot->shared_fd = fds[2];
	close(fds[1]);
	close(fds[3]);
	memcpy(&setup.slot, answer + RNIC_OPEN_SLOT_SLOT_AT, 4);
	memcpy(&setup.port, answer + RNIC_OPEN_SLOT_UDP_PORT_AT, 4);
	memcpy(&setup.address_bytes, answer + RNIC_OPEN_SLOT_ADDRESS_BYTES_AT, 4);
	memcpy(setup.address, answer + RNIC_OPEN_SLOT_ADDRESS_AT, 16);
	if (slot->arena && slot->shared && slot->budget && slot->wake >= 0 && slot->reply) {
		setup.arena = slot->arena;
		setup.shared = slot->shared;
		setup.shared_fd = slot->shared_fd;
		setup.budget = slot->budget;
		error = EPROTO;
		if (shared >= bypass_shared_bytes() && budget >= bypass_budget_bytes())
			slot->bypass = bypass_new(&setup);
		if (slot->bypass)
			error = start(slot);
		else
			complain("NIC process %d keeps its state as another version of rnic does: end it, or unset RNIC_BYPASS",
				 context->nic_pid);
	}
	if (error) {
		drop(slot);
		return error;
	}
	context->slot = slot;
	return 0;
}

void slot_close(struct rnic_context *context)
{
	struct slot_driver *slot = context->slot;

	context->slot = NULL;
	if (!slot)
		return;
	if (slot->pid != getpid()) {
		close(slot->fd); /* the arena is not mapped here, and whoever held the lock is not there */
		close(slot->shared_fd);
		close(slot->wake);
		if (slot->bell >= 0)
			close(slot->bell);
		return;
	}
	atomic_store(&slot->stop, true);
	wake(slot);
	pthread_join(slot->thread, NULL);
	drop(slot);
}

/* ---- programs of the same device */

void slot_take_part(struct rnic_context *context)
{
	struct slot_driver *slot = context->slot;
	struct reply *reply = wanted("RNIC_HAIRPIN") /* `rnic exec --hairpin` sets it */ ? malloc(sizeof *reply) : NULL;
	int error;

	if (!reply)
		return;
	slot_lend(context);
	error = bypass_hairpin(slot->bypass) ? ENOMEM : 0;
	slot_back(context);
	if (!error)
		error = nic_hairpin(context, 0, (uintptr_t)slot->cookie, reply);
	if (!error && reply->fd_count == 1) {
		memcpy(slot->cookie, reply->body + RNIC_HAIRPIN_REPLY_COOKIE_AT, sizeof slot->cookie);
		slot->bell = reply->fds[0];
		wake(slot); /* it may sleep without */
	} else if (!error) {
		close_fds(reply);
	}
	if (error)
		complain("there is no loopback inside the NIC (%s): packets go by the wire", strerror(error));
	free(reply);
}

void slot_join(struct rnic_context *context, uint32_t number)
{
	struct slot_driver *slot = context->slot;
	struct reply *reply = slot->bell >= 0 ? malloc(sizeof *reply) : NULL;
	struct bypass_peer setup = { 0 };
	const uint8_t *said;
	int error;

	if (!reply)
		return;
	error = nic_hairpin(context, number, 0, reply);
	if (!error && reply->fd_count == 2) {
		said = reply->body;
		memcpy(&setup.numbers, said + RNIC_HAIRPIN_REPLY_NUMBERS_AT, 4);
		memcpy(&setup.first_number, said + RNIC_HAIRPIN_REPLY_FIRST_QPN_AT, 4);
		memcpy(&setup.pid, said + RNIC_HAIRPIN_REPLY_PID_AT, 4);
		memcpy(&setup.ring, said + RNIC_HAIRPIN_REPLY_RING_AT, 4);
		memcpy(&setup.bytes, said + RNIC_HAIRPIN_REPLY_BYTES_AT, 8);
		memcpy(&setup.cookie_at, said + RNIC_HAIRPIN_REPLY_COOKIE_VA_AT, 8);
		memcpy(setup.cookie, said + RNIC_HAIRPIN_REPLY_COOKIE_AT, sizeof setup.cookie);
		setup.bell = reply->fds[1];
		setup.base = map(reply->fds[0], setup.bytes);
		close(reply->fds[0]);
		slot_lend(context);
		error = !setup.base || bypass_join(slot->bypass, &setup);
		slot_back(context);
		if (error && setup.base)
			munmap(setup.base, setup.bytes);
		if (error)
			close(setup.bell);
		wake(slot); /* it may sleep, and those who fill the new ring know nothing of that */
	} else if (!error) {
		close_fds(reply);
	}
	free(reply);
}

/* ---- what posts and polls */

void slot_lend(struct rnic_context *context)
{
	if (!context->slot)
		return;
	guard_look(); /* programs install handlers while they set up, as they make what is lent here */
	bypass_lock(context->slot->bypass);
}

void slot_back(struct rnic_context *context)
{
	struct slot_driver *slot = context->slot;
	uint64_t deadline;

	if (!slot)
		return;
	deadline = bypass_deadline(slot->bypass); /* a command may have made work */
	bypass_unlock(slot->bypass);
	wake_for(slot, deadline);
}

bool slot_ring(struct rnic_context *context, uint32_t number, uint32_t block)
{
	struct slot_driver *slot = context->slot;
	bool here;

	atomic_store_explicit(&slot->used_ns, bypass_now(), memory_order_relaxed);
	bypass_lock(slot->bypass);
	here = !bypass_idle(slot->bypass);
	if (here)
		bypass_ring(slot->bypass, number, block);
	slot_back(context);
	return here;
}

bool slot_poll(struct rnic_context *context)
{
	struct slot_driver *slot = context->slot;
	uint32_t armed = atomic_load_explicit(&slot->armed, memory_order_relaxed);
	uint64_t now = bypass_now();
	bool did = false;

	atomic_store_explicit(&slot->used_ns, now, memory_order_relaxed);
	if (armed)
		atomic_store_explicit(&slot->armed, armed - 1, memory_order_relaxed);
	else
		atomic_store_explicit(&slot->polled_ns, now, memory_order_relaxed);
	if (bypass_try(slot->bypass))
		return false;
	if (!bypass_idle(slot->bypass))
		did = bypass_round(slot->bypass, now, 1);
	if (did && !armed) /* a round of long messages takes longer than a program needs to come back */
		atomic_store_explicit(&slot->polled_ns, bypass_now(), memory_order_relaxed);
	bypass_unlock(slot->bypass);
	return did;
}

void slot_rest(struct rnic_context *context)
{
	struct slot_driver *slot = context->slot;

	if (!slot)
		return;
	atomic_store(&slot->armed, POLLS_WHILE_ARMED);
	atomic_store(&slot->polled_ns, 0);
	if (!atomic_load(&slot->waits) && atomic_load(&slot->how) == PARKED)
		wake(slot);
}

/* ---- events */

void slot_serve(struct rnic_context *context, struct event_queue *eq)
{
	if (!context->slot)
		return;
	slot_lend(context);
	eq->next = context->slot->events;
	context->slot->events = eq;
	slot_back(context);
}

void slot_forget(struct rnic_context *context, struct event_queue *eq)
{
	if (!context->slot || context->slot->pid != getpid())
		return;
	slot_lend(context);
	for (struct event_queue **at = &context->slot->events; *at; at = &(*at)->next) {
		if (*at == eq) {
			*at = eq->next;
			break;
		}
	}
	slot_back(context);
}

/* Run the engine until an entry comes or there is nothing to do. Returns when there is. */
static uint64_t work_for(struct slot_driver *slot, struct event_queue *eq)
{
	uint64_t deadline = UINT64_MAX;

	bypass_lock(slot->bypass);
	slot->quiet = eq;
	for (int i = 0; i < ROUNDS; i++)
		if (bypass_idle(slot->bypass) || !bypass_round(slot->bypass, bypass_now(), 1) || event_waits(eq))
			break;
	if (!bypass_idle(slot->bypass))
		deadline = bypass_deadline(slot->bypass);
	slot->quiet = NULL;
	bypass_unlock(slot->bypass);
	return deadline;
}

static void gone_on(void *self)
{
	struct slot_driver *slot = self;

	atomic_store(&slot->polled_ns, bypass_now());
	atomic_fetch_sub(&slot->waiters, 1);
	if (atomic_load(&slot->how) == PARKED)
		wake_for(slot, 0); /* it sleeps for long while somebody waits here */
}

/* Run the engine and sleep in turn until an event may have come: 0 or the error number. */
static int wait_for(struct rnic_context *context, struct event_queue *eq)
{
	struct slot_driver *slot = context->slot;
	struct pollfd pollers[4] = { { .fd = eq->fd, .events = POLLIN }, { .fd = context->socket }, { .fd = slot->fd },
				     { .fd = slot->bell } };

	for (;;) {
		uint64_t deadline = work_for(slot, eq), now, left, count;
		struct timespec timeout;

		if (event_waits(eq))
			return 0;
		now = bypass_now();
		left = deadline > now ? deadline - now : 0;
		timeout = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
		pollers[2].events = pollers[3].events = bypass_idle(slot->bypass) ? 0 : POLLIN;
		if (!bypass_idle(slot->bypass) && bypass_dozes(slot->bypass))
			continue;
		if (ppoll(pollers, COUNT(pollers), left >> 60 ? NULL : &timeout, NULL) < 0)
			return errno;
		if (pollers[3].revents)
			silence(slot);
		if (pollers[0].revents)
			return read(eq->fd, &count, sizeof count) < 0 && errno != EAGAIN ? errno : 0;
		if (pollers[1].revents)
			return nic_gone(context) ? EIO : 0;
	}
}

/* Sleeping costs one wake-up: whoever waits for events takes the packets too. */
int slot_await(struct rnic_context *context, struct event_queue *eq)
{
	struct slot_driver *slot = context->slot;
	int error;

	atomic_fetch_add(&slot->waiters, 1);
	atomic_store(&slot->waits, true);
	pthread_cleanup_push(gone_on, slot);
	error = wait_for(context, eq);
	pthread_cleanup_pop(1);
	return error;
}
