/*
 * The engine in this process: a slot of the device, with a socket and an arena of its own (docs/programs.md).
 *
 * Whoever posts or polls runs it. While nobody polls, one thread sleeps until packets come or a deadline passes, and
 * runs it then. What the engine leaves to the reference goes to the NIC process in a message, and with it the arena.
 */
#define _GNU_SOURCE
#include "attach.h"
#include "bypass.h"
#include "rnic.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	PARK_NS = 2000000, /* so long after its last poll a program still counts as polling: runtime/loop.py */
	THREAD_ROUNDS = 256,
	POLLS_WHILE_ARMED = 64, /* who goes on polling after it asked for an event does not sleep */
	BLOCK_LOOK_NS = 100000000, /* while the NIC process serves the slot itself */
};

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
		       BYPASS_TIMER == RNIC_PUNT_TIMER,
	       "kinds of punts");

struct slot_driver {
	struct rnic_context *context;
	struct bypass *bypass;
	struct reply *reply; /* of punts; the lock's holder uses it */
	uint8_t *arena, *shared;
	size_t arena_bytes, shared_bytes;
	int fd, wake;
	pid_t pid;
	pthread_t thread;
	_Atomic uint64_t polled_ns; /* when somebody polled last */
	_Atomic uint64_t until_ns; /* when the thread wakes; 0 while it is awake */
	_Atomic uint32_t armed; /* polls that the program may make before it counts as polling, having asked for an event */
	_Atomic bool stop;
};

/* RNIC_BYPASS=1, which `rnic exec --bypass` sets. */
bool slot_wanted(void)
{
	const char *said = getenv("RNIC_BYPASS");

	return said && *said && strcmp(said, "0") != 0;
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

/* ---- the thread */

static void wake(struct slot_driver *slot)
{
	uint64_t one = 1;

	while (write(slot->wake, &one, sizeof one) < 0 && errno == EINTR)
		;
}

/* The thread wakes in time for what is due now. */
static void wake_for(struct slot_driver *slot, uint64_t deadline)
{
	uint64_t until = atomic_load(&slot->until_ns);

	if (until && deadline < until)
		wake(slot);
}

static bool is_polled(const struct slot_driver *slot, uint64_t now)
{
	uint64_t polled = atomic_load_explicit(&slot->polled_ns, memory_order_relaxed);

	return now < polled + PARK_NS;
}

static void sleep_until(struct slot_driver *slot, uint64_t deadline, bool on_packets)
{
	struct pollfd poller[2] = { { .fd = slot->wake, .events = POLLIN }, { .fd = slot->fd, .events = POLLIN } };
	uint64_t now = bypass_now(), left = deadline > now ? deadline - now : 0, drained;
	struct timespec timeout = { (time_t)(left / 1000000000u), (long)(left % 1000000000u) };

	ppoll(poller, on_packets ? 2 : 1, deadline == UINT64_MAX || left >> 60 ? NULL : &timeout, NULL);
	if (poller[0].revents && read(slot->wake, &drained, sizeof drained) < 0)
		return; /* another has read it */
}

/* Work until there is no more, or until somebody polls. Returns when the next is due. */
static uint64_t work(struct slot_driver *slot)
{
	uint64_t deadline;

	bypass_lock(slot->bypass);
	for (int i = 0; i < THREAD_ROUNDS; i++) {
		if (bypass_idle(slot->bypass) || !bypass_round(slot->bypass))
			break;
		if (is_polled(slot, bypass_now()))
			break;
	}
	deadline = bypass_deadline(slot->bypass);
	atomic_store(&slot->until_ns, deadline > UINT64_MAX - 1 ? UINT64_MAX - 1 : deadline + 1);
	bypass_unlock(slot->bypass);
	return deadline;
}

static void *run(void *self)
{
	struct slot_driver *slot = self;

	while (!atomic_load(&slot->stop)) {
		uint64_t now = bypass_now();

		if (bypass_idle(slot->bypass)) {
			sleep_until(slot, now + BLOCK_LOOK_NS, false);
		} else if (is_polled(slot, now)) {
			atomic_store(&slot->until_ns, now + PARK_NS);
			sleep_until(slot, now + PARK_NS, false);
		} else {
			uint64_t deadline = work(slot);
			bool here = !bypass_idle(slot->bypass);

			sleep_until(slot, here ? deadline : now + BLOCK_LOOK_NS, here);
		}
		atomic_store(&slot->until_ns, 0);
	}
	return NULL;
}

/* All signals are the program's own threads'. */
static int start(struct slot_driver *slot)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	int error;

	sigfillset(&all);
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
	if (slot->wake >= 0)
		close(slot->wake);
	close(slot->fd);
	free(slot->reply);
	free(slot);
}

int slot_open(struct rnic_context *context, const uint8_t *answer, const int *fds)
{
	struct slot_driver *slot = calloc(1, sizeof *slot);
	struct bypass_setup setup = { .fd = fds[0], .blocks = context->blocks, .punt = leave, .self = slot };
	uint64_t arena, shared;
	int error = ENOMEM;

	if (!slot) {
		for (int i = 0; i < 3; i++)
			close(fds[i]);
		return error;
	}
	slot->context = context;
	slot->fd = fds[0];
	slot->pid = getpid();
	slot->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	slot->reply = malloc(sizeof *slot->reply);
	memcpy(&arena, answer + RNIC_OPEN_SLOT_ARENA_BYTES_AT, 8);
	memcpy(&shared, answer + RNIC_OPEN_SLOT_SHARED_BYTES_AT, 8);
	slot->arena_bytes = arena;
	slot->shared_bytes = shared;
	slot->arena = map(fds[1], arena);
	slot->shared = map(fds[2], shared);
	close(fds[1]);
	close(fds[2]);
	memcpy(&setup.port, answer + RNIC_OPEN_SLOT_UDP_PORT_AT, 4);
	memcpy(&setup.address_bytes, answer + RNIC_OPEN_SLOT_ADDRESS_BYTES_AT, 4);
	memcpy(setup.address, answer + RNIC_OPEN_SLOT_ADDRESS_AT, 16);
	if (slot->arena && slot->shared && slot->wake >= 0 && slot->reply) {
		setup.arena = slot->arena;
		setup.shared = slot->shared;
		error = EPROTO;
		if (shared >= bypass_shared_bytes())
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
		close(slot->wake);
		return;
	}
	atomic_store(&slot->stop, true);
	wake(slot);
	pthread_join(slot->thread, NULL);
	drop(slot);
}

/* ---- what posts and polls */

void slot_lend(struct rnic_context *context)
{
	if (context->slot)
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
	bool did = false;

	if (armed)
		atomic_store_explicit(&slot->armed, armed - 1, memory_order_relaxed);
	else
		atomic_store_explicit(&slot->polled_ns, bypass_now(), memory_order_relaxed);
	if (bypass_try(slot->bypass))
		return false;
	if (!bypass_idle(slot->bypass))
		did = bypass_round(slot->bypass);
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
	wake_for(slot, 0);
}
