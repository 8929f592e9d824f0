"""What a user can get wrong, or not have: each its own line, exit status 2, and no traceback."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.runtime.attach import connect, start
from rnic.spec import attach
from rnic.testing import own_network

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

pytestmark = pytest.mark.slow
ADDRESS = f"{NET}.101"


def run(env: dict[str, str], *options: str, program: tuple[str, ...] = ("true",)) -> tuple[int, str]:
    """Exit status and words of ``rnic exec``, which says one line or nothing."""
    command = [sys.executable, "-m", "rnic.cli", "exec", *options, "--", *program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.count("\n") <= 1, done.stderr
    return done.returncode, done.stderr.strip()


def test_program_that_is_not_there(env: dict[str, str]) -> None:
    said = "rnic: program 'no-such-program' was not found: install it, or give its path"
    assert run(env, program=("no-such-program",)) == (127, said)


def test_address_in_use(env: dict[str, str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((ADDRESS, 0))
        port = other.getsockname()[1]
        assert run(env, "--addr", ADDRESS, "--udp-port", str(port)) == (
            2,
            f"rnic: UDP port {port} on {ADDRESS} is taken: give another port (0 lets the system choose one)"
            " or another local address; programs that are to share one NIC open it with rnic.open()",
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--addr", "bogus"), "address 'bogus' is not an IPv4 or IPv6 address: give one such as 127.0.0.1"),
        (("--addr", "203.0.113.9"), "cannot be used: the address is not one of this machine"),
        (("--faults", "/nowhere/script"), "fault script /nowhere/script: No such file or directory: give a file"),
        (("--faults", '[{"every": 50'), "fault script is not valid JSON: Expecting ',' delimiter at line 1, column 14"),
        (("--faults", '{"every": 50}'), "fault script: a fault script is a list of rules, not dict"),
        (("--faults", '[{"action": "explode"}]'), "fault rule 1: action is 'explode'; allowed: one of drop"),
        (("--capture", "/nowhere/x.pcapng"), "capture file /nowhere/x.pcapng: No such file or directory"),
    ],
)
def test_options_that_cannot_be_met(env: dict[str, str], options: tuple[str, ...], words: str) -> None:
    address = () if "--addr" in options else ("--addr", f"{NET}.102")
    status, said = run(env, *address, *options)
    assert status == 2
    assert words in said


@pytest.fixture
def held(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a NIC process that has a user."""
    directory = Path(env["RNIC_RUNTIME_DIR"])
    connection = start(directory)
    yield directory
    connection.close()


def test_a_broken_fault_script_is_called_so_beside_a_device_that_runs(env: dict[str, str], held: Path) -> None:
    user = connect(held)
    assert user is not None
    user.request(attach.MSG_ADD, json.dumps({"address": f"{NET}.104"}).encode())
    where = "fault script is not valid JSON: Expecting ',' delimiter at line 1, column 14: after '[{\"every\": 50'"
    assert run(env, "--addr", f"{NET}.104", "--faults", '[{"every": 50') == (2, f"rnic: {where}")
    status, said = run(env, "--addr", f"{NET}.104", "--faults", '[{"every": 50, "action": "drop"}]')
    assert (status, "runs already without this faults setting" in said) == (2, True)
    user.close()


def test_a_device_that_runs_without_the_recording_that_is_asked_for(env: dict[str, str], held: Path) -> None:
    user = connect(held)
    assert user is not None
    user.request(attach.MSG_ADD, json.dumps({"address": f"{NET}.103"}).encode())
    status, said = run(env, "--addr", f"{NET}.103", "--capture", str(held / "x.pcapng"))
    assert (status, said) == (
        2,
        f"rnic: device rnic0 at {NET}.103 runs already without this capture setting:"
        " use another address, or wait until its users are gone",
    )

    user.close()


def test_what_one_program_asked_for_ends_with_it(env: dict[str, str], held: Path) -> None:
    recording = held / "x.pcapng"
    for options in (("--capture", str(recording)), ("--faults", '[{"action": "drop"}]'), ()):
        assert run(env, "--addr", f"{NET}.106", *options) == (0, "")
    assert recording.exists()


def test_library_and_nic_process_of_different_versions(env: dict[str, str], held: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(held / attach.SOCKET_NAME))
        hello = attach.HELLO.pack({"magic": attach.MAGIC, "version": attach.VERSION + 1, "pid": os.getpid()})
        sock.send(struct.pack("<II", attach.MSG_HELLO, 1) + hello)
        answer = sock.recv(attach.MAX_MESSAGE)
    connection = connect(held)
    assert connection is not None
    connection.close()
    assert answer[attach.REPLY_HEADER.size :].decode() == (
        f"the library speaks version {attach.VERSION + 1} of the process boundary and NIC process {connection.pid}"
        f" version {attach.VERSION}: install one rnic and end the old NIC process"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory another user's")
def test_another_users_nic(env: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    os.chown(other, 65534, 65534)
    assert run({**env, "RNIC_RUNTIME_DIR": str(other)}) == (
        2,
        f"rnic: runtime directory {other} is user 65534's: set RNIC_RUNTIME_DIR to one of your own",
    )


def test_runtime_directory_that_cannot_be_made(env: dict[str, str]) -> None:
    status, said = run({**env, "RNIC_RUNTIME_DIR": "/proc/nowhere"})
    assert status == 2
    assert said.startswith("rnic: runtime directory /proc/nowhere cannot be used (")


NOT_DUMPABLE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
lib = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr"):
    getattr(lib, name).restype = ctypes.c_void_p
count = ctypes.c_int()
devices = lib.ibv_get_device_list(ctypes.byref(count))
device = ctypes.cast(devices, ctypes.POINTER(ctypes.c_void_p))[0]
context = lib.ibv_open_device(ctypes.c_void_p(device))
if not context:
    sys.exit(7)
pd = lib.ibv_alloc_pd(ctypes.c_void_p(context))
memory = ctypes.create_string_buffer(4096)
assert lib.ibv_reg_mr(ctypes.c_void_p(pd), memory, ctypes.c_size_t(4096), 1), ctypes.get_errno()
assert not lib.ibv_reg_mr(ctypes.c_void_p(pd), ctypes.c_void_p(4096), ctypes.c_size_t(4096), 1)
assert ctypes.get_errno() == 14
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into programs that are not dumpable")
def test_without_ptrace_permission_the_one_way_is_refused_in_one_line(env: dict[str, str]) -> None:
    program = (sys.executable, "-c", NOT_DUMPABLE)
    status, said = run({**env, "RNIC_DMA": "mem"}, "--addr", f"{NET}.104", program=program)
    assert status == 7
    assert "unset RNIC_DMA, so that a thread copies instead" in said


def test_without_ptrace_permission_a_thread_copies(env: dict[str, str]) -> None:
    program = (sys.executable, "-c", NOT_DUMPABLE)
    said = "rnic: the NIC process runs this program's data path, which is slower: "
    said += "the NIC process may not access its memory"
    assert run(env, "--addr", f"{NET}.105", program=program) == (0, said if os.getuid() else "")


WAITS_FOR_ALL = """
import os
try:
    os.wait()
except ChildProcessError:
    print("none")
"""


def test_the_nic_process_is_nobodys_child(env: dict[str, str]) -> None:
    """Programs such as ``strace -f`` wait until all their children have ended."""
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{NET}.109", "--udp-port", "0", "--"]
    program = [sys.executable, "-c", WAITS_FOR_ALL]
    done = subprocess.run([*command, *program], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "none\n", "")


def test_refusals_leave_no_answer_unset(libraries: Path, tmp_path: Path) -> None:
    """Callers look at what an argument points to, also after an error: libfabric reads a number of devices."""
    script = f"""
import ctypes
library = ctypes.CDLL({str(libraries / "librdmacm.so.1")!r})
count = ctypes.c_int(-1)
library.rdma_get_devices.restype = ctypes.c_void_p
assert library.rdma_get_devices(ctypes.byref(count)) is None
assert library.rdma_get_devices(None) is None
print(count.value)
"""
    env = {**os.environ, "RNIC_RUNTIME_DIR": str(tmp_path), "LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
