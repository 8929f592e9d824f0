/*
 * Event queues, completion channels, asynchronous events.
 *
 * The context has one event queue for asynchronous events, and each completion channel has its own, so that programs poll the descriptor that the NIC process signals. It signals after storing entries. A thread that takes an entry keeps the descriptor readable exactly while others wait.
 */
#include "events.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "cq.h"
#include "doorbell.h"
#include "errors.h"
#include "io/eventfd.h"
#include "io/nocancel.h"
#include "qp.h"
#include "rnic_reasons.h"
#include "srq.h"

enum { EQ_LOG_ENTRIES = 12, NO_EVENT = 0xFF };

static bool has_entry(const struct event_queue *eq)
{
	return entry_is_valid(&eq->ring, eq->ring.head, eq->ring.phase);
}

static int has_event(struct driver_event_queue *fired)
{
	struct event_queue *eq = (struct event_queue *)(void *)((char *)fired - offsetof(struct event_queue, fired));
	bool found;

	pthread_mutex_lock(&eq->lock);
	found = has_entry(eq);
	pthread_mutex_unlock(&eq->lock);
	return found;
}

int event_queue_open(struct rnic_context *context, struct event_queue *eq)
{
	uint8_t eqc[RNIC_EQC_SIZE] = { 0 };
	int error;

	eq->file.fd.fd = -1;
	pthread_mutex_init(&eq->lock, NULL);
	error = entry_ring_alloc(context, &eq->ring, EQ_LOG_ENTRIES);
	if (error)
		return error;
	error = nic_allocate(context, RNIC_CMD_RES_EQ, &eq->number);
	if (error)
		goto unmap;
	error = nic_allocate(context, RNIC_CMD_RES_UAR_BLOCK, &eq->block);
	if (error)
		goto free_number;
	rnic_put_be(eqc, RNIC_EQC_START, (uintptr_t)eq->ring.memory.base);
	rnic_put_be(eqc, RNIC_EQC_LOGSIZE, EQ_LOG_ENTRIES);
	rnic_put_be(eqc, RNIC_EQC_USRPAGE, eq->block);
	rnic_put_be(eqc, RNIC_EQC_MSIX_VECTOR, eq->number);
	error = nic_command(context, RNIC_CMD_SW2HW_EQ, 0, eq->number, eqc, sizeof eqc, NULL, 0, NULL);
	if (error)
		goto free_block;
	error = event_file_open(&eq->file, nic_vector(context, eq->number));
	if (!error) {
		eq->fired =
			(struct driver_event_queue){ .vector = eq->number, .fd = eq->file.fired, .waits = has_event };
		if (context->slot)
			driver_add_events(context->slot, &eq->fired);
		return 0;
	}
	nic_command(context, RNIC_CMD_HW2SW_EQ, 0, eq->number, NULL, 0, NULL, 0, NULL);
free_block:
	nic_free(context, RNIC_CMD_RES_UAR_BLOCK, eq->block);
free_number:
	nic_free(context, RNIC_CMD_RES_EQ, eq->number);
unmap:
	ring_free(context, &eq->ring.memory);
	return error;
}

void event_queue_close(struct rnic_context *context, struct event_queue *eq)
{
	if (eq->file.fd.fd < 0)
		return;
	nic_command(context, RNIC_CMD_HW2SW_EQ, 0, eq->number, NULL, 0, NULL, 0, NULL);
	nic_free(context, RNIC_CMD_RES_UAR_BLOCK, eq->block);
	nic_free(context, RNIC_CMD_RES_EQ, eq->number);
	if (context->slot)
		driver_remove_events(context->slot, &eq->fired);
	event_file_close(&eq->file);
	ring_free(context, &eq->ring.memory);
	pthread_mutex_destroy(&eq->lock);
}

static bool pop_event(struct rnic_context *context, struct event_queue *eq, struct entry *event)
{
	bool found = entry_ring_pop(&eq->ring, event);

	if (found)
		queue_reg_store(context, eq->block, RNIC_REG_CQ_HEAD, eq->ring.head);
	return found;
}

/* Make the descriptor readable if and only if an event waits: one signal may cover several entries. The queue is
 * locked, so cancellation is disabled. */
static void update_readiness(struct rnic_context *context, struct event_queue *eq)
{
	const struct own_fd *fired = &eq->file.fired;
	struct pollfd poller = { .fd = fired->fd, .events = POLLIN };
	struct entry none;
	uint64_t one = 1;
	int before = nocancel_begin();

	while (has_entry(eq) && (eq->ring.entries[eq->ring.head].word[EQE_WORD(TYPE)] & 0xFF) == NO_EVENT)
		pop_event(context, eq, &none);
	if (!own_fd_valid(fired)) { /* the program has closed it */
		nocancel_end(before);
		return;
	}
	/* The NIC stores the entry before it signals: if there is none, no signal is pending. */
	if (!has_entry(eq))
		eventfd_drain(fired->fd);
	if (has_entry(eq) && poll(&poller, 1, 0) == 0 && write(fired->fd, &one, sizeof one) < 0)
		log_error("event descriptor %d does not take a write", fired->fd);
	nocancel_end(before);
}

/* Wait until the descriptor is readable or the NIC process is gone. update_readiness reads it. */
static int await_event(struct rnic_context *context, struct event_queue *eq)
{
	struct pollfd pollers[2] = { { .fd = eq->file.fired.fd, .events = POLLIN }, { .fd = context->socket.fd } };

	if (context->slot && eq != &context->async)
		return driver_await(context->slot, &eq->fired, -1);
	if (poll(pollers, COUNT(pollers), -1) < 0)
		return errno;
	return !(pollers[0].revents & POLLIN) && nic_gone(context) ? EIO : 0;
}

/* Take one event, and wait for it unless the descriptor is non-blocking. An interrupted wait returns EINTR. */
static int next_event(struct rnic_context *context, struct event_queue *eq, struct entry *event)
{
	for (bool again = false;; again = true) {
		bool found;
		int error;

		if (context->dead)
			return EIO;
		if (!own_fd_valid(&eq->file.fd))
			return EBADF;
		pthread_mutex_lock(&eq->lock);
		found = pop_event(context, eq, event);
		if (found || again)
			update_readiness(context, eq);
		pthread_mutex_unlock(&eq->lock);
		if (found)
			return 0;
		if (!event_file_is_nonblocking(&eq->file))
			error = await_event(context, eq);
		else
			error = again ? EAGAIN : 0; /* a stale signal was drained above, or an entry has just arrived */
		if (error)
			return error;
	}
}

/* Drop the events of an object that is being destroyed. Returns how many there were. */
uint32_t event_queue_purge(struct rnic_context *context, struct event_queue *eq, uint32_t number, const uint32_t *types,
			   size_t count)
{
	uint32_t dropped = 0;

	if (eq->file.fd.fd < 0)
		return 0;
	pthread_mutex_lock(&eq->lock);
	for (uint32_t index = eq->ring.head, phase = eq->ring.phase; entry_is_valid(&eq->ring, index, phase);) {
		uint32_t *word = eq->ring.entries[index].word;

		for (size_t i = 0; i < count; i++) {
			if ((word[EQE_WORD(TYPE)] & 0xFF) == types[i] &&
			    (word[EQE_WORD(NUMBER)] & 0xFFFFFF) == number) {
				word[EQE_WORD(TYPE)] = NO_EVENT; /* readers skip it */
				dropped++;
			}
		}
		index = (index + 1) & eq->ring.mask;
		if (!index)
			phase ^= RNIC_BIT_CQE_PHASE;
		if (index == eq->ring.head)
			break;
	}
	if (dropped)
		update_readiness(context, eq);
	pthread_mutex_unlock(&eq->lock);
	return dropped;
}

/* ---- completion channels */

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *verbs)
{
	struct rnic_channel *channel = calloc(1, sizeof *channel);
	int error;

	if (!channel)
		return NULL;
	error = event_queue_open(context_of(verbs), &channel->eq);
	if (error) {
		free(channel);
		return fail_null(error);
	}
	channel->verbs.context = verbs;
	channel->verbs.fd = channel->eq.file.fd.fd;
	return &channel->verbs;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *verbs)
{
	struct rnic_channel *channel = (struct rnic_channel *)verbs;
	struct rnic_context *context = context_of(verbs->context);

	pthread_mutex_lock(&context->lock);
	if (verbs->refcnt) {
		pthread_mutex_unlock(&context->lock);
		return fail(why_in_use(EBUSY, "ibv_destroy_comp_channel", "channel", (uint32_t)verbs->fd, "CQs"));
	}
	pthread_mutex_unlock(&context->lock);
	event_queue_close(context, &channel->eq);
	free(channel);
	return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *verbs, struct ibv_cq **cq, void **cq_context)
{
	struct rnic_channel *channel = (struct rnic_channel *)verbs;
	struct rnic_context *context = context_of(verbs->context);

	for (;;) {
		struct entry event;
		struct rnic_cq *found;
		int error = next_event(context, &channel->eq, &event);

		if (error) {
			errno = error;
			return -1;
		}
		if ((event.word[EQE_WORD(TYPE)] & 0xFF) != RNIC_EVENT_COMP)
			continue;
		pthread_mutex_lock(&context->lock);
		found = context->cqs[event.word[EQE_WORD(NUMBER)] & context->cq_mask];
		if (found)
			found->events_reported++;
		pthread_mutex_unlock(&context->lock);
		if (!found)
			continue;
		*cq = (struct ibv_cq *)&found->verbs;
		*cq_context = found->verbs.cq_context;
		return 0;
	}
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += count;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* ---- asynchronous events */

static const struct {
	uint8_t device, verbs;
	char element;
} async_kinds[] = {
	{ RNIC_EVENT_COMM_EST, IBV_EVENT_COMM_EST, 'q' },
	{ RNIC_EVENT_SQ_DRAINED, IBV_EVENT_SQ_DRAINED, 'q' },
	{ RNIC_EVENT_CQ_ERROR, IBV_EVENT_CQ_ERR, 'c' },
	{ RNIC_EVENT_WQ_CATAS_ERROR, IBV_EVENT_QP_FATAL, 'q' },
	{ RNIC_EVENT_LOCAL_CATAS_ERROR, IBV_EVENT_DEVICE_FATAL, 'd' },
	{ RNIC_EVENT_PORT_CHANGE, IBV_EVENT_PORT_ERR, 'p' },
	{ RNIC_EVENT_WQ_INVAL_REQ_ERROR, IBV_EVENT_QP_REQ_ERR, 'q' },
	{ RNIC_EVENT_WQ_ACCESS_ERROR, IBV_EVENT_QP_ACCESS_ERR, 'q' },
	{ RNIC_EVENT_SRQ_CATAS_ERROR, IBV_EVENT_SRQ_ERR, 's' },
	{ RNIC_EVENT_SRQ_LAST_WQE, IBV_EVENT_QP_LAST_WQE_REACHED, 'q' },
	{ RNIC_EVENT_SRQ_LIMIT, IBV_EVENT_SRQ_LIMIT_REACHED, 's' },
};

/* Map the subtype of a port change event. */
static int port_event(uint32_t subtype)
{
	switch (subtype) {
	case RNIC_PORT_ACTIVE:
		return IBV_EVENT_PORT_ACTIVE;
	case RNIC_PORT_PKEY:
		return IBV_EVENT_PKEY_CHANGE;
	case RNIC_PORT_GUID:
		return IBV_EVENT_GID_CHANGE;
	default:
		return IBV_EVENT_PORT_ERR;
	}
}

/* Find the object that an event is about and count the event as reported. Returns false if it is gone. The context
 * is locked. */
static bool find_element(struct rnic_context *context, char kind, uint32_t number, struct ibv_async_event *event)
{
	struct rnic_qp *qp;
	struct rnic_cq *cq;
	struct rnic_srq *srq;

	switch (kind) {
	case 'q':
		qp = context->qps[number & context->qp_mask];
		if (qp)
			qp->async_reported++;
		event->element.qp = (struct ibv_qp *)qp;
		return qp;
	case 'c':
		cq = context->cqs[number & context->cq_mask];
		if (cq)
			cq->async_reported++;
		event->element.cq = (struct ibv_cq *)cq;
		return cq;
	case 's':
		srq = context->srqs[number & context->srq_mask];
		if (srq)
			srq->async_reported++;
		event->element.srq = (struct ibv_srq *)srq;
		return srq;
	default:
		event->element.port_num = 1;
		return true;
	}
}

EXPORT int ibv_get_async_event(struct ibv_context *verbs, struct ibv_async_event *event)
{
	struct rnic_context *context = context_of(verbs);

	for (;;) {
		struct entry entry;
		int error = next_event(context, &context->async, &entry);

		if (error && atomic_exchange(&context->fatal, false)) {
			event->event_type = IBV_EVENT_DEVICE_FATAL;
			event->element.port_num = 0;
			return 0;
		}
		if (error) {
			errno = error;
			return -1;
		}
		for (size_t i = 0; i < COUNT(async_kinds); i++) {
			bool found;

			if ((entry.word[EQE_WORD(TYPE)] & 0xFF) != async_kinds[i].device)
				continue;
			pthread_mutex_lock(&context->lock);
			found = find_element(context, async_kinds[i].element, entry.word[EQE_WORD(NUMBER)] & 0xFFFFFF,
					     event);
			pthread_mutex_unlock(&context->lock);
			if (!found)
				break;
			event->event_type = async_kinds[i].element == 'p' ?
						    port_event(entry.word[EQE_WORD(TYPE)] >> 8 & 0xFF) :
						    async_kinds[i].verbs;
			return 0;
		}
	}
}

static void ack_event(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed)
{
	pthread_mutex_lock(mutex);
	++*completed;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

void await_acknowledged(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed, uint32_t reported)
{
	pthread_mutex_lock(mutex);
	while (*completed != reported)
		pthread_cond_wait(cond, mutex);
	pthread_mutex_unlock(mutex);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_cq *cq = event->element.cq;
	struct ibv_qp *qp = event->element.qp;
	struct ibv_srq *srq = event->element.srq;

	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		ack_event(&cq->mutex, &cq->cond, &cq->async_events_completed);
		return;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		ack_event(&srq->mutex, &srq->cond, &srq->events_completed);
		return;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		ack_event(&qp->mutex, &qp->cond, &qp->events_completed);
		return;
	default:
		return;
	}
}
