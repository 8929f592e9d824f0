/* Doubly linked lists of records (state/lists.py). */
#include "device/lists.h"

static uint64_t *link_of(const struct engine_sched *sched, uint64_t item, size_t link)
{
	return (uint64_t *)(void *)(sched->arena + item + link);
}

void engine_list_append(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item)
{
	uint64_t *own = link_of(sched, item, link), last = ends[1];
	own[0] = 0;
	own[1] = last;
	if (last)
		link_of(sched, last, link)[0] = item;
	else
		ends[0] = item;
	ends[1] = item;
}

void engine_list_insert(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item, uint64_t before)
{
	uint64_t *own = link_of(sched, item, link);
	uint64_t after = before ? link_of(sched, before, link)[0] : ends[0];
	own[0] = after;
	own[1] = before;
	if (before)
		link_of(sched, before, link)[0] = item;
	else
		ends[0] = item;
	if (after)
		link_of(sched, after, link)[1] = item;
	else
		ends[1] = item;
}

void engine_list_unlink(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item)
{
	uint64_t *own = link_of(sched, item, link), after = own[0], before = own[1];
	if (before)
		link_of(sched, before, link)[0] = after;
	else
		ends[0] = after;
	if (after)
		link_of(sched, after, link)[1] = before;
	else
		ends[1] = before;
	own[0] = own[1] = 0;
}
