from __future__ import annotations

import builtins
from functools import partial
from typing import Any

import pytest

import rnic
from rnic import enums as e
from rnic.spec import status as st
from rnic.spec.errors import VerbsError
from rnic.spec.ids import Rkey
from rnic.verbs import (
    GID,
    SGE,
    WC,
    AHAttr,
    BindInfo,
    DeviceAttr,
    GlobalRoute,
    PortAttr,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
    next_key,
)
from rnic.verbs.cq import _STATUS


@pytest.mark.parametrize(
    ("value", "address", "text"),
    [
        ("10.0.0.1", b"\x0a\0\0\1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        (b"\x0a\0\0\1", b"\x0a\0\0\1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        ("fe80::1", bytes((0xFE, 0x80, *bytes(13), 1)), "fe80:0000:0000:0000:0000:0000:0000:0001"),
    ],
)
def test_gids(value: str | bytes, address: bytes, text: str) -> None:
    gid = GID(value)
    assert (gid.address, gid.gid, str(gid)) == (address, text, text)
    assert gid == GID(gid) == GID(gid.raw) == GID(text)
    assert hash(gid) == hash(GID(text))
    assert gid != text
    assert GID(repr(gid)[5:-2]) == gid


@pytest.mark.parametrize("value", ["", "10.0.0", "::g", b"", b"12345", bytes(17)])
def test_what_is_no_gid(value: str | bytes) -> None:
    with pytest.raises(VerbsError, match=r"\Agid"):
        GID(value)


@pytest.mark.parametrize(
    "attr",
    [
        GlobalRoute("10.0.0.1"),
        AHAttr(),
        QPCap(),
        QPInitAttr(),
        QPAttr(),
        SrqAttr(),
        SrqInitAttr(),
        SendWR(),
        RecvWR(),
        DeviceAttr(),
        PortAttr(),
        BindInfo(None, 0, 8, 0),
        SGE(0x1000, 16, 5),
        WC(wr_id=5),
    ],
    ids=lambda attr: type(attr).__name__,
)
def test_attributes_show_themselves(attr: object) -> None:
    for text in (str(attr), repr(attr)):
        assert " object at 0x" not in text
    slots = getattr(attr, "__slots__", None)
    for name in [name for name in vars(attr) if not name.startswith("_")] if not slots else []:
        assert name in str(attr)


def test_chains() -> None:
    last = SendWR(2)
    first = SendWR(1, next_wr=last)
    assert first.next is last
    assert RecvWR(1, next_wr=RecvWR(2)).next is not None


def test_defaults_are_not_shared() -> None:
    assert QPInitAttr().cap is not QPInitAttr().cap
    assert SendWR().sg is not SendWR().sg
    assert AHAttr().gr is not AHAttr().gr
    assert QPAttr().ah_attr is not QPAttr().ah_attr


def test_names_of_completions() -> None:
    assert WC(status=e.IBV_WC_RETRY_EXC_ERR).status_name == "RETRY_EXC_ERR"
    assert WC(status=99).status_name == "99"
    assert "RECV_RDMA_WITH_IMM" in repr(WC(opcode=e.IBV_WC_RECV_RDMA_WITH_IMM))


def test_every_syndrome_has_its_ibv_status() -> None:
    for syndrome, name in st.SYNDROME_NAMES.items():
        assert _STATUS[syndrome] == getattr(e, f"IBV_WC_{name}"), name


def test_the_next_key_keeps_its_index() -> None:
    assert next_key(Rkey(0x1234_56FF)) == 0x1234_5600
    assert next_key(Rkey(0x1234_5600)) == 0x1234_5601


@pytest.mark.parametrize(
    ("made", "name", "says"),
    [
        (QPAttr, "dest_qpn", "QPAttr has no attribute 'dest_qpn'; did you mean dest_qp_num"),
        (QPAttr, "rnr_retries", "did you mean rnr_retry"),
        (QPAttr, "zzz", "there are qp_state, "),
        (AHAttr, "dgid", "AHAttr has no attribute 'dgid'"),
        (GlobalRoute, "gid", "did you mean dgid"),
        (QPCap, "max_send_wrs", "did you mean max_send_wr"),
        (QPInitAttr, "type", "did you mean qp_type"),
        (SendWR, "opcod", "SendWR.*has no attribute 'opcod'"),
        (RecvWR, "wrid", "RecvWR.*has no attribute 'wrid'"),
        (partial(SGE, 1, 2, 3), "len", "SGE.*has no attribute 'len'"),
    ],
)
def test_attributes_that_do_not_exist_are_refused(made: Any, name: str, says: str) -> None:
    attr = made()
    with pytest.raises(AttributeError, match=says):
        setattr(attr, name, 1)
    assert not hasattr(attr, name)
    assert "_sealed" not in str(attr) + repr(attr)


def test_a_former_name_of_an_attribute_is_understood_with_a_warning() -> None:
    attr = QPAttr()
    with pytest.warns(DeprecationWarning, match="QPAttr.keeps is QPAttr.selective_repeat now"):
        attr.keeps = True  # type: ignore[attr-defined]
    assert attr.selective_repeat
    assert "keeps" not in str(attr) + repr(attr)
    with pytest.warns(DeprecationWarning, match="selective_repeat"):
        assert attr.keeps  # type: ignore[attr-defined]


def test_import_star_leaves_the_builtins_alone() -> None:
    for module in (rnic, rnic.verbs):
        assert not set(module.__all__) & set(dir(builtins))
    assert rnic.open is rnic.verbs.open
