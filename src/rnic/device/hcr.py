"""The command register (HCR): seven words, one set per open context (``hardware.md`` 2a).

The driver stores the words, the last one with GO, which runs the command: input mailbox by DMA, command unit, output
mailbox by DMA. When the command is complete, GO reads 0 and the same word has the status. With E set, an EQ entry of
type CMD with the token also reports the completion.

Mailboxes are in the driver's memory at addresses that are multiples of 32; ``in_param`` 0 means none. If mailbox memory
is not accessible, the command ends with INTERNAL_ERR before anything is changed: the output mailbox is cleared before
the command runs, to test whether it can be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.context.cqc import CQC_BYTES, SRQC_BYTES
from rnic.context.eqc import EQC_BYTES
from rnic.context.modify import TRANSITIONS
from rnic.context.qpc import QPC_BYTES
from rnic.device.mailboxes import (
    ADAPTER,
    DEV_LIM,
    ICM_ENTRY,
    INIT_HCA,
    MGM,
    MTT_HEADER,
    MTT_PAGE_BYTES,
    OPEN_XRCD,
)
from rnic.mem.mpt import MPT_BYTES
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec import registers as reg
from rnic.wire.mad import MAD_BYTES

if TYPE_CHECKING:
    from rnic.device.host import RegisterHost
    from rnic.device.uar import Uar

MAILBOX_BYTES = 4096
MAILBOX_ALIGN = 32
_IN_HI, _IN_LO, _MODIFIER, _OUT_HI, _OUT_LO, _TOKEN, _COMMAND = range(7)

INBOX_BYTES: dict[int, int] = {
    cmd.INIT_HCA: INIT_HCA.size,
    cmd.SW2HW_MPT: MPT_BYTES,
    cmd.MAP_EQ: 8,
    cmd.SW2HW_EQ: EQC_BYTES,
    cmd.SW2HW_CQ: CQC_BYTES,
    cmd.RESIZE_CQ: CQC_BYTES,
    cmd.SW2HW_SRQ: SRQC_BYTES,
    cmd.ARM_SRQ: 4,
    cmd.READ_MGM: MGM.size,
    cmd.WRITE_MGM: MGM.size,
    cmd.MGID_HASH: 16,
    cmd.MAD_IFC: MAD_BYTES,
    cmd.WRITE_CFG: 8,
    cmd.OPEN_XRCD: OPEN_XRCD.size,
    **dict.fromkeys(TRANSITIONS, QPC_BYTES),
}
"""Size of each input mailbox; ``in_modifier`` is the number of entries for WRITE_MTT and the ICM commands, and the
number of bytes for WRITE_NON_RDMA."""

OUTBOX_BYTES: dict[int, int] = {
    cmd.QUERY_DEV_LIM: DEV_LIM.size,
    cmd.QUERY_ADAPTER: ADAPTER.size,
    cmd.QUERY_MPT: MPT_BYTES,
    cmd.QUERY_QP: QPC_BYTES,
    cmd.QUERY_SRQ: SRQC_BYTES,
    cmd.READ_MGM: MGM.size,
    cmd.MAD_IFC: MAD_BYTES,
    cmd.READ_NON_RDMA: MAILBOX_BYTES,
}
"""Size of each output mailbox. All other commands return their result in ``out_param``."""


def inbox_bytes(op: int, in_modifier: int) -> int | None:
    """Return the size of a command's input mailbox, or ``None`` if it is too large."""
    if op == cmd.WRITE_MTT:
        size = MTT_HEADER.size + in_modifier * MTT_PAGE_BYTES
    elif op == cmd.WRITE_NON_RDMA:
        size = in_modifier
    elif op in (cmd.MAP_ICM, cmd.UNMAP_ICM):
        size = in_modifier * ICM_ENTRY.size
    else:
        size = INBOX_BYTES.get(op, 0)
    return size if size <= MAILBOX_BYTES else None


class Hcr:
    """One context's command register."""

    __slots__ = ("words",)

    def __init__(self) -> None:
        self.words = [0] * 7

    def store(self, nic: RegisterHost, uar: Uar, index: int, value: int) -> None:
        """Store one word; the last one with GO runs the command."""
        if index == _TOKEN:
            value &= 0xFFFF_0000
        if index != _COMMAND:
            self.words[index] = value
            return
        self.words[_COMMAND] = self.words[_COMMAND] & 0xFF00_0000 | value & 0x007F_FFFF
        if value & reg.HCR_GO:
            status = self._run(nic, uar, value & 0xFFF, value >> 12 & 0xFF)
            self.words[_COMMAND] = status << 24 | value & 0x007F_FFFF
            if value & reg.HCR_EVENT:
                self._tell(nic, uar, status)

    def _run(self, nic: RegisterHost, uar: Uar, op: int, op_modifier: int) -> int:
        words = self.words
        source = words[_IN_HI] << 32 | words[_IN_LO]
        target = words[_OUT_HI] << 32 | words[_OUT_LO]
        modifier = words[_MODIFIER]
        size = inbox_bytes(op, modifier)
        answer_bytes = OUTBOX_BYTES.get(op, 0)
        if size is None:
            return cmd.ST_BAD_SIZE
        if source % MAILBOX_ALIGN or (answer_bytes and target % MAILBOX_ALIGN):
            return cmd.ST_BAD_PARAM
        inbox = bytearray(size if source else 0)
        if inbox and not uar.port.read(source, inbox):
            return cmd.ST_INTERNAL_ERR
        if answer_bytes and not uar.port.write(target, bytes(answer_bytes)):
            return cmd.ST_INTERNAL_ERR
        result = nic.command(uar, op, modifier, op_modifier, bytes(inbox))
        if result.status != cmd.ST_OK:
            return result.status
        if answer_bytes:
            if not uar.port.write(target, result.outbox):
                return cmd.ST_INTERNAL_ERR
        else:
            words[_OUT_HI], words[_OUT_LO] = result.out_param >> 32, result.out_param & 0xFFFF_FFFF
        return cmd.ST_OK

    def _tell(self, nic: RegisterHost, uar: Uar, status: int) -> None:
        words = self.words
        nic.globals.raise_cause(reg.IRQ_COMMAND)
        eqn = uar.event_queues.get(events.CMD)
        if eqn is not None:
            nic.resources.eqs[eqn].report(
                events.CMD, words[_TOKEN] >> 16, status, out_hi=words[_OUT_HI], out_lo=words[_OUT_LO]
            )
