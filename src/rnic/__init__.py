"""An RDMA NIC in Python: RoCEv2 on the wire, verbs above it, no hardware, no kernel module, no root.

Two ways in. The short one shares arrays between processes::

    rnic.listen(port=7471).share(a=array)            # here
    copy = rnic.connect("127.0.0.1", 7471).read("a")  # there

The other is the verbs API, with pyverbs' objects (:class:`Context`, :class:`PD`, :class:`MR`, :class:`CQ`,
:class:`QP` ...) and the ``IBV_*`` numbers in :mod:`rnic.enums`.

Each name is loaded when it is used first, so that commands start fast.
"""

from importlib import import_module

TYPE_CHECKING = (
    False  # for tools that read types: the module of this name takes as long to load as everything else here
)
if TYPE_CHECKING:
    from rnic.arrays.aio import AsyncListener, aconnect, alisten
    from rnic.arrays.batch import Batch
    from rnic.arrays.connection import Connection
    from rnic.arrays.handshake import BufferInfo
    from rnic.arrays.listener import Listener, connect, listen
    from rnic.arrays.remote_array import RemoteArray
    from rnic.cm.cm_connection import CmConnectError, CmConnection, CmRejectedError, CmTimeoutError
    from rnic.cm.cm_listener import CmListener, CmRequest, acm_connect, cm_connect, cm_listen
    from rnic.cm.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam, JoinMCAttrEx, UDParam
    from rnic.cm.line_socket import ExchangeError
    from rnic.cm.rc_connection import Pending
    from rnic.cm.work_queue import PeerClosedError
    from rnic.link.base import LinkError
    from rnic.spec.errors import RnicError, VerbsError, WorkCompletionError
    from rnic.verbs import (
        AH,
        CQ,
        DM,
        DMMR,
        GID,
        MR,
        MW,
        PD,
        QP,
        SGE,
        SRQ,
        WC,
        XRCD,
        AHAttr,
        AllocDmAttr,
        AsyncEvent,
        BindInfo,
        CompChannel,
        Context,
        Device,
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
        enums,
        get_device_list,
    )
    from rnic.verbs import open as open  # noqa: A004 - as programs call it; import * leaves the builtin alone

__version__ = "0.1.0"

__all__ = [
    "AH",
    "CMID",
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
    "AddrInfo",
    "AllocDmAttr",
    "AsyncEvent",
    "AsyncListener",
    "Batch",
    "BindInfo",
    "BufferInfo",
    "CMEvent",
    "CMEventChannel",
    "CmConnectError",
    "CmConnection",
    "CmListener",
    "CmRejectedError",
    "CmRequest",
    "CmTimeoutError",
    "CompChannel",
    "ConnParam",
    "Connection",
    "Context",
    "Device",
    "DeviceAttr",
    "ExchangeError",
    "GlobalRoute",
    "JoinMCAttrEx",
    "LinkError",
    "Listener",
    "PeerClosedError",
    "Pending",
    "PortAttr",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "RecvWR",
    "RemoteArray",
    "RnicError",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "UDParam",
    "VerbsError",
    "WorkCompletionError",
    "XRCDInitAttr",
    "__version__",
    "acm_connect",
    "aconnect",
    "alisten",
    "cm_connect",
    "cm_listen",
    "connect",
    "enums",
    "get_device_list",
    "listen",
]

_HOMES = {
    name: module
    for module, names in {
        "rnic.arrays.aio": "AsyncListener aconnect alisten",
        "rnic.arrays.batch": "Batch",
        "rnic.cm.cmid": "CMID AddrInfo CMEvent CMEventChannel ConnParam JoinMCAttrEx UDParam",
        "rnic.arrays.connection": "Connection",
        "rnic.arrays.handshake": "BufferInfo",
        "rnic.cm.rc_connection": "Pending",
        "rnic.cm.work_queue": "PeerClosedError",
        "rnic.cm.line_socket": "ExchangeError",
        "rnic.arrays.listener": "Listener connect listen",
        "rnic.cm.cm_connection": "CmConnectError CmConnection CmRejectedError CmTimeoutError",
        "rnic.cm.cm_listener": "CmListener CmRequest acm_connect cm_connect cm_listen",
        "rnic.arrays.remote_array": "RemoteArray",
        "rnic.link.base": "LinkError",
        "rnic.spec.errors": "RnicError VerbsError WorkCompletionError",
    }.items()
    for name in names.split()
}
"""Modules of the names that do not come from :mod:`rnic.verbs`."""


def __getattr__(name: str) -> object:
    if name != "open" and name not in __all__:
        raise AttributeError(f"module 'rnic' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "rnic.verbs")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "open"})
