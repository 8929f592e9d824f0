/*
 * A program with a connection closes descriptors that are not its own, and opens others: nothing is written into them.
 *
 *     closes HOW      HOW: range, from, loop, unshare, raw (system calls without libc), dup (over each one)
 *     closes child    children that close everything and execute something, by fork and vfork
 *     closes channel  the program closes its completion channel
 *
 * Says "works" if RDMA goes on, "fatal" if the device says that it is dead.
 */
#define _GNU_SOURCE
#include "itself.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OTHERS = 10, HIGHEST = 256, MESSAGES = 200 };

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static int senders[OTHERS], streams[OTHERS], files[OTHERS], events[OTHERS];

static void pause_ms(long ms)
{
	struct timespec time = { .tv_nsec = ms * 1000000 };

	while (nanosleep(&time, &time))
		;
}

/* ---- what the program opens for itself */

static void open_others(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof name;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(!bind(listener, (struct sockaddr *)&name, bytes) && !listen(listener, OTHERS));
	CHECK(!getsockname(listener, (struct sockaddr *)&name, &bytes));
	for (int i = 0; i < OTHERS; i++) {
		senders[i] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!connect(senders[i], (struct sockaddr *)&name, bytes));
		streams[i] = accept(listener, NULL, NULL);
		files[i] = memfd_create("closes", 0);
		events[i] = eventfd(0, EFD_NONBLOCK);
		CHECK(streams[i] >= 0 && files[i] >= 0 && events[i] >= 0);
	}
}

static void check_others(void)
{
	char byte;
	uint64_t count;
	struct stat found;

	for (int i = 0; i < OTHERS; i++) {
		CHECK(recv(streams[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
		CHECK(recv(senders[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
		CHECK(!fstat(files[i], &found) && !found.st_size);
		CHECK(read(events[i], &count, sizeof count) < 0 && errno == EAGAIN);
	}
}

/* ---- RDMA */

static int write_once(void)
{
	struct timespec began, now;
	struct ibv_wc wc;
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 256, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	int found;

	wr.wr.rdma.remote_addr = (uintptr_t)mr->addr + 256;
	wr.wr.rdma.rkey = mr->rkey;
	if (ibv_post_send(qp, &wr, &bad))
		return -1;
	clock_gettime(CLOCK_MONOTONIC, &began);
	do {
		found = ibv_poll_cq(cq, 1, &wc);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!found && now.tv_sec - began.tv_sec < 10);
	return found == 1 && wc.status == IBV_WC_SUCCESS ? 0 : -1;
}

/* Returns what it says. */
static const char *go_on(void)
{
	struct ibv_async_event event;

	for (int i = 0; i < MESSAGES; i++) {
		if (i % 50 == 0)
			pause_ms(5);
		if (!write_once())
			continue;
		CHECK(!ibv_get_async_event(context, &event));
		CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
		ibv_ack_async_event(&event);
		return "fatal";
	}
	return "works";
}

/* ---- closing */

static void close_all(const char *how)
{
	int null = open("/dev/null", O_RDWR), limit = null + 1;

	if (!strcmp(how, "range"))
		CHECK(!close_range(3, ~0u, 0));
	else if (!strcmp(how, "unshare"))
		CHECK(!close_range(3, ~0u, CLOSE_RANGE_UNSHARE));
	else if (!strcmp(how, "from"))
		closefrom(3);
	else if (!strcmp(how, "raw"))
		CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
	else if (!strcmp(how, "loop"))
		for (int fd = 3; fd < HIGHEST; fd++)
			close(fd);
	else if (!strcmp(how, "dup"))
		for (int fd = 3; fd < limit; fd++)
			CHECK(dup2(null, fd) == fd);
	else
		CHECK(!"known");
}

static void close_and_go_on(const char *how)
{
	int ends[2];
	char byte;
	const char *said;

	CHECK(!pipe(ends) && dup2(ends[0], 0) == 0);
	pause_ms(5); /* the window that remains for raw system calls ends with a sleep */
	close_all(how);
	if (strcmp(how, "unshare")) /* then other threads keep what they had */
		CHECK(read(0, &byte, 1) == 0); /* nobody else holds the other end */
	if (!strcmp(how, "dup"))
		for (int fd = 3; fd < HIGHEST; fd++)
			syscall(SYS_close, fd);
	pause_ms(5);
	open_others();
	said = go_on();
	pause_ms(50); /* for the thread that sends what others leave to it */
	check_others();
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_destroy_comp_channel(channel);
	ibv_close_device(context);
	check_others();
	puts(said);
}

static void children(void)
{
	char *const arguments[] = { "true", NULL };
	pid_t child = fork();
	int status;

	if (!child) {
		closefrom(3);
		execv("/bin/true", arguments);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	child = vfork();
	if (!child) {
		close_range(3, ~0u, 0);
		execv("/bin/true", arguments);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(fcntl(channel->fd, F_GETFD) >= 0 && fcntl(context->async_fd, F_GETFD) >= 0);
	CHECK(!ibv_req_notify_cq(cq, 0));
	write_to_itself(qp, mr);
	CHECK(is_readable(channel->fd, 10000));
	puts(go_on());
}

static void close_channel(void)
{
	struct ibv_cq *which;
	void *own;

	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!close(channel->fd));
	open_others();
	write_to_itself(qp, mr);
	pause_ms(50);
	CHECK(ibv_get_cq_event(channel, &which, &own) && errno == EBADF);
	puts(go_on());
	check_others();
}

int main(int argc, char **argv)
{
	static char memory[512];
	struct ibv_pd *pd;

	CHECK(argc == 2);
	where = argv[1];
	context = open_first();
	pd = ibv_alloc_pd(context);
	CHECK(pd && (channel = ibv_create_comp_channel(context)) &&
	      (cq = ibv_create_cq(context, 64, NULL, channel, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	qp = make_qp(pd, cq);
	connect_to_itself(qp);
	CHECK(!write_once());
	if (!strcmp(argv[1], "child"))
		children();
	else if (!strcmp(argv[1], "channel"))
		close_channel();
	else
		close_and_go_on(argv[1]);
	return 0;
}
