"""Use a PAXI window as the AXI4 slave of a design under cocotb: the design's master accesses remote memory.

Needs cocotb, which runs this; nothing else of rnic imports it::

    window = rnic.paxi.open_window("127.0.0.1", 7472, config=BridgeConfig(data_bits=64))
    CocotbPaxi(dut, "m_axi", dut.clk, window).start()

Simulated time is independent of the network's: each clock cycle checks once for an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from rnic.paxi.axi import Address, WriteBeat
from rnic.paxi.pins import Driven, PinSlave, Sampled
from rnic.paxi.window import Window
from rnic.spec.axi import Burst


class CocotbPaxi:
    """Drives the slave's side of ``PREFIX_awready`` and so on, and samples the master's.

    Signals that AXI4 makes optional for a master (``awid``, ``awburst``, ``awsize`` and those of AR, ``wstrb``) may be
    missing: then ID 0, INCR, the full width and all bytes are meant. A signal that is X or Z counts as 0.

    Args:
        dut: the design, or a handle inside it.
        prefix: prefix of the signals' names.
        clock: the bus clock.
        window: as wide as ``wdata``; no other user may touch it meanwhile.
        stalls: as of :class:`~rnic.paxi.pins.PinSlave`.

    Raises:
        ValueError: the window's width is not the bus's.
    """

    def __init__(
        self, dut: Any, prefix: str, clock: Any, window: Window, stalls: Callable[[], bool] | None = None
    ) -> None:
        self.slave = PinSlave(window.port, stalls)
        self._dut = dut
        self._prefix = prefix
        self._clock = clock
        self._lanes = window.port.bridge.lanes
        bits = len(self._signal("wdata"))
        if bits != self._lanes * 8:
            raise ValueError(f"a window of {self._lanes * 8} bits on a bus of {bits}")

    def start(self) -> Any:
        """Start; return the task, which ``cancel`` ends."""
        self._drive(self.slave.driven)
        return cocotb.start_soon(self._run())

    async def _run(self) -> None:
        edge = RisingEdge(self._clock)
        shown = self.slave.driven
        while True:
            await edge
            driven = self.slave.cycle(self._sample())
            if driven != shown:
                self._drive(driven)
                shown = driven

    def _signal(self, name: str) -> Any:
        return getattr(self._dut, f"{self._prefix}_{name}")

    def _number(self, name: str, absent: int = 0) -> int:
        signal = getattr(self._dut, f"{self._prefix}_{name}", None)
        if signal is None:
            return absent
        value = signal.value
        return int(value) if value.is_resolvable else 0

    def _sample(self) -> Sampled:
        number = self._number
        beat = None
        if number("wvalid"):
            lanes = self._lanes
            data = number("wdata").to_bytes(lanes, "little")
            beat = WriteBeat(data, number("wstrb", (1 << lanes) - 1), bool(number("wlast")))
        return Sampled(
            self._address("ar") if number("arvalid") else None,
            self._address("aw") if number("awvalid") else None,
            beat,
            bool(number("rready")),
            bool(number("bready")),
        )

    def _address(self, channel: str) -> Address:
        number = self._number
        return Address(
            number(f"{channel}id"),
            number(f"{channel}addr"),
            number(f"{channel}len"),
            number(f"{channel}size", self._lanes.bit_length() - 1),
            number(f"{channel}burst", Burst.INCR.value),
        )

    def _drive(self, driven: Driven) -> None:
        arready, awready, wready, r, b = driven
        values = {
            "arready": int(arready),
            "awready": int(awready),
            "wready": int(wready),
            "rvalid": int(r is not None),
            "bvalid": int(b is not None),
        }
        if r is not None:
            values |= {"rid": r.id, "rdata": int.from_bytes(r.data, "little"), "rresp": r.resp, "rlast": int(r.last)}
        if b is not None:
            values |= {"bid": b.id, "bresp": b.resp}
        for name, value in values.items():
            signal = getattr(self._dut, f"{self._prefix}_{name}", None)
            if signal is not None:
                signal.value = value
