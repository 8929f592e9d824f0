"""``rnic exec --explain``: a program makes the typical mistakes, and a line says of each what is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.testing import own_network
from tests.abi.test_verbs_check import build

pytestmark = pytest.mark.slow
NET = own_network()
SOURCE = Path(__file__).with_name("reasons.c")
PAGE = Path(__file__).parents[2] / "docs/errors.md"
BUGS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `(\w[^|]+: [^|]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
"""The manual's typical bugs, and the line of each."""

VERBS = (
    "ibv_query_gid: GID index 7: this port has 0 to 0",
    "ibv_modify_qp: INIT lacks IBV_QP_ACCESS_FLAGS (mask 0x31)",
    "ibv_modify_qp: INIT does not take IBV_QP_TIMEOUT (mask 0x239)",
    "ibv_modify_qp: queue pair QPN cannot go from RESET to RTR",
    "ibv_modify_qp: port 2: this device has port 1 only",
    "ibv_modify_qp: path_mtu=7: use 1 to 5",
    "ibv_modify_qp: GID index 7: this port has 0 to 0",
    "ibv_modify_qp: is_global is 0: RoCE reaches peers by GID alone",
    "ibv_modify_qp: dest_qp_num is 0: that is no queue pair of a program",
    "ibv_modify_qp: peer GID fe00::ffff:HEX:HEX is not of this port's IP version",
    "ibv_modify_qp: min_rnr_timer=44 has more than 5 bits: 12 is taken, as Soft-RoCE does",
    "ibv_post_send: queue pair QPN is not in RTS yet: sends cannot be posted",
    "ibv_post_recv: queue pair QPN is in RESET: receives can be posted from INIT on",
    "ibv_post_send: 64 bytes inline are more than max_inline_data=32",
    "ibv_post_send: num_sge=2 is more than max_send_sge=1",
    "ibv_post_send: send queue of 255 is full: poll completions first",
    "ibv_post_recv: receive queue of 4 is full: poll completions first",
    "ibv_reg_mr: access=0x2 lets peers write: add IBV_ACCESS_LOCAL_WRITE",
    "ibv_reg_mr: 8192 bytes at VA are not all mapped and writable",
    "ibv_reg_mr: length=0: a memory region has at least one byte",
    "ibv_create_qp: max_send_sge=1000: use 0 to 32",
    "ibv_create_cq: cqe=0: use 1 to 4194303",
    "ibv_create_ah: is_global is 0: RoCE reaches peers by GID alone",
    "ibv_destroy_cq: CQ CQN is in use by 2 work queues, queue pair QPN's among them: destroy them first",
    "ibv_dealloc_pd: protection domain 0x1 is in use by 2 objects, queue pair QPN among them: destroy them first",
)
"""What is said of verbs that are refused."""

WRITE = "WRITE of 64 bytes to VA: "
RESPONDER = (
    f"{WRITE}R_Key KEY is not a key of this NIC",
    f"{WRITE}beyond its region by 16 bytes",
    f"{WRITE}R_Key KEY is of a region that lacks REMOTE_WRITE",
    "READ of 64 bytes from VA: the queue pair lacks REMOTE_READ in its qp_access_flags",
    "READ of 64 bytes from VA: R_Key KEY is of another protection domain",
    f"{WRITE}R_Key KEY is of memory that was deregistered",
    "SEND: the message is longer than its receive of 8 bytes",
    "WRITE of 2048 bytes to VA: a packet of 2048 bytes, where this end's path_mtu is 1024",
)
"""What the responder's end says: the requester's says the same, since one NIC process serves both."""

OTHER_PSN = "PSN 0x123456 is not the expected 0x0, and nothing came before it"
OTHERS = (
    f"{WRITE}L_Key KEY is not a key of this NIC",
    "SEND: no receive is posted: an RNR NAK lets the peer wait",
    "SEND of 64 bytes: the peer had no receive posted, 1 times (rnr_retry)",
    f"{WRITE}queue pair 0xabcdef of ADDRESS did not answer 2 sendings: there is no such queue pair",
    OTHER_PSN,
    f"{WRITE}queue pair QPN of ADDRESS did not answer 2 sendings: {OTHER_PSN}",
    "a datagram of queue pair QPN was dropped: its Q_Key 0x11111112 is not this end's 0x11111111",
    "datagram of 64 bytes: no receive is posted: it is dropped",
    "a datagram of 64 bytes and the 40 before it do not fit a receive of 64 bytes",
    "CQ CQN is full: its 127 entries wait to be polled",
)


def pattern(line: str) -> str:
    """A line with its numbers left out."""
    text = re.escape(line)
    for name in ("QPN", "CQN", "VA", "KEY"):
        text = re.sub(rf"\b{name}\b", "0x[0-9a-f]+", text)
    return text.replace("ADDRESS", r"[0-9.]+").replace("HEX", "[0-9a-f]+")


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that makes them all."""
    return build(SOURCE, libraries, tmp_path_factory.mktemp("reasons"))


def pattern_of_example(line: str) -> str:
    """A line of the manual with the numbers left out that each run has others of."""
    text = re.sub(r"\b(queue pair|R_Key) 0x[0-9a-f]+", r"\1 KEY", line)
    return pattern(re.sub(r"\b(to|from) 0x[0-9a-f]+", r"\1 VA", text))


def run(program: Path, env: dict[str, str], *options: str, host: int = 86) -> list[str]:
    """Lines on stderr of the program under `rnic exec`."""
    command = [sys.executable, "-m", "rnic.cli", "exec", *options, "--addr", f"{NET}.{host}", "--", str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_each_mistake_has_its_line(program: Path, mode: dict[str, str]) -> None:
    lines = run(program, mode, "--explain")
    wanted = [rf"rnic: {pattern(line)}" for line in VERBS]
    wanted += [rf"rnic: queue pair 0x[0-9a-f]+: {pattern(line)}" for line in (*RESPONDER, *OTHERS)]
    for line in RESPONDER:
        about, _, why = line.partition(": ")
        what = about.replace("SEND", "SEND of 64 bytes")
        wanted.append(rf"rnic: queue pair 0x[0-9a-f]+: {pattern(what)}: REM_\w+: .*{pattern(why)}")
    missing = [each for each in wanted if not any(re.fullmatch(each, line) for line in lines)]
    assert not missing, "\n".join([*missing, "", *lines])
    known = [line for line in lines if any(re.fullmatch(each, line) for each in wanted)]
    assert sorted(known) == sorted(lines)


@pytest.fixture(scope="module")
def said(program: Path, module_env: dict[str, str]) -> list[str]:
    """What a person sees of all mistakes."""
    return run(program, module_env, "--explain", host=84)


def test_the_manual_has_seventeen_bugs() -> None:
    assert len(BUGS) == 17


@pytest.mark.parametrize(("bug", "line"), BUGS, ids=[bug for bug, _ in BUGS])
def test_a_bug_has_the_line_of_the_manual(said: list[str], bug: str, line: str) -> None:
    wanted = f"rnic: {pattern_of_example(line)}"
    assert any(re.fullmatch(wanted, each) for each in said), "\n".join([bug, wanted, "", *said])


@pytest.mark.parametrize(
    ("option", "terminal", "on"),
    [("--explain", False, "1"), ("", True, "1"), ("", False, "0"), ("--quiet", True, "0")],
)
def test_it_is_on_where_somebody_reads_it(env: dict[str, str], option: str, terminal: bool, on: str) -> None:
    reading, writing = os.openpty() if terminal else os.pipe()
    options = [*filter(None, [option]), "--addr", f"{NET}.87", "--udp-port", "0"]
    command = [sys.executable, "-m", "rnic.cli", "exec", *options, "--", "sh", "-c", "echo $RNIC_EXPLAIN"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=writing, text=True, timeout=60, check=True)
    os.close(reading)
    os.close(writing)
    assert done.stdout.split() == [on]


def test_quiet_is_quiet(program: Path, mode: dict[str, str]) -> None:
    assert run(program, mode, "--quiet") == []
    assert run(program, mode) == []  # its stderr is no terminal


@pytest.mark.parametrize("part", ["objects", "use"])
def test_no_refusal_is_a_bare_number(libraries: Path, env: dict[str, str], tmp_path: Path, part: str) -> None:
    made = build(SOURCE.with_name("refusals.c"), libraries, tmp_path)
    command = [sys.executable, "-m", "rnic.cli", "exec", "--explain", "--addr", f"{NET}.85", "--", str(made), part]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"((?:^rnic: .*\n)*)^== (.*): (-?\d+)$", done.stderr, re.MULTILINE)
    assert len(rows) > 20
    assert [name for why, name, error in rows if not why or error == "0"] == []
