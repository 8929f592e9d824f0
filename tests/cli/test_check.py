"""``rnic check``: what it prints, and the exit status that scripts go by."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rnic.cli.check import check
from rnic.judge import RULES
from rnic.judge.judge import Judge
from rnic.judge.stream import KEEP
from rnic.link.pcap import PcapngWriter, read_packets
from rnic.spec import opcodes as op
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

RECORDING = Path(__file__).parents[1] / "vectors" / "rxe" / "write_bw.pcap"
RAW = 101


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """The recording with one byte of one payload changed, seven times."""
    path = tmp_path / "spoilt.pcapng"
    with path.open("wb") as file:
        writer = PcapngWriter(file)
        for index, packet in enumerate(read_packets(RECORDING)):
            data = bytearray(packet.data)
            if index % 6 == 0:
                data[-6] ^= 1
            writer.write(packet.time_ns, data)
    return path


def test_a_good_recording() -> None:
    result = CliRunner().invoke(check, [str(RECORDING)])
    assert result.exit_code == 0
    assert result.output == f"{RECORDING}: 55 frames, 55 RoCEv2: no rule broken\n"


def test_findings_name_frame_clause_and_queue_pair(spoilt: Path) -> None:
    result = CliRunner().invoke(check, [str(spoilt)])
    assert result.exit_code == 1
    first = result.output.splitlines()[0]
    assert "frame 1: 198.51.100.12 -> 198.51.100.11 QP" in first
    assert "error: ICRC of" in first
    assert "A17, 17.9.3" in first
    assert "further ones of this kind are counted" in result.output
    assert result.output.count("error: ICRC of") < 10
    everything = CliRunner().invoke(check, ["--all", str(spoilt)]).output
    assert everything.count("error: ICRC of") == 10


def test_json_lines(spoilt: Path) -> None:
    result = CliRunner().invoke(check, ["--json", str(spoilt)])
    assert result.exit_code == 1
    *findings, last = [json.loads(line) for line in result.output.splitlines()]
    assert findings[0]["frame"] == 1
    assert {(f["rule"], f["severity"], f["clause"]) for f in findings if f["rule"] == "icrc"} == {
        ("icrc", "error", "A17, 17.9.3")
    }
    assert last["summary"]["rocev2"] == 55
    assert last["summary"]["findings"]["error: icrc"] == 10
    assert last["error"] is None


def test_rules_are_listed() -> None:
    result = CliRunner().invoke(check, ["--rules"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == list(RULES)


@pytest.mark.slow
def test_gzip_and_standard_input(tmp_path: Path) -> None:
    packed = tmp_path / "write_bw.pcap.gz"
    packed.write_bytes(gzip.compress(RECORDING.read_bytes()))
    assert CliRunner().invoke(check, [str(packed)]).exit_code == 0
    command = [sys.executable, "-m", "rnic.cli", "check", "-"]
    run = subprocess.run(command, input=RECORDING.read_bytes(), capture_output=True, check=False, timeout=60)
    assert run.returncode == 0
    assert run.stdout == b"-: 55 frames, 55 RoCEv2: no rule broken\n"


@pytest.mark.parametrize("what", ["cut", "cut gzip", "text", "absent"])
def test_what_cannot_be_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "capture"
    whole = RECORDING.read_bytes()
    if what != "absent":
        path.write_bytes({"cut": whole[:-7], "cut gzip": gzip.compress(whole)[:-20], "text": b"hello"}[what])
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert str(path) in result.stderr
    assert ("no rule broken" in result.stdout) is what.startswith("cut")  # where something was judged


@pytest.mark.parametrize("frames", [0, 3], ids=["empty", "other traffic"])
def test_where_nothing_is_rocev2_there_is_nothing_to_judge(tmp_path: Path, frames: int) -> None:
    path = tmp_path / "served.pcapng"
    with path.open("wb") as file:
        writer = PcapngWriter(file)
        for index in range(frames):
            writer.write(index, bytes(60))
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 3
    assert result.output == f"{path}: {frames} frames, 0 RoCEv2: nothing to judge\n"
    assert CliRunner().invoke(check, [str(RECORDING), str(path)]).exit_code == 3


def test_of_several_files_the_worst_counts(tmp_path: Path, spoilt: Path) -> None:
    empty = tmp_path / "empty.pcapng"
    with empty.open("wb") as file:
        PcapngWriter(file)
    for files, status in (([empty, spoilt], 1), ([spoilt, empty], 1), ([empty, tmp_path / "absent", spoilt], 2)):
        assert CliRunner().invoke(check, [str(each) for each in files]).exit_code == status


def test_no_file_is_a_mistake_in_one_line() -> None:
    result = CliRunner().invoke(check, [])
    assert result.exit_code == 2
    assert "no capture named" in result.output


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    """Of an endless WRITE stream with READs, atomics and ACKs only the newest packets are remembered."""
    flow = Flow(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 50_000)
    back = Flow(flow.dst, flow.src, 50_000)
    found: list[object] = []
    judge = Judge(found.append)

    def take(way: Flow, opcode: int, psn: int, **fields: Any) -> None:
        payload = b"" if opcode in (op.ACKNOWLEDGE, op.FETCH_ADD, op.ATOMIC_ACKNOWLEDGE) else bytes(8)
        packet = ip_packet(way, seal(build(opcode, dqpn=17, psn=psn, payload=payload, **fields), way))
        judge.frame(psn, RAW, packet, len(packet))

    count = 3 * KEEP
    for psn in range(count):
        if psn % 64 == 63:
            take(flow, op.FETCH_ADD, psn, va=8)
            take(back, op.ATOMIC_ACKNOWLEDGE, psn, msn=psn + 1 & 0xFFFFFF)
        else:
            take(flow, op.WRITE_ONLY, psn, dma_length=8)
    assert found == []
    stream = next(stream for stream in judge.streams() if stream.history)
    assert KEEP <= len(stream.history) <= 2 * KEEP
    assert len(stream.atomics) <= 2 * KEEP // 64 + 1
    assert stream.total == count


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m rnic.cli check --rules | head -1"
    run = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    assert run.stdout.startswith(b"icrc")
    assert b"Traceback" not in run.stderr
