/* NICs at the edge of a fabric: rounds of their devices in virtual time. sim/host.py and runtime/rounds.py are the
 * reference. */
#include "fabric.h"
#include "queue_pair/arithmetic.h"
#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/icrc.h"

#define WRITE_BACK_MASK 0x3FFu

static struct fabric_host *host_at(struct fabric *fabric, uint32_t at)
{
	return &fabric->hosts[at];
}

/* Note a call to Python, which may have changed anything. */
static void note_call(struct fabric *fabric, uint32_t at, int result)
{
	fabric->calls++;
	host_at(fabric, at)->told = host_at(fabric, at)->stale = 1;
	if (result)
		fabric->failed = 1;
}

/* Ask Python for work of this host, if there may be new work. */
static void ask_for_work(struct fabric *fabric, uint32_t at)
{
	struct fabric_host *host = host_at(fabric, at);
	if (!host->stale)
		return;
	if (fabric->to->look(fabric->self, at))
		fabric->failed = 1;
	host->stale = 0;
}

static int has_work(struct fabric *fabric, uint32_t at)
{
	ask_for_work(fabric, at);
	const struct fabric_host *host = host_at(fabric, at);
	return host->device->sched.scheduler->count || host->owes || host->words.count;
}

void fabric_host_wake(struct fabric *fabric, uint32_t at, uint64_t time)
{
	struct fabric_host *host = host_at(fabric, at);
	if (time < host->due) {
		host->due = time;
		fabric_at(fabric, time, host->actor);
	}
}

void fabric_host_arrive(struct fabric *fabric, uint32_t at, uint32_t packet)
{
	fabric_queue_append(fabric, &host_at(fabric, at)->inbox, packet);
	fabric_host_wake(fabric, at, fabric->now);
}

/* Return whether the NIC should make packets; a priority stopped by PFC does not hold back others. */
static int has_room(const struct fabric *fabric, const struct fabric_host *host)
{
	const struct fabric_port *port = &fabric->ports[host->port];
	uint32_t going = port->waiting;
	if (port->stopped && host->priorities & (host->priorities - 1))
		for (unsigned i = 0; i < FABRIC_PRIORITIES; i++)
			if (port->stopped >> i & 1)
				going -= port->queues[i].count;
	return going < FABRIC_ROOM;
}

void fabric_host_left(struct fabric *fabric, uint32_t at)
{
	if (has_room(fabric, host_at(fabric, at)) && has_work(fabric, at))
		fabric_host_wake(fabric, at, fabric->now);
}

static void schedule_write_back(struct fabric *fabric, struct fabric_host *host)
{
	if (host->write_back_at == NEVER)
		host->write_back_at = fabric->now + POLL_WRITE_BACK_NS;
}

/* ------------------------------------------------------------------ sending */

uint8_t fabric_tclass(const struct fabric_host *host, const struct engine_qp *qp)
{
	const struct flow *path = engine_record(&host->device->sched, qp->record->path);
	return (uint8_t)path->tclass;
}

/* Put new packets on the wire, or append them to the port's queues. */
static int carry_packets(struct fabric *fabric, uint32_t at)
{
	struct engine_out *out = &fabric->out;
	struct fabric_host *host = host_at(fabric, at);
	int sent = 0;
	for (uint32_t i = 0; i < out->count; i++) {
		const struct engine_burst *burst = &out->bursts[i];
		const struct engine_qp *qp = burst->route;
		uint8_t tclass = fabric_tclass(host, qp);
		for (uint64_t done = 0; done < burst->length; done += burst->segment) {
			uint64_t length = lesser(burst->segment, burst->length - done);
			uint32_t packet = fabric_packet_make(fabric, out->bytes + burst->offset + done, length,
							     &qp->flow, tclass);
			if (packet == FABRIC_NONE) {
				fabric->failed = 1;
				break;
			}
			host->tx_bytes += length;
			if (fabric->measures)
				fabric_telemetry_begin(fabric, at, packet, qp->record->number);
			fabric_port_put(fabric, host->port, packet);
			sent = 1;
		}
	}
	out->used = out->count = out->open = 0;
	if (sent)
		schedule_write_back(fabric, host);
	return sent;
}

/* Mark the pointers of a bare flow's queue pair as valid again, since they do not move. Returns whether it is such a
 * queue pair. */
static int revalidate_bare_qp(const struct fabric_host *host, const struct engine_stop_info *told)
{
	const struct engine_device *device = host->device;
	if (told->stop != STOP_MAP_QP || !host->bare)
		return 0;
	const struct queue_pair *record = engine_record(&device->sched, told->qp);
	uint64_t slot = record->number & (((uint64_t)1 << device->log_qps) - 1);
	if (!host->bare[slot])
		return 0;
	device->qps[slot]->found = device->changes;
	return 1;
}

/* Send packets up to a budget. Returns whether there were any. */
static int transmit_packets(struct fabric *fabric, uint32_t at, uint64_t budget)
{
	struct engine_stop_info told;
	int sent = 0;

	host_at(fabric, at)->silent = 0;
	ask_for_work(fabric, at);
	struct fabric_host *host = host_at(fabric, at);
	if (host->owes || !(++host->turns & WRITE_BACK_MASK))
		note_call(fabric, at, fabric->to->prepare(fabric->self, at, &sent));
	while (host->words.count) {
		fabric_port_put(fabric, host->port, fabric_queue_take(fabric, &host->words));
		host->device->counts.tx_packets++;
		sent = 1;
	}
	for (;;) {
		engine_device_send(host->device, fabric->now, budget, &fabric->out, &fabric->sending, &told);
		sent |= carry_packets(fabric, at);
		if (told.stop == STOP_DONE || fabric->failed)
			break;
		if (told.stop == STOP_PUNT_TURN) {
			if (told.effects)
				note_call(fabric, at, fabric->to->told(fabric->self, at, &told));
			uint64_t before = fabric->ports[host->port].sent + fabric->ports[host->port].waiting;
			note_call(fabric, at, fabric->to->turn(fabric->self, at, &told));
			sent |= before != fabric->ports[host->port].sent + fabric->ports[host->port].waiting;
		} else if (told.stop != STOP_OUT_FULL && !revalidate_bare_qp(host, &told)) {
			note_call(fabric, at, fabric->to->told(fabric->self, at, &told));
		}
	}
	engine_device_sent(host->device, &fabric->sending);
	return sent;
}

/* ------------------------------------------------------------------ receiving */

/* Return the record of the bare flow's queue pair that a packet is for, or 0. */
static uint64_t bare_record(const struct fabric_host *host, const struct fabric_packet *packet)
{
	const struct engine_device *device = host->device;
	uint64_t number = be_load(packet->header + DQPN_AT, 3), slot = number & (((uint64_t)1 << device->log_qps) - 1);
	if (!host->bare || !host->bare[slot])
		return 0;
	const struct queue_pair *record = engine_record(&device->sched, device->directory[slot]);
	return record->number == number ? device->directory[slot] : 0;
}

static void take_packet(struct fabric *fabric, uint32_t at, uint32_t number)
{
	struct fabric_host *host = host_at(fabric, at);
	const struct fabric_packet *packet = &fabric->packets[number];
	struct engine_stop_info told = { .stop = STOP_PUNT_PACKET };
	struct engine_meta meta = { .flow = { .source_port = packet->source_port,
					      .destination_port = packet->target_port,
					      .address_bytes = 4 },
				    .frag = DONT_FRAGMENT };
	size_t length = packet->length, taken = 0;
	uint64_t bare = bare_record(host, packet);

	if (fabric->measures)
		fabric_telemetry_arrive(fabric, at, number);
	if (bare && packet->header[0] == BTH_CNP) {
		engine_device_on_cnp(host->device, bare, fabric->now);
		host->device->counts.rx_packets++;
		taken = length;
	} else if (bare || !packet->ce) {
		if (packet->ce)
			engine_device_on_mark(host->device, bare, fabric->now);
		be_store(meta.flow.source, 4, FABRIC_NET + 1 + packet->source);
		be_store(meta.flow.destination, 4, FABRIC_NET + 1 + packet->target);
		memcpy(fabric->scratch, packet->header, packet->header_bytes);
		for (;;) {
			taken += engine_device_receive(host->device, fabric->scratch, length, length, taken, &meta,
						       fabric->now, &told);
			if ((told.stop != STOP_NOTIFY && told.stop != STOP_MAP_QP) || fabric->failed)
				break;
			if (revalidate_bare_qp(host, &told))
				continue;
			note_call(fabric, at, fabric->to->told(fabric->self, at, &told));
		}
	}
	if (told.stop == STOP_PUNT_PACKET && taken < length) {
		note_call(fabric, at, fabric->to->packet(fabric->self, at, packet));
	} else {
		host->rx_bytes += length;
		schedule_write_back(fabric, host);
	}
	fabric->arrived = NULL;
	fabric_packet_drop(fabric, number);
}

/* ------------------------------------------------------------------ rounds */

static uint64_t next_deadline(struct fabric *fabric, uint32_t at)
{
	const struct fabric_host *host = host_at(fabric, at);
	uint64_t due = engine_device_deadline(host->device);
	return host->has_qps ? lesser(due, host->write_back_at) : due;
}

static void handle_timers(struct fabric *fabric, uint32_t at)
{
	struct fabric_host *host = host_at(fabric, at);
	uint64_t left = POLL_TIMERS_PER_CALL;
	while (left && !fabric->failed) {
		uint64_t record = engine_device_due(host->device, fabric->now, &left);
		if (!record)
			break;
		note_call(fabric, at, fabric->to->timer(fabric->self, at, record));
	}
	if (host->write_back_at <= fabric->now) {
		host->write_back_at = NEVER;
		note_call(fabric, at, fabric->to->write_back(fabric->self, at));
	}
}

/* Receive packets, or send if there are none. Returns whether there were any. */
static int round_of(struct fabric *fabric, uint32_t at)
{
	struct fabric_host *host = host_at(fabric, at);
	uint64_t budget = has_room(fabric, host) ? fabric->burst : 0;
	uint32_t came = 0;
	int did = 0;

	if (host->silent >= POLL_REPLIES_AT_LEAST_EVERY)
		did = transmit_packets(fabric, at, budget);
	for (; came < POLL_RECEIVE_LIMIT && host->inbox.count; came++)
		take_packet(fabric, at, fabric_queue_take(fabric, &host->inbox));
	if (came) {
		host->silent++;
		did = 1;
	} else if (has_work(fabric, at)) {
		did = transmit_packets(fabric, at, budget);
	}
	host->full_rounds = came >= POLL_RECEIVE_LIMIT ? host->full_rounds + 1 : 0;
	if (host->full_rounds % POLL_TIMERS_AT_LEAST_EVERY == 0 && next_deadline(fabric, at) <= fabric->now) {
		handle_timers(fabric, at);
		transmit_packets(fabric, at, budget);
		did = 1;
	}
	return did;
}

static void arm_timer(struct fabric *fabric, struct fabric_host *host, uint64_t time)
{
	if (time < host->timer) {
		host->timer = time;
		fabric_at(fabric, time, host->timer_actor);
	}
}

static void serve_host(struct fabric *fabric, uint32_t at)
{
	struct fabric_host *host = host_at(fabric, at);
	uint32_t round;

	for (round = 0; round < FABRIC_ROUNDS && !fabric->failed; round++)
		if (!round_of(fabric, at))
			break;
	if (round == FABRIC_ROUNDS)
		fabric_host_wake(fabric, at, fabric->now + 1);
	if (host->told || !host->cq || host->cq->tail != host->cq_tail) {
		note_call(fabric, at, fabric->to->after(fabric->self, at));
		host->told = 0;
		if (host->cq)
			host->cq_tail = host->cq->tail;
	}
	ask_for_work(fabric, at);
	uint64_t due = next_deadline(fabric, at);
	if (due != NEVER) {
		host->deadline = greater(due, fabric->now + 1);
		arm_timer(fabric, host, host->deadline);
	}
}

void fabric_host_act(struct fabric *fabric, uint32_t at)
{
	struct fabric_host *host = host_at(fabric, at);
	if (host->due > fabric->now)
		return; /* an earlier wake-up has done this */
	host->due = NEVER;
	serve_host(fabric, at);
}

void fabric_host_timed(struct fabric *fabric, uint32_t at)
{
	struct fabric_host *host = host_at(fabric, at);
	if (host->timer != fabric->now)
		return; /* it was armed for an earlier time */
	host->timer = NEVER;
	if (host->deadline > fabric->now)
		arm_timer(fabric, host, host->deadline);
	else
		serve_host(fabric, at);
}
