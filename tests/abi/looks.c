/* What a program sees of devices that look like an adapter's. With an argument: run that beside it, on its own objects. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

extern int ibv_query_gid_type(struct ibv_context *, uint8_t, unsigned int, int *); /* of rdma-core's private part */

enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static char memory[4096];

static struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static int to_rtr(struct ibv_qp *qp, const union ibv_gid *gid, int index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .path_mtu = IBV_MTU_1024,
				    .dest_qp_num = qp->qp_num,
				    .min_rnr_timer = 12,
				    .ah_attr = {
					    .is_global = 1,
					    .port_num = 1,
					    .grh = { .dgid = *gid, .sgid_index = (uint8_t)index, .hop_limit = 64 } } };

	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int try_ah(struct ibv_pd *pd, const union ibv_gid *gid, int index)
{
	struct ibv_ah_attr attr = { .is_global = 1,
				    .port_num = 1,
				    .grh = { .dgid = *gid, .sgid_index = (uint8_t)index, .hop_limit = 64 } };
	struct ibv_ah *ah;

	errno = 0;
	ah = ibv_create_ah(pd, &attr);
	if (!ah)
		return errno;
	ibv_destroy_ah(ah);
	return 0;
}

static void write_once(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)memory + 64, mr->rkey } },
			   *bad;
	struct ibv_wc wc;
	int found;

	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
	printf("written\n");
}

int main(int count, char **arguments)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_gid_entry entry[4];
	struct ibv_port_attr port;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	union ibv_gid gid;

	CHECK(list && list[0] && list[1]);
	context = ibv_open_device(list[0]);
	CHECK(context && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, RIGHTS)));
	qp = new_qp(pd, cq);
	if (count > 1) {
		char command[512];

		snprintf(command, sizeof command, "%s resource show %s; %s resource show qp", arguments[1],
			 ibv_get_device_name(list[0]), arguments[1]);
		return system(command);
	}
	printf("%s %s\n", ibv_get_device_name(list[0]), ibv_get_device_name(list[1]));
	CHECK(!ibv_query_port(context, 1, &port));
	printf("gids %d types", port.gid_tbl_len);
	for (int i = 0; i < 4; i++) {
		int type;

		CHECK(!ibv_query_gid_type(context, 1, (unsigned)i, &type));
		printf(" %d", type);
	}
	CHECK(ibv_query_gid_table(context, entry, 4, 0) == 4);
	printf(" ex");
	for (int i = 0; i < 4; i++)
		printf(" %u", entry[i].gid_type);
	printf(" speed %d width %d\n", port.active_speed, port.active_width);
	CHECK(!ibv_query_gid(context, 1, 3, &gid));
	printf("rtr");
	for (int i = 0; i < 4; i++)
		printf(" %d", to_rtr(qp, &gid, i));
	printf("\nah %d %d %d %d\n", try_ah(pd, &gid, 0), try_ah(pd, &gid, 1), try_ah(pd, &gid, 2),
	       try_ah(pd, &gid, 3));
	write_once(qp, cq, mr);
	return 0;
}
