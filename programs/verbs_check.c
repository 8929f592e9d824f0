/*
 * Check rarely used calls of libibverbs, compiled with rdma-core's own header: one device, connected queue pairs.
 *
 *     verbs_check timestamps   completions have timestamps, by the device's clock and by wall clock
 *     verbs_check null_mr      a null region reads as zeros and discards writes
 *     verbs_check groups       an IPv4 group by both spellings of its GID
 *     verbs_check dmabuf       memory of a memfd, and of a udmabuf where the kernel has it, by their descriptors
 *
 * Exits with 0 if all checks pass; the last line names the check.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)

enum { BYTES = 10000, GRH = 40, QKEY = 0x11111111, PAGE = 4096, PAGES = 8 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct ibv_qp *qps[2];
static union ibv_gid gid;

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context && !ibv_query_gid(context, 1, 0, &gid));
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	memory = calloc(2, BYTES);
	mr = ibv_reg_mr(pd, memory, 2 * BYTES,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(pd && memory && mr);
}

static void to_rts(struct ibv_qp *qp, uint32_t peer)
{
	int connected = qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qkey = QKEY,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				     (connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				     .path_mtu = IBV_MTU_1024,
				     .dest_qp_num = peer,
				     .max_dest_rd_atomic = 1,
				     .min_rnr_timer = 12,
				     .ah_attr = {
					     .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	CHECK(!ibv_modify_qp(qp, &attr,
			     !connected ? IBV_QP_STATE :
					  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
	};
	CHECK(!ibv_modify_qp(qp, &attr,
			     !connected ? IBV_QP_STATE | IBV_QP_SQ_PSN :
					  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void make_pair(enum ibv_qp_type type)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = { 16, 16, 3, 3, 0 }
		};

		qps[i] = ibv_create_qp(pd, &init);
		CHECK(qps[i]);
	}
	for (int i = 0; i < 2; i++)
		to_rts(qps[i], qps[!i]->qp_num);
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void post(enum ibv_wr_opcode opcode, struct ibv_sge *sges, int count, uint64_t there, uint32_t rkey)
{
	struct ibv_send_wr *bad, wr = { .wr_id = 1,
					.sg_list = sges,
					.num_sge = count,
					.opcode = opcode,
					.send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { there, rkey } };

	CHECK(!ibv_post_send(qps[0], &wr, &bad));
}

static void receive(int which, struct ibv_sge *sges, int count)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = 2, .sg_list = sges, .num_sge = count };

	CHECK(!ibv_post_recv(qps[which], &wr, &bad));
}

static uint64_t nanoseconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t device_ticks(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	CHECK(!ibv_query_rt_values_ex(context, &values) && values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK);
	return (uint64_t)values.raw_clock.tv_sec * 1000000000u + (uint64_t)values.raw_clock.tv_nsec;
}

/* Poll a completion late: its timestamps are those of its creation. */
static void timestamps(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq_init_attr_ex init = { .cqe = 16,
					    .channel = channel,
					    .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
							IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	struct ibv_cq_ex *extended = channel ? ibv_create_cq_ex(context, &init) : NULL;
	struct ibv_cq *told;
	void *nothing;
	struct ibv_device_attr_ex attr = { 0 };
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	uint64_t last = 0;

	CHECK(extended && !ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.completion_timestamp_mask && attr.hca_core_clock);
	cq = ibv_cq_ex_to_cq(extended);
	make_pair(IBV_QPT_RC);
	for (int i = 0; i < 20; i++) {
		uint64_t ticks = device_ticks(), day = nanoseconds(CLOCK_REALTIME), made, wall, later, end;
		int empty;

		CHECK(i || !ibv_req_notify_cq(cq, 0));
		receive(1, &(struct ibv_sge){ (uintptr_t)memory + BYTES, BYTES, mr->lkey }, 1);
		post(i & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, &sge, 1, (uintptr_t)memory + BYTES, mr->rkey);
		if (i == 0) {
			CHECK(!ibv_get_cq_event(channel, &told, &nothing));
			ibv_ack_cq_events(told, 1);
			usleep(200000);
		}
		for (int left = 1 + (i & 1); left; left--) {
			end = nanoseconds(CLOCK_MONOTONIC) + 20000000000u;
			while ((empty = ibv_start_poll(extended, &none)) == ENOENT &&
			       nanoseconds(CLOCK_MONOTONIC) < end)
				;
			CHECK(!empty && extended->status == IBV_WC_SUCCESS);
			made = ibv_wc_read_completion_ts(extended);
			wall = ibv_wc_read_completion_wallclock_ns(extended);
			ibv_end_poll(extended);
			later = device_ticks();
			CHECK(made >= ticks && made <= later && made >= last);
			if (i == 0)
				CHECK(later - made > 100000000); /* it was created before the poll */
			CHECK(wall + 1000000000 > day && wall < nanoseconds(CLOCK_REALTIME) + 1000000000);
			last = made;
		}
	}
	init.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_FLOW_TAG;
	CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
	puts("completions have timestamps of their creation");
}

static void null_mr(void)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_sge sges[3];

	CHECK(null);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	make_pair(IBV_QPT_RC);
	for (int i = 0; i < BYTES; i++)
		memory[i] = (uint8_t)(i * 7 + 1);
	memset(memory + BYTES, 0xEE, BYTES);
	/* a middle part of zeros from the null MR, at any address */
	sges[0] = (struct ibv_sge){ (uintptr_t)memory, 3000, mr->lkey };
	sges[1] = (struct ibv_sge){ (uintptr_t)memory, 4000, null->lkey };
	sges[2] = (struct ibv_sge){ (uintptr_t)memory + 7000, 3000, mr->lkey };
	post(IBV_WR_RDMA_WRITE, sges, 3, (uintptr_t)memory + BYTES, mr->rkey);
	completion();
	CHECK(!memcmp(memory + BYTES, memory, 3000) && !memcmp(memory + BYTES + 7000, memory + 7000, 3000));
	for (int i = 3000; i < 7000; i++)
		CHECK(!memory[BYTES + i]);
	/* and one that is discarded: of a READ, then of a SEND */
	for (int sends = 0; sends < 2; sends++) {
		memset(memory + BYTES, 0xEE, BYTES);
		sges[0] = (struct ibv_sge){ (uintptr_t)memory + BYTES, 3000, mr->lkey };
		sges[1] = (struct ibv_sge){ 0, 4000, null->lkey };
		sges[2] = (struct ibv_sge){ (uintptr_t)memory + BYTES + 7000, 3000, mr->lkey };
		if (sends) {
			receive(1, sges, 3);
			sges[0] = (struct ibv_sge){ (uintptr_t)memory, BYTES, mr->lkey };
			post(IBV_WR_SEND, sges, 1, 0, 0);
			completion();
		} else {
			post(IBV_WR_RDMA_READ, sges, 3, (uintptr_t)memory, mr->rkey);
		}
		completion();
		CHECK(!memcmp(memory + BYTES, memory, 3000) && !memcmp(memory + BYTES + 7000, memory + 7000, 3000));
		for (int i = 3000; i < 7000; i++)
			CHECK(memory[BYTES + i] == 0xEE && memory[i] == (uint8_t)(i * 7 + 1));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qps[i]));
	CHECK(!ibv_dereg_mr(null));
	puts("a null region reads as zeros and discards writes");
}

static void groups(void)
{
	static const char *const spellings[] = { "::ffff:239.7.7.7", "ff0e::ffff:239.7.7.7" };
	union ibv_gid group[2];
	struct ibv_ah *ah[2];

	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	make_pair(IBV_QPT_UD);
	for (int i = 0; i < 2; i++) {
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 };

		CHECK(inet_pton(AF_INET6, spellings[i], &group[i]) == 1);
		attr.grh.dgid = group[i];
		ah[i] = ibv_create_ah(pd, &attr);
		CHECK(ah[i]);
	}
	for (int joined = 0; joined < 2; joined++)
		for (int sent = 0; sent < 2; sent++) {
			struct ibv_sge from = { (uintptr_t)memory, 100, mr->lkey },
				       to = { (uintptr_t)memory + BYTES, 140, mr->lkey };
			struct ibv_send_wr *bad, wr = { .sg_list = &from,
							.num_sge = 1,
							.opcode = IBV_WR_SEND,
							.send_flags = IBV_SEND_SIGNALED,
							.wr.ud = { ah[sent], 0xFFFFFF, QKEY } };
			int received = 0;

			memset(memory, 16 * joined + sent + 1, 100);
			CHECK(!ibv_attach_mcast(qps[1], &group[joined], 0));
			receive(1, &to, 1);
			CHECK(!ibv_post_send(qps[0], &wr, &bad));
			for (int left = 2; left; left--)
				received += completion().opcode == IBV_WC_RECV;
			CHECK(received == 1 && !memcmp(memory, memory + BYTES + GRH, 100));
			CHECK(!ibv_detach_mcast(qps[1], &group[!joined], 0)); /* the same group */
		}
	puts("both spellings of an IPv4 group are one");
}

static void through(int fd, uint8_t *mapped, const char *name)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	uint64_t offset = PAGE + 100, length = 3 * PAGE, iova = 0x40000000 + 100;
	struct ibv_mr *there = ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };

	CHECK(there);
	for (int i = 0; i < BYTES; i++)
		memory[i] = (uint8_t)(i * 11 + 5);
	post(IBV_WR_RDMA_WRITE, &sge, 1, iova, there->rkey);
	completion();
	CHECK(!memcmp(mapped + offset, memory, BYTES));
	memset(mapped + offset, 0x5A, length);
	post(IBV_WR_RDMA_READ, &sge, 1, iova + length - BYTES, there->rkey);
	completion();
	for (int i = 0; i < BYTES; i++)
		CHECK(memory[i] == 0x5A);
	CHECK(!ibv_reg_dmabuf_mr(pd, offset, PAGES * PAGE, iova, fd, access) && errno == EINVAL); /* past its end */
	CHECK(!ibv_dereg_mr(there));
	printf("%s ", name);
}

static void dmabuf(void)
{
	int fd = memfd_create("buffer", MFD_ALLOW_SEALING), device, none = open("/dev/null", O_RDWR);
	uint8_t *mapped;

	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	make_pair(IBV_QPT_RC);
	CHECK(fd >= 0 && !ftruncate(fd, PAGES * PAGE) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	mapped = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(mapped != MAP_FAILED);
	through(fd, mapped, "memfd");
	device = open("/dev/udmabuf", O_RDWR);
	if (device >= 0) {
		struct udmabuf_create create = { .memfd = (uint32_t)fd,
						 .flags = UDMABUF_FLAGS_CLOEXEC,
						 .size = PAGES * PAGE };
		int buffer = ioctl(device, UDMABUF_CREATE, &create);

		CHECK(buffer >= 0);
		through(buffer, mapped, "udmabuf");
	}
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, none, IBV_ACCESS_LOCAL_WRITE) && errno == EOPNOTSUPP);
	puts(device >= 0 ? "by their descriptors" : "by its descriptor; this kernel has no /dev/udmabuf");
}

/* `state` of a failed queue pair: it keeps the program's last value until the program queries the state. */
static void state(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	make_pair(IBV_QPT_RC);
	post(IBV_WR_RDMA_WRITE, &sge, 1, (uintptr_t)memory, mr->rkey ^ 1); /* no such key */
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && qps[0]->state == IBV_QPS_RTS);
	CHECK(!ibv_query_qp(qps[0], &attr, IBV_QP_AV | IBV_QP_DEST_QPN, &init) && qps[0]->state == IBV_QPS_RTS);
	CHECK(!ibv_query_qp(qps[0], &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	CHECK(qps[0]->state == IBV_QPS_ERR);
	puts("the state is read on query");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *word;
		void (*check)(void);
	} checks[] = { { "timestamps", timestamps },
		       { "null_mr", null_mr },
		       { "groups", groups },
		       { "dmabuf", dmabuf },
		       { "state", state } };

	for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
		if (argc == 2 && strcmp(argv[1], checks[i].word) == 0) {
			open_device();
			checks[i].check();
			return 0;
		}
	fprintf(stderr, "usage: %s timestamps|null_mr|groups|dmabuf|state\n", argv[0]);
	return 2;
}
