"""Two queue pairs over a bad network in virtual time: fault x rate x operation x service x seed.

Every operation completes once with the right bytes, or, on UC and UD, is dropped whole. ``mixed`` is every kind of
fault at once, each at the rate of the cell. The receiver of an operation with ``_LATE`` posts its receive entries
late, one after the other. A queue pair that used up its retries is a legal end at 20 %: the model connects anew,
counts it and goes on.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pytest

from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC
from rnic.mem.keys import key_index, key_tag, make_key
from rnic.mem.space import SimAddressSpace
from rnic.mem.table import WINDOW2, MemoryEntry, MemoryTable
from rnic.rings.sqe import FLAG_SIGNALED, SGE_STRUCT, SQE_ATOMIC_STRUCT, SQE_STRUCT, SQE_UD_STRUCT
from rnic.spec.drops import DropReason
from rnic.spec.limits import GO_BACK_N, GRH_BYTES
from rnic.spec.opcodes import (
    WR_CMP_SWAP,
    WR_FETCH_ADD,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
)
from rnic.spec.states import RTR, RTS, ST_RC, ST_UC, ST_UD
from rnic.spec.status import RETRY_EXC_ERR, SUCCESS, WR_FLUSH_ERR
from rnic.state.arena import Arena
from rnic.state.queue_pair import QP, QpMemory
from rnic.trace import Counters, NullTracer
from rnic.transport.inflight import Inflight
from rnic.transport.qp import QueuePair
from rnic.transport.wqe import ReceiveRing, SendRing
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.packet import parse

ENTRIES = 64
DEPTH = 8
SLOT = 2048
MTU = 256
OPERATIONS = {
    "SEND": WR_SEND,
    "SEND_IMM": WR_SEND_IMM,
    "SEND_INV": WR_SEND_INV,
    "SEND_LATE": WR_SEND,
    "WRITE_IMM_LATE": WR_WRITE_IMM,
    "WRITE": WR_WRITE,
    "WRITE_IMM": WR_WRITE_IMM,
    "READ": WR_READ,
    "CMP_SWAP": WR_CMP_SWAP,
    "FETCH_ADD": WR_FETCH_ADD,
}
TAKES_RECEIVE = ("SEND", "SEND_IMM", "SEND_INV", "SEND_LATE", "WRITE_IMM", "WRITE_IMM_LATE")
ATOMIC = ("CMP_SWAP", "FETCH_ADD")
FAULTS = ("loss", "duplicate", "reorder", "corrupt", "mixed")
LATENCY_NS = 5_000
LATE_NS = 30_000
QKEY = 0x1111
COUNTED: Counter[str] = Counter()


class Side:
    """One queue pair and the little that it needs of a device."""

    def __init__(self, me: bytes, peer: bytes) -> None:
        self.counters = Counters()
        self.tracer = NullTracer()
        self.random = random.Random(1)
        self.memory = MemoryTable(self.random)
        self.arena = Arena(1 << 24)
        self.arena.allocate_first(64)
        self.inflight = Inflight(self.arena, 64)
        self.space = SimAddressSpace()
        self.config = SimpleNamespace(
            window_packets=64,
            window_bytes=1 << 20,
            ack_every=16,
            probe=True,
            rq_almost_full=0,
            recovery=GO_BACK_N,
            fault_events=False,
        )
        self.flow, self.in_flow = Flow(me, peer, 50_000), Flow(peer, me, 50_000)
        self.data = bytearray(SLOT * DEPTH)
        mapping = self.space.map(self.data)
        self.va = mapping.va
        entry = MemoryEntry(self.memory.alloc_key(), 1, 0x1F, mapping.va, mapping.length, view=mapping.view)
        self.memory.enable(entry)
        self.key = entry.key
        self.sq, self.rq = bytearray(ENTRIES * 64), bytearray(ENTRIES * 16)
        self.sq_va, self.rq_va = self.space.map(self.sq).va, self.space.map(self.rq).va
        self.scheduled = False
        self.windows: list[MemoryEntry] = []
        for _ in range(DEPTH):
            window = MemoryEntry(self.memory.alloc_key(WINDOW2), 1, 0, 0, 0, kind=WINDOW2)
            self.memory.enable(window)
            self.windows.append(window)

    def connect(self, service: int, psn: int) -> None:
        self.done: list[tuple[int, int, int]] = []
        self.received: list[tuple[int, int, int]] = []
        self.immediates: list[int] = []
        self.sq_tail = self.rq_tail = 0
        fields = {
            "local_qpn": 16, "remote_qpn": 16, "servtype": service, "mtu": 1, "pd": 1, "access_flags": 0xF,
            "rnr_retry": 7, "retry_cnt": 7, "ackto": 10, "rnr_nak_timer": 1, "max_rd_atomic": 4,
            "max_dest_rd_atomic": 4, "next_send_psn": psn, "expected_psn": psn, "state": RTR,
            "qkey": QKEY,
        }  # fmt: skip
        ctx = QpContext(QPC.pack(fields))
        ring = ReceiveRing(self.space, self.rq_va, ENTRIES, 16, lambda: self.rq_tail, lambda head: None)
        send = SimpleNamespace(complete=lambda *a: self.done.append((a[0], a[1], a[3])))
        recv = SimpleNamespace(complete=self.take, notified=False)
        memory = QpMemory(self.arena, ENTRIES)
        place = memory.record + QP["sq_base"].byte
        send_ring = SendRing(self.arena.memory, place, self.space, self.sq_va, ENTRIES, 0)
        self.qp = QueuePair(memory, ctx, self, send_ring, ring, send, recv)
        self.qp.on_modify(1, 0)
        ctx.state = RTS
        self.qp.on_modify(RTR, 0)

    def take(self, index: int, status: int, vendor: int, length: int, *rest: int) -> bool:
        self.received.append((index, status, length))
        self.immediates.append(rest[-1])
        return True

    def post_receive(self, slot: int) -> None:
        SGE_STRUCT.pack_into(self.rq, self.rq_tail * 16, self.va + slot * SLOT, SLOT, self.key)
        self.rq_tail = (self.rq_tail + 1) % ENTRIES

    def bind(self, slot: int) -> int:
        """The key of a window that a SEND with invalidate is to unbind."""
        window = self.windows[slot]
        if not window.valid:
            key = make_key(key_index(window.key), key_tag(window.key) + 1 & 0xFF)
            assert self.memory.bind_window(window.index, key, self.key, 1, 16, self.va, SLOT, 0x3)
        return window.key

    def schedule(self, qp: QueuePair) -> None:
        self.scheduled = True

    def final_bursts(self, bursts: list[TxBurst]) -> None: ...

    def arm(self, qp: QueuePair) -> None: ...

    def event(self, *event: int) -> None: ...

    def fault(self, number: int) -> None: ...

    def make_flow(self, ctx: QpContext) -> Flow:
        return self.flow

    def flow_to(self, ctx: QpContext, *destination: object) -> Flow:
        return self.flow

    def max_segments(self, flow: Flow, gso: bool) -> int:
        return 1

    def pkey(self, index: int) -> int:
        return 0xFFFF

    def receive(self, data: bytearray, now: int) -> None:
        view = memoryview(data)
        if not self.in_flow.check(view):
            self.counters.bump("bad_icrc")
            return
        packet = parse(view)
        assert not isinstance(packet, DropReason)
        packet.burst = RxBurst(self.in_flow, view, 1, 1, 0)
        self.qp.receive(packet, now)


class Net:
    """The wire between two sides: one kind of fault, or all of them, at one rate."""

    def __init__(self, service: int, fault: str, rate: float, seed: int) -> None:
        self.rng = random.Random(f"{service} {fault} {rate} {seed}")
        self.fault, self.rate, self.service = fault, rate, service
        self.a, self.b = Side(b"\1\1\1\1", b"\2\2\2\2"), Side(b"\2\2\2\2", b"\1\1\1\1")
        self.now = 0
        self.queue: list[tuple[int, int, Side, bytearray]] = []
        self.serial = 0
        self.trace: list[tuple[int, bytes]] = []
        self.receives: deque[tuple[int, int]] = deque()
        self.connect()

    def connect(self) -> None:
        self.queue.clear()
        self.receives.clear()
        psn = self.rng.getrandbits(24)
        for side in (self.a, self.b):
            side.connect(self.service, psn)

    def send(self, target: Side, data: bytearray) -> None:
        rng = self.rng
        struck: tuple[str, ...] = ()
        if self.rate:
            kinds = FAULTS[:-1] if self.fault == "mixed" else (self.fault,)
            struck = tuple(kind for kind in kinds if rng.random() < self.rate)
        if "loss" in struck:
            return
        delays = [LATENCY_NS + rng.randrange(50_000) if "reorder" in struck else LATENCY_NS]
        if "duplicate" in struck:
            delays.append(LATENCY_NS + rng.randrange(50_000))
        if "corrupt" in struck:
            at = rng.choice([i for i in range(len(data)) if i != 4])
            data[at] ^= 1 << rng.randrange(8)
        for delay in delays:
            self.serial += 1
            heapq.heappush(self.queue, (self.now + delay, self.serial, target, bytearray(data)))

    def step(self) -> bool:
        """Everything that happens at one moment; false when nothing will ever happen."""
        sides = ((self.a, self.b), (self.b, self.a))
        moved = False
        while self.receives and self.receives[0][0] <= self.now:
            self.b.post_receive(self.receives.popleft()[1])
        for side, other in sides:
            if side.qp.deadline_ns <= self.now:
                side.qp.handle_timer(self.now)
            out: list[Any] = []
            if not side.scheduled:
                continue
            side.scheduled = False
            moved = side.qp.produce(self.now, 32, out) > 0 or moved
            side.scheduled = side.scheduled or side.qp.ready(self.now)
            for burst in out:
                data = bytearray(b"".join(burst.buffers))
                self.trace.append((self.now, bytes(data[:12])))
                self.send(other, data)
        times = [side.qp.deadline_ns for side, _ in sides if side.qp.deadline_ns < 1 << 62]
        times += [self.now + 1_000] if moved or self.a.scheduled or self.b.scheduled else []
        times += [self.queue[0][0]] if self.queue else []
        times += [self.receives[0][0]] if self.receives else []
        if not times:
            return False
        self.now = max(self.now, min(times))
        while self.queue and self.queue[0][0] <= self.now:
            _, _, target, data = heapq.heappop(self.queue)
            target.receive(data, self.now)
        return True


def post(net: Net, service: int, operation: str, slot: int, size: int, target: int) -> int:
    """Post one operation with what its receiver needs; the index of its send entry."""
    a, b = net.a, net.b
    opcode = OPERATIONS[operation]
    if operation.endswith("_LATE"):
        net.receives.append((net.now + LATE_NS * (1 + len(net.receives)), slot))
    elif operation in TAKES_RECEIVE:
        b.post_receive(slot)
    index = a.sq_tail
    word = b.bind(slot) if opcode == WR_SEND_INV else slot
    remote = b.va if operation in ATOMIC else b.va + slot * SLOT
    SQE_STRUCT.pack_into(
        a.sq, index * 64, slot, opcode, FLAG_SIGNALED, a.va + slot * SLOT, remote, size, a.key, b.key, word
    )
    if operation in ATOMIC:
        operands = (1, 0) if opcode == WR_FETCH_ADD else (target + slot + 1, target + slot)
        SQE_ATOMIC_STRUCT.pack_into(a.sq, index * 64 + 40, *operands)
    elif service == ST_UD:
        SQE_UD_STRUCT.pack_into(a.sq, index * 64 + 40, bytes(16), 16, QKEY)
    a.sq_tail = (index + 1) % ENTRIES
    return index


def complete(net: Net, service: int, operation: str, sizes: list[int], target: int) -> bool:
    """Post ``DEPTH`` operations until all of them succeeded; false where an atomic may have happened or not."""
    a, b = net.a, net.b
    todo = list(range(DEPTH))
    while True:
        a.done.clear()
        b.received.clear()
        b.immediates.clear()
        posted = {post(net, service, operation, slot, sizes[slot], target): slot for slot in todo}
        a.qp.doorbell(a.sq_tail)
        for _ in range(200_000):  # waits: in steps of simulated time
            if not net.step() or (len(a.done) >= len(todo) and not net.queue and not net.receives):
                break
        assert [index for index, _, _ in a.done] == list(posted), "completions lost, doubled or out of order"
        assert {status for _, status, _ in a.done} <= {SUCCESS, RETRY_EXC_ERR, WR_FLUSH_ERR}
        failed = [posted[index] for index, status, _ in a.done if status != SUCCESS]
        if not failed:
            return True
        assert service == ST_RC
        assert net.rate >= 0.2, "gave up at a rate that it should survive"
        COUNTED["reconnects"] += 1
        net.connect()
        if operation in ATOMIC:
            return False
        # whether a failed one had its effect is unknown: what takes receive entries begins anew with all of them
        todo = list(range(DEPTH)) if operation in TAKES_RECEIVE else failed


def run(service: int, operation: str, fault: str, rate: float, seed: int, rounds: int) -> Net:
    """Rounds of ``DEPTH`` operations, checked byte by byte after each."""
    net = Net(service, fault, rate, seed)
    rng = random.Random(seed)
    a, b = net.a, net.b
    target = 0
    for _ in range(rounds):
        a.data[:], b.data[:] = rng.randbytes(len(a.data)), bytes(len(b.data))
        if operation == "READ":
            b.data[:] = rng.randbytes(len(b.data))
        if operation in ATOMIC:
            b.data[:8] = target.to_bytes(8, "little")
            sizes = [8] * DEPTH
        elif service == ST_UD:
            sizes = [rng.randrange(MTU + 1) for _ in range(DEPTH)]
        else:
            sizes = [rng.randrange(SLOT), *(rng.randrange(MTU + 1, SLOT) for _ in range(DEPTH - 1))]
        before, peer = bytes(a.data), bytes(b.data)
        sure = complete(net, service, operation, sizes, target)
        if operation in ATOMIC:
            if sure:
                for slot in range(DEPTH):
                    assert int.from_bytes(a.data[slot * SLOT : slot * SLOT + 8], "little") == target + slot
                assert int.from_bytes(b.data[:8], "little") == target + DEPTH
            target = int.from_bytes(b.data[:8], "little")
        elif service == ST_RC:
            check_reliable(net, operation, sizes, before, peer)
        else:
            check_unreliable(net, service, operation, sizes)
    for side in (a, b):
        COUNTED.update(side.counters)
    return net


def check_reliable(net: Net, operation: str, sizes: list[int], before: bytes, peer: bytes) -> None:
    """RC: every byte where it belongs and none beside, every receive completed once and in order."""
    a, b = net.a, net.b
    for slot, size in enumerate(sizes):
        span = slice(slot * SLOT, slot * SLOT + size)
        rest = slice(slot * SLOT + size, (slot + 1) * SLOT)
        if operation == "READ":
            assert a.data[span] == peer[span]
            assert a.data[rest] == before[rest]
        else:
            assert b.data[span] == before[span]
            assert b.data[rest] == peer[rest]
    if operation in TAKES_RECEIVE:
        assert [(status, length) for _, status, length in b.received] == [(SUCCESS, n) for n in sizes]
    if operation == "SEND_INV":
        assert b.immediates == [window.key for window in b.windows]
        assert not any(window.valid for window in b.windows)
    elif operation in ("SEND_IMM", "WRITE_IMM", "WRITE_IMM_LATE"):
        assert b.immediates == list(range(DEPTH))


def check_unreliable(net: Net, service: int, operation: str, sizes: list[int]) -> None:
    """UC and UD: what arrived is whole and right; what did not left no completion.

    Order and "once" are not promised: a message that the network repeats or overtakes in one piece is a new one to
    the responder, since these services know no duplicates.
    """
    a, b = net.a, net.b
    header = GRH_BYTES if service == ST_UD else 0
    sent = [bytes(a.data[slot * SLOT : slot * SLOT + size]) for slot, size in enumerate(sizes)]
    takes_receive = operation in TAKES_RECEIVE
    assert len(b.received) <= DEPTH
    assert all(status == SUCCESS for _, status, _ in b.received)
    for (place, _, length), imm in zip(b.received, b.immediates, strict=True):
        stored = bytes(b.data[place * SLOT + header : place * SLOT + length])
        if operation.startswith("WRITE"):
            assert length == sizes[imm]
            assert b.data[imm * SLOT : imm * SLOT + length] == sent[imm]
        elif operation == "SEND_IMM":
            assert stored == sent[imm]
        else:
            assert stored in sent
    if operation.startswith("WRITE"):
        for slot, data in enumerate(sent):
            at = slot * SLOT
            assert not any(b.data[at + len(data) : at + SLOT]), "bytes behind a message"
            for low in range(0, len(data), MTU):
                chunk = b.data[at + low : at + min(low + MTU, len(data))]
                assert chunk in (data[low : low + MTU], bytes(len(chunk))), "a packet stored in part or elsewhere"
    if not net.rate and not operation.endswith("_LATE"):
        if takes_receive:
            assert [length - header for _, _, length in b.received] == sizes
        if operation.startswith("WRITE"):
            assert all(b.data[slot * SLOT : slot * SLOT + size] == sent[slot] for slot, size in enumerate(sizes))
    COUNTED["unreliable_messages_lost"] += DEPTH - len(b.received) if takes_receive else 0
    net.connect()  # receive entries that are left must not meet the next round


SERVICES = {
    ST_RC: ("RC", tuple(OPERATIONS)),
    ST_UC: ("UC", ("SEND", "SEND_IMM", "SEND_LATE", "WRITE", "WRITE_IMM")),
    ST_UD: ("UD", ("SEND", "SEND_IMM", "SEND_LATE")),
}
CELLS = [
    (service, operation, fault, rate)
    for service, (_, operations) in SERVICES.items()
    for operation in operations
    for fault in FAULTS
    for rate in (0.0, 0.01, 0.05, 0.2)
    if rate or fault == "loss"
]


def name(cell: tuple[int, str, str, float]) -> str:
    return f"{SERVICES[cell[0]][0]}-{cell[1]}-{cell[2]}-{cell[3]:g}"


@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_cell(cell: tuple[int, str, str, float]) -> None:
    run(*cell, seed=1, rounds=2)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_whole_cell(cell: tuple[int, str, str, float], seed: int) -> None:
    """At least a thousand operations of more than one packet, where the operation and the service have such."""
    run(*cell, seed=seed, rounds=-(-1000 // (DEPTH - 1)))


@pytest.mark.parametrize("operation", ["WRITE", "SEND_LATE", "READ"])
@pytest.mark.parametrize("fault", ["loss", "mixed"])
def test_same_seed_same_trace(operation: str, fault: str) -> None:
    traces = [run(ST_RC, operation, fault, 0.2, seed, 2).trace for seed in (5, 5, 6)]
    assert traces[0] == traces[1] != traces[2]


RECOVERY = {
    "a gap is NAKed once": "sequence_naks_sent",
    "the requester goes back to it": "sequence_naks_received",
    "packets behind it are dropped": "drop_naked",
    "rewinds of every cause": "rewinds",
    "packets sent again": "retransmitted_packets",
    "READs and atomics sent again": "retransmitted_requests",
    "a lost tail is probed for": "probes",
    "local ACK timeout": "ack_timeouts",
    "a later response tells of a lost one": "implied_naks",
    "receiver not ready, said": "rnr_naks_sent",
    "receiver not ready, heard": "rnr_naks_received",
    "duplicate SENDs and WRITEs are acknowledged": "drop_duplicate",
    "duplicate READs are answered again": "duplicate_reads",
    "duplicate atomics get their saved result": "duplicate_atomics",
    "responses nobody waits for": "drop_stale_response",
    "corrupted packets": "bad_icrc",
    "retry count used up": "retries_exceeded",
    "unreliable services drop a message with a gap": "drop_psn_gap",
    "unreliable services drop without a receive entry": "drop_no_receive",
    "unreliable messages lost": "unreliable_messages_lost",
}


def test_every_recovery_path_fired(capsys: pytest.CaptureFixture[str]) -> None:
    COUNTED.clear()
    for service, (_, operations) in SERVICES.items():
        for operation in operations:
            for fault in FAULTS:
                run(service, operation, fault, 0.2, 1, 2)
    for seed in range(2, 12):
        run(ST_RC, "FETCH_ADD", "mixed", 0.5, seed, 2)  # so bad that retries are used up
    with capsys.disabled():
        print("\n\nrecovery in the fault matrix at 20 %")
        for what, counter in RECOVERY.items():
            print(f"  {what:<52}{COUNTED[counter]:>8}  {counter}")
        print(f"  {'reconnects':<52}{COUNTED['reconnects']:>8}")
    for what, counter in RECOVERY.items():
        assert COUNTED[counter], what
