"""A key-value store whose server does nothing: clients find, read and change records by READ, WRITE and CAS alone.

python kvstore.py serve [--port 7480]         # keeps the table
python kvstore.py put KEY VALUE               # from any number of processes
python kvstore.py get KEY

A record has a version, even while it is whole and odd while a writer has it. A writer takes the record by CAS from
even to odd, writes, and makes it even again; a reader reads version, record, version, in one batch, and asks again
where they differ. RC keeps the order of one connection's requests, which is what makes this right.
"""

from __future__ import annotations

import argparse
import sys
import zlib

import numpy as np
from numpy.typing import NDArray

import rnic

SLOTS = 1024
RECORD = np.dtype([("key", "S48"), ("value", "S144")])


class Store:
    """A client.

    Args:
        peer: connected to a server's ``versions`` and ``records``.
    """

    def __init__(self, peer: rnic.Connection) -> None:
        self._peer = peer

    def get(self, key: str) -> str | None:
        """Return the value, or ``None`` if there is none."""
        for slot in self._slots(key):
            record = self._whole(slot)[0]
            if record["key"] == key.encode():
                return bytes(record["value"]).decode()
            if not record["key"]:
                return None
        return None

    def put(self, key: str, value: str) -> None:
        """Store a value. ``OverflowError`` where the table is full or the text too long."""
        new = np.array([(key.encode(), value.encode())], RECORD)
        if new[0]["key"] != key.encode() or new[0]["value"] != value.encode():
            raise OverflowError(
                f"key and value have at most {RECORD['key'].itemsize} and {RECORD['value'].itemsize} bytes"
            )
        for slot in self._slots(key):
            while True:
                record, version = self._whole(slot)
                if record["key"] not in (b"", key.encode()):
                    break
                if self._peer.compare_swap("versions", slot, version, version + 1) != version:
                    continue  # another client was faster: look again
                with self._peer.batch() as batch:
                    batch.write("records", new, slot)
                    batch.compare_swap("versions", slot, version + 1, version + 2)
                return
        raise OverflowError("the table is full")

    def _slots(self, key: str) -> range | list[int]:
        first = zlib.crc32(key.encode()) % SLOTS
        return [(first + step) % SLOTS for step in range(SLOTS)]

    def _whole(self, slot: int) -> tuple[NDArray[np.void], int]:
        """Return a record that was not written while it was read, and its version."""
        while True:
            with self._peer.batch() as batch:
                before = batch.read("versions", slot, 1)
                record = batch.read("records", slot, 1)
                after = batch.read("versions", slot, 1)
            version = int(before.result()[0])
            if version % 2 == 0 and version == after.result()[0]:
                return record.result()[0], version


def serve(port: int) -> None:
    """Keep the table until interrupted."""
    share = {"versions": np.zeros(SLOTS, np.int64), "records": np.zeros(SLOTS, RECORD)}
    with rnic.listen(port=port, share=share) as listener:
        print(f"serving {SLOTS} records on port {listener.port}", flush=True)
        listener.wait()


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(description="A key-value store on READ and CAS.")
    parser.add_argument("command", choices=("serve", "put", "get"))
    parser.add_argument("words", nargs="*", help="key, and value")
    parser.add_argument("--port", type=int, default=7480)
    given = parser.parse_args()
    if given.command == "serve":
        serve(given.port)
        return 0
    with rnic.connect("127.0.0.1", given.port) as peer:
        store = Store(peer)
        if given.command == "put":
            store.put(*given.words)
            return 0
        value = store.get(*given.words)
        print("no such key" if value is None else value)
        return int(value is None)


if __name__ == "__main__":
    sys.exit(main())
