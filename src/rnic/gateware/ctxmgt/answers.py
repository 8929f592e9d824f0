"""Build each channel's answer from key data (002 3.2), and locate fields in the key words (4.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from amaranth.hdl import Cat, Const, Value

from rnic.context import messages as msg
from rnic.context.qpc import QPC
from rnic.gateware.ctxmgt.streams import vector
from rnic.spec.layout import Field

KEY_BITS: Final = msg.KEY_BYTES * 8
RESERVED_AT: Final = 32 * (len(msg.KEY_WORDS) - 1 - msg.KEY_WORDS.index(0x20))
RESERVED_BITS: Final = 32 * len(msg.KEY_WORDS) - KEY_BITS
"""The low half of word 20h is reserved and not stored."""


def key_place(name: str) -> slice:
    """Return the bits of a QPC's field in its key words, as one number with the first word highest."""
    field = QPC[name]
    word = msg.KEY_WORDS.index(field.byte & ~3)
    low = 32 * (len(msg.KEY_WORDS) - 1 - word) + 8 * (4 - (field.byte & 3) - field.unit)
    return slice(low + field.lsb, low + field.msb + 1)


def _is_key(field: Field) -> bool:
    return field.unit <= 4 and field.byte & ~3 in msg.KEY_WORDS


KEY_NAMES: Final = tuple(field.name for field in QPC.fields if _is_key(field))


def without_reserved(words: Value) -> Value:
    """Return the key words with reserved bits cleared."""
    return Cat(words[:RESERVED_AT], words[RESERVED_AT + RESERVED_BITS :])


def with_reserved(kept: Value) -> Value:
    """Return the key words from the stored bits."""
    return Cat(kept[:RESERVED_AT], Const(0, RESERVED_BITS), kept[RESERVED_AT:])


class Keys(NamedTuple):
    """Key data by field name: of the QP, its CQ, and the CQ's EQ; fields of a missing context are zero, except
    ``known``."""

    known: Value
    qp: Mapping[str, Value]
    cqn: Value
    cq: Mapping[str, Value]
    eq: Mapping[str, Value]
    infiniband: bool


def _doorbell(k: Keys) -> dict[str, Value]:
    return {
        "servtype": k.qp["servtype"],
        "dst_qpn_hi": k.qp["remote_qpn"][16:24],
        "dst_qpn": k.qp["remote_qpn"],
        "pkey": k.qp["pkey_index"],
        "pmtu_msgmax": Cat(k.qp["msgmax"], k.qp["mtu"]),
        "sq_lkey": k.qp["snd_wqe_base_lkey"],
        "qp_pd": k.qp["pd"],
        "sq_entry_sz_log": k.qp["sq_entry_sz_log"],
        "sq_length": k.qp["snd_wqe_length"],
    }


def _wqe_parser(k: Keys) -> dict[str, Value]:
    return {
        "sq_entry_sz_log": k.qp["sq_entry_sz_log"],
        "state": k.qp["state"],
        "sq_length": k.qp["snd_wqe_length"],
    }


def _trans_control(k: Keys) -> dict[str, Value]:
    return {
        "state": k.qp["state"],
        "next_psn": k.qp["next_send_psn"],
        "scq_lkey": k.cq["lkey"],
        "scq_length": k.cq["logsize"],
        "scq_pd": k.cq["pd"],
        "scqn": k.cqn,
        "eqn": k.cq["comp_eqn"],
        "rlid": k.qp["dlid"],
        "msix_vector": k.eq["msix_vector"],
        "eq_length": k.eq["logsize"],
        "eq_pd": k.eq["pd"],
        "eq_lkey": k.eq["lkey"],
    }


def _recv_control(k: Keys) -> dict[str, Value]:
    return {
        "state": k.qp["state"],
        "unacked_psn": k.qp["last_acked_psn"],
        "next_psn": k.qp["next_send_psn"],
        "dst_qpn": k.qp["remote_qpn"],
        "rlid": k.qp["dlid"],
        "scq_lkey": k.cq["lkey"],
        "qp_pd": k.qp["pd"],
        "scq_pd": k.cq["pd"],
        "scq_length": k.cq["logsize"],
        "scqn": k.cqn,
        "eqn": k.cq["comp_eqn"],
        "eq_length": k.eq["logsize"],
        "eq_pd": k.eq["pd"],
        "eq_lkey": k.eq["lkey"],
        "msix_vector": k.eq["msix_vector"],
    }


def _execution(k: Keys) -> dict[str, Value]:
    return {
        "expected_psn": k.qp["expected_psn"],
        "rnr_retry": k.qp["rnr_retry"],
        "state": k.qp["state"],
        "rlid": k.qp["dlid"],
        "pmtu": k.qp["mtu"],
        "pkey": k.qp["pkey_index"],
        "rq_entry_sz_log": k.qp["rq_entry_sz_log"],
        "dst_qpn": k.qp["remote_qpn"],
        "rq_lkey": k.qp["rcv_wqe_base_lkey"],
        "cq_lkey": k.cq["lkey"],
        "qp_pd": k.qp["pd"],
        "cq_pd": k.cq["pd"],
        "rq_length": k.qp["rcv_wqe_length"],
        "rcq_length": k.cq["logsize"],
        "cqn": k.cqn,
        "eqn": k.cq["comp_eqn"],
        "eq_length": k.eq["logsize"],
        "eq_pd": k.eq["pd"],
        "eq_lkey": k.eq["lkey"],
        "msix_vector": k.eq["msix_vector"],
    }


def _encap(k: Keys) -> dict[str, Value]:
    both = {"port": k.qp["port"], "sl": k.qp["sl"], "pkey": k.qp["pkey_index"]}
    if k.infiniband:
        return both | {"ib_roce": k.known, "slid": k.qp["slid"], "dlid": k.qp["dlid"]}
    return both | {
        "sip": k.qp["sip"],
        "dip": k.qp["dip"],
        "smac": Cat(k.qp["slid"], k.qp["smac_hi"]),
        "dmac": Cat(k.qp["dlid"], k.qp["dmac_hi"]),
    }


_MAKERS: Final[dict[int, Callable[[Keys], dict[str, Value]]]] = {
    msg.DB: _doorbell,
    msg.WP: _wqe_parser,
    msg.RTC: _trans_control,
    msg.RRC: _recv_control,
    msg.EE: _execution,
    msg.FE: _encap,
}


def answer(source: int, keys: Keys) -> Value:
    """Return a channel's response."""
    layout = msg.RESPONSES[source]
    if keys.infiniband and source == msg.FE:
        layout = msg.FE_RESPONSE_IB
    return vector(layout, _MAKERS[source](keys))
