"""The memory table: keys, the checks and their order (004 "MR Table", VTP codes of ``hardware.md`` 2b), windows."""

from __future__ import annotations

import errno
import random
import sys
from types import FrameType

import pytest

from rnic.mem import table as table_module
from rnic.mem.keys import key_index, key_tag, make_key
from rnic.mem.space import AddressSpace
from rnic.mem.table import NOTHING, REGION, WINDOW1, WINDOW2, MemoryEntry, MemoryTable
from rnic.spec.access import LOCAL_WRITE, MW_BIND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, ZERO_BASED
from rnic.spec.errors import VerbsError

PD = 5
ALL = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND
VA = 0x7F00_0000_1000

# hardware.md 2b: VTP status one-hot: PD 01, FLAGS 02, KEY 04, LENGTH 08, SUCCESS 10
PD_ERR, FLAGS_ERR, KEY_ERR, LENGTH_ERR, SUCCESS = 0x01, 0x02, 0x04, 0x08, 0x10


def make_table(max_entries: int = 64) -> MemoryTable:
    return MemoryTable(random.Random(1), max_entries)


def add_region(
    table: MemoryTable, access: int = ALL, start: int = VA, length: int = 100, pd: int = PD, base: int | None = None
) -> MemoryEntry:
    entry = MemoryEntry(
        table.alloc_key(), pd, access, start, length, view=memoryview(bytearray(range(length))), base=base
    )
    table.enable(entry)
    return entry


def add_window(table: MemoryTable, kind: str, pd: int = PD) -> MemoryEntry:
    window = MemoryEntry(table.alloc_key(kind), pd, 0, 0, 0, kind=kind)
    table.enable(window)
    return window


def other_tag(key: int) -> int:
    return make_key(key_index(key), (key_tag(key) + 1) & 0xFF)


def test_codes() -> None:
    assert (
        table_module.VTP_PD,
        table_module.VTP_FLAGS,
        table_module.VTP_KEY,
        table_module.VTP_LENGTH,
        table_module.VTP_SUCCESS,
    ) == (PD_ERR, FLAGS_ERR, KEY_ERR, LENGTH_ERR, SUCCESS)
    assert table_module.VTP_NAMES == {1: "PD", 2: "FLAGS", 4: "KEY", 8: "LENGTH", 16: "SUCCESS"}


class TestKeys:
    def test_indices_are_random_distinct_and_all_of_them(self) -> None:
        table = make_table(64)
        indices = [key_index(table.alloc_key()) for _ in range(64)]
        assert sorted(indices) == list(range(64))
        assert indices != list(range(64))
        with pytest.raises(VerbsError, match="all 64 memory keys are in use") as caught:
            table.alloc_key()
        assert caught.value.errno == errno.ENOMEM

    def test_same_seed_same_keys(self) -> None:
        first, second = MemoryTable(random.Random(7)), MemoryTable(random.Random(7))
        assert [first.alloc_key() for _ in range(9)] == [second.alloc_key() for _ in range(9)]

    def test_a_freed_index_comes_back_with_another_tag(self) -> None:
        table = make_table(1)
        before = table.alloc_key()
        for _ in range(2000):
            table.free_key(before)
            key = table.alloc_key()
            assert key != before
            assert key_index(key) == 0
            assert key != 0, "key 0 ends a receive list"
            before = key

    def test_index_0_never_has_tag_0(self) -> None:
        assert all(MemoryTable(random.Random(seed), 1).alloc_key() for seed in range(2000))

    def test_free_and_alloc_mixed(self) -> None:
        table = make_table(16)
        rng = random.Random(3)
        held: list[int] = []
        for _ in range(500):
            if held and (len(held) == 16 or rng.random() < 0.5):
                table.free_key(held.pop(rng.randrange(len(held))))
            else:
                held.append(table.alloc_key())
            indices = [key_index(key) for key in held]
            assert len(set(indices)) == len(indices)
            assert all(index < 16 for index in indices)

    def test_free_refuses_what_is_not_allocated(self) -> None:
        table = make_table()
        key = table.alloc_key()
        for bad in (other_tag(key), make_key(63, 1) if key_index(key) != 63 else make_key(62, 1)):
            with pytest.raises(VerbsError, match=f"key={bad:#010x} is not allocated") as caught:
                table.free_key(bad)
            assert caught.value.errno == errno.EINVAL
        table.free_key(key)
        with pytest.raises(VerbsError, match="is not allocated"):
            table.free_key(key)

    def test_free_disables_first(self) -> None:
        table = make_table()
        region = add_region(table)
        table.free_key(region.key)
        assert table.lookup(region.key) is None
        assert not region.valid

    @pytest.mark.parametrize("bad", [0, -1, (1 << 24) + 1])
    def test_max_entries(self, bad: int) -> None:
        with pytest.raises(VerbsError, match=f"max_entries={bad} is out of range"):
            make_table(bad)

    def test_unknown_kind(self) -> None:
        with pytest.raises(VerbsError, match="kind='page' is not a kind of memory"):
            make_table().alloc_key("page")


class TestEnable:
    def test_lookup_and_len(self) -> None:
        table = make_table()
        region = add_region(table)
        assert table.lookup(region.key) is region
        assert region.valid
        assert len(table) == 1
        assert table.lookup(other_tag(region.key)) is None

    def test_old_keys_fail_at_once(self) -> None:
        table = make_table()
        region = add_region(table)
        table.disable(region.key)
        assert not region.valid
        assert region.view is None
        assert region.slice(VA, 1) is None
        assert not region.read_into(VA, bytearray(1))
        assert not region.write_from(VA, b"x")
        assert table.check(region.key, PD, VA, 1, 0) is None
        assert table.reason == KEY_ERR
        assert len(table) == 0
        with pytest.raises(VerbsError, match="is not enabled") as caught:
            table.disable(region.key)
        assert caught.value.errno == errno.EINVAL

    def test_a_key_may_be_enabled_again(self) -> None:
        table = make_table()
        region = add_region(table)
        table.disable(region.key)
        table.enable(MemoryEntry(region.key, PD, 0, VA, 8))
        assert table.check(region.key, PD, VA, 8, 0) is not None

    def refused(self, table: MemoryTable, entry: MemoryEntry, code: int, message: str) -> None:
        before = len(table)
        with pytest.raises(VerbsError, match=message) as caught:
            table.enable(entry)
        assert caught.value.errno == code
        assert "\n" not in str(caught.value)
        assert len(table) == before
        assert not entry.valid

    def test_another_region_under_the_same_key_is_told_apart(self) -> None:
        """What began under the first must not go on in the second."""
        table = make_table()
        first = add_region(table)
        key, before = first.key, first.binding
        table.disable(key)
        second = MemoryEntry(key, PD, ALL, VA, 100, view=memoryview(bytearray(100)))
        table.enable(second)
        assert second.binding != before
        table.disable(key)
        first.view = memoryview(bytearray(100))
        table.enable(first)
        assert first.binding not in (before, second.binding - 1)

    def test_refuses_keys_that_nobody_allocated(self) -> None:
        table = make_table()
        key = table.alloc_key(REGION)
        self.refused(table, MemoryEntry(other_tag(key), PD, 0, VA, 1), errno.EINVAL, "not allocated for a region")
        entry = MemoryEntry(key, PD, 0, VA, 1, kind=WINDOW1)
        self.refused(table, entry, errno.EINVAL, "not allocated for a window1")
        table.free_key(key)
        self.refused(table, MemoryEntry(key, PD, 0, VA, 1), errno.EINVAL, "not allocated")

    def test_refuses_a_key_in_use(self) -> None:
        table = make_table()
        region = add_region(table)
        self.refused(table, MemoryEntry(region.key, PD, 0, VA, 1), errno.EBUSY, "is enabled already")
        window = add_window(table, WINDOW1)
        entry = MemoryEntry(window.key, PD, 0, 0, 0, kind=WINDOW1)
        self.refused(table, entry, errno.EBUSY, "is enabled already")

    @pytest.mark.parametrize("access", [REMOTE_WRITE, REMOTE_ATOMIC, REMOTE_WRITE | REMOTE_READ])
    def test_refuses_remote_write_without_local_write(self, access: int) -> None:
        table = make_table()
        entry = MemoryEntry(table.alloc_key(), PD, access, VA, 1)
        self.refused(table, entry, errno.EINVAL, f"access={access:#x} has remote write or atomics")

    def test_refuses_write_rights_over_read_only_memory(self) -> None:
        table = make_table()
        entry = MemoryEntry(table.alloc_key(), PD, LOCAL_WRITE, VA, 3, view=memoryview(b"abc"))
        self.refused(table, entry, errno.EACCES, "the memory is read-only")

    def test_read_only_memory_without_write_rights(self) -> None:
        table = make_table()
        table.enable(MemoryEntry(table.alloc_key(), PD, REMOTE_READ, VA, 3, view=memoryview(b"abc")))
        assert len(table) == 1

    def test_refuses_no_bytes(self) -> None:
        table = make_table()
        self.refused(table, MemoryEntry(table.alloc_key(), PD, 0, VA, 0), errno.EINVAL, "length=0 is not a length")


class TestCheck:
    @pytest.mark.parametrize("rights", [0, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC])
    def test_passes(self, rights: int) -> None:
        table = make_table()
        region = add_region(table)
        assert table.check(region.key, PD, VA, 100, rights) is region
        assert table.reason == SUCCESS

    @pytest.mark.parametrize(
        ("va", "length", "fits"),
        [(VA, 100, True), (VA + 99, 1, True), (VA, 101, False), (VA + 100, 1, False), (VA - 1, 2, False),
         (VA - 1, 1, False), (0, 1, False), ((1 << 64) - 1, 1, False), (VA, 1 << 31, False)],
    )  # fmt: skip
    def test_range(self, va: int, length: int, fits: bool) -> None:
        table = make_table()
        region = add_region(table)
        assert (table.check(region.key, PD, va, length, 0) is region) == fits
        assert table.reason == (SUCCESS if fits else LENGTH_ERR)

    @pytest.mark.parametrize("missing", [LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC])
    def test_rights(self, missing: int) -> None:
        table = make_table()
        granted = ALL & ~missing if missing != LOCAL_WRITE else REMOTE_READ
        region = add_region(table, granted)
        assert table.check(region.key, PD, VA, 1, missing) is None
        assert table.reason == FLAGS_ERR
        assert table.check(region.key, PD, VA, 1, missing | REMOTE_READ) is None

    def test_order_is_key_pd_rights_range(self) -> None:
        """Everything is wrong at first; then one thing after the other is put right, in 004's order."""
        table = make_table()
        region = add_region(table, REMOTE_READ)
        wrong, right = other_tag(region.key), region.key
        steps = [
            (wrong, PD + 1, VA + 100, REMOTE_WRITE, KEY_ERR),
            (right, PD + 1, VA + 100, REMOTE_WRITE, PD_ERR),
            (right, PD, VA + 100, REMOTE_WRITE, FLAGS_ERR),
            (right, PD, VA + 100, REMOTE_READ, LENGTH_ERR),
            (right, PD, VA, REMOTE_READ, SUCCESS),
        ]
        for key, pd, va, rights, reason in steps:
            entry = table.check(key, pd, va, 1, rights)
            assert table.reason == reason
            assert (entry is region) == (reason == SUCCESS)

    def test_zero_bytes_need_no_key(self) -> None:
        table = make_table()
        entry = table.check(0xDEADBEEF, 99, VA, 0, REMOTE_WRITE)
        assert entry is NOTHING
        assert entry is not None
        assert entry.valid
        assert table.reason == SUCCESS
        view = entry.slice(VA, 0)
        assert view is not None
        assert view.nbytes == 0
        assert entry.read_into(VA, bytearray())
        assert entry.write_from(VA, b"")

    def test_zero_based_region(self) -> None:
        table = make_table()
        region = add_region(table, ALL | ZERO_BASED, start=0, base=VA)
        assert table.check(region.key, PD, 0, 100, 0) is region
        assert table.check(region.key, PD, VA, 1, 0) is None
        view = region.slice(3, 2)
        assert view is not None
        assert view.tobytes() == b"\x03\x04"


class Port:
    """A DMA port without views, as into another process."""

    def __init__(self, va: int, memory: bytearray) -> None:
        self.va = va
        self.memory = memory

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        at = va - self.va
        buf[:] = self.memory[at : at + len(buf)]
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        at = va - self.va
        self.memory[at : at + len(data)] = data
        return True

    def views(self, va: int, length: int, /) -> memoryview | None:
        return None


class TestAccess:
    def test_through_a_view(self) -> None:
        buffer = bytearray(b"0123456789")
        space = AddressSpace()
        mapping = space.map(buffer)
        table = make_table()
        entry = MemoryEntry(table.alloc_key(), PD, ALL, mapping.va, 10, view=space.views(mapping.va, 10), port=space)
        table.enable(entry)
        out = bytearray(3)
        assert entry.read_into(mapping.va + 2, out)
        assert out == b"234"
        assert entry.write_from(mapping.va + 8, b"xy")
        assert buffer == b"01234567xy"

    @pytest.mark.parametrize(("start", "base"), [(VA, None), (0, VA)], ids=["absolute", "zero-based"])
    def test_through_a_port(self, start: int, base: int | None) -> None:
        memory = bytearray(b"0123456789")
        entry = MemoryEntry(1, PD, ALL, start, 10, port=Port(VA, memory), base=base)
        assert entry.slice(start, 1) is None
        out = bytearray(3)
        assert entry.read_into(start + 2, out)
        assert out == b"234"
        assert entry.write_from(start + 8, b"xy")
        assert memory == b"01234567xy"

    def test_through_nothing(self) -> None:
        entry = MemoryEntry(1, PD, ALL, VA, 10)
        assert not entry.read_into(VA, bytearray(1))
        assert not entry.write_from(VA, b"x")


class TestWindows:
    def bind(self, table: MemoryTable, window: MemoryEntry, region: MemoryEntry, **change: int) -> bool:
        arguments = {
            "handle": window.index,
            "new_key": other_tag(window.key),
            "lkey": region.key,
            "pd": PD,
            "qpn": 17,
            "start": VA + 10,
            "length": 20,
            "access": REMOTE_READ | REMOTE_WRITE,
        }
        return table.bind_window(**(arguments | change))

    @pytest.mark.parametrize("kind", [WINDOW1, WINDOW2])
    def test_bound_window_opens_its_part(self, kind: str) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, kind)
        old = window.key
        assert not window.valid
        assert table.window(old) is window
        assert table.lookup(old) is None
        assert self.bind(table, window, region)
        assert table.lookup(old) is None
        assert table.window(old) is None
        assert window.key == other_tag(old)
        assert (window.parent, region.bound, window.valid) == (region, 1, True)
        assert table.check(window.key, PD, VA + 10, 20, REMOTE_READ, 17) is window
        view = window.slice(VA + 12, 2)
        assert view is not None
        assert view.tobytes() == b"\x0c\x0d"
        for va, length in ((VA + 9, 1), (VA + 10, 21), (VA + 30, 1)):
            assert table.check(window.key, PD, va, length, REMOTE_READ, 17) is None
            assert table.reason == LENGTH_ERR
        assert table.check(window.key, PD, VA + 10, 1, REMOTE_ATOMIC, 17) is None
        assert table.reason == FLAGS_ERR
        assert table.check(window.key, PD + 1, VA + 10, 1, REMOTE_READ, 17) is None
        assert table.reason == PD_ERR

    def test_type_2_belongs_to_one_queue_pair(self) -> None:
        table = make_table()
        region, one, two = add_region(table), add_window(table, WINDOW1), add_window(table, WINDOW2)
        assert self.bind(table, one, region)
        assert self.bind(table, two, region)
        assert table.check(one.key, PD, VA + 10, 1, REMOTE_READ, 18) is one
        assert table.check(two.key, PD, VA + 10, 1, REMOTE_READ, 18) is None
        assert table.reason == PD_ERR

    def test_a_window_is_no_local_key(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW1)
        self.bind(table, window, region)
        assert table.check(window.key, PD, VA + 10, 1, 0, 17, local=True) is None
        assert table.reason == KEY_ERR
        assert table.check(region.key, PD, VA + 10, 1, 0, 17, local=True) is region
        assert not self.bind(table, add_window(table, WINDOW1), window)

    def test_zero_based_window(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW2)
        assert self.bind(table, window, region, access=REMOTE_READ | ZERO_BASED)
        assert (window.start, window.base) == (0, VA + 10)
        assert table.check(window.key, PD, 0, 20, REMOTE_READ, 17) is window
        view = window.slice(2, 1)
        assert view is not None
        assert view.tobytes() == b"\x0c"

    def test_through_a_port(self) -> None:
        table = make_table()
        memory = bytearray(range(100))
        region = MemoryEntry(table.alloc_key(), PD, ALL, VA, 100, port=Port(VA, memory))
        table.enable(region)
        window = add_window(table, WINDOW2)
        assert self.bind(table, window, region, access=REMOTE_READ | ZERO_BASED)
        out = bytearray(2)
        assert window.read_into(1, out)
        assert out == b"\x0b\x0c"

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param({"pd": PD + 1}, id="pd of the request"),
            pytest.param({"lkey": 0x12345678}, id="unknown region"),
            pytest.param({"new_key": 0xFFFF00FF}, id="index changed"),
            pytest.param({"handle": 0x345678}, id="unknown window"),
            pytest.param({"start": VA - 1}, id="before the region"),
            pytest.param({"start": VA + 90}, id="past the region"),
            pytest.param({"length": 101}, id="longer than the region"),
        ],
    )
    @pytest.mark.parametrize("kind", [WINDOW1, WINDOW2])
    def test_refused_binds_change_nothing(self, kind: str, change: dict[str, int]) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, kind)
        key = window.key
        assert not self.bind(table, window, region, **change)
        assert (window.key, window.valid, region.bound) == (key, False, 0)

    def test_the_region_must_allow_it(self) -> None:
        table = make_table()
        window = add_window(table, WINDOW1)
        assert not self.bind(table, window, add_region(table, ALL & ~MW_BIND))
        assert not self.bind(table, window, add_region(table, ALL | ZERO_BASED))
        assert not self.bind(table, window, add_region(table, pd=PD + 1))
        readable = add_region(table, MW_BIND | REMOTE_READ)
        assert not self.bind(table, window, readable, access=REMOTE_WRITE)
        assert not self.bind(table, window, readable, access=REMOTE_ATOMIC)
        assert self.bind(table, window, readable, access=REMOTE_READ)

    def test_a_window_may_grant_what_its_region_does_not(self) -> None:
        """IBA 10.6.6: the region needs local write and bind, not the remote rights themselves."""
        table = make_table()
        region, window = add_region(table, LOCAL_WRITE | MW_BIND), add_window(table, WINDOW1)
        assert self.bind(table, window, region, access=REMOTE_WRITE)
        assert table.check(window.key, PD, VA + 10, 1, REMOTE_WRITE) is window

    def test_type_1_rebinds_and_unbinds(self) -> None:
        table = make_table()
        first, second, window = add_region(table), add_region(table, start=2 * VA), add_window(table, WINDOW1)
        assert self.bind(table, window, first)
        before = window.key
        assert self.bind(table, window, second, start=2 * VA)
        assert (first.bound, second.bound, window.parent) == (0, 1, second)
        assert table.lookup(before) is None
        assert self.bind(table, window, second, length=0)
        assert (second.bound, window.parent, window.valid) == (0, None, False)
        assert table.lookup(window.key) is None
        assert not self.bind(table, window, first, access=REMOTE_READ | ZERO_BASED)

    def test_type_1_unbinds_without_a_region(self) -> None:
        table = make_table()
        window = add_window(table, WINDOW1)
        key = window.key
        assert table.bind_window(window.index, other_tag(key), 0, PD, 17, 0, 0, 0)
        assert window.key == other_tag(key)

    def test_type_2_rules(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW2)
        assert not self.bind(table, window, region, length=0)
        assert not self.bind(table, window, region, new_key=window.key)
        assert self.bind(table, window, region)
        assert not self.bind(table, window, region), "it must be unbound first"
        assert region.bound == 1

    def test_invalidate(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW2)
        assert self.bind(table, window, region)
        key = window.key
        assert not table.invalidate(key, PD + 1, 17)
        assert not table.invalidate(key, PD, 18)
        assert not table.invalidate(other_tag(key), PD, 17)
        assert table.lookup(key) is window
        assert table.invalidate(key, PD, 17)
        assert not table.invalidate(key, PD, 17)
        assert table.check(key, PD, VA + 10, 1, REMOTE_READ, 17) is None
        assert table.reason == KEY_ERR
        assert (region.bound, window.valid, window.view) == (0, False, None)
        assert self.bind(table, window, region), "an invalidated window may be bound again"

    def test_only_type_2_windows_are_invalidated(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW1)
        assert self.bind(table, window, region)
        assert not table.invalidate(window.key, PD, 17)
        assert not table.invalidate(region.key, PD, 17)
        assert len(table) == 2

    def test_a_region_with_windows_is_busy(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW2)
        assert self.bind(table, window, region)
        for refuse in (table.disable, table.free_key):
            with pytest.raises(VerbsError, match="has 1 memory windows bound") as caught:
                refuse(region.key)
            assert caught.value.errno == errno.EBUSY
        assert table.check(region.key, PD, VA, 1, 0) is region
        table.free_key(window.key)
        table.free_key(region.key)
        assert len(table) == 0

    def test_disabled_window_may_be_enabled_again(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW2)
        self.bind(table, window, region)
        table.disable(window.key)
        assert region.bound == 0
        assert table.window(window.key) is None
        table.enable(window)
        assert self.bind(table, window, region)

    def test_free_of_a_rebound_window_takes_its_new_key(self) -> None:
        table = make_table()
        region, window = add_region(table), add_window(table, WINDOW2)
        old = window.key
        self.bind(table, window, region)
        with pytest.raises(VerbsError, match="is not allocated"):
            table.free_key(old)
        table.free_key(window.key)
        assert table.window(window.key) is None


class CountingKey(int):
    """A key that counts how often the table hashes and compares it."""

    count = 0

    def __hash__(self) -> int:
        CountingKey.count += 1
        return int(self)

    def __eq__(self, other: object) -> bool:
        CountingKey.count += 1
        return int(self) == other


def work_of_check(table: MemoryTable, key: int) -> tuple[int, int]:
    """Bytecodes run by one check, and hashes and comparisons of the key."""
    opcodes = 0
    check_file = MemoryTable.check.__code__.co_filename

    def trace(frame: FrameType, event: str, _argument: object) -> object:
        nonlocal opcodes
        if frame.f_code.co_filename not in (check_file, __file__):
            return None  # whatever the garbage collector runs meanwhile
        frame.f_trace_opcodes = True
        opcodes += event == "opcode"
        return trace

    counting = CountingKey(key)
    CountingKey.count = 0
    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        table.check(counting, PD, VA, 1, 0)
    finally:
        sys.settrace(before)
    return opcodes, CountingKey.count


@pytest.mark.slow
def test_a_check_costs_the_same_with_one_region_and_with_32k() -> None:
    table = MemoryTable(random.Random(2))
    first = table.alloc_key()
    table.enable(MemoryEntry(first, PD, 0, VA, 100))
    for _ in range(64):  # CPython specializes code that runs often, which changes how many bytecodes it counts
        work_of_check(table, first)
    alone = work_of_check(table, first)
    keys = [table.alloc_key() for _ in range(32767)]
    for key in keys:
        table.enable(MemoryEntry(key, PD, 0, VA, 100))
    assert len(table) == 32768
    assert work_of_check(table, first) == alone
    assert {work_of_check(table, key) for key in random.Random(3).sample(keys, 100)} == {alone}
    assert alone[1] == 2, "one hash, one comparison"


WHY_CASES = (
    # key, protection domain, address, length, rights, queue pair, local: the code of check, the reason and its line
    ("own", 5, VA + 8, 8, LOCAL_WRITE, 0, True, SUCCESS, "MEMORY_GONE", "is not mapped"),
    ("unknown", 5, VA, 8, 0, 0, False, KEY_ERR, "KEY_UNKNOWN", "R_Key 0x"),
    ("unknown", 5, VA, 8, 0, 0, True, KEY_ERR, "KEY_UNKNOWN", "L_Key 0x"),
    ("gone", 5, VA, 8, 0, 0, False, KEY_ERR, "KEY_GONE", "deregistered"),
    ("own", 6, VA, 8, 0, 0, False, PD_ERR, "KEY_DOMAIN", "another protection domain"),
    ("own", 5, VA, 8, REMOTE_WRITE, 0, False, FLAGS_ERR, "KEY_RIGHTS", "lacks REMOTE_WRITE"),
    ("own", 5, VA + 90, 26, 0, 0, False, LENGTH_ERR, "KEY_BEYOND", "by 16 bytes"),
    ("own", 5, VA - 4, 8, 0, 0, False, LENGTH_ERR, "KEY_BEFORE", "by 4 bytes"),
)


@pytest.mark.parametrize(("key", "pd", "va", "length", "rights", "qpn", "local", "code", "name", "says"), WHY_CASES)
def test_a_reason_is_that_of_the_check(
    key: str, pd: int, va: int, length: int, rights: int, qpn: int, local: bool, code: int, name: str, says: str
) -> None:
    table = make_table()
    own, gone = (add_region(table, LOCAL_WRITE).key for _ in range(2))
    table.disable(gone)
    number = {"own": own, "gone": gone, "unknown": other_tag(own)}[key]
    found = table.check(number, pd, va, length, rights, qpn, local)
    assert (found is not None, table.reason) == (code == SUCCESS, code)
    reason, values = table.why_refused(number, pd, va, length, rights, qpn, local)
    assert reason.name == name
    assert says in reason(**values)
