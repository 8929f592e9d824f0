"""Device faults: states, completions and events, reported like ConnectX does.

Sans I/O: each function injects one fault into a NIC at once. :mod:`rnic.runtime.faults` handles faults that last, heal
or start at a given time. All faults are injected between packets.

Reports follow mlx5: changes of GIDs and P_Keys are port change events with mlx5's subtypes; a queue pair's error is
reported by a completion if there is a request to complete, else by an event.
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

    Existing connections continue (the kernel keeps an entry as long as a queue pair uses it); new ones with an empty
    entry are refused. Packets are always sent from the device's own address.
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
    """Move one queue pair to the error state: flush posted work and report IBV_EVENT_QP_FATAL."""
    qp = _qp(nic, number)
    if qp.ctx.state != ERR:
        qp.enter_error()


def _qp(nic: FaultHost, number: int) -> DeviceQp:
    qp = nic.qps.get(number)
    if qp is None:
        raise _missing("queue pair", number, nic.qps)
    return qp


def fail_srq(nic: FaultHost, number: int) -> None:
    """Fail a shared receive queue and all queue pairs that receive from it (IBA 10.2.9)."""
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
    """Overrun a CQ: it accepts no more entries, IBV_EVENT_CQ_ERR is reported, and its queue pairs fail."""
    cq = nic.resources.cqs.get(number)
    if cq is None:
        raise _missing("CQ", number, nic.resources.cqs)
    cq.fail()


def check_send(nic: FaultHost, number: int) -> None:
    """Check that :func:`fail_send` is applicable to this queue pair.

    Raises:
        VerbsError: there is no such queue pair, or it is not a reliable connection.
    """
    if _qp(nic, number).opcodes != RC:
        raise VerbsError(EINVAL, f"queue pair {number} is not RC: completion-error takes {_CAN_COMPLETE_IN_ERROR}")


def fail_send(nic: FaultHost, number: int, status: int) -> bool:
    """Complete the oldest send in flight with ``status``, and flush the others. Return false if none is in flight."""
    qp = nic.qps.get(number)
    if qp is None or not qp.requester.begun:
        return False
    qp.fail_send(status, 0)
    return True


def tell(nic: FaultHost, event_type: int, element: str, subtype: int, number: int | None) -> None:
    """Report a spurious asynchronous event.

    Args:
        nic: the device.
        event_type: event type of :mod:`rnic.spec.events`.
        element: ``"qp"``, ``"cq"``, ``"srq"``, ``"port"`` or ``"device"``: the subject.
        subtype: subtype of a port change event.
        number: number of the queue; ``None`` for all.

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
    """A region that was made to fail, with the data to restore it."""

    __slots__ = ("entry", "port", "view")

    def __init__(self, entry: MemoryEntry) -> None:
        self.entry = entry
        self.view: memoryview | None = entry.view
        self.port: DmaPort | None = entry.port


def regions(nic: FaultHost) -> list[int]:
    """Return the keys of all valid regions, which can be made to fail."""
    entries = [record.entry for record in nic.resources.keys.values()]
    return [
        entry.key
        for entry in entries
        if entry is not None and entry.kind == REGION and nic.memory.lookup(entry.key) is entry
    ]


def lose_region(nic: FaultHost, key: int) -> LostRegion:
    """Make a region's key fail from now on, for its owner (LOC_PROT_ERR) and for peers (remote access error).

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
    """Restore the region, unless its owner has deregistered it."""
    entry = lost.entry
    record = nic.resources.keys.get(entry.index)
    if record is None or record.entry is not entry or nic.memory.lookup(entry.key) is not None:
        return
    entry.view, entry.port = lost.view, lost.port
    nic.memory.enable(entry)


# ------------------------------------------------------------------------------------------------ device


def fail_device(nic: FaultHost) -> None:
    """Fail the device: report IBV_EVENT_DEVICE_FATAL to every context, stop all packets, and fail commands with EIO.

    Open contexts stay dead when the device returns: programs must close them and open the device again.
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
    """Revive the device as after power-up, without any objects."""
    if not nic.globals.dead:
        return
    nic.soft_reset()
    if nic.config.autostart:
        nic.globals.control = CONTROL_ENABLE
        nic.start(bytes(INIT_HCA.size))
    nic.update_enabled()
