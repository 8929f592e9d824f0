/* Verbs that fail on command: each is called a few times, and what became of it printed for the test. */
#include "itself.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { SIZE = 1 << 20, MANY = 400 };
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[SIZE];

static struct ibv_qp *new_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = { 64, MANY, 1, 1, 0 }, .qp_type = IBV_QPT_RC
	};

	return ibv_create_qp(pd, &init);
}

static int post_write(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)memory + 64, mr->rkey } },
			   *bad = NULL;
	int error = ibv_post_send(qp, &wr, &bad);

	CHECK(!error || bad == &wr);
	return error;
}

static long now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static struct ibv_wc wait_one(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1);
	return wc;
}

/* "VERB ERRNO ERRNO ...": what each of some calls ended with. */
#define TRIES(name, times, call, undo) \
	do { \
		printf(name); \
		for (int i_ = 0; i_ < (times); i_++) { \
			errno = 0; \
			if (call) { \
				printf(" 0"); \
				undo; \
			} else { \
				printf(" %d", errno); \
			} \
		} \
		printf("\n"); \
	} while (0)

static void objects(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0), *another;
	struct ibv_device_attr attr;
	struct ibv_mr *mr;
	struct ibv_qp *qp;

	CHECK(cq);
	TRIES("create_qp", 3, (qp = new_qp(cq)), ibv_destroy_qp(qp));
	TRIES("reg_mr small", 2, (mr = ibv_reg_mr(pd, memory, 4096, RIGHTS)), ibv_dereg_mr(mr));
	TRIES("reg_mr large", 2, (mr = ibv_reg_mr(pd, memory, SIZE, RIGHTS)), ibv_dereg_mr(mr));
	TRIES("create_cq", 2, (another = ibv_create_cq(context, 16, NULL, NULL, 0)), ibv_destroy_cq(another));
	TRIES("query_device", 2, !ibv_query_device(context, &attr), );
	ibv_destroy_cq(cq);
}

static void receives(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, RIGHTS);
	struct ibv_qp *qp = new_qp(cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(cq && mr && qp);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	printf("post_recv %u", qp->qp_num);
	for (int i = 0; i < MANY; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		if (ibv_post_recv(qp, &wr, &bad))
			printf(" %d", i);
	}
	printf("\n");
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
}

static void completions(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, RIGHTS);
	struct ibv_qp *qp = new_qp(cq);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_wc wc[16];
	long began;
	int found, most = 0;

	CHECK(cq && mr && qp);
	connect_to_itself(qp);
	TRIES("post_send", 3, !(errno = post_write(qp, mr, 1)), );
	for (found = 0; found < 2;) { /* waits: for two completions */
		int got = ibv_poll_cq(cq, 16, wc);

		CHECK(got >= 0);
		most = got > most ? got : most;
		found += got;
	}
	printf("at a time %d\n", most);
	CHECK(!post_write(qp, mr, 3));
	began = now_us();
	wc[0] = wait_one(cq);
	printf("late %d %ld\n", wc[0].status, now_us() - began);
	CHECK(!post_write(qp, mr, 4));
	wc[0] = wait_one(cq);
	CHECK(wc[0].wr_id == 4);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	printf("status %d state %d\n", wc[0].status, attr.qp_state);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
}

static void extended(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 64 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, RIGHTS);
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_qp *qp = new_qp(ibv_cq_ex_to_cq(cq));
	long began = now_us();
	int status[4];

	CHECK(cq && mr && qp);
	connect_to_itself(qp);
	for (int i = 0; i < 3; i++) /* the second is refused */
		post_write(qp, mr, (uint64_t)i);
	CHECK(!post_write(qp, mr, 3));
	CHECK(!post_write(qp, mr, 4));
	for (int i = 0; i < 4; i++) {
		while (ibv_start_poll(cq, &none))
			;
		status[i] = cq->status;
		CHECK(ibv_next_poll(cq) == ENOENT);
		ibv_end_poll(cq);
	}
	printf("extended %d %d %d %d %d\n", status[0], status[1], status[2], status[3], now_us() - began >= 30000);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
	ibv_dereg_mr(mr);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *first;

	CHECK(list && list[0]);
	errno = 0;
	first = ibv_open_device(list[0]);
	printf("open_device %d", first ? 0 : errno);
	errno = 0;
	context = ibv_open_device(list[0]);
	printf(" %d\n", context ? 0 : errno);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	objects();
	receives();
	completions();
	extended();
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(list);
	return 0;
}
