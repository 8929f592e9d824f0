"""The list of programs and its runner: what the list promises, and how verdicts are read."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rnic.testing import own_network

PROGRAMS = Path(__file__).resolve().parents[2] / "programs"


@pytest.fixture(scope="module")
def runner() -> Iterator[ModuleType]:
    """The program as a module; it finds its neighbour through ``sys.path``, as when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROGRAMS))
        spec = importlib.util.spec_from_file_location("run_programs", PROGRAMS / "run_programs.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "run_programs", module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


def test_list_holds_every_program_and_way(runner: ModuleType) -> None:
    rows = list(runner.rows())
    titles = [row.title for row in rows]
    assert len(set(titles)) == len(titles)
    verbs = {f"ib_{verb}_{figure}" for verb in ("write", "read", "send", "atomic") for figure in ("bw", "lat")}
    pingpongs = {f"ibv_{name}_pingpong" for name in ("rc", "uc", "ud", "srq", "xsrq")}
    others = {"ibv_devices", "ibv_devinfo", "ibv_asyncwatch", "pyverbs", *runner.WHEELS, *runner.OTHER_PACKAGES}
    others = (others | {"recipe", "gtest"}) - {"curl"}
    managed = {"rping", "ucmatose", "udaddy", "mckey", "cmtime", "rdma_server", "qperf", "ibping", "fio", "dapltest"}
    sockets = {"rstream", "riostream", "rcopy", "udpong", "python3", "socat"}
    assert {row.program for row in rows} == verbs | pingpongs | others | managed | sockets
    by_cm = {row.program for row in rows if row.kind == "cm"}
    assert by_cm == managed | sockets | {row.program for row in rows if "-R" in row.options}
    assert {row.program for row in rows if row.sockets} == {"python3", "socat"}
    assert {row.peer for row in rows if row.sockets} == {(), ("curl",)}
    for name in ("rc", "uc", "ud", "srq"):
        mine = [row for row in rows if row.program == f"ibv_{name}_pingpong"]
        assert {"-e" in row.options for row in mine} == {True, False}, name
        assert all("-c" in row.options for row in mine), "data is checked in every run"
        assert any(row.peer for row in mine), "against rnic in Python"
    for name in verbs:
        ways = {option for row in rows if row.program == name for option in row.options}
        assert "--use_old_post_send" in ways
        if name.endswith("bw"):
            assert {"-q", "-b"} <= ways
    connections = {
        row.options[row.options.index("-c") + 1] for row in rows if row.program in verbs and "-c" in row.options
    }
    assert connections == {"UC", "UD", "XRC"}
    for transport in ("rc_v", "ud_v"):
        ucx = [row for row in rows if row.program == "ucx_perftest" and row.env["UCX_TLS"] == transport]
        tests = " ".join(row.options[1] for row in ucx)
        assert all(part in tests for part in ("tag", "put", "get", "am", "stream", "add", "swap")), transport
        assert any(row.short for row in ucx)
    for name in ("mpirun.mpich", "mpirun.openmpi"):
        assert {row.options[-1] for row in rows if row.program == name} == {"2", "4"}
    assert {row.tap for row in rows if row.program == "mpirun.openmpi"} == {True, False}
    assert len([row for row in rows if row.kind == "built"]) == 5
    assert {row.refused for row in rows if row.kind == "refused"} == {"use_cuda", "Protocol not supported"}
    assert sum(row.short for row in rows) > 60


@pytest.fixture
def tree(runner: ModuleType, tmp_path: Path) -> Any:
    """A distribution's tree with one program."""
    libraries = tmp_path / "usr/lib" / f"{platform.machine()}-linux-gnu"
    for path in (libraries / runner.trees._LOADER, libraries / "libibverbs.so.1.15.65.0", tmp_path / "usr/bin/rping"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (libraries / "libibverbs.so.1").symlink_to("libibverbs.so.1.15.65.0")
    return runner.trees.Tree("sid", tmp_path)


def test_a_distributions_programs_run_by_its_own_loader_on_our_libraries(tree: Any, tmp_path: Path) -> None:
    loader, option, path, program, *rest = tree.command(("rping", "-s"), "/our")
    assert Path(loader).parent in tree.libraries()
    assert (option, path.split(":")[0], program, rest) == (
        "--library-path",
        "/our",
        f"{tmp_path}/usr/bin/rping",
        ["-s"],
    )
    assert tree.command(("python3", "a.py"), "/our") == ["python3", "a.py"], "not of the tree"
    assert tree.describe() == "sid, rdma-core 65"


def test_rows_that_a_distribution_cannot_run_say_why(runner: ModuleType, tree: Any) -> None:
    rows = {row.title: runner.Bench._missing_in(tree, row) for row in runner.rows()}
    assert rows["rping -V -C 20"] is None
    assert rows["ibv_devices"] == "sid has no ibv_devices"
    assert rows["pyverbs tests/run_tests.py -v (Debian's own test suite)"] == "sid ships no tests of pyverbs"
    assert rows["recipe mpi (the job's own commands)"] == "not a program of sid"


def test_a_distribution_that_is_not_to_be_had_is_left_out(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RNIC_TREES", str(tmp_path))
    monkeypatch.setattr(runner.trees.shutil, "which", lambda name: None)
    given = runner.argparse.Namespace(distribution=["sid"])
    assert runner.columns(given, tmp_path, tmp_path, tmp_path) == runner.UNAVAILABLE
    assert capsys.readouterr().err == "programs: sid: left out: no mmdebstrap: apt-get install mmdebstrap\n"


GTEST = """\
[     INFO ] dc_x is not available
[ RUN      ] rc_verbs/first.case/0 <rc_verbs/rnic0:1>
[       OK ] rc_verbs/first.case/0 (9 ms)
[ RUN      ] rc_verbs/second.case/0 <rc_verbs/rnic0:1>
[     SKIP ] (!check_atomics(UCS_BIT(UCT_ATOMIC_OP_ADD), OP32))
[       OK ] rc_verbs/second.case/0 (1 ms)
[ RUN      ] rc_verbs/third.case/0 <rc_verbs/rnic0:1>
"""


@pytest.mark.parametrize(
    ("more", "status", "result"),
    [
        ("[       OK ] rc_verbs/third.case/0 (1 ms)\n", 0, "ok"),
        ("[       OK ] rc_verbs/third.case/0 (1 ms)\n", 1, "2 cases passed (at least 2 must), exit status 1"),
        (
            "uct/test.cc:7: Failure\n[  FAILED  ] rc_verbs/third.case/0\n",
            1,
            "third.case/0 failed: uct/test.cc:7: Failure",
        ),
        ("", 134, "third.case/0 failed: did not end"),
        ("[     SKIP ] (it rains)\n[       OK ] x\n", 0, "third.case/0: skipped without an allowed reason: it rains"),
    ],
)
def test_verdict_on_the_tests_of_ucx(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, more: str, status: int, result: str
) -> None:
    tests = runner.ucx_tests
    monkeypatch.setitem(tests.LEAST, "rc_verbs", 2)
    said, notes = tests.verdict(GTEST + more, status, "rc_verbs")
    assert said.removeprefix("rc_verbs/") == result
    if result == "ok":
        assert notes == ["2 passed, 1 skipped", "1 skipped: an atomic operation that the transport does not have"]


def test_what_is_left_out_of_the_tests_of_ucx_is_documented(runner: ModuleType) -> None:
    page = (PROGRAMS.parent / "docs" / "programs.md").read_text(encoding="utf-8")
    for case in runner.ucx_tests.LEFT_OUT:
        assert case.rstrip("*") in page
        suite_name = case.partition("/")[0]
        assert case in runner.ucx_tests.arguments(suite_name)[0].partition(":-")[2].split(":")
    for reason in runner.ucx_tests.SKIPS:
        assert reason in page


def test_sources_of_a_distribution(runner: ModuleType) -> None:
    sources = runner.ucx_tests.sources
    assert sources("deb http://there bookworm main\n# deb\n") == "deb-src http://there bookworm main\n# deb\n"
    assert sources("Types: deb\nURIs: http://there\n") == "Types: deb-src\nURIs: http://there\n"


def test_sources_of_another_suite(runner: ModuleType) -> None:
    keys = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    for text in (
        "deb http://there/debian bookworm main\n",
        "Types: deb\nURIs: http://there/debian\nSuites: bookworm\n",
    ):
        assert runner.ucx_tests.of_suite(text, "testing") == f"deb-src {keys} http://there/debian testing main\n"
    assert runner.ucx_tests.of_suite("deb http://there/ubuntu noble main\n", "testing") == ""


@pytest.fixture(scope="module")
def suite(runner: ModuleType) -> ModuleType:
    module: ModuleType = runner.suite
    return module


def test_counting_the_cases_of_pyverbs(suite: ModuleType) -> None:
    text = (
        "a ... ok\nb ... skipped 'There are no huge pages of size 2M allocated'\nc ... skipped 'because'\nd ... FAIL\n"
        "Ran 4 tests in 2.0s\n\nFAILED (failures=1, skipped=2)\n"
    )
    passed, skips, wrong = suite.count(text)
    assert (passed, skips) == (1, {"no huge pages on this machine": 1})
    assert wrong == ["d ... FAIL", "skipped without an allowed reason: because"]


@pytest.mark.parametrize(
    ("passed", "status", "result"),
    [
        (135, 0, "ok"),
        (134, 0, "134 cases passed (at least 135 must), exit status 0"),
        (140, 1, "140 cases passed (at least 135 must), exit status 1"),
    ],
)
def test_verdict_on_pyverbs(suite: ModuleType, passed: int, status: int, result: str) -> None:
    text = (
        "case ... a word of the library\nok\n" * passed
        + "x ... skipped 'There are no huge pages of size 2M allocated'\n"
    )
    text += f"Ran {passed + 1} tests in 2.0s\n\nOK (skipped=1)\n"
    assert suite.verdict(text, status) == (
        result,
        [f"{passed} passed, 1 skipped", "1 skipped: no huge pages on this machine"],
    )


def test_a_part_of_the_suite_has_a_number_of_its_own(suite: ModuleType) -> None:
    text = "x ... ok\n" * 9 + "Ran 9 tests in 2.0s\n\nOK\n"
    assert suite.verdict(text, 0, 9)[0] == "ok"
    assert suite.verdict(text, 0, suite.LEAST_CONNECTIONS)[0] == "9 cases passed (at least 10 must), exit status 0"


def test_skips_whose_reason_cannot_be_read_are_wrong(suite: ModuleType) -> None:
    text = "x ... skip\nRan 100 tests in 2.0s\n\nOK (skipped=1)\n"
    assert suite.verdict(text, 0)[0] == "1 cases were skipped, 0 of them with a reason"


def test_no_word_of_a_reason_stands_for_another(suite: ModuleType) -> None:
    said = {
        "Create QP type 8 is not supported": "raw packets, RSS, flow steering",
        "Can not run the test over non EFA device": "needs an EFA device",
        "Could not open mlx5 context (This is not an MLX5 device)": "needs an mlx5 device",
        "cuda-python 12.0+ must be installed to run CUDA tests": "needs CUDA",
    }
    for words, reason in said.items():
        assert [name for name, pattern in suite.SKIPS.items() if re.search(pattern, words)] == [reason]


def test_rows_without_their_program_are_left_out(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    row = next(runner.rows())
    runner.Bench(tmp_path, tmp_path, 1.0, tmp_path).run(row, 0)
    assert row.result == f"left out: ibv_devices is not installed: apt-get install {runner.PACKAGES}"
    assert row.good
    assert runner.totals([row]) == "1 rows: 0 good, 0 failed, 1 left out; 0 packets"


@pytest.fixture(scope="module")
def ends(runner: ModuleType) -> ModuleType:
    return sys.modules[runner.End.__module__]


def _shell(ends: ModuleType, name: str, script: str) -> Any:
    return ends.End(name, ["sh", "-c", script], dict(os.environ))


def test_ends_that_are_waited_for(ends: ModuleType, tmp_path: Path) -> None:
    with _shell(ends, "server", "sleep 0.05; echo good") as first, _shell(ends, "client", "exit 3") as second:
        ends.wait_all([first, second], 5.0, tmp_path)
        assert (first.status, first.text, second.status) == (0, "good\n", 3)


@pytest.mark.parametrize(("status", "seconds"), [(0, 0.15), (17, 0.05)], ids=["time is up", "the other has failed"])
def test_one_that_does_not_end_is_looked_at(
    ends: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, seconds: float
) -> None:
    monkeypatch.setattr(ends.shutil, "which", lambda name: None)
    with (
        _shell(ends, "server", f"echo bad luck; exit {status}") as first,
        _shell(ends, "client", "echo waiting; sleep 60; exit 1") as second,
    ):
        first.process.wait()
        with pytest.raises(ends.StuckError) as caught:
            ends.wait_all([first, second], 0.15, tmp_path, patience=0.05)
        assert str(caught.value) == f"no end of client within {seconds:.0f} s; server {status}: bad luck"
        report = "\n".join(caught.value.report)
        assert f"--- server ended with {status}: sh -c" in report
        assert "--- client runs: sh -c" in report
        assert "    said: waiting" in report
        assert f"  process {second.process.pid}: sh -c" in report
        assert ": sleep 60: State:" in report, "what it started is looked at"
        assert "    no stacks: gdb is not installed" in report
        assert "--- no NIC process runs" in report
        children = ends._family(second.process.pid)
    assert len(children) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in children[:1]), "it is ended, with all that it started"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
def test_report_shows_stacks_queues_and_the_recording(
    ends: ModuleType, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "_LOOK_SECONDS", 120.0)  # gdb reads symbols for 5 s, beside other tests for much longer
    capture = tmp_path / "wire.pcapng"
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{own_network()}.233", "--capture", str(capture)]
    # the look at its stack interrupts its sleep by an error of the kernel's own; if it ended, so would its NIC process
    sleeps = """
import contextlib, ctypes, time
ctypes.CDLL('libibverbs.so.1').ibv_get_device_list(None)
print('begun', flush=True)
while True:
    with contextlib.suppress(OSError):
        time.sleep(60)
"""
    with ends.End("program", [*command, "--", sys.executable, "-c", sleeps], env) as end:
        runtime = Path(env["RNIC_RUNTIME_DIR"])
        deadline = time.monotonic() + 120
        while "begun" not in end.text and time.monotonic() < deadline:  # before that it has nothing to show
            time.sleep(0.05)
        with pytest.raises(ends.StuckError) as caught:
            ends.wait_all([end], 1.0, runtime)
    report = "\n".join(caught.value.report)
    assert re.search(r"#\d+ .*(time_sleep|clock_nanosleep)", report), f"its stack:\n{report}"
    nic_process = report.partition("--- NIC process\n")[2]
    assert re.match(r"  process \d+: .*serve", nic_process), report
    assert re.search(r"^    #\d+ .*(epoll_wait|_iterate|PyEval)", nic_process, re.MULTILINE), f"its stack:\n{report}"
    assert "rnic0: event_port_change" in report
    assert re.search(r"    log:   File .*process.py.* in _iterate", report)
    assert ends.last_packets(capture)[0].startswith("--- wire.pcapng, the last of ")


@pytest.mark.slow
def _nic_process(runtime: Path, then: str) -> subprocess.Popen[bytes]:
    """What takes a NIC process's place: it listens, and does what it likes with signals."""
    script = (
        "import faulthandler, signal, socket, sys, time; sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); log = open(sys.argv[1] + '/nic.log', 'w');"
        "faulthandler.register(signal.SIGUSR1, log); sock.bind(sys.argv[1] + '/nic.sock'); sock.listen();"
        f"{then}"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(runtime)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    "then", ["print(flush=True); time.sleep(60)", "print(flush=True)\nwhile True: pass"], ids=["sleeps", "runs"]
)
def test_a_nic_process_that_does_not_end_is_looked_at_and_killed(
    ends: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(ends.shutil, "which", lambda name: None)
    with _nic_process(tmp_path, then) as process:
        seen = "\n".join(ends.end_nic_process(tmp_path, 0.2))
        assert process.wait(10) == -signal.SIGKILL
    assert f"process {process.pid}: " in seen
    assert "State:" in seen
    assert 'File "<string>", line' in seen, "its own stack, by its log"
    assert ends.end_nic_process(tmp_path) == [], "nobody is there any more"


def test_processes_that_end_while_one_looks_have_no_threads(ends: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    assert str(me) in [task.name for task in ends._tasks(me)]
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert ends._family(process.pid) == [process.pid]

    def ended(path: Path) -> list[Path]:
        raise ProcessLookupError(3, "No such process", str(path))

    monkeypatch.setattr(Path, "iterdir", ended)
    assert ends._family(me) == [me]
    assert ends.Had(lambda: [me]).of(1.0) == 1.0


@pytest.mark.slow
def test_seconds_in_which_a_nic_process_was_stopped_are_not_its_own(ends: ModuleType, tmp_path: Path) -> None:
    ends_then = "signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print(flush=True); time.sleep(60)"
    with _nic_process(tmp_path, ends_then) as process:
        process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(ends.end_nic_process, tmp_path, 0.2)
            time.sleep(0.6)  # three times what it has
            assert not ended.done()
            process.send_signal(signal.SIGCONT)
            assert ended.result(10) == []


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def test_what_processes_had_is_what_they_ran_or_slept(ends: ModuleType) -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy, subprocess.Popen(["sleep", "60"]) as asleep:
        while _state(asleep.pid) != "S":
            time.sleep(0.001)
        assert ends.Had(lambda: [asleep.pid]).of(5.0) == 5.0, "it sleeps, and could end"
        busy.send_signal(signal.SIGSTOP)
        while _state(busy.pid) != "T":
            time.sleep(0.001)
        had = ends.Had(lambda: [busy.pid, asleep.pid])
        assert had.of(5.0) == 0.0, "one was stopped, and the other may wait for it"
        busy.send_signal(signal.SIGCONT)
        while (ran := had.of(5.0)) == 0.0:
            time.sleep(0.001)
        assert 0.0 < ran < 5.0, "what it ran"
        busy.kill()
        asleep.kill()


@pytest.mark.slow
def test_programs_that_are_stopped_do_not_run_out_of_time(ends: ModuleType, tmp_path: Path) -> None:
    with _shell(ends, "program", "sleep 0.05") as end:
        end.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(ends.wait_all, [end], 0.2, tmp_path)
            time.sleep(0.6)
            assert not ended.done()
            end.process.send_signal(signal.SIGCONT)
            assert ended.result(10) is None


def test_a_sigterm_from_another_process_is_reported(runner: ModuleType, ends: ModuleType) -> None:
    with _shell(ends, "server", "exit 0") as server, _shell(ends, "client", "kill -TERM $$") as client:
        ends.wait_all([server, client], 5.0, Path("/nowhere"))
        assert runner.Run._verdict(server, client).startswith("client was terminated by a SIGTERM from another process")
        assert runner.Run._verdict(client, server, stayed=True) == "ok", "it was told to"


def test_list_is_printed_without_running() -> None:
    command = [sys.executable, str(PROGRAMS / "run_programs.py"), "--list", "--only", "ibv_rc_pingpong"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ibv_rc_pingpong -g 0 -n 200 -c -e" in done.stdout.splitlines()


def test_rings_want_the_data_path_in_the_program() -> None:
    command = [sys.executable, str(PROGRAMS / "run_programs.py"), "--shm", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "--shm: requires --bypass" in done.stderr) == (2, True)


@pytest.mark.parametrize(("ringed", "result"), [(5, "ok"), (0, "no packet used a ring")])
@pytest.mark.parametrize("shm", [True, False])
def test_what_may_go_by_rings_has_to(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ringed: int, result: str, shm: bool
) -> None:
    """Rows of reliable connections, with ``--shm`` alone: else a table by the wire would look as good."""
    bench = runner.Bench(tmp_path, tmp_path, 1.0, tmp_path, bypass=True, shm=shm)
    monkeypatch.setattr(runner.Run, "result", lambda self: "ok")
    counted = {"rx_packets": 7, "shm_packets": ringed}
    monkeypatch.setattr(runner, "_counted", lambda runtime, name="rx_packets": counted[name])
    monkeypatch.setattr(runner, "end_nic_process", lambda runtime: [])
    by_title = {row.title: row for row in runner.rows()}
    for title, expected in (
        ("ib_write_bw -x 0 -F -n 200", result if shm else "ok"),
        ("rping -V -C 20", result if shm else "ok"),
        ("ib_send_bw -x 0 -F -n 200 -c UD", "ok"),
        ("udaddy -c 4 -C 8", "ok"),
    ):
        assert bench._run(by_title[title], 1) == expected, title


def test_rows_with_rings_have_both_ends_on_one_device(runner: ModuleType, tmp_path: Path) -> None:
    by_title = {row.title: row for row in runner.rows()}

    def devices(title: str, shm: str) -> int:
        run = runner.Run(by_title[title], 3, {"RNIC_SHM": shm}, None, 1.0)
        return len({run._address(0), run._address(1)})

    plain, python = "ib_write_bw -x 0 -F -n 200", "ibv_rc_pingpong -g 0 -n 200 -c (against rnic in Python)"
    assert [devices(plain, "0"), devices(plain, "1")] == [2, 1]
    assert devices(python, "1") == 2, "a NIC of its own cannot be on the same address"


def test_docs_show_a_good_result_of_every_row(runner: ModuleType) -> None:
    page = (PROGRAMS.parent / "docs" / "programs.md").read_text()
    shown = re.findall(r"^\| `[\w.]+` \|.*$", page.partition("| program | options | result |")[2], re.MULTILINE)
    wanted = []
    for row in runner.rows():
        options = " ".join((f"`{' '.join(row.options)}`" if row.options else "", row.note)).strip()
        wanted.append(f"| `{row.program}` | {options} | ")
    assert [line[: len(want)] for line, want in zip(shown, wanted, strict=True)] == wanted
    assert all(re.search(r"\| (ok|refused)\b[^|]*\|$", line) for line in shown)


def test_the_table_of_skips_adds_up_to_what_was_skipped() -> None:
    page = (PROGRAMS.parent / "docs" / "programs.md").read_text()
    head = re.search(
        r"^\| cases \| of Debian's suite \(.*: (\d+), (\d+) passed, (\d+) skipped\) \|\n\|---\|---\|\n",
        page,
        re.MULTILINE,
    )
    assert head is not None
    cases, passed, skipped = map(int, head.groups())
    assert cases == passed + skipped
    rows = re.match(r"(?:\| \d+ \| .+ \|\n)+", page[head.end() :])
    assert rows is not None
    assert sum(int(number) for number in re.findall(r"^\| (\d+)", rows[0], re.MULTILINE)) == skipped
    assert f"ok: {passed} passed, {skipped} skipped" in page
