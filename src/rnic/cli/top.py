"""``rnic top``: a running NIC, live. Keys sort, open one queue pair, and end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rnic.cli.look import device_option, fetch, json_option
from rnic.spec.psn import PSN_MASK

SPARKS = "▁▂▃▄▅▆▇█"
HISTORY = 40
"""Looks that a sparkline shows."""
SORTS = {"q": "qpn", "r": "rate", "b": "backlog"}
"""What a key sorts queue pairs by; ``rate`` is packets a second, both ways, ``backlog`` requests not yet done."""
_TROUBLE = ("retrans", "rnr_naks", "sequence_naks", "fatal_naks", "timeouts", "drop_", "own_errors")
HELP = "keys: q number  r rate  b backlog  0-9 open a queue pair  Enter close it  x end"


def rates(before: dict[str, int], after: dict[str, int], seconds: float) -> dict[str, float]:
    """Counts per second of every counter that moved."""
    moved = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: change / seconds for name, change in moved.items() if change and seconds > 0}


def sparkline(values: list[float]) -> str:
    """A line of blocks, the highest value as the full one."""
    most = max(values, default=0.0)
    if most <= 0:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value / most * (len(SPARKS) - 1) + 0.5))] for value in values)


class View:
    """What is shown: the last look, histories, the order, and the queue pair that is open."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {"name": "", "objects": {}, "counters": {}, "qps": [], "rates": {}}
        self.sort = "qpn"
        self.open_qp = ""
        self.detail: dict[str, Any] | None = None
        self._history: defaultdict[str, deque[float]] = defaultdict(lambda: deque([0.0], HISTORY))
        self._psns: dict[int, tuple[int, int]] = {}

    def take(self, tree: dict[str, Any], seconds: float) -> None:
        """Another look, so many seconds after the last; rates are added to it."""
        tree["rates"] = rates(self.tree["counters"], tree["counters"], seconds) if seconds else {}
        for name in {*self._history, *tree["rates"]}:
            self._history[name].append(tree["rates"].get(name, 0.0))
        psns = {pair["qpn"]: (pair["next_send_psn"], pair["expected_psn"]) for pair in tree["qps"]}
        for pair in tree["qps"]:
            now = psns[pair["qpn"]]
            moved = sum((new - old) & PSN_MASK for new, old in zip(now, self._psns.get(pair["qpn"], now), strict=True))
            pair["rate"] = moved / seconds if seconds else 0.0
            pair["backlog"] = (pair["sq_tail"] - pair["sq_head"]) % max(1, pair["sq_entries"])
        self._psns = psns
        self.tree = tree

    def key(self, key: str) -> bool:
        """What a key does; false where it ends the view."""
        if key in SORTS:
            self.sort = SORTS[key]
        elif key.isdigit():
            self.open_qp += key
        elif key in "\r\n\x1b":
            self.open_qp, self.detail = "", None
        return key not in "x\x03"

    def pairs(self) -> list[dict[str, Any]]:
        """Queue pairs in the order that was chosen."""
        return sorted(self.tree["qps"], key=lambda pair: pair[self.sort], reverse=self.sort != "qpn")

    def __rich__(self) -> Group:
        objects = "  ".join(f"{name} {count}" for name, count in self.tree["objects"].items())
        parts: list[Any] = [Text(f"{self.tree['name']}  {objects}", style="bold")]
        counters = Table(box=None, pad_edge=False)
        for title in ("counter", "total", "per second", "last looks"):
            counters.add_column(title, justify="right" if title in ("total", "per second") else "left")
        now = self.tree["rates"]
        for name, total in self.tree["counters"].items():
            bad = name.startswith(_TROUBLE) and name in now
            history = sparkline(list(self._history[name])) if name in self._history else ""
            row = (name, f"{total:,}", f"{now.get(name, 0.0):,.1f}", history)
            counters.add_row(*row, style="yellow" if bad else "")
        parts.append(counters)
        if self.tree["qps"]:
            pairs = Table(box=None, pad_edge=False)
            for title in ("QP", "state", "peer QP", "packets/s", "backlog", "SQ head", "SQ tail", "entries"):
                pairs.add_column(title, justify="left" if title == "state" else "right")
            for pair in self.pairs():
                peer = pair.get("remote_qpn") or "-"
                pairs.add_row(
                    *(str(pair["qpn"]), pair["state"], str(peer), f"{pair['rate']:,.0f}", str(pair["backlog"])),
                    *(str(pair["sq_head"]), str(pair["sq_tail"]), str(pair["sq_entries"])),
                )
            parts.append(pairs)
        if self.open_qp:
            parts.append(Text(f"\nqueue pair {self.open_qp}", style="bold"))
            shown = {"": "the NIC has none"} if self.detail is None else _flat(self.detail)
            parts.append(Text("\n".join(f"  {name:24}{value}" for name, value in shown.items())))
        return Group(*parts)


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Scalars of a queue pair, and of its rings."""
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
    """A descriptor from which keys come one by one; ``None`` where no terminal is."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios  # noqa: PLC0415 - not everywhere
    import tty  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _live(device: str, interval: float) -> None:
    view = View()
    console = Console()
    then = time.monotonic()
    view.take(fetch(device, "top"), 0.0)
    with keys() as descriptor, Live(view, console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            end = then + interval
            while (left := end - time.monotonic()) > 0:
                ready = select.select([] if descriptor is None else [descriptor], [], [], left)[0]
                if ready and descriptor is not None:
                    if not view.key(os.read(descriptor, 1).decode("latin-1")):
                        return
                    live.update(view, refresh=True)
            now = time.monotonic()
            view.take(fetch(device, "top"), now - then)
            if view.open_qp:
                listed = {str(pair["qpn"]) for pair in view.tree["qps"]}
                view.detail = fetch(device, f"qp {view.open_qp}") if view.open_qp in listed else None
            then = now
            live.update(Group(view, Text(HELP, style="dim")), refresh=True)


@click.command()
@device_option
@click.option("--interval", type=click.FloatRange(0.05), default=1.0, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Look twice, print once, end.")
@json_option
def top(device: str, interval: float, once: bool, as_json: bool) -> None:
    """Objects, queue pairs and counters with rates, live; --json prints a line for each look."""
    if not once and not as_json:
        with contextlib.suppress(KeyboardInterrupt):
            _live(device, interval)
        return
    view = View()
    then = time.monotonic()
    view.take(fetch(device, "top"), 0.0)
    while True:
        time.sleep(interval)
        now = time.monotonic()
        view.take(fetch(device, "top"), now - then)
        then = now
        if as_json:
            print(json.dumps(view.tree), flush=True)
        else:
            Console(width=120 if not sys.stdout.isatty() else None).print(view)
        if once:
            return
