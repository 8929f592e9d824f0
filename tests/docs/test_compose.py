"""``docs/ci/compose.yml`` by podman-compose, and the example with testcontainers, on Podman's socket.

Takes minutes, and wants what tests/docs/test_containers.py wants. Both tools come from a package index.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.test_containers import SECONDS, container_blocks, engine, shell, with_own_etc
from tests.docs.test_examples import ROOT

__all__ = ["engine"]
COMPOSE = ROOT / "docs" / "ci" / "compose.yml"
EXAMPLE = ROOT / "examples" / "test_in_containers.py"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """The directory of the tools' programs."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "tools")], check=True, timeout=SECONDS)
    programs = tmp_path / "tools" / "bin"
    install = [str(programs / "pip"), "install", "--quiet", "podman-compose", "testcontainers", "pytest"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
    if done.returncode:
        pytest.skip(f"no podman-compose and no testcontainers from a package index: {done.stderr.strip()[-200:]}")
    return programs


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_compose_and_testcontainers(engine: dict[str, str], tools: Path, tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    for file in (COMPOSE, EXAMPLE):
        shutil.copy(file, place)
    env = {**engine, "PATH": f"{Path(sys.executable).parent}:{engine['PATH']}:{tools}"}
    image = container_blocks()[2].partition("\n")[0]
    assert image.endswith("| podman build -t perftest -")
    shell(image, env, place, 900)

    compose = "podman-compose --no-ansi -p lab"
    script = f"rnic cdi --folder {tmp_path}/folder\n{compose} up --abort-on-container-exit\n{compose} down"
    said = shell(with_own_etc(script), env, place, SECONDS)
    assert said.count("MsgRate") == 2, "both services"

    address = f"unix://{place}/socket"
    with subprocess.Popen(["podman", "system", "service", "--time=0", address], env=env) as service:
        try:
            deadline = time.monotonic() + 60
            while not (place / "socket").exists():  # waits: for the service to listen
                assert time.monotonic() < deadline
                time.sleep(0.1)
            env |= {"DOCKER_HOST": address, "TESTCONTAINERS_RYUK_DISABLED": "true", "HOME": str(place)}
            command = f"{tools}/python -m pytest -q -p no:cacheprovider {EXAMPLE.name}"
            assert "1 passed" in shell(command, env, place, SECONDS)
        finally:
            service.terminate()


def test_the_page_has_both_files() -> None:
    text = (ROOT / "docs" / "programs.md").read_text()
    assert "{literalinclude} ci/compose.yml" in text
    assert "{literalinclude} ../examples/test_in_containers.py" in text
