"""The programs of examples/ run as they stand."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


@pytest.fixture
def store() -> Iterator[str]:
    port = str(free_port())
    command = [sys.executable, "-u", str(EXAMPLES / "kvstore.py"), "serve", "--port", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving 1024 records")
        yield port
        server.terminate()


def test_key_value_store(store: str) -> None:
    assert run("kvstore.py", "get", "colour", "--port", store).stdout == "no such key\n"
    assert run("kvstore.py", "put", "colour", "blue", "--port", store).returncode == 0
    assert run("kvstore.py", "put", "colour", "green", "--port", store).returncode == 0
    assert run("kvstore.py", "get", "colour", "--port", store).stdout == "green\n"


def test_writers_of_one_record_never_mix(store: str) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import kvstore, rnic
with rnic.connect("127.0.0.1", {store}) as peer:
    for step in range(40):
        kvstore.Store(peer).put("key", sys.argv[1] * 100)
        value = kvstore.Store(peer).get("key")
        assert len(set(value)) == 1 and len(value) == 100, value
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, letter]) for letter in "abc"]
    assert [writer.wait(50) for writer in writers] == [0, 0, 0]


def test_asyncio_server() -> None:
    done = run("asyncio_server.py", "--clients", "5", "--rounds", "10")
    assert done.stdout == "50 answers to 5 clients\n", done.stderr


def test_pyverbs_pingpong() -> None:
    port = str(free_port())
    command = [sys.executable, str(EXAMPLES / "pyverbs_pingpong.py"), "--port", port, "--rounds", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        client = run("pyverbs_pingpong.py", "127.0.0.1", "--port", port, "--rounds", "50")
        said = server.communicate(timeout=50)[0]
    for text in (client.stdout, said):
        assert re.fullmatch(r"50 round trips of 64 bytes, \d+ us each\n", text), client.stderr


def test_pytest_with_losses() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "test_with_losses.py")], capture_output=True, text=True, timeout=50, check=False
    )
    assert "7 passed" in done.stdout, done.stdout + done.stderr
