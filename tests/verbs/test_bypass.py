"""Python programs that run the engine themselves, on slots of a device of the NIC process."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic import enums as e
from rnic.cli.devinfo import kernel_bypass
from rnic.link.base import parse_address
from rnic.runtime.attach import ask, connect, fault
from rnic.spec.errors import VerbsError
from rnic.testing import own_network
from rnic.testing.packets import PacketFactory
from rnic.verbs import CQ, GID, MR, QP, SGE, AHAttr, CompChannel, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.wire.flow import Flow
from tests.attempts import STANDS_STILL_MS, every_valid
from tests.forks import child_says
from tests.verbs.test_nic_process import End, needs_engine

pytestmark = [pytest.mark.slow, needs_engine]
NET = own_network()
SECONDS = 20.0
COMMON = 20
"""Punts that a connection may cost before all is known."""

Serve = Callable[[Path], "subprocess.Popen[bytes]"]

PEER = """
    import json, sys
    from pathlib import Path
    import rnic
    from tests.verbs.test_bypass import Side, tell
    with rnic.open(sys.argv[2], port=int(sys.argv[4]), directory=Path(sys.argv[1]), bypass=True) as ctx:
        assert ctx.bypass
        side = Side(ctx, events=sys.argv[3] == "events")
        tell(side.describe())
        side.connect(json.loads(sys.stdin.readline()))
        tell({"up": True})
        while (size := side.receive()) > 1:
            side.mr.buffer[:size] = bytes(side.mr.buffer[:size])[::-1]
            side.send(size)
"""
"""Sends each message back with its bytes in the other order, until one of a byte comes."""


def tell(what: object) -> None:
    print(json.dumps(what), flush=True)


class Side:
    """One end of a reliable connection whose other end is in another program."""

    def __init__(self, ctx: rnic.Context, events: bool = False, size: int = 1 << 17) -> None:
        self.ctx = ctx
        self.pd = rnic.PD(ctx)
        self.channel = CompChannel(ctx) if events else None
        self.cq = CQ(ctx, 256, channel=self.channel)
        rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        self.mr = MR(self.pd, bytearray(size), rights)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(64, 64, 1, 1), self.cq, self.cq, None))
        self.arrived: list[int] = []
        attr = QPAttr()
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        self.qp.to_init(attr)
        for _ in range(8):
            self.listen()

    def describe(self) -> dict[str, Any]:
        return {"qpn": self.qp.qp_num, "gid": self.ctx.address, "port": self.ctx.udp_port}

    def connect(self, there: dict[str, Any], timeout: int = 14) -> None:
        attr = QPAttr()
        attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer = e.IBV_MTU_4096, 1, 1, 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.gso = timeout, 7, 7, True
        attr.qp_access_flags, attr.dest_qp_num = e.IBV_ACCESS_REMOTE_WRITE, there["qpn"]
        attr.ah_attr = AHAttr(GlobalRoute(GID(there["gid"])), udp_dport=there["port"])
        self.qp.to_rts(attr)

    def listen(self) -> None:
        self.qp.post_recv(RecvWR(1, sg=[SGE(self.mr.buf, self.mr.length, self.mr.lkey)]))

    def completion(self) -> rnic.WC:
        end = time.monotonic() + SECONDS
        while True:
            if self.channel is not None:
                self.cq.req_notify()
            count, found = self.cq.poll(1)
            if count:
                return found[0]
            assert time.monotonic() < end, "no completion came"
            if self.channel is not None:
                assert self.channel.get_cq_event() is self.cq

    def send(self, size: int) -> None:
        self.qp.post_send(SendWR(2, e.IBV_WR_SEND, sg=[SGE(self.mr.buf, size, self.mr.lkey)]))
        self.sent()

    def sent(self) -> None:
        """Wait until the message that was posted has been acknowledged."""
        while (wc := self.completion()).opcode & e.IBV_WC_RECV:
            self._take(wc)
        assert wc.status == e.IBV_WC_SUCCESS

    def receive(self) -> int:
        while not self.arrived:
            wc = self.completion()
            assert wc.opcode & e.IBV_WC_RECV
            self._take(wc)
        return self.arrived.pop(0)

    def _take(self, wc: rnic.WC) -> None:
        assert wc.status == e.IBV_WC_SUCCESS
        self.arrived.append(wc.byte_len)
        self.listen()


@contextmanager
def program(code: str, *args: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A script in a process of its own, killed in the end."""
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *args],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
        | (env or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def hears(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "the program ended"
    said: dict[str, Any] = json.loads(line)
    return said


@pytest.fixture(autouse=True)
def by_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at here are slots and their sockets, which programs of one device have no need of."""
    monkeypatch.setenv("RNIC_SHM", "0")


@pytest.fixture
def nic(serve: Serve, tmp_path: Path) -> Iterator[Path]:
    """Runtime directory of a NIC process of this test's own, whose counters begin at 0."""
    tmp_path.chmod(0o700)
    process = serve(tmp_path)
    yield tmp_path
    process.terminate()
    assert process.wait(SECONDS) == 0


def slots(nic: Path, name: str = "rnic0") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(nic, name, "slots")["slots"]
    return found


def watched(process: int) -> int:
    """How many descriptors wake a process that waits by epoll."""
    return max(each.read_text().count("tfd:") for each in Path("/proc", str(process), "fdinfo").iterdir())


def until(done: Callable[[], object]) -> bool:
    end = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def opened(
    nic: Path, host: int, events: bool, port: int = 4000, timeout: int = 14
) -> Iterator[tuple[Side, subprocess.Popen[str]]]:
    """Our end of a connection to a program on the same device, which turns round what it gets."""
    address = f"{NET}.{host}"
    with program(PEER, str(nic), address, "events" if events else "polls", str(port)) as child:
        there = hears(child)
        with rnic.open(address, port=port, directory=nic, bypass=True) as ctx:
            side = Side(ctx, events)
            side.connect(there, timeout)
            assert child.stdin is not None
            child.stdin.write(json.dumps(side.describe()) + "\n")
            child.stdin.flush()
            assert hears(child)["up"]
            yield side, child


@pytest.mark.parametrize("events", [False, True], ids=["polled", "events"])
def test_two_programs_take_their_packets_themselves(nic: Path, events: bool) -> None:
    """Not one of them comes to the NIC process, but for the first of each sender, which its slot leaves to it."""
    asking = connect(nic)
    assert asking is not None
    with closing(asking) as connection, opened(nic, 71, events) as (side, child):
        why = "the NIC process takes the packets of a program that stands still"
        every_valid(lambda: exchange(nic, side, child), limit_ms=STANDS_STILL_MS, why=why, but=[connection.pid])
        side.send(1)
        assert child.wait(SECONDS) == 0


def exchange(nic: Path, side: Side, child: subprocess.Popen[str]) -> None:
    """A hundred messages there and back, nearly all of whose packets the two programs take themselves."""

    def seen() -> tuple[list[int], dict[int, dict[str, Any]]]:
        counters = ask(nic, "rnic0", "counters")
        rows = {slot["pid"]: slot for slot in slots(nic)}
        assert rows.keys() == {os.getpid(), child.pid}
        return [counters[f"slot_0_{way}_packets"] for way in ("rx", "tx")], rows

    others, before = seen()
    rng = random.Random(5)
    for size in (2, 8, 4096, 5000, 100_000) * 20:
        said = rng.randbytes(size)
        side.mr.buffer[:size] = said
        side.send(size)
        assert side.receive() == size
        assert bytes(side.mr.buffer[:size]) == said[::-1]
    now, rows = seen()
    assert now == others
    for pid, row in rows.items():
        assert row["counters"]["rx_packets"] - before[pid]["counters"]["rx_packets"] > 20 * 25
        assert sum(row["punts"].values()) - sum(before[pid]["punts"].values()) < COMMON


def test_a_peer_that_is_killed_answers_no_more(nic: Path) -> None:
    """As on a wire; its slot is another's soon."""
    with opened(nic, 72, False) as (side, child):
        side.send(8)
        assert side.receive() == 8
        child.kill()
        child.wait()
        side.qp.post_send(SendWR(2, e.IBV_WR_SEND, sg=[SGE(side.mr.buf, 8, side.mr.lkey)]))
        assert side.completion().status == e.IBV_WC_RETRY_EXC_ERR
        assert until(lambda: [slot["pid"] for slot in slots(nic)] == [os.getpid()])


FOREVER = """
    import sys
    from pathlib import Path
    import rnic
    from tests.verbs.test_bypass import tell
    from tests.verbs.test_nic_process import End, e
    with rnic.open(sys.argv[2], port=4000, directory=Path(sys.argv[1]), bypass=True) as ctx:
        assert ctx.bypass
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        tell({"up": True})
        number = 0
        while True:
            number += 1
            a.buf[:8] = number.to_bytes(8, "little")
            a.post(e.IBV_WR_RDMA_WRITE, 100_000, b)
            assert a.wait().status == 0
            assert b.buf[:8] == a.buf[:8]
"""


def test_a_program_that_is_stopped_again_and_again(nic: Path) -> None:
    """At any moment, its engine's lock taken or not: nothing is lost, and the device serves others."""
    rng = random.Random(6)
    with (
        program(FOREVER, str(nic), f"{NET}.73") as child,
        rnic.open(f"{NET}.73", port=4000, directory=nic, bypass=False) as ctx,
    ):
        assert hears(child)["up"]
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)
        for _ in range(6):
            time.sleep(rng.random() * 0.03)
            child.send_signal(signal.SIGSTOP)
            time.sleep(rng.random() * 0.08)
            a.post(e.IBV_WR_RDMA_WRITE, 8, b)
            assert a.wait().status == e.IBV_WC_SUCCESS
            child.send_signal(signal.SIGCONT)
        before = slots(nic)[0]["counters"]["rx_packets"]
        assert until(lambda: slots(nic)[0]["counters"]["rx_packets"] > before)
        assert child.poll() is None


def test_who_watches_sees_every_packet(nic: Path) -> None:
    """The NIC process takes the packets from then on; the program rings its doorbells there and does not notice."""
    with opened(nic, 74, False) as (side, child):
        fault(nic, "rnic0", ["path-loss", "127.0.0.99"])
        assert all(slot["served"] for slot in slots(nic))
        before = {slot["pid"]: slot["counters"]["rx_packets"] for slot in slots(nic)}
        for _ in range(20):
            side.send(8)
            assert side.receive() == 8
        assert all(slot["counters"]["rx_packets"] > before[slot["pid"]] for slot in slots(nic))
        assert child.poll() is None


def test_a_forked_child_has_no_part_in_it(nic: Path) -> None:
    """Nothing works there, and its end is not ours."""
    with rnic.open(f"{NET}.75", port=4000, directory=nic, bypass=True) as ctx:
        a, b = End(ctx), End(ctx)
        a.connect(b)
        b.connect(a)

        def is_refused() -> bool:
            for act, code in (
                (lambda: a.post(e.IBV_WR_RDMA_WRITE, 8, b), errno.EIO),
                (lambda: a.cq.poll(1), errno.EIO),
                (lambda: rnic.PD(ctx), errno.ENODEV),
            ):
                with pytest.raises(VerbsError) as refused:
                    act()
                if refused.value.errno != code:
                    return False
            ctx.close()
            return True

        assert child_says(is_refused)
        a.post(e.IBV_WR_RDMA_WRITE, 8, b)
        assert a.wait().status == e.IBV_WC_SUCCESS
        assert len(slots(nic)) == 1


def test_threads_are_let_out_when_the_context_is_closed(nic: Path) -> None:
    """One sleeps until an event comes, others poll and post: none of them uses what is gone."""
    ctx = rnic.open(f"{NET}.76", port=4000, directory=nic, bypass=True)
    a, b = End(ctx), End(ctx)
    a.connect(b)
    b.connect(a)
    ended: list[str] = []
    going = threading.Barrier(4)

    def sleep() -> None:
        going.wait()
        with pytest.raises(VerbsError):
            b.channel.get_cq_event()
        ended.append("sleeper")

    def work() -> None:
        going.wait()
        while not ctx.driver.closed:
            a.qp.post_rdma(0, a.mr.buf, 8, a.mr.lkey)
            a.cq.poll(16)
        ended.append("worker")

    threads = [threading.Thread(target=each, daemon=True) for each in (sleep, work, work)]
    for thread in threads:
        thread.start()
    going.wait()
    time.sleep(0.05)
    ctx.driver.close()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(ended) == ["sleeper", "worker", "worker"]
    assert until(lambda: not slots(nic))
    ctx.close()


def tasks_at_rest() -> int:
    """Threads of this process, once as many were there for a while: those of the test before may still be ending."""
    seen: list[int] = []

    def settled() -> bool:
        seen.append(len(os.listdir("/proc/self/task")))
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    assert until(settled)
    return seen[-1]


def test_a_context_that_nobody_closes_goes_with_its_objects(nic: Path) -> None:
    """Its thread in C ends before the memory of its rings does."""
    before = tasks_at_rest()
    made: list[Any] = [rnic.open(f"{NET}.77", port=4000, directory=nic, bypass=True)]
    assert len(os.listdir("/proc/self/task")) == before + 1
    made.append(CQ(made[0], 64))
    assert len(slots(nic)) == 1

    def forget() -> None:
        made.clear()
        gc.collect()

    with pytest.warns(ResourceWarning):  # the connection says so
        forget()
    # who was joined is still in the list for a moment
    assert until(lambda: len(os.listdir("/proc/self/task")) == before)
    assert until(lambda: not slots(nic))


def test_loopback_inside_the_nic(nic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else is asked for: what both ends send goes by rings."""
    monkeypatch.delenv("RNIC_SHM")
    rng = random.Random(7)
    with opened(nic, 78, False) as (side, _):
        for size in (2, 4096, 100_000):
            said = rng.randbytes(size)
            side.mr.buffer[:size] = said
            side.send(size)
            assert side.receive() == size
            assert bytes(side.mr.buffer[:size]) == said[::-1]
        for slot in slots(nic):
            assert slot["counters"]["shm_packets"] > 20, slot
            assert slot["counters"]["shm_bytes"] > 100_000
            assert slot["shm"]


def test_a_program_without_an_engine_leaves_it_to_the_nic_process(nic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works as ever, and `rnic devinfo` says why it has no slot."""
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(nic))
    code = PEER.replace("bypass=True", "bypass=None").replace("assert ctx.bypass", "assert not ctx.bypass")
    environment = {"RNIC_BYPASS": "1", "RNIC_ENGINE": "0"}
    address = f"{NET}.79"
    with (
        program(code, str(nic), address, "polls", "4000", env=environment) as child,
        rnic.open(address, port=4000, directory=nic, bypass=True) as ctx,
    ):
        side = Side(ctx)
        side.connect(hears(child))
        assert child.stdin is not None
        child.stdin.write(json.dumps(side.describe()) + "\n")
        child.stdin.flush()
        assert hears(child)["up"]
        side.send(8)
        assert side.receive() == 8
        assert [slot["pid"] for slot in slots(nic)] == [os.getpid()]
        assert f"not program {child.pid}: its rnic was installed without a C compiler" in kernel_bypass(address)
        side.send(1)
        assert child.wait(SECONDS) == 0


def test_a_program_may_leave_everything_to_the_nic_process(nic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment, or where the program says so itself, whatever the environment says."""
    monkeypatch.setenv("RNIC_BYPASS", "0")
    with rnic.open(f"{NET}.80", port=4000, directory=nic) as ctx:
        assert not ctx.bypass
    monkeypatch.delenv("RNIC_BYPASS")
    with rnic.open(f"{NET}.80", port=4000, directory=nic, bypass=False) as ctx:
        assert not ctx.bypass
        assert slots(nic) == []
    with rnic.open(f"{NET}.80", port=4000, directory=nic) as ctx:
        assert ctx.bypass
        assert [slot["pid"] for slot in slots(nic)] == [os.getpid()]


def test_groups_that_programs_joined_are_seen(nic: Path) -> None:
    group, also = GID("::ffff:239.7.8.9"), GID("::ffff:239.7.8.10")

    def seen() -> list[str]:
        return sorted(ask(nic, "rnic0", "cm")["groups"])

    with (
        rnic.open(f"{NET}.79", directory=nic, bypass=True) as ctx,
        rnic.open(f"{NET}.79", directory=nic, bypass=False) as other,
    ):
        assert ctx.bypass
        assert not other.bypass
        cap = QPCap(8, 8)
        qps = []
        for context in (ctx, other):
            pd, cq = rnic.PD(context), CQ(context, 16)
            qps.append(QP(pd, QPInitAttr(e.IBV_QPT_UD, None, cap, cq, cq)))
            qps[-1].attach_mcast(group)
        assert seen() == ["ef070809"]
        qps[0].attach_mcast(also)
        assert seen() == ["ef070809", "ef07080a"]
        qps[0].detach_mcast(also)
        qps[0].detach_mcast(group)
        assert seen() == ["ef070809"]
        qps[1].detach_mcast(group)
        assert seen() == []


@pytest.mark.parametrize("bypass", [False, True])
def test_what_comes_to_a_group_wakes_the_nic_process(nic: Path, bypass: bool) -> None:
    """As long as somebody is in it, and whatever number its socket has got."""
    groups = [GID(f"::ffff:239.7.9.{number}") for number in range(3)]
    connection = connect(nic)
    assert connection is not None
    with closing(connection) as asking:
        process = struct.unpack("3i", asking.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    with rnic.open(f"{NET}.80", directory=nic, bypass=bypass) as ctx:
        pd, cq = rnic.PD(ctx), CQ(ctx, 16)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_UD, None, QPCap(8, 8), cq, cq))
        before = watched(process)
        for _ in range(2):
            for joined, group in enumerate(groups, 1):
                qp.attach_mcast(group)
                assert watched(process) == before + joined
            qp.detach_mcast(groups[1])
            assert watched(process) == before + 2
            qp.attach_mcast(groups[1])
            assert watched(process) == before + 3
            for group in groups:
                qp.detach_mcast(group)
            assert watched(process) == before
        qp.attach_mcast(groups[0])
    with rnic.open(f"{NET}.80", directory=nic, bypass=bypass):
        assert watched(process) == before


def test_what_is_late_for_a_program_that_has_gone_reaches_none_of_the_next(nic: Path) -> None:
    """Its peer repeats to its queue pair; the programs behind it have the same slot, peer and first PSN."""
    here, there, late = f"{NET}.74", f"{NET}.75", 0
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as peer:
        peer.bind((there, 0))
        numbers: set[int] = set()
        for turn in range(6):
            with rnic.open(here, port=4000, directory=nic, bypass=True) as ctx:
                assert ctx.bypass
                side = Side(ctx, size=64)
                numbers.add(side.qp.qp_num)
                side.connect({"qpn": 5, "gid": there, "port": peer.getsockname()[1]})
                flow = Flow(parse_address(there), parse_address(here), peer.getsockname()[1], 4000)
                packet = PacketFactory(flow)
                for qpn in filter(None, (late, side.qp.qp_num)):
                    payload = b"late" if qpn == late else b"own" + bytes([turn])
                    peer.sendto(packet("RC_SEND_ONLY", 0, dqpn=qpn, payload=payload), (here, 4000))
                late = late or side.qp.qp_num
                assert side.receive() == 4
                assert bytes(side.mr.buffer[:4]) == b"own" + bytes([turn])
        assert len(numbers) == 6
