"""``rnic serve``: what its options make of the devices."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rnic.cli import serve
from rnic.cli.serve import make_runtime, open_capture
from rnic.runtime.attach import connect
from rnic.runtime.directory import ProcessError
from rnic.spec.errors import VerbsError
from rnic.testing import own_network
from tests.nic_processes import end_nic_process

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

ADDRESS = f"{NET}.120"
START_SECONDS = 60.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a NIC process needs Linux")


def test_a_device_of_a_profile_with_ports_to_send_from() -> None:
    options = {"name": "rnic0", "profile": "univista", "parameters": {"QP_NUM": 256, "MAC_DW": 512}, "source_ports": 3}
    runtime = make_runtime("127.0.0.1", 0, options)
    try:
        config = runtime.nic.config
        assert (config.profile, config.log_max_qps, config.parameters["MAC_DW"]) == ("univista", 8, 512)
        assert len(set(config.source_ports)) == 3
        assert config.port not in config.source_ports
    finally:
        runtime.close()


def test_a_parameter_that_does_not_exist_opens_nothing() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESS, 0))
        port = sock.getsockname()[1]
    with pytest.raises(VerbsError, match="SPEED is not a parameter"):
        make_runtime(ADDRESS, port, {"name": "x", "profile": "univista", "parameters": {"SPEED": 1}})
    make_runtime(ADDRESS, port, {"name": "x"}).close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capture": "x", "capture_policy": "lose"}, "capture policy 'lose' does not exist: give wait or drop"),
        ({"capture": "x", "snaplen": 0x40001}, "snap length 262145 is out of range: give 1 to"),
        ({"capture": "/nowhere/x"}, "capture file /nowhere/x: No such file or directory"),
        ({"faults": "5"}, "fault script: a fault script is a list of rules, not int"),
        ({"faults": "null"}, "fault script: a fault script is a list of rules, not NoneType"),
        ({"faults": "true"}, "fault script: a fault script is a list of rules, not bool"),
        ({"faults": '[{"action": "dorp"}]'}, "fault script: fault rule 1: action is 'dorp'"),
        ({"faults": "["}, "fault script: Expecting value"),
    ],
)
def test_what_is_refused_leaves_its_port_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESS, 0))
        port = sock.getsockname()[1]
    with pytest.raises(ProcessError, match=re.escape(words)) as raised:
        make_runtime(ADDRESS, port, {"name": "x", **options})
    assert "\n" not in str(raised.value)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESS, port))  # while the error still holds the frames in which the link was made


def test_settings_that_no_device_can_have_leave_its_port_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise VerbsError(errno.EINVAL, "no such device")

    monkeypatch.setattr(serve, "runtime_on", refuse)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESS, 0))
        port = sock.getsockname()[1]
    with pytest.raises(VerbsError) as raised:
        make_runtime(ADDRESS, port, {"name": "x"})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESS, port))
    assert raised.value.strerror == "no such device"


def test_two_devices_may_record_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "both.pcapng"
    with open_capture(str(path)) as one:
        one.write(b"head")
        with open_capture(str(path)) as other:
            for file, block in ((other, b"HEAD"), (one, b"first"), (other, b"second"), (one, b"third")):
                file.write(block)
    assert path.read_bytes() == b"HEADfirstsecondthird"


@pytest.mark.slow
def test_options_of_a_device_make_one_where_no_address_is_given(tmp_path: Path) -> None:
    """They would be of no device, and nobody would be told."""
    tmp_path.chmod(0o700)
    env = os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "rnic.cli", "serve", "--idle-exit", "0"]
    for options, says in (
        ([], "devices are made as programs ask for them"),
        (["--udp-port", str(port)], f"port {port};"),
    ):
        done = subprocess.run(
            [*command, *options], env=env, capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        assert says in done.stderr
        assert ("rnic0 at 127.0.0.1" in done.stderr) is bool(options)


@pytest.mark.slow
def test_how_long_it_stays_is_said_by_the_environment(tmp_path: Path) -> None:
    """Also of one that is started for a program."""
    tmp_path.chmod(0o700)
    env = os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)}
    opened = [sys.executable, "-c", f"import rnic; rnic.open({ADDRESS!r}).close()"]
    subprocess.run(opened, env=env | {"RNIC_IDLE_EXIT": "30"}, timeout=START_SECONDS, check=True)
    time.sleep(2)  # twice as long as it would stay
    connection = connect(tmp_path)
    assert connection is not None
    connection.close()
    end_nic_process(tmp_path)
    done = subprocess.run(
        opened, env=env | {"RNIC_IDLE_EXIT": "long"}, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    assert "Invalid value for '--idle-exit': 'long' is not a number" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_profile_is_shown(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    env = os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)}
    rnic = [sys.executable, "-m", "rnic.cli"]
    options = ["--addr", ADDRESS, "--profile", "univista", "--parameter", "RAM_RD_LATENCY=3", "--source-ports", "2"]
    with subprocess.Popen([*rnic, "serve", *options], env=env) as process:
        try:
            end = time.monotonic() + START_SECONDS
            while (connection := connect(tmp_path)) is None:
                assert time.monotonic() < end
                assert process.poll() is None
                time.sleep(0.01)
            connection.close()
            shown = subprocess.run([*rnic, "regs", "--json"], env=env, capture_output=True, check=True)
            assert json.loads(shown.stdout)["parameters"]["RAM_RD_LATENCY"] == 3
            shown = subprocess.run([*rnic, "regs"], env=env, capture_output=True, check=True)
            assert b"profile univista: QP_NUM=4096" in shown.stdout
        finally:
            process.terminate()
