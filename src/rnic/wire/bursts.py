"""Packets as a device and its links exchange them: runs of equal-sized UDP payloads.

A burst is what one ``sendmsg`` with UDP_SEGMENT or one ``recvmsg`` with UDP_GRO carries. A single packet is a
burst of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnic.wire.flow import Flow

Buffer = bytes | bytearray | memoryview

DONT_FRAGMENT = 0x4000
"""IPv4 flags and fragment offset as every RoCEv2 sender sets them: DF, offset 0."""
NOTHING_KNOWN = (0, 0)
"""Value of :attr:`RxBurst.known` if no bit of an IP ID is known."""


class TxBurst:
    """``count`` UDP payloads of ``segment`` bytes each, to a peer; the last may be shorter.

    ``buffers``, joined, are the payloads back to back. They do not change: payload is copied before its ICRC is
    computed. A link does not use them after its ``send`` returns. The ICRC of segment ``i`` is computed for IP ID
    ``i``.
    """

    __slots__ = ("buffers", "count", "flow", "length", "segment")

    def __init__(self, flow: Flow, buffers: list[Buffer], segment: int, count: int, length: int) -> None:
        self.flow = flow
        self.buffers = buffers
        self.segment = segment
        self.count = count
        self.length = length


class RxBurst:
    """UDP payloads that arrived together, each of ``segment`` bytes; the last may be shorter.

    ``flow`` is the path from the peer to us. ``ident`` is the IP ID of the first segment, counting up by one per
    segment, or ``None`` if the link does not see IP headers; ``frag`` is the IPv4 flags and offset word if the IP ID is
    known. ``known`` is a mask of bits that the link knows of all segments' IP IDs without seeing them, and their
    values. ``tclass``, ``hop_limit`` and ``flow_label`` are those of the packets' IP header, as they arrived. ``buf``
    is valid until the link receives again. ``arrival`` is the report of a simulated network
    (:class:`rnic.cc.controlled.Arrival`), or ``None``.
    """

    __slots__ = (
        "arrival",
        "buf",
        "ecn",
        "flow",
        "flow_label",
        "frag",
        "hop_limit",
        "ident",
        "known",
        "length",
        "segment",
        "tclass",
    )

    def __init__(
        self,
        flow: Flow,
        buf: memoryview,
        segment: int,
        length: int,
        ident: int | None = None,
        frag: int = DONT_FRAGMENT,
        tclass: int = 0,
        hop_limit: int = 64,
        flow_label: int = 0,
        known: tuple[int, int] = NOTHING_KNOWN,
    ) -> None:
        self.flow = flow
        self.buf = buf
        self.segment = segment
        self.length = length
        self.ident = ident
        self.frag = frag
        self.tclass = tclass
        self.ecn = tclass & 3
        self.hop_limit = hop_limit
        self.flow_label = flow_label
        self.known = known
        self.arrival: Any = None

    @property
    def count(self) -> int:
        """Number of packets."""
        return -(-self.length // self.segment) if self.segment > 0 else 1
