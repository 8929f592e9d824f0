"""``rnic wireshark`` and ``rnic extcap``: what is installed where, Wireshark's grammar, and tshark itself."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

import rnic
from rnic import enums as e
from rnic.cli import extcap as extcap_module
from rnic.cli import wireshark as wireshark_module
from rnic.cli.check_comments import MAX_EACH
from rnic.cli.commands import group
from rnic.cli.extcap import Annotated, sentences
from rnic.cli.wireshark import MARK
from rnic.judge import Finding
from rnic.link.pcap import CapturedPacket, PcapngWriter, read_capture, read_packets
from rnic.testing import own_network
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal
from tests.verbs.conftest import start_nic
from tests.verbs.test_bypass import until
from tests.verbs.test_nic_process import End

NET = own_network()
ETHERNET = bytes(12) + b"\x08\x00"
GRAMMAR = re.compile(r"(extcap|interface|dlt|arg)( \{\w+=[^{}]+\}(\{\w+=[^{}]+\})*)")
tshark = shutil.which("tshark")
needs_lua = pytest.mark.skipif(
    tshark is None or "with Lua" not in subprocess.check_output([tshark, "-v"], text=True),
    reason="needs a tshark that has Lua",
)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(group, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of this test's own, and no Wireshark until one is asked for."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WIRESHARK_EXTCAP_DIR", raising=False)
    monkeypatch.setattr(wireshark_module, "folders", dict)
    return tmp_path / "home"


@pytest.mark.slow
def test_both_files_are_installed_and_removed(home: Path) -> None:
    done = run("wireshark", "--install")
    wrapper, lua = home / ".local/lib/wireshark/extcap/rnic", home / ".local/lib/wireshark/plugins/rnic.lua"
    assert done.output.splitlines()[:2] == [
        f"capture interfaces: {wrapper}: installed",
        f"findings on packets: {lua}: installed",
    ]
    assert wrapper.stat().st_mode & stat.S_IXUSR
    assert lua.read_text().startswith(f"-- {MARK}\n")
    assert "--extcap-interfaces" in subprocess.check_output([wrapper, "--help"], text=True)
    shown = json.loads(run("wireshark", "--json").stdout)
    assert [(part["path"], part["state"]) for part in shown] == [(str(wrapper), "there"), (str(lua), "there")]
    assert run("wireshark", "--install").exit_code == 0, "again, over its own"
    assert run("wireshark", "--uninstall").output.count(": removed\n") == 2
    assert run("wireshark", "--uninstall").output.count(": absent\n") == 2
    assert not wrapper.exists()
    assert not lua.exists()


def test_files_of_others_stay(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "rnic"
    mine.write_text("#!/bin/sh\n")
    done = CliRunner().invoke(group, ["wireshark", "--install", "--extcap-folder", str(tmp_path)])
    assert "was not written by rnic: remove it, or choose another folder with --extcap-folder or" in str(done.exception)
    assert not (home / ".local/lib/wireshark/plugins").exists(), "nothing is written where one file cannot be"
    assert f"{mine}: not ours" in run("wireshark", "--uninstall", "--extcap-folder", tmp_path).output
    assert mine.read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("known", "variable", "writable", "where", "hint"),
    [
        ({"Personal Extcap path": "/p", "Extcap path": "/s"}, None, False, "/p/rnic", ""),
        ({"Extcap path": "/s"}, None, True, "/s/rnic", ""),
        ({"Extcap path": "/v"}, "/v", False, "/v/rnic", ""),
        ({"Extcap path": "/s"}, None, False, "HOME/.local/lib/wireshark/extcap/rnic", "WIRESHARK_EXTCAP_DIR=HOME"),
        ({"Extcap path": "/s"}, "/v", False, "/v/rnic", "WIRESHARK_EXTCAP_DIR=/v"),
        ({}, None, False, "HOME/.local/lib/wireshark/extcap/rnic", ""),
    ],
)
def test_the_folder_is_the_one_that_wireshark_looks_in(
    known: dict[str, str],
    variable: str | None,
    writable: bool,
    where: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
) -> None:
    monkeypatch.setattr(wireshark_module, "folders", lambda: known)
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    if variable is not None:
        monkeypatch.setenv("WIRESHARK_EXTCAP_DIR", variable)
    (_, path, said), (_, plugin, _) = wireshark_module.places(None, None)
    assert str(path) == where.replace("HOME", str(home))
    assert hint.replace("HOME", str(home)) in said
    assert bool(said) is bool(hint)
    assert plugin == home / ".local/lib/wireshark/plugins/rnic.lua"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("extcap",), "give --extcap-interfaces, or --extcap-interface with what to do"),
        (("extcap", "--extcap-interface", "rnic0"), "goes --extcap-dlts, --extcap-config, or --capture"),
        (("extcap", "--extcap-interface", "rnic0", "--capture"), "--capture needs --fifo"),
        (
            ("extcap", "--extcap-interface", "rnic0", "--capture", "--fifo", "x", "--extcap-capture-filter", "udp"),
            "--extcap-capture-filter udp: rnic knows no capture filters",
        ),
        (("wireshark", "--install", "--uninstall"), "exclude each other"),
    ],
)
def test_wrong_calls(args: tuple[str, ...], words: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert words in done.output


def test_what_wireshark_asks_is_answered_in_its_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extcap_module, "interfaces", lambda: [{"name": "rnic0", "address": "127.0.0.1"}])
    asked = [
        ("--extcap-interfaces", "--extcap-version=4.0"),
        ("--extcap-interface", "rnic0", "--extcap-dlts"),
        ("--extcap-interface", "rnic0", "--extcap-config"),
    ]
    lines = [line for words in asked for line in run("extcap", *words).output.splitlines()]
    assert all(GRAMMAR.fullmatch(line) for line in lines)
    assert [line.split()[0] for line in lines] == ["extcap", "interface", "dlt", "arg"]
    assert "{value=rnic0}{display=RDMA NIC at 127.0.0.1}" in lines[1]
    assert "{call=--findings}" in lines[3]
    assert sentences("dlt", {"a": "1"}, {"a": "2"}) == "dlt {a=1}\ndlt {a=2}\n"
    assert run("extcap", "--extcap-interface", "rnic0", "--extcap-capture-filter", "").output == ""


def test_without_a_nic_process_there_are_no_interfaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path))
    assert run("extcap", "--extcap-interfaces").output.startswith("extcap {version=")
    assert "interface" not in run("extcap", "--extcap-interfaces").output


@pytest.mark.parametrize("kind", ["to nothing", "to our own", "fifo", "our words elsewhere"])
def test_what_is_no_file_of_ours_is_neither_written_nor_read(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "folder" / "rnic", tmp_path / "target"
    path.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "our words elsewhere":
        path.write_text(f"#!/bin/sh\necho '{MARK}'\n")
    else:
        path.symlink_to(target)
    if kind == "to our own":
        target.write_text(wireshark_module.text_of(path) + "# more\n")
    words = target.read_text() if target.exists() else None
    before = path.lstat()
    with pytest.raises(wireshark_module.WiresharkError, match="was not written by rnic"):
        wireshark_module.install(path)
    assert wireshark_module.remove(path) == "not ours"
    assert path.lstat() == before
    assert (target.read_text() if target.exists() else None) == words


def test_an_empty_file_is_none_and_a_write_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rnic.lua"
    path.touch()
    assert wireshark_module.state_of(path) == "absent"
    wireshark_module.install(path)
    written = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(wireshark_module.WiresharkError, match="cannot be written: No space left"):
        wireshark_module.install(path)
    assert [each.name for each in tmp_path.iterdir()] == ["rnic.lua"]
    assert path.read_text() == written


def frames(*given: tuple[int, int]) -> Iterator[CapturedPacket]:
    """SENDs of PSNs and sizes, their idents in order; if none are given, one and another one of the same PSN."""
    way = Flow(bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2)), 50_000)
    for number, (psn, size) in enumerate(given or ((7, 64), (8, 64), (7, 32))):
        ident = 1000 + number if given else 0
        payload = seal(build(0x04, dqpn=17, psn=psn, payload=bytes(size)), way, ident)
        packet = ETHERNET + ip_packet(way, payload, ident)
        yield CapturedPacket(number, 1, packet, len(packet))


def test_findings_are_comments_on_their_packets() -> None:
    file = io.BytesIO()
    notes = Annotated(file, "rnic0")
    packets = list(frames())
    for packet in packets:
        notes.add(packet)
    notes.finish()
    data = file.getvalue()
    assert [each.data for each in read_capture(io.BytesIO(data), "it")] == [packet.data for packet in packets]
    assert data.count(b"rnic error: ") == 1
    assert data.index(b"rnic error: PSN 7: ") > data.index(packets[2].data)
    assert b"[repeat: " in data


def test_a_finding_on_a_packet_that_is_written_goes_to_the_next_one() -> None:
    file = io.BytesIO()
    notes = Annotated(file, "rnic0")
    finding = Finding(1, 0, "", "icrc", "is wrong")
    first, second, _ = frames()
    notes.add(first)
    notes.add(second)
    notes.flush()
    notes._found(finding)
    notes.finish()
    assert b"rnic error: of frame 1: is wrong [icrc: " in file.getvalue()
    assert file.getvalue().index(b"of frame 1") > file.getvalue().index(second.data)


@pytest.mark.parametrize("psns", [(7, 8, 10, 9), (7, 8, 10, 9, 11, 12)])
def test_findings_at_the_end_are_reported_after_a_silence(psns: tuple[int, ...]) -> None:
    file = io.BytesIO()
    notes = Annotated(file, "rnic0")
    for packet in frames(*[(psn, 64) for psn in psns]):
        notes.add(packet)
        notes.flush()
    notes.finish()
    assert len(list(read_capture(io.BytesIO(file.getvalue()), "it"))) == len(psns)
    assert b"rnic warning: of frame 3: PSN 10 was sent between 8 and 9" in file.getvalue()


def test_one_packet_has_so_many_comments_at_most() -> None:
    file = io.BytesIO()
    notes = Annotated(file, "rnic0")
    for _ in range(100):
        notes._found(Finding(1, 0, "", "icrc", "is wrong"))
    notes.add(next(frames()))
    notes.finish()
    assert file.getvalue().count(b"is wrong [icrc: ") == MAX_EACH


def test_a_signal_ends_a_capture_to_a_fifo_that_nothing_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is opened, and while a write waits."""
    monkeypatch.setattr(extcap_module, "_END_S", 0.01)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def tell() -> None:
        while signal.getsignal(signal.SIGTERM) == before:  # waits: for the handler
            time.sleep(0.002)
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    def starts(name: str) -> tuple[Mock, socket.socket]:
        source, sending = socket.socketpair()
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sending.send(bytes(1 << 17))  # more than a FIFO holds
        threading.Thread(target=tell).start()
        return Mock(close=sending.close), source

    monkeypatch.setattr(extcap_module, "start", starts)
    before = signal.getsignal(signal.SIGTERM)
    words = ("extcap", "--extcap-interface", "rnic0", "--capture", "--fifo", fifo)
    assert run(*words).exit_code == 0
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb"):
        assert run(*words).exit_code == 0
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@needs_lua
def test_the_post_dissector_has_fields_and_expert_information(tmp_path: Path, home: Path) -> None:
    assert tshark is not None
    capture, notes = tmp_path / "in.pcapng", tmp_path / "out.pcapng"
    with capture.open("wb") as file, PcapngWriter(file) as writer:
        for packet in frames():
            writer.write(packet.time_ns, packet.data)
    assert run("check", capture, "--comments", notes).exit_code == 1
    run("wireshark", "--install", "--plugin-folder", home / ".local/lib/wireshark/plugins")
    fields = ["frame.number", "rnic.severity", "rnic.rule", "rnic.finding", "rnic.clause"]
    words = [word for field in fields for word in ("-e", field)]
    shown = [tshark, "-r", str(notes), "-Y", "rnic.error", "-T", "fields", *words]
    (line,) = subprocess.check_output(shown, text=True, timeout=60).splitlines()
    number, severity, rule, finding, clause = line.split("\t")
    assert (number, severity, rule) == ("3", "error", "repeat")
    assert finding == "PSN 7: RC_SEND_ONLY of 32 bytes, but RC_SEND_ONLY of 64 bytes in frame 1"
    assert clause


@pytest.fixture
def shark(home: Path, tmp_path: Path) -> list[str]:
    """A tshark that looks for capture interfaces where this test has them installed.

    Wireshark before 4.2 has no personal folder, and takes the variable from none that is root.
    """
    assert tshark is not None
    folder = home / ".local/lib/wireshark/extcap"
    assert run("wireshark", "--install", "--extcap-folder", folder).exit_code == 0
    out = subprocess.check_output([tshark, "-G", "folders"], text=True, timeout=60)
    found = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    if os.geteuid() != 0 or found.get("Personal Extcap path", "").strip() == str(folder):
        return ["env", f"WIRESHARK_EXTCAP_DIR={folder}", tshark]
    mount = f'mount --bind {folder} "{found["Extcap path"].strip()}" && exec {tshark} "$@"'
    words = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    done = subprocess.run([*words, "-v"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"root may mount nothing here, and this tshark has no personal folder: {done.stderr.strip()}")
    return words


@pytest.fixture
def nic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runtime directory of a NIC process."""
    runtime = tmp_path / "nic"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(runtime))
    process = start_nic(runtime)
    yield runtime
    process.terminate()
    process.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("findings", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_capture_to_a_file_ends_well_when_it_is_told_to(nic: Path, tmp_path: Path, findings: bool) -> None:
    path = tmp_path / "run.pcapng"
    words = [sys.executable, "-m", "rnic.cli", "extcap", "--extcap-interface", "rnic0", "--capture"]
    words += ["--fifo", str(path)]
    with (
        rnic.open(f"{NET}.42", port=4791, directory=nic) as ctx,
        subprocess.Popen([*words, *(["--findings"] if findings else [])]) as capturing,
    ):
        assert until(lambda: path.exists() and path.stat().st_size > 0)
        one, other = End(ctx), End(ctx)
        one.connect(other)
        other.connect(one)
        one.post(e.IBV_WR_RDMA_WRITE, 100, other)
        assert one.wait().status == e.IBV_WC_SUCCESS
        capturing.terminate()
        assert capturing.wait(60) == 0
    opcodes = [packet.data[14 + 20 + 8] for packet in read_packets(path)]
    assert opcodes[:2] == [10, 17]


@pytest.mark.slow
@pytest.mark.full
def test_an_idle_capture_ends_when_its_reader_closes_the_fifo(nic: Path, tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    words = [sys.executable, "-m", "rnic.cli", "extcap", "--extcap-interface", "rnic0", "--capture"]
    words += ["--fifo", str(path)]
    with rnic.open(f"{NET}.43", port=4791, directory=nic), subprocess.Popen(words) as capturing:
        with path.open("rb") as file:
            assert file.read(4) == bytes.fromhex("0a0d0d0a"), "a file's beginning comes before the first packet"
        assert capturing.wait(60) == 0


@pytest.mark.slow
@needs_lua
def test_tshark_lists_a_running_device_and_captures_its_packets(
    shark: list[str], nic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two queue pairs of one device, whose packets reach no network; every tenth is corrupt, and said to be."""
    assert tshark is not None
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rule = json.dumps([{"match": {"direction": "tx", "opcode": "RC_WRITE*"}, "every": 10, "action": "corrupt"}])
    with rnic.open(f"{NET}.41", port=4791, directory=nic, faults=rule) as ctx:
        listed = subprocess.check_output([*shark, "-D"], text=True, timeout=100)
        assert f"rnic0 (RDMA NIC at {NET}.41)" in listed
        one, other = End(ctx), End(ctx)
        one.connect(other)
        other.connect(one)
        fields = ["-T", "fields", "-e", "ip.src", "-e", "infiniband.bth.opcode", "-e", "rnic.rule"]
        words = [*shark, "-l", "-i", "rnic0", "-c", "60", *fields]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as capturing:
            end = time.monotonic() + 100
            while capturing.poll() is None:  # waits: for 60 packets
                assert time.monotonic() < end, "tshark did not get its packets"
                one.post(e.IBV_WR_RDMA_WRITE, 100, other)
                assert one.wait().status == e.IBV_WC_SUCCESS
                time.sleep(0.005)
            assert capturing.stdout is not None
            rows = [line.rstrip("\n").split("\t") for line in capturing.stdout]
    assert capturing.returncode == 0
    assert len(rows) == 60
    assert {row[0] for row in rows} == {f"{NET}.41"}
    assert {row[1] for row in rows} >= {"10", "17"}
    assert "icrc" in {row[2] for row in rows}
    assert {row[2] for row in rows} <= {"", "icrc"}
