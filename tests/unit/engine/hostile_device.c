/* A whole device against hostile packets, rings and queue blocks, to be run under sanitizers: device.c by buffers,
 * then poll.c by a UDP socket. What hostile.c makes of one queue pair stands here for several. Arguments: seed, rounds.
 * Prints packets taken, made, left to the reference, and rounds on the socket that took any.
 * hostile_rings.c and hostile_reorder.c take what they need of it. */
#define _GNU_SOURCE
#define HOSTILE_PORT
#include "hostile.c"

#include "device/scheduler.h"
#include "io/poll.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#define QPS 6u
#define LOG_QPS 3u
#define LINES 3u

static struct engine_device device;
static struct engine_qp qps[QPS];
static struct peer *peer;
static struct program *program;
static struct line *lines;
static struct flow *path;
static struct tx_path way;
static uint64_t left;

static uint64_t place_of(const void *thing)
{
	return (uint64_t)((const uint8_t *)thing - block);
}

static void lay_out(void)
{
	struct device *root = piece(sizeof *root); /* first: nobody else has the offset 0 */
	root->inflight = place_of(piece(sizeof(struct inflight)));
	root->scheduler = place_of(piece(sizeof(struct scheduler)));
	root->timers = place_of(piece(sizeof(struct timers)));
	root->directory = place_of(piece(sizeof(uint64_t) << LOG_QPS));
	root->log_qps = LOG_QPS;
	make_shared();
	engine_device_find(&device, block);
	device.shared = &port;
	device.qps = piece(sizeof *device.qps << LOG_QPS);
	device.sched.timers->heap = place_of(piece((QPS + 1) * sizeof(uint64_t)));
	device.sched.timers->capacity = QPS;
	peer = piece(sizeof *peer);
	program = piece(sizeof *program);
	lines = piece(LINES * sizeof *lines);
	path = piece(sizeof *path);
	for (unsigned i = 0; i < QPS; i++) {
		memset(&qp, 0, sizeof qp);
		make();
		qps[i] = qp;
		device.qps[(16 + i) & ((1 << LOG_QPS) - 1)] = &qps[i];
	}
}

/* Everything as it is when the queue pairs have just been connected. */
static void begin_all(void)
{
	struct engine_sched *sched = &device.sched;
	memset(sched->scheduler, 0, sizeof *sched->scheduler);
	memset(sched->inflight, 0, sizeof *sched->inflight);
	memset(program, 0, sizeof *program);
	*peer = (struct peer){ .most = 64, .limit_16 = (uint64_t)64 << INFLIGHT_FRACTION_BITS, .users = QPS };
	sched->timers->count = 0;
	sched->scheduler->quantum = 4096;
	sched->inflight->limit = draw() % 2 ? 256 : 12;
	sched->inflight->spare_line = 0;
	for (unsigned i = 0; i < LINES; i++) {
		lines[i] = (struct line){ .next = sched->inflight->spare_line };
		sched->inflight->spare_line = place_of(&lines[i]);
	}
	*path = (struct flow){ .family = 4 };
	memcpy(&path->dst_0, meta.flow.source, 4);
	memcpy(&path->src_0, meta.flow.destination, 4);
	device.changes++;
	for (unsigned i = 0; i < QPS; i++) {
		number = 16 + i;
		qp = qps[i];
		begin();
		struct queue_pair *record = qp.record;
		record->number = number;
		record->context = place_of(qp.qpc);
		record->path = place_of(path);
		record->program_record = place_of(program);
		record->turn = 2048;
		record->armed_ns = NEVER;
		record->opcodes = record->service;
		record->peer_record = record->service ? 0 : place_of(peer);
		qp.route = &way;
		qp.found = 0;
		for (unsigned at = 0; at < ENGINE_DESTINATIONS; at++) {
			qp.destinations[at].found = device.changes;
			qp.destinations[at].route = &way;
		}
		qps[i] = qp;
		device.directory[number & ((1 << LOG_QPS) - 1)] = place_of(record);
	}
}

/* One queue pair at which hostile.c's makers look. */
static void look_at(unsigned i)
{
	number = 16 + i;
	qp = qps[i];
}

static struct engine_qp *whose(uint64_t record)
{
	for (unsigned i = 0; i < QPS; i++)
		if (place_of(qps[i].record) == record)
			return &qps[i];
	abort();
}

/* What the caller of the port does for a queue pair. */
static void serve(const struct engine_stop_info *told)
{
	if (told->stop == STOP_MAP_QP)
		whose(told->qp)->found = device.changes;
}

/* A turn that is the reference's: it sends nothing. */
static void take_over(struct engine_sending *sending)
{
	engine_scheduler_spend(&device.sched, sending->qp, 0, 0);
	sending->sent += sending->count ? sending->count : 1;
	sending->qp = 0;
	left++;
}

static void post_and_ring(void)
{
	look_at(draw() % QPS);
	uint64_t tail = qp.record->tail;
	post();
	uint64_t wanted = qp.record->tail;
	qp.record->tail = tail;
	qp.block[REG_SQ_TAIL / 4] = (uint32_t)(draw() % 32 ? wanted : odd_number());
	engine_device_ring(&device, whose(place_of(qp.record)));
}

/* A burst of packets to anybody, the last perhaps cut; bytes. `segment` is what the first is long. */
static uint64_t burst(uint8_t *to, uint64_t *segment)
{
	uint64_t length = 0, count = 1 + draw() % 3;
	*segment = 0;
	for (uint64_t i = 0; i < count; i++) {
		look_at(draw() % QPS);
		meta.ident = (uint32_t)i;
		uint64_t size = packet(to + length);
		if (!i)
			*segment = size;
		length += size;
		if (size != *segment)
			break;
	}
	meta.ident = 0;
	return draw() % 16 ? length : draw() % (length + 1);
}

static uint64_t take(uint64_t now)
{
	uint8_t bytes[2048];
	uint64_t segment, length = burst(bytes, &segment), at = 0, taken = 0;
	uint8_t *buffer = buffer_of(length ? length : 1);
	struct engine_stop_info told;
	memcpy(buffer, bytes, length);
	if (draw() % 64 == 0)
		segment = 1 + draw() % 600;
	while (at < length) {
		size_t got = engine_device_receive(&device, buffer, length, segment, at, &meta, now, &told);
		taken += got != 0;
		at += got;
		serve(&told);
		if (told.stop == STOP_PUNT_PACKET) {
			at += segment; /* the reference would drop it */
			left++;
		}
	}
	free(buffer);
	return taken;
}

static uint64_t turns(uint64_t now)
{
	static struct engine_sending sending;
	struct engine_out out = { .room = (20 + 16) * 4160u };
	struct engine_stop_info told;
	uint64_t made = 0;
	out.bytes = buffer_of(out.room);
	do {
		engine_device_send(&device, now, draw() % 20 + 1, &out, &sending, &told);
		for (uint32_t i = 0; i < out.count; i++)
			made += out.bursts[i].count;
		out.used = out.count = out.open = 0;
		serve(&told);
		if (told.stop == STOP_PUNT_TURN)
			take_over(&sending);
	} while (told.stop != STOP_DONE);
	engine_device_sent(&device, &sending);
	free(out.bytes);
	return made;
}

static void deadlines(uint64_t now)
{
	uint64_t most = 16;
	while (most && engine_device_due(&device, now, &most))
		left++; /* the reference would look at it */
}

/* ------------------------------------------------------------------ on a socket */

static int open_socket(struct sockaddr_in *name)
{
	socklen_t size = sizeof *name;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	*name = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (struct sockaddr *)name, size) || getsockname(fd, (struct sockaddr *)name, &size))
		abort();
	return fd;
}

static uint64_t on_socket(uint64_t rounds)
{
	struct sockaddr_in here, there;
	int own = open_socket(&here), theirs = open_socket(&there);
	struct tx_socket outlet = { .fd = own, .ipv4 = 1, .tclass = -1, .hop_limit = -1 };
	struct io_poll *round = buffer_of(sizeof *round);
	uint8_t *slots = buffer_of((size_t)POLL_RECEIVE_LIMIT * POLL_BUFFER_BYTES), *out = buffer_of(POLL_OUT_BYTES);
	uint64_t took = 0;
	way = (struct tx_path){ .socket = &outlet, .name_bytes = sizeof there, .max_segments = 8, .hop_limit = 64 };
	memcpy(way.name, &there, sizeof there);
	io_poll_init(round, &device, own, slots, out);
	io_poll_add_sender(round, way.name, way.name_bytes, &meta.flow);
	for (uint64_t i = 0; i < rounds; i++) {
		struct engine_stop_info told;
		uint8_t bytes[2048];
		uint64_t segment;
		if (i % 200 == 0)
			begin_all();
		post_and_ring();
		for (uint64_t more = draw() % 6; more; more--)
			sendto(theirs, bytes, draw() % 8 ? burst(bytes, &segment) : draw() % sizeof bytes, 0,
			       (struct sockaddr *)&here, sizeof here);
		if (draw() % 64 == 0)
			io_poll_forget_sender(round, way.name, way.name_bytes);
		uint64_t before = device.counts.rx_packets;
		do {
			if (draw() % 4)
				io_poll(round, 1000 * i, draw() % 300, &told);
			else
				io_poll_send(round, 1000 * i, draw() % 300, &told);
			serve(&told);
			if (told.stop == STOP_PUNT_PACKET) {
				uint64_t from, to;
				io_poll_punt(round, &from, &to);
				io_poll_add_sender(round, way.name, way.name_bytes, &meta.flow);
				left++;
			} else if (told.stop == STOP_PUNT_TURN) {
				take_over(&round->sending);
			}
		} while (told.stop != STOP_DONE || round->phase != POLL_IDLE);
		took += device.counts.rx_packets != before;
		deadlines(1000 * i);
		while (recv(theirs, bytes, sizeof bytes, 0) >= 0)
			;
	}
	close(own);
	close(theirs);
	io_poll_end(round);
	free(round);
	free(slots);
	free(out);
	return took;
}

#ifndef HOSTILE_DEVICE
int main(int argc, char **argv)
{
	uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000, taken = 0, made = 0;
	state = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 2654435761u + 1;
	lay_out();
	meta.frag = DONT_FRAGMENT;
	for (uint64_t i = 0; i < rounds; i++) {
		if (i % 200 == 0)
			begin_all();
		post_and_ring();
		if (draw() % 8 == 0)
			device.changes++;
		taken += take(1000 * i);
		if (draw() % 2)
			made += turns(1000 * i);
		if (draw() % 4 == 0)
			deadlines(draw() % 8 ? 1000 * i : odd_number());
	}
	uint64_t took = on_socket(rounds / 4);
	printf("%llu %llu %llu %llu\n", (unsigned long long)taken, (unsigned long long)made, (unsigned long long)left,
	       (unsigned long long)took);
	return 0;
}
#endif
