"""Group packets into streams by addresses and queue pair number, and pair two streams to a connection.

A packet names only its destination queue pair. Connection management, if captured, tells which requests a response
answers. Otherwise the PSNs tell: candidates are the streams toward the responder that sent the PSN of a response, and
each further response narrows them down until one is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from rnic.judge.stream import Pair, Stream
from rnic.spec.limits import MTU_BYTES
from rnic.spec.opcodes import RC, XRC
from rnic.wire.cm import REP, REQ
from rnic.wire.mad import CLASS_CM, CM_LAP, CM_REP, CM_REQ, MAD, MAD_BYTES

MAX_STREAMS = 65_536
MAX_REQUESTS = 4_096
MAX_CANDIDATES = 64
"""Candidate streams that are remembered for responses; more of them tell almost nothing."""
Key = tuple[bytes, bytes, int]


def path_text(address: bytes) -> str:
    """Return an IP address or GID, or a LID of native InfiniBand, as text."""
    if len(address) == 2:
        return f"LID {int.from_bytes(address, 'big')}"
    if len(address) == 4:
        return ".".join(map(str, address))
    from rnic.spec.addresses import address_text  # noqa: PLC0415 - not needed for most captures

    return address_text(address)


class Connections:
    """Streams, the newest :data:`MAX_STREAMS` of them."""

    def __init__(self) -> None:
        self.streams: dict[Key, Stream] = {}
        self._between: dict[tuple[bytes, bytes], dict[int, Stream]] = {}
        self._requests: dict[tuple[bytes, int], tuple[bytes, bytes, int, int, int]] = {}
        """REQs seen: addresses, QPN, PSN and path MTU, by sender and communication ID."""
        self.migrates = False
        """True if some connection has an alternate path to which it may migrate."""

    @staticmethod
    def name(src: bytes, dst: bytes, qpn: int) -> str:
        """Return the name of a stream in findings."""
        return f"{path_text(src)} -> {path_text(dst)} QP {qpn}"

    def stream(self, src: bytes, dst: bytes, qpn: int) -> Stream:
        """Return the stream of a packet."""
        key = (src, dst, qpn)
        stream = self.streams.get(key)
        if stream is None:
            if len(self.streams) >= MAX_STREAMS:
                self._drop(next(iter(self.streams.values())))
            others = self._between.setdefault((src, dst), {})
            pair = next((other.pair for other in others.values()), None) or Pair()
            stream = self.streams[key] = others[qpn] = Stream(self.name(*key), key, pair)
        return stream

    def _drop(self, stream: Stream) -> None:
        src, dst, qpn = stream.key
        del self.streams[stream.key]
        others = self._between[src, dst]
        del others[qpn]
        if not others:
            del self._between[src, dst]
        if stream.peer is not None:
            stream.peer.peer = None

    def answered(self, stream: Stream, psn: int) -> Stream | None:
        """Return the stream whose requests a response on ``stream`` answers, or ``None`` while that is unknown."""
        if stream.peer is not None:
            return stream.peer
        src, dst, _ = stream.key
        towards = self._between.get((dst, src), {})
        fitting = _fitting(towards, stream.candidates, psn) or _fitting(towards, towards, psn)
        stream.candidates = fitting if len(fitting) <= MAX_CANDIDATES else ()
        if len(fitting) == 1:
            peer = towards[fitting[0]]
            self._join(stream, peer)
            return peer
        return None

    @staticmethod
    def _join(one: Stream, other: Stream) -> None:
        for stream in (one, other):
            if stream.peer is not None:
                stream.peer.peer = None
        one.peer, other.peer = other, one
        one.candidates = other.candidates = ()

    def management(self, key: Key, mad: bytes) -> None:
        """Take a MAD: REQ and REP of the CM carry QPNs, PSNs and path MTU (IBA ch. 12)."""
        if len(mad) != MAD_BYTES or mad[1] != CLASS_CM:
            return
        attribute = MAD.get(mad, "attr_id")
        message = mad[MAD.size :]
        src, dst, _ = key
        self.migrates |= attribute == CM_LAP
        if attribute == CM_REQ:
            if len(self._requests) >= MAX_REQUESTS:
                self._requests.clear()
            asked = REQ.unpack(message)
            mtu = MTU_BYTES.get(asked["path_mtu"], 0)
            self._requests[src, asked["local_comm_id"]] = (src, dst, asked["qpn"], asked["psn"], mtu)
        elif attribute == CM_REP:
            answer = REP.unpack(message)
            request = self._requests.pop((dst, answer["remote_comm_id"]), None)
            if request is None:
                return
            client, server, client_qpn, client_psn, mtu = request
            # each side gives the PSN with which the other begins
            psns = answer["psn"], client_psn
            self.connect((client, server, answer["qpn"]), (server, client, client_qpn), psns, mtu)

    def connect(self, there: Key, back: Key, psns: tuple[int, int], mtu: int) -> None:
        """Add a connection, known from connection management or from the caller.

        Args:
            there: source, destination and destination queue pair of its packets in one direction.
            back: the same in the other direction.
            psns: the first PSN of the requests in either direction.
            mtu: path MTU in bytes, 0 for unknown.
        """
        streams = self.stream(*there), self.stream(*back)
        for stream, psn in zip(streams, psns, strict=True):
            stream.forget()
            stream.expected_psn = psn
            stream.mtu = mtu
        self._join(*streams)


def _fitting(towards: dict[int, Stream], numbers: Iterable[int], psn: int) -> tuple[int, ...]:
    """Return the queue pairs whose streams sent a PSN and have no peer yet, cut at a few more than needed."""
    streams = ((qpn, towards[qpn]) for qpn in numbers if qpn in towards)
    found = (qpn for qpn, other in streams if other.peer is None and _has_sent(other, psn))
    return tuple(islice(found, MAX_CANDIDATES + 1))


def _has_sent(stream: Stream, psn: int) -> bool:
    """Return whether a stream sent a request with this PSN that gets a response; UC and UD get none."""
    sent = stream.history.get(psn)
    if sent is not None:
        return sent.form.row.service in (RC, XRC)
    return stream.read_at(psn) is not None or stream.in_unknown_read(psn)
