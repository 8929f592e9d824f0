/* The pump: what joins the engine, which does no I/O, with UDP sockets (Linux). It knows sockets and bytes, no queue pairs.
 *
 * A socket is not connected, does not block and sends with DF, so that Linux sets ident 0 and numbers the segments of one
 * send from there; who makes the packets puts these idents under the ICRC. Errors are answers, as the link counts them.
 */
#ifndef RNIC_ENGINE_UDP_H
#define RNIC_ENGINE_UDP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define UDP_NAME_BYTES 28u /* of a sockaddr_in6, the longer of the two */
#define UDP_RX_BUFFERS 64u /* datagrams of one call */
#define UDP_DEFAULT_HOP_LIMIT 64u
#define UDP_CONTROL_WORDS 16u

/* Room for one datagram, or for a burst of them that the system made one, and what came with it. */
struct rx_buffer {
	uint8_t *buffer;
	size_t room;
	size_t size; /* bytes that came */
	uint32_t segment; /* each packet but the last is so long */
	uint32_t name_bytes;
	uint8_t name[UDP_NAME_BYTES]; /* the sender's raw socket address */
	uint8_t tclass; /* 0 where the system does not tell */
	uint8_t hop_limit; /* UDP_DEFAULT_HOP_LIMIT where the system does not tell */
	uint32_t flow_label;
	uint32_t kind; /* of what came from elsewhere than the socket (io/poll.h); 0 for packets */
};

/* What the calls need besides, made once. */
struct udp_rx_scratch {
	struct mmsghdr messages[UDP_RX_BUFFERS];
	struct iovec pieces[UDP_RX_BUFFERS];
	uint64_t control[UDP_RX_BUFFERS][UDP_CONTROL_WORDS];
};

/* Receive into at most `count` slots, of which UDP_RX_BUFFERS count, in one call: the number that came, 0 where nothing waits,
 * or the system's error number below zero. */
int udp_receive(int fd, struct udp_rx_scratch *inbox, struct rx_buffer *slots, unsigned count);

/* Send pieces as one message to a raw socket address, cut at `segment` bytes unless that is 0: 0 or the error number. */
int udp_send(int fd, const void *name, uint32_t name_bytes, const struct iovec *pieces, size_t count, uint16_t segment);

/* A socket to send from, and what its options say of what leaves it. */
struct tx_socket {
	int fd;
	int32_t ipv4; /* else IPv6 */
	int32_t tclass; /* as the options were set last; -1 where nobody knows */
	int32_t hop_limit;
	int32_t cuts; /* whether an option may say at which length runs are cut: who else sends by it knows of that */
	int32_t segment; /* the length that it says, 0 for none; -1 as above */
	uint32_t alike, last; /* so many runs in a row before the last one were cut as that was, at `last` */
};

struct loopback;

/* Where packets go: by a socket, or by a wire in memory (io/loopback.h). */
struct tx_path {
	struct tx_socket *outlet;
	struct loopback *wire; /* else NULL */
	uint8_t name[UDP_NAME_BYTES]; /* the raw socket address; with a wire, what the receiver knows the sender by */
	uint32_t name_bytes;
	uint32_t flow_label; /* with a wire; a socket address has it in itself */
	uint32_t max_segments; /* of one send: 1 without segmentation offload, and once the system has refused it */
	int32_t tclass; /* ECN bits included */
	int32_t hop_limit;
	/* Or NULL: another way than the socket, if it takes packets; whether it did. */
	int (*divert)(void *lane, const uint8_t *bytes, size_t length, uint32_t segment, uint32_t count);
	void *lane;
};

/* What a wire is told of packets that take a path. */
struct rx_buffer tx_path_describe(const struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment);

/* What became of packets, counted; the link's counters of the same names. */
struct tx_counts {
	uint64_t sent; /* packets */
	uint64_t drop_tx_too_long;
	uint64_t drop_tx_unreachable;
	uint64_t drop_tx_blocked;
	uint64_t drop_tx_error;
	uint64_t gso_refused; /* bursts */
	uint64_t look; /* sends that failed as they do where the interface is down: look whether it is */
};

/* Send `length` bytes of packets, each but the last `segment` bytes long: as one burst where the path takes it, else packet
 * by packet. A full send buffer is waited for, UDP_SEND_WAIT_MS at most, or the packets are lost as they are on a wire. */
#define UDP_SEND_WAIT_MS 3
void udp_transmit(struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
		   struct tx_counts *counts);

/* A pipe that takes pages, and gives them to a socket. Begin with all zeros, then open it. */
struct tx_splice {
	int in, out;
	uint32_t broken; /* the system does not do it */
	uint32_t failures; /* in a row */
};

void tx_splice_open(struct tx_splice *splice);
void tx_splice_close(struct tx_splice *splice);
/* Send a burst by its pages, which nobody writes to until its packets were taken. Nobody else sends by that socket
 * meanwhile. 0, or an error number: then nothing was sent or a part, and the caller sends all of it. */
int tx_splice_send(struct tx_splice *splice, struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment);

/* A seeded network that loses packets: one in `one_in` of those that are asked about, none for 0. The same seed and the
 * same number give the same answer, whoever asks (SplitMix64 of the count). */
struct tx_loss {
	uint64_t seed;
	uint64_t asked;
	uint64_t one_in;
};
int tx_loss_drops(struct tx_loss *loss);

#endif
