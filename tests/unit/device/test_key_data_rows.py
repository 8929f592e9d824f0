"""Every row of the key-data table (002 5.4.2) acts on live traffic: the next packet, completion or event shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import Status
from rnic.context.eqc import EQC
from rnic.context.key_qpc_data import KEY_FIELDS
from rnic.context.qpc import QPC
from rnic.rings.cqe import CQE_BYTES
from rnic.rings.queue_block import CQ_TAIL, SQ_HEAD
from rnic.rings.ring import PhaseConsumer
from rnic.rings.sqe import FLAG_SIGNALED, SGE_STRUCT, SQE_BYTES, SQE_STRUCT
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.opcodes import UC, WR_WRITE
from rnic.spec.states import ERR, RTS, ST_UC
from rnic.spec.status import LOC_LEN_ERR, LOC_PROT_ERR, RNR_RETRY_EXC_ERR, SUCCESS, WR_FLUSH_ERR
from rnic.wire.flow import Flow
from rnic.wire.packet import Packet, parse
from tests.unit.device.conftest import NewPair, Pair, Queue

LAYOUTS = {"qp": QPC, "cq": CQC, "eq": EQC}
RINGS = 16 * (SQE_BYTES + 16)


class Bench:
    """Two connected queue pairs, ``a`` on side 0 and ``b`` on side 1, and ways to change a context of side 0."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.nic, self.driver = pair.nics[0], pair.drivers[0]
        self.contexts = self.nic.contexts
        self.a, self.b = pair.connect()
        self.wire = pair.wire
        self.numbers = {"qp": self.a.number, "cq": pair.cqs[0].number, "eq": pair.eqs[0].number}

    # ------------------------------------------------------------------ three ways to change a row

    def store(self, kind: str, **fields: int) -> None:
        """By hand, in the cache."""
        entry = getattr(self.contexts.key, kind + "s")[self.numbers[kind]]
        for name, value in fields.items():
            setattr(entry, name, value)

    def image(self, kind: str, fields: dict[str, int]) -> bytes:
        self.nic.flush_contexts()
        found = self.contexts.peek(kind, self.numbers[kind])
        assert found is not None
        raw = bytearray(found)
        for name, value in fields.items():
            LAYOUTS[kind].put(raw, name, value)
        return bytes(raw)

    def message(self, kind: str, **fields: int) -> None:
        """By a whole context that the CEU writes: WR_QP_ALL, WR_CQ_MODIFY, WR_EQ_ALL."""
        kinds = {
            "qp": (m.WR_QP_CXT, m.WR_QP_ALL),
            "cq": (m.WR_CQ_CXT, m.WR_CQ_MODIFY),
            "eq": (m.WR_EQ_CXT, m.WR_EQ_ALL),
        }
        request = m.ceu_request(*kinds[kind], self.numbers[kind])
        assert self.contexts.ceu(request, self.image(kind, fields))[0] == Status.OK

    def memory(self, kind: str, **fields: int) -> None:
        """In host memory, which is then loaded."""
        place = self.contexts.ctxmdata.tables[kind].locate(self.numbers[kind])
        assert place is not None
        assert place.port.write(place.addr, self.image(kind, fields))
        assert self.contexts.load(kind, self.numbers[kind]) == Status.OK

    # ---------------------------------------------------------------------------------- traffic

    def write(self, length: int = 8) -> None:
        (_, va, lkey), (_, remote, rkey) = self.pair.mrs
        self.driver.write(self.a, va, length, lkey, remote, rkey)

    def packets(self, length: int = 8) -> list[tuple[Flow, Packet]]:
        """What a WRITE of ``length`` bytes puts on the wire, where it stays."""
        self.write(length)
        out = []
        for burst in self.nic.produce(self.wire.now):
            data = memoryview(b"".join(burst.buffers))
            for at in range(0, burst.length, burst.segment):
                packet = parse(data[at : at + burst.segment])
                assert isinstance(packet, Packet)
                out.append((burst.flow, packet))
        return out

    def packet(self) -> Packet:
        return self.packets()[0][1]

    def flow(self) -> Flow:
        return self.packets()[0][0]

    def done(self, cq: Queue | None = None) -> list[int]:
        """Statuses of the completions on side 0."""
        self.wire.run()
        return [entry[1] & 0xFF for entry in self.driver.poll(cq or self.pair.cqs[0])]

    def receive(self, slot: int | None = None) -> None:
        """Side 0 gets a SEND of 8 bytes, from side 1."""
        self.pair.drivers[1].send(self.b, self.pair.mrs[1][1], 8, self.pair.mrs[1][2])
        self.wire.run()


Change = Callable[..., None]


def row_state(s: Bench, change: Change) -> None:
    change("qp", state=ERR)
    assert s.packets() == []
    assert s.done() == [WR_FLUSH_ERR]


def row_servtype(s: Bench, change: Change) -> None:
    change("qp", servtype=ST_UC)
    assert s.packet().row.service == UC


def row_mtu_msgmax(s: Bench, change: Change) -> None:
    change("qp", mtu=1, msgmax=9)
    assert [len(packet.payload) for _, packet in s.packets(512)] == [256, 256]
    s.store("qp", last_acked_psn=s.nic.qps[s.a.number].ctx.next_send_psn)
    s.write(513)
    assert s.done() == [SUCCESS, LOC_LEN_ERR]


def row_rnr_retry(s: Bench, change: Change) -> None:
    change("qp", rnr_retry=0)
    s.driver.send(s.a, s.pair.mrs[0][1], 8, s.pair.mrs[0][2])
    assert s.done() == [RNR_RETRY_EXC_ERR]
    assert s.pair.nics[1].counters["rnr_naks_sent"] == 1


def row_remote_qpn(s: Bench, change: Change) -> None:
    change("qp", remote_qpn=0xABCDE)
    assert s.packet().dqpn == 0xABCDE


def row_port_pkey(s: Bench, change: Change) -> None:
    change("qp", pkey_index=1)
    assert s.packet().pkey == 0x8123


def row_qp_pd(s: Bench, change: Change) -> None:
    change("qp", pd=s.driver.alloc(cmd.RES_PD))
    s.write()
    assert s.done() == [LOC_PROT_ERR]


def row_sl_tclass_flowlabel(s: Bench, change: Change) -> None:
    change("qp", sl=3, tclass=0x28, flow_label=0x12345)
    flow = s.flow()
    assert (flow.sl, flow.tclass, flow.flow_label) == (3, 0x28, 0x12345)


def row_next_send_psn(s: Bench, change: Change) -> None:
    change("qp", next_send_psn=0x55)
    assert s.packet().psn == 0x55


def row_qp_cqn_send(s: Bench, change: Change) -> None:
    other = s.driver.cq(s.pair.eqs[0])
    change("qp", cqn_snd=other.number)
    s.write()
    assert (s.done(), s.done(other)) == ([], [SUCCESS])


def region(s: Bench, length: int = RINGS) -> tuple[bytearray, int]:
    memory, _, key = s.driver.mr(s.pair.pds[0], length)
    return memory, key


def entry_at(s: Bench, memory: bytearray | memoryview, at: int, wqe_id: int) -> None:
    (_, va, lkey), (_, remote, rkey) = s.pair.mrs
    SQE_STRUCT.pack_into(memory, at, wqe_id, WR_WRITE, FLAG_SIGNALED, va, remote, 8, lkey, rkey, 0)


def ids(s: Bench) -> list[int]:
    s.wire.run()
    return [entry[4] for entry in s.driver.poll(s.pair.cqs[0])]


def row_snd_wqe_base_lkey(s: Bench, change: Change) -> None:
    memory, key = region(s)
    entry_at(s, memory, 0, 0x4711)
    change("qp", sq_base=0, snd_wqe_base_lkey=key)
    s.write()  # into the old ring, which nobody reads
    assert ids(s) == [0x4711]
    s.driver.ok(cmd.HW2SW_MPT, key)
    s.write()
    assert s.done() == [LOC_PROT_ERR]


def row_last_acked_psn(s: Bench, change: Change) -> None:
    psn = s.packet().psn
    change("qp", last_acked_psn=psn + 1)
    assert [entry[1] & 0xFF for entry in s.driver.poll(s.pair.cqs[0])] == [SUCCESS]


def row_rnr_nextrecvpsn(s: Bench, change: Change) -> None:
    change("qp", expected_psn=7 + 1, rnr_nak_timer=20)
    s.pair.drivers[1].write(s.b, s.pair.mrs[1][1], 8, s.pair.mrs[1][2], s.pair.mrs[0][1], s.pair.mrs[0][2])
    s.pair.mrs[1][0][:8] = b"new data"
    s.wire.run()
    assert bytes(s.pair.mrs[0][0][:8]) == bytes(8)  # PSN 7 is a duplicate, acknowledged and not executed
    s.wire.seen.clear()
    s.pair.drivers[1].send(s.b, s.pair.mrs[1][1], 8, s.pair.mrs[1][2])
    for _ in range(3):
        s.wire.step()
    naks = [parse(memoryview(data)) for data in s.wire.seen if data[0] == 0x11]
    assert [isinstance(packet, Packet) and packet.syndrome for packet in naks] == [0x20 | 20]


def row_rcv_wqe_base_lkey(s: Bench, change: Change) -> None:
    target, va, key = s.driver.mr(s.pair.pds[0], 64)
    memory, ring_key = region(s)
    SGE_STRUCT.pack_into(memory, 0, va + 16, 8, key)
    change("qp", rq_base=0, rcv_wqe_base_lkey=ring_key)
    s.driver.recv(s.a, va, 8, key)  # into the old ring
    s.pair.mrs[1][0][:8] = b"received"
    s.receive()
    assert bytes(target[:24]) == bytes(16) + b"received"


def row_rq_entry_sz_log(s: Bench, change: Change) -> None:
    target, va, key = s.driver.mr(s.pair.pds[0], 64)
    change("qp", rq_entry_sz_log=5)
    for slot, at in ((0, 0), (1, 8), (2, 32)):  # strides of 16: what was slot 2 is slot 1 now
        SGE_STRUCT.pack_into(s.a.memory, s.a.rq_offset + slot * 16, va + at, 8, key)
    SGE_STRUCT.pack_into(s.a.memory, s.a.rq_offset + 16, 0, 0, 0)
    s.driver.recv(s.a, va, 8, key, slot=0)
    s.driver.recv(s.a, va + 32, 8, key, slot=2)
    s.pair.mrs[1][0][:8] = b"received"
    s.receive()
    s.receive()
    assert bytes(target[:40]) == b"received" + bytes(24) + b"received"


def row_sq_entry_sz_log(s: Bench, change: Change) -> None:
    s.write()
    assert ids(s) == [0]
    change("qp", sq_entry_sz_log=7)
    entry_at(s, s.a.memory, 128, 0x4712)
    s.write()
    assert ids(s) == [0x4712]


def row_smac(s: Bench, change: Change) -> None:
    change("qp", smac_hi=0x0200_1234, slid=0x5678)
    assert s.flow().smac == 0x0200_1234_5678


def row_dmac(s: Bench, change: Change) -> None:
    change("qp", dmac_hi=0x0200_1234, dlid=0x5678)
    assert s.flow().dmac == 0x0200_1234_5678


def row_sip(s: Bench, change: Change) -> None:
    if change != s.store:  # another host's address is refused, as a message and in memory
        image = s.image("qp", {"sip": 0x0A00_0009})
        assert s.contexts.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, s.a.number), image)[0] == Status.REFUSED
        return
    change("qp", sip=0x0A00_0009)
    assert s.flow().src == bytes((10, 0, 0, 9))


def row_dip(s: Bench, change: Change) -> None:
    change("qp", dip=0x0A00_0007)
    assert s.flow().dst == bytes((10, 0, 0, 7))


def row_snd_wqe_length(s: Bench, change: Change) -> None:
    change("qp", snd_wqe_length=2 * SQE_BYTES)
    for head in (1, 0):
        s.a.tail %= 2
        s.write()
        s.driver.uar.store(s.a.block, 0x30, head)
        s.wire.run()
        assert s.driver.uar.load(s.a.block, SQ_HEAD) == head
    assert s.nic.qps[s.a.number].ctx.state == RTS


def row_cqn_rcv(s: Bench, change: Change) -> None:
    other = s.driver.cq(s.pair.eqs[0])
    change("qp", cqn_rcv=other.number)
    s.driver.recv(s.a, s.pair.mrs[0][1], 8, s.pair.mrs[0][2])
    s.receive()
    assert (s.done(), s.done(other)) == ([], [SUCCESS])


def row_rcv_wqe_length(s: Bench, change: Change) -> None:
    change("qp", rcv_wqe_length=2 * 16)
    for _ in range(3):
        s.driver.recv(s.a, s.pair.mrs[0][1], 8, s.pair.mrs[0][2], slot=s.a.rq_tail)
        s.a.rq_tail %= 2
        s.driver.uar.store(s.a.block, 0x70, s.a.rq_tail)
        s.receive()
    assert s.done() == [SUCCESS] * 3


def row_cq_sz_log(s: Bench, change: Change) -> None:
    change("cq", logsize=1)
    for tail in (1, 0):
        s.write()
        s.wire.run()
        assert s.driver.uar.load(s.pair.cqs[0].block, CQ_TAIL) == tail
        s.driver.uar.store(s.pair.cqs[0].block, 0x4C, tail)


def keyed(s: Bench, change: Change, kind: str, logsize: int = 2) -> tuple[PhaseConsumer, int]:
    """Put the ring of a CQ or EQ into a region of its own, by its key alone."""
    memory, key = region(s, CQE_BYTES << logsize)
    change(kind, start=0, logsize=logsize, pd=s.pair.pds[0], lkey=key)
    return PhaseConsumer(memoryview(memory), 1 << logsize), key


def row_cq_lkey(s: Bench, change: Change) -> None:
    ring, key = keyed(s, change, "cq")
    s.write()
    s.wire.run()
    entry = ring.pop()
    assert entry is not None
    assert entry[1] & 0xFF == SUCCESS
    s.driver.ok(cmd.HW2SW_MPT, key)
    s.write()
    s.wire.run()
    assert s.nic.resources.cqs[s.numbers["cq"]].failed


def row_cq_pd(s: Bench, change: Change) -> None:
    keyed(s, change, "cq")
    s.store("cq", pd=s.driver.alloc(cmd.RES_PD))
    s.write()
    s.wire.run()
    assert s.nic.resources.cqs[s.numbers["cq"]].failed


def event(s: Bench, eq: Queue | None = None) -> list[int]:
    s.driver.arm(s.pair.cqs[0], 1)
    s.write()
    s.wire.run()
    return [entry[0] & 0xFF for entry in s.driver.poll(eq or s.pair.eqs[0])]


def row_eq_sz_log(s: Bench, change: Change) -> None:
    change("eq", logsize=1)
    for tail in (1, 0):
        s.driver.arm(s.pair.cqs[0], 1)
        s.write()
        s.wire.run()
        assert s.driver.uar.load(s.pair.eqs[0].block, CQ_TAIL) == tail
        s.driver.uar.store(s.pair.eqs[0].block, 0x4C, tail)


def row_eq_lkey(s: Bench, change: Change) -> None:
    ring, _ = keyed(s, change, "eq")
    assert event(s) == []
    entry = ring.pop()
    assert entry is not None
    assert entry[:2] == (events.COMP, s.numbers["cq"])


def row_eq_pd(s: Bench, change: Change) -> None:
    keyed(s, change, "eq")
    s.store("eq", pd=s.driver.alloc(cmd.RES_PD))
    assert event(s) == []
    assert s.nic.globals.fatal


def row_eqn(s: Bench, change: Change) -> None:
    other = s.driver.eq(vector=9)
    change("cq", comp_eqn=other.number)
    assert (event(s), s.driver.poll(other)[0][:2]) == ([], (events.COMP, s.numbers["cq"]))
    assert s.nic.next_event() == 9


ROWS = {name.removeprefix("row_"): function for name, function in globals().items() if name.startswith("row_")}


def test_there_is_a_case_for_each_row_of_the_table() -> None:
    assert {row.name for row in KEY_FIELDS} == set(ROWS)
    assert len(KEY_FIELDS) == 23 + 7


@pytest.mark.parametrize("way", ["store", "message", "memory"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_acts_on_live_traffic(new_pair: NewPair, name: str, way: str) -> None:
    bench = Bench(new_pair(pkeys=(0xFFFF, 0x8123)))
    ROWS[name](bench, getattr(bench, way))


@pytest.mark.parametrize("way", ["store", "message", "memory"])
def test_the_interrupt_vector_acts(new_pair: NewPair, way: str) -> None:
    bench = Bench(new_pair())
    assert event(bench) == [events.COMP]
    assert bench.nic.next_event() == 3
    getattr(bench, way)("eq", msix_vector=77)
    assert event(bench) == [events.COMP]
    assert bench.nic.next_event() == 77


def test_writes_of_the_channels_act(new_pair: NewPair) -> None:
    """RTC, RRC and EE write state and PSNs (002 table 3.2)."""
    bench = Bench(new_pair())
    contexts, number = bench.contexts, bench.a.number

    def put(source: int, opcode: int, psn: int, state: int = RTS) -> None:
        assert contexts.request(source, m.engine_request(m.WR_QP_CXT, opcode, number), m.engine_payload(psn, state))
        contexts.run()

    put(m.RTC, m.WR_QP_NPST, 0x33)
    assert bench.packet().psn == 0x33
    put(m.RRC, m.WR_QP_UAPST, 0x34)
    assert [entry[1] & 0xFF for entry in bench.driver.poll(bench.pair.cqs[0])] == [SUCCESS]
    put(m.EE, m.WR_QP_EPST, 0x44)
    assert bench.nic.qps[number].ctx.expected_psn == 0x44
    bench.write()
    put(m.RTC, m.WR_QP_NPST, bench.nic.qps[number].ctx.next_send_psn, ERR)
    assert bench.done() == [WR_FLUSH_ERR]
