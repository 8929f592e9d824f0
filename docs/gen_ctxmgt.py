"""Writes every row of documents 002 and 003 with its test, from the code's own tables and ``ctxmgt_rows.py``.

Refuses a row whose test is not there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ctxmgt_rows import COYOTE, CTX, INTERFACES, LAYOUT, MSG, RINGS, Row
from gen_conformance import ROOT, tests_in

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.eqc import EQC
from rnic.context.key_qpc_data import KEY_FIELDS
from rnic.context.machines import MACHINES
from rnic.context.qpc import EXTENSION, QPC
from rnic.rings import coyote
from rnic.spec.layout import Layout

SHORT = {m.CEU: "CEU", m.DB: "DB", m.WP: "WP", m.RTC: "RTC", m.RRC: "RRC", m.EE: "EE", m.FE: "FE"}
DRAWN = {
    m.DB: f"{CTX}::test_drawn_responses[RD_QP_SST]",
    m.WP: f"{CTX}::test_drawn_responses[RD_QP_STATE]",
    m.RTC: f"{CTX}::test_drawn_responses[RD_QP_NPST]",
    m.RRC: f"{CTX}::test_recv_control_response",
    m.EE: f"{CTX}::test_execution_engine_response",
    m.FE: f"{CTX}::test_drawn_responses[RD_ENCAP]",
}
CONTEXTS = (
    (QPC, "4.2.1", "tests/unit/context/test_qpc.py::test_golden_field"),
    (CQC, "4.2.2", "tests/unit/context/test_cqc.py::test_cqc_golden_bytes"),
    (EQC, "4.2.3", "tests/unit/context/test_eqc.py::test_golden_bytes"),
)
MESSAGES = (
    (m.CEU_HEADER, "2.1, 3.1"),
    (m.ENGINE_HEADER, "2.1, 3.2"),
    (m.ENGINE_WRITE, "3.2"),
    (m.CHUNK, "3.1"),
    (m.ICMMAP, "5.3.3"),
    (m.PARSER_REQUEST, "5.1.2"),
    (m.READ_REQUEST, "5.3.2, 5.5.2"),
    (m.WRITE_REQUEST, "5.3.2, 5.6.2"),
    (m.WRITE_BACK, "5.3.2"),
    (m.DMA_HEADER, "5.5.2, 5.6.2"),
    (m.SELECTED_CHANNEL, "5.2.1"),
    (m.FE_RESPONSE_IB, "3.2"),
)
COYOTE_LAYOUTS = tuple(value for value in vars(coyote).values() if isinstance(value, Layout))
SECTIONS = {
    "CEU_PARSER": "5.1.4",
    "CTXMDATA": "5.3.4",
    "KEY_QPC_DATA": "5.4.4",
    "WRITECTX": "5.6.3",
}
_LEVELS = {m.METADATA: "metadata", m.READ: "read", m.WRITE: "write", m.RESERVED: "reserved"}


def field_test(layout: Layout, field: str) -> str:
    """Return the test of one field against the hand-typed list of layouts."""
    return f"{LAYOUT}::test_field[" + re.sub(r"\W+", "_", layout.name) + f".{field}]"


def requests() -> Iterator[Row]:
    """Yield the rows of tables 2.2 and 3.1."""
    for row in m.REQUESTS:
        who = " ".join(SHORT[source] for source in row.sources) or "nobody"
        kind = {m.METADATA: "ceu", m.RESERVED: "reserved"}.get(row.kind, "ceu" if m.CEU in row.sources else "engine")
        payload = f", {row.payloads[-1] * 8} bits in" if row.payloads[-1] else ""
        answer = f", {row.response} bits out" if row.response else ""
        text = f"`{row.name}` {row.type:04b} {row.opcode:04b}: {_LEVELS[row.kind]}, asked by {who}{payload}{answer}"
        tests = f"{MSG}::test_row_of_the_table[{row.name}]", f"{MSG}::test_{kind}_request[{row.name}]"
        where = "context/key_qpc_data.py" if kind == "engine" else "context/ceu_parser.py"
        yield Row("2.2, 3.1", text, "context/messages.py" if kind == "reserved" else where, tests)


def responses() -> Iterator[Row]:
    """Yield section 3.2: each field of each channel."""
    for source, layout in m.RESPONSES.items():
        for field in layout.fields:
            text = f"{SHORT[source]}, {layout.size * 8} bits: {field.msb}:{field.lsb} `{field.name}`, {field.doc}"
            yield Row("3.2", text, "context/key_qpc_data.py", (DRAWN[source], field_test(layout, field.name)))


def contexts() -> Iterator[Row]:
    """Yield section 4.2: each field of each context, the extension of the QPC left out."""
    for layout, section, golden in CONTEXTS:
        for field in layout.fields:
            if layout is QPC and field in EXTENSION:
                continue
            text = (
                f"{layout.name} {field.byte:02X}h {field.msb}:{field.lsb} `{field.name}`, {field.doc} ({field.access})"
            )
            where = f"context/{layout.name.lower()}.py"
            yield Row(section, text, where, (golden, field_test(layout, field.name)))


def messages() -> Iterator[Row]:
    """Yield headers and inner interfaces, by field."""
    for layout, section in MESSAGES:
        for field in layout.fields:
            text = f"{layout.name}: {field.msb}:{field.lsb} `{field.name}`, {field.doc}"
            yield Row(section, text, "context/messages.py", (field_test(layout, field.name),))


def key_fields() -> Iterator[Row]:
    """Yield the rows of section 5.4.2."""
    for row in KEY_FIELDS:
        readers, writers = (" ".join(SHORT[part] for part in parts) or "nobody" for parts in (row.readers, row.writers))
        text = f"`{row.name}`, {row.width} bits of the {row.context.upper()}: read by {readers}, written by {writers}"
        acts = f"tests/unit/device/test_key_data_rows.py::test_a_row_acts_on_live_traffic[{row.name}-store]"
        tests = f"{MSG}::test_key_field[{row.name}]", f"{CTX}::test_readers_of_a_field_see_it_and_no_other", acts
        yield Row("5.4.2", text, "context/key_qpc_data.py", tests)


def machines() -> Iterator[Row]:
    """Yield the rows of sections 5.1.4, 5.3.4, 5.4.4 and 5.6.3."""
    for name, table in MACHINES.items():
        for (state, event), following in table.items():
            row = f"tests/unit/context/test_machines.py::test_transition[{name}.{state}.{event}]"
            tests = row, f"{CTX}::test_every_state_and_input[{name}]", f"{CTX}::test_traffic_takes_every_transition"
            text = f"`{name}` {state}, {event}: to {following}"
            yield Row(SECTIONS[name.upper()], text, "context/machines.py", tests)


def coyote_fields() -> Iterator[Row]:
    """Yield document 003: each member of each structure."""
    for layout in COYOTE_LAYOUTS:
        for field in layout.fields:
            text = f"`{layout.name}`: {field.msb}:{field.lsb} `{field.name}`, {field.msb - field.lsb + 1} bits"
            golden = f"{RINGS}::test_members_have_the_documents_widths_and_order", f"{RINGS}::test_golden_bytes"
            yield Row("003", text, "rings/coyote.py", (*golden, field_test(layout, field.name)))


PARTS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    ("Requests: tables 2.2 and 3.1", tuple(requests())),
    ("Channels of the engine: 3.2", tuple(responses())),
    ("Contexts: 4.2", tuple(contexts())),
    ("Interfaces: 3, 4.1 and 5.1.1 to 5.6.2", INTERFACES),
    ("Headers and inner interfaces, field by field", tuple(messages())),
    ("Key data: 5.4.2", tuple(key_fields())),
    ("State machines: 5.1.4, 5.3.4, 5.4.4 and 5.6.3", tuple(machines())),
    ("Document 003", (*COYOTE, *coyote_fields())),
)


def faults() -> list[str]:
    """Return what is wrong with the rows, a line each."""
    rows = [row for _, part in PARTS for row in part]
    named = {test.split("[")[0] for row in rows for test in row.tests}
    files = {ROOT / test.split("::")[0] for test in named}
    existing = {test for path in files if path.exists() for test in tests_in(path)}
    places = {row.where for row in rows}
    found = [f"{test} is named by a row and does not exist" for test in sorted(named - existing)]
    found += [
        f"src/rnic/{where} does not exist" for where in sorted(places) if not (ROOT / "src/rnic" / where).exists()
    ]
    listed = {id(layout) for layout, _ in MESSAGES} | {id(layout) for layout in m.RESPONSES.values()}
    found += [
        f"{value.name} is in no row"
        for value in vars(m).values()
        if isinstance(value, Layout) and id(value) not in listed
    ]
    return found


def write(target: Path) -> None:
    """Write the tables as MyST."""
    lines: list[str] = []
    for title, rows in PARTS:
        lines += [f"### {title}", "", "| section | row | where | tests |", "|---|---|---|---|"]
        for row in rows:
            tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in row.tests)
            lines.append(f"| {row.section} | {row.text} | `{row.where}` | {tests} |")
        lines.append("")
    target.write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    """Exit status 1 with a line for each fault."""
    found = faults()
    for fault in found:
        print(f"ctxmgt: {fault}", file=sys.stderr)
    write(Path(__file__).resolve().parent / "layouts" / "ctxmgt-rows.md")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
