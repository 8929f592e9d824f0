#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/arena_map.h"
#include "bypass/punt.h"

#include "queue_pair/crc32.h"
#include "queue_pair/requester.h"
#include "queue_pair/response_queue.h"
#include "memory/fault_guard.h"
#include "queue_pair/crc32.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FAULT_COUNTS_AT (SLOT_BUFFERS_AT + (size_t)POLL_RECEIVE_LIMIT * POLL_BUFFER_BYTES)
#define TIMERS_PER_ROUND 64u
#define LOCK_SPINS 500u /* to take the mutex, some ten microseconds in all */
#define LIVENESS_CHECK_TRIES 1024u /* tries to take the arena between two checks that the NIC process still exists */
#define STAGING_BYTES 65536u
#define PREFETCH_BYTES ((size_t)ENGINE_PREFETCH * ENGINE_PREFETCH_BYTES)
#define PACKET_MEMORY_BYTES (STAGING_BYTES + PREFETCH_BYTES + (size_t)POLL_OUT_BYTES)
/* If a program answers each message, its ACKs are sent with the answers. ACKs are delayed for at most this time, times
 * the setup's `slow`; longer if the progress thread received the message, since it must give the core to the program, */
#define HOLD_NS 12000u
#define HOLD_ASLEEP_NS 60000u
/* ACKs are only delayed if the program has sent something within this time. */
#define POST_RECENT_NS 20000000u
/* Consecutive answered messages after which the next answer is expected. */
#define EXPECT_AFTER_ANSWERS 8u
/* Message size whose copy takes some microseconds. */
#define LONG_BYTES 16384u
/* Receives per poll while an answer is expected: a repeated receive is faster than another poll, unless system calls
 * dominate, as in an emulator. */
#define ANSWER_CHECKS 3u

_Static_assert(BYPASS_NAME_BYTES == UDP_NAME_BYTES, "socket addresses");
_Static_assert(BYPASS_COOKIE_BYTES == SHM_COOKIE_BYTES, "cookies");
_Static_assert(sizeof(struct slot) <= SLOT_BUFFERS_AT, "the record lies before the buffers");
_Static_assert(offsetof(struct slot, fault_rx_drop) - offsetof(struct slot, fault_tx_drop) ==
		       FAULT_ACTIONS * sizeof(uint64_t),
	       "a count for each action");

_Static_assert(offsetof(struct slot, punt_short) - offsetof(struct slot, event_0) == ENGINE_COUNTS * sizeof(uint64_t),
	       "a count for each event");

size_t bypass_shared_bytes(void)
{
	return FAULT_COUNTS_AT + FAULT_COUNT_BYTES;
}

size_t bypass_budget_bytes(void)
{
	return BUDGET_BYTES;
}

/* ------------------------------------------------------------------ creation */

/* Map the memory that packets are made in, and the staging memory of own_process: a file's, which the kernel copies
 * from without a fault. */
static int map_packet_memory(struct bypass *bypass)
{
	struct own_process_file *files = bypass->own.files;
	int fd = memfd_create("rnic packets", MFD_CLOEXEC);
	uint8_t *base = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, PACKET_MEMORY_BYTES))
		base = mmap(NULL, PACKET_MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	madvise(base, PACKET_MEMORY_BYTES, MADV_DONTFORK);
	fd = own_fds_add(bypass->setup.own, fd);
	files[0] = (struct own_process_file){ base, PACKET_MEMORY_BYTES, fd };
	files[1] = (struct own_process_file){ bypass->setup.shared, bypass_shared_bytes(), bypass->setup.shared_fd };
	bypass->own.staging = base;
	bypass->own.staging_bytes = STAGING_BYTES;
	bypass->prefetch.staging = base + STAGING_BYTES;
	bypass->out = base + STAGING_BYTES + PREFETCH_BYTES;
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
	if (slot->layout != engine_layout_hash() || setup->slot >= BUDGET_SLOTS || !setup->source_port_count ||
	    setup->source_port_count > ATTACH_MAX_SOURCE_PORTS) {
		free(bypass);
		return NULL;
	}
	bypass->reach = calloc(root->max_keys, sizeof *bypass->reach);
	bypass->mapped_qps = calloc((size_t)1 << root->log_qps, sizeof *bypass->mapped_qps);
	bypass->device.qps = calloc((size_t)1 << root->log_qps, sizeof *bypass->device.qps);
	bypass->round = calloc(1, sizeof *bypass->round);
	pthread_mutex_init(&bypass->mutex, NULL);
	if (!bypass->reach || !bypass->mapped_qps || !bypass->device.qps || !bypass->round ||
	    map_packet_memory(bypass)) {
		bypass_free(bypass);
		return NULL;
	}
	bypass->own.pid = getpid();
	bypass->guarded = !fault_guard_install();
	bypass->segment = (struct engine_segment){ bypass->guarded ? &guarded_process : &own_process, &bypass->own };
	for (uint64_t i = 0; i < root->max_keys; i++)
		bypass->reach[i].segment = &bypass->segment;
	bypass->shared = (struct engine_shared){
		.keys = (const struct memory_key *)(const void *)(setup->arena + root->keys),
		.reach = bypass->reach,
		.key_count = root->max_keys,
		.crc = engine_crc32,
		.crc_copy = engine_crc32_copy,
		.prefetch = bypass->guarded ? NULL : &bypass->prefetch,
		.icrc_cache = bypass->icrc_cache,
		.ack_every = slot->ack_every,
		.probe = slot->probe,
		.rq_almost_full = slot->rq_almost_full,
	};
	bypass->device.shared = &bypass->shared;
	bypass->device.piggyback_acks = 1;
	engine_device_find(&bypass->device, setup->arena);
	bypass->device.sched.budget = setup->budget;
	bypass->device.sched.slot = setup->slot;
	for (uint32_t i = 0; i < setup->source_port_count; i++)
		bypass->sources[i] = (struct tx_socket){ .fd = setup->source_ports[i] == setup->port ? setup->fd : -1,
							 .ipv4 = setup->address_bytes == 4,
							 .may_set_segment = 1 };
	bypass->scope = bypass_scope_of(setup->fd);
	io_poll_init(bypass->round, &bypass->device, setup->fd, setup->shared + SLOT_BUFFERS_AT, bypass->out);
	faults_init(&bypass->faults, setup->faults, setup->shared + FAULT_COUNTS_AT);
	memcpy(bypass->faults.address, setup->address, setup->address_bytes);
	bypass->faults.address_bytes = setup->address_bytes;
	bypass->faults.port = (uint16_t)setup->port;
	io_poll_set_faults(bypass->round, &bypass->faults);
	capture_init(&bypass->capture, setup->capture, bypass->setup.address, setup->address_bytes,
		     bypass->setup.source_ports, setup->source_port_count);
	bypass->round->capture = &bypass->capture;
	return bypass;
}

static void free_mapped_qp(struct mapped_qp *mapped)
{
	if (mapped)
		free(mapped->destination_cache);
	free(mapped);
}

void bypass_free(struct bypass *bypass)
{
	if (bypass->mapped_qps) {
		for (uint64_t i = 0; i < (uint64_t)1 << bypass_root(bypass)->log_qps; i++)
			free_mapped_qp(bypass->mapped_qps[i]);
	}
	if (bypass->guarded)
		fault_guard_remove();
	shm_loopback_free(bypass->shm);
	pthread_mutex_destroy(&bypass->mutex);
	free(bypass->reach);
	free(bypass->mapped_qps);
	free(bypass->device.qps);
	io_poll_end(bypass->round);
	faults_free(&bypass->faults);
	free(bypass->round);
	if (bypass->out)
		munmap(bypass->own.files[0].base, PACKET_MEMORY_BYTES);
	free(bypass);
}

/* ------------------------------------------------------------------ the lock */

/* A thread that holds the lock is not canceled: the calls under it are no cancellation points, or disable it
 * (io/nocancel.h). */

/* Take the arena from the NIC process, which holds it for a bounded time but requests it repeatedly. */
static int take_arena(struct bypass *bypass)
{
	if (atomic_load_explicit(bypass_word(&bypass->slot->wanted), memory_order_relaxed))
		return 0;
	atomic_store(bypass_word(&bypass->slot->taken), 1);
	if (!atomic_load(bypass_word(&bypass->slot->wanted)))
		return 1;
	atomic_store(bypass_word(&bypass->slot->taken), 0);
	return 0;
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Take the mutex. Spin first: a round ends soon, and a thread that sleeps may wake on the core of another one that
 * polls. */
static void lock_mutex(struct bypass *bypass)
{
	for (unsigned tried = 0; tried < LOCK_SPINS; tried++) {
		if (!pthread_mutex_trylock(&bypass->mutex))
			return;
		cpu_relax();
	}
	pthread_mutex_lock(&bypass->mutex);
}

void bypass_lock(struct bypass *bypass)
{
	lock_mutex(bypass);
	for (unsigned tried = 1; !bypass->gone && !take_arena(bypass); tried++) {
		sched_yield();
		if (tried % LIVENESS_CHECK_TRIES == 0 && bypass->setup.is_gone(bypass->setup.self))
			bypass->gone = 1; /* it died while it held the arena */
	}
	bypass_arena_changed(bypass);
}

int bypass_try(struct bypass *bypass)
{
	if (pthread_mutex_trylock(&bypass->mutex))
		return -1;
	if (!take_arena(bypass)) {
		pthread_mutex_unlock(&bypass->mutex);
		return -1;
	}
	bypass_arena_changed(bypass);
	return 0;
}

void bypass_unlock(struct bypass *bypass)
{
	atomic_store_explicit(bypass_word(&bypass->slot->taken), 0, memory_order_release);
	pthread_mutex_unlock(&bypass->mutex);
}

const _Atomic uint64_t *bypass_taken(const struct bypass *bypass)
{
	return bypass_word(&bypass->slot->taken);
}

int bypass_is_served_elsewhere(const struct bypass *bypass)
{
	return bypass->gone || atomic_load_explicit(bypass_word(&bypass->slot->reference), memory_order_relaxed);
}

/* ------------------------------------------------------------------ programs of the same device */

int bypass_shm_loopback(struct bypass *bypass)
{
	struct tx_path own;
	struct engine_flow flow = { .destination_port = (uint16_t)bypass->setup.port,
				    .address_bytes = (uint16_t)bypass->setup.address_bytes };

	memcpy(flow.destination, bypass->setup.address, bypass->setup.address_bytes);
	bypass_set_path(bypass, &own, &flow, 0, 0, 0, 0, 1);
	bypass->shm = shm_loopback_new(&bypass->device, bypass->slot, &bypass->faults, &bypass->capture, own.name,
				       own.name_bytes);
	if (!bypass->shm)
		return -1;
	bypass->round->ring_receive = shm_loopback_receive;
	bypass->round->ring_take = shm_loopback_take;
	bypass->round->shm = bypass->shm;
	return 0;
}

int bypass_join(struct bypass *bypass, const struct bypass_peer *setup)
{
	if (!bypass->shm || shm_loopback_join(bypass->shm, setup))
		return -1;
	bypass->device.changes = 0; /* queue pairs with a peer in that program look up their paths */
	bypass_arena_changed(bypass);
	return 0;
}

int bypass_has_pending(struct bypass *bypass)
{
	return bypass->shm && shm_loopback_pending(bypass->shm, 1);
}

/* ------------------------------------------------------------------ rounds */

static void publish_faults(struct bypass *bypass)
{
	struct faults *faults = &bypass->faults;
	struct slot *slot = bypass->slot;

	for (uint32_t action = 0; action < FAULT_ACTIONS; action++) {
		(&slot->fault_tx_drop)[action] += faults->counted[FAULT_TX][action];
		(&slot->fault_rx_drop)[action] += faults->counted[FAULT_RX][action];
	}
	slot->fault_tx_full += faults->full[FAULT_TX];
	slot->fault_rx_full += faults->full[FAULT_RX];
	slot->fault_port_down += faults->port_down;
	memset(faults->counted, 0, sizeof faults->counted);
	faults->full[FAULT_TX] = faults->full[FAULT_RX] = faults->port_down = 0;
}

/* Publish C's counts. Nothing was counted if no packet was received, sent or lost. */
static void publish_counts(struct bypass *bypass)
{
	struct io_poll *round = bypass->round;
	struct engine_counts *counts = &bypass->device.counts;
	struct slot *slot = bypass->slot;

	slot->rounds++;
	if (!round->rx_bytes && !round->tx_bytes && !round->socket_errors && !counts->tx_packets && !bypass->timers_ran)
		return;
	bypass->timers_ran = 0;
	bypass->took_time |= bypass->shm || round->rx_bytes + round->tx_bytes > LONG_BYTES;
	slot->rx_packets += counts->rx_packets;
	slot->tx_packets += counts->tx_packets;
	for (uint64_t left = counts->changed; left; left &= left - 1) {
		unsigned which = (unsigned)__builtin_ctzll(left);
		(&slot->event_0)[which] += counts->events[which];
		counts->events[which] = 0;
	}
	slot->rx_bytes += round->rx_bytes;
	slot->tx_bytes += round->tx_bytes;
	slot->rx_socket_error += round->socket_errors;
	slot->gso_refused += round->counts.gso_refused;
	slot->drop_tx_too_long += round->counts.drop_tx_too_long;
	slot->drop_tx_unreachable += round->counts.drop_tx_unreachable;
	slot->drop_tx_blocked += round->counts.drop_tx_blocked;
	slot->drop_tx_error += round->counts.drop_tx_error;
	if (faults_judge(&bypass->faults, FAULT_TX) || faults_judge(&bypass->faults, FAULT_RX))
		publish_faults(bypass);
	counts->rx_packets = counts->tx_packets = counts->changed = 0;
	memset(&round->counts, 0, sizeof round->counts);
	round->rx_bytes = round->tx_bytes = round->too_short = round->socket_errors = 0;
}

/* Return whether the only pending packet is one ACK. */
static int owes_single_ack(const struct bypass *bypass)
{
	const struct engine_device *device = &bypass->device;
	const struct scheduler *scheduler = device->sched.scheduler;
	const struct program *program = engine_record(&device->sched, scheduler->first);
	const struct queue_pair *record;
	const struct engine_qp *qp;

	if (scheduler->count != 1 || !scheduler->first || !program->first)
		return 0;
	record = engine_record(&device->sched, program->first);
	qp = device->qps[record->number & (((uint64_t)1 << device->log_qps) - 1)];
	return qp && qp->record == record && record->reply_count == 1 && engine_response_queue_valid(qp) &&
	       engine_response_at(qp, 0)->kind == REPLY_ACK && !engine_unsent(record);
}

/* Return the time until which that ACK waits for a message of the program, or 0. */
static uint64_t hold_deadline(const struct bypass *bypass)
{
	if (bypass->received_ns - bypass->posted_ns > POST_RECENT_NS || !owes_single_ack(bypass))
		return 0;
	return bypass->received_ns + bypass->hold_ns;
}

static void send_all(struct bypass *bypass, uint64_t now)
{
	struct engine_stop_info info;
	do {
		io_poll_send(bypass->round, now, POLL_BUDGET, &info);
	} while (info.stop != STOP_DONE && !bypass_handle_stop(bypass, &info));
}

/* Stop for good if the program has closed descriptors of the engine: it may have opened its own under their numbers.
 * Returns whether the engine has stopped. */
static int has_stopped(struct bypass *bypass, uint64_t now)
{
	if (!bypass->gone && !own_fds_valid(bypass->setup.own, now)) {
		bypass->gone = 1;
		bypass->setup.lost(bypass->setup.self);
	}
	return bypass->gone;
}

void bypass_ring(struct bypass *bypass, uint32_t number, uint32_t block, uint64_t now)
{
	struct engine_qp *qp = number ? bypass->device.qps[number & (((uint64_t)1 << bypass->device.log_qps) - 1)] :
					NULL;

	if (has_stopped(bypass, now))
		return;
	if (!qp || qp->record->number != number || engine_device_ring(&bypass->device, qp)) {
		struct bypass_answer answer;
		struct bypass_punt punt = { .kind = BYPASS_DOORBELL, .qp = block };
		bypass_punt_to_nic(bypass, &punt, &answer, &bypass->slot->punt_doorbell);
	}
	if (!bypass->gone && bypass->device.sched.scheduler->count) {
		bypass->answers_in_row = bypass->answered ? bypass->answers_in_row + 1 : 0;
		bypass->answered = 0;
		bypass->posted_ns = now;
		send_all(bypass, now);
	}
	publish_counts(bypass);
}

static int handle_timers(struct bypass *bypass, uint64_t now)
{
	uint64_t at, most = TIMERS_PER_ROUND;

	if (engine_device_deadline(&bypass->device) > now)
		return 0;
	bypass->timers_ran = 1;
	while (!bypass->gone && (at = engine_device_due(&bypass->device, now, &most))) {
		struct bypass_answer answer;
		struct bypass_punt punt = { .kind = BYPASS_TIMER, .qp = at };
		bypass_punt_to_nic(bypass, &punt, &answer, &bypass->slot->punt_timer);
	}
	if (!bypass->gone && bypass->device.sched.scheduler->count)
		send_all(bypass, now);
	return 1;
}

int bypass_round(struct bypass *bypass, uint64_t now, int polls)
{
	struct io_poll *round = bypass->round;
	struct engine_stop_info info;
	int did;

	if (has_stopped(bypass, now))
		return 0;
	round->hold_replies = bypass->device.sched.scheduler->count && now < hold_deadline(bypass);
	round->socket_checks = polls && bypass->setup.slow == 1 && bypass_expects_reply(bypass) ? ANSWER_CHECKS : 0;
	do {
		io_poll(round, now, POLL_BUDGET, &info);
	} while (info.stop != STOP_DONE && !bypass_handle_stop(bypass, &info));
	did = round->received || round->released || round->sent;
	if (round->received || round->released) {
		bypass->received_ns = now;
		bypass->hold_ns = bypass->setup.slow * (polls ? HOLD_NS : HOLD_ASLEEP_NS);
		bypass->answered |= owes_single_ack(bypass);
	}
	/* what arrived in time is not late because no thread received it: nothing is overdue before everything is
	 * read */
	if (round->received >= POLL_RECEIVE_LIMIT || round->socket_skipped)
		bypass->backlog += 1;
	else
		bypass->backlog = round->received ? bypass->backlog + POLL_PARTIAL_ROUND : 0;
	if (bypass->backlog >= POLL_TIMERS_AT_LEAST_EVERY)
		bypass->backlog = 0;
	if (!bypass->backlog)
		did |= handle_timers(bypass, now);
	publish_counts(bypass);
	return did;
}

int bypass_took_time(struct bypass *bypass)
{
	int took_time = bypass->took_time || bypass->setup.slow > 1;

	bypass->took_time = 0;
	return took_time;
}

int bypass_expects_reply(const struct bypass *bypass)
{
	return bypass->answers_in_row >= EXPECT_AFTER_ANSWERS && !bypass->answered && !bypass->gone;
}

void bypass_reply_is_late(struct bypass *bypass)
{
	bypass->answers_in_row = 0;
}

uint64_t bypass_deadline(const struct bypass *bypass)
{
	if (bypass->gone)
		return UINT64_MAX;
	if (bypass->shm && shm_loopback_pending(bypass->shm, 0))
		return 0;
	if (bypass->device.sched.scheduler->count)
		return hold_deadline(bypass);
	return io_poll_deadline(bypass->round);
}
#endif
