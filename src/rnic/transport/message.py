"""Send work requests between fetch and completion: views on the send slots of a queue pair.

The first eight words of a slot are the SQ entry as it was fetched. Software may write its ring meanwhile, so what was
checked is what is used; scatter lists and inline data stay in the ring, and are checked whenever they are used.
"""

from __future__ import annotations

from rnic.rings.sqe import FLAG_FENCE, FLAG_SIGNALED, FLAG_SOLICITED
from rnic.spec.opcodes import (
    WR_CMP_SWAP,
    WR_FETCH_ADD,
    WR_NOP,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
)
from rnic.spec.psn import PSN_MASK
from rnic.state.queue_pair import PIECE, SEND_SLOT
from rnic.state.record import WORD_BYTES, Word, view

SENDS = frozenset({WR_SEND, WR_SEND_IMM, WR_SEND_INV})
WRITES = frozenset({WR_WRITE, WR_WRITE_IMM})
ATOMICS = frozenset({WR_CMP_SWAP, WR_FETCH_ADD})
READS = ATOMICS | {WR_READ}
TAKES_RECEIVE = SENDS | {WR_WRITE_IMM}

SLOT_WORDS = SEND_SLOT.size // WORD_BYTES
PIECE_WORDS = PIECE.size // WORD_BYTES
_LOW = 0xFFFF_FFFF


@view(SEND_SLOT, item=True)
class Message:
    """One work request; ``index`` is that of its SQ entry.

    ``first_psn`` and ``packets`` are the PSNs it uses; ``sent`` counts the packets sent since the last rewind.
    For a READ they count response packets, since that is what its PSNs stand for, and ``received`` is how many
    of them have been placed. ``begun`` says that a packet of it was ever sent: before, no PSN says anything about it.
    A message without packets is local: ``executed`` says that it has had its effect.
    ``status`` other than success is what it completes with once everything before it has completed.
    """

    __slots__ = ("base", "index", "words")

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

    def __init__(self, words: memoryview, base: int, index: int) -> None:
        self.words = words
        self.base = base
        self.index = index

    def forget(self) -> None:
        """Its entry could not be read: it does nothing."""
        self.entry_0, self.entry_3 = WR_NOP << 32, 0

    @property
    def wqe_id(self) -> int:
        """Identifier chosen by software."""
        return self.entry_0 & _LOW

    @property
    def opcode(self) -> int:
        """Work-request opcode."""
        return self.entry_0 >> 32 & 0xFFFF

    @property
    def flags(self) -> int:
        """``FLAG_*`` bits."""
        return self.entry_0 >> 48

    @property
    def signaled(self) -> int:
        """Not 0 where software wants a completion."""
        return self.entry_0 >> 48 & FLAG_SIGNALED

    @property
    def solicited(self) -> int:
        """Not 0 where the last packet carries the solicited event bit."""
        return self.entry_0 >> 48 & FLAG_SOLICITED

    @property
    def fence(self) -> int:
        """Not 0 where it waits for all READs and atomics before it."""
        return self.entry_0 >> 48 & FLAG_FENCE

    @property
    def length(self) -> int:
        """Payload bytes."""
        return self.entry_3 & _LOW

    @property
    def lkey(self) -> int:
        """Local key, or the number of scatter entries."""
        return self.entry_3 >> 32

    @property
    def rkey(self) -> int:
        """Remote key."""
        return self.entry_4 & _LOW

    @property
    def imm(self) -> int:
        """Immediate data, or a key."""
        return self.entry_4 >> 32

    @property
    def reads(self) -> bool:
        """Whether its packets are responses: a READ or an atomic."""
        return self.opcode in READS

    @property
    def takes_receive(self) -> bool:
        """Whether it uses up a receive entry of the peer."""
        return self.opcode in TAKES_RECEIVE

    @property
    def end_psn(self) -> int:
        """The PSN behind its last."""
        return self.first_psn + self.packets & PSN_MASK

    @property
    def due_psn(self) -> int:
        """Of a READ or atomic: PSN of the first response packet that has not come."""
        return self.first_psn + self.received & PSN_MASK

    @property
    def finished(self) -> bool:
        """Whether nothing of it is left to send."""
        return self.sent >= self.packets and bool(self.packets or self.executed)

    # ---------------------------------------------------------------- what a datagram's entry says (SQ_ENTRY_UD)

    @property
    def path_word(self) -> int:
        """Service level, traffic class and flow label."""
        return self.entry_2 & _LOW

    @property
    def udp_dport(self) -> int:
        """Destination port, 0 for the usual one."""
        return self.entry_2 >> 32 & 0xFFFF

    @property
    def udp_sport(self) -> int:
        """Source port, 0 for one made from the queue pair numbers."""
        return self.entry_2 >> 48

    @property
    def sl(self) -> int:
        """Service level."""
        return self.path_word >> 28

    @property
    def tclass(self) -> int:
        """Traffic class."""
        return self.path_word >> 20 & 0xFF

    @property
    def flow_label(self) -> int:
        """Flow label."""
        return self.path_word & 0xFFFFF

    @property
    def dgid(self) -> bytes:
        """Destination GID."""
        return (self.entry_5 | self.entry_6 << 64).to_bytes(16, "little")

    @property
    def dqpn(self) -> int:
        """Destination QP number."""
        return self.entry_7 & 0xFFFFFF

    @property
    def hop_limit(self) -> int:
        """Hop limit."""
        return self.entry_7 >> 24 & 0xFF

    @property
    def qkey(self) -> int:
        """Q_Key."""
        return self.entry_7 >> 32

    # ------------------------------------------------------------------- what a bind entry says (SQ_ENTRY_BIND)

    @property
    def bind_access(self) -> int:
        """Rights of the window."""
        return self.entry_1 & _LOW

    @property
    def bind_length(self) -> int:
        """Length of the window: bytes 40 to 47."""
        return self.entry_5


@view(PIECE, item=True)
class ReadPiece:
    """One READ or atomic request on the wire, waiting for its responses; ``index`` is its message's.

    A long READ goes out as several requests with consecutive PSN ranges, so that no more response packets are
    under way than the receive buffer takes. ``got`` counts the response packets taken in order. ``asked`` says that
    its one response was part of a longer request's and has been asked for again alone.
    """

    __slots__ = ("base", "words")

    index: Word
    first_psn: Word
    offset: Word
    packets: Word
    got: Word
    asked: Word

    def __init__(self, words: memoryview, base: int) -> None:
        self.words = words
        self.base = base

    def fill(self, index: int, first_psn: int, offset: int, packets: int) -> None:
        """A new request."""
        self.index = index
        self.first_psn = first_psn
        self.offset = offset
        self.packets = packets
        self.got = 0
        self.asked = 0

    @property
    def next_psn(self) -> int:
        """PSN of the response that is due."""
        return self.first_psn + self.got & PSN_MASK
