"""Protection domains, memory regions and windows, address handles."""

from __future__ import annotations

from contextlib import ExitStack
from errno import EINVAL, EOPNOTSUPP
from typing import TYPE_CHECKING, Any, Self

from rnic.mem.keys import key_index
from rnic.mem.mpt import MPT_ENTRY, MPT_REGION, flags_from_access
from rnic.spec import access as rights
from rnic.spec import commands as cmd
from rnic.spec import reasons
from rnic.spec.addresses import address_text
from rnic.spec.errors import VerbsError
from rnic.spec.gids import source_refusal
from rnic.spec.ids import Lkey, Rkey, Va
from rnic.verbs import enums as e
from rnic.verbs.attrs import AHAttr, BindInfo, SendWR
from rnic.verbs.context import Context, close_all

if TYPE_CHECKING:
    from rnic.verbs.qp import QP


class Domain:
    """A group of objects that work together and end together; :class:`PD` and :class:`~rnic.verbs.xrc.XRCD` are
    domains.

    Args:
        ctx: the device's context.
        handle: its number in the device.
    """

    def __init__(self, ctx: Context, handle: int) -> None:
        self.ctx = ctx
        self.handle = handle
        self.closed = False
        self._children: dict[Any, None] = {}
        ctx.add_child(self)

    def add_child(self, child: object) -> None:
        """Keep an object that the device holds too, to close it with the domain at the latest."""
        self._children[child] = None
        self.ctx.add_child(child)

    def drop_child(self, child: object) -> None:
        """Forget an object that was closed."""
        self._children.pop(child, None)
        self.ctx.drop_child(child)

    def _free(self) -> None:
        """Free its number in the device."""
        raise NotImplementedError

    def close(self) -> None:
        """Destroy the domain and the objects that were made in it here; a second call does nothing."""
        with self.ctx.driver.lock:
            if self.closed:
                return
            self.closed = True
            close_all(self._children)
            with self.ctx.destroying():
                self._free()
            self.ctx.drop_child(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class PD(Domain):
    """A protection domain: regions, windows and queue pairs of one domain work together.

    Args:
        ctx: the device's context.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx, ctx.allocate(cmd.RES_PD))

    def _free(self) -> None:
        self.ctx.free(cmd.RES_PD, self.handle)


class MR:
    """A memory region: a registered buffer.

    Args:
        pd: its protection domain.
        buffer: any contiguous buffer (bytearray, NumPy array, mmap, shared memory), kept alive by the region;
            or a number of bytes, for the region to allocate.
        access: ``IBV_ACCESS_*`` rights. Read-only buffers take no write rights.

    ``buf`` is the address of the first byte, ``length`` the size in bytes, ``lkey`` and ``rkey`` the keys.

    Raises:
        VerbsError: EINVAL for rights or a buffer that cannot be registered, EOPNOTSUPP for persistent flushes, since no
            memory here is persistent, ENOMEM when keys are used up.
    """

    def __init__(self, pd: PD, buffer: Any, access: int = e.IBV_ACCESS_LOCAL_WRITE) -> None:
        own = isinstance(buffer, int)
        if own and buffer <= 0:
            raise VerbsError(EINVAL, reasons.MR_LENGTH(length=buffer))
        if access & ~rights.SUPPORTED:
            if access & rights.FLUSH_PERSISTENT:
                raise VerbsError(EOPNOTSUPP, reasons.NOT_PERSISTENT(access=access))
            extra = access & ~rights.SUPPORTED
            raise VerbsError(EINVAL, reasons.ACCESS_FLAGS(name="access", flags=access, extra=extra))
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
        """Return ``length`` bytes of the region from ``offset`` on.

        Args:
            length: bytes.
            offset: bytes from the beginning of the region.
        """
        return bytes(self._mapping.view[offset : offset + length])

    def write(self, data: bytes | bytearray | memoryview, length: int, offset: int = 0) -> None:
        """Store the first ``length`` bytes of ``data`` at ``offset``.

        Args:
            data: the bytes.
            length: bytes of ``data`` to store.
            offset: bytes from the beginning of the region.
        """
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
        """The key that the last posted bind asks for; if the bind fails, the window keeps its previous key."""
        self.handle = key_index(self.rkey)
        """Handle of the window, independent of its binds."""
        self.closed = False
        pd.add_child(self)

    def bind(self, qp: QP, bind_info: BindInfo, wr_id: int = 0, send_flags: int = e.IBV_SEND_SIGNALED) -> None:
        """Bind a type 1 window through ``qp``'s send queue; the window's ``rkey`` changes at once (ibv_bind_mw).

        Args:
            qp: queue pair of the window's protection domain.
            bind_info: region, address, length and rights.
            wr_id: identifier of the completion, 64 bits.
            send_flags: ``IBV_SEND_*``.
        """
        if self.mw_type != e.IBV_MW_TYPE_1:
            rule = "type 2 is bound by a work request: post IBV_WR_BIND_MW"
            raise VerbsError(EINVAL, reasons.WINDOW_TYPE(kind=self.mw_type, rule=rule))
        wr = SendWR(wr_id, e.IBV_WR_BIND_MW, send_flags=send_flags)
        wr.set_bind_wr(self, next_key(self.rkey), bind_info)
        qp.post_send(wr)

    def close(self) -> None:
        """Free the window; a second call does nothing."""
        with self.ctx.driver.lock:
            if self.closed:
                return
            self.closed = True
            with self.ctx.destroying():
                self.ctx.command(cmd.DEALLOC_MW, self.handle)
            self.pd.drop_child(self)

    def __enter__(self) -> MW:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def next_key(key: Rkey) -> Rkey:
    """Return the key with the same index and the next tag (ibv_inc_rkey)."""
    return Rkey(key & ~0xFF | (key + 1) & 0xFF)


class AH:
    """An address handle: the destination of a datagram.

    Args:
        pd: its protection domain.
        attr: the path.

    Raises:
        VerbsError: EINVAL for a GID index from which no packet can be sent, a peer of another IP version, and values
            out of range.
    """

    def __init__(self, pd: PD, attr: AHAttr) -> None:
        self.pd = pd
        self.attr = attr
        gid = attr.gr.dgid
        address = gid.address
        if not attr.is_global:
            raise VerbsError(EINVAL, reasons.NO_GRH())
        if attr.port_num != 1:
            raise VerbsError(EINVAL, reasons.PORT_NUMBER(port=attr.port_num))
        if len(address) != len(pd.ctx.driver.address) or not any(address):
            problem = "not of this port's IP version" if any(address) else "zero"
            raise VerbsError(EINVAL, reasons.PEER_GID(gid=address_text(gid.raw), problem=problem))
        _check_source(attr.gr.sgid_index, pd.ctx.limits)
        for name, value, bits in (
            ("sl", attr.sl, 4),
            ("traffic_class", attr.gr.traffic_class, 8),
            ("hop_limit", attr.gr.hop_limit, 8),
            ("flow_label", attr.gr.flow_label, 20),
        ):
            if not 0 <= value < 1 << bits:
                most = (1 << bits) - 1
                raise VerbsError(EINVAL, reasons.ATTRIBUTE_RANGE(name=name, value=value, least=0, most=most))
        self.dgid = gid.raw

    def close(self) -> None:
        """Do nothing, for symmetry with pyverbs: there is nothing to free."""


def _check_source(index: int, limits: dict[str, int]) -> None:
    """Refuse a GID index from which no packet can be sent."""
    if not 0 <= index < limits["gid_count"]:
        raise VerbsError(EINVAL, reasons.GID_INDEX(index=index, last=limits["gid_count"] - 1))
    gid, own = (limits[f"gid{at}"].to_bytes(16, "big") for at in (index, limits["own_gid"]))
    refusal = source_refusal(gid, bool(limits["gids_of_v1"] >> index & 1), own)
    if refusal is not None:
        raise VerbsError(EINVAL, refusal(index=index, own=limits["own_gid"]))
