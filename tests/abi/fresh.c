/* What comes while a poll yields is what that poll finds: the program waits in its own sched_yield until a WRITE is done. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static char memory[128];
static int armed, yielded;

/* Called by the library between its two looks. */
int sched_yield(void)
{
	struct pollfd ready = { .fd = channel ? channel->fd : -1, .events = POLLIN };
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr ? mr->lkey : 0 };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	if (!armed)
		return 0;
	armed = 0;
	yielded++;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 64;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_req_notify_cq(qp->send_cq, 0));
	CHECK(!ibv_post_send(qp, &wr, &bad));
	CHECK(poll(&ready, 1, 10000) == 1);
	return 0;
}

static void connect_to_itself(struct ibv_context *context)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
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

/* One poll that yields, of either kind: 1 if it finds the WRITE. */
static int poll_once(struct ibv_cq *cq, int extended)
{
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_wc wc = { 0 };
	int found;

	if (!extended) {
		found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found < 1 || (wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS));
		return found;
	}
	found = !ibv_start_poll((struct ibv_cq_ex *)cq, &none);
	if (found) {
		CHECK(((struct ibv_cq_ex *)cq)->wr_id == 7 && ((struct ibv_cq_ex *)cq)->status == IBV_WC_SUCCESS);
		ibv_end_poll((struct ibv_cq_ex *)cq);
	}
	return found;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_cq_init_attr_ex wanted = { .cqe = 4 };
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd;
	int found[2];

	CHECK(context && (pd = ibv_alloc_pd(context)) && (channel = ibv_create_comp_channel(context)));
	wanted.channel = channel;
	CHECK((init.send_cq = init.recv_cq = (struct ibv_cq *)ibv_create_cq_ex(context, &wanted)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((qp = ibv_create_qp(pd, &init)));
	connect_to_itself(context);
	for (int extended = 0; extended < 2; extended++) {
		struct ibv_cq *cq;
		void *with;

		armed = 1;
		while (armed)
			found[extended] = poll_once(init.send_cq, extended);
		CHECK(!ibv_get_cq_event(channel, &cq, &with));
		ibv_ack_cq_events(cq, 1);
		while (!found[extended] && !poll_once(init.send_cq, extended))
			;
	}
	printf("%d yields, found by ibv_poll_cq: %d, by ibv_start_poll: %d\n", yielded, found[0], found[1]);
	return 0;
}
