"""The non-RDMA channel's own port beside a UDP link (004 7.6)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from rnic.cli.serve import make_runtime
from rnic.link.base import LinkError, format_address
from rnic.link.udp import UdpLink
from rnic.runtime.loop import Runtime
from rnic.runtime.non_rdma_port import AT_ONCE, NonRdmaPort
from rnic.spec.errors import VerbsError
from rnic.spec.registers import IRQ_NON_RDMA
from rnic.testing import own_network
from rnic.verbs import Context
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from tests.forks import child_says

NET = own_network()


def device(last: int, port: int) -> Runtime:
    """A device whose channel has a port, as ``rnic serve`` makes it."""
    return make_runtime(f"{NET}.{last}", 0, {"name": f"rnic{last}", "non_rdma_port": port})


def port_of(runtime: Runtime) -> NonRdmaPort:
    (port,) = runtime.beside
    assert isinstance(port, NonRdmaPort)
    return port


@pytest.fixture
def pair() -> Iterator[tuple[Runtime, Runtime]]:
    one = device(81, 0)
    other = device(82, port_of(one).port)
    yield one, other
    one.close()
    other.close()


def wait(what: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_packets_go_both_ways_between_two_ports(pair: tuple[Runtime, Runtime]) -> None:
    here, there = (runtime.nic.config.address for runtime in pair)
    one, other = (Context(runtime=runtime) for runtime in pair)
    question, answer = ip_packet(Flow(here, there, 5, 53), b"q" * 1000), ip_packet(Flow(there, here, 53, 5), b"a")
    assert other.read_non_rdma() is None
    one.write_non_rdma(question)
    wait(lambda: len(pair[1].nic.non_rdma))
    assert pair[1].nic.globals.causes & IRQ_NON_RDMA
    assert other.read_non_rdma() == question
    other.write_non_rdma(answer)
    wait(lambda: len(pair[0].nic.non_rdma))
    assert one.read_non_rdma() == answer
    assert pair[0].nic.counters["non_rdma_frames_sent"] == pair[1].nic.counters["non_rdma_frames"] == 1
    one.write_non_rdma(ip_packet(Flow(here, bytes((255, 255, 255, 255)), 5, 53), b"may not be sent to all"))
    assert pair[0].nic.counters["drop_non_rdma_tx"] == 1


def test_what_anybody_sends_there_is_kept_within_bounds_and_is_no_rdma(pair: tuple[Runtime, Runtime]) -> None:
    _, runtime = pair
    nic = runtime.nic
    to = format_address(nic.config.address), port_of(runtime).port
    frames = [b"", b"\x45", os.urandom(1400), ip_packet(Flow(bytes(4), bytes(4), 1, nic.config.port), bytes(64))]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for frame in frames:
            sock.sendto(frame, to)
        wait(lambda: len(nic.non_rdma) == len(frames))
        for _ in range(2 * AT_ONCE + 200):
            sock.sendto(b"x" * 9000, to)
        wait(lambda: nic.counters["drop_non_rdma_full"])
    assert nic.tally.get("rx_packets", 0) == 0
    context = Context(runtime=runtime)
    assert [context.read_non_rdma() for _ in frames] == frames


def test_without_a_port_both_directions_say_so() -> None:
    with Context(runtime=make_runtime(f"{NET}.83", 0, {"name": "rnic83"})) as context:
        for call in (context.read_non_rdma, lambda: context.write_non_rdma(b"x")):
            with pytest.raises(VerbsError, match="rnic serve --non-rdma-port"):
                call()


def test_a_port_that_is_taken_opens_nothing(pair: tuple[Runtime, Runtime]) -> None:
    one, _ = pair
    with pytest.raises(LinkError, match=r"is taken|already"):
        make_runtime(format_address(one.nic.config.address), 0, {"name": "x", "non_rdma_port": port_of(one).port})
    link = one.link
    assert isinstance(link, UdpLink)
    with pytest.raises(LinkError, match="is where RDMA comes"):
        NonRdmaPort(one, link, link.port)


def test_closing_ends_the_thread_and_gives_the_port_back() -> None:
    runtime = device(84, 0)
    port = port_of(runtime)
    runtime.close()
    port.close()
    assert runtime.beside == []
    assert not port._thread.is_alive()
    again = device(84, port.port)
    again.close()


def test_a_child_lets_go_of_it() -> None:
    runtime = device(85, 0)
    port = port_of(runtime)

    def lets_go() -> bool:
        runtime.close()
        return runtime.beside == []

    assert child_says(lets_go)
    assert port._thread.is_alive()
    runtime.close()
