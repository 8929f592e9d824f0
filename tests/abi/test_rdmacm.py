"""librdmacm.so.1: a C program on its API, and the distribution's own programs, unmodified."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rnic
from rnic.abi.build import find_compiler
from rnic.testing import own_network

NET = own_network()
SERVER, CLIENT, LATER = f"{NET}.71", f"{NET}.72", f"{NET}.73"


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
def test_programs_of_the_distribution(
    env: dict[str, str],
    listening: Callable[[subprocess.Popen[str]], None],
    server: tuple[str, ...],
    client: tuple[str, ...],
) -> None:
    if shutil.which(server[0]) is None:
        pytest.skip(f"{server[0]} is not installed: apt-get install rdmacm-utils")
    with subprocess.Popen(
        command(*server), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as first:
        try:
            listening(first)
            done = subprocess.run(
                command(*client, addresses=(CLIENT,)), env=env, capture_output=True, text=True, timeout=40, check=False
            )
            said, _ = first.communicate(timeout=120)
        finally:
            first.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    assert first.returncode == 0, said


@pytest.mark.slow
def test_more_devices_are_named_than_one_request_holds(
    env: dict[str, str], listening: Callable[[subprocess.Popen[str]], None]
) -> None:
    """``rnic exec`` names a program's devices in RNIC_DEVICE, here the one that is there behind many that are not."""
    if shutil.which("rping") is None:
        pytest.skip("rping is not installed: apt-get install rdmacm-utils")
    names = ",".join([*(f"rnic{number}" for number in range(100, 200)), "rnic0"])
    server = command("env", f"RNIC_DEVICE={names}", "rping", "-s", "-a", SERVER, "-C", "1")
    with subprocess.Popen(server, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
        try:
            listening(first)
            client = command("rping", "-c", "-a", SERVER, "-C", "1", addresses=(CLIENT,))
            done = subprocess.run(client, env=env, capture_output=True, text=True, timeout=40, check=False)
            said, _ = first.communicate(timeout=120)
        finally:
            first.kill()
    assert (done.returncode, first.returncode) == (0, 0), done.stdout + done.stderr + said


@pytest.mark.slow
def test_a_listener_on_all_addresses_is_reached_on_a_device_that_came_later(
    env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    listening: Callable[[subprocess.Popen[str]], None],
) -> None:
    if shutil.which("rping") is None:
        pytest.skip("rping is not installed: apt-get install rdmacm-utils")
    monkeypatch.setenv("RNIC_RUNTIME_DIR", env["RNIC_RUNTIME_DIR"])
    server = command("env", "-u", "RNIC_DEVICE", "rping", "-s", "-C", "1", "-V")
    with subprocess.Popen(server, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
        try:
            listening(first)
            with rnic.open(LATER):
                client = command("rping", "-c", "-a", LATER, "-C", "1", "-V", addresses=(CLIENT,))
                done = subprocess.run(client, env=env, capture_output=True, text=True, timeout=40, check=False)
                said, _ = first.communicate(timeout=120)
        finally:
            first.kill()
    assert (done.returncode, first.returncode) == (0, 0), done.stdout + done.stderr + said
