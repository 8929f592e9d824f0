# A runtime's rounds and doorbells without Python's way round, where nothing out of the common happens: included by
# _engine.pyx. What is out of the common the runtime does (runtime/loop.py), asked by the same conditions.

from time import monotonic_ns, sleep

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    enum:
        CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object names, object name) except NULL

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "state.h" nogil:
    enum:
        IDLE_BEFORE_YIELD "ROUND_IDLE_BEFORE_YIELD"
        ROUND_GATHER_AFTER
        ROUND_LOOKS
        ROUND_GATHER_PAUSE_NS

DEF ASK_NS = 50000

cdef inline object _of(dict names, object name):
    """An attribute that an object is known to keep in its ``__dict__``; what Python's way there takes is twice that."""
    return <object> PyDict_GetItemWithError(names, name)


cdef class Drive:
    """Rounds of a runtime whose device and socket the engine has; made once its pump is there.

    Args:
        runtime: whose lock is held around everything.
        pump: its pump, until the runtime has none any more.
        full: bursts of a round from which on there may be more.

    ``pause_ns`` between two messages ends a stream of them; ``seen``: a poll has come since the last.
    """

    cdef public uint64_t pause_ns
    cdef object runtime, nic, sending, interrupts, groups, clock, acquire, release
    cdef dict of_runtime
    cdef Pump pump
    cdef uint64_t polled, asked, posted
    cdef uint32_t idle, full, full_rounds, stream
    cdef bint monotonic, trusted
    cdef public bint seen

    def __cinit__(self, runtime, Pump pump, uint32_t full):
        self.runtime, self.pump, self.full, self.pause_ns = runtime, pump, full, ROUND_GATHER_PAUSE_NS
        self.nic = nic = runtime.nic
        self.sending = nic.sending
        self.interrupts, self.groups = nic.resources.interrupts, nic.resources.groups
        self.clock, self.of_runtime = runtime.clock, runtime.__dict__
        self.monotonic = self.clock is monotonic_ns
        self.acquire, self.release = runtime.lock.acquire, runtime.lock.release

    @property
    def last_poll(self):
        """When an application drove the NIC last."""
        return self.polled

    cdef uint64_t now(self) except? 0:
        cdef timespec time_now
        if not self.monotonic:
            return self.clock()
        clock_gettime(CLOCK_MONOTONIC, &time_now)
        return <uint64_t> time_now.tv_sec * 1000000000 + <uint64_t> time_now.tv_nsec

    def progress(self):
        """:meth:`~rnic.runtime.loop.Runtime.progress`."""
        cdef bint did
        if _of(self.of_runtime, "_pump") is not self.pump:
            return self.runtime.progress()
        cdef uint64_t now = self.now()
        self.polled, self.trusted = now, False
        if not self.acquire(False):
            sleep(0)
            return False
        try:
            self.seen = True
            # who has several polls them in turn, and each finds its packets the sooner
            self.pump.round_state.looks = ROUND_LOOKS if _at_work == 1 else 0
            did = self._round(now) if self.pump._takes(_of(self.of_runtime, "link")) else self.runtime._round(now)
        finally:
            self.release()
        if did:
            self.idle = 0
            return True
        self.idle += 1
        if self.idle > IDLE_BEFORE_YIELD:
            with nogil:
                sched_yield()
        return False

    def busy(self):
        """:meth:`~rnic.runtime.loop.Runtime.busy`."""
        self.idle = 0

    def rest(self):
        """The application stops polling."""
        self.polled = 0

    def round(self, uint64_t now):
        """One round, that the pump takes; the lock is held. Not the application drives it: nothing gathers any longer."""
        self.pump.round_state.gathers = False
        return self._round(now)

    cdef bint _round(self, uint64_t now) except -1:
        cdef bint did = False, full
        cdef Pump pump = self.pump
        if pump._owes():
            did = self.runtime.carry_away(self.sending.prepare(now))
        pump._round(now, _of(self.of_runtime, "budget"))
        did = did or pump.round_state.came or pump.round_state.sent
        # What arrived in time is not late because this process did not run: nothing is overdue before all is read.
        full = pump.round_state.came >= self.full
        self.full_rounds = self.full_rounds + 1 if full else 0
        if (self.full_rounds % ROUND_TIMERS_AT_LEAST_EVERY == 0 and self._late(now)) or self.interrupts:
            did = self.runtime._end(now, self.full_rounds % ROUND_TIMERS_AT_LEAST_EVERY != 0, did)
        return did

    cdef bint _late(self, uint64_t now) except -1:
        """Whether a deadline has come: those of queue pairs at once, the device's other ones are asked for now and then."""
        if engine_port_deadline(&self.pump.device.device) > now and self.monotonic and now - self.asked < ASK_NS:
            return False
        self.asked = now
        return self.pump._late(now)

    def kick(self):
        """:meth:`~rnic.runtime.loop.Runtime.kick`."""
        if _of(self.of_runtime, "_pump") is not self.pump:
            return self.runtime.kick()
        self.acquire()
        try:
            self._kick(self._plain())
        finally:
            self.release()

    cdef bint _plain(self) except -1:
        """Whether there is nothing but turns to do after a doorbell, and the pump does them. The lock is held."""
        cdef Pump pump = self.pump
        return (
            _of(self.of_runtime, "_pump") is pump and pump._takes(_of(self.of_runtime, "link"))
            and not self.groups.changes and not pump._owes()
        )

    cdef int _ring(self, block, uint64_t length) except -1:
        """A doorbell was stored to in a queue block, for ``length`` bytes: take it, and send, if that does not gather."""
        cdef Executor executor
        cdef Pump pump = self.pump
        cdef bint plain
        cdef int rung = -1
        self.acquire()
        try:
            plain = self._plain()
            executor = pump.device.doors.get(block) if plain and not pump.rung else None
            if executor is not None:
                pump.round_state.gathers = self._streams()
                rung = pump_round_ring(pump.round_state, &executor.place, length)
            if rung < 0:
                pump.doorbells.ring(block)
            if rung != GATHERED:
                self._kick(plain)
        finally:
            self.release()
        return 0

    cdef bint _streams(self) except -1:
        """Whether the application posts and polls in turn, without a pause. What it leaves behind the thread sends."""
        cdef uint64_t now = self.now()
        self.stream = self.stream + 1 if self.seen and now - self.posted < self.pause_ns else 0
        self.posted, self.seen = now, False
        if not self.trusted and _of(self.of_runtime, "listens") is False:
            self.trusted = True
            self.polled = now  # it will poll soon, and the thread keeps off meanwhile: once, until it does
        return (
            self.stream >= ROUND_GATHER_AFTER
            and _of(self.of_runtime, "_thread") is not None and _of(self.of_runtime, "_sleep_until") is None
        )

    cdef int _kick(self, bint plain) except -1:
        cdef Pump pump = self.pump
        cdef dict of_runtime = self.of_runtime
        if not plain:
            self.runtime.kick()
            return 0
        pump._turns(self.now(), _of(of_runtime, "budget"))
        if _of(pump.of_link, "up") is not _of(of_runtime, "_link_up"):
            self.runtime._look_at_link()
        if self.interrupts:
            self.runtime._interrupts()
        if _of(of_runtime, "_sleep_until") is not None:
            self.runtime._wake_if_late()
        return 0
