"""The fallback where ISA-L's wheel is not installed."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest

from rnic.wire import crc


def test_zlib_serves_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        reloaded = importlib.reload(crc)
        assert reloaded.CRC_BACKEND == "zlib"
        assert reloaded.crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(crc)
