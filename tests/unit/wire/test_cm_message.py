"""Messages of connection management: tables against a recording of Linux and against each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnic.link.pcap import read_packets
from rnic.wire.cm_message import CM_MESSAGES, CmMessage
from rnic.wire.dissect import dissect
from rnic.wire.mad import CM_NAMES, CM_REJ, CM_REP, CM_REQ, MAD_BYTES, Mad
from rnic.wire.pretty import describe_cm, headers, text

RPING = Path(__file__).parents[2] / "vectors" / "rxe" / "rping.pcap"


def recorded(count: int) -> list[CmMessage]:
    found = []
    for packet in list(read_packets(RPING))[:count]:
        frame = dissect(memoryview(packet.data), packet.linktype)
        found += [header for header in headers(frame.payload) if isinstance(header, CmMessage)]
    return found


def test_what_linux_said() -> None:
    request, reply, ready = recorded(3)
    assert request.layout is CM_MESSAGES[CM_REQ].layout
    asked = request.values()
    assert (asked["qpn"], asked["psn"], asked["path_mtu"]) == (0x28, 11_059_098, 5)
    assert (asked["retry_count"], asked["rnr_retry_count"], asked["pkey"]) == (7, 7, 0xFFFF)
    assert (asked["hop_limit"], asked["ack_timeout"]) == (64, 19)
    assert text(request, "primary_local_gid") == "::ffff:198.51.100.12"
    answer = reply.values()
    assert reply.layout is CM_MESSAGES[CM_REP].layout
    assert (answer["qpn"], answer["remote_comm_id"]) == (0x28, asked["local_comm_id"])
    assert ready.values() == {"local_comm_id": asked["local_comm_id"], "remote_comm_id": answer["local_comm_id"]}


@pytest.mark.parametrize("attribute", CM_MESSAGES)
def test_what_is_packed_is_parsed(attribute: int) -> None:
    kind = CM_MESSAGES[attribute]
    values = {field.name: index * 0x9E37_79B9_7F4A_7C15 & field.mask for index, field in enumerate(kind.layout.fields)}
    message = kind(**values)
    assert kind.parse(message.pack()).values() == values
    assert kind.layout.size <= MAD_BYTES - Mad.layout.size
    assert kind.__name__ == CM_NAMES[attribute]


def test_reject_says_why() -> None:
    assert describe_cm(CM_MESSAGES[CM_REJ](reason=28)).endswith("reason=28 (consumer reject)")
    assert describe_cm(CM_MESSAGES[CM_REJ](reason=99)).endswith("reason=99")
