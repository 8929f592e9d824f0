/* Advice on memory regions. */
#ifndef RNIC_ADVISE_H
#define RNIC_ADVISE_H

#include <stdint.h>

#include "verbs_abi.h"

int rnic_advise_mr(struct ibv_pd *pd, int advice, uint32_t flags, struct ibv_sge *list, uint32_t count);

#endif
