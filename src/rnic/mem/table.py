"""The memory table: regions, windows and the check that guards every access to them (004 7.3 "MR Table").

The check runs in 004's order, key, protection domain, rights, range, and answers in the status codes of
``hardware.md`` 2a (VTP). It costs one dict lookup however many regions there are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from errno import EACCES, EBUSY, EINVAL, ENOMEM
from typing import Final

from rnic.mem.dma import DmaPort
from rnic.mem.keys import INDEX_LIMIT, key_index, key_tag, make_key
from rnic.spec import reasons
from rnic.spec.access import LOCAL_WRITE, MW_BIND, NEED_LOCAL_WRITE, RIGHT_NAMES, ZERO_BASED
from rnic.spec.errors import VerbsError
from rnic.spec.limits import MAX_MRS
from rnic.spec.reasons import Reason
from rnic.state.arena import Arena
from rnic.state.memory import KEY
from rnic.state.record import Record, Word, place, view

REGION: Final = "region"
WINDOW1: Final = "window1"
WINDOW2: Final = "window2"
KINDS = (REGION, WINDOW1, WINDOW2)

VTP_PD = 0x01
"""Wrong protection domain; for a type 2 window also the wrong queue pair."""
VTP_FLAGS = 0x02
"""Rights are missing."""
VTP_KEY = 0x04
"""No such key, or not one for this kind of access."""
VTP_LENGTH = 0x08
"""The range leaves the region or window."""
VTP_SUCCESS = 0x10

VTP_NAMES = {
    VTP_PD: "PD",
    VTP_FLAGS: "FLAGS",
    VTP_KEY: "KEY",
    VTP_LENGTH: "LENGTH",
    VTP_SUCCESS: "SUCCESS",
}


@view(KEY, "MemoryTable")
class _KeyRecord(Record):
    """An entry's record where it is now."""

    __slots__ = ()

    key: Word
    valid: Word
    window: Word
    pd: Word
    access: Word
    start: Word
    end: Word
    base: Word
    qpn: Word
    bound: Word
    binding: Word


@view(KEY, "MemoryTable")
class MemoryEntry:
    """One region or window.

    ``start`` to ``end`` are the addresses that the key opens; ``base`` is the virtual address of the first
    byte in its process, which differs from ``start`` where the entry is zero-based. ``view`` is that memory
    where it is in reach, else accesses go through ``port``. ``bound`` counts the windows on a region;
    ``parent`` is the region under a bound window and ``qpn`` the queue pair that a type 2 window belongs to.
    ``binding`` changes when the entry stops being valid, so that who checked an access before can tell an entry
    that was disabled and enabled again, or bound elsewhere, from one that stayed.
    """

    __slots__ = ("index", "kind", "parent", "port", "record", "view", "words")

    key: Word
    valid: Word
    window: Word
    pd: Word
    access: Word
    start: Word
    end: Word
    base: Word
    qpn: Word
    bound: Word
    binding: Word

    def __init__(
        self,
        key: int,
        pd: int,
        access: int,
        start: int,
        length: int,
        *,
        view: memoryview | None = None,
        port: DmaPort | None = None,
        kind: str = REGION,
        base: int | None = None,
    ) -> None:
        self._lie(memoryview(bytearray(KEY.size)).cast("Q"))
        self.index = key_index(key)
        self.kind = kind
        self.view = view
        self.port = port
        self.parent: MemoryEntry | None = None
        self._open(key, pd, access, start, length, start if base is None else base)

    def _open(self, key: int, pd: int, access: int, start: int, length: int, base: int) -> None:
        self.key = key
        self.window = KINDS.index(self.kind)
        self.pd = pd
        self.access = access
        self.start = start
        self.end = start + length
        self.base = base

    def move(self, words: memoryview) -> None:
        """Go on in another place."""
        words[:] = self.words
        self._lie(words)

    def _lie(self, words: memoryview) -> None:
        self.words = words
        self.record = _KeyRecord(words.cast("B"), 0)

    @property
    def length(self) -> int:
        """Bytes that the key opens."""
        return self.end - self.start

    def slice(self, va: int, length: int) -> memoryview | None:
        """The memory from ``va`` on, as checked before; ``None`` where it is not in reach."""
        view = self.view
        if view is None:
            return None
        at = va - self.record.start
        return view[at : at + length]

    def read(self, va: int, length: int) -> memoryview | None:
        """The bytes from ``va`` on, as checked before: a view of them or a copy; ``None`` where they cannot be read."""
        view = self.view
        if view is not None:
            at = va - self.record.start
            return view[at : at + length]
        if (view := self.slice(va, length)) is not None:
            return view
        buffer = bytearray(length)
        return memoryview(buffer) if self.read_into(va, buffer) else None

    def read_into(self, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf`` from ``va`` on, as checked before; false where the memory cannot be read."""
        view = self.view
        if view is not None:
            at = va - self.start
            buf[:] = view[at : at + len(buf)]
            return True
        return self.port is not None and self.port.read(va - self.start + self.base, buf)

    def write_from(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data`` from ``va`` on, as checked before; false where the memory cannot be written."""
        view = self.view
        if view is not None:
            at = va - self.record.start
            view[at : at + len(data)] = data
            return True
        return self.port is not None and self.port.write(va - self.start + self.base, data)


class _Nothing(MemoryEntry):
    """What a check of zero bytes finds, wherever they are said to be."""

    __slots__ = ()

    def slice(self, va: int, length: int) -> memoryview | None:
        return self.view


NOTHING: Final[MemoryEntry] = _Nothing(0, 0, 0, 0, 0, view=memoryview(bytearray()))
NOTHING.valid = 1


_BINDING: Final = place(KEY, "binding")

Guard = Callable[[int, int, int, int, int], MemoryEntry | None]
"""Key, protection domain, address, length and rights of a remote access: the entry for it, ``None`` to refuse."""


def _ignore(entry: MemoryEntry) -> None:
    """Nobody is to be told."""


class MemoryTable:
    """All keys of one device.

    Args:
        rng: source of indices and tags.
        max_entries: keys that may exist at once, 1 to 2^24.
        arena: where the table lies; one of its own if not given.

    Raises:
        VerbsError: ``EINVAL`` for ``max_entries`` out of range.

    ``reason`` is the ``VTP_*`` code of the last :meth:`check`. ``guards`` by queue pair number stand in front of remote
    accesses: a shell that translates addresses by itself puts them there (003).
    """

    __slots__ = (
        "_arena",
        "_free",
        "_kinds",
        "_live",
        "_moved",
        "_rng",
        "_tags",
        "_windows",
        "guards",
        "max_entries",
        "place",
        "reason",
        "on_key_change",
    )

    def __init__(self, rng: random.Random, max_entries: int = MAX_MRS, arena: Arena | None = None) -> None:
        if not 1 <= max_entries <= INDEX_LIMIT:
            raise VerbsError(EINVAL, f"max_entries={max_entries} is out of range; it is 1 to {INDEX_LIMIT}")
        self.max_entries = max_entries
        size = max_entries * KEY.size
        self._arena = Arena(size) if arena is None else arena
        at = self._arena.allocate(size)
        if at is None:
            raise VerbsError(ENOMEM, f"max_entries={max_entries} memory keys do not fit the state; ask for fewer")
        self.place = at
        """Where the records begin in the arena."""
        self.guards: dict[int, Guard] = {}
        self.on_key_change: Callable[[MemoryEntry], None] = _ignore
        """Told of each entry that has begun to be valid, or ended."""
        self.reason = VTP_SUCCESS
        self._rng = rng
        self._live: dict[int, MemoryEntry] = {}
        self._windows: dict[int, MemoryEntry] = {}
        self._kinds: dict[int, str] = {}
        self._tags: dict[int, int] = {}
        # A shuffle that remembers only what it moved: place p of the free places 0 to _free - 1 holds index
        # _moved.get(p, p). A million idle devices cost nothing, and each draw costs the same.
        self._free = max_entries
        self._moved: dict[int, int] = {}

    def __len__(self) -> int:
        """Regions and bound windows that are valid now."""
        return len(self._live)

    # ------------------------------------------------------------------------------------------ keys

    def alloc_key(self, kind: str = REGION) -> int:
        """A key with a random free index, and a tag that this index did not have the last time.

        Raises:
            VerbsError: ``ENOMEM`` when all indices are taken, ``EINVAL`` for an unknown kind.
        """
        if kind not in KINDS:
            raise VerbsError(EINVAL, f"kind={kind!r} is no kind of memory; it is one of {', '.join(KINDS)}")
        if not self._free:
            raise VerbsError(ENOMEM, f"all {self.max_entries} memory keys are in use; deregister memory first")
        place = self._rng.randrange(self._free)
        self._free -= 1
        index = self._moved.get(place, place)
        last = self._moved.pop(self._free, self._free)
        if place != self._free:
            self._moved[place] = last
        before = self._tags.get(index)
        if before is None:
            tag = self._rng.randrange(256)
        else:
            tag = (before + self._rng.randrange(1, 256)) & 0xFF
        # Key 0 would end a receive list, so index 0 goes without tag 0 (and skips to one it did not have).
        if not index and not tag:
            tag = 2 if before == 1 else 1
        self._tags[index] = tag
        self._kinds[index] = kind
        return make_key(index, tag)

    def free_key(self, key: int) -> None:
        """Give a key back; its region or window is disabled first where it still is enabled.

        Raises:
            VerbsError: ``EINVAL`` for a key that is not allocated, ``EBUSY`` for a region with bound windows.
        """
        index = key_index(key)
        window = self._windows.get(index)
        current = window.key if window is not None else make_key(index, self._tags.get(index, 0))
        if index not in self._kinds or key != current:
            raise VerbsError(EINVAL, f"key={key:#010x} is not allocated; it may have been freed before")
        if window is not None or key in self._live:
            self.disable(key)
        del self._kinds[index]
        self._moved[self._free] = index
        self._free += 1

    # --------------------------------------------------------------------------- regions and windows

    def enable(self, entry: MemoryEntry) -> None:
        """Make a region's key valid, or enter a window, which gets valid when it is bound.

        Raises:
            VerbsError: ``EINVAL`` for a key that :meth:`alloc_key` did not give for this kind, for no bytes,
                or for remote write or atomics without local write; ``EBUSY`` for a key in use; ``EACCES``
                for write rights over read-only memory. Nothing changes then.
        """
        key = entry.key
        index = entry.index
        if self._kinds.get(index) != entry.kind or self._tags[index] != key_tag(key):
            raise VerbsError(EINVAL, f"key={key:#010x} is not allocated for a {entry.kind}; allocate it first")
        if key in self._live or index in self._windows:
            raise VerbsError(EBUSY, f"key={key:#010x} is enabled already; disable it first")
        if entry.kind != REGION:
            self._house(entry)
            self._windows[index] = entry
            return
        access = entry.access
        if entry.length <= 0:
            raise VerbsError(EINVAL, f"length={entry.length} is no length of a region; register at least 1 byte")
        if access & NEED_LOCAL_WRITE and not access & LOCAL_WRITE:
            raise VerbsError(
                EINVAL, f"access={access:#x} has remote write or atomics; these need IBV_ACCESS_LOCAL_WRITE too"
            )
        if access & LOCAL_WRITE and entry.view is not None and entry.view.readonly:
            raise VerbsError(EACCES, f"access={access:#x} has write rights but the memory is read-only; drop them")
        self._house(entry)
        entry.valid = 1
        self._live[key] = entry
        self.on_key_change(entry)

    def _house(self, entry: MemoryEntry) -> None:
        """Give an entry its record in the table, which goes on counting where the last one there ended."""
        words = self._arena.words(self.place + entry.index * KEY.size, KEY.size)
        entry.binding = max(entry.binding, words[_BINDING])
        entry.move(words)

    @staticmethod
    def _leave(entry: MemoryEntry) -> None:
        """The entry's record is free for the next of its index; its count of bindings stays."""
        words = entry.words
        entry.move(memoryview(bytearray(KEY.size)).cast("Q"))
        words[:] = memoryview(bytes(KEY.size)).cast("Q")
        words[_BINDING] = entry.binding

    def disable(self, key: int) -> None:
        """Make a key fail from now on, and let go of its memory. A window leaves its region.

        The key stays allocated, so that the same entry may be enabled again: see :meth:`free_key`.

        Raises:
            VerbsError: ``EINVAL`` for a key that is not enabled, ``EBUSY`` for a region with bound windows.
        """
        window = self.window(key)
        if window is not None:
            self._unbind(window)
            del self._windows[window.index]
            self._tags[window.index] = key_tag(key)
            self._leave(window)
            return
        entry = self._live.get(key)
        if entry is None:
            raise VerbsError(EINVAL, f"key={key:#010x} is not enabled; it may have been deregistered before")
        if entry.bound:
            raise VerbsError(EBUSY, f"key={key:#010x} has {entry.bound} memory windows bound; unbind them first")
        del self._live[key]
        entry.binding += 1
        entry.valid = 0
        self.on_key_change(entry)
        entry.view = None
        entry.port = None
        self._leave(entry)

    def lookup(self, key: int) -> MemoryEntry | None:
        """The region or bound window that ``key`` opens now."""
        return self._live.get(key)

    def window(self, key: int) -> MemoryEntry | None:
        """The window whose key is ``key``, bound or not."""
        entry = self._windows.get(key_index(key))
        return entry if entry is not None and entry.key == key else None

    # ----------------------------------------------------------------------------------------- check

    def check(
        self,
        key: int,
        pd: int,
        va: int,
        length: int,
        rights: int,
        qpn: int = 0,
        local: bool = False,
        alone: bool = False,
    ) -> MemoryEntry | None:
        """The entry that lets a queue pair of ``pd`` access ``length`` bytes at ``va`` (IBA vol. 1, 10.6.3).

        Zero bytes need no key, and find :data:`NOTHING`.

        Args:
            rights: ``IBV_ACCESS_*`` bits that are all needed; 0 for a local read.
            qpn: the queue pair itself, which type 2 windows ask for.
            local: the key is an L_Key, so windows do not count.
            alone: the table's own answer, whatever guard there is.

        Returns:
            The entry, or ``None``; :attr:`reason` then says what is wrong.
        """
        if not length:
            self.reason = VTP_SUCCESS
            return NOTHING
        if self.guards and not (local or alone):
            guard = self.guards.get(qpn)
            if guard is not None:
                return guard(key, pd, va, length, rights)
        entry = self._live.get(key)
        if entry is None or (local and entry.record.window):
            self.reason = VTP_KEY
            return None
        record = entry.record
        if record.pd != pd or record.qpn not in (0, qpn):
            self.reason = VTP_PD
        elif record.access & rights != rights:
            self.reason = VTP_FLAGS
        elif va < record.start or va + length > record.end:
            self.reason = VTP_LENGTH
        else:
            self.reason = VTP_SUCCESS
            return entry
        return None

    def why_refused(
        self, key: int, pd: int, va: int, length: int, rights: int, qpn: int = 0, local: bool = False
    ) -> tuple[Reason, dict[str, object]]:
        """Why :meth:`check` refuses an access, and the values of the reason; the same checks in the same order.

        Of an access that it lets through: the memory itself does not answer.
        """
        named: dict[str, object] = {"kind": "L_Key" if local else "R_Key", "key": key}
        entry = self._live.get(key)
        if entry is None or (local and entry.record.window):
            gone = self._tags.get(key_index(key)) == key_tag(key) and entry is None
            return (reasons.KEY_GONE if gone else reasons.KEY_UNKNOWN), named
        record = entry.record
        if record.pd != pd:
            return reasons.KEY_DOMAIN, named
        if record.qpn not in (0, qpn):
            return reasons.KEY_QP, named | {"qpn": record.qpn}
        lacks = rights & ~record.access
        if lacks:
            right = RIGHT_NAMES.get(lacks & -lacks, hex(lacks))
            return reasons.KEY_RIGHTS, named | {"right": right}
        if va < record.start:
            return reasons.KEY_BEFORE, {"bytes": record.start - va}
        if va + length > record.end:
            return reasons.KEY_BEYOND, {"bytes": va + length - record.end}
        return reasons.MEMORY_GONE, {"va": va}

    # --------------------------------------------------------------------------------------- windows

    def bind_window(
        self, old_key: int, new_key: int, lkey: int, pd: int, qpn: int, start: int, length: int, access: int
    ) -> bool:
        """Bind a window to part of a region (IBA vol. 1, 10.6.7) under a new key with the same index.

        ``start`` is an address as the region's key counts them. A length of 0 unbinds a type 1 window. A
        type 2 window must be unbound before it is bound, is never bound to nothing, and must change its tag.

        Returns:
            False, with nothing changed, where the window or the region refuses.
        """
        window = self.window(old_key)
        if window is None or window.pd != pd or key_index(new_key) != window.index:
            return False
        if window.kind == WINDOW2:
            if window.valid or not length or new_key == old_key:
                return False
        elif access & ZERO_BASED:
            return False
        if not length:
            self._unbind(window)
            window.key = new_key
            return True
        region = self._live.get(lkey)
        if region is None or region.parent is not None or region.pd != pd:
            return False
        if not region.access & MW_BIND or region.access & ZERO_BASED:
            return False
        if access & NEED_LOCAL_WRITE and not region.access & LOCAL_WRITE:
            return False
        if start < region.start or start + length > region.end:
            return False
        self._unbind(window)
        window.key = new_key
        window.parent = region
        window.qpn = qpn if window.kind == WINDOW2 else 0
        window.access = access
        window.start = 0 if access & ZERO_BASED else start
        window.end = window.start + length
        window.base = start - region.start + region.base
        window.view = region.slice(start, length)
        window.port = region.port
        window.valid = 1
        region.bound += 1
        self._live[new_key] = window
        self.on_key_change(window)
        return True

    def invalidate(self, key: int, pd: int, qpn: int) -> bool:
        """Unbind a type 2 window, asked by its own queue pair or by that one's peer (IBA vol. 1, 10.6.7).

        Regions and type 1 windows are not invalidated by work requests: software deregisters or rebinds them.
        """
        window = self._live.get(key)
        if window is None or window.kind != WINDOW2 or window.pd != pd or window.qpn != qpn:
            return False
        self._unbind(window)
        return True

    def _unbind(self, window: MemoryEntry) -> None:
        if window.parent is None:
            return
        del self._live[window.key]
        window.parent.bound -= 1
        window.parent = None
        window.qpn = 0
        window.binding += 1
        window.valid = 0
        self.on_key_change(window)
        window.view = None
        window.port = None
