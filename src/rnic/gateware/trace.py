"""A run as a timeline in Chrome's trace format, for Perfetto: one lane for each part of 000 5.8.

The lanes are software, registers, fetch, header, payload, RX and completion. A span in a hardware lane is one visit to
a state of the lane's block; times are clock cycles divided by the clock frequency.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat

from rnic.gateware.sim import CLOCK_PERIOD, SimEngine, Simulation
from rnic.spec.engine_regs import (
    HEADER_PARSER_STATES,
    INSERTER_STATES,
    OFFSETS,
    RDMA_STATES,
    RX_STATES,
    TX_STATES,
)

LANES = ("software", "registers", "fetch", "header", "payload", "RX", "completion")
US_PER_CYCLE = CLOCK_PERIOD * 1e6

CONTROLLER_LANES = {
    "fetch": ("S_PREPARE_READ", "S_READ_CMD", "S_WAIT_READ_DONE", "S_IS_STREAM_BUSY", "S_SEND_TX_CMD"),
    "completion": ("S_PREPARE_WRITE", "S_WRITE_CMD", "S_START_STREAM", "S_WAIT_WRITE_DONE"),
}
"""Lane of each state of the controller; in the other states it is idle or waits for the transmit path."""

_REGISTER_NAMES = {offset: name for name, offset in OFFSETS.items()}


class StateLog:
    """Notes each change of state of every block of one engine, cycle by cycle."""

    def __init__(self, engine: SimEngine, simulation: Simulation) -> None:
        top = engine.top
        self._names = {
            "controller": RDMA_STATES,
            "tx_streamer": TX_STATES,
            "inserter": INSERTER_STATES,
            "header_parser": HEADER_PARSER_STATES,
            "rx_streamer": RX_STATES,
        }
        blocks: dict[str, Any] = {
            "controller": top.controller,
            "tx_streamer": top.tx_streamer,
            "inserter": top.header_inserter,
            "header_parser": top.header_parser,
            "rx_streamer": top.rx_streamer,
        }
        self._slices: list[tuple[str, int, int]] = []
        at, wires = 0, []
        for name, block in blocks.items():
            self._slices.append((name, at, (1 << len(block.state)) - 1))
            at += len(block.state)
            wires.append(block.state)
        self._wires = Cat(*wires, top.registers.doorbell, top.controller.completed)
        self._pulses = at
        self._last = -1
        self.changes: dict[str, list[tuple[int, str]]] = {name: [(0, self._names[name][0])] for name in blocks}
        """By block: (cycle, state entered)."""
        self.doorbells: list[int] = []
        self.completions: list[int] = []
        """Cycles in which a doorbell register was written, and first cycles of a new CQ_TAIL."""
        simulation.watchers.append(self._look)

    def _look(self, ctx: Any, cycle: int) -> None:
        value = ctx.get(self._wires)
        if value >> self._pulses:
            self.doorbells += [cycle] * (value >> self._pulses & 1)
            self.completions += [cycle] * (value >> self._pulses + 1)
        if value == self._last:
            return
        self._last = value
        for name, at, mask in self._slices:
            code = value >> at & mask
            state = self._names[name][code]
            if self.changes[name][-1][1] != state:
                self.changes[name].append((cycle, state))

    def spans(self, block: str, end: int) -> list[tuple[int, int, str]]:
        """Yield (first cycle, cycle after the last, state) of each state visit up to cycle ``end``."""
        changes = [*self.changes[block], (end, "")]
        return [(start, until, state) for (start, state), (until, _next) in itertools.pairwise(changes)]

    def cycles_by_state(self, block: str, first: int, end: int) -> dict[str, int]:
        """Return the cycles from ``first`` to ``end`` that a block spent in each state, in order of entry."""
        out: Counter[str] = Counter()
        for start, until, state in self.spans(block, end):
            inside = min(until, end) - max(start, first)
            if inside > 0:
                out[state] += inside
        return dict(out)


def events(engine: SimEngine, log: StateLog, process: int, end: int) -> list[dict[str, Any]]:
    """Return all events of one engine in Chrome's format."""
    out: list[dict[str, Any]] = [
        {"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"engine {process}"}}
    ]
    for number, lane in enumerate(LANES):
        out.append({"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": lane}})
        out.append(
            {"ph": "M", "pid": process, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}
        )

    def span(lane: str, first: int, until: int, name: str, **args: object) -> None:
        out.append(
            {
                "ph": "X",
                "pid": process,
                "tid": LANES.index(lane),
                "ts": round(first * US_PER_CYCLE, 4),
                "dur": round((until - first) * US_PER_CYCLE, 4),
                "name": name,
                "args": {"cycle": first, "cycles": until - first, **args},
            }
        )

    for cycle, call, address, count in engine.notes:
        span("software", cycle, cycle + 1, call, address=f"{address:#010x}", bytes=count)
    for first, until, offset, value in engine.accesses:
        name = _REGISTER_NAMES.get(offset, f"{offset:#06x}")
        verb = "read" if value is None else "write"
        span("registers", first, until, f"{verb} {name}", **({} if value is None else {"value": f"{value:#x}"}))
    for first, until, state in log.spans("controller", end):
        for lane, states in CONTROLLER_LANES.items():
            if state in states:
                span(lane, first, until, state)
    for first, until, state in log.spans("inserter", end):
        if state != INSERTER_STATES[0]:
            span("header" if state == "SEND_HEADER" else "payload", first, until, state)
    for first, until, state in log.spans("rx_streamer", end):
        if state != RX_STATES[0]:
            span("RX", first, until, state)
    return out


def write_trace(path: Path, logs: list[tuple[SimEngine, StateLog]], end: int) -> None:
    """Write the timeline of all engines of a run up to cycle ``end``."""
    found: list[dict[str, Any]] = []
    for process, (engine, log) in enumerate(logs):
        found += events(engine, log, process, end)
    path.write_text(json.dumps({"traceEvents": found, "displayTimeUnit": "ns"}) + "\n")
