"""The bridge without a network: the test is its queue pair."""

from __future__ import annotations

import pytest

from rnic.paxi import bridge as b
from rnic.paxi.axi import Address, WriteBeat, WriteResponse
from rnic.paxi.bridge import Bridge, BridgeConfig, Request
from rnic.paxi.window import write_beats
from rnic.spec.axi import Burst, Resp

REMOTE = 0x7000_0000
BASE = 0x1_0000
PSN = 0xFFFFFE
"""PSNs wrap within the first requests."""


def make(**options: int) -> tuple[Bridge, bytearray]:
    config = BridgeConfig(**({"size": 1 << 16, "base": BASE, "remote": REMOTE, "data_bits": 64} | options))
    staging = bytearray(config.staging_bytes)
    bridge = Bridge(config, memoryview(staging))
    bridge.connected(PSN, 1024)
    return bridge, staging


def write(bridge: Bridge, addr: int, data: bytes, ident: int = 0, size: int = 3, mask: list[int] | None = None) -> None:
    beats = -(-(addr % (1 << size) + len(data)) // (1 << size))
    address = Address(ident, addr, beats - 1, size)
    bridge.address_write(address)
    for beat in write_beats(address, memoryview(data), bridge.lanes, mask):
        bridge.write_data(beat)


def posted(bridge: Bridge) -> list[Request]:
    return list(iter(bridge.next_request, None))


def responses(bridge: Bridge) -> list[tuple[int, int]]:
    return [(each.id, each.resp) for each in iter(bridge.write_response, None)]


def test_a_write_is_one_request_and_b_waits_for_it() -> None:
    bridge, staging = make()
    write(bridge, BASE + 0x103, b"0123456789ABCDEF")
    (request,) = posted(bridge)
    assert request[1:] == (True, request.offset, REMOTE + 0x103, 16)
    assert staging[request.offset : request.offset + 16] == b"0123456789ABCDEF"
    assert responses(bridge) == []
    bridge.complete(request.serial, b.SUCCESS)
    assert responses(bridge) == [(0, Resp.OKAY)]
    assert bridge.idle


def test_a_read_gives_lanes() -> None:
    bridge, staging = make()
    bridge.address_read(Address(5, BASE + 0x1D, 2, 2))
    (request,) = posted(bridge)
    assert (request.write, request.remote, request.length) == (False, REMOTE + 0x1D, 11)
    staging[request.offset : request.offset + 11] = b"abcdefghijk"
    assert bridge.read_beat() is None
    bridge.complete(request.serial, b.SUCCESS)
    beats = list(iter(bridge.read_beat, None))
    assert [beat.data for beat in beats] == [b"\0\0\0\0\0abc", b"defg\0\0\0\0", b"\0\0\0\0hijk"]
    assert [(beat.id, beat.resp, beat.last) for beat in beats] == [(5, 0, False), (5, 0, False), (5, 0, True)]


def test_holes_split_a_write_and_b_waits_for_all_pieces() -> None:
    bridge, staging = make()
    write(bridge, BASE + 4, bytes(range(16)), mask=[1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1])
    requests = posted(bridge)
    assert [(each.remote - REMOTE, each.length) for each in requests] == [(4, 2), (8, 7), (19, 1)]
    assert [staging[each.offset] for each in requests] == [0, 4, 15]
    for request in requests[:-1]:
        bridge.complete(request.serial, b.SUCCESS)
        assert responses(bridge) == []
    bridge.complete(requests[-1].serial, b.SUCCESS)
    assert responses(bridge) == [(0, Resp.OKAY)]
    assert bridge.counters["paxi_split_pieces"] == 2


def test_a_write_without_a_strobe_needs_no_request() -> None:
    bridge, _ = make()
    write(bridge, BASE, bytes(8), mask=[0] * 8)
    assert posted(bridge) == []
    assert responses(bridge) == [(0, Resp.OKAY)]


def test_answers_of_one_id_keep_their_order_and_others_overtake() -> None:
    bridge, _ = make()
    write(bridge, BASE, b"first", ident=1)
    write(bridge, 0, b"nowhere", ident=1)
    write(bridge, 0, b"nowhere", ident=2)
    assert responses(bridge) == [(2, Resp.DECERR)]
    (request,) = posted(bridge)
    bridge.complete(request.serial, b.SUCCESS)
    assert responses(bridge) == [(1, Resp.OKAY), (1, Resp.DECERR)]


def test_the_beats_of_one_read_stay_together() -> None:
    bridge, _ = make()
    bridge.address_read(Address(1, BASE, 3, 3))
    bridge.address_read(Address(2, BASE, 3, 3))
    for request in posted(bridge):
        bridge.complete(request.serial, b.SUCCESS)
    assert [beat.id for beat in iter(bridge.read_beat, None)] == [1, 1, 1, 1, 2, 2, 2, 2]


def test_slots_are_bounded() -> None:
    bridge, _ = make(read_slots=2, write_slots=1, requests=2)

    def can_read() -> bool:
        return bridge.can_read

    bridge.address_read(Address(0, BASE, 0, 3))
    assert can_read()
    bridge.address_read(Address(0, BASE, 0, 3))
    assert (bridge.can_read, bridge.can_write, bridge.can_data) == (False, True, False)
    bridge.address_write(Address(0, BASE, 1, 3))
    assert (bridge.can_write, bridge.can_data) == (False, True)
    bridge.write_data(WriteBeat(bytes(8), 255, False))
    bridge.write_data(WriteBeat(bytes(8), 255, True))
    assert not bridge.can_data
    requests = posted(bridge)
    assert len(requests) == 2
    bridge.complete(requests[0].serial, b.SUCCESS)
    assert len(posted(bridge)) == 1
    assert not can_read(), "the slot is free once R was taken"
    assert bridge.read_beat() is not None
    assert can_read()


@pytest.mark.parametrize(
    ("address", "resp", "counter"),
    [
        (Address(3, BASE, 16, 3, Burst.FIXED), Resp.SLVERR, "paxi_refused_length"),
        (Address(3, BASE, 4, 3, Burst.WRAP), Resp.SLVERR, "paxi_refused_length"),
        (Address(3, BASE + 4, 3, 3, Burst.WRAP), Resp.SLVERR, "paxi_refused_alignment"),
        (Address(3, BASE, 3, 3, 3), Resp.SLVERR, "paxi_refused_burst_type"),
        (Address(3, BASE - 8, 3, 2, Burst.WRAP), Resp.DECERR, "paxi_decerr"),
        (Address(3, BASE + 0xFF8, 1, 3), Resp.SLVERR, "paxi_refused_4_kb_boundary"),
        (Address(3, BASE, 0, 4), Resp.SLVERR, "paxi_refused_size"),
        (Address(3, BASE - 8, 0, 3), Resp.DECERR, "paxi_decerr"),
        (Address(3, BASE + (1 << 16), 0, 3), Resp.DECERR, "paxi_decerr"),
    ],
)
def test_what_is_answered_without_the_remote(address: Address, resp: int, counter: str) -> None:
    bridge, _ = make()
    bridge.address_read(address)
    beats = list(iter(bridge.read_beat, None))
    assert [(beat.id, beat.resp, beat.data) for beat in beats] == [(3, resp, bytes(8))] * (address.len + 1)
    assert beats[-1].last
    bridge.address_write(address)
    for number in range(address.len + 1):
        bridge.write_data(WriteBeat(bytes(8), 255, number == address.len))
    assert responses(bridge) == [(3, resp)]
    assert posted(bridge) == []
    assert bridge.counters[counter] == 2


def test_a_wrapping_read_is_one_request_for_its_container() -> None:
    bridge, staging = make()
    bridge.address_read(Address(5, BASE + 0x18, 3, 3, Burst.WRAP))
    (request,) = posted(bridge)
    assert (request.remote, request.length) == (REMOTE, 32)
    staging[request.offset : request.offset + 32] = bytes(range(32))
    bridge.complete(request.serial, b.SUCCESS)
    data = b"".join(beat.data for beat in iter(bridge.read_beat, None))
    assert data == bytes([*range(24, 32), *range(24)])


def test_a_wrapping_write_goes_as_what_lies_together() -> None:
    bridge, staging = make()
    bridge.address_write(Address(5, BASE + 0x18, 3, 3, Burst.WRAP))
    for number in range(4):
        bridge.write_data(WriteBeat(bytes([number]) * 8, 255, number == 3))
    found = {}
    for request in posted(bridge):
        found[request.remote] = bytes(staging[request.offset : request.offset + request.length])
        bridge.complete(request.serial, b.SUCCESS)
    assert found == {REMOTE + 24: bytes(8), REMOTE: b"\1" * 8 + b"\2" * 8 + b"\3" * 8}
    assert responses(bridge) == [(5, Resp.OKAY)]


def test_the_last_beat_of_a_fixed_write_that_writes_a_byte_counts() -> None:
    bridge, staging = make()
    bridge.address_write(Address(5, BASE + 8, 2, 3, Burst.FIXED))
    for number, strobe in enumerate((0b0000_1111, 0b1100_0001, 0)):
        bridge.write_data(WriteBeat(bytes([65 + number]) * 8, strobe, number == 2))
    found = {request.remote: request for request in posted(bridge)}
    assert {at: bytes(staging[each.offset :][: each.length]) for at, each in found.items()} == {
        REMOTE + 8: b"BAAA",
        REMOTE + 14: b"BB",
    }
    bridge.address_read(Address(1, BASE + 13, 2, 2, Burst.FIXED))
    read = posted(bridge)[0]
    assert (read.remote, read.length) == (REMOTE + 13, 3)
    staging[read.offset : read.offset + 3] = b"xyz"
    for each in [*found.values(), read]:
        bridge.complete(each.serial, b.SUCCESS)
    assert [beat.data for beat in iter(bridge.read_beat, None)] == [b"\0" * 5 + b"xyz"] * 3


def test_a_strobe_outside_the_beats_lanes() -> None:
    bridge, _ = make()
    bridge.address_write(Address(0, BASE, 1, 1))
    bridge.write_data(WriteBeat(bytes(8), 0b0011, False))
    bridge.write_data(WriteBeat(bytes(8), 0b0111, True))
    assert (posted(bridge), responses(bridge)) == ([], [(0, Resp.SLVERR)])
    assert bridge.counters["paxi_refused_strobe"] == 1


@pytest.mark.parametrize("beats", [1, 3])
def test_wlast_in_the_wrong_place_ends_the_burst(beats: int) -> None:
    bridge, _ = make()
    bridge.address_write(Address(0, BASE, 1, 3))
    for number in range(beats):
        bridge.write_data(WriteBeat(bytes(8), 255, number == beats - 1))
    assert (posted(bridge), responses(bridge)) == ([], [(0, Resp.SLVERR)])
    write(bridge, BASE, b"the next is well")
    assert len(posted(bridge)) == 1


def test_a_beat_that_the_window_ends_within() -> None:
    bridge, staging = make(size=0x1003)
    staging[:] = b"\xee" * len(staging)
    bridge.address_read(Address(0, BASE + 0x1000, 0, 3))
    (request,) = posted(bridge)
    assert (request.remote, request.length) == (REMOTE + 0x1000, 3)
    bridge.complete(request.serial, b.SUCCESS)
    beat = bridge.read_beat()
    assert beat is not None
    assert beat.data == b"\xee\xee\xee\0\0\0\0\0"
    write(bridge, BASE + 0x1000, b"abc")
    assert [each.length for each in posted(bridge)] == [3]
    write(bridge, BASE + 0x1000, b"abcd", ident=1)
    assert responses(bridge) == [(1, Resp.DECERR)]


# ------------------------------------------------------------------------------------ broken connections


def broken(count: int = 4) -> tuple[Bridge, list[Request]]:
    """writes of 2000 bytes (two packets) of IDs 0, 1, 2 ...; the connection broke before any was acknowledged."""
    bridge, _ = make()
    for ident in range(count):
        write(bridge, BASE + 0x1000 * ident, bytes(range(250)) * 8, ident)
    requests = posted(bridge)
    for request in requests:
        bridge.complete(request.serial, b.UNKNOWN)
    return bridge, requests


def at(bridge: Bridge, packet: int) -> int:
    return (PSN + packet) & 0xFFFFFF


def test_what_the_remote_executed_counts_and_the_rest_is_posted_again() -> None:
    bridge, requests = broken()
    assert (bridge.link, bridge.drained) == (b.BROKEN, True)
    assert posted(bridge) == []
    bridge.resume(at(bridge, 2 + 1), False)  # two packets a write; all of the first, half of the second
    bridge.connected(0, 1024)
    again = posted(bridge)
    assert [(each.remote, each.length) for each in again] == [
        (requests[1].remote + 1024, 2000 - 1024),
        *((each.remote, each.length) for each in requests[2:]),
    ]
    assert responses(bridge) == [(0, Resp.OKAY)]
    for request in again:
        bridge.complete(request.serial, b.SUCCESS)
    assert responses(bridge) == [(1, Resp.OKAY), (2, Resp.OKAY), (3, Resp.OKAY)]


@pytest.mark.parametrize("packet", [2, 3])
def test_a_refusal_whose_nak_was_lost(packet: int) -> None:
    bridge, _ = broken()
    bridge.resume(at(bridge, packet), True)
    bridge.connected(0, 1024)
    assert responses(bridge) == [(0, Resp.OKAY), (1, Resp.DECERR)]
    assert len(posted(bridge)) == 2


def test_a_refusal_with_its_nak() -> None:
    bridge, _ = make()
    for ident in range(3):
        bridge.address_read(Address(ident, BASE, 0, 3))
    for request, outcome in zip(posted(bridge), (b.SUCCESS, b.REFUSED, b.UNKNOWN), strict=True):
        bridge.complete(request.serial, outcome)
    bridge.resume(at(bridge, 1), True)
    bridge.connected(0, 1024)
    assert [(beat.id, beat.resp) for beat in iter(bridge.read_beat, None)] == [(0, Resp.OKAY), (1, Resp.DECERR)]
    assert len(posted(bridge)) == 1
    assert not bridge.interrupts >> b.IRQ_RETRY_ERROR & 1


def test_a_read_that_was_executed_and_not_received_is_read_again() -> None:
    bridge, _ = make()
    bridge.address_read(Address(0, BASE, 0, 3))
    bridge.complete(posted(bridge)[0].serial, b.UNKNOWN)
    bridge.resume(at(bridge, 1), False)
    bridge.connected(0, 1024)
    (again,) = posted(bridge)
    bridge.complete(again.serial, b.SUCCESS)
    assert bridge.read_beat() == (0, bytes(8), Resp.OKAY, True)


def test_pieces_of_one_write_are_posted_again_in_their_order() -> None:
    bridge, _ = make(requests=3)
    write(bridge, BASE, bytes(16), mask=[1, 0] * 8)
    requests = posted(bridge)
    for request, outcome in zip(requests, (b.SUCCESS, b.UNKNOWN, b.UNKNOWN), strict=True):
        bridge.complete(request.serial, outcome)
    bridge.resume(at(bridge, 2), False)
    bridge.connected(0, 1024)
    places = []
    while requests := posted(bridge):
        for request in requests:
            places.append(request.remote - REMOTE)
            bridge.complete(request.serial, b.SUCCESS)
    assert places == [4, 6, 8, 10, 12, 14]
    assert responses(bridge) == [(0, Resp.OKAY)]


def test_a_piece_that_is_refused_ends_its_write() -> None:
    bridge, _ = make(requests=3)
    write(bridge, BASE, bytes(16), mask=[1, 0] * 8)
    write(bridge, BASE + 64, bytes(8), ident=1)
    for request, outcome in zip(posted(bridge), (b.SUCCESS, b.REFUSED, b.UNKNOWN), strict=True):
        bridge.complete(request.serial, outcome)
    bridge.resume(at(bridge, 1), True)
    bridge.connected(0, 1024)
    assert responses(bridge) == [(0, Resp.DECERR)]
    assert [each.remote - REMOTE for each in posted(bridge)] == [64]


def test_a_request_that_cannot_be_carried_out_is_slverr() -> None:
    bridge, _ = make()
    write(bridge, BASE, bytes(8))
    bridge.complete(posted(bridge)[0].serial, b.FAILED)
    bridge.resume(at(bridge, 0), True)
    assert responses(bridge) == [(0, Resp.SLVERR)]


def test_a_lost_remote_is_slverr_for_all_that_is_in_hand_and_all_that_comes() -> None:
    bridge, _ = broken(2)
    bridge.address_read(Address(7, BASE, 1, 3))
    bridge.address_write(Address(8, BASE, 1, 3))
    bridge.write_data(WriteBeat(bytes(8), 255, False))
    bridge.abandon()
    assert [beat.resp for beat in iter(bridge.read_beat, None)] == [Resp.SLVERR] * 2
    assert responses(bridge) == [(0, Resp.SLVERR), (1, Resp.SLVERR)]
    bridge.write_data(WriteBeat(bytes(8), 255, True))
    assert bridge.write_response() == WriteResponse(8, Resp.SLVERR)
    write(bridge, BASE, b"x")
    assert responses(bridge) == [(0, Resp.SLVERR)]
    assert (bridge.link, bridge.idle) == (b.DOWN, True)
    bridge.connected(0, 1024)
    write(bridge, BASE, b"x")
    assert len(posted(bridge)) == 1
    assert bridge.interrupts == 1 << b.IRQ_RETRY_ERROR | 1 << b.IRQ_RETRY_CLEARED


def test_connections_that_break_before_anything_is_done_end_it() -> None:
    bridge, _ = broken(1)
    for _ in range(b.MAX_RECOVERIES):
        assert not bridge.hopeless
        bridge.resume(at(bridge, 0), False)
        bridge.connected(PSN, 1024)
        bridge.complete(posted(bridge)[0].serial, b.UNKNOWN)
    assert bridge.hopeless


def test_software_may_keep_the_recovery_to_itself() -> None:
    bridge, _ = make()
    bridge.self_recover = False
    write(bridge, BASE, b"x")
    bridge.complete(posted(bridge)[0].serial, b.UNKNOWN)
    assert bridge.hopeless


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_bits": 48}, "data_bits=48: choose one of 8, 16, 32, 64, 128, 256, 512, 1024"),
        ({"read_slots": 0}, "read_slots=0: 1 to 256"),
        ({"write_slots": 257}, "write_slots=257: 1 to 256"),
        ({"requests": 0}, "requests=0: 1 to 32767"),
        ({"size": -1}, "size=-1: 0 to"),
        ({"size": 16, "base": (1 << 64) - 15}, "base=18446744073709551601: 0 to"),
    ],
)
def test_options_out_of_range(options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BridgeConfig(**options)
