"""Runs of packets are framed and placed as the packets one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.spec.states import ST_RC, ST_UC
from rnic.transport.runs import segment_run
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow, tx_delta
from rnic.wire.packet import Packet, build, seal
from tests.scripts.conftest import NewScript, Script


@pytest.mark.slow
@given(
    count=st.integers(1, 20),
    mtu=st.sampled_from([256, 512, 4096]),
    psn=st.integers(0, 0xFFFFFF),
    first=st.integers(0, 40),
    ack_every=st.integers(0, 7),
    v6=st.booleans(),
)
def test_segment_run_equals_packets(count: int, mtu: int, psn: int, first: int, ack_every: int, v6: bool) -> None:
    size = 16 if v6 else 4
    flow = Flow(bytes(range(size)), bytes(range(50, 50 + size)), 50_000)
    data = bytes(i * 7 & 0xFF for i in range(count * mtu))
    expected = []
    for index in range(count):
        number = psn + index & 0xFFFFFF
        frame = build(
            0x07,
            dqpn=5,
            psn=number,
            ackreq=bool(ack_every) and number % ack_every == 0,
            payload=data[index * mtu : (index + 1) * mtu],
        )
        expected.append(seal(frame, flow, first + index))
    buffers: list[bytes | bytearray | memoryview] = []
    head = int.from_bytes(build(0x07, dqpn=5, psn=0)[:8], "big")
    length = mtu + 16
    segment_run(
        head, psn, count, memoryview(data), mtu, flow.seeds(length), first, tx_delta(length), ack_every, buffers
    )
    assert b"".join(buffers) == b"".join(expected)


def frames_of(s: Script, kinds: list[tuple[str, dict[str, Any]]], mutations: dict[int, tuple[str, int]]) -> list[bytes]:
    """A WRITE or SEND of ``kinds`` middles, or READ responses, with some packets changed."""
    frames = []
    for index, (name, fields) in enumerate(kinds):
        fields = dict(fields)
        what, value = mutations.get(index, ("", 0))
        if what == "bits":
            fields["fecn"] = True
        frame = bytearray(s.frame(name, 100 + index + (value if what == "psn" else 0), **fields))
        if what == "icrc":
            frame[-1] ^= 1
        frames.append(bytes(frame))
    return frames


def deliver(s: Script, burst: RxBurst, fast: bool) -> None:
    """As the device does it; only packets whose ICRC is right get in."""
    from rnic.wire.packet import parse

    at = 0
    while at < burst.length:
        taken = s.qp.receive_burst(burst, at, s.now) if fast else 0
        if taken:
            at += taken
            continue
        view = burst.buf[at : at + burst.segment]
        index = at // burst.segment
        if burst.flow.check(view, (burst.ident or 0) + index):
            packet = parse(view)
            assert isinstance(packet, Packet)
            packet.burst = burst
            s.qp.receive(packet, s.now)
        at += burst.segment


def state_of(s: Script) -> tuple[object, ...]:
    return (
        bytes(s.data),
        s.ctx.store(),
        bytes(s.qp.memory.qp),
        [(e.index, e.status, e.length) for e in s.send_cq.entries + s.recv_cq.entries],
        {k: v for k, v in s.counters.items() if k != "acks_coalesced"},
    )


@pytest.mark.slow
@given(
    kind=st.sampled_from(["WRITE", "SEND", "READ"]),
    service=st.sampled_from([ST_RC, ST_UC]),
    packets=st.integers(3, 12),
    ack_at=st.integers(1, 11),
    mutations=st.dictionaries(
        st.integers(1, 10),
        st.tuples(st.sampled_from(["psn", "icrc", "bits"]), st.sampled_from([-3, -1, 1, 5])),
        max_size=3,
    ),
    short=st.integers(0, 2),
)
def test_receive_burst_equals_packet_by_packet(
    new: NewScript,
    kind: str,
    service: int,
    packets: int,
    ack_at: int,
    mutations: dict[int, tuple[str, int]],
    short: int,
) -> None:
    if kind == "READ":
        service = ST_RC
    results = []
    for fast in (False, True):
        s = new(service)
        total = packets * 256
        kinds = []
        for index in range(packets):
            place = "FIRST" if index == 0 else "LAST" if index == packets - 1 else "MIDDLE"
            name = f"{'READ_RESPONSE' if kind == 'READ' else kind}_{place}"
            fields: dict[str, Any] = {"payload": bytes([index + 1]) * 256}
            if index == ack_at and kind != "READ":
                fields["ackreq"] = True
            if kind == "WRITE" and index == 0:
                fields |= {"va": s.va, "rkey": s.key, "dma_length": total - short * 256}
            kinds.append((name, fields))
        if kind == "SEND":
            s.recv(total - short * 256)
        if kind == "READ":
            s.post("READ", total - short * 256)
            s.packets()
        frames = frames_of(s, kinds, mutations)
        s.qp.receive(s_packet(s, frames[0]), s.now)
        middles = frames[1:-1]
        for frame_index, frame in enumerate(middles):
            assert len(frame) == 272, frame_index
        # sealed for ident 0 each: a burst whose idents the link cannot see differs, so seal them again
        sealed = [
            seal(frame[:-4], s.in_flow, i) if s.in_flow.check(frame) else frame for i, frame in enumerate(middles)
        ]
        deliver(s, s.burst(sealed), fast)
        s.qp.receive(s_packet(s, frames[-1]), s.now)
        results.append((state_of(s), s.out()))
    (slow_state, slow_out), (fast_state, fast_out) = results
    assert fast_state == slow_state
    assert len(fast_out) == len(slow_out)
    for one, other in zip(slow_out, fast_out, strict=True):
        # an ACK may cover more of the run than asked
        assert one.split()[0] == other.split()[0]
        assert one.split()[2:] == other.split()[2:]
        assert int(other.split()[1].rstrip("!")) >= int(one.split()[1].rstrip("!"))


def s_packet(s: Script, frame: bytes) -> Packet:
    from rnic.wire.packet import parse

    packet = parse(memoryview(frame))
    assert isinstance(packet, Packet)
    packet.burst = RxBurst(s.in_flow, packet.payload, 1, 1, 0)
    return packet


def test_a_run_behind_a_naked_gap_is_dropped_at_once(new: NewScript) -> None:
    s = new()
    s.inject("WRITE_FIRST", 100, va=s.va, rkey=s.key, dma_length=8192, payload=bytes(256))
    s.inject("WRITE_MIDDLE", 102, payload=bytes(256))
    frames = [s.frame("WRITE_MIDDLE", psn, payload=bytes(256)) for psn in (103, 104, 105, 101, 106, 107)]
    burst = s.burst([seal(frame[:-4], s.in_flow, i) for i, frame in enumerate(frames)])
    assert s.qp.receive_burst(burst, 0, s.now) == 3 * 272
    assert s.counters["drop_naked"] == 3
    assert s.qp.receive_burst(burst, 3 * 272, s.now) == 272  # the one that is waited for
    assert s.ctx.expected_psn == 102
    assert s.qp.receive_burst(burst, 4 * 272, s.now) == 0  # a new gap, to be NAKed
    assert s.counters["drop_naked"] == 3


@pytest.mark.parametrize("what", ["address", "frag", "state", "pkey"])
def test_receive_burst_leaves_strangers_to_the_full_path(new: NewScript, what: str) -> None:
    s = new()
    s.inject("WRITE_FIRST", 100, va=s.va, rkey=s.key, dma_length=4096, payload=bytes(256))
    extra = {"pkey": 0x7FFF} if what == "pkey" else {}
    frames = [seal(s.frame("WRITE_MIDDLE", 101 + i, payload=b"\1" * 256, **extra)[:-4], s.in_flow, i) for i in range(4)]
    burst = s.burst(frames)
    if what == "address":
        burst.flow = Flow(bytes(4), s.in_flow.dst, 50_000)
    elif what == "frag":
        burst.frag = 0
    elif what == "state":
        s.ctx.state = 6
    assert s.qp.receive_burst(burst, 0, s.now) == 0
    if what == "address":
        burst.flow = s.in_flow
        assert s.qp.receive_burst(burst, 0, s.now) == 4 * 272


def test_an_idle_queue_pair_is_small(new: NewScript) -> None:
    import tracemalloc

    from rnic.context.qp_context import QpContext
    from rnic.state.queue_pair import QP, QpMemory
    from rnic.transport.qp import QueuePair
    from rnic.transport.wqe import ReceiveRing, SendRing

    s = new()
    raw = s.ctx.store()
    base = s.qp.send_ring.base
    made = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            memory = QpMemory(s.host.arena, 64)
            place = memory.record + QP["sq_base"].byte
            send = SendRing(s.host.arena.memory, place, s.host.space, base, 64, 512)
            receive = ReceiveRing(s.host.space, base, 64, 64, lambda: 0, lambda head: None)
            qp = QueuePair(memory, QpContext(raw), s.host, send, receive, s.send_cq, s.recv_cq)
            qp.on_modify(2, 0)
            made.append(qp)
        each = (tracemalloc.get_traced_memory()[0] - before) / len(made)
    finally:
        tracemalloc.stop()
    assert each < 6_000
