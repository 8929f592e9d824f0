"""Opened contexts: commands, the event queue and its events, queries."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from errno import EAGAIN, EBUSY, EINVAL, EIO, ENODEV, ENOMEM, EOPNOTSUPP
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rnic.context.eqc import EQC
from rnic.device.hcr import MAILBOX_BYTES
from rnic.device.mailboxes import ADAPTER, DEV_LIM, NON_RDMA_HEADER
from rnic.device.nic import Nic
from rnic.device.parameters import profile_settings
from rnic.engine import use
from rnic.link.base import Link, format_address
from rnic.mem.space import AddressSpace
from rnic.rings.queue_block import CQ_HEAD
from rnic.rings.ring import PhaseConsumer
from rnic.runtime.driver import Driver, LocalDriver
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import commands as cmd
from rnic.spec import events, ports, reasons
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e
from rnic.verbs import on_command
from rnic.verbs.attrs import GID, MAX_DM_BYTES, DeviceAttr, PortAttr
from rnic.verbs.devices import address_of, format_guid, runtime_on, shared_runtime
from rnic.verbs.event_queues import AsyncEvent, EventPipe

if TYPE_CHECKING:
    from rnic.verbs.cq import CQ
    from rnic.verbs.qp import QP
    from rnic.verbs.srq import SRQ

_live: WeakSet[Context] = WeakSet()

EQ_LOG_ENTRIES = 12
_EQE_BYTES = 32
MOST_ASYNC_EVENTS = 1 << EQ_LOG_ENTRIES
"""Most unread asynchronous events, as many as in the device: peers cause them, and the program may never read them."""

_ERRNO_OF_STATUS = {
    cmd.ST_BAD_OP: EOPNOTSUPP,
    cmd.ST_BAD_SYS_STATE: ENODEV,
    cmd.ST_RESOURCE_BUSY: EBUSY,
    cmd.ST_EXCEED_LIM: ENOMEM,
    cmd.ST_INTERNAL_ERR: EIO,
}


def _errno_of(status: int) -> int:
    return status - cmd.ST_ERRNO if status > cmd.ST_ERRNO else _ERRNO_OF_STATUS.get(status, EINVAL)


_ASYNC_EVENTS = {
    events.COMM_EST: e.IBV_EVENT_COMM_EST,
    events.SQ_DRAINED: e.IBV_EVENT_SQ_DRAINED,
    events.CQ_ERROR: e.IBV_EVENT_CQ_ERR,
    events.WQ_CATAS_ERROR: e.IBV_EVENT_QP_FATAL,
    events.LOCAL_CATAS_ERROR: e.IBV_EVENT_DEVICE_FATAL,
    events.PORT_CHANGE: e.IBV_EVENT_PORT_ACTIVE,
    events.WQ_INVAL_REQ_ERROR: e.IBV_EVENT_QP_REQ_ERR,
    events.WQ_ACCESS_ERROR: e.IBV_EVENT_QP_ACCESS_ERR,
    events.SRQ_CATAS_ERROR: e.IBV_EVENT_SRQ_ERR,
    events.SRQ_LAST_WQE: e.IBV_EVENT_QP_LAST_WQE_REACHED,
    events.SRQ_LIMIT: e.IBV_EVENT_SRQ_LIMIT_REACHED,
    events.CONGESTION: e.RNIC_EVENT_CONGESTION,
}
_OF_THE_DEVICE = (events.PORT_CHANGE, events.LOCAL_CATAS_ERROR)
_PORT_EVENTS = {
    ports.PORT_ACTIVE: e.IBV_EVENT_PORT_ACTIVE,
    ports.PORT_PKEY: e.IBV_EVENT_PKEY_CHANGE,
    ports.PORT_GUID: e.IBV_EVENT_GID_CHANGE,
}
"""Verbs events of port change subtypes; of all others, IBV_EVENT_PORT_ERR."""


class Context:
    """An opened device.

    Args:
        name: name of a device of :func:`~rnic.verbs.devices.get_device_list`.
        addr: or a local IP address, such as ``"127.0.0.1"``.
        port: UDP port of the NIC; 4791 by default, 0 for any free one.
        link: or a link of your own (loopback, faults, recording) on which a private NIC is made.
        runtime: or a NIC that is already running.
        space: addresses of this program's memory; its real ones by default.
        driver: or a device opened elsewhere, as :func:`rnic.open` does.
        profile: the core that a NIC made here models, ``"univista"``.
        parameters: some of its parameters by name (:data:`rnic.device.parameters.UNIVISTA`).

    Raises:
        VerbsError: ENODEV for an unknown name, EINVAL for an unknown profile or parameter, EBUSY where the device
            runs already with other settings.
        LinkError: the address is not local, or the port is taken.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        addr: str | None = None,
        port: int | None = None,
        link: Link | None = None,
        runtime: Runtime | None = None,
        space: AddressSpace | None = None,
        driver: Driver | None = None,
        profile: str | None = None,
        parameters: Mapping[str, int] | None = None,
    ) -> None:
        self._serves_itself = False
        settings = profile_settings(profile, parameters or {})
        if settings and (runtime is not None or driver is not None):
            raise VerbsError(EINVAL, f"profile={profile!r}: the device exists already; give it to whoever makes it")
        if runtime is None and link is not None:
            runtime = runtime_on(link, **settings)
        if runtime is None and driver is None:
            if addr is None:
                addr = address_of(name)
            if port is not None and not 0 <= port <= 0xFFFF:
                raise VerbsError(EINVAL, f"port={port} is not a UDP port: give 0 to 65535")
            runtime = shared_runtime(addr, port, settings)
            self._serves_itself = True
        if driver is None:
            assert runtime is not None
            driver = LocalDriver(runtime, space)
        self.driver = driver
        self.closed = False
        self._children: dict[Any, None] = {}
        self.dm_bytes = 0
        """Device memory in use."""
        self._qps: dict[int, QP] = {}
        self._cqs: dict[int, CQ] = {}
        self._srqs: dict[int, SRQ] = {}
        self._async = EventPipe((ENODEV, f"device {driver.name} is closed: open it again"), MOST_ASYNC_EVENTS)
        try:
            self._open_event_queue()
            self.limits = DEV_LIM.unpack(self.command(cmd.QUERY_DEV_LIM)[1])
            self.faults = on_command.opened(driver)
        except BaseException:
            driver.close()
            self._async.close()
            raise
        self.name = name or driver.name
        _live.add(self)

    @property
    def runtime(self) -> Runtime:
        """The loop of a device in this process, for tests and tools that look inside.

        Raises:
            VerbsError: ENODEV for a device in another process.
        """
        if not isinstance(self.driver, LocalDriver):
            raise VerbsError(ENODEV, f"device {self.name} is in another process: it cannot be inspected from here")
        return self.driver.runtime

    @property
    def nic(self) -> Nic:
        """The device in this process; raises as :attr:`runtime`."""
        return self.runtime.nic

    @property
    def bypass(self) -> bool:
        """True if this program itself runs the data path of a device in the NIC process (:func:`rnic.open`)."""
        return getattr(self.driver, "slot", None) is not None

    def may_receive(self) -> None:
        """Note that a queue pair can receive from now on: a NIC on a UDP port then needs a thread, to answer while the
        program does something else.

        A NIC process has its own thread. A device on the caller's own link or runtime is driven by the caller.
        """
        if self._serves_itself:
            self.driver.start()

    # ------------------------------------------------------------------------------------ commands

    def command(self, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b"") -> tuple[int, bytes]:
        """Run a device command.

        Args:
            op: command opcode (:mod:`rnic.spec.commands`), 12 bits.
            in_modifier: input modifier, such as a queue pair number, 32 bits.
            op_modifier: opcode modifier, 8 bits.
            inbox: input mailbox, at most 4,096 bytes.

        Returns:
            The output parameter, and the output mailbox.

        Raises:
            VerbsError: with the errno that the status stands for.
        """
        if self.driver.closed:
            self.driver.check()
            raise VerbsError(ENODEV, f"device {self.driver.name} is closed: open it again")
        result = self.driver.command(op, in_modifier, op_modifier, inbox)
        if result.status != cmd.ST_OK:
            name = cmd.COMMAND_NAMES.get(op, hex(op))
            status = cmd.STATUS_NAMES.get(result.status, hex(result.status))
            text = result.text or f"device command {name} answered {status}"
            raise VerbsError(_errno_of(result.status), text)
        return result.out_param, result.outbox

    @contextlib.contextmanager
    def destroying(self) -> Iterator[None]:
        """Ignore errors of commands that destroy objects of a closed or failed device, which has destroyed them."""
        try:
            yield
        except VerbsError as error:
            # EIO: the device has failed, and nothing of this context is left in it
            if not self.driver.closed and error.errno != EIO:
                raise

    def allocate(self, kind: int) -> int:
        """Return a free number of a kind.

        Args:
            kind: ``RES_*`` (:mod:`rnic.spec.commands`).

        Raises:
            VerbsError: with the errno that the status stands for.
        """
        return self.command(cmd.ALLOC_RES, kind)[0]

    def allocate_for(self, undo: contextlib.ExitStack, kind: int) -> int:
        """Call :meth:`allocate` for an object under construction: ``undo`` frees the number if that fails."""
        number = self.allocate(kind)
        undo.callback(self._give_back, kind, number)
        return number

    def _give_back(self, kind: int, number: int) -> None:
        with self.destroying():
            self.free(kind, number)

    def free(self, kind: int, number: int) -> None:
        """Give a number back to the device.

        Args:
            kind: ``RES_*`` (:mod:`rnic.spec.commands`).
            number: a number that :meth:`allocate` returned.
        """
        self.command(cmd.FREE_RES, number, kind)

    # -------------------------------------------------------------------------------------- events

    def _open_event_queue(self) -> None:
        self._eq_mapping = self.driver.ring(_EQE_BYTES << EQ_LOG_ENTRIES)
        self._eq = PhaseConsumer(self._eq_mapping.view, 1 << EQ_LOG_ENTRIES)
        self.eqn = self.allocate(cmd.RES_EQ)
        self._eq_block = self.allocate(cmd.RES_UAR_BLOCK)
        vector = self.eqn
        eqc = EQC.pack(
            {
                "start": self._eq_mapping.va,
                "logsize": EQ_LOG_ENTRIES,
                "usrpage": self._eq_block,
                "msix_vector": vector,
            }
        )
        self.command(cmd.SW2HW_EQ, self.eqn, inbox=eqc)
        mask = sum(1 << event_type for event_type in _ASYNC_EVENTS)
        self.command(cmd.MAP_EQ, self.eqn, inbox=mask.to_bytes(8, "big"))
        self.driver.on_interrupt(vector, self._on_interrupt, self._eq_block)
        self.driver.on_end(lambda: self._async.put(AsyncEvent(e.IBV_EVENT_DEVICE_FATAL, None)))

    def _on_interrupt(self) -> None:
        if not self._eq.ready():
            return
        while (entry := self._eq.pop()) is not None:
            event_type = entry[0] & 0xFF
            number = entry[1] & 0xFFFFFF
            if event_type == events.COMP:
                cq = self._cqs.get(number)
                if cq is not None:
                    cq.on_event()
                continue
            kind = _ASYNC_EVENTS[event_type]
            element: QP | CQ | SRQ | None = None
            if event_type == events.LOCAL_CATAS_ERROR:
                pass  # an event of the whole device
            elif event_type == events.PORT_CHANGE:
                kind = _PORT_EVENTS.get(entry[0] >> 8 & 0xFF, e.IBV_EVENT_PORT_ERR)
            elif event_type == events.CQ_ERROR:
                element = self._cqs.get(number)
            elif event_type in (events.SRQ_LIMIT, events.SRQ_CATAS_ERROR):
                element = self._srqs.get(number)
            else:
                element = self._qps.get(number)
            if element is None and event_type not in _OF_THE_DEVICE:
                continue  # it was closed meanwhile
            self._async.put(AsyncEvent(kind, element))
        self.driver.store(self._eq_block, CQ_HEAD, self._eq.head)

    @property
    def async_fd(self) -> int:
        """File descriptor that polls readable while asynchronous events wait; a thread handles them from now on."""
        self.driver.start()
        return self._async.fileno()

    def get_async_event(self, block: bool = True) -> AsyncEvent:
        """Wait for the next asynchronous event. At most the last 4,096 are kept; closing an object drops its events.

        Args:
            block: wait; else raise EAGAIN.

        Raises:
            VerbsError: EAGAIN without ``block`` if none waits; ENODEV when the NIC process has ended, after
                an IBV_EVENT_DEVICE_FATAL.
        """
        event = self.wait_pipe(self._async, block)
        assert isinstance(event, AsyncEvent)
        return event

    def wait_pipe(self, pipe: EventPipe, block: bool = True, *, completions: bool = False) -> object:
        """Take an item from an event pipe, of ``completions`` or others; drive the NIC meanwhile if no thread does."""
        while (item := pipe.get()) is None:
            if not block:
                raise VerbsError(EAGAIN, "no event waits: poll the descriptor, or wait for one")
            self.driver.check()
            if self.driver.closed:
                raise VerbsError(ENODEV, f"device {self.driver.name} is closed: open it again")
            descriptor = pipe.fileno()
            if descriptor < 0:
                continue  # another thread has just closed it; the next call of get raises
            if self.driver.threaded:
                self.driver.rest()
                if completions:
                    self.driver.await_completion(descriptor)
                    continue
                wait_readable([descriptor, *self.driver.hangup_filenos()], None)
            elif not self.driver.progress():
                wait_readable([descriptor, *self.driver.filenos()], 0.001)
        return item

    def read_non_rdma(self) -> bytes | None:
        """Remove and return the oldest non-RDMA frame that arrived on the port (004 7.6); ``None`` if there is none.

        The contexts of a device share one channel. It holds 256 frames and 1 MiB; frames without room are dropped and
        counted.

        Raises:
            VerbsError: EOPNOTSUPP on a UDP link without a port for it: the kernel keeps non-RDMA packets.
        """
        frame = b""
        while True:
            try:
                box = self.command(cmd.READ_NON_RDMA, len(frame))[1]
            except VerbsError as error:
                if error.errno == EOPNOTSUPP:
                    raise VerbsError(
                        EOPNOTSUPP,
                        f"device {self.name} is on a UDP socket, which gets no non-RDMA packets:"
                        " start it with rnic serve --non-rdma-port",
                    ) from None
                raise
            head = NON_RDMA_HEADER.unpack(box)
            if not head["waiting"]:
                return None
            frame += box[NON_RDMA_HEADER.size :][: head["length"] - len(frame)]
            if len(frame) == head["length"]:
                self.command(cmd.READ_NON_RDMA, 0, 1)
                return frame

    def write_non_rdma(self, frame: bytes | bytearray | memoryview) -> None:
        """Send a whole IP packet that is not RDMA, bypassing the queue pairs (004 7.6), to its destination address.

        Like all non-RDMA traffic it may be lost; packets that cannot be sent are counted.

        Args:
            frame: the IP packet, starting with its IP header.

        Raises:
            VerbsError: EOPNOTSUPP if the link cannot send it, EINVAL for anything but an IP packet of at most
                4,096 bytes and of the device's IP version, and for RDMA.
        """
        if len(frame) > MAILBOX_BYTES:
            raise VerbsError(EINVAL, f"a frame of {len(frame)} bytes: the channel sends at most {MAILBOX_BYTES}")
        try:
            self.command(cmd.WRITE_NON_RDMA, len(frame), 0, bytes(frame))
        except VerbsError as error:
            if error.errno == EOPNOTSUPP:
                raise VerbsError(
                    EOPNOTSUPP,
                    f"device {self.name} cannot send non-RDMA packets: start it with rnic serve --non-rdma-port",
                ) from None
            if error.errno == EINVAL:
                raise VerbsError(
                    EINVAL, "not a whole IP packet of the device's IP version, or RDMA, which only queue pairs send"
                ) from None
            raise

    # ------------------------------------------------------------------------------------- queries

    def query_device(self) -> DeviceAttr:
        """Return limits and capabilities."""
        lim = self.limits
        adapter = ADAPTER.unpack(self.command(cmd.QUERY_ADAPTER)[1])
        attr = DeviceAttr()
        version = adapter["fw_ver"]
        attr.fw_ver = f"{version >> 32 & 0xFFFF}.{version >> 16 & 0xFFFF}.{version & 0xFFFF}"
        attr.node_guid = attr.sys_image_guid = format_guid(lim["guid"])
        attr.vendor_id = adapter["vendor_id"]
        attr.vendor_part_id = adapter["device_id"]
        attr.hw_ver = adapter["revision"]
        attr.max_mr_size = 1 << 63
        attr.max_qp = 1 << lim["log_max_qps"]
        attr.max_qp_wr = (1 << lim["log_max_qp_sz"]) - 1
        attr.device_cap_flags = (
            e.IBV_DEVICE_MEM_WINDOW
            | e.IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | e.IBV_DEVICE_XRC
            | e.IBV_DEVICE_FLUSH_GLOBAL
            | e.IBV_DEVICE_ATOMIC_WRITE
        )
        attr.max_sge = lim["max_sge"]
        attr.max_cq = 1 << lim["log_max_cqs"]
        attr.max_cqe = (1 << lim["log_max_cq_sz"]) - 1
        attr.max_mr = attr.max_mw = lim["max_mpts"]
        attr.max_pd = 1 << lim["log_max_pds"]
        attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = lim["max_rd_atomic"]
        attr.atomic_caps = e.IBV_ATOMIC_HCA
        attr.max_mcast_grp = 1 << 12
        attr.max_mcast_qp_attach = lim["max_group_qps"]
        attr.max_ah = 1 << 16
        attr.max_srq = 1 << lim["log_max_srqs"]
        attr.max_srq_wr = (1 << lim["log_max_srq_sz"]) - 1
        attr.max_srq_sge = lim["max_sge"]
        attr.max_pkeys = lim["pkey_count"]
        attr.max_dm_size = MAX_DM_BYTES
        attr.local_ca_ack_delay = 15
        attr.phys_port_cnt = lim["num_ports"]
        return attr

    def query_rt_values_ex(self, comp_mask: int = e.IBV_VALUES_MASK_RAW_CLOCK) -> tuple[int, int]:
        """Return the NIC's clock in nanoseconds, as ``(mask, clock)``: the host's monotonic clock.

        Args:
            comp_mask: ``IBV_VALUES_MASK_RAW_CLOCK``.

        Raises:
            VerbsError: EOPNOTSUPP for a mask with anything else in it.
        """
        if comp_mask & ~e.IBV_VALUES_MASK_RAW_CLOCK:
            raise VerbsError(EOPNOTSUPP, f"comp_mask={comp_mask:#x}: only IBV_VALUES_MASK_RAW_CLOCK is supported")
        clock = self.driver.runtime.clock if isinstance(self.driver, LocalDriver) else time.monotonic_ns
        return comp_mask, clock() if comp_mask else 0

    def query_port(self, port_num: int = 1) -> PortAttr:
        """Return the state of the port.

        Args:
            port_num: 1.

        Raises:
            VerbsError: EINVAL for another port.
        """
        self._check_port(port_num)
        lim = self.limits
        attr = PortAttr()
        now = DEV_LIM.unpack(self.command(cmd.QUERY_DEV_LIM)[1])
        attr.state = now["port_state"]
        attr.max_mtu = lim["max_mtu"]
        attr.active_mtu = lim["active_mtu"]
        attr.gid_tbl_len = now["gid_count"]
        attr.max_msg_sz = 1 << lim["log_max_msg"]
        attr.pkey_tbl_len = now["pkey_count"]
        attr.udp_port = lim["udp_port"]
        attr.active_speed, attr.active_width = lim["active_speed"], lim["active_width"]
        attr.phys_state = 3 if attr.state == e.IBV_PORT_DOWN else 5
        return attr

    @property
    def gid_index(self) -> int:
        """Index of the GID of the device's own address in the GID table."""
        return self.limits["own_gid"]

    def query_gid(self, port_num: int = 1, index: int | None = None) -> GID:
        """Return an entry of the GID table.

        Args:
            port_num: 1.
            index: the entry, by default :attr:`gid_index`.

        Raises:
            VerbsError: EINVAL for another port, or an entry beyond the table.
        """
        self._check_port(port_num)
        now = DEV_LIM.unpack(self.command(cmd.QUERY_DEV_LIM)[1])
        if index is None:
            index = now["own_gid"]
        if not 0 <= index < now["gid_count"]:
            raise VerbsError(EINVAL, reasons.GID_INDEX(index=index, last=now["gid_count"] - 1))
        return GID(now[f"gid{index}"].to_bytes(16, "big"))

    def query_gid_type(self, port_num: int = 1, index: int = 0) -> int:
        """Return the type of an entry of the GID table: ``IBV_GID_TYPE_ROCE_V1`` or ``_V2``.

        Args:
            port_num: 1.
            index: the entry.
        """
        self.query_gid(port_num, index)
        of_v1 = DEV_LIM.unpack(self.command(cmd.QUERY_DEV_LIM)[1])["gids_of_v1"] >> index & 1
        return e.IBV_GID_TYPE_ROCE_V1 if of_v1 else e.IBV_GID_TYPE_ROCE_V2

    def query_pkey(self, port_num: int = 1, index: int = 0) -> int:
        """Return an entry of the P_Key table, 16 bits.

        Args:
            port_num: 1.
            index: the entry.
        """
        self._check_port(port_num)
        now = DEV_LIM.unpack(self.command(cmd.QUERY_DEV_LIM)[1])
        if not 0 <= index < now["pkey_count"]:
            raise VerbsError(EINVAL, reasons.PKEY_INDEX(index=index, last=now["pkey_count"] - 1))
        return now[f"pkey{index}"]

    @staticmethod
    def _check_port(port_num: int) -> None:
        if port_num != 1:
            raise VerbsError(EINVAL, reasons.PORT_NUMBER(port=port_num))

    @property
    def address(self) -> str:
        """The NIC's IP address."""
        return format_address(self.driver.address)

    @property
    def udp_port(self) -> int:
        """The NIC's UDP port."""
        return self.driver.port

    @property
    def selective_repeat(self) -> bool:
        """True if the NIC can keep out-of-order packets: it has the engine (``QPAttr.selective_repeat``)."""
        return use.ENGINE is not None

    @property
    def keeps(self) -> bool:
        """Former name of :attr:`selective_repeat`, until the next release."""
        warnings.warn("Context.keeps is Context.selective_repeat now", DeprecationWarning, stacklevel=2)
        return self.selective_repeat

    # ------------------------------------------------------------------------------------- closing

    def add_child(self, child: object) -> None:
        """Keep an object that the device holds too, to close it with the context at the latest."""
        self._children[child] = None

    def drop_events(self, element: QP | CQ | SRQ) -> None:
        """Drop the events of an object that was closed."""
        self._async.drop(lambda event: event.element is element)

    def drop_child(self, child: object) -> None:
        """Forget an object that was closed."""
        self._children.pop(child, None)

    def close(self) -> None:
        """Destroy everything made in this context; a second call does nothing."""
        with contextlib.ExitStack() as last, self.driver.lock:
            if self.closed:
                return
            self.closed = True
            last.callback(self._async.close)
            last.callback(self.driver.close)  # destroys whatever could not be destroyed before
            close_all(self._children)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Context {self.name} {self.address} UDP port {self.udp_port}>"


def _after_fork() -> None:
    """Let a child only close what it inherited: it can neither post nor poll, and none of its threads holds a lock."""
    for ctx in list(_live):
        queues: list[CQ | QP | SRQ] = [*ctx._cqs.values(), *ctx._qps.values(), *ctx._srqs.values()]
        for queue in queues:
            queue.inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def close_all(children: Iterable[Any]) -> None:
    """Close objects, dependent kinds first, each kind in the order given."""
    order = {
        "QP": 0,
        "MW": 1,
        "AH": 1,
        "SRQ": 2,
        "CQ": 3,
        "MR": 4,
        "PD": 5,
        "XRCD": 5,
        "DM": 5,
        "DMMR": 4,
        "CompChannel": 6,
    }
    for child in sorted(children, key=lambda child: order.get(type(child).__name__, 0)):
        child.close()
