"""The judge: find RoCEv2 packets in frames, assign them to queue pairs, and check each against the rules."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from rnic.judge.connections import Connections
from rnic.judge.findings import Finding
from rnic.judge.frames import ETHERNET, ONES, VLAN, Path, ipv4_at, outside, path_key, sum_is_wrong
from rnic.judge.packet import ICRC_BYTES, Form, Seen
from rnic.judge.recording import AGREE, HeldFrame, Hold
from rnic.judge.requests import finish_order, take_request
from rnic.judge.responses import ANSWERED_UNSEEN, take_response, unsent
from rnic.judge.state import TWIN, JudgeState
from rnic.judge.stream import KEEP, Stream
from rnic.link.pcap import Taker
from rnic.spec.limits import MAX_PATH_MTU, ROCE_UDP_PORT
from rnic.spec.opcodes import CNP, RC, SERVICE_MASK
from rnic.spec.psn import psn_diff
from rnic.spec.syndromes import CREDIT_COUNTS, CREDITS_INVALID
from rnic.wire.crc import crc32
from rnic.wire.dissect import (
    JUDGED,
    LINKTYPE_ETHERNET,
    MALFORMED,
    ROCE,
    Frame,
    dissect,
)
from rnic.wire.flow import DONT_FRAGMENT, IDENT_HIGH, IDENT_LOW, Flow, residue
from rnic.wire.infiniband import Grh, IbFlow, Lrh
from rnic.wire.mad import CLASS_CM, CM_CLASS_VERSION, GSI_QKEY, GSI_QPN, MAD_BASE_VERSION, MAD_BYTES
from rnic.wire.opcode import NOT_DECODED, OPCODES, SERVICE_NAMES
from rnic.wire.recorded import may_be_several, solve_port, split
from rnic.wire.tunnels import IN_UDP

CNP_GAP_NS = 4_000
"""Shortest allowed gap between CNPs of one flow: the smallest setting of common NICs."""
MAX_PATHS = 1 << 17
MAX_FORMS = 1 << 16
MAX_SKEW = 64
"""Frames by which a response may precede its request: a mirror port merges the two directions in any order."""
MAX_EARLY = 1_024
"""Responses that may wait for their requests."""
MAX_HOLE = 256
"""Packets that may be missing at the end of a capture; a response to a PSN beyond that is wrong."""
MAX_KINDS = 1_024
"""Most names of other protocols to count."""
_PLAIN = struct.Struct(">12xIHHIH14sH8sI")
"""Fields of Ethernet, IPv4 without options, UDP and BTH: EtherType to type of service, length, ident, fragment to
protocol, header checksum, addresses to UDP length, UDP checksum, the first eight bytes of the BTH, the last four."""
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
_CARRIED = b"carried"
"""Key suffix that separates forms of encapsulated packets from those of plain IPv4 packets."""
_TCP = 6
_PORT = struct.Struct(">H")
_QKEY = struct.Struct(">I")

if TWIN is not None:
    TWIN.prepare((IDENT_HIGH, IDENT_LOW), CREDIT_COUNTS[:CREDITS_INVALID])


class Judge(JudgeState):
    """Check every connection of a capture.

    Args:
        report: called with each finding, in the order of frames.
        port: UDP destination port of RoCEv2.
        cnp_gap_ns: shortest allowed gap between CNPs of one flow, in nanoseconds.
        skew: frames by which a response may precede its request; 0 if the capture order is the true order.

    ``frames`` counts all frames, ``packets`` those of RoCEv2, RoCEv1 and InfiniBand. ``kinds`` counts other protocols
    and packets other than RoCEv2, and ``unjudged`` the packets of which only the ICRC was checked.
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
        self._paths: dict[bytes, Path] = {}
        self._forms: dict[bytes, Form] = {}
        """Forms of correct packets, by addresses, ports, UDP length and the first eight bytes of the BTH."""
        self._scan: Any = None if TWIN is None else TWIN.Scanner(self, self._forms, Seen, 2 * KEEP, _CARRIED)
        """The compiled scanner, which takes correct packets that follow in order."""
        self.connections = Connections()
        self.frames = 0
        self.packets = 0
        self._time_ns = 0
        self.kinds: Counter[str] = Counter()
        self.unjudged = 0
        self._hold = Hold()
        self._raw: tuple[int, bytes, int] = (0, b"", 0)
        """Link type, bytes and length of the frame that is being dissected."""
        self._waits = False
        """True if frames or responses are held for later frames."""
        self._again: deque[HeldFrame] = deque()
        """Held frames that are being judged now."""
        self._judging_again = False
        self._early: deque[tuple[int, Stream, Seen, int]] = deque()
        """Responses that arrived before their requests, with the last frame in which the request may come, and the PSN
        that was next."""

    @property
    def taker(self) -> Taker | None:
        """Return the compiled reader of packet batches (:func:`rnic.link.pcap.read_capture`), if there is one."""
        taker: Taker | None = self._scan
        return taker

    def streams(self) -> Iterator[Stream]:
        """Yield the remembered streams: every direction of every queue pair."""
        return iter(self.connections.streams.values())

    # ------------------------------------------------------------------------------------------- frames

    def frame(self, time_ns: int, linktype: int, data: bytes, length: int) -> None:
        """Judge one frame of a capture; skip it unless it is RoCEv2.

        Args:
            time_ns: when it was captured.
            linktype: link type of its first header.
            data: the captured bytes.
            length: bytes on the wire; more than the captured ones if the frame was cut.
        """
        self.frames += 1
        self._time_ns = time_ns
        if self._waits and self._wait(time_ns, linktype, data, length):
            return
        scan = self._scan
        if scan is not None and linktype == LINKTYPE_ETHERNET and scan.take(data):
            return
        if linktype != LINKTYPE_ETHERNET or data[12:14] == VLAN:
            at = ipv4_at(linktype, data)
            if at >= 0:
                linktype, data = LINKTYPE_ETHERNET, ETHERNET + data[at:]
                if scan is not None and scan.take(data):
                    return
        if linktype == LINKTYPE_ETHERNET and len(data) >= _IPV4_UDP + _LEAST:
            start, total, ident, middle, ip_sum, ends, udp_sum, bth, word = _PLAIN.unpack_from(data)
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
                    or (start + ident + middle + ip_sum + form.header_sum) % ONES
                    or (udp_sum and sum_is_wrong(form.pseudo_sum, form.sport + self._port, udp_sum, payload))
                ):
                    self._raw = linktype, data, length
                    self._plain(key, start, total, ident, middle, ip_sum, udp_sum, payload)
                    return
                self.packets += 1
                tail = payload[form.tail :]
                packet = Seen(form, self.frames, time_ns, ident, word, payload[12 : form.header_bytes], tail)
                if form.request and form.constant == form.stream.constant:
                    take_request(self._breaks, form.stream, packet)
                else:
                    self._take(packet, payload)
                return
        self._raw = linktype, data, length
        self._dissected()

    def _dissected(self) -> None:
        """Dissect and judge a frame of any kind."""
        linktype, data, _ = self._raw
        frame = dissect(memoryview(data), linktype, self._port)
        if len(frame.payload) < _BTH.size or frame.kind not in JUDGED:
            self._other(frame.kind)
            return
        payload = bytes(frame.payload)
        if frame.kind != ROCE:
            self.kinds[frame.kind] += 1
            self._without_udp(frame, payload)
            return
        src, dst, udp, ident, frag = outside(frame)
        path = self._path(src, dst, udp.sport, payload)
        key = src + dst + _PORTS.pack(udp.sport, self._port, udp.length) + payload[:8] + _CARRIED
        if self._packet(path, key, ident, frag, payload, udp.length - 8):
            network = frame.headers[-2].pack() if len(src) == 4 else b""
            if network[10:12] != b"\0\0" and int.from_bytes(network, "big") % ONES:
                self._header_sum_is_wrong(path)
            if udp.checksum and len(payload) == udp.length - 8:
                self._check_udp_sum(path, udp.checksum, payload)

    def _forget_forms(self) -> None:
        self._forms.clear()
        if self._scan is not None:
            self._scan.forget()

    def request(self, stream: Stream, packet: Seen) -> None:
        """Judge a request of a known form that is correct by itself, for the scanner."""
        take_request(self._breaks, stream, packet)

    def _other(self, kind: str) -> None:
        """Count a frame that is not judged."""
        self.kinds[kind if kind in self.kinds or len(self.kinds) < MAX_KINDS else "other protocols"] += 1
        if kind == MALFORMED:
            self._find("", "length", "headers contradict each other")

    def _plain(
        self, key: bytes, start: int, total: int, ident: int, middle: int, ip_sum: int, udp_sum: int, payload: bytes
    ) -> None:
        """Judge an IPv4 packet without options in Ethernet that is the first of its form, or incorrect."""
        frag = middle >> 16
        sport, dport, udp = _PORTS.unpack_from(key, 8)
        protocol = middle & 0xFF
        if protocol != _UDP or dport != self._port or frag & _FRAGMENT:
            if frag & _FRAGMENT or not (protocol == _TCP or (protocol == _UDP and dport not in IN_UDP)):
                self._dissected()
            else:
                self._other("UDP" if protocol == _UDP else "TCP")
            return
        path = self._path(key[:4], key[4:8], sport, key[14:])
        if udp != total - 20 or udp < 8 + _LEAST:
            self._find(path[1].name, "length", f"IP says {total - 28} bytes of UDP payload, UDP says {udp - 8}")
            return
        if self._packet(path, key, ident, frag, payload, udp - 8):
            if ip_sum and (start - (_START >> 16) + total + ident + middle + ip_sum + path[2]) % ONES:
                self._header_sum_is_wrong(path)
            if udp_sum and len(payload) == udp - 8:
                self._check_udp_sum(path, udp_sum, payload)

    def _header_sum_is_wrong(self, path: Path) -> None:
        """Report a wrong IPv4 header checksum, unless it is 0 (left to checksum offload)."""
        self._find(path[1].name, "ip-checksum", "the IPv4 header and its checksum do not add up")

    def _check_udp_sum(self, path: Path, udp_sum: int, payload: bytes) -> None:
        """Check the UDP checksum; a pseudo-header sum is accepted (left to checksum offload)."""
        flow, stream, ends, rewritten = path
        pseudo = -1 if rewritten else (ends + _UDP + len(payload) + 8) % ONES
        if sum_is_wrong(pseudo, flow.sport + flow.dport, udp_sum, payload):
            self._find(stream.name, "udp-checksum", f"checksum {udp_sum:#06x} does not fit")

    def _path(self, src: bytes, dst: bytes, sport: int, payload: bytes) -> Path:
        """Return the flow of a packet, for its ICRC, and its stream."""
        key = path_key(src, dst, sport, payload)
        path = self._paths.get(key)
        if path is None:
            path = self._new_path(key, Flow(src, dst, sport, self._port), payload[5:8])
        return path

    def _new_path(self, key: bytes, flow: Flow | IbFlow, dqpn: bytes) -> Path:
        if len(self._paths) >= MAX_PATHS:
            self._paths.clear()
            self._forget_forms()
        stream = self.connections.stream(flow.src, flow.dst, int.from_bytes(dqpn, "big"))
        path = self._paths[key] = flow, stream, int.from_bytes(flow.src + flow.dst, "big") % ONES, False
        return path

    def _without_udp(self, frame: Frame, payload: bytes) -> None:
        """Judge a packet of RoCEv1 or native InfiniBand."""
        flow, last = frame.flow, frame.headers[-1]
        assert isinstance(flow, IbFlow)
        assert isinstance(last, Grh | Lrh)
        length = last.payload_length if isinstance(last, Grh) else last.packet_length * 4 - Lrh.layout.size
        key = flow.key + payload[5:8]
        path = self._paths.get(key) or self._new_path(key, flow, payload[5:8])
        self._packet(path, flow.key + length.to_bytes(2, "big") + payload[:8], 0, 0, payload, length)

    # ------------------------------------------------------------------------- changes by capture tools

    def _wait(self, time_ns: int, linktype: int, data: bytes, length: int) -> bool:
        """Judge early responses that are due, or hold a frame back; return whether it was held."""
        if not self._hold.active:
            if self._early and self._early[0][0] < self.frames:
                self._settle()
            self._waits = bool(self._early)
            return False
        self._hold.add(HeldFrame(self.frames, time_ns, linktype, data, length))
        frame = dissect(memoryview(data), linktype, self._port)
        if frame.kind == ROCE and frame.complete and isinstance(frame.flow, Flow):
            self._weigh(frame, frame.flow)
        if self._hold.over:
            self._release()
        return True

    def _weigh(self, frame: Frame, captured: Flow) -> None:
        """Use the ICRC of a held frame as evidence for its flow's source port."""
        payload = bytes(frame.payload)
        name = path_key(captured.src, captured.dst, captured.sport, payload)
        path = self._paths.get(name)
        flow = captured if path is None else path[0]
        if flow.check(payload, frame.ident, frame.frag):
            self._hold.decide(name, False)
            return
        port = solve_port(payload, captured, frame.ident, frame.frag)
        if port is None:
            return
        psn = int.from_bytes(payload[9:12], "big")
        if self._hold.ports.agree(name, captured.sport, port, psn):
            self._hold.decide(name, True)
        else:
            self._hold.doubt(name)

    def _release(self) -> None:
        """Judge the held frames."""
        self._again.extendleft(reversed(self._hold.release()))
        self._waits = bool(self._early)
        if self._judging_again:
            return
        self._judging_again = True
        count = self.frames
        while self._again:
            held = self._again.popleft()
            self.frames = held.number - 1
            self.frame(held.time_ns, held.linktype, held.data, held.length)
        self.frames = count
        self._judging_again = False

    def _wrong(self, path: Path, key: bytes, ident: int, frag: int, payload: bytes) -> bool:
        """Handle a packet whose ICRC does not fit; return whether a capture tool's change explains that."""
        flow, stream, ends, _ = path
        self.packets -= 1
        detail = f"ICRC of {len(payload)} bytes is wrong"
        if isinstance(flow, Flow):
            at = 2 * len(flow.src)
            port = solve_port(payload, flow, ident, frag)
            if port is not None:
                (captured,) = _PORT.unpack_from(key, at)
                name = path_key(flow.src, flow.dst, captured, payload)
                if self._hold.ports.agree(name, captured, port, int.from_bytes(payload[9:12], "big")):
                    self._hold.ports.changed(name)
                    self._forget_forms()
                    path = self._paths[name] = Flow(flow.src, flow.dst, port, self._port), stream, ends, True
                    stream.rewritten(captured, port, self.frames)
                    return self._packet(path, key, ident, frag, payload, len(payload))
                if self._hold.begin(name, HeldFrame(self.frames, self._time_ns, *self._raw)):
                    self._waits = True
                    return False
                detail += f"; it fits source port {port}, which {AGREE} packets would prove that a recorder rewrote"
            parts = split(payload, flow, ident, frag)
            if parts:
                stream.facts.add("packets of frames recorded before segmentation", self.frames, len(parts))
                for each, part in parts:
                    form = key[: at + 4] + (len(part) + 8).to_bytes(2, "big") + part[:8] + key[at + 14 :]
                    self._packet(path, form, each, frag, part, len(part))
                return True
        self.packets += 1
        self._find(stream.name, "icrc", detail)
        return False

    # ------------------------------------------------------------------------------------------ packets

    def _packet(self, path: Path, key: bytes, ident: int, frag: int, payload: bytes, length: int) -> bool:
        """Check a packet by itself, and cache its form under ``key`` if it is correct.

        ``length`` is the size of the UDP payload on the wire; the capture may have cut it.

        Returns:
            True unless the ICRC is wrong; other violations are then the sender's.
        """
        flow, stream, ends, rewritten = path
        if length & 3:
            self._find(stream.name, "length", f"{length} bytes of UDP payload do not end on a word")
            return False
        self.packets += 1
        opcode, flags, pkey, dqpn, word = _BTH.unpack_from(payload)
        complete = len(payload) == length
        right = residue(length, payload[4])
        if complete and crc32(payload, flow.seed(length, ident, frag)) != right:
            return self._wrong(path, key, ident, frag, payload)
        whole = frag == DONT_FRAGMENT or len(flow.src) != 4
        if not whole:
            self._find(stream.name, "fragment", "DF is not set")
        if flags & 0x0F:
            self._find(stream.name, "tver", f"TVer {flags & 0x0F}")
            return True
        reserved = dqpn & _DQPN_RESERVED
        if reserved or word & _WORD_RESERVED:
            self._find(stream.name, "reserved", "reserved bits of the BTH are set")
        row = OPCODES[opcode]
        if row is None:
            self._without_row(stream, opcode)
            return True
        pad = flags >> 4 & 3
        end = length - ICRC_BYTES - pad
        if not complete and may_be_several(row, payload, end - row.header_bytes, stream.path_mtu):
            stream.facts.add("cut frames that may hold several packets", self.frames)
            self.unjudged += 1
            if row.request and not row.deth:
                stream.lose()
            return True
        if end < row.header_bytes or (not row.payload and (end != row.header_bytes or pad)):
            self._find(stream.name, "headers", f"{row.name} of {length} bytes, {pad} of padding")
            return True
        if len(payload) < row.header_bytes:
            stream.facts.add("packets cut in their headers", self.frames)
            self.unjudged += 1
            if row.request and not row.deth:
                stream.lose()
            return True
        form = Form(stream, row, flow.sport, frag, flags, pkey, dqpn, length, end - row.header_bytes)
        if complete and whole and not reserved:
            form.seed = flow.seed(length)
            form.residue = right
            form.header_sum = ends + form.total - (_START >> 16)
            form.pseudo_sum = -1 if rewritten else (ends + _UDP + length + 8) % ONES
            if len(self._forms) >= MAX_FORMS:
                self._forget_forms()
            # the form may be known, and only this packet be unusual
            form = self._forms.setdefault(key, form)
        tail = payload[form.tail :] if complete else b""
        packet = Seen(form, self.frames, self._time_ns, ident, word, payload[12 : row.header_bytes], tail)
        self._take(packet, payload)
        return True

    def _without_row(self, stream: Stream, opcode: int) -> None:
        """Count a packet whose opcode is not judged: of another service, or unknown."""
        name = NOT_DECODED.get(opcode)
        if name is None:
            self._find(stream.name, "opcode", f"opcode {opcode:#04x}")
            return
        self.unjudged += 1
        service = opcode & SERVICE_MASK
        stream.facts.add(f"{name if service == RC else SERVICE_NAMES[service]} packets, not judged", self.frames)

    def _take(self, packet: Seen, payload: bytes) -> None:
        """Pass a packet that is correct by itself to the checks of its service."""
        form = packet.form
        row = form.row
        stream = form.stream
        if form.request and form.constant == stream.constant:
            take_request(self._breaks, stream, packet)
        elif form.request and stream.lost:
            self.unjudged += 1
            stream.facts.add("packets of a connection whose headers are cut", packet.frame)
        elif row.deth:
            self._datagram(stream, packet, payload)
        elif row.opcode == CNP:
            self._notification(stream, packet, payload)
        else:
            self._connected(stream, packet)

    def _connected(self, stream: Stream, packet: Seen) -> None:
        """Judge a response, or a packet whose P_Key has changed, of RC or UC."""
        form = packet.form
        if stream.pkey != form.pkey:
            if stream.pkey >= 0:
                self._find(stream.name, "pkey", f"P_Key {form.pkey:#06x}, and {stream.pkey:#06x} before")
            stream.pkey = form.pkey
        if form.row.request:
            if stream.constant >= 0:
                self._changed(stream, packet)
            stream.constant = form.constant
            if stream.front < 0 and not form.row.start and stream.expected_psn < 0:
                stream.pair.stray = packet
            take_request(self._breaks, stream, packet)
            return
        if stream.response_port != form.sport:
            answered = stream.peer
            if stream.response_port >= 0 and answered is not None and _near(packet.psn, answered):
                self._port_changed(stream, stream.response_port, form.sport)
            stream.response_port = form.sport
        answered = stream.peer or self.connections.answered(stream, packet.psn)
        if answered is None:
            return
        early = unsent(answered, packet.psn)
        if early and self._skew:
            if len(self._early) >= MAX_EARLY:
                self._settle(last=True)
            self._early.append((packet.frame + self._skew, answered, packet, answered.highest))
            self._waits = True
        else:
            take_response(self._breaks, answered, packet, early)

    def _changed(self, stream: Stream, packet: Seen) -> None:
        """Judge a request whose source port or migration state has changed."""
        form = packet.form
        if not _near(packet.psn, stream) or self.connections.migrates:
            return  # it may belong to a new connection on the same QPNs, or use the alternate path
        migreq, port = stream.constant >> 16 & 1, stream.constant >> 17
        if migreq != form.constant >> 16 & 1:
            self._find(stream.name, "migreq", f"MigReq {1 - migreq}, and {migreq} before")
        if port != form.sport:
            self._port_changed(stream, port, form.sport)

    def _port_changed(self, stream: Stream, before: int, port: int) -> None:
        if not self.connections.migrates:
            self._find(stream.name, "source-port", f"source port {port}, and {before} before")

    def _settle(self, last: bool = False) -> None:
        """Judge the oldest early response, which has waited long enough.

        If the stream has moved past its PSN, the capture lacks the request. If the stream has not reached its PSN, the
        response is wrong.
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
        """End the capture: judge everything that was held for later frames."""
        self._hold.closed = True
        if self._hold.active:
            self._release()
        while self._early:
            self._settle(last=True)
        for stream in self.streams():
            if stream.ahead is not None:
                finish_order(self._breaks, stream)

    def _datagram(self, stream: Stream, packet: Seen, payload: bytes) -> None:
        if packet.size > MAX_PATH_MTU:
            self._find(stream.name, "ud-size", f"{packet.size} bytes")
        if stream.key[2] != GSI_QPN:
            return
        (qkey,) = _QKEY.unpack_from(packet.header)
        if qkey != GSI_QKEY:
            self._find(stream.name, "gsi-qkey", f"Q_Key {qkey:#010x}; that of QP1 is {GSI_QKEY:#010x}")
        if not packet.tail:
            return
        mad = payload[packet.form.header_bytes : len(payload) - ICRC_BYTES]
        if len(mad) == MAD_BYTES:
            base, management, version = mad[:3]
            if base != MAD_BASE_VERSION or (management == CLASS_CM and version != CM_CLASS_VERSION):
                detail = f"base version {base}, class {management:#04x} has version {version}"
                self._find(stream.name, "mad-version", detail)
        self.connections.management(stream.key, mad)

    def _notification(self, stream: Stream, packet: Seen, payload: bytes) -> None:
        dqpn = packet.form.dqpn
        stream.facts.add("CNPs", packet.frame)
        if packet.size != _CNP_SIZE or any(payload[12:28]) or not dqpn & 0x4000_0000:
            self._find(stream.name, "cnp-form", f"{packet.size} bytes, BECN {dqpn >> 30 & 1}")
        gap = packet.time_ns - stream.cnp_ns
        # all CNPs of a flow are alike: only their idents distinguish a second one from a duplicate by the network
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


def _near(psn: int, stream: Stream) -> bool:
    """Return whether a PSN is close to a stream's newest."""
    return stream.highest >= 0 and -KEEP <= psn_diff(psn, stream.highest) <= KEEP
