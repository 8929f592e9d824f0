"""A NIC process that has no memory left at some moment of a message: it refuses that, and keeps nothing of it."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import random
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.link.base import parse_address
from rnic.link.udp import UdpLink
from rnic.nic_process.bypass_programs import refusal
from rnic.nic_process.process import NicProcess
from rnic.runtime.loop import Runtime
from rnic.spec import attach
from rnic.spec import commands as cmd
from rnic.testing import own_network

_testcapi = pytest.importorskip("_testcapi", reason="this Python cannot be made to have no memory")
ADDRESS = f"{own_network()}.73"
OTHER = f"{own_network()}.74"
MODES = {"slot": attach.DMA_SLOT | attach.DMA_PROC_MEM, "process": attach.DMA_PROC_MEM}
STEPS = 12
NEVER = 1 << 30
HELLO = {"magic": attach.MAGIC, "version": attach.VERSION, "pid": 0}


def make(address: str, port: int | None, options: dict[str, object]) -> Runtime:
    link = UdpLink(address, port or 0)
    config = NicConfig(parse_address(address), port=link.port, name="rnic0", log_max_qps=4, max_mrs=64)
    return Runtime(Nic(config, rng=random.Random(1)), link)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[NicProcess]:
    why = refusal(parse_address(ADDRESS))
    if why:
        pytest.skip(f"programs have no slots here: {why}")
    tmp_path.chmod(0o700)
    process = NicProcess(tmp_path, make)
    process.devices.add(ADDRESS, None, {}, None, "rnic0")
    yield process
    process.close()


class Program:
    """A program's end of a connection, and the process's client; messages are answered at once."""

    def __init__(self, process: NicProcess) -> None:
        self.process = process
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(str(process.directory / attach.SOCKET_NAME))
        before = set(process.clients)
        process._dispatch(1)
        (number,) = set(process.clients) - before
        self.client = process.clients[number]
        assert self.ask(attach.MSG_HELLO, attach.HELLO.pack(HELLO)) == 0

    def ask(self, kind: int, body: bytes = b"", fds: Sequence[int] = (), fails_at: int = NEVER) -> int:
        """Send a message, which is handled while one allocation fails; the errno of the answer."""
        socket.send_fds(self.sock, [struct.pack("<II", kind, 1) + body], fds)
        _testcapi.set_nomemory(fails_at, fails_at + 1)
        try:
            self.process.connections._guarded_read(self.client)
        finally:
            _testcapi.remove_mem_hooks()
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it had no memory for the answer
            answer, got, _, _ = socket.recv_fds(self.sock, 65536, 16)
            for fd in got:
                os.close(fd)
        return int(struct.unpack_from("<III", answer)[2]) if answer else errno.EPIPE

    def open(self, mode: int, fails_at: int = NEVER) -> int:
        body = attach.OPEN.pack({"name": int.from_bytes(b"rnic0", "little"), "mode": mode, "page": 4096, "copier": 0})
        with open("/proc/self/mem", "r+b", 0) as memory:
            return self.ask(attach.MSG_OPEN, body, [memory.fileno()], fails_at)

    def close(self) -> None:
        self.sock.close()
        self.process.connections.drop(self.client)


def open_device(process: NicProcess, mode: int, fails_at: int) -> int:
    """Connect, and OPEN the device while one allocation fails; the errno of the answer, and the connection ends."""
    program = Program(process)
    code = program.open(mode, fails_at)
    program.close()
    return code


def links() -> Iterator[str]:
    """Yield what this process's descriptors lead to."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{name}")


@pytest.fixture
def no_traceback_stays(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracebacks that pytest keeps hold what they were about: it gets none."""
    caplog.set_level(logging.CRITICAL + 1, "rnic")
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)


class Strays:
    """What stays of messages that were handled without memory.

    Now and then that is Python's own doing, and nothing refers to what stays: a call that has no memory for its frame
    keeps its arguments, recvmsg the descriptors for which it has no list. It comes to one in a hundred messages, and
    to one program's things at a time. A mistake in rnic itself shows at every allocation behind what it forgets.
    """

    def __init__(self, process: NicProcess) -> None:
        self.process = process
        self.before = kept(process)
        self.count = 0

    def look(self, at: int) -> None:
        """Count what stays since the last time."""
        after = kept(self.process)
        more = Counter(after[0]) - Counter(self.before[0])
        assert after[1:] == self.before[1:], at
        assert max(more.values(), default=0) <= 1, (at, more)
        self.count += bool(more)
        self.before = after


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("no_traceback_stays", "short_collections")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_open_without_memory_leaves_no_shared_memory_and_no_context(
    process: NicProcess, mode: str, own_errors: list[tuple[str, Exception]]
) -> None:
    rng = random.Random(1)
    assert open_device(process, MODES[mode], NEVER) == 0

    strays, ended = Strays(process), 0
    for step in range(3 * STEPS):
        at = 60 + 7 * step if step < 2 * STEPS else rng.randrange(1 << rng.randrange(6, 16))
        code = open_device(process, MODES[mode], at)
        assert code in (0, errno.ENOMEM, errno.EPIPE), at
        ended += code != 0
        own_errors.clear()
        strays.look(at)
    assert ended > STEPS
    assert strays.count <= 2
    assert open_device(process, MODES[mode], NEVER) == 0


def kept(process: NicProcess) -> tuple[list[str], int, int, int]:
    """What is open, and what the process has: slots, contexts, clients."""
    gc.collect()
    device = process.devices["rnic0"]
    contexts = device.runtime.nic.resources.uars
    return sorted(map(kind_of, links())), len(device.bypass.slots), len(contexts), len(process.clients)


def kind_of(link: str) -> str:
    """A link without the number of its socket or pipe."""
    return re.sub(r"\d+", "N", link)


MESSAGES: dict[str, tuple[int, bytes, int]] = {
    "HELLO": (attach.MSG_HELLO, attach.HELLO.pack(HELLO), 0),
    "LIST": (attach.MSG_LIST, b"", 0),
    "COMMAND": (attach.MSG_COMMAND, struct.pack("<HHIQI4x", cmd.QUERY_DEV_LIM, 0, 0, 0, 0), 0),
    "VECTOR": (attach.MSG_VECTOR, bytes(4), 0),
    "SHARE": (attach.MSG_SHARE, struct.pack("<QQQI", 1 << 40, 4096, 0, 1), 1),
    "UNSHARE": (attach.MSG_UNSHARE, struct.pack("<Q", 1 << 40), 0),
    "ADD": (attach.MSG_ADD, json.dumps({"address": OTHER, "port": 0}).encode(), 0),
    "INFO": (attach.MSG_INFO, b"rnic0 counters", 0),
    "INFO devices": (attach.MSG_INFO, b" devices", 0),
    "FAULT": (attach.MSG_FAULT, json.dumps({"device": "rnic0", "event": []}).encode(), 0),
    "REGISTER": (attach.MSG_REGISTER, attach.REGISTER.pack({"offset": 0, "store": 0, "value": 0}), 0),
    "SHM_RING": (attach.MSG_SHM_RING, attach.SHM_RING.pack({"qpn": 0, "cookie_va": 4096}), 0),
    "EXPLAIN": (attach.MSG_EXPLAIN, b"", 2),
    "CAPTURE": (attach.MSG_CAPTURE, b"rnic0", 3),
    "PUNT": (attach.MSG_PUNT, attach.PUNT.pack(dict.fromkeys((f.name for f in attach.PUNT.fields), 0)), 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("no_traceback_stays", "short_collections")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_no_message_without_memory_leaves_anything(
    process: NicProcess, mode: str, name: str, own_errors: list[tuple[str, Exception]]
) -> None:
    """One allocation fails; now and then Python itself makes a SystemError of that, which ends the connection."""
    kind, body, which = MESSAGES[name]
    memfd = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd, 4096)
    source, writing = os.pipe()
    fds = [[], [memfd], [1], [writing]][which]
    program = Program(process)
    assert program.open(MODES[mode]) == 0
    program.ask(kind, body, fds)  # what is made once for all programs
    program.close()
    strays, failed = Strays(process), 0
    for at in [*range(40), *range(40, 200, 13)]:
        program = Program(process)
        assert program.open(MODES[mode]) == 0
        failed += program.ask(kind, body, fds, at) in (errno.ENOMEM, errno.EPIPE)
        program.close()
        own_errors.clear()
        strays.look(at)
    for fd in (memfd, source, writing):
        os.close(fd)
    assert failed
    assert strays.count <= 1
