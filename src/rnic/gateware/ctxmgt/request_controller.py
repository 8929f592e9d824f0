"""``request controller``: select the next of the seven channels for key_qpc_data (002 5.2)."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.context import messages as m

CHANNELS = len(m.SOURCE_NAMES)
ENGINES = len(m.ENGINES)
VALID = m.SELECTED_CHANNEL["valid"].lsb


class RequestController(wiring.Component):
    """``waiting``: the channels' FIFOs that are not empty, the CEU's lowest; a channel without room for its answer
    counts as empty, so that no channel waits for a requester that does not accept its answers.

    ``selected_channel`` has one channel bit and the valid bit. ``chosen``: this cycle makes a choice.
    """

    def __init__(self) -> None:
        super().__init__({"waiting": In(CHANNELS), "receive_req": In(1), "selected_channel": Out(8), "chosen": Out(1)})

    def elaborate(self, platform: object) -> Module:
        """Choose the CEU first, then the engine's channels round-robin."""
        module = Module()
        selected, waiting = self.selected_channel, self.waiting
        last = Signal(ENGINES, init=1 << ENGINES - 1)  # the engine's channel that was chosen last
        engines = waiting[1:]
        behind = Cat(*(last[:place].any() for place in range(ENGINES)))  # channels that come after the last one
        first, wrapped = _lowest(engines & behind), _lowest(engines)
        module.d.comb += self.chosen.eq(~selected[VALID] & waiting.any())
        with module.If(self.receive_req):
            module.d.sync += selected[VALID].eq(0)
        with module.If(self.chosen):
            with module.If(waiting[0]):
                module.d.sync += selected.eq(1 << VALID | 1)
            with module.Else():
                engine = Signal(ENGINES)
                with module.If((engines & behind).any()):
                    module.d.comb += engine.eq(first)
                with module.Else():
                    module.d.comb += engine.eq(wrapped)
                module.d.sync += [last.eq(engine), selected.eq(Cat(0, engine, 1))]
        return module


def _lowest(bits: Value) -> Value:
    return bits & (~bits + 1)[: len(bits)]
