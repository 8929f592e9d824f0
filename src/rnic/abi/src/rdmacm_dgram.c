/*
 * Datagram rsockets: a UDP socket and a UD queue pair. The first datagram to an address goes over the UDP socket, with a
 * header that names the sender's queue pair; the answer names the peer's, and from then on queue pairs talk.
 */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

enum { OP_DATA = 0, OP_CONTROL = 7, TAG = 0x55555555, GRH = 40 };
enum { SLOT_BYTES = 2048, SLOTS = 128, PEERS = 1024, POLLED = 16 };
#define IS_RECV (1ull << 63)

struct over_udp {
	uint32_t tag;
	uint8_t version, op, length, reserved;
	uint32_t qpn;
	uint8_t addr[16];
};

struct over_ud {
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
_Static_assert(sizeof(struct over_udp) == UDP_SIX && sizeof(struct over_ud) == UD_SIX, "as others have them");

struct peer {
	struct peer *next;
	struct sockaddr_storage address;
	struct ibv_ah *ah;
	uint32_t qpn;
};

struct ds_socket {
	int udp;
	struct peer *peers;
	unsigned peer_count;
	struct sockaddr_storage connected;
	struct over_ud header; /* says where from */
	uint8_t *sends, *receives; /* SLOTS each; a receive's slot has room for the GRH too */
	struct ibv_mr *send_mr, *recv_mr;
	uint8_t free_sends[SLOTS];
	unsigned free_count;
	struct {
		const uint8_t *data;
		uint32_t bytes;
		struct sockaddr_storage from;
		int slot; /* of receives; -1 for one that came by UDP and is this list's own */
	} queue[2 * SLOTS];
	unsigned head, count;
};

enum { SEND_SLOT = SLOT_BYTES + UD_SIX, RECV_SLOT = GRH + UD_SIX + SLOT_BYTES, QUEUE = 2 * SLOTS };

int dgram_make(struct rsocket *rs)
{
	rs->ds = calloc(1, sizeof *rs->ds);
	if (!rs->ds)
		return ENOMEM;
	rs->ds->udp = socket(rs->family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (rs->ds->udp < 0)
		return errno;
	return rs_watch(rs, rs->ds->udp);
}

int dgram_bind(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes)
{
	return bind(rs->ds->udp, address, bytes);
}

int dgram_name(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	return getsockname(rs->ds->udp, address, bytes);
}

int dgram_peer(struct rsocket *rs, struct sockaddr *address, socklen_t *bytes)
{
	socklen_t whole = cm_address_bytes((struct sockaddr *)&rs->ds->connected);

	if (!whole)
		return minus(ENOTCONN);
	memcpy(address, &rs->ds->connected, *bytes < whole ? *bytes : whole);
	*bytes = whole;
	return 0;
}

int dgram_connect(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes UNUSED)
{
	memset(&rs->ds->connected, 0, sizeof rs->ds->connected);
	memcpy(&rs->ds->connected, address, cm_address_bytes(address));
	return 0;
}

/* ---- the queue pair, on the device of the bound address or towards the first peer */

static int post_receive(struct rsocket *rs, unsigned slot)
{
	struct ds_socket *ds = rs->ds;
	struct ibv_sge sge = { (uintptr_t)ds->receives + slot * (size_t)RECV_SLOT, RECV_SLOT, ds->recv_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = IS_RECV | slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	return rs->id->qp->context->ops.post_recv(rs->id->qp, &wr, &bad);
}

static void say_from(struct ds_socket *ds, const struct sockaddr_storage *own)
{
	if (own->ss_family == AF_INET) {
		const struct sockaddr_in *four = (const void *)own;

		ds->header = (struct over_ud){ .version = 4, .length = UD_FOUR, .port = four->sin_port };
		memcpy(ds->header.four, &four->sin_addr, 4);
	} else {
		const struct sockaddr_in6 *six = (const void *)own;

		ds->header = (struct over_ud){ .version = 6, .length = UD_SIX, .port = six->sin6_port };
		ds->header.six.flow = six->sin6_flowinfo;
		memcpy(ds->header.six.addr, &six->sin6_addr, 16);
	}
}

/* Where datagrams to an address leave from, with the UDP socket's port. */
static int own_address(struct rsocket *rs, const struct sockaddr *towards, struct sockaddr_storage *own)
{
	socklen_t bytes = sizeof *own;
	struct cm_device *device;
	union ibv_gid gid;
	uint16_t port;

	if (getsockname(rs->ds->udp, (struct sockaddr *)own, &bytes))
		return errno;
	if (cm_gid_of((struct sockaddr *)own, &gid, &port))
		return EAFNOSUPPORT;
	if (!port) { /* the first send would bind it; the peer has to be told now */
		if (bind(rs->ds->udp, (struct sockaddr *)own, bytes) ||
		    getsockname(rs->ds->udp, (struct sockaddr *)own, &bytes))
			return errno;
		cm_gid_of((struct sockaddr *)own, &gid, &port);
	}
	if (!cm_nowhere(&gid))
		return 0;
	device = cm_device_towards(towards);
	if (!device)
		return ENODEV;
	cm_address_of(&device->gid, port, rs->family, own);
	return 0;
}

static int make_ready(struct rsocket *rs, const struct sockaddr *towards)
{
	struct ds_socket *ds = rs->ds;
	struct ibv_qp_init_attr attr = { .cap = { SLOTS, SLOTS, 1, 1, RS_INLINE }, .qp_type = IBV_QPT_UD };
	struct sockaddr_storage own;
	int error;

	if (ds->header.version)
		return 0;
	error = own_address(rs, towards, &own);
	if (error)
		return error;
	if (rdma_create_id(rs->events, &rs->id, rs, RDMA_PS_UDP) || rdma_bind_addr(rs->id, (struct sockaddr *)&own))
		return errno;
	if (!rs->id->verbs)
		return EADDRNOTAVAIL;
	error = rs_make_cq(rs, rs->id->verbs, 2 * SLOTS);
	if (error)
		return error;
	attr.send_cq = attr.recv_cq = rs->cq;
	if (rdma_create_qp(rs->id, rs->id->pd, &attr))
		return errno;
	ds->sends = malloc(SLOTS * (size_t)SEND_SLOT);
	ds->receives = calloc(SLOTS, RECV_SLOT);
	if (!ds->sends || !ds->receives)
		return ENOMEM;
	ds->send_mr = ibv_reg_mr(rs->id->pd, ds->sends, SLOTS * (size_t)SEND_SLOT, 0);
	ds->recv_mr = ibv_reg_mr(rs->id->pd, ds->receives, SLOTS * (size_t)RECV_SLOT, IBV_ACCESS_LOCAL_WRITE);
	if (!ds->send_mr || !ds->recv_mr)
		return errno;
	for (unsigned slot = 0; slot < SLOTS; slot++) {
		ds->free_sends[ds->free_count++] = (uint8_t)slot;
		if (post_receive(rs, slot))
			return ENOMEM;
	}
	say_from(ds, &own);
	return 0;
}

/* ---- peers */

static bool same(const struct sockaddr_storage *one, const struct sockaddr *other)
{
	union ibv_gid gid, other_gid;
	uint16_t port, other_port;

	return cm_gid_of((const struct sockaddr *)one, &gid, &port) == 0 && cm_gid_of(other, &other_gid, &other_port) == 0 &&
	       port == other_port && memcmp(&gid, &other_gid, sizeof gid) == 0;
}

static void forget(struct peer *peer)
{
	if (peer->ah)
		ibv_destroy_ah(peer->ah);
	free(peer);
}

/* Who was heard of last comes first; where there are too many the last goes, and is met anew with its next datagram. */
static struct peer *peer_at(struct rsocket *rs, const struct sockaddr *address)
{
	struct ds_socket *ds = rs->ds;
	socklen_t bytes = cm_address_bytes(address);
	struct peer **at = &ds->peers, *peer;

	while (*at && !same(&(*at)->address, address) && (*at)->next)
		at = &(*at)->next;
	peer = *at;
	if (peer && !same(&peer->address, address)) {
		if (ds->peer_count == PEERS) {
			*at = NULL;
			forget(peer);
			ds->peer_count--;
		}
		peer = NULL;
	}
	if (peer) {
		*at = peer->next;
	} else {
		peer = bytes ? calloc(1, sizeof *peer) : NULL;
		if (!peer)
			return NULL;
		memcpy(&peer->address, address, bytes);
		ds->peer_count++;
	}
	peer->next = ds->peers;
	ds->peers = peer;
	return peer;
}

static void learn(struct rsocket *rs, struct peer *peer, uint32_t qpn)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	uint16_t port;

	if (!qpn || (peer->ah && peer->qpn == qpn) || cm_gid_of((struct sockaddr *)&peer->address, &attr.grh.dgid, &port))
		return;
	if (!peer->ah)
		peer->ah = ibv_create_ah(rs->id->pd, &attr);
	peer->qpn = qpn;
}

/* ---- receiving */

static void put(struct ds_socket *ds, const uint8_t *data, uint32_t bytes, const struct sockaddr_storage *from, int slot)
{
	unsigned at = (ds->head + ds->count++) % QUEUE;

	ds->queue[at].data = data;
	ds->queue[at].bytes = bytes;
	ds->queue[at].from = *from;
	ds->queue[at].slot = slot;
}

/* Has a message leave from the device's address: the system would choose another for a socket that is bound to all. */
static void leave_from(const struct ds_socket *ds, struct msghdr *message, void *control)
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

static ssize_t send_udp(struct rsocket *rs, const struct sockaddr_storage *to, uint8_t op, const struct iovec *parts, int count)
{
	struct ds_socket *ds = rs->ds;
	bool four = ds->header.version == 4;
	union {
		struct cmsghdr first;
		char space[CMSG_SPACE(sizeof(struct in6_pktinfo))];
	} control;
	struct over_udp header = { .tag = htonl(TAG), .version = ds->header.version, .op = op,
				   .length = four ? UDP_FOUR : UDP_SIX, .qpn = htonl(rs->id->qp->qp_num) };
	struct iovec all[9] = { { &header, header.length } };
	struct msghdr message = { .msg_name = (void *)(uintptr_t)to, .msg_namelen = cm_address_bytes((const struct sockaddr *)to),
				  .msg_iov = all, .msg_iovlen = (size_t)count + 1 };
	ssize_t sent;

	if (count > 8)
		return minus(EMSGSIZE);
	memcpy(header.addr, four ? ds->header.four : ds->header.six.addr, four ? 4 : 16);
	if (count)
		memcpy(all + 1, parts, (size_t)count * sizeof *parts);
	leave_from(ds, &message, &control);
	sent = sendmsg(ds->udp, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	return sent < 0 ? -1 : sent - header.length;
}

static void hear_udp(struct rsocket *rs)
{
	struct ds_socket *ds = rs->ds;

	while (ds->count < SLOTS) { /* the rest of the queue is the queue pair's */
		uint8_t data[UDP_SIX + SLOT_BYTES];
		struct sockaddr_storage from = { 0 };
		socklen_t from_bytes = sizeof from;
		const struct over_udp *header = (const void *)data;
		ssize_t got = recvfrom(ds->udp, data, sizeof data, MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);
		struct peer *peer;
		uint32_t qpn;
		uint8_t *copy;

		if (got < 0)
			return;
		if (got < UDP_FOUR || header->tag != htonl(TAG) || got < header->length ||
		    !((header->version == 4 && header->length == UDP_FOUR && from.ss_family == AF_INET) ||
		      (header->version == 6 && header->length == UDP_SIX && from.ss_family == AF_INET6)))
			continue;
		peer = peer_at(rs, (struct sockaddr *)&from);
		if (!peer || make_ready(rs, (struct sockaddr *)&from))
			continue;
		memcpy(&qpn, data + offsetof(struct over_udp, qpn), 4);
		learn(rs, peer, ntohl(qpn) & 0xFFFFFF);
		if (header->op != OP_DATA)
			continue;
		send_udp(rs, &peer->address, OP_CONTROL, NULL, 0);
		copy = malloc((size_t)got);
		if (!copy)
			continue;
		memcpy(copy, data + header->length, (size_t)got - header->length);
		put(ds, copy, (uint32_t)got - header->length, &peer->address, -1);
	}
}

static void heard(struct rsocket *rs, unsigned slot, uint32_t bytes)
{
	struct ds_socket *ds = rs->ds;
	const uint8_t *data = ds->receives + slot * (size_t)RECV_SLOT + GRH;
	struct sockaddr_storage from = { 0 };
	struct over_ud header;

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
	put(ds, data + header.length, bytes - GRH - header.length, &from, (int)slot);
	return;
again:
	post_receive(rs, slot);
}

void dgram_progress(struct rsocket *rs)
{
	struct ibv_wc wcs[POLLED];
	int count = 0;

	hear_udp(rs);
	do {
		count = rs->cq ? rs->cq->context->ops.poll_cq(rs->cq, POLLED, wcs) : 0;
		for (int i = 0; i < count; i++) {
			if (!(wcs[i].wr_id & IS_RECV))
				rs->ds->free_sends[rs->ds->free_count++] = (uint8_t)wcs[i].wr_id;
			else if (wcs[i].status == IBV_WC_SUCCESS)
				heard(rs, (uint32_t)wcs[i].wr_id, wcs[i].byte_len);
		}
	} while (count == POLLED);
}

static bool has_datagram(struct rsocket *rs)
{
	return rs->ds->count || rs->state == RS_ENDED;
}

ssize_t dgram_recv(struct rsocket *rs, const struct iovec *parts, int count, int flags, struct sockaddr *from,
		   socklen_t *from_bytes)
{
	struct ds_socket *ds = rs->ds;
	size_t bytes = rs_bytes(parts, count);
	socklen_t whole;
	unsigned at;

	if (rs_wait(rs, has_datagram, flags, rs->receive_ms))
		return -1;
	if (!ds->count)
		return 0;
	at = ds->head;
	if (bytes > ds->queue[at].bytes)
		bytes = ds->queue[at].bytes;
	rs_copy_in(parts, 0, ds->queue[at].data, bytes);
	if (from && from_bytes) {
		whole = cm_address_bytes((struct sockaddr *)&ds->queue[at].from);
		memcpy(from, &ds->queue[at].from, *from_bytes < whole ? *from_bytes : whole);
		*from_bytes = whole;
	}
	if (flags & MSG_PEEK)
		return (ssize_t)bytes;
	if (ds->queue[at].slot < 0)
		free((void *)(uintptr_t)ds->queue[at].data);
	else
		post_receive(rs, (unsigned)ds->queue[at].slot);
	ds->head = (at + 1) % QUEUE;
	ds->count--;
	return (ssize_t)bytes;
}

/* ---- sending */

static bool has_slot(struct rsocket *rs)
{
	return rs->ds->free_count > 0;
}

ssize_t dgram_send(struct rsocket *rs, const struct iovec *parts, int count, int flags, const struct sockaddr *to,
		   socklen_t to_bytes UNUSED)
{
	struct ds_socket *ds = rs->ds;
	size_t bytes = rs_bytes(parts, count);
	struct ibv_send_wr wr = { 0 }, *bad;
	struct ibv_sge sge;
	struct peer *peer;
	uint8_t *data;
	int error;

	if (!to)
		to = (struct sockaddr *)&ds->connected;
	if (!cm_address_bytes(to))
		return minus(EDESTADDRREQ);
	if (bytes > SLOT_BYTES - UDP_SIX)
		return minus(EMSGSIZE);
	error = make_ready(rs, to);
	if (error)
		return minus(error);
	dgram_progress(rs);
	peer = peer_at(rs, to);
	if (peer && peer->ah) {
		if (rs_wait(rs, has_slot, flags, rs->send_ms))
			return -1;
		peer = peer_at(rs, to); /* others may have come meanwhile, and this one gone */
	}
	if (!peer)
		return minus(ENOBUFS);
	if (!peer->ah)
		return send_udp(rs, &peer->address, OP_DATA, parts, count);
	wr.wr_id = ds->free_sends[--ds->free_count];
	data = ds->sends + wr.wr_id * SEND_SLOT;
	memcpy(data, &ds->header, ds->header.length);
	rs_copy_out(data + ds->header.length, parts, 0, bytes);
	sge = (struct ibv_sge){ (uintptr_t)data, (uint32_t)(ds->header.length + bytes), ds->send_mr->lkey };
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.ud.ah = peer->ah;
	wr.wr.ud.remote_qpn = peer->qpn;
	wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	error = rs->id->qp->context->ops.post_send(rs->id->qp, &wr, &bad);
	if (error) {
		ds->free_count++;
		return minus(error);
	}
	return (ssize_t)bytes;
}

short dgram_ready(struct rsocket *rs, short events)
{
	dgram_progress(rs);
	return (short)(events & ((rs->ds->count ? POLLIN : 0) | (rs->ds->free_count || !rs->cq ? POLLOUT : 0)));
}

void dgram_free(struct rsocket *rs)
{
	struct ds_socket *ds = rs->ds;

	if (!ds)
		return;
	for (; ds->count; ds->count--, ds->head = (ds->head + 1) % QUEUE)
		if (ds->queue[ds->head].slot < 0)
			free((void *)(uintptr_t)ds->queue[ds->head].data);
	while (ds->peers) {
		struct peer *peer = ds->peers;

		ds->peers = peer->next;
		forget(peer);
	}
	if (ds->send_mr)
		ibv_dereg_mr(ds->send_mr);
	if (ds->recv_mr)
		ibv_dereg_mr(ds->recv_mr);
	free(ds->sends);
	free(ds->receives);
	if (ds->udp >= 0)
		close(ds->udp);
	free(ds);
}
