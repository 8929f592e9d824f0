"""tshark as an outside oracle: the same frames, the same values, and no complaint about our files."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rnic.cli.check import check
from rnic.cli.decode import decode
from rnic.link.loopback import loopback_pair
from rnic.link.pcap import PcapngWriter, read_packets
from rnic.link.recorder import Recorder
from rnic.wire.bursts import TxBurst
from rnic.wire.packet import build, seal

TESTS = Path(__file__).parents[2]
RXE = sorted((TESTS / "vectors" / "rxe").glob("*.pcap"))
NIC_FOLDER = TESTS.parent.parent / "shared" / "captures" / "nic"
NIC = sorted(NIC_FOLDER.glob("*.pcap"))

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed: apt install tshark")

# tshark's field, header and field here
FIELDS = {
    "infiniband.bth.opcode": ("BTH", "opcode"),
    "infiniband.bth.se": ("BTH", "solicited"),
    "infiniband.bth.m": ("BTH", "migreq"),
    "infiniband.bth.padcnt": ("BTH", "pad"),
    "infiniband.bth.tver": ("BTH", "tver"),
    "infiniband.bth.p_key": ("BTH", "pkey"),
    "infiniband.bth.destqp": ("BTH", "dqpn"),
    "infiniband.bth.a": ("BTH", "ackreq"),
    "infiniband.bth.reserved7": ("BTH", "reserved7"),
    "infiniband.bth.psn": ("BTH", "psn"),
    "infiniband.reth.va": ("RETH", "va"),
    "infiniband.reth.r_key": ("RETH", "rkey"),
    "infiniband.reth.dmalen": ("RETH", "dma_length"),
    "infiniband.aeth.syndrome": ("AETH", "syndrome"),
    "infiniband.aeth.msn": ("AETH", "msn"),
    "infiniband.deth.q_key": ("DETH", "qkey"),
    "infiniband.deth.srcqp": ("DETH", "sqpn"),
    "infiniband.atomiceth.swapdt": ("AtomicETH", "swap_add"),
    "infiniband.atomiceth.cmpdt": ("AtomicETH", "compare"),
    "infiniband.atomicacketh.origremdt": ("AtomicAckETH", "orig"),
    "infiniband.mad.transactionid": ("MAD header", "tid"),
    "infiniband.mad.attributeid": ("MAD header", "attr_id"),
}
HEX_FIELDS = {"infiniband.immdt": ("ImmDt", "imm"), "infiniband.ieth": ("IETH", "inv_rkey")}
"""tshark shows these as bytes."""


def tshark(path: Path, *args: str) -> str:
    """Run tshark over a capture. Off are TFTP, which it would choose by source port (with Huawei's NIC that is the QP
    number, such as 69), and RPC over RDMA, which it would guess from payloads.
    """
    command = ["tshark", "-n", "-r", str(path), "--disable-protocol", "tftp", "--disable-protocol", "rpcordma", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    complaints = [line for line in done.stderr.splitlines() if "Running as user" not in line]
    assert complaints == []
    return done.stdout


def tshark_rows(path: Path) -> list[dict[str, str]]:
    names = ["frame.number", *FIELDS, *HEX_FIELDS, "infiniband.invariant.crc"]
    wanted = [part for name in names for part in ("-e", name)]
    table = tshark(path, "-Y", "infiniband", "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", *wanted)
    return [dict(zip(names, line.split("|"), strict=True)) for line in table.splitlines()]


def number(text: str) -> int:
    return {"True": 1, "False": 0}.get(text) if text in ("True", "False") else int(text, 0)  # type: ignore[return-value]


def own_rows(path: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(decode, ["--json", str(path)])
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [line for line in lines if line.get("kind") == "RoCEv2"]


def compare(path: Path) -> int:
    own = own_rows(path)
    theirs = tshark_rows(path)
    assert [row["number"] for row in own] == [int(row["frame.number"]) for row in theirs]
    compared = 0
    for mine, their in zip(own, theirs, strict=True):
        headers = {header["header"]: header for header in mine["headers"]}
        headers.setdefault("RETH", headers.get("AtomicETH"))  # tshark shows an atomic's address and key as RETH's
        for name, (header, field) in FIELDS.items():
            if their[name]:
                assert headers[header][field] == number(their[name]), (path.name, mine["number"], name)
                compared += 1
        for name, (header, field) in HEX_FIELDS.items():
            if their[name]:
                assert headers[header][field] == int(their[name].replace(":", ""), 16), (
                    path.name,
                    mine["number"],
                    name,
                )
                compared += 1
        if their["infiniband.invariant.crc"] or mine["opcode_name"] != "CNP":  # tshark 4.0 shows none in a CNP
            assert mine["icrc"] == number(their["infiniband.invariant.crc"])
            compared += 1
        assert mine["icrc_ok"] is True
    return compared


@pytest.mark.slow
@pytest.mark.parametrize("path", RXE, ids=lambda path: path.stem)
def test_soft_roce_captures(path: Path) -> None:
    assert compare(path) > 10


@pytest.mark.slow
@pytest.mark.skipif(not NIC, reason="the captures of real NICs, ../shared/captures/nic, are not here")
@pytest.mark.parametrize("path", NIC, ids=lambda path: path.stem)
def test_real_nic_captures(path: Path) -> None:
    assert compare(path) > 10


@pytest.mark.slow
@pytest.mark.parametrize("linktype", [1, 101], ids=["ethernet", "raw"])
def test_tshark_opens_what_the_recorder_wrote(tmp_path: Path, linktype: int) -> None:
    path = tmp_path / "own.pcapng"
    left, right = loopback_pair()
    flow = left.local_flow(right.address, 4791)
    with path.open("wb") as file:
        link = Recorder(left, file, linktype, clock=lambda: 1_700_000_000_123_456_789)
        for opcode in (0x04, 0x06, 0x0B, 0x0C, 0x11, 0x13, 0x64):
            payload = b"" if opcode in (0x0C, 0x11, 0x13) else b"data"
            frame = seal(build(opcode, dqpn=0x11, psn=opcode, sqpn=5, payload=payload), flow)
            link.send([TxBurst(flow, [frame], len(frame), 1, len(frame))])
        link.close()
    assert compare(path) > 50
    summary = tshark(path, "-T", "fields", "-e", "frame.time_epoch", "-e", "_ws.malformed", "-e", "_ws.expert.message")
    for line in summary.splitlines():
        time, *complaints = line.split("\t")
        assert time == "1700000000.123456789"
        assert not any(complaints)


def test_tshark_shows_findings_as_comments(tmp_path: Path) -> None:
    spoilt, copy = tmp_path / "spoilt.pcapng", tmp_path / "copy.pcapng"
    with spoilt.open("wb") as file:
        writer = PcapngWriter(file)
        for index, packet in enumerate(read_packets(TESTS / "vectors" / "rxe" / "write_bw.pcap")):
            data = bytearray(packet.data)
            data[-6] ^= index == 5
            writer.write(packet.time_ns, data)
    assert CliRunner().invoke(check, ["--comments", str(copy), str(spoilt)]).exit_code == 1
    rows = tshark(copy, "-Y", "frame.comment", "-T", "fields", "-e", "frame.number", "-e", "frame.comment").splitlines()
    assert rows[0].startswith("6\trnic error: ICRC of ")
    assert "[icrc: the ICRC is correct; A17, 17.9.3]" in rows[0]
