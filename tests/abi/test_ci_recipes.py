"""The action, and the pods of the Kind recipe, by the commands in their files; in namespaces of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.abi.test_ci_example import ROOT, wheels

__all__ = ["wheels"]
CI = ROOT / "docs" / "ci"
NEEDED = ("unshare", "ip", "ib_write_bw", "nsenter")
PODS = ("10.244.0.5", "10.244.0.6")


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    if subprocess.run(["unshare", "--user", "--map-root-user", "--net", "--mount", "true"], check=False).returncode:
        pytest.skip("the kernel lets this user make no namespaces")


def blocks(text: str) -> list[str]:
    """What stands below each ``run: |``, without its indentation."""
    found = re.findall(r"^( *)run: \|\n((?:\1 +.*\n|\n)+)", text, re.MULTILINE)
    return [re.sub(rf"^{indent}  ", "", body, flags=re.MULTILINE) for indent, body in found]


def bash(script: str, env: Mapping[str, str], place: Path) -> str:
    """A step as GitHub's runner runs it."""
    (place / "step").write_text(script)
    inside = f"ip link set lo up && exec bash --noprofile --norc -eo pipefail {place / 'step'}"
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", inside]
    done = subprocess.run(command, env=dict(env), cwd=place, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_action(wheels: Path, tmp_path: Path) -> None:
    """Both of its steps; the tree that it is installed from is a wheel here, for want of an index."""
    install, run = blocks((ROOT / "action.yml").read_text())
    (path := tmp_path / "path").touch()
    shutil.copy(CI / "verbs-tests.sh", tmp_path)
    env = {**os.environ, "RUNNER_TEMP": str(tmp_path), "GITHUB_PATH": str(path), "HOME": str(tmp_path)}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env |= {
        "RNIC_FROM": str(next(wheels.glob("rnic-*.whl"))),
        "PATH": f"{Path(sys.executable).resolve().parent}:{env['PATH']}",
    }
    bash(install, env, tmp_path)
    (added,) = path.read_text().split()
    assert os.listdir(added) == ["rnic"], "nothing of its Python gets in the way of the job's"
    env |= {
        "PATH": f"{added}:{env['PATH']}",
        "ADDRESSES": "127.0.0.1 127.0.0.2",
        "OPTIONS": "",
        "SCRIPT": "sh verbs-tests.sh",
    }
    env |= {"FAULTS": '[{"match": {"opcode": "RC_SEND*"}, "every": 50, "action": "drop"}]', "CAPTURE": "traffic.pcapng"}
    said = bash(run, env, tmp_path)
    assert "rnic1" in said
    assert "MsgRate" in said
    assert (tmp_path / "traffic.pcapng").stat().st_size > 1000


def commands() -> tuple[list[str], list[str]]:
    """The server's and the client's command."""
    found = re.findall(r"^ *command: \[(.*)\]$", (CI / "kind" / "pods.yaml").read_text(), re.MULTILINE)
    server, client = ([word.strip(' "') for word in each.split(",")] for each in found)
    return server, client


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_pods(tmp_path: Path) -> None:
    """Two network namespaces with a wire between them; the server's name is the pod's address, as in a cluster."""
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{PODS[0]} rnic-server\n")
    lines = []
    for words, address in zip(commands(), PODS, strict=True):
        assert words[0] == "rnic/bin/rnic"
        own = [sys.executable, "-m", "rnic.cli", *(word.replace("$(POD_IP)", address) for word in words[1:])]
        lines.append(" ".join(own))
    server, client = lines
    script = f"""
    set -e
    mount --bind {tmp_path}/hosts /etc/hosts
    unshare --net sleep 60 & other=$!
    while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
    ip link add name eth0 type veth peer name eth1
    ip link set eth1 netns $other
    ip addr add {PODS[0]}/24 dev eth0 && ip link set eth0 up && ip link set lo up
    nsenter --net=/proc/$other/ns/net sh -c 'ip addr add {PODS[1]}/24 dev eth1; ip link set eth1 up; ip link set lo up'
    mkdir -m 700 {tmp_path}/server {tmp_path}/client
    RNIC_RUNTIME_DIR={tmp_path}/server {server} > {tmp_path}/said & pid=$!
    tries=0
    until RNIC_RUNTIME_DIR={tmp_path}/client nsenter --net=/proc/$other/ns/net {client}; do
      tries=$((tries + 1)); [ $tries -lt 10 ]; sleep 1
    done
    wait $pid; kill $other
    """
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "MsgRate" in done.stdout


def test_the_recipes_are_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job of the page is a row of `./dev programs`, and has commands."""
    text = (CI / "recipes.yml").read_text()
    jobs = re.findall(r"^  ([a-z-]+):$", text.split("jobs:")[1], re.MULTILINE)
    monkeypatch.syspath_prepend(str(ROOT / "programs"))
    from rows import RECIPES

    assert tuple(jobs) == RECIPES
    assert all("run:" in job for job in re.split(r"^  [a-z-]+:$", text.split("jobs:")[1], flags=re.MULTILINE)[1:])
