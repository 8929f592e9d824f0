"""The long form of ``test_live.py``: a great many packets from live connections.

    python tests/fuzz/run_live.py [--packets N] [--seconds S] [--seed N] [--jobs N] [--json]

Each connection sends 20,000 packets, then the next seed has its turn: RC, UC, UD and IPv6 among them. Prints how many
packets of each flaw were sent, and a digest that is equal for equal seeds, compiled and plain (``RNIC_PLAIN=1``).
Exit status 1: there were findings.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
import zlib
from collections import Counter
from typing import Any

from rnic.spec.twins import in_use
from rnic.testing.live import LivePeer

EACH = 20_000
SERVICES = ("RC", "RC", "RC", "RC", "UC", "UD")


def connection(seed: int) -> tuple[int, dict[str, int], int, str]:
    """One connection: its seed, packets by flaw, digest, and what was found."""
    peer = LivePeer(SERVICES[seed % len(SERVICES)], seed, ipv6=seed % 7 == 3, seen=seed % 5 != 2)
    with peer:
        try:
            peer.run(EACH)
        except Exception:  # noqa: BLE001  # whatever it is, it is a finding
            return seed, peer.counts, peer.digest, traceback.format_exc(limit=-4)
        return seed, peer.counts, peer.digest, ""


def main(argv: list[str]) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long, whatever was sent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    seeds = range(args.seed, args.seed + -(-args.packets // EACH))
    counts: Counter[str] = Counter()
    digest = 0
    connections = 0
    findings: list[str] = []
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=50) as pool:
        for seed, sent, crc, finding in pool.imap(connection, seeds):
            counts.update(sent)
            digest = zlib.crc32(crc.to_bytes(4, "big"), digest)
            connections += 1
            if finding:
                findings.append(finding)
                print(f"seed {seed}:\n{finding}", file=sys.stderr, flush=True)
            if time.monotonic() - began > args.seconds:
                pool.terminate()
                break
    figures: dict[str, Any] = {
        "packets": counts.total(),
        "connections": connections,
        "compiled": dict(sorted(in_use.items())),
        "digest": f"{digest:08x}",
        "seconds": round(time.monotonic() - began, 1),
        "findings": len(findings),
        "flaws": dict(counts.most_common()),
    }
    if args.json:
        print(json.dumps(figures))
    else:
        for flaw, count in figures.pop("flaws").items():
            print(f"{count:10}  {flaw or 'nothing wrong'}")
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
