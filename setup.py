"""The compiled twins of a few inner loops. They are optional: without a C compiler rnic installs and works, slower.

``RNIC_REQUIRE_COMPILED=1`` makes an installation fail where it could not compile them.
"""

from __future__ import annotations

import importlib
import os
import sys

from setuptools import Extension, setup

TWINS = ["rnic.mem._order", "rnic.burst._compiled", "rnic.burst._small"]
SAME_SOURCE = {"rnic.burst._small": "src/rnic/burst/small.py"}
"""Twins that are the plain module itself, compiled under another name."""
if sys.platform == "linux":
    TWINS.append("rnic.link._udp_calls")
REQUIRED = os.environ.get("RNIC_REQUIRE_COMPILED", "") not in ("", "0")


def extensions() -> list[Extension]:
    """One extension for each twin that has a source; none where Cython is missing and they are not required."""
    try:
        cythonize = importlib.import_module("Cython.Build").cythonize
    except ImportError:
        if REQUIRED:
            raise
        return []
    sources = {name: SAME_SOURCE.get(name, f"src/{name.replace('.', '/')}.pyx") for name in TWINS}
    wanted = [
        Extension(name, [source], extra_compile_args=["-O2"] if os.name == "posix" else [])
        for name, source in sources.items()
    ]
    made: list[Extension] = cythonize(wanted, build_dir="build/cython", language_level=3, quiet=True)
    for extension in made:
        # cythonize makes new extensions, which are not optional
        extension.optional = not REQUIRED
    return made


setup(ext_modules=extensions())
