"""Build what a C compiler makes: the engine, twins of a few calls, and the C libraries of `rnic exec`.

Both are optional: without a compiler rnic installs and works, slower, and `rnic exec` says what is missing.
``RNIC_REQUIRE_COMPILED=1`` makes an installation fail where it could not compile them, ``RNIC_PURE=1`` leaves them
out: the wheel then serves every Python and machine. ``RNIC_REPOSITORY`` is the address of the project's pages, which a
release workflow knows and the tree does not.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

TWINS = ["rnic.link._recording", "rnic.mem._order"]
WITH_C = {
    "rnic.engine._engine": ("src/rnic/engine/*/*.c",),
    "rnic.judge._scan": ("src/rnic/engine/queue_pair/crc32.c",),
    # the fabric hands packets over itself: it needs what of the engine does no input or output
    "rnic.sim.native._fabric": (
        "src/rnic/sim/native/[!_]*.c",
        "src/rnic/engine/queue_pair/*.c",
        "src/rnic/engine/device/*.c",
        "src/rnic/engine/memory/memory_key.c",
    ),
}
"""C files that are compiled into an extension beside its own source."""
INCLUDES = ["src/rnic/engine", "src/rnic/sim/native"]
if sys.platform == "linux":
    TWINS.append("rnic.link._udp_calls")
    if sys.byteorder == "little":
        TWINS += WITH_C
FLAGS = ["-O3", "-fvisibility=hidden"]
SAME = [f"-ffile-prefix-map={os.getcwd()}=rnic"]
"""Debug information names no folder of this build: another build of the same sources is then the same."""
BUILD = Path("build", "cython")
"""Folder of the C that Cython makes."""
DIRECTIVES = {"embedsignature": True, "embedsignature.format": "clinic"}
"""Functions tell their parameters, which are compared with the stubs."""
PURE = os.environ.get("RNIC_PURE", "") not in ("", "0")
REPOSITORY = os.environ.get("RNIC_REPOSITORY", "").rstrip("/")
REQUIRED = os.environ.get("RNIC_REQUIRE_COMPILED", "") not in ("", "0")


def found(*patterns: str) -> list[str]:
    """Return the files that match these patterns."""
    return sorted(name for pattern in patterns for name in glob.glob(pattern))


def extensions() -> list[Extension]:
    """Return an extension for each twin with a source; none if Cython is missing and they are not required."""
    if PURE:
        return []
    try:
        cythonize = importlib.import_module("Cython.Build").cythonize
    except ImportError:
        if REQUIRED:
            raise
        return []
    headers = sorted(str(header) for folder in INCLUDES for header in Path(folder).rglob("*.h"))
    wanted = [
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.pyx", *found(*WITH_C.get(name, ()))],
            include_dirs=INCLUDES if name in WITH_C else [],
            depends=headers if name in WITH_C else [],
            extra_compile_args=[*FLAGS, *SAME] if os.name == "posix" else [],
            extra_link_args=SAME if os.name == "posix" else [],  # link-time optimization compiles there
        )
        for name in TWINS
    ]
    made: list[Extension] = cythonize(
        wanted, build_dir=str(BUILD), compiler_directives=DIRECTIVES, language_level=3, quiet=True
    )
    # Cython copies headers beside the C that it makes. C would find those first, and old ones of headers that moved.
    for copy in BUILD.rglob("*.h"):
        copy.unlink()
    for extension in made:
        # cythonize makes new extensions, which are not optional
        extension.optional = not REQUIRED
    return made


class BuildAll(build_ext):  # type: ignore[misc] # setuptools is not always there for mypy
    """The extensions, then libibverbs and librdmacm beside the module that knows where they are."""

    def build_extension(self, ext: Extension) -> None:
        """Compile all files as one if the compiler can do that (rnic.abi.build, AT_ONCE), else each by itself."""
        if ext.name in WITH_C:
            alone = ext.extra_compile_args, ext.extra_link_args
            for lto in ("-flto=auto", "-flto"):
                ext.extra_compile_args, ext.extra_link_args = [[*flags, lto] for flags in alone]
                with contextlib.suppress(CompileError, LinkError):
                    super().build_extension(ext)
                    return
            ext.extra_compile_args, ext.extra_link_args = alone
        super().build_extension(ext)

    def run(self) -> None:
        """Return whether this is Linux, which has the interfaces that the libraries need."""
        super().run()
        if sys.platform != "linux" or PURE:
            return
        source = Path(__file__).parent / "src"
        root = source if self.inplace or self.editable_mode else Path(self.build_lib)
        command = [sys.executable, "-m", "rnic.abi.build", "--out", str(root / "rnic" / "abi" / "lib")]
        # the tables come from the package itself, whose compiled parts may lie elsewhere still
        env = {name: value for name, value in os.environ.items() if name != "RNIC_REQUIRE_COMPILED"}
        done = subprocess.run(command, env={**env, "PYTHONPATH": str(source)}, check=False)
        if done.returncode and REQUIRED:
            raise SystemExit("RNIC_REQUIRE_COMPILED: the C libraries could not be built")


class LinuxWheel(Distribution):  # type: ignore[misc] # as above
    """With the C libraries inside a wheel is of one machine, although setuptools knows of no extension."""

    def has_ext_modules(self) -> bool:
        """Return whether the wheel is of one machine."""
        return not PURE and (sys.platform == "linux" or bool(super().has_ext_modules()))


def project_urls() -> dict[str, str]:
    """Return the addresses of the project's pages; empty without ``RNIC_REPOSITORY``."""
    if not REPOSITORY:
        return {}
    return {
        "Source": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/main/docs",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildAll},
    distclass=LinuxWheel,
    project_urls=project_urls(),
)
