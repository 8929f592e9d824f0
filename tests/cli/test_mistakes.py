"""What a user can get wrong on the command line: one line, no traceback, before anything is measured."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.cli.elf import looks_static
from rnic.cli.files import OutFile
from rnic.spec.source import install_hint
from rnic.testing import own_network


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RNIC_RUNTIME_DIR": str(tmp_path / "run")}
    return subprocess.run(
        [sys.executable, "-m", "rnic.cli", *words], capture_output=True, text=True, timeout=120, check=False, env=env
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["trace", "-o", "{}/none/t.json"], 2, "there is no directory"),
        (["trace", "-o", "{}"], 2, "is a directory; give a file"),
        (["perf", "write_bw", "--plot", "{}/none/p.png"], 2, "there is no directory"),
        (["perf", "write_bw", "--capture", "{}/none/p.pcapng"], 2, "there is no directory"),
        (
            ["serve", "--addr", "127.0.0.1", "--udp-port", "4799", "--faults", "[{"],
            2,
            "is not valid JSON: ",
        ),
        (
            ["perf", "write_bw", "--listen", "--addr", "203.0.113.1"],
            2,
            "is not an address of this machine",
        ),
        (["serve", "--addr", "127.0.0.1", "--faults", "{}/none.json"], 2, "No such file or directory"),
        (["qp"], 2, "no NIC process runs"),
        (["top", "--once"], 2, "no NIC process runs"),
        (["web", "--addr", "0.0.0.0"], 2, "is not a loopback address: give 127.0.0.1 or ::1"),
        (["web", "--token-file", "{}/none/token"], 2, "No such file or directory"),
        (["trace", "--attach", "1"], 2, "no NIC process runs"),
        (["nonsense"], 2, "No such command 'nonsense'; rnic --help lists them"),
        (["devinf"], 2, "No such command 'devinf'; did you mean devinfo?"),
        (["paxi", "127.0.0.1"], 2, "rnic paxi: No such command '127.0.0.1'; rnic paxi --help lists them"),
        (["perf"], 2, "Choose from: write_bw, write_lat"),
        (["--nope"], 2, "No such option '--nope'. rnic --help lists them."),
        (["qp", "abc"], 2, "'abc' is not a number from 0 to 0xffffff"),
        (["exec", "--faults", "", "--", "true"], 2, "fault script is empty: give a JSON file of rules"),
        (["exec", "--captur", "x.pcapng", "--", "true"], 2, "No such option '--captur'"),
        (["exec", "--fault", "[]", "true"], 2, "No such option '--fault'"),
        (["exec", "-x", "true"], 2, "No such option '-x'"),
        (["exec", "--", "--no-such-program"], 127, "was not found: install it, or give its path"),
        (["exec", "--", "no-such-program"], 127, "was not found: install it, or give its path"),
        (["exec", "--", "/etc/passwd"], 126, "is not executable: see chmod +x"),
        (["exec", "--", "/tmp"], 126, "is a directory: give a program in it"),
        (
            ["serve", "--addr", f"{own_network()}.81", "--capture", "{}/none/p.pcapng"],
            2,
            "p.pcapng: No such file or directory",
        ),
        (["env"], 2, "No such command 'env'. To run that program: rnic exec -- env"),
    ],
)
def test_one_line_and_a_status(words: list[str], status: int, says: str, tmp_path: Path) -> None:
    done = run(tmp_path, *(word.replace("{}", str(tmp_path)) for word in words))
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow
def test_a_client_without_a_server_is_told_what_to_start(tmp_path: Path) -> None:
    done = run(tmp_path, "perf", "write_bw", "127.0.0.1", "--port", "1", "--udp-port", "0")
    assert done.returncode == 2
    assert done.stderr.endswith("start one there with rnic perf write_bw --listen --addr 127.0.0.1 --port 1\n")
    assert done.stderr.count("\n") == 1


def test_a_missing_extra_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import click

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(click.BadParameter) as error:
        OutFile("matplotlib", "plot").convert(str(tmp_path / "p.png"), None, None)
    assert error.value.message == f"it wants matplotlib: {install_hint('plot')}"
    assert OutFile().convert(str(tmp_path / "p.png"), None, None) == tmp_path / "p.png"


@pytest.mark.slow
def test_programs_that_cannot_run_end_as_in_a_shell(tmp_path: Path) -> None:
    plain = tmp_path / "with a blank"
    plain.write_text("#!/bin/sh\nexit 7\n")
    for name, status, says in (
        (str(plain), 126, "is not executable"),
        (str(tmp_path), 126, "is a directory"),
        (str(tmp_path / "none"), 127, "was not found"),
        ("no-such-program-anywhere", 127, "was not found"),
    ):
        done = run(tmp_path, "exec", "--udp-port", "0", "--", name)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1)
        assert done.stderr.startswith(f"rnic: program {name!r} {says}: ")
    plain.chmod(0o755)
    assert run(tmp_path, "exec", "--udp-port", "0", "--", str(plain)).returncode == 7


@pytest.mark.slow
def test_options_behind_the_program_are_its_own(tmp_path: Path) -> None:
    for line in (["echo"], ["--", "echo"], ["--no-paths", "echo"]):
        words = ["--addr", "--faults", "-x", "--", "--captur=y"]
        done = run(tmp_path, "exec", "--udp-port", "0", *line, *words)
        assert (done.returncode, done.stdout) == (0, " ".join(words) + "\n"), done.stderr


@pytest.mark.slow
def test_serve_says_that_it_is_ready_and_where(tmp_path: Path) -> None:
    env = {**os.environ, "RNIC_RUNTIME_DIR": str(tmp_path / "run")}
    command = [sys.executable, "-m", "rnic.cli", "serve", "--addr", "127.0.0.1", "--udp-port", "4797"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        listed = run(tmp_path, "qp")
        code = "import os, rnic\nwith rnic.open('rnic0'), rnic.open('rnic0'): print(os.getpid())"
        user = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120
        )
        attached = [server.stderr.readline(), server.stderr.readline()]
        server.terminate()
        assert server.stderr.read() == "", "who looks is no program that is attached, and two contexts are one program"
    pid = user.stdout.strip()
    assert re.fullmatch(rf"rnic serve: \S+ \({pid}\) is attached to rnic0 at 127.0.0.1 port 4797\n", attached[0])
    assert re.fullmatch(rf"rnic serve: \S+ \({pid}\) has left rnic0; nobody still there\n", attached[1])
    assert said.startswith(f"rnic serve: ready in {tmp_path / 'run'}: rnic0 at 127.0.0.1 port 4797; ")
    assert (listed.returncode, listed.stdout.split(";")[0]) == (0, "no queue pair")


@pytest.mark.slow
def test_output_that_nobody_reads_any_more_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m rnic.cli devinfo --json | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("size", [0, 1, 55])
def test_a_file_with_a_broken_segment_table_is_no_static_program(tmp_path: Path, size: int) -> None:
    made = tmp_path / "made"
    head = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack("<HHIQQQIHHH", 2, 62, 1, 0, 64, 0, 0, 64, size, 1)
    made.write_bytes(head.ljust(64 + size, b"\0"))
    assert not looks_static(str(made))


@pytest.mark.slow
def test_control_c_while_it_is_still_loaded_is_one_line(tmp_path: Path) -> None:
    """As the signal raises it in the midst of an import, of what the door loads and of a command's own."""
    program = """if True:
        import sys
        name = sys.argv.pop(1)

        class Interrupted:
            def find_spec(self, asked, path=None, target=None):
                if asked == name:
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupted())
        from rnic.cli import main
        main()
    """
    for module in ("click", "rnic.cli.devinfo"):
        done = subprocess.run(
            [sys.executable, "-c", program, module, "devinfo"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 130
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == 1
