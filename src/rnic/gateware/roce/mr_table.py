"""``mr_table``: check a key and translate its address (004 7.3 "MR Table"), as
:meth:`rnic.mem.table.MemoryTable.check`.

The high bits of a key are the index of an entry, its low eight bits the tag that must match. Protection domain, rights
and range are checked next, in the software's order. The pages of a region are a run of the page list, starting at the
entry's ``mtt_seg``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import unreset
from rnic.mem.mpt import MPT_ENTRY
from rnic.mem.table import VTP_FLAGS, VTP_KEY, VTP_LENGTH, VTP_PD, VTP_SUCCESS

PAGE_SHIFT: Final = 12
"""``page_size`` of an entry is log2 of its page size, minus this."""
MAX_PAGE_SIZE: Final = 18
"""The largest ``page_size``: pages of 1 GiB."""
MAX_PAGE_BITS: Final = PAGE_SHIFT + MAX_PAGE_SIZE
TAG_BITS: Final = 8
MIDDLE_BITS: Final = 8
"""Position in a key, above the tag, of bits 23:16 of an index, whose low 16 bits are in the key's high half."""
RIGHTS: Final = ("local_write", "remote_write", "remote_read", "atomic")
FIELDS: Final = ("key", "pd", "start", "length", "page_size", "mtt_seg", "address", *RIGHTS)
"""Stored fields of an MPT entry; of ``address``, the address of the first byte, only the offset in its page is used."""
ENTRY: Final = data.StructLayout({name: MPT_ENTRY[name].width for name in FIELDS})
ANSWERS: Final = 4
"""Lookups in flight, or answers that wait to be taken."""


@dataclass(frozen=True, slots=True)
class MrTableParams:
    """Sizes of a table.

    Raises:
        ValueError: a size is out of range; the message names the range.
    """

    log_entries: int = 10
    """log2 of the number of entries: 1 to 16."""
    log_pages: int = 12
    """log2 of the number of page list entries: 1 to 20."""

    def __post_init__(self) -> None:
        for name, most in (("log_entries", 16), ("log_pages", 20)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ValueError(f"{name}={value}: 1 to {most}")


def question() -> data.StructLayout:
    """Return the layout of a lookup: key, protection domain, byte range, and required rights."""
    names = {"key": 32, "pd": 32, "va": 64, "length": 32}
    return data.StructLayout(names | dict.fromkeys(RIGHTS, 1))


def answer() -> data.StructLayout:
    """Return the layout of an answer: ``reason`` is a code of 002's table, ``address`` the memory address of the first
    byte, ``left`` the bytes from there to the end of its page."""
    return data.StructLayout({"reason": VTP_SUCCESS.bit_length(), "address": 64, "left": MAX_PAGE_BITS + 1})


def setting(params: MrTableParams) -> dict[str, data.StructLayout]:
    """Return the payloads of the streams with which software sets a table."""
    return {
        "entries": data.StructLayout({"index": params.log_entries, "valid": 1, "entry": ENTRY}),
        "pages": data.StructLayout({"index": params.log_pages, "page": 64 - PAGE_SHIFT}),
    }


class MrTable(wiring.Component):
    """``entries`` sets an entry, or with ``valid`` low removes it; ``pages`` sets a page of the list. Each of ``asks``
    is answered on ``answers``, in order. A lookup of zero bytes needs no key."""

    def __init__(self, params: MrTableParams) -> None:
        super().__init__(
            {name: In(stream.Signature(shape)) for name, shape in setting(params).items()}
            | {"asks": In(stream.Signature(question())), "answers": Out(stream.Signature(answer()))}
        )
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """Read the entry, compare, find the page, answer: one lookup per cycle."""
        m = Module()
        params = self.params
        row = data.StructLayout({"valid": 1, "entry": ENTRY})
        m.submodules.table = table = Memory(shape=row, depth=1 << params.log_entries, init=[])
        m.submodules.list = pages = Memory(shape=64 - PAGE_SHIFT, depth=1 << params.log_pages, init=[])
        m.submodules.done = done = SyncFIFOBuffered(width=len(self.answers.payload.as_value()), depth=ANSWERS)
        set_entry, get_entry = table.write_port(), table.read_port()
        set_page, get_page = pages.write_port(), pages.read_port()
        asked, out = self.asks, self.answers
        waiting, taken = Signal(range(ANSWERS + 1)), Signal()
        m.d.comb += [
            *(self.entries.ready.eq(1), self.pages.ready.eq(1)),
            set_entry.addr.eq(self.entries.payload.index),
            set_entry.data.valid.eq(self.entries.payload.valid),
            set_entry.data.entry.eq(self.entries.payload.entry),
            set_entry.en.eq(self.entries.valid),
            set_page.addr.eq(self.pages.payload.index),
            set_page.data.eq(self.pages.payload.page),
            set_page.en.eq(self.pages.valid),
            asked.ready.eq(waiting != ANSWERS),
            taken.eq(asked.valid & asked.ready),
            *(out.payload.eq(done.r_data), out.valid.eq(done.r_rdy), done.r_en.eq(out.ready)),
        ]
        m.d.sync += waiting.eq(waiting + taken - (out.valid & out.ready))

        # ---- the entry
        key = asked.payload.key
        index = Cat(key[TAG_BITS + MIDDLE_BITS :], key[TAG_BITS : TAG_BITS + MIDDLE_BITS])
        beyond = index[params.log_entries :].any()
        m.d.comb += get_entry.addr.eq(index[: params.log_entries])
        ask, is_beyond, read = unreset(question()), unreset(1), Signal()
        m.d.sync += [read.eq(taken), ask.eq(asked.payload), is_beyond.eq(beyond)]

        # ---- separate comparisons, and the offset of the first byte from the region's first page
        found = get_entry.data.entry
        live = get_entry.data.valid & ~is_beyond & (found.key == ask.key)
        lacks = Cat(*(ask[name] & ~found[name] for name in RIGHTS)).any()
        compared = Signal()
        no_key, other_pd, no_right, nothing = (unreset(1) for _ in range(4))
        before, past, size = unreset(1), unreset(1), unreset(range(MAX_PAGE_SIZE + 1))
        way, first = unreset(65), unreset(params.log_pages)
        in_page = Signal(MAX_PAGE_BITS)
        with m.Switch(found.page_size[: len(size)]):
            for each in range(MAX_PAGE_SIZE + 1):
                with m.Case(each):
                    m.d.comb += in_page.eq(found.address[: PAGE_SHIFT + each])
        m.d.sync += [
            compared.eq(read),
            no_key.eq(~live),
            other_pd.eq(found.pd != ask.pd),
            no_right.eq(lacks),
            nothing.eq(ask.length == 0),
            before.eq(ask.va < found.start),
            past.eq(ask.va + ask.length > found.start + found.length),
            size.eq(found.page_size),
            way.eq(ask.va - found.start + in_page),
            first.eq(found.mtt_seg),
        ]

        # ---- the page
        def by_size(of: Value, page: bool) -> Value:
            """Return the page number, or the offset in the page."""
            shifts = range(PAGE_SHIFT, PAGE_SHIFT + MAX_PAGE_SIZE + 1)
            return Array(of[shift:] if page else of[:shift] for shift in shifts)[size]

        m.d.comb += get_page.addr.eq(first + by_size(way, page=True))
        reason = Signal(len(out.payload.reason))
        with m.If(nothing):
            m.d.comb += reason.eq(VTP_SUCCESS)
        with m.Elif(no_key):
            m.d.comb += reason.eq(VTP_KEY)
        with m.Elif(other_pd):
            m.d.comb += reason.eq(VTP_PD)
        with m.Elif(no_right):
            m.d.comb += reason.eq(VTP_FLAGS)
        with m.Elif(before | past):
            m.d.comb += reason.eq(VTP_LENGTH)
        with m.Else():
            m.d.comb += reason.eq(VTP_SUCCESS)
        paged, told = Signal(), unreset(len(reason))
        place, whole = unreset(MAX_PAGE_BITS), unreset(MAX_PAGE_BITS + 1)
        m.d.sync += [
            paged.eq(compared),
            told.eq(reason),
            place.eq(by_size(way, page=False)),
            whole.eq(Array(Const(1 << PAGE_SHIFT + each) for each in range(MAX_PAGE_SIZE + 1))[size]),
        ]
        result = Signal(answer())
        m.d.comb += [
            result.reason.eq(told),
            result.address.eq(Cat(Const(0, PAGE_SHIFT), get_page.data) + place),
            result.left.eq(Mux(told == VTP_SUCCESS, whole - place, 0)),
            done.w_data.eq(result),
            done.w_en.eq(paged),
        ]
        return m
