/* Typical mistakes of programs, one function each: what the NIC says of them is the test's to check. */
#include "itself.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 8192, QKEY = 0x11111111, MANY = 200 };
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define TO_INIT (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define TO_RTR \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | \
	 IBV_QP_MIN_RNR_TIMER)
#define TO_RTS \
	(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[SIZE];

/* What a case may change of a pair of queue pairs. */
struct ends {
	struct ibv_qp *from, *to;
	enum ibv_mtu mtu[2];
	uint32_t dest, psn;
	int rights, rnr_retry;
	int impatient; /* for a queue pair that is never answered */
};

static struct ibv_qp *new_qp(enum ibv_qp_type type, struct ibv_cq *to)
{
	struct ibv_qp_init_attr init = { .send_cq = to, .recv_cq = to, .cap = { MANY, 4, 1, 1, 32 }, .qp_type = type };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static struct ibv_qp_attr at_rtr(enum ibv_mtu mtu, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .path_mtu = mtu,
				    .dest_qp_num = peer,
				    .max_dest_rd_atomic = 1,
				    .min_rnr_timer = 1,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };

	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	return attr;
}

static void to_init(struct ibv_qp *qp, int rights)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rights };

	CHECK(!ibv_modify_qp(qp, &attr, TO_INIT));
}

static void to_rts(struct ibv_qp *qp, enum ibv_mtu mtu, uint32_t peer, uint32_t psn, int rnr_retry, int impatient)
{
	struct ibv_qp_attr attr = at_rtr(mtu, peer);

	CHECK(!ibv_modify_qp(qp, &attr, TO_RTR));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = impatient ? 8 : 18;
	attr.retry_cnt = impatient ? 1 : 7;
	attr.rnr_retry = rnr_retry;
	attr.sq_psn = psn;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, TO_RTS));
}

static struct ends connect_ends(struct ends ends)
{
	ends.from = new_qp(IBV_QPT_RC, cq);
	ends.to = new_qp(IBV_QPT_RC, cq);
	to_init(ends.from, RIGHTS);
	to_init(ends.to, ends.rights ? ends.rights : RIGHTS);
	to_rts(ends.to, ends.mtu[1] ? ends.mtu[1] : IBV_MTU_1024, ends.from->qp_num, 0, 7, 0);
	to_rts(ends.from, ends.mtu[0] ? ends.mtu[0] : IBV_MTU_1024, ends.dest ? ends.dest : ends.to->qp_num, ends.psn,
	       ends.rnr_retry, ends.impatient);
	return ends;
}

static void destroy_ends(struct ends ends)
{
	CHECK(!ibv_destroy_qp(ends.from));
	CHECK(!ibv_destroy_qp(ends.to));
}

/* Post a request and wait for the completion of its error. */
static void fail(struct ends ends, enum ibv_wr_opcode opcode, uint32_t length, uint32_t lkey, uint64_t to,
		 uint32_t rkey, enum ibv_wc_status status)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, lkey };
	struct ibv_send_wr wr = { .opcode = opcode,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { to, rkey } },
			   *bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(ends.from, &wr, &bad));
	do {
		while (!ibv_poll_cq(cq, 1, &wc))
			;
	} while (wc.qp_num != ends.from->qp_num);
	if (wc.status != status)
		fprintf(stderr, "%s, not %s\n", ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	CHECK(wc.status == status);
	destroy_ends(ends);
}

static void receive(struct ibv_qp *qp, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* ---- verbs that are refused */

static void refused_modify(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC, cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, rtr = at_rtr(IBV_MTU_1024, 1);

	CHECK(ibv_query_gid(context, 1, 7, &rtr.ah_attr.grh.dgid));
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
	CHECK(ibv_modify_qp(qp, &attr, TO_INIT | IBV_QP_TIMEOUT));
	CHECK(ibv_modify_qp(qp, &rtr, TO_RTR));
	attr.port_num = 2;
	CHECK(ibv_modify_qp(qp, &attr, TO_INIT));
	to_init(qp, RIGHTS);
	rtr.path_mtu = 7;
	CHECK(ibv_modify_qp(qp, &rtr, TO_RTR));
	rtr.path_mtu = IBV_MTU_1024;
	rtr.ah_attr.grh.sgid_index = 7;
	CHECK(ibv_modify_qp(qp, &rtr, TO_RTR));
	rtr.ah_attr.grh.sgid_index = 0;
	rtr.ah_attr.is_global = 0;
	CHECK(ibv_modify_qp(qp, &rtr, TO_RTR));
	rtr.ah_attr.is_global = 1;
	rtr.dest_qp_num = 0;
	CHECK(ibv_modify_qp(qp, &rtr, TO_RTR));
	rtr.dest_qp_num = 1;
	rtr.ah_attr.grh.dgid.raw[0] = 0xFE;
	CHECK(ibv_modify_qp(qp, &rtr, TO_RTR));
	rtr.ah_attr.grh.dgid.raw[0] = 0;
	rtr.min_rnr_timer = 0x2C;
	CHECK(!ibv_modify_qp(qp, &rtr, TO_RTR)); /* as Soft-RoCE takes it */
	CHECK(!ibv_destroy_qp(qp));
}

static void refused_post(void)
{
	struct ends ends = connect_ends((struct ends){ .rnr_retry = 7 });
	struct ibv_qp *early = new_qp(IBV_QPT_RC, cq);
	struct ibv_sge sges[2] = { { (uintptr_t)memory, 64, mr->lkey }, { (uintptr_t)memory, 64, mr->lkey } };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = sges, .num_sge = 1 }, *bad;
	struct ibv_recv_wr recv = { .sg_list = sges, .num_sge = 1 }, *bad_recv;

	CHECK(ibv_post_send(early, &wr, &bad));
	CHECK(ibv_post_recv(early, &recv, &bad_recv));
	wr.send_flags = IBV_SEND_INLINE;
	CHECK(ibv_post_send(ends.from, &wr, &bad));
	wr.send_flags = 0;
	wr.num_sge = 2;
	CHECK(ibv_post_send(ends.from, &wr, &bad));
	wr.num_sge = 1;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	while (!ibv_post_send(ends.from, &wr, &bad)) /* none is signaled */
		;
	to_init(early, RIGHTS);
	while (!ibv_post_recv(early, &recv, &bad_recv))
		;
	CHECK(!ibv_destroy_qp(early));
	destroy_ends(ends);
}

static void refused_memory(void)
{
	char *page = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(page != MAP_FAILED && !munmap(page, SIZE));
	CHECK(!ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_WRITE));
	CHECK(!ibv_reg_mr(pd, page, SIZE, RIGHTS));
	CHECK(!ibv_reg_mr(pd, memory, 0, RIGHTS));
}

static void refused_create(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap.max_send_sge = 1000 };
	struct ibv_ah_attr ah = { .port_num = 1 };

	init.qp_type = IBV_QPT_RC;
	CHECK(!ibv_create_qp(pd, &init));
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0));
	CHECK(!ibv_create_ah(pd, &ah));
}

static void refused_destroy(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC, cq);

	CHECK(ibv_destroy_cq(cq));
	CHECK(ibv_dealloc_pd(pd));
	CHECK(!ibv_destroy_qp(qp));
}

/* ---- requests that fail */

static void wrong_rkey(void)
{
	fail(connect_ends((struct ends){ 0 }), IBV_WR_RDMA_WRITE, 64, mr->lkey, (uintptr_t)memory, mr->rkey ^ 0x10000,
	     IBV_WC_REM_ACCESS_ERR);
}

static void out_of_range(void)
{
	fail(connect_ends((struct ends){ 0 }), IBV_WR_RDMA_WRITE, 64, mr->lkey, (uintptr_t)memory + SIZE - 48, mr->rkey,
	     IBV_WC_REM_ACCESS_ERR);
}

static void region_lacks_right(void)
{
	struct ibv_mr *own = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);

	CHECK(own);
	fail(connect_ends((struct ends){ 0 }), IBV_WR_RDMA_WRITE, 64, mr->lkey, (uintptr_t)memory, own->rkey,
	     IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(own));
}

static void queue_pair_lacks_right(void)
{
	fail(connect_ends((struct ends){ .rights = IBV_ACCESS_LOCAL_WRITE }), IBV_WR_RDMA_READ, 64, mr->lkey,
	     (uintptr_t)memory, mr->rkey, IBV_WC_REM_INV_REQ_ERR);
}

static void other_domain(void)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *own = other ? ibv_reg_mr(other, memory, SIZE, RIGHTS) : NULL;

	CHECK(own);
	fail(connect_ends((struct ends){ 0 }), IBV_WR_RDMA_READ, 64, mr->lkey, (uintptr_t)memory, own->rkey,
	     IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(own) && !ibv_dealloc_pd(other));
}

static void deregistered(void)
{
	struct ibv_mr *own = ibv_reg_mr(pd, memory, SIZE, RIGHTS);
	uint32_t key;

	CHECK(own);
	key = own->rkey;
	CHECK(!ibv_dereg_mr(own));
	fail(connect_ends((struct ends){ 0 }), IBV_WR_RDMA_WRITE, 64, mr->lkey, (uintptr_t)memory, key,
	     IBV_WC_REM_ACCESS_ERR);
}

static void wrong_lkey(void)
{
	fail(connect_ends((struct ends){ 0 }), IBV_WR_RDMA_WRITE, 64, mr->lkey ^ 0x20000, (uintptr_t)memory, mr->rkey,
	     IBV_WC_LOC_PROT_ERR);
}

static void no_receive(void)
{
	fail(connect_ends((struct ends){ 0 }), IBV_WR_SEND, 64, mr->lkey, 0, 0, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void short_receive(void)
{
	struct ends ends = connect_ends((struct ends){ 0 });

	receive(ends.to, 8);
	fail(ends, IBV_WR_SEND, 64, mr->lkey, 0, 0, IBV_WC_REM_INV_REQ_ERR);
}

static void other_mtu(void)
{
	fail(connect_ends((struct ends){ .mtu = { IBV_MTU_2048, IBV_MTU_1024 } }), IBV_WR_RDMA_WRITE, 2048, mr->lkey,
	     (uintptr_t)memory, mr->rkey, IBV_WC_REM_INV_REQ_ERR);
}

static void no_such_peer(void)
{
	fail(connect_ends((struct ends){ .dest = 0xABCDEF, .impatient = 1 }), IBV_WR_RDMA_WRITE, 64, mr->lkey,
	     (uintptr_t)memory, mr->rkey, IBV_WC_RETRY_EXC_ERR);
}

static void other_psn(void)
{
	fail(connect_ends((struct ends){ .psn = 0x123456, .impatient = 1 }), IBV_WR_RDMA_WRITE, 64, mr->lkey,
	     (uintptr_t)memory, mr->rkey, IBV_WC_RETRY_EXC_ERR);
}

static void cq_overflow(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp *qp = new_qp(IBV_QPT_RC, small);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)memory, mr->rkey } },
			   *bad;
	struct ibv_async_event event;
	struct ibv_wc wc;

	to_init(qp, RIGHTS);
	to_rts(qp, IBV_MTU_1024, qp->qp_num, 0, 7, 0);
	for (int i = 0; i < MANY; i++)
		CHECK(!ibv_post_send(qp, &wr, &bad));
	do { /* other queues are polled: this one's entries stay */
		CHECK(ibv_poll_cq(cq, 1, &wc) >= 0);
		poll(&(struct pollfd){ context->async_fd, POLLIN, 0 }, 1, 10);
	} while (!(poll(&(struct pollfd){ context->async_fd, POLLIN, 0 }, 1, 0) == 1));
	CHECK(!ibv_get_async_event(context, &event));
	ibv_ack_async_event(&event);
	while (poll(&(struct pollfd){ context->async_fd, POLLIN, 0 }, 1, 0) == 1 &&
	       !ibv_get_async_event(context, &event))
		ibv_ack_async_event(&event);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(small));
}

/* ---- datagrams, which are dropped */

static struct ibv_qp *datagram_qp(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_UD, cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

static void datagrams(void)
{
	struct ibv_qp *from = datagram_qp(), *to = datagram_qp(), *deaf = datagram_qp();
	struct ibv_qp_attr path = at_rtr(IBV_MTU_1024, 1);
	struct ibv_ah *ah = ibv_create_ah(pd, &path.ah_attr);
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.ud = { ah, deaf->qp_num, QKEY + 1 } },
			   *bad;
	struct ibv_wc wc;

	CHECK(ah);
	CHECK(!ibv_post_send(from, &wr, &bad));
	wr.wr.ud.remote_qkey = QKEY;
	CHECK(!ibv_post_send(from, &wr, &bad));
	receive(to, 64);
	wr.wr.ud.remote_qpn = to->qp_num;
	CHECK(!ibv_post_send(from, &wr, &bad)); /* comes behind those that are dropped */
	do {
		while (!ibv_poll_cq(cq, 1, &wc))
			;
	} while (wc.qp_num != to->qp_num);
	CHECK(wc.status == IBV_WC_LOC_LEN_ERR);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_qp(deaf));
}

int main(void)
{
	context = open_first();
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 1024, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, SIZE, RIGHTS)));
	printf("mr %#x at %#lx\n", mr->rkey, (unsigned long)memory);
	refused_modify();
	refused_post();
	refused_memory();
	refused_create();
	refused_destroy();
	wrong_rkey();
	out_of_range();
	region_lacks_right();
	queue_pair_lacks_right();
	other_domain();
	deregistered();
	wrong_lkey();
	no_receive();
	short_receive();
	other_mtu();
	no_such_peer();
	other_psn();
	datagrams();
	cq_overflow();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
