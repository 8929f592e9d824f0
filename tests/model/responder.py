"""The model of a responder: ``Responder``, ``ReplyQueue`` and ``Resources`` of ``rnic.transport``."""

from __future__ import annotations

from typing import Any

from tests.model.rc import (
    ACK,
    ATOMIC,
    NAK,
    READ,
    READS,
    RECEIVES,
    RNR,
    SEND,
    WRITE,
    WRITE_IMM,
    Config,
    Half,
    Reply,
    Request,
    Resource,
    Response,
    ViolationError,
)


class Responder(Half):
    """``Responder``, ``ReplyQueue`` and ``Resources``. ``value`` is the word that all atomics add to."""

    WORDS = (
        "expected_psn", "nak_sent", "open", "receive", "receives", "owed", "resources", "replies", "value",
    )  # fmt: skip
    expected_psn: int
    nak_sent: bool
    open: str
    receive: bool
    """A receive entry is in use."""
    receives: int
    owed: bool
    resources: tuple[Resource, ...]
    replies: tuple[Reply, ...]
    value: int

    def __init__(self, config: Config, words: tuple[Any, ...]) -> None:
        super().__init__(config, words)
        self.out: list[Response] = []
        self.placed: list[int] = []
        """PSNs of the packets whose bytes it took."""

    @staticmethod
    def start(config: Config) -> tuple[Any, ...]:
        """Return the words in RTS, with nothing received."""
        return (config.base, False, "", False, 0, False, (), (), 0)

    def recv(self) -> None:
        """Post a receive entry, as software does."""
        self.receives += 1

    def take(self, packet: Request) -> None:
        """Pass the named steps."""
        for step in (
            self.check_psn,
            self.check_op_seq,
            self.check_resources,
            self.execute,
            self.complete,
            self.acknowledge,
        ):
            if not step(packet):
                return

    def check_psn(self, packet: Request) -> bool:
        """Tell what is expected from a duplicate and from what is beyond a gap."""
        ahead = self.config.diff(packet.psn, self.expected_psn)
        if ahead == 0:
            self.nak_sent = False
            return True
        if ahead > 0:
            if not self.nak_sent:
                self.nak_sent = True
                self._reply(NAK, self.expected_psn)
        else:
            self._duplicate(packet)
        return False

    def check_op_seq(self, packet: Request) -> bool:
        """Check that FIRST, MIDDLE, LAST and ONLY come in a legal order."""
        kind = self._message_kind(packet)
        if self.open != ("" if packet.start or not kind else kind):
            raise ViolationError(f"{packet} while {self.open or 'nothing'} is open: NAK_INVALID_REQUEST")
        return True

    @staticmethod
    def _message_kind(packet: Request) -> str:
        return {SEND: SEND, WRITE: WRITE, WRITE_IMM: WRITE}.get(packet.kind, "")

    def check_resources(self, packet: Request) -> bool:
        """Take a receive entry where one is used, else answer RNR; check the room for READ and atomics."""
        if packet.kind in READS:
            if sum(reply.kind in READS and not reply.again for reply in self.replies) >= self.config.max_dest_rd_atomic:
                raise ViolationError(f"{packet} is one more than max_dest_rd_atomic: NAK_INVALID_REQUEST")
        elif not self.receive and (packet.start if packet.kind == SEND else packet.end and packet.kind == WRITE_IMM):
            if not self.receives:
                self.nak_sent = True
                self._reply(RNR, packet.psn)
                return False
            self.receives -= 1
            self.receive = True
        return True

    def execute(self, packet: Request) -> bool:
        """Move the data. READ and atomic requests are answered here and end here."""
        config = self.config
        if packet.psn != self.expected_psn:
            raise ViolationError(f"{packet} is taken for PSN {self.expected_psn}")
        if packet.kind not in READS:
            self.open = "" if packet.end else self._message_kind(packet)
            self.placed.append(packet.psn)
            return True
        packets, orig = -(-packet.length // config.unit) or 1, 0
        if packet.kind == ATOMIC:
            packets, orig = 1, self.value
            self.value += 1
        kept = Resource(packet.kind, packet.psn, packets, packet.va, packet.length, packet.args, orig)
        self.resources = (*self.resources, kept)[-max(1, config.max_dest_rd_atomic) :]
        self._new(Reply(packet.kind, packet.psn, packets, orig=orig, va=self._begin(packet)))
        self.owed = False
        self.expected_psn += packets
        return False

    def complete(self, packet: Request) -> bool:
        """Advance the PSN; at a message's end the receive entry is used up."""
        self.expected_psn += 1
        if packet.end and packet.kind in RECEIVES:
            self.receive = False
        return True

    def acknowledge(self, packet: Request) -> bool:
        """Answer with an ACK if the packet asks for one; a message that asks for none gets one later."""
        if packet.ask:
            self._reply(ACK, packet.psn)
        elif packet.end:
            self.owed = True
        return True

    def _duplicate(self, packet: Request) -> None:
        config = self.config
        if packet.kind not in READS:
            self._reply(ACK, self.expected_psn - 1)
            return
        found = self.find(packet)
        if found is None or len(self.replies) == config.replies:
            return
        for reply in self.replies:
            if config.diff(reply.psn, packet.psn) == 0 and reply.kind in READS and not reply.sent:
                return
        packets = 1 if packet.kind == ATOMIC else -(-packet.length // config.unit) or 1
        self._new(Reply(packet.kind, packet.psn, packets, 0, True, found.orig, self._begin(packet)))

    @staticmethod
    def _begin(packet: Request) -> int:
        """Return where a READ's bytes begin; 0 for no bytes."""
        return packet.va if packet.kind == READ and packet.length else 0

    def find(self, packet: Request) -> Resource | None:
        """Return the saved request that a duplicate repeats, the newest first."""
        for resource in reversed(self.resources):
            skipped = self.config.diff(packet.psn, resource.psn)
            if (resource.kind, resource.args[:1]) != (
                packet.kind,
                packet.args[:1],
            ) or not 0 <= skipped < resource.packets:
                continue
            if packet.kind == ATOMIC:
                return resource if (packet.va, packet.args) == (resource.va, resource.args) else None
            offset = skipped * self.config.unit
            same = packet.va == resource.va + offset and packet.length <= resource.length - offset
            return resource if same else None
        return None

    # ------------------------------------------------------------------------------------ replies

    def _new(self, reply: Reply) -> None:
        if len(self.replies) < self.config.replies:
            self.replies = (*self.replies, reply)

    def _reply(self, kind: str, psn: int) -> None:
        if len(self.replies) == self.config.replies:
            return
        self.owed = False
        if self.replies and self.replies[-1].kind == ACK:
            self.replies = self.replies[:-1]
        self._new(Reply(kind, psn))

    def produce(self, budget: int = 1) -> None:
        """Send up to ``budget`` packets of the replies that wait."""
        while self.replies and len(self.out) < budget:
            reply = self.replies[0]
            psn, sent = reply.psn + reply.sent, reply.sent + 1
            orig = reply.va + reply.sent * self.config.unit if reply.kind == READ else reply.orig
            self.out.append(Response(reply.kind, psn, sent == 1, sent == reply.packets, orig))
            rest = self.replies[1:]
            self.replies = rest if sent == reply.packets else (reply._replace(sent=sent), *rest)

    def owed_over(self) -> None:
        """Send the ACK that has been owed for long enough."""
        self.owed = False
        self._reply(ACK, self.expected_psn - 1)
