/*
 * An RC queue pair that would send 256 packets at once to a peer that may not answer.
 *
 *     flood ADDRESS QPN      prints "flooding" and does nothing more until it is killed
 */
#include <arpa/inet.h>
#include <unistd.h>

#include "direct.h"

enum { BYTES = 256 << 10 };

int main(int count, char **words)
{
	static char memory[BYTES];
	struct way way = { .gid.raw = { [10] = 0xFF, [11] = 0xFF }, .timeout = 20, .retries = 7, .reads = 1 };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;

	CHECK(count == 3 && inet_pton(AF_INET, words[1], way.gid.raw + 12) == 1);
	CHECK(list && *list && (context = ibv_open_device(*list)) && (pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 16, NULL, NULL, 0)) && (mr = ibv_reg_mr(pd, memory, BYTES, 1)));
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 }
	};
	CHECK((qp = ibv_create_qp(pd, &init)));
	to_rts(qp, (uint32_t)atoi(words[2]), &way);
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	CHECK(!context->ops.post_send(qp, &wr, &bad));
	puts("flooding");
	fflush(stdout);
	for (;;)
		pause();
}
