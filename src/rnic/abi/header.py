"""Generate the C header ``rnic_hw.h`` from the tables that Python uses.

A field becomes ``RNIC_<LAYOUT>_<FIELD>``: byte offset, unit in bytes, lowest bit and width, as the arguments of
``rnic_put_be`` and ``rnic_get_be``. Numbers become ``RNIC_<NAME>``. ``RNIC_WORK_REQUESTS(X)`` and
``RNIC_QP_ATTRIBUTES(X)`` expand to ``X(...)`` for each row, with libibverbs' names and the device's.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from rnic.context.cqc import CQ_STAMPED, CQC, SRQC
from rnic.context.eqc import EQC
from rnic.context.modify import ATTRIBUTES, COMMAND_FOR
from rnic.context.qpc import OPT_SQ_SIG_ALL, QPC, SRQ_VALID
from rnic.device.mailboxes import ADAPTER, DEV_LIM, MGM, OPEN_XRCD
from rnic.mem.mpt import MPT_ENTRY
from rnic.rings import cqe, queue_block, rqe, sqe
from rnic.rings.cqe import CQ_ENTRY
from rnic.rings.eqe import EQ_ENTRY
from rnic.rings.sqe import SGE, SQ_ENTRY, SQ_ENTRY_ATOMIC, SQ_ENTRY_BIND, SQ_ENTRY_UD, SQ_ENTRY_XRC
from rnic.spec import (
    attach,
    attach_cm,
    cm,
    commands,
    events,
    limits,
    opcodes,
    ports,
    reasons,
    states,
    status,
    verbs_faults,
)
from rnic.spec.layout import Layout
from rnic.state import shm_loopback

LAYOUTS: dict[str, Layout] = {
    "QPC": QPC,
    "CQC": CQC,
    "SRQC": SRQC,
    "EQC": EQC,
    "MPT": MPT_ENTRY,
    "DEV_LIM": DEV_LIM,
    "ADAPTER": ADAPTER,
    "MGM": MGM,
    "OPEN_XRCD": OPEN_XRCD,
    "SQE": SQ_ENTRY,
    "SQE_ATOMIC": SQ_ENTRY_ATOMIC,
    "SQE_UD": SQ_ENTRY_UD,
    "SQE_XRC": SQ_ENTRY_XRC,
    "SQE_BIND": SQ_ENTRY_BIND,
    "SGE": SGE,
    "CQE": CQ_ENTRY,
    "CQE_STAMP": cqe.STAMP,
    "EQE": EQ_ENTRY,
    "HEADER": attach.HEADER,
    "REPLY_HEADER": attach.REPLY_HEADER,
    "HELLO": attach.HELLO,
    "HELLO_REPLY": attach.HELLO_REPLY,
    "LIST_RECORD": attach.LIST_RECORD,
    "OPEN": attach.OPEN,
    "OPEN_REPLY": attach.OPEN_REPLY,
    "OPEN_SLOT": attach.OPEN_SLOT,
    "PUNT": attach.PUNT,
    "PUNT_REPLY": attach.PUNT_REPLY,
    "SHM_RING": attach.SHM_RING,
    "SHM_RING_REPLY": attach.SHM_RING_REPLY,
    "COMMAND": attach.COMMAND,
    "COMMAND_REPLY": attach.COMMAND_REPLY,
    "SHARE": attach.SHARE,
    "UNSHARE": attach.UNSHARE,
    "WINDOW": attach.WINDOW,
    "COPY": attach.COPY,
    "COPY_REPLY": attach.COPY_REPLY,
    "INFO_REPLY": attach.INFO_REPLY,
    "VERBS_RULE": verbs_faults.VERBS_RULE,
    "CM_REQUEST": attach_cm.CM_REQUEST,
    "CM_RECORD": attach_cm.CM_RECORD,
}
"""Layouts by their names in the header."""

NUMBERS: tuple[tuple[str, ModuleType, tuple[str, ...]], ...] = (
    # prefix, module, prefixes of the names to include; () includes all
    ("", attach, ("MSG_", "DMA_", "COPY_", "MAX_COPY", "PUNT_", "UMAD_")),
    ("", attach_cm, ("MSG_CM", "CM_")),
    ("", shm_loopback, ("COOKIE_",)),
    ("", verbs_faults, ("VERB_POST", "VERB_POLL", "FAULT_", "RECEIVED")),
    ("CM_", cm, ("PACKET_LIFETIME",)),
    ("ATTACH_", attach, ("MAGIC", "VERSION")),
    ("CMD_", commands, ()),
    ("EVENT_", events, ()),
    ("SYN_", status, ()),
    ("QP_", states, ()),
    ("", opcodes, ("WR_", "LEVEL_")),
    ("", ports, ("PORT_",)),
    ("", limits, ("MAX_SGE", "MAX_INLINE", "MAX_QP_WR", "MAX_CQE", "GRH_BYTES")),
    ("", sqe, ("FLAG_", "SGE_BYTES")),
    ("", rqe, ("SRQ_ORDER_",)),
    ("BIT_", cqe, ("CQE_",)),
    ("CQE_", cqe, ("STAMP_BITS",)),
    ("REG_", queue_block, ("SQ_", "CQ_", "RQ_", "SRQ_", "QUEUE_", "ARM_", "BLOCK_")),
)


def _constants() -> list[str]:
    lines = [
        f'#define RNIC_SOCKET_NAME "{attach.SOCKET_NAME}"',
        f"#define RNIC_OPEN_NAME_BYTES {attach.NAME_BYTES}",
        f"#define RNIC_SRQ_VALID {SRQ_VALID:#x}u",
        f"#define RNIC_CQ_STAMPED {CQ_STAMPED:#x}u",
        f"#define RNIC_OPT_SQ_SIG_ALL {OPT_SQ_SIG_ALL:#x}u",
    ]
    for prefix, module, beginnings in NUMBERS:
        for name, value in vars(module).items():
            wanted = not beginnings or name.startswith(beginnings)
            if name.isupper() and type(value) is int and wanted and not name.endswith("_MASK"):
                lines.append(f"#define RNIC_{prefix}{name} {value:#x}u")
    return lines


def _fields() -> list[str]:
    lines = []
    for name, layout in LAYOUTS.items():
        lines.append(f"#define RNIC_{name}_SIZE {layout.size}u")
        for field in layout.fields:
            place = f"{field.byte}u, {field.unit}u, {field.lsb}u, {field.width}u"
            lines.append(f"#define RNIC_{name}_{field.name.upper()} {place}")
            lines.append(f"#define RNIC_{name}_{field.name.upper()}_AT {field.byte}u")
    return lines


def _transitions() -> list[str]:
    """Return the command that leads from one QP state to another, 0 if none does, as a C table."""
    count = max(states.STATE_NAMES) + 1
    rows = [
        "\t{ " + ", ".join(f"{COMMAND_FOR.get((source, target), 0):#05x}" for target in range(count)) + " },"
        for source in range(count)
    ]
    return [f"static const unsigned short rnic_qp_command[{count}][{count}] = {{", *rows, "};"]


def _rows() -> list[str]:
    keyed = opcodes.work_requests("key")
    requests = [
        f"X({row.ibv_wr}, {row.name}, {row.ibv_wc}, {int(row.opcode in keyed)})"
        for row in opcodes.WORK_REQUESTS
        if row.ibv_wr
    ]
    attributes = [f"X({row.verbs}, {row.field.upper()})" for row in ATTRIBUTES]
    return [
        f"#define RNIC_WORK_REQUESTS(X) {' '.join(requests)}",
        f"#define RNIC_QP_ATTRIBUTES(X) {' '.join(attributes)}",
    ]


def c_header() -> str:
    """Return the text of ``rnic_hw.h``."""
    lines = ["/* Made by rnic.abi.header from the layout tables. */", "#ifndef RNIC_HW_H", "#define RNIC_HW_H", ""]
    lines += [*_constants(), "", *_fields(), "", *_transitions(), "", *_rows(), "", "#endif", ""]
    return "\n".join(lines)


def write_headers(folder: Path) -> None:
    """Write the headers that the C files include and that each build generates."""
    (folder / "rnic_hw.h").write_text(c_header(), encoding="utf-8")
    (folder / "rnic_reasons.h").write_text(reasons_header(), encoding="utf-8")


def reasons_header() -> str:
    """Return the text of ``rnic_reasons.h``: a function for each reason, which returns its first argument."""
    lines = [
        "/* Made by rnic.spec.reasons. */",
        "#ifndef RNIC_REASONS_H",
        "#define RNIC_REASONS_H",
        "",
        '#include "explain.h"',
        "",
        f"#define WHY_LINES {reasons.MOST_LINES}u",
        f"#define WHY_KINDS {len(reasons.REASONS) + 1}u",
        f"#define WHY_NAMES {{ {', '.join(['NULL', *(_quoted(name) for name in reasons.REASONS)])} }}",
    ]
    for reason in reasons.REASONS.values():
        values = reason.values
        types = [("const char *" if not form else "long long ") + name for name, form in values]
        text = reasons.VALUE.sub(lambda found: {None: "%s", "d": "%lld", "#x": "%#llx"}[found[2]], reason.text)
        order = [found[1] for found in reasons.VALUE.finditer(reason.text)]
        hexes = {name for name, form in values if form == "#x"}
        passed = [f"(unsigned long long){name}" if name in hexes else name for name in order]
        lines += [
            "",
            f"static inline int why_{reason.name.lower()}({', '.join(['int error', 'const char *verb', *types])})",
            "{",
            "\tif (__builtin_expect(explaining, 0))",
            f"\t\texplain({', '.join([f'{reason.number}', 'verb', _quoted(text), *passed])});",
            "\treturn error;",
            "}",
        ]
    return "\n".join([*lines, "", "#endif", ""])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
