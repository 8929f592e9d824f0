#if defined(__linux__)
#define _GNU_SOURCE
#include "io/loopback.h"
#include "io/nocancel.h"
#include "queue_pair/arithmetic.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <string.h>

/* Linux's numbers, for C libraries that are older than they are. */
#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif

#ifndef UDP_CORK
#define UDP_CORK 1
#endif

#define FAILURES 8u /* in a row, and it is not tried again */
#define PIPE_BYTES 131072 /* more pages than a burst has */
#define SPLICE_HEAD 12u /* of a burst, in a message of their own: the system asks for some */
#define PAGE 4096u /* no system has smaller ones */
#define MOST_PAGES 16u /* that the system adds to one packet's head */
#define LABEL_MASK 0xfffffu
#define ALIKE_LEAST 64u
#define MOST_BYTES 65507u /* UDP payload of one send, segmented or not */

/* The number that a control message carries, as long as it may be. */
static uint32_t number_in(struct cmsghdr *header)
{
	size_t room = header->cmsg_len - CMSG_LEN(0);
	uint32_t number = 0;
	if (room >= sizeof(number))
		memcpy(&number, CMSG_DATA(header), sizeof(number));
	else if (room)
		number = *CMSG_DATA(header);
	return number;
}

static void read_control(struct msghdr *message, struct rx_buffer *slot)
{
	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
		uint32_t number = number_in(header);
		if (header->cmsg_level == SOL_UDP && header->cmsg_type == UDP_GRO) {
			if (number && number < slot->segment)
				slot->segment = number;
		} else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TOS) {
			slot->tclass = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TTL) {
			slot->hop_limit = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_TCLASS) {
			slot->tclass = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_HOPLIMIT) {
			slot->hop_limit = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_FLOWINFO) {
			slot->flow_label = ntohl(number) & LABEL_MASK;
		}
	}
}

int udp_receive(int fd, struct udp_rx_scratch *inbox, struct rx_buffer *slots, unsigned count)
{
	if (count > UDP_RX_BUFFERS)
		count = UDP_RX_BUFFERS;
	for (unsigned i = 0; i < count; i++) {
		inbox->pieces[i] = (struct iovec){ slots[i].buffer, slots[i].room };
		inbox->messages[i].msg_hdr = (struct msghdr){
			.msg_name = slots[i].name,
			.msg_namelen = UDP_NAME_BYTES,
			.msg_iov = &inbox->pieces[i],
			.msg_iovlen = 1,
			.msg_control = inbox->control[i],
			.msg_controllen = sizeof(inbox->control[i]),
		};
	}
	int came = count == 1 ? -1 : nocancel_recvmmsg(fd, inbox->messages, count, MSG_DONTWAIT);
	if (count == 1) { /* the shorter way for one */
		ssize_t size = nocancel_recvmsg(fd, &inbox->messages[0].msg_hdr, MSG_DONTWAIT);
		if (size >= 0) {
			inbox->messages[0].msg_len = (unsigned)size;
			came = 1;
		}
	}
	if (came < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (int i = 0; i < came; i++) {
		struct msghdr *message = &inbox->messages[i].msg_hdr;
		struct rx_buffer *slot = &slots[i];
		slot->size = inbox->messages[i].msg_len;
		slot->segment = (uint32_t)slot->size;
		slot->name_bytes = message->msg_namelen < UDP_NAME_BYTES ? message->msg_namelen : UDP_NAME_BYTES;
		slot->tclass = 0;
		slot->hop_limit = UDP_DEFAULT_HOP_LIMIT;
		slot->flow_label = 0;
		read_control(message, slot);
	}
	return came;
}

static int udp_send_flagged(int fd, const void *name, uint32_t name_bytes, const struct iovec *pieces, size_t count,
			     uint16_t segment, int flags)
{
	uint64_t control[(CMSG_SPACE(sizeof(segment)) + 7) / 8] = { 0 };
	struct msghdr message = {
		.msg_name = (void *)(uintptr_t)name,
		.msg_namelen = name_bytes,
		.msg_iov = (struct iovec *)(uintptr_t)pieces,
		.msg_iovlen = count,
	};
	if (segment) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(segment));
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_UDP;
		header->cmsg_type = UDP_SEGMENT;
		header->cmsg_len = CMSG_LEN(sizeof(segment));
		memcpy(CMSG_DATA(header), &segment, sizeof(segment));
	}
	return nocancel_sendmsg(fd, &message, flags) < 0 ? errno : 0;
}

int udp_send(int fd, const void *name, uint32_t name_bytes, const struct iovec *pieces, size_t count, uint16_t segment)
{
	if (!segment && count == 1) /* a message's header is more for the system to read */
		return nocancel_sendto(fd, pieces->iov_base, pieces->iov_len, name, name_bytes) < 0 ? errno : 0;
	return udp_send_flagged(fd, name, name_bytes, pieces, count, segment, 0);
}

static void set_option(int fd, int level, int option, int value)
{
	setsockopt(fd, level, option, &value, sizeof(value)); /* a system without it sends with its own */
}

/* What leaves the socket from now on has the path's traffic class and hop limit. */
static void shape(struct tx_socket *outlet, const struct tx_path *path)
{
	if (outlet->tclass != path->tclass) {
		outlet->tclass = path->tclass;
		if (outlet->ipv4)
			set_option(outlet->fd, IPPROTO_IP, IP_TOS, path->tclass);
		else
			set_option(outlet->fd, IPPROTO_IPV6, IPV6_TCLASS, path->tclass);
	}
	if (outlet->hop_limit != path->hop_limit) {
		outlet->hop_limit = path->hop_limit;
		if (outlet->ipv4) {
			set_option(outlet->fd, IPPROTO_IP, IP_TTL, path->hop_limit);
			set_option(outlet->fd, IPPROTO_IP, IP_MULTICAST_TTL, path->hop_limit);
		} else {
			set_option(outlet->fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, path->hop_limit);
			set_option(outlet->fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, path->hop_limit);
		}
	}
}

/* A control message that says at which length a run is cut costs some time. For a long row of runs that are cut alike the
 * socket's option says it, until a packet by itself goes out. What the next one's message is to say; 0 for nothing. */
static uint16_t cut(struct tx_socket *outlet, uint16_t segment)
{
	if (!outlet->cuts)
		return segment;
	outlet->alike = segment == outlet->last ? outlet->alike + 1 : 0;
	outlet->last = segment;
	if (segment ? outlet->alike >= ALIKE_LEAST && outlet->segment != segment : outlet->segment != 0) {
		int value = segment;
		outlet->segment = setsockopt(outlet->fd, SOL_UDP, UDP_SEGMENT, &value, sizeof(value)) ? -1 : segment;
	}
	return segment == outlet->segment ? 0 : segment;
}

/* One send, again while the send buffer is full: 0 or the error number. */
static int send_patiently(const struct tx_path *path, const uint8_t *bytes, size_t length, uint16_t segment, int flags)
{
	struct iovec piece = { (void *)(uintptr_t)bytes, length };
	int fd = path->outlet->fd;
	segment = cut(path->outlet, segment);
	for (int waited = 0;; waited++) {
		int error = flags ? udp_send_flagged(fd, path->name, path->name_bytes, &piece, 1, segment, flags)
				  : udp_send(fd, path->name, path->name_bytes, &piece, 1, segment);
		if ((error != EAGAIN && error != EINTR) || waited == UDP_SEND_WAIT_MS)
			return error;
		struct pollfd writable = { .fd = fd, .events = POLLOUT };
		int before = nocancel_begin();
		poll(&writable, 1, 1);
		nocancel_end(before);
	}
}

static void count_failure(struct tx_counts *counts, int error, uint64_t packets)
{
	switch (error) {
	case EMSGSIZE:
		counts->drop_tx_too_long += packets;
		break;
	case ECONNREFUSED:
	case EHOSTUNREACH:
	case ENETUNREACH:
		counts->drop_tx_unreachable += packets;
		break;
	case ENOBUFS:
	case EAGAIN:
	case EINTR:
		counts->drop_tx_blocked += packets;
		break;
	default:
		counts->drop_tx_error += packets;
	}
	if (error == ENETUNREACH || error == ENETDOWN || error == EHOSTUNREACH || error == ENODEV || error == EINVAL)
		counts->look++;
}

static int refuses_segments(int error)
{
	return error == EINVAL || error == EIO || error == EOPNOTSUPP || error == ENOPROTOOPT;
}

struct rx_buffer tx_path_describe(const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment)
{
	struct rx_buffer parcel = {
		.buffer = (uint8_t *)(uintptr_t)bytes,
		.room = length,
		.size = length,
		.segment = segment,
		.name_bytes = path->name_bytes,
		.tclass = (uint8_t)path->tclass,
		.hop_limit = (uint8_t)path->hop_limit,
		.flow_label = path->flow_label,
	};
	memcpy(parcel.name, path->name, sizeof(parcel.name));
	return parcel;
}

static void transmit_by_wire(const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
			     uint64_t packets, struct tx_counts *counts)
{
	const struct rx_buffer what = tx_path_describe(path, bytes, length, segment);
	int error = loopback_put(path->wire, &what);
	if (error)
		count_failure(counts, error, packets);
	else
		counts->sent += packets;
	loopback_notify(path->wire);
}

void udp_transmit(struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
		   struct tx_counts *counts)
{
	if (!length || !segment)
		return;
	uint64_t packets = ceil_div(length, segment);
	if (path->wire) {
		transmit_by_wire(path, bytes, length, segment, packets, counts);
		return;
	}
	shape(path->outlet, path);
	if (packets > 1 && packets <= path->max_segments && length <= MOST_BYTES) {
		int error = send_patiently(path, bytes, length, (uint16_t)segment, 0);
		if (!error)
			counts->sent += packets;
		else if (!refuses_segments(error))
			count_failure(counts, error, packets);
		if (!refuses_segments(error))
			return;
		counts->gso_refused++;
		path->max_segments = 1;
	}
	for (size_t at = 0; at < length; at += segment) {
		size_t size = length - at < segment ? length - at : segment;
		int error = send_patiently(path, bytes + at, size, 0, 0);
		if (error)
			count_failure(counts, error, 1);
		else
			counts->sent++;
	}
}

void tx_splice_open(struct tx_splice *splice)
{
	int ends[2] = { -1, -1 };
	splice->broken = 1;
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return;
	splice->out = ends[0];
	splice->in = ends[1];
	splice->broken = fcntl(splice->in, F_SETPIPE_SZ, PIPE_BYTES) < PIPE_BYTES;
}

void tx_splice_close(struct tx_splice *splice)
{
	int before = nocancel_begin();
	if (splice->in) {
		close(splice->in);
		close(splice->out);
	}
	nocancel_end(before);
	splice->in = splice->out = 0;
	splice->broken = 1;
}

/* What the first bytes begin goes on as long as it is corked, then the pages end it. They are in the pipe before that. */
static int give(struct tx_splice *splice, const struct tx_path *path, const uint8_t *bytes, size_t length, uint16_t segment)
{
	struct iovec rest = { (void *)(uintptr_t)(bytes + SPLICE_HEAD), length - SPLICE_HEAD };
	int fd = path->outlet->fd, off = 0;
	ssize_t into = nocancel_vmsplice(splice->in, &rest, SPLICE_F_NONBLOCK);

	if (into != (ssize_t)rest.iov_len)
		return into < 0 ? errno : EIO;
	int error = send_patiently(path, bytes, SPLICE_HEAD, segment, MSG_MORE);
	if (error)
		return error;
	ssize_t gone = nocancel_splice(splice->out, fd, rest.iov_len, SPLICE_F_NONBLOCK);
	if (gone == (ssize_t)rest.iov_len)
		return 0;
	error = gone < 0 ? errno : EIO;
	setsockopt(fd, SOL_UDP, UDP_CORK, &off, sizeof(off)); /* what is begun ends */
	return error;
}

int tx_splice_send(struct tx_splice *splice, struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment)
{
	if (splice->broken || length <= segment || length > MOST_BYTES || ceil_div(length, segment) > path->max_segments)
		return EINVAL;
	if ((uintptr_t)(bytes + SPLICE_HEAD) % PAGE + length - SPLICE_HEAD > MOST_PAGES * PAGE)
		return EMSGSIZE;
	shape(path->outlet, path);
	int error = give(splice, path, bytes, length, (uint16_t)segment);
	if (!error) {
		splice->failures = 0;
		return 0;
	}
	tx_splice_close(splice); /* with what is in the pipe */
	if (++splice->failures < FAILURES)
		tx_splice_open(splice);
	return error;
}

int tx_loss_drops(struct tx_loss *loss)
{
	if (!loss->one_in)
		return 0;
	uint64_t mixed = loss->seed + ++loss->asked * 0x9e3779b97f4a7c15u;
	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
	return (mixed ^ mixed >> 31) % loss->one_in == 0;
}
#endif
