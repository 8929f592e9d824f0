/* Device memory: a program allocates it on the device, copies into and out of it, and registers it. */
#ifndef RNIC_DM_H
#define RNIC_DM_H

#include <stddef.h>
#include <stdint.h>

#include "verbs_abi.h"

enum { DM_BYTES = 1 << 20 }; /* bytes available to each context */

struct rnic_dm {
	struct ibv_dm verbs;
	uint8_t *memory;
	size_t length;
	_Atomic unsigned users; /* regions over it */
};

struct ibv_dm *rnic_alloc_dm(struct ibv_context *verbs, struct ibv_alloc_dm_attr *attr);
int rnic_free_dm(struct ibv_dm *verbs);

#endif
