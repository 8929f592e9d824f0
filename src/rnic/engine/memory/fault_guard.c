#if defined(__linux__)
#define _GNU_SOURCE
#include "memory/fault_guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#define SIGNALS 2u
#define BEFORE 8u /* handlers that stood before ours, one after the other: more take the place of the last */

/* Where a fault in a range of memory ends. */
struct landing {
	jmp_buf where;
	uintptr_t at;
	size_t length;
};

/* Looked at by handlers, so that nothing may be allocated for it when a thread touches it first. */
#define AT_ONCE __attribute__((tls_model("initial-exec")))
static _Thread_local struct landing *volatile landing AT_ONCE;
static _Thread_local unsigned handed AT_ONCE; /* handlers of others that run on this thread, each called by ours */
static _Thread_local char *handed_at AT_ONCE;
static _Thread_local int stands AT_ONCE; /* 0 not asked yet, 1, -1 */

static const int numbers[SIGNALS] = { SIGSEGV, SIGBUS };
static struct sigaction before[SIGNALS][BEFORE];
static _Atomic unsigned counts[SIGNALS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned installed;
static _Atomic int displaced; /* by a handler that lets none stand before it */

static unsigned index_of(int number)
{
	return number == numbers[0] ? 0 : 1;
}

/* As the system does by itself: a fault comes again when its instruction does, what somebody sent is sent anew. */
static void leave_to_system(int number, const siginfo_t *info)
{
	struct sigaction standard = { .sa_handler = SIG_DFL };

	sigaction(number, &standard, NULL);
	if (info->si_code <= 0)
		raise(number);
}

/* To the handler that stood before ours; if that hands on in turn, to the one before it. */
static void hand_on(int number, siginfo_t *info, void *context)
{
	unsigned i = index_of(number), count = counts[i];
	const struct sigaction *to = handed < count ? &before[i][count - 1 - handed] : NULL;
	sigset_t mask;

	if (!to || (!(to->sa_flags & SA_SIGINFO) && to->sa_handler == SIG_DFL)) {
		leave_to_system(number, info);
		return;
	}
	if (!(to->sa_flags & SA_SIGINFO) && to->sa_handler == SIG_IGN) {
		if (info->si_code > 0) /* no fault can be passed over */
			leave_to_system(number, info);
		return;
	}
	mask = to->sa_mask;
	if (!(to->sa_flags & SA_NODEFER))
		sigaddset(&mask, number);
	pthread_sigmask(SIG_BLOCK, &mask, NULL); /* the system takes it back when this handler returns */
	handed++;
	if (to->sa_flags & SA_SIGINFO)
		to->sa_sigaction(number, info, context);
	else
		to->sa_handler(number);
	handed--;
}

static void caught(int number, siginfo_t *info, void *context)
{
	struct landing *here = landing;
	char frame;

	/* of an address that no process can have the system does not say which it was */
	if (here && ((info->si_code > 0 && (uintptr_t)info->si_addr - here->at < here->length) || info->si_code == SI_KERNEL)) {
		landing = NULL;
		longjmp(here->where, 1);
	}
	if (handed && &frame >= handed_at)
		handed = 0; /* the one that was called has left by a jump */
	if (!handed)
		handed_at = &frame;
	hand_on(number, info, context);
}

static int is_ours(const struct sigaction *action)
{
	return action->sa_flags & SA_SIGINFO && action->sa_sigaction == caught;
}

static int same(const struct sigaction *one, const struct sigaction *other)
{
	int told = (one->sa_flags & SA_SIGINFO) == (other->sa_flags & SA_SIGINFO);
	return told && (one->sa_flags & SA_SIGINFO ? one->sa_sigaction == other->sa_sigaction :
						     one->sa_handler == other->sa_handler);
}

/* Stand before whatever stands there now. Behind a handler that stood before ours already nothing is newer. */
static int stand(unsigned i)
{
	struct sigaction ours = { .sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART };
	struct sigaction now;
	unsigned count = counts[i];

	if (sigaction(numbers[i], NULL, &now))
		return -1;
	if (is_ours(&now))
		return 0;
	for (unsigned k = 0; k < count; k++)
		if (same(&before[i][k], &now))
			count = k;
	if (count == BEFORE)
		count--;
	before[i][count] = now;
	counts[i] = count + 1;
	sigemptyset(&ours.sa_mask);
	/* some libraries (UCX's) answer for the system, keep their own handlers and call that success */
	if (sigaction(numbers[i], &ours, NULL) || sigaction(numbers[i], NULL, &now))
		return -1;
	return is_ours(&now) ? 0 : -1;
}

int fault_guard_install(void)
{
	int error = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < SIGNALS && !error; i++)
		error = stand(i);
	installed += !error;
	pthread_mutex_unlock(&lock);
	return error;
}

void fault_guard_refresh(void)
{
	int error = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < SIGNALS && installed; i++)
		error |= stand(i);
	displaced = error;
	pthread_mutex_unlock(&lock);
}

void fault_guard_remove(void)
{
	struct sigaction now;

	pthread_mutex_lock(&lock);
	if (installed && !--installed) {
		for (unsigned i = 0; i < SIGNALS; i++) {
			if (!sigaction(numbers[i], NULL, &now) && is_ours(&now) && counts[i])
				sigaction(numbers[i], &before[i][counts[i] - 1], NULL);
			counts[i] = 0;
		}
	}
	pthread_mutex_unlock(&lock);
}

int fault_guard_active(void)
{
	sigset_t blocked;

	if (!stands) {
		stands = -1;
		if (!pthread_sigmask(SIG_BLOCK, NULL, &blocked) && !sigismember(&blocked, SIGSEGV) &&
		    !sigismember(&blocked, SIGBUS))
			stands = 1;
	}
	return stands > 0 && !displaced;
}

/* What touches their bytes stays between two of these. Fields are set one by one: an initialiser would clear the whole of
 * `where` for each packet. */
static void watch(struct landing *here, const void *theirs, size_t length)
{
	if (here) {
		here->at = (uintptr_t)theirs;
		here->length = length;
	}
	atomic_signal_fence(memory_order_seq_cst);
	landing = here;
	atomic_signal_fence(memory_order_seq_cst);
}

int fault_guard_read(void *to, const void *theirs, size_t length)
{
	struct landing here;

	if (_setjmp(here.where))
		return -1;
	watch(&here, theirs, length);
	memcpy(to, theirs, length);
	watch(NULL, NULL, 0);
	return 0;
}

int fault_guard_visit(void *theirs, size_t length, void (*work)(void *with, uint8_t *bytes), void *with)
{
	struct landing here;

	if (_setjmp(here.where))
		return -1;
	watch(&here, theirs, length);
	work(with, theirs);
	watch(NULL, NULL, 0);
	return 0;
}

int fault_guard_write(void *theirs, const void *from, size_t length)
{
	struct landing here;

	if (_setjmp(here.where))
		return -1;
	watch(&here, theirs, length);
	memcpy(theirs, from, length);
	watch(NULL, NULL, 0);
	return 0;
}
#endif
