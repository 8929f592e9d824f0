"""Messages of communication management: places typed from the standard."""

from __future__ import annotations

import pytest

from rnic.wire import cm, mad


@pytest.mark.parametrize(
    ("attr", "private"),
    [
        (mad.CM_REQ, 92),
        (mad.CM_MRA, 222),
        (mad.CM_REJ, 148),
        (mad.CM_REP, 196),
        (mad.CM_RTU, 224),
        (mad.CM_DREQ, 220),
        (mad.CM_DREP, 224),
        (mad.CM_LAP, 168),
        (mad.CM_APR, 148),
        (mad.CM_SIDR_REQ, 216),
        (mad.CM_SIDR_REP, 136),
    ],
)
def test_room_for_private_data(attr: int, private: int) -> None:
    """As the tables of IBA chapter 12 give it."""
    assert cm.private_bytes(attr) == private
    datagram = cm.pack(attr, 1, {}, bytes(range(1, private + 1)))
    assert len(datagram) == 256
    message = cm.parse(datagram)
    assert message is not None
    assert message.private == bytes(range(1, private + 1))
    with pytest.raises(ValueError, match="private data"):
        cm.pack(attr, 1, {}, bytes(private + 1))


def place(attr: int, **fields: int) -> dict[int, int]:
    """The bytes behind the MAD header that differ from zero, by place."""
    body = cm.pack(attr, 0, fields)[24:]
    return {at: value for at, value in enumerate(body) if value}


@pytest.mark.parametrize(
    ("name", "value", "bytes_"),
    [
        ("local_comm_id", 0x01020304, {0: 1, 1: 2, 2: 3, 3: 4}),
        ("service_id", 0x0106_1C06, {12: 1, 13: 6, 14: 0x1C, 15: 6}),
        ("ca_guid", 0xAB, {23: 0xAB}),
        ("qpn", 0x112233, {32: 0x11, 33: 0x22, 34: 0x33}),
        ("responder_resources", 7, {35: 7}),
        ("initiator_depth", 9, {39: 9}),
        ("remote_cm_timeout", 20, {43: 20 << 3}),
        ("transport", 1, {43: 1 << 1}),
        ("flow_control", 1, {43: 1}),
        ("psn", 0x445566, {44: 0x44, 45: 0x55, 46: 0x66}),
        ("local_cm_timeout", 20, {47: 20 << 3}),
        ("retry_count", 7, {47: 7}),
        ("pkey", 0xFFFF, {48: 0xFF, 49: 0xFF}),
        ("path_mtu", 3, {50: 3 << 4}),
        ("rnr_retry_count", 7, {50: 7}),
        ("max_cm_retries", 15, {51: 0xF0}),
        ("srq", 1, {51: 8}),
        ("primary_local_gid", 5, {71: 5}),
        ("primary_remote_gid", 6, {87: 6}),
        ("traffic_class", 0x68, {92: 0x68}),
        ("hop_limit", 64, {93: 64}),
        ("sl", 5, {94: 0x50}),
        ("ack_timeout", 18, {95: 18 << 3}),
    ],
)
def test_places_in_a_request(name: str, value: int, bytes_: dict[int, int]) -> None:
    assert place(mad.CM_REQ, **{name: value}) == bytes_


@pytest.mark.parametrize(
    ("attr", "name", "value", "bytes_"),
    [
        (mad.CM_REP, "qkey", 0x80010000, {8: 0x80, 9: 1}),
        (mad.CM_REP, "qpn", 0x112233, {12: 0x11, 13: 0x22, 14: 0x33}),
        (mad.CM_REP, "psn", 0x445566, {20: 0x44, 21: 0x55, 22: 0x66}),
        (mad.CM_REP, "responder_resources", 4, {24: 4}),
        (mad.CM_REP, "initiator_depth", 5, {25: 5}),
        (mad.CM_REP, "ack_delay", 15, {26: 15 << 3}),
        (mad.CM_REP, "flow_control", 1, {26: 1}),
        (mad.CM_REP, "rnr_retry_count", 7, {27: 7 << 5}),
        (mad.CM_REP, "srq", 1, {27: 1 << 4}),
        (mad.CM_REP, "ca_guid", 1 << 56, {28: 1}),
        (mad.CM_MRA, "message", 1, {8: 0x40}),
        (mad.CM_MRA, "service_timeout", 24, {9: 24 << 3}),
        (mad.CM_REJ, "message", 1, {8: 0x40}),
        (mad.CM_REJ, "reason", 28, {11: 28}),
        (mad.CM_DREQ, "qpn", 0x112233, {8: 0x11, 9: 0x22, 10: 0x33}),
        (mad.CM_SIDR_REQ, "service_id", 0x0111_0007, {12: 1, 13: 0x11, 15: 7}),
        (mad.CM_SIDR_REP, "status", 2, {4: 2}),
        (mad.CM_SIDR_REP, "qpn", 0x112233, {8: 0x11, 9: 0x22, 10: 0x33}),
        (mad.CM_SIDR_REP, "service_id", 7, {19: 7}),
        (mad.CM_SIDR_REP, "qkey", 0x01234567, {20: 1, 21: 0x23, 22: 0x45, 23: 0x67}),
        (mad.CM_APR, "status", 2, {9: 2}),
    ],
)
def test_places_in_other_messages(attr: int, name: str, value: int, bytes_: dict[int, int]) -> None:
    assert place(attr, **{name: value}) == bytes_


def test_the_header() -> None:
    assert cm.pack(mad.CM_RTU, 0x1122334455667788, {})[:24].hex() == (
        "01070203" + "00000000" + "1122334455667788" + "0014" + "0000" + "00000000"
    )


@pytest.mark.parametrize("at", [0, 1, 2, 3, 17])
def test_what_is_another_classs_is_none(at: int) -> None:
    datagram = bytearray(cm.pack(mad.CM_RTU, 1, {}))
    assert cm.parse(bytes(datagram)) is not None
    datagram[at] ^= 0x80
    assert cm.parse(bytes(datagram)) is None


def test_datagrams_of_another_size_are_none() -> None:
    assert cm.parse(bytes(255)) is None
    assert cm.parse(b"") is None
