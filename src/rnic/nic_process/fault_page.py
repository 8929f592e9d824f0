"""The page of a device's fault rules, which programs with slots map read-only, and a gate of the port."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

from rnic.link.base import Link
from rnic.link.fault_rules import Counts, Rule, pack_rules
from rnic.link.faults import FaultyLink
from rnic.link.middleware import Middleware
from rnic.mem.order import store32
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.memfd import shared_memory
from rnic.state.fault_table import FAULT_TABLE, TABLE_BYTES
from rnic.wire.bursts import RxBurst, TxBurst


class PortGate(Middleware):
    """Drops what this process sends and receives for a slot while the slot's port is held down."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.shut = False
        """True while the port is held down: packets are dropped, and counted as ``fault_port_down``."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Pass bursts on, or drop them while the port is held down."""
        if self.shut:
            self.counters.bump("fault_port_down", sum([burst.count for burst in bursts]))
        else:
            self.inner.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive bursts, or drop them while the port is held down."""
        bursts = self.inner.receive(limit)
        if self.shut:
            self.counters.bump("fault_port_down", sum([burst.count for burst in bursts]))
            return []
        return bursts


class FaultPage:
    """The page of one device.

    Args:
        link: the device's, or ``None`` for one without a fault script.

    Raises:
        OSError: the kernel refuses memory to share.
        ValueError: programs cannot apply these rules; the message says why.
    """

    def __init__(self, link: FaultyLink | None) -> None:
        rules: Sequence[Rule] = () if link is None else link.rules
        table = pack_rules(rules)
        self._link = link if rules else None
        self.memfd = Descriptor()
        self._page = shared_memory("rnic faults", TABLE_BYTES, self.memfd, written_here=True)
        self._page[: len(table)] = table

    def in_front_of(self, inner: Link, counts: memoryview) -> Link:
        """Return the link of a slot: the rules count in ``counts``, where the engine of the program counts as well."""
        if self._link is None:
            return inner
        return FaultyLink(
            inner,
            clock=time.monotonic_ns,
            rng=Random(self._link.seed),
            script=self._link.script,
            counts=Counts(counts),
            seed=self._link.seed,
            by_clock=False,
        )

    def set_port_down(self, down: bool) -> None:
        """Make programs drop packets that they send and receive, or stop doing so."""
        store32(self._page, FAULT_TABLE["port_down"].byte, int(down))

    def close(self) -> None:
        """Close the page together with the device; programs keep their mappings."""
        self._page.close()
        self.memfd.close()


__all__ = ["FaultPage", "PortGate"]
