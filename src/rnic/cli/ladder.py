"""A ladder diagram: two hosts as vertical lines, an arrow for each packet; as text, SVG and HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

MAX_RUNGS = 5_000
"""Most packets drawn in one ladder; the rest is only counted."""
_ROW, _TOP, _LEFT, _WIDTH = 18, 64, 150, 760
_PAUSE_NS = 1_000_000
"""Shortest gap between packets that is shown."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One packet in a ladder."""

    number: int
    time_ns: int
    """Nanoseconds since the start of the capture."""
    rightwards: bool
    text: str
    mark: str = ""
    bad: bool = False
    """True if its ICRC is wrong, or it is malformed: receivers ignore it."""


@dataclass(slots=True)
class Ladder:
    """Packets between two hosts, in the order of the capture."""

    left: str
    right: str
    rungs: list[Rung] = field(default_factory=list)
    left_off: int = 0

    def add(self, rung: Rung) -> None:
        """Add one packet."""
        if len(self.rungs) < MAX_RUNGS:
            self.rungs.append(rung)
        else:
            self.left_off += 1


class Ladders:
    """Ladders by pair of hosts; the host that sends first is on the left."""

    def __init__(self) -> None:
        self.all: dict[frozenset[str], Ladder] = {}

    def add(self, src: str, dst: str, number: int, time_ns: int, text: str, mark: str, bad: bool) -> None:
        """Add one packet to its hosts' ladder."""
        ladder = self.all.setdefault(frozenset((src, dst)), Ladder(src, dst))
        ladder.add(Rung(number, time_ns, src == ladder.left, text, mark, bad))


def as_lines(ladder: Ladder, width: int) -> list[str]:
    """Draw a ladder as lines for a terminal of ``width`` columns."""
    inner = max(40, width - 24)
    lines = ["", f"{'':22}{ladder.left}{ladder.right:>{max(1, inner + 2 - len(ladder.left))}}"]
    before = ladder.rungs[0].time_ns if ladder.rungs else 0
    for rung in ladder.rungs:
        if rung.time_ns - before >= _PAUSE_NS:
            lines.append(f"{'':22}|{f'{(rung.time_ns - before) / 1e6:.1f} ms later':^{inner}}|")
        before = rung.time_ns
        words = rung.text + (f" ({rung.mark})" if rung.mark else "")
        words = f" {words[: inner - 8]} "
        dashes = inner - len(words) - 2
        end = "x" if rung.bad else ">" if rung.rightwards else "<"
        arrow = f"-{words}{'-' * dashes}{end}" if rung.rightwards else f"{end}{'-' * dashes}{words}-"
        lines.append(f"#{rung.number:<6} {rung.time_ns / 1e9:13.9f} |{arrow}|")
    if ladder.left_off:
        lines.append(f"{'':22} {ladder.left_off} packets more; filters make them fewer")
    return lines


def as_svg(ladder: Ladder) -> str:
    """Return a ladder as a self-contained SVG picture."""
    rows: list[str] = []
    y = _TOP
    before = ladder.rungs[0].time_ns if ladder.rungs else 0
    right = _LEFT + _WIDTH
    for rung in ladder.rungs:
        if rung.time_ns - before >= _PAUSE_NS:
            said = f"{(rung.time_ns - before) / 1e6:.1f} ms later"
            rows.append(f'<text class="pause" x="{_LEFT + _WIDTH // 2}" y="{y + 4}">{said}</text>')
            y += _ROW
        before = rung.time_ns
        start, end = (_LEFT, right) if rung.rightwards else (right, _LEFT)
        kind = "bad" if rung.bad else "again" if rung.mark else "packet"
        if rung.bad:
            end = (start + end) // 2
        words = escape(rung.text + (f" ({rung.mark})" if rung.mark else ""))
        rows.append(
            f'<text class="time" x="{_LEFT - 12}" y="{y + 4}">#{rung.number} {rung.time_ns / 1e9:.6f}</text>'
            f'<line class="{kind}" x1="{start}" y1="{y}" x2="{end}" y2="{y + 6}" marker-end="url(#{kind})"/>'
            f'<text class="{kind}" x="{_LEFT + _WIDTH // 2}" y="{y - 2}">{words}</text>'
        )
        y += _ROW
    if ladder.left_off:
        rows.append(f'<text class="pause" x="{_LEFT + _WIDTH // 2}" y="{y + 4}">{ladder.left_off} packets more</text>')
        y += _ROW
    colours = {"packet": "#26547c", "again": "#b3541e", "bad": "#b00020"}
    markers = "".join(
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
        for kind, colour in colours.items()
    )
    styles = "".join(
        f"line.{kind}{{stroke:{colour}}}text.{kind}{{fill:{colour};text-anchor:middle}}"
        for kind, colour in colours.items()
    )
    height = y + _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 40}" height="{height}" '
        f'viewBox="0 0 {right + 40} {height}"><style>text{{font:11px monospace}}.host{{font-weight:bold;'
        f"text-anchor:middle}}.time{{fill:#667;text-anchor:end}}.pause{{fill:#667;text-anchor:middle}}{styles}</style>"
        f'<defs>{markers}</defs><rect width="100%" height="100%" fill="white"/>'
        f'<text class="host" x="{_LEFT}" y="24">{escape(ladder.left)}</text>'
        f'<text class="host" x="{right}" y="24">{escape(ladder.right)}</text>'
        f'<path d="M{_LEFT} 32V{height - 8}M{right} 32V{height - 8}" stroke="#99a"/>' + "".join(rows) + "</svg>\n"
    )


def as_html(ladders: list[Ladder], title: str) -> str:
    """Return a self-contained page with all ladders, one below the other."""
    parts = [f"<h2>{escape(ladder.left)} and {escape(ladder.right)}</h2>\n{as_svg(ladder)}" for ladder in ladders]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font-family:sans-serif;margin:2em}</style></head>"
        f"<body><h1>{escape(title)}</h1>\n{''.join(parts)}</body></html>\n"
    )
