"""Packet flaws of :class:`rnic.testing.live.LivePeer`, and the allowed effect of each."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from rnic.spec.limits import DEFAULT_PKEY
from rnic.spec.opcodes import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    FETCH_ADD,
    OPERATION_MASK,
    RC,
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    SEND_LAST,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_INV,
    SERVICE_MASK,
    UD,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_MIDDLE,
    WRITE_ONLY,
)
from rnic.spec.psn import PSN_MASK
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES, OpcodeRow
from rnic.wire.packet import seal

if TYPE_CHECKING:
    from rnic.testing.live import LivePeer
    from rnic.testing.live_model import Right

Fields = dict[str, Any]


def frame(
    opcode: int,
    *,
    dqpn: int,
    psn: int,
    ackreq: bool,
    solicited: bool,
    pkey: int = DEFAULT_PKEY,
    migreq: bool = True,
    payload: bytes = b"",
    va: int = 0,
    rkey: int = 0,
    dma_length: int = 0,
    swap_add: int = 0,
    compare: int = 0,
    syndrome: int = 0,
    msn: int = 0,
    orig: int = 0,
    imm: int = 0,
    inv_rkey: int = 0,
    qkey: int = 0,
    sqpn: int = 0,
) -> bytearray:
    """Build a packet as :func:`rnic.wire.packet.build` does, but without checks, for speed: tests build ten million."""
    row = OPCODES[opcode]
    assert row is not None
    headers = [opcode, solicited << 7 | migreq << 6 | (-len(payload) & 3) << 4, pkey, dqpn, ackreq << 31 | psn]
    if row.deth:
        headers += (qkey, sqpn)
    if row.reth:
        headers += (va, rkey, dma_length)
    if row.atomiceth:
        headers += (va, rkey, swap_add, compare)
    if row.aeth:
        headers.append(syndrome << 24 | msn)
    if row.atomicacketh:
        headers.append(orig)
    if row.immdt:
        headers.append(imm)
    if row.ieth:
        headers.append(inv_rkey)
    return bytearray(row.unpack.pack(*headers) + payload + bytes(-len(payload) & 3))


class Verdict(Enum):
    """Allowed effect of a packet."""

    RIGHT = "what it says"
    DROPPED = "one drop counter, nothing else"
    REFUSED = "a NAK or an error of its queue pair; no byte of memory, no PSN"
    LOOSE = "whatever its keys allow"


class Flaw:
    """One kind of flaw. The hooks change the fields, the frame before its ICRC, or the whole packet."""

    __slots__ = (
        "damage",
        "fields",
        "fits",
        "flow",
        "frame",
        "keeps_size",
        "name",
        "replace",
        "sealed",
        "verdict",
        "weight",
    )

    def __init__(
        self,
        name: str,
        verdict: Verdict,
        fits: Callable[[LivePeer, Right], bool] = lambda peer, made: True,
        *,
        fields: Callable[[LivePeer, Right, Fields], None] | None = None,
        frame: Callable[[LivePeer, bytearray], None] | None = None,
        sealed: Callable[[LivePeer, bytearray, Flow, int], None] | None = None,
        replace: Callable[[LivePeer, Fields], int] | None = None,
        flow: Callable[[LivePeer], Flow] | None = None,
        keeps_size: bool = False,
        damage: bool = False,
        weight: float = 1.0,
    ) -> None:
        self.name = name
        self.verdict = verdict
        self.fits = fits
        self.fields = fields
        self.frame = frame
        self.sealed = sealed
        self.replace = replace
        """Function that replaces the packet by another: sets the fields and returns the opcode."""
        self.flow = flow
        self.keeps_size = keeps_size
        self.damage = damage
        """True if the ICRC is wrong."""
        self.weight = weight

    def make(self, peer: LivePeer, made: Right, opcode: int, fields: Fields, flow: Flow, place: int) -> bytes:
        """Return the packet with this flaw, segment ``place`` of its burst."""
        if self.replace is not None:
            for name in made.fields:
                if name != "psn":
                    del fields[name]
            opcode = self.replace(peer, fields)
        if self.fields is not None:
            self.fields(peer, made, fields)
        data = frame(opcode, **fields)
        if self.frame is not None:
            self.frame(peer, data)
        packet = bytearray(seal(data, flow, place))
        if self.sealed is not None:
            self.sealed(peer, packet, flow, place)
        return bytes(packet)


# ------------------------------------------------------------------------------ conditions of flaws


def _row(made: Right) -> OpcodeRow:
    row = OPCODES[made.opcode]
    assert row is not None
    return row


def _connected(peer: LivePeer, made: Right) -> bool:
    return made.opcode & SERVICE_MASK != UD


def _datagram(peer: LivePeer, made: Right) -> bool:
    return not _connected(peer, made)


def _unreliable(peer: LivePeer, made: Right) -> bool:
    return made.opcode & SERVICE_MASK not in (RC, UD)


def _has_ident(peer: LivePeer, made: Right) -> bool:
    return not peer.ipv6


def _plain_ack(peer: LivePeer, made: Right) -> bool:
    return made.opcode == ACKNOWLEDGE


def _whole_write(peer: LivePeer, made: Right) -> bool:
    return made.opcode & OPERATION_MASK == WRITE_ONLY


def _atomic(peer: LivePeer, made: Right) -> bool:
    return _row(made).atomic


def _between_messages(peer: LivePeer, made: Right) -> bool:
    return _reliable_request(peer, made) and not peer.open[0]


def _reliable_request(peer: LivePeer, made: Right) -> bool:
    return made.opcode & SERVICE_MASK == RC and not made.response


def _response(peer: LivePeer, made: Right) -> bool:
    return made.response


def _sure_data_response(peer: LivePeer, made: Right) -> bool:
    return made.response and made.opcode != ACKNOWLEDGE and not peer.unsure


def _keyed(peer: LivePeer, made: Right) -> bool:
    return "rkey" in made.fields and made.fields.get("dma_length", 8) > 0


def _sized(peer: LivePeer, made: Right) -> bool:
    return _keyed(peer, made) and "dma_length" in made.fields


def _stores(peer: LivePeer, made: Right) -> bool:
    return _keyed(peer, made) and made.opcode & OPERATION_MASK != READ_REQUEST


def _headers_only(peer: LivePeer, made: Right) -> bool:
    return not _row(made).payload


def _with_payload(peer: LivePeer, made: Right) -> bool:
    return _row(made).payload


def _whole_size(peer: LivePeer, made: Right) -> bool:
    """Return whether any other payload size is invalid."""
    row = _row(made)
    if row.read_response:
        return not peer.unsure
    return row.write or (row.send and not row.end)


def _shrinkable(peer: LivePeer, made: Right) -> bool:
    return _whole_size(peer, made) and len(made.fields["payload"]) > 0


# --------------------------------------------------------------------------------------- the flaws


def _flip(packet: bytearray, bit: int) -> None:
    packet[bit >> 3] ^= 1 << (bit & 7)


def _icrc_bit(peer: LivePeer, packet: bytearray, flow: Flow, place: int) -> None:
    _flip(packet, 8 * (len(packet) - 4) + peer.rng.randrange(32))


def _body_bit(peer: LivePeer, packet: bytearray, flow: Flow, place: int) -> None:
    bit = peer.rng.randrange(8 * (len(packet) - 5))
    _flip(packet, bit if bit < 32 else bit + 8)  # the fifth byte is not covered


def _other_ident(peer: LivePeer, packet: bytearray, flow: Flow, place: int) -> None:
    packet[-4:] = seal(packet[:-4], flow, place + 1 + peer.rng.randrange(50))[-4:]


def _other_port(peer: LivePeer, packet: bytearray, flow: Flow, place: int) -> None:
    packet[-4:] = seal(packet[:-4], Flow(flow.src, flow.dst, flow.sport ^ 1 << peer.rng.randrange(16)), place)[-4:]


def _uncovered(peer: LivePeer, packet: bytearray, flow: Flow, place: int) -> None:
    packet[4] = peer.rng.randrange(256)


def _tver(peer: LivePeer, frame: bytearray) -> None:
    frame[1] |= peer.rng.randrange(1, 16)


def _pad(peer: LivePeer, frame: bytearray) -> None:
    frame[1] ^= peer.rng.randrange(1, 4) << 4


def _reserved(peer: LivePeer, frame: bytearray) -> None:
    frame[8] |= peer.rng.randrange(1, 128)


def _cut_odd(peer: LivePeer, frame: bytearray) -> None:
    del frame[-peer.rng.randrange(1, 4) :]


def _cut_words(peer: LivePeer, frame: bytearray) -> None:
    del frame[-4 * peer.rng.randrange(1, min(4, len(frame) // 4 - 1)) :]


def _grow_odd(peer: LivePeer, frame: bytearray) -> None:
    frame += bytes(peer.rng.randrange(1, 4))


def _grow_words(peer: LivePeer, frame: bytearray) -> None:
    frame += bytes(4 * peer.rng.randrange(1, 9))


def _other_service(peer: LivePeer, frame: bytearray) -> None:
    own = frame[0] & SERVICE_MASK
    frame[0] = frame[0] & OPERATION_MASK | peer.rng.choice(
        [bits for bits in (0, 0x20, 0x40, 0x60, 0xA0) if bits != own]
    )


def _other_operation(peer: LivePeer, frame: bytearray) -> None:
    frame[0] ^= peer.rng.randrange(1, 32)


def _dqpn(peer: LivePeer, made: Right, fields: Fields) -> None:
    bit = 1 << peer.rng.randrange(24)
    fields["dqpn"] = peer.rng.choice((peer.idle.qp_num, fields["dqpn"] ^ bit, 0, 1, 0xFFFFFF))


def _pkey(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["pkey"] = DEFAULT_PKEY ^ 1 << peer.rng.randrange(15)


def _limited(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["pkey"] = DEFAULT_PKEY & 0x7FFF


def _unmigrated(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["migreq"] = False


def _psn(peer: LivePeer, made: Right, fields: Fields) -> None:
    rng = peer.rng
    step = rng.choice((1, -1, 2, -2, rng.randrange(1, 300), -rng.randrange(1, 300), 1 << 23, rng.randrange(1, 1 << 24)))
    fields["psn"] = fields["psn"] + step & PSN_MASK


def _ghost(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["psn"] = peer.sent_psn + peer.rng.choice((0, 1, 100, (1 << 23) - 500)) & PSN_MASK


def _stale(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["psn"] = peer.device_qp.ctx.last_acked_psn - peer.rng.choice((1, 2, 100, 1 << 22)) & PSN_MASK


def _key_tag(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["rkey"] ^= peer.rng.randrange(1, 256)


def _key_index(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["rkey"] ^= 1 << peer.rng.randrange(8, 32)


def _foreign_key(peer: LivePeer, made: Right, fields: Fields) -> None:
    region = peer.rng.choice(peer.locked)
    fields["rkey"], fields["va"] = region.rkey, region.buf


def _read_only(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["rkey"], fields["va"] = peer.readable.rkey, peer.readable.buf


def _outside(peer: LivePeer, made: Right, fields: Fields) -> None:
    rng = peer.rng
    region = peer.readable if fields["rkey"] == peer.readable.rkey else peer.written
    length = fields.get("dma_length", 8)
    aligned = 8 if "dma_length" not in fields else 1
    below = region.buf - aligned * rng.choice((1, 2, 100))
    above = region.buf + region.length - length + aligned * rng.choice((1, 2, 100))
    fields["va"] = rng.choice((below, above, 0, (1 << 64) - 8, rng.getrandbits(61) << 3))


def _too_long(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["dma_length"] = peer.rng.choice((peer.written.length + 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1))


def _other_length(peer: LivePeer, made: Right, fields: Fields) -> None:
    length = fields["dma_length"]
    fields["dma_length"] = peer.rng.choice(
        [other for other in (length - 1, length + 1, 0) if other not in (-1, length)]
    )


def _unaligned(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["va"] += peer.rng.randrange(1, 8)


def _shorter(peer: LivePeer, made: Right, fields: Fields) -> None:
    size = len(fields["payload"])
    fields["payload"] = fields["payload"][: size - peer.rng.randrange(1, min(size, 8) + 1)]


def _longer(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["payload"] += bytes(peer.rng.randrange(1, 9))


def _syndrome(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["syndrome"] = peer.rng.randrange(256)


def _qkey(peer: LivePeer, made: Right, fields: Fields) -> None:
    fields["qkey"] ^= 1 << peer.rng.randrange(32)


def _out_of_turn(peer: LivePeer, fields: Fields) -> int:
    """Begin a message while one is open, or continue one if none is open."""
    rng = peer.rng
    kind = peer.open[0]
    if not kind:
        fields["payload"] = bytes(peer.mtu)
        return rng.choice((SEND_MIDDLE, SEND_LAST, WRITE_MIDDLE, WRITE_LAST))
    opcode = rng.choice((SEND_ONLY, WRITE_ONLY, WRITE_FIRST, READ_REQUEST, FETCH_ADD, SEND_MIDDLE))
    if opcode == SEND_MIDDLE:
        opcode = WRITE_MIDDLE if kind == "SEND" else SEND_MIDDLE
    row = OPCODES[opcode]
    assert row is not None
    if row.payload:
        fields["payload"] = bytes(peer.mtu)
    if row.reth or row.atomiceth:
        fields |= {"va": peer.written.buf, "rkey": peer.written.rkey, "dma_length": peer.mtu}
    return opcode


def _invalidate(peer: LivePeer, fields: Fields) -> int:
    fields["payload"] = bytes(8)
    fields["inv_rkey"] = peer.rng.choice(
        (*(region.rkey for region in peer.locked), peer.written.rkey ^ 1, peer.rng.getrandbits(32))
    )
    return SEND_ONLY_INV


def _other_response(peer: LivePeer, fields: Fields) -> int:
    """Set a response of another kind than the request's."""
    request = next(request for request in peer.requests if request.kind != "DATA")
    fields["syndrome"] = 0x1F
    if request.kind == "ATOMIC":
        fields["payload"] = bytes(8)
        return READ_RESPONSE_ONLY
    last = request.got + 1 == request.packets
    right = (
        (READ_RESPONSE_LAST if last else READ_RESPONSE_MIDDLE)
        if request.got
        else (READ_RESPONSE_ONLY if last else READ_RESPONSE_FIRST)
    )
    kinds = (READ_RESPONSE_FIRST, READ_RESPONSE_MIDDLE, READ_RESPONSE_LAST, READ_RESPONSE_ONLY, ATOMIC_ACKNOWLEDGE)
    opcode = peer.rng.choice([kind for kind in kinds if kind != right])
    if opcode != ATOMIC_ACKNOWLEDGE:
        fields["payload"] = bytes(min(peer.mtu, request.length - request.got * peer.mtu))
    return opcode


_R, _D, _N, _L = Verdict.RIGHT, Verdict.DROPPED, Verdict.REFUSED, Verdict.LOOSE

# fmt: off
FLAWS: tuple[Flaw, ...] = (
    Flaw("a bit of the ICRC", _D, sealed=_icrc_bit, keeps_size=True, damage=True, weight=3),
    Flaw("a bit of the rest", _D, sealed=_body_bit, keeps_size=True, damage=True, weight=3),
    Flaw("ICRC of another ident", _D, _has_ident, sealed=_other_ident, keeps_size=True, damage=True),
    Flaw("ICRC of another port", _D, sealed=_other_port, keeps_size=True, damage=True),
    Flaw("bits that no ICRC covers", _R, sealed=_uncovered),
    Flaw("TVer", _D, frame=_tver, keeps_size=True),
    Flaw("reserved bits", _R, frame=_reserved),
    Flaw("MigReq", _R, fields=_unmigrated),
    Flaw("queue pair", _D, fields=_dqpn, keeps_size=True),
    Flaw("P_Key", _D, fields=_pkey, keeps_size=True),
    Flaw("P_Key of a limited member", _R, fields=_limited),
    Flaw("source address", _D, _connected, flow=lambda peer: peer.stranger),
    Flaw("service", _D, frame=_other_service, keeps_size=True),
    Flaw("operation", _L, frame=_other_operation, weight=0.2),
    Flaw("cut within a word", _D, frame=_cut_odd),
    Flaw("grown within a word", _D, frame=_grow_odd),
    Flaw("header cut", _D, _headers_only, frame=_cut_words),
    Flaw("payload cut", _L, _with_payload, frame=_cut_words, weight=0.12),
    Flaw("bytes behind the header", _D, _headers_only, frame=_grow_words),
    Flaw("pad of what has no payload", _D, _headers_only, frame=_pad),
    Flaw("pad", _L, _with_payload, frame=_pad, weight=0.12),
    Flaw("payload too short", _N, _shrinkable, fields=_shorter, weight=0.24),
    Flaw("payload too long", _N, _whole_size, fields=_longer, weight=0.24),
    Flaw("PSN", _N, _reliable_request, fields=_psn, weight=3),
    Flaw("PSN of a response", _N, _sure_data_response, fields=_psn),
    Flaw("PSN of an ACK", _L, _plain_ack, fields=_psn, weight=0.2),
    Flaw("PSN not sent yet", _D, _response, fields=_ghost, weight=2),
    Flaw("PSN of long ago", _D, _response, fields=_stale, weight=2),
    Flaw("PSN of an unreliable message", _L, _unreliable, fields=_psn, weight=0.12),
    Flaw("PSN of a datagram", _R, _datagram, fields=_psn),
    Flaw("key's tag", _N, _keyed, fields=_key_tag, weight=0.4),
    Flaw("key's index", _N, _keyed, fields=_key_index, weight=0.4),
    Flaw("key of what is not given", _N, _keyed, fields=_foreign_key, weight=0.4),
    Flaw("key that only reads", _N, _stores, fields=_read_only, weight=0.4),
    Flaw("address", _N, _keyed, fields=_outside, weight=0.4),
    Flaw("length beyond the region", _N, _sized, fields=_too_long, weight=0.4),
    Flaw("length", _N, _whole_write, fields=_other_length, weight=0.4),
    Flaw("alignment", _N, _atomic, fields=_unaligned, weight=0.4),
    Flaw("turn", _N, _reliable_request, replace=_out_of_turn, weight=0.28),
    Flaw("key to invalidate", _L, _between_messages, replace=_invalidate, weight=0.08),
    Flaw("syndrome", _L, _response, fields=_syndrome, weight=0.24),
    Flaw("kind of response", _N, _sure_data_response, replace=_other_response, weight=0.28),
    Flaw("Q_Key", _D, _datagram, fields=_qkey, weight=3),
)
# fmt: on
"""All flaws; each has a condition under which it fits."""

__all__ = ["FLAWS", "Flaw", "Verdict"]
