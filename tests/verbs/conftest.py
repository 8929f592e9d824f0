"""Pairs of queue pairs with the devices in this process, in virtual time, or in a NIC process, in real time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rnic
from rnic.engine import use
from rnic.link.base import parse_address
from rnic.runtime.attach import ask, connect
from rnic.testing import QpPair, own_network

SECONDS = 20.0
NET = own_network()
START_SECONDS = 180.0
"""Of a NIC process that starts on a machine that does much besides: it took 60 s at a load of 26 on two cores."""
QUIET_LOOKS = 3
"""Equal counters so many times in a row mean that nothing moves any more."""
LOST_S = 1.0
"""A packet that was sent and has not come for so long is lost."""


def start_nic(path: Path, *options: str) -> subprocess.Popen[bytes]:
    """A NIC process that answers in a runtime directory."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rnic.cli", "serve", *options], env=os.environ | {"RNIC_RUNTIME_DIR": str(path)}
    )
    end = time.monotonic() + START_SECONDS
    while (connection := connect(path)) is None:
        if time.monotonic() > end:
            process.kill()
            pytest.fail(f"no NIC process answered in {path} within {START_SECONDS:g} s")
        assert process.poll() is None
        time.sleep(0.01)
    connection.close()
    return process


@pytest.fixture(scope="session")
def serve() -> Callable[[Path], subprocess.Popen[bytes]]:
    return start_nic


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runtime directory of a NIC process that serves these tests, and is well at their end."""
    path = tmp_path_factory.mktemp("nic")
    path.chmod(0o700)
    process = start_nic(path)
    yield path
    process.terminate()
    assert process.wait(SECONDS) == 0


class FarNode:
    """A device of the NIC process; what :class:`rnic.testing.QpPair` asks of a node."""

    def __init__(self, directory: Path, address: str, port: int, bypass: bool) -> None:
        self.directory = directory
        self.ctx = rnic.open(address, port=port, directory=directory, bypass=bypass)
        assert self.ctx.bypass == bypass
        config = SimpleNamespace(mtu=4096, address=parse_address(address), port=port)
        self.nic = SimpleNamespace(config=config)

    @property
    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = ask(self.directory, self.ctx.name, "counters")
        return counters


def packets(counters: list[dict[str, int]] | None, way: str) -> int:
    """What all together have sent or taken."""
    return sum(each[f"{way}_packets"] for each in counters or ())


class FarNet:
    """Two devices of the NIC process; what :class:`rnic.testing.QpPair` asks of a net."""

    def __init__(self, directory: Path, ipv6: bool = False, bypass: bool = False) -> None:
        places = (
            [("::1", free_port()) for _ in range(2)] if ipv6 else [(f"{NET}.{number}", 4791) for number in (95, 96)]
        )
        self.nodes = [FarNode(directory, *place, bypass) for place in places]
        self.driving = False
        self._began = time.monotonic_ns()

    @property
    def clock(self) -> SimpleNamespace:
        return SimpleNamespace(now_ns=time.monotonic_ns() - self._began)

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = 0) -> bool:
        end = time.monotonic() + SECONDS
        if until is not None:
            while not until():
                assert time.monotonic() < end, "it never came about"
            return True
        before, same, since = None, 0, time.monotonic()
        # a packet that was sent and has not come is one that somebody, who may have no core just now, is to take
        while same < QUIET_LOOKS or (
            packets(before, "tx") != packets(before, "rx") and time.monotonic() < since + LOST_S
        ):
            assert time.monotonic() < end, "the NICs never rest"
            time.sleep(0.002)
            now = [node.counters for node in self.nodes]
            if now == before:
                same += 1
            else:
                before, same, since = now, 0, time.monotonic()
        return True

    def close(self) -> None:
        for node in self.nodes:
            node.ctx.close()


def free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::1", 0))
        return int(sock.getsockname()[1])


NewPair = Callable[..., QpPair]


def channels_pair(*args: str, settings: Mapping[str, object] | None = None, **options: object) -> QpPair:
    """A :class:`QpPair` whose devices are in channels mode (:mod:`rnic.device.channels`)."""
    return QpPair(*args, settings={**(settings or {}), "channels": True}, **options)  # type: ignore[arg-type]


@pytest.fixture(params=["here", "channels", "far", "bypass"])
def new_pair(request: pytest.FixtureRequest) -> NewPair:
    """Makes a :class:`QpPair`: its devices in this process, there in channels mode too, or in the NIC process.

    The last of these are driven by this process itself, as far as it can.
    """
    if request.param in ("here", "channels"):
        return QpPair if request.param == "here" else channels_pair
    if sys.platform != "linux":
        pytest.skip("a NIC process needs Linux")
    bypass = request.param == "bypass"
    if bypass and use.ENGINE is None:
        pytest.skip("needs the compiled engine")
    directory = request.getfixturevalue("directory")

    def far(*args: str, ipv6: bool = False, **options: Any) -> QpPair:
        net: Any = FarNet(directory, ipv6, bypass)
        return QpPair(*args, net=net, **options)

    return far
