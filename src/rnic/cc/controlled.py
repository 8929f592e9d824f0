"""Connect a queue pair to its congestion control: pass it events, and store its decisions in the queue pair's record.

The transport and the engine read them there: the window, and the token bucket of a rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rnic.cc.control import BURST_PACKETS, Ack, Control
from rnic.cc.pacing import RATE_TIME_BITS, Pace, rate_word
from rnic.spec.limits import NEVER
from rnic.state.queue_pair import QP
from rnic.state.record import place

if TYPE_CHECKING:
    from rnic.cc.control import Flow, Hop

ACKS_A_WINDOW: Final = 4
"""Fewest ACKs per window: a smaller window requests them more often."""
SLOWEST_NS: Final = 1_000_000
"""Round-trip time assumed for pacing an allowance below one packet before the first measurement."""
SOONEST_ACK = 16
"""Most packets between two ACK requests if the congestion control counts ACKs."""

_CONTROL, _CONTROL_NS, _PACED = place(QP, "control"), place(QP, "control_ns"), place(QP, "paced")
_WINDOW, _WIDEST, _MOST, _ACK_EVERY = (place(QP, name) for name in ("window", "widest", "most", "ack_every"))
_INFLIGHT, _MTU, _UNA, _SENT = (place(QP, name) for name in ("inflight", "mtu", "una", "sent_psn"))
_RATE, _PACE_MOST = place(QP, "pace_rate"), place(QP, "pace_most")


class Arrival:
    """A simulated network's report with an ACK, about the last packet that it acknowledges."""

    __slots__ = ("ecn", "hops", "remote_ns", "rtt_ns", "telemetry")

    def __init__(self, rtt_ns: int, remote_ns: int, hops: int, ecn: bool, telemetry: tuple[Hop, ...]) -> None:
        self.rtt_ns = rtt_ns
        self.remote_ns = remote_ns
        self.hops = hops
        self.ecn = ecn
        self.telemetry = telemetry


class Controlled:
    """One queue pair and its congestion control; it is the control's :class:`~rnic.cc.control.Flow`.

    Args:
        words: the words of the queue pair's record.
        number: queue pair number.
        packet_bytes: bytes of its largest packet.
        line_rate: rate of the NIC's link in bits per second.
        ack_every: the NIC's setting of packets per ACK request.
        make: function that creates the control for this flow.
        now_ns: start time.
    """

    __slots__ = (
        "_ack_every",
        "_rtt_ns",
        "_words",
        "arrival",
        "control",
        "counts_acks",
        "counts_sent",
        "line_rate",
        "number",
        "pace",
        "packet_bytes",
    )

    def __init__(
        self,
        words: memoryview,
        number: int,
        packet_bytes: int,
        line_rate: float,
        ack_every: int,
        make: Callable[[Flow, int, memoryview], Control],
        now_ns: int,
    ) -> None:
        self._words = words
        self._rtt_ns = 0
        self.number, self.packet_bytes, self.line_rate = number, packet_bytes, line_rate
        self.arrival: Arrival | None = None
        """The network's report with the ACK that is being processed."""
        self.pace = Pace(words)
        self.control = control = make(self, now_ns, words)
        words[_CONTROL] = control.number
        self.counts_acks = type(control).on_ack is not Control.on_ack
        self.counts_sent = type(control).on_sent is not Control.on_sent
        # a window that shrinks below the packets in flight waits for an ACK, so one must have been requested
        self._ack_every = min(ack_every, SOONEST_ACK) if self.counts_acks else ack_every
        words[_ACK_EVERY] = min(words[_ACK_EVERY], self._ack_every)
        burst = control.burst_bytes or BURST_PACKETS * packet_bytes
        words[_PACE_MOST] = burst << RATE_TIME_BITS
        self.pace.fill(now_ns)
        self.apply()

    @property
    def mtu(self) -> int:
        """Payload bytes of a full packet."""
        return self._words[_MTU]

    @property
    def most(self) -> int:
        """Packets that may be in flight without congestion."""
        return self._words[_MOST]

    @property
    def inflight(self) -> int:
        """Packets in flight."""
        return self._words[_INFLIGHT]

    def apply(self) -> bool:
        """Store the control's decisions in the record. Return whether the window grew."""
        words, control = self._words, self.control
        allowance, rate = control.allowance, control.rate
        most, before = words[_MOST], words[_WIDEST]
        widest = most if allowance >= most else max(1, int(allowance))
        if widest != before:
            self._limit(widest)
        if allowance < 1:
            bits = max(allowance, 1e-6) * self.packet_bytes * 8
            rate = min(rate, bits * 1e9 / (self._rtt_ns or SLOWEST_NS))
        words[_RATE] = word = rate_word(rate)
        words[_PACED] = word != 0
        words[_CONTROL_NS] = NEVER if control.lazy else control.timer_ns
        return widest > before

    def _limit(self, packets: int) -> None:
        """Set the outstanding limit. A window below it after losses still grows with acknowledgements."""
        words = self._words
        if words[_WINDOW] >= min(words[_WIDEST], packets):
            words[_WINDOW] = packets
            words[_ACK_EVERY] = max(1, min(self._ack_every, packets // ACKS_A_WINDOW))
        words[_WIDEST] = packets

    def stop(self) -> None:
        """Remove the control and its limits."""
        words = self._words
        if words[_WIDEST] != words[_MOST]:
            self._limit(words[_MOST])
        words[_CONTROL] = words[_PACED] = 0
        words[_CONTROL_NS] = NEVER

    # ------------------------------------------------------------------------------------- events

    def acknowledged(self, packets: int, rtt_ns: int, now_ns: int) -> None:
        """Report an acknowledgement; ``rtt_ns`` is 0 without a measured round trip."""
        words, arrival = self._words, self.arrival
        size = packets * words[_MTU]
        if arrival is None:
            ack = Ack(now_ns, words[_UNA], words[_SENT], packets, size, rtt_ns)
        else:
            self.arrival = None
            rtt_ns = arrival.rtt_ns
            ack = Ack(
                now_ns,
                words[_UNA],
                words[_SENT],
                packets,
                size,
                rtt_ns,
                arrival.remote_ns,
                arrival.hops,
                arrival.ecn,
                arrival.telemetry,
            )
        if rtt_ns:
            self._rtt_ns = rtt_ns
        self.control.on_ack(self, ack)
        self.apply()

    def notified(self, now_ns: int) -> bool:
        """Report a CNP. Return whether the window shrank."""
        before = self._words[_WIDEST]
        self.control.on_cnp(self, now_ns)
        self.apply()
        return self._words[_WIDEST] < before

    def lost(self, now_ns: int) -> None:
        """Report a loss."""
        self.control.on_loss(self, now_ns)
        self.apply()

    def catch_up(self, now_ns: int) -> bool:
        """Call its timer if it is due. Return whether the window grew."""
        if self.control.timer_ns > now_ns:
            return False
        self.control.on_timer(self, now_ns)
        return self.apply()

    def sent(self, size: int) -> None:
        """Take sent bytes from the bucket, and report them to the control."""
        if self._words[_PACED]:
            self.pace.spend(size)
        self.sent_by_engine(size)

    def sent_by_engine(self, size: int) -> None:
        """Report sent bytes that the engine has taken from the bucket already."""
        if self.counts_sent:
            self.control.on_sent(self, size)
            self.apply()
