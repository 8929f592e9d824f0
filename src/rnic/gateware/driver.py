"""The driver of the descriptor engine: the documents' bare-metal sequence (000 5.7) in Python.

Prepare a descriptor, flush, ring the doorbell, poll CQ_TAIL with a timeout, invalidate, read the entry, verify, advance
CQ_HEAD; in batches; and recover by reset. The driver knows the engine by registers and memory alone, through a
:class:`Backend`: the simulator (:mod:`rnic.gateware.sim`) or a board (:mod:`rnic.gateware.mmio`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES, DOCUMENTED_CQ_ENTRY
from rnic.rings.ring import next_index
from rnic.rings.sqe import SQ_ENTRY, SQE_BYTES
from rnic.spec.engine_net_regs import (
    DECAP_OFFSETS,
    ENCAP_ERROR_NAMES,
    ENCAP_OFFSETS,
    ENDPOINT_ENTRY,
    NET_STATUS,
    endpoint_index,
)
from rnic.spec.engine_regs import (
    BY_NAME,
    CONTROL,
    DECAP_BASE,
    ENCAP_BASE,
    ENGINE_ERROR_NAMES,
    ERR_NET_META,
    HW_STATUS,
    LOOKUP_BASE,
    MODE_NETWORK,
    NARROW_ADDRESS_BITS,
    OFFSETS,
    RDMA_STATES,
)
from rnic.spec.errors import RnicError

OPCODE_WRITE_TEST = 0x01
OPCODE_WRITE = 0x0A

POLL_LIMIT = 1_000_000
"""Reads of CQ_TAIL before the driver gives up, as in the documents."""
RESET_LIMIT = 10_000

STATUS_NAMES = {0: "success", 1: "local access error", 2: "remote access error", 3: "length mismatch", 4: "timeout"}
"""Status of a CQ entry (000 5.6.8)."""
FLAGS = ("busy", "resetting", "cq_full", "halted", "paused", "flushing")
"""Bits of HW_STATUS that are shown by name."""


class Backend(Protocol):
    """Access of the driver to an engine. Addresses of memory are those that the engine uses."""

    def read32(self, offset: int) -> int:
        """Return the register at byte ``offset``."""

    def write32(self, offset: int, value: int) -> None:
        """Store a register."""

    def read(self, address: int, count: int) -> bytes:
        """Read memory as the processor sees it."""

    def write(self, address: int, data: bytes) -> None:
        """Write memory as the processor does."""

    def flush(self, address: int, count: int) -> None:
        """Make the processor's stores visible to the engine."""

    def invalidate(self, address: int, count: int) -> None:
        """Make the engine's stores visible to the processor."""


class EngineError(RnicError):
    """Failure of the engine; the message names the register and the state read back."""


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """Addresses of the two rings, and their sizes in entries, as in the documents' test (``hardware.md`` 1b)."""

    sq_base: int = 0x10000000
    cq_base: int = 0x40000000
    sq_size: int = 4
    cq_size: int = 4


@dataclass(frozen=True, slots=True)
class Window:
    """``size`` bytes from ``base`` that an engine may access, within its address space."""

    base: int
    size: int


NOTHING = Window(0xFFFFFFFF, 0)
EVERYTHING = Window(0, 1 << NARROW_ADDRESS_BITS)
"""The address space of the documented engine."""


@dataclass(frozen=True, slots=True)
class NetworkSetup:
    """One end of a link: addresses of this engine and of its peer."""

    src_ip: int
    dst_ip: int
    src_mac: int
    dst_mac: int
    src_port: int
    dst_port: int
    local_port: int


@dataclass(frozen=True, slots=True)
class Request:
    """One WRITE: ``length`` bytes from ``local`` of this memory to ``remote`` of the receiver's."""

    local: int
    remote: int
    length: int
    wqe_id: int = 0
    opcode: int = OPCODE_WRITE


@dataclass(frozen=True, slots=True)
class Completion:
    """One CQ entry. With documented entries, ``detail``, ``opcode`` and ``phase`` are 0."""

    index: int
    status: int
    detail: int
    bytes: int
    opcode: int
    phase: int
    wqe_id: int
    requested: int

    def __str__(self) -> str:
        return (
            f"WQE {self.wqe_id:#x} (SQ entry {self.index}): "
            f"status {self.status} ({STATUS_NAMES.get(self.status, '?')}), {self.bytes} of {self.requested} bytes, "
            f"detail {self.detail} ({ENGINE_ERROR_NAMES.get(self.detail, '?')})"
        )


class Driver:
    """Drives one engine. ``submit`` and ``poll`` are the documents' two halves; ``run`` is both, for a batch.

    ``local`` and ``remote``: windows from which the engine may read payloads, and to which it may write received ones.
    After reset it may do neither; :meth:`start` opens both. ``documented_cqe``: the engine writes 000's CQ entries,
    whose index has eight bits.

    Raises:
        EngineError: no completion in time, an entry that fits no descriptor, a reset that does not end.
        ValueError: a ring size that is not 2 to 65535, or an SQ of more than 256 entries with ``documented_cqe``; a
            ring that is not aligned to its entries; at start, a ring or a window outside the engine's address space of
            32 to 64 bits.
    """

    def __init__(
        self,
        backend: Backend,
        layout: QueueLayout | None = None,
        poll_limit: int = POLL_LIMIT,
        local: Window = NOTHING,
        remote: Window = NOTHING,
        documented_cqe: bool = False,
    ) -> None:
        self.backend = backend
        self.layout = layout or QueueLayout()
        self.poll_limit = poll_limit
        self.polls = 0
        """Reads of CQ_TAIL so far."""
        self._posted: dict[int, Request] = {}
        for name in ("sq_size", "cq_size"):
            size = getattr(self.layout, name)
            if not 2 <= size <= 0xFFFF:
                raise ValueError(f"{name}={size}: 2 to 65535 entries")
        self._entry = DOCUMENTED_CQ_ENTRY if documented_cqe else CQ_ENTRY
        if self.layout.sq_size > self._entry["index"].mask + 1:
            raise ValueError(
                f"sq_size={self.layout.sq_size}: at most 256 entries, since 000's CQ entry has 8 bits of index"
            )
        for name, step in (("sq_base", SQE_BYTES), ("cq_base", CQE_BYTES)):
            base = getattr(self.layout, name)
            if base % step:
                raise ValueError(f"{name}={base:#x}: a multiple of {step}")
        self.windows = {"LOCAL": local, "REMOTE": remote}

    def _check_places(self, address_bits: int) -> None:
        """Refuse addresses too wide for the engine's registers, which would truncate them."""
        layout, end = self.layout, 1 << address_bits
        for name, base, size in (
            ("SQ", layout.sq_base, layout.sq_size * SQE_BYTES),
            ("CQ", layout.cq_base, layout.cq_size * CQE_BYTES),
        ):
            if not 0 <= base < base + size <= end:
                raise ValueError(f"{name} of {size} bytes at {base:#x}: inside {address_bits} bits")
        for name, window in self.windows.items():
            if window != NOTHING and not 0 <= window.base < window.base + window.size <= end:
                raise ValueError(
                    f"{name.lower()} window of {window.size} bytes at {window.base:#x}: inside {address_bits} bits"
                )

    # ---- registers

    def get(self, name: str) -> int:
        """Return the engine's register ``name``."""
        return self.backend.read32(OFFSETS[name])

    def put(self, name: str, value: int) -> None:
        """Store the engine's register ``name``."""
        self.backend.write32(OFFSETS[name], value)

    def address_bits(self) -> int:
        """Return the engine's address width in bits, from its registers."""
        field = BY_NAME["PARAMETERS"].field("address_bits")
        return NARROW_ADDRESS_BITS + 4 * (self.get("PARAMETERS") >> field.lsb & field.mask)

    def describe(self) -> str:
        """Return the engine's state in one line, for error messages."""
        status = self.get("HW_STATUS")
        fields = HW_STATUS.unpack(status.to_bytes(4, "little"))
        flags = " ".join(name for name in FLAGS if fields[name])
        state = fields["rdma_state"]
        name = RDMA_STATES[state] if state < len(RDMA_STATES) else str(state)
        network = ""
        has_network = self.get("PARAMETERS") >> BY_NAME["PARAMETERS"].field("network").lsb & 1
        if fields["error"] >= ERR_NET_META and has_network:
            seen = NET_STATUS.unpack(self.backend.read32(ENCAP_BASE + ENCAP_OFFSETS["STATUS"]).to_bytes(4, "little"))
            network = f", encapsulator: {ENCAP_ERROR_NAMES.get(seen['code'], seen['code'])}"
        return (
            f"HW_STATUS={status:#010x} ({name}{', ' + flags if flags else ''}, "
            f"last error: {ENGINE_ERROR_NAMES.get(fields['error'], fields['error'])}{network}), "
            f"SQ_HEAD={self.get('SQ_HEAD')}, SQ_TAIL={self.get('SQ_TAIL')}, "
            f"CQ_HEAD={self.get('CQ_HEAD')}, CQ_TAIL={self.get('CQ_TAIL')}"
        )

    # ---- set up, recover

    def start(self, network: bool = False) -> None:
        """Program both rings and enable the engine, in loopback or in network mode (``hardware.md`` 1b)."""
        layout, address_bits = self.layout, self.address_bits()
        self._check_places(address_bits)
        for ring, base, size in (("SQ", layout.sq_base, layout.sq_size), ("CQ", layout.cq_base, layout.cq_size)):
            self.put(f"{ring}_BASE_LO", base & 0xFFFFFFFF)
            self.put(f"{ring}_BASE_HI", base >> 32)
            self.put(f"{ring}_SIZE", size)
        for name, window in self.windows.items():
            last = max(window.base + window.size - 1, 0) if window != NOTHING else 0
            wide = address_bits > NARROW_ADDRESS_BITS
            if wide:  # closed while the two halves are written: frames may arrive
                self.put(f"{name}_WINDOW_LAST_HI", 0)
                self.put(f"{name}_WINDOW_BASE_HI", 0xFFFFFFFF)
            self.put(f"{name}_WINDOW_BASE", window.base & 0xFFFFFFFF)
            self.put(f"{name}_WINDOW_LAST", last & 0xFFFFFFFF)
            if wide and window != NOTHING:
                self.put(f"{name}_WINDOW_LAST_HI", last >> 32)
                self.put(f"{name}_WINDOW_BASE_HI", window.base >> 32)
        self.put("SQ_TAIL", 0)
        self.put("CQ_HEAD", 0)
        self._posted.clear()
        control = CONTROL.pack({"global_enable": 1, "mode": MODE_NETWORK if network else 0})
        self.put("CONTROL", int.from_bytes(control, "little"))

    def set_network(self, setup: NetworkSetup) -> None:
        """Program the encapsulator, the decapsulator and the peer's endpoint entry, and enable both blocks."""
        entry = ENDPOINT_ENTRY.pack(
            {"valid": 1, "dst_ip": setup.dst_ip, "dst_mac": setup.dst_mac, "src_mac": setup.src_mac}
        )
        slot = LOOKUP_BASE + endpoint_index(setup.dst_ip) * ENDPOINT_ENTRY.size
        write = self.backend.write32
        for at in range(0, ENDPOINT_ENTRY.size, 4):
            write(slot + at, int.from_bytes(entry[at : at + 4], "little"))
        for base, offsets, values in (
            (
                ENCAP_BASE,
                ENCAP_OFFSETS,
                {
                    "SRC_IP": setup.src_ip,
                    "DST_IP": setup.dst_ip,
                    "SRC_PORT": setup.src_port,
                    "DST_PORT": setup.dst_port,
                    "CTRL": 1,
                },
            ),
            (
                DECAP_BASE,
                DECAP_OFFSETS,
                {
                    "LOCAL_PORT": setup.local_port,
                    "LOCAL_MAC_LO": setup.src_mac & 0xFFFFFFFF,
                    "LOCAL_MAC_HI": setup.src_mac >> 32,
                    "LOCAL_IP": setup.src_ip,
                    "CTRL": 1,
                },
            ),
        ):
            for name, value in values.items():
                write(base + offsets[name], value)

    def recover(self, network: bool = False) -> None:
        """Perform a soft reset, wait for its end, and start again. Work in progress is lost; rings begin at entry 0."""
        control = self.get("CONTROL")
        bit = 1 << CONTROL["soft_reset"].lsb
        self.put("CONTROL", control | bit)
        for _ in range(RESET_LIMIT):
            if not self.get("CONTROL") & bit:
                break
        else:
            raise EngineError(f"CONTROL.soft_reset still reads 1 after {RESET_LIMIT} polls: {self.describe()}")
        self.start(network)

    # ---- work

    def free_slots(self) -> int:
        """Return the number of descriptors that may be posted; one slot stays empty in each ring (000 5.7.8)."""
        size = self.layout.sq_size
        in_ring = (self.get("SQ_TAIL") - self.get("SQ_HEAD")) % size
        return min(size - 1 - in_ring, self.layout.cq_size - 1 - len(self._posted))

    def submit(self, requests: Iterable[Request]) -> int:
        """Write descriptors, flush them and their payloads, ring once. Returns how many were posted.

        Raises:
            EngineError: the ring has no room for one of them; those before it are posted.
        """
        tail = first = self.get("SQ_TAIL")
        room = self.free_slots()
        count, full = 0, False
        for request in requests:
            if count == room:
                full = True
                break
            self._write_descriptor(tail, request)
            self._posted[tail] = request
            tail = next_index(tail, self.layout.sq_size)
            count += 1
        if tail != first:
            self.put("SQ_TAIL", tail)
        if full:
            raise EngineError(f"no free descriptor: {self.describe()}; poll completions first")
        return count

    def _write_descriptor(self, index: int, request: Request) -> None:
        address = self.layout.sq_base + index * SQE_BYTES
        entry = SQ_ENTRY.pack(
            {
                "wqe_id": request.wqe_id,
                "opcode": request.opcode,
                "local_addr": request.local,
                "remote_addr": request.remote,
                "length": request.length,
            }
        )
        self.backend.write(address, entry)
        self.backend.flush(address, SQE_BYTES)
        if request.length:
            self.backend.flush(request.local, request.length)

    def poll(self) -> list[Completion]:
        """Return the available completions, possibly none. Each frees its CQ slot as soon as it is read."""
        head, tail = self.get("CQ_HEAD"), self.get("CQ_TAIL")
        self.polls += 1
        if tail >= self.layout.cq_size:
            raise EngineError(f"CQ_TAIL={tail} is not below CQ_SIZE={self.layout.cq_size}: {self.describe()}")
        out = []
        while head != tail:
            out.append(self._read_entry(head))
            head = next_index(head, self.layout.cq_size)
            self.put("CQ_HEAD", head)
        return out

    def _read_entry(self, index: int) -> Completion:
        address = self.layout.cq_base + index * CQE_BYTES
        self.backend.invalidate(address, CQE_BYTES)
        entry = self._entry.unpack(self.backend.read(address, CQE_BYTES))
        found = Completion(
            index=entry["index"],
            status=entry["status"],
            detail=entry.get("vendor_err", 0),
            bytes=entry["bytes"],
            opcode=entry.get("opcode", 0),
            phase=entry.get("phase", 0),
            wqe_id=entry["wqe_id"],
            requested=entry["requested"],
        )
        request = self._posted.pop(found.index, None)
        if request is None:
            raise EngineError(f"CQ entry {index} is for SQ entry {found.index}, which is not posted: {self.describe()}")
        return found

    def wait(self, count: int = 1) -> list[Completion]:
        """Poll until ``count`` completions have arrived.

        Raises:
            EngineError: ``poll_limit`` polls in a row brought none.
        """
        out: list[Completion] = []
        idle = 0
        while len(out) < count:
            new = self.poll()
            out += new
            idle = 0 if new else idle + 1
            if idle >= self.poll_limit:
                raise EngineError(
                    f"CQ_TAIL did not move in {self.poll_limit} polls, {len(out)} of {count} completions came: "
                    f"{self.describe()}; recover() resets the engine"
                )
        return out

    def run(self, requests: Iterable[Request]) -> list[Completion]:
        """Execute all requests, as many at a time as the rings hold; return completions in order."""
        waiting = list(requests)
        out: list[Completion] = []
        while waiting or self._posted:
            room = self.free_slots()
            if waiting and room > 0:
                batch, waiting = waiting[:room], waiting[room:]
                self.submit(batch)
            out += self.wait()
        return out

    def read_back(self, address: int, count: int) -> bytes:
        """Return what the engine wrote: invalidate, then read (000 5.7.6)."""
        self.backend.invalidate(address, count)
        return self.backend.read(address, count)
