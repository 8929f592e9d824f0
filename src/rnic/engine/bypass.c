#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass.h"

#include "crc32.h"
#include "parts.h"
#include "reach.h"
#include "round.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TIMERS_PER_ROUND 64u
#define TIMERS_AT_LEAST_EVERY 256u /* rounds that took as much as one takes: runtime/loop.py */
#define MAX_SEGMENTS 64u

_Static_assert(BYPASS_NAME_BYTES == PUMP_NAME_BYTES, "socket addresses");
_Static_assert(sizeof(struct slot) <= BYPASS_BUFFERS_AT, "the record lies before the buffers");

_Static_assert(offsetof(struct slot, punt_unknown) - offsetof(struct slot, punt_short) ==
		       (PUNT_WAIT - PUNT_SHORT + 1) * sizeof(uint64_t),
	       "a count for each reason");
_Static_assert(offsetof(struct slot, punt_short) - offsetof(struct slot, event_0) == ENGINE_COUNTS * sizeof(uint64_t),
	       "a count for each event");

/* A queue pair with all that its pointers lead to. */
struct place {
	struct engine_qp qp;
	struct engine_cq send_cq, recv_cq;
	struct pump_path path;
};

struct bypass {
	struct bypass_setup setup;
	struct slot *slot;
	struct engine_port port;
	struct engine_device device;
	struct engine_segment segment;
	struct reach_own own;
	struct engine_reach *reach;
	struct place **places;
	struct pump_outlet outlet;
	struct pump_round *round;
	uint8_t *out;
	pthread_mutex_t mutex; /* among the program's own threads */
	int cancel; /* of the holder: whether it could be cancelled */
	int gone; /* nobody answers any more */
	uint32_t full; /* rounds in a row that found as much as one takes */
};

uint64_t bypass_now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

size_t bypass_shared_bytes(void)
{
	return BYPASS_BUFFERS_AT + (size_t)ROUND_SLOTS * ROUND_SLOT_BYTES;
}

static const struct device *root_of(const struct bypass *bypass)
{
	return (const struct device *)(const void *)bypass->setup.arena;
}

/* ------------------------------------------------------------------ making */

struct bypass *bypass_new(const struct bypass_setup *setup)
{
	struct bypass *bypass = calloc(1, sizeof *bypass);
	const struct device *root = (const struct device *)(const void *)setup->arena;
	const struct slot *slot = (const struct slot *)(const void *)setup->shared;

	if (!bypass)
		return NULL;
	bypass->setup = *setup;
	bypass->slot = (struct slot *)(void *)setup->shared;
	if (slot->layout != engine_layout_hash()) {
		free(bypass);
		return NULL;
	}
	bypass->reach = calloc(root->max_keys, sizeof *bypass->reach);
	bypass->places = calloc((size_t)1 << root->log_qps, sizeof *bypass->places);
	bypass->device.qps = calloc((size_t)1 << root->log_qps, sizeof *bypass->device.qps);
	bypass->round = calloc(1, sizeof *bypass->round);
	bypass->out = malloc(ROUND_OUT_BYTES);
	pthread_mutex_init(&bypass->mutex, NULL);
	if (!bypass->reach || !bypass->places || !bypass->device.qps || !bypass->round || !bypass->out) {
		bypass_free(bypass);
		return NULL;
	}
	bypass->own.pid = getpid();
	bypass->segment = (struct engine_segment){ &reach_own, &bypass->own };
	for (uint64_t i = 0; i < root->max_keys; i++)
		bypass->reach[i].segment = &bypass->segment;
	bypass->port = (struct engine_port){
		.keys = (const struct memory_key *)(const void *)(setup->arena + root->keys),
		.reach = bypass->reach,
		.key_count = root->max_keys,
		.crc = engine_crc32,
		.ack_every = slot->ack_every,
		.probe = slot->probe,
		.rq_almost_full = slot->rq_almost_full,
	};
	bypass->device.port = &bypass->port;
	engine_device_find(&bypass->device, setup->arena);
	bypass->outlet =
		(struct pump_outlet){ .fd = setup->fd, .ipv4 = setup->address_bytes == 4, .tclass = -1, .hop_limit = -1 };
	pump_round_init(bypass->round, &bypass->device, setup->fd, setup->shared + BYPASS_BUFFERS_AT, bypass->out);
	return bypass;
}

void bypass_free(struct bypass *bypass)
{
	if (bypass->places) {
		for (uint64_t i = 0; i < (uint64_t)1 << root_of(bypass)->log_qps; i++)
			free(bypass->places[i]);
	}
	pthread_mutex_destroy(&bypass->mutex);
	free(bypass->reach);
	free(bypass->places);
	free(bypass->device.qps);
	free(bypass->round);
	free(bypass->out);
	free(bypass);
}

/* ------------------------------------------------------------------ the lock */

static _Atomic uint64_t *word(uint64_t *field)
{
	return (_Atomic uint64_t *)(void *)field;
}

/* Whether the NIC process makes way. It holds the arena for a bounded time and asks for it again and again. */
static int take(struct bypass *bypass)
{
	if (atomic_load_explicit(word(&bypass->slot->wanted), memory_order_relaxed))
		return 0;
	atomic_store(word(&bypass->slot->taken), 1);
	if (!atomic_load(word(&bypass->slot->wanted)))
		return 1;
	atomic_store(word(&bypass->slot->taken), 0);
	return 0;
}

static void found(struct bypass *bypass);

void bypass_lock(struct bypass *bypass)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_mutex_lock(&bypass->mutex);
	bypass->cancel = before;
	while (!bypass->gone && !take(bypass))
		sched_yield();
	found(bypass);
}

int bypass_try(struct bypass *bypass)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	if (!pthread_mutex_trylock(&bypass->mutex)) {
		if (take(bypass)) {
			bypass->cancel = before;
			found(bypass);
			return 0;
		}
		pthread_mutex_unlock(&bypass->mutex);
	}
	pthread_setcancelstate(before, NULL);
	return -1;
}

void bypass_unlock(struct bypass *bypass)
{
	int before = bypass->cancel;

	atomic_store_explicit(word(&bypass->slot->taken), 0, memory_order_release);
	pthread_mutex_unlock(&bypass->mutex);
	pthread_setcancelstate(before, NULL);
}

int bypass_idle(const struct bypass *bypass)
{
	return bypass->gone || atomic_load_explicit(word(&bypass->slot->reference), memory_order_relaxed);
}

/* ------------------------------------------------------------------ where things lie */

/* Whether the engine knows such queue pairs (device/queue_pair.py, _take_executor). */
static int is_known(const uint8_t *qpc)
{
	uint64_t service = be_get(qpc, QPC_SERVTYPE), state = be_get(qpc, QPC_STATE);
	return (service == ST_RC || service == ST_UC) && (state == QP_STATE_RTR || state == QP_STATE_RTS ||
							   state == QP_STATE_SQD || state == QP_STATE_SQE);
}

static _Atomic uint32_t *block_at(const struct bypass *bypass, uint64_t block)
{
	return (_Atomic uint32_t *)(void *)(bypass->setup.blocks + (block << BLOCK_SHIFT));
}

/* A queue pair of the directory, or NULL where it is the reference's. */
static struct engine_qp *enroll(struct bypass *bypass, uint64_t slot, uint64_t at)
{
	uint8_t *arena = bypass->setup.arena;
	struct queue_pair *record = (struct queue_pair *)(void *)(arena + at);

	if (!at || !is_known(arena + record->context))
		return NULL;
	if (!bypass->places[slot])
		bypass->places[slot] = calloc(1, sizeof *bypass->places[slot]);
	if (!bypass->places[slot])
		return NULL;
	struct engine_qp *qp = &bypass->places[slot]->qp;
	qp->record = record;
	qp->qpc = arena + record->context;
	qp->sends = (struct send_slot *)(void *)(arena + record->sends);
	qp->pieces = (struct read_piece *)(void *)(arena + record->pieces);
	qp->replies = (struct reply *)(void *)(arena + record->replies);
	qp->resources = (struct resource *)(void *)(arena + record->resources);
	qp->scatters = (struct scatter *)(void *)(arena + record->scatters);
	qp->block = block_at(bypass, record->block);
	qp->found = 0;
	return qp;
}

/* Whoever held the arena before may have moved things. */
static void found(struct bypass *bypass)
{
	uint64_t changes = atomic_load_explicit(word(&bypass->slot->changes), memory_order_acquire);
	if (changes == bypass->device.changes)
		return;
	bypass->device.changes = changes;
	for (uint64_t i = 0; i < (uint64_t)1 << bypass->device.log_qps; i++)
		bypass->device.qps[i] = enroll(bypass, i, bypass->device.directory[i]);
}

/* A completion queue whose ring is memory of this program, by its number; NULL where it is none. */
static struct engine_cq *find_cq(const struct bypass *bypass, uint32_t number, struct engine_cq *cq)
{
	const struct device *root = root_of(bypass);
	uint64_t slot = number & (((uint64_t)1 << root->log_qps) - 1);
	struct completion_queue *record =
		(struct completion_queue *)(void *)(bypass->setup.arena + root->cqs + slot * sizeof *record);
	if (!record->start || record->lkey)
		return NULL;
	*cq = (struct engine_cq){
		.record = record,
		.ring = (uint8_t *)(uintptr_t)record->start,
		.entries = (uint64_t)1 << record->logsize,
		.block = block_at(bypass, record->usrpage),
	};
	return cq;
}

/* Where the packets of a queue pair go. */
static const void *find_route(struct bypass *bypass, struct engine_qp *qp, struct pump_path *path)
{
	const struct flow *flow = engine_record(&bypass->device.sched, qp->record->path);
	uint32_t bytes = flow->family == 4 ? 4 : 16;

	qp->flow.address_bytes = (uint16_t)bytes;
	memcpy(qp->flow.source, &flow->src_0, bytes);
	memcpy(qp->flow.destination, &flow->dst_0, bytes);
	qp->flow.source_port = (uint16_t)flow->sport;
	qp->flow.destination_port = (uint16_t)flow->dport;
	if (flow->sl || bytes != bypass->setup.address_bytes || flow->sport != bypass->setup.port || bytes != 4)
		return NULL; /* service levels, and the scopes of IPv6, are the link's */
	uint32_t segments = path->max_segments ? path->max_segments : MAX_SEGMENTS;
	*path = (struct pump_path){
		.outlet = &bypass->outlet,
		.name_bytes = sizeof(struct sockaddr_in),
		.max_segments = segments,
		.tclass = (int32_t)flow->tclass,
		.hop_limit = (int32_t)flow->hop_limit,
	};
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(qp->flow.destination_port) };
	memcpy(&to.sin_addr, &flow->dst_0, 4);
	memcpy(path->name, &to, sizeof to);
	return path;
}

static void find(struct bypass *bypass, uint64_t at)
{
	struct queue_pair *record = engine_record(&bypass->device.sched, at);
	uint64_t slot = record->number & (((uint64_t)1 << bypass->device.log_qps) - 1);
	struct place *place = bypass->places[slot];
	struct engine_qp *qp = &place->qp;

	qp->send_slots = record->sq_entries;
	qp->signal_all = record->signal_all;
	qp->sq = be_get(qp->qpc, QPC_SND_WQE_BASE_LKEY) ? NULL : (const uint8_t *)(uintptr_t)record->sq_base;
	qp->sq_bytes = (record->sq_entries << record->sq_shift) + record->sq_entries * record->sq_slab_bytes;
	qp->srq = NULL;
	qp->srq_block = NULL;
	if (record->srq_record) {
		qp->srq = engine_record(&bypass->device.sched, record->srq_record);
		qp->srq_block = block_at(bypass, qp->srq->block);
		qp->rq = (const uint8_t *)(uintptr_t)qp->srq->base;
		qp->rq_bytes = qp->srq->entries * (qp->srq->stride + SRQ_ORDER_BYTES);
	} else {
		int keyed = be_get(qp->qpc, QPC_RCV_WQE_BASE_LKEY) != 0;
		qp->rq = keyed ? NULL : (const uint8_t *)(uintptr_t)record->rq_base;
		qp->rq_bytes = record->rq_entries * record->rq_stride;
	}
	qp->send_cqn = (uint32_t)be_get(qp->qpc, QPC_CQN_SND);
	qp->recv_cqn = (uint32_t)be_get(qp->qpc, QPC_CQN_RCV);
	qp->send_cq = find_cq(bypass, qp->send_cqn, &place->send_cq);
	qp->recv_cq = find_cq(bypass, qp->recv_cqn, &place->recv_cq);
	qp->route = record->path ? find_route(bypass, qp, &place->path) : NULL;
	qp->found = bypass->device.changes;
}

/* ------------------------------------------------------------------ what is left to the NIC process */

/* Ask for it, counted by `reason`. */
static void punt(struct bypass *bypass, const struct bypass_punt *punted, struct bypass_answer *answer, uint64_t *reason)
{
	*answer = (struct bypass_answer){ 0 };
	++*reason;
	if (bypass->gone)
		return;
	if (bypass->setup.punt(bypass->setup.self, punted, answer))
		bypass->gone = 1;
	else
		found(bypass);
}

static uint64_t *reason_of(struct bypass *bypass, uint32_t end)
{
	struct slot *slot = bypass->slot;
	return end >= PUNT_SHORT && end <= PUNT_WAIT ? &slot->punt_short + (end - PUNT_SHORT) : &slot->punt_unknown;
}

static void notify(struct bypass *bypass, const struct engine_told *told)
{
	struct bypass_answer answer;
	struct bypass_punt about = { .kind = BYPASS_NOTIFY, .qp = told->qp, .effects = told->effects };
	punt(bypass, &about, &answer, &bypass->slot->punt_notify);
}

/* The rest of a receive buffer; who sent it may be known from then on. */
static void leave_packets(struct bypass *bypass, const struct engine_told *told)
{
	struct pump_round *round = bypass->round;
	const struct pump_slot *slot = &round->slots[round->slot];
	struct bypass_answer answer;
	struct bypass_punt about = {
		.kind = BYPASS_PACKET,
		.buffer = round->slot,
		.size = (uint32_t)slot->size,
		.at = (uint32_t)round->at,
		.segment = slot->segment,
		.name_bytes = slot->name_bytes,
		.tclass = slot->tclass,
		.hop_limit = slot->hop_limit,
		.flow_label = slot->flow_label,
	};
	memcpy(about.name, slot->name, sizeof about.name);
	round->slot++;
	round->at = 0;
	punt(bypass, &about, &answer, reason_of(bypass, told->end));
	if (!answer.settled) {
		pump_round_forget(round, slot->name, slot->name_bytes);
	} else if (slot->name_bytes == sizeof(struct sockaddr_in)) {
		struct engine_flow flow = { .address_bytes = 4, .destination_port = (uint16_t)bypass->setup.port };
		struct sockaddr_in from;
		memcpy(&from, slot->name, sizeof from);
		memcpy(flow.source, &from.sin_addr, 4);
		memcpy(flow.destination, bypass->setup.address, 4);
		flow.source_port = ntohs(from.sin_port);
		pump_round_know(round, slot->name, slot->name_bytes, &flow);
	}
}

static void leave_turn(struct bypass *bypass, const struct engine_told *told)
{
	struct engine_sending *sending = &bypass->round->sending;
	struct bypass_answer answer;
	struct bypass_punt about = {
		.kind = BYPASS_TURN,
		.qp = sending->qp,
		.limit = sending->limit,
		.count = sending->count,
		.bytes = sending->bytes,
		.room = sending->room,
		.step = sending->step,
	};
	if (told->effects)
		notify(bypass, told);
	punt(bypass, &about, &answer, reason_of(bypass, told->end));
	if (answer.polite)
		sending->polite[sending->later++] = sending->qp;
	sending->sent += answer.count ? answer.count : 1;
	bypass->device.counts.tx_packets += answer.count;
	sending->qp = 0;
}

/* Do what a round stopped for; 0, or -1 where nobody answers. */
static int stopped(struct bypass *bypass, const struct engine_told *told)
{
	switch (told->stop) {
	case STOP_PACKET:
		leave_packets(bypass, told);
		break;
	case STOP_TURN:
		leave_turn(bypass, told);
		break;
	case STOP_FIND:
		find(bypass, told->qp);
		break;
	default:
		notify(bypass, told);
	}
	return bypass->gone ? -1 : 0;
}

/* ------------------------------------------------------------------ rounds */

/* What C counted is for all to see. */
static void count(struct bypass *bypass)
{
	struct pump_round *round = bypass->round;
	struct engine_counts *counts = &bypass->device.counts;
	struct slot *slot = bypass->slot;

	slot->rx_packets += counts->rx_packets;
	slot->tx_packets += counts->tx_packets;
	for (unsigned i = 0; i < ENGINE_COUNTS; i++)
		(&slot->event_0)[i] += counts->events[i];
	slot->rx_bytes += round->rx_bytes;
	slot->tx_bytes += round->tx_bytes;
	slot->rx_socket_error += round->socket_errors;
	slot->gso_refused += round->counts.gso_refused;
	slot->drop_tx_too_long += round->counts.drop_tx_too_long;
	slot->drop_tx_unreachable += round->counts.drop_tx_unreachable;
	slot->drop_tx_blocked += round->counts.drop_tx_blocked;
	slot->drop_tx_error += round->counts.drop_tx_error;
	memset(counts, 0, sizeof *counts);
	memset(&round->counts, 0, sizeof round->counts);
	round->rx_bytes = round->tx_bytes = round->too_short = round->socket_errors = 0;
	slot->rounds++;
}

static void send_all(struct bypass *bypass, uint64_t now)
{
	struct engine_told told;
	do {
		pump_round_send(bypass->round, now, ROUND_BUDGET, &told);
	} while (told.stop != STOP_DONE && !stopped(bypass, &told));
}

void bypass_ring(struct bypass *bypass, uint32_t number, uint32_t block)
{
	struct engine_qp *qp = number ? bypass->device.qps[number & (((uint64_t)1 << bypass->device.log_qps) - 1)] : NULL;

	if (bypass->gone)
		return;
	if (!qp || qp->record->number != number || engine_port_ring(&bypass->device, qp)) {
		struct bypass_answer answer;
		struct bypass_punt about = { .kind = BYPASS_DOORBELL, .qp = block };
		punt(bypass, &about, &answer, &bypass->slot->punt_doorbell);
	}
	if (!bypass->gone && bypass->device.sched.turns->count)
		send_all(bypass, bypass_now());
	count(bypass);
}

static int handle_timers(struct bypass *bypass, uint64_t now)
{
	uint64_t at, most = TIMERS_PER_ROUND;

	if (engine_port_deadline(&bypass->device) > now)
		return 0;
	while (!bypass->gone && (at = engine_port_due(&bypass->device, now, &most))) {
		struct bypass_answer answer;
		struct bypass_punt about = { .kind = BYPASS_TIMER, .qp = at };
		punt(bypass, &about, &answer, &bypass->slot->punt_timer);
	}
	if (!bypass->gone && bypass->device.sched.turns->count)
		send_all(bypass, now);
	return 1;
}

int bypass_round(struct bypass *bypass)
{
	struct pump_round *round = bypass->round;
	struct engine_told told;
	uint64_t now;
	int did;

	if (bypass->gone)
		return 0;
	now = bypass_now();
	do {
		pump_round(round, now, ROUND_BUDGET, &told);
	} while (told.stop != STOP_DONE && !stopped(bypass, &told));
	did = round->came || round->sent;
	/* what arrived in time is not late since nobody looked: nothing is overdue before all is read */
	bypass->full = round->came >= ROUND_SLOTS ? bypass->full + 1 : 0;
	if (bypass->full % TIMERS_AT_LEAST_EVERY == 0)
		did |= handle_timers(bypass, now);
	count(bypass);
	return did;
}

uint64_t bypass_deadline(const struct bypass *bypass)
{
	if (bypass->gone)
		return UINT64_MAX;
	return bypass->device.sched.turns->count ? 0 : engine_port_deadline(&bypass->device);
}
#endif
