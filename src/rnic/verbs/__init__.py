"""The verbs API: pyverbs' objects, attributes and ``IBV_*`` numbers on rnic's devices.

Everything here talks to a NIC as a driver does: rings in registered memory, doorbells, commands and interrupts.
"""

from rnic.spec.syndromes import retry_exceeded_ns
from rnic.verbs.attrs import (
    GID,
    SGE,
    WC,
    AHAttr,
    AllocDmAttr,
    BindInfo,
    DeviceAttr,
    GlobalRoute,
    PortAttr,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
    XRCDInitAttr,
)
from rnic.verbs.batch import completion_dtype, datagram_dtype, send_dtype
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.devices import Device, get_device_list, runtime_on
from rnic.verbs.dm import DM, DMMR
from rnic.verbs.event_queues import AsyncEvent, CompChannel
from rnic.verbs.memory import AH, MR, MW, PD, next_key
from rnic.verbs.qp import QP
from rnic.verbs.remote import open as open  # noqa: A004 - as programs call it; import * leaves the builtin alone
from rnic.verbs.srq import SRQ
from rnic.verbs.xrc import XRCD

__all__ = [
    "AH",
    "CQ",
    "DM",
    "DMMR",
    "GID",
    "MR",
    "MW",
    "PD",
    "QP",
    "SGE",
    "SRQ",
    "WC",
    "XRCD",
    "AHAttr",
    "AllocDmAttr",
    "AsyncEvent",
    "BindInfo",
    "CompChannel",
    "Context",
    "Device",
    "DeviceAttr",
    "GlobalRoute",
    "PortAttr",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "RecvWR",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "XRCDInitAttr",
    "completion_dtype",
    "datagram_dtype",
    "get_device_list",
    "next_key",
    "retry_exceeded_ns",
    "runtime_on",
    "send_dtype",
]
