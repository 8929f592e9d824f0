"""``uvx rnic exec`` and ``pipx run rnic exec``: a NIC for one command, from a wheel and without an environment.

Both tools come from a package index. The wheel and what it needs lie in a directory, which stands for the index.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.abi.test_ci_example import ROOT, wheels

__all__ = ["wheels"]
COMMANDS = ("uvx rnic exec -- ibv_devices", "pipx run rnic exec -- ibv_devices")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the two programs."""
    venv = tmp_path_factory.mktemp("tools") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=300)
    install = [str(venv / "bin" / "python"), *PIP[1:], "install", "uv", "pipx"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(f"no uv and no pipx from a package index: {done.stderr.strip()[-200:]}")
    return venv / "bin"


def test_the_page_has_them() -> None:
    text = (ROOT / "docs" / "programs.md").read_text()
    assert [command for command in COMMANDS if f"    {command}" not in text] == []


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_one_command(command: str, tools: Path, wheels: Path, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}", "RNIC_PORT": "0"}
    env |= {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels), "UV_PYTHON": sys.executable}  # pipx takes uv, too
    done = subprocess.run(
        shlex.split(command), env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "rnic0" in done.stdout


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_pipx_without_uv(tools: Path, wheels: Path, tmp_path: Path) -> None:
    """Which makes its environment by pip, and that from the index."""
    wheel = str(next(wheels.glob("rnic-*.whl")))
    command = [str(tools / "pipx"), "run", "--backend", "pip", "--python", sys.executable, "--spec", wheel]
    command += ["rnic", "exec", "--", "ibv_devices"]
    env = {**os.environ, "HOME": str(tmp_path), "RNIC_PORT": "0"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "rnic0" in done.stdout
