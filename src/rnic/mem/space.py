"""Address spaces: memory that a process has mapped for its NIC, addressed by real or simulated addresses.

A mapped buffer keeps its real virtual address, as with a hardware NIC, so peers exchange addresses unchanged. Simulated
spaces allocate their own addresses, so runs with the same seed are identical.
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
"""Element types that ``memoryview.cast`` accepts."""


class _PyBuffer(ctypes.Structure):
    """CPython's ``Py_buffer``: the only portable way to get the address of read-only memory."""

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
    """Return the virtual address of a contiguous, non-empty view."""
    raw = _PyBuffer()
    _get_buffer(view, ctypes.byref(raw), 0)
    address: int = raw.buf
    _release_buffer(ctypes.byref(raw))
    return address


def _exporter(buffer: object) -> object:
    """Return the exporter of ``buffer``'s bytes: the buffer itself, or the memory inside a wrapper."""
    if type(buffer).__module__ == "multiprocessing.shared_memory":
        return cast("_SharedMemory", buffer).buf
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "numpy"):  # torch tensors have no buffer protocol
        return cast("_Tensor", buffer).numpy()
    return buffer


def byte_view(buffer: object) -> memoryview:
    """Return all bytes of ``buffer`` as one flat view that keeps the buffer and its export alive.

    Accepts objects with the buffer protocol (bytes, bytearray, NumPy arrays of any number type, mmap, ctypes),
    ``SharedMemory`` objects and torch CPU tensors.

    Raises:
        VerbsError: ``EINVAL`` for an object that has no bytes, is not contiguous, or is empty.
    """
    kind = type(buffer).__name__
    exporter = _exporter(buffer)
    if getattr(getattr(exporter, "dtype", None), "hasobject", False):
        raise VerbsError(EINVAL, f"buffer of type {kind} holds Python objects; register an array of numbers")
    if isinstance(exporter, memoryview) and exporter.c_contiguous and exporter.format in _PLAIN_FORMATS:
        # Take a view of the same export. A view of the view would be an export of a memoryview; CPython's garbage
        # collector crashes on those, since it clears the exporter first.
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
    """A mapped buffer: ``length`` bytes from ``va`` on. It keeps the buffer alive until it is unmapped.

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
    """Mappings sorted by virtual or real address; they may overlap."""

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
        """Return the mapping with the highest start that contains the whole range."""
        end = start + length
        at = bisect_right(self._starts, start) - 1
        while at >= 0 and self._starts[at] + self._longest >= end:
            mapping = self._items[at]
            if self._starts[at] + mapping.length >= end and not (writable and mapping.readonly):
                return mapping
            at -= 1
        return None

    def overlapping(self, start: int, length: int) -> list[Mapping]:
        """Return the mappings that contain any byte of the range."""
        at = bisect_right(self._starts, start + length - 1) - 1
        found = []
        while at >= 0 and self._starts[at] + self._longest > start:
            if self._starts[at] + self._items[at].length > start:
                found.append(self._items[at])
            at -= 1
        return found


class AddressSpace:
    """A process's mapped memory by its real addresses; a :class:`~rnic.mem.dma.DmaPort`.

    Mappings may overlap, for example if an array is registered twice; a byte is accessible until its last mapping is
    removed. While a device reads or writes, map and unmap only with that device's lock held.
    """

    __slots__ = ("_by_va",)

    def __init__(self) -> None:
        self._by_va = _Ranges()

    def map(self, buffer: object, *, writable: bool = False) -> Mapping:
        """Map all bytes of ``buffer``; see :func:`byte_view` for the accepted types.

        Args:
            writable: true to refuse read-only memory, since the NIC will write to it.

        Raises:
            VerbsError: ``EINVAL`` for an unsupported buffer, ``EACCES`` for read-only memory with ``writable``.
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
        """Remove a mapping and release its buffer; ignore one that is not mapped here."""
        if self._remove(mapping):
            # Slices held by transfers in progress keep the memory alive.
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
        """Read from ``va`` into ``buf``; return false if no single mapping contains the whole range."""
        source = self._slice(va, len(buf), writable=False)
        if source is None:
            return False
        buf[:] = source
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Write ``data`` at ``va``; return false if no single writable mapping contains the whole range."""
        target = self._slice(va, len(data), writable=True)
        if target is None:
            return False
        target[:] = data
        return True

    def mappings(self, va: int, length: int) -> list[Mapping]:
        """Return the mappings that contain any byte of a range."""
        return self._by_va.overlapping(va, length)

    def views(self, va: int, length: int) -> memoryview | None:
        """Return a view of the memory, writable if any of its mappings is; ``None`` if no mapping contains it all."""
        view = self._slice(va, length, writable=True)
        return self._slice(va, length, writable=False) if view is None else view


class SimAddressSpace(AddressSpace):
    """Address space that allocates virtual addresses itself, in order of mapping, from ``base`` on.

    Each buffer starts on its own page and is followed by an unmapped page. A buffer inside an already mapped one keeps
    its address there. Addresses are not reused.
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
