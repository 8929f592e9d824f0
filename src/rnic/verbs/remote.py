"""``rnic.open``: a device in the user's NIC process."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

from rnic.engine import use
from rnic.runtime.attach import ProcessConnection, connect, start
from rnic.runtime.directory import runtime_directory
from rnic.runtime.remote import RemoteDriver, UnfitError, wanted
from rnic.spec import attach
from rnic.verbs.context import Context

_DEFAULT_ADDRESS = "127.0.0.1"


def open(  # noqa: A001 - rnic.open says what it does
    name_or_address: str | None = None,
    *,
    port: int | None = None,
    faults: str | None = None,
    capture: str | Path | None = None,
    directory: Path | None = None,
    bypass: bool | None = None,
) -> Context:
    """Open a device in this user's NIC process; where none runs, start one, which ends with its last user.

    Args:
        name_or_address: a device of the NIC process (``"rnic0"``), or a local IP address, for which the NIC process
            makes a device if it has none; by default 127.0.0.1.
        port: UDP port of a device that is made, 4791 by default.
        faults: fault script (JSON text) of a device that is made.
        capture: pcapng file to which a device that is made records.
        directory: runtime directory; by default this user's.
        bypass: run the data path in this program, as ``rnic exec`` has C programs do; by default what
            ``RNIC_BYPASS`` says, else true. Where that is not possible the NIC process takes the packets all the same;
            :attr:`Context.bypass` tells, and a line of the log ``rnic`` says why, once for each program.

    Raises:
        ProcessError: no NIC process can be reached or started, in one line.
        VerbsError: the NIC process refused: ENODEV for an unknown name, EINVAL for an address that cannot be used.
    """
    where = runtime_directory() if directory is None else directory
    name = name_or_address or _DEFAULT_ADDRESS
    device: dict[str, Any] | None = None
    if "." in name or ":" in name:
        recording = None if capture is None else str(Path(capture).resolve())
        device = {"address": name, "port": port, "faults": faults, "capture": recording}
    mode = 0
    if wanted(unsaid=True) if bypass is None else bypass:
        mode = attach.DMA_NO_ENGINE if use.ENGINE is None else attach.DMA_SLOT
    connection = connect(where) or start(where)
    try:
        driver = _attach(connection, name, device, mode)
    except UnfitError as error:
        # the device has a user, and so is there, until the second connection has it
        with contextlib.closing(connection):
            words = f"this program cannot run the data path itself ({error}): the NIC process does"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
            again = connect(where) or start(where)
            try:
                driver = _attach(again, name, device, attach.DMA_UNFIT)
            except BaseException:
                again.close()
                raise
    except BaseException:
        connection.close()
        raise
    try:
        return Context(driver=driver)
    except BaseException:
        driver.close()
        raise


def _attach(connection: ProcessConnection, name: str, device: dict[str, Any] | None, mode: int) -> RemoteDriver:
    """Open a device by its name; ``device``: or this one, which the NIC process makes if it has none."""
    if device is not None:
        name = connection.request(attach.MSG_ADD, json.dumps(device).encode())[0].rstrip(b"\0").decode()
    return RemoteDriver(connection, name, mode)


__all__ = ["open"]
