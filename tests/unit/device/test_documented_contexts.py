"""Queue pairs of 002's 192 bytes alone: rights, retries and READ depth that only the extension names have defaults."""

from __future__ import annotations

import pytest

from rnic.context import messages as m
from rnic.context.ctxmdata import QP
from rnic.context.ctxmgt import Status
from rnic.context.qpc import QPC, QPC_BYTES, WITHOUT_EXTENSION, settled
from rnic.mem.dma import DmaPort
from rnic.rings.sqe import SQE_BYTES
from rnic.spec import access, events
from rnic.spec import commands as cmd
from rnic.spec.opcodes import WR_FETCH_ADD, WR_READ
from rnic.spec.states import ERR, RTS
from rnic.spec.status import REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR, SUCCESS
from tests.unit.device.conftest import ENTRIES, STRIDE, NewPair, Pair, Queue

WAYS = {"engine": {}, "reference": {"reference": True}, "channels": {"channels": True}}
EXTENSION = slice(192, 256)


def fields(pair: Pair, side: int, number: int, block: int, peer: int, key: int) -> dict[str, int]:
    """A QPC in RTS, of what 002 4.2.1 names."""
    return {
        "state": RTS,
        "mtu": 3,
        "rq_entry_sz_log": 4,
        "sq_entry_sz_log": 6,
        "usr_page": block,
        "local_qpn": number,
        "remote_qpn": peer,
        "port": 1,
        "rnr_retry": 2,
        "ackto": 8,
        "hop_limit": 64,
        "sip": 0x0A00_0001 + side,
        "dip": 0x0A00_0002 - side,
        "pd": pair.pds[side],
        "next_send_psn": 7,
        "last_acked_psn": 7,
        "cqn_snd": pair.cqs[side].number,
        "cqn_rcv": pair.cqs[side].number,
        "snd_wqe_base_lkey": key,
        "snd_wqe_length": ENTRIES * SQE_BYTES,
        "rnr_nak_timer": 1,
        "expected_psn": 7,
        "rcv_wqe_base_lkey": key,
        "rcv_wqe_length": ENTRIES * STRIDE,
    }


class Bench:
    """Both ends written by WR_QP_ALL, ``size`` bytes each, with ``more`` in the extension."""

    def __init__(self, pair: Pair, size: int = 192, **more: int) -> None:
        self.pair, self.wire = pair, pair.wire
        numbers = [driver.alloc(cmd.RES_QP) for driver in pair.drivers]
        self.ends: list[Queue] = []
        for side, driver in enumerate(pair.drivers):
            memory, va, key = driver.mr(pair.pds[side], ENTRIES * (SQE_BYTES + STRIDE))
            block = driver.alloc(cmd.RES_UAR_BLOCK)
            values = fields(pair, side, numbers[side], block, numbers[1 - side], key)
            assert self.message(side, numbers[side], QPC.pack(values | more)[:size]) == Status.OK
            queue = Queue(numbers[side], block, memory, va)
            queue.rq_offset = ENTRIES * SQE_BYTES
            self.ends.append(queue)

    def message(self, side: int, number: int, payload: bytes) -> Status:
        return self.pair.nics[side].contexts.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, number), payload)[0]

    def do(self, opcode: int, length: int, at: int = 0, side: int = 0) -> None:
        (_, va, lkey), (_, remote, rkey) = self.pair.mrs if side == 0 else reversed(self.pair.mrs)
        self.pair.drivers[side].post(self.ends[side], opcode, va + at, length, lkey, remote + at, rkey)

    def write(self, length: int = 3000) -> None:
        (_, va, lkey), (_, remote, rkey) = self.pair.mrs
        self.pair.drivers[0].write(self.ends[0], va, length, lkey, remote, rkey)

    def done(self, side: int = 0) -> list[int]:
        """Statuses of the completions that come, however many timeouts that takes."""
        found: list[int] = []
        for _ in range(40):
            self.wire.skip(5_000_000)
            found += [entry[1] & 0xFF for entry in self.pair.poll(side)]
        return found

    def page(self, side: int = 0) -> tuple[DmaPort, int]:
        """Where memory has the context of one end."""
        place = self.pair.nics[side].contexts.ctxmdata.tables[QP].locate(self.ends[side].number)
        assert place is not None
        return place.port, place.addr


@pytest.fixture(params=WAYS)
def bench(request: pytest.FixtureRequest, new_pair: NewPair) -> Bench:
    return Bench(new_pair(mtu=1024, **WAYS[request.param]))


def test_every_operation_works(bench: Bench) -> None:
    (source, mine, lkey), (target, remote, rkey) = bench.pair.mrs
    source[:3000] = bytes(range(250)) * 12
    bench.write()
    assert bench.done() == [SUCCESS]
    assert target[:3000] == source[:3000]
    target[5000:9000] = bytes(range(200)) * 20
    for _ in range(3):
        bench.do(WR_READ, 4000, 5000)
    assert bench.done() == [SUCCESS] * 3
    assert source[5000:9000] == target[5000:9000]
    target[16:24] = (41).to_bytes(8, "little")
    bench.pair.drivers[0].post(
        bench.ends[0], WR_FETCH_ADD, mine + 16, 8, lkey, remote + 16, rkey, tail=(1).to_bytes(8, "little")
    )
    assert bench.done() == [SUCCESS]
    assert (source[16:24], target[16:24]) == (bytearray([41, *bytes(7)]), bytearray([42, *bytes(7)]))
    bench.pair.drivers[1].recv(bench.ends[1], remote + 100, 64, rkey)
    bench.pair.drivers[0].send(bench.ends[0], mine, 64, lkey)
    assert (bench.done(), bench.pair.poll(1)[0][1] & 0xFF) == ([SUCCESS], SUCCESS)
    assert target[100:164] == source[:64]


@pytest.mark.parametrize("opcode", ["write", "read"])
def test_six_losses_in_a_row_are_sat_out(bench: Bench, opcode: str) -> None:
    lost: list[bytes] = []

    def drop(data: bytes) -> bool:
        lost.append(data)
        return len(lost) <= 6

    bench.wire.drop = drop
    bench.write(64) if opcode == "write" else bench.do(WR_READ, 64)
    assert bench.done() == [SUCCESS]
    assert len(lost) > 6


def test_the_regions_rights_govern(bench: Bench) -> None:
    key = bench.pair.drivers[1].mr(bench.pair.pds[1], 64, access.LOCAL_WRITE | access.REMOTE_READ)
    (_, va, lkey), _ = bench.pair.mrs
    bench.pair.drivers[0].write(bench.ends[0], va, 8, lkey, key[1], key[2])
    assert bench.done() == [REM_ACCESS_ERR]


def test_an_extension_that_is_not_valid_counts_as_absent(new_pair: NewPair) -> None:
    """256 bytes, and the bit is not set: garbage beside it means nothing."""
    bench = Bench(new_pair(mtu=1024), QPC_BYTES, srqn=1 << 31 | 5, sq_base=0x1234, retry_cnt=200, sq_slab_bytes=7)
    ctx = bench.pair.nics[0].qps[bench.ends[0].number].ctx
    assert ctx.store()[EXTENSION] == QPC.pack(WITHOUT_EXTENSION)[EXTENSION]
    bench.write()
    assert bench.done() == [SUCCESS]


def test_what_memory_has_behind_192_bytes_is_not_taken(new_pair: NewPair) -> None:
    bench = Bench(new_pair(mtu=1024))
    number, driver, nic = bench.ends[0].number, bench.pair.drivers[0], bench.pair.nics[0]
    image = nic.qps[number].ctx.store()[:192]
    port, at = bench.page()
    driver.ok(cmd.ERR2RST, number)
    assert port.write(at + 192, QPC.pack({"extension_valid": 1, "sq_base": 0x1234, "retry_cnt": 200})[EXTENSION])
    assert bench.message(0, number, image) == Status.OK
    ctx = nic.qps[number].ctx
    assert (ctx.extension_valid, ctx.sq_base, ctx.retry_cnt) == (0, 0, 7)
    nic.flush_contexts()
    assert settled(nic.contexts.read_qp(number)[1]) == ctx.store()


def test_a_valid_extension_counts_at_once(bench: Bench) -> None:
    entry = bench.pair.nics[1].contexts.key.qps[bench.ends[1].number]
    entry.access_flags = 0  # not valid yet
    assert entry.access_flags == WITHOUT_EXTENSION["access_flags"]
    entry.extension_valid = 1
    entry.access_flags = 0
    bench.write()
    assert bench.done() == [REM_INV_REQ_ERR]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("claimed", [0, 1])
def test_no_rights_of_a_command_are_none(new_pair: NewPair, way: str, claimed: int) -> None:
    """What RST2INIT made has an extension, whatever its mailbox says: access flags of 0 let nobody in."""
    pair = new_pair(**WAYS[way])
    queues = []
    for side, driver in enumerate(pair.drivers):
        number, block = driver.alloc(cmd.RES_QP), driver.alloc(cmd.RES_UAR_BLOCK)
        memory, va = driver.memory(ENTRIES * (SQE_BYTES + STRIDE))
        values = driver.creation(pair.pds[side], pair.cqs[side], block, va)
        driver.ok(cmd.RST2INIT, number, 0, QPC.pack(values | {"access_flags": 0, "extension_valid": claimed}))
        queues.append(Queue(number, block, memory, va))
    for side, driver in enumerate(pair.drivers):
        driver.to_rts(queues[side], pair.gid(1 - side), queues[1 - side].number)
    (_, va, lkey), (target, remote, rkey) = pair.mrs
    pair.drivers[0].write(queues[0], va, 8, lkey, remote, rkey)
    pair.wire.run()
    assert [entry[1] & 0xFF for entry in pair.poll(0)] == [REM_INV_REQ_ERR]
    assert not any(target)


def test_a_modify_command_completes_the_extension(bench: Bench) -> None:
    """A queue pair of 192 bytes, asked for no rights by a command, has none from then on."""
    number, driver = bench.ends[1].number, bench.pair.drivers[1]
    driver.ok(cmd.RTS2RTS, number, 0, QPC.pack({"opt_param_mask": 1 << 3, "access_flags": 0}))
    ctx = bench.pair.nics[1].qps[number].ctx
    assert (ctx.extension_valid, ctx.retry_cnt) == (1, 7)
    bench.write()
    assert bench.done() == [REM_INV_REQ_ERR]


@pytest.mark.parametrize("size", [192, QPC_BYTES])
def test_eviction_brings_it_back(bench: Bench, size: int) -> None:
    nic, number = bench.pair.nics[0], bench.ends[0].number
    before = nic.qps[number].ctx.store()
    assert nic.contexts.evict(QP, number) == Status.OK
    # a message to an evicted one leaves the rest as it is, and loads it
    assert bench.message(0, number, before[:size]) == Status.OK
    assert nic.qps[number].ctx.store() == before
    bench.write()
    assert bench.done() == [SUCCESS]


def test_192_bytes_for_a_queue_pair_of_commands_leave_its_extension(new_pair: NewPair) -> None:
    pair = new_pair()
    a, _ = pair.connect()
    contexts = pair.nics[0].contexts
    before = contexts.key.qps[a.number].store()
    assert any(before[EXTENSION])
    for evicted in (False, True):
        if evicted:
            assert contexts.evict(QP, a.number) == Status.OK
        request = m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, a.number)
        assert contexts.ceu(request, before[:192])[0] == Status.OK
        assert contexts.key.qps[a.number].store() == before


def test_a_receive_ring_whose_region_goes_is_a_fault_of_its_queue_pair_alone(bench: Bench) -> None:
    """004 7.7, as for the send ring: the peer is not told to wait for ever."""
    pair = bench.pair
    key = pair.nics[1].contexts.key.qps[bench.ends[1].number].rcv_wqe_base_lkey
    pair.drivers[1].map_events(pair.eqs[1], events.WQ_CATAS_ERROR)
    pair.drivers[1].recv(bench.ends[1], pair.mrs[1][1], 64, pair.mrs[1][2])
    pair.drivers[1].ok(cmd.HW2SW_MPT, key)
    pair.drivers[0].send(bench.ends[0], pair.mrs[0][1], 64, pair.mrs[0][2])
    assert bench.done() == [REM_OP_ERR]
    assert pair.nics[1].qps[bench.ends[1].number].ctx.state == ERR
    assert pair.nics[1].counters["rnr_naks_sent"] == 0
    assert [entry[:2] for entry in pair.events(1)] == [(events.WQ_CATAS_ERROR, bench.ends[1].number)]
    assert pair.nics[1].counters["own_errors"] == 0
