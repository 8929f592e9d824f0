"""Commands on the device as a whole: start and stop, port, context memory, management datagrams, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from rnic.device.icm import Run
from rnic.device.mad_agent import answer
from rnic.device.mailboxes import ICM_ENTRY, INIT_HCA
from rnic.device.multicast import is_multicast
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd
from rnic.spec.limits import MAX_EQS
from rnic.wire.mad import MAD_BYTES

if TYPE_CHECKING:
    from rnic.device.commands import Answer
    from rnic.device.host import CommandHost
    from rnic.device.uar import Uar

BEFORE_INIT = frozenset({cmd.NOP, cmd.QUERY_DEV_LIM, cmd.QUERY_ADAPTER, cmd.INIT_HCA, cmd.MAP_ICM, cmd.UNMAP_ICM})
"""Commands that run before INIT_HCA."""
MAX_WEIGHT = 16
_DONE: Answer = (0, b"")


def init_hca(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Start the device with its context tables; BAD_SYS_STATE if it is started already.

    BAD_PARAM if tables overlap or are not aligned, or a waiting page is outside of them.
    """
    if len(inbox) != INIT_HCA.size:
        raise Refused(cmd.ST_BAD_SIZE)
    if nic.globals.ready:
        raise Refused(cmd.ST_BAD_SYS_STATE)
    given = INIT_HCA.unpack(inbox)
    log_mrs = (nic.config.max_mrs - 1).bit_length()
    most = {
        "qpc": nic.config.log_max_qps,
        "cqc": nic.config.log_max_qps,
        "eqc": MAX_EQS.bit_length() - 1,
        "mpt": log_mrs,
        "mtt": 18,
    }
    if any(given[f"log_{name}s"] > log for name, log in most.items()):
        raise Refused(cmd.ST_EXCEED_LIM)
    nic.start(inbox)
    return _DONE


def close_hca(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Stop the device; RESOURCE_BUSY while any object exists or another context is open."""
    res = nic.resources
    if res.uars != [uar] or res.blocks or res.keys or any(pool.owners for pool in res.pools.values()):
        raise Refused(cmd.ST_RESOURCE_BUSY)
    nic.stop()
    return _DONE


def _port_command(port: int) -> None:
    if port != 1:
        raise Refused(cmd.ST_BAD_INDEX)


def init_port(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Open port ``in_modifier``."""
    _port_command(in_modifier)
    nic.globals.open_port()
    return _DONE


def close_port(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Close port ``in_modifier``: send nothing and drop received packets.

    RESOURCE_BUSY while another program has the device open; the port reopens when another program opens the device, or
    when this one is gone.
    """
    _port_command(in_modifier)
    if not nic.globals.close_port(uar.program):
        raise Refused(cmd.ST_RESOURCE_BUSY)
    return _DONE


def _runs(count: int, inbox: bytes) -> list[Run]:
    size = ICM_ENTRY.size
    if not count or len(inbox) != count * size:
        raise Refused(cmd.ST_BAD_SIZE)
    runs = []
    for at in range(0, len(inbox), size):
        entry = ICM_ENTRY.unpack(inbox, at)
        runs.append((entry["virt"], entry["page_hi"] << 32 | entry["page"] << 12, entry["npages"]))
    return runs


def map_icm(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Map ``in_modifier`` runs of pages as context memory of kind ``op_modifier``."""
    nic.resources.icm.map(uar, op_modifier, _runs(in_modifier, inbox))
    return _DONE


def unmap_icm(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Unmap context memory; contexts there lose their host memory (:meth:`rnic.device.icm.Icm.unmap`)."""
    nic.resources.icm.unmap(uar, op_modifier, _runs(in_modifier, inbox))
    return _DONE


def mad_ifc(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Pass a management datagram to the port's agent; the outbox is its response."""
    if len(inbox) != MAD_BYTES:
        raise Refused(cmd.ST_BAD_SIZE)
    _port_command(in_modifier)
    reply = answer(nic, inbox)
    if reply is None:
        raise Refused(cmd.ST_BAD_PARAM)
    return 0, reply


def conf_special_qp(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Refuse the command: QP0 and QP1 belong to the device (004 7.2); their datagrams go through MAD_IFC."""
    raise Refused(cmd.ST_BAD_RESOURCE)


def mgid_hash(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Return the 16-bit hash of a multicast GID, for lookup in a driver's own group table."""
    if len(inbox) != 16:
        raise Refused(cmd.ST_BAD_SIZE)
    if not is_multicast(inbox):
        raise Refused(cmd.ST_BAD_PARAM)
    return crc32(inbox) & 0xFFFF, b""


def set_weight(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Set a queue pair's scheduler weight, 1 to 16; the default is 1."""
    nic.resources.own(uar, cmd.RES_QP, in_modifier)
    qp = nic.resources.qps.get(in_modifier)
    if qp is None:
        raise Refused(cmd.ST_BAD_QP_STATE)
    if not 1 <= op_modifier <= MAX_WEIGHT:
        raise Refused(cmd.ST_BAD_PARAM)
    qp.turn = nic.config.turn_bytes * op_modifier
    return _DONE
