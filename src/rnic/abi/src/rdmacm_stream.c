/*
 * Stream rsockets. Each side lends the other a receive buffer in two halves: who sends writes into the half that it
 * knows of, with the length as immediate data, and learns of the next half, and of how many messages it may send, by a
 * WRITE into its array of targets. Immediate data: three bits of what it is, 29 of a value.
 */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <endian.h>
#include <poll.h>

enum { CONTROL_DISCONNECT, CONTROL_KEEPALIVE, CONTROL_SHUTDOWN };
enum { VALUE_BITS = 29, VALUE_MASK = (1 << VALUE_BITS) - 1 };
enum { VERSION = 1, BIG_ENDIAN_PEER = 1, HAS_IOMAP = 2 };
enum { POLLED = 16, CLOSE_MS = 10000, IOMAP_LINEAR = 128, IOMAP_SHIFT = 8 };
#define IS_RECV (1ull << 63)

struct hello { /* private data of the request and of its answer; big-endian */
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], iomap_size;
	struct rs_target targets, buffer;
};
_Static_assert(sizeof(struct hello) == 40, "as others have it");

static bool big_endian(void)
{
	return htobe16(1) == 1;
}

/* ---- the wire's words */

static void fail_stream(struct rsocket *rs, int error)
{
	if (rs->state == RS_FAILED)
		return;
	rs->state = RS_FAILED;
	rs->error = error;
	rs->can_read = rs->can_write = false;
}

static int post_receive(struct rsocket *rs)
{
	struct ibv_recv_wr wr = { .wr_id = IS_RECV }, *bad;

	return rs->id->qp->context->ops.post_recv(rs->id->qp, &wr, &bad);
}

/* A WRITE; with immediate data unless it is RS_OP_WRITE, which only its completion knows of. */
int stream_post(struct rsocket *rs, uint32_t op, uint32_t value, const void *data, size_t bytes, uint32_t lkey,
		      uint64_t address, uint32_t rkey)
{
	uint32_t message = op << VALUE_BITS | (value & VALUE_MASK);
	struct ibv_sge sge = { (uintptr_t)data, (uint32_t)bytes, lkey };
	struct ibv_send_wr wr = { .wr_id = message, .sg_list = &sge, .num_sge = bytes ? 1 : 0, .send_flags = IBV_SEND_SIGNALED,
				  .opcode = op == RS_OP_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM };
	struct ibv_send_wr *bad;
	int error;

	if (bytes <= RS_INLINE)
		wr.send_flags |= IBV_SEND_INLINE;
	wr.imm_data = htobe32(message);
	wr.wr.rdma.remote_addr = address;
	wr.wr.rdma.rkey = rkey;
	error = rs->id->qp->context->ops.post_send(rs->id->qp, &wr, &bad);
	if (error)
		fail_stream(rs, error);
	return error;
}

struct rs_target stream_as_peer_has_it(const struct rsocket *rs, uint64_t addr, uint32_t key, uint32_t length)
{
	struct rs_target target = { addr, key, length };

	if (rs->swap) {
		target.addr = __builtin_bswap64(target.addr);
		target.key = __builtin_bswap32(target.key);
		target.length = __builtin_bswap32(target.length);
	}
	return target;
}

static bool may_control(struct rsocket *rs)
{
	return rs->controls < RS_CONTROLS || rs->state != RS_OPEN;
}

/* Tells the peer how many messages it may send, and of the half of the buffer that is free again. */
static void give_credits(struct rsocket *rs)
{
	uint32_t half = rs->recv_bytes / 2;
	bool room = rs->recv_free >= half;
	struct rs_target target;

	if (rs->state != RS_OPEN || rs->controls >= RS_CONTROLS ||
	    (!room && (int16_t)(uint16_t)(rs->taken - rs->credits_due) < 0))
		return;
	rs->controls++;
	rs->credits_due = (uint16_t)(rs->taken + rs->rq_size / 2);
	if (!room) {
		stream_post(rs, RS_OP_TARGETS, (uint16_t)(rs->taken + rs->rq_size), NULL, 0, 0, 0, 0);
		return;
	}
	target = stream_as_peer_has_it(rs, (uintptr_t)rs->recv_ring + rs->recv_free_at, rs->recv_mr->rkey, half);
	stream_post(rs, RS_OP_TARGETS, (uint16_t)(rs->taken + rs->rq_size), &target, sizeof target, 0,
		   rs->remote_targets.addr + rs->remote_target * sizeof target, rs->remote_targets.key);
	rs->recv_free -= half;
	rs->recv_free_at = rs->recv_free_at ? 0 : half;
	rs->remote_target = (rs->remote_target + 1) % rs->remote_targets.length;
}

static void ended(struct rsocket *rs)
{
	if (rs->state == RS_OPEN || rs->state == RS_CONNECTING)
		rs->state = RS_ENDED;
	rs->can_read = rs->can_write = false;
}

static void heard_control(struct rsocket *rs, uint32_t value)
{
	if (value == CONTROL_DISCONNECT || (value == CONTROL_SHUTDOWN && !rs->can_write))
		ended(rs);
	else if (value == CONTROL_SHUTDOWN)
		rs->can_read = false;
}

/* Data have come: the peer says how many bytes, which is believed only as far as there was room for them. */
static void heard_data(struct rsocket *rs, uint32_t bytes)
{
	unsigned next = (rs->message_tail + 1) % (rs->rq_size + 1u);

	if (bytes > rs->recv_bytes - rs->recv_held || next == rs->message_head) {
		fail_stream(rs, EPROTO);
		return;
	}
	rs->recv_held += bytes;
	rs->messages[rs->message_tail] = bytes;
	rs->message_tail = next;
}

static void heard(struct rsocket *rs, uint32_t message)
{
	uint32_t value = message & VALUE_MASK;

	switch (message >> VALUE_BITS) {
	case RS_OP_DATA:
		heard_data(rs, value);
		break;
	case RS_OP_TARGETS:
		rs->may_send = (uint16_t)value;
		break;
	case RS_OP_IOMAP:
		rs->taken++; /* it cost a message, and is read already */
		break;
	case RS_OP_CONTROL:
		heard_control(rs, value);
		break;
	default:
		fail_stream(rs, EPROTO);
	}
}

static void was_sent(struct rsocket *rs, uint32_t message)
{
	switch (message >> VALUE_BITS) {
	case RS_OP_TARGETS:
	case RS_OP_CONTROL:
		rs->controls--;
		break;
	case RS_OP_IOMAP:
		rs->sends--;
		break;
	default:
		rs->sends--;
		rs->send_used -= message & VALUE_MASK;
	}
}

static void poll_completions(struct rsocket *rs)
{
	struct ibv_wc wcs[POLLED];
	int count;

	if (!rs->cq)
		return;
	do {
		count = rs->cq->context->ops.poll_cq(rs->cq, POLLED, wcs);
		for (int i = 0; i < count; i++) {
			struct ibv_wc *wc = &wcs[i];

			if (!(wc->wr_id & IS_RECV))
				was_sent(rs, (uint32_t)wc->wr_id);
			if (wc->status != IBV_WC_SUCCESS) {
				if (rs->state == RS_OPEN)
					fail_stream(rs, wc->status == IBV_WC_RETRY_EXC_ERR ? ETIMEDOUT : ECONNRESET);
				continue;
			}
			if (!(wc->wr_id & IS_RECV))
				continue;
			/* the peer sends before its acceptance, or its thanks for one, was heard of here */
			heard(rs, be32toh(wc->imm_data));
			if ((rs->state == RS_OPEN || rs->state == RS_CONNECTING) && post_receive(rs))
				fail_stream(rs, ENOMEM);
		}
	} while (count == POLLED);
	give_credits(rs);
}

/* ---- connecting */

static uint8_t iomap_code(uint16_t size)
{
	return size <= IOMAP_LINEAR ? (uint8_t)size : (uint8_t)(IOMAP_LINEAR | size >> IOMAP_SHIFT);
}

static uint32_t iomap_size(uint8_t code)
{
	return code <= IOMAP_LINEAR ? code : (uint32_t)(code & (IOMAP_LINEAR - 1)) << IOMAP_SHIFT;
}

static struct rs_target big_endian_target(const void *memory, uint32_t key, uint32_t length)
{
	return (struct rs_target){ htobe64((uintptr_t)memory), htobe32(key), htobe32(length) };
}

static struct rs_target native_target(const struct rs_target *said)
{
	return (struct rs_target){ be64toh(said->addr), be32toh(said->key), be32toh(said->length) };
}

static struct hello hello_of(struct rsocket *rs)
{
	return (struct hello){
		.version = VERSION,
		.flags = HAS_IOMAP | (big_endian() ? BIG_ENDIAN_PEER : 0),
		.credits = htobe16(rs->rq_size),
		.iomap_size = iomap_code(rs->iomap_size),
		.targets = big_endian_target(rs->targets, rs->target_mr->rkey, RS_TARGETS),
		.buffer = big_endian_target(rs->recv_ring, rs->recv_mr->rkey, rs->recv_bytes / 2),
	};
}

static int take_hello(struct rsocket *rs, const void *data, uint8_t bytes)
{
	struct hello hello;

	if (!data || bytes < sizeof hello)
		return EPROTO;
	memcpy(&hello, data, sizeof hello);
	rs->remote_targets = native_target(&hello.targets);
	if (hello.version != VERSION || !rs->remote_targets.length)
		return EPROTO;
	rs->swap = big_endian() != (hello.flags & BIG_ENDIAN_PEER);
	rs->remote_target = 1 % rs->remote_targets.length; /* the first was said just now */
	rs->targets[0] = native_target(&hello.buffer);
	rs->may_send = be16toh(hello.credits);
	if (hello.flags & HAS_IOMAP) {
		rs->remote_iomap.addr = rs->remote_targets.addr + sizeof(struct rs_target) * rs->remote_targets.length;
		rs->remote_iomap.key = rs->remote_targets.key;
		rs->remote_iomap.length = iomap_size(hello.iomap_size);
	}
	return 0;
}

static int register_all(struct rsocket *rs)
{
	size_t targets = sizeof(struct rs_target) * RS_TARGETS + sizeof(struct rs_iomap) * rs->iomap_size;

	rs->messages = calloc(rs->rq_size + 1u, sizeof *rs->messages);
	rs->send_ring = malloc(rs->send_bytes);
	rs->recv_ring = calloc(1, rs->recv_bytes);
	rs->targets = calloc(1, targets);
	if (!rs->messages || !rs->send_ring || !rs->recv_ring || !rs->targets)
		return ENOMEM;
	rs->send_mr = ibv_reg_mr(rs->id->pd, rs->send_ring, rs->send_bytes, 0);
	rs->recv_mr = ibv_reg_mr(rs->id->pd, rs->recv_ring, rs->recv_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rs->target_mr = ibv_reg_mr(rs->id->pd, rs->targets, targets, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rs->recv_free_at = rs->recv_free = rs->recv_bytes / 2;
	rs->credits_due = rs->rq_size / 2;
	return rs->send_mr && rs->recv_mr && rs->target_mr ? 0 : errno;
}

/* The queue pair of a connection, with receives for whatever comes. */
static int make(struct rsocket *rs)
{
	struct ibv_qp_init_attr attr = {
		.cap = { (uint32_t)rs->sq_size + RS_CONTROLS, rs->rq_size, 1, 1, RS_INLINE },
		.qp_type = IBV_QPT_RC,
	};
	int error;

	rs->recv_bytes &= ~1u;
	error = rs_make_cq(rs, rs->id->verbs, rs->sq_size + RS_CONTROLS + rs->rq_size);
	if (error)
		return error;
	attr.send_cq = attr.recv_cq = rs->cq;
	if (rdma_create_qp(rs->id, rs->id->pd, &attr))
		return errno;
	error = register_all(rs);
	for (unsigned i = 0; !error && i < rs->rq_size; i++)
		error = post_receive(rs);
	return error;
}

int stream_connect(struct rsocket *rs, const struct sockaddr *address)
{
	struct rdma_conn_param param = { .flow_control = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	struct hello hello;
	int error;

	if (rdma_resolve_addr(rs->id, NULL, (struct sockaddr *)(uintptr_t)address, 0))
		return errno;
	if (rdma_get_cm_event(rs->events, &event)) /* it is there: addresses are resolved at once */
		return errno;
	error = event->event == RDMA_CM_EVENT_ADDR_RESOLVED ? 0 : ENETUNREACH;
	rdma_ack_cm_event(event);
	if (!error && rdma_resolve_route(rs->id, 0))
		error = errno;
	if (!error && rdma_get_cm_event(rs->events, &event))
		error = errno;
	else if (!error)
		rdma_ack_cm_event(event);
	if (!error)
		error = make(rs);
	if (error)
		return error;
	hello = hello_of(rs);
	param.private_data = &hello;
	param.private_data_len = sizeof hello;
	if (rdma_connect(rs->id, &param))
		return errno;
	rs->state = RS_CONNECTING;
	return 0;
}

static struct rsocket *welcome(struct rsocket *listener, struct rdma_cm_event *event)
{
	struct rdma_conn_param param = { .flow_control = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rsocket *rs = rs_new(SOCK_STREAM, listener->family, listener);
	struct hello hello;
	int error;

	if (!rs)
		return NULL;
	rs->id = event->id;
	error = rdma_migrate_id(rs->id, rs->events) ? errno : make(rs);
	if (!error)
		error = take_hello(rs, event->param.conn.private_data, event->param.conn.private_data_len);
	if (!error) {
		hello = hello_of(rs);
		param.private_data = &hello;
		param.private_data_len = sizeof hello;
		rs->state = RS_CONNECTING;
		rs->can_read = true;
		error = rdma_accept(rs->id, &param) ? errno : 0;
	}
	if (!error)
		return rs;
	rdma_reject(rs->id, NULL, 0);
	return rs; /* in its state as made: whoever takes it sees that */
}

struct rsocket *stream_accept(struct rsocket *listener)
{
	while (rs_readable_fd(listener->events->fd)) {
		struct rdma_cm_event *event;
		struct rsocket *rs = NULL;

		if (rdma_get_cm_event(listener->events, &event))
			return NULL;
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			rs = welcome(listener, event);
			if (!rs)
				rdma_reject(event->id, NULL, 0);
		}
		rdma_ack_cm_event(event);
		if (rs && rs->state == RS_CONNECTING)
			return rs;
		if (rs)
			rs_put(rs);
	}
	errno = EAGAIN;
	return NULL;
}

static void connected(struct rsocket *rs, struct rdma_cm_event *event)
{
	int error = rs->remote_targets.length ? 0 : take_hello(rs, event->param.conn.private_data,
							       event->param.conn.private_data_len);

	if (error) {
		fail_stream(rs, error);
		rdma_disconnect(rs->id);
		return;
	}
	rs->state = RS_OPEN;
	rs->can_read = rs->can_write = true;
	give_credits(rs);
}

static void hear_manager(struct rsocket *rs)
{
	while (rs->state != RS_LISTENING && rs_readable_fd(rs->events->fd)) {
		struct rdma_cm_event *event;

		if (rdma_get_cm_event(rs->events, &event)) {
			fail_stream(rs, errno);
			return;
		}
		switch (event->event) {
		case RDMA_CM_EVENT_ESTABLISHED:
			if (rs->state == RS_CONNECTING)
				connected(rs, event);
			break;
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_CONNECT_ERROR:
			fail_stream(rs, ECONNREFUSED);
			break;
		case RDMA_CM_EVENT_UNREACHABLE:
			fail_stream(rs, ETIMEDOUT);
			break;
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			fail_stream(rs, ENODEV);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			poll_completions(rs); /* what came before it counts */
			ended(rs);
			break;
		default:
			break;
		}
		rdma_ack_cm_event(event);
	}
}

void stream_progress(struct rsocket *rs)
{
	poll_completions(rs);
	hear_manager(rs);
}

/* ---- sending and receiving */

static bool can_send(struct rsocket *rs)
{
	const struct rs_target *target = &rs->targets[rs->target];

	return rs->can_write && rs->sends < rs->sq_size && rs->send_used < rs->send_bytes && rs->sent != rs->may_send &&
	       __atomic_load_n(&target->length, __ATOMIC_ACQUIRE);
}

static bool send_or_end(struct rsocket *rs)
{
	return (rs->state != RS_CONNECTING && !rs->can_write) || can_send(rs);
}

static bool has_data(struct rsocket *rs)
{
	return rs->message_head != rs->message_tail;
}

static bool data_or_end(struct rsocket *rs)
{
	return has_data(rs) || (rs->state != RS_CONNECTING && !rs->can_read);
}

/* Room for bytes that lie together in the ring. */
uint32_t stream_room(struct rsocket *rs)
{
	uint32_t tail;

	if (!rs->send_used || rs->send_head == rs->send_bytes)
		rs->send_head = 0;
	tail = (rs->send_head + rs->send_bytes - rs->send_used) % rs->send_bytes;
	return rs->send_used && tail > rs->send_head ? tail - rs->send_head : rs->send_bytes - rs->send_head;
}

void rs_copy_out(void *to, const struct iovec *parts, size_t skip, size_t bytes)
{
	for (uint8_t *at = to; bytes; parts++) {
		size_t here = parts->iov_len > skip ? parts->iov_len - skip : 0;

		if (here > bytes)
			here = bytes;
		if (here)
			memcpy(at, (uint8_t *)parts->iov_base + skip, here);
		skip = skip > parts->iov_len ? skip - parts->iov_len : 0;
		at += here;
		bytes -= here;
	}
}

void rs_copy_in(const struct iovec *parts, size_t skip, const void *from, size_t bytes)
{
	for (const uint8_t *at = from; bytes; parts++) {
		size_t here = parts->iov_len > skip ? parts->iov_len - skip : 0;

		if (here > bytes)
			here = bytes;
		if (here)
			memcpy((uint8_t *)parts->iov_base + skip, at, here);
		skip = skip > parts->iov_len ? skip - parts->iov_len : 0;
		at += here;
		bytes -= here;
	}
}

/* Waits until something may be sent. -1 with errno. */
int stream_wait_to_send(struct rsocket *rs, int flags)
{
	if (rs_wait(rs, send_or_end, flags, rs->send_ms))
		return -1;
	if (rs->can_write)
		return 0;
	if (rs->state == RS_FAILED && rs->error)
		return minus(rs->error);
	return minus(rs->state == RS_FRESH || rs->state == RS_BOUND || rs->state == RS_LISTENING ? ENOTCONN : EPIPE);
}

ssize_t stream_send(struct rsocket *rs, const struct iovec *parts, int count, int flags)
{
	size_t bytes = rs_bytes(parts, count), done = 0;

	if (rs->unsaid && stream_say_mapped(rs, flags))
		return -1;
	while (done < bytes) {
		struct rs_target *target, to;
		uint32_t size;
		uint8_t *at;

		if (stream_wait_to_send(rs, flags))
			return done ? (ssize_t)done : -1;
		target = &rs->targets[rs->target];
		size = rs_least(rs_least(stream_room(rs), RS_LONGEST_WRITE), target->length);
		size = (uint32_t)(bytes - done < size ? bytes - done : size);
		at = rs->send_ring + rs->send_head;
		rs_copy_out(at, parts, done, size);
		rs->send_head += size;
		rs->send_used += size;
		rs->sends++;
		rs->sent++;
		to = *target;
		/* Once the last bytes for a target have left, the peer may write the next one into its place. */
		target->addr += size;
		target->length -= size;
		if (!target->length)
			rs->target = (rs->target + 1) % RS_TARGETS;
		if (stream_post(rs, RS_OP_DATA, size, at, size, rs->send_mr->lkey, to.addr, to.key))
			return done ? (ssize_t)done : minus(rs->error);
		done += size;
	}
	return (ssize_t)done;
}

/* Copies what is there, as far as there is room for it. */
static size_t take(struct rsocket *rs, const struct iovec *parts, size_t done, size_t bytes, bool peek)
{
	unsigned head = rs->message_head;
	uint32_t at = rs->recv_at, used = 0; /* of the first message, where it is not read to its end */

	while (done < bytes && head != rs->message_tail) {
		uint32_t here = rs_least(rs->messages[head] - used, rs->recv_bytes - at);

		if (here > bytes - done)
			here = (uint32_t)(bytes - done);
		rs_copy_in(parts, done, rs->recv_ring + at, here);
		done += here;
		used += here;
		at = (at + here) % rs->recv_bytes;
		if (!peek) {
			rs->recv_free += here;
			rs->recv_held -= here;
		}
		if (used < rs->messages[head])
			continue;
		used = 0;
		head = (head + 1) % (rs->rq_size + 1u);
		if (!peek)
			rs->taken++;
	}
	if (!peek) {
		if (used)
			rs->messages[head] -= used;
		rs->message_head = head;
		rs->recv_at = at;
	}
	return done;
}

ssize_t stream_recv(struct rsocket *rs, const struct iovec *parts, int count, int flags)
{
	size_t bytes = rs_bytes(parts, count), done = 0;

	while (done < bytes) {
		if (rs_wait(rs, data_or_end, flags, rs->receive_ms))
			return done ? (ssize_t)done : -1;
		if (!has_data(rs)) {
			if (!done && rs->state == RS_FAILED && rs->error)
				return minus(rs->error);
			break;
		}
		done = take(rs, parts, done, bytes, flags & MSG_PEEK);
		give_credits(rs);
		if (!(flags & MSG_WAITALL) || flags & MSG_PEEK)
			break;
	}
	return (ssize_t)done;
}

/* ---- the end */

static bool all_sent(struct rsocket *rs)
{
	return (!rs->sends && !rs->controls) || rs->state == RS_FAILED;
}

static void say_control(struct rsocket *rs, uint32_t control)
{
	if (rs_wait(rs, may_control, RS_WAIT_ALWAYS, CLOSE_MS) || rs->state != RS_OPEN)
		return;
	rs->controls++;
	stream_post(rs, RS_OP_CONTROL, control, NULL, 0, 0, 0, 0);
}

static bool settled(struct rsocket *rs)
{
	return rs->state != RS_CONNECTING;
}

int stream_shutdown(struct rsocket *rs, int how)
{
	bool reads, writes;

	/* Who was accepted and is closed at once: the peer has a connection first, and then its end. */
	if (rs->state == RS_CONNECTING && rs->can_read)
		rs_wait(rs, settled, RS_WAIT_ALWAYS, CLOSE_MS);
	reads = rs->can_read && how == SHUT_WR;
	writes = rs->can_write && how == SHUT_RD;
	if (rs->state == RS_CONNECTING && how == SHUT_RDWR)
		ended(rs);
	if (rs->state != RS_OPEN)
		return rs->state == RS_ENDED || rs->state == RS_FAILED ? 0 : minus(ENOTCONN);
	if (reads || (writes && how == SHUT_RD)) {
		if (reads) {
			rs->can_write = false;
			say_control(rs, CONTROL_SHUTDOWN);
		} else {
			rs->can_read = false;
		}
		rs_wait(rs, all_sent, RS_WAIT_ALWAYS, CLOSE_MS);
		return 0;
	}
	rs->can_read = rs->can_write = false;
	say_control(rs, CONTROL_DISCONNECT);
	rs_wait(rs, all_sent, RS_WAIT_ALWAYS, CLOSE_MS);
	if (rs->state == RS_OPEN)
		rs->state = RS_ENDED;
	rdma_disconnect(rs->id);
	return 0;
}

short stream_ready(struct rsocket *rs, short events)
{
	short ready = 0;

	stream_progress(rs);
	if (rs->state == RS_LISTENING)
		return rs_readable_fd(rs->events->fd) ? events & POLLIN : 0;
	if (rs->state == RS_FRESH || rs->state == RS_BOUND)
		return events & POLLOUT ? POLLOUT | POLLHUP : POLLHUP;
	if (data_or_end(rs))
		ready |= POLLIN;
	if (rs->state == RS_FAILED || (rs->can_write && can_send(rs)))
		ready |= POLLOUT;
	if (rs->state == RS_FAILED)
		return (ready & events) | POLLERR;
	/* what came before the end is read first */
	return (ready & events) | (rs->state == RS_ENDED && !has_data(rs) ? POLLHUP : 0);
}

void stream_free(struct rsocket *rs)
{
	for (uint32_t i = 0; rs->mapped && i < rs->remote_iomap.length; i++)
		if (rs->mapped[i].mr)
			ibv_dereg_mr(rs->mapped[i].mr);
	if (rs->send_mr)
		ibv_dereg_mr(rs->send_mr);
	if (rs->recv_mr)
		ibv_dereg_mr(rs->recv_mr);
	if (rs->target_mr)
		ibv_dereg_mr(rs->target_mr);
	free(rs->send_ring);
	free(rs->recv_ring);
	free(rs->targets);
	free(rs->messages);
	free(rs->mapped);
}
