"""A processor's data cache that DMA does not see: what lies between the driver and memory on a Zynq.

The Cortex-A53's caches are not coherent with the programmable logic (000 5.7.7). :class:`NonCoherentCache` behaves so:
a store stays in its line until it is flushed, a line that was read stays as it was until it is invalidated. A forgotten
call therefore shows as stale data, as on the board; and the cache, which sees both sides here, also writes down which
call was missing and for which address.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnic.gateware.axi_model import Memory

LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class MissingCall:
    """A ``flush`` or ``invalidate`` that should have come before something happened at ``address``."""

    call: str
    address: int
    length: int
    why: str

    def __str__(self) -> str:
        return f"missing {self.call}({self.address:#010x}, {self.length}): {self.why}"


class _Line:
    """One line. ``dirty``: stored and not written back; ``overtaken``: the device has written memory under it."""

    __slots__ = ("data", "dirty", "overtaken")

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.dirty = False
        self.overtaken = False


class NonCoherentCache:
    """One memory as the processor (``read``, ``write``, ``flush``, ``invalidate``) and the device (``device``) see it.

    Lines are 64 bytes, write-back and never evicted, so a run with a missing call goes wrong each time. ``missing``
    holds what was forgotten, in order of happening, each line named once until it is mended.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.missing: list[MissingCall] = []
        self.device = DeviceView(self)
        self._lines: dict[int, _Line] = {}
        self._named: set[tuple[str, int]] = set()

    # ---- processor

    def read(self, address: int, count: int) -> bytes:
        """What the processor sees. A line that the device has overtaken is stale, and named."""
        out = bytearray()
        for base in _bases(address, count):
            line = self._fill(base)
            if line.overtaken:
                self._name("invalidate", base, "the processor read a cached line that the device had since written")
            low, high = _within(base, address, count)
            out += line.data[low:high]
        return bytes(out)

    def write(self, address: int, data: bytes) -> None:
        """A store: it stays in the cache."""
        at = 0
        for base in _bases(address, len(data)):
            line = self._fill(base)
            low, high = _within(base, address, len(data))
            line.data[low:high] = data[at : at + high - low]
            line.dirty = True
            at += high - low

    def flush(self, address: int, count: int) -> None:
        """Write dirty lines back and let them go, as ``Xil_DCacheFlushRange`` does."""
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
        """Let lines go, as ``Xil_DCacheInvalidateRange`` does; a dirty line that the range cuts is written back."""
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
        """The device read or wrote memory."""
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
    """Memory as DMA reaches it: past the cache."""

    def __init__(self, cache: NonCoherentCache) -> None:
        self._cache = cache

    def read(self, address: int, count: int) -> bytes:
        """``count`` bytes from memory."""
        self._cache.seen_by_device(address, count, write=False)
        return self._cache.memory.read(address, count)

    def write(self, address: int, data: bytes) -> None:
        """Into memory; a line that the cache holds is stale from now on."""
        self._cache.seen_by_device(address, len(data), write=True)
        self._cache.memory.write(address, data)


def _bases(address: int, count: int) -> range:
    """First addresses of the lines that a range touches."""
    return range(address & -LINE_BYTES, address + count, LINE_BYTES)


def _within(base: int, address: int, count: int) -> tuple[int, int]:
    """The part of the line at ``base`` that a range touches, as offsets into the line."""
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
        """``count`` bytes from ``address``."""
        data, at = self._find(address, count)
        return bytes(data[at : at + count])

    def write(self, address: int, data: bytes) -> None:
        """Store ``data`` at ``address``."""
        region, at = self._find(address, len(data))
        region[at : at + len(data)] = data
