/* Zero-copy transmit: long bursts are sent on a UDP socket by splicing their pages (Linux, splice(2)).
 *
 * A burst is built in a tx page, a block of memory whose pages the kernel uses instead of a copy. The block is reused
 * only once its packets have arrived, as far as this can be known, and only for the same address: packets may still be
 * queued because they were sent twice, were acknowledged early by the peer, or belong to a queue pair that was reset.
 * For another address, the block gets new memory first. This is used for requests of reliable connections, which are
 * acknowledged, and for READ responses to a peer that has agreed (OPT_SELECTIVE_REPEAT); all other packets are copied.
 * */
#ifndef RNIC_ENGINE_TX_ZEROCOPY_H
#define RNIC_ENGINE_TX_ZEROCOPY_H

#include <stddef.h>
#include <stdint.h>

struct engine_burst;
struct tx_pages;
struct tx_path;
struct io_poll;
struct queue_pair;

#define TX_PAGE_MIN_BURST 32768u /* shortest burst for which this is faster */
#define TX_PAGE_BYTES 131072u /* more than is built before it is sent */
#define TX_PAGES 32u /* enough for a window of the longest packets and for the kernel's queues */

/* Start sending. */
void tx_pages_begin(struct io_poll *round);
/* Select the buffer of the next packets, of the queue pair with this record and on this path: a tx page, if long bursts
 * are expected and one is free. */
void tx_pages_select(struct io_poll *round, const struct queue_pair *record, const struct tx_path *path);
/* Send the packets in a tx page; return 0 if they are elsewhere and the caller must send them. */
int tx_pages_transmit(struct io_poll *round);
/* Note that a burst was copied: if it could have been spliced, more long bursts are expected. */
void tx_pages_note_copy(struct io_poll *round, const struct engine_burst *burst);
/* End sending. */
void tx_pages_end(struct io_poll *round);
/* Forget a queue pair that is destroyed, by its record. */
void tx_pages_forget_qp(struct io_poll *round, uint64_t record);
/* Stop splicing if the program has closed the pipe. */
void tx_pages_check(struct tx_pages *pages);
void tx_pages_close(struct tx_pages *pages);

#endif
