"""Numbers of the standards and documents, each typed here a second time by hand from its source."""

from __future__ import annotations

import errno
from types import ModuleType

import pytest

from rnic.spec import access, attach, commands, drops, events, limits, opcodes, ports, registers, states, status
from rnic.spec.errors import RnicError, VerbsError, WorkCompletionError


def numbers(text: str) -> list[tuple[str, int]]:
    """``"03 NAME, 06 OTHER"`` with hexadecimal numbers first."""
    return [(name, int(number, 16)) for number, name in (item.split() for item in text.split(","))]


# hardware.md 2a "Ops", in its order
HARDWARE_COMMANDS = numbers(
    "03 QUERY_DEV_LIM, 06 QUERY_ADAPTER, 07 INIT_HCA, 08 CLOSE_HCA, FFA MAP_ICM, FF9 UNMAP_ICM, 0D SW2HW_MPT,"
    "0F HW2SW_MPT, 11 WRITE_MTT, 12 MAP_EQ, 13 SW2HW_EQ, 14 HW2SW_EQ, 16 SW2HW_CQ, 17 HW2SW_CQ, 2C RESIZE_CQ,"
    "19 RST2INIT, 1A INIT2RTR, 1B RTR2RTS, 1C RTS2RTS, 1D SQERR2RTS, 1E TOERR, 1F RTS2SQD, 38 SQD2SQD,"
    "20 SQD2RTS, 21 ERR2RST, 2D INIT2INIT, 22 QUERY_QP, 23 CONF_SPECIAL_QP, 24 MAD_IFC, 31 NOP"
)
# design.md "Commands without a number in hardware.md"; from 0xF00 up they are ours
DESIGN_COMMANDS = numbers(
    "35 SW2HW_SRQ, 36 HW2SW_SRQ, 37 QUERY_SRQ, 40 ARM_SRQ, 25 READ_MGM, 26 WRITE_MGM, 27 MGID_HASH,"
    "F00 ALLOC_MW, F01 DEALLOC_MW, F10 ALLOC_RES, F11 FREE_RES,"
    "09 INIT_PORT, 0A CLOSE_PORT, 0E QUERY_MPT, F12 SET_WEIGHT, F13 READ_NON_RDMA, F14 READ_CFG,"
    "F15 WRITE_CFG, F16 WRITE_NON_RDMA, F17 OPEN_XRCD, F18 CLOSE_XRCD"
)
# hardware.md 2a "Status"; its BAD_NVMEM is 0B in the second version of the chip
COMMAND_STATUS = numbers(
    "00 ST_OK, 02 ST_BAD_OP, 03 ST_BAD_PARAM, 04 ST_BAD_SYS_STATE, 0B ST_BAD_NVMEM,"
    # the rest are mthca's
    "01 ST_INTERNAL_ERR, 05 ST_BAD_RESOURCE, 06 ST_RESOURCE_BUSY, 08 ST_EXCEED_LIM, 09 ST_BAD_RES_STATE,"
    "0A ST_BAD_INDEX, 10 ST_BAD_QP_STATE, 40 ST_BAD_SIZE, 80 ST_ERRNO"
)
# ours: what ALLOC_RES and FREE_RES take
RESOURCES = numbers("1 RES_UAR_BLOCK, 2 RES_PD, 3 RES_QP, 4 RES_CQ, 5 RES_SRQ, 6 RES_EQ, 7 RES_MPT, 8 RES_MTT")
# ours: the process boundary
ATTACH = numbers(
    "1 MSG_HELLO, 2 MSG_LIST, 3 MSG_OPEN, 4 MSG_COMMAND, 5 MSG_VECTOR, 6 MSG_SHARE, 7 MSG_UNSHARE, 8 MSG_INFO,"
    "9 MSG_ADD, A MSG_BYE, B MSG_FAULT, C MSG_REGISTER, D MSG_PUNT, E MSG_SHM_RING, F MSG_EXPLAIN,"
    "10 MSG_VERBS_RULES, 11 MSG_NETLINK, 12 MSG_CAPTURE, 13 MSG_SOURCE_PORT, 14 MSG_UMAD, 100 MAX_SOURCE_PORTS,"
    "0 DMA_PROC_MEM, 1 DMA_COPIER, 100 DMA_SLOT, 200 DMA_UNFIT, 400 DMA_NO_ENGINE,"
    "1 PUNT_PACKET, 2 PUNT_TURN, 3 PUNT_NOTIFY, 4 PUNT_DOORBELL, 5 PUNT_TIMER, 54 PUNT_SENDER_AT, 1C PUNT_SENDER_MAX,"
    "0 COPY_READ, 1 COPY_WRITE,"
    "2 COPY_CHECK, 3 COPY_CHECK_WRITE, 43494E52 MAGIC, 8 VERSION, 1000 PAGE_BYTES, 10000 MAX_MESSAGE, 8000 MAX_COPY"
)
# hardware.md 1a for CONTROL, 2a for the HCR; the rest ours
REGISTER_BITS = numbers(
    "1 CONTROL_ENABLE, 2 CONTROL_RESET, 4 CONTROL_PAUSE, F0 CONTROL_MODE, 100 CONTROL_IRQ,"
    "1 STATUS_ENABLED, 2 STATUS_READY, 4 STATUS_PAUSED, 8 STATUS_LINK, 10 STATUS_FATAL, 20 STATUS_BUSY,"
    "1 IRQ_EVENT, 2 IRQ_COMMAND, 4 IRQ_QP_FAULT, 8 IRQ_PORT, 10 IRQ_FATAL, 20 IRQ_NON_RDMA, 40 IRQ_CNP, 7F IRQ_BITS,"
    "800000 HCR_GO, 400000 HCR_EVENT"
)
# PortInfo of the standard, and mlx5's subtypes of a port change event
PORTS = numbers("1 PORT_DOWN, 2 PORT_INIT, 3 PORT_ARMED, 4 PORT_ACTIVE, 7 PORT_PKEY, 8 PORT_GUID")
# hardware.md 2a "Syndromes"
SYNDROMES = numbers(
    "01 LOC_LEN_ERR, 02 LOC_QP_OP_ERR, 04 LOC_PROT_ERR, 05 WR_FLUSH_ERR, 06 MW_BIND_ERR, 10 BAD_RESP_ERR,"
    "11 LOC_ACCESS_ERR, 12 REM_INV_REQ_ERR, 13 REM_ACCESS_ERR, 14 REM_OP_ERR, 15 RETRY_EXC_ERR,"
    "16 RNR_RETRY_EXC_ERR, 22 REM_ABORT_ERR"
)
# design.md "Where the documents disagree": status
ENGINE_STATUS = numbers(
    "0 ENGINE_SUCCESS, 1 ENGINE_LOCAL_ACCESS, 2 ENGINE_REMOTE_ACCESS, 3 ENGINE_LENGTH_MISMATCH, 4 ENGINE_TIMEOUT"
)
# hardware.md 2a "QPC flags"
STATES = numbers(
    "0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQE, 5 SQD, 6 ERR, 0 ST_RC, 1 ST_UC, 3 ST_UD, 5 ST_XRC_INI, 6 ST_XRC_TGT"
)
# hardware.md 2a "Event bits"; the rest are mthca's
EVENTS = numbers(
    "2 COMM_EST, 3 SQ_DRAINED, 4 CQ_ERROR, 5 WQ_CATAS_ERROR, 8 LOCAL_CATAS_ERROR, 9 PORT_CHANGE,"
    "10 WQ_INVAL_REQ_ERROR, 11 WQ_ACCESS_ERROR,"
    "00 COMP, 01 PATH_MIG, 06 EEC_CATAS_ERROR, 07 PATH_MIG_FAILED, 0A CMD, 12 SRQ_CATAS_ERROR, 13 SRQ_LAST_WQE,"
    "14 SRQ_LIMIT,"
    # ours: 004 7.4 says that there is one, and gives no number
    "20 CONGESTION"
)
# software.md section 4: RC 0x00-0x14, 0x16, 0x17; UC = 0x20+; UD 0x64, 0x65; IBA 9.2.1 table 38
OPERATIONS = numbers(
    "00 SEND_FIRST, 01 SEND_MIDDLE, 02 SEND_LAST, 03 SEND_LAST_IMM, 04 SEND_ONLY, 05 SEND_ONLY_IMM,"
    "06 WRITE_FIRST, 07 WRITE_MIDDLE, 08 WRITE_LAST, 09 WRITE_LAST_IMM, 0A WRITE_ONLY, 0B WRITE_ONLY_IMM,"
    "0C READ_REQUEST, 0D READ_RESPONSE_FIRST, 0E READ_RESPONSE_MIDDLE, 0F READ_RESPONSE_LAST,"
    "10 READ_RESPONSE_ONLY, 11 ACKNOWLEDGE, 12 ATOMIC_ACKNOWLEDGE, 13 COMPARE_SWAP, 14 FETCH_ADD,"
    "16 SEND_LAST_INV, 17 SEND_ONLY_INV, 1C FLUSH, 1D ATOMIC_WRITE,"
    "00 RC, 20 UC, 60 UD, A0 XRC, 81 CNP, E0 SERVICE_MASK, 1F OPERATION_MASK"
)
# design.md "Work-request opcodes"
WORK_REQUESTS = numbers(
    "04 WR_SEND, 05 WR_SEND_IMM, 0A WR_WRITE, 0B WR_WRITE_IMM, 0C WR_READ, 13 WR_CMP_SWAP, 14 WR_FETCH_ADD,"
    "17 WR_SEND_INV, 1C WR_FLUSH, 1D WR_ATOMIC_WRITE, F0 WR_BIND_MW, F1 WR_LOCAL_INV, FF WR_NOP"
)
# 001 3.5 "Opcode Validation"
ENGINE_OPCODES = numbers(
    "01 ENGINE_WRITE_TEST, 06 ENGINE_WRITE_FIRST, 07 ENGINE_WRITE_MIDDLE, 08 ENGINE_WRITE_LAST, 0A ENGINE_WRITE_ONLY"
)
# enum ibv_access_flags
ACCESS = numbers(
    "1 LOCAL_WRITE, 2 REMOTE_WRITE, 4 REMOTE_READ, 8 REMOTE_ATOMIC, 10 MW_BIND, 20 ZERO_BASED, 40 ON_DEMAND,"
    "80 HUGETLB, 100 FLUSH_GLOBAL, 200 FLUSH_PERSISTENT, 100000 RELAXED_ORDERING"
)

ROWS = [
    pytest.param(module, name, value, id=f"{module.__name__.rpartition('.')[2]}.{name}")
    for module, table in [
        (commands, HARDWARE_COMMANDS + DESIGN_COMMANDS + COMMAND_STATUS + RESOURCES),
        (attach, ATTACH),
        (registers, REGISTER_BITS),
        (status, SYNDROMES + ENGINE_STATUS),
        (states, STATES),
        (events, EVENTS),
        (ports, PORTS),
        (opcodes, OPERATIONS + WORK_REQUESTS + ENGINE_OPCODES),
        (access, ACCESS),
    ]
    for name, value in table
]


@pytest.mark.parametrize(("module", "name", "value"), ROWS)
def test_number(module: ModuleType, name: str, value: int) -> None:
    assert getattr(module, name) == value


def test_every_command_is_typed_here() -> None:
    assert dict(HARDWARE_COMMANDS + DESIGN_COMMANDS) == {name: value for value, name in commands.COMMAND_NAMES.items()}
    assert len(HARDWARE_COMMANDS + DESIGN_COMMANDS) == len(commands.COMMAND_NAMES)


@pytest.mark.parametrize(
    ("module", "prefix", "names"),
    [
        pytest.param(commands, "ST_", commands.STATUS_NAMES, id="command status"),
        pytest.param(opcodes, "WR_", opcodes.WR_NAMES, id="work requests"),
        pytest.param(events, "", events.EVENT_NAMES, id="events"),
        pytest.param(
            states, "ST_", {code: name.replace(" ", "_") for code, name in states.SERVICE_NAMES.items()}, id="services"
        ),
    ],
)
def test_names_are_complete(module: ModuleType, prefix: str, names: dict[int, str]) -> None:
    numbers_of = {
        name.removeprefix(prefix): value
        for name, value in vars(module).items()
        if name.isupper() and name.startswith(prefix) and isinstance(value, int)
    }
    assert {name: value for value, name in names.items()} == numbers_of


def test_status_names() -> None:
    assert {0: "SUCCESS"} | {value: name for name, value in SYNDROMES} == status.SYNDROME_NAMES
    assert list(status.ENGINE_STATUS_NAMES) == [0, 1, 2, 3, 4]
    assert list(states.STATE_NAMES.values()) == ["RESET", "INIT", "RTR", "RTS", "SQE", "SQD", "ERR"]


def test_every_other_number_is_typed_here() -> None:
    def of(module: ModuleType, *prefixes: str) -> list[tuple[str, int]]:
        return [(name, value) for name, value in vars(module).items() if name.startswith(prefixes)]

    assert set(of(commands, "ST_", "RES_")) == set(COMMAND_STATUS + RESOURCES)
    assert set(of(attach, "MSG_", "DMA_", "COPY_")) <= {*ATTACH, ("COPY_REPLY", attach.COPY_REPLY)}
    bits = of(registers, "CONTROL_", "STATUS_", "IRQ_", "HCR_GO", "HCR_EVENT")
    assert {name for name, _ in bits} - {"IRQ_ENABLE", "IRQ_STATUS"} == {name for name, _ in REGISTER_BITS}
    assert {(name, value) for value, name in events.EVENT_NAMES.items()} == set(EVENTS)


def test_drop_reasons_are_unique_counters() -> None:
    values = [member.value for member in drops.DropReason]
    assert len(set(values)) == len(values) == len(drops.DropReason.__members__)
    for name, member in drops.DropReason.__members__.items():
        assert member.value == "drop_" + name.lower()


def test_engine_writes() -> None:
    assert opcodes.ENGINE_WRITES == (0x01, 0x06, 0x07, 0x08, 0x0A)


def test_rights() -> None:
    assert access.NEED_LOCAL_WRITE == access.REMOTE_WRITE | access.REMOTE_ATOMIC
    assert access.SUPPORTED == 0x17F
    assert access.QP_RIGHTS == 0x30F


def test_limits() -> None:
    assert limits.ROCE_UDP_PORT == 4791
    assert limits.MTU_CODES == {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
    assert limits.MTU_BYTES == {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
    assert (limits.MAX_MRS, 1 << limits.LOG_MAX_QPS, 1 << limits.LOG_DEFAULT_QPS) == (32_768, 16_384, 8_192)
    assert limits.MAX_UDP_PAYLOAD == 32 + 4 + 4096 + 4


class TestErrors:
    def test_verbs_error(self) -> None:
        error = VerbsError(errno.EINVAL, "size=0 is not a ring size; use 2 to 65536 entries")
        assert isinstance(error, OSError)
        assert isinstance(error, RnicError)
        assert (error.errno, error.error_code) == (errno.EINVAL, errno.EINVAL)
        assert str(error) == "size=0 is not a ring size; use 2 to 65536 entries (Invalid argument)"

    def test_work_completion_error(self) -> None:
        error = WorkCompletionError(12, "READ failed: retry exceeded")
        assert (error.status, str(error)) == (12, "READ failed: retry exceeded")
        assert isinstance(error, RnicError)
