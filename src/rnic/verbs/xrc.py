"""XRC domains: shared receive queues that queue pairs of other contexts send into (IBA vol. 1, annex A14)."""

from __future__ import annotations

import os
from errno import EBADF

from rnic.device.mailboxes import OPEN_XRCD
from rnic.spec import commands as cmd
from rnic.spec.errors import VerbsError
from rnic.verbs.attrs import XRCDInitAttr
from rnic.verbs.context import Context
from rnic.verbs.memory import Domain


class XRCD(Domain):
    """An XRC domain: its SRQs and the queue pairs that receive into them.

    Args:
        ctx: the device's context.
        init_attr: the file that names the domain. Contexts of one device that open the same file share it.

    Raises:
        VerbsError: EBADF for a bad descriptor, EAGAIN if no domain has this name and ``O_CREAT`` is missing, EINVAL if
            one has and ``O_EXCL`` is set.
    """

    def __init__(self, ctx: Context, init_attr: XRCDInitAttr | None = None) -> None:
        attr = init_attr or XRCDInitAttr()
        values = {"create": int(bool(attr.oflags & os.O_CREAT)), "exclusive": int(bool(attr.oflags & os.O_EXCL))}
        if attr.fd != -1:
            try:
                file = os.fstat(attr.fd)
            except OSError:
                raise VerbsError(EBADF, f"fd={attr.fd} is no open file: give -1 for a domain without a name") from None
            values |= {"named": 1, "device": file.st_dev, "inode": file.st_ino}
        super().__init__(ctx, ctx.command(cmd.OPEN_XRCD, inbox=OPEN_XRCD.pack(values))[0])

    def _free(self) -> None:
        self.ctx.command(cmd.CLOSE_XRCD, self.handle)
