/* Events, ports and switches (sim/agenda.py, sim/port.py, sim/switch.py). */
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

/* Make room for one more element in the array whose pointer is at `at`. Returns 0, or -1 without memory. */
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
	port->strict = (1u << FABRIC_PRIORITIES) - 1;
	port->peer = port->owner = port->number = port->signal_actors = FABRIC_NONE;
	port->free_actor = fabric_actor_add(fabric, FABRIC_PORT_FREE, at);
	port->wire_actor = fabric_actor_add(fabric, FABRIC_PORT_WIRE, at);
	if (port->wire_actor == FABRIC_NONE)
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
	host->due = host->timer = host->write_back_at = NEVER;
	host->port = FABRIC_NONE;
	host->told = host->stale = 1;
	host->actor = fabric_actor_add(fabric, FABRIC_HOST, at);
	host->timer_actor = fabric_actor_add(fabric, FABRIC_TIMER, at);
	if (host->timer_actor == FABRIC_NONE)
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
	for (uint32_t i = 0; i < fabric->host_count; i++)
		free(fabric->hosts[i].echoes);
	free(fabric->telemetry);
	free(fabric->heap);
	free(fabric->actors);
	free(fabric->packets);
	free(fabric->ports);
	free(fabric->switches);
	free(fabric->hosts);
	free(fabric->out.bytes);
	free(fabric->scratch);
}

/* ------------------------------------------------------------------ event queue: a 4-ary heap */

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

/* Return the number of the host with an address of the fabric. */
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
		/* number 0 means none: it marks the end of the free list */
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
	packet->priority = header[0] == BTH_ACKNOWLEDGE || header[0] == BTH_CNP ? fabric->control : tclass >> 5;
	packet->ce = 0;
	packet->header_bytes = (uint8_t)bytes;
	memcpy(packet->header, header, bytes);
	memcpy(path, flow->source, 4);
	memcpy(path + 4, flow->destination, 4);
	be_store(path + 8, 2, flow->source_port);
	be_store(path + 10, 2, flow->destination_port);
	packet->way = engine_crc32(0, path, sizeof path);
	if (fabric->measures && fabric_telemetry_clear(fabric, at))
		return FABRIC_NONE;
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

/* Return a random number of Python's generator. */
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

static int64_t first_bytes(const struct fabric *fabric, const struct fabric_port *port, unsigned priority)
{
	return fabric->packets[port->queues[priority].first].wire;
}

/* Return the priority whose packet is sent next; `ready` has a bit for each ready priority. */
static unsigned pick_priority(const struct fabric *fabric, struct fabric_port *port, unsigned ready)
{
	unsigned strict = ready & port->strict, turn = port->turn;
	if (strict)
		return 31u - (unsigned)__builtin_clz(strict);
	while (!(ready >> turn & 1) || port->deficits[turn] < first_bytes(fabric, port, turn)) {
		turn = (turn + 1) % FABRIC_PRIORITIES;
		if (ready >> turn & 1)
			port->deficits[turn] += (int64_t)port->weights[turn] * FABRIC_QUANTUM;
	}
	port->turn = (uint8_t)turn;
	port->deficits[turn] -= first_bytes(fabric, port, turn);
	return turn;
}

/* Start to transmit the next packet that PFC does not stop. */
static void start_transmit(struct fabric *fabric, struct fabric_port *port)
{
	unsigned ready = port->filled & ~(unsigned)port->stopped;
	if (!ready)
		return;
	port->current = (uint8_t)pick_priority(fabric, port, ready);
	uint64_t bits = (uint64_t)first_bytes(fabric, port, port->current) * BIT_NS + port->rest;
	port->rest = bits % port->bits_s;
	port->busy = 1;
	fabric_at(fabric, fabric->now + bits / port->bits_s, port->free_actor);
}

void fabric_port_put(struct fabric *fabric, uint32_t at, uint32_t packet)
{
	struct fabric_port *port = &fabric->ports[at];
	unsigned priority = fabric->packets[packet].priority;
	uint64_t wire = fabric->packets[packet].wire;
	fabric_queue_append(fabric, &port->queues[priority], packet);
	port->filled |= (uint8_t)(1u << priority);
	port->waiting++;
	port->class_bytes[priority] += wire;
	port->queued_bytes += wire;
	if (port->queued_bytes > port->peak_bytes)
		port->peak_bytes = port->queued_bytes;
	if (!port->busy)
		start_transmit(fabric, port);
}

/* Handle the end of the transmission of the head packet. */
static void transmit_done(struct fabric *fabric, uint32_t at)
{
	struct fabric_port *port = &fabric->ports[at];
	unsigned priority = port->current;
	uint32_t number = fabric_queue_take(fabric, &port->queues[priority]);
	struct fabric_packet *packet = &fabric->packets[number];
	if (!port->queues[priority].count) {
		port->filled &= (uint8_t)~(1u << priority);
		port->deficits[priority] = 0;
	}
	port->waiting--;
	port->class_bytes[priority] -= packet->wire;
	port->queued_bytes -= packet->wire;
	port->sent++;
	port->sent_bytes += packet->wire;
	port->busy = 0;
	if (fabric->measures)
		fabric_telemetry_left(fabric, port, number);
	if (port->tapped && fabric->to->tap(fabric->self, at, packet))
		fabric->failed = 1;
	int lost = port->down || (port->draws && draw_number(fabric, port->draws) < port->loss);
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
	if (!port->busy)
		start_transmit(fabric, port);
}

/* Deliver the packet at the head of the wire to the other end. */
static void packet_arrived(struct fabric *fabric, struct fabric_port *port)
{
	uint32_t packet = fabric_queue_take(fabric, &port->wire);
	const struct fabric_port *there = &fabric->ports[port->peer];
	if (there->number == FABRIC_NONE)
		fabric_host_arrive(fabric, there->owner, packet);
	else
		fabric_switch_arrive(fabric, there->owner, packet, there->number);
}

/* Send a PFC frame. Frames of a priority alternate between stop and resume. */
void fabric_port_pause(struct fabric *fabric, uint32_t at, unsigned priority)
{
	struct fabric_port *port = &fabric->ports[at];
	for (unsigned i = 0; port->signal_actors == FABRIC_NONE && i < FABRIC_PRIORITIES; i++) {
		uint32_t actor = fabric_actor_add(fabric, FABRIC_PORT_SIGNAL, at * FABRIC_PRIORITIES + i);
		if (actor == FABRIC_NONE) {
			fabric->failed = 1;
			return;
		}
		if (i == FABRIC_PRIORITIES - 1)
			port->signal_actors = actor - i;
	}
	fabric_at(fabric, fabric->now + PAUSE_BYTES * BIT_NS / port->bits_s + port->delay_ns,
		  port->signal_actors + priority);
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

void fabric_port_stop(struct fabric *fabric, uint32_t at, unsigned priority, int stop)
{
	struct fabric_port *port = &fabric->ports[at];
	uint8_t before = port->stopped, bit = (uint8_t)(1u << priority);
	if (stop) {
		port->pauses += !(before & bit);
		port->stopped |= bit;
	} else {
		port->stopped &= (uint8_t)~bit;
	}
	if (!before != !port->stopped) {
		if (before)
			port->paused_ns += fabric->now - port->since_ns;
		port->since_ns = fabric->now;
		record_pause(fabric, port);
	}
	if (!stop && !port->busy)
		start_transmit(fabric, port);
}

static void pause_arrived(struct fabric *fabric, struct fabric_port *port, unsigned priority)
{
	int stop = !(port->go_on >> priority & 1);
	port->go_on ^= (uint8_t)(1u << priority);
	fabric_port_stop(fabric, port->peer, priority, stop);
}

/* ------------------------------------------------------------------ switches */

/* Spread a 32-bit hash: the finalizer of MurmurHash3, public domain. */
static uint32_t mix_bits(uint32_t value)
{
	value = (value ^ value >> 16) * 0x85EBCA6Bu;
	value = (value ^ value >> 13) * 0xC2B2AE35u;
	return value ^ value >> 16;
}

/* Return whether to mark a packet that joins a queue of this length. */
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

/* Return how many bytes of the shared buffer a priority of a link may use before PFC pauses it. */
static double pfc_threshold(const struct fabric_switch *owner)
{
	double xoff = (double)owner->xoff_bytes;
	if (owner->alpha == 0)
		return xoff;
	double share = owner->alpha * (double)(owner->buffer_bytes - owner->shared);
	return share < xoff ? share : xoff;
}

/* Charge a packet to the shared buffer, or to headroom; return whether there is room. */
static int admit_packet(struct fabric *fabric, struct fabric_switch *owner, const struct fabric_packet *packet,
			struct fabric_ingress *link, const struct fabric_port *out)
{
	unsigned priority = packet->priority;
	uint64_t size = packet->wire;
	int room = owner->shared + size <= owner->buffer_bytes;
	if (!(owner->lossless >> priority & 1)) {
		if (owner->alpha != 0 && (double)(out->class_bytes[priority] + size) >
						 owner->alpha * (double)(owner->buffer_bytes - owner->shared))
			room = 0;
		if (!room)
			return 0;
	} else if (!room || (double)(link->shared[priority] + size) > pfc_threshold(owner)) {
		if (link->headroom[priority] + size > link->headroom_bytes)
			return 0;
		link->headroom[priority] += size;
		owner->in_headroom += size;
		if (!(link->pausing >> priority & 1)) {
			link->pausing |= (uint8_t)(1u << priority);
			fabric_port_pause(fabric, link->port, priority);
		}
		return 1;
	}
	link->shared[priority] += size;
	owner->shared += size;
	return 1;
}

void fabric_switch_arrive(struct fabric *fabric, uint32_t at, uint32_t number, uint32_t ingress)
{
	struct fabric_switch *owner = &fabric->switches[at];
	struct fabric_packet *packet = &fabric->packets[number];
	const struct fabric_ways *ways = &owner->routes[packet->target];
	uint32_t way = 0;
	if (ways->count > 1)
		way = (owner->spray ? ++owner->turn : mix_bits(packet->way ^ owner->salt)) % ways->count;
	struct fabric_port *out = &fabric->ports[owner->ways[ways->first + way]];

	if (!admit_packet(fabric, owner, packet, &owner->links[ingress], out)) {
		owner->dropped++;
		fabric_packet_drop(fabric, number);
		return;
	}
	packet->ingress = (uint16_t)ingress;
	if (owner->shared + owner->in_headroom > owner->peak_bytes)
		owner->peak_bytes = owner->shared + owner->in_headroom;
	if (owner->kmax_bytes && packet->tclass & 3 && !packet->ce &&
	    marks_packet(fabric, owner, out->class_bytes[packet->priority])) {
		packet->ce = 1;
		out->marked++;
	}
	fabric_port_put(fabric, owner->ways[ways->first + way], number);
}

void fabric_switch_left(struct fabric *fabric, struct fabric_switch *owner, const struct fabric_packet *packet)
{
	struct fabric_ingress *link = &owner->links[packet->ingress];
	unsigned priority = packet->priority;
	uint64_t back = lesser(packet->wire, link->headroom[priority]); /* first: empty when the link resumes */
	link->headroom[priority] -= back;
	owner->in_headroom -= back;
	link->shared[priority] -= packet->wire - back;
	owner->shared -= packet->wire - back;
	if (link->pausing >> priority & 1 && !link->headroom[priority]) {
		double most = pfc_threshold(owner) - (double)(owner->xoff_bytes - owner->xon_bytes);
		if ((double)link->shared[priority] <= (most > 0 ? most : 0)) {
			link->pausing &= (uint8_t)~(1u << priority);
			fabric_port_pause(fabric, link->port, priority);
		}
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
			pause_arrived(fabric, &fabric->ports[actor.index / FABRIC_PRIORITIES],
				      actor.index % FABRIC_PRIORITIES);
			break;
		case FABRIC_HOST:
			fabric_host_act(fabric, actor.index);
			break;
		case FABRIC_TIMER:
			fabric_host_timed(fabric, actor.index);
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
