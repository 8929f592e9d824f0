/* Shared receive queues. */
#ifndef RNIC_SRQ_H
#define RNIC_SRQ_H

#include <stdatomic.h>
#include <stdint.h>

#include "receive_ring.h"
#include "verbs_abi.h"

struct rnic_cq;
struct rnic_xrcd;

struct rnic_srq {
	struct ibv_srq verbs;
	struct receive_ring rq;
	struct rnic_xrcd *xrcd; /* of an XRC SRQ, with the CQ of its receives */
	struct rnic_cq *cq;
	uint32_t number;
	_Atomic uint32_t users; /* queue pairs, as of a completion queue */
	_Atomic uint32_t async_reported;
};

struct ibv_srq *rnic_create_srq_ex(struct ibv_context *verbs, struct ibv_srq_init_attr_ex *attr);
int rnic_get_srq_num(struct ibv_srq *verbs, uint32_t *number);
int rnic_post_srq_recv(struct ibv_srq *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
