"""What a device's runtime needs from a link, and what all links share.

A link carries bursts of RoCEv2 UDP payloads (BTH through ICRC) between this NIC and its peers. It knows no
transport: a bad or lost packet is a counter, never an exception.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from rnic.spec.addresses import address_text
from rnic.spec.drops import DropReason
from rnic.spec.errors import RnicError
from rnic.spec.limits import ICRC_BYTES, MAX_TRANSPORT_HEADERS, MTU_CODES
from rnic.trace.counters import Counters
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

_IP_UDP_BYTES = 40 + 8
"""The IPv6 header and UDP; IPv4 paths leave the same room, so that both families settle on one path MTU."""


class LinkError(RnicError):
    """A link cannot be opened or used as asked. One line: the thing, its value, the remedy."""


class Link(Protocol):
    """One NIC's attachment to a network. A link is used by one thread at a time and starts none."""

    @property
    def address(self) -> bytes:
        """This end's own address, 4 or 16 bytes."""

    @property
    def port(self) -> int:
        """The UDP port on which peers reach this end."""

    @property
    def source_ports(self) -> tuple[int, ...]:
        """The UDP ports that packets leave from: ``port``, unless the link has others for that."""

    @property
    def mtu(self) -> int:
        """IP MTU in bytes; :func:`active_mtu_bytes` makes the InfiniBand MTU of it."""

    @property
    def window_bytes(self) -> int:
        """Payload bytes of full-sized packets that the receive buffer surely holds.

        A sender that keeps less in flight towards a peer with an equal buffer loses nothing there.
        """

    @property
    def window_packets(self) -> int:
        """Packets of any size that the receive buffer surely holds."""

    @property
    def counters(self) -> Counters:
        """Where drops are counted."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Send, or count a drop. The buffers of ``bursts`` are the caller's again on return."""

    def receive(self, limit: int) -> list[RxBurst]:
        """Up to ``limit`` bursts that have arrived, without waiting.

        An empty list says that nothing is left; a shorter one does not. ``buf`` of each is valid until the
        next call.
        """

    @property
    def up(self) -> bool:
        """Whether the network interface is up, as far as the last send showed."""

    @property
    def frames(self) -> deque[bytes] | None:
        """Whole packets, from the IP header on, that arrived and that the link did not look into.

        The same object for ever; what is taken from it is gone. ``None`` for links that carry UDP payloads alone.
        """

    def fileno(self) -> int | None:
        """Descriptor that polls readable when bursts have arrived, or ``None`` for a link in memory."""

    def filenos(self) -> list[int]:
        """All descriptors to poll, those of multicast groups included."""

    def next_deadline_ns(self) -> int | None:
        """When ``receive`` should be called although nothing arrives; ``None`` where never."""

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """The path from this link to a peer.

        ``sport`` is a wish: links that send from one bound port use that port; 0 means the link's own.

        Raises:
            LinkError: the peer's address is of the other IP version.
        """

    def max_segments(self, flow: Flow) -> int:
        """Packets that one burst on this path may hold; 1 where nothing segments them truthfully."""

    def allow_gso(self, flow: Flow) -> None:
        """The peer agreed to bursts that the system segments (design.md, UDP link)."""

    def join(self, group: bytes) -> None:
        """Receive what is sent to a multicast address; joining twice changes nothing.

        Raises:
            LinkError: not a multicast address of this link's IP version, or the system refuses.
        """

    def leave(self, group: bytes) -> None:
        """Stop receiving for a group; leaving one that was not joined changes nothing."""

    def close(self) -> None:
        """Release everything; a second call does nothing. Sending afterwards raises :class:`LinkError`."""


class UnpolledLink:
    """What links without a descriptor share: nothing to poll, no deadline, any source port, packets that travel alone.

    ``address`` and ``port`` are the subclass's to set.
    """

    address: bytes
    port: int

    def fileno(self) -> int | None:
        """Nothing to poll."""
        return None

    def filenos(self) -> list[int]:
        """Nothing to poll."""
        return []

    def next_deadline_ns(self) -> int | None:
        """Never: what waits can be received at once."""
        return None

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """See :meth:`Link.local_flow`; any ``sport`` is granted."""
        return flow_between(self.address, sport or self.port, remote_addr, remote_port)

    def max_segments(self, flow: Flow) -> int:
        """1: every packet travels alone."""
        return 1

    def allow_gso(self, flow: Flow) -> None:
        """Changes nothing: what a burst may hold is settled."""


class DrivenLink:
    """What links share whose packets somebody else sends and receives: the engine's rounds.

    ``counters`` is the subclass's to set.
    """

    counters: Counters

    def failed(self, **counts: int) -> None:
        """What became of packets that somebody else sent or received, by the names of the counters."""
        for name, count in counts.items():
            if count:
                self.counters.bump(DropReason.TOO_SHORT.value if name == "too_short" else name, count)


def active_mtu_bytes(ip_mtu: int) -> int:
    """The largest InfiniBand MTU whose longest packet fits an IP MTU; 256, the smallest, where none does."""
    room = ip_mtu - _IP_UDP_BYTES - MAX_TRANSPORT_HEADERS - ICRC_BYTES
    return max((size for size in MTU_CODES if size <= room), default=min(MTU_CODES))


def parse_address(text: str) -> bytes:
    """An IPv4 or IPv6 address as 4 or 16 bytes.

    Raises:
        LinkError: not an address, or a wildcard: the ICRC covers the real one.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise LinkError(f"address {text!r} is no IPv4 or IPv6 address: give one such as 127.0.0.1") from None
    if address.is_unspecified:
        raise LinkError(f"address {text} is a wildcard: give one that this machine has, as the ICRC covers it")
    return address.packed


def format_address(address: bytes) -> str:
    """Text form of a 4- or 16-byte address."""
    return address_text(address)


def flow_between(address: bytes, port: int, remote_addr: bytes, remote_port: int) -> Flow:
    """The path from ``(address, port)`` to a peer.

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
