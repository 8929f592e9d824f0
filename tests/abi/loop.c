/*
 * Two RC queue pairs of one program against each other. Exits with 0 if all is as it should be.
 *
 *     loop            data, errors, events, fork
 *     loop signals    the same, interrupted every millisecond
 *     loop threads    first in four threads at once
 *     loop raced      the same without fork, which ThreadSanitizer does not go through
 *     loop forever    data and events, until the NIC process is gone; then exits with 3
 *     loop asleep     waits for an event that never comes, until the NIC process is gone; then exits with 3
 *     loop exec N     opens everything, then executes itself, N times
 */
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "direct.h"

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
static __thread struct ibv_cq *cq;
static __thread struct ibv_qp *qps[2];
static struct way way = { .timeout = 14, .retries = 7, .reads = 1 };
static __thread struct ibv_comp_channel *channel;
static __thread char *memory;
static __thread struct ibv_mr *mr;

static void connect_pair(void)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 2, 2, 64 }
		};

		qps[i] = ibv_create_qp(pd, &init);
		CHECK(qps[i]);
	}
	for (int i = 0; i < 2; i++)
		to_rts(qps[i], qps[!i]->qp_num, &way);
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
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && wc.opcode == IBV_WC_RDMA_WRITE &&
	      wc.qp_num == qps[0]->qp_num);
	CHECK(memcmp(memory, there, BYTES) == 0);
	memset(memory, 0, BYTES);
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(do_send(&wr).status == IBV_WC_SUCCESS);
	CHECK(memcmp(memory, there, BYTES) == 0);
	*(uint64_t *)(void *)there = 40;
	sge.length = 8;
	wr = (struct ibv_send_wr){ .sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
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
	struct ibv_send_wr wr = { .sg_list = &from,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND_WITH_IMM,
				  .imm_data = __builtin_bswap32(0x01020304),
				  .send_flags = IBV_SEND_INLINE },
			   *bad;
	struct ibv_wc wc;
	struct ibv_cq *of;
	void *user;
	int seen = 0;

	CHECK(!context->ops.req_notify_cq(cq, 0));
	CHECK(!context->ops.post_recv(qps[1], &receive, &bad_receive));
	CHECK(!context->ops.post_send(qps[0], &wr, &bad));
	while (ibv_get_cq_event(channel, &of, &user))
		CHECK(errno == EINTR);
	CHECK(of == cq && user == &way);
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

/* ---- the ibv_wr_* interface */

enum { OPENERS = 11, SETTERS = 5, CANARY = 0xA5 };

static struct ibv_qp_ex *extended_pair(void)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq,
					    .recv_cq = cq,
					    .qp_type = IBV_QPT_RC,
					    .cap = { 16, 16, 2, 2, 64 },
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .pd = pd,
					    .send_ops_flags = 0x3FF };

	for (int i = 0; i < 2; i++) {
		qps[i] = context_of(context)->verbs.create_qp_ex(context, &init);
		CHECK(qps[i]);
	}
	for (int i = 0; i < 2; i++)
		to_rts(qps[i], qps[!i]->qp_num, &way);
	return (struct ibv_qp_ex *)qps[0];
}

static void open_request(struct ibv_qp_ex *qp, int which, struct ibv_mw *mw)
{
	struct ibv_mw_bind_info bind = { mr, (uintptr_t)memory, 64, IBV_ACCESS_REMOTE_WRITE };
	uint64_t there = (uintptr_t)memory + BYTES;

	switch (which) {
	case 0:
		qp->wr_send(qp);
		break;
	case 1:
		qp->wr_send_imm(qp, 7);
		break;
	case 2:
		qp->wr_send_inv(qp, mr->rkey);
		break;
	case 3:
		qp->wr_rdma_write(qp, mr->rkey, there);
		break;
	case 4:
		qp->wr_rdma_write_imm(qp, mr->rkey, there, 7);
		break;
	case 5:
		qp->wr_rdma_read(qp, mr->rkey, there);
		break;
	case 6:
		qp->wr_atomic_cmp_swp(qp, mr->rkey, there, 1, 2);
		break;
	case 7:
		qp->wr_atomic_fetch_add(qp, mr->rkey, there, 1);
		break;
	case 8:
		qp->wr_local_inv(qp, mw->rkey);
		break;
	case 9:
		qp->wr_bind_mw(qp, mw, mw->rkey + 1, &bind);
		break;
	default:
		break; /* none: data for nothing */
	}
}

static void set_data(struct ibv_qp_ex *qp, int which)
{
	struct ibv_sge list[2] = { { (uintptr_t)memory, 4000, mr->lkey }, { (uintptr_t)memory + 4000, 500, mr->lkey } };
	struct ibv_data_buf bufs[2] = { { memory, 40 }, { memory + 40, 24 } };

	switch (which) {
	case 0:
		qp->wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 4096);
		break;
	case 1:
		qp->wr_set_sge_list(qp, 2, list);
		break;
	case 2:
		qp->wr_set_inline_data(qp, memory, 64);
		break;
	case 3:
		qp->wr_set_inline_data_list(qp, 2, bufs);
		break;
	default:
		break; /* none */
	}
}

/* Whatever is called in whatever order: nothing outside the entry's own slot is written, and data is set once. */
static void every_order(struct ibv_qp_ex *qp, struct ibv_mw *mw)
{
	struct rnic_qp *own = (struct rnic_qp *)qp;
	uint8_t *end = own->slab + (size_t)own->entries * own->slab_bytes;

	for (int number = 0; number < OPENERS * SETTERS * SETTERS; number++) {
		int opener = number % OPENERS, first = number / OPENERS % SETTERS, second = number / OPENERS / SETTERS;
		bool no_data = opener == 8 || opener == 9, one = first < SETTERS - 1, two = second < SETTERS - 1;
		bool wrong = opener < OPENERS - 1 && ((one && two) || (no_data && (one || two)));
		uint8_t *slot = own->slab + (size_t)own->tail * own->slab_bytes;
		uint32_t tail = own->tail;

		memset(own->slab, CANARY, (size_t)(end - own->slab));
		qp->wr_flags = IBV_SEND_SIGNALED;
		qp->wr_start(qp);
		open_request(qp, opener, mw);
		set_data(qp, first);
		set_data(qp, second);
		if (wrong)
			CHECK(qp->wr_complete(qp) == EINVAL);
		else
			qp->wr_abort(qp);
		CHECK(own->tail == tail);
		for (uint8_t *at = own->slab; at < end; at++)
			CHECK(*at == CANARY || (at >= slot && at < slot + own->slab_bytes));
	}
}

/* Binds that were given up change nothing: those that are posted later find the window as it was. */
static void binds(struct ibv_qp_ex *qp, struct ibv_mw *verbs)
{
	struct ibv_mw_bind_info bind = { mr, (uintptr_t)memory, 64, IBV_ACCESS_REMOTE_WRITE };
	uint32_t key = verbs->rkey;

	/* the tag alone counts on, as ibv_inc_rkey does it */
	uint32_t first = (key & ~0xffu) | ((key + 1) & 0xff), second = (key & ~0xffu) | ((key + 2) & 0xff);

	for (int turn = 0; turn < 3; turn++) {
		qp->wr_start(qp);
		qp->wr_bind_mw(qp, verbs, first, &bind);
		qp->wr_local_inv(qp, first);
		qp->wr_bind_mw(qp, verbs, second, &bind);
		if (turn == 0) {
			qp->wr_abort(qp);
		} else if (turn == 1) {
			set_data(qp, 0);
			CHECK(qp->wr_complete(qp) == EINVAL);
		} else {
			CHECK(!qp->wr_complete(qp));
			for (int i = 0; i < 3; i++)
				CHECK(next_completion().status == IBV_WC_SUCCESS);
		}
	}
}

static void built_in_steps(void)
{
	struct ibv_qp_ex *qp = extended_pair();
	struct ibv_mr *whole = mr;
	struct ibv_mw *mw;

	mr = ibv_reg_mr(pd, memory, 2 * BYTES, 31);
	mw = context->ops.alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mr && mw);
	every_order(qp, mw);
	binds(qp, mw);
	CHECK(!context->ops.dealloc_mw(mw) && !ibv_dereg_mr(mr));
	mr = whole;
	destroy_pair();
}

/* ---- a shared receive queue: one message lies in a CQ that nobody polls, hundreds go by beside it */

static void receive_next(struct ibv_srq *srq, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory + BYTES + 8 * id, 8, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!context->ops.post_srq_recv(srq, &wr, &bad));
}

static void shared(void)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_cq *unread = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_wr;
	struct ibv_recv_wr one_more = { .wr_id = 99 }, *bad;
	struct ibv_qp *ends[4];
	struct ibv_wc wc;

	CHECK(srq && unread);
	for (int i = 0; i < 4; i++) { /* 0 to 1, whose CQ is polled, and 2 to 3, whose is not */
		struct ibv_qp_init_attr init = { .send_cq = cq,
						 .recv_cq = i == 3 ? unread : cq,
						 .srq = i & 1 ? srq : NULL,
						 .qp_type = IBV_QPT_RC,
						 .cap = { 16, 16, 2, 2, 64 } };

		ends[i] = ibv_create_qp(pd, &init);
		CHECK(ends[i]);
	}
	for (int i = 0; i < 4; i++)
		to_rts(ends[i], ends[i ^ 1]->qp_num, &way);
	for (uint64_t id = 0; id < 16; id++)
		receive_next(srq, id);
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(!context->ops.post_send(ends[2], &wr, &bad_wr));
	CHECK(next_completion().status == IBV_WC_SUCCESS);
	for (uint64_t turn = 0; turn < 500; turn++) {
		memcpy(memory, &turn, 8);
		CHECK(!context->ops.post_send(ends[0], &wr, &bad_wr));
		for (int seen = 0; seen < 2; seen++) {
			wc = next_completion();
			CHECK(wc.status == IBV_WC_SUCCESS);
			if (wc.opcode != IBV_WC_RECV)
				continue;
			CHECK(wc.wr_id == turn % 15 + 1 && !memcmp(memory + BYTES + 8 * wc.wr_id, &turn, 8));
			receive_next(srq, wc.wr_id);
		}
	}
	CHECK(context->ops.post_srq_recv(srq, &one_more, &bad) == ENOMEM);
	CHECK(context->ops.poll_cq(unread, 1, &wc) == 1 && wc.wr_id == 0 && wc.qp_num == ends[3]->qp_num);
	receive_next(srq, 0);
	for (int i = 0; i < 4; i++)
		CHECK(!ibv_destroy_qp(ends[i]));
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(unread));
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
		/* at an exit valgrind would look for leaks in what no child gets, with a fault for every eight bytes */
		execl("/bin/sh", "sh", "-c", "exit 42", (char *)NULL);
		_exit(3);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static void open_device(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(list && count > 0);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	CHECK(!ibv_query_gid(context, 1, 0, &way.gid));
	pd = ibv_alloc_pd(context);
	CHECK(pd);
}

static void open_queues(void)
{
	memory = calloc(2, BYTES);
	CHECK(memory);
	mr = ibv_reg_mr(pd, memory, 2 * BYTES, 15);
	CHECK(mr && ibv_dealloc_pd(pd) == EBUSY);
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	cq = ibv_create_cq(context, 64, &way, channel, 0);
	CHECK(cq && ibv_destroy_comp_channel(channel) == EBUSY);
	connect_pair();
}

static void close_queues(void)
{
	destroy_pair();
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr));
	free(memory);
}

static void *one_thread(void *unused)
{
	for (int i = 0; i < 3; i++) {
		open_queues();
		for (int turn = 0; turn < 10; turn++) {
			data();
			two_sided();
		}
		close_queues();
	}
	return unused;
}

/* Threads with queues of their own share a context and a protection domain. */
static void in_threads(void)
{
	pthread_t threads[4];

	for (size_t i = 0; i < COUNT(threads); i++)
		CHECK(!pthread_create(&threads[i], NULL, one_thread, NULL));
	for (size_t i = 0; i < COUNT(threads); i++)
		CHECK(!pthread_join(threads[i], NULL));
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

	on_failure = gone;
	if (strcmp(mode, "signals") == 0)
		interrupt_often();
	open_device();
	if (strcmp(mode, "threads") == 0 || strcmp(mode, "raced") == 0)
		in_threads();
	open_queues();
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
	if (strcmp(mode, "signals") != 0 && strcmp(mode, "raced") != 0)
		in_child();
	data();
	destroy_pair();
	wild(0xDEAD0000, mr->lkey, (uintptr_t)memory, mr->rkey, IBV_WC_LOC_PROT_ERR);
	wild((uintptr_t)memory, mr->lkey ^ 0x5500, (uintptr_t)memory, mr->rkey, IBV_WC_LOC_PROT_ERR);
	wild((uintptr_t)memory, mr->lkey, 0xDEAD0000, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	wild((uintptr_t)memory, mr->lkey, (uintptr_t)memory, mr->rkey ^ 0x5500, IBV_WC_REM_ACCESS_ERR);
	built_in_steps();
	shared();
	connect_pair();
	data();
	close_queues();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("all as it should be");
	return 0;
}
