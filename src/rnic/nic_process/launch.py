"""Start a NIC process for a program: ``rnic exec`` makes its socket, and need not wait until it answers.

Programs that connect meanwhile wait in the backlog of that socket. The NIC process gets three descriptors: the lock of
its runtime directory, the socket, and the first program's connection, with messages already sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from rnic.nic_process.sysfs_view import TREE
from rnic.runtime.attach import (
    START_SECONDS,
    ProcessConnection,
    connect,
    ended_at_once,
    greet,
    hello,
    started_environment,
)
from rnic.runtime.directory import ProcessError
from rnic.spec import attach
from rnic.spec.errors import VerbsError

_BACKLOG = 64
_FIRST_FREE = 3
"""The first descriptor after the standard streams."""
_RETRY_S = 0.02
_MOST_DESCRIPTORS = 1 << 16


def launch(
    directory: Path, wanted: Sequence[Mapping[str, object]] = (), names: Sequence[str] = ()
) -> ProcessConnection | None:
    """Start the NIC process of a runtime directory. Return a connection to it at once; ``None`` if one is running or
    starting.

    Args:
        directory: the runtime directory.
        wanted: arguments of ADD for devices that it makes before it answers anything. If it refuses one, it exits; the
            next program that needs it starts it again and gets the reason.
        names: their names, for the view of the device paths.

    Raises:
        OSError: the socket cannot be made.
    """
    lock = os.open(directory / attach.LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.ExitStack() as handed:
        handed.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        path = directory / attach.SOCKET_NAME
        # left by a killed NIC process
        path.unlink(missing_ok=True)
        if (directory / TREE).exists():
            shutil.rmtree(directory / TREE, ignore_errors=True)
        listener = handed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handed.enter_context(theirs)
        connection = ProcessConnection(ours)
        try:
            if wanted:
                connection.post(attach.MSG_HELLO, hello())
            for each in wanted:
                connection.post(attach.MSG_ADD, json.dumps(each).encode())
            _spawn(directory, lock, listener, theirs, names)
        except BaseException:
            connection.close()
            raise
    return connection


def reach(directory: Path) -> ProcessConnection:
    """Connect to the NIC process of a runtime directory, and start it if none runs.

    Raises:
        ProcessError: it ended at once (with its message), or does not answer.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        connection = connect(directory)
        if connection is not None:
            return connection
        connection = launch(directory)
        if connection is None:  # another one is starting, or one is exiting
            time.sleep(_RETRY_S)
            continue
        try:
            connection.sock.settimeout(START_SECONDS)
            greet(connection)
            connection.sock.settimeout(None)
        except TimeoutError:
            connection.close()
            break
        except VerbsError:
            connection.close()
            raise ended_at_once(directory) from None
        except BaseException:
            connection.close()
            raise
        return connection
    raise ProcessError(f"the NIC process did not answer within {START_SECONDS:.0f} s; see {directory / 'nic.log'}")


def _spawn(directory: Path, lock: int, listener: socket.socket, first: socket.socket, names: Sequence[str]) -> None:
    """Run ``rnic serve`` with these descriptors, not as a child of this process, which becomes the program."""
    log = os.open(directory / "nic.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        child = os.fork()
        if not child:
            _become(directory, lock, listener, first, names, log)
        os.waitpid(child, 0)
    finally:
        os.close(log)


def _become(
    directory: Path, lock: int, listener: socket.socket, first: socket.socket, names: Sequence[str], log: int
) -> NoReturn:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        listener.listen(_BACKLOG)  # from now on programs see this process at the other end
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FIRST_FREE) for fd in (lock, listener.fileno(), first.fileno())]
        log = fcntl.fcntl(log, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
        null = fcntl.fcntl(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
        for standard, fd in enumerate((null, log, log)):
            os.dup2(fd, standard)
        # descriptors inherited from this process's parent, such as a pipe or a lock, belong to the program only
        for before, behind in pairwise([_FIRST_FREE - 1, *sorted(fds), _MOST_DESCRIPTORS]):
            os.closerange(before + 1, behind)
        command = [sys.executable, "-m", "rnic.cli", "serve", "--handed", ",".join(map(str, fds))]
        if names:
            command += ["--view", ",".join(names)]
        os.execve(command[0], command, started_environment(directory))
    finally:
        os._exit(127)


__all__ = ["launch", "reach"]
