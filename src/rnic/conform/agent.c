/* Agent of `rnic conform` for any libibverbs device: runs a script's steps for the peer's software.
 *
 *     cc -O1 agent.c -o conform-agent -libverbs
 *     ./conform-agent DEVICE GID_INDEX TCP_PORT
 *
 * It serves testers in turn, with the line protocol of rnic/conform/agent.py. There is one connection at a time; `open` creates new regions, CQ and queue pair. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION 1
#define QKEY 0x11111111
#define SLOT 16384
#define SLOTS 16
#define SEND_ID 1000
#define REGIONS 4
#define BIG 65536
/* Numbers that headers before rdma-core 46 lack. */
#define FLUSH_GLOBAL_RIGHT (1 << 8)
#define DEVICE_FLUSH_GLOBAL (1ull << 38)
#define DEVICE_ATOMIC_WRITE (1ull << 40)
/* XRC: two SRQs in one domain, of both protection domains, and one in another domain. */
#define QUEUES 3

static const char NAMES[REGIONS] = { 'M', 'R', 'L', 'F' };
static const size_t SIZES[REGIONS] = { BIG, 4096, 4096, 4096 };
static const int RIGHTS[REGIONS] = {
	IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
	IBV_ACCESS_LOCAL_WRITE,
	IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
};

static struct ibv_context *context;
static struct ibv_pd *pd, *foreign;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static struct ibv_mr *regions[REGIONS], *inbox, *foreign_inbox;
static struct ibv_xrcd *domains[2];
static struct ibv_srq *srqs[QUEUES];
static uint32_t srq_numbers[QUEUES];
static unsigned char *memory[REGIONS], *slots;
static unsigned peer_qpn, posted;
static int gid_index;
static FILE *out;

static void report_error(const char *what)
{
	fprintf(out, "error %s: %m\n", what);
}

/* Return the number after `name=` in a line, or `otherwise`. */
static unsigned long long read_value(const char *line, const char *name, unsigned long long otherwise)
{
	size_t length = strlen(name);
	for (const char *at = strchr(line, ' '); at; at = strchr(at + 1, ' '))
		if (!strncmp(at + 1, name, length) && at[1 + length] == '=')
			return strtoull(at + length + 2, NULL, 0);
	return otherwise;
}

/* Copy the word after `name=` into 64 bytes; empty if there is none. */
static char *read_word(const char *line, const char *name, char *into)
{
	size_t length = strlen(name);
	into[0] = 0;
	for (const char *at = strchr(line, ' '); at; at = strchr(at + 1, ' '))
		if (!strncmp(at + 1, name, length) && at[1 + length] == '=')
			sscanf(at + length + 2, "%63s", into);
	return into;
}

static void close_all(void)
{
	if (qp)
		ibv_destroy_qp(qp);
	if (ah)
		ibv_destroy_ah(ah);
	for (int i = 0; i < QUEUES; i++)
		if (srqs[i])
			ibv_destroy_srq(srqs[i]);
	for (int i = 0; i < 2; i++)
		if (domains[i])
			ibv_close_xrcd(domains[i]);
	for (int i = 0; i < REGIONS; i++)
		if (regions[i])
			ibv_dereg_mr(regions[i]);
	if (inbox)
		ibv_dereg_mr(inbox);
	if (foreign_inbox)
		ibv_dereg_mr(foreign_inbox);
	if (cq)
		ibv_destroy_cq(cq);
	if (pd)
		ibv_dealloc_pd(pd);
	if (foreign)
		ibv_dealloc_pd(foreign);
	qp = NULL, ah = NULL, inbox = foreign_inbox = NULL, cq = NULL, pd = foreign = NULL;
	memset(srqs, 0, sizeof srqs);
	memset(domains, 0, sizeof domains);
	memset(regions, 0, sizeof regions);
}

static int connect_qp(const char *line, int type)
{
	char text[64];
	unsigned char raw[16] = { 0 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	read_word(line, "access", text);
	for (char *letter = text; *letter; letter++)
		attr.qp_access_flags |= *letter == 'r'			 ? IBV_ACCESS_REMOTE_READ :
					*letter == 'w' || *letter == 'A' ? IBV_ACCESS_REMOTE_WRITE :
					*letter == 'f'			 ? FLUSH_GLOBAL_RIGHT :
									   IBV_ACCESS_REMOTE_ATOMIC;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if (type == IBV_QPT_UC)
		attr.qp_access_flags &= IBV_ACCESS_REMOTE_WRITE;
	if (ibv_modify_qp(qp, &attr, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
		return -1;
	read_word(line, "gid", text);
	for (int i = 0; i < 16 && strlen(text) == 32; i++)
		sscanf(text + 2 * i, "%2hhx", raw + i);
	unsigned long long mtu = read_value(line, "mtu", 1024), code = IBV_MTU_256;
	while (code < IBV_MTU_4096 && 256ULL << (code - 1) < mtu)
		code++;
	struct ibv_ah_attr path = { .is_global = 1,
				    .port_num = 1,
				    .grh = { .sgid_index = gid_index, .hop_limit = 64 } };
	memcpy(path.grh.dgid.raw, raw, 16);
	peer_qpn = read_value(line, "qpn", 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				     .path_mtu = code,
				     .dest_qp_num = peer_qpn,
				     .ah_attr = path,
				     .rq_psn = read_value(line, "theirs", 0),
				     .max_dest_rd_atomic = read_value(line, "rd", 1),
				     .min_rnr_timer = read_value(line, "rnr_timer", 12) };
	mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ibv_modify_qp(qp, &attr, mask))
		return -1;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .sq_psn = read_value(line, "ours", 0),
				     .max_rd_atomic = read_value(line, "rd", 1),
				     .timeout = read_value(line, "timeout", 14),
				     .retry_cnt = read_value(line, "retry", 7),
				     .rnr_retry = read_value(line, "rnr_retry", 7) };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if (type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	if (ibv_modify_qp(qp, &attr, mask))
		return -1;
	if (type == IBV_QPT_UD)
		ah = ibv_create_ah(pd, &path);
	return type == IBV_QPT_UD && !ah ? -1 : 0;
}

/* Return whether the device has a capability of IBA's annex A19. */
static int has(unsigned long long capability)
{
	struct ibv_device_attr_ex attr;
	return !ibv_query_device_ex(context, NULL, &attr) && attr.device_cap_flags_ex & capability;
}

static int has_xrc(void)
{
	struct ibv_device_attr attr;
	return !ibv_query_device(context, &attr) && attr.device_cap_flags & IBV_DEVICE_XRC;
}

/* Make domains and SRQs, and the queue pair of a pair that receives or sends. */
static int open_xrc(int type)
{
	struct ibv_xrcd_init_attr named = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					    .fd = -1,
					    .oflags = O_CREAT };
	for (int i = 0; i < 2; i++)
		if (!(domains[i] = ibv_open_xrcd(context, &named)))
			return -1;
	foreign_inbox = ibv_reg_mr(foreign, slots, SLOT * SLOTS, IBV_ACCESS_LOCAL_WRITE);
	if (!foreign_inbox)
		return -1;
	for (int i = 0; i < QUEUES; i++) {
		struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 64, .max_sge = 1 },
						     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
								  IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
						     .srq_type = IBV_SRQT_XRC,
						     .pd = i == 1 ? foreign : pd,
						     .xrcd = domains[i == 2],
						     .cq = cq };
		srqs[i] = ibv_create_srq_ex(context, &init);
		if (!srqs[i] || ibv_get_srq_num(srqs[i], srq_numbers + i))
			return -1;
	}
	struct ibv_qp_init_attr_ex init = { .qp_type = type };
	if (type == IBV_QPT_XRC_RECV) {
		init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
		init.xrcd = domains[0];
	} else {
		init.comp_mask = IBV_QP_INIT_ATTR_PD;
		init.pd = pd;
		init.send_cq = cq;
		init.cap.max_send_wr = 64;
		init.cap.max_send_sge = 1;
	}
	qp = ibv_create_qp_ex(context, &init);
	return qp ? 0 : -1;
}

static int service_type(const char *name)
{
	static const struct {
		const char *name;
		int type;
	} SERVICES[] = { { "RC", IBV_QPT_RC },
			 { "UC", IBV_QPT_UC },
			 { "UD", IBV_QPT_UD },
			 { "XRC", IBV_QPT_XRC_RECV },
			 { "XRC_INI", IBV_QPT_XRC_SEND } };
	for (size_t i = 0; i < sizeof SERVICES / sizeof *SERVICES; i++)
		if (!strcmp(name, SERVICES[i].name))
			return SERVICES[i].type;
	return -1;
}

static void do_open(const char *line)
{
	char text[64];
	close_all();
	if (read_value(line, "credits", 0)) {
		fprintf(out, "error libibverbs cannot ask its device for end-to-end credits\n");
		return;
	}
	read_word(line, "access", text);
	int flushes = strchr(text, 'f') != NULL;
	if ((flushes && !has(DEVICE_FLUSH_GLOBAL)) || (strchr(text, 'A') && !has(DEVICE_ATOMIC_WRITE))) {
		fprintf(out, "error the device has no FLUSH, or no ATOMIC WRITE\n");
		return;
	}
	read_word(line, "service", text);
	int type = service_type(text), xrc = type == IBV_QPT_XRC_RECV || type == IBV_QPT_XRC_SEND;
	if (type < 0 || (xrc && !has_xrc())) {
		fprintf(out, "error the device has no %s\n", xrc ? "XRC" : text);
		return;
	}
	pd = ibv_alloc_pd(context);
	foreign = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	if (!pd || !foreign || !cq)
		return report_error("objects");
	for (int i = 0; i < REGIONS; i++) {
		for (size_t byte = 0; byte < SIZES[i]; byte++)
			memory[i][byte] = 31 * byte + 17 * (byte >> 8) + 'm';
		regions[i] = ibv_reg_mr(NAMES[i] == 'F' ? foreign : pd, memory[i], SIZES[i],
					RIGHTS[i] | (flushes && NAMES[i] == 'M' ? FLUSH_GLOBAL_RIGHT : 0));
		if (!regions[i])
			return report_error("region");
	}
	memset(slots, 0, SLOT * SLOTS);
	inbox = ibv_reg_mr(pd, slots, SLOT * SLOTS, IBV_ACCESS_LOCAL_WRITE);
	posted = 0;
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	if (inbox && xrc) {
		if (open_xrc(type))
			return report_error("XRC");
	} else if (inbox) {
		qp = ibv_create_qp(pd, &init);
	}
	if (!qp || connect_qp(line, type))
		return report_error("queue pair");
	fprintf(out, "ok qpn=%u", qp->qp_num);
	for (int i = 0; i < REGIONS; i++)
		fprintf(out, " %c=%#llx:%#x:%zu", NAMES[i], (unsigned long long)(size_t)memory[i], regions[i]->rkey,
			SIZES[i]);
	if (xrc)
		fprintf(out, " near=%u far=%u outside=%u", srq_numbers[0], srq_numbers[1], srq_numbers[2]);
	fprintf(out, "\n");
}

static void do_recv(const char *line)
{
	unsigned count, length;
	if (!qp || sscanf(line, "recv %u %u", &count, &length) != 2 || length > SLOT)
		return report_error("recv");
	int queue = 0;
	while (srqs[0] && queue < QUEUES - 1 && srq_numbers[queue] != read_value(line, "srqn", srq_numbers[0]))
		queue++;
	while (count--) {
		unsigned slot = posted++ % SLOTS;
		struct ibv_sge sge = { (size_t)slots + slot * SLOT, length,
				       srqs[0] && queue == 1 ? foreign_inbox->lkey : inbox->lkey };
		struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
		if (srqs[0] ? ibv_post_srq_recv(srqs[queue], &wr, &bad) : ibv_post_recv(qp, &wr, &bad))
			return report_error("post_recv");
	}
	fprintf(out, "ok\n");
}

static void do_post(const char *line)
{
	static const struct {
		const char *name;
		enum ibv_wr_opcode opcode;
	} OPERATIONS[] = { { "SEND", IBV_WR_SEND },
			   { "SEND_IMM", IBV_WR_SEND_WITH_IMM },
			   { "WRITE", IBV_WR_RDMA_WRITE },
			   { "WRITE_IMM", IBV_WR_RDMA_WRITE_WITH_IMM },
			   { "READ", IBV_WR_RDMA_READ },
			   { "CMP_SWAP", IBV_WR_ATOMIC_CMP_AND_SWP },
			   { "FETCH_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD } };
	char name[64];
	struct ibv_send_wr wr = { .wr_id = SEND_ID, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	int known = 0;
	if (!qp || sscanf(line, "post %63s", name) != 1)
		return report_error("post");
	for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
		if (!strcmp(name, OPERATIONS[i].name))
			wr.opcode = OPERATIONS[i].opcode, known = 1;
	if (!known)
		return report_error(name);
	unsigned long long va = read_value(line, "va", 0), key = read_value(line, "rkey", 0);
	struct ibv_sge sge = { (size_t)memory[0], read_value(line, "len", 8), regions[0]->lkey };
	wr.sg_list = &sge;
	wr.imm_data = htonl(read_value(line, "imm", 0));
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = va, wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = read_value(line, "compare_add", 0),
		wr.wr.atomic.swap = read_value(line, "swap", 0);
	} else if (ah) {
		wr.wr.ud.ah = ah, wr.wr.ud.remote_qpn = peer_qpn, wr.wr.ud.remote_qkey = QKEY;
	} else {
		wr.wr.rdma.remote_addr = va, wr.wr.rdma.rkey = key;
	}
	if (srqs[0])
		wr.qp_type.xrc.remote_srqn = read_value(line, "srqn", 0);
	if (ibv_post_send(qp, &wr, &bad))
		return report_error("post_send");
	fprintf(out, "ok\n");
}

static void do_poll(void)
{
	struct ibv_wc wc;
	if (!cq || ibv_poll_cq(cq, 1, &wc) != 1)
		fprintf(out, "ok none\n");
	else
		fprintf(out, "ok kind=%s status=%d len=%u imm=%u slot=%llu\n", wc.wr_id == SEND_ID ? "send" : "recv",
			wc.status, wc.byte_len, wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0,
			(unsigned long long)wc.wr_id);
}

static void do_bytes(const char *line)
{
	char name;
	size_t at, size, limit = SLOT * SLOTS;
	const unsigned char *from = slots;
	if (sscanf(line, "bytes %c %zu %zu", &name, &at, &size) != 3)
		return report_error("bytes");
	for (int i = 0; i < REGIONS; i++)
		if (name == NAMES[i])
			from = memory[i], limit = SIZES[i];
	if (at > limit || size > limit - at)
		return report_error("bytes");
	fprintf(out, "ok ");
	while (size--)
		fprintf(out, "%02x", from[at++]);
	fprintf(out, "\n");
}

static void do_state(void)
{
	static const char *const STATES[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (!qp || ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) || attr.qp_state > IBV_QPS_ERR)
		return report_error("state");
	fprintf(out, "ok %s\n", STATES[attr.qp_state]);
}

/* Print the vendor of the device, from its kernel name: rxe, mlx5, hns, bnxt_re, irdma, efa ... */
static void do_hello(const char *device)
{
	static const struct {
		const char *prefix, *maker;
	} MAKERS[] = { { "rxe", "rxe" }, { "siw", "siw" }, { "rnic", "rnic" }, { "mlx", "mlx" }, { "hns", "hns" } };
	const char *maker = "unknown";
	union ibv_gid gid;
	struct ibv_port_attr port;
	if (ibv_query_gid(context, 1, gid_index, &gid) || ibv_query_port(context, 1, &port))
		return report_error("port");
	for (size_t i = 0; i < sizeof MAKERS / sizeof *MAKERS; i++)
		if (!strncmp(device, MAKERS[i].prefix, strlen(MAKERS[i].prefix)))
			maker = MAKERS[i].maker;
	fprintf(out, "ok version=%d maker=%s gid=", VERSION, maker);
	for (int i = 0; i < 16; i++)
		fprintf(out, "%02x", gid.raw[i]);
	fprintf(out, " mtu=%u\n", 128u << port.active_mtu);
}

static void serve_peer(int peer, const char *device)
{
	static char line[1024];
	FILE *in = fdopen(peer, "r");
	out = fdopen(dup(peer), "w");
	while (in && out && fgets(line, sizeof line, in)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "hello"))
			do_hello(device);
		else if (!strncmp(line, "open ", 5))
			do_open(line);
		else if (!strncmp(line, "recv ", 5))
			do_recv(line);
		else if (!strncmp(line, "post ", 5))
			do_post(line);
		else if (!strcmp(line, "poll"))
			do_poll();
		else if (!strncmp(line, "bytes ", 6))
			do_bytes(line);
		else if (!strcmp(line, "state"))
			do_state();
		else if (!strcmp(line, "close"))
			close_all(), fprintf(out, "ok\n");
		else
			fprintf(out, "error no such command\n");
		fflush(out);
	}
	close_all();
	if (in)
		fclose(in);
	if (out)
		fclose(out);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: conform-agent DEVICE GID_INDEX TCP_PORT\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN); /* a tester may disconnect before it reads the answer */
	gid_index = atoi(argv[2]);
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), argv[1]))
			context = ibv_open_device(*list);
	if (!context) {
		fprintf(stderr, "conform-agent: no device %s\n", argv[1]);
		return 1;
	}
	for (int i = 0; i < REGIONS; i++)
		memory[i] = aligned_alloc(4096, SIZES[i]);
	slots = aligned_alloc(4096, SLOT * SLOTS);
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
	int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 1)) {
		perror("conform-agent: listen");
		return 1;
	}
	printf("agent of %s listens on TCP port %s\n", argv[1], argv[3]);
	fflush(stdout);
	for (int peer; (peer = accept(listener, NULL, NULL)) >= 0;)
		serve_peer(peer, argv[1]);
	return 0;
}
