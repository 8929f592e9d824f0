"""An RDMA NIC in Python: RoCEv2 on the wire, verbs above it, no hardware, no kernel module, no root.

Two ways in. The short one shares arrays between processes::

    rnic.listen(port=7471).share(a=array)            # here
    copy = rnic.connect("127.0.0.1", 7471).read("a")  # there

The other is the verbs API, with pyverbs' objects (:class:`Context`, :class:`PD`, :class:`MR`, :class:`CQ`,
:class:`QP` ...) and the ``IBV_*`` numbers in :mod:`rnic.enums`.
"""

from rnic.cm.connection import Connection
from rnic.cm.exchange import BufferInfo, ExchangeError
from rnic.cm.jobs import PeerClosedError
from rnic.cm.listener import Listener, connect, listen
from rnic.link.base import LinkError
from rnic.spec.errors import RnicError, VerbsError, WorkCompletionError
from rnic.verbs import (
    AH,
    CQ,
    GID,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    WC,
    AHAttr,
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
    enums,
    get_device_list,
    open,  # noqa: A004 - as programs call it
)

__version__ = "0.1.0"

__all__ = [
    "AH",
    "CQ",
    "GID",
    "MR",
    "MW",
    "PD",
    "QP",
    "SGE",
    "SRQ",
    "WC",
    "AHAttr",
    "AsyncEvent",
    "BindInfo",
    "BufferInfo",
    "CompChannel",
    "Connection",
    "Context",
    "Device",
    "DeviceAttr",
    "ExchangeError",
    "GlobalRoute",
    "LinkError",
    "Listener",
    "PeerClosedError",
    "PortAttr",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "RecvWR",
    "RnicError",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "VerbsError",
    "WorkCompletionError",
    "__version__",
    "connect",
    "enums",
    "get_device_list",
    "listen",
    "open",
]
