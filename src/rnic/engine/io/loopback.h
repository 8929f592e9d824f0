/* Loopback in memory: joins NICs of one process without sockets (the queue of link/loopback.py). Bursts arrive in
 * order, each in one piece: in the receiver's loopback memory, or, if they are long, in buffers that the sender trades
 * for empty ones. Any number of threads may put; one at a time takes. */
#ifndef RNIC_ENGINE_LOOPBACK_H
#define RNIC_ENGINE_LOOPBACK_H

#include "io/udp.h"

#define LOOPBACK_BURSTS 4096u /* most waiting bursts; further ones are lost, as are bytes beyond the room */
#define LOOPBACK_BUFFERS 64u /* most traded buffers of a loopback, in addition to its room */
#define LOOPBACK_BUFFER_MIN_ROOM (1u << 20) /* a loopback with less room does not trade buffers */

struct loopback;

/* Make a loopback with its bursts in `room` bytes from `bytes` on, which must outlive it. Returns NULL without memory. */
struct loopback *loopback_make(uint8_t *bytes, uint64_t room);
void loopback_free(struct loopback *loopback);

/* Discard waiting bursts; no more are accepted. */
void loopback_close(struct loopback *loopback);

/* Append a copy of a burst: 0, or EHOSTUNREACH if the loopback is closed. Without room the packets are lost, and the
 * sender does not learn of it. */
int loopback_put(struct loopback *loopback, const struct rx_buffer *rx);

/* Append `count` bursts without a copy: they are contiguous in `buffer`, which is from malloc and has `size` bytes. The
 * loopback takes ownership of it, and the caller owns the returned buffer. NULL: nothing was appended, because no
 * buffer is free or the loopback is closed. */
uint8_t *loopback_trade(struct loopback *loopback, const struct rx_buffer *bursts, unsigned count, uint8_t *buffer,
			size_t size);

/* Take up to `count` bursts and return their number. Their bytes stay as they are until the next call. */
unsigned loopback_take(struct loopback *loopback, struct rx_buffer *buffers, unsigned count);

/* A receiver that sleeps until a burst waits. */
struct loopback_sleeper {
	void (*wake)(void *self);
	/* Process bursts in the putting thread; returns whether that was possible. NULL: not supported. */
	int (*run_inline)(void *self);
	void *self;
};

/* Return whether no burst waits; if so, the sleeper is called once at the next burst. */
int loopback_listen(struct loopback *loopback, const struct loopback_sleeper *sleeper);
/* Remove the sleeper, and wait until no thread is calling it. */
void loopback_unlisten(struct loopback *loopback);
/* Call the sleeper, if there is one, after a put. The caller must hold no lock that `run_inline` waits for. */
void loopback_notify(struct loopback *loopback);

/* Return the packets lost for lack of room since the last such call. */
uint64_t loopback_lost(struct loopback *loopback);

#endif
