/* A late receiver on the kernel's Soft-RoCE: connect, wait, then post receives and check the messages.
 *
 *     late_receiver DEVICE GID_INDEX PORT MESSAGES BYTES LATE_MS
 *
 * Listens on TCP, reads one line "QPN PSN GID" of the peer, answers with its own, waits LATE_MS, then posts a receive
 * for each message. Message i is BYTES bytes of value i. Prints "MESSAGES messages" when all are correct. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RNR_TIMER_1280_US 14 /* much shorter than LATE_MS: the sender gets many RNR NAKs */
#define FIRST_PSN 1000

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int accept_one(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (bind(listener, (struct sockaddr *)&addr, sizeof addr) || listen(listener, 1))
		die("listen");
	int peer = accept(listener, NULL, NULL);
	if (peer < 0)
		die("accept");
	return peer;
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			return ibv_open_device(*list);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: late_receiver DEVICE GID_INDEX PORT MESSAGES BYTES LATE_MS\n");
		return 2;
	}
	int gid_index = atoi(argv[2]), messages = atoi(argv[4]), bytes = atoi(argv[5]), late_ms = atoi(argv[6]);
	struct ibv_context *context = open_device(argv[1]);
	if (!context)
		die("device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, messages + 1, NULL, NULL, 0);
	unsigned char *memory = calloc(messages, bytes);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, (size_t)messages * bytes, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = messages, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	union ibv_gid gid;
	char text[INET6_ADDRSTRLEN], line[128] = "";
	if (!mr || !qp || ibv_query_gid(context, 1, gid_index, &gid))
		die("objects");

	FILE *peer = fdopen(accept_one(atoi(argv[3])), "r+");
	unsigned qpn, psn;
	if (!fgets(line, sizeof line, peer) || sscanf(line, "%u %u %45s", &qpn, &psn, text) != 3)
		die("peer");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qpn,
		.rq_psn = psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = RNR_TIMER_1280_US,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index, .hop_limit = 64 } }
	};
	inet_pton(AF_INET6, text, &attr.ah_attr.grh.dgid);
	if (ibv_modify_qp(qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	inet_ntop(AF_INET6, &gid, text, sizeof text);
	fprintf(peer, "%u %u %s\n", qp->qp_num, FIRST_PSN, text);
	fflush(peer);

	usleep(late_ms * 1000);
	for (int i = 0; i < messages; i++) {
		struct ibv_sge sge = { (uintptr_t)memory + (size_t)i * bytes, bytes, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp, &wr, &bad))
			die("post_recv");
	}
	for (int done = 0; done < messages;) {
		struct ibv_wc wc;
		if (ibv_poll_cq(cq, 1, &wc) == 0)
			continue;
		if (wc.status != IBV_WC_SUCCESS || wc.byte_len != (unsigned)bytes || wc.wr_id != (unsigned)done) {
			printf("message %d: %s, %u bytes\n", done, ibv_wc_status_str(wc.status), wc.byte_len);
			return 1;
		}
		for (int i = 0; i < bytes; i++)
			if (memory[(size_t)done * bytes + i] != (unsigned char)done) {
				printf("invalid data in message %d\n", done);
				return 1;
			}
		done++;
	}
	printf("%d messages\n", messages);
	fflush(stdout);
	fgets(line, sizeof line, peer); /* the sender has its completions: no ACKs are in flight */
	return 0;
}
