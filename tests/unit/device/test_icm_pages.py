"""Context memory that the machine lends."""

from __future__ import annotations

import os

import pytest

from rnic.device.icm_pages import _BASE, IcmPages


def test_pages_are_read_and_written_within_their_bounds_alone() -> None:
    pages, got = IcmPages(8192), bytearray(4)
    assert pages.write(_BASE + 8188, b"last")
    assert pages.read(_BASE + 8188, got)
    assert got == b"last"
    for va in (_BASE - 1, _BASE + 8189):
        assert not pages.write(va, b"past")
        assert not pages.read(va, got)
        assert pages.views(va, 4) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_a_copy() -> None:
    pages, got = IcmPages(4096), bytearray(4)
    child = os.fork()
    if child == 0:
        os._exit(not pages.write(_BASE, b"mine"))
    assert os.waitpid(child, 0)[1] == 0
    assert pages.read(_BASE, got)
    assert got == bytes(4)
