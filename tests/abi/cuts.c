/* What leaves a socket in runs and by itself arrives as it was cut, whatever went before: cuts ADDRESS */
#define _GNU_SOURCE
#include "io/udp.h"
#include "io/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOL_UDP 17
#define UDP_SEGMENT 103
#define CHECK(condition) ((condition) ? (void)0 : (printf("line %d: %s\n", __LINE__, #condition), exit(1)))

static struct tx_socket sender;
static struct tx_path path;
static struct tx_counts counts;
static int peer;
static uint8_t sent[4096], received[4096];

int loopback_put(struct loopback *loopback, const struct rx_buffer *rx)
{
	(void)loopback, (void)rx;
	abort();
}

void loopback_notify(struct loopback *loopback)
{
	(void)loopback;
	abort();
}

static int cut_at(void)
{
	int value = -1;
	socklen_t size = sizeof value;

	CHECK(!getsockopt(sender.fd, SOL_UDP, UDP_SEGMENT, &value, &size));
	return value;
}

static void carry(size_t length, size_t segment)
{
	uint64_t before = counts.sent, packets = (length + segment - 1) / segment;

	udp_transmit(&path, sent, length, (uint32_t)segment, &counts);
	CHECK(counts.sent == before + packets && !counts.gso_refused);
	for (size_t at = 0; at < length; at += segment) {
		size_t size = length - at < segment ? length - at : segment;

		CHECK(recv(peer, received, sizeof received, MSG_DONTWAIT) == (ssize_t)size &&
		      !memcmp(received, sent + at, size));
	}
	CHECK(recv(peer, received, sizeof received, MSG_DONTWAIT) < 0);
}

static void carry_often(size_t length, size_t segment)
{
	for (int i = 0; i < 100; i++)
		carry(length, segment);
}

static int open_socket(struct sockaddr_in *name)
{
	socklen_t size = sizeof *name;
	int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1;

	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)name, size));
	CHECK(!setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &(int){ IP_PMTUDISC_DO }, sizeof one));
	name->sin_port = 0;
	CHECK(!getsockname(fd, (struct sockaddr *)name, &size));
	return fd;
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = { .sin_family = AF_INET }, own;
	static const size_t runs[][2] = {
		{ 60, 40 }, { 40, 40 }, { 4000, 4000 }, { 20, 20 }, { 3000, 1000 }, { 60, 40 }
	};

	CHECK(argc == 2 && inet_pton(AF_INET, argv[1], &name.sin_addr) == 1);
	own = name;
	peer = open_socket(&name);
	sender = (struct tx_socket){
		.fd = open_socket(&own), .ipv4 = 1, .may_set_segment = 1, .tclass = -1, .hop_limit = -1, .segment = -1
	};
	path = (struct tx_path){ .socket = &sender, .max_segments = 64, .hop_limit = 64, .name_bytes = sizeof name };
	memcpy(path.name, &name, sizeof name);
	for (size_t i = 0; i < sizeof sent; i++)
		sent[i] = (uint8_t)(i * 7 + i / 256);

	carry_often(60, 40);
	CHECK(cut_at() == 40); /* a long row of runs alike: no header says it any more */
	carry(3000, 1000); /* another, by its header */
	CHECK(cut_at() == 40);
	carry(4000, 4000); /* longer, and by itself */
	CHECK(cut_at() == 0);
	carry_often(3000, 1000);
	CHECK(cut_at() == 1000);
	CHECK(!setsockopt(sender.fd, SOL_UDP, UDP_SEGMENT, &(int){ 33 }, sizeof(int))); /* somebody else's */
	sender.segment = -1;
	carry(500, 500);
	CHECK(cut_at() == 0);
	srand(1);
	for (int i = 0; i < 300; i++) {
		const size_t *run = runs[(size_t)rand() % (sizeof runs / sizeof *runs)];

		for (int left = rand() % 80; left >= 0; left--)
			carry(run[0], run[1]);
	}
	carry(500, 500);
	sender.may_set_segment = 0; /* a socket that others send by as well, who do not say */
	carry_often(60, 40);
	CHECK(cut_at() == 0);
	puts("cuts");
	return 0;
}
