"""Test vectors: every script with concrete numbers, as input frames and expected output frames, for any test bench."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rnic.conform.frames import Connection, Region, compared, connection_of, frame_of, row_of
from rnic.conform.script import QUEUES, REGIONS, Script, Step
from rnic.link.pcap import PcapngWriter
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES
from rnic.spec.syndromes import AETH_ACK, AETH_TYPE_MASK
from rnic.wire.bth import BTH
from rnic.wire.ethernet import TYPE_IPV4, TYPE_IPV6, Ethernet
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import Packet, parse
from rnic.wire.pretty import describe

TESTER, DEVICE = bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))
TESTER_MAC, DEVICE_MAC = 0x02_00_00_00_00_01, 0x02_00_00_00_00_02
TESTER_QPN, DEVICE_QPN, DEVICE_SRQN = 0x000101, 0x000202, 0x000303
SIZES = {"M": 65_536, "R": 4_096, "L": 4_096, "F": 4_096}
RIGHTS = {"M": "read, write, atomic", "R": "read", "L": "none for the peer", "F": "another protection domain"}
PATTERN = "byte i of pattern c is (31 * i + 17 * (i >> 8) + ord(c)) & 0xff; all regions hold pattern m at first"
_STEP_NS = 10_000
_KINDS = {">": "in", "<": "out", "<?": "out, may be left away", "!": "software does", "?": "software sees", "~": "wait"}


def example(script: Script) -> Connection:
    """Return the connection for which a script's vectors are made."""
    regions = {
        name: Region(0x1000_0000 + index * 0x0100_0000, 0x0001_0100 * (index + 1) + 0x2A, SIZES[name])
        for index, name in enumerate(REGIONS)
    }
    made = connection_of(
        script, qpn=TESTER_QPN, peer_qpn=DEVICE_QPN, flow=Flow(TESTER, DEVICE, 49_152), regions=regions
    )
    if made.service == "XRC":
        made.numbers |= {name: DEVICE_SRQN + at for at, name in enumerate(QUEUES)}
    return made


def mask_of(step: Step, connection: Connection, frame: bytes) -> bytes:
    """Return the mask of an expected UDP payload: 1 for bits that must match, 0 for bits that the device may choose.

    The ICRC must be valid for the chosen bits; it is masked out if any bit is free.
    """
    row = row_of(step, connection)
    mask = bytearray(b"\xff" * len(frame))
    bound = compared(step)
    at = 0
    for layout in (BTH, *(header.layout for header in row.extended)):
        for field in layout.fields:
            if not _is_bound(field.name, bound):
                layout.put(mask, field.name, 0, at)
        at += layout.size
    parsed = parse(memoryview(frame))
    if isinstance(parsed, Packet) and row.aeth and "syndrome" not in bound:
        kind = parsed.syndrome & AETH_TYPE_MASK
        mask[BTH_BYTES] = 0xE0 if kind == AETH_ACK and "credits" not in step.values else 0xFF
    if step.payload is not None and not step.payload.pattern:
        mask[row.header_bytes : len(frame) - ICRC_BYTES] = bytes(len(frame) - ICRC_BYTES - row.header_bytes)
    mask[-ICRC_BYTES:] = bytes(ICRC_BYTES)
    return bytes(mask)


def _is_bound(name: str, bound: set[str]) -> bool:
    if name in ("opcode", "pad", "tver", "pkey", "dqpn", "psn"):
        return True
    return name in bound


def steps(script: Script, connection: Connection) -> list[dict[str, Any]]:
    """Return the steps of a script, each with its frame if it has one."""
    out = []
    for step in script.steps:
        made: dict[str, Any] = {"step": step.text, "kind": _KINDS[step.kind]}
        if step.name == "nothing":
            made["kind"] = "nothing comes out"
        elif step.kind in (">", "<", "<?"):
            payload = frame_of(step, connection)
            inward = step.kind == ">"
            flow = connection.flow.marked() if "ce" in step.words else connection.flow
            if not inward:
                flow = Flow(flow.dst, flow.src, flow.sport, flow.dport)
            made["frame"] = ethernet(flow, payload, inward).hex()
            made["udp_payload"] = payload.hex()
            parsed = parse(memoryview(payload))
            made["packet"] = describe(parsed) if isinstance(parsed, Packet) else parsed.value
            if not inward:
                made["mask"] = mask_of(step, connection, payload).hex()
        out.append(made)
    return out


def ethernet(flow: Flow, payload: bytes, inward: bool) -> bytes:
    """Return a whole Ethernet frame, without the FCS."""
    macs = (DEVICE_MAC, TESTER_MAC) if inward else (TESTER_MAC, DEVICE_MAC)
    kind = TYPE_IPV4 if len(flow.src) == 4 else TYPE_IPV6
    return Ethernet(dst_mac=macs[0], src_mac=macs[1], ethertype=kind).pack() + ip_packet(flow, payload)


def as_object(script: Script) -> dict[str, Any]:
    """Return one script as an object for JSON."""
    connection = example(script)
    regions = {
        name: {"va": region.va, "rkey": region.key, "length": region.size, "rights": RIGHTS[name]}
        for name, region in connection.regions.items()
    }
    start = connection.psn
    return {
        "test": script.name,
        "suite": script.suite,
        "clause": script.clause,
        "says": script.says,
        "device": {
            "mac": f"{DEVICE_MAC:012x}", "ip": ".".join(map(str, DEVICE)), "qpn": DEVICE_QPN, "first_psn": start,
            "options": script.options, "regions": regions, "memory": PATTERN,
        },
        "tester": {
            "mac": f"{TESTER_MAC:012x}", "ip": ".".join(map(str, TESTER)), "qpn": TESTER_QPN, "first_psn": start,
        },
        "steps": steps(script, connection),
    }  # fmt: skip


def as_hex(made: dict[str, Any]) -> str:
    """Return one script as lines: ``in`` and ``out`` with a frame, ``mask`` below expected ones, ``#`` comments."""
    lines = [f"# {made['test']} ({made['clause']}): {made['says']}"]
    for step in made["steps"]:
        lines.append(f"# {step['step']}")
        if "frame" in step:
            lines.append(f"{'in' if step['kind'] == 'in' else 'out'} {step['frame']}")
        if "mask" in step:
            lines.append(f"mask {step['mask']}")
    return "\n".join(lines) + "\n"


def write(scripts: Iterable[Script], folder: Path) -> int:
    """Write the vectors: ``SUITE/TEST.json``, ``.hex`` and ``.pcapng``, and ``index.json`` of all.

    Returns:
        How many scripts were written.

    Raises:
        OSError: the directory cannot be written.
    """
    index = []
    for script in scripts:
        made = as_object(script)
        place = folder / script.suite
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{script.name}.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        (place / f"{script.name}.hex").write_text(as_hex(made), encoding="utf-8")
        frames = [bytes.fromhex(step["frame"]) for step in made["steps"] if "frame" in step]
        with (place / f"{script.name}.pcapng").open("wb") as file, PcapngWriter(file) as writer:
            for number, frame in enumerate(frames):
                writer.write(number * _STEP_NS, frame)
        index.append({name: made[name] for name in ("test", "suite", "clause", "says")} | {"frames": len(frames)})
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return len(index)
