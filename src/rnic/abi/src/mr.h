/* Memory regions. */
#ifndef RNIC_MR_H
#define RNIC_MR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs_abi.h"

struct rnic_dm;

struct rnic_mr {
	struct ibv_mr verbs;
	uint64_t iova;
	unsigned int access;
	uint8_t *memory; /* its first byte in this process */
	void *map; /* of a dma-buf: its mapping, else NULL */
	size_t map_bytes;
	struct rnic_dm *dm; /* the device memory that it is over, or NULL */
	bool null; /* it discards writes and reads as zeros */
};

struct ibv_mr *rnic_alloc_null_mr(struct ibv_pd *pd);
struct ibv_mr *rnic_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
			      unsigned int access);
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);

#endif
