"""Objects of a device: allocated numbers, their owners, and the objects."""

from __future__ import annotations

from collections import deque

from rnic.context.ctxmgt import ContextManager
from rnic.device.config import NicConfig
from rnic.device.cq import CompletionQueue
from rnic.device.eq import EventQueue
from rnic.device.icm import Icm
from rnic.device.multicast import Groups
from rnic.device.pools import NumberPool
from rnic.device.queue_pair import DeviceQp
from rnic.device.refusal import Refused
from rnic.device.srq import SharedReceiveQueue
from rnic.device.uar import GLOBAL_BLOCKS, Doorbells, Doors, Uar
from rnic.device.xrc import XrcDomains
from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.spec import commands as cmd
from rnic.spec.limits import MAX_EQS

LOG_MAX_PDS = 12
LOG_MAX_SRQS = 12
MAX_SEGMENTS = 1 << 15
MAX_MTT_ENTRIES = 1 << 18
"""Most page list entries of all segments in total (``hardware.md`` 2b)."""

Queue = DeviceQp | CompletionQueue | EventQueue | SharedReceiveQueue


class KeyRecord:
    """An allocated key index: its owner, the key as allocated, and its region or window, if any.

    ``segment`` is the page list of a region, 0 for a contiguous one.
    """

    __slots__ = ("entry", "key", "owner", "segment")

    def __init__(self, owner: Uar, key: int, entry: MemoryEntry | None = None) -> None:
        self.owner = owner
        self.key = key
        self.entry = entry
        self.segment = 0


class Segment:
    """A page list: page addresses by index, and the regions that use it."""

    __slots__ = ("pages", "users")

    def __init__(self) -> None:
        self.pages: dict[int, int] = {}
        self.users = 0


class Resources:
    """All objects of one device by number."""

    __slots__ = (
        "blocks",
        "contexts",
        "cqs",
        "doorbells",
        "eqs",
        "groups",
        "icm",
        "interrupts",
        "keys",
        "memory",
        "pd_users",
        "pools",
        "qps",
        "segments",
        "srqs",
        "uar_blocks",
        "uars",
        "xrcds",
    )

    def __init__(self, config: NicConfig, memory: MemoryTable, contexts: ContextManager) -> None:
        queues = 1 << config.log_max_qps
        self.uar_blocks = 4 * queues
        self.memory = memory
        self.contexts = contexts
        self.doorbells = Doorbells()
        self.groups = Groups()
        self.xrcds = XrcDomains()
        self.icm = Icm(contexts)
        self.interrupts: deque[EventQueue] = deque()
        self.uars: list[Uar] = []
        self.qps: dict[int, DeviceQp] = {}
        self.cqs: dict[int, CompletionQueue] = {}
        self.eqs: dict[int, EventQueue] = {}
        self.srqs: dict[int, SharedReceiveQueue] = {}
        self.blocks: dict[int, Queue] = {}
        """Queue in each block that has one."""
        self.pd_users: dict[int, int] = {}
        """Number of objects in each protection domain that has any."""
        self.keys: dict[int, KeyRecord] = {}
        """Allocated memory keys by index."""
        self.segments: dict[int, Segment] = {}
        """Nonempty page lists by number."""
        self.pools = {
            cmd.RES_UAR_BLOCK: NumberPool(GLOBAL_BLOCKS, self.uar_blocks - GLOBAL_BLOCKS),
            cmd.RES_PD: NumberPool(1, 1 << LOG_MAX_PDS),
            # contiguous, so that the low bits of a number index context tables of this size
            cmd.RES_QP: NumberPool(config.first_qpn, queues),
            cmd.RES_CQ: NumberPool(1, queues),
            cmd.RES_SRQ: NumberPool(1, 1 << LOG_MAX_SRQS),
            cmd.RES_EQ: NumberPool(0, MAX_EQS),
            cmd.RES_MTT: NumberPool(1, MAX_SEGMENTS),
        }

    @property
    def mtt_entries(self) -> int:
        """Page list entries in use."""
        return sum(len(segment.pages) for segment in self.segments.values())

    def own(self, uar: Uar, kind: int, number: int) -> None:
        """Refuse a number that ``uar`` does not own: BAD_RESOURCE for one reserved by the device."""
        pool = self.pools[kind]
        if pool.owners.get(number) is not uar:
            raise Refused(cmd.ST_BAD_RESOURCE if 0 <= number < pool.first else cmd.ST_BAD_INDEX)

    def use_pd(self, pd: int) -> None:
        """Count one more object in a protection domain."""
        self.pd_users[pd] = self.pd_users.get(pd, 0) + 1

    def leave_pd(self, pd: int) -> None:
        """Count one object less in a protection domain."""
        left = self.pd_users[pd] - 1
        if left:
            self.pd_users[pd] = left
        else:
            del self.pd_users[pd]

    def occupy(self, block: int, queue: Queue, doors: Doors) -> None:
        """Assign a queue to a block and enable software's stores to its registers."""
        self.blocks[block] = queue
        self.doorbells.doors[block] = doors

    def vacate(self, queue: Queue) -> None:
        """Remove a queue from its block; its registers read 0."""
        block = queue.regs.block
        del self.blocks[block]
        del self.doorbells.doors[block]
        queue.regs.clear()
