"""Explain why a request failed: repeat the checks of responder or requester after one of them has failed.

This code is not on the fast path. The engine punts failing requests to the reference, so only this module explains
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rnic.spec import reasons
from rnic.spec.access import LOCAL_WRITE, RIGHT_NAMES
from rnic.spec.opcodes import ATOMIC_WRITE, READ_REQUEST, WR_BIND_MW, WR_LOCAL_INV, WR_NAMES, allowed
from rnic.spec.psn import PSN_WINDOW
from rnic.spec.reasons import Reason
from rnic.spec.states import SERVICE_NAMES, ST_UD
from rnic.spec.status import (
    BAD_RESP_ERR,
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    LOC_QP_OP_ERR,
    RETRY_EXC_ERR,
    RNR_RETRY_EXC_ERR,
    SYNDROME_NAMES,
)
from rnic.transport.message import ATOMICS, OPERANDS, READS
from rnic.transport.rights import misaligned, needed_rights

if TYPE_CHECKING:
    from rnic.mem.table import MemoryTable
    from rnic.transport.message import Message
    from rnic.transport.qp import QueuePair
    from rnic.transport.responder import Responder
    from rnic.wire.packet import Packet

Values = dict[str, object]


class Why(NamedTuple):
    """A reason with its values, and the request concerned, if any."""

    reason: Reason
    about: str
    values: Values

    @property
    def text(self) -> str:
        """The reason as one line."""
        text = self.reason(**self.values)
        return f"{self.about}: {text}" if self.about else text


def about_packet(packet: Packet, responder: Responder) -> str:
    """Return a description of the request that a packet belongs to."""
    row = packet.row
    if row.send:
        return "SEND"
    if row.write:
        length, va = responder.write_length, responder.write_va
        if row.start:
            length, va = packet.dma_length, packet.va
        return f"WRITE of {length} bytes to {va:#x}"
    if row.operation == READ_REQUEST:
        return f"READ of {packet.dma_length} bytes from {packet.va:#x}"
    if row.feth:
        return f"FLUSH of {packet.dma_length} bytes at {packet.va:#x}"
    if row.operation == ATOMIC_WRITE:
        return f"ATOMIC_WRITE at {packet.va:#x}"
    return f"atomic at {packet.va:#x}" if row.atomic else row.name


def about_message(message: Message) -> str:
    """Return a description of a send entry's request."""
    opcode = message.opcode
    name = WR_NAMES.get(opcode, f"request {opcode}")
    if opcode in (WR_BIND_MW, WR_LOCAL_INV):
        return name
    if opcode in ATOMICS or opcode in OPERANDS:
        return f"{name} at {message.remote_addr:#x}"
    where = f" from {message.remote_addr:#x}" if opcode in READS else ""
    if name.startswith("WRITE"):
        where = f" to {message.remote_addr:#x}"
    return f"{name} of {message.length} bytes{where}"


def why_lists(memory: MemoryTable, pd: int, sges: Sequence[tuple[int, int, int]], rights: int) -> tuple[Reason, Values]:
    """Return why a scatter list of L_Keys is refused: the reason of its first refused entry."""
    for va, length, key in sges:
        if length and memory.check(key, pd, va, length, rights, 0, True) is None:
            return memory.why_refused(key, pd, va, length, rights, 0, True)
    return reasons.MEMORY_GONE, {"va": sges[0][0] if sges else 0}


def why_rights(responder: Responder, packet: Packet) -> tuple[Reason, Values]:
    """Return why the queue pair does not allow a request."""
    row = packet.row
    rights = needed_rights(packet)
    if row.feth and not rights:
        return reasons.FLUSH_UNKNOWN, {"feth": packet.feth}
    if not rights:
        return reasons.NOT_OF_SERVICE, {
            "operation": row.name,
            "service": SERVICE_NAMES.get(responder.ctx.servtype, "?"),
        }
    lacks = rights & ~responder.ctx.access_flags
    if not lacks and misaligned(packet):
        return reasons.UNALIGNED, {"va": packet.va}
    return reasons.QP_RIGHTS, {"right": RIGHT_NAMES[lacks & -lacks]}


def why_length(responder: Responder, packet: Packet) -> tuple[Reason, Values]:
    """Return why the length of a packet or its message is wrong."""
    row, ctx = packet.row, responder.ctx
    size, mtu = len(packet.payload), ctx.mtu_bytes
    if row.payload and (size > mtu or (not row.end and size != mtu)):
        return reasons.MTU_MISMATCH, {"length": size, "mtu": mtu}
    if row.send:
        room = responder.receive_bytes
        return (reasons.SHORT_RECEIVE, {"room": room}) if size else (reasons.WRONG_LENGTH, {"length": 0, "left": room})
    length = responder.write_length if row.write and not row.start else packet.dma_length
    if row.operation == ATOMIC_WRITE:
        return reasons.WRONG_LENGTH, {"length": size, "left": 8}
    if length > ctx.max_msg_bytes or row.operation == READ_REQUEST:
        return reasons.MESSAGE_LENGTH, {"length": length, "most": min(ctx.max_msg_bytes, PSN_WINDOW * mtu)}
    return reasons.WRONG_LENGTH, {"length": size, "left": length - (0 if row.start else responder.offset)}


def why_send(qp: QueuePair, message: Message, status: int, vendor_err: int) -> tuple[Reason, Values]:
    """Return why a send work request completes with ``status``."""
    ctx, opcode = qp.ctx, message.opcode
    if status == RETRY_EXC_ERR:
        values: Values = {"qpn": ctx.remote_qpn, "peer": qp.peer_text, "tries": ctx.retry_cnt + 1}
        return reasons.NO_ANSWER, values | {"why": qp.ask_peer(True) or reasons.NOBODY}
    if status == RNR_RETRY_EXC_ERR:
        return reasons.RNR_EXHAUSTED, {"tries": ctx.rnr_retry + 1}
    if status == BAD_RESP_ERR:
        return reasons.BAD_RESPONSE, {"opcode": f"{vendor_err:#x}"}
    if status == LOC_QP_OP_ERR:
        if opcode not in allowed(ctx.servtype):
            name = WR_NAMES.get(opcode, f"opcode {opcode}")
            return reasons.NOT_OF_SERVICE, {"operation": name, "service": SERVICE_NAMES.get(ctx.servtype, "?")}
        return (reasons.BAD_ENTRY if ctx.max_rd_atomic or opcode not in READS else reasons.NO_READS), {}
    if status == LOC_LEN_ERR:
        most = qp.requester.mtu if ctx.servtype == ST_UD else min(ctx.max_msg_bytes, PSN_WINDOW * qp.requester.mtu)
        rule = "atomics have 8" if opcode in ATOMICS else f"this queue pair sends up to {most}"
        return reasons.LOCAL_LENGTH, {"length": message.length, "rule": rule}
    if opcode == WR_BIND_MW:
        return reasons.BIND_REFUSED, {"window": message.window}
    if opcode == WR_LOCAL_INV:
        return reasons.INVALIDATE_REFUSED, {"key": message.imm}
    if status == LOC_PROT_ERR:
        sges = qp.send_ring.sges(message)
        if sges is None:
            return reasons.BAD_ENTRY, {}
        return why_lists(qp.host.memory, ctx.pd, sges, LOCAL_WRITE if opcode in READS else 0)
    return reasons.REFUSED_THERE, {
        "status": SYNDROME_NAMES.get(status, hex(status)),
        "why": qp.ask_peer(False) or reasons.THERE,
    }
