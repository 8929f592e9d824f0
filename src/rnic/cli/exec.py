"""``rnic exec -- PROGRAM``: run a program written against libibverbs on this user's NIC process.

The connection that this command makes stays open across the exec. So the NIC process keeps running until the program
opens its device, and exits once the program and all its children are gone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from rnic.abi.library_paths import LIBRARIES, PATHS_LIBRARY, SOCKETS_LIBRARY
from rnic.cc.find import in_python
from rnic.cli.elf import looks_static
from rnic.cli.exec_fabric import fabric_options, place
from rnic.cli.faults import fault_rules
from rnic.cli.looks import Look, core_of, look_options, looks_of, parameter_option
from rnic.cli.options import UDP_PORT_RENAMED, Command, ControlName, capture_policy, snaplen, udp_port
from rnic.nic_process.launch import launch, reach
from rnic.nic_process.sysfs_view import make_view, view_path
from rnic.runtime.attach import ProcessConnection, ask, connect
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.spec import attach
from rnic.spec.addresses import parse_address
from rnic.spec.errors import LinkError, VerbsError
from rnic.spec.gids import gid_from_address
from rnic.spec.limits import ROCE_UDP_PORT

LOOPBACK = "127.0.0.1"


def library_directory() -> Path:
    """Return the directory of ``libibverbs.so.1``: the one that ``RNIC_LIBRARIES`` names, or the package's own.

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
    """Return the program's environment.

    Preloaded libraries come after the user's own, which are searched first. A sanitizer insists on being the first
    library and refuses to start otherwise; it works after these libraries, and an option tells it so.

    Args:
        devices: names of the program's devices.
        directory: the runtime directory.
        libraries: directory of rnic's libraries.
        preload: preload libibverbs and librdmacm, too.
        paths: view of the device paths, if any.
        sockets: turn its TCP sockets into rsockets.
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
    # some are already set inside another `rnic exec`
    theirs = [name for name in re.split("[: ]+", env.get("LD_PRELOAD", "")) if Path(name).name not in ("", *ours)]
    if ours:
        # spaces and colons separate names: the loader then finds it through LD_LIBRARY_PATH
        plain = not re.search("[: ]", str(libraries))
        env["LD_PRELOAD"] = ":".join([*theirs, *(str(libraries / name) if plain else name for name in ours)])
        env["ASAN_OPTIONS"] = ":".join(filter(None, ["verify_asan_link_order=0", os.environ.get("ASAN_OPTIONS")]))
    return env


def add_devices(connection: ProcessConnection, wanted: list[dict[str, object]]) -> list[str]:
    """Add the requested devices, and return their names.

    Raises:
        ProcessError: the NIC process refuses; the message is its own.
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
    """Parse ``DEVICE=RULES`` of the command line, and return the rules by device.

    Raises:
        ProcessError: the text has another form, or the file does not exist.
    """
    found = {}
    for each in said:
        device, sign, rules = each.partition("=")
        if not device or not sign:
            raise ProcessError(f"--fault-on {each}: give DEVICE=RULES, such as rnic1=faults.json")
        found[device] = fault_rules(rules)
    return found


class NoProgramError(ProcessError):
    """A program cannot be run; ``exit_status`` is as in shells: 126 if it exists, else 127."""

    def __init__(self, name: str) -> None:
        there = os.sep in name and Path(name).exists()
        why = "was not found: install it, or give its path"
        if there:
            why = "is a directory: give a program in it" if Path(name).is_dir() else "is not executable: see chmod +x"
        super().__init__(f"program {name!r} {why}")
        self.exit_status = 126 if there else 127


def device_names(
    listed: bytes, addresses: tuple[str, ...], port: int | None, wanted: Mapping[str, str | None] | None = None
) -> dict[str, str]:
    """Return the NIC process's name for the device of each address, even if it does not exist yet.

    Args:
        wanted: requested names, by address.
        listed: the NIC process's answer to LIST.
        addresses: addresses in the requested order.
        port: UDP port of all, ``None`` for 4791, 0 for any free one, which always makes a new device.
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
        name = (wanted or {}).get(address) or there.get((gid, ROCE_UDP_PORT if port is None else port))
        if name is None:
            name = next(free for number in range(len(taken) + 1) if (free := f"rnic{number}") not in taken)
            taken.add(name)
            there[gid, ROCE_UDP_PORT if port is None else port] = name
        names[address] = name
    return names


def default_devices(
    directory: Path, connection: ProcessConnection | None, udp_port: int | None
) -> tuple[tuple[str, ...], int | None]:
    """Return addresses and UDP port of the devices that a program sees if no address is given.

    They are the devices of ``rnic serve``, if all are on the requested port; otherwise there is one, on 127.0.0.1. Any
    unusual choice is reported on stderr.
    """
    served = [each for each in ask(directory, "", "devices") if each["served"]] if connection is not None else []
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


def is_free(address: str, port: int | None) -> bool:
    """Return whether a device can be created on an address, as far as this process can tell."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((address, ROCE_UDP_PORT if port is None else port))
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Asked:
    """The devices that the command line asks for."""

    addresses: tuple[str, ...]
    udp_port: int | None
    described: str | None
    """Their appearance, from a profile."""
    look: Mapping[str, object]
    rules: str | None
    own_rules: Mapping[str, str | None]
    """Fault rules by device."""
    options: Mapping[str, object]
    """Further options of ADD, the same for all of them."""

    @property
    def is_plain(self) -> bool:
        """True if only an address can be invalid."""
        return self.rules is None and not self.own_rules and not any(self.options.values())

    def devices(
        self, directory: Path, connection: ProcessConnection | None
    ) -> tuple[list[dict[str, object]], list[str]]:
        """Return the devices as arguments of ADD, and their names.

        Args:
            directory: the runtime directory.
            connection: to the NIC process; ``None`` if none runs.
        """
        addresses, udp_port = self.addresses, self.udp_port
        if not addresses and self.described is None and all(value is None for value in self.look.values()):
            addresses, udp_port = default_devices(directory, connection, udp_port)
        looks: dict[str, Look] = dict(looks_of(addresses, self.described, **self.look))  # type: ignore[arg-type]
        listed = connection.request(attach.MSG_LIST)[0] if connection is not None else b""
        called = {address: each.name for address, each in looks.items()}
        names = device_names(listed, tuple(looks), udp_port, called)
        unknown = self.own_rules.keys() - {*names.values(), *names}
        if unknown:
            known = ", ".join(f"{name} ({address})" for address, name in names.items())
            raise ProcessError(f"--fault-on {min(unknown)}: no such device of this program: {known}")
        wanted = [
            {
                **self.options,
                "address": address,
                "port": udp_port,
                "faults": self.own_rules.get(names[address], self.own_rules.get(address, self.rules)),
                "look": each.look,
                "name": each.name or (names[address] if self.own_rules or connection is None else None),
            }
            for address, each in looks.items()
        ]
        return wanted, list(names.values())


def make_devices(
    directory: Path, asked: Asked, may_go_on: bool
) -> tuple[ProcessConnection, list[dict[str, object]], list[str], Path | None]:
    """Have the NIC process make devices.

    Args:
        directory: the runtime directory.
        asked: the devices.
        may_go_on: do not wait until a newly started NIC process answers.

    Returns:
        The connection that keeps the devices, the arguments of ADD, their names, and the view of the device paths that
        the NIC process will make; ``None`` if the NIC process was already running.

    Raises:
        ProcessError: the NIC process refuses, or cannot be started.
    """
    connection = connect(directory)
    if connection is None and may_go_on and asked.is_plain:
        wanted, names = asked.devices(directory, None)
        if all(is_free(str(each["address"]), asked.udp_port) for each in wanted):
            connection = launch(directory, wanted, names)
            if connection is not None:
                return connection, wanted, names, view_path(directory, names)
    if connection is None:
        connection = reach(directory)
    wanted, _ = asked.devices(directory, connection)
    names = add_devices(connection, wanted)
    for each, name in zip(wanted, names, strict=True):
        if each["name"] not in (None, name):
            raise ProcessError(
                f"device {each['name']} at {each['address']} is called {name} by programs that use it: wait until they"
                " are gone, or name another by --addr"
            )
    return connection, wanted, names, None


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
    help="Faults to inject: a JSON file of rules, the rules themselves, or rates such as drop=1%.",
)
@click.option(
    "--fault-on",
    "faults_on",
    multiple=True,
    metavar="DEVICE=RULES",
    help="Faults for one device, by name (rnic1) or address, instead of --faults; repeatable.",
)
@click.option("--capture", envvar="RNIC_CAPTURE", help="Record every packet to this pcapng file.")
@capture_policy()
@snaplen()
@click.option(
    "--congestion",
    type=ControlName(),
    envvar="RNIC_CONGESTION",
    help="Congestion control: none, limit, dcqcn, timely, swift, hpcc, or module:Class.",
)
@click.option("--preload", is_flag=True, envvar="RNIC_PRELOAD", help="Also set LD_PRELOAD, for programs with an RPATH.")
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
    help="With --bypass: connect local programs by shared memory (default), or over the wire.",
)
@click.option(
    "--explain/--quiet",
    default=None,
    envvar="RNIC_EXPLAIN",
    help="Print on stderr why a verb, a request or a message fails. --explain is the default on a terminal.",
)
@click.option("--profile", help="Core that the devices model (univista), or their appearance (8x400g).")
@look_options
@parameter_option
@fabric_options
@click.option("--sockets", is_flag=True, help="Carry the program's TCP sockets over the NIC, as rsockets.")
@click.option("--paths/--no-paths", default=True, help="Show the program a device's paths under /sys and /dev.")
@click.option("--print-sysfs", is_flag=True, help="Print the directory that replaces /sys and exit.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def execute(
    addresses: tuple[str, ...],
    udp_port: int | None,
    faults: str | None,
    faults_on: tuple[str, ...],
    capture: str | None,
    capture_policy: str | None,
    snaplen: int | None,
    congestion: str | None,
    preload: bool,
    bypass: bool,
    shm: bool,
    explain: bool | None,
    profile: str | None,
    name: str | None,
    gids: str | None,
    rate: str | None,
    numa: int | None,
    pci: str | None,
    count: int | None,
    parameters: tuple[str, ...],
    fabric: str | None,
    host: int | None,
    slower: int | None,
    sockets: bool,
    paths: bool,
    print_sysfs: bool,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM, a libibverbs program, on this user's NIC process, which is started if none runs."""
    if print_sysfs:
        if program:
            raise click.UsageError(f"--print-sysfs runs no program: leave out {program[0]!r}")
        if "RNIC_PATHS" in os.environ and not addresses:  # inside another rnic exec: use what its program sees
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
    core, chosen = core_of(profile, parameters)
    rules = fault_rules(faults)
    own_rules = rules_by_device(faults_on)
    directory = runtime_directory()
    options: dict[str, object] = {
        "capture": capture and str(Path(capture).resolve()),
        "capture_policy": capture_policy,
        "snaplen": snaplen,
        "congestion": congestion,
        "profile": core,
        "parameters": chosen or None,
    }
    if fabric is not None:
        addresses, placed = place(fabric, host, slower, addresses)
        options |= placed
    look = {"name": name, "gids": gids, "rate": rate, "numa": numa, "pci": pci, "count": count}
    asked = Asked(addresses, udp_port, profile if core is None else None, look, rules, own_rules, options)
    connection, wanted, devices, shown = make_devices(directory, asked, may_go_on=not print_sysfs)
    if congestion and in_python(congestion):
        print(
            f"rnic exec: congestion control {congestion} is Python: the NIC process serves reliable connections itself",
            file=sys.stderr,
        )
    if not paths and not print_sysfs:
        shown = None
    elif shown is None:
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
    # a port that was free may be taken by then; a new recording must not overwrite the first
    again = [each | {"name": name, "capture": None} for each, name in zip(wanted, devices, strict=True)]
    env["RNIC_AGAIN"] = json.dumps(again)
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        found = shutil.which(program[0])
        if error.errno != errno.ENOEXEC or found is None:
            raise
        # a script without #!: run it with sh, as shells and sudo do
        os.execve("/bin/sh", ["sh", found, *program[1:]], env)


@click.command(hidden=True)
def again() -> None:
    """For the C libraries: restart the NIC process with the devices of ``rnic exec``, or those of a container."""
    directory = runtime_directory()
    if "RNIC_AGAIN" in os.environ:
        try:
            wanted = json.loads(os.environ["RNIC_AGAIN"])
        except ValueError as error:
            raise ProcessError(f"RNIC_AGAIN is not a list of devices ({error}): `rnic exec` sets it") from None
    else:
        from rnic.cli.cdi import container_devices  # noqa: PLC0415 - only in containers

        wanted = container_devices()
    connection = reach(directory)
    names = add_devices(connection, wanted)
    if "RNIC_DEVICE" in os.environ:
        with contextlib.suppress(OSError):
            make_view(directory, os.environ["RNIC_DEVICE"].split(","))
    print(" ".join(names))
