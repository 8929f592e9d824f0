/*
 * Two RC queue pairs of one program against each other. Exits with 0 if all is as it should be.
 *
 *     loop            data, errors, events, fork
 *     loop signals    the same, interrupted every millisecond
 *     loop forever    data and events, until the NIC process is gone; then exits with 3
 *     loop asleep     waits for an event that never comes, until the NIC process is gone; then exits with 3
 *     loop exec N     opens everything, then executes itself, N times
 */
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rnic.h"

extern struct ibv_device **ibv_get_device_list(int *);
extern void ibv_free_device_list(struct ibv_device **);
extern struct ibv_context *ibv_open_device(struct ibv_device *);
extern int ibv_close_device(struct ibv_context *);
extern struct ibv_pd *ibv_alloc_pd(struct ibv_context *);
extern int ibv_dealloc_pd(struct ibv_pd *);
extern struct ibv_mr *ibv_reg_mr(struct ibv_pd *, void *, size_t, int);
extern int ibv_dereg_mr(struct ibv_mr *);
extern struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *);
extern int ibv_destroy_comp_channel(struct ibv_comp_channel *);
extern struct ibv_cq *ibv_create_cq(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
extern int ibv_resize_cq(struct ibv_cq *, int);
extern int ibv_destroy_cq(struct ibv_cq *);
extern int ibv_get_cq_event(struct ibv_comp_channel *, struct ibv_cq **, void **);
extern void ibv_ack_cq_events(struct ibv_cq *, unsigned int);
extern struct ibv_qp *ibv_create_qp(struct ibv_pd *, struct ibv_qp_init_attr *);
extern int ibv_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int);
extern int ibv_destroy_qp(struct ibv_qp *);
extern int ibv_query_gid(struct ibv_context *, uint8_t, int, union ibv_gid *);

#define CHECK(what) \
	do { \
		if (!(what)) { \
			gone(); \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)

enum { BYTES = 1 << 16, GONE = 3 };

static bool until_gone;
static struct ibv_context *context;

/* What fails because there is no NIC process any more is as it should be. */
static void gone(void)
{
	if (until_gone && context && nic_gone(context_of(context)))
		exit(GONE);
}

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qps[2];
static union ibv_gid gid;
static struct ibv_comp_channel *channel;
static char *memory;
static struct ibv_mr *mr;

static void connect_pair(void)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { 16, 16, 2, 2, 64 } };

		qps[i] = ibv_create_qp(pd, &init);
		CHECK(qps[i]);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 15 };

		CHECK(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = 3, .dest_qp_num = qps[!i]->qp_num,
					     .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
					     .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
		CHECK(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
					     .max_rd_atomic = 1 };
		CHECK(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	}
}

static void destroy_pair(void)
{
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qps[i]));
}

static struct ibv_wc next_completion(void)
{
	struct ibv_wc wc;
	int found;

	while ((found = context->ops.poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(found == 1);
	return wc;
}

static struct ibv_wc do_send(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	CHECK(!context->ops.post_send(qps[0], wr, &bad));
	return next_completion();
}

static void data(void)
{
	char *there = memory + BYTES;
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_wc wc;

	for (int i = 0; i < BYTES; i++)
		memory[i] = (char)(i * 7);
	wr.wr.rdma.remote_addr = (uintptr_t)there;
	wr.wr.rdma.rkey = mr->rkey;
	wc = do_send(&wr);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == qps[0]->qp_num);
	CHECK(memcmp(memory, there, BYTES) == 0);
	memset(memory, 0, BYTES);
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(do_send(&wr).status == IBV_WC_SUCCESS);
	CHECK(memcmp(memory, there, BYTES) == 0);
	*(uint64_t *)(void *)there = 40;
	sge.length = 8;
	wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				   .wr.atomic = { (uintptr_t)there, 2, 0, mr->rkey } };
	CHECK(do_send(&wr).status == IBV_WC_SUCCESS);
	CHECK(*(uint64_t *)(void *)there == 42 && *(uint64_t *)(void *)memory == 40);
}

static void two_sided(void)
{
	struct ibv_sge to = { (uintptr_t)memory + BYTES, 64, mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 77, .sg_list = &to, .num_sge = 1 }, *bad_receive;
	char text[] = "inline data";
	struct ibv_sge from = { (uintptr_t)text, sizeof text, 0 };
	struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .imm_data = __builtin_bswap32(0x01020304), .send_flags = IBV_SEND_INLINE }, *bad;
	struct ibv_wc wc;
	struct ibv_cq *of;
	void *user;
	int seen = 0;

	CHECK(!context->ops.req_notify_cq(cq, 0));
	CHECK(!context->ops.post_recv(qps[1], &receive, &bad_receive));
	CHECK(!context->ops.post_send(qps[0], &wr, &bad));
	while (ibv_get_cq_event(channel, &of, &user))
		CHECK(errno == EINTR);
	CHECK(of == cq && user == &gid);
	ibv_ack_cq_events(of, 1);
	while (seen < 1) {
		wc = next_completion();
		if (wc.opcode == IBV_WC_RECV) {
			CHECK(wc.wr_id == 77 && wc.byte_len == sizeof text && wc.wc_flags & IBV_WC_WITH_IMM);
			CHECK(wc.imm_data == __builtin_bswap32(0x01020304));
			seen++;
		}
	}
	CHECK(memcmp(memory + BYTES, text, sizeof text) == 0);
}

/* Pointers to nowhere cost the queue pair, not the NIC process. */
static void wild(uint64_t local, uint32_t lkey, uint64_t remote, uint32_t rkey, int status)
{
	struct ibv_sge sge = { local, 4096, lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_wc wc;

	connect_pair();
	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	wc = do_send(&wr);
	if (wc.status != status)
		fprintf(stderr, "status %d instead of %d\n", wc.status, status);
	CHECK(wc.status == status);
	destroy_pair();
}

static void in_child(void)
{
	pid_t child = fork();
	int status;

	if (!child) {
		struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		struct ibv_wc wc;
		struct ibv_device **list;
		struct ibv_context *own;
		int count;

		if (context->ops.post_send(qps[0], &wr, &bad) == 0 || context->ops.poll_cq(cq, 1, &wc) >= 0)
			_exit(1); /* the parent's context must not work here */
		list = ibv_get_device_list(&count);
		own = list && count ? ibv_open_device(list[0]) : NULL;
		if (!own || ibv_close_device(own))
			_exit(2);
		ibv_free_device_list(list);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void open_all(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	memory = calloc(2, BYTES);
	CHECK(list && count > 0 && memory);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	mr = ibv_reg_mr(pd, memory, 2 * BYTES, 15);
	CHECK(mr && ibv_dealloc_pd(pd) == EBUSY);
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	cq = ibv_create_cq(context, 64, &gid, channel, 0);
	CHECK(cq && ibv_destroy_comp_channel(channel) == EBUSY);
	connect_pair();
}

static void close_all(void)
{
	destroy_pair();
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	free(memory);
}

static void interrupted(int number UNUSED)
{
}

static void interrupt_often(void)
{
	struct sigaction action = { .sa_handler = interrupted };
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } };

	CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
}

static void go_on(void)
{
	until_gone = true;
	puts("going on");
	fflush(stdout);
	for (;;) {
		data();
		two_sided();
	}
}

static void sleep_on(void)
{
	struct ibv_cq *of;
	void *user;

	until_gone = true;
	puts("going on");
	fflush(stdout);
	CHECK(!ibv_get_cq_event(channel, &of, &user));
}

static void execute_again(char *program, int times)
{
	char left[16];

	if (!times)
		return;
	snprintf(left, sizeof left, "%d", times - 1);
	execl(program, program, "exec", left, (char *)NULL);
	CHECK(!"execl came back");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (strcmp(mode, "signals") == 0)
		interrupt_often();
	open_all();
	if (strcmp(mode, "forever") == 0)
		go_on();
	if (strcmp(mode, "asleep") == 0)
		sleep_on();
	if (strcmp(mode, "exec") == 0 && argc > 2)
		execute_again(argv[0], atoi(argv[2]));
	CHECK(!ibv_reg_mr(pd, (void *)4096, 4096, 1) && errno == EFAULT); /* nothing is mapped there */
	CHECK(!ibv_reg_mr(pd, (void *)(uintptr_t)argv[0], 4096, 1 << 30)); /* no such right */
	data();
	two_sided();
	CHECK(!ibv_resize_cq(cq, 1000) && cq->cqe >= 1000);
	data();
	if (strcmp(mode, "signals") != 0)
		in_child();
	data();
	destroy_pair();
	wild(0xDEAD0000, mr->lkey, (uintptr_t)memory, mr->rkey, IBV_WC_LOC_PROT_ERR);
	wild((uintptr_t)memory, mr->lkey ^ 0x5500, (uintptr_t)memory, mr->rkey, IBV_WC_LOC_PROT_ERR);
	wild((uintptr_t)memory, mr->lkey, 0xDEAD0000, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	wild((uintptr_t)memory, mr->lkey, (uintptr_t)memory, mr->rkey ^ 0x5500, IBV_WC_REM_ACCESS_ERR);
	connect_pair();
	data();
	close_all();
	puts("all as it should be");
	return 0;
}
