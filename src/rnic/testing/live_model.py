"""Model of the far end of a live connection: PSNs, open message, outstanding requests, keys, receives, memory.

:class:`LiveModel` makes packets that are valid in the current state, and follows their effects.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Mapping
from copy import copy
from errno import ENOMEM
from typing import Any, NoReturn, Self

from rnic.spec.errors import VerbsError
from rnic.spec.limits import GRH_BYTES
from rnic.spec.opcodes import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    COMPARE_SWAP,
    FETCH_ADD,
    RC,
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMM,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMM,
    UC,
    UD,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMM,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMM,
)
from rnic.spec.psn import PSN_MASK, psn_count, psn_diff
from rnic.spec.syndromes import CREDITS_INVALID
from rnic.testing.net import SimNet
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.cq import CQ
from rnic.verbs.memory import AH, MR, PD
from rnic.verbs.qp import QP
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES
from rnic.wire.packet import Packet, parse

MTU = 256
SLOT = 4 * MTU
SLOTS = 12
_PAGE = 4096
WRITTEN, READABLE, RECEIVES, RESULTS, FOREIGN = (_PAGE * (1 + 2 * place) for place in range(5))
ARENA = _PAGE * 11
REGION = _PAGE
QKEY = 0x1111_1111
OTHER_QPN = 0xABCDE
_TYPES = {"RC": (e.IBV_QPT_RC, RC), "UC": (e.IBV_QPT_UC, UC), "UD": (e.IBV_QPT_UD, UD)}
_CQ_DEPTH = 1024
_INLINE = 64


class FindingError(AssertionError):
    """The NIC did what the packet does not allow; the message says how to reproduce it."""


class Right:
    """A packet that is valid now: how to build it, and its effects."""

    __slots__ = ("after", "effects", "fields", "opcode", "packets", "reads", "response", "served", "takes")

    opcode: int
    fields: dict[str, Any]

    def __init__(self, opcode: int, *, response: bool = False, **fields: Any) -> None:
        self.opcode = opcode
        self.fields = fields
        self.response = response
        self.effects: list[tuple[int, bytes]] = []
        """Stores of the packet: offset in the arena, and bytes."""
        self.packets = 1
        """Number of PSNs by which the expected PSN moves."""
        self.after: tuple[str, int, int] = ("", 0, 0)
        """The message that is open after it: kind, offset of its next byte, bytes still to come."""
        self.takes = False
        """True if it completes a receive."""
        self.reads = False
        self.served: tuple[int, int] | None = None
        """For a response: PSN up to which requests are done, and response packets received of the next request."""

    def alike(self, effects: list[tuple[int, bytes]], **fields: Any) -> Right:
        """Return a copy with other fields and other stores."""
        made = copy(self)
        made.fields, made.effects = self.fields | fields, effects
        return made


class Request:
    """A request of the NIC that waits for its response."""

    __slots__ = ("got", "kind", "length", "packets", "psn", "to")

    def __init__(self, psn: int, kind: str, packets: int, length: int, to: int) -> None:
        self.psn, self.kind, self.packets, self.length, self.to = psn, kind, packets, length, to
        self.got = 0


class LiveModel:
    """The far end of one queue pair of a private NIC, and the packets that are valid for it now.

    Args:
        service: ``"RC"``, ``"UC"`` or ``"UD"``.
        seed: seed of all random choices.
        ipv6: use IPv6 addresses.
        seen: the link shows IP IDs.
        selective: the connection has selective repeat (``QPAttr.selective_repeat``).
        settings: further fields of :class:`~rnic.device.config.NicConfig`.

    ``digest`` is a CRC over everything that the NIC answered and stored, equal for equal seeds.
    """

    ipv6: bool
    stranger: Flow
    """A path from another address than the peer's."""
    open: tuple[str, int, int]
    """The open message, as in :attr:`Right.after`."""

    def __init__(
        self,
        service: str = "RC",
        seed: int = 1,
        *,
        ipv6: bool = False,
        seen: bool = True,
        selective: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.service = service
        self.seed = seed
        self.rng = random.Random(seed)
        self.digest = 0
        self.steps = 0
        self.reconnects = 0
        self.ipv6 = ipv6
        self.mtu = MTU
        self._kind, self._bits = _TYPES[service]
        self._seen = seen or ipv6
        self._selective = selective
        self.net = SimNet(1, seed=seed, ipv6=ipv6, settings=settings)
        self.node = self.net.nodes[0]
        self.nic = self.node.nic
        here = self.nic.config.address
        there = here[:-1] + b"\xc8"
        self._link = self.net.outsider(there)
        self.flow = Flow(there, here, 50_000)
        self.stranger = Flow(here[:-1] + b"\xc9", here, 50_000)
        ctx = self.node.ctx
        self._pd, foreign = PD(ctx), PD(ctx)
        self._cq = CQ(ctx, _CQ_DEPTH)
        self.arena = bytearray(self.rng.randbytes(ARENA))
        self._whole = MR(foreign, self.arena, e.IBV_ACCESS_LOCAL_WRITE)  # so that all regions are in one mapping
        self.base = self._whole.buf
        both = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ
        every = both | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC
        self.written = self._register(self._pd, WRITTEN, every)
        self.readable = self._register(self._pd, READABLE, both)
        self.receives = self._register(self._pd, RECEIVES, e.IBV_ACCESS_LOCAL_WRITE)
        self.results = self._register(self._pd, RESULTS, e.IBV_ACCESS_LOCAL_WRITE)
        self.foreign = self._register(foreign, FOREIGN, every)
        self.locked = (self.receives, self.results, self.foreign, self._whole)
        """Regions that a peer must not reach: without remote rights, or of another protection domain."""
        self.shadow = bytearray(self.arena)
        """Expected contents of the memory."""
        self.now = 1_000_000
        cap = QPCap(128, 512, 2, 1, _INLINE)
        self.qp = QP(self._pd, QPInitAttr(self._kind, None, cap, self._cq, self._cq))
        self.idle = QP(self._pd, QPInitAttr(self._kind, None, QPCap(1, 1, 1, 1, 0), self._cq, self._cq))
        """A queue pair that accepts no packets."""
        self.idle.modify(QPAttr(), _INIT[service])
        self._connect()

    def _register(self, pd: PD, at: int, access: int) -> MR:
        return MR(pd, memoryview(self.arena)[at : at + REGION], access)

    # -------------------------------------------------------------------------------- the connection

    def _connect(self) -> None:
        """Bring the queue pair from any state to RTS, with new PSNs."""
        rng = self.rng
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        self._poll()
        self.digest = zlib.crc32(self.arena, self.digest)
        self.epsn = self._first_psn()
        attr = QPAttr()
        attr.path_mtu, attr.rq_psn, attr.sq_psn = e.IBV_MTU_256, self.epsn, rng.randrange(PSN_MASK + 1)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 1
        attr.qkey, attr.dest_qp_num, attr.gso = QKEY, OTHER_QPN, rng.random() < 0.5
        attr.selective_repeat = self._selective
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        attr.ah_attr = AHAttr(GlobalRoute(GID(self.flow.src)), udp_dport=self._link.port)
        self.qp.to_rts(attr)
        self.device_qp = self.nic.qps[self.qp.qp_num]
        self.open = ("", 0, 0)
        self.taken: int | None = None
        """Offset of the receive that an open SEND fills."""
        self.posted: deque[int] = deque()
        self.requests: list[Request] = []
        self.sent_psn = attr.sq_psn
        self.unsure = False
        """True if the NIC may have retransmitted READs: the response that it expects is unknown."""
        self._slots = 0
        self._outstanding: list[tuple[str, int, int]] = []
        self.reconnects += 1

    def _first_psn(self) -> int:
        """Return the first of the peer's PSNs."""
        edge = self.rng.random() < 0.3
        return (PSN_MASK - self.rng.randrange(20)) & PSN_MASK if edge else self.rng.randrange(PSN_MASK + 1)

    def _post(self) -> None:
        """Post receives for any message, and sometimes a request of the NIC."""
        while len(self.posted) < SLOTS - 2:
            at = RECEIVES + self._slots % 4 * SLOT
            self._slots += 1
            self.posted.append(at)
            self.qp.post_recv(RecvWR(at, 1, [SGE(self.base + at, SLOT, self.receives.lkey)]))
        rng = self.rng
        if len(self.requests) > 3 or rng.random() < 0.7:
            return
        if self._bits == UD:
            self._post_datagram()
            return
        kind = rng.choice(("WRITE", "SEND", "READ", "ATOMIC") if self._bits == RC else ("WRITE", "SEND"))
        slot = RESULTS + rng.randrange(4) * SLOT
        wr = SendWR(0, _POSTS[kind], send_flags=e.IBV_SEND_SIGNALED)
        length = 8 if kind == "ATOMIC" else rng.choice((0, 1, 8, MTU, MTU + 1, 3 * MTU, SLOT))
        if kind in ("READ", "ATOMIC"):
            wr.sg = [SGE(self.base + slot, length, self.results.lkey)]
            self._outstanding.append((kind, slot, length))
        else:
            self._vary(wr, kind, length)
        if kind == "ATOMIC":
            wr.set_wr_atomic(1, 0x1000, 1, 2)
        else:
            wr.set_wr_rdma(1, 0x1000)
        try:
            self.qp.post_send(wr)
        except VerbsError as error:
            if error.errno != ENOMEM:
                raise
            if kind in ("READ", "ATOMIC"):  # unanswered READs hold up all later requests
                self._outstanding.pop()

    def _vary(self, wr: SendWR, kind: str, length: int) -> None:
        """Set the bytes of a SEND or WRITE: one SGE, a list or inline data, optionally with immediate data."""
        rng = self.rng
        parts = [length]
        if rng.random() < 0.3:
            parts = [length // 2, length - length // 2]
        elif length <= _INLINE and rng.random() < 0.5:
            wr.send_flags |= e.IBV_SEND_INLINE
        wr.sg = [SGE(self.base + READABLE + place, part, self.readable.lkey) for place, part in enumerate(parts)]
        if rng.random() < 0.3:
            wr.opcode = _WITH_IMM[kind]
            wr.imm_data = rng.getrandbits(32)
        if rng.random() < 0.2:
            wr.send_flags |= e.IBV_SEND_SOLICITED
        if rng.random() < 0.1:
            wr.send_flags &= ~e.IBV_SEND_SIGNALED

    def _post_datagram(self) -> None:
        """Post a datagram to the peer, or to another address."""
        rng = self.rng
        wr = SendWR(0, e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        self._vary(wr, "SEND", rng.choice((0, 1, 8, 100, MTU)))
        path = GlobalRoute(GID(rng.choice((self.flow, self.stranger)).src), traffic_class=rng.choice((0, 0, 8)))
        wr.set_wr_ud(AH(self._pd, AHAttr(path, udp_dport=self._link.port)), OTHER_QPN, rng.choice((QKEY, 1 << 31)))
        self.qp.post_send(wr)

    def _poll(self) -> None:
        self.net.driving = True  # keep the net from advancing time
        while self._cq.poll(64)[0]:
            pass
        self.net.driving = False

    def _produce(self) -> None:
        """Let the NIC send, and note its requests."""
        self._make()
        while True:
            got = self._link.receive(64)
            for burst in got:
                for start in range(0, burst.length, burst.segment):
                    self._note(burst.buf[start : min(start + burst.segment, burst.length)])
            if not got:
                return

    def _make(self) -> None:
        """Let the NIC send."""
        nic = self.nic
        if nic.has_work():
            bursts = nic.produce(self.now)
            if bursts:
                self.node.link.send(bursts)

    def _note(self, view: memoryview) -> None:
        """Check that a packet of the NIC is well formed; if it is a new request, remember it."""
        self.digest = zlib.crc32(view, self.digest)
        packet = parse(view)
        if not isinstance(packet, Packet):
            self._find(f"the NIC sent what is not a packet: {packet}")
        if packet.row.response or self._bits != RC:
            return
        if psn_diff(packet.psn, self.sent_psn) < 0:
            self.unsure = True  # a retransmission
            return
        kind, packets, length, to = "DATA", 1, 0, 0
        if packet.row.operation == READ_REQUEST:
            kind, length = "READ", packet.dma_length
            packets = psn_count(length, MTU)
        elif packet.row.atomic:
            kind = "ATOMIC"
        if kind != "DATA":
            posted, to, whole = self._outstanding[0]
            if posted != kind:
                self._find(f"the NIC sent a {kind} where a {posted} was posted")
            if length < whole and kind == "READ":  # a long READ goes out as several requests
                self._outstanding[0] = (posted, to + length, whole - length)
            else:
                del self._outstanding[0]
        self.requests.append(Request(packet.psn, kind, packets, length, to))
        self.sent_psn = packet.psn + packets & PSN_MASK

    # --------------------------------------------------------------------------------- valid packets

    def right(self) -> Right:
        """Return a packet that is valid now."""
        if self._bits == UD:
            return self._datagram()
        if self.requests and self.rng.random() < 0.5:
            return self._response()
        return self._request()

    def _datagram(self) -> Right:
        rng = self.rng
        data = rng.randbytes(rng.choice((0, 1, 4, 100, MTU)))
        made = Right(UD | rng.choice((SEND_ONLY, SEND_ONLY_IMM)), payload=data, qkey=QKEY, sqpn=17, imm=5)
        made.takes = True
        made.effects.append((self.posted[0] + GRH_BYTES, data))
        return made

    def _request(self) -> Right:
        kind, at, left = self.open
        if kind:
            return self._rest(kind, at, left)
        rng = self.rng
        choice = rng.random()
        if self._bits == RC and choice < 0.12:
            length = rng.choice((0, 1, MTU, MTU + 5, 3 * MTU))
            region, start = rng.choice(((self.written, WRITTEN), (self.readable, READABLE)))
            at = start + rng.randrange(REGION - length + 1)
            made = Right(READ_REQUEST, va=self.base + at, rkey=region.rkey, dma_length=length)
            made.packets = psn_count(length, MTU)
            made.reads = True
            return made
        if self._bits == RC and choice < 0.22:
            return self._atomic()
        return self._rest(
            "WRITE" if choice < 0.65 else "SEND", -1, rng.choice((0, 1, 3, 8, 64, 255, 256, 257, 700, SLOT))
        )

    def _atomic(self) -> Right:
        rng = self.rng
        at = WRITTEN + 8 * rng.randrange(REGION // 8)
        old = int.from_bytes(self.shadow[at : at + 8], "little")
        if rng.random() < 0.5:
            add = rng.getrandbits(64)
            made = Right(FETCH_ADD, va=self.base + at, rkey=self.written.rkey, swap_add=add)
            new = old + add & 0xFFFF_FFFF_FFFF_FFFF
        else:
            new = rng.getrandbits(64)
            hit = rng.random() < 0.5
            made = Right(COMPARE_SWAP, va=self.base + at, rkey=self.written.rkey, swap_add=new, compare=old ^ (not hit))
            new = new if hit else old
        made.effects.append((at, new.to_bytes(8, "little")))
        made.reads = True
        return made

    def _rest(self, kind: str, at: int, left: int) -> Right:
        """Return the next packet of a WRITE or SEND; of a new one if ``at`` is -1."""
        rng = self.rng
        start = at < 0
        if start:
            at = WRITTEN + rng.randrange(REGION - left + 1) if kind == "WRITE" else self.posted[0]
        size = min(left, MTU)
        end = size == left
        imm = end and rng.random() < 0.3
        first, middle, last, last_imm, only, only_imm = _OPERATIONS[kind]
        operation = (only_imm if imm else only) if start and end else first if start else middle
        if end and not start:
            operation = last_imm if imm else last
        data = rng.randbytes(size)
        made = Right(self._bits | operation, payload=data)
        if start and kind == "WRITE":
            made.fields.update(va=self.base + at, rkey=self.written.rkey, dma_length=left)
        if imm:
            made.fields["imm"] = rng.getrandbits(32)
        made.effects.append((at, data))
        made.takes = end and (kind == "SEND" or bool(imm))
        if not end:
            made.after = (kind, at + size, left - size)
        return made

    def _response(self) -> Right:
        """Return an ACK of some requests before the oldest READ or atomic, or the response to that READ or atomic."""
        rng = self.rng
        place = next((n for n, request in enumerate(self.requests) if request.kind != "DATA"), None)
        ahead = self.requests[: place if place is not None else len(self.requests)]
        msn = rng.getrandbits(24)
        if ahead and (place is None or rng.random() < 0.5):
            psn = rng.choice(ahead).psn
            made = Right(ACKNOWLEDGE, response=True, psn=psn, syndrome=CREDITS_INVALID, msn=msn)
            made.served = (psn + 1 & PSN_MASK, 0)
            return made
        assert place is not None
        return self._answer(self.requests[place])

    def _answer(self, request: Request) -> Right:
        """Return the next response packet of a READ or atomic."""
        rng = self.rng
        msn = rng.getrandbits(24)
        if request.kind == "ATOMIC":
            orig = rng.getrandbits(64)
            made = Right(
                ATOMIC_ACKNOWLEDGE, response=True, psn=request.psn, syndrome=CREDITS_INVALID, msn=msn, orig=orig
            )
            made.effects.append((request.to, orig.to_bytes(8, "little")))
            made.served = (request.psn + 1 & PSN_MASK, 0)
            return made
        offset = request.got * MTU
        data = rng.randbytes(min(MTU, request.length - offset))
        last = request.got + 1 == request.packets
        if request.got:
            opcode = READ_RESPONSE_LAST if last else READ_RESPONSE_MIDDLE
        else:
            opcode = READ_RESPONSE_ONLY if last else READ_RESPONSE_FIRST
        psn = request.psn + request.got & PSN_MASK
        made = Right(opcode, response=True, psn=psn, syndrome=CREDITS_INVALID, msn=msn, payload=data)
        made.effects.append((request.to + offset, data))
        made.served = (psn + 1 & PSN_MASK, 0) if last else (request.psn, request.got + 1)
        return made

    def _accept(self, made: Right) -> None:
        """Apply the effects of a valid packet to the model."""
        for at, data in made.effects:
            self.shadow[at : at + len(data)] = data
        if made.response:
            assert made.served is not None
            psn, got = made.served
            while self.requests:
                oldest = self.requests[0]
                if psn_diff(oldest.psn + oldest.packets & PSN_MASK, psn) > 0:
                    oldest.got = got
                    break
                del self.requests[0]
            if not self.requests:
                self.unsure = False
            return
        if self._bits == UD:
            at = self.posted.popleft()
            self.shadow[at : at + GRH_BYTES] = self.arena[at : at + GRH_BYTES]
            return
        self.epsn = self.epsn + made.packets & PSN_MASK
        self.open = made.after
        if made.takes:
            self.posted.popleft()

    def _where(self) -> str:
        return f"LivePeer({self.service!r}, {self.seed}), step {self.steps}"

    def _find(self, what: str) -> NoReturn:
        raise FindingError(f"{self._where()}: {what}")

    def close(self) -> None:
        """Close the NIC."""
        self.net.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def say(made: Right) -> str:
    """Return a description of the packet, without its payload."""
    row = OPCODES[made.opcode]
    return f"{row.name if row else made.opcode} {made.fields | {'payload': len(made.fields.get('payload', b''))}}"


def size_of(made: Right) -> int:
    """Return the number of bytes of the packet, pad and ICRC included."""
    row = OPCODES[made.opcode]
    assert row is not None
    return row.header_bytes + (len(made.fields.get("payload", b"")) + 3 & ~3) + 4


_INIT_OF_ALL = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
_INIT = {
    "RC": _INIT_OF_ALL | e.IBV_QP_ACCESS_FLAGS,
    "UC": _INIT_OF_ALL | e.IBV_QP_ACCESS_FLAGS,
    "UD": _INIT_OF_ALL | e.IBV_QP_QKEY,
}
_POSTS = {
    "WRITE": e.IBV_WR_RDMA_WRITE,
    "SEND": e.IBV_WR_SEND,
    "READ": e.IBV_WR_RDMA_READ,
    "ATOMIC": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
_WITH_IMM = {"WRITE": e.IBV_WR_RDMA_WRITE_WITH_IMM, "SEND": e.IBV_WR_SEND_WITH_IMM}
_OPERATIONS = {
    "WRITE": (WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM),
    "SEND": (SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM),
}
