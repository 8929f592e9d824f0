/* The devices of librdmacm: opened once, for as long as the process lives. */
#ifndef RNIC_RDMACM_DEVICES_H
#define RNIC_RDMACM_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "verbs_abi.h"

struct cm_device {
	struct cm_device *next;
	struct ibv_context *verbs;
	struct ibv_pd *pd; /* for IDs whose program gives none */
	union ibv_gid gid;
	uint8_t max_rd_atomic;
};

struct cm_device *cm_devices(void);
/* Return the device that has a GID. With `reload`, look for one that appeared after the others. */
struct cm_device *cm_device_by_gid(const union ibv_gid *gid, bool reload);
/* Return the protection domain of IDs whose program gives none. */
struct ibv_pd *cm_device_pd(struct cm_device *device);

#endif
