"""Options for the appearance of devices: names, GID tables, link, location in the machine, and number."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from rnic.runtime.directory import ProcessError
from rnic.spec.addresses import parse_address
from rnic.spec.appearance import FULL, GID_TABLES, ONE, RATES, Appearance
from rnic.spec.attach import NAME_BYTES
from rnic.spec.errors import LinkError

MAX_COUNT = 16
"""Most devices that one set of options describes."""
CORES = ("univista",)
"""Profiles that name the hardware core that a device models (:mod:`rnic.device.parameters`)."""
_PROFILE = re.compile(r"(\d{1,2})x(\d{1,3})g")
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*?)(\d*)")
_FIRST_BUS, _BUSES = 0x18, 0x0C
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Look:
    """One device: its name, ``None`` for the next free one, and the rest as JSON text, ``None`` for the defaults."""

    name: str | None
    look: str | None


def look_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that make devices; :func:`looks_of` takes their values."""
    for option in (
        click.option(
            "--count", type=click.IntRange(1, MAX_COUNT), help="Make this many devices, on consecutive addresses."
        ),
        click.option("--pci", help="PCI address of the first device; each further device has its own bus."),
        click.option("--numa", type=click.IntRange(-1, 1023), help="NUMA node of the devices."),
        click.option(
            "--rate",
            type=click.Choice([str(rate) for rate in RATES]),
            help="Link rate that the devices report, in Gb/s.",
        ),
        click.option(
            "--gids",
            type=click.Choice(GID_TABLES),
            help="GID table: one entry (default), that of a hardware adapter, with RoCE v2 over IPv4 at index 3, or"
            " that of Linux Soft-RoCE, with it at index 1.",
        ),
        click.option(
            "--name", help="Name of the first device, such as mlx5_0; further devices are numbered consecutively."
        ),
    ):
        command = option(command)
    return command


def parameter_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for parameters of a core; :func:`core_of` takes its values."""
    words = "One of the core's parameters, NAME=VALUE; repeatable."
    return click.option("--parameter", "parameters", multiple=True, help=words)(command)


def core_of(profile: str | None, parameters: Sequence[str]) -> tuple[str | None, dict[str, int]]:
    """Return the core that a profile names, ``None`` if it describes an appearance, and the chosen parameters.

    Raises:
        ProcessError: no such profile.
        click.BadParameter: a text that is not ``NAME=VALUE``.
    """
    if profile is not None and profile not in CORES and profile_of(profile) is None:
        raise ProcessError(f"profile {profile}: give {', '.join(CORES)}, or COUNTxRATEg, such as 8x400g")
    chosen = {}
    for text in parameters:
        name, _, value = text.partition("=")
        if not name or not value.isdigit():
            words = f"{text!r} is not a parameter: give NAME=VALUE, such as QP_NUM=1024"
            raise click.BadParameter(words, param_hint="--parameter")
        chosen[name] = int(value)
    return profile if profile in CORES else None, chosen


def profile_of(text: str | None) -> tuple[int, int] | None:
    """Return devices and Gb/s of a profile such as ``8x400g``; ``None`` if the text is not such a profile.

    Raises:
        ProcessError: the number of devices or the link speed is not supported.
    """
    found = _PROFILE.fullmatch(text or "")
    if found is None:
        return None
    count, rate = int(found[1]), int(found[2])
    if not 1 <= count <= MAX_COUNT or rate not in RATES:
        known = ", ".join(map(str, RATES))
        raise ProcessError(f"profile {text}: give COUNTxRATEg, 1 to {MAX_COUNT} devices of {known} Gb/s")
    return count, rate


def looks_of(
    addresses: Sequence[str],
    profile: str | None,
    *,
    name: str | None = None,
    gids: str | None = None,
    rate: str | None = None,
    numa: int | None = None,
    pci: str | None = None,
    count: int | None = None,
) -> list[tuple[str, Look]]:
    """Return the devices that the options describe: an address and a look each.

    Args:
        addresses: the given addresses; if there is one, the others follow it consecutively.
        profile: such as ``8x400g``: sets all other options; explicit ones override it.
        name: of the first device.
        gids: kind of GID table.
        rate: Gb/s.
        numa: NUMA node of all.
        pci: PCI address of the first.
        count: number of addresses.

    Raises:
        ProcessError: an option is not valid for any device; the message is one line.
    """
    machine = profile_of(profile)
    if machine is not None:
        count, rate = count or machine[0], rate or str(machine[1])
        name, gids = name or "mlx5_0", gids or FULL
    places = spread(addresses or (LOOPBACK,), count)
    plain = all(value is None for value in (gids, rate, numa, pci))
    found = []
    for at, address in enumerate(places):
        node, function = numa, None if pci is None else _moved(pci, at)
        if machine is not None:
            node = numa if numa is not None else int(len(places) > 1 and at >= (len(places) + 1) // 2)
            function = function or f"0000:{_FIRST_BUS + _BUSES * at:02x}:00.0"
        look = None
        if not plain:
            look = Appearance(gids or ONE, int(rate or 10), -1 if node is None else node, function or "").to_json()
        found.append((address, Look(None if name is None else counted_up(name, at), look)))
    return found


def spread(addresses: Sequence[str], count: int | None) -> list[str]:
    """Return ``count`` addresses: the given ones, or a single one and those that follow it.

    Raises:
        ProcessError: several addresses, but not ``count``; or no further addresses are left.
    """
    if count is None or count == len(addresses):
        return list(addresses)
    if len(addresses) > 1:
        raise ProcessError(f"--count {count} with {len(addresses)} addresses: give one, or as many as devices")
    try:
        parse_address(addresses[0])
        first = ipaddress.ip_address(addresses[0])
        return [str(first + at) for at in range(count)]
    except (LinkError, ValueError, ipaddress.AddressValueError) as error:
        raise ProcessError(f"--count {count} from {addresses[0]}: {error}") from None


def counted_up(name: str, by: int) -> str:
    """Return a name with the number at its end increased; append a number if there is none.

    Raises:
        ProcessError: the name is not valid for a device.
    """
    found = _NAME.fullmatch(name)
    made = "" if found is None else f"{found[1]}{int(found[2] or 0) + by}" if found[2] or by else name
    if not made or len(made) >= NAME_BYTES:
        raise ProcessError(
            f"--name {name}: give a letter and at most {NAME_BYTES - 2} letters, digits, _ and -, such as mlx5_0"
        )
    return made


def _moved(pci: str, by: int) -> str:
    """Return a PCI address moved by ``by`` buses, so that each device is on its own bus."""
    parts = pci.split(":")
    if len(parts) != 3 or not re.fullmatch("[0-9a-fA-F]{2}", parts[1]):
        return pci  # invalid; refused later with its own message
    return f"{parts[0]}:{int(parts[1], 16) + by & 0xFF:02x}:{parts[2]}".lower()


__all__ = [
    "CORES",
    "MAX_COUNT",
    "Look",
    "core_of",
    "counted_up",
    "look_options",
    "looks_of",
    "parameter_option",
    "profile_of",
    "spread",
]
