"""Ordered words: the compiled twin and the plain one answer alike, and refuse alike."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rnic.mem import order


def twins() -> list[SimpleNamespace]:
    plain = SimpleNamespace(store32=order.plain_store32, load32=order.plain_load32, fence=order.plain_fence)
    compiled = SimpleNamespace(store32=order.store32, load32=order.load32, fence=order.fence)
    return [plain, compiled] if order.COMPILED else [plain]


@pytest.fixture(params=twins(), ids=["plain", "compiled"][: len(twins())])
def twin(request: pytest.FixtureRequest) -> SimpleNamespace:
    module: SimpleNamespace = request.param
    return module


def test_stores_the_low_32_bits_and_nothing_else(twin: SimpleNamespace) -> None:
    buf = memoryview(bytearray(b"\xee" * 16))
    twin.store32(buf, 4, 0x5_1234_5678)
    twin.store32(buf, 8, -1)
    assert buf[4:8].cast("I")[0] == 0x1234_5678
    assert buf[8:12].cast("I")[0] == 0xFFFF_FFFF
    assert bytes(buf[:4]) == bytes(buf[12:]) == b"\xee" * 4
    assert twin.load32(buf, 4) == 0x1234_5678


@pytest.mark.parametrize("offset", [-4, -1, 1, 2, 13, 14, 16, 1 << 40])
def test_refuses_what_is_no_word_of_the_buffer(twin: SimpleNamespace, offset: int) -> None:
    buf = memoryview(bytearray(16))
    calls: list[Callable[[], object]] = [lambda: twin.load32(buf, offset), lambda: twin.store32(buf, offset, 1)]
    for call in calls:
        with pytest.raises(ValueError, match="a multiple of 4 within 16 bytes"):
            call()
    assert bytes(buf) == bytes(16)


def test_a_buffer_shorter_than_a_word_has_none(twin: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="within 3 bytes"):
        twin.load32(memoryview(bytearray(3)), 0)


def test_read_only_memory_is_not_stored_to(twin: SimpleNamespace) -> None:
    with pytest.raises((TypeError, BufferError)):
        twin.store32(memoryview(bytes(8)), 0, 1)


def test_a_fence_takes_nothing_and_gives_nothing(twin: SimpleNamespace) -> None:
    assert twin.fence() is None


def test_a_word_holds_the_old_value_until_it_holds_the_new_one() -> None:
    """A packed store clears its bytes before it asks for the value: another process would see what nobody stored."""
    buf = memoryview(bytearray(b"\xee" * 8))
    seen: list[bytes] = []

    class Looking:
        def __and__(self, mask: int) -> Looking:
            return self

        def __index__(self) -> int:
            seen.append(bytes(buf))
            return 5

    order.plain_store32(buf, 4, Looking())  # type: ignore[arg-type]
    assert set(seen) == {b"\xee" * 8}
    assert buf[4:].cast("I")[0] == 5


_STORES = """
import mmap, sys, time
from rnic.mem import order
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
store32, load32 = (order.plain_store32, order.plain_load32) if sys.argv[2] == "plain" else (order.store32, order.load32)
end = time.monotonic() + 20
store32(shared, 128, 1)
while not load32(shared, 0) and time.monotonic() < end:
    store32(shared, 64, 0x22222222)
    store32(shared, 64, 0x11111111)
"""


@pytest.mark.slow
def test_another_process_sees_no_value_that_was_never_stored(twin: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        twin.store32(shared, 64, 0x1111_1111)
        which = "plain" if twin.store32 is order.plain_store32 else "compiled"
        with subprocess.Popen([sys.executable, "-c", _STORES, str(path), which]) as child:
            end = time.monotonic() + 20
            while not twin.load32(shared, 128) and child.poll() is None and time.monotonic() < end:
                time.sleep(0.001)
            seen = {twin.load32(shared, 64) for _ in range(200_000)}
            twin.store32(shared, 0, 1)
            assert child.wait(20) == 0
    assert seen <= {0x1111_1111, 0x2222_2222}
