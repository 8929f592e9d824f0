"""A simulated run in Chrome's trace format, for ui.perfetto.dev: hosts with their flows, ports with queues and
pauses."""

from __future__ import annotations

from typing import Any

from rnic.sim.measure import Measure

_PORTS, _TOTALS = 1, 2
_FIRST_HOST = 10


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def trace_document(measure: Measure) -> dict[str, Any]:
    """Return a trace: flows as slices of senders, queues and CNPs as counters, pauses as slices of ports."""
    fabric = measure.fabric
    rows: list[dict[str, Any]] = [_named("process_name", _PORTS, 0, "ports"), _named("process_name", _TOTALS, 0, "all")]
    pids = {name: _FIRST_HOST + at for at, name in enumerate(fabric.hosts)}
    rows += [_named("process_name", pid, 0, name) for name, pid in pids.items()]
    lanes: dict[str, list[int]] = {}
    for result in sorted(fabric.results, key=lambda each: (each.flow.start_ns, each.end_ns)):
        flow = result.flow
        busy = lanes.setdefault(flow.src, [])
        # slices of one lane must not overlap
        lane = next((at for at, free_ns in enumerate(busy) if free_ns <= flow.start_ns), len(busy))
        busy[lane : lane + 1] = [result.end_ns]
        pid = pids[flow.src]
        rows.append(
            {
                "name": f"{flow.label or 'flow'} to {flow.dst}", "cat": "flow", "ph": "X", "pid": pid,
                "tid": pid * 1_000 + lane, "ts": flow.start_ns / 1_000, "dur": result.took_ns / 1_000,
                "args": {"bytes": flow.size, "slowdown": round(result.slowdown, 3), "status": result.status},
            }
        )  # fmt: skip
    for at, port in enumerate(fabric.ports.values()):
        rows.append(_named("thread_name", _PORTS, at + 1, port.name))
    numbers = {port.name: at + 1 for at, port in enumerate(fabric.ports.values())}
    for pause in measure.pauses():
        rows.append(
            {
                "name": "paused", "cat": "pfc", "ph": "X", "pid": _PORTS, "tid": numbers[pause.port],
                "ts": pause.start_ns / 1_000, "dur": (pause.end_ns - pause.start_ns) / 1_000,
            }
        )  # fmt: skip
    for port, series in zip(measure.ports, measure.queues, strict=True):
        if any(series):
            rows += _counter(f"queue {port.name}", _PORTS, "bytes", measure.times_ns, series)
    rows += _counter("CNPs sent", _TOTALS, "CNPs", measure.times_ns, measure.cnps)
    return {"traceEvents": rows, "displayTimeUnit": "ns"}


def _counter(name: str, pid: int, unit: str, times_ns: list[int], series: list[int]) -> list[dict[str, Any]]:
    """Return trace events for a counter's changes."""
    rows = []
    last = None
    for time_ns, value in zip(times_ns, series, strict=True):
        if value != last:
            rows.append({"name": name, "ph": "C", "pid": pid, "ts": time_ns / 1_000, "args": {unit: value}})
            last = value
    return rows
