"""Fetch a file from a web server and compare it with a local copy: ``fetch.py HOST PORT FILE``."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

host, port, name = sys.argv[1:]
here = Path(name).read_bytes()
with urllib.request.urlopen(f"http://{host}:{port}/{Path(name).name}", timeout=20) as answer:
    there = answer.read()
if there != here:
    sys.exit(f"got {len(there)} bytes, which differ from {name}")
print(f"{len(there)} bytes, all correct")
