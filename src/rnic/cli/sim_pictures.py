"""Pictures of simulated runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rnic.sim.measure import Measure

_LONGEST = 5
_MOST_LINES = 16


def rates(measure: Measure) -> list[tuple[str, list[float], list[float]]]:
    """Of each watched flow its name, times in milliseconds, and how fast its bytes arrived up to then in Gb/s."""
    found = []
    for flow, first, series in measure.watched.values():
        times = measure.times_ns[first : first + len(series)]
        step = max(1, len(series) // 40)
        at = list(range(step, len(series), step))
        gbps = [(series[i] - series[i - step]) * 8 / (times[i] - times[i - step]) for i in at]
        found.append((f"{flow.src} > {flow.dst}", [times[i] / 1e6 for i in at], gbps))
    return found


def plot(measure: Measure, found: dict[str, Any], path: Path) -> None:
    """Draw queues, the flows' rates and the distribution of slowdowns as PNG."""
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra, slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise, and only after the choice of backend

    figure: Any
    figure, (queues, goodput, slow) = plt.subplots(1, 3, figsize=(15, 4.4))
    longest = sorted(zip(measure.ports, measure.queues, strict=True), key=lambda each: -each[0].peak_bytes)
    times = [time_ns / 1e6 for time_ns in measure.times_ns]
    for port, series in longest[:_LONGEST]:
        if port.peak_bytes:
            queues.plot(times, [value / 1_000 for value in series], label=port.name, linewidth=0.9)
    queues.set(xlabel="time, ms", ylabel="queue, kB", title="longest queues")
    for name, at, gbps in rates(measure)[:_MOST_LINES]:
        goodput.plot(at, gbps, label=name, linewidth=0.9)
    goodput.set(xlabel="time, ms", ylabel="goodput, Gb/s", title="flows")
    slowdowns = sorted(row["slowdown"] for row in found["flows"])
    share = [100 * (at + 1) / len(slowdowns) for at in range(len(slowdowns))]
    slow.step(slowdowns, share, where="post")
    slow.set(xlabel="slowdown", ylabel="flows, %", title=f"slowdown of {len(slowdowns)} flows", ylim=(0, 102))
    for axes in (queues, goodput, slow):
        axes.grid(True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="x-small")
    figure.suptitle(f"{found['scenario']}, seed {found['seed']}, congestion control {found['congestion']}")
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": "rnic"})
    plt.close(figure)
