"""Where the libraries are, for who runs programs with them: building them takes more modules."""

from __future__ import annotations

from pathlib import Path

PATHS_LIBRARY = "librnicpaths.so"
"""What turns a program's device paths to the tree in the runtime directory."""
SOCKETS_LIBRARY = "librspreload.so"
"""What makes a program's TCP sockets rsockets."""
LIBRARIES = Path(__file__).parent / "lib"
"""Where the package's build leaves the libraries."""
