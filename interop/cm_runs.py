#!/usr/bin/env python3
"""Live runs of connection management: librdmacm's programs in a guest with Linux Soft-RoCE against the same programs of
this machine, unmodified, under `rnic exec`; each as client and as server.

Exit status: 0 all runs good, 1 one was not, 77 this machine cannot run the guest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rig import UNAVAILABLE, Rig, UnavailableError, booted

RNIC = Path(sys.executable).parent / "rnic"
SECONDS = 30
SETTLE_S = 3.0
"""How long a server may take until it listens; nothing outside shows when it does."""

PROGRAMS: tuple[tuple[int, str, str], ...] = (
    (4, "rping -C 10 -V -s -a SERVER", "rping -C 10 -V -c -a SERVER"),
    (6, "rping -C 10 -V -s -a SERVER", "rping -C 10 -V -c -a SERVER"),
    (4, "ucmatose -c 8 -C 10", "ucmatose -c 8 -C 10 -s SERVER"),
    (4, "udaddy -c 4 -C 8", "udaddy -c 4 -C 8 -s SERVER"),
)
"""IP version, server and client."""


def run(rig: Rig, family: int, server: str, client: str, rnic_serves: bool) -> str:
    """One run; what is wrong with it, empty if nothing is."""
    address = rig.host[family] if rnic_serves else rig.guest[family]
    words = [each.replace("SERVER", address) for each in (server, client)]
    with tempfile.TemporaryDirectory(prefix="rnic-live-", ignore_cleanup_errors=True) as runtime:
        ours = ["env", f"RNIC_RUNTIME_DIR={runtime}", str(RNIC), "exec", "--addr", rig.host[family], "--"]

        def start(word: str, here: bool) -> subprocess.Popen[str]:
            return rig.beside("timeout", str(SECONDS), *ours, *word.split()) if here else rig.in_guest(word, SECONDS)

        first = start(words[0], rnic_serves)
        time.sleep(SETTLE_S)
        second = start(words[1], not rnic_serves)
        for name, end in (("client", second), ("server", first)):
            said = end.communicate()[0]
            if end.returncode:
                first.kill()
                return f"{name} exited with {end.returncode}: {said.strip().splitlines()[-1:]}"
    return ""


def main() -> int:
    """Run, and always tear down."""
    bad = 0
    try:
        with booted() as rig:
            for family, server, client in PROGRAMS:
                for rnic_serves in (False, True):
                    problem = run(rig, family, server, client, rnic_serves)
                    bad += bool(problem)
                    role = "server" if rnic_serves else "client"
                    print(f"{server.split()[0]:12} ipv{family} {role}  {problem or 'ok'}", flush=True)
    except UnavailableError as error:
        print(f"interop: {error}", file=sys.stderr)
        return UNAVAILABLE
    print(f"interop: {2 * len(PROGRAMS) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
