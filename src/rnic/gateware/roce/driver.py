"""Test harness of a :class:`~rnic.gateware.roce.responder_nic.ResponderNic`: a MAC, memory, CtxMgt, software.

:meth:`Around.cycle` takes the outputs of a cycle and returns the inputs of the next, for any simulator.
:class:`InProcess` runs Verilog that Verilator has compiled into this process.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from amaranth.lib import data

from rnic.context import messages as msg
from rnic.gateware.roce import responder as block
from rnic.gateware.roce.mr_table import setting
from rnic.gateware.roce.qp_state import UPDATE
from rnic.gateware.roce.responder_nic import ResponderParams
from rnic.gateware.roce.streams import beat
from rnic.gateware.verilated import Library, Model

Fields = dict[str, int]
QUIET: Final = 48
"""Cycles without input or output after which nothing is in flight except packets being stored."""
PATIENCE: Final = 200_000


class Host(Protocol):
    """Memory and software that a responder uses."""

    def read(self, address: int, count: int) -> bytes:
        """Return bytes of memory."""

    def write(self, address: int, data: bytes) -> None:
        """Store bytes in memory."""

    def channel(self, command: bytes, payload: bytes) -> tuple[bytes, bytes] | None:
        """Execute a command of the execution engine as CtxMgt; return the answer's header and payload, if any."""

    def take_receive(self, qpn: int, take: bool, keeps: bool) -> Fields:
        """Take a receive entry, or only report the credits; return the fields of
        :data:`~rnic.gateware.roce.responder.RECEIVE`."""

    def complete(self, completion: Fields) -> None:
        """Complete a receive entry, or stop a queue pair; takes the fields of
        :data:`~rnic.gateware.roce.responder.COMPLETION`."""

    def lost(self, qpn: int) -> None:
        """Stop a queue pair whose memory was deregistered during a READ response."""


def bits_of(layout: data.StructLayout, values: Mapping[str, Any]) -> int:
    """Return the bits of a payload."""
    out = 0
    for name, value in values.items():
        field = layout[name]
        inner = bits_of(field.shape, value) if isinstance(value, Mapping) else value
        out |= inner << field.offset
    return out


def fields_of(layout: data.StructLayout, bits: int) -> dict[str, Any]:
    """Return the fields of a payload, including nested structures."""
    out: dict[str, Any] = {}
    for name, field in layout:
        value = bits >> field.offset & (1 << field.width) - 1
        out[name] = fields_of(field.shape, value) if isinstance(field.shape, data.StructLayout) else value
    return out


class Around:
    """A MAC, memory and software, cycle by cycle.

    Args:
        latency: cycles from a store's last beat, or from a fetch, to memory's answer.
        stalls: fraction of cycles in which each stream accepts nothing, or offers nothing new.
    """

    def __init__(
        self,
        params: ResponderParams,
        host: Host,
        mac: int,
        ip: int,
        latency: int = 1,
        stalls: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.host, self.latency, self.lanes = host, latency, params.width // 8
        self._rng, self._stalls = random.Random(seed), stalls
        self._beat = beat(params.width)
        self._layouts: dict[str, Any] = {
            "settings": block.SET, "receives": block.RECEIVE, "rx": self._beat, "fetch_data": self._beat,
            **setting(params.table),
        }  # fmt: skip
        self._takers: dict[str, tuple[Any, Callable[[Any], None]]] = {
            "tx": (self._beat, self._transmit),
            "stores": (block.STORE, self._store),
            "store_data": (self._beat, self._store_data),
            "fetches": (block.STORE, self._fetch),
            "take_receives": (block.TAKE_RECEIVE, self._take_receive),
            "completions": (block.COMPLETION, host.complete),
            "lost": (None, host.lost),
            "cmd": (None, self._command),
            "cxt_in": (None, self._payload),
        }
        names = (*self._layouts, "forgets", "resp", "cxt")
        self._queues: dict[str, deque[int]] = {name: deque() for name in names}
        self._ready: set[str] = set()
        self._offered: set[str] = set()
        self._commands: deque[bytes] = deque()
        self._payloads: deque[bytes] = deque()
        self._stores: deque[Fields] = deque()
        self._later: deque[tuple[int, list[int] | None]] = deque()
        self._frame, self._packet = b"", b""
        self._packets: deque[bytes] = deque()
        self._storing = self._pulse = 0
        self.cycles = self._quiet = self.dropped = 0
        self.sent: list[bytes] = []
        """Transmitted frames."""
        self.states: dict[int, Fields] = {}
        """The last update of each queue pair's state."""
        self.updates: list[int] = []
        """The cycle of each update."""
        self.inputs: Fields = {"mac": mac, "ip": ip}

    # ------------------------------------------------------------------------------ inputs

    def put(self, port: str, values: Mapping[str, Any] | int) -> None:
        """Offer a payload at a stream."""
        self._queues[port].append(values if isinstance(values, int) else bits_of(self._layouts[port], values))

    def frame(self, frame: bytes) -> None:
        """Offer a frame's beats."""
        beats = list(self._beats(frame))
        self._queues["rx"].extend(beats)
        self._storing = max(self._storing, 2 * len(beats))

    def _beats(self, packet: bytes) -> Iterable[int]:
        for at in range(0, len(packet), self.lanes):
            part = packet[at : at + self.lanes]
            last = int(at + self.lanes >= len(packet))
            yield bits_of(self._beat, {"data": int.from_bytes(part, "little"), "count": len(part), "last": last})

    @property
    def idle(self) -> bool:
        """True if nothing is in flight."""
        return self._quiet > QUIET + self._storing

    def wake(self) -> None:
        """Restart the count of quiet cycles."""
        self._quiet = 0

    # ------------------------------------------------------------------------------ a cycle

    def cycle(self, pins: Mapping[str, int]) -> Fields:
        """Process a cycle's outputs; return the inputs that change in the next cycle."""
        active = pins["active"]
        at_rest = not (self._offered or self._later or self._stalls or self.inputs or any(self._queues.values()))
        if at_rest and not active and not self._pulse:
            self.cycles += 1
            self._quiet += 1
            return {}
        moved = False
        for port in self._ready if active else ():
            if pins[f"{port}_valid"]:
                layout, take = self._takers[port]
                bits = pins[f"{port}_payload"]
                take(bits if layout is None else fields_of(layout, bits))
                moved = True
        for port in self._offered:
            if pins[f"{port}_ready"]:
                self._queues[port].popleft()
                moved = True
        if active and pins["updated"]:
            update = fields_of(UPDATE, pins["update"])
            self.states[update["qpn"]] = update["state"]
            self.updates.append(self.cycles)
            moved = True
        if active and pins["dropped"]:
            self.dropped += 1
            moved = True
        self.cycles += 1
        new: Fields = {}
        stored = 0
        if self._later and self._later[0][0] <= self.cycles:
            beats = self._later.popleft()[1]
            if beats is None:
                stored = 1
            else:
                self._queues["fetch_data"].extend(beats)
        if stored != self._pulse:
            new["stored"] = self._pulse = stored
        for port, queue in self._queues.items():
            held = port in self._offered and not pins[f"{port}_ready"]
            if queue and (held or not self._stalled()):
                if port not in self._offered or not held:
                    new[f"{port}_payload"] = queue[0]
                if port not in self._offered:
                    new[f"{port}_valid"] = 1
                    self._offered.add(port)
            elif port in self._offered:
                new[f"{port}_valid"] = 0
                self._offered.discard(port)
        for port in self._takers:
            ready = not self._stalled()
            if ready != (port in self._ready):
                new[f"{port}_ready"] = int(ready)
                (self._ready.add if ready else self._ready.discard)(port)
        busy = moved or self._later or any(self._queues.values()) or self._stores
        self._quiet = 0 if busy else self._quiet + 1
        new |= self.inputs
        self.inputs = {}
        return new

    def _stalled(self) -> bool:
        return self._stalls > 0 and self._rng.random() < self._stalls

    # ------------------------------------------------------------------------------ outputs

    def _transmit(self, came: Fields) -> None:
        self._frame += came["data"].to_bytes(self.lanes, "little")[: came["count"]]
        if came["last"]:
            self.sent.append(self._frame)
            self._frame = b""

    def _store(self, store: Fields) -> None:
        self._stores.append(store)
        self._execute()

    def _store_data(self, came: Fields) -> None:
        self._packet += came["data"].to_bytes(self.lanes, "little")[: came["count"]]
        if came["last"]:
            self._packets.append(self._packet)
            self._packet = b""
        self._execute()

    def _execute(self) -> None:
        while self._stores and self._packets:
            store, packet = self._stores.popleft(), self._packets.popleft()
            assert len(packet) == store["bytes"], store
            self.host.write(store["address"], packet[: store["left"]])
            if store["bytes"] > store["left"]:
                self.host.write(store["next"], packet[store["left"] :])
            self._later.append((self.cycles + self.latency, None))

    def _fetch(self, fetch: Fields) -> None:
        found = self.host.read(fetch["address"], min(fetch["left"], fetch["bytes"]))
        if fetch["bytes"] > fetch["left"]:
            found += self.host.read(fetch["next"], fetch["bytes"] - fetch["left"])
        self._later.append((self.cycles + self.latency, list(self._beats(found))))

    def _take_receive(self, asked: Fields) -> None:
        self.put("receives", self.host.take_receive(asked["qpn"], bool(asked["take"]), bool(asked["keeps"])))

    def _command(self, bits: int) -> None:
        self._commands.append(bits.to_bytes(msg.ENGINE_HEADER.size, "big"))
        self._serve()

    def _payload(self, bits: int) -> None:
        self._payloads.append(bits.to_bytes(msg.ENGINE_HEADER.size, "big"))
        self._serve()

    def _serve(self) -> None:
        while self._commands:
            writes = self._commands[0][0] == msg.WR_QP_CXT << 4 | msg.WR_QP_EPST
            if writes and not self._payloads:
                return
            answer = self.host.channel(self._commands.popleft(), self._payloads.popleft() if writes else b"")
            if answer is not None:
                self.put("resp", int.from_bytes(answer[0], "big"))
                self.put("cxt", int.from_bytes(answer[1], "little"))


class InProcess:
    """A compiled responder in its harness."""

    def __init__(self, library: Library, around: Around) -> None:
        self._model, self.around = Model(library), around

    def settle(self) -> None:
        """Run until nothing is in flight.

        Raises:
            RuntimeError: that takes too many cycles.
        """
        around, model = self.around, self._model
        end = around.cycles + PATIENCE
        around.wake()
        while not around.idle:
            model.step(around.cycle(model.outputs))
            if around.cycles > end:
                raise RuntimeError(f"the responder has not come to rest in {PATIENCE} cycles")

    def close(self) -> None:
        """Free the simulation."""
        self._model.close()


def in_process(library: Library, params: ResponderParams, host: Host, mac: int, ip: int, **options: Any) -> InProcess:
    """Start a simulation of a compiled responder; ``options`` as for :class:`Around`."""
    return InProcess(library, Around(params, host, mac, ip, **options))
