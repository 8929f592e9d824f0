"""``rnic.open``: a device in the user's NIC process."""

from __future__ import annotations

import json
from pathlib import Path

from rnic.runtime.attach import connect, start
from rnic.runtime.directory import runtime_directory
from rnic.runtime.remote import RemoteDriver
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
) -> Context:
    """Open a device in this user's NIC process; where none runs, start one, which ends with its last user.

    Args:
        name_or_address: a device of the NIC process (``"rnic0"``), or a local IP address, for which the NIC process
            makes a device if it has none; by default 127.0.0.1.
        port: UDP port of a device that is made, 4791 by default.
        faults: fault script (JSON text) of a device that is made.
        capture: pcapng file to which a device that is made records.
        directory: runtime directory; by default this user's.

    Raises:
        ProcessError: no NIC process can be reached or started, in one line.
        VerbsError: the NIC process refused: ENODEV for an unknown name, EINVAL for an address that cannot be used.
    """
    where = runtime_directory() if directory is None else directory
    connection = connect(where) or start(where)
    try:
        name = name_or_address or _DEFAULT_ADDRESS
        if "." in name or ":" in name:
            wanted = {
                "address": name,
                "port": port,
                "faults": faults,
                "capture": None if capture is None else str(Path(capture).resolve()),
            }
            name = connection.ask(attach.MSG_ADD, json.dumps(wanted).encode())[0].rstrip(b"\0").decode()
        driver = RemoteDriver(connection, name)
    except BaseException:
        connection.close()
        raise
    try:
        return Context(driver=driver)
    except BaseException:
        driver.close()
        raise


__all__ = ["open"]
