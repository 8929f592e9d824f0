/* Posting of work requests. */
#ifndef RNIC_POST_H
#define RNIC_POST_H

#include <stdint.h>

#include "verbs_abi.h"

struct rnic_qp;

int rnic_post_send(struct ibv_qp *verbs, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int rnic_post_recv(struct ibv_qp *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* Fill in the functions of the ibv_wr_* interface. */
void qp_fill_wr_ops(struct rnic_qp *qp);

#endif
