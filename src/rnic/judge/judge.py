"""The judge: finds RoCEv2 in frames, queue pairs in packets, and puts each packet before the rules that it concerns."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator

from rnic.judge.connections import Connections
from rnic.judge.findings import Finding
from rnic.judge.packet import Seen
from rnic.judge.requests import take_request
from rnic.judge.responses import take_response, unsent
from rnic.judge.stream import Stream
from rnic.spec.limits import MAX_PATH_MTU, ROCE_UDP_PORT
from rnic.spec.opcodes import CNP, OPERATION_MASK, RC, SERVICE_MASK, UC, UD
from rnic.wire.crc import crc32
from rnic.wire.dissect import LINKTYPE_ETHERNET, MALFORMED, ROCE, dissect
from rnic.wire.flow import Flow
from rnic.wire.mad import GSI_QPN
from rnic.wire.opcode import OPCODES

CNP_GAP_NS = 4_000
"""CNPs of one flow closer than this are said to be: the least that common NICs are set to."""
MAX_PATHS = 1 << 17
MAX_SKEW = 64
"""Frames that a response may come before the request that it answers: a mirror joins the two directions as it likes."""
_PLAIN = struct.Struct(">12xHBxHHHxB12xHH")
"""Of Ethernet, IPv4 without options and UDP: type, version, length, ident, fragment, protocol, port, length."""
_IPV4_UDP = 42
_BTH = struct.Struct(">BBHII")
_LEAST = 16
_CNP_SIZE = 16
_DONT_FRAGMENT = 0x4000
_FRAGMENT = 0x3FFF
_UNJUDGED = {0x1C: "FLUSH", 0x1D: "ATOMIC_WRITE"}
"""RC operations of later editions of the standard."""
_SERVICES = (RC, UC, UD)


class Judge:
    """Follows every connection of a capture.

    Args:
        report: called with each finding, in the order of frames.
        port: UDP destination port of RoCEv2.
        cnp_gap_ns: how close CNPs of one flow may be.
        skew: frames that a response may come before its request; 0 where both directions are seen in their true order.

    ``packets`` counts RoCEv2 packets, ``frames`` all.
    """

    def __init__(
        self,
        report: Callable[[Finding], None],
        *,
        port: int = ROCE_UDP_PORT,
        cnp_gap_ns: int = CNP_GAP_NS,
        skew: int = MAX_SKEW,
    ) -> None:
        self._report = report
        self._skew = skew
        self._port = port
        self._cnp_gap_ns = cnp_gap_ns
        self._paths: dict[bytes, tuple[Flow, Stream]] = {}
        self.connections = Connections()
        self.frames = 0
        self.packets = 0
        self._time_ns = 0
        self._early: deque[tuple[int, Stream, Seen]] = deque()
        """Responses to what has not been sent yet, and the frame until which that may still come."""

    def streams(self) -> Iterator[Stream]:
        """Every direction of every queue pair that is remembered."""
        return iter(self.connections.streams.values())

    # ------------------------------------------------------------------------------------------- frames

    def frame(self, time_ns: int, linktype: int, data: bytes, length: int) -> None:
        """Judge one frame of a capture; whatever is not RoCEv2 is passed over.

        Args:
            time_ns: when it was captured.
            linktype: what it starts with.
            data: the captured bytes.
            length: bytes on the wire, perhaps more.
        """
        self.frames += 1
        self._time_ns = time_ns
        if self._early and self._early[0][0] < self.frames:
            self._settle()
        if linktype == LINKTYPE_ETHERNET and len(data) >= _IPV4_UDP + _LEAST:
            kind, version, total, ident, frag, protocol, dport, udp = _PLAIN.unpack_from(data)
            if kind == 0x0800 and version == 0x45:
                if protocol != 17 or dport != self._port or frag & _FRAGMENT:
                    return
                path = self._paths.get(data[26:36] + data[47:50])
                if path is None:
                    path = self._path(data[26:30], data[30:34], int.from_bytes(data[34:36], "big"), data[47:50])
                if udp != total - 20 or udp & 3 or udp < 8 + _LEAST:
                    self._find(path[1].name, "length", f"IP says {total - 28} bytes of UDP payload, UDP {udp - 8}")
                    return
                payload = data[_IPV4_UDP : 14 + total]
                self._packet(path, ident, frag, payload, len(payload) == udp - 8)
                return
        frame = dissect(memoryview(data), linktype, self._port)
        flow = frame.flow
        if frame.kind == ROCE and flow is not None:
            payload = bytes(frame.payload)
            path = self._path(flow.src, flow.dst, flow.sport, payload[5:8])
            self._packet(path, frame.ident, frame.frag, payload, frame.complete)
        elif frame.kind == MALFORMED:
            self._find("", "length", "headers contradict each other")

    def _path(self, src: bytes, dst: bytes, sport: int, dqpn: bytes) -> tuple[Flow, Stream]:
        """The flow of a packet, for its ICRC, and the stream that it is part of."""
        key = src + dst + sport.to_bytes(2, "big") + dqpn
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= MAX_PATHS:
                self._paths.clear()
            stream = self.connections.stream(src, dst, int.from_bytes(dqpn, "big"))
            path = self._paths[key] = (Flow(src, dst, sport, self._port), stream)
        return path

    # ------------------------------------------------------------------------------------------ packets

    def _packet(self, path: tuple[Flow, Stream], ident: int, frag: int, payload: bytes, complete: bool) -> None:
        self.packets += 1
        flow, stream = path
        opcode, flags, pkey, dqpn, psn_word = _BTH.unpack_from(payload)
        if complete and not flow.check(payload, ident, frag):
            self._find(stream.name, "icrc", f"ICRC of {len(payload)} bytes is wrong")
            return
        if frag != _DONT_FRAGMENT and len(flow.src) == 4:
            self._find(stream.name, "fragment", "DF is not set")
        if flags & 0x0F:
            self._find(stream.name, "tver", f"TVer {flags & 0x0F}")
            return
        if dqpn & 0x3F00_0000 or psn_word & 0x7F00_0000:
            self._find(stream.name, "reserved", "reserved bits of the BTH are set")
        row = OPCODES[opcode]
        if row is None:
            service = opcode & SERVICE_MASK
            if service in _SERVICES and (service != RC or opcode & OPERATION_MASK not in _UNJUDGED):
                self._find(stream.name, "opcode", f"opcode {opcode:#04x}")
            else:
                stream.facts.add("packets of services not judged", self.frames)
            return
        pad = flags >> 4 & 3
        end = len(payload) - (4 + pad if complete else 0)
        if end < row.header_bytes or (not row.payload and complete and (end != row.header_bytes or pad)):
            self._find(stream.name, "headers", f"{row.name} of {len(payload)} bytes, {pad} of padding")
            return
        packet = Seen(self.frames, self._time_ns, row, ident)
        packet.psn = psn_word & 0xFF_FFFF
        packet.ackreq = psn_word & 0x8000_0000 != 0
        packet.solicited = flags & 0x80 != 0
        packet.dqpn = dqpn & 0xFF_FFFF
        packet.pkey = pkey
        packet.pad = pad
        packet.header = payload[12 : row.header_bytes]
        packet.size = end - row.header_bytes
        if complete:
            packet.digest = crc32(payload[row.header_bytes : end])
        if row.deth:
            self._datagram(stream, packet, payload, complete)
        elif opcode == CNP:
            self._notification(stream, packet, payload, dqpn)
        elif row.request and pkey == stream.pkey:
            take_request(self._broken, stream, packet)
        else:
            self._connected(stream, packet)

    def _connected(self, stream: Stream, packet: Seen) -> None:
        """A response, or a packet with another P_Key than before, of RC or UC."""
        if stream.pkey != packet.pkey:
            if stream.pkey >= 0:
                self._find(stream.name, "pkey", f"P_Key {packet.pkey:#06x}, and {stream.pkey:#06x} before")
            stream.pkey = packet.pkey
        if packet.row.request:
            take_request(self._broken, stream, packet)
            return
        answered = self.connections.answered(stream, packet.psn)
        if answered is None:
            return
        if self._skew and unsent(answered, packet.psn):
            self._early.append((packet.frame + self._skew, answered, packet))
        else:
            take_response(self._broken, answered, packet)

    def _settle(self) -> None:
        """The oldest early response has waited long enough."""
        _, stream, packet = self._early.popleft()
        if not unsent(stream, packet.psn):
            stream.facts.add("responses captured before their requests", packet.frame)
        take_response(self._broken, stream, packet)

    def finish(self) -> None:
        """The capture has ended: nothing more comes that could explain what waits."""
        while self._early:
            self._settle()

    def _datagram(self, stream: Stream, packet: Seen, payload: bytes, complete: bool) -> None:
        if packet.size > MAX_PATH_MTU:
            self._find(stream.name, "ud-size", f"{packet.size} bytes")
        if packet.dqpn == GSI_QPN and complete:
            self.connections.management(stream.key, payload[packet.row.header_bytes : len(payload) - 4])

    def _notification(self, stream: Stream, packet: Seen, payload: bytes, dqpn: int) -> None:
        stream.facts.add("CNPs", packet.frame)
        if packet.size != _CNP_SIZE or any(payload[12:28]) or not dqpn & 0x4000_0000:
            self._find(stream.name, "cnp-form", f"{packet.size} bytes, BECN {dqpn >> 30 & 1}")
        gap = packet.time_ns - stream.cnp_ns
        # all CNPs of a flow are alike: only their idents tell a second one from a copy that the network made
        copy = packet.ident == stream.cnp_ident and not stream.cnp_copied
        stream.cnp_copied = stream.cnp_ns >= 0 and 0 <= gap < self._cnp_gap_ns and copy
        if stream.cnp_copied:
            stream.facts.add("CNPs that may be copies", packet.frame)
        elif stream.cnp_ns >= 0 and 0 <= gap < self._cnp_gap_ns:
            self._find(stream.name, "cnp-rate", f"{gap / 1000:.1f} us after the last")
        stream.cnp_ns, stream.cnp_ident = packet.time_ns, packet.ident

    # ----------------------------------------------------------------------------------------- findings

    def _broken(self, packet: Seen, stream: Stream, rule: str, detail: str) -> None:
        self._report(Finding(packet.frame, self._time_ns, stream.name, rule, detail))

    def _find(self, name: str, rule: str, detail: str) -> None:
        self._report(Finding(self.frames, self._time_ns, name, rule, detail))
