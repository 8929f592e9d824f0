/* What programs count on and seldom meet: corners NAME... */
#define _GNU_SOURCE
#include "itself.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char memory[128];

/* ---- completion channels: the descriptor is ready if an event waits, and else not */

enum { POSTS = 8 };

static struct ibv_comp_channel *channel;
static struct ibv_cq *cqs[2];
static struct ibv_qp *qps[2];

static void open_channel(void)
{
	CHECK((channel = ibv_create_comp_channel(context)));
	for (int i = 0; i < 2; i++) {
		CHECK((cqs[i] = ibv_create_cq(context, 2 * POSTS, NULL, channel, 0)));
		qps[i] = make_qp(pd, cqs[i]);
		connect_to_itself(qps[i]);
	}
}

/* An event, and the completion that it is for. */
static void complete(int which)
{
	struct ibv_wc wc;

	CHECK(!ibv_req_notify_cq(cqs[which], 0));
	write_to_itself(qps[which], mr);
	while (!ibv_poll_cq(cqs[which], 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
}

/* Arming for any completion holds, whatever is asked for until one comes (IBA C11-32). */
static void armed_for_any_and_then_for_solicited(void)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *with;

	open_channel();
	CHECK(!ibv_req_notify_cq(cqs[0], 0) && !ibv_req_notify_cq(cqs[0], 1));
	for (int i = 0; i < 2; i++) {
		write_to_itself(qps[0], mr);
		while (!ibv_poll_cq(cqs[0], 1, &wc))
			;
		CHECK(is_readable(channel->fd, i ? 50 : 10000) == !i);
		if (!i) {
			CHECK(!ibv_get_cq_event(channel, &cq, &with));
			ibv_ack_cq_events(cq, 1);
		}
	}
	CHECK(!ibv_req_notify_cq(cqs[0], 1) && !ibv_req_notify_cq(cqs[0], 0)); /* and in this order */
	write_to_itself(qps[0], mr);
	CHECK(is_readable(channel->fd, 10000));
}

static void *take_event(void *none)
{
	struct ibv_cq *cq;
	void *with;

	CHECK(!ibv_get_cq_event(channel, &cq, &with));
	ibv_ack_cq_events(cq, 1);
	return none;
}

static int armed;

/* What the library calls when it goes to sleep: by then two events have come, and the descriptor says so once. */
int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	if (armed) {
		armed = 0;
		complete(0);
		complete(1);
		CHECK(is_readable(channel->fd, 10000));
	}
	return (int)syscall(SYS_ppoll, fds, count, timeout, mask, 8);
}

int poll(struct pollfd *fds, nfds_t count, int ms)
{
	struct timespec timeout = { ms / 1000, ms % 1000 * 1000000 };

	if (!ms) /* a look */
		return (int)syscall(SYS_ppoll, fds, count, &timeout, NULL, 8);
	return ppoll(fds, count, ms < 0 ? NULL : &timeout, NULL);
}

/* Whether nothing waits, and the descriptor says so once it has been asked: the fire for an event that was taken at once may
 * come a moment later. */
static int has_nothing(void)
{
	int flags = fcntl(channel->fd, F_GETFL), nothing = 0;
	struct ibv_cq *cq;
	void *with;

	CHECK(!fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK));
	for (int i = 0; i < 100 && !nothing; i++) {
		CHECK(ibv_get_cq_event(channel, &cq, &with) == -1 && errno == EAGAIN);
		nothing = !is_readable(channel->fd, 20);
	}
	CHECK(!fcntl(channel->fd, F_SETFL, flags));
	return nothing;
}

static void one_of_two_events(void)
{
	open_channel();
	armed = 1;
	take_event(NULL);
	CHECK(!armed && is_readable(channel->fd, 10000)); /* the NIC process may tell of the second a moment later */
	take_event(NULL);
	CHECK(has_nothing());
}

static void two_who_wait(void)
{
	pthread_t threads[2];

	open_channel();
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, take_event, NULL));
	usleep(100000); /* they sleep by then, or the test says less */
	complete(0);
	complete(1);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(has_nothing());
}

static void events_of_a_queue_that_goes(void)
{
	open_channel();
	complete(0);
	CHECK(is_readable(channel->fd, 10000));
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_cq(cqs[0]));
	CHECK(!is_readable(channel->fd, 0));
	complete(1);
	CHECK(is_readable(channel->fd, 10000));
	take_event(NULL);
	CHECK(!is_readable(channel->fd, 0));
}

/* A thread that is cancelled at whatever place leaves no lock. */
static void a_thread_that_is_cancelled(void)
{
	open_channel();
	for (int i = 0; i < 50; i++) {
		pthread_t thread;
		struct ibv_cq *cq;
		void *with, *result;

		CHECK(!ibv_req_notify_cq(cqs[0], 0));
		CHECK(!pthread_create(&thread, NULL, take_event, NULL));
		usleep((useconds_t)i * 10);
		complete(0);
		CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result));
		if (result == PTHREAD_CANCELED && is_readable(channel->fd, 0) && !ibv_get_cq_event(channel, &cq, &with))
			ibv_ack_cq_events(cq, 1);
	}
}

/* A thread that is to be cancelled before it calls: the first place where a thread may be ends it. */
static void *take_event_cancelled(void *none)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	return take_event(none);
}

static void a_thread_that_is_cancelled_at_once(void)
{
	pthread_t thread;

	open_channel();
	complete(0);
	CHECK(is_readable(channel->fd, 10000));
	CHECK(!pthread_create(&thread, NULL, take_event_cancelled, NULL));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!ibv_destroy_qp(qps[0]));
	/* the event was handed to nobody who could acknowledge it: a queue without */
	CHECK(!ibv_destroy_qp(qps[1]) && !ibv_destroy_cq(cqs[1]));
}

/* Posting and polling are no places where a thread may be cancelled, so that none keeps a lock there; the next one is. */
static void *complete_cancelled(void *done)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	complete(0);
	*(int *)done = 1;
	pthread_testcancel();
	return NULL;
}

static void a_thread_that_is_to_be_cancelled_and_posts(void)
{
	open_channel();
	for (int i = 0; i < 50; i++) {
		pthread_t thread;
		void *result;
		int done = 0;

		CHECK(!pthread_create(&thread, NULL, complete_cancelled, &done));
		CHECK(!pthread_join(thread, &result));
		CHECK(done && result == PTHREAD_CANCELED);
		complete(1);
	}
}

/* A thread sleeps for an event, and then another posts to a peer that is silent: the deadlines of that are nobody's but the
 * engine's, which has to see to them as if the sleeper had known. */
static double fails_after(int sleeper_first)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = make_qp(pd, cqs[0]);
	struct timespec began, ended;
	pthread_t thread;
	struct ibv_wc wc;

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = 0x1234; /* of this device: nobody has it */
	attr.ah_attr.is_global = attr.ah_attr.port_num = 1;
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 12;
	attr.retry_cnt = 2;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(!ibv_req_notify_cq(cqs[0], 0));
	if (sleeper_first) {
		CHECK(!pthread_create(&thread, NULL, take_event, NULL));
		usleep(300000);
	}
	clock_gettime(CLOCK_MONOTONIC, &began);
	for (int i = 0; i < POSTS; i++) /* the library's thread wakes with the first, and finds others at work */
		write_to_itself(qp, mr);
	if (!sleeper_first)
		CHECK(!pthread_create(&thread, NULL, take_event, NULL));
	CHECK(!pthread_join(thread, NULL));
	clock_gettime(CLOCK_MONOTONIC, &ended);
	CHECK(ibv_poll_cq(cqs[0], 1, &wc) == 1 && wc.status == IBV_WC_RETRY_EXC_ERR);
	for (int i = 1; i < POSTS; i++)
		CHECK(ibv_poll_cq(cqs[0], 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(qp));
	return (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9;
}

static void a_sleeper_and_one_who_posts(void)
{
	double usual = 60, asleep = 1e9;

	open_channel();
	/* 0.12 s each; left to the NIC process 0.21 s at least */
	for (int i = 0; i < 5 && asleep > usual + 0.06; i++) {
		double one = fails_after(0), other = fails_after(1);

		usual = one < usual ? one : usual;
		asleep = other < asleep ? other : asleep;
	}
	if (asleep > usual + 0.06)
		fprintf(stderr, "%.3f s in place of %.3f\n", asleep, usual);
}

/* ---- what is used cannot go */

static void queues_of_a_queue_pair_in_reset(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(cq && srq && qp);
	CHECK(ibv_destroy_cq(cq) == EBUSY && ibv_destroy_srq(srq) == EBUSY);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_srq(srq));
}

/* ---- what is more than was agreed is refused whole, and says which request it was */

enum { PIECES = 33 };

static void more_than_was_agreed(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 2, 2, 16 }, .qp_type = IBV_QPT_RC
	};
	struct ibv_sge pieces[PIECES], huge[2];
	struct ibv_send_wr wr[2], *bad = NULL;
	struct ibv_recv_wr wanted, *bad_wanted = NULL;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	uint32_t posted = 0;
	struct ibv_wc wc;

	CHECK(qp && init.cap.max_send_sge < PIECES && init.cap.max_recv_sge < PIECES);
	connect_to_itself(qp);
	for (int i = 0; i < PIECES; i++)
		pieces[i] = (struct ibv_sge){ (uintptr_t)memory, 1, mr->lkey };
	wr[0] = (struct ibv_send_wr){ .sg_list = pieces, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .next = &wr[1] };
	wr[0].wr.rdma.remote_addr = (uintptr_t)memory;
	wr[0].wr.rdma.rkey = mr->rkey;
	wr[1] = wr[0];
	wr[1].next = NULL;
	wr[1].send_flags = IBV_SEND_SIGNALED;
	wr[1].num_sge = (int)init.cap.max_send_sge + 1;
	CHECK(ibv_post_send(qp, wr, &bad) == EINVAL && bad == &wr[1]);
	wr[1].num_sge = (int)init.cap.max_send_sge;
	CHECK(!ibv_post_send(qp, &wr[1], &bad));
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
	huge[0] = huge[1] = (struct ibv_sge){ (uintptr_t)memory, 1u << 31, mr->lkey };
	wr[1].sg_list = huge;
	CHECK(ibv_post_send(qp, &wr[1], &bad) == EINVAL && bad == &wr[1]);
	huge[0].length = init.cap.max_inline_data + 1;
	wr[1].num_sge = 1;
	wr[1].send_flags = IBV_SEND_INLINE;
	CHECK(ibv_post_send(qp, &wr[1], &bad) == EINVAL && bad == &wr[1]);
	wanted = (struct ibv_recv_wr){ .sg_list = pieces, .num_sge = (int)init.cap.max_recv_sge + 1 };
	CHECK(ibv_post_recv(qp, &wanted, &bad_wanted) == EINVAL && bad_wanted == &wanted);
	wanted.num_sge = (int)init.cap.max_recv_sge;
	while (!ibv_post_recv(qp, &wanted, &bad_wanted))
		posted++;
	CHECK(posted == init.cap.max_recv_wr && bad_wanted == &wanted);
	CHECK(ibv_post_recv(qp, &wanted, &bad_wanted) == ENOMEM);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

/* Between start_poll and end_poll the thread destroys the queue pair whose completion it has just seen. */
static void a_queue_pair_destroyed_while_polling(void)
{
	for (uint32_t flags = 0; flags < 2; flags++) {
		struct ibv_cq_init_attr_ex how = { .cqe = 16,
						   .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
						   .flags = flags ? IBV_CREATE_CQ_ATTR_SINGLE_THREADED : 0 };
		struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &how);
		struct ibv_poll_cq_attr none = { 0 };
		struct ibv_qp *qp, *other;

		CHECK(cq);
		qp = make_qp(pd, ibv_cq_ex_to_cq(cq));
		other = make_qp(pd, ibv_cq_ex_to_cq(cq));
		connect_to_itself(qp);
		connect_to_itself(other);
		for (int i = 0; i < 3; i++)
			write_to_itself(qp, mr);
		while (ibv_start_poll(cq, &none))
			;
		CHECK(cq->wr_id == 7 && ibv_wc_read_qp_num(cq) == qp->qp_num);
		write_to_itself(other, mr);
		CHECK(!ibv_destroy_qp(qp));
		while (ibv_next_poll(cq)) /* what the other one had is gone with it */
			;
		CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_qp_num(cq) == other->qp_num);
		ibv_end_poll(cq);
		CHECK(!ibv_destroy_qp(other) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	}
}

/* ---- memory windows: bound on one queue pair, on another, and on the first again */

static void bind(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_cq *cq)
{
	struct ibv_mw_bind how = { .wr_id = 9, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;

	how.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory, sizeof memory, IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_bind_mw(qp, mw, &how));
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.wr_id == 9 && wc.status == IBV_WC_SUCCESS);
}

static void a_window_on_two_queue_pairs(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

	open_channel();
	CHECK(mw);
	bind(qps[0], mw, cqs[0]);
	bind(qps[1], mw, cqs[1]);
	bind(qps[0], mw, cqs[0]);
	CHECK(!ibv_dealloc_mw(mw));
	CHECK((mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1))); /* where the last was, as like as not */
	bind(qps[0], mw, cqs[0]);
}

/* A bind is refused, further ones are flushed: the window stays itself, by both types. */
static void a_window_outlives_binds_that_fail(void)
{
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
		struct ibv_pd *domain = ibv_alloc_pd(context);
		struct ibv_mr *region = ibv_reg_mr(domain, memory, sizeof memory, ALL);
		struct ibv_mw *mw = ibv_alloc_mw(domain, type);
		struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		struct ibv_qp *broken = make_qp(domain, cq), *healthy = make_qp(domain, cq);
		struct ibv_wc wc;

		CHECK(region && mw);
		connect_to_itself(broken);
		connect_to_itself(healthy);
		for (int i = 0; i < 5;
		     i++) { /* refused, flushed twice; then bound, on a healthy queue pair, and used */
			struct ibv_qp *qp = i < 3 ? broken : healthy;
			struct ibv_mw_bind_info info = { region, (uintptr_t)memory, i ? 64 : sizeof memory + 1,
							 IBV_ACCESS_REMOTE_WRITE };
			struct ibv_mw_bind how = { .wr_id = 9, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
			struct ibv_send_wr wr = { .wr_id = 9,
						  .opcode = IBV_WR_BIND_MW,
						  .send_flags = IBV_SEND_SIGNALED,
						  .bind_mw = { mw, ibv_inc_rkey(mw->rkey), info } },
					   *bad;

			if (i == 4) {
				wr.opcode = IBV_WR_LOCAL_INV;
				wr.invalidate_rkey = mw->rkey;
			}
			if (i == 4 && type == IBV_MW_TYPE_1)
				break;
			CHECK(!(type == IBV_MW_TYPE_1 ? ibv_bind_mw(qp, mw, &how) : ibv_post_send(qp, &wr, &bad)));
			if (type == IBV_MW_TYPE_2 && i < 4)
				mw->rkey = wr.bind_mw.rkey; /* as programs do */
			while (!ibv_poll_cq(cq, 1, &wc))
				;
			CHECK(wc.status == (i == 0 ? IBV_WC_MW_BIND_ERR :
					    i < 3  ? IBV_WC_WR_FLUSH_ERR :
						     IBV_WC_SUCCESS));
		}
		CHECK(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(region));
		CHECK(!ibv_destroy_qp(broken) && !ibv_destroy_qp(healthy) && !ibv_destroy_cq(cq));
		CHECK(!ibv_dealloc_pd(domain));
	}
}

/* ---- buffers that the library allocates: rdma-core 64 and later, whose header this machine may not have */

struct buf_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};

static void buffers_of_the_library(void)
{
	enum { BYTES = 8192, ADDR = 2, BUF = 32 };
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
	void (*free_buf)(void *) = dlsym(RTLD_DEFAULT, "ibv_free_buf");
	struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int) =
		dlsym(RTLD_DEFAULT, "ibv_reg_buf_mr");
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct buf_attr *) = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
	struct buf_attr attr = { .length = BYTES, .access = ALL, .comp_mask = ADDR | BUF };
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *own;
	struct ibv_wc wc;
	void *buf;
	char *at;

	open_channel();
	CHECK(alloc_buf && free_buf && reg_buf_mr && reg_mr_ex && other);
	CHECK((at = alloc_buf(pd, BYTES, &buf)) && !((uintptr_t)at & 4095));
	CHECK((own = reg_buf_mr(pd, buf, at + 4096, 4096, ALL)) && own->addr == at + 4096 && own->length == 4096);
	memset(at, 0, BYTES);
	memset(at + 4096, 'x', 2048);
	write_to_itself(qps[0], own);
	while (!ibv_poll_cq(cqs[0], 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS && !memcmp(at + 4096, at + 6144, 2048) && !at[4095]);
	CHECK(!ibv_dereg_mr(own));
	CHECK(!reg_buf_mr(pd, buf, at - 1, 8, ALL) && errno == EINVAL);
	CHECK(!reg_buf_mr(pd, buf, at + 1, BYTES, ALL) && errno == EINVAL);
	CHECK(!reg_buf_mr(other, buf, at, BYTES, ALL) && errno == EINVAL);
	attr.addr = at;
	attr.buf = buf;
	CHECK((own = reg_mr_ex(pd, &attr)) && !ibv_dereg_mr(own));
	attr.comp_mask = ADDR;
	CHECK((own = reg_mr_ex(pd, &attr)) && !ibv_dereg_mr(own));
	attr.comp_mask = ADDR | 1u << 4; /* a DMA handle */
	CHECK(!reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = 0;
	CHECK(!reg_mr_ex(pd, &attr) && errno == EINVAL);
	free_buf(buf);
	CHECK(!ibv_dealloc_pd(other));
}

/* ---- datagrams: whoever sent one is answered, whatever its address looks like */

static void answers_to_all_addresses(void)
{
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_ah_attr attr;
	struct ibv_grh grh;
	union ibv_gid own;

	CHECK(!ibv_query_gid(context, 1, 0, &own));
	memset(&grh, 0, sizeof grh);
	grh.version_tclass_flow = 0x60;
	grh.dgid = own;
	for (int byte = 0; byte < 256; byte++) {
		grh.sgid = (union ibv_gid){ .raw = { 0xfd, [12] = (uint8_t)byte, 0x3f, 0, 1 } };
		CHECK(!ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr));
		CHECK(attr.is_global && !memcmp(&attr.grh.dgid, &grh.sgid, 16));
	}
}

/* A datagram to itself; what it says of how it came. */
static void datagram_to_itself(struct ibv_qp *qp)
{
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	struct ibv_sge into = { .addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey };
	struct ibv_sge from = { .addr = (uintptr_t)memory + 64, .length = 8, .lkey = mr->lkey };
	struct ibv_recv_wr wanted = { .wr_id = 3, .sg_list = &into, .num_sge = 1 }, *bad_wanted;
	struct ibv_send_wr wr = { .wr_id = 4,
				  .sg_list = &from,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	CHECK(!ibv_query_gid(context, 1, 0, &path.grh.dgid));
	CHECK((wr.wr.ud.ah = ibv_create_ah(pd, &path)));
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 0x1111;
	CHECK(!ibv_post_recv(qp, &wanted, &bad_wanted) && !ibv_post_send(qp, &wr, &bad));
}

/* Bit 3: with a UDP header; 2:0: 1 by IPv6, 2 by IPv4. The same by both ways to poll. */
static void a_datagram_says_how_it_came(void)
{
	struct ibv_cq_init_attr_ex how = { .cqe = 8, .wc_flags = IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_SRC_QP };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &how);
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1111 };
	struct ibv_poll_cq_attr none = { 0 };
	uint8_t came = 0;
	struct ibv_qp *qp;
	union ibv_gid own;
	struct ibv_wc wc;

	CHECK(cq);
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CHECK(!ibv_query_gid(context, 1, 0, &own));
	came = 8 | (own.raw[10] == 0xff ? 2 : 1);
	datagram_to_itself(qp);
	for (int left = 2; left;) {
		wc.sl = 0xff; /* what the program has there is not what came */
		if (!ibv_poll_cq(init.send_cq, 1, &wc))
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS);
		CHECK(wc.sl == (wc.opcode == IBV_WC_RECV ? came : 0));
		left--;
	}
	datagram_to_itself(qp);
	for (int left = 2; left;) {
		if (ibv_start_poll(cq, &none))
			continue;
		CHECK(cq->status == IBV_WC_SUCCESS);
		CHECK(ibv_wc_read_sl(cq) == (ibv_wc_read_opcode(cq) == IBV_WC_RECV ? came : 0));
		ibv_end_poll(cq);
		left--;
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(init.send_cq));
}

static const struct {
	const char *name;
	void (*run)(void);
} corners[] = {
	{ "armed_for_any_and_then_for_solicited", armed_for_any_and_then_for_solicited },
	{ "one_of_two_events", one_of_two_events },
	{ "two_who_wait", two_who_wait },
	{ "events_of_a_queue_that_goes", events_of_a_queue_that_goes },
	{ "a_thread_that_is_cancelled", a_thread_that_is_cancelled },
	{ "a_thread_that_is_cancelled_at_once", a_thread_that_is_cancelled_at_once },
	{ "a_thread_that_is_to_be_cancelled_and_posts", a_thread_that_is_to_be_cancelled_and_posts },
	{ "a_sleeper_and_one_who_posts", a_sleeper_and_one_who_posts },
	{ "queues_of_a_queue_pair_in_reset", queues_of_a_queue_pair_in_reset },
	{ "more_than_was_agreed", more_than_was_agreed },
	{ "a_queue_pair_destroyed_while_polling", a_queue_pair_destroyed_while_polling },
	{ "a_window_on_two_queue_pairs", a_window_on_two_queue_pairs },
	{ "a_window_outlives_binds_that_fail", a_window_outlives_binds_that_fail },
	{ "buffers_of_the_library", buffers_of_the_library },
	{ "answers_to_all_addresses", answers_to_all_addresses },
	{ "a_datagram_says_how_it_came", a_datagram_says_how_it_came },
};

int main(int argc, char **argv)
{
	alarm(45); /* a lock that nobody lets go of */
	context = open_first();
	CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, sizeof memory, ALL)));
	for (int at = 1; at < argc; at++) {
		for (size_t i = 0; i < sizeof corners / sizeof *corners; i++) {
			if (strcmp(argv[at], corners[i].name))
				continue;
			where = corners[i].name;
			corners[i].run();
			puts(where);
		}
	}
	return 0;
}
