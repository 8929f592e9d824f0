/* Queue pairs. */
#ifndef RNIC_QP_H
#define RNIC_QP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "receive_ring.h"
#include "ring_memory.h"
#include "rnic_hw.h"
#include "verbs_abi.h"

struct mcast_group;
struct rnic_cq;
struct rnic_srq;
struct rnic_xrcd;
struct sqe;

struct rnic_qp {
	union {
		struct ibv_qp_ex verbs;
		struct ibv_qp_ex_flush newer;
	};
	pthread_mutex_t lock; /* send queue */
	struct rnic_cq *send_cq, *recv_cq;
	struct rnic_srq *srq;
	struct rnic_xrcd *xrcd; /* of XRC_RECV, which has neither CQs nor a protection domain */
	struct ring_memory memory;
	struct sqe *sq;
	uint8_t *slab;
	uint32_t slab_bytes, entries, tail, block;
	_Atomic uint32_t head;
	uint64_t *ids;
	struct receive_ring rq;
	struct ibv_qp_cap cap;
	uint32_t number, service;
	bool created; /* on the device: not in RESET */
	_Atomic uint32_t state; /* last known state in the device, which may have failed meanwhile */
	bool sq_sig_all, extended;
	bool opened; /* by ibv_open_qp: another handle made it, and destroys it */
	uint32_t wr_tail; /* wr_*: the entry after the one being built */
	struct sqe *wr;
	bool wr_data; /* wr_*: its data is set */
	int wr_error;
	_Atomic uint32_t async_reported;
	struct mcast_group *groups;
	int (*wr_complete)(struct ibv_qp_ex *verbs); /* called by a fault script's functions */
};

/* Return whether it has no receive queue: an XRC queue pair sends to the peer's SRQs, or receives into SRQs. */
static inline bool is_xrc(const struct rnic_qp *qp)
{
	return qp->service == RNIC_QP_ST_XRC_INI || qp->service == RNIC_QP_ST_XRC_TGT;
}

struct ibv_qp *rnic_open_qp(struct ibv_context *verbs, struct ibv_qp_open_attr *attr);
struct ibv_qp *rnic_create_qp_ex(struct ibv_context *verbs, struct ibv_qp_init_attr_ex *attr);

#endif
