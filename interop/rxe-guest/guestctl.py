#!/usr/bin/env python3
"""Client of the guest's command agent; runs inside the host's rxe namespace.

guestctl.py HOST PORT run SECONDS COMMAND   output on stdout, the command's exit status
guestctl.py HOST PORT put LOCAL REMOTE [MODE]
"""

from __future__ import annotations

import base64
import os
import socket
import sys
from pathlib import Path
from typing import BinaryIO

TRAILER = b"\x1e"  # the agent ends its answer with this byte, the exit status and a newline
TRAILER_BYTES = 8  # at most


def request(
    host: str,
    port: int,
    head: str,
    body: bytes = b"",
    out: BinaryIO | None = None,
    limit: float | None = None,
) -> int:
    """Send one request, copy its output to ``out`` as it arrives, and return the exit status (255 without trailer)."""
    sock = socket.create_connection((host, port), timeout=10)
    sock.settimeout(limit)
    sock.sendall(head.encode() + b"\n" + body)
    held = b""
    while data := sock.recv(65536):
        held += data
        if out is not None and len(held) > TRAILER_BYTES:
            out.write(held[:-TRAILER_BYTES])
            out.flush()
            held = held[-TRAILER_BYTES:]
    output, found, status = held.rpartition(TRAILER)
    if not found or not status.strip().isdigit():
        output, status = held, b"255"
    if out is not None:
        out.write(output)
        out.flush()
    return int(status)


def encode(text: str) -> str:
    """Encode text as one word of a request."""
    return base64.b64encode(text.encode()).decode()


def main(args: list[str]) -> int:
    """Run one request from the command line."""
    host, port, verb, *rest = args
    if verb == "run":
        seconds, command = int(rest[0]), rest[1]
        # No answer after the guest's own time limit means a dead guest.
        limit = seconds + 15 if seconds else None
        head = f"RUN {seconds} {encode(command)}"
        return request(host, int(port), head, out=sys.stdout.buffer, limit=limit)
    if verb == "put":
        data = Path(rest[0]).read_bytes()
        mode = rest[2] if len(rest) > 2 else "755"
        return request(host, int(port), f"PUT {encode(rest[1])} {mode} {len(data)}", data)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        print(f"guestctl: {error}", file=sys.stderr)
        os._exit(255)
