"""``rnic conform`` and ``rnic vectors``: in simulation, live over UDP against rnic's own agent, and their errors."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from rnic.cli.conform import conform
from rnic.cli.vectors import vectors
from rnic.conform.report_file import read_report
from rnic.testing import own_network
from tests.attempts import every_valid

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

AGENT, TESTER = f"{NET}.131", f"{NET}.132"


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(conform, [str(arg) for arg in args])


def test_in_simulation_with_every_report(tmp_path: Path) -> None:
    junit, html = tmp_path / "x.xml", tmp_path / "x.html"
    result = run("--simulated", "-k", "gap*", "-k", "icrc", "--junit", junit, "--html", html)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[-1] == "6 pass, 0 fail"
    assert "IBA 9.7.5.2" in result.stdout.splitlines()
    assert len(ElementTree.parse(junit).getroot().findall("testcase")) == 6
    assert html.read_text().count("<details>") == 12
    path = tmp_path / "report.json"
    made = json.loads(run("--simulated", "--suite", "unreliable", "--json", "--report", path).stdout)
    assert made["counts"]["pass"] == len(made["results"]) == 11
    assert json.loads(path.read_text()) == made
    assert read_report(path).name == "rnic at simulation"


def test_listing_and_showing() -> None:
    lines = run("--list").stdout.splitlines()
    assert any(line.startswith("duplicate-atomic ") and "IBA 9.7.5.1.4" in line for line in lines)
    shown = run("--show", "-k", "icrc").stdout
    assert "    > WRITE_ONLY psn=0 ackreq at=M len=4 icrc=bad [4 a]\n    < nothing\n" in shown


def test_the_list_as_json() -> None:
    listed = json.loads(run("--list", "--json", "--suite", "responder").stdout)
    assert {tuple(each) for each in listed} == {("suite", "name", "clause", "says")}
    atomic = next(each for each in listed if each["name"] == "duplicate-atomic")
    assert (atomic["suite"], atomic["clause"]) == ("responder", "IBA 9.7.5.1.4")
    (shown,) = json.loads(run("--show", "--json", "-k", "icrc").stdout)
    assert "> WRITE_ONLY psn=0 ackreq at=M len=4 icrc=bad [4 a]\n< nothing" in shown["script"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "give PEER, or --simulated"),
        (("127.0.0.1",), "give --addr, the address of this machine"),
        (("127.0.0.1", "--addr", "127.0.0.1", "--qp", "5:7"), "--qp needs --va and --rkey"),
        (("127.0.0.1", "--addr", "127.0.0.1", "--qp", "x", "--va", "1", "--rkey", "1"), "give QPN:PSN"),
        (("--simulated", "-k", "no-such"), "no test matches"),
        (("127.0.0.1", "--addr", TESTER, "--agent-port", "9"), "start an agent there"),
    ],
)
def test_wrong_arguments(args: tuple[str, ...], says: str) -> None:
    result = run(*args)
    assert result.exit_code != 0
    assert says in result.stderr


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def agent() -> Iterator[int]:
    """rnic's own agent in a process of its own; the TCP port on which it listens."""
    port = free_port()
    words = [sys.executable, "-m", "rnic.cli", "conform", "--agent", "--addr", AGENT, "--agent-port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert f"listens on TCP port {port}" in process.stdout.readline()
        yield port
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_live_against_rnic(agent: int) -> None:
    chosen = (
        "write-several@1024",
        "send-only",
        "duplicate-atomic",
        "gap-once",
        "icrc",
        "key-tag",
        "xrc-rnr",
        "out-xrc-send",
    )
    words = [word for name in chosen for word in ("-k", name)]
    result = run(AGENT, "--addr", TESTER, "--agent-port", str(agent), *words)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[-1] == f"{len(chosen)} pass, 0 fail"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["rnr", "out-rnr"])
def test_live_against_rnic_where_times_are_judged(agent: int, script: str) -> None:
    """Within some 15 ms."""

    def attempt() -> None:
        result = run(AGENT, "--addr", TESTER, "--agent-port", str(agent), "-k", script)
        assert result.exit_code == 0, result.stdout
        assert result.stdout.splitlines()[-1] == "1 pass, 0 fail"

    every_valid(attempt, limit_ms=5, why="a packet that leaves or is seen too late fails the script")


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/infiniband/verbs.h").exists(),
    reason="the C agent needs a compiler and libibverbs-dev",
)
def test_the_agent_for_other_devices_compiles_and_serves_under_exec(tmp_path: Path) -> None:
    source = tmp_path / "agent.c"
    source.write_text(run("--agent-source").stdout)
    program = tmp_path / "conform-agent"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, source, "-o", program, "-libverbs"], check=True)
    port = str(free_port())
    words = [
        sys.executable,
        "-m",
        "rnic.cli",
        "exec",
        "--addr",
        f"{NET}.133",
        "--",
        str(program),
        "rnic0",
        "0",
        port,
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert f"listens on TCP port {port}" in first, first
        hang_up_and_ask_for_much(int(port))
        chosen = [
            *("write-only", "send-several@512", "fetch-add", "rnr", "key-tag", "out-read", "ud-receive", "uc-write"),
            *("xrc-send", "xrc-memory", "xrc-other-domain", "xrc-fetch-add", "out-xrc-queues", "out-xrc-read"),
        ]
        names = [word for name in chosen for word in ("-k", name)]
        result = run(f"{NET}.133", "--addr", f"{NET}.134", "--agent-port", port, *names)
        assert result.stdout.splitlines()[-1] == f"{len(chosen)} pass, 0 fail", result.stdout + result.stderr
    finally:
        process.terminate()
        process.communicate()


def hang_up_and_ask_for_much(port: int) -> None:
    """Testers that read no answer, and one that names what no device has."""
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(b"bytes S 0 262144\n" * 20)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(b"open service=RC mtu=18446744073709551615 gid=0 access=rwa\npoll\n")
        answers = b""
        while answers.count(b"\n") < 2:
            answers += sock.recv(1 << 16)
    assert answers.endswith(b"ok none\n"), answers


def test_vectors(tmp_path: Path) -> None:
    result = CliRunner().invoke(vectors, ["--out", str(tmp_path / "v"), "-k", "gap*"])
    assert result.output == f"{tmp_path / 'v'}: 5 tests\n"
    assert sorted(path.suffix for path in (tmp_path / "v" / "responder").glob("gap.*")) == [".hex", ".json", ".pcapng"]
    assert "no test matches" in CliRunner().invoke(vectors, ["--out", str(tmp_path), "-k", "x"]).output
