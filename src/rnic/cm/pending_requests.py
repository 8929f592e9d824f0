"""Requests that came between two listeners of one service: programs close a listener and open the next one.

perftest does for each of its connections, and its client asks for the next as soon as it has closed the last; with
``-c UD`` at the same port in the other port space. The kernel is fast enough to hide that; a program that waits for a
processor is not, and would have its peer refused. So a request for a port that somebody listened on waits a moment for
the next listener before it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from rnic.spec.cm import port_key
from rnic.wire.cm import Message

HOLD_NS = 100_000_000
"""How long a request waits for a listener."""
MAX_HELD = 64
MAX_PORTS = 64
"""Ports that are remembered, the latest."""


class HeldRequests:
    """What waits for a listener to come back, in the order in which it came; at most :data:`MAX_HELD`."""

    def __init__(self) -> None:
        self._ports: dict[int, None] = {}
        self._held: list[tuple[int, Message, bytes]] = []

    def leave(self, service_id: int) -> None:
        """Nobody listens on it any more."""
        port = port_key(service_id)
        self._ports.pop(port, None)
        self._ports[port] = None
        if len(self._ports) > MAX_PORTS:
            del self._ports[next(iter(self._ports))]

    def hold(self, message: Message, source: bytes, now_ns: int) -> bool:
        """Keep a REQ or SIDR_REQ for a service without a listener; false where it is to be refused at once."""
        if port_key(message.fields["service_id"]) not in self._ports or len(self._held) >= MAX_HELD:
            return False
        self._held.append((now_ns + HOLD_NS, message, source))
        return True

    def next_deadline_ns(self, listeners: Container[int]) -> int | None:
        """When :meth:`release` has something to do: at once (0) where a listener is there."""
        if not self._held:
            return None
        return 0 if any(one[1].fields["service_id"] in listeners for one in self._held) else self._held[0][0]

    def release(self, listeners: Container[int], now_ns: int, take: Callable[[Message, bytes], None]) -> None:
        """Give back those that have a listener now, or have waited long enough."""
        held, self._held = self._held, []
        for deadline, message, source in held:
            if deadline <= now_ns or message.fields["service_id"] in listeners:
                take(message, source)
            else:
                self._held.append((deadline, message, source))
