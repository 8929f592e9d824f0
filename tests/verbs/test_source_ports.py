"""Programs that run their own data path on a device with several source ports (ECMP)."""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import rnic
from rnic import enums as e
from rnic.device.paths import source_port
from rnic.link.base import parse_address
from rnic.link.pcap import read_packets
from rnic.runtime.attach import ask
from rnic.testing import own_network
from rnic.verbs import AH, CQ, GID, MR, PD, QP, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from tests.verbs.conftest import start_nic
from tests.verbs.test_bypass import SECONDS, Side, opened, slots
from tests.verbs.test_bypass_captures import findings
from tests.verbs.test_nic_process import needs_engine

pytestmark = [pytest.mark.slow, needs_engine]
NET = own_network()
PORT, SOURCES = 4791, 3
UDP_AT = 14 + 20
"""Where the UDP header begins in a recorded packet."""


@contextmanager
def sending_from_several(path: Path, host: int, *options: str) -> Iterator[str]:
    """A NIC process whose device sends from several ports; its address."""
    path.chmod(0o700)
    address = f"{NET}.{host}"
    device = ["--addr", address, "--udp-port", str(PORT), "--source-ports", str(SOURCES)]
    process: subprocess.Popen[bytes] = start_nic(path, *device, *options)
    yield address
    process.terminate()
    assert process.wait(SECONDS) == 0


def bound(address: str) -> list[int]:
    """UDP ports that somebody has bound at an address, in no order."""
    here = f"{struct.unpack('=I', parse_address(address))[0]:08X}"
    rows = [line.split()[1].split(":") for line in Path("/proc/net/udp").read_text(encoding="ascii").splitlines()[1:]]
    return [int(port, 16) for where, port in rows if where == here]


def port_of(peer: socket.socket, dqpn: int) -> int:
    """The source port of the next packet for a queue pair; others may be sent again meanwhile."""
    while True:
        packet, (_, port) = peer.recvfrom(4096)
        if int.from_bytes(packet[5:8], "big") == dqpn:
            return int(port)


def test_packets_leave_from_the_source_port_of_their_queue_pair(tmp_path: Path) -> None:
    """The program itself sends them, of connections and datagrams, from sockets of its own on the device's ports."""
    with (
        sending_from_several(tmp_path, 41) as here,
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as peer,
        rnic.open(here, port=PORT, directory=tmp_path) as ctx,
    ):
        assert ctx.bypass
        peer.bind((f"{NET}.42", 0))
        peer.settimeout(SECONDS)
        to = peer.getsockname()[1]
        ports = set(bound(here)) - {PORT}
        assert len(ports) == SOURCES
        expected = {}
        for number in range(5, 5 + 4 * SOURCES):
            side = Side(ctx, size=64)
            side.connect({"qpn": number, "gid": f"{NET}.42", "port": to}, timeout=20)
            side.qp.post_send(SendWR(2, e.IBV_WR_SEND, sg=[SGE(side.mr.buf, 8, side.mr.lkey)]))
            expected[source_port(side.qp.qp_num, number) % SOURCES, port_of(peer, number)] = side
        assert len(expected) == SOURCES, "each residue has one port"
        assert {port for _, port in expected} == ports
        pd, cq = PD(ctx), CQ(ctx, 16)
        mr = MR(pd, bytearray(64), e.IBV_ACCESS_LOCAL_WRITE)
        ah = AH(pd, AHAttr(GlobalRoute(GID(f"{NET}.42")), udp_dport=to))
        for number in range(50, 50 + SOURCES):
            qp = QP(pd, QPInitAttr(e.IBV_QPT_UD, None, QPCap(8, 8, 1, 1), cq, cq))
            qp.to_rts(QPAttr())
            for _ in range(3):
                wr = SendWR(2, e.IBV_WR_SEND, sg=[SGE(mr.buf, 8, mr.lkey)])
                wr.set_wr_ud(ah, number, 0)
                qp.post_send(wr)
                assert (source_port(qp.qp_num, 0) % SOURCES, port_of(peer, number)) in expected
        (slot,) = slots(tmp_path)
        assert not slot["served"]
        assert slot["counters"]["tx_packets"] >= 7 * SOURCES
        # the first datagram to a destination is the reference's
        assert slot["punts"]["path"] <= SOURCES


def settled(directory: Path) -> int:
    """Return the packets that a device has sent once it sends no more: the last ACK may come late."""
    seen = [-1]
    while len(seen) < 5 or len(set(seen[-5:])) > 1:  # waits: for the last packets
        time.sleep(0.05)
        seen.append(ask(directory, "rnic0", "counters")["tx_packets"])
    return seen[-1]


@pytest.mark.parametrize("shm", ["0", "1"], ids=["wire", "rings"])
def test_losses_and_a_recording_know_the_source_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shm: str
) -> None:
    monkeypatch.setenv("RNIC_SHM", shm)
    host, rng = 43 + int(shm), random.Random(1)
    recording = tmp_path / "run.pcapng"
    losses = json.dumps([{"every": 40, "action": "drop"}, {"every": 61, "action": "reorder"}])
    with sending_from_several(tmp_path, host, "--capture", str(recording), "--faults", losses) as here:
        ports = set(bound(here)) - {PORT}
        with opened(tmp_path, host, events=False, port=PORT) as (side, _):
            for size in (2, 8, 4096, 5000, 100_000) * 8:
                said = rng.randbytes(size)
                side.mr.buffer[:size] = said
                side.send(size)
                assert side.receive() == size
                assert bytes(side.mr.buffer[:size]) == said[::-1]
            rows = slots(tmp_path)
            assert len(rows) == 2
            for row in rows:
                assert not row["served"]
                assert row["counters"]["fault_rx_drop"] > 0
                assert row["punts"]["icrc"] == 0
                assert shm == "0" or row["counters"]["shm_packets"] > 100
            sent = settled(tmp_path)
    assert findings(recording).keys() <= {"warning: repeat-payload"}
    packets = list(read_packets(recording))
    came = [struct.unpack_from(">HH", packet.data, UDP_AT) for packet in packets]
    assert {port for port, _ in came} <= ports
    assert {port for _, port in came} == {PORT}
    assert len(packets) <= sent, "each packet is there once"
