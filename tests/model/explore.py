"""Explore every state of the model: two ends, and a network that loses, duplicates, reorders and delays.

A state is four numbers in one integer: requester, responder, requests on their way, responses on their way. What an end
does depends on its own words and one packet alone, so each of its steps is carried out once and remembered.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model.rc import RECEIVES, Config, Request, ViolationError
from tests.model.requester import Requester
from tests.model.responder import Responder

BITS = 20
"""Of each number in a state."""
_MASK = (1 << BITS) - 1


@dataclass
class Network:
    """What a network may do. Beyond ``capacity`` packets each way it loses what is sent."""

    capacity: int = 2
    loses: bool = True
    duplicates: bool = True
    reorders: bool = True


class Numbers:
    """Numbers for values, in the order in which they come."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        """Return the number of a value."""
        number = self._known.setdefault(value, len(self.values))
        if number == len(self.values):
            assert number <= _MASK
            self.values.append(value)
        return number


class Way:
    """The packets on their way in one direction, oldest first."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._packets: Numbers = Numbers()
        self.contents = Numbers()
        self.contents.of(())
        self._arrivals: list[tuple[list[tuple[int, Any, int]], list[int]]] = []
        self._sent: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._live: dict[tuple[int, int], int] = {}

    def arrivals(self, way: int) -> tuple[list[tuple[int, Any, int]], list[int]]:
        """Return the packets that may arrive, with place and what is left then; and what is left if one is lost."""
        while len(self._arrivals) <= way:
            packets, network = self.contents.values[len(self._arrivals)], self._network
            found, lost = [], []
            for place, packet in enumerate(packets):
                rest = self.contents.of(packets[:place] + packets[place + 1 :])
                if place == 0 or network.reorders:
                    found.append((place, packet, rest))
                    if network.duplicates:
                        found.append((place, packet, len(self._arrivals)))
                if network.loses:
                    lost.append(rest)
            self._arrivals.append((found, lost))
        return self._arrivals[way]

    def send(self, way: int, out: tuple[Any, ...]) -> int:
        """Return the packets in flight after ``out`` was sent."""
        key = way, out
        if key not in self._sent:
            self._sent[key] = self.contents.of((self.contents.values[way] + out)[: self._network.capacity])
        return self._sent[key]

    def expire(self, way: int, oldest: int) -> int:
        """Return the packets in flight after all before PSN ``oldest`` have ended their lives."""
        key = way, oldest
        if key not in self._live:
            self._live[key] = self.contents.of(tuple(p for p in self.contents.values[way] if p.psn >= oldest))
        return self._live[key]


def carry_out(half: Any, do: Any) -> None:
    """Let an end carry out a method, by name, or take a packet."""
    if isinstance(do, str):
        getattr(half, do)()
    elif isinstance(do, Request):
        half.take(do)
    else:
        half.receive(do)


class End:
    """The states of one end, and its steps."""

    def __init__(self, config: Config, half: type[Requester] | type[Responder], start: tuple[Any, ...]) -> None:
        self._config, self._half = config, half
        self.words = Numbers()
        self.words.of(start)
        self.steps: dict[tuple[int, Any], tuple[int, tuple[Any, ...]]] = {}

    def step(self, number: int, do: Any) -> tuple[int, tuple[Any, ...]]:
        """Carry out a method, by name, or take a packet; return the state after it and the packets that it sends."""
        key = number, do
        found = self.steps.get(key)
        if found is None:
            half: Any = self._half(self._config, self.words.values[number])
            carry_out(half, do)
            found = self.steps[key] = self.words.of(half.freeze()), tuple(half.out)
        return found

    def view(self, number: int) -> Any:
        """Return the words by their names."""
        return self._half(self._config, self.words.values[number])


Label = tuple[str, Any]
Step = tuple[Label, int]


@dataclass
class Report:
    """What an exploration found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    violation: str = ""
    trace: list[str] = field(default_factory=list)


class System:
    """Both ends and the network between them.

    Args:
        config: program and bounds.
        network: what it may do.
        ahead: work requests that software posts before the oldest has completed, at most.
        waiting: replies that wait when a request arrives, at most.
    """

    def __init__(self, config: Config, network: Network | None = None, ahead: int = 2, waiting: int = 8) -> None:
        self.config, self.network, self._ahead, self._waiting = config, network or Network(), ahead, waiting
        self.requester = End(config, Requester, Requester.start(config))
        self.responder = End(config, Responder, Responder.start(config))
        self.requests, self.responses = Way(self.network), Way(self.network)
        self._half = config.space >> 1
        self._needs = [
            (config.first[index + 1], index) for index, work in enumerate(config.program) if work.kind in RECEIVES
        ]
        self._a: list[tuple[bool, list[str], bool, int, bool]] = []
        self._b: list[tuple[int, list[str], bool, int]] = []
        self._seen: dict[int, int] = {0: -1}

    # ------------------------------------------------------------------------------------ one state

    def _of_requester(self, number: int) -> tuple[bool, list[str], bool, int, bool]:
        """Return whether it may produce, its timers, whether software may post, ``una``, and whether all is done."""
        while len(self._a) <= number:
            it = self.requester.view(len(self._a))
            timers = [("rnr_over", it.rnr_wait), ("ack_timeout", it.ack_armed), ("probe", it.probe_armed)]
            posts = it.tail < len(self.config.program) and it.tail - it.sq_head < self._ahead
            done = it.sq_head == len(self.config.program)
            self._a.append((it.scheduled, [name for name, armed in timers if armed], posts, it.una, done))
        return self._a[number]

    def _of_responder(self, number: int) -> tuple[int, list[str], bool, int]:
        """Return how many replies wait, its timer, whether a receive entry is to come, and the PSN it expects."""
        while len(self._b) <= number:
            it = self.responder.view(len(self._b))
            taken = sum(end <= it.expected_psn for end, _ in self._needs) + it.receive
            waits = not it.receives and taken < len(self._needs)
            self._b.append((len(it.replies), ["owed_over"] if it.owed else [], waits, it.expected_psn))
        return self._b[number]

    def steps(self, state: int, fair: bool = False) -> Iterator[Step]:
        """Yield what may happen: with a network and a scheduler that are ``fair`` now, or at their worst.

        A fair network delivers everything in order, before more is sent than it holds, and sooner than any timer.
        """
        a, b = state & _MASK, state >> BITS & _MASK
        q, r = state >> 2 * BITS & _MASK, state >> 3 * BITS
        produces, timers, posts, una, _ = self._of_requester(a)
        replies, owed, waits, expected = self._of_responder(b)
        ends = a | b << BITS
        arrivals, lost = self.requests.arrivals(q)
        for place, packet, rest in () if replies > self._waiting else arrivals[:1] if fair else arrivals:
            after, _ = self.responder.step(b, packet)
            now = self._of_responder(after)[3]
            if now != expected:
                rest = self.requests.expire(rest, now - self._half)
            yield ("request", (place, packet)), a | after << BITS | rest << 2 * BITS | r << 3 * BITS
        idle = not arrivals
        if not fair:
            for rest in lost:
                yield ("loss of a request", ""), ends | rest << 2 * BITS | r << 3 * BITS
        arrivals, lost = self.responses.arrivals(r)
        for place, packet, rest in arrivals[:1] if fair else arrivals:
            after, _ = self.requester.step(a, packet)
            now = self._of_requester(after)[3]
            if now > expected:
                raise ViolationError(f"{packet} acknowledges up to PSN {now}, and the responder expects {expected}")
            if now != una:
                rest = self.responses.expire(rest, now - self._half)
            yield ("response", (place, packet)), after | b << BITS | q << 2 * BITS | rest << 3 * BITS
        if not fair:
            for rest in lost:
                yield ("loss of a response", ""), ends | q << 2 * BITS | rest << 3 * BITS
        idle = idle and not arrivals
        if produces and not (fair and q):
            after, out = self.requester.step(a, "produce")
            sent = self.requests.send(q, out)
            yield ("produce", out), after | b << BITS | sent << 2 * BITS | r << 3 * BITS
        if replies and not (fair and r):
            after, out = self.responder.step(b, "produce")
            sent = self.responses.send(r, out)
            yield ("reply", out), a | after << BITS | q << 2 * BITS | sent << 3 * BITS
        ways = q << 2 * BITS | r << 3 * BITS
        if posts:
            yield ("post", ""), self.requester.step(a, "post")[0] | b << BITS | ways
        if waits:
            yield ("recv", ""), a | self.responder.step(b, "recv")[0] << BITS | ways
        if fair and not (idle and not produces and not replies and not posts and not waits):
            return
        for name in timers:
            yield (name, ""), self.requester.step(a, name)[0] | b << BITS | ways
        for name in owed:
            yield (name, ""), a | self.responder.step(b, name)[0] << BITS | ways

    def done(self, state: int) -> bool:
        """Return whether all work requests have completed."""
        return self._of_requester(state & _MASK)[4]

    # ----------------------------------------------------------------------------------- all states

    def explore(self, most: int = 1 << 30) -> Report:
        """Visit every state, breadth first, up to the first violation; then check progress.

        Args:
            most: states after which it gives up.
        """
        begun, report, seen = time.process_time(), Report(), self._seen
        layer = [0]
        state = 0
        try:
            while layer:
                report.depth += 1
                after = []
                for state in layer:
                    for _, successor in self.steps(state):
                        report.transitions += 1
                        if successor not in seen:
                            seen[successor] = state
                            after.append(successor)
                layer = after
                if len(seen) > most:
                    report.violation = f"not explored: more than {most} states"
                    break
            else:
                self._check_progress(report)
        except ViolationError as error:
            report.violation, report.trace = str(error), self.trace(state)
        report.states, report.seconds = len(seen), time.process_time() - begun
        return report

    def _check_progress(self, report: Report) -> None:
        """Check that from every state a fair network lets all complete, whatever the order of events."""
        behind: dict[int, list[int]] = {}
        left: dict[int, int] = {}
        good = deque(state for state in self._seen if self.done(state))
        finished = set(good)
        for state in self._seen:
            if state in finished:
                continue
            successors = {successor for _, successor in self.steps(state, fair=True)}
            left[state] = len(successors)
            for successor in successors:
                behind.setdefault(successor, []).append(state)
        while good:
            for state in behind.pop(good.popleft(), ()):
                left[state] -= 1
                if not left[state]:
                    del left[state]
                    good.append(state)
        if left:
            state = next(iter(left))
            report.violation = f"{len(left)} states from which not all completes, though the network is fair"
            report.trace = [*self.trace(state), "the network is fair from here on:", *self._stuck(state, left)]

    def _stuck(self, state: int, left: dict[int, int]) -> list[str]:
        """Return the way from a state into what never ends."""
        said, been = [], set[int]()
        while state not in been:
            been.add(state)
            for label, successor in self.steps(state, fair=True):
                if successor in left:
                    said.append(self._say(label))
                    state = successor
                    break
            else:
                return [*said, "nothing can happen"]
        return [*said, "this repeats"]

    def trace(self, state: int) -> list[str]:
        """Return how a state is reached."""
        said: list[str] = []
        while state:
            before = self._seen[state]
            said.append(next(self._say(label) for label, after in self.steps(before) if after == state))
            state = before
        return said[::-1]

    @staticmethod
    def _say(label: Label) -> str:
        name, more = label
        return f"{name} {more}".rstrip()
