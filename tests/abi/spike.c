/* A driver in C without libpython: attaches to `rnic serve`, posts one WRITE by store and doorbell, polls its
 * completion. Every number comes from the generated header. Usage: spike SOCKET DEVICE. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rnic_hw.h"

#define ENTRIES 16u
#define LOG_ENTRIES 4u
#define BYTES 100u

static int sock;

static void check(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "spike: %s\n", what);
		exit(1);
	}
}

/* One field of a table: `unit` bytes at `at`, of which bits lsb .. lsb + width - 1. */
static void put(uint8_t *to, int big, unsigned at, unsigned unit, unsigned lsb, unsigned width, uint64_t value)
{
	uint64_t mask = width >= 64 ? ~0ull : (1ull << width) - 1;
	for (unsigned i = 0; i < unit && i < 8; i++) {
		unsigned byte = big ? at + unit - 1 - i : at + i;
		to[byte] = (uint8_t)((to[byte] & ~((mask << lsb) >> (8 * i))) | (((value & mask) << lsb) >> (8 * i)));
	}
}
#define BE(to, field, value) put(to, 1, field, value)
#define LE(to, field, value) put(to, 0, field, value)

static size_t ask(uint32_t kind, const void *body, size_t bytes, int fd, uint8_t *answer, int *fds, int count)
{
	uint8_t message[8192] = { 0 }, reply[8192];
	union {
		char room[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec part = { message, RNIC_HEADER_SIZE + bytes };
	struct msghdr out = { .msg_iov = &part, .msg_iovlen = 1 };

	memcpy(message, &kind, 4);
	memcpy(message + RNIC_HEADER_SIZE, body, bytes);
	if (fd >= 0) {
		out.msg_control = control.room;
		out.msg_controllen = CMSG_SPACE(sizeof(int));
		struct cmsghdr *head = CMSG_FIRSTHDR(&out);
		head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &fd, sizeof(int));
	}
	check(sendmsg(sock, &out, 0) > 0, "sendmsg");
	part = (struct iovec){ reply, sizeof(reply) };
	struct msghdr in = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)
	};
	ssize_t got = recvmsg(sock, &in, 0);
	check(got >= (ssize_t)RNIC_REPLY_HEADER_SIZE, "answer");
	uint32_t error;
	memcpy(&error, reply + RNIC_REPLY_HEADER_ERROR_AT, 4);
	reply[got < (ssize_t)sizeof(reply) ? got : got - 1] = 0;
	check(error == 0, (char *)reply + RNIC_REPLY_HEADER_SIZE);
	struct cmsghdr *head = CMSG_FIRSTHDR(&in);
	if (count)
		check(head != NULL && head->cmsg_len == CMSG_LEN(count * sizeof(int)), "descriptors");
	if (head && count)
		memcpy(fds, CMSG_DATA(head), count * sizeof(int));
	memcpy(answer, reply + RNIC_REPLY_HEADER_SIZE, (size_t)got - RNIC_REPLY_HEADER_SIZE);
	return (size_t)got - RNIC_REPLY_HEADER_SIZE;
}

static uint64_t command(unsigned op, uint32_t in_modifier, unsigned op_modifier, const void *inbox, uint32_t bytes)
{
	uint8_t body[4096] = { 0 }, answer[8192];
	LE(body, RNIC_COMMAND_OP, op);
	LE(body, RNIC_COMMAND_OP_MODIFIER, op_modifier);
	LE(body, RNIC_COMMAND_IN_MODIFIER, in_modifier);
	LE(body, RNIC_COMMAND_INBOX_BYTES, bytes);
	if (bytes)
		memcpy(body + RNIC_COMMAND_SIZE, inbox, bytes);
	ask(RNIC_MSG_COMMAND, body, RNIC_COMMAND_SIZE + bytes, -1, answer, NULL, 0);
	uint32_t status;
	uint64_t out;
	memcpy(&status, answer + RNIC_COMMAND_REPLY_STATUS_AT, 4);
	memcpy(&out, answer + RNIC_COMMAND_REPLY_OUT_PARAM_AT, 8);
	if (status)
		fprintf(stderr, "spike: command %#x answered %#x\n", op, status);
	check(status == 0, "command");
	return out;
}

static uint32_t number(uint32_t kind)
{
	return (uint32_t)command(RNIC_CMD_ALLOC_RES, kind, 0, NULL, 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	uint8_t body[64] = { 0 }, answer[8192], gid[16], box[RNIC_QPC_SIZE > 256 ? RNIC_QPC_SIZE : 256];
	int fds[4];

	check(argc == 3 && strlen(argv[1]) < sizeof(to.sun_path) && strlen(argv[2]) < 16, "usage: spike SOCKET DEVICE");
	strcpy(to.sun_path, argv[1]);
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	check(connect(sock, (struct sockaddr *)&to, sizeof(to)) == 0, "connect");
	LE(body, RNIC_HELLO_MAGIC, RNIC_ATTACH_MAGIC);
	LE(body, RNIC_HELLO_VERSION, RNIC_ATTACH_VERSION);
	ask(RNIC_MSG_HELLO, body, RNIC_HELLO_SIZE, -1, answer, NULL, 0);
	size_t listed = ask(RNIC_MSG_LIST, body, 0, -1, answer, NULL, 0), at = 0;
	while (at < listed && strncmp((char *)answer + at, argv[2], 16))
		at += RNIC_LIST_RECORD_SIZE;
	check(at < listed, "no such device");
	memcpy(gid, answer + at + RNIC_LIST_RECORD_GID_AT, 16);
	uint16_t port;
	memcpy(&port, answer + at + RNIC_LIST_RECORD_UDP_PORT_AT, 2);

	memset(body, 0, sizeof(body));
	strcpy((char *)body, argv[2]);
	LE(body, RNIC_OPEN_MODE, RNIC_DMA_PROC_MEM);
	LE(body, RNIC_OPEN_PAGE, 4096);
	int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	ask(RNIC_MSG_OPEN, body, RNIC_OPEN_SIZE, memory, answer, fds, 2);
	uint64_t bytes, rung_at, blocks_at;
	memcpy(&bytes, answer + RNIC_OPEN_REPLY_WINDOW_BYTES_AT, 8);
	memcpy(&rung_at, answer + RNIC_OPEN_REPLY_RUNG_OFFSET_AT, 8);
	memcpy(&blocks_at, answer + RNIC_OPEN_REPLY_BLOCKS_OFFSET_AT, 8);
	uint8_t *window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	check(window != MAP_FAILED, "window");

	uint8_t *sq = aligned_alloc(4096, 4096), *cq = aligned_alloc(4096, 4096), *eq = aligned_alloc(4096, 4096);
	uint8_t *rq = aligned_alloc(4096, 4096), *data = aligned_alloc(4096, 4096);
	memset(sq, 0, 4096), memset(cq, 0, 4096), memset(eq, 0, 4096), memset(rq, 0, 4096), memset(data, 0, 4096);
	memset(data, 'R', BYTES);
	uint32_t pd = number(RNIC_CMD_RES_PD), key = number(RNIC_CMD_RES_MPT), eqn = number(RNIC_CMD_RES_EQ);
	uint32_t cqn = number(RNIC_CMD_RES_CQ), qpn = number(RNIC_CMD_RES_QP);
	uint32_t block = number(RNIC_CMD_RES_UAR_BLOCK);

	memset(box, 0, sizeof(box));
	put(box, 1, 0, 4, 0, 32, MPT_FLAGS);
	BE(box, RNIC_MPT_KEY, key);
	BE(box, RNIC_MPT_PD, pd);
	BE(box, RNIC_MPT_START, (uintptr_t)data);
	BE(box, RNIC_MPT_LENGTH, 4096);
	BE(box, RNIC_MPT_ADDRESS, (uintptr_t)data);
	command(RNIC_CMD_SW2HW_MPT, key, 0, box, RNIC_MPT_SIZE);
	memset(box, 0, sizeof(box));
	BE(box, RNIC_EQC_START, (uintptr_t)eq);
	BE(box, RNIC_EQC_LOGSIZE, LOG_ENTRIES);
	BE(box, RNIC_EQC_USRPAGE, number(RNIC_CMD_RES_UAR_BLOCK));
	BE(box, RNIC_EQC_MSIX_VECTOR, eqn);
	command(RNIC_CMD_SW2HW_EQ, eqn, 0, box, RNIC_EQC_SIZE);
	memset(box, 0, sizeof(box));
	BE(box, RNIC_CQC_START, (uintptr_t)cq);
	BE(box, RNIC_CQC_LOGSIZE, LOG_ENTRIES);
	BE(box, RNIC_CQC_USRPAGE, number(RNIC_CMD_RES_UAR_BLOCK));
	BE(box, RNIC_CQC_COMP_EQN, eqn);
	BE(box, RNIC_CQC_CQN, cqn);
	command(RNIC_CMD_SW2HW_CQ, cqn, 0, box, RNIC_CQC_SIZE);

	memset(box, 0, sizeof(box));
	BE(box, RNIC_QPC_SERVTYPE, 0);
	BE(box, RNIC_QPC_MIG_STATE, 3);
	BE(box, RNIC_QPC_MSGMAX, 31);
	BE(box, RNIC_QPC_SQ_ENTRY_SZ_LOG, 6);
	BE(box, RNIC_QPC_USR_PAGE, block);
	BE(box, RNIC_QPC_PD, pd);
	BE(box, RNIC_QPC_CQN_SND, cqn);
	BE(box, RNIC_QPC_CQN_RCV, cqn);
	BE(box, RNIC_QPC_SND_WQE_LENGTH, ENTRIES * RNIC_SQE_SIZE);
	BE(box, RNIC_QPC_SQ_BASE, (uintptr_t)sq);
	BE(box, RNIC_QPC_SQ_MAX_SGE, 1);
	BE(box, RNIC_QPC_RCV_WQE_LENGTH, ENTRIES * RNIC_SGE_SIZE);
	BE(box, RNIC_QPC_RQ_BASE, (uintptr_t)rq);
	BE(box, RNIC_QPC_RQ_ENTRY_SZ_LOG, 4);
	BE(box, RNIC_QPC_RQ_MAX_SGE, 1);
	BE(box, RNIC_QPC_LOCAL_QPN, qpn);
	BE(box, RNIC_QPC_PORT, 1);
	BE(box, RNIC_QPC_ACCESS_FLAGS, 0xE);
	BE(box, RNIC_QPC_OPT_PARAM_MASK, INIT_MASK);
	command(RNIC_CMD_RST2INIT, qpn, 0, box, RNIC_QPC_SIZE);
	BE(box, RNIC_QPC_OPT_PARAM_MASK, RTR_MASK);
	BE(box, RNIC_QPC_MTU, 3);
	BE(box, RNIC_QPC_REMOTE_QPN, qpn);
	BE(box, RNIC_QPC_RNR_NAK_TIMER, 1);
	BE(box, RNIC_QPC_HAS_GRH, 1);
	BE(box, RNIC_QPC_HOP_LIMIT, 64);
	BE(box, RNIC_QPC_UDP_DPORT, port);
	memcpy(box + RNIC_QPC_RGID_AT, gid, 16);
	command(RNIC_CMD_INIT2RTR, qpn, 0, box, RNIC_QPC_SIZE);
	BE(box, RNIC_QPC_OPT_PARAM_MASK, RTS_MASK);
	BE(box, RNIC_QPC_ACKTO, 14);
	BE(box, RNIC_QPC_RETRY_CNT, 7);
	BE(box, RNIC_QPC_RNR_RETRY, 7);
	command(RNIC_CMD_RTR2RTS, qpn, 0, box, RNIC_QPC_SIZE);

	put(sq, 0, 0, 4, 0, 32, 0xC0FFEE);
	LE(sq, RNIC_SQE_OPCODE, RNIC_WR_WRITE);
	LE(sq, RNIC_SQE_SIGNALED, 1);
	put(sq, 0, 8, 8, 0, 64, (uintptr_t)data);
	put(sq, 0, 16, 8, 0, 64, (uintptr_t)data + 2048);
	LE(sq, RNIC_SQE_LENGTH, BYTES);
	LE(sq, RNIC_SQE_LKEY, key);
	LE(sq, RNIC_SQE_RKEY, key);
	_Atomic uint32_t *tail = (void *)(window + blocks_at + block * RNIC_REG_BLOCK_BYTES + RNIC_REG_SQ_TAIL);
	atomic_store_explicit(tail, 1, memory_order_release);
	atomic_store_explicit((_Atomic uint8_t *)(window + rung_at + block), 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load((_Atomic uint32_t *)(window + RNIC_WINDOW_ASLEEP_AT)))
		check(eventfd_write(fds[1], 1) == 0, "wake");

	_Atomic uint32_t *word3 = (void *)(cq + RNIC_CQE_PHASE_AT);
	unsigned polls = 0;
	while (!(atomic_load_explicit(word3, memory_order_acquire) & RNIC_BIT_CQE_PHASE)) {
		check(++polls < 50000000, "no completion came");
		if (polls > 100)
			sched_yield();
	}
	check(cq[RNIC_CQE_STATUS_AT] == 0, "completion with an error");
	check(memcmp(data, data + 2048, BYTES) == 0 && data[2048 + BYTES] == 0, "bytes differ");
	printf("wrote %u bytes\n", BYTES);
	return 0;
}
