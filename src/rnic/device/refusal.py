"""Refusal of a command."""

from __future__ import annotations

from rnic.spec.reasons import Reason


class Refused(Exception):  # noqa: N818 - it never leaves the command unit
    """The command ends with ``status`` and has changed nothing.

    ``reason`` and ``text`` say why, if that adds to the status (:mod:`rnic.spec.reasons`).
    """

    def __init__(self, status: int, reason: Reason | None = None, **values: object) -> None:
        super().__init__(status)
        self.status = status
        self.kind = 0 if reason is None else reason.number
        self.text = "" if reason is None else reason(**values)
