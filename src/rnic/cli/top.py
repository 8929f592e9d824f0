"""``rnic top``: a running NIC, live. Keys sort the table, open one queue pair, and exit."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rnic.cli.inspect import counted, fetch
from rnic.cli.latency import PERCENTILES, Latencies
from rnic.cli.options import as_json, device, interval, qpn
from rnic.runtime.attach import ask
from rnic.runtime.directory import runtime_directory
from rnic.spec.ports import PORT_ACTIVE
from rnic.spec.psn import PSN_MASK

SPARKS = "▁▂▃▄▅▆▇█"
HISTORY = 40
"""Samples that a sparkline shows."""
PAIR_HISTORY = 12
"""Samples that the sparkline of a queue pair shows."""
SORTS = {"q": "qpn", "r": "rate", "m": "bytes", "b": "backlog"}
"""Sort keys of queue pairs; ``rate`` is packets and ``bytes`` bytes of packets per second, in both directions,
``backlog`` is uncompleted requests."""
_TROUBLE = ("retrans", "rnr_naks", "sequence_naks", "fatal_naks", "timeouts", "drop_", "own_errors")
_PSNS = ("next_send_psn", "expected_psn", "ssn")
"""Fields of a queue pair that count up, modulo 2^24."""
_OCTETS = ("sent_bytes", "came_bytes")
MOST_PAIRS = 24
"""Most queue pairs shown: the first ones in the sort order."""
HELP = (
    "keys: q number  r packets  m bytes  b backlog  0-9 open a queue pair  Enter close it"
    "  l latencies (slow the NIC while shown)  x end"
)


def rates(before: dict[str, int], after: dict[str, int], seconds: float) -> dict[str, float]:
    """Return the rate per second of every counter that changed."""
    moved = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: change / seconds for name, change in moved.items() if change and seconds > 0}


def sparkline(values: list[float]) -> str:
    """Return a line of block characters; the highest value is a full block."""
    most = max(values, default=0.0)
    if most <= 0:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value / most * (len(SPARKS) - 1) + 0.5))] for value in values)


class View:
    """State of the screen: the last sample, histories, the sort order, and the open queue pair."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {"name": "", "objects": {}, "counters": {}, "qps": [], "rates": {}}
        self.device: dict[str, Any] = {}
        self.others: list[str] = []
        self.sort = "qpn"
        self.latency = False
        self.open_qp = ""
        self.detail: dict[str, Any] | None = None
        self._history: defaultdict[str, deque[float]] = defaultdict(lambda: deque([0.0], HISTORY))
        self._counts: dict[int, tuple[int, ...]] = {}
        self._moved: dict[int, deque[float]] = {}

    def take(self, tree: dict[str, Any], seconds: float, devices: Sequence[dict[str, Any]] = ()) -> None:
        """Take another sample, ``seconds`` after the last, and add rates to it.

        Args:
            tree: result of :func:`rnic.device.inspect.summary`.
            seconds: time since the last sample; 0 for the first.
            devices: all of the NIC process, with their programs (:func:`rnic.nic_process.inspect.devices`).
        """
        tree["rates"] = rates(self.tree["counters"], tree["counters"], seconds) if seconds else {}
        for name in {*self._history, *tree["rates"]}:
            self._history[name].append(tree["rates"].get(name, 0.0))
        self.device = next((device for device in devices if device["name"] == tree["name"]), {})
        self.others = [f"{device['name']} at {device['address']}" for device in devices if device is not self.device]
        programs = {program["pid"]: program["command"] for program in self.device.get("programs", ())}
        counts: dict[int, tuple[int, ...]] = {}
        moved: dict[int, deque[float]] = {}
        for pair in tree["qps"]:
            now = counts[pair["qpn"]] = tuple(pair[name] for name in (*_PSNS, *_OCTETS))
            change = [new - old for new, old in zip(now, self._counts.get(pair["qpn"], now), strict=True)]
            sent, received, messages = (psns & PSN_MASK for psns in change[: len(_PSNS)])
            pair["rate"] = (sent + received) / seconds if seconds else 0.0
            pair["messages"] = messages / seconds if seconds else 0.0
            pair["bytes"] = sum(max(0, octets) for octets in change[len(_PSNS) :]) / seconds if seconds else 0.0
            moved[pair["qpn"]] = history = self._moved.get(pair["qpn"], deque([0.0], PAIR_HISTORY))
            history.append(pair["bytes"])
            pair["backlog"] = (pair["sq_tail"] - pair["sq_head"]) % max(1, pair["sq_entries"])
            pair["command"] = programs.get(pair["program"], "")
        self._counts, self._moved = counts, moved
        self.tree = tree

    def key(self, key: str) -> bool:
        """Handle a key; return false if it ends the view."""
        if key.isdigit() or (self.open_qp and key in "abcdef"):
            self.open_qp = (self.open_qp + key)[-6:]
        elif key in SORTS:
            self.sort = SORTS[key]
        elif key == "l":
            self.latency = not self.latency
        elif key in "\r\n\x1b":
            self.open_qp, self.detail = "", None
        return key not in "x\x03"

    def pairs(self) -> list[dict[str, Any]]:
        """Return the queue pairs in the chosen order."""
        return sorted(self.tree["qps"], key=lambda pair: pair[self.sort], reverse=self.sort != "qpn")

    def messages(self) -> float:
        """Return how many messages per second the device sent."""
        return float(sum(pair["messages"] for pair in self.tree["qps"]))

    def _headline(self) -> list[Text]:
        device, name = self.device, self.tree["name"]
        where = f" at {device['address']} port {device['udp_port']}" if device else ""
        down = device.get("port_state", PORT_ACTIVE) != PORT_ACTIVE
        state = "  port down" if down else ""
        lines = [Text(f"{name}{where}{state}  {counted(self.tree['objects'])}", style="bold red" if down else "bold")]
        if self.others:
            lines.append(Text(f"beside it (-d): {', '.join(self.others)}", style="dim"))
        return lines

    def _pairs_table(self) -> Table:
        shown = self.pairs()[:MOST_PAIRS]
        measured = any(pair.get("latency_us") for pair in shown)
        table = Table(box=None, pad_edge=False)
        titles = ["QP", "state", "program", "peer", "messages/s", "packets/s", "MB/s", "last samples", "backlog"]
        titles += ["ring", "round trip us"]
        titles += [f"p{part} us" for part in PERCENTILES] if measured else []
        left = ("state", "program", "peer", "last samples")
        for title in titles:
            table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
        for pair in shown:
            peer = f"{pair['peer']} QP {qpn(pair['remote_qpn'])}" if pair["peer"] else "-"
            program = f"{pair['command']} ({pair['program']})" if pair["command"] else str(pair["program"] or "-")
            trip = f"{pair['rtt_ns'] / 1000:,.0f}" if pair["rtt_ns"] else "-"
            latency = pair.get("latency_us", {})
            table.add_row(
                *(qpn(pair["qpn"]), pair["state"], program, peer, f"{pair['messages']:,.0f}", f"{pair['rate']:,.0f}"),
                *(f"{pair['bytes'] / 1e6:,.2f}", sparkline(list(self._moved[pair["qpn"]]))),
                *(str(pair["backlog"]), str(pair["sq_entries"]), trip),
                *(f"{latency[f'p{part}']:,.0f}" if latency else "-" for part in PERCENTILES if measured),
            )
        return table

    def __rich__(self) -> Group:
        parts: list[Any] = [*self._headline()]
        if self.tree["qps"]:
            parts.append(self._pairs_table())
            if len(self.tree["qps"]) > MOST_PAIRS:
                parts.append(Text(f"and {len(self.tree['qps']) - MOST_PAIRS:,} more", style="dim"))
            parts.append(Text())
        counters = Table(box=None, pad_edge=False)
        for title in ("counter", "total", "per second", "last samples"):
            counters.add_column(title, justify="right" if title in ("total", "per second") else "left")
        now = self.tree["rates"]
        for name, total in self.tree["counters"].items():
            if not total:  # a program's own data path lists all its counters, including zeros
                continue
            bad = name.startswith(_TROUBLE) and name in now
            history = sparkline(list(self._history[name])) if name in self._history else ""
            row = (name, f"{total:,}", f"{now.get(name, 0.0):,.1f}", history)
            counters.add_row(*row, style="yellow" if bad else "")
        parts.append(counters)
        if self.open_qp:
            parts.append(Text(f"\nqueue pair 0x{self.open_qp:0>6}", style="bold"))
            shown = {"": "the NIC has none"} if self.detail is None else _flat(self.detail)
            wide = max(map(len, shown)) + 2
            parts.append(Text("\n".join(f"  {name:{wide}}{value}" for name, value in shown.items())))
        return Group(*parts)


class Looker:
    """Samples a device repeatedly for a :class:`View`."""

    def __init__(self, device: str, view: View) -> None:
        self._device = device
        self._view = view
        self._then = 0.0
        self._latencies: Latencies | None = None

    def look(self) -> None:
        """Take one sample; the first gives no rates."""
        view = self._view
        tree = fetch(self._device, "top")
        now = time.monotonic()
        view.take(tree, now - self._then if self._then else 0.0, ask(runtime_directory(), "", "devices"))
        self._then = now
        if not view.latency:
            self._latencies = None
        else:
            if self._latencies is None:
                self._latencies = Latencies(partial(fetch, self._device))
            self._latencies.look(view.messages())
            for pair in view.tree["qps"]:
                pair["latency_us"] = self._latencies.of(pair["qpn"])
        if view.open_qp:
            number = int(view.open_qp, 16)
            listed = {pair["qpn"] for pair in view.tree["qps"]}
            view.detail = fetch(self._device, f"qp {number}") if number in listed else None


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the scalars of a queue pair and of its rings, without nesting."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name in ("context", "fields"):
            continue
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


@contextlib.contextmanager
def keys() -> Iterator[int | None]:
    """Yield a descriptor from which keys are read one by one; ``None`` if there is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios  # noqa: PLC0415 - not on every platform
    import tty  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Make Ctrl-C interrupt, even if it was ignored at the start, as in background jobs of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _live(looker: Looker, view: View, interval: float) -> None:
    console = Console()
    looker.look()
    screen = Live(view, console=console, screen=console.is_terminal, auto_refresh=False)
    with interrupts(), keys() as descriptor, screen as live:
        while True:
            end = time.monotonic() + interval
            while (left := end - time.monotonic()) > 0:
                ready = select.select([] if descriptor is None else [descriptor], [], [], left)[0]
                if ready and descriptor is not None:
                    if not view.key(os.read(descriptor, 1).decode("latin-1")):
                        return
                    break  # show the effect of a key at once
            looker.look()
            live.update(Group(view, Text(HELP, style="dim")), refresh=True)


@click.command()
@device()
@interval(1.0)
@click.option("--latency", is_flag=True, help="Show latency percentiles of operations; this slows the NIC.")
@click.option("--once", is_flag=True, help="Print one update and exit.")
@as_json()
def top(device: str, interval: float, latency: bool, once: bool, as_json: bool) -> None:
    """Show queue pairs, programs, peers and counters with rates, live; --json prints a line for each update."""
    view = View()
    view.latency = latency
    looker = Looker(device, view)
    if not once and not as_json:
        with contextlib.suppress(KeyboardInterrupt):
            _live(looker, view, interval)
        return
    looker.look()
    while True:
        time.sleep(interval)
        looker.look()
        if as_json:
            print(json.dumps(view.tree), flush=True)
        else:
            Console(width=140 if not sys.stdout.isatty() else None).print(view)
        if once:
            return
