"""Operations and scatter entries by Coyote's names."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

STRM_CARD, STRM_HOST = range(2)


class CoyoteOper(IntEnum):
    """Operations, for :meth:`~rnic.coyote.thread.CThread.invoke` and ``checkCompleted``."""

    NOOP = 0
    LOCAL_READ = 1
    LOCAL_WRITE = 2
    LOCAL_TRANSFER = 3
    LOCAL_OFFLOAD = 4
    LOCAL_SYNC = 5
    REMOTE_RDMA_READ = 6
    REMOTE_RDMA_WRITE = 7
    REMOTE_RDMA_SEND = 8
    REMOTE_TCP_SEND = 9


class rdmaSg(NamedTuple):  # noqa: N801 - Coyote's own name
    """One RDMA transfer between the buffers that both hosts have announced; offsets and length are in bytes.

    ``local_stream`` 1 is host memory; 0 takes the data from, or gives it to, stream ``local_dest`` of the thread, 0 to
    15. ``remote_dest`` has no effect: no packet carries it.
    """

    len: int = 0
    local_offs: int = 0
    remote_offs: int = 0
    local_stream: int = STRM_HOST
    local_dest: int = 0
    remote_dest: int = 0
