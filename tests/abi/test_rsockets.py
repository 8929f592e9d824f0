"""rsockets: a C program on all of their calls, and TCP sockets of a program that knows nothing of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler
from rnic.runtime.attach import ask
from rnic.testing import own_network

pytestmark = pytest.mark.slow
NET = own_network()
SERVER, CLIENT = f"{NET}.101", f"{NET}.102"
SEEN_BYTES = 600_000
"""What a web server sends."""


def command(*program: str, addresses: tuple[str, ...], sockets: bool = False) -> list[str]:
    options = [word for address in addresses for word in ("--addr", address)]
    options += ["--sockets"] if sockets else []
    return [sys.executable, "-m", "rnic.cli", "exec", *options, "--", *program]


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, built as a stranger would."""
    if not Path("/usr/include/rdma/rsocket.h").exists():
        pytest.skip("librdmacm-dev is not installed")
    compiler = find_compiler()
    assert compiler is not None
    out = tmp_path_factory.mktemp("rsockets") / "rsockets"
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-pthread"]
    linked = [str(libraries / "librdmacm.so.1"), str(libraries / "libibverbs.so.1")]
    source = str(Path(__file__).with_name("rsockets.c"))
    subprocess.run([compiler, *flags, source, *linked, "-o", str(out)], check=True)
    return out


@pytest.mark.parametrize("under", [(), ("valgrind", "--error-exitcode=9", "-q")], ids=["plain", "valgrind"])
def test_a_c_program_on_all_calls(program: Path, env: dict[str, str], under: tuple[str, ...]) -> None:
    """Both ways at once, more than the buffers hold, half closing, mapped memory, options, datagrams, refusals."""
    if under and shutil.which(under[0]) is None:
        pytest.skip(f"{under[0]} is not installed")
    ends = command(*under, str(program), SERVER, CLIENT, addresses=(SERVER, CLIENT))
    done = subprocess.run(ends, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "all as it should be\n"), done.stderr


def sent(env: dict[str, str]) -> int:
    counters: dict[str, int] = ask(Path(env["RNIC_RUNTIME_DIR"]), "rnic0", "counters")
    return counters.get("tx_bytes", 0)


def test_a_web_server_in_python(
    env: dict[str, str], tmp_path: Path, listening: Callable[[subprocess.Popen[str]], None]
) -> None:
    """``rnic exec --sockets``: what is fetched is right, and it went over the NIC."""
    data = bytes(range(256)) * (SEEN_BYTES // 256)
    (tmp_path / "data").write_bytes(data)
    words = ("-m", "http.server", "--bind", SERVER, "8124", "--directory", str(tmp_path))
    fetch = f"import json, urllib.request as r; print(json.dumps(len(r.urlopen('http://{SERVER}:8124/data').read())))"
    server = command(sys.executable, *words, addresses=(SERVER,), sockets=True)
    with subprocess.Popen(server, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
        try:
            listening(first)
            client = command(sys.executable, "-c", fetch, addresses=(CLIENT,), sockets=True)
            done = subprocess.run(client, env=env, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout) == len(data)
            assert sent(env) > len(data)
        finally:
            first.kill()
