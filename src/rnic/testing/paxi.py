"""A PAXI window and its target on two NICs in virtual time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from rnic.arrays.exports import Shares
from rnic.arrays.handshake import BufferInfo, Endpoint
from rnic.cm.line_socket import ExchangeError
from rnic.paxi.bridge import BridgeConfig
from rnic.paxi.port import Port, Stopped
from rnic.paxi.target import Served
from rnic.paxi.window import Window
from rnic.testing.net import SimNet
from rnic.verbs.memory import PD


class NearbyFar:
    """The target's side without TCP. While :attr:`dead` is set it does not answer.

    Args:
        served: the target's queue pair.
        claimed: bytes of memory that it says it has, where that is not the truth.
    """

    def __init__(self, served: Served, claimed: int | None = None) -> None:
        self.served = served
        self.claimed = claimed
        self.dead = False
        self.stops = 0

    def meet(self, mine: Endpoint) -> Endpoint:
        """See :class:`~rnic.paxi.port.Far`."""
        self._check()
        peer = self.served.meet(mine)
        buffers: tuple[BufferInfo, ...] = peer.buffers
        if self.claimed is not None:
            buffers = tuple(replace(each, length=self.claimed, shape=(self.claimed,)) for each in buffers)
        return replace(peer, buffers=buffers)

    def stop(self) -> Stopped:
        """See :class:`~rnic.paxi.port.Far`."""
        self.stops += 1
        self._check()
        return self.served.stop()

    def close(self) -> None:
        """See :class:`~rnic.paxi.port.Far`."""
        self.served.close()

    def _check(self) -> None:
        if self.dead:
            raise ExchangeError("the target hung up")


class PaxiPair:
    """A window of node 0 onto ``memory`` of node 1.

    Args:
        memory: the buffer that is served, or how many bytes one of its own has.
        config: what the bridge is built as.
        claimed: bytes that the target says it has.
        readonly: serve for reading alone.
        seed: of everything random.
        net_options: of :class:`~rnic.testing.net.SimNet`: ``tx`` fault rates, ``faults`` scripts and so on.
    """

    def __init__(
        self,
        memory: Any = 1 << 16,
        config: BridgeConfig | None = None,
        *,
        claimed: int | None = None,
        readonly: bool = False,
        seed: int = 1,
        **net_options: Any,
    ) -> None:
        self.net = SimNet(2, seed=seed, **net_options)
        here, there = self.net.nodes
        self.memory: Any = bytearray(memory) if isinstance(memory, int) else memory
        self.shares = Shares(there.ctx, owned=False)
        self.shares.add({"memory": self.memory}, writable=not readonly)
        self._rng = random.Random(seed)
        self._pd = PD(here.ctx)
        self._claimed = claimed
        self._windows: list[Window] = []
        self.window, self.far = self.open(config or BridgeConfig())
        self.port = self.window.port
        self.bridge = self.port.bridge

    def open(self, config: BridgeConfig) -> tuple[Window, NearbyFar]:
        """Another window, and its queue pair at the target."""
        far = NearbyFar(Served(self.shares, self._rng), self._claimed)
        window = Window(Port(self._pd, far, config, 0, self._rng, self.net.clock))
        self._windows.append(window)
        return window, far

    def close(self) -> None:
        """Close the windows and the net."""
        for window in self._windows:
            window.close()
        self.net.close()

    def __enter__(self) -> PaxiPair:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
