/* Whose fault goes where: "all" is well where this prints that, or it ends by the signal that its argument asks for. */
#define _GNU_SOURCE
#include "memory/fault_guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s\n", __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

static char *gone; /* nobody may touch it */
static sigjmp_buf back;
static volatile int first, second, blocked;
static struct sigaction under;

static void one(int number)
{
	(void)number;
	first++;
	siglongjmp(back, 1);
}

/* One that hands on, as libraries do that are loaded late. */
static void other(int number, siginfo_t *info, void *context)
{
	sigset_t mask;

	second++;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	blocked = sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGSEGV);
	if (under.sa_flags & SA_SIGINFO)
		under.sa_sigaction(number, info, context);
	else
		under.sa_handler(number);
}

static void own_fault(void)
{
	if (!sigsetjmp(back, 1))
		*(volatile char *)gone = 1;
}

static void look(void *with, uint8_t *bytes)
{
	*(int *)with = *(volatile uint8_t *)bytes;
}

static void copies_fail(void)
{
	char here[64] = "kept";
	int looked = 7;

	CHECK(fault_guard_active());
	CHECK(fault_guard_read(here, gone, sizeof here) == -1);
	CHECK(fault_guard_write(gone, here, sizeof here) == -1);
	CHECK(fault_guard_visit(gone, sizeof here, look, &looked) == -1 && looked == 7);
	CHECK(fault_guard_visit(here, sizeof here, look, &looked) == 0 && looked == 'k');
	CHECK(fault_guard_read(here, (void *)((uintptr_t)1 << 62), 8) == -1);
	CHECK(fault_guard_write(here, "fine", 5) == 0 && !strcmp(here, "fine"));
}

static void *masked(void *unused)
{
	CHECK(!fault_guard_active());
	return unused;
}

static void in_masked_thread(void)
{
	sigset_t faults;
	pthread_t thread;

	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	pthread_sigmask(SIG_BLOCK, &faults, NULL);
	CHECK(!pthread_create(&thread, NULL, masked, NULL));
	pthread_join(thread, NULL);
	pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = one }, now;
	stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };

	gone = mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(gone != MAP_FAILED);
	if (argc > 1) { /* nobody has a handler */
		CHECK(!fault_guard_install());
		copies_fail();
		if (!strcmp(argv[1], "fault"))
			*(volatile char *)gone = 1;
		else
			raise(SIGSEGV);
		return 3;
	}
	CHECK(!sigaltstack(&stack, NULL));
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	CHECK(!fault_guard_install() && !fault_guard_install());
	for (int i = 0; i < 20; i++) {
		copies_fail();
		own_fault();
	}
	CHECK(first == 20);
	action = (struct sigaction){ .sa_sigaction = other, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	sigaddset(&action.sa_mask, SIGUSR1);
	CHECK(!sigaction(SIGSEGV, &action, &under));
	CHECK(under.sa_flags & SA_SIGINFO); /* ours, to which it hands on */
	fault_guard_refresh();
	fault_guard_refresh();
	for (int i = 0; i < 20; i++) {
		copies_fail();
		own_fault();
	}
	CHECK(first == 40 && second == 20 && blocked);
	in_masked_thread();
	fault_guard_remove();
	copies_fail();
	fault_guard_remove();
	CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_sigaction == other);
	puts("all");
	return 0;
}
