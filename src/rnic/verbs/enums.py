"""The ``IBV_*`` numbers of libibverbs, with the names that C programs and pyverbs use."""

from __future__ import annotations

from typing import Final

# --- QP types
IBV_QPT_RC: Final = 2
IBV_QPT_UC: Final = 3
IBV_QPT_UD: Final = 4
IBV_QPT_XRC_SEND: Final = 9
IBV_QPT_XRC_RECV: Final = 10

# --- QP states
IBV_QPS_RESET: Final = 0
IBV_QPS_INIT: Final = 1
IBV_QPS_RTR: Final = 2
IBV_QPS_RTS: Final = 3
IBV_QPS_SQD: Final = 4
IBV_QPS_SQE: Final = 5
IBV_QPS_ERR: Final = 6
IBV_QPS_UNKNOWN: Final = 7

# --- QP attribute mask
IBV_QP_STATE: Final = 1 << 0
IBV_QP_CUR_STATE: Final = 1 << 1
IBV_QP_EN_SQD_ASYNC_NOTIFY: Final = 1 << 2
IBV_QP_ACCESS_FLAGS: Final = 1 << 3
IBV_QP_PKEY_INDEX: Final = 1 << 4
IBV_QP_PORT: Final = 1 << 5
IBV_QP_QKEY: Final = 1 << 6
IBV_QP_AV: Final = 1 << 7
IBV_QP_PATH_MTU: Final = 1 << 8
IBV_QP_TIMEOUT: Final = 1 << 9
IBV_QP_RETRY_CNT: Final = 1 << 10
IBV_QP_RNR_RETRY: Final = 1 << 11
IBV_QP_RQ_PSN: Final = 1 << 12
IBV_QP_MAX_QP_RD_ATOMIC: Final = 1 << 13
IBV_QP_ALT_PATH: Final = 1 << 14
IBV_QP_MIN_RNR_TIMER: Final = 1 << 15
IBV_QP_SQ_PSN: Final = 1 << 16
IBV_QP_MAX_DEST_RD_ATOMIC: Final = 1 << 17
IBV_QP_PATH_MIG_STATE: Final = 1 << 18
IBV_QP_CAP: Final = 1 << 19
IBV_QP_DEST_QPN: Final = 1 << 20

# --- path MTU codes
IBV_MTU_256: Final = 1
IBV_MTU_512: Final = 2
IBV_MTU_1024: Final = 3
IBV_MTU_2048: Final = 4
IBV_MTU_4096: Final = 5

# --- access rights
IBV_ACCESS_LOCAL_WRITE: Final = 1 << 0
IBV_ACCESS_REMOTE_WRITE: Final = 1 << 1
IBV_ACCESS_REMOTE_READ: Final = 1 << 2
IBV_ACCESS_REMOTE_ATOMIC: Final = 1 << 3
IBV_ACCESS_MW_BIND: Final = 1 << 4
IBV_ACCESS_ZERO_BASED: Final = 1 << 5
IBV_ACCESS_ON_DEMAND: Final = 1 << 6
IBV_ACCESS_FLUSH_GLOBAL: Final = 1 << 8
IBV_ACCESS_FLUSH_PERSISTENT: Final = 1 << 9

# --- FLUSH: placement types and selectivity levels
IBV_FLUSH_GLOBAL: Final = 1 << 0
IBV_FLUSH_PERSISTENT: Final = 1 << 1
IBV_FLUSH_RANGE: Final = 0
IBV_FLUSH_MR: Final = 1

# --- send work requests
IBV_WR_RDMA_WRITE: Final = 0
IBV_WR_RDMA_WRITE_WITH_IMM: Final = 1
IBV_WR_SEND: Final = 2
IBV_WR_SEND_WITH_IMM: Final = 3
IBV_WR_RDMA_READ: Final = 4
IBV_WR_ATOMIC_CMP_AND_SWP: Final = 5
IBV_WR_ATOMIC_FETCH_AND_ADD: Final = 6
IBV_WR_LOCAL_INV: Final = 7
IBV_WR_BIND_MW: Final = 8
IBV_WR_SEND_WITH_INV: Final = 9
IBV_WR_FLUSH: Final = 14
IBV_WR_ATOMIC_WRITE: Final = 15

IBV_SEND_FENCE: Final = 1 << 0
IBV_SEND_SIGNALED: Final = 1 << 1
IBV_SEND_SOLICITED: Final = 1 << 2
IBV_SEND_INLINE: Final = 1 << 3

# --- work completions
IBV_WC_SUCCESS: Final = 0
IBV_WC_LOC_LEN_ERR: Final = 1
IBV_WC_LOC_QP_OP_ERR: Final = 2
IBV_WC_LOC_EEC_OP_ERR: Final = 3
IBV_WC_LOC_PROT_ERR: Final = 4
IBV_WC_WR_FLUSH_ERR: Final = 5
IBV_WC_MW_BIND_ERR: Final = 6
IBV_WC_BAD_RESP_ERR: Final = 7
IBV_WC_LOC_ACCESS_ERR: Final = 8
IBV_WC_REM_INV_REQ_ERR: Final = 9
IBV_WC_REM_ACCESS_ERR: Final = 10
IBV_WC_REM_OP_ERR: Final = 11
IBV_WC_RETRY_EXC_ERR: Final = 12
IBV_WC_RNR_RETRY_EXC_ERR: Final = 13
IBV_WC_REM_ABORT_ERR: Final = 16
IBV_WC_GENERAL_ERR: Final = 21

IBV_WC_SEND: Final = 0
IBV_WC_RDMA_WRITE: Final = 1
IBV_WC_RDMA_READ: Final = 2
IBV_WC_COMP_SWAP: Final = 3
IBV_WC_FETCH_ADD: Final = 4
IBV_WC_BIND_MW: Final = 5
IBV_WC_LOCAL_INV: Final = 6
IBV_WC_FLUSH: Final = 8
IBV_WC_ATOMIC_WRITE: Final = 9
IBV_WC_RECV: Final = 1 << 7
IBV_WC_RECV_RDMA_WITH_IMM: Final = (1 << 7) + 1

IBV_WC_GRH: Final = 1 << 0
IBV_WC_WITH_IMM: Final = 1 << 1
IBV_WC_WITH_INV: Final = 1 << 3

# --- ports
IBV_GID_TYPE_ROCE_V1: Final = 1
IBV_GID_TYPE_ROCE_V2: Final = 2
IBV_PORT_DOWN: Final = 1
IBV_PORT_ACTIVE: Final = 4
IBV_LINK_LAYER_ETHERNET: Final = 2

# --- memory windows
IBV_MW_TYPE_1: Final = 1
IBV_MW_TYPE_2: Final = 2

# --- shared receive queues
IBV_SRQT_BASIC: Final = 0
IBV_SRQT_XRC: Final = 1
IBV_SRQ_MAX_WR: Final = 1 << 0
IBV_SRQ_LIMIT: Final = 1 << 1

# --- asynchronous events
IBV_EVENT_CQ_ERR: Final = 0
IBV_EVENT_QP_FATAL: Final = 1
IBV_EVENT_QP_REQ_ERR: Final = 2
IBV_EVENT_QP_ACCESS_ERR: Final = 3
IBV_EVENT_COMM_EST: Final = 4
IBV_EVENT_SQ_DRAINED: Final = 5
IBV_EVENT_PATH_MIG: Final = 6
IBV_EVENT_PATH_MIG_ERR: Final = 7
IBV_EVENT_DEVICE_FATAL: Final = 8
IBV_EVENT_PORT_ACTIVE: Final = 9
IBV_EVENT_PORT_ERR: Final = 10
IBV_EVENT_PKEY_CHANGE: Final = 12
IBV_EVENT_SRQ_ERR: Final = 14
IBV_EVENT_SRQ_LIMIT_REACHED: Final = 15
IBV_EVENT_QP_LAST_WQE_REACHED: Final = 16
IBV_EVENT_GID_CHANGE: Final = 18
RNIC_EVENT_CONGESTION: Final = 0x1000
"""A CNP halved the outstanding limit of a queue pair (004 7.4); libibverbs has no such event."""

# --- device capabilities
IBV_VALUES_MASK_RAW_CLOCK: Final = 1

IBV_ATOMIC_NONE: Final = 0
IBV_ATOMIC_HCA: Final = 1
IBV_DEVICE_MEM_WINDOW: Final = 1 << 17
IBV_DEVICE_MEM_WINDOW_TYPE_2B: Final = 1 << 24
IBV_DEVICE_SRQ_RESIZE: Final = 1 << 13
IBV_DEVICE_XRC: Final = 1 << 20
IBV_DEVICE_FLUSH_GLOBAL: Final = 1 << 38
IBV_DEVICE_ATOMIC_WRITE: Final = 1 << 40


def _names(prefix: str, exclude: tuple[str, ...] = ()) -> dict[int, str]:
    return {
        value: name[len(prefix) :]
        for name, value in globals().items()
        if name.startswith(prefix) and isinstance(value, int) and name not in exclude
    }


_OPCODES_AND_FLAGS = (
    "IBV_WC_SEND",
    "IBV_WC_RDMA_WRITE",
    "IBV_WC_RDMA_READ",
    "IBV_WC_COMP_SWAP",
    "IBV_WC_FETCH_ADD",
    "IBV_WC_BIND_MW",
    "IBV_WC_LOCAL_INV",
    "IBV_WC_FLUSH",
    "IBV_WC_ATOMIC_WRITE",
    "IBV_WC_RECV",
    "IBV_WC_RECV_RDMA_WITH_IMM",
    "IBV_WC_GRH",
    "IBV_WC_WITH_IMM",
    "IBV_WC_WITH_INV",
)
QP_TYPE_NAMES = _names("IBV_QPT_")
QP_STATE_NAMES = _names("IBV_QPS_")
EVENT_NAMES = _names("IBV_EVENT_") | {RNIC_EVENT_CONGESTION: "RNIC_EVENT_CONGESTION"}
WC_STATUS_NAMES = _names("IBV_WC_", _OPCODES_AND_FLAGS)
WR_OPCODE_NAMES = _names("IBV_WR_")
WC_OPCODE_NAMES = {
    globals()[name]: name.removeprefix("IBV_WC_")
    for name in _OPCODES_AND_FLAGS
    if name not in ("IBV_WC_GRH", "IBV_WC_WITH_IMM", "IBV_WC_WITH_INV")
}
