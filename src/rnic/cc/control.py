"""Interface of a congestion control: events of one queue pair in, window and rate out.

A congestion control is a subclass of :class:`Control`, with one object per queue pair. The transport calls it for each
ACK, CNP, loss and timer, and after each call reads ``allowance``, the window in packets, and ``rate``, in bits per
second. An allowance below one packet implies pacing: half a packet means one packet every two round trips.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, Final, NamedTuple, Protocol

from rnic.spec.limits import NEVER

CONTROL_NONE: Final = 0
"""Value of a queue pair's word ``control`` without congestion control."""
CONTROL_LIMIT: Final = 1
CONTROL_DCQCN: Final = 2
CONTROL_FIXED: Final = 3
CONTROL_OTHER: Final = 4
"""Value of ``control`` for a congestion control that exists in Python only."""
BURST_PACKETS: Final = 4
"""Most packets in one burst of a paced queue pair, so that the rate also holds over short times."""


class Hop(NamedTuple):
    """In-band telemetry (INT) of one switch port, taken when the packet left it."""

    time_ns: int
    queued_bytes: int
    """Bytes queued behind the packet."""
    sent_bytes: int
    """Bytes sent by the port, including this packet."""
    bits_s: int
    """Link rate in bits per second."""


class Ack(NamedTuple):
    """One acknowledgement: an ACK, or a READ or atomic response.

    Fields that the network does not report are 0 or empty: over sockets ``remote_ns``, ``hops``, ``ecn`` and
    ``telemetry``.
    """

    now_ns: int
    psn: int
    """PSN of the oldest unacknowledged packet after this ACK."""
    next_psn: int
    """PSN after the last packet ever sent."""
    packets: int
    """Newly acknowledged packets."""
    bytes: int
    """Newly acknowledged payload bytes, counting each packet as full-sized."""
    rtt_ns: int
    """Round-trip time of one of these packets, 0 if none was measured."""
    remote_ns: int = 0
    """The part of ``rtt_ns`` between the packet's arrival and the ACK's departure."""
    hops: int = 0
    """Switches that the packet passed."""
    ecn: bool = False
    """True if the packet was ECN-marked (CE)."""
    telemetry: tuple[Hop, ...] = ()
    """Telemetry of the switch ports on the packet's path, in order."""


class Flow(Protocol):
    """A queue pair as seen by its congestion control."""

    @property
    def number(self) -> int:
        """Queue pair number."""

    @property
    def mtu(self) -> int:
        """Payload bytes of a full packet."""

    @property
    def packet_bytes(self) -> int:
        """Size of the largest packet from the BTH to the ICRC, the unit of pacing."""

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
    """Base class: a congestion control of one queue pair without limits.

    Args:
        flow: the queue pair.
        now_ns: start time.

    A subclass takes its settings as keyword arguments, which a scenario or program sets by name. It overrides the event
    methods that it needs, and sets ``allowance``, ``rate`` and ``timer_ns``.
    """

    number: ClassVar[int] = CONTROL_OTHER
    """Value of the word ``control`` of its queue pairs."""
    waits_for_cnp: ClassVar[bool] = False
    """True if the object is only created at the first CNP, and nothing is limited before."""
    lazy: ClassVar[bool] = False
    """True if timers may run late: :meth:`on_timer` is only called just before a packet is sent."""
    telemetry: ClassVar[bool] = False
    """True if it reads ``remote_ns``, ``hops``, ``ecn`` or ``telemetry`` of ACKs, which slow a simulation down."""

    allowance: float = inf
    """Packets that may be in flight, possibly a fraction."""
    rate: float = inf
    """Sending rate in bits per second, counted from the BTH; ``inf`` disables pacing."""
    timer_ns: int = NEVER
    """Time of the next :meth:`on_timer`."""
    burst_bytes: int = 0
    """Most bytes in one burst while pacing; 0 for :data:`BURST_PACKETS` packets."""

    def __init__(self, flow: Flow, now_ns: int) -> None:
        """Start with the attributes of the class."""

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        """React to an acknowledgement."""

    def on_cnp(self, flow: Flow, now_ns: int) -> None:
        """React to a congestion notification packet."""

    def on_loss(self, flow: Flow, now_ns: int) -> None:
        """React to a loss: a NAK, an ACK timeout, or a missing response."""

    def on_timer(self, flow: Flow, now_ns: int) -> None:
        """React to the expiry of ``timer_ns``, and set the next one."""

    def on_sent(self, flow: Flow, size: int) -> None:
        """Count bytes sent while ``rate`` was finite, from the BTH to the ICRC."""


class FixedRate(Control):
    """Fixed rate from a queue pair's register (``hardware.md`` 4).

    Args:
        flow, now_ns: see :class:`Control`.
        rate: bits per second.
        burst_bytes: most bytes in one burst.
    """

    number = CONTROL_FIXED

    def __init__(self, flow: Flow, now_ns: int, *, rate: float, burst_bytes: int) -> None:
        super().__init__(flow, now_ns)
        self.rate, self.burst_bytes = rate, burst_bytes
