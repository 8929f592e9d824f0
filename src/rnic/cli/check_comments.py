"""A copy of a capture in which each finding is a comment on its packet, which Wireshark and tshark show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from rnic.judge import RULES, Finding
from rnic.link.pcap import CapturedPacket, PcapngWriter
from rnic.wire.dissect import LINKTYPE_ETHERNET

MAX_COMMENTED = 100_000
"""Most packets that get comments."""
MAX_EACH = 16
"""Most findings written for one packet."""


def comment(finding: Finding) -> str:
    """Return the comment on a finding's packet; ``wireshark.lua`` reads it."""
    rule = RULES[finding.rule]
    return f"rnic {rule.severity}: {finding.detail} [{rule.id}: {rule.text}; {rule.clause}]"


class Comments:
    """Collects findings by frame, and writes them as comments."""

    def __init__(self) -> None:
        self._found: dict[int, list[str]] = {}

    def add(self, finding: Finding) -> None:
        """Take one finding."""
        texts = self._found.get(finding.frame)
        if texts is None:
            if len(self._found) >= MAX_COMMENTED:
                return
            texts = self._found[finding.frame] = []
        if len(texts) < MAX_EACH:
            texts.append(comment(finding))

    def write(self, file: BinaryIO, packets: Iterable[CapturedPacket]) -> None:
        """Write the packets again, with comments."""
        writer = None
        for number, packet in enumerate(packets, 1):
            if writer is None:
                writer = PcapngWriter(file, packet.linktype, "rnic check")
            comments = self._found.get(number, ())
            writer.write(packet.time_ns, packet.data, packet.length, linktype=packet.linktype, comments=comments)
        if writer is None:
            PcapngWriter(file, LINKTYPE_ETHERNET, "rnic check")
