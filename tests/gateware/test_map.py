"""The map from the documents to code and tests: whole, and about things that exist. ``mutants.py`` proves it true."""

from __future__ import annotations

import ast
import re

import mutants
import pytest

from rnic.context import messages as m
from rnic.context.machines import MACHINES
from rnic.spec import engine_net_regs as net
from rnic.spec import engine_regs as core

ROWS = mutants.rows()
HAVE = {row.item for row in ROWS}


def required() -> set[str]:
    """What must have a row: all that stands in the tables of registers, states and codes."""
    out = {"module ip_encapsulator", "module ip_decapsulator", "module endpoint_lookup"}
    for block, registers, states in (
        ("encapsulator", net.ENCAP_REGISTERS, net.ENCAP_STATES),
        ("decapsulator", net.DECAP_REGISTERS, net.DECAP_STATES),
    ):
        out |= {f"{block} {register.name}" for register in registers if register.name != "CTRL"}
        out |= {f"{block} state {state}" for state in states}
    out |= {f"encapsulator CTRL.{field.name}" for field in net.ENCAP_CTRL_FIELDS}
    out |= {"decapsulator CTRL.enable", "decapsulator CTRL.soft_reset"}
    out |= {f"endpoint entry {field.name}" for field in net.ENDPOINT_ENTRY.fields}
    return out


def required_of_the_core() -> set[str]:
    """The same for the core."""
    out = {f"register {register.name}" for register in (*core.REGISTERS, *core.WIDE_REGISTERS)}
    out |= {f"rdma_controller {state}" for state in core.RDMA_STATES}
    out |= {f"tx_streamer {state}" for state in core.TX_STATES}
    out |= {f"rx_streamer {state}" for state in core.RX_STATES}
    out |= {f"tx_header_inserter {state}" for state in core.INSERTER_STATES}
    out |= {f"rx_header_parser {state}" for state in core.HEADER_PARSER_STATES}
    return out


def required_of_ctxmgt() -> set[str]:
    """The modules, the machines' states and the six answers of CtxMgt, by how an item begins."""
    modules = ("ceu_parser", "request controller", "key_qpc_data", "readctx", "writectx")
    out = {f"ctxmgt: module {module}" for module in (*modules, "qpctxmdata", "cqctxmdata", "eqctxmdata")}
    for machine, table in MACHINES.items():
        out |= {f"ctxmgt: {machine} state {state}" for state, _ in table}
    out |= {f"ctxmgt: answer to {name.replace('_', ' ')}" for name in list(m.SOURCE_NAMES.values())[1:]}
    return out


def test_nothing_of_ctxmgt_is_missing() -> None:
    have = {item.lower() for item in HAVE}
    assert {item for item in required_of_ctxmgt() if not any(row.startswith(item.lower()) for row in have)} == set()


def test_nothing_is_missing() -> None:
    assert required() - HAVE == set()


def test_nothing_of_the_core_is_missing() -> None:
    if not (mutants.MAP / "core.toml").exists():
        pytest.skip("the core has no map yet: tests/gateware/map/core.toml")
    assert required_of_the_core() - HAVE == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.item)
def test_row_is_about_what_exists(row: mutants.Row) -> None:
    assert all((row.source, row.item, row.file, row.test, row.old, row.new))
    assert row.old != row.new
    assert (mutants.ROOT / row.file).read_text().count(row.old) == 1
    path, _, name = row.test.partition("::")
    functions = {node.name for node in ast.parse((mutants.ROOT / path).read_text()).body if hasattr(node, "name")}
    assert re.match(r"\w+", name).group() in functions  # type: ignore[union-attr]


def test_items_are_named_once() -> None:
    assert len(HAVE) == len(ROWS)
