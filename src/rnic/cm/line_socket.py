"""Lines of text over TCP, for out-of-band exchanges: rnic's own and those of rdma-core's examples."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator

from rnic.spec.errors import RnicError

MAX_LINE_BYTES = 1 << 20
DEFAULT_TIMEOUT_S = 10.0
_TOOK_NOTHING = "accepted no data for {:g} s; is it overloaded?"
_NO_LINE = "sent no whole line within {:g} s; is it an rnic listener?"


class ExchangeError(RnicError):
    """The exchange failed: the peer is absent, too slow, or sent malformed data. The message is one line."""


class LineSocket:
    """A TCP connection that carries lines.

    Args:
        sock: connected; owned from now on.
        where: name of the peer, for error messages.
    """

    def __init__(self, sock: socket.socket, where: str) -> None:
        self.sock = sock
        self.where = where
        self._rest = bytearray()
        self._searched = 0
        """Bytes of the rest already searched, which hold no newline."""
        self._pid = os.getpid()

    @contextlib.contextmanager
    def _errors(self, too_slow: str) -> Iterator[None]:
        """Turn errors of the socket into one :class:`ExchangeError`."""
        try:
            yield
        except TimeoutError:
            raise ExchangeError(f"{self.where} {too_slow}") from None
        except OSError as error:
            raise ExchangeError(f"{self.where} hung up: {error.strerror}") from None

    def _take_line(self) -> bytes | None:
        """Return the next line without its newline, or ``None`` if it is incomplete."""
        at = self._rest.find(b"\n", self._searched)
        if at < 0:
            self._searched = len(self._rest)
            if self._searched > MAX_LINE_BYTES:
                raise ExchangeError(f"{self.where} sent a line longer than {MAX_LINE_BYTES} bytes")
            return None
        line = bytes(self._rest[:at])
        del self._rest[: at + 1]
        self._searched = 0
        return line

    def _append(self, received: bytes) -> None:
        if not received:
            raise ExchangeError(f"{self.where} hung up before the exchange was done")
        self._rest += received

    def send(self, line: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Send one line, newline included; raise :class:`ExchangeError` if the peer is gone."""
        with self._errors(_TOOK_NOTHING.format(timeout_s)):
            self.sock.settimeout(timeout_s)
            self.sock.sendall(line)

    async def asend(self, line: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Run :meth:`send` on asyncio."""
        self.sock.setblocking(False)
        with self._errors(_TOOK_NOTHING.format(timeout_s)):
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_sendall(self.sock, line)

    def receive(
        self, timeout_s: float | None = DEFAULT_TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> bytes:
        """Receive one line, without its newline.

        Args:
            timeout_s: for the whole line, so that a slow peer cannot block the caller; ``None`` waits.
            clock: seconds; only differences count.

        Raises:
            ExchangeError: the line is too slow or too long, or the connection ended.
        """
        end = None if timeout_s is None else clock() + timeout_s
        with self._errors(_NO_LINE.format(timeout_s or 0)):
            while (line := self._take_line()) is None:
                left = None if end is None else end - clock()
                if left is not None and left <= 0:
                    raise TimeoutError
                self.sock.settimeout(left)
                with contextlib.suppress(TimeoutError):  # the loop checks the deadline
                    self._append(self.sock.recv(1 << 16))
        return line

    async def areceive(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """Run :meth:`receive` on asyncio."""
        loop = asyncio.get_running_loop()
        self.sock.setblocking(False)
        with self._errors(_NO_LINE.format(timeout_s)):
            async with asyncio.timeout(timeout_s):
                while (line := self._take_line()) is None:
                    self._append(await loop.sock_recv(self.sock, 1 << 16))
        return line

    def receive_bytes(self, size: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """Receive this many bytes, for exchanges without lines; raise as :meth:`receive` does."""
        end = time.monotonic() + timeout_s
        data = b""
        while len(data) < size:
            with self._errors(f"sent {len(data)} of {size} bytes within {timeout_s:g} s"):
                self.sock.settimeout(max(0.001, end - time.monotonic()))
                received = self.sock.recv(size - len(data))
            if not received:
                raise ExchangeError(
                    f"{self.where} hung up after {len(data)} of {size} bytes; is its number of queue pairs ours?"
                )
            data += received
        return data

    def close(self) -> None:
        """Close the connection, and wake a thread that waits for the peer; a second call does nothing.

        In a forked child the connection belongs to the parent, and stays open.
        """
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):  # either side may have closed it already
                # close() would not wake a thread in poll, which would keep the connection open while it waits
                self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def tcp_port(host: str, port: int | str, low: int) -> int:
    """Check a port given as a number or as digits, and return it as an int.

    Raises:
        ExchangeError: the port is not in ``low`` to 65535 (the kernel would truncate a larger number), or the host is
            not text, or contains a port.
    """
    if not isinstance(host, str):
        raise ExchangeError(f"cannot use host {host!r:.40}: give a name or an address as text, then the port")
    name, colon, digits = host.partition(":")
    if name and colon and digits.isascii() and digits.isdigit():
        raise ExchangeError(f"cannot use host {host}: give {name!r} and {digits} one after the other")
    number = int(port) if isinstance(port, str) and port.isascii() and port.isdigit() else port
    if type(number) is not int or not low <= number <= 0xFFFF:
        raise ExchangeError(f"cannot use {host} port {port}: a TCP port is a whole number from {low} to 65535")
    return number


@contextlib.contextmanager
def dialling(where: str, timeout_s: float) -> Iterator[None]:
    """Turn operating system errors while connecting into one :class:`ExchangeError`."""
    try:
        yield
    except ConnectionRefusedError:
        raise ExchangeError(f"nobody listens on {where}: start the listener first, or correct host and port") from None
    except TimeoutError:
        raise ExchangeError(f"{where} did not answer within {timeout_s:g} s: correct host and port") from None
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExchangeError(f"cannot reach {where}: {reason}") from None


def dial(host: str, port: int | str, timeout_s: float = DEFAULT_TIMEOUT_S) -> LineSocket:
    """Connect to a listener; raise :class:`ExchangeError` if it does not answer."""
    number = tcp_port(host, port, 1)
    where = f"{host} port {number}"
    with dialling(where, timeout_s):
        sock = socket.create_connection((host, number), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return LineSocket(sock, where)


def listen_socket(host: str, port: int | str) -> socket.socket:
    """Make a listening TCP socket; port 0 lets the kernel choose.

    Raises:
        ExchangeError: the address is bad, or the port is taken.
    """
    number = tcp_port(host, port, 0)
    where = f"{host} port {number}"
    try:
        info = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(info[0], info[1], info[2])
    except (OSError, UnicodeError, OverflowError) as error:
        raise ExchangeError(f"cannot listen on {where}: {getattr(error, 'strerror', None) or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(info[4])
        sock.listen(64)
    except (OSError, OverflowError) as error:
        sock.close()
        if getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            raise ExchangeError(
                f"cannot listen on TCP {where}: the address is not one of this machine; 127.0.0.1 always is"
            ) from None
        reason = getattr(error, "strerror", None) or error
        raise ExchangeError(
            f"cannot listen on TCP {where}: {reason}; give another port (0 lets the system choose)"
        ) from None
    return sock
