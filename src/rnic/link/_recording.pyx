# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled part of rnic.link.recording: the pcapng blocks of bursts of IPv4 packets, and the records of programs' rings."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcmp, memcpy, memset, strerror

from rnic.state import capture_ring

cdef extern from "<sys/uio.h>" nogil:
    ctypedef ssize_t ssize_t
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t writev(int fd, const iovec *pieces, int count)

DEF BLOCK_HEAD = 28
DEF ENHANCED_PACKET = 6
DEF HEADERS = 28  # of IPv4 and UDP
DEF BURST_MAX = 272  # packets of a burst: an engine makes no more
DEF PACKET_MAX = 0xFFFF - 28  # bytes of a UDP payload that fit an IPv4 packet
DEF NAME_BYTES = 28  # of a raw socket address
DEF HEADS = 64  # paths that are remembered
DEF PIECES = 1024  # that the system writes at once
DEF CHUNK = 1 << 18  # bytes of blocks that are copied before they are written: they stay in the processor's cache
DEF DUE = 1 << 19  # bytes that are written together
DEF COPIES_MAX = 512  # a piece of its own takes as long as a copy of this many bytes
DEF COPIES_ALL = 0xFFFFFFFF


cdef inline void put32(unsigned char *to, uint32_t value) noexcept nogil:
    to[0], to[1], to[2], to[3] = value & 0xFF, value >> 8 & 0xFF, value >> 16 & 0xFF, value >> 24


cdef inline void put16(unsigned char *to, uint32_t value) noexcept nogil:
    """Network order."""
    to[0], to[1] = value >> 8 & 0xFF, value & 0xFF


cdef void put_headers(unsigned char *ip, uint32_t size, uint32_t ident) noexcept nogil:
    """Fill in lengths, ident and checksum."""
    cdef uint32_t total = 0
    cdef int at
    put16(ip + 2, size + HEADERS)
    put16(ip + 4, ident & 0xFFFF)
    put16(ip + 10, 0)
    for at in range(0, 20, 2):
        total += ip[at] << 8 | ip[at + 1]
    total = (total & 0xFFFF) + (total >> 16)
    put16(ip + 10, ~(total + (total >> 16)) & 0xFFFF)
    put16(ip + 24, size + 8)


cdef struct Burst:
    uint64_t time_ns
    size_t length
    size_t segment
    size_t stride  # at most a segment
    size_t head_bytes


cdef inline size_t block_bytes(size_t part) noexcept nogil:
    return (part + 3 & ~<size_t> 3) + BLOCK_HEAD + 4


cdef inline size_t packets_of(const Burst *burst) noexcept nogil:
    return (burst.length + burst.segment - 1) // burst.segment


cdef class Blocks:
    """Blocks that wait to be written.

    The bytes of long packets stay in the ring that they came by: the system copies them from there. All else of a block is
    in ``bytes``, so that no program can change it.
    """

    cdef unsigned char *bytes
    cdef size_t room, used
    cdef iovec pieces[PIECES]
    cdef Py_ssize_t count
    cdef readonly size_t size
    cdef readonly size_t packets

    def __dealloc__(self):
        free(self.bytes)

    def clear(self):
        """Forget all blocks."""
        self.used = self.size = self.packets = 0
        self.count = 0

    cdef bint is_due(self) noexcept nogil:
        """Return whether it is time to write them."""
        return self.size > DUE or self.used > CHUNK - (1 << 16)

    @property
    def due(self):
        """Return whether it is time to write them."""
        return self.is_due()

    def put(
        self, uint64_t time_ns, bytes head not None, const unsigned char[::1] kept not None, size_t length, size_t segment,
        size_t stride, list idents
    ):
        """Add the blocks of a burst's packets; return whether there is room.

        Args:
            time_ns: their time.
            head: frame up to the UDP payload, whose IPv4 and UDP headers get lengths, ident and checksum.
            kept: of each packet the first ``stride`` bytes, back to back.
            length: bytes of the burst.
            segment: bytes of each packet but the last.
            stride: at most ``segment``.
            idents: of each packet; ``None`` where they count from 0.
        """
        if not length or not segment or not 0 < stride <= segment or <size_t> len(head) < HEADERS:
            raise ValueError("no such burst")
        cdef Burst burst = Burst(time_ns, length, segment, stride, <size_t> len(head))
        cdef size_t count = packets_of(&burst), last = length - (count - 1) * segment, index
        cdef uint16_t given[BURST_MAX]
        if idents is not None and (<size_t> len(idents) < count or count > BURST_MAX):
            raise ValueError("no such burst")
        if <size_t> kept.shape[0] < (count - 1) * stride + min(stride, last):
            raise ValueError("no such burst")
        if idents is not None:
            for index in range(count):
                given[index] = <uint16_t> (<size_t> idents[index] & 0xFFFF)
        return self.add(
            &burst, <const unsigned char *> PyBytes_AS_STRING(head), &kept[0], NULL if idents is None else given, COPIES_ALL
        )

    cdef bint add(
        self, const Burst *burst, const unsigned char *head, const unsigned char *kept, const uint16_t *idents, size_t copies
    ) except -1:
        """Add the blocks of a burst, and copy packets of which no more than ``copies`` bytes are kept."""
        cdef size_t count = packets_of(burst), part = burst.head_bytes + (burst.stride if burst.stride <= copies else 0)
        cdef size_t needed = count * (block_bytes(part) + 4) + min(burst.stride, copies)  # the last packet may be short
        cdef void *larger
        if 2 * count + 1 > <size_t> (PIECES - self.count) or needed > self.room - self.used:
            if self.size:
                return False
            larger = realloc(self.bytes, max(<size_t> CHUNK, needed))
            if larger == NULL:
                raise MemoryError
            self.bytes, self.room = <unsigned char *> larger, max(<size_t> CHUNK, needed)
        self.put_blocks(burst, head, kept, idents, copies)
        self.packets += count
        return True

    cdef void put_blocks(
        self, const Burst *burst, const unsigned char *head, const unsigned char *payload, const uint16_t *idents, size_t copies
    ) noexcept nogil:
        cdef size_t index, kept, part, size, block, left = burst.length
        cdef unsigned char *to
        for index in range(packets_of(burst)):
            size = min(burst.segment, left)
            left -= size
            kept = min(burst.stride, size)
            part = burst.head_bytes + kept
            block = block_bytes(part)
            to = self.bytes + self.used
            put32(to, ENHANCED_PACKET)
            put32(to + 4, <uint32_t> block)
            put32(to + 8, 0)
            put32(to + 12, <uint32_t> (burst.time_ns >> 32))
            put32(to + 16, <uint32_t> burst.time_ns)
            put32(to + 20, <uint32_t> part)
            put32(to + 24, <uint32_t> (burst.head_bytes + size))
            memcpy(to + BLOCK_HEAD, head, burst.head_bytes)
            put_headers(to + BLOCK_HEAD + burst.head_bytes - HEADERS, <uint32_t> size, <uint32_t> (idents[index] if idents else index))
            to += BLOCK_HEAD + burst.head_bytes
            if kept <= copies:
                memcpy(to, payload, kept)
                to += kept
            else:
                self.own(to)
                self.pieces[self.count] = iovec(<void *> payload, kept)
                self.count += 1
            memset(to, 0, block - 4 - BLOCK_HEAD - part)
            to += block - 4 - BLOCK_HEAD - part
            put32(to, <uint32_t> block)
            self.own(to + 4)
            self.size += block
            payload += kept

    cdef void own(self, unsigned char *end) noexcept nogil:
        """Have the bytes up to ``end`` follow."""
        cdef unsigned char *start = self.bytes + self.used
        cdef iovec *last = &self.pieces[self.count - 1]
        if self.count and <unsigned char *> last.iov_base + last.iov_len == start:
            last.iov_len += end - start
        else:
            self.pieces[self.count] = iovec(start, <size_t> (end - start))
            self.count += 1
        self.used = end - self.bytes

    def write(self, int fd):
        """Write all to a file; return how many bytes it took.

        Raises:
            OSError: it takes none.
        """
        cdef ssize_t taken
        cdef int failed = EINTR
        with nogil:
            while failed == EINTR:
                taken = writev(fd, self.pieces, <int> self.count)
                failed = errno if taken < 0 else 0
        if failed and failed != EAGAIN:
            raise OSError(failed, strerror(failed).decode())
        return max(taken, 0)

    def after(self, size_t taken):
        """Return the bytes behind the first ``taken``."""
        cdef size_t at = 0, skipped
        cdef Py_ssize_t index
        rest = bytearray()
        for index in range(self.count):
            skipped = min(self.pieces[index].iov_len, taken - min(at, taken))
            rest += (<unsigned char *> self.pieces[index].iov_base)[skipped:self.pieces[index].iov_len]
            at += self.pieces[index].iov_len
        return bytes(rest)


cdef struct Record:  # rnic.state.capture_ring.CAPTURE_RECORD
    uint64_t size
    uint64_t kind
    uint64_t time_ns
    uint64_t length
    uint64_t segment
    uint64_t label
    uint64_t tclass
    uint64_t hop_limit
    uint64_t name_bytes
    uint64_t source_port
    unsigned char name[32]


cdef struct Entry:
    Record record
    const unsigned char *page
    uint64_t at  # of its packets, in the page
    uint64_t end  # position in the ring behind it
    uint64_t order
    uint32_t ring


cdef uint64_t RECORDS_AT = capture_ring.AT, RING_BYTES = capture_ring.BYTES, RECORD_BYTES = capture_ring.CAPTURE_RECORD.size
cdef uint64_t NO_PACKETS = capture_ring.PADDING, FROM_PEER = capture_ring.RECEIVED, LAST_KIND = FROM_PEER
if capture_ring.CAPTURE_RECORD["name_0"].byte != 80 or RECORD_BYTES < sizeof(Record) or RING_BYTES & RING_BYTES - 1:
    raise ImportError("the records of capture rings have another layout")


cdef enum:  # rnic.link.recording.Reason
    DONE, LATER, FULL, UNKNOWN


cdef int compare(const void *one, const void *other) noexcept nogil:
    cdef const Entry *first = <const Entry *> one
    cdef const Entry *second = <const Entry *> other
    if first.record.time_ns != second.record.time_ns:
        return -1 if first.record.time_ns < second.record.time_ns else 1
    return -1 if first.order < second.order else 1


cdef bint is_burst(const Record *record, size_t snap) noexcept nogil:
    """Return whether an engine may have written a record."""
    if not 0 < record.segment <= record.length or record.segment > PACKET_MAX or record.length > record.segment * BURST_MAX:
        return False
    if record.tclass > 0xFF or record.hop_limit > 0xFF or record.label > 0xFFFFF or record.time_ns >> 63:
        return False
    cdef uint64_t stride = min(<uint64_t> snap, record.segment), count = (record.length + record.segment - 1) // record.segment
    return record.size == (count - 1) * stride + min(stride, record.length - (count - 1) * record.segment)


cdef class Records:
    """Records that were found in rings, in the order of time once they are sorted.

    A record is copied before it is checked. Its packets stay in the ring, where its program may still change them: they are copied
    once, and never looked at.

    Args:
        snap: maximum number of bytes of a packet that are kept.
    """

    cdef Entry *entries
    cdef Py_ssize_t count, room, next, written
    cdef size_t snap
    cdef Record known[HEADS]  # of each remembered path, with its ring's number as kind
    cdef list heads

    def __init__(self, size_t snap):
        if not snap:
            raise ValueError("a snap length is at least 1")
        self.snap = snap
        self.heads = [None] * HEADS

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    @property
    def latest_ns(self):
        """Return the time of the latest record; 0 if there is none."""
        cdef uint64_t latest = 0
        cdef Py_ssize_t index
        for index in range(self.count):
            latest = max(latest, self.entries[index].record.time_ns)
        return latest

    def scan(
        self, uint32_t ring, const unsigned char[::1] page not None, uint64_t tail, uint64_t head, uint64_t before_ns, size_t most,
        bint keep
    ):
        """Find a ring's records from ``tail`` on. Return where the rest begins, and whether the ring is broken there.

        Args:
            ring: the caller's number of it.
            page: its memory, which stays where it is until :meth:`clear`.
            tail: position of the first record.
            head: position behind the last.
            before_ns: the first later record ends it.
            most: packets after which it ends.
            keep: false to pass over all records.
        """
        cdef Entry *entry
        cdef uint64_t offset, room
        cdef size_t packets = 0
        if <uint64_t> page.shape[0] != RECORDS_AT + RING_BYTES:
            raise ValueError("no such ring")
        if tail > head or head - tail > RING_BYTES or tail % RECORD_BYTES:
            return tail, True
        while tail < head and packets < most:
            entry = self.append()
            offset = RECORDS_AT + tail % RING_BYTES
            memcpy(&entry.record, &page[0] + offset, sizeof(Record))
            if entry.record.size > RING_BYTES or entry.record.kind > LAST_KIND:
                return tail, True
            room = (entry.record.size + 2 * RECORD_BYTES - 1) // RECORD_BYTES * RECORD_BYTES
            if room > head - tail or tail % RING_BYTES + room > RING_BYTES:
                return tail, True
            if entry.record.kind != NO_PACKETS and entry.record.time_ns > before_ns:
                break
            tail += room
            if keep and entry.record.kind != NO_PACKETS and is_burst(&entry.record, self.snap):
                packets += (entry.record.length + entry.record.segment - 1) // entry.record.segment
                entry.page, entry.at, entry.end, entry.ring = &page[0], offset + RECORD_BYTES, tail, ring
                entry.order = self.count
                self.count += 1
        return tail, False

    cdef Entry *append(self) except NULL:
        """Return the entry behind the last."""
        cdef Py_ssize_t room
        cdef void *larger
        if self.count == self.room:
            room = max(64, 2 * self.room)
            larger = realloc(self.entries, <size_t> room * sizeof(Entry))
            if larger == NULL:
                raise MemoryError
            self.entries, self.room = <Entry *> larger, room
        return &self.entries[self.count]

    def sort(self):
        """Bring the records into the order of time."""
        qsort(self.entries, <size_t> self.count, sizeof(Entry), compare)

    def clear(self):
        """Forget the records."""
        self.count = self.next = self.written = 0

    cdef Py_ssize_t bucket(self, const Entry *entry, Record *path) noexcept:
        """Describe an entry's path, and return its place among those remembered."""
        cdef uint64_t mixed = 0
        cdef int at
        path[0] = entry.record
        path.size = path.time_ns = path.length = path.segment = 0
        path.kind = entry.ring
        for at in range(0, 32):
            mixed = mixed * 31 + path.name[at]
        return <Py_ssize_t> ((mixed * 31 + path.source_port * 7 + path.kind) % HEADS)

    def fill(self, Blocks blocks not None, uint64_t until_ns):
        """Add the blocks of the next records; return why no more.

        Args:
            blocks: gets them. It is to be written or cleared before the rings' memory changes.
            until_ns: time of the last record.
        """
        cdef const Entry *entry
        cdef Record path
        cdef Burst burst
        cdef Py_ssize_t place
        cdef bytes head
        while self.next < self.count:
            entry = &self.entries[self.next]
            if entry.record.time_ns > until_ns:
                return LATER
            if blocks.is_due():
                return FULL
            place = self.bucket(entry, &path)
            head = self.heads[place]
            if not head or entry.record.kind == FROM_PEER or memcmp(&path, &self.known[place], sizeof(Record)):
                return UNKNOWN
            burst = Burst(
                entry.record.time_ns, entry.record.length, entry.record.segment, min(self.snap, entry.record.segment), <size_t> len(head)
            )
            if not blocks.add(&burst, <const unsigned char *> PyBytes_AS_STRING(head), entry.page + entry.at, NULL, COPIES_MAX):
                return FULL
            self.next += 1
        return DONE

    def learn(self, bytes head not None):
        """Remember the headers of the next record's path: frame up to the UDP payload, for packets that were sent."""
        if self.next >= self.count or len(head) < HEADERS:
            raise ValueError("no such path")
        cdef Py_ssize_t place
        cdef Record path
        place = self.bucket(&self.entries[self.next], &path)
        self.known[place] = path
        self.heads[place] = head

    def take(self):
        """Take the next record from those to fill.

        Returns:
            Its ring's number, kind, time, length, segment, flow label, traffic class, hop limit, socket address and source port;
            then where its packets lie in the ring's page, and their bytes.
        """
        if self.next >= self.count:
            raise IndexError("no record is left")
        cdef const Entry *entry = &self.entries[self.next]
        cdef const Record *record = &entry.record
        self.next += 1
        return (
            entry.ring, record.kind, record.time_ns, record.length, record.segment, record.label, record.tclass, record.hop_limit,
            record.name[:min(record.name_bytes, <uint64_t> NAME_BYTES)], record.source_port, entry.at, record.size
        )

    def peek(self):
        """Return what :meth:`take` returns, and leave it."""
        taken = self.take()
        self.next -= 1
        return taken

    def free_ends(self):
        """Return the position behind the last record that was filled or taken, for each ring, since the last call."""
        ends = {}
        cdef const Entry *entry
        while self.written < self.next:
            entry = &self.entries[self.written]
            ends[entry.ring] = max(entry.end, ends.get(entry.ring, 0))
            self.written += 1
        return ends
