/* The in-flight budget: the accounts of the NIC and of each peer, and the queue pairs that wait for room
 * (transport/inflight.py). */
#include "device/inflight.h"

#include "device/lists.h"
#include "device/scheduler.h"
#include "queue_pair/arithmetic.h"
#include "queue_pair/requester.h"

#include <stdatomic.h>

#define WAITING_LINK offsetof(struct queue_pair, next_waiting)
#define LINE_LINK offsetof(struct line, next)
#define PEER_LINK offsetof(struct peer, next_peer)

/* ------------------------------------------------------------------ a peer's limit */

static uint64_t limit_of(const struct peer *peer)
{
	return peer->limit_16 >> INFLIGHT_FRACTION_BITS;
}

/* Reduce the limit, at most once a round trip. */
static void reduce_limit(struct peer *peer, uint64_t limit_16, uint64_t least, uint64_t now)
{
	if ((int64_t)(now - peer->cut_ns) <= (int64_t)peer->srtt)
		return;
	peer->cut_ns = now;
	peer->limit_16 = greater(limit_16, lesser(least << INFLIGHT_FRACTION_BITS, peer->limit_16));
}

void engine_peer_measured(struct peer *peer, uint64_t sample, uint64_t now)
{
	if (!peer->srtt) {
		peer->srtt = sample;
		peer->rttvar = sample >> 1;
	} else {
		int64_t off = (int64_t)(sample - peer->srtt), apart = off < 0 ? -off : off;
		peer->rttvar += (uint64_t)((apart - (int64_t)peer->rttvar) >> 2);
		peer->srtt += (uint64_t)(off >> 3);
	}
	if (!peer->low || (int64_t)(now - peer->low_since) > (int64_t)INFLIGHT_LOW_NS) {
		peer->low_before = peer->low ? peer->low : sample;
		peer->low = sample;
		peer->low_since = now;
	} else if (sample < peer->low) {
		peer->low = sample;
	}
	uint64_t shortest = lesser(peer->low, peer->low_before);
	peer->queue_ns = sample - shortest;
	peer->samples++;
	peer->least = peer->samples == 1 ? sample : lesser(peer->least, sample);
	if (peer->samples != INFLIGHT_SAMPLES)
		return;
	peer->samples = 0;
	int64_t queue_ns = (int64_t)(peer->least - shortest);
	if (queue_ns > (int64_t)INFLIGHT_QUEUE_NS) {
		uint64_t limit = peer->limit_16;
		reduce_limit(peer, greater(limit >> 1, limit * INFLIGHT_QUEUE_NS / (uint64_t)queue_ns),
			     INFLIGHT_CROWDED, now);
	}
}

void engine_peer_acknowledged(struct peer *peer, uint64_t packets)
{
	uint64_t limit = peer->limit_16, most = peer->most << INFLIGHT_FRACTION_BITS;
	if (limit >= most || !limit || (!peer->waiting && peer->inflight << (INFLIGHT_FRACTION_BITS + 1) <= limit))
		return;
	if (peer->queue_ns <= INFLIGHT_QUEUE_NS >> 2)
		limit += (packets << INFLIGHT_FRACTION_BITS) >> (peer->lossy ? 2 : 1);
	else if (peer->queue_ns <= INFLIGHT_QUEUE_NS)
		limit += div64(packets * INFLIGHT_STEP << 2 * INFLIGHT_FRACTION_BITS, limit);
	peer->limit_16 = lesser(limit, most);
}

void engine_peer_lost(struct peer *peer, uint64_t now)
{
	peer->lossy = 1;
	reduce_limit(peer, peer->limit_16 >> 1, INFLIGHT_LOSSY, now);
}

void engine_peer_silent(struct peer *peer, uint64_t now)
{
	reduce_limit(peer, 0, INFLIGHT_LEAST, now);
}

/* ------------------------------------------------------------------ the device's budget page (transport/budget.py) */

/* Load a word of the budget page once: other programs may store anything to the page at any time. */
static uint64_t load_word(const uint32_t *word)
{
	return atomic_load_explicit((const _Atomic uint32_t *)(const void *)word, memory_order_relaxed);
}

/* Store a word unless it has the value already, since other programs read it. */
static void store_word(uint32_t *word, uint64_t value)
{
	if (load_word(word) != (uint32_t)value)
		atomic_store_explicit((_Atomic uint32_t *)(void *)word, (uint32_t)value, memory_order_relaxed);
}

static struct share *shares_of(const struct engine_sched *sched, uint64_t entry)
{
	return (struct share *)(void *)(sched->budget + sizeof(struct budget)) + entry * BUDGET_SLOTS;
}

static uint64_t slots_of(const struct engine_sched *sched)
{
	return lesser(load_word(&((const struct budget *)(const void *)sched->budget)->slots), BUDGET_SLOTS);
}

static int is_active(const struct share *share)
{
	return load_word(&share->held) || load_word(&share->waits);
}

/* Count the other slots that have packets in flight to an entry or wait; `*learned` is the highest limit learned by one
 * of them. */
static uint64_t count_others(const struct engine_sched *sched, uint64_t entry, uint64_t *learned)
{
	const struct share *shares = shares_of(sched, entry);
	uint64_t slots = slots_of(sched), others = 0;

	*learned = 0;
	for (uint64_t i = 0; i < slots; i++) {
		if (i == sched->slot || !is_active(&shares[i]))
			continue;
		others++;
		*learned = greater(*learned, load_word(&shares[i].limit));
	}
	return others;
}

/* Return the part of a pool that `others` leave for this slot, whose own account allows `own`; `most` bounds every
 * account. */
static uint64_t left_by_others(const struct engine_sched *sched, uint64_t entry, uint64_t others, uint64_t own,
			       uint64_t most, uint64_t pool)
{
	const struct share *shares = shares_of(sched, entry);
	uint64_t slots = others ? slots_of(sched) : 0, part = others ? div64(pool, 1 + others) : 0;
	int64_t left = (int64_t)pool;

	for (uint64_t i = 0; i < slots; i++) {
		if (i == sched->slot)
			continue;
		uint64_t claim = load_word(&shares[i].waits) ? lesser(lesser(load_word(&shares[i].limit), most), part) :
							       0;
		left -= (int64_t)greater(load_word(&shares[i].held), claim);
	}
	return lesser(own, left < (int64_t)BUDGET_LEAST ? BUDGET_LEAST : (uint64_t)left);
}

static uint64_t limit_to_peer(const struct engine_sched *sched, const struct peer *peer)
{
	uint64_t limit = limit_of(peer), most = sched->inflight->limit, learned;

	if (!sched->budget || peer->entry == BUDGET_NIC_ENTRY || peer->entry >= BUDGET_ENTRIES)
		return limit;
	uint64_t others = count_others(sched, peer->entry, &learned);
	return left_by_others(sched, peer->entry, others, limit, most, greater(limit, lesser(learned, most)));
}

static uint64_t limit_of_all(const struct engine_sched *sched, uint64_t *others)
{
	uint64_t own = sched->inflight->limit, learned;

	*others = 0;
	if (!sched->budget)
		return own;
	uint64_t all = load_word(&((const struct budget *)(const void *)sched->budget)->limit);
	*others = count_others(sched, BUDGET_NIC_ENTRY, &learned);
	return left_by_others(sched, BUDGET_NIC_ENTRY, *others, own, own, greater(all, BUDGET_LEAST));
}

void engine_inflight_limits(const struct engine_sched *sched, const struct peer *peer, struct engine_limits *limits)
{
	limits->peer = limit_to_peer(sched, peer);
	limits->nic = limit_of_all(sched, &limits->others);
}

static void publish_share(const struct engine_sched *sched, uint64_t entry, uint64_t held, uint64_t limit,
			  uint64_t waiting)
{
	struct share *own = shares_of(sched, entry) + sched->slot;

	store_word(&own->held, held);
	store_word(&own->limit, limit);
	store_word(&own->waits, waiting != 0);
}

static void publish_peer(const struct engine_sched *sched, const struct peer *peer)
{
	if (sched->budget && peer->entry != BUDGET_NIC_ENTRY && peer->entry < BUDGET_ENTRIES)
		publish_share(sched, peer->entry, peer->inflight + peer->promised, limit_of(peer), peer->waiting);
}

static void publish_nic(const struct engine_sched *sched)
{
	const struct inflight *inflight = sched->inflight;

	if (sched->budget)
		publish_share(sched, BUDGET_NIC_ENTRY, inflight->packets + inflight->promised, inflight->limit,
			      inflight->waited_for);
}

/* ------------------------------------------------------------------ waiting for room */

static void enqueue_peer(const struct engine_sched *sched, uint64_t peer)
{
	engine_list_append(sched, &sched->inflight->first_peer, PEER_LINK, peer);
	sched->inflight->waited_for++;
}

static void dequeue_peer(const struct engine_sched *sched, uint64_t peer)
{
	engine_list_unlink(sched, &sched->inflight->first_peer, PEER_LINK, peer);
	sched->inflight->waited_for--;
}

/* Remove a waiting queue pair from its line and return the line; 0 if it became empty and spare. */
static uint64_t leave_line(const struct engine_sched *sched, struct peer *peer, uint64_t qp)
{
	struct queue_pair *record = engine_record(sched, qp);
	uint64_t at = record->line;
	struct line *line = engine_record(sched, at);
	engine_list_unlink(sched, &line->first, WAITING_LINK, qp);
	record->line = 0;
	peer->waiting--;
	if (line->first)
		return at;
	engine_list_unlink(sched, &peer->first_line, LINE_LINK, at);
	line->next = sched->inflight->spare_line;
	sched->inflight->spare_line = at;
	return 0;
}

int engine_inflight_wait(const struct engine_sched *sched, uint64_t qp)
{
	struct queue_pair *record = engine_record(sched, qp);
	struct inflight *inflight = sched->inflight;
	struct line *line = NULL;

	if (record->parked)
		return 0;
	struct peer *peer = engine_record(sched, record->peer_record);
	uint64_t at = peer->first_line;
	for (; at; at = line->next) {
		line = engine_record(sched, at);
		if (line->program == record->program)
			break;
	}
	if (!at) {
		at = inflight->spare_line;
		if (!at)
			return -1;
		line = engine_record(sched, at);
		inflight->spare_line = line->next;
		*line = (struct line){ .program = record->program };
		engine_list_append(sched, &peer->first_line, LINE_LINK, at);
	}
	record->parked = 1;
	engine_list_append(sched, &line->first, WAITING_LINK, qp);
	record->line = at;
	if (!peer->waiting)
		enqueue_peer(sched, record->peer_record);
	peer->waiting++;
	publish_peer(sched, peer);
	publish_nic(sched);
	return 0;
}

void engine_inflight_leave(const struct engine_sched *sched, uint64_t qp)
{
	struct queue_pair *record = engine_record(sched, qp);
	if (record->parked) {
		struct peer *peer = engine_record(sched, record->peer_record);
		record->parked = 0;
		leave_line(sched, peer, qp);
		if (!peer->waiting)
			dequeue_peer(sched, record->peer_record);
		publish_peer(sched, peer);
	}
	engine_inflight_turn_over(sched, qp);
}

/* Take the next queue pair that waits for a peer, and move its program's line to the end. */
static uint64_t take_next_waiter(const struct engine_sched *sched, struct peer *peer)
{
	uint64_t at = peer->first_line;
	const struct line *line = engine_record(sched, at);
	uint64_t qp = line->first;
	if (leave_line(sched, peer, qp)) {
		engine_list_unlink(sched, &peer->first_line, LINE_LINK, at);
		engine_list_append(sched, &peer->first_line, LINE_LINK, at);
	}
	return qp;
}

/* Give turns to waiting queue pairs, peer by peer, while there is room that is not promised. */
static void admit_waiters(const struct engine_sched *sched)
{
	struct inflight *inflight = sched->inflight;
	uint64_t blocked = 0;
	while (blocked < inflight->waited_for) {
		uint64_t at = inflight->first_peer;
		struct peer *peer = engine_record(sched, at);
		int alone = inflight->waited_for == 1;
		struct engine_limits limits;
		engine_inflight_limits(sched, peer, &limits);
		uint64_t share = inflight_quantum(limits.peer, peer->waiting > 1 || !alone || peer->users > 1);
		int64_t left = (int64_t)(limits.nic - inflight->packets - inflight->promised);
		uint64_t used = peer->inflight + peer->promised;
		if (used &&
		    (left < (int64_t)lesser(share, limits.nic) || (int64_t)(limits.peer - used) < (int64_t)share)) {
			blocked++;
			if (!alone) { /* move to the end; usually there are no others */
				dequeue_peer(sched, at);
				enqueue_peer(sched, at);
			}
			continue;
		}
		dequeue_peer(sched, at);
		uint64_t qp = take_next_waiter(sched, peer);
		struct queue_pair *record = engine_record(sched, qp);
		if (peer->waiting)
			enqueue_peer(sched, at);
		record->parked = 0;
		record->admitted = share;
		peer->promised += share;
		inflight->promised += share;
		inflight->overtaken = 0;
		publish_peer(sched, peer);
		blocked = 0;
		engine_schedule(sched, qp);
	}
}

/* ------------------------------------------------------------------ the accounts */

void engine_inflight_take(const struct engine_sched *sched, struct peer *peer, uint64_t packets, uint64_t own)
{
	peer->inflight += packets;
	sched->inflight->packets += packets;
	peer->promised -= own;
	sched->inflight->promised -= own;
	if (!own && peer->waiting)
		sched->inflight->overtaken += packets;
	publish_peer(sched, peer);
	publish_nic(sched);
}

void engine_inflight_release(const struct engine_sched *sched, struct peer *peer, uint64_t packets)
{
	peer->inflight -= packets;
	sched->inflight->packets -= packets;
	publish_peer(sched, peer);
	if (sched->inflight->waited_for)
		admit_waiters(sched);
	publish_nic(sched);
}

void engine_inflight_turn_over(const struct engine_sched *sched, uint64_t qp)
{
	struct queue_pair *record = engine_record(sched, qp);
	uint64_t own = record->admitted;
	if (own) {
		struct peer *peer = engine_record(sched, record->peer_record);
		record->admitted = 0;
		peer->promised -= own;
		sched->inflight->promised -= own;
		publish_peer(sched, peer);
	}
	if (sched->inflight->waited_for)
		admit_waiters(sched);
	publish_nic(sched);
}
