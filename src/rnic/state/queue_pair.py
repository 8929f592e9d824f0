"""State of a queue pair's data path besides its context: one record, followed by runs of slots.

A message *is* its send entry: send WQE ``i`` belongs to SQ entry ``i``, and sent, in flight and completed are indices
of that one ring. PSN, SSN and MSN have 24 bits, times are nanoseconds, flags 0 or 1; :data:`~rnic.state.record.NONE`
means absent. A word's owner is the class that writes it, in :mod:`rnic.transport` or :mod:`rnic.cc`, or, for device
state, in :mod:`rnic.device`.
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
        ("una", "SendQueue", "oldest PSN that is not acknowledged"),
        ("sent_psn", "SendQueue", "the PSN behind the last that was ever sent"),
        ("sq_head", "SendQueue", "SQ index of the oldest entry that has not completed"),
        ("send_index", "SendQueue", "SQ index of the first message with packets to send, now or again"),
        ("fetch_index", "SendQueue", "SQ index of the next entry to fetch"),
        ("tail", "SendQueue", "SQ_TAIL as software last stored it"),
        (
            "read_index",
            "SendQueue",
            "SQ index of the oldest READ or atomic begun that lacks responses, or none",
        ),
        ("piece_first", "SendQueue", "slot of the oldest READ or atomic request that waits for responses"),
        ("piece_count", "SendQueue", "how many wait"),
        ("inflight", "SendQueue", "packets in flight, READ responses that are due included"),
        ("window", "SendQueue", "packets that may be in flight"),
        ("widest", "SendQueue", "what the window opens to: the outstanding limit of 004 7.4"),
        ("most", "SendQueue", "the outstanding limit without congestion"),
        ("uncounted", "SendQueue", "packets acknowledged that have not widened the window yet"),
        ("ack_every", "SendQueue", "ask for an ACK where the PSN is a multiple of this"),
        ("ack_timeout", "SendQueue", "local ACK timeout, 0 for never"),
        ("retry_left", "SendQueue", "retries before the queue pair fails"),
        ("rnr_left", "SendQueue", "RNR NAKs that it sits out before it fails"),
        ("backoff", "SendQueue", "ACK timeouts in a row that expired"),
        ("rtt_psn", "SendQueue", "PSN whose round trip is being measured, or none"),
        ("rtt_at", "SendQueue", "when it was sent"),
        ("probe_shift", "SendQueue", "probes in a row that were answered by nothing"),
        ("probe_due", "SendQueue", "the next turn begins with a tail-loss probe"),
        ("ack_deadline", "SendQueue", "end of the local ACK timeout, or NEVER"),
        ("probe_deadline", "SendQueue", "when to probe, or NEVER"),
        ("rnr_until", "SendQueue", "end of the RNR wait, or NEVER"),
        ("control_ns", "SendQueue", "when its congestion control wants to be called, or NEVER"),
        ("ack_each", "SendQueue", "messages to come that each ask for an ACK, since a probe had to"),
        ("single_resend_psn", "SendQueue", "PSN that a NAK named and that was sent again alone, or none"),
        (
            "go_back_penalty",
            "SendQueue",
            "losses to come for which Go-Back-N is used, since resending one packet has failed",
        ),
        ("go_back_left", "SendQueue", "those of them that are left"),
        ("parked", "SendQueue", "it waits in line for room in flight"),
        ("admitted", "SendQueue", "packets that it was given a turn for and has not sent"),
        ("peer_record", "SendQueue", "offset of the account of the peer that its path leads to, or 0"),
        ("line", "Inflight", "offset of the line in which it waits for room in flight, or 0"),
        ("next_waiting", "Inflight", "the next queue pair of that line, or 0"),
        ("previous_waiting", "Inflight", "the one before, or 0"),
        ("ssn", "Requester", "sequence number of the last message fetched"),
        ("lsn", "Requester", "last SSN that the peer has a receive entry for, or none where it gives no credits"),
        ("more", "Requester", "the last turn ended for its budget alone"),
        ("head", "Requester", "first eight bytes of a BTH, without opcode, pad and destination"),
        ("mtu", "Requester", "path MTU in bytes"),
        ("read_chunk", "Requester", "response packets that one READ request asks for at most"),
        ("service", "Requester", "service bits of the BTH opcode: 0 for RC, 0x20 for UC, 0x60 for UD"),
        ("batch_limit", "Requester", "packets in one burst: 1 without segmentation offload"),
        ("asked_psn", "Requester", "PSN of the last response that a probe asked for alone, out of several, or none"),
        ("implied_psn", "Completer", "PSN of the last implied NAK, or none"),
        ("implied_at", "Completer", "when that was"),
        ("open", "Responder", "the message that is open: none 0, SEND 1, WRITE 2"),
        ("offset", "Responder", "bytes of it that have been placed"),
        ("write_length", "Responder", "bytes of a WRITE, as its RETH says"),
        ("write_va", "Responder", "remote address of the open WRITE"),
        ("write_rkey", "Responder", "its key"),
        ("write_binding", "Responder", "binding of the key when the WRITE began; under R_Key 0 the key as well"),
        ("receive_index", "Responder", "RQ index of the receive entry in use, or none"),
        ("receive_sges", "Responder", "scatter entries of it"),
        ("receive_bytes", "Responder", "bytes that it takes"),
        ("owed_ns", "Responder", "when what did not ask for an ACK is acknowledged, or NEVER"),
        ("nak_sent", "Responder", "a NAK is out: say nothing of packets beyond the expected PSN"),
        ("established", "Responder", "a request came since RTR"),
        (
            "generation",
            "Responder",
            "counted up at each RESET: packets that were held back under an earlier value are discarded",
        ),
        ("msn", "Responder", "messages completed"),
        ("resource_first", "Resources", "slot of the oldest executed READ or atomic that is kept"),
        ("resource_count", "Resources", "how many are kept"),
        ("reply_first", "ReplyQueue", "slot of the oldest reply that waits"),
        ("reply_count", "ReplyQueue", "how many wait"),
        ("pending_reads", "ReplyQueue", "READ and atomic replies among them, without answers to duplicates"),
        *((name, "QpMemory", f"offset of its {what} in the arena") for name, what in _RUNS),
        ("path", "QueuePair", "offset of its flow's record in the arena, or 0"),
        ("program", "QueuePair", "whose it is: programs share what may be in flight"),
        ("signal_all", "QueuePair", "every send request completes, whatever its flags say"),
        ("uses_srq", "QueuePair", "it receives from a shared receive queue"),
        ("cnp_tag", "QueuePair", "the next turn begins with a congestion notification (004 7.3, WQE process unit)"),
        ("masked", "QueuePair", "the send queue takes no part in the arbitration"),
        ("paced", "QueuePair", "its requests keep to a rate"),
        ("pace_ns", "QueuePair", "when the rate lets the next request leave, or NEVER"),
        ("control", "QueuePair", "its congestion control: none 0, limit 1, DCQCN 2, a fixed rate 3, one in Python 4"),
        ("pace_rate", "Pace", "bytes that may leave in 2^20 ns"),
        ("pace_credit", "Pace", f"bytes that may leave now, times 2^20, {SIGNED}"),
        ("pace_most", "Pace", "the most that this grows to"),
        ("pace_since_ns", "Pace", "when it was counted last"),
        ("dcqcn_rate", "Dcqcn", "the rate that it found, in bytes per 2^10 ns with 16 bits of fraction"),
        ("dcqcn_target", "Dcqcn", "the rate that it rises to, likewise"),
        ("dcqcn_alpha", "Dcqcn", "alpha with 20 bits of fraction"),
        ("dcqcn_counted", "Dcqcn", "bytes sent in this round of the byte counter"),
        ("dcqcn_counter_rounds", "Dcqcn", "rounds of the byte counter since the last CNP"),
        ("dcqcn_timer_rounds", "Dcqcn", "rounds of the timer since the last CNP"),
        ("dcqcn_alpha_at", "Dcqcn", "when alpha falls next"),
        ("dcqcn_timer_at", "Dcqcn", "when the next round of the timer ends"),
        ("armed_ns", "Timers", "when the timers wake it, or NEVER"),
        ("timer_place", "Timers", "where in their heap it is, 0 for nowhere"),
        ("scheduled", "Nic", "it waits for a turn, or has asked for one while it was held"),
        ("next_ready", "Scheduler", "the next of its program that waits for a turn, or 0"),
        ("previous_ready", "Scheduler", "the one before, or 0"),
        ("program_record", "Scheduler", "offset of its program's record"),
        ("turn", "Scheduler", "bytes that it may send before the others of its program have their turns"),
        ("deficit", "Scheduler", f"bytes that it may send still, {SIGNED}"),
        *part("sq_", SEND_RING),
        *part("rq_", RECEIVE_RING),
        ("number", "DeviceQp", "its QPN"),
        ("context", "DeviceQp", "offset of its QPC in the arena"),
        ("srq_record", "DeviceQp", "offset of its shared receive queue's record, or 0"),
        ("block", "DeviceQp", "number of its queue block"),
        ("driver", "DeviceQp", "number of the driver context whose memory and window it uses"),
        ("opcodes", "DeviceQp", "service bits of the BTH opcodes that it takes"),
        ("pkey", "DeviceQp", "P_Key in use"),
        ("replies_deferred", "DeviceQp", "its replies have just let new messages go first: the next turn sends them"),
        ("notify_drained", "DeviceQp", "an SQ_DRAINED event was asked for"),
        ("cnp_merge_ns", "DeviceQp", "until when marks bring no further CNP"),
        ("rate", "DeviceQp", "its rate register"),
        ("sent_bytes", "DeviceQp", "bytes of the packets of its turns, from the BTH on"),
        ("came_bytes", "DeviceQp", "bytes of the packets that it took, likewise"),
        ("shown_head", "DeviceQp", "SQ_HEAD in its queue block"),
        ("shown_state", "DeviceQp", "QUEUE_STATE in its queue block"),
        ("held", "DeviceQp", "a context that it needs is not cached: nothing is sent, what arrives is dropped"),
        ("explains", "DeviceQp", "failures whose reasons its program still wants: the engine punts these"),
    ),
    96,
)

_RUN_PLACES: Final = tuple(place(QP, name) for name, _ in _RUNS)

SEND_WQE: Final = record(
    "send WQE",
    _SOURCE,
    (
        ("entry_0", "Requester", "the SQ entry as it was fetched: WQE ID, opcode, flags"),
        ("entry_1", "Requester", "local address"),
        ("entry_2", "Requester", "remote address"),
        ("entry_3", "Requester", "length, L_Key"),
        ("entry_4", "Requester", "R_Key, immediate"),
        ("entry_5", "Requester", "operand, or destination GID"),
        ("entry_6", "Requester", "operand, or destination GID"),
        ("entry_7", "Requester", "destination QPN, Q_Key"),
        ("first_psn", "Requester", "the first PSN that it uses"),
        ("packets", "Requester", "PSNs that it uses; of a READ those of its responses; 0 for what stays local"),
        ("sent", "SendQueue", "packets sent since the last rewind"),
        ("received", "Completer", "response packets of a READ that have been placed"),
        ("ssn", "Requester", "its sequence number"),
        ("status", "Requester", "what it completes with once everything before it has"),
        ("begun", "Requester", "a packet of it was ever sent"),
        ("executed", "Requester", "what stays local has had its effect"),
    ),
)

PIECE: Final = record(
    "READ piece",
    _SOURCE,
    (
        ("index", "Requester", "SQ index of its message"),
        ("first_psn", "Requester", "PSN of its first response"),
        ("offset", "Requester", "where in the message it begins, in bytes"),
        ("packets", "Requester", "responses that it asks for"),
        ("got", "Completer", "responses taken, in order"),
        ("asked", "Requester", "its one response was part of a longer request's and was asked for again alone"),
    ),
)

REPLY: Final = record(
    "reply",
    _SOURCE,
    (
        ("kind", "ReplyQueue", "ACK or NAK 0, READ responses 1, atomic acknowledge 2"),
        ("psn", "ReplyQueue", "PSN of its first packet"),
        ("packets", "ReplyQueue", "packets of it"),
        ("sent", "ReplyQueue", "packets sent"),
        ("syndrome", "ReplyQueue", "AETH syndrome"),
        ("msn", "ReplyQueue", "AETH message sequence number"),
        ("again", "ReplyQueue", "it answers a duplicate"),
        ("orig", "ReplyQueue", "original value of an atomic"),
        ("va", "ReplyQueue", "where a READ's bytes lie"),
        ("total", "ReplyQueue", "how many there are"),
        ("rkey", "ReplyQueue", "the key that opens them"),
        ("binding", "ReplyQueue", "binding of the key when the READ came; under R_Key 0 the key as well"),
    ),
)

RESOURCE: Final = record(
    "resource",
    "design.md; IBA C9-105",
    (
        ("psn", "Resources", "PSN of the request"),
        ("packets", "Resources", "PSNs that it takes"),
        ("opcode", "Resources", "its BTH opcode"),
        ("atomic", "Resources", "it is an atomic"),
        ("va", "Resources", "its remote address"),
        ("rkey", "Resources", "its key"),
        ("length", "Resources", "bytes that a READ asks for"),
        ("swap_add", "Resources", "an atomic's operand"),
        ("compare", "Resources", "what a compare-and-swap compares with"),
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
"""Slots for read pieces: as many requests as may be outstanding, one that a probe split off, and a spare."""
REPLIES: Final = 2 * MAX_RD_ATOMIC + 64
"""Most waiting replies: a READ and an ACK for each request that may be outstanding, and replies to duplicates."""
RESOURCES: Final = MAX_RD_ATOMIC
"""Executed READs and atomics kept to answer their duplicates."""
SCATTERS: Final = MAX_SGE
"""Scatter entries of one receive entry."""


class QpMemory:
    """Place of a queue pair's record and slots: ``qp`` is the record, runs of slots are places in ``cells``, in words.

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
        """Return all bytes, to compare two executors."""
        return bytes(self.qp) + bytes(self.arena.memory[self.slots : self.slots + self.size])

    def free(self) -> None:
        """Free the memory; the views must not be used anymore."""
        self.arena.free(self.record, QP.size)
        self.arena.free(self.slots, self.size)


class QpRecord(Record):
    """A class whose objects lie over a queue pair's record: its memory comes first, then what the class takes."""

    __slots__ = ()

    def __new__(cls, memory: QpMemory, *more: object) -> Self:
        """Lay it over the record."""
        return cls.from_buffer(memory.arena.memory, memory.record)
