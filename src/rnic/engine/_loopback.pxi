# Wires in memory, for Python: included by _engine.pyx.

import mmap as _mmap
import sys as _sys

cdef extern from "io/loopback.h" nogil:
    struct loopback:
        pass
    loopback *loopback_make(uint8_t *bytes, uint64_t room)
    void loopback_free(loopback *wire)
    void loopback_close(loopback *wire)
    int loopback_put(loopback *wire, const rx_buffer *what)
    unsigned loopback_take(loopback *wire, rx_buffer *slots, unsigned count)
    uint64_t loopback_lost(loopback *wire)
    void loopback_notify(loopback *wire)


def _pages(uint64_t room):
    """Zeros that take no memory before they are used, and that a child which is forked has a copy of."""
    if _sys.platform == "win32":
        return _mmap.mmap(-1, room)
    return _mmap.mmap(-1, room, flags=_mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS)


cdef class Wire:
    """What leads to one NIC of this process: bursts in order, put by any thread, taken by one at a time.

    Args:
        room: bytes that may wait.
    """

    cdef loopback *wire
    cdef readonly object memory

    def __cinit__(self, uint64_t room):
        self.memory = memoryview(_pages(room))
        self.wire = loopback_make(_address(self.memory, NULL), room)
        if self.wire == NULL:
            raise MemoryError("no memory for a wire")

    def __dealloc__(self):
        loopback_free(self.wire)

    def close(self):
        """Nothing arrives any more."""
        loopback_close(self.wire)

    def put(self, bytes name, data, uint32_t segment, uint8_t tclass, uint8_t hop_limit, uint32_t flow_label):
        """Put a burst from whom ``name`` stands for, of at most 28 bytes; whether somebody is there to take it."""
        cdef rx_buffer what
        cdef Py_ssize_t length = 0
        if len(name) > sizeof(what.name):
            raise ValueError(f"a name of {len(name)} bytes: give at most {sizeof(what.name)}")
        memset(&what, 0, sizeof(what))
        what.buffer = _address(data, &length)
        what.size, what.segment = <size_t> length, segment
        what.name_bytes = <uint32_t> len(name)
        memcpy(what.name, PyBytes_AS_STRING(name), len(name))
        what.tclass, what.hop_limit, what.flow_label = tclass, hop_limit, flow_label
        cdef bint there = loopback_put(self.wire, &what) == 0
        loopback_notify(self.wire)
        return there

    def take(self, unsigned limit):
        """Up to ``limit`` bursts, 64 at most: name, bytes that stay until the next call, and segment to flow label."""
        cdef rx_buffer[64] slots
        cdef unsigned i
        cdef rx_buffer *slot
        cdef list out = []
        for i in range(loopback_take(self.wire, slots, min(limit, 64u))):
            slot = &slots[i]
            name = PyBytes_FromStringAndSize(<char *> slot.name, slot.name_bytes)
            out.append((name, _view(self.memory, slot), slot.segment, slot.tclass, slot.hop_limit, slot.flow_label))
        return out

    def lost(self):
        """Packets that found no room since the last such question."""
        return loopback_lost(self.wire)
