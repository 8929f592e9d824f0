#if defined(__linux__)
#define _GNU_SOURCE
#include "io/progress_thread.h"
#include "io/loopback.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define MOST_ROUNDS 256u /* under the lock, so that others get it */
#define SPIN_NS 50000u /* what came last is followed by more sooner than a sleeping thread wakes up */
#define STAND_IN_ROUNDS 8u /* that somebody else does in the thread's place before it is woken after all */
#define STIR_NS 20000000u /* who sleeps longer than that is woken to tell of what others have moved */
#define LOOK_NS 1000000u /* how often to look where nothing can be waited on */

static _Atomic uint64_t threads; /* of this process */

/* ------------------------------------------------------------------ the lock */

int device_lock_init(struct device_lock *lock)
{
	return pthread_mutex_init(&lock->mutex, NULL);
}

void device_lock_destroy(struct device_lock *lock)
{
	pthread_mutex_destroy(&lock->mutex);
}

/* Only its owner finds itself there, so that no order is wanted. */
int device_lock_is_held(struct device_lock *lock)
{
	return atomic_load_explicit(&lock->owner, memory_order_relaxed) == (uintptr_t)pthread_self();
}

static void taken(struct device_lock *lock)
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
	taken(lock);
	return 1;
}

void device_lock_take(struct device_lock *lock)
{
	if (device_lock_is_held(lock)) {
		lock->depth++;
		return;
	}
	pthread_mutex_lock(&lock->mutex);
	taken(lock);
}

void device_lock_release(struct device_lock *lock)
{
	if (!--lock->depth) {
		atomic_store_explicit(&lock->owner, 0, memory_order_relaxed);
		pthread_mutex_unlock(&lock->mutex);
	}
}

/* ------------------------------------------------------------------ the watch */

/* Whether somebody else than the thread drives the device: for how long it keeps off, in ns, or 0. Who polls many devices in
 * turn comes back to each the later. */
static uint64_t polls(const struct progress_thread *watch, uint64_t now)
{
	uint64_t polled = atomic_load_explicit(&watch->polled, memory_order_relaxed);
	uint64_t count = atomic_load_explicit(&threads, memory_order_relaxed);
	uint64_t park = (count < POLL_PARK_MAX ? count : POLL_PARK_MAX) * POLL_PARK_NS;
	return polled && now < polled + park ? polled + park - now : 0;
}

static void call_python(const struct progress_thread *watch)
{
	if (write(watch->python, "", 1) < 0)
		return; /* a full pipe is a call that was not heard yet */
}

static uint64_t sooner(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

/* A deadline has come that is not the engine's: it is told as one of a round. */
static int due(struct io_poll *round, uint64_t now, struct engine_stop_info *told)
{
	uint64_t most = POLL_TIMERS_PER_CALL, at = engine_device_due(round->device, now, &most);
	*told = (struct engine_stop_info){ .stop = at ? STOP_DEADLINE : STOP_DONE, .qp = at };
	return at != 0;
}

/* Up to `most` rounds while there is something to do and nobody polls; whether any packet moved. */
static int rounds(struct progress_thread *watch, unsigned most)
{
	struct io_poll *round = watch->round;
	uint8_t *before = round->out.bytes;
	int moved = 0;

	round->out.bytes = watch->out;
	for (unsigned i = 0; i < most && !watch->pending; i++) {
		uint64_t now = clock_now();
		round->gathers = 0;
		io_poll(round, now, POLL_BUDGET, &watch->told);
		if (round->came || round->sent)
			moved = 1;
		else if (watch->told.stop == STOP_DONE) {
			/* nothing is overdue before all that came in time is read */
			if (engine_device_deadline(round->device) > now)
				break;
			due(round, now, &watch->told);
		}
		watch->pending = watch->told.stop != STOP_DONE;
		if (polls(watch, now))
			break;
	}
	watch->out = round->out.bytes;
	round->out.bytes = before;
	return moved;
}

/* Whether C cannot go on without Python. */
static int stuck(const struct progress_thread *watch)
{
	return watch->pending || watch->round->counts.look || watch->round->counts.gso_refused ||
	       !watch->round->device->sched.inflight->spare_line;
}

/* When there is something to do for C though nothing comes. */
static uint64_t next_work(const struct progress_thread *watch, uint64_t now)
{
	const struct engine_device *device = watch->round->device;
	return device->sched.scheduler->count || watch->round->sending.qp ? now : engine_device_deadline(device);
}

int progress_thread_oversleeps(const struct progress_thread *watch, uint64_t now)
{
	uint64_t until = atomic_load(&watch->sleeps_until);
	return until > now && (until - now > STIR_NS || next_work(watch, now) < until);
}

static int run_inline(void *self);

/* Whether nothing waits on the wire: who puts something there is told that the thread sleeps. */
static int listen_to(struct progress_thread *watch)
{
	const struct loopback_sleeper thread = { .bell = watch->bell, .run_inline = run_inline, .self = watch };
	return loopback_listen(watch->round->wire, &thread);
}

/* Do what the thread, which sleeps on its wire, would do with what has just been put there: its bytes are in the near
 * cache of who has put them, and between cores they go at half the speed; nor is a thread woken in the time that a short
 * message takes. Whether it need not be woken. */
static int run_inline(void *self)
{
	static _Thread_local int stands_in;
	struct progress_thread *watch = self;
	int done = 0;

	if (stands_in || device_lock_is_held(watch->lock) || !device_lock_try(watch->lock))
		return 0;
	stands_in = 1;
	if (watch->leased && !stuck(watch) && !polls(watch, clock_now())) {
		rounds(watch, STAND_IN_ROUNDS);
		atomic_store(&watch->stirred, 1);
		done = stuck(watch);
		if (done)
			call_python(watch);
		else if (!progress_thread_oversleeps(watch, clock_now()))
			done = listen_to(watch);
	}
	stands_in = 0;
	device_lock_release(watch->lock);
	return done;
}

/* How long to sleep, in ns, now that nothing is left to do. */
static uint64_t leisure(struct progress_thread *watch, uint64_t until)
{
	uint64_t now = clock_now(), next = sooner(until, next_work(watch, now));
	atomic_store(&watch->sleeps_until, next);
	uint64_t wait = next > now ? next - now : 0;
	if (watch->round->wire)
		return listen_to(watch) ? wait : 0;
	return watch->socket_count ? wait : sooner(wait, LOOK_NS);
}

static void sleep_for(struct progress_thread *watch, int listens, uint64_t wait)
{
	struct timespec time = { .tv_sec = (time_t)(wait / 1000000000u), .tv_nsec = (long)(wait % 1000000000u) };
	struct pollfd asked[1 + PROGRESS_THREAD_SOCKETS] = { { .fd = watch->bell, .events = POLLIN } };
	uint64_t heard;
	uint32_t count = listens ? watch->socket_count : 0;
	for (uint32_t i = 0; i < count; i++)
		asked[1 + i] = (struct pollfd){ .fd = watch->sockets[i], .events = POLLIN };
	if (ppoll(asked, 1 + count, wait < NEVER >> 1 ? &time : NULL, NULL) > 0 && asked[0].revents &&
	    read(watch->bell, &heard, sizeof(heard)) < 0)
		return; /* heard already */
}

static void *run(void *self)
{
	struct progress_thread *watch = self;
	uint64_t tell_at = NEVER, spins_until = 0;

	while (!atomic_load(&watch->stop)) {
		uint64_t now = clock_now(), wait = polls(watch, now);
		if ((wait || atomic_exchange(&watch->stirred, 0)) && tell_at == NEVER)
			tell_at = now + watch->tell_within;
		if (wait) {
			sleep_for(watch, 0, wait);
			continue;
		}
		device_lock_take(watch->lock);
		int call = 0, listens = watch->leased && !stuck(watch);
		if (listens) {
			if (rounds(watch, MOST_ROUNDS)) {
				spins_until = watch->round->wire ? 0 : clock_now() + SPIN_NS;
				tell_at = sooner(tell_at, clock_now() + watch->tell_within);
			}
			call = stuck(watch);
			listens = !call;
		}
		now = clock_now();
		wait = listens && now >= spins_until && !polls(watch, now) ? leisure(watch, tell_at) : 0;
		if (!listens) {
			atomic_store(&watch->sleeps_until, NEVER);
			wait = watch->leased ? watch->tell_within : NEVER; /* who leaves nothing undone need not ring */
		}
		device_lock_release(watch->lock);
		if (call || (listens && clock_now() >= tell_at)) {
			tell_at = NEVER;
			call_python(watch);
		}
		if (wait)
			sleep_for(watch, listens, wait);
		atomic_store(&watch->sleeps_until, 0);
	}
	return NULL;
}

int progress_thread_start(struct progress_thread *watch)
{
	sigset_t all, before;

	watch->out = calloc(1, POLL_OUT_BYTES);
	watch->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int error = watch->out && watch->bell >= 0 ? 0 : ENOMEM;
	if (!error) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = pthread_create(&watch->thread, NULL, run, watch);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (error) {
		free(watch->out);
		if (watch->bell >= 0)
			close(watch->bell);
		return error;
	}
	atomic_fetch_add(&threads, 1);
	watch->runs = 1;
	return 0;
}

void progress_thread_wake(struct progress_thread *watch)
{
	uint64_t once = 1;
	if (watch->runs && write(watch->bell, &once, sizeof(once)) < 0)
		return; /* it rings already */
}

void progress_thread_stop(struct progress_thread *watch)
{
	if (!watch->runs)
		return;
	atomic_store(&watch->stop, 1);
	progress_thread_wake(watch);
	pthread_join(watch->thread, NULL);
	watch->runs = 0;
	if (watch->round->wire)
		loopback_unlisten(watch->round->wire);
	close(watch->bell);
	free(watch->out);
	atomic_fetch_sub(&threads, 1);
}
#endif
