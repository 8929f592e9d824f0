"""QP1: what reaches its agent, what is dropped and under which name, and what leaves it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rnic.device import Nic, NicConfig
from rnic.device.gsi import MAX_WAITING
from rnic.device.inspect import look
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow
from rnic.wire.mad import GSI_QKEY, MAD_BYTES
from rnic.wire.packet import Packet, build, parse, seal

HERE, THERE = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))
GID = bytes(10) + b"\xff\xff" + THERE
SEND_ONLY, SEND_ONLY_IMM, RC_SEND_ONLY = 0x64, 0x65, 0x04
FLOW = Flow(THERE, HERE, 49_152)


class Agent:
    def __init__(self) -> None:
        self.heard: list[tuple[bytes, bytes, int]] = []
        self.deadline: int | None = None
        self.timers = 0

    def receive(self, datagram: bytes | memoryview, source: bytes, now_ns: int) -> None:
        self.heard.append((bytes(datagram), source, now_ns))

    def next_deadline_ns(self) -> int | None:
        return self.deadline

    def handle_timers(self, now_ns: int) -> None:
        self.timers += 1
        self.deadline = None

    def view(self) -> dict[str, Any]:
        return {"services": [7], "connections": []}


@pytest.fixture
def nic() -> Nic:
    return Nic(NicConfig(HERE), rng=random.Random(1))


def arrive(nic: Nic, opcode: int = SEND_ONLY, payload: bytes = bytes(MAD_BYTES), **more: int) -> None:
    fields = {"dqpn": 1, "psn": 0, "qkey": GSI_QKEY, "sqpn": 1} | more
    packet = memoryview(seal(build(opcode, payload=payload, **fields), FLOW))  # type: ignore[arg-type]
    nic.receive(RxBurst(FLOW, packet, len(packet), len(packet), 0), 77)


def test_a_datagram_reaches_the_agent(nic: Nic) -> None:
    nic.gsi.agent = agent = Agent()
    payload = bytes(range(256))
    arrive(nic, payload=payload)
    assert agent.heard == [(payload, GID, 77)]
    assert nic.counters["mads_received"] == 1


@pytest.mark.parametrize(
    ("opcode", "payload", "more", "counter"),
    [
        (SEND_ONLY, bytes(255), {}, "drop_bad_mad"),
        (SEND_ONLY, bytes(260), {}, "drop_bad_mad"),
        (SEND_ONLY, b"", {}, "drop_bad_mad"),
        (SEND_ONLY, bytes(256), {"qkey": 0x1111_1111}, "drop_bad_qkey"),
        (SEND_ONLY, bytes(256), {"pkey": 0x8001}, "drop_bad_pkey"),
        (SEND_ONLY, bytes(256), {"sqpn": 17}, "drop_bad_mad"),
        (SEND_ONLY_IMM, bytes(256), {}, "drop_wrong_service"),
        (RC_SEND_ONLY, bytes(256), {}, "drop_wrong_service"),
    ],
)
def test_what_is_no_datagram_costs_a_counter(
    nic: Nic, opcode: int, payload: bytes, more: dict[str, int], counter: str
) -> None:
    nic.gsi.agent = agent = Agent()
    arrive(nic, opcode, payload, **more)
    assert nic.counters[counter] == 1
    assert not agent.heard
    assert not nic.has_work()


def test_without_an_agent_datagrams_are_counted(nic: Nic) -> None:
    arrive(nic)
    assert nic.counters["drop_mad_unattended"] == 1


def test_an_agent_that_fails_costs_the_datagram_alone(nic: Nic, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Agent):
        def receive(self, datagram: bytes | memoryview, source: bytes, now_ns: int) -> None:
            raise RuntimeError("broken")

    caught: list[str] = []
    monkeypatch.setattr(type(nic.guard), "caught", lambda guard, place, *rest: caught.append(place))
    nic.gsi.agent = Broken()
    arrive(nic)
    assert caught == ["packet"]


def test_what_is_sent_is_a_datagram_from_qp1_to_qp1(nic: Nic) -> None:
    nic.gsi.send(bytes(range(256)), GID, 0x28)
    assert nic.has_work()
    (burst,) = nic.produce(0)
    assert (burst.flow.src, burst.flow.dst, burst.flow.dport, burst.flow.tclass) == (HERE, THERE, 4791, 0x28)
    packet = parse(memoryview(b"".join(burst.buffers)))
    assert (packet.opcode, packet.dqpn, packet.sqpn, packet.qkey) == (SEND_ONLY, 1, 1, GSI_QKEY)  # type: ignore[union-attr]
    assert bytes(packet.payload) == bytes(range(256))  # type: ignore[union-attr]
    assert not nic.has_work()


def test_what_waits_to_be_sent_is_bounded(nic: Nic) -> None:
    for _ in range(MAX_WAITING + 3):
        nic.gsi.send(bytes(256), GID, 0)
    assert len(nic.produce(0)) == MAX_WAITING
    assert nic.counters["drop_mad_full"] == 3


@pytest.mark.parametrize("gid", [bytes(16), bytes(15) + b"\1", bytes(10) + b"\xff\xff" + bytes(4)])
def test_an_address_of_no_use_is_counted(nic: Nic, gid: bytes) -> None:
    nic.gsi.send(bytes(256), gid, 0)
    assert nic.counters["drop_tx_bad_address"] == 1
    assert not nic.has_work()


def test_the_agents_deadline_is_the_nics(nic: Nic) -> None:
    nic.gsi.agent = agent = Agent()
    assert nic.next_deadline_ns() is None
    agent.deadline = 5_000
    assert nic.next_deadline_ns() == 5_000
    nic.handle_timers(5_000)
    assert agent.timers == 1


def test_a_soft_reset_forgets_what_waits(nic: Nic) -> None:
    nic.gsi.send(bytes(256), GID, 0)
    nic.soft_reset()
    assert not nic.produce(0)


def test_what_it_manages_can_be_looked_at(nic: Nic) -> None:
    assert look(nic, "cm") == {"services": [], "connections": [], "groups": [], "agents": []}
    nic.gsi.agent = Agent()
    assert look(nic, "cm") == {"services": [7], "connections": [], "groups": [], "agents": []}


def ask(nic: Nic, attribute: int, method: int = 1, version: int = 1) -> bytes:
    """What QP1 answers to a request of performance management."""
    header = bytes((1, 4, version, method)) + bytes(4) + (0x1234).to_bytes(8, "big") + attribute.to_bytes(2, "big")
    arrive(nic, payload=header.ljust(MAD_BYTES, b"\0"))
    (burst,) = nic.produce(99)
    packet = parse(memoryview(b"".join(burst.buffers)))
    assert isinstance(packet, Packet)
    assert (burst.flow.dst, packet.dqpn, packet.sqpn, packet.qkey) == (THERE, 1, 1, GSI_QKEY)
    answer = bytes(packet.payload)
    assert (answer[1], answer[3], answer[8:16]) == (4, 0x81, header[8:16])
    return answer


@pytest.mark.parametrize("agent", [None, Agent()])
def test_performance_management_is_answered_with_and_without_an_agent(nic: Nic, agent: Agent | None) -> None:
    """IBA 16.1.3: ClassPortInfo and PortCounters, byte by byte; what else is asked has a status."""
    nic.gsi.agent = agent
    assert ask(nic, 0x01)[64:72] == bytes((1, 1, 0, 0, 0, 0, 0, 16))
    for name, value in (("tx_packets", 7), ("rx_packets", 1 << 40), ("tx_bytes", 402), ("rx_bytes", 8)):
        nic.counters.bump(name, value - nic.counters[name])
    nic.counters.bump("drop_bad_icrc", 70_000)
    nic.counters.bump("drop_tx_blocked", 3)
    nic.counters.bump("drop_bad_pkey", 300)
    counters = ask(nic, 0x12)[64:108]
    assert counters[:4] == bytes((0, 1, 0, 0))
    assert (counters[8:10], counters[14:16], counters[17]) == (b"\xff\xff", b"\0\3", 255)
    assert counters[24:40] == bytes.fromhex("00000064 00000002 00000007 ffffffff")
    assert ask(nic, 0x12, method=2)[4:6] == b"\0\x0c"
    assert ask(nic, 0x1D)[4:6] == b"\0\x0c"
    assert ask(nic, 0x12, version=2)[4:6] == b"\0\x04"
    if agent is not None:
        assert agent.heard == []


def test_an_answer_of_performance_management_is_not_answered(nic: Nic) -> None:
    arrive(nic, payload=bytes((1, 4, 1, 0x81)).ljust(MAD_BYTES, b"\0"))
    assert nic.produce(99) == []
