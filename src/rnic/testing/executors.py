"""Run engine and reference in tests that compare them: the same steps, and the same bytes after each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from rnic.cc.settings import CongestionSettings
from rnic.engine import use
from rnic.transport.qp import QueuePair


class Reference:
    """The reference with the engine's interface: punts every packet, and lets the reference send every request."""

    punted = False

    def __init__(self, qp: QueuePair) -> None:
        self.qp = qp

    def add_destination(self, message: Any, flow: Any, segments: int) -> None:
        """Do nothing: it sends no datagram."""

    def receive(self, burst: Any, start: int, now_ns: int) -> int:
        """Accept no packet."""
        return 0

    def send(self, now_ns: int, budget: int, out: list[Any]) -> int:
        """Send requests as the reference does."""
        return self.qp.produce_requests(now_ns, budget, out)

    def timeout(self, now_ns: int) -> bool:
        """Handle no deadline."""
        return False

    def reply(self, budget: int, out: list[Any]) -> int:
        """Send no response."""
        return 0


class ReferenceDevice:
    """A replacement for the engine's device: every queue pair is run by the reference."""

    def __init__(self, shared: Any, nic: Any) -> None:
        self.timers = nic.timers

    def add(self, qp: QueuePair, block: memoryview) -> Reference:
        """Add a queue pair."""
        return Reference(qp)

    def remove(self, number: int) -> None:
        """Do nothing: no state is kept for it."""

    def drop(self, record: int) -> None:
        """Do nothing: no state is kept for it."""

    def invalidate(self) -> None:
        """Do nothing: nothing is cached."""

    def set_congestion(self, settings: CongestionSettings) -> None:
        """Do nothing: the reference has its own."""

    def handle_deadlines(self, now_ns: int, most: int) -> tuple[int, int]:
        """Leave each deadline that is due to the reference."""
        return self.timers.due(now_ns), most - 1


@contextlib.contextmanager
def executed_by(*, engine: bool) -> Iterator[None]:
    """Make NICs created in the block use the engine, or only the reference; the engine must be compiled."""
    assert use.COMPILED is not None
    stub = type(
        "Stub", (), {"Shared": use.COMPILED.Shared, "Device": ReferenceDevice, "DeviceLock": use.COMPILED.DeviceLock}
    )
    with mock.patch.object(use, "ENGINE", use.COMPILED if engine else stub):
        yield


@contextlib.contextmanager
def steps_alone() -> Iterator[None]:
    """Disable the reference's fast path: packets that the engine punts go through the steps one by one."""
    with mock.patch.object(QueuePair, "receive_burst", return_value=0):
        yield


__all__ = ["Reference", "ReferenceDevice", "executed_by", "steps_alone"]
