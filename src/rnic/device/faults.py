"""Faults inside a device: states, completions and events as the ConnectX driver reports them.

Sans I/O: each function does one thing to a NIC, now. :mod:`rnic.runtime.faults` handles faults that last, heal or start
at a given time. Everything here happens between packets, never inside one.

Reports follow mlx5: changes of GIDs and P_Keys are port change events with mlx5's subtypes; a queue pair's error is a
completion if there is a request to complete, else an event.
"""

from __future__ import annotations

from errno import EINVAL
from typing import TYPE_CHECKING, Any

from rnic.device.entry_ring import QUEUE_ERROR
from rnic.device.mailboxes import INIT_HCA, MAX_GIDS, MAX_PKEYS
from rnic.mem.keys import key_index
from rnic.mem.table import REGION
from rnic.rings.queue_block import QUEUE_STATE
from rnic.spec.errors import VerbsError
from rnic.spec.events import LOCAL_CATAS_ERROR, PORT_CHANGE, SRQ_CATAS_ERROR
from rnic.spec.opcodes import RC
from rnic.spec.ports import PORT_GUID, PORT_PKEY
from rnic.spec.registers import CONTROL_ENABLE, IRQ_FATAL, IRQ_PORT
from rnic.spec.states import ERR

if TYPE_CHECKING:
    from rnic.device.host import FaultHost
    from rnic.device.queue_pair import DeviceQp
    from rnic.mem.dma import DmaPort
    from rnic.mem.table import MemoryEntry

_CAN_COMPLETE_IN_ERROR = "a reliable connection, whose requests complete when the peer answers"


def _missing(kind: str, number: int, there: object) -> VerbsError:
    known = ", ".join(str(each) for each in sorted(there)) if isinstance(there, dict) else ""
    return VerbsError(EINVAL, f"{kind} {number} is not there; there are: {known or 'none'}")


# ------------------------------------------------------------------------------------------------ tables


def set_gid(nic: FaultHost, index: int, gid: bytes) -> bytes:
    """Store an entry of the GID table, 16 bytes, all zero for an empty one. Return the previous entry.

    Connections go on as they are (the kernel keeps an entry for as long as a queue pair uses it); new ones that name an
    empty entry are refused. Packets leave from the device's own address whatever the table says.
    """
    if index >= MAX_GIDS:
        raise VerbsError(EINVAL, f"index={index} is beyond the GID table: 0 to {MAX_GIDS - 1}")
    table = list(nic.config.gid_table)
    table += [bytes(16)] * (index + 1 - len(table))
    before, table[index] = table[index], gid
    nic.config.gid_table = tuple(table)
    _port_changed(nic, PORT_GUID)
    return before


def set_pkey(nic: FaultHost, index: int, pkey: int) -> int:
    """Store an entry of the P_Key table, 0 for an empty one. Return the previous entry.

    Queue pairs that use the entry send and expect the new P_Key at once (IBA 10.9.3).
    """
    if index >= MAX_PKEYS:
        raise VerbsError(EINVAL, f"index={index} is beyond the P_Key table: 0 to {MAX_PKEYS - 1}")
    table = list(nic.config.pkeys)
    table += [0] * (index + 1 - len(table))
    before, table[index] = table[index], pkey
    nic.config.pkeys = tuple(table)
    for qp in nic.qps.values():
        qp.refresh()
    _port_changed(nic, PORT_PKEY)
    return before


def _port_changed(nic: FaultHost, subtype: int) -> None:
    nic.globals.raise_cause(IRQ_PORT)
    nic.broadcast_event(PORT_CHANGE, 1, subtype=subtype)


# ------------------------------------------------------------------------------------------------ queues


def fail_qp(nic: FaultHost, number: int) -> None:
    """Move one queue pair to the error state: posted work is flushed, and IBV_EVENT_QP_FATAL is reported."""
    qp = _qp(nic, number)
    if qp.ctx.state != ERR:
        qp.enter_error()


def _qp(nic: FaultHost, number: int) -> DeviceQp:
    qp = nic.qps.get(number)
    if qp is None:
        raise _missing("queue pair", number, nic.qps)
    return qp


def fail_srq(nic: FaultHost, number: int) -> None:
    """Fail a shared receive queue, and the queue pairs that receive from it with it (IBA 10.2.9)."""
    srq = nic.resources.srqs.get(number)
    if srq is None:
        raise _missing("SRQ", number, nic.resources.srqs)
    if srq.failed:
        return
    srq.failed = 1
    srq.regs.set(QUEUE_STATE, QUEUE_ERROR)
    nic.event(SRQ_CATAS_ERROR, number)
    for qp in [qp for qp in nic.qps.values() if qp.srq is srq and qp.ctx.state != ERR]:
        qp.enter_error()


def overflow_cq(nic: FaultHost, number: int) -> None:
    """Overrun a CQ: it takes no more entries, IBV_EVENT_CQ_ERR is reported, and its queue pairs fail."""
    cq = nic.resources.cqs.get(number)
    if cq is None:
        raise _missing("CQ", number, nic.resources.cqs)
    cq.fail()


def check_send(nic: FaultHost, number: int) -> None:
    """Check that :func:`fail_send` can ever do something for this queue pair.

    Raises:
        VerbsError: there is no queue pair of this number, or it is not a reliable connection.
    """
    if _qp(nic, number).opcodes != RC:
        raise VerbsError(EINVAL, f"queue pair {number} is not RC: completion-error takes {_CAN_COMPLETE_IN_ERROR}")


def fail_send(nic: FaultHost, number: int, status: int) -> bool:
    """Complete the oldest send in flight with ``status``, and flush the rest. Return false if none is in flight."""
    qp = nic.qps.get(number)
    if qp is None or not qp.requester.begun:
        return False
    qp.fail_send(status, 0)
    return True


def tell(nic: FaultHost, event_type: int, element: str, subtype: int, number: int | None) -> None:
    """Report an asynchronous event, though nothing has happened.

    Args:
        nic: the device.
        event_type: of :mod:`rnic.spec.events`.
        element: ``"qp"``, ``"cq"``, ``"srq"``, ``"port"`` or ``"device"``: the subject.
        subtype: of a port change.
        number: of the queue; ``None`` for all.

    Raises:
        VerbsError: EINVAL: there is no such queue.
    """
    if element in ("port", "device"):
        nic.broadcast_event(event_type, 1 if element == "port" else 0, subtype=subtype)
        return
    resources = nic.resources
    known: dict[int, Any] = {"qp": nic.qps, "cq": resources.cqs, "srq": resources.srqs}[element]  # type: ignore[assignment]
    if number is not None and number not in known:
        raise _missing({"qp": "queue pair"}.get(element, element.upper()), number, known)
    for each in list(known) if number is None else [number]:
        uar = known[each].uar
        eqn = uar.event_queues.get(event_type)
        if eqn is not None:
            resources.eqs[eqn].report(event_type, each)


# ------------------------------------------------------------------------------------------------ memory


class LostRegion:
    """A region that the NIC lost, and the data needed to restore it."""

    __slots__ = ("entry", "port", "view")

    def __init__(self, entry: MemoryEntry) -> None:
        self.entry = entry
        self.view: memoryview | None = entry.view
        self.port: DmaPort | None = entry.port


def regions(nic: FaultHost) -> list[int]:
    """Return the keys of the regions that can be lost: those that are valid now."""
    entries = [record.entry for record in nic.resources.keys.values()]
    return [
        entry.key
        for entry in entries
        if entry is not None and entry.kind == REGION and nic.memory.lookup(entry.key) is entry
    ]


def lose_region(nic: FaultHost, key: int) -> LostRegion:
    """Make a region's key fail from now on, for the owner (LOC_PROT_ERR) and for peers (remote access error).

    Raises:
        VerbsError: no region has this key (EINVAL), or windows are bound to it (EBUSY).
    """
    record = nic.resources.keys.get(key_index(key))
    entry = None if record is None else record.entry
    if entry is None or entry.key != key or nic.memory.lookup(key) is not entry or entry.kind != REGION:
        raise _missing("region of key", key, dict.fromkeys(regions(nic)))
    lost = LostRegion(entry)
    nic.memory.disable(key)
    return lost


def restore_region(nic: FaultHost, lost: LostRegion) -> None:
    """Restore the region, unless its owner deregistered it meanwhile."""
    entry = lost.entry
    record = nic.resources.keys.get(entry.index)
    if record is None or record.entry is not entry or nic.memory.lookup(entry.key) is not None:
        return
    entry.view, entry.port = lost.view, lost.port
    nic.memory.enable(entry)


# ------------------------------------------------------------------------------------------------ device


def fail_device(nic: FaultHost) -> None:
    """Fail the device: IBV_EVENT_DEVICE_FATAL to every context, then no packets, and commands fail with EIO.

    Contexts that were open stay dead when it comes back: a program closes them and opens the device anew.
    """
    if nic.globals.dead:
        return
    nic.globals.fatal = True
    nic.globals.raise_cause(IRQ_FATAL)
    nic.broadcast_event(LOCAL_CATAS_ERROR, 0)
    nic.globals.dead = True
    for uar in nic.resources.uars:
        uar.dead = True
    nic.update_enabled()


def revive_device(nic: FaultHost) -> None:
    """Revive the device as after power-up, with nothing left in it."""
    if not nic.globals.dead:
        return
    nic.soft_reset()
    if nic.config.autostart:
        nic.globals.control = CONTROL_ENABLE
        nic.start(bytes(INIT_HCA.size))
    nic.update_enabled()
