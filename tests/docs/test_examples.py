"""Runs the examples of the README and the documentation, each as a script of its own in an empty directory: the Python
ones, and on the page of how-tos the shell's too, in a network namespace with the addresses of the page.

A fenced ``python`` block must end well, with nothing on stderr. A fenced ``text`` block after it (one empty line
between) is what it prints: there ``...`` stands for any characters, and alone on a line for any lines. A comment on
the line above a block changes how it is run:

``<!-- example: with the next -->``  is started, and once it has printed a line, the next block runs beside it
``<!-- example: beside the next -->``  is started, and the next block runs beside it at once: it waits by itself
``<!-- example: in containers -->``  is for a container engine: test_containers.py runs it
``<!-- example: not run, REASON -->``  is skipped, and the reason printed
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rnic.abi.library_paths import LIBRARIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted(path for folder in (".", "zh") for path in (ROOT / "docs" / folder).glob("*.md"))
        if "```python\n" in page.read_text(encoding="utf-8")
    ),
]
SECONDS = 30

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"<!-- example: (.*) -->\n\Z")
TOGETHER = ("with the next", "beside the next")
ELSEWHERE = {"in containers": "tests/docs/test_containers.py runs it, with --full"}


@dataclass
class Block:
    """A fenced block: its text, the line of the page it starts at, the note above it, and what it prints."""

    page: str
    line: int
    note: str
    code: str
    printed: str | None = None
    language: str = "python"


SHELLS = ("sh", "bash", "shell", "console")
SHELL_PAGES = ("howto.md",)
"""Pages whose shell examples run, every one."""
SHELL_PROGRAMS = ("unshare", "ip", "ibv_rc_pingpong")
NAMESPACE = """\
ip link set lo up && ip address add 192.0.2.1/32 dev lo && ip address add 192.0.2.2/32 dev lo
mkdir -m 700 r
export RNIC_RUNTIME_DIR=$PWD/r
"""
WAIT = "until [ -s first.out ] || ! kill -0 $!; do sleep 0.1; done\n"


def blocks_of(page: str, text: str) -> Iterator[Block]:
    languages = ("python", "sh") if Path(page).name in SHELL_PAGES else ("python",)
    last_end = 0
    block: Block | None = None
    for match in FENCE.finditer(text):
        between = text[last_end : match.start()]
        last_end = match.end()
        if match[1] == "text" and block is not None and between in ("\n", "\n\n"):
            block.printed = match[2]
        if block is not None:
            yield block
            block = None
        if match[1] in languages:
            note = NOTE.search(between)
            line = text.count("\n", 0, match.start()) + 1
            block = Block(page, line, note[1] if note else "", match[2], language=match[1])
    if block is not None:
        yield block


def scenes(blocks: list[Block]) -> Iterator[list[Block]]:
    """Blocks that run together, the last of them in the foreground."""
    scene: list[Block] = []
    for block in blocks:
        scene.append(block)
        if block.note not in TOGETHER:
            yield scene
            scene = []
    assert not scene, f"{scene[0].page}:{scene[0].line} wants a next block, and there is none"


def all_scenes() -> list[list[Block]]:
    return [
        scene
        for page in PAGES
        for scene in scenes(list(blocks_of(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))))
    ]


NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]


@functools.cache
def may_have_networks() -> bool:
    if any(shutil.which(name) is None for name in ("unshare", "ip", "nsenter")):
        return False
    done = subprocess.run(NETWORK, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout == "up\n"


@contextmanager
def network_of_its_own() -> Iterator[list[str]]:
    """What a scene's programs are started with, so that their ports are nobody else's; nothing where it may not."""
    if not may_have_networks():
        yield []
        return
    with subprocess.Popen(NETWORK, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        yield ["nsenter", f"--target={holder.pid}", "--user", "--net", "--preserve-credentials"]
        # closing its input ends it


def start(block: Block, folder: Path, where: list[str]) -> subprocess.Popen[str]:
    script = folder / f"line_{block.line}.py"
    script.write_text(block.code, encoding="utf-8")
    return subprocess.Popen(
        [*where, sys.executable, "-u", "-W", "error", str(script)],
        cwd=folder,
        env={**os.environ, "RNIC_RUNTIME_DIR": str(folder / "run")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def matches(printed: str, output: str) -> bool:
    lines = [
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in printed.splitlines()
    ]
    return re.fullmatch("".join(lines), output) is not None


def finish(block: Block, process: subprocess.Popen[str], output: str = "") -> None:
    rest, errors = process.communicate(timeout=SECONDS)
    place = f"{block.page}:{block.line}"
    assert process.returncode == 0, f"{place} ended with status {process.returncode}:\n{errors}"
    assert errors == "", f"{place} wrote to stderr:\n{errors}"
    if block.printed is not None:
        assert matches(block.printed, output + rest), (
            f"{place} prints\n{output + rest}\nand the page says\n{block.printed}"
        )


def play_in_shells(scene: list[Block], folder: Path) -> None:
    """What comes before the last runs in the background, and must end well, too."""
    missing = [name for name in SHELL_PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    namespace = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--mount-proc", "--fork"]
    if subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("the kernel lets this user make no namespaces")
    if not (LIBRARIES / "libibverbs.so.1").exists():
        pytest.skip("rnic exec needs the C library, which was not built here")
    script = NAMESPACE
    for number, block in enumerate(scene):
        (folder / f"{number}.sh").write_text(block.code, encoding="utf-8")
        if block is scene[-1]:
            script += f"bash -eu {number}.sh\n"
        else:
            script += f"bash -eu {number}.sh > first.out &\n{WAIT if block.note == 'with the next' else ''}"
    script += "wait\n" if len(scene) > 1 else ""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*namespace, "bash", "-eu", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    place = f"{scene[-1].page}:{scene[-1].line}"
    assert done.returncode == 0, f"{place} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
    if scene[-1].printed is not None:
        assert matches(scene[-1].printed, done.stdout), (
            f"{place} prints\n{done.stdout}\nand the page says\n{scene[-1].printed}"
        )


def play(scene: list[Block], folder: Path) -> None:
    running: list[tuple[Block, subprocess.Popen[str], str]] = []
    with network_of_its_own() as where:
        try:
            for block in scene:
                process = start(block, folder, where)
                ready = ""
                if block is not scene[-1]:
                    assert process.stdout is not None
                    ready = process.stdout.readline()  # its first line says that it is ready
                running.append((block, process, ready))
            for block, process, ready in reversed(running):
                finish(block, process, ready)
        finally:
            for _, process, _ in running:
                process.kill()
                process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("scene", all_scenes(), ids=lambda scene: f"{scene[0].page}:{scene[0].line}")
def test_example(scene: list[Block], tmp_path: Path) -> None:
    if scene[-1].note.startswith("not run, "):
        pytest.skip(scene[-1].note.removeprefix("not run, "))
    if scene[-1].note in ELSEWHERE:
        pytest.skip(ELSEWHERE[scene[-1].note])
    if scene[-1].language == "sh":
        play_in_shells(scene, tmp_path)
    else:
        play(scene, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_examples(page: Path) -> None:
    assert list(blocks_of(page.name, page.read_text(encoding="utf-8")))


PAGE = """\
```python
print("one", 1)
```

```text
one ...
```

<!-- example: with the next -->
```python
print("ready")
```

```python
import sys
sys.exit(3)
```

```sh
not python
```
"""


def test_blocks_are_found() -> None:
    first, second, third = blocks_of("page", PAGE)
    assert (first.line, first.note, first.printed) == (1, "", "one ...\n")
    assert (second.note, second.code, second.printed) == ("with the next", 'print("ready")\n', None)
    assert [len(scene) for scene in scenes([first, second, third])] == [1, 2]


@pytest.mark.slow
def test_a_bad_example_fails(tmp_path: Path) -> None:
    blocks = list(blocks_of("page", PAGE))
    play([blocks[0]], tmp_path)
    with pytest.raises(AssertionError, match="ended with status 3"):
        play(blocks[1:], tmp_path)


def test_shell_blocks_are_found_where_they_run() -> None:
    found = list(blocks_of("docs/howto.md", PAGE))
    assert [(block.language, block.code) for block in found][-1] == ("sh", "not python\n")
    assert "sh" not in {block.language for block in blocks_of("docs/start.md", PAGE)}


TALKERS = """\
<!-- example: with the next -->
```python
import socket
with socket.create_server(("127.0.0.1", 7474)) as listener:
    print("ready", flush=True)
    listener.accept()[0].close()
```

```python
import socket
socket.create_connection(("127.0.0.1", 7474)).close()
```
"""


@pytest.mark.slow
def test_examples_with_the_same_port_run_at_once(tmp_path: Path) -> None:
    if not may_have_networks():
        pytest.skip("the kernel lets this user make no namespaces")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = TALKERS.replace("7474", str(taken.getsockname()[1]))
        play(list(blocks_of("page", page)), tmp_path)


def unaccounted(page: str, text: str) -> list[str]:
    """Blocks of shell that nothing runs, without a word why; and notes that mean nothing."""
    found = []
    run = {block.line: block for block in blocks_of(page, text)}
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match[1] in SHELLS and line not in run:
            found.append(f"{page}:{line}: a block of {match[1]} that no test runs")
        if line in run and run[line].note not in ("", *TOGETHER, *ELSEWHERE):
            reason = run[line].note.partition("not run, ")[2]
            if len(reason.split()) < 3:
                found.append(f"{page}:{line}: {run[line].note!r} is no reason")
    return found


@pytest.mark.parametrize("name", SHELL_PAGES)
def test_each_shell_block_of_the_howtos_runs_or_says_why_not(name: str) -> None:
    assert unaccounted(name, (ROOT / "docs" / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("```sh\ntrue\n```\n", 0),
        ("```console\n$ true\n```\n", 1),
        ("```bash\ntrue\n```\n", 1),
        ("<!-- example: in containers -->\n```sh\ntrue\n```\n", 0),
        ("<!-- example: not run, it wants a machine of yours -->\n```sh\ntrue\n```\n", 0),
        ("<!-- example: not run,  -->\n```sh\ntrue\n```\n", 1),
        ("<!-- example: some day -->\n```sh\ntrue\n```\n", 1),
    ],
)
def test_a_block_that_nothing_runs_is_found(text: str, faults: int) -> None:
    assert len(unaccounted("howto.md", text)) == faults


@pytest.mark.slow
def test_a_bad_shell_example_fails(tmp_path: Path) -> None:
    good = Block("page", 1, "with the next", "echo ready; sleep 0.2\n", language="sh")
    for number, (code, says) in enumerate((("false\nexit 0\n", "ended with status 1"), ("echo 2\n", "the page says"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(AssertionError, match=says):
            play_in_shells([good, Block("page", 5, "", code, "1\n", "sh")], folder)


@pytest.mark.parametrize(
    ("printed", "output", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a ... c\n", "a b c\n", True),
        ("a\n...\nc\n", "a\nb\nb\nc\n", True),
        ("a\n...\nc\n", "a\nc\n", True),
        ("a\n", "a\nb\n", False),
    ],
)
def test_printed_text_is_compared(printed: str, output: str, same: bool) -> None:
    assert matches(printed, output) is same
