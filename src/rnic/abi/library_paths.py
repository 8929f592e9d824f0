"""Paths of the libraries, for modules that run programs with them but do not build them."""

from __future__ import annotations

from pathlib import Path

PATHS_LIBRARY = "librnicpaths.so"
"""Redirects a program's device paths to the tree in the runtime directory."""
SOCKETS_LIBRARY = "librspreload.so"
"""Turns a program's TCP sockets into rsockets."""
LIBRARIES = Path(__file__).parent / "lib"
"""The directory into which the package's build puts the libraries."""
