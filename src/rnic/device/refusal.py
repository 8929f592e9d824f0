"""Refusal of a command."""

from __future__ import annotations

from rnic.spec.reasons import Reason


class Refused(Exception):  # noqa: N818 - it never leaves the command unit
    """Ends a command with ``status``, with nothing changed.

    ``reason`` and ``text`` give the reason, if it is more specific than the status (:mod:`rnic.spec.reasons`).
    """

    def __init__(self, status: int, reason: Reason | None = None, **values: object) -> None:
        super().__init__(status)
        self.status = status
        self.kind = 0 if reason is None else reason.number
        self.text = "" if reason is None else reason(**values)
