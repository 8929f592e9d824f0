"""``./dev programs``: run Debian's RDMA programs, unmodified, and print what became of each.

Every row runs in a runtime directory of its own, on two devices of one NIC process unless it says otherwise, and
leaves a pcapng of what went over the wire; a row passes when both ends exit with 0 and the recording holds RoCEv2
packets, all with a right ICRC.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

SERVER = "127.0.0.1"
CLIENT = "127.0.0.2"
PINGPONG = ("-g", "0", "-n", "200", "-c")
PERFTEST = ("-x", "0", "-F")


@dataclass
class Row:
    """One program with its options. ``refused`` is text that a refusal must show; ``short`` rows run in CI."""

    program: str
    options: tuple[str, ...] = ()
    kind: str = "pair"
    short: bool = False
    refused: str = ""
    result: str = ""
    seconds: float = 0.0
    packets: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """As it is typed."""
        return " ".join((self.program, *self.options))


def _pingpong(name: str, *options: str, short: bool = False) -> Row:
    return Row(f"ibv_{name}_pingpong", (*PINGPONG, *options), short=short)


def _perftest(name: str, *options: str, short: bool = False) -> Row:
    return Row(f"ib_{name}", (*PERFTEST, *options), short=short)


def rows() -> list[Row]:
    """The list, in the order in which it is run."""
    found = [
        Row("ibv_devices", kind="alone", short=True),
        Row("ibv_devinfo", ("-v",), kind="alone", short=True),
        Row("ibv_asyncwatch", kind="watch", short=True),
        _pingpong("rc", short=True),
        _pingpong("rc", "-e", short=True),
        _pingpong("rc", "-s", "1"),
        _pingpong("rc", "-s", "65536", "-m", "4096"),
        _pingpong("rc", "-s", "1048576", "-m", "256"),
        _pingpong("uc", short=True),
        _pingpong("uc", "-e"),
        _pingpong("ud", "-s", "1024", short=True),
        _pingpong("ud", "-s", "1024", "-e"),
        _pingpong("srq", short=True),
        _pingpong("srq", "-e", "-q", "4"),
        Row("ibv_xsrq_pingpong", ("-g", "0"), kind="refused", short=True, refused="XRC"),
    ]
    for verb in ("write", "read", "send", "atomic"):
        found += [
            _perftest(f"{verb}_bw", "-n", "200", short=True),
            _perftest(f"{verb}_lat", "-n", "200", short=verb in ("write", "send")),
            _perftest(f"{verb}_bw", "-n", "100", "-q", "4"),
            _perftest(f"{verb}_bw", "-n", "100", "-b"),
        ]
    found += [
        _perftest("write_bw", "-n", "20", "-a"),
        _perftest("write_lat", "-n", "20", "-a"),
        _perftest("read_bw", "-n", "20", "-a"),
        _perftest("send_bw", "-n", "20", "-a"),
        _perftest("send_bw", "-n", "200", "-e", short=True),
        _perftest("send_lat", "-n", "200", "-e"),
        _perftest("read_lat", "-n", "200", "-e"),
        _perftest("write_bw", "-n", "100", "-c", "UC", short=True),
        _perftest("write_lat", "-n", "100", "-c", "UC"),
        _perftest("send_lat", "-n", "100", "-c", "UC"),
        _perftest("send_bw", "-n", "200", "-c", "UD", short=True),
        _perftest("send_lat", "-n", "200", "-c", "UD"),
        _perftest("write_bw", "-n", "200", "--use_old_post_send", short=True),
        _perftest("send_bw", "-n", "200", "--use-srq", "-r", "256"),
        _perftest("write_lat", "-n", "200", "-s", "64", "-I", "128"),
        _perftest("atomic_bw", "-n", "200", "-A", "CMP_AND_SWAP"),
        Row("pyverbs", ("tests/run_tests.py",), kind="pyverbs", short=True),
    ]
    return found


SKIPS = {
    "needs an mlx5 device": r"MLX5|mlx5|PCI device must be",
    "needs an EFA device": r"EFA",
    "on-demand paging": r"ODP",
    "device memory": r"Device memory",
    "XRC": r"XRC",
    "raw packets": r"QP type 8|Raw Packet",
    "needs rdma_cm with a network interface in sysfs": r"doesn't have net interface",
    "dma-buf": r"dmabuf",
    "CUDA": r"cuda|CUDA",
    "completion timestamps, tag matching": r"Extended CQ|real time",
    "ATOMIC WRITE": r"Extended QP",
    "importing another process's context": r"mport",
    "huge pages on this machine": r"huge pages",
    "a GID table of more than one entry": r"gid indices",
    "flow steering": r"[Ff]low",
}
"""The closed list of reasons for which a case of pyverbs' suite may be skipped, and the words of each."""


def count_pyverbs(text: str) -> tuple[int, dict[str, int], list[str]]:
    """Cases that passed, skips by reason, and what is wrong: failures, and skips for no listed reason."""
    passed = len(re.findall(r"\.\.\. ok$", text, re.MULTILINE))
    wrong = [line for line in text.splitlines() if re.search(r"\.\.\. (FAIL|ERROR|unexpected success)", line)]
    skips: dict[str, int] = {}
    for said in re.findall(r"skipped ['\"](.*)['\"]", text):
        reason = next((reason for reason, words in SKIPS.items() if re.search(words, said)), None)
        if reason is None:
            wrong.append(f"skipped for no listed reason: {said}")
        else:
            skips[reason] = skips.get(reason, 0) + 1
    return passed, skips, wrong


class Bench:
    """Runs rows, one after the other."""

    def __init__(self, captures: Path, timeout: float) -> None:
        self.captures = captures
        self.timeout = timeout
        captures.mkdir(parents=True, exist_ok=True)

    def run(self, row: Row, number: int) -> None:
        """Run one row; its result is ``ok`` or one line that says what went wrong."""
        if row.kind != "pyverbs" and shutil.which(row.program) is None:
            row.result = f"{row.program} is not installed"
            return
        began = time.monotonic()
        capture = self.captures / f"{number:02d}-{row.program}.pcapng"
        with tempfile.TemporaryDirectory(prefix="rnic-run-") as name:
            env = {**os.environ, "RNIC_RUNTIME_DIR": name}
            runner = {
                "alone": self._alone,
                "pair": self._pair,
                "refused": self._refused,
                "watch": self._watch,
                "pyverbs": self._pyverbs,
            }[row.kind]
            row.result = runner(row, env, capture)
        row.seconds = time.monotonic() - began
        if row.result == "ok" and row.kind in ("pair", "pyverbs"):
            row.packets, wrong = _packets(capture)
            if wrong or not row.packets:
                row.result = f"recording {capture.name}: {row.packets} RoCEv2 packets, {wrong} with a wrong ICRC"

    def _command(self, address: str, capture: Path | None, *program: str) -> list[str]:
        recording = ["--capture", str(capture)] if capture else []
        return [sys.executable, "-m", "rnic.cli", "exec", "--addr", address, *recording, "--", *program]

    def _alone(self, row: Row, env: dict[str, str], capture: Path) -> str:
        done = subprocess.run(
            self._command(SERVER, None, row.program, *row.options),
            env=env, capture_output=True, text=True, timeout=self.timeout, check=False,
        )  # fmt: skip
        return "ok" if done.returncode == 0 and "rnic0" in done.stdout else _last(done.stdout + done.stderr)

    def _refused(self, row: Row, env: dict[str, str], capture: Path) -> str:
        done = subprocess.run(
            self._command(SERVER, None, row.program, *row.options),
            env=env, capture_output=True, text=True, timeout=self.timeout, check=False,
        )  # fmt: skip
        text = done.stdout + done.stderr
        return "ok" if done.returncode and row.refused in text else f"not refused as it should be: {_last(text)}"

    def _watch(self, row: Row, env: dict[str, str], capture: Path) -> str:
        with subprocess.Popen(
            self._command(SERVER, None, row.program),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child:
            time.sleep(2.0)
            alive = child.poll() is None
            child.send_signal(signal.SIGINT if alive else 0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(2)
            child.kill()
        return "ok" if alive else f"ended with {child.returncode}"

    def _pair(self, row: Row, env: dict[str, str], capture: Path) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        options = ("-p", port, *row.options)
        server = subprocess.Popen(
            self._command(SERVER, capture, row.program, *options),
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            _wait_listening(int(port), server)
            client = subprocess.run(
                self._command(CLIENT, None, row.program, *options, SERVER),
                env=env, capture_output=True, text=True, timeout=self.timeout, check=False,
            )  # fmt: skip
            said, _ = server.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            return f"no end within {self.timeout:.0f} s"
        finally:
            server.kill()
            server.communicate()
        if client.returncode or server.returncode:
            words = _last(client.stdout + client.stderr) if client.returncode else _last(said)
            return f"client {client.returncode}, server {server.returncode}: {words}"
        return "ok"

    def _pyverbs(self, row: Row, env: dict[str, str], capture: Path) -> str:
        shipped = Path("/usr/share/doc/rdma-core/tests")
        python = "/usr/bin/python3"
        if not shipped.is_dir():
            return "python3-pyverbs is not installed"
        with tempfile.TemporaryDirectory(prefix="rnic-pyverbs-") as name:
            tests = Path(name) / "tests"
            tests.mkdir()
            for path in shipped.iterdir():
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                (tests / path.name.removesuffix(".gz")).write_bytes(data)
            clean = ["env", "-u", "PYTHONPATH", python, str(tests / "run_tests.py"), "-v", "--dev", "rnic0"]
            try:
                done = subprocess.run(
                    self._command(SERVER, capture, *clean),
                    env=env, cwd=name, capture_output=True, text=True, timeout=10 * self.timeout, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return f"no end within {10 * self.timeout:.0f} s"
        passed, skips, wrong = count_pyverbs(done.stderr + done.stdout)
        row.notes.append(f"{passed} passed, {sum(skips.values())} skipped")
        row.notes += [
            f"{count} skipped: {reason}" for reason, count in sorted(skips.items(), key=lambda item: -item[1])
        ]
        if wrong:
            return wrong[0]
        return "ok" if passed >= 90 else f"{passed} cases passed, fewer than 90: {_last(done.stderr)}"


def _wait_listening(port: int, server: subprocess.Popen[str]) -> None:
    """Until a server listens on a TCP port, as the kernel's table says: a connection would disturb it."""
    wanted = f":{port:04X}"
    for _ in range(400):
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return
        if server.poll() is not None:
            return
        time.sleep(0.025)


def _packets(capture: Path) -> tuple[int, int]:
    """RoCEv2 packets of a recording, and how many of them have a wrong ICRC."""
    right = wrong = 0
    done = subprocess.run(
        [sys.executable, "-m", "rnic.cli", "decode", str(capture)], capture_output=True, text=True, check=False
    )
    found = re.search(r"ICRC ok (\d+), wrong (\d+)", done.stdout)
    if found:
        right, wrong = int(found[1]), int(found[2])
    return right + wrong, wrong


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "said nothing"


def table(done: list[Row]) -> str:
    """A Markdown table of program, options, result."""
    lines = ["| program | options | result | packets |", "|---|---|---|---|"]
    for row in done:
        result = row.result if not row.notes else f"{row.result}: {row.notes[0]}"
        if row.kind == "refused" and row.result == "ok":
            result = f"refused: {row.refused}"
        lines.append(f"| {row.program} | {' '.join(row.options)} | {result} | {row.packets or ''} |")
    good = sum(row.result == "ok" for row in done)
    return "\n".join([*lines, "", f"{good} of {len(done)} as they should be"])


def main(argv: list[str] | None = None) -> int:
    """Run the list; 0 if every row is as it should be."""
    parser = argparse.ArgumentParser(prog="./dev programs", description=__doc__)
    parser.add_argument("--short", action="store_true", help="the short form, as CI runs it")
    parser.add_argument("--only", help="rows whose title contains this")
    parser.add_argument("--captures", type=Path, default=Path("captures"), help="directory for the recordings")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a program")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args(argv)
    bench = Bench(options.captures.resolve(), options.timeout)
    done = []
    for number, row in enumerate(rows()):
        if (options.short and not row.short) or (options.only and options.only not in row.title):
            continue
        bench.run(row, number)
        done.append(row)
        print(f"{row.seconds:6.1f} s  {row.title}: {row.result}", file=sys.stderr, flush=True)
    print(json.dumps([vars(row) for row in done]) if options.json else table(done))
    return 0 if done and all(row.result == "ok" for row in done) else 1


if __name__ == "__main__":
    sys.exit(main())
