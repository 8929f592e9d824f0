"""Speed of ``rnic check``: RoCEv2 packets per second of processor time on one core, best and median of rounds.

The aim is 500,000, the floor 100,000; each row tells whether its median reaches them.
"""

from __future__ import annotations

import time
from functools import partial

import harness
from harness import ROOT, Row

from rnic.judge import Finding, Judge
from rnic.link.pcap import CapturedPacket, read_packets

RECORDINGS = ROOT / "tests" / "vectors" / "rxe"
ROWS = [
    Row(name, name, "packets/s", 100_000, 500_000, middle=True) for name in ("write_bw_256", "rc_pingpong", "read_bw")
]
REPEATS = 60


def rate(packets: list[CapturedPacket]) -> float:
    """Measure packets per second by checking the same capture repeatedly."""
    found: list[Finding] = []
    begun = time.process_time()
    for _ in range(REPEATS):
        judge = Judge(found.append)
        for packet in packets:
            judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
        judge.finish()
    assert not found
    return REPEATS * len(packets) / (time.process_time() - begun)


def main(argv: list[str]) -> None:
    """Print a row for each capture."""
    given = harness.Parser("judge", __doc__, rounds=5, rows=(row.what for row in ROWS), json=True).read(argv)
    names = [row.what for row in ROWS if given.only in row.what]
    takes = [(name, partial(rate, list(read_packets(RECORDINGS / f"{name}.pcap")))) for name in names]
    harness.report(given, ROWS, *harness.in_turn(takes, given.rounds))


if __name__ == "__main__":
    harness.run(main)
