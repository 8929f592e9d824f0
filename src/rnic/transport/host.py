"""What the transport needs from the device that holds it."""

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
        """Write one CQ entry; false where it is lost. ``word3`` holds opcode and ``CQE_*`` flags, without the phase."""


class ReceiveCompletionSink(CompletionSink, Protocol):
    """That of receive completions."""

    @property
    def notified(self) -> bool:
        """Whether it was armed for an entry that came: its owner sleeps on completion events."""


class ReceiveSource(Protocol):
    """A receive queue or a shared receive queue."""

    def take(self) -> ReceiveWqe | None:
        """The next posted entry, or ``None``."""

    def available(self) -> int:
        """Entries posted and not taken."""


class TransportConfig(Protocol):
    """Settings that the transport reads."""

    window_packets: int
    window_bytes: int
    ack_every: int
    probe: bool
    rq_almost_full: int
    recovery: str


class Host(Protocol):
    """The device as the transport sees it."""

    arena: Arena
    memory: MemoryTable
    inflight: Inflight

    @property
    def counters(self) -> Counters:
        """Where everything is counted."""

    @property
    def config(self) -> TransportConfig:
        """Settings that the transport reads."""

    def schedule(self, qp: QueuePair) -> None:
        """``qp`` may have something to send: give it a turn."""

    def final_bursts(self, bursts: list[TxBurst]) -> None:
        """Send ``bursts`` of a queue pair that has no more turns."""

    def arm(self, qp: QueuePair) -> None:
        """``qp.deadline_ns`` lies before ``qp.armed_ns``: wake it then."""

    def event(self, event_type: int, number: int, status: int = 0) -> None:
        """Raise an asynchronous event."""

    def fault(self, number: int) -> None:
        """A queue pair stopped for an error, whether or not an event or a completion tells of it."""

    def make_flow(self, ctx: QpContext) -> Flow:
        """The path to the peer that a connected QP's context names."""

    def flow_to(self, ctx: QpContext, message: Message) -> Flow:
        """The path to the destination of a UD send."""

    def max_segments(self, flow: Flow, gso_agreed: bool) -> int:
        """Packets that one burst on this path may hold: 1 without segmentation offload."""

    def pkey(self, index: int) -> int:
        """P_Key at a table index."""
