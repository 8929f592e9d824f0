/* Decode fields of the QP context (context/qpc.py) that are codes. */
#ifndef RNIC_ENGINE_CONTEXT_H
#define RNIC_ENGINE_CONTEXT_H

#include "queue_pair/byteorder.h"
#include "state.h"

/* Return the path MTU in bytes. */
static inline uint64_t context_mtu(const uint8_t *qpc)
{
	return mtu_bytes[be_get(qpc, QPC_MTU)];
}

/* Return the length of the longest message in bytes. */
static inline uint64_t context_max_message(const uint8_t *qpc)
{
	uint64_t log = be_get(qpc, QPC_MSGMAX);
	return log ? (uint64_t)1 << log : MAX_MSG_BYTES;
}

#endif
