#if defined(__linux__)
#define _GNU_SOURCE
#include "io/progress_thread.h"
#include "io/lookout.h"
#include "io/loopback.h"
#include "io/nocancel.h"
#include "queue_pair/arithmetic.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MAX_ROUNDS 256u /* per lock hold, so that others get the lock */
#define SPIN_NS 50000u /* more packets often follow sooner than a sleeping thread wakes up */
#define INLINE_ROUNDS 8u /* in another thread, before it wakes the progress thread */
#define OVERSLEEP_NS 20000000u /* a thread that would sleep longer is woken to report packets moved by others */
#define LONGEST_SLEEP_NS 500000000u /* descriptors closed by the program do not wake the thread */
#define WAKE_BYTES 64u /* most wake-ups drained at once */
#define POLL_INTERVAL_NS 1000000u /* poll interval if there is nothing to wait on */

static _Atomic uint64_t thread_count; /* in this process */

/* ------------------------------------------------------------------ the lock */

int device_lock_init(struct device_lock *lock)
{
	return pthread_mutex_init(&lock->mutex, NULL);
}

void device_lock_destroy(struct device_lock *lock)
{
	pthread_mutex_destroy(&lock->mutex);
}

/* Only the owner can find itself there, so relaxed order suffices. */
int device_lock_is_held(struct device_lock *lock)
{
	return atomic_load_explicit(&lock->owner, memory_order_relaxed) == (uintptr_t)pthread_self();
}

static void set_owner(struct device_lock *lock)
{
	atomic_store_explicit(&lock->owner, (uintptr_t)pthread_self(), memory_order_relaxed);
	lock->depth = 1;
}

int device_lock_try(struct device_lock *lock)
{
	if (device_lock_is_held(lock)) {
		lock->depth++;
		return 1;
	}
	if (pthread_mutex_trylock(&lock->mutex))
		return 0;
	set_owner(lock);
	return 1;
}

void device_lock_take(struct device_lock *lock)
{
	if (device_lock_is_held(lock)) {
		lock->depth++;
		return;
	}
	pthread_mutex_lock(&lock->mutex);
	set_owner(lock);
}

void device_lock_release(struct device_lock *lock)
{
	if (!--lock->depth) {
		atomic_store_explicit(&lock->owner, 0, memory_order_relaxed);
		pthread_mutex_unlock(&lock->mutex);
	}
}

/* ------------------------------------------------------------------ the thread */

/* Return for how long a program counts as polling after a poll, in ns. One that polls many devices in turn comes back to
 * each one later. */
static uint64_t longest_backoff(void)
{
	return lesser(atomic_load_explicit(&thread_count, memory_order_relaxed), POLL_PARK_MAX) * POLL_PARK_NS;
}

/* Return for how long the thread backs off, in ns, since others drive the device; 0 if they do not. */
static uint64_t backoff_left(const struct progress_thread *thread, uint64_t now)
{
	uint64_t polled = atomic_load_explicit(&thread->polled, memory_order_relaxed), park = longest_backoff();
	return polled && now < polled + park ? polled + park - now : 0;
}

static void call_python(const struct progress_thread *thread)
{
	if (own_fd_valid(&thread->python_own) && write(thread->python_fd, "", 1) < 0)
		return; /* the pipe is full: a call is pending already */
}

int io_fds_valid(struct own_fds *own, struct io_poll *round, uint64_t now)
{
	uint64_t before = atomic_load_explicit(&own->check_ns, memory_order_relaxed);

	if (!own_fds_valid(own, now))
		return 0;
	if (atomic_load_explicit(&own->check_ns, memory_order_relaxed) != before)
		tx_pages_check(round->tx_pages); /* equally seldom */
	return 1;
}

/* Report an expired timer that the engine does not handle, like a round does. */
static int find_deadline(struct io_poll *round, uint64_t now, struct engine_stop_info *info)
{
	uint64_t most = POLL_TIMERS_PER_CALL, at = engine_device_due(round->device, now, &most);
	*info = (struct engine_stop_info){ .stop = at ? STOP_PUNT_DEADLINE : STOP_DONE, .qp = at };
	return at != 0;
}

/* Run up to `most` rounds while there is something to do and the program does not poll; returns whether any packet
 * moved. */
static int run_rounds(struct progress_thread *thread, unsigned most)
{
	struct io_poll *round = thread->round;
	uint8_t *before = round->out.bytes;
	int moved = 0;

	if (!io_fds_valid(thread->own, round, clock_now())) {
		thread->lost = 1;
		return 0;
	}
	round->out.bytes = thread->out;
	for (unsigned i = 0; i < most && !thread->pending; i++) {
		uint64_t now = clock_now();
		round->gathers = 0;
		io_poll(round, now, POLL_BUDGET, &thread->pending_stop);
		if (round->received || round->sent)
			moved = 1;
		else if (thread->pending_stop.stop == STOP_DONE) {
			/* read everything that arrived in time before timers expire */
			if (io_poll_deadline(round) > now)
				break;
			find_deadline(round, now, &thread->pending_stop);
		}
		thread->pending = thread->pending_stop.stop != STOP_DONE;
		if (backoff_left(thread, now))
			break;
	}
	thread->out = round->out.bytes;
	round->out.bytes = before;
	return moved;
}

/* Return whether C cannot continue without Python. */
static int needs_python(const struct progress_thread *thread)
{
	return thread->pending || thread->lost || thread->round->counts.link_errors ||
	       thread->round->counts.gso_refused || !thread->round->device->sched.inflight->spare_line;
}

/* Return the time of C's next work without input. */
static uint64_t next_work(const struct progress_thread *thread, uint64_t now)
{
	const struct engine_device *device = thread->round->device;
	return device->sched.scheduler->count || thread->round->sending.qp ? now : io_poll_deadline(thread->round);
}

int progress_thread_oversleeps(const struct progress_thread *thread, uint64_t now)
{
	uint64_t until = atomic_load(&thread->sleeps_until);
	return until > now && (until - now > OVERSLEEP_NS || next_work(thread, now) < until);
}

static int run_inline(void *self);

static void wake_sleeper(void *self)
{
	progress_thread_wake(self);
}

/* Return whether nothing waits on the loopback; if so, the next sender wakes the thread. */
static int listen_on_loopback(struct progress_thread *thread)
{
	const struct loopback_sleeper sleeper = { .wake = wake_sleeper, .run_inline = run_inline, .self = thread };
	return loopback_listen(thread->round->loopback, &sleeper);
}

/* Process newly queued packets in the sender's thread while the receiver's thread sleeps: the data is hot in this
 * core's cache, and moves between cores at half the speed. Waking a thread also takes longer than a short message.
 * Returns whether the thread need not be woken. */
static int run_inline(void *self)
{
	static _Thread_local int runs_inline;
	struct progress_thread *thread = self;
	int done = 0;

	if (runs_inline || device_lock_is_held(thread->lock) || !device_lock_try(thread->lock))
		return 0;
	runs_inline = 1;
	if (thread->leased && !needs_python(thread) && !backoff_left(thread, clock_now())) {
		run_rounds(thread, INLINE_ROUNDS);
		atomic_store(&thread->others_sent, 1);
		done = needs_python(thread);
		if (done)
			call_python(thread);
		else if (!progress_thread_oversleeps(thread, clock_now()))
			done = listen_on_loopback(thread);
	}
	runs_inline = 0;
	device_lock_release(thread->lock);
	return done;
}

/* Return how long to sleep, in ns, now that nothing is left to do. */
static uint64_t sleep_time(struct progress_thread *thread, uint64_t until)
{
	uint64_t now = clock_now(), next = lesser(until, next_work(thread, now));
	atomic_store(&thread->sleeps_until, next);
	uint64_t wait = next > now ? next - now : 0;
	if (thread->round->loopback)
		return listen_on_loopback(thread) ? wait : 0;
	return thread->socket_count ? wait : lesser(wait, POLL_INTERVAL_NS);
}

/* Take the wake-ups that have come. Without the descriptor sleep: whatever has its number now would be ready again and
 * again. */
static void drain_wakes(const struct progress_thread *thread)
{
	const struct timespec time = { .tv_nsec = (long)LONGEST_SLEEP_NS };
	char drained[WAKE_BYTES];

	own_fds_recheck(thread->own);
	if (!own_fd_valid(&thread->woken_fd))
		ppoll(NULL, 0, &time, NULL);
	else if (read(thread->woken_fd.fd, drained, sizeof drained) < 0)
		return; /* they were read already */
}

/* Back off while the program polls (io/lookout.h), for up to `wait` ns before the first look. */
static void look_while_polled(const struct progress_thread *thread, uint64_t wait)
{
	uint64_t longest = longest_backoff() / 2; /* two looks without a poll between them end it */
	struct lookout lookout = { .polled = &thread->polled,
				   .longest_ns = longest,
				   .sleep_ns = lesser(wait, longest) };
	struct pollfd poller = { .fd = thread->woken_fd.fd, .events = POLLIN };

	if (lookout_watch(&lookout, &poller, 1) == LOOK_WOKEN)
		drain_wakes(thread);
}

static void sleep_for(struct progress_thread *thread, int listens, uint64_t wait)
{
	uint64_t capped = lesser(wait, LONGEST_SLEEP_NS);
	struct timespec time = { .tv_nsec = (long)capped };
	struct pollfd pollers[1 + PROGRESS_THREAD_SOCKETS] = { { .fd = thread->woken_fd.fd, .events = POLLIN } };
	uint32_t socket_count = listens ? thread->socket_count : 0;
	for (uint32_t i = 0; i < socket_count; i++)
		pollers[1 + i] = (struct pollfd){ .fd = thread->sockets[i], .events = POLLIN };
	if (ppoll(pollers, 1 + socket_count, &time, NULL) > 0 && pollers[0].revents)
		drain_wakes(thread);
	else
		own_fds_recheck(thread->own);
}

static void *thread_main(void *self)
{
	struct progress_thread *thread = self;
	uint64_t report_at = NEVER, spins_until = 0;

	while (!atomic_load(&thread->stop)) {
		uint64_t now = clock_now(), wait = backoff_left(thread, now);
		if ((wait || atomic_exchange(&thread->others_sent, 0)) && report_at == NEVER)
			report_at = now + thread->report_within;
		if (wait) {
			look_while_polled(thread, wait);
			continue;
		}
		device_lock_take(thread->lock);
		int call = 0, listens = thread->leased && !needs_python(thread);
		if (listens) {
			if (run_rounds(thread, MAX_ROUNDS)) {
				spins_until = thread->round->loopback ? 0 : clock_now() + SPIN_NS;
				report_at = lesser(report_at, clock_now() + thread->report_within);
			}
			call = needs_python(thread);
			listens = !call;
		}
		now = clock_now();
		wait = listens && now >= spins_until && !backoff_left(thread, now) ? sleep_time(thread, report_at) : 0;
		if (!listens) {
			atomic_store(&thread->sleeps_until, NEVER);
			/* a thread that releases the lock with nothing left to do need not wake this one */
			wait = thread->leased ? thread->report_within : NEVER;
		}
		device_lock_release(thread->lock);
		if (call || (listens && clock_now() >= report_at)) {
			report_at = NEVER;
			call_python(thread);
		}
		if (wait)
			sleep_for(thread, listens, wait);
		atomic_store(&thread->sleeps_until, 0);
	}
	return NULL;
}

int progress_thread_start(struct progress_thread *thread)
{
	sigset_t all, before;

	int ends[2] = { -1, -1 };
	int error = pipe2(ends, O_CLOEXEC | O_NONBLOCK) ? errno : 0;
	own_fd_take(&thread->woken_fd, ends[0], OWN_FD_PRIVATE);
	own_fd_take(&thread->wake_fd, ends[1], OWN_FD_PRIVATE);
	own_fd_take(&thread->python_own, thread->python_fd, OWN_FD_WATCHED);
	thread->out = calloc(1, POLL_OUT_BYTES);
	if (!thread->out && !error)
		error = ENOMEM;
	if (!error) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = pthread_create(&thread->handle, NULL, thread_main, thread);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (error) {
		free(thread->out);
		own_fd_close(&thread->wake_fd);
		own_fd_close(&thread->woken_fd);
		return error;
	}
	atomic_fetch_add(&thread_count, 1);
	thread->running = 1;
	return 0;
}

void progress_thread_wake(struct progress_thread *thread)
{
	if (!thread->running || !own_fd_valid(&thread->wake_fd))
		return;
	int before = nocancel_begin();
	if (write(thread->wake_fd.fd, "", 1) < 0) {
		/* the pipe is full: the thread wakes up already */
	}
	nocancel_end(before);
}

void progress_thread_stop(struct progress_thread *thread)
{
	if (!thread->running)
		return;
	atomic_store(&thread->stop, 1);
	progress_thread_wake(thread);
	pthread_join(thread->handle, NULL);
	thread->running = 0;
	if (thread->round->loopback)
		loopback_unlisten(thread->round->loopback);
	own_fd_close(&thread->wake_fd);
	own_fd_close(&thread->woken_fd);
	free(thread->out);
	atomic_fetch_sub(&thread_count, 1);
}
#endif
