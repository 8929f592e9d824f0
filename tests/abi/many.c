/*
 * As many RC queue pairs as are asked for, connected two by two, a WRITE from one of each two to the other.
 *
 *     many N          N queue pairs
 *     many N all      and not one more
 *
 * Exits with 0 if all is as it should be.
 */

#include "direct.h"

static struct ibv_context *context;
static struct way way = { .timeout = 14, .retries = 7, .reads = 1 };

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
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && !ibv_query_gid(context, 1, 0, &way.gid));
	CHECK((mr = ibv_reg_mr(pd, memory, (size_t)wanted * sizeof *memory, 3)));
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 }
	};
	for (int i = 0; i < wanted; i++)
		CHECK((qps[i] = ibv_create_qp(pd, &init)));
	CHECK(!all || (!ibv_create_qp(pd, &init) && errno == ENOMEM));
	for (int i = 0; i < wanted; i++)
		to_rts(qps[i], qps[i ^ 1]->qp_num, &way);
	for (int i = 0; i < wanted; i += 2) {
		struct ibv_sge sge = { (uintptr_t)&memory[i], sizeof *memory, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED },
				   *bad;
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
