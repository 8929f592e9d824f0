"""How a command is refused."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - it never leaves the command unit
    """The command ends with ``status`` and has changed nothing."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
