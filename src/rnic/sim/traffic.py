"""Queue pairs between the fabric's hosts, and their traffic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rnic.sim.host import Host
from rnic.sim.tasks import Signal
from rnic.sim.workloads import Flow
from rnic.spec.limits import MTU_CODES
from rnic.spec.opcodes import WR_WRITE, WR_WRITE_IMM
from rnic.verbs import CQ, MR, PD, QP, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR
from rnic.verbs import enums as e

_RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
_CQ_ENTRIES = 128
"""Completions of a host between two polls: it is polled after each packet."""
RECEIVES = 64
"""Receives posted on a channel: messages that may arrive before the program at the far end receives one."""


class FlowResult(NamedTuple):
    """A finished flow: from its start to its completion at the sender."""

    flow: Flow
    end_ns: int
    ideal_ns: int
    """Ideal completion time, without other traffic."""
    status: int
    """Status of its completion."""
    qps: tuple[int, int] | None = None
    """Numbers of its queue pairs, the sender's and the receiver's; ``None`` on a channel."""

    @property
    def took_ns(self) -> int:
        """Its completion time."""
        return self.end_ns - self.flow.start_ns

    @property
    def slowdown(self) -> float:
        """Completion time divided by the ideal time."""
        return self.took_ns / self.ideal_ns


class _End(NamedTuple):
    """A host's domain and completion queue."""

    pd: PD
    cq: CQ


class Pair:
    """Two connected queue pairs; ``sender`` is the one that writes."""

    __slots__ = ("_region", "_there", "number", "other", "receiver", "sender", "source", "target")

    def __init__(
        self, traffic: Traffic, source: Host, target: Host, size: int, receives: int, priority: int = 0
    ) -> None:
        self.source, self.target = source, target
        source.use(priority)
        self._region, self._there = (traffic.region(host, size) for host in (source, target))
        self.sender, self.receiver = (
            QP(end.pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(depth, max(1, receives)), scq=end.cq, rcq=end.cq))
            for end, depth in ((traffic.end(source), max(1, receives)), (traffic.end(target), 1))
        )
        self.number, self.other = self.sender.qp_num, self.receiver.qp_num
        ends = ((self.sender, self.receiver, target), (self.receiver, self.sender, source))
        for qp, peer, host in ends:
            attr = QPAttr()
            attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry = MTU_CODES[traffic.mtu], 14, 7, 7
            attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
            attr.dest_qp_num, attr.qp_access_flags = peer.qp_num, _RIGHTS
            route = GlobalRoute(host.ctx.query_gid(), traffic_class=traffic.traffic_class | priority << 5)
            attr.ah_attr = AHAttr(route, udp_dport=host.ctx.udp_port)
            qp.to_rts(attr)
        for _ in range(receives):
            self.receive()

    def receive(self) -> None:
        """Post one receive, for one more message."""
        self.receiver.post_recv(RecvWR())

    def write(self, size: int, *, announced: bool = False) -> None:
        """Post one WRITE; ``announced`` uses a receive entry at the other end."""
        opcode = WR_WRITE_IMM if announced else WR_WRITE
        here, there = self._region, self._there
        self.sender.post_rdma(opcode, here.buf, size, here.lkey, there.buf, there.rkey)
        self.source.wake()

    @property
    def received_psn(self) -> int:
        """The PSN that the receiver expects."""
        return int(self.target.nic.qps[self.receiver.qp_num].ctx.expected_psn)

    def close(self) -> None:
        """Destroy both queue pairs."""
        self.sender.close()
        self.receiver.close()


class FlowPair(Protocol):
    """The queue pairs of one flow."""

    @property
    def number(self) -> int:
        """Queue pair number of the sender."""

    @property
    def other(self) -> int:
        """Queue pair number of the receiver."""

    @property
    def received_psn(self) -> int:
        """The PSN that the receiver expects."""

    def write(self, size: int) -> None:
        """Post one WRITE."""

    def close(self) -> None:
        """Destroy both queue pairs."""


class Channel:
    """A persistent connection for messages in one direction, in order. Made by ``Fabric.channel``."""

    def __init__(self, traffic: Traffic, source: Host, target: Host, size: int, priority: int = 0) -> None:
        self.largest = size
        self._traffic = traffic
        self._pair = Pair(traffic, source, target, size, RECEIVES, priority)
        self._sent: deque[tuple[Flow, Signal[FlowResult]]] = deque()
        self._arrived = 0
        self._waiting: deque[Signal[int]] = deque()
        traffic.expect(source, self._pair.sender.qp_num, self._completed)
        traffic.expect(target, self._pair.receiver.qp_num, self._arrival)

    def write(self, size: int, label: str = "") -> Signal[FlowResult]:
        """Send ``size`` bytes. Await the returned signal for the completion.

        Raises:
            ValueError: the size is 0, or larger than the channel's.
        """
        if not 0 < size <= self.largest:
            raise ValueError(f"size={size} does not fit this channel: give 1 to {self.largest}")
        flow = Flow(self._pair.source.name, self._pair.target.name, size, self._traffic.now_ns(), label)
        over: Signal[FlowResult] = Signal()
        self._sent.append((flow, over))
        self._traffic.left += 1
        self._pair.write(size, announced=True)
        return over

    def arrival(self) -> Signal[int]:
        """Return a signal for the next message at the far end; its value is the time in nanoseconds."""
        came: Signal[int] = Signal()
        if self._arrived:
            self._arrived -= 1
            came.set(self._traffic.now_ns())
        else:
            self._waiting.append(came)
        return came

    def _completed(self, status: int) -> None:
        flow, over = self._sent.popleft()
        over.set(self._traffic.over(flow, status))

    def _arrival(self, status: int) -> None:
        if status != e.IBV_WC_SUCCESS:
            return  # the sender's completion reports it
        self._pair.receive()
        if self._waiting:
            self._waiting.popleft().set(self._traffic.now_ns())
        else:
            self._arrived += 1


Bare = Callable[["Traffic", Host, Host, Flow, Callable[[], None]], FlowPair]
"""Factory of a flow's queue pairs; takes source, target, flow, and a callback for a failure without a completion.
"""


class Traffic:
    """All traffic of the fabric.

    Args:
        now_ns: virtual time.
        ideal_ns: returns the ideal time of a flow.
        mtu: path MTU in bytes.
        traffic_class: traffic class of all packets.

    ``left`` counts unfinished flows, started or not; ``results`` are the finished ones, in the order of completion.
    """

    def __init__(
        self, now_ns: Callable[[], int], ideal_ns: Callable[[Flow], int], mtu: int, traffic_class: int
    ) -> None:
        self.now_ns = now_ns
        self.mtu = mtu
        self.traffic_class = traffic_class
        self.left = 0
        self.results: list[FlowResult] = []
        self.bare: Bare | None = None
        """Factory of bare flows; ``None`` if verbs creates the queue pairs."""
        self.begun: dict[int, tuple[Flow, FlowPair]] = {}
        """Unfinished flows that have a queue pair, by number in the order of connecting."""
        self._numbers = 0
        self._ideal_ns = ideal_ns
        self._memory = bytearray(1)
        self._ends: dict[str, _End] = {}
        self._regions: dict[str, MR] = {}
        self._expected: dict[str, dict[int, Callable[[int], None]]] = {}

    def end(self, host: Host) -> _End:
        """Return a host's domain and completion queue."""
        end = self._ends.get(host.name)
        if end is None:
            end = self._ends[host.name] = _End(PD(host.ctx), CQ(host.ctx, _CQ_ENTRIES))
        return end

    def region(self, host: Host, size: int) -> MR:
        """Return a host's region of at least ``size`` bytes. All hosts share the memory, since no code reads it."""
        if len(self._memory) < size:
            self._memory = bytearray(size)
        region = self._regions.get(host.name)
        if region is None or len(memoryview(region.buffer)) < size:
            region = self._regions[host.name] = MR(self.end(host).pd, self._memory, _RIGHTS)
        return region

    def expect(self, host: Host, number: int, call: Callable[[int], None]) -> None:
        """Call ``call`` with the status of each completion of a queue pair."""
        self._expected.setdefault(host.name, {})[number] = call

    def forget(self, host: Host, number: int) -> None:
        """Forget a queue pair: no task waits for its completions anymore."""
        del self._expected[host.name][number]

    def close(self) -> None:
        """End the unfinished flows."""
        for _, pair in self.begun.values():
            pair.close()
        self.begun.clear()

    def begin(
        self, source: Host, target: Host, flow: Flow, over: Signal[FlowResult] | None = None
    ) -> Callable[[], None]:
        """Connect a flow's queue pairs; return a function that posts the flow. They are destroyed when it ends."""
        number = self._numbers
        self._numbers += 1

        def completed(status: int) -> None:
            self.forget(source, pair.number)
            del self.begun[number]
            pair.close()
            result = self.over(flow, status, (pair.number, pair.other))
            if over is not None:
                over.set(result)

        pair: FlowPair
        if self.bare is None:
            pair = Pair(self, source, target, flow.size, 0, flow.priority)
        else:
            pair = self.bare(self, source, target, flow, lambda: completed(e.IBV_WC_RETRY_EXC_ERR))
        self.begun[number] = flow, pair
        self.expect(source, pair.number, completed)
        return lambda: pair.write(flow.size)

    def over(self, flow: Flow, status: int, qps: tuple[int, int] | None = None) -> FlowResult:
        """End a flow now."""
        self.left -= 1
        result = FlowResult(flow, self.now_ns(), self._ideal_ns(flow), status, qps)
        self.results.append(result)
        return result

    def completed(self, host: Host) -> None:
        """Poll a host's completion queue, after an event at the host."""
        end = self._ends.get(host.name)
        if end is None:
            return
        expected = self._expected.get(host.name, {})
        count, completions = end.cq.poll(64)
        while count:
            for completion in completions[:count]:
                call = expected.get(completion.qp_num)
                if call is not None:
                    call(completion.status)
            count, completions = end.cq.poll(64)
