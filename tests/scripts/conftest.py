"""A script drives ONE queue pair: post work requests, look at the packets it makes, hand it packets, let time pass."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC
from rnic.engine import use
from rnic.mem.space import SimAddressSpace
from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.rings.sqe import (
    FLAG_LIST,
    FLAG_SIGNALED,
    SGE_STRUCT,
    SQE_ATOMIC_STRUCT,
    SQE_STRUCT,
    SQE_UD_STRUCT,
    SQE_XRC_STRUCT,
)
from rnic.spec.drops import DropReason
from rnic.spec.limits import GO_BACK_N, NEVER
from rnic.spec.opcodes import WR_NAMES
from rnic.spec.states import INIT, RTR, RTS, ST_RC, ST_UC, ST_UD, ST_XRC_INI, ST_XRC_TGT
from rnic.state.arena import Arena
from rnic.state.queue_pair import QP, QpMemory
from rnic.trace import Counters, NullTracer
from rnic.transport.inflight import Inflight
from rnic.transport.message import Message
from rnic.transport.qp import QueuePair
from rnic.transport.wqe import ReceiveRing, SendRing
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES, UNSUPPORTED
from rnic.wire.packet import Packet, build, parse, seal
from tests.model.traces import WATCHED, watched_script
from tests.scripts.channels import channel_script
from tests.scripts.oracle import engine_script
from tests.scripts.queues import Queue
from tests.scripts.xrc import XrcTarget

QPN = 16
PEER_QPN = 17
ME, PEER = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))
ENTRIES = 64
SLAB = 512
STRIDE = 64
CONFIG = ("window_packets", "window_bytes", "ack_every", "probe", "rq_almost_full", "first_packets", "recovery")
CODES = {row.name: row.opcode for row in (*OPCODES, *UNSUPPORTED.values()) if row is not None}
SERVICES = {ST_RC: "RC", ST_UC: "UC", ST_UD: "UD", ST_XRC_INI: "XRC", ST_XRC_TGT: "XRC"}
WORK = {name: code for code, name in WR_NAMES.items()}


class Host:
    """The device around the queue pair."""

    def __init__(self, **config: object) -> None:
        self.counters = Counters()
        self.tracer = NullTracer()
        self.random = random.Random(1)
        self.arena = Arena(1 << 24)
        self.arena.allocate_first(64)
        self.memory = MemoryTable(self.random, 1 << 10, self.arena)
        self.inflight = Inflight(self.arena, 1 << 16, first=config.pop("first_packets", 1 << 16))  # type: ignore[arg-type]
        self.space = SimAddressSpace()
        self.config = SimpleNamespace(
            **{"window_packets": 256, "window_bytes": 4 << 20, "ack_every": 64, "probe": True, "rq_almost_full": 0}
            | {"recovery": GO_BACK_N, "fault_events": False}
            | config
        )
        self.events: list[tuple[int, int, int]] = []
        self.flow = Flow(ME, PEER, 50_000)
        self.segments = 1
        self.parted: list[TxBurst] = []

    def final_bursts(self, bursts: list[TxBurst]) -> None:
        self.parted += bursts

    def schedule(self, qp: QueuePair) -> None:
        qp.scheduled = True

    def arm(self, qp: QueuePair) -> None:
        qp.armed_ns = qp.deadline_ns

    def event(self, event_type: int, number: int, status: int = 0) -> None:
        self.events.append((event_type, number, status))

    def fault(self, number: int) -> None:
        self.counters.bump("qp_faults")

    def make_flow(self, ctx: QpContext) -> Flow:
        return self.flow

    def flow_to(self, ctx: QpContext, message: Message) -> Flow:
        return self.flow

    def max_segments(self, flow: Flow, gso_agreed: bool) -> int:
        self.gso_agreed = gso_agreed
        return self.segments

    def pkey(self, index: int) -> int:
        return 0xFFFF


class FarSpace(SimAddressSpace):
    """Memory of another process: read and written, never seen."""

    def views(self, va: int, length: int) -> memoryview | None:
        return None


class Script:
    """One queue pair in RTS with a path MTU of 256, its first PSN either way 100, and 64 KiB of memory."""

    def __init__(self, service: int = ST_RC, segments: int = 1, state: int = RTS, **fields: Any) -> None:
        config = {name: fields.pop(name) for name in CONFIG if name in fields}
        self.host = Host(**config)
        self.far = fields.pop("far", False)
        if self.far:
            self.host.space = FarSpace()
        self.host.segments = segments
        self.counters = self.host.counters
        self.events = self.host.events
        self.service = service
        self.still = True
        """Nobody else writes the memory: what one executor does can be done again by another."""
        self.now = 1_000_000
        space = self.host.space
        self.sq = bytearray(ENTRIES * (64 + SLAB))
        self.rq = bytearray(ENTRIES * STRIDE)
        self.sq_tail = self.rq_tail = 0
        self.send_cq, self.recv_cq = Queue(self.host.memory), Queue(self.host.memory)
        base = {
            "local_qpn": QPN,
            "remote_qpn": PEER_QPN,
            "servtype": service,
            "mtu": 1,
            "pd": 1,
            "access_flags": 0xF,
            "rnr_retry": 7,
            "retry_cnt": 7,
            "ackto": 14,
            "rnr_nak_timer": 1,
            "max_rd_atomic": 16,
            "max_dest_rd_atomic": 16,
            "next_send_psn": 100,
            "expected_psn": 100,
            "qkey": 0x1111,
            "state": RTR,
        }
        self.ctx = QpContext(QPC.pack(base | fields))
        memory = QpMemory(self.host.arena, ENTRIES)
        place = memory.record + QP["sq_base"].byte
        send_ring = SendRing(self.host.arena.memory, place, space, space.map(self.sq).va, ENTRIES, SLAB)
        ring = ReceiveRing(space, space.map(self.rq).va, ENTRIES, STRIDE, lambda: self.rq_tail, self.show_head)
        kind = XrcTarget if service == ST_XRC_TGT else QueuePair
        self.qp = kind(memory, self.ctx, self.host, send_ring, ring, self.send_cq, self.recv_cq)
        self.qp.on_modify(INIT, self.now)
        if state != RTR:
            self.to(state)
        self.data = bytearray(random.Random(7).randbytes(65_536))
        self.mr = self.register(self.data)
        self.key, self.va = self.mr.key, self.mr.start
        self.in_flow = self.host.flow.reverse()

    def show_head(self, head: int) -> None:
        """The receive ring's head moved."""

    def to(self, state: int) -> None:
        """Modify the queue pair."""
        old, self.ctx.state = self.ctx.state, state
        self.qp.on_modify(old, self.now)

    def register(self, data: bytearray, access: int = 0x1F, pd: int = 1) -> MemoryEntry:
        mapping = self.host.space.map(data)
        entry = MemoryEntry(
            self.host.memory.alloc_key(),
            pd,
            access,
            mapping.va,
            mapping.length,
            view=None if self.far else mapping.view,
            port=self.host.space,
        )
        self.host.memory.enable(entry)
        return entry

    # --------------------------------------------------------------------------------- software's side

    def post(self, name: str, length: int = 0, at: int = 0, **over: Any) -> None:
        """Post a send work request of ``length`` bytes from offset ``at`` of the memory."""
        index = self.sq_tail
        flags = over.get("flags", FLAG_SIGNALED)
        lkey = over.get("lkey", self.key)
        if "sges" in over:
            flags |= FLAG_LIST
            lkey = len(over["sges"])
            slot = ENTRIES * 64 + index * SLAB
            for place, (offset, size) in enumerate(over["sges"]):
                SGE_STRUCT.pack_into(self.sq, slot + 16 * place, self.va + offset, size, self.key)
        if "inline" in over:
            slot = ENTRIES * 64 + index * SLAB
            self.sq[slot : slot + len(over["inline"])] = over["inline"]
        SQE_STRUCT.pack_into(
            self.sq,
            index * 64,
            over.get("wqe_id", index),
            WORK.get(name, 0xEE),
            flags,
            self.va + at,
            over.get("remote", 0x5000),
            length,
            lkey,
            over.get("rkey", 0xABC01),
            over.get("imm", 0),
        )
        if self.service == ST_UD:
            SQE_UD_STRUCT.pack_into(self.sq, index * 64 + 40, bytes(16), 77, over.get("qkey", 0x1111))
        elif name in ("CMP_SWAP", "FETCH_ADD", "FLUSH", "ATOMIC_WRITE"):
            SQE_ATOMIC_STRUCT.pack_into(self.sq, index * 64 + 40, over.get("swap_add", 1), over.get("compare", 0))
        elif name == "BIND_MW":
            self.sq[index * 64 : index * 64 + len(over["raw"])] = over["raw"]
        if self.service == ST_XRC_INI:
            SQE_XRC_STRUCT.pack_into(self.sq, index * 64 + 56, over.get("srqn", 5))
        self.sq_tail = (index + 1) % ENTRIES
        if over.get("ring", True):
            self.qp.doorbell(self.sq_tail)

    def recv(self, length: int = 0, at: int = 0, key: int | None = None) -> None:
        """Post a receive of ``length`` bytes at offset ``at`` of the memory."""
        slot = self.rq_tail * STRIDE
        self.rq[slot : slot + STRIDE] = bytes(STRIDE)
        SGE_STRUCT.pack_into(self.rq, slot, self.va + at, length, self.key if key is None else key)
        self.rq_tail = (self.rq_tail + 1) % ENTRIES

    # ------------------------------------------------------------------------------------ wire's side

    def bursts(self, budget: int = 256) -> list[TxBurst]:
        out: list[TxBurst] = []
        self.qp.scheduled = False
        self.qp.produce(self.now, budget, out)
        return out

    def packets(self, budget: int = 256) -> list[Packet]:
        """What the queue pair sends now, each packet with its ICRC checked."""
        packets = self.parse(self.bursts(budget))
        requester = self.qp.requester
        assert not requester.inflight or requester._ends(), "packets are in flight, and of no message"
        return packets

    @staticmethod
    def parse(bursts: list[TxBurst]) -> list[Packet]:
        packets = []
        for burst in bursts:
            data = memoryview(b"".join(burst.buffers))
            assert len(data) == burst.length
            for index in range(burst.count):
                view = data[index * burst.segment : (index + 1) * burst.segment]
                assert burst.flow.check(view, index)
                packet = parse(view)
                assert isinstance(packet, Packet), packet
                packets.append(packet)
        return packets

    def out(self, budget: int = 256) -> list[str]:
        """What it sends now, as ``OPERATION psn`` with ``!`` where AckReq is set; replies with their syndrome."""
        return [self.say(packet) for packet in self.packets(budget)]

    def parted(self) -> list[str]:
        """What it said when it was stopped, since the last call."""
        bursts, self.host.parted = self.host.parted, []
        return [self.say(packet) for packet in self.parse(bursts)]

    @staticmethod
    def say(packet: Packet) -> str:
        name = packet.row.name.split("_", 1)[1]
        text = f"{name} {packet.psn}"
        if packet.row.aeth and not packet.row.read_response and not packet.row.atomicacketh:
            text += f" {packet.syndrome:02x}"
        return text + ("!" if packet.ackreq else "")

    def frame(self, name: str, psn: int, **fields: Any) -> bytes:
        code = CODES[f"{SERVICES[self.service]}_{name}"]
        fields.setdefault("dqpn", QPN)
        row = UNSUPPORTED.get(code, code)
        return seal(build(row, psn=psn & 0xFFFFFF, **fields), self.in_flow)

    def packet(self, name: str, psn: int, **fields: Any) -> Packet:
        packet = parse(memoryview(self.frame(name, psn, **fields)))
        assert not isinstance(packet, DropReason)
        packet.burst = RxBurst(self.in_flow, packet.payload, 1, 1, 0)
        return packet

    def inject(self, name: str, psn: int, **fields: Any) -> None:
        """One packet from the peer."""
        self.qp.receive(self.packet(name, psn, **fields), self.now)

    def ack(self, psn: int, msn: int = 0, syndrome: int = 0x1F) -> None:
        self.inject("ACKNOWLEDGE", psn, syndrome=syndrome, msn=msn)

    def burst(self, frames: list[bytes]) -> RxBurst:
        """Frames of equal size (but the last) as one burst whose idents the link saw, all 0 on this wire."""
        buf = b"".join(frames)
        return RxBurst(self.in_flow, memoryview(buf), len(frames[0]), len(buf), 0)

    # ---------------------------------------------------------------------------------------- time

    def wait(self, ns: int) -> None:
        """Let ``ns`` pass, with every deadline on the way handled; nothing is sent meanwhile."""
        end = self.now + ns
        while self.qp.deadline_ns <= end:
            self.now = max(self.now, self.qp.deadline_ns)
            self.handle_timer()
        self.now = end

    def handle_timer(self) -> None:
        """A deadline has come."""
        self.qp.handle_timer(self.now)

    @property
    def deadline(self) -> Any:
        """Nanoseconds until the next deadline, or ``None``."""
        return None if self.qp.deadline_ns == NEVER else self.qp.deadline_ns - self.now

    def event_types(self) -> list[int]:
        return [event[0] for event in self.events]


NewScript = Callable[..., Script]
MANY = 1_000
"""Tests of a session, from which on :data:`LEAST_COMPARED` holds: a file alone may be of what the model leaves out."""
FEW = 100
"""Watched scripts of a session, below which it says nothing."""
LEAST_COMPARED = 0.25
"""Share of the watched scripts of which steps are compared with the model."""
NO_ENGINE = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")


@pytest.fixture(
    scope="session",
    params=[watched_script(Script), channel_script(Script), pytest.param(engine_script(Script), marks=NO_ENGINE)],
    ids=["steps", "channels", "engine"],
)
def new(request: pytest.FixtureRequest) -> Iterator[NewScript]:
    """Make a script: ``new(ST_UC, ackto=10)``. The model beside it compares, but for what it leaves out."""
    maker: NewScript = request.param
    before = Counter(WATCHED)
    yield maker
    watched = WATCHED - before
    if watched["scripts"] >= FEW and len(request.session.items) >= MANY:
        assert watched["compared"] >= watched["scripts"] * LEAST_COMPARED, watched
