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
from rnic.abi.header import c_header
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError
from rnic.spec.attach import LOCK_NAME

HERE = Path(__file__).parent
BUILDING_S = 180.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a loaded machine the compiler alone takes most of a minute, which counts for whichever test comes first."""
    for item in items:
        named = "libraries" in getattr(item, "fixturenames", ())
        if named and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILDING_S))


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of freshly built libraries."""
    if sys.platform != "linux" or find_compiler() is None:
        pytest.skip("needs Linux and a C compiler")
    out = tmp_path_factory.mktemp("libraries")
    build(out, strict=True)
    return out


@pytest.fixture(scope="session")
def byte_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of Python's byte code: most of a start is compiling, where nobody keeps that."""
    return tmp_path_factory.mktemp("byte_code")


@pytest.fixture
def env(libraries: Path, byte_code: Path, tmp_path: Path) -> dict[str, str]:
    """Environment of programs on a NIC process of this test alone."""
    runtime = tmp_path / "nic"
    runtime.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ours = {"RNIC_RUNTIME_DIR": str(runtime), "RNIC_LIBRARIES": str(libraries)}
    return {"PYTHONPYCACHEPREFIX": str(byte_code), **kept, **ours}


@pytest.fixture(params=["process", "bypass", "hairpin"])
def mode(request: pytest.FixtureRequest, env: dict[str, str], alone: None) -> dict[str, str]:
    """:func:`env` for programs whose NIC process takes everything, and for those that run the engine themselves.

    The last of these reach others of their device by rings instead of the wire.
    """
    chosen = {"RNIC_BYPASS": request.param != "process", "RNIC_HAIRPIN": request.param == "hairpin"}
    return {**env, **{name: str(int(value)) for name, value in chosen.items()}}


@pytest.fixture
def alone(env: dict[str, str]) -> Iterator[None]:
    """For tests that use the same addresses: the NIC process of one ends before the next starts."""
    yield
    path = Path(env["RNIC_RUNTIME_DIR"]) / LOCK_NAME
    if not path.exists():
        return
    with path.open("r+") as lock:
        for _ in range(400):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.025)
            else:
                return
    raise AssertionError("the NIC process of this test did not end within 10 s")


@pytest.fixture
def listening(env: dict[str, str]) -> Callable[[subprocess.Popen[str]], None]:
    """Waits until somebody listens by CM on the first device; the program that is to has not ended meanwhile."""

    def wait(server: subprocess.Popen[str]) -> None:
        for _ in range(400):
            try:
                if ask(Path(env["RNIC_RUNTIME_DIR"]), "rnic0", "cm")["services"]:
                    return
            except ProcessError:
                pass
            assert server.poll() is None, server.communicate()
            time.sleep(0.025)
        raise AssertionError("nobody listens")

    return wait


def _compile(out: Path, name: str, flags: list[str]) -> Path:
    """A C program of this directory with the library's sources inside."""
    compiler = find_compiler()
    assert compiler is not None
    (out / "rnic_hw.h").write_text(c_header())
    sources = [str(path) for path in SOURCES.glob("*.c") if not path.name.startswith("rdmacm")]
    sources += map(str, engine_sources())
    includes = [f"-I{out}", f"-I{SOURCES}", f"-I{ENGINE}"]
    command = [compiler, *FLAGS, *STRICT, *flags, *includes, str(HERE / f"{name}.c"), *sources, "-o", str(out / name)]
    subprocess.run(command, check=True)
    return out / name


@pytest.fixture(scope="session")
def sanitized(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program under AddressSanitizer and UBSan."""
    return _compile(tmp_path_factory.mktemp("sanitized"), "loop", [*SANITIZERS, "-O1"])


@pytest.fixture(scope="session")
def raced(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program under ThreadSanitizer, which knows no fences."""
    return _compile(tmp_path_factory.mktemp("raced"), "loop", ["-fsanitize=thread", "-Wno-tsan", "-O1"])


@pytest.fixture(scope="session")
def plain(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program without optimizations, as valgrind likes it."""
    return _compile(tmp_path_factory.mktemp("plain"), "loop", ["-O0"])


@pytest.fixture(scope="session")
def both(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that becomes two."""
    return _compile(tmp_path_factory.mktemp("both"), "hairpin", ["-O1"])


@pytest.fixture(scope="session")
def both_sanitized(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same under AddressSanitizer and UBSan."""
    return _compile(tmp_path_factory.mktemp("both_sanitized"), "hairpin", [*SANITIZERS, "-O1"])


@pytest.fixture(scope="session")
def storm(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that becomes two with messages under way all the time."""
    return _compile(tmp_path_factory.mktemp("storm"), "storm", ["-O1"])


@pytest.fixture(scope="session")
def twins(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program with peers on two devices."""
    return _compile(tmp_path_factory.mktemp("twins"), "twins", ["-O1"])


@pytest.fixture(scope="session")
def steps(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that keeps step with a peer."""
    return _compile(tmp_path_factory.mktemp("steps"), "steps", ["-O1"])


@pytest.fixture(scope="session")
def many(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program with thousands of queue pairs."""
    return _compile(tmp_path_factory.mktemp("many"), "many", ["-O1"])


@pytest.fixture(scope="session")
def flood(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that sends what it may to who does not answer."""
    return _compile(tmp_path_factory.mktemp("flood"), "flood", ["-O1"])
