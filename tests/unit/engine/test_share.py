"""What the engine does itself: the oracle holds it against the reference, and nothing is left to that."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.context.qpc import OPT_CREDITS
from rnic.engine import use
from rnic.spec.drops import DropReason
from rnic.spec.states import ST_RC, ST_UC, ST_UD
from rnic.wire.packet import parse, seal
from tests.scripts.conftest import Script
from tests.scripts.oracle import engine_script

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")


script = engine_script(Script)
"""A queue pair with the engine in front."""


def sent(s: Any) -> list[str]:
    """What it sends, all of it by the engine."""
    before = s.oracle.taken
    said: list[str] = s.out()
    assert s.oracle.taken == before + len(said)
    assert not s.oracle.executor.punted
    return said


def take(s: Any, name: str, psn: int, **fields: Any) -> None:
    """Have the engine take one packet."""
    before = s.oracle.taken
    s.inject(name, psn, **fields)
    assert s.oracle.taken == before + 1


def left(s: Any, frame: bytes) -> None:
    """Have the engine leave one packet alone."""
    assert s.oracle.receive(s.burst([frame])) == 0


@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
@pytest.mark.parametrize("pad", [1, 2, 3])
@pytest.mark.parametrize("psn", [99, 100, 105])
def test_pad_bytes_that_a_packet_has_no_room_for_make_it_none(service: int, pad: int, psn: int) -> None:
    """In order, as a duplicate or beyond a gap."""
    s = script(service)
    s.recv(700)
    fields = {"qkey": 0x1111} if service == ST_UD else {}
    frame = bytearray(s.frame("SEND_ONLY", psn, **fields)[:-4])
    frame[1] |= pad << 4
    packet = seal(frame, s.in_flow)
    assert parse(memoryview(packet)) is DropReason.TOO_SHORT
    left(s, packet)


@pytest.mark.parametrize("more", [1, 2, 3])
def test_a_packet_that_is_no_whole_words_is_none(more: int) -> None:
    s = script()
    s.recv(700)
    left(s, seal(s.frame("SEND_ONLY", 100, payload=bytes(8))[:-4] + bytes(more), s.in_flow))


def test_a_packet_of_another_partition_is_not_the_engine_s() -> None:
    s = script()
    s.recv(700)
    left(s, s.frame("SEND_ONLY", 100, pkey=0x7FFE))


LIST = [(0, 100), (5_000, 0), (1_000, 300), (4_000, 200)]


def test_sends_a_scatter_list() -> None:
    s = script()
    s.post("WRITE", 600, sges=LIST)
    assert sent(s) == ["WRITE_FIRST 100", "WRITE_MIDDLE 101", "WRITE_LAST 102!"]


def test_reads_into_a_scatter_list() -> None:
    s = script()
    s.post("READ", 600, sges=LIST)
    assert sent(s) == ["READ_REQUEST 100!"]
    data = bytes(range(200)) * 3
    for place, name in enumerate(("FIRST", "MIDDLE", "LAST")):
        take(s, f"READ_RESPONSE_{name}", 100 + place, payload=data[place * 256 : place * 256 + 256])
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.data[:100] + s.data[1_000:1_300] + s.data[4_000:4_200] == data


def test_a_list_that_contradicts_itself_is_the_reference_s() -> None:
    s = script()
    s.post("SEND", 601, sges=LIST)
    s.out()
    assert s.oracle.executor.punted
    assert s.send_cq.take() == ["LOC_QP_OP_ERR"]


@pytest.mark.parametrize(("operation", "now"), [("COMPARE_SWAP", 9), ("FETCH_ADD", 11)])
def test_answers_an_atomic_and_its_duplicate(operation: str, now: int) -> None:
    s = script()
    s.data[8:16] = (4).to_bytes(8, "little")
    for _ in range(2):
        take(s, operation, 100, va=s.va + 8, rkey=s.key, swap_add=9 if now == 9 else 7, compare=4)
        assert s.data[8:16] == now.to_bytes(8, "little")
        (answer,) = s.packets()
        assert (answer.psn, answer.orig) == (100, 4)
    assert s.counters["duplicate_atomics"] == 1


def test_answers_a_read_and_the_rest_of_it_once_more() -> None:
    s = script()
    take(s, "READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=700)
    whole = s.packets()
    assert b"".join(bytes(packet.payload) for packet in whole) == s.data[:700]
    take(s, "READ_REQUEST", 101, va=s.va + 256, rkey=s.key, dma_length=444)
    again = s.packets()
    assert [packet.psn for packet in again] == [101, 102]
    assert b"".join(bytes(packet.payload) for packet in again) == s.data[256:700]
    assert s.oracle.taken == 2 + 3 + 2


def test_a_read_whose_memory_goes_while_it_is_answered_is_the_reference_s() -> None:
    s = script()
    take(s, "READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=2_000)
    assert len(s.packets(4)) == 4
    s.host.memory.disable(s.key)
    before = s.oracle.taken
    assert s.out() == []
    assert s.oracle.taken == before
    assert s.out() == ["ACKNOWLEDGE 104 63"]


def test_says_and_heeds_credits() -> None:
    s = script(options=OPT_CREDITS)
    for _ in range(3):
        s.recv(100)
    take(s, "SEND_ONLY", 100, payload=b"x", ackreq=True)
    assert sent(s) == ["ACKNOWLEDGE 100 02"]
    for _ in range(3):
        s.post("SEND", 8)
    assert sent(s) == ["SEND_ONLY 100!", "SEND_ONLY 101!", "SEND_ONLY 102!"]
    take(s, "ACKNOWLEDGE", 100, syndrome=0x01, msn=1)
    take(s, "ACKNOWLEDGE", 102, syndrome=0x00, msn=3)
    s.post("SEND", 600)
    s.post("SEND", 8)
    assert sent(s) == ["SEND_FIRST 103!"]


def test_an_unreliable_message_that_lacks_a_packet_is_passed_over() -> None:
    s = script(ST_UC)
    s.recv(1_000)
    take(s, "SEND_FIRST", 100, payload=bytes(256))
    take(s, "SEND_LAST", 102, payload=bytes(8))
    take(s, "SEND_ONLY", 103, payload=b"whole")
    take(s, "WRITE_MIDDLE", 104, payload=bytes(256))
    assert s.recv_cq.take() == ["SUCCESS"]
    assert s.data[:5] == b"whole"
    assert (s.counters["drop_psn_gap"], s.counters["drop_bad_sequence"]) == (2, 1)
    s.post("WRITE_IMM", 300)
    assert sent(s) == ["WRITE_FIRST 100", "WRITE_LAST_IMM 101"]
    assert s.send_cq.take() == ["SUCCESS"]
