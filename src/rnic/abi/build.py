"""Build ``libibverbs.so.1``, ``librdmacm.so.1`` and the libraries that `rnic exec` preloads.

Run as ``python -m rnic.abi.build [--out DIRECTORY] [--sanitize] [--cc COMPILER]``; the package's own build runs
it too. ``CC`` names the compiler, and ``CFLAGS`` is appended to its flags. The header, the version scripts and the
stubs of unsupported functions are generated from tables.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rnic.abi.exports import (
    OUT_PARAMETERS,
    PRIVATE_VERSIONS,
    RDMACM,
    RETURN_MINUS_ONE,
    RETURN_POINTERS,
    VERBS,
    VERBS_BEFORE_2008,
    VERBS_OWN,
    VERBS_PRIVATE,
)
from rnic.abi.header import write_headers
from rnic.abi.library_paths import LIBRARIES, PATHS_LIBRARY, SOCKETS_LIBRARY
from rnic.spec.errors import RnicError

SOURCES = Path(__file__).parent / "src"
PRIVATE_VERSION = SOURCES / "private_version.c"
"""Template of the source of each private version but the first."""
PATHS_SOURCES = tuple(
    Path(__file__).parent / "paths" / name
    for name in (
        "interpose_paths.c",
        "interpose_close.c",
        "interpose_netlink.c",
        "interpose_umad.c",
    )
)
ENGINE = Path(__file__).parents[1] / "engine"
"""The engine's sources: libibverbs runs the engine for programs with a bypass slot."""
NOT_IN_PROGRAMS = frozenset({"in_process.c"})
"""Files of the engine that only simulations and tests need."""
SOCKETS_SOURCE = Path(__file__).parent / "sockets" / "interpose_sockets.c"

FLAGS = [
    "-std=gnu11",
    "-O3",
    "-g",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wpointer-arith",
    "-Wno-missing-field-initializers",
]
LTO = ("-flto=auto", "-flto")
"""Candidate flags, of which the compiler's first supported one is used: a message's path crosses a dozen files and
takes a sixth less time if they are compiled as one."""
STRICT = ["-Werror"]
"""For tests only, since later compilers will have new warnings."""
SANITIZERS = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"]
_DEFINITION = re.compile(r"^EXPORT [^(;=]*?(\w+)\(", re.MULTILINE)


class BuildError(RnicError):
    """The libraries could not be built."""


def find_compiler() -> str | None:
    """Return the C compiler that ``CC`` names, else ``cc``, ``gcc`` or ``clang``; ``None`` if there is none."""
    named = os.environ.get("CC")
    if named:
        return named if shutil.which(shlex.split(named)[0]) else None
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def engine_sources() -> list[Path]:
    """Return the files of the engine that are part of libibverbs."""
    return sorted(path for path in ENGINE.glob("*/*.c") if path.name not in NOT_IN_PROGRAMS)


def implemented(sources: list[Path]) -> set[str]:
    """Return the names of the functions that hand-written sources export."""
    return {name for source in sources for name in _DEFINITION.findall(source.read_text(encoding="utf-8"))}


def _listed(names: tuple[str, ...]) -> str:
    return "\n".join(f"\t\t{name};" for name in sorted(names))


def version_script(
    prefix: str, versions: dict[str, tuple[str, ...]], private: tuple[str, ...] = (), own: tuple[str, ...] = ()
) -> str:
    """Return a linker version script: each version inherits the previous one; private versions and rnic's own come
    last."""
    lines = []
    before = ""
    last = list(versions)[-1]
    for version, names in versions.items():
        listed = _listed(names)
        # The hiding pattern comes last: in the first version it would also hide older names of the same functions.
        local = "\n\tlocal: *;" if version == last else "\n\tlocal: before_2008_*;" if not before else ""
        lines.append(f"{prefix}_{version} {{\n\tglobal:\n{listed}{local}\n}}{before};")
        before = f" {prefix}_{version}"
    if private:
        first, *later = PRIVATE_VERSIONS
        for version in later:  # the common names are separate symbols, which state their version themselves
            listed = _listed(PRIVATE_VERSIONS[version])
            lines.append(f"{prefix}_PRIVATE_{version} {{\n\tglobal:\n{listed}\n\tlocal: private_{version}_*;\n}};")
        lines.append(f"{prefix}_PRIVATE_{first} {{\n\tglobal:\n{_listed(private + PRIVATE_VERSIONS[first])}\n}};")
    if own:
        lines.append(f"RNIC_1 {{\n\tglobal:\n{_listed(own)}\n}};")
    return "\n".join(lines) + "\n"


def _refusal(name: str, symbol: str, error: str, attribute: str = "") -> str:
    if name in RETURN_POINTERS:
        kind, type_ = "refuse_null", "void *"
    else:
        kind, type_ = "refuse_minus_one" if name in RETURN_MINUS_ONE else "refuse_errno", "long "
    cleared = OUT_PARAMETERS.get(symbol, () if name in VERBS_PRIVATE else None)
    if cleared is None:
        raise BuildError(f"{symbol} only refuses: say in OUT_PARAMETERS (rnic/abi/exports.py) which arguments are out")
    count = max((max(argument, -size) for argument, size in cleared), default=-1) + 1
    arguments = ", ".join(f"UNUSED void *a{argument}" for argument in range(count)) or "void"
    declared = f"EXPORT {type_}{symbol}({arguments})"
    clear = "".join(
        f"\tclear_out(a{argument}, {size if size >= 0 else f'size_argument(a{-size})'});\n"
        for argument, size in cleared
    )
    return f"{declared};\n{attribute}{declared}\n{{\n{clear}\treturn {kind}({error});\n}}\n"


def verbs_stubs(done: set[str]) -> str:
    """Return the C source of the unsupported libibverbs exports."""
    lines = ['#include "stubs.h"\n']
    names = [name for listed in VERBS.values() for name in listed] + list(VERBS_PRIVATE)
    lines += [_refusal(name, name, "EOPNOTSUPP") for name in sorted(set(names) - done - {_VARIABLE})]
    for name in sorted(VERBS_BEFORE_2008):
        symbol = f"before_2008_{name}"
        lines.append(_refusal(name, symbol, "ENOSYS", f'SYMBOL_VERSION({symbol}, "{name}@IBVERBS_1.0")\n'))
    return "\n".join(lines)


def private_source(version: str) -> str:
    """Return the C source of a private version that is not the first."""
    done = implemented([PRIVATE_VERSION])
    lines = [PRIVATE_VERSION.read_text(encoding="utf-8").replace("NUMBER", version), '#include "stubs.h"\n']
    for name in sorted(VERBS_PRIVATE):
        if f"private_NUMBER_{name}" not in done and name != _VARIABLE:
            symbol = f"private_{version}_{name}"
            attribute = f'SYMBOL_VERSION({symbol}, "{name}@IBVERBS_PRIVATE_{version}")\n'
            lines.append(_refusal(name, symbol, "EOPNOTSUPP", attribute))
    return "\n".join(lines)


_VARIABLE = "verbs_allow_disassociate_destroy"


def rdmacm_stubs(done: set[str]) -> str:
    """Return the C source of the unsupported librdmacm exports."""
    names = {name for listed in RDMACM.values() for name in listed}
    return "\n".join(['#include "stubs.h"\n', *(_refusal(name, name, "ENOSYS") for name in sorted(names - done))])


def build(out: Path, *, compiler: str | None = None, sanitize: bool = False, strict: bool = False) -> list[Path]:
    """Build all libraries into ``out`` and return their paths.

    Args:
        out: directory, created if missing.
        compiler: command; by default it is searched.
        sanitize: with AddressSanitizer and UBSan.
        strict: warnings are errors.

    Raises:
        BuildError: no compiler was found, or it failed; the message ends with its output.
    """
    compiler = compiler or find_compiler()
    if compiler is None:
        raise BuildError(
            "no C compiler was found: install one (gcc or clang) or name it in CC, then install rnic again"
        )
    out.mkdir(parents=True, exist_ok=True)
    own = shlex.split(os.environ.get("CFLAGS", ""))
    cm = sorted(SOURCES.glob("rdmacm*.c"))
    verbs = sorted(source for source in SOURCES.glob("*.c") if source not in (*cm, PRIVATE_VERSION))
    ours = [SOURCES / name for name in ("attach.c", "errors.c", "event_file.c", "explain.c")]
    both = [*ours, ENGINE / "bypass" / "rpc.c", ENGINE / "io" / "own_fd.c"]
    built = []
    with tempfile.TemporaryDirectory(prefix="rnic-build-") as name:
        work = Path(name)
        write_headers(work)
        (work / "verbs.map").write_text(version_script("IBVERBS", VERBS, VERBS_PRIVATE, VERBS_OWN), encoding="utf-8")
        (work / "rdmacm.map").write_text(version_script("RDMACM", RDMACM), encoding="utf-8")
        (work / "verbs_stubs.c").write_text(verbs_stubs(implemented(verbs)), encoding="utf-8")
        private = [work / f"private_{version}.c" for version in list(PRIVATE_VERSIONS)[1:]]
        for version, source in zip(list(PRIVATE_VERSIONS)[1:], private, strict=True):
            source.write_text(private_source(version), encoding="utf-8")
        (work / "rdmacm_stubs.c").write_text(rdmacm_stubs(implemented(cm)), encoding="utf-8")
        chosen = [*(STRICT if strict else ()), *(SANITIZERS if sanitize else ["-Wl,-z,defs"])]
        # keep build folders out of debug information, so that builds are reproducible
        same = [f"-ffile-prefix-map={place}=rnic" for place in (work, Path(__file__).parents[1], Path.cwd())]
        flags = [*FLAGS, *same, *chosen, f"-I{work}", f"-I{SOURCES}", f"-I{ENGINE}"]
        engine = engine_sources()
        for library, script, sources in (
            ("libibverbs.so.1", "verbs.map", [*verbs, *engine, work / "verbs_stubs.c", *private]),
            ("librdmacm.so.1", "rdmacm.map", [*cm, *both, work / "rdmacm_stubs.c", work / "libibverbs.so.1"]),
        ):
            made = work / library
            link = ["-shared", f"-Wl,-soname,{library}", f"-Wl,--version-script,{work / script}"]
            # dlclose must leave the code mapped for atfork handlers and helper threads.
            link += ["-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now"]
            command = [*shlex.split(compiler), *flags, *link, *map(str, sources), "-ldl", "-o", str(made)]
            if sanitize or not any(_runs([*command, lto, *own]) for lto in LTO):
                _run([*command, *own])
            built.append(_put(made, out))
        # Never sanitized: it would interpose the sanitizers' own functions of the same names.
        for library, sources, needs in (
            (PATHS_LIBRARY, list(PATHS_SOURCES), []),
            (SOCKETS_LIBRARY, [SOCKETS_SOURCE], [f"-L{work}", "-l:librdmacm.so.1", f"-Wl,-rpath-link,{work}"]),
        ):
            made = work / library
            link = ["-shared", f"-Wl,-soname,{library}", "-Wl,-z,nodelete", "-Wl,-z,relro"]
            flags = [*FLAGS, *same, *(STRICT if strict else ()), f"-I{work}", f"-I{SOURCES}"]
            _run([*shlex.split(compiler), *flags, *link, *map(str, sources), *needs, "-ldl", "-o", str(made), *own])
            built.append(_put(made, out))
    return built


def _put(made: Path, out: Path) -> Path:
    """Replace a library by rename: running programs keep their mapped one."""
    beside = out / f".{made.name}.{os.getpid()}"
    shutil.copyfile(made, beside)
    beside.chmod(0o755)
    return beside.replace(out / made.name)


def _runs(command: list[str]) -> bool:
    return not subprocess.run(command, capture_output=True, check=False).returncode


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{command[0]} failed with status {done.returncode}:\n{done.stderr.strip()}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line of the build."""
    parser = argparse.ArgumentParser(prog="python -m rnic.abi.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=LIBRARIES, help="directory for the libraries")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    parser.add_argument("--cc", help="the compiler")
    options = parser.parse_args(argv)
    try:
        for path in build(options.out, compiler=options.cc, sanitize=options.sanitize):
            print(path)
    except BuildError as error:
        print(f"rnic: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
