"""Write lines that explain failures to a program's user, to the stderr that the program has sent (EXPLAIN).

The NIC process must not wait for their reader. A thread writes them; a descriptor that blocks for a second gets no
more; and after the first lines of each kind, further ones are only counted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import threading
from collections import Counter, deque

from rnic.context.modify import TRANSITIONS
from rnic.nic_process.descriptor import Descriptor
from rnic.spec import commands as cmd
from rnic.spec.reasons import MOST_LINES, Reason

_WAIT_MS = 1_000
_MOST_WAITING = 4_096
"""Lines of all programs that may wait for the thread; more are dropped."""

_VERBS = {
    cmd.SW2HW_MPT: "ibv_reg_mr",
    cmd.HW2SW_MPT: "ibv_dereg_mr",
    cmd.ALLOC_MW: "ibv_alloc_mw",
    cmd.DEALLOC_MW: "ibv_dealloc_mw",
    cmd.SW2HW_CQ: "ibv_create_cq",
    cmd.HW2SW_CQ: "ibv_destroy_cq",
    cmd.RESIZE_CQ: "ibv_resize_cq",
    cmd.SW2HW_SRQ: "ibv_create_srq",
    cmd.HW2SW_SRQ: "ibv_destroy_srq",
    cmd.WRITE_MGM: "ibv_attach_mcast",
    cmd.QUERY_QP: "ibv_query_qp",
    cmd.QUERY_ADAPTER: "ibv_query_device",
}
_RESOURCE_VERBS = {
    cmd.RES_PD: ("ibv_alloc_pd", "ibv_dealloc_pd"),
    cmd.RES_QP: ("ibv_create_qp", "ibv_destroy_qp"),
    cmd.RES_CQ: ("ibv_create_cq", "ibv_destroy_cq"),
    cmd.RES_SRQ: ("ibv_create_srq", "ibv_destroy_srq"),
    cmd.RES_MPT: ("ibv_reg_mr", "ibv_dereg_mr"),
}


def verb_of(op: int, in_modifier: int, op_modifier: int) -> str:
    """Return the verb that a program called, given the command that its library sent."""
    if op == cmd.ALLOC_RES:
        return _RESOURCE_VERBS.get(in_modifier, ("ibv_open_device", ""))[0]
    if op == cmd.FREE_RES:
        return _RESOURCE_VERBS.get(op_modifier, ("", "ibv_close_device"))[1]
    return _VERBS.get(op, "ibv_modify_qp" if op in TRANSITIONS else "verbs")


class Lines:
    """The lines of one program.

    Args:
        writer: writes them.
        fd: where they are written; closed by the writer.
    """

    def __init__(self, writer: Writer, fd: Descriptor) -> None:
        self.fd = fd
        self.dead = False
        """True once a line could not be written; further ones are dropped."""
        self.closed = False
        self._writer = writer
        self._times: Counter[str] = Counter()

    def __call__(self, reason: Reason, line: str) -> None:
        """Write a line, or count it; do nothing once closed."""
        if self.closed:
            return
        times = self._times[reason.name] = self._times[reason.name] + 1
        if times <= MOST_LINES:
            self._writer.put(self, f"rnic: {line}\n")

    def close(self) -> None:
        """Write how many lines of each kind were left out, then close the descriptor."""
        for name, times in self._times.items():
            if times > MOST_LINES:
                self._writer.put(self, f"rnic: {times - MOST_LINES} more times: {name}\n")
        self.closed = True
        self._writer.put(self, "")


class Writer:
    """Writes the lines of all programs, in a thread that the first of them starts."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Lines, str]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def open(self, fd: int) -> Lines:
        """Return the lines of a program whose stderr ``fd`` is; the descriptor stays the caller's.

        Raises:
            OSError: it cannot be written to without waiting.
        """
        opened = Descriptor()
        lines = Lines(self, opened)
        opened.number = _open_anew(fd)
        return lines

    def put(self, lines: Lines, text: str) -> None:
        """Queue a line to be written; an empty text closes the descriptor."""
        with self._wake:
            if text and len(self._waiting) >= _MOST_WAITING:
                return
            if self._thread is None and (not text or not self._start()):
                if not text:  # the queue was empty
                    lines.fd.close()
                return
            self._waiting.append((lines, text))
            self._wake.notify()

    def _start(self) -> bool:
        """Start the thread. Return false if no thread can be started: the line is lost."""
        thread = threading.Thread(target=self._run, name="rnic explain", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def close(self) -> None:
        """Let the thread write the waiting lines, for a second at most."""
        if self._thread is not None:
            with self._wake:
                self._waiting.append((Lines(self, Descriptor()), ""))
                self._wake.notify()
            self._thread.join(_WAIT_MS / 1_000)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting:
                    self._wake.wait()
                lines, text = self._waiting.popleft()
            if lines.fd.number < 0:
                return
            if not text:
                lines.fd.close()
            elif not lines.dead:
                lines.dead = not _written(lines.fd.number, text.encode())


def _open_anew(fd: int) -> int:
    """Open the file of ``fd`` again, and return a descriptor whose writes never wait for a reader.

    Others use ``fd`` and expect it to block, so a pipe or a terminal is opened again.
    """
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) or stat.S_ISSOCK(found.st_mode):
        return os.dup(fd)
    if stat.S_ISFIFO(found.st_mode) or os.isatty(fd) or os.path.samestat(found, os.stat(os.devnull)):
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    raise OSError(errno.EINVAL, "EXPLAIN takes a file, a pipe, a socket or a terminal")


def _written(fd: int, data: bytes) -> bool:
    """Write one line, unless there is no room for it within a second."""
    poller = select.poll()
    with contextlib.suppress(OSError):
        poller.register(fd, select.POLLOUT)
        if poller.poll(_WAIT_MS):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as sock:
                    return sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) > 0
            return os.write(fd, data) > 0
    return False


__all__ = ["Lines", "Writer", "verb_of"]
