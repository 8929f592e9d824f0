"""Tables of ``rnic sim`` as Parquet files, if pyarrow is installed."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from rnic.spec.errors import RnicError


class ParquetError(RnicError):
    """Parquet is not available. The message is one line: the option, its value, the remedy."""


def check_parquet(folder: Path) -> None:
    """Check before a run whether its tables can be written to a directory.

    Raises:
        ParquetError: pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ParquetError(f"--parquet {folder} wants pyarrow: pip install pyarrow")


def write_parquet(folder: Path, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Write one file, named after the table, for each table that has rows; create the directory."""
    pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        if rows:
            parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
