"""Address spaces: what a process has made reachable for its NIC, by real or by simulated addresses.

A mapped buffer keeps its real virtual address, as with a real NIC, so addresses travel between peers as they
are. Simulated spaces hand out addresses themselves, so that the same seed gives the same run.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from errno import EACCES, EINVAL
from pickle import PickleBuffer
from typing import Protocol, cast

from rnic.spec.errors import VerbsError

PAGE_BYTES = 4096
_SIM_BASE = 0x10_0000_0000
_NOTHING = memoryview(b"")
_PLAIN_FORMATS = frozenset("cbB?hHiIlLqQnNfd")
"""Element types that ``memoryview.cast`` takes."""


class _PyBuffer(ctypes.Structure):
    """CPython's ``Py_buffer``: the one portable way to the address of read-only memory."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


class _SharedMemory(Protocol):
    buf: memoryview


class _Tensor(Protocol):
    def numpy(self) -> object: ...


def address_of(view: memoryview) -> int:
    """Virtual address in this process of the first byte of a contiguous, non-empty view."""
    raw = _PyBuffer()
    _get_buffer(view, ctypes.byref(raw), 0)
    address: int = raw.buf
    _release_buffer(ctypes.byref(raw))
    return address


def _exporter(buffer: object) -> object:
    """What offers ``buffer``'s bytes: itself, or the memory that a wrapper holds."""
    if type(buffer).__module__ == "multiprocessing.shared_memory":
        return cast("_SharedMemory", buffer).buf
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "numpy"):  # torch tensors have no buffer protocol
        return cast("_Tensor", buffer).numpy()
    return buffer


def byte_view(buffer: object) -> memoryview:
    """All bytes of ``buffer`` as one flat view that keeps the buffer, and its export, alive.

    Takes whatever has the buffer protocol (bytes, bytearray, NumPy arrays of any number type, mmap, ctypes),
    and ``SharedMemory`` objects and torch CPU tensors.

    Raises:
        VerbsError: ``EINVAL`` for something that has no bytes, has gaps between them, or is empty.
    """
    kind = type(buffer).__name__
    exporter = _exporter(buffer)
    if getattr(getattr(exporter, "dtype", None), "hasobject", False):
        raise VerbsError(EINVAL, f"buffer of type {kind} holds Python objects; register an array of numbers")
    if isinstance(exporter, memoryview) and exporter.c_contiguous and exporter.format in _PLAIN_FORMATS:
        # A view of the same export. One of the view itself would be an export of a memoryview, and CPython's
        # collector crashes on those when they are garbage (it clears the exporter first).
        view = exporter.cast("B")
        if view.nbytes:
            return view
    try:
        # raw() flattens element types that memoryview.cast() refuses: big-endian, complex, structured.
        view = PickleBuffer(exporter).raw()  # type: ignore[arg-type]
    except TypeError:
        raise VerbsError(
            EINVAL, f"buffer of type {kind} has no bytes to register; use a bytearray, NumPy array or mmap"
        ) from None
    except BufferError:
        raise VerbsError(
            EINVAL, f"buffer of type {kind} is not contiguous; register a contiguous copy or its base"
        ) from None
    except ValueError as error:
        raise VerbsError(
            EINVAL, f"buffer of type {kind} gives no access to its bytes ({error}); register a view as bytes"
        ) from None
    if not view.nbytes:
        raise VerbsError(EINVAL, f"buffer of type {kind} has length 0; register at least 1 byte")
    return view


class Mapping:
    """One mapped buffer: ``length`` bytes from ``va`` on. Until it is unmapped it keeps the buffer alive.

    ``real`` is the address in this process, which is ``va`` except in simulated spaces.
    """

    __slots__ = ("length", "readonly", "real", "va", "view")

    def __init__(self, va: int, real: int, view: memoryview) -> None:
        self.va = va
        self.real = real
        self.view = view
        self.length = view.nbytes
        self.readonly = view.readonly


class _Ranges:
    """Mappings ordered by one of their addresses. They may overlap."""

    __slots__ = ("_items", "_longest", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._items: list[Mapping] = []
        self._longest = 0

    def add(self, start: int, mapping: Mapping) -> None:
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._items.insert(at, mapping)
        self._longest = max(self._longest, mapping.length)

    def remove(self, start: int, mapping: Mapping) -> bool:
        at = bisect_right(self._starts, start) - 1
        while at >= 0 and self._starts[at] == start:
            if self._items[at] is mapping:
                del self._starts[at], self._items[at]
                return True
            at -= 1
        return False

    def find(self, start: int, length: int, writable: bool) -> Mapping | None:
        """The mapping with the highest start that holds the whole range."""
        end = start + length
        at = bisect_right(self._starts, start) - 1
        while at >= 0 and self._starts[at] + self._longest >= end:
            mapping = self._items[at]
            if self._starts[at] + mapping.length >= end and not (writable and mapping.readonly):
                return mapping
            at -= 1
        return None

    def overlapping(self, start: int, length: int) -> list[Mapping]:
        """The mappings that hold any byte of the range."""
        at = bisect_right(self._starts, start + length - 1) - 1
        found = []
        while at >= 0 and self._starts[at] + self._longest > start:
            if self._starts[at] + self._items[at].length > start:
                found.append(self._items[at])
            at -= 1
        return found


class AddressSpace:
    """A process's own memory by its real addresses: a :class:`~rnic.mem.dma.DmaPort` over what is mapped.

    Mappings may overlap, as when one array is registered twice; a byte stays in reach until the last mapping
    that holds it is gone. Mapping and unmapping while a device reads or writes takes that device's lock.
    """

    __slots__ = ("_by_va",)

    def __init__(self) -> None:
        self._by_va = _Ranges()

    def map(self, buffer: object, *, writable: bool = False) -> Mapping:
        """Make all bytes of ``buffer`` reachable; see :func:`byte_view` for what it may be.

        Args:
            writable: the NIC is to write there, so refuse read-only memory.

        Raises:
            VerbsError: ``EINVAL`` for an unfit buffer, ``EACCES`` for read-only memory that is to be written.
        """
        view = byte_view(buffer)
        if writable and view.readonly:
            kind = type(buffer).__name__
            raise VerbsError(
                EACCES, f"buffer of type {kind} is read-only; register it without write rights, or a bytearray"
            )
        real = address_of(view)
        mapping = Mapping(self._place(real, view.nbytes), real, view)
        self._add(mapping)
        return mapping

    def unmap(self, mapping: Mapping) -> None:
        """Take a mapping out of reach and let go of its buffer; one that is not mapped here is ignored."""
        if self._remove(mapping):
            # Slices that transfers under way still hold keep the memory itself alive.
            mapping.view = _NOTHING

    def _place(self, real: int, length: int) -> int:
        return real

    def _add(self, mapping: Mapping) -> None:
        self._by_va.add(mapping.va, mapping)

    def _remove(self, mapping: Mapping) -> bool:
        return self._by_va.remove(mapping.va, mapping)

    def _slice(self, va: int, length: int, writable: bool) -> memoryview | None:
        mapping = self._by_va.find(va, length, writable)
        if mapping is None:
            return None
        at = va - mapping.va
        return mapping.view[at : at + length]

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf`` from ``va`` on; false where no one mapping holds the whole range."""
        source = self._slice(va, len(buf), writable=False)
        if source is None:
            return False
        buf[:] = source
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data`` from ``va`` on; false where no one writable mapping holds the whole range."""
        target = self._slice(va, len(data), writable=True)
        if target is None:
            return False
        target[:] = data
        return True

    def mappings(self, va: int, length: int) -> list[Mapping]:
        """What is mapped of a range: every mapping that holds any byte of it."""
        return self._by_va.overlapping(va, length)

    def views(self, va: int, length: int) -> memoryview | None:
        """The memory itself, writable if any mapping of the range is; ``None`` where none holds it whole."""
        view = self._slice(va, length, writable=True)
        return self._slice(va, length, writable=False) if view is None else view


class SimAddressSpace(AddressSpace):
    """An address space that hands out virtual addresses itself, in order of mapping, from ``base`` on.

    Each buffer starts on a page of its own with an unmapped page behind it. A buffer that lies within one
    already mapped gets the address that it has there. Addresses are not used again.
    """

    __slots__ = ("_by_real", "_next")

    def __init__(self, base: int = _SIM_BASE) -> None:
        super().__init__()
        self._by_real = _Ranges()
        self._next = base

    def _place(self, real: int, length: int) -> int:
        whole = self._by_real.find(real, length, writable=False)
        if whole is not None:
            return whole.va + real - whole.real
        va = self._next
        self._next = (va + length + 2 * PAGE_BYTES - 1) & -PAGE_BYTES
        return va

    def _add(self, mapping: Mapping) -> None:
        super()._add(mapping)
        self._by_real.add(mapping.real, mapping)

    def _remove(self, mapping: Mapping) -> bool:
        return self._by_real.remove(mapping.real, mapping) and super()._remove(mapping)
