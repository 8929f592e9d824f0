"""Drawings of the documentation as SVG: boxes and arrows, state machines, sequences, and bit layouts.

Everything is measured before it is drawn: a text that does not fit its place is an error of the build, never cut off.
Drawings are at most 640 units wide, so that they can be read on a phone. Colors follow light or dark mode.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from rnic.spec.layout import Field, Layout

WIDEST = 640
FONT = 13
SMALL = 11
LINE = 16
STYLE = """\
text { font-family: "DejaVu Sans", Verdana, "Noto Sans CJK SC", sans-serif; fill: #1c2733; }
.paper { fill: #ffffff; }
.hw { fill: #e8f0fb; stroke: #1d4f91; }
.sw { fill: #ffffff; stroke: #52606d; }
.mem { fill: #eaf3ea; stroke: #3d6b45; }
.net { fill: #fdf3dc; stroke: #9a6b00; }
.rsv { fill: #eceff2; stroke: #8794a0; }
.line { fill: none; stroke: #33527a; stroke-width: 1.4; }
.dash { stroke-dasharray: 5 4; }
.life { stroke: #9aa5b1; stroke-dasharray: 2 4; }
.say { fill: #1d4f91; }
.tip { fill: #33527a; }
@media (prefers-color-scheme: dark) {
text { fill: #e6ebf0; } .paper { fill: #1a1e23; }
.hw { fill: #1d3353; stroke: #7fb0f5; } .sw { fill: #2a3037; stroke: #9aa5b1; }
.mem { fill: #20382a; stroke: #7cc48c; } .net { fill: #42351a; stroke: #e0b050; }
.rsv { fill: #2f353c; stroke: #6b7682; }
.line { stroke: #9cc0f0; } .say { fill: #9cc0f0; } .tip { fill: #9cc0f0; }
}"""

WIDTHS = (("ijl'|", 0.29), (".,: ;I", 0.33), ("-ft()[]/r", 0.41), ("cksvxyzJ_", 0.6), ("mwMW—…", 1.0))
"""Of some letters, as parts of the font's size."""
INLINE_STYLE = """\
<style>
.drawing { width: 100%; height: auto; display: block; margin: 0.6em 0; }
.drawing text { font-family: "DejaVu Sans", Verdana, sans-serif; fill: currentColor; }
.drawing .hw { fill: none; stroke: currentColor; }
.drawing .rsv { fill: currentColor; fill-opacity: 0.12; stroke: currentColor; }
</style>"""
"""For the pages that hold layout pictures as elements: in the page's own colors, whichever mode it is in."""

Kind = Literal["hw", "sw", "mem", "net", "rsv"]
Point = tuple[float, float]


class DrawingError(ValueError):
    """Something does not fit where it shall be drawn."""


def wide(text: str, size: float = FONT) -> float:
    """Return the width of a text, in units, in DejaVu Sans; the other usual sans-serif fonts are narrower."""
    return sum(size * _letter_width(letter) for letter in text)


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    return next((width for letters, width in WIDTHS if letter in letters), 0.69 if letter.isupper() else 0.64)


def wrap(text: str, width: float, size: float = FONT) -> list[str]:
    """Return the text in lines of at most ``width`` units.

    Raises:
        DrawingError: if a word is wider than that.
    """
    lines: list[str] = []
    for word in text.split():
        if lines and wide(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
        if wide(word, size) > width:
            raise DrawingError(f"{word!r} of {text!r} is wider than {width:.0f} units")
    return lines


class Drawing:
    """A picture that grows downward; ``label`` is its text for a screen reader."""

    def __init__(self, label: str, width: float = WIDEST) -> None:
        if width > WIDEST:
            raise DrawingError(f"{label!r} is {width:.0f} units wide, more than {WIDEST}")
        self.label = label
        self.width = width
        self.height = 0.0
        self.parts: list[str] = []

    def _reach(self, x: float, y: float, what: str) -> None:
        if x < 0 or x > self.width or y < 0:
            raise DrawingError(f"{what!r} leaves the picture {self.label!r} at {x:.0f}, {y:.0f}")
        self.height = max(self.height, y)

    def text(self, x: float, y: float, text: str, anchor: str = "middle", size: float = FONT, cls: str = "") -> None:
        """Draw one line; ``y`` is its base line."""
        width = wide(text, size)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        self._reach(left, y - size, text)
        self._reach(left + width, y + 4, text)
        style = f' class="{cls}"' if cls else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{style}>{escape(text)}</text>'
        )

    def box(self, x: float, y: float, w: float, h: float, title: str, kind: Kind = "hw", sub: str = "") -> None:
        """Draw a box with a title, and smaller lines below it, wrapped to its width and centered."""
        lines = [(line, FONT) for line in wrap(title, w - 8)] + [(line, SMALL) for line in wrap(sub, w - 8, SMALL)]
        if len(lines) * LINE + 2 > h:
            raise DrawingError(f"{title!r}: {len(lines)} lines do not fit a box {h:.0f} high")
        self._reach(x, y, title)
        self._reach(x + w, y + h, title)
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5"/>')
        base = y + (h - len(lines) * LINE) / 2 + LINE - 4
        for number, (line, size) in enumerate(lines):
            self.text(x + w / 2, base + number * LINE, line, size=size)

    def frame(self, x: float, y: float, w: float, h: float, title: str) -> None:
        """Draw a dashed frame around other boxes, titled at its upper left."""
        self._reach(x, y, title)
        self._reach(x + w, y + h, title)
        self.parts.append(f'<rect class="line dash" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="8"/>')
        self.text(x + 8, y + LINE, title, "start", SMALL, "say")

    def arrow(
        self,
        points: Sequence[Point],
        label: str = "",
        at: Point | None = None,
        anchor: str = "middle",
        both: bool = False,
        dashed: bool = False,
    ) -> None:
        """Draw a line through the points with a tip at its end; the label stands above its first leg, or ``at``."""
        for x, y in points:
            self._reach(x, y, label or "arrow")
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="line{" dash" if dashed else ""}" d="{path}"/>')
        self._tip(points[-2], points[-1])
        if both:
            self._tip(points[1], points[0])
        if label:
            (x0, y0), (x1, y1) = points[:2]
            x, y = at or ((x0 + x1) / 2, (y0 + y1) / 2 - 5)
            for number, line in enumerate(label.split("\n")):
                self.text(x, y + number * (LINE - 2), line, anchor, SMALL, "say")

    def _tip(self, before: Point, end: Point) -> None:
        """Draw a triangle, since markers of several drawings on one page would have to be told apart."""
        (x0, y0), (x1, y1) = before, end
        length = max(abs(x1 - x0), abs(y1 - y0)) or 1
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        bx, by = x1 - 8 * dx, y1 - 8 * dy
        corners = f"{x1:g},{y1:g} {bx - 4 * dy:g},{by + 4 * dx:g} {bx + 4 * dy:g},{by - 4 * dx:g}"
        self.parts.append(f'<polygon class="tip" points="{corners}"/>')

    def svg(self, inline: bool = False) -> str:
        """Return the picture as a file, or as an element of a page, which then has :data:`INLINE_STYLE`."""
        height = self.height + 8
        size = f'viewBox="0 0 {self.width:g} {height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(self.label)}'
        if inline:
            return "\n".join([f'{head} class="drawing" style="max-width:{self.width:g}px">', *self.parts, "</svg>"])
        paper = f'<rect class="paper" x="0" y="0" width="{self.width:g}" height="{height:g}" rx="6"/>'
        return "\n".join([f"{head}>", f"<style>\n{STYLE}\n</style>", paper, *self.parts, "</svg>\n"])


# ------------------------------------------------------------------------------------ state machines


@dataclass
class _State:
    name: str
    sub: str
    y: float = 0.0
    h: float = 0.0
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)

    def port(self, side: list[int], edge: int) -> float:
        return self.y + self.h * (side.index(edge) + 1) / (len(side) + 1)


def machine(label: str, states: Iterable[tuple[str, str]], edges: Iterable[tuple[str, str, str]]) -> Drawing:
    """Draw states from top to bottom, each with its action; ``edges`` are from, why, to.

    What goes to the next state is an arrow down; what goes back leaves on the right, what skips states on the left.
    """
    boxes = [_State(name, sub) for name, sub in states]
    places = {box.name: number for number, box in enumerate(boxes)}
    merged: dict[tuple[str, str], list[str]] = {}
    for source, why, target in edges:
        merged.setdefault((source, target), []).append(why)
    ways = [(places[source], places[target], ", ".join(filter(None, why))) for (source, target), why in merged.items()]
    skips = [n for n, (source, target, _) in enumerate(ways) if target > source + 1]
    backs = [n for n, (source, target, _) in enumerate(ways) if target <= source]
    for side, numbers in (("left", skips), ("right", backs)):
        for one in numbers:
            start, end, _ = ways[one]
            getattr(boxes[end], side).append(one)
            getattr(boxes[start], side).append(one)
    labels = {n: wrap(why, 132, SMALL) for n, (_, _, why) in enumerate(ways) if why}
    w = 200.0
    room = {"left": 148.0 + 12 * len(skips) if skips else 8.0, "right": 148.0 + 12 * len(backs) if backs else 8.0}
    picture = Drawing(label, room["left"] + w + room["right"])
    x, y = room["left"], 8.0
    for number, box in enumerate(boxes):
        lines = len(wrap(box.name, w - 8)) + len(wrap(box.sub, w - 8, SMALL))
        rows = max(sum(len(labels.get(n, "")) + 1 for n in side) for side in (box.left, box.right)) * 14
        box.y, box.h = y, max(lines * LINE + 10, rows, 30)
        picture.box(x, y, w, box.h, box.name, "hw", box.sub)
        down = [n for n, (source, target, _) in enumerate(ways) if source == number and target == number + 1]
        below = wrap(ways[down[0]][2], w - 20, SMALL) if down else []
        gap = max(22.0, len(below) * 14 + 12)
        if down:
            centre = x + 26
            picture.arrow([(centre, y + box.h), (centre, y + box.h + gap)])
            for row, line in enumerate(below):
                picture.text(centre + 8, y + box.h + 16 + row * 14, line, "start", SMALL, "say")
        y += box.h + gap
    for lane, number in enumerate(skips):
        out = x - 148 - 12 * lane + 8
        _way(picture, boxes, ways[number], number, labels.get(number, []), "left", x, out)
    for lane, number in enumerate(backs):
        out = x + w + 148 + 12 * lane - 8
        _way(picture, boxes, ways[number], number, labels.get(number, []), "right", x + w, out)
    return picture


def _way(
    picture: Drawing,
    boxes: list[_State],
    way: tuple[int, int, str],
    number: int,
    lines: list[str],
    side: Literal["left", "right"],
    edge: float,
    out: float,
) -> None:
    source, target, _ = way
    ports = [number] if source == target else []
    start, end = boxes[source], boxes[target]
    out_y = start.port(getattr(start, side), number)
    in_y = end.port(getattr(end, side), number)
    if ports:  # to itself: out in the upper half, back in the lower
        out_y, in_y = start.y + start.h * 0.25, start.y + start.h * 0.75
    picture.arrow([(edge, out_y), (out, out_y), (out, in_y), (edge, in_y)])
    near = edge - 6 if side == "left" else edge + 6
    anchor = "end" if side == "left" else "start"
    for row, line in enumerate(lines):
        picture.text(near, out_y - 4 - (len(lines) - 1 - row) * 13, line, anchor, SMALL, "say")


# ------------------------------------------------------------------------------------- sequences

Step = tuple[str, str, str] | str
"""From, to, what; or a heading across all. From and to are the same for a step of one actor alone."""


def sequence(label: str, actors: Sequence[tuple[str, Kind]], steps: Iterable[Step], width: float = WIDEST) -> Drawing:
    """Draw messages between actors, in time downward."""
    picture = Drawing(label, width)
    column = width / len(actors)
    centre = {name: column * (number + 0.5) for number, (name, _) in enumerate(actors)}
    head = max(len(wrap(name, column - 18)) for name, _ in actors) * LINE + 8
    for name, kind in actors:
        picture.box(centre[name] - column / 2 + 4, 6, column - 8, head, name, kind)
    y = head + 18.0
    for step in steps:
        if isinstance(step, str):
            y += 8
            for line in wrap(step, width - 16, SMALL + 1):
                picture.text(8, y + 8, line, "start", SMALL + 1, "say")
                y += LINE
            y += 4
            continue
        source, target, what = step
        alone = source == target
        x0, x1 = centre[source], centre[target]
        room = column * 1.7 if alone else abs(x1 - x0) - 10
        lines = wrap(what, max(room, column - 10), SMALL)
        if alone:
            # to the right of the line, or to its left where the picture ends
            right = x0 + 10 + max(wide(line, SMALL) for line in lines) < width
            for line in lines:
                picture.text(x0 + (9 if right else -9), y + 8, line, "start" if right else "end", SMALL)
                y += 14
            picture.parts.append(f'<circle class="tip" cx="{x0:g}" cy="{y - 14 * len(lines) / 2 + 2:g}" r="3"/>')
            y += 6
            continue
        for line in lines:
            middle = (x0 + x1) / 2
            half = wide(line, SMALL) / 2
            picture.text(min(max(middle, half + 1), width - half - 1), y + 8, line, size=SMALL)
            y += 14
        picture.arrow([(x0, y + 2), (x1, y + 2)])
        y += 12
    lines = [f'<path class="life" d="M{x:g} {head + 6:g} V{y:g}"/>' for x in centre.values()]
    picture.parts[:0] = lines
    picture.height = max(picture.height, y)
    return picture


# ---------------------------------------------------------------------------------------- bit layouts

Bit = tuple[Field, int]
"""A field, and which of its bits."""


def words_of(layout: Layout) -> list[list[Bit | None]]:
    """Return the contents of bits 31 to 0 of each 32-bit word."""
    words: list[list[Bit | None]] = [[None] * 32 for _ in range(-(-layout.size // 4))]
    little = layout.endian == "little"
    for item in layout.fields:
        for bit in range(item.lsb, item.msb + 1):
            byte = item.byte + (bit // 8 if little else item.unit - 1 - bit // 8)
            column = byte % 4 * 8 if little else 24 - byte % 4 * 8
            words[byte // 4][31 - column - bit % 8] = (item, bit)
    return words


def name_of(item: Field, bits: list[int], word: int) -> str:
    """Return a cell's text: the field's name, with the part of it that the cell holds where that is not all."""
    if len(bits) == item.width:
        return item.name
    if item.unit == 16 and item.width == 128:  # GIDs are bytes in order, not numbers
        first = word * 4 - item.byte
        return f"{item.name}, bytes {first} to {first + len(bits) // 8 - 1}"
    return f"{item.name}[{bits[0] - item.lsb}:{bits[-1] - item.lsb}]"


BIT = 18
LEFT = 44
ROW = 26


def layout_picture(layout: Layout) -> Drawing:
    """Draw a row for each 32-bit word, bit 31 at the left. A cell too narrow for its name has a letter, told below."""
    picture = Drawing(f"{layout.name}, {layout.size} bytes", LEFT + 32 * BIT + 8)
    y = 18.0
    for bit in (31, 24, 23, 16, 15, 8, 7, 0):
        picture.text(LEFT + (31 - bit + 0.5) * BIT, y - 4, str(bit), size=9)
    keys: dict[str, str] = {}
    skipped = False
    for number, word in enumerate(words_of(layout)):
        if not any(word):
            skipped = True
            continue
        if skipped:
            picture.text(LEFT + 16 * BIT, y + 8, "…", size=SMALL)
            y += 14
            skipped = False
        picture.text(LEFT - 6, y + 17, f"{number * 4:02X}h", "end", SMALL)
        bit = 0
        for item, group in groupby(word, key=lambda place: place[0] if place else None):
            run = list(group)
            x, w = LEFT + bit * BIT, len(run) * BIT
            bit += len(run)
            kind = "rsv" if item is None else "hw"
            picture.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{ROW}"/>')
            if item is None:
                continue
            text = name_of(item, [place[1] for place in run if place], number)
            size = next((size for size in (FONT, SMALL, 9.5, 8.5) if wide(text, size) <= w - 3), 0)
            if not size:
                key = keys.setdefault(text, _letter(len(keys)))
                text, size = key, SMALL
            picture.text(x + w / 2, y + 17, text, size=size)
        y += ROW
    line = ""
    for text, key in keys.items():
        more = f"{key}: {text}"
        if line and wide(f"{line}   {more}", SMALL) > 32 * BIT:
            picture.text(LEFT, y + 16, line, "start", SMALL)
            y, line = y + LINE, more
        else:
            line = f"{line}   {more}" if line else more
    if line:
        picture.text(LEFT, y + 16, line, "start", SMALL)
    return picture


def _letter(number: int) -> str:
    """Return a, b, … z, then aa, ab, …: one letter is as wide as the narrowest cell."""
    first, last = divmod(number, 26)
    return (chr(96 + first) if first else "") + chr(97 + last)
