"""The shell around the stack: host memory and streams, accessed with memory requests and 64-byte beats (003)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from rnic.coyote.mmu import Mmu
from rnic.link.beats import Beat, BeatRun, payload_of
from rnic.mem.space import AddressSpace
from rnic.rings import coyote as c
from rnic.spec.layout import Layout

ADDRESS_END = 1 << c.ADDRESS_BITS
STREAMS = 64
"""Most messages that wait in a :class:`HostShell` for a reader; the stack keeps a few more, then the peer waits."""


class Shell(Protocol):
    """The shell around the stack: memory and streams."""

    def m_rdma_rd_req(self, request: bytes, /) -> Sequence[Beat] | None:
        """Answer a read request with its data (``s_axis_rdma_rd``); ``None`` if the memory is not mapped."""

    def m_rdma_wr_req(self, request: bytes, data: Iterable[Beat], /) -> bool:
        """Take a write request and its data (``m_axis_rdma_wr``).

        Return false if the memory is not mapped or, for a message that is a stream, if there is no room yet.
        """


class HostShell:
    """A shell over host memory; messages that arrive as streams wait in :attr:`streams`.

    Args:
        memory: host memory by address, or an MMU in front of the page tables of processes.
    """

    def __init__(self, memory: AddressSpace | Mmu) -> None:
        self.memory = memory
        self.streams: deque[tuple[int, bytes]] = deque()
        """Short QP number and payload of each message that arrived as a stream, at most :data:`STREAMS`."""
        self.outgoing: dict[tuple[int, int], bytes] = {}
        """Data of the streams that commands with ``host`` 0 send, by short QP number and ``dest``."""

    def m_rdma_rd_req(self, request: bytes) -> Sequence[Beat] | None:
        """See :class:`Shell`."""
        said = c.RDMA_RD_REQ.unpack(request)
        number, length = c.join_qpn(said["pid"], said["vfid"]), said["len"]
        if said["stream"]:
            start = said["vaddr"]
            data = self.outgoing.get((number, said["dest"]), b"")[start : start + length]
            return BeatRun(data) if len(data) == length else None
        found = bytearray(length)
        memory = self.memory
        if isinstance(memory, Mmu):
            there = memory.read(number, said["vaddr"], found)
        else:
            there = memory.read(said["vaddr"], found)
        return BeatRun(found) if there else None

    def m_rdma_wr_req(self, request: bytes, data: Iterable[Beat]) -> bool:
        """See :class:`Shell`."""
        said = c.RDMA_WR_REQ.unpack(request)
        number = c.join_qpn(said["pid"], said["vfid"])
        payload = payload_of(data)
        if said["stream"]:
            if len(self.streams) >= STREAMS:
                return False
            self.streams.append((number, payload))
            return True
        memory = self.memory
        if not payload:
            return True
        if isinstance(memory, Mmu):
            return memory.write(number, said["vaddr"], payload)
        return memory.write(said["vaddr"], payload)


def requests(
    layout: Layout, number: int, va: int, length: int, host: bool, last: bool, offs: int | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the memory requests of one transfer, each with its part of the data.

    Args:
        last: the message ends with this transfer: its last request has ``ctl`` 1, and no other has.
        offs: the command's ``offs``, for the command's own data: these requests have ``sync`` 1, and ``offs`` as their
            ``dest``. Requests for what the peer reads or writes have neither.
    """
    pid, vfid = c.split_qpn(number)
    start = 0
    while True:
        end = min(start + c.MAX_REQUEST_BYTES, length)
        values = {
            "vfid": vfid,
            "pid": pid,
            "vaddr": va + start,
            "len": end - start,
            "stream": int(not host),
            "host": int(host),
            "sync": int(offs is not None),
            "dest": offs or 0,
            "ctl": int(last and end == length),
        }
        yield layout.pack(values), start, end
        start = end
        if start == length:
            return


def fetch(
    shell: Shell,
    number: int,
    va: int,
    buf: bytearray | memoryview,
    *,
    host: bool,
    last: bool,
    offs: int | None = None,
) -> bool:
    """Fill ``buf`` from host memory, or from the queue pair's stream; return false if the shell has no such data."""
    if va + len(buf) > ADDRESS_END:
        return False
    for request, start, end in requests(c.RDMA_RD_REQ, number, va, len(buf), host, last, offs):
        beats = shell.m_rdma_rd_req(request)
        data = None if beats is None else payload_of(beats)
        if data is None or len(data) != end - start:
            return False
        buf[start:end] = data
    return True


def store(shell: Shell, number: int, va: int, data: bytes | bytearray | memoryview, *, host: bool, last: bool) -> bool:
    """Pass data to host memory, or to the queue pair's stream; return false if the shell refuses it."""
    if va + len(data) > ADDRESS_END:
        return False
    view = memoryview(data)
    return all(
        shell.m_rdma_wr_req(request, BeatRun(view[start:end]))
        for request, start, end in requests(c.RDMA_WR_REQ, number, va, len(data), host, last)
    )
