"""The protocol of a congestion control: events of one queue pair, and two answers.

A congestion control is one class, a :class:`Control`. Each queue pair gets an object of its own. The transport calls it
for each ACK, CNP, loss and timer, and after each call reads ``allowance``, the packets that may be in flight, and
``rate``, in bits per second. An allowance below one packet paces: half a packet is one packet every two round trips.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, Final, NamedTuple, Protocol

from rnic.spec.limits import NEVER

CONTROL_NONE: Final = 0
"""Number of a queue pair without a congestion control in its word ``control``."""
CONTROL_LIMIT: Final = 1
CONTROL_DCQCN: Final = 2
CONTROL_FIXED: Final = 3
CONTROL_OTHER: Final = 4
"""A congestion control in Python alone."""
BURST_PACKETS: Final = 4
"""Most packets in one burst of a paced queue pair, so that the rate also holds at the first switch."""


class Hop(NamedTuple):
    """In-band telemetry of one switch port (INT), as of when the packet left it."""

    time_ns: int
    queued_bytes: int
    """Bytes that waited behind the packet."""
    sent_bytes: int
    """Bytes that the port has sent, this packet included."""
    bits_s: int
    """Rate of its link."""


class Ack(NamedTuple):
    """One acknowledgement: an ACK, or a READ or atomic response.

    What a network does not report is 0 or empty: over sockets ``remote_ns``, ``hops``, ``ecn`` and ``telemetry``.
    """

    now_ns: int
    psn: int
    """PSN of the oldest packet that is not acknowledged from now on."""
    next_psn: int
    """PSN behind the last packet ever sent."""
    packets: int
    """Packets that it acknowledges."""
    bytes: int
    """Payload bytes that it acknowledges; counts each packet as a full one."""
    rtt_ns: int
    """Round trip of one of these packets, 0 if none was measured."""
    remote_ns: int = 0
    """The part of ``rtt_ns`` between the packet's arrival and the ACK's departure."""
    hops: int = 0
    """Switches that the packet passed."""
    ecn: bool = False
    """True if the packet was marked (ECN CE)."""
    telemetry: tuple[Hop, ...] = ()
    """Telemetry of the switch ports that the packet passed, in its order."""


class Flow(Protocol):
    """A queue pair, as its congestion control sees it."""

    @property
    def number(self) -> int:
        """Queue pair number."""

    @property
    def mtu(self) -> int:
        """Payload bytes of a full packet."""

    @property
    def packet_bytes(self) -> int:
        """Bytes of the largest packet from the BTH to the ICRC, by which pacing counts."""

    @property
    def line_rate(self) -> float:
        """Rate of the NIC's link in bits per second."""

    @property
    def most(self) -> int:
        """Packets that the queue pair may have in flight without congestion."""

    @property
    def inflight(self) -> int:
        """Packets in flight."""


class Control:
    """A congestion control of one queue pair that allows everything: the base of all others.

    Args:
        flow: the queue pair.
        now_ns: when it begins.

    A subclass takes its settings as further keyword arguments, which a scenario or program gives by name. It overrides
    the events that it reacts to, and sets ``allowance``, ``rate`` and ``timer_ns``.
    """

    number: ClassVar[int] = CONTROL_OTHER
    """Value of the word ``control`` of its queue pairs."""
    waits_for_cnp: ClassVar[bool] = False
    """True if it allows everything until the first CNP, which makes it."""
    lazy: ClassVar[bool] = False
    """True if its timers matter only when a packet leaves: :meth:`on_timer` then comes just before."""
    telemetry: ClassVar[bool] = False
    """True if it reads ``remote_ns``, ``hops``, ``ecn`` or ``telemetry`` of ACKs, which cost a simulation time."""

    allowance: float = inf
    """Packets that may be in flight, a fraction too."""
    rate: float = inf
    """Bits per second at which packets leave, headers up to the BTH not counted; ``inf`` paces nothing."""
    timer_ns: int = NEVER
    """Time of the next :meth:`on_timer`."""
    burst_bytes: int = 0
    """Most bytes that leave at once while it paces; 0 for :data:`BURST_PACKETS` packets."""

    def __init__(self, flow: Flow, now_ns: int) -> None:
        """Begin with what the class says."""

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        """React to an acknowledgement."""

    def on_cnp(self, flow: Flow, now_ns: int) -> None:
        """React to a congestion notification packet."""

    def on_loss(self, flow: Flow, now_ns: int) -> None:
        """React to a loss: a NAK, an ACK timeout, or a response that is missing."""

    def on_timer(self, flow: Flow, now_ns: int) -> None:
        """React to ``timer_ns``, and set the next."""

    def on_sent(self, flow: Flow, size: int) -> None:
        """Count bytes that have left while ``rate`` was finite, from the BTH to the ICRC."""


class FixedRate(Control):
    """The rate that software set in a queue pair's register (``hardware.md`` 4).

    Args:
        flow, now_ns: as for all.
        rate: bits per second.
        burst_bytes: bytes that may leave at once.
    """

    number = CONTROL_FIXED

    def __init__(self, flow: Flow, now_ns: int, *, rate: float, burst_bytes: int) -> None:
        super().__init__(flow, now_ns)
        self.rate, self.burst_bytes = rate, burst_bytes
