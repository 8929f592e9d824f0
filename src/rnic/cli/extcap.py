"""``rnic extcap``: the NIC process's devices as capture interfaces of Wireshark (its ``extcap`` interface).

Wireshark runs the program of this name in its extcap directory, where ``rnic wireshark --install`` writes it: first to
list interfaces, their link types and options, then to capture to a FIFO. The NIC process passes packets over a socket
pair (:mod:`rnic.nic_process.live_capture`).
"""

from __future__ import annotations

import contextlib
import io
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NoReturn, cast

import click

import rnic
from rnic.cli.check_comments import MAX_EACH, comment
from rnic.judge import Finding, Judge
from rnic.link.pcap import CapturedPacket, CaptureError, PcapngWriter, read_capture
from rnic.runtime.attach import ProcessConnection, ask, connect
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.spec import attach
from rnic.spec.errors import VerbsError
from rnic.wire.dissect import LINKTYPE_ETHERNET

_KEPT = 256
"""Packets that are held back for later findings about them."""
_IDLE_MS = 50
"""Longest wait of held packets, except the last, while nothing arrives."""
_END_S = 1.0
"""Seconds that the end of a capture may take after a signal."""
_CHUNK = 1 << 16


def sentences(kind: str, *rows: dict[str, str]) -> str:
    """Return lines of extcap's grammar: ``kind {name=value}{name=value}``, one for each row."""
    return "".join(f"{kind} {''.join(f'{{{name}={value}}}' for name, value in row.items())}\n" for row in rows)


def interfaces() -> list[dict[str, Any]]:
    """Return the devices of this user's NIC process; none if it does not run."""
    with contextlib.suppress(ProcessError):
        found: list[dict[str, Any]] = ask(runtime_directory(), "", "devices")
        return found
    return []


class Annotated:
    """Writes packets as pcapng, with the judge's findings as comments.

    Args:
        file: gets the packets.
        name: of the interface.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._writer = PcapngWriter(file, LINKTYPE_ETHERNET, name)
        self._judge = Judge(self._found)
        self._kept: deque[CapturedPacket] = deque()
        self._written = 0
        self._comments: dict[int, list[str]] = {}

    def _found(self, finding: Finding) -> None:
        """Note a finding for its packet; if that is already written, note it on the next packet, with a remark."""
        text = comment(finding)
        frame = finding.frame
        if frame <= self._written:
            text, frame = text.replace(": ", f": of frame {frame}: ", 1), self._written + 1
        texts = self._comments.setdefault(frame, [])
        if len(texts) < MAX_EACH:
            texts.append(text)

    def add(self, packet: CapturedPacket) -> None:
        """Judge a packet; write the oldest held packet once enough have followed."""
        self._kept.append(packet)
        self._judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
        if len(self._kept) > _KEPT:
            self._write()

    def _write(self) -> None:
        packet = self._kept.popleft()
        self._written += 1
        comments = self._comments.pop(self._written, ())
        self._writer.write(packet.time_ns, packet.data, packet.length, linktype=packet.linktype, comments=comments)

    def flush(self) -> None:
        """Write all packets but the last, which gets the findings made at the end."""
        while len(self._kept) > 1:
            self._write()
        self._file.flush()

    def finish(self) -> None:
        """Write all packets, with the findings made at the end."""
        self._judge.finish()
        while self._kept:
            self._write()
        self._file.flush()


class _Packets(io.RawIOBase):
    """Read what the NIC process sends.

    Args:
        source: this end of the pair of sockets.
        sink: the output, whose reader may close it.
        idle: called when nothing has come for a while.
    """

    def __init__(self, source: socket.socket, sink: int, idle: Callable[[], None]) -> None:
        self._source = source
        self._idle = idle
        self._poll = select.poll()
        self._poll.register(source.fileno(), select.POLLIN)
        self._poll.register(sink, 0)  # errors only

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes, and read them.

        Raises:
            BrokenPipeError: the reader of the output is gone.
        """
        events = dict(self._poll.poll(_IDLE_MS))
        if not events:
            self._idle()
            events = dict(self._poll.poll())
        if self._source.fileno() not in events:
            raise BrokenPipeError
        return self._source.recv_into(buffer)


class _StoppedError(Exception):
    """A signal arrived while a write waited for a reader."""


class _Output(io.FileIO):
    """A file or FIFO whose writes are complete."""

    def write(self, data: Any) -> int:
        """Write all bytes; unlike a buffered file, keep none that a close would have to flush."""
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


@contextlib.contextmanager
def _until_a_signal(end: Callable[[], object]) -> Iterator[None]:
    """Call ``end`` on SIGTERM or SIGINT; abort the block if it does not end soon after."""

    def stop(*_: object) -> None:
        raise _StoppedError

    def told(*_: object) -> None:
        end()
        signal.setitimer(signal.ITIMER_REAL, _END_S, _END_S)

    handlers = {signal.SIGALRM: stop, signal.SIGTERM: told, signal.SIGINT: told}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with contextlib.suppress(_StoppedError):
            yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, before[number])
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[signal.SIGALRM])


def start(name: str) -> tuple[ProcessConnection, socket.socket]:
    """Ask the NIC process for a device's packets; return the connection, and the socket that receives them.

    Raises:
        ProcessError: no NIC process runs, or it refuses.
    """
    directory = runtime_directory()
    connection = connect(directory)
    if connection is None:
        raise ProcessError(f"no NIC process runs in {directory}: start one with rnic serve")
    source, sending = socket.socketpair()
    try:
        connection.request(attach.MSG_CAPTURE, name.encode(), [sending.fileno()])
    except VerbsError as error:
        source.close()
        connection.close()
        raise ProcessError(str(error.strerror)) from None
    finally:
        sending.close()
    return connection, source


def copy(name: str, path: str, findings: bool) -> None:
    """Write a device's packets to a FIFO or file until its reader closes it, the device ends, or a signal comes."""
    connection, source = start(name)
    # when the connection closes, the NIC process writes the end of the file
    with (
        source,
        contextlib.closing(connection),
        _until_a_signal(connection.close),
        contextlib.suppress(BrokenPipeError),
        _Output(path, "w") as file,
    ):
        notes = Annotated(cast("BinaryIO", file), name) if findings else None
        packets = _Packets(source, file.fileno(), file.flush if notes is None else notes.flush)
        if notes is None:
            while data := packets.read(_CHUNK):
                file.write(data)
        else:
            for packet in _read(packets, name):
                notes.add(packet)
            notes.finish()


def _read(packets: _Packets, name: str) -> Iterator[CapturedPacket]:
    with contextlib.suppress(CaptureError):  # the NIC process was killed in the middle of a packet
        yield from read_capture(cast("BinaryIO", io.BufferedReader(packets, _CHUNK)), name)


def _refuse(what: str) -> NoReturn:
    raise click.UsageError(f"{what}; Wireshark gives these options, rnic wireshark --install has it do so")


@click.command()
@click.option("--extcap-interfaces", is_flag=True, help="List the running devices.")
@click.option("--extcap-version", help="Version of the calling Wireshark.")
@click.option("--extcap-interface", metavar="NAME", help="Device to capture.")
@click.option("--extcap-dlts", is_flag=True, help="List the device's link types.")
@click.option("--extcap-config", is_flag=True, help="List the options of a capture.")
@click.option("--extcap-capture-filter", metavar="TEXT", help="Capture filter; only an empty one is accepted.")
@click.option("--capture", is_flag=True, help="Capture the device's packets.")
@click.option("--fifo", type=click.Path(dir_okay=False), help="FIFO to which the packets are written as pcapng.")
@click.option("--findings", is_flag=True, help="Judge the packets as rnic check does; findings become packet comments.")
def extcap(
    extcap_interfaces: bool,
    extcap_version: str | None,
    extcap_interface: str | None,
    extcap_dlts: bool,
    extcap_config: bool,
    extcap_capture_filter: str | None,
    capture: bool,
    fifo: str | None,
    findings: bool,
) -> None:
    """Answer Wireshark's extcap calls: list and capture this user's devices."""
    if extcap_interfaces:
        click.echo(sentences("extcap", {"version": rnic.__version__, "display": "rnic"}), nl=False)
        shown = [{"value": row["name"], "display": f"RDMA NIC at {row['address']}"} for row in interfaces()]
        click.echo(sentences("interface", *shown), nl=False)
        return
    if extcap_interface is None:
        if extcap_version is None:
            _refuse("give --extcap-interfaces, or --extcap-interface with what to do")
        click.echo(sentences("extcap", {"version": rnic.__version__, "display": "rnic"}), nl=False)
    elif extcap_dlts:
        click.echo(sentences("dlt", {"number": "1", "name": "EN10MB", "display": "Ethernet"}), nl=False)
    elif extcap_config:
        row = {"number": "0", "call": "--findings", "display": "Findings of rnic check as comments"}
        click.echo(sentences("arg", {**row, "type": "boolflag", "default": "true"}), nl=False)
    elif extcap_capture_filter:
        # without --capture, Wireshark treats any output as an error in the filter
        what = "rnic knows no capture filters: use a display filter"
        if capture:
            raise click.UsageError(f"--extcap-capture-filter {extcap_capture_filter}: {what}")
        click.echo(what)
    elif capture:
        if fifo is None:
            _refuse("--capture needs --fifo")
        copy(extcap_interface, fifo, findings)
    elif extcap_capture_filter is None:
        _refuse("with --extcap-interface goes --extcap-dlts, --extcap-config, or --capture")
