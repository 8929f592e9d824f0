"""Simulate a component inside this process: Verilator compiles its exported Verilog into a shared library.

The interface is the cycle: :meth:`Model.step` makes a clock edge and returns the outputs after it, with new inputs
applied. There is no event scheduler and no callback, so Python code that drives ports cycle by cycle runs about a
thousand times as fast as in Amaranth's simulator.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

from rnic.gateware.interfaces import flat_ports
from rnic.gateware.tools import ToolError, verilator_environment
from rnic.gateware.verilog import to_verilog

WORD_BITS: Final = 32
WARNINGS: Final = ("-Wno-fatal", "-Wno-lint", "-Wno-style")


class Port(NamedTuple):
    """A port and its position in the arrays of input and output words."""

    name: str
    width: int
    word: int

    @property
    def words(self) -> int:
        """Words that the port occupies."""
        return -(-self.width // WORD_BITS)


class Library(NamedTuple):
    """Result of :func:`build`."""

    path: Path
    inputs: list[Port]
    outputs: list[Port]


def ports_of(component: wiring.Component) -> tuple[list[Port], list[Port]]:
    """Return inputs and outputs, with ``rst`` as the first input."""
    inputs: list[Port] = [Port("rst", 1, 0)]
    outputs: list[Port] = []
    for name, (signal, direction) in flat_ports(component).items():
        side = inputs if direction == PortDirection.Input else outputs
        at = side[-1].word + side[-1].words if side else 0
        side.append(Port(name, len(signal), at))
    return inputs, outputs


def _words(ports: list[Port]) -> int:
    return ports[-1].word + ports[-1].words


def _shim(inputs: list[Port], outputs: list[Port]) -> str:
    """Return the library's C interface, around Verilator's class ``Vmodel``."""
    puts = "\n".join(f"    put(m->top.{port.name}, in + {port.word});" for port in inputs)
    gets = "\n".join(f"    get(m->top.{port.name}, out + {port.word});" for port in outputs)
    return f"""#include <cstdint>
#include <new>
#include "Vmodel.h"
#include "verilated.h"

double sc_time_stamp() {{ return 0; }}

namespace {{
struct Model {{ VerilatedContext context; Vmodel top{{&context}}; }};

template <class T> void put(T &port, const uint32_t *from) {{
    port = static_cast<T>(sizeof(T) > 4 ? from[0] | static_cast<uint64_t>(from[1]) << 32 : from[0]);
}}
template <std::size_t N> void put(VlWide<N> &port, const uint32_t *from) {{
    for (std::size_t at = 0; at < N; ++at) port[at] = from[at];
}}
template <class T> void get(const T &port, uint32_t *to) {{
    to[0] = static_cast<uint32_t>(port);
    if (sizeof(T) > 4) to[1] = static_cast<uint32_t>(static_cast<uint64_t>(port) >> 32);
}}
template <std::size_t N> void get(const VlWide<N> &port, uint32_t *to) {{
    for (std::size_t at = 0; at < N; ++at) to[at] = port[at];
}}
}}

extern "C" void *model_make() {{ return new (std::nothrow) Model; }}
extern "C" void model_drop(void *model) {{ delete static_cast<Model *>(model); }}
extern "C" void model_step(void *model, const uint32_t *in, uint32_t *out) {{
    Model *m = static_cast<Model *>(model);
    m->top.clk = 1;
    m->top.eval();
{puts}
    m->top.clk = 0;
    m->top.eval();
{gets}
}}
"""


def build(component: wiring.Component, name: str, directory: Path) -> Library:
    """Compile ``component`` into a library under ``directory``, or reuse one compiled from the same Verilog.

    Raises:
        ToolError: Yosys, Verilator or a C++ compiler is absent or fails; the message names it.
        OSError: the directory cannot be written.
    """
    environment = verilator_environment()
    if isinstance(environment, str):
        raise ToolError(environment)
    inputs, outputs = ports_of(component)
    text = to_verilog(component, name)
    path = directory / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    library = Library(path, inputs, outputs)
    if path.exists():
        return library
    place = directory / path.stem
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.v").write_text(text)
    (place / "shim.cpp").write_text(_shim(inputs, outputs))
    env = {**os.environ, **environment}
    _run(
        [
            *("verilator", "--cc", f"{name}.v", "--top-module", name, "--prefix", "Vmodel", "--Mdir", "obj"),
            *("-O3", "--x-assign", "fast", "--x-initial", "fast", "--output-split", "20000", *WARNINGS),
        ],
        place,
        env,
    )
    include = Path(environment["VERILATOR_ROOT"]) / "include"
    sources = [*sorted((place / "obj").glob("*.cpp")), include / "verilated.cpp", include / "verilated_threads.cpp"]
    _run(
        [
            *(os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-w"),
            *("-I", str(place / "obj"), "-I", str(include), "-I", str(include / "vltstd")),
            *(str(source) for source in sources),
            *("shim.cpp", "-o", "model.so"),
        ],
        place,
        env,
    )
    (place / "model.so").replace(path)
    return library


def _run(command: list[str], place: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=place, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if "rror" in line] or ["no output"]
        raise ToolError(f"{Path(command[0]).name} failed with status {done.returncode}: {lines[0]}")


class Outputs(Mapping[str, int]):
    """The outputs after a step, each decoded on access."""

    def __init__(self, ports: list[Port], words: ctypes.Array[ctypes.c_uint32]) -> None:
        self._view = memoryview(words).cast("B")
        self._places = {port.name: (4 * port.word, 4 * (port.word + port.words)) for port in ports}

    def __getitem__(self, name: str) -> int:
        begin, end = self._places[name]
        return int.from_bytes(self._view[begin:end], sys.byteorder)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Model:
    """A component under simulation, initially reset and with all inputs 0.

    Raises:
        OSError: the library cannot be loaded.
        MemoryError: there is no memory for another model.
    """

    def __init__(self, library: Library) -> None:
        _, inputs, outputs = library
        self._library = ctypes.CDLL(str(library.path))
        self._library.model_make.restype = ctypes.c_void_p
        self._library.model_drop.argtypes = [ctypes.c_void_p]
        self._library.model_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self._in = (ctypes.c_uint32 * _words(inputs))()
        self._out = (ctypes.c_uint32 * _words(outputs))()
        self._places = {port.name: (4 * port.word, 4 * port.words) for port in inputs}
        self._bytes = memoryview(self._in).cast("B")
        self._model = self._library.model_make()
        if not self._model:
            raise MemoryError("no room for another simulated component")
        self._addresses = ctypes.addressof(self._in), ctypes.addressof(self._out)
        self.outputs = Outputs(outputs, self._out)
        """Current inputs."""
        self.cycles = 0
        """Clock edges since reset."""
        self.step({"rst": 1})
        self.step({"rst": 0})
        self.cycles = 0

    def step(self, inputs: Mapping[str, int]) -> Outputs:
        """Make a clock edge with the current inputs, then apply new values."""
        view = self._bytes
        for name, value in inputs.items():
            begin, count = self._places[name]
            view[begin : begin + count] = value.to_bytes(count, sys.byteorder)
        self._library.model_step(self._model, *self._addresses)
        self.cycles += 1
        return self.outputs

    def close(self) -> None:
        """Free it; it must not be stepped again."""
        if self._model:
            self._library.model_drop(self._model)
            self._model = None
