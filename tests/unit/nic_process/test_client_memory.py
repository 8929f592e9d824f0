"""The port to a program's memory: that of the program which opened the file, and of no other with its number."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rnic.nic_process.client_memory import ProgramMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/PID/mem is Linux's")

PROGRAM = "import os, sys; print(flush=True); sys.stdin.read()"
APART = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
AGAIN = """
import errno, os
from pathlib import Path
from rnic.nic_process.client_memory import ProgramMemory

def process():
    asked, asks = os.pipe()
    said, says = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(says, b"x")
        os.read(asked, 1)
        os._exit(0)
    os.read(said, 1)
    return pid, asks

first, end = process()
memory = os.open(f"/proc/{first}/mem", os.O_RDWR)
ProgramMemory(os.dup(memory), first).close()
os.write(end, b"x")
os.waitpid(first, 0)
try:
    ProgramMemory(memory, first)
except OSError as error:
    print(errno.errorcode[error.errno])
Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))
second, end = process()
assert second == first
try:
    ProgramMemory(memory, second)
except OSError as error:
    print(errno.errorcode[error.errno])
ProgramMemory(os.open(f"/proc/{second}/mem", os.O_RDWR), second).close()
os.write(end, b"x")
"""


@contextlib.contextmanager
def program() -> Iterator[int]:
    """A process of this user that lives on meanwhile."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.communicate(timeout=120)


def memory_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)


def test_a_program_s_own_memory_is_taken() -> None:
    port = ProgramMemory(memory_of(os.getpid()), os.getpid())
    found = bytearray(1)
    assert not port.read(0, found)
    port.close()


@pytest.mark.slow
def test_another_process_s_memory_is_refused() -> None:
    """As where the program has ended, and its number is another process's."""
    with program() as other:
        memory = memory_of(os.getpid())
        with pytest.raises(ProcessLookupError, match=f"program {other} has ended, and another process has its number"):
            ProgramMemory(memory, other)
        os.fstat(memory)
        os.close(memory)
        ProgramMemory(memory_of(other), other).close()


def test_files_of_another_mount_say_nothing() -> None:
    """Containers that share a runtime directory may have mounted /proc anew."""
    one, other = socket.socketpair()
    ProgramMemory(os.dup(one.fileno()), os.getpid()).close()
    one.close()
    other.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare makes namespaces")
def test_a_number_that_is_used_again_is_no_program_s() -> None:
    """Its successor's rights are not taken for those of the program that opened the file."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system makes no PID namespaces for this user")
    command = [*APART, sys.executable, "-c", AGAIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "ns_last_pid" in done.stderr and "Error" in done.stderr:
        pytest.skip("this system lets nobody choose the next process number")
    assert (done.returncode, done.stdout.split()) == (0, ["ENOENT", "ESRCH"]), done.stderr
