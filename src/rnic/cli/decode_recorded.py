"""Restore packets that the recorder changed to what was sent; the ICRC shows what was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rnic.judge.frames import path_key
from rnic.judge.recording import SourcePorts
from rnic.link.pcap import CapturedPacket, CaptureError
from rnic.wire.dissect import ROCE, Frame
from rnic.wire.flow import Flow
from rnic.wire.recorded import solve_port, split


class Recorded:
    """Undoes the changes that the recorder of one capture made.

    Args:
        again: reads the capture again, to detect rewritten source ports.
        dissect: dissects one frame.
    """

    def __init__(
        self, again: Callable[[], Iterable[CapturedPacket]], dissect: Callable[[CapturedPacket], Frame]
    ) -> None:
        self._again = again
        self._dissect = dissect
        self._ports: SourcePorts | None = None

    def packets(self, frame: Frame) -> Iterator[tuple[Frame, str]]:
        """Yield the packets in a frame, each with a remark."""
        if frame.kind != ROCE or frame.icrc_ok is not False or not isinstance(frame.flow, Flow):
            yield frame, ""
            return
        flow, payload = frame.flow, bytes(frame.payload)
        port = self._agreed(frame)
        if port is not None:
            frame.flow = Flow(flow.src, flow.dst, port, flow.dport, flow.tclass, flow.hop_limit, flow.flow_label)
            yield frame, f"ICRC fits source port {port}"
            return
        parts = split(payload, flow, frame.ident, frame.frag)
        for number, (ident, part) in enumerate(parts, 1):
            packet = Frame(frame.kind, frame.headers)
            packet.payload, packet.complete = memoryview(part), True
            packet.flow, packet.ident, packet.frag = flow, ident, frame.frag
            yield packet, f"{number} of {len(parts)} in one frame"
        if not parts:
            yield frame, ""

    def _agreed(self, frame: Frame) -> int | None:
        """Return the source port that fits the ICRCs of the flow's packets."""
        if self._port(frame) is None:
            return None
        if self._ports is None:
            self._ports = SourcePorts()
            self._learn(self._ports)
        return self._fits(self._ports, frame)

    def _learn(self, ports: SourcePorts) -> None:
        try:
            for packet in self._again():
                frame = self._dissect(packet)
                if frame.kind == ROCE and frame.icrc_ok is False:
                    self._fits(ports, frame)
        except CaptureError:
            pass  # said when the file is shown

    def _fits(self, ports: SourcePorts, frame: Frame) -> int | None:
        port, flow = self._port(frame), frame.flow
        if port is None or flow is None:
            return None
        payload = frame.payload
        name = path_key(flow.src, flow.dst, flow.sport, payload)
        return port if ports.agree(name, flow.sport, port, int.from_bytes(payload[9:12], "big")) else None

    @staticmethod
    def _port(frame: Frame) -> int | None:
        flow = frame.flow
        return solve_port(frame.payload, flow, frame.ident, frame.frag) if isinstance(flow, Flow) else None
