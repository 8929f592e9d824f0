"""Commands on the memory table: contiguous and page-list regions, windows, page lists (004 7.3 "MR Table").

A region's MPT entry gives its memory either by ``address``, a contiguous range of the process, or by ``mtt_seg``, a
page list filled by WRITE_MTT. Byte ``n`` of a page-list region is at offset ``start % page + n`` of the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.device.entry_ring import reachable
from rnic.device.mailboxes import MTT_ENTRY, MTT_HEADER, MTT_PAGE_BYTES
from rnic.device.refusal import Refused
from rnic.device.resources import MAX_MTT_ENTRIES, KeyRecord, Segment
from rnic.mem.dma import NULL_BASE, NULL_BYTES, NullPort
from rnic.mem.keys import key_index
from rnic.mem.mpt import MPT_BYTES, MPT_ENTRY, access_from_flags, flags_from_access
from rnic.mem.pages import PageList
from rnic.mem.table import REGION, WINDOW1, WINDOW2, MemoryEntry
from rnic.spec import access, reasons
from rnic.spec import commands as cmd

if TYPE_CHECKING:
    from rnic.device.commands import Answer
    from rnic.device.host import TableHost
    from rnic.device.uar import Uar

PAGE_SHIFT = 12
MAX_PAGE_SHIFT = 31
_KINDS = {1: WINDOW1, 2: WINDOW2}
_KIND_CODES = {REGION: 0, WINDOW1: 1, WINDOW2: 2}
_DONE: Answer = (0, b"")


def own_key(nic: TableHost, uar: Uar, key: int) -> KeyRecord:
    """Return the record of a key that this context owns. A window's key is that of its last bind."""
    record = _own_index(nic, uar, key_index(key)) if 0 <= key <= 0xFFFF_FFFF else None
    if record is None:
        raise Refused(cmd.ST_BAD_INDEX)
    if key != (record.key if record.entry is None else record.entry.key):
        raise Refused(cmd.ST_BAD_INDEX)
    return record


def _own_index(nic: TableHost, uar: Uar, index: int) -> KeyRecord:
    """Return the record of a key index that this context owns."""
    record = nic.resources.keys.get(index)
    if record is None or record.owner is not uar:
        raise Refused(cmd.ST_BAD_INDEX)
    return record


def sw2hw_mpt(nic: TableHost, uar: Uar, key: int, op_modifier: int, inbox: bytes) -> Answer:
    """Create a region."""
    if len(inbox) != MPT_BYTES:
        raise Refused(cmd.ST_BAD_SIZE)
    record = own_key(nic, uar, key)
    entry = MPT_ENTRY.unpack(inbox)
    pd = entry["pd"]
    if not entry["region"] or entry["sw_owns"] or entry["key"] != key:
        raise Refused(cmd.ST_BAD_PARAM)
    nic.resources.own(uar, cmd.RES_PD, pd)
    start, length = entry["start"], entry["length"]
    if not length:
        raise Refused(cmd.ST_BAD_SIZE, reasons.MR_LENGTH, length=0)
    if start + length >= 1 << 64 or (entry["relative"] and start):
        raise Refused(cmd.ST_BAD_PARAM)
    rights = access_from_flags(int.from_bytes(inbox[:4], "big"))
    writable = bool(rights & access.LOCAL_WRITE)
    segment = entry["mtt_seg"]
    if entry["null"]:
        region = _null(entry, rights)
    elif segment:
        region = _paged(nic, uar, entry, rights, segment)
    else:
        address = entry["address"]
        on_demand = rights & access.ON_DEMAND
        if not on_demand and not reachable(uar, address, length, writable):
            how = " and writable" if writable else ""
            raise Refused(cmd.ST_BAD_PARAM, reasons.MR_RANGE, length=length, address=address, writable=how)
        view = None if on_demand else uar.port.views(address, length)
        region = MemoryEntry(key, pd, rights, start, length, view=view, port=uar.port, base=address)
    if record.entry is not None:
        raise Refused(cmd.ST_BAD_RES_STATE)
    nic.resources.memory.enable(region)
    record.entry = region
    record.segment = segment
    if segment:
        nic.resources.segments[segment].users += 1
    nic.resources.use_pd(pd)
    return _DONE


def _null(entry: dict[str, int], rights: int) -> MemoryEntry:
    """Create a region without memory, only for the driver's own scatter lists (``ibv_alloc_null_mr``)."""
    if entry["mtt_seg"] or entry["start"] or entry["length"] > NULL_BYTES or rights & ~access.LOCAL_WRITE:
        raise Refused(cmd.ST_BAD_PARAM)
    return MemoryEntry(entry["key"], entry["pd"], rights, 0, entry["length"], port=NullPort(), base=NULL_BASE)


def _paged(nic: TableHost, uar: Uar, entry: dict[str, int], rights: int, number: int) -> MemoryEntry:
    """Create a region over a page list; all its pages must be present and accessible."""
    nic.resources.own(uar, cmd.RES_MTT, number)
    shift = entry["page_size"] + PAGE_SHIFT
    if shift > MAX_PAGE_SHIFT:
        raise Refused(cmd.ST_BAD_PARAM)
    start, length = entry["start"], entry["length"]
    first = start & (1 << shift) - 1
    count = first + length + (1 << shift) - 1 >> shift
    segment = nic.resources.segments.get(number)
    if segment is None or count > len(segment.pages) or any(page not in segment.pages for page in range(count)):
        raise Refused(cmd.ST_BAD_PARAM)
    pages = tuple(segment.pages[page] for page in range(count))
    writable = bool(rights & access.LOCAL_WRITE)
    for place, page in enumerate(pages):
        low = first if place == 0 else 0
        high = min(1 << shift, first + length - (place << shift))
        if page & (1 << shift) - 1 or not reachable(uar, page + low, high - low, writable):
            raise Refused(cmd.ST_BAD_PARAM)
    port = PageList(uar.port, pages, shift)
    return MemoryEntry(
        entry["key"], entry["pd"], rights, start, length, view=port.views(first, length), port=port, base=first
    )


def hw2sw_mpt(nic: TableHost, uar: Uar, key: int, op_modifier: int, inbox: bytes) -> Answer:
    """Destroy a region: its key fails from now on, but stays allocated."""
    record = own_key(nic, uar, key)
    entry = record.entry
    if entry is None or entry.kind is not REGION:
        raise Refused(cmd.ST_BAD_RES_STATE)
    if nic.resources.memory.lookup(key) is not None:  # else a fault has removed it
        nic.resources.memory.disable(key)
    record.entry = None
    leave_segment(nic, record)
    nic.resources.leave_pd(entry.pd)
    return _DONE


def query_mpt(nic: TableHost, uar: Uar, key: int, op_modifier: int, inbox: bytes) -> Answer:
    """Return the current MPT entry; an entry without a region is owned by software."""
    record = own_key(nic, uar, key)
    entry = record.entry
    if entry is None:
        return 0, MPT_ENTRY.pack({"sw_owns": 0xF, "key": key})
    values = {
        "region": int(entry.kind == REGION),
        "key": entry.key,
        "pd": entry.pd,
        "start": entry.start,
        "length": entry.length,
        "lkey": 0 if entry.parent is None else entry.parent.key,
        "window_type": _KIND_CODES[entry.kind],
        "qpn": entry.qpn,
        "window_count": entry.bound,
        "mtt_seg": record.segment,
        "null": int(isinstance(entry.port, NullPort)),
        "address": 0 if record.segment else entry.base,
        "page_size": entry.port.shift - PAGE_SHIFT if isinstance(entry.port, PageList) else 0,
    }
    raw = bytearray(MPT_ENTRY.pack(values))
    flags = int.from_bytes(raw[:4], "big") | flags_from_access(entry.access)
    raw[:4] = flags.to_bytes(4, "big")
    return 0, bytes(raw)


def write_mtt(nic: TableHost, uar: Uar, count: int, op_modifier: int, inbox: bytes) -> Answer:
    """Fill part of a page list; entries without the present bit are removed from it."""
    if not count or len(inbox) != MTT_HEADER.size + count * MTT_PAGE_BYTES:
        raise Refused(cmd.ST_BAD_SIZE)
    number, first = MTT_HEADER.get(inbox, "segment"), MTT_HEADER.get(inbox, "first")
    res = nic.resources
    res.own(uar, cmd.RES_MTT, number)
    segment = res.segments.get(number)
    if segment is not None and segment.users:
        raise Refused(cmd.ST_RESOURCE_BUSY)
    if first + count > MAX_MTT_ENTRIES:
        raise Refused(cmd.ST_EXCEED_LIM)
    pages = {} if segment is None else dict(segment.pages)
    before = len(pages)
    for index in range(count):
        at = MTT_HEADER.size + index * MTT_PAGE_BYTES
        pages.pop(first + index, None)
        if MTT_ENTRY.get(inbox, "present", at):
            pages[first + index] = MTT_ENTRY.get(inbox, "page", at) << PAGE_SHIFT
    if res.mtt_entries + len(pages) - before > MAX_MTT_ENTRIES:
        raise Refused(cmd.ST_EXCEED_LIM)
    if segment is None:
        segment = res.segments[number] = Segment()
    segment.pages = pages
    return _DONE


def leave_segment(nic: TableHost, record: KeyRecord) -> None:
    """Release a region's page list."""
    if record.segment:
        nic.resources.segments[record.segment].users -= 1
        record.segment = 0


def alloc_mw(nic: TableHost, uar: Uar, pd: int, op_modifier: int, inbox: bytes) -> Answer:
    """Create an unbound memory window of type 1 or 2; ``out_param`` is its key."""
    kind = _KINDS.get(op_modifier)
    if kind is None:
        raise Refused(cmd.ST_BAD_PARAM)
    res = nic.resources
    res.own(uar, cmd.RES_PD, pd)
    key = res.memory.alloc_key(kind)
    window = MemoryEntry(key, pd, 0, 0, 0, kind=kind)
    res.memory.enable(window)
    res.keys[key_index(key)] = KeyRecord(uar, key, window)
    res.use_pd(pd)
    return key, b""


def dealloc_mw(nic: TableHost, uar: Uar, handle: int, op_modifier: int, inbox: bytes) -> Answer:
    """Destroy a window, bound or not, by its handle, which is the index of all its keys."""
    window = _own_index(nic, uar, handle).entry
    if window is None or window.kind is REGION:
        raise Refused(cmd.ST_BAD_RES_STATE)
    drop_key(nic, window.key)
    return _DONE


def drop_key(nic: TableHost, key: int) -> None:
    """Free a key, and its region or window."""
    record = nic.resources.keys.pop(key_index(key))
    nic.resources.memory.free_key(key)
    leave_segment(nic, record)
    if record.entry is not None:
        nic.resources.leave_pd(record.entry.pd)
