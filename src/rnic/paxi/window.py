"""A bus master in Python: AXI transactions as calls, and the window as a buffer."""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Sequence
from errno import EINVAL
from typing import Any

from rnic.mem.space import byte_view
from rnic.paxi.axi import Address, AxiError, ReadBeat, WriteBeat, beat_bytes
from rnic.paxi.port import Carrier
from rnic.paxi.registers import RegisterBlock
from rnic.spec.axi import BOUNDARY_BYTES, MAX_BEATS, Burst, Resp
from rnic.spec.errors import VerbsError
from rnic.trace.counters import Counters


class Window:
    """A remote device's memory on an AXI bus whose master is this program.

    The window has ``len(window)`` bytes from bus address :attr:`base` on. Indices and slices count from the window's
    first byte; :meth:`read` and :meth:`write` take bus addresses and perform one burst each. Calls from several threads
    are serialized. :func:`rnic.paxi.open_window` opens one.

    ``registers`` is the register block; ``counters`` holds the counters.
    """

    def __init__(self, port: Carrier, owned: Any = None) -> None:
        self.port = port
        config = port.bridge.config
        self.base = config.base
        self.registers = RegisterBlock(port)
        self._owned = owned
        self._lock = threading.RLock()
        self._lanes = port.bridge.lanes

    @property
    def counters(self) -> Counters:
        """Counters of :mod:`rnic.paxi.bridge`, by name."""
        return self.port.bridge.counters

    def __len__(self) -> int:
        return self.port.bridge.config.size

    # ---------------------------------------------------------------------------------------- bursts

    def read(self, addr: int, size: int, len: int = 1, *, id: int = 0, burst: int = Burst.INCR) -> bytes:  # noqa: A002 - AxLEN's and AxID's names
        """Perform one read burst.

        Args:


        Returns:
            The bytes of the beats in order; bytes beyond the window's end are zero.

        Raises:
            AxiError: the response is SLVERR or DECERR.
            VerbsError: EINVAL for a size or length that AxSIZE and AxLEN cannot encode.
        """
        address = self._address(addr, size, len, id, burst)
        with self._lock:
            (beats,) = self._read_all([address])
        return self._joined(address, beats)

    def write(
        self,
        addr: int,
        data: Any,
        size: int | None = None,
        *,
        mask: Sequence[int] | None = None,
        id: int = 0,  # noqa: A002 - AWID
        burst: int = Burst.INCR,
    ) -> None:
        """Perform one write burst. On return the data is in the remote's memory.

        Args:
            addr: bus address of the first byte, aligned or not.
            data: any buffer of bytes; strobes exclude the bytes of the last beat beyond it.
            size: bytes per beat: a power of two; by default the bus width.
            mask: true for each byte of ``data`` to write; by default all.
            id: AWID.
            burst: INCR, FIXED (up to 16 beats, all of the same bytes) or WRAP (2, 4, 8 or 16 beats).

        Raises:
            AxiError: the response is SLVERR or DECERR.
            VerbsError: EINVAL if no burst can have these parameters.
        """
        view = _bytes_of(data)
        size = self._lanes if size is None else size
        if mask is not None and len(mask) != view.nbytes:
            raise VerbsError(EINVAL, f"mask has {len(mask)} entries for {view.nbytes} bytes of data")
        if not view.nbytes or size < 1:
            raise VerbsError(EINVAL, f"a write of {view.nbytes} bytes, size={size}: give at least one byte")
        beats = -(-(addr % size + view.nbytes) // size)
        address = self._address(addr, size, beats, id, burst)
        with self._lock:
            self._write_all([(address, view, mask)])

    def __getitem__(self, index: int | slice) -> Any:
        first, end = self._range(index)
        out = bytearray(end - first)
        addresses = self._bursts(first, end)
        with self._lock:
            answers = self._read_all(addresses)
        for address, beats in zip(addresses, answers, strict=True):
            at = address.addr - self.base - first
            # the last beat may extend beyond the slice
            out[at:] = self._joined(address, beats)
        return bytes(out[: end - first]) if isinstance(index, slice) else out[0]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        first, end = self._range(index)
        view = _bytes_of(value if isinstance(index, slice) else bytes([value]))
        if view.nbytes != end - first:
            raise VerbsError(EINVAL, f"{view.nbytes} bytes do not fill a slice of {end - first}")
        addresses = self._bursts(first, end)
        starts = [address.addr - self.base - first for address in addresses]
        parts = [view[at:stop] for at, stop in zip(starts, [*starts[1:], view.nbytes], strict=False)]
        with self._lock:
            self._write_all([(address, part, None) for address, part in zip(addresses, parts, strict=True)])

    def close(self) -> None:
        """Close the window, its queue pair, and the device if it was opened for it. A second call does nothing."""
        with self._lock:
            self.port.close()
            if self._owned is not None:
                self._owned.close()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.port.closed else "open"
        return f"<Window of {len(self)} bytes at {self.base:#x} onto {self.port.peer} {state}>"

    # --------------------------------------------------------------------------------------- channels

    def _address(self, addr: int, size: int, beats: int, ident: int, burst: int) -> Address:
        if size < 1 or size & (size - 1) or size > 128:
            raise VerbsError(EINVAL, f"size={size}: use a power of two from 1 to 128 bytes (AxSIZE)")
        if not 1 <= beats <= MAX_BEATS:
            raise VerbsError(EINVAL, f"{beats} beats: a burst has 1 to {MAX_BEATS}")
        if not 0 <= addr < 1 << 64:
            raise VerbsError(EINVAL, f"addr={addr:#x}: 64 bits")
        return Address(ident, addr, beats - 1, size.bit_length() - 1, int(burst))

    def _range(self, index: int | slice) -> tuple[int, int]:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                raise VerbsError(EINVAL, f"step={step}: slices of a window have step 1")
            return first, max(first, end)
        at = operator.index(index)
        at += len(self) if at < 0 else 0
        if not 0 <= at < len(self):
            raise IndexError(f"index {index} leaves the window of {len(self)} bytes")
        return at, at + 1

    def _bursts(self, first: int, end: int) -> list[Address]:
        """Return the full-width bursts that cover a range."""
        out = []
        at, end = self.base + first, self.base + end
        lanes = self._lanes
        while at < end:
            stop = min(end, at - at % BOUNDARY_BYTES + BOUNDARY_BYTES, (at & -lanes) + MAX_BEATS * lanes)
            out.append(Address(0, at, -(-(stop - (at & -lanes)) // lanes) - 1, lanes.bit_length() - 1))
            at = stop
        return out

    def _joined(self, address: Address, beats: list[ReadBeat]) -> bytes:
        lanes = self._lanes
        parts = []
        for number, beat in enumerate(beats):
            if beat.resp:
                raise self._error("read", address, beat.resp)
            first, end = beat_bytes(address, number)
            parts.append(beat.data[first % lanes : first % lanes + end - first])
        return b"".join(parts)

    def _error(self, what: str, address: Address, resp: int) -> AxiError:
        return AxiError(
            resp,
            f"{what} of {address.len + 1} beats of {1 << address.size} bytes at {address.addr:#x} of {self.port.peer} "
            f"was answered with {Resp(resp).name}: {_HINTS[resp]}",
        )

    def _usable(self) -> None:
        if self.port.closed:
            raise VerbsError(EINVAL, f"the window onto {self.port.peer} is closed; open a new one")

    def _read_all(self, addresses: list[Address]) -> list[list[ReadBeat]]:
        """Offer read bursts of one ID as slots become free; return the beats of each, in order."""
        self._usable()
        bridge, clock = self.port.bridge, self.port.clock
        todo = deque(addresses)
        out: list[list[ReadBeat]] = [[]]

        def turn() -> bool:
            while todo and bridge.can_read:
                bridge.address_read(todo.popleft(), clock())
            while (beat := bridge.read_beat()) is not None:
                out[-1].append(beat)
                if beat.last:
                    out.append([])
            return len(out) > len(addresses)

        while not turn():
            self.port.wait(turn)
        return out[:-1]

    def _write_all(self, bursts: Sequence[tuple[Address, memoryview, Sequence[int] | None]]) -> None:
        """Offer write bursts of one ID as slots become free, until all are answered; raise the first error."""
        self._usable()
        bridge, clock = self.port.bridge, self.port.clock
        todo = deque(bursts)
        answers: list[int] = []

        def turn() -> bool:
            while todo and bridge.can_write:
                address, data, mask = todo.popleft()
                bridge.address_write(address, clock())
                for beat in write_beats(address, data, self._lanes, mask):
                    bridge.write_data(beat)
            while (answer := bridge.write_response()) is not None:
                answers.append(answer.resp)
            return len(answers) == len(bursts)

        while not turn():
            self.port.wait(turn)
        for (address, _data, _mask), resp in zip(bursts, answers, strict=True):
            if resp:
                raise self._error("write", address, resp)


def _bytes_of(data: Any) -> memoryview:
    """Return the bytes of a buffer, which may be empty."""
    try:
        empty = not memoryview(data).nbytes
    except (TypeError, ValueError):  # such as NumPy dates, which have bytes but no buffer format
        empty = False
    return memoryview(b"") if empty else byte_view(data)


def write_beats(address: Address, data: memoryview, lanes: int, mask: Sequence[int] | None = None) -> list[WriteBeat]:
    """Return the W beats of a burst of ``data``, which may be shorter than the burst.

    Args:
        lanes: bus width in bytes.
        mask: true for each byte of ``data`` whose strobe is set; by default all.
    """
    out, at = [], 0
    for number in range(address.len + 1):
        first, end = beat_bytes(address, number)
        lane = first % lanes
        part = bytes(data[at : at + min(end - first, lanes)])
        strobe = (1 << len(part)) - 1
        if mask is not None:
            strobe = sum(1 << bit for bit, flag in enumerate(mask[at : at + len(part)]) if flag)
        out.append(WriteBeat((bytes(lane) + part)[:lanes].ljust(lanes, b"\0"), strobe << lane, number == address.len))
        at += len(part)
    return out


_HINTS = {
    Resp.SLVERR.value: "PAXI does not support this burst, or the remote is gone or failed to execute it",
    Resp.DECERR.value: "the address is outside the window, or the remote refused: range, rights or deregistered memory",
}
