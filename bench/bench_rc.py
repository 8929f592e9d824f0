"""RC over UDP on loopback compared with raw sockets, UCX, libfabric and ZeroMQ, with floors, aims and verdicts.

Each round measures all figures once, some twice, so that compared figures are from the same minutes. Best and median
are printed; the verdict uses the best, since other load can only slow a run down. Raw sockets are a C program built
here (``raw_udp.c``). A missed floor is printed but does not fail the run, since machines differ; figures of missing
programs are left out, with the reason. ``--before`` compares the reference, without engine, with that commit's, both in
plain Python; for a tree with compiled twins, with the twins. ``--short`` is one round of short runs, under a minute on
an idle machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import bench_busy
import harness
import peers
import rc_figures as own
from harness import ROOT, LeftOutError, Row, Take

from rnic.spec import twins

ROUNDS = 8
"""Rounds. A shared host changes its speed for seconds; with few rounds two bests may be from different speeds."""
TWICE = frozenset(
    (
        *("raw 4096", "write 4096", "raw 1024", "write 1024", "read", "send"),
        *("raw latency", "ucx latency", "write latency"),
        *("ucx 64K", "libfabric 64K", "zeromq 64K", "write 64K"),
        *("batch", "memory"),
    )
)
"""Figures measured again at the end of a round, unless it is short: each takes less than two seconds, and phases of
the host's speed are longer."""
LOST_ONE_IN = 100
SEGMENT_4096, SEGMENT_1024 = 4096 + 16, 1024 + 16
"""Bytes of a MIDDLE packet of a WRITE: BTH, payload, ICRC."""


ROWS = (
    Row("raw C UDP, GSO and GRO, segments of 4112", "raw 4096", "GB/s"),
    Row("raw C UDP, GSO and GRO, segments of 1040", "raw 1024", "GB/s"),
    Row("raw C UDP, half round trip of 40 bytes", "raw latency", "us", less=True),
    Row("UCX tcp tag, half round trip of 8 bytes", "ucx latency", "us", less=True),
    Row("UCX tcp tag, 8 bytes", "ucx rate", "M/s"),
    Row("UCX tcp tag, 64 KiB", "ucx 64K", "GB/s"),
    Row("libfabric tcp, 64 KiB, one in flight", "libfabric 64K", "GB/s"),
    Row("ZeroMQ, 64 KiB", "zeromq 64K", "GB/s"),
    Row("8-byte WRITE, half round trip, to raw C UDP", "write latency", "us", 2.2, 1.6, ("raw latency",), True),
    Row("8-byte WRITE, half round trip, to UCX tcp tag", "write latency", "us", 1.2, 0.8, ("ucx latency",), True),
    Row("1 MiB WRITE, PMTU 4096, to raw C UDP GSO", "write 4096", "GB/s", 0.6, 0.72, ("raw 4096",)),
    Row("1 MiB WRITE, PMTU 1024, to raw C UDP GSO", "write 1024", "GB/s", 0.4, 0.55, ("raw 1024",)),
    Row("1 MiB READ, to WRITE", "read", "GB/s", 0.85, 0.95, ("write 4096",)),
    Row("1 MiB SEND, to WRITE", "send", "GB/s", 0.85, 0.95, ("write 4096",)),
    Row("64 KiB WRITE, to the best of UCX, libfabric, ZeroMQ", "write 64K", "GB/s", 1.0, 1.3,
        ("ucx 64K", "libfabric 64K", "zeromq 64K")),
    Row("8-byte WRITEs by post_batch, 64 a doorbell", "batch", "M/s", 3.0, 10.0),
    Row("8-byte SENDs by post_send, to UCX tcp tag", "sends", "M/s", 0.8, 1.2, ("ucx rate",)),
    Row("in-memory loopback, 1 MiB, with ICRC", "memory", "GB/s", 8.0, 15.0),
    Row("1 MiB WRITE at 1 % loss, to none", "loss", "GB/s", 0.5, 0.7, ("no loss",)),
    Row("reference, 8 bytes: speed of the release before", "reference short", "us", 0.5, 0.8, ("before short",), True,
        speed=True),
    Row("reference, 1 MiB: speed of the release before", "reference long", "us", 0.5, 0.8, ("before long",), True,
        speed=True),
    Row("256 busy queue pairs, time to one's", "busy 256", "s", 1.2, 1.05, ("alone 256",), True),
    Row("1,024 busy queue pairs, time to one's", "busy 1024", "s", 1.2, 1.05, ("alone 1024",), True),
)  # fmt: skip


def has_twins(tree: Path) -> bool:
    """Return whether a tree has compiled twins."""
    return any(tree.glob("src/rnic/mem/_order.*.so"))


def processor_time(tree: Path | None, kind: str, rounds: int, plain: bool) -> float:
    """Run :mod:`rc_processor_time` in a tree, without the engine."""
    if tree is None:
        raise LeftOutError("no release to compare with: give --before COMMIT")
    env = {"RNIC_PLAIN": "1" if plain else "0", "RNIC_ENGINE": "0"}
    return float(harness.call_in(tree, "rc_processor_time.processor_time", rounds, env=env)[kind])


def figures_of_a_round(folder: Path, before: Path | None, short: bool) -> Iterator[tuple[str, Take]]:
    """Yield the names of all figures in order, each with the function that measures it."""
    seconds = "0.3" if short else "0.8"

    def raw(*words: str) -> float:
        return peers.c_program(folder, "raw_udp", *words)

    long, small = (60, 8_000) if short else (400, 80_000)
    yield "raw 4096", lambda: raw("bw", str(SEGMENT_4096), seconds)
    yield "write 4096", lambda: own.gbps("write", own.LONG, long)
    yield "raw 1024", lambda: raw("bw", str(SEGMENT_1024), seconds)
    yield "write 1024", lambda: own.gbps("write", own.LONG, long, 1024)
    yield "read", lambda: own.gbps("read", own.LONG, long)
    yield "send", lambda: own.gbps("send", own.LONG, long)
    yield "raw latency", lambda: raw("lat", "20000")
    yield "ucx latency", lambda: peers.ucx_tag_latency(5_000 if short else 20_000)
    yield "write latency", lambda: own.write_latency(2_000 if short else 6_000)
    yield "ucx 64K", lambda: peers.ucx_tag_gbps(1 << 16, 3_000)
    yield "libfabric 64K", lambda: peers.libfabric_gbps(1 << 16, 1_000)
    yield "zeromq 64K", lambda: peers.zeromq_gbps(1 << 16)
    yield "write 64K", lambda: own.gbps("write", 1 << 16, long * 8)
    yield "batch", lambda: own.batch_rate(float(seconds))
    yield "ucx rate", lambda: peers.ucx_tag_rate(small)
    yield "sends", lambda: own.send_rate(float(seconds))
    yield "memory", lambda: own.memory_gbps(0.3 if short else 0.8)
    yield "no loss", lambda: own.lossy_gbps(0, long)
    yield "loss", lambda: own.lossy_gbps(LOST_ONE_IN, long)
    plain = not (has_twins(ROOT) and before is not None and has_twins(before))
    rounds = 2 if short else 6
    for kind in ("short", "long"):
        yield f"reference {kind}", partial(processor_time, ROOT, kind, rounds, plain)
        yield f"before {kind}", partial(processor_time, before, kind, rounds, plain)


def busy(number: int) -> dict[str, float]:
    """Measure the seconds of many queue pairs, and of one with the same bytes."""
    with bench_busy.other_end() as conn:
        alone, many = bench_busy.one_round(conn, "one way", number)
    if many["failed"] or alone["failed"]:
        raise LeftOutError(f"{number} busy queue pairs: {int(many['failed'] + alone['failed'])} WRITEs failed")
    return {f"alone {number}": alone["seconds"], f"busy {number}": many["seconds"]}


def main(argv: list[str]) -> None:
    """Measure and print."""
    parser = harness.Parser(
        "rc", __doc__, rounds=ROUNDS, short="one round of short runs", rows=(row.what for row in ROWS), json=True,
        before="compare the reference with this commit's, or a tree's",
    )  # fmt: skip
    given = parser.read(argv)
    wanted = harness.figures_for(ROWS, given.only)
    with tempfile.TemporaryDirectory() as folder, harness.tree_of(given.before) as before:
        takes = list(figures_of_a_round(Path(folder), before, given.short))
        takes += [] if given.short else [each for each in takes if each[0] in TWICE]
        for number in (256,) if given.short else (256, 1024, 256):
            takes.append((f"busy {number}", partial(busy, number)))
        found, missing = harness.in_turn([each for each in takes if each[0] in wanted], given.rounds)
    if given.short:
        missing["busy 1024"] = "takes long: skipped with --short"
    compiled = sorted(name for name, used in twins.in_use.items() if used)
    if given.json != "-":
        print(f"compiled: {', '.join(compiled) or 'nothing, plain Python'}; {given.rounds} rounds")
    harness.report(given, ROWS, found, missing, compiled=compiled)


if __name__ == "__main__":
    harness.run(main)
