/* rpoll and rselect: a mix of rsockets and kernel descriptors. */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/select.h>

#include "compiler.h"
#include "errors.h"

static short poll_one(struct rsocket *rs, short events)
{
	short found;

	pthread_mutex_lock(&rs->lock);
	found = rs->ops->ready(rs, events);
	pthread_mutex_unlock(&rs->lock);
	return found;
}

/* Poll the rsockets among the descriptors. Sets `*mixed` if there are others. */
static int poll_rsockets(struct pollfd *fds, nfds_t count, bool arms, bool *mixed)
{
	int found = 0;

	*mixed = false;
	for (nfds_t i = 0; i < count; i++) {
		struct rsocket *rs = fds[i].fd < 0 ? NULL : rs_get(fds[i].fd);

		fds[i].revents = 0;
		if (!rs) {
			*mixed |= fds[i].fd >= 0;
			continue;
		}
		if (arms) {
			pthread_mutex_lock(&rs->lock);
			rs_arm_cq(rs);
			pthread_mutex_unlock(&rs->lock);
		}
		fds[i].revents = poll_one(rs, fds[i].events);
		found += fds[i].revents != 0;
		rs_put(rs);
	}
	return found;
}

/* Wait on kernel descriptors: those of rsockets, which only signal that something happened, and others. */
static int poll_system(struct pollfd *fds, struct pollfd *copy, nfds_t count, int timeout)
{
	int found = 0, result;

	for (nfds_t i = 0; i < count; i++) {
		struct rsocket *rs = fds[i].fd < 0 ? NULL : rs_get(fds[i].fd);

		copy[i] = (struct pollfd){ .fd = fds[i].fd, .events = rs ? POLLIN : fds[i].events };
		if (rs)
			rs_put(rs);
	}
	result = poll(copy, count, timeout);
	if (result < 0)
		return -1;
	for (nfds_t i = 0; i < count; i++) {
		struct rsocket *rs = fds[i].fd < 0 ? NULL : rs_get(fds[i].fd);

		if (rs) {
			rs_put(rs);
			continue;
		}
		fds[i].revents = copy[i].revents;
		found += copy[i].revents != 0;
	}
	return found;
}

EXPORT int rpoll(struct pollfd *fds, nfds_t count, int timeout)
{
	int64_t end = timeout < 0 ? -1 : rs_now_ms() + timeout;
	int yields = timeout ? RS_YIELDS : 0, found, others, left;
	struct pollfd few[16], *copy = few;
	bool mixed;

	if (count > COUNT(few))
		copy = malloc(count * sizeof *copy);
	if (!copy)
		return rdma_seterrno(ENOMEM);
	for (;; yields--) {
		found = poll_rsockets(fds, count, yields <= 0, &mixed);
		others = mixed ? poll_system(fds, copy, count, 0) : 0;
		left = rs_ms_left(end);
		if (found || others || !left)
			break;
		if (yields > 0)
			sched_yield();
		else if (yields < 0) { /* armed; another thread may take the event, so wait no longer than RS_POLL_MS */
			others = poll_system(fds, copy, count, left < 0 || left > RS_POLL_MS ? RS_POLL_MS : left);
			if (others < 0)
				break;
		}
	}
	if (copy != few)
		free(copy);
	return others < 0 ? -1 : found + others;
}

static void set_to_pollfds(struct pollfd *fds, int *count, fd_set *set, int highest, short event)
{
	for (int fd = 0; set && fd < highest; fd++) {
		int i = 0;

		if (!FD_ISSET(fd, set))
			continue;
		while (i < *count && fds[i].fd != fd)
			i++;
		if (i == *count)
			fds[(*count)++] = (struct pollfd){ .fd = fd };
		fds[i].events |= event;
	}
}

static int pollfds_to_set(const struct pollfd *fds, int count, fd_set *set, short wanted, short events)
{
	int found = 0;

	if (!set)
		return 0;
	FD_ZERO(set);
	for (int i = 0; i < count; i++) {
		if (!(fds[i].events & wanted) || !(fds[i].revents & events))
			continue;
		FD_SET(fds[i].fd, set);
		found++;
	}
	return found;
}

EXPORT int rselect(int highest, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
{
	struct pollfd fds[FD_SETSIZE];
	int count = 0, found;
	int ms = timeout ? (int)(timeout->tv_sec * 1000 + (timeout->tv_usec + 999) / 1000) : -1;

	if (highest < 0 || highest > FD_SETSIZE)
		return rdma_seterrno(EINVAL);
	set_to_pollfds(fds, &count, readable, highest, POLLIN);
	set_to_pollfds(fds, &count, writable, highest, POLLOUT);
	set_to_pollfds(fds, &count, exceptional, highest, POLLPRI);
	found = rpoll(fds, (nfds_t)count, ms);
	if (found < 0)
		return -1;
	found = pollfds_to_set(fds, count, readable, POLLIN, POLLIN | POLLHUP | POLLERR);
	found += pollfds_to_set(fds, count, writable, POLLOUT, POLLOUT | POLLERR);
	return found + pollfds_to_set(fds, count, exceptional, POLLPRI, POLLPRI);
}
