/* Devices. */
#ifndef RNIC_DEVICE_H
#define RNIC_DEVICE_H

#include <stdint.h>

#include "verbs_abi.h"

struct rnic_device {
	struct ibv_device verbs;
	/* Other vendors' providers inspect the bytes after an ibv_device to recognize their own; zeros mean no. */
	uint8_t not_theirs[512];
	int references;
	be64_t guid;
	union ibv_gid gid;
};

#endif
