/* Posting: write descriptors into rings, then ring one doorbell, without a system call or the NIC process. */
#include "post.h"

#include <errno.h>
#include <string.h>

#include "ah.h"
#include "compiler.h"
#include "context.h"
#include "doorbell.h"
#include "qp.h"
#include "rnic_reasons.h"
#include "srq.h"
#include "wqe.h"

#define ROW(verbs, name, completion, key) [IBV_WR_##verbs] = { RNIC_WR_##name, key },
static const struct {
	uint16_t opcode;
	bool has_key; /* its immediate is a key to invalidate */
} work_requests[] = { RNIC_WORK_REQUESTS(ROW) };

static uint16_t sqe_flags(const struct rnic_qp *qp, unsigned int send_flags)
{
	return (uint16_t)((send_flags & IBV_SEND_SIGNALED || qp->sq_sig_all ? RNIC_FLAG_SIGNALED : 0) |
			  (send_flags & IBV_SEND_SOLICITED ? RNIC_FLAG_SOLICITED : 0) |
			  (send_flags & IBV_SEND_FENCE ? RNIC_FLAG_FENCE : 0));
}

static const char send_verb[] = "ibv_post_send";

static bool may_send(const struct rnic_qp *qp)
{
	int state = qp->verbs.qp_base.state;

	if (qp->service == RNIC_QP_ST_XRC_TGT)
		return false;
	return state != IBV_QPS_RESET && state != IBV_QPS_INIT && state != IBV_QPS_RTR;
}

/* Return why nothing can be posted: the device is gone, or the queue pair is not in RTS yet. */
static int __attribute__((cold)) cannot_send(const struct rnic_qp *qp)
{
	const struct ibv_context *verbs = qp->verbs.qp_base.context;

	return context_of(qp->verbs.qp_base.context)->dead ? why_device_gone(EIO, send_verb, verbs->device->name) :
							     why_not_in_rts(EINVAL, send_verb, qp->number);
}

static int __attribute__((cold)) send_queue_full(const struct rnic_qp *qp)
{
	return why_send_queue_full(ENOMEM, send_verb, qp->entries - 1);
}

/* Clear the entry at `*tail` and advance `*tail`. Returns NULL if the ring is full. */
static struct sqe *claim_sqe(struct rnic_qp *qp, uint32_t *tail, uint64_t wr_id)
{
	uint32_t index = *tail, next = index + 1 == qp->entries ? 0 : index + 1;
	struct sqe *sqe = &qp->sq[index];

	if (next == atomic_load_explicit(&qp->head, memory_order_acquire))
		return NULL;
	memset(sqe, 0, sizeof *sqe);
	qp->ids[index] = wr_id;
	sqe->wqe_id = (uint32_t)wr_id;
	*tail = next;
	return sqe;
}

static uint8_t *slab_of(const struct rnic_qp *qp, const struct sqe *sqe)
{
	return qp->slab + (size_t)(sqe - qp->sq) * qp->slab_bytes;
}

static int put_sge_list(struct rnic_qp *qp, struct sqe *sqe, const struct ibv_sge *list, size_t count)
{
	struct sge *slab = (struct sge *)(void *)slab_of(qp, sqe);
	uint64_t length = 0;

	if (count > (qp->cap.max_send_sge ? qp->cap.max_send_sge : 1))
		return why_num_sge(EINVAL, send_verb, (long long)count, "max_send_sge", qp->cap.max_send_sge);
	for (size_t i = 0; i < count; i++)
		length += list[i].length;
	if (length > UINT32_MAX)
		return why_length(EINVAL, send_verb, (long long)length);
	sqe->length = (uint32_t)length;
	if (count == 1) {
		sqe->local_addr = list->addr;
		sqe->lkey = list->lkey;
	} else if (count) {
		for (size_t i = 0; i < count; i++)
			slab[i] = (struct sge){ list[i].addr, list[i].length, list[i].lkey };
		sqe->flags |= RNIC_FLAG_LIST;
		sqe->lkey = (uint32_t)count;
	}
	return 0;
}

static int put_inline_data(struct rnic_qp *qp, struct sqe *sqe, const void *data, size_t length)
{
	if (length > qp->cap.max_inline_data - sqe->length)
		return why_inline_length(EINVAL, send_verb, (long long)(sqe->length + length), qp->cap.max_inline_data);
	if (length)
		memcpy(slab_of(qp, sqe) + sqe->length, data, length);
	sqe->length += (uint32_t)length;
	sqe->flags |= RNIC_FLAG_INLINE;
	return 0;
}

static void put_ud_address(struct sqe *sqe, const struct ibv_ah *verbs, uint32_t qpn, uint32_t qkey)
{
	const struct rnic_ah *ah = (const struct rnic_ah *)verbs;

	sqe->remote_addr = ah->path;
	sqe->rkey = ah->sgid_index;
	memcpy(sqe->ud.dgid, ah->dgid, sizeof sqe->ud.dgid);
	sqe->ud.dqpn_hop = (qpn & 0xFFFFFF) | ah->hop_limit << 24;
	sqe->ud.qkey = qkey;
}

static int put_bind(struct sqe *sqe, const struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	sqe->opcode = RNIC_WR_BIND_MW;
	if (info->length && !info->mr)
		return why_bind_region(EINVAL, send_verb, (long long)info->length);
	sqe->imm = mw->handle;
	sqe->local_addr = info->mw_access_flags;
	sqe->remote_addr = info->addr;
	sqe->lkey = info->mr ? info->mr->lkey : 0;
	sqe->rkey = rkey;
	sqe->bind_length = info->length;
	return 0;
}

/* Set an ATOMIC WRITE of eight bytes, which are read now. An ibv_send_wr has no field for a FLUSH's length. */
static int put_operand(struct sqe *sqe, const struct ibv_send_wr *wr)
{
	if (wr->opcode == IBV_WR_FLUSH)
		return why_not_supported(EOPNOTSUPP, send_verb, "IBV_WR_FLUSH", "use ibv_wr_flush");
	if (!(wr->send_flags & IBV_SEND_INLINE) || wr->num_sge != 1 ||
	    wr->sg_list->length != sizeof sqe->atomic.swap_add)
		return why_not_supported(EINVAL, send_verb, "an ATOMIC WRITE that is not of 8 inline bytes",
					 "set IBV_SEND_INLINE and one entry of 8 bytes");
	memcpy(&sqe->atomic.swap_add, (const void *)(uintptr_t)wr->sg_list->addr, sizeof sqe->atomic.swap_add);
	sqe->remote_addr = wr->wr.rdma.remote_addr;
	sqe->rkey = wr->wr.rdma.rkey;
	return 0;
}

static int put_send_wr(struct rnic_qp *qp, uint32_t *tail, const struct ibv_send_wr *wr)
{
	uint32_t start = *tail;
	struct sqe *sqe;
	int error = 0;

	if (wr->send_flags & ~0xFu)
		return why_send_flags(EOPNOTSUPP, send_verb, wr->send_flags);
	if ((unsigned)wr->opcode >= COUNT(work_requests) || !work_requests[wr->opcode].opcode)
		return why_opcode(EINVAL, send_verb, wr->opcode);
	if (wr->num_sge < 0)
		return why_num_sge(EINVAL, send_verb, wr->num_sge, "max_send_sge", qp->cap.max_send_sge);
	sqe = claim_sqe(qp, tail, wr->wr_id);
	if (!sqe)
		return send_queue_full(qp);
	sqe->opcode = work_requests[wr->opcode].opcode;
	sqe->flags = sqe_flags(qp, wr->send_flags);
	if (wr->opcode == IBV_WR_ATOMIC_WRITE || wr->opcode == IBV_WR_FLUSH) {
		error = put_operand(sqe, wr);
		sqe->xrc.srqn = qp->service == RNIC_QP_ST_XRC_INI ? wr->remote_srqn & 0xFFFFFF : 0;
		goto out;
	}
	if (wr->opcode == IBV_WR_BIND_MW) {
		error = put_bind(sqe, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		goto out;
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		sqe->flags |= RNIC_FLAG_INLINE;
		for (int i = 0; i < wr->num_sge && !error; i++)
			error = put_inline_data(qp, sqe, (const void *)(uintptr_t)wr->sg_list[i].addr,
						wr->sg_list[i].length);
	} else {
		error = put_sge_list(qp, sqe, wr->sg_list, (size_t)wr->num_sge);
	}
	if (qp->service == RNIC_QP_ST_XRC_INI)
		sqe->xrc.srqn = wr->remote_srqn & 0xFFFFFF;
	sqe->imm = work_requests[wr->opcode].has_key ? wr->invalidate_rkey : __builtin_bswap32(wr->imm_data);
	if (qp->verbs.qp_base.qp_type == IBV_QPT_UD) {
		if (wr->wr.ud.ah)
			put_ud_address(sqe, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
		else
			error = why_no_address_handle(EINVAL, send_verb, "set wr.ud.ah");
	} else if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sqe->remote_addr = wr->wr.atomic.remote_addr;
		sqe->rkey = wr->wr.atomic.rkey;
		sqe->atomic.swap_add = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.swap :
										 wr->wr.atomic.compare_add;
		sqe->atomic.compare = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.compare_add : 0;
	} else {
		sqe->remote_addr = wr->wr.rdma.remote_addr;
		sqe->rkey = wr->wr.rdma.rkey;
	}
out:
	if (error)
		*tail = start;
	return error;
}

static void ring_send_queue(struct rnic_qp *qp)
{
	struct rnic_context *context = context_of(qp->verbs.qp_base.context);

	queue_reg_store(context, qp->block, RNIC_REG_SQ_TAIL, qp->tail);
	ring_doorbell(context, qp->number, qp->block);
}

int rnic_post_send(struct ibv_qp *verbs, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct rnic_qp *qp = (struct rnic_qp *)verbs;
	uint32_t before;
	int error = 0;

	if (context_of(verbs->context)->dead || !may_send(qp)) {
		*bad = wr;
		return cannot_send(qp);
	}
	pthread_mutex_lock(&qp->lock);
	before = qp->tail;
	for (; wr; wr = wr->next) {
		error = put_send_wr(qp, &qp->tail, wr);
		if (error) {
			*bad = wr;
			break;
		}
	}
	if (qp->tail != before)
		ring_send_queue(qp);
	pthread_mutex_unlock(&qp->lock);
	return error;
}

int rnic_post_recv(struct ibv_qp *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct rnic_qp *qp = (struct rnic_qp *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	int error;

	if (context->dead || qp->srq || is_xrc(qp) || verbs->state == IBV_QPS_RESET) {
		*bad = wr;
		return is_xrc(qp)    ? why_bad_value(EINVAL, "ibv_post_recv",
						     "an XRC queue pair, which has no receive queue,") :
		       context->dead ? why_device_gone(EIO, "ibv_post_recv", verbs->context->device->name) :
		       qp->srq	     ? why_uses_srq(EINVAL, "ibv_post_recv", qp->number) :
				       why_in_reset(EINVAL, "ibv_post_recv", qp->number);
	}
	error = receive_ring_post(context, &qp->rq, wr, bad);
	/* The NIC reads receives when messages arrive. In the error state it must be notified to flush them. */
	if (atomic_load_explicit(queue_reg(context, qp->block, RNIC_REG_QUEUE_STATE), memory_order_relaxed) ==
	    RNIC_QP_ERR)
		ring_doorbell(context, qp->number, qp->block);
	return error;
}

/* ---- the ibv_wr_* interface: a descriptor is built call by call between start and complete */

static struct rnic_qp *qp_of_ex(struct ibv_qp_ex *verbs)
{
	return (struct rnic_qp *)verbs;
}

static void wr_start(struct ibv_qp_ex *verbs)
{
	struct rnic_qp *qp = qp_of_ex(verbs);

	pthread_mutex_lock(&qp->lock);
	qp->wr_tail = qp->tail;
	qp->wr = NULL;
	qp->wr_error = context_of(verbs->qp_base.context)->dead || !may_send(qp) ? cannot_send(qp) : 0;
}

static void wr_fail(struct rnic_qp *qp, int error)
{
	if (!qp->wr_error)
		qp->wr_error = error;
}

static int wr_complete(struct ibv_qp_ex *verbs)
{
	struct rnic_qp *qp = qp_of_ex(verbs);
	int error = qp->wr_error;

	if (!error && qp->wr_tail != qp->tail) {
		qp->tail = qp->wr_tail;
		ring_send_queue(qp);
	}
	pthread_mutex_unlock(&qp->lock);
	return error;
}

static void wr_abort(struct ibv_qp_ex *verbs)
{
	pthread_mutex_unlock(&qp_of_ex(verbs)->lock);
}

static struct sqe *begin_wr(struct ibv_qp_ex *verbs, uint16_t opcode)
{
	struct rnic_qp *qp = qp_of_ex(verbs);

	qp->wr = NULL;
	if (qp->wr_error)
		return NULL;
	if (verbs->wr_flags & ~0xFu) {
		wr_fail(qp, why_send_flags(EINVAL, send_verb, verbs->wr_flags));
		return NULL;
	}
	qp->wr = claim_sqe(qp, &qp->wr_tail, verbs->wr_id);
	if (!qp->wr) {
		wr_fail(qp, send_queue_full(qp));
		return NULL;
	}
	qp->wr->opcode = opcode;
	qp->wr->flags = sqe_flags(qp, verbs->wr_flags);
	qp->wr_data = opcode == RNIC_WR_BIND_MW || opcode == RNIC_WR_LOCAL_INV || opcode == RNIC_WR_FLUSH ||
		      opcode == RNIC_WR_ATOMIC_WRITE;
	return qp->wr;
}

static void wr_rdma(struct ibv_qp_ex *verbs, uint16_t opcode, uint32_t rkey, uint64_t va, be32_t imm)
{
	struct sqe *sqe = begin_wr(verbs, opcode);

	if (!sqe)
		return;
	sqe->rkey = rkey;
	sqe->remote_addr = va;
	sqe->imm = __builtin_bswap32(imm);
}

static void wr_rdma_read(struct ibv_qp_ex *verbs, uint32_t rkey, uint64_t va)
{
	wr_rdma(verbs, RNIC_WR_READ, rkey, va, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *verbs, uint32_t rkey, uint64_t va)
{
	wr_rdma(verbs, RNIC_WR_WRITE, rkey, va, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *verbs, uint32_t rkey, uint64_t va, be32_t imm)
{
	wr_rdma(verbs, RNIC_WR_WRITE_IMM, rkey, va, imm);
}

static void wr_send(struct ibv_qp_ex *verbs)
{
	begin_wr(verbs, RNIC_WR_SEND);
}

/* Begin a request whose only argument is immediate data, or a key to invalidate. */
static void wr_imm(struct ibv_qp_ex *verbs, uint16_t opcode, uint32_t imm)
{
	struct sqe *sqe = begin_wr(verbs, opcode);

	if (sqe)
		sqe->imm = imm;
}

static void wr_send_imm(struct ibv_qp_ex *verbs, be32_t imm)
{
	wr_imm(verbs, RNIC_WR_SEND_IMM, __builtin_bswap32(imm));
}

static void wr_send_inv(struct ibv_qp_ex *verbs, uint32_t rkey)
{
	wr_imm(verbs, RNIC_WR_SEND_INV, rkey);
}

static void wr_local_inv(struct ibv_qp_ex *verbs, uint32_t rkey)
{
	wr_imm(verbs, RNIC_WR_LOCAL_INV, rkey);
}

static void wr_atomic(struct ibv_qp_ex *verbs, uint16_t opcode, uint32_t rkey, uint64_t va, uint64_t swap_add,
		      uint64_t compare)
{
	struct sqe *sqe = begin_wr(verbs, opcode);

	if (!sqe)
		return;
	sqe->rkey = rkey;
	sqe->remote_addr = va;
	sqe->atomic.swap_add = swap_add;
	sqe->atomic.compare = compare;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *verbs, uint32_t rkey, uint64_t va, uint64_t compare, uint64_t swap)
{
	wr_atomic(verbs, RNIC_WR_CMP_SWAP, rkey, va, swap, compare);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *verbs, uint32_t rkey, uint64_t va, uint64_t add)
{
	wr_atomic(verbs, RNIC_WR_FETCH_ADD, rkey, va, add, 0);
}

static void wr_atomic_write(struct ibv_qp_ex *verbs, uint32_t rkey, uint64_t va, const void *data)
{
	uint64_t bytes;

	memcpy(&bytes, data, sizeof bytes);
	wr_atomic(verbs, RNIC_WR_ATOMIC_WRITE, rkey, va, bytes, 0);
}

static void wr_flush(struct ibv_qp_ex *verbs, uint32_t rkey, uint64_t va, size_t length, uint8_t type, uint8_t level)
{
	struct rnic_qp *qp = qp_of_ex(verbs);

	if (length > UINT32_MAX) {
		wr_fail(qp, why_length(EINVAL, "ibv_wr_flush", (long long)length));
		return;
	}
	wr_atomic(verbs, RNIC_WR_FLUSH, rkey, va, length, 0);
	if (qp->wr)
		qp->wr->imm = type | (uint32_t)level << RNIC_LEVEL_SHIFT;
}

static void wr_bind_mw(struct ibv_qp_ex *verbs, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct sqe *sqe = begin_wr(verbs, RNIC_WR_BIND_MW);

	if (!sqe)
		return;
	if (put_bind(sqe, mw, rkey, info))
		wr_fail(qp_of_ex(verbs), EINVAL);
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *verbs, uint32_t srqn)
{
	if (qp_of_ex(verbs)->wr)
		qp_of_ex(verbs)->wr->xrc.srqn = srqn & 0xFFFFFF;
}

static void wr_set_ud_addr(struct ibv_qp_ex *verbs, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	if (qp_of_ex(verbs)->wr)
		put_ud_address(qp_of_ex(verbs)->wr, ah, qpn, qkey);
}

/* Note that the request's data is set: once, and not for requests that carry none. Returns whether to set it. */
static bool takes_data(struct rnic_qp *qp)
{
	if (!qp->wr)
		return false;
	if (qp->wr_data)
		wr_fail(qp, why_bad_value(EINVAL, send_verb, "data set twice, or for a request that has none,"));
	else
		qp->wr_data = true;
	return !qp->wr_error;
}

static void wr_set_inline_data_list(struct ibv_qp_ex *verbs, size_t count, const struct ibv_data_buf *list)
{
	struct rnic_qp *qp = qp_of_ex(verbs);

	if (!takes_data(qp))
		return;
	qp->wr->flags |= RNIC_FLAG_INLINE;
	for (size_t i = 0; i < count; i++)
		if (put_inline_data(qp, qp->wr, list[i].addr, list[i].length))
			wr_fail(qp, EINVAL);
}

static void wr_set_inline_data(struct ibv_qp_ex *verbs, void *data, size_t length)
{
	struct ibv_data_buf one = { data, length };

	wr_set_inline_data_list(verbs, 1, &one);
}

static void wr_set_sge_list(struct ibv_qp_ex *verbs, size_t count, const struct ibv_sge *list)
{
	struct rnic_qp *qp = qp_of_ex(verbs);

	if (takes_data(qp) && put_sge_list(qp, qp->wr, list, count))
		wr_fail(qp, EINVAL);
}

static void wr_set_sge(struct ibv_qp_ex *verbs, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = { addr, length, lkey };

	wr_set_sge_list(verbs, 1, &sge);
}

void qp_fill_wr_ops(struct rnic_qp *qp)
{
	struct ibv_qp_ex *verbs = &qp->verbs;

	qp->extended = true;
	verbs->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	verbs->wr_atomic_fetch_add = wr_atomic_fetch_add;
	verbs->wr_atomic_write = wr_atomic_write;
	qp->newer.wr_flush = wr_flush;
	verbs->wr_bind_mw = wr_bind_mw;
	verbs->wr_local_inv = wr_local_inv;
	verbs->wr_rdma_read = wr_rdma_read;
	verbs->wr_rdma_write = wr_rdma_write;
	verbs->wr_rdma_write_imm = wr_rdma_write_imm;
	verbs->wr_send = wr_send;
	verbs->wr_send_imm = wr_send_imm;
	verbs->wr_send_inv = wr_send_inv;
	verbs->wr_set_ud_addr = wr_set_ud_addr;
	verbs->wr_set_xrc_srqn = wr_set_xrc_srqn;
	verbs->wr_set_inline_data = wr_set_inline_data;
	verbs->wr_set_inline_data_list = wr_set_inline_data_list;
	verbs->wr_set_sge = wr_set_sge;
	verbs->wr_set_sge_list = wr_set_sge_list;
	verbs->wr_start = wr_start;
	verbs->wr_complete = wr_complete;
	verbs->wr_abort = wr_abort;
}
