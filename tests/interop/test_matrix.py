"""The interop matrix, without peers: rows that run, are unsupported or break, reports of others, the page."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rnic.conform import report
from rnic.conform.runner import DEVIATION, FAIL, PASS, Result
from rnic.conform.script import scripts

INTEROP = Path(__file__).resolve().parents[2] / "interop"
SCRIPTS = [script for script in scripts() if script.name in ("gap", "icrc", "marked")]


@pytest.fixture(scope="module")
def matrix() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(INTEROP))
        yield importlib.import_module("matrix")


@pytest.fixture
def sent_in(tmp_path: Path) -> Path:
    """A report whose words are to be shown and nothing more."""
    verdicts = (PASS, FAIL, DEVIATION)
    details = ("", "<script>alert(1)</script> | [x](javascript:x)", "no `CNP`")
    results = [Result(*each) for each in zip(SCRIPTS, verdicts, details, strict=True)]
    path = tmp_path / "report.json"
    path.write_text(report.as_json(results, "title", "<b>card</b>", "maker", 1024, "2026-11-30T10:00:00+00:00"))
    return path


def shell(code: str) -> tuple[str, ...]:
    return ("sh", "-c", code, "sh", "{report}")


def test_rows_run_are_unsupported_or_break(matrix: ModuleType, sent_in: Path) -> None:
    ran = matrix.run_row(matrix.Row("one", shell(f'cp {sent_in} "$1"')))
    assert (ran.state, ran.report.name) == (matrix.RAN, "<b>card</b>")
    failed = matrix.run_row(matrix.Row("one", shell(f'cp {sent_in} "$1"; exit 1')))
    assert failed.state == matrix.RAN, "some script failed, which is a result"
    absent = matrix.run_row(matrix.Row("two", shell("echo no such card >&2; exit 127")))
    assert (absent.state, absent.why) == (matrix.NOT_SUPPORTED, "no such card")
    for code, why in (
        ("echo boom >&2; exit 3", "exit status 3: boom"),
        ("echo crash >&2; exit 1", "exit status 1: crash"),
        ("exit 1", "exit status 1"),
        ("exit 0", "its report: cannot be read: No such file or directory"),
        ('echo 7 > "$1"', "its report: is not a report: the file is 7: give an object"),
    ):
        assert matrix.run_row(matrix.Row("three", shell(code))) == matrix.Column("three", matrix.BROKEN, why)
    assert matrix.run_row(matrix.Row("four", shell("sleep 9")), 0.05).why == "no end within 0.05 s"
    assert matrix.run_row(matrix.Row("five", ("/none", "{report}"))).why == "/none: No such file or directory"


def test_the_page_shows_words_of_others_and_nothing_more(matrix: ModuleType, sent_in: Path) -> None:
    columns = [matrix.from_report(str(sent_in)), matrix.Column("two", matrix.NOT_SUPPORTED, "no *card*")]
    page = matrix.page(columns, "2026-11-30")
    assert "<" not in page.replace("\\<", "")
    assert r"| two | – | – | – | unsupported: no \*card\* |" in page
    assert r"| \<b\>card\</b\> | 1 pass, 1 fail, 1 deviation | – | – |" in page
    for script, sign in zip(SCRIPTS, ("pass", "**FAIL**", "deviates"), strict=True):
        assert f"| {script.name} | {matrix.text(script.clause)} | {sign} |" in page
    assert r"\[x\]\(javascript:x\)" in page
    assert "## Failures" in page
    assert "## Deviations" in page


def test_the_matrix_as_json(matrix: ModuleType, sent_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = f'own={sys.executable} -c "raise SystemExit(127)" {{report}}'
    assert matrix.main(["-k", "-", "--json", "--report", str(sent_in), "--row", row]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(peer["name"], peer["state"]) for peer in shown["peers"]] == [
        ("own", "unsupported"),
        ("<b>card</b>", "ran"),
    ]
    assert shown["peers"][1]["suites"]["responder"] == {"pass": 1, "fail": 1, "deviation": 1, "not applicable": 0}
    assert shown["peers"][1]["verdicts"]["marked"] == DEVIATION


def test_a_row_that_did_not_run_is_status_1(matrix: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert matrix.main(["-k", "-", "--row", "own=false {report}", "--out", str(page)]) == 1
    assert "did not run: exit status 1" in page.read_text()


def test_nothing_that_a_row_started_outlives_it(matrix: ModuleType, tmp_path: Path) -> None:
    """At its end or at its time limit: a child that nobody waits for is ended, too."""
    pid = tmp_path / "pid"
    for code, seconds, state in (("wait", 0.2, "no end within 0.2 s"), ("exit 3", 60, "exit status 3")):
        column = matrix.run_row(matrix.Row("one", shell(f"sleep 60 & echo $! > {pid}; {code}")), seconds)
        assert column.why == state
        assert not running(int(pid.read_text()))


@pytest.mark.slow
def test_a_row_that_ignores_sigterm_is_killed(matrix: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "ENDS", 0.5)
    began = time.monotonic()
    assert matrix.run_row(matrix.Row("one", shell("trap '' TERM; sleep 60; sleep 60")), 0.2).state == matrix.BROKEN
    assert time.monotonic() - began < 30


def running(pid: int) -> bool:
    """Return whether a process runs: one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_page_keeps_its_text_until_there_is_a_new_one(matrix: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("old " * 10_000)
    assert matrix.main(["-k", "-", "--row", f"own=cp {page} {tmp_path}/seen {{report}}", "--out", str(page)]) == 1
    assert page.read_text().startswith("# Interop matrix")
    assert "old" not in page.read_text()


def test_a_peer_whose_commands_fail_is_status_3(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = importlib.import_module("matrix_peer")
    for error, words in (
        (subprocess.TimeoutExpired(["/bin/cc"], 600), "cc: no end within 600 s"),
        (subprocess.CalledProcessError(1, ["cc", "-o"]), "cc: exit status 1"),
    ):

        def build(folder: Path, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(peer, "build_agent", build)
        for words_of_peer in (["nic-process", "report"], ["rxe", "4", "report"]):
            assert peer.main(words_of_peer) == peer.BROKEN == 3
            assert capsys.readouterr().err == f"{words}\n"


def test_a_listener_of_others_is_not_the_agent(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = importlib.import_module("matrix_peer")
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(peer, "PORT", other.getsockname()[1])
        monkeypatch.setattr(peer, "build_agent", lambda folder: folder / "agent")
        assert peer.main(["nic-process", "report"]) == peer.BROKEN
    assert "another program listens on TCP port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-k", "no such peer"], "no peer's name contains 'no such peer'"),
        (["--row", "x"], "is not NAME=COMMAND with {report} in it"),
        (["--row", "x='{report}"], "No closing quotation"),
        (["--row", "x=sleep 99 {report}", "--out", "/no/dir/p.md"], "--out /no/dir/p.md: cannot be written: No such"),
        (["--report", "/none"], "/none: cannot be read: No such file or directory"),
    ],
)
def test_wrong_arguments_are_one_line(
    matrix: ModuleType, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = matrix.main(["-k", "-", *args])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_our_own_peers_are_asked_by_commands_that_write_a_report(matrix: ModuleType) -> None:
    names = [row.name for row in matrix.ROWS]
    assert len(set(names)) == len(names) == 8
    assert len({name for name in names if name.startswith("Soft-RoCE")}) == 4, "two kernels, two families"
    assert all(any(matrix.REPORT in word for word in row.command) for row in matrix.ROWS)
    peer = importlib.import_module("matrix_peer")
    assert peer.main(["gateware", "report"]) == matrix.UNSUPPORTED == peer.UNSUPPORTED
    assert peer.main(["nonsense"]) == 2
    assert peer.main(["rxe", "4", "0.1", "report"]) == matrix.UNSUPPORTED
