"""Fetch a file from a web server and compare it with one that is here: ``fetch.py HOST PORT FILE``."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

host, port, name = sys.argv[1:]
here = Path(name).read_bytes()
with urllib.request.urlopen(f"http://{host}:{port}/{Path(name).name}", timeout=20) as answer:
    there = answer.read()
if there != here:
    sys.exit(f"{len(there)} bytes came, and they are not those of {name}")
print(f"{len(there)} bytes, all right")
