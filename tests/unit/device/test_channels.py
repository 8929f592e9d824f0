"""The rows of the key-data table and evictions, with devices that run on what CtxMgt's channels answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from rnic.context import messages as m
from rnic.context.ctxmdata import CQ, EQ, QP
from rnic.context.ctxmgt import ContextManager
from rnic.device.channels import ChannelNic
from tests.unit.device import test_eviction as evictions
from tests.unit.device import test_key_data_rows as rows
from tests.unit.device.conftest import Pair

new_channels_pair = partial(Pair, channels=True)
EVICTIONS: tuple[Callable[[evictions.Bench], None], ...] = (
    *(partial(evictions.test_a_queue_pair_stalls_until_it_is_loaded, how=how) for how in ("evict", "del")),
    evictions.test_what_was_under_way_goes_on_after_a_load,
    *(partial(evictions.test_a_load_brings_equal_bytes_back, kind=kind) for kind in (QP, CQ, EQ)),
    evictions.test_a_completion_queue_holds_its_queue_pairs,
    evictions.test_events_of_an_event_queue_wait,
    evictions.test_a_completion_event_is_raised_when_its_queue_is_back,
    evictions.test_memory_that_takes_nothing_keeps_the_context_in_the_cache,
    evictions.test_commands_bring_back_what_they_work_on,
    evictions.test_an_evicted_queue_pair_can_be_destroyed_without_its_memory,
    evictions.test_a_failing_queue_pair_says_so_in_host_memory_at_once,
)


def name_of(script: Callable[[evictions.Bench], None]) -> str:
    return str(getattr(script, "func", script).__name__).removeprefix("test_")


@pytest.mark.parametrize("way", ["store", "message", "memory"])
@pytest.mark.parametrize("name", rows.ROWS)
def test_a_row_acts(name: str, way: str) -> None:
    rows.test_a_row_acts_on_live_traffic(new_channels_pair, name, way)


def test_writes_of_the_channels_act() -> None:
    rows.test_writes_of_the_channels_act(new_channels_pair)


@pytest.mark.parametrize("script", EVICTIONS, ids=name_of)
def test_evictions(script: Callable[[evictions.Bench], None]) -> None:
    script(evictions.Bench(new_channels_pair()))


@pytest.mark.parametrize("source", m.ENGINES)
def test_the_data_path_runs_on_what_each_channel_answers(source: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another answer than the cache's changes what a packet or the context then says."""
    bench = rows.Bench(new_channels_pair())
    assert isinstance(bench.nic, ChannelNic)
    plain = ContextManager.response
    name = {m.DB: "dst_qpn", m.WP: "sq_length", m.RTC: "scqn", m.RRC: "unacked_psn", m.EE: "expected_psn", m.FE: "sl"}
    layout = m.RESPONSES[source]
    field = {"scqn": "cqn_snd", "dst_qpn": "remote_qpn", "sq_length": "snd_wqe_length", "unacked_psn": "last_acked_psn"}

    def response(self: ContextManager, asked: int) -> tuple[bytes, bytes] | None:
        answer = plain(self, asked)
        if answer is None or asked != source:
            return answer
        values = layout.unpack(answer[1])
        return answer[0], layout.pack(values | {name[source]: values[name[source]] ^ 4})

    attribute = field.get(name[source], name[source])
    context = bench.contexts.key.qps.view(bench.a.number)
    before = getattr(context, attribute)
    monkeypatch.setattr(ContextManager, "response", response)
    bench.nic._fetch_one(bench.a.number)
    assert getattr(context, attribute) == before ^ 4
