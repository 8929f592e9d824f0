/* Completion queues: entries read by their phase bit, without the kernel and without the NIC process. */
#include "cq.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "doorbell.h"
#include "errors.h"
#include "events.h"
#include "gid.h"
#include "io/clock.h"
#include "on_command.h"
#include "qp.h"
#include "rnic_reasons.h"
#include "srq.h"

enum {
	SLICE_NS = 100000, /* of a thread whose polls find nothing (runtime/sched_slice.py) */
	MIN_LOG_ENTRIES = 7, /* a page; programs that undercount their completions need spare room */
	MAX_OTHER_QUEUES = 64, /* other queues that a thread polls before it yields at whichever comes next */
	CHECK_NIC_EVERY = 4096, /* empty polls, a power of two */
};

/* Leave one entry unused: a full ring would look like an empty one. */
static uint32_t log_entries(uint32_t cqe)
{
	return 32 - (uint32_t)__builtin_clz(cqe);
}

static const uint8_t status_of_syndrome[256] = {
	[RNIC_SYN_SUCCESS] = IBV_WC_SUCCESS + 1,
	[RNIC_SYN_LOC_LEN_ERR] = IBV_WC_LOC_LEN_ERR + 1,
	[RNIC_SYN_LOC_QP_OP_ERR] = IBV_WC_LOC_QP_OP_ERR + 1,
	[RNIC_SYN_LOC_PROT_ERR] = IBV_WC_LOC_PROT_ERR + 1,
	[RNIC_SYN_WR_FLUSH_ERR] = IBV_WC_WR_FLUSH_ERR + 1,
	[RNIC_SYN_MW_BIND_ERR] = IBV_WC_MW_BIND_ERR + 1,
	[RNIC_SYN_BAD_RESP_ERR] = IBV_WC_BAD_RESP_ERR + 1,
	[RNIC_SYN_LOC_ACCESS_ERR] = IBV_WC_LOC_ACCESS_ERR + 1,
	[RNIC_SYN_REM_INV_REQ_ERR] = IBV_WC_REM_INV_REQ_ERR + 1,
	[RNIC_SYN_REM_ACCESS_ERR] = IBV_WC_REM_ACCESS_ERR + 1,
	[RNIC_SYN_REM_OP_ERR] = IBV_WC_REM_OP_ERR + 1,
	[RNIC_SYN_RETRY_EXC_ERR] = IBV_WC_RETRY_EXC_ERR + 1,
	[RNIC_SYN_RNR_RETRY_EXC_ERR] = IBV_WC_RNR_RETRY_EXC_ERR + 1,
	[RNIC_SYN_REM_ABORT_ERR] = IBV_WC_REM_ABORT_ERR + 1,
}; /* plus one; a syndrome that is not listed is a general error */

static int status_of(const struct entry *entry)
{
	uint8_t status = status_of_syndrome[entry->word[CQE_WORD(STATUS)] & 0xFF];

	return status ? status - 1 : IBV_WC_GENERAL_ERR;
}

#define ROW(verbs, name, completion, key) [RNIC_WR_##name] = IBV_WC_##completion,
static const uint8_t send_opcode[256] = { RNIC_WORK_REQUESTS(ROW) };

static int opcode_of(const struct entry *entry)
{
	uint32_t word = entry->word[CQE_WORD(OPCODE)];

	if (word & RNIC_BIT_CQE_RECEIVE)
		return (word & 0xFF) == RNIC_WR_WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	return send_opcode[word & 0xFF];
}

static unsigned int flags_of(const struct entry *entry)
{
	uint32_t word = entry->word[CQE_WORD(OPCODE)];

	if (!(word & RNIC_BIT_CQE_RECEIVE))
		return 0;
	return (word & RNIC_BIT_CQE_IMM ? IBV_WC_WITH_IMM : 0) | (word & RNIC_BIT_CQE_INV ? IBV_WC_WITH_INV : 0) |
	       (word & RNIC_BIT_CQE_GRH ? IBV_WC_GRH : 0);
}

/* RoCE has no service levels in its packets. For a datagram the field holds the packet type, as in mlx5's driver: bit 3 is set for a UDP header, bits 2:0 are 1 for IPv6 and 2 for IPv4. */
static uint8_t sl_of(const struct rnic_context *context, const struct entry *entry)
{
	if (!(entry->word[CQE_WORD(OPCODE)] & RNIC_BIT_CQE_GRH))
		return 0;
	return gid_is_v4mapped(own_gid(context)) ? 8 | 2 : 8 | 1;
}

/* Immediate data goes to the program in network byte order; an invalidated key does not. */
static uint32_t imm_of(const struct entry *entry)
{
	uint32_t imm = entry->word[CQE_WORD(IMM)];

	return entry->word[CQE_WORD(OPCODE)] & RNIC_BIT_CQE_INV ? imm : __builtin_bswap32(imm);
}

/* Return the SRQ that an XRC message went to; NULL if it is gone. The queue pair may be another program's. */
static struct rnic_srq *srq_of(const struct rnic_context *context, const struct entry *entry)
{
	uint32_t number = entry->word[CQE_WORD(WQE_ID)];
	struct rnic_srq *srq = context->srqs[number & context->srq_mask];

	return srq && srq->number == number ? srq : NULL;
}

/* Free the WQE of the request that completed and return its wr_id. */
static uint64_t complete_wqe(const struct rnic_context *context, struct rnic_qp *qp, const struct entry *entry)
{
	uint32_t index = entry->word[CQE_WORD(INDEX)];
	uint64_t id;

	if (entry->word[CQE_WORD(OPCODE)] & RNIC_BIT_CQE_SRQ)
		return receive_ring_complete(&srq_of(context, entry)->rq, index);
	if (entry->word[CQE_WORD(OPCODE)] & RNIC_BIT_CQE_RECEIVE)
		return receive_ring_complete(qp->srq ? &qp->srq->rq : &qp->rq, index);
	if (index >= qp->entries)
		return 0;
	id = qp->ids[index];
	atomic_store_explicit(&qp->head, index + 1 < qp->entries ? index + 1 : 0, memory_order_release);
	return id;
}

static bool next_entry(struct rnic_cq *cq, struct entry *entry, struct rnic_qp **qp)
{
	struct rnic_context *context = context_of(cq->verbs.context);

	while (entry_ring_pop(&cq->ring, entry)) {
		uint32_t number = entry->word[CQE_WORD(QPN)] & 0xFFFFFF;

		*qp = number ? context->qps[number & context->qp_mask] : NULL;
		if (entry->word[CQE_WORD(OPCODE)] & RNIC_BIT_CQE_SRQ ? srq_of(context, entry) != NULL : *qp != NULL)
			return true;
	}
	return false;
}

static void publish_head(struct rnic_cq *cq)
{
	queue_reg_store(context_of(cq->verbs.context), cq->block, RNIC_REG_CQ_HEAD, cq->ring.head);
}

/* The kernel's struct sched_attr in its first version (SCHED_ATTR_SIZE_VER0). */
struct sched_attr_v0 {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};
_Static_assert(sizeof(struct sched_attr_v0) == 48, "sched_attr");

/* Shorten the time slice of a thread that yields, once (runtime/sched_slice.py): yielding gives up the rest of
 * the slice. Threads of other policies keep theirs; kernels without per-thread slices ignore the request. */
static void shorten_time_slice(struct rnic_cq *cq)
{
	struct sched_attr_v0 slice = { .size = sizeof slice };
	uintptr_t self = (uintptr_t)pthread_self();

	if (atomic_exchange_explicit(&cq->yielded, self, memory_order_relaxed) == self)
		return;
	if (!syscall(SYS_sched_getattr, 0, &slice, sizeof slice, 0) && slice.policy == SCHED_OTHER &&
	    slice.runtime > SLICE_NS) {
		slice.size = sizeof slice;
		slice.runtime = SLICE_NS;
		syscall(SYS_sched_setattr, 0, &slice, 0);
	}
}

/* Thread-local storage that needs no call of the loader: with one, the library would depend on it. */
#define THREADS_OWN _Thread_local __attribute__((tls_model("initial-exec")))

/* Return whether a thread whose poll found nothing may yield at this queue. A thread that polls many queues in turn
 * yields once a turn, at the queue where it did before: under load, each yield may cost a time slice. */
static bool may_yield_at(const struct rnic_cq *cq)
{
	static THREADS_OWN const struct rnic_cq *last; /* compared, never dereferenced: it may be freed */
	static THREADS_OWN unsigned others;

	if (last && last != cq && ++others < MAX_OTHER_QUEUES)
		return false;
	last = cq;
	others = 0;
	return true;
}

/* Return whether the calling thread may yield. If threads share a device, a poll may hold one of the program's locks, as in UCX. A thread that always yields with the lock held starves the waiters; then only the kernel preempts. */
static bool may_yield(struct rnic_context *context)
{
	if (context->yields_always)
		return true;
	if (!pthread_equal(pthread_self(), context->opener))
		atomic_store_explicit(&context->shared, true, memory_order_relaxed);
	return !atomic_load_explicit(&context->shared, memory_order_relaxed);
}

/* Yield the core after many empty polls. Returns true if it did: then poll once more, since time has passed.
 * Otherwise the program may miss completions that precede another event: libfabric drops unpolled completions when the peer disconnects. */
static bool yield_core(struct rnic_cq *cq)
{
	struct rnic_context *context = context_of(cq->verbs.context);
	uint32_t rounds = atomic_load_explicit(&cq->empty_rounds, memory_order_relaxed) + 1;

	/* Racing threads may lose counts: it is an estimate. */
	atomic_store_explicit(&cq->empty_rounds, rounds, memory_order_relaxed);
	if (rounds <= context->yield_after || !may_yield_at(cq))
		return false;
	shorten_time_slice(cq);
	if (!may_yield(context))
		return false;
	sched_yield();
	return true;
}

/* Check periodically whether the NIC process is gone. */
static bool is_nic_alive(struct rnic_cq *cq)
{
	uint32_t rounds = atomic_load_explicit(&cq->empty_rounds, memory_order_relaxed);

	return rounds & (CHECK_NIC_EVERY - 1) || !nic_gone(context_of(cq->verbs.context));
}

/* Stages of a poll that has found nothing so far. */
enum poll_stage { FIRST, AFTER_PACKETS, AFTER_YIELD };

/* Return whether to poll again: the engine in this process received packets, or this thread yielded. Each counts
 * once, since the packets may be for other queues. */
static bool should_repoll(struct rnic_cq *cq, enum poll_stage *stage)
{
	struct bypass_driver *slot = context_of(cq->verbs.context)->slot;

	if (*stage == FIRST && slot && driver_poll(slot))
		*stage = AFTER_PACKETS;
	else if (*stage != AFTER_YIELD && yield_core(cq))
		*stage = AFTER_YIELD;
	else
		return false;
	return true;
}

/* A program that gives IBV_CREATE_CQ_ATTR_SINGLE_THREADED promises that no two threads use the queue at a time. */
static void lock_cq(struct rnic_cq *cq)
{
	if (!cq->single_threaded)
		pthread_mutex_lock(&cq->lock);
}

static void unlock_cq(struct rnic_cq *cq)
{
	if (!cq->single_threaded)
		pthread_mutex_unlock(&cq->lock);
}

/* The extended interface holds the lock from start_poll to end_poll, between which the thread may destroy or reset a
 * queue pair, which cleans the queue. */
static void init_lock(struct rnic_cq *cq, bool extended)
{
	pthread_mutexattr_t kind;

	pthread_mutexattr_init(&kind);
	if (extended)
		pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&cq->lock, &kind);
	pthread_mutexattr_destroy(&kind);
}

int rnic_poll_cq(struct ibv_cq *verbs, int count, struct ibv_wc *wc)
{
	struct rnic_cq *cq = (struct rnic_cq *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	uint32_t before;
	enum poll_stage stage = FIRST;
	int found = 0;

	if (context->dead)
		return -1;
again:
	lock_cq(cq);
	before = cq->ring.head;
	while (found < count) {
		struct entry entry;
		struct rnic_qp *qp;
		uint32_t flags;

		if (!next_entry(cq, &entry, &qp))
			break;
		flags = flags_of(&entry);
		wc->wr_id = complete_wqe(context, qp, &entry);
		wc->status = status_of(&entry);
		wc->opcode = opcode_of(&entry);
		wc->vendor_err = entry.word[CQE_WORD(STATUS)] >> 8 & 0xFF;
		wc->byte_len = entry.word[CQE_WORD(BYTES)];
		wc->imm_data = imm_of(&entry);
		wc->qp_num = entry.word[CQE_WORD(QPN)] & 0xFFFFFF;
		wc->src_qp = flags & IBV_WC_GRH ? entry.word[CQE_WORD(WQE_ID)] : 0;
		wc->wc_flags = flags;
		wc->pkey_index = 0;
		wc->slid = 0;
		wc->sl = sl_of(context, &entry);
		wc->dlid_path_bits = 0;
		wc++;
		found++;
	}
	if (cq->ring.head != before)
		publish_head(cq);
	if (found)
		cq->empty_rounds = 0;
	unlock_cq(cq);
	if (found || !count)
		return found;
	if (should_repoll(cq, &stage))
		goto again;
	return is_nic_alive(cq) ? 0 : -1;
}

int rnic_req_notify_cq(struct ibv_cq *verbs, int solicited_only)
{
	struct rnic_cq *cq = (struct rnic_cq *)verbs;

	if (!verbs->channel)
		return 0;
	/* The NIC stores an entry, then checks whether the queue is armed; the program arms, then polls. An earlier arming still counts (IBA 11.4.2.2, C11-32). */
	atomic_fetch_or(queue_reg(context_of(verbs->context), cq->block, RNIC_REG_CQ_DOORBELL),
			solicited_only ? RNIC_REG_ARM_SOLICITED : RNIC_REG_ARM_NEXT);
	if (context_of(verbs->context)->slot)
		driver_prepare_to_sleep(context_of(verbs->context)->slot);
	return 0;
}

/* ---- the extended interface: one entry at a time, fields on demand */

static struct rnic_cq *cq_of_ex(struct ibv_cq_ex *verbs)
{
	return (struct rnic_cq *)verbs;
}

static int poll_current(struct rnic_cq *cq)
{
	struct rnic_qp *qp;

	if (!next_entry(cq, &cq->current, &qp))
		return ENOENT;
	cq->verbs.wr_id = complete_wqe(context_of(cq->verbs.context), qp, &cq->current);
	cq->verbs.status = status_of(&cq->current);
	return 0;
}

static int start_poll(struct ibv_cq_ex *verbs, struct ibv_poll_cq_attr *attr)
{
	struct rnic_cq *cq = cq_of_ex(verbs);
	enum poll_stage stage = FIRST;
	int error;

	if (attr->comp_mask)
		return why_not_supported(EINVAL, "ibv_start_poll", "a bit of comp_mask", "give 0");
	if (context_of(verbs->context)->dead)
		return EIO;
again:
	lock_cq(cq);
	error = poll_current(cq);
	if (!error) {
		cq->empty_rounds = 0;
		return 0; /* end_poll unlocks */
	}
	publish_head(cq);
	unlock_cq(cq);
	if (should_repoll(cq, &stage))
		goto again;
	return is_nic_alive(cq) ? error : EIO;
}

static int next_poll(struct ibv_cq_ex *verbs)
{
	return poll_current(cq_of_ex(verbs));
}

static void end_poll(struct ibv_cq_ex *verbs)
{
	struct rnic_cq *cq = cq_of_ex(verbs);

	publish_head(cq);
	unlock_cq(cq);
}

static int read_opcode(struct ibv_cq_ex *verbs)
{
	return opcode_of(&cq_of_ex(verbs)->current);
}

static uint32_t read_vendor_err(struct ibv_cq_ex *verbs)
{
	return cq_of_ex(verbs)->current.word[CQE_WORD(STATUS)] >> 8 & 0xFF;
}

static uint32_t read_byte_len(struct ibv_cq_ex *verbs)
{
	return cq_of_ex(verbs)->current.word[CQE_WORD(BYTES)];
}

static be32_t read_imm_data(struct ibv_cq_ex *verbs)
{
	return imm_of(&cq_of_ex(verbs)->current);
}

static uint32_t read_qp_num(struct ibv_cq_ex *verbs)
{
	return cq_of_ex(verbs)->current.word[CQE_WORD(QPN)] & 0xFFFFFF;
}

static uint32_t read_src_qp(struct ibv_cq_ex *verbs)
{
	const struct entry *entry = &cq_of_ex(verbs)->current;

	return entry->word[CQE_WORD(OPCODE)] & RNIC_BIT_CQE_GRH ? entry->word[CQE_WORD(WQE_ID)] : 0;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *verbs)
{
	return flags_of(&cq_of_ex(verbs)->current);
}

static uint32_t read_slid(struct ibv_cq_ex *verbs UNUSED)
{
	return 0; /* RoCE has no LIDs */
}

static uint8_t read_sl(struct ibv_cq_ex *verbs)
{
	return sl_of(context_of(verbs->context), &cq_of_ex(verbs)->current);
}

/* Extend an entry's timestamp, the low bits of the NIC's clock, which is CLOCK_MONOTONIC, too: it is in the recent
 * past. */
static uint64_t read_completion_ts(struct ibv_cq_ex *verbs)
{
	const uint32_t *word = cq_of_ex(verbs)->current.word;
	uint64_t made = (uint64_t)(word[CQE_WORD(STAMP_HIGH)] >> 16) << 32 | word[CQE_WORD(STAMP_LOW)];
	uint64_t now = clock_now();

	return now - ((now - made) & ((1ull << RNIC_CQE_STAMP_BITS) - 1));
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *verbs)
{
	uint64_t age = clock_now() - read_completion_ts(verbs);
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - age;
}

static uint8_t read_zero(struct ibv_cq_ex *verbs UNUSED)
{
	return 0;
}

/* ---- making and destroying */

static int fill_cqc(struct rnic_cq *cq, uint8_t *cqc, const struct entry_ring *ring, uint32_t eqn)
{
	memset(cqc, 0, RNIC_CQC_SIZE);
	rnic_put_be(cqc, RNIC_CQC_FLAGS, cq->stamped ? RNIC_CQ_STAMPED : 0);
	rnic_put_be(cqc, RNIC_CQC_START, (uintptr_t)ring->memory.base);
	rnic_put_be(cqc, RNIC_CQC_LOGSIZE, (uint32_t)__builtin_ctz(ring->mask + 1));
	rnic_put_be(cqc, RNIC_CQC_USRPAGE, cq->block);
	rnic_put_be(cqc, RNIC_CQC_COMP_EQN, eqn);
	rnic_put_be(cqc, RNIC_CQC_CQN, cq->number);
	return RNIC_CQC_SIZE;
}

static uint32_t eqn_of(struct rnic_cq *cq)
{
	struct rnic_channel *channel = (struct rnic_channel *)cq->verbs.channel;

	return channel ? channel->eq.number : context_of(cq->verbs.context)->async.number;
}

static const char create_verb[] = "ibv_create_cq";

static struct rnic_cq *create_cq(struct ibv_context *verbs, uint32_t cqe, void *cq_context,
				 struct ibv_comp_channel *channel, uint32_t vector, bool extended, bool stamped)
{
	struct rnic_context *context = context_of(verbs);
	uint8_t cqc[RNIC_CQC_SIZE];
	struct rnic_cq *cq;
	int error = EINVAL;

	if (!cqe || cqe > RNIC_MAX_CQE)
		return fail_null(why_attribute_range(EINVAL, create_verb, "cqe", cqe, 1, RNIC_MAX_CQE));
	if (vector >= (uint32_t)verbs->num_comp_vectors)
		return fail_null(why_attribute_range(EINVAL, create_verb, "comp_vector", vector, 0,
						     verbs->num_comp_vectors - 1));
	cq = calloc(1, sizeof *cq);
	if (!cq)
		return NULL;
	cq->verbs.context = verbs;
	cq->verbs.channel = channel;
	cq->verbs.cq_context = cq_context;
	cq->stamped = stamped;
	error = entry_ring_alloc(context, &cq->ring,
				 log_entries(cqe) < MIN_LOG_ENTRIES ? MIN_LOG_ENTRIES : log_entries(cqe));
	if (error)
		goto free_cq;
	error = nic_allocate_queue(context, RNIC_CMD_RES_CQ, &cq->number, &cq->block);
	if (error)
		goto unmap;
	fill_cqc(cq, cqc, &cq->ring, eqn_of(cq));
	error = nic_command(context, RNIC_CMD_SW2HW_CQ, 0, cq->number, cqc, sizeof cqc, NULL, 0, NULL);
	if (error)
		goto free_number;
	cq->verbs.handle = cq->number;
	cq->verbs.cqe = (int)cq->ring.mask;
	init_lock(cq, extended);
	pthread_mutex_init(&cq->verbs.mutex, NULL);
	pthread_cond_init(&cq->verbs.cond, NULL);
	pthread_mutex_lock(&context->lock);
	context->cqs[cq->number & context->cq_mask] = cq;
	if (channel)
		channel->refcnt++;
	pthread_mutex_unlock(&context->lock);
	return cq;

free_number:
	nic_free_queue(context, RNIC_CMD_RES_CQ, cq->number, cq->block);
unmap:
	ring_free(context, &cq->ring.memory);
free_cq:
	free(cq);
	return fail_null(error);
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *verbs, int cqe, void *cq_context,
				    struct ibv_comp_channel *channel, int vector)
{
	if (cqe < 1)
		return fail_null(why_attribute_range(EINVAL, create_verb, "cqe", cqe, 1, RNIC_MAX_CQE));
	if (vector < 0)
		return fail_null(why_attribute_range(EINVAL, create_verb, "comp_vector", vector, 0,
						     verbs->num_comp_vectors - 1));
	return (struct ibv_cq *)create_cq(verbs, (uint32_t)cqe, cq_context, channel, (uint32_t)vector, false, false);
}

struct ibv_cq_ex *rnic_create_cq_ex(struct ibv_context *verbs, struct ibv_cq_init_attr_ex *attr)
{
	const uint64_t times = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	struct rnic_cq *cq;

	if (attr->wc_flags & ~(IBV_WC_EX_STANDARD | times) ||
	    attr->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) ||
	    (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS &&
	     attr->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED))
		return fail_null(why_not_supported(EOPNOTSUPP, "ibv_create_cq_ex", "a flag of wc_flags or comp_mask",
						   "the standard ones and timestamps are supported"));
	cq = create_cq(verbs, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector, true,
		       attr->wc_flags & times);
	if (!cq)
		return NULL;
	cq->single_threaded = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS &&
			      attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	cq->verbs.start_poll = start_poll;
	cq->verbs.next_poll = next_poll;
	cq->verbs.end_poll = end_poll;
	cq->verbs.read_opcode = read_opcode;
	cq->verbs.read_vendor_err = read_vendor_err;
	cq->verbs.read_byte_len = read_byte_len;
	cq->verbs.read_imm_data = read_imm_data;
	cq->verbs.read_qp_num = read_qp_num;
	cq->verbs.read_src_qp = read_src_qp;
	cq->verbs.read_wc_flags = read_wc_flags;
	cq->verbs.read_slid = read_slid;
	cq->verbs.read_sl = read_sl;
	cq->verbs.read_dlid_path_bits = read_zero;
	cq->verbs.read_completion_ts = read_completion_ts;
	cq->verbs.read_completion_wallclock_ns = read_completion_wallclock_ns;
	on_command_fill_cq(context_of(verbs), cq);
	return &cq->verbs;
}

EXPORT int ibv_resize_cq(struct ibv_cq *verbs, int cqe)
{
	struct rnic_cq *cq = (struct rnic_cq *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	struct entry_ring ring, old;
	uint8_t cqc[RNIC_CQC_SIZE];
	int error;

	if (cqe < 1 || (uint32_t)cqe > RNIC_MAX_CQE)
		return fail(why_attribute_range(EINVAL, "ibv_resize_cq", "cqe", cqe, 1, RNIC_MAX_CQE));
	error = entry_ring_alloc(context, &ring, log_entries((uint32_t)cqe));
	if (error)
		return fail(error);
	lock_cq(cq);
	publish_head(cq);
	fill_cqc(cq, cqc, &ring, eqn_of(cq));
	error = nic_command(context, RNIC_CMD_RESIZE_CQ, 0, cq->number, cqc, sizeof cqc, NULL, 0, NULL);
	old = cq->ring;
	if (!error) {
		cq->ring = ring; /* unread entries were moved to the start */
		verbs->cqe = (int)ring.mask;
	}
	unlock_cq(cq);
	ring_free(context, error ? &ring.memory : &old.memory);
	return error ? fail(error) : 0;
}

/* Describe the users of a completion queue: the number of work queues, and the first queue pair among them. */
static void name_users(const struct rnic_cq *cq, char *text, size_t size)
{
	struct rnic_context *context = context_of(cq->verbs.context);
	int length = snprintf(text, size, "%u work queues", cq->users);

	pthread_mutex_lock(&context->lock);
	for (uint32_t i = 0; i <= context->qp_mask; i++) {
		const struct rnic_qp *qp = context->qps[i];

		if (qp && (qp->send_cq == cq || qp->recv_cq == cq)) {
			snprintf(text + length, size - (size_t)length, ", queue pair %#x's among them", qp->number);
			break;
		}
	}
	pthread_mutex_unlock(&context->lock);
}

EXPORT int ibv_destroy_cq(struct ibv_cq *verbs)
{
	static const uint32_t completion[] = { RNIC_EVENT_COMP }, failure[] = { RNIC_EVENT_CQ_ERROR };
	struct rnic_cq *cq = (struct rnic_cq *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	struct rnic_channel *channel = (struct rnic_channel *)verbs->channel;
	int error;

	if (cq->users) {
		char users[80] = "";

		if (explaining)
			name_users(cq, users, sizeof users);
		return fail(why_in_use(EBUSY, "ibv_destroy_cq", "CQ", cq->number, users));
	}
	error = nic_command(context, RNIC_CMD_HW2SW_CQ, 0, cq->number, NULL, 0, NULL, 0, NULL);
	if (error && !context->dead)
		return fail(error);
	pthread_mutex_lock(&context->lock);
	context->cqs[cq->number & context->cq_mask] = NULL;
	if (channel)
		channel->verbs.refcnt--;
	pthread_mutex_unlock(&context->lock);
	if (!context->dead) {
		if (channel)
			event_queue_purge(context, &channel->eq, cq->number, completion, COUNT(completion));
		event_queue_purge(context, &context->async, cq->number, failure, COUNT(failure));
		nic_free_queue(context, RNIC_CMD_RES_CQ, cq->number, cq->block);
		/* Reported events point to this queue until they are acknowledged. */
		await_acknowledged(&verbs->mutex, &verbs->cond, &verbs->comp_events_completed, cq->events_reported);
		await_acknowledged(&verbs->mutex, &verbs->cond, &verbs->async_events_completed, cq->async_reported);
	}
	ring_free(context, &cq->ring.memory);
	pthread_mutex_destroy(&cq->lock);
	free(cq);
	return 0;
}

/* Drop the completions of a queue pair that is destroyed or reset, and free its receive WQEs. */
void cq_clean(struct rnic_cq *cq, struct rnic_qp *qp)
{
	lock_cq(cq);
	if (cq->late_until && cq->late.qp_num == qp->number)
		cq->late_until = 0;
	for (uint32_t index = cq->ring.head, phase = cq->ring.phase, seen = 0; seen <= cq->ring.mask; seen++) {
		struct entry *entry = &cq->ring.entries[index];

		if (!entry_is_valid(&cq->ring, index, phase))
			break;
		if ((entry->word[CQE_WORD(QPN)] & 0xFFFFFF) == qp->number) {
			complete_wqe(context_of(cq->verbs.context), qp, entry);
			entry->word[CQE_WORD(QPN)] = 0;
		}
		index = (index + 1) & cq->ring.mask;
		if (!index)
			phase ^= RNIC_BIT_CQE_PHASE;
	}
	unlock_cq(cq);
}
