"""``mr_table`` beside the software's :class:`~rnic.mem.table.MemoryTable`: what a key opens, and where it leads."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from roce_bench import carry

from rnic.gateware.roce.mr_table import FIELDS, PAGE_SHIFT, RIGHTS, MrTable, MrTableParams
from rnic.mem.keys import key_index
from rnic.mem.mpt import MPT_ENTRY, flags_from_access
from rnic.mem.table import VTP_NAMES, VTP_SUCCESS, MemoryEntry, MemoryTable
from rnic.spec.access import LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PARAMS = MrTableParams(log_entries=6, log_pages=10)
MPT_FLAGS = struct.Struct(">I")
ACCESS = {"local_write": LOCAL_WRITE, "remote_write": REMOTE_WRITE, "remote_read": REMOTE_READ, "atomic": REMOTE_ATOMIC}
SIZES = (0, 0, 1, 9, 18)
"""Of pages, as an entry has them: 4 KiB to 1 GiB."""


class Regions:
    """The same regions in the software's table and, as entries and pages, for the gateware's."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng = rng
        self.memory = MemoryTable(rng, max_entries=1 << PARAMS.log_entries)
        self.regions: list[dict[str, int]] = []
        self.entries: list[dict[str, Any]] = []
        self.pages: list[dict[str, int]] = []
        for _ in range(count):
            self._add()
        gone = self.regions[0]
        self.memory.disable(gone["key"])
        self.entries.append({"index": key_index(gone["key"]), "valid": 0, "entry": {}})

    def _add(self) -> None:
        rng, key = self.rng, self.memory.alloc_key()
        size = rng.choice(SIZES)
        page = 1 << PAGE_SHIFT + size
        length = rng.randrange(1, 6 * page)
        start = rng.getrandbits(63) if rng.random() < 0.8 else (1 << 64) - 1 - length
        address = start if rng.random() < 0.7 else rng.getrandbits(63)  # zero-based, or elsewhere in its process
        rights = LOCAL_WRITE | rng.choice((0, REMOTE_READ, REMOTE_WRITE, REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC))
        values = {
            "key": key, "pd": rng.choice((1, 2)), "start": start, "length": length, "page_size": size,
            "mtt_seg": len(self.pages), "address": address,
        }  # fmt: skip
        entry = bytearray(MPT_ENTRY.pack(values))
        MPT_FLAGS.pack_into(entry, 0, flags_from_access(rights))
        fields = MPT_ENTRY.unpack(entry)
        for _ in range((address % page + length + page - 1) // page):
            place = rng.getrandbits(63) >> PAGE_SHIFT + size << size
            self.pages.append({"index": len(self.pages), "page": place})
        self.memory.enable(MemoryEntry(key, values["pd"], rights, start, length, view=memoryview(bytearray(0))))
        self.regions.append(fields)
        self.entries.append({"index": key_index(key), "valid": 1, "entry": {name: fields[name] for name in FIELDS}})

    def question(self) -> dict[str, int]:
        """Right, or wrong in one thing, around the ends of a region."""
        rng = self.rng
        region = rng.choice(self.regions)
        start, length = region["start"], region["length"]
        offset = rng.choice((0, length - 1, rng.randrange(length)))
        count = rng.choice((1, length - offset, rng.randrange(length - offset + 1)))
        ask = {"key": region["key"], "pd": region["pd"], "va": start + offset, "length": min(count, 0xFFFF_FFFF)}
        wanted = [name for name in RIGHTS if region[name]]
        ask |= {name: int(name in wanted[:1]) for name in RIGHTS}
        wrong = rng.randrange(10)
        if wrong == 0:
            ask["key"] ^= 1 << rng.randrange(32)
        elif wrong == 1:
            ask["pd"] ^= 3
        elif wrong == 2:
            ask[rng.choice(RIGHTS)] = 1
        elif wrong == 3:
            ask["va"] = (start - 1) % (1 << 64)
        elif wrong == 4:
            ask["length"] = min(length - offset + 1, 0xFFFF_FFFF)
        elif wrong == 5:
            ask |= {"length": 0, "key": rng.getrandbits(32)}
        return ask

    def answer(self, ask: dict[str, int]) -> dict[str, int]:
        """The software's reason, and where a page list leads."""
        rights = sum(bit for name, bit in ACCESS.items() if ask[name])
        self.memory.check(ask["key"], ask["pd"], ask["va"], ask["length"], rights)
        out = {"reason": self.memory.reason}
        if out["reason"] == VTP_SUCCESS and ask["length"]:
            region = next(each for each in self.regions if each["key"] == ask["key"])
            page = 1 << PAGE_SHIFT + region["page_size"]
            way = ask["va"] - region["start"] + region["address"] % page
            at = self.pages[region["mtt_seg"] + way // page]["page"] << PAGE_SHIFT
            out |= {"address": at + way % page, "left": page - way % page}
        return out


@pytest.mark.parametrize("stalls", [0.0, 0.4])
def test_a_key_opens_what_the_software_says(stalls: float) -> None:
    rng = random.Random(5)
    regions = Regions(rng, 40)
    asks = [regions.question() for _ in range(400)]
    want = [regions.answer(ask) for ask in asks]
    assert {each["reason"] for each in want} == set(VTP_NAMES) | {VTP_SUCCESS}
    block = MrTable(PARAMS)
    given = {"entries": regions.entries, "pages": regions.pages}
    out, cycles = carry(block, given, {"answers": len(asks)}, stalls=stalls, after={"asks": asks})
    for ask, wanted, found in zip(asks, want, out["answers"], strict=True):
        assert {name: found[name] for name in wanted} == wanted, ask
    if not stalls:
        assert cycles <= max(len(regions.entries), len(regions.pages)) + 2 * len(asks)


@pytest.mark.parametrize("values", [{"log_entries": 0}, {"log_entries": 17}, {"log_pages": 21}])
def test_sizes_that_cannot_be_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        MrTableParams(**values)
