"""A window over RC Link: in virtual time over bad networks, and on sockets."""

from __future__ import annotations

import errno
import os
import random
import threading
from dataclasses import replace
from typing import Any

import pytest

import rnic.paxi
from rnic.cm.line_socket import ExchangeError
from rnic.link.faults import FaultRates
from rnic.paxi.axi import AxiError
from rnic.paxi.check import check
from rnic.paxi.rclink import PIECE, Driver, RcEnd, parse_end
from rnic.spec.axi import Burst, Resp
from rnic.spec.errors import VerbsError
from rnic.testing import own_network
from rnic.testing.paxi import RcPaxiPair

ADDR = f"{own_network()}.77"
BAD = FaultRates(drop=0.03, duplicate=0.05, reorder=0.05, delay=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("rates", [FaultRates(), BAD], ids=["good", "bad"])
def test_every_byte_is_right(rates: FaultRates) -> None:
    with RcPaxiPair(tx=rates, seed=3, latency_ns=5_000, packet_ns=300) as pair:
        outcome = check(pair.window, random.Random(1), 150)
        assert outcome.wrong == []
        assert outcome.reads > 20
        assert outcome.writes > 20
        assert pair.bridge.idle
        assert pair.bridge.counters["paxi_lost"] == 0


def test_bursts_as_over_rocev2() -> None:
    with RcPaxiPair() as pair:
        window = pair.window
        pair.memory[:64] = bytes(range(64))
        assert window.read(0x28, 8, 4, burst=Burst.WRAP) == bytes([*range(0x28, 0x40), *range(0x20, 0x28)])
        window.write(0x200, b"ABCDEFGH", 8, mask=[1, 0, 1, 1, 0, 0, 0, 1])
        assert pair.memory[0x200:0x208] == b"A\0CD\0\0\0H"
        data = random.Random(4).randbytes(10_000)
        window[5:10_005] = data
        assert (window[5:10_005], pair.memory[5:10_005]) == (data, data)
        assert (window.registers.get("FRAME_LENGTH"), window.port.mtu) == (PIECE, 1_328)


def test_what_the_target_refuses() -> None:
    with RcPaxiPair(claimed=1 << 17, readonly=True) as pair:
        for call in (lambda: pair.window.write(0, b"abcd"), lambda: pair.window.read(1 << 16, 4)):
            with pytest.raises(AxiError) as caught:
                call()
            assert caught.value.resp == Resp.DECERR
            assert pair.window.read(0, 4) == bytes(4)
        assert pair.far.stops == 2


@pytest.mark.parametrize("after", [1, 5, 20, 60])
def test_requests_of_a_connection_that_broke_are_carried_out_once(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is cut under writes and reads, and comes back: the target's count says what is sent again."""
    with RcPaxiPair(seed=9, latency_ns=2_000) as pair:
        fabric, meet, carried = pair.net.fabric, pair.far.meet, [0]
        targets = fabric.targets

        def reach(address: bytes, port: int) -> Any:
            carried[0] += 1
            return targets(address, port) if carried[0] <= after else ()

        def met(mine: RcEnd) -> RcEnd:
            carried[0] = -1_000_000
            return meet(mine)

        monkeypatch.setattr(fabric, "targets", reach)
        monkeypatch.setattr(pair.far, "meet", met)
        data = random.Random(2).randbytes(1 << 15)
        pair.window[: 1 << 15] = data
        assert pair.memory[: 1 << 15] == data
        assert pair.window[: 1 << 15] == data
        counters = pair.bridge.counters
        assert (counters["paxi_lost"], counters["paxi_recoveries"], counters["paxi_abandoned"]) == (1, 1, 0)


def test_a_remote_that_stays_away_is_slverr(monkeypatch: pytest.MonkeyPatch) -> None:
    with RcPaxiPair() as pair:
        monkeypatch.setattr(pair.net.fabric, "targets", lambda address, port: ())
        pair.far.dead = True
        with pytest.raises(AxiError) as caught:
            pair.window[:] = bytes(1 << 16)
        assert caught.value.resp == Resp.SLVERR
        assert pair.bridge.counters["paxi_abandoned"] == 1


def test_a_peers_end_is_checked() -> None:
    good = RcEnd(bytes((10, 0, 0, 1)), 4793, 3, 0xABC, 100)
    assert parse_end(good.to_line(), "peer") == good
    for wrong, named in (
        (b'{"rnic": 1, "paxi": "x"}', "sent paxi='x'"),
        (b'{"rnic": 1, "paxi": "rclink", "address": "0.0.0.0"}', "sent address='0.0.0.0'"),
        (replace(good, qpid=16).to_line(), "sent qpid=16"),
        (replace(good, udp_port=70_000).to_line(), "sent udp_port=70000"),
        (replace(good, psn=4_096).to_line(), "sent psn=4096"),
        (replace(good, size=-1).to_line(), "sent size=-1"),
        (b"nonsense", "does not speak"),
    ):
        with pytest.raises(ExchangeError, match=named):
            parse_end(wrong, "peer")


@pytest.mark.slow
def test_on_sockets_beside_a_window_over_rocev2() -> None:
    memory = bytearray(1 << 16)
    before = set(threading.enumerate())
    with rnic.paxi.serve(memory, ADDR, 0, udp_port=0) as target:
        with (
            rnic.paxi.open_window(ADDR, target.port, transport="rclink") as one,
            rnic.paxi.open_window(ADDR, target.port, udp_port=0) as other,
        ):
            assert "RC Link" in repr(one)
            one[100:9_000] = bytes(range(250)) * 35 + bytes(150)
            assert other[100:9_000] == memory[100:9_000] == one[100:9_000]
            other[0:4] = b"both"
            assert one[0:4] == b"both"
            assert check(one, random.Random(1), 60).wrong == []
        with pytest.raises(VerbsError, match=r"transport='ib': use rocev2 or rclink"):
            rnic.paxi.open_window(ADDR, target.port, transport="ib")
        with pytest.raises(VerbsError, match="leave the remote's memory"):
            rnic.paxi.open_window(ADDR, target.port, transport="rclink", offset=1 << 20)
    for _ in range(1500):  # waits: threads of windows end after their sockets
        if not (left := [thread.name for thread in threading.enumerate() if thread not in before]):
            break
        threading.Event().wait(0.02)
    assert left == []


def test_descriptors_beyond_those_of_select() -> None:
    resource = pytest.importorskip("resource", reason="this system has no resource limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1400:
        pytest.skip(f"this system allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < 1024:
            taken.append(os.dup(taken[0]))
        driver = Driver(ADDR, random.Random(1))
        try:
            assert min(driver._udp.filenos()) > 1024
            driver.wait(lambda: False, 0.05)  # it sleeps a few times, and so does the thread
            assert driver._thread.is_alive()
        finally:
            driver.close()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thread_that_ended_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def turn() -> bool:
        raise ZeroDivisionError("a mistake of our own")

    driver = Driver(ADDR, random.Random(1), turn)
    try:
        with pytest.raises(VerbsError, match=r"has ended by ZeroDivisionError\('a mistake of our own'\)") as raised:
            driver.wait(lambda: False, 10)
        assert (raised.value.errno, type(raised.value.__cause__)) == (errno.EIO, ZeroDivisionError)
        driver._thread.join(10)
        assert [record.message for record in caplog.records] == [
            "the thread of an RC Link endpoint has ended: please report it, with what follows"
        ]
    finally:
        driver.close()


@pytest.mark.slow
def test_a_target_that_closes_is_slverr() -> None:
    with rnic.paxi.serve(bytearray(4096), ADDR, 0, udp_port=0) as target:
        window = rnic.paxi.open_window(ADDR, target.port, transport="rclink")
        assert window.read(0, 8) == bytes(8)
        target.close()
        with pytest.raises(AxiError) as caught:
            window.read(0, 8)
        assert caught.value.resp == Resp.SLVERR
        window.close()
        window.close()
