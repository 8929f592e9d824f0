"""NICs of running programs on the fabric, by a clock of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.cli.exec_fabric import own_rank, place
from rnic.link.base import LinkError
from rnic.mem.space import SimAddressSpace
from rnic.runtime.directory import ProcessError
from rnic.sim.live import LiveFabric, LiveHost, keep_fabric, live_fabric, slowness
from rnic.sim.scenario import Scenario
from rnic.sim.topology import Topology
from rnic.spec.limits import MTU_CODES
from rnic.spec.opcodes import WR_WRITE
from rnic.verbs import CQ, MR, PD, QP, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
DELAY_NS = 100_000
BIT_NS = 8_000_000_000
MTU = 1024


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000

    def __call__(self) -> int:
        return self.now_ns


class End:
    """A program's queue pair on a NIC of a fabric."""

    def __init__(self, fabric: LiveFabric, number: int, size: int) -> None:
        self.host: LiveHost = fabric.host(number)
        self.runtime = fabric.runtime(self.host, fabric.connect(self.host), name=f"rnic{number}")
        self.ctx = Context(runtime=self.runtime, space=SimAddressSpace())
        pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 64)
        self.mr = MR(pd, size, RIGHTS)
        self.qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(16, 1), scq=self.cq, rcq=self.cq))

    def connect(self, peer: End) -> None:
        attr = QPAttr()
        attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry = MTU_CODES[MTU], 18, 7, 7
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.dest_qp_num, attr.qp_access_flags = peer.qp.qp_num, RIGHTS
        attr.ah_attr = AHAttr(GlobalRoute(peer.ctx.query_gid()), udp_dport=peer.ctx.udp_port)
        self.qp.to_rts(attr)

    def write(self, peer: End, size: int) -> None:
        self.qp.post_rdma(WR_WRITE, self.mr.buf, size, self.mr.lkey, peer.mr.buf, peer.mr.rkey)


class World:
    """NICs on a fabric, driven as the NIC process drives them."""

    def __init__(self, topology: Topology, count: int, size: int = 1 << 16, slower: int = 1, **more: Any) -> None:
        self.clock = Clock()
        self.fabric = LiveFabric(Scenario(topology, [], **more), slower, self.clock)
        self.ends = [End(self.fabric, number, size) for number in range(count)]

    def run(self, done: Any, limit_ns: int = 10_000_000_000) -> None:
        """Run until ``done`` returns true."""
        end_ns = self.clock.now_ns + limit_ns
        while not done():
            assert self.clock.now_ns < end_ns
            # waits: for all that is to be done now
            while sum(each.runtime.round() for each in self.ends):
                pass
            if done():
                return
            due = [self.fabric.agenda.next_ns(), *(each.runtime.nic.next_deadline_ns() for each in self.ends)]
            wait_ns = min(at for at in due if at is not None) - self.fabric.now()
            self.clock.now_ns += max(1, wait_ns)

    def close(self) -> None:
        for end in self.ends:
            end.ctx.close()
        self.fabric.close()


def wire_ns(payload: int, gbps: float) -> int:
    """Return how long a WRITE's only packet takes a link: 66 bytes of Ethernet, IPv4 and UDP, BTH, RETH, ICRC."""
    return round((payload + 66 + 12 + 16 + 4) * 8 / gbps)


@pytest.mark.slow
def test_a_write_takes_what_links_and_switches_take_and_brings_its_bytes() -> None:
    world = World(Topology.leaf_spine(2, 1, 1, mtu=MTU, gbps=1, delay_ns=DELAY_NS), 2)
    a, b = world.ends
    a.connect(b)
    b.connect(a)
    text = bytes(range(256)) * 4
    a.mr.write(text, len(text))
    begun = world.clock.now_ns
    a.write(b, len(text))
    world.run(lambda: b.mr.read(len(text), 0) == text)
    assert world.clock.now_ns - begun == 4 * (DELAY_NS + wire_ns(len(text), 1))
    world.run(lambda: a.cq.poll(1)[0])
    assert world.fabric.late_max_ns == 0
    assert world.fabric.ports["leaf0", "spine0"].sent == 1
    world.close()


@pytest.mark.slow
def test_a_nic_makes_no_more_than_its_wire_takes_and_marks_slow_it_down() -> None:
    switch = {"kmin_bytes": 2_000, "kmax_bytes": 20_000, "pmax": 1.0}
    topology = Topology.star(3, mtu=MTU, gbps=1, delay_ns=1_000, switch=switch)
    world = World(topology, 3, congestion=CongestionSettings("dcqcn"))
    a, b, c = world.ends
    a.connect(c)
    c.connect(a)
    for _ in range(8):
        a.write(c, 1 << 16)
    world.run(lambda: c.host.port.peer.sent > 300)
    assert a.host.port.peak_bytes <= 4 * (MTU + 100)
    world.close()
    assert b.host.count("rx_packets") == 0


def test_time_passes_so_slowly_that_this_machine_keeps_up() -> None:
    assert slowness(Topology.star(2, gbps=100)) > 100
    assert slowness(Topology.star(2, gbps=0.001)) == 1
    clock = Clock()
    fabric = LiveFabric(Scenario(Topology.star(2), []), 50, clock)
    runtime = fabric.runtime(fabric.host(0), fabric.connect(fabric.host(0)))
    fabric.agenda.once(1_000_000, lambda: None)
    clock.now_ns += 30_000_000
    assert fabric.now() == 0
    fabric.begin()
    clock.now_ns += 30_000_000
    assert fabric.now() == runtime.clock() == 600_000
    assert runtime.seconds_until_due() == pytest.approx(0.0199)
    clock.now_ns += 30_000_000
    fabric.advance()
    assert (fabric.agenda.events, fabric.agenda.now_ns) == (1, 1_200_000)


def test_a_host_has_one_nic_at_a_time_and_keeps_its_counts() -> None:
    fabric = LiveFabric(Scenario(Topology.star(2), []), 1)
    host = fabric.host(1)
    link = fabric.connect(host)
    assert link.address == b"\x7f\0\0\2"
    with pytest.raises(LinkError, match="taken"):
        fabric.connect(host)
    with pytest.raises(LinkError, match="give 0 to 1"):
        fabric.host(2)
    with pytest.raises(LinkError, match="no multicast"):
        link.join(b"\xe0\0\0\1")
    runtime = fabric.runtime(host, link)
    runtime.nic.counters.bump("anything", 3)
    assert fabric.count("anything") == 3
    runtime.close()
    assert fabric.count("anything") == 3
    assert not fabric.used
    fabric.connect(host).close()


def test_fabrics_are_found_by_their_files(tmp_path: Path) -> None:
    path = tmp_path / "pair.toml"
    path.write_text('[topology]\nkind = "pair"\n[[workload]]\nkind = "flow"\n')
    first = live_fabric(str(path), 3)
    assert live_fabric(str(path), 3) is not first  # nobody is on it
    keep_fabric(str(path), first)
    assert live_fabric(str(path)) is first
    with pytest.raises(LinkError, match="3 times slower"):
        live_fabric(str(path), 4)


def test_a_programs_host_is_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_rank({"PMI_RANK": "3", "PMIX_RANK": "x"}) == 3
    assert own_rank({}) is None
    path = tmp_path / "pair.toml"
    path.write_text('[topology]\nkind = "pair"\n')
    assert place(str(path), 1, 4, ()) == (("127.0.0.2",), {"fabric": str(path), "host": 1, "slower": 4})
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")
    assert place(str(path), None, 4, ())[1]["host"] == 7
    with pytest.raises(ProcessError, match="leave out one"):
        place(str(path), None, 4, ("127.0.0.1",))
