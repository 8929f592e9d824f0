"""The NIC process as a service: names of devices, its return when a library needs it, another user's address."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from rnic.abi.library_paths import LIBRARIES
from rnic.link.base import LinkError
from rnic.link.udp_socket import open_socket, port_owner
from rnic.runtime.attach import ProcessConnection, connect, start
from rnic.spec import attach
from rnic.spec.errors import VerbsError
from rnic.testing import own_network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a NIC process needs Linux")
NET = own_network()
RNIC = (sys.executable, "-m", "rnic.cli")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Runtime directory of a NIC process that ends with its last user."""
    path = tmp_path / "nic"
    path.mkdir(mode=0o700)
    first = start(path)
    yield path
    first.close()


def _add(directory: Path, host: int, **more: object) -> tuple[ProcessConnection, str]:
    connection = connect(directory)
    assert connection is not None
    wanted = {"address": f"{NET}.{host}", **more}
    try:
        return connection, connection.request(attach.MSG_ADD, json.dumps(wanted).encode())[0].split(b"\0", 1)[
            0
        ].decode()
    except VerbsError:
        connection.close()
        raise


def test_names_do_not_depend_on_what_lingers(directory: Path) -> None:
    first, name = _add(directory, 1)
    assert name == "rnic0"
    second, name = _add(directory, 2)
    assert name == "rnic1"
    first.close()
    third, name = _add(directory, 3)
    assert name == "rnic0", "the first one is gone, and so is its device"
    again, name = _add(directory, 2)
    assert name == "rnic1", "in use, and stays what it is"
    for connection in (second, third, again):
        connection.close()
    last, name = _add(directory, 2)
    assert name == "rnic0", "what lingers as rnic1 is not found again under that name"
    last.close()


def test_a_name_may_be_wanted(directory: Path) -> None:
    # addresses of its own: the NIC process of the test before may not have ended yet
    first, name = _add(directory, 31, name="rnic7")
    assert name == "rnic7"
    second, name = _add(directory, 32, name="rnic7")
    assert name == "rnic0", "it is taken"
    for wanted in ("rnic", "rnic01", "5mlx", "mlx5/0", "m" * 16, "rnic1000", 3, "rnic1\n"):
        with pytest.raises(VerbsError, match=r"is no (device's|str)") as caught:
            _add(directory, 33, name=wanted)
        assert caught.value.errno == errno.EINVAL
    first.close()
    second.close()


SCRIPT = """
import ctypes, os, signal, sys, time
from pathlib import Path
from rnic.runtime.attach import connect
directory = Path(os.environ["RNIC_RUNTIME_DIR"])
process = connect(directory)
os.kill(process.pid, signal.SIGKILL)
while process.alive():
    time.sleep(0.01)
library = ctypes.CDLL("libibverbs.so.1")
library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
library.ibv_get_device_name.restype = ctypes.c_char_p
library.ibv_get_device_name.argtypes = library.ibv_open_device.argtypes = [ctypes.c_void_p]
library.ibv_open_device.restype = ctypes.c_void_p
count = ctypes.c_int()
devices = library.ibv_get_device_list(ctypes.byref(count))
print([library.ibv_get_device_name(devices[each]).decode() for each in range(count.value)])
print(bool(library.ibv_open_device(devices[0])), connect(directory).pid != process.pid)
print(sorted(os.listdir("/sys/class/infiniband")))
"""


@pytest.mark.slow
def test_library_starts_the_nic_process_again_with_the_same_devices(directory: Path) -> None:
    if not (Path(os.environ.get("RNIC_LIBRARIES") or LIBRARIES) / "libibverbs.so.1").exists():
        pytest.skip("the C libraries were not built")
    other, name = _add(directory, 9)  # so that the names are not the first ones
    assert name == "rnic0"
    env = os.environ | {"RNIC_RUNTIME_DIR": str(directory)}
    hosts = ("--addr", f"{NET}.11", "--addr", f"{NET}.12")
    command = [*RNIC, "exec", *hosts, "--", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    other.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["['rnic1', 'rnic2']", "True True", "['rnic1', 'rnic2']"]


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_a_program_without_an_address_uses_what_rnic_serve_has(tmp_path: Path, named: bool) -> None:
    if not (Path(os.environ.get("RNIC_LIBRARIES") or LIBRARIES) / "libibverbs.so.1").exists():
        pytest.skip("the C libraries were not built")
    tmp_path.chmod(0o700)
    env = os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)}
    served, other = f"{NET}.13", f"{NET}.14"
    with subprocess.Popen([*RNIC, "serve", "--addr", served], env=env, stderr=subprocess.PIPE, text=True) as serve:
        try:
            assert serve.stderr is not None
            assert "ready" in serve.stderr.readline()
            show = "import os; print(os.environ['RNIC_DEVICE'], os.environ['RNIC_AGAIN'])"
            command = [*RNIC, "exec", *(["--addr", other] if named else []), "--", sys.executable, "-c", show]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        finally:
            serve.terminate()
    assert done.returncode == 0, done.stderr
    device, _, again = done.stdout.partition(" ")
    assert (device, [each["address"] for each in json.loads(again)]) == (
        ("rnic1", [other]) if named else ("rnic0", [served])
    )
    wanted = "" if named else f"rnic exec: uses what rnic serve has: rnic0 ({served}); --addr 127.0.0.1 makes another\n"
    assert done.stderr == wanted


@pytest.mark.slow
def test_what_the_library_asks_for_is_said_where_it_is_no_list(directory: Path) -> None:
    env = os.environ | {"RNIC_RUNTIME_DIR": str(directory), "RNIC_AGAIN": "[{"}
    done = subprocess.run([*RNIC, "again"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "RNIC_AGAIN is not a list of devices" in done.stderr


@pytest.mark.parametrize("address", [bytes((127, 0, 0, 1)), bytes(15) + b"\1"], ids=["IPv4", "IPv6"])
def test_owner_of_a_port(address: bytes) -> None:
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((socket.inet_ntop(family, address), 0))
        except OSError as error:
            pytest.skip(f"no such address here: {error}")
        port = sock.getsockname()[1]
        assert port_owner(address, port) == os.getuid()
        with pytest.raises(LinkError, match=f"UDP port {port} on .* is taken: give another port"):
            open_socket(address, port, 0, 4096)
    assert port_owner(address, port) is None


def test_another_users_address_is_called_that() -> None:
    if os.getuid():
        pytest.skip("only root can be two users")
    address, port = f"{NET}.21", Random().randrange(20_000, 30_000)
    code = "import os, socket; os.setuid(65534); s = socket.socket(2, 2)"
    code += f"; s.bind(({address!r}, {port})); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        with pytest.raises(LinkError, match=f"UDP port {port} on {address} is user 65534's, who has a NIC"):
            open_socket(socket.inet_aton(address), port, 0, 4096)
        holder.stdin.write(b"\n")
        holder.stdin.flush()
