/* Baseline for rnic's figures: UDP sockets in C on this machine.
 *
 *   raw_udp bw SEGMENT SECONDS [PAYLOAD]   GB/s of PAYLOAD bytes (SEGMENT - 16) in segments, UDP_SEGMENT to UDP_GRO
 *   raw_udp lat ROUNDS                     median of half a round trip of 40 bytes in microseconds
 *   raw_udp sleep ROUNDS                   the same, with both ends sleeping until a datagram arrives
 *
 * Two processes, on different cores if there are two, with plain sockets: no ICRC, no queues, no memory checks. Both
 * ends spin, except with `sleep`. A window of bytes keeps the receive buffer from overflowing.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#define BUFFER (4 << 20)
#define SMALL 40
#define MOST 65507
#define RUN_TRUESIZE 62700 /* receive buffer space of one run, as measured: 134 runs in 8 MiB */
#define STALL_S 0.05
#define TOGETHER 20 /* round trips per time measurement */

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	fprintf(stderr, "raw_udp: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void pin(int last)
{
	cpu_set_t set, one;
	if (sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) < 2)
		return;
	int core = -1;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set) && (core < 0 || last))
			core = i;
	CPU_ZERO(&one);
	CPU_SET(core, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static int make_socket(struct sockaddr_in *address)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), size = BUFFER, discover = IP_PMTUDISC_DO;
	socklen_t length = sizeof(*address);
	if (fd < 0)
		fail("socket");
	memset(address, 0, sizeof(*address));
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(fd, (struct sockaddr *)address, sizeof(*address)) ||
	    getsockname(fd, (struct sockaddr *)address, &length))
		fail("bind");
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover));
	return fd;
}

/* Echo small datagrams; count the others, and report the number of received bytes now and then. */
static void serve(int fd, uint64_t every)
{
	static char buffer[1 << 16];
	uint64_t counted = 0, said = 0;
	int on = 1;
	setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof(on));
	for (;;) {
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		ssize_t size = recvfrom(fd, buffer, sizeof(buffer), 0, (struct sockaddr *)&from, &length);
		if (size < 0)
			continue;
		if (size == SMALL) {
			sendto(fd, buffer, SMALL, 0, (struct sockaddr *)&from, length);
			continue;
		}
		counted += (uint64_t)size;
		if (counted - said >= every) {
			said = counted;
			sendto(fd, &counted, sizeof(counted), 0, (struct sockaddr *)&from, length);
		}
	}
}

static ssize_t receive(int fd, void *buffer, size_t size, double patience)
{
	double end = 0;
	for (unsigned spins = 0;; spins++) {
		ssize_t got = recv(fd, buffer, size, 0);
		if (got >= 0)
			return got;
		if (spins % 1024 == 1023) {
			if (end == 0)
				end = now() + patience;
			else if (now() > end)
				return -1;
		}
	}
}

static double throughput(int fd, const struct sockaddr_in *to, int granted, long segment, long payload, double seconds)
{
	static char data[MOST];
	char control[CMSG_SPACE(sizeof(uint16_t))] = { 0 };
	long count = MOST / segment < 64 ? MOST / segment : 64;
	struct iovec piece = { data, (size_t)(count * segment) };
	struct msghdr message = { .msg_name = (void *)(uintptr_t)to,
				  .msg_namelen = sizeof(*to),
				  .msg_iov = &piece,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	uint16_t size = (uint16_t)segment;
	header->cmsg_level = SOL_UDP;
	header->cmsg_type = UDP_SEGMENT;
	header->cmsg_len = CMSG_LEN(sizeof(size));
	memcpy(CMSG_DATA(header), &size, sizeof(size));
	uint64_t run = (uint64_t)(count * segment), window = (uint64_t)granted * 3 / 4 / RUN_TRUESIZE * run;
	uint64_t sent = 0, acked = 0, lost = 0;
	if (window > (4u << 20))
		window = 4u << 20;
	double start = now(), end = start + seconds;
	while (now() < end) {
		while (sent - acked - lost + run > window) {
			uint64_t counted;
			if (receive(fd, &counted, sizeof(counted), STALL_S) == sizeof(counted))
				acked = counted > acked ? counted : acked;
			else
				lost = sent - acked;
		}
		if (sendmsg(fd, &message, 0) < 0 && errno != EAGAIN && errno != ENOBUFS)
			fail("sendmsg");
		sent += run;
	}
	return (double)acked / (double)segment * (double)payload / (now() - start) / 1e9;
}

static int order(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

/* Time several rounds together, since reading the clock takes a twentieth of one. */
static double half_round_trip(int fd, const struct sockaddr_in *to, long rounds)
{
	char message[SMALL] = { 0 };
	long parts = rounds / TOGETHER;
	double *means = malloc((size_t)(parts + 1) * sizeof(*means));
	if (!means)
		fail("malloc");
	for (long part = 0; part <= parts; part++) {
		double start = now();
		for (long i = 0; i < TOGETHER; i++) {
			sendto(fd, message, SMALL, 0, (const struct sockaddr *)to, sizeof(*to));
			if (receive(fd, message, SMALL, 1) != SMALL)
				fail("the other process does not answer");
		}
		means[part] = (now() - start) / TOGETHER;
	}
	qsort(means, (size_t)parts + 1, sizeof(*means), order);
	double middle = means[parts / 2];
	free(means);
	return middle / 2 * 1e6;
}

int main(int argc, char **argv)
{
	int throughput_wanted = argc >= 4 && !strcmp(argv[1], "bw");
	int sleeps = argc == 3 && !strcmp(argv[1], "sleep");
	if (!throughput_wanted && !sleeps && !(argc == 3 && !strcmp(argv[1], "lat"))) {
		fprintf(stderr,
			"usage: raw_udp bw SEGMENT SECONDS [PAYLOAD] | raw_udp lat ROUNDS | raw_udp sleep ROUNDS\n");
		return 2;
	}
	struct sockaddr_in here, there;
	int mine = make_socket(&here), theirs = make_socket(&there), granted;
	if (sleeps && (fcntl(mine, F_SETFL, 0) || fcntl(theirs, F_SETFL, 0)))
		fail("fcntl");
	socklen_t length = sizeof(granted);
	getsockopt(theirs, SOL_SOCKET, SO_RCVBUF, &granted, &length);
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(mine);
		pin(1);
		serve(theirs, (uint64_t)granted * 3 / 4 / RUN_TRUESIZE / 4 * MOST);
	}
	close(theirs);
	pin(0);
	if (throughput_wanted) {
		long segment = strtol(argv[2], NULL, 10);
		long payload = argc > 4 ? strtol(argv[4], NULL, 10) : segment - 16;
		if (segment < 64 || segment > MOST / 2)
			fail("SEGMENT is 64 to 32753");
		printf("%.4f\n", throughput(mine, &there, granted, segment, payload, strtod(argv[3], NULL)));
	} else {
		printf("%.4f\n", half_round_trip(mine, &there, strtol(argv[2], NULL, 10)));
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
