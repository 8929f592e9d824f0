/* Event channels: the NIC process increments their eventfds once for each event. */
#ifndef RNIC_RDMACM_CHANNEL_H
#define RNIC_RDMACM_CHANNEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "event_file.h"
#include "rdmacm_abi.h"
#include "rnic_hw.h"

struct cm_rpc;

struct cm_queued_event { /* reported by the NIC process, not yet taken by the program */
	struct cm_queued_event *next;
	uint8_t record[RNIC_CM_RECORD_SIZE];
};

struct cm_channel {
	struct rdma_event_channel public;
	struct event_file file; /* of `public.fd` */
	uint32_t number;
	pthread_mutex_t lock; /* of the queue: the descriptor is readable once for each event in it */
	struct cm_queued_event *first, **last;
};

static inline struct cm_channel *to_channel(struct rdma_event_channel *public)
{
	return (struct cm_channel *)(void *)public;
}

/* Append an event to the queue. The channel is locked; the caller signals its descriptor before or after. */
int channel_queue(struct cm_channel *channel, const uint8_t *record);
/* Queue an answer as an event of its ID, as if reported by the NIC process, and signal the descriptor. */
int channel_queue_answer(struct cm_channel *channel, const struct cm_rpc *rpc);
/* Signal one more event to threads that read or poll the channel's descriptor. */
void channel_signal(struct cm_channel *channel);
/* Wait until an event is signaled, and take the signal: 0 or the error number. */
int channel_await(struct cm_channel *channel);
/* Take the next signaled event; RNIC_CM_NO_EVENT if it is gone. */
int channel_next(struct cm_channel *channel, struct cm_rpc *rpc);
/* Remove the queued events for which `leaves` returns true, and their signals. The channel is locked. */
void channel_filter(struct cm_channel *channel, bool (*leaves)(const uint8_t *record, void *with), void *with);

#endif
