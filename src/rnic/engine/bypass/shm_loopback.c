#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/shm_loopback.h"

#include "io/nocancel.h"
#include "io/poll.h"
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

#define POSITION (SHM_RING_BYTES - 1)

enum kind {
	KIND_PACKETS, /* a burst of them, as the wire carries it */
	KIND_BULK, /* a struct engine_by_reference */
	KIND_REFUSED, /* the same, back to whoever sent it: with bytes, please */
	KIND_NOTHING, /* up to the end of the ring */
};

/* In front of each record. */
struct mark {
	uint32_t bytes; /* of the record */
	uint32_t kind;
	uint32_t segment; /* of packets */
	uint32_t reserved;
};

/* One ring, as one of its two ends sees it. */
struct end {
	struct ring_producer *producer;
	struct ring_consumer *consumer;
	struct ring_control *control;
	uint64_t *epochs;
	uint8_t *records;
	uint64_t at; /* this end's position, which is not read back */
};

struct shm_peer {
	struct engine_pull pull;
	struct bypass_peer setup;
	struct end out, in;
	int broken; /* there were numbers in the ring that cannot be */
};

struct shm_loopback {
	struct engine_device *device;
	struct slot *slot;
	uint8_t name[UDP_NAME_BYTES];
	uint32_t name_bytes;
	uint32_t next; /* whom to take from first */
	pthread_mutex_t mutex; /* of the list, which a thread that goes to sleep looks through */
	uint32_t count;
	struct shm_peer *peers[SHM_PEERS];
	struct shm_peer *from[POLL_RECEIVE_LIMIT]; /* of the slots that were drawn last */
	struct rx_buffer *first; /* of these */
};

static _Atomic uint64_t *word(uint64_t *field)
{
	return (_Atomic uint64_t *)(void *)field;
}

static uint64_t load(uint64_t *field)
{
	return atomic_load_explicit(word(field), memory_order_acquire);
}

/* ------------------------------------------------------------------ rings */

static void find_end(struct end *end, uint8_t *base, uint32_t ring)
{
	uint8_t *head = base + (size_t)ring * SHM_RING_ALL;
	end->producer = (struct ring_producer *)(void *)head;
	end->consumer = (struct ring_consumer *)(void *)(head + SHM_CONSUMER_AT);
	end->control = (struct ring_control *)(void *)(head + SHM_CONTROL_AT);
	end->epochs = (uint64_t *)(void *)(head + SHM_EPOCHS_AT);
	end->records = head + SHM_BYTES_AT;
}

/* Bytes of a record in the ring. */
static uint64_t room_of(uint64_t bytes)
{
	return (sizeof(struct mark) + bytes + SHM_RECORD_BYTES - 1) & ~(uint64_t)(SHM_RECORD_BYTES - 1);
}

/* Bytes that a record may still take; more than there are where the taker stores nonsense. */
static uint64_t left_in(struct shm_peer *peer)
{
	return load(&peer->out.consumer->head) + SHM_RING_BYTES - peer->out.at;
}

static int is_open(struct shm_peer *peer)
{
	return !peer->broken && load(&peer->out.consumer->attached) && !load(&peer->out.control->held) &&
	       !load(&peer->out.control->dead);
}

/* Whoever sleeps there wakes. The fence stands between the record and the look: the other says that it sleeps, fences,
 * and looks for records once more. */
static void ring_bell(struct shm_peer *peer)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(word(&peer->out.consumer->asleep), memory_order_relaxed) ||
	    !atomic_exchange(word(&peer->out.consumer->asleep), 0))
		return;
	/* where there is no room it rings already */
	while (nocancel_send(peer->setup.bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
		;
}

/* Put a record into the ring; 0, or -1 where there is no room. */
static int push(struct shm_peer *peer, uint32_t kind, uint32_t segment, const void *bytes, size_t length)
{
	struct end *out = &peer->out;
	uint64_t room = left_in(peer), size = room_of(length), place = out->at & POSITION, behind = SHM_RING_BYTES - place;
	struct mark mark = { .kind = KIND_NOTHING };

	if (room > SHM_RING_BYTES)
		peer->broken = 1;
	if (peer->broken || room < size + (behind < size ? behind : 0))
		return -1;
	if (behind < size) {
		mark.bytes = (uint32_t)(behind - sizeof mark);
		memcpy(out->records + place, &mark, sizeof mark);
		out->at += behind;
		place = 0;
	}
	mark = (struct mark){ .bytes = (uint32_t)length, .kind = kind, .segment = segment };
	memcpy(out->records + place, &mark, sizeof mark);
	memcpy(out->records + place + sizeof mark, bytes, length);
	out->at += size;
	atomic_store_explicit(word(&out->producer->tail), out->at, memory_order_release);
	ring_bell(peer);
	return 0;
}

/* Copy the next record, at most `room` bytes of it; whether there was one. */
static int pop(struct shm_peer *peer, struct mark *mark, uint8_t *to, size_t room)
{
	struct end *in = &peer->in;
	uint64_t used = load(&in->producer->tail) - in->at;

	while (used && !peer->broken) {
		uint64_t place = in->at & POSITION;
		memcpy(mark, in->records + place, sizeof *mark);
		uint64_t size = room_of(mark->bytes);
		if (used > SHM_RING_BYTES || used % SHM_RECORD_BYTES || size > used || size > SHM_RING_BYTES - place ||
		    (mark->kind != KIND_NOTHING && mark->bytes > room)) {
			peer->broken = 1;
			atomic_store_explicit(word(&in->consumer->attached), 0, memory_order_release);
			break;
		}
		if (mark->kind != KIND_NOTHING)
			memcpy(to, in->records + place + sizeof *mark, mark->bytes);
		used -= size;
		atomic_store_explicit(word(&in->at), in->at + size, memory_order_relaxed); /* who goes to sleep looks at it */
		atomic_store_explicit(word(&in->consumer->head), in->at, memory_order_release);
		if (mark->kind != KIND_NOTHING)
			return 1;
	}
	return 0;
}

/* ------------------------------------------------------------------ the sender's memory */

/* Of a queue pair of a ring's sender. The bytes of a READ are in memory that one of its keys opens, and that becomes the
 * program's own with the key: its program may know nothing of the READ. Both words only ever count up. */
static uint64_t epoch_of(const struct end *end, uint64_t number, uint32_t operation)
{
	uint64_t epoch = load(&end->epochs[number % SHM_EPOCHS]);
	return opcode_rows[operation & 0xFF].flags & ROW_RESPONSE ? epoch + load(&end->control->keys) : epoch;
}

/* All in one call, so that the cookie and the bytes are of one program, whatever became of the number. */
static int pull(struct engine_pull *self, const struct engine_by_reference *bulk, const struct engine_range *places, unsigned count)
{
	struct shm_peer *peer = (struct shm_peer *)(void *)self;
	uint8_t cookie[SHM_COOKIE_BYTES];
	struct iovec here[1 + QP_SCATTERS] = { { cookie, sizeof cookie } };
	struct iovec there[1 + BY_REFERENCE_RANGES] = { { (void *)(uintptr_t)peer->setup.cookie_at, sizeof cookie } };

	for (unsigned i = 0; i < count; i++)
		here[1 + i] = (struct iovec){ (void *)(uintptr_t)places[i].va, places[i].length };
	for (unsigned i = 0; bulk && i < bulk->count; i++)
		there[1 + i] = (struct iovec){ (void *)(uintptr_t)bulk->pieces[i].va, bulk->pieces[i].length };
	ssize_t done = process_vm_readv(peer->setup.pid, here, 1 + count, there, 1 + (bulk ? bulk->count : 0), 0);
	if (done < 0 || (uint64_t)done != sizeof cookie + (bulk ? bulk->bytes : 0) ||
	    memcmp(cookie, peer->setup.cookie, sizeof cookie))
		return -1;
	atomic_thread_fence(memory_order_acquire);
	/* what has stopped meanwhile has given its memory back, before the bytes were read or behind that */
	return bulk && epoch_of(&peer->in, bulk->source, bulk->operation) != bulk->epoch ? -1 : 0;
}

/* ------------------------------------------------------------------ whom one has joined */

struct shm_loopback *shm_loopback_new(struct engine_device *device, struct slot *slot, const uint8_t *name, uint32_t name_bytes)
{
	struct shm_loopback *hairpin = calloc(1, sizeof *hairpin);
	if (!hairpin)
		return NULL;
	hairpin->device = device;
	hairpin->slot = slot;
	hairpin->name_bytes = name_bytes;
	memcpy(hairpin->name, name, name_bytes);
	pthread_mutex_init(&hairpin->mutex, NULL);
	return hairpin;
}

static void let_go(struct shm_peer *peer)
{
	atomic_store_explicit(word(&peer->in.consumer->attached), 0, memory_order_release);
	munmap(peer->setup.base, peer->setup.bytes);
	int before = nocancel_begin();
	close(peer->setup.bell);
	nocancel_end(before);
	free(peer);
}

void shm_loopback_free(struct shm_loopback *hairpin)
{
	if (!hairpin)
		return;
	for (uint32_t i = 0; i < hairpin->count; i++)
		let_go(hairpin->peers[i]);
	pthread_mutex_destroy(&hairpin->mutex);
	free(hairpin);
}

static int owns(const struct shm_peer *peer, uint32_t number)
{
	return number - peer->setup.first_number < peer->setup.numbers;
}

static struct shm_peer *find_peer(const struct shm_loopback *hairpin, uint32_t number)
{
	for (uint32_t i = 0; i < hairpin->count; i++)
		if (owns(hairpin->peers[i], number) && !load(&hairpin->peers[i]->out.control->dead))
			return hairpin->peers[i];
	return NULL;
}

int shm_loopback_join(struct shm_loopback *hairpin, const struct bypass_peer *setup)
{
	uint32_t rings = setup->bytes == SHM_RING_ALL ? 1 : 2, place = 0;

	if (find_peer(hairpin, setup->first_number) || setup->bytes != (uint64_t)rings * SHM_RING_ALL || setup->ring >= rings)
		return -1;
	/* one that has ended, and whose last records have been taken, makes room */
	while (place < hairpin->count && (!load(&hairpin->peers[place]->out.control->dead) ||
					  load(&hairpin->peers[place]->in.producer->tail) != hairpin->peers[place]->in.at))
		place++;
	struct shm_peer *peer = place < SHM_PEERS ? calloc(1, sizeof *peer) : NULL;
	if (!peer)
		return -1;
	peer->setup = *setup;
	peer->pull.pull = pull;
	find_end(&peer->out, setup->base, setup->ring);
	find_end(&peer->in, setup->base, rings - 1 - setup->ring);
	pthread_mutex_lock(&hairpin->mutex);
	if (place < hairpin->count)
		let_go(hairpin->peers[place]);
	else
		hairpin->count++;
	hairpin->peers[place] = peer;
	pthread_mutex_unlock(&hairpin->mutex);
	atomic_store(word(&peer->in.consumer->pulls), !pull(&peer->pull, NULL, NULL, 0));
	atomic_store(word(&peer->in.consumer->attached), 1);
	return 0;
}

/* ------------------------------------------------------------------ sending */

/* Whether packets of `lane` from this one on may go by the ring: none of the queue pair's that matters for the order is
 * on its way by the wire. */
static int goes(const struct shm_loopback_path *lane, uint32_t operation, uint64_t psn)
{
	uint16_t flags = opcode_rows[operation & 0xFF].flags;

	return is_open(lane->peer) && (lane->on || (flags & ROW_RESPONSE ? flags & ROW_START : psn == lane->record->una));
}

static int opens(struct engine_peer_path *self, const struct engine_qp *qp, uint32_t operation, uint64_t psn, uint64_t *epoch)
{
	struct shm_loopback_path *lane = (struct shm_loopback_path *)(void *)self;
	struct end *out = &lane->peer->out;

	if (!goes(lane, operation, psn) || !load(&out->consumer->pulls) || left_in(lane->peer) < SHM_RING_BYTES / 2)
		return 0;
	*epoch = epoch_of(out, be_get(qp->qpc, QPC_LOCAL_QPN), operation);
	return 1;
}

struct engine_peer_path *shm_loopback_path_of(struct shm_loopback *hairpin, const struct engine_qp *qp, struct shm_loopback_path *lane)
{
	struct shm_peer *peer = find_peer(hairpin, (uint32_t)be_get(qp->qpc, QPC_REMOTE_QPN));
	/* queue pairs of other devices have the same numbers: this one's own peers are where it is itself */
	if (memcmp(qp->flow.destination, qp->flow.source, qp->flow.address_bytes) ||
	    qp->flow.destination_port != qp->flow.source_port)
		peer = NULL;
	if (peer != lane->peer || lane->record != qp->record)
		*lane = (struct shm_loopback_path){ .lane.opens = opens, .hairpin = hairpin, .peer = peer, .record = qp->record };
	return peer ? &lane->lane : NULL;
}

/* The same for what leaves now. */
static int leaves(const struct shm_loopback_path *lane, const uint8_t *bytes, uint32_t segment)
{
	struct engine_by_reference bulk;

	if (segment)
		return goes(lane, bytes[0], be_load(bytes + PSN_AT, 3));
	memcpy(&bulk, bytes, sizeof bulk);
	return goes(lane, bulk.operation, bulk.psn);
}

int shm_loopback_divert(void *self, const uint8_t *bytes, size_t length, uint32_t segment, uint32_t count)
{
	struct shm_loopback_path *lane = self;
	struct shm_peer *peer = lane->peer;
	struct slot *slot = lane->hairpin->slot;

	lane->on = leaves(lane, bytes, segment);
	if (lane->on && !push(peer, segment ? KIND_PACKETS : KIND_BULK, segment, bytes, length)) {
		slot->hairpin_packets += count;
		if (!segment) {
			struct engine_by_reference bulk;
			memcpy(&bulk, bytes, sizeof bulk);
			slot->hairpin_bytes += bulk.bytes;
		}
		return 1;
	}
	lane->on = 0;
	if (!segment) {
		slot->hairpin_lost += count;
		return 1;
	}
	slot->hairpin_wire++;
	return 0;
}

/* ------------------------------------------------------------------ taking */

unsigned shm_loopback_receive(void *self, struct rx_buffer *slots, unsigned count)
{
	struct shm_loopback *hairpin = self;
	unsigned came = 0;

	hairpin->first = slots;
	for (uint32_t i = 0; i < hairpin->count && came < count; i++) {
		struct shm_peer *peer = hairpin->peers[(hairpin->next + i) % hairpin->count];
		struct mark mark;
		while (came < count && pop(peer, &mark, slots[came].buffer, slots[came].room)) {
			struct rx_buffer *slot = &slots[came];
			int bulk = mark.kind == KIND_BULK || mark.kind == KIND_REFUSED;
			if (bulk ? mark.bytes != sizeof(struct engine_by_reference) :
				   mark.kind != KIND_PACKETS || !mark.segment || !mark.bytes) {
				peer->broken = 1; /* no program that knows these rings puts such there */
				break;
			}
			slot->kind = mark.kind;
			slot->size = mark.bytes;
			slot->segment = mark.segment < mark.bytes ? mark.segment : mark.bytes;
			slot->name_bytes = hairpin->name_bytes;
			memcpy(slot->name, hairpin->name, hairpin->name_bytes);
			slot->tclass = 0;
			slot->hop_limit = UDP_DEFAULT_HOP_LIMIT;
			slot->flow_label = 0;
			hairpin->from[came++] = peer;
			if (bulk)
				count = came; /* that takes long: what it is answered with leaves before the next */
		}
	}
	if (hairpin->count)
		hairpin->next = (hairpin->next + 1) % hairpin->count;
	return came;
}

int shm_loopback_take(void *self, const struct rx_buffer *slot, uint64_t now, struct engine_stop_info *told)
{
	struct shm_loopback *hairpin = self;
	struct shm_peer *peer = hairpin->from[slot - hairpin->first];
	struct engine_by_reference bulk;
	enum engine_taken took;

	*told = (struct engine_stop_info){ .stop = STOP_DONE };
	memcpy(&bulk, slot->buffer, sizeof bulk);
	if (!owns(peer, slot->kind == KIND_BULK ? bulk.source : bulk.destination))
		return 1; /* its queue pairs have other numbers */
	if (slot->kind == KIND_REFUSED) {
		hairpin->slot->hairpin_refused += bulk.packets;
		engine_device_refused(hairpin->device, &bulk, now);
		return 1;
	}
	do {
		took = engine_device_by_reference(hairpin->device, &bulk, &peer->pull, now, told);
	} while (took == TAKEN_PARTIAL && told->stop == STOP_DONE);
	if (took == TAKEN_REFUSED && opcode_rows[bulk.operation & 0xFF].flags & ROW_RESPONSE)
		hairpin->slot->hairpin_refused += bulk.packets; /* they have been asked for again */
	else if (took == TAKEN_REFUSED)
		push(peer, KIND_REFUSED, 0, &bulk, sizeof bulk); /* where that is full the sender finds out by its timer */
	return took != TAKEN_PARTIAL && told->stop != STOP_FIND;
}

/* ------------------------------------------------------------------ sleeping */

/* By this end's own word, since nobody is to keep it awake by the other one. */
static int has_records(struct shm_peer *peer)
{
	return !peer->broken && load(&peer->in.producer->tail) != load(&peer->in.at);
}

int shm_loopback_pending(struct shm_loopback *hairpin, int sleeps)
{
	int waits = 0;

	pthread_mutex_lock(&hairpin->mutex);
	for (uint32_t i = 0; sleeps && i < hairpin->count; i++)
		atomic_store_explicit(word(&hairpin->peers[i]->in.consumer->asleep), 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = 0; i < hairpin->count && !waits; i++)
		waits = has_records(hairpin->peers[i]);
	pthread_mutex_unlock(&hairpin->mutex);
	return waits;
}
#endif
