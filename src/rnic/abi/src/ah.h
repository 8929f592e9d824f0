/* Address handles. */
#ifndef RNIC_AH_H
#define RNIC_AH_H

#include <stdint.h>

#include "verbs_abi.h"

struct rnic_ah {
	struct ibv_ah verbs;
	uint8_t dgid[16];
	uint32_t path; /* service level, traffic class, flow label */
	uint32_t hop_limit;
	uint8_t sgid_index;
};

#endif
