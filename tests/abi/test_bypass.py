"""Programs that run the engine themselves, on slots of a device: what both sides count, stops, falls back to."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnic.cli.devinfo import kernel_bypass
from rnic.nic_process.slot_counters import MAX_BYTES_PER_S
from rnic.runtime.attach import ask, fault
from rnic.state.record import WORD_BYTES, place
from rnic.state.slot import SLOT
from rnic.testing import own_network
from tests.abi.test_kills import LONGEST, WELL, Nic, served
from tests.verbs.test_link_state import unshare

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

pytestmark = pytest.mark.timeout(180)  # the first test of a worker also compiles
STOPS = [6, pytest.param(50, marks=[pytest.mark.full, pytest.mark.timeout(300)])]


@pytest.fixture
def bypass(env: dict[str, str]) -> dict[str, str]:
    """Environment of programs that ask for slots."""
    return {**env, "RNIC_BYPASS": "1", "RNIC_SHM": "0"}


@contextmanager
def going_on(
    plain: Path, env: dict[str, str], first: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """``loop forever``, which checks what it sends itself; it does ``first`` before it becomes a program."""
    command = [str(plain), "forever"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, preexec_fn=first) as program:  # noqa: PLW1509 - a system call
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "going on\n"
            yield program
        finally:
            program.kill()


def slots(nic: Nic) -> dict[str, Any]:
    seen: dict[str, Any] = ask(nic.directory, "rnic0", "slots")
    return seen


def packets(nic: Nic) -> int:
    return sum(slot["counters"].get("rx_packets", 0) for slot in slots(nic)["slots"])


def moves(nic: Nic) -> bool:
    """Whether packets are taken in slots."""
    before, end = packets(nic), time.monotonic() + LONGEST
    while time.monotonic() < end:
        if packets(nic) > before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.slow
def test_the_program_takes_its_packets_itself(plain: Path, bypass: dict[str, str]) -> None:
    """Its slot's packets are not the NIC process's, and the device's counters are of both together."""
    with served(bypass, f"{NET}.31") as nic, going_on(plain, bypass) as program:
        assert moves(nic)
        (slot,) = slots(nic)["slots"]
        assert slot["pid"] == program.pid
        assert not slot["served"]
        seen = ask(nic.directory, "rnic0", "counters")
        assert seen["slot_0_rx_packets"] == 0
        assert seen["slot_1_rx_packets"] > 0
        assert seen["rx_packets"] >= seen["slot_1_rx_packets"]
        shown = nic.directory / "paths/all/sys/class/infiniband/rnic0/ports/1/counters/port_rcv_packets"
        end = time.monotonic() + LONGEST
        while not int(shown.read_text()) and time.monotonic() < end:
            time.sleep(0.01)
        assert int(shown.read_text()), "the device paths show what the slots have counted"
        # the first packet of a sender is the reference's, and not many more
        assert 0 < seen["punt_unknown"] < 20
        assert all(qp["qpn"] >= slot["first_qpn"] for qp in ask(nic.directory, "rnic0", "top")["qps"])
        program.kill()
        program.wait()
        nic.settled()
        assert slots(nic)["slots"] == []


@pytest.mark.slow
@pytest.mark.parametrize("stops", STOPS)
def test_a_program_that_is_stopped_again_and_again(plain: Path, bypass: dict[str, str], stops: int) -> None:
    """At any moment, its engine's lock taken or not: nothing it sent itself is lost or doubled, and others go on."""
    rng = random.Random(stops)
    with served(bypass, f"{NET}.32") as nic, going_on(plain, bypass) as program, going_on(plain, bypass) as other:
        for _ in range(stops):
            time.sleep(rng.random() * 0.03)
            program.send_signal(signal.SIGSTOP)
            time.sleep(rng.random() * 0.08)
            program.send_signal(signal.SIGCONT)
        assert program.poll() is None
        assert other.poll() is None
        assert moves(nic)


@pytest.mark.slow
def test_who_watches_sees_every_packet(plain: Path, bypass: dict[str, str]) -> None:
    """An event on command has the NIC process take the slot's packets from then on; the program does not notice."""
    with served(bypass, f"{NET}.33") as nic, going_on(plain, bypass) as program:
        assert moves(nic)
        fault(nic.directory, "rnic0", ["path-loss", "127.0.0.99"])
        (slot,) = slots(nic)["slots"]
        assert slot["served"]
        assert moves(nic)
        assert program.poll() is None
        assert "NIC process takes them" in slots(nic)["refused"]


@pytest.mark.slow
def test_a_device_that_takes_the_other_way_says_why(plain: Path, bypass: dict[str, str]) -> None:
    """The program works as without a slot."""
    events = ["--faults", '[{"nth": 1000000000, "action": "port-down"}]']
    with served(bypass, f"{NET}.34", options=events) as nic, going_on(plain, bypass):
        seen = slots(nic)
        assert seen["slots"] == []
        assert "events" in seen["refused"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "options", "counter"),
    [
        (36, ["--congestion", "none"], "cnps_received"),
        (37, ["--congestion", "limit"], "cnp_limits"),
        (38, ["--congestion", "dcqcn"], "cnp_rate_cuts"),
        (39, ["--profile", "univista"], "cnp_limits"),
    ],
    ids=["none", "limit", "dcqcn", "univista"],
)
def test_congestion_control_acts_on_slots(
    plain: Path, bypass: dict[str, str], host: int, options: list[str], counter: str
) -> None:
    """Marks in packets that the program takes itself; its bytes stay right, which it checks."""
    marks = json.dumps([{"match": {"direction": "rx"}, "every": 20, "action": "mark"}])
    with (
        served(bypass, f"{NET}.{host}", options=[*options, "--faults", marks]) as nic,
        going_on(plain, bypass) as program,
    ):
        end = time.monotonic() + LONGEST
        while (count := ask(nic.directory, "rnic0", "counters").get(counter, 0)) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert count >= 3
        (slot,) = slots(nic)["slots"]
        assert not slot["served"]
        assert slot["counters"]["rx_packets"]
        assert program.poll() is None


OWN_CONTROL = """
from pathlib import Path

from rnic.cc.control import Control

HERE = Path(__file__)


class Two(Control):
    allowance = 2

    def on_ack(self, flow, ack):
        if ack.rtt_ns:
            HERE.with_name("rtt").touch()

    def on_cnp(self, flow, now_ns):
        HERE.with_name("cnp").touch()
"""


def test_a_control_in_python_serves_programs(plain: Path, bypass: dict[str, str], tmp_path: Path) -> None:
    """The NIC process calls it for the ACKs and CNPs of programs, whose packets it sends and takes then."""
    (tmp_path / "own_control.py").write_text(OWN_CONTROL)
    marks = json.dumps([{"match": {"direction": "rx"}, "every": 20, "action": "mark"}])
    options = ["--congestion", f"{tmp_path}/own_control:Two", "--faults", marks]
    with served(bypass, f"{NET}.97", options=options), going_on(plain, bypass) as program:
        end = time.monotonic() + LONGEST
        while not all((tmp_path / name).exists() for name in ("rtt", "cnp")) and time.monotonic() < end:
            time.sleep(0.01)
        assert (tmp_path / "rtt").exists()
        assert (tmp_path / "cnp").exists()
        assert program.poll() is None


LINK_SCOPE = """
    import os, subprocess, sys, time
    from tests.abi.test_bypass import going_on, moves, slots
    from tests.abi.test_kills import served

    for words in ("set lo up", "add far0 type veth peer name far1", "set far1 up", "set far0 up"):
        subprocess.run(["ip", "link", *words.split()], check=True)
    subprocess.run("ip addr add fe80::7/64 dev far0 nodad".split(), check=True)
    with served(dict(os.environ), "fe80::7%far0") as nic, going_on(sys.argv[1], os.environ):
        assert moves(nic), slots(nic)
        (slot,) = slots(nic)["slots"]
        assert not slot["served"]
        assert not slot["punts"]["path"], slot["punts"]
        print("by itself")
"""


@pytest.mark.slow
def test_addresses_of_link_scope(plain: Path, bypass: dict[str, str]) -> None:
    """In a network namespace of the test's own, since every address there is one of an interface."""
    command = unshare()
    if command is None:
        pytest.skip("this user can make no interfaces, or there is no unshare or ip")
    done = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(LINK_SCOPE), str(plain)],
        env={**bypass, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == "by itself\n", done.stderr


@pytest.mark.slow
def test_slots_are_used_again(plain: Path, bypass: dict[str, str]) -> None:
    """One program after another on the same socket, with other numbers, and nothing is left of the last."""
    with served(bypass, f"{NET}.35") as nic:
        firsts = set()
        for _ in range(3):
            with going_on(plain, bypass) as program:
                assert moves(nic)
                (slot,) = slots(nic)["slots"]
                firsts.add(slot["first_qpn"])
                program.kill()
                program.wait()
            nic.settled()
        assert len(firsts) == 3
        assert slots(nic)["sockets"] == 1
        done = subprocess.run([str(plain)], env=bypass, capture_output=True, text=True, check=True)
        assert WELL in done.stdout
        assert os.listdir(f"/proc/{nic.process.pid}/fd")


def taken_from(pid: int, name: str) -> list[int]:
    """Duplicates of what another process has open under a name of ``/proc``."""
    found = []
    pidfd = os.pidfd_open(pid)
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(name):
                found.append(ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, int(fd), 0))  # pidfd_getfd
        except OSError:
            continue  # it was closed meanwhile
    os.close(pidfd)
    return [fd for fd in found if fd >= 0]


def steer_all_to_the_first(nic: Nic, address: str) -> None:
    """Put a filter on the device's sockets that knows no slots."""
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
    sockets = [socket.socket(fileno=fd) for fd in taken_from(nic.process.pid, "socket:")]
    done = 0
    for sock in sockets:
        with sock:
            if sock.type == socket.SOCK_DGRAM and sock.family == socket.AF_INET and sock.getsockname()[0] == address:
                sock.setsockopt(socket.SOL_SOCKET, 51, struct.pack("@HP", 1, ctypes.addressof(code)))
                done += 1
    assert done


@pytest.mark.slow
def test_what_comes_to_the_wrong_slot_is_handed_on(plain: Path, bypass: dict[str, str]) -> None:
    """It arrives, is counted, and the device steers anew: hardly any more comes to the wrong one."""
    address = f"{NET}.37"
    with served(bypass, address) as nic, going_on(plain, bypass) as program:
        assert moves(nic)
        steer_all_to_the_first(nic, address)
        end = time.monotonic() + LONGEST
        while not slots(nic)["handed_on"] and time.monotonic() < end:
            time.sleep(0.01)
        assert slots(nic)["handed_on"]
        assert moves(nic)
        before, handed = packets(nic), slots(nic)["handed_on"]
        while packets(nic) < before + 200 and time.monotonic() < end:
            time.sleep(0.01)
        assert packets(nic) >= before + 200
        assert slots(nic)["handed_on"] == handed
        assert ask(nic.directory, "rnic0", "counters")["handed_on"] == handed
        assert program.poll() is None


def arenas(nic: Nic) -> list[int]:
    """Those that the NIC process has, until the test ends."""
    return taken_from(nic.process.pid, "/memfd:rnic arena")


def words_in_use(fd: int, arena: mmap.mmap) -> list[int]:
    """Where words are that are not 0: an arena is long and mostly a hole, whose pages a look would make."""
    found: list[int] = []
    at = 0
    while True:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return found
        end = os.lseek(fd, at, os.SEEK_HOLE)
        found += (np.flatnonzero(np.frombuffer(arena[at:end], np.uint64)) * 8 + at).tolist()
        at = end


FUZZES = [3, pytest.param(100, marks=[pytest.mark.full, pytest.mark.timeout(1200)])]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", FUZZES)
def test_what_a_program_writes_into_its_arena_harms_itself_alone(
    plain: Path, bypass: dict[str, str], rounds: int
) -> None:
    """Words at random, over and over while it works: another program goes on, and nothing of the first is left."""
    rng = random.Random(rounds)
    with served(bypass, f"{NET}.38") as nic, going_on(plain, bypass) as other:
        assert moves(nic)
        known: set[int] = set()
        for _ in range(rounds):
            known |= {os.fstat(fd).st_ino for fd in arenas(nic)}
            with going_on(plain, bypass) as victim:
                fd = next(each for each in arenas(nic) if os.fstat(each).st_ino not in known)
                with mmap.mmap(fd, os.fstat(fd).st_size) as arena:
                    used = words_in_use(fd, arena)
                    for _ in range(40):
                        for at in rng.sample(used, 5):
                            value = rng.choice((0, 1, rng.randrange(len(arena)), rng.getrandbits(64), rng.choice(used)))
                            arena[at : at + 8] = value.to_bytes(8, "little")
                        time.sleep(0.002)
                victim.kill()
            end = time.monotonic() + LONGEST
            while len(slots(nic)["slots"]) > 1 and time.monotonic() < end:
                time.sleep(0.01)
            assert other.poll() is None
            assert moves(nic)
        assert nic.process.poll() is None
        assert [slot["pid"] for slot in slots(nic)["slots"]] == [other.pid]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(300)  # compilers are slow with sanitizers
def test_threads_that_post_and_poll_do_not_race(raced: Path, bypass: dict[str, str], tmp_path: Path) -> None:
    """Four threads and the library's own under ThreadSanitizer.

    What a peer's READ takes is no race of the library's: one that is repeated reads at any time, also while the program
    writes anew, and nobody waits for its answer.
    """
    known = tmp_path / "suppressions"
    known.write_text("race:engine_key_read\nrace:send_read\n", encoding="ascii")
    with served(bypass, f"{NET}.42"):
        options = {**bypass, "TSAN_OPTIONS": f"suppressions={known} exitcode=66"}
        for _ in range(5):
            done = subprocess.run([str(raced), "raced"], env=options, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert WELL in done.stdout


SETSOCKOPT, SOCKETPAIR, ATTACH_FILTER = 54, 53, 51


def forbidding(number: int, argument: tuple[int, int] | None = None) -> Callable[[], None]:
    """What a child does before it becomes a program: a system call, with one argument so, is refused it (seccomp)."""
    load, equal, answer = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 3 if argument else 1, number)]
    if argument:
        steps += [(load, 0, 0, 16 + 8 * argument[0]), (equal, 0, 1, argument[1])]
    steps += [(answer, 0, 0, 0x0005_0000 | errno.EPERM), (answer, 0, 0, 0x7FFF_0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def forbid() -> None:
        program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
        if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program):  # no new privileges, then the filter
            os._exit(77)

    return forbid


X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are x86-64's")


@pytest.fixture
def said(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What `rnic devinfo` says of a device that the NIC process has at an address."""
    monkeypatch.setenv("RNIC_RUNTIME_DIR", env["RNIC_RUNTIME_DIR"])
    return kernel_bypass


@X86
@pytest.mark.slow
def test_where_sockets_may_share_no_port_the_nic_process_does_all(
    plain: Path, bypass: dict[str, str], said: Callable[[str], str]
) -> None:
    """The system refuses the filter that steers: the program works all the same, and `rnic devinfo` says why."""
    address = f"{NET}.39"
    with (
        served(bypass, address, first=forbidding(SETSOCKOPT, (2, ATTACH_FILTER))) as nic,
        going_on(plain, bypass) as program,
    ):
        seen = slots(nic)
        assert seen["slots"] == []
        assert "refuses sockets that share a port" in seen["refused"]
        assert str(program.pid) in seen["left_out"]
        assert "refuses sockets that share a port" in said(address)
        assert ask(nic.directory, "rnic0", "counters")["rx_packets"]
        program.kill()
        program.wait()
        nic.settled()
        assert slots(nic)["left_out"] == {}


@X86
@pytest.mark.slow
def test_a_program_that_may_not_run_it_leaves_it_to_the_nic_process(
    plain: Path, bypass: dict[str, str], said: Callable[[str], str]
) -> None:
    """Its own system calls are refused: the slot is given back, and another program has one all the same."""
    address = f"{NET}.40"
    with served(bypass, address) as nic, going_on(plain, bypass, forbidding(SOCKETPAIR)) as program:
        assert slots(nic)["slots"] == []
        assert slots(nic)["left_out"] == {str(program.pid): "its kernel does not let it run the data path"}
        with going_on(plain, bypass) as other:
            assert moves(nic)
            assert [slot["pid"] for slot in slots(nic)["slots"]] == [other.pid]
            assert said(address).startswith("1 programs")
            assert f"not program {program.pid}" in said(address)
        assert program.poll() is None


@pytest.mark.slow
def test_a_program_that_counts_nonsense_is_not_believed(plain: Path, bypass: dict[str, str]) -> None:
    """2^64 - 1 in all counters of its slot: the device's counters stay possible, after its end as well."""
    most = 60 * MAX_BYTES_PER_S
    first, last = place(SLOT, "rx_packets") * WORD_BYTES, SLOT.size
    with served(bypass, f"{NET}.45") as nic:
        with going_on(plain, bypass) as program:
            assert moves(nic)
            before = ask(nic.directory, "rnic0", "counters")["rx_packets"]
            with Path(f"/proc/{program.pid}/maps").open() as maps:
                (line,) = (line for line in maps if "rnic slot" in line)
            with Path(f"/proc/{program.pid}/mem").open("r+b", buffering=0) as memory:
                memory.seek(int(line.split("-")[0], 16) + first)
                memory.write(b"\xff" * (last - first))
            seen = ask(nic.directory, "rnic0", "counters")
            assert before <= seen["rx_packets"] <= most
            assert seen["slots_not_believable"] == 1
            assert max(seen.values()) <= most
            assert [slot["believable"] for slot in slots(nic)["slots"]] == [False]
            assert moves(nic)  # what it counts from there on is possible again
        end = time.monotonic() + LONGEST
        while slots(nic)["slots"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        seen = ask(nic.directory, "rnic0", "counters")
        assert seen["slots_not_believable"] == 1
        assert max(seen.values()) <= most
        shown = nic.directory / "paths/all/sys/class/infiniband/rnic0/ports/1/counters"
        assert all(int(each.read_text()) <= most for each in shown.iterdir())


@pytest.mark.slow
def test_a_program_whose_memory_nobody_may_look_into(
    plain: Path, bypass: dict[str, str], said: Callable[[str], str]
) -> None:
    """As with yama's settings: a thread of the program copies, and the NIC process takes the data path."""
    address = f"{NET}.41"
    with served(bypass, address) as nic, going_on(plain, {**bypass, "RNIC_DMA": "copy"}) as program:
        assert slots(nic)["slots"] == []
        assert "may not access its memory" in slots(nic)["left_out"][str(program.pid)]
        assert "may not access its memory" in said(address)


@pytest.mark.slow
def test_ipv6(plain: Path, bypass: dict[str, str]) -> None:
    """The program takes its packets itself there, too."""
    with served({**bypass, "RNIC_PORT": "0"}, "::1") as nic, going_on(plain, bypass) as program:
        assert moves(nic)
        (slot,) = slots(nic)["slots"]
        assert slot["pid"] == program.pid
        seen = ask(nic.directory, "rnic0", "counters")
        assert seen["slot_0_rx_packets"] == 0
        assert 0 < seen["punt_unknown"] < 20


PINGPONG = "ibv_rc_pingpong"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(PINGPONG) is None, reason=f"needs {PINGPONG} of rdma-core")
@pytest.mark.parametrize("events", [[], ["-e"]], ids=["polled", "events"])
@pytest.mark.parametrize("ours", ["serves", "calls"])
def test_a_python_program_with_a_slot_is_a_peer_like_any_other(
    bypass: dict[str, str], ours: str, events: list[str]
) -> None:
    """Against a C program with a slot, each of which checks what it gets: the NIC process takes no packet of theirs."""
    address = f"{NET}.43"
    with socket.socket() as sock:
        sock.bind(("", 0))
        port = str(sock.getsockname()[1])
    rnic_ = [sys.executable, "-m", "rnic.cli"]
    how = ["-p", port, "-g", "0", "-n", "300", "-c", "-s", "5000", *events]
    python = [*rnic_, "pingpong", "--compat", "ibv", "--nic-process", "--addr", address, *how]
    c = [*rnic_, "exec", "--bypass", "--addr", address, "--", PINGPONG, *how]
    server, client = (python, c) if ours == "serves" else (c, python)
    pipe = subprocess.PIPE
    with (
        served(bypass, address) as nic,
        subprocess.Popen(server, env=bypass, stdout=pipe, stderr=subprocess.STDOUT, text=True) as first,
    ):
        try:
            end = time.monotonic() + LONGEST
            while time.monotonic() < end and first.poll() is None:
                done = subprocess.run([*client, "127.0.0.1"], env=bypass, capture_output=True, text=True, check=False)
                if done.returncode == 0:  # else the server does not listen yet
                    break
            assert done.returncode == 0, done.stdout + done.stderr
            assert first.wait(LONGEST) == 0, first.communicate()
        finally:
            first.kill()
        nic.settled()
        seen = ask(nic.directory, "rnic0", "counters")
        assert seen["slots_before_rx_packets"] >= 2 * 300 * 2
        assert seen["slot_0_rx_packets"] == 0
        assert seen["punt_unknown"] < 20


@X86
@pytest.mark.slow
def test_a_python_program_that_may_not_run_it_leaves_it_to_the_nic_process(
    bypass: dict[str, str], said: Callable[[str], str]
) -> None:
    """Its own system calls are refused: it says so, works all the same, and has given the slot back."""
    address = f"{NET}.44"
    code = f"""
import sys, warnings, rnic
with warnings.catch_warnings(record=True) as told, rnic.open({address!r}) as ctx:
    assert [each.category for each in told] == [RuntimeWarning], told
    assert "cannot run the data path itself" in str(told[0].message)
    print(ctx.bypass, rnic.PD(ctx).handle > 0, flush=True)
    sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with (
        served(bypass, address) as nic,
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=bypass,
            stdin=pipe,
            stdout=pipe,
            text=True,
            preexec_fn=forbidding(SOCKETPAIR),  # noqa: PLW1509 - a system call
        ) as program,
    ):
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "False True\n"
            assert slots(nic)["slots"] == []
            assert slots(nic)["left_out"] == {str(program.pid): "its kernel does not let it run the data path"}
            assert f"not program {program.pid}" in said(address)
        finally:
            program.kill()
