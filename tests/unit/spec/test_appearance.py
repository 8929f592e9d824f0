"""What a device looks like: tables and numbers, and what is refused of a GID that nothing can leave from."""

from __future__ import annotations

from errno import EINVAL

import pytest

from rnic import enums as e
from rnic.device.config import NicConfig
from rnic.spec import reasons
from rnic.spec.appearance import RATES, ROCE_V1, ROCE_V2, Appearance, appearance, gid_table, number_of
from rnic.spec.errors import VerbsError
from rnic.spec.gids import gid_from_address, source_refusal
from rnic.testing import QpPair
from rnic.verbs.attrs import AHAttr, GlobalRoute
from rnic.verbs.memory import AH

FULL = Appearance(gids="full", rate=200, numa=1, pci="0000:18:00.0")
ADDRESS = bytes((10, 0, 0, 1))
LOCAL = bytes.fromhex("fe800000000000000000000102030405")


def test_an_appearance_goes_by_its_text() -> None:
    assert appearance(FULL.to_json()) == FULL
    assert appearance("") == Appearance()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"gids": "many"}', "gids='many' is not a GID table: use one, full, rxe"),
        ('{"rate": 300}', "rate=300 is not a link rate: use 10, 25, 40"),
        ('{"numa": -2}', "numa=-2 is not a NUMA node"),
        ('{"numa": true}', "numa=True is not a NUMA node"),
        ('{"pci": "18:00.0"}', "pci='18:00.0' is not a PCI address"),
        ('{"colour": "red"}', "is not an appearance: use a JSON object of gids, rate, numa, pci"),
        ("[1]", "is not an appearance"),
        ("{", "is not an appearance"),
    ],
)
def test_what_no_device_has_is_said(text: str, words: str) -> None:
    with pytest.raises(VerbsError) as raised:
        appearance(text)
    assert raised.value.errno == EINVAL
    assert words in str(raised.value.strerror)


def test_tables_of_each_kind() -> None:
    own, guid = bytes(10) + b"\xff\xff" + ADDRESS, 0x0200_0001_0203_0405
    assert gid_table(Appearance(), ADDRESS, guid) == ((own,), (ROCE_V2,))
    gids, types = gid_table(FULL, ADDRESS, guid)
    assert gids == (LOCAL, LOCAL, own, own)
    assert types == (ROCE_V1, ROCE_V2, ROCE_V1, ROCE_V2)
    assert gid_table(FULL, LOCAL, guid) == ((LOCAL, LOCAL), (ROCE_V1, ROCE_V2))
    assert gid_table(Appearance(gids="rxe"), ADDRESS, guid) == ((LOCAL, own), (ROCE_V2, ROCE_V2))


def test_a_device_knows_which_gid_its_packets_leave_from() -> None:
    assert NicConfig(ADDRESS).gid_index == 0
    assert NicConfig(ADDRESS, appearance=FULL).gid_index == 3
    assert NicConfig(ADDRESS, appearance=Appearance(gids="rxe")).gid_index == 1


def test_numbers_in_names() -> None:
    assert [number_of(name) for name in ("rnic0", "rnic31", "mlx5_7", "mlx5_10", "nic", "4x")] == [0, 31, 7, 10, 0, 0]


def test_rates_are_what_width_and_speed_give() -> None:
    lanes = {1: 1, 2: 4, 4: 8}
    per_lane = {4: 10, 32: 25, 64: 50, 128: 100}
    assert {rate: lanes[each.width] * per_lane[each.speed] for rate, each in RATES.items()} == {r: r for r in RATES}


@pytest.fixture
def pair() -> QpPair:
    return QpPair(settings={"appearance": FULL})


def test_programs_see_it(pair: QpPair) -> None:
    with pair:
        ctx = pair.a.ctx
        port = ctx.query_port()
        assert (port.gid_tbl_len, port.active_speed, port.active_width) == (4, 64, 2)
        assert ctx.gid_index == 3
        assert ctx.query_gid() == ctx.query_gid(1, 3) == ctx.query_gid(1, 2)
        types = [ctx.query_gid_type(1, index) for index in range(4)]
        assert types == [e.IBV_GID_TYPE_ROCE_V1, e.IBV_GID_TYPE_ROCE_V2] * 2
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS


NOTHING_LEAVES = pytest.mark.parametrize(
    ("index", "words"),
    [
        (0, "GID index 0 is of RoCE v1, which has no UDP: use index 3"),
        (1, "GID index 1 is a link-local address that this device cannot send from: use index 3"),
        (2, "GID index 2 is of RoCE v1"),
        (4, "GID index 4: this port has 0 to 3"),
    ],
)


@NOTHING_LEAVES
def test_what_nothing_can_leave_from_is_refused(index: int, words: str) -> None:
    with QpPair(settings={"appearance": FULL}, connect=False) as pair:
        side = pair.a
        gid, real = side.peer.ctx.query_gid(), side.ctx.limits["own_gid"]
        side.ctx.limits["own_gid"] = index
        with pytest.raises(VerbsError) as raised:
            side.to_rts(gid, e.IBV_MTU_1024, {})
        side.ctx.limits["own_gid"] = real
        assert words in str(raised.value.strerror)
        side.to_rts(gid, e.IBV_MTU_1024, {})


@NOTHING_LEAVES
def test_nor_an_address_handle(pair: QpPair, index: int, words: str) -> None:
    with pair, pytest.raises(VerbsError, match=words) as raised:
        AH(pair.a.pd, AHAttr(GlobalRoute(pair.b.ctx.query_gid(), index)))
    assert raised.value.errno == EINVAL


def test_indices_of_address_handles(pair: QpPair) -> None:
    with pair:
        gid = pair.b.ctx.query_gid()
        AH(pair.a.pd, AHAttr(GlobalRoute(gid, pair.a.ctx.gid_index)))
        for index in (-1, 1 << 70):
            with pytest.raises(VerbsError, match=f"GID index {index}: this port has 0 to 3"):
                AH(pair.a.pd, AHAttr(GlobalRoute(gid, index)))


def test_a_device_on_its_link_local_address_has_handles() -> None:
    assert source_refusal(LOCAL, False, LOCAL) is None
    assert source_refusal(LOCAL, True, LOCAL) is reasons.GID_TYPE
    assert source_refusal(LOCAL, False, gid_from_address(ADDRESS)) is reasons.GID_ELSEWHERE
