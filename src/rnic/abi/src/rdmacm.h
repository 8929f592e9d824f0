/*
 * librdmacm is a client of the connection manager in the NIC process: one connection for each process, whose requests and
 * answers are those of rnic.spec.attach_cm. Event channels are eventfds that the NIC process bumps once for each event.
 */
#ifndef RNIC_RDMACM_H
#define RNIC_RDMACM_H

#include "rnic.h"

#include "rdmacm_abi.h"

struct cm_device {
	struct cm_device *next;
	struct ibv_context *verbs;
	struct ibv_pd *pd; /* of IDs whose program brings none */
	union ibv_gid gid;
	uint8_t most_resources;
};

struct cm_waiting { /* an event that the NIC process told, and that the program has not asked for yet */
	struct cm_waiting *next;
	uint8_t record[RNIC_CM_RECORD_SIZE];
};

struct cm_channel {
	struct rdma_event_channel public;
	uint32_t number;
	pthread_mutex_t lock; /* of what waits: as often as there is one, the descriptor is readable */
	struct cm_waiting *first, **last;
};

struct group {
	struct group *next;
	union ibv_gid gid;
	struct sockaddr_storage address;
	void *context;
	bool attached;
	uint32_t told, acknowledged;
};

struct cm_id {
	struct rdma_cm_id public;
	uint32_t number;
	struct cm_id *next; /* in the table */
	struct cm_device *device;
	struct cm_channel *own; /* calls wait for what they begin */
	uint32_t told, acknowledged; /* events */
	uint8_t tos, ack_timeout;
	bool reuse, connecting, passive;
	uint8_t responder_resources, initiator_depth; /* of this side, as agreed upon */
	uint8_t peer[RNIC_CM_RECORD_SIZE]; /* what REQ or REP said of it */
	uint32_t remote_qpn, remote_qkey;
	struct group *groups;
	struct ibv_qp_init_attr *qp_attr; /* of what connects to a listening endpoint */
	struct ibv_sa_path_rec path;
};

struct cm_event {
	struct rdma_cm_event public;
	struct cm_id *counted; /* whose event it is */
	struct group *group;
	uint8_t private_data[256];
};

struct cm_said { /* a request and its answer */
	uint8_t request[RNIC_CM_REQUEST_SIZE];
	uint8_t record[RNIC_CM_RECORD_SIZE];
	int fd; /* that came with the answer, or -1 */
	uint8_t *more; /* records behind the first, to be freed, where they were asked for */
	size_t more_count;
};

static inline uint32_t get32(const struct cm_said *said, unsigned at)
{
	uint32_t value;

	memcpy(&value, said->record + at, 4);
	return value;
}

static inline uint16_t get16(const struct cm_said *said, unsigned at)
{
	uint16_t value;

	memcpy(&value, said->record + at, 2);
	return value;
}

static inline void put32(struct cm_said *said, unsigned at, uint32_t value)
{
	memcpy(said->request + at, &value, 4);
}

static inline void put16(struct cm_said *said, unsigned at, uint16_t value)
{
	memcpy(said->request + at, &value, 2);
}

static inline struct cm_id *cm_of(struct rdma_cm_id *id)
{
	return (struct cm_id *)(void *)id;
}

static inline int minus(int error) /* -1 with errno, or 0 */
{
	if (!error)
		return 0;
	errno = error;
	return -1;
}

/* of our libibverbs: qp.c */
int rnic_modify_qp_twice(struct ibv_qp *verbs, const struct ibv_qp_attr *const *attrs, const int *masks);

/* rdmacm_rpc.c */
void cm_begin(struct cm_said *said, uint32_t op, const struct cm_id *id);
int cm_ask(struct cm_said *said);
void cm_private(struct cm_said *said, const void *data, size_t bytes);
int cm_request(const struct cm_id *id, uint32_t op, struct cm_said *said);
int cm_simple(const struct cm_id *id, uint32_t op);
struct cm_device *cm_devices(void);
struct cm_device *cm_device_at(const union ibv_gid *gid, bool anew);
struct ibv_pd *cm_device_pd(struct cm_device *device);

/* rdmacm.c */
void cm_adopt(struct cm_id *id, const struct cm_said *said);
int cm_complete(struct cm_id *id);
int cm_keep_event(struct cm_id *id, struct cm_said *said);
void cm_drop_event(struct cm_id *id);

/* rdmacm_qp.c */
int cm_make_ready(struct cm_id *id, uint8_t responder_resources, uint8_t initiator_depth);
void cm_fail_qp(struct cm_id *id);

/* rdmacm_address.c */
int cm_gid_of(const struct sockaddr *address, union ibv_gid *gid, uint16_t *port);
void cm_address_of(const union ibv_gid *gid, uint16_t port, int family, struct sockaddr_storage *address);
bool cm_nowhere(const union ibv_gid *gid);
struct cm_device *cm_device_towards(const struct sockaddr *address);
socklen_t cm_address_bytes(const struct sockaddr *address);

#endif
