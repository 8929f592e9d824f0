"""What the arena says of a device without any object: from its first record to each queue pair, its rings and path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.context.qpc import QPC
from rnic.spec import commands as cmd
from rnic.spec.limits import FIRST_QPN
from rnic.spec.opcodes import RC
from rnic.spec.states import RTS
from rnic.state.device import DEVICE
from rnic.state.inflight import INFLIGHT, PEER
from rnic.state.memory import KEY
from rnic.state.paths import FLOW
from rnic.state.queue_pair import QP
from rnic.state.queues import CQ, SRQ
from rnic.state.scheduler import PROGRAM, SCHEDULER, TIMERS
from rnic.transport.wqe import ReceiveRing
from tests.unit.device.conftest import Pair

if TYPE_CHECKING:
    from rnic.device.nic import Nic
    from rnic.spec.layout import Layout


def at(nic: Nic, layout: Layout, place: int) -> dict[str, int]:
    return layout.unpack(bytes(nic.arena.memory[place : place + layout.size]))


def find(nic: Nic, number: int) -> int:
    """The offset of a queue pair's record, from the arena's start and its number alone."""
    root = at(nic, DEVICE, 0)
    cell = root["directory"] // 8 + (number & (1 << root["log_qps"]) - 1)
    return nic.arena.cells[cell]


def test_everything_of_a_queue_pair_is_found_from_its_number(pair: Pair) -> None:
    a, b = pair.connect()
    nic = pair.nics[0]
    root, qp = at(nic, DEVICE, 0), at(nic, QP, find(nic, a.number))
    assert (qp["number"], qp["opcodes"], qp["pkey"], qp["held"]) == (a.number, RC, 0xFFFF, 0)
    context = QPC.unpack(bytes(nic.arena.memory[qp["context"] : qp["context"] + QPC.size]))
    assert (context["local_qpn"], context["remote_qpn"], context["state"]) == (a.number, b.number, RTS)
    flow = at(nic, FLOW, qp["path"])
    sent = flow["dst_0"].to_bytes(8, "little") + flow["dst_1"].to_bytes(8, "little")
    assert (sent.rstrip(b"\0"), flow["users"]) == (pair.nics[1].config.address, 1)
    live = nic.qps[a.number]
    assert (qp["sq_base"], qp["sq_entries"], qp["sq_shift"]) == (live.send_ring.base, live.sq_entries, 6)
    assert isinstance(live.rq, ReceiveRing)
    assert (qp["rq_base"], qp["rq_entries"], qp["rq_stride"]) == (live.rq.base, live.rq.entries, live.rq.stride)
    assert (qp["block"], qp["driver"], qp["srq_record"]) == (live.regs.block, live.uar.number, 0)
    assert qp["sends"] == live.memory.sends * 8
    cq = at(nic, CQ, root["cqs"] + (context["cqn_snd"] & (1 << root["log_qps"]) - 1) * CQ.size)
    assert (cq["usrpage"], cq["driver"]) == (pair.cqs[0].block, live.uar.number)
    assert root["max_keys"] == nic.memory.max_entries
    assert at(nic, KEY, root["keys"]).keys() == {field.name for field in KEY.fields}


def test_its_turns_its_deadlines_and_its_peers_account_are_found_too(pair: Pair) -> None:
    a, b = pair.connect()
    assert b.number
    nic = pair.nics[0]
    root, place = at(nic, DEVICE, 0), find(nic, a.number)
    nic.qps[a.number].requester.ack_deadline = 77
    nic.qps[a.number].rearm()
    nic.schedule(nic.qps[a.number])
    qp, timers, scheduler = at(nic, QP, place), at(nic, TIMERS, root["timers"]), at(nic, SCHEDULER, root["scheduler"])
    assert (qp["armed_ns"], qp["timer_place"], timers["count"]) == (77, 1, 1)
    assert nic.arena.cells[timers["heap"] // 8 + 1] == place
    assert (scheduler["count"], scheduler["first"], qp["scheduled"]) == (1, qp["program_record"], 1)
    assert at(nic, PROGRAM, scheduler["first"])["first"] == place
    account = at(nic, PEER, qp["peer_record"])
    assert (account["users"], account["inflight"]) == (1, 0)
    assert at(nic, INFLIGHT, root["inflight"])["limit"] == nic.config.flight_packets


def test_a_receive_moves_the_head_in_the_record(pair: Pair) -> None:
    a, b = pair.connect()
    nic = pair.nics[1]
    _, va, key = pair.drivers[1].mr(pair.pds[1], 64)
    pair.drivers[1].recv(b, va, 64, key)
    assert nic.qps[b.number].take_receive() is not None
    assert at(nic, QP, find(nic, b.number))["rq_head"] == 1
    assert a.number


def test_what_is_destroyed_is_found_no_more_and_its_path_has_no_user(pair: Pair) -> None:
    a, _ = pair.connect()
    nic = pair.nics[0]
    flow = at(nic, QP, find(nic, a.number))["path"]
    pair.drivers[0].ok(cmd.ERR2RST, a.number)
    assert find(nic, a.number) == 0
    assert at(nic, FLOW, flow)["users"] == 0
    assert all(find(nic, FIRST_QPN + slot) == 0 for slot in range(1 << nic.config.log_max_qps))


def test_a_shared_receive_queues_record_is_named_by_its_queue_pairs(pair: Pair) -> None:
    driver, nic = pair.drivers[0], pair.nics[0]
    srq = driver.srq(pair.pds[0])
    qp = driver.qp(pair.pds[0], pair.cqs[0], srq=srq)
    record = at(nic, QP, find(nic, qp.number))
    shared = at(nic, SRQ, record["srq_record"])
    live = nic.resources.srqs[srq.number]
    assert (shared["number"], shared["base"], shared["entries"]) == (srq.number, live.base, live.ring.entries)
    assert (record["rq_entries"], shared["pd"], shared["block"]) == (0, pair.pds[0], srq.block)
