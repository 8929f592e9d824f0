"""``rnic top`` in a terminal: its keys, on a NIC process at work."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rnic
from rnic import enums as e
from rnic.cli.options import qpn
from tests.verbs.conftest import start_nic
from tests.verbs.test_nic_process import NET, End

SECONDS = 40.0
ROWS, COLUMNS = 60, 160
_HOME = "\x1b[H"
"""Each picture begins here."""
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[()][0-9A-B]|[=>78])")


class Screen:
    """``rnic top`` on a terminal of its own, begun with interrupts ignored, as what a script runs in the background."""

    def __init__(self, directory: Path) -> None:
        self.master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self.terminal)
        self._said = ""
        env = {**os.environ, "RNIC_RUNTIME_DIR": str(directory), "TERM": "xterm-256color"}
        for size in ("COLUMNS", "LINES"):  # scapy, once a test has imported it, leaves the first behind
            env.pop(size, None)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "rnic.cli", "top", "--interval", "0.1"],
            env=env,
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
        )
        signal.signal(signal.SIGINT, before)

    def read(self) -> None:
        if select.select([self.master], [], [], 0.05)[0]:
            self._said += os.read(self.master, 65_536).decode(errors="replace")

    def picture(self) -> str:
        """The last one that is whole, as it is seen."""
        pictures = self._said.split(_HOME)
        return _ESCAPES.sub("", pictures[-2]) if len(pictures) > 2 else ""

    def until(self, looks_right: Callable[[str], bool]) -> str:
        end = time.monotonic() + SECONDS
        while not looks_right(self.picture()):
            assert time.monotonic() < end, f"the last picture:\n{self.picture()}"
            assert self.process.poll() is None, self._said[-3000:]
            self.read()
        return self.picture()

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def ended(self) -> int:
        end = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end
            self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.terminal)


def pairs(picture: str) -> list[str]:
    """QP numbers in the order in which they stand."""
    return re.findall(r"^ *(0x[0-9a-f]+) +(?:RTS|RESET|INIT|RTR)\b", picture, re.MULTILINE)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A NIC process with three queue pairs: the first does nothing, the other two talk. Their numbers."""
    tmp_path.chmod(0o700)
    process = start_nic(tmp_path)
    stop = threading.Event()
    try:
        with rnic.open(f"{NET}.93", port=4000, directory=tmp_path) as ctx:
            idle, a, b = End(ctx), End(ctx), End(ctx)
            for mine, peer in ((idle, idle), (a, b), (b, a)):
                mine.connect(peer)

            def talk() -> None:
                while not stop.is_set():
                    a.post(e.IBV_WR_RDMA_WRITE, 64, b)
                    a.wait()
                    stop.wait(0.001)

            thread = threading.Thread(target=talk)
            thread.start()
            try:
                yield tmp_path, [qpn(end.qp.qp_num) for end in (idle, a, b)]
            finally:
                stop.set()
                thread.join()
    finally:
        process.terminate()
        process.wait(SECONDS)


@pytest.fixture
def screen(busy: tuple[Path, list[str]]) -> Iterator[Screen]:
    shown = Screen(busy[0])
    yield shown
    shown.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_keys_sort_open_measure_and_end(screen: Screen, busy: tuple[Path, list[str]]) -> None:
    idle, a, b = busy[1]
    screen.until(lambda seen: pairs(seen) == [idle, a, b] and "keys: q number" in seen)
    screen.press("r")
    screen.until(lambda seen: pairs(seen)[-1:] == [idle] and len(pairs(seen)) == 3)
    screen.press("q")
    screen.until(lambda seen: pairs(seen) == [idle, a, b])
    screen.press(a.lstrip("0x"))
    opened = screen.until(lambda seen: f"queue pair {a}" in seen)
    assert "keys: q number" in opened, "the keys stay in sight after one was pressed"
    assert re.search(r"congestion\.outstanding_limit +\d+", opened), "names and values stand apart"
    assert re.search(r"send_ring\.tail +\d+", opened)
    screen.press("\r")
    screen.until(lambda seen: f"queue pair {a}" not in seen and "keys:" in seen)
    screen.press("1f9999")
    screen.until(lambda seen: "the NIC has none" in seen)
    screen.press("\x1b")
    screen.until(lambda seen: "the NIC has none" not in seen)
    screen.press("l")
    screen.until(lambda seen: "p50 us" in seen)
    screen.press("l")
    screen.until(lambda seen: "p50 us" not in seen and pairs(seen) == [idle, a, b])
    screen.press("x")
    assert screen.ended() == 0
    assert termios.tcgetattr(screen.terminal) == screen.before


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_control_c_ends_it_and_leaves_the_terminal_as_it_was(screen: Screen) -> None:
    screen.until(lambda seen: "keys: q number" in seen)
    screen.press("\x03")
    assert screen.ended() == 0
    assert termios.tcgetattr(screen.terminal) == screen.before
