"""Plots of simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rnic.sim.measure import Measure

_LONGEST = 5
_MOST_LINES = 16
_MOST_POINTS = 200


def rates(measure: Measure) -> list[tuple[str, list[float], list[float]]]:
    """Return for each watched flow its name, times in milliseconds, and the rate in Gb/s up to each time."""
    found = []
    for flow, first, series in measure.watched.values():
        times = measure.times_ns[first : first + len(series)]
        step = max(1, len(series) // 40)
        at = list(range(step, len(series), step))
        gbps = [(series[i] - series[i - step]) * 8 / (times[i] - times[i - step]) for i in at]
        found.append((f"{flow.src} > {flow.dst}", [times[i] / 1e6 for i in at], gbps))
    return found


def port_rates(measure: Measure, names: Sequence[str]) -> list[tuple[str, list[float], list[float]]]:
    """Return for each of these ports its name, times in milliseconds, and the rate in Gb/s up to each time."""
    found = []
    rows = measure.series()
    for name in names:
        own = [row for row in rows if row["port"] == name]
        step = max(1, len(own) // _MOST_POINTS)
        parts = [own[at : at + step] for at in range(0, len(own), step)]
        gbps = [sum(row["gbps"] for row in part) / len(part) for part in parts]
        found.append((name, [part[-1]["time_ns"] / 1e6 for part in parts], gbps))
    return found


def plot(measure: Measure, found: dict[str, Any], path: Path) -> None:
    """Draw queues, the flows' rates and the distribution of slowdowns as PNG; without flows, rates of ports."""
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra, slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise, and only after the choice of backend

    figure: Any
    figure, (queues, goodput, *more) = plt.subplots(1, 3 if found["flows"] else 2, figsize=(15, 4.4))
    longest = sorted(zip(measure.ports, measure.queues, strict=True), key=lambda each: -each[0].peak_bytes)[:_LONGEST]
    times = [time_ns / 1e6 for time_ns in measure.times_ns]
    for port, series in longest:
        if port.peak_bytes:
            queues.plot(times, [value / 1_000 for value in series], label=port.name, linewidth=0.9)
    queues.set(xlabel="time, ms", ylabel="queue, kB", title="longest queues")
    lines = rates(measure)[:_MOST_LINES] if more else port_rates(measure, [port.name for port, _ in longest])
    for name, at, gbps in lines:
        goodput.plot(at, gbps, label=name, linewidth=0.9)
    if more:
        goodput.set(xlabel="time, ms", ylabel="goodput, Gb/s", title="flows")
    else:
        goodput.set(xlabel="time, ms", ylabel="rate, Gb/s", title="their rates")
    slowdowns = sorted(row["slowdown"] for row in found["flows"])
    share = [100 * (at + 1) / len(slowdowns) for at in range(len(slowdowns))]
    for slow in more:
        slow.step(slowdowns, share, where="post")
        slow.set(xlabel="slowdown", ylabel="flows, %", title=f"slowdown of {len(slowdowns)} flows", ylim=(0, 102))
    for axes in (queues, goodput, *more):
        axes.grid(True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="x-small")
    figure.suptitle(f"{found['scenario']}, seed {found['seed']}, congestion control {found['congestion']}")
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": "rnic"})
    plt.close(figure)
