"""``rnic decode``: what it prints, counts and exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from rnic.cli.decode import decode
from rnic.link.pcap import PcapngWriter
from rnic.wire.ethernet import Ethernet, VlanTag
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

VECTORS = Path(__file__).parents[1] / "vectors" / "rxe"
NIC_CAPTURES = Path(__file__).parents[2].parent / "shared" / "captures" / "nic"
V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000)

ROCE_FRAMES = {
    "atomic_fadd": 10, "loss_write": 63, "rc_pingpong": 50, "rc_pingpong_ipv6": 40, "read_bw": 55, "rping": 41,
    "send_bw": 30, "srq_pingpong": 39, "uc_pingpong": 30, "ucmatose": 17, "ud_pingpong": 10, "vp_nak_rkey_write": 4,
    "vp_rnr_wait": 15, "vp_write_imm": 8, "vp_zero_length": 6, "write_bw": 55, "write_bw_256": 405,
}  # fmt: skip
"""Counted with tshark; ``tests/interop/oracles`` counts again where tshark is installed."""


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(decode, [str(arg) for arg in args])


def lines_of(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def frame(flow: Flow, opcode: int = 0x04, tag: bool = False, **values: Any) -> bytes:
    data = ip_packet(flow, seal(build(opcode, **{"dqpn": 0x11, "psn": 7, "payload": b"abcd", **values}), flow))
    kind = 0x0800 if flow is V4 else 0x86DD
    if tag:
        data = VlanTag(vid=5, inner_type=kind).pack() + data
    return Ethernet(dst_mac=1, src_mac=2, ethertype=0x8100 if tag else kind).pack() + data


def capture(path: Path, *frames: bytes, cut: int = 0, linktype: int = 1) -> Path:
    with path.open("wb") as file, PcapngWriter(file, linktype) as writer:
        for number, data in enumerate(frames):
            writer.write(1_000_000_000 + number * 1_500, data[: len(data) - cut], len(data))
    return path


def test_vectors_are_all_here() -> None:
    assert {path.stem for path in VECTORS.glob("*.pcap")} == set(ROCE_FRAMES)


@pytest.mark.parametrize("name", ROCE_FRAMES)
def test_counts_of_the_vectors(name: str) -> None:
    result = run("--json", "--summary", VECTORS / f"{name}.pcap")
    assert result.exit_code == 0
    (line,) = lines_of(result)
    summary = line["summary"]
    assert (summary["rocev2"], summary["icrc_ok"], summary["icrc_wrong"]) == (ROCE_FRAMES[name], ROCE_FRAMES[name], 0)
    assert (line["error"], summary["malformed"], summary["cut_short"], summary["others"]) == (None, 0, 0, {})


@pytest.mark.skipif(not NIC_CAPTURES.is_dir(), reason="the captures of real NICs, ../shared/captures/nic, are not here")
@pytest.mark.parametrize(
    ("name", "roce", "others"),
    [
        ("cx_ib_send_bw", 10, {"TCP": 35}),
        ("cx_nvme_discover", 61, {"ICMP": 4}),
        ("cx_send", 9, {}),
        ("cx_write", 17, {}),
        ("hns_send", 105, {"TCP": 10, "ARP": 4, "ICMPv6": 4}),
        ("scapy_frames", 2, {}),
    ],
)
def test_counts_of_real_nics(name: str, roce: int, others: dict[str, int]) -> None:
    (line,) = lines_of(run("--json", "--summary", NIC_CAPTURES / f"{name}.pcap"))
    summary = line["summary"]
    assert (summary["rocev2"], summary["icrc_ok"], summary["icrc_wrong"]) == (roce, roce, 0)
    assert summary["others"] == others


def test_text(tmp_path: Path) -> None:
    path = capture(tmp_path / "x.pcapng", frame(V4, 0x0A, va=0x1000, rkey=0x102, dma_length=4), frame(V6, tag=True))
    result = run("-v", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "#1  0.000000000 s  78 bytes  10.0.0.1 port 49152 > 10.0.0.2 port 4791  RC_WRITE_ONLY  ICRC ok",
        "    Ethernet header dst_mac=00:00:00:00:00:01 src_mac=00:00:00:00:00:02 ethertype=0x0800 (IPv4)",
        "    IPv4 header     version=4 ihl=5 tos=0x00 total_length=64 identification=0 flags_fragment=0x4000 ttl=64"
        " protocol=17 checksum=0x26ab src=10.0.0.1 dst=10.0.0.2",
        "    UDP header      sport=49152 dport=4791 length=44 checksum=0x0000",
        "    BTH             opcode=0x0a (RC_WRITE_ONLY) solicited=0 migreq=1 pad=0 tver=0 pkey=0xffff fecn=0 becn=0"
        " reserved6=0x00 dqpn=0x000011 ackreq=0 reserved7=0x00 psn=7",
        "    RETH            va=0x0000000000001000 rkey=0x00000102 dma_length=4",
        "    payload         4 bytes",
        f"    ICRC            0x{frame(V4, 0x0A, va=0x1000, rkey=0x102, dma_length=4)[-4:].hex()} ok",
        "#2  0.000001500 s  86 bytes  ::1 port 50000 > ::2 port 4791  RC_SEND_ONLY  ICRC ok",
        "    Ethernet header dst_mac=00:00:00:00:00:01 src_mac=00:00:00:00:00:02 ethertype=0x8100 (VLAN)",
        "    VLAN tag        pcp=0 dei=0 vid=5 inner_type=0x86dd (IPv6)",
        *result.stdout.splitlines()[11:14],
        "    payload         4 bytes",
        f"    ICRC            0x{frame(V6)[-4:].hex()} ok",
        f"{path}: 2 frames, 2 RoCEv2: ICRC ok 2, wrong 0",
        "  opcodes: RC_WRITE_ONLY 1, RC_SEND_ONLY 1",
    ]


def test_a_wrong_icrc(tmp_path: Path) -> None:
    bad = bytearray(frame(V4))
    bad[-1] ^= 1
    path = capture(tmp_path / "x.pcapng", frame(V4), bytes(bad))
    assert "RC_SEND_ONLY  ICRC WRONG" in run("-v", path).stdout
    result = run(path)
    assert result.exit_code == 1
    assert "RC_SEND_ONLY qp=0x000011 psn=7 [4]  ICRC WRONG\n" in result.stdout
    assert f"{path}: 2 frames, 2 RoCEv2: ICRC ok 1, wrong 1" in result.stdout
    assert [line.get("icrc_ok") for line in lines_of(run("--json", path))] == [True, False, None]


def test_malformed_and_other_protocols(tmp_path: Path) -> None:
    arp = Ethernet(ethertype=0x0806).pack() + bytes(28)
    rocev1 = Ethernet(ethertype=0x8915).pack() + bytes(60)
    ack = build(0x11, dqpn=1, psn=2) + b"1234"
    odd = Ethernet(ethertype=0x0800).pack() + ip_packet(V4, seal(ack, V4))
    cnp = frame(V4, 0x81, becn=True, payload=bytes(16))
    path = capture(tmp_path / "x.pcapng", arp, rocev1, odd, cnp)
    result = run(path)
    assert result.exit_code == 0
    assert "RC_ACKNOWLEDGE qp=0x000001 psn=2  malformed: BAD_LENGTH\n" in result.stdout
    assert "RC_ACKNOWLEDGE  malformed: BAD_LENGTH  ICRC ok" in run("-v", path).stdout
    assert result.stdout.splitlines()[-4:] == [
        f"{path}: 4 frames, 2 RoCEv2: ICRC ok 2, wrong 0",
        "  malformed: 1",
        "  opcodes: RC_ACKNOWLEDGE 1, CNP 1",
        "  other protocols: ARP 1, RoCEv1 without a BTH 1",
    ]
    assert lines_of(run("--json", path))[2]["drop"] == "BAD_LENGTH"


@pytest.mark.parametrize("cut", [1, 16, 20])
def test_snapped_frames(tmp_path: Path, cut: int) -> None:
    path = capture(tmp_path / "x.pcapng", frame(V4), cut=cut)
    first = run(path).stdout.splitlines()[0]
    assert first.endswith("cut short")
    assert " > " in first
    result = run("-v", path)
    assert result.exit_code == 0
    assert f"    cut short       {cut} bytes were not captured: ICRC unchecked" in result.stdout
    assert f"{path}: 1 frames, 1 RoCEv2: ICRC ok 0, wrong 0, not checkable (cut short) 1" in result.stdout
    assert lines_of(run("--json", path))[0]["complete"] is False


def test_other_port(tmp_path: Path) -> None:
    flow = Flow(V4.src, V4.dst, 1, 5000)
    path = capture(tmp_path / "x.pcapng", ip_packet(flow, seal(build(0x04, dqpn=1, psn=2), flow)), linktype=101)
    assert lines_of(run("--json", "--summary", path))[0]["summary"]["others"] == {"UDP": 1}
    assert lines_of(run("--json", "--summary", "--port", "5000", path))[0]["summary"]["icrc_ok"] == 1


def test_truncated_file_shows_what_was_readable(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes((VECTORS / "rping.pcap").read_bytes()[:3_000])
    result = run("-v", path)
    assert result.exit_code == 2
    assert result.stdout.count("ICRC ok") == 24, "23 packets and the summary"
    assert result.stderr.splitlines() == [
        f"rnic decode: {path}: cut short: a packet needs 138 bytes and 74 are left, at byte 2926, after 23 packets"
    ]
    last = lines_of(run("--json", path))[-1]
    assert last["summary"]["rocev2"] == 23
    assert "cut short" in last["error"]


def test_foreign_and_absent_files(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    result = run(path, tmp_path / "absent.pcap", VECTORS / "vp_zero_length.pcap")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"rnic decode: {path}: starts with 68 65 6c 6c: not a capture file; give a .pcap or .pcapng",
        f"rnic decode: {tmp_path / 'absent.pcap'}: cannot be opened: No such file or directory",
    ]
    assert "3 files: 6 frames, 6 RoCEv2: ICRC ok 6, wrong 0" in result.stdout


@pytest.mark.parametrize(
    "args", [(), ("--port", "0", "x"), ("--nonsense", "x"), ("--psn", "5-x", "x"), ("--qp", "16777216", "x")]
)
def test_wrong_arguments(args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_management_datagrams_are_named() -> None:
    result = run("-v", VECTORS / "rping.pcap")
    for name in ("ConnectRequest", "ConnectReply", "ReadyToUse", "DisconnectRequest", "DisconnectReply"):
        assert f"({name})" in result.stdout


def shown(*args: str | Path) -> list[int]:
    """Numbers of the packets that are shown."""
    return [int(line[1:].split()[0]) for line in run(*args).stdout.splitlines() if line.startswith("#")]


def test_a_line_for_each_packet(tmp_path: Path) -> None:
    path = capture(tmp_path / "x.pcapng", frame(V4, 0x0A, va=0x1000, rkey=0x102, dma_length=4), frame(V6, tag=True))
    result = run(path)
    assert result.stdout.splitlines()[:2] == [
        "#1      0.000000000  10.0.0.1 > 10.0.0.2  RC_WRITE_ONLY qp=0x000011 psn=7 va=0x1000 rkey=0x00000102 len=4 [4]",
        "#2      0.000001500  ::1 > ::2  RC_SEND_ONLY qp=0x000011 psn=7 [4]",
    ]


def test_cm_messages_say_what_they_set_up() -> None:
    lines = run(VECTORS / "rping.pcap").stdout.splitlines()
    assert lines[0].endswith(
        "ConnectRequest local_comm_id=0x5772c9f2 service_id=0x0000000001061c06 qpn=0x000028"
        " psn=11059098 path_mtu=5 (4096 bytes)"
    )
    assert lines[1].endswith(
        "ConnectReply local_comm_id=0x7fc35936 remote_comm_id=0x5772c9f2 qpn=0x000028 psn=11801215"
    )
    detail = run("-v", "--op", "ConnectReply", VECTORS / "rping.pcap").stdout
    assert "responder_resources=1" in detail
    assert "ack_delay=0x0f" in detail


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("--op", "RC_ACKNOWLEDGE"), [2, 4]),
        (("--op", "ACK*"), [2, 4]),
        (("--op", "WRITE*", "--op", "ACK*"), [1, 2, 3, 4]),
        (("--psn", "8"), [3, 4]),
        (("--psn", "0x7-0x8"), [1, 2, 3, 4]),
        (("--psn", "16777210-7"), [1, 2]),
        (("--psn", "0-16777215"), [1, 2, 3, 4]),
        (("--qp", "0x11"), [1, 2, 3, 4]),
        (("--qp", "18"), [1, 2, 3, 4]),
        (("--qp", "19"), []),
        (("--qp", "17", "--op", "WRITE*", "--psn", "8"), [3]),
    ],
)
def test_filters(tmp_path: Path, words: tuple[str, ...], numbers: list[int]) -> None:
    back = V4.reverse()
    back.sport, back.dport = 49_152, 4791
    packets = []
    for psn in (7, 8):
        packets.append(frame(V4, 0x0A, va=0x1000, rkey=1, dma_length=4, psn=psn, ackreq=True))
        ack = seal(build(0x11, dqpn=0x12, psn=psn, syndrome=0x1F, msn=psn - 6), back)
        packets.append(Ethernet(ethertype=0x0800).pack() + ip_packet(back, ack))
    assert shown(*words, capture(tmp_path / "x.pcapng", *packets)) == numbers


def test_repetitions_and_gaps_are_marked() -> None:
    lines = run(VECTORS / "loss_write.pcap").stdout.splitlines()
    assert lines[8].endswith("psn=324118 [512]  (behind a gap)")
    marks = [line["mark"] for line in lines_of(run("--json", VECTORS / "loss_write.pcap")) if "mark" in line]
    counted = run("--json", "--summary", VECTORS / "loss_write.pcap")
    assert marks.count("repeated") > 5, counted.stdout


def test_flow_in_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = run("--flow", VECTORS / "vp_nak_rkey_write.pcap").stdout.splitlines()
    assert lines[1].split() == ["198.51.100.12", "198.51.100.11"]
    arrows = [line for line in lines if line.startswith("#")]
    assert len(arrows) == 4
    assert arrows[0].endswith("->|")
    assert "NAK remote access error" in next(line for line in arrows if "|<-" in line)


def test_flow_as_picture_and_page(tmp_path: Path) -> None:
    svg, html = tmp_path / "x.svg", tmp_path / "x.html"
    result = run("--svg", svg, "--html", html, VECTORS / "loss_write.pcap")
    assert result.exit_code == 0
    assert result.stdout == ""
    root = ElementTree.parse(svg).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}line")) == 63
    assert "(repeated)" in svg.read_text()
    assert "<h2>198.51.100.12 and 198.51.100.11</h2>" in html.read_text()


def test_a_picture_shows_one_pair_of_hosts(tmp_path: Path) -> None:
    path = capture(tmp_path / "x.pcapng", frame(V4), frame(V6))
    result = run("--svg", tmp_path / "x.svg", path)
    assert result.exit_code == 2
    assert "--svg draws one pair of hosts, and 2 are shown" in result.stderr


def test_a_wrong_packet_does_not_arrive_in_the_ladder(tmp_path: Path) -> None:
    bad = bytearray(frame(V4))
    bad[-1] ^= 1
    line = run("--flow", capture(tmp_path / "x.pcapng", bytes(bad))).stdout.splitlines()[-1]
    assert line.endswith("-x|")
    assert "(ICRC wrong)" in line


# --------------------------------------------------------------------------------------- what recorders change


def test_a_source_port_that_the_recorder_rewrote(tmp_path: Path) -> None:
    sent = Flow(V4.src, V4.dst, 53_427)
    shown = Flow(V4.src, V4.dst, 4791)
    packets = [
        Ethernet(ethertype=0x0800).pack() + ip_packet(shown, seal(build(0x04, dqpn=1, psn=psn), sent))
        for psn in range(3)
    ]
    path = capture(tmp_path / "x.pcapng", *packets)
    result = run(path)
    assert result.exit_code == 0
    assert result.stdout.count("(ICRC fits source port 53427)") == 3
    assert "ICRC ok 3, wrong 0" in result.stdout
    assert "source port 53427" not in run(capture(tmp_path / "y.pcapng", *packets[:2])).stdout


def test_a_frame_before_segmentation_is_shown_as_its_packets(tmp_path: Path) -> None:
    joined = b"".join(seal(build(0x07, dqpn=1, psn=psn, payload=bytes(1024)), V4, psn) for psn in range(3))
    path = capture(tmp_path / "x.pcapng", Ethernet(ethertype=0x0800).pack() + ip_packet(V4, joined))
    result = run(path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.partition("psn=")[2] for line in lines[:3]] == [
        f"{psn} [1024]  ({psn + 1} of 3 in one frame)" for psn in range(3)
    ]
    assert lines[3] == f"{path}: 1 frames, 3 RoCEv2: ICRC ok 3, wrong 0"
    rows = [json.loads(line) for line in run("--json", path).stdout.splitlines()]
    assert [(row["number"], row["icrc_ok"], row["drop"]) for row in rows[:3]] == [(1, True, None)] * 3


def test_a_legal_service_that_is_not_taken_apart_is_called_so(tmp_path: Path) -> None:
    packets = []
    for opcode in (0x44, 0xA4, 0xC1, 0x5F):
        body = build(0x04, dqpn=1, psn=2, payload=bytes(64))
        body[0] = opcode
        packets.append(Ethernet(ethertype=0x0800).pack() + ip_packet(V4, seal(body, V4)))
    lines = run(capture(tmp_path / "x.pcapng", *packets)).stdout.splitlines()
    words = ["RD_SEND_ONLY", "XRC_SEND_ONLY", "manufacturer's opcode 0xc1", "opcode 0x5f"]
    for line, name in zip(lines, words, strict=False):
        assert f"10.0.0.2  {name} qp=0x000001 psn=2" in line
        assert ("BAD_OPCODE" in line) is (name == "opcode 0x5f")
    assert "  malformed: 1" in lines
