#if defined(__linux__)
#include "memory/fault_guard.h"
#include "memory/backends.h"

static int read_guarded(void *self, uint64_t va, void *to, size_t length)
{
	if (!guard_stands())
		return reach_own.read(self, va, to, length);
	return guard_read(to, (const void *)(uintptr_t)va, length);
}

static int write_guarded(void *self, uint64_t va, const void *from, size_t length)
{
	if (!guard_stands())
		return reach_own.write(self, va, from, length);
	return guard_write((void *)(uintptr_t)va, from, length);
}

static int within_guarded(void *self, uint64_t va, size_t length, engine_work work, void *with)
{
	(void)self;
	return guard_stands() ? guard_within((void *)(uintptr_t)va, length, work, with) : -1;
}

/* Where a copy costs no system call, many in one would save nothing. */
const struct engine_memory reach_guarded = { .read = read_guarded, .write = write_guarded, .within = within_guarded };
#endif
