"""The verbs API on devices of a NIC process: the same operations as in this process, and what a death leaves."""

from __future__ import annotations

import ctypes
import errno
import gc
import itertools
import json
import mmap
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

import rnic
from rnic import enums as e
from rnic.cli.serve import make_runtime
from rnic.cm import manager as manager_module
from rnic.engine import use
from rnic.nic_process import idle_backoff as backoff_module
from rnic.nic_process import process as process_module
from rnic.nic_process.client import Client
from rnic.nic_process.process import NicProcess
from rnic.runtime.attach import ask, connect
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.runtime.remote import RemoteDriver, wanted
from rnic.spec import attach
from rnic.spec import commands as cmd
from rnic.spec.errors import VerbsError
from rnic.testing import own_network
from rnic.verbs import (
    CQ,
    GID,
    MR,
    PD,
    QP,
    SGE,
    AHAttr,
    CompChannel,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    send_dtype,
)
from tests.attempts import best_of
from tests.forks import child_says, held_by_a_thread

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
SECONDS = 20.0
NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""
Serve = Callable[[Path], "subprocess.Popen[bytes]"]
needs_engine = pytest.mark.skipif(use.ENGINE is None, reason="needs the compiled engine")


class End:
    def __init__(self, ctx: Context, size: int = 1 << 18, own: bool = False) -> None:
        self.ctx = ctx
        self.pd = PD(ctx)
        self.channel = CompChannel(ctx)
        self.cq = CQ(ctx, 256, channel=self.channel)
        self.mr = MR(self.pd, size if own else bytearray(size), RIGHTS)
        self.buf = memoryview(self.mr.buffer)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(64, 64, 2, 2, 64), self.cq, self.cq, None))

    def connect(self, peer: End) -> None:
        attr = QPAttr()
        attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer = e.IBV_MTU_4096, 16, 16, 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.gso = 14, 7, 7, True
        attr.qp_access_flags, attr.dest_qp_num = RIGHTS & ~e.IBV_ACCESS_LOCAL_WRITE, peer.qp.qp_num
        attr.ah_attr = AHAttr(GlobalRoute(GID(peer.ctx.address)), udp_dport=peer.ctx.udp_port)
        self.qp.to_rts(attr)

    def post(self, opcode: int, length: int, there: End | None = None, **more: int) -> None:
        wr = SendWR(5, opcode, sg=[SGE(self.mr.buf, length, self.mr.lkey)], send_flags=e.IBV_SEND_SIGNALED)
        if there is not None and "add" in more:
            wr.set_wr_atomic(there.mr.rkey, there.mr.buf, more["add"], 0)
        elif there is not None:
            wr.set_wr_rdma(there.mr.rkey, more.get("va", there.mr.buf))
        self.qp.post_send(wr)

    def wait(self) -> rnic.WC:
        end = time.monotonic() + SECONDS
        while True:
            count, found = self.cq.poll(1)
            if count:
                return found[0]
            assert time.monotonic() < end, "no completion came"


@pytest.fixture(params=[False, pytest.param(True, marks=needs_engine)], ids=["process", "bypass"])
def bypass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Programs whose NIC process takes everything, and those that run the engine themselves."""
    monkeypatch.setenv("RNIC_BYPASS", str(int(request.param)))
    return bool(request.param)


WAYS = ["here", "far", "far shared", *(pytest.param(way, marks=needs_engine) for way in ("bypass", "bypass shared"))]


@pytest.fixture(params=WAYS)
def ends(request: pytest.FixtureRequest, directory: Path) -> Iterator[tuple[End, End]]:
    """Connected ends: with the devices in this process, and in the NIC process with memory by DMA or shared.

    With ``bypass`` this process drives those itself.
    """
    if request.param == "here":
        ctxs = [Context(addr="127.0.0.1", port=0), Context(addr="127.0.0.1", port=0)]
    else:
        bypass = request.param.startswith("bypass")
        ctxs = [rnic.open(f"{NET}.{number}", port=4000, directory=directory, bypass=bypass) for number in (91, 92)]
        assert [ctx.bypass for ctx in ctxs] == [bypass, bypass]
    a, b = (End(ctx, own=request.param.endswith("shared")) for ctx in ctxs)
    a.connect(b)
    b.connect(a)
    yield a, b
    for ctx in ctxs:
        ctx.close()


@pytest.mark.parametrize("size", [1, 8, 4097, 200_001])
@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_SEND], ids=str)
def test_bytes_arrive(ends: tuple[End, End], size: int, opcode: int) -> None:
    a, b = ends
    data = Random(size).randbytes(size)
    (b if opcode == e.IBV_WR_RDMA_READ else a).buf[:size] = data
    if opcode == e.IBV_WR_SEND:
        b.qp.post_recv(RecvWR(9, 1, [SGE(b.mr.buf, size, b.mr.lkey)]))
    a.post(opcode, size, b)
    assert a.wait().status == e.IBV_WC_SUCCESS
    if opcode == e.IBV_WR_SEND:
        got = b.wait()
        assert (got.wr_id, got.status, got.byte_len) == (9, e.IBV_WC_SUCCESS, size)
    assert (a if opcode == e.IBV_WR_RDMA_READ else b).buf[:size] == data


def test_atomics_add(ends: tuple[End, End]) -> None:
    a, b = ends
    for number in range(5):
        a.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, b, add=3)
        assert a.wait().status == e.IBV_WC_SUCCESS
        assert struct.unpack_from("=Q", a.buf)[0] == 3 * number
    assert struct.unpack_from("=Q", b.buf)[0] == 15


def test_completion_events_wake_a_sleeper(ends: tuple[End, End]) -> None:
    a, b = ends
    for _ in range(3):
        a.cq.req_notify()
        a.post(e.IBV_WR_RDMA_WRITE, 8, b)
        assert select.select([a.channel.fileno()], [], [], SECONDS)[0]
        assert a.channel.get_cq_event() is a.cq
        assert a.wait().status == e.IBV_WC_SUCCESS


@pytest.mark.parametrize("what", ["channel", "device"])
def test_who_waits_is_told_that_it_was_closed(ends: tuple[End, End], what: str) -> None:
    a, _ = ends
    said: list[BaseException] = []

    def wait() -> None:
        try:
            a.channel.get_cq_event() if what == "channel" else a.ctx.get_async_event()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            said.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    a.qp.close()
    (a.channel if what == "channel" else a.ctx).close()
    thread.join(SECONDS)
    (error,) = said
    assert isinstance(error, VerbsError)
    assert error.errno == (errno.EINVAL if what == "channel" else errno.ENODEV)
    assert "is closed: open" in str(error)


@pytest.mark.parametrize("post", ["post_send", "post_recv", "post_batch"])
def test_posts_to_a_device_that_is_gone_say_so(directory: Path, bypass: bool, post: str) -> None:
    """Its queue pairs are in RESET then, which is not why nothing can be posted."""
    ctx = rnic.open(f"{NET}.91", port=4000, directory=directory, bypass=bypass)
    end = End(ctx)
    end.connect(end)
    assert isinstance(ctx.driver, RemoteDriver)
    ctx.driver.connection.sock.shutdown(socket.SHUT_RDWR)
    limit = time.monotonic() + SECONDS
    while end.qp.qp_state != e.IBV_QPS_RESET:
        assert time.monotonic() < limit, "the NIC process has not noticed"
        time.sleep(0.005)
    posts: dict[str, Callable[[], object]] = {
        "post_send": lambda: end.post(e.IBV_WR_SEND, 8),
        "post_recv": lambda: end.qp.post_recv(RecvWR(1, 1, [SGE(end.mr.buf, 8, end.mr.lkey)])),
        "post_batch": lambda: end.qp.post_batch(np.zeros(1, send_dtype())),
    }
    with pytest.raises(VerbsError) as error:
        posts[post]()
    assert error.value.errno == errno.ENODEV
    ctx.close()


def test_a_wild_remote_address_costs_that_queue_pair_alone(ends: tuple[End, End]) -> None:
    a, b = ends
    a.post(e.IBV_WR_RDMA_WRITE, 8, b, va=0x10)
    assert a.wait().status == e.IBV_WC_REM_ACCESS_ERR
    assert a.qp.qp_state == e.IBV_QPS_ERR
    other, peer = End(a.ctx), End(b.ctx)
    other.connect(peer)
    peer.connect(other)
    other.post(e.IBV_WR_RDMA_WRITE, 8, peer)
    assert other.wait().status == e.IBV_WC_SUCCESS


@pytest.mark.parametrize("taken", [False, True], ids=["with the command", "just before"])
def test_what_was_posted_before_a_command_has_left_before_it(tmp_path: Path, taken: bool) -> None:
    """As with a device, which sees doorbells at once, however late the NIC process comes to look at either."""
    process = NicProcess(tmp_path, make_runtime)
    posts = threading.Event()
    refused: list[VerbsError] = []

    def program() -> None:
        with rnic.open(f"{NET}.93", port=4000, directory=tmp_path) as ctx:
            end = End(ctx)
            end.qp = QP(end.pd, QPInitAttr(e.IBV_QPT_UC, None, QPCap(64, 64, 2, 2, 64), end.cq, end.cq, None))
            end.connect(end)
            posts.set()
            for _ in range(6):
                end.post(e.IBV_WR_RDMA_WRITE, 8, end)
            with pytest.raises(VerbsError) as caught:
                end.cq.resize(1)
            refused.append(caught.value)

    thread = threading.Thread(target=program)
    thread.start()
    backoff = backoff_module.IdleBackoff(0)
    try:
        while not posts.is_set():
            process._iterate(backoff, None)
        # nobody looks at doorbells until the command is there as well
        assert select.select([client.sock for client in process.clients.values()], [], [], SECONDS)[0]
        if taken:
            process._doorbells()  # a turn may end with this
        process._dispatch(0)
        while thread.is_alive():
            process._iterate(backoff, None)
    finally:
        process.close()
    assert [error.errno for error in refused] == [errno.EINVAL]


# ------------------------------------------------------------------------------------ what is refused


def test_rights_are_those_of_the_programs_pages(directory: Path) -> None:
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as ctx:
        pd = PD(ctx)
        with Path(sys.executable).open("rb") as file, mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ) as pages:
            with MR(pd, pages, 0) as region:
                assert region.lkey
            # past the checks of this side, the device looks for itself
            mapping = ctx.driver.map(pages)
            ctx.driver.map = lambda *_, **__: mapping  # type: ignore[method-assign]
            with pytest.raises(VerbsError, match="are not all mapped and writable"):
                MR(pd, pages, e.IBV_ACCESS_LOCAL_WRITE)
            del ctx.driver.map
            ctx.driver.unmap(mapping)


@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ], ids=["write", "read"])
@pytest.mark.parametrize("rights", [mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_EXEC], ids=["r", "rx"])
def test_what_a_program_made_read_only_by_now_is_not_stored_to(
    directory: Path, bypass: bool, rights: int, opcode: int
) -> None:
    """Registered while it was writable: a peer's WRITE and the answer to a READ of one's own find it as it is now."""
    libc = ctypes.CDLL(None, use_errno=True)
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as ctx:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        kept = b if opcode == e.IBV_WR_RDMA_WRITE else a
        # not shared: those the kernel itself would not write through
        pages = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages[:4] = b"kept"
        kept.mr = MR(kept.pd, pages, RIGHTS)
        a.buf = memoryview(a.mr.buffer)
        at = ctypes.c_void_p(kept.mr.buf)
        assert libc.mprotect(at, ctypes.c_size_t(mmap.PAGESIZE), rights) == 0
        time.sleep(0.1)  # before Linux 6.11 what was looked up is kept for some milliseconds
        try:
            a.post(opcode, 8, b)
            wc = a.wait()
        finally:
            assert libc.mprotect(at, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE) == 0
        assert pages[:8] == b"kept" + bytes(4)
        assert wc.status in (e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_OP_ERR, e.IBV_WC_LOC_PROT_ERR), wc
        other, peer = End(ctx), End(ctx)
        other.connect(peer)
        peer.connect(other)
        other.post(e.IBV_WR_RDMA_WRITE, 8, peer)
        assert other.wait().status == e.IBV_WC_SUCCESS


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ((attach.MSG_COMMAND, bytes(4)), "4 bytes of body"),
        ((attach.MSG_COMMAND, bytes(attach.COMMAND.size)), "no device is open"),
        ((attach.MSG_OPEN, b"nothing".ljust(attach.OPEN.size, b"\0")), "'nothing' is not there"),
        ((attach.MSG_VECTOR, b"\xff" * 4), "out of range"),
        ((attach.MSG_SHARE, b"\xff" * attach.SHARE.size), "open device"),
        ((attach.MSG_ADD, b"[]"), "JSON object"),
        ((attach.MSG_ADD, b"{}{}"), "Extra data"),
        ((attach.MSG_ADD, b"[" * 60_000), "nested too deeply|Expecting value"),  # by the Python
        ((attach.MSG_ADD, json.dumps({"address": "8.8.8.8"}).encode()), "8.8.8.8"),
        ((attach.MSG_ADD, json.dumps({"address": "127.0.0.1", "port": "x"}).encode()), "port='x'"),
        ((attach.MSG_ADD, json.dumps({"address": "127.0.0.1", "congestion": 5}).encode()), "congestion=5 is no str"),
        ((attach.MSG_ADD, json.dumps({"address": "127.0.0.1", "source_ports": []}).encode()), "'source_ports'"),
        (
            (attach.MSG_ADD, b'{"address": "127.0.0.1", "parameters": {"QP_NUM": "x"}}'),
            "parameter QP_NUM='x' is no int",
        ),
        ((attach.MSG_INFO, b"nonsense"), "nonsense"),
        ((attach.MSG_FAULT, b'{"device": ["x"], "event": []}'), "is no device"),
        ((attach.MSG_FAULT, b'{"event": ["port-down", "%ss"]}' % (b"9" * 400)), "too long for a duration"),
        ((777, b""), "777 is unknown"),
    ],
)
def test_bad_messages_are_answered(directory: Path, message: tuple[int, bytes], says: str) -> None:
    rnic.open(f"{NET}.91", port=4000, directory=directory).close()
    connection = connect(directory)
    assert connection is not None
    with pytest.raises(VerbsError, match=says):
        connection.request(*message)
    assert connection.request(attach.MSG_LIST)[0][:5] == b"rnic0"
    connection.close()


def test_a_message_holds_several_commands(directory: Path) -> None:
    """They run in order until one fails; answers say how far they came. Nothing runs of one that breaks off."""
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as ctx:
        connection = ctx.driver.connection  # type: ignore[union-attr]

        def message(*commands: tuple[int, int, int]) -> bytes:
            names = ("op", "op_modifier", "in_modifier")
            return b"".join(attach.COMMAND.pack(dict(zip(names, each, strict=True))) for each in commands)

        def told(*commands: tuple[int, int, int]) -> list[tuple[int, int]]:
            answer = connection.request(attach.MSG_COMMAND, message(*commands))[0]
            found, at = [], 0
            while at < len(answer):
                said = attach.COMMAND_REPLY.unpack(answer, at)
                found.append((said["status"], said["out_param"]))
                at += attach.COMMAND_REPLY.size + said["outbox_bytes"]
            return found

        allocate, free = (cmd.ALLOC_RES, 0, cmd.RES_PD), (cmd.FREE_RES, cmd.RES_PD, 0xFFFF)
        limits = (cmd.QUERY_DEV_LIM, 0, 0)
        answers = told(allocate, limits, allocate, free, allocate)
        assert [status for status, _ in answers] == [cmd.ST_OK] * 3 + [cmd.ST_BAD_INDEX]
        first, second = answers[0][1], answers[2][1]
        assert first != second
        assert told((*free[:2], first), (*free[:2], second)) == [(cmd.ST_OK, 0)] * 2
        with pytest.raises(VerbsError, match="ends 5 bytes after"):
            connection.request(attach.MSG_COMMAND, message(allocate) + bytes(5))
        assert told(allocate) == [(cmd.ST_OK, second + 1)], "numbers come round, and none was taken meanwhile"


def test_a_message_that_trips_the_nic_process_leaves_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever we forgot to expect of a program."""
    served = NicProcess(tmp_path, lambda *_: pytest.fail("no device is wanted"))
    monkeypatch.setitem(served.handlers.table, attach.MSG_LIST, lambda *_: dict[int, int]()[0])
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        client = Client(there, os.getpid(), None)
        client.greeted = True
        before = descriptors(os.getpid())
        socket.send_fds(here, [struct.pack("<II", attach.MSG_LIST, 1)], [here.fileno()] * 2)
        with pytest.raises(KeyError):
            served.connections.read(client)
        assert descriptors(os.getpid()) == before
    finally:
        here.close()
        there.close()
        served.close()


def test_a_second_one_in_a_directory_is_told_what_to_do(tmp_path: Path) -> None:
    served = NicProcess(tmp_path, lambda *_: pytest.fail("no device is wanted"))
    try:
        with pytest.raises(
            ProcessError, match=r"runs already in .*: programs use that one.* another RNIC_RUNTIME_DIR$"
        ):
            NicProcess(tmp_path, lambda *_: pytest.fail("no device is wanted"))
    finally:
        served.close()


def test_messages_are_looked_for_between_empty_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one that comes after the first of them waited for all the others."""
    served = NicProcess(tmp_path, lambda *_: pytest.fail("no device is wanted"))
    now, looks = itertools.count(0, 10_000), []
    clock = SimpleNamespace(monotonic_ns=lambda: next(now), monotonic=time.monotonic)
    monkeypatch.setattr(process_module, "time", clock)
    monkeypatch.setattr(backoff_module, "time", clock)
    monkeypatch.setattr(backoff_module, "os", SimpleNamespace(sched_yield=lambda: None))
    monkeypatch.setattr(served, "_round", lambda: False)
    monkeypatch.setattr(served.sysfs, "due_ns", 1 << 62)

    def look(timeout: float) -> None:
        looks.append(timeout)
        served._polled_ns = next(now)

    monkeypatch.setattr(served, "_dispatch", look)
    backoff = backoff_module.IdleBackoff(100)
    try:
        for _ in range(99):
            assert served._iterate(backoff, None)
        assert backoff.idle == 99
        assert len(looks) > 3, "a look every 0.3 ms, and each of these rounds takes 0.02 ms"
        assert set(looks) == {0}
    finally:
        monkeypatch.undo()
        served.close()


def test_another_version_is_told(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(directory / attach.SOCKET_NAME))
        sock.send(struct.pack("<5I", attach.MSG_HELLO, 1, attach.MAGIC, attach.VERSION + 1, 0))
        answer = sock.recv(1000)
    assert attach.REPLY_HEADER.get(answer, "error") == 71
    assert f"version {attach.VERSION + 1}".encode() in answer


def test_a_second_nic_process_is_refused(directory: Path) -> None:
    environment = os.environ | {"RNIC_RUNTIME_DIR": str(directory)}
    second = subprocess.run(
        [sys.executable, "-m", "rnic.cli", "serve"], env=environment, capture_output=True, text=True, check=False
    )
    assert second.returncode == 2
    assert "runs already" in second.stderr
    assert len(second.stderr.splitlines()) == 1


NOBODY = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to try")


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="root and unshare make namespaces")
@pytest.mark.parametrize("inside", ["the program", "the NIC process"])
def test_pid_namespaces(tmp_path: Path, inside: str) -> None:
    """A program in one of its own is seen; one that the NIC process does not see is told so in one line."""
    tmp_path.chmod(0o700)
    env = os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)}
    apart = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system makes no PID namespaces")
    program = f"""
import rnic
try:
    with rnic.open("{NET}.97", port=0) as ctx:
        print("slot" if ctx.bypass else "no slot", rnic.verbs.MR(rnic.verbs.PD(ctx), 64).length)
except rnic.VerbsError as error:
    print(error)
"""
    serve = [sys.executable, "-m", "rnic.cli", "serve"]
    command = [*apart, *serve] if inside == "the NIC process" else serve
    process = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        for_program = [sys.executable, "-c", program]
        end = time.monotonic() + 60
        while (connection := connect(tmp_path)) is None:
            assert time.monotonic() < end, "the NIC process is not ready"
            time.sleep(0.01)
        connection.close()
        done = subprocess.run(
            [*apart, *for_program] if inside == "the program" else for_program,
            env=env, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # unshare itself does not heed it
        process.wait(10)
    if inside == "the program":
        assert done.stdout == ("no slot 64\n" if use.ENGINE is None else "slot 64\n")
    else:
        assert "runs in a PID namespace that shows it no process of this one" in done.stdout
        assert done.stdout.count("\n") == 1


def as_nobody(act: Callable[[], bool]) -> bool:
    """What ``act`` says in a child that is another user for good."""

    def change_and_act() -> bool:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return act()

    return child_says(change_and_act)


@only_root
def test_another_user_cannot_attach(directory: Path) -> None:
    path = str(directory / attach.SOCKET_NAME)

    def enters() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            try:
                sock.connect(path)
            except PermissionError:
                return False
            return True

    def is_served() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(path)
            hello = attach.HELLO.pack({"magic": attach.MAGIC, "version": attach.VERSION})
            try:
                sock.send(struct.pack("<II", attach.MSG_HELLO, 1) + hello)
                return sock.recv(100) != b""
            except (BrokenPipeError, ConnectionResetError):
                return False

    assert not as_nobody(enters)
    doors = [*directory.parents][:-1]
    modes = {door: door.stat().st_mode for door in (*doors, directory, directory / attach.SOCKET_NAME)}
    try:  # with every door open, what counts is who it is
        for door, mode in modes.items():
            door.chmod(mode & 0o7777 | 0o011 if door.is_dir() else 0o777)
        assert as_nobody(enters)
        assert not as_nobody(is_served)
    finally:
        for door, mode in modes.items():
            door.chmod(mode & 0o7777)
    assert is_served()


@only_root
def test_another_users_nic_process_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    os.chown(tmp_path, NOBODY, NOBODY)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ProcessError, match="set RNIC_RUNTIME_DIR"):
        runtime_directory()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / attach.SOCKET_NAME))
        os.seteuid(NOBODY)  # whose credentials a client sees is settled by listen
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(ProcessError, match=f"is user {NOBODY}'s"):
            connect(tmp_path)


class Stop(Exception):  # noqa: N818 - what a program calls its own is its own matter
    """What a program's signal handler raises."""


def test_a_signal_handler_that_raises_ends_no_device(directory: Path, bypass: bool) -> None:
    """At any moment of a command: what it asked for is lost, and the next command works."""

    armed = False

    def stop(*_: object) -> None:
        if armed:
            raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with rnic.open(f"{NET}.97", port=4000, directory=directory) as ctx:
            for tries in range(40):
                with pytest.raises(Stop):  # noqa: PT012 - a loop, as it may come anywhere
                    armed = True
                    # again after a second: Python drops what is raised in a callback of its garbage collector
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + tries), 1.0)
                    while True:
                        ctx.query_port()
                armed = False
            PD(ctx).close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_forked_child_keeps_no_connection_of_its_parents(directory: Path, bypass: bool) -> None:
    """Else the NIC process would keep the listening ports of a parent that died until the child ends."""
    with rnic.open(f"{NET}.97", port=4000, directory=directory) as ctx:
        manager = manager_module.manager_of(ctx)
        channel = manager.channel()
        fds = [*ctx.driver.hangup_filenos(), *manager.hangup_filenos()]

        def closes() -> bool:
            for fd in fds:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(fd)
            with pytest.raises(VerbsError, match="is closed: open it again"):
                manager_module.manager_of(ctx).channel()
            channel.close()
            ctx.close()
            return True

        with held_by_a_thread(manager_module._lock):
            assert child_says(closes)
        manager.channel().close()
        channel.close()


def test_garbage_in_the_window_harms_nobody_else(directory: Path) -> None:
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as bad:
        victim = End(bad)
        window = bad.driver._window  # type: ignore[union-attr]
        noise = Random(7)
        for _ in range(20):
            at = noise.randrange(attach.PAGE_BYTES, len(window) - 4096)
            window[at : at + 4096] = noise.randbytes(4096)
            window[attach.PAGE_BYTES : attach.PAGE_BYTES + 64] = b"\1" * 64
            bad.driver._ring()  # type: ignore[union-attr]
        assert victim.mr.lkey
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as good:
        a, b = End(good), End(good)
        a.connect(b)
        b.connect(a)
        a.post(e.IBV_WR_RDMA_WRITE, 8, b)
        assert a.wait().status == e.IBV_WC_SUCCESS


# ----------------------------------------------------------------------------------------------- death

PROGRAM = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    import rnic
    from test_nic_process import End, e
    ctx = rnic.open(sys.argv[3], port=4000, directory=Path(sys.argv[2]))
    a, b = End(ctx), End(ctx)
    a.connect(b)
    b.connect(a)
    print("up", flush=True)
    while True:
        for _ in range(16):
            a.post(e.IBV_WR_RDMA_WRITE, 100_000, b)
        for _ in range(16):
            assert a.wait().status == 0
"""


def start_program(directory: Path) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(Path(__file__).parent), str(directory), f"{NET}.93"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    return program


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def settle(pid: int, most: int) -> int:
    """Descriptors of a process, once there are no more than ``most`` or time is up."""
    end = time.monotonic() + SECONDS
    while (count := descriptors(pid)) > most and time.monotonic() < end:
        time.sleep(0.02)
    return count


def objects(directory: Path, device: str) -> dict[str, int]:
    """How many of each kind the device holds."""
    found: dict[str, int] = ask(directory, device, "top")["objects"]
    return found


def shared_files(pid: int) -> int:
    """Mappings of files that programs share with the NIC process."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:rnic")


def kill_programs(directory: Path, times: int) -> None:
    """Programs die at random moments; a bystander on the same device notices nothing, and nothing stays behind."""
    bystander = rnic.open(f"{NET}.93", port=4000, directory=directory)
    a, b = End(bystander), End(bystander)
    a.connect(b)
    b.connect(a)
    assert bystander.async_fd >= 0
    rnic.open(f"{NET}.93", port=4000, directory=directory).close()  # a slot's socket stays for those that come later
    connection = connect(directory)
    assert connection is not None
    before = descriptors(connection.pid), shared_files(connection.pid), objects(directory, bystander.name)
    noise = Random(times)
    for number in range(times):
        program = start_program(directory)
        if number % 2:
            assert program.stdout is not None
            program.stdout.readline()
        time.sleep(noise.random() * (0.1 if number % 2 else 0.5))
        program.send_signal(signal.SIGKILL)
        program.communicate()
        a.post(e.IBV_WR_RDMA_WRITE, 8, b)
        assert a.wait().status == e.IBV_WC_SUCCESS
    assert settle(connection.pid, before[0]) <= before[0]
    end = time.monotonic() + SECONDS  # mappings go in a turn in which nothing else is to be done
    while shared_files(connection.pid) > before[1] and time.monotonic() < end:
        time.sleep(0.02)
    assert shared_files(connection.pid) <= before[1]
    assert objects(directory, bystander.name) == before[2]
    with pytest.raises(VerbsError, match="no event waits"):
        bystander.get_async_event(block=False)
    connection.close()
    bystander.close()
    with rnic.open(f"{NET}.93", port=4000, directory=directory) as ctx:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        a.post(e.IBV_WR_RDMA_WRITE, 8, b)
        assert a.wait().status == e.IBV_WC_SUCCESS
        assert ctx.command(cmd.NOP) == (0, b"")


@pytest.mark.slow
def test_killed_programs_leave_nothing(directory: Path, bypass: bool) -> None:
    kill_programs(directory, 6)


@pytest.mark.full
@pytest.mark.slow
def test_two_hundred_killed_programs_leave_nothing(directory: Path, bypass: bool) -> None:
    kill_programs(directory, 200)


def open_running(directory: Path) -> Context:
    """A device of the NIC process that runs; unlike :func:`rnic.open` it starts none.

    Raises:
        VerbsError: ENODEV where none runs.
    """
    connection = connect(directory)
    if connection is None:
        raise VerbsError(errno.ENODEV, "no NIC process runs")
    try:
        name = (
            connection.request(attach.MSG_ADD, json.dumps({"address": f"{NET}.94", "port": 4000}).encode())[0]
            .rstrip(b"\0")
            .decode()
        )
        return Context(driver=RemoteDriver(connection, name, attach.DMA_SLOT if wanted() else 0))
    except BaseException:
        connection.close()
        raise


def live(directory: Path) -> None:
    """A whole life on a device; VerbsError with ENODEV wherever the NIC process ends."""
    ctx = open_running(directory)
    try:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        a.cq.req_notify()
        for _ in range(8):
            a.post(e.IBV_WR_RDMA_WRITE, 50_000, b)
        for _ in range(8):
            a.wait()
        assert a.channel.get_cq_event() is a.cq
    finally:
        ctx.close()


def live_on(directory: Path) -> VerbsError:
    """Life after life, until the device ends it; how."""
    while True:
        try:
            live(directory)
        except VerbsError as error:
            return error.with_traceback(None)


def kill_nics(serve: Serve, directory: Path, times: int) -> None:
    """NIC processes die at random moments: their programs are told, keep nothing, and the next one serves."""
    directory.chmod(0o700)
    noise = Random(times)
    before: tuple[int, int] | None = None
    for _ in range(times):
        process = serve(directory)
        killer = threading.Timer(noise.random() * 0.2, process.kill)
        killer.start()
        assert live_on(directory).errno == errno.ENODEV
        killer.join()
        process.wait()
        gc.collect()
        now = len(os.listdir("/proc/self/fd")), shared_files(os.getpid())
        assert before in (None, now)
        before = now
    process = serve(directory)
    live(directory)
    process.terminate()
    assert process.wait(SECONDS) == 0


@pytest.mark.slow
def test_killed_nic_processes_leave_nothing(serve: Serve, tmp_path: Path, bypass: bool) -> None:
    kill_nics(serve, tmp_path, 4)


@pytest.mark.full
@pytest.mark.slow
def test_two_hundred_killed_nic_processes_leave_nothing(serve: Serve, tmp_path: Path, bypass: bool) -> None:
    kill_nics(serve, tmp_path, 200)


@pytest.mark.slow
def test_waiters_are_told_that_the_nic_process_ended(serve: Serve, tmp_path: Path, bypass: bool) -> None:
    """Those that sleep until an event comes, and those that poll."""
    tmp_path.chmod(0o700)
    process = serve(tmp_path)
    with open_running(tmp_path) as ctx:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        a.cq.req_notify()
        killer = threading.Timer(0.1, process.kill)
        killer.start()
        with pytest.raises(VerbsError, match="has ended") as error:
            a.channel.get_cq_event()
        assert error.value.errno == errno.ENODEV
        assert select.select([ctx.async_fd], [], [], SECONDS)[0]
        event = ctx.get_async_event()
        assert (event.event_type, event.element) == (e.IBV_EVENT_DEVICE_FATAL, None)
        with pytest.raises(VerbsError, match="has ended"):
            ctx.get_async_event()
        a.post(e.IBV_WR_RDMA_WRITE, 8, b)
        with pytest.raises(VerbsError, match="has ended"):
            a.wait()
        with pytest.raises(VerbsError, match="has ended"):
            PD(ctx)
        killer.join()
        process.wait()


# --------------------------------------------------------------------------------------------- looking


def rnic_says(directory: Path, *args: str) -> str:
    """Output of an ``rnic`` command in this runtime directory."""
    command = [sys.executable, "-m", "rnic.cli", *args]
    environment = os.environ | {"RNIC_RUNTIME_DIR": str(directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


@pytest.mark.slow
def test_looking_into_a_nic_process_at_work(directory: Path, bypass: bool) -> None:
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as ctx:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        for _ in range(3):
            a.post(e.IBV_WR_RDMA_WRITE, 5000, b)
            a.wait()
        qpn, device = a.qp.qp_num, ctx.name
        of = ("--device", device, "--json")
        regs = json.loads(rnic_says(directory, "regs", *of))
        block = next(part for part in regs["blocks"] if (part["kind"], part["number"]) == ("QP", qpn))
        assert ("slot" in block) is bypass
        values = {row["name"]: row["value"] for row in block["registers"]}
        assert (values["SQ_HEAD"], values["SQ_TAIL"], values["QUEUE_STATE"]) == (3, 3, 3)
        qp = json.loads(rnic_says(directory, "qp", str(qpn), *of))
        assert (qp["state"], qp["send_ring"]["head"], qp["context"]["remote_qpn"]) == ("RTS", 3, b.qp.qp_num)
        cq = json.loads(rnic_says(directory, "cq", str(qp["send_cq"]), *of))
        assert (cq["ring"]["tail"], cq["unread"], cq["failed"]) == (3, 0, False)
        counters = json.loads(rnic_says(directory, "counters", *of))
        assert counters["tx_packets"] >= 6
        top = json.loads(rnic_says(directory, "top", "--once", "--interval", "0.05", *of))
        mine = next(row for row in top["qps"] if row["qpn"] == qpn)
        assert mine.items() >= {"state": "RTS", "sq_head": 3, "sq_tail": 3, "sq_entries": 65}.items()
        assert set(top["rates"]) <= set(top["counters"])
        for command in (["regs"], ["qp", str(qpn)], ["counters"], ["top", "--once", "--interval", "0.05"]):
            assert len(rnic_says(directory, *command, "--device", device).splitlines()) > 3


# --------------------------------------------------------------------------------------------- waiting


def busy_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_who_waits_for_nothing_costs_nothing(directory: Path, bypass: bool) -> None:
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as ctx:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        a.post(e.IBV_WR_RDMA_WRITE, 8, b)
        a.wait()
        pid = ctx.driver.connection.pid  # type: ignore[union-attr]
        before, own = busy_seconds(pid), time.process_time()
        time.sleep(1.0)
        assert busy_seconds(pid) - before <= 0.1
        assert time.process_time() - own <= 0.1


@pytest.mark.slow
def test_nobody_spins_on_one_core(directory: Path, bypass: bool) -> None:
    """A program that polls and the NIC process on one core hand it to each other; two that spin take 4 ms a turn.

    Processor time tells: whoever spins uses up its turn, whatever else runs on this core.
    """
    rounds = 300
    core = {min(os.sched_getaffinity(0))}
    with rnic.open(f"{NET}.91", port=4000, directory=directory) as ctx:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        pids = [0, ctx.driver.connection.pid]  # type: ignore[union-attr]
        before = [os.sched_getaffinity(pid) for pid in pids]
        try:
            for pid in pids:
                os.sched_setaffinity(pid, core)

            def cost() -> float:
                began = time.process_time() + busy_seconds(pids[1])
                for _ in range(rounds):
                    a.post(e.IBV_WR_RDMA_WRITE, 8, b)
                    assert a.wait().status == e.IBV_WC_SUCCESS
                return (time.process_time() + busy_seconds(pids[1]) - began) / rounds

            least = best_of(5, cost, below=0.0015, why="a machine may count what its host took as processor time")
        finally:
            for pid, cores in zip(pids, before, strict=True):
                os.sched_setaffinity(pid, cores)
        assert least < 0.0015
