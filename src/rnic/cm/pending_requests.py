"""Requests that arrive while a program closes one listener of a service and opens the next.

perftest does this for each connection, and its client sends the next request as soon as it has closed the last
connection; with ``-c UD``, to the same port in the other port space. The kernel is fast enough to hide that gap. A
program that waits for a core is not, and its peer would be rejected. So a request for a port that recently had a
listener is held for :data:`HOLD_NS` before it is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from rnic.spec.cm import port_key
from rnic.wire.cm import Message

HOLD_NS = 100_000_000
"""Longest time that a request is held for a listener."""
MAX_HELD = 64
MAX_PORTS = 64
"""Number of recently closed ports to remember."""


class PendingRequests:
    """Requests that wait for a listener, in order of arrival; at most :data:`MAX_HELD`."""

    def __init__(self) -> None:
        self._ports: dict[int, None] = {}
        self._pending: list[tuple[int, Message, bytes]] = []

    def listener_closed(self, service_id: int) -> None:
        """Remember the port of a listener that was closed."""
        port = port_key(service_id)
        self._ports.pop(port, None)
        self._ports[port] = None
        if len(self._ports) > MAX_PORTS:
            del self._ports[next(iter(self._ports))]

    def hold(self, message: Message, source: bytes, now_ns: int) -> bool:
        """Keep a REQ or SIDR_REQ for a service without a listener; return false if it must be rejected at once."""
        if port_key(message.fields["service_id"]) not in self._ports or len(self._pending) >= MAX_HELD:
            return False
        self._pending.append((now_ns + HOLD_NS, message, source))
        return True

    def next_deadline_ns(self, listeners: Container[int]) -> int | None:
        """Return when :meth:`release` has something to do: at once (0) if there is a listener."""
        if not self._pending:
            return None
        return 0 if any(one[1].fields["service_id"] in listeners for one in self._pending) else self._pending[0][0]

    def release(self, listeners: Container[int], now_ns: int, take: Callable[[Message, bytes], None]) -> None:
        """Pass on requests that have a listener now, or whose hold time is over."""
        held, self._pending = self._pending, []
        for deadline, message, source in held:
            if deadline <= now_ns or message.fields["service_id"] in listeners:
                take(message, source)
            else:
                self._pending.append((deadline, message, source))
