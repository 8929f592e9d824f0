"""Libraries with a file ``environment`` beside them, as of ``rnic cdi``, start the NIC process themselves.

No `rnic exec`, no variable of rnic's in the program's environment but the runtime directory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.runtime.directory import ProcessError
from rnic.testing import own_network

NET = own_network()
PROGRAM = """
import ctypes, os, sys
verbs = ctypes.CDLL(sys.argv[1] + "/libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype, verbs.ibv_get_device_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
verbs.ibv_open_device.restype, verbs.ibv_open_device.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
count = ctypes.c_int()
found = verbs.ibv_get_device_list(ctypes.byref(count))
print(count.value)
if count.value:
    print(verbs.ibv_get_device_name(found[0]).decode())
    assert verbs.ibv_open_device(found[0])
    for name in ("/sys/class/infiniband/rnic0/ports/1/gids/0", os.environ["RNIC_RUNTIME_DIR"] + "/told"):
        print(open(name).read().strip())
"""


@pytest.fixture
def place(libraries: Path, tmp_path: Path) -> Path:
    """A folder with the libraries, and a Python that writes down the environment it gets."""
    shutil.copytree(libraries, tmp_path / "libraries")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv > "$RNIC_RUNTIME_DIR/environ"\necho "$TOLD" > "$RNIC_RUNTIME_DIR/told"\n'
                      f'exec {sys.executable} "$@"\n')  # fmt: skip
    python.chmod(0o755)
    return tmp_path / "libraries"


def run(place: Path, env: dict[str, str], **more: str) -> list[str]:
    kept = {name: value for name, value in env.items() if not name.startswith("RNIC_") or name == "RNIC_RUNTIME_DIR"}
    kept |= {"LD_PRELOAD": str(place / "librnicpaths.so"), **more}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place)], env=kept, capture_output=True, text=True, check=False, timeout=120
    )
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def test_a_program_starts_it(place: Path, env: dict[str, str]) -> None:
    lines = [f"RNIC_PYTHON={place.parent / 'python'}", f"?RNIC_ADDR={NET}.31", "TOLD=by the file", "LD_LIBRARY_PATH=/x"]
    (place / "environment").write_text("\n".join([*lines, "no variable", ""]))
    said = run(place, env, TOLD="by the program")
    address = f"7f{int(NET.split('.')[1]):02x}:{int(NET.split('.')[2]):02x}1f"
    assert said == ["1", "rnic0", f"0000:0000:0000:0000:0000:ffff:{address}", "by the file"]
    told = (Path(env["RNIC_RUNTIME_DIR"]) / "environ").read_text().splitlines()
    assert "LD_LIBRARY_PATH=/x" in told
    assert not any(each.startswith("LD_PRELOAD") for each in told)


def test_the_programs_own_variable_goes_before_a_default(place: Path, env: dict[str, str]) -> None:
    (place / "environment").write_text(f"RNIC_PYTHON={place.parent / 'python'}\n?RNIC_ADDR=192.0.2.1\n?TOLD=default\n")
    said = run(place, env, RNIC_ADDR=f"{NET}.32", TOLD="by the program")
    assert said[0] == "1"
    assert said[-1] == "by the program"


@pytest.mark.parametrize("text", [None, "", "RNIC_PYTHO=/x\n"])
def test_without_a_python_none_is_started(place: Path, env: dict[str, str], text: str | None) -> None:
    if text is not None:
        (place / "environment").write_text(text)
    said = run(place, env)
    assert said[0] == "0"
    assert "no NIC process answers" in said[1]


def test_what_is_wrong_is_said(place: Path, env: dict[str, str]) -> None:
    (place / "environment").write_text(f"RNIC_PYTHON={sys.executable}\n?RNIC_FAULTS=nonsense\n?RNIC_ADDR={NET}.33\n")
    said = run(place, env)
    assert any("fault script nonsense" in line for line in said)
    assert ProcessError.__name__ not in "".join(said)
