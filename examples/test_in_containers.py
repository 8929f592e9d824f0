"""Test two containers of an image that has perftest and nothing of rnic, by testcontainers.

Wants Docker or Podman's socket, an image ``perftest`` with Debian's package in it, and `pip install testcontainers`.
"""

import shlex
import subprocess

import pytest

pytest.importorskip("testcontainers", reason="testcontainers is not installed: pip install testcontainers")
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

MOUNTS = shlex.split(subprocess.check_output(["rnic", "cdi", "--options", "--faults", "drop=1%"], text=True))


def with_nic(container: DockerContainer) -> DockerContainer:
    for each in MOUNTS:
        here, there, mode = each.removeprefix("--volume=").split(":")
        container = container.with_volume_mapping(here, there, mode)
    return container


def test_ib_write_bw() -> None:
    with Network() as network:
        server = with_nic(DockerContainer("perftest")).with_network(network).with_network_aliases("server")
        client = with_nic(DockerContainer("perftest")).with_network(network)
        command = "sh -c 'until ib_write_bw -n 500 server; do sleep 1; done'"
        with server.with_command("ib_write_bw -n 500"), client.with_command(command):
            assert client.get_wrapped_container().wait(timeout=120)["StatusCode"] == 0
            assert b"MsgRate" in client.get_logs()[0]
