"""Interface of the transport to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rnic.context.qp_context import QpContext
    from rnic.mem.table import MemoryTable
    from rnic.state.arena import Arena
    from rnic.trace.counters import Counters
    from rnic.transport.inflight import Inflight
    from rnic.transport.message import Message
    from rnic.transport.qp import QueuePair
    from rnic.transport.wqe import ReceiveWqe
    from rnic.wire.bursts import TxBurst
    from rnic.wire.flow import Flow


class CompletionSink(Protocol):
    """The device's side of a completion queue."""

    def complete(
        self,
        index: int,
        status: int,
        vendor_err: int,
        length: int,
        word3: int,
        wqe_id: int,
        requested: int,
        qpn: int,
        imm: int,
    ) -> bool:
        """Write one CQ entry. Return false if it is lost. ``word3``: opcode and ``CQE_*`` flags, without the phase."""


class ReceiveCompletionSink(CompletionSink, Protocol):
    """The completion queue of receive completions."""

    @property
    def notified(self) -> bool:
        """True if the CQ was armed when an entry arrived: its owner sleeps on completion events."""


class ReceiveSource(Protocol):
    """A receive queue or a shared receive queue."""

    def take(self) -> ReceiveWqe | None:
        """Return the next posted entry, or ``None``."""

    def available(self) -> int:
        """Return the number of posted entries that are not taken yet."""

    def kept_back(self, most: int) -> int:
        """Return how many of ``most`` entries to keep back: 0 if the ring is too short."""

    def readable(self) -> bool:
        """False if an entry is posted but cannot be read."""


class TransportConfig(Protocol):
    """Settings that the transport reads."""

    window_packets: int
    window_bytes: int
    ack_every: int
    probe: bool
    rq_almost_full: int
    recovery: str
    fault_events: bool


class Host(Protocol):
    """The device as the transport sees it."""

    arena: Arena
    memory: MemoryTable
    inflight: Inflight

    @property
    def counters(self) -> Counters:
        """Counters of the device."""

    @property
    def config(self) -> TransportConfig:
        """Settings that the transport reads."""

    def schedule(self, qp: QueuePair) -> None:
        """Schedule a turn for ``qp``, which may have something to send."""

    def final_bursts(self, bursts: list[TxBurst]) -> None:
        """Send ``bursts`` of a queue pair that has no more turns."""

    def arm(self, qp: QueuePair) -> None:
        """Re-arm the timer of ``qp`` at ``qp.deadline_ns``, which is earlier than ``qp.armed_ns``."""

    def event(self, event_type: int, number: int, status: int = 0) -> None:
        """Raise an asynchronous event."""

    def fault(self, number: int) -> None:
        """Record that a queue pair stopped because of an error, whether or not an event or a completion reports it."""

    def make_flow(self, ctx: QpContext) -> Flow:
        """Return the path to the peer in a connected QP's context."""

    def flow_to(self, ctx: QpContext, message: Message) -> Flow:
        """Return the path to the destination of a UD send."""

    def max_segments(self, flow: Flow, gso_agreed: bool) -> int:
        """Return the number of packets that one burst on this path may hold: 1 without segmentation offload."""

    def pkey(self, index: int) -> int:
        """Return the P_Key at a table index."""
