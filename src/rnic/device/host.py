"""Protocols of the NIC, one for each part of the device, so that no part imports :mod:`rnic.device.nic`.

A protocol names the attributes and methods that one part uses; :class:`~rnic.device.nic.Nic` has them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rnic.transport.host import Host as TransportHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from rnic.context.ctxmgt import ContextManager, Status
    from rnic.device.commands import CommandResult
    from rnic.device.config import NicConfig
    from rnic.device.congestion import Congestion
    from rnic.device.cq import CompletionQueue
    from rnic.device.eq import EventQueue
    from rnic.device.global_block import GlobalBlock
    from rnic.device.gsi import Gsi
    from rnic.device.non_rdma import NonRdmaChannel
    from rnic.device.queue_pair import DeviceQp
    from rnic.device.resources import Resources
    from rnic.device.sending import Sending
    from rnic.device.timers import Timers
    from rnic.device.uar import Uar
    from rnic.engine import _engine
    from rnic.mem.table import MemoryTable
    from rnic.state.arena import Arena
    from rnic.state.device import Directory
    from rnic.trace.counters import Counters
    from rnic.trace.guard import Guard
    from rnic.trace.tracer import Tracer
    from rnic.transport.inflight import Inflight
    from rnic.transport.qp import QueuePair
    from rnic.wire.bursts import RxBurst


class FindPeer(Protocol):
    """Finds the other end of a connection among the NICs of the same user."""

    def __call__(self, address: bytes, port: int, qpn: int, /) -> tuple[bool, DeviceQp | None]:
        """Return whether one of these NICs has the address, and its queue pair with this number, if any."""


class TableHost(Protocol):
    """Tables of all driver contexts' objects, by number."""

    resources: Resources


class CountersHost(Protocol):
    """Owner of all counters."""

    @property
    def counters(self) -> Counters:
        """Everything counted so far."""


class PortHost(Protocol):
    """Identity and state of the port."""

    config: NicConfig
    globals: GlobalBlock


class EventHost(TableHost, PortHost, Protocol):
    """Asynchronous events for programs."""

    def event(self, event_type: int, number: int, status: int = 0) -> None:
        """Report an asynchronous event to the context that owns the queue concerned."""

    def broadcast_event(self, event_type: int, number: int, *, subtype: int = 0, program: int | None = None) -> None:
        """Report a device or port event to every context that mapped its type."""


class GsiHost(PortHost, CountersHost, Protocol):
    """For QP1."""


class AdmissionHost(TableHost, Protocol):
    """For the checks of contexts that are not written by commands."""

    config: NicConfig
    memory: MemoryTable


class RegisterHost(EventHost, CountersHost, Protocol):
    """For the registers of the global block, including the command register."""

    non_rdma: NonRdmaChannel

    def command(
        self, uar: Uar, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b""
    ) -> CommandResult:
        """Run one mailbox command."""

    def has_work(self) -> bool:
        """True if there is anything to send now."""

    def soft_reset(self) -> None:
        """Destroy every object of every context."""

    def update_enabled(self) -> None:
        """Update the running state after CONTROL or the port changed."""


class CongestionHost(EventHost, CountersHost, Protocol):
    """For congestion control."""

    congestion: Congestion
    engine_device: _engine.Device | None
    now_ns: int
    qps: dict[int, DeviceQp]

    def schedule(self, qp: QueuePair) -> None:
        """Schedule a turn for ``qp``."""


class QpHost(TransportHost, TableHost, Protocol):
    """For one queue pair."""

    congestion: Congestion
    contexts: ContextManager
    datagrams: Callable[[], None] | None
    engine_device: _engine.Device | None
    stopped: Callable[[int], None] | None
    find_peer: FindPeer | None


class QpCommandHost(QpHost, Protocol):
    """For the commands on queue pairs."""

    config: NicConfig
    guard: Guard
    now_ns: int

    def load_contexts(self, queue: DeviceQp | CompletionQueue) -> Status:
        """Load the evicted contexts of a queue."""

    def register_qp(self, qp: DeviceQp) -> None:
        """Register a new queue pair with the scheduler and the directory."""

    def unregister_qp(self, qp: DeviceQp) -> None:
        """Remove a queue pair that is destroyed."""

    def update_hold(self, qp: DeviceQp) -> None:
        """Run a queue pair if its contexts are cached, else hold it."""


class ContextChangeHost(QpCommandHost, Protocol):
    """For handling context changes."""

    qps: dict[int, DeviceQp]
    running: dict[int, DeviceQp]
    sending: Sending
    timers: Timers

    def invalidate_engine(self) -> None:
        """Make the engine look up queues, rings and paths again."""


class CommandHost(QpCommandHost, CongestionHost, AdmissionHost, Protocol):
    """For the command unit and its functions."""

    config: NicConfig
    hca: dict[str, int]
    held: bool
    non_rdma: NonRdmaChannel

    def cq_overflowed(self, cq: CompletionQueue) -> None:
        """Fail the queue pairs of an overflowed CQ."""

    def eq_broken(self, eq: EventQueue) -> None:
        """Report that an EQ's memory is not accessible."""

    def start(self, mailbox: bytes) -> None:
        """Run INIT_HCA."""

    def stop(self) -> None:
        """Run CLOSE_HCA."""


class FaultHost(EventHost, AdmissionHost, Protocol):
    """For faults injected into a running NIC."""

    config: NicConfig
    qps: dict[int, DeviceQp]

    def soft_reset(self) -> None:
        """Destroy every object of every context."""

    def start(self, mailbox: bytes) -> None:
        """Run INIT_HCA."""

    def update_enabled(self) -> None:
        """Update the running state."""


class InspectHost(GsiHost, TableHost, Protocol):
    """For the views of tools."""

    congestion: Congestion
    contexts: ContextManager
    gsi: Gsi
    now_ns: int
    qps: dict[int, DeviceQp]


class RootHost(Protocol):
    """For the first record of the arena, which has the offsets of the others."""

    contexts: ContextManager
    directory: Directory
    inflight: Inflight
    memory: MemoryTable
    sending: Sending
    timers: Timers


class TrafficHost(GsiHost, TableHost, Protocol):
    """For both directions of packets."""

    gsi: Gsi
    guard: Guard
    now_ns: int
    running: dict[int, DeviceQp]
    tally: Counters

    def internal_error(self, place: str, qp: QueuePair | None, error: Exception) -> None:
        """Move the queue pair concerned by an internal error to ERR."""

    def note_traffic(self, now_ns: int) -> None:
        """Schedule the write-back of contexts that packets changed."""


class SendingHost(TrafficHost, Protocol):
    """For sending."""

    arena: Arena
    contexts: ContextManager
    held: bool
    tracer: Tracer

    def schedule(self, qp: QueuePair) -> None:
        """Schedule a turn for ``qp``."""


class ReceivingHost(TrafficHost, Protocol):
    """For receiving."""

    congestion: Congestion
    counting: Callable[[bytes], None] | None
    enabled: bool
    non_rdma: NonRdmaChannel
    qps: dict[int, DeviceQp]
    stray: Callable[[int, RxBurst, memoryview, int], bool] | None
