/* Descriptors as the hot path writes them. The assertions compare them with the tables. */
#ifndef RNIC_WQE_H
#define RNIC_WQE_H

#include <stddef.h>
#include <stdint.h>

#include "rnic_hw.h"

struct sqe {
	uint32_t wqe_id;
	uint16_t opcode, flags;
	uint64_t local_addr;
	uint64_t remote_addr; /* UD: path, ports */
	uint32_t length, lkey, rkey, imm;
	union {
		struct {
			uint64_t swap_add, compare;
		} atomic;
		struct {
			uint8_t dgid[16];
			uint32_t dqpn_hop, qkey;
		} ud;
		struct {
			uint64_t operands[2]; /* atomic */
			uint32_t srqn;
		} xrc;
		uint64_t bind_length;
	};
};
struct sge {
	uint64_t addr;
	uint32_t length, lkey;
};

#define PLACED(type, member, place) _Static_assert(offsetof(type, member) == (place), #member)
PLACED(struct sqe, wqe_id, RNIC_SQE_WQE_ID_AT);
PLACED(struct sqe, opcode, RNIC_SQE_OPCODE_AT);
PLACED(struct sqe, flags, RNIC_SQE_SIGNALED_AT);
PLACED(struct sqe, local_addr, RNIC_SQE_LOCAL_ADDR_AT);
PLACED(struct sqe, remote_addr, RNIC_SQE_REMOTE_ADDR_AT);
PLACED(struct sqe, remote_addr, RNIC_SQE_UD_FLOW_LABEL_AT);
PLACED(struct sqe, length, RNIC_SQE_LENGTH_AT);
PLACED(struct sqe, lkey, RNIC_SQE_LKEY_AT);
PLACED(struct sqe, rkey, RNIC_SQE_RKEY_AT);
PLACED(struct sqe, imm, RNIC_SQE_IMM_AT);
PLACED(struct sqe, atomic.swap_add, RNIC_SQE_ATOMIC_SWAP_ADD_AT);
PLACED(struct sqe, atomic.compare, RNIC_SQE_ATOMIC_COMPARE_AT);
PLACED(struct sqe, ud.dgid, RNIC_SQE_UD_DGID_AT);
PLACED(struct sqe, ud.dqpn_hop, RNIC_SQE_UD_DQPN_AT);
PLACED(struct sqe, ud.qkey, RNIC_SQE_UD_QKEY_AT);
PLACED(struct sqe, xrc.srqn, RNIC_SQE_XRC_SRQN_AT);
PLACED(struct sqe, local_addr, RNIC_SQE_BIND_ACCESS_AT);
PLACED(struct sqe, remote_addr, RNIC_SQE_BIND_START_AT);
PLACED(struct sqe, lkey, RNIC_SQE_BIND_LKEY_AT);
PLACED(struct sqe, rkey, RNIC_SQE_BIND_NEW_RKEY_AT);
PLACED(struct sqe, imm, RNIC_SQE_BIND_WINDOW_AT);
PLACED(struct sqe, bind_length, RNIC_SQE_BIND_BIND_LENGTH_AT);
PLACED(struct sge, addr, RNIC_SGE_ADDR_AT);
PLACED(struct sge, length, RNIC_SGE_LENGTH_AT);
PLACED(struct sge, lkey, RNIC_SGE_LKEY_AT);
_Static_assert(sizeof(struct sqe) == RNIC_SQE_SIZE && sizeof(struct sge) == RNIC_SGE_SIZE, "descriptor sizes");

#endif
