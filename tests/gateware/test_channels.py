"""The device on CtxMgt's gateware: tests that were written for the software's, run as they are in channels mode.

The Verilog runs in this process, and what its channels answer is what the data path runs on. Every status, answer and
DMA transfer is held equal to the software's meanwhile (:class:`~rnic.gateware.ctxmgt.contexts.DisagreementError`).
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rnic.context import messages as m
from rnic.context.ctxmgt import Status
from rnic.context.qpc import QPC
from rnic.device.channels import ChannelNic
from rnic.device.config import NicConfig
from rnic.gateware.ctxmgt.contexts import DisagreementError, GatewareContexts, component
from rnic.gateware.tools import find_tool, verilator_environment
from rnic.gateware.verilated import Library, build
from rnic.testing import QpPair
from rnic.trace.counters import Counters
from tests.unit.device import test_eviction as evictions
from tests.unit.device import test_key_data_rows as rows
from tests.unit.device.conftest import Pair
from tests.verbs import test_states as states
from tests.verbs import test_traffic as traffic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("channels")]
LOG_QPS = 5
Scripted = Callable[..., None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if find_tool("yosys") is None or isinstance(verilator_environment(), str):
        pytest.skip("no Yosys, Verilator or C++ compiler")
    faulthandler.cancel_dump_traceback_later()  # a compilation may take longer than a test
    place = os.environ.get("RNIC_VERILATOR_DIR") or tmp_path_factory.mktemp("channels")
    return build(component(LOG_QPS), "ctxmgt", Path(place))


@pytest.fixture
def made(library: Library) -> Iterator[list[ChannelNic]]:
    """The NICs of a test."""
    nics: list[ChannelNic] = []
    yield nics
    for nic in nics:
        assert isinstance(nic.contexts, GatewareContexts)
        nic.contexts.close()


@pytest.fixture
def make_nic(library: Library, made: list[ChannelNic]) -> Callable[..., ChannelNic]:
    def make(config: NicConfig, **more: Any) -> ChannelNic:
        made.append(ChannelNic(config, contexts=partial(GatewareContexts, library), **more))
        return made[-1]

    return make


@pytest.fixture
def new_pair(make_nic: Callable[..., ChannelNic]) -> Callable[..., QpPair]:
    return partial(QpPair, settings={"log_max_qps": LOG_QPS}, make_nic=make_nic)


@pytest.fixture
def device_pair(make_nic: Callable[..., ChannelNic]) -> Callable[..., Pair]:
    return partial(type("ChannelPair", (Pair,), {"make_nic": staticmethod(make_nic)}), log_max_qps=LOG_QPS)


def used(made: list[ChannelNic]) -> None:
    assert made
    assert any(nic.fetched for nic in made)
    assert not any(nic.counters["own_errors"] for nic in made)


@pytest.mark.parametrize(("service", "size"), [("RC", 1), ("RC", 5000), ("UC", 5000), ("UD", 1024)])
def test_sends(new_pair: Any, made: list[ChannelNic], service: str, size: int) -> None:
    traffic.test_send(new_pair, service, size, False)
    used(made)


@pytest.mark.parametrize("size", [1, 9000])
def test_writes_and_reads(new_pair: Any, made: list[ChannelNic], size: int) -> None:
    traffic.test_write(new_pair, "RC", size)
    traffic.test_read(new_pair, size)
    used(made)


SCRIPTS: tuple[Scripted, ...] = (
    traffic.test_atomics,
    partial(traffic.test_scatter_and_gather, count=4),
    traffic.test_unsignaled_work_completes_silently,
    traffic.test_a_fenced_send_waits_for_the_read_before_it,
    traffic.test_the_psn_wraps,
    traffic.test_a_send_longer_than_the_receive_fails_on_both_sides,
    traffic.test_a_receive_that_comes_late_is_waited_for,
    traffic.test_rnr_retries_end,
    traffic.test_wrong_keys_and_ranges,
    states.test_query_tells_what_was_set,
    states.test_a_queue_pair_can_be_reset_and_connected_again,
    states.test_sqd_holds_new_work_back,
    *(partial(states.test_a_send_error_leads_to_sqe_and_back, service=service) for service in ("UC", "UD")),
)


def name_of(script: Scripted) -> str:
    return str(getattr(script, "func", script).__name__).removeprefix("test_")


LONG = (traffic.test_a_receive_that_comes_late_is_waited_for,)
"""Five milliseconds of retries, a context for each: with --full. The short run has retries that end."""


@pytest.mark.parametrize(
    "script", [pytest.param(each, id=name_of(each), marks=pytest.mark.full if each in LONG else ()) for each in SCRIPTS]
)
def test_scripts_of_traffic_and_states(new_pair: Any, made: list[ChannelNic], script: Scripted) -> None:
    script(new_pair)
    used(made)


@pytest.mark.parametrize(
    "way", ["message", *(pytest.param(way, marks=pytest.mark.full) for way in ("store", "memory"))]
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if at % 5 == 0 else pytest.mark.full) for at, name in enumerate(rows.ROWS)]
)
def test_a_row_of_the_key_data_acts(device_pair: Any, made: list[ChannelNic], name: str, way: str) -> None:
    rows.test_a_row_acts_on_live_traffic(device_pair, name, way)
    if name != "sip" or way == "store":  # another host's address is refused otherwise, so nothing is sent
        used(made)


def test_writes_of_the_channels_act(device_pair: Any, made: list[ChannelNic]) -> None:
    rows.test_writes_of_the_channels_act(device_pair)
    used(made)


EVICTIONS: tuple[Scripted, ...] = (
    *(partial(evictions.test_a_queue_pair_stalls_until_it_is_loaded, how=how) for how in ("evict", "del")),
    evictions.test_what_was_under_way_goes_on_after_a_load,
    evictions.test_a_completion_queue_holds_its_queue_pairs,
    evictions.test_memory_that_takes_nothing_keeps_the_context_in_the_cache,
    evictions.test_commands_bring_back_what_they_work_on,
    evictions.test_an_evicted_queue_pair_can_be_destroyed_without_its_memory,
    evictions.test_a_failing_queue_pair_says_so_in_host_memory_at_once,
)


@pytest.mark.parametrize("script", EVICTIONS, ids=name_of)
def test_scripts_of_eviction(device_pair: Any, made: list[ChannelNic], script: Scripted) -> None:
    script(evictions.Bench(device_pair()))
    used(made)


# ---------------------------------------------------------------- that it is the gateware which answers


def connected(device_pair: Any) -> rows.Bench:
    return rows.Bench(device_pair())


def test_the_data_path_runs_on_what_the_channels_answer(device_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another answer, as if both had made it, and the packet goes where that says."""
    bench = connected(device_pair)
    plain = GatewareContexts.response

    def response(self: GatewareContexts, source: int) -> tuple[bytes, bytes] | None:
        answer = plain(self, source)
        if answer is None or source != m.DB:
            return answer
        fields = m.DB_RESPONSE.unpack(answer[1])
        return answer[0], m.DB_RESPONSE.pack(fields | {"dst_qpn": 0x777, "dst_qpn_hi": 5})

    monkeypatch.setattr(GatewareContexts, "response", response)
    assert bench.packet().dqpn == 0x50777


@pytest.mark.parametrize("source", m.ENGINES)
def test_another_answer_than_the_softwares_is_found(device_pair: Any, source: int) -> None:
    bench = connected(device_pair)
    bench.packets()
    contexts = bench.nic.contexts
    row = m.READS[source]
    contexts.request(source, m.engine_request(row.type, row.opcode, bench.a.number))
    assert isinstance(contexts, GatewareContexts)
    wrong = bytearray(contexts.gateware.contexts[source].pop())
    wrong[0] ^= 1
    contexts.gateware.contexts[source].append(bytes(wrong))
    with pytest.raises(DisagreementError, match=m.SOURCE_NAMES[source]):
        contexts.response(source)


def test_another_write_than_the_softwares_is_found(device_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = connected(device_pair)
    contexts = bench.nic.contexts
    assert isinstance(contexts, GatewareContexts)
    plain = contexts.gateware._write
    monkeypatch.setattr(contexts.gateware, "_write", lambda addr, data: plain(addr + 4, data))
    with pytest.raises(DisagreementError, match="software does at"):
        contexts.request(m.EE, m.engine_request(m.WR_QP_CXT, m.WR_QP_EPST, bench.a.number), m.engine_payload(5, 3))


class Lender(dict[int, int]):
    """A program's memory, at addresses of its own."""

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        buf[:] = bytes(self.get(va + at, 0) for at in range(len(buf)))
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        self.update(enumerate(data, va))
        return True

    def views(self, va: int, length: int) -> memoryview | None:
        return None


def test_lenders_may_have_pages_at_the_same_address(library: Library) -> None:
    """Each program's memory has addresses of its own; on the gateware's bus every page has another."""
    contexts = GatewareContexts(library, LOG_QPS, Counters())
    try:
        icmmap = m.ICMMAP.pack({"qpc_base": 0x1000 >> 8, "cqc_base": 0x8000 >> 8, "eqc_base": 0x9000 >> 8})
        one, two = Lender(), Lender()
        images = {qpn: QPC.pack({"remote_qpn": qpn, "state": 3}) for qpn in (32, 16)}
        assert contexts.init_hca(icmmap) == Status.OK
        assert contexts.map_icm(one, [(0x1000, 0x5000, 1)]) == Status.OK
        assert contexts.map_icm(two, [(0x2000, 0x5000, 1), (0x2000, 0x6000, 1)]) == Status.REFUSED
        assert contexts.map_icm(two, [(0x2000, 0x5000, 1)]) == Status.OK
        for qpn, image in images.items():
            assert contexts.write_qp(qpn, image) == Status.OK
        assert [bytes(space[0x5000 + at] for at in range(256)) for space in (one, two)] == list(images.values())
        assert contexts.read_qp(16) == (Status.OK, images[16])
        assert contexts.unmap_icm(0x2000, 1) == Status.OK
        assert contexts.read_qp(16)[0] == Status.REFUSED
        assert contexts.close_hca() == Status.OK
        assert not contexts._bus._pages
    finally:
        contexts.close()


def test_what_has_no_form_on_the_wires_is_refused(library: Library) -> None:
    contexts = GatewareContexts(library, LOG_QPS, Counters())
    try:
        for header, payload in (
            (m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, 16), bytes(250)),
            (m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN), b""),
            (m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, 1), bytes(32)),  # pages of nobody
            (m.ceu_request(15, 15), bytes(7)),
            (m.ceu_request(15, 15), bytes(32)),
        ):
            assert contexts.ceu(header, payload)[0] == Status.REFUSED
    finally:
        contexts.close()


def test_another_first_queue_pair_is_refused(library: Library) -> None:
    with pytest.raises(ValueError, match="first_qpn=64"):
        GatewareContexts(library, LOG_QPS, Counters(), first_qpn=64)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in m.REQUESTS if m.CEU in row.sources])
def test_both_refuse_a_payload_of_another_length(library: Library, row: m.Request) -> None:
    contexts = GatewareContexts(library, LOG_QPS, Counters())
    try:
        space = Lender()
        icmmap = m.ICMMAP.pack({"qpc_base": 0x1000 >> 8, "cqc_base": 0x8000 >> 8, "eqc_base": 0x9000 >> 8})
        assert contexts.init_hca(icmmap) == Status.OK
        assert contexts.map_icm(space, [(0x1000, 0x5000, 1), (0x8000, 0x6000, 1), (0x9000, 0x7000, 1)]) == Status.OK
        for size in {0, 32, 64, 96, 192, 224, 256, 288, 1056} - set(row.payloads):
            header = m.ceu_request(row.type, row.opcode, 16 if row.type in (m.WR_QP_CXT, m.RD_QP_CXT) else 1)
            assert contexts.carry_out(header, bytes(size), space)[0] == Status.REFUSED, size
    finally:
        contexts.close()
