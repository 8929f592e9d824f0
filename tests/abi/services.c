/* Services that few programs use, a function each, against the system's own headers: services NAME... */
#define _GNU_SOURCE
#include "itself.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Numbers and members that headers older than rdma-core 46 lack. */
#define FLUSH_GLOBAL_ACCESS (1 << 8)
#define FLUSH_PERSISTENT_ACCESS (1 << 9)
#define WITH_FLUSH (1 << 11)
#define WC_FLUSH 8
#define PLACEMENT_GLOBAL 1
#define PLACEMENT_PERSISTENT 2
#define LEVEL_RANGE 0
#define LEVEL_MR 1
#define DEVICE_FLUSH_GLOBAL (1ull << 38)
#define DEVICE_ATOMIC_WRITE (1ull << 40)

typedef void wr_flush_t(struct ibv_qp_ex *, uint32_t rkey, uint64_t va, size_t length, uint8_t type, uint8_t level);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static uint64_t memory[64];

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;

	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc;
}

/* A queue pair with these ibv_wr_* operations, connected to itself with all rights. */
static struct ibv_qp_ex *extended(uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 8, 4, 1, 1, 16 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = operations,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | FLUSH_GLOBAL_ACCESS |
						       FLUSH_PERSISTENT_ACCESS };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

	CHECK(qp);
	connect_deep(qp, 4);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
	return ibv_qp_to_qp_ex(qp);
}

static struct ibv_wc flush(struct ibv_qp_ex *qp, const struct ibv_mr *mr, size_t length, uint8_t type, uint8_t level)
{
	/* wr_flush follows wr_atomic_write */
	size_t at = offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof qp->wr_atomic_write;
	wr_flush_t *call;

	memcpy(&call, (char *)qp + at, sizeof call);
	ibv_wr_start(qp);
	qp->wr_id = 5;
	qp->wr_flags = IBV_SEND_SIGNALED;
	call(qp, mr->rkey, (uintptr_t)mr->addr, length, type, level);
	CHECK(!ibv_wr_complete(qp));
	return completion();
}

static void flush_is_answered(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, FLUSH_GLOBAL_ACCESS);
	struct ibv_qp_ex *qp = extended(WITH_FLUSH);
	struct ibv_wc wc;

	CHECK(mr);
	wc = flush(qp, mr, sizeof memory, PLACEMENT_GLOBAL, LEVEL_RANGE);
	CHECK(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == WC_FLUSH && wc.wr_id == 5);
	wc = flush(qp, mr, 0, PLACEMENT_GLOBAL, LEVEL_MR);
	CHECK(wc.status == IBV_WC_SUCCESS);
	/* the queue pair that refuses is the one that asks: its request may be flushed before the NAK comes */
	wc = flush(qp, mr, 8, PLACEMENT_PERSISTENT, LEVEL_RANGE);
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(&qp->qp_base) && !ibv_dereg_mr(mr));
}

static void no_region_is_persistent(void)
{
	errno = 0;
	CHECK(!ibv_reg_mr(pd, memory, sizeof memory, FLUSH_PERSISTENT_ACCESS) && errno == EOPNOTSUPP);
}

static void atomic_write_stores_eight_bytes(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_ex *qp = extended(IBV_QP_EX_WITH_ATOMIC_WRITE);
	uint64_t value = 0x0102030405060708;
	struct ibv_sge sge = { (uintptr_t)&value, sizeof value, 0 };
	struct ibv_send_wr wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_WRITE }, *bad;
	struct ibv_wc wc;

	memset(memory, 0, sizeof memory);
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(qp, mr->rkey, (uintptr_t)&memory[3], &value);
	CHECK(!ibv_wr_complete(qp));
	wc = completion();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_ATOMIC_WRITE);
	CHECK(!memory[2] && memory[3] == value && !memory[4]);
	/* the old way takes inline bytes alone */
	wr.wr.rdma.remote_addr = (uintptr_t)&memory[5];
	wr.wr.rdma.rkey = mr->rkey;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(&qp->qp_base, &wr, &bad) == EINVAL && bad == &wr);
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK(!ibv_post_send(&qp->qp_base, &wr, &bad));
	wc = completion();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 6 && memory[5] == value);
	CHECK(!ibv_destroy_qp(&qp->qp_base) && !ibv_dereg_mr(mr));
}

static void the_device_says_so(void)
{
	struct ibv_device_attr_ex attr;

	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.device_cap_flags_ex & DEVICE_FLUSH_GLOBAL && attr.device_cap_flags_ex & DEVICE_ATOMIC_WRITE);
}

/* Eight bytes go from memory to device memory by the network, and are copied out. */
static void device_memory_is_a_region(void)
{
	const unsigned rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
	struct ibv_alloc_dm_attr want = { .length = 8192 };
	struct ibv_device_attr_ex attr;
	struct ibv_dm *dm = ibv_alloc_dm(context, &want);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE), *over, *none;
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	uint64_t out[2] = { 1, 1 };

	CHECK(!ibv_query_device_ex(context, NULL, &attr) && attr.max_dm_size >= want.length && dm);
	CHECK((over = ibv_reg_dm_mr(pd, dm, 64, 4096, rights)) && !over->addr && over->length == 4096);
	connect_to_itself(qp);
	memory[0] = 0x1122334455667788;
	wr.wr.rdma.remote_addr = 16;
	wr.wr.rdma.rkey = over->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad) && completion().status == IBV_WC_SUCCESS);
	CHECK(!ibv_memcpy_from_dm(out, dm, 80, sizeof out) && out[0] == memory[0] && !out[1]);
	out[0] = 7;
	CHECK(!ibv_memcpy_to_dm(dm, 64, out, 8) && !ibv_memcpy_from_dm(&out[1], dm, 64, 8) && out[1] == 7);
	CHECK(ibv_memcpy_to_dm(dm, want.length - 4, out, 8) == EINVAL && ibv_memcpy_to_dm(dm, 1, out, 4) == EINVAL);
	CHECK(!ibv_reg_dm_mr(pd, dm, 64, want.length, rights) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(pd, dm, 0, 8, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	CHECK((none = ibv_reg_dm_mr(pd, dm, 0, 0, rights)) && !none->length && !ibv_dereg_mr(none));
	CHECK(ibv_free_dm(dm) == EBUSY && !ibv_dereg_mr(over) && !ibv_free_dm(dm));
	want.length = attr.max_dm_size + 1;
	CHECK(!ibv_alloc_dm(context, &want) && errno == ENOMEM);
	want.length = attr.max_dm_size;
	CHECK((dm = ibv_alloc_dm(context, &want)) && !ibv_alloc_dm(context, &want) && errno == ENOMEM);
	CHECK(!ibv_free_dm(dm) && !ibv_destroy_qp(qp) && !ibv_dereg_mr(mr));
	want.comp_mask = 1;
	CHECK(!ibv_alloc_dm(context, &want) && errno == EINVAL);
}

/* pyverbs' test_multi_process_alloc_dm: a forked child asks what the device has, and allocates. */
static void a_forked_child_has_device_memory(void)
{
	struct ibv_alloc_dm_attr want = { .length = 4096 };
	struct ibv_device_attr_ex attr;
	int status = 1;
	pid_t child;

	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	child = fork();
	if (!child) {
		struct ibv_device_attr_ex there;
		struct ibv_dm *dm;

		_exit(ibv_query_device_ex(context, NULL, &there) || there.max_dm_size != attr.max_dm_size ||
		      !(dm = ibv_alloc_dm(context, &want)) || ibv_free_dm(dm));
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && !status);
}

/* ---- XRC */

/* Bring a queue pair to RTS towards another of this device. */
static void connect_to(struct ibv_qp *qp, uint32_t number)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = number;
	attr.min_rnr_timer = 12;
	attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
	attr.ah_attr.is_global = attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid));
	/* attributes of the other half are taken and do nothing, as in the kernel */
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_srq *xrc_srq(struct ibv_xrcd *xrcd, struct ibv_cq *receives)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.xrcd = xrcd,
		.cq = receives,
	};
	struct ibv_srq *srq = ibv_create_srq_ex(context, &init);

	CHECK(srq);
	return srq;
}

static struct ibv_qp *xrc_qp(int type, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = type == IBV_QPT_XRC_SEND ? cq : NULL,
		.cap = { 8, 0, 1, 0, 0 },
		.qp_type = (enum ibv_qp_type)type,
		.comp_mask = type == IBV_QPT_XRC_SEND ? IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS :
							IBV_QP_INIT_ATTR_XRCD,
		.pd = pd,
		.xrcd = xrcd,
		.send_ops_flags = type == IBV_QPT_XRC_SEND ? IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ : 0,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

	CHECK(qp);
	return qp;
}

static void xrc_sends_into_the_queue_that_it_names(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
	struct ibv_cq *receives = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_srq *first = xrc_srq(xrcd, receives), *second = xrc_srq(xrcd, receives);
	struct ibv_qp *to = xrc_qp(IBV_QPT_XRC_RECV, xrcd), *from = xrc_qp(IBV_QPT_XRC_SEND, NULL), *again;
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						      IBV_QP_OPEN_ATTR_TYPE,
					 .qp_num = to->qp_num,
					 .xrcd = xrcd,
					 .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey }, there = { (uintptr_t)&memory[8], 8, mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 21, .sg_list = &there, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(from);
	struct ibv_wc wc;
	uint32_t number;

	CHECK(xrcd && receives && ex && !ibv_get_srq_num(second, &number) && number);
	errno = 0;
	CHECK(!ibv_open_qp(context, &open) && errno == EINVAL); /* in RESET the device has none */
	connect_to(to, from->qp_num);
	connect_to(from, to->qp_num);
	CHECK((again = ibv_open_qp(context, &open)) && again->qp_num == to->qp_num && again->state == IBV_QPS_RTS);
	memory[0] = 0x5566;
	memory[8] = 0;
	CHECK(!ibv_post_srq_recv(second, &receive, &bad_receive));
	wr.qp_type.xrc.remote_srqn = number;
	CHECK(!ibv_post_send(from, &wr, &bad) && completion().status == IBV_WC_SUCCESS);
	while (!ibv_poll_cq(receives, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 21 && wc.qp_num == to->qp_num && memory[8] == 0x5566);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)memory);
	ibv_wr_set_xrc_srqn(ex, number);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)&memory[16], 8);
	CHECK(!ibv_wr_complete(ex) && completion().status == IBV_WC_SUCCESS && memory[16] == 0x5566);
	CHECK(ibv_post_send(to, &wr, &bad) == EINVAL && ibv_post_recv(from, &receive, &bad_receive) == EINVAL);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY && ibv_destroy_cq(receives) == EBUSY);
	wr.qp_type.xrc.remote_srqn = number + 77;
	CHECK(!ibv_post_send(from, &wr, &bad) && completion().status == IBV_WC_REM_INV_REQ_ERR);
	CHECK(!ibv_destroy_qp(again) && !ibv_destroy_qp(from) && !ibv_destroy_qp(to));
	CHECK(!ibv_destroy_srq(first) && !ibv_destroy_srq(second) && !ibv_destroy_cq(receives) &&
	      !ibv_close_xrcd(xrcd));
	CHECK(!ibv_dereg_mr(mr));
}

/* ---- on-demand regions */

static int advise(struct ibv_mr *mr, enum ibv_advise_mr_advice advice, size_t length)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, (uint32_t)length, mr->lkey };

	return ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
}

/* Write eight bytes by the network, and return how that ended. */
static enum ibv_wc_status write_from(const void *data, const struct ibv_mr *from, uint64_t to, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)data, 8, from->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_qp *qp = make_qp(pd, cq);
	enum ibv_wc_status status;

	connect_to_itself(qp);
	wr.wr.rdma.remote_addr = to;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	status = completion().status;
	CHECK(!ibv_destroy_qp(qp));
	return status;
}

/* Write another value than before, the last word of memory. */
static enum ibv_wc_status write_word(const struct ibv_mr *from, uint64_t to, uint32_t rkey)
{
	memory[63]++;
	return write_from(&memory[63], from, to, rkey);
}

static bool failed(enum ibv_wc_status status)
{
	/* the queue pair that refuses is the one that asks: its request may be flushed before the NAK comes */
	return status == IBV_WC_REM_OP_ERR || status == IBV_WC_WR_FLUSH_ERR;
}

static void memory_comes_and_goes_under_a_region(void)
{
	const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
	const size_t length = 1 << 16;
	struct ibv_device_attr_ex attr;
	struct ibv_mr *own = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE), *mr;
	uint64_t *area = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *elsewhere;

	CHECK(!ibv_query_device_ex(context, NULL, &attr) && area != MAP_FAILED && own);
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC && attr.xrc_odp_caps);
	CHECK(!ibv_reg_mr(pd, area, length, rights & ~IBV_ACCESS_ON_DEMAND) && errno == EFAULT);
	CHECK((mr = ibv_reg_mr(pd, area, length, rights)));
	CHECK(advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, length) == EFAULT);
	CHECK(!advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, length));
	CHECK(failed(write_word(own, (uintptr_t)&area[512], mr->rkey)));
	CHECK(write_from(area, mr, (uintptr_t)&area[512], mr->rkey) == IBV_WC_LOC_PROT_ERR);
	CHECK(!mprotect(area, length, PROT_READ | PROT_WRITE));
	CHECK(write_word(own, (uintptr_t)&area[512], mr->rkey) == IBV_WC_SUCCESS && area[512] == memory[63]);
	CHECK(!advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH, length) &&
	      !advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, length));
	/* it moves away: what is there then is what is written to */
	elsewhere = mremap(area, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
			   mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CHECK(elsewhere != MAP_FAILED && elsewhere != area);
	CHECK(failed(write_word(own, (uintptr_t)area, mr->rkey)));
	CHECK(mmap(area, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area);
	CHECK(write_word(own, (uintptr_t)area, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(area[0] == memory[63] && !area[512] && !elsewhere[0]);
	CHECK(!mprotect(area, length, PROT_READ) && failed(write_word(own, (uintptr_t)area, mr->rkey)));
	CHECK(area[0] == memory[63] - 1);
	CHECK(!munmap(area, length) && failed(write_word(own, (uintptr_t)area, mr->rkey)));
	CHECK(ibv_advise_mr(pd, (enum ibv_advise_mr_advice)9, 0, NULL, 1) == EOPNOTSUPP);
	CHECK(advise(own, IBV_ADVISE_MR_ADVICE_PREFETCH, 8) == EINVAL); /* it is no on-demand region */
	CHECK(advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH, length + 1) == EINVAL);
	CHECK(!ibv_dereg_mr(mr) && !munmap(elsewhere, length) && !ibv_dereg_mr(own));
}

static void an_implicit_region_is_the_whole_program(void)
{
	const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, rights);
	uint64_t *later = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(all && later != MAP_FAILED);
	CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, rights & ~IBV_ACCESS_ON_DEMAND));
	CHECK(write_word(all, (uintptr_t)later, all->rkey) == IBV_WC_SUCCESS && *later == memory[63]);
	CHECK(failed(write_word(all, 64, all->rkey)));
	CHECK(!munmap(later, 4096) && failed(write_word(all, (uintptr_t)later, all->rkey)) && !ibv_dereg_mr(all));
}

/* The parent's on-demand memory stays the parent's: after a fork its pages are copied when they are written to. */
static void a_fork_leaves_the_memory_to_the_parent(void)
{
	const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
	uint64_t *area = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *own = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(pd, area, 4096, rights);
	int go[2], status = 1;
	pid_t child;
	char byte;

	CHECK(area != MAP_FAILED && own && mr && !pipe(go));
	area[0] = 1;
	child = fork();
	if (!child)
		_exit(read(go[0], &byte, 1) != 1 || area[0] != 1);
	CHECK(write_word(own, (uintptr_t)area, mr->rkey) == IBV_WC_SUCCESS && area[0] == memory[63]);
	CHECK(write(go[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && !status);
	CHECK(!close(go[0]) && !close(go[1]) && !ibv_dereg_mr(mr) && !ibv_dereg_mr(own) && !munmap(area, 4096));
}

#define ROW(name) { #name, name }
static const struct {
	const char *name;
	void (*run)(void);
} rows[] = {
	ROW(flush_is_answered),
	ROW(no_region_is_persistent),
	ROW(atomic_write_stores_eight_bytes),
	ROW(the_device_says_so),
	ROW(device_memory_is_a_region),
	ROW(a_forked_child_has_device_memory),
	ROW(xrc_sends_into_the_queue_that_it_names),
	ROW(memory_comes_and_goes_under_a_region),
	ROW(an_implicit_region_is_the_whole_program),
	ROW(a_fork_leaves_the_memory_to_the_parent),
};

int main(int argc, char **argv)
{
	CHECK((context = open_first()) && (pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	for (int i = 1; i < argc; i++)
		for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
			if (!strcmp(rows[row].name, argv[i])) {
				where = argv[i];
				rows[row].run();
				puts(argv[i]);
			}
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
