"""Python's connections by CM between processes: in-process NICs, the NIC process, and programs on librdmacm."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rnic
from rnic.runtime.attach import fault
from rnic.testing import own_network

pytestmark = pytest.mark.slow
NET = own_network()
SERVER, CLIENT = f"{NET}.91", f"{NET}.92"
ADVERTISED = struct.Struct(">QII")
"""What rping says of a buffer: address, key, bytes. What it is answered is of the same size, and says nothing."""

RPING_BYTES = 64
"""Of its buffers, unless it is told otherwise."""

ECHO = f"""
    import sys, rnic
    attached = sys.argv[1] == "attached"
    ctx = rnic.open({SERVER!r}) if attached else None
    with rnic.cm_listen({SERVER!r}, 0, context=ctx) as listener:
        print(listener.port, flush=True)
        with listener.accept(20, b"hello") as peer:
            try:
                while True:
                    peer.send(peer.recv(20)[::-1])
            except rnic.PeerClosedError:
                pass
        listener.get_request(20).reject(b"enough")
"""


@contextmanager
def process(code: str, env: dict[str, str], *args: str) -> Iterator[subprocess.Popen[str]]:
    """A script in a process of its own."""
    child = subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "-c", textwrap.dedent(code), *args],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("ours", ["attached", "in-process"])
@pytest.mark.parametrize("theirs", ["attached", "in-process"])
def test_two_processes(env: dict[str, str], monkeypatch: pytest.MonkeyPatch, ours: str, theirs: str) -> None:
    monkeypatch.setenv("RNIC_RUNTIME_DIR", env["RNIC_RUNTIME_DIR"])
    with process(ECHO, env, theirs) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        ctx = rnic.open(CLIENT) if ours == "attached" else rnic.Context(addr=CLIENT)
        with ctx:
            with rnic.cm_connect(SERVER, port, context=ctx) as peer:
                assert peer.private.rstrip(b"\0") == b"hello"
                for message in (b"stressed", bytes(range(200)) * 100):
                    peer.send(message)
                    assert peer.recv(20) == message[::-1]
                peer.disconnect()
            with pytest.raises(rnic.CmRejectedError, match="reason 28") as said:
                rnic.cm_connect(SERVER, port, context=ctx)
            assert said.value.private.rstrip(b"\0") == b"enough"


def test_the_nic_process_is_killed(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits hears of it in one line."""
    monkeypatch.setenv("RNIC_RUNTIME_DIR", env["RNIC_RUNTIME_DIR"])
    with rnic.open(SERVER) as ctx, rnic.cm_listen(context=ctx) as listener:
        fault(Path(env["RNIC_RUNTIME_DIR"]), "", ["kill"])
        with pytest.raises(rnic.VerbsError, match="has ended") as said:
            listener.get_request(20)
        assert "\n" not in str(said.value)


def rping(env: dict[str, str], *options: str, address: str) -> subprocess.Popen[str]:
    if shutil.which("rping") is None:
        pytest.skip("rping is not installed: apt-get install rdmacm-utils")
    return subprocess.Popen(
        [sys.executable, "-m", "rnic.cli", "exec", "--addr", address, "--", "rping", *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(program: subprocess.Popen[str]) -> None:
    try:
        said, _ = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode == 0, said


def test_python_serves_an_rping_client(env: dict[str, str]) -> None:
    """Its ping is read from where it says, and written back to where it says then; it checks the data itself."""
    with rnic.cm_listen(SERVER) as listener:
        client = rping(env, "-c", "-a", SERVER, "-p", str(listener.port), "-C", "5", "-V", address=CLIENT)
        pings = []
        with listener.accept(20) as peer:
            try:
                while True:
                    address, key, size = ADVERTISED.unpack(peer.recv(20))
                    pings.append(bytes(peer.read(address, key, size)))
                    peer.send(bytes(ADVERTISED.size))
                    address, key, size = ADVERTISED.unpack(peer.recv(20))
                    peer.write(address, key, pings[-1])
                    peer.send(bytes(ADVERTISED.size))
            except rnic.PeerClosedError:
                pass
        end(client)
    assert [ping[:14] for ping in pings] == [b"rdma-ping-%d: %c" % (number, 65 + number) for number in range(5)]


def test_python_is_the_client_of_an_rping_server(
    env: dict[str, str], listening: Callable[[subprocess.Popen[str]], None]
) -> None:
    server = rping(env, "-s", "-a", SERVER, "-C", "3", "-V", address=SERVER)
    try:
        listening(server)
        with rnic.cm_connect(SERVER, 7174, addr=CLIENT, timeout_s=20) as peer:
            for number in range(3):
                ping = (b"rdma-ping-%d: " % number + bytes(range(65, 91)) * 2)[: RPING_BYTES - 1] + b"\0"
                source, sink = peer.register(ping, writable=False), peer.register(bytearray(len(ping)))
                for region in (source, sink):
                    peer.send(ADVERTISED.pack(region.buf, region.rkey, len(ping)))
                    assert len(peer.recv(20)) == ADVERTISED.size
                assert bytes(sink.buffer) == ping
            peer.disconnect(20)
    finally:
        end(server)
