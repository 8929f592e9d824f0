/* Memory for rings, which the NIC process maps as well. */
#ifndef RNIC_RING_MEMORY_H
#define RNIC_RING_MEMORY_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct rnic_context;
struct ring_region;
struct ring_piece;

struct ring_memory {
	void *base;
	size_t bytes;
};

struct ring_store { /* of a context */
	pthread_mutex_t lock;
	struct ring_region *regions;
	uint8_t *rest; /* of the newest region */
	size_t rest_bytes;
	unsigned next_log;
	struct ring_piece *free[64]; /* by the logarithm of their size */
};

void ring_store_open(struct rnic_context *context);
void ring_store_close(struct rnic_context *context);
int ring_alloc(struct rnic_context *context, struct ring_memory *memory, size_t bytes);
void ring_free(struct rnic_context *context, struct ring_memory *memory);

#endif
