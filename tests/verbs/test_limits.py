"""A NIC process that runs out of what the system gives: it says so to whom it concerns, and serves all others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rnic
from rnic.cm.manager import manager_of
from rnic.cm.service import MAX_CHANNELS
from rnic.nic_process import client_memory as program
from rnic.nic_process import connections as connections_module
from rnic.nic_process.client import EventFd, drain
from rnic.nic_process.client_memory import MAX_SHARED_BYTES, CopiedMemory, SharedFiles
from rnic.runtime.attach import ProcessConnection, ask, connect
from rnic.runtime.directory import ProcessError
from rnic.spec import attach
from rnic.spec.errors import VerbsError
from rnic.verbs import CQ, MR, PD, CompChannel
from rnic.verbs import enums as e
from tests.attempts import best_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a NIC process needs Linux")
ADDRESS = "127.0.0.1"
SECONDS = 20.0
Serve = Callable[[Path], "subprocess.Popen[bytes]"]


class Nic:
    """A NIC process of its own, whose limits a test may change."""

    def __init__(self, directory: Path, serve: Serve) -> None:
        self.directory = directory
        self.process = serve(directory)
        self.pid = self.process.pid

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def allow(self, more: int | None) -> None:
        """Let it have so many descriptors more than it has, or as many as it likes."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        soft = hard if more is None else self.descriptors() + more
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (soft, hard))

    def settled(self, count: int) -> bool:
        end = time.monotonic() + SECONDS
        while self.descriptors() != count:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def connect(self) -> ProcessConnection:
        connection = connect(self.directory)
        assert connection is not None
        return connection

    def counters(self) -> dict[str, int]:
        return dict(ask(self.directory, "", "counters"))


@pytest.fixture
def nic(tmp_path: Path, serve: Serve) -> Iterator[Nic]:
    tmp_path.chmod(0o700)
    made = Nic(tmp_path, serve)
    yield made
    made.allow(None)
    made.process.terminate()
    assert made.process.wait(SECONDS) == 0


def work(directory: Path) -> None:
    """Whatever makes descriptors: a device, a window, memory, event queues, shared files."""
    with rnic.open(ADDRESS, port=0, directory=directory) as ctx:
        pd = PD(ctx)
        cq = CQ(ctx, 16, channel=CompChannel(ctx))
        shared = MR(pd, 1 << 16, e.IBV_ACCESS_LOCAL_WRITE)
        own = MR(pd, bytearray(4096), e.IBV_ACCESS_LOCAL_WRITE)
        assert cq is not None
        assert shared.lkey != own.lkey


@pytest.mark.slow
def test_no_descriptors_at_any_moment(nic: Nic) -> None:
    """However many are left: all of it works, or the refusal says what is missing; and nothing is lost for good."""
    bystander = nic.connect()
    bystander.request(attach.MSG_LIST)
    before = nic.descriptors()
    work(nic.directory)
    assert nic.settled(before)
    words: list[str] = []
    for more in range(40):
        nic.allow(more)
        try:
            work(nic.directory)
        except rnic.RnicError as error:
            words.append(str(error))
        else:
            break
        assert bystander.request(attach.MSG_LIST) is not None
        nic.allow(None)
        assert nic.settled(before), f"{nic.descriptors() - before} descriptors are lost"
    assert 5 < len(words) < 39
    assert [line for line in words if "descriptors" not in line and "Too many open files" not in line] == []
    nic.allow(None)
    work(nic.directory)
    bystander.close()


@pytest.mark.slow
def test_more_programs_than_descriptors(nic: Nic) -> None:
    nic.allow(10)
    served: list[ProcessConnection] = []
    words = ""
    for _ in range(60):
        try:
            served.append(nic.connect())
        except ProcessError as error:
            words = str(error)
    assert len(served) >= 10
    assert f"NIC process {nic.pid} is full" in words
    assert "ulimit -n" in words
    for connection in served:
        connection.request(attach.MSG_LIST)
        connection.close()
    nic.connect().close()
    assert nic.process.poll() is None


@pytest.mark.slow
def test_more_programs_than_are_served(nic: Nic) -> None:
    served = [nic.connect() for _ in range(connections_module.MAX_CLIENTS)]
    for _ in range(40):
        with pytest.raises(ProcessError, match=f"is full: it serves {connections_module.MAX_CLIENTS} connections"):
            connect(nic.directory)
    served.pop().close()
    time.sleep(0.1)
    nic.connect().close()
    for connection in served:
        connection.close()


@pytest.mark.slow
def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    command = ["sh", "-c", 'ulimit -S -n 100 && exec "$@"', "sh", sys.executable, "-m", "rnic.cli", "serve"]
    process = subprocess.Popen(command, env=os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)})
    end = time.monotonic() + SECONDS
    while (connection := connect(tmp_path)) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    connection.close()
    process.terminate()
    process.wait(SECONDS)
    assert soft == hard or soft > 10_000


# ------------------------------------------------------------------------- what programs share with it


def test_a_shared_eventfd_whose_flags_are_cleared() -> None:
    """Programs hold the same open file: one that clears O_NONBLOCK, empties or fills it makes nobody wait."""
    fire = EventFd()
    fd = fire.fd
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    drain(fd)
    fire()
    assert os.eventfd_read(fd) == 1
    os.eventfd_write(fd, 2**64 - 2)
    fire()
    drain(fd)
    drain(fd)
    fire()
    assert os.eventfd_read(fd) == 1
    fire.close()


@pytest.mark.slow
def test_the_nic_goes_on_beside_a_cleared_flag(nic: Nic) -> None:
    with rnic.open(ADDRESS, port=0, directory=nic.directory) as ctx:
        wake = ctx.driver._wake.fd  # type: ignore[union-attr]
        fcntl.fcntl(wake, fcntl.F_SETFL, fcntl.fcntl(wake, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        with socket.socket(fileno=os.dup(wake)) as sock, contextlib.suppress(BlockingIOError):
            for _ in range(10_000):  # as many as it holds
                sock.send(b"\0", socket.MSG_DONTWAIT)
        assert nic.counters() is not None
        work(nic.directory)


@pytest.mark.slow
def test_channels_that_a_program_has_no_descriptor_for_are_closed(nic: Nic) -> None:
    with rnic.open(ADDRESS, port=0, directory=nic.directory) as ctx:
        manager = manager_of(ctx)
        before = nic.descriptors()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            for _ in range(MAX_CHANNELS + 1):
                with pytest.raises(VerbsError, match="raise `ulimit -n`"):
                    manager.channel()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert nic.descriptors() == before
        manager.channel().close()


@pytest.mark.slow
def test_open_that_fails_keeps_nothing(nic: Nic) -> None:
    connection = nic.connect()
    name = connection.request(attach.MSG_ADD, b'{"address": "127.0.0.1", "port": 0}')[0]
    before = nic.descriptors()
    with open(os.devnull, "rb") as file:
        for mode in (attach.DMA_COPIER, attach.DMA_PROC_MEM, 7):
            for fds in ([file.fileno()], [], [file.fileno()] * 2):
                if mode == attach.DMA_PROC_MEM and len(fds) == 1:
                    continue  # any file will do: what it brings is its own trouble
                with pytest.raises(VerbsError):
                    connection.request(attach.MSG_OPEN, name + struct.pack("<III", mode, 4096, 0), fds)
    assert nic.settled(before)
    connection.close()


def test_sparse_files_use_up_no_addresses() -> None:
    """Also what was unshared counts for as long as somebody holds a view of it."""
    memory = SharedFiles()
    half = MAX_SHARED_BYTES // 2
    fd = os.memfd_create("sparse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, half)
    memory.share(0, half, fd, 0, True)
    memory.share(half, half, fd, 0, True)
    with pytest.raises(VerbsError) as caught:
        memory.share(2 * half, 4096, fd, 0, True)
    assert caught.value.errno == errno.ENOSPC
    held = memory.views(0, 8)
    memory.unshare(0)
    with pytest.raises(VerbsError):
        memory.share(2 * half, 4096, fd, 0, True)
    del held
    memory.share(2 * half, 4096, fd, 0, True)
    memory.clear()
    os.close(fd)


@pytest.mark.parametrize("state", ["asleep", "gone"])
def test_a_mute_copier_costs_next_to_nothing(state: str) -> None:
    """Its thread does nothing although a request lies there; a busy one has a second."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sleeper = subprocess.Popen(["sleep", "60"])
    if state == "gone":
        sleeper.kill()
        sleeper.wait()
    else:
        while Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.001)

    def cost() -> float:
        memory = CopiedMemory(os.dup(ours.fileno()), sleeper.pid, sleeper.pid)
        began = time.monotonic()
        assert not memory.read(4096, bytearray(8))
        assert not memory.write(4096, bytes(8))
        took = time.monotonic() - began
        memory.close()
        return took

    assert best_of(10, cost, below=0.1, why="this process, too, may have no core for a while") < 0.1
    ours.close()
    theirs.close()
    sleeper.kill()
    sleeper.wait()


def test_a_slow_copier_is_waited_for() -> None:
    """It is at work: on a machine with much to do that takes its time."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = (
        "import socket, sys, time; sock = socket.socket(fileno=int(sys.argv[1])); sock.recv(100);\n"
        "end = time.monotonic() + 0.2\nwhile time.monotonic() < end: pass\nsock.send(bytes(4) + b'12345678')"
    )
    busy = subprocess.Popen([sys.executable, "-S", "-c", script, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    memory = CopiedMemory(ours.detach(), busy.pid, busy.pid)
    time.sleep(0.2)
    got = bytearray(8)
    assert memory.read(4096, got)
    assert got == b"12345678"
    memory.close()
    theirs.close()
    busy.wait()


def test_a_copier_that_is_busy_and_mute_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks as if it worked: after its second nobody waits for it again."""
    limit = 0.2
    monkeypatch.setattr(program, "_COPY_SECONDS", limit)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"], stdout=-1) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        memory = CopiedMemory(ours.detach(), busy.pid, busy.pid)
        began = time.monotonic()
        assert not memory.read(4096, bytearray(8))
        assert time.monotonic() - began >= limit
        theirs.setblocking(False)
        assert len(theirs.recv(100)) == attach.COPY.size
        for _ in range(100):
            assert not memory.read(4096, bytearray(8))
            assert not memory.write(4096, bytes(8))
            assert not memory.covers(4096, 8, True)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)  # it was asked nothing more, so nobody waited
        busy.kill()
    memory.close()
    theirs.close()
