"""Every message on the page on troubleshooting, produced by the mistake that the page names."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnic
from rnic import enums as e
from rnic.abi.library_paths import LIBRARIES
from rnic.testing import QpPair, own_network

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = [
    re.findall(r"`([^`]+)`", cell)
    for cell in re.findall(r"^\| ([^|]+)\|", PAGE, re.MULTILINE)
    if not cell.startswith(("message", "---"))
]

Mistake = Callable[[Path], object]
"""Makes the mistake in an empty directory: raises, or returns what was printed."""


@dataclasses.dataclass
class Ends:
    """Two ends of a connection in this process."""

    listener: rnic.Listener
    client: rnic.Connection
    server: rnic.Connection


@contextmanager
def ends(**options: Any) -> Iterator[Ends]:
    table, fixed = np.arange(10), np.arange(10)
    fixed.flags.writeable = False
    with ExitStack() as stack:
        listener = stack.enter_context(
            rnic.listen("127.0.0.1", 0, udp_port=0, share={"table": table, "fixed": fixed}, **options)
        )
        client = stack.enter_context(rnic.connect("127.0.0.1", listener.port, udp_port=0, **options))
        server = stack.enter_context(listener.accept())
        yield Ends(listener, client, server)


def on_a_connection(mistake: Callable[[Ends], object], **options: int) -> Mistake:
    def make(_folder: Path) -> object:
        with ends(**options) as both:
            return mistake(both)

    return make


def refused_by_the_peer(both: Ends) -> None:
    both.client.write(dataclasses.replace(both.client.remote["fixed"], writable=True), np.zeros(4, int))


def after_an_error(both: Ends) -> object:
    with pytest.raises(rnic.WorkCompletionError):
        refused_by_the_peer(both)
    return both.client.read("table")


def port_is_taken(_folder: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        rnic.Context(addr="127.0.0.1", port=other.getsockname()[1])


def nobody_listens(_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    rnic.connect("127.0.0.1", port, udp_port=0)


def nobody_accepts(_folder: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fill = [socket.socket() for _ in range(3)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            rnic.connect("127.0.0.1", listener.getsockname()[1], udp_port=0, timeout_s=0.2)
        finally:
            for one in fill:
                one.close()


def the_peer_is_killed(_folder: Path) -> object:
    code = (
        "import numpy, rnic, time\n"
        "listener = rnic.listen(port=0, udp_port=0, share={'table': numpy.arange(10)})\n"
        "print(listener.port, flush=True)\n"
        "peer = listener.accept()\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        with rnic.connect("127.0.0.1", int(child.stdout.readline()), udp_port=0) as peer:
            child.kill()
            child.wait()
            return peer.read("table")


def no_receive_and_few_retries(_folder: Path) -> None:
    with QpPair(attributes={"rnr_retry": 1}) as pair:
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.a.expect()


def no_receive(_folder: Path) -> None:
    with QpPair() as pair:
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.a.wait()


def never_moved(_folder: Path) -> None:
    with QpPair() as pair:
        pair.a.qp.modify(rnic.QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        pair.a.wait()


def two_ip_versions(_folder: Path) -> None:
    with rnic.Context(addr="::1", port=0) as six, rnic.listen("127.0.0.1", 0, context=six) as listener:
        rnic.connect("127.0.0.1", listener.port, udp_port=0)


def misspelt(_folder: Path) -> None:
    rnic.QPAttr().min_rnr_time = 12  # type: ignore[attr-defined]


def command(*args: str, **environment: str) -> Mistake:
    """A command line, in the directory, with a runtime directory of its own."""

    def make(folder: Path) -> object:
        runtime = folder / "runtime"
        runtime.mkdir(mode=int(environment.pop("mode", "700"), 8))
        (folder / "plain").write_text("no program and no capture")
        env = {**os.environ, "RNIC_RUNTIME_DIR": str(runtime), **environment}
        line = [sys.executable, "-m", "rnic.cli", *args]
        done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return done.stderr

    return make


def cannot_be_started(folder: Path) -> object:
    """Both ways."""
    if not (LIBRARIES / "libibverbs.so.1").exists():
        pytest.skip("rnic exec needs the C library, which was not built here")
    said = ""
    for what in ("nosuchprogram", "./plain"):
        place = folder / what.strip("./")
        place.mkdir()
        said += str(command("exec", "--addr", f"{NET}.41", "--", what)(place))
    return said


WITHOUT_AMARANTH = "import sys; sys.modules['amaranth'] = None; from rnic.cli import main; main()"


def without_amaranth(folder: Path) -> object:
    line = [sys.executable, "-c", WITHOUT_AMARANTH, "gateware", "run"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120, check=False).stderr


def attached_to_nothing(folder: Path) -> object:
    """By a program of a NIC process, so that one is there."""
    if not (LIBRARIES / "libibverbs.so.1").exists():
        pytest.skip("rnic exec needs the C library, which was not built here")
    trace = (sys.executable, "-m", "rnic.cli", "trace", "--attach", "999999")
    return command("exec", "--addr", f"{NET}.43", "--", *trace)(folder)


def without_a_gid(folder: Path) -> object:
    """The client of a server that answers with what it was told, so that no two programs have to find each other."""
    if not (LIBRARIES / "libibverbs.so.1").exists():
        pytest.skip("rnic exec needs the C library, which was not built here")
    if shutil.which("ibv_rc_pingpong") is None:
        pytest.skip("ibv_rc_pingpong is not installed (ibverbs-utils)")
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        listener.settimeout(20)

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(sock.recv(1 << 10))
                sock.recv(1 << 10)

        answered = thread.submit(answer)
        port = str(listener.getsockname()[1])
        client = ("ibv_rc_pingpong", "-p", port, "127.0.0.1")
        said = command("exec", "--addr", f"{NET}.44", "--", *client)(folder)
        answered.result()
        return said


RULE = '[{"every": 50, "action": "dorp"}]'
MISTAKES: dict[str, Mistake] = {
    "is taken: give another port": port_is_taken,
    "nobody listens on": nobody_listens,
    "did not answer within": nobody_accepts,
    "RETRY_EXC_ERR": the_peer_is_killed,
    "RNR_RETRY_EXC_ERR": no_receive_and_few_retries,
    "this end posts no receives": on_a_connection(lambda both: both.client.recv(1), receives=0),
    "RNR NAKs: the peer has no receive posted": no_receive,
    "nobody moved it to RTS": never_moved,
    "REM_ACCESS_ERR": on_a_connection(refused_by_the_peer),
    "the connection is broken since an earlier error": on_a_connection(after_an_error),
    "shares no": on_a_connection(lambda both: both.client.read("tabel")),
    "for reading only": on_a_connection(lambda both: both.client.write("fixed", np.zeros(4, int))),
    "convert it, or give casting": on_a_connection(lambda both: both.client.write("table", np.zeros(4, np.float32))),
    "give a whole number": on_a_connection(lambda both: both.client["table"][1.5]),  # type: ignore[index]
    "is longer than the": on_a_connection(lambda both: both.client.send(bytes(1000)), message_bytes=100),
    "use addresses of one IP version": two_ip_versions,
    "no NIC process runs in": command("qp"),
    "Failed to modify QP to RTR": without_a_gid,
    "is missing, since rnic was installed without a C compiler": command(
        "exec", "--", "true", RNIC_LIBRARIES="/nowhere"
    ),
    "has no attribute": misspelt,
    "is open to other users": command("qp", mode="755"),
    "the gateware needs Amaranth": without_amaranth,
    "was not found": cannot_be_started,
    "action is 'dorp'; allowed: one of": command("serve", "--addr", f"{NET}.42", "--faults", RULE),
    "cannot be written": command("perf", "write_bw", "--plot", "none/such.png"),
    "not a capture file": command("check", "plain"),
    "no such program or queue pair": attached_to_nothing,
}


def test_every_row_has_its_mistake() -> None:
    assert [row[0] for row in ROWS] == list(MISTAKES)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:30])
def test_message(row: list[str], tmp_path: Path) -> None:
    try:
        said = str(MISTAKES[row[0]](tmp_path))
    except (rnic.RnicError, AttributeError, TimeoutError) as error:
        said = str(error)
    assert [words for words in row if words not in said] == [], said
