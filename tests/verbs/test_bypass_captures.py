"""Recordings of a device whose programs run the data path themselves: they hand their packets over by a ring."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import rnic
from rnic.cli.commands import group
from rnic.link.pcap import CapturedPacket, read_packets
from rnic.runtime.attach import ask
from rnic.testing import own_network
from tests.verbs import test_bypass
from tests.verbs.test_bypass import opened, slots
from tests.verbs.test_nic_process import needs_engine

pytestmark = [pytest.mark.slow, needs_engine]
nic = test_bypass.nic
NET = own_network()
HEADERS = 14 + 20 + 8
LOSSES = [{"every": 40, "action": "drop"}, {"every": 61, "action": "duplicate"}, {"every": 97, "action": "reorder"}]


def run(directory: Path, host: int, recording: Path, faults: str | None = None) -> dict[str, int]:
    """Messages there and back on a device that records; return its counters."""
    rng = random.Random(host)
    with rnic.open(
        f"{NET}.{host}", port=4791, directory=directory, capture=recording, faults=faults, bypass=True
    ) as ctx:
        assert ctx.bypass
        with opened(directory, host, events=False, port=4791) as (side, _):
            for size in (2, 8, 4096, 5000, 100_000) * 8:
                said = rng.randbytes(size)
                side.mr.buffer[:size] = said
                side.send(size)
                assert side.receive() == size
                assert bytes(side.mr.buffer[:size]) == said[::-1]
            assert not any(slot["served"] for slot in slots(directory))
            counters: dict[str, int] = ask(directory, "rnic0", "counters")
    return counters


def findings(recording: Path) -> dict[str, int]:
    """What ``rnic check`` finds in a recording, by rule."""
    done = CliRunner().invoke(group, ["check", str(recording), "--json"])
    summary = json.loads(done.output.splitlines()[-1])["summary"]
    assert summary["rocev2"] > 500
    found: dict[str, int] = summary["findings"]
    return found


def opcodes(packets: list[CapturedPacket]) -> Counter[int]:
    return Counter(packet.data[HEADERS] for packet in packets)


@pytest.mark.parametrize("shm", ["0", "1"], ids=["wire", "rings"])
@pytest.mark.parametrize("faults", [None, json.dumps(LOSSES)], ids=["whole", "losses"])
def test_all_packets_of_programs_are_in_a_recording_that_is_judged_right(
    nic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shm: str, faults: str | None
) -> None:
    monkeypatch.setenv("RNIC_SHM", shm)
    recording = tmp_path / "run.pcapng"
    counters = run(nic, 61 + int(shm) + 2 * (faults is not None), recording, faults)
    # the programs receive to where they send from: what is sent again after an answer came has its bytes
    assert findings(recording).keys() <= {"warning: repeat-payload"}
    packets = list(read_packets(recording))
    assert "capture_dropped" not in counters
    sends = sum(count for opcode, count in opcodes(packets).items() if opcode < 6)
    assert sends >= 2 * 8 * (1 + 1 + 1 + 2 + 25)
    if faults is None:
        assert len(packets) >= counters["tx_packets"]
    else:
        assert counters["fault_rx_drop"] > 0
        assert sends > 2 * 8 * 30, "what was lost was sent again"
    if shm == "1":
        assert counters["shm_packets"] > 500
        assert counters["shm_bytes"] == 0, "no message goes without its bytes"


def test_each_program_has_a_file_of_its_own(nic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends is there once, whether it opens the device once or again; the rest is in the NIC process's."""
    monkeypatch.setenv("RNIC_SHM", "0")
    run(nic, 65, tmp_path / "run-%p.pcapng")
    files = {int(path.stem.partition("-")[2]): path for path in tmp_path.glob("run-*.pcapng")}
    assert os.getpid() in files
    assert len(files) == 3, "two programs and their NIC process"
    first, second = (
        opcodes(list(read_packets(path)))
        for pid, path in files.items()
        if pid == os.getpid() or sum(opcodes(list(read_packets(path))).values()) > 100
    )
    for each in (first, second):
        assert sum(count for opcode, count in each.items() if opcode < 6) >= 8 * (1 + 1 + 1 + 2 + 25)
