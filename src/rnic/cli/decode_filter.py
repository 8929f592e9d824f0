"""Select the packets that ``rnic decode`` shows, and mark them, for example as retransmitted."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import click

from rnic.judge import Judge
from rnic.judge.stream import Stream
from rnic.link.pcap import CapturedPacket
from rnic.spec.psn import PSN_MASK
from rnic.wire.bth import Bth
from rnic.wire.deth import Deth
from rnic.wire.dissect import JUDGED, ROCE, Frame
from rnic.wire.header import Header
from rnic.wire.mad import CLASS_CM, CM_NAMES, Mad
from rnic.wire.pretty import headers

_MARKS = {
    "repeated packets": "repeated",
    "late packets": "late",
    "gaps": "behind a gap",
    "late responses": "late",
    "acknowledged, not in the capture": "names what is not in the capture",
    "new connections on used numbers": "new connection",
}
"""Facts of the judge that describe a single packet."""


class Follower:
    """Follows the connections of a capture: marks packets, and knows which queue pairs are connected."""

    def __init__(self, ports: list[int]) -> None:
        self._judges = {port: Judge(lambda finding: None, port=port) for port in ports}
        self.number = 0

    def take(self, packet: CapturedPacket) -> None:
        """Take the next frame of the capture."""
        self.number += 1
        for judge in self._judges.values():
            judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)

    def stream(self, frame: Frame) -> Stream | None:
        """Return the direction that a packet belongs to."""
        if frame.flow is None or frame.kind not in JUDGED:
            return None
        port = frame.flow.dport if frame.kind == ROCE else next(iter(self._judges), 0)
        if port not in self._judges:
            return None
        key = frame.flow.src, frame.flow.dst, int.from_bytes(frame.payload[5:8], "big")
        return self._judges[port].connections.streams.get(key)

    def mark(self, frame: Frame) -> str:
        """Return the mark of the newest packet, such as ``"repeated"``, from its position in its connection; may be
        empty."""
        stream = self.stream(frame)
        if stream is None:
            return ""
        for way in (stream, stream.peer):
            if way is not None and way.facts.last[0] == self.number:
                return _MARKS.get(way.facts.last[1], "")
        return ""


class PsnRange(click.ParamType):  # type: ignore[type-arg]  # generic for mypy only in some versions of click
    """A PSN, or a range of two with a dash, which may wrap around, as in ``16777210-5``."""

    name = "PSN[-PSN]"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return the first and the last PSN."""
        if isinstance(value, tuple):
            return value
        first, _, last = value.partition("-")
        try:
            found = int(first, 0), int(last or first, 0)
        except ValueError:
            self.fail(f"{value!r} is neither a PSN nor a range such as 100-200", param, ctx)
        if not all(0 <= psn <= PSN_MASK for psn in found):
            self.fail(f"{value!r}: PSNs are 0 to {PSN_MASK}", param, ctx)
        return found


class QueuePairNumber(click.ParamType):  # type: ignore[type-arg]  # generic for mypy only in some versions of click
    """A queue pair's number, decimal or 0x."""

    name = "QPN"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            qpn = value if isinstance(value, int) else int(value, 0)
        except ValueError:
            qpn = -1
        if not 0 <= qpn <= 0xFF_FFFF:
            self.fail(f"{value!r} is not a queue pair number (0 to 0xffffff)", param, ctx)
        return qpn


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter options; an empty tuple matches every packet."""

    qpns: tuple[int, ...] = ()
    """Queue pairs: either end of the packet's connection."""
    operations: tuple[str, ...] = ()
    """Patterns over opcode names, ``WRITE*`` meaning any service's."""
    psns: tuple[tuple[int, int], ...] = ()

    @property
    def empty(self) -> bool:
        """True if every packet passes."""
        return not (self.qpns or self.operations or self.psns)

    def passes(self, frame: Frame, names: tuple[str, ...], follower: Follower) -> bool:
        """Return whether a packet is shown."""
        if self.empty:
            return True
        if frame.kind not in JUDGED or len(frame.payload) < Bth.layout.size:
            return False
        found = headers(frame.payload)
        bth = found[0]
        assert isinstance(bth, Bth)
        if self.psns and not any(bth.psn - first & PSN_MASK <= last - first & PSN_MASK for first, last in self.psns):
            return False
        if self.operations and not any(fnmatchcase(name, op) for op in self.operations for name in names):
            return False
        return not self.qpns or bool(_ends(found, follower.stream(frame)) & set(self.qpns))


def _ends(found: list[Header], stream: Stream | None) -> set[int]:
    """Return the queue pairs at both ends of a packet, from its headers or its known stream."""
    ends: set[int] = {header.dqpn for header in found if isinstance(header, Bth)}
    ends |= {header.sqpn for header in found if isinstance(header, Deth)}
    if stream is not None and stream.peer is not None:
        ends.add(stream.peer.key[2])
    return ends


def names_of(name: str, payload: memoryview) -> tuple[str, ...]:
    """Return the names by which ``--op`` may select a packet: opcode name, with and without its service, and CM
    message."""
    found = [name, name.partition("_")[2] or name]
    mad = next((header for header in headers(payload) if isinstance(header, Mad)), None)
    if mad is not None and mad.mgmt_class == CLASS_CM:
        found.append(CM_NAMES.get(mad.attr_id, ""))
    return tuple(found)
