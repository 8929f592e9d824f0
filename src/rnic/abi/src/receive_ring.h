/* Receive rings: those of queue pairs, and shared ones. */
#ifndef RNIC_RECEIVE_RING_H
#define RNIC_RECEIVE_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ring_memory.h"
#include "verbs_abi.h"

struct receive_ring {
	struct ring_memory memory;
	uint32_t entries, stride, max_sge, limit, tail, posted, block;
	uint64_t *ids;
	bool *taken; /* the WQE holds a request that has not completed */
	uint32_t *order; /* shared: indexes of the WQEs in posting order, stored after the WQEs; else NULL */
	uint32_t *free_wqes; /* shared: a stack of free WQEs, entries - posted of them */
	pthread_mutex_t lock;
};

int receive_ring_alloc(struct rnic_context *context, struct receive_ring *rq, uint32_t max_wr, uint32_t max_sge,
		       bool shared);
void receive_ring_reset(struct receive_ring *rq);
void receive_ring_free(struct rnic_context *context, struct receive_ring *rq);
int receive_ring_post(struct rnic_context *context, struct receive_ring *rq, struct ibv_recv_wr *wr,
		      struct ibv_recv_wr **bad);
uint64_t receive_ring_complete(struct receive_ring *rq, uint32_t index);

#endif
