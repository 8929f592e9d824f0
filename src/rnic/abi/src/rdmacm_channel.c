/* Event channels: events wait in the NIC process until the program asks; further events that it reported wait here. */
#define _GNU_SOURCE
#include "rdmacm_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"
#include "io/eventfd.h"
#include "rdmacm_rpc.h"

static struct cm_queued_event *pop_queued(struct cm_channel *channel)
{
	struct cm_queued_event *queued = channel->first;

	if (queued) {
		channel->first = queued->next;
		if (!channel->first)
			channel->last = &channel->first;
	}
	return queued;
}

int channel_queue(struct cm_channel *channel, const uint8_t *record)
{
	struct cm_queued_event *queued = malloc(sizeof *queued);

	if (!queued)
		return ENOMEM;
	queued->next = NULL;
	memcpy(queued->record, record, sizeof queued->record);
	*channel->last = queued;
	channel->last = &queued->next;
	return 0;
}

void channel_signal(struct cm_channel *channel)
{
	uint64_t one = 1;

	if (own_fd_valid(&channel->file.fired))
		while (write(channel->file.fired.fd, &one, sizeof one) < 0 && errno == EINTR)
			;
}

int channel_await(struct cm_channel *channel)
{
	uint64_t one;

	if (!own_fd_valid(&channel->file.fd) || !own_fd_valid(&channel->file.fired))
		return EBADF;
	if (event_file_is_nonblocking(&channel->file))
		return eventfd_drain(channel->file.fired.fd) ? 0 : EAGAIN;
	return read(channel->file.fired.fd, &one, sizeof one) == sizeof one ? 0 : errno;
}

int channel_queue_answer(struct cm_channel *channel, const struct cm_rpc *rpc)
{
	int error;

	pthread_mutex_lock(&channel->lock);
	error = channel_queue(channel, rpc->record);
	pthread_mutex_unlock(&channel->lock);
	if (!error)
		channel_signal(channel);
	return error;
}

int channel_next(struct cm_channel *channel, struct cm_rpc *rpc)
{
	struct cm_queued_event *queued;
	int error = 0;

	pthread_mutex_lock(&channel->lock);
	queued = pop_queued(channel);
	if (queued) {
		memcpy(rpc->record, queued->record, sizeof rpc->record);
		free(queued);
	} else {
		cm_rpc_init(rpc, RNIC_CM_GET_EVENT, NULL);
		cm_put32(rpc, RNIC_CM_REQUEST_CHANNEL_AT, channel->number);
		cm_put32(rpc, RNIC_CM_REQUEST_VALUE_AT, RNIC_CM_MOST_EVENTS);
		error = cm_rpc_call(rpc);
		for (size_t i = 0; i < rpc->more_count && !error; i++)
			error = channel_queue(channel, rpc->more + i * sizeof rpc->record);
		free(rpc->more);
	}
	pthread_mutex_unlock(&channel->lock);
	return error;
}

void channel_filter(struct cm_channel *channel, bool (*leaves)(const uint8_t *record, void *with), void *with)
{
	struct cm_queued_event **at = &channel->first;

	while (*at) {
		struct cm_queued_event *queued = *at;

		if (leaves(queued->record, with)) {
			*at = queued->next;
			free(queued);
			if (own_fd_valid(&channel->file.fired))
				eventfd_drain(channel->file.fired.fd);
		} else {
			at = &queued->next;
		}
	}
	channel->last = at;
}

static void close_channel(uint32_t number)
{
	struct cm_rpc rpc;

	cm_rpc_init(&rpc, RNIC_CM_CLOSE_CHANNEL, NULL);
	cm_put32(&rpc, RNIC_CM_REQUEST_CHANNEL_AT, number);
	cm_rpc_call(&rpc);
}

EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *channel = calloc(1, sizeof *channel);
	struct cm_rpc rpc;
	int error;

	if (!channel)
		return fail_null(ENOMEM);
	error = cm_request(NULL, RNIC_CM_CHANNEL, &rpc);
	if (error) {
		free(channel);
		return fail_null(error);
	}
	channel->number = cm_get32(&rpc, RNIC_CM_RECORD_ID_AT);
	error = rpc.fd < 0 ? EMFILE : event_file_open(&channel->file, rpc.fd);
	if (error) {
		close_channel(channel->number);
		free(channel);
		return fail_null(error);
	}
	channel->public.fd = channel->file.fd.fd;
	channel->last = &channel->first;
	pthread_mutex_init(&channel->lock, NULL);
	/* The NIC process left it non-blocking for its own writes; reads of it wait. */
	fcntl(channel->file.fired.fd, F_SETFL, fcntl(channel->file.fired.fd, F_GETFL) & ~O_NONBLOCK);
	return &channel->public;
}

EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *public)
{
	struct cm_channel *channel = to_channel(public);

	close_channel(channel->number);
	event_file_close(&channel->file);
	while (channel->first)
		free(pop_queued(channel));
	pthread_mutex_destroy(&channel->lock);
	free(channel);
}
