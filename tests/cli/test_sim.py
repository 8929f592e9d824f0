"""``rnic sim``: what it prints and writes, that one seed is one output, and what is said of mistakes."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rnic.cli.sim import sim
from rnic.cli.sim_parquet import ParquetError
from rnic.link.pcap import read_packets
from rnic.sim.sweep import Job, Row

EXAMPLE = Path(__file__).parents[2] / "examples" / "incast.toml"
SMALL = """\
seed = 3
sample_us = 2
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts = 2
loss = 0.002
switch = { buffer_bytes = 300000, kmin_bytes = 4000, kmax_bytes = 40000, pmax = 0.3 }
[congestion]
mode = "dcqcn"
[[workload]]
kind = "permutation"
size_bytes = 40000
[[workload]]
kind = "poisson"
sizes = "fb-hadoop"
load = 0.3
duration_ms = 0.2
"""
PAUSED = """\
[topology]
kind = "star"
hosts = 5
switch = { buffer_bytes = 40000, xoff_bytes = 8000, xon_bytes = 6000, headroom_bytes = 16000 }
[[workload]]
kind = "incast"
name = "burst"
size_bytes = 30000
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(sim, [str(word) for word in words])


@pytest.mark.slow
def test_same_seed_is_the_same_output_in_another_process(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    outputs = []
    for number in ("1", "2"):
        folder = tmp_path / number
        folder.mkdir()
        command = [sys.executable, "-m", "rnic.cli", "sim", str(path), "--json", "--trace", "t.json", "--plot", "p.png"]
        done = subprocess.run(
            [*command, "--pcap", "leaf0-spine1=l.pcapng"], cwd=folder, capture_output=True, timeout=50, check=False,
            env={**os.environ, "PYTHONHASHSEED": number},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        outputs.append([done.stdout, *((folder / name).read_bytes() for name in ("t.json", "p.png", "l.pcapng"))])
    assert outputs[0] == outputs[1]
    assert json.loads(run(path, "--json", "--seed", "4").stdout)["flows"] != json.loads(outputs[0][0])["flows"]


@pytest.mark.slow
def test_the_example_and_its_picture(tmp_path: Path) -> None:
    picture = tmp_path / "incast.png"
    done = run(EXAMPLE, "--plot", picture)
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "incast: seed 1, congestion control dcqcn, 9 NICs" in done.output
    assert "s0 > h8" in done.output
    queue = {
        mode: next(
            row["queue_mean_bytes"]
            for row in json.loads(run(EXAMPLE, "--json", "--set", f"congestion.mode={mode}").stdout)["ports"]
            if row["port"] == "s0 > h8"
        )
        for mode in ("none", "dcqcn")
    }
    assert queue["dcqcn"] < queue["none"] / 3


@pytest.mark.slow
def test_a_file_names_its_own_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(EXAMPLE)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("plot: incast.png\n")
    assert (tmp_path / "incast.png").read_bytes().startswith(b"\x89PNG")
    path = written(tmp_path, 'plot = "own.png"\n' + PAUSED)
    for words in (["--json"], ["--csv", "flows"], ["--plot", "other.png"], ["--set", "sample_us=0"]):
        assert run(path, *words).exit_code == 0
        assert not (tmp_path / "own.png").exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run(path)
    assert done.exit_code == 0
    assert done.stderr.startswith("rnic sim: no plot own.png: it wants matplotlib: ")
    assert "pauses" in done.stdout
    assert not (tmp_path / "own.png").exists()


@pytest.mark.slow
def test_figures_as_json_and_csv_agree(tmp_path: Path) -> None:
    path = written(tmp_path, PAUSED)
    found = json.loads(run(path, "--json").stdout)
    summary = found["summary"]
    assert (summary["flows_over"], summary["flows_left"], summary["dropped"]) == (4, 0, 0)
    assert summary["pauses"] == sum(row["pauses"] for row in found["ports"]) > 0
    assert {row["workload"] for row in found["flows"]} == {"burst"}
    rows = list(csv.DictReader(io.StringIO(run(path, "--csv", "flows").stdout)))
    assert [int(row["fct_ns"]) for row in rows] == [row["fct_ns"] for row in found["flows"]]
    assert found["sizes"][-1]["fct_p100_ns"] == max(row["fct_ns"] for row in found["flows"])


@pytest.mark.slow
def test_capture_and_trace(tmp_path: Path) -> None:
    path, trace, pcap = written(tmp_path, PAUSED), tmp_path / "t.json", tmp_path / "l.pcapng"
    done = run(path, "--json", "--trace", trace, "--pcap", f"h4-s0={pcap}")
    assert done.exit_code == 0, done.output
    sent = {row["port"]: row["packets"] for row in json.loads(done.stdout)["ports"]}
    packets = list(read_packets(pcap))
    assert len(packets) == sent["s0 > h4"] + sent["h4 > s0"]
    assert [each.time_ns for each in packets] == sorted(each.time_ns for each in packets)
    rows = json.loads(trace.read_text())["traceEvents"]
    assert sum(row["ph"] == "X" and row["cat"] == "flow" for row in rows) == 4
    assert {row["name"] for row in rows if row["ph"] == "C"} >= {"queue s0 > h4"}
    paused = sum(row["dur"] for row in rows if row["name"] == "paused")
    assert paused * 1_000 == pytest.approx(json.loads(done.stdout)["summary"]["paused_ns"])


def test_what_the_limit_cut_off_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    done = run(written(tmp_path, "limit_ms = 0.02\n" + PAUSED), "--json")
    assert done.exit_code == 1
    assert done.stderr == ("rnic sim: 4 flows are not over after 2e-05 s of virtual time: give more, or less to do\n")
    assert json.loads(done.stdout)["summary"]["flows_left"] == 4


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_measured(tmp_path: Path) -> None:
    path = written(tmp_path, PAUSED + '[[workload]]\nkind = "incast"\nstart_us = 100\nsize_bytes = 200000000\n')
    pcap = tmp_path / "l.pcapng"
    command = [sys.executable, "-m", "rnic.cli", "sim", str(path), "--json", "--pcap", f"s0-h4={pcap}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not pcap.exists() or pcap.stat().st_size < 400_000:  # more than the first workload leaves there
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "rnic sim: stopped: 4 flows are over, 4 are not\n")
    found = json.loads(said)
    assert [row["workload"] for row in found["flows"]] == ["burst"] * 4
    assert found["summary"]["flows_left"] == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = [", "is not valid TOML"),
        ("", "there is no host: write [topology]"),
        ('[topology]\nkind = "pair"', "there is nothing to do: write [[workload]]"),
        ('[topology]\nkind = "pair"\n[[workload]]\nkind = "dance"', "workload 0: kind='dance' is not known: use flow"),
        ('[topology]\nkind = "pair"\n[[workload]]\nkind = "incast"', "workload 0: there is no size_bytes"),
        (PAUSED + "sources = 9", "sources=9: there are 4 hosts: give 1 to 4"),
        (PAUSED + 'sources = ["x"]', "sources: there is no host 'x'"),
        (PAUSED + "colour = 1", "workload 0 has no colour: it has kind, name"),
        (PAUSED + '[congestion]\nmode = "magic"', "congestion='magic' is not a congestion control"),
        (PAUSED + "[congestion.dcqcn]\ng_shift = 0", "dcqcn g_shift=0 is out of range"),
        (PAUSED + "[nic]\nwindow_packets = 0", "nic: window_packets=0 cannot be"),
        (PAUSED + "[nic]\nspeed = 0", "nic has no speed"),
        ("limit_ms = -1\n" + PAUSED, "limit_ms=-1 cannot be"),
        ("seed = 1.5\n" + PAUSED, "seed=1.5 is not a whole number"),
        ("name = 7\n" + PAUSED, "name=7 is not text"),
        ('[topology]\nkind = "pair"\n[[workload]]\nkind = "poisson"\nsizes = "x"\n', "sizes='x' is not known"),
        ('[topology]\nkind = "pair"\n[[workload]]\nkind = "poisson"\nsizes = [[9, 0], [1, 1]]\n', "do not rise"),
        ('[topology]\nkind = "pair"\n[[workload]]\nkind = "program"\nfile = "no.py"\n', "file='no.py': there is no"),
        ('[topology]\nkind = "pair"\n[[workload]]\nkind = "flow"\nsrc = "h0"\ndst = "h7"\nsize_bytes = 1',
         "there is no host h7"),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_a_line(text: str, says: str, tmp_path: Path) -> None:
    done = run(written(tmp_path, text))
    assert done.exit_code != 0
    assert done.stdout == ""
    said = str(done.exception) if done.stderr == "" else done.stderr
    assert says in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pcap", "s0-h9"], "link 's0-h9': there is none: name its two ends, such as h0-s0"),
        (["--set", "mode"], "--set mode: give KEY=VALUE"),
        (["--set", "workload.7.name=x"], "workload.7.name='x': the file has no such place"),
        (["--set", "sample_us=0", "--trace", "t.json"], "sample_us=0: --plot and --trace show"),
    ],
)
def test_mistakes_on_the_command_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(written(tmp_path, PAUSED), *words)
    assert done.exit_code != 0
    assert says in (done.stderr or str(done.exception))


def test_parquet_without_pyarrow_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ParquetError, match="--parquet tables wants pyarrow: pip install pyarrow"):
        CliRunner().invoke(sim, [str(EXAMPLE), "--parquet", "tables"], catch_exceptions=False)


@pytest.mark.slow
def test_parquet_holds_what_json_shows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    result = CliRunner().invoke(sim, [str(file), "--json", "--parquet", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    for name in ("flows", "ports", "sizes"):
        assert parquet.read_table(tmp_path / f"{name}.parquet").to_pylist() == found[name]


SWEPT = """\
sample_us = 0
[topology]
kind = "star"
hosts = 3
[[workload]]
kind = "incast"
size_bytes = 20000
"""


@pytest.mark.parametrize("out", [False, True])
def test_a_sweep_that_is_stopped_shows_the_rows_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: bool
) -> None:
    class TwoAndThenCtrlC:
        def __init__(self, workers: int) -> None:
            pass

        def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Row]]:
            for job in jobs[:2]:
                yield job, {"seed": job.seed, "finished": True}
            raise KeyboardInterrupt

    monkeypatch.setattr("rnic.cli.sim_sweep.Pool", TwoAndThenCtrlC)
    kept = tmp_path / "rows.jsonl"
    done = CliRunner().invoke(
        sim, [str(written(tmp_path, SWEPT)), "--seeds", "5", "--json", *(["--out", str(kept)] if out else [])]
    )
    assert [row["seed"] for row in json.loads(done.stdout)["runs"]] == [1, 2]
    says = f"{kept} has them, and the same command goes on" if out else "with --out FILE the same command would go on"
    assert (done.exit_code, done.stderr) == (130, f"rnic sim: stopped: these are 2 of 5 runs; {says}\n")


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_the_workers_of_a_sweep_too(tmp_path: Path) -> None:
    """All of them get the signal; what is said is one line, and the rows that are done."""
    text = SWEPT.replace("20000", "400000").replace("hosts = 3", "hosts = 12")
    command = [
        sys.executable,
        "-m",
        "rnic.cli",
        "sim",
        str(written(tmp_path, text)),
        "--seeds",
        "5000",
        "--csv",
        "runs",
    ]
    kept = tmp_path / "rows.jsonl"
    with subprocess.Popen(
        [*command, "--workers", "2", "--out", str(kept)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        while process.poll() is None and not (kept.exists() and kept.read_text().count("\n") >= 3):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    rows = list(csv.DictReader(io.StringIO(output)))
    assert len(rows) >= 3
    assert process.returncode == 130, errors
    assert errors == (
        f"rnic sim: stopped: these are {len(rows)} of 5000 runs; {kept} has them, and the same command goes on\n"
    )
