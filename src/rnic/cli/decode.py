"""``rnic decode``: every packet of capture files with all headers by name, and whether its ICRC is right."""

from __future__ import annotations

import json
import sys
from collections import Counter
from enum import Enum
from typing import Any

import click

from rnic.cli.decode_protocols import PROTOCOLS, RCLINK, Protocol, text
from rnic.link.base import format_address
from rnic.link.pcap import CapturedPacket, CaptureError, read_packets
from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.numbers import TYPE1_UDP_PORT, TYPE2_UDP_PORT
from rnic.spec.limits import ICRC_BYTES, ROCE_UDP_PORT
from rnic.wire.dissect import ROCE, Frame, dissect
from rnic.wire.header import Header

EXIT_BAD_ICRC = 1
EXIT_UNREADABLE = 2

_ADDRESS_FIELDS = ("src", "dst", "src_mac", "dst_mac")
_VERDICTS = {True: "ok", False: "wrong", None: "unchecked"}


class Summary:
    """Counts of one file, or of several."""

    def __init__(self) -> None:
        self.frames = 0
        self.packets: Counter[str] = Counter()
        """Packets of each protocol that is taken apart."""
        self.icrc: Counter[str] = Counter()
        self.cut = 0
        """Packets that the capture cut short: their ICRC cannot be checked."""
        self.malformed = 0
        """Packets that a NIC would drop before it looks at the QP."""
        self.opcodes: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def add(self, frame: Frame, dropped: Enum | None) -> None:
        """Count one frame."""
        self.frames += 1
        protocol = PROTOCOLS.get(frame.kind)
        if protocol is None:
            self.others[frame.kind] += 1
            return
        self.packets[frame.kind] += 1
        self.icrc[_VERDICTS[protocol.icrc_ok(frame)]] += 1
        self.cut += not frame.complete
        self.malformed += dropped is not None
        if len(frame.payload):
            self.opcodes[protocol.name(frame.payload)] += 1

    def merge(self, other: Summary) -> None:
        """Add another's counts."""
        self.frames += other.frames
        self.packets.update(other.packets)
        self.cut += other.cut
        self.malformed += other.malformed
        self.icrc.update(other.icrc)
        self.opcodes.update(other.opcodes)
        self.others.update(other.others)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "frames": self.frames,
            "rocev2": self.packets[ROCE],
            "rclink": self.packets[RCLINK],
            "icrc_ok": self.icrc["ok"],
            "icrc_wrong": self.icrc["wrong"],
            "cut_short": self.cut,
            "malformed": self.malformed,
            "opcodes": dict(self.opcodes.most_common()),
            "others": dict(self.others.most_common()),
        }

    def as_lines(self, name: str) -> list[str]:
        """For people."""
        verdict = f"ICRC ok {self.icrc['ok']}, wrong {self.icrc['wrong']}"
        if self.cut:
            verdict += f", not checkable (cut short) {self.cut}"
        kinds = [f"{self.packets[ROCE]} {ROCE}"]
        if self.packets[RCLINK]:
            kinds.append(f"{self.packets[RCLINK]} {RCLINK}")
        lines = [f"{name}: {self.frames} frames, {', '.join(kinds)}: {verdict}"]
        if self.malformed:
            lines.append(f"  malformed: {self.malformed}")
        for title, counts in (("opcodes", self.opcodes), ("other protocols", self.others)):
            if counts:
                lines.append(f"  {title}: " + ", ".join(f"{key} {count}" for key, count in counts.most_common()))
        return lines


@click.command(name="decode")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="JSON lines: an object for each packet, then one for each file.")
@click.option("--summary", "only_summary", is_flag=True, help="Only the counts.")
@click.option(
    "--port",
    "ports",
    multiple=True,
    default=(ROCE_UDP_PORT,),
    show_default=True,
    type=click.IntRange(1, 65_535),
    help="UDP destination port of RoCEv2; may be given more than once.",
)
@click.option(
    "--rclink-port",
    "rclink_ports",
    multiple=True,
    default=(TYPE1_UDP_PORT, TYPE2_UDP_PORT),
    show_default=True,
    type=click.IntRange(1, 65_535),
    help="UDP destination port of RC Link; may be given more than once.",
)
def decode(
    files: tuple[str, ...], as_json: bool, only_summary: bool, ports: tuple[int, ...], rclink_ports: tuple[int, ...]
) -> None:
    """Show the packets of pcap and pcapng files: all headers by name, and whether the ICRC is right.

    Exit status: 0 if every ICRC that can be checked is right, 1 if one is wrong, 2 if a file cannot be read to
    its end.
    """
    kinds = [(port, ROCE) for port in ports] + [(port, RCLINK) for port in rclink_ports if port not in ports]
    total = Summary()
    unreadable = False
    for name in files:
        summary = Summary()
        error = _decode_file(name, summary, as_json, only_summary, kinds)
        total.merge(summary)
        unreadable = unreadable or error is not None
        if as_json:
            _print_json({"file": name, "summary": summary.as_dict(), "error": error})
        elif summary.frames or error is None:
            _print_lines(summary.as_lines(name))
        if error is not None:
            click.echo(f"rnic decode: {error}", err=True)
    if len(files) > 1 and not as_json:
        _print_lines(total.as_lines(f"{len(files)} files"))
    if unreadable:
        sys.exit(EXIT_UNREADABLE)
    if total.icrc["wrong"]:
        sys.exit(EXIT_BAD_ICRC)


def _dissect(packet: CapturedPacket, kinds: list[tuple[int, str]]) -> Frame:
    """Dissect a packet, as what goes to its UDP port if that is one of these."""
    for port, kind in kinds:
        frame = dissect(memoryview(packet.data), packet.linktype, port, kind, PROTOCOLS[kind].least)
        if frame.kind == kind:
            break
    return frame


def _decode_file(
    name: str, summary: Summary, as_json: bool, only_summary: bool, kinds: list[tuple[int, str]]
) -> str | None:
    """Show one file; what kept it from being read to its end, or ``None``."""
    start_ns: int | None = None
    try:
        for number, packet in enumerate(read_packets(name), 1):
            frame = _dissect(packet, kinds)
            dropped = PROTOCOLS[frame.kind].drop(frame) if frame.complete else None
            summary.add(frame, dropped)
            if start_ns is None:
                start_ns = packet.time_ns
            if only_summary:
                continue
            if as_json:
                _print_json({"file": name, **_as_dict(number, packet, frame, dropped)})
            else:
                _print_lines(_as_lines(number, packet, packet.time_ns - start_ns, frame, dropped))
    except CaptureError as error:
        return str(error)
    return None


def _as_dict(number: int, packet: CapturedPacket, frame: Frame, dropped: Enum | None) -> dict[str, Any]:
    out: dict[str, Any] = {"number": number, "time_ns": packet.time_ns, "length": packet.length, "kind": frame.kind}
    found = _all_headers(frame)
    out["headers"] = [{"header": header.layout.name, **_json_values(header)} for header in found]
    protocol = PROTOCOLS.get(frame.kind)
    if protocol is not None:
        out["opcode_name"] = protocol.name(frame.payload) if len(frame.payload) else None
        out["complete"] = frame.complete
        if frame.complete:
            out["payload_bytes"] = protocol.payload_bytes(frame.payload)
            out["icrc"] = _icrc(frame)
        out["icrc_ok"] = protocol.icrc_ok(frame)
        out["drop"] = None if dropped is None else dropped.name
    return out


def _json_values(header: Header) -> dict[str, int | str]:
    """Numbers as numbers, addresses as text."""
    return {
        name: text(header, name) if name in _ADDRESS_FIELDS else int(value) for name, value in header.values().items()
    }


def _as_lines(number: int, packet: CapturedPacket, time_ns: int, frame: Frame, dropped: Enum | None) -> list[str]:
    protocol = PROTOCOLS.get(frame.kind)
    title = frame.kind if protocol is None else _title(protocol, frame, dropped)
    lines = [f"#{number}  {time_ns / 1e9:.9f} s  {packet.length} bytes  {title}"]
    for header in _all_headers(frame):
        values = " ".join(f"{name}={text(header, name)}" for name in header.values())
        lines.append(f"    {header.layout.name:<15} {values}")
    if protocol is not None and frame.complete:
        lines.append(f"    {'payload':<15} {protocol.payload_bytes(frame.payload)} bytes")
        verdict = _VERDICTS[protocol.icrc_ok(frame)]
        lines.append(f"    {'ICRC':<15} 0x{_icrc(frame):08x} {verdict}")
    elif protocol is not None:
        missing = packet.length - len(packet.data)
        lines.append(f"    {'cut short':<15} {missing} bytes were not captured: ICRC unchecked")
    return lines


def _title(protocol: Protocol, frame: Frame, dropped: Enum | None) -> str:
    """The end of a packet's first line."""
    words = []
    if frame.flow is not None:
        flow = frame.flow
        words.append(f"{format_address(flow.src)} port {flow.sport} > {format_address(flow.dst)} port {flow.dport} ")
    if len(frame.payload):
        words.append(protocol.name(frame.payload))
    if isinstance(dropped, RcLinkDrop):
        words.append(f" dropped: {dropped.name} ({dropped.words})")
    elif dropped is not None:
        words.append(f" malformed: {dropped.name}")
    words.append({True: " ICRC ok", False: " ICRC WRONG", None: " cut short"}[protocol.icrc_ok(frame)])
    return " ".join(words)


def _all_headers(frame: Frame) -> list[Header]:
    protocol = PROTOCOLS.get(frame.kind)
    return frame.headers if protocol is None else frame.headers + protocol.headers(frame.payload)


def _icrc(frame: Frame) -> int:
    """The four bytes in the order of the wire, as other tools show them; the CRC's own order is the reverse."""
    return int.from_bytes(frame.payload[-ICRC_BYTES:], "big")


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def _print_lines(lines: list[str]) -> None:
    click.echo("\n".join(lines))
