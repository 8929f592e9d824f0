"""Vectors: what they say comes out is what rnic sends, and their files hold it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rnic.conform.bench import Arrived, simulated
from rnic.conform.frames import frame_of
from rnic.conform.runner import PASS, run
from rnic.conform.script import Script, scripts
from rnic.conform.vectors import mask_of, write
from rnic.judge import Judge
from rnic.link.pcap import read_packets
from rnic.wire.dissect import dissect


def bound(frame: bytes, mask: bytes) -> bytes:
    return bytes(a & b for a, b in zip(frame, mask, strict=True))


@pytest.mark.slow
def test_what_rnic_sends_is_what_the_vectors_expect() -> None:
    bench = simulated()
    came: list[Arrived] = []
    connections = []
    opened, received = bench.open, bench.wire.receive

    def open_and_keep(script: Script):  # type: ignore[no-untyped-def]
        connections.append(opened(script))
        return connections[-1]

    def receive(until_ns: int) -> Arrived | None:
        found = received(until_ns)
        if found is not None and found not in came:
            came.append(found)
        return found

    bench.open, bench.wire.receive = open_and_keep, receive  # type: ignore[method-assign]
    compared = 0
    for script in scripts():
        came.clear()
        assert run(bench, script).verdict == PASS
        frames = iter(arrived.payload for arrived in came)
        for step in script.steps:
            if step.kind != "<" or step.name == "nothing":
                continue
            wanted = frame_of(step, connections[-1])
            mask = mask_of(step, connections[-1], wanted)
            if "|" in step.text:
                continue
            found = any(len(frame) == len(wanted) and bound(frame, mask) == bound(wanted, mask) for frame in frames)
            assert found, (script.name, step.text)
            compared += 1
    assert compared > 200


def test_the_files(tmp_path: Path) -> None:
    chosen = [script for script in scripts() if script.name in ("gap", "icrc", "marked", "out-rnr", "ud-receive")]
    assert write(chosen, tmp_path) == 5
    index = json.loads((tmp_path / "index.json").read_text())
    assert [row["test"] for row in index] == ["gap", "icrc", "marked", "out-rnr", "ud-receive"]
    made = json.loads((tmp_path / "responder" / "gap.json").read_text())
    assert made["device"]["regions"]["M"]["length"] == 65_536
    lines = (tmp_path / "responder" / "gap.hex").read_text().splitlines()
    frames = [line.split()[1] for line in lines if line.startswith(("in ", "out "))]
    assert frames == [step["frame"] for step in made["steps"] if "frame" in step]
    recorded = list(read_packets(tmp_path / "responder" / "gap.pcapng"))
    assert [packet.data.hex() for packet in recorded] == frames
    assert all(dissect(memoryview(packet.data)).icrc_ok for packet in recorded)
    assert [dissect(memoryview(p.data)).icrc_ok for p in read_packets(tmp_path / "responder" / "icrc.pcapng")] == [
        False, True, True,
    ]  # fmt: skip
    assert next(read_packets(tmp_path / "responder" / "marked.pcapng")).data[15] & 3 == 3


def test_the_judge_finds_nothing_in_the_vectors_of_what_is_legal(tmp_path: Path) -> None:
    legal = ("write-several@256", "read-several@1024", "gap", "duplicate-atomic", "rnr", "fetch-add", "reads-in-order")
    write([script for script in scripts() if script.name in legal], tmp_path)
    for name in legal:
        found: list[object] = []
        judge = Judge(found.append)
        for number, packet in enumerate(read_packets(tmp_path / "responder" / f"{name}.pcapng")):
            judge.frame(number * 10_000_000, packet.linktype, packet.data, packet.length)
        judge.finish()
        assert found == [], name
