"""Purpose of each rule and its usual cause of violation, in one or two sentences, for HTML reports."""

from __future__ import annotations

from typing import Final

EXPLANATIONS: Final[dict[str, str]] = {
    "icrc": (
        "Receivers silently drop a packet with a wrong ICRC. Usual causes: a link that corrupts packets, a switch"
        " that rewrites fields that the ICRC covers, or a sender that computes it wrongly."
    ),
    "length": (
        "Receivers drop a packet whose lengths contradict each other. The sender computes one of them wrongly, or"
        " the frame was corrupted."
    ),
    "ip-checksum": (
        "Routers drop such a packet. Another cause is a capture tool or a middlebox that changes headers without"
        " updating the checksum."
    ),
    "udp-checksum": (
        "A receiver may drop it. RoCEv2 over IPv4 sends 0. A checksum that is neither 0 nor correct comes from a"
        " faulty sender, or from a middlebox that changed the packet."
    ),
    "tver": "Receivers drop a packet of another version.",
    "opcode": "No operation has this number. Receivers drop the packet, or end the connection with a NAK.",
    "headers": (
        "The opcode determines which headers follow and whether there is a payload. Receivers drop a packet that is"
        " too short or too long for its opcode."
    ),
    "reserved": "Receivers ignore reserved bits. Some vendors use them.",
    "fragment": ("RoCEv2 packets must not be fragmented: receivers do not reassemble. Some senders do not set DF."),
    "pkey": "A packet of another partition is dropped and counted as a violation.",
    "source-port": (
        "Switches choose a path by the source port. Packets of one queue pair that take several paths arrive out of"
        " order and are retransmitted."
    ),
    "migreq": ("A receiver takes a changed MigReq as a request to migrate to the alternate path, which is not set up."),
    "solicited": "A needless solicited event wakes the receiver without a completion to handle.",
    "sequence": "The receiver answers with a NAK for an invalid request, and the connection ends.",
    "size": (
        "Only the last packet of a message may be short. The two ends may have been set up with different path MTUs."
    ),
    "pad": "Receivers drop a padded packet in the middle of a message.",
    "dma-length": (
        "The receiver answers with a NAK for an invalid request: the data is longer or shorter than the RETH says."
    ),
    "repeat": (
        "A responder that has the first packet treats the second one as a duplicate and does not execute it. So one"
        " of the two requests is lost."
    ),
    "repeat-payload": (
        "The memory was changed before the request was complete, or the sender retransmits from a wrong address."
    ),
    "psn-jump": "The receiver answers with a sequence NAK or drops the packet.",
    "psn-order": ("The receiver takes a PSN that comes too early as a loss, and asks for packets not sent yet."),
    "queue-pair": ("One queue pair waits for a packet that another one got. Both answer with a NAK, or not at all."),
    "first-psn": "The receiver expects the PSN of connection management and drops packets with others.",
    "atomic-aligned": "The responder answers with a NAK for an invalid request.",
    "read-length": "The responder answers with a NAK for an invalid request.",
    "read-retry": (
        "A responder recognizes a repeated READ by its PSN, and may check that it asks for no more than the first one."
    ),
    "rnr-wait": (
        "The responder said how long it needs. A requester that retries sooner finds no receive entry again, and"
        " uses up its retries."
    ),
    "credits": "A message without a credit finds no receive entry, and costs an RNR NAK.",
    "ack-unsent": ("The requester drops a response to a PSN that it has not sent. The PSNs of the two ends differ."),
    "syndrome": "The requester cannot interpret the response and drops it.",
    "nak-once": "Each further NAK makes the requester retransmit everything once more.",
    "nak-acked": "The requester must drop it: acknowledged requests are no longer held for retransmission.",
    "ack-gap": (
        "A packet that was refused and never retransmitted cannot have arrived. Its message is lost but reported done."
    ),
    "ack-after-error": "The queue pair has failed. Requests acknowledged after that were never executed.",
    "rnr-kind": "Only SENDs, and WRITEs with immediate, need a receive entry.",
    "msn": "The requester completes its messages by this count. A wrong one completes too many, or too few.",
    "response-bits": "These bits have no meaning in a response. Some requesters drop such a packet.",
    "read-order": "The requester takes a response out of order as a loss and repeats the READ.",
    "read-size": "The requester drops the response or fails with a length error.",
    "read-unasked": "The requester drops it. The PSNs of the two ends may differ.",
    "atomic-unasked": "The requester drops it. The PSNs of the two ends may differ.",
    "atomic-replay": ("The atomic was executed twice: a duplicate must be answered with the saved result."),
    "read-as-ack": ("The requester gets no data for its READ or atomic, and retries until its retries are used up."),
    "gsi-qkey": "The receiver drops the datagram: no connection is ever set up.",
    "mad-version": "The receiver drops the datagram or answers with status unsupported version.",
    "ud-size": "The receiver drops a datagram that is longer than the path MTU.",
    "cnp-form": "The sender does not recognize the CNP and does not slow down.",
    "cnp-rate": "A sender that gets CNPs too often slows down more than congestion asks for.",
}
"""Explanations by rule identifier."""
