/*
 * rsockets: sockets over queue pairs, by the protocol that rdma-core documents (librdmacm/docs/rsocket).
 *
 * An rsocket's number is an epoll descriptor over its event channel and its completion channel. So ppoll(2) on the number is right except for short delays, and rpoll(3) is exact.
 */
#ifndef RNIC_RDMACM_RS_H
#define RNIC_RDMACM_RS_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "rdmacm_abi.h"

enum rs_state {
	RS_INIT,
	RS_BOUND,
	RS_LISTENING,
	RS_CONNECTING, /* either side, until it is established */
	RS_CONNECTED,
	RS_DISCONNECTED, /* both sides have sent all */
	RS_ERROR, /* error says why */
};

enum { RS_QP_SIZE = 384, RS_BUF_BYTES = 1 << 17, RS_INLINE = 64, RS_MAX_OPTIONS = 32 };
enum { RS_YIELDS = 64, RS_POLL_MS = 100 };
enum { RS_WAIT_ALWAYS = 1 << 30 }; /* in addition to MSG_* flags: regardless of O_NONBLOCK */

struct rs_sge { /* as both ends write it into each other's memory */
	uint64_t addr;
	uint32_t key, length;
};

struct rs_option { /* one that is kept to be read back */
	int level, name, value;
};

struct rsocket;
struct rs_iomap_mr;
struct ds_socket;

struct rs_ops { /* operations that differ between streams and datagrams */
	int type; /* SOCK_STREAM or SOCK_DGRAM */
	int (*open)(struct rsocket *rs);
	int (*bind)(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes);
	int (*connect)(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes);
	int (*shutdown)(struct rsocket *rs, int how);
	ssize_t (*send)(struct rsocket *rs, const struct iovec *parts, int count, int flags, const struct sockaddr *to,
			socklen_t to_bytes);
	ssize_t (*recv)(struct rsocket *rs, const struct iovec *parts, int count, int flags, struct sockaddr *from,
			socklen_t *from_bytes);
	int (*getsockname)(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes);
	int (*getpeername)(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes);
	void (*progress)(struct rsocket *rs);
	short (*ready)(struct rsocket *rs, short events); /* of those that poll(2) knows */
	void (*free)(struct rsocket *rs);
};

struct rsocket {
	const struct rs_ops *ops;
	int fd, family, flags, error;
	unsigned refcnt; /* calls in progress, and one for the table */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool polling; /* one thread sleeps for all */
	enum rs_state state;
	bool can_read, can_write;
	struct rs_option options[RS_MAX_OPTIONS];
	unsigned option_count;
	uint32_t sbuf_bytes, rbuf_bytes;
	uint16_t sq_size, rq_size, inline_bytes, iomap_size;
	int recv_timeout_ms, send_timeout_ms; /* -1: forever */

	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;

	/* streams: what is sent */
	uint8_t *sbuf;
	struct ibv_mr *smr;
	uint32_t sbuf_head, sbuf_used;
	unsigned sends, controls; /* outstanding work requests */
	uint16_t sseq_no, sseq_comp; /* messages: sent so far, and the number to stop at */
	struct rs_sge *target_sgl; /* written by the peer; followed by the iomap */
	struct ibv_mr *target_mr;
	unsigned target_sge;
	bool swap_sgl;
	/* and what is received */
	uint8_t *rbuf;
	struct ibv_mr *rmr;
	uint32_t rbuf_at, rbuf_free_at, rbuf_free, rbuf_held; /* held: received, and not read */
	uint32_t *rmsg;
	unsigned rmsg_head, rmsg_tail;
	uint16_t rseq_no, rseq_comp;
	struct rs_sge remote_sgl, remote_iomap;
	unsigned remote_sge;
	struct rs_iomap_mr *iomap_mrs; /* remote_iomap.length of them */
	bool iomaps_pending;

	struct ds_socket *ds; /* of datagrams */
};

/* ---- the table, references */

struct rsocket *rs_get(int fd);
void rs_put(struct rsocket *rs);
int rs_insert(struct rsocket *rs);
void rs_remove(struct rsocket *rs, int fd);
struct rsocket *rs_alloc(const struct rs_ops *ops, int family, const struct rsocket *inherit);

/* ---- completions, waiting */

int rs_epoll_add(struct rsocket *rs, int fd);
int rs_create_cq(struct rsocket *rs, struct ibv_context *verbs, int entries);
void rs_arm_cq(struct rsocket *rs);
int rs_wait(struct rsocket *rs, bool (*test)(struct rsocket *), int flags, int timeout_ms);
bool fd_is_readable(int fd);
int64_t rs_now_ms(void);
int rs_ms_left(int64_t end);

/* ---- data, addresses */

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

size_t rs_iov_bytes(const struct iovec *parts, int count);
void rs_copy_from_iov(void *to, const struct iovec *parts, size_t skip, size_t bytes);
void rs_copy_to_iov(const struct iovec *parts, size_t skip, const void *from, size_t bytes);
void rs_copy_address(const struct sockaddr_storage *name, struct sockaddr *address, socklen_t *bytes);

/* Calls work on the rsocket of a number, under its lock. */
#define ENTER(fd) \
	struct rsocket *rs = rs_get(fd); \
	if (!rs) \
		return -1; \
	pthread_mutex_lock(&rs->lock)
#define LEAVE(value) \
	do { \
		__typeof__(value) result_ = (value); \
		int error_ = errno; \
		pthread_mutex_unlock(&rs->lock); \
		rs_put(rs); \
		errno = error_; \
		return result_; \
	} while (0)

#endif
