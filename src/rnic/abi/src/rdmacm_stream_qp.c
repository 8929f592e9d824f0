/* A stream's queue pair: its messages, their completions, and credits. */
#include "rdmacm_stream.h"

#include <endian.h>
#include <errno.h>

#include "errors.h"

enum { VALUE_BITS = 29, VALUE_MASK = (1 << VALUE_BITS) - 1, WC_BATCH = 16 };
#define IS_RECV (1ull << 63) /* in a wr_id */

void stream_fail(struct rsocket *rs, int error)
{
	if (rs->state == RS_ERROR)
		return;
	rs->state = RS_ERROR;
	rs->error = error;
	rs->can_read = rs->can_write = false;
}

int stream_post_recv(struct rsocket *rs)
{
	struct ibv_recv_wr wr = { .wr_id = IS_RECV }, *bad;

	return rs->id->qp->context->ops.post_recv(rs->id->qp, &wr, &bad);
}

int stream_post_write(struct rsocket *rs, uint32_t op, uint32_t value, const void *data, size_t bytes, uint32_t lkey,
		      uint64_t address, uint32_t rkey)
{
	uint32_t message = op << VALUE_BITS | (value & VALUE_MASK);
	struct ibv_sge sge = { (uintptr_t)data, (uint32_t)bytes, lkey };
	struct ibv_send_wr wr = { .wr_id = message,
				  .sg_list = &sge,
				  .num_sge = bytes ? 1 : 0,
				  .send_flags = IBV_SEND_SIGNALED,
				  .opcode = op == RS_OP_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM };
	struct ibv_send_wr *bad;
	int error;

	if (bytes <= RS_INLINE)
		wr.send_flags |= IBV_SEND_INLINE;
	wr.imm_data = htobe32(message);
	wr.wr.rdma.remote_addr = address;
	wr.wr.rdma.rkey = rkey;
	error = rs->id->qp->context->ops.post_send(rs->id->qp, &wr, &bad);
	if (error)
		stream_fail(rs, error);
	return error;
}

struct rs_sge stream_peer_sge(const struct rsocket *rs, uint64_t addr, uint32_t key, uint32_t length)
{
	struct rs_sge target = { addr, key, length };

	if (rs->swap_sgl) {
		target.addr = __builtin_bswap64(target.addr);
		target.key = __builtin_bswap32(target.key);
		target.length = __builtin_bswap32(target.length);
	}
	return target;
}

/* Tell the peer how many messages it may send, and which half of the buffer is free again. */
void stream_send_credits(struct rsocket *rs)
{
	uint32_t half = rs->rbuf_bytes / 2;
	bool room = rs->rbuf_free >= half;
	struct rs_sge target;

	if (rs->state != RS_CONNECTED || rs->controls >= RS_QP_CTRL_SIZE ||
	    (!room && (int16_t)(uint16_t)(rs->rseq_no - rs->rseq_comp) < 0))
		return;
	rs->controls++;
	rs->rseq_comp = (uint16_t)(rs->rseq_no + rs->rq_size / 2);
	if (!room) {
		stream_post_write(rs, RS_OP_SGL, (uint16_t)(rs->rseq_no + rs->rq_size), NULL, 0, 0, 0, 0);
		return;
	}
	target = stream_peer_sge(rs, (uintptr_t)rs->rbuf + rs->rbuf_free_at, rs->rmr->rkey, half);
	stream_post_write(rs, RS_OP_SGL, (uint16_t)(rs->rseq_no + rs->rq_size), &target, sizeof target, 0,
			  rs->remote_sgl.addr + rs->remote_sge * sizeof target, rs->remote_sgl.key);
	rs->rbuf_free -= half;
	rs->rbuf_free_at = rs->rbuf_free_at ? 0 : half;
	rs->remote_sge = (rs->remote_sge + 1) % rs->remote_sgl.length;
}

void stream_end(struct rsocket *rs)
{
	if (rs->state == RS_CONNECTED || rs->state == RS_CONNECTING)
		rs->state = RS_DISCONNECTED;
	rs->can_read = rs->can_write = false;
}

static void process_control(struct rsocket *rs, uint32_t value)
{
	if (value == RS_CTRL_DISCONNECT || (value == RS_CTRL_SHUTDOWN && !rs->can_write))
		stream_end(rs);
	else if (value == RS_CTRL_SHUTDOWN)
		rs->can_read = false;
}

/* Account for received data. The length is the peer's claim, limited to the available space. */
static void process_data(struct rsocket *rs, uint32_t bytes)
{
	unsigned next = (rs->rmsg_tail + 1) % (rs->rq_size + 1u);

	if (bytes > rs->rbuf_bytes - rs->rbuf_held || next == rs->rmsg_head) {
		stream_fail(rs, EPROTO);
		return;
	}
	rs->rbuf_held += bytes;
	rs->rmsg[rs->rmsg_tail] = bytes;
	rs->rmsg_tail = next;
}

static void process_message(struct rsocket *rs, uint32_t message)
{
	uint32_t value = message & VALUE_MASK;

	switch (message >> VALUE_BITS) {
	case RS_OP_DATA:
		process_data(rs, value);
		break;
	case RS_OP_SGL:
		rs->sseq_comp = (uint16_t)value;
		break;
	case RS_OP_IOMAP_SGL:
		rs->rseq_no++; /* it used a message credit, and is read already */
		break;
	case RS_OP_CTRL:
		process_control(rs, value);
		break;
	default:
		stream_fail(rs, EPROTO);
	}
}

static void complete_send(struct rsocket *rs, uint32_t message)
{
	switch (message >> VALUE_BITS) {
	case RS_OP_SGL:
	case RS_OP_CTRL:
		rs->controls--;
		break;
	case RS_OP_IOMAP_SGL:
		rs->sends--;
		break;
	default:
		rs->sends--;
		rs->sbuf_used -= message & VALUE_MASK;
	}
}

void stream_poll_cq(struct rsocket *rs)
{
	struct ibv_wc wcs[WC_BATCH];
	int count;

	if (!rs->cq)
		return;
	do {
		count = rs->cq->context->ops.poll_cq(rs->cq, WC_BATCH, wcs);
		for (int i = 0; i < count; i++) {
			struct ibv_wc *wc = &wcs[i];

			if (!(wc->wr_id & IS_RECV))
				complete_send(rs, (uint32_t)wc->wr_id);
			if (wc->status != IBV_WC_SUCCESS) {
				if (rs->state == RS_CONNECTED)
					stream_fail(rs, wc->status == IBV_WC_RETRY_EXC_ERR ? ETIMEDOUT : ECONNRESET);
				continue;
			}
			if (!(wc->wr_id & IS_RECV))
				continue;
			/* The peer may send before this side learns that the connection is established. */
			process_message(rs, be32toh(wc->imm_data));
			if ((rs->state == RS_CONNECTED || rs->state == RS_CONNECTING) && stream_post_recv(rs))
				stream_fail(rs, ENOMEM);
		}
	} while (count == WC_BATCH);
	stream_send_credits(rs);
}

bool stream_can_send(struct rsocket *rs)
{
	const struct rs_sge *target = &rs->target_sgl[rs->target_sge];

	return rs->can_write && rs->sends < rs->sq_size && rs->sbuf_used < rs->sbuf_bytes &&
	       rs->sseq_no != rs->sseq_comp && __atomic_load_n(&target->length, __ATOMIC_ACQUIRE);
}

static bool can_send_or_end(struct rsocket *rs)
{
	return (rs->state != RS_CONNECTING && !rs->can_write) || stream_can_send(rs);
}

uint8_t *stream_claim_sbuf(struct rsocket *rs, size_t bytes, uint32_t limit, uint32_t *size)
{
	uint32_t tail, room;
	uint8_t *at;

	if (!rs->sbuf_used || rs->sbuf_head == rs->sbuf_bytes)
		rs->sbuf_head = 0;
	tail = (rs->sbuf_head + rs->sbuf_bytes - rs->sbuf_used) % rs->sbuf_bytes;
	room = rs->sbuf_used && tail > rs->sbuf_head ? tail - rs->sbuf_head : rs->sbuf_bytes - rs->sbuf_head;
	*size = min_u32(min_u32(room, RS_MAX_TRANSFER), limit);
	if (*size > bytes)
		*size = (uint32_t)bytes;
	at = rs->sbuf + rs->sbuf_head;
	rs->sbuf_head += *size;
	rs->sbuf_used += *size;
	rs->sends++;
	return at;
}

int stream_wait_can_send(struct rsocket *rs, int flags)
{
	if (rs_wait(rs, can_send_or_end, flags, rs->send_timeout_ms))
		return -1;
	if (rs->can_write)
		return 0;
	if (rs->state == RS_ERROR && rs->error)
		return rdma_seterrno(rs->error);
	return rdma_seterrno(rs->state == RS_INIT || rs->state == RS_BOUND || rs->state == RS_LISTENING ? ENOTCONN :
													  EPIPE);
}
