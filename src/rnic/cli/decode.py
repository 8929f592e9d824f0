"""``rnic decode``: show packets of capture files, one per line, with all headers, or as a ladder diagram."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any

import click

from rnic.cli.decode_filter import Filter, Follower, PsnRange, QueuePairNumber, names_of
from rnic.cli.decode_protocols import PROTOCOLS, RCLINK, Protocol, text
from rnic.cli.decode_recorded import Recorded
from rnic.cli.ladder import Ladders, as_html, as_lines, as_svg
from rnic.cli.options import UDP_PORT_RENAMED, Command
from rnic.judge.connections import path_text
from rnic.link.pcap import CapturedPacket, CaptureError, read_packets
from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.numbers import TYPE1_UDP_PORT, TYPE2_UDP_PORT
from rnic.spec.limits import ICRC_BYTES, ROCE_UDP_PORT
from rnic.wire.dissect import INFINIBAND, ROCE, ROCE_V1, Frame, dissect
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
        """Packets of each protocol that is decoded."""
        self.icrc: Counter[str] = Counter()
        self.cut = 0
        """Packets truncated by the capture, whose ICRC cannot be checked."""
        self.malformed = 0
        """Packets that a NIC would drop before it looks up the QP."""
        self.opcodes: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def add(self, frame: Frame, dropped: Enum | None) -> None:
        """Count one frame, which may be of another protocol."""
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
        """Return the counts as ``--json`` prints them."""
        return {
            "frames": self.frames,
            "rocev2": self.packets[ROCE],
            "rocev1": self.packets[ROCE_V1],
            "infiniband": self.packets[INFINIBAND],
            "rclink": self.packets[RCLINK],
            "icrc_ok": self.icrc["ok"],
            "icrc_wrong": self.icrc["wrong"],
            "cut_short": self.cut,
            "malformed": self.malformed,
            "opcodes": dict(self.opcodes.most_common()),
            "others": dict(self.others.most_common()),
        }

    def as_lines(self, name: str) -> list[str]:
        """Format the counts as lines of text."""
        verdict = f"ICRC ok {self.icrc['ok']}, wrong {self.icrc['wrong']}"
        if self.cut:
            verdict += f", not checkable (cut short) {self.cut}"
        kinds = [f"{self.packets[ROCE]} {ROCE}"]
        kinds += [f"{self.packets[kind]} {kind}" for kind in (ROCE_V1, INFINIBAND, RCLINK) if self.packets[kind]]
        lines = [f"{name}: {self.frames} frames, {', '.join(kinds)}: {verdict}"]
        if self.malformed:
            lines.append(f"  malformed: {self.malformed}")
        for title, counts in (("opcodes", self.opcodes), ("other protocols", self.others)):
            if counts:
                lines.append(f"  {title}: " + ", ".join(f"{key} {count}" for key, count in counts.most_common()))
        return lines


class Show:
    """Options of the command line."""

    def __init__(self, as_json: bool, only_summary: bool, verbose: bool, ladders: Ladders | None, only: Filter) -> None:
        self.as_json = as_json
        self.only_summary = only_summary
        self.verbose = verbose
        self.ladders = ladders
        self.filter = only


@click.command(name="decode", cls=Command, renamed=UDP_PORT_RENAMED)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("-v", "--verbose", is_flag=True, help="Show all headers of each packet by name.")
@click.option(
    "--qp", "qpns", multiple=True, type=QueuePairNumber(), help="Show only connections of this queue pair; repeatable."
)
@click.option(
    "--op",
    "operations",
    multiple=True,
    metavar="PATTERN",
    help="Show only packets of this kind: RC_SEND_ONLY, WRITE*, *Request; repeatable.",
)
@click.option(
    "--psn",
    "psns",
    multiple=True,
    type=PsnRange(),
    help="Show only packets with this PSN, or in this range; repeatable.",
)
@click.option("--flow", "as_flow", is_flag=True, help="Draw a ladder diagram for each pair of hosts.")
@click.option("--svg", type=click.Path(dir_okay=False), help="Write the ladder of one pair of hosts as SVG.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write the ladders as an HTML page.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: an object for each packet, then one for each file."
)
@click.option("--summary", "only_summary", is_flag=True, help="Print only the counts.")
@click.option(
    "--udp-port",
    "ports",
    multiple=True,
    default=(ROCE_UDP_PORT,),
    show_default=True,
    type=click.IntRange(1, 65_535),
    help="UDP destination port of RoCEv2; repeatable.",
)
@click.option(
    "--rclink-port",
    "rclink_ports",
    multiple=True,
    default=(TYPE1_UDP_PORT, TYPE2_UDP_PORT),
    show_default=True,
    type=click.IntRange(1, 65_535),
    help="UDP destination port of RC Link; repeatable.",
)
def decode(
    files: tuple[str, ...],
    verbose: bool,
    qpns: tuple[int, ...],
    operations: tuple[str, ...],
    psns: tuple[tuple[int, int], ...],
    as_flow: bool,
    svg: str | None,
    html: str | None,
    as_json: bool,
    only_summary: bool,
    ports: tuple[int, ...],
    rclink_ports: tuple[int, ...],
) -> None:
    """Show the packets of pcap and pcapng files, one per line, and mark retransmitted, late and invalid packets.

    If several of --qp, --op and --psn are given, a packet must match one value of each. The counts at the end cover the
    whole file. Exit status: 0 if every ICRC that can be checked is right, 1 if one is wrong, 2 if a file cannot be read
    to its end.
    """
    kinds = [(port, ROCE) for port in ports] + [(port, RCLINK) for port in rclink_ports if port not in ports]
    ladders = Ladders() if as_flow or svg or html else None
    show = Show(as_json, only_summary, verbose, ladders, Filter(qpns, operations, psns))
    total = Summary()
    unreadable = False
    for name in files:
        summary = Summary()
        error = _decode_file(name, summary, show, kinds)
        total.merge(summary)
        unreadable = unreadable or error is not None
        if as_json:
            _print_json({"file": name, "summary": summary.as_dict(), "error": error})
        elif ladders is None and (summary.frames or error is None):
            _print_lines(summary.as_lines(name))
        if error is not None:
            click.echo(f"rnic decode: {error}", err=True)
    if ladders is not None:
        _draw(ladders, as_flow and not as_json, svg, html, ", ".join(files))
    elif len(files) > 1 and not as_json:
        _print_lines(total.as_lines(f"{len(files)} files"))
    if unreadable:
        sys.exit(EXIT_UNREADABLE)
    if total.icrc["wrong"]:
        sys.exit(EXIT_BAD_ICRC)


def _draw(ladders: Ladders, in_terminal: bool, svg: str | None, html: str | None, title: str) -> None:
    """Draw the ladders in the formats that were requested."""
    found = list(ladders.all.values())
    if svg is not None and len(found) != 1:
        raise click.UsageError(f"--svg draws one pair of hosts, and {len(found)} are shown: use --html, or filters")
    if in_terminal:
        for ladder in found:
            _print_lines(as_lines(ladder, shutil.get_terminal_size((120, 24)).columns))
    for path, drawn in ((svg, as_svg(found[0]) if svg is not None else ""), (html, as_html(found, title))):
        if path is not None:
            try:
                Path(path).write_text(drawn, encoding="utf-8")
            except OSError as error:
                raise click.UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _dissect(packet: CapturedPacket, kinds: list[tuple[int, str]]) -> Frame:
    """Dissect a packet, as the protocol of its UDP port if that is one of ``kinds``."""
    for port, kind in kinds:
        frame = dissect(memoryview(packet.data), packet.linktype, port, kind, PROTOCOLS[kind].least)
        if frame.kind == kind:
            break
    return frame


def _follower(name: str, show: Show, kinds: list[tuple[int, str]]) -> Follower:
    """Return a follower; for a filter by queue pair, it has already learned all connections from the whole file."""
    ports = [port for port, kind in kinds if kind == ROCE]
    if not show.filter.qpns:
        return Follower(ports)
    follower = Follower(ports)
    try:
        for packet in read_packets(name):
            follower.take(packet)
    except CaptureError:
        pass  # reported when the file is shown
    return follower


def _decode_file(name: str, summary: Summary, show: Show, kinds: list[tuple[int, str]]) -> str | None:
    """Show one file; return the error that ended reading it early, or ``None``."""
    start_ns: int | None = None
    follower = Follower([port for port, kind in kinds if kind == ROCE])
    pairs = _follower(name, show, kinds)
    once = not Path(name).is_file()  # a pipe cannot be read twice
    recorded = Recorded(lambda: () if once else read_packets(name), lambda packet: _dissect(packet, kinds))
    try:
        for number, packet in enumerate(read_packets(name), 1):
            if start_ns is None:
                start_ns = packet.time_ns
            summary.frames += 1
            if not show.only_summary:
                follower.take(packet)
            for frame, said in recorded.packets(_dissect(packet, kinds)):
                dropped = PROTOCOLS[frame.kind].drop(frame) if frame.complete else None
                summary.add(frame, dropped)
                if not show.only_summary:
                    place = name, number, packet.time_ns - start_ns
                    _show_packet(place, packet, frame, dropped, said or follower.mark(frame), show, pairs)
    except CaptureError as error:
        return str(error)
    return None


def _show_packet(
    place: tuple[str, int, int],
    packet: CapturedPacket,
    frame: Frame,
    dropped: Enum | None,
    mark: str,
    show: Show,
    pairs: Follower,
) -> None:
    """Show one packet in the requested form; ``place`` is its file, frame number and time."""
    name, number, time_ns = place
    protocol = PROTOCOLS.get(frame.kind)
    known = protocol is not None and len(frame.payload) > 0
    names = names_of(protocol.name(frame.payload), frame.payload) if protocol is not None and known else ()
    if not show.filter.passes(frame, names, pairs):
        return
    if show.as_json:
        _print_json({"file": name, **_as_dict(number, packet, frame, dropped, mark)})
    elif show.ladders is not None:
        _add_rung(show.ladders, number, time_ns, frame, dropped, mark)
    elif show.verbose:
        _print_lines(_as_lines(number, packet, time_ns, frame, dropped, mark))
    else:
        _print_lines([_as_line(number, packet, time_ns, frame, dropped, mark)])


def _add_rung(ladders: Ladders, number: int, time_ns: int, frame: Frame, dropped: Enum | None, mark: str) -> None:
    protocol = PROTOCOLS.get(frame.kind)
    if protocol is None or frame.flow is None:
        return
    src, dst = path_text(frame.flow.src), path_text(frame.flow.dst)
    words = protocol.describe(frame.payload)
    wrong = dropped is not None or protocol.icrc_ok(frame) is False
    trouble = "ICRC wrong" if protocol.icrc_ok(frame) is False else f"malformed: {dropped.name}" if dropped else mark
    ladders.add(src, dst, number, time_ns, words, trouble, wrong)


def _as_line(number: int, packet: CapturedPacket, time_ns: int, frame: Frame, dropped: Enum | None, mark: str) -> str:
    """Format one packet as one line."""
    words = [f"#{number:<5}", f"{time_ns / 1e9:.9f}"]
    protocol = PROTOCOLS.get(frame.kind)
    if protocol is None:
        return "  ".join([*words, f"{frame.kind}, {packet.length} bytes"])
    if frame.flow is not None:
        words.append(f"{path_text(frame.flow.src)} > {path_text(frame.flow.dst)}")
    if len(frame.payload):
        words.append(protocol.describe(frame.payload))
    if dropped is not None:
        words.append(_trouble(dropped))
    verdict = protocol.icrc_ok(frame)
    if verdict is not True:
        words.append("cut short" if verdict is None else "ICRC WRONG")
    return "  ".join(words + ([f"({mark})"] if mark else []))


def _trouble(dropped: Enum) -> str:
    if isinstance(dropped, RcLinkDrop):
        return f"dropped: {dropped.name} ({dropped.words})"
    return f"malformed: {dropped.name}"


def _as_dict(number: int, packet: CapturedPacket, frame: Frame, dropped: Enum | None, mark: str) -> dict[str, Any]:
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
        out["mark"] = mark
    return out


def _json_values(header: Header) -> dict[str, int | str]:
    """Return a header's values for JSON: numbers as numbers, addresses as text."""
    return {
        name: text(header, name) if name in _ADDRESS_FIELDS else int(value) for name, value in header.values().items()
    }


def _as_lines(
    number: int, packet: CapturedPacket, time_ns: int, frame: Frame, dropped: Enum | None, mark: str
) -> list[str]:
    protocol = PROTOCOLS.get(frame.kind)
    title = frame.kind if protocol is None else _title(protocol, frame, dropped)
    title += f"  ({mark})" if mark else ""
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
    """Return the end of a packet's first line."""
    words = []
    if frame.flow is not None:
        flow = frame.flow
        sport, dport = (f" port {port}" if port else "" for port in (flow.sport, flow.dport))
        words.append(f"{path_text(flow.src)}{sport} > {path_text(flow.dst)}{dport} ")
    if len(frame.payload):
        words.append(protocol.name(frame.payload))
    if dropped is not None:
        words.append(f" {_trouble(dropped)}")
    words.append({True: " ICRC ok", False: " ICRC WRONG", None: " cut short"}[protocol.icrc_ok(frame)])
    return " ".join(words)


def _all_headers(frame: Frame) -> list[Header]:
    protocol = PROTOCOLS.get(frame.kind)
    return frame.headers if protocol is None else frame.headers + protocol.headers(frame.payload)


def _icrc(frame: Frame) -> int:
    """Return the ICRC in wire order, as other tools show it; the CRC's own byte order is the reverse."""
    return int.from_bytes(frame.payload[-ICRC_BYTES:], "big")


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def _print_lines(lines: list[str]) -> None:
    click.echo("\n".join(lines))
