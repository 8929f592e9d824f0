"""Fetch Debian's source package of UCX with apt, build its tests, and run those of its verbs transports.

The package is built once, in a directory that is kept (``RNIC_UCX_TESTS``, or ``rnic/ucx-tests`` in the user's cache),
with UCX's options for slow runs (``_BullseyeCoverage``): iteration counts are a tenth, and timeouts ten times as long.
Performance is not checked, which is UCX's default.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

SECONDS = 1800.0
"""Time limit of a suite."""
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
    "ud_verbs/uct_p2p_am_alignment.align_zcopy*": "frees its buffer before its packets are acknowledged: a"
    " retransmission to a slow peer finds no memory",
    "rc_verbs/uct_p2p_rma_test_xfer.fence/*": "unmaps its buffer while WRITEs to it are in flight: an adapter pins the"
    " pages, rnic refuses",
    "rc_verbs/test_uct_ib_gid_idx.*": "asks for the second GID, and a device has one",
    "ud_verbs/test_uct_ib_gid_idx.*": "asks for the second GID, and a device has one",
}
"""Excluded cases, and the reasons."""
SKIPS = {
    "an atomic operation that the transport does not have": r"check_atomics",
    "a capability that the transport does not have": r"check_caps|check_event_caps",
    "not for this transport (UCX)": r"not supported yet|skipping on loopback|does not (work|apply)|not supported",
    "its queue is longer than what it sends": r"[Cc]an't fill|unable to (fill|add)",
    "mlx5 hardware": r"(?i)devx|mlx5|DC ",
    "a setting that the transport does not have": r"is not a valid configuration",
    "no such port, GID, LMC or service level here": r"(?i)\b(port|gid|lmc|roce|pkey|sl|lid)\b",
}
"""Allowed reasons for skipping a case, and UCX's texts for each."""
LEAST = {"rc_verbs": 150, "ud_verbs": 90}
"""Least number of cases of each suite that must pass."""
_CASE = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
_building = threading.Lock()


def place() -> Path:
    """Return the build directory."""
    named = os.environ.get("RNIC_UCX_TESTS")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rnic/ucx-tests"


def missing() -> str:
    """Return why this machine cannot fetch and build them; empty if it can."""
    if _program(place()) is not None:
        return ""
    wanted = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    wanted += [package for header, package in _HEADERS.items() if not Path("/usr/include", header).exists()]
    return f"UCX's tests are built from source: apt-get install {' '.join(wanted)}" if wanted else ""


def _program(where: Path) -> Path | None:
    found = sorted(where.glob("ucx-*/test/gtest/gtest"))
    return found[0] if found else None


def ready() -> Path:
    """Return the test program; build it if it is missing.

    Raises:
        RuntimeError: it could not be fetched or built.
    """
    with _building:
        where = place()
        found = _program(where)
        if found is None:
            where.mkdir(parents=True, exist_ok=True)
            _build(fetch_source("ucx", where), where)
            found = _program(where)
        if found is None:
            raise RuntimeError(f"UCX's tests were built but are not in {where}")
        return found


def sources(text: str) -> str:
    """Return the source line for a binary line of apt's sources list."""
    return re.sub(r"^deb(?=\s)", "deb-src", re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.M), flags=re.M)


def of_suite(text: str, suite: str) -> str:
    """Return the line for sources of another suite of the Debian that apt's list has; empty if it has none."""
    found = re.search(r"(?<=\s)\w+://\S+/debian/?(?=\s|$)", text)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    return f"deb-src [signed-by={keys}] {found[0]} {suite} main\n" if found else ""


def fetch_source(package: str, where: Path, suite: str = "") -> Path:
    """Unpack a source package of this system, or of another suite; return its folder.

    By apt, with lists of its own: the system's have no sources, and are not touched.

    Raises:
        RuntimeError: one line: it could not be fetched.
    """
    lists = where / "apt"
    for made in ("parts", "lists/partial", "cache/archives/partial"):
        (lists / made).mkdir(parents=True, exist_ok=True)
    given = (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*")))
    texts = {each.name: each.read_text() for each in given if each.suffix in (".list", ".sources") and each.exists()}
    texts = {"suite.list": of_suite("\n".join(texts.values()), suite)} if suite else texts
    for name, text in texts.items():
        (lists / "parts" / name).write_text(sources(text))
    options = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={lists / 'parts'}"]
    options += ["-o", f"Dir::State::lists={lists / 'lists'}", "-o", f"Dir::Cache={lists / 'cache'}"]
    options += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]
    _run(["apt-get", *options, "--quiet", "update"], where, where / "apt-update.log")
    _run(["apt-get", *options, "--quiet", "--download-only", "source", package], where, where / "apt-source.log")
    described = next(iter(sorted(where.glob(f"{package}_*.dsc"))), None)
    if described is None:
        raise RuntimeError(f"apt has no source package {package}")
    unpacked = where / f"{package}-{described.name.split('_')[1].split('-')[0]}"
    shutil.rmtree(unpacked, ignore_errors=True)
    _run(["dpkg-source", "--no-check", "-x", described.name, unpacked.name], where, where / "unpack.log")
    return unpacked


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
    """Return the arguments that select the cases of ``rc_verbs`` or ``ud_verbs``."""
    left_out = ":".join(case for case in LEFT_OUT if case.startswith(f"{suite}/"))
    return [f"--gtest_filter={suite}/*{':-' + left_out if left_out else ''}"]


def verdict(text: str, status: int, suite: str) -> tuple[str, list[str]]:
    """Return ``ok`` or the problem, and notes with totals and skips by reason."""
    passed, wrong = 0, []
    skips: dict[str, int] = {}
    for part in re.split(r"^(?=\[ RUN      \])", text, flags=re.M)[1:]:
        case = _CASE.findall(part)[0]
        skipped = re.search(r"^\[     SKIP \] \((.*)\)$", part, re.M)
        if skipped:
            reason = next((reason for reason, words in SKIPS.items() if re.search(words, skipped[1])), None)
            if reason is None:
                wrong.append(f"{case}: skipped without an allowed reason: {skipped[1]}")
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
        wrong = [f"{passed} cases passed (at least {LEAST[suite]} must), exit status {status}"]
    return (wrong[0], [*wrong, *notes]) if wrong else ("ok", notes)
