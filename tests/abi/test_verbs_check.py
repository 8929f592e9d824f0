"""What programs seldom ask of libibverbs, by a C program against rdma-core's own header, in both modes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler
from rnic.testing import own_network

SOURCE = Path(__file__).resolve().parents[2] / "programs" / "verbs_check.c"
YIELDS = Path(__file__).with_name("yields.c")
SHARES = Path(__file__).with_name("shares.c")
FRESH = Path(__file__).with_name("fresh.c")


def build(source: Path, libraries: Path, place: Path, *more: str) -> Path:
    """A program, built as a stranger would."""
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("libibverbs-dev is not installed")
    compiler = find_compiler()
    assert compiler is not None
    out = place / source.stem
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-O1", *more]
    subprocess.run([compiler, *flags, str(source), str(libraries / "libibverbs.so.1"), "-o", str(out)], check=True)
    return out


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the list."""
    return build(SOURCE, libraries, tmp_path_factory.mktemp("verbs"))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["timestamps", "null_mr", "groups", "dmabuf", "state"])
def test_what_programs_seldom_ask_for(program: Path, mode: dict[str, str], what: str) -> None:
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{own_network()}.61", "--", str(program), what]
    done = subprocess.run(command, env=mode, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("queues", "rounds"), [(1, 2_000), (2, 2_000), (300, 400)])
def test_who_polls_many_queues_in_turn_yields_once_a_turn(
    libraries: Path, tmp_path: Path, env: dict[str, str], queues: int, rounds: int
) -> None:
    program = build(YIELDS, libraries, tmp_path, "-rdynamic")
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{own_network()}.62", "--", str(program)]
    done = subprocess.run(
        [*command, str(queues), str(rounds)], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    turns = rounds - 100  # so many polls in vain come before the first
    # who polls more of them than it remembers yields a little more often
    assert turns - 1 <= int(done.stdout) <= turns * (1 + queues // 64)


@pytest.mark.slow
def test_who_polls_with_a_lock_held_lets_others_have_it(libraries: Path, tmp_path: Path, mode: dict[str, str]) -> None:
    """As UCX's progress threads do: one that yields in each poll, and so with the lock, never lets it go."""
    program = build(SHARES, libraries, tmp_path)
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{own_network()}.64", "--", str(program), "20"]
    done = subprocess.run(command, env=mode, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "20 times\n", "")


@pytest.mark.slow
def test_what_comes_while_a_poll_yields_is_what_it_finds(libraries: Path, tmp_path: Path, mode: dict[str, str]) -> None:
    """libfabric looks for events after a poll in vain: what came before a disconnect has to be found before it."""
    program = build(FRESH, libraries, tmp_path, "-rdynamic")
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{own_network()}.63", "--", str(program)]
    done = subprocess.run(command, env=mode, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 yields, found by ibv_poll_cq: 1, by ibv_start_poll: 1\n"
