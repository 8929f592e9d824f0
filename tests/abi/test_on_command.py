"""Verbs that fail on command, in a C program under ``rnic exec``: by the NIC process, and by the library."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rnic
from rnic import enums as e
from rnic.link.verbs_faults import LibraryFaults, parse_verbs_rules
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError
from rnic.spec import verbs_faults as spec
from rnic.testing import NicFaults, own_network
from rnic.verbs.attrs import QPAttr, QPCap, QPInitAttr
from rnic.verbs.cq import CQ
from rnic.verbs.memory import PD
from rnic.verbs.qp import QP
from tests.abi.test_verbs_check import build

pytestmark = pytest.mark.slow
NET = own_network()
SOURCE = Path(__file__).with_name("on_command.c")

RULES: list[dict[str, object]] = [
    {"verb": "open_device", "nth": 1, "action": "fail", "errno": "ENODEV"},
    {"verb": "create_qp", "nth": 2, "action": "fail", "errno": "ENOMEM"},
    {"verb": "reg_mr", "match": {"length": [65_536, None]}, "action": "fail", "errno": "E2BIG"},
    {"verb": "create_cq", "nth": 3, "action": "fail", "errno": "EAGAIN"},
    {"verb": "query_device", "nth": 2, "action": "fail", "errno": "EPERM"},
    {"verb": "post_recv", "probability": 0.3, "seed": 7, "action": "fail"},
    {"verb": "post_send", "match": {"opcode": "RDMA_*"}, "nth": 2, "action": "fail", "errno": "EBUSY"},
    {"verb": "poll_cq", "action": "limit", "entries": 1},
    {"verb": "poll_cq", "match": {"opcode": "RDMA_WRITE"}, "nth": 3, "action": "late", "delay": "30ms"},
    {"verb": "poll_cq", "nth": 4, "action": "status", "status": "RETRY_EXC_ERR"},
]
MANY, ERR, RETRY_EXC = 400, 6, 12


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SOURCE, libraries, tmp_path_factory.mktemp("on_command"))


@pytest.mark.parametrize("bypass", [True, False])
def test_each_verb_as_its_rule_says(program: Path, env: dict[str, str], bypass: bool) -> None:
    options = [f"--{'' if bypass else 'no-'}bypass", "--explain", "--faults", json.dumps(RULES)]
    command = [sys.executable, "-m", "rnic.cli", "exec", *options, "--", str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs this program's data path" not in done.stderr, "rules for verbs alone leave it where it is"
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["open_device"] == f"open_device {errno.ENODEV} 0"
    assert lines["create_qp"] == f"create_qp 0 {errno.ENOMEM} 0"
    assert "reg_mr small 0 0" in done.stdout
    assert f"reg_mr large {errno.E2BIG} {errno.E2BIG}" in done.stdout
    assert lines["create_cq"] == f"create_cq 0 {errno.EAGAIN}", "one was there before"
    assert lines["query_device"] == f"query_device 0 {errno.EPERM}"
    assert lines["post_send"] == f"post_send 0 {errno.EBUSY} 0"
    assert lines["at"] == "at a time 1"
    _, status, waited = lines["late"].split()
    assert status == "0"
    assert int(waited) >= 30_000
    assert lines["status"] == f"status {RETRY_EXC} state {ERR}"
    assert lines["extended"] == f"extended 0 0 0 {RETRY_EXC} 1"
    assert "rnic: ibv_create_qp: fails with ENOMEM on command (fault rule 2)" in done.stderr

    _, qpn, *refused = map(str, lines["post_recv"].split())
    faults = LibraryFaults(parse_verbs_rules(RULES))
    python = [at for at in range(MANY) if faults.post(spec.VERB_POST_RECV, int(qpn)) is not None]
    assert [int(at) for at in refused] == python, "C and Python decide alike"
    assert 80 < len(python) < 160


def test_an_event_that_a_verb_sets_off(program: Path, env: dict[str, str]) -> None:
    rules = [{"verb": "alloc_pd", "nth": 1, "action": "fatal"}]
    command = [sys.executable, "-m", "rnic.cli", "exec", "--quiet", "--faults", json.dumps(rules), "--", str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "open_device 0 0\n")
    assert "rnic: " not in done.stderr, "the verb itself went on"
    assert done.stderr.endswith(": cq\n"), "nothing can be made of a device that has failed"


READS_LINES = """
import sys
import rnic
from rnic.spec.errors import VerbsError
from rnic.verbs import PD
ctx = rnic.open(sys.argv[1])
for line in sys.stdin:
    try:
        PD(ctx)
        print(0, flush=True)
    except VerbsError as error:
        print(error.errno, flush=True)
"""


def test_an_event_that_comes_for_nothing_leaves_the_data_path_where_it_is(env: dict[str, str]) -> None:
    directory = Path(env["RNIC_RUNTIME_DIR"])
    with rnic.open(f"{NET}.6", directory=directory) as ctx:
        if not ctx.bypass:
            pytest.skip("no program may run the data path here")
        pd, cq = PD(ctx), CQ(ctx, 4)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(4, 4, 1, 1, 0), cq, cq))
        qp.to_init(QPAttr())
        nic = NicFaults(ctx.name, directory)
        nic.async_event("QP_FATAL", qp.qp_num)
        nic.async_event("PORT_ERR")
        told = [ctx.get_async_event() for _ in range(2)]
        assert [(event.event_type, event.element) for event in told] == [
            (e.IBV_EVENT_QP_FATAL, qp),
            (e.IBV_EVENT_PORT_ERR, None),
        ]
        assert qp.qp_state == e.IBV_QPS_INIT
        assert not ask(directory, ctx.name, "slots")["slots"][0]["served"]
        with pytest.raises(ProcessError, match="CQ 12345 is not there"):
            nic.async_event("CQ_ERR", 12345)


@pytest.mark.timeout(120)
def test_a_rule_for_a_device_that_runs(env: dict[str, str]) -> None:
    command = [sys.executable, "-c", READS_LINES, f"{NET}.5"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def try_it() -> int:
            assert program.stdin is not None
            assert program.stdout is not None
            print(file=program.stdin, flush=True)
            return int(program.stdout.readline())

        assert try_it() == 0
        nic = NicFaults(directory=Path(env["RNIC_RUNTIME_DIR"]))
        nic.fail_verb("alloc_pd", nth=2, errno="EBUSY")
        assert [try_it() for _ in range(3)] == [0, errno.EBUSY, 0]
        nic.fail_verb("alloc_pd", errno="EPERM")
        assert try_it() == errno.EPERM
        nic.heal()
        assert try_it() == 0
        with pytest.raises(ProcessError, match="fault rule 1: verb is 'nonsense'"):
            nic.fail_verb("nonsense")
        program.stdin.close()
