/* The calls of rsockets: numbers, waiting, data; what goes over the wire is rdmacm_stream.c's and rdmacm_dgram.c's. */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { SOCKETS = 1 << 16 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rsocket *sockets[SOCKETS];

/* ---- numbers */

static void child_after_fork(void)
{
	pthread_mutex_init(&table_lock, NULL);
	memset(sockets, 0, sizeof sockets); /* the parent's: their queue pairs are not the child's */
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, child_after_fork);
}

struct rsocket *rs_get(int fd)
{
	struct rsocket *rs = NULL;

	pthread_mutex_lock(&table_lock);
	if (fd >= 0 && fd < SOCKETS)
		rs = sockets[fd];
	if (rs)
		rs->users++;
	pthread_mutex_unlock(&table_lock);
	if (!rs)
		errno = EBADF;
	return rs;
}

int rs_insert(struct rsocket *rs)
{
	if (rs->fd >= SOCKETS)
		return EMFILE;
	pthread_mutex_lock(&table_lock);
	sockets[rs->fd] = rs;
	pthread_mutex_unlock(&table_lock);
	return 0;
}

static void release(struct rsocket *rs)
{
	if (rs->id && rs->id->qp)
		rdma_destroy_qp(rs->id);
	if (rs->type == SOCK_STREAM)
		stream_free(rs);
	else
		dgram_free(rs);
	if (rs->cq)
		ibv_destroy_cq(rs->cq);
	if (rs->channel)
		ibv_destroy_comp_channel(rs->channel);
	if (rs->id)
		rdma_destroy_id(rs->id);
	if (rs->events)
		rdma_destroy_event_channel(rs->events);
	if (rs->fd >= 0)
		close(rs->fd);
	pthread_mutex_destroy(&rs->lock);
	pthread_cond_destroy(&rs->changed);
	free(rs);
}

void rs_put(struct rsocket *rs)
{
	bool last;

	pthread_mutex_lock(&table_lock);
	last = --rs->users == 0;
	pthread_mutex_unlock(&table_lock);
	if (last)
		release(rs);
}

int rs_watch(struct rsocket *rs, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(rs->fd, EPOLL_CTL_ADD, fd, &event) ? errno : 0;
}

struct rsocket *rs_new(int type, int family, const struct rsocket *like)
{
	struct rsocket *rs = calloc(1, sizeof *rs);
	pthread_condattr_t attr;

	if (!rs)
		return NULL;
	rs->type = type;
	rs->family = family;
	rs->users = 1;
	rs->send_bytes = like ? like->send_bytes : RS_MEMORY;
	rs->recv_bytes = like ? like->recv_bytes : RS_MEMORY;
	rs->sq_size = like ? like->sq_size : RS_QUEUE;
	rs->rq_size = like ? like->rq_size : RS_QUEUE;
	rs->inline_bytes = like ? like->inline_bytes : RS_INLINE;
	rs->iomap_size = like ? like->iomap_size : 0;
	rs->receive_ms = rs->send_ms = -1;
	pthread_mutex_init(&rs->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&rs->changed, &attr);
	pthread_condattr_destroy(&attr);
	rs->fd = epoll_create1(EPOLL_CLOEXEC);
	if (rs->fd >= 0)
		rs->events = rdma_create_event_channel();
	if (rs->events && !rs_watch(rs, rs->events->fd))
		return rs;
	rs_put(rs);
	return NULL;
}

int rs_make_cq(struct rsocket *rs, struct ibv_context *verbs, int entries)
{
	rs->channel = ibv_create_comp_channel(verbs);
	if (!rs->channel)
		return errno;
	fcntl(rs->channel->fd, F_SETFL, fcntl(rs->channel->fd, F_GETFL) | O_NONBLOCK);
	rs->cq = ibv_create_cq(verbs, entries, rs, rs->channel, 0);
	return rs->cq ? rs_watch(rs, rs->channel->fd) : errno;
}

size_t rs_bytes(const struct iovec *parts, int count)
{
	size_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += parts[i].iov_len;
	return bytes;
}

/* ---- waiting */

bool rs_readable_fd(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	return poll(&one, 1, 0) > 0;
}

void rs_progress(struct rsocket *rs)
{
	if (rs->type == SOCK_STREAM)
		stream_progress(rs);
	else
		dgram_progress(rs);
}

/* Takes completion events, so that the descriptor tells of new ones alone, and asks for the next. */
void rs_arm(struct rsocket *rs)
{
	struct ibv_cq *cq;
	void *context;

	if (!rs->channel)
		return;
	while (!ibv_get_cq_event(rs->channel, &cq, &context))
		ibv_ack_cq_events(cq, 1);
	rs->cq->context->ops.req_notify_cq(rs->cq, 0);
}

int64_t rs_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

int rs_sleep_length(int64_t end)
{
	int64_t left = end - rs_now_ms();

	return end < 0 ? -1 : left < 0 ? 0 : left > 1 << 30 ? 1 << 30 : (int)left;
}

/* One thread sleeps on the descriptor; the others wait for what it tells. A thread in rpoll may take what it would tell, and
 * then nothing does: so not for ever. */
static int sleep_once(struct rsocket *rs, bool (*test)(struct rsocket *), int64_t end)
{
	struct pollfd one = { .fd = rs->fd, .events = POLLIN };
	int result = 0, left = rs_sleep_length(end), error;

	if (rs->polling) {
		struct timespec until;
		int64_t ms = rs_now_ms() + RS_LOOK_MS;

		until = (struct timespec){ ms / 1000, ms % 1000 * 1000000 };
		pthread_cond_timedwait(&rs->changed, &rs->lock, &until);
		return 0;
	}
	rs->polling = true;
	rs_arm(rs);
	rs_progress(rs);
	if (!test(rs)) {
		pthread_mutex_unlock(&rs->lock);
		result = poll(&one, 1, left < 0 || left > RS_LOOK_MS ? RS_LOOK_MS : left);
		error = errno;
		pthread_mutex_lock(&rs->lock);
		errno = error;
	}
	rs->polling = false;
	error = errno;
	rs_progress(rs);
	pthread_cond_broadcast(&rs->changed);
	errno = error;
	return result < 0 ? -1 : 0;
}

/* Until test holds. -1 with errno: EAGAIN where it may not wait, or not so long; EINTR. */
int rs_wait(struct rsocket *rs, bool (*test)(struct rsocket *), int flags, int timeout_ms)
{
	bool always = flags & RS_WAIT_ALWAYS;
	int64_t end = timeout_ms < 0 ? -1 : rs_now_ms() + timeout_ms;

	if (test(rs))
		return 0;
	rs_progress(rs);
	if (test(rs))
		return 0;
	if (!always && (rs->flags & O_NONBLOCK || flags & MSG_DONTWAIT))
		return minus(EAGAIN);
	for (int i = 0; i < RS_YIELDS; i++) {
		pthread_mutex_unlock(&rs->lock);
		sched_yield();
		pthread_mutex_lock(&rs->lock);
		rs_progress(rs);
		if (test(rs))
			return 0;
	}
	while (!test(rs)) {
		if (end >= 0 && rs_now_ms() >= end)
			return minus(EAGAIN);
		if (sleep_once(rs, test, end) && (errno != EINTR || !always))
			return -1;
	}
	return 0;
}

/* ---- sockets */

EXPORT int rsocket(int family, int type, int protocol UNUSED)
{
	struct rsocket *rs;
	int error = 0, kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (family != AF_INET && family != AF_INET6)
		return minus(EAFNOSUPPORT);
	if (kind != SOCK_STREAM && kind != SOCK_DGRAM)
		return minus(EPROTONOSUPPORT);
	rs = rs_new(kind, family, NULL);
	if (!rs)
		return -1;
	rs->flags = type & SOCK_NONBLOCK ? O_NONBLOCK : 0;
	if (kind == SOCK_DGRAM)
		error = dgram_make(rs);
	else if (rdma_create_id(rs->events, &rs->id, rs, RDMA_PS_TCP))
		error = errno;
	if (!error)
		error = rs_insert(rs);
	if (!error)
		return rs->fd;
	rs_put(rs);
	return minus(error);
}

static int bind_stream(struct rsocket *rs, const struct sockaddr *address)
{
	struct sockaddr_storage copy = { 0 };

	if (rs->state != RS_FRESH || !cm_address_bytes(address))
		return minus(EINVAL);
	memcpy(&copy, address, cm_address_bytes(address));
	if (rdma_bind_addr(rs->id, (struct sockaddr *)&copy))
		return -1;
	rs->state = RS_BOUND;
	return 0;
}

EXPORT int rbind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	ENTER(fd);
	LEAVE(rs->type == SOCK_STREAM ? bind_stream(rs, address) : dgram_bind(rs, address, bytes));
}

static int listen_stream(struct rsocket *rs, int backlog)
{
	if (rs->type != SOCK_STREAM)
		return minus(EOPNOTSUPP);
	if (rs->state == RS_LISTENING)
		return 0;
	if (rs->state != RS_BOUND && rs->state != RS_FRESH)
		return minus(EINVAL);
	if (rdma_listen(rs->id, backlog))
		return -1;
	rs->state = RS_LISTENING;
	return 0;
}

EXPORT int rlisten(int fd, int backlog)
{
	ENTER(fd);
	LEAVE(listen_stream(rs, backlog));
}

void rs_give_name(const struct sockaddr_storage *name, struct sockaddr *address, socklen_t *bytes)
{
	socklen_t whole = cm_address_bytes((const struct sockaddr *)name);

	if (!address || !bytes)
		return;
	memcpy(address, name, *bytes < whole ? *bytes : whole);
	*bytes = whole;
}

static bool somebody_came(struct rsocket *rs)
{
	return rs->state != RS_LISTENING || rs_readable_fd(rs->events->fd);
}

static int accept_one(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	struct rsocket *made;

	if (rs->state != RS_LISTENING)
		return minus(EINVAL);
	do {
		if (rs_wait(rs, somebody_came, 0, rs->receive_ms))
			return -1;
		made = stream_accept(rs);
	} while (!made && errno == EAGAIN);
	if (!made)
		return -1;
	if (rs_insert(made)) {
		rs_put(made);
		return minus(EMFILE);
	}
	rs_give_name(&made->id->route.addr.dst_storage, address, bytes);
	return made->fd;
}

EXPORT int raccept(int fd, struct sockaddr *address, socklen_t *bytes)
{
	ENTER(fd);
	LEAVE(accept_one(rs, address, bytes));
}

static bool not_connecting(struct rsocket *rs)
{
	return rs->state != RS_CONNECTING;
}

static int connect_stream(struct rsocket *rs, const struct sockaddr *address)
{
	int error;

	switch (rs->state) {
	case RS_OPEN:
		return minus(EISCONN);
	case RS_CONNECTING:
		rs_progress(rs);
		if (rs->state == RS_CONNECTING && rs->flags & O_NONBLOCK)
			return minus(EALREADY);
		break;
	case RS_FRESH:
	case RS_BOUND:
		if (!cm_address_bytes(address))
			return minus(EINVAL);
		error = stream_connect(rs, address);
		if (error) {
			rs->state = RS_FAILED;
			rs->error = error;
			return minus(error);
		}
		if (rs->flags & O_NONBLOCK)
			return minus(EINPROGRESS);
		break;
	default:
		return minus(rs->error ? rs->error : EINVAL);
	}
	if (rs_wait(rs, not_connecting, RS_WAIT_ALWAYS, rs->send_ms))
		return minus(ETIMEDOUT);
	return rs->state == RS_OPEN || rs->state == RS_ENDED ? 0 : minus(rs->error);
}

EXPORT int rconnect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	ENTER(fd);
	LEAVE(rs->type == SOCK_STREAM ? connect_stream(rs, address) : dgram_connect(rs, address, bytes));
}

EXPORT int rshutdown(int fd, int how)
{
	ENTER(fd);
	LEAVE(rs->type == SOCK_STREAM ? stream_shutdown(rs, how) : 0);
}

EXPORT int rclose(int fd)
{
	struct rsocket *rs = rs_get(fd);

	if (!rs)
		return -1;
	pthread_mutex_lock(&rs->lock);
	if (rs->type == SOCK_STREAM && (rs->state == RS_OPEN || rs->state == RS_CONNECTING))
		stream_shutdown(rs, SHUT_RDWR);
	rs->state = rs->state == RS_FAILED ? RS_FAILED : RS_ENDED;
	rs->can_read = rs->can_write = false;
	pthread_cond_broadcast(&rs->changed);
	pthread_mutex_unlock(&rs->lock);
	pthread_mutex_lock(&table_lock);
	if (sockets[fd] == rs) {
		sockets[fd] = NULL;
		rs->users--; /* the table's; the caller's goes below */
	}
	pthread_mutex_unlock(&table_lock);
	rs_put(rs);
	return 0;
}

/* ---- data */

static ssize_t receive(int fd, const struct iovec *parts, int count, int flags, struct sockaddr *from, socklen_t *bytes)
{
	ssize_t got;

	ENTER(fd);
	if (rs->type == SOCK_DGRAM)
		LEAVE(dgram_recv(rs, parts, count, flags, from, bytes));
	if (rs->state == RS_FRESH || rs->state == RS_BOUND || rs->state == RS_LISTENING)
		LEAVE((ssize_t)minus(ENOTCONN));
	got = stream_recv(rs, parts, count, flags);
	if (got >= 0)
		rs_give_name(&rs->id->route.addr.dst_storage, from, bytes);
	LEAVE(got);
}

static ssize_t transmit(int fd, const struct iovec *parts, int count, int flags, const struct sockaddr *to, socklen_t bytes)
{
	ENTER(fd);
	LEAVE(rs->type == SOCK_DGRAM ? dgram_send(rs, parts, count, flags, to, bytes) :
				       stream_send(rs, parts, count, flags));
}

EXPORT ssize_t rrecv(int fd, void *data, size_t bytes, int flags)
{
	struct iovec part = { data, bytes };

	return receive(fd, &part, 1, flags, NULL, NULL);
}

EXPORT ssize_t rrecvfrom(int fd, void *data, size_t bytes, int flags, struct sockaddr *from, socklen_t *from_bytes)
{
	struct iovec part = { data, bytes };

	return receive(fd, &part, 1, flags, from, from_bytes);
}

EXPORT ssize_t rrecvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t got = receive(fd, message->msg_iov, (int)message->msg_iovlen, flags, message->msg_name,
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
	return receive(fd, parts, count, 0, NULL, NULL);
}

EXPORT ssize_t rsend(int fd, const void *data, size_t bytes, int flags)
{
	struct iovec part = { (void *)(uintptr_t)data, bytes };

	return transmit(fd, &part, 1, flags, NULL, 0);
}

EXPORT ssize_t rsendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *to, socklen_t to_bytes)
{
	struct iovec part = { (void *)(uintptr_t)data, bytes };

	return transmit(fd, &part, 1, flags, to, to_bytes);
}

EXPORT ssize_t rsendmsg(int fd, const struct msghdr *message, int flags)
{
	return transmit(fd, message->msg_iov, (int)message->msg_iovlen, flags, message->msg_name, message->msg_namelen);
}

EXPORT ssize_t rwrite(int fd, const void *data, size_t bytes)
{
	return rsend(fd, data, bytes, 0);
}

EXPORT ssize_t rwritev(int fd, const struct iovec *parts, int count)
{
	return transmit(fd, parts, count, 0, NULL, 0);
}

EXPORT off_t riomap(int fd, void *data, size_t bytes, int protection, int flags UNUSED, off_t offset)
{
	ENTER(fd);
	LEAVE(rs->type == SOCK_STREAM ? stream_map(rs, data, bytes, protection, offset) : (off_t)minus(EOPNOTSUPP));
}

EXPORT int riounmap(int fd, void *data, size_t bytes)
{
	ENTER(fd);
	LEAVE(rs->type == SOCK_STREAM ? stream_unmap(rs, data, bytes) : minus(EOPNOTSUPP));
}

static size_t write_at(struct rsocket *rs, const void *data, size_t bytes, off_t offset, int flags)
{
	return rs->type == SOCK_STREAM ? stream_write_at(rs, data, bytes, offset, flags) : (size_t)minus(EOPNOTSUPP);
}

EXPORT size_t riowrite(int fd, const void *data, size_t bytes, off_t offset, int flags)
{
	ENTER(fd);
	LEAVE(write_at(rs, data, bytes, offset, flags));
}
