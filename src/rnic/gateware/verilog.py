"""Export an engine, or any of its blocks, as Verilog with Yosys."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.lib import wiring

from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.top import CtxMgt
from rnic.gateware.interfaces import flat_ports
from rnic.gateware.params import EngineParams
from rnic.gateware.tools import run_tool
from rnic.gateware.top import Top
from rnic.gateware.verilog_names import readable

TOP_NAME = "rnic_engine"
CTXMGT_NAME = "rnic_ctxmgt"


def to_rtlil(component: wiring.Component, name: str) -> str:
    """Return the component as RTLIL, with port names as bus models expect them, ``clk`` and ``rst``."""
    text: str = rtlil.convert(component, name=name, ports=flat_ports(component))
    return text


def to_verilog(component: wiring.Component, name: str) -> str:
    """Return the component as one Verilog file.

    Raises:
        ToolError: no Yosys.
    """
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "in.il").write_text(readable(to_rtlil(component, name)))
        script = (
            "read_rtlil in.il; proc -norom; pmuxtree; opt_clean; memory_collect; "
            "attrmap -remove generator -remove src -remove top -remove amaranth.hierarchy -remove amaranth.decoding; "
            "attrmap -modattr -remove generator -remove src -remove amaranth.hierarchy -remove amaranth.decoding; "
            "write_verilog -noattr out.v"
        )
        run_tool("yosys", "-q", "-p", script, cwd=place)
        return (place / "out.v").read_text()


def write_engine(params: EngineParams, directory: Path) -> list[Path]:
    """Write ``rnic_engine.v`` and its parameters, ``rnic_engine.json``; return both paths.

    Raises:
        OSError: the directory cannot be created or written.
        ToolError: no Yosys.
    """
    return _write(Top, TOP_NAME, params, directory)


def write_ctxmgt(params: CtxMgtParams, directory: Path) -> list[Path]:
    """Write ``rnic_ctxmgt.v`` and ``rnic_ctxmgt.json``, as :func:`write_engine` does."""
    return _write(CtxMgt, CTXMGT_NAME, params, directory)


def _write(
    build: Callable[[Any], wiring.Component], name: str, params: EngineParams | CtxMgtParams, directory: Path
) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)  # first, since Amaranth warns if a built design is not written
    text = to_verilog(build(params), name)
    verilog, record = directory / f"{name}.v", directory / f"{name}.json"
    verilog.write_text(text)
    record.write_text(json.dumps(dataclasses.asdict(params), indent=2) + "\n")
    return [verilog, record]
