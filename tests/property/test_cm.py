"""Connection management between two devices whose datagrams get lost, doubled and late, and under garbage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.cm.agent import CmAgent
from rnic.cm.records import ConnectionEvent, Parameters
from rnic.cm.state_machine import Input, State
from rnic.link.faults import FaultRates
from rnic.spec import cm
from rnic.testing.net import SimNet
from rnic.wire import cm as wire

pytestmark = pytest.mark.slow
SERVICE = cm.service_id(cm.PS_TCP, 18_515)
MINUTES_NS = 600_000_000_000


class Node:
    """One end: accepts whatever comes, establishes what is answered, and notes the events in order."""

    def __init__(self, net: SimNet, index: int, seed: int) -> None:
        self.nic = net.nodes[index].nic
        self.agent = CmAgent(self.nic.gsi, random.Random(seed), self.nic.counters)
        self.nic.gsi.agent = self.agent
        self.now = net.clock
        self.events: list[ConnectionEvent] = []

    @property
    def gid(self) -> bytes:
        return self.nic.gsi.gid

    def handler(self, event: ConnectionEvent) -> None:
        self.events.append(event)
        connection = event.connection
        if event.event == cm.EVENT_CONNECT_REQUEST:
            connection.local = Parameters(qpn=0x200 + len(self.events))
            self.agent.request(connection, Input.ACCEPT, self.now(), b"reply")
        elif event.event == cm.EVENT_CONNECT_RESPONSE:
            self.agent.request(connection, Input.ESTABLISH, self.now())

    def names(self) -> list[str]:
        return [cm.EVENT_NAMES[event.event] for event in self.events]

    def count(self, event: int) -> int:
        return sum(one.event == event for one in self.events)


rates = st.builds(
    FaultRates,
    drop=st.sampled_from([0.0, 0.1, 0.3]),
    duplicate=st.sampled_from([0.0, 0.3]),
    reorder=st.sampled_from([0.0, 0.3]),
)


@given(rates, st.integers(0, 1 << 30), st.integers(1, 6), st.booleans())
def test_every_connection_is_made_and_ended_once_on_both_sides(
    tx: FaultRates, seed: int, count: int, by_client: bool
) -> None:
    with SimNet(2, seed=seed, tx=tx) as net:
        client, server = Node(net, 0, seed), Node(net, 1, seed + 1)
        server.agent.listen(SERVICE, server.handler)
        made = [
            client.agent.connect(server.gid, SERVICE, client.handler, net.clock(), local=Parameters(qpn=0x100 + number))
            for number in range(count)
        ]
        net.run(lambda: server.count(cm.EVENT_ESTABLISHED) == count, MINUTES_NS)
        assert client.names().count("CONNECT_RESPONSE") == count
        assert server.names().count("CONNECT_REQUEST") == count
        assert server.names().count("ESTABLISHED") == count
        assert {connection.remote.qpn for connection in made} == {
            event.connection.local.qpn for event in server.events if event.event == cm.EVENT_ESTABLISHED
        }
        if by_client:
            for connection in made:
                client.agent.request(connection, Input.DISCONNECT, net.clock())
        else:
            for connection in list(server.agent.connections.values()):
                server.agent.request(connection, Input.DISCONNECT, net.clock())
        net.run(lambda: not client.agent.connections and not server.agent.connections, MINUTES_NS)
        for node in (client, server):
            assert node.names().count("DISCONNECTED") == count
            assert node.names().count("TIMEWAIT_EXIT") == count
            assert not node.agent.connections
            assert not node.agent._by_remote
            assert not node.agent._by_qpn


@given(rates, st.integers(0, 1 << 30))
def test_a_rejection_arrives_with_its_reason_and_words(tx: FaultRates, seed: int) -> None:
    with SimNet(2, seed=seed, tx=tx) as net:
        client, server = Node(net, 0, seed), Node(net, 1, seed + 1)

        def reject(event: ConnectionEvent) -> None:
            server.events.append(event)
            server.agent.request(event.connection, Input.REJECT, net.clock(), b"not you")

        server.agent.listen(SERVICE, reject)
        client.agent.connect(server.gid, SERVICE, client.handler, net.clock())
        net.run(lambda: bool(client.events), MINUTES_NS)
        assert client.names() == ["REJECTED"]
        assert client.events[0].status == cm.REJ_CONSUMER_DEFINED
        assert client.events[0].private.startswith(b"not you")
        assert server.names() == ["CONNECT_REQUEST"]


@given(rates, st.integers(0, 1 << 30))
def test_a_service_is_resolved_whatever_the_network_does(tx: FaultRates, seed: int) -> None:
    with SimNet(2, seed=seed, tx=tx, ipv6=True) as net:
        client, server = Node(net, 0, seed), Node(net, 1, seed + 1)
        server.agent.listen(SERVICE, server.handler)
        client.agent.connect(server.gid, SERVICE, client.handler, net.clock(), datagram=True)
        net.run(lambda: bool(client.events), MINUTES_NS)
        assert client.names() == ["ESTABLISHED"]
        assert client.events[0].connection.remote.qpn == server.events[0].connection.local.qpn
        assert client.events[0].private.startswith(b"reply")


messages = st.builds(
    lambda attr, local, remote, tail: (attr, local.to_bytes(4, "big") + remote.to_bytes(4, "big") + tail),
    st.sampled_from([*wire.MESSAGES, 0, 0x99]),
    st.sampled_from([0, 1, 77, 0xFFFFFFFF]),
    st.sampled_from([0, 1]),
    st.binary(min_size=224, max_size=224),
)


@given(st.lists(st.one_of(st.binary(max_size=300), messages), max_size=30), st.sampled_from(list(State)))
def test_garbage_costs_counters_and_never_raises(datagrams: list[bytes | tuple[int, bytes]], state: State) -> None:
    """Aimed at a connection that is there, by its own peer; what is bounded stays bounded."""
    with SimNet(2) as net:
        victim = Node(net, 0, 1)
        victim.agent.listen(SERVICE, lambda event: None, backlog=4)
        peer = net.nodes[1].nic.gsi.gid
        connection = victim.agent.connect(peer, SERVICE, lambda event: None, 0)
        connection.state = state
        for datagram in datagrams:
            if isinstance(datagram, tuple):
                attr, body = datagram
                if body[4:8] == b"\0\0\0\1":
                    body = body[:4] + connection.local_id.to_bytes(4, "big") + body[8:]
                head = bytes((1, 7, 2, 3, 0, 0, 0, 0)) + connection.tid.to_bytes(8, "big")
                datagram = head + attr.to_bytes(2, "big") + bytes(6) + body
            victim.agent.receive(datagram, peer, net.clock())
        assert len(victim.agent.connections) <= 1 + 4
        assert len(victim.nic.gsi.waiting) <= len(datagrams) + 1
