"""Limits of the device and of the wire."""

ROCE_UDP_PORT = 4791
DEFAULT_PKEY = 0xFFFF
MTU_CODES = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
"""Path MTU in bytes to its code."""
MTU_BYTES = {code: size for size, code in MTU_CODES.items()}
MAX_PATH_MTU = 4096

BTH_BYTES = 12
ICRC_BYTES = 4
MAX_TRANSPORT_HEADERS = 12 + 16 + 4
"""Longest headers before a payload: BTH + RETH + ImmDt; XRC adds an XRCETH."""
MAX_UDP_PAYLOAD = MAX_TRANSPORT_HEADERS + 4 + MAX_PATH_MTU + ICRC_BYTES

MAX_MSG_BYTES = 1 << 31
MAX_QP_WR = 1 << 15
MAX_SGE = 32
MAX_INLINE = 512
LOG_MAX_CQ = 22
"""log2 of the most entries of a CQ or EQ; libfabric asks for 2^18."""
MAX_CQE = (1 << LOG_MAX_CQ) - 1
MAX_RD_ATOMIC = 128
LOG_MAX_QPS = 14
LOG_DEFAULT_QPS = 13
MAX_EQS = 1 << 10
MAX_MRS = 1 << 15
FIRST_QPN = 16
"""First QPN for programs: QP0 does not exist on RoCE, QP1 is the GSI, and 2 to 15 are reserved."""
GRH_BYTES = 40
"""Bytes reserved for the GRH before the payload in every UD receive."""
GO_BACK_N, SELECTIVE_REPEAT = RECOVERIES = ("go-back-n", "selective-repeat")
"""Loss recovery: retransmit all packets from the missing one on, as in the standard, or the missing packet only."""
NEVER = 1 << 63
"""A deadline that never expires, in nanoseconds."""
