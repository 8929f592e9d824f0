"""Run scripts against a peer and give each a verdict: pass, fail, deviation of the vendor, or not applicable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rnic.conform.bench import Arrived, Bench, Completed, HandBench, NotHereError
from rnic.conform.builders import DEVIATIONS, Deviation
from rnic.conform.frames import Connection, differences, fields_of, frame_of, is_plain_ack, payload_of, row_of
from rnic.conform.script import Script, Step
from rnic.spec.drops import DropReason
from rnic.spec.psn import psn_count, psn_diff
from rnic.verbs import enums as e
from rnic.wire.packet import Packet, parse
from rnic.wire.pretty import describe

PASS, FAIL, DEVIATION, NOT_APPLICABLE = "pass", "fail", "deviation", "not applicable"
VERDICTS = (PASS, FAIL, DEVIATION, NOT_APPLICABLE)
_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_POLL_NS = 2_000_000
_SLACK = 0.98
"""Fraction of a wait that the peer must keep, since clocks differ."""
_LATE = 4
"""Multiple of that wait; after more, another timer of the peer has expired."""


class FailedError(Exception):
    """The peer did what a line does not allow."""


@dataclass(slots=True)
class Result:
    """Result of one script."""

    script: Script
    verdict: str
    detail: str = ""
    """For a failure, line and difference; for a deviation, its name; for a test that does not apply, the reason."""
    log: list[str] = field(default_factory=list)
    """Events, one line each: milliseconds, direction, packet."""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the result as an object for JSON."""
        return {
            "test": self.script.name,
            "suite": self.script.suite,
            "clause": self.script.clause,
            "says": self.script.says,
            "verdict": self.verdict,
            "detail": self.detail,
            "seconds": round(self.seconds, 3),
            "script": self.script.text.splitlines(),
            "log": self.log,
        }


class Player:
    """One script on one connection."""

    def __init__(self, bench: Bench, script: Script, connection: Connection) -> None:
        self.bench = bench
        self.script = script
        self.connection = connection
        self.log: list[str] = []
        self._begun = bench.wire.now_ns()
        self._seen: list[bytes] = []
        """Received requests: the peer may retransmit those not acknowledged."""
        self._optional: list[Step] = []
        """Packets that may arrive."""
        self._last_sent_ns = self._begun
        self._floor: int | None = None
        """PSN of the tester's last sequence NAK: the peer must not retransmit anything before it."""

    def play(self) -> None:
        """Play all steps in turn; raise :class:`FailedError` at the first that fails."""
        for step in self.script.steps:
            if step.kind == ">":
                self._send(step)
            elif step.kind == "<?":
                self._optional.append(step)
            elif step.kind == "<":
                if step.name == "nothing":
                    self._nothing(step)
                else:
                    self._expect(step)
            elif step.kind == "~":
                self._silence(self.bench.wire.now_ns() + duration_ns(step.name), step)
            elif step.kind == "!":
                self._command(step)
            else:
                self._look(step)

    # ----------------------------------------------------------------------------------------- the wire

    def _note(self, mark: str, text: str) -> None:
        self.log.append(f"{(self.bench.wire.now_ns() - self._begun) / 1e6:9.3f} ms {mark} {text}")

    def _send(self, step: Step) -> None:
        frame = frame_of(step, self.connection)
        flow = self.connection.flow
        if "ce" in step.words:
            flow = flow.marked()
        parsed = parse(memoryview(frame))
        broken = f" (line {step.text!r})" if isinstance(parsed, DropReason) or "icrc" in step.values else ""
        self._note(">", (describe(parsed) if isinstance(parsed, Packet) else parsed.value) + broken)
        if step.name == "RNR":
            self._idle(self.bench.wire.now_ns())  # do not take an earlier packet for an answer
        if step.name == "NAK" and step.words[0] == "sequence":
            self._floor = fields_of(step, self.connection)["psn"]
        self._last_sent_ns = self.bench.wire.now_ns()
        self.bench.wire.send(flow, frame)

    def _take(self, arrived: Arrived) -> Packet | None:
        """Return a received packet, parsed; ``None`` if it is not of this connection."""
        parsed = parse(memoryview(arrived.payload))
        if isinstance(parsed, DropReason):
            self._note("<", f"no packet: {parsed.value}")
            raise FailedError(f"what came is not a packet: {parsed.value}")
        if parsed.dqpn != self.connection.qpn:
            return None
        self._note("<", describe(parsed))
        if not arrived.icrc_ok:
            raise FailedError(f"the ICRC of {describe(parsed)} is wrong")
        return parsed

    def _tolerable(self, packet: Packet, arrived: Arrived, ahead: Step | None) -> bool:
        """Return whether a packet may come although no line waits for it."""
        for step in self._optional:
            if not differences(step, self.connection, packet):
                self._optional.remove(step)
                return True
        if is_plain_ack(packet) and ahead is not None and row_of(ahead, self.connection).response:
            wanted = self.connection.psn + self.connection.number(ahead.values.get("psn", "0"))
            return psn_diff(packet.psn, wanted & 0xFF_FFFF) < 0
        if self._floor is not None and psn_diff(packet.psn, self._floor) < 0:
            return False
        return packet.row.request and _twin(arrived.payload) in self._seen

    def _expect(self, step: Step) -> None:
        wire = self.bench.wire
        end = wire.now_ns() + self.bench.patience_ns
        crossed = False
        while True:
            came = wire.receive(end)
            if came is None:
                raise FailedError(f"nothing came where this must: {step.text[2:]}")
            packet = self._take(came)
            if packet is None:
                continue
            wrong = differences(step, self.connection, packet)
            if not wrong and "after" in step.values and came.time_ns <= self._last_sent_ns + wire.crossing_ns:
                crossed |= came.time_ns > self._last_sent_ns
                continue  # a retransmission that crossed a packet of the tester
            if not wrong:
                self._check_wait(step, came, crossed)
                if packet.row.request:
                    self._seen.append(_twin(came.payload))
                return
            if not self._tolerable(packet, came, step):
                raise FailedError(f"{describe(packet)} came where this must: {step.text[2:]} ({'; '.join(wrong)})")

    def _check_wait(self, step: Step, came: Arrived, crossed: bool) -> None:
        if "after" in step.values:
            waited = came.time_ns - self._last_sent_ns
            least = duration_ns(step.values["after"])
            if waited < least * _SLACK:
                raise FailedError(f"{step.name} came after {waited / 1e3:.0f} us, not {least / 1e3:.0f} us or more")
            if crossed and waited > least * _LATE:
                raise FailedError(f"{step.name} came at once, and not again until {waited / 1e3:.0f} us had passed")

    def _nothing(self, step: Step) -> None:
        self._silence(self.bench.wire.now_ns() + self.bench.quiet_ns, step)

    def _silence(self, end_ns: int, step: Step) -> None:
        while (came := self.bench.wire.receive(end_ns)) is not None:
            packet = self._take(came)
            if packet is not None and not self._tolerable(packet, came, None):
                raise FailedError(f"{describe(packet)} came where nothing may")

    # ------------------------------------------------------------------------------------- the software

    def _command(self, step: Step) -> None:
        number = self.connection.number
        words = [word if word.isupper() else str(number(word)) for word in step.words]
        values = [f"{name}={number(value)}" for name, value in step.values.items()]
        line = " ".join([step.name, *words, *values])
        self._note("!", line)
        self.bench.ask(line)

    def _look(self, step: Step) -> None:
        if isinstance(self.bench, HandBench):
            self._note("?", f"not looked at, for there is no agent: {step.text[2:]}")
        elif step.name in ("send", "recv"):
            self._completion(step)
        elif step.name == "bytes":
            self._bytes(step)
        elif step.name == "number":
            self._number(step)
        else:
            self._state(step)

    def _poll(self, patience_ns: int) -> Completed | None:
        """Return the next completion."""
        end = self.bench.wire.now_ns() + patience_ns
        while True:
            found = self.bench.ask_completion()
            if found is not None:
                self._note("?", found.said)
                return found
            now = self.bench.wire.now_ns()
            if now >= end:
                return None
            self._idle(min(end, now + _POLL_NS))

    def _idle(self, until_ns: int) -> None:
        """Let time pass. Check only the ICRC of arriving packets; a later line may expect them."""
        waiting = []
        while (came := self.bench.wire.receive(until_ns)) is not None:
            waiting.append(came)
        self.bench.wire.give_back(waiting)

    def _completion(self, step: Step) -> None:
        wanted = step.words[0]
        if wanted == "none":
            found = self._poll(self.bench.quiet_ns)
            if found is not None:
                raise FailedError(f"a completion came where none may: {found.kind} {_status(found)}")
            return
        found = self._poll(self.bench.patience_ns)
        if found is None:
            raise FailedError(f"no completion came where this must: {step.text[2:]}")
        failed = found.status != e.IBV_WC_SUCCESS
        if found.kind != step.name or (_status(found) != wanted and not (wanted == "any-error" and failed)):
            raise FailedError(f"{found.kind} {_status(found)} completed where this must: {step.text[2:]}")
        number = self.connection.number
        for name, value in (("len", found.len), ("imm", found.imm)):
            if name in step.values and value != number(step.values[name]):
                raise FailedError(f"the completion says {name} {value}, not {number(step.values[name])}")
        if step.payload is not None:
            data = payload_of(step, self.connection)
            skip = number(step.values["len"]) - len(data)
            slot = found.slot * 16_384
            self._compare("S", slot + skip, data, "the receive entry")

    def _compare(self, region: str, at: int, data: bytes, where: str) -> None:
        held = self.bench.ask_bytes(region, at, len(data))
        if held != data:
            wrong = next(index for index in range(len(data)) if held[index : index + 1] != data[index : index + 1])
            raise FailedError(f"{where} holds other bytes from byte {wrong} of {len(data)} on")

    def _bytes(self, step: Step) -> None:
        name, offset = step.words[0][0], step.words[0][1:].lstrip("+")
        region = self.connection.regions[name]
        self.connection.numbers["size"] = region.size
        at = self.connection.number(offset) if offset else 0
        self._compare(name, at, payload_of(step, self.connection), f"memory at {step.words[0]}")

    def _number(self, step: Step) -> None:
        held = self.bench.ask_bytes(step.words[0], 0, 8)
        wanted = self.connection.number(step.words[1])
        if wanted not in (int.from_bytes(held, "little"), int.from_bytes(held, "big")):
            raise FailedError(f"memory at {step.words[0]} holds {held.hex()}, not {wanted:#x}")

    def _state(self, step: Step) -> None:
        end = self.bench.wire.now_ns() + self.bench.patience_ns
        while (state := self.bench.ask("state")) != step.words[0]:
            if self.bench.wire.now_ns() >= end:
                raise FailedError(f"the queue pair is in {state}, not in {step.words[0]}")
            self._idle(self.bench.wire.now_ns() + _POLL_NS)


def _twin(payload: bytes) -> bytes:
    """Return a request without the parts that may differ in a retransmission: AckReq and the ICRC."""
    return payload[:8] + payload[9:-4]


def _status(found: Completed) -> str:
    name: str = e.WC_STATUS_NAMES.get(found.status, str(found.status))
    return name.removeprefix("IBV_WC_")


def duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration such as ``5ms``."""
    match = re.fullmatch(r"(\d+)(us|ms|s)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time such as 5ms")
    return int(match[1]) * _UNITS[match[2]]


def run(bench: Bench, script: Script) -> Result:
    """Play one script."""
    begun = bench.wire.now_ns()
    player = None
    try:
        connection = bench.open(script)
        if isinstance(bench, HandBench):
            bench.prepare()
        player = Player(bench, script, connection)
        player.play()
        result = Result(script, PASS)
    except NotHereError as error:
        result = Result(script, NOT_APPLICABLE, str(error))
    except FailedError as error:
        known = known_deviation(bench.maker, script, str(error))
        result = Result(script, FAIL, str(error)) if known is None else Result(script, DEVIATION, known.says)
    if player is not None:
        result.log = player.log
        if isinstance(bench, HandBench):
            bench.used(*_span(script, player.connection), failed=result.verdict in (FAIL, DEVIATION))
        else:
            bench.close()
    result.seconds = (bench.wire.now_ns() - begun) / 1e9
    return result


def known_deviation(maker: str, script: Script, failure: str) -> Deviation | None:
    """Return the known deviation of the peer's vendor that matches a failure, if any."""
    for deviation in DEVIATIONS.get(maker, ()):
        shows = deviation.shows.get(script.name)
        if shows is not None and shows in failure:
            return deviation
    return None


def _span(script: Script, connection: Connection) -> tuple[int, int]:
    """Return the number of PSNs and of messages that a script uses of its connection, counting requests in order."""
    end = messages = 0
    for step in script.steps:
        if step.kind != ">":
            continue
        row = row_of(step, connection)
        broken = {"icrc", "tver", "cut", "pkey", "dqpn"} & set(step.values) or not step.name.startswith(
            ("WRITE", "READ_REQ", "FETCH", "COMPARE", "SEND")
        )
        if broken or not row.request:
            continue
        size = connection.number(step.values.get("len", "0")) if step.name == "READ_REQUEST" else 0
        if connection.number(step.values["psn"]) == end:
            end += psn_count(size, connection.mtu)
            messages += row.end
    return end, messages


def run_all(
    bench: Bench, scripts: Iterable[Script], told: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """Play scripts one after the other.

    Args:
        told: called with each result.
    """
    results = []
    for script in scripts:
        result = run(bench, script)
        told(result)
        results.append(result)
    return results
