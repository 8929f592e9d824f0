"""A PAXI window and its target on two NICs in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rnic.arrays.exports import Shares
from rnic.arrays.handshake import BufferInfo, Endpoint
from rnic.cm.line_socket import ExchangeError
from rnic.paxi.bridge import BridgeConfig
from rnic.paxi.port import Port, Stopped
from rnic.paxi.rclink import QPS, RETRY_TIMER_NS, End, RcEnd, RcPort, RcServed
from rnic.paxi.target import Served
from rnic.paxi.window import Window
from rnic.rclink import RcLinkPort
from rnic.rclink.numbers import TYPE1_UDP_PORT
from rnic.testing.net import SimNet
from rnic.testing.rclink import RcLinkNet
from rnic.verbs.memory import PD


class NearbyFar:
    """The target's side without TCP. While :attr:`dead` is set it does not answer.

    Args:
        served: the target's queue pair.
        claimed: memory size that it reports, if that differs from the real one.
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
        memory: the buffer to serve, or the size of a new one.
        config: parameters of the bridge.
        claimed: memory size that the target reports.
        readonly: serve read-only memory.
        seed: seed of all random choices.
        net_options: options of :class:`~rnic.testing.net.SimNet`: ``tx`` fault rates, ``faults`` scripts and so on.
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
        """Open another window, and its queue pair at the target."""
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


class NearbyRcFar:
    """The target's side of a window over RC Link, without TCP. While :attr:`dead` is set it does not answer."""

    def __init__(self, served: RcServed, claimed: int | None = None) -> None:
        self.served = served
        self.claimed = claimed
        self.dead = False
        self.stops = 0

    def meet(self, mine: RcEnd) -> RcEnd:
        """See :class:`~rnic.paxi.rclink.RcFar`."""
        self._check()
        peer = self.served.meet(mine)
        return peer if self.claimed is None else replace(peer, size=self.claimed)

    def stop(self) -> Stopped:
        """See :class:`~rnic.paxi.port.Remote`."""
        self.stops += 1
        self._check()
        return self.served.stop()

    def close(self) -> None:
        """See :class:`~rnic.paxi.port.Remote`."""
        self.served.close()

    def _check(self) -> None:
        if self.dead:
            raise ExchangeError("the target hung up")


class _Whole:
    """An RC Link port whose progress is a round of the whole net: users of a window drive it in virtual time."""

    def __init__(self, port: RcLinkPort, net: RcLinkNet) -> None:
        self._net = net
        self.endpoint, self.clock = port.endpoint, net.clock

    def progress(self) -> bool:
        """Run one round of the whole net; if nothing happens, advance the clock to the next deadline."""
        loop, clock = self._net.loop, self._net.clock
        if loop.step():
            return True
        deadline = loop.next_deadline_ns()
        clock.now_ns = clock.now_ns + loop.round_ns if deadline is None else max(deadline, clock.now_ns)
        return False


class _Turning:
    """An RC Link port that calls its user after each round; for the loop of a net."""

    def __init__(self, port: RcLinkPort, turn: Callable[[], bool]) -> None:
        self._port, self._turn = port, turn
        self.nic, self.link = port.nic, port.link

    def progress(self) -> bool:
        """Run one round of the port."""
        moved = self._port.progress()
        return self._turn() or moved

    def next_deadline_ns(self) -> int | None:
        """See :class:`~rnic.rclink.port.RcLinkPort`."""
        return self._port.next_deadline_ns()


class RcPaxiPair:
    """A window over RC Link onto memory of another node, in virtual time. Arguments as of :class:`PaxiPair`.

    ``net_options`` are those of :class:`~rnic.testing.rclink.RcLinkNet`.
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
        settings = {"qp_num": QPS, "retry_timer_ns": RETRY_TIMER_NS} | net_options.pop("settings", {})
        self.net = RcLinkNet(2, seed=seed, settings=settings, **net_options)
        self.memory: Any = bytearray(memory) if isinstance(memory, int) else memory
        rng = random.Random(seed)
        near, far = self.net.ports
        here = End(_Whole(near, self.net), self.net.address(0), TYPE1_UDP_PORT, rng)
        there = End(far, self.net.address(1), TYPE1_UDP_PORT, rng)
        served = RcServed(there, memoryview(self.memory), readonly)
        self.net.loop.add(_Turning(far, served.turn))
        self.far = NearbyRcFar(served, claimed)
        self.port = RcPort(here, self.far, config or BridgeConfig(), 0, self._wait)
        self.window = Window(self.port)
        self.bridge = self.port.bridge

    @staticmethod
    def _wait(turn: Callable[[], bool], timeout_s: float | None) -> bool:
        while not turn():  # waits: each turn is a round of the net, in virtual time
            pass
        return True

    def close(self) -> None:
        """Close the window."""
        self.window.close()

    def __enter__(self) -> RcPaxiPair:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
