"""Test bench for scripts: a wire to the peer, and the peer's agent, or numbers of the peer that the user gives."""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rnic.cm.line_socket import ExchangeError, LineSocket, dial
from rnic.conform.agent import VERSION, VerbsAgent
from rnic.conform.frames import Connection, Region, connection_of, is_plain_ack
from rnic.conform.script import QUEUES, REGIONS, Script, pattern
from rnic.link.base import flow_between
from rnic.link.udp import UdpLink
from rnic.spec.errors import RnicError, VerbsError
from rnic.spec.limits import MTU_BYTES, MTU_CODES, ROCE_UDP_PORT
from rnic.spec.psn import PSN_MASK
from rnic.testing.net import SimNet
from rnic.testing.packets import NAMES
from rnic.trace.counters import Counters
from rnic.verbs.attrs import GID
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.ident import solve
from rnic.wire.packet import Packet, build, parse, seal

FIRST_QPN = 0x0C000
"""First local QPN; each connection has another, so that a late packet of one is not taken for the next."""
DEFAULT_AGENT_PORT = 18_600
_PREPARED_BYTES = 16_384
_MS = 1_000_000


class BenchError(RnicError):
    """The peer cannot be set up; the message is one line."""


class NotHereError(RnicError):
    """This peer cannot do what the script needs; the message says what."""


class Arrived(NamedTuple):
    """A packet from the peer."""

    time_ns: int
    payload: bytes
    icrc_ok: bool


class Completed(NamedTuple):
    """A completion of the peer's queue pair, as its agent reports it."""

    kind: str
    status: int
    len: int
    imm: int
    slot: int
    said: str


class Wire(Protocol):
    """Sends and receives packets of the peer, and tells the time."""

    address: bytes
    """Local IP address."""
    port: int
    """Local UDP port."""
    crossing_ns: int
    """Time after sending a packet in which the peer may not have seen it: its process may not be running."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""

    def send(self, flow: Flow, payload: bytes) -> None:
        """Send one packet."""

    def receive(self, until_ns: int) -> Arrived | None:
        """Return the next packet that arrives before ``until_ns``, or ``None``."""

    def give_back(self, packets: list[Arrived]) -> None:
        """Put received packets back: :meth:`receive` returns them again, before all others."""

    def close(self) -> None:
        """Release the wire."""


def arrived(burst: RxBurst, now_ns: int) -> list[Arrived]:
    """Return the packets of a burst, each with its ICRC checked."""
    found = []
    for number, start in enumerate(range(0, burst.length, burst.segment)):
        view = burst.buf[start : min(start + burst.segment, burst.length)]
        if len(view) < 16:
            continue
        ident = None if burst.ident is None else burst.ident + number
        if ident is not None or len(burst.flow.src) == 16:
            ok = burst.flow.check(view, ident or 0)
        else:
            ok = burst.flow.check(view) or solve(view, burst.flow) is not None
        found.append(Arrived(now_ns, bytes(view), ok))
    return found


class UdpWire:
    """The real network, from an unprivileged UDP socket."""

    crossing_ns = 1_000_000

    def __init__(self, address: str, port: int = ROCE_UDP_PORT) -> None:
        self.link = UdpLink(address, port, gso=False, counters=Counters())
        self.address = self.link.address
        self.port = self.link.port
        self._inbox: deque[Arrived] = deque()

    def now_ns(self) -> int:
        """See :class:`Wire`."""
        return time.monotonic_ns()

    def send(self, flow: Flow, payload: bytes) -> None:
        """See :class:`Wire`."""
        self.link.send([TxBurst(flow, [payload], len(payload), 1, len(payload))])

    def receive(self, until_ns: int) -> Arrived | None:
        """See :class:`Wire`."""
        while not self._inbox:
            left = until_ns - self.now_ns()
            descriptors = self.link.filenos()
            if left < 0 or not select.select(descriptors, [], [], left / 1e9)[0]:
                return None
            for burst in self.link.receive(64):
                self._inbox += arrived(burst, self.now_ns())
        return self._inbox.popleft()

    def give_back(self, packets: list[Arrived]) -> None:
        """See :class:`Wire`."""
        self._inbox.extendleft(reversed(packets))

    def close(self) -> None:
        """See :class:`Wire`."""
        self.link.close()


class SimWire:
    """A simulated wire to one NIC, in virtual time.

    Args:
        net: its first node is the peer.
    """

    crossing_ns = 0

    def __init__(self, net: SimNet) -> None:
        self.net = net
        self.port = ROCE_UDP_PORT
        peer = net.nodes[0].nic.config.address
        self.address = peer[:-1] + b"\xc8"
        self._link = net.outsider(self.address)
        self._inbox: deque[Arrived] = deque()

    def now_ns(self) -> int:
        """See :class:`Wire`."""
        return self.net.clock.now_ns

    def send(self, flow: Flow, payload: bytes) -> None:
        """See :class:`Wire`."""
        self._link.send([TxBurst(flow, [payload], len(payload), 1, len(payload))])

    def receive(self, until_ns: int) -> Arrived | None:
        """See :class:`Wire`."""
        while True:
            if self._inbox and self._inbox[0].time_ns <= until_ns:
                return self._inbox.popleft()
            if self.now_ns() > until_ns:
                return None
            moved = self.net.turn()
            for burst in self._link.receive(64):
                self._inbox += arrived(burst, self.now_ns())
            if not moved and not self._inbox:
                self.net.clock.now_ns = until_ns
                return None

    def give_back(self, packets: list[Arrived]) -> None:
        """See :class:`Wire`."""
        self._inbox.extendleft(reversed(packets))

    def close(self) -> None:
        """See :class:`Wire`."""


class Software(Protocol):
    """An agent: answers each line with a line."""

    def ask(self, line: str) -> str:
        """Send a line; return the answer."""

    def close(self) -> None:
        """Release the agent."""


class SimAgent:
    """The agent inside the simulation; time stands still while it works."""

    def __init__(self, net: SimNet) -> None:
        self._net = net
        self._agent = VerbsAgent(net.nodes[0].ctx)

    def ask(self, line: str) -> str:
        """See :class:`Software`."""
        self._net.driving = True
        try:
            return self._agent.ask(line)
        finally:
            self._net.driving = False

    def close(self) -> None:
        """See :class:`Software`."""


class RemoteAgent:
    """The agent on another machine, over TCP: one line in each direction.

    Raises:
        BenchError: no agent answers there.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket: LineSocket = dial(host, port)
        except ExchangeError as error:
            raise BenchError(
                f"{error}; start an agent there: rnic conform --agent --addr {host} --agent-port {port}, "
                "or the program that rnic conform --agent-source prints"
            ) from None

    def ask(self, line: str) -> str:
        """See :class:`Software`."""
        try:
            self._socket.send(line.encode() + b"\n")
            return self._socket.receive().decode(errors="replace")
        except ExchangeError as error:
            raise BenchError(f"the agent is gone: {error}") from None

    def close(self) -> None:
        """See :class:`Software`: the agent then accepts the next client."""
        self._socket.close()


@contextlib.contextmanager
def understood(line: str, answer: str) -> Iterator[None]:
    """Parse an agent's answer in this block; a malformed answer raises a :class:`BenchError` of one line."""
    try:
        yield
    except (KeyError, ValueError, TypeError, VerbsError):
        raise BenchError(f"the agent answers {answer[:80]!r} to {line!r}: use the agent of this rnic") from None


def values_of(answer: str) -> dict[str, str]:
    """Return the words NAME=VALUE of an answer."""
    return dict(word.split("=", 1) for word in answer.split() if "=" in word)


def _number(text: str, low: int, high: int) -> int:
    number = int(text, 0)
    if not low <= number <= high:
        raise ValueError(text)
    return number


def _region(text: str) -> Region:
    va, key, size = text.split(":")
    return Region(_number(va, 0, (1 << 64) - 1), _number(key, 0, 0xFFFF_FFFF), _number(size, 8, 1 << 32))


class Bench:
    """A wire and the peer's software.

    Args:
        wire: to the peer.
        software: its agent.
    """

    patience_ns = 1_500 * _MS
    """Longest wait for an expected packet, in nanoseconds."""
    quiet_ns = 60 * _MS
    """Silence after which no packet is expected."""

    def __init__(self, wire: Wire, software: Software) -> None:
        self.wire = wire
        self._software = software
        self._qpn = FIRST_QPN
        try:
            hello = self.ask("hello")
        except NotHereError as error:
            raise BenchError(f"the agent does not greet: {error}") from None
        values = values_of(hello)
        if values.get("version") != str(VERSION):
            raise BenchError(f"the agent speaks version {values.get('version')}, this end {VERSION}: use the same rnic")
        with understood("hello", hello):
            self.maker = values["maker"]
            self.mtu = MTU_BYTES[MTU_CODES[int(values["mtu"])]]
            self.address = GID(bytes.fromhex(values["gid"])).address
            self._port = _number(values.get("port", str(ROCE_UDP_PORT)), 1, 0xFFFF)
        if len(self.address) != len(wire.address):
            raise BenchError("the agent's GID and our address are of different IP versions: choose another GID index")

    def ask(self, line: str) -> str:
        """Return the agent's answer, without its ``ok``; raise :class:`NotHereError` if it cannot do it."""
        answer = self._software.ask(line)
        verdict, _, rest = answer.partition(" ")
        if verdict != "ok":
            raise NotHereError(f"{line.split(maxsplit=1)[0]}: {rest or answer}")
        return rest

    def open(self, script: Script) -> Connection:
        """Open a new connection with the script's options."""
        if script.mtu > self.mtu:
            raise NotHereError(f"the peer's path MTU is {self.mtu}")
        options = script.options
        start = int(options["start"], 0)
        self._qpn += 1
        gid = GID(self.wire.address).raw.hex()
        words: dict[str, object] = {"service": options["service"], "qpn": self._qpn, "gid": gid}
        words |= {"port": self.wire.port, "theirs": start, "ours": start}
        rest = ("mtu", "access", "rd", "rnr_timer", "timeout", "retry", "rnr_retry", "credits")
        words |= {name: options[name] for name in rest}
        answer = self.ask("open " + " ".join(f"{name}={value}" for name, value in words.items()))
        with understood("open", answer):
            values = values_of(answer)
            regions = {name: _region(values[name]) for name in REGIONS}
            qpn = _number(values["qpn"], 0, 0xFF_FFFF)
        if options["service"].startswith("XRC") and not set(QUEUES) <= values.keys():
            raise NotHereError("the agent knows no XRC")
        flow = flow_between(self.wire.address, self.wire.port, self.address, self._port)
        made = connection_of(script, qpn=self._qpn, peer_qpn=qpn, flow=flow, regions=regions)
        with understood("open", answer):
            made.numbers |= {name: _number(values[name], 0, 0xFF_FFFF) for name in QUEUES if name in values}
        return made

    def ask_bytes(self, region: str, at: int, length: int) -> bytes:
        """Return bytes of the peer's memory."""
        line = f"bytes {region} {at} {length}"
        answer = self.ask(line)
        with understood(line, answer):
            return bytes.fromhex(answer)

    def ask_completion(self) -> Completed | None:
        """Return the next completion of the peer's queue pair."""
        answer = self.ask("poll")
        if answer == "none":
            return None
        values = values_of(answer)
        with understood("poll", answer):
            length, imm, slot = (int(values.get(name, "0")) for name in ("len", "imm", "slot"))
            return Completed(values["kind"], int(values["status"]), length, imm, slot, answer)

    def close(self) -> None:
        """End the connection."""
        self.ask("close")

    def hang_up(self) -> None:
        """Release wire and agent."""
        self.wire.close()
        self._software.close()


class HandBench(Bench):
    """A peer without an agent, known only by numbers: each script that needs no agent uses one of its queue pairs.

    Args:
        wire: to the peer.
        address: the peer's, 4 or 16 bytes.
        queue_pairs: numbers and first PSNs; one that a script leaves in error is not used again.
        region: memory that the peer gave for WRITE, READ and atomics.
        mtu: path MTU of the queue pairs, in bytes.
        qpn: local QPN, to which the peer's queue pairs are connected.
    """

    def __init__(
        self,
        wire: Wire,
        address: bytes,
        queue_pairs: list[tuple[int, int]],
        region: Region,
        mtu: int,
        maker: str,
        qpn: int = FIRST_QPN,
    ) -> None:
        self.wire = wire
        self._qpn = qpn
        self.maker = maker
        self.mtu = mtu
        self.address = address
        self._port = ROCE_UDP_PORT
        self._queue_pairs = deque(queue_pairs)
        self._region = region
        self._now: Connection | None = None
        self._fatal = False

    def ask(self, line: str) -> str:
        """Raise the error: there is no agent."""
        raise NotHereError("it needs an agent")

    def open(self, script: Script) -> Connection:
        """Return the next connection."""
        if script.needs_agent:
            raise NotHereError("it needs an agent")
        if script.fatal and len(self._queue_pairs) < 2 and self._now is not None:
            raise NotHereError("it leaves its queue pair in error, and this is the last one: name more with --qp")
        if not self._queue_pairs:
            raise NotHereError("all queue pairs are in error: name more with --qp")
        qpn, psn = self._queue_pairs[0]
        flow = flow_between(self.wire.address, self.wire.port, self.address, self._port)
        made = connection_of(script, qpn=self._qpn, peer_qpn=qpn, flow=flow, regions={"M": self._region})
        made.mtu = made.numbers["mtu"] = self.mtu
        made.psn = psn
        made.msn = self._now.msn if self._now is not None else 0
        self._now, self._fatal = made, script.fatal
        return made

    def prepare(self) -> None:
        """Initialize the peer's memory with WRITEs, and learn the queue pair's MSN.

        Raises:
            NotHereError: the peer does not acknowledge them.
        """
        made = self._now
        assert made is not None
        qpn, psn = self._queue_pairs[0]
        step = min(self.mtu, self._region.size)
        for at in range(0, min(_PREPARED_BYTES, self._region.size), step):
            frame = build(
                NAMES["RC_WRITE_ONLY"], dqpn=qpn, psn=psn, ackreq=True, va=self._region.va + at,
                rkey=self._region.key, dma_length=step, payload=pattern("m", at, step),
            )  # fmt: skip
            self.wire.send(made.flow, seal(frame, made.flow))
            came = self.wire.receive(self.wire.now_ns() + self.patience_ns)
            packet = None if came is None else parse(memoryview(came.payload))
            if not isinstance(packet, Packet) or not is_plain_ack(packet) or packet.psn != psn:
                raise NotHereError(f"queue pair {qpn:#x} acknowledges no WRITE: check its number, PSN, --va and --rkey")
            psn = psn + 1 & PSN_MASK
            made.msn = packet.msn
        self._queue_pairs[0] = (qpn, psn)
        made.psn = psn

    def used(self, psns: int, messages: int, failed: bool) -> None:
        """Note how much of the connection was used; after a failed script its state is unknown."""
        qpn, psn = self._queue_pairs.popleft()
        assert self._now is not None
        if not self._fatal and not failed:
            self._queue_pairs.appendleft((qpn, psn + psns & 0xFF_FFFF))
            self._now.msn += messages

    def close(self) -> None:
        """Do nothing: there is no agent to tell."""

    def hang_up(self) -> None:
        """Release the wire."""
        self.wire.close()


def simulated(net: SimNet | None = None) -> Bench:
    """Return a bench in virtual time: with rnic itself as the peer."""
    net = net or SimNet(1)
    bench = Bench(SimWire(net), SimAgent(net))
    bench.patience_ns, bench.quiet_ns = 4_000 * _MS, 20 * _MS
    return bench
