/* The deadlines of queue pairs: a binary heap of their records by armed_ns (device/timers.py). */
#include "device/timers.h"
#include "queue_pair/arithmetic.h"

static uint64_t *heap_of(const struct engine_sched *sched)
{
	return engine_record(sched, sched->timers->heap);
}

static struct queue_pair *record_at(const struct engine_sched *sched, uint64_t qp)
{
	return engine_record(sched, qp);
}

/* Put `qp` at `index`, or move later ones down to make room above. */
static void sift_up(const struct engine_sched *sched, uint64_t index, uint64_t qp, uint64_t deadline)
{
	uint64_t *heap = heap_of(sched);
	while (index > 1) {
		uint64_t above = heap[index >> 1];
		if (record_at(sched, above)->armed_ns <= deadline)
			break;
		heap[index] = above;
		record_at(sched, above)->timer_place = index;
		index >>= 1;
	}
	heap[index] = qp;
	record_at(sched, qp)->timer_place = index;
}

/* Put `qp` at `index`, or move sooner ones up to make room below. */
static void sift_down(const struct engine_sched *sched, uint64_t index, uint64_t qp, uint64_t deadline)
{
	uint64_t *heap = heap_of(sched), count = sched->timers->count, below;
	while ((below = index << 1) <= count) {
		uint64_t child = heap[below], soonest = record_at(sched, child)->armed_ns;
		if (below < count) {
			uint64_t other = heap[below + 1], time = record_at(sched, other)->armed_ns;
			if (time < soonest) {
				below++;
				child = other;
				soonest = time;
			}
		}
		if (soonest >= deadline)
			break;
		heap[index] = child;
		record_at(sched, child)->timer_place = index;
		index = below;
	}
	heap[index] = qp;
	record_at(sched, qp)->timer_place = index;
}

void engine_timers_arm(const struct engine_sched *sched, uint64_t qp, uint64_t deadline)
{
	struct queue_pair *record = record_at(sched, qp);
	record->armed_ns = deadline;
	sift_up(sched, record->timer_place ? record->timer_place : ++sched->timers->count, qp, deadline);
}

void engine_timers_forget(const struct engine_sched *sched, uint64_t qp)
{
	struct queue_pair *record = record_at(sched, qp);
	uint64_t index = record->timer_place, *heap = heap_of(sched);
	record->armed_ns = NEVER;
	if (!index)
		return;
	record->timer_place = 0;
	uint64_t last = sched->timers->count--;
	if (index == last)
		return;
	uint64_t moved = heap[last], deadline = record_at(sched, moved)->armed_ns;
	if (index > 1 && record_at(sched, heap[index >> 1])->armed_ns > deadline)
		sift_up(sched, index, moved, deadline);
	else
		sift_down(sched, index, moved, deadline);
}

uint64_t engine_timers_next(const struct engine_sched *sched)
{
	return sched->timers->count ? record_at(sched, heap_of(sched)[1])->armed_ns : NEVER;
}

uint64_t engine_timers_due(const struct engine_sched *sched, uint64_t now)
{
	if (!sched->timers->count)
		return 0;
	uint64_t qp = heap_of(sched)[1];
	if (record_at(sched, qp)->armed_ns > now)
		return 0;
	engine_timers_forget(sched, qp);
	return qp;
}

uint64_t engine_deadline_of(const struct queue_pair *record)
{
	uint64_t deadline = lesser(record->ack_deadline, record->probe_deadline);
	deadline = lesser(lesser(deadline, record->pace_ns), lesser(record->rnr_until, record->control_ns));
	return lesser(deadline, record->owed_ns);
}

void engine_rearm(const struct engine_sched *sched, uint64_t qp)
{
	const struct queue_pair *record = record_at(sched, qp);
	uint64_t deadline = engine_deadline_of(record);
	if (deadline < record->armed_ns && !record->held)
		engine_timers_arm(sched, qp, deadline);
}
