"""Data path state of a queue pair in addition to its context: one record and several arrays of slots.

A message *is* its send entry: send WQE ``i`` belongs to SQ entry ``i``, and its progress (sent, in flight, completed)
is given by indices of that ring. PSN, SSN and MSN have 24 bits, times are nanoseconds, flags 0 or 1;
:data:`~rnic.state.record.NONE` means absent. A word's owner is the class that writes it: in :mod:`rnic.transport` or
:mod:`rnic.cc`, or in :mod:`rnic.device` for device state.
"""

from __future__ import annotations

from typing import Final, Self

from rnic.spec.limits import MAX_RD_ATOMIC, MAX_SGE
from rnic.state.arena import Arena
from rnic.state.queues import RECEIVE_RING, SEND_RING
from rnic.state.record import WORD_BYTES, Record, part, place, record
from rnic.state.scheduler import SIGNED

_SOURCE: Final = "design.md, Contexts are real, and state is bytes"

_RUNS: Final = (
    ("pieces", "READ pieces"),
    ("replies", "replies"),
    ("resources", "executed READs and atomics"),
    ("scatters", "receive scatter entries"),
    ("sends", "send WQEs"),
)

QP: Final = record(
    "queue pair",
    _SOURCE,
    (
        ("una", "SendQueue", "oldest unacknowledged PSN"),
        ("sent_psn", "SendQueue", "last PSN ever sent, plus 1"),
        ("sq_head", "SendQueue", "SQ index of the oldest entry that has not completed"),
        ("send_index", "SendQueue", "SQ index of the first message with packets to send or retransmit"),
        ("fetch_index", "SendQueue", "SQ index of the next entry to fetch"),
        ("tail", "SendQueue", "SQ_TAIL as software last stored it"),
        (
            "read_index",
            "SendQueue",
            "SQ index of the oldest started READ or atomic that lacks responses, or none",
        ),
        ("piece_first", "SendQueue", "slot of the oldest READ or atomic request that waits for responses"),
        ("piece_count", "SendQueue", "number of such requests"),
        ("inflight", "SendQueue", "packets in flight, including expected READ responses"),
        ("window", "SendQueue", "packets that may be in flight"),
        ("widest", "SendQueue", "upper bound of the window: the outstanding limit of 004 7.4"),
        ("most", "SendQueue", "the outstanding limit without congestion"),
        ("uncounted", "SendQueue", "acknowledged packets that have not widened the window yet"),
        ("ack_every", "SendQueue", "request an ACK if the PSN is a multiple of this"),
        ("ack_timeout", "SendQueue", "local ACK timeout, 0 for never"),
        ("retry_left", "SendQueue", "retries before the queue pair fails"),
        ("rnr_left", "SendQueue", "RNR retries before the queue pair fails"),
        ("backoff", "SendQueue", "consecutive expired ACK timeouts"),
        ("rtt_psn", "SendQueue", "PSN whose round trip is being measured, or none"),
        ("rtt_at", "SendQueue", "when it was sent"),
        ("probe_shift", "SendQueue", "consecutive unanswered probes"),
        ("probe_due", "SendQueue", "1: start the next turn with a tail-loss probe"),
        ("ack_deadline", "SendQueue", "end of the local ACK timeout, or NEVER"),
        ("probe_deadline", "SendQueue", "time of the next tail-loss probe, or NEVER"),
        ("rnr_until", "SendQueue", "end of the RNR wait, or NEVER"),
        ("control_ns", "SendQueue", "time of the next congestion control timer, or NEVER"),
        ("ack_each", "SendQueue", "messages left that each request an ACK, after a probe"),
        ("single_resend_psn", "SendQueue", "PSN named by a NAK and retransmitted alone, or none"),
        (
            "go_back_penalty",
            "SendQueue",
            "losses for which to use Go-Back-N after resending a single packet failed",
        ),
        ("go_back_left", "SendQueue", "remaining losses of that kind"),
        ("parked", "SendQueue", "1: it waits in line for room in flight"),
        ("admitted", "SendQueue", "packets granted to its turn and not sent yet"),
        ("peer_record", "SendQueue", "offset of its peer's account, or 0"),
        ("line", "Inflight", "offset of the line in which it waits for room in flight, or 0"),
        ("next_waiting", "Inflight", "next queue pair of that line, or 0"),
        ("previous_waiting", "Inflight", "previous queue pair of that line, or 0"),
        ("ssn", "Requester", "sequence number of the last message fetched"),
        ("lsn", "Requester", "last SSN for which the peer has a receive entry, or none without credits"),
        ("more", "Requester", "1: only the budget ended the last turn"),
        ("head", "Requester", "first eight bytes of a BTH, without opcode, pad and destination"),
        ("mtu", "Requester", "path MTU in bytes"),
        ("read_chunk", "Requester", "most response packets per READ request"),
        ("service", "Requester", "service bits of the BTH opcode: 0 for RC, 0x20 for UC, 0x60 for UD"),
        ("batch_limit", "Requester", "packets in one burst: 1 without segmentation offload"),
        ("asked_psn", "Requester", "PSN of the last response that a probe requested alone, or none"),
        ("implied_psn", "Completer", "PSN of the last implied NAK, or none"),
        ("implied_at", "Completer", "time of the last implied NAK"),
        ("open", "Responder", "kind of the open message: none 0, SEND 1, WRITE 2"),
        ("offset", "Responder", "bytes of the open message already placed"),
        ("write_length", "Responder", "length of the open WRITE, from its RETH"),
        ("write_va", "Responder", "remote address of the open WRITE"),
        ("write_rkey", "Responder", "its key"),
        ("write_binding", "Responder", "binding of the key when the WRITE started; for R_Key 0 also the region's key"),
        ("receive_index", "Responder", "RQ index of the receive entry in use, or none"),
        ("receive_sges", "Responder", "scatter entries of that receive entry"),
        ("receive_bytes", "Responder", "total length of that receive entry"),
        ("owed_ns", "Responder", "time of the delayed ACK for messages without AckReq, or NEVER"),
        ("nak_sent", "Responder", "1: a NAK was sent, drop packets beyond the expected PSN silently"),
        ("established", "Responder", "1: a request arrived since RTR"),
        (
            "generation",
            "Responder",
            "incremented at each RESET, to discard packets held back before it",
        ),
        ("msn", "Responder", "messages completed"),
        ("resource_first", "Resources", "slot of the oldest saved READ or atomic"),
        ("resource_count", "Resources", "number of saved READs and atomics"),
        ("reply_first", "ReplyQueue", "slot of the oldest waiting reply"),
        ("reply_count", "ReplyQueue", "number of waiting replies"),
        ("pending_reads", "ReplyQueue", "waiting READ and atomic replies, except those to duplicates"),
        *((name, "QpMemory", f"offset of its {what} in the arena") for name, what in _RUNS),
        ("path", "QueuePair", "offset of its flow's record in the arena, or 0"),
        ("program", "QueuePair", "number of its program, for fair sharing of the in-flight budget"),
        ("signal_all", "QueuePair", "1: every send request generates a completion (sq_sig_all)"),
        ("uses_srq", "QueuePair", "1: it receives from a shared receive queue"),
        ("cnp_tag", "QueuePair", "1: start the next turn with a CNP (004 7.3, WQE process unit)"),
        ("masked", "QueuePair", "1: exclude the send queue from arbitration"),
        ("paced", "QueuePair", "1: its requests are rate-limited"),
        ("pace_ns", "QueuePair", "time at which the rate allows the next request, or NEVER"),
        ("control", "QueuePair", "its congestion control: none 0, limit 1, DCQCN 2, a fixed rate 3, one in Python 4"),
        ("pace_rate", "Pace", "bytes that may leave in 2^20 ns"),
        ("pace_credit", "Pace", f"bytes that may leave now, times 2^20, {SIGNED}"),
        ("pace_most", "Pace", "upper bound of the credit"),
        ("pace_since_ns", "Pace", "time of the last update of the credit"),
        ("dcqcn_rate", "Dcqcn", "current rate, in bytes per 2^10 ns with 16 fractional bits"),
        ("dcqcn_target", "Dcqcn", "target rate, in the same unit"),
        ("dcqcn_alpha", "Dcqcn", "alpha with 20 fractional bits"),
        ("dcqcn_counted", "Dcqcn", "bytes sent in this period of the byte counter"),
        ("dcqcn_counter_rounds", "Dcqcn", "periods of the byte counter since the last CNP"),
        ("dcqcn_timer_rounds", "Dcqcn", "periods of the timer since the last CNP"),
        ("dcqcn_alpha_at", "Dcqcn", "time of the next decrease of alpha"),
        ("dcqcn_timer_at", "Dcqcn", "end of the current timer period"),
        ("armed_ns", "Timers", "time for which its timer is armed, or NEVER"),
        ("timer_place", "Timers", "its index in the timer heap, 0 for none"),
        ("scheduled", "Nic", "1: it waits for a turn, or requested one while held"),
        ("next_ready", "Scheduler", "next ready queue pair of its program, or 0"),
        ("previous_ready", "Scheduler", "previous ready queue pair of its program, or 0"),
        ("program_record", "Scheduler", "offset of its program's record"),
        ("turn", "Scheduler", "quantum: bytes that it may send before other queue pairs of its program"),
        ("deficit", "Scheduler", f"deficit counter: bytes that it may still send, {SIGNED}"),
        *part("sq_", SEND_RING),
        *part("rq_", RECEIVE_RING),
        ("number", "DeviceQp", "its QPN"),
        ("context", "DeviceQp", "offset of its QPC in the arena"),
        ("srq_record", "DeviceQp", "offset of its shared receive queue's record, or 0"),
        ("block", "DeviceQp", "number of its queue block"),
        ("driver", "DeviceQp", "number of the driver context whose memory and window it uses"),
        ("opcodes", "DeviceQp", "service bits of the BTH opcodes that it accepts"),
        ("pkey", "DeviceQp", "P_Key in use"),
        ("replies_deferred", "DeviceQp", "1: replies were deferred behind new messages, the next turn sends them"),
        ("notify_drained", "DeviceQp", "1: an SQ_DRAINED event was requested"),
        ("cnp_merge_ns", "DeviceQp", "time until which marks cause no further CNP"),
        ("rate", "DeviceQp", "its rate register"),
        ("sent_bytes", "DeviceQp", "bytes sent, counted from the BTH"),
        ("came_bytes", "DeviceQp", "bytes received, counted from the BTH"),
        ("shown_head", "DeviceQp", "value of SQ_HEAD in its queue block"),
        ("shown_state", "DeviceQp", "value of QUEUE_STATE in its queue block"),
        (
            "held",
            "DeviceQp",
            "1: a required context is not cached, so nothing is sent and received packets are dropped",
        ),
        ("explains", "DeviceQp", "number of failures still to be explained to the program; the engine punts these"),
    ),
    96,
)

_RUN_PLACES: Final = tuple(place(QP, name) for name, _ in _RUNS)

SEND_WQE: Final = record(
    "send WQE",
    _SOURCE,
    (
        ("entry_0", "Requester", "fetched SQ entry: WQE ID, opcode, flags"),
        ("entry_1", "Requester", "local address"),
        ("entry_2", "Requester", "remote address"),
        ("entry_3", "Requester", "length, L_Key"),
        ("entry_4", "Requester", "R_Key, immediate"),
        ("entry_5", "Requester", "operand, or destination GID"),
        ("entry_6", "Requester", "operand, or destination GID"),
        ("entry_7", "Requester", "destination QPN, Q_Key"),
        ("first_psn", "Requester", "first PSN that it uses"),
        ("packets", "Requester", "PSNs that it uses; for a READ those of its responses; 0 for a local operation"),
        ("sent", "SendQueue", "packets sent since the last rewind"),
        ("received", "Completer", "response packets of a READ that have been placed"),
        ("ssn", "Requester", "its SSN"),
        ("status", "Requester", "completion status, reported once everything before it has completed"),
        ("begun", "Requester", "1: a packet of it was sent at some time"),
        ("executed", "Requester", "1: a local operation has been executed"),
    ),
)

PIECE: Final = record(
    "READ piece",
    _SOURCE,
    (
        ("index", "Requester", "SQ index of its message"),
        ("first_psn", "Requester", "PSN of its first response"),
        ("offset", "Requester", "offset in the message, in bytes"),
        ("packets", "Requester", "response packets that it requests"),
        ("got", "Completer", "response packets received, in order"),
        ("asked", "Requester", "1: its one response was split off a longer request and requested again alone"),
    ),
)

REPLY: Final = record(
    "reply",
    _SOURCE,
    (
        ("kind", "ReplyQueue", "ACK or NAK 0, READ responses 1, atomic acknowledge 2"),
        ("psn", "ReplyQueue", "PSN of its first packet"),
        ("packets", "ReplyQueue", "number of its packets"),
        ("sent", "ReplyQueue", "packets sent"),
        ("syndrome", "ReplyQueue", "AETH syndrome"),
        ("msn", "ReplyQueue", "AETH message sequence number"),
        ("again", "ReplyQueue", "1: it answers a duplicate"),
        ("orig", "ReplyQueue", "original value of an atomic"),
        ("va", "ReplyQueue", "address of a READ's data"),
        ("total", "ReplyQueue", "length of a READ's data"),
        ("rkey", "ReplyQueue", "R_Key of a READ's data"),
        ("binding", "ReplyQueue", "binding of the key when the READ arrived; for R_Key 0 also the region's key"),
    ),
)

RESOURCE: Final = record(
    "resource",
    "design.md; IBA C9-105",
    (
        ("psn", "Resources", "PSN of the request"),
        ("packets", "Resources", "PSNs that it uses"),
        ("opcode", "Resources", "its BTH opcode"),
        ("atomic", "Resources", "1: it is an atomic"),
        ("va", "Resources", "its remote address"),
        ("rkey", "Resources", "its key"),
        ("length", "Resources", "length of a READ"),
        ("swap_add", "Resources", "an atomic's operand"),
        ("compare", "Resources", "compare value of a compare-and-swap"),
        ("orig", "Resources", "original value of an atomic"),
    ),
)

SCATTER: Final = record(
    "receive scatter entry",
    _SOURCE,
    (
        ("va", "Responder", "virtual address"),
        ("size_key", "Responder", "length in the low half, L_Key in the high"),
    ),
)

PIECES: Final = MAX_RD_ATOMIC + 2
"""Slots for READ requests: the outstanding limit, one that a probe splits off, and a spare."""
REPLIES: Final = 2 * MAX_RD_ATOMIC + 64
"""Most waiting replies: a READ response and an ACK per outstanding request, and replies to duplicates."""
RESOURCES: Final = MAX_RD_ATOMIC
"""Executed READs and atomics saved to answer duplicates."""
SCATTERS: Final = MAX_SGE
"""Scatter entries of one receive entry."""


class QpMemory:
    """Memory of a queue pair: ``qp`` is its record, and the arrays of slots are word indices in ``cells``.

    Args:
        arena: arena that holds them.
        entries: SQ entries.

    Raises:
        MemoryError: the arena is full.
    """

    __slots__ = (
        "arena",
        "cells",
        "entries",
        "pieces",
        "qp",
        "record",
        "replies",
        "resources",
        "scatters",
        "sends",
        "size",
        "slots",
    )

    def __init__(self, arena: Arena, entries: int) -> None:
        runs = (
            PIECE.size * PIECES,
            REPLY.size * REPLIES,
            RESOURCE.size * RESOURCES,
            SCATTER.size * SCATTERS,
            SEND_WQE.size * entries,
        )
        self.arena = arena
        self.cells = arena.cells
        self.entries = entries
        self.size = sum(runs)
        record, slots = arena.allocate(QP.size), arena.allocate(self.size)
        if record is None or slots is None:
            if record is not None:
                arena.free(record, QP.size)
            raise MemoryError(f"no room for a queue pair of {entries} send entries in {arena.size} bytes of state")
        self.record, self.slots = record, slots
        self.qp = arena.words(record, QP.size)
        arena.memory[record : record + QP.size] = bytes(QP.size)
        starts = []
        at = slots
        for word, size in zip(_RUN_PLACES, runs, strict=True):
            starts.append(at // WORD_BYTES)
            self.qp[word] = at
            at += size
        self.pieces, self.replies, self.resources, self.scatters, self.sends = starts

    def image(self) -> bytes:
        """Return a copy of all bytes, to compare two executors."""
        return bytes(self.qp) + bytes(self.arena.memory[self.slots : self.slots + self.size])

    def free(self) -> None:
        """Free the memory; views must not be used after this."""
        self.arena.free(self.record, QP.size)
        self.arena.free(self.slots, self.size)


class QpRecord(Record):
    """Base of classes whose objects overlay a queue pair's record; the first argument is its memory."""

    __slots__ = ()

    def __new__(cls, memory: QpMemory, *more: object) -> Self:
        """Overlay the record."""
        return cls.from_buffer(memory.arena.memory, memory.record)
