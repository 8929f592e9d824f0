/*
 * As many RC queue pairs as are asked for, connected two by two, a WRITE from one of each two to the other.
 *
 *     many N          N queue pairs
 *     many N all      and not one more
 *
 * Exits with 0 if all is as it should be.
 */
#include <stdio.h>

#include "rnic.h"

extern struct ibv_device **ibv_get_device_list(int *);
extern void ibv_free_device_list(struct ibv_device **);
extern struct ibv_context *ibv_open_device(struct ibv_device *);
extern int ibv_close_device(struct ibv_context *);
extern struct ibv_pd *ibv_alloc_pd(struct ibv_context *);
extern struct ibv_mr *ibv_reg_mr(struct ibv_pd *, void *, size_t, int);
extern struct ibv_cq *ibv_create_cq(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
extern struct ibv_qp *ibv_create_qp(struct ibv_pd *, struct ibv_qp_init_attr *);
extern int ibv_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int);
extern int ibv_destroy_qp(struct ibv_qp *);
extern int ibv_query_gid(struct ibv_context *, uint8_t, int, union ibv_gid *);

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)

static struct ibv_context *context;
static union ibv_gid gid;

static void to_rts(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 15 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = 3, .dest_qp_num = peer,
				     .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				     .max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(int count, char **words)
{
	int wanted = count > 1 ? atoi(words[1]) : 2;
	bool all = count > 2;
	struct ibv_qp **qps = calloc((size_t)wanted, sizeof *qps);
	uint32_t *memory = calloc((size_t)wanted, sizeof *memory);
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;

	CHECK(qps && memory && list && count && wanted % 2 == 0);
	CHECK((context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && !ibv_query_gid(context, 1, 0, &gid));
	CHECK((mr = ibv_reg_mr(pd, memory, (size_t)wanted * sizeof *memory, 3)));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	for (int i = 0; i < wanted; i++)
		CHECK((qps[i] = ibv_create_qp(pd, &init)));
	CHECK(!all || (!ibv_create_qp(pd, &init) && errno == ENOMEM));
	for (int i = 0; i < wanted; i++)
		to_rts(qps[i], qps[i ^ 1]->qp_num);
	for (int i = 0; i < wanted; i += 2) {
		struct ibv_sge sge = { (uintptr_t)&memory[i], sizeof *memory, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		struct ibv_wc wc;
		int found;

		memory[i] = (uint32_t)i + 1;
		wr.wr.rdma.remote_addr = (uintptr_t)&memory[i + 1];
		wr.wr.rdma.rkey = mr->rkey;
		CHECK(!context->ops.post_send(qps[i], &wr, &bad));
		while ((found = context->ops.poll_cq(cq, 1, &wc)) == 0)
			;
		CHECK(found == 1 && wc.status == IBV_WC_SUCCESS && wc.qp_num == qps[i]->qp_num);
		CHECK(memory[i + 1] == (uint32_t)i + 1);
	}
	/* What some had is there for the next ones, as good as new. */
	for (int i = 0; i < wanted && i < 64; i++)
		CHECK(!ibv_destroy_qp(qps[i]));
	for (int i = 0; i < wanted && i < 64; i++)
		CHECK((qps[i] = ibv_create_qp(pd, &init)));
	CHECK(!ibv_close_device(context));
	ibv_free_device_list(list);
	free(memory);
	free(qps);
	return 0;
}
