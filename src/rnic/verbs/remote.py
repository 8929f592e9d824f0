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
    """Open a device in this user's NIC process; if none runs, start one, which exits after its last user.

    Args:
        name_or_address: a device of the NIC process (``"rnic0"``), or a local IP address, for which the NIC process
            makes a device if it has none; by default 127.0.0.1.
        port: UDP port of a new device, 4791 by default.
        faults: fault script (JSON text) of a new device.
        capture: pcapng file to which a new device records.
        directory: runtime directory; by default this user's.
        bypass: run the data path in this program, as C programs under ``rnic exec`` do; the default is ``RNIC_BYPASS``,
            else true. If that is not possible, the NIC process handles the packets: :attr:`Context.bypass` is false,
            and the logger ``rnic`` gives the reason, once per program.

    Raises:
        ProcessError: no NIC process can be reached or started.
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
        # keep the device in use until the second connection has it
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
    """Open a device by its name, or ``device``, which the NIC process makes if necessary."""
    if device is not None:
        name = connection.request(attach.MSG_ADD, json.dumps(device).encode())[0].rstrip(b"\0").decode()
    return RemoteDriver(connection, name, mode)


__all__ = ["open"]
