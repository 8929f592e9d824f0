/*
 * `rnic exec --sockets` preloads this library, which turns a program's TCP sockets into rsockets on the NIC.
 *
 * A descriptor is an rsocket's if socket or accept created it here. Calls on all others, and librdmacm's own calls,
 * pass through. poll and select take both kinds; epoll, dup, sendfile and fork do not support rsockets.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "compiler.h"
#include "dlsym_next.h"

/* ---- rsockets, of librdmacm */

int rsocket(int family, int type, int protocol);
int rbind(int fd, const struct sockaddr *address, socklen_t bytes);
int rlisten(int fd, int backlog);
int raccept(int fd, struct sockaddr *address, socklen_t *bytes);
int rconnect(int fd, const struct sockaddr *address, socklen_t bytes);
int rshutdown(int fd, int how);
int rclose(int fd);
ssize_t rrecvmsg(int fd, struct msghdr *message, int flags);
ssize_t rrecvfrom(int fd, void *data, size_t bytes, int flags, struct sockaddr *from, socklen_t *from_bytes);
ssize_t rsendmsg(int fd, const struct msghdr *message, int flags);
ssize_t rsendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *to, socklen_t to_bytes);
ssize_t rreadv(int fd, const struct iovec *parts, int count);
ssize_t rwritev(int fd, const struct iovec *parts, int count);
int rpoll(struct pollfd *fds, nfds_t count, int timeout);
int rselect(int highest, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout);
int rgetpeername(int fd, struct sockaddr *address, socklen_t *bytes);
int rgetsockname(int fd, struct sockaddr *address, socklen_t *bytes);
int rsetsockopt(int fd, int level, int name, const void *value, socklen_t bytes);
int rgetsockopt(int fd, int level, int name, void *value, socklen_t *bytes);
int rfcntl(int fd, int command, ...);

/* ---- which descriptors are rsockets */

enum { DESCRIPTORS = 1 << 16 };
static _Atomic bool is_rsocket[DESCRIPTORS];
static _Thread_local int inside; /* librdmacm: its calls pass through */

static bool fd_is_rsocket(int fd)
{
	return !inside && fd >= 0 && fd < DESCRIPTORS && is_rsocket[fd];
}

/* Call a function of librdmacm. */
#define CALL_RDMACM(type, call) \
	({ \
		type result_; \
\
		inside++; \
		result_ = (call); \
		inside--; \
		result_; \
	})

static int mark_rsocket(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS)
		is_rsocket[fd] = true;
	return fd;
}

/* ---- making and closing */

NEXT(int, socket, (int, int, int))
EXPORT int socket(int family, int type, int protocol)
{
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (inside || kind != SOCK_STREAM || (family != AF_INET && family != AF_INET6) ||
	    (protocol && protocol != IPPROTO_TCP))
		return next_socket()(family, type, protocol);
	return mark_rsocket(CALL_RDMACM(int, rsocket(family, type, protocol)));
}

NEXT(int, accept4, (int, struct sockaddr *, socklen_t *, int))
EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
	int made;

	if (!fd_is_rsocket(fd))
		return next_accept4()(fd, address, bytes, flags);
	made = mark_rsocket(CALL_RDMACM(int, raccept(fd, address, bytes)));
	if (made >= 0 && flags & SOCK_NONBLOCK)
		CALL_RDMACM(int, rfcntl(made, F_SETFL, (long)O_NONBLOCK));
	return made;
}

EXPORT int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
	return accept4(fd, address, bytes, 0);
}

NEXT(int, close, (int))
EXPORT int close(int fd)
{
	if (!fd_is_rsocket(fd))
		return next_close()(fd);
	is_rsocket[fd] = false;
	return CALL_RDMACM(int, rclose(fd));
}

/* ---- calls that have the same arguments there */

NEXT(int, bind, (int, const struct sockaddr *, socklen_t))
EXPORT int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rbind(fd, address, bytes)) : next_bind()(fd, address, bytes);
}

NEXT(int, listen, (int, int))
EXPORT int listen(int fd, int backlog)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rlisten(fd, backlog)) : next_listen()(fd, backlog);
}

NEXT(int, connect, (int, const struct sockaddr *, socklen_t))
EXPORT int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rconnect(fd, address, bytes)) : next_connect()(fd, address, bytes);
}

NEXT(int, shutdown, (int, int))
EXPORT int shutdown(int fd, int how)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rshutdown(fd, how)) : next_shutdown()(fd, how);
}

NEXT(int, getpeername, (int, struct sockaddr *, socklen_t *))
EXPORT int getpeername(int fd, struct sockaddr *address, socklen_t *bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rgetpeername(fd, address, bytes)) :
				   next_getpeername()(fd, address, bytes);
}

NEXT(int, getsockname, (int, struct sockaddr *, socklen_t *))
EXPORT int getsockname(int fd, struct sockaddr *address, socklen_t *bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rgetsockname(fd, address, bytes)) :
				   next_getsockname()(fd, address, bytes);
}

NEXT(int, setsockopt, (int, int, int, const void *, socklen_t))
EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rsetsockopt(fd, level, name, value, bytes)) :
				   next_setsockopt()(fd, level, name, value, bytes);
}

NEXT(int, getsockopt, (int, int, int, void *, socklen_t *))
EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(int, rgetsockopt(fd, level, name, value, bytes)) :
				   next_getsockopt()(fd, level, name, value, bytes);
}

/* ---- data */

NEXT(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, socklen_t *))
EXPORT ssize_t recvfrom(int fd, void *data, size_t bytes, int flags, struct sockaddr *from, socklen_t *from_bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rrecvfrom(fd, data, bytes, flags, from, from_bytes)) :
				   next_recvfrom()(fd, data, bytes, flags, from, from_bytes);
}

EXPORT ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
	return recvfrom(fd, data, bytes, flags, NULL, NULL);
}

EXPORT ssize_t __recv_chk(int fd, void *data, size_t bytes, size_t room, int flags)
{
	return recvfrom(fd, data, bytes < room ? bytes : room, flags, NULL, NULL);
}

NEXT(ssize_t, recvmsg, (int, struct msghdr *, int))
EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rrecvmsg(fd, message, flags)) :
				   next_recvmsg()(fd, message, flags);
}

NEXT(ssize_t, read, (int, void *, size_t))
EXPORT ssize_t read(int fd, void *data, size_t bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rrecvfrom(fd, data, bytes, 0, NULL, NULL)) :
				   next_read()(fd, data, bytes);
}

EXPORT ssize_t __read_chk(int fd, void *data, size_t bytes, size_t room)
{
	return read(fd, data, bytes < room ? bytes : room);
}

NEXT(ssize_t, readv, (int, const struct iovec *, int))
EXPORT ssize_t readv(int fd, const struct iovec *parts, int count)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rreadv(fd, parts, count)) : next_readv()(fd, parts, count);
}

NEXT(ssize_t, sendto, (int, const void *, size_t, int, const struct sockaddr *, socklen_t))
EXPORT ssize_t sendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *to, socklen_t to_bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rsendto(fd, data, bytes, flags, to, to_bytes)) :
				   next_sendto()(fd, data, bytes, flags, to, to_bytes);
}

EXPORT ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
	return sendto(fd, data, bytes, flags, NULL, 0);
}

NEXT(ssize_t, sendmsg, (int, const struct msghdr *, int))
EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rsendmsg(fd, message, flags)) :
				   next_sendmsg()(fd, message, flags);
}

NEXT(ssize_t, write, (int, const void *, size_t))
EXPORT ssize_t write(int fd, const void *data, size_t bytes)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rsendto(fd, data, bytes, 0, NULL, 0)) :
				   next_write()(fd, data, bytes);
}

NEXT(ssize_t, writev, (int, const struct iovec *, int))
EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
	return fd_is_rsocket(fd) ? CALL_RDMACM(ssize_t, rwritev(fd, parts, count)) : next_writev()(fd, parts, count);
}

/* ---- waiting */

NEXT(int, poll, (struct pollfd *, nfds_t, int))
EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	for (nfds_t i = 0; i < count; i++)
		if (fd_is_rsocket(fds[i].fd))
			return CALL_RDMACM(int, rpoll(fds, count, timeout));
	return next_poll()(fds, count, timeout);
}

EXPORT int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room)
{
	if (room / sizeof *fds < count)
		abort();
	return poll(fds, count, timeout);
}

NEXT(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))
EXPORT int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	int ms = timeout ? (int)(timeout->tv_sec * 1000 + (timeout->tv_nsec + 999999) / 1000000) : -1;

	for (nfds_t i = 0; i < count; i++)
		if (fd_is_rsocket(fds[i].fd))
			return CALL_RDMACM(int, rpoll(fds, count, ms));
	return next_ppoll()(fds, count, timeout, mask);
}

NEXT(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *))
EXPORT int select(int highest, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
{
	for (int fd = 0; fd < highest && fd < FD_SETSIZE; fd++)
		if (fd_is_rsocket(fd) &&
		    ((readable && FD_ISSET(fd, readable)) || (writable && FD_ISSET(fd, writable)) ||
		     (exceptional && FD_ISSET(fd, exceptional))))
			return CALL_RDMACM(int, rselect(highest, readable, writable, exceptional, timeout));
	return next_select()(highest, readable, writable, exceptional, timeout);
}

/* ---- flags */

#define FCNTL(name, next) \
	EXPORT int name(int fd, int command, ...) \
	{ \
		va_list arguments; \
		long value; \
\
		va_start(arguments, command); \
		value = va_arg(arguments, long); \
		va_end(arguments); \
		return fd_is_rsocket(fd) ? CALL_RDMACM(int, rfcntl(fd, command, value)) : (next)(fd, command, value); \
	}

NEXT(int, fcntl, (int, int, ...))
NEXT(int, fcntl64, (int, int, ...))
FCNTL(fcntl, next_fcntl())
FCNTL(fcntl64, next_fcntl64() ? (fcntl_type)next_fcntl64() : next_fcntl())

NEXT(int, ioctl, (int, unsigned long, ...))
EXPORT int ioctl(int fd, unsigned long command, ...)
{
	va_list arguments;
	void *value;

	va_start(arguments, command);
	value = va_arg(arguments, void *);
	va_end(arguments);
	if (!fd_is_rsocket(fd))
		return next_ioctl()(fd, command, value);
	if (command != FIONBIO) {
		errno = ENOTTY;
		return -1;
	}
	return CALL_RDMACM(int, rfcntl(fd, F_SETFL, *(int *)value ? (long)O_NONBLOCK : 0l));
}
