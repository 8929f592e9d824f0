"""``rnic devinfo``: what it says about this machine's devices."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rnic
from rnic.cli import main
from rnic.cli.devinfo import devinfo
from rnic.testing import own_network

NET = own_network()


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No NIC process runs but one of the test's own."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path))


def run(*args: str) -> Result:
    return CliRunner().invoke(devinfo, list(args))


def test_text_names_device_port_mtu_and_gid() -> None:
    result = run("-d", "rnic0")
    assert result.exit_code == 0
    assert result.output.startswith("device: rnic0\n")
    for words in ("127.0.0.1", "PORT_ACTIVE", "active_mtu:          4096", "0000:ffff:7f00:0001", "node_guid:"):
        assert words in result.output
    assert "max_qp:" not in result.output


def test_verbose_adds_limits() -> None:
    output = run("-d", "rnic0", "-v").output
    for words in ("max_qp:                  8192", "max_sge:                 32", "pkey[0]:             0xffff"):
        assert words in output


def test_json_agrees_with_the_api() -> None:
    (found,) = json.loads(run("--addr", "127.0.0.1", "--json").output)
    with rnic.Context(addr="127.0.0.1", port=0) as ctx:
        assert found["port"]["gids"] == [str(ctx.query_gid())]
        assert found["limits"]["max_qp"] == ctx.query_device().max_qp
        assert found["port"]["max_msg_sz"] == ctx.query_port().max_msg_sz
    assert found["name"] == "rnic0"
    assert found["port"]["state"] == "PORT_ACTIVE"


def test_all_devices_have_an_entry() -> None:
    names = [device.name for device in rnic.get_device_list()]
    assert [each["name"] for each in json.loads(run("--json").output)] == names
    assert [line.split()[0] for line in run("--list").output.splitlines()] == names
    assert [each["name"] for each in json.loads(run("--list", "--json").output)] == names


@pytest.mark.slow
def test_devices_of_the_nic_process_come_first_under_their_own_names() -> None:
    served, other = f"{NET}.41", f"{NET}.42"
    with rnic.open(served, port=0) as ctx, rnic.open(other, port=0):
        names = run("--list").output.splitlines()
        assert [line.split() for line in names[:2]] == [["rnic0", served, "running"], ["rnic1", other, "running"]]
        assert "running" not in "".join(names[2:])
        (found,) = json.loads(run("-d", "rnic0", "--json").output)
        assert (found["address"], found["running"]) == (served, True), "not this machine's rnic0"
        assert found["port"]["gids"] == [str(ctx.query_gid())]
        assert found["node_guid"] == ctx.query_device().node_guid
        text = run("--addr", other).output
        assert text.startswith("device: rnic1 (running)\n")


@pytest.mark.parametrize(("option", "value"), [("-d", "rnic99"), ("--addr", "192.0.2.254"), ("--udp-port", "70000")])
def test_unknown_device_is_one_line_and_status_2(
    option: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["rnic", "devinfo", option, value])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert value in error
    assert "rnic0 (127.0.0.1)" in error or "0<=x<=65535" in error


def test_taken_port_is_named_and_status_1() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        result = run("-d", "rnic0", "--udp-port", str(port))
    assert result.exit_code == 1
    assert f"UDP port {port} on 127.0.0.1 is taken" in result.output
