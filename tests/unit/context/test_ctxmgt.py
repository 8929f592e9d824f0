"""CtxMgt by its messages (002): goldens typed from the document, machines, arbitration, random streams, bad input."""

from __future__ import annotations

import random

import pytest

from rnic.context import inspect
from rnic.context import messages as m
from rnic.context.ceu_parser import extract
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.eqc import EQC
from rnic.context.key_qpc_data import FIFO_DEPTH, KEY_FIELDS, QPC_KEY_FIELDS
from rnic.context.machines import MACHINES, Machine, MachineError
from rnic.context.qpc import QPC, WITHOUT_EXTENSION
from rnic.context.request_controller import VALID
from rnic.spec.layout import Layout
from rnic.spec.limits import MAX_EQS
from rnic.trace.counters import Counters

BASE = 0x8000_0000
"""Context memory: QPCs here, CQCs 4 MiB further, EQCs 1 MiB further."""
HOST = 0x10_0000
QPN = 17


class Memory:
    """Host memory of a few pages that can be told to fail."""

    def __init__(self, pages: int = 64) -> None:
        self.bytes = bytearray(pages * 4096)
        self.failing = False

    def _span(self, va: int, length: int) -> slice | None:
        at = va - HOST
        return None if self.failing or not 0 <= at <= len(self.bytes) - length else slice(at, at + length)

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        span = self._span(va, len(buf))
        if span is not None:
            buf[:] = self.bytes[span]
        return span is not None

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        span = self._span(va, len(data))
        if span is not None:
            self.bytes[span] = data
        return span is not None

    def views(self, va: int, length: int) -> memoryview | None:
        return None


ICMMAP = m.ICMMAP.pack({"qpc_base": BASE >> 8, "cqc_base": BASE + (4 << 20) >> 8, "eqc_base": BASE + (5 << 20) >> 8})


def manager(log: int = 8, infiniband: bool = False) -> tuple[ContextManager, Memory]:
    """2**log QPs and CQs: page 0 of host memory holds EQCs, then the QPCs from the last page down, then the CQCs."""
    contexts, memory = ContextManager(log, Counters(), infiniband=infiniband), Memory()
    assert contexts.init_hca(ICMMAP) == Status.OK
    pages = (1 << log) * 256 // 4096
    runs = [(BASE + 4096 * page, HOST + 4096 * (pages - page), 1) for page in range(pages)]
    runs += [(BASE + (4 << 20), HOST + 4096 * (pages + 1), max(1, pages // 4)), (BASE + (5 << 20), HOST, 1)]
    assert contexts.map_icm(memory, runs) == Status.OK
    return contexts, memory


VALUES = {
    "state": 3,
    "flags_27_24": 0xA,
    "servtype": 0,
    "mtu": 5,
    "msgmax": 31,
    "rq_entry_sz_log": 6,
    "sq_entry_sz_log": 7,
    "local_qpn": QPN,
    "remote_qpn": 0xABCDEF,
    "port": 1,
    "pkey_index": 0x55,
    "rnr_retry": 6,
    "sl": 9,
    "dlid": 0x1122,
    "slid": 0x3344,
    "smac_hi": 0x5566_7788,
    "dmac_hi": 0x99AA_BBCC,
    "sip": 0x0A00_0001,
    "dip": 0x0A00_0002,
    "pd": 0x123,
    "next_send_psn": 0x010203,
    "cqn_snd": 5,
    "snd_wqe_base_lkey": 0xCAFE_F00D,
    "snd_wqe_length": 0x4000,
    "last_acked_psn": 0x010201,
    "rnr_nak_timer": 12,
    "expected_psn": 0xFFFFFE,
    "cqn_rcv": 6,
    "rcv_wqe_base_lkey": 0xDEAD_BEEF,
    "rcv_wqe_length": 0x2000,
    "access_flags": 7,
}
CQ5 = CQC.pack({"logsize": 8, "comp_eqn": 2, "pd": 0x321, "lkey": 0x0BAD_CAFE, "cqn": 5})
CQ6 = CQC.pack({"logsize": 9, "comp_eqn": 2, "pd": 0x654, "lkey": 0x1BAD_CAFE, "cqn": 6})
EQ2 = EQC.pack({"logsize": 10, "msix_vector": 0x11, "pd": 0x987, "lkey": 0x2BAD_CAFE})


@pytest.fixture
def loaded() -> tuple[ContextManager, Memory]:
    contexts, memory = manager()
    assert contexts.write_eq(2, EQ2) == Status.OK
    assert contexts.write_cq(5, CQ5) == Status.OK
    assert contexts.write_cq(6, CQ6) == Status.OK
    assert contexts.write_qp(QPN, QPC.pack(VALUES)) == Status.OK
    return contexts, memory


def ask(
    contexts: ContextManager, source: int, kind: int, opcode: int, qpn: int = QPN, data: bytes = b""
) -> bytes | None:
    """One engine command; its response payload, ``None`` where there is no response."""
    command = m.engine_request(kind, opcode, qpn)
    assert contexts.request(source, command, data)
    contexts.run()
    answer = contexts.response(source)
    if answer is None:
        return None
    assert answer[0] == command
    return answer[1]


# ---------------------------------------------------------------------------------------- goldens

# typed from tables 2.2, 3.1 and 3.2 and hardware.md 2c
CODES = {
    "RD_QP_ALL": "11", "RD_QP_NPST": "12", "RD_QP_SST": "13", "RD_QP_RST": "14", "RD_QP_STATE": "15", "RD_ENCAP": "16",
    "WR_QP_ALL": "21", "WR_QP_UAPST": "22", "WR_QP_NPST": "23", "WR_QP_EPST": "24", "WR_QP_STATE": "25",
    "WR_CQ_ALL": "31", "WR_CQ_MODIFY": "32", "WR_CQ_INVALID": "33",
    "WR_EQ_ALL": "41", "WR_EQ_FUNC": "42", "WR_EQ_INVALID": "44",
    "WR_ICMMAP_EN": "51", "WR_ICMMAP_DIS": "52", "MAP_ICM_EN": "61", "MAP_ICM_DIS": "62",
    "RD_CQ_ALL": "71", "RD_CQ_CST": "72", "RD_EQ_K": "81", "RD_EQ_ALL": "82",
}  # fmt: skip


def test_type_and_opcode_of_every_row() -> None:
    assert {row.name: f"{row.type:x}{row.opcode:x}" for row in m.REQUESTS} == CODES


def test_headers() -> None:
    assert m.ceu_request(2, 1, 0x11, 0).hex() == "21000000000000110000000000000000"
    assert m.ceu_request(6, 2, 3, 0x8000_1000).hex() == "62000000000000030000000080001000"
    assert m.ceu_request(4, 2, 0x8000_0005, 0x10).hex() == "42000000800000050000000000000010"
    assert m.engine_request(1, 2, 0xABCDEF).hex() == "12abcdef" + "00" * 12
    assert m.engine_payload(0x010203, 3).hex() == "00" * 12 + "01020303"


RESPONSES = {
    # word 0 first, each word as little-endian bytes; typed from the drawings of table 3.2
    "RD_QP_SST": (m.DB, "00ab efcd5500 bf000df0feca2301000007000000004000000000000000000000"),
    "RD_QP_STATE": (m.WP, "07000003004000000000000000000000"),
    "RD_QP_NPST": (m.RTC, "03 030201fecaad0b0800000021030000050000 022211 11 0a87090000fecaad2b"),
    "RD_ENCAP": (m.FE, "91 00 55000100000a0200000a4433887766552211ccbbaa990000000000000000"),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_drawn_responses(loaded: tuple[ContextManager, Memory], name: str) -> None:
    source, expected = RESPONSES[name]
    row = next(row for row in m.REQUESTS if row.name == name)
    payload = ask(loaded[0], source, row.type, row.opcode)
    assert payload == bytes.fromhex(expected)
    assert len(payload) * 8 == row.response


def test_recv_control_response(loaded: tuple[ContextManager, Memory]) -> None:
    payload = ask(loaded[0], m.RRC, m.RD_CQ_CXT, m.RD_CQ_CST)
    # high bits first: msix, eq key, pd and size, eqn, cqn, cq size and pd, qp pd, cq key, rlid, dqpn, npsn, upsn, state
    fields = "0011 2badcafe 987 0a 02 000005 08 321 123 0badcafe 1122 abcdef 010203 010201 3"
    assert payload is not None
    assert payload[::-1].hex() == fields.replace(" ", "")
    assert m.RRC_RESPONSE.unpack(payload)["dst_qpn"] == 0xABCDEF


def test_recv_control_has_all_16_bits_of_the_interrupt_vector(loaded: tuple[ContextManager, Memory]) -> None:
    """§3.2 draws 8 bits of it for the other engines; the RRC's response has room for the whole."""
    contexts, _ = loaded
    assert contexts.write_eq(2, EQC.pack(EQC.unpack(EQ2) | {"msix_vector": 0xA5B6})) == Status.OK
    responses = {
        m.RRC: (m.RD_CQ_CXT, m.RD_CQ_CST, m.RRC_RESPONSE, 0xA5B6),
        m.RTC: (m.RD_QP_CXT, m.RD_QP_NPST, m.RTC_RESPONSE, 0xB6),
        m.EE: (m.RD_QP_CXT, m.RD_QP_RST, m.EE_RESPONSE, 0xB6),
    }
    for source, (kind, opcode, layout, vector) in responses.items():
        payload = ask(contexts, source, kind, opcode)
        assert payload is not None
        assert layout.unpack(payload)["msix_vector"] == vector


def test_a_request_of_software_goes_before_the_engines(loaded: tuple[ContextManager, Memory]) -> None:
    """002 table 2.4: ctxmdata serves the CEU's FIFO first, however many write-backs wait."""
    contexts, _ = loaded
    data = contexts.ctxmdata
    write_back = m.ceu_request(m.WR_QP_CXT, m.WR_QP_EPST, QPN)
    for _ in range(3):
        data.key_fifo.append(write_back)
    data.ceu_fifo.append((m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN), b"", None))
    assert data.step()
    assert (len(data.ceu_fifo), len(data.key_fifo)) == (0, 3)
    assert len(contexts.readctx.dma) == 1


def test_execution_engine_response(loaded: tuple[ContextManager, Memory]) -> None:
    payload = ask(loaded[0], m.EE, m.RD_QP_CXT, m.RD_QP_RST)
    widths = (
        (2, 0), (8, 0x11), (32, 0x2BADCAFE), (12, 0x987), (8, 10), (8, 2), (24, 6), (8, 9), (32, 0x2000), (12, 0x654),
        (12, 0x123), (32, 0x1BADCAFE), (32, 0xDEADBEEF), (24, 0xABCDEF), (8, 6), (16, 0x55), (3, 5), (16, 0x1122),
        (4, 3), (3, 6), (24, 0xFFFFFE),
    )  # fmt: skip
    digits = "".join(f"{value:0{width}b}" for width, value in widths)
    assert len(digits) == 320
    assert payload == int(digits, 2).to_bytes(40, "little")


LAYOUT_OF = {m.DB: "RD_QP_SST", m.WP: "RD_QP_STATE", m.RTC: "RD_QP_NPST", m.FE: "RD_ENCAP"}


def _mask(layout: Layout) -> int:
    return sum(field.mask << field.lsb for field in layout.fields)


def test_responses_fill_their_widths_as_the_document_counts() -> None:
    assert {source: layout.size * 8 for source, layout in m.RESPONSES.items()} == {
        m.DB: 256, m.WP: 128, m.RTC: 256, m.RRC: 256, m.EE: 320, m.FE: 256,
    }  # fmt: skip
    assert _mask(m.RRC_RESPONSE) == (1 << 256) - 1


def test_82_bytes_of_key_data() -> None:
    assert m.KEY_BYTES == 82
    kept = {field.name for field in QPC.fields if field.byte - field.byte % 4 in m.KEY_WORDS}
    assert kept >= QPC_KEY_FIELDS
    assert len(extract(bytes(range(256)))) * 8 == 2 * 384
    assert extract(bytes(range(256))).startswith(bytes.fromhex("08090a0b 0c0d0e0f 18191a1b"))


READERS = {
    "state": {m.WP, m.RTC, m.RRC, m.EE},
    "remote_qpn": {m.DB, m.RRC, m.EE},
    "pd": {m.DB, m.RRC, m.EE},
    "next_send_psn": {m.RTC, m.RRC},
    "last_acked_psn": {m.RRC},
    "expected_psn": {m.EE},
    "dlid": {m.RTC, m.RRC, m.EE, m.FE},
    "sip": {m.FE},
}


def test_readers_of_a_field_see_it_and_no_other(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, _ = loaded
    reads = [row for row in m.REQUESTS if row.kind == m.READ and m.CEU not in row.sources]
    before = {row.sources[0]: ask(contexts, row.sources[0], row.type, row.opcode) for row in reads}
    table = {name: set(row.readers) for row in KEY_FIELDS if row.context == "qpc" for name in row.fields}
    for name, readers in READERS.items():
        assert table[name] == readers
    for name, readers in table.items():
        if name in ("tclass", "flow_label", "rnr_nak_timer"):
            continue  # kept beside a field that a channel shows, but drawn in no response
        ctx = contexts.key.qps[QPN]
        old = getattr(ctx, name)
        setattr(ctx, name, old ^ 1)
        seen = {
            row.sources[0]
            for row in reads
            if ask(contexts, row.sources[0], row.type, row.opcode) != before[row.sources[0]]
        }
        setattr(ctx, name, old)
        if name == "port":
            readers = {m.FE}
        elif name == "msgmax":
            readers = {m.DB}
        elif name in ("dmac_hi",):
            readers = {m.FE}
        elif name in ("cqn_snd", "cqn_rcv"):
            assert seen >= readers
            continue
        assert seen == readers, name


# --------------------------------------------------------------------------------------- machines


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_and_input(name: str) -> None:
    table = MACHINES[name]
    inputs = {event for _, event in table}
    states = {state for state, _ in table}
    assert set(table.values()) <= states
    for state in states:
        for event in inputs:
            machine = Machine(name, table)
            machine.state = state
            if (state, event) in table:
                assert machine.step(event) == table[state, event]
            else:
                with pytest.raises(MachineError, match=f"{name} in {state} has no transition for {event}"):
                    machine.step(event)
                assert machine.state == state


def test_traffic_takes_every_transition(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, _ = loaded
    ask(contexts, m.RTC, m.RD_QP_CXT, m.RD_QP_NPST)
    ask(contexts, m.RTC, m.WR_QP_CXT, m.WR_QP_NPST, data=m.engine_payload(7, 3))
    ask(contexts, m.RTC, m.WR_QP_CXT, m.WR_QP_NPST, data=b"short")
    ask(contexts, m.RTC, m.WR_QP_CXT, m.WR_QP_STATE)
    contexts.event_function(2, 1 << 4, False)
    contexts.invalidate_cq(6)
    contexts.write_qp(9999, QPC.pack(VALUES))
    contexts.ceu(m.ceu_request(9, 9))
    lines = []
    for machine in contexts.machines:
        for (state, event), following in machine.table.items():
            taken = (state, event) in machine.taken
            lines.append(f"{machine.name:14} {state:15} --{event}--> {following:15} {'taken' if taken else 'MISSED'}")
    print("\n".join(lines))
    assert not [line for line in lines if line.endswith("MISSED")]


# ------------------------------------------------------------------------------------ arbitration


def test_ceu_goes_first_and_engines_in_turn() -> None:
    contexts, _ = manager()
    key = contexts.key
    for source in m.ENGINES:
        for _ in range(3):
            contexts.request(source, m.engine_request(m.RD_QP_CXT, m.RD_QP_STATE, QPN))
    order = []
    for turn in range(18):
        if turn == 4:
            key.channels[0].append(((m.WR_CQ_CXT << 31 | m.WR_CQ_ALL << 27 | 1 << 24 | 5).to_bytes(5, "big"), CQ5))
        order.append(key.step())
    order.append(key.step())
    assert order == [1, 2, 3, 4, 0, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]
    assert key.step() == -1


def test_selected_channel_holds_until_received() -> None:
    contexts, _ = manager()
    controller = contexts.key.controller
    assert controller.select() == -1
    contexts.request(m.RRC, m.engine_request(m.RD_CQ_CXT, m.RD_CQ_CST, QPN))
    assert controller.select() == 4
    assert controller.selected_channel == VALID | 1 << 4
    contexts.request(m.DB, m.engine_request(m.RD_QP_CXT, m.RD_QP_SST, QPN))
    assert controller.select() == 4
    controller.receive_req()
    assert controller.selected_channel == 1 << 4
    assert controller.select() == 1  # 4 was served last: 5, 6 and then 1 come before it


def test_no_channel_starves_and_the_ceu_waits_for_one_request() -> None:
    contexts, _ = manager()
    served = [0] * 7
    for turn in range(700):
        for source in m.ENGINES:
            while len(contexts.key.channels[source - 1]) < 4:
                contexts.request(source, m.engine_request(m.RD_QP_CXT, m.RD_QP_STATE, QPN))
        if turn % 7 == 0:
            contexts.key.channels[0].append(((m.WR_CQ_CXT << 31 | m.WR_CQ_ALL << 27 | 5).to_bytes(5, "big"), CQ5))
            assert contexts.key.step() == 0
            served[0] += 1
        else:
            served[contexts.key.step()] += 1
    assert served == [100] * 7


# ------------------------------------------------------------------------------------- both forms


def test_random_streams_against_a_model() -> None:
    for seed in range(20):
        _random_stream(random.Random(seed))


def _random_stream(rng: random.Random) -> None:
    """A dict of four numbers a QP is the model; DMA fails and stalls at random, and heals before the flush."""
    contexts, memory = manager(4)
    model: dict[int, dict[str, int]] = {}
    writes = {
        m.RTC: (m.WR_QP_NPST, "next_send_psn"),
        m.RRC: (m.WR_QP_UAPST, "last_acked_psn"),
        m.EE: (m.WR_QP_EPST, "expected_psn"),
    }
    for _ in range(120):
        qpn = rng.randrange(14, 34)
        memory.failing = rng.random() < 0.15
        if rng.random() < 0.25:
            values = {"state": rng.randrange(7), "local_qpn": qpn, "remote_qpn": rng.getrandbits(24), "flags_27_24": 5}
            status = contexts.write_qp(qpn, QPC.pack(values))
            if 16 <= qpn < 32 and not memory.failing:
                assert status == Status.OK
                model[qpn] = values | {"next_send_psn": 0, "last_acked_psn": 0, "expected_psn": 0}
            else:
                assert status != Status.OK
        else:
            contexts.stalled = rng.random() < 0.3
            source = rng.choice(list(writes))
            opcode, name = writes[source]
            psn, state = rng.getrandbits(24), rng.randrange(7)
            assert ask(contexts, source, m.WR_QP_CXT, opcode, qpn, m.engine_payload(psn, state)) is None
            if qpn in model:
                model[qpn] |= {name: psn, "state": state}
            contexts.stalled = False
            contexts.run()
    memory.failing = False
    assert set(contexts.key.qps) == set(model)
    contexts.flush()
    for qpn, values in model.items():
        ctx = contexts.key.qps[qpn]
        status, host = contexts.read_qp(qpn)
        assert status == Status.OK
        assert host == ctx.store()
        assert values == {name: getattr(ctx, name) for name in values}


def test_message_form_equals_the_typed_view() -> None:
    rng = random.Random(5)
    for _ in range(200):
        contexts, _ = manager(4)
        values = {field.name: rng.getrandbits(field.width) for field in QPC.fields}
        values |= {"local_qpn": QPN, "state": rng.randrange(7), "cqn_snd": 5, "cqn_rcv": 6, "pd": rng.getrandbits(12)}
        values["extension_valid"] = 1
        assert contexts.write_cq(5, CQ5) == contexts.write_cq(6, CQ6) == contexts.write_eq(2, EQ2) == Status.OK
        assert contexts.write_qp(QPN, QPC.pack(values)) == Status.OK
        ctx = contexts.key.qps[QPN]
        assert {name: getattr(ctx, name) for name in values} == values
        made = {}
        for row in m.REQUESTS:
            if row.kind == m.READ and m.CEU not in row.sources:
                payload = ask(contexts, row.sources[0], row.type, row.opcode)
                assert payload is not None
                made[row.sources[0]] = m.RESPONSES[row.sources[0]].unpack(payload)
        low = values["remote_qpn"] & 0xFFFFFF
        assert made[m.DB]["dst_qpn"] | made[m.DB]["dst_qpn_hi"] << 16 == low
        assert made[m.RRC]["dst_qpn"] == made[m.EE]["dst_qpn"] == low
        assert made[m.DB]["pmtu_msgmax"] == values["mtu"] << 5 | values["msgmax"]
        assert {made[s]["state"] for s in (m.WP, m.RTC, m.RRC, m.EE)} == {values["state"]}
        assert made[m.RTC]["next_psn"] == made[m.RRC]["next_psn"] == values["next_send_psn"] & 0xFFFFFF
        assert made[m.RRC]["unacked_psn"] == values["last_acked_psn"] & 0xFFFFFF
        assert made[m.EE]["expected_psn"] == values["expected_psn"]
        assert made[m.EE]["pmtu"] == values["mtu"]
        assert made[m.FE]["dmac"] == values["dmac_hi"] << 16 | values["dlid"]
        assert made[m.FE]["smac"] == values["smac_hi"] << 16 | values["slid"]
        assert (made[m.FE]["sl"], made[m.FE]["port"], made[m.FE]["ib_roce"]) == (values["sl"], values["port"], 0)
        assert {made[s]["rlid"] for s in (m.RTC, m.RRC, m.EE)} == {values["dlid"]}
        assert made[m.DB]["sq_length"] == made[m.WP]["sq_length"] == values["snd_wqe_length"]
        assert (made[m.EE]["rq_length"], made[m.EE]["rcq_length"]) == (values["rcv_wqe_length"], 9)


# -------------------------------------------------------------------------------------- memory


def test_write_back_touches_only_its_bytes(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, _ = loaded
    before = contexts.read_qp(QPN)[1]
    ask(contexts, m.EE, m.WR_QP_CXT, m.WR_QP_EPST, data=m.engine_payload(0x0A0B0C, 6))
    after = bytearray(before)
    after[0x08] = 0x6A
    after[0x85:0x88] = bytes.fromhex("0a0b0c")
    assert contexts.read_qp(QPN)[1] == after


def test_what_was_stored_to_an_entry_by_hand_is_in_memory_once_it_has_left(
    loaded: tuple[ContextManager, Memory],
) -> None:
    contexts, _ = loaded
    contexts.key.qps[QPN].remote_qpn = 0x123456
    assert contexts.evict("qp", QPN) == Status.OK
    assert QPC.get(contexts.read_qp(QPN)[1], "remote_qpn") == 0x123456


def test_pages_are_found_by_the_bits_of_the_number() -> None:
    contexts, memory = manager()
    contexts.write_qp(16, QPC.pack({"local_qpn": 16}))
    contexts.write_qp(255 + 16, QPC.pack({"local_qpn": 255 + 16}))
    # 256 QPs in 16 pages, the first page last: number 16 is slot 16, in page 1; 271 is slot 15, the end of page 0
    assert memory.bytes[4096 * 15 + 0x14 : 4096 * 15 + 0x18] == bytes.fromhex("00000010")
    assert memory.bytes[4096 * 17 - 256 + 0x14 : 4096 * 17 - 256 + 0x18] == bytes.fromhex("0000010f")


def test_dma_interface(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, _ = loaded
    contexts.stalled = True
    contexts.parser.fifo.append((m.ceu_request(m.WR_CQ_CXT, m.WR_CQ_ALL, 5), CQ5, None))
    contexts.parser.fifo.append((m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, QPN), b"", None))
    contexts.run()
    ((_, (write,)),) = contexts.writectx.dma
    assert m.DMA_HEADER.unpack(write.header) == {"addr": HOST + 4096 * 17 + 5 * 64, "len": 64}
    assert [len(beat) for beat in write.beats] == [32, 32]
    assert contexts.parser.fifo  # the next request waits until memory has taken this one
    contexts.stalled = False
    contexts.run()
    header, data = contexts.readctx.answers.popleft()
    assert header.hex() == "1100000000000011" + "00" * 8
    assert data is not None
    assert QPC.get(data, "remote_qpn") == 0xABCDEF


def test_invalidating_writes_zeros(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, memory = loaded
    assert memory.bytes[128:192] == EQ2
    assert contexts.event_function(2, 0x30, False) == Status.OK
    assert memory.bytes[128 + 0x10 : 128 + 0x14] == bytes.fromhex("00000030")
    assert contexts.key.eqs[2].event_mask == 0x30
    assert contexts.event_function(2, 0, True) == Status.OK
    assert not contexts.key.eqs[2].enabled
    assert contexts.invalidate_eq(2) == Status.OK
    assert memory.bytes[128:192] == bytes(64)
    assert contexts.invalidate_cq(5) == Status.OK
    assert 5 not in contexts.key.cqs
    assert not contexts.key.eqs


def test_the_event_mask_is_merged_in_memory_as_in_the_cache(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, memory = loaded

    def masks() -> tuple[int, int]:
        return int.from_bytes(memory.bytes[128 + 0x10 : 128 + 0x14], "big"), contexts.key.eqs[2].event_mask

    for types, disable, wanted in (
        (0x30, False, 0x30),
        (0x8000_0001, False, 0x8000_0031),
        (0x11, True, 0x8000_0020),
        (0, True, 0x8000_0020),
        (0x8000_0000, True, 0x20),
    ):
        assert contexts.event_function(2, types, disable) == Status.OK
        assert masks() == (wanted, wanted)


@pytest.mark.parametrize("eqn", [0, 1, 31, 32, 1 << 30 | 2])
def test_the_event_function_of_an_eq_never_written_is_refused(loaded: tuple[ContextManager, Memory], eqn: int) -> None:
    contexts, memory = loaded
    before = bytes(memory.bytes)
    for disable in (False, True):
        assert contexts.event_function(eqn, 0x30, disable) == Status.REFUSED
    assert memory.bytes == before
    assert contexts.invalidate_eq(2) == Status.OK
    assert contexts.event_function(2, 0x30, False) == Status.REFUSED
    assert memory.bytes[128:192] == bytes(64)
    assert contexts.counters["ctx_refused"] == 3
    assert not contexts.key.eqs


@pytest.mark.parametrize(
    ("kind", "opcode", "number", "payload"),
    [
        (m.WR_QP_CXT, m.WR_QP_ALL, QPN, QPC.pack(VALUES)),
        (m.RD_QP_CXT, m.RD_QP_ALL, QPN, b""),
        (m.WR_CQ_CXT, m.WR_CQ_ALL, 5, CQ5),
        (m.WR_CQ_CXT, m.WR_CQ_INVALID, 5, b""),
        (m.WR_EQ_CXT, m.WR_EQ_ALL, 2, EQ2),
        (m.WR_EQ_CXT, m.WR_EQ_INVALID, 2, b""),
    ],
)
def test_bit_31_of_an_address_counts(
    loaded: tuple[ContextManager, Memory], kind: int, opcode: int, number: int, payload: bytes
) -> None:
    contexts, memory = loaded
    before = bytes(memory.bytes)
    assert contexts.ceu(m.ceu_request(kind, opcode, 1 << 31 | number), payload)[0] == Status.REFUSED
    assert memory.bytes == before
    assert contexts.ceu(m.ceu_request(kind, opcode, number), payload)[0] == Status.OK


def test_infiniband_mode_of_frame_encap() -> None:
    """Typed from the drawing of table 3.2: flag 1 in bit 3, LIDs in the low 16 bits of the MACs' places."""
    contexts, _ = manager(infiniband=True)
    assert contexts.write_qp(QPN, QPC.pack(VALUES)) == Status.OK
    payload = ask(contexts, m.FE, m.RD_QP_CXT, m.RD_ENCAP)
    assert payload is not None
    assert payload.hex() == "99005500" + "00" * 8 + "44330000" + "00002211" + "00" * 12
    said = m.FE_RESPONSE_IB.unpack(payload)
    assert said == {"port": 1, "ib_roce": 1, "sl": 9, "pkey": 0x55, "slid": 0x3344, "dlid": 0x1122}
    assert m.FE_RESPONSE_IB.pack(said) == payload
    # and in the place where RoCE has its MACs, as the same table names them
    roce = m.FE_RESPONSE.unpack(payload)
    assert (roce["ib_roce"], roce["smac"] & 0xFFFF, roce["dmac"] & 0xFFFF) == (1, 0x3344, 0x1122)
    # RLID of the three channels that have it is the same field in both modes
    for source, kind, opcode in (
        (m.RTC, m.RD_QP_CXT, m.RD_QP_NPST),
        (m.RRC, m.RD_CQ_CXT, m.RD_CQ_CST),
        (m.EE, m.RD_QP_CXT, m.RD_QP_RST),
    ):
        answer = ask(contexts, source, kind, opcode)
        assert answer is not None
        assert m.RESPONSES[source].get(answer, "rlid") == 0x1122


def test_host_edits_count_when_loaded_again(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, memory = loaded
    at = 4096 * 15 + 256 + 0x18
    memory.bytes[at : at + 4] = (0x77).to_bytes(4, "big")
    assert contexts.key.qps[QPN].remote_qpn == 0xABCDEF
    rows = [row for row in inspect.qp(contexts, QPN) if row["differs"]]
    assert rows[0] == {"field": "remote_qpn", "host": 0x77, "cache": 0xABCDEF, "differs": True}
    # the context has no extension: what holds without one is in the cache alone, until the next flush
    assert {row["field"]: row["cache"] for row in rows[1:]} == WITHOUT_EXTENSION
    assert contexts.load_qp(QPN) == Status.OK
    assert contexts.key.qps[QPN].remote_qpn == 0x77
    assert not any(row["differs"] for row in inspect.cq(contexts, 5) + inspect.eq(contexts, 2))


def test_an_edit_of_the_cache_is_written_back_whole(loaded: tuple[ContextManager, Memory]) -> None:
    """The engine has no write of its own for such a field."""
    contexts, _ = loaded
    assert contexts.flush_qp(QPN) == Status.OK
    contexts.key.qps[QPN].remote_qpn = 0x55
    assert [row["field"] for row in inspect.qp(contexts, QPN) if row["differs"]] == ["remote_qpn"]
    assert contexts.flush_qp(QPN) == Status.OK
    assert not any(row["differs"] for row in inspect.qp(contexts, QPN))
    assert QPC.get(contexts.read_qp(QPN)[1], "remote_qpn") == 0x55


# ----------------------------------------------------------------------------------- bad input


BAD_CEU = (
    (m.ceu_request(0, 0), b""),
    (m.ceu_request(1, 7, QPN), b""),
    (m.ceu_request(1, 2, QPN), b""),  # an engine's
    (m.ceu_request(7, 1, QPN), b""),  # reserved
    (m.ceu_request(2, 1, QPN), bytes(255)),
    (m.ceu_request(2, 1, 15), bytes(256)),
    (m.ceu_request(2, 1, 16 + 256), bytes(256)),
    (m.ceu_request(2, 1, 0xFFFF_FFFF), bytes(256)),
    (m.ceu_request(3, 1, 0), CQ5),
    (m.ceu_request(3, 1, 5), CQ5[:56]),
    (m.ceu_request(4, 1, MAX_EQS), EQ2),
    (m.ceu_request(4, 3, 2), b""),
    (m.ceu_request(5, 1), bytes(31)),
    (m.ceu_request(6, 1, 65), bytes(32)),
    (m.ceu_request(6, 1, 1), m.CHUNK.pack({"virt": BASE, "page": 1, "pages": 1}) + bytes(16)),  # mapped already
    (m.ceu_request(6, 1, 1), m.CHUNK.pack({"virt": 1, "page": 1, "pages": 1}) + bytes(16)),
    (m.ceu_request(6, 1, 1), bytes(32)),
    (m.ceu_request(6, 2, 1, 0x1000), b""),
    (m.ceu_request(6, 2, 0, BASE), b""),
)


@pytest.mark.parametrize("case", range(len(BAD_CEU)))
def test_bad_ceu_requests_change_nothing(loaded: tuple[ContextManager, Memory], case: int) -> None:
    contexts, memory = loaded
    before = bytes(memory.bytes), dict(contexts.key.cqs), dict(contexts.key.qps)
    header, payload = BAD_CEU[case]
    assert contexts.ceu(header, payload, memory)[0] == Status.REFUSED
    assert contexts.counters["ctx_refused"] == 1
    assert (bytes(memory.bytes), contexts.key.cqs, contexts.key.qps) == before
    assert not contexts.writectx.ctxdata
    assert contexts.write_cq(5, CQ6) == Status.OK


def test_dma_error_leaves_the_cache(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, memory = loaded
    memory.failing = True
    assert contexts.write_qp(QPN, QPC.pack(VALUES | {"remote_qpn": 1})) == Status.DMA_ERROR
    assert contexts.read_qp(QPN) == (Status.DMA_ERROR, b"")
    contexts.key.qps[QPN].next_send_psn = 99
    assert contexts.flush_qp(QPN) == Status.DMA_ERROR
    memory.failing = False
    assert contexts.key.qps[QPN].remote_qpn == 0xABCDEF
    assert contexts.flush_qp(QPN) == Status.OK
    assert QPC.get(contexts.read_qp(QPN)[1], "next_send_psn") == 99


def test_unmapped_page_keeps_traffic_and_fails_the_flush(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, _ = loaded
    assert contexts.unmap_icm(BASE + 4096, 1) == Status.OK
    assert ask(contexts, m.RTC, m.WR_QP_CXT, m.WR_QP_NPST, data=m.engine_payload(7, 3)) is None
    assert contexts.key.qps[QPN].next_send_psn == 7
    assert contexts.counters["ctx_unmapped"] == 1
    assert contexts.read_qp(QPN)[0] == Status.REFUSED
    contexts.key.qps[QPN].next_send_psn = 8
    assert contexts.flush_qp(QPN) == Status.DMA_ERROR


def test_bad_engine_requests(loaded: tuple[ContextManager, Memory]) -> None:
    contexts, _ = loaded
    assert ask(contexts, m.DB, m.RD_QP_CXT, m.RD_QP_NPST) == b""  # another channel's
    assert ask(contexts, m.EE, 15, 15) == b""
    assert ask(contexts, m.RRC, m.RD_CQ_CXT, m.RD_CQ_ALL) == b""  # reserved
    assert contexts.counters["ctx_bad_requests"] == 3
    assert ask(contexts, m.EE, m.RD_QP_CXT, m.RD_QP_RST, 99) == bytes(40)
    assert ask(contexts, m.EE, m.WR_QP_CXT, m.WR_QP_EPST, 99, m.engine_payload(1, 1)) is None
    assert contexts.counters["ctx_unknown_qps"] == 2
    assert ask(contexts, m.EE, m.WR_QP_CXT, m.WR_QP_EPST, data=m.engine_payload(1, 7)) is None
    assert contexts.counters["ctx_bad_payloads"] == 1
    assert contexts.key.qps[QPN].expected_psn == 0xFFFFFE
    assert not contexts.request(m.EE, b"short")
    assert not contexts.request(m.CEU, bytes(16))
    for _ in range(FIFO_DEPTH):
        assert contexts.request(m.WP, m.engine_request(m.RD_QP_CXT, m.RD_QP_STATE, QPN))
    assert not contexts.request(m.WP, m.engine_request(m.RD_QP_CXT, m.RD_QP_STATE, QPN))


def test_tables_reset_and_sizes() -> None:
    contexts, memory = manager()
    assert contexts.write_cq(5, CQ5) == Status.OK
    assert contexts.close_hca() == Status.OK
    assert contexts.write_cq(5, CQ5) == Status.REFUSED
    assert contexts.map_icm(memory, [(BASE, HOST, 1)]) == Status.REFUSED
    assert contexts.init_hca(ICMMAP) == Status.OK
    full = ContextManager(14, Counters()).ctxmdata.tables
    assert [len(full[kind].valid) for kind in ("qp", "cq", "eq")] == [1024, 256, MAX_EQS * 64 // 4096]
    with pytest.raises(ValueError, match="log_qps=15"):
        ContextManager(15, Counters())
    overlapping = m.ICMMAP.pack({"qpc_base": BASE >> 8, "cqc_base": BASE >> 8, "eqc_base": 0})
    assert contexts.init_hca(overlapping) == Status.REFUSED
    assert contexts.init_hca(m.ICMMAP.pack({"log_qps": 9})) == Status.REFUSED
