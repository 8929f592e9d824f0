"""The workflow files, the action and the recipes: every step is one that a runner takes, and names what there is.

No runner is here. What its steps call is run by ``.ci/run`` and by tests/abi/test_ci_example.py and test_ci_recipes.py;
this holds the files to the shell, to the contexts of their expressions, and to the tree.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CI = ROOT / "docs" / "ci"
RECIPES = [CI / name for name in ("action.yml", "github.yml", "recipes.yml")]
ACTION = ROOT / "action.yml"
FILES = [*WORKFLOWS, *RECIPES, ACTION]

EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
ALWAYS = {
    "github": {"action_path", "ref", "token", "repository", "server_url", "job"},
    "vars": {"RNIC_SOURCE"},  # which the page tells the reader to set
    "runner": {"temp"},
}
"""What stands in an expression whatever the job."""


def load(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def jobs(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The jobs of a workflow; an action is one without a name."""
    if "runs" in document:
        yield "", document["runs"]
    else:
        yield from document["jobs"].items()


def steps(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs(document):
        for step in job["steps"]:
            yield name, step


def scripts() -> list[Any]:
    return [
        pytest.param(step["run"], id=f"{path.name}:{job}:{number}")
        for path in FILES
        for number, (job, step) in enumerate(steps(load(path)))
        if "run" in step
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_step_has_the_form_of_one(path: Path) -> None:
    document = load(path)
    for job, step in steps(document):
        assert ("run" in step) != ("uses" in step), (job, step)
        assert step.keys() <= {"id", "name", "if", "run", "uses", "with", "env", "shell"}, (job, step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w/.-]+@[\w/.-]+", step["uses"]), step["uses"]
        if path == ACTION and "run" in step:
            assert step["shell"] == "bash", "a composite action names the shell of each step"


def test_jobs_wait_for_jobs_that_there_are() -> None:
    for path in FILES:
        document = load(path)
        names = [name for name, _ in jobs(document)]
        for name, job in jobs(document):
            assert set(job.get("needs", [])) <= set(names) - {name}, path


@pytest.mark.parametrize("script", scripts())
def test_a_shell_takes_each_script(script: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash: not installed")
    done = subprocess.run(
        [bash, "--noprofile", "--norc", "-n"], input=script, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "${{" not in script, "an expression in a script is code that others may write: it goes through env"


def allowed(document: dict[str, Any], job: dict[str, Any]) -> dict[str, set[str]]:
    matrix = set(job.get("strategy", {}).get("matrix", {}))
    if matrix == {"include"}:
        matrix = {key for row in listed_steps() for key in row}
    needed = [document["jobs"][name] for name in job.get("needs", [])]
    scripts = [step.get("run", "") for step in job["steps"]]
    written = {name for each in scripts for name in re.findall(r'echo "(\w+)=.*" >> "\$GITHUB_OUTPUT"', each)}
    return {
        **ALWAYS,
        "matrix": matrix,
        "inputs": set(document.get("inputs", {})),
        "needs": set(job.get("needs", [])),
        "steps": {step["id"] for step in job["steps"] if "id" in step},
        "outputs": {name for each in (job, *needed) for name in each.get("outputs", {})} | written,
    }


@functools.cache
def listed_steps() -> list[dict[str, Any]]:
    """What the job ``list`` of the check writes."""
    command = [sys.executable, str(ROOT / ".ci" / "steps.py"), "--list-json"]
    rows: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return rows


def test_each_step_of_the_check_has_a_job_with_a_limit() -> None:
    names = [row["step"] for row in listed_steps()]
    assert {"demo", "test", "lint", "docs", "programs", "bypass", "interop", "gateware", "wheels"} <= set(names)
    assert all(0 < row["minutes"] <= 30 for row in listed_steps())
    job = load(ROOT / ".github" / "workflows" / "check.yml")["jobs"]["step"]
    assert job["timeout-minutes"] == "${{ matrix.minutes }}"
    assert job["steps"][-1] == {"env": {"STEP": "${{ matrix.step }}"}, "run": '.ci/run "$STEP"'}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_expressions_name_what_there_is(path: Path) -> None:
    document = load(path)
    for _, job in jobs(document):
        known = allowed(document, job)
        conditions = [str(part["if"]) for part in (job, *job["steps"]) if "if" in part]
        for expression in EXPRESSION.findall(str(job)) + conditions:
            for context, name in re.findall(r"\b(\w+)\.(\w+)", re.sub(r"'[^']*'", "", expression)):
                assert name in known[context], f"{path.name}: {expression}"


def dev_tasks() -> set[str]:
    for node in ast.parse((ROOT / "dev").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and node.targets[0].id == "TASKS":  # type: ignore[attr-defined]
            return {ast.literal_eval(key) for key in node.value.keys if key is not None}
    raise AssertionError("./dev has no TASKS")


def words_of(script: str) -> Iterator[list[str]]:
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                yield command
                command = []
            else:
                command.append(word)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_name_files_tasks_and_extras_of_this_tree(path: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    seen = 0
    for _, step in steps(load(path)):
        for words in words_of(step.get("run", "")):
            if words and words[0].startswith((".ci/", "./")):
                seen += 1
                assert os.access(ROOT / words[0], os.X_OK), words
                assert words[0] != "./dev" or words[1] in dev_tasks(), words
            for word in words:
                if word.startswith(("tests/", "src/")):
                    seen += 1
                    assert (ROOT / word).exists(), word
                if found := re.fullmatch(r"\.\[([\w,-]+)\]", word):
                    seen += 1
                    assert set(found[1].split(",")) <= extras, word
    assert seen


def tag_step() -> str:
    (script,) = (step["run"] for _, step in steps(load(ROOT / ".github/workflows/release.yml"))
                 if step.get("name") == "the tag is the version")  # fmt: skip
    return str(script)


@pytest.mark.parametrize(("offset", "status"), [("", 0), ("9", 1)])
def test_a_tag_that_is_not_the_version_stops_a_release(offset: str, status: int) -> None:
    import rnic

    env = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": f"v{rnic.__version__}{offset}"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", tag_step()]
    assert subprocess.run(command, cwd=ROOT, env=env, check=False, timeout=120).returncode == status


def test_the_page_is_made_of_files_that_were_looked_at() -> None:
    """Whoever adds a recipe adds it here."""
    others = {CI / "compose.yml", CI / "gitlab.yml"}  # tests/abi/test_ci_recipes.py
    assert set(CI.glob("*.yml")) - others == set(RECIPES)
