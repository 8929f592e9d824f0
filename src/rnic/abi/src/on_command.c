/*
 * Apply rules of a fault script in the library (rnic.link.verbs_faults): failing posts, completions with another status or a delay, polls with few completions.
 *
 * A context without such rules does not use these functions. In a context with rules, they wrap the plain operations.
 */
#include "on_command.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "cq.h"
#include "io/clock.h"
#include "io/nocancel.h"
#include "post.h"
#include "qp.h"
#include "rnic_reasons.h"
#include "srq.h"
#include "wqe.h"

enum { QP_NUMBERS = 1 << 15, COUNTED = QP_NUMBERS + 1, RECEIVED = RNIC_RECEIVED };

struct rule {
	uint32_t verb, action, number, opcodes, qp;
	uint64_t value, nth, every, times, threshold, seed;
};

/* Counts of a rule for one queue pair. All shared receive queues share the last one. */
struct count {
	uint64_t seen, acted;
};

struct on_command {
	pthread_mutex_t lock;
	size_t rules;
	int limit; /* completions of a poll, 0 for any number */
	struct ibv_context_ops plain; /* the operations without rules */
	struct count *counts; /* COUNTED of each rule */
	struct rule rule[];
};

/* ---- kinds of request, by their index in RNIC_WORK_REQUESTS */

#define PLACE(verbs, name, completion, key) PLACE_##name,
enum { RNIC_WORK_REQUESTS(PLACE) };

#define PLACE_OF(verbs, name, completion, key) [RNIC_WR_##name] = PLACE_##name,
static const uint8_t place_of_request[256] = { RNIC_WORK_REQUESTS(PLACE_OF) };

#define PLACE_OF_VERBS(verbs, name, completion, key) [IBV_WR_##verbs] = PLACE_##name,
static const uint8_t place_of_verbs[] = { RNIC_WORK_REQUESTS(PLACE_OF_VERBS) };

#define PLACE_OF_WC(verbs, name, completion, key) [IBV_WC_##completion] = PLACE_##name,
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init" /* any of those with one name: rules do not distinguish them */
static const uint8_t place_of_completion[] = { RNIC_WORK_REQUESTS(PLACE_OF_WC) };
#pragma GCC diagnostic pop

/* ---- rules */

/* Return 64 bits that depend on all bits of both (rnic.link.fault_script.mix). */
static uint64_t mix(uint64_t state, uint64_t word)
{
	state = (state ^ word) + 0x9E3779B97F4A7C15u;
	state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
	state = (state ^ state >> 27) * 0x94D049BB133111EBu;
	return state ^ state >> 31;
}

static bool is_chosen(const struct rule *rule, uint32_t key, uint64_t seen)
{
	uint64_t first = rule->nth ? rule->nth : rule->every;

	if (rule->threshold)
		return mix(mix(rule->seed, key), seen) < rule->threshold;
	if (!rule->every)
		return !rule->nth || seen == rule->nth;
	return seen >= first && (seen - first) % rule->every == 0;
}

/* Count a call or completion, and return the first rule that acts on it, NULL if none does. `key` selects its counts, `qp` is its queue pair. */
static const struct rule *judge(struct on_command *faults, uint32_t verb, uint32_t key, uint32_t qp, unsigned place)
{
	const struct rule *struck = NULL;
	int before = nocancel_begin();

	pthread_mutex_lock(&faults->lock);
	for (size_t i = 0; i < faults->rules; i++) {
		const struct rule *rule = &faults->rule[i];
		struct count *count = &faults->counts[i * COUNTED + key];

		if (rule->verb != verb || rule->action == RNIC_FAULT_LIMIT || (rule->qp && rule->qp != qp) ||
		    (rule->opcodes && !(rule->opcodes >> place & 1)))
			continue;
		count->seen++;
		if ((rule->times && count->acted == rule->times) || !is_chosen(rule, key, count->seen))
			continue;
		count->acted++;
		if (!struck)
			struck = rule;
	}
	pthread_mutex_unlock(&faults->lock);
	nocancel_end(before);
	return struck;
}

static uint32_t key_of(uint32_t qp)
{
	return qp & (QP_NUMBERS - 1);
}

void on_command_new_qp(struct rnic_context *context, uint32_t number)
{
	struct on_command *faults = context->on_command;

	for (size_t i = 0; faults && i < faults->rules; i++)
		faults->counts[i * COUNTED + key_of(number)] = (struct count){ 0, 0 };
}

/* ---- posts */

static int fail_post(const struct rule *rule, const char *verb)
{
	char error[16];

	snprintf(error, sizeof error, "errno %u", (unsigned)rule->value);
	return why_on_command((int)rule->value, verb, error, (long long)rule->number);
}

static int post_send(struct ibv_qp *verbs, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct on_command *faults = context_of(verbs->context)->on_command;

	if (!wr)
		return faults->plain.post_send(verbs, wr, bad);
	unsigned place = (unsigned)wr->opcode < COUNT(place_of_verbs) ? place_of_verbs[wr->opcode] : RECEIVED;
	const struct rule *rule = judge(faults, RNIC_VERB_POST_SEND, key_of(verbs->qp_num), verbs->qp_num, place);

	if (!rule)
		return faults->plain.post_send(verbs, wr, bad);
	*bad = wr;
	return fail_post(rule, "ibv_post_send");
}

static int post_recv(struct ibv_qp *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct on_command *faults = context_of(verbs->context)->on_command;
	const struct rule *rule = judge(faults, RNIC_VERB_POST_RECV, key_of(verbs->qp_num), verbs->qp_num, RECEIVED);

	if (!rule)
		return faults->plain.post_recv(verbs, wr, bad);
	*bad = wr;
	return fail_post(rule, "ibv_post_recv");
}

static int post_srq_recv(struct ibv_srq *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct on_command *faults = context_of(verbs->context)->on_command;
	const struct rule *rule = judge(faults, RNIC_VERB_POST_RECV, QP_NUMBERS, QP_NUMBERS, RECEIVED);

	if (!rule)
		return faults->plain.post_srq_recv(verbs, wr, bad);
	*bad = wr;
	return fail_post(rule, "ibv_post_srq_recv");
}

/* ibv_wr_complete posts what was built since ibv_wr_start: one call counts once. */
static int wr_complete(struct ibv_qp_ex *verbs)
{
	struct rnic_qp *qp = (struct rnic_qp *)verbs;
	struct on_command *faults = context_of(verbs->qp_base.context)->on_command;
	const struct rule *rule = NULL;

	if (!qp->wr_error && qp->wr_tail != qp->tail)
		rule = judge(faults, RNIC_VERB_POST_SEND, key_of(qp->number), qp->number,
			     place_of_request[qp->sq[qp->tail].opcode & 0xFF]);
	if (rule)
		qp->wr_error = fail_post(rule, "ibv_wr_complete");
	return qp->wr_complete(verbs);
}

/* ---- completions */

/* Move a queue pair to the error state, as after an error completion. */
static void fail_qp(struct rnic_context *context, uint32_t number)
{
	nic_command(context, RNIC_CMD_TOERR, RNIC_CMD_TOERR_ON_COMMAND, number, NULL, 0, NULL, 0, NULL);
}

static void sleep_until(uint64_t due)
{
	uint64_t now = clock_now();
	int before = nocancel_begin();

	while (now < due) {
		struct timespec rest = { .tv_sec = (time_t)((due - now) / 1000000000u),
					 .tv_nsec = (long)((due - now) % 1000000000u) };

		nanosleep(&rest, NULL);
		now = clock_now();
	}
	nocancel_end(before);
}

static unsigned place_of_wc(const struct ibv_wc *wc)
{
	return (unsigned)wc->opcode < COUNT(place_of_completion) ? place_of_completion[wc->opcode] : RECEIVED;
}

/* Take the delayed completion. Returns 0 if it is not due yet. */
static int take_late(struct rnic_cq *cq, struct ibv_wc *wc)
{
	int found = 0;

	pthread_mutex_lock(&cq->lock);
	if (cq->late_until && clock_now() >= cq->late_until) {
		*wc = cq->late;
		cq->late_until = 0;
		found = 1;
	}
	pthread_mutex_unlock(&cq->lock);
	return found;
}

/* Delay a completion. Returns false if one is delayed already, polled by another thread. */
static bool hold_back(struct rnic_cq *cq, const struct ibv_wc *wc, uint64_t until)
{
	bool free;

	pthread_mutex_lock(&cq->lock);
	free = !cq->late_until;
	if (free) {
		cq->late = *wc;
		cq->late_until = until;
	}
	pthread_mutex_unlock(&cq->lock);
	return free;
}

/* Take one completion and apply rules to it. Returns 1, 0 for none, or the poll's error. */
static int poll_one(struct ibv_cq *verbs, struct ibv_wc *wc)
{
	struct rnic_cq *cq = (struct rnic_cq *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	const struct rule *rule;
	int found;

	if (cq->late_until) {
		if (context->slot)
			driver_poll(context->slot);
		return take_late(cq, wc);
	}
	found = context->on_command->plain.poll_cq(verbs, 1, wc);
	if (found <= 0)
		return found;
	rule = judge(context->on_command, RNIC_VERB_POLL_CQ, key_of(wc->qp_num), wc->qp_num, place_of_wc(wc));
	if (!rule)
		return found;
	if (rule->action == RNIC_FAULT_STATUS) {
		wc->status = (int)rule->value;
		fail_qp(context, wc->qp_num);
		return found;
	}
	/* Nothing would wake a program that sleeps for events when it is due, so its poll waits that long. */
	if (!verbs->channel && hold_back(cq, wc, clock_now() + rule->value))
		return 0;
	sleep_until(clock_now() + rule->value);
	return found;
}

static int poll_cq(struct ibv_cq *verbs, int count, struct ibv_wc *wc)
{
	struct rnic_context *context = context_of(verbs->context);
	int found = 0, limit = context->on_command->limit;

	if (limit && count > limit)
		count = limit;
	while (found < count) {
		int got = poll_one(verbs, wc + found);

		if (got <= 0)
			return found ? found : got;
		found++;
	}
	return found;
}

/* Apply rules to the current entry of an extended queue, which is locked. A delay makes the poll take as long. */
static void judge_current(struct rnic_cq *cq)
{
	struct rnic_context *context = context_of(cq->verbs.context);
	uint32_t qp = cq->current.word[CQE_WORD(QPN)] & 0xFFFFFF, word = cq->current.word[CQE_WORD(OPCODE)];
	unsigned place = word & RNIC_BIT_CQE_RECEIVE ? RECEIVED : place_of_request[word & 0xFF];
	const struct rule *rule = judge(context->on_command, RNIC_VERB_POLL_CQ, key_of(qp), qp, place);

	if (rule && rule->action == RNIC_FAULT_STATUS) {
		cq->verbs.status = (int)rule->value;
		fail_qp(context, qp);
	} else if (rule) {
		sleep_until(clock_now() + rule->value);
	}
}

static int start_poll(struct ibv_cq_ex *verbs, struct ibv_poll_cq_attr *attr)
{
	struct rnic_cq *cq = (struct rnic_cq *)verbs;
	int error = cq->start_poll(verbs, attr);

	cq->polled = 1;
	if (!error)
		judge_current(cq);
	return error;
}

static int next_poll(struct ibv_cq_ex *verbs)
{
	struct rnic_cq *cq = (struct rnic_cq *)verbs;
	int error, limit = context_of(cq->verbs.context)->on_command->limit;

	if (limit && cq->polled >= limit)
		return ENOENT;
	error = cq->next_poll(verbs);
	cq->polled++;
	if (!error)
		judge_current(cq);
	return error;
}

/* ---- opening */

static uint64_t read_le(const uint8_t *record, unsigned at, unsigned bytes)
{
	uint64_t value = 0;

	memcpy(&value, record + at, bytes);
	return value;
}

#define FIELD(name) read_le(record, RNIC_VERBS_RULE_##name##_AT, 8)
#define WORD(name) (uint32_t)read_le(record, RNIC_VERBS_RULE_##name##_AT, 4)

static int keep_rules(struct rnic_context *context, const struct rpc_reply *reply)
{
	size_t rules = reply->bytes / RNIC_VERBS_RULE_SIZE;
	struct on_command *faults = calloc(1, sizeof *faults + rules * sizeof *faults->rule);

	if (!faults)
		return ENOMEM;
	faults->counts = calloc(rules ? rules * COUNTED : 1, sizeof *faults->counts);
	if (!faults->counts) {
		free(faults);
		return ENOMEM;
	}
	pthread_mutex_init(&faults->lock, NULL);
	faults->rules = rules;
	for (size_t i = 0; i < rules; i++) {
		const uint8_t *record = reply->body + i * RNIC_VERBS_RULE_SIZE;
		struct rule *rule = &faults->rule[i];

		*rule = (struct rule){ .verb = WORD(VERB),
				       .action = WORD(ACTION),
				       .number = WORD(RULE),
				       .opcodes = WORD(OPCODES),
				       .qp = WORD(QP),
				       .value = FIELD(VALUE),
				       .nth = FIELD(NTH),
				       .every = FIELD(EVERY),
				       .times = FIELD(TIMES),
				       .threshold = FIELD(THRESHOLD),
				       .seed = FIELD(SEED) };
		if (rule->action == RNIC_FAULT_LIMIT && !faults->limit)
			faults->limit = (int)rule->value;
	}
	faults->plain = context->verbs.context.ops;
	context->on_command = faults;
	context->verbs.context.ops.poll_cq = poll_cq;
	context->verbs.context.ops.post_send = post_send;
	context->verbs.context.ops.post_recv = post_recv;
	context->verbs.context.ops.post_srq_recv = post_srq_recv;
	return 0;
}

int on_command_open(struct rnic_context *context)
{
	uint32_t rules;
	struct rpc_reply *reply;
	int error;

	memcpy(&rules, context->window + RNIC_WINDOW_VERBS_RULES_AT, sizeof rules);
	if (!rules)
		return 0;
	reply = malloc(sizeof *reply);
	error = reply ? nic_request(context, RNIC_MSG_VERBS_RULES, NULL, 0, NULL, 0, reply) : ENOMEM;
	if (!error)
		error = keep_rules(context, reply);
	free(reply);
	return error;
}

void on_command_close(struct rnic_context *context)
{
	if (!context->on_command)
		return;
	pthread_mutex_destroy(&context->on_command->lock);
	free(context->on_command->counts);
	free(context->on_command);
	context->on_command = NULL;
}

void on_command_fill_cq(struct rnic_context *context, struct rnic_cq *cq)
{
	if (!context->on_command)
		return;
	cq->start_poll = cq->verbs.start_poll;
	cq->next_poll = cq->verbs.next_poll;
	cq->verbs.start_poll = start_poll;
	cq->verbs.next_poll = next_poll;
}

void on_command_fill_qp(struct rnic_context *context, struct rnic_qp *qp)
{
	if (!context->on_command)
		return;
	qp->wr_complete = qp->verbs.wr_complete;
	qp->verbs.wr_complete = wr_complete;
}
