/* Counters of functions entered, for each thread: linked into an engine that is compiled with -finstrument-functions
 * (bench_calls.py). */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#define FUNCTIONS 4096u /* a power of two, of which the engine has a fifth */
#define UNCOUNTED __attribute__((no_instrument_function))
#define EXPORT __attribute__((visibility("default")))

struct thread_calls {
	struct thread_calls *next;
	uint64_t calls;
	struct {
		void *function;
		uint64_t calls;
	} functions[FUNCTIONS];
};

static _Atomic(struct thread_calls *) threads;
static _Thread_local struct thread_calls *own;

void __cyg_profile_func_enter(void *function, void *from) UNCOUNTED EXPORT;
void __cyg_profile_func_exit(void *function, void *from) UNCOUNTED EXPORT;
uint64_t calls_here(void) UNCOUNTED EXPORT;
uint64_t calls_elsewhere(void) UNCOUNTED EXPORT;
uint64_t calls_of(int here, uint64_t *functions, uint64_t *calls, uint64_t most) UNCOUNTED EXPORT;
static struct thread_calls *own_calls(void) UNCOUNTED;

static struct thread_calls *own_calls(void)
{
	if (!own) {
		own = calloc(1, sizeof *own);
		if (!own)
			abort();
		own->next = atomic_load(&threads);
		while (!atomic_compare_exchange_weak(&threads, &own->next, own))
			;
	}
	return own;
}

void __cyg_profile_func_enter(void *function, void *from)
{
	struct thread_calls *thread = own_calls();
	uintptr_t at = ((uintptr_t)function >> 4) % FUNCTIONS;

	(void)from;
	thread->calls++;
	while (thread->functions[at].function && thread->functions[at].function != function)
		at = (at + 1) % FUNCTIONS;
	thread->functions[at].function = function;
	thread->functions[at].calls++;
}

void __cyg_profile_func_exit(void *function, void *from)
{
	(void)function;
	(void)from;
}

/* Return the calls of the calling thread. */
uint64_t calls_here(void)
{
	return own_calls()->calls;
}

/* Return the calls of all other threads; of those that run, about. */
uint64_t calls_elsewhere(void)
{
	const struct thread_calls *mine = own_calls();
	uint64_t calls = 0;

	for (const struct thread_calls *each = atomic_load(&threads); each; each = each->next)
		calls += each == mine ? 0 : *(const volatile uint64_t *)&each->calls;
	return calls;
}

/* Store the functions, by address, that the calling thread or all others have entered, and how often; return their
 * number. */
uint64_t calls_of(int here, uint64_t *functions, uint64_t *calls, uint64_t most)
{
	const struct thread_calls *mine = own_calls();
	uint64_t count = 0;

	for (const struct thread_calls *each = atomic_load(&threads); each; each = each->next) {
		for (uint32_t i = 0; (each == mine) == (here != 0) && i < FUNCTIONS && count < most; i++) {
			if (!each->functions[i].function)
				continue;
			functions[count] = (uintptr_t)each->functions[i].function - (uintptr_t)calls_of;
			calls[count++] = each->functions[i].calls;
		}
	}
	return count;
}
