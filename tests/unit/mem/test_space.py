"""Address spaces: real addresses, any buffer, reach only into what is mapped."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import subprocess
import sys
import weakref
from array import array
from multiprocessing.shared_memory import SharedMemory

import pytest

from rnic.mem.dma import DmaPort
from rnic.mem.space import AddressSpace, SimAddressSpace, address_of, byte_view
from rnic.spec.errors import VerbsError


class Bytes(bytearray):
    """A bytearray that can be watched by a weak reference."""


def address_by_ctypes(buffer: bytearray | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def test_views_of_views_are_collected_in_any_order() -> None:
    """As garbage: CPython cannot clear a memoryview that another object has an export of."""
    for _ in range(200):
        first: list[object] = [memoryview(bytearray(64))]
        first += [byte_view(first[0]), first]
        second: list[object] = [None, memoryview(bytearray(64)).cast("I"), None]
        second[0], second[2] = byte_view(second[1]), second
        del first, second
    gc.collect()
    assert bytes(byte_view(memoryview(b"abcd").cast("H"))) == b"abcd"


class TestMap:
    def test_bytearray_at_its_real_address(self) -> None:
        buffer = bytearray(b"hello")
        mapping = AddressSpace().map(buffer)
        assert mapping.va == mapping.real == address_by_ctypes(buffer)
        assert (mapping.length, mapping.readonly) == (5, False)
        mapping.view[0] = ord("j")
        assert buffer == b"jello"

    def test_ctypes_reads_at_the_address(self) -> None:
        mapping = AddressSpace().map(b"read-only")
        assert mapping.readonly
        assert ctypes.string_at(mapping.va, mapping.length) == b"read-only"

    def test_mmap(self) -> None:
        with mmap.mmap(-1, mmap.PAGESIZE) as memory:
            space = AddressSpace()
            mapping = space.map(memory)
            assert mapping.va == address_by_ctypes(memory)
            assert mapping.va % mmap.PAGESIZE == 0
            with pytest.raises(BufferError):
                memory.close()
            space.unmap(mapping)

    def test_shared_memory(self) -> None:
        memory = SharedMemory(create=True, size=4096)
        try:
            space = AddressSpace()
            mapping = space.map(memory)
            mapping.view[0] = 7
            assert memory.buf is not None
            assert memory.buf[0] == 7
            space.unmap(mapping)
        finally:
            memory.close()
            memory.unlink()

    def test_array_of_words(self) -> None:
        mapping = AddressSpace().map(array("I", [1, 2]))
        assert mapping.view.tobytes() == array("I", [1, 2]).tobytes()

    def test_part_of_a_buffer(self) -> None:
        buffer = bytearray(100)
        whole = AddressSpace().map(buffer)
        part = AddressSpace().map(memoryview(buffer)[10:20])
        assert (part.va, part.length) == (whole.va + 10, 10)

    def test_tensor_like(self) -> None:
        """torch CPU tensors have no buffer protocol, but give their memory by ``numpy()``."""

        class Tensor:
            def __init__(self) -> None:
                self.memory = bytearray(8)

            def data_ptr(self) -> int:
                return address_by_ctypes(self.memory)

            def numpy(self) -> bytearray:
                return self.memory

        tensor = Tensor()
        assert AddressSpace().map(tensor).va == tensor.data_ptr()

    @pytest.mark.parametrize("dtype", ["u1", "f8", ">f8", "c16", "?", "S5", [("key", "i4"), ("value", "f8")]])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_numpy(self, dtype: object, order: str) -> None:
        np = pytest.importorskip("numpy", reason="NumPy is not installed")
        values = np.zeros((3, 4), dtype=dtype, order=order)
        mapping = AddressSpace().map(values)
        assert (mapping.va, mapping.length) == (values.ctypes.data, values.nbytes)
        pattern = bytes(number % 251 for number in range(values.nbytes))
        mapping.view[:] = pattern
        assert ctypes.string_at(values.ctypes.data, values.nbytes) == pattern

    def test_view_is_writable_unless_the_buffer_is_not(self) -> None:
        space = AddressSpace()
        assert not space.map(bytearray(1), writable=True).readonly
        with pytest.raises(VerbsError, match="buffer of type bytes is read-only") as caught:
            space.map(b"x", writable=True)
        assert caught.value.errno == errno.EACCES
        assert space.map(b"x").readonly

    @pytest.mark.parametrize(
        ("buffer", "message"),
        [
            pytest.param(7, "type int has no bytes", id="int"),
            pytest.param([1, 2], "type list has no bytes", id="list"),
            pytest.param("text", "type str has no bytes", id="str"),
            pytest.param(None, "type NoneType has no bytes", id="None"),
            pytest.param(b"", "type bytes has length 0", id="empty"),
            pytest.param(memoryview(bytes(4))[::2], "type memoryview is not contiguous", id="gaps"),
            pytest.param(memoryview(bytes(4))[::-1], "type memoryview is not contiguous", id="backwards"),
        ],
    )
    def test_refuses(self, buffer: object, message: str) -> None:
        with pytest.raises(VerbsError, match=message) as caught:
            AddressSpace().map(buffer)
        assert caught.value.errno == errno.EINVAL
        assert "\n" not in str(caught.value)

    def test_refuses_a_closed_mmap(self) -> None:
        memory = mmap.mmap(-1, 4096)
        memory.close()
        with pytest.raises(VerbsError, match="type mmap gives no access to its bytes"):
            AddressSpace().map(memory)

    def test_refuses_arrays_of_objects(self) -> None:
        """A peer that could write pointers of the interpreter could do anything."""
        np = pytest.importorskip("numpy", reason="NumPy is not installed")
        for dtype in (object, [("a", "i4"), ("b", object)]):
            with pytest.raises(VerbsError, match="type ndarray holds Python objects"):
                AddressSpace().map(np.zeros(2, dtype=dtype))

    def test_refuses_numpy_slices_and_dates(self) -> None:
        np = pytest.importorskip("numpy", reason="NumPy is not installed")
        with pytest.raises(VerbsError, match="type ndarray is not contiguous"):
            AddressSpace().map(np.zeros((4, 4))[:, 1])
        with pytest.raises(VerbsError, match="gives no access to its bytes"):
            AddressSpace().map(np.zeros(2, dtype="M8[s]"))

    def test_needs_no_numpy(self) -> None:
        code = "import sys; sys.modules['numpy'] = None; import rnic.mem.space as s; s.AddressSpace().map(bytearray(1))"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class TestLifetime:
    def test_a_mapping_keeps_its_buffer_alive_and_unmapping_lets_go(self) -> None:
        space = AddressSpace()
        buffer = Bytes(b"abc")
        watch = weakref.ref(buffer)
        mapping = space.map(buffer)
        del buffer
        gc.collect()
        assert watch() is not None
        space.unmap(mapping)
        gc.collect()
        assert watch() is None

    def test_the_export_is_held_while_mapped(self) -> None:
        space = AddressSpace()
        buffer = bytearray(4)
        mapping = space.map(buffer)
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        space.unmap(mapping)
        buffer.extend(b"more")
        assert len(buffer) == 8

    def test_a_slice_of_a_transfer_under_way_outlives_the_mapping(self) -> None:
        space = AddressSpace()
        buffer = Bytes(b"abc")
        mapping = space.map(buffer)
        part = mapping.view[1:]
        space.unmap(mapping)
        del buffer
        gc.collect()
        assert part.tobytes() == b"bc"

    def test_unmapping_twice_or_elsewhere_is_ignored(self) -> None:
        space, other = AddressSpace(), AddressSpace()
        mapping = space.map(bytearray(4))
        other.unmap(mapping)
        assert mapping.view.nbytes == 4
        space.unmap(mapping)
        space.unmap(mapping)
        assert mapping.view.nbytes == 0


class TestPort:
    def test_is_a_dma_port(self) -> None:
        port: DmaPort = AddressSpace()
        assert port.views(0, 1) is None

    def test_read_and_write(self) -> None:
        space = AddressSpace()
        buffer = bytearray(b"0123456789")
        va = space.map(buffer).va
        out = bytearray(4)
        assert space.read(va + 3, out)
        assert out == b"3456"
        assert space.write(va + 6, b"abcd")
        assert buffer == b"012345abcd"

    def test_the_whole_range_and_nothing_but_it(self) -> None:
        space = AddressSpace()
        va = space.map(bytearray(10)).va
        assert space.views(va, 10) is not None
        assert space.views(va - 1, 2) is None
        assert space.views(va, 11) is None
        assert space.views(va + 10, 1) is None
        assert not space.read(va + 8, bytearray(3))
        assert not space.write(va + 8, b"abc")

    def test_nothing_after_unmap(self) -> None:
        space = AddressSpace()
        mapping = space.map(bytearray(10))
        space.unmap(mapping)
        assert space.views(mapping.va, 1) is None
        assert not space.read(mapping.va, bytearray(1))
        assert not space.write(mapping.va, b"x")

    def test_read_only_memory(self) -> None:
        space = AddressSpace()
        va = space.map(b"constant").va
        view = space.views(va, 8)
        assert view is not None
        assert view.readonly
        assert not space.write(va, b"x")

    def test_views_alias_the_memory(self) -> None:
        space = AddressSpace()
        buffer = bytearray(8)
        va = space.map(buffer).va
        view = space.views(va + 2, 4)
        assert view is not None
        view[:] = b"wxyz"
        assert buffer == b"\0\0wxyz\0\0"

    def test_overlapping_mappings_each_hold_the_bytes(self) -> None:
        space = AddressSpace()
        buffer = bytearray(100)
        whole = space.map(buffer)
        again = space.map(buffer)
        part = space.map(memoryview(buffer)[40:60])
        assert space.views(whole.va + 30, 20) is not None
        space.unmap(whole)
        assert space.views(again.va + 30, 20) is not None
        space.unmap(again)
        assert space.views(part.va - 10, 20) is None
        assert space.views(part.va, 20) is not None
        space.unmap(part)
        assert space.views(part.va, 1) is None

    def test_a_writable_mapping_wins_over_a_read_only_one_of_the_same_bytes(self) -> None:
        space = AddressSpace()
        buffer = bytearray(8)
        va = space.map(buffer).va
        space.map(memoryview(buffer).toreadonly())
        assert space.write(va, b"x")
        view = space.views(va, 8)
        assert view is not None
        assert not view.readonly


class TestSimulated:
    def test_same_order_same_addresses(self) -> None:
        def run() -> list[int]:
            space = SimAddressSpace()
            return [space.map(bytearray(size)).va for size in (1, 4096, 4097, 10)]

        assert run() == run() == [0x10_0000_0000, 0x10_0000_2000, 0x10_0000_4000, 0x10_0000_7000]

    def test_base(self) -> None:
        assert SimAddressSpace(base=0x1000).map(bytearray(1)).va == 0x1000

    def test_a_guard_page_lies_between_buffers(self) -> None:
        space = SimAddressSpace()
        first, second = space.map(bytearray(4096)), space.map(bytearray(4096))
        assert second.va - (first.va + first.length) == 4096

    def test_part_of_a_mapped_buffer_keeps_its_address(self) -> None:
        space = SimAddressSpace()
        buffer = bytearray(100)
        whole = space.map(buffer)
        part = space.map(memoryview(buffer)[10:30])
        assert part.va == whole.va + 10
        space.unmap(whole)
        assert space.write(part.va, b"x")
        assert buffer[10] == ord("x")

    def test_addresses_are_not_used_again(self) -> None:
        space = SimAddressSpace()
        first = space.map(bytearray(8))
        space.unmap(first)
        assert space.views(first.va, 1) is None
        assert space.map(bytearray(8)).va != first.va
        space.unmap(first)


def test_address_of_and_byte_view() -> None:
    buffer = bytearray(16)
    view = byte_view(memoryview(buffer).cast("I"))
    assert (view.format, view.nbytes) == ("B", 16)
    assert address_of(view[4:]) == address_by_ctypes(buffer) + 4
