"""Contexts that a device cannot run on: refused whatever way they come, with nothing changed and nothing raised."""

from __future__ import annotations

import random

import pytest

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import Status
from rnic.context.eqc import EQC
from rnic.context.qpc import QPC
from rnic.device.faults import set_gid
from rnic.spec import commands as cmd
from rnic.spec import events, reasons
from rnic.spec.opcodes import WR_READ
from rnic.spec.states import ERR, RTS, ST_UD
from tests.unit.device.conftest import NewPair, Pair, Queue

BAD = {
    "P_Key index": ("pkey_index", 1),
    "P_Key index, last": ("pkey_index", 127),
    "source GID index": ("mgid_index", 200),
    "port": ("port", 2),
    "path MTU code 0": ("mtu", 0),
    "path MTU code 7": ("mtu", 7),
    "MTU above the port's": ("mtu", 5),
    "state": ("state", 7),
    "RESET": ("state", 0),
    "service type": ("servtype", 2),
    "protection domain": ("pd", 77),
    "send CQ": ("cqn_snd", 63),
    "receive CQ": ("cqn_rcv", 0xFFFF_FFFF),
    "SRQ": ("srqn", 1 << 31 | 5),
    "queue block": ("usr_page", 3),
    "its own number": ("local_qpn", 9),
    "remote QPN of 25 bits": ("remote_qpn", 1 << 24),
    "no remote QPN": ("remote_qpn", 0),
    "peer's IPv4 address": ("dip", 0xE000_0001),
    "an IPv4 address of another": ("sip", 0x0A00_0009),
    "send ring's key": ("snd_wqe_base_lkey", 0x77),
    "receive ring's key": ("rcv_wqe_base_lkey", 0x77),
    "send ring's length": ("snd_wqe_length", 1 << 20),
    "send ring's entry size": ("sq_entry_sz_log", 5),
    "receive ring's length": ("rcv_wqe_length", 1 << 20),
    "receive ring's entry size": ("rq_entry_sz_log", 3),
    "multicast peer": ("rgid", 0xFFFF_E000_0001),
    "ACK timeout": ("ackto", 32),
}
WAYS = {"engine": {}, "reference": {"reference": True}, "channels": {"channels": True}}
Live = tuple[Pair, Queue, bytes]


@pytest.fixture
def live(new_pair: NewPair) -> Live:
    """Two connected queue pairs and the QPC of the first, as memory has it."""
    pair = new_pair(mtu=1024)
    a, _ = pair.connect()
    contexts = pair.nics[0].contexts
    assert contexts.flush_qp(a.number) == Status.OK
    status, qpc = contexts.read_qp(a.number)
    assert status == Status.OK
    return pair, a, qpc


def works(pair: Pair, a: Queue) -> bool:
    """Whether a WRITE arrives."""
    (source, va, lkey), (target, remote, rkey) = pair.mrs
    source[:8] = bytes(byte ^ 0x5A for byte in source[:8])
    pair.drivers[0].write(a, va, 8, lkey, remote, rkey)
    pair.wire.run()
    return [entry[1] & 0xFF for entry in pair.poll(0)] == [0] and target[:8] == source[:8]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for name, (field, _) in BAD.items()
        for way in ("message", "documented 192 bytes", "edited memory")
        if way != "documented 192 bytes" or QPC[field].byte < 192
    ],
)
def test_a_bad_queue_pair_context_is_refused(live: Live, name: str, way: str) -> None:
    pair, a, qpc = live
    contexts = pair.nics[0].contexts
    cached = contexts.key.qps[a.number].store()
    image = bytearray(qpc)
    QPC.put(image, *BAD[name])
    if way == "edited memory":
        place = contexts.ctxmdata.tables["qp"].locate(a.number)
        assert place is not None
        assert place.port.write(place.addr, image)
        assert contexts.load_qp(a.number) == Status.REFUSED
        assert contexts.refused_field == BAD[name][0]
    else:
        payload = bytes(image) if way == "message" else bytes(image[:192])
        assert contexts.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, a.number), payload)[0] == Status.REFUSED
        assert contexts.refused_field == BAD[name][0]
        assert contexts.read_qp(a.number) == (Status.OK, qpc)
    assert contexts.key.qps[a.number].store() == cached
    assert works(pair, a)
    pair.drivers[0].ok(cmd.ERR2RST, a.number)


def test_a_queue_pair_outlives_its_ports_address(live: Live) -> None:
    """Commands that leave the path alone work behind the fault; one that sets it is refused."""
    pair, a, _ = live
    nic, driver = pair.nics[0], pair.drivers[0]
    set_gid(nic, 0, bytes(16))
    assert works(pair, a)
    for opcode in (cmd.RTS2SQD, cmd.SQD2RTS, cmd.TOERR):
        driver.ok(opcode, a.number)
    assert nic.qps[a.number].ctx.state == ERR


@pytest.mark.parametrize(
    "name", ["P_Key index", "state", "service type", "protection domain", "send CQ", "queue block", "nobody's number"]
)
def test_a_bad_context_of_no_queue_pair_is_refused(live: Live, name: str) -> None:
    pair, _, qpc = live
    contexts, driver = pair.nics[0].contexts, pair.drivers[0]
    image = bytearray(qpc)
    number, block = driver.alloc(cmd.RES_QP), driver.alloc(cmd.RES_UAR_BLOCK)
    QPC.put(image, "local_qpn", number)
    QPC.put(image, "usr_page", block)
    request = m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, number)
    good = bytes(image)
    if name == "nobody's number":
        request = m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, number + 1)
    else:
        QPC.put(image, *BAD[name])
    assert contexts.ceu(request, bytes(image))[0] == Status.REFUSED
    assert {number, number + 1}.isdisjoint(contexts.key.qps)
    assert number not in pair.nics[0].qps
    assert contexts.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, number), good)[0] == Status.OK
    assert pair.nics[0].qps[number].ctx.state == RTS  # a context that is written is a queue pair


STORED = [
    ("state", 15),
    ("servtype", 7),
    ("servtype", 2),
    ("pkey_index", 1),
    ("mgid_index", 200),
    ("port", 2),
    ("mtu", 0),
    ("mtu", 7),
    ("mtu", 5),
    ("ackto", 200),
    ("retry_cnt", 8),
    ("rnr_nak_timer", 200),
    ("max_rd_atomic", 129),
    ("remote_qpn", 1 << 24),
    ("local_qpn", 9),
    ("usr_page", 3),
    ("pd", 77),
    ("cqn_snd", 63),
    ("cqn_rcv", 0xFFFF_FFFF),
    ("srqn", 1 << 31 | 5),
    ("sq_entry_sz_log", 200),
    ("sq_slab_bytes", 7),
    ("snd_wqe_length", 1 << 20),
    ("snd_wqe_length", 65),
    ("rq_entry_sz_log", 200),
    ("rcv_wqe_length", 7),
    ("rgid", 0xFFFF_E000_0001),
    ("rgid", 1),
    ("dip", 0xE000_0001),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("field", "value"), STORED)
def test_what_is_stored_by_hand_is_a_fault_of_that_queue_pair(
    new_pair: NewPair, field: str, value: int, way: str
) -> None:
    """Nothing is raised, the field is named, others go on, and the queue pair can be destroyed."""
    pair = new_pair(mtu=1024, **WAYS[way])
    others, (a, _) = pair.connect(), pair.connect()
    nic, driver = pair.nics[0], pair.drivers[0]
    driver.map_events(pair.eqs[0], events.WQ_CATAS_ERROR)
    assert works(pair, a)
    setattr(nic.contexts.key.qps[a.number], field, value)
    qp = nic.qps[a.number]
    assert (qp.ctx.state, qp.shown_state) == (ERR, ERR)
    assert qp.why is not None
    assert qp.why.reason is reasons.CONTEXT_VALUE
    assert qp.why.values == {"qpn": a.number, "field": field, "value": value}
    assert [entry[:2] for entry in pair.events(0)] == [(events.WQ_CATAS_ERROR, a.number)]
    driver.write(a, *pair.mrs[0][1:2], 8, pair.mrs[0][2], *pair.mrs[1][1:])
    pair.wire.skip(1 << 30)
    assert all(entry[1] & 0xFF for entry in pair.poll(0))
    assert works(pair, others[0])
    nic.flush_contexts()
    driver.ok(cmd.ERR2RST, a.number)
    assert nic.counters["own_errors"] == 0
    assert works(pair, others[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("field", "value"), STORED)
def test_garbage_that_nobody_has_seen_does_not_keep_a_queue_pair(
    new_pair: NewPair, field: str, value: int, way: str
) -> None:
    """As a program stores it that shares the memory: the context is not looked at until the queue pair is destroyed."""
    pair = new_pair(mtu=1024, **WAYS[way])
    a, _ = pair.connect()
    (_, va, lkey), (_, remote, rkey) = pair.mrs
    pair.drivers[1].write(pair.connect()[1], remote, 8, rkey, va, lkey)  # so that there may be something to acknowledge
    setattr(pair.nics[0].contexts.key.qps.view(a.number), field, value)
    pair.drivers[0].ok(cmd.ERR2RST, a.number)
    assert a.number not in pair.nics[0].qps
    assert pair.nics[0].counters["own_errors"] == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("field", "value"), [("servtype", 7), ("servtype", 255), ("mtu", 7)])
def test_garbage_that_nobody_has_seen_is_no_mistake_of_rnic(
    new_pair: NewPair, field: str, value: int, way: str
) -> None:
    """It is found when it is used, and named; others go on."""
    pair = new_pair(mtu=1024, **WAYS[way])
    others, (a, b) = pair.connect(), pair.connect()
    (_, va, lkey), (_, remote, rkey) = pair.mrs
    setattr(pair.nics[0].contexts.key.qps.view(a.number), field, value)
    pair.drivers[0].write(a, va, 3000, lkey, remote, rkey)
    pair.drivers[1].post(b, WR_READ, remote, 3000, rkey, va, lkey)
    pair.wire.skip(1 << 30)
    qp = pair.nics[0].qps[a.number]
    assert (qp.why.values["field"] if qp.why else "", qp.ctx.state) == (field, ERR)
    assert pair.nics[0].counters["own_errors"] == 0
    pair.poll(0)
    assert works(pair, others[0])


def test_sizes_of_completion_and_event_rings_stored_by_hand(new_pair: NewPair) -> None:
    pair = new_pair()
    a, _ = pair.connect()
    nic = pair.nics[0]
    for logsize in (0, 200):
        nic.contexts.key.cqs[pair.cqs[0].number].logsize = logsize
        pair.wire.run()
        assert nic.resources.cqs[pair.cqs[0].number].failed
        assert nic.qps[a.number].ctx.state == ERR
    other = pair.drivers[0].eq()
    for logsize in (0, 200):
        nic.contexts.key.eqs[other.number].logsize = logsize
        assert nic.resources.eqs[other.number].failed
    assert nic.counters["own_errors"] == 0


def test_good_edits_are_taken(live: Live) -> None:
    pair, a, qpc = live
    contexts = pair.nics[0].contexts
    image = bytearray(qpc)
    for name, value in (("tclass", 8), ("rnr_retry", 5), ("retry_cnt", 6), ("flags_10_0", 3)):
        QPC.put(image, name, value)
    assert contexts.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, a.number), bytes(image))[0] == Status.OK
    assert contexts.load_qp(a.number) == Status.OK
    assert contexts.key.qps[a.number].tclass == 8
    assert works(pair, a)


def test_datagram_queue_pairs_need_no_path_but_an_mtu(new_pair: NewPair) -> None:
    pair = new_pair()
    a, _ = pair.connect(ST_UD)
    contexts = pair.nics[0].contexts
    _, qpc = contexts.read_qp(a.number)
    assert contexts.load_qp(a.number) == Status.OK
    image = bytearray(qpc)
    QPC.put(image, "mtu", 0)
    request = m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, a.number)
    assert contexts.ceu(request, bytes(image))[0] == Status.REFUSED
    assert contexts.ceu(request, qpc)[0] == Status.OK
    assert contexts.key.qps[a.number].state == RTS


def test_event_queue_of_a_cq_and_protection_domains(live: Live) -> None:
    pair, _, _ = live
    contexts, cq, eq = pair.nics[0].contexts, pair.cqs[0], pair.eqs[0]
    for kind, number, layout, field, value in (
        (m.WR_CQ_CXT, cq.number, CQC, "comp_eqn", 31),
        (m.WR_CQ_CXT, cq.number, CQC, "comp_eqn", 0xFFFF_FFFF),
        (m.WR_CQ_CXT, cq.number, CQC, "lkey", 5),
        (m.WR_EQ_CXT, eq.number, EQC, "lkey", 5),
        (m.WR_CQ_CXT, cq.number, CQC, "logsize", 0),
        (m.WR_CQ_CXT, cq.number, CQC, "logsize", 12),
        (m.WR_EQ_CXT, eq.number, EQC, "logsize", 12),
        (m.WR_EQ_CXT, eq.number, EQC, "msix_vector", 0xFFFF),
        (m.WR_CQ_CXT, cq.number, CQC, "usrpage", 0),
    ):
        table = "cq" if kind == m.WR_CQ_CXT else "eq"
        place = contexts.ctxmdata.tables[table].locate(number)
        assert place is not None
        image = bytearray(64)
        assert place.port.read(place.addr, image)
        good = bytes(image)
        layout.put(image, field, value)
        assert contexts.ceu(m.ceu_request(kind, 1, number), bytes(image))[0] == Status.REFUSED
        assert contexts.refused_field == field
        assert place.port.read(place.addr, image)
        assert image == good
        assert contexts.ceu(m.ceu_request(kind, 1, number), good)[0] == Status.OK


def test_random_contexts_raise_nothing(live: Live) -> None:
    """Every byte of a live queue pair's context may be anything: the device goes on, or says no."""
    pair, a, qpc = live
    contexts = pair.nics[0].contexts
    rng = random.Random(12)
    refused = 0
    for _ in range(300):
        image = bytearray(qpc)
        for _ in range(rng.randrange(1, 4)):
            image[rng.randrange(256)] ^= 1 << rng.randrange(8)
        place = contexts.ctxmdata.tables["qp"].locate(a.number)
        assert place is not None
        assert place.port.write(place.addr, image)
        refused += contexts.load_qp(a.number) != Status.OK
        pair.drivers[0].write(a, pair.mrs[0][1], 3000, pair.mrs[0][2], pair.mrs[1][1], pair.mrs[1][2])
        for _ in range(3):
            pair.wire.step()
        contexts.flush()
    assert 20 < refused < 300
    assert pair.nics[0].counters["internal_errors"] == 0
    pair.drivers[0].ok(cmd.ERR2RST, a.number)


# ------------------------------------------------------------------------- the next PSN, written from outside


def write_next_psn(pair: Pair, a: Queue, psn: int) -> None:
    """WR_QP_NPST on the channel of requester transmit control."""
    contexts = pair.nics[0].contexts
    command = m.engine_request(m.WR_QP_CXT, m.WR_QP_NPST, a.number)
    assert contexts.request(m.RTC, command, m.engine_payload(psn & 0xFFFFFF, RTS))
    contexts.run()


def settle(pair: Pair) -> list[int]:
    """Statuses of all completions, however many timeouts they take."""
    found: list[int] = []
    for _ in range(40):
        pair.wire.skip(70_000_000)
        found += [entry[1] & 0xFF for entry in pair.poll(0)]
    return found


RETRY_EXC, FLUSHED = 0x15, 5


@pytest.mark.parametrize("jump", [1, 5, 200, 5_000, 1 << 22, (1 << 23) - 1, -3, -5, -200, -(1 << 22), -(1 << 23)])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("read", [False, True], ids=["write", "read"])
def test_retries_end_a_queue_pair_whose_next_psn_was_written(live: Live, jump: int, busy: bool, read: bool) -> None:
    pair, a, _ = live
    (_, va, lkey), (_, remote, rkey) = pair.mrs
    driver = pair.drivers[0]
    assert works(pair, a)
    if busy:
        driver.write(a, va, 20_000, lkey, remote, rkey)
        pair.wire.step()
    write_next_psn(pair, a, pair.nics[0].qps[a.number].ctx.next_send_psn + jump)
    for _ in range(2):
        if read:
            driver.post(a, WR_READ, va, 100, lkey, remote, rkey)
        else:
            driver.write(a, va, 100, lkey, remote, rkey)
    assert settle(pair) == [0] * busy + [RETRY_EXC, FLUSHED]
    assert pair.nics[0].counters["retries_exceeded"] == 1


def test_a_psn_that_the_peer_has_seen_is_a_duplicate_to_it(live: Live) -> None:
    """Going back by no more than is sent again cannot be told from a repetition: the peer acknowledges, and keeps."""
    pair, a, _ = live
    (source, va, lkey), (target, remote, rkey) = pair.mrs
    assert works(pair, a)
    before = bytes(target)
    write_next_psn(pair, a, pair.nics[0].qps[a.number].ctx.next_send_psn - 1)
    source[:8] = bytes(8)
    pair.drivers[0].write(a, va, 8, lkey, remote, rkey)
    assert settle(pair) == [0]
    assert target == before
    assert works(pair, a)
