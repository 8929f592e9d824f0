"""Tables of ``rnic sim`` as Parquet files, where pyarrow is installed."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from rnic.spec.errors import RnicError


class ParquetError(RnicError):
    """No Parquet here. One line: the thing, its value, the remedy."""


def check_parquet(folder: Path) -> None:
    """Before a run, whether its tables can be written there.

    Raises:
        ParquetError: pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ParquetError(f"--parquet {folder} wants pyarrow: pip install pyarrow")


def write_parquet(folder: Path, tables: dict[str, list[dict[str, Any]]]) -> None:
    """A file for each table that has rows, by its name; the folder is made."""
    pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        if rows:
            parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
