"""Split ``data_mover``'s commands into bursts and jobs, for both of its channels, and count beats."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import register_at, unpack, unreset
from rnic.gateware.interfaces import WordStream, command_bits
from rnic.gateware.params import BTT_BITS, EngineParams
from rnic.spec.engine_regs import dm_command_layout


def burst_beats(params: EngineParams) -> int:
    """Return the longest burst in beats: the parameter, limited to 4 KB."""
    return min(params.max_burst, 4096 // params.bus_bytes)


def log2(value: int) -> int:
    """Return the number of bits of a number below ``value``."""
    return (value - 1).bit_length()


class Plan(wiring.Component):
    """Split commands into bursts, and make a job for the data side of each command; both channels have one."""

    def __init__(self, params: EngineParams) -> None:
        shift = log2(params.bus_bytes)
        self.params = params
        self.longest = burst_beats(params)
        self.job_layout = data.StructLayout(
            {
                "offset": shift,  # place of the first byte in its memory beat
                "memory_beats": BTT_BITS + 1 - shift,
                "stream_beats": BTT_BITS + 1 - shift,
                "tail": shift,  # bytes in the last stream beat; 0: all
                "slot": log2(burst_beats(params)),  # place of the first beat in its burst window
                "eof": 1,
                "refused": 1,
                "tag": 4,
            }
        )
        super().__init__(
            {
                "cmd": In(WordStream(command_bits(params.address_bits))),
                "abort": In(1),
                "room": In(1),
                "addr": Out(params.address_bits),
                "len": Out(8),
                "last": Out(1),
                "valid": Out(1),
                "ready": In(1),
                "job": Out(self.job_layout),
                "job_valid": Out(1),
                "job_take": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Load a command into a register; output one burst per cycle."""
        m = Module()
        lanes = self.params.bus_bytes
        shift = log2(lanes)
        m.submodules.jobs = jobs = SyncFIFO(width=self.job_layout.size, depth=self.params.queue)
        # Bursts end at multiples of the longest burst: the first may begin inside a window, the others begin at its
        # start, and only the last may end inside. So two small numbers and a count of windows describe all of them.
        slots = log2(self.longest)
        active = Signal()
        windows = unreset(BTT_BITS + 1 - shift - slots)  # after the current one
        page = unreset(self.params.address_bits - shift - slots)
        first, final_slot = unreset(slots), unreset(slots)
        addr = register_at(m, self.addr)

        command, layout = self.cmd.tdata, dm_command_layout(self.params.address_bits)
        btt, address = unpack(command, layout, "btt"), unpack(command, layout, "address")
        take = Signal()
        refused = Signal()
        span = Signal(BTT_BITS + 1)
        filled = Signal(BTT_BITS + 1)
        last_byte = Signal(BTT_BITS + 1)  # counted from where the first window begins
        job = Signal(self.job_layout)
        m.d.comb += [
            self.cmd.tready.eq(~self.abort & ~active & jobs.w_rdy),
            take.eq(self.cmd.tvalid & self.cmd.tready),
            refused.eq((btt == 0) | ~unpack(command, layout, "type")[0]),
            span.eq(btt + address[:shift] + (lanes - 1)),
            filled.eq(btt + (lanes - 1)),
            last_byte.eq(btt + address[: shift + slots] - 1),
            job.offset.eq(address[:shift]),
            job.memory_beats.eq(span >> shift),
            job.stream_beats.eq(filled >> shift),
            job.tail.eq(btt[:shift]),
            job.slot.eq(address[shift:]),
            job.eof.eq(unpack(command, layout, "eof")),
            job.refused.eq(refused),
            job.tag.eq(unpack(command, layout, "tag")),
            jobs.w_data.eq(job),
            jobs.w_en.eq(take),
            self.job.eq(jobs.r_data),
            self.job_valid.eq(jobs.r_rdy),
            jobs.r_en.eq(self.job_take),
        ]
        final = Signal()
        m.d.comb += final.eq(windows == 0)
        with m.If(self.ready):
            m.d.sync += self.valid.eq(0)
        with m.If(take):
            m.d.sync += [
                active.eq(~refused),
                Cat(first, page).eq(address[shift:]),
                Cat(final_slot, windows).eq(last_byte >> shift),
            ]
        with m.Elif(active & (~self.valid | self.ready) & self.room & ~self.abort):
            m.d.sync += [
                self.valid.eq(1),
                addr.eq(Cat(Const(0, shift), first, page)),
                self.len.eq(Mux(final, final_slot, self.longest - 1) - first),
                self.last.eq(final),
                active.eq(~final),
                windows.eq(windows - 1),
                page.eq(page + 1),
                first.eq(0),
            ]
        with m.If(self.abort):
            m.d.sync += active.eq(0)
        return m


class Countdown:
    """A down counter of beats, with registered flags for any left and for the last one."""

    def __init__(self, m: Module, width: int, name: str) -> None:
        self.m = m
        self.value = unreset(width, name=name)
        self.any = Signal(name=f"{name}_any")
        self.one = Signal(name=f"{name}_one")

    def load(self, count: Value, nothing: Value) -> None:
        """Load ``count``, which is not 0, or 0 if ``nothing``."""
        self.m.d.sync += [self.value.eq(count), self.any.eq(~nothing), self.one.eq(~nothing & (count == 1))]

    def step(self) -> None:
        """Decrement; undefined at 0."""
        self.m.d.sync += [self.value.eq(self.value - 1), self.any.eq(~self.one), self.one.eq(self.value == 2)]
