"""Event types in EQ entries: the event bits of ``hardware.md`` 2a, with mthca's numbers for the rest."""

COMP = 0x00
PATH_MIG = 0x01
COMM_EST = 0x02
SQ_DRAINED = 0x03
CQ_ERROR = 0x04
WQ_CATAS_ERROR = 0x05
EEC_CATAS_ERROR = 0x06
PATH_MIG_FAILED = 0x07
LOCAL_CATAS_ERROR = 0x08
PORT_CHANGE = 0x09
CMD = 0x0A
WQ_INVAL_REQ_ERROR = 0x10
WQ_ACCESS_ERROR = 0x11
SRQ_CATAS_ERROR = 0x12
SRQ_LAST_WQE = 0x13
SRQ_LIMIT = 0x14
CONGESTION = 0x20
"""A CNP halved the outstanding limit of a queue pair (004 7.4). Ours: neither source has a number."""

PORT_DOWN = 1
PORT_ACTIVE = 4
"""Port states, also the subtypes of a port change event."""
PORT_PKEY = 7
PORT_GUID = 8
"""Further subtypes, with mlx5's numbers: the P_Key table or the GID table has changed."""

EVENT_NAMES = {
    COMP: "COMP",
    PATH_MIG: "PATH_MIG",
    COMM_EST: "COMM_EST",
    SQ_DRAINED: "SQ_DRAINED",
    CQ_ERROR: "CQ_ERROR",
    WQ_CATAS_ERROR: "WQ_CATAS_ERROR",
    EEC_CATAS_ERROR: "EEC_CATAS_ERROR",
    PATH_MIG_FAILED: "PATH_MIG_FAILED",
    LOCAL_CATAS_ERROR: "LOCAL_CATAS_ERROR",
    PORT_CHANGE: "PORT_CHANGE",
    CMD: "CMD",
    WQ_INVAL_REQ_ERROR: "WQ_INVAL_REQ_ERROR",
    WQ_ACCESS_ERROR: "WQ_ACCESS_ERROR",
    SRQ_CATAS_ERROR: "SRQ_CATAS_ERROR",
    SRQ_LAST_WQE: "SRQ_LAST_WQE",
    SRQ_LIMIT: "SRQ_LIMIT",
    CONGESTION: "CONGESTION",
}
