/* What happens when, ports and switches (sim/agenda.py, sim/port.py, sim/switch.py). */
#include "fabric.h"

#include <stdlib.h>

#include "queue_pair/arithmetic.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/crc32.h"
#include "queue_pair/icrc.h"

#define BIT_NS 8000000000ull
#define WIRE_BYTES 66u /* preamble, start, Ethernet, IPv4 and UDP headers, FCS, gap */
#define PAUSE_BYTES 84u
#define ACTOR_MASK ((1u << FABRIC_ACTOR_BITS) - 1)

/* ------------------------------------------------------------------ pools that grow */

/* Room for one more where the pointer at `at` leads, whatever its type; 0, or -1 without memory. */
static int room_for(void *at, uint32_t count, uint32_t *room, size_t size)
{
	void *pool;
	if (count < *room)
		return 0;
	uint32_t wanted = *room ? *room * 2 : 64;
	memcpy(&pool, at, sizeof pool);
	pool = realloc(pool, wanted * size);
	if (!pool)
		return -1;
	memcpy(at, &pool, sizeof pool);
	*room = wanted;
	return 0;
}

#define GROW(at, count, room) room_for(&(at), count, &(room), sizeof *(at))

uint32_t fabric_actor_add(struct fabric *fabric, enum fabric_kind kind, uint32_t index)
{
	if (fabric->actor_count > ACTOR_MASK || GROW(fabric->actors, fabric->actor_count, fabric->actor_room))
		return FABRIC_NONE;
	fabric->actors[fabric->actor_count] = (struct fabric_actor){ kind, index };
	return fabric->actor_count++;
}

uint32_t fabric_port_add(struct fabric *fabric)
{
	if (GROW(fabric->ports, fabric->port_count, fabric->port_room))
		return FABRIC_NONE;
	uint32_t at = fabric->port_count;
	struct fabric_port *port = &fabric->ports[at];
	memset(port, 0, sizeof *port);
	port->next_signal = 1;
	port->peer = port->owner = port->number = FABRIC_NONE;
	port->free_actor = fabric_actor_add(fabric, FABRIC_PORT_FREE, at);
	port->wire_actor = fabric_actor_add(fabric, FABRIC_PORT_WIRE, at);
	port->signal_actor = fabric_actor_add(fabric, FABRIC_PORT_SIGNAL, at);
	if (port->signal_actor == FABRIC_NONE)
		return FABRIC_NONE;
	return fabric->port_count++;
}

uint32_t fabric_switch_add(struct fabric *fabric, uint32_t links, uint32_t hosts)
{
	if (GROW(fabric->switches, fabric->switch_count, fabric->switch_room))
		return FABRIC_NONE;
	struct fabric_switch *owner = &fabric->switches[fabric->switch_count];
	memset(owner, 0, sizeof *owner);
	owner->links = calloc(links ? links : 1, sizeof *owner->links);
	owner->routes = calloc(hosts ? hosts : 1, sizeof *owner->routes);
	if (!owner->links || !owner->routes) {
		free(owner->links);
		free(owner->routes);
		return FABRIC_NONE;
	}
	return fabric->switch_count++;
}

int fabric_way_add(struct fabric_switch *owner, uint32_t host, uint32_t port)
{
	struct fabric_ways *ways = &owner->routes[host];
	if (GROW(owner->ways, owner->way_count, owner->way_room))
		return -1;
	if (!ways->count)
		ways->first = owner->way_count;
	owner->ways[owner->way_count++] = port;
	ways->count++;
	return 0;
}

void fabric_way_share(struct fabric_switch *owner, uint32_t host, uint32_t other)
{
	owner->routes[host] = owner->routes[other];
}

uint32_t fabric_host_add(struct fabric *fabric)
{
	if (GROW(fabric->hosts, fabric->host_count, fabric->host_room))
		return FABRIC_NONE;
	uint32_t at = fabric->host_count;
	struct fabric_host *host = &fabric->hosts[at];
	memset(host, 0, sizeof *host);
	host->due = host->write_back_at = NEVER;
	host->port = FABRIC_NONE;
	host->told = host->stale = 1;
	host->actor = fabric_actor_add(fabric, FABRIC_HOST, at);
	if (host->actor == FABRIC_NONE)
		return FABRIC_NONE;
	return fabric->host_count++;
}

void fabric_free(struct fabric *fabric)
{
	for (uint32_t i = 0; i < fabric->port_count; i++) {
		free(fabric->ports[i].draws);
		free(fabric->ports[i].stops);
	}
	for (uint32_t i = 0; i < fabric->switch_count; i++) {
		free(fabric->switches[i].draws);
		free(fabric->switches[i].links);
		free(fabric->switches[i].routes);
		free(fabric->switches[i].ways);
	}
	free(fabric->heap);
	free(fabric->actors);
	free(fabric->packets);
	free(fabric->ports);
	free(fabric->switches);
	free(fabric->hosts);
	free(fabric->out.bytes);
	free(fabric->scratch);
}

/* ------------------------------------------------------------------ what happens when: a heap with four below each */

static int is_sooner(const struct fabric_event *one, const struct fabric_event *other)
{
	return one->time < other->time || (one->time == other->time && one->key < other->key);
}

void fabric_at(struct fabric *fabric, uint64_t time, uint32_t actor)
{
	if (GROW(fabric->heap, fabric->heap_count, fabric->heap_room)) {
		fabric->failed = 1;
		return;
	}
	struct fabric_event event = { time, ++fabric->entered << FABRIC_ACTOR_BITS | actor };
	struct fabric_event *heap = fabric->heap;
	uint32_t place = fabric->heap_count++;
	while (place) {
		uint32_t above = (place - 1) / 4;
		if (!is_sooner(&event, &heap[above]))
			break;
		heap[place] = heap[above];
		place = above;
	}
	heap[place] = event;
}

static struct fabric_event take_first(struct fabric *fabric)
{
	struct fabric_event *heap = fabric->heap, first = heap[0], last = heap[--fabric->heap_count];
	uint32_t count = fabric->heap_count, place = 0, below;
	while ((below = 4 * place + 1) < count) {
		uint32_t end = below + 4 < count ? below + 4 : count, soonest = below;
		for (uint32_t i = below + 1; i < end; i++)
			if (is_sooner(&heap[i], &heap[soonest]))
				soonest = i;
		if (!is_sooner(&heap[soonest], &last))
			break;
		heap[place] = heap[soonest];
		place = soonest;
	}
	heap[place] = last;
	return first;
}

/* ------------------------------------------------------------------ packets */

void fabric_queue_append(struct fabric *fabric, struct fabric_queue *queue, uint32_t packet)
{
	fabric->packets[packet].next = FABRIC_NONE;
	if (queue->count++)
		fabric->packets[queue->last].next = packet;
	else
		queue->first = packet;
	queue->last = packet;
}

uint32_t fabric_queue_take(struct fabric *fabric, struct fabric_queue *queue)
{
	uint32_t packet = queue->first;
	queue->first = fabric->packets[packet].next;
	queue->count--;
	return packet;
}

/* The number of the host with an address of the fabric's. */
static uint32_t host_of(const uint8_t *address)
{
	return (uint32_t)be_load(address, 4) - FABRIC_NET - 1;
}

uint32_t fabric_packet_make(struct fabric *fabric, const uint8_t *header, uint64_t length,
			    const struct engine_flow *flow, uint8_t tclass)
{
	uint32_t at = fabric->spare, target = host_of(flow->destination);
	if (target >= fabric->host_count)
		return FABRIC_NONE;
	if (fabric->spare) {
		fabric->spare = fabric->packets[at].next;
	} else {
		/* number 0 is nobody's, so that it says that none is spare */
		if (!fabric->packet_count && GROW(fabric->packets, 0, fabric->packet_room))
			return FABRIC_NONE;
		fabric->packet_count += !fabric->packet_count;
		if (GROW(fabric->packets, fabric->packet_count, fabric->packet_room))
			return FABRIC_NONE;
		at = fabric->packet_count++;
	}
	struct fabric_packet *packet = &fabric->packets[at];
	uint8_t path[12];
	uint32_t bytes = opcode_rows[header[0]].header_bytes;
	if (!bytes || bytes > FABRIC_HEADER || bytes > length)
		bytes = BTH_BYTES;
	packet->wire = (uint32_t)length + WIRE_BYTES;
	packet->length = (uint16_t)length;
	packet->source = host_of(flow->source);
	packet->target = target;
	packet->source_port = flow->source_port;
	packet->target_port = flow->destination_port;
	packet->tclass = tclass;
	packet->ce = 0;
	packet->in_headroom = 0;
	packet->header_bytes = (uint8_t)bytes;
	memcpy(packet->header, header, bytes);
	memcpy(path, flow->source, 4);
	memcpy(path + 4, flow->destination, 4);
	be_store(path + 8, 2, flow->source_port);
	be_store(path + 10, 2, flow->destination_port);
	packet->way = engine_crc32(0, path, sizeof path);
	return at;
}

void fabric_packet_drop(struct fabric *fabric, uint32_t packet)
{
	fabric->packets[packet].next = fabric->spare;
	fabric->spare = packet;
}

void fabric_packet_whole(const struct fabric_packet *packet, uint8_t *bytes)
{
	uint64_t covered = packet->length - ICRC_BYTES;
	struct engine_flow flow = { .source_port = packet->source_port,
				    .destination_port = packet->target_port,
				    .address_bytes = 4 };
	be_store(flow.source, 4, FABRIC_NET + 1 + packet->source);
	be_store(flow.destination, 4, FABRIC_NET + 1 + packet->target);
	memset(bytes, 0, packet->length);
	memcpy(bytes, packet->header, lesser(packet->header_bytes, covered));
	uint32_t crc = engine_icrc_begin(engine_crc32, &flow, packet->length, 0, DONT_FRAGMENT, bytes, BTH_BYTES);
	crc = engine_crc32(crc, bytes + BTH_BYTES, covered - BTH_BYTES);
	for (unsigned i = 0; i < ICRC_BYTES; i++)
		bytes[covered + i] = (uint8_t)(crc >> 8 * i);
}

/* ------------------------------------------------------------------ ports */

/* A random number of Python's generator. */
static double draw_number(struct fabric *fabric, struct fabric_draws *draws)
{
	if (draws->at == draws->count) {
		draws->at = draws->count = 0;
		if (fabric->to->draw(fabric->self, draws) || !draws->count) {
			fabric->failed = 1;
			return 1;
		}
	}
	return draws->values[draws->at++];
}

static void start_transmit(struct fabric *fabric, struct fabric_port *port)
{
	uint64_t bits = fabric->packets[port->queue.first].wire * BIT_NS + port->rest;
	port->rest = bits % port->bits_s;
	port->busy = 1;
	fabric_at(fabric, fabric->now + bits / port->bits_s, port->free_actor);
}

void fabric_port_put(struct fabric *fabric, uint32_t at, uint32_t packet)
{
	struct fabric_port *port = &fabric->ports[at];
	fabric_queue_append(fabric, &port->queue, packet);
	port->queued_bytes += fabric->packets[packet].wire;
	if (port->queued_bytes > port->peak_bytes)
		port->peak_bytes = port->queued_bytes;
	if (!port->busy && !port->paused)
		start_transmit(fabric, port);
}

/* The packet at the head has left. */
static void transmit_done(struct fabric *fabric, uint32_t at)
{
	struct fabric_port *port = &fabric->ports[at];
	uint32_t number = fabric_queue_take(fabric, &port->queue);
	struct fabric_packet *packet = &fabric->packets[number];
	port->queued_bytes -= packet->wire;
	port->sent++;
	port->sent_bytes += packet->wire;
	port->busy = 0;
	if (port->tapped && fabric->to->tap(fabric->self, at, packet))
		fabric->failed = 1;
	int lost = port->draws && draw_number(fabric, port->draws) < port->loss;
	if (lost) {
		port->lost++;
	} else {
		fabric_queue_append(fabric, &port->wire, number);
		fabric_at(fabric, fabric->now + port->delay_ns, port->wire_actor);
	}
	if (port->number == FABRIC_NONE)
		fabric_host_left(fabric, port->owner);
	else
		fabric_switch_left(fabric, &fabric->switches[port->owner], packet);
	if (lost)
		fabric_packet_drop(fabric, number);
	if (port->queue.count && !port->busy && !port->paused)
		start_transmit(fabric, port);
}

/* A packet is at the other end of the wire. */
static void packet_arrived(struct fabric *fabric, struct fabric_port *port)
{
	uint32_t packet = fabric_queue_take(fabric, &port->wire);
	const struct fabric_port *there = &fabric->ports[port->peer];
	if (there->number == FABRIC_NONE)
		fabric_host_arrive(fabric, there->owner, packet);
	else
		fabric_switch_arrive(fabric, there->owner, packet, there->number);
}

void fabric_port_pause(struct fabric *fabric, uint32_t at, int stop)
{
	struct fabric_port *port = &fabric->ports[at];
	(void)stop; /* stop and go on take turns */
	port->signals++;
	fabric_at(fabric, fabric->now + PAUSE_BYTES * BIT_NS / port->bits_s + port->delay_ns, port->signal_actor);
}

static void record_pause(struct fabric *fabric, struct fabric_port *port)
{
	if (!port->recorded)
		return;
	if (GROW(port->stops, port->stop_count, port->stop_room))
		fabric->failed = 1;
	else
		port->stops[port->stop_count++] = fabric->now;
}

void fabric_port_stop(struct fabric *fabric, uint32_t at, int stop)
{
	struct fabric_port *port = &fabric->ports[at];
	if (stop && !port->paused) {
		port->pauses++;
		port->since_ns = fabric->now;
		record_pause(fabric, port);
	} else if (port->paused && !stop) {
		port->paused_ns += fabric->now - port->since_ns;
		record_pause(fabric, port);
	}
	port->paused = (uint8_t)stop;
	if (!stop && port->queue.count && !port->busy)
		start_transmit(fabric, port);
}

static void pause_arrived(struct fabric *fabric, struct fabric_port *port)
{
	int stop = port->next_signal;
	port->signals--;
	port->next_signal ^= 1;
	fabric_port_stop(fabric, port->peer, stop);
}

/* ------------------------------------------------------------------ switches */

/* Spread a 32-bit hash: the finalizer of MurmurHash3, public domain. */
static uint32_t mix_bits(uint32_t value)
{
	value = (value ^ value >> 16) * 0x85EBCA6Bu;
	value = (value ^ value >> 13) * 0xC2B2AE35u;
	return value ^ value >> 16;
}

/* Whether a packet that joins so long a queue is marked. */
static int marks_packet(struct fabric *fabric, struct fabric_switch *owner, uint64_t queued_bytes)
{
	if (queued_bytes <= owner->kmin_bytes)
		return 0;
	if (queued_bytes >= owner->kmax_bytes)
		return 1;
	double share = owner->pmax * (double)(queued_bytes - owner->kmin_bytes) /
		       (double)(owner->kmax_bytes - owner->kmin_bytes);
	return draw_number(fabric, owner->draws) < share;
}

void fabric_switch_arrive(struct fabric *fabric, uint32_t at, uint32_t number, uint32_t ingress)
{
	struct fabric_switch *owner = &fabric->switches[at];
	struct fabric_packet *packet = &fabric->packets[number];
	struct fabric_ingress *link = &owner->links[ingress];
	uint64_t size = packet->wire;

	packet->in_headroom = owner->held - owner->in_headroom + size > owner->buffer_bytes;
	if (packet->in_headroom) {
		if (link->in_headroom + size > owner->headroom_bytes) {
			owner->dropped++;
			fabric_packet_drop(fabric, number);
			return;
		}
		link->in_headroom += size;
		owner->in_headroom += size;
	}
	packet->ingress = (uint16_t)ingress;
	link->held += size;
	owner->held += size;
	if (owner->held > owner->peak_bytes)
		owner->peak_bytes = owner->held;
	if (owner->xoff_bytes && !link->pausing && link->held > owner->xoff_bytes) {
		link->pausing = 1;
		fabric_port_pause(fabric, link->port, 1);
	}
	const struct fabric_ways *ways = &owner->routes[packet->target];
	uint32_t way = ways->count == 1 ? 0 : mix_bits(packet->way ^ owner->salt) % ways->count;
	struct fabric_port *out = &fabric->ports[owner->ways[ways->first + way]];
	if (owner->kmax_bytes && packet->tclass & 3 && !packet->ce && marks_packet(fabric, owner, out->queued_bytes)) {
		packet->ce = 1;
		out->marked++;
	}
	fabric_port_put(fabric, owner->ways[ways->first + way], number);
}

void fabric_switch_left(struct fabric *fabric, struct fabric_switch *owner, const struct fabric_packet *packet)
{
	struct fabric_ingress *link = &owner->links[packet->ingress];
	link->held -= packet->wire;
	owner->held -= packet->wire;
	if (packet->in_headroom) {
		link->in_headroom -= packet->wire;
		owner->in_headroom -= packet->wire;
	}
	if (link->pausing && link->held <= owner->xon_bytes) {
		link->pausing = 0;
		fabric_port_pause(fabric, link->port, 0);
	}
}

/* ------------------------------------------------------------------ running */

uint64_t fabric_run(struct fabric *fabric, uint64_t count, uint64_t end)
{
	uint64_t calls = fabric->calls, done = 0;
	while (done < count && fabric->heap_count && fabric->calls == calls && !fabric->failed && fabric->now <= end) {
		struct fabric_event event = take_first(fabric);
		struct fabric_actor actor = fabric->actors[event.key & ACTOR_MASK];
		fabric->now = event.time;
		fabric->events++;
		done++;
		switch ((enum fabric_kind)actor.kind) {
		case FABRIC_PORT_FREE:
			transmit_done(fabric, actor.index);
			break;
		case FABRIC_PORT_WIRE:
			packet_arrived(fabric, &fabric->ports[actor.index]);
			break;
		case FABRIC_PORT_SIGNAL:
			pause_arrived(fabric, &fabric->ports[actor.index]);
			break;
		case FABRIC_HOST:
			fabric_host_act(fabric, actor.index);
			break;
		case FABRIC_PYTHON:
			fabric->calls++;
			if (fabric->to->act(fabric->self, (uint32_t)(event.key & ACTOR_MASK)))
				fabric->failed = 1;
			break;
		}
	}
	return done;
}
