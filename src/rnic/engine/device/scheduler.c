/* The send scheduler: deficit round robin by bytes (device/scheduler.py). */
#include "device/scheduler.h"

#include "device/lists.h"

#define QP_LINK offsetof(struct queue_pair, next_ready)
#define PROGRAM_LINK offsetof(struct program, next)
enum { IN_ROTATION = 1, NEWCOMER = 2 };

/* ------------------------------------------------------------------ programs in rotation */

/* Append a program to the rotation. */
static void append_program(const struct engine_sched *sched, uint64_t at, int64_t deficit)
{
	struct program *program = engine_record(sched, at);
	program->listed = IN_ROTATION;
	program->deficit = (uint64_t)deficit;
	engine_list_append(sched, &sched->scheduler->first, PROGRAM_LINK, at);
}

/* Append a program to the newcomers, which are served before the others. */
static void insert_newcomer(const struct engine_sched *sched, uint64_t at)
{
	struct scheduler *scheduler = sched->scheduler;
	struct program *program = engine_record(sched, at);
	program->listed = NEWCOMER;
	program->deficit = scheduler->quantum / POLL_NEWCOMER_PART;
	engine_list_insert(sched, &scheduler->first, PROGRAM_LINK, at, scheduler->newest);
	scheduler->newest = at;
}

static void remove_program(const struct engine_sched *sched, uint64_t at)
{
	struct program *program = engine_record(sched, at);
	if (sched->scheduler->newest == at)
		sched->scheduler->newest = program->previous;
	program->listed = 0;
	engine_list_unlink(sched, &sched->scheduler->first, PROGRAM_LINK, at);
}

/* ------------------------------------------------------------------ queue pairs of a program */

void engine_scheduler_add(const struct engine_sched *sched, uint64_t qp)
{
	const struct queue_pair *record = engine_record(sched, qp);
	struct program *program = engine_record(sched, record->program_record);
	if (!program->listed && (int64_t)sched->scheduler->credit > 0)
		insert_newcomer(sched, record->program_record);
	else if (!program->listed)
		append_program(sched, record->program_record, (int64_t)sched->scheduler->quantum);
	engine_list_append(sched, &program->first, QP_LINK, qp);
	sched->scheduler->count++;
}

void engine_scheduler_remove(const struct engine_sched *sched, uint64_t qp)
{
	const struct queue_pair *record = engine_record(sched, qp);
	struct program *program = engine_record(sched, record->program_record);
	engine_list_unlink(sched, &program->first, QP_LINK, qp);
	sched->scheduler->count--;
	if (!program->first && sched->scheduler->turn != record->program_record)
		remove_program(sched, record->program_record);
}

void engine_schedule(const struct engine_sched *sched, uint64_t qp)
{
	struct queue_pair *record = engine_record(sched, qp);
	if (record->scheduled)
		return;
	record->scheduled = 1;
	if (!record->held)
		engine_scheduler_add(sched, qp);
}

uint64_t engine_scheduler_take(const struct engine_sched *sched)
{
	struct scheduler *scheduler = sched->scheduler;
	for (;;) {
		uint64_t at = scheduler->first;
		struct program *program = engine_record(sched, at);
		int64_t deficit = (int64_t)program->deficit;
		if (deficit <= 0) {
			remove_program(sched, at);
			append_program(sched, at, deficit + (int64_t)scheduler->quantum);
			continue;
		}
		uint64_t qp = program->first;
		struct queue_pair *record = engine_record(sched, qp);
		scheduler->turn = at;
		engine_list_unlink(sched, &program->first, QP_LINK, qp);
		if ((int64_t)record->deficit <= 0)
			record->deficit += record->turn;
		if ((int64_t)record->deficit > 0) {
			scheduler->count--;
			return qp;
		}
		engine_list_append(sched, &program->first, QP_LINK, qp);
	}
}

int engine_scheduler_allowance(const struct engine_sched *sched, uint64_t qp, int64_t *bytes)
{
	const struct scheduler *scheduler = sched->scheduler;
	const struct queue_pair *record = engine_record(sched, qp);
	if (!scheduler->count)
		return 0;
	*bytes = (int64_t)record->deficit;
	if (scheduler->first != scheduler->last) {
		const struct program *program = engine_record(sched, scheduler->first);
		int64_t all = (int64_t)program->deficit;
		if (all < *bytes)
			*bytes = all;
	}
	return 1;
}

void engine_scheduler_end(const struct engine_sched *sched)
{
	uint64_t at = sched->scheduler->turn;
	const struct program *program = engine_record(sched, at);
	sched->scheduler->turn = 0;
	if (at && !program->first)
		remove_program(sched, at);
}

void engine_scheduler_spend(const struct engine_sched *sched, uint64_t qp, uint64_t size, int again)
{
	struct scheduler *scheduler = sched->scheduler;
	uint64_t at = scheduler->turn;
	struct program *program = engine_record(sched, at);
	struct queue_pair *record = engine_record(sched, qp);
	int alone = !scheduler->count, newcomer = program->listed == NEWCOMER;
	int64_t deficit = (int64_t)(program->deficit - size), own = 0;
	if (again && !alone)
		own = (int64_t)(record->deficit - size);
	record->deficit = (uint64_t)own;
	scheduler->credit += newcomer ? -size : size;
	if ((int64_t)scheduler->credit > (int64_t)scheduler->quantum)
		scheduler->credit = scheduler->quantum;
	scheduler->turn = 0;
	if (again) {
		if (own > 0) /* its program's deficit was used up before its own */
			engine_list_insert(sched, &program->first, QP_LINK, qp, 0);
		else
			engine_list_append(sched, &program->first, QP_LINK, qp);
		scheduler->count++;
	}
	if (deficit > 0 && program->first) {
		program->deficit = (uint64_t)deficit;
		return;
	}
	remove_program(sched, at);
	scheduler->over = newcomer && scheduler->first && !scheduler->newest;
	if (program->first)
		append_program(sched, at, (int64_t)scheduler->quantum + (alone || deficit > 0 ? 0 : deficit));
}
