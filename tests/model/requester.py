"""The model of a requester: ``Requester``, ``SendQueue`` and ``Completer`` of ``rnic.transport``."""

from __future__ import annotations

from typing import Any

from tests.model.rc import (
    ACK,
    ATOMIC,
    NONE,
    READ,
    READS,
    RNR,
    WRITE,
    Config,
    Half,
    Piece,
    Request,
    Response,
    ViolationError,
)


class Requester(Half):
    """``Requester``, ``SendQueue`` and ``Completer``. ``messages`` are those from ``sq_head`` to ``fetch_index``."""

    WORDS = (
        *("una", "sent_psn", "sq_head", "send_index", "fetch_index", "tail", "messages", "pieces", "inflight"),
        *("probe_due", "probed", "ack_armed", "probe_armed", "rnr_wait", "ack_each", "implied_psn", "asked_psn"),
        "scheduled",
    )
    una: int
    sent_psn: int
    sq_head: int
    send_index: int
    fetch_index: int
    tail: int
    messages: tuple[tuple[int, int, bool], ...]
    """Of each message: packets sent, response packets received, and whether it was begun."""
    pieces: tuple[Piece, ...]
    inflight: int
    probe_due: bool
    probed: bool
    ack_armed: bool
    probe_armed: bool
    rnr_wait: bool
    ack_each: int
    implied_psn: int
    asked_psn: int
    scheduled: bool

    def __init__(self, config: Config, words: tuple[Any, ...]) -> None:
        super().__init__(config, words)
        self.out: list[Request] = []
        self.placed: list[tuple[int, int, int]] = []
        """What it took of responses: the message, which packet of it, and what it brought."""

    @staticmethod
    def start(config: Config) -> tuple[Any, ...]:
        """Return the words in RTS, with nothing posted."""
        psn = config.base
        return (psn, psn, 0, 0, 0, 0, (), (), 0, *(False,) * 5, 0, NONE, NONE, False)

    # ------------------------------------------------------------------------------------ messages

    def _message(self, index: int) -> tuple[int, int, bool]:
        return self.messages[index - self.sq_head]

    def _set(self, index: int, sent: int, received: int) -> None:
        """Store a message's counts; it is begun once it was ever sent."""
        at = index - self.sq_head
        message = sent, received, self.messages[at][2] or sent > 0
        self.messages = (*self.messages[:at], message, *self.messages[at + 1 :])

    def _read_due(self) -> int:
        """``due_psn`` of the message at ``read_index``: the oldest that lacks responses; ``NONE`` without one."""
        config = self.config
        for index in range(self.sq_head, self.fetch_index):
            _, received, begun = self._message(index)
            if begun and config.program[index].kind in READS and received < config.program[index].packets:
                return config.first[index] + received
        return NONE

    # ----------------------------------------------------------------------------------- producing

    def post(self) -> None:
        """Post the next work request and ring the doorbell, as software does."""
        self.tail += 1
        self.scheduled = True

    def produce(self, budget: int = 1) -> None:
        """Take a turn: send up to ``budget`` packets."""
        self.scheduled = False
        if self.rnr_wait:
            return
        if self.probe_due:
            self.probe_due = False
            self._probe()
        while len(self.out) < budget:
            index = self.send_index
            if index == self.fetch_index and not self._fetch():
                break
            count = self._send_message(index, budget - len(self.out))
            if self._message(index)[0] >= self.config.program[index].packets:
                self.send_index = index + 1
            elif not count:
                break
        else:
            self.scheduled = True
        if self.out and self.inflight:  # arm_timers
            self.ack_armed = self.config.timeout
            self.probe_armed = self.config.probing

    def _fetch(self) -> bool:
        index = self.fetch_index
        if index == self.tail or index + 1 - self.sq_head == self.config.entries:
            return False
        self.fetch_index += 1
        self.messages = (*self.messages, (0, 0, False))
        return True

    def _send_message(self, index: int, budget: int) -> int:
        config = self.config
        work = config.program[index]
        sent, received, _ = self._message(index)
        if work.fence and not sent and self.pieces:
            return 0
        left, room = work.packets - sent, config.window - self.inflight
        at = index - self.sq_head
        self.messages = (*self.messages[:at], (sent, received, True), *self.messages[at + 1 :])
        if room <= 0:
            return 0
        if work.kind in READS:
            return self._send_request(index, budget, room)
        psn = config.first[index] + sent
        count = min(budget, left, room)
        ask = not self._defers_ack_request(index, psn) if count == left else count == room
        for place in range(sent, sent + count):
            self._send_packet(index, place, ask and place == sent + count - 1)
        self._set(index, sent + count, received)
        self.sent_psn = max(self.sent_psn, psn + count)
        if self.ack_each and count == left:
            self.ack_each -= 1
        self.inflight += count
        return count

    def _defers_ack_request(self, index: int, psn: int) -> bool:
        config = self.config
        work = config.program[index]
        return (
            work.kind == WRITE
            and work.packets == 1
            and not work.signaled
            and psn == self.sent_psn
            and not self.ack_each
            and index + 1 == self.tail
            and config.window - self.inflight > 1
            and 2 * (index - self.sq_head) < config.entries
            and config.probing
        )

    def _send_packet(self, index: int, place: int, ask: bool) -> None:
        config = self.config
        work, psn = config.program[index], config.first[index] + place
        ask = ask or bool(config.ack_every and psn % config.space % config.ack_every == 0)
        self.out.append(Request(work.kind, psn, ask, place == 0, place == work.packets - 1))

    def _send_request(self, index: int, budget: int, room: int) -> int:
        config, requests = self.config, 0
        work = config.program[index]
        while (sent := self._message(index)[0]) < work.packets and requests < budget and room > 0:
            psn = config.first[index] + sent
            packets = min(config.read_chunk - sent % config.read_chunk, work.packets - sent)
            if psn % config.space == self.asked_psn:
                packets = 1
            if len(self.pieces) >= config.max_rd_atomic or (self.inflight and packets > config.window - self.inflight):
                break
            self.pieces = (*self.pieces, Piece(index, psn, packets))
            self._request(index, psn, packets)
            self._set(index, sent + packets, self._message(index)[1])
            self.inflight += packets
            room -= packets
            requests += 1
            self.sent_psn = max(self.sent_psn, psn + packets)
        return requests

    def _request(self, index: int, psn: int, packets: int) -> None:
        work, unit = self.config.program[index], self.config.unit
        offset = (psn - self.config.first[index]) * unit
        whole = work.packets * unit if work.length == NONE else work.length
        self.out.append(
            Request(work.kind, psn, va=work.va + offset, length=min(packets * unit, whole - offset), args=work.args)
        )

    def _probe(self) -> None:
        if self.inflight == 0:
            return
        if self.pieces and self.pieces[0].first_psn + self.pieces[0].got == self.una:
            piece = self._split()
            self._request(piece.message, piece.first_psn, 1)
            return
        sent = [index for index in range(self.sq_head, self.fetch_index) if self._message(index)[0]]
        if not sent:
            return
        oldest, last = sent[0], sent[-1]
        ends = {(oldest, self.una - self.config.first[oldest]): None, (last, self._message(last)[0] - 1): None}
        for index, place in ends:
            if self.config.program[index].kind not in READS and 0 <= place < self._message(index)[0]:
                self._send_packet(index, place, True)

    def _split(self) -> Piece:
        piece, rest = self.pieces[0], self.pieces[1:]
        psn, left = piece.first_psn + piece.got, piece.packets - piece.got - 1
        if left:
            rest = (Piece(piece.message, psn + 1, left), *rest)
        asked = piece.packets > 1 or piece.asked
        due = Piece(piece.message, psn, 1, 0, asked)
        self.pieces = (due, *rest)
        if asked:
            self.asked_psn = psn % self.config.space
        return due

    # ----------------------------------------------------------------------------------- progress

    def _advance(self, psn: int) -> None:
        config = self.config
        if psn != self.una:
            self.inflight -= min(psn - self.una, self.inflight)
            self.una = psn
            probed, self.probed = self.probed, False
            if self.inflight == 0:
                self.ack_armed = self.probe_armed = False
            else:
                self.ack_armed, self.probe_armed = config.timeout, config.probing
                self.probe_due = probed and config.probing and not self.pieces
            self._retire()
        if self.probe_due or self.send_index != self.fetch_index or self.fetch_index != self.tail:
            self.scheduled = True

    def _retire(self) -> None:
        config = self.config
        while self.messages:
            index = self.sq_head
            sent, received, begun = self.messages[0]
            if not begun:
                break
            if config.first[index + 1] > self.una:
                if index == self.send_index:
                    self._set(index, max(sent, self.una - config.first[index]), received)
                break
            if config.program[index].kind in READS and received < config.program[index].packets:
                raise ViolationError(f"message {index} completes, and {received} of its responses have come")
            if index == self.send_index:
                self.send_index += 1
            self.sq_head += 1
            self.messages = self.messages[1:]

    def _rewind(self, psn: int) -> None:
        self.probe_due = False
        while self.pieces and self.pieces[-1].first_psn + self.pieces[-1].got >= psn:
            self.pieces = self.pieces[:-1]
        index = self.send_index
        if index != self.fetch_index:
            self._unsend(index, psn)
        while index != self.sq_head:
            index -= 1
            if self.config.first[index + 1] <= psn:
                break
            self._unsend(index, psn)
            self.send_index = index
        self.inflight = min(self.inflight, max(0, psn - self.una))
        if self.inflight == 0:
            self.ack_armed = self.probe_armed = False
        self.scheduled = True

    def _unsend(self, index: int, psn: int) -> None:
        sent, received, _ = self._message(index)
        self._set(index, min(sent, max(0, psn - self.config.first[index])), received)

    # ----------------------------------------------------------------------------------- responses

    def receive(self, packet: Response) -> None:
        """Take a response. Its PSN is that of the packet in flight which it seems to be for."""
        config = self.config
        if config.diff(packet.psn, self.sent_psn) >= 0:
            return  # ghost
        behind = config.diff(packet.psn, self.una)
        if behind < 0:
            return  # stale
        psn = self.una + behind
        if packet.kind in READS:
            self._response(packet, psn)
        elif packet.kind == ACK:
            self._cover(psn + 1)
        elif self._cover(psn):
            if packet.kind == RNR:
                self._rewind(psn)
                self.rnr_wait, self.ack_armed, self.probe_armed = True, False, False
            elif self.una + self.inflight != psn:  # else it is about to be sent
                self._rewind(psn)

    def _cover(self, psn: int) -> bool:
        due = self._read_due()
        if due != NONE and psn > due:
            if self.pieces:
                self._implied_nak(due)
            else:
                self._advance(due)
            return False
        self._advance(psn)
        return True

    def _implied_nak(self, psn: int) -> None:
        self._advance(psn)
        if psn % self.config.space != self.implied_psn:
            self.implied_psn = psn % self.config.space
            self._rewind(psn)

    def _response(self, packet: Response, psn: int) -> None:
        config = self.config
        if not self.pieces:
            return
        piece = self.pieces[0]
        due = piece.first_psn + piece.got
        if psn < due:
            return
        if psn > due:
            self._implied_nak(due)
            return
        self._advance(psn)
        work = config.program[piece.message]
        received = self._message(piece.message)[1]
        if packet.kind != work.kind:
            raise ViolationError(f"{packet} answers {work}: BAD_RESP_ERR")
        if packet.kind == READ:
            last = piece.got + 1 == piece.packets
            misplaced = piece.got if packet.start else not received
            probed = piece.asked or psn % config.space == self.asked_psn
            if (packet.end != last and not probed) or misplaced:
                raise ViolationError(f"{packet} answers {piece}: BAD_RESP_ERR")
        self._took(packet, psn)
        if piece.asked and packet.start and packet.end and self.pieces:
            due = self.pieces[0].first_psn + self.pieces[0].got
            if due == self.una:
                self._implied_nak(due)

    def _took(self, packet: Response, psn: int) -> None:
        config, piece = self.config, self.pieces[0]
        if config.judged:
            self._check(packet, psn, piece.message)
        sent, received, _ = self._message(piece.message)
        self.placed.append((piece.message, received, packet.orig))
        self._set(piece.message, sent, received + 1)
        rest = (piece._replace(got=piece.got + 1), *self.pieces[1:])
        self.pieces = rest[1:] if piece.got + 1 == piece.packets else rest
        self._advance(psn + 1)
        if self.messages:
            self.scheduled = True

    def _check(self, packet: Response, psn: int, index: int) -> None:
        """Check that a response brings what its request asked for: the bytes, or what the atomic found when it ran."""
        config = self.config
        expected = sum(work.kind == ATOMIC for work in config.program[:index])
        if packet.kind == READ:
            expected = config.program[index].va + (psn - config.first[index]) * config.unit
        if packet.orig != expected:
            raise ViolationError(f"{packet} is taken for the response of PSN {psn}, which brings {expected}")

    # ------------------------------------------------------------------------------------- timers

    def rnr_over(self) -> None:
        """End the RNR wait."""
        self.rnr_wait, self.scheduled = False, True

    def ack_timeout(self) -> None:
        """Let the local ACK timeout pass."""
        self.ack_armed = False
        self._rewind(self.una)

    def probe(self) -> None:
        """Let the tail-loss probe be due."""
        self.probe_due, self.ack_each = True, self.config.ack_each_after_probe
        self.scheduled = self.probed = True
