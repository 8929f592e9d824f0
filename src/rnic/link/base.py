"""Interface of links for a device's runtime, and shared code of links.

A link carries bursts of RoCEv2 UDP payloads (BTH through ICRC) between this NIC and its peers. It does not depend on
the transport: bad and lost packets are counted and raise no exception.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from rnic.spec.addresses import address_text, parse_address
from rnic.spec.drops import DropReason
from rnic.spec.errors import LinkError
from rnic.spec.limits import ICRC_BYTES, MAX_TRANSPORT_HEADERS, MTU_CODES
from rnic.trace.counters import Counters
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

_IP_UDP_BYTES = 40 + 8
"""Size of IPv6 and UDP headers; IPv4 paths reserve the same, so that both families get the same path MTU."""


class Link(Protocol):
    """One NIC's attachment to a network. A link is used by one thread at a time and starts no threads."""

    @property
    def address(self) -> bytes:
        """This end's own address, 4 or 16 bytes."""

    @property
    def port(self) -> int:
        """The UDP port on which peers reach this end."""

    @property
    def source_ports(self) -> tuple[int, ...]:
        """UDP source ports of packets: ``port``, unless the link has separate ones."""

    @property
    def mtu(self) -> int:
        """IP MTU in bytes; :func:`active_mtu_bytes` converts it to the InfiniBand MTU."""

    @property
    def window_bytes(self) -> int:
        """Payload bytes of full-sized packets that always fit the receive buffer.

        A sender with less in flight to a peer with an equal buffer causes no drops there.
        """

    @property
    def window_packets(self) -> int:
        """Packets of any size that always fit the receive buffer."""

    @property
    def counters(self) -> Counters:
        """Counters of drops."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Send the bursts, or count drops. The caller may reuse their buffers on return."""

    def receive(self, limit: int) -> list[RxBurst]:
        """Return up to ``limit`` bursts that have arrived, without waiting.

        An empty list means that nothing is left, a short one does not. ``buf`` of each burst is valid until the next
        call.
        """

    @property
    def up(self) -> bool:
        """True if the network interface is up, as far as the last send showed."""

    @property
    def frames(self) -> deque[bytes] | None:
        """Whole received packets, from the IP header on, that the link did not parse.

        Always the same object, from which callers remove packets. ``None`` for links that only carry UDP payloads.
        """

    @property
    def frame_sender(self) -> Callable[[bytes, bytes], bool] | None:
        """Function that sends a whole packet, from its IP header on, to an address, and returns whether it was sent; or
        ``None``."""

    def fileno(self) -> int | None:
        """Return the descriptor that polls readable when bursts have arrived, or ``None`` for a link in memory."""

    def filenos(self) -> list[int]:
        """Return all descriptors to poll, those of multicast groups included."""

    def next_deadline_ns(self) -> int | None:
        """Return the time at which to call ``receive`` even if nothing arrives; ``None`` for never."""

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """Return the path from this link to a peer.

        ``sport`` is the preferred source port: links with a single bound port ignore it; 0 means the link's own.

        Raises:
            LinkError: the peer's address is of the other IP version.
        """

    def max_segments(self, flow: Flow) -> int:
        """Return the most packets in one burst on this path; 1 without segmentation offload that preserves the ICRC."""

    def allow_gso(self, flow: Flow) -> None:
        """Allow bursts that the kernel segments: the peer agreed (design.md, UDP link)."""

    def join(self, group: bytes) -> None:
        """Join a multicast group; joining twice has no effect.

        Raises:
            LinkError: not a multicast address of this link's IP version, or the kernel refuses.
        """

    def leave(self, group: bytes) -> None:
        """Leave a multicast group; ignored if it was not joined."""

    def close(self) -> None:
        """Release everything; a second call does nothing. Sending after that raises :class:`LinkError`."""


class UnpolledLink:
    """Base of links without a descriptor: nothing to poll, no deadline, any source port, packets that travel alone.

    Subclasses set ``address`` and ``port``.
    """

    address: bytes
    port: int

    def fileno(self) -> int | None:
        """Return no descriptor: there is nothing to poll."""
        return None

    def filenos(self) -> list[int]:
        """Return no descriptor: there is nothing to poll."""
        return []

    def next_deadline_ns(self) -> int | None:
        """Return ``None``: waiting bursts can be received at once."""
        return None

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """See :meth:`Link.local_flow`; any ``sport`` is used as given."""
        return flow_between(self.address, sport or self.port, remote_addr, remote_port)

    def max_segments(self, flow: Flow) -> int:
        """Return 1: every packet travels alone."""
        return 1

    def allow_gso(self, flow: Flow) -> None:
        """Do nothing: the size of a burst is fixed."""


class DrivenLink:
    """Base of links whose packets the engine's rounds send and receive.

    Subclasses set ``counters``.
    """

    counters: Counters

    def failed(self, **counts: int) -> None:
        """Count drops of packets that the engine sent or received, by counter name."""
        for name, count in counts.items():
            if count:
                self.counters.bump(DropReason.TOO_SHORT.value if name == "too_short" else name, count)


def active_mtu_bytes(ip_mtu: int) -> int:
    """Return the largest InfiniBand MTU whose longest packet fits an IP MTU; 256, the smallest, if none fits."""
    room = ip_mtu - _IP_UDP_BYTES - MAX_TRANSPORT_HEADERS - ICRC_BYTES
    return max((size for size in MTU_CODES if size <= room), default=min(MTU_CODES))


def format_address(address: bytes) -> str:
    """Return the text form of a 4- or 16-byte address."""
    return address_text(address)


def flow_between(address: bytes, port: int, remote_addr: bytes, remote_port: int) -> Flow:
    """Return the path from ``(address, port)`` to a peer.

    Raises:
        LinkError: the two addresses are of different IP versions.
    """
    if len(remote_addr) != len(address):
        raise LinkError(
            f"peer {format_address(remote_addr)} is not of the IP version of this link's address "
            f"{format_address(address)}: open a link on an address of the peer's version"
        )
    return Flow(address, remote_addr, port, remote_port)


def check_group(group: bytes, address: bytes) -> None:
    """Raise :class:`LinkError` unless ``group`` is a multicast address of the IP version of ``address``."""
    if len(group) not in (4, 16) or not ipaddress.ip_address(group).is_multicast:
        shown = format_address(group) if len(group) in (4, 16) else group.hex()
        raise LinkError(f"{shown} is not a multicast address: give one of 224.0.0.0/4 or ff00::/8")
    if len(group) != len(address):
        raise LinkError(
            f"group {format_address(group)} is not of the IP version of this link's address "
            f"{format_address(address)}: give a group of that version"
        )


__all__ = [
    "DrivenLink",
    "Link",
    "LinkError",
    "UnpolledLink",
    "active_mtu_bytes",
    "check_group",
    "flow_between",
    "format_address",
    "parse_address",
]
