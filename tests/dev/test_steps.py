"""The steps of the whole check: what they name exists, and one runs if what it depends on has changed."""

from __future__ import annotations

import ast
import datetime
import fnmatch
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.dev.test_workflows import dev_tasks

ROOT = Path(__file__).resolve().parents[2]
TODAY = datetime.date.today()


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_steps", ROOT / ".ci" / "steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


STEPS = load().STEPS


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, on a tree of its own that needs no installation."""
    module = load()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(module, "versions_of", lambda step: ["numpy 2.0"])
    monkeypatch.setattr(module, "compiler", lambda: "cc 12")
    monkeypatch.setattr(module, "tree_files", lambda: ["src/a.c", "src/b.c", "notes"])
    (tmp_path / "src").mkdir()
    for name in ("src/a.c", "src/b.c", "notes"):
        (tmp_path / name).write_text(name)
    return module


Run = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture
def run(steps: ModuleType, tmp_path: Path) -> Run:
    """Run steps; by name, how each ended and the remark."""

    def do(*chosen: Any, forced: bool = False) -> dict[str, tuple[str, str]]:
        check = steps.Check(tmp_path, forced=forced)
        check.status = check.run(list(chosen))
        assert check.status == any(result == "failed" for result, _, _ in check.rows.values())
        return {name: (result, remark) for name, (result, _, remark) in check.rows.items()}

    return do


# ---------------------------------------------------------------- the list


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_names_tasks_and_tests_of_this_tree(step: Any) -> None:
    for task in re.findall(r"\bdev (\w+)", step.command):
        assert task in dev_tasks()
    for name in re.findall(r"\b(?:tests|\.ci)/[\w/.*-]+", step.command):
        assert list(ROOT.glob(name)), name


@pytest.mark.parametrize("step", [step for step in STEPS if step.inputs], ids=lambda step: step.name)
def test_each_pattern_of_the_inputs_matches_a_file(step: Any) -> None:
    files = [str(path.relative_to(ROOT)) for folder in ("src", "tests", "bench", "docs", "programs", "interop", ".ci")
             for path in (ROOT / folder).rglob("*")] + [path.name for path in ROOT.iterdir()]  # fmt: skip
    assert [each for each in step.inputs if not fnmatch.filter(files, each.removeprefix("names:"))] == []


def test_tools_of_steps_have_packages_and_extras_exist() -> None:
    module = load()
    assert {tool for step in STEPS for tool in step.tools} <= module.PACKAGES.keys()
    assert module.dev_script().requirements_of({extra for step in STEPS for extra in step.extras.split(",") if extra})


def test_names_are_unique_and_fit_the_table() -> None:
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 14


def test_c_of_one_kind_of_processor_is_an_input_of_the_other_kind() -> None:
    """A change of it is tried on aarch64."""
    macros = re.compile(r"__x86_64__|__aarch64__|immintrin\.h")
    sources = (ROOT / "src").rglob("*.[ch]")
    found = {str(path.relative_to(ROOT)) for path in sources if macros.search(path.read_text(encoding="utf-8"))}
    assert found - {"src/rnic/engine/_engine.c"} == set(load().OF_ONE_PROCESSOR)


def test_what_the_gateware_imports_is_an_input_of_its_step() -> None:
    found = set()
    for path in (ROOT / "src" / "rnic" / "gateware").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rnic."):
                whole = ROOT / "src" / (node.module or "").replace(".", "/")
                found |= {whole / f"{each.name}.py" for each in node.names} | {whole.with_suffix(".py")}
    names = [str(path.relative_to(ROOT)) for path in found if path.exists()]
    assert len(names) > 40
    assert [name for name in names if not any(fnmatch.fnmatch(name, each) for each in load().GATEWARE)] == []


def test_the_record_is_of_steps_with_inputs() -> None:
    record = load().read_record()
    assert record.keys() <= {step.name for step in STEPS if step.inputs}
    for entry in record.values():
        assert entry.keys() == {"inputs", "passed"}
        datetime.date.fromisoformat(entry["passed"])  # or it raises


# ---------------------------------------------------------------- what runs


def test_a_hash_follows_contents_names_versions_and_the_command(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = steps.tree_files()
    step = steps.Step("one", "true", inputs=("src/*",))

    def now(step: Any = step, versions: tuple[str, ...] = ()) -> str:
        return str(steps.fingerprint(step, files, list(versions)))

    before, names = now(), now(steps.Step("one", "true", inputs=("names:src/*",)))
    assert before != names
    (steps.ROOT / "notes").write_text("else")
    assert now() == before
    assert now(versions=("numpy 2.1",)) != before
    assert now(steps.Step("one", "false", inputs=("src/*",))) != before
    (steps.ROOT / "src" / "a.c").write_text("else")
    assert now() != before
    assert now(steps.Step("one", "true", inputs=("names:src/*",))) == names
    before = now()
    monkeypatch.setattr(steps, "compiler", lambda: "cc 13")
    assert now() != before
    files.append("src/c.c")
    assert now(steps.Step("one", "true", inputs=("names:src/*",))) != names


@pytest.mark.parametrize(("days", "skipped"), [(0, True), (14, True), (15, False), (-1, False)])
def test_a_record_holds_for_fourteen_days(steps: ModuleType, days: int, skipped: bool) -> None:
    passed = TODAY - datetime.timedelta(days)
    reason = steps.skip_reason({"inputs": "abc", "passed": passed.isoformat()}, "abc", TODAY)
    assert reason == (f"passed {passed}, its inputs are the same" if skipped else "")


@pytest.mark.parametrize("entry", [None, {}, {"inputs": "abd", "passed": TODAY.isoformat()}])
def test_without_a_record_of_the_same_inputs_a_step_runs(steps: ModuleType, entry: dict[str, str] | None) -> None:
    assert steps.skip_reason(entry, "abc", TODAY) == ""


def test_a_step_that_passed_is_skipped_until_its_inputs_change(steps: ModuleType, run: Run) -> None:
    step = steps.Step("one", "true", inputs=("src/*",), beside=True)
    assert run(step) == {"one": ("passed", "")}
    assert run(step) == {"one": ("skipped", f"passed {TODAY}, its inputs are the same")}
    assert run(step, forced=True) == {"one": ("passed", "")}
    (steps.ROOT / "src" / "a.c").write_text("else")
    assert run(step) == {"one": ("passed", "")}


@pytest.mark.parametrize(("command", "result"), [("exit 1", "failed"), ("exit 77", "left out")])
def test_only_a_step_that_passed_whole_is_recorded(steps: ModuleType, run: Run, command: str, result: str) -> None:
    step = steps.Step("one", command, inputs=("src/*",))
    assert run(step)["one"][0] == result
    assert not steps.RECORD.exists()
    steps.note_passed("other", "abc", TODAY)
    assert json.loads(steps.RECORD.read_text()) == {"other": {"inputs": "abc", "passed": TODAY.isoformat()}}


@pytest.mark.parametrize("said", ["LEFT OUT  src/a.c: a rule", "3 passed, 1 skipped in 2.00s"])
def test_what_was_skipped_in_part_did_not_pass_whole(steps: ModuleType, run: Run, said: str) -> None:
    assert run(steps.Step("one", f"whole echo '{said}'"))["one"][0] == "left out"
    assert run(steps.Step("two", "whole echo '3 passed in 2.00s'"))["two"][0] == "passed"
    assert run(steps.Step("six", "whole false"))["six"][0] == "failed"


def test_steps_behind_one_that_failed_run_and_the_table_tells(
    steps: ModuleType, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = run(
        steps.Step("one", "echo why; exit 3"), steps.Step("two", "true"), steps.Step("six", "true", beside=True)
    )
    assert ended == {"one": ("failed", "status 3"), "two": ("passed", ""), "six": ("passed", "")}
    said = capfd.readouterr().out
    assert re.search(r"^one +failed +\d+  status 3$", said, re.MULTILINE)
    assert "why" in said
    assert said.splitlines()[-1] == "check: failed: one"


@pytest.mark.parametrize("beside", [False, True])
def test_the_end_repeats_why_a_step_failed(
    steps: ModuleType, run: Run, capsys: pytest.CaptureFixture[str], beside: bool
) -> None:
    one = steps.Step("one", "echo FAILED tests/a.py::b; seq 100; false", beside=beside)
    two = steps.Step("two", "seq 200 300; false", beside=beside)
    run(one, two, steps.Step("three", "echo fine", beside=beside))
    end = capsys.readouterr().out.partition("=== steps")[2]
    assert "--- one failed:\nFAILED tests/a.py::b\n---" in end
    assert "--- two failed:\n281\n" in end
    assert "300\ncheck: failed: one, two" in end
    assert "fine" not in end


def test_a_test_beside_others_may_take_longer(steps: ModuleType, run: Run) -> None:
    command = 'test "${PYTEST_TIMEOUT-}" = 600'
    assert run(steps.Step("one", command, beside=True), steps.Step("two", command)) == {
        "one": ("passed", ""),
        "two": ("failed", "status 1"),
    }


def test_a_process_that_a_step_left_holds_nobody_up(
    steps: ModuleType, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "OUTPUT_SECONDS", 0.01)
    assert run(steps.Step("one", "sleep 1 &")) == {"one": ("passed", "")}


def test_without_an_installation_nothing_else_runs(steps: ModuleType, run: Run) -> None:
    assert run(steps.Step("demo", "false"), steps.Step("two", "true")) == {"demo": ("failed", "status 1")}


def test_unknown_steps_are_named(steps: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        steps.main(["demmo"])
    assert "demmo: no such step; there are demo, test" in capsys.readouterr().err


# ---------------------------------------------------------------- commit messages


@pytest.mark.parametrize(
    ("message", "status"),
    [("x" * 72 + "\n\nwhy\n", 0), ("x" * 73 + "\n", 1), ("\n\nwhy\n", 1), ("fixup! " + "x" * 72 + "\n", 0)],
)
def test_the_subject_of_a_commit_has_at_most_72_characters(tmp_path: Path, message: str, status: int) -> None:
    (tmp_path / "message").write_text(message)
    done = subprocess.run([ROOT / ".ci" / "commit-subject", tmp_path / "message"], check=False, capture_output=True)
    assert done.returncode == status
