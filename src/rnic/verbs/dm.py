"""Device memory: peers access it through regions over it, the program by copies in and out.

This device is software, so this is memory of the program that only the device's functions access.
"""

from __future__ import annotations

import mmap
from errno import EBUSY, EINVAL, ENOMEM
from typing import Final

from rnic.spec import reasons
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e
from rnic.verbs.attrs import MAX_DM_BYTES, AllocDmAttr
from rnic.verbs.context import Context
from rnic.verbs.memory import MR, PD

UNIT: Final = 4
"""Offsets and lengths of copies are multiples of this, as on ConnectX."""


class DM:
    """Device memory.

    Args:
        ctx: the device's context; each has 1 MiB (``max_dm_size`` of its attributes).
        attr: length and alignment.

    Raises:
        VerbsError: EINVAL for a length of 0 or an alignment beyond a page, ENOMEM if the context has not that much
            left.
    """

    def __init__(self, ctx: Context, attr: AllocDmAttr) -> None:
        if attr.length <= 0 or not 0 <= attr.log_align_req <= 12:
            what = (
                f"length={attr.length}, log_align_req={attr.log_align_req}: the length is at least 1, the other 0 to 12"
            )
            raise VerbsError(EINVAL, what)
        with ctx.driver.lock:
            left = MAX_DM_BYTES - ctx.dm_bytes
            if attr.length > left:
                raise VerbsError(ENOMEM, reasons.NO_DEVICE_MEMORY(length=attr.length, left=left))
            ctx.dm_bytes += attr.length
        self.ctx = ctx
        self.length = attr.length
        self.users = 0
        """Regions over it."""
        self.closed = False
        self.memory = mmap.mmap(-1, attr.length)
        ctx.add_child(self)

    def _range(self, offset: int, length: int) -> slice:
        if offset < 0 or length < 0 or offset + length > self.length or offset % UNIT or length % UNIT:
            what = f"offset={offset}, length={length}: give multiples of {UNIT} inside of {self.length} bytes"
            raise VerbsError(EINVAL, what)
        return slice(offset, offset + length)

    def copy_to_dm(self, dm_offset: int, data: bytes | bytearray | memoryview, length: int | None = None) -> None:
        """Store bytes.

        Args:
            dm_offset: offset of the first byte, a multiple of 4.
            data: the bytes.
            length: number of bytes, a multiple of 4; by default all.

        Raises:
            VerbsError: EINVAL for a range beyond the memory, or one that is not a multiple of 4.
        """
        part = memoryview(data).cast("B")[:length]
        self.memory[self._range(dm_offset, len(part))] = bytes(part)

    def copy_from_dm(self, dm_offset: int, length: int) -> bytes:
        """Return bytes.

        Args:
            dm_offset: offset of the first byte, a multiple of 4.
            length: number of bytes, a multiple of 4.

        Raises:
            VerbsError: EINVAL for a range beyond the memory, or one that is not a multiple of 4.
        """
        return self.memory[self._range(dm_offset, length)]

    def close(self) -> None:
        """Free the memory; a second call does nothing.

        Raises:
            VerbsError: EBUSY while regions over it exist.
        """
        with self.ctx.driver.lock:
            if self.closed:
                return
            if self.users:
                raise VerbsError(
                    EBUSY, f"device memory of {self.length} bytes has {self.users} regions: close them first"
                )
            self.closed = True
            self.ctx.dm_bytes -= self.length
            self.ctx.drop_child(self)

    def __enter__(self) -> DM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DMMR(MR):
    """A region over device memory. Its addresses begin at 0, for the program and for peers.

    Args:
        pd: its protection domain.
        length: bytes, at least 1.
        access: ``IBV_ACCESS_*`` rights; ``IBV_ACCESS_ZERO_BASED`` is always included.
        dm: the device memory.
        offset: offset of the region's first byte in the device memory.

    Raises:
        VerbsError: EINVAL for a range beyond the memory or for rights that cannot be given.
    """

    def __init__(self, pd: PD, length: int, access: int, dm: DM, offset: int = 0) -> None:
        if length <= 0 or offset < 0 or offset + length > dm.length:
            raise VerbsError(EINVAL, f"offset={offset}, length={length}: the device memory has {dm.length} bytes")
        part = memoryview(dm.memory)[offset : offset + length]
        super().__init__(pd, part, access | e.IBV_ACCESS_ZERO_BASED)
        self.dm = dm
        dm.users += 1

    def close(self) -> None:
        """Deregister; a second call does nothing."""
        if not self.closed:
            super().close()
            self.dm.users -= 1
