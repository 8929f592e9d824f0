"""The long form of ``test_live.py``: a great many packets from live connections.

    python -m tests.fuzz.run_live [--oracle | --rounds] [--packets N] [--seconds S] [--seed N] [--jobs N] [--done FILE]
        [--json]

Each connection sends 20,000 packets, then the next seed has its turn: RC, with selective repeat and without, UC, UD and
IPv6 among them. With ``--oracle``, each NIC has the engine and a twin that has the reference alone, and after every
packet, deadline and turn all bytes of the two are equal (:mod:`tests.fuzz.lockstep`). With ``--rounds``, packets come
by a socket and the reorder buffer (:mod:`tests.fuzz.rounds`). Prints how many packets of each flaw were sent, and a
digest that is equal for equal seeds, compiled and plain (``RNIC_PLAIN=1``). With ``--done``, each connection is noted
in a file when it is over, and a later call with the same file goes on where that ended and sums up.
Exit status 1: there were findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rnic.spec.twins import in_use
from rnic.testing.live import LivePeer
from tests.fuzz.lockstep import Lockstep
from tests.fuzz.rounds import Rounds

EACH = 20_000
SWARMS = 0.3
"""How often a burst is many packets that are wrong: several times as many a second, four of five of them such."""
STORMS = 0.1
"""How often a burst to a queue pair of RC is NAKs, or packets in disorder."""
SERVICES = ("RC", "RC", "RC", "RC", "UC", "UD")


def connection(seed: int, *, oracle: bool, rounds: bool = False) -> dict[str, Any]:
    """One connection: its seed, packets by flaw, digest, what was found; of an oracle also what the engine took."""
    kind = Lockstep if oracle else partial(LivePeer, swarms=SWARMS)
    found: dict[str, Any] = {"seed": seed, "oracle": oracle, "finding": "", "taken": 0, "compared": 0}
    found["rounds"] = rounds
    options: dict[str, Any] = {
        "ipv6": seed % 7 == 3,
        "seen": seed % 5 != 2,
        "storms": STORMS,
        "selective": seed % 2 == 1,
    }
    with Rounds(seed) if rounds else kind(SERVICES[seed % len(SERVICES)], seed, **options) as peer:
        try:
            peer.run(EACH)
        except Exception:  # noqa: BLE001  # whatever it is, it is a finding
            found["finding"] = traceback.format_exc(limit=-4)
        found["flaws"], found["digest"] = peer.counts, peer.digest
        if isinstance(peer, Lockstep):
            found["taken"], found["compared"] = peer.quick.taken, peer.calls
    return found


def noted(path: Path | None, *, oracle: bool, rounds: bool = False) -> list[dict[str, Any]]:
    """The connections that earlier calls have noted."""
    if path is None or not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if (line["oracle"], line["rounds"]) == (oracle, rounds)]


def main(argv: list[str]) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", action="store_true", help="hold the engine against the reference")
    parser.add_argument("--rounds", action="store_true", help="disorder by a socket, through the reorder buffer")
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long, whatever was sent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--done", type=Path, help="file of the connections that are over; go on behind them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    before = noted(args.done, oracle=args.oracle, rounds=args.rounds)
    over = list(before)
    known = {line["seed"] for line in before}
    wanted = max(0, -(-args.packets // EACH) - len(before))
    seeds = islice((seed for seed in range(args.seed, 1 << 40) if seed not in known), wanted)
    began = time.monotonic()
    each = partial(connection, oracle=args.oracle, rounds=args.rounds)
    with contextlib.ExitStack() as undo:
        results: Iterable[dict[str, Any]] = map(each, seeds)
        if args.jobs > 1:
            spawn = multiprocessing.get_context("spawn")
            results = undo.enter_context(spawn.Pool(args.jobs, maxtasksperchild=50)).imap(each, seeds)
        for found in results:
            over.append(found)
            if args.done is not None:
                with args.done.open("a") as file:
                    print(json.dumps(found), file=file)
            if found["finding"]:
                print(f"seed {found['seed']}:\n{found['finding']}", file=sys.stderr, flush=True)
            if time.monotonic() - began > args.seconds:
                break
    over.sort(key=lambda line: line["seed"])
    counts: Counter[str] = Counter()
    digest = 0
    for found in over:
        counts.update(found["flaws"])
        digest = zlib.crc32(found["digest"].to_bytes(4, "big"), digest)
    figures: dict[str, Any] = {
        "packets": counts.total(),
        "connections": len(over),
        "compiled": dict(sorted(in_use.items())),
        "digest": f"{digest:08x}",
        "seconds": round(time.monotonic() - began, 1),
        "findings": sum(bool(found["finding"]) for found in over),
    }
    if args.oracle:
        figures |= {name: sum(found[name] for found in over) for name in ("taken", "compared")}
    figures["flaws"] = dict(counts.most_common())
    if args.json:
        print(json.dumps(figures))
    else:
        for flaw, count in figures.pop("flaws").items():
            print(f"{count:10}  {flaw or 'nothing wrong'}")
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
    return 1 if figures["findings"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
