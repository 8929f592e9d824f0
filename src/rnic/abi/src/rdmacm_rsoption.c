/* rsockets' names, options and flags. */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>

#include "compiler.h"
#include "errors.h"

enum { MOST_MEMORY = 1 << 26, LEAST_MEMORY = 4096, LEAST_QUEUE = 16, MOST_QUEUE = 4096, MOST_IOMAPS = 4096 };
enum { SOL_RDMA = 0x10000, RDMA_SQSIZE = 0, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE };

EXPORT int rgetsockname(int fd, struct sockaddr *address, socklen_t *bytes)
{
	ENTER(fd);
	LEAVE(rs->ops->getsockname(rs, address, bytes));
}

EXPORT int rgetpeername(int fd, struct sockaddr *address, socklen_t *bytes)
{
	ENTER(fd);
	LEAVE(rs->ops->getpeername(rs, address, bytes));
}

static struct rs_option *find_option(struct rsocket *rs, int level, int name, bool make)
{
	for (unsigned i = 0; i < rs->option_count; i++)
		if (rs->options[i].level == level && rs->options[i].name == name)
			return &rs->options[i];
	if (!make || rs->option_count == RS_MAX_OPTIONS)
		return NULL;
	rs->options[rs->option_count] = (struct rs_option){ level, name, 0 };
	return &rs->options[rs->option_count++];
}

static int clamp_int(int value, int low, int high)
{
	return value < low ? low : value > high ? high : value;
}

/* Set a timeout as Linux does: zero, or more than an int holds, means forever; a negative one does not wait. */
static int set_timeout(int *ms, const void *value, socklen_t bytes)
{
	struct timeval time;

	if (bytes < sizeof time)
		return rdma_seterrno(EINVAL);
	memcpy(&time, value, sizeof time);
	if (time.tv_usec < 0 || time.tv_usec >= 1000000)
		return rdma_seterrno(EDOM);
	if (time.tv_sec < 0)
		*ms = 0;
	else if ((!time.tv_sec && !time.tv_usec) || time.tv_sec >= INT_MAX / 1000)
		*ms = -1;
	else
		*ms = (int)(time.tv_sec * 1000 + (time.tv_usec + 999) / 1000);
	return 0;
}

static int get_timeout(int ms, void *value, socklen_t *bytes)
{
	struct timeval time = { 0, 0 };

	if (ms > 0)
		time = (struct timeval){ ms / 1000, ms % 1000 * 1000 };
	if (*bytes > sizeof time)
		*bytes = sizeof time;
	memcpy(value, &time, *bytes);
	return 0;
}

/* Set a size, which applies to later connections. Returns false if the option is not a size. */
static bool set_size(struct rsocket *rs, int level, int name, int value)
{
	if (level == SOL_SOCKET && name == SO_SNDBUF)
		rs->sbuf_bytes = (uint32_t)clamp_int(value, LEAST_MEMORY, MOST_MEMORY);
	else if (level == SOL_SOCKET && name == SO_RCVBUF)
		rs->rbuf_bytes = (uint32_t)clamp_int(value, LEAST_MEMORY, MOST_MEMORY) & ~1u;
	else if (level == SOL_RDMA && name == RDMA_SQSIZE)
		rs->sq_size = (uint16_t)clamp_int(value, LEAST_QUEUE, MOST_QUEUE);
	else if (level == SOL_RDMA && name == RDMA_RQSIZE)
		rs->rq_size = (uint16_t)clamp_int(value, LEAST_QUEUE, MOST_QUEUE);
	else if (level == SOL_RDMA && name == RDMA_INLINE)
		rs->inline_bytes = (uint16_t)clamp_int(value, 0, RS_INLINE);
	else if (level == SOL_RDMA && name == RDMA_IOMAPSIZE)
		rs->iomap_size = (uint16_t)clamp_int(value, 0, MOST_IOMAPS);
	else
		return false;
	return true;
}

static int set_option(struct rsocket *rs, int level, int name, const void *value, socklen_t bytes)
{
	struct rs_option *kept;
	int number = 0;

	if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO))
		return set_timeout(name == SO_RCVTIMEO ? &rs->recv_timeout_ms : &rs->send_timeout_ms, value, bytes);
	if (level == SOL_RDMA && name == RDMA_ROUTE)
		return 0; /* there is one route */
	memcpy(&number, value, bytes < sizeof number ? bytes : sizeof number);
	if (set_size(rs, level, name, number)) {
		if (rs->state == RS_INIT || rs->state == RS_BOUND || rs->state == RS_LISTENING)
			return 0;
		return level == SOL_SOCKET ? 0 : rdma_seterrno(EINVAL);
	}
	if (level == SOL_SOCKET && name == SO_REUSEADDR && rs->id)
		rdma_set_option(rs->id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, sizeof number);
	if (level != SOL_SOCKET && level != IPPROTO_TCP && level != IPPROTO_IPV6 && level != IPPROTO_IP)
		return rdma_seterrno(ENOPROTOOPT);
	kept = find_option(rs, level, name, true);
	if (!kept)
		return rdma_seterrno(ENOMEM);
	kept->value = number;
	return 0;
}

EXPORT int rsetsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
	ENTER(fd);
	LEAVE(set_option(rs, level, name, value, bytes));
}

static int get_number(struct rsocket *rs, int level, int name, int *number)
{
	struct rs_option *kept = find_option(rs, level, name, false);

	*number = kept ? kept->value : 0;
	if (level == SOL_RDMA) {
		*number = name == RDMA_SQSIZE	 ? rs->sq_size :
			  name == RDMA_RQSIZE	 ? rs->rq_size :
			  name == RDMA_INLINE	 ? rs->inline_bytes :
			  name == RDMA_IOMAPSIZE ? rs->iomap_size :
						   -1;
		return *number < 0 ? ENOPROTOOPT : 0;
	}
	if (level != SOL_SOCKET)
		return kept || level == IPPROTO_TCP || level == IPPROTO_IP || level == IPPROTO_IPV6 ? 0 : ENOPROTOOPT;
	switch (name) {
	case SO_ERROR:
		rs->ops->progress(rs);
		*number = rs->error;
		rs->error = 0;
		break;
	case SO_TYPE:
		*number = rs->ops->type;
		break;
	case SO_DOMAIN:
		*number = rs->family;
		break;
	case SO_PROTOCOL:
		*number = rs->ops->type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
		break;
	case SO_ACCEPTCONN:
		*number = rs->state == RS_LISTENING;
		break;
	case SO_SNDBUF:
		*number = (int)rs->sbuf_bytes;
		break;
	case SO_RCVBUF:
		*number = (int)rs->rbuf_bytes;
		break;
	default:
		break;
	}
	return 0;
}

static int get_option(struct rsocket *rs, int level, int name, void *value, socklen_t *bytes)
{
	int number, error;

	if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO))
		return get_timeout(name == SO_RCVTIMEO ? rs->recv_timeout_ms : rs->send_timeout_ms, value, bytes);
	error = get_number(rs, level, name, &number);
	if (error)
		return rdma_seterrno(error);
	if (*bytes > sizeof number)
		*bytes = sizeof number;
	memcpy(value, &number, *bytes);
	return 0;
}

EXPORT int rgetsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
	ENTER(fd);
	LEAVE(get_option(rs, level, name, value, bytes));
}

EXPORT int rfcntl(int fd, int command, ...)
{
	va_list arguments;
	long value;

	va_start(arguments, command);
	value = va_arg(arguments, long);
	va_end(arguments);
	ENTER(fd);
	switch (command) {
	case F_GETFL:
		LEAVE(O_RDWR | rs->flags);
	case F_SETFL:
		rs->flags = (int)value & O_NONBLOCK;
		LEAVE(0);
	case F_GETFD:
	case F_SETFD:
		LEAVE(fcntl(fd, command, value));
	default:
		LEAVE(rdma_seterrno(EINVAL));
	}
}
