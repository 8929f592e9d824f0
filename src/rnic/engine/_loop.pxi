# A runtime's rounds and doorbells without Python's way round, where nothing out of the common happens: included by
# _engine.pyx. What is out of the common the runtime does (runtime/loop.py), asked by the same conditions.

from time import monotonic_ns, sleep

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object names, object name) except NULL

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "state.h" nogil:
    enum:
        IDLE_BEFORE_YIELD "POLL_IDLE_BEFORE_YIELD"
        POLL_GATHER_AFTER
        POLL_SOCKET_CHECKS
        POLL_GATHER_PAUSE_NS
        POLL_GATHER_SETBACK
        POLL_GATHER_STEADY

DEF ASK_NS = 50000

cdef inline object _of(dict names, object name):
    """An attribute that an object is known to keep in its ``__dict__``; what Python's way there takes is twice that."""
    return <object> PyDict_GetItemWithError(names, name)


cdef class Door:
    """Where a queue's doorbell goes, and who is told that its completions are polled."""

    cdef public bint seen

    cdef int _ring(self, block, uint64_t length) except -1:
        """A doorbell was stored to in a queue block, for ``length`` bytes."""
        raise NotImplementedError


cdef class Drive(Door):
    """Rounds of a runtime whose device and socket the engine has; made once its pump is there.

    Args:
        runtime: whose lock is held around everything.
        pump: its pump, until the runtime has none any more.
        full: bursts of a round from which on there may be more.

    ``stream``: messages in a row, each after a poll and less than ``pause_ns`` after the one before, with setbacks;
    ``steady``: such with one poll alone between two; ``seen``: a poll has come since the last; ``fresh``: none has come
    since the last that gathers; ``wanted``: the last round could not do without Python.
    """

    cdef public uint64_t pause_ns
    cdef object runtime, nic, sending, interrupts, changes, clock
    cdef dict of_runtime
    cdef Pump pump
    cdef PortLock lock
    cdef progress_thread state
    cdef uint64_t asked, posted
    cdef public uint32_t stream, steady
    cdef uint32_t idle, full, full_rounds
    cdef bint monotonic, trusted, fresh
    cdef readonly bint wanted

    def __cinit__(self, runtime, Pump pump, uint32_t full):
        self.runtime, self.pump, self.full, self.pause_ns = runtime, pump, full, POLL_GATHER_PAUSE_NS
        self.nic = nic = runtime.nic
        self.sending = nic.sending
        self.interrupts, self.changes = nic.resources.interrupts, nic.resources.groups.changes
        self.clock, self.of_runtime = runtime.clock, runtime.__dict__
        self.monotonic = self.clock is monotonic_ns
        clock_calibrate()
        self.lock = runtime.lock
        self.lock.drive = self
        self.state.round, self.state.lock = pump.round_state, &self.lock.lock

    def __dealloc__(self):
        progress_thread_stop(&self.state)

    @property
    def last_poll(self):
        """When an application drove the NIC last."""
        return self.state.polled

    @property
    def sleeps_until(self):
        """When the thread wakes up by itself; 0 while it is awake, or looks soon whether the application still polls."""
        return self.state.sleeps_until

    @property
    def stopped(self):
        """Whether the thread in C waits for Python to do something."""
        return self.state.pending != 0

    cdef uint64_t now(self) except? 0:
        return clock_approximate_now() if self.monotonic else self.clock()

    def count(self):
        """What C has counted is counted, unless it is at work just now."""
        if device_lock_try(&self.lock.lock):
            try:
                self.pump._tell(self.now())
            finally:
                device_lock_release(&self.lock.lock)

    def progress(self):
        """:meth:`~rnic.runtime.loop.Runtime.progress`."""
        cdef bint did
        cdef uint64_t now
        if not self.state.leased and _of(self.of_runtime, "_pump") is not self.pump:
            return self.runtime.progress()
        if self.fresh:
            # The message posted just now waits for others: a look between any two of a stream costs more than both.
            self.fresh, self.seen = False, True
            return False
        now = self.now()
        self.state.polled, self.trusted = now, False
        if not device_lock_try(&self.lock.lock):
            sleep(0)
            return False
        try:
            if self.seen:
                self.steady = self.pump.round_state.inflight_floor = 0  # waits for something
            self.seen = True
            # who has several polls them in turn, and each finds its packets the sooner
            self.pump.round_state.socket_checks = POLL_SOCKET_CHECKS if _at_work == 1 and self.stream < POLL_GATHER_AFTER else 0
            did = self._round(now) if self._leased() else self.runtime._round(now)
        finally:
            device_lock_release(&self.lock.lock)
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
        self.state.polled = 0

    def round(self, uint64_t now):
        """One round, that the pump takes; the lock is held. Not the application drives it: nothing gathers any longer."""
        self.pump.round_state.gathers = False
        return self._round(now)

    cdef bint _round(self, uint64_t now) except -1:
        cdef bint did = False, full
        cdef Pump pump = self.pump
        if self.state.pending:
            self.catch_up()
        if pump._owes():
            did = self.runtime.send_bursts(self.sending.prepare(now))
        pump._round(now, _of(self.of_runtime, "budget"))
        self.wanted = pump.visited
        if pump.visited:
            self.leave()
        did = did or pump.round_state.received or pump.round_state.sent
        # What arrived in time is not late because this process did not run: nothing is overdue before all is read.
        full = pump.round_state.received >= self.full
        self.full_rounds = self.full_rounds + 1 if full else 0
        if (self.full_rounds % POLL_TIMERS_AT_LEAST_EVERY == 0 and self._late(now)) or self.interrupts:
            did = self.runtime._end(now, self.full_rounds % POLL_TIMERS_AT_LEAST_EVERY != 0, did)
        return did

    cdef bint _late(self, uint64_t now) except -1:
        """Whether a deadline has come: those of queue pairs at once, the device's other ones are asked for now and then."""
        if engine_device_deadline(&self.pump.device.device) > now and self.monotonic and now - self.asked < ASK_NS:
            return False
        self.asked = now
        return self.pump._late(now)

    def kick(self):
        """:meth:`~rnic.runtime.loop.Runtime.kick`."""
        if _of(self.of_runtime, "_pump") is not self.pump:
            return self.runtime.kick()
        self.lock.take()
        try:
            self._kick(self._plain(), False, self.now())
        finally:
            device_lock_release(&self.lock.lock)

    cdef bint _plain(self) except -1:
        """Whether there is nothing but turns to do after a doorbell, and the pump does them. The lock is held."""
        cdef Pump pump = self.pump
        if self.state.pending:
            self.catch_up()
        return self._leased() and not self.changes and not pump._owes()

    cdef bint _leased(self) except -1:
        """Whether the pump takes the rounds. Who changes that does so as a visitor of the lock, or is looked after."""
        if not self.state.leased:
            self.leave()
        return self.state.leased

    cdef int _ring(self, block, uint64_t length) except -1:
        """Take it, and send, if that does not gather."""
        cdef Executor executor
        cdef Pump pump = self.pump
        cdef bint plain
        cdef int rung = -1
        cdef uint64_t now
        if not self.state.leased and _of(self.of_runtime, "_pump") is not pump:  # a child process has another lock
            pump.doorbells.ring(block)
            return self.runtime.kick() is not None
        self.lock.take()
        try:
            plain = self._plain()
            now = self.now()
            executor = pump.device.doors.get(block) if plain and not pump.rung else None
            if executor is not None:
                pump.round_state.gathers = self._streams(now)
                rung = io_poll_ring(pump.round_state, &executor.place, length)
            self.fresh = rung == GATHERED
            if rung < 0:
                pump.doorbells.ring(block)
            if rung != GATHERED:
                self._kick(plain, length <= POLL_GATHER_BYTES and pump.device.device.sched.scheduler.count == 1, now)
        finally:
            device_lock_release(&self.lock.lock)
        return 0

    cdef bint _streams(self, uint64_t now) except -1:
        """Whether the application posts and polls in turn, without a pause. What it leaves behind the thread sends."""
        cdef bint soon = now - self.posted < self.pause_ns
        if not self.seen:
            self.stream = self.steady = 0
        elif soon:
            self.stream = min(self.stream + 1, 2 * POLL_GATHER_AFTER)
            self.steady = min(self.steady + 1, POLL_GATHER_AFTER)
        else:
            self.stream -= min(self.stream, POLL_GATHER_SETBACK)
        self.pump.round_state.inflight_floor = POLL_GATHER_STEADY if self.steady >= POLL_GATHER_AFTER else 0
        self.posted, self.seen = now, False
        if not self.trusted and _of(self.of_runtime, "listens") is False:
            self.trusted = True
            self.state.polled = now  # it will poll soon, and the thread keeps off meanwhile: once, until it does
        return (
            soon and self.stream >= POLL_GATHER_AFTER and self.state.running and not self.state.sleeps_until
        )

    cdef int _kick(self, bint plain, bint short, uint64_t now) except -1:
        cdef Pump pump = self.pump
        cdef dict of_runtime = self.of_runtime
        if not plain:
            self.runtime.kick()
            return 0
        pump._turns(now, _of(of_runtime, "budget"), short)
        if pump.visited:
            self.leave()
            if _of(pump.of_link, "up") is not _of(of_runtime, "_link_up"):
                self.runtime._check_link()
        if self.interrupts:
            self.runtime._interrupts()
        self.state.others_sent = 1
        if progress_thread_oversleeps(&self.state, now):
            progress_thread_wake(&self.state)
        elif not self.state.running and _of(of_runtime, "_sleep_until") is not None:
            self.runtime._wake_if_late()
        return 0

    # ------------------------------------------------------------------- the thread in C

    def watch(self, list descriptors, int python, uint64_t tell_within):
        """Start the thread that drives the device in C while nobody polls; the lock is held.

        Args:
            descriptors: what brings packets.
            python: a pipe; a byte in it says that there is something that C does not know.
            tell_within: ns after which what moved is told in the same way.

        Returns:
            Whether it runs: it takes no more than 8 descriptors, and the system may have no more threads.
        """
        cdef Py_ssize_t place
        if len(descriptors) > PROGRESS_THREAD_SOCKETS or not self.monotonic:
            return False
        for place in range(len(descriptors)):
            self.state.sockets[place] = descriptors[place]
        self.state.socket_count = <uint32_t> len(descriptors)
        self.state.python_fd, self.state.report_within = python, tell_within
        return progress_thread_start(&self.state) == 0

    def ring(self):
        """Wake that thread."""
        progress_thread_wake(&self.state)

    def unwatch(self):
        """End that thread; the lock is not held."""
        with nogil:
            progress_thread_stop(&self.state)

    def forget(self):
        """This process is a child of the one that has the thread."""
        self.state.running = self.state.leased = 0
        self.state.sleeps_until = 0

    cdef int leave(self) except -1:
        """Python leaves: whether C may do rounds from now on."""
        cdef bint before = self.state.leased
        self.pump.visited = False
        try:
            self.state.leased = (
                _of(self.of_runtime, "_pump") is self.pump and self.pump._takes(_of(self.of_runtime, "link"))
            )
        except Exception as error:
            self.state.leased = False
            self.runtime.guard.caught("round", error)
        if before and not self.state.leased and _of(self.of_runtime, "_thread") is not None:
            self.runtime._wake()
        return 0

    cdef int catch_up(self) except -1:
        """Do what a round of the thread in C has stopped at, and end the turns that it is in the middle of.

        Whoever holds the lock next may destroy the queue pair whose turn it is.
        """
        cdef engine_stop_info told = self.state.pending_stop
        cdef uint64_t now = self.now()
        self.state.pending = False
        self.nic.now_ns = now
        try:
            if told.stop == STOP_PUNT_DEADLINE:
                self.nic.handle_deadline(self.sending.qps[told.qp], now)
            else:
                self.pump._stopped(&told, now)
            if self.pump.round_state.sending.qp or self.pump.round_state.sending.deferred_count:
                self.pump._turns(now, _of(self.of_runtime, "budget"), False)
        except Exception as error:
            self.runtime.guard.caught("round", error)
        return 0
