"""One queue pair of the stack: its device objects, its card memory, and its commands in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from errno import EFAULT
from typing import TYPE_CHECKING

from rnic.coyote.shell import fetch, store
from rnic.mem.space import AddressSpace, Mapping
from rnic.mem.table import VTP_LENGTH, VTP_SUCCESS, MemoryEntry
from rnic.mem.translation import Translation
from rnic.rings import coyote as c
from rnic.rings.sqe import FLAG_SIGNALED
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec.access import LOCAL_WRITE, REMOTE_WRITE
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
    from rnic.engine._engine import TransferQueue

DEPTH = 64
"""Commands in flight on one queue pair."""
RECEIVES = 16
SEND_BYTES = 1 << 16
"""Longest SEND accepted, in bytes: a message is assembled in a buffer before it goes to the shell as a stream."""
CARD_BYTES = 1 << 26
"""Card memory, in bytes, for data of one queue pair's commands in flight. One command of any size is accepted."""
KEPT_BYTES = 1 << 23
RD_ATOMIC = 16
_TIMEOUT = 18
"""Local ACK timeout, about a second: a probe is sent long before that, and the peer's shell may be slow."""
_RETRIES = 7
_RAW_READ = 0x0C
_SMALLEST = 12
_READABLE = e.IBV_ACCESS_REMOTE_READ
_WRITABLE = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
OWN_KINDS = 4
"""Work request identifiers below this one belong to :attr:`Pair.transfers`."""
Admit = Callable[[int, int, bool], bool]
"""Called with address, length and whether the access is a WRITE; returns whether the peer may do it."""


def is_read(command: dict[str, int]) -> bool:
    """Return whether a command is a READ, in either mode."""
    return command["opcode"] == (c.APP_READ if command["mode"] == c.MODE_PARSE else _RAW_READ)


class CardMemory:
    """Registered buffers for the payloads of commands: a payload is retransmitted from here, not from the host.

    Sizes are powers of two. A buffer goes back to a bounded pool when its command is done.
    """

    def __init__(self, pd: PD) -> None:
        self._pd = pd
        self._kept: dict[int, list[MR]] = {}
        self._kept_bytes = 0
        self.used = 0
        """Total bytes of the buffers in use."""

    def take(self, size: int) -> MR:
        """Take a buffer of at least ``size`` bytes."""
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
        """Return a buffer to the pool; close it if the pool is full."""
        size = buffer.length
        self.used -= size
        if self._kept_bytes + size > KEPT_BYTES:
            buffer.close()
            return
        self._kept_bytes += size
        self._kept.setdefault(size.bit_length() - 1, []).append(buffer)


class Flight:
    """A command in progress: ``buffer`` holds its data; ``done`` is whether it succeeded, ``None`` until it ends.

    ``region`` holds its data instead if no shell inspects requests and the data is in a region. ``reads`` is true for a
    READ. ``behind`` transfers of :attr:`Pair.transfers` were started before it.
    """

    __slots__ = ("behind", "buffer", "command", "done", "reads", "region")

    def __init__(self, command: dict[str, int], reads: bool, region: MemoryEntry | None) -> None:
        self.command = command
        self.reads = reads
        self.region = region
        self.buffer: MR | None = None
        self.behind = 0
        self.done: bool | None = None


class _Port(AddressSpace):
    """Memory that a registration is checked against: the stack's own buffers directly, host memory through requests."""

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

    ``admit`` is asked again for each access: memory that the process unmaps in the middle of a message is out of
    reach at once.
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
    """Memory that one message of the peer may access; valid as long as its region, if it has one."""

    __slots__ = ("region",)

    region: MemoryEntry | None

    @property
    def valid(self) -> int:  # type: ignore[override]  # it is never stored
        """1 while the region exists, or if there is no region, which a message does not outlive."""
        return 1 if self.region is None else self.region.valid


class Pair:
    """One queue pair.

    If the shell inspects requests, ``admit`` decides whether the peer may use a virtual address of the process under
    R_Key 0. Otherwise ``translation`` holds the memory that R_Key 0 opens, and the engine moves the data.
    """

    def __init__(self, stack: RoceStack, number: int) -> None:
        self.number = number
        self.shell = stack.shell
        self.context = Context(runtime=stack.runtime, space=_Port(stack.shell, number))
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * DEPTH + RECEIVES)
        cap = QPCap(DEPTH, RECEIVES)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, cap=cap, scq=self.cq, rcq=self.cq))
        self.memory = stack.runtime.nic.memory
        self.admit: Admit | None = None
        self.mmu = stack.mmu
        self.translation: Translation | None = None
        self.lock = stack.runtime.lock
        self.moved = [0, 0]
        """Messages that this side's commands have written to its regions, and read from them."""
        self._told = 0, 0
        self._opened: dict[Mapping, tuple[MR, MemoryEntry]] = {}
        if self.mmu is None:
            self.look()
        else:
            self.translation = Translation(number, self.mmu.tlb, self._translate, self._refused)
            self.translation.engine_handles = self.mmu.engine_handles
            self.memory.set_translation(self.qp.qp_num, self.translation)
        self.regions: list[int] = []
        """Keys of the registered host memory."""
        self.staging = MR(self.pd, RECEIVES * SEND_BYTES, e.IBV_ACCESS_LOCAL_WRITE)
        self.arrived: deque[tuple[int, int]] = deque()
        """Slot and length of each message that the shell has not taken yet."""
        self.card = CardMemory(self.pd)
        self.mtu = self.context.nic.config.mtu
        self.target = c.RESET
        self.said: dict[str, int] = {}
        self.peer: dict[str, int] = {}
        self.held: list[Flight] = []
        self.flights: deque[Flight] = deque()
        self.transfers: TransferQueue | None = None
        """Posts and counts a thread's plain transfers if the device is driven by the C engine."""
        self._by_number: dict[int, Flight] = {}
        self._next = OWN_KINDS

    # -------------------------------------------------------------------------------- connection

    def advance(self) -> None:
        """Move the queue pair toward the state that ``qpContext`` asked for, as far as the known attributes allow."""
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

    # ------------------------------------------------------------------- memory of the process

    def look(self) -> None:
        """Pass every access of the peer to the shell from now on: it translates R_Key 0, and counts."""
        self.memory.set_translation(self.qp.qp_num, None)
        self.memory.set_guard(self.qp.qp_num, self._admit)

    def open(self, mapping: Mapping) -> None:
        """Let the engine access a mapping of the process, for this side's commands and for the peer."""
        if self.translation is None or mapping in self._opened:
            return
        region = MR(self.pd, mapping.view, _READABLE if mapping.readonly else _WRITABLE)
        entry = self.memory.lookup(region.rkey)
        assert entry is not None
        self._opened[mapping] = region, entry
        self.translation.add(entry)

    def shut(self, mapping: Mapping) -> None:
        """Revoke access to a mapping of the process, also for a message in progress."""
        found = self._opened.pop(mapping, None)
        if found is not None:
            assert self.translation is not None
            self.translation.remove(found[1])
            found[0].close()

    def take_counts(self) -> tuple[int, int]:
        """Return how many messages the engine has written to and read from this side's memory since the last call."""
        peers = (0, 0) if self.translation is None else self.translation.take_counts()
        own = (0, 0) if self.transfers is None else self.transfers.take_counts()
        before, self._told = self._told, (self.moved[0], self.moved[1])
        return self._told[0] - before[0] + peers[0] + own[0], self._told[1] - before[1] + peers[1] + own[1]

    def _translate(self, va: int, length: int, write: bool) -> bool:
        assert self.mmu is not None
        done = self.mmu.translate(self.number, va, length, write)
        if not done:
            self._refused()
        return done

    def _refused(self) -> None:
        self.context.nic.counters.bump("remote_refused")

    def region(self, command: dict[str, int]) -> MemoryEntry | None:
        """Return the region that holds a command's data if the engine may move the data, else ``None``."""
        if self.translation is None or not (command["host"] and command["message_size"]):
            return None
        rights = LOCAL_WRITE if is_read(command) else 0
        return self.translation.find(command["local_vaddr"], command["message_size"], rights)

    def _admit(self, key: int, pd: int, va: int, length: int, rights: int) -> MemoryEntry | None:
        """Check a remote access: a registered region by its key, the process's own addresses by key 0."""
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

    def room(self, flight: Flight) -> bool:
        """Return whether ``s_rdma_sq`` is ready for a command, considering commands in flight and card memory."""
        own = 0 if self.transfers is None else self.transfers.started - self.transfers.ended
        if len(self.flights) + len(self.held) + own >= DEPTH:
            return False
        if flight.region is not None or not (self.flights or self.held):
            return True
        needed = sum(each.command["message_size"] for each in (*self.held, flight) if each.region is None)
        return self.card.used + needed <= CARD_BYTES

    def has_turn(self, flight: Flight) -> bool:
        """Return whether all transfers that were started before a command have completed."""
        return self.transfers is None or self.transfers.ended >= flight.behind

    def post(self, flight: Flight, opcode: int, rkey: int) -> None:
        """Post a command to the send queue; if the shell inspects requests, fetch its data from the shell now.

        Raises:
            VerbsError: ``ENOMEM`` if the queue is full, ``EFAULT`` if the local memory is not mapped.
        """
        command = flight.command
        size = command["message_size"]
        lkey = local = 0
        region = flight.region
        if region is not None:
            assert self.mmu is not None
            lkey, local, reads = region.key, command["local_vaddr"], flight.reads
            if not self.mmu.translate(self.number, local, size, reads, self.lock):
                raise VerbsError(EFAULT, f"local_vaddr={local:#x}: {size} bytes from there on are not the process's")
            self.moved[1] += not reads
        elif size:
            buffer = self.card.take(size)
            flight.buffer = buffer
            lkey, local = buffer.lkey, buffer.buf
            view = memoryview(buffer.buffer)[:size]
            va, host = command["local_vaddr"], bool(command["host"])
            if opcode != op.WR_READ:
                with self.lock:
                    done = fetch(self.shell, self.number, va, view, host=host, last=True, offs=command["offs"])
                if not done:
                    raise VerbsError(EFAULT, f"local_vaddr={va:#x}: {size} bytes from there on are not the process's")
        number = self._next
        self.qp.post_rdma(opcode, local, size, lkey, command["remote_vaddr"], rkey, number, FLAG_SIGNALED)
        self._next += 1
        self._by_number[number] = flight

    def landed(self, number: int, ok: bool) -> None:
        """Complete a command; pass the data of a READ to the shell."""
        flight = self._by_number.pop(number)
        if not (ok and flight.reads):
            pass
        elif flight.region is not None:
            self.moved[0] += 1
        elif flight.buffer is not None:
            command = flight.command
            data = memoryview(flight.buffer.buffer)[: command["message_size"]]
            with self.lock:
                ok = store(self.shell, self.number, command["local_vaddr"], data, host=bool(command["host"]), last=True)
        self.end(flight, ok)

    def end(self, flight: Flight, ok: bool) -> None:
        """Note the result of a command, and return its buffer to the pool."""
        flight.done = ok
        if flight.buffer is not None:
            self.card.give(flight.buffer)
            flight.buffer = None

    # --------------------------------------------------------------------------------- receiving

    def post_receive(self, slot: int) -> None:
        """Post a receive into a slot of the staging memory."""
        address = self.staging.buf + slot * SEND_BYTES
        self.qp.post_recv(RecvWR(slot, 1, [SGE(address, SEND_BYTES, self.staging.lkey)]))

    def deliver(self) -> bool:
        """Pass received messages to the shell. Those that it has no room for stay, so that the peer waits."""
        did = False
        while self.arrived:
            slot, length = self.arrived[0]
            data = memoryview(self.staging.buffer)[slot * SEND_BYTES : slot * SEND_BYTES + length]
            with self.lock:
                done = store(self.shell, self.number, 0, data, host=False, last=True)
            if not done:
                self.context.nic.counters.bump("shell_stalls")
                break
            self.arrived.popleft()
            self.post_receive(slot)
            did = True
        return did

    def close(self) -> None:
        """Destroy the queue pair and its registrations."""
        self.memory.set_guard(self.qp.qp_num, None)
        self.memory.set_translation(self.qp.qp_num, None)
        self.qp.close()
        for key in self.regions:
            self.context.command(cmd.HW2SW_MPT, key)
            self.context.free(cmd.RES_MPT, key)
        self.context.close()
