"""Rules of responses to requests (RC)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.judge.packet import ACK_REQUEST
from rnic.judge.requests import Report, advance, first_psn_is_wrong, learn_mtu, learn_span
from rnic.judge.stream import KEEP, Read, Stream
from rnic.spec.limits import MTU_CODES
from rnic.spec.opcodes import READ_REQUEST
from rnic.spec.psn import PSN_MASK, psn_add, psn_diff
from rnic.spec.syndromes import (
    AETH_ACK,
    AETH_NAK,
    AETH_RESERVED,
    AETH_RNR_NAK,
    AETH_TYPE_MASK,
    AETH_VALUE_MASK,
    CREDIT_COUNTS,
    CREDITS_INVALID,
    NAK_INVALID_RD_REQUEST,
    NAK_NAMES,
    NAK_PSN_SEQUENCE,
    rnr_timer_ns,
)

if TYPE_CHECKING:
    from rnic.judge.packet import Seen

_AETH = struct.Struct(">I")
_ATOMIC = struct.Struct(">IQ")
ANSWERED_UNSEEN = "answered, not in the capture"
"""Fact: a response whose request the capture may lack."""
_BEHIND = 1 << 23
"""Sign bit of a PSN difference: set if the first PSN precedes the second."""


def take_response(report: Report, stream: Stream, packet: Seen, early: bool) -> None:
    """Judge one response to the requests of ``stream``; ``early`` is the result of :func:`unsent`."""
    form = packet.form
    row = form.row
    if packet.word & ACK_REQUEST or form.solicited:
        report(packet, stream, "response-bits", f"{row.name} has {'AckReq' if packet.ackreq else 'SE'} set")
    if stream.front < 0:
        return
    if early:
        if stream.incomplete():
            stream.facts.add(ANSWERED_UNSEEN, packet.frame)
        else:
            report(
                packet, stream, "ack-unsent", f"{row.name} for PSN {packet.psn}; {stream.highest} is next to be sent"
            )
        return
    if row.read_response:
        _read_response(report, stream, packet)
    elif row.atomicacketh:
        _atomic_acknowledge(report, stream, packet)
    else:
        _acknowledge(report, stream, packet)


def unsent(stream: Stream, psn: int) -> bool:
    """Return whether no request with this PSN or a later one has been seen."""
    if psn - stream.highest & _BEHIND or stream.front < 0:
        return False
    return not stream.in_unknown_read(psn)


# --------------------------------------------------------------------------------------------- ACK, NAK, RNR NAK


def _acknowledge(report: Report, stream: Stream, packet: Seen) -> None:
    (aeth,) = _AETH.unpack_from(packet.header)
    syndrome, msn = aeth >> 24, aeth & PSN_MASK
    kind = syndrome & AETH_TYPE_MASK
    psn = packet.psn
    sent = stream.history.get(psn)
    if syndrome & 0x80 or kind == AETH_RESERVED or (kind == AETH_NAK and syndrome > NAK_INVALID_RD_REQUEST):
        report(packet, stream, "syndrome", f"syndrome {syndrome:#04x}")
        return
    if stream.late_start is not None:
        _check_start(report, stream, packet, kind, msn)
    if kind == AETH_ACK:
        _check_ack(report, stream, packet, sent)
        _check_msn(report, stream, packet, msn, sent)
        take_credits(stream, syndrome, msn)
        acknowledged(report, stream, packet, psn_add(psn, 1))
        return
    if psn_diff(psn, stream.acked) < 0:
        if _sent_later(packet, stream.response_ident):
            report(packet, stream, "nak-acked", f"NAK {syndrome:#04x} for PSN {psn}; {stream.acked} is the oldest open")
        else:
            stream.facts.add("late responses", packet.frame)
        return
    fatal = kind == AETH_NAK and syndrome != NAK_PSN_SEQUENCE
    # a READ may count in the MSN as soon as it begins, and fail after that
    if not (fatal and sent is not None and sent.row.operation == READ_REQUEST):
        _check_msn(report, stream, packet, msn, stream.history.get(psn - 1 & PSN_MASK))
    acknowledged(report, stream, packet, psn)
    if kind == AETH_RNR_NAK:
        _not_ready(report, stream, packet, syndrome, sent)
    elif syndrome == NAK_PSN_SEQUENCE:
        _out_of_sequence(report, stream, packet, sent)
    else:
        stream.facts.add(f"NAK: {NAK_NAMES[syndrome]}", packet.frame)
        stream.fatal = psn


def _check_start(report: Report, stream: Stream, packet: Seen, kind: int, msn: int) -> None:
    """Check the first answer to a stream that began late: if earlier requests were sent, the peer's MSN has counted
    them."""
    first, stream.late_start = stream.late_start, None
    assert first is not None
    seen = psn_diff(packet.psn, first.psn)
    if kind != AETH_ACK or not first.row.start or not 0 <= seen < KEEP:
        return
    sent = [stream.history.get(first.psn + index & PSN_MASK) for index in range(seen + 1)]
    if all(each is not None and each.packets == 1 for each in sent) and msn == sum(
        each.row.end for each in sent if each
    ):
        first_psn_is_wrong(report, stream, first)
        stream.front = stream.acked = first.psn
        advance(report, stream)


def _check_ack(report: Report, stream: Stream, packet: Seen, sent: Seen | None) -> None:
    psn = packet.psn
    if stream.fatal >= 0 and psn_diff(psn, stream.fatal) >= 0:
        report(packet, stream, "ack-after-error", f"ACK of PSN {psn} after a fatal NAK of PSN {stream.fatal}")
    read = stream.read_at(psn) if sent is None or (sent.row.resource and not sent.row.atomic) else None
    waits = read is not None and not read.answered
    waits = waits or (sent is not None and sent.row.atomic and psn not in stream.atomics)
    # a duplicate request is answered with the newest PSN, of whatever request that is
    if waits and stream.steady:
        report(packet, stream, "read-as-ack", f"ACK of PSN {psn}, which asks for data")


def _not_ready(report: Report, stream: Stream, packet: Seen, syndrome: int, sent: Seen | None) -> None:
    stream.facts.add("RNR NAKs", packet.frame)
    if sent is not None and not sent.row.send and not (sent.row.write and sent.row.immdt):
        report(packet, stream, "rnr-kind", f"RNR NAK of PSN {packet.psn}, a {sent.row.name}")
    stream.rnr_psn = packet.psn
    stream.rnr_until = packet.time_ns + rnr_timer_ns(syndrome & AETH_VALUE_MASK)


def _out_of_sequence(report: Report, stream: Stream, packet: Seen, sent: Seen | None) -> None:
    """Process a sequence NAK. If the capture lacks its PSN, all captured packets after it were refused."""
    psn = packet.psn
    stream.facts.add("sequence NAKs", packet.frame)
    if sent is None:
        if stream.nak_psn == psn and _sent_later(packet, stream.nak_ident):
            report(packet, stream, "nak-once", f"a second NAK of PSN {psn}, which was not retransmitted in between")
        for index in range(1, psn_diff(stream.highest, psn)):
            refused = stream.history.get(psn + index & PSN_MASK)
            if refused is not None:
                refused.refused = True
        stream.refused_end = stream.highest
    stream.nak_psn, stream.nak_ident = psn, packet.ident


def _sent_later(packet: Seen, ident: int) -> bool:
    """Return whether the idents prove that a response left after the one with ``ident``."""
    return bool(ident and packet.ident) and 0 < packet.ident - ident & 0xFFFF < 0x8000


def acknowledged(report: Report, stream: Stream, packet: Seen, upto: int) -> None:
    """Mark everything before ``upto`` acknowledged."""
    acked = stream.acked
    count = upto - acked & PSN_MASK
    if not count or count & _BEHIND:
        return
    if stream.refused_end >= 0 or (stream.nak_psn >= 0 and stream.nak_psn - acked & PSN_MASK < count):
        _check_refused(report, stream, packet, count)
        if psn_diff(upto, stream.refused_end) >= 0:
            stream.refused_end = -1
    stream.acked = upto
    stream.response_ident = packet.ident
    if stream.rnr_psn >= 0 and psn_diff(upto, stream.rnr_psn) > 0:
        stream.rnr_psn = -1
    if psn_diff(upto, stream.front) > 0 and not stream.in_unknown_read(stream.front):
        # packets that the capture lacks have arrived, too
        stream.facts.add("acknowledged, not in the capture", packet.frame)
        stream.holes = True
        stream.front = upto
        stream.base = stream.left = -1
        advance(report, stream)


def _check_refused(report: Report, stream: Stream, packet: Seen, count: int) -> None:
    """Check whether any of the ``count`` newly acknowledged packets was refused and not retransmitted."""
    for index in range(max(0, count - KEEP), count):
        psn = stream.acked + index & PSN_MASK
        sent = stream.history.get(psn)
        if (sent is None and psn == stream.nak_psn) or (sent is not None and sent.refused):
            stream.nak_psn = -1
            if stream.incomplete() or _repeated_behind(stream, psn):
                stream.facts.add("repeated, not in the capture", packet.frame)
                stream.holes = True
            else:
                report(packet, stream, "ack-gap", f"PSN {psn} was refused and not retransmitted since")
            break


def _repeated_behind(stream: Stream, psn: int) -> bool:
    """Return whether later packets that were refused with this one were retransmitted: then this one was, too."""
    later = (stream.history.get(psn + index & PSN_MASK) for index in range(1, psn_diff(stream.refused_end, psn)))
    return any(sent is not None and not sent.refused for sent in later)


def _check_msn(report: Report, stream: Stream, packet: Seen, msn: int, sent: Seen | None) -> None:
    """Check the MSN of an ACK or NAK against the number of messages completed up to a packet."""
    if sent is None or sent.done < 0 or stream.partly_asked():
        return
    if stream.base >= 0:
        expected = stream.base + sent.done & PSN_MASK
        if msn == expected:
            stream.odd_base = -1
            return
        # the capture may lack a repeated part of a READ, which may count as one more message
        if stream.steady or not stream.incomplete():
            base = msn - sent.done & PSN_MASK
            if base != stream.odd_base:
                # one response alone is wrong; the next one tells whether the sender's count has shifted
                stream.odd_base = base
                report(packet, stream, "msn", f"MSN {msn} for PSN {packet.psn}; {expected} messages were completed")
                return
    stream.base = msn - sent.done & PSN_MASK
    stream.odd_base = -1


def take_credits(stream: Stream, syndrome: int, msn: int) -> None:
    """Update the credit limit from an ACK (IBA 9.7.7.2)."""
    code = syndrome & AETH_VALUE_MASK
    if code == CREDITS_INVALID:
        stream.lsn = -1
        return
    limit = msn + CREDIT_COUNTS[code] & PSN_MASK
    if stream.lsn < 0 or psn_diff(limit, stream.lsn) > 0:
        stream.lsn = limit


# ------------------------------------------------------------------------------------------- READs and atomics


def _read_response(report: Report, stream: Stream, packet: Seen) -> None:
    form = packet.form
    row = form.row
    psn = packet.psn
    if form.middle and form.size == stream.mtu and not form.pad:
        read = stream.reading
        if read is not None and (psn - read.first & PSN_MASK) + 1 < read.packets and psn not in read.starts:
            # another MIDDLE after a MIDDLE: the rules below would find nothing
            if psn - stream.front & _BEHIND:
                acknowledged(report, stream, packet, psn + 1 & PSN_MASK)
            return
    if row.aeth:
        (aeth,) = _AETH.unpack_from(packet.header)
        if aeth >> 24 & (0x80 | AETH_TYPE_MASK):
            report(packet, stream, "syndrome", f"{row.name} with syndrome {aeth >> 24:#04x}")
        take_credits(stream, aeth >> 24, aeth & PSN_MASK)
    if not row.end and not stream.mtu and packet.size in MTU_CODES:
        learn_mtu(report, stream, packet.size)
    if row.start and row.end:
        for waiting in stream.reads:
            if not waiting.packets and (waiting.first, waiting.length) == (psn, packet.size):
                learn_span(report, stream, waiting, 1)
    read = stream.read_at(psn)
    if read is None:
        if stream.in_unknown_read(psn):
            return
        sent = stream.history.get(psn)
        if sent is not None and sent.row.operation != READ_REQUEST:
            report(packet, stream, "read-unasked", f"{row.name} for PSN {psn}, which belongs to no READ")
        elif sent is None:
            _answered_unseen(stream, packet)
        return
    _check_place(report, stream, packet, read)
    if psn_add(psn, 1) == psn_add(read.first, read.packets):
        read.answered = True
        if read.ends:
            stream.base = -1
        # responses come in order: the last one acknowledges everything before it
        acknowledged(report, stream, packet, psn_add(psn, 1))
    elif psn_diff(psn, stream.front) < 0:
        acknowledged(report, stream, packet, psn_add(psn, 1))


def _answered_unseen(stream: Stream, packet: Seen) -> None:
    """Process a response to a READ or atomic that the capture lacks."""
    stream.facts.add(ANSWERED_UNSEEN, packet.frame)
    if psn_diff(packet.psn, stream.acked) >= 0:
        stream.holes = True


def _check_place(report: Report, stream: Stream, packet: Seen, read: Read) -> None:
    """Check the opcode and size of a READ response by its position in the READ."""
    row = packet.row
    index = psn_diff(packet.psn, read.first)
    last = index == read.packets - 1
    starts = packet.psn in read.starts
    wrong = ""
    if row.start and not starts:
        wrong = "in the middle of a READ"
    elif not row.start and starts and len(read.starts) == 1 and not read.continues:
        wrong = "the first of a READ"
    elif (row.end and not last and packet.psn not in read.ends) or (last and not row.end):
        wrong = "the last of a READ" if last else f"{read.packets - 1 - index} before the last of a READ"
    if wrong and stream.incomplete():
        stream.facts.add(ANSWERED_UNSEEN, packet.frame)  # the READ may have been repeated, in other parts
    elif wrong:
        report(packet, stream, "read-order", f"{row.name} for PSN {packet.psn}, {wrong}")
    else:
        expected = read.length - index * stream.mtu if last else stream.mtu
        part = row.end and packet.psn in read.ends and packet.size < expected
        if (stream.mtu or read.packets == 1) and packet.size != expected and not part:
            report(packet, stream, "read-size", f"{row.name} carries {packet.size} bytes; {expected} are left")
    if not row.end and packet.pad:
        report(packet, stream, "pad", f"{packet.pad} bytes of padding in {row.name}")


def _atomic_acknowledge(report: Report, stream: Stream, packet: Seen) -> None:
    psn = packet.psn
    aeth, value = _ATOMIC.unpack(packet.header)
    if aeth >> 24 & (0x80 | AETH_TYPE_MASK):
        report(packet, stream, "syndrome", f"atomic acknowledge with syndrome {aeth >> 24:#04x}")
    sent = stream.history.get(psn)
    if sent is None:
        _answered_unseen(stream, packet)
        return
    if not sent.row.atomic:
        report(packet, stream, "atomic-unasked", f"PSN {psn} is a {sent.row.name}")
        return
    before = stream.atomics.setdefault(psn, value)
    if before != value:
        report(packet, stream, "atomic-replay", f"PSN {psn}: {value:#x}; the first answer was {before:#x}")
    take_credits(stream, aeth >> 24, aeth & PSN_MASK)
    acknowledged(report, stream, packet, psn_add(psn, 1))
