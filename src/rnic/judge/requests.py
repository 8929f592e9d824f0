"""Rules of requests: opcode sequence, sizes, PSNs, repetitions, waits (RC and UC)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.judge.stream import KEEP, Read, Stream
from rnic.spec.limits import MTU_CODES
from rnic.spec.opcodes import READ_REQUEST
from rnic.spec.psn import PSN_MASK, psn_add, psn_count, psn_diff

if TYPE_CHECKING:
    from rnic.judge.packet import Seen

Report = Callable[["Seen", Stream, str, str], None]

MAX_READ = 1 << 31
RNR_SLACK_NS = 20_000
"""How much earlier than its timer a repetition may look, since clocks of captures are coarse."""
_RETH = struct.Struct(">QII")
_VA = struct.Struct(">Q")
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
            # one more in a row of middles
            if left > 0:
                stream.left = left - form.size
            simple = True
        else:
            simple = _simply_next(stream, before, packet)
        if simple:
            # the rules below say nothing else
            history[psn] = packet
            packet.done = stream.total
            stream.front = stream.highest = psn + 1 & PSN_MASK
            if len(history) > 2 * KEEP:
                stream.prune()
            return
    if check_form(report, stream, packet) and not (row.atomiceth or row.operation == READ_REQUEST):
        form.fit = stream.mtu
    if row.operation == READ_REQUEST and row.reth:
        packet.packets = _asked(stream, packet)
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
    """Whether a SEND or WRITE of a proved form follows what came before it, and brings what is left to bring."""
    form = packet.form
    row = form.row
    left = stream.left
    if row.start:
        if before is not None and not before.form.row.end:
            return False
        if row.write:
            left = _RETH.unpack_from(packet.header)[2]
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
    """A packet that does not have the next PSN: whether it is new all the same."""
    psn = packet.psn
    if stream.front < 0:
        _begin(report, stream, psn, packet)
    if not -KEEP <= psn_diff(psn, stream.highest) <= KEEP and not _leads_back(report, stream, packet):
        return False
    if stream.jump is not None:
        report(stream.jump, stream, "psn-jump", f"PSN {stream.jump.psn} between PSNs near {stream.highest}")
        stream.jump = None
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
    if delta > 0 and not unknown_span(stream):
        stream.facts.add("gaps", packet.frame)
    elif delta < 0:
        stream.facts.add("late packets", packet.frame)
        stream.steady = False
    return True


def _begin(report: Report, stream: Stream, psn: int, packet: Seen) -> None:
    """The first request of a stream, or of a connection."""
    if stream.expected_psn >= 0:
        stream.base = 0
        delta = psn_diff(psn, stream.expected_psn)
        if 0 < delta <= KEEP:
            # the capture may lack the first ones: the responder says so in its first ACK
            stream.late_start = packet
            stream.front = stream.highest = stream.acked = stream.expected_psn
            return
        if delta:
            first_psn_is_wrong(report, stream, packet)
    stream.front = stream.highest = stream.acked = psn


def first_psn_is_wrong(report: Report, stream: Stream, packet: Seen) -> None:
    """A connection began with another PSN than was agreed on: nothing is known about what its peer counts."""
    report(packet, stream, "first-psn", f"PSN {packet.psn}; connection management said {stream.expected_psn}")
    stream.base = -1


def _leads_back(report: Report, stream: Stream, packet: Seen) -> bool:
    """A PSN far from all others: alone it is wrong, two in a row are another connection on the same numbers."""
    jump = stream.jump
    if jump is not None and 0 <= psn_diff(packet.psn, jump.psn) <= KEEP:
        stream.forget()
        stream.facts.add("new connections on used numbers", packet.frame)
        _begin(report, stream, jump.psn, jump)
        take_request(report, stream, jump)
        return True
    stream.jump = packet
    return False


# ----------------------------------------------------------------------------------------- the packet by itself


def check_form(report: Report, stream: Stream, packet: Seen) -> bool:
    """Sizes, padding, solicited bit, and what the extended headers say; whether nothing was wrong."""
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
                    report(packet, stream, "size", f"{row.name} carries {size} bytes, which is no path MTU")
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
    if row.atomiceth and _VA.unpack_from(packet.header)[0] & 7:
        fine = False
        report(packet, stream, "atomic-aligned", f"address {_VA.unpack_from(packet.header)[0]:#x}")
    if row.operation == READ_REQUEST and row.reth:
        length = _RETH.unpack(packet.header)[2]
        if length > MAX_READ:
            fine = False
            report(packet, stream, "read-length", f"{length} bytes")
    return fine


def unknown_span(stream: Stream) -> bool:
    """Whether the path MTU would have to be known to say where the newest READ ends."""
    return not stream.mtu and bool(stream.reads) and not stream.reads[-1].packets


def learn_mtu(report: Report, stream: Stream, mtu: int) -> None:
    """The path MTU is known: so is what READs that wait for it use."""
    stream.mtu = mtu
    for read in stream.reads:
        if not read.packets:
            learn_span(report, stream, read, psn_count(read.length, mtu))


def learn_span(report: Report, stream: Stream, read: Read, packets: int) -> None:
    """It is known how many PSNs a READ uses."""
    read.packets = packets
    stream.reading = None
    sent = stream.history.get(read.first)
    if sent is not None:
        sent.packets = packets
    end = psn_add(read.first, packets)
    if psn_diff(end, stream.highest) > 0:
        stream.highest = end
    advance(report, stream)


# ------------------------------------------------------------------------------------------ READs and their PSNs


def _asked(stream: Stream, packet: Seen) -> int:
    """Remember a READ; the PSNs that it uses, 0 where the path MTU would have to be known."""
    va, rkey, length = _RETH.unpack(packet.header)
    packets = psn_count(length, stream.mtu) if stream.mtu else 1 if length <= _SMALLEST else 0
    stream.reading = None
    stream.reads.append(Read(packet.psn, packets, va, rkey, length))
    return packets


def _asked_before(stream: Stream, psn: int) -> Read | None:
    """The READ that ``psn`` belongs to, its span known or not."""
    unknown = stream.reads[-1] if unknown_span(stream) else None
    return unknown if unknown is not None and unknown.first == psn else stream.read_at(psn)


def _read_again(report: Report, stream: Stream, packet: Seen, read: Read) -> None:
    """A READ that is asked for again, from its middle perhaps, and perhaps not to its end (IBA 9.4.4)."""
    stream.facts.add("repeated packets", packet.frame)
    stream.steady = False
    va, rkey, length = _RETH.unpack(packet.header)
    done = psn_diff(packet.psn, read.first) * stream.mtu
    if va != read.va + done or rkey != read.rkey or length > read.length - done:
        expected = f"{read.length - done} bytes at {read.va + done:#x}, key {read.rkey:#x}"
        report(packet, stream, "read-retry", f"{length} bytes at {va:#x}, key {rkey:#x}; what is left is {expected}")
        return
    read.starts.add(packet.psn)
    if length < read.length - done:
        read.ends.add(psn_add(packet.psn, psn_count(length, stream.mtu or _BIGGEST) - 1))


# ---------------------------------------------------------------------------------------------------- repetitions


def _repeated(report: Report, stream: Stream, packet: Seen, known: Seen) -> None:
    """A PSN that was used before."""
    stream.facts.add("repeated packets", packet.frame)
    stream.steady = False
    known.refused = False
    if (known.row, known.size, known.header) != (packet.row, packet.size, packet.header):
        what = f"{packet.row.name} of {packet.size} bytes"
        before = f"{known.row.name} of {known.size} bytes in frame {known.frame}"
        report(packet, stream, "repeat", f"PSN {packet.psn}: {what}, but {before}")
    elif known.carries_other_bytes(packet):
        report(packet, stream, "repeat-payload", f"PSN {packet.psn} had other bytes in frame {known.frame}")
    # a copy that the network made is the same to the last bit, and says nothing about its sender
    if packet.psn == stream.rnr_psn and packet.ident != known.ident:
        early = stream.rnr_until - packet.time_ns
        if early > RNR_SLACK_NS:
            report(packet, stream, "rnr-wait", f"PSN {packet.psn} again {early / 1000:.0f} us too early")
        stream.rnr_psn = -1
    known.repeated_with(packet.ident)


# --------------------------------------------------------------------------------------- the packet among others


def _check_neighbours(report: Report, stream: Stream, packet: Seen) -> None:
    """Whether the packets before and behind this one, as far as they are known, fit it."""
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
    """Move ``front`` over the packets that are known, counting messages and the bytes of WRITEs."""
    history = stream.history
    psn = stream.front
    while (sent := history.get(psn)) is not None and sent.packets:
        row = sent.row
        if row.write:
            if row.reth:
                stream.left = _RETH.unpack_from(sent.header)[2]
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
    """Without a credit only one packet may probe for it (IBA 9.7.7.2)."""
    row = packet.row
    if stream.base < 0 or not row.send or stream.front != packet.psn:
        return
    ssn = stream.base + stream.total + 1 & PSN_MASK
    if psn_diff(ssn, stream.lsn) <= 0:
        return
    if stream.limited >= 0 and psn_diff(stream.acked, stream.limited) <= 0:
        report(packet, stream, "credits", f"message {ssn}; credits end at {stream.lsn}, and one packet probes already")
    stream.limited = packet.psn
