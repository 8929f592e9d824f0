"""The outstanding limit of 004 7.4: a CNP halves it, and after CNP_TIMER_THRD without another it is whole again."""

from __future__ import annotations

from typing import Protocol

from rnic.cc.settings import CongestionSettings
from rnic.spec.limits import NEVER


class Flight(Protocol):
    """The sending half of a queue pair, as far as congestion control steers it.

    ``most`` is the outstanding limit without congestion, in packets; ``relief_ns`` when a lowered one ends, or
    ``NEVER``.
    """

    most: int
    relief_ns: int

    def limit(self, packets: int) -> None:
        """From now on no more than ``packets`` in flight; what is in flight beyond that stays."""


def notified(flight: Flight, settings: CongestionSettings, now_ns: int) -> bool:
    """A CNP came: halve the limit, or hold it down for longer; whether it was whole before."""
    if settings.mode != "limit":
        return False
    whole = flight.relief_ns == NEVER
    flight.relief_ns = now_ns + settings.timer_ns
    if whole:
        flight.limit(max(1, flight.most // 2))
    return whole


def relieve(flight: Flight) -> None:
    """The timer ended: the limit is whole again."""
    flight.relief_ns = NEVER
    flight.limit(flight.most)
