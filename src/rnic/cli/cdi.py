"""``rnic cdi``: give containers of unmodified images a NIC, with a CDI specification or with options of any engine."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import socket
import sys
from pathlib import Path

import click

from rnic.cli.cdi_folder import CAPTURES_INSIDE, INSIDE, PRELOAD_FILE, Folder, make_folder, why_not
from rnic.cli.faults import fault_rules
from rnic.link.interface import local_addresses
from rnic.runtime.directory import ProcessError

KIND = "rnic.dev/nic"
DEVICE = "0"
VERSION = "0.5.0"
"""CDI version: the first that allows a number as a device name; Podman 4.3 supports it."""
LOOPBACK = "127.0.0.1"
MOST_CAPTURES = 100_000


def default_folder() -> Path:
    """Return the folder of this user."""
    if os.geteuid() == 0:
        return Path("/var/lib/rnic/cdi")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "rnic/cdi"


def default_out() -> Path:
    """Return the specification's path: where engines look first, or in this user's own directory."""
    if os.geteuid() == 0:
        return Path("/etc/cdi/rnic.json")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "cdi/rnic.json"


def mounts_of(folder: Path, captures: Path | None) -> list[tuple[Path, Path, str]]:
    """Return the mounts of a container: host path, container path, ``ro`` or ``rw``."""
    found = [(folder, INSIDE, "ro"), (folder / PRELOAD_FILE, Path("/etc/ld.so.preload"), "ro")]
    return [*found, (captures, CAPTURES_INSIDE, "rw")] if captures else found


def specification(folder: Folder, captures: Path | None) -> dict[str, object]:
    """Return the CDI specification."""
    mounts = [
        {"hostPath": str(here), "containerPath": str(there), "options": ["rbind", mode, "nosuid", "nodev"]}
        for here, there, mode in mounts_of(folder.path, captures)
    ]
    check = [sys.executable, "-m", "rnic.cli", "cdi-check", str(folder.glibc)]
    hook = {"hookName": "createRuntime", "path": sys.executable, "args": check}
    edits = {"mounts": mounts, "hooks": [hook]}
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [{"name": DEVICE, "containerEdits": edits}]}


def options_of(folder: Folder, captures: Path | None) -> str:
    """Return the equivalent options of ``docker run`` and ``podman run``, without CDI."""
    words = (f"--volume={here}:{there}:{mode}" for here, there, mode in mounts_of(folder.path, captures))
    return " ".join(map(shlex.quote, words))


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Specification to write.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Directory to mount in containers.")
@click.option("--faults", metavar="RULES", help="Faults to inject: a JSON file, the rules themselves, or drop=1%.")
@click.option(
    "--capture",
    "captures",
    type=click.Path(file_okay=False, path_type=Path),
    help="Record every packet to files in this folder, one for each NIC.",
)
@click.option(
    "--options", "as_options", is_flag=True, help="Print options for an engine without CDI, and write no specification."
)
def cdi(out: Path | None, folder: Path | None, faults: str | None, captures: Path | None, as_options: bool) -> None:
    """Write a CDI specification that gives containers of unmodified images a NIC.

    Then `podman run --device rnic.dev/nic=0 IMAGE ib_write_bw` runs the image's own program. Each container has its own
    NIC, on the address of its interface. The image needs glibc, but no part of rnic.
    """
    settings = {}
    rules = fault_rules(faults)
    if rules is not None:
        settings["RNIC_FAULTS"] = json.dumps(json.loads(rules))
    if captures is not None:
        captures = captures.resolve()
        if not captures.exists():
            captures.mkdir(parents=True)
            captures.chmod(0o1777)  # containers may run as any user
        settings["RNIC_CAPTURE"] = str(CAPTURES_INSIDE)
    place = (folder or default_folder()).resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    made = make_folder(place, settings)
    if as_options:
        print(options_of(made, captures))
        return
    out = out or default_out()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(specification(made, captures), indent=1) + "\n", encoding="utf-8")
    print(f"{made.path}: {made.files:,} files, {made.bytes / 1e6:.1f} MB; images need glibc 2.{made.glibc}")
    found = out.parent == Path("/etc/cdi")
    read = "" if found else f" --cdi-spec-dir {out.parent}"
    print(f"{out}: podman{read} run --device {KIND}={DEVICE} IMAGE PROGRAM")
    if not found:
        print("a Podman without --cdi-spec-dir, such as 4.3: podman run $(rnic cdi --options) IMAGE PROGRAM")


@click.command("cdi-check", hidden=True)
@click.argument("glibc", type=int)
def cdi_check(glibc: int) -> None:
    """Hook for container engines: refuse an image whose programs cannot load the libraries."""
    try:
        bundle = Path(json.load(sys.stdin)["bundle"])
        root = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["root"]["path"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ProcessError(f"cdi-check: the engine does not say where the container is: {error}") from None
    if why := why_not(bundle / root, glibc):
        raise ProcessError(f"--device {KIND}={DEVICE}: {why}")


def container_devices() -> list[dict[str, object]]:
    """Return the devices for a NIC process started in a container: from variables, or on the interface's address.

    Raises:
        ProcessError: a variable is invalid, or no capture file can be created.
    """
    addresses = os.environ.get("RNIC_ADDR", "").split() or [own_address(local_addresses())]
    port = os.environ.get("RNIC_PORT")
    if port is not None and not port.isdecimal():
        raise ProcessError(f"RNIC_PORT is {port!r}: give a number from 0 to 65535")
    capture = os.environ.get("RNIC_CAPTURE")
    if capture and Path(capture).is_dir():
        capture = new_capture(Path(capture))
    each: dict[str, object] = {
        "port": int(port) if port else None,
        "faults": fault_rules(os.environ.get("RNIC_FAULTS") or None),
        "capture": capture,
        "capture_policy": os.environ.get("RNIC_CAPTURE_POLICY"),
        "congestion": os.environ.get("RNIC_CONGESTION"),
    }
    return [{**each, "address": address} for address in addresses]


def own_address(addresses: list[str]) -> str:
    """Return the address that other containers can reach: the first that is neither loopback nor link-local."""
    parsed = [ipaddress.ip_address(each.partition("%")[0]) for each in addresses]
    useful = [each for each in parsed if not each.is_loopback and not each.is_link_local]
    return str(min(useful, key=lambda each: each.version)) if useful else LOOPBACK


def new_capture(folder: Path) -> str:
    """Return the path of a new file, named after the container, in a folder that containers share.

    Raises:
        ProcessError: none can be made.
    """
    for number in range(MOST_CAPTURES):
        path = folder / f"{socket.gethostname()}-{number}.pcapng"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            continue
        except OSError as error:
            raise ProcessError(f"capture file {path}: {error.strerror}: let this user write there") from None
        return str(path)
    raise ProcessError(f"capture folder {folder} is full: remove old files")
