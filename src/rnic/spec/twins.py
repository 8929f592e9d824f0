"""Choose which modules run compiled: each has an equivalent in plain Python.

Two environment variables are read at import: ``RNIC_PLAIN=1`` uses plain Python everywhere, ``RNIC_REQUIRE_COMPILED=1``
makes a missing compiled module an error.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

_OFF = ("", "0")
FORCED_PLAIN = os.environ.get("RNIC_PLAIN", "") not in _OFF
_REQUIRED = os.environ.get("RNIC_REQUIRE_COMPILED", "") not in _OFF

in_use: dict[str, bool] = {}
"""True for each requested module that is compiled, by the name of its plain module."""


def compiled_twin(plain: str, name: str) -> Any:
    """Return the compiled module ``name``, or ``None`` if module ``plain`` must be used.

    Raises:
        ImportError: the compiled module is missing and ``RNIC_REQUIRE_COMPILED`` is set.
    """
    module = None
    if not FORCED_PLAIN:
        try:
            module = importlib.import_module(name)
        except ImportError:
            if _REQUIRED:
                raise ImportError(
                    f"{name} is not compiled and RNIC_REQUIRE_COMPILED is set: reinstall rnic where a C compiler is"
                ) from None
    in_use[plain] = module is not None
    return module
