"""``rnic check``: what it prints, and the exit status that scripts go by."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rnic.cli.check import Report, check
from rnic.cli.check_html import Page, page_of
from rnic.cli.check_source import Progress
from rnic.judge import RULES, Finding
from rnic.judge.explanations import EXPLANATIONS
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


@pytest.mark.parametrize("what", ["cut", "cut gzip", "damaged gzip", "text", "absent"])
def test_what_cannot_be_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "capture"
    whole = RECORDING.read_bytes()
    if what != "absent":
        packed = gzip.compress(whole)
        damaged = packed[:10] + b"\xff" + packed[11:]  # the first block of the deflate stream is of no kind
        files = {"cut": whole[:-7], "cut gzip": packed[:-20], "damaged gzip": damaged, "text": b"hello"}
        path.write_bytes(files[what])
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert str(path) in result.stderr
    assert ("no rule broken" in result.stdout) is what.startswith("cut")  # where something was judged
    if what.endswith("gzip"):
        assert f"{path}: damaged gzip: " in result.stderr
        said = "end-of-stream" if what == "cut gzip" else "invalid block type"
        assert said in page_of(what, path.read_bytes())


def test_a_page_about_a_gzip_file_that_is_damaged_behind_its_findings(tmp_path: Path, spoilt: Path) -> None:
    """The page reads it a second time, as far as the judge did."""
    path, page = tmp_path / "capture.gz", tmp_path / "report.html"
    path.write_bytes(gzip.compress(spoilt.read_bytes()) + gzip.compress(b"")[:10] + b"\xff" * 32)
    result = CliRunner().invoke(check, ["--html", str(page), str(path)])
    assert result.exit_code == 2
    assert f"{path}: damaged gzip: " in result.stderr
    assert "Frame 1: icrc" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("ticks", [1 << 62, 1 << 63, (1 << 64) - 1])
def test_a_time_that_no_clock_has_is_damage(tmp_path: Path, ticks: int) -> None:
    path, copy = tmp_path / "capture.pcapng", tmp_path / "copy.pcapng"
    with path.open("wb") as file:
        writer = PcapngWriter(file)
        for packet in list(read_packets(RECORDING))[:9]:
            writer.write(packet.time_ns, packet.data)
        # an interface whose ticks are seconds
        file.write(struct.pack("<IIHHIHHII", 1, 28, 1, 0, 0, 9, 1, 0, 28))
        head = struct.pack("<7I", 6, 32 + 60, 1, ticks >> 32, ticks & 0xFFFF_FFFF, 60, 60)
        file.write(head + bytes(60) + struct.pack("<I", 92))
    result = CliRunner().invoke(check, ["--comments", str(copy), str(path)])
    assert result.exit_code == 2
    assert f"{path}: damaged: a packet of {ticks}000000000 ns, which is not from 1970 to 2262, at" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert len(list(read_packets(copy))) == 9


@pytest.mark.parametrize("frames", [0, 3], ids=["empty", "other traffic"])
def test_where_nothing_is_rocev2_there_is_nothing_to_judge(tmp_path: Path, frames: int) -> None:
    path = tmp_path / "served.pcapng"
    with path.open("wb") as file:
        writer = PcapngWriter(file)
        for index in range(frames):
            writer.write(index, bytes(60))
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 3
    instead = f", but {frames} IEEE 802.3" if frames else ""
    assert result.output == f"{path}: {frames} frames, 0 RoCEv2: nothing to judge{instead}\n"
    assert CliRunner().invoke(check, [str(RECORDING), str(path)]).exit_code == 3


def test_where_no_packet_can_be_judged_there_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "rd.pcapng"
    flow = Flow(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 50_000)
    body = build(op.SEND_ONLY, dqpn=17, psn=0, payload=bytes(64))
    body[0] = 0x44
    with path.open("wb") as file:
        writer = PcapngWriter(file, RAW)
        for index in range(2):
            writer.write(index, ip_packet(flow, seal(body, flow)))
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 3
    assert result.output == (
        f"{path}: 2 frames, 2 RoCEv2: nothing to judge\n"
        "  10.0.0.1 -> 10.0.0.2 QP 17: RD packets, not judged 2 (from frame 1)\n"
    )


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


# -------------------------------------------------------------------------------------------- page, following


def test_a_page_with_each_finding_its_clause_and_the_packets_around_it(tmp_path: Path, spoilt: Path) -> None:
    page = tmp_path / "report.html"
    result = CliRunner().invoke(check, ["--html", str(page), str(spoilt)])
    assert result.exit_code == 1
    text = page.read_text(encoding="utf-8")
    assert "<h2>Frame 1: icrc</h2>" in text
    assert "(A17, 17.9.3)" in text
    assert EXPLANATIONS["icrc"] in text
    assert text.count("<svg") == text.count("<h2>Frame ")
    first = text[text.index("<h2>Frame 1: icrc") :]
    first = first[: first.index("</svg>")]
    assert "icrc: ICRC of" in first
    assert [f"#{number} " in first for number in (1, 2, 5, 6)] == [True, True, True, False]
    assert "<script" not in text
    assert "http://" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_a_page_about_cut_packets_shows_them_too(tmp_path: Path) -> None:
    path, page = tmp_path / "cut.pcapng", tmp_path / "report.html"
    with path.open("wb") as file:
        writer = PcapngWriter(file)
        for index, packet in enumerate(read_packets(RECORDING)):
            data = bytearray(packet.data)
            data[22] -= index == 6  # the time to live alone
            writer.write(packet.time_ns, data[:96], len(data))
    result = CliRunner().invoke(check, ["--html", str(page), str(path)])
    assert (result.exit_code, "ip-checksum" in result.output) == (1, True)
    text = page.read_text(encoding="utf-8")
    assert [f"#{number} " in text for number in (3, 7, 10)] == [True] * 3


def test_a_page_about_a_capture_that_keeps_every_rule_and_is_gzip(tmp_path: Path) -> None:
    packed, page = tmp_path / "x.pcap.gz", tmp_path / "report.html"
    packed.write_bytes(gzip.compress(RECORDING.read_bytes()))
    assert CliRunner().invoke(check, ["--html", str(page), str(packed)]).exit_code == 0
    assert "no rule broken" in page.read_text(encoding="utf-8")


def test_names_in_a_page_are_escaped(tmp_path: Path) -> None:
    odd, page = tmp_path / "<b>.pcap", tmp_path / "report.html"
    odd.write_bytes(RECORDING.read_bytes())
    assert CliRunner().invoke(check, ["--html", str(page), str(odd)]).exit_code == 0
    assert "<b>" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--html", "x.html", "-"], "--html reads a capture twice: - is not a file"),
        (["--html", "x.html", str(RECORDING), str(RECORDING)], "--follow, --html and --comments take one capture"),
        (["--follow", str(RECORDING), str(RECORDING)], "--follow, --html and --comments take one capture"),
        (["--html", "/nowhere/x.html", str(RECORDING)], "/nowhere/x.html: cannot be written"),
        (["--comments", "/nowhere/x.pcapng", str(RECORDING)], "/nowhere/x.pcapng: cannot be written"),
        (["--comments", "x.pcapng", "-"], "--comments reads a capture twice: - is not a file"),
        (["--comments", str(RECORDING), str(RECORDING)], "is the capture itself; give another file"),
    ],
)
def test_mistakes_in_one_line(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(check, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_copy_with_findings_as_comments(tmp_path: Path, spoilt: Path) -> None:
    copy = tmp_path / "copy.pcapng"
    assert CliRunner().invoke(check, ["--comments", str(copy), str(spoilt)]).exit_code == 1
    assert list(read_packets(copy)) == list(read_packets(spoilt))
    assert b"rnic error: ICRC of" in copy.read_bytes()
    again = CliRunner().invoke(check, ["--json", str(copy)]).output.replace(str(copy), str(spoilt))
    assert again == CliRunner().invoke(check, ["--json", str(spoilt)]).output


def test_a_copy_of_an_empty_capture(tmp_path: Path) -> None:
    empty, copy = tmp_path / "empty.pcapng", tmp_path / "copy.pcapng"
    with empty.open("wb") as file:
        PcapngWriter(file)
    assert CliRunner().invoke(check, ["--comments", str(copy), str(empty)]).exit_code == 3
    assert list(read_packets(copy)) == []


def test_findings_of_too_many_queue_pairs_are_counted_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rnic.cli.check_report.MAX_COUNTED", 2)
    page = Page(lambda: (), 4791)
    report = Report("capture", False, False, page)
    for number in range(40):
        for rule in ("icrc", "length"):
            report(Finding(number, 0, f"QP {number}", rule, "wrong"))
    assert report._shown == {
        ("QP 0", "icrc"): 1, ("QP 0", "length"): 1,
        ("other queue pairs", "icrc"): 39, ("other queue pairs", "length"): 39,
    }  # fmt: skip
    assert capsys.readouterr().out.count("wrong [") == 2 + 2 * 3
    assert page._counts == report._shown
    assert "other queue pairs</td><td>icrc</td><td>39<" in page.render("", {"facts": {}})


def test_every_rule_is_explained() -> None:
    assert list(EXPLANATIONS) == sorted(EXPLANATIONS, key=list(RULES).index)
    assert set(EXPLANATIONS) == set(RULES)


@pytest.mark.slow
def test_a_file_that_grows_is_followed(tmp_path: Path, spoilt: Path) -> None:
    path = tmp_path / "growing.pcapng"
    whole = spoilt.read_bytes()
    half = len(whole) // 2 + 1  # in the middle of a packet
    path.write_bytes(whole[:half])
    # what a shell starts in the background ignores SIGINT, and so does what that starts
    command = ["env", "--default-signal=INT", sys.executable, "-u", "-m", "rnic.cli", "check", "--follow", "--all"]
    with subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "frame 1:" in running.stdout.readline()
        with path.open("ab") as file:
            file.write(whole[half:])
        assert any("frame 55:" in line for line in running.stdout)
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
        assert running.wait(30) == 1
    assert f"{path}: 55 frames, 55 RoCEv2:" in rest


LISTEN = """
    import select, signal, socket, subprocess, sys

    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # what a shell starts in the background ignores SIGINT, and so does what that starts
    command = ["env", "--default-signal=INT", sys.executable, "-u", "-m", "rnic.cli"]
    command += ["check", "--follow", "--json", "lo"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE)
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(600):
        out.sendto(bytes((4, 64)) + bytes(30), ("127.0.0.1", 4791))
        if select.select([run.stdout], [], [], 0.1)[0]:
            break
    run.send_signal(signal.SIGINT)
    print(run.communicate(timeout=120)[0].decode())
    sys.exit(run.returncode)
"""


@pytest.mark.slow
def test_an_interface_is_followed() -> None:
    if os.geteuid() or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("listening to an interface needs root, unshare and ip")
    command = ["unshare", "-n", sys.executable, "-c", textwrap.dedent(LISTEN)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 1, run.stderr
    finding = json.loads(run.stdout.splitlines()[0])
    assert (finding["file"], finding["rule"], finding["frame"]) == ("lo", "icrc", 1)
    assert finding["time_ns"] > 1 << 60


def test_an_interface_that_may_not_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("rnic.cli.check_source.socket.socket", refused)
    result = CliRunner().invoke(check, ["--follow", "lo"])
    assert result.exit_code == 2
    assert "lo: cannot be listened to: Operation not permitted; that needs CAP_NET_RAW (root)" in result.stderr


class Listener:
    """A packet socket on an interface of some kind, which goes down after one frame."""

    kind = 1
    closed = 0

    def __init__(self, *_: object) -> None:
        self.frames = 1

    def bind(self, where: tuple[str, int]) -> None:
        if where[0] == "gone":
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def close(self) -> None:
        Listener.closed += 1

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def getsockname(self) -> tuple[str, int, int, int, bytes]:
        return "x0", 3, 0, self.kind, b""

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, *_: object) -> bytes:
        return bytes(8)

    def recvmsg(self, *_: object) -> tuple[bytes, list[tuple[int, int, bytes]], int, tuple[str, int, int, int, bytes]]:
        if not self.frames:
            raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
        self.frames -= 1
        packet = next(iter(read_packets(RECORDING))).data
        return packet if self.kind in (1, 772) else packet[14:], [], 0, ("x0", 0x0800, 0, self.kind, b"")


def _followed(monkeypatch: pytest.MonkeyPatch, name: str, kind: int) -> Result:
    """What is said about an interface, whose socket is closed once, whatever happens."""
    monkeypatch.setattr("rnic.cli.check_source.socket.socket", Listener)
    monkeypatch.setattr("rnic.cli.check.is_interface", lambda _: True)
    monkeypatch.setattr(Listener, "kind", kind)
    monkeypatch.setattr(Listener, "closed", 0)
    result = CliRunner().invoke(check, ["--follow", name])
    assert Listener.closed == 1
    return result


@pytest.mark.parametrize("kind", [1, 772, 512, 65_534], ids=["Ethernet", "loopback", "PPP", "bare IP"])
def test_an_interface_that_goes_down_is_said(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    result = _followed(monkeypatch, "x0", kind)
    assert result.exit_code == 2
    assert "x0: 1 frames, 1 RoCEv2: no rule broken" in result.stdout
    assert result.stderr == "rnic check: x0: cannot be listened to any more: Network is down\n"


def test_an_interface_whose_frames_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _followed(monkeypatch, "x0", 801)
    assert result.exit_code == 2
    said = "an interface of type 801; Ethernet, lo, PPP and interfaces of bare IP can be followed"
    assert result.stderr == f"rnic check: x0: {said}\n"


def test_an_interface_that_is_gone_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _followed(monkeypatch, "gone", 1)
    assert result.exit_code == 2
    assert "gone: cannot be listened to: No such device" in result.stderr


def test_progress_is_said_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        progress = Progress(str(RECORDING))
        progress._next = 0.0
        with RECORDING.open("rb") as file:
            file.read(1_000)
            progress.step(file, 12_345)
        progress.clear()
        said = capsys.readouterr().err
        assert ("%  12,345 frames" in said) is terminal
        assert said.endswith("\r\x1b[K") is terminal
