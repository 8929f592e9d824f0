"""CtxMgt as gateware, rule for rule of 002, beside the software's CtxMgt (``ctxmgt_lockstep``).

Every test holds the two equal in all they do; what a test asserts beside that is the rule it is named after.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from amaranth.lib.wiring import Signature
from cocotb_run import BENCHES, reason_to_skip, run_testcase
from ctxmgt_lockstep import Lockstep, Memory, Outputs, Transfer
from ctxmgt_run import library, run
from ctxmgt_streams import Streams

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import Status
from rnic.context.eqc import EQC
from rnic.context.qpc import QPC
from rnic.gateware.ctxmgt.driver import InProcess
from rnic.gateware.ctxmgt.measure import measure
from rnic.gateware.ctxmgt.params import CtxMgtParams, CtxMgtParamsError
from rnic.gateware.ctxmgt.streams import BEAT_BYTES
from rnic.gateware.ctxmgt.top import CtxMgt, interface
from rnic.gateware.tools import find_tool, verilator_environment
from rnic.gateware.verilog import CTXMGT_NAME, write_ctxmgt
from rnic.spec.source import install_hint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("ctxmgt")]
PARAMS = CtxMgtParams(log_qps=5, log_eqs=2, fifo_depth=8)
BASE = 0x8000_0000
CQ_BASE, EQ_BASE = BASE + (4 << 20), BASE + (5 << 20)
HOST = 0x1_2345_0000
QPN, CQN, EQN = 37, 3, 1
"""The QP's context is the sixth of the first page: 37 has its low five bits 5."""
OK, REFUSED, DMA_ERROR = Status.OK, Status.REFUSED, Status.DMA_ERROR

ICMMAP = {"qpc_base": BASE >> 8, "cqc_base": CQ_BASE >> 8, "eqc_base": EQ_BASE >> 8}
QP_VALUES = {
    field.name: (0x9E3779B97F4A7C15F39CC0605CEDC834 >> place % 60) & field.mask
    for place, field in enumerate(QPC.fields)
} | {"state": 3, "cqn_snd": CQN, "cqn_rcv": CQN + 1, "mtu": 5, "port": 2}  # fmt: skip
CQ_VALUES = {"flags": 1, "logsize": 9, "comp_eqn": EQN, "pd": 0x89ABCDEF, "lkey": 0xFEDCBA98, "cqn": CQN}
EQ_VALUES = {
    "flags": 7,
    "logsize": 8,
    "event_mask": 0xF0F0,
    "msix_vector": 0xABCD,
    "pd": 0x13572468,
    "lkey": 0x2468ACE0,
}
QP_AT, CQ_AT, EQ_AT = HOST + 0x1000 + 5 * 256, HOST + 0x5000 + CQN * 64, HOST + 0x7000 + EQN * 64


def chunks(*runs: tuple[int, int, int]) -> bytes:
    """MAP_ICM_EN's payload."""
    data = b"".join(m.CHUNK.pack({"virt": virt, "page": host >> 12, "pages": pages}) for virt, host, pages in runs)
    return data + bytes(-len(data) % 32)


def enable(bench: Lockstep, **changes: int) -> None:
    bench.ceu(m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN), m.ICMMAP.pack(ICMMAP | changes))


def disable(bench: Lockstep) -> None:
    bench.ceu(m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_DIS))


PAGES = (
    (BASE, HOST + 0x1000, 1),
    (BASE + 0x1000, HOST, 1),
    (CQ_BASE, HOST + 0x5000, 1),
    (EQ_BASE, HOST + 0x7000, 1),
)
"""QPCs have two pages, of which the second lies first in host memory."""


def map_pages(bench: Lockstep, *runs: tuple[int, int, int], count: int | None = None) -> None:
    number = len(runs) if count is None else count
    bench.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, number), chunks(*runs))


def unmap(bench: Lockstep, virt: int, pages: int = 1) -> None:
    bench.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_DIS, pages, virt))


def opened(**options: Any) -> Lockstep:
    """A bench whose tables are enabled and mapped."""
    bench = Lockstep(PARAMS, **options)
    enable(bench)
    map_pages(bench, *PAGES)
    return bench


def qpc(**changes: int) -> bytes:
    return QPC.pack(QP_VALUES | changes)


def write_qp(bench: Lockstep, qpn: int = QPN, size: int = 256, **changes: int) -> None:
    bench.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, qpn), qpc(**changes)[:size])


def write_cq(bench: Lockstep, cqn: int, opcode: int = m.WR_CQ_ALL, **changes: int) -> None:
    bench.ceu(m.ceu_request(m.WR_CQ_CXT, opcode, cqn), CQC.pack(CQ_VALUES | {"cqn": cqn} | changes))


def write_eq(bench: Lockstep, eqn: int = EQN, **changes: int) -> None:
    bench.ceu(m.ceu_request(m.WR_EQ_CXT, m.WR_EQ_ALL, eqn), EQC.pack(EQ_VALUES | changes))


def function(bench: Lockstep, addr: int, types: int) -> None:
    bench.ceu(m.ceu_request(m.WR_EQ_CXT, m.WR_EQ_FUNC, addr, types))


def loaded(**options: Any) -> Lockstep:
    """A bench with a QP, two CQs and an EQ, for which five requests more were made."""
    bench = opened(**options)
    write_qp(bench)
    write_cq(bench, CQN)
    write_cq(bench, CQN + 1, logsize=10, lkey=77)
    write_eq(bench)
    return bench


def invalidate(bench: Lockstep, kind: int, opcode: int, number: int) -> None:
    bench.ceu(m.ceu_request(kind, opcode, number), beats=[(1 << 256) - 1])


def read(bench: Lockstep, source: int, qpn: int = QPN) -> None:
    row = next(row for row in m.REQUESTS if row.kind == m.READ and row.sources == (source,))
    bench.engine(source, m.engine_request(row.type, row.opcode, qpn))


OPCODES = {m.RTC: m.WR_QP_NPST, m.RRC: m.WR_QP_UAPST, m.EE: m.WR_QP_EPST}


def write(bench: Lockstep, source: int, psn: int, state: int, qpn: int = QPN) -> None:
    command = m.engine_request(m.WR_QP_CXT, OPCODES[source], qpn)
    bench.engine(source, command, m.engine_payload(psn, state))


def read_all(bench: Lockstep, qpn: int = QPN) -> None:
    for source in m.ENGINES:
        read(bench, source, qpn)


def write_all(bench: Lockstep, psn: int, state: int) -> None:
    for source in OPCODES:
        write(bench, source, psn, state)


def fields(bench: Lockstep, source: int, place: int = -1) -> dict[str, int]:
    """A channel's answer."""
    return m.RESPONSES[source].unpack(bench.answers[source][place][1])


# ---------------------------------------------------------------- 5.1 ceu_parser


def test_a_write_goes_to_memory_and_then_to_the_cache() -> None:
    bench = opened()
    write_qp(bench)
    run(bench, lambda: read(bench, m.DB))
    assert bench.statuses == [OK] * 3
    assert bench.transfers == [Transfer(QP_AT, qpc())]
    assert fields(bench, m.DB)["sq_lkey"] == QP_VALUES["snd_wqe_base_lkey"]


def test_a_context_that_memory_does_not_take_is_not_cached() -> None:
    bench = opened()

    def ask() -> None:
        bench.fail.share = 1.0
        write_qp(bench)

    run(bench, ask, lambda: read(bench, m.DB))
    assert bench.statuses == [OK, OK, DMA_ERROR]
    assert not any(bench.answers[m.DB][0][1])
    assert bench.counted["unknown_qp"] == 1


def test_a_read_goes_to_memory_alone() -> None:
    bench = opened()
    bench.memory.write(QP_AT, bytes(range(256)))
    bench.ceu(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN))
    run(bench)
    assert bench.read_back == [(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN), bytes(range(256)))]
    assert bench.serving == []
    assert bench.statuses[-1] == OK


@pytest.mark.parametrize("kind", range(16))
def test_whatever_the_table_does_not_list_is_refused(kind: int) -> None:
    bench = loaded()
    listed = {row.opcode for row in m.REQUESTS if row.type == kind and m.CEU in row.sources}
    wrong = [opcode for opcode in range(16) if opcode not in listed]

    def ask() -> None:
        for opcode in wrong:
            bench.ceu(m.ceu_request(kind, opcode, CQN), bytes(64))

    run(bench, ask, lambda: read(bench, m.DB))
    assert bench.statuses[6:] == [REFUSED] * len(wrong)
    assert len(bench.transfers) == 4
    assert fields(bench, m.DB)["qp_pd"] == QP_VALUES["pd"]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in m.REQUESTS if m.CEU in row.sources])
def test_a_payload_has_the_beats_of_its_context(row: m.Request) -> None:
    bench = opened()
    number = QPN if row.type in (m.WR_QP_CXT, m.RD_QP_CXT) else CQN
    counts = [count for count in (0, 1, 2, 3, 5, 6, 7, 8, 9, 33, 40) if count * BEAT_BYTES not in row.payloads]

    def ask() -> None:
        for count in counts:
            bench.ceu(m.ceu_request(row.type, row.opcode, number), bytes(BEAT_BYTES * count))

    run(bench, ask, lambda: write_qp(bench))
    assert bench.statuses == [OK, OK, *[REFUSED] * len(counts), OK]
    assert bench.transfers == [Transfer(QP_AT, qpc())]


def test_the_event_mask_is_merged_in_memory_and_bit_31_takes_away() -> None:
    bench = loaded()

    def ask() -> None:
        function(bench, EQN, 0x1000F)
        function(bench, EQN | m.EQ_DISABLE, 0x10F0)
        function(bench, EQN, 0)

    run(bench, ask)
    masks = [0x1F0FF, 0x1E00F, 0x1E00F]
    assert bench.transfers[4:] == [Transfer(EQ_AT + 0x10, mask.to_bytes(4, "big")) for mask in masks]


@pytest.mark.parametrize("eqn", [0, 2, 4, EQN | 4, EQN | 1 << 30])
def test_the_event_function_of_an_eq_never_written_is_refused(eqn: int) -> None:
    bench = loaded()
    run(bench, lambda: function(bench, eqn, 1))
    assert bench.statuses[-1] == REFUSED
    assert len(bench.transfers) == 4


# ---------------------------------------------------------------- 5.2 request controller


def test_the_ceu_goes_first_and_the_engines_in_turn() -> None:
    bench = loaded()

    def ask() -> None:
        for _ in range(6):
            for source in m.ENGINES:
                read(bench, source)
        for _ in range(3):
            write_qp(bench)

    run(bench, ask)
    turns = [channel for channel in bench.serving if channel]
    assert set(pairwise(turns)) <= {(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 1)}
    assert len(turns) == 36


def watch(bench: Lockstep, look: Callable[[], object]) -> None:
    """Call ``look`` at every cycle."""
    plain = bench.cycle

    def cycle(pins: Outputs) -> dict[str, int]:
        look()
        return plain(pins)

    bench.cycle = cycle  # type: ignore[method-assign]


def test_a_requester_that_takes_no_answers_holds_nobody_up() -> None:
    bench = loaded()
    bench.refuse_all = {f"{m.SOURCE_NAMES[m.DB]}_{suffix}" for suffix in ("resp", "cxt")}
    served: list[int] = []

    def ask() -> None:
        for _ in range(20):
            read(bench, m.DB)
            read(bench, m.FE)
        write_qp(bench)

    def look() -> None:
        if len(bench.statuses) == 7 and bench.serving.count(6) == 20 and not served:
            served.append(bench.serving.count(1))
            bench.refuse_all = set()

    watch(bench, look)
    run(bench, ask)
    assert 0 < served[0] < 10


def test_a_write_whose_payload_does_not_come_holds_nobody_up() -> None:
    bench = loaded()

    def ask() -> None:
        bench.engine(m.RTC, m.engine_request(m.WR_QP_CXT, m.WR_QP_NPST, QPN))
        for _ in range(5):
            read(bench, m.EE)

    def look() -> None:
        if bench.serving.count(5) == 5 and not late:
            late.append(bench.serving.count(3))
            bench.payloads[m.RTC].append(m.engine_payload(99, 3))

    late: list[int] = []
    watch(bench, look)
    run(bench, ask, lambda: read(bench, m.RTC))
    assert late == [0]
    assert fields(bench, m.RTC)["next_psn"] == 99


# ---------------------------------------------------------------- 5.3 ctxmdata


def test_pages_are_found_by_the_bits_of_the_number() -> None:
    bench = opened()
    numbers = (32, 47, 16, 31)
    places = (HOST + 0x1000, HOST + 0x1000 + 15 * 256, HOST, HOST + 15 * 256)

    def ask() -> None:
        for qpn in numbers:
            write_qp(bench, qpn)

    run(bench, ask)
    assert [each.addr for each in bench.transfers] == list(places)


@pytest.mark.parametrize("number", [0, 15, 48, QPN | 1 << 24, QPN | 1 << 31])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    bench = opened()
    write_qp(bench, number)
    bench.ceu(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, number))
    run(bench)
    assert bench.statuses[2:] == [REFUSED, REFUSED]
    assert bench.transfers == []


def test_fewer_contexts_than_the_device_has() -> None:
    bench = Lockstep(PARAMS)
    enable(bench, log_qps=2, log_cqs=1, log_eqs=1)
    map_pages(bench, PAGES[0], PAGES[2], PAGES[3])
    map_pages(bench, PAGES[1])
    for qpn in (16, 19, 20):
        write_qp(bench, qpn)
    for cqn in (1, 2, 3):
        write_cq(bench, cqn)
    run(bench)
    assert bench.statuses == [OK, OK, REFUSED, OK, OK, REFUSED, OK, OK, REFUSED]


def test_a_page_that_is_not_mapped_refuses_the_ceu_and_loses_a_write_back() -> None:
    bench = loaded()

    def ask() -> None:
        unmap(bench, BASE)
        write_qp(bench)
        bench.ceu(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN))

    run(bench, ask, lambda: write(bench, m.RTC, 5, 4), lambda: read(bench, m.RTC))
    assert bench.statuses[6:] == [OK, REFUSED, REFUSED]
    assert bench.counted["unmapped"] == 1
    assert (fields(bench, m.RTC)["next_psn"], fields(bench, m.RTC)["state"]) == (5, 4)
    assert len(bench.transfers) == 4


def test_tables_that_are_not_enabled_hold_nothing() -> None:
    bench = Lockstep(PARAMS)
    map_pages(bench, *PAGES)
    map_pages(bench, (0, HOST, 1))  # where the bases are before they are set
    write_qp(bench)
    enable(bench)
    write_qp(bench)
    run(bench)
    assert bench.statuses == [REFUSED, REFUSED, REFUSED, OK, REFUSED]


@pytest.mark.parametrize(
    "changes",
    [
        {"qpc_base": (BASE >> 8) + 1},
        {"cqc_base": (BASE >> 8) + 16},
        {"eqc_base": CQ_BASE >> 8},
        {"log_qps": 6},
        {"log_cqs": 6},
        {"log_eqs": 3},
        {"qpc_base": (1 << 56) - 16},
    ],
)
def test_bases_that_cannot_be_leave_the_tables_as_they_were(changes: dict[str, int]) -> None:
    bench = loaded()
    run(bench, lambda: enable(bench, **changes), lambda: write_qp(bench))
    assert bench.statuses[6:] == [REFUSED, OK]


def test_enabling_again_takes_every_page_away() -> None:
    bench = loaded()
    run(
        bench, lambda: enable(bench), lambda: write_qp(bench), lambda: map_pages(bench, *PAGES), lambda: write_qp(bench)
    )
    assert bench.statuses[6:] == [OK, REFUSED, OK, OK]


def test_disabling_forgets_pages_and_contexts() -> None:
    bench = loaded()

    def reopen() -> None:
        enable(bench)
        map_pages(bench, *PAGES)

    run(bench, lambda: disable(bench), lambda: write_qp(bench), lambda: read(bench, m.RTC), reopen,
        lambda: write_qp(bench), lambda: read(bench, m.RTC))  # fmt: skip
    assert bench.statuses[6:] == [OK, REFUSED, OK, OK, OK]
    assert not any(bench.answers[m.RTC][0][1])
    assert fields(bench, m.RTC)["scq_lkey"] == 0
    assert fields(bench, m.RTC)["next_psn"] == QP_VALUES["next_send_psn"] & 0xFFFFFF


@pytest.mark.parametrize(
    "run_",
    [
        (BASE + 8, HOST, 1),
        (BASE, HOST, 0),
        (BASE, HOST, 3),
        (BASE - 0x1000, HOST, 1),
        (CQ_BASE + 0x1000, HOST, 1),
        ((1 << 64) - 0x1000, HOST, 2),
        (BASE + 0x1000, (1 << 64) - 0x1000, 2),
        (BASE + 0x1000, HOST, 1),
        (EQ_BASE, HOST, 1),
    ],
)
def test_pages_are_mapped_all_or_none(run_: tuple[int, int, int]) -> None:
    """What is wrong comes after pages that could be had; those can be had afterwards."""
    bench = Lockstep(PARAMS)
    enable(bench)
    map_pages(bench, (BASE + 0x1000, HOST + 0x2000, 1), PAGES[3], run_)
    map_pages(bench, *PAGES)
    write_qp(bench)
    write_qp(bench, 17)
    run(bench)
    assert bench.statuses == [OK, REFUSED, OK, OK, OK]
    assert [each.addr for each in bench.transfers] == [QP_AT, HOST + 256]


@pytest.mark.parametrize(("count", "beats"), [(0, 1), (3, 1), (1, 2), (5, 2), (65, 33), (4 | 1 << 31, 2)])
def test_the_chunks_fill_the_beats(count: int, beats: int) -> None:
    bench = Lockstep(PARAMS)
    enable(bench)
    payload = (chunks(*PAGES) + bytes(BEAT_BYTES * 40))[: BEAT_BYTES * beats]
    bench.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, count), payload)
    map_pages(bench, *PAGES[:3])  # the last beat is half full
    map_pages(bench, PAGES[3])
    run(bench)
    assert bench.statuses == [OK, REFUSED, OK, OK]


@pytest.mark.full
def test_64_chunks() -> None:
    """Of a device with so many pages, which is another one to build."""
    params = CtxMgtParams(log_qps=10, log_eqs=2, fifo_depth=8)
    bench = Lockstep(params)
    enable(bench)
    map_pages(bench, *((BASE + (page << 12), HOST + (63 - page << 12), 1) for page in range(64)))
    write_qp(bench, 16 + 16 * 5)
    run(bench)
    assert bench.statuses == [OK] * 3
    assert bench.transfers[0].addr == HOST + (63 - 6 << 12)


@pytest.mark.parametrize(("virt", "pages"), [(BASE, 3), (BASE, 0), (BASE + 8, 1), (EQ_BASE, 2), (BASE, 1 << 31)])
def test_pages_are_unmapped_all_or_none(virt: int, pages: int) -> None:
    bench = loaded()
    run(bench, lambda: unmap(bench, virt, pages), lambda: write_qp(bench), lambda: unmap(bench, BASE, 2),
        lambda: write_qp(bench), lambda: unmap(bench, BASE, 2))  # fmt: skip
    assert bench.statuses[6:] == [REFUSED, OK, OK, REFUSED, REFUSED]


def test_the_ceus_requests_go_before_write_backs() -> None:
    bench = loaded(latency=(60, 60))

    def ask() -> None:
        for psn in range(12):
            write(bench, m.RTC, psn, 3)
        for _ in range(3):
            bench.ceu(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN))

    run(bench, ask)
    assert bench.counted["took_key"] == 12
    assert bench.statuses[6:] == [OK] * 3


# ---------------------------------------------------------------- 5.4 key_qpc_data


@pytest.mark.parametrize("source", m.ENGINES, ids=m.SOURCE_NAMES.get)
def test_every_channel_is_answered_with_its_fields(source: int) -> None:
    bench = loaded()
    run(bench, lambda: read(bench, source))
    got = fields(bench, source)
    assert len(bench.answers[source][0][1]) * 8 == {m.WP: 128, m.EE: 320}.get(source, 256)
    if source in (m.RTC, m.RRC, m.EE):
        cqn = "cqn" if source == m.EE else "scqn"
        assert got[cqn] == CQN + (source == m.EE)
        assert got["eq_lkey"] == EQ_VALUES["lkey"]
        assert got["cq_lkey" if source == m.EE else "scq_lkey"] == (77 if source == m.EE else CQ_VALUES["lkey"])


def test_infiniband_mode_of_frame_encap() -> None:
    bench = Lockstep(CtxMgtParams(log_qps=5, log_eqs=2, fifo_depth=8, infiniband=True))
    enable(bench)
    map_pages(bench, *PAGES)
    write_qp(bench)
    read(bench, m.FE, QPN + 1)
    run(bench, lambda: read(bench, m.FE), amaranth=True)
    got = m.FE_RESPONSE_IB.unpack(bench.answers[m.FE][-1][1])
    assert (got["ib_roce"], got["slid"], got["dlid"]) == (1, QP_VALUES["slid"], QP_VALUES["dlid"])


@pytest.mark.parametrize("source", [m.RTC, m.RRC, m.EE], ids=m.SOURCE_NAMES.get)
def test_a_write_stores_psn_and_state_and_writes_them_back(source: int) -> None:
    bench = loaded()
    run(bench, lambda: write(bench, source, 0xABCDEF, 5), partial(read_all, bench))
    name, at = {
        m.RTC: ("next_send_psn", 0x6D), m.RRC: ("last_acked_psn", 0x7D), m.EE: ("expected_psn", 0x85),
    }[source]  # fmt: skip
    first = 5 << 4 | QP_VALUES["flags_27_24"]
    assert bench.transfers[4:] == [Transfer(QP_AT + at, b"\xab\xcd\xef"), Transfer(QP_AT + 8, bytes((first,)))]
    assert fields(bench, m.WP)["state"] == 5
    psns = {
        "next_send_psn": fields(bench, m.RTC)["next_psn"],
        "last_acked_psn": fields(bench, m.RRC)["unacked_psn"],
        "expected_psn": fields(bench, m.EE)["expected_psn"],
    }
    assert psns == {each: 0xABCDEF if each == name else QP_VALUES[each] & 0xFFFFFF for each in psns}


def test_what_dma_proc_has_written_and_for_whom() -> None:
    """002 5.3.4: DMA writes are the CEU's of a QPC, CQC or EQC, and key_qpc_data's of state and PSN."""
    bench, asked = loaded(), []

    def watch(ctx: Any, block: CtxMgt) -> None:
        request = block.ctxmdata.write_req
        if ctx.get(request.tvalid & request.tready):
            word = ctx.get(request.tdata)
            asked.append(m.WRITE_REQUEST.unpack(word.to_bytes(m.WRITE_REQUEST.size, "big")))

    run(bench, partial(write_all, bench, 0x123456, 5), watch=watch)
    mine, others = asked[:4], asked[4:]
    assert [(each["type"], each["opcode"], each["source"]) for each in mine] == [
        (m.WR_QP_CXT, m.WR_QP_ALL, m.CEU), (m.WR_CQ_CXT, m.WR_CQ_ALL, m.CEU), (m.WR_CQ_CXT, m.WR_CQ_ALL, m.CEU),
        (m.WR_EQ_CXT, m.WR_EQ_ALL, m.CEU),
    ]  # fmt: skip
    assert {(each["opcode"], each["source"]) for each in others} == {(code, source) for source, code in OPCODES.items()}
    assert {(each["type"], each["state"], each["data"], each["addr"]) for each in others} == {
        (m.WR_QP_CXT, 5, 0x123456, QP_AT)
    }


def test_a_write_has_no_response() -> None:
    bench = loaded()
    run(bench, partial(write_all, bench, 7, 3))
    assert not any(bench.answers.values())
    assert bench.counted["received"] == 4 + 3


def test_a_state_that_there_is_not_is_refused() -> None:
    bench = loaded()
    run(bench, lambda: write(bench, m.RTC, 5, 7), lambda: read(bench, m.RTC))
    assert bench.counted["bad_payload"] == 1
    assert fields(bench, m.RTC)["state"] == 3
    assert len(bench.transfers) == 4


@pytest.mark.parametrize("qpn", [QPN + 1, QPN - 32, QPN + 32, QPN | 1 << 23])
def test_an_unknown_qp_reads_as_zero_and_is_not_written(qpn: int) -> None:
    """Some of these have the slot of the QP that there is; EQ 0 is there too."""
    bench = loaded()
    write_eq(bench, 0)
    run(bench, partial(read_all, bench, qpn), lambda: write(bench, m.EE, 1, 1, qpn))
    assert not any(any(bench.answers[source][0][1]) for source in m.ENGINES)
    assert bench.counted["unknown_qp"] == 7
    assert bench.counted["took_key"] == 0


def test_a_command_of_another_channel_is_sent_back_alone() -> None:
    bench = loaded()
    commands = [m.engine_request(row.type, row.opcode, QPN)[:4] + bytes(range(12)) for row in m.REQUESTS]

    def ask() -> None:
        for source in m.ENGINES:
            for row, command in zip(m.REQUESTS, commands, strict=True):
                if source not in row.sources:
                    bench.engine(source, command)

    run(bench, ask)
    for source in m.ENGINES:
        wrong = [(command, b"") for row, command in zip(m.REQUESTS, commands, strict=True) if source not in row.sources]
        assert bench.answers[source] == wrong
    assert len(bench.transfers) == 4


@pytest.mark.parametrize("cqn", [0, CQN + 32, CQN | 1 << 31, 9])
def test_a_cq_that_is_not_there_reads_as_zero(cqn: int) -> None:
    bench = loaded()
    run(bench, lambda: write_qp(bench, cqn_snd=cqn), lambda: read(bench, m.RRC))
    got = fields(bench, m.RRC)
    assert (got["scq_lkey"], got["scq_length"], got["eqn"], got["scqn"]) == (0, 0, 0, cqn & 0xFFFFFF)


@pytest.mark.parametrize("eqn", [2, EQN + 4, EQN | 1 << 31])
def test_an_eq_that_is_not_there_reads_as_zero(eqn: int) -> None:
    bench = loaded()
    run(bench, lambda: write_cq(bench, CQN, comp_eqn=eqn), lambda: read(bench, m.RTC))
    got = fields(bench, m.RTC)
    assert (got["eq_lkey"], got["eqn"]) == (0, eqn & 0xFF)


def test_a_cq_is_modified_and_invalidated() -> None:
    """WR_CQ_INVALID makes the context 0 whatever its one beat, which carries nothing, holds."""
    bench = loaded()
    run(bench, lambda: read(bench, m.RTC), lambda: write_cq(bench, CQN, m.WR_CQ_MODIFY, pd=5),
        lambda: read(bench, m.RTC), lambda: invalidate(bench, m.WR_CQ_CXT, m.WR_CQ_INVALID, CQN),
        lambda: read(bench, m.RTC))  # fmt: skip
    assert [fields(bench, m.RTC, place)["scq_pd"] for place in range(3)] == [CQ_VALUES["pd"], 5, 0]
    assert bench.transfers[-1] == Transfer(CQ_AT, bytes(64))


def test_an_eq_is_invalidated() -> None:
    bench = loaded()
    run(bench, lambda: invalidate(bench, m.WR_EQ_CXT, m.WR_EQ_INVALID, EQN), lambda: read(bench, m.RTC),
        lambda: function(bench, EQN, 1))  # fmt: skip
    assert fields(bench, m.RTC)["eq_length"] == 0
    assert bench.transfers[-1] == Transfer(EQ_AT, bytes(64))
    assert bench.statuses[-1] == REFUSED


# ---------------------------------------------------------------- 5.5 readctx, 5.6 writectx


def test_a_read_that_fails_has_a_status_and_no_data() -> None:
    bench = opened()

    def ask() -> None:
        bench.fail.share = 1.0
        bench.ceu(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN))

    run(bench, ask)
    assert bench.statuses[-1] == DMA_ERROR
    assert bench.read_back == []


@pytest.mark.parametrize("size", m.QPC_PAYLOADS)
def test_a_context_is_written_with_its_length(size: int) -> None:
    bench = opened()
    write_qp(bench, size=size)
    write_cq(bench, CQN)
    write_eq(bench)
    run(bench)
    assert [(each.addr, len(each.data)) for each in bench.transfers] == [(QP_AT, size), (CQ_AT, 64), (EQ_AT, 64)]


def test_an_error_of_either_write_of_a_write_back_is_counted_once() -> None:
    bench = loaded()
    outcomes = iter([True, False, False, True, True, True, False, False])
    bench.latency = (30, 30)

    def ask() -> None:
        bench.fail = lambda: not next(outcomes)  # type: ignore[assignment]
        for psn in range(4):
            write(bench, m.RTC, psn, 3)

    run(bench, ask)
    assert bench.counted["write_failed"] == 3
    assert bench.golden.counters["ctx_dma_errors"] == 3


def test_memory_that_does_not_answer_writes_holds_no_reads_up() -> None:
    bench = loaded()

    def ask() -> None:
        bench.latency = (1000, 1000)
        for psn in range(60):
            write(bench, m.EE, psn, 3)
            read(bench, m.FE)

    marks: list[int] = []

    def look() -> None:
        if bench.serving.count(6) == 60 and not marks:
            marks.append(bench.cycle_number)

    watch(bench, look)
    run(bench, ask)
    assert marks[0] < 1000 + 200


# ---------------------------------------------------------------- the whole


@pytest.mark.parametrize("seed", range(4))
def test_random_streams_on_all_channels(seed: int) -> None:
    stalls, latency, errors = ((0.0, (1, 1), 0.0), (0.3, (1, 30), 0.1), (0.1, (50, 200), 0.0), (0.0, (1, 8), 0.4))[seed]
    streams(PARAMS, 500, seed=seed, stalls=stalls, latency=latency, errors=errors)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10, 22))
def test_long_random_streams_on_all_channels(seed: int) -> None:
    params = CtxMgtParams(log_qps=13, log_eqs=5) if seed % 3 == 0 else PARAMS
    streams(params, 6000, seed=seed, stalls=seed % 4 * 0.12, latency=(1, (1, 20, 150)[seed % 3]), errors=0.05)


def streams(params: CtxMgtParams, requests: int, **options: Any) -> None:
    bench = Lockstep(params, **options)
    feeder = Streams(bench, params)

    def feed() -> None:
        if feeder.requests < requests or bench.counted["parsed"] < 120:
            feeder.feed()

    watch(bench, feed)
    run(bench, limit=400 * requests + 50_000)
    assert feeder.requests >= requests
    for name in ("took_key", "read", "refused", "unknown_qp", "bad_payload", "bad_request"):
        assert bench.counted[name], name


def test_the_driver_runs_requests_in_this_process() -> None:
    built = library(PARAMS)
    if built is None:
        pytest.skip("no Yosys, Verilator or C++ compiler")
    memory = Memory()
    failing: list[int] = []

    def store(addr: int, data: bytes) -> bool:
        memory.write(addr, data)
        return not failing

    driver = InProcess(built, lambda addr, count: None if failing else memory.read(addr, count), store, latency=9)
    try:
        assert driver.ceu(m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN), m.ICMMAP.pack(ICMMAP))[0] == OK
        assert driver.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, 4), chunks(*PAGES))[0] == OK
        assert driver.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, QPN), qpc())[0] == OK
        ask = m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN)
        assert driver.ceu(ask) == (OK, ask, qpc())
        driver.request(m.RTC, m.engine_request(m.WR_QP_CXT, m.WR_QP_NPST, QPN), m.engine_payload(0xABC, 4))
        driver.request(m.RTC, m.engine_request(m.RD_QP_CXT, m.RD_QP_NPST, QPN))
        driver.settle()
        answer = m.RTC_RESPONSE.unpack(driver.contexts[m.RTC].popleft())
        assert (answer["next_psn"], answer["state"]) == (0xABC, 4)
        assert memory.read(QP_AT + 0x6D, 3) == b"\x00\x0a\xbc"
        failing.append(1)
        assert driver.ceu(ask) == (DMA_ERROR, b"", b"")
        driver.stalled = True
        driver.request(m.EE, m.engine_request(m.WR_QP_CXT, m.WR_QP_EPST, QPN), m.engine_payload(1, 4))
        driver.settle()
        assert driver.counted["wrote"] == 2
        driver.stalled = False
        driver.settle()
        assert (driver.counted["wrote"], driver.counted["write_failed"]) == (3, 1)
    finally:
        driver.close()


@pytest.mark.full
def test_requests_take_the_cycles_that_the_documentation_has(tmp_path: Path) -> None:
    if library(PARAMS) is None:
        pytest.skip("no Yosys, Verilator or C++ compiler")
    documented = json.loads((Path(__file__).parents[2] / "docs" / "gateware-figures.json").read_text())["ctxmgt"]
    assert measure(tmp_path) == documented


@pytest.mark.parametrize("tool", ["icarus", pytest.param("verilator", marks=pytest.mark.full)])
def test_exported_verilog_in_simulators_of_others(tool: str, tmp_path: Path) -> None:
    """Icarus knows four states of a wire: nothing depends on one that nobody has driven."""
    reason = reason_to_skip("cocotb")
    if reason or (tool == "icarus" and shutil.which("iverilog") is None):
        pytest.skip(reason or "no iverilog on PATH: apt install iverilog")
    environment = verilator_environment()
    if find_tool("yosys") is None or (tool == "verilator" and isinstance(environment, str)):
        pytest.skip(f"no yosys, or no Verilator: {install_hint('gateware-test')}")
    if isinstance(environment, dict):
        os.environ.update(environment)
    from cocotb_tools.runner import get_runner

    runner = get_runner(tool)
    source, _ = write_ctxmgt(PARAMS, tmp_path)
    runner.build(
        sources=[source],
        hdl_toplevel=CTXMGT_NAME,
        build_dir=tmp_path / "build",
        build_args=["-Wno-fatal", "-Wno-lint", "--output-split", "0"] if tool == "verilator" else [],
        timescale=("1ns", "1ps"),
        log_file=tmp_path / "build.log",
    )
    options = {"params": dataclasses.asdict(PARAMS), "seed": 5, "requests": 250, "limit": 60_000}
    run_testcase(runner, tmp_path, CTXMGT_NAME, "ctxmgt_bench", "random_streams", options, (BENCHES, BENCHES.parent))


def test_amaranths_simulator_says_the_same() -> None:
    bench = opened()
    write_qp(bench)
    for source in m.ENGINES:
        read(bench, source)
    run(bench, amaranth=True)
    assert bench.statuses == [OK] * 3


def test_verilator_is_what_runs_here() -> None:
    if library(PARAMS) is None:
        pytest.skip("Amaranth's simulator ran all this: no Yosys, Verilator or C++ compiler")


# ---------------------------------------------------------------- interfaces


def test_widths_are_those_of_the_document() -> None:
    signature = Signature(interface())
    ports = {"_".join(map(str, path)): len(value) for path, _, value in signature.flatten(signature.create())}
    for stream in ("ceu_req", "ceu_rsp", "dma_cm_rd_req", "dma_cm_rd_rsp", "dma_cm_wr_req"):
        assert (ports[f"{stream}_tuser"], ports[f"{stream}_tdata"]) == (128, 256)
    cxt = {m.DB: 256, m.WP: 128, m.RTC: 256, m.RRC: 256, m.EE: 320, m.FE: 256}
    for source, width in cxt.items():
        name = m.SOURCE_NAMES[source]
        assert (ports[f"{name}_cmd_tdata"], ports[f"{name}_resp_tdata"], ports[f"{name}_cxt_tdata"]) == (
            128,
            128,
            width,
        )
        assert ports.get(f"{name}_cxt_in_tdata") == (128 if source in (m.RTC, m.RRC, m.EE) else None)
    assert ports["selected_channel"] == 8


@pytest.mark.parametrize("values", [{"log_qps": 15}, {"log_qps": 0}, {"log_eqs": 11}, {"fifo_depth": 2}])
def test_sizes_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(CtxMgtParamsError, match=next(iter(values))):
        CtxMgtParams(**values)
