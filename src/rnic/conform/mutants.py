"""rnic with one rule broken, to prove that the suite detects it.

Each mutant sits at the NIC's port and changes packets as if the NIC had the fault: it repairs incoming packets so that
a check finds nothing, or damages outgoing packets. On the wire, the NIC appears to have the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rnic.conform.bench import Bench, simulated
from rnic.conform.runner import FAIL, run
from rnic.conform.script import QUEUES, Script, scripts
from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.packets import joined, single_packets
from rnic.spec import opcodes as op
from rnic.spec.drops import DropReason
from rnic.spec.limits import DEFAULT_PKEY
from rnic.spec.psn import psn_add, psn_diff
from rnic.spec.syndromes import (
    AETH_RNR_NAK,
    AETH_TYPE_MASK,
    CREDITS_INVALID,
    NAK_INVALID_REQUEST,
    NAK_PSN_SEQUENCE,
    NAK_REMOTE_ACCESS,
)
from rnic.testing.net import SimNet
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES, OpcodeRow
from rnic.wire.packet import Packet, build, parse, seal

QKEY = 0x1111_1111
_FIELDS = (
    "dqpn", "psn", "ackreq", "solicited", "migreq", "pkey", "fecn", "becn", "va", "rkey", "dma_length", "swap_add",
    "compare", "syndrome", "msn", "orig", "imm", "inv_rkey", "qkey", "sqpn", "srqn", "payload",
)  # fmt: skip


def changed(packet: Packet, flow: Flow, opcode: int | None = None, **values: Any) -> bytes:
    """Return the packet with some values changed and a valid ICRC."""
    fields: dict[str, Any] = {name: getattr(packet, name) for name in _FIELDS if hasattr(packet, name)}
    row: OpcodeRow = packet.row
    if opcode is not None:
        found = OPCODES[opcode]
        assert found is not None
        row = found
    return seal(build(row, **{**fields, **values}), flow)


class Faulty(Middleware):
    """The port of a NIC with a fault.

    Its state belongs to the open connection: the NIC's queue pair and regions, the next PSN, retransmitted packets.
    """

    def __init__(self, inner: Link, mutant: Mutant) -> None:
        super().__init__(inner)
        self._mutant = mutant
        self.reset(0, 0, 0, {}, {})

    def reset(
        self, qpn: int, peer_qpn: int, psn: int, regions: dict[str, tuple[int, int, int]], queues: dict[str, int]
    ) -> None:
        """Start another connection with the NIC's and the tester's queue pair, the first PSN, the regions, the SRQs."""
        self.qpn = qpn
        self.peer_qpn = peer_qpn
        self.epsn = self.base = psn
        self.regions = regions
        self.queues = queues
        self.sent = -1
        self.left = -1
        self.nak = -1
        self.acked = -1
        self.reads: dict[int, Packet] = {}
        self.times: dict[int, int] = {}
        self.extra: list[TxBurst] = []

    @property
    def key(self) -> int:
        """R_Key of the region with all rights."""
        return self.regions["M"][1]

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """See :meth:`rnic.link.base.Link.send`."""
        out: list[TxBurst] = []
        for burst in bursts:
            for single in single_packets(burst):
                out += self._out(single)
        self.inner.send(out)

    def _out(self, single: TxBurst) -> list[TxBurst]:
        data = joined(single)
        packet = parse(memoryview(data))
        if isinstance(packet, DropReason):
            return [single]
        if packet.row.request:
            self.sent = max(self.sent, packet.psn)
        made = data if self._mutant.out is None else self._mutant.out(self, packet, single.flow)
        return [] if made is None else [TxBurst(single.flow, [made or data], len(made or data), 1, len(made or data))]

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`."""
        found: list[RxBurst] = []
        for burst in self.inner.receive(limit):
            for start in range(0, burst.length, burst.segment):
                data = bytes(burst.buf[start : min(start + burst.segment, burst.length)])
                made = self._in(data, burst.flow)
                if made is not None:
                    found.append(
                        RxBurst(
                            burst.flow, memoryview(made), len(made), len(made), 0, burst.frag, burst.tclass,
                            burst.hop_limit, burst.flow_label,
                        )
                    )  # fmt: skip
        if self.extra:
            self.inner.send(self.extra)
            self.extra = []
        return found

    def _in(self, data: bytes, flow: Flow) -> bytes | None:
        if self._mutant.raw is not None:
            data = self._mutant.raw(self, data, flow)
        packet = parse(memoryview(data))
        if isinstance(packet, DropReason) or not flow.check(data):
            return data
        made = data
        if self._mutant.into is not None:
            found = self._mutant.into(self, packet, flow)
            if found is None:
                return None
            made = found or data
        if packet.row.request:
            self.times[packet.psn] = self.times.get(packet.psn, 0) + 1
            if packet.psn == self.epsn:
                count = max(1, -(-packet.dma_length // 1024)) if packet.row.operation == op.READ_REQUEST else 1
                self.epsn = psn_add(packet.psn, count)
        return made

    def answer(self, flow: Flow, syndrome: int, psn: int) -> None:
        """Send an additional ACKNOWLEDGE that the fault makes."""
        way = flow.reverse()
        made = seal(build(op.ACKNOWLEDGE, dqpn=self.peer_qpn, psn=psn, syndrome=syndrome), way)
        self.extra.append(TxBurst(way, [made], len(made), 1, len(made)))


Raw = Callable[[Faulty, bytes, Flow], bytes]
Change = Callable[[Faulty, Packet, Flow], bytes | None]
"""Takes port, packet and flow; returns the packet to use instead, ``b""`` for the same, ``None`` to drop it."""


class Mutant(NamedTuple):
    """A fault. ``finds`` names a test that must fail."""

    name: str
    finds: str
    out: Change | None = None
    into: Change | None = None
    raw: Raw | None = None


# -------------------------------------------------------------------------------------------- outgoing packets


def _out(condition: Callable[[Packet], bool], **values: Any) -> Change:
    """Send packets of a kind with other values; a value may be a function of the packet."""

    def change(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
        if not condition(packet):
            return b""
        made = {name: value(packet) if callable(value) else value for name, value in values.items()}
        return changed(packet, flow, **made)

    return change


def _lost(condition: Callable[[Faulty, Packet], bool]) -> Change:
    """Drop packets of a kind."""
    return lambda port, packet, flow: None if condition(port, packet) else b""


def _plain(packet: Packet) -> bool:
    return packet.row.operation == op.ACKNOWLEDGE and packet.row.service == op.RC


def _ack(packet: Packet) -> bool:
    return _plain(packet) and packet.syndrome & AETH_TYPE_MASK == 0


def _nak(code: int) -> Callable[[Packet], bool]:
    return lambda packet: _plain(packet) and packet.syndrome == code


def _rnr(packet: Packet) -> bool:
    return _plain(packet) and packet.syndrome & AETH_TYPE_MASK == AETH_RNR_NAK


def _operation(*operations: int) -> Callable[[Packet], bool]:
    return lambda packet: packet.row.operation in operations and packet.row.service != op.CNP & 0xE0


def _padded(packet: Packet) -> bool:
    return packet.pad != 0


def _pad_as_data(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    return changed(packet, flow, payload=bytes(packet.payload) + bytes(packet.pad)) if packet.pad else b""


def _first_as_middle(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    first = packet.row.operation == op.READ_RESPONSE_FIRST
    return changed(packet, flow, opcode=op.RC | op.READ_RESPONSE_MIDDLE) if first else b""


def _replayed_value(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    again = packet.row.atomicacketh and port.times.get(packet.psn, 0) > 1
    return changed(packet, flow, orig=packet.orig + 1) if again else b""


def _bad_icrc(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    if not packet.row.read_response:
        return b""
    made = bytearray(changed(packet, flow))
    made[-1] ^= 1
    return bytes(made)


# --------------------------------------------------------------------------------------------- incoming packets


def _in(condition: Callable[[Faulty, Packet], bool], **values: Any) -> Change:
    """Receive packets of a kind with other values; a value may be a function of port and packet."""

    def change(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
        if not condition(port, packet):
            return b""
        made = {name: value(port, packet) if callable(value) else value for name, value in values.items()}
        return changed(packet, flow, **made)

    return change


def _near(port: Faulty, packet: Packet) -> int:
    return port.queues["near"]


def _any_icrc(port: Faulty, data: bytes, flow: Flow) -> bytes:
    return seal(data[:-4], flow)


def _any_version(port: Faulty, data: bytes, flow: Flow) -> bytes:
    return seal(bytes((data[0], data[1] & 0xF0)) + data[2:-4], flow) if data[1] & 0x0F else data


def _empty(port: Faulty, packet: Packet, flow: Flow) -> bytes:
    """Replace a packet by one that any NIC accepts: a WRITE of 0 bytes."""
    return seal(build(op.RC | op.WRITE_ONLY, dqpn=port.qpn, psn=packet.psn, ackreq=packet.ackreq), flow)


def _taken(condition: Callable[[Faulty, Packet], bool]) -> Change:
    """Acknowledge packets of a kind, whatever they contain."""
    return lambda port, packet, flow: _empty(port, packet, flow) if condition(port, packet) else b""


def _of_region(name: str) -> Callable[[Faulty, Packet], bool]:
    return lambda port, packet: packet.row.write and packet.row.reth and packet.rkey == port.regions[name][1]


def _beyond(port: Faulty, packet: Packet) -> bool:
    start, key, size = port.regions["M"]
    return packet.row.write and packet.row.reth and packet.rkey == key and packet.va + packet.dma_length > start + size


def _closed(port: Faulty, packet: Packet) -> bool:
    """Return whether a packet continues a message although none is open."""
    return packet.row.request and not packet.row.start and port.left < 0 and packet.row.service == op.RC


def _fitted(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    """Make the payload of a WRITE as long as its RETH says, whatever its real length."""
    if packet.row.write and packet.row.reth:
        port.left = packet.dma_length
    if not packet.row.write or port.left < 0:
        return b""
    size = len(packet.payload)
    wrong = size > port.left or (packet.row.end and size != port.left)
    made = changed(packet, flow, payload=bytes(packet.payload)[: port.left].ljust(port.left, b"\0")) if wrong else b""
    port.left = -1 if packet.row.end else port.left - size
    return made


def _repeated(port: Faulty, packet: Packet) -> bool:
    return packet.row.request and packet.row.service == op.RC and psn_diff(packet.psn, port.epsn) < 0


def _refused_again(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    """Send a NAK for every out-of-order packet."""
    if packet.row.request and packet.row.service == op.RC and psn_diff(packet.psn, port.epsn) > 0:
        if port.nak == port.epsn:
            port.answer(flow, NAK_PSN_SEQUENCE, port.epsn)
        port.nak = port.epsn
    return b""


def _executed_again(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    """Execute a duplicate WRITE as if it were the next one."""
    if _repeated(port, packet) and packet.row.write and packet.row.start and packet.row.end:
        return changed(packet, flow, psn=port.epsn)
    return b""


def _whole_read(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    """Answer a READ that restarts in the middle like the whole READ."""
    if packet.row.operation != op.READ_REQUEST:
        return b""
    for first, read in port.reads.items():
        behind = first + -(-read.dma_length // 1024)
        if first < packet.psn < behind:
            return changed(packet, flow, psn=first, va=read.va, dma_length=read.dma_length)
    port.reads[packet.psn] = packet
    return b""


def _message_again(port: Faulty, packet: Packet, flow: Flow) -> bytes | None:
    """Treat a sequence NAK as one for the first packet."""
    if _plain(packet) and packet.syndrome == NAK_PSN_SEQUENCE:
        return changed(packet, flow, psn=port.base)
    return b""


def _ghost(port: Faulty, packet: Packet) -> bool:
    return _ack(packet) and packet.psn > port.sent >= 0


def _ack_again(port: Faulty, packet: Packet) -> bool:
    """Return whether an ACK repeats the PSN of an earlier one."""
    if not _ack(packet):
        return False
    again = packet.psn == port.acked
    port.acked = packet.psn
    return again


def _refusal(port: Faulty, packet: Packet) -> bool:
    return _plain(packet) and packet.syndrome in (NAK_REMOTE_ACCESS, NAK_INVALID_REQUEST)


def _reserved(port: Faulty, packet: Packet) -> bool:
    return packet.row.name.startswith("RC_UNSUPPORTED")


MUTANTS: tuple[Mutant, ...] = (
    Mutant("ACKs name the next PSN", "write-only", out=_out(_ack, psn=lambda p: psn_add(p.psn, 1))),
    Mutant("the MSN stays 0", "ack-covers", out=_out(_plain, msn=0)),
    Mutant("the MSN counts packets", "write-several@256", out=_out(_ack, msn=lambda p: p.psn - 99 & 0xFFFFFF)),
    Mutant("access errors are called invalid requests", "key-tag",
           out=_out(_nak(NAK_REMOTE_ACCESS), syndrome=NAK_INVALID_REQUEST)),
    Mutant("invalid requests are called access errors", "middle-first",
           out=_out(_nak(NAK_INVALID_REQUEST), syndrome=NAK_REMOTE_ACCESS)),
    Mutant("refusals are not told", "key-unknown", out=_lost(lambda s, p: _nak(NAK_REMOTE_ACCESS)(p))),
    Mutant("sequence NAKs name the PSN that came", "gap",
           out=_out(_nak(NAK_PSN_SEQUENCE), psn=lambda p: psn_add(p.psn, 1))),
    Mutant("a gap is not told", "gap-once", out=_lost(lambda s, p: _nak(NAK_PSN_SEQUENCE)(p))),
    Mutant("a gap is told again and again", "gap-once", into=_refused_again),
    Mutant("RNR NAKs carry another timer", "rnr", out=_out(_rnr, syndrome=lambda p: p.syndrome ^ 1)),
    Mutant("RNR NAKs are not told", "rnr-immediate", out=_lost(lambda s, p: _rnr(p))),
    Mutant("READ responses all have the READ's PSN", "read-several@256",
           out=_out(_operation(op.READ_RESPONSE_MIDDLE, op.READ_RESPONSE_LAST), psn=lambda p: p.psn - 1 & 0xFFFFFF)),
    Mutant("the first READ response is a MIDDLE", "read-two-packets", out=_first_as_middle),
    Mutant("READ responses count padding as data", "write-odd", out=_pad_as_data),
    Mutant("the ICRC of READ responses is wrong", "read-only", out=_bad_icrc),
    Mutant("atomics return the value behind them", "fetch-add",
           out=_out(lambda p: p.row.atomicacketh, orig=lambda p: p.orig + 5 & (1 << 64) - 1)),
    Mutant("an atomic that comes again has another value", "duplicate-atomic", out=_replayed_value),
    Mutant("repetitions are not answered", "duplicate-read", into=_lost(_repeated)),
    Mutant("a WRITE that comes again is carried out again", "duplicate-write", into=_executed_again),
    Mutant("a READ from its middle is answered from its start", "duplicate-read-middle", into=_whole_read),
    Mutant("any ICRC is right", "icrc", raw=_any_icrc),
    Mutant("any transport version is right", "tver", raw=_any_version),
    Mutant("any partition is right", "pkey", into=_in(lambda s, p: p.pkey != DEFAULT_PKEY, pkey=DEFAULT_PKEY)),
    Mutant("any queue pair number is right", "other-queue-pair",
           into=_in(lambda s, p: p.dqpn != s.qpn, dqpn=lambda s, p: s.qpn)),
    Mutant("UC packets serve on RC queue pairs", "other-service-uc",
           into=_in(lambda s, p: p.row.service == op.UC, opcode=op.RC | op.WRITE_ONLY)),
    Mutant("the low bits of a key are not looked at", "key-tag",
           into=_in(lambda s, p: hasattr(p, "rkey") and p.rkey ^ 1 == s.key, rkey=lambda s, p: s.key)),
    Mutant("the end of a region is not looked at", "beyond-region", into=_taken(_beyond)),
    Mutant("regions that only read are written", "write-read-only", into=_taken(_of_region("R"))),
    Mutant("local regions are written", "write-local-region", into=_taken(_of_region("L"))),
    Mutant("protection domains are not looked at", "other-domain", into=_taken(_of_region("F"))),
    Mutant("a MIDDLE serves without a FIRST", "middle-first", into=_taken(lambda s, p: p.row.write and _closed(s, p))),
    Mutant("a WRITE brings what it likes", "write-more", into=_fitted),
    Mutant("reserved opcodes are acknowledged", "reserved-opcode", into=_taken(_reserved)),
    Mutant("atomics serve on any address", "atomic-misaligned",
           into=_in(lambda s, p: p.row.atomic, va=lambda s, p: p.va & ~7)),
    Mutant("congestion is not told", "marked", out=_lost(lambda s, p: p.row.opcode == op.CNP)),
    Mutant("any Q_Key is right", "ud-qkey", into=_in(lambda s, p: p.row.deth, qkey=QKEY)),
    Mutant("requests never ask for an ACK", "out-write", out=_out(lambda p: p.row.request, ackreq=False)),
    Mutant("the immediate is turned round", "out-send-immediate",
           out=_out(lambda p: p.row.immdt, imm=lambda p: int.from_bytes(p.imm.to_bytes(4, "big"), "little"))),
    Mutant("PSNs have 23 bits", "out-psn-wrap", out=_out(lambda p: p.row.request, psn=lambda p: p.psn & 0x7FFFFF)),
    Mutant("READs ask for four bytes less", "out-read",
           out=_out(_operation(op.READ_REQUEST), dma_length=lambda p: p.dma_length - 4)),
    Mutant("after a sequence NAK all begins anew", "out-sequence-nak", into=_message_again),
    Mutant("the time of an RNR NAK is not kept", "out-rnr",
           into=_in(lambda s, p: _rnr(p), syndrome=AETH_RNR_NAK | 1)),
    Mutant("ACKs of what was not sent serve", "out-ghost-ack", into=_in(_ghost, psn=lambda s, p: s.sent)),
    Mutant("fatal NAKs are taken for lost packets", "out-nak-access",
           into=_in(_refusal, syndrome=NAK_PSN_SEQUENCE)),
    Mutant("ACKs promise a receive entry more than there is", "credits-none-left",
           out=_out(lambda p: _ack(p) and p.syndrome != CREDITS_INVALID, syndrome=lambda p: p.syndrome + 1)),
    Mutant("credits are not told although they are asked for", "credits", out=_out(_ack, syndrome=CREDITS_INVALID)),
    Mutant("credits are not kept to", "out-credits", into=_in(lambda s, p: _ack(p), syndrome=CREDITS_INVALID)),
    Mutant("one credit is good for any number of SENDs", "out-credits-count",
           into=_in(lambda s, p: _ack(p) and p.syndrome == 1, syndrome=CREDITS_INVALID)),
    Mutant("an ACK that repeats the last PSN brings no credits", "out-credits-later", into=_lost(_ack_again)),
    Mutant("SRQs of other XRC domains serve", "xrc-other-domain",
           into=_in(lambda s, p: p.row.xrceth and p.srqn == s.queues["outside"], srqn=_near)),
    Mutant("a message may go on with another SRQ", "xrc-changed-queue",
           into=_in(lambda s, p: p.row.xrceth and not p.row.start, srqn=_near)),
    Mutant("all SENDs take entries of one SRQ", "xrc-send",
           into=_in(lambda s, p: p.row.xrceth and p.row.send, srqn=_near)),
    Mutant("only one SRQ is named", "out-xrc-queues", out=_out(lambda p: p.row.xrceth, srqn=5)),
    Mutant("datagrams name another sender", "ud-sends", out=_out(lambda p: p.row.deth, qkey=0x2222)),
)  # fmt: skip
"""All faults."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[Bench]:
    """Yield a bench whose peer is rnic with the fault."""
    with SimNet(1) as net:
        runtime = net.nodes[0].ctx.runtime
        port = Faulty(runtime.link, mutant)
        runtime.link = port
        bench = simulated(net)
        opened = bench.open

        def open_and_tell(script: Script) -> Any:
            made = opened(script)
            regions = {name: (region.va, region.key, region.size) for name, region in made.regions.items()}
            queues = {name: made.numbers.get(name, -1) for name in QUEUES}
            port.reset(made.peer_qpn, made.qpn, made.psn, regions, queues)
            return made

        bench.open = open_and_tell  # type: ignore[method-assign]
        yield bench


def found_by(mutant: Mutant, only: str | None = None) -> list[str]:
    """Return the names of the tests that fail on rnic with the fault.

    Args:
        only: just this one is played.
    """
    with planted(mutant) as bench:
        played = [script for script in scripts() if only is None or script.name == only]
        return [script.name for script in played if run(bench, script).verdict == FAIL]
