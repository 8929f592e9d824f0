"""Rings and regions in another process: every byte goes through the DMA port, and may fault (design.md "driver")."""

from __future__ import annotations

import pytest

from rnic.rings.sqe import FLAG_INLINE, FLAG_SIGNALED
from rnic.spec.states import ERR, RTS, SQE, ST_UD
from tests.scripts.conftest import NewScript, Script


def lose(s: Script) -> None:
    """The process is gone: nothing of its memory can be reached any more."""
    s.host.space.read = lambda va, buf: False  # type: ignore[method-assign]
    s.host.space.write = lambda va, data: False  # type: ignore[method-assign]


@pytest.fixture
def far(new: NewScript) -> NewScript:
    return lambda *args, **fields: new(*args, far=True, **fields)


def test_send_lists_and_inline(far: NewScript) -> None:
    s = far()
    s.post("SEND", 600, sges=[(0, 300), (1000, 300)])
    s.post("SEND", 16, flags=FLAG_SIGNALED | FLAG_INLINE, inline=bytes(range(16)))
    s.post("FETCH_ADD", 8)
    packets = s.packets()
    assert b"".join(p.payload for p in packets[:3]) == s.data[:300] + s.data[1000:1300]
    assert packets[3].payload == bytes(range(16))
    s.inject("ATOMIC_ACKNOWLEDGE", 104, orig=0x0102)
    assert s.data[:8] == (0x0102).to_bytes(8, "little")
    assert s.send_cq.take() == ["SUCCESS"] * 3


def test_receive_into_it(far: NewScript) -> None:
    s = far()
    s.recv(600)
    s.inject("SEND_FIRST", 100, payload=b"\1" * 256)
    s.inject("SEND_LAST", 101, payload=b"\2" * 8)
    assert s.data[:264] == b"\1" * 256 + b"\2" * 8
    s.inject("READ_REQUEST", 102, va=s.va, rkey=s.key, dma_length=1024)
    assert b"".join(p.payload for p in s.packets()) == s.data[:1024]
    burst = s.burst([s.frame("WRITE_MIDDLE", 104 + i, payload=bytes(256)) for i in range(3)])
    assert s.qp.receive_burst(burst, 0, s.now) == 0


def test_send_from_lost_memory(far: NewScript) -> None:
    s = far()
    s.post("SEND", 600)
    s.packets(1)
    lose(s)
    s.packets()
    assert s.send_cq.take() == ["LOC_PROT_ERR"]
    s = far()
    s.post("SEND", 10)
    s.post("SEND", 10)
    lose(s)
    s.packets()
    assert s.send_cq.take() == ["LOC_PROT_ERR", "WR_FLUSH_ERR"]  # the descriptors themselves are gone


def test_ud_from_lost_memory(far: NewScript) -> None:
    s = far(ST_UD)
    s.post("SEND", 10)
    real = s.host.space.read
    s.host.space.read = lambda va, buf: not s.va <= va < s.va + len(s.data) and real(va, buf)  # type: ignore[method-assign]
    s.packets()
    assert s.send_cq.take() == ["LOC_PROT_ERR"]
    assert s.ctx.state == SQE


def test_a_stale_read_of_lost_memory_harms_nobody(far: NewScript) -> None:
    """A program has unmapped what it registered, and the network delivers a request for it a second time."""
    s = far()
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=600)
    assert len(s.packets()) == 3
    real = s.host.space.read
    s.host.space.read = lambda va, buf: not s.va <= va < s.va + len(s.data) and real(va, buf)  # type: ignore[method-assign]
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=256)
    assert s.out() == ["ACKNOWLEDGE 100 63"]  # for one whose first answer was lost
    assert s.ctx.state == RTS
    assert s.counters["fatal_naks_sent"] == 1
    s.inject("WRITE_ONLY", 103, ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 103 1f"]
    s.inject("READ_REQUEST", 104, va=s.va, rkey=s.key, dma_length=256)
    assert [*s.out(), *s.out()] == ["ACKNOWLEDGE 104 63"]  # a new one is another matter
    assert s.ctx.state == ERR


@pytest.mark.parametrize(
    ("name", "nak"), [("SEND_ONLY", 0x63), ("WRITE_ONLY", 0x63), ("FETCH_ADD", 0x63), ("READ_REQUEST", 0x63)]
)
def test_the_peer_is_told(far: NewScript, name: str, nak: int) -> None:
    s = far()
    s.recv(100)
    real = s.host.space.read
    s.host.space.read = lambda va, buf: not s.va <= va < s.va + len(s.data) and real(va, buf)  # type: ignore[method-assign]
    s.host.space.write = lambda va, data: False  # type: ignore[method-assign]
    payload = b"1234" if "ONLY" in name else b""
    s.inject(name, 100, va=s.va, rkey=s.key, dma_length=len(payload) or 8, payload=payload)
    (reply,) = [*s.packets(), *s.packets()]
    assert (reply.psn, reply.syndrome) == (100, nak)
    assert reply.msn == (name == "READ_REQUEST")  # which counts once it is begun
    assert s.ctx.state == ERR


def test_lists_with_bytes_on_both_sides_of_a_packet(new: NewScript) -> None:
    s = new()
    s.post("READ", 600, sges=[(0, 300), (1000, 300)])
    s.packets()
    for index, name in enumerate(("FIRST", "MIDDLE", "LAST")):
        s.inject(f"READ_RESPONSE_{name}", 100 + index, payload=bytes([index + 1]) * (256 if index < 2 else 88))
    assert s.data[:300] == b"\1" * 256 + b"\2" * 44
    assert s.data[1000:1300] == b"\2" * 212 + b"\3" * 88


@pytest.mark.parametrize("segments", [1, 8])
@pytest.mark.parametrize("sizes", [(1500, 1501), (4096, 10), (2000, 2000, 7)])
def test_large_and_padded_frames(new: NewScript, segments: int, sizes: tuple[int, ...]) -> None:
    s = new(mtu=5, segments=segments)
    for size in sizes:
        s.post("SEND", size)
    assert [bytes(p.payload) for p in s.packets()] == [bytes(s.data[:size]) for size in sizes]
