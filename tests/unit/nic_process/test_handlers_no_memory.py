"""A NIC process that has no memory left at some moment of a program's OPEN: it refuses that."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import socket
import struct
from collections.abc import Iterator
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
from rnic.testing import own_network

_testcapi = pytest.importorskip("_testcapi", reason="this Python cannot be made to have no memory")
ADDRESS = f"{own_network()}.73"
MODES = {"slot": attach.DMA_SLOT | attach.DMA_PROC_MEM, "process": attach.DMA_PROC_MEM}
STEPS = 12
NEVER = 1 << 30


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


def open_device(process: NicProcess, mode: int, fails_at: int) -> int:
    """Connect, and OPEN the device while one allocation fails; the errno of the answer, and the connection ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, open("/proc/self/mem", "r+b", 0) as memory:
        sock.connect(str(process.directory / attach.SOCKET_NAME))
        process._dispatch(1)
        sock.send(struct.pack("<II", attach.MSG_HELLO, 1) + attach.HELLO.pack(HELLO))
        process._dispatch(1)
        assert struct.unpack_from("<III", sock.recv(4096))[2] == 0
        (client,) = process.clients.values()
        body = attach.OPEN.pack({"name": int.from_bytes(b"rnic0", "little"), "mode": mode, "page": 4096, "copier": 0})
        socket.send_fds(sock, [struct.pack("<II", attach.MSG_OPEN, 2) + body], [memory.fileno()])
        _testcapi.set_nomemory(fails_at, fails_at + 1)
        try:
            process.connections._guarded_read(client)
        finally:
            _testcapi.remove_mem_hooks()
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it had no memory for the answer
            answer, fds, _, _ = socket.recv_fds(sock, 65536, 16)
            for fd in fds:
                os.close(fd)
    process.connections.drop(client)
    return struct.unpack_from("<III", answer)[2] if answer else errno.EPIPE


def links() -> Iterator[str]:
    """Yield what this process's descriptors lead to."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{name}")


HELLO = {"magic": attach.MAGIC, "version": attach.VERSION, "pid": 0}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_an_open_without_memory_leaves_no_shared_memory_and_no_context(process: NicProcess, mode: str) -> None:
    rng = random.Random(1)
    bypass = process.devices["rnic0"].bypass
    assert open_device(process, MODES[mode], NEVER) == 0

    def kept() -> tuple[int, ...]:
        gc.collect()
        device = process.devices["rnic0"].runtime.nic
        shared = sum("/memfd:" in link for link in links())
        return shared, len(bypass.slots), len(device.resources.uars), len(process.clients)

    before, ended = kept(), 0
    for step in range(3 * STEPS):
        at = 60 + 7 * step if step < 2 * STEPS else rng.randrange(1 << rng.randrange(6, 16))
        code = open_device(process, MODES[mode], at)
        assert code in (0, errno.ENOMEM, errno.EPIPE), at
        ended += code != 0
        assert kept() == before, at
    assert ended > STEPS
    assert open_device(process, MODES[mode], NEVER) == 0
