"""Which packets belong together: streams by addresses and queue pair number, and which two make a connection.

A packet names only the queue pair that it goes to. So which requests a response answers is known from connection
management where the capture holds it, and else found from the PSNs: of the streams towards the responder, the one that
has sent the PSN that it names, and the next, until one is left.
"""

from __future__ import annotations

from rnic.judge.stream import Stream
from rnic.spec.limits import MTU_BYTES
from rnic.wire.cm import REP, REQ
from rnic.wire.mad import CLASS_CM, CM_REP, CM_REQ, MAD, MAD_BYTES

MAX_STREAMS = 65_536
MAX_REQUESTS = 4_096
Key = tuple[bytes, bytes, int]


def _text(address: bytes) -> str:
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
        """REQs that were seen: by sender and communication ID, its addresses, QPN, PSN and path MTU."""

    @staticmethod
    def name(src: bytes, dst: bytes, qpn: int) -> str:
        """What findings call a stream."""
        return f"{_text(src)} -> {_text(dst)} QP {qpn}"

    def stream(self, src: bytes, dst: bytes, qpn: int) -> Stream:
        """The stream of a packet."""
        key = (src, dst, qpn)
        stream = self.streams.get(key)
        if stream is None:
            if len(self.streams) >= MAX_STREAMS:
                self._drop(next(iter(self.streams.values())))
            stream = self.streams[key] = Stream(self.name(*key), key)
            self._between.setdefault((src, dst), {})[qpn] = stream
        return stream

    def _drop(self, stream: Stream) -> None:
        src, dst, qpn = stream.key
        del self.streams[stream.key]
        del self._between[src, dst][qpn]
        if stream.peer is not None:
            stream.peer.peer = None

    def answered(self, stream: Stream, psn: int) -> Stream | None:
        """The requests that a response on ``stream`` answers, or ``None`` while that is open."""
        if stream.peer is not None:
            return stream.peer
        src, dst, _ = stream.key
        towards = self._between.get((dst, src), {})
        fitting = {
            other
            for other in towards.values()
            if other.peer is None and (psn in other.history or other.read_at(psn) is not None)
        }
        stream.candidates = fitting if stream.candidates is None else stream.candidates & fitting or fitting
        if len(stream.candidates) == 1:
            (peer,) = stream.candidates
            self._join(stream, peer)
            return peer
        return None

    @staticmethod
    def _join(one: Stream, other: Stream) -> None:
        for stream in (one, other):
            if stream.peer is not None:
                stream.peer.peer = None
        one.peer, other.peer = other, one
        one.candidates = other.candidates = None

    def management(self, key: Key, mad: bytes) -> None:
        """A management datagram: of connection management, REQ and REP tell numbers, PSNs and path MTU (IBA ch. 12)."""
        if len(mad) != MAD_BYTES or mad[1] != CLASS_CM:
            return
        attribute = MAD.get(mad, "attr_id")
        message = mad[MAD.size :]
        src, dst, _ = key
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
            # each side says with which PSN the other begins
            psns = answer["psn"], client_psn
            self.connect((client, server, answer["qpn"]), (server, client, client_qpn), psns, mtu)

    def connect(self, there: Key, back: Key, psns: tuple[int, int], mtu: int) -> None:
        """A new connection, as connection management or whoever made it says.

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
