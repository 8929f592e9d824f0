"""Format headers as text, driven by their layout tables."""

from __future__ import annotations

from rnic.spec.addresses import address_text
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, MTU_BYTES
from rnic.spec.opcodes import CNP, LEVEL_MR, LEVEL_RANGE, LEVEL_SHIFT, PLACEMENT_GLOBAL, PLACEMENT_PERSISTENT
from rnic.spec.syndromes import (
    AETH_ACK,
    AETH_NAK,
    AETH_RNR_NAK,
    AETH_TYPE_MASK,
    AETH_VALUE_MASK,
    CREDITS_INVALID,
    NAK_NAMES,
    RNR_TIMER_US,
)
from rnic.wire.bth import Bth
from rnic.wire.cm_message import CM_MESSAGES, REJECT_REASONS, CmMessage
from rnic.wire.cnp import Cnp
from rnic.wire.ethernet import ETHERTYPE_NAMES
from rnic.wire.header import Header
from rnic.wire.mad import CLASS_CM, CM_NAMES, GSI_QPN, Mad
from rnic.wire.opcode import NOT_DECODED, OPCODES
from rnic.wire.packet import Packet

Fields = list[tuple[str, int]]

_DECIMAL = frozenset((
    "psn", "msn", "pad", "tver", "fecn", "becn", "ackreq", "solicited", "migreq", "dma_length", "length", "version",
    "payload_length", "total_length", "sport", "dport", "ihl", "ttl", "hop_limit", "identification", "protocol",
    "next_header", "level", "pcp", "dei", "vid", "base_version", "class_version", "responder_resources",
    "initiator_depth", "retry_count", "rnr_retry_count", "reason", "path_mtu", "srq", "flow_control",
))  # fmt: skip
"""Fields shown in decimal; all others are shown in hexadecimal."""


def headers(buf: memoryview) -> list[Header]:
    """Return records of the complete headers at the start of a UDP payload.

    These are the BTH, the extended headers of its opcode, the reserved bytes of a CNP, and the MAD header and CM
    message of a datagram to QP1. Never raises.
    """
    out: list[Header] = []
    if len(buf) < BTH_BYTES:
        return out
    bth = Bth.parse(buf)
    out.append(bth)
    row = OPCODES[bth.opcode]
    if row is None or bth.tver:
        return out
    kinds = list(row.extended)
    if row.opcode == CNP:
        kinds.append(Cnp)
    elif row.deth and bth.dqpn == GSI_QPN:
        kinds.append(Mad)
    at = BTH_BYTES
    for kind in kinds:
        if len(buf) < at + kind.layout.size:
            break
        header = kind.parse(buf, at)
        out.append(header)
        at += kind.layout.size
        if isinstance(header, Mad) and header.mgmt_class == CLASS_CM and header.attr_id in CM_MESSAGES:
            kinds.append(CM_MESSAGES[header.attr_id])
    return out


def fields(buf: memoryview) -> list[tuple[str, Fields]]:
    """Return name and fields of each header at the start of a UDP payload (BTH to ICRC); see :func:`headers`."""
    return [(header.layout.name, list(header.values().items())) for header in headers(buf)]


def payload_bytes(buf: memoryview) -> int:
    """Return the number of bytes between the headers that :func:`headers` finds in a whole UDP payload and the pad."""
    found = headers(buf)
    used = sum(header.layout.size for header in found)
    pad = found[0].pad if found and isinstance(found[0], Bth) else 0
    return max(0, len(buf) - used - pad - ICRC_BYTES)


def opcode_name(opcode: int) -> str:
    """Return ``"RC_SEND_ONLY"``, or ``"opcode 0x5f"`` if the standard does not name it."""
    row = OPCODES[opcode]
    return NOT_DECODED.get(opcode, f"opcode {opcode:#04x}") if row is None else row.name


def syndrome_text(syndrome: int) -> str:
    """Return the text of an AETH syndrome: ``"ACK"``, ``"RNR NAK 40 us"``, ``"NAK remote access error"``."""
    kind = syndrome & AETH_TYPE_MASK
    value = syndrome & AETH_VALUE_MASK
    if syndrome & 0x80:
        return "reserved"
    if kind == AETH_ACK:
        return "ACK" if value == CREDITS_INVALID else f"ACK credits={value}"
    if kind == AETH_RNR_NAK:
        return f"RNR NAK {RNR_TIMER_US[value]} us"
    if kind == AETH_NAK:
        return f"NAK {NAK_NAMES.get(syndrome, f'code {value}')}"
    return "reserved"


def flush_text(feth: int) -> str:
    """Return the placement type and selectivity level in a FETH word as text: ``"GLOBAL range"``."""
    names = [name for bit, name in ((PLACEMENT_GLOBAL, "GLOBAL"), (PLACEMENT_PERSISTENT, "PERSISTENT")) if feth & bit]
    level = feth >> LEVEL_SHIFT & 3
    where = {LEVEL_RANGE: "range", LEVEL_MR: "region"}.get(level, f"level {level}")
    return f"{'+'.join(names) or 'nothing'} {where}"


def text(header: Header, name: str) -> str:
    """Return a field's value as text: addresses and codes by name, counts in decimal, others in hex."""
    value: int = getattr(header, name)
    width = header.layout[name].width
    if name in ("src", "dst") or name.endswith("_gid"):
        return address_text(value.to_bytes(width // 8, "big"))
    if name in ("src_mac", "dst_mac"):
        return value.to_bytes(6, "big").hex(":")
    plain = str(int(value)) if name in _DECIMAL else f"0x{value:0{-(-width // 4)}x}"
    meaning = _meaning(header, name, value)
    return f"{plain} ({meaning})" if meaning else plain


def _meaning(header: Header, name: str, value: int) -> str:
    if name == "opcode":
        return opcode_name(value)
    if name == "syndrome":
        return syndrome_text(value)
    if name in ("ethertype", "inner_type"):
        return ETHERTYPE_NAMES.get(value, "")
    if name == "attr_id" and isinstance(header, Mad) and header.mgmt_class == CLASS_CM:
        return CM_NAMES.get(value, "")
    if name == "reason":
        return REJECT_REASONS.get(value, "")
    if name == "path_mtu":
        return f"{MTU_BYTES[value]} bytes" if value in MTU_BYTES else ""
    return ""


_CM_SHOWN = (
    "local_comm_id", "remote_comm_id", "request_id", "service_id", "qpn", "psn", "path_mtu", "reason", "status",
)  # fmt: skip
"""Fields of a CM message shown in a one-line summary."""


def describe_cm(message: CmMessage) -> str:
    """Return a CM message as a short text: its name, and the fields that identify and set up the connection."""
    words = [type(message).__name__]
    words += [f"{name}={text(message, name)}" for name in _CM_SHOWN if name in message.layout]
    return " ".join(words)


def describe(packet: Packet) -> str:
    """Return a packet as one line: ``"RC_WRITE_ONLY qp=0x000011 psn=7 ackreq va=0x1000 rkey=0x00000102 len=64
    [64]"``."""
    row = packet.row
    words = [row.name, f"qp=0x{packet.dqpn:06x}", f"psn={packet.psn}"]
    words += [word for word in ("ackreq", "solicited", "fecn", "becn") if getattr(packet, word)]
    if row.deth:
        words += [f"sqp=0x{packet.sqpn:06x}", f"qkey=0x{packet.qkey:08x}"]
    if row.xrceth:
        words.append(f"srq=0x{packet.srqn:06x}")
    if row.feth:
        words.append(flush_text(packet.feth))
    if row.reth or row.atomiceth:
        words += [f"va={packet.va:#x}", f"rkey=0x{packet.rkey:08x}"]
    if row.reth:
        words.append(f"len={packet.dma_length}")
    if row.atomiceth:
        words += [f"swap_add={packet.swap_add:#x}", f"compare={packet.compare:#x}"]
    if row.aeth:
        words += [syndrome_text(packet.syndrome), f"msn={packet.msn}"]
    if row.atomicacketh:
        words.append(f"orig={packet.orig:#x}")
    if row.immdt:
        words.append(f"imm=0x{packet.imm:08x}")
    if row.ieth:
        words.append(f"inv_rkey=0x{packet.inv_rkey:08x}")
    if row.payload:
        words.append(f"[{len(packet.payload)}]")
    return " ".join(words)
