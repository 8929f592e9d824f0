"""RoCEv2 packets, from BTH to ICRC: parser and builder."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.spec.drops import DropReason
from rnic.spec.ids import Psn, Qpn, Rkey, Va
from rnic.spec.limits import BTH_BYTES, DEFAULT_PKEY, ICRC_BYTES
from rnic.wire.aeth import Aeth
from rnic.wire.atomiceth import AtomicAckEth, AtomicEth
from rnic.wire.bth import ACKREQ, BECN, FECN, MIGREQ, SOLICITED, Bth
from rnic.wire.deth import Deth
from rnic.wire.feth import Feth
from rnic.wire.ieth import Ieth
from rnic.wire.immdt import ImmDt
from rnic.wire.opcode import OPCODES, UNSUPPORTED, OpcodeRow
from rnic.wire.reth import Reth
from rnic.wire.xrceth import XRCETH, Xrceth

if TYPE_CHECKING:
    from rnic.wire.bursts import RxBurst
    from rnic.wire.flow import Flow

_ICRC = struct.Struct("<I")


class Packet:
    """Header fields of a packet, named as in the standard. Fields of absent headers are unset.

    ``payload`` is a view without pad and ICRC. ``va`` and ``rkey`` come from RETH or AtomicETH. ``flow``, ``ecn``,
    ``tclass``, ``hop_limit`` and ``flow_label`` are those of the received ``burst``, which the link sets.
    """

    __slots__ = (
        "_flags",
        "_word",
        "ackreq",
        "burst",
        "compare",
        "dma_length",
        "feth",
        "imm",
        "inv_rkey",
        "msn",
        "opcode",
        "orig",
        "payload",
        "pkey",
        "psn",
        "qkey",
        "rkey",
        "row",
        "sqpn",
        "srqn",
        "swap_add",
        "syndrome",
        "va",
    )

    row: OpcodeRow
    burst: RxBurst
    opcode: int
    pkey: int
    ackreq: bool
    psn: Psn
    va: Va
    rkey: Rkey
    dma_length: int
    feth: int
    """Word of the FETH: placement type in bits 3:0, selectivity level in bits 5:4."""
    swap_add: int
    compare: int
    syndrome: int
    msn: int
    orig: int
    imm: int
    inv_rkey: Rkey
    qkey: int
    sqpn: Qpn
    srqn: int
    payload: memoryview
    _flags: int
    """Byte 1 of the BTH: SE, MigReq, pad count, TVer."""
    _word: int
    """The word at byte 4 of the BTH: FECN, BECN, destination QPN."""

    @property
    def solicited(self) -> bool:
        """Solicited event bit: wake a receiver that waits only for solicited events."""
        return self._flags & SOLICITED != 0

    @property
    def migreq(self) -> bool:
        """The migration request bit."""
        return self._flags & MIGREQ != 0

    @property
    def pad(self) -> int:
        """Pad bytes between payload and ICRC."""
        return self._flags >> 4 & 3

    @property
    def dqpn(self) -> Qpn:
        """Destination QP number."""
        return Qpn(self._word & 0xFFFFFF)

    @property
    def fecn(self) -> bool:
        """FECN: the packet experienced congestion."""
        return self._word & FECN != 0

    @property
    def becn(self) -> bool:
        """BECN: packets in the other direction experience congestion."""
        return self._word & BECN != 0

    @property
    def flow(self) -> Flow:
        """Path on which the packet arrived."""
        return self.burst.flow

    @property
    def ecn(self) -> int:
        """ECN bits of the IP header."""
        return self.burst.ecn

    @property
    def tclass(self) -> int:
        """Traffic class or type of service."""
        return self.burst.tclass

    @property
    def hop_limit(self) -> int:
        """Hop limit or time to live."""
        return self.burst.hop_limit

    @property
    def flow_label(self) -> int:
        """Flow label."""
        return self.burst.flow_label


def parse(buf: memoryview) -> Packet | DropReason:
    """Parse a UDP payload, BTH to ICRC; the ICRC itself is not checked here.

    Returns:
        The packet, or the reason to drop it. Never raises.
    """
    length = len(buf)
    if length < BTH_BYTES + ICRC_BYTES:
        return DropReason.TOO_SHORT
    flags = buf[1]
    if flags & 0x0F:
        return DropReason.BAD_TVER
    row = OPCODES[buf[0]] or UNSUPPORTED.get(buf[0])
    if row is None:
        return DropReason.BAD_OPCODE
    pad = flags >> 4 & 3
    end = length - ICRC_BYTES - pad
    header_bytes = row.header_bytes
    if end < header_bytes:
        return DropReason.TOO_SHORT
    if not row.payload and (end != header_bytes or pad):
        return DropReason.BAD_LENGTH
    packet = Packet()
    packet.row = row
    packet._flags = flags
    packet.payload = buf[header_bytes:end]
    packet.imm = 0
    if row.xrceth:
        packet.srqn = XRCETH.get(buf, "srqn", BTH_BYTES)
        buf = memoryview(bytes(buf[:BTH_BYTES]) + bytes(buf[BTH_BYTES + XRCETH.size : header_bytes]))
        header_bytes -= XRCETH.size
    if header_bytes == BTH_BYTES:
        packet.opcode, _, packet.pkey, packet._word, psn = row.unpack.unpack_from(buf)
    elif row.reth:
        if row.immdt:
            packet.opcode, _, packet.pkey, packet._word, psn, packet.va, packet.rkey, packet.dma_length, packet.imm = (
                row.unpack.unpack_from(buf)
            )
        elif row.feth:
            packet.opcode, _, packet.pkey, packet._word, psn, packet.feth, packet.va, packet.rkey, packet.dma_length = (
                row.unpack.unpack_from(buf)
            )
        else:
            packet.opcode, _, packet.pkey, packet._word, psn, packet.va, packet.rkey, packet.dma_length = (
                row.unpack.unpack_from(buf)
            )
    elif row.atomiceth:
        packet.opcode, _, packet.pkey, packet._word, psn, packet.va, packet.rkey, packet.swap_add, packet.compare = (
            row.unpack.unpack_from(buf)
        )
        packet.dma_length = 8
    elif row.deth:
        if row.immdt:
            packet.opcode, _, packet.pkey, packet._word, psn, packet.qkey, sqpn, packet.imm = row.unpack.unpack_from(
                buf
            )
        else:
            packet.opcode, _, packet.pkey, packet._word, psn, packet.qkey, sqpn = row.unpack.unpack_from(buf)
        packet.sqpn = sqpn & 0xFFFFFF
    elif row.aeth:
        if row.atomicacketh:
            packet.opcode, _, packet.pkey, packet._word, psn, aeth, packet.orig = row.unpack.unpack_from(buf)
        else:
            packet.opcode, _, packet.pkey, packet._word, psn, aeth = row.unpack.unpack_from(buf)
        packet.syndrome = aeth >> 24
        packet.msn = aeth & 0xFFFFFF
    else:
        packet.opcode, _, packet.pkey, packet._word, psn, last = row.unpack.unpack_from(buf)
        if row.ieth:
            packet.inv_rkey = last
        else:
            packet.imm = last
    packet.psn = psn & 0xFFFFFF
    packet.ackreq = psn & ACKREQ != 0
    return packet


def build(
    opcode: int | OpcodeRow,
    *,
    dqpn: int,
    psn: int,
    ackreq: bool = False,
    solicited: bool = False,
    migreq: bool = True,
    pkey: int = DEFAULT_PKEY,
    fecn: bool = False,
    becn: bool = False,
    va: int = 0,
    rkey: int = 0,
    dma_length: int = 0,
    feth: int = 0,
    swap_add: int = 0,
    compare: int = 0,
    syndrome: int = 0,
    msn: int = 0,
    orig: int = 0,
    imm: int = 0,
    inv_rkey: int = 0,
    qkey: int = 0,
    sqpn: int = 0,
    srqn: int = 0,
    payload: bytes | bytearray | memoryview = b"",
) -> bytearray:
    """Return headers, payload and pad of one packet, without its ICRC (:func:`seal` adds it).

    Raises:
        ValueError: the opcode has no row, or a value does not fit its field.
    """
    row = opcode if isinstance(opcode, OpcodeRow) else OPCODES[opcode]
    if row is None:
        raise ValueError(f"opcode={opcode:#04x} is not in the opcode table")
    pad = -len(payload) % 4
    bth = Bth(
        opcode=row.opcode,
        solicited=solicited,
        migreq=migreq,
        pad=pad,
        pkey=pkey,
        fecn=fecn,
        becn=becn,
        dqpn=dqpn,
        ackreq=ackreq,
        psn=psn,
    )
    frame = bytearray(bth.pack())
    if row.xrceth:
        frame += Xrceth(srqn=srqn).pack()
    if row.deth:
        frame += Deth(qkey=qkey, sqpn=sqpn).pack()
    if row.feth:
        frame += Feth(placement=feth & 0xF, level=feth >> 4).pack()
    if row.reth:
        frame += Reth(va=va, rkey=rkey, dma_length=dma_length).pack()
    if row.atomiceth:
        frame += AtomicEth(va=va, rkey=rkey, swap_add=swap_add, compare=compare).pack()
    if row.aeth:
        frame += Aeth(syndrome=syndrome, msn=msn).pack()
    if row.atomicacketh:
        frame += AtomicAckEth(orig=orig).pack()
    if row.immdt:
        frame += ImmDt(imm=imm).pack()
    if row.ieth:
        frame += Ieth(inv_rkey=inv_rkey).pack()
    return frame + payload + bytes(pad)


def seal(frame: bytes | bytearray, flow: Flow, ident: int = 0) -> bytes:
    """Return the frame with its ICRC for ``flow`` and IP ID ``ident``."""
    return bytes(frame) + _ICRC.pack(flow.icrc(frame, ident))
