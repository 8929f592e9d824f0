"""Attempts that have to hold: what is void, what fails, what is skipped and how many skips a session may have."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import attempts
from tests.attempts import Void, Witness, best_of, every_valid

ROOT = Path(__file__).resolve().parents[2]


def attempt(*outcomes: str) -> tuple[list[str], Callable[[], None]]:
    """What was made so far, and an attempt that ends so, one time after the other."""
    made: list[str] = []

    def make() -> None:
        made.append(outcomes[min(len(made), len(outcomes) - 1)])
        if made[-1] == "void":
            raise Void("measured")
        assert made[-1] == "holds"

    return made, make


def test_a_valid_attempt_that_fails_fails_at_once() -> None:
    made, make = attempt("fails", "holds")
    with pytest.raises(AssertionError):
        every_valid(make, why="a reason")
    assert made == ["fails"]


def test_a_void_attempt_is_made_again_until_one_is_valid() -> None:
    made, make = attempt("void", "void", "holds")
    every_valid(make, why="a reason")
    assert made == ["void", "void", "holds"]


def test_a_test_without_a_valid_attempt_is_skipped_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "LONGEST_S", 0.0)
    with pytest.raises(pytest.skip.Exception, match=r"no valid attempt of 1 in 0 s: measured: a reason"):
        every_valid(attempt("void")[1], why="a reason")


@pytest.mark.parametrize("outcome", ["holds", "fails"])
def test_who_waited_too_long_for_a_core_says_nothing(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    """Whether it held or not."""
    monkeypatch.setattr(attempts, "LONGEST_S", 0.0)
    with pytest.raises(pytest.skip.Exception, match=r"\(limit 0.0 ms\): a reason"):
        every_valid(attempt(outcome)[1], why="a reason", limit_ms=0.0)


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the system does not say how long a thread waited"
)
def test_a_wait_for_a_core_is_measured_in_this_process_and_in_others() -> None:
    """Three that never rest on one core, of which each waits for slices of the other two."""
    spin = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with ExitStack() as stack:
            for _ in range(2):
                stack.callback(stack.enter_context(subprocess.Popen([sys.executable, "-c", spin])).kill)
            time.sleep(0.1)
            with Witness() as witness:
                end = time.process_time() + 0.02
                while time.process_time() < end:
                    pass
    finally:
        os.sched_setaffinity(0, before)
    assert witness.longest_ms > 0.5
    assert "waited" in witness.reason


def test_of_a_cost_the_least_counts_and_no_more_are_measured_than_needed() -> None:
    costs = [5.0, 3.0, 1.0, 2.0]
    assert best_of(4, lambda: costs.pop(0), below=2, why="a reason") == 1.0
    assert costs == [2.0]
    costs = [5.0, 3.0, 4.0]
    assert best_of(3, lambda: costs.pop(0), below=2, why="a reason") == 3.0


SKIPPING = """
    import pytest
    from tests.attempts import VOID

    @pytest.mark.parametrize("number", range(2))
    def test_void(number):
        pytest.skip(f"{VOID} of 3 in 30 s: thread 1 waited 20 ms for a core")

    def test_other():
        pytest.skip("something else")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "limit"),
    [([], 5), (["--void-limit", "1"], 1), (["--full"], 0), (["-n", "1", "--void-limit", "1"], 1)],
)
def test_too_many_tests_without_a_valid_attempt_fail_a_session(tmp_path: Path, options: list[str], limit: int) -> None:
    (tmp_path / "test_it.py").write_text("\n".join(line[4:] for line in SKIPPING.splitlines()))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == (limit < 2), done.stdout + done.stderr
    assert "test_void[1]: no valid attempt of 3 in 30 s: thread 1 waited 20 ms for a core" in done.stdout
    assert f"2 of at most {limit}" in done.stdout
