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
#include <sys/stat.h>

/* Linux's numbers, for C libraries that lack them. */
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

#define SPLICE_MAX_FAILURES 8u /* consecutive failures after which splicing is not tried again */
#define PIPE_BYTES 131072 /* more than the pages of a burst */
#define SPLICE_HEAD 12u /* bytes of a burst sent as normal data, which the kernel requires */
#define MIN_PAGE_BYTES 4096u /* smallest page size of any system */
#define SPLICE_MAX_PAGES 16u /* most pages that the kernel appends to one packet */
#define LABEL_MASK 0xfffffu
#define SAME_SIZE_RUNS_MIN 64u
#define UDP_MAX_PAYLOAD 65507u /* payload of one send, segmented or not */

/* Return the number in a control message, whatever its length. */
static uint32_t read_number(struct cmsghdr *header)
{
	size_t room = header->cmsg_len - CMSG_LEN(0);
	uint32_t number = 0;
	if (room >= sizeof(number))
		memcpy(&number, CMSG_DATA(header), sizeof(number));
	else if (room)
		number = *CMSG_DATA(header);
	return number;
}

static void read_control(struct msghdr *message, struct rx_buffer *rx)
{
	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
		uint32_t number = read_number(header);
		if (header->cmsg_level == SOL_UDP && header->cmsg_type == UDP_GRO) {
			if (number && number < rx->segment)
				rx->segment = number;
		} else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TOS) {
			rx->tclass = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TTL) {
			rx->hop_limit = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_TCLASS) {
			rx->tclass = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_HOPLIMIT) {
			rx->hop_limit = (uint8_t)number;
		} else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_FLOWINFO) {
			rx->flow_label = ntohl(number) & LABEL_MASK;
		}
	}
}

int udp_receive(int fd, struct udp_rx_scratch *scratch, struct rx_buffer *buffers, unsigned count)
{
	if (count > UDP_RX_BUFFERS)
		count = UDP_RX_BUFFERS;
	for (unsigned i = 0; i < count; i++) {
		scratch->pieces[i] = (struct iovec){ buffers[i].buffer, buffers[i].room };
		scratch->messages[i].msg_hdr = (struct msghdr){
			.msg_name = buffers[i].name,
			.msg_namelen = UDP_NAME_BYTES,
			.msg_iov = &scratch->pieces[i],
			.msg_iovlen = 1,
			.msg_control = scratch->control[i],
			.msg_controllen = sizeof(scratch->control[i]),
		};
	}
	int received = count == 1 ? -1 : nocancel_recvmmsg(fd, scratch->messages, count, MSG_DONTWAIT);
	if (count == 1) { /* one datagram: a cheaper call */
		ssize_t size = nocancel_recvmsg(fd, &scratch->messages[0].msg_hdr, MSG_DONTWAIT);
		if (size >= 0) {
			scratch->messages[0].msg_len = (unsigned)size;
			received = 1;
		}
	}
	if (received < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (int i = 0; i < received; i++) {
		struct msghdr *message = &scratch->messages[i].msg_hdr;
		struct rx_buffer *rx = &buffers[i];
		rx->size = scratch->messages[i].msg_len;
		rx->segment = (uint32_t)rx->size;
		rx->kind = 0;
		rx->name_bytes = message->msg_namelen < UDP_NAME_BYTES ? message->msg_namelen : UDP_NAME_BYTES;
		rx->tclass = 0;
		rx->hop_limit = UDP_DEFAULT_HOP_LIMIT;
		rx->flow_label = 0;
		read_control(message, rx);
	}
	return received;
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
	if (!segment && count == 1) /* cheaper than a message header */
		return nocancel_sendto(fd, pieces->iov_base, pieces->iov_len, name, name_bytes) < 0 ? errno : 0;
	return udp_send_flagged(fd, name, name_bytes, pieces, count, segment, 0);
}

#define MAX_PRIORITY 6 /* the highest that needs no capability */

static void set_option(int fd, int level, int option, int value)
{
	setsockopt(fd, level, option, &value, sizeof(value)); /* a kernel without the option uses its default */
}

/* Set the path's traffic class, priority and hop limit for what leaves the socket from now on. */
static void set_ip_options(struct tx_socket *socket, const struct tx_path *path, struct tx_counts *counts)
{
	if (socket->tclass != path->tclass) {
		socket->tclass = path->tclass;
		if (socket->ipv4 && socket->priority)
			socket->priority = -1; /* the kernel derives the priority from the type of service */
		if (socket->ipv4)
			set_option(socket->fd, IPPROTO_IP, IP_TOS, path->tclass);
		else
			set_option(socket->fd, IPPROTO_IPV6, IPV6_TCLASS, path->tclass);
	}
	if (socket->priority != path->priority) {
		socket->priority = path->priority;
		if (setsockopt(socket->fd, SOL_SOCKET, SO_PRIORITY, &path->priority, sizeof path->priority)) {
			set_option(socket->fd, SOL_SOCKET, SO_PRIORITY, MAX_PRIORITY);
			counts->priority_refused++;
		}
	}
	if (socket->hop_limit != path->hop_limit) {
		socket->hop_limit = path->hop_limit;
		if (socket->ipv4) {
			set_option(socket->fd, IPPROTO_IP, IP_TTL, path->hop_limit);
			set_option(socket->fd, IPPROTO_IP, IP_MULTICAST_TTL, path->hop_limit);
		} else {
			set_option(socket->fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, path->hop_limit);
			set_option(socket->fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, path->hop_limit);
		}
	}
}

/* Return the segment size that the next message's control message must contain; 0 for none. A control message costs
 * some time: after many sends with the same size the socket's option sets it, until a single packet is sent. */
static uint16_t segment_for_message(struct tx_socket *socket, uint16_t segment)
{
	if (!socket->may_set_segment)
		return segment;
	socket->same_size_runs = segment == socket->last_segment ? socket->same_size_runs + 1 : 0;
	socket->last_segment = segment;
	if (segment ? socket->same_size_runs >= SAME_SIZE_RUNS_MIN && socket->segment != segment :
		      socket->segment != 0) {
		int value = segment;
		socket->segment = setsockopt(socket->fd, SOL_UDP, UDP_SEGMENT, &value, sizeof(value)) ? -1 : segment;
	}
	return segment == socket->segment ? 0 : segment;
}

/* Send once, and again while the send buffer is full: 0 or the error number. */
static int send_with_retry(const struct tx_path *path, const uint8_t *bytes, size_t length, uint16_t segment, int flags)
{
	struct iovec piece = { (void *)(uintptr_t)bytes, length };
	int fd = path->socket->fd;
	segment = segment_for_message(path->socket, segment);
	for (int waited = 0;; waited++) {
		int error = flags ? udp_send_flagged(fd, path->name, path->name_bytes, &piece, 1, segment, flags) :
				    udp_send(fd, path->name, path->name_bytes, &piece, 1, segment);
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
		counts->link_errors++;
}

static int refuses_segments(int error)
{
	return error == EINVAL || error == EIO || error == EOPNOTSUPP || error == ENOPROTOOPT;
}

struct rx_buffer tx_path_describe(const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment)
{
	struct rx_buffer rx = {
		.buffer = (uint8_t *)(uintptr_t)bytes,
		.room = length,
		.size = length,
		.segment = segment,
		.name_bytes = path->name_bytes,
		.tclass = (uint8_t)path->tclass,
		.hop_limit = (uint8_t)path->hop_limit,
		.flow_label = path->flow_label,
	};
	memcpy(rx.name, path->name, sizeof(rx.name));
	return rx;
}

static void transmit_by_loopback(const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
				 uint64_t packets, struct tx_counts *counts)
{
	const struct rx_buffer rx = tx_path_describe(path, bytes, length, segment);
	int error = loopback_put(path->loopback, &rx);
	if (error)
		count_failure(counts, error, packets);
	else
		counts->sent += packets;
	loopback_notify(path->loopback);
}

void udp_transmit(struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment, struct tx_counts *counts)
{
	if (!length || !segment)
		return;
	uint64_t packets = ceil_div(length, segment);
	if (path->loopback) {
		transmit_by_loopback(path, bytes, length, segment, packets, counts);
		return;
	}
	set_ip_options(path->socket, path, counts);
	if (packets > 1 && packets <= path->max_segments && length <= UDP_MAX_PAYLOAD) {
		int error = send_with_retry(path, bytes, length, (uint16_t)segment, 0);
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
		int error = send_with_retry(path, bytes + at, size, 0, 0);
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
	struct stat found;
	splice->inode = fstat(splice->in, &found) ? 0 : found.st_ino;
}

static int is_pipe(int fd, uint64_t inode)
{
	struct stat found;
	return !fstat(fd, &found) && S_ISFIFO(found.st_mode) && found.st_ino == inode;
}

void tx_splice_check(struct tx_splice *splice)
{
	if (splice->in && !(is_pipe(splice->in, splice->inode) && is_pipe(splice->out, splice->inode))) {
		splice->in = splice->out = 0;
		splice->broken = 1;
	}
}

void tx_splice_close(struct tx_splice *splice)
{
	int before = nocancel_begin();
	tx_splice_check(splice);
	if (splice->in) {
		close(splice->in);
		close(splice->out);
	}
	nocancel_end(before);
	splice->in = splice->out = 0;
	splice->broken = 1;
}

/* Send a burst: the first bytes begin a corked datagram, and the pages, which are put into the pipe before, end it. */
static int splice_burst(struct tx_splice *splice, const struct tx_path *path, const uint8_t *bytes, size_t length,
			uint16_t segment)
{
	struct iovec rest = { (void *)(uintptr_t)(bytes + SPLICE_HEAD), length - SPLICE_HEAD };
	int fd = path->socket->fd, uncork = 0;
	ssize_t piped = nocancel_vmsplice(splice->in, &rest, SPLICE_F_NONBLOCK);

	if (piped != (ssize_t)rest.iov_len)
		return piped < 0 ? errno : EIO;
	int error = send_with_retry(path, bytes, SPLICE_HEAD, segment, MSG_MORE);
	if (error)
		return error;
	ssize_t sent = nocancel_splice(splice->out, fd, rest.iov_len, SPLICE_F_NONBLOCK);
	if (sent == (ssize_t)rest.iov_len)
		return 0;
	error = sent < 0 ? errno : EIO;
	setsockopt(fd, SOL_UDP, UDP_CORK, &uncork, sizeof(uncork)); /* end the datagram that was begun */
	return error;
}

int tx_splice_send(struct tx_splice *splice, struct tx_path *path, const uint8_t *bytes, size_t length,
		   uint32_t segment, struct tx_counts *counts)
{
	if (splice->broken || length <= segment || length > UDP_MAX_PAYLOAD ||
	    ceil_div(length, segment) > path->max_segments)
		return EINVAL;
	if ((uintptr_t)(bytes + SPLICE_HEAD) % MIN_PAGE_BYTES + length - SPLICE_HEAD >
	    SPLICE_MAX_PAGES * MIN_PAGE_BYTES)
		return EMSGSIZE;
	set_ip_options(path->socket, path, counts);
	int error = splice_burst(splice, path, bytes, length, (uint16_t)segment);
	if (!error) {
		splice->failures = 0;
		return 0;
	}
	tx_splice_close(splice); /* discards the contents of the pipe */
	if (++splice->failures < SPLICE_MAX_FAILURES)
		tx_splice_open(splice);
	return error;
}
#endif
