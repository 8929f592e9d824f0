"""Records of paths to peers: C's copy of a :class:`~rnic.wire.flow.Flow`. A record is immutable."""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_ADDRESS: Final = "in network byte order; IPv4 uses only the first four"
HEADER_WORDS: Final = 7

FLOW: Final = record(
    "flow",
    "Annex A17, 17.9.3; design.md, Contexts are real, and state is bytes",
    (
        ("family", "Flow", "4 or 6: the IP version"),
        ("src_0", "Flow", f"sender's address, bytes 0 to 7: {_ADDRESS}"),
        ("src_1", "Flow", "bytes 8 to 15"),
        ("dst_0", "Flow", f"receiver's address, bytes 0 to 7: {_ADDRESS}"),
        ("dst_1", "Flow", "bytes 8 to 15"),
        ("sport", "Flow", "sender's UDP port"),
        ("dport", "Flow", "receiver's UDP port"),
        ("tclass", "Flow", "type of service or traffic class"),
        ("hop_limit", "Flow", "time to live or hop limit"),
        ("flow_label", "Flow", "IPv6 flow label"),
        ("sl", "Flow", "service level: the priority in the sender's queues"),
        ("smac", "Flow", "sender's MAC address, 0 where the link makes one up"),
        ("dmac", "Flow", "receiver's MAC address, 0 where the link makes one up"),
        ("users", "Paths", "number of queue pairs that use the path"),
        ("seed", "Flow", "CRC-32 of the header below with lengths and ident zero; XOR their effect in"),
        ("header_bytes", "Flow", "length of the header below, 36 or 56"),
        *((f"header_{n}", "Flow", f"ones, IP and UDP header, masked for the ICRC, bytes {8 * n} to {8 * n + 7}")
          for n in range(HEADER_WORDS)),
    ),
)  # fmt: skip
