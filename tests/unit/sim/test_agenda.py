"""Virtual time as a heap of numbers."""

from __future__ import annotations

from functools import partial

from rnic.sim.agenda import Agenda


def test_time_then_order() -> None:
    agenda = Agenda()
    done: list[tuple[int, str]] = []

    def told(name: str) -> None:
        done.append((agenda(), name))

    one, other = (agenda.actor(partial(told, name)) for name in ("one", "other"))
    agenda.at(20, one)
    agenda.at(10, other)
    agenda.at(10, one)
    agenda.at(1 << 50, other)
    assert agenda.next_ns() == 10
    while agenda.step():
        pass
    assert done == [(10, "other"), (10, "one"), (20, "one"), (1 << 50, "other")]
    assert agenda.events == 4
    assert agenda.next_ns() is None
