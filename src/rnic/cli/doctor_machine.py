"""Check this machine for ``rnic doctor``: one finding for each thing that programs under ``rnic exec`` need."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rnic.abi.build import find_compiler
from rnic.abi.library_paths import LIBRARIES
from rnic.cli.devinfo import kernel_bypass, running_devices
from rnic.link.base import LinkError
from rnic.link.udp import BUFFER_BYTES, UdpLink
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.spec import attach, twins
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.verbs import get_device_list
from rnic.verbs.devices import in_flight

OK, NOTE, FAILS = "ok", "note", "fails"
"""Levels of a finding: nothing to do; programs run, slower or with a limit; programs do not run."""
ROOT = Path("/")
LOOPBACK = "127.0.0.1"
MOST_IN_FLIGHT = 512
"""Packets that a queue pair may have in flight if the receive buffer holds enough."""
ENOUGH_DESCRIPTORS = 1024
LONGEST_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (``sun_path`` of unix(7), without its NUL)."""
PROBE_SECONDS = 30
CONTAINER_VARIABLE = "container"
"""Environment variable in which container engines and systemd name themselves."""
CONTAINER_FILES = {"run/.containerenv": "Podman", ".dockerenv": "Docker"}
YAMA = {
    "0": "programs of one user may look into each other",
    "1": "only a parent may look into a program",
    "2": "only a program with CAP_SYS_PTRACE may look into another",
    "3": "no program may look into another",
}

TARGET = "import sys; data = b'rnic'; print(id(data), flush=True); sys.stdin.read()"
"""A program that prints the address of an object, and waits."""
READER = """
import ctypes, json, os, sys
pid, address = map(int, sys.argv[1:])
found = {}
try:
    open(f"/proc/{pid}/maps").close()
except OSError as error:
    found["maps"] = error.errno
class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
buf = ctypes.create_string_buffer(8)
here, there = Range(ctypes.addressof(buf), 8), Range(address, 8)
call = ctypes.CDLL(None, use_errno=True).process_vm_readv
call.restype = ctypes.c_ssize_t
if call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != 8:
    found["process_vm_readv"] = ctypes.get_errno()
print(json.dumps(found))
"""
"""A second program, in the role of the NIC process: prints the errno of each refused way to read."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        name: name of the check, in a word or two.
        level: ``ok``, ``note`` or ``fails``.
        found: observed state.
        consequence: effect on programs; empty if there is none.
        remedy: what to do; empty if nothing is needed.
    """

    name: str
    level: str
    found: str
    consequence: str = ""
    remedy: str = ""

    def line(self, width: int) -> str:
        """Return the finding as one line of text, its name padded to ``width``."""
        said = ": ".join(filter(None, (self.found, self.consequence)))
        return f"{self.level:<6}{self.name:<{width}}  {'; '.join(filter(None, (said, self.remedy)))}"


def setting(path: str, root: Path = ROOT) -> str:
    """Return the text of a kernel file, such as ``proc/sys/net/core/rmem_max``; empty if it does not exist."""
    with contextlib.suppress(OSError):
        return (root / path).read_text(errors="replace").strip()
    return ""


def kernel(system: str = platform.system()) -> Finding:
    """Return the finding on the operating system."""
    found = f"{system} {platform.release()} {platform.machine()}"
    if system != "Linux":
        return Finding(
            "kernel",
            FAILS,
            found,
            "rnic exec and rnic serve need Linux; rnic decode, check and sim do not",
            "use a Linux machine or container",
        )
    return Finding("kernel", OK, found)


def libc(found: str | None = None) -> Finding:
    """Return the finding on this Python's C library; rnic's libraries need glibc."""
    if found is None:
        with contextlib.suppress(ValueError, OSError, AttributeError):
            found = os.confstr("CS_GNU_LIBC_VERSION")
    if not found:
        return Finding(
            "C library",
            FAILS,
            "not glibc",
            "rnic's libraries are made for glibc, so rnic exec runs no programs",
            "use an image with glibc, such as debian",
        )
    return Finding("C library", OK, found)


def compiled() -> Finding:
    """Return the finding on the C engine."""
    absent = sorted(name for name, there in twins.in_use.items() if not there)
    if absent:
        return Finding(
            "engine",
            NOTE,
            f"plain Python for {', '.join(absent)}",
            "slower, and programs cannot run the data path themselves",
            "install a wheel, or install gcc and rnic again; unset RNIC_PLAIN and RNIC_ENGINE",
        )
    return Finding("engine", OK, "compiled")


def libraries(directory: Path | None = None) -> Finding:
    """Return the finding on ``libibverbs.so.1``; ``directory`` is the package's own or that of RNIC_LIBRARIES."""
    directory = directory or Path(os.environ.get("RNIC_LIBRARIES") or LIBRARIES)
    if not (directory / "libibverbs.so.1").exists():
        first = "" if find_compiler() else "install gcc, then "
        return Finding(
            "libraries",
            FAILS,
            f"no {directory / 'libibverbs.so.1'}",
            "rnic exec runs no programs",
            f"{first}run `{sys.executable} -m rnic.abi.build`",
        )
    return Finding("libraries", OK, str(directory))


def compiler() -> Finding:
    """Return the finding on the C compiler."""
    found = find_compiler()
    return Finding("compiler", OK, found or "none", "" if found else "needed only to build what a wheel has already")


def buffers(root: Path = ROOT) -> Iterator[Finding]:
    """Open a NIC's socket, and yield findings on its buffers."""
    try:
        link = UdpLink(LOOPBACK, 0)
    except (LinkError, OSError) as error:
        yield Finding("socket", FAILS, str(error), "no NIC can be opened", "bring the loopback interface up")
        return
    with contextlib.closing(link):
        packets = in_flight(link, MOST_IN_FLIGHT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        sending = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
    most = setting("proc/sys/net/core/rmem_max", root) or "unknown"
    if packets < MOST_IN_FLIGHT // 2:
        yield Finding(
            "rmem_max",
            NOTE,
            f"{most} bytes",
            f"a NIC has at most {packets} packets in flight, so long transfers are slow",
            "as root: sysctl -w net.core.rmem_max=4194304",
        )
    else:
        yield Finding("rmem_max", OK, f"{most} bytes", f"{packets} packets in flight")
    found = f"{setting('proc/sys/net/core/wmem_max', root) or sending} bytes"
    yield Finding("wmem_max", OK, found, "a NIC that finds its send buffer full waits and loses nothing")


def directory() -> Finding:
    """Return the finding on the runtime directory and its NIC process."""
    try:
        place = runtime_directory()
    except ProcessError as error:
        return Finding("runtime", FAILS, str(error), "no NIC process can be started")
    bytes_ = len(os.fsencode(place / attach.SOCKET_NAME))
    if bytes_ > LONGEST_SOCKET_PATH:
        return Finding(
            "runtime",
            FAILS,
            f"{place / attach.SOCKET_NAME} has {bytes_} bytes",
            f"a Unix socket's path has at most {LONGEST_SOCKET_PATH}",
            "set RNIC_RUNTIME_DIR to a shorter one",
        )
    devices = ", ".join(f"{each.name} ({each.address})" for each in running_devices())
    return Finding("runtime", OK, str(place), f"a NIC process runs: {devices}" if devices else "no NIC process runs")


def ports() -> Iterator[Finding]:
    """Try UDP port 4791 at each of this machine's addresses."""
    running = {each.address for each in running_devices()}
    for device in get_device_list():
        name = f"port {ROCE_UDP_PORT}"
        if device.address in running:
            yield Finding(name, OK, f"{device.address}: this user's NIC process has it")
            continue
        try:
            UdpLink(device.address, ROCE_UDP_PORT).close()
        except (LinkError, OSError) as error:
            yield Finding(
                name,
                NOTE,
                f"{device.address}: {error}",
                "rnic exec makes no device there unless it gets another port",
                f"find its owner by `ss -ulpn sport = :{ROCE_UDP_PORT}`, or give --udp-port 0",
            )
        else:
            yield Finding(name, OK, f"{device.address}: free")


def bypass() -> Finding:
    """Return the finding on whether programs may run the data path themselves."""
    why = kernel_bypass(LOOPBACK)
    if why.startswith("not here: "):
        return Finding("bypass", NOTE, why.removeprefix("not here: "), "the NIC process runs the data path, slower", "")
    return Finding("bypass", OK, why)


def yama(root: Path = ROOT) -> Finding:
    """Return yama's setting; :func:`memory` measures its effect."""
    scope = setting("proc/sys/kernel/yama/ptrace_scope", root)
    return Finding("yama", OK, f"ptrace_scope {scope}" if scope else "not in this kernel", YAMA.get(scope, ""))


def seccomp(root: Path = ROOT) -> Finding:
    """Return the finding on a system call filter."""
    status = dict(line.partition(":")[::2] for line in setting("proc/self/status", root).splitlines())
    filters = status.get("Seccomp", "").strip()
    if filters in ("", "0"):
        return Finding("seccomp", OK, "no filter")
    return Finding("seccomp", OK, f"mode {filters}", "a filter forbids some calls; the lines below tell those in use")


def probe() -> dict[str, int]:
    """Let one process read another, as the NIC process reads programs; return the errno of each refused access."""
    python = [sys.executable, "-I", "-S", "-c"]
    with subprocess.Popen([*python, TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdin is not None
        assert target.stdout is not None
        with target.stdin:
            command = [*python, READER, str(target.pid), target.stdout.readline().strip()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
            found: dict[str, int] = json.loads(done.stdout or '{"maps": 0, "process_vm_readv": 0}')
            return found


def memory(refused: dict[str, int] | None = None) -> Iterator[Finding]:
    """Yield findings on how the NIC process can access programs' memory; ``refused`` is the result of :func:`probe`."""
    if refused is None:
        try:
            refused = probe()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            yield Finding("memory", NOTE, f"could not be tried: {error}")
            return
    name = "/proc/PID/maps"
    if "maps" in refused:
        yield Finding(
            name,
            NOTE,
            errno.errorcode.get(refused["maps"], "no answer"),
            "a thread in each program copies for the NIC process, slower",
            "give the container CAP_SYS_PTRACE, or run both as one user in one PID namespace",
        )
    else:
        yield Finding(name, OK, "readable", "the NIC process reaches the memory of programs")
    name = "process_vm_readv"
    if name in refused:
        yield Finding(
            name,
            NOTE,
            errno.errorcode.get(refused[name], "no answer"),
            "local programs copy the bytes of long messages twice through shared rings",
            "as root: sysctl -w kernel.yama.ptrace_scope=0, or a seccomp profile that allows it",
        )
    else:
        yield Finding(name, OK, "allowed", "local programs copy the bytes of long messages once")


def shared_memory() -> Finding:
    """Return the finding on memory files (``memfd_create``): can they be created and grown?"""
    try:
        fd = os.memfd_create("rnic doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError) as error:
        return Finding(
            "shared memory",
            FAILS,
            f"memfd_create: {error}",
            "no program can open a device",
            "allow memfd_create in the seccomp profile",
        )
    try:
        os.posix_fallocate(fd, 0, 1 << 20)
    except OSError as error:
        return Finding(
            "shared memory",
            FAILS,
            f"1 MiB: {error.strerror}",
            "a device's rings find no memory",
            "raise the container's memory limit",
        )
    finally:
        os.close(fd)
    return Finding("shared memory", OK, "memfd_create works", "/dev/shm is not used")


def limits(descriptors: tuple[int, int] | None = None, locked: int | None = None) -> Iterator[Finding]:
    """Yield findings on the limits of descriptors and locked memory, by default of this process."""
    import resource  # noqa: PLC0415 - not on every system

    soft, hard = descriptors or resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    if soft != infinite and soft < ENOUGH_DESCRIPTORS:
        yield Finding(
            "nofile",
            NOTE,
            f"{soft} descriptors",
            "a program with many completion channels or connections may run out",
            f"ulimit -n {ENOUGH_DESCRIPTORS if hard in (infinite, -1) else min(hard, ENOUGH_DESCRIPTORS)}",
        )
    else:
        yield Finding("nofile", OK, "unlimited" if soft == infinite else f"{soft} descriptors")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if locked is None else locked
    said = "unlimited" if locked == infinite else f"{locked >> 10} KiB"
    yield Finding("memlock", OK, said, "rnic locks no memory; a program that calls mlock itself has this limit")


def container(root: Path = ROOT) -> Finding:
    """Return the finding on the container that this process runs in."""
    kind = next((name for path, name in CONTAINER_FILES.items() if (root / path).exists()), "")
    if not kind and "KUBERNETES_SERVICE_HOST" in os.environ:
        kind = "Kubernetes"
    kind = kind or os.environ.get(CONTAINER_VARIABLE, "")
    if not kind:
        return Finding("container", OK, "none seen")
    addresses = [each.address for each in get_device_list() if not ipaddress.ip_address(each.address).is_loopback]
    reach = f"--addr {addresses[0]}" if addresses else "give the container a network"
    return Finding("container", OK, kind, f"peers in other containers need a device on its interface: {reach}")


def adapters(root: Path = ROOT) -> Finding:
    """Return the kernel's own RDMA devices."""
    with contextlib.suppress(OSError):
        names = sorted(each.name for each in (root / "sys/class/infiniband").iterdir())
        if names:
            return Finding("kernel RDMA", OK, ", ".join(names), "programs under rnic exec do not see these devices")
    return Finding("kernel RDMA", OK, "no device", "none is needed")


def inside() -> Finding | None:
    """Return a note if this runs under ``rnic exec`` itself; ``None`` if it does not."""
    device = os.environ.get("RNIC_DEVICE")
    if not device:
        return None
    return Finding("rnic exec", NOTE, f"this runs under it, with {device}", "a program gets these devices too")


def own_python() -> Finding:
    """Return the finding on Python and the ``rnic`` command."""
    command = shutil.which("rnic")
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if command is None:
        return Finding("rnic", OK, found, "no `rnic` on PATH", f"use {sys.executable} -m rnic.cli")
    return Finding("rnic", OK, found, command)


def machine() -> Iterator[Finding]:
    """Yield all findings on this machine."""
    yield own_python()
    first = kernel()
    yield first
    if first.level == FAILS:
        return
    yield from (libc(), compiled(), libraries(), compiler(), container())
    if (found := inside()) is not None:
        yield found
    yield from (directory(), *ports(), *buffers(), bypass(), yama(), seccomp(), *memory(), shared_memory())
    yield from (*limits(), adapters())


__all__ = ["FAILS", "NOTE", "OK", "Finding", "machine"]
