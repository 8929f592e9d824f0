/*
 * Stream rsockets. Each side gives the other a receive buffer in two halves. The sender writes into its current half, with the length as immediate data. A WRITE into its array of targets announces the next half and the number of messages that it may send. Immediate data: three bits of operation, 29 of a value.
 */
#ifndef RNIC_RDMACM_STREAM_H
#define RNIC_RDMACM_STREAM_H

#include "rdmacm_rs.h"

enum { RS_SGL_SIZE = 2, RS_QP_CTRL_SIZE = 4, RS_MAX_TRANSFER = 32768 };
enum { RS_OP_DATA = 0, RS_OP_WRITE = 2, RS_OP_SGL = 4, RS_OP_IOMAP_SGL = 6, RS_OP_CTRL = 7 };
enum { RS_CTRL_DISCONNECT, RS_CTRL_KEEPALIVE, RS_CTRL_SHUTDOWN };

extern const struct rs_ops stream_ops;

/* rdmacm_stream_connect.c */
int stream_open(struct rsocket *rs);
int stream_bind(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes);
int stream_listen(struct rsocket *rs, int backlog);
int stream_connect(struct rsocket *rs, const struct sockaddr *address, socklen_t bytes);
struct rsocket *stream_accept(struct rsocket *rs);
bool stream_settled(struct rsocket *rs);
void stream_process_events(struct rsocket *rs);

/* rdmacm_stream_qp.c */
void stream_fail(struct rsocket *rs, int error);
void stream_end(struct rsocket *rs);
int stream_post_recv(struct rsocket *rs);
/* Post a WRITE, with immediate data except for RS_OP_WRITE, which only the completion uses. */
int stream_post_write(struct rsocket *rs, uint32_t op, uint32_t value, const void *data, size_t bytes, uint32_t lkey,
		      uint64_t address, uint32_t rkey);
void stream_poll_cq(struct rsocket *rs);
void stream_send_credits(struct rsocket *rs);
struct rs_sge stream_peer_sge(const struct rsocket *rs, uint64_t addr, uint32_t key, uint32_t length);
bool stream_can_send(struct rsocket *rs);
/* Wait until something may be sent. Returns -1 with errno if that cannot be. */
int stream_wait_can_send(struct rsocket *rs, int flags);
/* Reserve up to `bytes`, at most `limit`, of contiguous space in the send buffer for a WRITE of `*size` bytes. */
uint8_t *stream_claim_sbuf(struct rsocket *rs, size_t bytes, uint32_t limit, uint32_t *size);

#endif
