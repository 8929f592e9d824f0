"""Every row of 002's tables 2.2 and 3.1, and every inner interface, with bytes typed by hand from the document."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.eqc import EQC
from rnic.context.key_qpc_data import FIFO_DEPTH, KEY_FIELDS
from rnic.context.qpc import QPC
from rnic.device.icm_pages import lend_pages
from rnic.mem.dma import DmaPort
from rnic.spec.layout import Layout
from rnic.trace.counters import Counters

QPN = 17
CQ5 = CQC.pack({"logsize": 8, "comp_eqn": 2, "pd": 0x321, "lkey": 0x0BAD_CAFE, "cqn": 5})
EQ2 = EQC.pack({"logsize": 10, "msix_vector": 0x11, "pd": 0x987, "lkey": 0x2BAD_CAFE})
QP17 = QPC.pack({"local_qpn": QPN, "state": 3, "mtu": 5, "cqn_snd": 5, "cqn_rcv": 5, "next_send_psn": 0x010203})
BASE = 0x1000_0000
"""Where the QPCs of ``lend_pages`` lie, in context memory and in host memory."""


@pytest.fixture
def contexts() -> ContextManager:
    made = ContextManager(8, Counters())
    lend_pages(made, {"qp": 0, "cq": 0, "eq": 0})
    assert made.write_eq(2, EQ2) == made.write_cq(5, CQ5) == made.write_qp(QPN, QP17) == Status.OK
    return made


# ----------------------------------------------------------------------------------- tables 2.2 and 3.1


class Row(NamedTuple):
    """Type and opcode, who asks, payload bytes in, response payload bytes; -1 where there is no response at all."""

    code: str
    source: int
    payload: int = 0
    response: int = -1


RESERVED = 0
# typed from tables 2.2, 3.1 and 3.2; the codes that they lack from the published hardware (hardware.md 2c)
ROWS = {
    "RD_QP_ALL": Row("11", m.CEU, 0, 256),
    "RD_QP_NPST": Row("12", m.RTC, 0, 32),
    "RD_QP_SST": Row("13", m.DB, 0, 32),
    "RD_QP_RST": Row("14", m.EE, 0, 40),
    "RD_QP_STATE": Row("15", m.WP, 0, 16),
    "RD_ENCAP": Row("16", m.FE, 0, 32),
    "WR_QP_ALL": Row("21", m.CEU, 256),
    "WR_QP_UAPST": Row("22", m.RRC, 16),
    "WR_QP_NPST": Row("23", m.RTC, 16),
    "WR_QP_EPST": Row("24", m.EE, 16),
    "WR_QP_STATE": Row("25", RESERVED),
    "WR_CQ_ALL": Row("31", m.CEU, 64),
    "WR_CQ_MODIFY": Row("32", m.CEU, 64),
    "WR_CQ_INVALID": Row("33", m.CEU),
    "WR_EQ_ALL": Row("41", m.CEU, 64),
    "WR_EQ_FUNC": Row("42", m.CEU),
    "WR_EQ_INVALID": Row("44", m.CEU),
    "WR_ICMMAP_EN": Row("51", m.CEU, 32),
    "WR_ICMMAP_DIS": Row("52", m.CEU),
    "MAP_ICM_EN": Row("61", m.CEU, 32),
    "MAP_ICM_DIS": Row("62", m.CEU),
    "RD_CQ_ALL": Row("71", RESERVED),
    "RD_CQ_CST": Row("72", m.RRC, 0, 32),
    "RD_EQ_K": Row("81", RESERVED),
    "RD_EQ_ALL": Row("82", RESERVED),
}
ENGINE_ROWS = [name for name, row in ROWS.items() if row.source not in (m.CEU, RESERVED)]
CEU_ROWS = [name for name, row in ROWS.items() if row.source == m.CEU]


def test_no_row_is_missing() -> None:
    assert {row.name for row in m.REQUESTS} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_row_of_the_table(name: str) -> None:
    typed = ROWS[name]
    (row,) = (row for row in m.REQUESTS if row.name == name)
    assert f"{row.type:x}{row.opcode:x}" == typed.code
    assert row.sources == ((typed.source,) if typed.source else ())
    assert typed.payload in row.payloads
    assert row.response == max(0, typed.response) * 8


def command(name: str, qpn: int = QPN) -> bytes:
    return bytes.fromhex(ROWS[name].code) + qpn.to_bytes(3, "big") + bytes(12)


def ask(contexts: ContextManager, source: int, request: bytes, payload: bytes = b"") -> bytes | None:
    assert contexts.request(source, request, payload)
    contexts.run()
    answer = contexts.response(source)
    assert answer is None or answer[0] == request
    return None if answer is None else answer[1]


@pytest.mark.parametrize("name", ENGINE_ROWS)
def test_engine_request(contexts: ContextManager, name: str) -> None:
    """On its own channel it is served; on the five others, and from the CEU, it is no request at all."""
    row = ROWS[name]
    payload = bytes.fromhex("00" * 12 + "0a0b0c03") if row.payload else b""
    answer = ask(contexts, row.source, command(name), payload)
    if row.response < 0:
        assert answer is None
        written = {"WR_QP_NPST": 0x6D, "WR_QP_UAPST": 0x7D, "WR_QP_EPST": 0x85}[name]
        assert contexts.read_qp(QPN)[1][written : written + 3].hex() == "0a0b0c"
    else:
        assert answer is not None
        assert len(answer) == row.response
    for other in set(m.ENGINES) - {row.source}:
        before = contexts.read_qp(QPN)
        assert ask(contexts, other, command(name), payload) == b""
        assert contexts.read_qp(QPN) == before
    assert contexts.counters["ctx_bad_requests"] == 5
    assert contexts.ceu(bytes.fromhex(row.code) + bytes(6) + bytes((QPN,)) + bytes(8), payload)[0] == Status.REFUSED


@pytest.mark.parametrize("name", CEU_ROWS)
def test_ceu_request(contexts: ContextManager, name: str) -> None:
    """As the command unit sends it; with a payload of another length it is refused; the engine may not ask it."""
    row = ROWS[name]
    number, data = {
        "WR_CQ": (5, 0), "WR_EQ": (2, 1 << 4), "MAP_I": (1, BASE), "WR_IC": (0, 0)
    }.get(name[:5], (QPN, 0))  # fmt: skip
    payload = {"WR_CQ": CQ5, "WR_EQ": EQ2, "WR_QP": QP17, "MAP_I": bytes(32)}.get(name[:5], bytes(32))[: row.payload]
    port = contexts.ctxmdata.tables["qp"].ports[0]
    if name == "WR_ICMMAP_EN":
        payload = bytes.fromhex("0000000000000000 0000000010000008 0000000020000008 0000000030000005")
    elif name == "MAP_ICM_EN":
        assert contexts.unmap_icm(BASE, 1) == Status.OK
        payload = bytes.fromhex("00000000100000000000000010000001") + bytes(16)
    header = bytes.fromhex(row.code) + bytes(3) + number.to_bytes(4, "big") + data.to_bytes(8, "big")
    for wrong in (payload + bytes(32) if name != "MAP_ICM_EN" else payload + bytes(1), payload[:-1] or b"x"):
        assert contexts.ceu(header, wrong, port)[0] == Status.REFUSED
    status, answer, read = contexts.ceu(header, payload, port)
    assert status == Status.OK
    assert (len(answer), len(read)) == ((16, row.response) if row.response > 0 else (0, 0))
    for source in m.ENGINES:
        assert ask(contexts, source, command(name)) == b""


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.source == RESERVED])
def test_reserved_request(contexts: ContextManager, name: str) -> None:
    """Answered by an empty response on every channel, refused to the CEU; nothing changes."""
    before = contexts.read_qp(QPN)
    for source in m.ENGINES:
        assert ask(contexts, source, command(name), bytes(16)) == b""
    assert contexts.counters["ctx_bad_requests"] == 6
    assert contexts.ceu(bytes.fromhex(ROWS[name].code) + bytes(6) + bytes((QPN,)) + bytes(8))[0] == Status.REFUSED
    assert contexts.read_qp(QPN) == before


def test_every_other_code_is_none(contexts: ContextManager) -> None:
    known = {row.code for row in ROWS.values()}
    for code in range(256):
        if f"{code:02x}" in known:
            continue
        assert contexts.ceu(bytes((code, *bytes(15))))[0] == Status.REFUSED
        for source in m.ENGINES:
            assert ask(contexts, source, bytes((code, *bytes(15)))) == b""
    assert contexts.counters["ctx_bad_requests"] == 6 * (256 - len(known))


# ------------------------------------------------------------------------------------- inner interfaces


@pytest.fixture
def stalled(contexts: ContextManager) -> ContextManager:
    contexts.stalled = True
    return contexts


def test_parser_request(stalled: ContextManager) -> None:
    """5.1.2, 35 bits: Type 4, Opcode 4, Source 3, QPN 24; the key words in two FIFOs of 384 bits."""
    stalled.parser.fifo.append((bytes.fromhex("21000000 00000011") + bytes(8), QP17, None))
    stalled.run()
    assert stalled.parser.held is not None
    request, data = stalled.parser.held
    assert request.hex() == "0109000011"  # 0010 0001 001 and 000011h
    assert m.PARSER_REQUEST.unpack(request) == {"type": 2, "opcode": 1, "source": 1, "qpn": 0x11}
    assert len(data) == 2 * 384 // 8
    assert data[:4] == QP17[8:12]


def test_read_request(stalled: ContextManager) -> None:
    """5.5.2, 108 bits: Addr 64, Len 12, QPN 32; then the DMA header {0, addr64, 0, len12}; metadata waits."""
    stalled.parser.fifo.append((bytes.fromhex("11000000 00000011") + bytes(8), b"", None))
    stalled.run()
    (read,) = stalled.readctx.dma
    assert read.header.hex() == "00000000000000001000110000000100"
    assert [item.hex() for item in stalled.readctx.pending] == ["1100000000000011" + "00" * 8]
    raw = bytes.fromhex("0000000001000110010000000011")
    assert m.READ_REQUEST.unpack(raw) == {"addr": 0x10001100, "len": 256, "qpn": 0x11}
    stalled.readctx.request(read.port, raw, bytes.fromhex("11000000"))
    assert stalled.readctx.dma[1] == read


def test_write_request(stalled: ContextManager) -> None:
    """5.3.2 and 5.6.2: key_qpc_data's 128 bits, ctxmdata's 128 bits, DMA headers and 256-bit beats."""
    stalled.request(m.RRC, command("WR_QP_UAPST"), bytes.fromhex("00" * 12 + "0a0b0c06"))
    stalled.key.step()
    assert stalled.ctxmdata.key_fifo[0].hex() == "220000000000001160000000000a0b0c"
    stalled.ctxmdata.step()
    _, request = stalled.writectx.fifo[0]
    assert request.hex() == "22ac0000000a0b0c0000000010001100"  # source 5, state 6
    assert m.WRITE_REQUEST.unpack(request) == {
        "type": 2, "opcode": 2, "source": 5, "state": 6, "flags_27_24": 0, "data": 0x0A0B0C, "addr": 0x10001100,
    }  # fmt: skip
    stalled.writectx.step()
    ((_, (psn, state)),) = stalled.writectx.dma
    assert (psn.header.hex(), psn.data.hex()) == ("00000000000000001000117d00000003", "0a0b0c")
    assert (state.header.hex(), state.data.hex()) == ("00000000000000001000110800000001", "60")
    assert [len(beat) * 8 for beat in psn.beats] == [256]


@pytest.mark.parametrize(
    ("code", "payload", "beats"),
    [("21", QP17[:192], 6), ("21", QP17, 8), ("31", CQ5, 2), ("41", EQ2, 2), ("33", b"", 2)],
)
def test_beats_of_a_context(stalled: ContextManager, code: str, payload: bytes, beats: int) -> None:
    """5.1.3 and 5.6.3: six beats of 256 bits for the documented QPC, two for a CQC and an EQC, zeros to invalidate."""
    number = {"2": QPN, "3": 5, "4": 2}[code[0]]
    stalled.parser.fifo.append((bytes.fromhex(code) + bytes(6) + bytes((number,)) + bytes(8), payload, None))
    stalled.run()
    ((_, (write,)),) = stalled.writectx.dma
    assert len(write.beats) == beats
    assert b"".join(write.beats) == (payload or bytes(64))


VECTORS = (
    (m.CEU_HEADER, "61000000000000020000000000000000", {"type": 6, "opcode": 1, "addr": 2, "data": 0}),
    (m.ENGINE_HEADER, "13abcdef000000000000000000000000", {"type": 1, "opcode": 3, "addr": 0xABCDEF}),
    (m.ENGINE_WRITE, "0000000000000000000000000a0b0c05", {"psn": 0x0A0B0C, "state": 5}),
    (m.WRITE_BACK, "3a00000000010203", {"state": 3, "flags_27_24": 10, "psn": 0x010203}),
    (m.CHUNK, "00000000123450000000abcdef012003", {"virt": 0x12345000, "page": 0xABCDEF012, "pages": 3}),
    (m.DMA_HEADER, "000000000000abcdef01200000000100", {"addr": 0xABCDEF012000, "len": 256}),
    (
        m.ICMMAP,
        "0000000000000000000000112233440800000022334455090000003344556605",
        {
            "qpc_base": 0x11223344,
            "log_qps": 8,
            "cqc_base": 0x22334455,
            "log_cqs": 9,
            "eqc_base": 0x33445566,
            "log_eqs": 5,
        },
    ),
    (m.SELECTED_CHANNEL, "90", {"valid": 1, "requester_recv_control": 1}),
)


@pytest.mark.parametrize(("layout", "raw", "values"), VECTORS, ids=[layout.name for layout, _, _ in VECTORS])
def test_vector(layout: Layout, raw: str, values: dict[str, int]) -> None:
    unpacked = layout.unpack(bytes.fromhex(raw))
    assert {name: value for name, value in unpacked.items() if value or name in values} == values
    assert layout.pack(values).hex() == raw


# ------------------------------------------------------------------------------------------- metadata


@pytest.mark.parametrize("log", [13, 14])
def test_places_of_the_largest_tables(log: int) -> None:
    """5.3.3: bits 21:12 of a shifted QPN and 19:12 of a shifted CQN choose the entry, the low 12 the place in it."""
    contexts = ContextManager(log, Counters())
    lend_pages(contexts, {"qp": 0, "cq": 0, "eq": 5})
    qps, cqs, eqs = (contexts.ctxmdata.tables[kind] for kind in ("qp", "cq", "eq"))
    assert (qps.pages, cqs.pages, eqs.pages) == ((1 << log) // 16, (1 << log) // 64, 1)
    for qpn in (16, 17, 0x1234, (1 << log) + 15):
        place = qps.locate(qpn)
        assert place is not None
        slot = qpn % (1 << log)
        assert place.addr == (qps.page_base[(slot << 8) >> 12 & 0x3FF] << 12) + (slot << 8 & 0xFFF)
    for cqn in (1, 63, 64, 1 << log):
        place = cqs.locate(cqn)
        assert place is not None
        slot = cqn % (1 << log)
        assert place.addr == (cqs.page_base[(slot << 6) >> 12 & 0xFF] << 12) + (slot << 6 & 0xFFF)
    assert [qps.locate(15), qps.locate((1 << log) + 16), cqs.locate(0), cqs.locate((1 << log) + 1)] == [None] * 4
    assert eqs.locate(31) is not None
    assert eqs.locate(32) is None
    assert len({qps.locate(qpn) for qpn in range(16, 16 + (1 << log))}) == 1 << log
    assert contexts.write_qp((1 << log) + 15, QPC.pack({"local_qpn": (1 << log) + 15})) == Status.OK
    assert contexts.write_cq(1 << log, CQ5) == Status.OK


def test_event_queues_are_a_parameter() -> None:
    assert [ContextManager(4, Counters(), log_eqs=log).ctxmdata.tables["eq"].pages for log in (5, 6, 10)] == [1, 1, 16]


def test_64_chunks_and_no_more() -> None:
    contexts = ContextManager(14, Counters())
    port: DmaPort = type("Port", (), {"read": None, "write": None, "views": None})()
    tables = {"qpc_base": BASE >> 8, "cqc_base": BASE + (8 << 20) >> 8, "eqc_base": BASE + (16 << 20) >> 8}
    assert contexts.init_hca(m.ICMMAP.pack(tables)) == Status.OK
    assert contexts.map_icm(port, [(BASE + page * 4096, page << 12, 1) for page in range(65)]) == Status.REFUSED
    assert not any(contexts.ctxmdata.tables["qp"].valid)
    assert contexts.map_icm(port, [(BASE + page * 4096, page << 12, 1) for page in range(64)]) == Status.OK
    assert sum(contexts.ctxmdata.tables["qp"].valid) == 64
    assert contexts.map_icm(port, [(BASE + 64 * 4096, 0, 960)]) == Status.OK  # one chunk may be all the rest
    assert all(contexts.ctxmdata.tables["qp"].valid)


# ----------------------------------------------------------------------------------------- key data


# typed from 5.4.2: bits, readers, writers
KEY = {
    "state": (4, "WP RTC EE RRC", "RTC EE RRC"), "servtype": (8, "DB", ""), "mtu_msgmax": (8, "DB EE", ""),
    "rnr_retry": (8, "EE", ""), "remote_qpn": (32, "DB EE RRC", ""), "port_pkey": (32, "DB FE EE", ""),
    "qp_pd": (32, "DB EE RRC", ""), "sl_tclass_flowlabel": (32, "FE", ""), "next_send_psn": (32, "RTC RRC", "RTC"),
    "qp_cqn_send": (32, "RTC RRC", ""), "snd_wqe_base_lkey": (32, "DB", ""), "last_acked_psn": (32, "RRC", "RRC"),
    "rnr_nextrecvpsn": (32, "EE", "EE"), "rcv_wqe_base_lkey": (32, "EE", ""), "rq_entry_sz_log": (8, "EE", ""),
    "sq_entry_sz_log": (8, "DB WP", ""), "smac": (48, "FE", ""), "dmac": (48, "RTC EE FE RRC", ""),
    "sip": (32, "FE", ""), "dip": (32, "FE", ""), "snd_wqe_length": (32, "DB WP", ""), "cqn_rcv": (32, "EE", ""),
    "rcv_wqe_length": (32, "EE", ""), "cq_sz_log": (8, "RTC RRC EE", ""), "cq_pd": (32, "RTC RRC EE", ""),
    "cq_lkey": (32, "RTC RRC EE", ""), "eq_sz_log": (8, "RTC RRC EE", ""), "eq_pd": (32, "RTC RRC EE", ""),
    "eq_lkey": (32, "RTC RRC EE", ""), "eqn": (8, "RTC RRC EE", ""),
}  # fmt: skip


def test_no_key_field_is_missing() -> None:
    assert [row.name for row in KEY_FIELDS] == list(KEY)


@pytest.mark.parametrize("name", KEY)
def test_key_field(name: str) -> None:
    (row,) = (row for row in KEY_FIELDS if row.name == name)
    width, readers, writers = KEY[name]
    assert row.width == width
    assert {getattr(m, part) for part in readers.split()} == set(row.readers)
    assert {getattr(m, part) for part in writers.split()} == set(row.writers)


def test_13_bytes_of_a_cqc_are_cached() -> None:
    """4.2.2: of a CQC the data path works with 13 bytes."""
    kept = {name for row in KEY_FIELDS if row.context == "cqc" for name in row.fields}
    assert kept == {"logsize", "pd", "lkey", "comp_eqn"}
    assert sum(field.msb - field.lsb + 1 for field in CQC.fields if field.name in kept) == 13 * 8


# ----------------------------------------------------------------------------------------- arbitration


def test_ctxmdata_takes_the_ceus_requests_first(stalled: ContextManager) -> None:
    """5.3.1: ceu_parser's requests, then key_qpc_data's, whichever came first."""
    stalled.request(m.RRC, command("WR_QP_UAPST"), bytes.fromhex("00" * 12 + "0a0b0c06"))
    stalled.key.step()
    assert len(stalled.ctxmdata.key_fifo) == 1
    stalled.parser.fifo.append((bytes.fromhex("11000000 00000011") + bytes(8), b"", None))
    while not stalled.ctxmdata.ceu_fifo:
        assert stalled.parser.step()
    assert stalled.ctxmdata.step()
    assert (len(stalled.ctxmdata.ceu_fifo), len(stalled.ctxmdata.key_fifo)) == (0, 1)
    assert stalled.ctxmdata.step()
    assert (len(stalled.ctxmdata.ceu_fifo), len(stalled.ctxmdata.key_fifo)) == (0, 0)


def test_a_command_takes_few_rounds_under_full_load(contexts: ContextManager) -> None:
    """Whatever the six channels hold, and with every write going to host memory, the CEU waits for its own steps."""
    rng = random.Random(3)

    def fill() -> None:
        for source in m.ENGINES:
            names = [name for name in ENGINE_ROWS if ROWS[name].source == source]
            while len(contexts.key.channels[source - 1]) < FIFO_DEPTH:
                name = rng.choice(names)
                contexts.request(source, command(name), bytes.fromhex("00" * 12 + "00000103")[: ROWS[name].payload])
            while contexts.response(source):
                pass

    worst = 0
    for lkey in range(1, 200):
        fill()
        payload = CQC.pack({"logsize": 8, "comp_eqn": 2, "lkey": lkey})
        contexts.parser.fifo.append((bytes.fromhex("31000000 00000005") + bytes(8), payload, None))
        rounds = 0
        while contexts.key.cqs[5].lkey != lkey:
            fill()
            contexts.step()
            rounds += 1
        worst = max(worst, rounds)
    print(f"a CQC is in the cache after at most {worst} rounds of one request a module")
    assert worst <= 3
