"""Debian's pyverbs test suite: location of its cases, and meaning of its output."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

SHIPPED = Path("/usr/share/doc/rdma-core/tests")
LEAST = 135
"""Cases that have to pass."""
CONNECTIONS = ("-k", "test_rdmacm.")
"""Cases of CMID and AddrInfo, and the number that must pass."""
LEAST_CONNECTIONS = 10

SKIPS = {
    "needs an mlx5 device": r"(?i)\bmlx5\b|PCI device must be passed|Converting timestamp to nanoseconds",
    "needs an EFA device": r"\bEFA\b",
    "needs CUDA": r"\bcuda",
    "raw packets, RSS, flow steering": r"QP type 8 |Raw Packet QP",
    "dma-buf": r"Allocating dmabuf is not supported|dmabuf.*not supported",
    "completion timestamps, tag matching": r"Extended CQ is not supported|device real time",
    "importing another process's device": r"Importing a device is not supported|object imports are not supported",
    "no huge pages on this machine": r"huge pages",
    "the device has no empty GID": r"All gid indices populated",
}
"""Allowed reasons for skipping a case, and the suite's texts for each."""


def unpack(target: Path, address: str, shipped: Path = SHIPPED) -> None:
    """Unpack the suite, which is shipped in a directory as gzipped files, as a package ``tests`` in ``target``.

    ``target/bin/ip`` replaces the system's: the suite uses the first address of the device's interface, which on the
    loopback interface need not be the device's.
    """
    ip = target / "bin" / "ip"
    ip.parent.mkdir()
    seen = [{"address": "00:00:00:00:00:00", "addr_info": [{"local": address}]}]
    ip.write_text(f"#!/bin/sh\necho '{json.dumps(seen)}'\n")
    ip.chmod(0o755)
    tests = target / "tests"
    tests.mkdir()
    for path in shipped.iterdir():
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        (tests / path.name.removesuffix(".gz")).write_bytes(data)


def missing() -> str | None:
    """Return why this machine cannot run the suite, or ``None``."""
    if not SHIPPED.is_dir():
        return f"python3-pyverbs is not installed, or without {SHIPPED}"
    python = shutil.which("python3", path="/usr/bin")
    if python is None or subprocess.run([python, "-c", "import pyverbs"], env={}, check=False).returncode:
        return "/usr/bin/python3 has no pyverbs"
    return None


def count(text: str) -> tuple[int, dict[str, int], list[str]]:
    """Return passed cases, skips by reason, and problems: failures, and skips without an allowed reason.

    Totals are the suite's own, since other output may appear between a case and its verdict.
    """
    totals = {name: int(number) for name, number in re.findall(r"\b(\w+)=(\d+)", text.rpartition("Ran ")[2])}
    ran = re.search(r"^Ran (\d+) tests?", text, re.MULTILINE)
    passed = int(ran[1]) - sum(totals.values()) if ran else 0
    wrong = [line for line in text.splitlines() if re.search(r"\b(FAIL|ERROR|unexpected success)$", line)]
    skips: dict[str, int] = {}
    for said in re.findall(r"skipped ['\"](.*)['\"]$", text, re.MULTILINE):
        reason = next((reason for reason, words in SKIPS.items() if re.search(words, said)), None)
        if reason is None:
            wrong.append(f"skipped without an allowed reason: {said}")
        else:
            skips[reason] = skips.get(reason, 0) + 1
    if not wrong and sum(skips.values()) != totals.get("skipped", 0):
        wrong.append(f"{totals.get('skipped', 0)} cases were skipped, {sum(skips.values())} of them with a reason")
    return passed, skips, wrong


def verdict(text: str, status: int, least: int = LEAST) -> tuple[str, list[str]]:
    """Return ``ok`` or the problem, and notes with totals and skips by reason. ``least`` cases must pass."""
    passed, skips, wrong = count(text)
    notes = [f"{passed} passed, {sum(skips.values())} skipped"]
    notes += [f"{number} skipped: {reason}" for reason, number in sorted(skips.items(), key=lambda item: -item[1])]
    if not wrong and (status or passed < least):
        wrong = [f"{passed} cases passed (at least {least} must), exit status {status}"]
    return (wrong[0] if wrong else "ok"), notes
