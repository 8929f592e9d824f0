"""librdmacm.so.1: a C program on its API, and the distribution's own programs, unmodified."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError
from rnic.spec.attach import LOCK_NAME
from rnic.testing import own_network

NET = own_network()
SERVER, CLIENT = f"{NET}.71", f"{NET}.72"


@pytest.fixture(autouse=True)
def the_next_one_has_its_addresses(env: dict[str, str]) -> Iterator[None]:
    """All tests use the same ones: the NIC process of one ends, soon after its programs, before the next starts."""
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


def command(*program: str, addresses: tuple[str, ...] = (SERVER,)) -> list[str]:
    options = [word for address in addresses for word in ("--addr", address)]
    return [sys.executable, "-m", "rnic.cli", "exec", *options, "--", *program]


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, built as a stranger would."""
    if not Path("/usr/include/rdma/rdma_cma.h").exists():
        pytest.skip("librdmacm-dev is not installed")
    compiler = find_compiler()
    assert compiler is not None
    out = tmp_path_factory.mktemp("cm") / "cm"
    source = str(Path(__file__).with_name("cm.c"))
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-pthread", f"-L{libraries}"]
    # by path: the directory has no names without version
    linked = [str(libraries / "librdmacm.so.1"), str(libraries / "libibverbs.so.1")]
    subprocess.run([compiler, *flags, source, *linked, "-o", str(out)], check=True)
    return out


@pytest.mark.slow
def test_a_c_program_with_both_ways_of_using_it(program: Path, env: dict[str, str]) -> None:
    """Calls that wait and events, private data, rejection, queue pairs of its own, migration, fork."""
    done = subprocess.run(
        command(str(program), SERVER, CLIENT, addresses=(SERVER, CLIENT)),
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all as it should be\n"), done.stderr
    assert not done.stderr


@pytest.mark.slow
def test_the_c_program_under_valgrind(program: Path, env: dict[str, str]) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    checked = ("valgrind", "--error-exitcode=9", "-q", str(program), SERVER, CLIENT)
    done = subprocess.run(
        command(*checked, addresses=(SERVER, CLIENT)), env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all as it should be\n"), done.stderr


def listening(env: dict[str, str], server: subprocess.Popen[str]) -> None:
    """Until somebody listens on the first device."""
    for _ in range(400):
        try:
            if ask(Path(env["RNIC_RUNTIME_DIR"]), "rnic0", "cm")["services"]:
                return
        except ProcessError:
            pass
        assert server.poll() is None, server.communicate()
        time.sleep(0.025)
    raise AssertionError("nobody listens")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "client"),
    [
        (("rping", "-s", "-a", SERVER, "-C", "5", "-V"), ("rping", "-c", "-a", SERVER, "-C", "5", "-V")),
        (("ucmatose", "-c", "3", "-C", "4"), ("ucmatose", "-c", "3", "-C", "4", "-s", SERVER)),
        (("udaddy", "-c", "2", "-C", "4"), ("udaddy", "-c", "2", "-C", "4", "-s", SERVER)),
        (("rdma_server",), ("rdma_client", "-s", SERVER)),
    ],
    ids=lambda words: words[0],
)
def test_programs_of_the_distribution(env: dict[str, str], server: tuple[str, ...], client: tuple[str, ...]) -> None:
    if shutil.which(server[0]) is None:
        pytest.skip(f"{server[0]} is not installed: apt-get install rdmacm-utils")
    with subprocess.Popen(
        command(*server), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as first:
        try:
            listening(env, first)
            done = subprocess.run(
                command(*client, addresses=(CLIENT,)), env=env, capture_output=True, text=True, timeout=40, check=False
            )
            said, _ = first.communicate(timeout=20)
        finally:
            first.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    assert first.returncode == 0, said
