/* The poll loop of a device on a UDP socket: receive, take, send (runtime/rounds.py is the reference). It joins
 * device/device.h, which does no I/O, with io/udp.h, which knows no queue pairs. */
#ifndef RNIC_ENGINE_IO_POLL_H
#define RNIC_ENGINE_IO_POLL_H

#include "device/device.h"
#include "io/capture.h"
#include "io/faults.h"
#include "io/reorder.h"
#include "io/tx_zerocopy.h"
#include "io/udp.h"

#define POLL_SENDERS 1024u
#define POLL_LOG_SENDERS 10u
#define POLL_OUT_BYTES ((POLL_BUDGET + 16u) * 4160u)

/* A sender with the IPv4 idents that the engine expects. */
struct known_sender {
	uint32_t name_bytes; /* 0: the entry is empty */
	uint8_t name[UDP_NAME_BYTES];
	uint64_t good_packets; /* packets taken with the expected idents since io_poll_good_packets */
	struct engine_flow flow;
};

enum poll_phase {
	POLL_IDLE,
	POLL_SEND_FIRST, /* replies have waited too long: send before receiving */
	POLL_RECEIVE,
	POLL_SEND, /* nothing was received: send */
};

struct io_poll {
	struct engine_device *device;
	struct loopback *loopback; /* source of packets instead of a socket; NULL with a socket */
	int32_t fd;
	uint32_t phase; /* enum poll_phase */
	uint32_t rounds_without_send; /* consecutive rounds that received packets and sent nothing */
	/* in the next round: number of repeated receives if nothing was received and nothing is to be sent */
	uint32_t socket_checks;
	uint32_t hold_replies; /* send nothing before the program's next message, which replies may join */
	uint32_t gathers; /* the program posts and polls a stream: short messages may be gathered */
	uint32_t inflight_floor; /* for gathering, count at least this many packets as in flight */
	uint32_t gathered; /* gathered messages of `gathering_qp` */
	uint64_t gathering_qp; /* record of their queue pair; no other waits for a turn */
	uint32_t batch_limit; /* datagrams to receive per call: as many as recent rounds found */
	uint32_t single; /* the last round received a single datagram as requested */
	uint32_t received; /* buffers filled in this round */
	uint32_t rx_index; /* of `rx_buffers`: the current one, or the next to take */
	uint32_t rx_begun; /* it is judged, and may have runs left */
	uint32_t rx_open; /* there is a current run of packets */
	uint32_t rx_at; /* buffer of the run */
	uint64_t rx_offset; /* processed bytes of that buffer */
	struct fault_run rx_run;
	uint64_t sent; /* packets handed to the socket in this round */
	uint64_t rx_bytes, tx_bytes, too_short, socket_errors; /* since the caller read them */
	struct capture *capture; /* records packets, or NULL */
	struct faults *faults; /* injected faults, or NULL */
	uint32_t released; /* held packets are due in this round */
	uint64_t now; /* of this round */
	/* Rings that bring packets beside the socket (bypass/shm_loopback.h), or NULL. `ring_receive` fills buffers and
	 * returns their number. `ring_take` takes a buffer that has a `kind` and returns whether it is done with; it
	 * stops as engine_stop_info says. */
	unsigned (*ring_receive)(void *shm, struct rx_buffer *buffers, unsigned count, uint64_t now);
	int (*ring_take)(void *shm, const struct rx_buffer *rx, uint64_t now, struct engine_stop_info *info);
	void *shm;
	uint32_t ring_had_input; /* this round's buffers came from the rings */
	uint32_t socket_skipped; /* this round skipped the socket */
	uint32_t ring_only_rounds; /* rounds left that skip the socket even if the rings are empty */
	uint32_t rounds_since_socket; /* consecutive rounds that skipped the socket */
	uint32_t socket_interval; /* limit of `rounds_since_socket` */
	uint64_t socket_checked_ns; /* start of the current count of them */
	struct reorder_buffer *reorder; /* packets beyond a gap; NULL before the first one */
	uint64_t releasing_qp; /* record of a queue pair that may accept some of them, or 0 */
	uint32_t may_splice; /* no other code sends on these sockets, so long bursts may be spliced */
	struct tx_pages *tx_pages; /* NULL before the first long burst (io/tx_zerocopy.h) */
	uint64_t last_qp; /* record of the queue pair whose packets were built last */
	uint64_t spliced; /* spliced bursts */
	struct tx_counts counts;
	struct engine_sending sending;
	struct engine_out out;
	struct udp_rx_scratch rx_scratch;
	struct rx_buffer rx_buffers[POLL_RECEIVE_LIMIT];
	struct known_sender senders[POLL_SENDERS];
};

/* Initialize a structure of zeros. `buffers` is POLL_RECEIVE_LIMIT times POLL_BUFFER_BYTES, `out` POLL_OUT_BYTES; the
 * caller may give other memory in each round, since nothing is left in it between rounds. With a loopback, which the
 * caller sets later, neither descriptor nor buffers are used. If packets leave by loopbacks, `out` is from malloc and
 * may be another one after a round. */
void io_poll_init(struct io_poll *round, struct engine_device *device, int fd, uint8_t *buffers, uint8_t *out);

/* Apply these faults from now on; the caller has set the device's address, and frees them after the last round. */
void io_poll_set_faults(struct io_poll *round, struct faults *faults);

/* Free its memory. */
void io_poll_end(struct io_poll *round);

/* Start or stop taking packets from a socket address. */
void io_poll_add_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes,
			const struct engine_flow *flow);
void io_poll_forget_sender(struct io_poll *round, const uint8_t *name, uint32_t name_bytes);
/* Return the packets received from a sender since the last call. */
uint64_t io_poll_good_packets(struct io_poll *round, const uint8_t *name, uint32_t name_bytes);

/* Run one round, or the rest of one that stopped: take what arrived; if nothing did, send what waits, up to `budget`
 * packets, at most POLL_BUDGET. It stops as engine_stop_info says; after STOP_PUNT_PACKET the caller handles the rest
 * of the current run (io_poll_punt). STOP_DONE ends the round. */
void io_poll(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *info);
/* Return the buffer of the current run; the caller handles bytes `*from` to `*to`. */
const struct rx_buffer *io_poll_punt(struct io_poll *round, uint64_t *from, uint64_t *to);
/* Return the next deadline, of a queue pair or of held packets. */
uint64_t io_poll_deadline(const struct io_poll *round);
/* Forget a queue pair that is destroyed, by its record, and its turn, which Python may have left open. */
void io_poll_drop(struct io_poll *round, uint64_t at);

/* Ring the doorbell of a queue pair for a message of `length` bytes: 0, or -1 if the reference must. GATHERED: the
 * message need not leave at once. In a stream of short messages, up to as many as are in flight wait for the next one,
 * since a datagram costs both ends more than its messages do; a round that receives nothing ends the wait. */
#define GATHERED 1
int io_poll_ring(struct io_poll *round, struct engine_qp *qp, uint64_t length);

/* Send pending packets, or continue after a stop. */
void io_poll_send(struct io_poll *round, uint64_t now, uint64_t budget, struct engine_stop_info *info);

#endif
