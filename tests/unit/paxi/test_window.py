"""The Python master and the register block, against a target in virtual time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rnic.paxi import AxiError
from rnic.paxi import bridge as b
from rnic.paxi.bridge import BridgeConfig
from rnic.paxi.registers import OFFSETS, PAXI_CTRL, PAXI_LATENCY, PAXI_STATUS, REGISTERS
from rnic.spec.axi import Burst, Resp
from rnic.spec.errors import VerbsError
from rnic.testing.paxi import PaxiPair

SILENCE: dict[str, Any] = {"match": {}, "action": "drop"}


def answered(code: int) -> Any:
    return pytest.raises(AxiError, match=f"answered with {Resp(code).name}")


def test_bursts_arrive_where_they_should() -> None:
    with PaxiPair(config=BridgeConfig(base=0x8000_0000, data_bits=64)) as pair:
        window = pair.window
        window.write(0x8000_0103, b"unaligned and narrow", 2)
        assert pair.memory[0x103 : 0x103 + 20] == b"unaligned and narrow"
        assert window.read(0x8000_0103, 2, 11) == b"unaligned and narrow\0"
        window.write(0x8000_0200, b"ABCDEFGH", 8, mask=[1, 0, 1, 1, 0, 0, 0, 1], id=9)
        assert pair.memory[0x200:0x208] == b"A\0CD\0\0\0H"
        assert window.read(0x8000_0200, 8, id=3) == b"A\0CD\0\0\0H"


@pytest.mark.slow
@pytest.mark.parametrize("width", [8, 64, 512, 1024])
def test_slices_are_the_memory(width: int) -> None:
    rng = random.Random(width)
    with PaxiPair(9_001, BridgeConfig(data_bits=width)) as pair:
        window, memory = pair.window, pair.memory
        assert len(window) == 9_001
        for first, end in [(0, 9_001), (1, 2), (4095, 4097), (7, 8_400), (9_000, 9_001), (5, 5)]:
            data = rng.randbytes(end - first)
            window[first:end] = data
            assert memory[first:end] == data
            assert window[first:end] == data
        assert window[:] == memory
        window[-1] = 0x5A
        assert (window[-1], window[9_000], memory[9_000]) == (0x5A, 0x5A, 0x5A)
        assert window[8_990:30_000] == memory[8_990:]


def test_a_slice_of_another_buffer_type() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed: pip install '.[numpy]'")
    with PaxiPair() as pair:
        pair.window[64:96] = np.arange(4, dtype=np.float64)
        assert np.frombuffer(pair.window[64:96]).tolist() == [0, 1, 2, 3]


def test_what_python_refuses() -> None:
    with PaxiPair() as pair:
        window = pair.window
        with pytest.raises(VerbsError, match="slices of a window have step 1"):
            window[0:8:2]
        with pytest.raises(VerbsError, match="3 bytes do not fill a slice of 4"):
            window[0:4] = b"abc"
        with pytest.raises(IndexError, match="index 65536 leaves the window of 65536 bytes"):
            window[1 << 16]
        with pytest.raises(VerbsError, match="size=3: use a power of two"):
            window.read(0, 3)
        with pytest.raises(VerbsError, match="257 beats: a burst has 1 to 256"):
            window.read(0, 1, 257)
        with pytest.raises(VerbsError, match="mask has 2 entries for 3 bytes"):
            window.write(0, b"abc", mask=[1, 1])
        with pytest.raises(VerbsError, match="a write of 0 bytes"):
            window.write(0, b"")
        assert pair.bridge.idle
        window.close()
        with pytest.raises(VerbsError, match="is closed; open a new one"):
            window.read(0, 4)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda window: window.read(0, 4, 17, burst=Burst.FIXED), Resp.SLVERR),
        (lambda window: window.write(0, bytes(12), 4, burst=Burst.WRAP), Resp.SLVERR),
        (lambda window: window.read(0xFFC, 4, 2), Resp.SLVERR),
        (lambda window: window.read(0, 128), Resp.SLVERR),
        (lambda window: window.read(1 << 16, 4), Resp.DECERR),
        (lambda window: window.write(1 << 16, bytes(8), 4), Resp.DECERR),
    ],
)
def test_error_answers(call: Any, code: int) -> None:
    with PaxiPair() as pair:
        with answered(code) as caught:
            call(pair.window)
        assert caught.value.resp == code
        assert pair.window.read(0, 4) == bytes(4)


def test_a_line_fill_and_a_fixed_burst() -> None:
    with PaxiPair() as pair:
        window = pair.window
        pair.memory[:64] = bytes(range(64))
        assert window.read(0x28, 8, 4, burst=Burst.WRAP) == bytes([*range(0x28, 0x40), *range(0x20, 0x28)])
        window.write(0x28, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef", 8, burst=Burst.WRAP)
        assert pair.memory[0x20:0x40] == b"YZabcdefABCDEFGHIJKLMNOPQRSTUVWX"
        window.write(0x41, b"abcDEFghi", 4, burst=Burst.FIXED)
        assert pair.memory[0x40:0x45] == b"\0ghi\0"
        assert window.read(0x41, 4, 3, burst=Burst.FIXED) == b"ghi" * 3


def test_the_remote_checks_range_and_rights() -> None:
    with PaxiPair(claimed=1 << 17, readonly=True) as pair:
        window = pair.window
        with answered(Resp.DECERR):
            window.write(0, b"abcd")
        with answered(Resp.DECERR):
            window.read(1 << 16, 4)
        assert window.read(0, 4) == bytes(4)
        assert window.counters["paxi_recoveries"] == 2
        assert pair.net.nodes[1].counters["fatal_naks_sent"] == 2


def test_a_refusal_whose_nak_never_arrives() -> None:
    """Nobody answers, and the target's queue pair is at an end: it says over TCP what it refused."""
    nak = {"match": {"direction": "rx", "syndrome": "NAK"}, "action": "drop"}
    with PaxiPair(claimed=1 << 17, faults=[nak]) as pair:
        for _ in range(2):
            with answered(Resp.DECERR):
                pair.window.write(1 << 16, b"abcd")
        assert pair.window.counters["paxi_lost"] == pair.far.stops == 2
        assert pair.window.counters["paxi_replays"] == 0


def test_a_packet_of_the_connection_before() -> None:
    """It arrives long after the connection was made anew, and must neither be stored nor take a PSN."""
    match = {"direction": "tx", "opcode": "RC_*WRITE*"}
    late = {"match": match, "nth": 2, "action": "delay", "delay_ns": 3_000_000_000}
    silence = {"match": match, "nth": 3, "every": 1, "times": 24, "action": "drop"}
    with PaxiPair(faults=[late, silence]) as pair:
        window = pair.window
        window.write(0, b"one.")
        window.write(64, b"old.")
        assert window.counters["paxi_lost"] > 0
        assert pair.net.clock.now_ns < 3_000_000_000
        pair.memory[64:68] = b"own."
        pair.net.run()
        assert pair.net.clock.now_ns > 3_000_000_000
        assert pair.memory[64:68] == b"own."
        window.write(64, b"new.")
        assert pair.memory[64:68] == b"new."


def test_memory_that_is_taken_back() -> None:
    with PaxiPair() as pair:
        assert pair.window.read(0, 4) == bytes(4)
        pair.shares._shared["memory"][0].close()
        with answered(Resp.DECERR):
            pair.window.read(0, 4)


def test_a_dead_remote_is_slverr_in_bounded_time() -> None:
    with PaxiPair(faults=[SILENCE]) as pair:
        pair.far.dead = True
        with answered(Resp.SLVERR):
            pair.window[0:40_000] = bytes(40_000)
        assert pair.net.clock.now_ns < 2_000_000_000
        now_ns = pair.net.clock.now_ns
        with answered(Resp.SLVERR):
            pair.window.read(0, 4)
        assert pair.net.clock.now_ns == now_ns, "known to be lost: no packet is sent"


def test_a_network_that_is_cut_while_the_target_answers_over_tcp() -> None:
    with PaxiPair(faults=[SILENCE]) as pair:
        with answered(Resp.SLVERR):
            pair.window.read(0, 4)
        assert pair.far.stops == b.MAX_RECOVERIES
        assert pair.net.clock.now_ns < 8_000_000_000


def test_an_outage_shorter_than_all_retries_is_not_seen() -> None:
    data = random.Random(4).randbytes(30_000)
    with PaxiPair(faults=[{**SILENCE, "times": 60}]) as pair:
        pair.window[100:30_100] = data
        assert pair.window[100:30_100] == data
        assert pair.window.counters["paxi_lost"] > 0
        assert pair.memory[100:30_100] == data


def test_software_makes_a_lost_connection_anew() -> None:
    with PaxiPair(faults=[{**SILENCE, "times": 25}]) as pair:
        registers = pair.window.registers
        registers.put("CTRL", 0)
        assert PAXI_CTRL.get(registers.get("CTRL").to_bytes(4, "little"), "self_recover") == 0
        with answered(Resp.SLVERR):
            pair.window.read(0, 4)
        assert pair.far.stops == 0
        assert (registers.get("RETRY_ERROR"), registers.get("INT_INDICATOR")) == (1, 1 << b.IRQ_RETRY_ERROR)
        assert registers.interrupt
        registers.put("CTRL", int.from_bytes(PAXI_CTRL.pack({"recover": 1, "self_recover": 1}), "little"))
        assert registers.get("RETRY_ERROR") == 0
        assert pair.window.read(0, 4) == bytes(4)
        assert registers.get("INT_INDICATOR") == 1 << b.IRQ_RETRY_ERROR | 1 << b.IRQ_RETRY_CLEARED
        registers.put("INT_INDICATOR", 1 << b.IRQ_RETRY_ERROR)
        assert registers.get("INT_INDICATOR") == 1 << b.IRQ_RETRY_CLEARED
        registers.put("INT_MASK", 1 << b.IRQ_RETRY_CLEARED)
        assert not registers.interrupt


# -------------------------------------------------------------------------------------------- registers


def test_registers_tell_what_the_bridge_is() -> None:
    config = BridgeConfig(data_bits=128, base=0x12_3456_7000, read_slots=3, write_slots=5)
    with PaxiPair(config=config) as pair:
        registers = pair.window.registers
        remote = pair.bridge.config.remote
        expected = {
            "WATERMARK": 1,
            "CTRL": 0x3040,
            "STATUS": 7,
            "FRAME_LENGTH": 4096,
            "WINDOW_BASE_LO": 0x3456_7000,
            "WINDOW_BASE_HI": 0x12,
            "WINDOW_SIZE_LO": 1 << 16,
            "REMOTE_LO": remote & 0xFFFF_FFFF,
            "REMOTE_HI": remote >> 32,
            "DATA_BITS": 128,
            "SLOTS": 5 << 16 | 3,
        }
        assert registers.snapshot() == dict.fromkeys(OFFSETS, 0) | expected
        assert registers.read32(0x044) == 0, "remote APB: not offered, reads 0"
        registers.write32(0x044, 1)
        for register in REGISTERS:
            if register.access == "RO":
                registers.write32(register.offset, 0xFFFF_FFFF)
        assert registers.snapshot() == dict.fromkeys(OFFSETS, 0) | expected


def test_counter_registers() -> None:
    with PaxiPair(claimed=1 << 17) as pair:
        window, get = pair.window, pair.window.registers.get
        window.write(0, bytes(100), mask=[1] * 50 + [0] + [1] * 49)
        window.read(0, 4, 3)
        with answered(Resp.DECERR):
            window.read(1 << 16, 4)
        with answered(Resp.SLVERR):
            window.read(0, 4, 3, burst=Burst.WRAP)
        names = ("READS", "WRITES", "READ_BYTES", "WRITE_BYTES", "REQUESTS", "SPLIT_PIECES", "SLVERRS", "DECERRS")
        assert [get(name) for name in names] == [3, 1, 12 + 4, 99, 4, 1, 1, 1]
        assert (get("RECOVERIES"), get("REPLAYS")) == (1, 0)


def test_latency_of_an_id() -> None:
    with PaxiPair(packet_ns=1_000, latency_ns=50_000) as pair:
        window, registers = pair.window, pair.window.registers
        registers.put("LATENCY_CTRL", 1 << 16 | 7)
        window.read(0x100, 4, id=6)
        assert registers.get("R_LATENCY") == 0
        window.read(0x200, 4, id=7)
        window.read(0x300, 4, id=7)
        window.write(0x400, b"abcd", id=7)
        for letter, addr in (("R", 0x200), ("W", 0x400)):
            result = registers.get(f"{letter}_LATENCY").to_bytes(4, "little")
            assert PAXI_LATENCY.get(result, "done") == 1
            assert 100_000 <= PAXI_LATENCY.get(result, "ns") < 120_000
            assert (registers.get(f"{letter}_LATENCY_ID"), registers.get(f"{letter}_LATENCY_ADDR_LO")) == (7, addr)
        assert registers.get("INT_INDICATOR") == 1 << b.IRQ_LATENCY_DONE


def test_soft_reset_answers_what_is_in_hand() -> None:
    from rnic.paxi.axi import Address

    with PaxiPair() as pair:
        bridge, registers = pair.bridge, pair.window.registers
        pair.window[0:100] = bytes(100)
        bridge.address_read(Address(1, 0, 3, 3))
        pair.port.progress()
        assert not PAXI_STATUS.get(registers.get("STATUS").to_bytes(4, "little"), "idle")
        registers.put("SOFT_RESET", 1)
        beats = list(iter(bridge.read_beat, None))
        assert [beat.resp for beat in beats] in ([Resp.SLVERR] * 4, [Resp.OKAY] * 4)
        assert (registers.get("WRITES"), registers.get("INT_INDICATOR"), registers.get("STATUS")) == (0, 0, 7)
        assert pair.window.read(0, 4) == bytes(4)


def test_soft_reset_of_a_lost_connection() -> None:
    with PaxiPair(faults=[{**SILENCE, "times": 25}]) as pair:
        registers = pair.window.registers
        pair.far.dead = True
        with answered(Resp.SLVERR):
            pair.window.read(0, 4)
        registers.put("SOFT_RESET", 1)
        assert registers.get("RETRY_ERROR") == 1, "the target is still silent"
        pair.far.dead = False
        registers.put("SOFT_RESET", 1)
        assert (registers.get("RETRY_ERROR"), registers.get("INT_INDICATOR"), registers.get("SLVERRS")) == (0, 0, 0)
        assert pair.window.read(0, 4) == bytes(4)
        with answered(Resp.DECERR):
            pair.window.read(1 << 16, 4)
        pair.window[0:5000] = bytes(5000)


@pytest.mark.parametrize(
    ("options", "offset", "said"),
    [
        ({"size": (1 << 16) + 1}, 0, "offset=0, size=65537 leave the remote's memory of 65536 bytes"),
        ({}, 1 << 16, "offset=65536, size=0 leave"),
        ({"base": (1 << 64) - 16}, 0, "base=18446744073709551600: 0 to"),
    ],
)
def test_windows_that_leave_the_memory(options: dict[str, int], offset: int, said: str) -> None:
    from rnic.paxi.port import Port
    from rnic.verbs.memory import PD

    with PaxiPair() as pair, pytest.raises(VerbsError, match=said):
        Port(
            PD(pair.net.nodes[0].ctx),
            pair.far,
            BridgeConfig(**options),
            offset,
            random.Random(1),
            pair.net.clock,
        )
