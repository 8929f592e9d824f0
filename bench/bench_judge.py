"""How fast ``rnic check`` judges: RoCEv2 packets a second of processor time, best and median of rounds, one core.

    ./dev bench judge [--rounds N]

The aim is 500,000, the floor 100,000; each row says whether it was met.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from rnic.judge import Finding, Judge
from rnic.link.pcap import CapturedPacket, read_packets

RECORDINGS = Path(__file__).resolve().parents[1] / "tests" / "vectors" / "rxe"
FLOOR, AIM = 100_000, 500_000
REPEATS = 60


def rate(packets: list[CapturedPacket]) -> float:
    """Packets a second, judged again and again as captures of their own."""
    found: list[Finding] = []
    begun = time.process_time()
    for _ in range(REPEATS):
        judge = Judge(found.append)
        for packet in packets:
            judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
        judge.finish()
    assert not found
    return REPEATS * len(packets) / (time.process_time() - begun)


def main() -> None:
    """Print a row for each recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'recording':24}{'best':>12}{'median':>12}  floor {FLOOR:,}, aim {AIM:,}")
    for name in ("write_bw_256", "rc_pingpong", "read_bw"):
        packets = list(read_packets(RECORDINGS / f"{name}.pcap"))
        rates = [rate(packets) for _ in range(rounds)]
        best, median = max(rates), statistics.median(rates)
        verdict = "aim met" if median >= AIM else "floor met" if median >= FLOOR else "missed"
        print(f"{name:24}{best:12,.0f}{median:12,.0f}  {verdict}")


if __name__ == "__main__":
    main()
