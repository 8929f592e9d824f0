"""The GitHub Actions job and the Dockerfile of the documentation: their commands, run by a fresh user.

The user has namespaces of its own (user, network, processes, mounts), an empty home directory, no capability, and
no way to get one. ``RNIC_SOURCE`` is this tree's wheel. What wants root there, apt-get and useradd, is left
out: the programs must be here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "docs" / "ci"
AS_ROOT = ("sudo ", "apt-get ", "useradd ")
FRESH = "ip link set lo up && exec unshare --user --map-user=1000 --map-group=1000 setpriv --no-new-privs {}"
PROGRAMS = ("unshare", "setpriv", "ip", "ibv_rc_pingpong", "ib_send_bw", "cc")


def workflow_steps() -> list[tuple[str, dict[str, str]]]:
    """Commands of the job with what their ``env`` says."""
    steps: list[tuple[str, dict[str, str]]] = []
    for line in (CI / "github.yml").read_text().splitlines():
        if found := re.match(r"\s+(?:- )?run: (.+)", line):
            steps.append((found[1], {}))
        elif (found := re.match(r"\s+(RNIC_\w+): (.+)", line)) and steps:
            steps[-1][1][found[1]] = found[2].strip("'")
    return steps


def dockerfile_steps() -> list[tuple[str, dict[str, str]]]:
    """Commands that the image is made with, and its own."""
    return [
        (f"cp {found[2]}" if found[1] == "COPY" else found[2], {})
        for line in (CI / "Dockerfile").read_text().splitlines()
        if (found := re.match(r"(RUN|COPY|CMD) (.+)", line))
    ]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel of this tree and of all that it needs."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    if subprocess.run(["unshare", "--user", "--map-root-user", "--net", "true"], check=False).returncode:
        pytest.skip("the kernel lets this user make no namespaces")
    work = tmp_path_factory.mktemp("wheels")
    tree = work / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.so", "*.so.1", "*.egg-info"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "-w",
        str(work),
        str(tree),
    ]
    subprocess.run(command, check=True, timeout=1200)
    return work


def run_fresh(command: str, home: Path, env: dict[str, str]) -> str:
    """Run a shell command as the fresh user in its home directory."""
    script = home.parent / "script.sh"
    script.write_text(command)
    inside = FRESH.format(f"sh -e {script}")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", inside],
        env=env, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("steps", [workflow_steps(), dockerfile_steps()], ids=["github", "docker"])
def test_commands_as_a_fresh_user(steps: list[tuple[str, dict[str, str]]], wheels: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(CI / "verbs-tests.sh", home if steps == workflow_steps() else tmp_path)
    python = Path(sys.executable).resolve().parent
    env = {"PATH": f"{python}:{os.environ['PATH']}", "HOME": str(home), "TMPDIR": str(home)}
    env["RNIC_SOURCE"] = str(next(wheels.glob("rnic-*.whl")))
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    ran = [(command, more) for command, more in steps if not command.startswith(AS_ROOT)]
    assert len(ran) >= 3
    said = [run_fresh(command.replace("cp verbs", f"cp {tmp_path}/verbs"), home, env | more) for command, more in ran]
    assert any("bytes in" in words and "MsgRate" in words for words in said)
    if steps == workflow_steps():
        recording = home / "traffic.pcapng"
        out = subprocess.run(
            [sys.executable, "-m", "rnic.cli", "decode", str(recording)], capture_output=True, text=True, check=True
        ).stdout
        assert "RC_SEND" in out
        assert "wrong 0" in out


def test_both_files_say_what_the_page_promises() -> None:
    assert [command for command, _ in workflow_steps() if command.startswith("sudo ")]
    for steps in (workflow_steps(), dockerfile_steps()):
        commands = [command for command, _ in steps]
        assert any('pip install "$RNIC_SOURCE"' in command for command in commands)
        assert any("rnic exec -- sh verbs-tests.sh" in command for command in commands)
    assert workflow_steps()[-1][1].keys() == {"RNIC_FAULTS", "RNIC_CAPTURE"}
    assert "USER tester" in (CI / "Dockerfile").read_text()
