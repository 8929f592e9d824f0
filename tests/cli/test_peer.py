"""The local address that a client leaves from where it was given none."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys

import pytest

from rnic.cli.peer import towards
from rnic.cm.line_socket import ExchangeError
from rnic.testing import own_network

RNIC = [sys.executable, "-m", "rnic.cli"]


def test_it_is_the_one_that_the_system_sends_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert towards("127.0.0.1", 9) == ("127.0.0.1", "127.0.0.1")
    elsewhere = f"{own_network()}.88"
    assert towards(elsewhere, 9) == ("127.0.0.1", elsewhere)
    both = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 9, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 9)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: both)
    assert towards("localhost", 9) == ("127.0.0.1", "127.0.0.1"), "listeners are there"


def test_no_such_host_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ExchangeError, match=r"^cannot reach nowhere port 9: Name or service not known$"):
        towards("nowhere", 9)
    with pytest.raises(ExchangeError, match=r"^cannot use host nowhere:9: give 'nowhere' and 9 one after the other$"):
        towards("nowhere:9", 9)


@pytest.mark.slow
@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize("command", ["pingpong", "rclink", "perf send_lat"])
def test_clients_need_no_address_of_their_own(command: str) -> None:
    """With 127.0.0.1, which they took, a client cannot reach ::1."""
    listening = [*RNIC, *command.split(), "--addr", "::1", "-p", "0"]
    listening += ["--listen"] if command.startswith("perf") else ["-n", "50"]
    with subprocess.Popen([*listening, "--udp-port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = next(filter(None, (re.search(r"TCP port (\d+)", line) for line in server.stdout)))
            client = [*RNIC, *command.split(), "-p", found[1], "-n", "50", "--json", "::1"]
            done = subprocess.run(client, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)
            server.communicate(timeout=120)
        finally:
            server.kill()
