"""Multicast groups: a context's members of each, written to the device as a whole."""

from __future__ import annotations

from errno import EINVAL
from typing import TYPE_CHECKING

from rnic.device.mailboxes import MGM
from rnic.device.multicast import is_multicast
from rnic.spec import commands as cmd
from rnic.spec import reasons
from rnic.spec.errors import VerbsError
from rnic.verbs.attrs import GID

if TYPE_CHECKING:
    from rnic.verbs.context import Context


def change_membership(ctx: Context, gid: GID, qpn: int, member: bool) -> None:
    """Attach a queue pair to a group or detach it.

    Raises:
        VerbsError: EINVAL for a GID that is no multicast group, or for a queue pair that is not attached.
    """
    if not is_multicast(gid.raw):
        raise VerbsError(EINVAL, reasons.BAD_VALUE(what="a GID that is no multicast group"))
    with ctx.driver.lock:
        group = MGM.unpack(ctx.command(cmd.READ_MGM, inbox=gid.raw.ljust(MGM.size, b"\0"))[1])
        members = [group[f"qpn{index}"] for index in range(group["count"])]
        if member and qpn not in members:
            members.append(qpn)
        elif not member:
            if qpn not in members:
                raise VerbsError(EINVAL, reasons.BAD_VALUE(what="a group that this queue pair has not joined"))
            members.remove(qpn)
        values = {"mgid": int.from_bytes(gid.raw, "big"), "count": len(members)}
        values |= {f"qpn{index}": number for index, number in enumerate(members)}
        ctx.command(cmd.WRITE_MGM, inbox=MGM.pack(values))
    ctx.driver.kick()
