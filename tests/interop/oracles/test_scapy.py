"""scapy's RoCE layers as an outside oracle: its ICRC, and its BTH and AETH fields."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest

from rnic.wire.dissect import dissect
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152, tclass=2, hop_limit=63)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000, tclass=0x6A, flow_label=0x12345)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def roce() -> Any:
    """scapy.contrib.roce; its imports warn about things that are not ours."""
    logging.getLogger("scapy").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("scapy.contrib.roce", reason="scapy is not installed: pip install '.[test]'")


def dissected(flow: Flow, data: bytes) -> Any:
    from scapy.layers.inet import IP
    from scapy.layers.inet6 import IPv6

    return (IP if len(flow.src) == 4 else IPv6)(data)


@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
@pytest.mark.parametrize("opcode", [0x04, 0x11, 0x24, 0x64, 0x81])
@pytest.mark.parametrize("becn", [False, True])
def test_icrc_and_fields(roce: Any, flow: Flow, opcode: int, becn: bool) -> None:
    payload = {0x11: b"", 0x81: bytes(16)}.get(opcode, b"payload!")
    frame = build(opcode, dqpn=0xABCDEF, psn=0x123456, ackreq=True, becn=becn, payload=payload, syndrome=0x62, msn=7)
    packet = dissected(flow, ip_packet(flow, seal(frame, flow, 0xBEEF), 0xBEEF))
    bth = packet[roce.BTH]
    assert (bth.opcode, bth.dqpn, bth.psn, bth.ackreq) == (opcode, 0xABCDEF, 0x123456, 1)
    assert (bth.pkey, bth.migreq, bth.becn, bth.padcount, bth.version) == (0xFFFF, 1, int(becn), 0, 0)
    if opcode == 0x11:
        assert (packet[roce.AETH].syndrome, packet[roce.AETH].msn) == (0x62, 7)
    assert bth.icrc == int.from_bytes(seal(frame, flow, 0xBEEF)[-4:], "big")
    bth.icrc = None
    rebuilt = dissected(flow, bytes(packet))
    assert rebuilt[roce.BTH].icrc == int.from_bytes(seal(frame, flow, 0xBEEF)[-4:], "big")


def _carried(inner: bytes) -> dict[str, Any]:
    """An Ethernet frame inside of headers that scapy makes."""
    from scapy.contrib.erspan import ERSPAN_I, ERSPAN_II, ERSPAN_III
    from scapy.contrib.geneve import GENEVE
    from scapy.contrib.mpls import MPLS
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import GRE, Dot1AD, Dot1Q, Ether
    from scapy.layers.vxlan import VXLAN

    frame = Ether(inner)
    outer = Ether() / IP(src="192.0.2.1", dst="192.0.2.2")
    return {
        "VXLAN": outer / UDP(sport=1, dport=4789) / VXLAN(vni=7) / frame,
        "Geneve": outer / UDP(sport=1, dport=6081) / GENEVE(vni=7) / frame,
        "GRE": outer / GRE() / frame[IP],
        "GRE with a key": outer / GRE(key_present=1, key=7) / frame[IP],
        "ERSPAN I": outer / GRE(proto=0x88BE) / ERSPAN_I() / frame,
        "ERSPAN II": outer / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II(session_id=3) / frame,
        "ERSPAN III": outer / GRE(proto=0x22EB, seqnum_present=1) / ERSPAN_III(session_id=3) / frame,
        "MPLS": Ether() / MPLS(label=16, s=0) / MPLS(label=17, s=1) / frame[IP],
        "QinQ": Ether() / Dot1AD(vlan=5) / Dot1Q(vlan=6) / frame[IP],
    }


@pytest.mark.parametrize(
    "name", ["VXLAN", "Geneve", "GRE", "GRE with a key", "ERSPAN I", "ERSPAN II", "ERSPAN III", "MPLS", "QinQ"]
)
def test_tunnels_that_scapy_makes_are_followed(roce: Any, name: str) -> None:
    packet = seal(build(0x04, dqpn=7, psn=9, payload=b"payload!"), V4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = bytes(_carried(bytes(12) + b"\x08\0" + ip_packet(V4, packet))[name])
    found = dissect(memoryview(frame))
    assert (found.kind, found.icrc_ok, bytes(found.payload)) == ("RoCEv2", True, packet)
