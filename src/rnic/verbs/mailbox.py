"""The driver's side of the command register: two mailboxes in its memory and seven stores (``hardware.md`` 2a)."""

from __future__ import annotations

from rnic.device.commands import CommandResult
from rnic.device.hcr import MAILBOX_ALIGN, MAILBOX_BYTES, OUTBOX_BYTES, inbox_bytes
from rnic.device.uar import Uar
from rnic.mem.space import AddressSpace
from rnic.spec import commands as cmd
from rnic.spec import registers as reg

_LOW = 0xFFFF_FFFF


class CommandMailbox:
    """Runs commands through the registers of one window, one at a time.

    Args:
        uar: the window.
        space: addresses of the driver's memory, in which the mailboxes are mapped.
    """

    __slots__ = ("_in_va", "_inbox", "_mapping", "_memory", "_out_va", "_outbox", "_space", "_uar")

    def __init__(self, uar: Uar, space: AddressSpace) -> None:
        self._uar = uar
        self._space = space
        self._memory = bytearray(2 * MAILBOX_BYTES + MAILBOX_ALIGN)
        self._mapping = space.map(self._memory, writable=True)
        skip = -self._mapping.va % MAILBOX_ALIGN
        view = memoryview(self._memory)[skip:]
        self._inbox = view[:MAILBOX_BYTES]
        self._outbox = view[MAILBOX_BYTES : 2 * MAILBOX_BYTES]
        self._in_va = self._mapping.va + skip
        self._out_va = self._in_va + MAILBOX_BYTES

    def run(self, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b"") -> CommandResult:
        """Run one command, polled. A mailbox of another size than the command's is BAD_SIZE before it is asked."""
        if not (0 <= in_modifier <= _LOW and 0 <= op_modifier <= 0xFF and 0 <= op <= 0xFFF):
            return CommandResult(cmd.ST_BAD_PARAM)
        if inbox:
            if len(inbox) != inbox_bytes(op, in_modifier):
                return CommandResult(cmd.ST_BAD_SIZE)
            self._inbox[: len(inbox)] = inbox
        source = self._in_va if inbox else 0
        store = self._uar.write
        store(reg.HCR_IN_HI, source >> 32)
        store(reg.HCR_IN_LO, source & _LOW)
        store(reg.HCR_MODIFIER, in_modifier)
        store(reg.HCR_OUT_HI, self._out_va >> 32)
        store(reg.HCR_OUT_LO, self._out_va & _LOW)
        store(reg.HCR_TOKEN, 0)
        store(reg.HCR_COMMAND, reg.HCR_GO | op_modifier << 12 | op)
        load = self._uar.read
        while (word := load(reg.HCR_COMMAND)) & reg.HCR_GO:
            pass
        status = word >> 24
        if status != cmd.ST_OK:
            return CommandResult(status)
        answer = OUTBOX_BYTES.get(op, 0)
        if answer:
            return CommandResult(status, 0, bytes(self._outbox[:answer]))
        return CommandResult(status, load(reg.HCR_OUT_HI) << 32 | load(reg.HCR_OUT_LO))

    def close(self) -> None:
        """Unmap the mailboxes."""
        self._space.unmap(self._mapping)
