"""Target and window over UDP and TCP of this machine."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import rnic.paxi
from rnic.arrays.handshake import parse_endpoint
from rnic.cm.line_socket import ExchangeError, dial
from rnic.paxi.bridge import BridgeConfig
from rnic.spec.axi import Resp
from rnic.spec.errors import VerbsError
from rnic.testing import own_network

ADDR = f"{own_network()}.72"


def test_a_window_onto_a_target() -> None:
    memory = bytearray(100_000)
    data = random.Random(1).randbytes(50_000)
    with rnic.paxi.serve(memory, ADDR, 0) as target, rnic.paxi.open_window(ADDR, target.port) as window:
        window[7:50_007] = data
        assert memory[7:50_007] == data
        assert window[7:50_007] == data
        assert target.windows == target.opened == 1
        window.close()
        assert target.wait(1, 5)


def test_two_windows_onto_parts_of_it() -> None:
    memory = bytearray(4096)
    with (
        rnic.paxi.serve(memory, ADDR, 0) as target,
        rnic.paxi.open_window(ADDR, target.port, config=BridgeConfig(size=16, base=0x100), offset=8) as one,
        rnic.paxi.open_window(ADDR, target.port, config=BridgeConfig(data_bits=8)) as two,
    ):
        one.write(0x100, b"0123456789abcdef")
        assert two[8:24] == b"0123456789abcdef"
        with pytest.raises(rnic.paxi.AxiError, match="DECERR"):
            one.read(0x110, 1)
        with pytest.raises(VerbsError, match="offset=4097"):
            rnic.paxi.open_window(ADDR, target.port, offset=4097)


def test_rights_are_the_targets_to_check() -> None:
    memory = bytearray(b"look, do not touch")
    with rnic.paxi.serve(memory, ADDR, 0, readonly=True) as target, rnic.paxi.open_window(ADDR, target.port) as window:
        for _ in range(3):
            with pytest.raises(rnic.paxi.AxiError, match="DECERR"):
                window[0:4] = b"hand"
            assert window[:] == b"look, do not touch"


@pytest.mark.slow
def test_a_target_that_closes() -> None:
    with rnic.paxi.serve(bytearray(64), ADDR, 0) as target, rnic.paxi.open_window(ADDR, target.port) as window:
        assert window[0] == 0
        target.close()
        with pytest.raises(rnic.paxi.AxiError, match="SLVERR"):
            window.read(0, 4)
        assert window.registers.get("RETRY_ERROR") == 1


def test_threads_take_turns() -> None:
    memory = bytearray(8 * 1024)
    with rnic.paxi.serve(memory, ADDR, 0) as target, rnic.paxi.open_window(ADDR, target.port) as window:

        def work(index: int) -> None:
            for _ in range(5):
                window[index * 1024 : index * 1024 + 1024] = bytes([index]) * 1024

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert memory == b"".join(bytes([index]) * 1024 for index in range(8))


def test_lines_that_are_no_windows() -> None:
    with rnic.paxi.serve(bytearray(64), ADDR, 0) as target:
        for line in (b"GET / HTTP/1.1\n", b'{"rnic": 1, "paxi": "stop"}\n', b"[" * 50_000 + b"\n"):
            lines = dial(ADDR, target.port)
            lines.send(line)
            with pytest.raises(ExchangeError, match="refused: window"):
                parse_endpoint(lines.receive(), "target")
            lines.close()
        with rnic.paxi.open_window(ADDR, target.port) as window:
            assert window[:] == bytes(64)


def test_more_windows_than_a_target_serves() -> None:
    with rnic.paxi.serve(bytearray(64), ADDR, 0) as target:
        idle = [socket.create_connection((ADDR, target.port)) for _ in range(rnic.paxi.target.MAX_WINDOWS)]
        with pytest.raises(ExchangeError, match=r"64 windows are open|hung up"):
            rnic.paxi.open_window(ADDR, target.port)
        for sock in idle:
            sock.close()


def test_a_listener_that_is_no_target() -> None:
    memories = {"one": bytearray(8), "two": bytearray(8)}
    with (
        rnic.listen(ADDR, 0).share(**memories) as listener,
        pytest.raises(ExchangeError, match="shares 2 buffers: a PAXI target shares one"),
    ):
        rnic.paxi.open_window(ADDR, listener.port)


SERVE = """
import sys
import rnic.paxi
with rnic.paxi.serve(bytearray(1 << 16), sys.argv[1], 0) as target:
    print(target.port, flush=True)
    target.wait()
"""


def write_for_ever(window: rnic.paxi.Window) -> None:
    while True:
        window[0:60_000] = bytes(60_000)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_target_process_that_dies_or_hangs(how: signal.Signals) -> None:
    """SLVERR in bounded time, for what is in hand and for all that follows."""
    with subprocess.Popen([sys.executable, "-c", SERVE, ADDR], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            with rnic.paxi.open_window(ADDR, int(process.stdout.readline()), udp_port=0) as window:
                window[0:60_000] = bytes(range(250)) * 240
                process.send_signal(how)
                start = time.monotonic()
                with pytest.raises(rnic.paxi.AxiError) as caught:
                    write_for_ever(window)
                assert caught.value.resp == Resp.SLVERR
                assert time.monotonic() - start < 15
                with pytest.raises(rnic.paxi.AxiError, match="SLVERR"):
                    window.read(0, 4)
                assert window.registers.get("RETRY_ERROR") == 1
        finally:
            process.kill()
