from __future__ import annotations

from pathlib import Path

import pytest

from rnic.testing import reconnect


@pytest.mark.slow
def test_a_client_that_reconnects_loses_and_doubles_nothing() -> None:
    """A hundred flaps: ``python -m rnic.testing.reconnect``."""
    result = reconnect.run(8, seed=3)
    assert result.good
    assert (result.flaps, result.port_events) == (8, 16)
    assert result.connections > 2, "some flaps end connections, others are pauses"
    assert result.repeated > 0


@pytest.mark.slow
def test_nor_on_a_nic_process_that_runs(tmp_path: Path) -> None:
    """A hundred flaps: ``python -m rnic.testing.reconnect --live``."""
    tmp_path.chmod(0o700)
    result = reconnect.run_live(tmp_path, 12, seed=3)
    assert result.good
    assert (result.flaps, result.port_events) == (12, 24)
    assert result.connections > 1
    assert result.repeated > 0


@pytest.mark.slow
def test_what_a_client_does_that_forgets_to_ask_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sends everything again that was not acknowledged doubles what had arrived."""

    def forgetful(self: reconnect.Client, completed: int) -> None:
        for side in (self.pair.a, self.pair.b):
            self._take()
            reconnect.reset(side)
        self.next = self.under_way[completed]
        self.under_way.clear()
        self.pair.connect(**reconnect._QUICK)
        self._serve()

    monkeypatch.setattr(reconnect.Client, "_reconnect", forgetful)
    result = reconnect.run(12, seed=1)
    assert result.doubled > 0
    assert not result.good
