# The fabric for Python: agenda, ports, switches and NICs of rnic.sim, whose plain classes they stand for.

from libc.stdlib cimport malloc

from rnic.wire.flow import Flow

cdef extern from "fabric.h" nogil:
    struct fabric_packet:
        uint32_t wire, way, source, target
        uint16_t source_port, target_port, length
        uint8_t tclass, ce
    struct fabric_queue:
        uint32_t count
    struct fabric_draws:
        uint32_t at, count
        double values[64]
    struct fabric_port:
        uint64_t bits_s, delay_ns, queued_bytes, peak_bytes, sent, sent_bytes, lost, marked, pauses, paused_ns
        double loss
        fabric_draws *draws
        fabric_queue queue
        uint32_t peer, owner, number
        uint8_t paused, tapped, recorded
        uint64_t *stops
        uint32_t stop_count
    struct fabric_ingress:
        uint32_t port
    struct fabric_switch:
        uint64_t buffer_bytes, kmin_bytes, kmax_bytes, xoff_bytes, xon_bytes, headroom_bytes
        double pmax
        uint64_t dropped, peak_bytes, held, in_headroom
        fabric_draws *draws
        fabric_ingress *links
        uint32_t link_count, salt
    struct fabric_host:
        engine_device *device
        const completion_queue *cq
        uint64_t cq_tail, write_back_at, rx_bytes, tx_bytes
        uint32_t port
        uint8_t owes, has_qps
    struct fabric_event:
        uint64_t time
    struct fabric_calls:
        int (*act)(void *self, uint32_t actor) noexcept
        int (*told)(void *self, uint32_t host, engine_told *told) noexcept
        int (*packet)(void *self, uint32_t host, const fabric_packet *packet) noexcept
        int (*turn)(void *self, uint32_t host, engine_told *told) noexcept
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
        uint8_t tclass
        const fabric_calls *to
        void *self
        engine_sending sending
        engine_out out
        uint8_t *scratch
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
    void fabric_free(fabric_state *fabric)
    void fabric_at(fabric_state *fabric, uint64_t time, uint32_t actor)
    uint64_t fabric_run(fabric_state *fabric, uint64_t count, uint64_t end) noexcept
    uint32_t fabric_packet_make(fabric_state *fabric, const uint8_t *header, uint64_t length, const engine_flow *flow,
                                uint8_t tclass)
    void fabric_packet_whole(const fabric_packet *packet, uint8_t *bytes)
    void fabric_port_put(fabric_state *fabric, uint32_t port, uint32_t packet)
    void fabric_host_wake(fabric_state *fabric, uint32_t host, uint64_t time)

cdef uint64_t NEVER_NS = 1ULL << 63
DEF MAX_FLOWS = 65536


cdef class FabricAgenda:
    """Virtual time and all that is due in it: :class:`rnic.sim.agenda.Agenda`, with ports and NICs of C.

    Args:
        tclass: traffic class of what NICs send.
        packet: makes a packet, as Python sees it, of a burst and of the hash that ECMP goes by.
    """

    cdef fabric_state *fabric
    cdef dict acts, draws, flows
    cdef list free, hosts, ports
    cdef object error, packet

    def __cinit__(self, int tclass=2, packet=None):
        self.packet = packet
        self.fabric = <fabric_state *> calloc(1, sizeof(fabric_state))
        if self.fabric == NULL:
            raise MemoryError("no memory for a fabric")
        self.fabric.out.bytes = <uint8_t *> malloc(FABRIC_OUT_BYTES)
        self.fabric.out.room = FABRIC_OUT_BYTES
        self.fabric.scratch = <uint8_t *> calloc(1, FABRIC_SCRATCH)
        if self.fabric.out.bytes == NULL or self.fabric.scratch == NULL:
            raise MemoryError("no memory for packets")
        self.fabric.tclass = <uint8_t> tclass
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
        """How many have happened."""
        return self.fabric.events

    def actor(self, act):
        """A number for something that acts when it is due. Raises ``OverflowError`` where there are 2^24 already."""
        cdef uint32_t number = fabric_actor_add(self.fabric, FABRIC_PYTHON, 0)
        if number == FABRIC_NONE:
            raise OverflowError("there are as many actors as there can be: make the topology smaller")
        self.acts[number] = act
        return number

    def once(self, time_ns, call):
        """``call`` is called at ``time_ns``, and its number is free again."""
        number = self.free.pop() if self.free else self.actor(None)

        def act():
            self.free.append(number)
            call()

        self.acts[number] = act
        self.at(time_ns, number)

    def at(self, uint64_t time_ns, uint32_t actor):
        """``actor`` acts at ``time_ns``, which is not before now."""
        fabric_at(self.fabric, time_ns, actor)
        self._check()

    def next_ns(self):
        """When something happens next; ``None`` where nothing does."""
        return self.fabric.heap[0].time if self.fabric.heap_count else None

    def step(self):
        """The next thing happens, and time moves there; false where there is none."""
        return self.run(1, NEVER_NS, None)

    def run(self, uint64_t count, uint64_t end_ns, busy):
        """Up to ``count`` things happen, while ``busy`` says so; false where there is none any more, or it is late."""
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
        """A packet as rnic.sim has it, with zeros as payload."""
        key = packet.source, packet.target, packet.source_port, packet.target_port, packet.tclass
        flow = self.flows.get(key)
        if flow is None:
            if len(self.flows) >= MAX_FLOWS:
                self.flows.clear()
            source, target = [(<uint32_t> FABRIC_NET + 1 + host).to_bytes(4, "big") for host in key[:2]]
            flow = self.flows[key] = Flow(source, target, packet.source_port, packet.target_port, packet.tclass)
        data = PyBytes_FromStringAndSize(NULL, packet.length)
        fabric_packet_whole(packet, <uint8_t *> PyBytes_AS_STRING(data))
        made = self.packet(TxBurst(flow, [data], packet.length, 1, packet.length), packet.way)
        made.ce = bool(packet.ce)
        return made

    cdef int _put(self, uint32_t port, packet) except -1:
        """A packet of Python's joins a queue."""
        cdef engine_flow flow
        burst = packet.burst
        if burst.count != 1:
            raise ValueError(f"{burst.count} packets in one burst: a fabric takes them one by one")
        cdef bytes data = bytes(burst.buffers[0]) if len(burst.buffers) == 1 else b"".join(burst.buffers)
        _take_flow(&flow, burst.flow)
        cdef uint32_t number = fabric_packet_make(self.fabric, <uint8_t *> PyBytes_AS_STRING(data), len(data), &flow,
                                                  <uint8_t> burst.flow.tclass)
        if number == FABRIC_NONE:
            return 0  # no host has the address: lost, as on a wire
        fabric_port_put(self.fabric, port, number)
        return 0


cdef class FabricPort:
    """One end of a link: :class:`rnic.sim.port.Port`. Whose it is says who takes it."""

    cdef FabricAgenda agenda
    cdef readonly str name
    cdef readonly uint32_t number
    cdef public object tap_call
    cdef FabricPort other

    def __cinit__(self, FabricAgenda agenda, name, link, rng, extra_ns):
        cdef fabric_port *port
        self.agenda, self.name = agenda, name
        self.number = fabric_port_add(agenda.fabric)
        if self.number == FABRIC_NONE:
            raise OverflowError("there are as many ports as there can be: make the topology smaller")
        port = &agenda.fabric.ports[self.number]
        port.bits_s, port.delay_ns, port.loss = link.bits_s, link.delay_ns + extra_ns, link.loss
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
        """Called with each packet that leaves, or ``None``."""
        return self.tap_call

    @tap.setter
    def tap(self, call):
        self.tap_call = call
        self._at().tapped = call is not None

    @property
    def stops(self):
        """When it stopped and went on, in turn; ``None`` where nobody asked for it with a list."""
        cdef fabric_port *port = self._at()
        return [port.stops[i] for i in range(port.stop_count)] if port.recorded else None

    @stops.setter
    def stops(self, wanted):
        self._at().recorded = wanted is not None

    @property
    def window_bytes(self):
        """Its rate in bytes a window of the congestion registers."""
        return max(1, self._at().bits_s * 1024 // 8000000000)

    def put(self, packet):
        """Queue a packet behind those that wait."""
        self.agenda._put(self.number, packet)

    @property
    def queued_bytes(self):
        """What waits."""
        return self._at().queued_bytes

    @property
    def peak_bytes(self):
        """The longest that its queue was."""
        return self._at().peak_bytes

    @property
    def sent(self):
        """Packets that left."""
        return self._at().sent

    @property
    def sent_bytes(self):
        """Their bytes on the wire."""
        return self._at().sent_bytes

    @property
    def lost(self):
        """Packets that the wire lost."""
        return self._at().lost

    @property
    def marked(self):
        """Packets that were marked here."""
        return self._at().marked

    @property
    def pauses(self):
        """PFC frames that stopped it."""
        return self._at().pauses

    @property
    def paused(self):
        """Whether it stands."""
        return bool(self._at().paused)

    @property
    def paused_ns(self):
        """How long it stood."""
        return self._at().paused_ns


cdef class FabricSwitch:
    """A switch: :class:`rnic.sim.switch.Switch`.

    Args:
        agenda: whose.
        row, rng, salt: as there.
        ports: of this switch, in the order of its links.
        hosts: how many there are.
    """

    cdef FabricAgenda agenda
    cdef uint32_t number
    cdef readonly list ports
    cdef readonly object row
    cdef uint32_t hosts

    def __cinit__(self, FabricAgenda agenda, row, rng, salt, list ports, hosts):
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
        here.xoff_bytes, here.xon_bytes, here.headroom_bytes = row.xoff_bytes, row.xon_bytes, row.headroom_bytes
        here.pmax, here.salt, here.link_count = row.pmax, salt, len(ports)
        if row.marks:
            here.draws = agenda._draws(rng)
        for i, port in enumerate(ports):
            here.links[i].port = port.number
            end = port._at()
            end.owner, end.number = self.number, i

    cdef fabric_switch *_at(self):
        return &self.agenda.fabric.switches[self.number]

    def route(self, uint32_t host, list ports):
        """Packets to a host leave by one of these ports."""
        cdef FabricPort port
        if host >= self.hosts:
            raise IndexError(f"host={host}: there are {self.hosts}")
        for port in ports:
            if fabric_way_add(self._at(), host, port.number):
                raise MemoryError("no memory for a route")

    @property
    def dropped(self):
        """Packets that found no room."""
        return self._at().dropped

    @property
    def peak_bytes(self):
        """The most that its buffers held."""
        return self._at().peak_bytes

    @property
    def buffered_bytes(self):
        """What the shared buffer holds now."""
        return self._at().held - self._at().in_headroom


cdef class FabricHost:
    """A NIC at its link, for :class:`rnic.sim.native.EngineHost`.

    Args:
        agenda: whose.
        nic: the device, with the engine; its packets are bare from now on.
        port: its end of its one link.
        host: has what the engine leaves to Python.
    """

    cdef FabricAgenda agenda
    cdef readonly uint32_t number
    cdef object nic, host, rung, sending, counters
    cdef Device device

    def __cinit__(self, FabricAgenda agenda, nic, FabricPort port, host):
        cdef fabric_host *here
        cdef fabric_port *end = port._at()
        self.agenda, self.nic, self.host = agenda, nic, host
        self.device, self.counters = nic.engine_device, nic.counters
        self.rung, self.sending = nic.resources.doorbells.rung, nic.sending
        self.number = fabric_host_add(agenda.fabric)
        if self.number == FABRIC_NONE:
            raise MemoryError("no memory for a host")
        here = &agenda.fabric.hosts[self.number]
        here.device, here.port = &self.device.device, port.number
        end.owner = self.number
        self.device.port.strip()
        agenda.hosts.append(self)

    cdef fabric_host *_at(self):
        return &self.agenda.fabric.hosts[self.number]

    def wake(self):
        """Look at the NIC as soon as what is due now has happened."""
        self.agenda.fabric.calls += 1
        fabric_host_wake(self.agenda.fabric, self.number, self.agenda.fabric.now)

    def count(self):
        """What C counted is counted by the device."""
        cdef fabric_host *here = self._at()
        cdef engine_counts *counts = &self.device.device.counts
        cdef int i
        for name, value in (("rx_packets", counts.rx_packets), ("tx_packets", counts.tx_packets),
                            ("rx_bytes", here.rx_bytes), ("tx_bytes", here.tx_bytes)):
            if value:
                self.counters[name] += value
        for i in range(ENGINE_COUNTS):
            if counts.events[i]:
                self.counters[COUNTERS[i]] += counts.events[i]
        here.rx_bytes = here.tx_bytes = 0
        memset(counts, 0, sizeof(counts[0]))

    cdef int _enter(self) except -1:
        """Python goes on where C stopped."""
        cdef uint64_t at = self._at().write_back_at
        self.nic.now_ns = self.agenda.fabric.now
        self.nic.write_back_at = None if at == NEVER_NS else at
        return 0

    cdef int _leave(self) except -1:
        at = self.nic.write_back_at
        self._at().write_back_at = NEVER_NS if at is None else at
        return 0

    cdef int _look(self) except -1:
        cdef fabric_host *here = self._at()
        cdef _Cq found
        nic, sending = self.nic, self.sending
        here.owes = bool(self.rung or sending.failed_cqs or sending.last_words or nic.gsi.waiting
                         or nic.resources.interrupts)
        here.has_qps = bool(nic.qps)
        cqs = nic.resources.cqs
        here.cq = NULL
        if len(cqs) == 1:
            for queue in cqs.values():
                here.cq = <completion_queue *> <uintptr_t> ctypes.addressof(queue.key)
        at = nic.write_back_at
        if at is not None:
            here.write_back_at = at
        return 0


# ------------------------------------------------------------------- what C leaves to Python

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


cdef int _call_told(void *self, uint32_t at, engine_told *told) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._enter()
        host.device._stopped(told)
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_packet(void *self, uint32_t at, const fabric_packet *packet) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    try:
        host._enter()
        host.host.take(agenda._packet(packet))
        host._leave()
    except BaseException as error:
        return _failed(agenda, error)
    return 0


cdef int _call_turn(void *self, uint32_t at, engine_told *told) noexcept:
    agenda = <FabricAgenda> self
    cdef FabricHost host = agenda.hosts[at]
    cdef list out = []
    try:
        host._enter()
        host.device._take_over(agenda.fabric.now, &agenda.fabric.sending, out)
        if out:
            host.nic.moved_packets(agenda.fabric.now)
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
            host.device.device.counts.tx_packets += len(out)
            host.nic.moved_packets(agenda.fabric.now)
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
