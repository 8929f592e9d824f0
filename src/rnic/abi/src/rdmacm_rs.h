/*
 * rsockets: sockets over queue pairs, by the protocol that rdma-core documents (librdmacm/docs/rsocket).
 *
 * An rsocket's number is the descriptor of an epoll that holds what wakes it: its event channel and its completion
 * channel. So ppoll(2) on the number itself is never wrong for long, and rpoll(3) is exact.
 */
#ifndef RNIC_RDMACM_RS_H
#define RNIC_RDMACM_RS_H

#include "rdmacm.h"

#include <sys/socket.h>
#include <sys/uio.h>

enum rs_state {
	RS_FRESH,
	RS_BOUND,
	RS_LISTENING,
	RS_CONNECTING, /* either side, until it is established */
	RS_OPEN,
	RS_ENDED, /* both sides have said all */
	RS_FAILED, /* error says why */
};

enum { RS_QUEUE = 384, RS_MEMORY = 1 << 17, RS_INLINE = 64, RS_TARGETS = 2, RS_CONTROLS = 4, RS_MOST_OPTIONS = 32 };

/* Three bits of immediate data say what a message is, the others are a value; a plain WRITE's is for its completion alone. */
enum { RS_OP_DATA = 0, RS_OP_WRITE = 2, RS_OP_TARGETS = 4, RS_OP_IOMAP = 6, RS_OP_CONTROL = 7 };
enum { RS_LONGEST_WRITE = 32768, RS_YIELDS = 64, RS_LOOK_MS = 100 };
enum { RS_WAIT_ALWAYS = 1 << 30 }; /* beside MSG_* flags: whatever O_NONBLOCK says */

struct rs_target { /* as both ends write it into each other's memory */
	uint64_t addr;
	uint32_t key, length;
};

struct rs_iomap {
	uint64_t offset;
	struct rs_target target;
};

struct rs_option { /* one that is kept for whoever asks */
	int level, name, value;
};

struct rs_mapped { /* memory that this side lets the peer write to */
	struct ibv_mr *mr;
	uint64_t offset;
	bool said;
};

struct rsocket {
	int fd, type, family, flags, error;
	unsigned users; /* calls under way, and one for the table */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool polling; /* one thread sleeps for all */
	enum rs_state state;
	bool can_read, can_write;
	struct rs_option options[RS_MOST_OPTIONS];
	unsigned option_count;
	uint32_t send_bytes, recv_bytes;
	uint16_t sq_size, rq_size, inline_bytes, iomap_size;
	int receive_ms, send_ms; /* -1: for ever */

	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;

	/* streams: what is sent */
	uint8_t *send_ring;
	struct ibv_mr *send_mr;
	uint32_t send_head, send_used;
	unsigned sends, controls; /* work requests under way */
	uint16_t sent, may_send; /* messages: so far, and until which number */
	struct rs_target *targets; /* the peer writes them; behind them the iomap */
	struct ibv_mr *target_mr;
	unsigned target;
	bool swap;
	/* and what is received */
	uint8_t *recv_ring;
	struct ibv_mr *recv_mr;
	uint32_t recv_at, recv_free_at, recv_free, recv_held; /* held: received, and not read */
	uint32_t *messages;
	unsigned message_head, message_tail;
	uint16_t taken, credits_due;
	struct rs_target remote_targets, remote_iomap;
	unsigned remote_target;
	struct rs_mapped *mapped; /* remote_iomap.length of them */
	bool unsaid;

	struct ds_socket *ds; /* of datagrams */
};

static inline uint32_t rs_least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* rdmacm_rsocket.c */
int rs_wait(struct rsocket *rs, bool (*test)(struct rsocket *), int flags, int timeout_ms);
struct rsocket *rs_new(int type, int family, const struct rsocket *like);
int rs_insert(struct rsocket *rs);
void rs_put(struct rsocket *rs);
int rs_watch(struct rsocket *rs, int fd);
int rs_make_cq(struct rsocket *rs, struct ibv_context *verbs, int entries);
bool rs_readable_fd(int fd);
size_t rs_bytes(const struct iovec *parts, int count);

void rs_progress(struct rsocket *rs);
void rs_arm(struct rsocket *rs);
int64_t rs_now_ms(void);
int rs_sleep_length(int64_t end);
void rs_give_name(const struct sockaddr_storage *name, struct sockaddr *address, socklen_t *bytes);
struct rsocket *rs_get(int fd);

/* Calls work on the rsocket of a number, under its lock. */
#define ENTER(fd)                         \
	struct rsocket *rs = rs_get(fd);     \
	if (!rs)                          \
		return -1;                \
	pthread_mutex_lock(&rs->lock)
#define LEAVE(value)                                            \
	do {                                                    \
		__typeof__(value) result_ = (value);            \
		int error_ = errno;                             \
		pthread_mutex_unlock(&rs->lock);                \
		rs_put(rs);                                     \
		errno = error_;                                 \
		return result_;                                 \
	} while (0)

/* rdmacm_stream.c */
int stream_connect(struct rsocket *rs, const struct sockaddr *address);
struct rsocket *stream_accept(struct rsocket *rs);
ssize_t stream_send(struct rsocket *rs, const struct iovec *parts, int count, int flags);
ssize_t stream_recv(struct rsocket *rs, const struct iovec *parts, int count, int flags);
int stream_post(struct rsocket *rs, uint32_t op, uint32_t value, const void *data, size_t bytes, uint32_t lkey,
		uint64_t address, uint32_t rkey);
struct rs_target stream_as_peer_has_it(const struct rsocket *rs, uint64_t addr, uint32_t key, uint32_t length);
uint32_t stream_room(struct rsocket *rs);
int stream_wait_to_send(struct rsocket *rs, int flags);

/* rdmacm_iomap.c */
int stream_say_mapped(struct rsocket *rs, int flags);
size_t stream_write_at(struct rsocket *rs, const void *data, size_t bytes, off_t offset, int flags);
off_t stream_map(struct rsocket *rs, void *data, size_t bytes, int protection, off_t offset);
int stream_unmap(struct rsocket *rs, const void *data, size_t bytes);

/* rdmacm_stream.c */
int stream_shutdown(struct rsocket *rs, int how);
void stream_progress(struct rsocket *rs);
short stream_ready(struct rsocket *rs, short events);
void stream_free(struct rsocket *rs);

/* rdmacm_dgram.c */
int dgram_make(struct rsocket *rs);
int dgram_bind(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes);
int dgram_connect(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes);
ssize_t dgram_send(struct rsocket *rs, const struct iovec *parts, int count, int flags, const struct sockaddr *to,
		   socklen_t to_bytes);
ssize_t dgram_recv(struct rsocket *rs, const struct iovec *parts, int count, int flags, struct sockaddr *from,
		   socklen_t *from_bytes);
void dgram_progress(struct rsocket *rs);
short dgram_ready(struct rsocket *rs, short events);
int dgram_name(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes);
int dgram_peer(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes);
void dgram_free(struct rsocket *rs);
void rs_copy_out(void *to, const struct iovec *parts, size_t skip, size_t bytes);
void rs_copy_in(const struct iovec *parts, size_t skip, const void *from, size_t bytes);

#endif
