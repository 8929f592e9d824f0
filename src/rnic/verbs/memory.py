"""Protection domains, memory regions and windows, address handles."""

from __future__ import annotations

from contextlib import ExitStack
from errno import EINVAL
from typing import TYPE_CHECKING, Any

from rnic.mem.mpt import MPT_ENTRY, MPT_REGION, flags_from_access
from rnic.spec import access as rights
from rnic.spec import commands as cmd
from rnic.spec import reasons
from rnic.spec.errors import VerbsError
from rnic.spec.ids import Lkey, Rkey, Va
from rnic.verbs import enums as e
from rnic.verbs.attrs import AHAttr, BindInfo, SendWR
from rnic.verbs.context import Context, close_all

if TYPE_CHECKING:
    from rnic.verbs.qp import QP


class PD:
    """A protection domain: regions, windows and queue pairs of one domain work together."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.handle = ctx.allocate(cmd.RES_PD)
        self.closed = False
        self._children: set[Any] = set()
        ctx.add_child(self)

    def add_child(self, child: object) -> None:
        """Keep an object, which the device holds too, until it is closed: before the domain at the latest."""
        self._children.add(child)
        self.ctx.add_child(child)

    def drop_child(self, child: object) -> None:
        """An object was closed."""
        self._children.discard(child)
        self.ctx.drop_child(child)

    def close(self) -> None:
        """Destroy it and what was made in it; a second call does nothing."""
        with self.ctx.driver.lock:
            if self.closed:
                return
            self.closed = True
            close_all(self._children)
            with self.ctx.destroying():
                self.ctx.free(cmd.RES_PD, self.handle)
            self.ctx.drop_child(self)

    def __enter__(self) -> PD:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MR:
    """A memory region: a registered buffer.

    Args:
        pd: its protection domain.
        buffer: any contiguous buffer (bytearray, NumPy array, mmap, shared memory), kept alive by the region;
            or a number of bytes, for memory of the region's own.
        access: ``IBV_ACCESS_*`` rights. Read-only buffers take no write rights.

    ``buf`` is the address of the first byte, ``length`` the size in bytes, ``lkey`` and ``rkey`` the keys.

    Raises:
        VerbsError: EINVAL for rights or a buffer that cannot be registered, ENOMEM when keys are used up.
    """

    def __init__(self, pd: PD, buffer: Any, access: int = e.IBV_ACCESS_LOCAL_WRITE) -> None:
        own = isinstance(buffer, int)
        if own and buffer <= 0:
            raise VerbsError(EINVAL, reasons.MR_LENGTH(length=buffer))
        if access & ~rights.SUPPORTED:
            raise VerbsError(EINVAL, f"access={access:#x} has rights beyond {rights.SUPPORTED:#x}, which are supported")
        if access & rights.NEED_LOCAL_WRITE and not access & rights.LOCAL_WRITE:
            raise VerbsError(EINVAL, reasons.MR_RIGHTS(access=access))
        ctx = pd.ctx
        self.pd = pd
        self.ctx = ctx
        self.access = access
        self.closed = False
        driver = ctx.driver
        with driver.lock, ExitStack() as undo:
            writable = bool(access & rights.LOCAL_WRITE)
            self._mapping = driver.ring(buffer) if own else driver.map(buffer, writable=writable)
            undo.callback(driver.unmap, self._mapping)
            self.buffer: Any = self._mapping.view if own else buffer
            self.buf = self.addr = Va(self._mapping.va)
            self.length = self._mapping.length
            self.lkey = Lkey(ctx.allocate_for(undo, cmd.RES_MPT))
            self.rkey = Rkey(self.lkey)
            entry = bytearray(MPT_ENTRY.size)
            entry[:4] = (flags_from_access(access) | MPT_REGION).to_bytes(4, "big")
            MPT_ENTRY.put(entry, "key", self.lkey)
            MPT_ENTRY.put(entry, "pd", pd.handle)
            MPT_ENTRY.put(entry, "start", 0 if access & rights.ZERO_BASED else self.buf)
            MPT_ENTRY.put(entry, "length", self.length)
            MPT_ENTRY.put(entry, "address", self.buf)
            ctx.command(cmd.SW2HW_MPT, self.lkey, inbox=bytes(entry))
            undo.pop_all()
        pd.add_child(self)

    def read(self, length: int, offset: int) -> bytes:
        """``length`` bytes of the region from ``offset`` on."""
        return bytes(self._mapping.view[offset : offset + length])

    def write(self, data: bytes | bytearray | memoryview, length: int, offset: int = 0) -> None:
        """Store the first ``length`` bytes of ``data`` at ``offset``."""
        self._mapping.view[offset : offset + length] = memoryview(data)[:length]

    def close(self) -> None:
        """Deregister: the keys fail from now on. A second call does nothing.

        Raises:
            VerbsError: EBUSY while memory windows are bound to the region.
        """
        ctx = self.ctx
        with ctx.driver.lock:
            if self.closed:
                return
            with ctx.destroying():
                ctx.command(cmd.HW2SW_MPT, self.lkey)
                ctx.free(cmd.RES_MPT, self.lkey)
            ctx.driver.unmap(self._mapping)
            self.closed = True
            self.pd.drop_child(self)

    def __enter__(self) -> MR:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MR {self.length} bytes at {self.buf:#x} lkey {self.lkey:#x} rkey {self.rkey:#x}>"


class MW:
    """A memory window: opens part of a region to peers for a while.

    Args:
        pd: its protection domain.
        mw_type: ``IBV_MW_TYPE_1`` (bound by :meth:`bind`) or ``IBV_MW_TYPE_2`` (bound by a work request).
    """

    def __init__(self, pd: PD, mw_type: int = e.IBV_MW_TYPE_1) -> None:
        if mw_type not in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
            rule = "use IBV_MW_TYPE_1 or IBV_MW_TYPE_2"
            raise VerbsError(EINVAL, reasons.WINDOW_TYPE(kind=mw_type, rule=rule))
        self.pd = pd
        self.ctx = pd.ctx
        self.mw_type = mw_type
        self.rkey = Rkey(self.ctx.command(cmd.ALLOC_MW, pd.handle, mw_type)[0])
        self._keys = {self.rkey}
        self.closed = False
        pd.add_child(self)

    def bind(self, qp: QP, bind_info: BindInfo, wr_id: int = 0, send_flags: int = e.IBV_SEND_SIGNALED) -> None:
        """Bind a type 1 window by ``qp``'s send queue; the window's ``rkey`` changes at once (ibv_bind_mw)."""
        if self.mw_type != e.IBV_MW_TYPE_1:
            raise VerbsError(EINVAL, "a type 2 window is bound by a work request: post IBV_WR_BIND_MW")
        wr = SendWR(wr_id, e.IBV_WR_BIND_MW, send_flags=send_flags)
        wr.set_bind_wr(self, next_key(self.rkey), bind_info)
        qp.post_send(wr)

    def close(self) -> None:
        """Free it; a second call does nothing."""
        with self.ctx.driver.lock:
            if self.closed:
                return
            self.closed = True
            with self.ctx.destroying():
                self._deallocate()
            self.pd.drop_child(self)

    def rekeyed(self, rkey: Rkey) -> None:
        """A bind that gives the window another key was posted; should it fail, the old one stays in force."""
        self.rkey = rkey
        self._keys.add(rkey)

    def _deallocate(self) -> None:
        for key in sorted(self._keys, key=lambda key: key != self.rkey):
            try:
                self.ctx.command(cmd.DEALLOC_MW, key)
            except VerbsError:
                continue
            return

    def __enter__(self) -> MW:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def next_key(key: Rkey) -> Rkey:
    """The key with the same index and the next tag (ibv_inc_rkey)."""
    return Rkey(key & ~0xFF | (key + 1) & 0xFF)


class AH:
    """An address handle: where a datagram goes."""

    def __init__(self, pd: PD, attr: AHAttr) -> None:
        self.pd = pd
        self.attr = attr
        gid = attr.gr.dgid
        address = gid.address
        if len(address) != len(pd.ctx.driver.address) or not any(address):
            raise VerbsError(EINVAL, f"dgid={gid!r} is not of the IP version of {pd.ctx.address}")
        for name, value, bits in (
            ("sl", attr.sl, 4),
            ("traffic_class", attr.gr.traffic_class, 8),
            ("hop_limit", attr.gr.hop_limit, 8),
            ("flow_label", attr.gr.flow_label, 20),
        ):
            if not 0 <= value < 1 << bits:
                raise VerbsError(EINVAL, f"{name}={value}: use 0 to {(1 << bits) - 1}")
        self.dgid = gid.raw

    def close(self) -> None:
        """Nothing to free; for symmetry with pyverbs."""
