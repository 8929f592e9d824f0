#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/shm_loopback.h"

#include "io/nocancel.h"
#include "io/poll.h"
#include "queue_pair/arithmetic.h"
#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define NAME_PORT_AT 2u /* in a raw socket address of either family */
#define POSITION (SHM_RING_BYTES - 1)
#define UNSEEN_NS 8000u /* longer than a peer that polls takes between two polls */
#define RUN_PACKETS_MAX 4096u /* longest by-reference run that fault rules judge; longer ones must be sent as packets */

enum record_kind {
	KIND_PACKETS, /* a burst of packets as on the network */
	KIND_BY_REFERENCE, /* a struct engine_by_reference */
	KIND_REFUSED, /* the same, returned: its packets must be sent with payload */
	KIND_NOTHING, /* padding up to the end of the ring */
};

/* In front of each record. */
struct record_header {
	uint32_t bytes; /* of the record */
	uint32_t kind;
	uint32_t segment; /* of packets */
	uint16_t tclass, source_port; /* of packets */
};

/* One ring, as one of its two ends sees it. */
struct ring_end {
	struct ring_producer *producer;
	struct ring_consumer *consumer;
	struct ring_control *control;
	uint64_t *epochs;
	uint8_t *records;
	uint64_t at; /* this end's position, never read back from the ring */
};

struct shm_peer {
	struct engine_pull pull;
	struct bypass_peer setup;
	struct own_fd wake_fd;
	struct ring_end out, in;
	int unseen; /* a record was put into the empty ring, and this end has not seen that it was taken */
	uint64_t unseen_at; /* its position */
	uint64_t unseen_ns; /* time of this end's first check whether it was; 0 before */
	int broken; /* the ring had invalid positions */
	int ended; /* its queue pair numbers belong to another program now */
};

struct shm_loopback {
	struct engine_device *device;
	struct slot *slot;
	struct faults *faults;
	const struct capture *capture; /* while it records, packets are sent with payload */
	uint8_t name[UDP_NAME_BYTES];
	uint32_t name_bytes;
	uint32_t next; /* index of the peer to take from first */
	pthread_mutex_t mutex; /* of `peers`, which a thread reads before it sleeps */
	uint32_t count;
	struct shm_peer *peers[SHM_PEERS];
	struct shm_peer *from[POLL_RECEIVE_LIMIT]; /* peer of each buffer of the last receive */
	struct rx_buffer *first_buffer; /* of that receive */
	const struct rx_buffer *judged; /* the current record, once fault rules have judged it */
	int harmed; /* they hit a packet that it replaces */
};

static _Atomic uint64_t *atomic_word(uint64_t *field)
{
	return (_Atomic uint64_t *)(void *)field;
}

static uint64_t load_word(uint64_t *field)
{
	return atomic_load_explicit(atomic_word(field), memory_order_acquire);
}

/* ------------------------------------------------------------------ rings */

static void find_end(struct ring_end *end, uint8_t *base, uint32_t ring)
{
	uint8_t *head = base + (size_t)ring * SHM_RING_ALL;
	end->producer = (struct ring_producer *)(void *)head;
	end->consumer = (struct ring_consumer *)(void *)(head + SHM_CONSUMER_AT);
	end->control = (struct ring_control *)(void *)(head + SHM_CONTROL_AT);
	end->epochs = (uint64_t *)(void *)(head + SHM_EPOCHS_AT);
	end->records = head + SHM_BYTES_AT;
}

/* Return the size of a record in the ring. */
static uint64_t room_of(uint64_t bytes)
{
	return (sizeof(struct record_header) + bytes + SHM_RECORD_BYTES - 1) & ~(uint64_t)(SHM_RECORD_BYTES - 1);
}

/* Return the free bytes in the ring; more than its size if the receiver stores invalid values. */
static uint64_t left_in(struct shm_peer *peer)
{
	return load_word(&peer->out.consumer->head) + SHM_RING_BYTES - peer->out.at;
}

static int is_dead(struct shm_peer *peer)
{
	return peer->ended || load_word(&peer->out.control->dead);
}

static int is_open(struct shm_peer *peer)
{
	return !peer->broken && load_word(&peer->out.consumer->attached) && !load_word(&peer->out.control->held) &&
	       !is_dead(peer);
}

/* Compare with this end's own position: the other end could keep us awake by the ring's. */
static int has_records(struct shm_peer *peer)
{
	return !peer->broken && load_word(&peer->in.producer->tail) != load_word(&peer->in.at);
}

static void wake(const struct shm_peer *peer)
{
	/* a full socket is readable already */
	if (own_fd_valid(&peer->wake_fd))
		while (nocancel_send(peer->wake_fd.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
			;
}

/* Wake the peer if it sleeps. The fence separates the record from the load of `asleep`: the peer sets that, fences, and
 * checks for records once more. */
static void wake_peer(struct shm_peer *peer)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(atomic_word(&peer->out.consumer->asleep), memory_order_relaxed) ||
	    !atomic_exchange(atomic_word(&peer->out.consumer->asleep), 0))
		return;
	peer->unseen = 0;
	wake(peer);
}

/* Wake a peer that has left the first record of its ring for UNSEEN_NS: its program does not poll any more, and its
 * progress thread has not noticed. */
static void wake_if_unseen(struct shm_peer *peer, uint64_t now)
{
	if (load_word(&peer->out.consumer->head) != peer->unseen_at) {
		peer->unseen = 0;
	} else if (!peer->unseen_ns) {
		peer->unseen_ns = now;
	} else if (now > peer->unseen_ns + UNSEEN_NS) {
		peer->unseen = 0;
		wake(peer);
	}
}

/* Append a record to the ring; 0, or -1 if there is no room. */
static int push_record(struct shm_peer *peer, struct record_header header, const void *bytes, size_t length)
{
	struct ring_end *out = &peer->out;
	uint64_t room = left_in(peer), size = room_of(length), offset = out->at & POSITION,
		 behind = SHM_RING_BYTES - offset;

	if (room > SHM_RING_BYTES)
		peer->broken = 1;
	if (peer->broken || room < size + (behind < size ? behind : 0))
		return -1;
	if (room == SHM_RING_BYTES) {
		peer->unseen = 1;
		peer->unseen_at = out->at;
		peer->unseen_ns = 0;
	}
	if (behind < size) {
		const struct record_header padding = { .bytes = (uint32_t)(behind - sizeof header),
						       .kind = KIND_NOTHING };
		memcpy(out->records + offset, &padding, sizeof padding);
		out->at += behind;
		offset = 0;
	}
	header.bytes = (uint32_t)length;
	memcpy(out->records + offset, &header, sizeof header);
	memcpy(out->records + offset + sizeof header, bytes, length);
	out->at += size;
	atomic_store_explicit(atomic_word(&out->producer->tail), out->at, memory_order_release);
	wake_peer(peer);
	return 0;
}

/* Copy the next record, at most `room` bytes of it; returns whether there was one. */
static int pop_record(struct shm_peer *peer, struct record_header *header, uint8_t *to, size_t room)
{
	struct ring_end *in = &peer->in;
	uint64_t used = load_word(&in->producer->tail) - in->at;

	while (used && !peer->broken) {
		uint64_t offset = in->at & POSITION;
		memcpy(header, in->records + offset, sizeof *header);
		uint64_t size = room_of(header->bytes);
		if (used > SHM_RING_BYTES || used % SHM_RECORD_BYTES || size > used || size > SHM_RING_BYTES - offset ||
		    (header->kind != KIND_NOTHING && header->bytes > room)) {
			peer->broken = 1;
			atomic_store_explicit(atomic_word(&in->consumer->attached), 0, memory_order_release);
			break;
		}
		if (header->kind != KIND_NOTHING)
			memcpy(to, in->records + offset + sizeof *header, header->bytes);
		used -= size;
		/* a thread that is about to sleep reads it */
		atomic_store_explicit(atomic_word(&in->at), in->at + size, memory_order_relaxed);
		atomic_store_explicit(atomic_word(&in->consumer->head), in->at, memory_order_release);
		if (header->kind != KIND_NOTHING)
			return 1;
	}
	return 0;
}

/* ------------------------------------------------------------------ the sender's memory */

/* Return the epoch of a queue pair of a ring's sender. A READ's bytes are in memory that one of the sender's keys
 * opens. When the key goes, the memory is the program's again, and the program may not know of the READ. Both words
 * only ever count up. */
static uint64_t epoch_of(const struct ring_end *end, uint64_t number, uint32_t operation)
{
	uint64_t epoch = load_word(&end->epochs[number % SHM_EPOCHS]);
	return opcode_rows[operation & 0xFF].flags & ROW_RESPONSE ? epoch + load_word(&end->control->keys) : epoch;
}

/* Read cookie and data in one call: the pid may be reused between two. */
static int pull_bytes(struct engine_pull *self, const struct engine_by_reference *by_ref,
		      const struct engine_range *ranges, unsigned count)
{
	struct shm_peer *peer = (struct shm_peer *)(void *)self;
	uint8_t cookie[SHM_COOKIE_BYTES];
	struct iovec here[1 + QP_SCATTERS] = { { cookie, sizeof cookie } };
	struct iovec there[1 + BY_REFERENCE_RANGES] = { { (void *)(uintptr_t)peer->setup.cookie_va, sizeof cookie } };

	for (unsigned i = 0; i < count; i++)
		here[1 + i] = (struct iovec){ (void *)(uintptr_t)ranges[i].va, ranges[i].length };
	for (unsigned i = 0; by_ref && i < by_ref->count; i++)
		there[1 + i] = (struct iovec){ (void *)(uintptr_t)by_ref->pieces[i].va, by_ref->pieces[i].length };
	ssize_t done = process_vm_readv(peer->setup.pid, here, 1 + count, there, 1 + (by_ref ? by_ref->count : 0), 0);
	if (done < 0 || (uint64_t)done != sizeof cookie + (by_ref ? by_ref->bytes : 0) ||
	    memcmp(cookie, peer->setup.cookie, sizeof cookie))
		return -1;
	atomic_thread_fence(memory_order_acquire);
	/* an epoch that ended in between has released its memory, before or after the bytes were read */
	return by_ref && epoch_of(&peer->in, by_ref->source, by_ref->operation) != by_ref->epoch ? -1 : 0;
}

/* ------------------------------------------------------------------ peers */

struct shm_loopback *shm_loopback_new(struct engine_device *device, struct slot *slot, struct faults *faults,
				      const struct capture *capture, const uint8_t *name, uint32_t name_bytes)
{
	struct shm_loopback *shm = calloc(1, sizeof *shm);
	if (!shm)
		return NULL;
	shm->device = device;
	shm->slot = slot;
	shm->faults = faults;
	shm->capture = capture;
	shm->name_bytes = name_bytes;
	memcpy(shm->name, name, name_bytes);
	pthread_mutex_init(&shm->mutex, NULL);
	return shm;
}

static void release_peer(struct shm_peer *peer)
{
	atomic_store_explicit(atomic_word(&peer->in.consumer->attached), 0, memory_order_release);
	munmap(peer->setup.base, peer->setup.bytes);
	own_fd_close(&peer->wake_fd);
	free(peer);
}

void shm_loopback_free(struct shm_loopback *shm)
{
	if (!shm)
		return;
	for (uint32_t i = 0; i < shm->count; i++)
		release_peer(shm->peers[i]);
	pthread_mutex_destroy(&shm->mutex);
	free(shm);
}

static int owns_qp(const struct shm_peer *peer, uint32_t number)
{
	return number - peer->setup.first_number < peer->setup.numbers;
}

static struct shm_peer *find_peer(const struct shm_loopback *shm, uint32_t number)
{
	for (uint32_t i = 0; i < shm->count; i++)
		if (owns_qp(shm->peers[i], number) && !is_dead(shm->peers[i]))
			return shm->peers[i];
	return NULL;
}

/* Note ended programs whose queue pair numbers were reused; returns whether this peer is joined already. */
static int note_owner(const struct shm_loopback *shm, const struct bypass_peer *setup)
{
	for (uint32_t i = 0; i < shm->count; i++) {
		struct shm_peer *peer = shm->peers[i];
		if (!memcmp(peer->setup.cookie, setup->cookie, sizeof setup->cookie))
			return 1;
		peer->ended |= peer->setup.first_number < setup->first_number + setup->numbers &&
			       setup->first_number < peer->setup.first_number + peer->setup.numbers;
	}
	return 0;
}

int shm_loopback_join(struct shm_loopback *shm, const struct bypass_peer *setup)
{
	uint32_t rings = setup->bytes == SHM_RING_ALL ? 1 : 2, index = 0;

	if (note_owner(shm, setup) || setup->bytes != (uint64_t)rings * SHM_RING_ALL || setup->ring >= rings)
		return -1;
	/* replace a peer that has ended and whose last records have been taken */
	while (index < shm->count && (!is_dead(shm->peers[index]) || has_records(shm->peers[index])))
		index++;
	struct shm_peer *peer = index < SHM_PEERS ? calloc(1, sizeof *peer) : NULL;
	if (!peer)
		return -1;
	peer->setup = *setup;
	own_fd_take(&peer->wake_fd, setup->wake_fd, OWN_FD_PRIVATE);
	peer->pull.pull = pull_bytes;
	find_end(&peer->out, setup->base, setup->ring);
	find_end(&peer->in, setup->base, rings - 1 - setup->ring);
	pthread_mutex_lock(&shm->mutex);
	if (index < shm->count)
		release_peer(shm->peers[index]);
	else
		shm->count++;
	shm->peers[index] = peer;
	pthread_mutex_unlock(&shm->mutex);
	atomic_store(atomic_word(&peer->in.consumer->pulls), !pull_bytes(&peer->pull, NULL, NULL, 0));
	atomic_store(atomic_word(&peer->in.consumer->attached), 1);
	return 0;
}

/* ------------------------------------------------------------------ sending */

/* Return whether a path's packets from this PSN on may go by the ring: no packet of the queue pair that matters for the
 * order is on its way by the network. */
static int may_use_ring(const struct shm_loopback_path *path, uint32_t operation, uint64_t psn)
{
	uint16_t flags = opcode_rows[operation & 0xFF].flags;

	return is_open(path->peer) &&
	       (path->uses_ring || (flags & ROW_RESPONSE ? flags & ROW_START : psn == path->record->una));
}

static int open_by_reference(struct engine_peer_path *self, const struct engine_qp *qp, uint32_t operation,
			     uint64_t psn, uint64_t *epoch)
{
	struct shm_loopback_path *path = (struct shm_loopback_path *)(void *)self;
	struct ring_end *out = &path->peer->out;

	if (capture_records(path->shm->capture) || !may_use_ring(path, operation, psn) ||
	    !load_word(&out->consumer->pulls) || left_in(path->peer) < SHM_RING_BYTES / 2)
		return 0;
	*epoch = epoch_of(out, be_get(qp->qpc, QPC_LOCAL_QPN), operation);
	return 1;
}

static int passes_faults(const struct engine_peer_path *self, const struct engine_by_reference *by_ref, uint64_t mtu)
{
	return faults_pass(((const struct shm_loopback_path *)(const void *)self)->shm->faults, FAULT_TX, by_ref, mtu);
}

static int is_pending(const struct engine_peer_path *self)
{
	return has_records(((const struct shm_loopback_path *)(const void *)self)->peer);
}

struct engine_peer_path *shm_loopback_path_of(struct shm_loopback *shm, const struct engine_qp *qp,
					      struct shm_loopback_path *path)
{
	struct shm_peer *peer = find_peer(shm, (uint32_t)be_get(qp->qpc, QPC_REMOTE_QPN));
	/* other devices may use the same queue pair numbers: a peer of this device has the same address and port */
	if (memcmp(qp->flow.destination, qp->flow.source, qp->flow.address_bytes) ||
	    qp->flow.destination_port != shm->faults->port)
		peer = NULL;
	if (peer != path->peer || path->record != qp->record)
		*path = (struct shm_loopback_path){
			.peer_path = { .opens = open_by_reference, .passes = passes_faults, .pending = is_pending },
			.shm = shm,
			.peer = peer,
			.record = qp->record
		};
	return peer ? &path->peer_path : NULL;
}

/* Return whether a burst may be sent over the ring now. */
static int burst_may_use_ring(const struct shm_loopback_path *path, const uint8_t *bytes, uint32_t segment)
{
	struct engine_by_reference by_ref;

	if (segment)
		return may_use_ring(path, bytes[0], be_load(bytes + PSN_AT, 3));
	memcpy(&by_ref, bytes, sizeof by_ref);
	return may_use_ring(path, by_ref.operation, by_ref.psn);
}

int shm_loopback_divert(void *self, const struct tx_path *by, const uint8_t *bytes, size_t length, uint32_t segment,
			uint32_t count)
{
	const struct record_header header = { .kind = segment ? KIND_PACKETS : KIND_BY_REFERENCE,
					      .segment = segment,
					      .tclass = (uint16_t)by->tclass,
					      .source_port = (uint16_t)by->source_port };
	struct shm_loopback_path *path = self;
	struct shm_peer *peer = path->peer;
	struct slot *slot = path->shm->slot;

	path->uses_ring = burst_may_use_ring(path, bytes, segment);
	if (path->uses_ring && !push_record(peer, header, bytes, length)) {
		slot->shm_packets += count;
		if (!segment) {
			struct engine_by_reference by_ref;
			memcpy(&by_ref, bytes, sizeof by_ref);
			slot->shm_bytes += by_ref.bytes;
		}
		return 1;
	}
	path->uses_ring = 0;
	if (!segment) {
		slot->shm_lost += count;
		return 1;
	}
	slot->shm_wire++;
	return 0;
}

/* ------------------------------------------------------------------ receiving */

unsigned shm_loopback_receive(void *self, struct rx_buffer *buffers, unsigned count, uint64_t now)
{
	struct shm_loopback *shm = self;
	unsigned received = 0;

	shm->first_buffer = buffers;
	shm->judged = NULL;
	for (uint32_t i = 0; i < shm->count && received < count; i++) {
		struct shm_peer *peer = shm->peers[(shm->next + i) % shm->count];
		struct record_header header;
		if (peer->unseen)
			wake_if_unseen(peer, now);
		while (received < count &&
		       pop_record(peer, &header, buffers[received].buffer, buffers[received].room)) {
			struct rx_buffer *rx = &buffers[received];
			int by_ref = header.kind == KIND_BY_REFERENCE || header.kind == KIND_REFUSED;
			if (by_ref ? header.bytes != sizeof(struct engine_by_reference) :
				     header.kind != KIND_PACKETS || !header.segment || !header.bytes) {
				peer->broken = 1; /* no correct program stores such a record */
				break;
			}
			rx->kind = header.kind;
			rx->size = header.bytes;
			rx->segment = header.segment < header.bytes ? header.segment : header.bytes;
			rx->name_bytes = shm->name_bytes;
			memcpy(rx->name, shm->name, shm->name_bytes);
			if (!by_ref)
				be_store(rx->name + NAME_PORT_AT, 2, header.source_port);
			rx->tclass = (uint8_t)header.tclass;
			rx->hop_limit = UDP_DEFAULT_HOP_LIMIT;
			rx->flow_label = 0;
			shm->from[received++] = peer;
			if (by_ref)
				/* these take long: send replies before processing the next one */
				count = received;
		}
	}
	if (shm->count)
		shm->next = (shm->next + 1) % shm->count;
	return received;
}

/* Refuse a record: its packets must be sent with payload. */
static int refuse_bytes(struct engine_pull *self, const struct engine_by_reference *by_ref,
			const struct engine_range *ranges, unsigned count)
{
	(void)self;
	(void)by_ref;
	(void)ranges;
	(void)count;
	return -1;
}

/* Return whether fault rules apply to a packet that a record replaces, on arrival. Only runs of a connection are
 * judged, and none with more packets than its bytes need. */
static int is_struck(const struct shm_loopback *shm, const struct engine_by_reference *by_ref)
{
	const struct engine_device *device = shm->device;
	const struct engine_qp *qp = device->qps[by_ref->destination & (((uint64_t)1 << device->log_qps) - 1)];

	if (!qp || qp->record->number != by_ref->destination || be_get(qp->qpc, QPC_REMOTE_QPN) != by_ref->source)
		return 0;
	uint64_t mtu = qp->record->mtu;
	if (!mtu || by_ref->packets != ceil_div(by_ref->bytes, mtu))
		return 0;
	return by_ref->packets > RUN_PACKETS_MAX || !faults_pass(shm->faults, FAULT_RX, by_ref, mtu);
}

int shm_loopback_take(void *self, const struct rx_buffer *rx, uint64_t now, struct engine_stop_info *info)
{
	struct engine_pull refusal = { refuse_bytes }, *pull = &refusal;
	struct shm_loopback *shm = self;
	struct shm_peer *peer = shm->from[rx - shm->first_buffer];
	struct engine_by_reference by_ref;
	enum engine_taken taken;

	*info = (struct engine_stop_info){ .stop = STOP_DONE };
	memcpy(&by_ref, rx->buffer, sizeof by_ref);
	if (!owns_qp(peer, rx->kind == KIND_BY_REFERENCE ? by_ref.source : by_ref.destination))
		return 1; /* the numbers are not those of the peer's queue pairs */
	if (rx->kind == KIND_REFUSED) {
		shm->slot->shm_refused += engine_device_on_refusal(shm->device, &by_ref, now);
		return 1;
	}
	if (shm->judged != rx) {
		shm->judged = rx;
		shm->harmed = is_struck(shm, &by_ref);
	}
	if (!shm->harmed)
		pull = &peer->pull;
	do {
		taken = engine_device_by_reference(shm->device, &by_ref, pull, now, info);
	} while (taken == TAKEN_PARTIAL && info->stop == STOP_DONE);
	if (taken == TAKEN_REFUSED && opcode_rows[by_ref.operation & 0xFF].flags & ROW_RESPONSE)
		shm->slot->shm_refused += info->refused;
	else if (taken == TAKEN_REFUSED)
		/* if the ring is full, the sender recovers by its timer */
		push_record(peer, (struct record_header){ .kind = KIND_REFUSED }, &by_ref, sizeof by_ref);
	int done = taken != TAKEN_PARTIAL && info->stop != STOP_MAP_QP;
	if (done)
		shm->judged = NULL;
	return done;
}

/* ------------------------------------------------------------------ sleeping */

int shm_loopback_pending(struct shm_loopback *shm, int sleeps)
{
	int waits = 0;

	pthread_mutex_lock(&shm->mutex);
	for (uint32_t i = 0; sleeps && i < shm->count; i++)
		atomic_store_explicit(atomic_word(&shm->peers[i]->in.consumer->asleep), 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = 0; i < shm->count && !waits; i++)
		waits = has_records(shm->peers[i]);
	pthread_mutex_unlock(&shm->mutex);
	return waits;
}
#endif
