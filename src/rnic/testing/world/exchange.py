"""Connection management of a world: the NICs' agents exchange QPNs and PSNs of both ends of a connection."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from rnic.cm.agent import CmAgent
from rnic.cm.records import ConnectionEvent, ConnectionRecord, Parameters
from rnic.cm.state_machine import Input
from rnic.spec import cm
from rnic.testing.live_model import FindingError
from rnic.testing.net import Node, SimNet

SERVICE = cm.service_id(cm.PS_TCP, 18_515)
_QPN_BYTES = 4
_MOST_TURNS = 20_000


class Exchange:
    """An agent on every NIC, which accepts all requests."""

    def __init__(self, net: SimNet, seed: int) -> None:
        self._net = net
        self._agents: list[CmAgent] = []
        self._established = self._gone = 0
        for node in net.nodes:
            gsi = node.nic.gsi
            agent = gsi.agent = CmAgent(gsi, random.Random(seed + node.index), node.nic.counters)
            agent.listen(SERVICE, partial(self._happened, agent))
            self._agents.append(agent)

    def _happened(self, agent: CmAgent, event: ConnectionEvent) -> None:
        connection, now_ns = event.connection, self._net.clock.now_ns
        if event.event == cm.EVENT_CONNECT_REQUEST:
            connection.local = Parameters(qpn=int.from_bytes(event.private[:_QPN_BYTES]))
            agent.request(connection, Input.ACCEPT, now_ns)
        elif event.event == cm.EVENT_CONNECT_RESPONSE:
            agent.request(connection, Input.ESTABLISH, now_ns)
        elif event.event == cm.EVENT_ESTABLISHED:
            self._established += 1
        elif event.event == cm.EVENT_TIMEWAIT_EXIT:
            self._gone += 1

    def connect(self, here: Node, there: Node, qpns: tuple[int, int]) -> ConnectionRecord:
        """Connect two queue pairs by REQ, REP and RTU.

        Each side gives the PSN with which the other begins (IBA 12.7.31): ``remote.psn`` is the first one that ``here``
        sends.

        Raises:
            FindingError: the agents do not agree, or do not finish.
        """
        net, agent = self._net, self._agents[here.index]
        wanted = self._established + 1
        connection = agent.connect(
            there.nic.gsi.gid,
            SERVICE,
            partial(self._happened, agent),
            net.clock.now_ns,
            local=Parameters(qpn=qpns[0]),
            private=qpns[1].to_bytes(_QPN_BYTES),
        )
        self._run(lambda: self._established == wanted)
        if self._established != wanted or (connection.local.qpn, connection.remote.qpn) != qpns:
            raise FindingError(
                f"connection management, NIC {here.index} to {there.index}: queue pairs {qpns} became "
                f"{connection.local.qpn} and {connection.remote.qpn}, {self._established} of {wanted} established"
            )
        return connection

    def disconnect(self, here: Node, connection: ConnectionRecord) -> None:
        """End a connection with DREQ and DREP, and wait until both ends have removed it.

        Raises:
            FindingError: they do not remove it.
        """
        wanted = self._gone + 2
        self._agents[here.index].request(connection, Input.DISCONNECT, self._net.clock.now_ns)
        self._run(lambda: self._gone >= wanted)
        if self._gone != wanted:
            raise FindingError(f"connection management, NIC {here.index}: {wanted - self._gone} ends stay connected")

    def _run(self, until: Callable[[], bool]) -> None:
        for _ in range(_MOST_TURNS):
            if until():
                break
            self._net.turn()


__all__ = ["Exchange"]
