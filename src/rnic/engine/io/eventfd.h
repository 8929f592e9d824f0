/* Read an eventfd without waiting, whatever its flags are: programs hold it too, and another thread may read it first.
 * Linux only. */
#ifndef RNIC_ENGINE_EVENTFD_H
#define RNIC_ENGINE_EVENTFD_H

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EVENTFD_NOWAIT 8 /* RWF_NOWAIT, for C libraries that lack it */

/* Take all wake-ups, or one with EFD_SEMAPHORE; returns whether there was any. */
static inline int eventfd_drain(int fd)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };
	uint64_t count;
#ifdef SYS_preadv2
	struct iovec room = { &count, sizeof count };
	long got = syscall(SYS_preadv2, fd, &room, 1L, -1L, -1L, EVENTFD_NOWAIT);

	if (got >= 0 || errno == EAGAIN || errno == EBADF)
		return got > 0;
#endif
	return poll(&poller, 1, 0) == 1 && read(fd, &count, sizeof count) > 0;
}

#endif
