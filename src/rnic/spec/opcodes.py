"""BTH opcodes (IBA vol. 1, 9.2) and work-request opcodes (001 section 3.5, ``design.md``)."""

from typing import NamedTuple

from rnic.spec.states import ST_RC, ST_UC, ST_UD, ST_XRC_INI

# --- operations, the low five bits of a BTH opcode
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(0x06)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(0x06, 0x0C)
READ_REQUEST = 0x0C
READ_RESPONSE_FIRST, READ_RESPONSE_MIDDLE, READ_RESPONSE_LAST, READ_RESPONSE_ONLY = range(0x0D, 0x11)
ACKNOWLEDGE = 0x11
ATOMIC_ACKNOWLEDGE = 0x12
COMPARE_SWAP = 0x13
FETCH_ADD = 0x14
SEND_LAST_INV = 0x16
SEND_ONLY_INV = 0x17
FLUSH = 0x1C
ATOMIC_WRITE = 0x1D

# --- services, the high three bits
RC = 0x00
UC = 0x20
UD = 0x60
XRC = 0xA0
SERVICE_MASK = 0xE0
OPERATION_MASK = 0x1F

CNP = 0x81
"""Congestion notification packet (Annex A17, 17.9.3)."""

# --- work-request opcodes in the SQ descriptor, the same for every service type
WR_SEND = 0x04
WR_SEND_IMM = 0x05
WR_WRITE = 0x0A
WR_WRITE_IMM = 0x0B
WR_READ = 0x0C
WR_CMP_SWAP = 0x13
WR_FETCH_ADD = 0x14
WR_SEND_INV = 0x17
WR_FLUSH = 0x1C
WR_ATOMIC_WRITE = 0x1D
WR_BIND_MW = 0xF0
WR_LOCAL_INV = 0xF1
WR_NOP = 0xFF

# --- placement types of a FLUSH: bits of the FETH, which the work request carries in the immediate data field
PLACEMENT_GLOBAL = 1 << 0
PLACEMENT_PERSISTENT = 1 << 1
LEVEL_RANGE, LEVEL_MR = range(2)
LEVEL_SHIFT = 4

_SEND = (SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY)
_SEND_IMM = (SEND_FIRST, SEND_MIDDLE, SEND_LAST_IMM, SEND_ONLY_IMM)
_SEND_INV = (SEND_FIRST, SEND_MIDDLE, SEND_LAST_INV, SEND_ONLY_INV)
_WRITE = (WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY)
_WRITE_IMM = (WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST_IMM, WRITE_ONLY_IMM)
_RC = (ST_RC, ST_XRC_INI)
_UC, _UD = (*_RC, ST_UC), (*_RC, ST_UC, ST_UD)


class WorkRequest(NamedTuple):
    """Properties of one kind of work request.

    ``flags`` are words: ``send``, ``write``, ``read``, ``atomic`` or ``local``; ``response`` if it gets responses and
    takes responder resources; ``operand`` if its data is in the send entry itself; ``receive`` if it consumes a receive
    entry of the peer; ``word`` if its last packet carries the descriptor's immediate; ``key`` if that immediate is a
    key to invalidate. ``ibv_wr`` is its name in ``ibv_wr_opcode``, ``ibv_wc`` that of its completion in
    ``ibv_wc_opcode``.
    """

    opcode: int
    name: str
    flags: str
    services: tuple[int, ...]
    packets: tuple[int, ...]
    """BTH operations of its first, middle, last and only packet if a message may have several packets."""
    ibv_wr: str = ""
    ibv_wc: str = ""


WORK_REQUESTS = (
    WorkRequest(WR_SEND, "SEND", "send receive", _UD, _SEND, "SEND", "SEND"),
    WorkRequest(WR_SEND_IMM, "SEND_IMM", "send receive word", _UD, _SEND_IMM, "SEND_WITH_IMM", "SEND"),
    WorkRequest(WR_WRITE, "WRITE", "write", _UC, _WRITE, "RDMA_WRITE", "RDMA_WRITE"),
    WorkRequest(WR_WRITE_IMM, "WRITE_IMM", "write receive word", _UC, _WRITE_IMM, "RDMA_WRITE_WITH_IMM", "RDMA_WRITE"),
    WorkRequest(WR_READ, "READ", "read response", _RC, (), "RDMA_READ", "RDMA_READ"),
    WorkRequest(WR_CMP_SWAP, "CMP_SWAP", "atomic response", _RC, (), "ATOMIC_CMP_AND_SWP", "COMP_SWAP"),
    WorkRequest(WR_FETCH_ADD, "FETCH_ADD", "atomic response", _RC, (), "ATOMIC_FETCH_AND_ADD", "FETCH_ADD"),
    WorkRequest(WR_SEND_INV, "SEND_INV", "send receive word key", _RC, _SEND_INV, "SEND_WITH_INV", "SEND"),
    WorkRequest(WR_FLUSH, "FLUSH", "response operand", _RC, (), "FLUSH", "FLUSH"),
    WorkRequest(WR_ATOMIC_WRITE, "ATOMIC_WRITE", "response operand", _RC, (), "ATOMIC_WRITE", "ATOMIC_WRITE"),
    WorkRequest(WR_BIND_MW, "BIND_MW", "local", _UC, (), "BIND_MW", "BIND_MW"),
    WorkRequest(WR_LOCAL_INV, "LOCAL_INV", "local key", _UC, (), "LOCAL_INV", "LOCAL_INV"),
    WorkRequest(WR_NOP, "NOP", "local", _UD, ()),
)
WR_NAMES = {row.opcode: row.name for row in WORK_REQUESTS}


def work_requests(flag: str) -> frozenset[int]:
    """Return the opcodes of all work requests with a flag."""
    return frozenset(row.opcode for row in WORK_REQUESTS if flag in row.flags.split())


def allowed(service: int) -> frozenset[int]:
    """Return the opcodes of the work requests that a service type supports."""
    return frozenset(row.opcode for row in WORK_REQUESTS if service in row.services)


# --- opcodes used only by the descriptor engine (001 section 3.5)
ENGINE_WRITE_TEST = 0x01
ENGINE_WRITE_FIRST = 0x06
ENGINE_WRITE_MIDDLE = 0x07
ENGINE_WRITE_LAST = 0x08
ENGINE_WRITE_ONLY = 0x0A
ENGINE_WRITES = (ENGINE_WRITE_TEST, ENGINE_WRITE_FIRST, ENGINE_WRITE_MIDDLE, ENGINE_WRITE_LAST, ENGINE_WRITE_ONLY)
