/* Deadlines of queue pairs: a binary heap of their records by armed_ns (device/timers.py). */
#include "device/timers.h"

static uint64_t *heap_of(const struct engine_sched *sched)
{
	return engine_record(sched, sched->timers->heap);
}

static struct queue_pair *at(const struct engine_sched *sched, uint64_t qp)
{
	return engine_record(sched, qp);
}

/* Put `qp` at `place`, or above, where those that are later make way. */
static void rise(const struct engine_sched *sched, uint64_t place, uint64_t qp, uint64_t deadline)
{
	uint64_t *heap = heap_of(sched);
	while (place > 1) {
		uint64_t above = heap[place >> 1];
		if (at(sched, above)->armed_ns <= deadline)
			break;
		heap[place] = above;
		at(sched, above)->timer_place = place;
		place >>= 1;
	}
	heap[place] = qp;
	at(sched, qp)->timer_place = place;
}

/* Put `qp` at `place`, or below, where those that are sooner make way. */
static void sink(const struct engine_sched *sched, uint64_t place, uint64_t qp, uint64_t deadline)
{
	uint64_t *heap = heap_of(sched), count = sched->timers->count, below;
	while ((below = place << 1) <= count) {
		uint64_t child = heap[below], soonest = at(sched, child)->armed_ns;
		if (below < count) {
			uint64_t other = heap[below + 1], time = at(sched, other)->armed_ns;
			if (time < soonest) {
				below++;
				child = other;
				soonest = time;
			}
		}
		if (soonest >= deadline)
			break;
		heap[place] = child;
		at(sched, child)->timer_place = place;
		place = below;
	}
	heap[place] = qp;
	at(sched, qp)->timer_place = place;
}

void engine_timers_arm(const struct engine_sched *sched, uint64_t qp, uint64_t deadline)
{
	struct queue_pair *record = at(sched, qp);
	record->armed_ns = deadline;
	rise(sched, record->timer_place ? record->timer_place : ++sched->timers->count, qp, deadline);
}

void engine_timers_forget(const struct engine_sched *sched, uint64_t qp)
{
	struct queue_pair *record = at(sched, qp);
	uint64_t place = record->timer_place, *heap = heap_of(sched);
	record->armed_ns = NEVER;
	if (!place)
		return;
	record->timer_place = 0;
	uint64_t last = sched->timers->count--;
	if (place == last)
		return;
	uint64_t moved = heap[last], deadline = at(sched, moved)->armed_ns;
	if (place > 1 && at(sched, heap[place >> 1])->armed_ns > deadline)
		rise(sched, place, moved, deadline);
	else
		sink(sched, place, moved, deadline);
}

uint64_t engine_timers_next(const struct engine_sched *sched)
{
	return sched->timers->count ? at(sched, heap_of(sched)[1])->armed_ns : NEVER;
}

uint64_t engine_timers_due(const struct engine_sched *sched, uint64_t now)
{
	if (!sched->timers->count)
		return 0;
	uint64_t qp = heap_of(sched)[1];
	if (at(sched, qp)->armed_ns > now)
		return 0;
	engine_timers_forget(sched, qp);
	return qp;
}

static uint64_t sooner(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

uint64_t engine_deadline_of(const struct queue_pair *record)
{
	uint64_t deadline = sooner(record->ack_deadline, record->probe_deadline);
	deadline = sooner(sooner(deadline, record->pace_ns), sooner(record->rnr_until, record->relief_ns));
	return sooner(deadline, record->owed_ns);
}

void engine_rearm(const struct engine_sched *sched, uint64_t qp)
{
	const struct queue_pair *record = at(sched, qp);
	uint64_t deadline = engine_deadline_of(record);
	if (deadline < record->armed_ns && !record->held)
		engine_timers_arm(sched, qp, deadline);
}
