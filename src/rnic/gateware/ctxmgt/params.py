"""Parameters of a CtxMgt."""

from __future__ import annotations

from dataclasses import dataclass

from rnic.spec.errors import RnicError
from rnic.spec.limits import MAX_EQS

LOG_MAX_QPS = 14
LOG_MAX_EQS = MAX_EQS.bit_length() - 1


class CtxMgtParamsError(RnicError):
    """A value that cannot be built."""


@dataclass(frozen=True, slots=True)
class CtxMgtParams:
    """Sizes of one CtxMgt.

    ``log_qps``: log2 of the number of QPs, and of CQs; the document has 13 and 14. ``log_eqs``: log2 of the number of
    EQs; the document has 5. ``fifo_depth``: queued commands, and answers, of each channel. ``outstanding``: DMA writes
    in flight. ``infiniband``: answer frame encapsulation in InfiniBand mode, with LIDs.

    Raises:
        CtxMgtParamsError: a value is out of range.
    """

    log_qps: int = 13
    log_eqs: int = 5
    fifo_depth: int = 16
    outstanding: int = 16
    infiniband: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("log_qps", 1, LOG_MAX_QPS),
            ("log_eqs", 1, LOG_MAX_EQS),
            ("fifo_depth", 4, 512),
            ("outstanding", 2, 256),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise CtxMgtParamsError(f"{name}={value}: it can be {low} to {high}")
