/*
 * Calls that are refused, one row each: on stderr its name and errno, behind the line that says why. Two parts, since
 * ten lines of each kind are written. Left out is what rdma-core's header refuses before a library is asked: a bind of
 * the wrong window or without a region, comp_mask of ibv_query_device_ex, calls that the device does not have.
 */
#include "itself.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 8192 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_qp *rc, *ud, *sharing;
static struct ibv_ah *ah;
static char memory[SIZE];

static void said(const char *name, int error)
{
	fprintf(stderr, "== %s: %d\n", name, error);
}

/* A call that returns an errno, one that sets it and returns -1, and one that returns NULL. */
#define CODE(name, call) said(name, (call))
#define MINUS(name, call) said(name, (errno = 0, (call)) == -1 ? errno : 0)
#define NONE(name, call) said(name, (errno = 0, (call)) == NULL ? errno : 0)

static int modify(struct ibv_qp *qp, int mask, struct ibv_qp_attr attr)
{
	return ibv_modify_qp(qp, &attr, mask);
}

static struct ibv_qp *create(struct ibv_qp_init_attr init)
{
	return ibv_create_qp(pd, &init);
}

static int post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static int receive(struct ibv_qp *qp, struct ibv_recv_wr wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

static void absent(void)
{
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = 4321 };

	NONE("ibv_open_xrcd: descriptor", ibv_open_xrcd(context, &xrcd));
	xrcd.fd = 0;
	NONE("ibv_open_xrcd: no domain", ibv_open_xrcd(context, &xrcd));
}

static void device(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	union ibv_gid gid;
	__be16 pkey;

	CODE("ibv_query_port: port", ibv_query_port(context, 2, &port));
	MINUS("ibv_query_gid: index", ibv_query_gid(context, 1, 99, &gid));
	MINUS("ibv_query_gid: port", ibv_query_gid(context, 2, 0, &gid));
	CODE("ibv_query_gid_ex: index", ibv_query_gid_ex(context, 1, 99, &entry, 0));
	CODE("ibv_query_gid_ex: flags", ibv_query_gid_ex(context, 1, 0, &entry, 1));
	MINUS("ibv_query_pkey: index", ibv_query_pkey(context, 1, 99, &pkey));
	MINUS("ibv_query_pkey: port", ibv_query_pkey(context, 2, 0, &pkey));
}

static void queues(void)
{
	struct ibv_cq_init_attr_ex wide = { .cqe = 8, .wc_flags = 1ull << 40 };
	struct ibv_cq_init_attr_ex masked = { .cqe = 8, .comp_mask = 1u << 20 };
	struct ibv_srq_init_attr empty = { .attr = { .max_wr = 0, .max_sge = 1 } };
	struct ibv_srq_init_attr wide_srq = { .attr = { .max_wr = 8, .max_sge = 1000 } };
	struct ibv_srq_attr limit = { .srq_limit = 1000 }, size = { .max_wr = 1u << 30 };
	struct ibv_recv_wr long_list = { .num_sge = 9 }, *bad;
	struct ibv_cq_init_attr_ex ordinary = { .cqe = 8 };
	struct ibv_poll_cq_attr asking = { .comp_mask = 1 };
	struct ibv_cq_ex *plain = ibv_create_cq_ex(context, &ordinary);

	CHECK(plain);

	NONE("ibv_create_cq: cqe", ibv_create_cq(context, 0, NULL, NULL, 0));
	NONE("ibv_create_cq: vector", ibv_create_cq(context, 8, NULL, NULL, 99));
	NONE("ibv_create_cq_ex: wc_flags", ibv_create_cq_ex(context, &wide));
	NONE("ibv_create_cq_ex: comp_mask", ibv_create_cq_ex(context, &masked));
	CODE("ibv_start_poll: comp_mask", ibv_start_poll(plain, &asking));
	CODE("ibv_resize_cq: cqe", ibv_resize_cq(cq, 0));
	NONE("ibv_create_srq: max_wr", ibv_create_srq(pd, &empty));
	NONE("ibv_create_srq: max_sge", ibv_create_srq(pd, &wide_srq));
	CODE("ibv_modify_srq: srq_limit", ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	CODE("ibv_modify_srq: max_wr", ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR));
	CODE("ibv_post_srq_recv: num_sge", ibv_post_srq_recv(srq, &long_list, &bad));
}

static void regions(void)
{
	struct ibv_sge advised = { (uintptr_t)memory, 8, mr->lkey };

	NONE("ibv_reg_mr: rights", ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_WRITE));
	NONE("ibv_reg_mr: length", ibv_reg_mr(pd, memory, 0, IBV_ACCESS_LOCAL_WRITE));
	CODE("ibv_advise_mr: no on-demand region", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &advised, 1));
	CODE("ibv_advise_mr: advice", ibv_advise_mr(pd, (enum ibv_advise_mr_advice)9, 0, &advised, 1));
	NONE("ibv_reg_dmabuf_mr: descriptor", ibv_reg_dmabuf_mr(pd, 0, 8, 0, -1, IBV_ACCESS_LOCAL_WRITE));
	CODE("ibv_rereg_mr: flags", ibv_rereg_mr(mr, 0, pd, memory, SIZE, 0));
	CODE("ibv_rereg_mr: rights",
	     ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, memory, SIZE, IBV_ACCESS_REMOTE_WRITE));
	NONE("ibv_alloc_mw: type", ibv_alloc_mw(pd, 7));
}

static void pairs(void)
{
	struct ibv_qp_cap cap = { 4, 4, 1, 1, 0 };
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp_attr to_init = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, attr = to_init;

	NONE("ibv_create_qp: CQ", create((struct ibv_qp_init_attr){ .cap = cap, .qp_type = IBV_QPT_RC }));
	NONE("ibv_create_qp: type",
	     create((struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = 77 }));
	cap.max_send_sge = 1000;
	NONE("ibv_create_qp: sge",
	     create((struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC }));
	cap.max_send_sge = 1;
	cap.max_inline_data = 1u << 20;
	NONE("ibv_create_qp: inline",
	     create((struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC }));
	CODE("ibv_modify_qp: mask", modify(rc, IBV_QP_STATE, to_init));
	CODE("ibv_modify_qp: order", modify(rc, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }));
	attr.cur_qp_state = IBV_QPS_RTS;
	CODE("ibv_modify_qp: current", modify(rc, init | IBV_QP_CUR_STATE, attr));
	attr = to_init;
	attr.pkey_index = 9;
	CODE("ibv_modify_qp: P_Key", modify(rc, init, attr));
	attr = to_init;
	attr.port_num = 2;
	CODE("ibv_modify_qp: port", modify(rc, init, attr));
	attr = to_init;
	attr.qp_access_flags = 1 << 20;
	CODE("ibv_modify_qp: rights", modify(rc, init, attr));
	CODE("ibv_modify_qp: state", modify(rc, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = 77 }));
	CODE("ibv_modify_qp: path", modify(rc, IBV_QP_STATE | IBV_QP_ALT_PATH, to_init));
	CODE("ibv_modify_qp: no state", modify(rc, IBV_QP_TIMEOUT, to_init));
}

static void steps(void)
{
	const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int to_rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			   IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, attr;
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = rc->qp_num,
				   .max_dest_rd_atomic = 1,
				   .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
	};

	CHECK(!ibv_query_gid(context, 1, 0, &rtr.ah_attr.grh.dgid));
	CHECK(!modify(rc, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, init));
#define REFUSED(name, from, mask, field, value) \
	attr = from; \
	attr.field = value; \
	CODE(name, modify(rc, mask, attr))
	REFUSED("ibv_modify_qp: path_mtu", rtr, to_rtr, path_mtu, 9);
	REFUSED("ibv_modify_qp: dest_qp_num", rtr, to_rtr, dest_qp_num, 1u << 24);
	REFUSED("ibv_modify_qp: max_dest_rd_atomic", rtr, to_rtr, max_dest_rd_atomic, 200);
	REFUSED("ibv_modify_qp: sgid_index", rtr, to_rtr, ah_attr.grh.sgid_index, 99);
	REFUSED("ibv_modify_qp: is_global", rtr, to_rtr, ah_attr.is_global, 0);
	REFUSED("ibv_modify_qp: dgid", rtr, to_rtr, ah_attr.grh.dgid.raw[0], 0xfe);
	CHECK(!modify(rc, to_rtr, rtr));
	REFUSED("ibv_modify_qp: timeout", rts, to_rts, timeout, 40);
	REFUSED("ibv_modify_qp: retry_cnt", rts, to_rts, retry_cnt, 9);
	REFUSED("ibv_modify_qp: rnr_retry", rts, to_rts, rnr_retry, 9);
	REFUSED("ibv_modify_qp: max_rd_atomic", rts, to_rts, max_rd_atomic, 200);
}

static void posts(void)
{
	CODE("ibv_post_send: state", post(rc, (struct ibv_send_wr){ .opcode = IBV_WR_SEND }));
	CODE("ibv_post_send: opcode", post(ud, (struct ibv_send_wr){ .opcode = 99 }));
	CODE("ibv_post_send: flags", post(ud, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .send_flags = 1 << 12 }));
	CODE("ibv_post_send: address handle", post(ud, (struct ibv_send_wr){ .opcode = IBV_WR_SEND }));
	CODE("ibv_post_send: num_sge",
	     post(ud, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .num_sge = 99, .wr = { .ud = { .ah = ah } } }));
	CODE("ibv_post_send: negative num_sge",
	     post(ud, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .num_sge = -1, .wr = { .ud = { .ah = ah } } }));
	CODE("ibv_post_recv: state", receive(rc, (struct ibv_recv_wr){ 0 }));
	CODE("ibv_post_recv: shared", receive(sharing, (struct ibv_recv_wr){ 0 }));
	CODE("ibv_post_recv: num_sge", receive(ud, (struct ibv_recv_wr){ .num_sge = 99 }));
}

static void addresses(void)
{
	struct ibv_ah_attr port = { .is_global = 1, .port_num = 2 },
			   index = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 99 } };
	struct ibv_ah_attr local = { .port_num = 1 };
	union ibv_gid own, group = { .raw = { 0xff, 0x0e, [15] = 1 } };

	CHECK(!ibv_query_gid(context, 1, 0, &own));
	NONE("ibv_create_ah: port", ibv_create_ah(pd, &port));
	NONE("ibv_create_ah: index", ibv_create_ah(pd, &index));
	NONE("ibv_create_ah: LID", ibv_create_ah(pd, &local));
	CODE("ibv_attach_mcast: RC", ibv_attach_mcast(rc, &group, 0));
	CODE("ibv_attach_mcast: no group", ibv_attach_mcast(ud, &own, 0));
	CODE("ibv_detach_mcast: no group", ibv_detach_mcast(ud, &own, 0));
	CODE("ibv_detach_mcast: not there", ibv_detach_mcast(ud, &group, 0));
}

static void ends(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *told = channel ? ibv_create_cq(context, 8, NULL, channel, 0) : NULL;

	CHECK(told);
	CODE("ibv_destroy_comp_channel: in use", ibv_destroy_comp_channel(channel));
	CODE("ibv_destroy_cq: in use", ibv_destroy_cq(cq));
	CODE("ibv_destroy_srq: in use", ibv_destroy_srq(srq));
	CODE("ibv_dealloc_pd: in use", ibv_dealloc_pd(pd));
}

int main(int argc, char **argv)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_init_attr wanted = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_ah_attr own = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };

	CHECK(devices && devices[0] && (context = ibv_open_device(devices[0])));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	CHECK((srq = ibv_create_srq(pd, &shared)) && (mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE)));
	wanted.send_cq = wanted.recv_cq = cq;
	CHECK((rc = ibv_create_qp(pd, &wanted)));
	wanted.srq = srq;
	CHECK((sharing = ibv_create_qp(pd, &wanted)));
	wanted.srq = NULL;
	wanted.cap = (struct ibv_qp_cap){ 4, 4, 1, 1, 0 };
	wanted.qp_type = IBV_QPT_UD;
	CHECK((ud = ibv_create_qp(pd, &wanted)));
	CHECK(!ibv_query_gid(context, 1, 0, &own.grh.dgid) && (ah = ibv_create_ah(pd, &own)));
	CHECK(!ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(ud, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	if (argc > 1 && !strcmp(argv[1], "objects")) {
		device();
		queues();
		regions();
		pairs();
		return 0;
	}
	posts();
	steps();
	addresses();
	absent();
	ends();
	return 0;
}
