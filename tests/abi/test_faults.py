"""Device events as a program on libibverbs gets them, and a fault script for each of its devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rnic.testing import NicFaults, own_network

pytestmark = pytest.mark.slow
NET = own_network()
PROGRAM = """
import ctypes as c
import sys

lib = c.CDLL("libibverbs.so.1", use_errno=True)

class Event(c.Structure):
    _fields_ = [("element", c.c_uint64), ("kind", c.c_int)]

for name in ("ibv_get_device_list", "ibv_open_device"):
    getattr(lib, name).restype = c.c_void_p
lib.ibv_get_device_name.restype = c.c_char_p
for name in ("ibv_open_device", "ibv_get_device_name", "ibv_get_async_event", "ibv_query_port", "ibv_query_gid",
             "ibv_query_pkey", "ibv_ack_async_event", "ibv_close_device"):
    getattr(lib, name).argtypes = [c.c_void_p]  # and more, as each takes them

def devices():
    count = c.c_int()
    found = c.cast(lib.ibv_get_device_list(c.byref(count)), c.POINTER(c.c_void_p))
    return {lib.ibv_get_device_name(found[at]).decode(): found[at] for at in range(count.value)}

def port(ctx):
    attr = (c.c_int * 64)()
    code = lib.ibv_query_port(ctx, 1, attr)
    return code or attr[0]

def tell(*words):
    print(*words, flush=True)

contexts = {name: lib.ibv_open_device(device) for name, device in devices().items()}
tell("devices", *contexts)
for line in sys.stdin:
    what, name = line.split()
    ctx, event = contexts[name], Event()
    if what == "event":
        assert lib.ibv_get_async_event(ctx, c.byref(event)) == 0
        lib.ibv_ack_async_event(c.byref(event))
        gid, pkey = (c.c_uint8 * 16)(), (c.c_uint8 * 2)()
        lib.ibv_query_gid(ctx, 1, 0, gid)
        lib.ibv_query_pkey(ctx, 1, 0, pkey)
        tell(event.kind, port(ctx), bytes(gid).hex()[-8:], bytes(pkey).hex())
    elif what == "list":
        tell("devices", *devices())
    elif what == "again":
        lib.ibv_close_device(ctx)
        contexts[name] = lib.ibv_open_device(devices()[name])
        tell("open", port(contexts[name]))
"""
PORT_ACTIVE, PORT_ERR, PKEY_CHANGE, GID_CHANGE, DEVICE_FATAL = 9, 10, 12, 18, 8
EIO = 5


class Program:
    def __init__(self, env: dict[str, str], *options: str) -> None:
        command = [sys.executable, "-m", "rnic.cli", "exec", *options, "--", sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def ask(self, *words: str) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.line()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        with self.process.stdout:
            assert self.process.wait(30) == 0


def addresses(*last: int) -> list[str]:
    return [word for number in last for word in ("--addr", f"{NET}.{number}")]


def test_a_program_hears_of_what_happens_to_each_of_its_devices(env: dict[str, str]) -> None:
    program = Program(env, *addresses(31, 32))
    directory = Path(env["RNIC_RUNTIME_DIR"])
    first, second = (NicFaults(name, directory) for name in ("rnic0", "rnic1"))
    assert program.line() == ["devices", "rnic0", "rnic1"]
    own = bytes(map(int, f"{NET}.32".split("."))).hex()
    second.port_down()
    assert program.ask("event", "rnic1") == [str(PORT_ERR), "1", own, "ffff"]
    second.heal()
    assert program.ask("event", "rnic1") == [str(PORT_ACTIVE), "4", own, "ffff"]
    second.change_pkey(0, 0x8005)
    assert program.ask("event", "rnic1") == [str(PKEY_CHANGE), "4", own, "8005"]
    second.change_gid(0, "none")
    assert program.ask("event", "rnic1") == [str(GID_CHANGE), "4", "00000000", "8005"]
    first.device_fatal()
    assert program.ask("event", "rnic0")[:2] == [str(DEVICE_FATAL), str(EIO)]
    assert program.ask("list", "rnic0") == ["devices", "rnic1"]
    first.heal()
    assert program.ask("list", "rnic0") == ["devices", "rnic0", "rnic1"]
    assert program.ask("again", "rnic0") == ["open", "4"]
    program.end()


def test_each_device_has_its_own_rules(env: dict[str, str], tmp_path: Path) -> None:
    rules = tmp_path / "second.json"
    rules.write_text(json.dumps([{"at": "1ms", "action": "port-down"}]))
    options = [*addresses(33, 34, 35), "--fault-on", f"rnic1={rules}"]
    options += ["--fault-on", f'{NET}.35=[{{"at": 0, "action": "pkey", "index": 0, "value": 5}}]']
    program = Program(env, *options)
    assert program.line() == ["devices", "rnic0", "rnic1", "rnic2"]
    directory = Path(env["RNIC_RUNTIME_DIR"])
    end = time.monotonic() + 20
    while state(directory, "rnic1")["port"] != "down":
        assert time.monotonic() < end
        time.sleep(0.01)
    assert [state(directory, name)["port"] for name in ("rnic0", "rnic2")] == ["active", "active"]
    assert [state(directory, name)["lasting"] for name in ("rnic0", "rnic2")] == [[], ["pkey"]]
    program.end()


def state(directory: Path, device: str) -> dict[str, object]:
    command = [sys.executable, "-m", "rnic.cli", "fault", device, "--json"]
    env = os.environ | {"RNIC_RUNTIME_DIR": str(directory)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("rnic1=[]", "no such device of this program: rnic0 (127."),
        ("rnic0", "give DEVICE=RULES"),
        ("rnic0=missing.json", "No such file"),
        ('rnic0=[{"action": "fly"}]', "fault rule 1: action is 'fly'"),
    ],
)
def test_bad_rules_for_a_device_are_one_line(env: dict[str, str], option: str, says: str) -> None:
    command = [sys.executable, "-m", "rnic.cli", "exec", "--fault-on", option, "--", "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
