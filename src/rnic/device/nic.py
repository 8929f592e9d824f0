"""The assembled NIC, sans I/O: bursts in, bursts out, doorbells, timers, commands, interrupts.

Whoever drives it hands in time and packets and carries away what it produces; one thread at a time. Work per
call is bounded. Nothing that arrives from the wire raises.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from functools import partial
from itertools import count as counting

from rnic.burst import LOOPS, SMALL
from rnic.context.ctxmdata import CQ, EQ, QP
from rnic.context.ctxmgt import CHANGED, INVALID, ContextManager, Status, cache_bytes
from rnic.context.messages import SOURCE_NAMES
from rnic.context.qp_context import QpContext
from rnic.device import admission
from rnic.device.commands import CommandResult, CommandUnit
from rnic.device.config import NicConfig
from rnic.device.congestion import Congestion
from rnic.device.cq import CompletionQueue
from rnic.device.eq import EventQueue
from rnic.device.global_block import GlobalBlock
from rnic.device.gsi import Gsi
from rnic.device.hcr import Hcr
from rnic.device.icrc import IcrcCheck
from rnic.device.mailboxes import INIT_HCA
from rnic.device.non_rdma import NonRdmaChannel
from rnic.device.paths import Offload, Paths, flow_bytes
from rnic.device.qp_commands import create_qp
from rnic.device.queue_pair import DeviceQp
from rnic.device.resources import Resources
from rnic.device.root import Root
from rnic.device.srq import SharedReceiveQueue
from rnic.device.timers import Timers
from rnic.device.turns import Turns
from rnic.device.uar import Uar
from rnic.engine import use
from rnic.mem.dma import DmaPort
from rnic.mem.table import MemoryTable
from rnic.rings.queue_block import SQ_TAIL
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.drops import DropReason
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, MAX_TRANSPORT_HEADERS, MAX_UDP_PAYLOAD
from rnic.spec.opcodes import CNP, RC, UD
from rnic.spec.registers import CONTROL_ENABLE, IRQ_EVENT, IRQ_FATAL, IRQ_NON_RDMA, IRQ_QP_FAULT
from rnic.spec.states import ERR, INIT, RESET, RTR, RTS, SQD, SQE
from rnic.state.arena import Arena
from rnic.state.device import Directory
from rnic.trace.counters import Counters
from rnic.trace.guard import Guard, Report
from rnic.trace.tracer import NullTracer, Tracer
from rnic.transport.flights import Flights
from rnic.transport.host import BurstLoops
from rnic.transport.message import Message
from rnic.transport.qp import LEAST_REPLIES, QueuePair
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.datagram import parse_ip
from rnic.wire.flow import CE, Flow
from rnic.wire.mad import GSI_QPN
from rnic.wire.packet import Packet, parse

__all__ = ["MULTICAST_QPN", "Nic", "Offload"]

MULTICAST_QPN = 0xFFFFFF
_MIN_PACKET = BTH_BYTES + ICRC_BYTES
_SMALL_PACKET = SMALL.SMALL_BYTES + MAX_TRANSPORT_HEADERS + ICRC_BYTES
receive_small, send_ack, send_small = SMALL.receive_small, SMALL.send_ack, SMALL.send_small
_DQPN = struct.Struct(">I")
_DQPN_AT = 4
_QPN_MASK = 0xFFFFFF
_FULL_MEMBER = 0x8000
_WRITE_BACK_MASK = 0x3FF
_WRITE_BACK_QPS = 4
"""Every 1024 calls of ``produce``, this many queue pairs have their state and PSNs written back."""
WRITE_BACK_NS = 10_000_000
"""Once it moves no more packets, so long after the first of them, a NIC writes back what is left."""
_IDLE_WRITE_BACK_QPS = 256
_IDLE_WRITE_BACK_STEP_NS = 1_000_000
_NOT_AT_WORK = frozenset({RESET, ERR})
_RECEIVING = frozenset({RTR, RTS, SQD, SQE})
_WAY = {RTR: _RECEIVING, RTS: frozenset({RTS, SQD})}
"""States that a queue pair is in after it was in RTR, and in RTS."""


def _same_partition(one: int, other: int) -> bool:
    """IBA 10.9.3: equal but for the membership bit, and not two limited members."""
    return not (one ^ other) & ~_FULL_MEMBER and bool((one | other) & _FULL_MEMBER)


class Nic:
    """One NIC. It is the transport's :class:`~rnic.transport.host.Host`.

    Args:
        config: identity, limits, settings.
        rng: source of keys and whatever else is random.
        counters: where everything is counted; also the link's, if the same are handed in there.
        tracer: gets doorbells and commands.
        burst: the inner loops.
        report: gets each mistake of our own, once (:class:`~rnic.trace.guard.Guard`).

    ``arena`` is the memory of its data path's state. ``qps``, ``cqs`` and so on of :attr:`resources` are for looking
    at, not for changing.
    """

    def __init__(
        self,
        config: NicConfig,
        *,
        rng: random.Random,
        counters: Counters | None = None,
        tracer: Tracer | None = None,
        burst: BurstLoops = LOOPS,
        report: Report | None = None,
    ) -> None:
        self.config = config
        self.random = rng
        self.counters: Counters = Counters() if counters is None else counters
        self.tracer: Tracer = NullTracer() if tracer is None else tracer
        self.guard = Guard(self.counters, report)
        self.burst: BurstLoops = burst
        log = config.log_max_qps
        self.arena = Arena(config.state_bytes + cache_bytes(log) + flow_bytes(log))
        self.root = Root(self.arena)
        self.memory = MemoryTable(rng, config.max_mrs, self.arena)
        self.contexts = ContextManager(log, self.counters, arena=self.arena)
        self.directory = Directory(self.arena, log)
        self.engine = use.port(self.arena, self.memory, config)
        """The compiled engine's view of the whole, or ``None`` where the reference runs alone."""
        self.root.show(self.memory, self.contexts.key, self.directory)
        self.contexts.changed = self._context_changed
        self.contexts.image = self._context_image
        if self.tracer.enabled:
            self.contexts.observe = self._trace_channel
        self.flights = Flights(config.flight_packets)
        self.resources = Resources(config, self.memory, self.contexts)
        self.contexts.parser.admit = partial(admission.fits, self)
        self.qps: dict[int, DeviceQp] = self.resources.qps
        self._running: dict[int, DeviceQp] = {}
        """Those whose contexts are all cached."""
        self.now_ns = 0
        """The time that was handed in last."""
        self.globals = GlobalBlock(self)
        self.non_rdma = NonRdmaChannel(self.counters)
        self.gsi = Gsi(self)
        """QP1."""
        self.congestion = Congestion(self, config.congestion)
        self.hca: dict[str, int] = {}
        """What INIT_HCA said, by the fields of its mailbox; empty before."""
        self._enabled = False
        self._held = True
        self._commands = CommandUnit(self)
        self._doorbells = self.resources.doorbells
        self._paths = Paths(config, self.counters, self.arena)
        self._icrc = IcrcCheck()
        self._timers = Timers(partial(self._own_error, "timer"))
        self._ready = Turns(config.program_turn_bytes)
        self._failed_cqs: list[CompletionQueue] = []
        self._last_words: list[TxBurst] = []
        self._turns = 0
        self._write_back_at: int | None = None
        self._to_write_back = 0
        if config.autostart:
            self.globals.control = CONTROL_ENABLE
            self.start(bytes(INIT_HCA.size))

    def __repr__(self) -> str:
        return f"<Nic {self.config}, {len(self.qps)} queue pairs>"

    # -------------------------------------------------------------------------- the driver's side

    def map_uar(self, port: DmaPort, buf: memoryview | None = None, program: int = 0) -> Uar:
        """Open a driver context.

        Args:
            port: how to reach the driver's memory.
            buf: memory for its window, zeros; by default the process's own.
            program: tells programs apart: contexts with one number are one program's.
        """
        uar = Uar(port, self._doorbells, self.resources.uar_blocks, buf, self.globals, program)
        uar.dead = self.globals.dead
        taken = {other.number for other in self.resources.uars}
        uar.number = next(number for number in counting() if number not in taken)
        self.resources.uars.append(uar)
        self.globals.came(uar)
        self.congestion.came(uar)
        return uar

    def unmap_uar(self, uar: Uar) -> None:
        """Close a driver context: everything that it owns is destroyed. A second call does nothing."""
        if not uar.closed:
            self._commands.release(uar)
            self._timers.sweep()
            uar.closed = True
            self.resources.uars.remove(uar)
            self.globals.went(uar)
            self.congestion.went(uar)
            if not self.resources.uars and self.config.autostart and not self.contexts.complete:
                # the last driver took its pages along: as at power-up, for whoever comes next
                self.stop()
                self.start(bytes(INIT_HCA.size))

    def command(
        self, uar: Uar, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b""
    ) -> CommandResult:
        """Run one mailbox command (numbers and status codes in :mod:`rnic.spec.commands`); it never raises."""
        try:
            result = self._commands.run(uar, op, in_modifier, op_modifier, inbox)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.guard.caught("command", error, f"{op:#x}")
            result = CommandResult(cmd.ST_INTERNAL_ERR)
        if self.tracer.enabled:
            self.tracer.event(self.now_ns, "command", 0, op=op, modifier=in_modifier, status=result.status)
        return result

    def next_event(self) -> int | None:
        """The interrupt vector of an EQ that has new entries, or ``None``. Each vector is said once."""
        interrupts = self.resources.interrupts
        if not interrupts:
            return None
        eq = interrupts.popleft()
        eq.key.pending = 0
        self.globals.raise_cause(IRQ_EVENT)
        return eq.vector

    def flush_contexts(self) -> None:
        """Make host memory exact: of every context that is cached. A query does so for its queue pair."""
        key = self.contexts.key
        for kind, cached in ((QP, key.qps), (CQ, key.cqs), (EQ, key.eqs)):
            for number in list(cached):
                self.contexts.flush_one(kind, number)

    def _context_image(self, kind: str, number: int) -> bytes | None:
        """The context manager writes a context back whole: what it holds now."""
        if kind == QP:
            qp = self.qps.get(number)
            if qp is not None:
                qp.query()
            return None
        queues: Mapping[int, CompletionQueue | EventQueue] = self.resources.cqs if kind == CQ else self.resources.eqs
        queue = queues.get(number)
        return None if queue is None else queue.image()

    def _context_changed(self, kind: str, number: int, what: str) -> None:
        """The context manager says what became of a context: its queue follows.

        One that was evicted stalls its queue, and the queue pairs that complete to it; one that is no more fails it
        (002 table 2.2). Whatever else changed, acts now.
        """
        if kind == QP:
            self._qp_changed(number, what)
        elif kind == CQ:
            cq = self.resources.cqs.get(number)
            if cq is not None:
                if what == INVALID:
                    cq.fail()
                elif what == CHANGED:
                    cq.changed()
                    cq.catch_up()
                for qp in [qp for qp in self.qps.values() if cq in qp.cqs]:
                    self.settle(qp)
        elif what == CHANGED:
            eq = self.resources.eqs.get(number)
            if eq is not None:
                eq.changed()
                eq.back()
                for cq in self.resources.cqs.values():
                    if cq.key.comp_eqn == number:
                        cq.catch_up()

    def _qp_changed(self, number: int, what: str) -> None:
        qp = self.qps.get(number)
        if qp is None:
            uar = self.resources.pools[cmd.RES_QP].owners.get(number)
            if uar is not None and what == CHANGED and self.contexts.key.qps.view(number).state != RESET:
                self._take_up(uar, number)
            return
        self.settle(qp)
        if what == CHANGED:
            with self.guard.around("context", f"QP {number:#x}"):
                qp.reload(self.now_ns)
                self.settle(qp)

    def _take_up(self, uar: Uar, number: int) -> None:
        """A context of a queue pair that no command made has come: make it, in the state that it has."""
        with self.guard.around("context", f"QP {number:#x}"):
            qp = create_qp(self, uar, self.contexts.key.qps.view(number))
            state = qp.ctx.state
            for step in (RTR, RTS):
                # as its transitions would have: to receive, then to send
                if state in _WAY[step]:
                    qp.on_modify(INIT if step == RTR else RTR, self.now_ns)
            qp.refresh()

    def settle(self, qp: DeviceQp) -> None:
        """Let a queue pair run, or hold it, as its contexts are cached or not."""
        key = self.contexts.key
        held = qp.number in key.qps.evicted or any(cq.number in key.cqs.evicted for cq in qp.cqs)
        if held:
            if self._running.pop(qp.number, None) is not None:
                self._timers.forget(qp)
                if qp.scheduled:
                    self._ready.remove(qp)
            qp.held = 1
        elif qp.number not in self._running:
            self._running[qp.number] = qp
            if qp.held:
                qp.held = 0
                qp.scheduled = False
                self._failed_cqs += [cq for cq in qp.cqs if cq.failed]
                qp.rearm()
                self._doorbells.ring(qp.regs.block)
                self.schedule(qp)

    def bring(self, queue: DeviceQp | CompletionQueue) -> Status:
        """Load what of a queue's contexts was evicted: a command works on it."""
        cqs = queue.cqs if isinstance(queue, DeviceQp) else (queue,)
        wanted = [(CQ, cq.number) for cq in cqs]
        if isinstance(queue, DeviceQp):
            wanted.append((QP, queue.number))
        status = Status.OK
        for kind, number in wanted:
            if self.contexts.evicted(kind, number):
                status = self.contexts.load(kind, number) or status
        return status

    def _trace_channel(self, source: int, request: str, index: int, status: str) -> None:
        """Tell the tracer of one request to the context manager."""
        self.tracer.event(
            self.now_ns, "channel", index, source=SOURCE_NAMES[source], request=request, index=index, status=status
        )

    def _own_error(self, place: str, qp: QueuePair | None, error: Exception) -> None:
        """A mistake of our own: the queue pair concerned goes to the ERR state, everybody else goes on."""
        self.guard.caught(place, error, "" if qp is None else f"QP {qp.ctx.local_qpn:#x}")
        if qp is None or qp.ctx.state in _NOT_AT_WORK:
            return
        # what fails once more has left its place in the queue: the second time goes on behind it
        for _ in range(2):
            try:
                qp.enter_error()
            except Exception as again:  # noqa: BLE001 - the last guard
                self.guard.caught("error", again, f"QP {qp.ctx.local_qpn:#x}")
            else:
                return

    # ------------------------------------------------------------------------- the device as a whole

    def start(self, mailbox: bytes) -> None:
        """INIT_HCA with sizes that are right: its tables, and as many numbers; :class:`Refused` if they do not fit."""
        res = self.resources
        res.icm.start(mailbox)
        self.hca = INIT_HCA.unpack(mailbox)
        for kind, table in ((cmd.RES_QP, QP), (cmd.RES_CQ, CQ), (cmd.RES_EQ, EQ)):
            res.pools[kind].resize(1 << self.contexts.ctxmdata.tables[table].log)
        self.globals.ready = True
        self.globals.open_port()

    def stop(self) -> None:
        """CLOSE_HCA, with nothing left that uses the tables."""
        self.resources.icm.stop()
        self.hca = {}
        self.globals.ready = False
        self.globals.closer = None
        self.globals.set_port(port_open=False)

    def gate(self) -> None:
        """CONTROL or the port changed: what may run from now on."""
        self._enabled = self.globals.enabled
        self._held = not self._enabled or self.globals.paused

    def soft_reset(self) -> None:
        """Destroy every object of every context, and go back to how the NIC powers up; contexts stay open."""
        for uar in self.resources.uars:
            self._commands.release(uar)
            uar.hcr = Hcr()
        self.resources.icm.clear()
        self.resources.interrupts.clear()
        self._failed_cqs.clear()
        self._last_words.clear()
        self.gsi.waiting.clear()
        self.non_rdma.clear()
        self.hca = {}
        self.globals.reset()
        self.gate()
        self.counters.bump("soft_resets")

    def set_link(self, up: bool) -> None:
        """The link says that it is up or down: a port change event for every context."""
        self.globals.set_port(link_up=up)

    def tell_all(self, event_type: int, number: int, *, subtype: int = 0, program: int | None = None) -> None:
        """An event about the device or its port, to every context (of one program) that asked for its type."""
        self.counters.bump(f"event_{events.EVENT_NAMES[event_type].lower()}")
        for uar in self.resources.uars:
            eqn = uar.event_queues.get(event_type)
            if eqn is not None and (program is None or uar.program == program):
                self.resources.eqs[eqn].report(event_type, number, subtype=subtype)

    def eq_broken(self, eq: EventQueue) -> None:
        """An EQ's memory does not answer: its context cannot be told anything, which is a fault of the device.

        Only contexts of the same program hear of it: what it did to its memory, or its death, is no other's trouble.
        """
        self.globals.fatal = True
        self.globals.raise_cause(IRQ_FATAL)
        self.tell_all(events.LOCAL_CATAS_ERROR, eq.number, program=eq.uar.program)

    def receive_other(self, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Take a frame that is not RDMA: to the non-RDMA channel (004 7.6)."""
        if not self._enabled:
            self.counters.bump(DropReason.DISABLED.value)
        elif self.non_rdma.put(frame, now_ns):
            self.globals.raise_cause(IRQ_NON_RDMA)

    def receive_frame(self, packet: memoryview, now_ns: int) -> None:
        """Take a whole packet, from its IP header on: RDMA by its UDP port, or for the non-RDMA channel (004 7.3)."""
        try:
            datagram = parse_ip(packet, self.config.port)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.guard.caught("packet", error)
            return
        if isinstance(datagram, DropReason):
            self.receive_other(packet, now_ns)
            return
        payload, size = datagram.payload, len(datagram.payload)
        flow, ident, frag = datagram.flow(), datagram.ident, datagram.frag
        how = datagram.tclass, datagram.hop_limit, datagram.flow_label
        self.receive(RxBurst(flow, payload, size, size, ident, frag, *how), now_ns)

    # ---------------------------------------------------------------------------- the link's side

    def attach(self, offload: Offload | None) -> None:
        """Say which link carries the packets, so that bursts are as long as it takes."""
        self._paths.offload = offload

    def take_group_changes(self) -> list[tuple[bytes, bool]]:
        """Multicast groups, by IP address, that the link must join (true) or leave, since the last call."""
        groups = self.resources.groups
        changes, groups.changes = groups.changes, []
        return changes

    def receive(self, burst: RxBurst, now_ns: int) -> None:
        """Take what arrived. A bad packet bumps a drop counter and has no other effect."""
        self.now_ns = now_ns
        if not self._enabled:
            self.counters.bump(DropReason.DISABLED.value)
            return
        length = burst.length
        segment = burst.segment if burst.segment > 0 else length
        buf = burst.buf
        flow = burst.flow
        qps = self._running
        marked = burst.ecn == CE
        learning = burst.ident is None and not flow.settled
        start = 0
        packets = 0
        while start < length:
            end = start + segment
            if end > length:
                end = length
            packets += 1
            if end - start < _MIN_PACKET:
                self.counters.bump(DropReason.TOO_SHORT.value)
                start = end
                continue
            dqpn = _DQPN.unpack_from(buf, start + _DQPN_AT)[0] & _QPN_MASK
            qp = qps.get(dqpn)
            try:
                if qp is not None and not marked and (flow is qp.peer or qp.comes_from_peer(flow)):
                    executor = qp.executor
                    if executor is not None and (taken := executor.receive(burst, start, now_ns)):
                        qp.show()
                        count = -(-taken // segment)
                        start += taken
                        packets += count - 1
                        if learning:
                            self._icrc.learn(flow, count)
                        continue
                    if length - start >= 2 * segment and (taken := qp.receive_burst(burst, start, now_ns)):
                        start += taken
                        packets += taken // segment - 1
                        if learning:
                            self._icrc.learn(flow, taken // segment)
                        continue
                    if end - start <= _SMALL_PACKET and receive_small(qp, burst, start, end, qp.pkey, now_ns):
                        qp.show()
                        start = end
                        if learning:
                            self._icrc.learn(flow, 1)
                        continue
                self._receive_packet(qp, dqpn, burst, buf[start:end], start // segment)
            except Exception as error:  # noqa: BLE001 - the last guard
                self._own_error("packet", qp, error)
            start = end
        self.counters["rx_packets"] += packets
        if self._write_back_at is None:
            self._write_back_at = now_ns + WRITE_BACK_NS

    def _receive_packet(self, qp: DeviceQp | None, dqpn: int, burst: RxBurst, view: memoryview, index: int) -> None:
        """One packet by the full path: ICRC, header, queue pair, state, service, address, P_Key (004 7.3)."""
        size = len(view)
        if size > MAX_UDP_PAYLOAD or size & 3:
            # Headers, padded payload and ICRC are whole words. Seeds and residues are cached by length, so nobody
            # may fill those caches with lengths that no packet has.
            self.counters.bump((DropReason.TOO_LONG if size > MAX_UDP_PAYLOAD else DropReason.BAD_LENGTH).value)
            return
        try:
            if not self._icrc.accepts(view, burst, index):
                self.counters.bump(DropReason.BAD_ICRC.value)
                return
            packet = parse(view)
        except Exception as error:  # noqa: BLE001 - the last guard; who sent it is not shown yet, so no QP fails
            self.guard.caught("packet", error)
            return
        if isinstance(packet, DropReason):
            self.counters.bump(packet.value)
            return
        packet.arrive(burst)
        flow = burst.flow
        if qp is None:
            self._receive_elsewhere(packet, dqpn)
            return
        row = packet.row
        if qp.ctx.state not in _RECEIVING:
            self.counters.bump(DropReason.QP_STATE.value)
        elif row.service != qp.opcodes and packet.opcode != CNP:
            self.counters.bump(DropReason.WRONG_SERVICE.value)
        elif flow is not qp.peer and not qp.comes_from_peer(flow):
            self.counters.bump(DropReason.WRONG_ADDRESS.value)
        elif packet.pkey != qp.pkey and not _same_partition(packet.pkey, qp.pkey):
            self.counters.bump(DropReason.BAD_PKEY.value)
        elif packet.opcode == CNP:
            self.congestion.notified(qp, self.now_ns)
        else:
            if packet.ecn == CE and qp.opcodes == RC:
                self.congestion.marked(qp, self.now_ns)
            qp.receive(packet, self.now_ns)
            if row.response:
                qp.show()

    def _receive_elsewhere(self, packet: Packet, dqpn: int) -> None:
        """A packet to no queue pair of a program's: to QP1, to a multicast group, or to nobody."""
        if dqpn == GSI_QPN:
            self.gsi.receive(packet, self.now_ns)
            return
        members = self.resources.groups.members.get(packet.flow.dst, ()) if dqpn == MULTICAST_QPN else ()
        if not members:
            self.counters.bump((DropReason.NOT_CACHED if dqpn in self.qps else DropReason.UNKNOWN_QP).value)
            return
        if packet.row.service != UD:
            self.counters.bump(DropReason.WRONG_SERVICE.value)
            return
        for qpn in members:
            qp = self._running.get(qpn)
            if qp is None or qp.opcodes != UD or qp.ctx.state not in _RECEIVING:
                self.counters.bump(DropReason.QP_STATE.value)
            elif packet.pkey != qp.pkey and not _same_partition(packet.pkey, qp.pkey):
                self.counters.bump(DropReason.BAD_PKEY.value)
            else:
                try:
                    qp.receive(packet, self.now_ns)
                except Exception as error:  # noqa: BLE001 - the last guard; the other members get it all the same
                    self._own_error("packet", qp, error)

    def produce(self, now_ns: int, budget: int = 256) -> list[TxBurst]:
        """Take the doorbells that were rung, then give queue pairs with work their turns, as :class:`Turns` says.

        Args:
            budget: about how many packets to send at most.
        """
        self.now_ns = now_ns
        if self._held:
            return []
        if self._failed_cqs:
            self._fail_users()
        self._turns += 1
        if not self._turns & _WRITE_BACK_MASK:
            with self.guard.around("write-back"):
                self.contexts.write_back(_WRITE_BACK_QPS)
        if self._doorbells.rung:
            self._take_doorbells()
        out, self._last_words = self._last_words, []
        if self.gsi.waiting:
            out += self.gsi.take()
        later: list[DeviceQp] = []
        ready = self._ready
        sent = 0
        packets = sum([burst.count for burst in out])
        while ready and sent < budget:
            qp = ready.take()
            qp.scheduled = False
            limit = budget - sent
            allowance = ready.allowance(qp)
            if allowance is not None and allowance < limit * qp.ctx.mtu_bytes:
                limit = -(-allowance // qp.ctx.mtu_bytes)
            made = len(out)
            again = False
            try:
                plain = not (qp.cnp_tag or qp.masked) and qp.pace is None
                executor = qp.executor if plain else None
                if executor is not None:
                    count = self._requests(qp, now_ns, limit, out) if qp.requester.unsent else 0
                else:
                    count = send_small(qp, now_ns, limit, out) if plain else 0
                if count and qp.responder.replies and not qp.polite:
                    # Making the reply would keep back what was just made, and replies seldom hurry: it goes next time.
                    qp.polite = True
                    later.append(qp)
                    qp.show()
                    packets += count
                    sent += count
                    ready.spent(qp, sum([burst.length for burst in out[made:]]) if ready else 0, again)
                    continue
                qp.polite = False
                if executor is not None:
                    if qp.responder.replies:
                        left = max(limit - count, LEAST_REPLIES)
                        count += executor.reply(left, out) or qp.produce_replies(left, out)
                else:
                    if count < limit and not qp.requester.unsent and not qp.cnp_tag:
                        count += send_ack(qp, out)
                    if count < limit and (qp.requester.unsent or qp.responder.replies or qp.cnp_tag):
                        count += qp.produce(now_ns, limit - count, out)
                qp.show()
            except Exception as error:  # noqa: BLE001 - the last guard
                self._own_error("turn", qp, error)
                count = 0
            if count:
                packets += count
                sent += count
                cut = count >= limit and qp.requester.unsent  # the lean path alone, which says nothing of more
                if not qp.scheduled and (cut or qp.ready(now_ns)):
                    qp.scheduled = again = True
            else:
                # a turn without a packet costs too
                sent += 1
            ready.spent(qp, sum([burst.length for burst in out[made:]]) if ready else 0, again)
        for qp in later:
            self.schedule(qp)
        if packets:
            self.counters["tx_packets"] += packets
            if self._write_back_at is None:
                self._write_back_at = now_ns + WRITE_BACK_NS
        return out

    @staticmethod
    def _requests(qp: DeviceQp, now_ns: int, limit: int, out: list[TxBurst]) -> int:
        """Send requests by the engine, and by the reference from the first one on that it leaves."""
        count: int = qp.executor.send(now_ns, limit, out)
        if qp.executor.punted and count < limit:
            count += qp.produce_requests(now_ns, limit - count, out)
        return count

    def _take_doorbells(self) -> None:
        doorbells = self._doorbells
        blocks = self.resources.blocks
        for _ in range(len(doorbells.rung)):
            queue = blocks.get(doorbells.take())
            if queue.__class__ is DeviceQp:
                try:
                    self._ring_qp(queue)
                except Exception as error:  # noqa: BLE001 - the last guard
                    self._own_error("doorbell", queue, error)
            elif queue.__class__ is SharedReceiveQueue and not queue.ring_limit():
                self.counters.bump("bad_doorbells")

    def _ring_qp(self, qp: DeviceQp) -> None:
        if qp.held:
            return  # it rings again when it is cached
        tail = qp.regs.get(SQ_TAIL)
        if self.tracer.enabled:
            self.tracer.event(self.now_ns, "doorbell", qp.ctx.local_qpn, tail=tail)
        state = qp.ctx.state
        if tail >= qp.sq_entries:
            self.counters.bump("bad_doorbells")
            if state != ERR:
                qp.enter_error()
        elif tail != qp.requester.tail or state == ERR:
            # in ERR whatever was posted to the receive queue is to be flushed as well
            qp.doorbell(tail)

    def has_work(self) -> bool:
        """Whether :meth:`produce` has something to do now."""
        return not self._held and bool(
            self._ready or self._doorbells.rung or self._failed_cqs or self._last_words or self.gsi.waiting
        )

    # -------------------------------------------------------------------------------------- timers

    def next_deadline_ns(self) -> int | None:
        """When :meth:`handle_timers` wants to be called, at the latest; ``None`` where never."""
        if self._held:
            return None
        deadline, write_back = self._timers.next_ns(), self._write_back_at if self.qps else None
        if self.gsi.agent is not None and (datagrams := self.gsi.next_deadline_ns()) is not None:
            deadline = datagrams if deadline is None or datagrams < deadline else deadline
        return write_back if deadline is None or (write_back is not None and write_back < deadline) else deadline

    def handle_timers(self, now_ns: int) -> None:
        """Handle the deadlines that have come."""
        self.now_ns = now_ns
        if self._held:
            return
        self._timers.handle(now_ns)
        with self.guard.around("datagram"):
            self.gsi.handle_timers(now_ns)
        if self._write_back_at is not None and self._write_back_at <= now_ns:
            with self.guard.around("write-back"):
                self._write_back_all(now_ns)

    def _write_back_all(self, now_ns: int) -> None:
        """Write some queue pairs back, and go on later until all had their turn."""
        self._write_back_at = None
        left = self._to_write_back or len(self.qps)
        count = min(left, _IDLE_WRITE_BACK_QPS)
        self._to_write_back = left - count
        if self._to_write_back:
            self._write_back_at = now_ns + _IDLE_WRITE_BACK_STEP_NS
        self.contexts.write_back(count)

    # ------------------------------------------------------------------------ the transport's side

    def schedule(self, qp: QueuePair) -> None:
        """``qp`` may have something to send: give it a turn."""
        if not qp.scheduled:
            qp.scheduled = True
            if not qp.held:  # type: ignore[attr-defined]  # the transport knows no more of a DeviceQp
                self._ready.add(qp)  # type: ignore[arg-type]

    def arm(self, qp: QueuePair) -> None:
        """``qp.deadline_ns`` lies before ``qp.armed_ns``: wake it then."""
        if not qp.held:  # type: ignore[attr-defined]
            self._timers.arm(qp)

    def last_words(self, bursts: list[TxBurst]) -> None:
        """Send ``bursts`` of a queue pair that has no more turns: they go first next time."""
        self._last_words += bursts

    def farewell(self) -> list[TxBurst]:
        """Acknowledgements that are due, where :meth:`produce` is not called again."""
        if self._held:
            return []
        for qp in self._running.values():
            with self.guard.around("release"):
                qp.part()
        out, self._last_words = self._last_words, []
        return out

    def forget(self, qp: DeviceQp) -> None:
        """``qp`` is destroyed: no more turns and deadlines."""
        self._timers.forget(qp)
        qp.requester.depart()
        if qp.scheduled and not qp.held:
            self._ready.remove(qp)
        qp.scheduled = False
        qp.flow = None
        self._running.pop(qp.number, None)
        self.directory[qp.number] = 0

    def event(self, event_type: int, number: int, status: int = 0) -> None:
        """Report an asynchronous event to the driver context that owns the queue it is about."""
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
        """A queue pair stopped for an error: its interrupt (004 7.3, 7.7)."""
        self.counters.bump("qp_faults")
        with self.guard.around("write-back"):
            self.contexts.write_back_one(number)
        if self._write_back_at is None:
            self._write_back_at = self.now_ns + WRITE_BACK_NS
        self.globals.raise_cause(IRQ_QP_FAULT)

    def make_flow(self, ctx: QpContext) -> Flow:
        """The path to the peer that a connected QP's context names."""
        return self._paths.connected(ctx)

    def flow_to(self, ctx: QpContext, message: Message) -> Flow:
        """The path to the destination of a UD send."""
        return self._paths.datagram(ctx, message)

    def max_segments(self, flow: Flow, gso_agreed: bool) -> int:
        """Packets that one burst on this path may hold: 1 without segmentation offload."""
        return self._paths.max_segments(flow, gso_agreed)

    def pkey(self, index: int) -> int:
        """P_Key at a table index."""
        return self.config.pkeys[index]

    def cq_overflowed(self, cq: CompletionQueue) -> None:
        """A CQ could not take an entry: its queue pairs fail with the next :meth:`produce`."""
        self._failed_cqs.append(cq)
        self.event(events.CQ_ERROR, cq.number)

    def _fail_users(self) -> None:
        failed, self._failed_cqs = self._failed_cqs, []
        for qp in [qp for qp in self._running.values() if any(cq in failed for cq in qp.cqs)]:
            if qp.ctx.state != ERR:
                try:
                    qp.enter_error()
                except Exception as error:  # noqa: BLE001 - the last guard
                    self._own_error("turn", qp, error)
