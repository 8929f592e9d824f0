"""Clients of a listener that have connected but not sent their line: limited per address and in total."""

from __future__ import annotations

import contextlib
import socket
import threading

from rnic.cm.line_socket import LineSocket

MAX_OF_ADDRESS = 128
"""Most half-open clients of one address. Programs that start together are fewer: each opens its device first."""
MAX_HALF_OPEN = 512
"""Most half-open clients of all addresses."""


class HalfOpen:
    """The half-open clients of one listener. If there are too many, the newest is dropped to admit the next.

    Clients that never finish their line do not lock out others: each address has its own limit, and a new client of
    the same address has its entry long enough to send a line.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, list[LineSocket]] = {}
        self._reasons: dict[LineSocket, str] = {}

    def admit(self, lines: LineSocket, address: str) -> None:
        """Count a client, and drop another if that exceeds a limit."""
        with self._lock:
            clients = self._clients.setdefault(address, [])
            if len(clients) >= MAX_OF_ADDRESS:
                self._let_go(address, f"{MAX_OF_ADDRESS} clients of {address} have not sent their line yet")
            elif sum(map(len, self._clients.values())) >= MAX_HALF_OPEN:
                most = max(self._clients, key=lambda each: len(self._clients[each]))
                self._let_go(most, f"{MAX_HALF_OPEN} clients have not sent their line yet")
            clients.append(lines)

    def leave(self, lines: LineSocket, address: str) -> str | None:
        """Stop counting a client: its line has come, or never will. Return why it was dropped, if it was."""
        with self._lock:
            clients = self._clients.get(address, [])
            if lines in clients:
                clients.remove(lines)
            if not clients:
                self._clients.pop(address, None)
            return self._reasons.pop(lines, None)

    def _let_go(self, address: str, reason: str) -> None:
        lines = self._clients[address].pop()
        self._reasons[lines] = f"{reason}: this one made room for the next; try again"
        with contextlib.suppress(OSError):  # the client has closed the connection
            lines.sock.shutdown(socket.SHUT_RD)  # wakes the wait for its line; the reason can still be sent
