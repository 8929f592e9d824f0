"""The long form of ``test_live.py``: a great many packets from live connections.

    python tests/fuzz/run_live.py [--packets N] [--seconds S] [--seed N] [--jobs N] [--resume FILE] [--json]

Each connection sends 20,000 packets, then the next seed has its turn: RC, UC, UD and IPv6 among them. Prints how many
packets of each flaw were sent, and a digest that is equal for equal seeds, compiled and plain (``RNIC_PLAIN=1``).
With ``--resume`` a run that its seconds ended goes on where the file says that it stopped, with the same figures and
digest in the end as one that was never interrupted. Exit status 1: there were findings.
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
from pathlib import Path
from typing import Any

from rnic.spec.twins import in_use
from rnic.testing.live import LivePeer

EACH = 20_000
SWARMS = 0.3
SERVICES = ("RC", "RC", "RC", "RC", "UC", "UD")


def connection(seed: int) -> tuple[int, dict[str, int], int, str]:
    """One connection: its seed, packets by flaw, digest, and what was found."""
    service = SERVICES[seed % len(SERVICES)]
    peer = LivePeer(service, seed, ipv6=seed % 7 == 3, seen=seed % 5 != 2, swarms=SWARMS)
    with peer:
        try:
            peer.run(EACH)
        except Exception:  # noqa: BLE001  # whatever it is, it is a finding
            return seed, peer.counts, peer.digest, traceback.format_exc(limit=-4)
        return seed, peer.counts, peer.digest, ""


def stand(file: Path | None, seed: int, compiled: dict[str, bool]) -> dict[str, Any]:
    """Where the run stands: nothing done yet, or what the file of an earlier part says of just this run."""
    if file is None or not file.exists():
        return {"flaws": {}, "digest": 0, "connections": 0, "findings": 0, "seconds": 0.0}
    said: dict[str, Any] = json.loads(file.read_text())
    if said["seed"] != seed or said["compiled"] != compiled:
        raise SystemExit(f"{file} is about seed {said['seed']}, compiled {said['compiled']}: give another file")
    return said


def main(argv: list[str]) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long, whatever was sent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="where the run stands; made, read and kept up to date")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    compiled = dict(sorted(in_use.items()))
    before = stand(args.resume, args.seed, compiled)
    counts: Counter[str] = Counter(before["flaws"])
    digest, connections, found = before["digest"], before["connections"], before["findings"]
    seeds = range(args.seed + connections, args.seed + -(-args.packets // EACH))
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=50) as pool:
        for seed, sent, crc, finding in pool.imap(connection, seeds):
            counts.update(sent)
            digest = zlib.crc32(crc.to_bytes(4, "big"), digest)
            connections += 1
            if finding:
                found += 1
                print(f"seed {seed}:\n{finding}", file=sys.stderr, flush=True)
            if args.resume is not None:
                now = {
                    "seed": args.seed,
                    "compiled": compiled,
                    "flaws": counts,
                    "digest": digest,
                    "connections": connections,
                    "findings": found,
                    "seconds": before["seconds"] + time.monotonic() - began,
                }
                half = args.resume.with_suffix(".new")
                half.write_text(json.dumps(now))
                half.replace(args.resume)
            if time.monotonic() - began > args.seconds:
                pool.terminate()
                break
    figures: dict[str, Any] = {
        "packets": counts.total(),
        "connections": connections,
        "compiled": compiled,
        "digest": f"{digest:08x}",
        "seconds": round(before["seconds"] + time.monotonic() - began, 1),
        "findings": found,
        "flaws": dict(counts.most_common()),
    }
    if args.json:
        print(json.dumps(figures))
    else:
        for flaw, count in figures.pop("flaws").items():
            print(f"{count:10}  {flaw or 'nothing wrong'}")
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
