/* Queue pairs of IDs. */
#ifndef RNIC_RDMACM_QP_H
#define RNIC_RDMACM_QP_H

#include <stdint.h>

struct cm_id;

/* Modify an ID's queue pair to RTR and RTS, in one message, as the peer's REQ or REP says. */
int cm_modify_qp_rts(struct cm_id *id, uint8_t responder_resources, uint8_t initiator_depth);
void cm_modify_qp_err(struct cm_id *id);

#endif
