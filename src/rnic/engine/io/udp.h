/* UDP sockets (Linux) for the engine, which does no I/O. This code handles sockets and bytes, not queue pairs.
 *
 * A socket is not connected, does not block and sends with DF, so that Linux sets ident 0 and numbers the segments of
 * one send from there; the maker of the packets covers these idents by the ICRC. Errors are returned, as the link
 * counts them. */
#ifndef RNIC_ENGINE_UDP_H
#define RNIC_ENGINE_UDP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define UDP_NAME_BYTES 28u /* of a sockaddr_in6, the longer of the two */
#define UDP_RX_BUFFERS 64u /* most datagrams per call */
#define UDP_DEFAULT_HOP_LIMIT 64u
#define UDP_CONTROL_WORDS 16u

/* A receive buffer: room for one datagram, or for several that the system joined (GRO), and their metadata. */
struct rx_buffer {
	uint8_t *buffer;
	size_t room;
	size_t size; /* bytes received */
	uint32_t segment; /* length of each packet except the last */
	uint32_t name_bytes;
	uint8_t name[UDP_NAME_BYTES]; /* the sender's raw socket address */
	uint8_t tclass; /* 0 if unknown */
	uint8_t hop_limit; /* UDP_DEFAULT_HOP_LIMIT if unknown */
	uint32_t flow_label;
	uint32_t kind; /* kind of a ring record (io/poll.h); 0 for packets */
};

/* Scratch memory of receive calls. */
struct udp_rx_scratch {
	struct mmsghdr messages[UDP_RX_BUFFERS];
	struct iovec pieces[UDP_RX_BUFFERS];
	uint64_t control[UDP_RX_BUFFERS][UDP_CONTROL_WORDS];
};

/* Receive into at most `count` buffers, and at most UDP_RX_BUFFERS, in one call. Returns the number received, 0 if
 * nothing waits, or the system's error number below zero. */
int udp_receive(int fd, struct udp_rx_scratch *scratch, struct rx_buffer *buffers, unsigned count);

/* Send pieces as one message to a raw socket address, cut at `segment` bytes unless that is 0: 0 or the error
 * number. */
int udp_send(int fd, const void *name, uint32_t name_bytes, const struct iovec *pieces, size_t count, uint16_t segment);

/* A socket to send from, and the last values of its options. */
struct tx_socket {
	int fd;
	int32_t ipv4; /* else IPv6 */
	int32_t tclass; /* -1: unknown */
	int32_t hop_limit;
	int32_t priority; /* -1: unknown */
	int32_t may_set_segment; /* UDP_SEGMENT may be set: all code that sends on this socket handles it */
	int32_t segment; /* the option's value, 0 for none, -1 for unknown */
	/* consecutive sends before the last one with the segment size `last_segment` */
	uint32_t same_size_runs, last_segment;
};

struct loopback;

/* Path of packets: a socket, or a loopback in memory (io/loopback.h). */
struct tx_path {
	struct tx_socket *socket;
	struct loopback *loopback; /* else NULL */
	/* the raw socket address; with a loopback, the name that the receiver has for the sender */
	uint8_t name[UDP_NAME_BYTES];
	uint32_t name_bytes;
	uint32_t flow_label; /* only with a loopback; a socket address contains it */
	uint32_t max_segments; /* in one send: 1 without segmentation offload, or once the kernel has refused it */
	int32_t tclass; /* ECN bits included */
	int32_t hop_limit;
	int32_t priority; /* the service level */
	uint32_t source_port; /* UDP port of the socket */
	/* Alternative to the socket, or NULL. Returns whether it accepted the packets. */
	int (*divert)(void *arg, const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
		      uint32_t count);
	void *divert_arg;
};

/* Describe packets on a path as a loopback's receiver sees them. */
struct rx_buffer tx_path_describe(const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment);

/* Results of sends; the link has counters of the same names. */
struct tx_counts {
	uint64_t sent; /* packets */
	uint64_t drop_tx_too_long;
	uint64_t drop_tx_unreachable;
	uint64_t drop_tx_blocked;
	uint64_t drop_tx_error;
	uint64_t gso_refused; /* bursts */
	uint64_t priority_refused; /* changes of the priority */
	uint64_t link_errors; /* sends that failed as if the interface were down: check its state */
};

/* Send `length` bytes of packets, each but the last `segment` bytes long: as one burst if the path takes it, else
 * packet by packet. If the send buffer is full, wait UDP_SEND_WAIT_MS at most; then the packets are lost, as on a
 * wire. */
#define UDP_SEND_WAIT_MS 3
void udp_transmit(struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
		  struct tx_counts *counts);

/* A pipe that passes pages to a socket. Initialize with zeros, then open it. */
struct tx_splice {
	int in, out;
	uint32_t broken; /* not supported by the kernel */
	uint32_t failures; /* consecutive */
	uint64_t inode; /* identifies the pipe */
};

void tx_splice_open(struct tx_splice *splice);
void tx_splice_close(struct tx_splice *splice);
/* Forget the pipe if the program has closed it, since its numbers may belong to other files now. */
void tx_splice_check(struct tx_splice *splice);
/* Splice a burst. The caller must not write to its pages before the packets are received, nor send on the socket during
 * the call. Returns 0, or an error number: then nothing or a part was sent, and the caller must send all of it. */
int tx_splice_send(struct tx_splice *splice, struct tx_path *path, const uint8_t *bytes, size_t length,
		   uint32_t segment, struct tx_counts *counts);

#endif
