"""Send work requests from fetch to completion: views of a queue pair's send WQEs.

The first eight words of a slot are the SQ entry as it was fetched. This copy is used, since software may write its ring
at any time; scatter lists and inline data stay in the ring and are checked at each use.
"""

from __future__ import annotations

from rnic.rings.sqe import SQ_ENTRY, SQ_ENTRY_ATOMIC, SQ_ENTRY_BIND, SQ_ENTRY_UD, SQ_ENTRY_XRC, SQE_BYTES
from rnic.spec.opcodes import WR_NOP, work_requests
from rnic.spec.psn import PSN_MASK
from rnic.state.queue_pair import PIECE, SEND_WQE
from rnic.state.record import Part, Record, Word, overlay, view

WRITES = work_requests("write")
ATOMICS = work_requests("atomic")
READS = work_requests("response")
"""Requests with responses: READs, atomics, FLUSH, ATOMIC WRITE."""
OPERANDS = work_requests("operand")
"""Requests without payload in memory: their data is in the send entry."""
TAKES_RECEIVE = work_requests("receive")

_AFRESH = bytes(SEND_WQE.size - SQE_BYTES)


@overlay(SQ_ENTRY, SQ_ENTRY_ATOMIC, SQ_ENTRY_XRC, SQ_ENTRY_UD, SQ_ENTRY_BIND)
@view(SEND_WQE)
class Message(Record):
    """One work request; ``index`` is its SQ index, and the fields of its SQ entry are attributes.

    ``first_psn`` and ``packets`` are the PSNs it uses; ``sent`` counts the packets sent since the last rewind.
    For a READ they count response packets, which use its PSNs, and ``received`` is the number of packets placed.
    ``begun`` is true once a packet of it has been sent; before, no PSN refers to it. A message without packets is
    local: ``executed`` is true once it has taken effect. ``status`` is its completion status, reported once everything
    before it has completed.
    """

    __slots__ = ("_at", "_memory", "index")

    entry_0: Word
    entry_1: Word
    entry_2: Word
    entry_3: Word
    entry_4: Word
    entry_5: Word
    entry_6: Word
    entry_7: Word
    first_psn: Word
    packets: Word
    sent: Word
    received: Word
    ssn: Word
    status: Word
    begun: Word
    executed: Word

    wqe_id: Part
    opcode: Part
    signaled: Part
    solicited: Part
    fence: Part
    inline: Part
    list: Part
    local_addr: Part
    remote_addr: Part
    length: Part
    lkey: Part
    rkey: Part
    imm: Part
    swap_add: Part
    compare: Part
    srqn: Part
    """Shared receive queue at the peer, of an XRC queue pair's entry."""

    # fields of a bind-window entry
    access: Part
    start: Part
    new_rkey: Part
    window: Part
    bind_length: Part

    # fields of a UD entry
    flow_label: Part
    tclass: Part
    sl: Part
    udp_dport: Part
    udp_sport: Part
    dqpn: Part
    hop_limit: Part
    qkey: Part

    def __init__(self, memory: memoryview, at: int, index: int) -> None:
        self._memory = memory
        self._at = at
        self.index = index

    def take(self, entry: memoryview | bytearray) -> None:
        """Copy the bytes of its SQ entry."""
        self._memory[self._at : self._at + SQE_BYTES] = entry

    def begin(self) -> None:
        """Reset its progress: nothing has been sent."""
        self._memory[self._at + SQE_BYTES : self._at + SEND_WQE.size] = _AFRESH

    def forget(self) -> None:
        """Turn a message whose entry could not be read into a no-op."""
        self.entry_0, self.entry_3 = WR_NOP << 32, 0

    @property
    def reads(self) -> bool:
        """True if its packets are responses: see :data:`READS`."""
        return self.opcode in READS

    @property
    def takes_receive(self) -> bool:
        """True if it consumes a receive entry of the peer."""
        return self.opcode in TAKES_RECEIVE

    @property
    def end_psn(self) -> int:
        """PSN that follows its last packet."""
        return self.first_psn + self.packets & PSN_MASK

    @property
    def due_psn(self) -> int:
        """PSN of the first missing response packet of a READ or atomic."""
        return self.first_psn + self.received & PSN_MASK

    @property
    def finished(self) -> bool:
        """True if all its packets are sent."""
        return self.sent >= self.packets and bool(self.packets or self.executed)

    @property
    def dgid(self) -> bytes:
        """Destination GID of a datagram."""
        return (self.entry_5 | self.entry_6 << 64).to_bytes(16, "little")


@view(PIECE)
class ReadPiece(Record):
    """One READ or atomic request on the wire that waits for responses; ``index`` is its message's.

    A long READ is sent as several requests with consecutive PSN ranges, so that the response packets in flight fit the
    receive buffer. ``got`` counts the response packets received in order. ``asked`` is true if its single response was
    split off a longer request and requested again alone.
    """

    __slots__ = ()

    index: Word
    first_psn: Word
    offset: Word
    packets: Word
    got: Word
    asked: Word

    def fill(self, index: int, first_psn: int, offset: int, packets: int) -> None:
        """Fill in a new request."""
        self.index = index
        self.first_psn = first_psn
        self.offset = offset
        self.packets = packets
        self.got = 0
        self.asked = 0

    @property
    def next_psn(self) -> int:
        """PSN of the next expected response."""
        return self.first_psn + self.got & PSN_MASK
