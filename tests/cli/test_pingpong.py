"""``rnic pingpong`` between two processes on loopback, its data, and its errors."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rnic.cli import main
from rnic.cli.peer import PeerError, listen
from rnic.cli.pingpong_data import PAGE, Data, DataError, Echo, Streams, Unchecked

COMMAND = (sys.executable, "-m", "rnic.cli", "pingpong")


@contextmanager
def started(*args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_port(server: subprocess.Popen[str]) -> int:
    """The TCP port that a server of our own mode names."""
    assert server.stdout is not None
    for line in server.stdout:
        found = re.search(r"TCP port (\d+)", line)
        if found:
            return int(found[1])
    raise AssertionError("the server ended before it listened")


def outputs(server: subprocess.Popen[str], *client: str) -> tuple[str, str]:
    """What client and server say; both must end well."""
    done = subprocess.run([*COMMAND, *client], capture_output=True, text=True, timeout=120, check=False)
    said = server.communicate(timeout=120)[0]
    assert done.returncode == 0, done.stdout + done.stderr + said
    assert server.returncode == 0, said
    return done.stdout, said


def free_udp_port() -> str:
    """One that is free on both addresses of a pair."""
    while True:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second,
        ):
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.2", port))
                return str(port)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.parametrize(
    ("addr", "options"),
    [
        ("127.0.0.1", ["-s", "20000", "-e"]),
        ("::1", ["-s", "3001", "-m", "4096"]),
        ("::1", ["--connection", "UC", "-s", "9000"]),
        ("127.0.0.1", ["--connection", "UD", "-s", "4096"]),
        ("127.0.0.1", ["--srq", "-q", "5", "-r", "20"]),
    ],
)
def test_two_processes(addr: str, options: list[str]) -> None:
    both = ["-n", "50", *options, "--addr", addr]
    with started("-p", "0", "--udp-port", "0", *both) as server:
        port = wait_for_port(server)
        client, said = outputs(server, "-p", str(port), *both, addr)
    for output in (client, said):
        assert re.search(r"^\d+ bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec$", output, re.M)
        assert re.search(r"^50 iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter$", output, re.M)
    mine = re.findall(r"local address:  (LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID \S+)", client)
    theirs = re.findall(r"remote address: (LID.*)", said)
    assert mine == theirs
    assert len(mine) == (5 if "--srq" in options else 1)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["-m", "4096"], ["--srq"]])
def test_compat_with_itself(options: list[str]) -> None:
    both = ["--compat", "ibv", "-p", str(free_port()), "-n", "60", "-c", "--udp-port", free_udp_port(), *options]
    with started("--addr", "127.0.0.1", *both) as server:
        assert server.stdout is not None
        server.stdout.readline()
        time.sleep(0.1)
        client, _ = outputs(server, "--addr", "127.0.0.2", "--json", *both, "127.0.0.1")
    figures = json.loads(client)
    assert figures["checked"] is True
    assert figures["bytes"] == 2 * 60 * 4096


@pytest.mark.slow
def test_peer_that_dies_is_an_error_and_no_hang() -> None:
    with started("-p", "0", "--udp-port", "0", "-n", "1000000") as server:
        port = wait_for_port(server)
        with started("-p", str(port), "-n", "1000000", "127.0.0.1") as client:
            assert server.stdout is not None
            assert "remote address" in server.stdout.readline()
            server.send_signal(signal.SIGKILL)
            said = client.communicate(timeout=120)[0]
            assert client.returncode == 1
            assert "rnic pingpong: peer" in said.splitlines()[-1]


@pytest.mark.slow
def test_different_options_are_named_on_both_sides() -> None:
    with started("-p", "0", "--udp-port", "0", "-s", "100") as server:
        port = wait_for_port(server)
        done = subprocess.run(
            [*COMMAND, "-p", str(port), "-s", "200", "127.0.0.1"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = server.communicate(timeout=120)[0]
    assert (done.returncode, server.returncode) == (1, 1)
    assert "size is 100 here and 200 at the peer" in said
    assert "size is 100 here and 200 at the peer" in done.stderr


def test_port_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(PeerError) as caught:
            listen("127.0.0.1", port)
    assert str(caught.value).startswith(f"TCP port {port} of 127.0.0.1 cannot be used (")
    assert str(caught.value).endswith("): choose another with --port")


def test_udp_port_taken_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        monkeypatch.setattr("sys.argv", ["rnic", "pingpong", "--udp-port", str(port)])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"UDP port {port} on 127.0.0.1 is taken" in error
    assert "--udp-port" in error


@pytest.mark.slow
def test_ibv_peer_that_dies_is_an_error_and_no_hang() -> None:
    """There is no TCP line then: the retries run out."""
    both = ["--compat", "ibv", "-p", str(free_port()), "-n", "1000000", "--udp-port", free_udp_port(), "--timeout", "3"]
    with started("--addr", "127.0.0.1", *both) as server:
        assert server.stdout is not None
        server.stdout.readline()
        time.sleep(0.1)
        with started("--addr", "127.0.0.2", *both, "127.0.0.1") as client:
            assert "remote address" in server.stdout.readline()
            server.send_signal(signal.SIGKILL)
            said = client.communicate(timeout=120)[0]
    assert client.returncode == 1
    assert "RETRY_EXC_ERR" in said or "nothing came from the peer for 3 s" in said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-s", "0"], "0 is not in the range 1<=x"),
        (["-m", "1000"], "'1000' is not one of '256'"),
        (["--connection", "XX"], "'XX' is not one of 'RC', 'UC', 'UD'"),
        (["--compat", "xrc"], "'xrc' is not 'ibv'"),
        (["-n", "x"], "'x' is not a whole number"),
        (["--srq", "--connection", "UC"], "UC has no ping-pong"),
        (["-q", "4"], "4 queue pairs need --srq"),
        (["--srq", "-s", "1000000000"], "use 1 to 1"),
        (["--addr", "nowhere"], "'nowhere' is not an IPv4 or IPv6 address"),
        (["--udp-port", "0", "-g", "9"], "GID index 9: this port has 0 to 0"),
        (["--udp-port", "0", "--connection", "UD", "-s", "5000"], "fits the port's MTU of 4096"),
        (["-y"], "No such option"),
    ],
)
def test_bad_arguments(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["rnic", "pingpong", *args])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


# ------------------------------------------------------------------------------------------------ data


def send(data: Data, size: int, queue: int = 0) -> memoryview:
    out = memoryview(bytearray(size))
    data.fill(queue, out)
    return out


def flipped(message: memoryview) -> memoryview:
    other = bytearray(message)
    other[-1] ^= 1
    return memoryview(other)


def test_streams_agree_and_notice_one_bit() -> None:
    a, b = Streams("x", "y", 2), Streams("y", "x", 2)
    first = send(a, 100, queue=1)
    b.check(1, first)
    second = send(a, 100, queue=1)
    assert second != first
    with pytest.raises(DataError, match="byte 99 is"):
        b.check(1, flipped(second))


def test_echo_as_client_wants_its_last_message_back() -> None:
    echo = Echo(random.Random(1), 1, serving=False)
    sent = [send(echo, 3 * PAGE) for _ in range(2)]
    assert sent[0] != sent[1]
    assert not any(sent[0][::PAGE])
    echo.check(0, sent[1])
    with pytest.raises(DataError, match="byte"):
        echo.check(0, sent[0])


def test_echo_as_server_of_an_ibv_client() -> None:
    echo = Echo(random.Random(1), 1, serving=True)
    start = send(Unchecked(), 5000)
    start[0] = start[PAGE] = 0
    echo.check(0, start)
    sent = send(echo, 5000)
    echo.check(0, sent)
    with pytest.raises(DataError, match="byte 4999"):
        echo.check(0, flipped(sent))


def test_echo_as_server_of_our_client_gives_back_what_came() -> None:
    client, server = Echo(random.Random(1), 1, serving=False), Echo(random.Random(2), 1, serving=True)
    for _ in range(3):
        server.check(0, send(client, 5000))
        client.check(0, send(server, 5000))
    bad = send(client, 5000)
    bad[PAGE] = 1
    with pytest.raises(DataError, match="first byte of a page"):
        server.check(0, bad)


def test_echo_with_one_buffer_for_many_queue_pairs() -> None:
    echo = Echo(random.Random(1), 3, serving=True)
    start = send(Unchecked(), 100)
    echo.check(0, start)
    sent = send(echo, 100)
    assert send(echo, 100, queue=1) == sent
    mixed = memoryview(bytearray(sent[:50]) + bytearray(start[50:]))
    echo.check(1, mixed)
    with pytest.raises(DataError, match="byte 99"):
        echo.check(2, flipped(mixed))
    with pytest.raises(DataError, match="byte 50"):
        echo.check(1, mixed)
