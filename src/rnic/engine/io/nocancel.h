/* System calls under the locks of devices and queues. libc's calls are cancellation points: a thread that is canceled
 * in one would keep the lock. Disabling cancellation around the lock costs each post and poll more than the lock does.
 * So frequent calls bypass libc, and rare ones disable cancellation (`nocancel_begin`, `nocancel_end`). */
#ifndef RNIC_ENGINE_NOCANCEL_H
#define RNIC_ENGINE_NOCANCEL_H

#if defined(__linux__)
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct mmsghdr; /* GNU's: not all files that include this define _GNU_SOURCE */

/* Disable cancellation until `nocancel_end`, and return the state to restore there. */
static inline int nocancel_begin(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void nocancel_end(int before)
{
	pthread_setcancelstate(before, NULL);
}

static inline ssize_t nocancel_recvmsg(int fd, struct msghdr *message, int flags)
{
	return syscall(SYS_recvmsg, fd, message, flags);
}

static inline int nocancel_recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	return (int)syscall(SYS_recvmmsg, fd, messages, count, flags, NULL);
}

static inline ssize_t nocancel_sendmsg(int fd, const struct msghdr *message, int flags)
{
	return syscall(SYS_sendmsg, fd, message, flags);
}

static inline ssize_t nocancel_sendto(int fd, const void *bytes, size_t length, const void *name, size_t name_bytes)
{
	return syscall(SYS_sendto, fd, bytes, length, 0, name, name_bytes);
}

static inline ssize_t nocancel_send(int fd, const void *bytes, size_t length, int flags)
{
	return syscall(SYS_sendto, fd, bytes, length, flags, NULL, 0);
}

static inline ssize_t nocancel_vmsplice(int pipe, const struct iovec *piece, unsigned flags)
{
	return syscall(SYS_vmsplice, pipe, piece, 1ul, flags);
}

static inline ssize_t nocancel_splice(int from, int to, size_t length, unsigned flags)
{
	return syscall(SYS_splice, from, NULL, to, NULL, length, flags);
}

static inline ssize_t nocancel_write(int fd, const void *bytes, size_t length)
{
	return syscall(SYS_write, fd, bytes, length);
}
#endif
#endif
