/* IDs and their events. */
#ifndef RNIC_RDMACM_ID_H
#define RNIC_RDMACM_ID_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmacm_abi.h"
#include "rdmacm_channel.h"
#include "rnic_hw.h"

struct cm_device;

struct cm_multicast { /* a group that an ID joined */
	struct cm_multicast *next;
	union ibv_gid gid;
	struct sockaddr_storage address;
	void *context;
	bool attached;
};

struct cm_id {
	struct rdma_cm_id public;
	uint32_t number;
	struct cm_id *next; /* in the table */
	struct cm_device *device;
	struct cm_channel *own; /* calls are synchronous */
	uint32_t events_reported, events_completed;
	uint8_t tos, ack_timeout;
	bool reuse, afonly, afonly_set, passive;
	uint8_t responder_resources, initiator_depth; /* of this side, as negotiated */
	uint8_t peer[RNIC_CM_RECORD_SIZE]; /* the record of REQ or REP */
	uint32_t remote_qpn, remote_qkey;
	struct cm_multicast *groups;
	struct ibv_qp_init_attr *qp_attr; /* of a listening endpoint's connections */
	struct ibv_sa_path_rec path;
};

static inline struct cm_id *to_id(struct rdma_cm_id *public)
{
	return (struct cm_id *)(void *)public;
}

static inline uint8_t min_u8(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **result, void *context, int port_space,
		 int qp_type);
/* Store an ID's state from the connection manager: addresses, and their device. */
void cm_save_route(struct cm_id *id, const struct cm_rpc *rpc);
/* Wait for the event of a synchronous call and keep it, if the program does not handle this ID's events. */
int cm_complete(struct cm_id *id);
/* Acknowledge an event that a call waited for and kept. */
void cm_drop_event(struct cm_id *id);

#endif
