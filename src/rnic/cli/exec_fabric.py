"""``rnic exec --fabric``: connect a program's NIC to the switches of a scenario file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rnic.runtime.directory import ProcessError

RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables in which launchers pass a process its rank, in the order of the search."""


def fabric_options(command: Any) -> Any:
    """Add ``--fabric``, ``--host`` and ``--slower``."""
    for option in (
        click.option(
            "--slower",
            type=click.IntRange(1),
            envvar="RNIC_SLOWER",
            help="With --fabric: slow the fabric's time down by this factor.  [default: estimated from the link rates]",
        ),
        click.option(
            "--host",
            type=click.IntRange(0),
            envvar="RNIC_HOST",
            help="With --fabric: number of the program's host, starting at 0.  [default: its MPI rank]",
        ),
        click.option(
            "--fabric",
            type=click.Path(exists=True, dir_okay=False),
            envvar="RNIC_FABRIC",
            help="Connect the NIC to the simulated switches of this file, in real time.",
        ),
    ):
        command = option(command)
    return command


def own_rank(env: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher gave this process; ``None`` if there is none."""
    return next((int(env[name]) for name in RANKS if env.get(name, "").isdecimal()), None)


def place(
    fabric: str, host: int | None, slower: int | None, addresses: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, object]]:
    """Return the address of a program's NIC on a fabric, and its options for ADD.

    Args:
        fabric: the scenario file.
        host: number of its host; ``None`` for the rank of this process.
        slower: factor by which the fabric's time runs slower than the clock; ``None`` for the factor that this machine
            needs, which is reported.
        addresses: addresses that the command line names.

    Raises:
        ProcessError: there is no host number, or an address is given as well.
        OSError, RnicError: the file cannot be read, or is invalid.
    """
    from rnic.link.base import format_address  # noqa: PLC0415 - few programs need it
    from rnic.sim.fabric import host_address  # noqa: PLC0415
    from rnic.sim.live import LIVE_NET, slowness  # noqa: PLC0415
    from rnic.sim.scenario import Scenario  # noqa: PLC0415

    if addresses:
        raise ProcessError(f"--addr {addresses[0]}: a host of --fabric has its address by its number: leave out one")
    number = own_rank(os.environ) if host is None else host
    if number is None:
        raise ProcessError(f"--fabric {fabric}: which host is this? Give --host NUMBER, or start it by mpirun")
    path = Path(fabric).resolve()
    if slower is None:
        slower = slowness(Scenario.load(path, live=True).topology)
        if slower > 1:
            click.echo(f"rnic exec: {said(slower)}; --slower sets another number", err=True)
    options: dict[str, object] = {"fabric": str(path), "host": number, "slower": slower}
    return (format_address(host_address(LIVE_NET, number)),), options


def said(slower: int) -> str:
    """Return the message about slower time."""
    return f"time on the fabric is {slower} times slower: programs find rates divided and delays multiplied by it"


__all__ = ["fabric_options", "own_rank", "place", "said"]
