/* The calls of rsockets. */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_dgram.h"
#include "rdmacm_stream.h"

EXPORT int rsocket(int family, int type, int protocol UNUSED)
{
	const struct rs_ops *ops;
	struct rsocket *rs;
	int error, kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (family != AF_INET && family != AF_INET6)
		return rdma_seterrno(EAFNOSUPPORT);
	if (kind != SOCK_STREAM && kind != SOCK_DGRAM)
		return rdma_seterrno(EPROTONOSUPPORT);
	ops = kind == SOCK_STREAM ? &stream_ops : &dgram_ops;
	rs = rs_alloc(ops, family, NULL);
	if (!rs)
		return -1;
	rs->flags = type & SOCK_NONBLOCK ? O_NONBLOCK : 0;
	error = ops->open(rs);
	if (!error)
		error = rs_insert(rs);
	if (!error)
		return rs->fd;
	rs_put(rs);
	return rdma_seterrno(error);
}

EXPORT int rbind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	ENTER(fd);
	LEAVE(rs->ops->bind(rs, address, bytes));
}

EXPORT int rlisten(int fd, int backlog)
{
	ENTER(fd);
	LEAVE(rs->ops->type == SOCK_STREAM ? stream_listen(rs, backlog) : rdma_seterrno(EOPNOTSUPP));
}

static bool have_request(struct rsocket *rs)
{
	return rs->state != RS_LISTENING || fd_is_readable(rs->events->fd);
}

static int accept_stream(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	struct rsocket *made;

	if (rs->state != RS_LISTENING)
		return rdma_seterrno(EINVAL);
	do {
		if (rs_wait(rs, have_request, 0, rs->recv_timeout_ms))
			return -1;
		made = stream_accept(rs);
	} while (!made && errno == EAGAIN);
	if (!made)
		return -1;
	if (rs_insert(made)) {
		rs_put(made);
		return rdma_seterrno(EMFILE);
	}
	rs_copy_address(&made->id->route.addr.dst_storage, address, bytes);
	return made->fd;
}

EXPORT int raccept(int fd, struct sockaddr *address, socklen_t *bytes)
{
	ENTER(fd);
	LEAVE(accept_stream(rs, address, bytes));
}

EXPORT int rconnect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	ENTER(fd);
	LEAVE(rs->ops->connect(rs, address, bytes));
}

EXPORT int rshutdown(int fd, int how)
{
	ENTER(fd);
	LEAVE(rs->ops->shutdown(rs, how));
}

EXPORT int rclose(int fd)
{
	struct rsocket *rs = rs_get(fd);

	if (!rs)
		return -1;
	pthread_mutex_lock(&rs->lock);
	if (rs->state == RS_CONNECTED || rs->state == RS_CONNECTING)
		rs->ops->shutdown(rs, SHUT_RDWR);
	rs->state = rs->state == RS_ERROR ? RS_ERROR : RS_DISCONNECTED;
	rs->can_read = rs->can_write = false;
	pthread_cond_broadcast(&rs->changed);
	pthread_mutex_unlock(&rs->lock);
	rs_remove(rs, fd);
	rs_put(rs);
	return 0;
}

/* ---- data */

static ssize_t recv_iov(int fd, const struct iovec *parts, int count, int flags, struct sockaddr *from,
			socklen_t *bytes)
{
	ENTER(fd);
	LEAVE(rs->ops->recv(rs, parts, count, flags, from, bytes));
}

static ssize_t send_iov(int fd, const struct iovec *parts, int count, int flags, const struct sockaddr *to,
			socklen_t bytes)
{
	ENTER(fd);
	LEAVE(rs->ops->send(rs, parts, count, flags, to, bytes));
}

EXPORT ssize_t rrecv(int fd, void *data, size_t bytes, int flags)
{
	struct iovec part = { data, bytes };

	return recv_iov(fd, &part, 1, flags, NULL, NULL);
}

EXPORT ssize_t rrecvfrom(int fd, void *data, size_t bytes, int flags, struct sockaddr *from, socklen_t *from_bytes)
{
	struct iovec part = { data, bytes };

	return recv_iov(fd, &part, 1, flags, from, from_bytes);
}

EXPORT ssize_t rrecvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t got = recv_iov(fd, message->msg_iov, (int)message->msg_iovlen, flags, message->msg_name,
			       message->msg_name ? &message->msg_namelen : NULL);

	message->msg_controllen = 0;
	message->msg_flags = 0;
	return got;
}

EXPORT ssize_t rread(int fd, void *data, size_t bytes)
{
	return rrecv(fd, data, bytes, 0);
}

EXPORT ssize_t rreadv(int fd, const struct iovec *parts, int count)
{
	return recv_iov(fd, parts, count, 0, NULL, NULL);
}

EXPORT ssize_t rsend(int fd, const void *data, size_t bytes, int flags)
{
	struct iovec part = { (void *)(uintptr_t)data, bytes };

	return send_iov(fd, &part, 1, flags, NULL, 0);
}

EXPORT ssize_t rsendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *to, socklen_t to_bytes)
{
	struct iovec part = { (void *)(uintptr_t)data, bytes };

	return send_iov(fd, &part, 1, flags, to, to_bytes);
}

EXPORT ssize_t rsendmsg(int fd, const struct msghdr *message, int flags)
{
	return send_iov(fd, message->msg_iov, (int)message->msg_iovlen, flags, message->msg_name, message->msg_namelen);
}

EXPORT ssize_t rwrite(int fd, const void *data, size_t bytes)
{
	return rsend(fd, data, bytes, 0);
}

EXPORT ssize_t rwritev(int fd, const struct iovec *parts, int count)
{
	return send_iov(fd, parts, count, 0, NULL, 0);
}
