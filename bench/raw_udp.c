/* Baseline for rnic's figures: UDP sockets in C on this machine.
 *
 *   raw_udp bw SEGMENT SECONDS [PAYLOAD]   GB/s of PAYLOAD bytes (SEGMENT - 16) in segments, UDP_SEGMENT to UDP_GRO
 *   raw_udp capture SEGMENT SECONDS FILE   the same, with all packets in a file: the sender copies them into shared
 *                                          memory, and a third process writes them
 *   raw_udp lat ROUNDS                     median of half a round trip of 40 bytes in microseconds
 *   raw_udp sleep ROUNDS                   the same, with both ends sleeping until a datagram arrives
 *
 * Two processes, on different cores if there are two, with plain sockets: no ICRC, no queues, no memory checks. Both
 * ends spin, except with `sleep` and `capture`. A window of bytes keeps the receive buffer from overflowing.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
#define RING (8u << 20)
#define PART (256u << 10) /* bytes that are written at once: they stay in the cache meanwhile */
#define NAP_NS 50000
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

/* Packets on their way to a file. */
struct ring {
	_Atomic uint64_t head;
	char apart[56];
	_Atomic uint64_t tail;
	char bytes[RING];
};

static void nap(void)
{
	nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
}

static void copy_to(struct ring *ring, const char *data, size_t size)
{
	uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed), at = head % RING;
	size_t first = size < RING - at ? size : RING - at;
	while (head + size - atomic_load_explicit(&ring->tail, memory_order_acquire) > RING)
		nap();
	memcpy(ring->bytes + at, data, first);
	memcpy(ring->bytes, data + first, size - first);
	atomic_store_explicit(&ring->head, head + size, memory_order_release);
}

static void write_all(struct ring *ring, int file)
{
	for (uint64_t tail = 0;;) {
		uint64_t ready = atomic_load_explicit(&ring->head, memory_order_acquire) - tail, at = tail % RING;
		size_t size = ready < PART ? ready : PART;
		if (size > RING - at)
			size = RING - at;
		ssize_t wrote = size ? write(file, ring->bytes + at, size) : 0;
		if (wrote < 0)
			fail("write");
		if (!wrote)
			nap();
		tail += (uint64_t)wrote;
		atomic_store_explicit(&ring->tail, tail, memory_order_release);
	}
}

/* Return a ring that another process writes to a file. */
static struct ring *make_ring(const char *path, pid_t *writer)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct ring *ring = mmap(NULL, sizeof(*ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (file < 0 || ring == MAP_FAILED)
		fail(path);
	memset(ring, 0, sizeof(*ring));
	*writer = fork();
	if (*writer < 0)
		fail("fork");
	if (!*writer) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		write_all(ring, file);
	}
	close(file);
	return ring;
}

static double throughput(int fd, const struct sockaddr_in *to, int granted, long segment, long payload, double seconds,
			 struct ring *ring)
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
	memset(data, 1, sizeof(data));
	while (now() < end) {
		while (sent - acked - lost + run > window) {
			uint64_t counted;
			if (receive(fd, &counted, sizeof(counted), STALL_S) == sizeof(counted))
				acked = counted > acked ? counted : acked;
			else
				lost = sent - acked;
		}
		if (ring)
			copy_to(ring, data, run);
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
	int captured = argc == 5 && !strcmp(argv[1], "capture");
	int throughput_wanted = captured || (argc >= 4 && !strcmp(argv[1], "bw"));
	int sleeps = argc == 3 && !strcmp(argv[1], "sleep");
	if (!throughput_wanted && !sleeps && !(argc == 3 && !strcmp(argv[1], "lat"))) {
		fprintf(stderr, "usage: raw_udp bw SEGMENT SECONDS [PAYLOAD] | raw_udp capture SEGMENT SECONDS FILE | "
				"raw_udp lat ROUNDS | raw_udp sleep ROUNDS\n");
		return 2;
	}
	struct sockaddr_in here, there;
	int mine = make_socket(&here), theirs = make_socket(&there), granted;
	if ((sleeps || captured) && (fcntl(mine, F_SETFL, 0) || fcntl(theirs, F_SETFL, 0)))
		fail("fcntl");
	const struct timeval stall = { 0, (long)(STALL_S * 1e6) };
	if (captured && setsockopt(mine, SOL_SOCKET, SO_RCVTIMEO, &stall, sizeof(stall)))
		fail("SO_RCVTIMEO");
	socklen_t length = sizeof(granted);
	getsockopt(theirs, SOL_SOCKET, SO_RCVBUF, &granted, &length);
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(mine);
		if (!captured)
			pin(1);
		serve(theirs, (uint64_t)granted * 3 / 4 / RUN_TRUESIZE / 4 * MOST);
	}
	close(theirs);
	if (!captured)
		pin(0);
	if (throughput_wanted) {
		long segment = strtol(argv[2], NULL, 10);
		long payload = argc > 4 && !captured ? strtol(argv[4], NULL, 10) : segment - 16;
		pid_t writer = 0;
		struct ring *ring = captured ? make_ring(argv[4], &writer) : NULL;
		if (segment < 64 || segment > MOST / 2)
			fail("SEGMENT is 64 to 32753");
		printf("%.4f\n", throughput(mine, &there, granted, segment, payload, strtod(argv[3], NULL), ring));
		if (writer)
			kill(writer, SIGKILL);
	} else {
		printf("%.4f\n", half_round_trip(mine, &there, strtol(argv[2], NULL, 10)));
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
