"""UCX's own tests of its verbs transports: Debian's source package, fetched by apt, built, and run under ``rnic exec``.

The package is unpacked and built once, in a directory that is kept (``RNIC_UCX_TESTS``, or ``rnic/ucx-tests`` in the
user's cache). It is built as UCX has it for slow runs (``_BullseyeCoverage``): counts that are made for hardware become
a tenth, and what is waited for may take ten times as long. Performance is not judged, as by UCX's default.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

SECONDS = 1800.0
"""For one suite."""
_BUILD_SECONDS = 3600.0
_TOOLS = {
    "apt-get": "apt",
    "dpkg-source": "dpkg-dev",
    "autoreconf": "autoconf",
    "automake": "automake",
    "libtoolize": "libtool",
    "g++": "g++",
    "make": "make",
}
_HEADERS = {"infiniband/verbs.h": "libibverbs-dev", "rdma/rdma_cma.h": "librdmacm-dev"}
_CONFIGURE = (
    "--enable-gtest --disable-doxygen-doc --disable-numa --with-verbs --with-rdmacm --without-java --without-go"
    " --without-cuda --without-rocm --without-fuse3 --without-knem --without-xpmem"
)
_PARTS = (
    *("src/ucm", "src/ucs", "src/uct", "src/ucp", "src/tools/perf"),
    *("test/gtest/common/googletest", "test/gtest/ucm/test_dlopen", "test/gtest/ucs/test_module"),
)
LEFT_OUT = {
    "ud_verbs/uct_p2p_am_alignment.align_zcopy*": "frees its buffer before what it sent is acknowledged: a repetition,"
    " which a slow peer brings, finds no memory",
    "rc_verbs/uct_p2p_rma_test_xfer.fence/*": "unmaps its buffer while WRITEs to it are under way: an adapter holds the"
    " pages, rnic refuses",
    "rc_verbs/test_uct_ib_gid_idx.*": "asks for the second GID, and a device has one",
    "ud_verbs/test_uct_ib_gid_idx.*": "asks for the second GID, and a device has one",
}
"""Cases that are not run, and why."""
SKIPS = {
    "an atomic operation that the transport does not have": r"check_atomics",
    "a capability that the transport does not have": r"check_caps|check_event_caps",
    "not for this transport, says UCX": r"not supported yet|skipping on loopback|does not (work|apply)|not supported",
    "its queue is longer than what it sends": r"[Cc]an't fill|unable to (fill|add)",
    "mlx5 hardware": r"(?i)devx|mlx5|DC ",
    "a setting that the transport does not have": r"is not a valid configuration",
    "no such port, GID, LMC or service level here": r"(?i)\b(port|gid|lmc|roce|pkey|sl|lid)\b",
}
"""The closed list of reasons for which a case may be skipped, and UCX's words for each."""
LEAST = {"rc_verbs": 150, "ud_verbs": 90}
"""Cases of each suite that have to pass."""
_CASE = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
_building = threading.Lock()


def place() -> Path:
    """Where it is unpacked and built."""
    named = os.environ.get("RNIC_UCX_TESTS")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rnic/ucx-tests"


def missing() -> str:
    """Why they cannot be fetched and built here; empty if they can."""
    if _program(place()) is not None:
        return ""
    wanted = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    wanted += [package for header, package in _HEADERS.items() if not Path("/usr/include", header).exists()]
    return f"UCX's tests are built from source: apt-get install {' '.join(wanted)}" if wanted else ""


def _program(where: Path) -> Path | None:
    found = sorted(where.glob("ucx-*/test/gtest/gtest"))
    return found[0] if found else None


def ready() -> Path:
    """The test program, made if it is not there.

    Raises:
        RuntimeError: one line: it could not be fetched or built.
    """
    with _building:
        where = place()
        found = _program(where)
        if found is None:
            where.mkdir(parents=True, exist_ok=True)
            _fetch(where)
            _build(next(where.glob("ucx-*/")), where)
            found = _program(where)
        if found is None:
            raise RuntimeError(f"UCX's tests were built, and are not in {where}")
        return found


def sources(text: str) -> str:
    """What apt's list of a distribution's packages is for their sources."""
    return re.sub(r"^deb(?=\s)", "deb-src", re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.M), flags=re.M)


def _fetch(where: Path) -> None:
    """By apt, with lists of its own: the system's have no sources, and are not touched."""
    lists = where / "apt"
    for made in ("parts", "lists/partial", "cache/archives/partial"):
        (lists / made).mkdir(parents=True, exist_ok=True)
    for given in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if given.suffix in (".list", ".sources") and given.exists():
            (lists / "parts" / given.name).write_text(sources(given.read_text()))
    options = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={lists / 'parts'}"]
    options += ["-o", f"Dir::State::lists={lists / 'lists'}", "-o", f"Dir::Cache={lists / 'cache'}"]
    options += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]
    _run(["apt-get", *options, "--quiet", "update"], where, where / "apt-update.log")
    _run(["apt-get", *options, "--quiet", "--download-only", "source", "ucx"], where, where / "apt-source.log")
    package = next(iter(sorted(where.glob("ucx_*.dsc"))), None)
    if package is None:
        raise RuntimeError("apt has no source package ucx")
    version = package.name.split("_")[1].split("-")[0]
    shutil.rmtree(where / f"ucx-{version}", ignore_errors=True)
    _run(["dpkg-source", "--no-check", "-x", package.name, f"ucx-{version}"], where, where / "unpack.log")


def _build(source: Path, where: Path) -> None:
    flags = "-O2 -g0 -w -D_BullseyeCoverage=1"
    jobs = f"-j{os.cpu_count() or 1}"
    _run(["./autogen.sh"], source, where / "autogen.log")
    _run(["./configure", *_CONFIGURE.split(), "CFLAGS=-O1 -g -w", f"CXXFLAGS={flags}"], source, where / "configure.log")
    for part in _PARTS:
        _run(["make", jobs, "-C", part], source, where / "make.log")
    _run(["make", jobs, "-C", "test/gtest", "gtest"], source, where / "make-gtest.log")


def _run(command: list[str], cwd: Path, log: Path) -> None:
    with log.open("wb") as out:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=_BUILD_SECONDS, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: see {log}")


def arguments(suite: str) -> list[str]:
    """Which cases of ``rc_verbs`` or ``ud_verbs`` are run."""
    left_out = ":".join(case for case in LEFT_OUT if case.startswith(f"{suite}/"))
    return [f"--gtest_filter={suite}/*{':-' + left_out if left_out else ''}"]


def verdict(text: str, status: int, suite: str) -> tuple[str, list[str]]:
    """``ok`` or what is wrong, and notes: the totals, and the skips by reason."""
    passed, wrong = 0, []
    skips: dict[str, int] = {}
    for part in re.split(r"^(?=\[ RUN      \])", text, flags=re.M)[1:]:
        case = _CASE.findall(part)[0]
        skipped = re.search(r"^\[     SKIP \] \((.*)\)$", part, re.M)
        if skipped:
            reason = next((reason for reason, words in SKIPS.items() if re.search(words, skipped[1])), None)
            if reason is None:
                wrong.append(f"{case}: skipped for no listed reason: {skipped[1]}")
            else:
                skips[reason] = skips.get(reason, 0) + 1
        elif re.search(r"^\[       OK \]", part, re.M):
            passed += 1
        else:
            said = re.search(r"^(.*(?:Failure|Assertion|Fatal|rror).*)$", part, re.M)
            wrong.append(f"{case} failed: {said[1].strip() if said else 'did not end'}")
    notes = [f"{passed} passed, {sum(skips.values())} skipped"]
    notes += [f"{number} skipped: {reason}" for reason, number in sorted(skips.items(), key=lambda item: -item[1])]
    if not wrong and (status or passed < LEAST[suite]):
        wrong = [f"{passed} cases passed (at least {LEAST[suite]} have to), exit status {status}"]
    return (wrong[0], [*wrong, *notes]) if wrong else ("ok", notes)
