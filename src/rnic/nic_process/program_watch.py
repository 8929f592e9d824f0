"""Packets and operations of programs that run their own data path, for tools that watch the device.

Such a program goes on by itself, and hands its packets over by the rings of captures
(:mod:`rnic.nic_process.capture_rings`) meanwhile. It does not tell when it fetched a descriptor or completed it. So an
operation begins with its first packet, and ends with the acknowledgment or response that covers its last one; that of
an unreliable service ends with its last packet.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rnic.spec.opcodes import UC, UD
from rnic.spec.psn import psn_add, psn_diff
from rnic.wire.bursts import Buffer
from rnic.wire.ethernet import TYPE_IPV4
from rnic.wire.opcode import OPCODES, OpcodeRow

if TYPE_CHECKING:
    from rnic.device.queue_pair import DeviceQp
    from rnic.runtime.tap import Tap

_BLOCK = struct.Struct("<IIIIIII")
_TYPE = slice(12, 14)
"""Bytes of the EtherType."""
_BTH = 12
_SOURCE_QP = slice(17, 20)
"""Bytes of the source QPN of a DETH that follows a BTH."""
_DMA_LENGTH = 24
"""Offset of the length of a RETH that follows a BTH."""
_NAMES = {"COMPARE_SWAP": "CMP_SWAP", "READ_REQUEST": "READ"}
"""Operations whose packets are called otherwise."""
_ICRC = 4
_ATOMIC_BYTES = 8
_ACK = 0
"""Of the upper bits of a syndrome."""
_MAX_OPEN = 2_048
"""Most operations in progress that are remembered, of one queue pair."""
_MAX_SENDERS = 256
"""Queue pairs whose operations are remembered; with more, all are forgotten now and then."""
_GAP_NS = 1_000_000
"""A pause after which operations in progress are forgotten, if packets have been left out."""
_INDEX_EVERY_NS = 10_000_000
_UNRELIABLE = (UC, UD)


class _Operation:
    """A message of a queue pair."""

    __slots__ = ("began_ns", "bytes", "index", "last", "next", "psn", "reads")

    def __init__(self, psn: int, began_ns: int, index: int) -> None:
        self.psn = psn
        self.began_ns = began_ns
        self.index = index
        self.bytes = 0
        self.next = psn
        """PSN of the packet that is to come next."""
        self.last: int | None = None
        """PSN of its last packet, once that was sent."""
        self.reads = False
        """True if a response ends it."""


class _Sender:
    """Operations of one queue pair in progress."""

    def __init__(self) -> None:
        self.open: list[_Operation] = []
        """In the order of their PSNs."""
        self.count = 0
        self.ended: int | None = None
        """PSN of the last packet of the operation that ended last."""

    def find(self, psn: int, now_ns: int, start: bool) -> _Operation | None:
        """Return the operation that a packet belongs to; a new one if it starts one. ``None`` if it is too old."""
        at = len(self.open)
        while at and psn_diff(psn, self.open[at - 1].psn) < 0:
            at -= 1
        if at and (not start or self.open[at - 1].psn == psn):
            return self.open[at - 1]
        if not start or (self.ended is not None and psn_diff(psn, self.ended) <= 0):
            return None
        if len(self.open) >= _MAX_OPEN:
            del self.open[0]
            at = max(0, at - 1)
        operation = _Operation(psn, now_ns, self.count)
        self.open.insert(at, operation)
        self.count += 1
        return operation


class ProgramWatch:
    """Passes the packets and operations of programs with slots to a tap. It follows a recording.

    Args:
        tap: of the device.
        address: of the device.
        qps: returns the queue pairs of the slots.
        leave: called once if no session is left.
    """

    snap = 64
    """All headers fit."""

    def __init__(
        self,
        tap: Tap,
        address: bytes,
        qps: Callable[[], Iterable[tuple[int, DeviceQp]]],
        leave: Callable[[ProgramWatch], None],
    ) -> None:
        self._tap = tap
        self._address = address
        self._qps = qps
        self._leave = leave
        self._senders: dict[int, _Sender] = {}
        self._known: set[int] = set()
        self._begun = {number for number, qp in qps() if qp.requester.ssn}
        """Queue pairs that have sent before: their next operation is not their first."""
        self._numbers: dict[tuple[bytes, int], int] = {}
        """Queue pair numbers of slots by the peer's address and queue pair number."""
        self._numbered_ns = -2 * _INDEX_EVERY_NS
        self._now_ns = 0
        """The time. That of packets comes from programs."""
        self._lacks = False
        """True if packets have been left out."""
        self._last_ns = 0
        """Time of the last packet."""

    def left_out(self, packets: int) -> None:
        """Note that packets are missing."""
        self._lacks = True

    def write_blocks(self, blocks: Buffer, packets: int) -> None:
        """Take the blocks of some packets of Ethernet."""
        now_ns = self._tap.clock()
        if not self._tap.is_watched(now_ns):
            self._leave(self)
            return
        self._now_ns, behind_ns = now_ns, now_ns - time.time_ns()
        view, at = memoryview(blocks), 0
        for _ in range(packets):
            _, size, _, high, low, kept, length = _BLOCK.unpack_from(view, at)
            frame = view[at + _BLOCK.size : at + _BLOCK.size + kept]
            at += size
            if int.from_bytes(frame[_TYPE], "big") == TYPE_IPV4:
                src, dst, bth = bytes(frame[26:30]), bytes(frame[30:34]), 42
            else:
                src, dst, bth = bytes(frame[22:38]), bytes(frame[38:54]), 62
            self._packet((high << 32 | low) + behind_ns, src, dst, frame[bth:], length - bth)

    def _packet(self, now_ns: int, src: bytes, dst: bytes, data: memoryview, length: int) -> None:
        row = OPCODES[data[0]] if len(data) >= _BTH else None
        if row is None or len(data) < row.header_bytes:
            return
        if self._lacks and now_ns - self._last_ns > _GAP_NS:
            self._senders.clear()  # what ended in the gap would seem to end behind it
        self._last_ns = now_ns
        dqpn, psn = int.from_bytes(data[5:8], "big"), int.from_bytes(data[9:12], "big")
        if src == self._address:
            qpn = int.from_bytes(data[_SOURCE_QP], "big") if row.deth else self._own(dst, dqpn)
            if self._is_known(qpn):
                self._tap.note(now_ns, "sent", qpn, row, data, length, src, dst)
                if row.send or row.write or (row.request and row.resource):
                    self._request(now_ns, qpn, row, psn, data, length)
        if dst == self._address and self._is_known(dqpn):
            self._tap.note(now_ns, "received", dqpn, row, data, length, src, dst)
            if row.response:
                self._response(now_ns, dqpn, row, psn, data)

    # -------------------------------------------------------------------------------- queue pairs

    def _look(self) -> bool:
        """Find the queue pairs again, if it is some time since the last."""
        if self._now_ns - self._numbered_ns < _INDEX_EVERY_NS:
            return False
        self._numbered_ns = self._now_ns
        found = list(self._qps())
        self._known = {number for number, _ in found}
        self._numbers = {(qp.flow.dst, qp.ctx.remote_qpn): number for number, qp in found if qp.flow is not None}
        return True

    def _is_known(self, qpn: int) -> bool:
        return qpn in self._known or (qpn > 0 and self._look() and qpn in self._known)

    def _own(self, peer: bytes, dqpn: int) -> int:
        """Return the queue pair of a slot that sends to this one of the peer's; 0 if unknown."""
        found = self._numbers.get((peer, dqpn))
        if found is None and self._look():
            found = self._numbers.get((peer, dqpn))
        return found or 0

    # -------------------------------------------------------------------------------- operations

    def _sender(self, qpn: int) -> _Sender:
        sender = self._senders.get(qpn)
        if sender is None:
            if len(self._senders) >= _MAX_SENDERS:
                self._senders.clear()
            sender = self._senders[qpn] = _Sender()
        return sender

    def _request(self, now_ns: int, qpn: int, row: OpcodeRow, psn: int, data: memoryview, length: int) -> None:
        sender = self._sender(qpn)
        if row.start and row.service in _UNRELIABLE:
            sender.open.clear()  # no acknowledgment ends what lacks a packet
        operation = sender.find(psn, now_ns, row.start)
        if operation is None or operation.next != psn:
            return  # it began before, or the packet is sent again
        operation.next = psn_add(psn, 1)
        at = _DMA_LENGTH + 4 * (row.xrceth + row.feth)
        if row.reth:
            operation.bytes = int.from_bytes(data[at : at + 4], "big")
        elif row.send:
            operation.bytes += max(0, length - row.header_bytes - _ICRC - (data[1] >> 4 & 3))
        elif row.resource:
            operation.bytes = _ATOMIC_BYTES
        if not row.end:
            return
        operation.last, operation.reads = psn, row.resource
        name = row.name.split("_", 1)[1].replace("_ONLY", "").replace("_LAST", "")
        fields = {
            "opcode": _NAMES.get(name, name),
            "bytes": operation.bytes,
            "index": operation.index,
            "psn": operation.psn,
        }
        if qpn not in self._begun and row.service not in _UNRELIABLE:
            self._begun.add(qpn)
            fields["cold"] = True
        self._tap.note_operation(operation.began_ns, "fetched", qpn, operation.psn, fields)
        if row.service in _UNRELIABLE:
            self._complete(now_ns, qpn, sender)

    def _response(self, now_ns: int, qpn: int, row: OpcodeRow, psn: int, data: memoryview) -> None:
        sender = self._senders.get(qpn)
        if sender is None:
            return
        answers = row.end and (row.read_response or row.atomicacketh)
        covered = row.aeth and data[_BTH] >> 5 == _ACK
        while sender.open and (covered or row.read_response):
            operation, later = sender.open[0], sender.open[1:2]
            if operation.last is None:
                lacks = psn_diff(psn, operation.next) >= 0
            else:
                lacks = operation.reads and bool(later) and psn_diff(psn, later[0].psn) >= 0
            if lacks:  # packets of it were left out
                del sender.open[0]
                continue
            if operation.last is None or psn_diff(psn, operation.last) < 0 or (operation.reads and not answers):
                break
            self._complete(now_ns, qpn, sender)

    def _complete(self, now_ns: int, qpn: int, sender: _Sender) -> None:
        operation = sender.open.pop(0)
        sender.ended = operation.last
        fields: dict[str, Any] = {"index": operation.index, "psn": operation.psn}
        self._tap.note_operation(now_ns, "completed", qpn, operation.psn, fields)


__all__ = ["ProgramWatch"]
