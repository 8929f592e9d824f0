"""The ``./dev`` script: its environment is made once, made again when stale, and never left half made."""

from __future__ import annotations

import fcntl
import importlib.machinery
import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev(tmp_path: Path) -> ModuleType:
    """A copy of the script in a project of its own, loaded as a module."""
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    loader = importlib.machinery.SourceFileLoader("dev_script", str(tmp_path / "dev"))
    spec = importlib.util.spec_from_loader("dev_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Programs:
    """Stands in for ``subprocess``: notes every command, makes what ``venv`` makes, ends with ``status``."""

    def __init__(self, dev: ModuleType) -> None:
        self.dev = dev
        self.commands: list[list[str]] = []
        self.status = 0

    def run(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if "venv" in command:
            self.dev.PYTHON.parent.mkdir(parents=True)
            self.dev.PYTHON.touch()
        return subprocess.CompletedProcess(command, self.status)

    def take(self) -> list[str]:
        """The words after ``-m`` of each command since the last call."""
        words = [" ".join(command[2:4]) for command in self.commands]
        self.commands.clear()
        return words


@pytest.fixture
def programs(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Programs:
    stand_in = Programs(dev)
    monkeypatch.setattr(dev.subprocess, "run", stand_in.run)
    return stand_in


@pytest.mark.parametrize(("kept", "prefix"), [("1", ".venv/bytecode"), ("", None), (None, None)])
def test_byte_code_is_kept_where_the_machine_keeps_none(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: str | None, prefix: str | None
) -> None:
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    if kept is not None:
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", kept)
    env = dev.inside()
    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert env.get("PYTHONPYCACHEPREFIX") == (str(tmp_path / prefix) if prefix else None)


def install_target(programs: Programs) -> str:
    return programs.commands[-1][-1]


def test_environment_is_made_once(dev: ModuleType, programs: Programs) -> None:
    dev.environment("test")
    assert install_target(programs) == f"{dev.ROOT}[test]"
    assert programs.take() == [f"venv {dev.VENV}", "pip install"]
    dev.environment("test")
    assert programs.take() == []


def test_extras_add_up_and_changed_project_installs_again(dev: ModuleType, programs: Programs) -> None:
    dev.environment("test")
    programs.take()
    dev.environment("lint")
    wanted = programs.commands[-1][4:]
    assert programs.take() == ["pip install"]
    assert "--editable" not in wanted, "rnic is there, and would be compiled once more"
    named = {re.split(r"[\[>=<;]", word)[0] for word in wanted}
    assert {"mypy", "import-linter", "pytest", "numpy"} <= named, "of extras that an extra names, too"
    assert "rnic" not in named
    dev.environment("test")
    assert programs.take() == []
    with (dev.ROOT / "pyproject.toml").open("a") as project:
        project.write("\n# changed\n")
    dev.environment("test")
    assert install_target(programs) == f"{dev.ROOT}[lint,test]"
    assert programs.take() == ["pip install"], "the environment itself is kept"


def test_one_sdist_at_a_time(dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two builds at the same time would remove each other's folder of the tree."""
    built: list[str] = []

    def build(*command: object) -> int:
        with open(dev.ROOT / ".venv.lock") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (tmp_path / "rnic-0.1.0.tar.gz").touch()
        built.append(str(command[3]))
        return 0

    monkeypatch.setattr(dev, "environment", lambda *_: None)
    monkeypatch.setattr(dev, "run", build)
    assert dev.make_sdist(tmp_path).name == "rnic-0.1.0.tar.gz"
    assert built == ["--sdist"]


def test_an_extra_that_is_not_there_is_named(dev: ModuleType, programs: Programs) -> None:
    dev.environment("test")
    with pytest.raises(dev.UsageError, match="setup tets: unknown extra; use one of cocotb, docs"):
        dev.environment("tets")
    programs.take()
    dev.environment("test")
    assert programs.take() == [], "what there was is there still"


def test_changed_c_sources_build_the_libraries_again(dev: ModuleType, programs: Programs) -> None:
    """Else programs would load libraries that the NIC process does not understand."""
    source = dev.ROOT / "src" / "rnic" / "abi" / "src" / "qp.c"
    source.parent.mkdir(parents=True)
    source.write_text("one\n")
    dev.environment("test")
    assert programs.take() == [f"venv {dev.VENV}", "pip install"]
    source.write_text("two\n")
    dev.environment("test")
    assert programs.take() == ["rnic.abi.build"]
    dev.environment("test")
    assert programs.take() == []
    (dev.ROOT / "src" / "rnic" / "spec").mkdir()
    (dev.ROOT / "src" / "rnic" / "spec" / "attach.py").write_text("VERSION = 5\n")
    programs.status = 1
    for _ in range(2):
        with pytest.raises(dev.TaskError, match="could not be built"):
            dev.environment("test")


def test_environment_of_another_place_is_made_anew(dev: ModuleType, programs: Programs) -> None:
    dev.environment("test")
    dev.STAMP.write_text(dev.STAMP.read_text().replace(str(dev.ROOT), "/elsewhere"))
    shutil.rmtree(dev.VENV / "bin")
    programs.take()
    dev.environment("docs")
    assert install_target(programs) == f"{dev.ROOT}[docs]"
    assert programs.take() == [f"venv {dev.VENV}", "pip install"]


def test_failed_install_leaves_no_stamp(dev: ModuleType, programs: Programs) -> None:
    dev.environment("test")
    programs.status = 1
    with pytest.raises(dev.TaskError, match="pip failed, see above"):
        dev.environment("lint")
    assert dev.read_stamp() == {}


def test_half_made_environment_is_removed(dev: ModuleType, programs: Programs) -> None:
    programs.status = 1
    with pytest.raises(dev.TaskError, match="apt install python3-venv"):
        dev.environment()
    assert not dev.VENV.exists()


def test_missing_ensurepip_is_told(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
    with pytest.raises(dev.TaskError, match="apt install python3-venv"):
        dev.environment()
    assert not dev.VENV.exists()


def test_old_python_goes_on_under_a_newer_one(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(dev, "OLDEST", (99, 0))
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    with pytest.raises(dev.TaskError, match="too old"):
        dev.choose_python()
    monkeypatch.setattr(dev, "OLDEST", (99, 11))
    monkeypatch.setattr(dev.shutil, "which", lambda name: "/new/python" if name == "python3.12" else None)
    monkeypatch.setattr(dev.os, "execv", lambda path, args: called.append(args))
    with pytest.raises(dev.TaskError):  # only since the stand-in comes back
        dev.choose_python()
    assert called[0][0] == "/new/python"


COVERAGE = """{"files": {
 "src/rnic/wire/bth.py": {"summary":
  {"covered_lines": 90, "covered_branches": 4, "num_statements": 95, "num_branches": 5}},
 "src/rnic/cli/main.py": {"summary":
  {"covered_lines": 1, "covered_branches": 0, "num_statements": 9, "num_branches": 1}}
}}"""


@pytest.mark.parametrize(("covered", "status"), [(90, 1), (91, 0)])
def test_coverage_floor(
    dev: ModuleType,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    covered: int,
    status: int,
) -> None:
    monkeypatch.setattr(dev, "COVERAGE_FLOORS", {"wire": 95})
    text = COVERAGE.replace('"covered_lines": 90', f'"covered_lines": {covered}')
    (dev.ROOT / "coverage.json").write_text(text)
    assert dev.check_coverage() == status
    output = capsys.readouterr()
    assert f"{covered + 4:.1f} %   (at least 95 %)" in output.out
    assert ("too low in wire" in output.err) == bool(status)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nonsense"], 2, "nonsense: unknown task; use one of demo, test"),
        (["lint", "more"], 2, "lint more: this task takes no arguments"),
        (["bench", "nonsense"], 2, "bench nonsense: unknown benchmark; use one of"),
        (["--help"], 0, "./dev demo"),
        ([], 2, "./dev demo"),
    ],
)
def test_arguments(tmp_path: Path, words: list[str], status: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "dev"), *words], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def test_a_wheel_gets_the_oldest_tag_and_no_library_of_this_machine(dev: ModuleType, tmp_path: Path) -> None:
    command = dev.repair_command(tmp_path / "dist", tmp_path / "a b.whl", "aarch64")
    assert command[:5] == [str(dev.PYTHON), "-c", dev.AUDITWHEEL, "aarch64", "repair"]
    assert command[command.index("--plat") + 1] == "manylinux_2_28_aarch64"
    excluded = {word for flag, word in itertools.pairwise(command) if flag == "--exclude"}
    assert excluded == {"libibverbs.so.1", "librdmacm.so.1"}
    assert command[-3:] == ["-w", str(tmp_path / "dist"), str(tmp_path / "a b.whl")]


def test_a_wheel_is_compiled_for_the_machine_and_the_python(dev: ModuleType) -> None:
    env = dev.build_environment(sys.executable, "aarch64", "3.12")
    assert env["CC"].endswith("-m ziglang cc -target aarch64-linux-gnu.2.28")
    assert env["SETUPTOOLS_EXT_SUFFIX"] == ".cpython-312-aarch64-linux-gnu.so"
    assert (env["_PYTHON_HOST_PLATFORM"], env["RNIC_REQUIRE_COMPILED"]) == ("linux-aarch64", "1")


def test_zig_finds_the_headers_of_debians_python(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ``pyconfig.h`` includes that of the machine, which stands elsewhere; one of another origin is alone."""
    (python := tmp_path / "python").write_text(
        f"#!/bin/sh\necho {tmp_path}/include/python3.12/pyconfig.h some-gnu 3.12\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(dev, "ROOT", tmp_path / "tree")
    assert dev.debian_headers(str(python), "aarch64") == ""
    (own := tmp_path / "include/some-gnu/python3.12/pyconfig.h").parent.mkdir(parents=True)
    own.write_text("/* of the machine */")
    folder = tmp_path / "tree/build/headers"
    assert dev.debian_headers(str(python), "aarch64") == f" -idirafter {folder}"
    assert (folder / "aarch64-linux-gnu/python3.12/pyconfig.h").read_text() == own.read_text()


def test_the_newest_glibc_of_a_wheel_is_read_from_every_library(dev: ModuleType, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.writestr("rnic/_engine.so", b"\x7fELF\0GLIBC_2.4\0GLIBC_2.17\0")
        wheel.writestr("rnic/abi/lib/libibverbs.so.1", b"\x7fELF\0GLIBC_2.28\0GLIBC_2.3.4\0")
        wheel.writestr("rnic/page.py", b"GLIBC_2.99\0")
    assert dev.newest_glibc(tmp_path / "some.whl") == dev.GLIBC == 28


def interpreter(path: Path, version: str, venv: bool = True) -> None:
    """Stands in for a Python: says its version, and makes environments or not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    status = 0 if venv else 1
    path.write_text(f"#!/bin/sh\ncase $2 in *ensurepip*) exit {status};; esac\necho {version}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """With 3.11 in ``.venv``, 3.12 in pyenv, 3.13 without ensurepip, a 3.14t that does not run, and no 3.14."""
    interpreter(dev.PYTHON, "3.11")
    interpreter(tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python3", "3.12")
    interpreter(tmp_path / "path" / "python3.11", "3.11")
    interpreter(tmp_path / "path" / "python3.13", "3.13", venv=False)
    (broken := tmp_path / "path" / "python3.14t").write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(dev, "environment", lambda *extras: None)
    return dev


def test_each_python_that_is_not_tried_has_its_reason(machine: ModuleType, tmp_path: Path) -> None:
    found, why = machine.other_pythons()
    assert found == {"3.12": str(tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python3")}
    assert why == {
        "3.11": "./dev test runs the whole suite with it (.venv)",
        "3.13": f"{tmp_path}/path/python3.13 cannot make virtual environments; on Debian or Ubuntu: "
        "apt install python3.13-venv",
        "3.14": f"not on this machine: no python3.14 on PATH, none below {tmp_path}/pyenv/versions",
        "3.14t": f"{tmp_path}/path/python3.14t does not run: no such version",
    }


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["3.14"], 1, "pythons 3.14: not on this machine: no python3.14 on PATH, "),
        (
            ["3.12", "3.13"],
            1,
            "python3.13 cannot make virtual environments; on Debian or Ubuntu: apt install python3.13-v",
        ),
        (["3.9"], 2, "pythons 3.9: unknown version; use 3.11, 3.12, 3.13, 3.14, 3.14t"),
    ],
)
def test_a_python_that_is_asked_for_and_not_here_is_an_error(
    machine: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str
) -> None:
    assert machine.main(["pythons", *words]) == status
    assert said in capsys.readouterr().err


def test_without_another_python_nothing_is_built(
    machine: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert machine.main(["pythons"]) == machine.LEFT_OUT
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1:3] for line in said] == [
        [" LEFT OUT", f" Python {version}"] for version in ("3.11", "3.12", "3.13", "3.14", "3.14t")
    ]


def test_a_machine_without_git_builds_all_the_same(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert dev.build_date() == {}
