"""The action, and the pods of the Kind recipe, by the commands in their files; in namespaces of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
@pytest.mark.timeout(1800)
def test_the_action(wheels: Path, tmp_path: Path) -> None:
    """Each of its steps; the tree that it is installed from is a wheel here, for want of an index."""
    code, install, run, judge = blocks((ROOT / "action.yml").read_text())
    (path := tmp_path / "path").touch()
    shutil.copy(CI / "verbs-tests.sh", tmp_path)
    env = {**os.environ, "RUNNER_TEMP": str(tmp_path), "GITHUB_PATH": str(path), "HOME": str(tmp_path)}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env |= {
        "WHEEL": str(next(wheels.glob("rnic-*.whl"))),
        "RNIC_FROM": str(ROOT),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "PATH": f"{Path(sys.executable).resolve().parent}:{env['PATH']}",
    }
    bash(code, env, tmp_path)
    assert re.fullmatch(r"key=rnic-Linux-\w+-cpython-\d+-[0-9a-f]{16}\n", (tmp_path / "output").read_text())
    bash(install, env, tmp_path)
    (added,) = path.read_text().split()
    assert os.listdir(added) == ["rnic"], "nothing of its Python gets in the way of the job's"
    env |= {
        "PATH": f"{added}:{env['PATH']}",
        "ADDRESSES": "127.0.0.1 127.0.0.2",
        "OPTIONS": "",
        "NAME": "mlx5_0",
        "LOSSES": "",
        "SCRIPT": "sh verbs-tests.sh",
    }
    env |= {"FAULTS": '[{"match": {"opcode": "RC_SEND*"}, "every": 50, "action": "drop"}]', "CAPTURE": "traffic.pcapng"}
    said = bash(run, env, tmp_path)
    assert "mlx5_1" in said
    assert "MsgRate" in said
    assert (tmp_path / "traffic.pcapng").stat().st_size > 1000
    assert "no rule broken" in bash(judge, env, tmp_path)
    assert (tmp_path / "rnic-report.html").exists()
    env |= {"FAULTS": "", "LOSSES": "1%", "CAPTURE": "losses.pcapng", "SCRIPT": "ibv_devices"}
    assert "mlx5_0" in bash(run, env, tmp_path)


GITLAB_OWN = {"job", "stage", "image", "packages"}
"""Inputs that only a whole job has."""
COMPONENT = ROOT / "templates" / "rnic.yml"


def component(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of the GitLab component, and its job as GitLab makes it of those that are given."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    head, template = yaml.safe_load_all(COMPONENT.read_text())
    inputs = head["spec"]["inputs"]
    values = {name: given[name] if name in given else each["default"] for name, each in inputs.items()}

    def filled(part: Any) -> Any:
        if isinstance(part, str):
            return re.sub(r"\$\[\[ inputs\.(\w+) \]\]", lambda found: values[found[1]], part)
        if isinstance(part, dict):
            return {filled(key): filled(value) for key, value in part.items()}
        return [filled(each) for each in part] if isinstance(part, list) else part

    (job,) = filled(template).values()
    return inputs, job


def gitlab_example() -> dict[str, str]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    (included,) = yaml.safe_load((CI / "gitlab.yml").read_text())["include"]
    assert included["component"].partition("@")[0].endswith("/OWNER/rnic/rnic")
    inputs: dict[str, str] = included["inputs"]
    return inputs


def test_gitlab_has_the_inputs_of_the_action() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    given = gitlab_example()
    inputs, job = component(given)
    action = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    assert inputs.keys() - GITLAB_OWN == action.keys()
    for name in action.keys() - {"run", "wheel"}:
        assert inputs[name]["default"] == action[name]["default"], name
    used = yaml.safe_load((CI / "action.yml").read_text())["jobs"]["test"]["steps"][-1]["with"]
    assert {name: given[name] for name in used} == used
    assert job["artifacts"] == {"when": "on_failure", "paths": ["traffic.pcapng", "rnic-report.html"]}


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_gitlab_component(wheels: Path, tmp_path: Path) -> None:
    """Its commands, but for ``apt-get``: what that installs is here."""
    wheel = next(wheels.glob("rnic-*.whl"))
    _, job = component({**gitlab_example(), "wheel": str(wheel), "addr": "127.0.0.1 127.0.0.2"})
    assert job["before_script"][0].startswith("apt-get update && apt-get install -y ")
    shutil.copy(CI / "verbs-tests.sh", tmp_path)
    env = {**os.environ, "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    env |= {name: each["value"] if isinstance(each, dict) else each for name, each in job["variables"].items()}
    for script in (*job["before_script"][1:], *job["script"], *job["after_script"]):
        said = bash(script, env, tmp_path)
        if "rnic exec" in script:
            assert "mlx5_1" in said
            assert "MsgRate" in said
    assert "no rule broken" in said
    assert (tmp_path / "rnic-report.html").exists()


def test_compose_says_what_the_page_says() -> None:
    """Its commands are those of the how-to on containers."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    page = (ROOT / "docs" / "howto.md").read_text()
    services = yaml.safe_load((CI / "compose.yml").read_text())["services"]
    for name, service in services.items():
        assert service["devices"] == ["rnic.dev/nic=0"], name
        assert f"--device {service['devices'][0]} {service['image']} ib_write_bw -n 500" in page


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
    jobs = re.findall(r"^  ([a-z-]+):(?: #.*)?$", text.split("jobs:")[1], re.MULTILINE)
    monkeypatch.syspath_prepend(str(ROOT / "programs"))
    from rows import RECIPES

    assert tuple(jobs) == RECIPES
    assert all(
        "run:" in job for job in re.split(r"^  [a-z-]+:(?: #.*)?$", text.split("jobs:")[1], flags=re.MULTILINE)[1:]
    )
