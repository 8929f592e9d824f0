"""The mutation tester changes one thing at a time, and nothing that has no effect."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from rnic.abi.build import SOURCES, find_compiler

BENCH = Path(__file__).parents[2] / "bench"
SOURCE = '''"""Doc."""
import typing
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import os
class Thing:
    """A doc with 7 in it."""
    __slots__ = ("a", "b")
    limit: typing.Literal[3] = 3
    def work(self, count: typing.Literal[4]) -> typing.Literal[5]:
        if count < 2 and not self.a:
            self.a += 1
        return 6
'''


@pytest.fixture
def mutate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("mutate", BENCH / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "thing.py").write_text(SOURCE)
    return module


def test_every_mutant_is_another_program(mutate: ModuleType) -> None:
    found = list(mutate.mutants(Path("thing.py")))
    texts = [mutate.mutated(mutant) for mutant in found]
    assert len(set(texts)) == len(texts)
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    for text in texts:
        compile(text, "thing.py", "exec")


def test_what_is_changed(mutate: ModuleType) -> None:
    changes = {(mutant.before, mutant.after) for mutant in mutate.mutants(Path("thing.py"))}
    assert changes == {
        ("3", "4"),
        ("6", "7"),
        ("2", "3"),
        ("1", "2"),
        ("count < 2", "count <= 2"),
        ("not self.a", "self.a"),
        ("count < 2 and (not self.a)", "count < 2 or not self.a"),
        ("if count < 2 and (not self.a):", "if not (count < 2 and (not self.a)):"),
        ("self.a += 1", "self.a -= 1"),
        ("self.a += 1", "pass"),
    }


C_SOURCE = """/* a comment: if (x == 1) */
#define LIMIT 3
static int work(int count)
{
    /* with a comment
     * of lines: count < 2 */
    if (count < 2 && !done)
        return 0;
    forget(count);
    return count + 1;
}
""".replace("    ", "\t")


def test_c_is_changed_in_its_text(mutate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "thing.c").write_text(C_SOURCE)
    found = list(mutate.mutants(Path("thing.c")))
    changes = {(mutant.line, mutant.after) for mutant in found}
    assert changes == {
        (7, "if (count <= 2 && !done)"),
        (7, "if (count < 2 || !done)"),
        (7, "if (!count < 2 && !done)"),
        (8, "return 1;"),
        (9, ";"),
        (10, "return count - 1;"),
        (10, "return count + 2;"),
    }
    texts = [mutate.mutated(mutant) for mutant in found]
    assert C_SOURCE not in texts
    assert all(len(text.splitlines()) == len(C_SOURCE.splitlines()) for text in texts)


@pytest.mark.skipif(not find_compiler(), reason="no C compiler")
def test_the_c_libraries_own_sources_compile_where_a_mutant_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that does not, for want of a header's place, ends the run before the first mutant."""
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("mutate", BENCH / "mutate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tree = tmp_path / "rnic"
    for name in ("abi/src", "engine"):
        shutil.copytree(SOURCES.parents[1] / name, tree / name, ignore=shutil.ignore_patterns("*.so"))
    source = tree / "abi" / "src" / "cq.c"
    assert module.compiles(source)
    source.write_text(source.read_text() + "int wrong(void) { return nothing; }\n")
    assert not module.compiles(source)


def test_the_chosen_mutants_fit_the_tree_and_have_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import chosen_mutants

    mutants = chosen_mutants.chosen()
    rooms = {mutant.path.parts[2] for mutant in mutants}
    assert {"abi", "context", "device", "engine", "link", "nic_process", "state", "transport"} <= rooms
    for mutant in mutants:
        assert mutant.old != mutant.new
        assert mutant.tests
        assert all((BENCH.parent / test.split("::")[0]).exists() for test in mutant.tests), mutant.rule


def test_a_mutant_is_in_the_tree_for_as_long_as_its_tests_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import chosen_mutants

    (tmp_path / "thing.py").write_text("LIMIT = 3\n")
    (tmp_path / "test_thing.py").write_text("from thing import LIMIT\ndef test_limit():\n    assert LIMIT == 3\n")
    mutant = chosen_mutants.Chosen("a limit", Path("thing.py"), "3", "4", ("test_thing.py",))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--rootdir=.")
    assert chosen_mutants.tried(tmp_path, mutant.tests)[0] == ""
    with chosen_mutants.changed(tmp_path, mutant, None):
        assert chosen_mutants.tried(tmp_path, mutant.tests)[0] == "test_thing.py::test_limit - assert 4 == 3"
    assert (tmp_path / "thing.py").read_text() == "LIMIT = 3\n"


def test_tests_that_say_nothing_of_a_mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are skipped kill none, and those that fail anyway all."""
    monkeypatch.syspath_prepend(str(BENCH))
    import chosen_mutants

    monkeypatch.setenv("PYTEST_ADDOPTS", "--rootdir=.")
    test = tmp_path / "test_thing.py"
    test.write_text("def test_thing():\n    assert True\n")
    assert chosen_mutants.unfit(tmp_path, ("test_thing.py",)) == ""
    test.write_text("import pytest\ndef test_thing():\n    pytest.skip('no such thing here')\n")
    assert chosen_mutants.unfit(tmp_path, ("test_thing.py",)).startswith("1 skipped in ")
    test.write_text("def test_thing():\n    assert False\n")
    with pytest.raises(ValueError, match=r"test_thing.py::test_thing fails without a mutant"):
        chosen_mutants.unfit(tmp_path, ("test_thing.py",))


@pytest.mark.slow
def test_a_mutant_is_judged_by_a_valid_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import chosen_mutants

    (tmp_path / "test_thing.py").write_text(
        "import pathlib, pytest\n"
        "def test_limit():\n"
        "    runs = pathlib.Path('runs')\n"
        "    runs.write_text(runs.read_text() + '.' if runs.exists() else '.')\n"
        "    if len(runs.read_text()) < 3:\n"
        "        pytest.skip('no valid attempt of 7 in 30 s: a thread waited')\n"
        "    assert False\n"
    )
    tests = ("test_thing.py",)
    assert chosen_mutants.tried_validly(tmp_path, tests) == ("test_thing.py::test_limit - assert False", "")
    (tmp_path / "runs").unlink()
    monkeypatch.setattr(chosen_mutants, "VALID_TRIES", 2)
    failed, undecided = chosen_mutants.tried_validly(tmp_path, tests)
    assert not failed
    assert "no valid attempt of 7" in undecided
