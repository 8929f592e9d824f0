/* Event queues and completion channels. */
#ifndef RNIC_EVENTS_H
#define RNIC_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bypass/driver.h"
#include "entry_ring.h"
#include "event_file.h"
#include "verbs_abi.h"

struct event_queue {
	struct entry_ring ring;
	uint32_t number, block;
	struct event_file file; /* readable while entries wait */
	pthread_mutex_t lock;
	struct driver_event_queue fired; /* if the engine runs here */
};

struct rnic_channel {
	struct ibv_comp_channel verbs;
	struct event_queue eq;
};

int event_queue_open(struct rnic_context *context, struct event_queue *eq);
void event_queue_close(struct rnic_context *context, struct event_queue *eq);
uint32_t event_queue_purge(struct rnic_context *context, struct event_queue *eq, uint32_t number, const uint32_t *types,
			   size_t count);
/* Wait until the program has acknowledged all events of an object. */
void await_acknowledged(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed, uint32_t reported);

#endif
