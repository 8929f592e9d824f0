#!/usr/bin/env python3
"""Start a peer of the interop matrix, play all packet scripts against it, and write the report.

    matrix_peer.py nic-process|gateware|rxe 4|6 [KERNEL] REPORT

KERNEL is a kernel version, such as 6.12, that Debian offers in addition to its default.

Exit status: as `rnic conform`; 127 if this machine cannot run the peer, 3 if the run failed, with the reason on stderr.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rig import UnavailableError, booted

UNSUPPORTED, BROKEN = 127, 3
SECONDS = 600
STARTS = 60
"""Seconds for a program to start listening."""
PORT = 18600
AGENT, TESTER = "127.0.9.1", "127.0.9.2"
GID_INDEX = {4: 1, 6: 2}
"""Index in the guest's GID table by IP version."""


def rnic(*words: str | Path) -> list[str]:
    """Return a command of rnic."""
    return [sys.executable, "-m", "rnic.cli", *map(str, words)]


def play(name: str, report: str, peer: str, address: str) -> list[str]:
    """Return the command that plays the scripts."""
    words = ("conform", peer, "--addr", address, "--agent-port", str(PORT), "--peer-name", name, "--report", report)
    return rnic(*words)


def unsupported(why: str) -> int:
    """Print why a peer cannot run here."""
    print(why, file=sys.stderr)
    return UNSUPPORTED


def build_agent(folder: Path) -> Path | None:
    """Build the agent for libibverbs devices; return ``None`` if this machine cannot."""
    if shutil.which("cc") is None or not Path("/usr/include/infiniband/verbs.h").exists():
        return None
    source, program = folder / "agent.c", folder / "conform-agent"
    source.write_bytes(subprocess.run(rnic("conform", "--agent-source"), check=True, capture_output=True).stdout)
    subprocess.run(["cc", "-O1", source, "-o", program, "-libverbs"], check=True)
    return program


def broken(why: str) -> int:
    """Print why a run of a supported peer failed."""
    print(why, file=sys.stderr)
    return BROKEN


def listens(port: int, seconds: float = 0) -> bool:
    """Return whether a program listens on a TCP port, on the agent's or on any address, within some seconds."""
    end = time.monotonic() + seconds
    while True:
        for address in ("127.0.0.1", AGENT):
            with socket.socket() as sock:
                if sock.connect_ex((address, port)) == 0:
                    return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)


def nic_process(report: str) -> int:
    """Run the C agent, a libibverbs program, under ``rnic exec``, with the data path in its own process."""
    with tempfile.TemporaryDirectory(prefix="rnic-matrix-") as folder:
        program = build_agent(Path(folder))
        if program is None:
            return unsupported("the agent needs a C compiler and infiniband/verbs.h (libibverbs-dev)")
        if listens(PORT):
            return broken(f"another program listens on TCP port {PORT}, which the agent needs: stop it")
        environment = os.environ | {"RNIC_RUNTIME_DIR": folder}
        words = rnic("exec", "--addr", AGENT, "--", program, "rnic0", "0", str(PORT))
        agent = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            if not listens(PORT, STARTS):
                return broken(f"the agent did not listen on TCP port {PORT}")
            name = "rnic, program on libibverbs with the NIC process"
            return subprocess.run(play(name, report, AGENT, TESTER), timeout=SECONDS, check=False).returncode
        finally:
            agent.terminate()
            agent.wait()


def choose_kernel(version: str) -> str | None:
    """Set up a guest with another kernel, in a separate folder and network namespace; return why that is not possible,
    if so."""
    words = ["apt-cache", "depends", f"linux-image-{version}-amd64"]
    try:
        lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        return "the kernel is a package of Debian's, and there is no apt-cache"
    package = next((line.split()[-1] for line in lines if "Depends: linux-image-" in line), None)
    if package is None:
        return f"there is no package linux-image-{version}-amd64: its list may be old (apt-get update)"
    work = os.environ.get("RXE_WORK") or f"{tempfile.gettempdir()}/rxe-guest"
    os.environ.update(RXE_KPKG=package, RXE_WORK=f"{work}-{version}", RXE_NS=f"rxe-{version}")
    return None


def rxe(family: int, report: str) -> int:
    """Run Soft-RoCE of a Linux kernel in the QEMU guest."""
    with tempfile.TemporaryDirectory(prefix="rnic-matrix-") as folder:
        program = build_agent(Path(folder))
        if program is None:
            return unsupported("the agent needs a C compiler and infiniband/verbs.h (libibverbs-dev)")
        try:
            with booted(keep=False) as rig:
                rig.put(program, "/bin/conform-agent")
                kernel = rig.ask_guest("uname -r").strip()
                words = ["conform-agent", "rxe0", str(GID_INDEX[family]), str(PORT)]
                agent = rig.in_guest(shlex.join(words), SECONDS)
                if not rig.wait_listening("guest", PORT):
                    return broken(f"the agent did not listen on TCP port {PORT} of the guest")
                name = f"Soft-RoCE of Linux {kernel}, IPv{family}"
                tester = rig.beside(*play(name, report, rig.guest[4], rig.host[family]))
                try:
                    print(tester.communicate(timeout=SECONDS)[0], end="")
                finally:
                    tester.kill()
                rig.ask_guest("killall conform-agent")
                agent.communicate()
                return tester.returncode
        except UnavailableError as error:
            return unsupported(str(error))
        except RuntimeError as error:
            return broken(str(error))


def gateware(report: str) -> int:
    """Report the gateware as unsupported: it is a descriptor engine and contexts without a transport."""
    return unsupported("the gateware has no transport of its own: it is tested in lockstep with its model")


def main(argv: list[str]) -> int:
    """Run one peer. A failed command is not a script's verdict."""
    try:
        return run_peer(argv)
    except subprocess.TimeoutExpired as error:
        return broken(f"{Path(error.cmd[0]).name}: no end within {error.timeout:g} s")
    except subprocess.CalledProcessError as error:
        return broken(f"{Path(error.cmd[0]).name}: exit status {error.returncode}")


def run_peer(argv: list[str]) -> int:
    """Run the peer that the arguments name."""
    match argv:
        case ["nic-process", report]:
            return nic_process(report)
        case ["gateware", report]:
            return gateware(report)
        case ["rxe", "4" | "6" as family, report]:
            return rxe(int(family), report)
        case ["rxe", "4" | "6" as family, version, report]:
            why_not = choose_kernel(version)
            return rxe(int(family), report) if why_not is None else unsupported(why_not)
    words = "give nic-process, gateware, or rxe, 4 or 6, and perhaps a kernel; and the report"
    print(f"matrix_peer.py: {words}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(BROKEN))  # also terminate its programs
    sys.exit(main(sys.argv[1:]))
