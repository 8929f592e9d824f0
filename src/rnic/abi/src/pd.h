/* Protection domains. */
#ifndef RNIC_PD_H
#define RNIC_PD_H

#include "verbs_abi.h"

struct rnic_pd {
	struct ibv_pd verbs;
	struct rnic_pd *parent; /* of a parent domain, else NULL */
	_Atomic int users;
};

struct ibv_pd *rnic_alloc_parent_domain(struct ibv_context *verbs, struct ibv_parent_domain_init_attr *attr);
struct ibv_td *rnic_alloc_td(struct ibv_context *verbs, void *attr);
int rnic_dealloc_td(struct ibv_td *td);

#endif
