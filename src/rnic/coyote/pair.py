"""One queue pair behind the door: its device objects, its card memory, and its commands in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from errno import EFAULT
from typing import TYPE_CHECKING

from rnic.coyote.shell import fetch, store
from rnic.mem.space import AddressSpace
from rnic.mem.table import VTP_LENGTH, VTP_SUCCESS, MemoryEntry
from rnic.rings import coyote as c
from rnic.rings.sqe import FLAG_SIGNALED
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec.access import REMOTE_WRITE
from rnic.spec.errors import VerbsError
from rnic.spec.limits import MTU_CODES
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP

if TYPE_CHECKING:
    from rnic.coyote.shell import Shell
    from rnic.coyote.stack import RoceStack

DEPTH = 64
"""Commands in flight on one queue pair."""
RECEIVES = 16
SEND_BYTES = 1 << 16
"""Longest SEND that is taken: messages are put together here before they go to the shell as a stream."""
CARD_BYTES = 1 << 26
"""Card memory of one queue pair: what the data of its commands in flight may take. One command always may."""
KEPT_BYTES = 1 << 23
RD_ATOMIC = 16
_TIMEOUT = 18
"""About a second: a probe asks long before, and a shell may take its time over what arrives."""
_RETRIES = 7
_RAW_READ = 0x0C
_SMALLEST = 12
Admit = Callable[[int, int, bool], bool]
"""Address, length and whether it is a WRITE: whether the peer may."""


def is_read(command: dict[str, int]) -> bool:
    """Whether a command is a READ, in either mode."""
    return command["opcode"] == (c.APP_READ if command["mode"] == c.MODE_PARSE else _RAW_READ)


class CardMemory:
    """Registered buffers for the payloads of commands: a payload is sent again from here, not from the host.

    Buffers have powers of two of bytes, and go back to a bounded store when their command is done.
    """

    def __init__(self, pd: PD) -> None:
        self._pd = pd
        self._kept: dict[int, list[MR]] = {}
        self._kept_bytes = 0
        self.used = 0
        """Bytes out."""

    def take(self, size: int) -> MR:
        """A buffer of at least ``size`` bytes."""
        order = max(_SMALLEST, (size - 1).bit_length())
        kept = self._kept.get(order)
        if kept:
            self._kept_bytes -= 1 << order
            made = kept.pop()
        else:
            made = MR(self._pd, 1 << order, e.IBV_ACCESS_LOCAL_WRITE)
        self.used += 1 << order
        return made

    def give(self, buffer: MR) -> None:
        """Take one back."""
        size = buffer.length
        self.used -= size
        if self._kept_bytes + size > KEPT_BYTES:
            buffer.close()
            return
        self._kept_bytes += size
        self._kept.setdefault(size.bit_length() - 1, []).append(buffer)


class Flight:
    """A command under way: ``buffer`` holds its data, ``done`` says how it ended once it has."""

    __slots__ = ("buffer", "command", "done")

    def __init__(self, command: dict[str, int]) -> None:
        self.command = command
        self.buffer: MR | None = None
        self.done: bool | None = None


class _Port(AddressSpace):
    """The stack's own buffers directly, host memory by requests: what a registration is checked against."""

    __slots__ = ("_number", "_shell")

    def __init__(self, shell: Shell, number: int) -> None:
        super().__init__()
        self._shell = shell
        self._number = number

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """See :class:`~rnic.mem.dma.DmaPort`."""
        return super().read(va, buf) or fetch(self._shell, self._number, va, buf, host=True, last=False)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """See :class:`~rnic.mem.dma.DmaPort`."""
        return super().write(va, data) or store(self._shell, self._number, va, data, host=True, last=False)


class _MessagePort:
    """Memory of one message of the peer: every access becomes a memory request, the last of which has ``ctl`` 1.

    ``admit`` is asked again for each: what the process takes back while a message is under way is out of reach at once.
    """

    __slots__ = ("_admit", "_end", "_number", "_shell")

    def __init__(self, shell: Shell, number: int, end: int, admit: Admit | None) -> None:
        self._shell = shell
        self._number = number
        self._end = end
        self._admit = admit

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """See :class:`~rnic.mem.dma.DmaPort`."""
        if self._admit is not None and not self._admit(va, len(buf), False):
            return False
        return fetch(self._shell, self._number, va, buf, host=True, last=va + len(buf) == self._end)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """See :class:`~rnic.mem.dma.DmaPort`."""
        if self._admit is not None and not self._admit(va, len(data), True):
            return False
        return store(self._shell, self._number, va, data, host=True, last=va + len(data) == self._end)

    def views(self, va: int, length: int) -> memoryview | None:
        """See :class:`~rnic.mem.dma.DmaPort`."""
        return None


class _MessageEntry(MemoryEntry):
    """What one message of the peer may reach; valid as long as the region under it, if there is one."""

    __slots__ = ("region",)

    region: MemoryEntry | None

    @property
    def valid(self) -> int:  # type: ignore[override]  # nobody stores it
        """Whether the region is still there: a message does not outlive it."""
        return 1 if self.region is None else self.region.valid


class Pair:
    """One queue pair. ``admit`` answers whether the peer may use an address of the process as it is, under R_Key 0."""

    def __init__(self, stack: RoceStack, number: int) -> None:
        self.number = number
        self.shell = stack.shell
        self.context = Context(runtime=stack.runtime, space=_Port(stack.shell, number))
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * DEPTH + RECEIVES)
        cap = QPCap(DEPTH, RECEIVES)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, cap=cap, scq=self.cq, rcq=self.cq))
        self.memory = stack.runtime.nic.memory
        self.memory.guards[self.qp.qp_num] = self._admit
        self.admit: Admit | None = None
        self.regions: list[int] = []
        """Keys of the host memory that is registered."""
        self.staging = MR(self.pd, RECEIVES * SEND_BYTES, e.IBV_ACCESS_LOCAL_WRITE)
        self.arrived: deque[tuple[int, int]] = deque()
        """Slot and bytes of each message that the shell has not taken yet."""
        self.card = CardMemory(self.pd)
        self.mtu = self.context.nic.config.mtu
        self.target = c.RESET
        self.said: dict[str, int] = {}
        self.peer: dict[str, int] = {}
        self.held: list[dict[str, int]] = []
        self.flights: deque[Flight] = deque()
        self._by_number: dict[int, Flight] = {}
        self._next = 0

    # -------------------------------------------------------------------------------- connection

    def advance(self) -> None:
        """Go as far towards the state that ``qpContext`` asked for as what is known allows."""
        qp, said = self.qp, self.said
        if self.target == c.RESET or self.target == c.ERROR:
            state = e.IBV_QPS_RESET if self.target == c.RESET else e.IBV_QPS_ERR
            qp.modify(QPAttr(state), e.IBV_QP_STATE)
            return
        attr = QPAttr()
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        if qp.qp_state == e.IBV_QPS_RESET:
            qp.to_init(attr)
            for slot in range(RECEIVES):
                self.post_receive(slot)
        if self.target == c.INIT or not self.peer:
            return
        attr.path_mtu = MTU_CODES[self.mtu]
        attr.dest_qp_num = self.peer["remote_qpn"]
        attr.rq_psn, attr.sq_psn = said["remote_psn"], said["local_psn"]
        attr.timeout, attr.retry_cnt, attr.rnr_retry = _TIMEOUT, _RETRIES, _RETRIES
        attr.max_rd_atomic = attr.max_dest_rd_atomic = RD_ATOMIC
        gid = GID(self.peer["remote_ip_address"].to_bytes(16, "big"))
        attr.ah_attr = AHAttr(GlobalRoute(gid), udp_dport=self.peer["remote_udp_port"])
        if qp.qp_state == e.IBV_QPS_INIT:
            qp.to_rtr(attr)
        if self.target == c.READY_SEND and qp.qp_state == e.IBV_QPS_RTR:
            qp.to_rts(attr)

    def _admit(self, key: int, pd: int, va: int, length: int, rights: int) -> MemoryEntry | None:
        """The guard of remote accesses: a registered region by its key, the process's own addresses by key 0."""
        region: MemoryEntry | None = None
        if key:
            region = self.memory.check(key, pd, va, length, rights, self.qp.qp_num, alone=True)
            if region is None:
                return None
        elif self.admit is None or not self.admit(va, length, bool(rights & REMOTE_WRITE)):
            self.memory.reason = VTP_LENGTH
            return None
        self.memory.reason = VTP_SUCCESS
        port = _MessagePort(self.shell, self.number, va + length, None if key else self.admit)
        entry = _MessageEntry(key, pd, rights, va, length, port=port)
        entry.region = region
        return entry

    # ---------------------------------------------------------------------------------- commands

    def room(self, command: dict[str, int]) -> bool:
        """Whether ``s_rdma_sq`` is ready for a command: in number, and in card memory."""
        if len(self.flights) + len(self.held) >= DEPTH:
            return False
        waiting = sum(held["message_size"] for held in self.held)
        needed = self.card.used + waiting + command["message_size"]
        return needed <= CARD_BYTES or not (self.flights or self.held)

    def post(self, flight: Flight, opcode: int, rkey: int) -> None:
        """Make a descriptor of a command; its data are asked of the shell now.

        Raises:
            VerbsError: ``ENOMEM`` where the queue is full, ``EFAULT`` where the local memory is not there.
        """
        command = flight.command
        size = command["message_size"]
        lkey = local = 0
        if size:
            buffer = self.card.take(size)
            flight.buffer = buffer
            lkey, local = buffer.lkey, buffer.buf
            view = memoryview(buffer.buffer)[:size]
            va, host = command["local_vaddr"], bool(command["host"])
            if opcode != op.WR_READ and not fetch(self.shell, self.number, va, view, host=host, last=True):
                raise VerbsError(EFAULT, f"local_vaddr={va:#x}: {size} bytes from there on are not the process's")
        number = self._next
        self.qp.post_rdma(opcode, local, size, lkey, command["remote_vaddr"], rkey, number, FLAG_SIGNALED)
        self._next += 1
        self._by_number[number] = flight

    def landed(self, number: int, ok: bool) -> None:
        """A command completed: what it has read goes to the shell."""
        flight = self._by_number.pop(number)
        command = flight.command
        if ok and is_read(command) and flight.buffer is not None:
            data = memoryview(flight.buffer.buffer)[: command["message_size"]]
            ok = store(self.shell, self.number, command["local_vaddr"], data, host=bool(command["host"]), last=True)
        self.end(flight, ok)

    def end(self, flight: Flight, ok: bool) -> None:
        """A command is done."""
        flight.done = ok
        if flight.buffer is not None:
            self.card.give(flight.buffer)
            flight.buffer = None

    # --------------------------------------------------------------------------------- receiving

    def post_receive(self, slot: int) -> None:
        """Let a message arrive in a slot of the staging memory."""
        address = self.staging.buf + slot * SEND_BYTES
        self.qp.post_recv(RecvWR(slot, 1, [SGE(address, SEND_BYTES, self.staging.lkey)]))

    def deliver(self) -> bool:
        """Give the shell the messages that have arrived; those that it has no room for stay, and so the peer waits."""
        did = False
        while self.arrived:
            slot, length = self.arrived[0]
            data = memoryview(self.staging.buffer)[slot * SEND_BYTES : slot * SEND_BYTES + length]
            if not store(self.shell, self.number, 0, data, host=False, last=True):
                self.context.nic.counters.bump("shell_stalls")
                break
            self.arrived.popleft()
            self.post_receive(slot)
            did = True
        return did

    def close(self) -> None:
        """Destroy it and what was registered for it."""
        self.memory.guards.pop(self.qp.qp_num, None)
        self.qp.close()
        for key in self.regions:
            self.context.command(cmd.HW2SW_MPT, key)
            self.context.free(cmd.RES_MPT, key)
        self.context.close()
