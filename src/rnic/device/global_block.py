"""The global register block: the effects of stores and the values of loads (:mod:`rnic.spec.registers`).

CONTROL gates only the data path. Commands run while the NIC is disabled, since queues are created before it is enabled
(001 3.7), but only NOP, queries and context memory commands run before INIT_HCA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.device.resources import LOG_MAX_SRQS
from rnic.spec import registers as reg
from rnic.spec.events import PORT_CHANGE
from rnic.spec.limits import MAX_EQS, MTU_CODES
from rnic.spec.ports import PORT_ACTIVE, PORT_DOWN

if TYPE_CHECKING:
    from rnic.device.host import RegisterHost
    from rnic.device.uar import Uar


class GlobalBlock:
    """State of the registers. INIT_HCA sets ``ready``, the device itself sets ``fatal``.

    ``dead`` is true after the device failed, until it is revived. ``port_open`` is set by INIT_PORT and CLOSE_PORT,
    ``link_up`` by the link; the port is active if both are true. ``closer`` is the program whose CLOSE_PORT is in
    effect, which lasts as long as no other program has the device open.
    """

    __slots__ = (
        "_nic",
        "closer",
        "control",
        "dead",
        "down_state",
        "fatal",
        "irq_enable",
        "irq_status",
        "link_up",
        "port_open",
        "ready",
        "scratch",
    )

    def __init__(self, nic: RegisterHost) -> None:
        self._nic = nic
        self.scratch = {reg.SCRATCH: 0, reg.SCRATCH2: 0}
        self.control = 0
        self.irq_enable = 0
        self.irq_status = 0
        self.ready = False
        self.fatal = False
        self.dead = False
        self.link_up = True
        self.port_open = False
        self.down_state = PORT_DOWN
        """State that the port reports while it is down."""
        self.closer: int | None = None

    # ------------------------------------------------------------------------------------ registers

    def read(self, uar: Uar, offset: int) -> int:
        """Return the value of the register at ``offset`` of the block; 0 if there is none."""
        if offset & 3:
            return 0
        if reg.HCR_IN_HI <= offset <= reg.HCR_COMMAND:
            return uar.hcr.words[offset - reg.HCR_IN_HI >> 2]
        if offset in self.scratch:
            return self.scratch[offset]
        show = _SHOWN.get(offset)
        return 0 if show is None else show(self)

    def write(self, uar: Uar, offset: int, value: int) -> None:
        """Store 32 bits; stores to read-only or missing registers are ignored."""
        if offset == reg.CONTROL:
            self._control(value)
        elif offset == reg.IRQ_ENABLE:
            self.irq_enable = value & reg.IRQ_BITS
        elif offset == reg.IRQ_STATUS:
            self.irq_status &= ~value
        elif offset in self.scratch:
            self.scratch[offset] = value
        elif reg.HCR_IN_HI <= offset <= reg.HCR_COMMAND and not offset & 3:
            uar.hcr.store(self._nic, uar, offset - reg.HCR_IN_HI >> 2, value)

    def _control(self, value: int) -> None:
        if value & reg.CONTROL_RESET:
            self._nic.soft_reset()
            return
        self.control = value & (reg.CONTROL_ENABLE | reg.CONTROL_PAUSE | reg.CONTROL_MODE | reg.CONTROL_IRQ)
        self._nic.update_enabled()

    def reset(self) -> None:
        """Reset all registers and state as after power-up, except the link state."""
        self.down_state = PORT_DOWN
        self.scratch = {reg.SCRATCH: 0, reg.SCRATCH2: 0}
        self.control = self.irq_enable = self.irq_status = 0
        self.ready = self.fatal = self.dead = self.port_open = False
        self.closer = None

    # --------------------------------------------------------------------------------------- state

    @property
    def enabled(self) -> bool:
        """True if the data path may run: enabled, the port open, and the device alive."""
        return bool(self.control & reg.CONTROL_ENABLE) and self.port_open and not self.dead

    @property
    def paused(self) -> bool:
        """True while CONTROL.PAUSE is 1."""
        return bool(self.control & reg.CONTROL_PAUSE)

    @property
    def port_state(self) -> int:
        """:data:`PORT_ACTIVE`, or ``down_state``, which is :data:`PORT_DOWN` unless a fault sets another state."""
        return PORT_ACTIVE if self.port_open and self.link_up else self.down_state

    @property
    def causes(self) -> int:
        """Value of IRQ_STATUS: raised causes, and EVENT while an interrupt is pending."""
        return self.irq_status | (reg.IRQ_EVENT if self._nic.resources.interrupts else 0)

    @property
    def interrupt_line(self) -> bool:
        """Level of the interrupt line: any enabled cause, gated by CONTROL.GLOBAL_IRQ_EN."""
        return bool(self.causes & self.irq_enable) and bool(self.control & reg.CONTROL_IRQ)

    def raise_cause(self, cause: int) -> None:
        """Set a cause in IRQ_STATUS."""
        self.irq_status |= cause

    def set_port(self, *, port_open: bool | None = None, link_up: bool | None = None) -> None:
        """Change the port's or the link's state; report a change of the port's state to every context."""
        before = self.port_state
        if port_open is not None:
            self.port_open = port_open
        if link_up is not None:
            self.link_up = link_up
        self._nic.update_enabled()
        if self.port_state != before:
            self.raise_cause(reg.IRQ_PORT)
            self._nic.broadcast_event(PORT_CHANGE, 1, subtype=self.port_state)

    def close_port(self, program: int) -> bool:
        """Run CLOSE_PORT for one program. Return false, with the port unchanged, if others have the device open."""
        if any(uar.program != program for uar in self._nic.resources.uars):
            return False
        self.closer = program
        self.set_port(port_open=False)
        return True

    def open_port(self) -> None:
        """Open the port, by INIT_PORT or once CLOSE_PORT no longer applies."""
        self.closer = None
        self.set_port(port_open=True)

    def add_uar(self, uar: Uar) -> None:
        """Reopen the port if another program closed it, since a context was opened."""
        if self.closer is not None and self.closer != uar.program:
            self.open_port()

    def remove_uar(self, uar: Uar) -> None:
        """Reopen the port if it was closed by a program that is gone, since its context was closed."""
        if self.closer == uar.program and all(other.program != uar.program for other in self._nic.resources.uars):
            self.open_port()

    # ------------------------------------------------------------------------------ register values

    def _hw_status(self) -> int:
        return (
            (reg.STATUS_ENABLED if self.control & reg.CONTROL_ENABLE else 0)
            | (reg.STATUS_READY if self.ready else 0)
            | (reg.STATUS_PAUSED if self.paused else 0)
            | (reg.STATUS_LINK if self.link_up else 0)
            | (reg.STATUS_FATAL if self.fatal else 0)
            | (reg.STATUS_BUSY if self._nic.has_work() else 0)
        )

    def _queues(self) -> int:
        log_qps = self._nic.config.log_max_qps
        return log_qps | log_qps << 8 | LOG_MAX_SRQS << 16 | (MAX_EQS.bit_length() - 1) << 24

    def _port(self) -> int:
        config = self._nic.config
        return config.port | MTU_CODES[config.mtu] << 16 | self.port_state << 20

    def _guid(self, shift: int) -> int:
        return self._nic.config.guid >> shift & 0xFFFF_FFFF

    def _window_blocks(self) -> int:
        return self._nic.resources.uar_blocks

    def _max_mrs(self) -> int:
        return self._nic.config.max_mrs

    def _non_rdma(self) -> int:
        return len(self._nic.non_rdma)


_SHOWN: dict[int, Callable[[GlobalBlock], int]] = {
    reg.CONTROL: lambda block: block.control,
    reg.HW_STATUS: GlobalBlock._hw_status,
    reg.IRQ_ENABLE: lambda block: block.irq_enable,
    reg.IRQ_STATUS: lambda block: block.causes,
    reg.DEVICE_ID: lambda block: reg.GLOBAL_AT[reg.DEVICE_ID].reset,
    reg.REVISION: lambda block: reg.GLOBAL_AT[reg.REVISION].reset,
    reg.GUID_HI: lambda block: block._guid(32),
    reg.GUID_LO: lambda block: block._guid(0),
    reg.LIMIT_QUEUES: GlobalBlock._queues,
    reg.LIMIT_MEMORY: GlobalBlock._max_mrs,
    reg.WINDOW_BLOCKS: GlobalBlock._window_blocks,
    reg.PORT: GlobalBlock._port,
    reg.NON_RDMA: GlobalBlock._non_rdma,
}
