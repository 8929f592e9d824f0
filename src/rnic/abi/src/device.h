/* Devices. */
#ifndef RNIC_DEVICE_H
#define RNIC_DEVICE_H

#include <stdint.h>

#include "verbs_abi.h"

struct rnic_device {
	struct ibv_device verbs;
	/* Other vendors' providers inspect what follows an ibv_device to see whether it is theirs; zeros say no. */
	uint8_t not_theirs[512];
	int references;
	be64_t guid;
	union ibv_gid gid;
};

#endif
