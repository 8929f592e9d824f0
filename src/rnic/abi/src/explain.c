/* Print why a verb is refused (rnic.spec.reasons), for both libraries. */
#include "explain.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "compiler.h"
#include "io/nocancel.h"
#include "rnic_reasons.h"

bool explaining;

static _Atomic uint32_t times[WHY_KINDS];
static const char *const names[WHY_KINDS] = WHY_NAMES;
static pid_t owner; /* a forked child has counted nothing */
static struct stat own_stderr; /* file of descriptor 2 at program start */

__attribute__((constructor)) static void read_environment(void)
{
	const char *value = getenv("RNIC_EXPLAIN");

	explaining = value && *value && strcmp(value, "0") != 0;
	owner = getpid();
	if (explaining && fstat(STDERR_FILENO, &own_stderr))
		explaining = false;
}

bool explain_has_stderr(void)
{
	struct stat now;

	return explaining && !fstat(STDERR_FILENO, &now) && now.st_dev == own_stderr.st_dev &&
	       now.st_ino == own_stderr.st_ino;
}

/* Write without SIGPIPE if no reader is left, and without a cancellation point: the caller may hold a lock. */
static void write_quietly(const char *line, size_t length)
{
	sigset_t pipe_signal, pending, before;
	const struct timespec at_once = { 0, 0 };

	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
	if (nocancel_write(STDERR_FILENO, line, length) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
		while (sigtimedwait(&pipe_signal, NULL, &at_once) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* One system call: lines of threads and programs do not mix. */
static void write_line(char *line, size_t size, int length)
{
	int error = errno;

	if (length < 0 || !explain_has_stderr())
		return;
	if ((size_t)length > size - 2)
		length = (int)size - 2;
	line[length] = '\n';
	write_quietly(line, (size_t)length + 1);
	errno = error;
}

/* Count a line of a kind. Returns whether to write it. */
static bool count_line(unsigned kind)
{
	return kind < WHY_KINDS && atomic_fetch_add_explicit(&times[kind], 1, memory_order_relaxed) < WHY_LINES;
}

void explain(unsigned kind, const char *verb, const char *format, ...)
{
	char line[512];
	va_list arguments;
	int length, rest;

	if (!count_line(kind))
		return;
	length = snprintf(line, sizeof line, "rnic: %s: ", verb);
	if (length < 0 || (size_t)length >= sizeof line)
		return;
	va_start(arguments, format);
	rest = vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
	va_end(arguments);
	write_line(line, sizeof line, rest < 0 ? rest : length + rest);
}

void explain_refusal(const void *answer, size_t bytes)
{
	char line[512];
	uint32_t kind;

	if (bytes <= sizeof kind)
		return;
	memcpy(&kind, answer, sizeof kind);
	if (count_line(kind))
		write_line(line, sizeof line,
			   snprintf(line, sizeof line, "rnic: %.*s", (int)(bytes - sizeof kind),
				    (const char *)answer + sizeof kind));
}

__attribute__((destructor)) static void write_counts(void)
{
	char line[128];

	for (unsigned kind = 0; explaining && owner == getpid() && kind < WHY_KINDS; kind++) {
		uint32_t count = atomic_load_explicit(&times[kind], memory_order_relaxed);

		if (count > WHY_LINES)
			write_line(line, sizeof line,
				   snprintf(line, sizeof line, "rnic: %u more times: %s", count - WHY_LINES,
					    kind ? names[kind] : "other refusals"));
	}
}
