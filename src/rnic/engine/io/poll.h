/* One round of a device on a UDP socket: receive, take, send (runtime/loop.py is the truth). It joins device/device.h, which does
 * no I/O, with io/udp.h, which knows no queue pairs. */
#ifndef RNIC_ENGINE_IO_POLL_H
#define RNIC_ENGINE_IO_POLL_H

#include "io/reorder.h"
#include "io/tx_zerocopy.h"
#include "device/device.h"
#include "io/udp.h"

#define POLL_SENDERS 1024u
#define POLL_LOG_SENDERS 10u
#define POLL_OUT_BYTES ((POLL_BUDGET + 16u) * 4160u)

/* A sender whose IPv4 idents are known to be what the engine takes them for. */
struct round_sender {
	uint32_t name_bytes; /* 0 for none */
	uint8_t name[UDP_NAME_BYTES];
	uint64_t right; /* packets that were taken with the idents expected, since somebody asked */
	struct engine_flow flow;
};

enum round_phase {
	POLL_IDLE,
	POLL_BEFORE, /* sending, since replies have waited for long */
	POLL_TAKING,
	POLL_AFTER, /* sending, since nothing came */
};

struct io_poll {
	struct engine_device *device;
	struct loopback *wire; /* what brings packets where no socket does */
	int32_t fd;
	uint32_t phase; /* enum round_phase */
	uint32_t silent; /* rounds in a row that took packets and sent nothing */
	uint32_t looks; /* how often to look again where nothing came and nothing is to be sent, in the next round alone */
	uint32_t hold; /* what is owed waits for what its owner sends next: nothing is sent before it */
	uint32_t gathers; /* short messages may wait for others: the program posts and polls them in a stream */
	uint32_t afloat; /* as many packets as count as in flight for that, if fewer are */
	uint32_t waits; /* messages of `waiting` that do */
	uint64_t waiting; /* the record of the queue pair that has them, alone in the line for turns */
	uint32_t greed; /* datagrams to ask for: as many as the last rounds found */
	uint32_t lone; /* the last round asked for one and found it */
	uint32_t came; /* slots filled in this round */
	uint32_t slot; /* the next to look at */
	uint64_t at; /* bytes taken of it */
	uint64_t clear; /* bytes of it up to which no packet is lost */
	uint32_t spoiled; /* the packet behind those is lost */
	uint64_t sent; /* packets handed to the socket in this round */
	uint64_t rx_bytes, tx_bytes, too_short, socket_errors; /* since the caller took them */
	uint64_t lost; /* packets that came and are lost, since the caller took the number */
	struct tx_loss loss; /* of what comes; in a slot that stopped with STOP_PACKET none */
	/* Or NULL: where packets come from beside the socket, and what they are where they are none (bypass/shm_loopback.h). `draw` fills
	 * slots and says how many; `take` is told of a slot with a `kind`, and stops as engine_stop_info says; whether that slot
	 * is done with. */
	unsigned (*draw)(void *hairpin, struct rx_buffer *slots, unsigned count);
	int (*take)(void *hairpin, const struct rx_buffer *slot, uint64_t now, struct engine_stop_info *told);
	void *hairpin;
	uint32_t drawn; /* the slots of this round came from there */
	uint32_t eager; /* rounds to come that leave the socket out though nothing comes from there */
	uint32_t passed; /* rounds in a row that did so, */
	uint32_t patience; /* of so many at most, */
	uint64_t looked; /* since this time */
	struct reorder_buffer *kept; /* what came beyond a gap; NULL before the first such packet */
	uint64_t feeding; /* the record of a queue pair that may go on with some of that, or 0 */
	uint32_t splices; /* nobody else sends by its sockets: pages may be lent to them, once bursts are long */
	struct tx_pages *sheets; /* or NULL before the first such (io/tx_zerocopy.h) */
	uint64_t turn; /* the record of the queue pair whose packets were made last */
	uint64_t spliced; /* bursts that left by their pages */
	struct tx_counts counts;
	struct engine_sending sending;
	struct engine_out out;
	struct udp_rx_scratch inbox;
	struct rx_buffer slots[POLL_RECEIVE_LIMIT];
	struct round_sender senders[POLL_SENDERS];
};

/* Begin with all zeros, then this. `buffers` is POLL_RECEIVE_LIMIT times POLL_BUFFER_BYTES, `out` POLL_OUT_BYTES,
 * or other such memory in each round: between rounds nothing is left in it. With a wire, which is set afterwards, neither
 * descriptor nor buffers are used. Where packets leave by wires `out` is from malloc, and is another after a round. */
void io_poll_init(struct io_poll *round, struct engine_device *device, int fd, uint8_t *buffers, uint8_t *out);

/* Give back what it has taken of memory. */
void io_poll_end(struct io_poll *round);

/* What comes from a socket address is taken from now on, or is not. */
void io_poll_add_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes, const struct engine_flow *flow);
void io_poll_forget_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes);
/* Packets of a sender that were taken since the last such question. */
uint64_t io_poll_good_packets(struct io_poll *round, const uint8_t *name, uint32_t name_bytes);

/* One round, or what is left of one that stopped: what arrived is taken; where nothing did, what waits is sent, up to
 * `budget` packets, at most POLL_BUDGET. It stops as engine_stop_info says; after STOP_PACKET the rest of `slot` from `at` on
 * is the caller's. The round is over with STOP_DONE. */
void io_poll(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *told);
/* The queue pair with this record is no more: nor is its turn, which Python has left open if it was interrupted in it. */
void io_poll_drop(struct io_poll *round, uint64_t at);

/* A doorbell was rung in the block of a queue pair, for a message of `length` bytes: 0, or -1 where it is the reference's.
 * GATHERED: that need not leave at once. In a stream of short messages up to as many as are in flight wait for the next,
 * since a datagram costs both ends more than the messages in it; a round in which nothing comes ends that. */
#define GATHERED 1
int io_poll_ring(struct io_poll *round, struct engine_qp *qp, uint64_t length);

/* Send what waits, or go on where that stopped. */
void io_poll_send(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *told);

#endif
