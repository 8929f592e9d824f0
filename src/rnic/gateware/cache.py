"""A processor's data cache that is not coherent with DMA, as between driver and memory on a Zynq.

The Cortex-A53's caches are not coherent with the programmable logic (000 5.7.7). In :class:`NonCoherentCache` a store
stays in its line until it is flushed, and a line that was read does not change until it is invalidated. A missing call
therefore results in stale data, as on the board. The model sees both sides and also records the missing call with its
address.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnic.gateware.axi_model import Memory

LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class MissingCall:
    """A missing ``flush`` or ``invalidate`` before an access to ``address``."""

    call: str
    address: int
    length: int
    why: str

    def __str__(self) -> str:
        return f"missing {self.call}({self.address:#010x}, {self.length}): {self.why}"


class _Line:
    """A line. ``dirty``: stored and not written back; ``overtaken``: the device has written the memory since."""

    __slots__ = ("data", "dirty", "overtaken")

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.dirty = False
        self.overtaken = False


class NonCoherentCache:
    """One memory as the processor (``read``, ``write``, ``flush``, ``invalidate``) and the device (``device``) see it.

    Lines are 64 bytes, write-back and never evicted, so a run with a missing call always fails. ``missing`` lists the
    missing calls in order, each line once until it is repaired.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.missing: list[MissingCall] = []
        self.device = DeviceView(self)
        self._lines: dict[int, _Line] = {}
        self._named: set[tuple[str, int]] = set()

    # ---- processor

    def read(self, address: int, count: int) -> bytes:
        """Return memory as the processor sees it; record a stale line, which the device has written since."""
        out = bytearray()
        for base in _bases(address, count):
            line = self._fill(base)
            if line.overtaken:
                self._name("invalidate", base, "the processor read a cached line that the device had since written")
            low, high = _within(base, address, count)
            out += line.data[low:high]
        return bytes(out)

    def write(self, address: int, data: bytes) -> None:
        """Store a value, which stays in the cache."""
        at = 0
        for base in _bases(address, len(data)):
            line = self._fill(base)
            low, high = _within(base, address, len(data))
            line.data[low:high] = data[at : at + high - low]
            line.dirty = True
            at += high - low

    def flush(self, address: int, count: int) -> None:
        """Write back and drop dirty lines, as ``Xil_DCacheFlushRange`` does."""
        for base in _bases(address, count):
            line = self._lines.pop(base, None)
            if line is None:
                continue
            if line.dirty:
                if line.overtaken:
                    self._name("invalidate", base, "a line written back covered what the device had written under it")
                self.memory.write(base, bytes(line.data))
            self._named -= {("flush", base), ("invalidate", base)}

    def invalidate(self, address: int, count: int) -> None:
        """Drop lines, as ``Xil_DCacheInvalidateRange`` does; write back a dirty line that the range covers partly."""
        for base in _bases(address, count):
            line = self._lines.get(base)
            if line is None:
                continue
            if line.dirty and (base < address or base + LINE_BYTES > address + count):
                self.flush(base, LINE_BYTES)
            self._lines.pop(base, None)
            self._named -= {("flush", base), ("invalidate", base)}

    def _fill(self, base: int) -> _Line:
        line = self._lines.get(base)
        if line is None:
            line = self._lines[base] = _Line(self.memory.read(base, LINE_BYTES))
        return line

    # ---- device

    def seen_by_device(self, address: int, count: int, write: bool) -> None:
        """Note that the device read or wrote memory."""
        for base in _bases(address, count):
            line = self._lines.get(base)
            if line is None:
                continue
            if write:
                if line.dirty:
                    self._name("flush", base, "the device wrote under a line that the processor has not written back")
                line.overtaken = True
            elif line.dirty:
                low, high = _within(base, address, count)
                if self.memory.read(base + low, high - low) != line.data[low:high]:
                    self._name(
                        "flush", base, "the device read memory while the processor's store was still in its cache"
                    )

    def _name(self, call: str, base: int, why: str) -> None:
        if (call, base) not in self._named:
            self._named.add((call, base))
            self.missing.append(MissingCall(call, base, LINE_BYTES, why))


class DeviceView:
    """Memory as DMA accesses it, bypassing the cache."""

    def __init__(self, cache: NonCoherentCache) -> None:
        self._cache = cache

    def read(self, address: int, count: int) -> bytes:
        """Return ``count`` bytes from memory."""
        self._cache.seen_by_device(address, count, write=False)
        return self._cache.memory.read(address, count)

    def write(self, address: int, data: bytes) -> None:
        """Write memory; cached lines of it become stale."""
        self._cache.seen_by_device(address, len(data), write=True)
        self._cache.memory.write(address, data)


def _bases(address: int, count: int) -> range:
    """Return the first addresses of the lines of a range."""
    return range(address & -LINE_BYTES, address + count, LINE_BYTES)


def _within(base: int, address: int, count: int) -> tuple[int, int]:
    """Return the part of the line at ``base`` within a range, as offsets into the line."""
    return max(address - base, 0), min(address + count - base, LINE_BYTES)


class SparseMemory:
    """Memory of named regions, each of ``(base, size)`` in bytes; an address outside raises ``LookupError``."""

    def __init__(self, *regions: tuple[int, int]) -> None:
        self._regions = [(base, bytearray(size)) for base, size in regions]

    def _find(self, address: int, count: int) -> tuple[bytearray, int]:
        for base, data in self._regions:
            if base <= address and address + count <= base + len(data):
                return data, address - base
        raise LookupError(f"no memory at {address:#010x} for {count} bytes")

    def read(self, address: int, count: int) -> bytes:
        """Return ``count`` bytes from ``address``."""
        data, at = self._find(address, count)
        return bytes(data[at : at + count])

    def write(self, address: int, data: bytes) -> None:
        """Store ``data`` at ``address``."""
        region, at = self._find(address, len(data))
        region[at : at + len(data)] = data
