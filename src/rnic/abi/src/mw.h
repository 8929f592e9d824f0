/* Memory windows. */
#ifndef RNIC_MW_H
#define RNIC_MW_H

#include <stdint.h>

#include "verbs_abi.h"

struct rnic_mw {
	struct ibv_mw verbs; /* its handle is the index of all its keys, regardless of binds */
};

struct ibv_mw *rnic_alloc_mw(struct ibv_pd *pd, int type);
int rnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int rnic_dealloc_mw(struct ibv_mw *mw);

#endif
