"""The one-sided half of a connection: READ, WRITE and atomics on the peer's shared arrays, one or many at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from errno import EACCES, EINVAL, ENOENT
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rnic.arrays.codec import check_into, convert_into, filling, is_empty, new_array, typed
from rnic.arrays.exports import Shares
from rnic.arrays.handshake import BufferInfo, item_bytes
from rnic.arrays.indexing import MAX_RUNS, Index, Selection, select, whole_number
from rnic.arrays.remote_array import RemoteArray
from rnic.cm.rc_connection import DEPTH, Pending, RcConnection
from rnic.cm.work_queue import Operation
from rnic.mem.space import byte_view
from rnic.spec.errors import VerbsError, VerbsKeyError
from rnic.state.arena import private_memory
from rnic.verbs import enums as e
from rnic.verbs.attrs import SGE, SendWR
from rnic.verbs.memory import MR

if TYPE_CHECKING:
    from numpy.typing import NDArray

BOUNCE_BYTES = 4096
"""Shorter transfers go through pre-registered bounce buffers, which is faster than registering the caller's memory."""
PIECE_BYTES = 1 << 30
"""Longest work request; longer transfers take several."""
ORDERED = e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE
"""Flags of WRITEs and atomics: without the fence, they may overtake an earlier READ (IBA vol. 1, ch. 10)."""
_ATOMIC = [("<" if sys.byteorder == "little" else ">") + kind for kind in ("i8", "u8")]
_MASK64 = (1 << 64) - 1

B = TypeVar("B")
T = TypeVar("T")
Remote = str | BufferInfo


class OneSided(RcConnection[Any]):
    """Access of :class:`~rnic.arrays.connection.Connection` to the peer's memory without the peer's program.

    Args:
        made: as of :class:`~rnic.cm.rc_connection.RcConnection`, as are ``buffer_bytes`` and ``receives``.
        shares: the NIC with the buffers that this end shares.
    """

    def __init__(self, made: ExitStack, shares: Shares, buffer_bytes: int, receives: int) -> None:
        bounce = private_memory(BOUNCE_BYTES * DEPTH)
        self._bounce = MR(shares.pd, bounce)
        made.callback(self._bounce.close)
        self._bounce_view = memoryview(bounce)
        self._free = list(range(DEPTH))
        """Bounce buffers that are free."""
        self._free_lock = threading.Lock()
        self._shares = shares
        self.remote: dict[str, BufferInfo] = {}
        super().__init__(made, shares.pd, buffer_bytes, receives, max_send_sge=2)

    def __getitem__(self, name: str) -> RemoteArray:
        """Return the peer's array of that name, to be indexed as NumPy arrays are; raise VerbsKeyError if there
        is none."""
        return RemoteArray(self, self._find(name))

    @overload
    def read(self, remote: Remote, offset: int = 0, count: int | None = None) -> NDArray[Any]: ...
    @overload
    def read(
        self, remote: Remote, offset: int = 0, count: int | None = None, *, into: B, casting: str | None = None
    ) -> B: ...
    def read(
        self, remote: Remote, offset: int = 0, count: int | None = None, *, into: Any = None, casting: str | None = None
    ) -> Any:
        """Read a shared buffer of the peer, or part of it.

        Args:
            remote: its name, or an entry of :attr:`remote`.
            offset: first element, counted in the flat array.
            count: elements; all that follow by default.
            into: writable buffer to read into instead; without ``count`` its size says how much is read. A bytearray
                takes the raw bytes; an array must have the remote type and, if it has rows, the remote rows.
            casting: convert for an ``into`` of another type, by NumPy's rule of this name (``"same_kind"``, say).

        Returns:
            ``into``, or a new NumPy array of the remote type: of the remote shape if all is read, else flat. A
            bytearray if NumPy is not installed.

        Raises:
            VerbsError: EINVAL for a range outside the buffer, or an ``into`` of another type; ENOENT for a name that
                the peer does not share.
            WorkCompletionError: the READ failed.
        """
        return self.begin_read(remote, offset, count, into, casting).result()

    @overload
    async def aread(self, remote: Remote, offset: int = 0, count: int | None = None) -> NDArray[Any]: ...
    @overload
    async def aread(
        self, remote: Remote, offset: int = 0, count: int | None = None, *, into: B, casting: str | None = None
    ) -> B: ...
    async def aread(
        self, remote: Remote, offset: int = 0, count: int | None = None, *, into: Any = None, casting: str | None = None
    ) -> Any:
        """Run :meth:`read` on asyncio. If cancelled, the READ goes on in the NIC: do not reuse ``into`` meanwhile."""
        await self._wait_bounce_free()
        return await self.begin_read(remote, offset, count, into, casting)

    def read_many(self, remote: Remote, offsets: Iterable[int], count: int | None = None) -> NDArray[Any]:
        """Read many pieces at once, each with a request of its own; tens of thousands may be in flight.

        Args:
            offsets: first element of each piece.
            count: elements of each piece; one by default.

        Returns:
            An array with one row for each piece; without ``count``, one element.
        """
        return self.begin_read_many(remote, offsets, count).result()  # type: ignore[no-any-return] # an array

    def write(self, remote: Remote, data: Any, offset: int = 0, *, casting: str | None = None) -> None:
        """Write into a shared buffer of the peer. On return the data is in the peer's memory.

        Args:
            remote: its name, or an entry of :attr:`remote`.
            data: an array of the remote type, with its rows where it has rows; numbers or a list of them that the
                remote type can hold; or bytes, which are written as they are.
            offset: first element to write, counted in the flat array.
            casting: convert an array of another type, by NumPy's rule of this name (``"same_kind"``, say).

        Raises:
            VerbsError: EINVAL for a range outside the buffer, or data of another type; EACCES for a buffer that the
                peer shares for reading only; ENOENT for a name that it does not share.
            WorkCompletionError: the WRITE failed.
        """
        self.begin_write(remote, data, offset, casting).result()

    async def awrite(self, remote: Remote, data: Any, offset: int = 0, *, casting: str | None = None) -> None:
        """Run :meth:`write` on asyncio. If cancelled, the WRITE goes on in the NIC."""
        await self._wait_bounce_free()
        await self.begin_write(remote, data, offset, casting)

    def fetch_add(self, remote: Remote, offset: int, value: int) -> int:
        """Add to an 8-byte integer of the peer's buffer, atomically and modulo 2^64. Return the old value.

        Args:
            remote: name or entry of a buffer of 8-byte integers.
            offset: the element.
            value: number to add: what the element's type can hold, or the negative of it.

        Raises:
            VerbsError: as :meth:`write`, and EINVAL for elements that are not 8-byte integers.
        """
        return self.begin_fetch_add(remote, offset, value).result()

    async def afetch_add(self, remote: Remote, offset: int, value: int) -> int:
        """Run :meth:`fetch_add` on asyncio."""
        await self._wait_bounce_free()
        return await self.begin_fetch_add(remote, offset, value)

    def compare_swap(self, remote: Remote, offset: int, expected: int, new: int) -> int:
        """Store ``new`` in an 8-byte integer if it holds ``expected``, atomically. Return the old value.

        Raises:
            VerbsError: as :meth:`fetch_add`; EINVAL for values that the element's type cannot hold.
        """
        return self.begin_compare_swap(remote, offset, expected, new).result()

    async def acompare_swap(self, remote: Remote, offset: int, expected: int, new: int) -> int:
        """Run :meth:`compare_swap` on asyncio."""
        await self._wait_bounce_free()
        return await self.begin_compare_swap(remote, offset, expected, new)

    # ------------------------------------------------------------------------------- operations

    async def _wait_bounce_free(self) -> None:
        """Wait until a bounce buffer is free, so that starting an operation does not block the event loop."""
        self._check_open()
        while not self._free:
            await self._queue.wait_async(lambda: bool(self._free))
            self._check_open()

    def _find(self, remote: Remote) -> BufferInfo:
        self._check_open()
        if isinstance(remote, BufferInfo):
            return remote
        info = self.remote.get(remote)
        if info is None:
            names = ", ".join(sorted(self.remote)) or "nothing"
            raise VerbsKeyError(ENOENT, f"{self.peer} shares no {remote!r}; it shares {names[:200]}")
        return info

    def begin_read(
        self, remote: Remote, offset: int, count: int | None, into: Any, casting: str | None = None
    ) -> Pending[Any]:
        """Start :meth:`read`."""
        info = self._find(remote)
        item = item_bytes(info.dtype)
        total = prod(info.shape)
        offset = whole_number("offset", offset)
        convert = into is not None and check_into(into, info, casting)
        if count is not None:
            count = whole_number("count", count)
        elif into is None:
            count = total - offset
        elif convert:
            count = int(sys.modules["numpy"].asarray(into).size)
        else:
            size = byte_view(into).nbytes
            if size % item:
                raise VerbsError(EINVAL, f"into holds {size} bytes, no multiple of the element's {item}")
            count = size // item
        _check_range(info, offset, count)
        shape = info.shape if offset == 0 and count == total else (count,)
        if convert:
            started = self._read_runs(info, Selection((count,), [offset], count), None)
            return Pending(self, started.operation, lambda: convert_into(into, started.finish(), casting))
        if into is not None and byte_view(into).nbytes < count * item:
            raise VerbsError(
                EINVAL, f"into holds {byte_view(into).nbytes} bytes, fewer than the {count * item} asked for"
            )
        return self._read_runs(info, Selection(shape, [offset], count), into)

    def begin_read_many(self, remote: Remote, offsets: Iterable[int], count: int | None = None) -> Pending[Any]:
        """Start :meth:`read_many`."""
        info = self._find(remote)
        each = 1 if count is None else whole_number("count", count)
        firsts = [whole_number("offset", offset) for offset in offsets]
        if len(firsts) > MAX_RUNS:
            raise VerbsError(EINVAL, f"{len(firsts)} offsets: read at most {MAX_RUNS} pieces at a time")
        if firsts:
            _check_range(info, min(firsts), each)
            _check_range(info, max(firsts), each)
        shape = (len(firsts),) if count is None else (len(firsts), each)
        return self._read_runs(info, Selection(shape, firsts, each), None)

    def read_at(self, info: BufferInfo, index: Index) -> Any:
        """Return ``connection[name][index]``."""
        return self._begin_read_at(info, index).result()

    async def aread_at(self, info: BufferInfo, index: Index) -> Any:
        """Run :meth:`read_at` on asyncio."""
        await self._wait_bounce_free()
        return await self._begin_read_at(info, index)

    def write_at(self, info: BufferInfo, index: Index, value: Any) -> None:
        """Do ``connection[name][index] = value``."""
        self._begin_write_at(info, index, value).result()

    async def awrite_at(self, info: BufferInfo, index: Index, value: Any) -> None:
        """Run :meth:`write_at` on asyncio."""
        await self._wait_bounce_free()
        await self._begin_write_at(info, index, value)

    def _begin_read_at(self, info: BufferInfo, index: Index) -> Pending[Any]:
        selection = select(info.shape, index, info.name)
        started = self._read_runs(self._find(info), selection, None)
        if selection.shape:
            return started
        return Pending(self, started.operation, lambda: started.finish()[()])

    def _begin_write_at(self, info: BufferInfo, index: Index, value: Any) -> Pending[None]:
        selection = select(info.shape, index, info.name)
        self._writable(info)
        return self._write_runs(self._find(info), selection, filling(value, info, selection.shape))

    def _read_runs(self, info: BufferInfo, selection: Selection, into: Any) -> Pending[Any]:
        """READ the runs of a selection, one after the other, into a buffer; by default a new array."""
        target = new_array(info.dtype, selection.shape, info.fields) if into is None else into
        name = f"READ of {info.name!r}"
        size = selection.size * item_bytes(info.dtype)
        if not size:
            return Pending(self, Operation(name), lambda: target)
        if size > BOUNCE_BYTES:
            mr = MR(self._shares.pd, target, e.IBV_ACCESS_LOCAL_WRITE)
            operation = Operation(name, mr.close)
            return self._start(operation, mr.buf, mr.lkey, e.IBV_WR_RDMA_READ, info, selection, target)
        writable = byte_view(target)
        if writable.readonly:
            raise VerbsError(EINVAL, "into is read-only; give a bytearray or an array of your own")
        buffer, view, address = self._take_bounce()

        def release() -> None:
            writable[:size] = view[:size]
            self._free_bounce(buffer)

        operation = Operation(name, release)
        return self._start(operation, address, self._bounce.lkey, e.IBV_WR_RDMA_READ, info, selection, target)

    def begin_write(self, remote: Remote, data: Any, offset: int, casting: str | None = None) -> Pending[None]:
        """Start :meth:`write`."""
        info = self._find(remote)
        self._writable(info)
        data = typed(data, info, casting)
        size = 0 if is_empty(data) else byte_view(data).nbytes
        item = item_bytes(info.dtype)
        if size % item:
            raise VerbsError(EINVAL, f"data holds {size} bytes, no multiple of the element's {item}")
        offset = whole_number("offset", offset)
        _check_range(info, offset, size // item)
        return self._write_runs(info, Selection((), [offset], size // item), data)

    def _write_runs(self, info: BufferInfo, selection: Selection, data: Any) -> Pending[None]:
        """WRITE a buffer to the runs of a selection, piece by piece."""
        name = f"WRITE to {info.name!r}"
        size = selection.size * item_bytes(info.dtype)
        if not size:
            return Pending(self, Operation(name), lambda: None)
        if size > BOUNCE_BYTES:
            mr = MR(self._shares.pd, data, 0)
            operation = Operation(name, mr.close)
            return self._start(operation, mr.buf, mr.lkey, e.IBV_WR_RDMA_WRITE, info, selection, None)
        buffer, view, address = self._take_bounce()
        view[:size] = byte_view(data)
        operation = Operation(name, lambda: self._free_bounce(buffer))
        return self._start(operation, address, self._bounce.lkey, e.IBV_WR_RDMA_WRITE, info, selection, None)

    def _start(
        self,
        operation: Operation,
        local: int,
        lkey: int,
        opcode: int,
        info: BufferInfo,
        selection: Selection,
        result: T,
    ) -> Pending[T]:
        item = item_bytes(info.dtype)
        size = selection.count * item
        flags = e.IBV_SEND_SIGNALED if opcode == e.IBV_WR_RDMA_READ else ORDERED
        requests = []
        for first in selection.firsts:
            for at in range(0, size, PIECE_BYTES):
                sge = SGE(local + at, min(PIECE_BYTES, size - at), lkey)
                request = SendWR(opcode=opcode, send_flags=flags, sg=[sge])
                request.set_wr_rdma(info.rkey, info.addr + first * item + at)
                requests.append(request)
            local += size
        return self._begin(operation, requests, lambda: result)

    def _writable(self, info: BufferInfo) -> None:
        if not info.writable:
            raise VerbsError(EACCES, f"{self.peer} shares {info.name!r} for reading only")

    def begin_fetch_add(self, remote: Remote, offset: int, value: int) -> Pending[int]:
        """Start :meth:`fetch_add`."""
        return self._atomic(remote, offset, e.IBV_WR_ATOMIC_FETCH_AND_ADD, {"value": value})

    def begin_compare_swap(self, remote: Remote, offset: int, expected: int, new: int) -> Pending[int]:
        """Start :meth:`compare_swap`."""
        return self._atomic(remote, offset, e.IBV_WR_ATOMIC_CMP_AND_SWP, {"expected": expected, "new": new})

    def _atomic(self, remote: Remote, offset: int, opcode: int, operands: Mapping[str, int]) -> Pending[int]:
        info = self._find(remote)
        self._writable(info)
        if info.dtype not in _ATOMIC:
            kind = "a structured type" if info.fields else info.dtype
            raise VerbsError(
                EINVAL,
                f"{info.name!r} has elements of {kind}; atomics need integers of 8 bytes in this machine's order",
            )
        offset = whole_number("offset", offset)
        _check_range(info, offset, 1)
        address = info.addr + offset * 8
        if address & 7:
            raise VerbsError(EINVAL, f"{info.name!r} begins at {info.addr:#x}; atomics need a multiple of 8")
        signed = info.dtype[1] == "i"
        add = opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD
        low, high = -(1 << 63) if signed or add else 0, (1 << 63 if signed else 1 << 64) - 1
        values = [
            whole_number(name, int(value) if value is True or value is False else value, "a whole number")
            for name, value in operands.items()
        ]
        for name, value in zip(operands, values, strict=True):
            if not low <= value <= high:
                raise VerbsError(EINVAL, f"{name}={value} does not fit {info.name!r}: use {low} to {high}")
        buffer, view, local = self._take_bounce()
        found: list[int] = []

        def release() -> None:
            found.append(int.from_bytes(view[:8], sys.byteorder, signed=signed))
            self._free_bounce(buffer)

        operation = Operation(f"{'FETCH_ADD' if add else 'COMPARE_SWAP'} on {info.name!r}", release)
        request = SendWR(opcode=opcode, send_flags=ORDERED, sg=[SGE(local, 8, self._bounce.lkey)])
        request.set_wr_atomic(info.rkey, address, *(value & _MASK64 for value in values))
        return self._begin(operation, [request], lambda: found[0])

    def _take_bounce(self) -> tuple[int, memoryview, int]:
        """Take a bounce buffer; return its number, view and address. Drive operations until one is free."""
        while True:
            with self._free_lock:
                if self._free:
                    buffer = self._free.pop()
                    at = buffer * BOUNCE_BYTES
                    return buffer, self._bounce_view[at : at + BOUNCE_BYTES], self._bounce.buf + at
            self._queue.wait(lambda: bool(self._free))
            self._check_open()  # another thread may have closed it

    def _free_bounce(self, buffer: int) -> None:
        with self._free_lock:
            self._free.append(buffer)


def _check_range(info: BufferInfo, offset: int, count: int) -> None:
    """Raise if elements lie outside a buffer."""
    total = prod(info.shape)
    if offset < 0 or count < 0 or offset + count > total:
        raise VerbsError(
            EINVAL,
            f"offset={offset}, count={count} leave {info.name!r}, which has {total} elements of "
            f"{item_bytes(info.dtype)} bytes",
        )
