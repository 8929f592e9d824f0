"""Debian's pyverbs suite: where its cases are, and what its words say."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

SHIPPED = Path("/usr/share/doc/rdma-core/tests")
LEAST = 100
"""Cases that have to pass."""
CONNECTIONS = ("-k", "test_rdmacm.")
"""Its cases of CMID and AddrInfo; of which as many have to pass."""
LEAST_CONNECTIONS = 10

SKIPS = {
    "needs an mlx5 device": r"(?i)\bmlx5\b|PCI device must be passed|Converting timestamp to nanoseconds",
    "needs an EFA device": r"\bEFA\b",
    "needs CUDA": r"\bcuda",
    "on-demand paging": r"\bODP\b",
    "device memory": r"Device memory is not supported",
    "XRC": r"\bXRCD?\b",
    "raw packets, RSS, flow steering": r"QP type 8 |Raw Packet QP",
    "dma-buf": r"Allocating dmabuf is not supported|dmabuf.*not supported",
    "completion timestamps, tag matching": r"Extended CQ is not supported|device real time",
    "ATOMIC WRITE": r"Extended QP is not supported on this device",
    "importing another process's device": r"Importing a device is not supported",
    "no huge pages on this machine": r"huge pages",
    "the device has no empty GID": r"All gid indices populated",
}
"""The closed list of reasons for which a case may be skipped, and the suite's words for each."""


def unpack(target: Path, address: str) -> None:
    """The suite as it is shipped, gzipped file by file, as a package ``tests`` in ``target``.

    ``target/bin/ip`` goes before the system's: the suite connects by the first address of the device's interface, and
    on the loopback interface that need not be the device's.
    """
    ip = target / "bin" / "ip"
    ip.parent.mkdir()
    seen = [{"address": "00:00:00:00:00:00", "addr_info": [{"local": address}]}]
    ip.write_text(f"#!/bin/sh\necho '{json.dumps(seen)}'\n")
    ip.chmod(0o755)
    tests = target / "tests"
    tests.mkdir()
    for path in SHIPPED.iterdir():
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        (tests / path.name.removesuffix(".gz")).write_bytes(data)


def missing() -> str | None:
    """Why the suite cannot run here, if it cannot."""
    if not SHIPPED.is_dir():
        return f"python3-pyverbs is not installed, or without {SHIPPED}"
    python = shutil.which("python3", path="/usr/bin")
    if python is None or subprocess.run([python, "-c", "import pyverbs"], env={}, check=False).returncode:
        return "/usr/bin/python3 has no pyverbs"
    return None


def count(text: str) -> tuple[int, dict[str, int], list[str]]:
    """Cases that passed, skips by reason, and what is wrong: failures, and skips for no listed reason.

    Totals are the suite's own, since what a program says may stand between a case and its verdict.
    """
    totals = {name: int(number) for name, number in re.findall(r"\b(\w+)=(\d+)", text.rpartition("Ran ")[2])}
    ran = re.search(r"^Ran (\d+) tests?", text, re.MULTILINE)
    passed = int(ran[1]) - sum(totals.values()) if ran else 0
    wrong = [line for line in text.splitlines() if re.search(r"\b(FAIL|ERROR|unexpected success)$", line)]
    skips: dict[str, int] = {}
    for said in re.findall(r"skipped ['\"](.*)['\"]$", text, re.MULTILINE):
        reason = next((reason for reason, words in SKIPS.items() if re.search(words, said)), None)
        if reason is None:
            wrong.append(f"skipped for no listed reason: {said}")
        else:
            skips[reason] = skips.get(reason, 0) + 1
    if not wrong and sum(skips.values()) != totals.get("skipped", 0):
        wrong.append(f"{totals.get('skipped', 0)} cases were skipped, {sum(skips.values())} of them with a reason")
    return passed, skips, wrong


def verdict(text: str, status: int, least: int = LEAST) -> tuple[str, list[str]]:
    """``ok`` or what is wrong, and notes: the totals, and the skips by reason. ``least`` cases have to pass."""
    passed, skips, wrong = count(text)
    notes = [f"{passed} passed, {sum(skips.values())} skipped"]
    notes += [f"{number} skipped: {reason}" for reason, number in sorted(skips.items(), key=lambda item: -item[1])]
    if not wrong and (status or passed < least):
        wrong = [f"{passed} cases passed (at least {least} have to), exit status {status}"]
    return (wrong[0] if wrong else "ok"), notes
