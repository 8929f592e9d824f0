"""Generate the C header ``state.h``: records, layouts, opcode rows and constants that the engine shares with Python.

Run as a program, it writes the header next to itself; a test compares the checked-in file with the tables.

- A record of :mod:`rnic.state` becomes a ``struct`` of ``uint64_t``, or of ``uint32_t`` for 32-bit words.
- A field of a big-endian layout becomes ``QPC_<FIELD>``: byte offset, bytes, lowest bit and width, for ``be_get`` and
  ``be_put``. A field of an SQ entry, which a send WQE contains as words, becomes ``SQE_<FIELD>``: word, lowest bit,
  width; one of a datagram's entry becomes ``SQE_UD_<FIELD>``.
- A field of a message becomes ``ATTACH_<MESSAGE>_<FIELD>_AT``, its byte offset.
- A counter of both executors becomes ``COUNT_<NAME>``, a number of ``enum engine_count``.
- Every constant becomes ``<PREFIX><NAME>``.

:func:`layout_hash` identifies all of it: a program that attaches to a state compares it first.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

from rnic.cc import control, dcqcn, pacing
from rnic.context import cqc, qpc
from rnic.context.qpc import QPC
from rnic.rings import cqe, queue_block, rqe, sqe
from rnic.rings.sqe import SQ_ENTRY, SQ_ENTRY_UD
from rnic.spec import access, attach, congestion_regs, events, limits, opcodes, psn, rounds, states, status, syndromes
from rnic.spec.layout import Layout
from rnic.state import budget, capture_ring, fault_table, queue_pair, shm_loopback, slot
from rnic.state.budget import BUDGET, SHARE
from rnic.state.capture_ring import CAPTURE_RECORD, CAPTURE_RING
from rnic.state.counters import NAKS_SENT, PACKET_COUNTERS
from rnic.state.device import DEVICE
from rnic.state.fault_table import FAULT_COUNT, FAULT_RULE, FAULT_TABLE
from rnic.state.inflight import INFLIGHT, LINE, PEER
from rnic.state.memory import KEY
from rnic.state.paths import FLOW
from rnic.state.queue_pair import PIECE, QP, REPLY, RESOURCE, SCATTER, SEND_WQE
from rnic.state.queues import CQ, EQ, SRQ
from rnic.state.record import NONE, WORD_BYTES
from rnic.state.scheduler import PROGRAM, SCHEDULER, TIMERS
from rnic.state.shm_loopback import RING_CONSUMER, RING_CONTROL, RING_PRODUCER
from rnic.state.slot import SLOT
from rnic.transport import budget as transport_budget
from rnic.transport import inflight, responder, response_queue, send_queue
from rnic.wire.opcode import OPCODES, OpcodeRow

PATH = Path(__file__).with_name("state.h")

RECORDS: dict[str, Layout] = {
    "queue_pair": QP,
    "send_wqe": SEND_WQE,
    "read_piece": PIECE,
    "reply": REPLY,
    "resource": RESOURCE,
    "scatter": SCATTER,
    "completion_queue": CQ,
    "event_queue": EQ,
    "memory_key": KEY,
    "shared_receive_queue": SRQ,
    "device": DEVICE,
    "flow": FLOW,
    "timers": TIMERS,
    "scheduler": SCHEDULER,
    "program": PROGRAM,
    "inflight": INFLIGHT,
    "peer": PEER,
    "line": LINE,
    "slot": SLOT,
    "budget": BUDGET,
    "share": SHARE,
    "ring_producer": RING_PRODUCER,
    "ring_consumer": RING_CONSUMER,
    "ring_control": RING_CONTROL,
    "fault_table": FAULT_TABLE,
    "fault_rule": FAULT_RULE,
    "fault_count": FAULT_COUNT,
    "capture_ring": CAPTURE_RING,
    "capture_record": CAPTURE_RECORD,
}
"""Records by the name of their ``struct``."""

MESSAGES: dict[str, Layout] = {
    "REPLY_HEADER": attach.REPLY_HEADER,
    "OPEN_SLOT": attach.OPEN_SLOT,
    "PUNT": attach.PUNT,
    "PUNT_REPLY": attach.PUNT_REPLY,
    "SHM_RING": attach.SHM_RING,
    "SHM_RING_REPLY": attach.SHM_RING_REPLY,
    "SOURCE_PORT": attach.SOURCE_PORT,
}
"""Messages between a program that runs the engine and its NIC process, by their names in the header."""

INFLIGHT_NUMBERS = (
    "LOSSY",
    "CROWDED",
    "LEAST",
    "STEP",
    "QUANTUM",
    "SMALL_QUANTUM",
    "OVERTAKE",
    "QUEUE_NS",
    "SAMPLES",
    "LOW_NS",
    "FRACTION_",
)
"""Constants of the in-flight budget."""
NUMBERS: tuple[tuple[str, ModuleType, tuple[str, ...]], ...] = (
    # prefix, module, prefixes of the names to include; () includes all
    ("BTH_", opcodes, ("SEND_", "WRITE_", "READ_", "ACKNOWLEDGE", "ATOMIC_", "COMPARE_", "FETCH_", "FLUSH", "CNP")),
    ("SERVICE_", opcodes, ("RC", "UC", "UD")),
    ("BTH_", opcodes, ("SERVICE_MASK", "OPERATION_MASK")),
    ("", opcodes, ("WR_",)),
    ("QP_STATE_", states, ("RESET", "INIT", "RTR", "RTS", "SQE", "SQD", "ERR")),
    ("", states, ("ST_",)),
    ("SYN_", status, ()),
    ("", syndromes, ("AETH_", "CREDITS_", "NAK_", "RNR_")),
    ("", psn, ("PSN_",)),
    ("", limits, ()),
    ("POLL_", rounds, ()),
    ("EVENT_", events, ("COMP",)),
    ("SLOT_", slot, ("BUFFERS_AT",)),
    ("ATTACH_", attach, ("MAX_MESSAGE", "MAX_SOURCE_PORTS", "MSG_PUNT", "MSG_SHM_RING", "MSG_SOURCE_PORT", "PUNT_")),
    ("SHM_", shm_loopback, ()),
    ("BUDGET_", budget, ()),
    ("FAULT_", fault_table, ()),
    ("CAPTURE_", capture_ring, ()),
    ("BUDGET_", transport_budget, ("LEAST",)),
    ("ACCESS_", access, ()),
    ("", qpc, ("OPT_", "SRQ_VALID")),
    ("", sqe, ("FLAG_", "SQE_", "SGE_")),
    ("", rqe, ("SRQ_ORDER_",)),
    ("", cqe, ("CQE_",)),
    ("", cqc, ("CQ_STAMPED",)),
    ("REG_", queue_block, ("QUEUE_", "SQ_", "CQ_", "RQ_", "SRQ_")),
    ("", queue_block, ("ARM_", "BLOCK_")),
    ("QP_", queue_pair, ("PIECES", "REPLIES", "RESOURCES", "SCATTERS")),
    ("REPLY_", response_queue, ("ACK", "READ", "ATOMIC")),
    ("INFLIGHT_", inflight, INFLIGHT_NUMBERS),
    ("INFLIGHT_", send_queue, ("NARROWEST", "ACKS_A_WINDOW", "WIDEN_AFTER", "MENDED_PART")),
    ("TIMER_", send_queue, ("REPEAT_", "SILENT_PROBES", "PROBE_MAX_SHIFT", "BACKOFF_MOST", "ACK_EACH_AFTER_PROBE")),
    ("", send_queue, ("PROBE_MENDS", "GO_BACK_PENALTY_MAX")),
    ("OPEN_", responder, ("NOTHING", "SEND", "WRITE")),
    ("REPLY_", responder, ("OWED_NS",)),
    ("PACE_", congestion_regs, ("WINDOW_NS",)),
    ("PACE_", pacing, ("RATE_TIME_BITS",)),
    ("PACE_", control, ("BURST_PACKETS",)),
    ("", control, ("CONTROL_",)),
    ("DCQCN_", dcqcn, ("ALPHA_", "RATE_", "MOST_ROUNDS")),
)

ROW_FLAGS = (
    "start",
    "end",
    "payload",
    "send",
    "write",
    "read_response",
    "atomic",
    "response",
    "takes_receive",
    "feth",
    "reth",
    "immdt",
    "ieth",
    "aeth",
)
"""Bits of an opcode row, from bit 0 on: attributes of :class:`~rnic.wire.opcode.OpcodeRow`."""


def _structs() -> list[str]:
    lines = []
    for name, layout in RECORDS.items():
        lines.append(f"struct {name} {{")
        word = layout.fields[0].unit
        lines += [f"\tuint{8 * word}_t {field.name}; /* {field.doc} */" for field in layout.fields]
        spare = layout.size // word - len(layout.fields)
        if spare:
            lines.append(f"\tuint{8 * word}_t reserved[{spare}];")
        lines += ["};", f'_Static_assert(sizeof(struct {name}) == {layout.size}, "{layout.name}");', ""]
    return lines


def _fields() -> list[str]:
    lines = [f"#define QPC_SIZE {QPC.size}u"]
    lines += [
        f"#define QPC_{field.name.upper()} {field.byte}u, {field.unit}u, {field.lsb}u, {field.width}u"
        for field in QPC.fields
        if field.unit <= WORD_BYTES
    ]
    for prefix, layout in (("SQE_", SQ_ENTRY), ("SQE_UD_", SQ_ENTRY_UD)):
        for field in layout.fields:
            word, byte = divmod(field.byte, WORD_BYTES)
            if field.unit <= WORD_BYTES:
                lines.append(f"#define {prefix}{field.name.upper()} {word}u, {byte * 8 + field.lsb}u, {field.width}u")
    for prefix, layout in MESSAGES.items():
        lines.append(f"#define ATTACH_{prefix}_SIZE {layout.size}u")
        lines += [f"#define ATTACH_{prefix}_{field.name.upper()}_AT {field.byte}u" for field in layout.fields]
    return lines


def _numbers() -> list[str]:
    lines = [f"#define NONE {NONE:#x}ull"]
    for prefix, module, beginnings in NUMBERS:
        for name, value in vars(module).items():
            wanted = not beginnings or name.startswith(beginnings)
            if name.isupper() and type(value) is int and wanted:
                lines.append(f"#define {prefix}{name} {value:#x}{'u' if value < 1 << 32 else 'ull'}")
    takes = sum(1 << opcode for opcode in opcodes.work_requests("receive"))
    lines.append(f"#define WR_TAKES_RECEIVE {takes:#x}ull /* a bit for each opcode */")
    sizes = ", ".join(str(limits.MTU_BYTES.get(code, 0)) for code in range(QPC["mtu"].mask + 1))
    lines.append(f"static const uint16_t mtu_bytes[{QPC['mtu'].mask + 1}] = {{ {sizes} }};")
    times = ", ".join(str(time) for time in syndromes.RNR_TIMER_US)
    lines.append(f"static const uint32_t rnr_timer_us[{len(syndromes.RNR_TIMER_US)}] = {{ {times} }};")
    counts = ", ".join(str(count) for count in syndromes.CREDIT_COUNTS)
    lines.append(f"static const uint16_t credit_counts[{len(syndromes.CREDIT_COUNTS)}] = {{ {counts} }};")
    return lines


def _counters() -> list[str]:
    return [
        "/* Counters of both executors, by number. */",
        "enum engine_count {",
        *(f"\tCOUNT_{name.upper()}," for name in PACKET_COUNTERS),
        "\tENGINE_COUNTS",
        "};",
        "/* Counter of a sent NAK, by bits 6:5 of its syndrome. */",
        "static const uint8_t naks_sent[4] = {",
        *(f"\t[{kind >> 5}] = COUNT_{name.upper()}," for kind, name in NAKS_SENT.items()),
        "};",
        "/* Reasons for punts; see punt_* of struct slot. */",
        f"#define PUNT_REASONS {', '.join(f'PUNT_{name.upper()}' for name, _ in slot.PUNT_REASONS)}",
    ]


def _row(row: OpcodeRow) -> str:
    flags = sum(getattr(row, name) << bit for bit, name in enumerate(ROW_FLAGS))
    return f"\t[{row.opcode:#04x}] = {{ {row.header_bytes}, {flags:#06x} }}, /* {row.name} */"


def _rows() -> list[str]:
    return [
        *(f"#define ROW_{name.upper()} {1 << bit:#x}u" for bit, name in enumerate(ROW_FLAGS)),
        "struct opcode_row {",
        "\tuint16_t header_bytes; /* BTH and extended headers; 0 for an unknown opcode */",
        "\tuint16_t flags; /* ROW_* bits */",
        "};",
        "static const struct opcode_row opcode_rows[256] = {",
        *(_row(row) for row in OPCODES if row is not None),
        "};",
    ]


def _body() -> list[str]:
    return [*_numbers(), "", *_structs(), *_fields(), "", *_counters(), "", *_rows()]


def layout_hash() -> int:
    """Return a 64-bit hash of all tables from which the header is made."""
    return int.from_bytes(hashlib.sha256("\n".join(_body()).encode()).digest()[:8], "big")


def c_header() -> str:
    """Return the text of ``state.h``."""
    lines = [
        "/* Generated from the tables: run python -m rnic.engine.header. */",
        "#ifndef RNIC_ENGINE_STATE_H",
        "#define RNIC_ENGINE_STATE_H",
        "",
        "#include <stdint.h>",
        "",
        f"#define STATE_LAYOUT_HASH {layout_hash():#018x}ull",
        "",
        *_body(),
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PATH.write_text(c_header(), encoding="utf-8")
