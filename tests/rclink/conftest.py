"""RC Link by packet scripts: one endpoint, a peer made by hand, time in nanoseconds (``hardware.md`` §4)."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.rclink import Path, RcLinkConfig, RcLinkEndpoint, set_up
from rnic.rclink import registers as r
from rnic.rclink.header import Rh
from rnic.rclink.numbers import OP_ACK, OP_CNP, OP_SEND
from rnic.rclink.packet import RcLinkPacket, build, icrc_ok, parse, seal
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow

ME, PEER = b"\x0a\0\0\x01", b"\x0a\0\0\x02"
ACK, NAK = 0x1F, 0x60


class Lone:
    """An endpoint whose QP 5 talks to QP 9 of a peer that the test plays."""

    def __init__(self, psn: int = 100, remote_psn: int = 200, qpid: int = 5, **settings: Any) -> None:
        self.now = 0
        self.qpid = qpid
        self.endpoint = RcLinkEndpoint(RcLinkConfig(**settings), lambda dst, port, sport: Flow(ME, dst, 4793, port))
        self.path = Path(PEER, 9, psn=psn, remote_psn=remote_psn, pkey=7)
        set_up(self.endpoint, qpid, self.path)
        self.qp = self.endpoint.qps[qpid]

    def send(self, count: int = 1, size: int = 100, **options: Any) -> None:
        for _ in range(count):
            self.endpoint.send(self.qpid, bytes(size), **options)

    def out(self, at: int | None = None, budget: int = 64) -> list[tuple[str, int]]:
        """What leaves now: ``("SEND", psn)``, ``("ACK", psn)``, ``("NAK", psn)``, ``("CNP", 0)`` ..."""
        return [self.named(rh) for rh, _ in self.raw(at, budget)]

    def raw(self, at: int | None = None, budget: int = 64) -> list[tuple[Rh, bytes]]:
        self.now = self.now if at is None else at
        self.endpoint.handle_timers(self.now)
        out = []
        for burst in self.endpoint.produce(self.now, budget):
            data = b"".join(burst.buffers)
            assert icrc_ok(data, burst.flow)
            packet = parse(memoryview(data))
            assert isinstance(packet, RcLinkPacket)
            assert (packet.rh.pkey, packet.rh.dest_qp) == (7, 9)
            out.append((packet.rh, bytes(packet.payload)))
        return out

    @staticmethod
    def named(rh: Rh) -> tuple[str, int]:
        if rh.opcode == OP_ACK:
            return {0x00: "ACK", 0x20: "RNR", 0x60: "NAK"}[rh.len_syndrome & 0x60], rh.psn
        return {OP_SEND: "SEND", OP_CNP: "CNP"}[rh.opcode], rh.psn

    def peer(self, opcode: int, psn: int = 0, syndrome: int = 0, payload: bytes = b"", ecn: int = 0, src: bytes = PEER,
             **values: Any) -> None:  # fmt: skip
        """A packet arrives now."""
        fields = {"pkey": 7, "dest_qp": self.qpid, "len_syndrome": syndrome, **values}
        flow = Flow(src, ME, 4793, 4793)
        data = seal(build(Rh(opcode=opcode, psn=psn, **fields), payload), flow)
        self.endpoint.receive(RxBurst(flow, memoryview(data), len(data), len(data), 0, tclass=ecn), self.now)

    def ack(self, psn: int, **values: Any) -> None:
        self.peer(OP_ACK, psn, ACK, **values)

    def nak(self, psn: int) -> None:
        self.peer(OP_ACK, psn, NAK)

    def arrive(self, psn: int, **values: Any) -> None:
        self.peer(OP_SEND, psn, payload=b"data", **values)

    def states(self) -> str:
        """States of the QP's slots in order, by initial: G, A, C."""
        slots = [*self.qp.unacked, *self.qp.waiting]
        return "".join({"WAIT_GRANT": "G", "WAIT_ACK": "A", "WAIT_CRD": "C"}[slot.state.name] for slot in slots)

    def dropped(self) -> dict[str, int]:
        return {name: count for name, count in self.endpoint.counters.items() if name.startswith("drop_")}

    def read(self, offset: int, field: str) -> int:
        self.endpoint.write(r.QP_ID_SET, self.qpid)
        return r.AT[offset].get(self.endpoint.read(offset), field)


@pytest.fixture
def lone() -> type[Lone]:
    """The class: a test makes its endpoint with the settings that it wants."""
    return Lone
