"""Of which queue pairs host memory is behind: found in turn, at a cost that those that did not move do not have."""

from __future__ import annotations

import pytest

from rnic.context import messages as m
from rnic.context.cache import Cache, CachedQp
from rnic.context.qp_context import QpContext
from rnic.context.write_back import WriteBack
from rnic.spec.states import RTS, SQD
from rnic.state.arena import Arena
from rnic.state.structure import Ground

QPNS = range(16, 28)


class Bench:
    """A cache of queue pairs, all level with memory, and the writes that were made since."""

    def __init__(self) -> None:
        self.qps: Cache[CachedQp] = Cache(Ground(Arena(1 << 14)), 5, 256, 0, QpContext, CachedQp)
        self.writes: list[tuple[int, int, int, int, int]] = []
        self.behind = WriteBack(self.qps, lambda *write: self.writes.append(write))
        for qpn in QPNS:
            ctx = QpContext()
            ctx.local_qpn, ctx.state = qpn, RTS
            self.qps.fill(qpn, ctx.store())
            self.behind.level(qpn)
        self.round()

    def round(self, count: int = 99, most: int = 99) -> tuple[int, list[int]]:
        """Look, and write what was found."""
        looked, moved = self.behind.next(count, most)
        for qpn in moved:
            self.behind.write(qpn)
        return looked, moved


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_did_not_move_is_looked_at_and_no_more(bench: Bench) -> None:
    assert bench.round() == (len(QPNS), [])
    assert bench.writes == []


@pytest.mark.parametrize("name", ["next_send_psn", "last_acked_psn", "expected_psn"])
def test_a_psn_that_moved_is_written_once(bench: Bench, name: str) -> None:
    setattr(bench.qps.view(20), name, 77)
    assert bench.round() == (len(QPNS), [20])
    opcode = {"next_send_psn": m.WR_QP_NPST, "last_acked_psn": m.WR_QP_UAPST, "expected_psn": m.WR_QP_EPST}[name]
    assert [(write[1], write[2], write[3]) for write in bench.writes] == [(opcode, 20, 77)]
    assert bench.round() == (len(QPNS), [])


def test_a_state_that_changed_is_written(bench: Bench) -> None:
    bench.qps.view(17).state = SQD
    assert bench.round()[1] == [17]
    assert bench.writes == [(m.RTC, m.WR_QP_NPST, 17, 0, SQD)]


def test_a_word_beside_them_is_looked_at_and_not_written(bench: Bench) -> None:
    bench.qps.view(18).ssn = 5
    assert bench.round()[1] == [18]
    assert bench.writes == []
    assert bench.round()[1] == []


def test_all_have_their_turn_however_few_are_written_at_a_time(bench: Bench) -> None:
    for qpn in QPNS:
        bench.qps.view(qpn).expected_psn = 3
    order: list[int] = []
    for _ in range(4):
        looked, moved = bench.round(most=3)
        assert len(moved) == 3
        assert looked == 3 or len(order) == 9
        order += moved
    assert sorted(order) == list(QPNS)


def test_a_write_that_was_lost_is_made_again(bench: Bench) -> None:
    bench.qps.view(19).expected_psn = 9
    assert bench.round()[1] == [19]
    bench.behind.lost(19)
    assert bench.round()[1] == [19]
    bench.writes.clear()
    bench.behind.forget_writes()
    assert bench.round()[1] == list(QPNS)
    assert [write[2] for write in bench.writes] == [qpn for qpn in QPNS for _ in range(3)], "each of the three, of each"


def test_one_that_left_in_the_middle_of_a_round_is_passed_over(bench: Bench) -> None:
    for qpn in QPNS:
        bench.qps.view(qpn).expected_psn = 3
    first = bench.round(most=1)[1][0]
    gone = next(qpn for qpn in QPNS if qpn != first)
    bench.qps.forget(gone)
    bench.behind.forget(gone)
    bench.round()
    assert {write[2] for write in bench.writes} == set(QPNS) - {gone}
