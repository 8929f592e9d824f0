#if defined(__linux__)
#define _GNU_SOURCE
#include "reach.h"

#include <sys/uio.h>

typedef ssize_t (*copies)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);

/* The kernel may copy less than it was asked for: up to the first page out of reach, or 2 GiB. */
static int copy(copies call, const struct reach_own *own, uint64_t va, void *here, size_t length)
{
	while (length) {
		struct iovec near = { here, length };
		struct iovec far = { (void *)(uintptr_t)va, length };
		ssize_t done = call(own->pid, &near, 1, &far, 1, 0);
		if (done <= 0)
			return -1;
		va += (uint64_t)done;
		here = (char *)here + done;
		length -= (size_t)done;
	}
	return 0;
}

static int read_own(void *self, uint64_t va, void *to, size_t length)
{
	return copy(process_vm_readv, self, va, to, length);
}

static int write_own(void *self, uint64_t va, const void *from, size_t length)
{
	return copy(process_vm_writev, self, va, (void *)(uintptr_t)from, length);
}

const struct engine_memory reach_own = { read_own, write_own };
#endif
