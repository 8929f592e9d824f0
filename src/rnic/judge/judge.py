"""The judge: finds RoCEv2 in frames, queue pairs in packets, and puts each packet before the rules that it concerns."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator

from rnic.judge.connections import Connections
from rnic.judge.findings import Finding
from rnic.judge.packet import ICRC_BYTES, Form, Seen
from rnic.judge.requests import take_request
from rnic.judge.responses import ANSWERED_UNSEEN, take_response, unsent
from rnic.judge.stream import KEEP, Stream
from rnic.spec.limits import MAX_PATH_MTU, ROCE_UDP_PORT
from rnic.spec.opcodes import CNP, OPERATION_MASK, RC, SERVICE_MASK, UC, UD
from rnic.spec.psn import psn_diff
from rnic.wire.crc import crc32
from rnic.wire.dissect import LINKTYPE_ETHERNET, MALFORMED, ROCE, Frame, dissect
from rnic.wire.flow import DONT_FRAGMENT, IDENT_HIGH, IDENT_LOW, Flow, residue
from rnic.wire.ip import IPv4, IPv6, Udp
from rnic.wire.mad import GSI_QPN
from rnic.wire.opcode import OPCODES

CNP_GAP_NS = 4_000
"""CNPs of one flow closer than this are said to be: the least that common NICs are set to."""
MAX_PATHS = 1 << 17
MAX_FORMS = 1 << 16
MAX_SKEW = 64
"""Frames that a response may come before the request that it answers: a mirror joins the two directions as it likes."""
MAX_EARLY = 1_024
"""Responses that wait for the requests that they answer."""
MAX_HOLE = 256
"""Packets that the end of a capture may lack: a response to what comes later than that names a wrong PSN."""
_PLAIN = struct.Struct(">12xIHHI2x14s2x8sI")
"""Of Ethernet, IPv4 without options, UDP and BTH: type to type of service, length, ident, fragment to protocol,
addresses to UDP length, the first eight bytes of the BTH, its last four."""
_IPV4_UDP = 42
_UDP = 17
_START, _START_MASK = 0x0800_4500, 0xFFFF_FF00
_MIDDLE, _MIDDLE_MASK = DONT_FRAGMENT << 16 | _UDP, 0xFFFF_00FF
_DQPN_RESERVED, _WORD_RESERVED = 0x3F00_0000, 0x7F00_0000
_PORTS = struct.Struct(">HHH")
_BTH = struct.Struct(">BBHII")
_LEAST = 16
_CNP_SIZE = 16
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
        self._breaks = self._broken
        self._skew = skew
        self._port = port
        self._cnp_gap_ns = cnp_gap_ns
        self._paths: dict[bytes, tuple[Flow, Stream]] = {}
        self._forms: dict[bytes, Form] = {}
        """Of what is right in itself: by addresses, ports, UDP length and the first eight bytes of the BTH."""
        self.connections = Connections()
        self.frames = 0
        self.packets = 0
        self._time_ns = 0
        self._early: deque[tuple[int, Stream, Seen, int]] = deque()
        """Responses to what has not been sent yet, with the frame until which that may still come, and the PSN that was
        next to be sent."""

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
            start, total, ident, middle, ends, bth, word = _PLAIN.unpack_from(data)
            if start & _START_MASK == _START:
                payload = data[_IPV4_UDP : 14 + total]
                key = ends + bth
                form = self._forms.get(key)
                if (
                    form is None
                    or form.total != total
                    or total > len(data) - 14
                    or middle & _MIDDLE_MASK != _MIDDLE
                    or word & _WORD_RESERVED
                    or crc32(payload, form.seed ^ IDENT_HIGH[ident >> 8] ^ IDENT_LOW[ident & 0xFF]) != form.residue
                ):
                    self._plain(key, total, ident, middle, payload)
                    return
                self.packets += 1
                tail = payload[form.tail :]
                packet = Seen(form, self.frames, time_ns, ident, word, payload[12 : form.header_bytes], tail)
                if form.request and form.pkey == form.stream.pkey:
                    take_request(self._breaks, form.stream, packet)
                else:
                    self._take(packet, payload)
                return
        frame = dissect(memoryview(data), linktype, self._port)
        if frame.kind == ROCE and len(frame.payload) >= _BTH.size:
            payload = bytes(frame.payload)
            src, dst, udp, ident, frag = _outside(frame)
            path = self._path(src, dst, udp.sport, payload[5:8])
            key = src + dst + _PORTS.pack(udp.sport, self._port, udp.length) + payload[:8]
            self._packet(path, key, ident, frag, payload, udp.length - 8)
        elif frame.kind == MALFORMED:
            self._find("", "length", "headers contradict each other")

    def _plain(self, key: bytes, total: int, ident: int, middle: int, payload: bytes) -> None:
        """An IPv4 packet without options in Ethernet that is the first of its form, or not right."""
        frag = middle >> 16
        sport, dport, udp = _PORTS.unpack_from(key, 8)
        if middle & 0xFF != _UDP or dport != self._port or frag & _FRAGMENT:
            return
        path = self._path(key[:4], key[4:8], sport, key[19:22])
        if udp != total - 20 or udp & 3 or udp < 8 + _LEAST:
            self._find(path[1].name, "length", f"IP says {total - 28} bytes of UDP payload, UDP {udp - 8}")
            return
        self._packet(path, key, ident, frag, payload, udp - 8)

    def _path(self, src: bytes, dst: bytes, sport: int, dqpn: bytes) -> tuple[Flow, Stream]:
        """The flow of a packet, for its ICRC, and the stream that it is part of."""
        key = src + dst + sport.to_bytes(2, "big") + dqpn
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= MAX_PATHS:
                self._paths.clear()
                self._forms.clear()
            stream = self.connections.stream(src, dst, int.from_bytes(dqpn, "big"))
            path = self._paths[key] = (Flow(src, dst, sport, self._port), stream)
        return path

    # ------------------------------------------------------------------------------------------ packets

    def _packet(
        self, path: tuple[Flow, Stream], key: bytes, ident: int, frag: int, payload: bytes, length: int
    ) -> None:
        """Judge what a packet is in itself, and keep its form, by ``key``, where nothing is wrong with that.

        ``length`` bytes of UDP payload it had on the wire; the capture may have cut them.
        """
        self.packets += 1
        flow, stream = path
        opcode, flags, pkey, dqpn, word = _BTH.unpack_from(payload)
        complete = len(payload) == length
        right = residue(length, payload[4])
        if complete and crc32(payload, flow.seed(length, ident, frag)) != right:
            self._find(stream.name, "icrc", f"ICRC of {length} bytes is wrong")
            return
        whole = frag == DONT_FRAGMENT or len(flow.src) != 4
        if not whole:
            self._find(stream.name, "fragment", "DF is not set")
        if flags & 0x0F:
            self._find(stream.name, "tver", f"TVer {flags & 0x0F}")
            return
        reserved = dqpn & _DQPN_RESERVED
        if reserved or word & _WORD_RESERVED:
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
        end = length - ICRC_BYTES - pad
        if end < row.header_bytes or (not row.payload and (end != row.header_bytes or pad)):
            self._find(stream.name, "headers", f"{row.name} of {length} bytes, {pad} of padding")
            return
        if len(payload) < row.header_bytes:
            stream.facts.add("packets cut in their headers", self.frames)
            if row.request and not row.deth:
                stream.lose()
            return
        form = Form(stream, row, flow.sport, frag, flags, pkey, dqpn, length, end - row.header_bytes)
        if complete and whole and not reserved:
            form.seed = flow.seed(length)
            form.residue = right
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            # it may be known, and only this packet not plain
            form = self._forms.setdefault(key, form)
        tail = payload[form.tail :] if complete else b""
        packet = Seen(form, self.frames, self._time_ns, ident, word, payload[12 : row.header_bytes], tail)
        self._take(packet, payload)

    def _take(self, packet: Seen, payload: bytes) -> None:
        """A packet that is right in itself goes where it belongs."""
        form = packet.form
        row = form.row
        stream = form.stream
        if form.request and form.pkey == stream.pkey:
            take_request(self._breaks, stream, packet)
        elif form.request and stream.lost:
            stream.facts.add("packets of a connection whose headers are cut", packet.frame)
        elif row.deth:
            self._datagram(stream, packet, payload)
        elif row.opcode == CNP:
            self._notification(stream, packet, payload)
        else:
            self._connected(stream, packet)

    def _connected(self, stream: Stream, packet: Seen) -> None:
        """A response, or a packet with another P_Key than before, of RC or UC."""
        form = packet.form
        if stream.pkey != form.pkey:
            if stream.pkey >= 0:
                self._find(stream.name, "pkey", f"P_Key {form.pkey:#06x}, and {stream.pkey:#06x} before")
            stream.pkey = form.pkey
        if form.row.request:
            take_request(self._breaks, stream, packet)
            return
        answered = stream.peer or self.connections.answered(stream, packet.psn)
        if answered is None:
            return
        early = unsent(answered, packet.psn)
        if early and self._skew:
            if len(self._early) >= MAX_EARLY:
                self._settle(last=True)
            self._early.append((packet.frame + self._skew, answered, packet, answered.highest))
        else:
            take_response(self._breaks, answered, packet, early)

    def _settle(self, last: bool = False) -> None:
        """The oldest early response has waited long enough.

        Its request may have passed unseen, where a capture lacks packets: then the requests go on behind it. It was too
        early where they go on before it.
        """
        _, stream, packet, then = self._early.popleft()
        early = unsent(stream, packet.psn)
        gone_on = psn_diff(stream.highest, then)
        if early and not gone_on and not last:
            self._early.append((self.frames + self._skew, stream, packet, then))
            return
        if early and ((not gone_on and psn_diff(packet.psn, then) < MAX_HOLE) or not 0 <= gone_on <= KEEP):
            stream.facts.add(ANSWERED_UNSEEN, packet.frame)
            return
        sent = stream.history.get(packet.psn)
        if not early and sent is not None:
            early = sent.frame > packet.frame + self._skew
            stream.facts.add("responses captured before their requests", packet.frame)
        take_response(self._breaks, stream, packet, early)

    def finish(self) -> None:
        """The capture has ended: nothing more comes that could explain what waits."""
        while self._early:
            self._settle(last=True)

    def _datagram(self, stream: Stream, packet: Seen, payload: bytes) -> None:
        if packet.size > MAX_PATH_MTU:
            self._find(stream.name, "ud-size", f"{packet.size} bytes")
        if stream.key[2] == GSI_QPN and packet.tail:
            self.connections.management(stream.key, payload[packet.form.header_bytes : len(payload) - ICRC_BYTES])

    def _notification(self, stream: Stream, packet: Seen, payload: bytes) -> None:
        dqpn = packet.form.dqpn
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


def _outside(frame: Frame) -> tuple[bytes, bytes, Udp, int, int]:
    """Addresses, UDP header, ident and fragment field of a frame, be it cut or not."""
    network, udp = frame.headers[-2:]
    assert isinstance(udp, Udp)
    if isinstance(network, IPv4):
        source, destination = network.src.to_bytes(4, "big"), network.dst.to_bytes(4, "big")
        return source, destination, udp, network.identification, network.flags_fragment
    assert isinstance(network, IPv6)
    return network.src.to_bytes(16, "big"), network.dst.to_bytes(16, "big"), udp, 0, 0
