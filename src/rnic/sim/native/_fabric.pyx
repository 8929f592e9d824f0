# cython: language_level=3, boundscheck=False, wraparound=False
"""The fabric for Python: agenda, ports, switches and NICs of rnic.sim, as its plain classes.

It is compiled with the engine's C code that does no I/O, and works on devices of ``rnic.engine._engine``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

import ctypes

from rnic.engine._engine cimport (
    ENGINE_COUNTS,
    Device,
    buffer_address,
    CompletionQueue,
    fill_flow,
    completion_queue,
    engine_ack,
    engine_control_calls,
    engine_counts,
    engine_cq,
    engine_device,
    engine_flow,
    engine_layout_hash,
    engine_out,
    engine_qp,
    engine_sending,
    engine_stop_info,
    queue_pair,
)

from rnic.cc.control import CONTROL_OTHER, Control, Hop
from rnic.cc.controlled import Arrival
from rnic.state.counters import PACKET_COUNTERS
from rnic.state.queue_pair import QP as QP_RECORD
from rnic.state.record import place
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import Flow

cdef extern from "telemetry.h" nogil:
    struct fabric_hop:
        uint64_t time, queued_bytes, sent_bytes, bits_s
    struct fabric_telemetry:
        uint64_t sent_ns, arrived_ns, left_ns
        uint32_t hops
        uint8_t known, response, ecn
        fabric_hop hop[8]

cdef extern from "fabric.h" nogil:
    struct fabric_packet:
        uint32_t wire, way, source, target
        uint16_t source_port, target_port, length
        uint8_t tclass, priority, ce
        uint8_t header[44]
    struct fabric_queue:
        uint32_t count
    struct fabric_draws:
        uint32_t at, count
        double values[64]
    struct fabric_port:
        uint64_t bits_s, delay_ns, queued_bytes, peak_bytes, sent, sent_bytes, lost, marked, pauses, paused_ns, since_ns
        double loss
        fabric_draws *draws
        uint64_t class_bytes[8]
        uint32_t weights[8]
        uint32_t peer, owner, number, waiting
        uint8_t strict, stopped, tapped, recorded, down
        uint64_t *stops
        uint32_t stop_count
    struct fabric_ingress:
        uint64_t headroom_bytes
        uint32_t port
    struct fabric_ways:
        uint32_t count
    struct fabric_switch:
        uint64_t buffer_bytes, kmin_bytes, kmax_bytes, xoff_bytes, xon_bytes
        double pmax, alpha
        uint64_t dropped, peak_bytes, shared
        fabric_draws *draws
        fabric_ingress *links
        fabric_ways *routes
        uint32_t link_count, salt
        uint8_t lossless, spray
    struct fabric_host:
        engine_device *device
        const completion_queue *cq
        uint64_t cq_tail, write_back_at, rx_bytes, tx_bytes
        uint32_t port
        uint8_t owes, has_qps, stale, priorities
        uint8_t *bare
    struct fabric_event:
        uint64_t time
    struct fabric_calls:
        int (*act)(void *self, uint32_t actor) noexcept
        int (*told)(void *self, uint32_t host, engine_stop_info *told) noexcept
        int (*packet)(void *self, uint32_t host, const fabric_packet *packet) noexcept
        int (*turn)(void *self, uint32_t host, engine_stop_info *told) noexcept
        int (*prepare)(void *self, uint32_t host, int *sent) noexcept
        int (*timer)(void *self, uint32_t host, uint64_t record) noexcept
        int (*write_back)(void *self, uint32_t host) noexcept
        int (*look)(void *self, uint32_t host) noexcept
        int (*after)(void *self, uint32_t host) noexcept
        int (*draw)(void *self, fabric_draws *draws) noexcept
        int (*tap)(void *self, uint32_t port, const fabric_packet *packet) noexcept
    struct fabric_state "fabric":
        uint64_t now, events, calls
        fabric_event *heap
        fabric_packet *packets
        fabric_port *ports
        fabric_switch *switches
        fabric_host *hosts
        uint32_t heap_count, host_count, failed
        uint8_t control, burst
        const fabric_calls *to
        void *self
        engine_sending sending
        engine_out out
        uint8_t *scratch
        uint32_t measures
        const fabric_telemetry *arrived
    enum:
        FABRIC_PYTHON
        FABRIC_NONE
        FABRIC_DRAWS
        FABRIC_OUT_BYTES
        FABRIC_SCRATCH
        FABRIC_NET
    uint32_t fabric_actor_add(fabric_state *fabric, int kind, uint32_t index)
    uint32_t fabric_port_add(fabric_state *fabric)
    uint32_t fabric_switch_add(fabric_state *fabric, uint32_t links, uint32_t hosts)
    uint32_t fabric_host_add(fabric_state *fabric)
    int fabric_way_add(fabric_switch *owner, uint32_t host, uint32_t port)
    void fabric_way_share(fabric_switch *owner, uint32_t host, uint32_t other)
    void fabric_free(fabric_state *fabric)
    void fabric_at(fabric_state *fabric, uint64_t time, uint32_t actor)
    uint64_t fabric_run(fabric_state *fabric, uint64_t count, uint64_t end) noexcept
    uint32_t fabric_packet_make(fabric_state *fabric, const uint8_t *header, uint64_t length, const engine_flow *flow,
                                uint8_t tclass)
    void fabric_packet_whole(const fabric_packet *packet, uint8_t *bytes)
    void fabric_port_put(fabric_state *fabric, uint32_t port, uint32_t packet)
    void fabric_host_wake(fabric_state *fabric, uint32_t host, uint64_t time)

    struct fabric_pattern:
        const uint8_t *record
        const uint8_t *context
        uint64_t entries, signal_all
    struct fabric_place:
        uint64_t record, context, slots, program_record, turn, peer_record, path
        uint32_t number, remote, target, pd, cqn
        uint16_t source_port, target_port
        uint8_t *shared
        engine_cq *cq
    uint64_t fabric_sender_bytes(const fabric_pattern *pattern)
    uint64_t fabric_receiver_bytes()
    uint64_t fabric_shared_bytes()
    void fabric_bare_make(fabric_state *fabric, uint32_t host, engine_qp *qp, const fabric_pattern *pattern,
                          const fabric_place *place, int sends)
    void fabric_bare_write(fabric_state *fabric, uint32_t host, engine_qp *qp, const uint8_t *descriptor, uint64_t size,
                           uint64_t source, uint32_t lkey, uint64_t to, uint32_t rkey)
    void fabric_bare_end(fabric_state *fabric, uint32_t host, engine_qp *qp)
    void fabric_bare_path(fabric_state *fabric, uint32_t host, uint64_t place, uint32_t target, uint8_t tclass)
    uint32_t fabric_bare_expected(const engine_qp *qp)

cdef uint64_t NEVER_NS = 1ULL << 63
DEF MAX_FLOWS = 65536
cdef int PROGRAM_AT = place(QP_RECORD, "program_record")


def layout_hash():
    """Return the layout hash of the tables that the fabric was compiled from."""
    return engine_layout_hash()


cdef class FabricAgenda:
    """Virtual time and its events, as :class:`rnic.sim.agenda.Agenda`, with ports and NICs in C.

    Args:
        control: priority of ACKs and CNPs.
        burst: packets that a NIC builds at once.
        packet: called with a burst, its ECMP hash and its priority, returns the packet that Python sees.
    """

    cdef fabric_state *fabric
    cdef dict acts, draws, flows
    cdef list free, hosts, ports
    cdef object error, packet

    def __cinit__(self, int control=6, int burst=2, packet=None):
        self.packet = packet
        self.fabric = <fabric_state *> calloc(1, sizeof(fabric_state))
        if self.fabric == NULL:
            raise MemoryError("no memory for a fabric")
        self.fabric.out.bytes = <uint8_t *> malloc(FABRIC_OUT_BYTES)
        self.fabric.out.room = FABRIC_OUT_BYTES
        self.fabric.scratch = <uint8_t *> calloc(1, FABRIC_SCRATCH)
        if self.fabric.out.bytes == NULL or self.fabric.scratch == NULL:
            raise MemoryError("no memory for packets")
        self.fabric.control, self.fabric.burst = <uint8_t> control, <uint8_t> burst
        self.fabric.to = &_fabric_calls
        self.fabric.self = <void *> self
        self.acts, self.draws, self.flows, self.free, self.hosts, self.ports = {}, {}, {}, [], [], []

    def __dealloc__(self):
        if self.fabric != NULL:
            fabric_free(self.fabric)
            free(self.fabric)

    def __call__(self):
        """The time in nanoseconds."""
        return self.fabric.now

    @property
    def now_ns(self):
        """The time in nanoseconds."""
        return self.fabric.now

    @property
    def events(self):
        """Number of events that have happened."""
        return self.fabric.events

    def actor(self, act):
        """Add an actor, which is called when it is due; return its number.

        Raises:
            OverflowError: there are 2^24 actors already.
        """
        cdef uint32_t number = fabric_actor_add(self.fabric, FABRIC_PYTHON, 0)
        if number == FABRIC_NONE:
            raise OverflowError("there are as many actors as there can be: make the topology smaller")
        self.acts[number] = act
        return number

    def once(self, time_ns, call):
        """Call ``call`` once at ``time_ns``."""
        number = self.free.pop() if self.free else self.actor(None)

        def act():
            self.free.append(number)
            self.acts[number] = None
            call()

        self.acts[number] = act
        self.at(time_ns, number)

    def at(self, uint64_t time_ns, uint32_t actor):
        """Call an actor at ``time_ns``, which is not before now."""
        fabric_at(self.fabric, time_ns, actor)
        self._check()

    def next_ns(self):
        """Return the time of the next event, or ``None`` for none."""
        return self.fabric.heap[0].time if self.fabric.heap_count else None

    def step(self):
        """Move to the next event; return false if there is none."""
        return self.run(1, NEVER_NS, None)

    def run(self, uint64_t count, uint64_t end_ns, busy):
        """Run up to ``count`` events while ``busy()`` is true; return false if none is left up to ``end_ns``."""
        cdef uint64_t left = count
        while left:
            left -= fabric_run(self.fabric, left, end_ns)
            self._check()
            if busy is not None and not busy():
                return True
            if left and (not self.fabric.heap_count or self.fabric.now > end_ns):
                return False
        return self.fabric.now <= end_ns

    cdef int _check(self) except -1:
        if self.fabric.failed:
            self.fabric.failed = 0
            error, self.error = self.error, None
            raise MemoryError("no memory for the fabric") if error is None else error
        return 0

    cdef fabric_draws *_draws(self, rng) except NULL:
        cdef fabric_draws *draws = <fabric_draws *> calloc(1, sizeof(fabric_draws))
        if draws == NULL:
            raise MemoryError("no memory for random numbers")
        self.draws[<uintptr_t> draws] = rng
        return draws

    cdef object _packet(self, const fabric_packet *packet):
        """Return a packet in the form of rnic.sim, with zeros as payload."""
        key = packet.source, packet.target, packet.source_port, packet.target_port, packet.tclass
        flow = self.flows.get(key)
        if flow is None:
            if len(self.flows) >= MAX_FLOWS:
                self.flows.clear()
            source, target = [(<uint32_t> FABRIC_NET + 1 + host).to_bytes(4, "big") for host in key[:2]]
            flow = self.flows[key] = Flow(source, target, packet.source_port, packet.target_port, packet.tclass)
        data = PyBytes_FromStringAndSize(NULL, packet.length)
        fabric_packet_whole(packet, <uint8_t *> PyBytes_AS_STRING(data))
        made = self.packet(TxBurst(flow, [data], packet.length, 1, packet.length), packet.way, packet.priority)
        made.ce = bool(packet.ce)
        return made

    cdef int _put(self, uint32_t port, packet) except -1:
        """Queue a packet made by Python at a port."""
        cdef engine_flow flow
        burst = packet.burst
        if burst.count != 1:
            raise ValueError(f"{burst.count} packets in one burst: a fabric takes them one by one")
        cdef bytes data = bytes(burst.buffers[0]) if len(burst.buffers) == 1 else b"".join(burst.buffers)
        fill_flow(&flow, burst.flow)
        cdef uint32_t number = fabric_packet_make(self.fabric, <uint8_t *> PyBytes_AS_STRING(data), len(data), &flow,
                                                  <uint8_t> burst.flow.tclass)
        if number == FABRIC_NONE:
            return 0  # no host has the address: the packet is lost
        fabric_port_put(self.fabric, port, number)
        return 0


cdef class FabricPort:
    """One end of a link, as :class:`rnic.sim.port.Port`. Its host or switch processes arriving packets."""

    cdef FabricAgenda agenda
    cdef readonly str name
    cdef readonly uint32_t number
    cdef public object tap_call
    cdef FabricPort other

    def __cinit__(self, FabricAgenda agenda, name, link, rng, extra_ns, tuple weights):
        cdef fabric_port *port
        cdef uint32_t i
        self.agenda, self.name = agenda, name
        self.number = fabric_port_add(agenda.fabric)
        if self.number == FABRIC_NONE:
            raise OverflowError("there are as many ports as there can be: make the topology smaller")
        port = &agenda.fabric.ports[self.number]
        port.bits_s, port.delay_ns, port.loss = link.bits_s, link.delay_ns + extra_ns, link.loss
        for i, weight in enumerate(weights):
            port.weights[i] = weight
            if weight:
                port.strict &= ~(1 << i)
        if link.loss:
            port.draws = agenda._draws(rng)
        agenda.ports.append(self)

    cdef fabric_port *_at(self):
        return &self.agenda.fabric.ports[self.number]

    @property
    def peer(self):
        """The port at the other end."""
        return self.other

    @peer.setter
    def peer(self, FabricPort other):
        self.other = other
        self._at().peer = other.number

    @property
    def tap(self):
        """Callback for each sent packet, or ``None``."""
        return self.tap_call

    @tap.setter
    def tap(self, call):
        self.tap_call = call
        self._at().tapped = call is not None

    @property
    def stops(self):
        """Times at which it stopped and resumed, alternating. ``None`` unless recorded; set a list to record them."""
        cdef fabric_port *port = self._at()
        return [port.stops[i] for i in range(port.stop_count)] if port.recorded else None

    @stops.setter
    def stops(self, wanted):
        self._at().recorded = wanted is not None

    @property
    def bits_s(self):
        """Bits per second; a packet in transmission keeps its time."""
        return self._at().bits_s

    @bits_s.setter
    def bits_s(self, rate):
        self._at().bits_s = rate

    @property
    def down(self):
        """True if all sent packets are lost."""
        return self._at().down != 0

    @down.setter
    def down(self, is_down):
        self._at().down = is_down

    @property
    def window_bytes(self):
        """Its rate in bytes per window of the congestion registers."""
        return max(1, self._at().bits_s * 1024 // 8000000000)

    def put(self, packet):
        """Queue a packet."""
        self.agenda._put(self.number, packet)

    @property
    def queued_bytes(self):
        """Queued bytes."""
        return self._at().queued_bytes

    @property
    def class_bytes(self):
        """Queued bytes by priority."""
        return self._at().class_bytes

    @property
    def waiting(self):
        """Queued packets."""
        return self._at().waiting

    @property
    def peak_bytes(self):
        """Most bytes queued so far."""
        return self._at().peak_bytes

    @property
    def sent(self):
        """Sent packets."""
        return self._at().sent

    @property
    def sent_bytes(self):
        """Their bytes on the wire."""
        return self._at().sent_bytes

    @property
    def lost(self):
        """Packets lost on the wire."""
        return self._at().lost

    @property
    def marked(self):
        """Packets marked at this port."""
        return self._at().marked

    @property
    def pauses(self):
        """PFC frames that stopped one of its priorities."""
        return self._at().pauses

    @property
    def paused(self):
        """True while PFC stops one of its priorities."""
        return bool(self._at().stopped)

    @property
    def paused_ns(self):
        """Time in nanoseconds for which PFC has stopped one of its priorities."""
        return self._at().paused_ns

    @property
    def paused_now_ns(self):
        """As :attr:`paused_ns`, including a pause in progress."""
        cdef fabric_port *port = self._at()
        return port.paused_ns + (self.agenda.fabric.now - port.since_ns if port.stopped else 0)


cdef class FabricSwitch:
    """A switch, as :class:`rnic.sim.switch.Switch`.

    Args:
        agenda: of the fabric.
        row, rng, salt: as there.
        ports: of this switch, in the order of its links.
        headrooms: bytes of headroom of each link.
        hosts: number of hosts.
    """

    cdef FabricAgenda agenda
    cdef uint32_t number
    cdef readonly list ports
    cdef readonly object row
    cdef uint32_t hosts

    def __cinit__(self, FabricAgenda agenda, row, rng, salt, list ports, list headrooms, hosts):
        cdef fabric_switch *here
        cdef FabricPort port
        cdef fabric_port *end
        cdef uint32_t i = 0
        self.agenda, self.row, self.ports, self.hosts = agenda, row, ports, hosts
        self.number = fabric_switch_add(agenda.fabric, len(ports), hosts)
        if self.number == FABRIC_NONE:
            raise MemoryError("no memory for a switch")
        here = &agenda.fabric.switches[self.number]
        here.buffer_bytes, here.kmin_bytes, here.kmax_bytes = row.buffer_bytes, row.kmin_bytes, row.kmax_bytes
        here.xoff_bytes, here.xon_bytes, here.lossless = row.xoff_bytes, row.xon_bytes, row.lossless
        here.pmax, here.alpha, here.salt, here.link_count = row.pmax, row.alpha, salt, len(ports)
        here.spray = row.spray
        if row.marks:
            here.draws = agenda._draws(rng)
        for i, port in enumerate(ports):
            here.links[i].port, here.links[i].headroom_bytes = port.number, headrooms[i]
            end = port._at()
            end.owner, end.number = self.number, i

    cdef fabric_switch *_at(self):
        return &self.agenda.fabric.switches[self.number]

    def route(self, list hosts, list ports):
        """Route packets for these hosts through these ports."""
        cdef FabricPort port
        cdef uint32_t host, first
        for host in hosts:
            if host >= self.hosts:
                raise IndexError(f"host={host}: there are {self.hosts}")
        first = hosts[0]
        self._at().routes[first].count = 0
        for port in ports:
            if fabric_way_add(self._at(), first, port.number):
                raise MemoryError("no memory for a route")
        for host in hosts[1:]:
            fabric_way_share(self._at(), host, first)

    @property
    def dropped(self):
        """Packets dropped for lack of buffer space."""
        return self._at().dropped

    @property
    def peak_bytes(self):
        """Most bytes in its buffers so far."""
        return self._at().peak_bytes

    @property
    def buffered_bytes(self):
        """Bytes in the shared buffer."""
        return self._at().shared


cdef class FabricHost:
    """A NIC at its link, for :class:`rnic.sim.native.EngineHost`.

    Args:
        agenda: of the fabric.
        nic: a device with the engine, which builds only headers of packets from now on.
        port: its end of its only link.
        host: called for what the engine leaves to Python.
    """

    cdef FabricAgenda agenda
    cdef readonly uint32_t number
    cdef object nic, host, rung, sending, counters
    cdef Device device
    cdef dict bare, paths
    cdef dict controls
    cdef engine_control_calls calls
    cdef CompletionQueue cq
    cdef bytearray bare_slots
    cdef uint64_t shared

    def __cinit__(self, FabricAgenda agenda, nic, FabricPort port, host):
        self.bare, self.paths, self.controls = {}, {}, {}
        cdef fabric_host *here
        cdef fabric_port *end = port._at()
        self.agenda, self.nic, self.host = agenda, nic, host
        self.device, self.counters = nic.engine_device, nic.counters
        self.rung, self.sending = nic.resources.doorbells.rung, nic.sending
        self.number = fabric_host_add(agenda.fabric)
        if self.number == FABRIC_NONE:
            raise MemoryError("no memory for a host")
        here = &agenda.fabric.hosts[self.number]
        here.device, here.port = &self.device.c_device, port.number
        end.owner = self.number
        self.device.shared.send_headers_only()
        if nic.congestion.settings.kind.number == CONTROL_OTHER:
            self._call_controls(nic.congestion.settings.kind)
        agenda.hosts.append(self)

    cdef int _call_controls(self, kind) except -1:
        """Have C call congestion controls in Python."""
        self.calls.on_cnp, self.calls.on_timer, self.calls.self = _control_on_cnp, _control_on_timer, <void *> self
        if kind.on_ack is not Control.on_ack:
            self.calls.on_ack = _control_on_ack
        if kind.on_loss is not Control.on_loss:
            self.calls.on_loss = _control_on_loss
        if kind.on_sent is not Control.on_sent:
            self.calls.on_sent = _control_on_sent
        if kind.telemetry:
            self.agenda.fabric.measures = 1
        self.device.shared.c_shared.control_calls = &self.calls
        return 0

    cdef object _controlled(self, queue_pair *record):
        """Return the :class:`~rnic.cc.controlled.Controlled` of a queue pair."""
        cdef uint64_t at = <uint64_t> (<uint8_t *> record - self.device.shared.base)
        found = self.controls.get(at)
        return self.sending.qps[at].controlled if found is None else found

    cdef fabric_host *_at(self):
        return &self.agenda.fabric.hosts[self.number]

    def wake(self):
        """Serve the NIC after the events that are due now."""
        self.agenda.fabric.calls += 1
        self._at().stale = 1
        fabric_host_wake(self.agenda.fabric, self.number, self.agenda.fabric.now)

    def use(self, uint8_t priority):
        """Note that it has a flow of this priority."""
        self._at().priorities |= 1 << priority

    def count(self):
        """Add what C counted to the counters of the device."""
        cdef fabric_host *here = self._at()
        cdef engine_counts *counts = &self.device.c_device.counts
        cdef int i
        for name, value in (("rx_packets", counts.rx_packets), ("tx_packets", counts.tx_packets),
                            ("rx_bytes", here.rx_bytes), ("tx_bytes", here.tx_bytes)):
            if value:
                self.counters[name] += value
        for i in range(ENGINE_COUNTS):
            if counts.events[i]:
                self.counters[PACKET_COUNTERS[i]] += counts.events[i]
        here.rx_bytes = here.tx_bytes = 0
        memset(counts, 0, sizeof(counts[0]))

    cdef int _hold(self, queue) except -1:
        """Allow bare flows, which complete to this queue."""
        if self.cq is None:
            self.cq = CompletionQueue(queue)
            self.bare_slots = bytearray(1 << self.device.c_device.log_qps)
            self._at().bare = buffer_address(self.bare_slots, NULL)
            self.shared = self.nic.arena.take(fabric_shared_bytes(), "the slots of bare flows")
        return 0

    cdef int _enter(self) except -1:
        """Update the NIC's clock before Python continues for C."""
        cdef uint64_t at = self._at().write_back_at
        self.nic.now_ns = self.agenda.fabric.now
        self.nic.write_back_at = None if at == NEVER_NS else at
        return 0

    cdef int _spare(self, engine_stop_info *told) except -1:
        """Allocate a line of the in-flight budget, without which a bare flow's turn stopped."""
        if self.device.c_device.sched.inflight.spare_line:
            raise RuntimeError(f"a bare flow's turn ended for reason {told.end}: run the fabric with bare=False")
        self.nic.inflight.reserve_line()
        return 0

    cdef int _leave(self) except -1:
        at = self.nic.write_back_at
        self._at().write_back_at = NEVER_NS if at is None else at
        return 0

    cdef int _refuse(self, const fabric_packet *packet) except -1:
        """Raise ``RuntimeError`` for a packet of a bare flow, which the reference cannot take."""
        cdef uint64_t slot = (<uint64_t> packet.header[5] << 16 | packet.header[6] << 8 | packet.header[7])
        slot &= (<uint64_t> 1 << self.device.c_device.log_qps) - 1
        if self.cq is not None and self.bare_slots[slot]:
            opcode = packet.header[0]
            raise RuntimeError(f"a bare flow got a packet of opcode {opcode:#x}: run the fabric with bare=False")
        return 0

    cdef int _look(self) except -1:
        cdef fabric_host *here = self._at()
        cdef CompletionQueue found
        nic, sending = self.nic, self.sending
        here.owes = bool(self.rung or sending.failed_cqs or sending.final_bursts or nic.gsi.waiting
                         or nic.resources.interrupts)
        here.has_qps = bool(nic.qps or self.bare)
        cqs = nic.resources.cqs
        here.cq = NULL
        if len(cqs) == 1:
            for queue in cqs.values():
                here.cq = <completion_queue *> <uintptr_t> ctypes.addressof(queue.key)
        at = nic.write_back_at
        if at is not None:
            here.write_back_at = at
        return 0


cdef class FabricPattern:
    """The initial state of a bare flow's queue pairs: copies of a sender and a receiver just connected by verbs.

    Args:
        sender, receiver: queue pairs of the device, just connected.
        descriptor: one WRITE as it is posted.
    """

    cdef fabric_pattern sender, receiver
    cdef list kept
    cdef public bytes descriptor
    cdef readonly size_t record_bytes, context_bytes
    cdef readonly int packet_bytes

    def __cinit__(self, sender, receiver, bytes descriptor):
        self.kept = []
        self.descriptor, self.packet_bytes = descriptor, sender.largest_packet
        self._take(&self.sender, sender)
        self._take(&self.receiver, receiver)

    cdef int _take(self, fabric_pattern *pattern, qp) except -1:
        record, context = bytes(qp.memory.qp), bytes(qp.ctx)
        self.kept += [record, context]
        self.record_bytes, self.context_bytes = len(record), len(context)
        pattern.record = <const uint8_t *> PyBytes_AS_STRING(record)
        pattern.context = <const uint8_t *> PyBytes_AS_STRING(context)
        pattern.entries, pattern.signal_all = qp.memory.entries, qp.signal_all
        return 0


cdef class FabricFlow:
    """A flow between queue pairs that exist only in the engine (sim/native/bare.c), as :class:`rnic.sim.traffic.Pair`.

    Args:
        pattern: their initial state.
        source, target: hosts.
        here, there: their regions; ``ends`` their protection domains and completion queues.
        tclass: traffic class of their packets.
        over: called when it fails.

    Attributes:
        number: queue pair number of the sender.
    """

    cdef FabricPattern pattern
    cdef FabricHost source, target
    cdef engine_qp sender, receiver
    cdef uint64_t sender_at, sender_slots, sender_context, receiver_at, receiver_slots, receiver_context
    cdef uint64_t va, to
    cdef uint32_t lkey, rkey
    cdef readonly uint32_t number, other
    cdef uint8_t tclass
    cdef bint closed
    cdef object over

    def __cinit__(self, FabricPattern pattern, FabricHost source, FabricHost target, ends, here, there, numbers,
                  ports, tclass, over):
        cdef fabric_state *fabric = source.agenda.fabric
        self.pattern, self.source, self.target, self.over = pattern, source, target, over
        self.va, self.lkey, self.to, self.rkey = here.buf, here.lkey, there.buf, there.rkey
        self.number, self.other = numbers
        self.tclass = tclass
        self._make(source, target.number, ends[0], &self.sender, &pattern.sender, numbers, ports[0], ports[1], True)
        self._make(target, source.number, ends[1], &self.receiver, &pattern.receiver, numbers[::-1], ports[2], ports[1],
                   False)

    cdef int _make(self, FabricHost host, uint32_t target, end, engine_qp *qp, fabric_pattern *pattern, numbers, sport,
                   dport, bint sends) except -1:
        cdef fabric_place place
        cdef FabricHost other = self.target if sends else self.source
        nic, arena = host.nic, host.nic.arena
        host._hold(nic.resources.cqs[end.cq.cqn])
        place.number, place.remote = numbers
        place.target, place.pd, place.cqn = target, end.pd.handle, end.cq.cqn
        place.source_port, place.target_port = sport, dport
        place.cq = &host.cq.c_cq
        place.shared = host.device.shared.base + host.shared
        place.record = arena.take(self.pattern.record_bytes, "a queue pair")
        place.context = arena.take(self.pattern.context_bytes, "a context")
        place.slots = arena.take(fabric_sender_bytes(pattern) if sends else fabric_receiver_bytes(), "slots")
        if sends:
            self.sender_at, self.sender_slots, self.sender_context = place.record, place.slots, place.context
        else:
            self.receiver_at, self.receiver_slots, self.receiver_context = place.record, place.slots, place.context
        path = host.paths.get((target, self.tclass))
        if path is None:
            path = host.paths[target, self.tclass] = arena.take(256, "a path")
            fabric_bare_path(host.agenda.fabric, host.number, path, target, self.tclass)
        place.path = path
        peer = nic.inflight.peer(_To(other.nic.config.address, dport))
        peer.users += 1
        place.peer_record = peer.record
        nic.sending.scheduler.enroll(place.record, host.host.ctx.driver.uar.program, nic.config.turn_bytes)
        place.program_record = (<uint64_t *> (host.device.shared.base + place.record))[PROGRAM_AT]
        place.turn = nic.config.turn_bytes
        host.bare[place.record] = self
        fabric_bare_make(host.agenda.fabric, host.number, qp, pattern, &place, sends)
        if sends and nic.congestion.settings.kind.number == CONTROL_OTHER:
            words = arena.memory[place.record : place.record + self.pattern.record_bytes].cast("Q")
            host.controls[place.record] = nic.congestion.control(words, place.number, self.pattern.packet_bytes)
        return 0

    def write(self, uint64_t size):
        """Post one WRITE."""
        fabric_bare_write(self.source.agenda.fabric, self.source.number, &self.sender,
                          <const uint8_t *> PyBytes_AS_STRING(self.pattern.descriptor), size, self.va, self.lkey,
                          self.to, self.rkey)
        self.source.wake()

    def fail(self):
        """End the flow: the ACK timeout has passed and no retry is left."""
        self.source.nic.counters.bump("ack_timeouts")
        self.over()

    @property
    def received_psn(self):
        """The PSN that its receiver expects."""
        return fabric_bare_expected(&self.receiver)

    def close(self):
        """Destroy both queue pairs."""
        if self.closed:
            return
        self.closed = True
        self.over = None
        self._end(self.source, &self.sender, self.sender_at, self.sender_slots, self.sender_context, True)
        self._end(self.target, &self.receiver, self.receiver_at, self.receiver_slots, self.receiver_context, False)

    cdef int _end(self, FabricHost host, engine_qp *qp, uint64_t record, uint64_t slots, uint64_t context,
                  bint sends) except -1:
        nic, arena = host.nic, host.nic.arena
        other = self.target if sends else self.source
        fabric_bare_end(host.agenda.fabric, host.number, qp)
        nic.inflight.peer(_To((<FabricHost> other).nic.config.address, nic.config.port)).users -= 1
        nic.sending.scheduler.dismiss(record)
        del host.bare[record]
        host.controls.pop(record, None)
        arena.free(record, self.pattern.record_bytes)
        arena.free(context, self.pattern.context_bytes)
        arena.free(slots, fabric_sender_bytes(&self.pattern.sender) if sends else fabric_receiver_bytes())
        return 0


class _To:
    """The key of a peer's in-flight account."""

    __slots__ = ("dport", "dst")

    def __init__(self, dst, dport):
        self.dst, self.dport = dst, dport


cdef object _arrival(const fabric_telemetry *arrived, uint64_t now):
    """Return the telemetry of a response."""
    cdef const fabric_hop *hop
    cdef uint32_t i
    cdef list hops = []
    for i in range(arrived.hops):
        hop = &arrived.hop[i]
        hops.append(Hop(hop.time, hop.queued_bytes, hop.sent_bytes, hop.bits_s))
    return Arrival(now - arrived.sent_ns, arrived.left_ns - arrived.arrived_ns, arrived.hops, bool(arrived.ecn),
                   tuple(hops))


# ------------------------------------------------------------------- callbacks from C

cdef int _failed(FabricAgenda agenda, error):
    if agenda.error is None:
        agenda.error = error
    return -1


cdef int _call_act(void *self, uint32_t actor) noexcept:
    agenda = <FabricAgenda> self
    try:
        agenda.acts[actor]()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_told(void *self, uint32_t at, engine_stop_info *told) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._enter()
        host.device.handle_stop(told)
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_packet(void *self, uint32_t at, const fabric_packet *packet) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._enter()
        host._refuse(packet)
        arrived = None if agenda.fabric.arrived == NULL else _arrival(agenda.fabric.arrived, agenda.fabric.now)
        host.host.take(agenda._packet(packet), arrived)
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_turn(void *self, uint32_t at, engine_stop_info *told) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    cdef list out = []
    try:
        host._enter()
        if agenda.fabric.sending.qp in host.bare:
            host._spare(told)
            return 0
        host.device.run_reference_turn(agenda.fabric.now, &agenda.fabric.sending, out)
        if out:
            host.nic.note_traffic(agenda.fabric.now)
            host.host.send(out)
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_prepare(void *self, uint32_t at, int *sent) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._enter()
        if host.nic.resources.interrupts:
            host.host.interrupts()
        out = host.sending.prepare(agenda.fabric.now)
        if out:
            host.device.c_device.counts.tx_packets += len(out)
            host.nic.note_traffic(agenda.fabric.now)
            host.host.send(out)
            sent[0] = 1
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_timer(void *self, uint32_t at, uint64_t record) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._enter()
        if record in host.bare:
            # the engine retransmits by itself, so the retries are used up
            host.bare[record].fail()
            host._leave()
            return 0
        host.nic.handle_deadline(host.sending.qps[record], agenda.fabric.now)
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_write_back(void *self, uint32_t at) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._enter()
        host.nic.write_back_all(agenda.fabric.now)
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_look(void *self, uint32_t at) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._look()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_after(void *self, uint32_t at) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        call = host.host.after
        if call is not None:
            call()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_draw(void *self, fabric_draws *draws) noexcept:
    agenda = <FabricAgenda> self
    cdef uint32_t i
    try:
        random = agenda.draws[<uintptr_t> draws].random
        for i in range(FABRIC_DRAWS):
            draws.values[i] = random()
        draws.count = FABRIC_DRAWS
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_tap(void *self, uint32_t port, const fabric_packet *packet) noexcept:
    agenda = <FabricAgenda> self
    try:
        agenda.ports[port].tap_call(agenda._packet(packet))
    except BaseException as error:
        return _failed(agenda, error)
    return 0


# ------------------------------------------------------------------- congestion controls in Python

cdef void _control_failed(FabricHost host, error):
    _failed(host.agenda, error)
    host.agenda.fabric.failed = 1


cdef void _control_on_ack(void *self, queue_pair *record, const engine_ack *ack) noexcept:
    cdef FabricHost host = <FabricHost> self
    try:
        controlled = host._controlled(record)
        if host.agenda.fabric.arrived != NULL:
            controlled.arrival = _arrival(host.agenda.fabric.arrived, ack.now)
        controlled.acknowledged(ack.packets, ack.rtt_ns, ack.now)
    except BaseException as error:
        _control_failed(host, error)


cdef void _control_on_cnp(void *self, queue_pair *record, uint64_t now) noexcept:
    cdef FabricHost host = <FabricHost> self
    try:
        host._controlled(record).notified(now)
    except BaseException as error:
        _control_failed(host, error)


cdef void _control_on_loss(void *self, queue_pair *record, uint64_t now) noexcept:
    cdef FabricHost host = <FabricHost> self
    try:
        host._controlled(record).lost(now)
    except BaseException as error:
        _control_failed(host, error)


cdef void _control_on_timer(void *self, queue_pair *record, uint64_t now) noexcept:
    cdef FabricHost host = <FabricHost> self
    try:
        host._controlled(record).catch_up(now)
    except BaseException as error:
        _control_failed(host, error)


cdef void _control_on_sent(void *self, queue_pair *record, uint64_t size) noexcept:
    cdef FabricHost host = <FabricHost> self
    try:
        host._controlled(record).sent_by_engine(size)
    except BaseException as error:
        _control_failed(host, error)


cdef fabric_calls _fabric_calls
_fabric_calls.act = _call_act
_fabric_calls.told = _call_told
_fabric_calls.packet = _call_packet
_fabric_calls.turn = _call_turn
_fabric_calls.prepare = _call_prepare
_fabric_calls.timer = _call_timer
_fabric_calls.write_back = _call_write_back
_fabric_calls.look = _call_look
_fabric_calls.after = _call_after
_fabric_calls.draw = _call_draw
_fabric_calls.tap = _call_tap
