"""Network services, TCP/IP (a heading of 003): the shell's TCP interfaces, served by the kernel's TCP sockets.

A shell listens and connects with requests. A notification tells it that data has arrived; it asks for the data, and
gets it as a stream. It announces data to send, and streams the data once the status says that there is room. Nothing
here waits: sockets are non-blocking, and one round of :meth:`TcpService.progress` does what can be done now.

Limits apply to sessions, listening ports, bytes received and to be sent per session, and entries in each stream to the
shell. If a shell does not read, TCP's window stops the peer.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Sequence
from errno import EINPROGRESS, EINVAL
from typing import Final

from rnic.link.beats import Beat, Reassembler, to_beats
from rnic.rings import coyote as c
from rnic.spec.errors import VerbsError
from rnic.spec.layout import Layout
from rnic.trace.counters import Counters

MAX_SESSIONS: Final = 256
MAX_PORTS: Final = 64
BUFFER_BYTES: Final = 1 << 16
"""Buffer of each session in each direction, in bytes."""
MAX_WAITING: Final = 1024
"""Most entries that wait in one stream to the shell; further requests are not taken."""
MAX_BEATS: Final = 1 << 14
"""Most beats that wait for the shell; no more data is delivered beyond that."""
MAX_PACKAGE: Final = (1 << 16) - 1
OK, NO_SESSION, NO_ROOM = range(3)
"""Values of ``error`` in ``tcp_tx_stat``."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Session:
    """One connection: received bytes, how many of them the shell was notified of, and bytes to send."""

    __slots__ = (
        *("address", "arrived", "asked", "closing", "connecting", "eof"),
        *("granted", "port", "sid", "sock", "told", "unsent"),
    )

    def __init__(self, sid: int, sock: socket.socket, address: int, port: int, connecting: bool) -> None:
        self.sid = sid
        self.sock = sock
        self.address = address
        self.port = port
        self.connecting = connecting
        self.arrived = bytearray()
        self.told = 0
        self.asked: deque[int] = deque()
        self.unsent = bytearray()
        self.granted = 0
        self.eof = False
        self.closing = False


class TcpService:
    """The TCP interfaces of a shell.

    Args:
        address: local IPv4 address.
        counters: gets ``tcp_*``.

    Requests are the methods. They return false, and do nothing, if the service is not ready for one.
    Streams to the shell are :attr:`tcp_listen_rsp`, :attr:`tcp_open_rsp`, :attr:`tcp_notify`, :attr:`tcp_rx_meta` with
    :attr:`axis_tcp_rx`, and :attr:`tcp_tx_stat`.
    """

    def __init__(self, address: str, counters: Counters | None = None) -> None:
        self.address = address
        self.counters = Counters() if counters is None else counters
        self.tcp_listen_rsp: deque[bytes] = deque()
        self.tcp_open_rsp: deque[bytes] = deque()
        self.tcp_notify: deque[bytes] = deque()
        self.tcp_rx_meta: deque[bytes] = deque()
        self.axis_tcp_rx: deque[Beat] = deque()
        self.tcp_tx_stat: deque[bytes] = deque()
        self._selector = selectors.DefaultSelector()
        self._ports: dict[int, socket.socket] = {}
        self._sessions: dict[int, _Session] = {}
        self._next_sid = 1
        self._to_send: deque[tuple[int, int]] = deque()
        """Sessions and lengths of granted packages, in the order in which their data comes."""
        self._tx = Reassembler(self.counters, MAX_PACKAGE)

    # ---------------------------------------------------------------------------------- requests

    def tcp_listen_req(self, data: bytes) -> bool:
        """Listen on a port; the answer comes in :attr:`tcp_listen_rsp`. A port that is open stays so."""
        port = _unpack(c.TCP_LISTEN_REQ, data)["port"]
        if len(self.tcp_listen_rsp) >= MAX_WAITING:
            return False
        self.tcp_listen_rsp.append(c.TCP_LISTEN_RSP.pack({"success": int(self._listen(port))}))
        return True

    def _listen(self, port: int) -> bool:
        if port in self._ports:
            return True
        if not port or len(self._ports) >= MAX_PORTS:
            return False
        try:
            sock = socket.create_server((self.address, port), backlog=64)
        except OSError:
            self.counters.bump("tcp_listen_failed")
            return False
        sock.setblocking(False)
        self._ports[port] = sock
        self._selector.register(sock, _READ, port)
        return True

    def tcp_open_req(self, data: bytes) -> bool:
        """Connect to a peer; the answer comes in :attr:`tcp_open_rsp` once that succeeds or fails."""
        asked = _unpack(c.TCP_OPEN_REQ, data)
        if len(self.tcp_open_rsp) + self._connecting() >= MAX_WAITING:
            return False
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM) if len(self._sessions) < MAX_SESSIONS else None
        if sock is None:
            self._opened(0, False, asked["ip_address"], asked["ip_port"])
            return True
        sock.setblocking(False)
        try:
            sock.bind((self.address, 0))
            error = sock.connect_ex((_dotted(asked["ip_address"]), asked["ip_port"]))
        except OSError as failure:
            error = failure.errno or EINVAL
        if error not in (0, EINPROGRESS):
            sock.close()
            self.counters.bump("tcp_open_failed")
            self._opened(0, False, asked["ip_address"], asked["ip_port"])
            return True
        session = self._add(sock, asked["ip_address"], asked["ip_port"], connecting=True)
        self._watch(session)
        return True

    def tcp_close_req(self, data: bytes) -> bool:
        """Close a session once its data has been sent; ignore and count an unknown session."""
        session = self._sessions.get(_unpack(c.TCP_CLOSE_REQ, data)["sid"])
        if session is None:
            self.counters.bump("tcp_unknown_sessions")
        else:
            session.closing = True
            self._flush(session)
        return True

    def tcp_rd_pkg(self, data: bytes) -> bool:
        """Ask for bytes announced by a notification; they come in :attr:`tcp_rx_meta` and :attr:`axis_tcp_rx`."""
        asked = _unpack(c.TCP_RD_PKG, data)
        session = self._sessions.get(asked["sid"])
        if session is None:
            self.counters.bump("tcp_unknown_sessions")
            return True
        if len(session.asked) >= MAX_WAITING:
            return False
        if asked["len"]:
            session.asked.append(asked["len"])
            self._give(session)
        return True

    def tcp_tx_meta(self, data: bytes) -> bool:
        """Announce bytes to send; :attr:`tcp_tx_stat` says whether they may come now."""
        asked = _unpack(c.TCP_TX_META, data)
        if len(self.tcp_tx_stat) >= MAX_WAITING or len(self._to_send) >= MAX_WAITING:
            return False
        sid, length = asked["sid"], asked["len"]
        session = self._sessions.get(sid)
        room, error = 0, NO_SESSION
        if session is not None and not (session.connecting or session.closing):
            room = BUFFER_BYTES - len(session.unsent) - session.granted
            error = OK if length <= room else NO_ROOM
        if error == OK and session is not None and length:
            session.granted += length
            room -= length
            self._to_send.append((sid, length))
        said = {"sid": sid, "len": length, "remaining_space": room, "error": error}
        self.tcp_tx_stat.append(c.TCP_TX_STAT.pack(said))
        return True

    def axis_tcp_tx(self, beats: Sequence[Beat]) -> None:
        """Take data: one package per granted announcement, in order, the last beat with ``last``.

        If a package's length differs from its announcement, drop it whole and close its session: the stream would be
        wrong from there on.
        """
        for beat in beats:
            package = self._tx.push(beat)
            if not beat.last:
                continue
            if not self._to_send:
                self.counters.bump("tcp_tx_unasked")
                continue
            sid, length = self._to_send.popleft()
            session = self._sessions.get(sid)
            if session is None:
                continue
            session.granted -= length
            if package is None or len(package) != length:
                self.counters.bump("tcp_tx_wrong_length")
                self._end(session)
                continue
            session.unsent += package
            self._flush(session)

    # ----------------------------------------------------------------------------------- driving

    def progress(self, timeout_s: float = 0.0) -> bool:
        """Do one round over the sockets, waiting at most ``timeout_s`` for the first; return true if any was ready."""
        events = self._selector.select(timeout_s)
        for key, mask in events:
            owner = key.data
            if isinstance(owner, int):
                self._accept(owner)
                continue
            if owner.connecting:
                self._connected(owner)
                continue
            if mask & _READ:
                self._receive(owner)
            if mask & _WRITE and owner.sid in self._sessions:
                self._flush(owner)
        for session in list(self._sessions.values()):
            self._give(session)
            self._tell(session)
        return bool(events)

    def close(self) -> None:
        """Close every port and session."""
        for session in list(self._sessions.values()):
            self._end(session)
        for sock in self._ports.values():
            sock.close()
        self._ports.clear()
        self._selector.close()

    @property
    def sessions(self) -> int:
        """Number of sessions that are open or being opened."""
        return len(self._sessions)

    # ----------------------------------------------------------------------------------- helpers

    def _connecting(self) -> int:
        return sum(session.connecting for session in self._sessions.values())

    def _add(self, sock: socket.socket, address: int, port: int, *, connecting: bool) -> _Session:
        while self._next_sid in self._sessions or not self._next_sid:
            self._next_sid = self._next_sid + 1 & 0xFFFF
        session = self._sessions[self._next_sid] = _Session(self._next_sid, sock, address, port, connecting)
        self._next_sid = self._next_sid + 1 & 0xFFFF
        self._selector.register(sock, _WRITE if connecting else _READ, session)
        return session

    def _opened(self, sid: int, success: bool, address: int, port: int) -> None:
        said = {"sid": sid, "success": int(success), "ip_address": address, "ip_port": port}
        self.tcp_open_rsp.append(c.TCP_OPEN_RSP.pack(said))

    def _accept(self, port: int) -> None:
        if len(self._sessions) >= MAX_SESSIONS or len(self.tcp_notify) >= MAX_WAITING:
            self.counters.bump("tcp_accept_stalls")  # the peers wait in the kernel's backlog
            return
        try:
            sock, peer = self._ports[port].accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._notify(self._add(sock, _number(peer[0]), port, connecting=False), 0)

    def _connected(self, session: _Session) -> None:
        error = session.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._opened(session.sid if not error else 0, not error, session.address, session.port)
        if error:
            self.counters.bump("tcp_open_failed")
            self._end(session)
            return
        session.connecting = False
        session.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session.port = session.sock.getsockname()[1]
        self._watch(session)

    def _receive(self, session: _Session) -> None:
        room = BUFFER_BYTES - len(session.arrived)
        if room:
            try:
                got = session.sock.recv(room)
            except BlockingIOError:
                return
            except OSError:
                self.counters.bump("tcp_resets")
                got = b""
            session.eof = not got
            session.arrived += got
            self.counters.bump("tcp_rx_bytes", len(got))
        self._give(session)
        self._watch(session)

    def _tell(self, session: _Session) -> None:
        """Notify the shell of new data, and, after all data, of the end."""
        while session.told < len(session.arrived) and len(self.tcp_notify) < MAX_WAITING:
            length = min(len(session.arrived) - session.told, MAX_PACKAGE)
            session.told += length
            self._notify(session, length)
        ended = session.eof and session.told == len(session.arrived) and not session.connecting
        if ended and len(self.tcp_notify) < MAX_WAITING and session.port >= 0:
            self._notify(session, 0, closed=True)
            session.port = -1  # notified once

    def _notify(self, session: _Session, length: int, closed: bool = False) -> None:
        said = {"sid": session.sid, "len": length, "ip_address": session.address, "dst_port": session.port}
        self.tcp_notify.append(c.TCP_NOTIFY.pack(said | {"closed": int(closed)}))

    def _give(self, session: _Session) -> None:
        """Deliver the data that the shell has asked for and that has arrived."""
        while (
            session.asked
            and session.told >= session.asked[0]
            and len(self.tcp_rx_meta) < MAX_WAITING
            and len(self.axis_tcp_rx) < MAX_BEATS
        ):
            length = session.asked.popleft()
            data = bytes(session.arrived[:length])
            del session.arrived[:length]
            session.told -= length
            self.tcp_rx_meta.append(c.TCP_RX_META.pack({"sid": session.sid}))
            self.axis_tcp_rx.extend(to_beats(data))
        self._watch(session)

    def _flush(self, session: _Session) -> None:
        """Pass unsent data to the kernel; close the session if that was asked for and nothing is left."""
        if session.unsent and not session.connecting:
            try:
                sent = session.sock.send(session.unsent)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.counters.bump("tcp_resets")
                session.unsent.clear()
                session.eof = True
                sent = 0
            del session.unsent[:sent]
            self.counters.bump("tcp_tx_bytes", sent)
        if session.closing and not session.unsent and not session.granted:
            self._end(session)
        else:
            self._watch(session)

    def _watch(self, session: _Session) -> None:
        """Watch the session's socket for the events that it can handle now."""
        if session.sid not in self._sessions:
            return
        mask = _WRITE if session.unsent or session.connecting else 0
        if not session.eof and not session.connecting and len(session.arrived) < BUFFER_BYTES:
            mask |= _READ
        known = self._selector.get_map().get(session.sock)
        if known is None:
            if mask:
                self._selector.register(session.sock, mask, session)
        elif not mask:
            self._selector.unregister(session.sock)
        elif known.events != mask:
            self._selector.modify(session.sock, mask, session)

    def _end(self, session: _Session) -> None:
        del self._sessions[session.sid]
        if session.sock in self._selector.get_map():
            self._selector.unregister(session.sock)
        session.sock.close()


def _unpack(layout: Layout, data: bytes) -> dict[str, int]:
    if len(data) != layout.size:
        raise VerbsError(EINVAL, f"{layout.name} has {layout.size} bytes, not {len(data)}")
    return layout.unpack(data)


def _dotted(address: int) -> str:
    return socket.inet_ntoa(address.to_bytes(4, "big"))


def _number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address), "big")
