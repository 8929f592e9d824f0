"""Rules of requests: opcode sequence, sizes, PSNs, repetitions, waits (RC and UC)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.judge.stream import KEEP, Ahead, Read, Stream
from rnic.spec.limits import MTU_CODES
from rnic.spec.opcodes import ATOMIC_WRITE, READ_REQUEST
from rnic.spec.psn import PSN_MASK, psn_add, psn_count, psn_diff
from rnic.wire.feth import FETH

if TYPE_CHECKING:
    from rnic.judge.packet import Seen

Report = Callable[["Seen", Stream, str, str], None]

MAX_READ = 1 << 31
RNR_SLACK_NS = 20_000
"""Time by which a retransmission may precede its RNR timer, since capture clocks are coarse."""
_RETH = struct.Struct(">QII")
_VA = struct.Struct(">Q")
_ATOMIC = struct.Struct(">QIQQ")
_COUNTED = 64
"""Idents below this may be indices in a GSO burst, not a count of packets."""
_SWAPPED = 64
"""Largest distance in PSNs of a packet that counts as sent out of order; beyond that its PSN is wrong."""
_BIGGEST = max(MTU_CODES)
_SMALLEST = min(MTU_CODES)


def take_request(report: Report, stream: Stream, packet: Seen) -> None:
    """Judge one request and remember it."""
    psn = packet.psn
    form = packet.form
    row = form.row
    history = stream.history
    if psn != stream.highest or stream.jump is not None:
        if not _displaced(report, stream, packet):
            return
        history = stream.history
    elif psn == stream.front and form.fit == stream.mtu and (stream.lsn < 0 or not row.send):
        before = history.get(psn - 1 & PSN_MASK)
        left = stream.left
        if form.middle and before is not None and before.form is form and (left < 0 or left >= form.size):
            # another MIDDLE after a MIDDLE
            if left > 0:
                stream.left = left - form.size
            simple = True
        else:
            simple = _simply_next(stream, before, packet)
        if simple:
            # the rules below would find nothing
            history[psn] = packet
            packet.done = stream.total
            stream.front = stream.highest = psn + 1 & PSN_MASK
            if len(history) > 2 * KEEP:
                stream.prune()
            return
    if check_form(report, stream, packet) and not row.resource:
        form.fit = stream.mtu
    if row.operation == READ_REQUEST and row.reth:
        packet.packets = _asked(stream, packet)
    elif row.resource and row.reth:
        _ask_for_nothing(stream, packet)
    history[psn] = packet
    _check_neighbours(report, stream, packet)
    if stream.lsn >= 0:
        _check_credits(report, stream, packet)
    end = psn + (packet.packets or 1) & PSN_MASK
    if psn_diff(end, stream.highest) > 0:
        stream.highest = end
    if psn == stream.front:
        advance(report, stream)
    if len(history) > 2 * KEEP:
        stream.prune()


def _simply_next(stream: Stream, before: Seen | None, packet: Seen) -> bool:
    """Return whether a SEND or WRITE of a proved form follows its predecessor and carries the bytes that are left."""
    form = packet.form
    row = form.row
    left = stream.left
    if row.start:
        if before is not None and not before.form.row.end:
            return False
        if row.write:
            left = _RETH.unpack_from(packet.header, row.rest_at)[2]
    else:
        if before is None or before.packets != 1:
            return False
        old = before.form.row
        if old.end or old.send != row.send or old.write != row.write:
            return False
    if left >= 0 and row.write:
        left -= form.size
        if left < 0 or (row.end and left):
            return False
    if row.end:
        stream.total += 1
        left = -1
    stream.left = left
    return True


def _displaced(report: Report, stream: Stream, packet: Seen) -> bool:
    """Check a packet that does not have the next PSN; return whether it is new."""
    psn = packet.psn
    if stream.front < 0:
        _begin(report, stream, psn, packet)
    if not _is_near(stream, psn) and not _leads_back(report, stream, packet):
        return False
    jump, stream.jump = stream.jump, None
    if jump is not None and stream.has_used(jump.psn):
        stream.facts.add("late packets", jump.frame)
        stream.steady = False
    elif jump is not None:
        report(jump, stream, "psn-jump", f"PSN {jump.psn} between PSNs near {stream.highest}")
    if stream.ahead is not None:
        _follow_ahead(report, stream, packet)
    delta = psn_diff(psn, stream.highest)
    known = stream.history.get(psn)
    read = _asked_before(stream, psn) if packet.row.operation == READ_REQUEST and packet.row.reth else None
    if read is not None and (known is None or known.row is packet.row):
        check_form(report, stream, packet)
        _read_again(report, stream, packet, read)
        if known is not None:
            known.refused = False
        return False
    if known is not None:
        check_form(report, stream, packet)
        _repeated(report, stream, packet, known)
        return False
    if delta > 0 and not stream.unknown_span():
        stream.facts.add("gaps", packet.frame)
        _check_gap(report, stream, packet, delta)
    elif delta < 0:
        stream.facts.add("late packets", packet.frame)
        stream.steady = False
    return True


def _is_near(stream: Stream, psn: int) -> bool:
    """Return whether a PSN may be sent: it is near the newest, or not acknowledged, or was sent before.

    One READ may use more PSNs than a stream remembers packets.
    """
    ahead = psn_diff(psn, stream.highest)
    if -KEEP <= ahead <= KEEP or psn in stream.history:
        return True
    return ahead < 0 and (psn_diff(psn, stream.acked) >= 0 or stream.read_at(psn) is not None)


def _check_gap(report: Report, stream: Stream, packet: Seen, delta: int) -> None:
    """Check a gap by the packets before it, if their idents show that they were sent one after the other."""
    last = stream.highest - 1 & PSN_MASK
    read = stream.read_at(last)
    before = stream.history.get(last if read is None else read.first)
    if before is None or psn_add(before.psn, before.packets) != stream.highest or before.repeated:
        return
    stray = stream.pair.stray
    if stray is not None and delta == 1 and stray.form.stream is not stream and stray.psn == stream.highest:
        if before.frame < stray.frame < packet.frame and not stray.row.start and not before.row.end:
            detail = f"{stray.row.name} with PSN {stray.psn}, which {stream.name} lacks"
            report(stray, stray.form.stream, "queue-pair", detail)
        stream.pair.stray = None
    counted = before.ident >= _COUNTED and packet.ident == before.ident + 1
    begins = delta > _SWAPPED and before.row.end and packet.row.start and not packet.row.end
    if (counted or begins) and stream.ahead is None:
        stream.ahead = Ahead(before, packet)


def _follow_ahead(report: Report, stream: Stream, packet: Seen) -> None:
    """Check whether the packet after an early one is the expected one, with the next ident."""
    ahead = stream.ahead
    assert ahead is not None
    if packet.psn == ahead.packet.psn:
        stream.ahead = None  # the missing packet was retransmitted, and so are those after it
        return
    if ahead.back is not None:
        finish_order(report, stream)
        return
    psn = psn_add(ahead.before.psn, ahead.before.packets)
    far = psn_diff(ahead.packet.psn, psn) > _SWAPPED
    # far ahead, it may also replace the expected packet: then its message continues after that
    instead = far and packet.psn == psn_add(psn, ahead.packet.packets)
    idents = ahead.before.ident, ahead.packet.ident, packet.ident
    counted = idents[0] >= _COUNTED and idents == (idents[0], idents[0] + 1, idents[0] + 2)
    goes_on = instead and _follows(ahead.packet, packet) and not ahead.packet.row.end
    refused = stream.nak_psn in (psn, packet.psn)
    if refused or not (goes_on or (counted and (instead or packet.psn == psn))):
        stream.ahead = None
        return
    ahead.back = packet
    if far:
        finish_order(report, stream)
        # not expected there: the stream continues after the packet before it
        stream.history.pop(ahead.packet.psn, None)
        stream.highest = psn


def finish_order(report: Report, stream: Stream) -> None:
    """Report packets that were sent in the wrong order, unless one was retransmitted since."""
    ahead, stream.ahead = stream.ahead, None
    if ahead is None or ahead.back is None or ahead.packet.repeated or ahead.back.repeated:
        return
    detail = f"PSN {ahead.packet.psn} was sent between {ahead.before.psn} and {ahead.back.psn}"
    if ahead.before.ident:
        detail += f" (idents {ahead.before.ident} to {ahead.back.ident})"
    report(ahead.packet, stream, "psn-order", detail)


def _begin(report: Report, stream: Stream, psn: int, packet: Seen) -> None:
    """Start a stream or a connection with its first request."""
    if stream.expected_psn >= 0:
        stream.base = 0
        delta = psn_diff(psn, stream.expected_psn)
        if 0 < delta <= KEEP:
            # the capture may lack the first requests: the MSN of the first ACK tells
            stream.late_start = packet
            stream.front = stream.highest = stream.acked = stream.oldest = stream.expected_psn
            return
        if delta:
            first_psn_is_wrong(report, stream, packet)
    stream.front = stream.highest = stream.acked = stream.oldest = psn


def first_psn_is_wrong(report: Report, stream: Stream, packet: Seen) -> None:
    """Report that a connection began with another PSN than agreed; the peer's message count is unknown."""
    report(packet, stream, "first-psn", f"PSN {packet.psn}; connection management said {stream.expected_psn}")
    stream.base = -1


def _leads_back(report: Report, stream: Stream, packet: Seen) -> bool:
    """Return whether to accept a PSN far from all others: one is wrong, two in a row are a new connection on the same
    QPNs."""
    jump = stream.jump
    if jump is not None and _begin_connection(stream, jump, packet):
        stream.forget()
        stream.facts.add("new connections on used numbers", packet.frame)
        _begin(report, stream, jump.psn, jump)
        take_request(report, stream, jump)
        return True
    stream.jump = packet
    stream.pair.stray = packet
    return False


def _begin_connection(stream: Stream, jump: Seen, packet: Seen) -> bool:
    """Return whether two packets begin a connection. PSNs that were used before are more likely late packets."""
    apart = psn_diff(packet.psn, jump.psn)
    if stream.has_used(jump.psn) and jump.row.operation != READ_REQUEST:
        return jump.row.start and 0 <= apart <= 1
    return 0 <= apart <= KEEP


# ------------------------------------------------------------------------------------- the packet by itself


def check_form(report: Report, stream: Stream, packet: Seen) -> bool:
    """Check sizes, padding, solicited bit and extended headers; return whether all are correct."""
    fine = True
    row = packet.row
    size = packet.size
    if row.send or row.write:
        mtu = stream.mtu
        if not row.end:
            if packet.pad:
                fine = False
                report(packet, stream, "pad", f"{packet.pad} bytes of padding in {row.name}")
            if not mtu:
                if size not in MTU_CODES:
                    fine = False
                    report(packet, stream, "size", f"{row.name} carries {size} bytes, which is not a path MTU")
                else:
                    learn_mtu(report, stream, size)
            elif size != mtu:
                fine = False
                report(packet, stream, "size", f"{row.name} carries {size} bytes; the path MTU is {mtu}")
        elif size > (mtu or _BIGGEST) or (not row.start and not size):
            fine = False
            report(packet, stream, "size", f"{row.name} carries {size} bytes; the path MTU is {mtu or 'at most 4096'}")
    if packet.solicited and not (row.end and (row.send or row.immdt)):
        fine = False
        report(packet, stream, "solicited", f"{row.name} is solicited")
    if row.operation == ATOMIC_WRITE and row.reth:
        va, _, length = _RETH.unpack_from(packet.header, row.rest_at)
        if va & 7:
            fine = False
            report(packet, stream, "atomic-aligned", f"address {va:#x}")
        if not size == length == 8:
            fine = False
            report(packet, stream, "size", f"{row.name} carries {size} bytes of {length}; it has 8")
    if row.atomiceth and _VA.unpack_from(packet.header, row.rest_at)[0] & 7:
        fine = False
        report(packet, stream, "atomic-aligned", f"address {_VA.unpack_from(packet.header, row.rest_at)[0]:#x}")
    if row.operation == READ_REQUEST and row.reth:
        length = _RETH.unpack_from(packet.header, packet.row.rest_at)[2]
        if length > MAX_READ:
            fine = False
            report(packet, stream, "read-length", f"{length} bytes")
    return fine


def learn_mtu(report: Report, stream: Stream, mtu: int) -> None:
    """Set the path MTU, and compute the PSN spans of READs that wait for it."""
    stream.mtu = mtu
    for read in tuple(stream.reads):
        if read in stream.reads and not read.packets:
            learn_span(report, stream, read, psn_count(read.length, mtu))
            _take_back_parts(stream, read)


def learn_span(report: Report, stream: Stream, read: Read, packets: int) -> None:
    """Set the number of PSNs that a READ uses."""
    read.packets = packets
    stream.reading = None
    sent = stream.history.get(read.first)
    if sent is not None:
        sent.packets = packets
    end = psn_add(read.first, packets)
    if psn_diff(end, stream.highest) > 0:
        stream.highest = end
    advance(report, stream)


def _take_back_parts(stream: Stream, read: Read) -> None:
    """Find the READs that only repeated a part of ``read``, now that its span is known."""
    for part in tuple(stream.reads):
        skipped = psn_diff(part.first, read.first)
        if 0 < skipped < read.packets and part.va == read.va + skipped * stream.mtu and part.rkey == read.rkey:
            stream.reads.remove(part)
            stream.history.pop(part.first, None)
            read.starts.add(part.first)


# ------------------------------------------------------------------------------------------ READs and their PSNs


def _asked(stream: Stream, packet: Seen) -> int:
    """Remember a READ; return the PSNs that it uses, 0 while the path MTU is unknown."""
    va, rkey, length = _RETH.unpack_from(packet.header, packet.row.rest_at)
    packets = psn_count(length, stream.mtu) if stream.mtu else 1 if length <= _SMALLEST else 0
    stream.reading = None
    continues = stream.expected_psn < 0 and not stream.history
    stream.reads.append(Read(packet.psn, packets, va, rkey, length, continues=continues))
    return packets


def _ask_for_nothing(stream: Stream, packet: Seen) -> None:
    """Remember a FLUSH or an ATOMIC WRITE, whose answer is a READ response without payload."""
    va, rkey, _ = _RETH.unpack(packet.header[-_RETH.size :])
    stream.reading = None
    stream.reads.append(Read(packet.psn, 1, va, rkey, 0))


def _asked_before(stream: Stream, psn: int) -> Read | None:
    """Return the READ that ``psn`` belongs to, even if its span is unknown."""
    unknown = (read for read in reversed(stream.reads) if not read.packets and read.first == psn)
    return stream.read_at(psn) or next(unknown, None)


def _read_again(report: Report, stream: Stream, packet: Seen, read: Read) -> None:
    """Check a repeated READ, which may ask for a part of the first one only (IBA 9.4.4)."""
    stream.facts.add("repeated packets", packet.frame)
    stream.steady = False
    va, rkey, length = _RETH.unpack_from(packet.header, packet.row.rest_at)
    done = psn_diff(packet.psn, read.first) * stream.mtu
    if va != read.va + done or rkey != read.rkey or length > read.length - done:
        expected = f"{read.length - done} bytes at {read.va + done:#x}, key {read.rkey:#x}"
        report(packet, stream, "read-retry", f"{length} bytes at {va:#x}, key {rkey:#x}; the rest is {expected}")
        return
    read.starts.add(packet.psn)
    count = psn_count(length, stream.mtu or _BIGGEST)
    if stream.nak_psn >= 0 and 0 <= psn_diff(stream.nak_psn, packet.psn) < count:
        stream.nak_psn = -1  # the READ is repeated from the PSN that the NAK named
    if length < read.length - done:
        read.ends.add(psn_add(packet.psn, count - 1))


# ------------------------------------------------------------------------------------------------ retransmissions


def _repeated(report: Report, stream: Stream, packet: Seen, known: Seen) -> None:
    """Check a packet whose PSN was used before."""
    stream.facts.add("repeated packets", packet.frame)
    stream.steady = False
    known.refused = False
    if (known.row, known.size, known.header) != (packet.row, packet.size, packet.header):
        before = f"{_words(known)} in frame {known.frame}"
        report(packet, stream, "repeat", f"PSN {packet.psn}: {_words(packet)}, but {before}")
    elif known.carries_other_bytes(packet):
        report(packet, stream, "repeat-payload", f"PSN {packet.psn} had other bytes in frame {known.frame}")
    # a duplicate by the network is equal in every bit, and says nothing about the sender
    if packet.psn == stream.rnr_psn and packet.ident != known.ident:
        early = stream.rnr_until - packet.time_ns
        if early > RNR_SLACK_NS:
            report(packet, stream, "rnr-wait", f"PSN {packet.psn} again {early / 1000:.0f} us too early")
        stream.rnr_psn = -1
    known.repeated_with(packet.ident)


def _words(packet: Seen) -> str:
    """Return a request as text for findings, with the fields that identify it."""
    row = packet.row
    words = row.name
    if row.operation == READ_REQUEST and row.reth:
        va, rkey, length = _RETH.unpack_from(packet.header, row.rest_at)
        return f"{words} for {length} bytes at {va:#x}, key {rkey:#x}"
    if row.atomiceth:
        va, rkey, swap, compare = _ATOMIC.unpack_from(packet.header, row.rest_at)
        return f"{words} at {va:#x}, key {rkey:#x}, {swap:#x}, {compare:#x}"
    words += f" of {packet.size} bytes"
    if row.reth:
        va, rkey, length = _RETH.unpack_from(packet.header, row.rest_at + (FETH.size if row.feth else 0))
        words += f" {'at' if row.feth else 'to'} {va:#x}, key {rkey:#x}, {length} in all"
    if row.immdt or row.ieth:
        words += f", word {packet.header[-4:].hex()}"
    return words


# ------------------------------------------------------------------------------------ the packet and its neighbors


def _check_neighbours(report: Report, stream: Stream, packet: Seen) -> None:
    """Check that a packet fits its known neighbors in PSN order."""
    psn, row = packet.psn, packet.row
    before = stream.history.get(psn - 1 & PSN_MASK)
    if before is not None and before.packets == 1 and not _follows(before, packet):
        report(packet, stream, "sequence", f"{row.name} follows {before.row.name} (frame {before.frame})")
    elif before is None and not row.start:
        read = stream.read_at(psn - 1 & PSN_MASK)
        if read is not None:
            report(packet, stream, "sequence", f"{row.name} follows a READ")
    behind = stream.history.get(psn + 1 & PSN_MASK)
    if behind is not None and packet.packets == 1 and not _follows(packet, behind):
        report(behind, stream, "sequence", f"{behind.row.name} follows {row.name} (frame {packet.frame})")


def _follows(before: Seen, packet: Seen) -> bool:
    old, new = before.row, packet.row
    if old.end:
        return new.start
    return not new.start and old.send == new.send and old.write == new.write


def advance(report: Report, stream: Stream) -> None:
    """Move ``front`` over known packets; count messages and the bytes of WRITEs."""
    history = stream.history
    psn = stream.front
    while (sent := history.get(psn)) is not None and sent.packets:
        row = sent.row
        if row.write:
            if row.reth:
                stream.left = _RETH.unpack_from(sent.header, sent.row.rest_at)[2]
            if stream.left >= 0:
                stream.left -= sent.size
                if (stream.left < 0) or (row.end and stream.left):
                    more = f"{-stream.left} bytes more" if stream.left < 0 else f"{stream.left} bytes fewer"
                    report(sent, stream, "dma-length", f"{row.name}: {more} than its RETH says")
                    stream.left = -1
        if row.end:
            stream.total += 1
            stream.left = -1
        sent.done = stream.total
        psn = psn + sent.packets & PSN_MASK
    stream.front = psn


def _check_credits(report: Report, stream: Stream, packet: Seen) -> None:
    """Check that without a credit at most one packet probes for one (IBA 9.7.7.2)."""
    row = packet.row
    if stream.base < 0 or not row.send or stream.front != packet.psn:
        return
    ssn = stream.base + stream.total + 1 & PSN_MASK
    if psn_diff(ssn, stream.lsn) <= 0:
        return
    if stream.limited >= 0 and psn_diff(stream.acked, stream.limited) <= 0:
        report(packet, stream, "credits", f"message {ssn}; credits end at {stream.lsn}, and one packet probes already")
    stream.limited = packet.psn
