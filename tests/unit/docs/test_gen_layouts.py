"""The generated layout pages: every field of every layout is there, the pictures are right, runs repeat."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rnic.device.commands import COMMANDS
from rnic.spec import attach, commands, engine_net_regs, engine_regs
from rnic.spec.layout import Layout
from rnic.wire.opcode import OPCODES

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def gen() -> ModuleType:
    sys.path.insert(0, str(DOCS))  # the generators import each other
    spec = importlib.util.spec_from_file_location("gen_layouts", DOCS / "gen_layouts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(gen: ModuleType) -> dict[str, str]:
    made: dict[str, str] = gen.pages()
    return made


def all_layouts() -> list[Layout]:
    found = []
    for room in ("mem", "rings", "context", "wire", "device", "rclink"):
        package = importlib.import_module(f"rnic.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"rnic.{room}."):
            found += [
                value for value in vars(importlib.import_module(module.name)).values() if isinstance(value, Layout)
            ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("layout", all_layouts(), ids=lambda layout: layout.name)
def test_every_layout_is_on_exactly_one_page(layout: Layout, pages: dict[str, str]) -> None:
    heading = f"\n## {layout.name[0].upper()}{layout.name[1:]}\n"
    holders = [text for text in pages.values() if heading in text]
    assert len(holders) == 1
    section = holders[0].partition(heading)[2].partition("\n## ")[0]
    for field in layout.fields:
        span = str(field.msb) if field.width == 1 else f"{field.msb}:{field.lsb}"
        assert f"| {field.byte:02X}h | {field.unit} | {span} | `{field.name}` | {field.access} | " in section


def test_every_bit_of_the_engines_registers_is_on_their_page(pages: dict[str, str]) -> None:
    page = pages["engine-registers.md"]
    core = (
        ("Core", 0, engine_regs.REGISTERS),
        ("Core with more than 32 address bits", 0, engine_regs.WIDE_REGISTERS),
    )
    network = (
        ("Encapsulator", engine_regs.ENCAP_BASE, engine_net_regs.ENCAP_REGISTERS),
        ("Decapsulator", engine_regs.DECAP_BASE, engine_net_regs.DECAP_REGISTERS),
    )
    for title, base, registers in core + network:
        for register in registers:
            assert (
                f"| {base + register.offset:03X}h | `{register.name}` | {register.access} | {register.reset:X}h |"
                in page
            )
            own = page.partition(f"### {title}: {register.name}\n")[2].partition("\n#")[0]
            for field in register.fields:
                span = str(field.msb) if field.width == 1 else f"{field.msb}:{field.lsb}"
                assert f"| {span} | `{field.name}` | {field.access} | " in own, (register.name, field.name)
            assert own.count('<rect class="hw"') == len(register.fields)
    for code, name in engine_regs.ENGINE_ERROR_NAMES.items():
        assert f"| {code} | {name} |" in page


def test_every_opcode_is_on_the_opcode_page(pages: dict[str, str]) -> None:
    for row in OPCODES:
        if row is not None:
            assert f"| {row.opcode:02X}h | `{row.name}` |" in pages["opcodes.md"]
    assert "| 0Bh | `RC_WRITE_ONLY_IMM` | `reth` `immdt` | 32 | yes | yes |" in pages["opcodes.md"]


def test_every_command_is_on_the_command_page(pages: dict[str, str]) -> None:
    page = pages["commands.md"]
    for op in COMMANDS:
        assert f"| {op:03X}h | `{commands.COMMAND_NAMES[op]}` |" in page
        assert commands.COMMAND_DOCS[op][2]
    assert set(commands.COMMAND_DOCS) == COMMANDS
    assert set(commands.STATUS_DOCS) == set(commands.STATUS_NAMES)
    for status, name in commands.STATUS_NAMES.items():
        assert f"| {status:02X}h | `{name}` | " in page
    assert "| 00Dh | `SW2HW_MPT` | key |  | 64 |  | create a region with an allocated key |" in page
    assert "| 011h | `WRITE_MTT` | entries |  | *n* |  | fill a page list |" in page
    assert "| RTR2RTS | RTR | RTS | UC | SQ_PSN \\[CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE] |" in page
    assert "10h `WQ_INVAL_REQ_ERROR`" in page


def test_the_process_boundary_and_registers_have_pages(pages: dict[str, str]) -> None:
    for value in vars(attach).values():
        if isinstance(value, Layout):
            assert f"\n## {value.name[0].upper()}{value.name[1:]}\n" in pages["process-boundary.md"]
    assert "## Global block" in pages["registers.md"]
    assert "## Scatter" in pages["entries.md"]


def test_index_names_every_page(pages: dict[str, str]) -> None:
    for name in pages:
        if name != "index.md":
            assert f"]({name})" in pages["index.md"]
            assert f"\n{name.removesuffix('.md')}\n" in pages["index.md"]


def test_pages_repeat_exactly_and_stale_ones_go(gen: ModuleType, pages: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("from an earlier run")
    written = gen.write(tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == pages
    assert {path.name for path in written} == set(pages)


def test_prose_is_escaped(gen: ModuleType) -> None:
    assert gen.escape("a | b, IBV_ACCESS_* <x>") == r"a \| b, IBV_ACCESS_\* \<x>"
