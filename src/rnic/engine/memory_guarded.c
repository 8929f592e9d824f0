#if defined(__linux__)
#include "crc32.h"
#include "guard.h"
#include "reach.h"

static int read_guarded(void *self, uint64_t va, void *to, size_t length)
{
	if (!guard_stands())
		return reach_own.read(self, va, to, length);
	return guard_read(to, (const void *)(uintptr_t)va, length);
}

static int read_crc_guarded(void *self, uint64_t va, void *to, size_t length, uint32_t *crc)
{
	if (guard_stands())
		return guard_read_crc(to, (const void *)(uintptr_t)va, length, crc);
	if (reach_own.read(self, va, to, length))
		return -1;
	*crc = engine_crc32(*crc, to, length);
	return 0;
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
const struct engine_memory reach_guarded = {
	.read = read_guarded, .write = write_guarded, .read_crc = read_crc_guarded, .within = within_guarded,
};
#endif
