"""``rnic rclink`` between two processes on loopback, its errors, and its packets in ``rnic decode``."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rnic.cli import main
from rnic.cli.decode import decode
from rnic.link.pcap import PcapngWriter
from rnic.rclink.header import Rh
from rnic.rclink.numbers import OP_ACK, OP_CNP
from rnic.rclink.packet import build, seal
from rnic.wire.dissect import LINKTYPE_RAW
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build as build_roce
from rnic.wire.packet import seal as seal_roce

COMMAND = (sys.executable, "-m", "rnic.cli", "rclink")
FLOW = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 4793, 4793)


@contextmanager
def server(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on free ports, and the TCP port that it names."""
    process = subprocess.Popen(
        [*COMMAND, "-p", "0", "--udp-port", "0", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"TCP port (\d+)", line)
            if found:
                yield process, found[1]
                return
        raise AssertionError("the server ended before it listened")
    finally:
        process.kill()
        process.communicate()


def client(port: str, *args: str, addr: str = "127.0.0.1") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "-p", port, *args, "--addr", addr, addr], capture_output=True, text=True, timeout=40, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("addr", "options"),
    [
        ("127.0.0.1", []),
        ("::1", ["-s", "1", "--packet", "4096"]),
        ("127.0.0.1", ["-s", "9001", "--faults", "drop=5%,mark=50%", "--retry-timer", "20"]),
        ("127.0.0.1", ["-s", "3000", "--rate", "500", "--window", "16.384"]),
    ],
)
def test_two_processes(addr: str, options: list[str]) -> None:
    both = ["-n", "30", *options]
    with server(*both, "--addr", addr) as (process, port):
        done = client(port, *both, "--json", addr=addr)
        said = process.communicate(timeout=40)[0]
    assert done.returncode == 0, done.stdout + done.stderr + said
    assert process.returncode == 0, said
    figures = json.loads(done.stdout)
    size = int(options[1]) if "-s" in options else 4_096
    assert (figures["bytes"], figures["iters"], figures["checked"]) == (2 * 30 * size, 30, True)
    assert figures["seconds"] > 0
    packet = 4_096 if "--packet" in options else 1_344
    assert figures["counters"]["rx_send"] == 30 * -(-size // packet)
    assert ("cnps_received" in figures["counters"]) == ("mark" in str(options))
    assert ("fault_tx_drop" in figures["counters"]) == ("--loss" in options)
    assert re.search(
        rf"^{2 * 30 * size} bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec, all of them checked$", said, re.M
    )
    assert re.search(r"^30 iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter$", said, re.M)
    assert f"remote QP:  {figures['local']['qpid']}, PSN {figures['local']['psn']:#05x}" in said


@pytest.mark.slow
def test_sides_that_disagree() -> None:
    with server("-s", "100") as (process, port):
        done = client(port, "-s", "101")
        said = process.communicate(timeout=40)[0]
    assert (done.returncode, process.returncode) == (1, 1)
    assert said.splitlines()[-1] == "rnic rclink: size is 100 here and 101 at the peer: give both sides the same"
    assert done.stderr == "rnic rclink: peer: size is 100 here and 101 at the peer: give both sides the same\n"


@pytest.mark.slow
def test_a_peer_that_does_not_answer() -> None:
    """Its TCP line stands and nobody is at its UDP port: the retry limit ends it, by its interrupt."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = ["-p", str(listener.getsockname()[1]), "127.0.0.1"]
        process = subprocess.Popen(
            [*COMMAND, *place, "--retry-timer", "1", "--retries", "2", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = listener.accept()[0]
        hello = json.loads(line.makefile().readline())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            line.sendall(json.dumps({**hello, "udp_port": silent.getsockname()[1]}).encode() + b"\n")
            errors = process.communicate(timeout=40)[1]
    line.close()
    assert process.returncode == 1
    assert re.fullmatch(r"rnic rclink: QP [0-3]: interrupt 'retry out': is the peer alive\?\n", errors)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"size": 5}, "size is 4096 here and 5 at the peer"),
        ({"address": "zz"}, "the peer's line is not one of rnic rclink"),
        ({"qpid": 1 << 13}, "the peer's line is not one of rnic rclink"),
        ({"udp_port": 1 << 16}, "the peer's line is not one of rnic rclink"),
        ({"psn": "x"}, "the peer's line is not one of rnic rclink"),
        ({"address": "0a0000"}, "the peer's line is not one of rnic rclink"),
        ({"address": "00" * 15 + "01"}, "the peer's line is not one of rnic rclink"),
    ],
)
def test_lines_of_strangers(hello: dict[str, Any], words: str) -> None:
    from rnic.cli.peer import PeerError, accept, hello_of
    from rnic.cli.rclink_peer import RcLinkSide, Settings

    side = RcLinkSide(Settings("127.0.0.1", 0))
    try:
        with pytest.raises(PeerError, match=words):
            accept(side, {**hello_of(side, "seed"), **hello})
    finally:
        side.close()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--addr", "192.0.2.1"], "options --udp-port and --addr"),
        (["--window", "5"], "'5' is not one of '4.096', '8.192', '16.384', '32.768', '65.536'"),
        (["--packet", "4097"], "--packet"),
        (["--capture", "/nonexistent/x", "--udp-port", "0"], "No such file"),
    ],
)
def test_bad_arguments_are_one_line(args: list[str], words: str, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["rnic", "rclink", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1


# ---------------------------------------------------------------------------------------------------- decode


def decoded(path: Path, *packets: bytes, options: tuple[str, ...] = ()) -> tuple[list[dict[str, Any]], str, int]:
    with path.open("wb") as file, PcapngWriter(file, LINKTYPE_RAW) as writer:
        for data in packets:
            writer.write(0, data)
    result = CliRunner().invoke(decode, [str(path), "--json", *options])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    text = CliRunner().invoke(decode, ["-v", str(path), *options]).stdout
    return lines, text, result.exit_code


def test_decode_knows_rc_link(tmp_path: Path) -> None:
    send = seal(build(Rh(fack=1, pkey=0xFF, psn=5, dest_qp=3, ts_en=1, timestamp=7), b"abcde"), FLOW)
    nak = seal(Rh(opcode=OP_ACK, psn=9, dest_qp=4, len_syndrome=0x60).pack(), FLOW)
    ack = seal(Rh(opcode=OP_ACK, psn=9, dest_qp=4, len_syndrome=0x1F).pack(), FLOW)
    cnp = seal(Rh(opcode=OP_CNP, dest_qp=4).pack(), FLOW)
    roce = Flow(FLOW.src, FLOW.dst, 4791, 4791)
    beside = seal_roce(build_roce(0x04, dqpn=1, psn=1, payload=b"abcd"), roce)
    packets = [ip_packet(FLOW, data) for data in (send, nak, ack, cnp)] + [ip_packet(roce, beside)]
    lines, text, status = decoded(tmp_path / "x", *packets)
    assert status == 0
    assert [line.get("opcode_name") for line in lines[:-1]] == [
        "RCLINK_SEND", "RCLINK_NAK", "RCLINK_ACK", "RCLINK_CNP", "RC_SEND_ONLY",
    ]  # fmt: skip
    assert [line["kind"] for line in lines[:-1]] == ["RC Link"] * 4 + ["RoCEv2"]
    assert lines[0]["payload_bytes"] == 5
    assert lines[0]["headers"][-1] == {"header": "RH", **Rh.parse(send).values()}
    summary = lines[-1]["summary"]
    assert (summary["rclink"], summary["rocev2"], summary["icrc_ok"]) == (4, 1, 5)
    assert "RH              opcode=0 (SEND) fack=1 pad=3" in text
    assert "len_syndrome=0x60 (NAK PSN sequence error) psn=9" in text
    assert "5 frames, 1 RoCEv2, 4 RC Link: ICRC ok 5, wrong 0" in text


def test_decode_says_why_a_packet_would_be_refused(tmp_path: Path) -> None:
    to_type2 = Flow(FLOW.src, FLOW.dst, 4793, 4794)
    group = Flow(FLOW.src, b"\xe0\0\0\x09", 4793, 4793)
    frame = build(Rh(), b"abcd")
    packets = [
        ip_packet(to_type2, seal(frame, to_type2)),
        ip_packet(group, seal(frame, group)),
        ip_packet(FLOW, seal(Rh(opcode=OP_ACK, fack=1).pack(), FLOW)),
        ip_packet(FLOW, seal(Rh(opcode=3).pack(), FLOW)),
    ]
    lines, text, status = decoded(tmp_path / "x", *packets)
    assert status == 0
    assert [line["drop"] for line in lines[:-1]] == ["TYPE2", "TYPE2", "FACK", "BAD_OPCODE"]
    assert "dropped: TYPE2 (TYPE2 (unreliable multicast) is not supported: send TYPE1 to each receiver)" in text
    assert lines[-1]["summary"]["malformed"] == 4


def test_decode_finds_a_wrong_icrc_and_other_ports(tmp_path: Path) -> None:
    elsewhere = Flow(FLOW.src, FLOW.dst, 4793, 5_000)
    bad = bytearray(seal(build(Rh(psn=1), b"abcd"), elsewhere))
    bad[4] ^= 1
    lines, text, status = decoded(tmp_path / "x", ip_packet(elsewhere, bytes(bad)), options=("--rclink-port", "5000"))
    assert status == 1
    assert lines[0]["icrc_ok"] is False
    assert "RCLINK_SEND  ICRC WRONG" in text
    lines, _, status = decoded(tmp_path / "x", ip_packet(elsewhere, bytes(bad)))
    assert (status, lines[0]["kind"]) == (0, "UDP")


@pytest.mark.slow
def test_a_capture_is_decoded(tmp_path: Path) -> None:
    capture = tmp_path / "run.pcapng"
    with server("-n", "5", "--capture", str(capture), "-s", "2000") as (process, port):
        done = client(port, "-n", "5", "-s", "2000", "--udp-port", "0", "--json")
        process.communicate(timeout=40)
    ports = [str(end["udp_port"]) for name, end in json.loads(done.stdout).items() if name in ("local", "remote")]
    result = CliRunner().invoke(
        decode, [str(capture), "--json", "--summary", *[f"--rclink-port={one}" for one in ports]]
    )
    summary = json.loads(result.stdout)["summary"]
    assert summary["opcodes"]["RCLINK_SEND"] >= 20
    assert (summary["rclink"], summary["icrc_wrong"]) == (summary["frames"], 0)
