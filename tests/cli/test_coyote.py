"""``rnic coyote`` between two processes of this machine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rnic.testing import own_network

pytestmark = pytest.mark.slow
NET = own_network()
SERVER, CLIENT = f"{NET}.1", f"{NET}.2"


def start(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-W", "error", "-m", "rnic.cli", "coyote", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.create_server((SERVER, 0)) as sock:
        port = str(sock.getsockname()[1])
    process = start("--addr", SERVER, "--port", port, "--max-size", "20000", "--timeout", "10")
    assert process.stdout is not None
    assert process.stdout.readline() == f"waiting on {SERVER} TCP port {port}\n"
    yield process, port
    process.kill()
    process.communicate()


@pytest.mark.parametrize("operation", ["write", "read"])
def test_two_processes(server: tuple[subprocess.Popen[str], str], operation: str) -> None:
    process, port = server
    options = ("-X", "16384", "--runs", "2", "--json", "--operation", operation, "--vfid", "3")
    client = start(SERVER, "--addr", CLIENT, "--port", port, *options)
    said, errors = client.communicate(timeout=120)
    assert (client.returncode, errors) == (0, "")
    result = json.loads(said)
    assert result["checked"] is True
    assert [row["size"] for row in result["rows"]] == [64 << order for order in range(9)]
    assert result["counters"]["tlb_prefetched"] > 0
    assert result["counters"]["page_faults_refused"] == 0
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert said.startswith(f"{operation.upper()}, all data right; ")


def test_buffers_of_two_sizes(server: tuple[subprocess.Popen[str], str]) -> None:
    process, port = server
    client = start(SERVER, "--addr", CLIENT, "--port", port)
    _, errors = client.communicate(timeout=120)
    assert client.returncode == 1
    assert errors == ("rnic coyote: max_size=1048576: the smaller buffer has 20000 bytes, give both sides the same\n")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "hung up" in errors


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        ((SERVER, "--addr", CLIENT, "--port", "1"), 1, f"nobody listens on {SERVER} port 1"),
        (("--addr", "192.0.2.1"), 2, "192.0.2.1"),
        (("no such host",), 2, "SERVER"),
        ((SERVER, "--addr", CLIENT, "-x", "0"), 2, "--min-size"),
    ],
    ids=["nobody", "address", "host", "size"],  # the addresses are of this process
)
def test_errors_are_one_line(args: tuple[str, ...], status: int, words: str) -> None:
    process = start(*args)
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, said.count("\n") <= 1, errors.count("\n")) == (status, True, 1)
    assert words in errors
