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
	uint8_t *memory; /* where its first byte is in this process */
	void *map; /* of a region that has a descriptor's memory: what is mapped for it, else NULL */
	size_t map_bytes;
	bool null; /* no memory at all */
};

struct ibv_mr *rnic_alloc_null_mr(struct ibv_pd *pd);

#endif
