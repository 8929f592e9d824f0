"""The time from an RTU on the wire to ESTABLISHED in a server's program that sleeps in ``rdma_get_cm_event``.

``established.c`` prints when the program has the event; the time of the RTU is that of the server's capture.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import harness

from rnic.abi.library_paths import LIBRARIES
from rnic.link.base import parse_address
from rnic.link.pcap import read_packets
from rnic.testing import own_network
from rnic.wire.dissect import ROCE, dissect
from rnic.wire.flow import Flow
from rnic.wire.mad import CLASS_CM, CM_RTU, GSI_QPN, Mad
from rnic.wire.packet import Packet, parse

SOURCE = Path(__file__).with_suffix(".c")
PORT = "7471"
SECONDS = 120


def _read_line(out: IO[str] | None) -> str:
    assert out is not None
    return out.readline()


def rtu_times(capture: Path, server: str) -> list[int]:
    """Return the times of the RTUs to an address in a capture, each connection's first alone."""
    seen: dict[int, int] = {}
    for packet in read_packets(capture):
        frame = dissect(memoryview(packet.data), packet.linktype)
        found = parse(frame.payload) if frame.kind == ROCE else None
        if not isinstance(found, Packet) or found.dqpn != GSI_QPN or not isinstance(frame.flow, Flow):
            continue
        mad = Mad.parse(bytes(found.payload))
        if frame.flow.dst == parse_address(server) and mad.mgmt_class == CLASS_CM and mad.attr_id == CM_RTU:
            seen.setdefault(mad.tid, packet.time_ns)
    return list(seen.values())


def measure(count: int) -> list[float]:
    """Make connections one after another; return the time of each in microseconds.

    Raises:
        harness.LeftOutError: there is no compiler, or no librdmacm to link with.
    """
    network = own_network()
    server, client = f"{network}.202", f"{network}.203"
    with tempfile.TemporaryDirectory(prefix="rnic-established-") as name:
        program, capture = Path(name, "established"), Path(name, "server.pcapng")
        built = subprocess.run(
            ["cc", "-O1", SOURCE, "-o", program, "-lrdmacm", "-libverbs"], capture_output=True, text=True, check=False
        )
        if built.returncode:
            raise harness.LeftOutError(f"{SOURCE.name} cannot be built: apt-get install librdmacm-dev libibverbs-dev")
        env = os.environ | {"RNIC_RUNTIME_DIR": name, "RNIC_LIBRARIES": str(LIBRARIES)}
        rnic = [sys.executable, "-m", "rnic.cli", "exec", "--addr"]
        last = [server, PORT, str(count)]
        serving = [*rnic, server, "--capture", str(capture), "--", str(program), "server", *last]
        with subprocess.Popen(serving, env=env, stdout=subprocess.PIPE, text=True) as first:
            try:
                _read_line(first.stdout)
                asking = [*rnic, client, "--", str(program), "client", *last]
                subprocess.run(asking, env=env, check=True, timeout=SECONDS)
                said, _ = first.communicate(timeout=SECONDS)
            finally:
                first.kill()
        came = rtu_times(capture, server)
    times = [(int(when) - rtu) / 1000 for when, rtu in zip(said.split(), came, strict=True)]
    if len(times) != count:
        raise harness.LeftOutError(f"{len(times)} of {count} connections were seen")
    return times
