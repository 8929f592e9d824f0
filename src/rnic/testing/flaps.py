"""A client that reconnects, under traffic, while the ports of both ends flap: it loses nothing and doubles nothing.

``python -m rnic.testing.flaps`` runs a hundred flaps in virtual time and prints a table; exit status 1 where anything
was lost, doubled or damaged. The client sends numbered messages. When a completion says that the connection is gone,
both ends take their queue pairs through RESET, the client learns how many messages the server has taken, and goes on
from there: what any program has to do, since a message whose acknowledgement was lost may have arrived or not.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import click

from rnic.testing.pair import QpPair, Side
from rnic.verbs import enums as e
from rnic.verbs.attrs import QPAttr
from rnic.verbs.context import AsyncEvent

WINDOW = 16
"""Messages that the client has under way."""
SLOT_BYTES = 4096
DOWN = ("50us", "400us", "2ms", "30ms")
"""How long a port is down: the first are pauses, the last ends every connection."""
_NUMBER_BYTES = 8
_QUICK = {"timeout": 8, "retry_cnt": 3, "rnr_retry": 7}


@dataclass
class Result:
    """What became of a run."""

    flaps: int = 0
    port_events: int = 0
    connections: int = 1
    sent: int = 0
    """Messages whose completion said success."""
    taken: int = 0
    lost: int = 0
    doubled: int = 0
    damaged: int = 0
    repeated: int = 0
    """Messages that were sent again on a new connection."""
    unknown: int = 0
    """Messages that had arrived although the client was told of an error."""

    @property
    def good(self) -> bool:
        """Whether nothing was lost, doubled or damaged."""
        return not (self.lost or self.doubled or self.damaged) and self.taken > 0

    def rows(self) -> list[tuple[str, int]]:
        """For printing."""
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
    """The message of a number: 8 bytes of it, then bytes that follow from it, up to four packets in all."""
    rng = random.Random(number)
    return number.to_bytes(_NUMBER_BYTES, "big") + rng.randbytes(rng.randrange(SLOT_BYTES - _NUMBER_BYTES))


class Client:
    """Client on side ``a``, server on side ``b``."""

    def __init__(self, pair: QpPair) -> None:
        self.pair = pair
        self.result = Result()
        self.next = 0
        """The number to send next."""
        self.under_way: list[int] = []
        self.log: list[int] = []
        """Numbers that the server took, in order."""
        self._receives: list[int] = []
        self._serve()

    def _serve(self) -> None:
        self._receives = list(range(2 * WINDOW))
        for slot in self._receives:
            self.pair.b.post_recv(SLOT_BYTES, slot * SLOT_BYTES, slot)

    def turn(self) -> None:
        """Send what may be sent, let the network work, take what came."""
        a = self.pair.a
        while len(self.under_way) < WINDOW:
            message = content(self.next)
            offset = self.next % WINDOW * SLOT_BYTES
            a.buf[offset : offset + len(message)] = message
            a.post_send(e.IBV_WR_SEND, len(message), offset, wr_id=self.next)
            self.under_way.append(self.next)
            self.next += 1
        self.pair.net.turn()
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
        """Both ends anew; the client goes on with the first message that the server has not taken."""
        self.result.connections += 1
        self.result.sent += completed
        self._take()
        answered = self.under_way[completed:]
        for side in (self.pair.a, self.pair.b):
            reset(side)
        self._take()  # what was taken at the last moment counts
        taken = self.log[-1] + 1 if self.log else 0
        self.result.lost += sum(number >= taken for number in self.under_way[:completed])
        self.result.unknown += sum(number < taken for number in answered)
        self.result.repeated += sum(number >= taken for number in answered)
        self.under_way.clear()
        self.next = taken
        self.pair.connect(**_QUICK)
        self._serve()


def reset(side: Side) -> None:
    """A queue pair back to RESET; what had completed can still be polled by whoever asked before."""
    attr = QPAttr()
    attr.qp_state = e.IBV_QPS_RESET
    side.qp.modify(attr, e.IBV_QP_STATE)


def port_events(side: Side) -> list[AsyncEvent]:
    """The events of a side so far."""
    found = []
    while (event := side.ctx._async.get()) is not None:
        found.append(event)
    return found


def run(flaps: int = 100, seed: int = 1, **options: Any) -> Result:
    """Flap one side's port after the other at random, with traffic before, meanwhile and after.

    Args:
        flaps: how often.
        seed: of lengths, sides and times.
        options: of :class:`~rnic.testing.pair.QpPair`.
    """
    rng = random.Random(seed)
    size = 2 * WINDOW * SLOT_BYTES
    with QpPair(seed=seed, size=size, depth=4 * WINDOW, attributes=_QUICK, **options) as pair:
        client = Client(pair)
        result = client.result
        for _ in range(flaps):
            until = len(client.log) + rng.randrange(1, 3 * WINDOW)
            while len(client.log) < until:
                client.turn()
            side = rng.choice((pair.a, pair.b))
            side.flap(1, down=rng.choice(DOWN))
            result.flaps += 1
            faults = side.ctx.runtime.faults()
            while faults.state()["port"] == "down":
                client.turn()
        until = len(client.log) + 4 * WINDOW
        while len(client.log) < until:
            client.turn()
        result.port_events = sum(len(port_events(side)) for side in (pair.a, pair.b))
        result.taken = len(client.log)
        result.doubled = len(client.log) - len(set(client.log))
        result.lost += len(set(range(max(client.log) + 1)) - set(client.log))
    return result


@click.command()
@click.option("--flaps", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(flaps: int, seed: int) -> None:
    """Flap ports under the traffic of a client that reconnects, and count what was lost or doubled."""
    result = run(flaps, seed)
    for name, count in result.rows():
        click.echo(f"{name:46} {count:>8}")
    click.echo("nothing lost, nothing doubled" if result.good else "FAILED")
    sys.exit(not result.good)


if __name__ == "__main__":
    main()
