"""The rules that a capture can be checked against, each with its clause.

Sections of the InfiniBand Architecture Specification, volume 1 ("IBA"), have their number if a public text
confirms it, otherwise the chapter; "A17" is its annex on RoCEv2.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ERROR: Final = "error"
WARNING: Final = "warning"
NOTE: Final = "note"
SEVERITIES: Final = (ERROR, WARNING, NOTE)


class Rule(NamedTuple):
    """``severity``: an error breaks the standard; a warning most likely does; a note is legal or a known quirk."""

    id: str
    clause: str
    severity: str
    text: str


_TABLE = (
    # ---- any packet
    Rule("icrc", "A17, 17.9.3", ERROR, "the ICRC is correct"),
    Rule("length", "A17, 17.9", ERROR, "IP and UDP lengths agree, and the packet ends on a word"),
    Rule("ip-checksum", "RFC 791, 3.1", ERROR, "the IPv4 header checksum is correct, or left to checksum offload"),
    Rule("udp-checksum", "RFC 768", ERROR, "the UDP checksum is 0 or correct"),
    Rule("tver", "IBA ch. 9 (BTH)", ERROR, "the transport header version is 0"),
    Rule("opcode", "IBA 9.2.1, table 38", ERROR, "the opcode exists"),
    Rule("headers", "IBA 9.2", ERROR, "the packet has the headers and payload of its opcode, and nothing else"),
    Rule("reserved", "IBA ch. 9 (BTH)", NOTE, "reserved bits of the BTH are 0"),
    Rule("fragment", "A17, 17.9", NOTE, "the IPv4 packet may not be fragmented (DF)"),
    Rule("pkey", "IBA 10.9.3", ERROR, "the P_Key of a connection does not change"),
    Rule("source-port", "A17, 17.9.2", WARNING, "packets of one queue pair have one UDP source port"),
    Rule("migreq", "IBA 17.2.8", WARNING, "MigReq does not change without an alternate path"),
    Rule("solicited", "IBA ch. 9 (BTH)", WARNING, "only the end of a SEND or of a WRITE with immediate is solicited"),
    # ---- requests
    Rule("sequence", "IBA ch. 9 (packet opcode sequence)", ERROR, "a message is FIRST, MIDDLE ... LAST, or ONLY"),
    Rule("size", "IBA ch. 9 (payload length)", ERROR, "FIRST and MIDDLE carry one path MTU, LAST 1 byte to one"),
    Rule("pad", "IBA ch. 9 (BTH)", ERROR, "only the last packet of a message is padded"),
    Rule("dma-length", "IBA ch. 9 (RDMA WRITE)", ERROR, "the packets of a WRITE carry as many bytes as its RETH says"),
    Rule("repeat", "IBA 9.7.5.1", ERROR, "a retransmission repeats the packet of its PSN"),
    Rule("repeat-payload", "IBA 9.7.5.1", WARNING, "a retransmission carries the same bytes (unless memory changed)"),
    Rule("psn-jump", "IBA ch. 9 (PSN)", ERROR, "each packet has the next PSN, or one used before"),
    Rule("psn-order", "IBA ch. 9 (PSN)", WARNING, "new packets are sent in the order of their PSNs"),
    Rule("queue-pair", "IBA ch. 9 (BTH)", WARNING, "all packets of a message go to one queue pair"),
    Rule("first-psn", "IBA ch. 12 (CM)", ERROR, "the first request has the PSN that connection management agreed on"),
    Rule("atomic-aligned", "IBA ch. 9 (atomics)", ERROR, "the address of an atomic is a multiple of 8"),
    Rule("read-length", "IBA ch. 9 (RDMA READ)", ERROR, "a READ asks for at most 2^31 bytes"),
    Rule("read-retry", "IBA 9.4.4", ERROR, "a repeated READ asks for a part of the first one"),
    Rule("rnr-wait", "IBA 9.7.5.2.8", ERROR, "after an RNR NAK nothing is retransmitted before its timer expires"),
    Rule("credits", "IBA 9.7.7.2", WARNING, "without a credit only one packet of a message may be sent"),
    # ---- responses
    Rule("ack-unsent", "IBA 9.7.6", ERROR, "a response names a PSN that was sent"),
    Rule("syndrome", "IBA 9.7.5.1", ERROR, "the syndrome is an ACK, an RNR NAK or a NAK of table 44"),
    Rule("nak-once", "IBA 9.7.5.2", WARNING, "one NAK per sequence error until the packet arrives"),
    Rule("nak-acked", "IBA 9.7.5.1", ERROR, "no NAK names a PSN that was acknowledged"),
    Rule("ack-gap", "IBA 9.7.5.1", ERROR, "no ACK for a packet refused by a sequence NAK before its retransmission"),
    Rule("ack-after-error", "IBA 9.7.5.2", ERROR, "after a fatal NAK nothing is acknowledged"),
    Rule("rnr-kind", "IBA 9.7.5.2.8", ERROR, "an RNR NAK answers a message that needs a receive entry"),
    Rule("msn", "IBA 9.7.5.1", ERROR, "the MSN is the number of completed messages"),
    Rule("response-bits", "IBA ch. 9 (BTH)", WARNING, "a response asks for no acknowledgement and solicits nothing"),
    Rule("read-order", "IBA 9.4.4", ERROR, "READ responses are FIRST, MIDDLE ... LAST, or ONLY, from its PSN on"),
    Rule("read-size", "IBA 9.4.4", ERROR, "READ responses carry the requested bytes, each but the last one path MTU"),
    Rule("read-unasked", "IBA 9.7.6", ERROR, "a READ response answers a READ"),
    Rule("atomic-unasked", "IBA 9.7.6", ERROR, "an atomic acknowledge answers an atomic"),
    Rule("atomic-replay", "IBA 9.7.5.1", ERROR, "a repeated atomic is answered with the same value"),
    Rule("read-as-ack", "IBA 9.7.6", ERROR, "a READ or atomic is answered by its data, not by an ACK"),
    # ---- datagrams, notifications
    Rule("gsi-qkey", "IBA 10.2.5", ERROR, "a datagram to QP1 has its Q_Key"),
    Rule("mad-version", "IBA 13.4", ERROR, "a MAD has base version 1 and the version of its class"),
    Rule("ud-size", "IBA ch. 9 (UD)", ERROR, "a datagram holds at most one path MTU"),
    Rule("cnp-form", "A17, 17.9.3", ERROR, "a CNP has BECN set and 16 bytes of zeros"),
    Rule("cnp-rate", "A17, 17.9.3", WARNING, "CNPs of one flow are at least the merge period apart"),
)  # fmt: skip

RULES: Final[dict[str, Rule]] = {rule.id: rule for rule in _TABLE}
