"""The rules that a capture can show to be broken, each with its clause.

Sections of the InfiniBand Architecture Specification, volume 1 ("IBA"), are given by number where a public text
confirms the number, else by chapter; "A17" is its annex on RoCEv2.
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
    Rule("icrc", "A17, 17.9.3", ERROR, "the ICRC is right"),
    Rule("length", "A17, 17.9", ERROR, "IP and UDP lengths agree, and the packet ends on a word"),
    Rule("tver", "IBA ch. 9 (BTH)", ERROR, "the transport header version is 0"),
    Rule("opcode", "IBA 9.2.1, table 38", ERROR, "the opcode exists"),
    Rule("headers", "IBA 9.2", ERROR, "the packet holds what its opcode calls for, and nothing else"),
    Rule("reserved", "IBA ch. 9 (BTH)", NOTE, "reserved bits of the BTH are 0"),
    Rule("fragment", "A17, 17.9", NOTE, "the IPv4 packet may not be fragmented (DF)"),
    Rule("pkey", "IBA 10.9.3", ERROR, "the P_Key of a connection stays what it is"),
    Rule("solicited", "IBA ch. 9 (BTH)", WARNING, "only the end of a SEND or of a WRITE with immediate is solicited"),
    # ---- requests
    Rule("sequence", "IBA ch. 9 (packet opcode sequence)", ERROR, "a message is FIRST, MIDDLE ... LAST, or ONLY"),
    Rule("size", "IBA ch. 9 (payload length)", ERROR, "FIRST and MIDDLE carry one path MTU, LAST 1 byte to one"),
    Rule("pad", "IBA ch. 9 (BTH)", ERROR, "only the last packet of a message is padded"),
    Rule("dma-length", "IBA ch. 9 (RDMA WRITE)", ERROR, "the packets of a WRITE carry as much as its RETH says"),
    Rule("repeat", "IBA 9.7.5.1", ERROR, "a PSN that is used again carries the same packet"),
    Rule("repeat-payload", "IBA 9.7.5.1", WARNING, "a repeated packet carries the same bytes (or memory changed)"),
    Rule("psn-jump", "IBA ch. 9 (PSN)", ERROR, "each packet has the next PSN, or one that was used"),
    Rule("first-psn", "IBA ch. 12 (CM)", ERROR, "the first request has the PSN that connection management agreed on"),
    Rule("atomic-aligned", "IBA ch. 9 (atomics)", ERROR, "the address of an atomic is a multiple of 8"),
    Rule("read-length", "IBA ch. 9 (RDMA READ)", ERROR, "a READ asks for at most 2^31 bytes"),
    Rule("read-retry", "IBA 9.4.4", ERROR, "a READ that is repeated asks for a part of what it was"),
    Rule("rnr-wait", "IBA 9.7.5.2.8", ERROR, "after an RNR NAK nothing is repeated before its timer has run out"),
    Rule("credits", "IBA 9.7.7.2", WARNING, "without a credit only one packet of a message may be sent"),
    # ---- responses
    Rule("ack-unsent", "IBA 9.7.6", ERROR, "a response names a PSN that was sent"),
    Rule("syndrome", "IBA 9.7.5.1", ERROR, "the syndrome is an ACK, an RNR NAK or a NAK of table 44"),
    Rule("nak-once", "IBA 9.7.5.2", WARNING, "one NAK for a sequence error until the packet has come"),
    Rule("nak-acked", "IBA 9.7.5.1", ERROR, "no NAK names a PSN that was acknowledged"),
    Rule("ack-gap", "IBA 9.7.5.1", ERROR, "what a sequence NAK refused is not acknowledged before it was repeated"),
    Rule("ack-after-error", "IBA 9.7.5.2", ERROR, "behind a fatal NAK nothing is acknowledged"),
    Rule("rnr-kind", "IBA 9.7.5.2.8", ERROR, "an RNR NAK answers a message that needs a receive entry"),
    Rule("msn", "IBA 9.7.5.1", ERROR, "the MSN counts the messages that were completed"),
    Rule("response-bits", "IBA ch. 9 (BTH)", WARNING, "a response asks for no acknowledgement and solicits nothing"),
    Rule("read-order", "IBA 9.4.4", ERROR, "READ responses are FIRST, MIDDLE ... LAST, or ONLY, from its PSN on"),
    Rule("read-size", "IBA 9.4.4", ERROR, "READ responses carry what was asked for, one path MTU in each but the last"),
    Rule("read-unasked", "IBA 9.7.6", ERROR, "a READ response answers a READ"),
    Rule("atomic-unasked", "IBA 9.7.6", ERROR, "an atomic acknowledge answers an atomic"),
    Rule("atomic-replay", "IBA 9.7.5.1", ERROR, "an atomic that is repeated is answered with the same value"),
    Rule("read-as-ack", "IBA 9.7.6", ERROR, "a READ or atomic is answered by its data, not by an ACK"),
    # ---- datagrams, notifications
    Rule("ud-size", "IBA ch. 9 (UD)", ERROR, "a datagram holds at most one path MTU"),
    Rule("cnp-form", "A17, 17.9.3", ERROR, "a CNP has BECN set and 16 bytes of zeros"),
    Rule("cnp-rate", "A17, 17.9.3", WARNING, "CNPs of one flow are not closer than the merge period"),
)  # fmt: skip

RULES: Final[dict[str, Rule]] = {rule.id: rule for rule in _TABLE}
