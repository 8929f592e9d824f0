"""A client that reconnects under traffic while the ports of both ends flap, without losing or duplicating messages.

``python -m rnic.testing.reconnect`` runs a hundred flaps in virtual time and prints a table; with ``--live`` it uses
two devices of a new NIC process, in real time. Exit status 1 if a message was lost, duplicated or damaged. The client
sends numbered messages. When a completion reports that the connection is gone, both ends take their queue pairs through
RESET, and the client asks how many messages the server has received and continues from there. Any program must do so,
since a message whose acknowledgment was lost may or may not have arrived.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from rnic.runtime.attach import fault as ask
from rnic.testing.addresses import own_network
from rnic.testing.faults import NicFaults
from rnic.testing.pair import ALL_RIGHTS, QpPair, VerbsSide
from rnic.verbs import enums as e
from rnic.verbs import open as open_device
from rnic.verbs.attrs import QPAttr, QPCap
from rnic.verbs.event_queues import AsyncEvent

WINDOW = 16
"""Most messages in flight."""
SLOT_BYTES = 4096
DOWN = ("50us", "400us", "2ms", "30ms")
"""Durations of port downtime: the first ones are pauses, the last ends every connection."""
PATIENCE_TURNS = 100_000
_BYTES = 2 * WINDOW * SLOT_BYTES
_DEPTH = 4 * WINDOW
_LIVE_TURN_S = 0.0002
_NUMBER_BYTES = 8
_QUICK = {"timeout": 8, "retry_cnt": 3, "rnr_retry": 7}


@dataclass
class Result:
    """Result of a run."""

    flaps: int = 0
    port_events: int = 0
    connections: int = 1
    sent: int = 0
    """Messages that completed with success."""
    taken: int = 0
    lost: int = 0
    doubled: int = 0
    damaged: int = 0
    repeated: int = 0
    """Messages that were sent again on a new connection."""
    unknown: int = 0
    """Messages that arrived although the client got an error."""

    @property
    def good(self) -> bool:
        """True if nothing was lost, duplicated or damaged."""
        return not (self.lost or self.doubled or self.damaged) and self.taken > 0

    def rows(self) -> list[tuple[str, int]]:
        """Return labels and values for printing."""
        return [
            ("flaps", self.flaps),
            ("port events", self.port_events),
            ("connections", self.connections),
            ("messages completed at the client", self.sent),
            ("messages taken by the server", self.taken),
            ("arrived, but the client was told of an error", self.unknown),
            ("sent again on a new connection", self.repeated),
            ("lost", self.lost),
            ("doubled", self.doubled),
            ("damaged", self.damaged),
        ]


def content(number: int) -> bytes:
    """Return the message of a number: the number in 8 bytes, then bytes derived from it, up to four packets."""
    rng = random.Random(number)
    return number.to_bytes(_NUMBER_BYTES, "big") + rng.randbytes(rng.randrange(SLOT_BYTES - _NUMBER_BYTES))


class Ends(Protocol):
    """The two ends of client and server."""

    @property
    def a(self) -> VerbsSide:
        """Side of the client."""

    @property
    def b(self) -> VerbsSide:
        """Side of the server."""

    def connect(self, **attributes: Any) -> None:
        """Bring both queue pairs to RTS."""

    def work(self) -> None:
        """Let the NICs work for a while."""

    def port_of(self, side: VerbsSide) -> str:
        """Return the state of a side's port: ``"active"`` or ``"down"``."""


class SimEnds(QpPair):
    """Ends in virtual time."""

    def work(self) -> None:
        """See :meth:`Ends.work`."""
        self.net.turn()

    def port_of(self, side: VerbsSide) -> str:
        """See :meth:`Ends.port_of`."""
        return str(side.ctx.runtime.faults().state()["port"])


class LiveSide(VerbsSide):
    """A side on a device of a running NIC process."""

    def __init__(self, address: str, directory: Path) -> None:
        ctx = open_device(address, directory=directory)
        super().__init__(ctx, "RC", _BYTES, _DEPTH, QPCap(_DEPTH, _DEPTH, 1, 1, 0), False, ALL_RIGHTS)
        self.nic = NicFaults(ctx.name, directory)

    def fault(self, name: str, *values: object) -> None:
        """See :meth:`rnic.testing.faults.FaultMethods.fault`."""
        self.nic.fault(name, *values)


class LiveEnds:
    """Ends on two devices of a NIC process, which is started for them.

    Args:
        directory: runtime directory; a NIC process that already runs there is used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        network = own_network()
        self.a, self.b = (LiveSide(f"{network}.{number}", directory) for number in (61, 62))
        self.a.peer, self.b.peer = self.b, self.a
        self.connect(**_QUICK)

    def connect(self, **attributes: Any) -> None:
        """See :meth:`Ends.connect`."""
        for side in (self.a, self.b):
            side.to_rts(side.peer.ctx.query_gid(), side.ctx.query_port().active_mtu, attributes)

    def work(self) -> None:
        """See :meth:`Ends.work`: the NIC process runs by itself."""
        time.sleep(_LIVE_TURN_S)

    def port_of(self, side: VerbsSide) -> str:
        """See :meth:`Ends.port_of`."""
        return str(ask(self._directory, side.ctx.name, ())["port"])

    def close(self) -> None:
        """Close the devices; the NIC process then exits by itself."""
        for side in (self.a, self.b):
            side.ctx.close()


class Client:
    """Client on side ``a``, server on side ``b``."""

    def __init__(self, pair: Ends) -> None:
        self.pair = pair
        self.result = Result()
        self.next = 0
        """The number to send next."""
        self.under_way: list[int] = []
        self.log: list[int] = []
        """Numbers that the server received, in order."""
        self._receives: list[int] = []
        self._serve()

    def _serve(self) -> None:
        self._receives = list(range(2 * WINDOW))
        for slot in self._receives:
            self.pair.b.post_recv(SLOT_BYTES, slot * SLOT_BYTES, slot)

    def go_on(self, messages: int) -> None:
        """Run until the server has received ``messages`` more.

        Raises:
            TimeoutError: none arrived in :data:`PATIENCE_TURNS` turns.
        """
        until = len(self.log) + messages
        idle = 0
        while len(self.log) < until:
            before = len(self.log)
            self.turn()
            idle = 0 if len(self.log) > before else idle + 1
            if idle > PATIENCE_TURNS:
                raise TimeoutError(f"{before} messages arrived, and nothing more does")

    def turn(self) -> None:
        """Send as much as allowed, let the network work, receive what arrived."""
        a = self.pair.a
        while len(self.under_way) < WINDOW:
            message = content(self.next)
            offset = self.next % WINDOW * SLOT_BYTES
            a.buf[offset : offset + len(message)] = message
            a.post_send(e.IBV_WR_SEND, len(message), offset, wr_id=self.next)
            self.under_way.append(self.next)
            self.next += 1
        self.pair.work()
        self._take()
        done = a.poll()
        if any(wc.status != e.IBV_WC_SUCCESS for wc in done):
            self._reconnect(sum(wc.status == e.IBV_WC_SUCCESS for wc in done))
            return
        del self.under_way[: len(done)]
        self.result.sent += len(done)

    def _take(self) -> None:
        b = self.pair.b
        for wc in b.poll():
            if wc.status != e.IBV_WC_SUCCESS:
                continue
            slot = wc.wr_id
            data = bytes(b.buf[slot * SLOT_BYTES : slot * SLOT_BYTES + wc.byte_len])
            number = int.from_bytes(data[:_NUMBER_BYTES], "big")
            self.log.append(number)
            self.result.damaged += data != content(number)
            b.post_recv(SLOT_BYTES, slot * SLOT_BYTES, slot)

    def _reconnect(self, completed: int) -> None:
        """Reconnect both ends; the client continues with the first message that the server has not received."""
        self.result.connections += 1
        self.result.sent += completed
        self._take()
        answered = self.under_way[completed:]
        for side in (self.pair.a, self.pair.b):
            reset(side)
        self._take()  # messages received at the last moment count
        taken = self.log[-1] + 1 if self.log else 0
        self.result.lost += sum(number >= taken for number in self.under_way[:completed])
        self.result.unknown += sum(number < taken for number in answered)
        self.result.repeated += sum(number >= taken for number in answered)
        self.under_way.clear()
        self.next = taken
        self.pair.connect(**_QUICK)
        self._serve()


def reset(side: VerbsSide) -> None:
    """Take a queue pair back to RESET; earlier completions can still be polled."""
    attr = QPAttr()
    attr.qp_state = e.IBV_QPS_RESET
    side.qp.modify(attr, e.IBV_QP_STATE)


def port_events(side: VerbsSide) -> list[AsyncEvent]:
    """Return the events of a side so far."""
    found = []
    while (event := side.ctx._async.get()) is not None:
        found.append(event)
    return found


def run(flaps: int = 100, seed: int = 1, **options: Any) -> Result:
    """Flap ports of random sides in virtual time, with traffic before, during and after each flap.

    Args:
        flaps: number of flaps.
        seed: seed of lengths, sides and times.
        options: options of :class:`~rnic.testing.pair.QpPair`.
    """
    with SimEnds(seed=seed, size=_BYTES, depth=_DEPTH, attributes=_QUICK, **options) as ends:
        return _flap(ends, flaps, seed)


def run_live(directory: Path, flaps: int = 100, seed: int = 1) -> Result:
    """Run the same on two devices of a NIC process, in real time.

    Args:
        directory: its runtime directory, as :func:`rnic.open` takes it.
        flaps: number of flaps.
        seed: seed of lengths, sides and times.

    Raises:
        ProcessError: no NIC process can be started.
        TimeoutError: nothing arrives anymore.
    """
    ends = LiveEnds(directory)
    try:
        return _flap(ends, flaps, seed)
    finally:
        ends.close()


def _flap(ends: Ends, flaps: int, seed: int) -> Result:
    rng = random.Random(seed)
    client = Client(ends)
    result = client.result
    for _ in range(flaps):
        client.go_on(rng.randrange(1, 3 * WINDOW))
        side = rng.choice((ends.a, ends.b))
        side.flap(1, down=rng.choice(DOWN))
        result.flaps += 1
        while ends.port_of(side) == "down":
            client.turn()
    client.go_on(4 * WINDOW)
    result.port_events = sum(len(port_events(side)) for side in (ends.a, ends.b))
    result.taken = len(client.log)
    result.doubled = len(client.log) - len(set(client.log))
    result.lost += len(set(range(max(client.log) + 1)) - set(client.log))
    return result


@click.command()
@click.option("--flaps", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--live", is_flag=True, help="Use two devices of a new NIC process, in real time.")
def main(flaps: int, seed: int, live: bool) -> None:
    """Flap ports while a client sends and reconnects, and count lost and duplicated messages."""
    if live:
        with tempfile.TemporaryDirectory(prefix="rnic-flaps-", ignore_cleanup_errors=True) as name:
            result = run_live(Path(name), flaps, seed)
    else:
        result = run(flaps, seed)
    for name, count in result.rows():
        click.echo(f"{name:46} {count:>8}")
    click.echo("nothing lost, nothing doubled" if result.good else "FAILED")
    sys.exit(not result.good)


if __name__ == "__main__":
    main()
