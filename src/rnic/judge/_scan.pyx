# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled fast path of the judge for correct packets: parsing, ICRC, and requests that follow in order."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from "queue_pair/crc32.h":
    uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length) nogil

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object p, object key) except? NULL

cdef extern from *:
    """
    static PyObject *rnic_new(PyObject *type, PyObject *nothing)
    {
        return ((PyTypeObject *) type)->tp_new((PyTypeObject *) type, nothing, NULL);
    }
    """
    object rnic_new(object type, object nothing)

DEF LINK_BYTES = 14
DEF IPV4_ENDS = 26
DEF IPV6_ENDS = 22
DEF UDP_BYTES = 8
DEF BTH_BYTES = 12
DEF ICRC_BYTES = 4
DEF PSN_MASK = 0xFFFFFF
DEF BEHIND = 0x800000
DEF NO_CREDITS = 31
DEF CACHED = 256
DEF KEY_BYTES = 56


cdef class JudgeState:
    """Counters that scanner and judge share."""

    cdef public int64_t frames, packets, _time_ns
    cdef public bint _waits


cdef class StreamState:
    """Fields of a stream that the scanner reads and advances."""

    cdef public dict history
    cdef public object jump, late_start, reading, reads
    cdef public StreamState peer
    cdef public long acked, base, constant, fatal, front, highest, left, lsn, mtu, nak_psn, odd_base, pkey, refused_end
    cdef public long response_ident, response_port, rnr_psn, total


cdef class FormState:
    """Properties that packets of one form share."""

    cdef public StreamState stream
    cdef public object row
    cdef public bint ack, request, middle, read_response, solicited, start, end, send, write
    cdef public long header_bytes, rest_at, sport, frag, flags, pad, tail, pkey, length, total, size, fit, header_sum, pseudo_sum
    cdef public int64_t constant
    cdef public uint32_t dqpn, seed, residue


cdef class SeenState:
    """One packet."""

    cdef public FormState form
    cdef public int64_t frame, time_ns
    cdef public long ident, psn, packets, done
    cdef public uint32_t word
    cdef public bytes header, tail
    cdef public bint refused, repeated


cdef inline uint32_t half(const uint8_t *at) noexcept nogil:
    return <uint32_t> at[0] << 8 | at[1]


cdef inline uint32_t word_at(const uint8_t *at) noexcept nogil:
    return half(at) << 16 | half(at + 2)


cdef inline uint32_t number(const uint8_t *at, bint big) noexcept nogil:
    """Return a 32-bit word of a capture file."""
    if big:
        return word_at(at)
    return <uint32_t> at[3] << 24 | <uint32_t> at[2] << 16 | <uint32_t> at[1] << 8 | at[0]


cdef inline uint64_t words_sum(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Return the sum of big-endian half words; ``size`` is even."""
    cdef uint64_t total = 0
    cdef Py_ssize_t index
    for index in range(0, size, 2):
        total += half(at + index)
    return total


cdef uint32_t ident_high[256]
cdef uint32_t ident_low[256]
cdef long credits[32]


def prepare(effects, grants):
    """Set the tables: effect of an ident's high and low byte on a CRC, and messages that a credit code allows."""
    for index in range(256):
        ident_high[index] = effects[0][index]
        ident_low[index] = effects[1][index]
    for index, count in enumerate(grants):
        credits[index] = count


cdef struct Cached:
    Py_ssize_t size
    uint8_t key[KEY_BYTES]
    PyObject *form


cdef class Scanner:
    """Process the correct packets of a judge.

    Args:
        judge: the judge that owns the packets.
        forms: the judge's forms by key.
        seen: the class of packets.
        keep: number of remembered packets at which a stream forgets old ones.
        carried: at most 10 bytes, the suffix of keys of forms that are not plain IPv4: those of IPv6.
    """

    cdef JudgeState judge
    cdef dict forms
    cdef type seen
    cdef Py_ssize_t keep
    cdef bytes carried
    cdef Cached cache[CACHED]

    def __cinit__(self, *args):
        memset(self.cache, 0, sizeof(self.cache))

    def __init__(self, judge, forms, seen, keep, carried):
        self.judge = judge
        self.forms = forms
        self.seen = seen
        self.keep = keep
        self.carried = carried

    def __dealloc__(self):
        self._drop()

    cdef void _drop(self) noexcept:
        cdef int index
        for index in range(CACHED):
            Py_XDECREF(self.cache[index].form)
            self.cache[index].form = NULL

    def forget(self):
        """Drop cached forms, after the judge dropped its own."""
        self._drop()

    def take(self, bytes data):
        """Take a whole Ethernet frame; return whether it was a correct packet of a known form."""
        return self._take(<const uint8_t *> PyBytes_AS_STRING(data), len(data))

    def classic(self, bytes chunk, Py_ssize_t at, bint big, int64_t unit_ns, int linktype, uint32_t most):
        """Judge the whole packets of classic pcap in ``chunk`` from ``at`` on.

        The fraction of a second is in units of ``unit_ns``. Stop at a packet of more than ``most`` bytes. Return the
        offset of the rest, and the number of packets.
        """
        cdef const uint8_t *base = <const uint8_t *> PyBytes_AS_STRING(chunk)
        cdef const uint8_t *record
        cdef Py_ssize_t end = len(chunk)
        cdef int64_t time_ns, count = 0
        cdef uint32_t captured
        while at + 16 <= end:
            record = base + at
            captured = number(record + 8, big)
            if captured > most or at + 16 + <Py_ssize_t> captured > end:
                break
            time_ns = <int64_t> number(record, big) * 1000000000 + <int64_t> number(record + 4, big) * unit_ns
            self._give(record + 16, captured, number(record + 12, big), time_ns, linktype)
            at += 16 + <Py_ssize_t> captured
            count += 1
        return at, count

    def blocks(self, bytes chunk, Py_ssize_t at, bint big, list interfaces):
        """Judge the enhanced packet blocks of pcapng in ``chunk`` from ``at`` on, up to a block of another type.

        ``interfaces`` lists link type, tick and offset in nanoseconds of each interface, or ``None`` to leave its
        packets to the caller. Return the offset of the rest, and the number of packets.
        """
        cdef const uint8_t *base = <const uint8_t *> PyBytes_AS_STRING(chunk)
        cdef const uint8_t *block
        cdef Py_ssize_t end = len(chunk)
        cdef int64_t time_ns, tick_ns, offset_ns, count = 0
        cdef uint32_t size, captured, place
        cdef int linktype
        while at + 32 <= end:
            block = base + at
            size = number(block + 4, big)
            if number(block, big) != 6 or size & 3 or size < 32 or at + <Py_ssize_t> size > end:
                break
            place = number(block + 8, big)
            captured = number(block + 20, big)
            if captured > size - 32 or number(block + size - 4, big) != size or place >= <size_t> len(interfaces):
                break
            interface = interfaces[place]
            if interface is None:
                break
            linktype, tick_ns, offset_ns = interface
            time_ns = <int64_t> number(block + 12, big) << 32 | number(block + 16, big)
            if time_ns < 0 or time_ns > (<int64_t> 1 << 62) // tick_ns:
                break
            self._give(block + 28, captured, number(block + 24, big), time_ns * tick_ns + offset_ns, linktype)
            at += <Py_ssize_t> size
            count += 1
        return at, count

    cdef int _give(
        self, const uint8_t *data, Py_ssize_t size, uint32_t length, int64_t time_ns, int linktype
    ) except -1:
        cdef JudgeState judge = self.judge
        if linktype == 1 and not judge._waits:
            judge.frames += 1
            judge._time_ns = time_ns
            if self._take(data, size):
                return 0
            judge.frames -= 1
        judge.frame(time_ns, linktype, PyBytes_FromStringAndSize(<const char *> data, size), length)
        return 0

    cdef FormState _form(self, const uint8_t *ends, int size, const uint8_t *payload):
        """Return the form of a packet, by its addresses of ``size`` bytes and the ports and UDP length after them."""
        cdef uint8_t key[KEY_BYTES]
        cdef unsigned place
        cdef PyObject *found
        cdef const uint8_t *udp = ends + size
        cdef Py_ssize_t length = size + 14
        memcpy(key, ends, size + 6)
        memcpy(key + size + 6, payload, 8)
        if size != 8:
            memcpy(key + length, PyBytes_AS_STRING(self.carried), len(self.carried))
            length += len(self.carried)
        place = (
            ends[size - 1] * 3 ^ ends[size // 2 - 1] ^ udp[0] ^ udp[1] * 5 ^ udp[5] ^ payload[0] * 7 ^ payload[6] * 11
            ^ payload[7] * 13
        ) % CACHED
        cdef Cached *cached = &self.cache[place]
        if cached.form != NULL and cached.size == length and memcmp(cached.key, key, length) == 0:
            return <FormState> cached.form
        found = PyDict_GetItemWithError(self.forms, PyBytes_FromStringAndSize(<char *> key, length))
        if found == NULL:
            return None
        form = <FormState> found
        Py_INCREF(form)
        Py_XDECREF(cached.form)
        cached.form = found
        cached.size = length
        memcpy(cached.key, key, length)
        return form

    cdef bint _take(self, const uint8_t *at, Py_ssize_t size) except -1:
        cdef uint32_t total, seed, ident = 0, word, udp_sum
        cdef const uint8_t *udp
        cdef const uint8_t *payload
        cdef long psn
        cdef JudgeState judge = self.judge
        cdef FormState form
        if size < IPV4_ENDS + 8 + UDP_BYTES + BTH_BYTES + ICRC_BYTES:
            return False
        if at[12] == 8 and at[13] == 0 and at[14] == 0x45:
            udp = at + IPV4_ENDS + 8
            payload = udp + UDP_BYTES
            if at[20] != 0x40 or at[21] or at[23] != 17 or payload[8] & 0x7F:
                return False
            total = half(at + 16)
            if total + LINK_BYTES > <uint32_t> size:
                return False
            form = self._form(at + IPV4_ENDS, 8, payload)
            if form is None or form.total != total or words_sum(at + LINK_BYTES, 20) % 0xFFFF:
                return False
            ident = half(at + 18)
            seed = form.seed ^ ident_high[ident >> 8] ^ ident_low[ident & 0xFF]
        elif at[12] == 0x86 and at[13] == 0xDD and at[14] >> 4 == 6 and at[20] == 17:
            udp = at + IPV6_ENDS + 32
            payload = udp + UDP_BYTES
            total = half(at + 18)
            if total < UDP_BYTES + BTH_BYTES + ICRC_BYTES or udp + total > at + size or payload[8] & 0x7F:
                return False
            form = self._form(at + IPV6_ENDS, 32, payload)
            if form is None or form.length + UDP_BYTES != total:
                return False
            seed = form.seed
        else:
            return False
        if engine_crc32(seed, payload, form.length) != form.residue:
            return False
        udp_sum = half(udp + 6)
        if udp_sum and form.pseudo_sum >= 0 and udp_sum % 0xFFFF != <uint32_t> form.pseudo_sum:
            if (<uint64_t> form.pseudo_sum + words_sum(udp, form.length + UDP_BYTES)) % 0xFFFF:
                return False
        word = word_at(payload + 8)
        psn = word & PSN_MASK
        judge.packets += 1
        if (form.ack or form.read_response) and self._answers(form, psn, ident, word, payload):
            return True
        cdef SeenState packet = <SeenState> rnic_new(self.seen, ())
        packet.form = form
        packet.frame = judge.frames
        packet.time_ns = judge._time_ns
        packet.ident = ident
        packet.word = word
        packet.psn = psn
        packet.packets = 1
        packet.done = -1
        packet.header = PyBytes_FromStringAndSize(<const char *> payload + BTH_BYTES, form.header_bytes - BTH_BYTES)
        packet.tail = PyBytes_FromStringAndSize(<const char *> payload + form.length + form.tail, -form.tail)
        cdef StreamState stream = form.stream
        if form.request and form.constant == stream.constant:
            if psn == stream.highest and psn == stream.front and stream.jump is None and form.fit == stream.mtu:
                if (stream.lsn < 0 or not form.send) and self._goes_on(stream, packet, payload):
                    stream.history[psn] = packet
                    packet.done = stream.total
                    stream.front = stream.highest = psn + 1 & PSN_MASK
                    if len(stream.history) > self.keep:
                        stream.prune()
                    return True
            judge.request(stream, packet)
        else:
            judge._take(packet, PyBytes_FromStringAndSize(<const char *> payload, form.length))
        return True

    cdef bint _goes_on(self, StreamState stream, SeenState packet, const uint8_t *payload) except -1:
        """Return whether a request of a proved form follows its predecessor and carries the bytes that are left."""
        cdef FormState form = packet.form, old
        cdef long left = stream.left
        cdef PyObject *found = PyDict_GetItemWithError(stream.history, packet.psn - 1 & PSN_MASK)
        if form.start:
            if found != NULL and not (<SeenState> found).form.end:
                return False
            if form.write:
                left = word_at(payload + BTH_BYTES + form.rest_at + 12)
        else:
            if found == NULL or (<SeenState> found).packets != 1:
                return False
            old = (<SeenState> found).form
            if old.end or old.send != form.send or old.write != form.write:
                return False
        if left >= 0 and form.write:
            left -= form.size
            if left < 0 or (form.end and left):
                return False
        if form.end:
            stream.total += 1
            left = -1
        stream.left = left
        return True

    cdef bint _answers(
        self, FormState form, long psn, uint32_t ident, uint32_t word, const uint8_t *payload
    ) except -1:
        """Return whether a response correctly answers a request, with nothing open; if so, process it."""
        cdef StreamState back = form.stream, stream = back.peer
        cdef SeenState sent
        cdef PyObject *found
        cdef uint32_t aeth, syndrome
        cdef long offset, limit, upto = psn + 1 & PSN_MASK
        if stream is None or form.pkey != back.pkey or form.sport != back.response_port:
            return False
        if word & 0x80000000 or form.solicited or stream.front < 0 or not psn - stream.highest & BEHIND:
            return False
        if stream.nak_psn >= 0 or stream.refused_end >= 0 or stream.rnr_psn >= 0 or stream.fatal >= 0:
            return False
        if form.read_response:
            read = stream.reading
            if not form.middle or form.pad or form.size != stream.mtu or read is None:
                return False
            offset = psn - <long> read.first & PSN_MASK
            if offset + 1 >= <long> read.packets or psn in read.starts:
                return False
            if not psn - stream.front & BEHIND:
                return True
            return self._acknowledged(stream, upto, ident)
        if stream.late_start is not None or stream.reads or stream.base < 0:
            return False
        aeth = word_at(payload + BTH_BYTES)
        syndrome = aeth >> 24
        found = PyDict_GetItemWithError(stream.history, psn)
        if syndrome & 0xE0 or found == NULL:
            return False
        sent = <SeenState> found
        if not (sent.form.send or sent.form.write) or sent.done < 0:
            return False
        if (stream.base + sent.done & PSN_MASK) != <long> (aeth & PSN_MASK):
            return False
        if not self._acknowledged(stream, upto, ident):
            return False
        stream.odd_base = -1
        if syndrome == NO_CREDITS:
            stream.lsn = -1
        else:
            limit = (aeth & PSN_MASK) + credits[syndrome] & PSN_MASK
            if stream.lsn < 0 or (limit != stream.lsn and not limit - stream.lsn & BEHIND):
                stream.lsn = limit
        return True

    cdef bint _acknowledged(self, StreamState stream, long upto, uint32_t ident) noexcept:
        """Mark everything before ``upto`` acknowledged if all of it was seen; nothing was refused."""
        cdef long count = upto - stream.acked & PSN_MASK
        if upto != stream.front and not upto - stream.front & BEHIND:
            return False
        if count and not count & BEHIND:
            stream.acked = upto
            stream.response_ident = ident
        return True
