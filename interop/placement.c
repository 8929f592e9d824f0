/* FLUSH and ATOMIC WRITE (IBA annex A19) between two devices: a requester that posts them, and memory that they reach.
 *
 *     placement DEVICE GID_INDEX PORT [PEER [without-flush]]
 *
 * Without PEER it listens on TCP and is the responder. Both exchange "QPN PSN GID VA RKEY"; the requester then posts a
 * WRITE, a FLUSH of its range, an ATOMIC WRITE, a FLUSH of the region, and a FLUSH beyond it, which must be refused. The
 * responder answers with its memory. Prints "placement: ok" and what was posted: rdma-core has FLUSH from 45 on. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* of newer headers */
#define WITH_FLUSH (1u << 11)
#define WITH_ATOMIC_WRITE (1u << 12)
#define RIGHT_FLUSH_GLOBAL (1 << 8)
typedef void wr_flush_t(struct ibv_qp_ex *, uint32_t rkey, uint64_t va, size_t length, uint8_t type, uint8_t level);

enum { PLACEMENT_GLOBAL = 1, LEVEL_RANGE = 0, LEVEL_REGION = 1, PSN = 77, WORDS = 8 };
#define WRITTEN 0x1122334455667788ULL
#define STORED 0x99aabbccddeeff00ULL

struct end {
	uint32_t qpn, rkey;
	uint64_t va;
	union ibv_gid gid;
};

static uint64_t memory[WORDS], written = WRITTEN;
static struct ibv_cq *cq;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			return ibv_open_device(*list);
	return NULL;
}

static int meet(const char *peer, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int yes = 1, tcp = socket(AF_INET, SOCK_STREAM, 0), accepted;

	if (peer) {
		inet_pton(AF_INET, peer, &address.sin_addr);
		if (connect(tcp, (struct sockaddr *)&address, sizeof address))
			die("connect");
		return tcp;
	}
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (bind(tcp, (struct sockaddr *)&address, sizeof address) || listen(tcp, 1))
		die("listen");
	accepted = accept(tcp, NULL, NULL);
	if (accepted < 0)
		die("accept");
	return accepted;
}

static void swap(int tcp, const void *own, void *other, size_t bytes)
{
	if (send(tcp, own, bytes, 0) != (ssize_t)bytes || recv(tcp, other, bytes, MSG_WAITALL) != (ssize_t)bytes)
		die("exchange");
}

static struct ibv_qp *make_qp(struct ibv_context *context, struct ibv_pd *pd, unsigned *ops)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 8, 1, 1, 1, 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | WITH_ATOMIC_WRITE | WITH_FLUSH,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

	if (!qp) { /* an older rdma-core */
		init.send_ops_flags &= ~WITH_FLUSH;
		qp = ibv_create_qp_ex(context, &init);
	}
	if (!qp)
		die("ibv_create_qp_ex");
	*ops = (unsigned)init.send_ops_flags;
	return qp;
}

static void join(struct ibv_qp *qp, const struct end *peer, int gid_index)
{
	int rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = rights | RIGHT_FLUSH_GLOBAL };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.rq_psn = PSN,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = peer->gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64 } },
	};
	if (ibv_modify_qp(qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .timeout = 18,
				     .retry_cnt = 7,
				     .rnr_retry = 7,
				     .sq_psn = PSN,
				     .max_rd_atomic = 4 };
	if (ibv_modify_qp(qp, &attr,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

static void flush(struct ibv_qp_ex *qp, const struct end *peer, uint64_t offset, size_t length, uint8_t level)
{
	wr_flush_t *call;

	/* wr_flush follows wr_atomic_write */
	memcpy(&call, (char *)&qp->wr_atomic_write + sizeof qp->wr_atomic_write, sizeof call);
	call(qp, peer->rkey, peer->va + offset, length, PLACEMENT_GLOBAL, level);
}

static void expect(const char *what, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		;
	if (got < 0 || wc.status != status) {
		fprintf(stderr, "placement: %s: %s, and %s was right\n", what, ibv_wc_status_str(wc.status),
			ibv_wc_status_str(status));
		exit(1);
	}
}

static void request(struct ibv_qp *plain, const struct end *peer, unsigned ops, const struct ibv_mr *source)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(plain);
	uint64_t stored = STORED;

	for (int step = 0; step < 4; step++) {
		static const char *const names[] = { "WRITE", "FLUSH of a range", "ATOMIC WRITE", "FLUSH of a region" };

		if (step % 2 && !(ops & WITH_FLUSH))
			continue;
		ibv_wr_start(qp);
		qp->wr_id = (uint64_t)step;
		qp->wr_flags = IBV_SEND_SIGNALED;
		if (step == 0) {
			ibv_wr_rdma_write(qp, peer->rkey, peer->va + 8);
			ibv_wr_set_sge(qp, source->lkey, (uintptr_t)&written, sizeof written);
		} else if (step == 2) {
			qp->wr_atomic_write(qp, peer->rkey, peer->va, &stored);
		} else {
			flush(qp, peer, step == 1 ? 8 : 0, step == 1 ? 8 : 0, step == 1 ? LEVEL_RANGE : LEVEL_REGION);
		}
		if (ibv_wr_complete(qp))
			die(names[step]);
		expect(names[step], IBV_WC_SUCCESS);
	}
}

static void refuse(struct ibv_qp *plain, const struct end *peer)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(plain);

	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	flush(qp, peer, sizeof memory - 4, 8, LEVEL_RANGE);
	if (ibv_wr_complete(qp))
		die("FLUSH beyond the region");
	expect("FLUSH beyond the region", IBV_WC_REM_ACCESS_ERR);
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct end own, peer;
	uint64_t seen[WORDS], none[WORDS] = { 0 };
	struct ibv_pd *pd;
	struct ibv_mr *mr, *source;
	struct ibv_qp *qp;
	unsigned ops;
	char byte = 0;
	int tcp;

	if (argc < 4) {
		fprintf(stderr, "usage: placement DEVICE GID_INDEX PORT [PEER [without-flush]]\n");
		return 2;
	}
	context = open_device(argv[1]);
	if (!context)
		die("device");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | RIGHT_FLUSH_GLOBAL);
	if (!pd || !cq || !mr)
		die("registration");
	qp = make_qp(context, pd, &ops);
	own = (struct end){ .qpn = qp->qp_num, .rkey = mr->rkey, .va = (uintptr_t)memory };
	if (ibv_query_gid(context, 1, atoi(argv[2]), &own.gid))
		die("GID");
	if (argc > 5)
		ops &= ~WITH_FLUSH;
	tcp = meet(argc > 4 ? argv[4] : NULL, atoi(argv[3]));
	swap(tcp, &own, &peer, sizeof own);
	join(qp, &peer, atoi(argv[2]));
	swap(tcp, &byte, &byte, 1);
	if (argc > 4) {
		source = ibv_reg_mr(pd, &written, sizeof written, 0);
		if (!source)
			die("registration");
		request(qp, &peer, ops, source);
		swap(tcp, none, seen, sizeof seen);
		if (seen[0] != STORED || seen[1] != WRITTEN || memcmp(seen + 2, none, sizeof none - 16)) {
			fprintf(stderr, "placement: the responder has %llx %llx\n", (unsigned long long)seen[0],
				(unsigned long long)seen[1]);
			return 1;
		}
		if (ops & WITH_FLUSH)
			refuse(qp, &peer);
		printf("placement: ok: WRITE, ATOMIC WRITE%s\n", ops & WITH_FLUSH ? ", FLUSH" : "");
		swap(tcp, &byte, &byte, 1);
		return 0;
	}
	if (recv(tcp, seen, sizeof seen, MSG_WAITALL) != sizeof seen || send(tcp, memory, sizeof memory, 0) < 0)
		die("exchange");
	swap(tcp, &byte, &byte, 1);
	return 0;
}
