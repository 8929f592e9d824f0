"""Recordings of Linux Soft-RoCE, and ways to break one rule in them."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from rnic.judge import Finding, Judge
from rnic.link.pcap import read_packets
from rnic.spec import opcodes as op
from rnic.wire.dissect import LINKTYPE_ETHERNET
from rnic.wire.flow import Flow
from rnic.wire.ip import checksum
from rnic.wire.opcode import OPCODES

RECORDINGS = Path(__file__).resolve().parents[2] / "vectors" / "rxe"


class Packet:
    """One captured packet that can be changed. ``body`` is the UDP payload without its ICRC."""

    def __init__(self, time_ns: int, frame: bytes) -> None:
        self.time_ns = time_ns
        self.v6 = frame[12:14] == b"\x86\xdd"
        self.at = 62 if self.v6 else 42
        self.head = bytearray(frame[: self.at])
        self.body = bytearray(frame[self.at : -4])
        self.icrc = frame[-4:]
        self.sealed = False
        """Its ICRC is to be made anew."""

    def copy(self) -> Packet:
        twin = Packet(self.time_ns, bytes(self.head + self.body + self.icrc))
        twin.sealed = self.sealed
        return twin

    @property
    def row(self):  # type: ignore[no-untyped-def]
        return OPCODES[self.body[0]]

    @property
    def psn(self) -> int:
        return int.from_bytes(self.body[9:12], "big")

    @psn.setter
    def psn(self, value: int) -> None:
        self.body[9:12] = (value & 0xFFFFFF).to_bytes(3, "big")

    @property
    def ident(self) -> int:
        return 0 if self.v6 else int.from_bytes(self.head[18:20], "big")

    @ident.setter
    def ident(self, value: int) -> None:
        if not self.v6:
            self.head[18:20] = (value & 0xFFFF).to_bytes(2, "big")

    @property
    def aeth(self) -> int:
        return int.from_bytes(self.body[12:16], "big")

    @aeth.setter
    def aeth(self, value: int) -> None:
        self.body[12:16] = value.to_bytes(4, "big")

    def way(self) -> bytes:
        """Addresses and destination queue pair."""
        return bytes(self.head[22:54] if self.v6 else self.head[26:34]) + bytes(self.body[5:8])

    def frame(self) -> bytes:
        """The packet as a frame, with lengths and ICRC made right where it was changed."""
        if not self.sealed:
            return bytes(self.head + self.body + self.icrc)
        head = self.head
        size = len(self.body) + 4
        head[-2:] = b"\0\0"  # no UDP checksum
        struct.pack_into(">H", head, self.at - 4, size + 8)
        sport, dport = struct.unpack_from(">HH", head, self.at - 8)
        if self.v6:
            struct.pack_into(">H", head, 18, size + 8)
            flow, frag = Flow(bytes(head[22:38]), bytes(head[38:54]), sport, dport), 0
        else:
            struct.pack_into(">H", head, 16, size + 28)
            struct.pack_into(">H", head, 24, 0)
            struct.pack_into(">H", head, 24, checksum(head[14:34]))
            flow, frag = Flow(bytes(head[26:30]), bytes(head[30:34]), sport, dport), int.from_bytes(head[20:22], "big")
        return bytes(head + self.body) + struct.pack("<I", flow.icrc(self.body, self.ident, frag))


Packets = list[Packet]
Change = Callable[[Packets, int], None]


@functools.cache
def _loaded(name: str) -> Packets:
    return [
        Packet(packet.time_ns, packet.data)
        for packet in read_packets(RECORDINGS / name)
        if packet.linktype == LINKTYPE_ETHERNET and packet.data[12:14] in (b"\x08\0", b"\x86\xdd")
    ]


def load(name: str) -> Packets:
    """The RoCEv2 packets of a recording."""
    return [packet.copy() for packet in _loaded(name)]


def judge(packets: Packets) -> list[Finding]:
    """What a judge finds."""
    found: list[Finding] = []
    court = Judge(found.append)
    for packet in packets:
        frame = packet.frame()
        court.frame(packet.time_ns, LINKTYPE_ETHERNET, frame, len(frame))
    court.finish()
    return found


def _kind(*opcodes: int) -> Callable[[Packets], list[int]]:
    return lambda packets: [at for at, packet in enumerate(packets) if packet.body[0] in opcodes]


def _response_after(packets: Packets, at: int) -> int | None:
    """The first ACK behind a packet that goes the other way."""
    return next((i for i in range(at, len(packets)) if packets[i].body[0] == op.ACKNOWLEDGE), None)


def set_bits(byte: int, bits: int) -> Change:
    """Set bits of a byte of the BTH."""

    def change(packets: Packets, at: int) -> None:
        packets[at].body[byte] |= bits
        packets[at].sealed = True

    return change


def spoil(packets: Packets, at: int) -> None:
    packets[at].icrc = bytes((packets[at].icrc[0] ^ 1,)) + packets[at].icrc[1:]


def wrong_udp_length(packets: Packets, at: int) -> None:
    packet = packets[at]
    (length,) = struct.unpack_from(">H", packet.head, packet.at - 4)
    struct.pack_into(">H", packet.head, packet.at - 4, length - 4)


def may_fragment(packets: Packets, at: int) -> None:
    packets[at].head[20] &= ~0x40
    packets[at].sealed = True


def other_ttl(packets: Packets, at: int) -> None:
    packets[at].head[22] -= 1


def other_udp_checksum(packets: Packets, at: int) -> None:
    packets[at].head[-2:] = b"\x12\x34"


def another_port(packets: Packets, at: int) -> None:
    packets[at].head[-8] ^= 1
    packets[at].sealed = True


def toggle_migreq(packets: Packets, at: int) -> None:
    packets[at].body[1] ^= 0x40
    packets[at].sealed = True


def swap_psns(packets: Packets, at: int) -> None:
    """This packet and the next one of its way carry each other's PSN."""
    one = packets[at]
    other = next(packet for packet in packets[at + 1 :] if packet.way() == one.way())
    one.psn, other.psn = other.psn, one.psn
    one.sealed = other.sealed = True


def another_queue_pair(packets: Packets, at: int) -> None:
    packets[at].body[5:8] = b"\x12\x34\x56"
    packets[at].sealed = True


def become(opcode: int) -> Change:
    def change(packets: Packets, at: int) -> None:
        packets[at].body[0] = opcode
        packets[at].sealed = True

    return change


def lengthen(extra: int) -> Change:
    def change(packets: Packets, at: int) -> None:
        packets[at].body += bytes(extra)
        packets[at].sealed = True

    return change


def shorten(packets: Packets, at: int) -> None:
    del packets[at].body[-4:]
    packets[at].sealed = True


def add_to(offset: int, width: int, amount: int) -> Change:
    """Add to a big-endian number of the UDP payload."""

    def change(packets: Packets, at: int) -> None:
        body = packets[at].body
        value = int.from_bytes(body[offset : offset + width], "big") + amount
        body[offset : offset + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")
        packets[at].sealed = True

    return change


def another_partition(packets: Packets, at: int) -> None:
    packets[at].body[2:4] = b"\x80\x01"
    packets[at].sealed = True


def no_credit(packets: Packets, at: int) -> None:
    """From here on every ACK gives no credit."""
    for packet in packets[at:]:
        if packet.body[0] == op.ACKNOWLEDGE:
            packet.aeth &= 0xFFFFFF
            packet.sealed = True


def syndrome(value: int) -> Change:
    def change(packets: Packets, at: int) -> None:
        packets[at].aeth = value << 24 | packets[at].aeth & 0xFFFFFF
        packets[at].sealed = True

    return change


def again(*, ident: int = 1, delta_psn: int = 0, new_aeth: int | None = None, opcode: int | None = None) -> Change:
    """The packet once more behind itself, changed."""

    def change(packets: Packets, at: int) -> None:
        twin = packets[at].copy()
        twin.ident += ident
        twin.psn += delta_psn
        if new_aeth is not None:
            twin.aeth = new_aeth << 24 | twin.aeth & 0xFFFFFF
        if opcode is not None:
            twin.body[0] = opcode
        twin.sealed = True
        packets.insert(at + 1, twin)

    return change


def other_value(packets: Packets, at: int) -> None:
    again(ident=1)(packets, at)
    packets[at + 1].body[-1] ^= 1


def to_ack(packets: Packets, at: int) -> None:
    packets[at].body[0] = op.ACKNOWLEDGE
    packets[at].body[1] &= 0xCF
    del packets[at].body[16:]
    packets[at].sealed = True


def to_atomic_ack(packets: Packets, at: int) -> None:
    packets[at].body[0] = op.ATOMIC_ACKNOWLEDGE
    packets[at].body += bytes(8)
    packets[at].sealed = True


def hurry(packets: Packets, at: int) -> None:
    """What was repeated after the RNR NAK comes at once."""
    nak = packets[at]
    repeat = next(packet for packet in packets[at + 1 :] if packet.psn == nak.psn and packet.row.request)
    for packet in packets[at + 1 :]:
        packet.time_ns = max(nak.time_ns, packet.time_ns - (repeat.time_ns - nak.time_ns - 5_000))


def read_from_the_middle(packets: Packets, at: int) -> None:
    """A READ again from its second packet on, for as much as before."""
    first = next(i for i, p in enumerate(packets) if p.body[0] == op.READ_RESPONSE_FIRST and p.psn == packets[at].psn)
    last = first + 1
    twin = packets[at].copy()
    twin.psn += 1
    twin.ident += 1000
    twin.sealed = True
    packets.insert(last + 1, twin)


def first_psn(packets: Packets, at: int) -> None:
    """The REQ names another PSN."""
    add_to(12 + 8 + 24 + 44, 3, 7)(packets, at)


def cnp(payload: bytes, becn: int, gap_ns: int = 0) -> Change:
    """One CNP behind a packet, or three ``gap_ns`` apart."""

    def change(packets: Packets, at: int) -> None:
        made = []
        for index in range(3 if gap_ns else 1):
            twin = packets[at].copy()
            twin.body[0], twin.body[1], twin.body[4] = op.CNP, 0, becn
            twin.body[8:] = bytes(4) + payload
            twin.time_ns += index * gap_ns
            twin.ident += index
            twin.sealed = True
            made.append(twin)
        packets[at + 1 : at + 1] = made

    return change


def _acks(packets: Packets) -> list[int]:
    return _kind(op.ACKNOWLEDGE)(packets)


def _acks_of(packets: Packets, writes: bool) -> list[int]:
    """ACKs of WRITEs without immediate."""
    asked = {(p.psn): p for p in packets if p.row.request and p.row.write and not p.row.immdt}
    return [at for at in _acks(packets) if packets[at].psn in asked and packets[at].aeth >> 24 == 0x1F]


def _positive(packets: Packets) -> list[int]:
    """ACKs behind other ACKs of the same way, so that the MSN is known."""
    seen: set[bytes] = set()
    found = []
    for at in _acks(packets):
        if packets[at].aeth >> 29 == 0:
            if packets[at].way() in seen:
                found.append(at)
            seen.add(packets[at].way())
    return found


def _sequence_naks(packets: Packets) -> list[int]:
    """Sequence NAKs of what never passed the recording."""
    found = []
    for at in _acks(packets):
        if packets[at].aeth >> 24 == 0x60:
            psn = packets[at].psn
            if not any(p.psn == psn and p.row.request for p in packets[:at]):
                found.append(at)
    return found


def _rnr(packets: Packets) -> list[int]:
    return [
        at
        for at in _acks(packets)
        if packets[at].aeth >> 29 == 1 and any(p.psn == packets[at].psn and p.row.request for p in packets[at + 1 :])
    ]


def _repeated(packets: Packets) -> list[int]:
    """Requests that repeat one that the recording holds, with payload."""
    seen: set[tuple[bytes, int]] = set()
    found = []
    for at, packet in enumerate(packets):
        if packet.row.request and packet.row.write:
            if (packet.way(), packet.psn) in seen and len(packet.body) > 40:
                found.append(at)
            seen.add((packet.way(), packet.psn))
    return found


def _in_a_row(packets: Packets) -> list[int]:
    """Middles between packets of the same way."""
    return [
        at
        for at in _kind(op.SEND_MIDDLE, op.WRITE_MIDDLE)(packets)[1:-1]
        if at not in _repeated(packets)
        and any(p.psn == packets[at].psn + 1 and p.way() == packets[at].way() for p in packets[at:])
    ]


def _in_whole(packets: Packets) -> list[int]:
    """The same, of recordings in which nothing was lost."""
    return [] if _repeated(packets) else _in_a_row(packets)


def _counted(packets: Packets) -> list[int]:
    """Middles with one packet of their way before them, and two behind, whose idents count up by one."""
    found = []
    for at in _in_whole(packets):
        way = [packet for packet in packets if packet.way() == packets[at].way() and packet.row.request]
        index = next(i for i, packet in enumerate(way) if packet is packets[at])
        row = way[index - 1 : index + 3]
        steps = [(b.ident - a.ident, b.psn - a.psn) for a, b in itertools.pairwise(row)]
        if len(row) == 4 and steps == [(1, 1)] * 3 and row[0].ident >= 64:
            found.append(at)
    return found


def _whole_writes(packets: Packets) -> list[int]:
    """First packets of WRITEs that the recording holds whole and once."""
    again = {packets[at].psn for at in _repeated(packets)}
    return [at for at in _first_writes(packets)[:-1] if packets[at].psn not in again]


def _long_reads(packets: Packets) -> list[int]:
    """READs that are answered by more than one packet."""
    answered = {packet.psn for packet in packets if packet.body[0] == op.READ_RESPONSE_FIRST}
    return [at for at in _kind(op.READ_REQUEST)(packets) if packets[at].psn in answered]


def _before_sends(packets: Packets) -> list[int]:
    """The first ACK, where SENDs of several packets follow it the other way."""
    first = _positive(packets)[:1]
    return [at for at in first if sum(p.body[0] == op.SEND_MIDDLE for p in packets[at:]) > 4]


_data = _kind(*range(0x0C), 0x24, 0x2A)
_middles = _kind(op.SEND_MIDDLE, op.WRITE_MIDDLE)
_first_writes = _kind(op.WRITE_FIRST, op.WRITE_ONLY)


def _reqs(packets: Packets) -> list[int]:
    """Connection requests, in datagrams to QP1."""
    return [
        at
        for at, packet in enumerate(packets)
        if packet.body[0] == 0x64 and len(packet.body) == 276 and packet.body[36:38] == b"\0\x10"
    ]


def _naks_could_be_late(packets: Packets) -> list[int]:
    """ACKs whose idents tell the order."""
    return [] if packets[0].v6 else _positive(packets)


BROKEN: dict[str, tuple[Callable[[Packets], list[int]], Change]] = {
    "icrc": (_data, spoil),
    "length": (_data, wrong_udp_length),
    "ip-checksum": (lambda packets: [] if packets[0].v6 else _data(packets), other_ttl),
    "udp-checksum": (_data, other_udp_checksum),
    "tver": (_data, set_bits(1, 1)),
    "opcode": (_data, become(0x18)),
    "headers": (_acks, lengthen(4)),
    "reserved": (_data, set_bits(8, 1)),
    "fragment": (lambda packets: [] if packets[0].v6 else _data(packets), may_fragment),
    "pkey": (lambda packets: _acks(packets)[2:], another_partition),
    "source-port": (_in_a_row, another_port),
    "migreq": (_in_a_row, toggle_migreq),
    "solicited": (_middles, set_bits(1, 0x80)),
    "sequence": (_in_a_row, lambda packets, at: become(packets[at].body[0] + 1)(packets, at)),
    "size": (_in_a_row, shorten),
    "pad": (_middles, set_bits(1, 0x10)),
    "dma-length": (_whole_writes, add_to(24, 4, 16)),
    "repeat": (_repeated, shorten),
    "repeat-payload": (_repeated, add_to(40, 1, 1)),
    "psn-jump": (_in_a_row, add_to(9, 3, 0x400000)),
    "psn-order": (_counted, swap_psns),
    "queue-pair": (_in_whole, another_queue_pair),
    "first-psn": (_reqs, first_psn),
    "atomic-aligned": (_kind(op.COMPARE_SWAP, op.FETCH_ADD), add_to(12, 8, 4)),
    "read-length": (_kind(op.READ_REQUEST), set_bits(24, 0xC0)),
    "read-retry": (_long_reads, read_from_the_middle),
    "rnr-wait": (_rnr, hurry),
    "credits": (_before_sends, no_credit),
    "ack-unsent": (_positive, add_to(9, 3, 1000)),
    "syndrome": (_acks, syndrome(0x40)),
    "nak-once": (_sequence_naks, again(ident=1)),
    "nak-acked": (
        lambda packets: [] if packets[0].v6 else _positive(packets),
        again(ident=1, delta_psn=-1, new_aeth=0x60),
    ),
    "ack-gap": (_sequence_naks, again(ident=1, new_aeth=0x1F)),
    "ack-after-error": (
        lambda packets: [at for at in _acks(packets) if packets[at].aeth >> 24 in (0x61, 0x62, 0x63)],
        again(ident=1, new_aeth=0x1F),
    ),
    "rnr-kind": (lambda packets: _acks_of(packets, True), syndrome(0x2E)),
    "msn": (_positive, add_to(13, 3, 1)),
    "response-bits": (_acks, set_bits(8, 0x80)),
    "read-order": (_kind(op.READ_RESPONSE_LAST), become(op.READ_RESPONSE_FIRST)),
    "read-size": (_kind(op.READ_RESPONSE_MIDDLE), shorten),
    "read-unasked": (lambda packets: _acks_of(packets, True), become(op.READ_RESPONSE_ONLY)),
    "atomic-unasked": (lambda packets: _acks_of(packets, True), to_atomic_ack),
    "atomic-replay": (_kind(op.ATOMIC_ACKNOWLEDGE), other_value),
    "read-as-ack": (_kind(op.ATOMIC_ACKNOWLEDGE), to_ack),
    "gsi-qkey": (_reqs, add_to(12, 4, 1)),
    "mad-version": (_reqs, add_to(20, 1, 1)),
    "ud-size": (_kind(0x64), lengthen(4096)),
    "cnp-form": (_data, cnp(bytes(15) + b"\1", 0x40)),
    "cnp-rate": (_data, cnp(bytes(16), 0x40, 1_000)),
}
"""For each rule: the packets of a recording that it can be broken at, and how."""

NAMES = sorted(path.name for path in RECORDINGS.glob("*.pcap"))
EACH = 3
"""How many places of a recording each rule is broken at."""


def broken(rule: str) -> Iterator[tuple[str, int, Packets]]:
    """Recordings in which ``rule`` alone was broken: recording, place, packets."""
    places, change = BROKEN[rule]
    for name in NAMES:
        whole = load(name)
        found = places(whole)
        for at in sorted({found[i * (len(found) - 1) // max(1, EACH - 1)] for i in range(EACH)} if found else ()):
            packets = [packet.copy() for packet in whole]
            change(packets, at)
            yield name, at, packets
