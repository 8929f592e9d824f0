/* Stream rsockets: sending, receiving, shutdown. */
#include "rdmacm_stream.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_iomap.h"

enum { CLOSE_MS = 10000 };

static bool can_send_control(struct rsocket *rs)
{
	return rs->controls < RS_QP_CTRL_SIZE || rs->state != RS_CONNECTED;
}

static void stream_progress(struct rsocket *rs)
{
	stream_poll_cq(rs);
	stream_process_events(rs);
}

static bool have_rdata(struct rsocket *rs)
{
	return rs->rmsg_head != rs->rmsg_tail;
}

static bool have_rdata_or_end(struct rsocket *rs)
{
	return have_rdata(rs) || (rs->state != RS_CONNECTING && !rs->can_read);
}

static ssize_t stream_send(struct rsocket *rs, const struct iovec *parts, int count, int flags,
			   const struct sockaddr *to UNUSED, socklen_t to_bytes UNUSED)
{
	size_t bytes = rs_iov_bytes(parts, count), done = 0;

	if (rs->iomaps_pending && stream_send_iomaps(rs, flags))
		return -1;
	while (done < bytes) {
		struct rs_sge *target, dest;
		uint32_t size;
		uint8_t *at;

		if (stream_wait_can_send(rs, flags))
			return done ? (ssize_t)done : -1;
		target = &rs->target_sgl[rs->target_sge];
		at = stream_claim_sbuf(rs, bytes - done, target->length, &size);
		rs_copy_from_iov(at, parts, done, size);
		rs->sseq_no++;
		dest = *target;
		/* Update the target first: once its last bytes are sent, the peer may overwrite it with the next one. */
		target->addr += size;
		target->length -= size;
		if (!target->length)
			rs->target_sge = (rs->target_sge + 1) % RS_SGL_SIZE;
		if (stream_post_write(rs, RS_OP_DATA, size, at, size, rs->smr->lkey, dest.addr, dest.key))
			return done ? (ssize_t)done : rdma_seterrno(rs->error);
		done += size;
	}
	return (ssize_t)done;
}

/* Copy received data, as far as there is room for it. */
static size_t copy_rdata(struct rsocket *rs, const struct iovec *parts, size_t done, size_t bytes, bool peek)
{
	unsigned head = rs->rmsg_head;
	uint32_t at = rs->rbuf_at, used = 0; /* of the first message, if it is not read to its end */

	while (done < bytes && head != rs->rmsg_tail) {
		uint32_t here = min_u32(rs->rmsg[head] - used, rs->rbuf_bytes - at);

		if (here > bytes - done)
			here = (uint32_t)(bytes - done);
		rs_copy_to_iov(parts, done, rs->rbuf + at, here);
		done += here;
		used += here;
		at = (at + here) % rs->rbuf_bytes;
		if (!peek) {
			rs->rbuf_free += here;
			rs->rbuf_held -= here;
		}
		if (used < rs->rmsg[head])
			continue;
		used = 0;
		head = (head + 1) % (rs->rq_size + 1u);
		if (!peek)
			rs->rseq_no++;
	}
	if (!peek) {
		if (used)
			rs->rmsg[head] -= used;
		rs->rmsg_head = head;
		rs->rbuf_at = at;
	}
	return done;
}

static ssize_t stream_recv(struct rsocket *rs, const struct iovec *parts, int count, int flags, struct sockaddr *from,
			   socklen_t *from_bytes)
{
	size_t bytes = rs_iov_bytes(parts, count), done = 0;

	if (rs->state == RS_INIT || rs->state == RS_BOUND || rs->state == RS_LISTENING)
		return rdma_seterrno(ENOTCONN);
	while (done < bytes) {
		if (rs_wait(rs, have_rdata_or_end, flags, rs->recv_timeout_ms)) {
			if (!done)
				return -1;
			break;
		}
		if (!have_rdata(rs)) {
			if (!done && rs->state == RS_ERROR && rs->error)
				return rdma_seterrno(rs->error);
			break;
		}
		done = copy_rdata(rs, parts, done, bytes, flags & MSG_PEEK);
		stream_send_credits(rs);
		if (!(flags & MSG_WAITALL) || flags & MSG_PEEK)
			break;
	}
	rs_copy_address(&rs->id->route.addr.dst_storage, from, from_bytes);
	return (ssize_t)done;
}

/* ---- the end */

static bool all_sent(struct rsocket *rs)
{
	return (!rs->sends && !rs->controls) || rs->state == RS_ERROR;
}

static void send_control(struct rsocket *rs, uint32_t control)
{
	if (rs_wait(rs, can_send_control, RS_WAIT_ALWAYS, CLOSE_MS) || rs->state != RS_CONNECTED)
		return;
	rs->controls++;
	stream_post_write(rs, RS_OP_CTRL, control, NULL, 0, 0, 0, 0);
}

static int stream_shutdown(struct rsocket *rs, int how)
{
	bool reads, writes;

	/* If an accepted socket is closed at once, let the peer see the connection first, and then its end. */
	if (rs->state == RS_CONNECTING && rs->can_read)
		rs_wait(rs, stream_settled, RS_WAIT_ALWAYS, CLOSE_MS);
	reads = rs->can_read && how == SHUT_WR;
	writes = rs->can_write && how == SHUT_RD;
	if (rs->state == RS_CONNECTING && how == SHUT_RDWR)
		stream_end(rs);
	if (rs->state != RS_CONNECTED)
		return rs->state == RS_DISCONNECTED || rs->state == RS_ERROR ? 0 : rdma_seterrno(ENOTCONN);
	if (reads || (writes && how == SHUT_RD)) {
		if (reads) {
			rs->can_write = false;
			send_control(rs, RS_CTRL_SHUTDOWN);
		} else {
			rs->can_read = false;
		}
		rs_wait(rs, all_sent, RS_WAIT_ALWAYS, CLOSE_MS);
		return 0;
	}
	rs->can_read = rs->can_write = false;
	send_control(rs, RS_CTRL_DISCONNECT);
	rs_wait(rs, all_sent, RS_WAIT_ALWAYS, CLOSE_MS);
	if (rs->state == RS_CONNECTED)
		rs->state = RS_DISCONNECTED;
	rdma_disconnect(rs->id);
	return 0;
}

static short stream_ready(struct rsocket *rs, short events)
{
	short ready = 0;

	stream_progress(rs);
	if (rs->state == RS_LISTENING)
		return fd_is_readable(rs->events->fd) ? events & POLLIN : 0;
	if (rs->state == RS_INIT || rs->state == RS_BOUND)
		return events & POLLOUT ? POLLOUT | POLLHUP : POLLHUP;
	if (have_rdata_or_end(rs))
		ready |= POLLIN;
	if (rs->state == RS_ERROR || (rs->can_write && stream_can_send(rs)))
		ready |= POLLOUT;
	if (rs->state == RS_ERROR)
		return (ready & events) | POLLERR;
	/* Report the end only after everything that arrived before it was read. */
	return (ready & events) | (rs->state == RS_DISCONNECTED && !have_rdata(rs) ? POLLHUP : 0);
}

static void stream_free(struct rsocket *rs)
{
	for (uint32_t i = 0; rs->iomap_mrs && i < rs->remote_iomap.length; i++)
		if (rs->iomap_mrs[i].mr)
			ibv_dereg_mr(rs->iomap_mrs[i].mr);
	if (rs->smr)
		ibv_dereg_mr(rs->smr);
	if (rs->rmr)
		ibv_dereg_mr(rs->rmr);
	if (rs->target_mr)
		ibv_dereg_mr(rs->target_mr);
	free(rs->sbuf);
	free(rs->rbuf);
	free(rs->target_sgl);
	free(rs->rmsg);
	free(rs->iomap_mrs);
}

static int stream_getsockname(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	struct sockaddr_storage none = { .ss_family = (sa_family_t)rs->family };
	const struct sockaddr_storage *name = &rs->id->route.addr.src_storage;

	rs_copy_address(name->ss_family ? name : &none, address, bytes);
	return 0;
}

static int stream_getpeername(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	if (rs->state != RS_CONNECTED && rs->state != RS_CONNECTING && rs->state != RS_DISCONNECTED)
		return rdma_seterrno(ENOTCONN);
	rs_copy_address(&rs->id->route.addr.dst_storage, address, bytes);
	return 0;
}

const struct rs_ops stream_ops = {
	.type = SOCK_STREAM,
	.open = stream_open,
	.bind = stream_bind,
	.connect = stream_connect,
	.shutdown = stream_shutdown,
	.send = stream_send,
	.recv = stream_recv,
	.getsockname = stream_getsockname,
	.getpeername = stream_getpeername,
	.progress = stream_progress,
	.ready = stream_ready,
	.free = stream_free,
};
