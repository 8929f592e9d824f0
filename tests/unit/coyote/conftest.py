"""Two hosts with a Coyote thread each, on UDP between two loopback addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rnic.cm.line_socket import ExchangeError
from rnic.coyote.thread import CThread
from rnic.testing import own_network

NET = own_network()
SERVER, CLIENT = f"{NET}.1", f"{NET}.2"


def free_port() -> int:
    with socket.create_server((SERVER, 0)) as sock:
        return int(sock.getsockname()[1])


class Beside(threading.Thread):
    """Runs a function beside the test; :meth:`result` gives its value or raises its exception."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error

    def result(self) -> Any:
        self.join(30)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._value


class Hosts:
    """Server and client, connected by ``initRDMA`` with buffers of ``size`` bytes."""

    def __init__(self, size: int = 1 << 16, **settings: Any) -> None:
        self.port = free_port()
        self.server = CThread(1, device=SERVER, timeout=60, **settings)
        self.client = CThread(2, device=CLIENT, timeout=60, **settings)
        accepted = Beside(lambda: self.server.initRDMA(size, self.port, timeout=60))
        self.client_memory = connect(self.client, self.port, size)
        self.server_memory = accepted.result()

    def close(self) -> None:
        # the client hangs up first, as in Coyote: the server waits for it
        self.client.close()
        self.server.close()


def connect(client: CThread, port: int, size: int, **settings: Any) -> memoryview:
    """Connect to a server that may not listen yet."""
    for _ in range(6000):  # waits: for the server to listen
        try:
            return client.initRDMA(size, port, SERVER, **settings)
        except ExchangeError as error:
            if "nobody listens" not in str(error):
                raise
            threading.Event().wait(0.005)
    raise AssertionError("the server does not listen")


@pytest.fixture
def settings() -> dict[str, Any]:
    """Settings of both threads; a test may say others."""
    return {}


@pytest.fixture
def hosts(settings: dict[str, Any]) -> Iterator[Hosts]:
    made = Hosts(**settings)
    yield made
    made.close()
