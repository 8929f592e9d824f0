"""A program's connection to its user's NIC process: messages of :mod:`rnic.spec.attach`, and starting one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from errno import EMFILE, ENODEV
from pathlib import Path
from typing import Any

from rnic.link.own_fd import INTERPOSED, OwnFd
from rnic.runtime.directory import ProcessError
from rnic.spec import attach
from rnic.spec.errors import VerbsError

START_SECONDS = 60.0
"""Time that a newly started NIC process may take to answer; on an idle machine it takes a second."""
IDLE_EXIT = "RNIC_IDLE_EXIT"
"""Environment variable: seconds that a NIC process outlives its last program; 1 for one that was started here."""
_UCRED = struct.Struct("3i")
_ASK = struct.Struct("<II")
_ANSWER = struct.Struct("<III")
_MAX_DESCRIPTORS = 8
_EARLIER = 1 << 31
"""Half the token space. Tokens wrap: a token less than this behind another is the earlier one."""
_LOST = "this program has closed descriptors of the device: close only your own, and open the device again"
_NO_DESCRIPTORS = "this program has no descriptors left for what it asked for: raise `ulimit -n`"


class ProcessConnection:
    """One connection, after HELLO. It is thread-safe.

    Args:
        sock: connected to the NIC process.

    ``pid`` is that of the NIC process; ``slot`` is the program's bypass slot, whose arena each message lends.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._own = OwnFd(sock.fileno(), private=True, move=False)
        self.pid = 0
        self.ended = False
        self.slot: Any = None
        self._lock = threading.Lock()
        self._token = 0

    def request(
        self, kind: int, body: bytes = b"", fds: Sequence[int] = (), *, may_lack: bool = False
    ) -> tuple[bytes, list[int]]:
        """Send one message. Return the body of the answer and the descriptors that came with it.

        Args:
            may_lack: if this process has no room for the descriptors, return the answer without any.

        Raises:
            VerbsError: with the errno and the message of the NIC process; ENODEV if it has ended.
        """
        if self.slot is not None:
            return self._lend(kind, body, fds)
        with self._lock:
            if not self._own.valid():
                raise self.mark_ended()
            self._token = token = self._token + 1 & 0xFFFF_FFFF
            try:
                socket.send_fds(self.sock, [_ASK.pack(kind, token) + body], fds)
                data, got, flags = self._receive(token)
            except OSError as error:
                if error.errno is None:  # not from a system call: a signal handler raised it, such as TimeoutError
                    raise
                raise self.mark_ended() from error
        if len(data) < _ANSWER.size or _ANSWER.unpack_from(data)[:2] != (kind, token):
            _close_all(got)
            raise self.mark_ended()
        if flags & socket.MSG_CTRUNC:
            _close_all(got)
            got = []
            if not may_lack:
                raise VerbsError(EMFILE, _NO_DESCRIPTORS)
        code = _ANSWER.unpack_from(data)[2]
        rest = data[_ANSWER.size :]
        if code:
            _close_all(got)
            raise VerbsError(code, rest.decode(errors="replace"))
        return rest, got

    def post(self, kind: int, body: bytes) -> None:
        """Send one message, and do not wait for its answer, which is never read."""
        self._token += 1
        self.sock.send(_ASK.pack(kind, self._token) + body)

    def _receive(self, token: int) -> tuple[bytes, list[int], int]:
        """Receive the answer. Skip answers to earlier requests that a raising signal handler interrupted.

        The slot's messages do not need that: no handler runs between request and answer.
        """
        while True:
            data, got, flags, _ = socket.recv_fds(
                self.sock, attach.MAX_MESSAGE, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            if len(data) < _ANSWER.size or not 0 < token - _ANSWER.unpack_from(data)[1] & 0xFFFF_FFFF < _EARLIER:
                return data, got, flags
            _close_all(got)

    def _lend(self, kind: int, body: bytes, fds: Sequence[int]) -> tuple[bytes, list[int]]:
        """Send a message through the slot, which lends the arena until the answer arrives."""
        code, said, rest, got = self.slot.request(kind, bytes(body), list(fds))
        if not code:
            return rest, got
        if said:
            raise VerbsError(code, rest.decode(errors="replace"))
        if code == EMFILE:
            raise VerbsError(EMFILE, _NO_DESCRIPTORS)
        raise self.mark_ended()

    def alive(self) -> bool:
        """Return whether the NIC process still holds its end of the socket."""
        descriptor = self.sock.fileno()  # once: another thread may close it
        if descriptor < 0 or not self._own.valid() or (self.slot is not None and self.slot.lost):
            return False
        poller = select.poll()
        poller.register(descriptor, select.POLLRDHUP)
        return not poller.poll(0)

    def mark_ended(self) -> VerbsError:
        """Note that the NIC process has ended, and return the error to raise."""
        self.ended = True
        if (self.sock.fileno() >= 0 and not self._own.valid()) or (self.slot is not None and self.slot.lost):
            return VerbsError(ENODEV, _LOST)
        return VerbsError(ENODEV, f"NIC process {self.pid or ''} has ended: open the device again".replace("  ", " "))

    def close(self) -> None:
        """Close the connection: the NIC process then destroys all objects made over it."""
        if self.slot is not None:
            with contextlib.suppress(OSError):
                if self._own.valid():
                    self.sock.shutdown(socket.SHUT_RDWR)  # the slot has a descriptor of it too
            self.slot.close()
        self._close()

    def _close(self) -> None:
        if self._own.release():
            self.sock.close()
        else:
            self.sock.detach()  # the program has reused its number

    if INTERPOSED:  # elsewhere the socket closes itself; what a signal handler raises in __del__ is lost

        def __del__(self) -> None:
            if hasattr(self, "_own"):
                self._close()

    def forget(self) -> None:
        """Drop the connection in a forked child, without closing the parent's."""
        self._lock = threading.Lock()  # a thread that the child does not have may hold the old one
        if self.slot is not None:
            self.slot.forget()
        self._close()


def connect(directory: Path) -> ProcessConnection | None:
    """Connect to the NIC process of a runtime directory; ``None`` if none runs.

    Raises:
        ProcessError: it belongs to another user, or has another version.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.connect(str(directory / attach.SOCKET_NAME))
        uid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
        if uid != os.geteuid():
            raise ProcessError(f"the NIC process in {directory} is user {uid}'s: set RNIC_RUNTIME_DIR to one of yours")
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    connection = ProcessConnection(sock)
    try:
        greet(connection)
    except VerbsError as error:
        connection.close()
        if error.errno == ENODEV:
            return None
        raise ProcessError(str(error.strerror)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def hello() -> bytes:
    """Return the body of this program's HELLO."""
    return attach.HELLO.pack({"magic": attach.MAGIC, "version": attach.VERSION, "pid": os.getpid()})


def greet(connection: ProcessConnection) -> None:
    """Send HELLO; raise VerbsError if the NIC process refuses, or has ended."""
    answer, _ = connection.request(attach.MSG_HELLO, hello())
    connection.pid = attach.HELLO_REPLY.get(answer, "pid")


def started_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a NIC process that exits by itself once no program uses it."""
    return os.environ | {"RNIC_RUNTIME_DIR": str(directory), IDLE_EXIT: os.environ.get(IDLE_EXIT) or "1"}


def ended_at_once(directory: Path) -> ProcessError:
    """Return the error of a NIC process that did not start, with its last message."""
    with contextlib.suppress(OSError):
        words = (directory / "nic.log").read_text(errors="replace").strip().splitlines()
        if words:
            return ProcessError(f"the NIC process ended at once: {words[-1]}")
    return ProcessError(f"the NIC process ended at once, without a word in {directory / 'nic.log'}")


def start(directory: Path) -> ProcessConnection:
    """Start a NIC process that exits by itself once no program uses it, and connect to it.

    Raises:
        ProcessError: it ended at once (with its message), or does not answer.
    """
    import subprocess  # noqa: PLC0415 - `rnic exec` starts without it

    log = directory / "nic.log"
    command = [sys.executable, "-m", "rnic.cli", "serve", "--detach"]
    with log.open("wb") as out:
        try:
            # This child ends once the NIC process answers. The NIC process is not a child of the program, which may
            # wait for all of its children.
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=started_environment(directory),
                timeout=START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProcessError(f"the NIC process did not answer within {START_SECONDS:.0f} s; see {log}") from None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        connection = connect(directory)  # another NIC process may have started first
        if connection is not None:
            return connection
        if done.returncode:
            raise ended_at_once(directory)
        time.sleep(0.02)
    raise ProcessError(f"the NIC process does not answer; see {log}")


def ask(directory: Path, device: str, what: str) -> Any:
    """Ask the running NIC process for a view of one device (:func:`rnic.device.inspect.look`).

    Raises:
        ProcessError: no NIC process runs, or it refuses.
    """
    try:
        connection = connect(directory)
        if connection is None:
            raise ProcessError(f"no NIC process runs in {directory}: start one with rnic serve")
        with contextlib.closing(connection):
            _, fds = connection.request(attach.MSG_INFO, f"{device} {what}".encode())
    except VerbsError as error:
        raise ProcessError(str(error)) from None
    with os.fdopen(fds[0], "rb") as file:
        file.seek(0)
        return json.loads(file.read())


def fault(
    directory: Path, device: str, words: Sequence[object], rules: Sequence[Mapping[str, object]] = ()
) -> dict[str, Any]:
    """Inject a fault into a device of the running NIC process (:mod:`rnic.link.fault_events`), in words.

    Args:
        directory: runtime directory of the NIC process.
        device: name of the device; empty for the first.
        words: the event and its values in order; empty to only query active faults.
        rules: instead, rules for verbs that fail from now on (:mod:`rnic.link.verbs_faults`).

    Returns:
        The active faults; empty if the NIC process did not survive the event.

    Raises:
        ProcessError: no NIC process runs, or it refuses.
    """
    try:
        connection = connect(directory)
        if connection is None:
            raise ProcessError(f"no NIC process runs in {directory}: start one with rnic serve")
        with contextlib.closing(connection):
            body = json.dumps({"device": device, "event": list(words), "rules": list(rules)}).encode()
            state: dict[str, Any] = json.loads(connection.request(attach.MSG_FAULT, body)[0])
            return state
    except VerbsError as error:
        if error.errno == ENODEV and list(words) == ["kill"]:
            return {}
        raise ProcessError(str(error.strerror)) from None


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


__all__ = ["ProcessConnection", "connect", "ended_at_once", "greet", "hello", "start", "started_environment"]
