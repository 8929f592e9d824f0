#if defined(__linux__)
#define _GNU_SOURCE
#include "memory/fault_guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#define SIGNALS 2u
#define MAX_PREVIOUS 8u /* handlers installed before ours, in order; a further one replaces the last */

/* Jump target for a fault in a range of memory. */
struct landing {
	jmp_buf where;
	uintptr_t at;
	size_t length;
};

/* For variables used in handlers: a thread's first access must not allocate. */
#define AT_ONCE __attribute__((tls_model("initial-exec")))
static _Thread_local struct landing *volatile landing AT_ONCE;
static _Thread_local unsigned nested AT_ONCE; /* other handlers running on this thread, each called by ours */
static _Thread_local char *nested_frame AT_ONCE;
static _Thread_local int allowed AT_ONCE; /* 0 unknown, 1 yes, -1 no */

static const int signals[SIGNALS] = { SIGSEGV, SIGBUS };
static struct sigaction previous[SIGNALS][MAX_PREVIOUS];
static _Atomic unsigned previous_counts[SIGNALS];
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned installs;
static _Atomic int displaced; /* our handler was replaced and could not be reinstalled */

static unsigned signal_index(int number)
{
	return number == signals[0] ? 0 : 1;
}

/* Perform the default action: a fault recurs when its instruction is repeated, a sent signal is raised again. */
static void call_default(int number, const siginfo_t *info)
{
	struct sigaction standard = { .sa_handler = SIG_DFL };

	sigaction(number, &standard, NULL);
	if (info->si_code <= 0)
		raise(number);
}

/* Call the handler before ours; if that calls ours in turn, the one before it. */
static void call_previous(int number, siginfo_t *info, void *context)
{
	unsigned i = signal_index(number), count = previous_counts[i];
	struct sigaction *saved = nested < count ? &previous[i][count - 1 - nested] : NULL;
	struct sigaction copy = saved ? *saved : (struct sigaction){ .sa_handler = SIG_DFL }, *to = &copy;
	sigset_t mask;

	if (saved && to->sa_flags & (int)SA_RESETHAND)
		*saved = (struct sigaction){ .sa_handler = SIG_DFL };
	if (!saved || (!(to->sa_flags & SA_SIGINFO) && to->sa_handler == SIG_DFL)) {
		call_default(number, info);
		return;
	}
	if (!(to->sa_flags & SA_SIGINFO) && to->sa_handler == SIG_IGN) {
		if (info->si_code > 0) /* a fault cannot be ignored */
			call_default(number, info);
		return;
	}
	mask = to->sa_mask;
	if (!(to->sa_flags & SA_NODEFER))
		sigaddset(&mask, number);
	pthread_sigmask(SIG_BLOCK, &mask, NULL); /* the kernel restores it when this handler returns */
	nested++;
	if (to->sa_flags & SA_SIGINFO)
		to->sa_sigaction(number, info, context);
	else
		to->sa_handler(number);
	nested--;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	struct landing *here = landing;
	char frame;

	/* the kernel reports no address if it is not a valid user address */
	if (here &&
	    ((info->si_code > 0 && (uintptr_t)info->si_addr - here->at < here->length) || info->si_code == SI_KERNEL)) {
		landing = NULL;
		longjmp(here->where, 1);
	}
	if (nested && &frame >= nested_frame)
		nested = 0; /* the other handler was left by longjmp */
	if (!nested)
		nested_frame = &frame;
	call_previous(number, info, context);
}

static int is_ours(const struct sigaction *action)
{
	return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_fault;
}

static int same_handler(const struct sigaction *one, const struct sigaction *other)
{
	int told = (one->sa_flags & SA_SIGINFO) == (other->sa_flags & SA_SIGINFO);
	return told && (one->sa_flags & SA_SIGINFO ? one->sa_sigaction == other->sa_sigaction :
						     one->sa_handler == other->sa_handler);
}

/* Install our handler before the current one. If that is a known previous one, forget those after it. */
static int install_handler(unsigned i)
{
	struct sigaction ours = { .sa_sigaction = on_fault,
				  .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART };
	struct sigaction now;
	unsigned count = previous_counts[i];

	if (sigaction(signals[i], NULL, &now))
		return -1;
	if (is_ours(&now))
		return 0;
	for (unsigned k = 0; k < count; k++)
		if (same_handler(&previous[i][k], &now))
			count = k;
	if (count == MAX_PREVIOUS)
		count--;
	previous[i][count] = now;
	previous_counts[i] = count + 1;
	sigemptyset(&ours.sa_mask);
	/* some libraries (UCX) intercept sigaction, keep their own handlers and report success */
	if (sigaction(signals[i], &ours, NULL) || sigaction(signals[i], NULL, &now))
		return -1;
	return is_ours(&now) ? 0 : -1;
}

int fault_guard_install(void)
{
	int error = 0;

	pthread_mutex_lock(&install_lock);
	for (unsigned i = 0; i < SIGNALS && !error; i++)
		error = install_handler(i);
	installs += !error;
	pthread_mutex_unlock(&install_lock);
	return error;
}

void fault_guard_refresh(void)
{
	int error = 0;

	pthread_mutex_lock(&install_lock);
	for (unsigned i = 0; i < SIGNALS && installs; i++)
		error |= install_handler(i);
	displaced = error;
	pthread_mutex_unlock(&install_lock);
}

void fault_guard_remove(void)
{
	struct sigaction now;

	pthread_mutex_lock(&install_lock);
	if (installs && !--installs) {
		for (unsigned i = 0; i < SIGNALS; i++) {
			if (!sigaction(signals[i], NULL, &now) && is_ours(&now) && previous_counts[i])
				sigaction(signals[i], &previous[i][previous_counts[i] - 1], NULL);
			previous_counts[i] = 0;
		}
	}
	pthread_mutex_unlock(&install_lock);
}

int fault_guard_active(void)
{
	sigset_t blocked;

	if (!allowed) {
		allowed = -1;
		if (!pthread_sigmask(SIG_BLOCK, NULL, &blocked) && !sigismember(&blocked, SIGSEGV) &&
		    !sigismember(&blocked, SIGBUS))
			allowed = 1;
	}
	return allowed > 0 && !displaced;
}

/* Set or clear (NULL) the landing; accesses stay between two such calls. Fields are set one by one: an initializer
 * would clear all of `where` for each packet. */
static void set_landing(struct landing *here, const void *theirs, size_t length)
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
	set_landing(&here, theirs, length);
	memcpy(to, theirs, length);
	set_landing(NULL, NULL, 0);
	return 0;
}

int fault_guard_visit(void *theirs, size_t length, void (*work)(void *with, uint8_t *bytes), void *with)
{
	struct landing here;

	if (_setjmp(here.where))
		return -1;
	set_landing(&here, theirs, length);
	work(with, theirs);
	set_landing(NULL, NULL, 0);
	return 0;
}

int fault_guard_write(void *theirs, const void *from, size_t length)
{
	struct landing here;

	if (_setjmp(here.where))
		return -1;
	set_landing(&here, theirs, length);
	memcpy(theirs, from, length);
	set_landing(NULL, NULL, 0);
	return 0;
}
#endif
