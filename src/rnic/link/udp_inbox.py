"""The receiving side of :mod:`rnic.link.udp`: bursts from one socket, in Python or by compiled calls."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rnic.link.udp_socket import (
    ANCILLARY_BYTES,
    Ancillary,
    read_ancillary,
    read_stamp,
    split_address,
)
from rnic.spec.drops import DropReason
from rnic.wire.bursts import DONT_FRAGMENT, RxBurst
from rnic.wire.flow import Flow

if TYPE_CHECKING:
    from rnic.link.udp import UdpLink

MAX_CACHED_FLOWS = 4_096

Flows = dict[tuple[str, int] | bytes, Flow]
Buffers = Callable[[int], tuple[memoryview]]


class Inbox:
    """One socket's receiving side: packets sent to ``address``, by sender.

    Args:
        calls: the compiled system calls, or ``None``.
    """

    __slots__ = ("_receive", "_receiver", "address", "flows", "socket", "stamp")

    def __init__(self, sock: socket.socket, address: bytes, calls: Any, flows: Flows | None = None) -> None:
        self.socket = sock
        self.address = address
        self.flows: Flows = {} if flows is None else flows
        """Flows by the sender's address, as returned by the system call."""
        self.stamp = 0
        """Arrival time of the last packet in nanoseconds; 0 if the kernel does not report it."""
        self._receiver = None if calls is None else calls.Receiver(sock.fileno())
        self._receive = None if self._receiver is None else self._receiver.receive

    def receive(self, link: UdpLink, quota: int, out: list[RxBurst], buffers: Buffers) -> bool:
        """Append up to ``quota`` bursts. Return whether the socket was empty.

        Args:
            buffers: function that returns a buffer for each index in ``out``.
        """
        if self._receive is not None:
            return self._receive_compiled(link, quota, out, buffers)
        ancillary_bytes = ANCILLARY_BYTES if link.gro or link.headers else 0
        for _ in range(quota):
            iov = buffers(len(out))
            ancillary: Ancillary = []
            try:
                if ancillary_bytes:
                    size, ancillary, _, sender = self.socket.recvmsg_into(iov, ancillary_bytes)
                else:
                    size, sender = self.socket.recvfrom_into(iov[0])
            except BlockingIOError:
                return True
            except OSError:
                # some systems report here that an earlier packet had no receiver
                link.counters.bump("rx_socket_error")
                continue
            if not size:
                link.counters.bump(DropReason.TOO_SHORT.value)
                continue
            flow = self.flows.get(sender)
            if flow is None:
                family = socket.AF_INET if len(self.address) == 4 else socket.AF_INET6
                flow = self._flow(link, sender, socket.inet_pton(family, sender[0]), sender[1])
            segment, tclass, hop_limit, label = read_ancillary(ancillary, size)
            self.stamp = read_stamp(ancillary)
            out.append(RxBurst(flow, iov[0][:size], segment, size, None, DONT_FRAGMENT, tclass, hop_limit, label))
        return False

    def _receive_compiled(self, link: UdpLink, quota: int, out: list[RxBurst], buffers: Buffers) -> bool:
        """Run :meth:`receive` with the compiled calls, which do not raise."""
        receiver, receive = self._receiver, self._receive
        assert receiver is not None
        assert receive is not None
        for _ in range(quota):
            buffer = buffers(len(out))[0]
            found = receive(buffer)
            if found is None:
                return True
            if found.__class__ is int:
                link.counters.bump("rx_socket_error")
                continue
            size, segment, sender, tclass, hop_limit, label = found
            self.stamp = receiver.stamp
            if not size:
                link.counters.bump(DropReason.TOO_SHORT.value)
                continue
            out.append(self.make_burst(link, sender, buffer[:size], segment, tclass, hop_limit, label))
        return False

    def make_burst(self, link: UdpLink, sender: bytes, buf: memoryview, *how: int) -> RxBurst:
        """Make a burst of packets from a raw socket address; ``how``: segment size, traffic class, hop limit, flow
        label."""
        flow = self.flows.get(sender)
        if flow is None:
            flow = self._flow(link, sender, *split_address(sender))
        segment, tclass, hop_limit, label = how
        return RxBurst(flow, buf, segment, len(buf), None, DONT_FRAGMENT, tclass, hop_limit, label)

    def _flow(self, link: UdpLink, sender: tuple[str, int] | bytes, address: bytes, port: int) -> Flow:
        if len(self.flows) >= MAX_CACHED_FLOWS:
            self.flows.clear()
        flow = self.flows[sender] = Flow(address, self.address, port, link.port).doubt()
        return flow
