/*
 * librdmacm is a client of the connection manager in the NIC process: one connection for each process, whose requests
 * and answers are those of rnic.spec.attach_cm.
 */
#ifndef RNIC_RDMACM_RPC_H
#define RNIC_RDMACM_RPC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rnic_hw.h"

struct cm_id;

struct cm_rpc { /* a request and its answer */
	uint8_t request[RNIC_CM_REQUEST_SIZE];
	uint8_t record[RNIC_CM_RECORD_SIZE];
	int fd; /* received with the answer, or -1 */
	uint8_t *more; /* further records if requested; the caller frees them */
	size_t more_count;
};

static inline uint32_t record_get32(const uint8_t *record, unsigned at)
{
	uint32_t value;

	memcpy(&value, record + at, 4);
	return value;
}

static inline uint32_t cm_get32(const struct cm_rpc *rpc, unsigned at)
{
	return record_get32(rpc->record, at);
}

static inline uint16_t cm_get16(const struct cm_rpc *rpc, unsigned at)
{
	uint16_t value;

	memcpy(&value, rpc->record + at, 2);
	return value;
}

static inline void cm_put32(struct cm_rpc *rpc, unsigned at, uint32_t value)
{
	memcpy(rpc->request + at, &value, 4);
}

static inline void cm_put16(struct cm_rpc *rpc, unsigned at, uint16_t value)
{
	memcpy(rpc->request + at, &value, 2);
}

/* Begin a request about an ID, or about none. */
void cm_rpc_init(struct cm_rpc *rpc, uint32_t op, const struct cm_id *id);
void cm_rpc_private_data(struct cm_rpc *rpc, const void *data, size_t bytes);
/* Send a request and wait for its answer. Returns 0 or the error number. */
int cm_rpc_call(struct cm_rpc *rpc);
/* Send a request without arguments; cm_request leaves the answer's record in `rpc`. Returns 0 or the error number. */
int cm_request(const struct cm_id *id, uint32_t op, struct cm_rpc *rpc);
int cm_simple_request(const struct cm_id *id, uint32_t op);

#endif
