"""What a C compiler makes: the twins of a few inner loops, and the C libraries that `rnic exec` gives to programs.

Both are optional: without a compiler rnic installs and works, slower, and `rnic exec` says what is missing.
``RNIC_REQUIRE_COMPILED=1`` makes an installation fail where it could not compile them.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

TWINS = ["rnic.mem._order", "rnic.burst._compiled", "rnic.burst._small"]
SAME_SOURCE = {"rnic.burst._small": "src/rnic/burst/small.py"}
"""Twins that are the plain module itself, compiled under another name."""
if sys.platform == "linux":
    TWINS.append("rnic.link._udp_calls")
REQUIRED = os.environ.get("RNIC_REQUIRE_COMPILED", "") not in ("", "0")


def same_source(name: str) -> str:
    """A copy of a plain module to compile, which says what it was made of: an older twin is not used."""
    source = Path(SAME_SOURCE[name]).read_bytes()
    copy = Path("build", "twins", f"{name.rpartition('.')[2]}.py")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(source + b"\nSOURCE_CRC = %d\n" % zlib.crc32(source))
    return str(copy)


def extensions() -> list[Extension]:
    """One extension for each twin that has a source; none where Cython is missing and they are not required."""
    try:
        cythonize = importlib.import_module("Cython.Build").cythonize
    except ImportError:
        if REQUIRED:
            raise
        return []
    sources = {
        name: same_source(name) if name in SAME_SOURCE else f"src/{name.replace('.', '/')}.pyx" for name in TWINS
    }
    wanted = [
        Extension(name, [source], extra_compile_args=["-O2"] if os.name == "posix" else [])
        for name, source in sources.items()
    ]
    made: list[Extension] = cythonize(wanted, build_dir="build/cython", language_level=3, quiet=True)
    for extension in made:
        # cythonize makes new extensions, which are not optional
        extension.optional = not REQUIRED
    return made


class BuildAll(build_ext):  # type: ignore[misc] # setuptools is not always there for mypy
    """The extensions, then libibverbs and librdmacm beside the module that knows where they are."""

    def run(self) -> None:
        """Linux alone has the interfaces that the libraries need."""
        super().run()
        if sys.platform != "linux":
            return
        source = Path(__file__).parent / "src"
        root = source if self.inplace or self.editable_mode else Path(self.build_lib)
        command = [sys.executable, "-m", "rnic.abi.build", "--out", str(root / "rnic" / "abi" / "lib")]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, check=False)
        if done.returncode and REQUIRED:
            raise SystemExit("RNIC_REQUIRE_COMPILED: the C libraries could not be built")


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildAll})
