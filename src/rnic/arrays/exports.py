"""One side's NIC, its protection domain, and the buffers that it shares."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from errno import EINVAL
from typing import Any

from rnic.arrays.codec import describe
from rnic.arrays.handshake import MAX_BUFFERS, MAX_NAME, BufferInfo
from rnic.cm.rc_connection import REMOTE_RIGHTS
from rnic.link.base import LinkError
from rnic.mem.space import byte_view
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e
from rnic.verbs.context import Context
from rnic.verbs.memory import MR, PD


def open_context(address: str, udp_port: int | None) -> Context:
    """Open a NIC on a local address.

    The UDP port defaults to 4791. On a loopback address, a free port is used if 4791 is taken; the handshake tells
    the peer.

    Raises:
        LinkError: the address is not local, or the port is taken.
    """
    if udp_port is not None:
        return Context(addr=address, port=udp_port)
    try:
        return Context(addr=address)
    except LinkError:
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            raise
        return Context(addr=address, port=0)


class Shares:
    """A NIC with named, registered buffers.

    Args:
        ctx: the opened device.
        owned: close it at the end.
    """

    def __init__(self, ctx: Context, owned: bool) -> None:
        self.ctx = ctx
        self.pd = PD(ctx)
        self._owned = owned
        self._shared: dict[str, tuple[MR, BufferInfo]] = {}

    def add(self, buffers: Mapping[str, Any], writable: bool) -> None:
        """Register buffers under their names. Read-only memory is shared for reading, even if ``writable``.

        Raises:
            VerbsError: EINVAL for a name that is taken or too long, or a buffer that cannot be registered.
        """
        if not isinstance(buffers, Mapping):
            raise VerbsError(EINVAL, f"share is a {type(buffers).__name__}; give a mapping of names to buffers")
        for name, buffer in buffers.items():
            if not isinstance(name, str):
                raise VerbsError(EINVAL, f"name {name!r:.40} is a {type(name).__name__}; names are text")
            if not 0 < len(name) <= MAX_NAME:
                raise VerbsError(EINVAL, f"name {name[:40]!r} has {len(name)} characters; use 1 to {MAX_NAME}")
            if name in self._shared:
                raise VerbsError(EINVAL, f"name {name!r} is shared already; give this buffer another name")
            if len(self._shared) >= MAX_BUFFERS:
                raise VerbsError(EINVAL, f"{MAX_BUFFERS} buffers are shared already; put arrays together")
            try:
                may_write = writable and not byte_view(buffer).readonly
                dtype, shape, fields = describe(buffer)
                mr = MR(self.pd, buffer, REMOTE_RIGHTS if may_write else e.IBV_ACCESS_REMOTE_READ)
            except VerbsError as error:
                raise VerbsError(error.error_code, f"{name!r}: {error.strerror}") from None
            info = BufferInfo(name, mr.buf, mr.length, mr.rkey, dtype, shape, may_write, fields)
            self._shared[name] = mr, info

    def infos(self) -> tuple[BufferInfo, ...]:
        """Return the buffers that are shared now."""
        return tuple(info for _, info in self._shared.values())

    def close(self) -> None:
        """Deregister everything; the keys fail from now on."""
        # the last request may still need its response, or a NAK
        self.ctx.driver.kick()
        self.pd.close()
        if self._owned:
            self.ctx.close()


def open_shares(context: Context | None, address: str, udp_port: int | None, share: Mapping[str, Any] | None) -> Shares:
    """Share buffers on an opened device, or on a new one at an address, which the shares then own.

    Raises:
        LinkError: as :func:`open_context`.
        VerbsError: as :meth:`Shares.add`.
    """
    shares = Shares(context or open_context(address, udp_port), owned=context is None)
    try:
        shares.add(share or {}, writable=True)
    except BaseException:
        shares.close()
        raise
    return shares
