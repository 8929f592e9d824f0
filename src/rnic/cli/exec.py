"""``rnic exec -- PROGRAM``: run a program written against libibverbs on this user's NIC process.

The connection that this command makes stays open across the exec, so that the NIC process outlives the moment
before the program opens its device, and ends once the program and everything it started are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import click

from rnic.abi.library_paths import LIBRARIES, PATHS_LIBRARY, SOCKETS_LIBRARY
from rnic.cc.settings import MODES
from rnic.cli.elf import looks_static
from rnic.cli.faults import fault_rules
from rnic.cli.options import UDP_PORT_RENAMED, Command, udp_port
from rnic.link.base import LinkError, parse_address
from rnic.nic_process.sysfs_view import make_view
from rnic.runtime.attach import ProcessConnection, ask, connect, start
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.spec import attach
from rnic.spec.errors import VerbsError
from rnic.spec.gids import gid_from_address
from rnic.spec.limits import ROCE_UDP_PORT

LOOPBACK = "127.0.0.1"


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


def environment(
    devices: list[str],
    directory: Path,
    libraries: Path,
    preload: bool = False,
    paths: Path | None = None,
    sockets: bool = False,
) -> dict[str, str]:
    """The program's environment.

    What is preloaded stands behind the user's own, so that theirs is asked first. A sanitizer wants to stand before
    everything and refuses to start otherwise; it works behind these libraries, and is told so.

    Args:
        devices: names of those that it sees.
        directory: the runtime directory.
        libraries: where ours are.
        preload: preload libibverbs and librdmacm, too.
        paths: view of the device paths, where it shall have one.
        sockets: make its TCP sockets rsockets.
    """
    env = dict(os.environ)
    env["RNIC_RUNTIME_DIR"] = str(directory)
    env["RNIC_DEVICE"] = ",".join(devices)
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(libraries), env.get("LD_LIBRARY_PATH")]))
    env.pop("RNIC_PATHS", None)
    ours = ["libibverbs.so.1", "librdmacm.so.1"] if preload else []
    if (libraries / PATHS_LIBRARY).exists():
        if paths is not None:
            env["RNIC_PATHS"] = str(paths)
        ours.append(PATHS_LIBRARY)
    if sockets:
        ours.append(SOCKETS_LIBRARY)
    # inside another `rnic exec` some are there already
    theirs = [name for name in re.split("[: ]+", env.get("LD_PRELOAD", "")) if Path(name).name not in ("", *ours)]
    if ours:
        # blanks and colons part the names: then the loader finds it by LD_LIBRARY_PATH
        plain = not re.search("[: ]", str(libraries))
        env["LD_PRELOAD"] = ":".join([*theirs, *(str(libraries / name) if plain else name for name in ours)])
        env["ASAN_OPTIONS"] = ":".join(filter(None, ["verify_asan_link_order=0", os.environ.get("ASAN_OPTIONS")]))
    return env


def add_devices(connection: ProcessConnection, wanted: list[dict[str, object]]) -> list[str]:
    """Names of the devices that were asked for.

    Raises:
        ProcessError: in the words of the NIC process.
    """
    names = []
    for each in wanted:
        try:
            name, _ = connection.request(attach.MSG_ADD, json.dumps(each).encode())
        except VerbsError as error:
            raise ProcessError(str(error.strerror)) from None
        names.append(name.split(b"\0", 1)[0].decode())
    return names


def rules_by_device(said: tuple[str, ...]) -> dict[str, str | None]:
    """``DEVICE=RULES`` of the command line, by device.

    Raises:
        ProcessError: no such form, or no such file.
    """
    found = {}
    for each in said:
        device, sign, rules = each.partition("=")
        if not device or not sign:
            raise ProcessError(f"--fault-on {each}: give DEVICE=RULES, such as rnic1=faults.json")
        found[device] = fault_rules(rules)
    return found


class NoProgramError(ProcessError):
    """A program cannot be run; ``exit_status`` is what shells give: 126 where it is there, else 127."""

    def __init__(self, name: str) -> None:
        there = os.sep in name and Path(name).exists()
        why = "was not found: install it, or give its path"
        if there:
            why = "is a directory: give a program in it" if Path(name).is_dir() else "is not executable: see chmod +x"
        super().__init__(f"program {name!r} {why}")
        self.exit_status = 126 if there else 127


def device_names(listed: bytes, addresses: tuple[str, ...], port: int | None) -> dict[str, str]:
    """What the NIC process calls the device of each address, also where it is yet to be made.

    Args:
        listed: its answer to LIST.
        addresses: in the order in which they are asked for.
        port: UDP port of all, ``None`` for 4791, 0 for any free one, which is always a device of its own.
    """
    size = attach.LIST_RECORD.size
    records = [listed[at : at + size] for at in range(0, len(listed) - size + 1, size)]
    there = {
        (record[16:32], attach.LIST_RECORD.get(record, "udp_port")): record[:16].rstrip(b"\0").decode()
        for record in records
    }
    taken = set(there.values())
    names: dict[str, str] = {}
    for address in addresses:
        try:
            gid = gid_from_address(parse_address(address))
        except LinkError as error:
            raise ProcessError(str(error)) from None
        name = there.get((gid, ROCE_UDP_PORT if port is None else port))
        if name is None:
            name = next(free for number in range(len(taken) + 1) if (free := f"rnic{number}") not in taken)
            taken.add(name)
            there[gid, ROCE_UDP_PORT if port is None else port] = name
        names[address] = name
    return names


def default_devices(directory: Path, udp_port: int | None) -> tuple[tuple[str, ...], int | None]:
    """Return addresses and UDP port of the devices that a program sees where no address is named.

    They are the devices that ``rnic serve`` was told to make, if all are on one port and it is the one that is wanted,
    and one on 127.0.0.1 otherwise. What is not this is said on stderr.
    """
    served = [each for each in ask(directory, "", "devices") if each["served"]]
    ports = {each["udp_port"] for each in served}
    if not served:
        return (LOOPBACK,), udp_port
    if len(ports) > 1 or udp_port not in (None, *ports):
        print(
            f"rnic exec: makes a device on {LOOPBACK} beside those of rnic serve: name one by --addr, --udp-port",
            file=sys.stderr,
        )
        return (LOOPBACK,), udp_port
    addresses = tuple(each["address"] for each in served)
    if addresses != (LOOPBACK,):
        names = ", ".join(f"{each['name']} ({each['address']})" for each in served)
        print(f"rnic exec: uses what rnic serve has: {names}; --addr {LOOPBACK} makes another", file=sys.stderr)
    return addresses, ports.pop()


@click.command(
    "exec",
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    renamed={**UDP_PORT_RENAMED, "--hairpin": "--shm", "--no-hairpin": "--no-shm"},
)
@click.option(
    "--addr",
    "addresses",
    multiple=True,
    envvar="RNIC_ADDR",
    help="Local IP address of a device; repeatable.  [default: those of rnic serve, or 127.0.0.1]",
)
@udp_port("UDP port, 4791 by default; 0 for any free one.", envvar="RNIC_PORT")
@click.option(
    "--faults",
    metavar="RULES",
    envvar="RNIC_FAULTS",
    help="Faults: a JSON file of rules, the rules themselves, or rates such as drop=1%.",
)
@click.option(
    "--fault-on",
    "faults_on",
    multiple=True,
    metavar="DEVICE=RULES",
    help="A fault script for one device, by name (rnic1) or address, instead of --faults; repeatable.",
)
@click.option("--capture", envvar="RNIC_CAPTURE", help="Record every packet to this pcapng file.")
@click.option(
    "--congestion", type=click.Choice(MODES), envvar="RNIC_CONGESTION", help="What a congestion notification does."
)
@click.option("--preload", is_flag=True, envvar="RNIC_PRELOAD", help="Also LD_PRELOAD, for programs with an RPATH.")
@click.option(
    "--bypass/--no-bypass",
    default=True,
    envvar="RNIC_BYPASS",
    help="Run the data path in the program's process (default), or in the NIC process.",
)
@click.option(
    "--shm/--no-shm",
    default=True,
    envvar=("RNIC_SHM", "RNIC_HAIRPIN"),
    help="With --bypass: local programs use shared memory (default), or the wire.",
)
@click.option(
    "--explain/--quiet",
    default=None,
    envvar="RNIC_EXPLAIN",
    help="Say on stderr why a verb, a request or a message fails (default if stderr is a terminal), or do not.",
)
@click.option("--sockets", is_flag=True, help="Carry the program's TCP sockets over the NIC, as rsockets.")
@click.option("--paths/--no-paths", default=True, help="Show the program a device's paths under /sys and /dev.")
@click.option("--print-sysfs", is_flag=True, help="Print the directory that stands for /sys, and run nothing.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def execute(
    addresses: tuple[str, ...],
    udp_port: int | None,
    faults: str | None,
    faults_on: tuple[str, ...],
    capture: str | None,
    congestion: str | None,
    preload: bool,
    bypass: bool,
    shm: bool,
    explain: bool | None,
    sockets: bool,
    paths: bool,
    print_sysfs: bool,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM, written against libibverbs, on the NIC process of this user, starting that where none runs."""
    if print_sysfs:
        if program:
            raise click.UsageError(f"--print-sysfs runs no program: leave out {program[0]!r}")
        if "RNIC_PATHS" in os.environ and not addresses:  # inside of another: what its program sees
            print(Path(os.environ["RNIC_PATHS"]) / "sys")
            return
    elif not program:
        raise click.UsageError("PROGRAM is missing: rnic exec -- PROGRAM ARGUMENTS")
    else:
        libraries = library_directory()
        found = shutil.which(program[0])
        if found is None:
            raise NoProgramError(program[0])
        if looks_static(found):
            print(
                f"rnic exec: {program[0]} is linked statically: it takes neither libibverbs nor device paths from here;"
                " give it the tree that `rnic exec --print-sysfs` names, where it has an option for that",
                file=sys.stderr,
            )
    rules = fault_rules(faults)
    own_rules = rules_by_device(faults_on)
    directory = runtime_directory()
    connection = connect(directory) or start(directory)
    if not addresses:
        addresses, udp_port = default_devices(directory, udp_port)
    names = device_names(connection.request(attach.MSG_LIST)[0], addresses, udp_port)
    unknown = own_rules.keys() - {*names.values(), *names}
    if unknown:
        known = ", ".join(f"{name} ({address})" for address, name in names.items())
        raise ProcessError(f"--fault-on {min(unknown)}: no such device of this program: {known}")
    wanted: list[dict[str, object]] = [
        {
            "address": address,
            "port": udp_port,
            "faults": own_rules.get(names[address], own_rules.get(address, rules)),
            "capture": capture and str(Path(capture).resolve()),
            "congestion": congestion,
            "name": names[address] if own_rules else None,
        }
        for address in addresses
    ]
    devices = add_devices(connection, wanted)
    for each, name in zip(wanted, devices, strict=True):
        if each["name"] not in (None, name):
            raise ProcessError(f"--fault-on: device {each['name']} became {name}: name it by its address")
    shown: Path | None = None
    if paths or print_sysfs:
        try:
            shown = make_view(directory, devices)
        except OSError as error:
            print(f"rnic exec: device paths: {error}: the program is shown none", file=sys.stderr)
    if print_sysfs:
        if shown is None:
            sys.exit(1)
        print(shown / "sys")
        return
    connection.sock.set_inheritable(True)
    env = environment(devices, directory, libraries, preload, shown, sockets)
    env["RNIC_PYTHON"] = sys.executable
    env["RNIC_BYPASS"] = str(int(bypass))
    env["RNIC_SHM"] = str(int(shm))
    env["RNIC_EXPLAIN"] = str(int(sys.stderr.isatty() if explain is None else explain))
    # a port that was any free one is another's by then, and no recording is begun anew over the first
    again = [each | {"name": name, "capture": None} for each, name in zip(wanted, devices, strict=True)]
    env["RNIC_AGAIN"] = json.dumps(again)
    os.execvpe(program[0], program, env)


@click.command(hidden=True)
def again() -> None:
    """For the libraries: start the NIC process, which has ended, with the devices that ``rnic exec`` had asked for."""
    directory = runtime_directory()
    try:
        wanted = json.loads(os.environ.get("RNIC_AGAIN", ""))
    except ValueError as error:
        raise ProcessError(f"RNIC_AGAIN is no list of devices ({error}): `rnic exec` sets it") from None
    connection = connect(directory) or start(directory)
    names = add_devices(connection, wanted)
    if "RNIC_DEVICE" in os.environ:
        with contextlib.suppress(OSError):
            make_view(directory, os.environ["RNIC_DEVICE"].split(","))
    print(" ".join(names))
