"""``rnic exec -- PROGRAM``: run a program written against libibverbs on this user's NIC process.

The connection that this command makes stays open across the exec, so that the NIC process outlives the moment
before the program opens its device, and ends once the program and everything it started are gone.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import click

from rnic.abi.build import LIBRARIES
from rnic.runtime.process import ProcessError, runtime_directory
from rnic.spec import attach

_START_SECONDS = 20.0
_IDLE_EXIT = "1"


def library_directory() -> Path:
    """Where ``libibverbs.so.1`` is: what ``RNIC_LIBRARIES`` names, or the package's own.

    Raises:
        ProcessError: it was not built.
    """
    path = Path(os.environ.get("RNIC_LIBRARIES") or LIBRARIES)
    if not (path / "libibverbs.so.1").exists():
        raise ProcessError(
            f"{path / 'libibverbs.so.1'} is missing, since rnic was installed without a C compiler:"
            " install gcc, then run `python -m rnic.abi.build`"
        )
    return path


def connect(directory: Path) -> socket.socket | None:
    """A connection to the NIC process of a runtime directory, greeted; ``None`` if none runs."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(directory / attach.SOCKET_NAME))
        ask(sock, attach.MSG_HELLO, struct.pack("<III", attach.MAGIC, attach.VERSION, os.getpid()))
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        sock.close()
        return None
    return sock


def ask(sock: socket.socket, kind: int, body: bytes) -> bytes:
    """One message and the body of its answer.

    Raises:
        ProcessError: the NIC process refused; in its words.
    """
    sock.send(struct.pack("<II", kind, kind) + body)
    data = sock.recv(attach.MAX_MESSAGE)
    if len(data) < attach.REPLY_HEADER.size:
        raise ConnectionResetError
    if attach.REPLY_HEADER.get(data, "error"):
        raise ProcessError(data[attach.REPLY_HEADER.size :].decode(errors="replace"))
    return data[attach.REPLY_HEADER.size :]


def start(directory: Path) -> socket.socket:
    """Start a NIC process that ends by itself, and connect to it."""
    log = directory / "nic.log"
    command = [sys.executable, "-m", "rnic.cli", "serve", "--idle-exit", _IDLE_EXIT]
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        sock = connect(directory)
        if sock is not None:
            return sock
        if child.poll() is not None and child.returncode:
            sock = connect(directory)  # another one was faster
            if sock is not None:
                return sock
            words = log.read_text(errors="replace").strip().splitlines()
            raise ProcessError(f"the NIC process ended at once: {words[-1] if words else child.returncode}")
        time.sleep(0.02)
    raise ProcessError(f"the NIC process did not answer within {_START_SECONDS:.0f} s; see {log}")


def environment(devices: list[str], directory: Path, libraries: Path, preload: bool) -> dict[str, str]:
    """The program's environment."""
    env = dict(os.environ)
    env["RNIC_RUNTIME_DIR"] = str(directory)
    env["RNIC_DEVICE"] = ",".join(devices)
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(libraries), env.get("LD_LIBRARY_PATH")]))
    if preload:
        ours = [str(libraries / "libibverbs.so.1"), str(libraries / "librdmacm.so.1")]
        env["LD_PRELOAD"] = ":".join(filter(None, [*ours, env.get("LD_PRELOAD")]))
    return env


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--addr", "addresses", multiple=True, envvar="RNIC_ADDR", help="Local IP address (127.0.0.1); repeatable."
)
@click.option("--port", type=click.IntRange(1, 65535), envvar="RNIC_PORT", help="UDP port, 4791 by default.")
@click.option("--faults", envvar="RNIC_FAULTS", help="Fault script: a JSON file of rules, or the rules themselves.")
@click.option("--capture", envvar="RNIC_CAPTURE", help="Record every packet to this pcapng file.")
@click.option("--preload", is_flag=True, envvar="RNIC_PRELOAD", help="Also LD_PRELOAD, for programs with an RPATH.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(
    addresses: tuple[str, ...],
    port: int | None,
    faults: str | None,
    capture: str | None,
    preload: bool,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM, written against libibverbs, on the NIC process of this user, starting that where none runs."""
    libraries = library_directory()
    if shutil.which(program[0]) is None:
        raise ProcessError(f"program {program[0]!r} was not found")
    directory = runtime_directory()
    sock = connect(directory) or start(directory)
    rules = Path(faults).read_text(encoding="utf-8") if faults and not faults.lstrip().startswith("[") else faults
    devices = []
    for address in addresses or ("127.0.0.1",):
        wanted = {
            "address": address,
            "port": port,
            "faults": rules,
            "capture": capture and str(Path(capture).resolve()),
        }
        name = ask(sock, attach.MSG_ADD, json.dumps(wanted).encode())
        devices.append(name.split(b"\0", 1)[0].decode())
    sock.set_inheritable(True)
    os.execvpe(program[0], program, environment(devices, directory, libraries, preload))
