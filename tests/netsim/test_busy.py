"""Many queue pairs busy at once, in virtual time, on wires that take 4 us for a packet.

Nothing is lost on the way, so nothing may be sent again but a few probes, nothing may fail, and it takes as long as
the packets take. The bench ``busy`` does the same over UDP.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.packets import single_packets
from rnic.spec.opcodes import WR_READ, WR_WRITE
from rnic.testing import QpPair, SimNet
from rnic.verbs import CQ, MR, PD, QP, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

PACKET_NS = 4_000
MTU = 256
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
MOST_REPEATED = 0.01
ROUND_NS = 2_000
"""Half a packet: with 17 NICs out of step something moves in every round, and all are asked."""
SHORT_NS = 1_000
"""Where sixteen wires work side by side, and all is over within a few round trips."""
LIMIT_NS = 1_000_000_000
"""Virtual time for what takes some tens of milliseconds: what bounds a run that goes wrong is its work."""


class SlowReceiver(Middleware):
    """Hands in one packet each 4 us from a buffer for ``room`` packets; what finds it full is lost and counted."""

    def __init__(self, inner: Link, clock: Callable[[], int], room: int) -> None:
        super().__init__(inner)
        self._clock = clock
        self._room = room
        self._queue: deque[RxBurst] = deque()
        self._free_ns = 0
        self.lost = 0

    def receive(self, limit: int) -> list[RxBurst]:
        now_ns = self._clock()
        while arrived := self.inner.receive(64):
            for burst in arrived:
                whole = TxBurst(burst.flow, [burst.buf], burst.segment, -(-burst.length // burst.segment), burst.length)
                for index, packet in enumerate(single_packets(whole)):
                    if len(self._queue) >= self._room:
                        self.lost += 1
                        continue
                    data = memoryview(b"".join(packet.buffers))
                    ident = None if burst.ident is None else burst.ident + index
                    self._queue.append(RxBurst(burst.flow, data, len(data), len(data), ident))
        if not self._queue or self._free_ns > now_ns:
            return []
        self._free_ns = now_ns + PACKET_NS
        return [self._queue.popleft()]

    def next_deadline_ns(self) -> int | None:
        deadline = self.inner.next_deadline_ns()
        if not self._queue:
            return deadline
        return self._free_ns if deadline is None else min(self._free_ns, deadline)


class Busy:
    """Node 0 and ``sources`` others, with ``qps`` queue pairs between them that have ``packets`` packets each."""

    def __init__(
        self,
        qps: int,
        packets: int,
        *,
        sources: int = 1,
        opcode: int = WR_WRITE,
        both: bool = False,
        round_ns: int = ROUND_NS,
    ) -> None:
        self.net = SimNet(
            1 + sources, packet_ns=PACKET_NS, latency_ns=5_000, round_ns=round_ns, settings={"flight_packets": 366}
        )
        self.size = packets * MTU
        self.qps = qps
        self.cqs = []
        ends = []
        for node in self.net.nodes:
            pd, cq = PD(node.ctx), CQ(node.ctx, 2 * qps + 1)
            self.cqs.append(cq)
            memory = bytearray(random.Random(node.index).randbytes(self.size))
            ends.append((node.ctx, pd, cq, MR(pd, memory, RIGHTS)))
        self.work = []
        for number in range(qps):
            one, other = ends[0], ends[1 + number % sources]
            a, b = (QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(1, 1), scq=cq, rcq=cq)) for _, pd, cq, _ in (one, other))
            for qp, peer, ctx in ((a, b, other[0]), (b, a, one[0])):
                attr = QPAttr()
                attr.path_mtu, attr.timeout, attr.retry_cnt, attr.gso = e.IBV_MTU_256, 14, 7, True
                attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
                attr.dest_qp_num, attr.qp_access_flags = peer.qp_num, RIGHTS
                attr.ah_attr = AHAttr(GlobalRoute(ctx.query_gid()), udp_dport=ctx.udp_port)
                qp.to_rts(attr)
            self.work.append((b, opcode, other[3], one[3]))
            if both:
                self.work.append((a, opcode, one[3], other[3]))

    def run(self) -> int:
        """Do it all at once; nanoseconds that it took."""
        start = self.net.clock.now_ns
        for qp, opcode, mr, target in self.work:
            qp.post_rdma(opcode, mr.buf, self.size, mr.lkey, target.buf, target.rkey)
        left = len(self.work)
        turns = 0

        def poll() -> bool:
            nonlocal left
            self.net.driving = True
            for cq in self.cqs:
                while (got := cq.poll(64))[0]:
                    assert {wc.status for wc in got[1]} == {e.IBV_WC_SUCCESS}
                    left -= got[0]
            self.net.driving = False
            return left == 0

        def done() -> bool:
            nonlocal turns
            turns += 1
            return turns % 16 == 0 and poll()

        assert self.net.run(done, LIMIT_NS) or poll()
        return self.net.clock.now_ns - start

    @property
    def packets(self) -> int:
        """Packets that carry the data, each counted once."""
        return len(self.work) * self.size // MTU

    def count(self, name: str) -> int:
        return sum(node.counters[name] for node in self.net.nodes)

    @property
    def repeated(self) -> float:
        again = self.count("retransmitted_packets") + 2 * self.count("probes")
        return (again + self.count("drop_stale_response")) / self.packets

    def close(self) -> None:
        self.net.run()  # turns that were given and are not over
        assert all(node.nic.inflight.packets == node.nic.inflight.promised == 0 for node in self.net.nodes)
        self.net.close()


PATTERNS: dict[str, dict[str, Any]] = {
    "one way": {},
    "both ways": {"both": True},
    "all to one": {"sources": 16, "round_ns": SHORT_NS},
    "READ": {"opcode": WR_READ},
    "READ both ways": {"opcode": WR_READ, "both": True},
    "READ from one": {"opcode": WR_READ, "sources": 16},
}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    ("qps", "packets"),
    [*(pytest.param(*each, marks=pytest.mark.full) for each in ((16, 512), (64, 128), (1024, 32))), (256, 32)],
)
def test_busy_queue_pairs_repeat_nothing(pattern: str, qps: int, packets: int) -> None:
    busy = Busy(qps, packets, **PATTERNS[pattern])
    took_ns = busy.run()
    assert busy.count("ack_timeouts") == 0
    assert busy.repeated < MOST_REPEATED
    wires = 16 if pattern == "all to one" else 2 if "both" in pattern else 1
    ideal_ns = busy.packets * PACKET_NS // wires
    busy.close()
    if pattern == "READ":
        # a peer's limit opens by round trips, and a READ's is its responses' too: measured against one queue pair
        alone = Busy(1, busy.packets, **PATTERNS[pattern])
        ideal_ns = alone.run()
        alone.close()
    assert took_ns < 1.2 * ideal_ns + 1_000_000


@pytest.mark.slow
def test_short_messages_fill_the_wire_too() -> None:
    """A turn is given for a whole quantum, most of which they leave empty: the peer's limit grows all the same."""
    busy = Busy(256, 8)
    took_ns = busy.run()
    assert busy.count("retransmitted_packets") == 0
    assert took_ns < 1.2 * busy.packets * PACKET_NS
    busy.close()


@pytest.mark.slow
@pytest.mark.parametrize(("sources", "qps"), [(1, 16), (8, 16), (16, 16), (16, 256)])
def test_a_receiver_that_is_slower_than_its_senders_together(sources: int, qps: int) -> None:
    """Its buffer holds 990 packets, as a socket's of 4 MiB does; each sender knows only the delay."""
    busy = Busy(qps, 4096 // qps, sources=sources)
    runtime = busy.net.nodes[0].ctx.runtime
    slow = SlowReceiver(runtime.link, busy.net.clock, 990)
    runtime.link = slow
    took_ns = busy.run()
    assert slow.lost == 0
    assert busy.repeated < MOST_REPEATED
    assert took_ns < 1.2 * busy.packets * PACKET_NS + 1_000_000
    busy.close()


@pytest.mark.slow
def test_a_receiver_with_little_room_costs_losses_but_no_failure() -> None:
    busy = Busy(64, 32, sources=8)
    runtime = busy.net.nodes[0].ctx.runtime
    slow = SlowReceiver(runtime.link, busy.net.clock, 50)
    runtime.link = slow
    busy.run()
    assert slow.lost > 0
    busy.close()


def test_a_preempted_sender_reads_its_socket_before_timeouts() -> None:
    """A loaded machine leaves a process alone for longer than an ACK timeout. The ACKs wait in its socket meanwhile."""
    qps, size = 64, 4 * MTU
    net = SimNet(2)
    a, b = (node.ctx for node in net.nodes)
    ends = []
    for ctx in (a, b):
        pd, cq = PD(ctx), CQ(ctx, 2 * qps)
        memory = MR(pd, bytearray(size), RIGHTS)
        made = [QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(1, 1), scq=cq, rcq=cq)) for _ in range(qps)]
        ends.append((made, memory, cq))
    (senders, source, cq), (receivers, target, _) = ends
    for one, other in zip(senders, receivers, strict=True):
        for qp, peer, ctx in ((one, other, b), (other, one, a)):
            attr = QPAttr()
            attr.path_mtu, attr.timeout, attr.retry_cnt = e.IBV_MTU_256, 14, 7
            attr.dest_qp_num, attr.qp_access_flags = peer.qp_num, RIGHTS
            attr.ah_attr = AHAttr(GlobalRoute(ctx.query_gid()))
            qp.to_rts(attr)
    net.nodes[0].nic.inflight.peer(senders_flow(net)).limit = 4 * qps
    for qp in senders:
        qp.post_rdma(WR_WRITE, source.buf, size, source.lkey, target.buf, target.rkey)
    net.driving = True
    for _ in range(200):
        b.runtime.progress()
    net.driving = False
    assert net.nodes[0].nic.inflight.packets == 4 * qps
    net.clock.advance(400_000_000)
    assert net.run(lambda: net.nodes[0].counters["acks_received"] >= qps)
    assert not net.nodes[0].counters["ack_timeouts"]
    assert not net.nodes[0].counters["retransmitted_packets"]
    assert cq.poll(2 * qps)[0] == qps
    net.close()


def senders_flow(net: SimNet) -> Flow:
    """The path of node 0's first queue pair."""
    flow = next(iter(net.nodes[0].nic.qps.values())).flow
    assert flow is not None
    return flow


LOST = {"requests": (0, "RC_READ_REQUEST", 8), "responses": (1, "RC_READ_RESPONSE*", 33)}
"""Whose packets are lost, which, and every how many: of the requests the last of eight, with nothing behind it."""


def reads_ns(faults: dict[int, list[dict[str, object]]]) -> int:
    """How long 64 READs of 16 KiB take, four at a time, with an ACK timeout of more than a second."""
    net = SimNet(2, packet_ns=PACKET_NS, latency_ns=5_000, faults=faults)
    with QpPair(net=net, size=1 << 14, attributes={"timeout": 18}) as pair:
        start = net.clock.now_ns
        for _ in range(16):
            for _ in range(4):
                pair.a.post_send(e.IBV_WR_RDMA_READ, 1 << 14)
            assert [wc.status for wc in pair.a.wait(4)] == [e.IBV_WC_SUCCESS] * 4
        took_ns = net.clock.now_ns - start
        assert pair.a.counters["ack_timeouts"] == 0
        assert bool(pair.a.counters["retransmitted_requests"] + pair.a.counters["probes"]) == bool(faults)
        return took_ns


@pytest.mark.slow
@pytest.mark.parametrize("lost", LOST)
def test_reads_over_a_bad_link_wait_for_no_timeout(lost: str) -> None:
    """That costs time, but never an ACK timeout, of which one is longer than the whole."""
    node, opcode, every = LOST[lost]
    rule = {"match": {"direction": "tx", "opcode": opcode}, "every": every, "action": "drop"}
    assert reads_ns({node: [rule]}) < 10 * reads_ns({})
