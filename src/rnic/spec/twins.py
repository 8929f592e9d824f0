"""Choose which modules run compiled: each has a twin in plain Python that does the same, slower.

Two variables of the environment decide, read once at import: ``RNIC_PLAIN=1`` takes plain Python everywhere,
``RNIC_REQUIRE_COMPILED=1`` makes a missing twin an error.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

_OFF = ("", "0")
FORCED_PLAIN = os.environ.get("RNIC_PLAIN", "") not in _OFF
_REQUIRED = os.environ.get("RNIC_REQUIRE_COMPILED", "") not in _OFF

in_use: dict[str, bool] = {}
"""True for each requested twin that is compiled, by the name of its plain module."""


def compiled_twin(plain: str, name: str) -> Any:
    """Return the compiled module ``name``, or ``None`` where module ``plain`` must do its work itself.

    Raises:
        ImportError: there is none although ``RNIC_REQUIRE_COMPILED`` is set.
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
