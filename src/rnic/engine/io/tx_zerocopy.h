/* Pages lent to the system: long bursts leave a UDP socket without being copied once more (Linux, splice(2)).
 *
 * A burst is laid out on a sheet, and the system takes the sheet's pages in place of a copy. So a sheet is written to again
 * only once its packets have arrived, as far as can be told, and only for the same address: what is still in a queue, since
 * it was sent twice, was acknowledged by who does not have it yet, or is a queue pair's that was reset, is no other's then.
 * For another address the sheet gets other pages first. Lent are requests of reliable connections, which are acknowledged,
 * and READ responses to a peer of our own (OPT_KEEPS); all else is copied as ever.
 */
#ifndef RNIC_ENGINE_TX_ZEROCOPY_H
#define RNIC_ENGINE_TX_ZEROCOPY_H

#include <stddef.h>
#include <stdint.h>

struct engine_burst;
struct tx_pages;
struct tx_path;
struct io_poll;
struct queue_pair;

#define TX_PAGE_MIN_BURST 32768u /* bytes of a burst for which it pays */
#define TX_PAGE_BYTES 131072u /* more than is laid out before it is carried away */
#define TX_PAGES 32u /* a window of the longest packets, and what the system holds in its queues */

/* Begin to send. */
void tx_pages_begin(struct io_poll *round);
/* Packets of the queue pair with this record, which leave on this path, are laid out next: on a sheet, if long bursts are
 * expected and one is free. */
void tx_pages_select(struct io_poll *round, const struct queue_pair *record, const struct tx_path *path);
/* All that is laid out leaves, if that is on a sheet; else 0, and it is the caller's to send. */
int tx_pages_transmit(struct io_poll *round);
/* A burst was copied: more are expected, if its pages could have been lent. */
void tx_pages_note_copy(struct io_poll *round, const struct engine_burst *burst);
/* Sending is over. */
void tx_pages_end(struct io_poll *round);
/* The queue pair with this record is no more. */
void tx_pages_forget_qp(struct io_poll *round, uint64_t record);
void tx_pages_close(struct tx_pages *sheets);

#endif
