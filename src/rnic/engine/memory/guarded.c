#if defined(__linux__)
#include "memory/backends.h"
#include "memory/fault_guard.h"

static int read_guarded(void *self, uint64_t va, void *to, size_t length)
{
	if (!fault_guard_active())
		return own_process.read(self, va, to, length);
	return fault_guard_read(to, (const void *)(uintptr_t)va, length);
}

static int write_guarded(void *self, uint64_t va, const void *from, size_t length)
{
	if (!fault_guard_active())
		return own_process.write(self, va, from, length);
	return fault_guard_write((void *)(uintptr_t)va, from, length);
}

static int within_guarded(void *self, uint64_t va, size_t length, engine_visitor work, void *with)
{
	(void)self;
	return fault_guard_active() ? fault_guard_visit((void *)(uintptr_t)va, length, work, with) : -1;
}

/* No read_all or write_all: a copy costs no system call. */
const struct engine_memory guarded_process = { .read = read_guarded, .write = write_guarded, .within = within_guarded };
#endif
