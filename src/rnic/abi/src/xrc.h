/* XRC domains. */
#ifndef RNIC_XRC_H
#define RNIC_XRC_H

#include <stdint.h>

#include "verbs_abi.h"

struct rnic_xrcd {
	struct ibv_xrcd verbs;
	uint32_t number;
	_Atomic uint32_t users; /* SRQs and queue pairs */
};

struct ibv_xrcd *rnic_open_xrcd(struct ibv_context *verbs, struct ibv_xrcd_init_attr *attr);
int rnic_close_xrcd(struct ibv_xrcd *verbs);

#endif
