/* Parts that all rsockets share: their table, references to them, and waiting. */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "errors.h"
#include "rdmacm_address.h"

enum { SOCKETS = 1 << 16 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rsocket *sockets[SOCKETS];

static void child_after_fork(void)
{
	pthread_mutex_init(&table_lock, NULL);
	memset(sockets, 0, sizeof sockets); /* their queue pairs are the parent's */
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, child_after_fork);
}

/* ---- the table */

struct rsocket *rs_get(int fd)
{
	struct rsocket *rs = NULL;

	pthread_mutex_lock(&table_lock);
	if (fd >= 0 && fd < SOCKETS)
		rs = sockets[fd];
	if (rs)
		rs->refcnt++;
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

/* Remove an rsocket from the table, which gives up its reference. */
void rs_remove(struct rsocket *rs, int fd)
{
	pthread_mutex_lock(&table_lock);
	if (sockets[fd] == rs) {
		sockets[fd] = NULL;
		rs->refcnt--;
	}
	pthread_mutex_unlock(&table_lock);
}

/* ---- making and freeing */

static void rs_free(struct rsocket *rs)
{
	if (rs->id && rs->id->qp)
		rdma_destroy_qp(rs->id);
	rs->ops->free(rs);
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
	last = --rs->refcnt == 0;
	pthread_mutex_unlock(&table_lock);
	if (last)
		rs_free(rs);
}

int rs_epoll_add(struct rsocket *rs, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(rs->fd, EPOLL_CTL_ADD, fd, &event) ? errno : 0;
}

struct rsocket *rs_alloc(const struct rs_ops *ops, int family, const struct rsocket *inherit)
{
	struct rsocket *rs = calloc(1, sizeof *rs);
	pthread_condattr_t attr;

	if (!rs)
		return NULL;
	rs->ops = ops;
	rs->family = family;
	rs->refcnt = 1;
	rs->sbuf_bytes = inherit ? inherit->sbuf_bytes : RS_BUF_BYTES;
	rs->rbuf_bytes = inherit ? inherit->rbuf_bytes : RS_BUF_BYTES;
	rs->sq_size = inherit ? inherit->sq_size : RS_QP_SIZE;
	rs->rq_size = inherit ? inherit->rq_size : RS_QP_SIZE;
	rs->inline_bytes = inherit ? inherit->inline_bytes : RS_INLINE;
	rs->iomap_size = inherit ? inherit->iomap_size : 0;
	rs->recv_timeout_ms = rs->send_timeout_ms = -1;
	pthread_mutex_init(&rs->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&rs->changed, &attr);
	pthread_condattr_destroy(&attr);
	rs->fd = epoll_create1(EPOLL_CLOEXEC);
	if (rs->fd >= 0)
		rs->events = rdma_create_event_channel();
	if (rs->events && !rs_epoll_add(rs, rs->events->fd))
		return rs;
	rs_put(rs);
	return NULL;
}

int rs_create_cq(struct rsocket *rs, struct ibv_context *verbs, int entries)
{
	rs->channel = ibv_create_comp_channel(verbs);
	if (!rs->channel)
		return errno;
	fcntl(rs->channel->fd, F_SETFL, fcntl(rs->channel->fd, F_GETFL) | O_NONBLOCK);
	rs->cq = ibv_create_cq(verbs, entries, rs, rs->channel, 0);
	return rs->cq ? rs_epoll_add(rs, rs->channel->fd) : errno;
}

/* ---- data */

size_t rs_iov_bytes(const struct iovec *parts, int count)
{
	size_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += parts[i].iov_len;
	return bytes;
}

/* Copy `bytes` between a buffer and the parts, from `skip` bytes into them on. */
static void copy_iov(const struct iovec *parts, size_t skip, uint8_t *buffer, size_t bytes, bool to_parts)
{
	for (; bytes; parts++) {
		size_t here = parts->iov_len > skip ? parts->iov_len - skip : 0;
		uint8_t *at = (uint8_t *)parts->iov_base + skip;

		if (here > bytes)
			here = bytes;
		if (here)
			memcpy(to_parts ? at : buffer, to_parts ? buffer : at, here);
		skip = skip > parts->iov_len ? skip - parts->iov_len : 0;
		buffer += here;
		bytes -= here;
	}
}

void rs_copy_from_iov(void *to, const struct iovec *parts, size_t skip, size_t bytes)
{
	copy_iov(parts, skip, to, bytes, false);
}

void rs_copy_to_iov(const struct iovec *parts, size_t skip, const void *from, size_t bytes)
{
	copy_iov(parts, skip, (void *)(uintptr_t)from, bytes, true);
}

void rs_copy_address(const struct sockaddr_storage *name, struct sockaddr *address, socklen_t *bytes)
{
	socklen_t whole = cm_addrlen((const struct sockaddr *)name);

	if (!address || !bytes)
		return;
	memcpy(address, name, *bytes < whole ? *bytes : whole);
	*bytes = whole;
}

/* ---- waiting */

bool fd_is_readable(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	return poll(&one, 1, 0) > 0;
}

/* Take completion events, so that the descriptor signals only new ones, and arm the CQ. */
void rs_arm_cq(struct rsocket *rs)
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

int rs_ms_left(int64_t end)
{
	int64_t left = end - rs_now_ms();

	return end < 0 ? -1 : left < 0 ? 0 : left > 1 << 30 ? 1 << 30 : (int)left;
}

/* Sleep on the descriptor if no other thread does, else wait for that thread. A thread in rpoll may take the event:
 * so neither sleeps for longer than RS_POLL_MS. */
static int wait_once(struct rsocket *rs, bool (*test)(struct rsocket *), int64_t end)
{
	struct pollfd one = { .fd = rs->fd, .events = POLLIN };
	int result = 0, left = rs_ms_left(end), error;

	if (rs->polling) {
		struct timespec until;
		int64_t ms = rs_now_ms() + RS_POLL_MS;

		until = (struct timespec){ ms / 1000, ms % 1000 * 1000000 };
		pthread_cond_timedwait(&rs->changed, &rs->lock, &until);
		return 0;
	}
	rs->polling = true;
	rs_arm_cq(rs);
	rs->ops->progress(rs);
	if (!test(rs)) {
		pthread_mutex_unlock(&rs->lock);
		result = poll(&one, 1, left < 0 || left > RS_POLL_MS ? RS_POLL_MS : left);
		error = errno;
		pthread_mutex_lock(&rs->lock);
		errno = error;
	}
	rs->polling = false;
	error = errno;
	rs->ops->progress(rs);
	pthread_cond_broadcast(&rs->changed);
	errno = error;
	return result < 0 ? -1 : 0;
}

/* Wait until `test` returns true. Returns -1 with errno EAGAIN if it may not wait or times out, or EINTR. */
int rs_wait(struct rsocket *rs, bool (*test)(struct rsocket *), int flags, int timeout_ms)
{
	bool always = flags & RS_WAIT_ALWAYS;
	int64_t end = timeout_ms < 0 ? -1 : rs_now_ms() + timeout_ms;

	if (test(rs))
		return 0;
	rs->ops->progress(rs);
	if (test(rs))
		return 0;
	if (!always && (rs->flags & O_NONBLOCK || flags & MSG_DONTWAIT))
		return rdma_seterrno(EAGAIN);
	for (int i = 0; i < RS_YIELDS; i++) {
		pthread_mutex_unlock(&rs->lock);
		sched_yield();
		pthread_mutex_lock(&rs->lock);
		rs->ops->progress(rs);
		if (test(rs))
			return 0;
	}
	while (!test(rs)) {
		if (end >= 0 && rs_now_ms() >= end)
			return rdma_seterrno(EAGAIN);
		if (wait_once(rs, test, end) && (errno != EINTR || !always))
			return -1;
	}
	return 0;
}
