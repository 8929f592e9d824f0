#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass.h"

#include "crc32.h"
#include "guard.h"
#include "hairpin.h"
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
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TIMERS_PER_ROUND 64u
#define MAX_SEGMENTS 64u
#define DATAGRAM_HOP_LIMIT 64u /* where an entry says none: device/paths.py */
#define TRIES 500u /* to enter, some ten microseconds in all */
#define LOOKS_EVERY 1024u /* tries to take the arena: whether there still is a NIC process */
#define PHASE_WORD 3u /* of an entry */
#define DESK_BYTES 65536u
#define AHEAD_BYTES ((size_t)ENGINE_AHEAD * ENGINE_AHEAD_BYTES)
#define OWN_BYTES (DESK_BYTES + AHEAD_BYTES + (size_t)ROUND_OUT_BYTES)
/* Who answers each message with one of its own has its ACKs leave with those: for so long they are kept back, times
 * the setup's `slow`, longer where who took the message has to give the core to who answers it, */
#define HOLD_NS 12000u
#define HOLD_ASLEEP_NS 60000u
/* if it has sent anything this lately. */
#define TALKS_NS 20000000u
/* After so many messages in a row that were answered the next answer is expected. */
#define ANSWERS_LEAST 8u

_Static_assert(BYPASS_NAME_BYTES == PUMP_NAME_BYTES, "socket addresses");
_Static_assert(BYPASS_COOKIE_BYTES == HAIRPIN_COOKIE_BYTES, "cookies");
_Static_assert((int)BYPASS_NOTIFY_SEND == (int)EFFECT_NOTIFY_SEND && (int)BYPASS_NOTIFY_RECV == (int)EFFECT_NOTIFY_RECV,
	       "effects");
_Static_assert(sizeof(struct slot) <= SLOT_BUFFERS_AT, "the record lies before the buffers");

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
	struct leads *leads; /* of one that sends datagrams */
	struct hairpin_lane lane; /* of one whose peer is a program of the same device */
};

/* Where datagrams went lately. */
struct leads {
	struct engine_destination destinations[ENGINE_DESTINATIONS];
	struct pump_path paths[ENGINE_DESTINATIONS];
};

struct bypass {
	struct bypass_setup setup;
	struct slot *slot;
	struct engine_port port;
	struct engine_device device;
	struct engine_segment segment;
	struct reach_own own;
	struct engine_ahead ahead;
	struct engine_heads heads[ENGINE_HEADS];
	struct engine_reach *reach;
	struct place **places;
	struct pump_outlet outlet;
	struct pump_round *round;
	struct hairpin *hairpin; /* NULL for who did not ask for it */
	uint8_t *out;
	pthread_mutex_t mutex; /* among the program's own threads */
	uint64_t posted_ns, came_ns; /* when the program sent last, when packets came last, */
	uint64_t hold_ns; /* and how long they may wait for an answer */
	uint32_t answers; /* messages of the program's in a row before whose next one came a message from elsewhere, */
	int answered; /* and whether one came since the last */
	int cancel; /* of the holder: whether it could be cancelled */
	int guarded; /* faults are caught: the program's memory is copied without system calls */
	int gone; /* nobody answers any more */
	int timed; /* deadlines were handled */
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
	return SLOT_BUFFERS_AT + (size_t)ROUND_RECEIVE_LIMIT * ROUND_BUFFER_BYTES;
}

size_t bypass_budget_bytes(void)
{
	return BUDGET_BYTES;
}

static const struct device *root_of(const struct bypass *bypass)
{
	return (const struct device *)(const void *)bypass->setup.arena;
}

/* ------------------------------------------------------------------ making */

/* Memory that packets are made in, and the desk of reach_own: a file's, from which the kernel copies without a fault. */
static int lay_out(struct bypass *bypass)
{
	struct reach_mapping *files = bypass->own.files;
	int fd = memfd_create("rnic packets", MFD_CLOEXEC);
	uint8_t *base = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, OWN_BYTES))
		base = mmap(NULL, OWN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	madvise(base, OWN_BYTES, MADV_DONTFORK);
	files[0] = (struct reach_mapping){ base, OWN_BYTES, fd };
	files[1] = (struct reach_mapping){ bypass->setup.shared, bypass_shared_bytes(), bypass->setup.shared_fd };
	bypass->own.desk = base;
	bypass->own.desk_bytes = DESK_BYTES;
	bypass->ahead.desk = base + DESK_BYTES;
	bypass->out = base + DESK_BYTES + AHEAD_BYTES;
	return 0;
}

struct bypass *bypass_new(const struct bypass_setup *setup)
{
	struct bypass *bypass = calloc(1, sizeof *bypass);
	const struct device *root = (const struct device *)(const void *)setup->arena;
	const struct slot *slot = (const struct slot *)(const void *)setup->shared;

	if (!bypass)
		return NULL;
	bypass->setup = *setup;
	bypass->slot = (struct slot *)(void *)setup->shared;
	if (slot->layout != engine_layout_hash() || setup->slot >= BUDGET_SLOTS) {
		free(bypass);
		return NULL;
	}
	bypass->reach = calloc(root->max_keys, sizeof *bypass->reach);
	bypass->places = calloc((size_t)1 << root->log_qps, sizeof *bypass->places);
	bypass->device.qps = calloc((size_t)1 << root->log_qps, sizeof *bypass->device.qps);
	bypass->round = calloc(1, sizeof *bypass->round);
	pthread_mutex_init(&bypass->mutex, NULL);
	if (!bypass->reach || !bypass->places || !bypass->device.qps || !bypass->round || lay_out(bypass)) {
		bypass_free(bypass);
		return NULL;
	}
	bypass->own.pid = getpid();
	bypass->guarded = !guard_install();
	bypass->segment = (struct engine_segment){ bypass->guarded ? &reach_guarded : &reach_own, &bypass->own };
	for (uint64_t i = 0; i < root->max_keys; i++)
		bypass->reach[i].segment = &bypass->segment;
	bypass->port = (struct engine_port){
		.keys = (const struct memory_key *)(const void *)(setup->arena + root->keys),
		.reach = bypass->reach,
		.key_count = root->max_keys,
		.crc = engine_crc32,
		.crc_copy = engine_crc32_copy,
		.ahead = bypass->guarded ? NULL : &bypass->ahead,
		.heads = bypass->heads,
		.ack_every = slot->ack_every,
		.probe = slot->probe,
		.rq_almost_full = slot->rq_almost_full,
	};
	bypass->device.port = &bypass->port;
	bypass->device.joins = 1;
	engine_device_find(&bypass->device, setup->arena);
	bypass->device.sched.budget = setup->budget;
	bypass->device.sched.slot = setup->slot;
	bypass->outlet =
		(struct pump_outlet){ .fd = setup->fd, .ipv4 = setup->address_bytes == 4, .tclass = -1, .hop_limit = -1 };
	pump_round_init(bypass->round, &bypass->device, setup->fd, setup->shared + SLOT_BUFFERS_AT, bypass->out);
	return bypass;
}

static void forget(struct place *place)
{
	if (place)
		free(place->leads);
	free(place);
}

void bypass_free(struct bypass *bypass)
{
	if (bypass->places) {
		for (uint64_t i = 0; i < (uint64_t)1 << root_of(bypass)->log_qps; i++)
			forget(bypass->places[i]);
	}
	if (bypass->guarded)
		guard_remove();
	hairpin_free(bypass->hairpin);
	pthread_mutex_destroy(&bypass->mutex);
	free(bypass->reach);
	free(bypass->places);
	free(bypass->device.qps);
	free(bypass->round);
	if (bypass->out) {
		munmap(bypass->own.files[0].base, OWN_BYTES);
		close(bypass->own.files[0].fd);
	}
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

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* A round is over soon, and who sleeps for it may wake on the core of another that polls: for some time it is waited for. */
static void enter(struct bypass *bypass)
{
	for (unsigned tried = 0; tried < TRIES; tried++) {
		if (!pthread_mutex_trylock(&bypass->mutex))
			return;
		relax();
	}
	pthread_mutex_lock(&bypass->mutex);
}

void bypass_lock(struct bypass *bypass)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	enter(bypass);
	bypass->cancel = before;
	for (unsigned tried = 1; !bypass->gone && !take(bypass); tried++) {
		sched_yield();
		if (tried % LOOKS_EVERY == 0 && bypass->setup.is_gone(bypass->setup.self))
			bypass->gone = 1; /* it died with the arena in its hands */
	}
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

int bypass_is_taken(const struct bypass *bypass)
{
	return atomic_load_explicit(word(&bypass->slot->taken), memory_order_relaxed) != 0;
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
	return (service == ST_RC || service == ST_UC || service == ST_UD) && (state == QP_STATE_RTR || state == QP_STATE_RTS ||
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

	if (!at || !is_known(arena + record->context)) {
		if (bypass->places[slot]) /* what a lane remembers is of a connection that is over */
			bypass->places[slot]->lane = (struct hairpin_lane){ 0 };
		return NULL;
	}
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

static void lead(struct bypass *bypass, struct pump_path *path, const struct engine_flow *flow, uint64_t flow_label,
		 uint64_t tclass, uint64_t hop_limit, uint32_t max_segments)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(flow->destination_port) };
	struct sockaddr_in6 to6 = { .sin6_family = AF_INET6, .sin6_port = htons(flow->destination_port) };

	*path = (struct pump_path){
		.outlet = &bypass->outlet,
		.max_segments = max_segments,
		.tclass = (int32_t)tclass,
		.hop_limit = (int32_t)hop_limit,
	};
	if (flow->address_bytes == 4) {
		memcpy(&to.sin_addr, flow->destination, 4);
		path->name_bytes = sizeof to;
		memcpy(path->name, &to, sizeof to);
	} else {
		memcpy(&to6.sin6_addr, flow->destination, 16);
		to6.sin6_flowinfo = htonl((uint32_t)flow_label);
		path->name_bytes = sizeof to6;
		memcpy(path->name, &to6, sizeof to6);
	}
}

/* Whether an address is one host's, and no interface has to be named with it: groups are the reference's, scopes too. */
static int is_plain(const uint8_t *address, uint32_t bytes)
{
	static const uint8_t nobody[16];

	if (bytes == 4)
		return address[0] && address[0] < 224;
	return memcmp(address, nobody, sizeof nobody) && address[0] != 0xFF && (address[0] != 0xFE || (address[1] & 0xC0) != 0x80);
}

/* Where a packet came from, by the sender's raw socket address; 0, or -1 for none that the device's packets have. */
static int come_from(const struct bypass *bypass, const uint8_t *name, uint32_t name_bytes, struct engine_flow *flow)
{
	struct sockaddr_in from;
	struct sockaddr_in6 from6;
	uint32_t bytes = bypass->setup.address_bytes;

	*flow = (struct engine_flow){ .address_bytes = (uint16_t)bytes, .destination_port = (uint16_t)bypass->setup.port };
	memcpy(flow->destination, bypass->setup.address, bytes);
	if (bytes == 4 && name_bytes == sizeof from) {
		memcpy(&from, name, sizeof from);
		memcpy(flow->source, &from.sin_addr, 4);
		flow->source_port = ntohs(from.sin_port);
	} else if (bytes == 16 && name_bytes == sizeof from6) {
		memcpy(&from6, name, sizeof from6);
		memcpy(flow->source, &from6.sin6_addr, 16);
		flow->source_port = ntohs(from6.sin6_port);
	} else {
		return -1;
	}
	return 0;
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
	if (flow->sl || bytes != bypass->setup.address_bytes || flow->sport != bypass->setup.port ||
	    !is_plain(qp->flow.destination, bytes))
		return NULL; /* service levels, and the scopes of IPv6, are the link's */
	uint32_t segments = path->max_segments ? path->max_segments : MAX_SEGMENTS;
	lead(bypass, path, &qp->flow, flow->flow_label, flow->tclass, flow->hop_limit, segments);
	return path;
}

/* The destination that a queue pair's next send entry names is known from now on (device/paths.py, datagram): 0, or -1
 * where it is the reference's, as groups and addresses of the other family are. */
static int learn(struct bypass *bypass, struct place *place)
{
	static const uint8_t mapped[12] = { [10] = 0xFF, [11] = 0xFF };
	struct engine_qp *qp = &place->qp;
	const struct queue_pair *record = qp->record;
	uint64_t index = record->fetch_index;

	if (record->service != SERVICE_UD || index >= record->sq_entries || !engine_ring_reached(qp))
		return -1;
	const uint8_t *raw = qp->sq + (index << record->sq_shift), *gid = raw + 40;
	const struct send_slot slot = { .entry_2 = le_load(raw + 16, 8), .entry_7 = le_load(raw + 56, 8) };
	const uint64_t words[2] = { le_load(gid, 8), le_load(gid + 8, 8) };
	uint32_t bytes = memcmp(gid, mapped, sizeof mapped) ? 16 : 4;
	const uint8_t *address = bytes == 4 ? gid + sizeof mapped : gid;
	if (bytes != bypass->setup.address_bytes || !is_plain(address, bytes) || entry_get(&slot, SQE_UD_SL))
		return -1;
	if (!place->leads)
		place->leads = calloc(1, sizeof *place->leads);
	if (!place->leads)
		return -1;
	qp->destinations = place->leads->destinations;
	uint64_t at = engine_destination_place(slot.entry_2, words), port = entry_get(&slot, SQE_UD_UDP_DPORT);
	uint64_t hop_limit = entry_get(&slot, SQE_UD_HOP_LIMIT);
	struct engine_destination *to = &place->leads->destinations[at];
	if (!port)
		port = bypass->setup.port;
	*to = (struct engine_destination){
		.path = slot.entry_2,
		.gid = { words[0], words[1] },
		.hop_limit = hop_limit,
		.found = qp->found,
		.flow = { .source_port = (uint16_t)bypass->setup.port,
			  .destination_port = (uint16_t)port,
			  .address_bytes = (uint16_t)bytes },
		.route = &place->leads->paths[at],
		.max_segments = 1,
	};
	memcpy(to->flow.source, bypass->setup.address, bytes);
	memcpy(to->flow.destination, address, bytes);
	lead(bypass, &place->leads->paths[at], &to->flow, entry_get(&slot, SQE_UD_FLOW_LABEL), entry_get(&slot, SQE_UD_TCLASS),
	     hop_limit ? hop_limit : DATAGRAM_HOP_LIMIT, 1);
	return 0;
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
	qp->destinations = place->leads ? place->leads->destinations : NULL;
	if (record->service == SERVICE_UD) {
		place->path = (struct pump_path){ .outlet = &bypass->outlet };
		qp->route = &place->path; /* each datagram has its own */
	} else {
		qp->route = record->path ? find_route(bypass, qp, &place->path) : NULL;
	}
	qp->lane = NULL;
	if (bypass->hairpin && qp->route && be_get(qp->qpc, QPC_SERVTYPE) == ST_RC) {
		qp->lane = hairpin_lead(bypass->hairpin, qp, &place->lane);
		place->path.divert = qp->lane ? hairpin_divert : NULL;
		place->path.lane = &place->lane;
	}
	qp->found = bypass->device.changes;
}

/* ------------------------------------------------------------------ programs of the same device */

int bypass_hairpin(struct bypass *bypass)
{
	struct pump_path own;
	struct engine_flow flow = { .destination_port = (uint16_t)bypass->setup.port,
				    .address_bytes = (uint16_t)bypass->setup.address_bytes };

	memcpy(flow.destination, bypass->setup.address, bypass->setup.address_bytes);
	lead(bypass, &own, &flow, 0, 0, 0, 1);
	bypass->hairpin = hairpin_new(&bypass->device, bypass->slot, own.name, own.name_bytes);
	if (!bypass->hairpin)
		return -1;
	bypass->round->draw = hairpin_draw;
	bypass->round->take = hairpin_take;
	bypass->round->hairpin = bypass->hairpin;
	return 0;
}

int bypass_join(struct bypass *bypass, const struct bypass_peer *setup)
{
	if (!bypass->hairpin || hairpin_join(bypass->hairpin, setup))
		return -1;
	bypass->device.changes = 0; /* queue pairs whose peer it is find their lanes */
	found(bypass);
	return 0;
}

int bypass_dozes(struct bypass *bypass)
{
	return bypass->hairpin && hairpin_waits(bypass->hairpin, 1);
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

/* Disarm a CQ and raise its completion event (device/cq.py, notify): 0, or -1 where its EQ is the reference's to look at.
 * Disarming comes first: who has seen the event may arm again at once. */
static int raise_event(struct bypass *bypass, struct completion_queue *cq, uint32_t number)
{
	const struct device *root = root_of(bypass);
	uint64_t place = cq->comp_eqn & (((uint64_t)1 << root->log_eqs) - 1);
	struct event_queue *eq = (struct event_queue *)(void *)(bypass->setup.arena + root->eqs) + place;

	if (!eq->enabled || eq->failed || eq->lkey || !eq->start || eq->logsize > 31 || !cq->usrpage)
		return -1;
	uint32_t entries = (uint32_t)1 << eq->logsize, tail = (uint32_t)eq->tail;
	_Atomic uint32_t *block = block_at(bypass, eq->usrpage);
	if (tail >= entries)
		return -1;
	if (!eq->room) {
		uint32_t head = atomic_load_explicit(&block[REG_CQ_HEAD / 4], memory_order_acquire);
		eq->room = head < entries ? (head - tail - 1) & (entries - 1) : 0;
	}
	if (!eq->room)
		return -1;
	atomic_store(&block_at(bypass, cq->usrpage)[REG_CQ_DOORBELL / 4], 0);
	_Atomic uint32_t *words = (_Atomic uint32_t *)(void *)((uint8_t *)(uintptr_t)eq->start + ((size_t)tail << CQE_SHIFT));
	const uint32_t values[] = { EVENT_COMP, number, 0, (uint32_t)eq->phase, 0, 0, 0, 0 };
	for (unsigned i = 0; i < sizeof values / sizeof *values; i++)
		if (i != PHASE_WORD)
			atomic_store_explicit(&words[i], values[i], memory_order_relaxed);
	atomic_store_explicit(&words[PHASE_WORD], values[PHASE_WORD], memory_order_release);
	eq->room--;
	if (++tail == entries) {
		tail = 0;
		eq->phase ^= CQE_PHASE;
	}
	eq->tail = tail;
	atomic_store_explicit(&block[REG_CQ_TAIL / 4], tail, memory_order_release);
	cq->last_notified = cq->tail;
	cq->due = 0;
	bypass->setup.fire(bypass->setup.self, (uint32_t)eq->msix_vector);
	return 0;
}

/* Completion events of a queue pair's CQs. Those that cannot be raised here are left to the NIC process. */
static void notify(struct bypass *bypass, const struct engine_told *told)
{
	const struct queue_pair *record = engine_record(&bypass->device.sched, told->qp);
	const struct engine_qp *qp = bypass->device.qps[record->number & (((uint64_t)1 << bypass->device.log_qps) - 1)];
	uint32_t left = told->effects & (EFFECT_NOTIFY_SEND | EFFECT_NOTIFY_RECV);

	if (qp && qp->record == record) {
		if (left & EFFECT_NOTIFY_SEND && qp->send_cq && !raise_event(bypass, qp->send_cq->record, qp->send_cqn))
			left &= ~(uint32_t)EFFECT_NOTIFY_SEND;
		if (left & EFFECT_NOTIFY_RECV && qp->recv_cq && !raise_event(bypass, qp->recv_cq->record, qp->recv_cqn))
			left &= ~(uint32_t)EFFECT_NOTIFY_RECV;
	}
	if (!left)
		return;
	struct bypass_answer answer;
	struct bypass_punt about = { .kind = BYPASS_NOTIFY, .qp = told->qp, .effects = left };
	punt(bypass, &about, &answer, &bypass->slot->punt_notify);
}

/* The rest of a receive buffer; who sent it may be known from then on. */
static void leave_packets(struct bypass *bypass, const struct engine_told *told)
{
	struct pump_round *round = bypass->round;
	const struct pump_slot *slot = &round->slots[round->slot];
	struct engine_flow flow;
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
	about.count = pump_round_right(round, slot->name, slot->name_bytes);
	round->slot++;
	round->at = 0;
	punt(bypass, &about, &answer, reason_of(bypass, told->end));
	if (!answer.settled || come_from(bypass, slot->name, slot->name_bytes, &flow))
		pump_round_forget(round, slot->name, slot->name_bytes);
	else
		pump_round_know(round, slot->name, slot->name_bytes, &flow);
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
	if (told->end == PUNT_PATH) {
		const struct queue_pair *record = engine_record(&bypass->device.sched, sending->qp);
		struct place *place = bypass->places[record->number & (((uint64_t)1 << bypass->device.log_qps) - 1)];
		if (place && place->qp.record == record && !learn(bypass, place))
			return; /* the turn goes on */
	}
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

/* What C counted is for all to see; nothing has been where no packet came, left or was lost. */
static void count(struct bypass *bypass)
{
	struct pump_round *round = bypass->round;
	struct engine_counts *counts = &bypass->device.counts;
	struct slot *slot = bypass->slot;

	slot->rounds++;
	if (!round->rx_bytes && !round->tx_bytes && !round->socket_errors && !counts->tx_packets && !bypass->timed)
		return;
	bypass->timed = 0;
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
}

/* Whether all that waits to be sent is one ACK. */
static int owes_an_ack(const struct bypass *bypass)
{
	const struct engine_device *device = &bypass->device;
	const struct turns *turns = device->sched.turns;
	const struct program *program = engine_record(&device->sched, turns->first);
	const struct queue_pair *record;
	const struct engine_qp *qp;

	if (turns->count != 1 || !turns->first || !program->first)
		return 0;
	record = engine_record(&device->sched, program->first);
	qp = device->qps[record->number & (((uint64_t)1 << device->log_qps) - 1)];
	return qp && qp->record == record && record->reply_count == 1 && engine_replies_sound(qp) &&
	       engine_reply_at(qp, 0)->kind == REPLY_ACK && !engine_unsent(record);
}

/* Until when that ACK waits for a message of the program's own, or 0. */
static uint64_t held_until(const struct bypass *bypass)
{
	if (bypass->came_ns - bypass->posted_ns > TALKS_NS || !owes_an_ack(bypass))
		return 0;
	return bypass->came_ns + bypass->hold_ns;
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
	if (!bypass->gone && bypass->device.sched.turns->count) {
		bypass->answers = bypass->answered ? bypass->answers + 1 : 0;
		bypass->answered = 0;
		bypass->posted_ns = bypass_now();
		send_all(bypass, bypass->posted_ns);
	}
	count(bypass);
}

static int handle_timers(struct bypass *bypass, uint64_t now)
{
	uint64_t at, most = TIMERS_PER_ROUND;

	if (engine_port_deadline(&bypass->device) > now)
		return 0;
	bypass->timed = 1;
	while (!bypass->gone && (at = engine_port_due(&bypass->device, now, &most))) {
		struct bypass_answer answer;
		struct bypass_punt about = { .kind = BYPASS_TIMER, .qp = at };
		punt(bypass, &about, &answer, &bypass->slot->punt_timer);
	}
	if (!bypass->gone && bypass->device.sched.turns->count)
		send_all(bypass, now);
	return 1;
}

int bypass_round(struct bypass *bypass, uint64_t now, int polls)
{
	struct pump_round *round = bypass->round;
	struct engine_told told;
	int did;

	if (bypass->gone)
		return 0;
	round->hold = bypass->device.sched.turns->count && now < held_until(bypass);
	do {
		pump_round(round, now, ROUND_BUDGET, &told);
	} while (told.stop != STOP_DONE && !stopped(bypass, &told));
	did = round->came || round->sent;
	if (round->came) {
		bypass->came_ns = now;
		bypass->hold_ns = bypass->setup.slow * (polls ? HOLD_NS : HOLD_ASLEEP_NS);
		bypass->answered |= owes_an_ack(bypass);
	}
	/* what arrived in time is not late since nobody looked: nothing is overdue before all is read */
	bypass->full = round->came >= ROUND_RECEIVE_LIMIT ? bypass->full + 1 : 0;
	if (bypass->full % ROUND_TIMERS_AT_LEAST_EVERY == 0)
		did |= handle_timers(bypass, now);
	count(bypass);
	return did;
}

int bypass_expects(const struct bypass *bypass)
{
	return bypass->answers >= ANSWERS_LEAST && !bypass->answered && !bypass->gone;
}

void bypass_missed(struct bypass *bypass)
{
	bypass->answers = 0;
}

uint64_t bypass_deadline(const struct bypass *bypass)
{
	if (bypass->gone)
		return UINT64_MAX;
	if (bypass->hairpin && hairpin_waits(bypass->hairpin, 0))
		return 0;
	return bypass->device.sched.turns->count ? held_until(bypass) : engine_port_deadline(&bypass->device);
}
#endif
