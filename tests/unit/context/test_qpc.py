"""QPC: golden bytes typed by hand from 002 4.2.1 (documented part) and ``design.md`` (extension)."""

from __future__ import annotations

import pytest

from rnic.context import qpc
from rnic.context.qpc import DOCUMENTED, EXTENSION, QPC
from rnic.spec.layout import Layout

# Line by line as 002 draws it: offset, four bytes with the most significant first.
DOCUMENTED_BYTES = bytes.fromhex(
    "00110020"  # 00h opt_param_mask
    "00000000"  # 04h reserved
    "35031fab"  # 08h state 3, flags 5, servtype 3, flags 0, mig state 3, flags 7ABh
    "be050607"  # 0Ch mtu 5 | msgmax 30, rq_entry_sz_log 5, sq_entry_sz_log 6, sched queue 7
    "10111213"  # 10h usr_page
    "14151617"  # 14h local_qpn
    "18191a1b"  # 18h remote_qpn
    "0100007f"  # 1Ch port 1 [26:24], pkey index 127 [6:0]
    "07e00000"  # 20h rnr_retry 7, has_grh 1, lmc 60h
    "0e0d0c40"  # 24h ackto 14, mgid_index 13, static_rate 12, hop_limit 64
    "51abcdef"  # 28h sl 5, tclass 1Ah, flow label BCDEFh
    "2c2d2e2f 30313233 34353637 38393a3b"  # 2Ch rgid[127:96] to 38h rgid[31:0]
    "3c3d3e3f"  # 3Ch dlid, slid
    "40414243"  # 40h smac[47:16]
    "44454647"  # 44h dmac[47:16]
    "48494a4b"  # 48h sip
    "4c4d4e4f"  # 4Ch dip
    "00000000 00000000 00000000"  # 50h to 58h alternate path
    "5c5d5e5f"  # 5Ch pd
    "60616263"  # 60h wqe_base
    "64656667"  # 64h wqe_lkey
    "00000000"  # 68h reserved
    "6c6d6e6f"  # 6Ch next_send_psn
    "70717273"  # 70h cqn_snd
    "74757677"  # 74h snd_wqe_base_lkey
    "78797a7b"  # 78h snd_wqe_length
    "7c7d7e7f"  # 7Ch last_acked_psn
    "80818283"  # 80h ssn
    "1f858687"  # 84h RNR timer 31, ePSN 858687h
    "88898a8b"  # 88h ra_buff_indx
    "8c8d8e8f"  # 8Ch cqn_rcv
    "90919293"  # 90h rcv_wqe_base_lkey
    "94959697"  # 94h rcv_wqe_length
    "98999a9b"  # 98h qkey
    "9c9d9e9f"  # 9Ch rmsn
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000"  # A0h to B8h
    "bcbdbebf"  # BCh rq_wqe_counter, sq_wqe_counter
)
DOCUMENTED_VALUES = {
    "opt_param_mask": 0x00110020,
    "state": 3,
    "flags_27_24": 5,
    "servtype": 3,
    "flags_15_13": 0,
    "mig_state": 3,
    "flags_10_0": 0x7AB,
    "mtu": 5,
    "msgmax": 30,
    "rq_entry_sz_log": 5,
    "sq_entry_sz_log": 6,
    "rlkey_arbel_sched_queue": 7,
    "usr_page": 0x10111213,
    "local_qpn": 0x14151617,
    "remote_qpn": 0x18191A1B,
    "port": 1,
    "pkey_index": 127,
    "rnr_retry": 7,
    "has_grh": 1,
    "my_lmc": 0x60,
    "ackto": 14,
    "mgid_index": 13,
    "static_rate": 12,
    "hop_limit": 64,
    "sl": 5,
    "tclass": 0x1A,
    "flow_label": 0xBCDEF,
    "rgid": 0x2C2D2E2F303132333435363738393A3B,
    "dlid": 0x3C3D,
    "slid": 0x3E3F,
    "smac_hi": 0x40414243,
    "dmac_hi": 0x44454647,
    "sip": 0x48494A4B,
    "dip": 0x4C4D4E4F,
    "pd": 0x5C5D5E5F,
    "wqe_base": 0x60616263,
    "wqe_lkey": 0x64656667,
    "next_send_psn": 0x6C6D6E6F,
    "cqn_snd": 0x70717273,
    "snd_wqe_base_lkey": 0x74757677,
    "snd_wqe_length": 0x78797A7B,
    "last_acked_psn": 0x7C7D7E7F,
    "ssn": 0x80818283,
    "rnr_nak_timer": 31,
    "expected_psn": 0x858687,
    "ra_buff_indx": 0x88898A8B,
    "cqn_rcv": 0x8C8D8E8F,
    "rcv_wqe_base_lkey": 0x90919293,
    "rcv_wqe_length": 0x94959697,
    "qkey": 0x98999A9B,
    "rmsn": 0x9C9D9E9F,
    "rq_wqe_counter": 0xBCBD,
    "sq_wqe_counter": 0xBEBF,
}
EXTENSION_BYTES = bytes.fromhex(
    "00000000000000000000ffff0a000001"  # C0h sgid ::ffff:10.0.0.1
    "d0d1d2d3d4d5d6d7"  # D0h sq_base
    "d8d9dadbdcdddedf"  # D8h rq_base
    "00070301"  # E0h reserved, retry_cnt 7, options, sq_draining
    "1020c0de"  # E4h max_rd_atomic 16, max_dest_rd_atomic 32, udp_sport C0DEh
    "12b71e1f"  # E8h udp_dport 4791, sq_max_sge 30, rq_max_sge 31
    "80000005"  # ECh srqn 5, valid
    "02000100"  # F0h sq_slab_bytes 512, window_packets 256
    "8000030e"  # F4h extension valid, access_flags
    "f8f9000000000000"  # F8h xrcd; the rest to FFh reserved
)
EXTENSION_VALUES = {
    "sgid": 0xFFFF0A000001,
    "sq_base": 0xD0D1D2D3D4D5D6D7,
    "rq_base": 0xD8D9DADBDCDDDEDF,
    "retry_cnt": 7,
    "options": 3,
    "sq_draining": 1,
    "max_rd_atomic": 16,
    "max_dest_rd_atomic": 32,
    "udp_sport": 0xC0DE,
    "udp_dport": 4791,
    "sq_max_sge": 30,
    "rq_max_sge": 31,
    "srqn": 0x80000005,
    "sq_slab_bytes": 512,
    "window_packets": 256,
    "extension_valid": 1,
    "access_flags": 0x030E,
    "xrcd": 0xF8F9,
}


def test_golden_bytes() -> None:
    assert (len(DOCUMENTED_BYTES), len(EXTENSION_BYTES)) == (192, 64)
    assert QPC.pack(DOCUMENTED_VALUES | EXTENSION_VALUES) == DOCUMENTED_BYTES + EXTENSION_BYTES


@pytest.mark.parametrize(("name", "value"), (DOCUMENTED_VALUES | EXTENSION_VALUES).items())
def test_golden_field(name: str, value: int) -> None:
    assert QPC.get(DOCUMENTED_BYTES + EXTENSION_BYTES, name) == value


def test_every_field_has_a_golden_value() -> None:
    assert [field.name for field in DOCUMENTED] == list(DOCUMENTED_VALUES)
    assert [field.name for field in EXTENSION] == list(EXTENSION_VALUES)


def test_the_documented_part_stands_alone() -> None:
    """002's QPC is 192 bytes, and nothing of ours reaches into it."""
    documented = Layout("documented", 192, "big", "002", DOCUMENTED)
    assert documented.pack(DOCUMENTED_VALUES) == DOCUMENTED_BYTES
    assert min(field.byte for field in EXTENSION) == 0xC0
    assert (qpc.QPC_DOCUMENTED_BYTES, qpc.QPC_BYTES) == (192, 256)


def test_option_bits() -> None:
    assert (qpc.OPT_GSO, qpc.OPT_NO_PROBE, qpc.OPT_SQ_SIG_ALL, qpc.OPT_CREDITS) == (1, 2, 4, 8)
    assert qpc.SRQ_VALID == 0x80000000
