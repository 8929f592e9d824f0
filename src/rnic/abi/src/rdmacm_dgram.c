/*
 * Datagram rsockets: a UDP socket and a UD queue pair. The first datagram to an address goes over the UDP socket, with
 * a header that names the sender's queue pair. The answer names the peer's; from then on the queue pairs are used.
 */
#define _GNU_SOURCE
#include "rdmacm_dgram.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"
#include "io/own_fd.h"
#include "rdmacm_address.h"
#include "rdmacm_devices.h"

enum { OP_DATA = 0, OP_CONTROL = 7, TAG = 0x55555555, GRH = 40 };
enum { MSG_BYTES = 2048, BUFS = 128, MAX_DESTS = 1024, WC_BATCH = 16 };
#define IS_RECV (1ull << 63)

struct ds_udp_header {
	uint32_t tag;
	uint8_t version, op, length, reserved;
	uint32_t qpn;
	uint8_t addr[16];
};

struct ds_header {
	uint8_t version, length;
	uint16_t port;
	union {
		uint8_t four[4];
		struct {
			uint32_t flow;
			uint8_t addr[16];
		} six;
	};
};
enum { UDP_FOUR = 16, UDP_SIX = 28, UD_FOUR = 8, UD_SIX = 24 };
_Static_assert(sizeof(struct ds_udp_header) == UDP_SIX && sizeof(struct ds_header) == UD_SIX, "as others have them");

struct ds_dest {
	struct ds_dest *next;
	struct sockaddr_storage address;
	struct ibv_ah *ah;
	uint32_t qpn;
};

struct ds_socket {
	struct own_fd udp;
	struct ds_dest *dests;
	unsigned dest_count;
	struct sockaddr_storage connected;
	struct ds_header header; /* names the sender */
	uint8_t *sends, *receives; /* BUFS each; a receive buffer has room for the GRH too */
	struct ibv_mr *send_mr, *recv_mr;
	uint8_t free_sends[BUFS];
	unsigned free_count;
	struct {
		const uint8_t *data;
		uint32_t bytes;
		struct sockaddr_storage from;
		int buf; /* of receives; -1 for one that came by UDP, which the queue owns */
	} queue[2 * BUFS];
	unsigned head, count;
};

enum { SBUF_BYTES = MSG_BYTES + UD_SIX, RBUF_BYTES = GRH + UD_SIX + MSG_BYTES, QUEUE = 2 * BUFS };

static int dgram_open(struct rsocket *rs)
{
	rs->ds = calloc(1, sizeof *rs->ds);
	if (!rs->ds)
		return ENOMEM;
	own_fd_take(&rs->ds->udp, socket(rs->family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), OWN_FD_PRIVATE);
	if (rs->ds->udp.fd < 0)
		return errno;
	return rs_epoll_add(rs, rs->ds->udp.fd);
}

static int dgram_shutdown(struct rsocket *rs UNUSED, int how UNUSED)
{
	return 0;
}

static int dgram_bind(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes)
{
	return bind(rs->ds->udp.fd, address, bytes);
}

static int dgram_getsockname(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	return getsockname(rs->ds->udp.fd, address, bytes);
}

static int dgram_getpeername(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	if (!cm_addrlen((struct sockaddr *)&rs->ds->connected))
		return rdma_seterrno(ENOTCONN);
	rs_copy_address(&rs->ds->connected, address, bytes);
	return 0;
}

static int dgram_connect(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes UNUSED)
{
	memset(&rs->ds->connected, 0, sizeof rs->ds->connected);
	memcpy(&rs->ds->connected, address, cm_addrlen(address));
	return 0;
}

/* ---- the queue pair, on the device of the bound address or of the route to the first destination */

static int post_recv(struct rsocket *rs, unsigned buf)
{
	struct ds_socket *ds = rs->ds;
	struct ibv_sge sge = { (uintptr_t)ds->receives + buf * (size_t)RBUF_BYTES, RBUF_BYTES, ds->recv_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = IS_RECV | buf, .sg_list = &sge, .num_sge = 1 }, *bad;

	return rs->id->qp->context->ops.post_recv(rs->id->qp, &wr, &bad);
}

static void format_header(struct ds_socket *ds, const struct sockaddr_storage *own)
{
	if (own->ss_family == AF_INET) {
		const struct sockaddr_in *four = (const void *)own;

		ds->header = (struct ds_header){ .version = 4, .length = UD_FOUR, .port = four->sin_port };
		memcpy(ds->header.four, &four->sin_addr, 4);
	} else {
		const struct sockaddr_in6 *six = (const void *)own;

		ds->header = (struct ds_header){ .version = 6, .length = UD_SIX, .port = six->sin6_port };
		ds->header.six.flow = six->sin6_flowinfo;
		memcpy(ds->header.six.addr, &six->sin6_addr, 16);
	}
}

/* Get the source address of datagrams to `towards`, with the UDP socket's port. */
static int get_own_address(struct rsocket *rs, const struct sockaddr *towards, struct sockaddr_storage *own)
{
	socklen_t bytes = sizeof *own;
	struct cm_device *device;
	union ibv_gid gid;
	uint16_t port;

	if (getsockname(rs->ds->udp.fd, (struct sockaddr *)own, &bytes))
		return errno;
	if (cm_gid_of((struct sockaddr *)own, &gid, &port))
		return EAFNOSUPPORT;
	if (!port) { /* the first send would bind it, but the header names the port */
		if (bind(rs->ds->udp.fd, (struct sockaddr *)own, bytes) ||
		    getsockname(rs->ds->udp.fd, (struct sockaddr *)own, &bytes))
			return errno;
		cm_gid_of((struct sockaddr *)own, &gid, &port);
	}
	if (!cm_gid_is_any(&gid))
		return 0;
	device = cm_device_for(towards);
	if (!device)
		return ENODEV;
	cm_address_of(&device->gid, port, rs->family, own);
	return 0;
}

static int create_ep(struct rsocket *rs, const struct sockaddr *towards)
{
	struct ds_socket *ds = rs->ds;
	struct ibv_qp_init_attr attr = { .cap = { BUFS, BUFS, 1, 1, RS_INLINE }, .qp_type = IBV_QPT_UD };
	struct sockaddr_storage own;
	int error;

	if (ds->header.version)
		return 0;
	error = get_own_address(rs, towards, &own);
	if (error)
		return error;
	if (rdma_create_id(rs->events, &rs->id, rs, RDMA_PS_UDP) || rdma_bind_addr(rs->id, (struct sockaddr *)&own))
		return errno;
	if (!rs->id->verbs)
		return EADDRNOTAVAIL;
	error = rs_create_cq(rs, rs->id->verbs, 2 * BUFS);
	if (error)
		return error;
	attr.send_cq = attr.recv_cq = rs->cq;
	if (rdma_create_qp(rs->id, rs->id->pd, &attr))
		return errno;
	ds->sends = malloc(BUFS * (size_t)SBUF_BYTES);
	ds->receives = calloc(BUFS, RBUF_BYTES);
	if (!ds->sends || !ds->receives)
		return ENOMEM;
	ds->send_mr = ibv_reg_mr(rs->id->pd, ds->sends, BUFS * (size_t)SBUF_BYTES, 0);
	ds->recv_mr = ibv_reg_mr(rs->id->pd, ds->receives, BUFS * (size_t)RBUF_BYTES, IBV_ACCESS_LOCAL_WRITE);
	if (!ds->send_mr || !ds->recv_mr)
		return errno;
	for (unsigned buf = 0; buf < BUFS; buf++) {
		ds->free_sends[ds->free_count++] = (uint8_t)buf;
		if (post_recv(rs, buf))
			return ENOMEM;
	}
	format_header(ds, &own);
	return 0;
}

/* ---- destinations */

static bool same_address(const struct sockaddr_storage *one, const struct sockaddr *other)
{
	union ibv_gid gid, other_gid;
	uint16_t port, other_port;

	return cm_gid_of((const struct sockaddr *)one, &gid, &port) == 0 &&
	       cm_gid_of(other, &other_gid, &other_port) == 0 && port == other_port &&
	       memcmp(&gid, &other_gid, sizeof gid) == 0;
}

static void free_dest(struct ds_dest *dest)
{
	if (dest->ah)
		ibv_destroy_ah(dest->ah);
	free(dest);
}

/* Find or add an address's destination and move it to the front. Beyond MAX_DESTS the last is dropped, until its
 * next datagram. */
static struct ds_dest *get_dest(struct rsocket *rs, const struct sockaddr *address)
{
	struct ds_socket *ds = rs->ds;
	socklen_t bytes = cm_addrlen(address);
	struct ds_dest **at = &ds->dests, *dest;

	while (*at && !same_address(&(*at)->address, address) && (*at)->next)
		at = &(*at)->next;
	dest = *at;
	if (dest && !same_address(&dest->address, address)) {
		if (ds->dest_count == MAX_DESTS) {
			*at = NULL;
			free_dest(dest);
			ds->dest_count--;
		}
		dest = NULL;
	}
	if (dest) {
		*at = dest->next;
	} else {
		dest = bytes ? calloc(1, sizeof *dest) : NULL;
		if (!dest)
			return NULL;
		memcpy(&dest->address, address, bytes);
		ds->dest_count++;
	}
	dest->next = ds->dests;
	ds->dests = dest;
	return dest;
}

static void save_qpn(struct rsocket *rs, struct ds_dest *dest, uint32_t qpn)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	uint16_t port;

	if (!qpn || (dest->ah && dest->qpn == qpn) ||
	    cm_gid_of((struct sockaddr *)&dest->address, &attr.grh.dgid, &port))
		return;
	attr.grh.sgid_index = rnic_own_gid_index(rs->id->verbs);
	if (!dest->ah)
		dest->ah = ibv_create_ah(rs->id->pd, &attr);
	dest->qpn = qpn;
}

/* ---- receiving */

static void queue_datagram(struct ds_socket *ds, const uint8_t *data, uint32_t bytes,
			   const struct sockaddr_storage *from, int buf)
{
	unsigned at = (ds->head + ds->count++) % QUEUE;

	ds->queue[at].data = data;
	ds->queue[at].bytes = bytes;
	ds->queue[at].from = *from;
	ds->queue[at].buf = buf;
}

/* Send a message from the device's address: for a wildcard socket, the kernel would choose another. */
static void set_pktinfo(const struct ds_socket *ds, struct msghdr *message, void *control)
{
	bool four = ds->header.version == 4;
	struct in_pktinfo info = { 0 };
	struct in6_pktinfo info6 = { 0 };
	struct cmsghdr *each = control;

	message->msg_control = control;
	message->msg_controllen = four ? CMSG_SPACE(sizeof info) : CMSG_SPACE(sizeof info6);
	memset(control, 0, message->msg_controllen);
	each->cmsg_level = four ? IPPROTO_IP : IPPROTO_IPV6;
	each->cmsg_type = four ? IP_PKTINFO : IPV6_PKTINFO;
	each->cmsg_len = four ? CMSG_LEN(sizeof info) : CMSG_LEN(sizeof info6);
	memcpy(&info.ipi_spec_dst, ds->header.four, sizeof info.ipi_spec_dst);
	memcpy(&info6.ipi6_addr, ds->header.six.addr, sizeof info6.ipi6_addr);
	memcpy(CMSG_DATA(each), four ? (void *)&info : (void *)&info6, four ? sizeof info : sizeof info6);
}

static ssize_t send_udp(struct rsocket *rs, const struct sockaddr_storage *to, uint8_t op, const struct iovec *parts,
			int count)
{
	struct ds_socket *ds = rs->ds;
	bool four = ds->header.version == 4;
	union {
		struct cmsghdr first;
		char space[CMSG_SPACE(sizeof(struct in6_pktinfo))];
	} control;
	struct ds_udp_header header = { .tag = htonl(TAG),
					.version = ds->header.version,
					.op = op,
					.length = four ? UDP_FOUR : UDP_SIX,
					.qpn = htonl(rs->id->qp->qp_num) };
	struct iovec all[9] = { { &header, header.length } };
	struct msghdr message = { .msg_name = (void *)(uintptr_t)to,
				  .msg_namelen = cm_addrlen((const struct sockaddr *)to),
				  .msg_iov = all,
				  .msg_iovlen = (size_t)count + 1 };
	ssize_t sent;

	if (count > 8)
		return rdma_seterrno(EMSGSIZE);
	if (!own_fd_valid(&ds->udp))
		return rdma_seterrno(EBADF);
	memcpy(header.addr, four ? ds->header.four : ds->header.six.addr, four ? 4 : 16);
	if (count)
		memcpy(all + 1, parts, (size_t)count * sizeof *parts);
	set_pktinfo(ds, &message, &control);
	sent = sendmsg(ds->udp.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	return sent < 0 ? -1 : sent - header.length;
}

static void process_udp(struct rsocket *rs)
{
	struct ds_socket *ds = rs->ds;

	while (ds->count < BUFS &&
	       own_fd_valid(&ds->udp)) { /* the rest of the queue is for datagrams of the queue pair */
		uint8_t data[UDP_SIX + MSG_BYTES];
		struct sockaddr_storage from = { 0 };
		socklen_t from_bytes = sizeof from;
		const struct ds_udp_header *header = (const void *)data;
		ssize_t got =
			recvfrom(ds->udp.fd, data, sizeof data, MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);
		struct ds_dest *dest;
		uint32_t qpn;
		uint8_t *copy;

		if (got < 0)
			return;
		if (got < UDP_FOUR || header->tag != htonl(TAG) || got < header->length ||
		    !((header->version == 4 && header->length == UDP_FOUR && from.ss_family == AF_INET) ||
		      (header->version == 6 && header->length == UDP_SIX && from.ss_family == AF_INET6)))
			continue;
		dest = get_dest(rs, (struct sockaddr *)&from);
		if (!dest || create_ep(rs, (struct sockaddr *)&from))
			continue;
		memcpy(&qpn, data + offsetof(struct ds_udp_header, qpn), 4);
		save_qpn(rs, dest, ntohl(qpn) & 0xFFFFFF);
		if (header->op != OP_DATA)
			continue;
		send_udp(rs, &dest->address, OP_CONTROL, NULL, 0);
		copy = malloc((size_t)got);
		if (!copy)
			continue;
		memcpy(copy, data + header->length, (size_t)got - header->length);
		queue_datagram(ds, copy, (uint32_t)got - header->length, &dest->address, -1);
	}
}

static void process_ud(struct rsocket *rs, unsigned buf, uint32_t bytes)
{
	struct ds_socket *ds = rs->ds;
	const uint8_t *data = ds->receives + buf * (size_t)RBUF_BYTES + GRH;
	struct sockaddr_storage from = { 0 };
	struct ds_header header;

	if (bytes < GRH + UD_FOUR || ds->count == QUEUE)
		goto again;
	memcpy(&header, data, bytes - GRH < sizeof header ? bytes - GRH : sizeof header);
	if (header.version == 4 && header.length == UD_FOUR) {
		struct sockaddr_in *four = (void *)&from;

		four->sin_family = AF_INET;
		four->sin_port = header.port;
		memcpy(&four->sin_addr, header.four, 4);
	} else if (header.version == 6 && header.length == UD_SIX && bytes >= GRH + UD_SIX) {
		struct sockaddr_in6 *six = (void *)&from;

		six->sin6_family = AF_INET6;
		six->sin6_port = header.port;
		six->sin6_flowinfo = header.six.flow;
		memcpy(&six->sin6_addr, header.six.addr, 16);
	} else {
		goto again;
	}
	queue_datagram(ds, data + header.length, bytes - GRH - header.length, &from, (int)buf);
	return;
again:
	post_recv(rs, buf);
}

static void dgram_progress(struct rsocket *rs)
{
	struct ibv_wc wcs[WC_BATCH];
	int count = 0;

	process_udp(rs);
	do {
		count = rs->cq ? rs->cq->context->ops.poll_cq(rs->cq, WC_BATCH, wcs) : 0;
		for (int i = 0; i < count; i++) {
			if (!(wcs[i].wr_id & IS_RECV))
				rs->ds->free_sends[rs->ds->free_count++] = (uint8_t)wcs[i].wr_id;
			else if (wcs[i].status == IBV_WC_SUCCESS)
				process_ud(rs, (uint32_t)wcs[i].wr_id, wcs[i].byte_len);
		}
	} while (count == WC_BATCH);
}

static bool has_datagram(struct rsocket *rs)
{
	return rs->ds->count || rs->state == RS_DISCONNECTED;
}

static ssize_t dgram_recv(struct rsocket *rs, const struct iovec *parts, int count, int flags, struct sockaddr *from,
			  socklen_t *from_bytes)
{
	struct ds_socket *ds = rs->ds;
	size_t bytes = rs_iov_bytes(parts, count);
	unsigned at;

	if (rs_wait(rs, has_datagram, flags, rs->recv_timeout_ms))
		return -1;
	if (!ds->count)
		return 0;
	at = ds->head;
	if (bytes > ds->queue[at].bytes)
		bytes = ds->queue[at].bytes;
	rs_copy_to_iov(parts, 0, ds->queue[at].data, bytes);
	rs_copy_address(&ds->queue[at].from, from, from_bytes);
	if (flags & MSG_PEEK)
		return (ssize_t)bytes;
	if (ds->queue[at].buf < 0)
		free((void *)(uintptr_t)ds->queue[at].data);
	else
		post_recv(rs, (unsigned)ds->queue[at].buf);
	ds->head = (at + 1) % QUEUE;
	ds->count--;
	return (ssize_t)bytes;
}

/* ---- sending */

static bool has_free_send(struct rsocket *rs)
{
	return rs->ds->free_count > 0;
}

static ssize_t dgram_send(struct rsocket *rs, const struct iovec *parts, int count, int flags,
			  const struct sockaddr *to, socklen_t to_bytes UNUSED)
{
	struct ds_socket *ds = rs->ds;
	size_t bytes = rs_iov_bytes(parts, count);
	struct ibv_send_wr wr = { 0 }, *bad;
	struct ibv_sge sge;
	struct ds_dest *dest;
	uint8_t *data;
	int error;

	if (!to)
		to = (struct sockaddr *)&ds->connected;
	if (!cm_addrlen(to))
		return rdma_seterrno(EDESTADDRREQ);
	if (bytes > MSG_BYTES - UDP_SIX)
		return rdma_seterrno(EMSGSIZE);
	error = create_ep(rs, to);
	if (error)
		return rdma_seterrno(error);
	dgram_progress(rs);
	dest = get_dest(rs, to);
	if (dest && dest->ah) {
		if (rs_wait(rs, has_free_send, flags, rs->send_timeout_ms))
			return -1;
		dest = get_dest(rs, to); /* it may have been dropped meanwhile */
	}
	if (!dest)
		return rdma_seterrno(ENOBUFS);
	if (!dest->ah)
		return send_udp(rs, &dest->address, OP_DATA, parts, count);
	wr.wr_id = ds->free_sends[--ds->free_count];
	data = ds->sends + wr.wr_id * SBUF_BYTES;
	memcpy(data, &ds->header, ds->header.length);
	rs_copy_from_iov(data + ds->header.length, parts, 0, bytes);
	sge = (struct ibv_sge){ (uintptr_t)data, (uint32_t)(ds->header.length + bytes), ds->send_mr->lkey };
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.ud.ah = dest->ah;
	wr.wr.ud.remote_qpn = dest->qpn;
	wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	error = rs->id->qp->context->ops.post_send(rs->id->qp, &wr, &bad);
	if (error) {
		ds->free_count++;
		return rdma_seterrno(error);
	}
	return (ssize_t)bytes;
}

static short dgram_ready(struct rsocket *rs, short events)
{
	dgram_progress(rs);
	return (short)(events & ((rs->ds->count ? POLLIN : 0) | (rs->ds->free_count || !rs->cq ? POLLOUT : 0)));
}

static void dgram_free(struct rsocket *rs)
{
	struct ds_socket *ds = rs->ds;

	if (!ds)
		return;
	for (; ds->count; ds->count--, ds->head = (ds->head + 1) % QUEUE)
		if (ds->queue[ds->head].buf < 0)
			free((void *)(uintptr_t)ds->queue[ds->head].data);
	while (ds->dests) {
		struct ds_dest *dest = ds->dests;

		ds->dests = dest->next;
		free_dest(dest);
	}
	if (ds->send_mr)
		ibv_dereg_mr(ds->send_mr);
	if (ds->recv_mr)
		ibv_dereg_mr(ds->recv_mr);
	free(ds->sends);
	free(ds->receives);
	own_fd_close(&ds->udp);
	free(ds);
}

const struct rs_ops dgram_ops = {
	.type = SOCK_DGRAM,
	.open = dgram_open,
	.bind = dgram_bind,
	.connect = dgram_connect,
	.shutdown = dgram_shutdown,
	.send = dgram_send,
	.recv = dgram_recv,
	.getsockname = dgram_getsockname,
	.getpeername = dgram_getpeername,
	.progress = dgram_progress,
	.ready = dgram_ready,
	.free = dgram_free,
};
