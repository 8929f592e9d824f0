"""Paths to peers: one shared :class:`~rnic.wire.flow.Flow` for all packets on the same path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rnic.context.qp_context import QpContext
from rnic.device.config import NicConfig
from rnic.spec.gids import address_from_gid, gid_from_address
from rnic.state.arena import Arena
from rnic.state.paths import FLOW
from rnic.trace.counters import Counters
from rnic.transport.message import Message
from rnic.wire.flow import MAX_IDENTS, Flow
from rnic.wire.flow_records import FlowRecords

DEFAULT_HOP_LIMIT = 64
_MAX_FLOWS = 4_096
_NOWHERE_4 = bytes((240, 0, 0, 0))
_NOWHERE_6 = bytes((1,)) + bytes(15)
NOWHERE = frozenset((_NOWHERE_4, _NOWHERE_6))
"""Addresses without a host: reserved (RFC 1112), and the discard prefix 100::/64 (RFC 6666)."""


def source_port(local: int, remote: int) -> int:
    """Return the UDP source port of a connected queue pair, derived from its number and its peer's.

    As with common NICs, it is in the dynamic range, so that switches spread queue pairs over equal-cost paths.
    """
    return 0xC000 | (local * 0x9E37 ^ remote) & 0x3FFF


class Offload(Protocol):
    """Link services that the device uses for a path."""

    def max_segments(self, flow: Flow, /) -> int:
        """Return the number of packets that one burst on this path may hold."""

    def allow_gso(self, flow: Flow, /) -> None:
        """Allow bursts that the kernel segments: the peer agreed."""


def peer_gid(ctx: QpContext, config: NicConfig) -> bytes:
    """Return the GID of a connected queue pair's peer: for IPv4 002's ``dip`` if set, else ``rgid``."""
    if len(config.address) == 4 and ctx.dip:
        return gid_from_address(ctx.dip.to_bytes(4, "big"))
    gid: int = ctx.rgid
    return gid.to_bytes(16, "big")


def flow_bytes(log_max_qps: int) -> int:
    """Return the most arena bytes that flows use."""
    return ((1 << log_max_qps) + _MAX_FLOWS + 1) * FLOW.size


class Paths:
    """Creates and caches flows: queue pairs to one peer share a flow and its CRC seeds.

    Each flow has a record in ``arena``; :attr:`records` finds it by the record's offset. Unused flows are removed when
    there are too many, and ``swept`` is called. ``offload`` is the link; without one, a burst has up to 64 packets if
    the peer agreed, else one.
    """

    __slots__ = ("_config", "_counters", "_flows", "_most", "_nowhere", "_swept", "offload", "records")

    def __init__(self, config: NicConfig, counters: Counters, arena: Arena, swept: Callable[[], None]) -> None:
        self._swept = swept
        self._config = config
        self._counters = counters
        self.records = FlowRecords(arena)
        self._flows: dict[tuple[bytes, int, int, int, int, int, int, bytes, tuple[int, int]], Flow] = {}
        nowhere = _NOWHERE_4 if len(config.address) == 4 else _NOWHERE_6
        self._nowhere = Flow(config.address, nowhere, config.port)
        self.records.add(self._nowhere)
        self._most = _MAX_FLOWS
        self.offload: Offload | None = None

    def connected(self, ctx: QpContext) -> Flow:
        """Return the path in a context; for a UD queue pair, which has none, return one to :data:`NOWHERE`."""
        dgid = peer_gid(ctx, self._config)
        if not any(dgid):
            return self._nowhere
        own = self._config.address
        source = ctx.sip.to_bytes(4, "big") if len(own) == 4 and ctx.sip else own
        return self._flow(ctx, source, dgid, ctx)

    def datagram(self, ctx: QpContext, message: Message) -> Flow:
        """Return the path to the destination of a UD work request. An unusable address is counted and gets a path to
        :data:`NOWHERE`."""
        dgid = message.dgid
        address = address_from_gid(dgid)
        if len(address) != len(self._config.address) or not any(address):
            self._counters.bump("drop_tx_bad_address")
            return self._nowhere
        return self._flow(ctx, self._config.address, dgid, message)

    def _flow(self, ctx: QpContext, source: bytes, dgid: bytes, path: QpContext | Message) -> Flow:
        config = self._config
        sport = path.udp_sport
        if not sport:
            sport = source_port(ctx.local_qpn, ctx.remote_qpn)
        if config.fixed_sport and sport not in config.source_ports:
            sport = config.source_ports[sport % len(config.source_ports)]
        key = (
            dgid,
            sport,
            path.udp_dport or config.port,
            path.tclass,
            path.hop_limit or DEFAULT_HOP_LIMIT,
            path.flow_label,
            path.sl,
            source,
            (path.smac_hi << 16 | path.slid, path.dmac_hi << 16 | path.dlid) if isinstance(path, QpContext) else (0, 0),
        )
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) >= self._most:
                self._sweep()
            flow = Flow(source, address_from_gid(dgid), *key[1:-2])
            flow.smac, flow.dmac = key[-1]
            self.records.add(flow)
            self._flows[key] = flow
        return flow

    def _sweep(self) -> None:
        """Remove the flows of datagrams, which no queue pair uses as its path."""
        users, flows = self.records.users, self._flows
        self._flows = {key: flow for key, flow in flows.items() if users(flow)}
        self._most = len(self._flows) + _MAX_FLOWS
        for key, flow in flows.items():
            if key not in self._flows:
                self.records.drop(flow)
        self._swept()

    def max_segments(self, flow: Flow, gso_agreed: bool) -> int:
        """Return the number of packets that one burst on this path may hold."""
        offload = self.offload
        if offload is None:
            return MAX_IDENTS if gso_agreed else 1
        if gso_agreed:
            offload.allow_gso(flow)
        return offload.max_segments(flow)
