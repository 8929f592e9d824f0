/* rsockets from outside: two ends in one process, each on a device of its own. Prints "all as it should be". */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/rsocket.h>

enum { PORT = 7300, BIG = 3 << 20, MAPPED = 100000 };

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static struct sockaddr_in server_address, client_address;
static char mapped[MAPPED];
static sem_t listening;

static uint8_t byte_at(size_t at)
{
	return (uint8_t)(at * 7 + at / 251);
}

static void *send_big(void *fd)
{
	uint8_t *data = malloc(BIG);

	for (size_t i = 0; i < BIG; i++)
		data[i] = byte_at(i);
	for (size_t done = 0; done < BIG;) {
		size_t size = done % 3 ? 100003 : 65536;
		ssize_t sent = rsend(*(int *)fd, data + done, size < BIG - done ? size : BIG - done, 0);

		CHECK(sent > 0);
		done += (size_t)sent;
	}
	free(data);
	return NULL;
}

static void receive_big(int fd)
{
	uint8_t *data = malloc(BIG);

	CHECK(rrecv(fd, data, BIG, MSG_WAITALL) == BIG);
	for (size_t i = 0; i < BIG; i++)
		CHECK(data[i] == byte_at(i));
	free(data);
}

/* Both directions at once, each with more than all buffers hold. */
static void exchange_big(int fd)
{
	pthread_t sender;

	CHECK(!pthread_create(&sender, NULL, send_big, &fd));
	receive_big(fd);
	pthread_join(sender, NULL);
}

static void serve(int fd)
{
	struct sockaddr_in peer;
	socklen_t bytes = sizeof peer;
	char text[64], one[3], two[5];
	struct iovec parts[2] = { { one, sizeof one }, { two, sizeof two } };

	CHECK(!rgetpeername(fd, (struct sockaddr *)&peer, &bytes));
	CHECK(bytes == sizeof peer && peer.sin_addr.s_addr == client_address.sin_addr.s_addr);
	CHECK(rrecv(fd, text, 5, MSG_PEEK) > 0 && text[0] == 'h');
	CHECK(rrecv(fd, text, 5, MSG_WAITALL) == 5 && memcmp(text, "hello", 5) == 0);
	CHECK(rwrite(fd, "welcome", 7) == 7);
	CHECK(rrecv(fd, one, 0, 0) == 0);
	while (rrecv(fd, text, 8, MSG_PEEK) < 8)
		;
	CHECK(rreadv(fd, parts, 2) == 8 && memcmp(one, "abc", 3) == 0 && memcmp(two, "defgh", 5) == 0);
	exchange_big(fd);
	/* memory that the client writes to, and a byte that says that it has */
	CHECK(riomap(fd, mapped, sizeof mapped, PROT_WRITE, 0, 4096) == 4096);
	CHECK(rsend(fd, "m", 1, 0) == 1);
	CHECK(rrecv(fd, text, 1, 0) == 1);
	for (size_t i = 0; i < MAPPED; i++)
		CHECK((uint8_t)mapped[i] == byte_at(i));
	CHECK(!riounmap(fd, mapped, sizeof mapped));
	/* the client has said all, and still listens */
	CHECK(rrecv(fd, text, 1, 0) == 0);
	CHECK(rsend(fd, "last words", 10, 0) == 10);
	CHECK(!rclose(fd));
}

static void *run_server(void *unused)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), iomaps = 4, type, fd;
	struct pollfd one = { .events = POLLIN };
	socklen_t bytes = sizeof type;

	(void)unused;
	CHECK(listener >= 0 && !rbind(listener, (struct sockaddr *)&server_address, sizeof server_address));
	CHECK(!rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &iomaps, sizeof iomaps));
	CHECK(!rgetsockopt(listener, SOL_SOCKET, SO_TYPE, &type, &bytes) && type == SOCK_STREAM);
	CHECK(!rfcntl(listener, F_SETFL, (long)O_NONBLOCK) && rfcntl(listener, F_GETFL) & O_NONBLOCK);
	CHECK(!rlisten(listener, 4));
	CHECK(raccept(listener, NULL, NULL) == -1 && errno == EAGAIN);
	CHECK(!sem_post(&listening));
	for (int i = 0; i < 2; i++) {
		one.fd = listener;
		CHECK(rpoll(&one, 1, 20000) == 1 && one.revents == POLLIN);
		fd = raccept(listener, NULL, NULL);
		CHECK(fd >= 0);
		if (i == 0)
			serve(fd);
		else
			CHECK(!rclose(fd));
	}
	CHECK(!rclose(listener));
	return NULL;
}

/* Connects without waiting, as programs with an event loop do. */
static int connected(int listens)
{
	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), iomaps = 4, error = -1;
	struct pollfd one = { .fd = fd, .events = POLLOUT };
	socklen_t bytes = sizeof error;
	struct sockaddr_in target = server_address;

	CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&client_address, sizeof client_address));
	CHECK(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &iomaps, sizeof iomaps));
	if (!listens)
		target.sin_port = htons(1);
	CHECK(rconnect(fd, (struct sockaddr *)&target, sizeof target) == -1 && errno == EINPROGRESS);
	CHECK(rpoll(&one, 1, 20000) == 1 && one.revents & POLLOUT);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes));
	CHECK(error == (listens ? 0 : ECONNREFUSED));
	CHECK(!rfcntl(fd, F_SETFL, 0l));
	return fd;
}

/* Who waits no longer than it said: SO_RCVTIMEO, which says afterwards what was set. */
static void waits_no_longer(int fd)
{
	struct timeval time = { 0, 20000 }, got = { 7, 7 };
	socklen_t bytes = sizeof got;
	char text[4];

	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &bytes) && bytes == sizeof got);
	CHECK(!got.tv_sec && !got.tv_usec); /* for ever */
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	CHECK(rrecv(fd, text, sizeof text, 0) == -1 && errno == EAGAIN);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &bytes) && got.tv_sec == 0 && got.tv_usec == 20000);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &got, &bytes) && !got.tv_sec && !got.tv_usec);
	time = (struct timeval){ 3, 1000000 };
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == -1 && errno == EDOM);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, 4) == -1 && errno == EINVAL);
	time = (struct timeval){ 1l << 40, 0 }; /* longer than anybody lives */
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time));
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &got, &bytes) && !got.tv_sec && !got.tv_usec);
	time = (struct timeval){ 0, 0 };
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
}

static void run_client(void)
{
	struct iovec parts[2] = { { "abcd", 4 }, { "efgh", 4 } };
	struct sockaddr_in own, other;
	socklen_t bytes = sizeof own;
	uint8_t *data = malloc(MAPPED);
	struct timeval soon = { 0, 20000 };
	struct pollfd mixed[2];
	char text[64];
	fd_set set;
	int fd, pipes[2];

	fd = connected(0);
	CHECK(rsend(fd, "x", 1, 0) == -1);
	CHECK(!rclose(fd) && rclose(fd) == -1 && errno == EBADF);
	fd = connected(1);
	CHECK(!rgetsockname(fd, (struct sockaddr *)&own, &bytes));
	CHECK(own.sin_addr.s_addr == client_address.sin_addr.s_addr && own.sin_port);
	CHECK(!rgetpeername(fd, (struct sockaddr *)&other, &bytes) && other.sin_port == server_address.sin_port);
	CHECK(rrecv(fd, text, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	CHECK(rselect(fd + 1, &set, NULL, NULL, &soon) == 0 && !FD_ISSET(fd, &set));
	waits_no_longer(fd);
	CHECK(rsend(fd, "hello", 5, 0) == 5);
	/* a descriptor of the system beside it */
	CHECK(!pipe(pipes) && write(pipes[1], "p", 1) == 1);
	mixed[0] = (struct pollfd){ .fd = fd, .events = POLLIN };
	mixed[1] = (struct pollfd){ .fd = pipes[0], .events = POLLIN };
	CHECK(rpoll(mixed, 2, 20000) >= 1 && mixed[1].revents == POLLIN);
	FD_SET(fd, &set);
	soon.tv_sec = 20;
	CHECK(rselect(fd + 1, &set, NULL, NULL, &soon) == 1 && FD_ISSET(fd, &set));
	CHECK(rrecv(fd, text, 7, MSG_WAITALL) == 7 && memcmp(text, "welcome", 7) == 0);
	CHECK(rwritev(fd, parts, 2) == 8);
	exchange_big(fd);
	CHECK(rrecv(fd, text, 1, 0) == 1);
	for (size_t i = 0; i < MAPPED; i++)
		data[i] = byte_at(i);
	CHECK(riowrite(fd, data, MAPPED, 4096, 0) == MAPPED);
	CHECK(riowrite(fd, data, 1, 1, 0) == 0); /* nobody has mapped that */
	CHECK(rsend(fd, "w", 1, 0) == 1);
	CHECK(!rshutdown(fd, SHUT_WR) && rsend(fd, "x", 1, 0) == -1 && errno == EPIPE);
	CHECK(rrecv(fd, text, 10, MSG_WAITALL) == 10 && memcmp(text, "last words", 10) == 0);
	CHECK(rrecv(fd, text, 1, 0) == 0);
	CHECK(!rclose(fd));
	fd = connected(1);
	CHECK(rrecv(fd, text, 1, 0) == 0); /* closed at once */
	CHECK(!rclose(fd));
	free(data);
}

static void datagrams(void)
{
	int one = rsocket(AF_INET, SOCK_DGRAM, 0), two = rsocket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in from;
	socklen_t bytes = sizeof from;
	char text[2048];

	server_address.sin_port = client_address.sin_port = htons(PORT + 1);
	CHECK(!rbind(one, (struct sockaddr *)&server_address, sizeof server_address));
	CHECK(!rbind(two, (struct sockaddr *)&client_address, sizeof client_address));
	waits_no_longer(one);
	CHECK(rsendto(one, "big", 1 << 16, 0, (struct sockaddr *)&client_address, sizeof client_address) == -1);
	for (int i = 0; i < 20; i++) { /* the first by UDP, the others by queue pairs */
		CHECK(rsendto(one, "question", 8, 0, (struct sockaddr *)&client_address, sizeof client_address) == 8);
		CHECK(rrecvfrom(two, text, sizeof text, 0, (struct sockaddr *)&from, &bytes) == 8);
		CHECK(from.sin_port == server_address.sin_port &&
		      from.sin_addr.s_addr == server_address.sin_addr.s_addr);
		CHECK(!rconnect(two, (struct sockaddr *)&from, sizeof from) && rsend(two, text, 8, 0) == 8);
		CHECK(rrecv(one, text, 4, 0) == 4 && memcmp(text, "ques", 4) == 0); /* the rest of it is lost */
	}
	CHECK(rrecv(one, text, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(!rclose(one) && !rclose(two));
}

/* A server hears of more peers, in its life, than it keeps in mind: each sends its first datagram by UDP. */
static void many_peers(void)
{
	struct {
		uint32_t tag;
		uint8_t version, op, length, reserved;
		uint32_t qpn;
		uint8_t address[4];
		char data[4];
	} first = { htonl(0x55555555), 4, 0, 16, 0, 0, { 0 }, "hi!" };
	int server = rsocket(AF_INET, SOCK_DGRAM, 0), two = rsocket(AF_INET, SOCK_DGRAM, 0);
	char text[64];

	server_address.sin_port = client_address.sin_port = htons(PORT + 2);
	CHECK(!rbind(server, (struct sockaddr *)&server_address, sizeof server_address));
	CHECK(!rbind(two, (struct sockaddr *)&client_address, sizeof client_address));
	memcpy(first.address, &client_address.sin_addr, 4);
	for (int i = 0; i < 1100; i++) {
		int peer = socket(AF_INET, SOCK_DGRAM, 0);

		first.qpn = htonl((uint32_t)i + 1);
		CHECK(sendto(peer, &first, sizeof first, 0, (struct sockaddr *)&server_address, sizeof server_address) >
		      0);
		CHECK(rrecv(server, text, sizeof text, 0) == sizeof first.data && memcmp(text, "hi!", 4) == 0);
		close(peer);
		if (i % 256)
			continue;
		/* one that is heard of again and again stays known, and one that was forgotten is met anew */
		for (int again = 0; again < 2; again++) {
			CHECK(rsendto(two, "hello", 5, 0, (struct sockaddr *)&server_address, sizeof server_address) ==
			      5);
			CHECK(rrecv(server, text, sizeof text, 0) == 5 && memcmp(text, "hello", 5) == 0);
		}
	}
	CHECK(!rclose(server) && !rclose(two));
}

int main(int argc, char **argv)
{
	pthread_t server;

	CHECK(argc == 3);
	server_address.sin_family = client_address.sin_family = AF_INET;
	server_address.sin_port = htons(PORT);
	CHECK(inet_pton(AF_INET, argv[1], &server_address.sin_addr) == 1);
	CHECK(inet_pton(AF_INET, argv[2], &client_address.sin_addr) == 1);
	CHECK(rsend(12345, "x", 1, 0) == -1 && errno == EBADF);
	CHECK(rsocket(AF_UNIX, SOCK_STREAM, 0) == -1 && errno == EAFNOSUPPORT);
	CHECK(!sem_init(&listening, 0, 0));
	CHECK(!pthread_create(&server, NULL, run_server, NULL));
	CHECK(!sem_wait(&listening));
	run_client();
	pthread_join(server, NULL);
	datagrams();
	many_peers();
	printf("all as it should be\n");
	return 0;
}
