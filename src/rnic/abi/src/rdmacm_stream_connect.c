/* Connecting streams. */
#define _GNU_SOURCE
#include "rdmacm_stream.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_address.h"
#include "rdmacm_iomap.h"

enum { VERSION = 1, BIG_ENDIAN_PEER = 1, HAS_IOMAP = 2, IOMAP_LINEAR = 128, IOMAP_SHIFT = 8 };

struct rs_conn_data { /* private data of the request and of its answer; big-endian */
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], iomap_size;
	struct rs_sge target_sgl, data_buf;
};
_Static_assert(sizeof(struct rs_conn_data) == 40, "as others have it");

static bool big_endian(void)
{
	return htobe16(1) == 1;
}

static uint8_t encode_iomap_size(uint16_t size)
{
	return size <= IOMAP_LINEAR ? (uint8_t)size : (uint8_t)(IOMAP_LINEAR | size >> IOMAP_SHIFT);
}

static uint32_t decode_iomap_size(uint8_t code)
{
	return code <= IOMAP_LINEAR ? code : (uint32_t)(code & (IOMAP_LINEAR - 1)) << IOMAP_SHIFT;
}

static struct rs_sge sge_to_be(const void *memory, uint32_t key, uint32_t length)
{
	return (struct rs_sge){ htobe64((uintptr_t)memory), htobe32(key), htobe32(length) };
}

static struct rs_sge sge_from_be(const struct rs_sge *sge)
{
	return (struct rs_sge){ be64toh(sge->addr), be32toh(sge->key), be32toh(sge->length) };
}

static struct rs_conn_data format_conn_data(struct rsocket *rs)
{
	return (struct rs_conn_data){
		.version = VERSION,
		.flags = HAS_IOMAP | (big_endian() ? BIG_ENDIAN_PEER : 0),
		.credits = htobe16(rs->rq_size),
		.iomap_size = encode_iomap_size(rs->iomap_size),
		.target_sgl = sge_to_be(rs->target_sgl, rs->target_mr->rkey, RS_SGL_SIZE),
		.data_buf = sge_to_be(rs->rbuf, rs->rmr->rkey, rs->rbuf_bytes / 2),
	};
}

static int save_conn_data(struct rsocket *rs, const void *data, uint8_t bytes)
{
	struct rs_conn_data conn_data;

	if (!data || bytes < sizeof conn_data)
		return EPROTO;
	memcpy(&conn_data, data, sizeof conn_data);
	rs->remote_sgl = sge_from_be(&conn_data.target_sgl);
	if (conn_data.version != VERSION || !rs->remote_sgl.length)
		return EPROTO;
	rs->swap_sgl = big_endian() != (conn_data.flags & BIG_ENDIAN_PEER);
	rs->remote_sge = 1 % rs->remote_sgl.length; /* the first is this data_buf */
	rs->target_sgl[0] = sge_from_be(&conn_data.data_buf);
	rs->sseq_comp = be16toh(conn_data.credits);
	if (conn_data.flags & HAS_IOMAP) {
		rs->remote_iomap.addr = rs->remote_sgl.addr + sizeof(struct rs_sge) * rs->remote_sgl.length;
		rs->remote_iomap.key = rs->remote_sgl.key;
		rs->remote_iomap.length = decode_iomap_size(conn_data.iomap_size);
	}
	return 0;
}

static int init_bufs(struct rsocket *rs)
{
	size_t targets = sizeof(struct rs_sge) * RS_SGL_SIZE + sizeof(struct rs_iomap) * rs->iomap_size;

	rs->rmsg = calloc(rs->rq_size + 1u, sizeof *rs->rmsg);
	rs->sbuf = malloc(rs->sbuf_bytes);
	rs->rbuf = calloc(1, rs->rbuf_bytes);
	rs->target_sgl = calloc(1, targets);
	if (!rs->rmsg || !rs->sbuf || !rs->rbuf || !rs->target_sgl)
		return ENOMEM;
	rs->smr = ibv_reg_mr(rs->id->pd, rs->sbuf, rs->sbuf_bytes, 0);
	rs->rmr = ibv_reg_mr(rs->id->pd, rs->rbuf, rs->rbuf_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rs->target_mr =
		ibv_reg_mr(rs->id->pd, rs->target_sgl, targets, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rs->rbuf_free_at = rs->rbuf_free = rs->rbuf_bytes / 2;
	rs->rseq_comp = rs->rq_size / 2;
	return rs->smr && rs->rmr && rs->target_mr ? 0 : errno;
}

/* Create the queue pair of a connection, with receives posted. */
static int create_ep(struct rsocket *rs)
{
	struct ibv_qp_init_attr attr = {
		.cap = { (uint32_t)rs->sq_size + RS_QP_CTRL_SIZE, rs->rq_size, 1, 1, RS_INLINE },
		.qp_type = IBV_QPT_RC,
	};
	int error;

	rs->rbuf_bytes &= ~1u;
	error = rs_create_cq(rs, rs->id->verbs, rs->sq_size + RS_QP_CTRL_SIZE + rs->rq_size);
	if (error)
		return error;
	attr.send_cq = attr.recv_cq = rs->cq;
	if (rdma_create_qp(rs->id, rs->id->pd, &attr))
		return errno;
	error = init_bufs(rs);
	for (unsigned i = 0; !error && i < rs->rq_size; i++)
		error = stream_post_recv(rs);
	return error;
}

int stream_open(struct rsocket *rs)
{
	return rdma_create_id(rs->events, &rs->id, rs, RDMA_PS_TCP) ? errno : 0;
}

int stream_bind(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes UNUSED)
{
	struct sockaddr_storage copy = { 0 };

	if (rs->state != RS_INIT || !cm_addrlen(address))
		return rdma_seterrno(EINVAL);
	memcpy(&copy, address, cm_addrlen(address));
	if (rdma_bind_addr(rs->id, (struct sockaddr *)&copy))
		return -1;
	rs->state = RS_BOUND;
	return 0;
}

int stream_listen(struct rsocket *rs, int backlog)
{
	if (rs->state == RS_LISTENING)
		return 0;
	if (rs->state != RS_BOUND && rs->state != RS_INIT)
		return rdma_seterrno(EINVAL);
	if (rdma_listen(rs->id, backlog))
		return -1;
	rs->state = RS_LISTENING;
	return 0;
}

static int begin_connect(struct rsocket *rs, const struct sockaddr *address)
{
	struct rdma_conn_param param = { .flow_control = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	struct rs_conn_data conn_data;
	int error;

	if (rdma_resolve_addr(rs->id, NULL, (struct sockaddr *)(uintptr_t)address, 0))
		return errno;
	if (rdma_get_cm_event(rs->events, &event)) /* it is available: addresses are resolved immediately */
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
		error = create_ep(rs);
	if (error)
		return error;
	conn_data = format_conn_data(rs);
	param.private_data = &conn_data;
	param.private_data_len = sizeof conn_data;
	if (rdma_connect(rs->id, &param))
		return errno;
	rs->state = RS_CONNECTING;
	return 0;
}

static struct rsocket *accept_request(struct rsocket *listener, struct rdma_cm_event *event)
{
	struct rdma_conn_param param = { .flow_control = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rsocket *rs = rs_alloc(listener->ops, listener->family, listener);
	struct rs_conn_data conn_data;
	int error;

	if (!rs)
		return NULL;
	rs->id = event->id;
	error = rdma_migrate_id(rs->id, rs->events) ? errno : create_ep(rs);
	if (!error)
		error = save_conn_data(rs, event->param.conn.private_data, event->param.conn.private_data_len);
	if (!error) {
		conn_data = format_conn_data(rs);
		param.private_data = &conn_data;
		param.private_data_len = sizeof conn_data;
		rs->state = RS_CONNECTING;
		rs->can_read = true;
		error = rdma_accept(rs->id, &param) ? errno : 0;
	}
	if (!error)
		return rs;
	rdma_reject(rs->id, NULL, 0);
	return rs; /* it is not connecting: the caller frees it */
}

struct rsocket *stream_accept(struct rsocket *listener)
{
	while (fd_is_readable(listener->events->fd)) {
		struct rdma_cm_event *event;
		struct rsocket *rs = NULL;

		if (rdma_get_cm_event(listener->events, &event))
			return NULL;
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			rs = accept_request(listener, event);
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

static void complete_connect(struct rsocket *rs, struct rdma_cm_event *event)
{
	int error = rs->remote_sgl.length ?
			    0 :
			    save_conn_data(rs, event->param.conn.private_data, event->param.conn.private_data_len);

	if (error) {
		stream_fail(rs, error);
		rdma_disconnect(rs->id);
		return;
	}
	rs->state = RS_CONNECTED;
	rs->can_read = rs->can_write = true;
	stream_send_credits(rs);
}

void stream_process_events(struct rsocket *rs)
{
	while (rs->state != RS_LISTENING && fd_is_readable(rs->events->fd)) {
		struct rdma_cm_event *event;

		if (rdma_get_cm_event(rs->events, &event)) {
			stream_fail(rs, errno);
			return;
		}
		switch (event->event) {
		case RDMA_CM_EVENT_ESTABLISHED:
			if (rs->state == RS_CONNECTING)
				complete_connect(rs, event);
			break;
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_CONNECT_ERROR:
			stream_fail(rs, ECONNREFUSED);
			break;
		case RDMA_CM_EVENT_UNREACHABLE:
			stream_fail(rs, ETIMEDOUT);
			break;
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			stream_fail(rs, ENODEV);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			stream_poll_cq(rs); /* data that arrived earlier counts */
			stream_end(rs);
			break;
		default:
			break;
		}
		rdma_ack_cm_event(event);
	}
}

bool stream_settled(struct rsocket *rs)
{
	return rs->state != RS_CONNECTING;
}

int stream_connect(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes UNUSED)
{
	int error;

	switch (rs->state) {
	case RS_CONNECTED:
		return rdma_seterrno(EISCONN);
	case RS_CONNECTING:
		rs->ops->progress(rs);
		if (rs->state == RS_CONNECTING && rs->flags & O_NONBLOCK)
			return rdma_seterrno(EALREADY);
		break;
	case RS_INIT:
	case RS_BOUND:
		if (!cm_addrlen(address))
			return rdma_seterrno(EINVAL);
		error = begin_connect(rs, address);
		if (error) {
			rs->state = RS_ERROR;
			rs->error = error;
			return rdma_seterrno(error);
		}
		if (rs->flags & O_NONBLOCK)
			return rdma_seterrno(EINPROGRESS);
		break;
	default:
		return rdma_seterrno(rs->error ? rs->error : EINVAL);
	}
	if (rs_wait(rs, stream_settled, RS_WAIT_ALWAYS, rs->send_timeout_ms))
		return rdma_seterrno(ETIMEDOUT);
	return rs->state == RS_CONNECTED || rs->state == RS_DISCONNECTED ? 0 : rdma_seterrno(rs->error);
}
