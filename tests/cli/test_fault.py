"""``rnic fault`` on a running NIC process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import rnic
from rnic import enums as e
from rnic.cli.commands import group
from rnic.cli.serve import make_runtime
from rnic.link.fault_events import EVENTS
from rnic.nic_process.process import NicProcess
from rnic.runtime.attach import connect
from rnic.runtime.directory import ProcessError
from rnic.spec.errors import VerbsError
from rnic.testing import own_network

NET = own_network()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A NIC process with two devices, in a thread of this one."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path))
    process = NicProcess(tmp_path, make_runtime)
    for number in (41, 42):
        process.devices.add(f"{NET}.{number}", None, {})
    thread = threading.Thread(target=process.serve)
    thread.start()
    yield tmp_path
    process.stop()
    thread.join(10)
    process.close()


def run(*words: str) -> str:
    done = CliRunner().invoke(group, ["fault", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_events_of_a_device_that_runs(served: Path) -> None:
    with rnic.open(f"{NET}.42", directory=served) as ctx:
        assert run("rnic1", "port-down", "10s") == "rnic1: port down\n  active: port-down\n  pending in: 10.0 s\n"
        assert ctx.get_async_event().event_type == e.IBV_EVENT_PORT_ERR
        assert json.loads(run("rnic0", "--json"))["port"] == "active"
        assert run("rnic1", "heal") == "rnic1: port active\n"
        assert ctx.get_async_event().event_type == e.IBV_EVENT_PORT_ACTIVE
        assert "QP 9" not in run("rnic1")
        run("rnic1", "fatal")
        assert ctx.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
        with pytest.raises(VerbsError, match="INTERNAL_ERR"):
            ctx.query_port()
        with pytest.raises(VerbsError, match="is not there"):
            rnic.open(f"{NET}.42", directory=served)
        assert run("rnic1") == "rnic1: gone\n  active: fatal\n"
        run("rnic1", "heal")
    with rnic.open(f"{NET}.42", directory=served) as ctx:
        assert ctx.query_port().state == e.IBV_PORT_ACTIVE


def test_what_is_not_there_is_refused(served: Path) -> None:
    for words, says in (
        (("rnic7", "heal"), "'rnic7' is not there; there are: rnic0, rnic1"),
        (("rnic0", "qp-error", "99"), "queue pair 99 is not there; there are: none"),
    ):
        with pytest.raises(ProcessError, match=says):
            CliRunner().invoke(group, ["fault", *words], catch_exceptions=False)


def test_bad_words_are_refused_before_anybody_is_asked() -> None:
    done = CliRunner().invoke(group, ["fault", "rnic0", "port-down", "soon"])
    assert done.exit_code == 2
    assert "port-down: for: 'soon' is not a duration" in done.output


def test_help_lists_every_event() -> None:
    text = run("--help")
    assert all(f"  {name}" in text for name in EVENTS)


@pytest.mark.slow
def test_the_nic_process_is_killed(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    env = os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)}
    rnic_command = [sys.executable, "-m", "rnic.cli"]
    subprocess.run([*rnic_command, "serve", "--addr", f"{NET}.43", "--detach"], env=env, check=True, timeout=120)
    with rnic.open(f"{NET}.43", directory=tmp_path) as ctx:
        waits = ctx.async_fd
        kill = [*rnic_command, "fault", "rnic0", "kill"]
        done = subprocess.run(kill, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "rnic0: its NIC process is gone\n", "")
        assert select.select([waits], [], [], 10)[0] == [waits]
        assert ctx.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
        with pytest.raises(VerbsError, match="has ended"):
            ctx.query_port()
    assert connect(tmp_path) is None
