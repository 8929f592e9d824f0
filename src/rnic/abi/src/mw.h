/* Memory windows. */
#ifndef RNIC_MW_H
#define RNIC_MW_H

#include <stdint.h>

#include "verbs_abi.h"

struct rnic_mw {
	struct ibv_mw verbs;
	uint32_t key, before; /* as bound last, and the one that holds if that bind fails */
};

struct ibv_mw *rnic_alloc_mw(struct ibv_pd *pd, int type);
int rnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int rnic_dealloc_mw(struct ibv_mw *mw);

#endif
