"""Libraries built once for the tests of this directory, and NIC processes in directories of their own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rnic.abi.build import ENGINE, FLAGS, SANITIZERS, SOURCES, STRICT, build, engine_sources, find_compiler
from rnic.abi.header import write_headers
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError
from rnic.testing import own_network
from tests.nic_processes import end_nic_process

HERE = Path(__file__).parent
BUILDING_S = 180.0

Once = Callable[[str, Callable[[Path], object]], Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a loaded machine the compiler alone takes most of a minute, which counts for whichever test comes first."""
    for item in items:
        named = "libraries" in getattr(item, "fixturenames", ())
        if named and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILDING_S))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Gives a directory that whoever comes first of this run's workers fills; the others wait for it.

    Compiling takes most of a minute in all, which each worker would spend again.
    """
    own = tmp_path_factory.getbasetemp()
    place = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def once(name: str, fill: Callable[[Path], object]) -> Path:
        out, done = place / name, place / f"{name}.done"
        with (place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                out.mkdir(exist_ok=True)
                fill(out)
                done.touch()
        return out

    return once


@pytest.fixture(scope="session")
def libraries(once: Once) -> Path:
    """Directory of freshly built libraries."""
    if sys.platform != "linux" or find_compiler() is None:
        pytest.skip("needs Linux and a C compiler")
    return once("libraries", lambda out: build(out, strict=True))


@pytest.fixture(scope="session")
def byte_code(once: Once) -> Path:
    """Directory of Python's byte code: most of a start is compiling, where nobody keeps that."""
    return once("byte_code", lambda out: None)


def _environment(libraries: Path, byte_code: Path, folder: Path) -> Iterator[dict[str, str]]:
    runtime = folder / "nic"
    runtime.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # a device that a test does not name is on no address of another run's
    ours = {"RNIC_RUNTIME_DIR": str(runtime), "RNIC_LIBRARIES": str(libraries), "RNIC_ADDR": f"{own_network()}.199"}
    yield {"PYTHONPYCACHEPREFIX": str(byte_code), **kept, **ours}
    end_nic_process(runtime)


@pytest.fixture
def env(libraries: Path, byte_code: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of programs on a NIC process of this test alone, which ends before the next test starts.

    So tests may use the same addresses.
    """
    yield from _environment(libraries, byte_code, tmp_path)


@pytest.fixture(scope="module")
def module_env(libraries: Path, byte_code: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same on a NIC process of this module's tests."""
    yield from _environment(libraries, byte_code, tmp_path_factory.mktemp("module"))


@pytest.fixture(params=["process", "bypass", "shm"])
def mode(request: pytest.FixtureRequest, env: dict[str, str]) -> dict[str, str]:
    """:func:`env` for programs whose NIC process takes everything, and for those that run the engine themselves.

    The last of these reach others of their device by rings instead of the wire.
    """
    chosen = {"RNIC_BYPASS": request.param != "process", "RNIC_SHM": request.param == "shm"}
    return {**env, **{name: str(int(value)) for name, value in chosen.items()}}


@pytest.fixture
def listening(env: dict[str, str]) -> Callable[[subprocess.Popen[str]], None]:
    """Waits until somebody listens by CM on the first device; the program that is to has not ended meanwhile."""

    def wait(server: subprocess.Popen[str]) -> None:
        for _ in range(1200):  # waits: for the listener
            try:
                if ask(Path(env["RNIC_RUNTIME_DIR"]), "rnic0", "cm")["services"]:
                    return
            except ProcessError:
                pass
            assert server.poll() is None, server.communicate()
            time.sleep(0.025)
        raise AssertionError("nobody listens")

    return wait


def _run(*arguments: str, cwd: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    includes = [f"-I{SOURCES}", f"-I{ENGINE}"]
    subprocess.run([compiler, *FLAGS, *STRICT, *arguments, *includes], cwd=cwd, check=True)


@pytest.fixture(scope="session")
def compiled(libraries: Path, once: Once) -> Callable[..., Path]:
    """Makes a C program of this directory with the library's sources inside, which are compiled once for some flags."""

    def objects(out: Path, flags: tuple[str, ...]) -> None:
        write_headers(out)
        ours = [path for path in SOURCES.glob("*.c") if not path.name.startswith("rdmacm")]
        for part, sources in (("library", ours), ("engine", engine_sources())):  # some have the same names
            (out / part).mkdir(exist_ok=True)
            _run(*flags, f"-I{out}", "-c", *map(str, sources), cwd=out / part)

    def make(name: str, *flags: str) -> Path:
        with_these = once("objects" + "".join(flags), lambda out: objects(out, flags))
        linked = [str(HERE / f"{name}.c"), *sorted(map(str, with_these.glob("*/*.o"))), "-o", name]
        return once(name + "".join(flags), lambda out: _run(*flags, f"-I{with_these}", *linked, cwd=out)) / name

    return make


@pytest.fixture(scope="session")
def sanitized(compiled: Callable[..., Path]) -> Path:
    """The C program under AddressSanitizer and UBSan."""
    return compiled("loop", *SANITIZERS, "-O1")


@pytest.fixture(scope="session")
def raced(compiled: Callable[..., Path]) -> Path:
    """The C program under ThreadSanitizer, which knows no fences."""
    return compiled("loop", "-fsanitize=thread", "-Wno-tsan", "-O1")


@pytest.fixture(scope="session")
def plain(compiled: Callable[..., Path]) -> Path:
    """The C program for valgrind: of the objects that others have, in which its places are still right."""
    return compiled("loop", "-O1")


@pytest.fixture(scope="session")
def both(compiled: Callable[..., Path]) -> Path:
    """The C program that becomes two."""
    return compiled("shm", "-O1")


@pytest.fixture(scope="session")
def both_sanitized(compiled: Callable[..., Path]) -> Path:
    """The same under AddressSanitizer and UBSan."""
    return compiled("shm", *SANITIZERS, "-O1")


@pytest.fixture(scope="session")
def attack_sanitized(compiled: Callable[..., Path]) -> Path:
    """The C program that becomes a victim, an honest peer and attackers, under AddressSanitizer and UBSan."""
    return compiled("shm_attack", *SANITIZERS, "-O1")


@pytest.fixture(scope="session")
def storm(compiled: Callable[..., Path]) -> Path:
    """The C program that becomes two with messages under way all the time."""
    return compiled("storm", "-O1")


@pytest.fixture(scope="session")
def twins(compiled: Callable[..., Path]) -> Path:
    """The C program with peers on two devices."""
    return compiled("twins", "-O1")


@pytest.fixture(scope="session")
def steps(compiled: Callable[..., Path]) -> Path:
    """The C program whose threads' sleep is counted."""
    return compiled("steps", "-O1")


@pytest.fixture(scope="session")
def many(compiled: Callable[..., Path]) -> Path:
    """The C program with thousands of queue pairs."""
    return compiled("many", "-O1")


@pytest.fixture(scope="session")
def flood(compiled: Callable[..., Path]) -> Path:
    """The C program that sends what it may to who does not answer."""
    return compiled("flood", "-O1")
