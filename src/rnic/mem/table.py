"""The memory table: regions, windows, and the check of every access to them (004 7.3 "MR Table").

The check follows 004's order (key, protection domain, rights, range) and returns the status codes of ``hardware.md`` 2a
(VTP). Its cost is one dict lookup, independent of the number of regions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from errno import EACCES, EBUSY, EINVAL, ENOMEM
from typing import Final

from rnic.mem.dma import DmaPort
from rnic.mem.keys import INDEX_LIMIT, key_index, key_tag, make_key
from rnic.mem.translation import Translation
from rnic.spec import reasons
from rnic.spec.access import FLUSH_PERSISTENT, LOCAL_WRITE, MW_BIND, NEED_LOCAL_WRITE, RIGHT_NAMES, ZERO_BASED
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
"""Missing rights."""
VTP_KEY = 0x04
"""Unknown key, or not valid for this kind of access."""
VTP_LENGTH = 0x08
"""The range exceeds the region or window."""
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
    """An entry's record at its current location."""

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
    """A region or window.

    The key covers the addresses ``start`` to ``end``. ``base`` is the virtual address of the first byte in its process,
    which differs from ``start`` if the entry is zero-based. ``view`` is that memory if it can be mapped; otherwise
    accesses go through ``port``. ``bound`` counts the windows on a region; ``parent`` is the region of a bound window,
    and ``qpn`` the queue pair of a type 2 window. ``binding`` changes when the entry becomes invalid, so that a holder
    of an earlier check detects an entry that was disabled and enabled again, or bound elsewhere.
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
        """Move the record to another location."""
        words[:] = self.words
        self._lie(words)

    def _lie(self, words: memoryview) -> None:
        self.words = words
        self.record = _KeyRecord(words.cast("B"), 0)

    @property
    def length(self) -> int:
        """Bytes that the key covers."""
        return self.end - self.start

    def slice(self, va: int, length: int) -> memoryview | None:
        """Return a view of the memory from ``va`` on, after a check; ``None`` if it cannot be mapped."""
        view = self.view
        if view is None:
            return None
        at = va - self.record.start
        return view[at : at + length]

    def read(self, va: int, length: int) -> memoryview | None:
        """Return a view or a copy of the bytes from ``va`` on, after a check; ``None`` if they cannot be read."""
        view = self.view
        if view is not None:
            at = va - self.record.start
            return view[at : at + length]
        if (view := self.slice(va, length)) is not None:
            return view
        buffer = bytearray(length)
        return memoryview(buffer) if self.read_into(va, buffer) else None

    def read_into(self, va: int, buf: bytearray | memoryview) -> bool:
        """Read from ``va`` into ``buf``, after a check; return false if the memory cannot be read."""
        view = self.view
        if view is not None:
            at = va - self.start
            buf[:] = view[at : at + len(buf)]
            return True
        return self.port is not None and self.port.read(va - self.start + self.base, buf)

    def write_from(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Write ``data`` at ``va``, after a check; return false if the memory cannot be written."""
        view = self.view
        if view is not None:
            at = va - self.record.start
            view[at : at + len(data)] = data
            return True
        return self.port is not None and self.port.write(va - self.start + self.base, data)


class _Nothing(MemoryEntry):
    """Entry returned by a check of zero bytes at any address."""

    __slots__ = ()

    def slice(self, va: int, length: int) -> memoryview | None:
        return self.view


NOTHING: Final[MemoryEntry] = _Nothing(0, 0, 0, 0, 0, view=memoryview(bytearray()))
NOTHING.valid = 1


_BINDING: Final = place(KEY, "binding")

Guard = Callable[[int, int, int, int, int], MemoryEntry | None]
"""Function from key, protection domain, address, length and rights of a remote access to its entry, or ``None``."""


def _ignore(entry: MemoryEntry) -> None:
    """Ignore the change: no listener is set."""


def _do_nothing() -> None:
    """Ignore the change: no listener is set."""


class MemoryTable:
    """All keys of one device.

    Args:
        rng: source of indices and tags.
        max_entries: most keys that may exist at once, 1 to 2^24.
        arena: memory of the table; by default its own.

    Raises:
        VerbsError: ``EINVAL`` for ``max_entries`` out of range.

    ``reason`` is the ``VTP_*`` code of the last :meth:`check`. ``guards``, by queue pair number, decide on remote
    accesses; a shell that inspects each access installs them with :meth:`set_guard` (003). ``translations``, set with
    :meth:`set_translation`, define the memory behind R_Key 0 of a queue pair.
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
        "on_key_change",
        "on_translation_change",
        "place",
        "reason",
        "translations",
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
        """Offset of the records in the arena."""
        self.guards: dict[int, Guard] = {}
        self.translations: dict[int, Translation] = {}
        self.on_translation_change: Callable[[], None] = _do_nothing
        """Called when guards or translations change or move."""
        self.on_key_change: Callable[[MemoryEntry], None] = _ignore
        """Called with each entry that becomes valid or invalid."""
        self.reason = VTP_SUCCESS
        self._rng = rng
        self._live: dict[int, MemoryEntry] = {}
        self._windows: dict[int, MemoryEntry] = {}
        self._kinds: dict[int, str] = {}
        self._tags: dict[int, int] = {}
        # A sparse Fisher-Yates shuffle: slot p of the free slots 0 to _free - 1 holds index _moved.get(p, p). It needs
        # no memory for unused indices, and each draw takes constant time.
        self._free = max_entries
        self._moved: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of valid regions and bound windows."""
        return len(self._live)

    # ------------------------------------------------------------------------------------------ keys

    def alloc_key(self, kind: str = REGION) -> int:
        """Return a key with a random free index, and a tag that differs from the index's last one.

        Raises:
            VerbsError: ``ENOMEM`` if all indices are in use, ``EINVAL`` for an unknown kind.
        """
        if kind not in KINDS:
            raise VerbsError(EINVAL, f"kind={kind!r} is not a kind of memory; use one of {', '.join(KINDS)}")
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
        # key 0 would terminate a receive list, so index 0 skips tag 0
        if not index and not tag:
            tag = 2 if before == 1 else 1
        self._tags[index] = tag
        self._kinds[index] = kind
        return make_key(index, tag)

    def free_key(self, key: int) -> None:
        """Free a key; disable its region or window first if it is enabled.

        Raises:
            VerbsError: ``EINVAL`` for a key that is not allocated, ``EBUSY`` for a region with bound
                windows.
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
        """Make a region's key valid, or register a window, which becomes valid when it is bound.

        Raises:
            VerbsError: ``EINVAL`` for a key that :meth:`alloc_key` did not allocate for this kind, for
                length 0, or for remote write or atomics without local write; ``EBUSY`` for a key in use;
                ``EACCES`` for write rights to read-only memory. Nothing changes in this case.
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
            raise VerbsError(EINVAL, f"length={entry.length} is not a length of a region; register at least 1 byte")
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
        """Assign an entry its record in the table, and continue the binding count of the record's previous entry."""
        words = self._arena.words(self.place + entry.index * KEY.size, KEY.size)
        entry.binding = max(entry.binding, words[_BINDING])
        entry.move(words)

    @staticmethod
    def _leave(entry: MemoryEntry) -> None:
        """Free the entry's record for the next entry with its index; keep the binding count."""
        words = entry.words
        entry.move(memoryview(bytearray(KEY.size)).cast("Q"))
        words[:] = memoryview(bytes(KEY.size)).cast("Q")
        words[_BINDING] = entry.binding

    def disable(self, key: int) -> None:
        """Make a key invalid and release its memory; unbind a window from its region.

        The key stays allocated, so that the same entry can be enabled again: see :meth:`free_key`.

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

    def set_guard(self, qpn: int, guard: Guard | None) -> None:
        """Set the guard of a queue pair's remote accesses, or remove it."""
        if guard is None:
            self.guards.pop(qpn, None)
        else:
            self.guards[qpn] = guard
        self.on_translation_change()

    def set_translation(self, qpn: int, translation: Translation | None) -> None:
        """Set the memory behind R_Key 0 for the peer of a queue pair; ``None`` removes it."""
        before = self.translations.pop(qpn, None)
        if before is not None:
            before.moved = _do_nothing
        if translation is not None:
            self.translations[qpn] = translation
            translation.moved = self.on_translation_change
        self.on_translation_change()

    def lookup(self, key: int) -> MemoryEntry | None:
        """Return the valid region or bound window of ``key``."""
        return self._live.get(key)

    def entries(self) -> list[MemoryEntry]:
        """Return the regions and bound windows with valid keys."""
        return list(self._live.values())

    def window(self, key: int) -> MemoryEntry | None:
        """Return the window with this key, bound or not."""
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
        """Check an access of a queue pair of ``pd`` to ``length`` bytes at ``va`` (IBA vol. 1, 10.6.3).

        An access of zero bytes needs no key and returns :data:`NOTHING`.

        Args:
            rights: required ``IBV_ACCESS_*`` bits; 0 for a local read.
            qpn: number of the queue pair, compared for type 2 windows.
            local: true if the key is an L_Key, which cannot be a window's.
            alone: true to ignore guards.

        Returns:
            The entry, or ``None`` with the cause in :attr:`reason`.
        """
        if not length:
            self.reason = VTP_SUCCESS
            return NOTHING
        if self.guards and not (local or alone):
            guard = self.guards.get(qpn)
            if guard is not None:
                return guard(key, pd, va, length, rights)
        if not (key or local) and (translation := self.translations.get(qpn)) is not None:
            return self._translate(translation, pd, va, length, rights)
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

    def _translate(self, translation: Translation, pd: int, va: int, length: int, rights: int) -> MemoryEntry | None:
        entry = translation.find(va, length, rights)
        if entry is None or entry.pd != pd:
            self.reason = VTP_LENGTH
            translation.refused()
            return None
        self.reason = VTP_SUCCESS
        return entry

    def why_refused(
        self, key: int, pd: int, va: int, length: int, rights: int, qpn: int = 0, local: bool = False
    ) -> tuple[Reason, dict[str, object]]:
        """Return why :meth:`check` refuses an access, and the values of the reason, by the same checks in order.

        For an access that passes the check, the reason is that the memory is inaccessible.
        """
        named: dict[str, object] = {"kind": "L_Key" if local else "R_Key", "key": key}
        if not (key or local) and (qpn in self.translations or qpn in self.guards):
            return reasons.KEY_ZERO, {"va": va, "bytes": length, "right": RIGHT_NAMES.get(rights, hex(rights))}
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
        self, handle: int, new_key: int, lkey: int, pd: int, qpn: int, start: int, length: int, access: int
    ) -> bool:
        """Bind a window to part of a region (IBA vol. 1, 10.6.7) under a new key with the same index.

        ``start`` is an address in terms of the region's key. A length of 0 unbinds a type 1 window. A type 2 window
        must be unbound before a bind, cannot be bound to length 0, and must get a new tag.

        Args:
            handle: handle of the window, which is the index of all its keys.

        Returns:
            False, with nothing changed, if the bind is not allowed.
        """
        window = self._windows.get(handle)
        if window is None or window.pd != pd or key_index(new_key) != handle:
            return False
        if window.kind == WINDOW2:
            if window.valid or not length or new_key == window.key:
                return False
        elif access & ZERO_BASED:
            return False
        if access & FLUSH_PERSISTENT:
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
        """Unbind a type 2 window on request of its queue pair or of the peer (IBA vol. 1, 10.6.7).

        Work requests cannot invalidate regions and type 1 windows: software deregisters or rebinds them.
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
