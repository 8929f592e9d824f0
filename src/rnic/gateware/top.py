"""``top``: the whole engine, with one AXI4 master, one AXI4-Lite slave, MAC streams and one interrupt."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect, flipped

from rnic.gateware.axi_arbiter import AxiArbiter
from rnic.gateware.bits import pack, unpack
from rnic.gateware.cdc import AxiCrossing, MacRxCrossing, MacTxCrossing
from rnic.gateware.cmd_master import CmdMaster
from rnic.gateware.control_streams import CqStreamer, DescriptorParser
from rnic.gateware.data_mover import DataMover
from rnic.gateware.endpoint_lookup import EndpointLookup
from rnic.gateware.interfaces import Axi4, Axi4Lite, AxiStream
from rnic.gateware.ip_decapsulator import IpDecapsulator
from rnic.gateware.ip_encapsulator import IpEncapsulator
from rnic.gateware.params import EngineParams
from rnic.gateware.pipelined_controller import PipelinedController
from rnic.gateware.rdma_controller import S_IDLE, S_SEND_TX_CMD, RdmaController
from rnic.gateware.register_slice import AxiSlice, RegisterSlice
from rnic.gateware.registers import Registers
from rnic.gateware.rx_path import RxHeaderParser, RxStreamer
from rnic.gateware.tx_path import TxHeaderInserter, TxStreamer
from rnic.rings.cqe import CQE_BYTES
from rnic.rings.sqe import SQ_ENTRY, SQE_BYTES
from rnic.spec.engine_net_regs import NET_ERROR_OF
from rnic.spec.engine_regs import (
    AXIL_ADDRESS_BITS,
    CONTROL,
    HW_STATUS,
    IRQ_STATUS,
    MODE_NETWORK,
    NARROW_ADDRESS_BITS,
)


def interface(params: EngineParams) -> dict[str, wiring.Member]:
    """Return the engine's ports."""
    width = params.bus_width
    return {
        "s_axil": In(Axi4Lite(AXIL_ADDRESS_BITS)),
        "m_axi": Out(Axi4(width, 1, params.address_bits)),
        "mac_tx_axis": Out(AxiStream(width)),
        "mac_rx_axis": In(AxiStream(width)),
        "irq": Out(1),
    }


class Top(wiring.Component):
    """One engine."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__(interface(params))
        self.params = params
        self.registers = Registers(params)
        self.several = params.in_flight > 1
        self.controller = PipelinedController(params) if self.several else RdmaController(params)
        if not self.several:
            self.cmd_master = CmdMaster(params.address_bits)
        self.parser = DescriptorParser(params)
        self.cq_streamer = CqStreamer(params)
        self.control_mover = DataMover(params, 0, SQE_BYTES, CQE_BYTES)
        self.data_mover = DataMover(params, 1)
        self.tx_streamer = TxStreamer(params)
        self.header_inserter = TxHeaderInserter(params)
        self.header_parser = RxHeaderParser(params)
        self.rx_streamer = RxStreamer(params)
        self.tx_slice = RegisterSlice(params.bus_width)
        self.rx_slice = RegisterSlice(params.bus_width)
        if params.network:
            self.encapsulator = IpEncapsulator(params)
            self.decapsulator = IpDecapsulator(params)
            self.lookup = EndpointLookup(params)
            if params.broad:
                self.net_slice = RegisterSlice(params.bus_width)

    def elaborate(self, platform: object) -> Module:
        """Build wires, the two packet switches, the bus arbiter, counters and the soft reset."""
        m = Module()
        for name in (
            "registers", "controller", "parser", "cq_streamer", "control_mover", "data_mover",
            "tx_streamer", "header_inserter", "tx_slice", "rx_slice", "header_parser", "rx_streamer",
        ):  # fmt: skip
            m.submodules[name] = getattr(self, name)
        m.submodules.loopback = fifo = SyncFIFOBuffered(
            width=self.params.bus_width + self.params.bus_bytes + 2, depth=self.params.fifo_depth
        )
        registers, controller = self.registers, self.controller
        value = registers.value
        network = Signal()
        soft_reset = registers.soft_reset
        tx_abort, rx_abort, quiet, writes_quiet = Signal(), Signal(), Signal(), Signal()
        # With many lanes, signals that drive all lanes or distant blocks are registered, a cycle or two late: the mode
        # changes, and an abort ends, many cycles before a packet arrives
        to_net, from_net, drain, late_reset = network, network, rx_abort, soft_reset
        if self.params.broad:
            to_net, from_net, drain, late_reset = (
                Signal(name=name) for name in ("to_net", "from_net", "drain", "late_reset")
            )
            m.d.sync += [to_net.eq(network), from_net.eq(to_net), drain.eq(rx_abort), late_reset.eq(soft_reset)]

        # ---- registers and controller
        connect(m, flipped(self.s_axil), registers.s_axil)
        control = value["CONTROL"]
        mode = unpack(control, CONTROL, "mode")
        m.d.comb += [
            controller.enable.eq(unpack(control, CONTROL, "global_enable") & ~soft_reset),
            controller.pause.eq(unpack(control, CONTROL, "pause")),
            controller.sq_base.eq(self._address("SQ_BASE_LO", "SQ_BASE_HI") & -SQE_BYTES),
            controller.sq_size.eq(value["SQ_SIZE"]),
            controller.sq_tail.eq(value["SQ_TAIL"]),
            controller.cq_base.eq(self._address("CQ_BASE_LO", "CQ_BASE_HI") & -CQE_BYTES),
            controller.cq_size.eq(value["CQ_SIZE"]),
            controller.cq_head.eq(value["CQ_HEAD"]),
            controller.local_base.eq(self._address("LOCAL_WINDOW_BASE", "LOCAL_WINDOW_BASE_HI")),
            controller.local_last.eq(self._address("LOCAL_WINDOW_LAST", "LOCAL_WINDOW_LAST_HI")),
            controller.watchdog.eq(value["WATCHDOG"]),
            value["SQ_HEAD"].eq(controller.sq_head),
            value["CQ_TAIL"].eq(controller.cq_tail),
            self.irq.eq(registers.irq),
        ]

        # ---- control mover: descriptors in, CQ entries out
        mover = self.control_mover
        m.d.comb += [
            controller.entry.eq(self.parser.entry),
            controller.entry_valid.eq(self.parser.entry_valid),
            self.cq_streamer.entry.eq(controller.cq_entry),
            self.cq_streamer.start.eq(controller.start_stream),
        ]
        connect(m, mover.mm2s, self.parser.s_axis)
        connect(m, self.cq_streamer.m_axis, mover.s2mm)

        # ---- transmit
        tx, inserter, data = self.tx_streamer, self.header_inserter, self.data_mover
        m.d.comb += [
            tx.cmd_valid.eq(controller.tx_valid),
            controller.tx_ready.eq(tx.cmd_ready),
            tx.descriptor.eq(controller.tx_descriptor),
            tx.network.eq(network),
            inserter.header.eq(tx.header),
            inserter.start_tx.eq(tx.start_tx),
            tx.tx_done.eq(inserter.tx_done),
            tx.start_ready.eq(inserter.start_ready),
        ]
        connect(m, tx.dm_cmd, data.mm2s_cmd)
        connect(m, data.mm2s_sts, tx.dm_sts)
        connect(m, data.mm2s, inserter.s_axis)

        # ---- the mode changes only while no packet is in flight, and no WRITE starts before it has changed
        wanted, idle, switching = Signal(), Signal(), Signal()
        m.d.comb += [
            wanted.eq((mode == MODE_NETWORK) if self.params.network else 0),
            switching.eq(wanted != network),
            controller.tx_busy.eq(switching if self.several else tx.busy | switching),
            controller.no_network.eq(0 if self.params.network else mode == MODE_NETWORK),
            idle.eq(
                ~controller.flushing
                & ~tx.busy
                & (controller.state < S_SEND_TX_CMD)
                & self.tx_slice.empty
                & ~fifo.r_rdy
                & self.rx_slice.empty
                & (self.header_parser.state == 0)
                & ~self.rx_streamer.busy
                & ~self.header_parser.header_valid
                & ~(self.decapsulator.pending if self.params.network else Const(0, 1))
            ),
        ]
        with m.If(idle):
            m.d.sync += network.eq(wanted)

        # ---- switches
        connect(m, inserter.m_axis, self.tx_slice.s_axis)
        connect(m, self.rx_slice.m_axis, self.header_parser.s_axis)
        out, rx, into, looped = self.tx_slice.m_axis, self.header_parser, self.rx_slice.s_axis, fifo.r_data
        width, lanes = self.params.bus_width, self.params.bus_bytes
        m.d.comb += [
            fifo.w_data.eq(Cat(out.tdata, out.tkeep, out.tlast, out.tuser)),
            fifo.w_en.eq(out.tvalid & ~to_net),
            out.tready.eq(fifo.w_rdy),
            into.tdata.eq(looped[:width]),
            into.tkeep.eq(looped[width : width + lanes]),
            into.tlast.eq(looped[width + lanes]),
            into.tuser.eq(looped[width + lanes + 1]),
            into.tvalid.eq(fifo.r_rdy),
            fifo.r_en.eq((into.tready & ~from_net) | drain),
        ]
        if self.params.broad:  # register the room signal, so that a register drives all lanes
            room = Signal()
            m.d.sync += room.eq(fifo.w_level < self.params.fifo_depth - 2)
            m.d.comb += [fifo.w_en.eq(out.tvalid & ~to_net & room), out.tready.eq(room)]
        net_done, net_error = Signal(), Signal(4)
        if self.params.network:
            self._connect_network(m, network, to_net, from_net, wanted, net_done, net_error, tx_abort)
        else:
            m.d.comb += [self.mac_rx_axis.tready.eq(1), tx.meta_ready.eq(0)]

        # ---- receive
        streamer = self.rx_streamer
        m.d.comb += [
            streamer.header.eq(rx.header),
            streamer.header_valid.eq(rx.header_valid),
            rx.header_ready.eq(streamer.header_ready),
            streamer.empty.eq(rx.empty),
            streamer.window_base.eq(self._address("REMOTE_WINDOW_BASE", "REMOTE_WINDOW_BASE_HI")),
            streamer.window_last.eq(self._address("REMOTE_WINDOW_LAST", "REMOTE_WINDOW_LAST_HI")),
        ]
        connect(m, rx.m_axis, streamer.s_axis)
        connect(m, streamer.m_axis, data.s2mm)
        connect(m, streamer.dm_cmd, data.s2mm_cmd)
        connect(m, data.s2mm_sts, streamer.dm_sts)

        # ---- the result of each packet, from loopback or from the encapsulator
        packet_out, packet_error = Signal(), Signal(4)
        m.d.sync += [
            packet_out.eq(Mux(network, net_done, streamer.finished | rx.cut)),
            packet_error.eq(Mux(network, net_error, streamer.error)),
        ]
        if self.several:
            self._several(m, packet_out, packet_error)
        else:
            self._one_at_a_time(m, packet_out, packet_error, tx_abort)

        m.submodules.arbiter = arbiter = AxiArbiter(self.params)
        connect(m, self.control_mover.axi, arbiter.first)
        connect(m, self.data_mover.axi, arbiter.second)
        port = AxiCrossing(self.params) if self.params.bus_clock_mhz else AxiSlice(self.params)
        m.submodules["bus_crossing" if self.params.bus_clock_mhz else "bus_slice"] = port
        connect(m, arbiter.bus, port.engine)
        connect(m, port.bus, flipped(self.m_axi))

        # ---- abort and soft reset reach the blocks a cycle late; their end is not detected earlier
        m.d.sync += [
            tx_abort.eq(controller.abort | soft_reset),
            rx_abort.eq((controller.abort & ~network) | soft_reset),
        ]
        m.d.comb += [
            writes_quiet.eq(((data.s2mm_quiet & ~fifo.r_rdy) | ~rx_abort) & (mover.s2mm_quiet | ~soft_reset)),
            quiet.eq(mover.mm2s_quiet & data.mm2s_quiet & writes_quiet),
            controller.quiet.eq(quiet & tx_abort),
            controller.writes_quiet.eq(writes_quiet & tx_abort),
            controller.reset.eq(soft_reset),
            mover.mm2s_abort.eq(tx_abort),
            mover.s2mm_abort.eq(late_reset),
            data.mm2s_abort.eq(tx_abort),
            data.s2mm_abort.eq(rx_abort),
            self.parser.abort.eq(tx_abort),
            self.cq_streamer.abort.eq(late_reset),
            tx.abort.eq(tx_abort),
            inserter.abort.eq(tx_abort),
            self.tx_slice.clear.eq(tx_abort),
            self.rx_slice.clear.eq(rx_abort),
            rx.abort.eq(rx_abort),
            streamer.abort.eq(rx_abort),
        ]
        settled_for = Signal(2)
        with m.If(soft_reset & quiet):
            m.d.sync += settled_for.eq(settled_for + (settled_for != 3))
        with m.Else():
            m.d.sync += settled_for.eq(0)
        m.d.comb += registers.clear.eq(settled_for == 3)

        self._watch(m, arbiter.bus)
        return m

    def _address(self, low: str, high: str) -> Value:
        """Return the value of two registers; the second is used if addresses have more than 32 bits."""
        value, bits = self.registers.value, self.params.address_bits
        return Cat(value[low], value[high])[:bits] if self.params.wide else value[low]

    def _one_at_a_time(self, m: Module, packet_out: Value, packet_error: Value, tx_abort: Signal) -> None:
        """Build the documented controller: one command and one WRITE at a time."""
        m.submodules.cmd_master = master = self.cmd_master
        controller, mover, tx = self.controller, self.control_mover, self.tx_streamer
        m.d.comb += [
            master.saddr.eq(controller.cmd_saddr),
            master.daddr.eq(controller.cmd_daddr),
            master.btt.eq(controller.cmd_btt),
            master.is_read.eq(controller.cmd_is_read),
            master.start.eq(controller.cmd_start),
            controller.cmd_ready.eq(master.ready & ~controller.cmd_start),
            controller.read_complete.eq(master.read_complete),
            controller.write_complete.eq(master.write_complete),
            controller.cmd_failed.eq(master.failed),
            controller.cpl_valid.eq(tx.cpl_valid),
            tx.cpl_ready.eq(controller.cpl_ready),
            controller.cpl_error.eq(tx.cpl_error),
            controller.cpl_bytes.eq(tx.cpl_bytes),
            # the watchdog aborts a fetch, but the same master writes its CQ entry
            master.abort.eq(self.registers.soft_reset | (controller.abort & (master.state == 2))),
        ]
        connect(m, master.mm2s_cmd, mover.mm2s_cmd)
        connect(m, mover.mm2s_sts, master.mm2s_sts)
        connect(m, master.s2mm_cmd, mover.s2mm_cmd)
        connect(m, mover.s2mm_sts, master.s2mm_sts)
        # a completion waits until every packet of the operation is done
        on_the_way, first_error = Signal(32), Signal(4)
        left: Value = self.header_inserter.tx_done
        if self.params.broad:  # registered: its inputs also drive all lanes
            left = Signal(name="left")
            m.d.sync += left.eq(self.header_inserter.tx_done)
        m.d.sync += on_the_way.eq(on_the_way + left - packet_out)
        with m.If(packet_out & (first_error == 0)):
            m.d.sync += first_error.eq(packet_error)
        with m.If((controller.state == S_IDLE) | tx_abort):
            m.d.sync += [on_the_way.eq(0), first_error.eq(0)]
        m.d.sync += controller.settled.eq(on_the_way == 0)  # a cycle late; completions are later still
        m.d.comb += controller.settled_error.eq(first_error)

    def _several(self, m: Module, packet_out: Value, packet_error: Value) -> None:
        """Build the controller for several WRITEs in flight, which drives the control mover directly."""
        controller, mover, tx = self.controller, self.control_mover, self.tx_streamer
        connect(m, controller.fetch_cmd, mover.mm2s_cmd)
        connect(m, mover.mm2s_sts, controller.fetch_sts)
        connect(m, controller.write_cmd, mover.s2mm_cmd)
        connect(m, mover.s2mm_sts, controller.write_sts)
        m.d.comb += [
            controller.entry_bad.eq(self.parser.entry_bad),
            controller.stream_busy.eq(self.cq_streamer.state),
            controller.read_valid.eq(tx.read_valid),
            controller.read_bad.eq(tx.read_bad),
            controller.read_bytes.eq(tx.read_bytes),
            controller.count_valid.eq(tx.count_valid),
            controller.count.eq(tx.count),
            controller.packet_done.eq(packet_out),
            controller.packet_error.eq(packet_error),
        ]

    def _connect_network(
        self,
        m: Module,
        network: Signal,
        to_net: Signal,
        from_net: Signal,
        wanted: Signal,
        net_done: Signal,
        net_error: Signal,
        tx_abort: Signal,
    ) -> None:
        """Build the blocks between packets and the MAC for network mode; ``to_net`` controls the switch before them,
        ``from_net`` the one after."""
        registers, tx, out, into = self.registers, self.tx_streamer, self.tx_slice.m_axis, self.rx_slice.s_axis
        encap, decap, meta = self.encapsulator, self.decapsulator, self.encapsulator.s_meta
        packets = self.net_slice.s_axis if self.params.broad else encap.s_axis
        m.submodules.encapsulator, m.submodules.decapsulator, m.submodules.lookup = encap, decap, self.lookup
        connect(m, registers.encap, encap.regs)
        connect(m, registers.decap, decap.regs)
        connect(m, registers.lookup, self.lookup.regs)
        connect(m, encap.lookup, self.lookup.lookup)
        if self.params.mac_clock_mhz:
            m.submodules.tx_crossing = to_mac = MacTxCrossing(self.params)
            m.submodules.rx_crossing = from_mac = MacRxCrossing(self.params)
            connect(m, encap.m_axis, to_mac.s_axis)
            connect(m, to_mac.m_axis, flipped(self.mac_tx_axis))
            connect(m, flipped(self.mac_rx_axis), from_mac.s_axis)
            connect(m, from_mac.m_axis, decap.s_axis)
        else:
            connect(m, encap.m_axis, flipped(self.mac_tx_axis))
            connect(m, flipped(self.mac_rx_axis), decap.s_axis)
        m.d.comb += [
            meta.src_ip.eq(encap.endpoint.src_ip),
            meta.dst_ip.eq(encap.endpoint.dst_ip),
            meta.src_port.eq(encap.endpoint.src_port),
            meta.dst_port.eq(encap.endpoint.dst_port),
            packets.tdata.eq(out.tdata),
            packets.tkeep.eq(out.tkeep),
            packets.tlast.eq(out.tlast),
            packets.tuser.eq(out.tuser),
            packets.tvalid.eq(out.tvalid & to_net),
            encap.reset.eq(tx_abort),
            decap.reset.eq(registers.soft_reset),
            # accept frames only in network mode, with no mode change pending
            decap.accept.eq(network & wanted),
            net_done.eq(encap.done),
        ]
        if self.params.broad:
            connect(m, self.net_slice.m_axis, encap.s_axis)
            m.submodules.net_slice = self.net_slice
            m.d.comb += self.net_slice.clear.eq(tx_abort)
        if self.several or self.params.broad:  # queue META words: fragments are cut ahead
            lengths = SyncFIFO(width=len(tx.meta_length), depth=self.params.queue)
            m.submodules.metas = lengths = ResetInserter(tx_abort)(lengths)
            m.d.comb += [
                lengths.w_data.eq(tx.meta_length),
                lengths.w_en.eq(tx.meta_valid),
                tx.meta_ready.eq(lengths.w_rdy),
                meta.length.eq(lengths.r_data),
                meta.valid.eq(lengths.r_rdy),
                lengths.r_en.eq(meta.ready),
            ]
        else:
            m.d.comb += [
                meta.length.eq(tx.meta_length),
                meta.valid.eq(tx.meta_valid),
                tx.meta_ready.eq(meta.ready),
            ]
        with m.Switch(encap.done_code):
            for code, error in NET_ERROR_OF.items():
                with m.Case(code):
                    m.d.comb += net_error.eq(error)
        received = decap.m_axis
        arrives = [
            into.tdata.eq(received.tdata),
            into.tkeep.eq(received.tkeep),
            into.tlast.eq(received.tlast),
            into.tuser.eq(received.tuser),
            into.tvalid.eq(received.tvalid),
            received.tready.eq(into.tready),
        ]
        with m.If(to_net):
            m.d.comb += out.tready.eq(packets.tready)
            if not self.params.broad:
                m.d.comb += arrives
        if self.params.broad:
            with m.If(from_net):
                m.d.comb += arrives

    def _watch(self, m: Module, bus: Any) -> None:
        """Connect state other than queues to registers: status, events, counters, the current descriptor."""
        registers, controller, streamer = self.registers, self.controller, self.rx_streamer
        value, out = registers.value, self.tx_slice.m_axis
        moved: Value = Cat(
            bus.arvalid & bus.arready,
            bus.rvalid & bus.rready,
            bus.awvalid & bus.awready,
            bus.wvalid & bus.wready,
            bus.bvalid & bus.bready,
            out.tvalid & out.tready,
        )
        if self.params.broad:  # from distant blocks of the engine
            gathered = Signal(len(moved))
            m.d.sync += gathered.eq(moved)
            moved = gathered
        m.d.sync += controller.progress.eq(moved.any())
        rx_failed = streamer.finished & ~streamer.dropped & (streamer.error != 0)
        dropped = (streamer.finished & streamer.dropped) | self.header_parser.cut
        full_before, halted_before, tail_before = Signal(), Signal(), Signal()
        m.d.sync += [
            full_before.eq(controller.cq_full),
            halted_before.eq(controller.halted),
            tail_before.eq(controller.bad_tail),
        ]
        m.d.comb += registers.events.eq(
            pack(
                IRQ_STATUS,
                {
                    "completion": controller.completed,
                    "error": controller.completed_bad | (controller.bad_tail & ~tail_before),
                    "watchdog": controller.timed_out,
                    "cq_full": controller.cq_full & ~full_before,
                    "rx_drop": dropped,
                    "rx_error": rx_failed,
                    "halted": controller.halted & ~halted_before,
                    "net_error": (self.encapsulator.error | self.decapsulator.error) if self.params.network else 0,
                },
            )[:8]
        )
        error = Signal(4)
        with m.If(rx_failed):
            m.d.sync += error.eq(streamer.error)
        control = value["CONTROL"]
        m.d.comb += value["HW_STATUS"].eq(
            pack(
                HW_STATUS,
                {
                    "busy": (controller.state != S_IDLE) | streamer.busy,
                    "resetting": registers.soft_reset,
                    "cq_full": controller.cq_full,
                    "halted": controller.halted,
                    "paused": unpack(control, CONTROL, "pause") & (controller.state == S_IDLE),
                    "flushing": controller.flushing,
                    "error": Mux(controller.error != 0, controller.error, error),
                    "rdma_state": controller.state,
                    "rx_state": streamer.state,
                    "tx_state": self.tx_streamer.state,
                },
            )
        )
        descriptor = controller.tx_descriptor
        command_state = Const(0) if self.several else self.cmd_master.state
        shown: dict[str, Any] = {
            "CQ_DOORBELL": controller.state,
            "CQ_FLAGS": command_state,
            "RDMA_STATE": controller.state,
            "CMD_STATE": command_state,
            "LOCAL_KEY_HI": unpack(descriptor, SQ_ENTRY, "local_addr")[32:],
            "REMOTE_KEY_LO": unpack(descriptor, SQ_ENTRY, "remote_addr")[:32],
            "REMOTE_KEY_HI": unpack(descriptor, SQ_ENTRY, "remote_addr")[32:],
            "BTT0": descriptor[24 * 8 : 28 * 8],
            "BTT1": descriptor[28 * 8 : 32 * 8],
            "BTT2": descriptor[32 * 8 : 36 * 8],
            "BTT3": descriptor[36 * 8 : 40 * 8],
            "ENTRY_VALID": controller.entry_shown,
            "PARAMETERS": self.params.bus_width % 1024
            | self.params.serial << 10
            | self.params.network << 11
            | (self.params.address_bits - NARROW_ADDRESS_BITS) // 4 << 12
            | self.params.block_size << 16,
        }
        for name, signal in shown.items():
            if name in value and next(r for r in registers.map if r.name == name).access != "RW":
                m.d.comb += value[name].eq(signal)
        for name, event in {
            "DOORBELLS": registers.doorbell,
            "TX_PACKETS": self.header_inserter.tx_done,
            "RX_PACKETS": streamer.finished & ~streamer.dropped & (streamer.error == 0),
            "RX_DROPS": dropped,
            "RX_ERRORS": rx_failed,
        }.items():
            seen = Signal(name=f"{name}_seen")
            m.d.sync += [seen.eq(event), value[name].eq(value[name] + seen)]
            with m.If(registers.clear):
                m.d.sync += value[name].eq(0)
        with m.If(registers.clear):
            m.d.sync += error.eq(0)
