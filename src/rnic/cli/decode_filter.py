"""Which packets ``rnic decode`` shows, and what it says about each beside its bytes."""

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
from rnic.wire.dissect import ROCE, Frame
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
"""Facts of a judge that say something about the packet that they were noted for."""


class Follower:
    """Follows the connections of a capture: marks on packets, and which queue pair answers which."""

    def __init__(self, ports: list[int]) -> None:
        self._judges = {port: Judge(lambda finding: None, port=port) for port in ports}
        self.number = 0

    def take(self, packet: CapturedPacket) -> None:
        """The next frame of the capture."""
        self.number += 1
        for judge in self._judges.values():
            judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)

    def stream(self, frame: Frame) -> Stream | None:
        """The direction that a packet belongs to."""
        if frame.flow is None or frame.kind != ROCE or frame.flow.dport not in self._judges:
            return None
        key = frame.flow.src, frame.flow.dst, int.from_bytes(frame.payload[5:8], "big")
        return self._judges[frame.flow.dport].connections.streams.get(key)

    def mark(self, frame: Frame) -> str:
        """What the newest packet is among the others of its connection, such as ``"repeated"``, or nothing."""
        stream = self.stream(frame)
        if stream is None:
            return ""
        for way in (stream, stream.peer):
            if way is not None and way.facts.last[0] == self.number:
                return _MARKS.get(way.facts.last[1], "")
        return ""


class PsnRange(click.ParamType):  # type: ignore[type-arg]  # generic for mypy only in some versions of click
    """A PSN, or two with a dash between: also round the end, as in ``16777210-5``."""

    name = "PSN[-PSN]"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """First and last."""
        if isinstance(value, tuple):
            return value
        first, _, last = value.partition("-")
        try:
            found = int(first, 0), int(last or first, 0)
        except ValueError:
            self.fail(f"{value!r} is no PSN and no range such as 100-200", param, ctx)
        if not all(0 <= psn <= PSN_MASK for psn in found):
            self.fail(f"{value!r}: PSNs are 0 to {PSN_MASK}", param, ctx)
        return found


class QueuePairNumber(click.ParamType):  # type: ignore[type-arg]  # generic for mypy only in some versions of click
    """A queue pair's number, decimal or 0x."""

    name = "QPN"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        try:
            qpn = value if isinstance(value, int) else int(value, 0)
        except ValueError:
            qpn = -1
        if not 0 <= qpn <= 0xFF_FFFF:
            self.fail(f"{value!r} is no queue pair number (0 to 0xffffff)", param, ctx)
        return qpn


@dataclass(frozen=True, slots=True)
class Filter:
    """What is asked for; an empty tuple asks nothing."""

    qpns: tuple[int, ...] = ()
    """Either end of the packet's connection."""
    operations: tuple[str, ...] = ()
    """Patterns over opcode names, ``WRITE*`` meaning any service's."""
    psns: tuple[tuple[int, int], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether everything passes."""
        return not (self.qpns or self.operations or self.psns)

    def passes(self, frame: Frame, names: tuple[str, ...], follower: Follower) -> bool:
        """Whether a packet is shown."""
        if self.empty:
            return True
        if frame.kind != ROCE or len(frame.payload) < Bth.layout.size:
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
    """The queue pairs that a packet says it goes between, or is known to."""
    ends: set[int] = {header.dqpn for header in found if isinstance(header, Bth)}
    ends |= {header.sqpn for header in found if isinstance(header, Deth)}
    if stream is not None and stream.peer is not None:
        ends.add(stream.peer.key[2])
    return ends


def names_of(name: str, payload: memoryview) -> tuple[str, ...]:
    """What ``--op`` may call a packet: opcode name, with and without its service, and the CM message."""
    found = [name, name.partition("_")[2] or name]
    mad = next((header for header in headers(payload) if isinstance(header, Mad)), None)
    if mad is not None and mad.mgmt_class == CLASS_CM:
        found.append(CM_NAMES.get(mad.attr_id, ""))
    return tuple(found)
