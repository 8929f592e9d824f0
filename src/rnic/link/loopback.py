"""In-memory links: any number of NICs on one fabric; a NIC may send to itself.

Nothing is parsed or checked, and packets are only lost if a receiver's queue is full or no NIC has the address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from rnic.link.base import DrivenLink, LinkError, UnpolledLink, check_group, format_address
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.wire.bursts import DONT_FRAGMENT, RxBurst, TxBurst
from rnic.wire.flow import MAX_IDENTS, Flow

FABRIC_MTU = 65_536
QUEUE_BYTES = 16 << 20
MAX_FRAMES = 1 << 10
_MAX_CACHED = 4_096


class Wire(Protocol):
    """The compiled queue of a link (:mod:`rnic.engine`), to which the engine's rounds of other NICs write directly."""

    def put(self, name: bytes, data: memoryview, segment: int, tclass: int, hop_limit: int, flow_label: int, /) -> bool:
        """Queue a burst. Return false if the link is closed."""

    def take(self, limit: int, /) -> list[tuple[bytes, memoryview, int, int, int, int]]:
        """Return waiting bursts as they were put; their bytes are valid until the next call."""

    def lost(self) -> int:
        """Return the number of packets dropped for lack of room since the last call."""

    def close(self) -> None:
        """Accept no more bursts."""


class Fabric:
    """An in-memory switch. Links are found by address and UDP port, multicast members by group and port."""

    def __init__(self) -> None:
        self._links: dict[tuple[bytes, int], LoopbackLink] = {}
        self._groups: dict[tuple[bytes, int], list[LoopbackLink]] = {}

    def attach(
        self,
        address: bytes,
        port: int = ROCE_UDP_PORT,
        *,
        mtu: int = FABRIC_MTU,
        max_segments: int = MAX_IDENTS,
        queue_bytes: int = QUEUE_BYTES,
        counters: Counters | None = None,
    ) -> LoopbackLink:
        """Return a new link at ``(address, port)``.

        Args:
            address: 4 or 16 bytes.
            mtu: IP MTU that the link reports; longer packets still pass.
            max_segments: most packets in a burst, 1 to 64.
            queue_bytes: most bytes that may wait to be received; more are dropped and counted.

        Raises:
            LinkError: another link has the address and port.
        """
        if (address, port) in self._links:
            raise LinkError(f"UDP port {port} on {format_address(address)} is taken on this fabric: give another port")
        link = LoopbackLink(self, address, port, mtu, max_segments, queue_bytes, counters)
        self._links[address, port] = link
        return link

    def carry(self, address: bytes, packet: bytes) -> bool:
        """Deliver a whole packet, from its IP header on, to every link at an address, regardless of port. Return
        whether there is one."""
        links = [link for (there, _), link in self._links.items() if there == address]
        for link in links:
            link.deliver_frame(packet)
        return bool(links)

    def targets(self, address: bytes, port: int) -> Sequence[LoopbackLink]:
        """Return the links that packets to ``(address, port)`` reach."""
        link = self._links.get((address, port))
        return (link,) if link is not None else self._groups.get((address, port), ())

    def detach(self, link: LoopbackLink) -> None:
        """Remove a link and its memberships."""
        self._links.pop((link.address, link.port), None)
        for group, port in [key for key, members in self._groups.items() if link in members]:
            self.leave(link, group, port)

    def join(self, link: LoopbackLink, group: bytes, port: int) -> None:
        """Add a member to a group; ignore repeated calls."""
        members = self._groups.setdefault((group, port), [])
        if link not in members:
            members.append(link)

    def leave(self, link: LoopbackLink, group: bytes, port: int) -> None:
        """Remove a member from a group; ignore non-members."""
        members = self._groups.get((group, port), [])
        if link in members:
            members.remove(link)
        if not members:
            self._groups.pop((group, port), None)

    def has_joined(self, link: LoopbackLink) -> bool:
        """Return whether a link is a member of any group."""
        return any(link in members for members in self._groups.values())


class LoopbackLink(DrivenLink, UnpolledLink):
    """One NIC's end of a :class:`Fabric`, created by :meth:`Fabric.attach`."""

    def __init__(
        self,
        fabric: Fabric,
        address: bytes,
        port: int,
        mtu: int,
        max_segments: int,
        queue_bytes: int,
        counters: Counters | None,
    ) -> None:
        self.address = address
        self.port = port
        self.source_ports = (port,)
        self.mtu = mtu
        self.window_bytes = queue_bytes
        self.window_packets = 1 << 20
        self.counters = Counters() if counters is None else counters
        self._fabric = fabric
        self._max_segments = max_segments
        self._queue: deque[RxBurst] = deque()
        self._queued_bytes = 0
        self.up = True
        """State of the link; tests set it to simulate unplugging the cable, but packets still pass."""
        self.frames: deque[bytes] = deque()
        """Whole received packets (:meth:`Fabric.carry`)."""
        self.frame_sender = self._send_frame
        self.lone = True
        """True if no group is joined, so that all packets come through the wire, if there is one."""
        self._wire: Wire | None = None
        self._flows: dict[bytes, Flow] = {}
        """Paths of received packets, by the senders' names on wires."""
        self._closed = False

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Queue each burst at its destinations, copied if it may change; segments get the IP IDs that their ICRCs
        cover."""
        if self._closed:
            where = f"{format_address(self.address)} port {self.port}"
            raise LinkError(f"loopback link {where} is closed: open a new one")
        for burst in bursts:
            flow = burst.flow
            targets = self._fabric.targets(flow.dst, flow.dport)
            if not targets:
                self.counters.bump("drop_tx_unreachable", burst.count)
                continue
            data = _kept(burst.buffers)
            for link in targets:
                link.deliver(burst, data)

    def deliver(self, burst: TxBurst, data: memoryview, arrival: object = None) -> None:
        """Queue a burst that another link sent; ``arrival`` is the report of a simulated network."""
        flow = burst.flow
        if self._wire is not None and flow.dst == self.address:
            self._wire.put(_name(flow), data, burst.segment, flow.tclass, flow.hop_limit, flow.flow_label)
            return
        if self._queued_bytes + burst.length > self.window_bytes:
            self.counters.bump("drop_rx_queue_full", burst.count)
            return
        self._queued_bytes += burst.length
        how = flow.tclass, flow.hop_limit, flow.flow_label
        made = RxBurst(flow, data, burst.segment, burst.length, 0, DONT_FRAGMENT, *how)
        made.arrival = arrival
        self._queue.append(made)

    def _send_frame(self, to: bytes, packet: bytes) -> bool:
        return not self._closed and self._fabric.carry(to, packet)

    def deliver_frame(self, packet: bytes) -> None:
        """Queue a whole packet."""
        if len(self.frames) >= MAX_FRAMES:
            self.counters.bump("drop_rx_queue_full")
        else:
            self.frames.append(packet)

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`; without a wire ``buf`` stays valid while referenced."""
        queue = self._queue
        out = [queue.popleft() for _ in range(min(limit, len(queue)))]
        for burst in out:
            self._queued_bytes -= burst.length
        if self._wire is not None:
            out += [self.make_burst(*what) for what in self._wire.take(limit - len(out))]
            self.failed(drop_rx_queue_full=self._wire.lost())
        return out

    def max_segments(self, flow: Flow) -> int:
        """Return the same limit for every peer, since nothing in memory renumbers IP IDs."""
        return self._max_segments

    def join(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.join`."""
        check_group(group, self.address)
        self._fabric.join(self, group, self.port)
        self.lone = False

    def leave(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.leave`."""
        self._fabric.leave(self, group, self.port)
        self.lone = not self._fabric.has_joined(self)

    # ------------------------------------------------------------------- for code that bypasses the link

    wired = True
    """True: packets use in-memory wires, not sockets."""
    outlets = ()
    """No sockets to send from."""

    def use_wire(self, wire: Wire) -> Wire:
        """Receive through a wire from now on. Return the wire."""
        self._wire = wire
        return wire

    def tx_path(self, flow: Flow) -> tuple[Wire | None, bytes, int]:
        """Return the wire of a flow's packets, if any; the sender's name on it; and the most packets in a burst."""
        targets = self._fabric.targets(flow.dst, flow.dport)
        alone = len(targets) == 1 and targets[0].address == flow.dst
        return targets[0]._wire if alone else None, _name(flow), self._max_segments

    def make_burst(self, sender: bytes, buf: memoryview, *how: int) -> RxBurst:
        """Make a burst of packets from the wire; ``how``: segment size, traffic class, hop limit, flow label."""
        flow = self._flows.get(sender)
        if flow is None:
            if len(self._flows) >= _MAX_CACHED:
                self._flows.clear()
            flow = self._flows[sender] = Flow(sender[2:], self.address, int.from_bytes(sender[:2]), self.port)
            flow.settled = True  # nothing in memory renumbers IP IDs
        segment, tclass, hop_limit, label = how
        return RxBurst(flow, buf, segment, len(buf), 0, DONT_FRAGMENT, tclass, hop_limit, label)

    def check_interface(self) -> None:
        """Do nothing: an in-memory link is always up, even if a peer's wire is closed or a flow has none."""

    def close(self) -> None:
        """Leave the fabric; waiting bursts are dropped."""
        self._closed = True
        self.lone = False
        self._fabric.detach(self)
        if self._wire is not None:
            self._wire.close()
        self._queue.clear()
        self.frames.clear()
        self._queued_bytes = 0


def _name(flow: Flow) -> bytes:
    """Return the name by which a path's receiver knows its sender."""
    return flow.sport.to_bytes(2) + flow.src


def _kept(buffers: Sequence[memoryview | bytearray | bytes]) -> memoryview:
    """Return the current bytes of a burst, without a copy if they are immutable, as a single buffer of ``bytes``."""
    if len(buffers) == 1:
        view = memoryview(buffers[0])
        if type(view.obj) is bytes and view.c_contiguous:
            return view
    return memoryview(b"".join(buffers))


def loopback_pair(
    first: bytes = b"\x7f\0\0\1", second: bytes = b"\x7f\0\0\2", port: int = ROCE_UDP_PORT
) -> tuple[LoopbackLink, LoopbackLink]:
    """Return two links on a new fabric."""
    fabric = Fabric()
    return fabric.attach(first, port), fabric.attach(second, port)
