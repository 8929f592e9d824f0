"""The assembled NIC, sans I/O: bursts in, bursts out, doorbells, timers, commands, interrupts.

The caller passes in time and packets and sends the packets produced, one thread at a time. Work per call is bounded.
Input from the wire never raises an exception.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable
from functools import partial
from itertools import count as counting

from rnic.context.ctxmdata import CQ, EQ, QP
from rnic.context.ctxmgt import ContextManager, Status, cache_bytes
from rnic.context.messages import SOURCE_NAMES
from rnic.context.qp_context import QpContext
from rnic.device import admission
from rnic.device.commands import CommandResult, CommandUnit
from rnic.device.config import NicConfig
from rnic.device.congestion import Congestion
from rnic.device.context_changes import ContextChanges
from rnic.device.cq import CompletionQueue
from rnic.device.eq import EventQueue
from rnic.device.global_block import GlobalBlock
from rnic.device.gsi import Gsi
from rnic.device.hcr import Hcr
from rnic.device.host import FindPeer
from rnic.device.mailboxes import INIT_HCA
from rnic.device.non_rdma import NonRdmaChannel
from rnic.device.paths import Offload, Paths, flow_bytes
from rnic.device.queue_pair import DeviceQp
from rnic.device.receiving import MULTICAST_QPN, Receiving
from rnic.device.resources import Resources
from rnic.device.root import Root
from rnic.device.sending import Sending
from rnic.device.srq import SharedReceiveQueue
from rnic.device.timers import Timers
from rnic.device.uar import Uar
from rnic.engine import use
from rnic.mem.dma import DmaPort
from rnic.mem.table import MemoryTable
from rnic.spec import commands as cmd
from rnic.spec import events, reasons
from rnic.spec.registers import CONTROL_ENABLE, IRQ_EVENT, IRQ_FATAL, IRQ_QP_FAULT
from rnic.spec.rounds import TIMERS_PER_CALL, WRITE_BACK_NS
from rnic.spec.states import ERR, RESET
from rnic.state.arena import Arena
from rnic.state.device import Directory
from rnic.trace.counters import Counters
from rnic.trace.guard import Guard, Report
from rnic.trace.tracer import NullTracer, Tracer
from rnic.transport.inflight import Inflight
from rnic.transport.message import Message
from rnic.transport.qp import QueuePair
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

__all__ = ["MULTICAST_QPN", "Nic", "Offload"]

_WRITE_BACK_LOOKS = 256
_IDLE_WRITE_BACKS = 32
_BUSY_WRITE_BACKS = 1
"""Queue pairs that one write-back step scans, and those that it writes when idle and when busy: writing one takes as
long as about a hundred packets."""
_BUSY_LOOKS = 8
"""Busy checks per context that a busy NIC writes; otherwise sixteen NICs in a process would write all the time."""
_IDLE_NS = WRITE_BACK_NS // 2
"""Time without a packet after which a NIC counts as idle, longer than the pauses of a process that shares its core."""
_WRITE_BACK_STEP_NS = 1_000_000
_NOT_AT_WORK = frozenset({RESET, ERR})


def arena_bytes(config: NicConfig) -> int:
    """Return the size of the memory for a NIC's state, most of which is never touched."""
    return config.state_bytes + cache_bytes(config.log_max_qps) + flow_bytes(config.log_max_qps)


class Nic:
    """One NIC; implements :class:`~rnic.transport.host.Host`.

    Args:
        config: identity, limits, settings.
        rng: source of keys and other random values.
        counters: counters, which may be shared with the link.
        tracer: receives doorbells and commands.
        report: called once for each internal error (:class:`~rnic.trace.guard.Guard`).
        memory: memory of its arena, :func:`arena_bytes` of zeros, possibly shared; by default private memory.
        contexts: function that creates its CtxMgt, with the arguments of :class:`~rnic.context.ctxmgt.ContextManager`.

    ``arena`` is the memory of its data path's state. Callers must not modify ``qps``, ``cqs`` and so on of
    :attr:`resources`.
    """

    def __init__(
        self,
        config: NicConfig,
        *,
        rng: random.Random,
        counters: Counters | None = None,
        tracer: Tracer | None = None,
        report: Report | None = None,
        memory: mmap.mmap | None = None,
        contexts: Callable[..., ContextManager] = ContextManager,
    ) -> None:
        self.config = config
        self.random = rng
        self.tally = self._counters = Counters() if counters is None else counters
        """Counters of the reference only; :attr:`counters`, for other code, is complete."""
        self.count: Callable[[], None] | None = None
        """Adds the counts of compiled rounds; ``None`` if there are none."""
        self.tracer: Tracer = NullTracer() if tracer is None else tracer
        self.guard = Guard(self.counters, report)
        log = config.log_max_qps
        self.arena = Arena(arena_bytes(config), memory)
        self.root = Root(self.arena)
        self.memory = MemoryTable(rng, config.max_mrs, self.arena)
        self.memory.on_translation_change = self.invalidate_engine
        self.contexts = contexts(log, self.counters, arena=self.arena, first_qpn=config.first_qpn)
        self.directory = Directory(self.arena, log)
        self.engine = None if config.reference else use.shared(self.arena, self.memory, config)
        """The compiled engine's handle of this NIC, or ``None`` if only the reference runs."""
        self.context_changes = ContextChanges(self)
        self.contexts.changed = self.context_changes.changed
        self.contexts.image = self.context_changes.image
        if self.tracer.enabled:
            self.contexts.observe = self._trace_channel
        self.inflight = Inflight(self.arena, config.flight_packets)
        self.resources = Resources(config, self.memory, self.contexts)
        self.contexts.parser.admit = partial(admission.wrong_field, self)
        self.qps: dict[int, DeviceQp] = self.resources.qps
        self.running: dict[int, DeviceQp] = {}
        """Queue pairs whose contexts are all cached."""
        self.now_ns = 0
        """Last time passed in, in nanoseconds."""
        self.globals = GlobalBlock(self)
        self.non_rdma = NonRdmaChannel(self.counters)
        self.stray: Callable[[int, RxBurst, memoryview, int], bool] | None = None
        """Handles a packet for a queue pair of another NIC: segment number (the last argument) of a burst. Returns
        whether it did."""
        self.stopped: Callable[[int], None] | None = None
        """Called with the number of a queue pair that stops, before software can know, since software owns its memory
        again from then on."""
        self.judge: Callable[[Uar, int, int, int, bytes], CommandResult | None] | None = None
        """Applies fault rules to commands: returns the result of a failed command, ``None`` if the command
        continues."""
        self.find_peer: FindPeer | None = None
        """Finds queue pairs of other NICs, so that a failed request can report the responder's reason."""
        self.datagrams: Callable[[], None] | None = None
        """Called when a UD queue pair is created, which reports headers of received packets to software."""
        self.counting: Callable[[bytes], None] | None = None
        """Called with the IPv4 address of each sender that is known to count its IP IDs."""
        self.gsi = Gsi(self)
        """QP1."""
        self.congestion = Congestion(self, config.congestion)
        self.hca: dict[str, int] = {}
        """Values of INIT_HCA by mailbox field; empty before INIT_HCA."""
        self.enabled = False
        """True if packets are received."""
        self.held = True
        """True if nothing is sent and nothing times out."""
        self._commands = CommandUnit(self)
        self._paths = Paths(config, self.counters, self.arena, self.invalidate_engine)
        self.timers = Timers(self.arena, 1 << log)
        self.sending = Sending(self)
        self._receiving = Receiving(self)
        self.root.show(self)
        self.engine_device = use.device(self)
        """The engine's handle of all queue pairs, or ``None``; :meth:`invalidate_engine` clears its pointers."""
        self.congestion.publish()
        self.write_back_at: int | None = None
        self._busy_looks = self._to_write_back = 0
        self._moved_ns = 0
        if config.autostart:
            self.globals.control = CONTROL_ENABLE
            self.start(bytes(INIT_HCA.size))

    def __repr__(self) -> str:
        return f"<Nic {self.config}, {len(self.qps)} queue pairs>"

    # -------------------------------------------------------------------------- the driver's side

    def map_uar(self, port: DmaPort, buf: memoryview | None = None, program: int = 0) -> Uar:
        """Open a driver context.

        Args:
            port: DMA port for the driver's memory.
            buf: memory of its window, all zeros; by default private memory.
            program: number of the program; contexts with the same number belong to one program.
        """
        uar = Uar(port, self.resources.doorbells, self.resources.uar_blocks, buf, self.globals, program)
        uar.dead = self.globals.dead
        taken = {other.number for other in self.resources.uars}
        uar.number = next(number for number in counting() if number not in taken)
        self.resources.uars.append(uar)
        self.globals.add_uar(uar)
        self.congestion.add_uar(uar)
        return uar

    def unmap_uar(self, uar: Uar) -> None:
        """Close a driver context and destroy everything that it owns. A second call does nothing."""
        if not uar.closed:
            self._commands.release(uar)
            self.invalidate_engine()
            uar.closed = True
            self.resources.uars.remove(uar)
            self.globals.remove_uar(uar)
            self.congestion.remove_uar(uar)
            if not self.resources.uars and self.config.autostart and not self.contexts.complete:
                # the last driver's pages are gone: start as at power-up for the next driver
                self.stop()
                self.start(bytes(INIT_HCA.size))

    def command(
        self, uar: Uar, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b""
    ) -> CommandResult:
        """Run one mailbox command (numbers and status codes in :mod:`rnic.spec.commands`); it never raises."""
        try:
            result = None if self.judge is None else self.judge(uar, op, in_modifier, op_modifier, inbox)
            if result is None:
                result = self._commands.run(uar, op, in_modifier, op_modifier, inbox)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.guard.caught("command", error, f"{op:#x}")
            result = CommandResult(cmd.ST_INTERNAL_ERR)
        self.invalidate_engine()
        if self.tracer.enabled:
            self.tracer.event(self.now_ns, "command", 0, op=op, modifier=in_modifier, status=result.status)
        return result

    def next_event(self) -> int | None:
        """Return the interrupt vector of an EQ with new entries, or ``None``. Each vector is returned once."""
        interrupts = self.resources.interrupts
        if not interrupts:
            return None
        eq = interrupts.popleft()
        eq.key.pending = 0
        self.globals.raise_cause(IRQ_EVENT)
        return eq.vector

    def flush_contexts(self) -> None:
        """Write all cached contexts back to host memory. A query does this for its queue pair."""
        key = self.contexts.key
        for kind, cached in ((QP, key.qps), (CQ, key.cqs), (EQ, key.eqs)):
            for number in list(cached):
                self.contexts.flush_one(kind, number)

    def _trace_channel(self, source: int, request: str, index: int, status: str) -> None:
        """Report a context manager request to the tracer."""
        self.tracer.event(
            self.now_ns, "channel", index, source=SOURCE_NAMES[source], request=request, index=index, status=status
        )

    def internal_error(self, place: str, qp: QueuePair | None, error: Exception) -> None:
        """Report an internal error and move the queue pair concerned to ERR; the others continue."""
        if isinstance(qp, DeviceQp) and self._context_failed(qp):
            return
        self.guard.caught(place, error, "" if qp is None else f"QP {qp.ctx.local_qpn:#x}")
        if qp is None or qp.ctx.state in _NOT_AT_WORK:
            return
        # an entry that fails again was removed from the queue: the second attempt continues after it
        for _ in range(2):
            try:
                qp.enter_error()
            except Exception as again:  # noqa: BLE001 - the last guard
                self.guard.caught("error", again, f"QP {qp.ctx.local_qpn:#x}")
            else:
                return

    def _context_failed(self, qp: DeviceQp) -> bool:
        """Fail a queue pair because of an invalid context field; return false if there is none."""
        failed = False
        with self.guard.around("context", f"QP {qp.number:#x}"):
            if field := admission.stored_wrong(self, qp):
                qp.fail_context(field)
                failed = True
        return failed

    def invalidate_engine(self) -> None:
        """Make the engine look up queues, rings and paths again, since they may have moved."""
        if self.engine_device is not None:
            self.engine_device.invalidate()

    # ------------------------------------------------------------------------- the device as a whole

    def start(self, mailbox: bytes) -> None:
        """Run INIT_HCA with valid sizes: set up its tables and number pools; :class:`Refused` if they do not fit."""
        res = self.resources
        res.icm.start(mailbox)
        self.hca = INIT_HCA.unpack(mailbox)
        for kind, table in ((cmd.RES_QP, QP), (cmd.RES_CQ, CQ), (cmd.RES_EQ, EQ)):
            res.pools[kind].resize(1 << self.contexts.ctxmdata.tables[table].log)
        self.globals.ready = True
        self.globals.open_port()

    def stop(self) -> None:
        """Run CLOSE_HCA once nothing uses the tables."""
        self.resources.icm.stop()
        self.hca = {}
        self.globals.ready = False
        self.globals.closer = None
        self.globals.set_port(port_open=False)

    def update_enabled(self) -> None:
        """Update the running state after CONTROL or the port changed."""
        self.enabled = self.globals.enabled
        self.held = not self.enabled or self.globals.paused

    def soft_reset(self) -> None:
        """Destroy all objects of all contexts and return to the power-up state; contexts stay open."""
        for uar in self.resources.uars:
            self._commands.release(uar)
            uar.hcr = Hcr()
        self.invalidate_engine()
        self.resources.icm.clear()
        self.resources.interrupts.clear()
        self.sending.failed_cqs.clear()
        self.sending.final_bursts.clear()
        self.gsi.waiting.clear()
        self.non_rdma.clear()
        self.hca = {}
        self.globals.reset()
        self.update_enabled()
        self.counters.bump("soft_resets")

    def set_link(self, up: bool) -> None:
        """Set the link state: raise a port change event for every context."""
        self.globals.set_port(link_up=up)

    def broadcast_event(self, event_type: int, number: int, *, subtype: int = 0, program: int | None = None) -> None:
        """Report a device or port event to every context (of one program) that mapped its type."""
        self.counters.bump(f"event_{events.EVENT_NAMES[event_type].lower()}")
        for uar in self.resources.uars:
            eqn = uar.event_queues.get(event_type)
            if eqn is not None and (program is None or uar.program == program):
                self.resources.eqs[eqn].report(event_type, number, subtype=subtype)

    def eq_broken(self, eq: EventQueue) -> None:
        """Report that an EQ's memory is not accessible: its context cannot get events, so the device fails.

        Only contexts of the same program get the event: that program unmapped the memory, or has ended.
        """
        self.globals.fatal = True
        self.globals.raise_cause(IRQ_FATAL)
        self.broadcast_event(events.LOCAL_CATAS_ERROR, eq.number, program=eq.uar.program)

    def receive_other(self, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Pass a non-RDMA frame to the non-RDMA channel (004 7.6)."""
        self._receiving.take_other(frame, now_ns)

    def receive_frame(self, packet: memoryview, now_ns: int) -> None:
        """Process a whole packet, from its IP header on: as RDMA by its UDP port, else for the non-RDMA channel (004
        7.3)."""
        self._receiving.take_frame(packet, now_ns)

    # ---------------------------------------------------------------------------- the link's side

    def attach(self, offload: Offload | None) -> None:
        """Set the link, which determines the length of bursts."""
        self._paths.offload = offload
        self.invalidate_engine()

    def take_group_changes(self) -> list[tuple[bytes, bool]]:
        """Return the multicast groups, by IP address, that the link must join (true) or leave since the last call."""
        groups = self.resources.groups
        changes = groups.changes[:]
        groups.changes.clear()
        return changes

    def receive(self, burst: RxBurst, now_ns: int, start: int = 0) -> None:
        """Process a received burst, from byte ``start`` on. A bad packet increments a drop counter and has no other
        effect."""
        self._receiving.take(burst, now_ns, start)

    def share_idents(self, other: Nic) -> None:
        """Share another device's state of peers' IP IDs, since both receive at one address."""
        self._receiving.share_idents(other._receiving)

    def learn_idents(self, burst: RxBurst, count: int) -> None:
        """Record ``count`` packets of a burst's sender that an engine processed, which accepts only small IP IDs."""
        self._receiving.learn(burst, count)

    def produce(self, now_ns: int, budget: int = 256) -> list[TxBurst]:
        """Handle rung doorbells, then give turns to queue pairs with work (:mod:`rnic.device.scheduler`).

        Args:
            budget: approximate limit of packets to send.
        """
        return self.sending.produce(now_ns, budget)

    def has_work(self) -> bool:
        """True if :meth:`produce` has work to do now."""
        return not self.held and (self.sending.has_work() or bool(self.gsi.waiting))

    # -------------------------------------------------------------------------------------- timers

    @property
    def counters(self) -> Counters:
        """Everything counted so far."""
        if self.count is not None:
            self.count()
        return self._counters

    def next_deadline_ns(self) -> int | None:
        """Return the latest time for the next call of :meth:`handle_timers`; ``None`` for never."""
        if self.held:
            return None
        deadline, own = self.timers.next_ns(), self.own_deadline_ns()
        return own if deadline is None or (own is not None and own < deadline) else deadline

    def own_deadline_ns(self) -> int | None:
        """Return the next deadline of write-back and of the port's agent, without the queue pairs' timers."""
        if self.count is not None:
            self.count()  # moved packets start the write-back timer
        write_back = self.write_back_at if self.qps else None
        datagrams = self.gsi.next_deadline_ns()
        return datagrams if write_back is None or (datagrams is not None and datagrams < write_back) else write_back

    def handle_timers(self, now_ns: int) -> None:
        """Handle expired timers."""
        self.now_ns = now_ns
        if self.held:
            return
        self._handle_deadlines(now_ns)
        with self.guard.around("datagram"):
            self.gsi.handle_timers(now_ns)
        self.write_back_if_due(now_ns)

    def _handle_deadlines(self, now_ns: int) -> None:
        """Call a bounded number of queue pairs with expired timers; the others follow next time."""
        timers, qps, device = self.timers, self.sending.qps, self.engine_device
        left = TIMERS_PER_CALL
        while left:
            if device is None:
                record, left = timers.due(now_ns), left - 1
            else:
                record, left = device.handle_deadlines(now_ns, left)
            if not record:
                return
            self.handle_deadline(qps[record], now_ns)

    def handle_deadline(self, qp: DeviceQp, now_ns: int) -> None:
        """Handle the expired timer of a queue pair, which is no longer armed."""
        try:
            if qp.deadline_ns <= now_ns:
                qp.handle_timer(now_ns)
            if qp.deadline_ns < qp.armed_ns:
                self.arm(qp)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.internal_error("timer", qp, error)

    def note_traffic(self, now_ns: int) -> None:
        """Start the write-back timer after packets were received or sent."""
        self._moved_ns = now_ns
        if self.write_back_at is None:
            self.write_back_at = now_ns + WRITE_BACK_NS

    def write_back_if_due(self, now_ns: int) -> None:
        """Write back if it is time. Unlike other timers, this one does not wait until received packets are read."""
        if self.write_back_at is not None and self.write_back_at <= now_ns and not self.held:
            self.write_back_all(now_ns)

    def write_back_all(self, now_ns: int) -> None:
        """Write back some queue pairs, and continue later until all are written."""
        self.write_back_at = None
        most = _IDLE_WRITE_BACKS
        if now_ns - self._moved_ns < _IDLE_NS:
            self._busy_looks += 1
            if self._busy_looks % _BUSY_LOOKS:
                self.write_back_at = now_ns + WRITE_BACK_NS
                return
            most = _BUSY_WRITE_BACKS
        left, self._to_write_back = min(self._to_write_back or len(self.qps), len(self.qps)), 0
        with self.guard.around("write-back"):
            self._to_write_back = left - self.contexts.write_back(min(left, _WRITE_BACK_LOOKS), most)
        if self._to_write_back:
            self.write_back_at = now_ns + _WRITE_BACK_STEP_NS

    # ------------------------------------------------------------------------ the transport's side

    def schedule(self, qp: QueuePair) -> None:
        """Schedule a turn for ``qp``, which may have something to send."""
        if not qp.scheduled:
            qp.scheduled = 1
            if not qp.held:
                self.sending.scheduler.add(qp.memory.record)

    def arm(self, qp: QueuePair) -> None:
        """Re-arm the timer of ``qp`` at ``qp.deadline_ns``, which is earlier than ``qp.armed_ns``."""
        if not qp.held:
            self.timers.arm(qp.memory.record, qp.deadline_ns)

    def final_bursts(self, bursts: list[TxBurst]) -> None:
        """Queue ``bursts`` of a queue pair that has no more turns, to be sent before all others."""
        self.sending.final_bursts += bursts

    def drain_acks(self) -> list[TxBurst]:
        """Return acknowledgements that are due, before the device is closed."""
        if self.held:
            return []
        for qp in self.running.values():
            with self.guard.around("release"):
                qp.drain_acks()
        out = self.sending.final_bursts[:]
        self.sending.final_bursts.clear()
        return out

    def register_qp(self, qp: DeviceQp) -> None:
        """Register a new queue pair with the scheduler and the directory.

        Raises:
            MemoryError: there is no room for its program.
        """
        record = qp.memory.record
        self.sending.scheduler.enroll(record, qp.uar.program, self.config.turn_bytes)
        self.sending.qps[record] = qp
        self.directory[qp.number] = record

    def update_hold(self, qp: DeviceQp) -> None:
        """Run a queue pair if its contexts are cached, else hold it."""
        self.context_changes.update_hold(qp)

    def load_contexts(self, queue: DeviceQp | CompletionQueue) -> Status:
        """Load a queue's evicted contexts before a command uses it."""
        return self.context_changes.load_contexts(queue)

    def unregister_qp(self, qp: DeviceQp) -> None:
        """Remove a destroyed queue pair from the scheduler, the timers and the engine."""
        record = qp.memory.record
        self.timers.forget(record)
        qp.requester.detach()
        if qp.scheduled and not qp.held:
            self.sending.scheduler.remove(record)
        qp.scheduled = 0
        qp.flow = None
        if self.engine_device is not None:
            self.engine_device.remove(qp.number)
            self.engine_device.drop(record)
            qp.executor = None
        self.sending.scheduler.dismiss(record)
        del self.sending.qps[record]
        self.running.pop(qp.number, None)
        self.directory[qp.number] = 0

    def event(self, event_type: int, number: int, status: int = 0) -> None:
        """Report an asynchronous event to the driver context that owns the queue concerned."""
        self.counters.bump(f"event_{events.EVENT_NAMES[event_type].lower()}")
        res = self.resources
        queue: DeviceQp | CompletionQueue | SharedReceiveQueue | None
        if event_type == events.CQ_ERROR:
            queue = res.cqs.get(number)
        elif event_type in (events.SRQ_LIMIT, events.SRQ_CATAS_ERROR):
            queue = res.srqs.get(number)
        else:
            queue = qp = res.qps.get(number)
            if event_type == events.SQ_DRAINED and qp is not None and not qp.notify_drained:
                return
        if queue is None:
            return
        eqn = queue.uar.event_queues.get(event_type)
        if eqn is not None:
            res.eqs[eqn].report(event_type, number, status)

    def fault(self, number: int) -> None:
        """Raise the interrupt of a queue pair that stopped because of an error (004 7.3, 7.7)."""
        self.counters.bump("qp_faults")
        with self.guard.around("write-back"):
            self.contexts.write_back_one(number)
        if self.write_back_at is None:
            self.write_back_at = self.now_ns + WRITE_BACK_NS
        self.globals.raise_cause(IRQ_QP_FAULT)

    def make_flow(self, ctx: QpContext) -> Flow:
        """Return the path to the peer in a connected QP's context."""
        return self._paths.connected(ctx)

    def flow_to(self, ctx: QpContext, message: Message) -> Flow:
        """Return the path to the destination of a UD send."""
        return self._paths.datagram(ctx, message)

    def max_segments(self, flow: Flow, gso_agreed: bool) -> int:
        """Return the number of packets that one burst on this path may hold: 1 without segmentation offload."""
        return self._paths.max_segments(flow, gso_agreed)

    def pkey(self, index: int) -> int:
        """Return the P_Key at a table index; beyond the table, return 0, which is never valid."""
        pkeys = self.config.pkeys
        return pkeys[index] if index < len(pkeys) else 0

    def cq_overflowed(self, cq: CompletionQueue) -> None:
        """Report an overflowed CQ; its queue pairs fail with the next :meth:`produce`."""
        self.sending.failed_cqs.append(cq)
        if cq.unread() == cq.size - 1:
            for qp in [qp for qp in self.qps.values() if cq in qp.cqs]:
                qp.explain(reasons.CQ_FULL, cqn=cq.number, entries=cq.size - 1)
        self.event(events.CQ_ERROR, cq.number)
