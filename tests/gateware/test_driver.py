"""The driver, the cache model and the mapped backend, over the reference model: no simulator, so no cycles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rnic.gateware.cache import LINE_BYTES, NonCoherentCache, SparseMemory
from rnic.gateware.driver import EVERYTHING, Backend, Driver, EngineError, NetworkSetup, QueueLayout, Request
from rnic.gateware.mmio import REGISTER_WINDOW, MappedBackend, MappedMemory
from rnic.gateware.model import EngineModel, fragments
from rnic.gateware.params import EngineParams
from rnic.spec import engine_net_regs as net
from rnic.spec.engine_regs import DECAP_BASE, ENCAP_BASE, LOOKUP_BASE, OFFSETS

OPEN: dict[str, Any] = {"local": EVERYTHING, "remote": EVERYTHING}
SQ, REMOTE, PAYLOAD, CQ = 0x10000000, 0x20000000, 0x30000000, 0x40000000


def memory() -> SparseMemory:
    return SparseMemory((SQ, 1 << 12), (REMOTE, 1 << 17), (PAYLOAD, 1 << 17), (CQ, 1 << 12))


@pytest.fixture
def model() -> EngineModel:
    return EngineModel(EngineParams(), memory())


def started(backend: Backend, **kwargs: Any) -> Driver:
    driver = Driver(backend, QueueLayout(), **OPEN, **kwargs)
    driver.start()
    return driver


def test_the_documents_own_test(model: EngineModel) -> None:
    driver = started(model)
    for index in range(16):
        pattern = b"".join((0xDEAD0000 | word).to_bytes(4, "little") for word in range(1024))
        model.write(PAYLOAD, pattern)
        model.write(REMOTE, bytes(4096))
        model.flush(REMOTE, 4096)
        model.read(REMOTE, 4096)  # stale from now on
        assert driver.submit([Request(PAYLOAD, REMOTE, 4096, index)]) == 1
        (done,) = driver.wait()
        assert (done.index, done.status, done.bytes, done.requested, done.wqe_id) == (index % 4, 0, 4096, 4096, index)
        assert done.phase == 1 - (index // 4) % 2
        assert driver.read_back(REMOTE, 4096) == pattern
    assert model.cache.missing == []
    assert driver.get("SQ_HEAD") == driver.get("CQ_TAIL") == 0


def test_batches_fill_the_rings_and_no_more(model: EngineModel) -> None:
    driver = started(model)
    model.write(PAYLOAD, bytes(range(64)))
    requests = [Request(PAYLOAD, REMOTE + 64 * n, 64, n) for n in range(11)]
    assert [done.wqe_id for done in driver.run(requests)] == list(range(11))
    assert driver.read_back(REMOTE, 64 * 11) == bytes(range(64)) * 11
    with pytest.raises(EngineError, match=r"no free descriptor: HW_STATUS=0x\w{8} \(S_IDLE"):
        driver.submit(requests[:4])
    assert [done.wqe_id for done in driver.wait(3)] == [0, 1, 2]


def test_one_slot_of_each_ring_stays_empty(model: EngineModel) -> None:
    assert Driver(model, QueueLayout(sq_size=4, cq_size=9)).free_slots() == 3
    assert Driver(model, QueueLayout(sq_size=9, cq_size=4)).free_slots() == 3


def test_recover_begins_at_entry_0(model: EngineModel) -> None:
    driver = started(model)
    driver.run([Request(PAYLOAD, REMOTE, 4)])
    assert (driver.get("SQ_HEAD"), driver.get("CQ_TAIL")) == (1, 1)
    driver.recover()
    assert [driver.get(name) for name in ("SQ_HEAD", "SQ_TAIL", "CQ_HEAD", "CQ_TAIL")] == [0, 0, 0, 0]
    (done,) = driver.run([Request(PAYLOAD, REMOTE, 4)])
    assert (done.index, done.phase) == (0, 1)


def test_timeout_names_register_and_state(model: EngineModel) -> None:
    driver = Driver(model, poll_limit=5, **OPEN)
    driver.start()
    driver.put("CONTROL", 0)
    driver.submit([Request(PAYLOAD, REMOTE, 4)])
    with pytest.raises(
        EngineError, match=r"CQ_TAIL did not move in 5 polls, 0 of 1 .* HW_STATUS=.* SQ_HEAD=0, SQ_TAIL=1"
    ):
        driver.wait()
    assert driver.polls == 5
    driver.recover()
    assert (driver.get("SQ_TAIL"), driver.free_slots()) == (0, 3)
    driver.submit([Request(PAYLOAD, REMOTE, 4)])
    assert driver.wait()[0].status == 0


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (Request(PAYLOAD, REMOTE, 0), 3, "length 0"),
        (Request(1 << 33, REMOTE, 0x10), 1, "local window"),
        (Request(PAYLOAD, 1 << 33, 0x10), 2, "remote window"),
        (Request(0x50000000, REMOTE, 0x10), 1, "payload was read"),
        (Request(PAYLOAD, 0x50000000, 0x10), 2, "payload was written"),
    ],
)
def test_bad_descriptor_completes_with_a_status(model: EngineModel, request_: Request, status: int, text: str) -> None:
    driver = started(model)
    driver.submit([request_])
    (done,) = driver.wait()
    assert done.status == status
    assert text in str(done)


class Forgetful:
    """A backend that leaves out one cache call on one range."""

    def __init__(self, model: EngineModel, call: str, low: int, high: int) -> None:
        self.model, self.call, self.low, self.high = model, call, low, high
        self.read32, self.write32 = model.read32, model.write32
        self.read, self.write = model.read, model.write

    def _forgets(self, call: str, address: int) -> bool:
        return call == self.call and self.low <= address < self.high

    def flush(self, address: int, count: int) -> None:
        if not self._forgets("flush", address):
            self.model.flush(address, count)

    def invalidate(self, address: int, count: int) -> None:
        if not self._forgets("invalidate", address):
            self.model.invalidate(address, count)


@pytest.mark.parametrize(
    ("call", "base", "address"),
    [("flush", SQ, SQ), ("flush", PAYLOAD, PAYLOAD), ("invalidate", CQ, CQ), ("invalidate", REMOTE, REMOTE)],
)
def test_each_forgotten_cache_call_shows_and_is_named(model: EngineModel, call: str, base: int, address: int) -> None:
    backend = Forgetful(model, call, base, base + 0x1000)
    driver = Driver(backend, poll_limit=3, **OPEN)
    driver.start()
    data = bytes(range(1, 65))
    backend.write(PAYLOAD, data)
    model.read(REMOTE, 64), model.read(CQ, 64)  # the processor has seen both before
    wrong = False
    try:
        driver.submit([Request(PAYLOAD, REMOTE, 64, 7)])
        (done,) = driver.wait()
        wrong = (done.status, done.wqe_id, done.bytes) != (0, 7, 64)
        wrong |= driver.read_back(REMOTE, 64) != data
    except EngineError:
        wrong = True
    assert wrong
    first = model.cache.missing[0]
    assert (first.call, first.address, first.length) == (call, address, LINE_BYTES)
    assert f"missing {call}({address:#010x}, 64)" in str(first)


def test_cache_lines() -> None:
    ram = SparseMemory((0, 256))
    cache = NonCoherentCache(ram)
    cache.write(60, b"abcdefgh")
    assert (ram.read(60, 8), cache.read(60, 8)) == (bytes(8), b"abcdefgh")
    cache.flush(60, 1)
    assert ram.read(60, 8) == b"abcd" + bytes(4)
    cache.invalidate(70, 4)  # cuts a dirty line: it is written back, its neighbours' bytes are not lost
    assert ram.read(60, 8) == b"abcdefgh"
    cache.write(128, bytes(64))
    cache.invalidate(128, 64)
    assert cache.missing == []
    cache.write(130, b"x")
    cache.device.write(128, b"zz")
    assert [(each.call, each.address) for each in cache.missing] == [("flush", 128)]
    cache.flush(128, 64)
    assert cache.missing[-1].call == "invalidate"
    assert ram.read(128, 3) == b"\0\0x"  # the device's bytes are gone
    with pytest.raises(LookupError, match="no memory at 0x00000100"):
        cache.read(256, 1)


def test_device_read_of_an_unchanged_dirty_line_is_no_fault() -> None:
    cache = NonCoherentCache(SparseMemory((0, 128)))
    cache.write(0, b"a")
    cache.flush(0, 64)
    cache.write(1, b"b")
    assert cache.device.read(0, 1) == b"a"
    assert cache.missing == []
    assert cache.device.read(1, 1) == b"\0"
    assert [each.call for each in cache.missing] == ["flush"]


def test_fragments_follow_the_three_limits() -> None:
    params = EngineParams(block_size=256, boundary=1024)
    assert fragments(0, 600, params) == [(0, 256), (256, 256), (512, 88)]
    assert fragments(1000, 300, params) == [(0, 24), (24, 256), (280, 20)]
    rng = random.Random(1)
    for _ in range(200):
        address, length = rng.randrange(5000), rng.randrange(1, 5000)
        cut = fragments(address, length, params)
        assert sum(size for _offset, size in cut) == length
        for offset, size in cut:
            assert 0 < size <= 256
            assert (address + offset) // 1024 == (address + offset + size - 1) // 1024


def test_network_setup_reaches_every_register() -> None:
    writes: dict[int, int] = {}

    class Registers(EngineModel):
        def write32(self, offset: int, value: int) -> None:
            writes[offset] = value

    setup = NetworkSetup(0x0A000001, 0x0A000102, 0x020000000001, 0x020000000002, 1, 2, 3)
    Driver(Registers(EngineParams(), memory())).set_network(setup)
    slot = LOOKUP_BASE + 32 * (0x02 ^ 0x01)
    raw = b"".join(writes[slot + at].to_bytes(4, "little") for at in range(0, 32, 4))
    assert net.ENDPOINT_ENTRY.unpack(raw) == {
        "valid": 1,
        "dst_ip": setup.dst_ip,
        "dst_mac": setup.dst_mac,
        "src_mac": setup.src_mac,
    }
    assert writes[ENCAP_BASE + 0x0C] == setup.src_ip
    assert writes[ENCAP_BASE + 0x10] == setup.dst_ip
    assert [writes[ENCAP_BASE + at] for at in (0x14, 0x18, 0x00)] == [1, 2, 1]
    assert [writes[DECAP_BASE + at] for at in (0x2C, 0x30, 0x34, 0x00)] == [3, 1, 0x0200, 1]


def test_ring_sizes_are_checked(model: EngineModel) -> None:
    with pytest.raises(ValueError, match="sq_size=1: 2 to 65535 entries"):
        Driver(model, QueueLayout(sq_size=1))


def test_both_rings_are_programmed_before_the_engine_is_enabled() -> None:
    """001 3.7: base and size of each, and enabling last; again so after a reset."""
    writes: list[str] = []
    names = {offset: name for name, offset in OFFSETS.items()}

    class Registers(EngineModel):
        def write32(self, offset: int, value: int) -> None:
            writes.append(f"{names[offset]}={value:#x}" if offset == OFFSETS["CONTROL"] else names[offset])
            super().write32(offset, value)

    driver = started(Registers(EngineParams(), memory()))
    rings = {f"{ring}_{part}" for ring in ("SQ", "CQ") for part in ("BASE_LO", "BASE_HI", "SIZE")}
    controls = ["CONTROL=0x1"]
    for _ in range(2):
        assert rings <= set(writes[writes[0].startswith("CONTROL") : -1])
        assert writes[-1] == "CONTROL=0x1"
        assert [write for write in writes if write.startswith("CONTROL")] == controls
        writes.clear()
        driver.recover()
        controls = ["CONTROL=0x3", "CONTROL=0x1"]


def test_completion_for_nothing_posted_is_an_error(model: EngineModel) -> None:
    driver = started(model)
    driver.submit([Request(PAYLOAD, REMOTE, 4)])
    driver._posted.clear()
    with pytest.raises(EngineError, match="CQ entry 0 is for SQ entry 0, which is not posted"):
        driver.wait()
    model._values[OFFSETS["CQ_TAIL"]] = 9
    with pytest.raises(EngineError, match="CQ_TAIL=9 is not below CQ_SIZE=4"):
        driver.poll()


def test_reset_that_does_not_end_is_an_error(model: EngineModel) -> None:
    driver = started(model)

    class Stuck(Forgetful):
        pass

    backend = Stuck(model, "", 0, 0)
    backend.read32 = lambda offset: 2 if offset == 0 else model.read32(offset)
    driver.backend = backend
    with pytest.raises(EngineError, match=r"CONTROL\.soft_reset still reads 1 after 10000 polls"):
        driver.recover()


def test_mapped_backend_over_files(tmp_path: Path) -> None:
    registers, ram = tmp_path / "uio", tmp_path / "udmabuf"
    registers.write_bytes(bytes(REGISTER_WINDOW))
    ram.write_bytes(bytes(8192))
    to_device, to_cpu = tmp_path / "to_device", tmp_path / "to_cpu"
    buffer = MappedMemory(ram, 0x10000000, 8192, to_device, to_cpu)
    with MappedBackend(registers, [buffer]) as board:
        driver = Driver(board, QueueLayout(sq_base=0x10000000, cq_base=0x10001000), poll_limit=2)
        driver.start()
        driver.submit([Request(0x10000800, 0x10000C00, 16, 0x55)])
        assert to_device.read_text() == "1"
        with pytest.raises(EngineError, match="CQ_TAIL did not move"):
            driver.wait()
        with pytest.raises(LookupError, match="no mapped memory at 0x10001ff0 for 32 bytes"):
            board.read(0x10001FF0, 32)
        assert not to_cpu.exists()
        assert driver.read_back(0x10000000, 4) == b"\x55\0\0\0"
        assert to_cpu.read_text() == "1"
    stored = registers.read_bytes()
    assert int.from_bytes(stored[OFFSETS["SQ_TAIL"] :][:4], "little") == 1
    assert int.from_bytes(stored[OFFSETS["CQ_BASE_LO"] :][:4], "little") == 0x10001000
    assert ram.read_bytes()[:4] == b"\x55\0\0\0"
    with pytest.raises(FileNotFoundError):
        MappedBackend(tmp_path / "absent", [buffer])
