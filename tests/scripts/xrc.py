"""The XRC TGT queue pair of a script, and its shared receive queues."""

from __future__ import annotations

from collections import deque
from typing import Any

from rnic.transport.qp import QueuePair
from rnic.transport.wqe import ReceiveWqe
from rnic.wire.packet import Packet


class SharedQueue:
    """A shared receive queue of the domain: its entries, and the protection domain of its memory."""

    def __init__(self, pd: int) -> None:
        self.pd = pd
        self.entries: deque[ReceiveWqe] = deque()

    def post(self, index: int, va: int, length: int, key: int) -> None:
        """Post one entry."""
        self.entries.append(ReceiveWqe(index, [(va, length, key)]))

    def take(self) -> ReceiveWqe | None:
        """Return the next entry, or ``None``."""
        return self.entries.popleft() if self.entries else None

    def available(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def kept_back(self, most: int) -> int:
        """Return 0: none is kept back."""
        return 0

    def readable(self) -> bool:
        """Return true: entries can be read."""
        return True


class XrcTarget(QueuePair):
    """A queue pair that receives into the queues of its domain, as the device's does (``device/queue_pair.py``)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.queues: dict[int, SharedQueue] = {}
        self.queue: SharedQueue | None = None

    def use_srq(self, packet: Packet) -> bool:
        """Take the queue that a request names."""
        queue = self.queues.get(packet.srqn) if packet.row.xrceth else None
        if queue is not None and packet.row.start:
            self.queue = self.rq = self.responder.rq = queue
        return queue is not None and queue is self.queue

    @property
    def receive_pd(self) -> int:
        """Protection domain of the open message's queue."""
        return 0 if self.queue is None else self.queue.pd

    @property
    def request_pd(self) -> int:
        """The same: memory is that of the queue's domain."""
        return self.receive_pd

    def pd_of(self, packet: Packet) -> int:
        """Protection domain of the queue that a request names."""
        queue = self.queues.get(packet.srqn)
        return 0 if queue is None else queue.pd

    def reply_pd(self, rkey: int) -> int:
        """Protection domain of the memory that is being read."""
        entry = self.host.memory.lookup(rkey)
        return 0 if entry is None else entry.pd
