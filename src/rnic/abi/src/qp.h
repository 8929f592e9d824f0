/* Queue pairs. */
#ifndef RNIC_QP_H
#define RNIC_QP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "receive_ring.h"
#include "ring_memory.h"
#include "verbs_abi.h"

struct mcast_group;
struct rnic_cq;
struct rnic_mw;
struct rnic_srq;
struct sqe;

struct rnic_qp {
	struct ibv_qp_ex verbs;
	pthread_mutex_t lock; /* send queue */
	struct rnic_cq *send_cq, *recv_cq;
	struct rnic_srq *srq;
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
	_Atomic uint32_t state; /* of the device's, as last seen: it may have failed meanwhile */
	bool sq_sig_all, extended;
	uint32_t wr_tail; /* wr_*: the entry after the one being built */
	struct sqe *wr;
	struct rnic_mw **bound; /* the window of the bind at an index */
	bool wr_data, wr_binds; /* wr_*: its data is set; the chain has binds */
	int wr_error;
	_Atomic uint32_t async_reported;
	struct mcast_group *groups;
};

void *rnic_open_xrcd(struct ibv_context *verbs, void *attr);
struct ibv_qp *rnic_create_qp_ex(struct ibv_context *verbs, struct ibv_qp_init_attr_ex *attr);

#endif
