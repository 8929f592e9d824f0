"""The last guards of the loops: the thread behind passive sides, and the NIC process with its clients."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic.cli.serve import make_runtime
from rnic.nic_process import connections as connections_module
from rnic.nic_process.client import Client
from rnic.nic_process.process import NicProcess
from rnic.runtime.attach import ProcessConnection, ask, connect
from rnic.runtime.directory import ProcessError
from rnic.spec import attach
from rnic.spec.errors import VerbsError
from rnic.trace.guard import OWN_ERRORS
from rnic.verbs import Context

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="a NIC process needs Linux and Python 3.10")
OwnErrors = list[tuple[str, Exception]]
LogCapture = pytest.LogCaptureFixture
FREE_PORT = 0
SECONDS = 20.0


def until(ready: Callable[[], bool]) -> bool:
    """Wait for another thread."""
    end = time.monotonic() + SECONDS
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return True


class PlantedError(Exception):
    """A mistake of our own, made on purpose."""


class Served:
    """A NIC process in a thread of this one, so that mistakes can be planted in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process = NicProcess(directory, make_runtime)
        self._end = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._end:
            self.process.serve(idle_exit=0.0, spins=0)

    def connect(self) -> ProcessConnection:
        connection = connect(self.directory)
        assert connection is not None
        return connection

    def well(self) -> None:
        """A program that comes now gets all that it asks for."""
        with rnic.open("127.0.0.1", port=FREE_PORT, directory=self.directory) as ctx:
            assert ctx.query_port().state

    def close(self) -> None:
        self._end = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.process.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    tmp_path.chmod(0o700)
    made = Served(tmp_path)
    yield made
    made.close()


@pytest.fixture
def other(served: Served) -> Iterator[ProcessConnection]:
    """A program that is there before the mistake is made, and is served after it as well."""
    connection = served.connect()
    yield connection
    connection.request(attach.MSG_LIST)
    connection.close()


def broken(*args: object, **kwargs: object) -> None:
    raise PlantedError


def test_a_message_drops_its_client(
    served: Served, other: ProcessConnection, own_errors: OwnErrors, monkeypatch: pytest.MonkeyPatch, caplog: LogCapture
) -> None:
    victim = served.connect()
    with monkeypatch.context() as planted:
        planted.setitem(served.process.handlers.table, attach.MSG_LIST, broken)
        with pytest.raises(VerbsError) as caught:
            victim.request(attach.MSG_LIST)
    assert caught.value.errno == errno.ENODEV
    victim.close()
    assert [place for place, _ in own_errors] == ["message"]
    with rnic.open("127.0.0.1", port=FREE_PORT, directory=served.directory) as ctx:
        assert ask(served.directory, ctx.name, "counters")[OWN_ERRORS] == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert f"program {os.getpid()}" in record.message


def test_an_accept_drops_who_came(
    served: Served, other: ProcessConnection, own_errors: OwnErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(connections_module, "Client", broken)
        assert connect(served.directory) is None
    assert until(lambda: [place for place, _ in own_errors] == ["accept"])  # it is told when who came has gone
    served.well()


class Exhausted:
    """A listening socket whose first ``accept`` fails as told; everything else is the real one's."""

    def __init__(self, real: socket.socket, number: int) -> None:
        self._real = real
        self._failures = [number]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def accept(self) -> tuple[socket.socket, Any]:
        if self._failures:
            number = self._failures.pop()
            raise OSError(number, os.strerror(number))
        return self._real.accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_an_accept_for_which_the_system_has_nothing_left(
    served: Served, other: ProcessConnection, own_errors: OwnErrors, number: int
) -> None:
    """Whatever it lacks: who came is told, who is there is served, and the next one is taken up."""
    process = served.process
    real = process.acceptor.listener
    process.acceptor.listener = Exhausted(real, number)  # type: ignore[assignment]
    with pytest.raises(ProcessError, match=f"has no more descriptors .{os.strerror(number)}"):
        connect(served.directory)
    assert process.counters["accepts_without_descriptors"] == 1
    other.request(attach.MSG_LIST)
    served.connect().close()
    process.acceptor.listener = real
    assert own_errors == []
    served.well()


def test_a_doorbell_drops_its_client(
    served: Served, other: ProcessConnection, own_errors: OwnErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = rnic.open("127.0.0.1", port=FREE_PORT, directory=served.directory)
    with monkeypatch.context() as planted:
        planted.setattr(Client, "take_doorbells", broken)
        assert until(lambda: bool(own_errors))
        with pytest.raises(VerbsError) as caught:
            ctx.query_port()
    assert caught.value.errno == errno.ENODEV
    ctx.close()
    assert {place for place, _ in own_errors} == {"doorbell"}
    served.well()


@pytest.mark.parametrize(("name", "place"), [("_sleep_time", "turn"), ("_set_asleep", "turn")])
def test_a_turn_of_the_loop(
    served: Served,
    other: ProcessConnection,
    own_errors: OwnErrors,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    place: str,
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(served.process, name, broken)
        assert until(lambda: len(own_errors) > 1)
    assert {where for where, _ in own_errors} == {place}
    served.well()


def test_a_round_of_one_device(
    served: Served, other: ProcessConnection, own_errors: OwnErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rnic.open("127.0.0.1", port=FREE_PORT, directory=served.directory) as ctx:
        runtime = served.process.devices[ctx.name].runtime
        with monkeypatch.context() as planted:
            planted.setattr(runtime, "_round", broken)
            assert until(lambda: len(own_errors) > 1)
            ctx.query_port()
        assert {place for place, _ in own_errors} == {"round"}
        served.well()


def test_what_a_dropped_client_leaves(
    served: Served, other: ProcessConnection, own_errors: OwnErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of the way out is taken, whichever of them fail."""
    ctx = rnic.open("127.0.0.1", port=FREE_PORT, directory=served.directory, bypass=False)
    nic = served.process.devices[ctx.name].runtime.nic
    (client,) = [client for client in served.process.clients.values() if client.uar is not None]
    closed = []
    monkeypatch.setattr(nic, "unmap_uar", broken)
    monkeypatch.setattr(client.memory, "close", lambda: closed.append(True))
    before = len(served.process.clients)
    ctx.close()
    assert until(lambda: len(served.process.clients) == before - 1 and bool(closed))
    assert [place for place, _ in own_errors] == ["release"]


def test_the_thread_behind_passive_sides_goes_on(own_errors: OwnErrors, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(addr="127.0.0.1", port=0) as ctx:
        runtime = ctx.runtime

        def pending() -> bool:
            runtime.process_pending()
            return True

        runtime.start()
        with monkeypatch.context() as planted:
            planted.setattr(runtime, "_round", broken)
            assert until(lambda: pending() and len(own_errors) > 1)
        rounds: list[int] = []
        plain = runtime._round

        def counted(now: int) -> object:
            rounds.append(now)
            return plain(now)

        monkeypatch.setattr(runtime, "_round", counted)
        runtime.rest()
        assert until(lambda: pending() and bool(rounds))
        assert {place for place, _ in own_errors} == {"round"}
        assert ctx.nic.counters[OWN_ERRORS] == len(own_errors)
