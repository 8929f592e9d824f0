"""What is shipped: the sdist holds what a build needs, wheels hold what they should, versions and addresses agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import rnic

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a checkout has."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy)
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, copy)
    left_out = shutil.ignore_patterns("*.so", "*.so.1", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=left_out)
    return copy


def backend(tree: Path, call: str, **more: str) -> None:
    """One call of the build backend, without an environment of its own."""
    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 is not installed: pip install setuptools")
    code = f"from setuptools import build_meta; build_meta.{call}('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=tree, env={**os.environ, **more}, check=True, timeout=120,
                   capture_output=True)  # fmt: skip


@pytest.mark.slow
def test_sdist_holds_every_source_of_a_compiled_part(tree: Path) -> None:
    backend(tree, "build_sdist", RNIC_PURE="1")
    with tarfile.open(next((tree / "dist").glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(tree))
        for pattern in ("*.pyx", "*.pxi", "*.pxd", "*.pyi", "*.c", "*.h", "*.py")
        for path in (tree / "src").rglob(pattern)
    }
    assert wanted - names == set()
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md"} <= names


@pytest.mark.slow
def test_pure_wheel_serves_every_machine_and_knows_its_pages(tree: Path) -> None:
    backend(tree, "build_wheel", RNIC_PURE="1", RNIC_REPOSITORY="https://example.org/rnic/")
    (wheel,) = (tree / "dist").glob("*.whl")
    assert wheel.name == f"rnic-{rnic.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(f"rnic-{rnic.__version__}.dist-info/METADATA").decode())
    assert not [name for name in names if name.endswith((".so", ".so.1", ".pyx"))]
    assert {"rnic/py.typed", "rnic/engine/_engine.pyi", "rnic/sim/native/_fabric.pyi"} <= set(names)
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert urls["Source"] == "https://example.org/rnic"
    assert {"Source", "Documentation", "Changelog", "Issues"} == urls.keys()


def test_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rnic.__version__"}
    text = (ROOT / "src" / "rnic" / "__init__.py").read_text()
    assert re.findall(r'^__version__ = "(\d+\.\d+\.\d+)"$', text, re.MULTILINE) == [rnic.__version__]


def test_workflow_has_every_python_that_the_metadata_names() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = {found[1] for line in classifiers if (found := re.fullmatch(r".*Python :: (3\.\d+)", line))}
    for file, job in (("check.yml", "pythons"), ("release.yml", "try")):
        jobs = yaml.safe_load((ROOT / ".github" / "workflows" / file).read_text())["jobs"]
        assert named <= set(jobs[job]["strategy"]["matrix"]["python"])
    assert set(jobs["wheels"]["steps"][1]["with"]["python-version"].split()) == named


def test_an_untried_python_stops_no_check_and_gets_no_wheel() -> None:
    """A release that builds and tests a wheel that was never tried would end with it."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())["jobs"]
    assert jobs["free-threaded"]["continue-on-error"] is True
    assert jobs["free-threaded"]["steps"][1]["with"]["python-version"] == "3.14t"
    assert [name for name in jobs["pythons"]["strategy"]["matrix"]["python"] if name.endswith("t")] == []
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert [name for name in release["try"]["strategy"]["matrix"]["python"] if name.endswith("t")] == []


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_commands_of_the_workflows_are_there(path: Path) -> None:
    for command in re.findall(r"run: (\S+)", path.read_text()):
        if command.startswith(("./", ".ci/")):
            assert os.access(ROOT / command, os.X_OK), command


def test_the_aarch64_part_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "dirname").symlink_to(shutil.which("dirname") or "/usr/bin/dirname")
    done = subprocess.run(
        ["/bin/bash", ROOT / ".ci" / "aarch64"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (77, "")
    assert done.stderr.startswith("aarch64: LEFT OUT: no mmdebstrap: apt install mmdebstrap ")


@pytest.mark.parametrize("script", ["newest-python", "aarch64"])
def test_a_part_of_the_check_explains_itself(script: str) -> None:
    """And takes no option for a directory."""
    path = ROOT / ".ci" / script
    helped = subprocess.run([path, "--help"], capture_output=True, text=True, check=False, timeout=120)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert f"  .ci/{script} [DIRECTORY [PYTEST ARGUMENTS...]]\n" in helped.stdout
    assert "Exit status 77" in helped.stdout
    assert not re.search("^#|set -euo", helped.stdout, re.MULTILINE)
    wrong = subprocess.run([path, "--halp"], capture_output=True, text=True, check=False, timeout=120)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == f"{script}: --halp: no such option; --help says what there is\n"


NOT_OF_THE_CHECK = ("run", "release_files.py", "try_wheel.py", "record.json", "commit-subject", "words.toml")
"""Those of ./dev release and wheels, what is made, a hook's, and the lists of words.py."""


def test_the_check_runs_every_script_beside_it() -> None:
    check = "".join(path.read_text() for path in (ROOT / ".ci" / "run", ROOT / ".ci" / "steps.py", ROOT / "dev"))
    for path in (ROOT / ".ci").iterdir():
        if path.name not in (*NOT_OF_THE_CHECK, "__pycache__"):
            assert f".ci/{path.name}" in check


def test_no_page_carries_what_a_merge_left_behind() -> None:
    """Tools that read code fail on such lines; a page shows them."""
    pages = [path for pattern in ("*.md", "docs/**/*.md", "interop/*.md") for path in ROOT.glob(pattern)]
    assert ROOT / "README.md" in pages
    left = [
        path.name for path in pages if re.search(r"^(<<<<<<<|=======|>>>>>>>)( |$)", path.read_text(), re.MULTILINE)
    ]
    assert left == []


def test_packages_of_others_have_this_version() -> None:
    """``debian`` was built and installed by hand (docs/platforms.md); ``conda`` was not tried."""
    assert (ROOT / "debian" / "changelog").read_text().startswith(f"rnic ({rnic.__version__}) ")
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == rnic.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    control = (ROOT / "debian" / "control").read_text()
    for requirement in project["project"]["dependencies"]:
        name, oldest = re.split(">=", requirement.partition(";")[0])
        assert f"{'python-isal' if name == 'isal' else name} >={oldest}" in recipe["requirements"]["run"]
        assert name == "isal" or f"python3-{name} (>= {oldest})" in control
    for requirement in project["build-system"]["requires"]:
        assert requirement.replace(">=", " >=") in recipe["requirements"]["host"]
