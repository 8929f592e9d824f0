"""What one device sent to another is taken before more is sent, however few bursts a link gives at once."""

from __future__ import annotations

from types import SimpleNamespace

from rnic.nic_process.process import NicProcess


def test_a_link_that_gives_one_burst_at_a_time_is_read_until_it_is_empty() -> None:
    waiting, taken = list(range(9)), []
    runtime = SimpleNamespace(
        by_socket=True,
        receive=lambda limit: [waiting.pop(0)] if waiting else [],
        clock=lambda: 7,
        nic=SimpleNamespace(receive=lambda burst, now: taken.append((burst, now))),
    )
    process = NicProcess.__new__(NicProcess)
    process.devices = SimpleNamespace(runtimes=lambda: [runtime])  # type: ignore[assignment]
    process._drain()
    assert taken == [(number, 7) for number in range(9)]
