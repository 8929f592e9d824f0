#if defined(__linux__)
#define _GNU_SOURCE
#include "io/faults.h"

#include "queue_pair/arithmetic.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/icrc.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ECN_CE 3u
#define MIN_PACKET 16u /* BTH and ICRC: nothing shorter has an ICRC */

/* A packet that is held back. */
struct fault_packet {
	struct fault_packet *previous, *next;
	uint64_t due_ns; /* time at which it passes in any case */
	uint64_t behind; /* packets that must still overtake it */
	struct tx_path path; /* of a sent packet */
	struct rx_buffer rx; /* of a received packet; its bytes are here */
	uint32_t at; /* offset in its buffer, which determines its ident */
	uint32_t length;
	uint8_t bytes[];
};

void faults_init(struct faults *faults, const uint8_t *table, uint8_t *counts)
{
	fault_rules_init(&faults->rules, table, counts);
}

static void free_all(struct fault_packet *first)
{
	while (first) {
		struct fault_packet *next = first->next;
		free(first);
		first = next;
	}
}

void faults_free(struct faults *faults)
{
	for (uint32_t direction = 0; direction < 2; direction++) {
		free_all(faults->lanes[direction].delayed);
		free_all(faults->lanes[direction].held);
	}
	for (uint32_t i = faults->next_run; i < faults->run_count; i++)
		free(faults->runs[i].packet);
	free(faults->runs);
}

static int is_port_down(const struct faults *faults)
{
	return atomic_load_explicit((const _Atomic uint64_t *)(const void *)&faults->rules.table->port_down,
				    memory_order_relaxed) != 0;
}

int faults_judge(const struct faults *faults, uint32_t direction)
{
	return faults->rules.directions >> direction & 1 || faults->lanes[direction].count || is_port_down(faults);
}

/* ------------------------------------------------------------------ held packets */

static void unlink_packet(struct fault_packet **first, struct fault_packet **last, struct fault_packet *packet)
{
	*(packet->previous ? &packet->previous->next : first) = packet->next;
	*(packet->next ? &packet->next->previous : last) = packet->previous;
}

static void link_behind(struct fault_packet **first, struct fault_packet **last, struct fault_packet *before,
			struct fault_packet *packet)
{
	packet->previous = before;
	packet->next = before ? before->next : *first;
	*(before ? &before->next : first) = packet;
	*(packet->next ? &packet->next->previous : last) = packet;
}

/* Copy a packet to hold it back; NULL if there is no room, which is counted. */
static struct fault_packet *copy_packet(struct faults *faults, uint32_t direction, const uint8_t *bytes,
					uint32_t length)
{
	struct fault_lane *lane = &faults->lanes[direction];
	struct fault_packet *packet = lane->count < FAULT_MAX_HELD ? malloc(sizeof *packet + length) : NULL;

	if (!packet) {
		faults->full[direction]++;
		return NULL;
	}
	memset(packet, 0, sizeof *packet);
	packet->length = length;
	memcpy(packet->bytes, bytes, length);
	lane->count++;
	return packet;
}

static void delay(struct fault_lane *lane, struct fault_packet *packet, uint64_t due_ns)
{
	struct fault_packet *before = lane->last_delayed;

	packet->due_ns = due_ns;
	while (before && before->due_ns > due_ns)
		before = before->previous;
	link_behind(&lane->delayed, &lane->last_delayed, before, packet);
}

static void hold(struct fault_lane *lane, struct fault_packet *packet, uint64_t behind, uint64_t due_ns)
{
	packet->behind = behind;
	packet->due_ns = due_ns;
	link_behind(&lane->held, &lane->last_held, lane->last_held, packet);
}

/* Take the next packet of a lane that is due by time, or NULL. */
static struct fault_packet *take_due(struct fault_lane *lane, uint64_t now)
{
	struct fault_packet *packet = lane->delayed;

	if (packet && packet->due_ns <= now) {
		unlink_packet(&lane->delayed, &lane->last_delayed, packet);
		lane->count--;
		return packet;
	}
	for (packet = lane->held; packet; packet = packet->next) {
		if (packet->due_ns > now)
			continue;
		unlink_packet(&lane->held, &lane->last_held, packet);
		lane->count--;
		return packet;
	}
	return NULL;
}

/* Take the next packet that enough others have overtaken, or NULL. */
static struct fault_packet *take_overtaken(struct fault_lane *lane)
{
	for (struct fault_packet *packet = lane->held; packet; packet = packet->next) {
		if (packet->behind)
			continue;
		unlink_packet(&lane->held, &lane->last_held, packet);
		lane->count--;
		return packet;
	}
	return NULL;
}

/* Count another packet that overtakes waiting ones. */
static void overtake(struct fault_lane *lane)
{
	for (struct fault_packet *packet = lane->held; packet; packet = packet->next)
		packet->behind--;
}

void faults_expire(struct faults *faults)
{
	for (int direction = 0; direction < 2; direction++) {
		for (struct fault_packet *packet = faults->lanes[direction].delayed; packet; packet = packet->next)
			packet->due_ns = 0;
		for (struct fault_packet *packet = faults->lanes[direction].held; packet; packet = packet->next)
			packet->due_ns = 0;
	}
}

uint64_t faults_deadline(const struct faults *faults)
{
	uint64_t deadline = NEVER;

	for (uint32_t direction = 0; direction < 2; direction++) {
		const struct fault_lane *lane = &faults->lanes[direction];
		if (lane->delayed)
			deadline = lesser(deadline, lane->delayed->due_ns);
		for (const struct fault_packet *packet = lane->held; packet; packet = packet->next)
			deadline = lesser(deadline, packet->due_ns);
	}
	return deadline;
}

static void count_actions(struct faults *faults, uint32_t direction, uint32_t actions)
{
	for (uint32_t action = 0; action < FAULT_ACTIONS; action++)
		faults->counted[direction][action] += actions >> action & 1;
}

static int has(const struct fault_verdict *verdict, uint32_t action)
{
	return verdict->actions >> action & 1;
}

/* Return the remaining bytes of a packet. */
static uint32_t kept_bytes(const struct fault_verdict *verdict, uint32_t length)
{
	return has(verdict, FAULT_TRUNCATE) ? (uint32_t)lesser(length, verdict->told[FAULT_TRUNCATE]->bytes) : length;
}

/* ------------------------------------------------------------------ sent packets */

/* Return the flow of packets sent on a path. */
static struct engine_flow flow_of(const struct faults *faults, const struct tx_path *path)
{
	struct engine_flow flow = { .address_bytes = (uint16_t)faults->address_bytes,
				    .source_port = (uint16_t)path->source_port };
	struct sockaddr_in to;
	struct sockaddr_in6 to6;

	memcpy(flow.source, faults->address, faults->address_bytes);
	if (faults->address_bytes == 4) {
		memcpy(&to, path->name, sizeof to);
		memcpy(flow.destination, &to.sin_addr, 4);
		flow.destination_port = ntohs(to.sin_port);
	} else {
		memcpy(&to6, path->name, sizeof to6);
		memcpy(flow.destination, &to6.sin6_addr, 16);
		flow.destination_port = ntohs(to6.sin6_port);
	}
	return flow;
}

/* Segments of a burst are sealed for IPv4 idents from 0 on. Move the ICRC of one over to the ident that it leaves with:
 * a CRC is affine, so one that was wrong stays wrong by the same bits. */
static void reseal(const struct faults *faults, const struct engine_flow *flow, uint8_t *packet, uint64_t length,
		   uint32_t ident, uint32_t to)
{
	if (flow->address_bytes != 4 || ident == to || length < MIN_PACKET)
		return;
	uint64_t covered = length - ICRC_BYTES;
	uint32_t change = engine_icrc(faults->shared, flow, packet, length, ident, DONT_FRAGMENT, covered) ^
			  engine_icrc(faults->shared, flow, packet, length, to, DONT_FRAGMENT, covered);
	le_store(packet + covered, ICRC_BYTES, (uint32_t)le_load(packet + covered, ICRC_BYTES) ^ change);
}

/* Send the packets of a burst from `at` to `end`. */
static void send_part(struct faults *faults, struct tx_path *path, const struct engine_flow *flow, uint8_t *bytes,
		      size_t at, size_t end, uint32_t segment)
{
	uint32_t first = (uint32_t)(at / segment), count = 0;

	if (at == end)
		return;
	for (size_t place = at; place < end; place += segment, count++)
		reseal(faults, flow, bytes + place, lesser(segment, end - place), first + count, count);
	faults->send(faults->self, path, bytes + at, end - at, segment, count);
}

static void send_overtaken(struct faults *faults)
{
	struct fault_packet *packet;

	while ((packet = take_overtaken(&faults->lanes[FAULT_TX]))) {
		faults->send(faults->self, &packet->path, packet->bytes, packet->length, packet->length, 1);
		free(packet);
	}
}

/* Send one packet, and those that waited for it. */
static void pass_packet(struct faults *faults, struct tx_path *path, const struct engine_flow *flow, uint8_t *bytes,
			size_t at, size_t end, uint32_t segment)
{
	send_part(faults, path, flow, bytes, at, end, segment);
	overtake(&faults->lanes[FAULT_TX]);
	send_overtaken(faults);
}

/* Copy a packet of a burst, sealed as a single packet. It uses the socket, since its ring may be gone by then. */
static struct fault_packet *keep_sent(struct faults *faults, const struct tx_path *path, const struct engine_flow *flow,
				      const uint8_t *bytes, uint32_t length, uint32_t ident)
{
	struct fault_packet *packet = copy_packet(faults, FAULT_TX, bytes, length);

	if (!packet)
		return NULL;
	packet->path = *path;
	packet->path.divert = NULL;
	reseal(faults, flow, packet->bytes, length, ident, 0);
	return packet;
}

static void transmit_struck(struct faults *faults, struct tx_path *path, const struct engine_flow *flow, uint8_t *bytes,
			    size_t at, size_t end, uint32_t segment, const struct fault_verdict *verdict, uint64_t now)
{
	struct fault_lane *lane = &faults->lanes[FAULT_TX];
	uint32_t length = (uint32_t)(end - at), ident = (uint32_t)(at / segment);
	struct tx_path marked = *path, *by = path;
	struct fault_packet *packet;

	count_actions(faults, FAULT_TX, verdict->actions);
	if (has(verdict, FAULT_DROP))
		return;
	if (has(verdict, FAULT_CORRUPT))
		fault_corrupt(verdict, bytes + at, length);
	if (has(verdict, FAULT_MARK)) {
		marked.tclass |= ECN_CE;
		by = &marked;
	}
	reseal(faults, flow, bytes + at, length, ident, 0);
	length = kept_bytes(verdict, length);
	if (has(verdict, FAULT_DUPLICATE)) {
		uint64_t later = verdict->told[FAULT_DUPLICATE]->delay_ns;
		if (!later)
			pass_packet(faults, by, flow, bytes + at, 0, length, length);
		else if ((packet = keep_sent(faults, by, flow, bytes + at, length, 0)))
			delay(lane, packet, now + later);
	}
	if (has(verdict, FAULT_DELAY)) {
		if ((packet = keep_sent(faults, by, flow, bytes + at, length, 0)))
			delay(lane, packet, now + verdict->told[FAULT_DELAY]->delay_ns);
	} else if (has(verdict, FAULT_REORDER)) {
		const struct fault_rule *rule = verdict->told[FAULT_REORDER];
		if ((packet = keep_sent(faults, by, flow, bytes + at, length, 0)))
			hold(lane, packet, greater(1, rule->behind), now + rule->hold_ns);
	} else {
		pass_packet(faults, by, flow, bytes + at, 0, length, length);
	}
}

void faults_transmit(struct faults *faults, struct tx_path *path, uint8_t *bytes, size_t length, uint32_t segment,
		     uint64_t now)
{
	struct engine_flow flow = flow_of(faults, path);
	struct fault_facts facts = {
		.direction = FAULT_TX,
		.address_bytes = flow.address_bytes,
		.source = flow.source,
		.destination = flow.destination,
		.comes_back = flow.destination_port == faults->port &&
			      !memcmp(flow.destination, flow.source, flow.address_bytes),
	};
	size_t begin = 0;

	if (is_port_down(faults)) {
		faults->port_down += ceil_div(length, segment);
		return;
	}
	for (size_t at = 0; at < length; at += segment) {
		size_t end = lesser(at + segment, length);
		fault_facts_read(&facts, bytes + at, end - at);
		struct fault_verdict verdict = fault_rules_judge(&faults->rules, &facts);
		if (!verdict.actions && !faults->lanes[FAULT_TX].held)
			continue;
		send_part(faults, path, &flow, bytes, begin, at, segment);
		begin = end;
		if (verdict.actions)
			transmit_struck(faults, path, &flow, bytes, at, end, segment, &verdict, now);
		else
			pass_packet(faults, path, &flow, bytes, at, end, segment);
	}
	send_part(faults, path, &flow, bytes, begin, length, segment);
}

/* ------------------------------------------------------------------ received packets */

/* Append a run; a packet is lost if there is no memory for it. */
static void add_run(struct faults *faults, struct fault_packet *packet, uint32_t at, uint32_t end, uint8_t tclass)
{
	struct fault_run *last = faults->run_count > faults->next_run ? &faults->runs[faults->run_count - 1] : NULL;

	if (!packet && last && !last->packet && last->end == at && last->tclass == tclass) {
		last->end = end;
		return;
	}
	if (faults->run_count == faults->run_room) {
		uint32_t room = faults->run_room ? 2 * faults->run_room : 64;
		struct fault_run *runs = realloc(faults->runs, room * sizeof *runs);
		if (!runs) {
			faults->full[FAULT_RX]++;
			free(packet);
			return;
		}
		faults->runs = runs;
		faults->run_room = room;
	}
	faults->runs[faults->run_count++] = (struct fault_run){ packet, at, end, tclass };
}

static void add_held(struct faults *faults, struct fault_packet *packet)
{
	add_run(faults, packet, packet->at, packet->at + packet->length, packet->rx.tclass);
}

static void pass_received(struct faults *faults, uint32_t at, uint32_t end, uint8_t tclass)
{
	struct fault_lane *lane = &faults->lanes[FAULT_RX];
	struct fault_packet *packet;

	add_run(faults, NULL, at, end, tclass);
	overtake(lane);
	while ((packet = take_overtaken(lane)))
		add_held(faults, packet);
}

static struct fault_packet *keep_received(struct faults *faults, const struct rx_buffer *rx, uint32_t at, uint32_t end,
					  uint8_t tclass)
{
	struct fault_packet *packet = copy_packet(faults, FAULT_RX, rx->buffer + at, end - at);

	if (!packet)
		return NULL;
	packet->rx = *rx;
	packet->rx.kind = 0;
	packet->rx.tclass = tclass;
	packet->at = at;
	return packet;
}

static void receive_struck(struct faults *faults, const struct rx_buffer *rx, uint32_t at, uint32_t end,
			   const struct fault_verdict *verdict, uint64_t now)
{
	struct fault_lane *lane = &faults->lanes[FAULT_RX];
	uint8_t tclass = has(verdict, FAULT_MARK) ? rx->tclass | ECN_CE : rx->tclass;
	struct fault_packet *packet;

	count_actions(faults, FAULT_RX, verdict->actions);
	if (has(verdict, FAULT_DROP))
		return;
	if (has(verdict, FAULT_CORRUPT))
		fault_corrupt(verdict, rx->buffer + at, end - at);
	end = at + kept_bytes(verdict, end - at);
	if (has(verdict, FAULT_DUPLICATE)) {
		uint64_t later = verdict->told[FAULT_DUPLICATE]->delay_ns;
		if (!later)
			pass_received(faults, at, end, tclass);
		else if ((packet = keep_received(faults, rx, at, end, tclass)))
			delay(lane, packet, now + later);
	}
	if (has(verdict, FAULT_DELAY)) {
		if ((packet = keep_received(faults, rx, at, end, tclass)))
			delay(lane, packet, now + verdict->told[FAULT_DELAY]->delay_ns);
	} else if (has(verdict, FAULT_REORDER)) {
		const struct fault_rule *rule = verdict->told[FAULT_REORDER];
		if ((packet = keep_received(faults, rx, at, end, tclass)))
			hold(lane, packet, greater(1, rule->behind), now + rule->hold_ns);
	} else {
		pass_received(faults, at, end, tclass);
	}
}

/* Set the source address of a buffer's packets, if it is of the device's address family. */
static void read_source(const struct faults *faults, const struct rx_buffer *rx, uint8_t *source)
{
	struct sockaddr_in from;
	struct sockaddr_in6 from6;

	if (faults->address_bytes == 4 && rx->name_bytes == sizeof from) {
		memcpy(&from, rx->name, sizeof from);
		memcpy(source, &from.sin_addr, 4);
	} else if (faults->address_bytes == 16 && rx->name_bytes == sizeof from6) {
		memcpy(&from6, rx->name, sizeof from6);
		memcpy(source, &from6.sin6_addr, 16);
	}
}

void faults_receive(struct faults *faults, const struct rx_buffer *rx, uint64_t now)
{
	uint8_t source[16] = { 0 }; /* packets from an in-memory link may have none */
	struct fault_facts facts = {
		.direction = FAULT_RX,
		.address_bytes = faults->address_bytes,
		.source = source,
		.destination = faults->address,
	};
	uint32_t size = (uint32_t)rx->size;

	faults->run_count = faults->next_run = 0;
	if (is_port_down(faults)) {
		faults->port_down += ceil_div(size, rx->segment);
		return;
	}
	read_source(faults, rx, source);
	for (uint32_t at = 0; at < size; at += rx->segment) {
		uint32_t end = (uint32_t)lesser(at + rx->segment, size);
		fault_facts_read(&facts, rx->buffer + at, end - at);
		struct fault_verdict verdict = fault_rules_judge(&faults->rules, &facts);
		if (verdict.actions)
			receive_struck(faults, rx, at, end, &verdict, now);
		else
			pass_received(faults, at, end, rx->tclass);
	}
}

int faults_release(struct faults *faults, uint64_t now)
{
	struct fault_packet *packet;
	unsigned most = POLL_BUDGET; /* the others remain due for the next round */

	while (faults->lanes[FAULT_TX].count && most && (packet = take_due(&faults->lanes[FAULT_TX], now))) {
		most--;
		if (is_port_down(faults))
			faults->port_down++;
		else
			faults->send(faults->self, &packet->path, packet->bytes, packet->length, packet->length, 1);
		free(packet);
	}
	for (most = POLL_BUDGET; faults->lanes[FAULT_RX].count && most; most--) {
		packet = take_due(&faults->lanes[FAULT_RX], now);
		if (!packet)
			break;
		add_held(faults, packet);
	}
	return faults->next_run < faults->run_count;
}

int faults_next_run(struct faults *faults, struct rx_buffer *spare, struct fault_run *run)
{
	if (faults->next_run == faults->run_count)
		return 0;
	*run = faults->runs[faults->next_run++];
	if (run->packet) {
		struct fault_packet *packet = run->packet;
		uint8_t *buffer = spare->buffer;
		size_t room = spare->room;
		*spare = packet->rx;
		spare->buffer = buffer;
		spare->room = room;
		spare->size = run->end;
		memcpy(buffer + packet->at, packet->bytes, packet->length);
		free(packet);
	}
	if (faults->next_run == faults->run_count)
		faults->next_run = faults->run_count = 0;
	return 1;
}

int faults_pass(struct faults *faults, uint32_t direction, const struct engine_by_reference *by_reference, uint64_t mtu)
{
	struct fault_facts facts = {
		.direction = direction,
		.address_bytes = faults->address_bytes,
		.source = faults->address, /* both programs use this device */
		.destination = faults->address,
		.comes_back = direction == FAULT_TX,
	};

	if (is_port_down(faults) || faults->lanes[direction].held)
		return 0;
	if (!(faults->rules.directions >> direction & 1))
		return 1;
	return !fault_rules_pass(&faults->rules, by_reference, mtu, &facts);
}
#endif
