/* Memory regions. */
#ifndef RNIC_MR_H
#define RNIC_MR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs_abi.h"

struct rnic_mr {
	struct ibv_mr verbs;
	uint64_t iova;
	unsigned int access;
	uint8_t *memory; /* its first byte in this process */
	void *map; /* of a dma-buf: its mapping, else NULL */
	size_t map_bytes;
	bool null; /* it discards writes and reads as zeros */
};

struct ibv_mr *rnic_alloc_null_mr(struct ibv_pd *pd);

#endif
