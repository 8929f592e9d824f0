"""Untimed reference model of the engine: each register write executes all posted work.

This reference model serves the driver as a :class:`~rnic.gateware.driver.Backend` where cycles do not matter, and the
tests compare the gateware's memory and completions with it. It models the core in loopback; packets exist here only as
the fragments they carry.
"""

from __future__ import annotations

from rnic.gateware.cache import NonCoherentCache, SparseMemory
from rnic.gateware.params import EngineParams
from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES, DOCUMENTED_CQ_ENTRY
from rnic.rings.sqe import SQ_ENTRY, SQE_BYTES
from rnic.spec.engine_regs import (
    CONTROL,
    ERR_LOCAL_BUS,
    ERR_LOCAL_WINDOW,
    ERR_NONE,
    ERR_REMOTE_BUS,
    ERR_REMOTE_WINDOW,
    ERR_SQ_FETCH,
    ERR_TAIL,
    ERR_ZERO_LENGTH,
    HW_STATUS,
    NARROW_ADDRESS_BITS,
    OFFSETS,
    STATUS_OF_DETAIL,
    WRITE_OPCODES,
    register_map,
)


def fragments(address: int, length: int, params: EngineParams) -> list[tuple[int, int]]:
    """Yield (offset, bytes) of each fragment: the minimum of the rest, BLOCK_SIZE, and the bytes to the boundary."""
    out, offset = [], 0
    while offset < length:
        to_boundary = params.boundary - (address + offset) % params.boundary
        size = min(length - offset, params.block_size, to_boundary)
        out.append((offset, size))
        offset += size
    return out


class EngineModel:
    """Registers and memory of an engine in loopback; every operation takes no time."""

    def __init__(self, params: EngineParams, memory: SparseMemory) -> None:
        self.params = params
        self.memory = memory
        self.cache = NonCoherentCache(memory)
        self._registers = {register.offset: register for register in register_map(address_bits=params.address_bits)}
        self._values = {offset: register.reset for offset, register in self._registers.items()}
        parameters = self._registers[OFFSETS["PARAMETERS"]]
        beyond = (params.address_bits - NARROW_ADDRESS_BITS) // 4
        self._values[parameters.offset] = beyond << parameters.field("address_bits").lsb
        self._phase = 1
        self._error = ERR_NONE

    # ---- backend

    def read32(self, offset: int) -> int:
        """Return a register."""
        if offset == OFFSETS["HW_STATUS"]:
            full = self._cq_full() and self._work()
            return int.from_bytes(HW_STATUS.pack({"error": self._error, "cq_full": full}), "little")
        return self._values.get(offset, 0)

    def write32(self, offset: int, value: int) -> None:
        """Store a register, then execute all posted work."""
        access = self._registers[offset].access if offset in self._registers else "RO"
        if offset == OFFSETS["CONTROL"] and value >> CONTROL["soft_reset"].lsb & 1:
            for name in ("SQ_HEAD", "SQ_TAIL", "CQ_HEAD", "CQ_TAIL"):
                self._values[OFFSETS[name]] = 0
            self._phase, self._error = 1, ERR_NONE
            value &= ~(1 << CONTROL["soft_reset"].lsb)
        if access == "W1C":
            self._values[offset] &= ~value
        elif access == "RW":
            self._values[offset] = value
        self._run()

    def read(self, address: int, count: int) -> bytes:
        """Load as the processor does."""
        return self.cache.read(address, count)

    def write(self, address: int, data: bytes) -> None:
        """Store as the processor does."""
        self.cache.write(address, data)

    def flush(self, address: int, count: int) -> None:
        """Cache flush."""
        self.cache.flush(address, count)

    def invalidate(self, address: int, count: int) -> None:
        """Cache invalidation."""
        self.cache.invalidate(address, count)

    # ---- the engine

    def _get(self, name: str) -> int:
        return self._values[OFFSETS[name]]

    def _address(self, low: str, high: str) -> int:
        """Return the address in two registers, truncated to the engine's address width."""
        upper = self._get(high) if self.params.wide else 0
        return (self._get(low) | upper << 32) & (1 << self.params.address_bits) - 1

    def _work(self) -> bool:
        control = self._get("CONTROL").to_bytes(4, "little")
        enabled = CONTROL.get(control, "global_enable") and not CONTROL.get(control, "pause")
        return bool(enabled) and self._get("SQ_HEAD") != self._get("SQ_TAIL")

    def _cq_full(self) -> bool:
        size, head, tail = self._get("CQ_SIZE"), self._get("CQ_HEAD"), self._get("CQ_TAIL")
        return size == 0 or head >= size or (tail + 1) % size == head

    def _run(self) -> None:
        while self._work() and not self._cq_full():
            if self._get("SQ_TAIL") >= self._get("SQ_SIZE"):
                self._error = ERR_TAIL
                return
            self._one()

    def _one(self) -> None:
        """Fetch, execute and complete one descriptor."""
        head, tail = self._get("SQ_HEAD"), self._get("CQ_TAIL")
        device = self.cache.device
        try:
            ring = self._address("SQ_BASE_LO", "SQ_BASE_HI")
            entry = SQ_ENTRY.unpack(device.read(ring + head * SQE_BYTES, SQE_BYTES))
            error, sent = self._execute(entry)
        except LookupError:
            entry, error, sent = dict.fromkeys((field.name for field in SQ_ENTRY.fields), 0), ERR_SQ_FETCH, 0
        if error:
            self._error = error
        values = {
            "index": head,
            "status": STATUS_OF_DETAIL.get(error, 0),
            "vendor_err": error,
            "bytes": sent,
            "opcode": entry["opcode"] & 0xFF,
            "phase": self._phase,
            "wqe_id": entry["wqe_id"],
            "requested": entry["length"],
        }
        if self.params.documented_cqe:
            known = {**values, "index": head & 0xFF, "index_again": head & 0xFF}
            completion = DOCUMENTED_CQ_ENTRY.pack({each.name: known[each.name] for each in DOCUMENTED_CQ_ENTRY.fields})
        else:
            completion = CQ_ENTRY.pack(values)
        device.write(self._address("CQ_BASE_LO", "CQ_BASE_HI") + tail * CQE_BYTES, completion)
        self._values[OFFSETS["SQ_HEAD"]] = (head + 1) % self._get("SQ_SIZE")
        self._values[OFFSETS["CQ_TAIL"]] = (tail + 1) % self._get("CQ_SIZE")
        if tail + 1 == self._get("CQ_SIZE"):
            self._phase ^= 1

    def _inside(self, window: str, address: int, length: int) -> bool:
        base, last = (self._address(f"{window}_WINDOW_{end}", f"{window}_WINDOW_{end}_HI") for end in ("BASE", "LAST"))
        return base <= address and address + length <= last + 1

    def _execute(self, entry: dict[str, int]) -> tuple[int, int]:
        """Return (detail code, bytes sent) of a descriptor."""
        local, remote, length = entry["local_addr"], entry["remote_addr"], entry["length"]
        if length == 0:
            return ERR_ZERO_LENGTH, 0
        if not self._inside("LOCAL", local, length):
            return ERR_LOCAL_WINDOW, 0
        # with a high word, all of the WRITE must lie inside the addresses; else each fragment is judged on arrival
        if remote + (length - 1 if self.params.wide else 0) >= 1 << self.params.address_bits:
            return ERR_REMOTE_WINDOW, 0
        sent, error = 0, ERR_NONE
        for offset, size in fragments(local, length, self.params):
            try:
                data = self.cache.device.read(local + offset, size)
            except LookupError:
                return ERR_LOCAL_BUS, sent
            sent += size
            if entry["opcode"] & 0xFF not in WRITE_OPCODES:
                continue
            if not self._inside("REMOTE", remote + offset, size):
                error = error or ERR_REMOTE_WINDOW
                continue
            try:
                self.cache.device.write(remote + offset, data)
            except LookupError:
                error = error or ERR_REMOTE_BUS
        return error, sent
